"""Makes errors of what providers answer: however they word it, each kind has its one class.

`error_bodies` finds the words in an answer, and `retry_hints` the time to wait.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from chatclient.errors import (
    AuthenticationError,
    ContentFilterError,
    ContextLengthExceededError,
    InvalidRequestError,
    InvalidResponseError,
    NotFoundError,
    OverloadedError,
    ProviderError,
    RateLimitedError,
    RequestTimeoutError,
    StreamInterruptedError,
    ToolCallRefusedError,
)
from chatclient.json import dumps, loads
from chatclient.parts import ToolCall, invented_call_id
from chatclient.providers.error_bodies import code_in, error_in, request_id, said_in, status_in
from chatclient.providers.fields import MISSHAPEN, text_of
from chatclient.providers.retry_hints import retry_after
from chatclient.texts import shortened


def error_of(provider: str, status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
    """Return the error that a provider's answer describes.

    Args:
        provider: Whose answer it is.
        status: The HTTP status; 0 where the answer itself had succeeded.
        headers: The answer's headers, with lower-case names.
        body: The answer's body, whatever its form.
    """
    try:
        data = loads(body)
    except ValueError:
        data = body.decode(errors="replace")[:2000]
    return error_from(provider, status, data, headers)


def error_from(
    provider: str, status: int, data: Any, headers: Mapping[str, str] | None = None
) -> ProviderError:
    """Return the error that decoded *data* describes; see `error_of`."""
    headers = headers or {}
    error = error_in(data)
    said, code = said_in(error)[:_READ], code_in(data, error)
    number = status or status_in(error)
    call = _refused_call(error)
    kind = _kind_of(number, code, said) if call is None else ToolCallRefusedError
    own: dict[str, Any] = {} if call is None else {"tool_call": call}
    failure = kind(
        _sentence(provider, status, said or code, kind),
        provider=provider,
        status=number or None,
        request_id=request_id(headers, data),
        body=data,
        # Some providers send the header with answers that succeed, too.
        retry_after=retry_after(headers if status else {}, data),
        **own,
    )
    unread = _CALL_REFUSED in code and call is None
    failure.retryable = unread or _is_worth_retrying(failure, f"{code} {said}", headers)
    return failure


def refuse_error(provider: str, data: Any, headers: Mapping[str, str]) -> None:
    """Refuse decoded *data*, of an answer that seemed to succeed, if it reports an error.

    Raises:
        ProviderError: It does.
    """
    if isinstance(data, dict) and data.get("error"):
        raise error_from(provider, 0, data, headers)


def json_of(provider: str, body: bytes) -> Any:
    """Return the JSON that an answer's body is.

    Raises:
        InvalidResponseError: It is not JSON; the error quotes its beginning.
    """
    try:
        return loads(body)
    except ValueError as error:
        shown = body[:200].decode(errors="replace")
        msg = f"{provider} answered with something that is not JSON: {shown!r}"
        raise InvalidResponseError(msg, provider=provider, body=shown) from error


def unreadable(provider: str, data: Any) -> InvalidResponseError:
    """Return the error for an answer of no known form."""
    body = data[:2000].decode(errors="replace") if isinstance(data, bytes) else data
    msg = f"{provider} answered with something that is not a response: {str(body)[:200]!r}"
    return InvalidResponseError(msg, provider=provider, body=body)


def ended_early(provider: str) -> StreamInterruptedError:
    """Return the error for a stream that ended before its answer did."""
    msg = f"{provider}'s stream ended before its answer did"
    return StreamInterruptedError(msg, provider=provider)


def no_answer(provider: str, data: Any) -> InvalidResponseError:
    """Return the error for *data*, a response without any answer in it.

    Asked again, the provider usually has one.
    """
    msg = f"{provider} answered with a response that has no answer in it: {str(data)[:200]}"
    error = InvalidResponseError(msg, provider=provider, body=data)
    error.retryable = True
    return error


_CALL_REFUSED = "tool_use_failed"


def _refused_call(error: Any) -> ToolCall | None:
    """Return the tool call for which a server refuses the answer of its own model, or None.

    Groq does so (console.groq.com/docs/tool-use). What the model wrote may be no call at all, or is
    not told; the model then has to be asked again.
    """
    match error:
        case {"code": code, "failed_generation": str(written)} if code == _CALL_REFUSED:
            try:
                call = loads(written)
                name, arguments = text_of(call["name"]), dumps(call["arguments"]).decode()
            except MISSHAPEN:
                return None
            return ToolCall(invented_call_id(), name, arguments) if name else None
        case _:
            return None


_READ = 4000  # characters of what the provider says; validators quote the whole request behind it
_ANOTHER_API = re.compile(r"(use|supported in) /?v1/responses", re.IGNORECASE)
# Some providers quote the key they refuse. (Words that follow "Bearer" have no digit.)
_KEY = re.compile(
    r"\b(?:(?:sk|gsk|xai|pplx|hf|r8)[-_]|Bearer (?=[-.=]*[a-zA-Z_]*[\d*])|AIza)[-\w.*=]{6,}"
)
_SHOWN = 500  # characters of what the provider says


def _sentence(provider: str, status: int, said: str, kind: type[ProviderError]) -> str:
    where = f"{provider} answered {status}" if status else f"{provider} reported an error"
    said = shortened(_KEY.sub("***", said.strip()), _SHOWN)
    hint = "; check the API key" if kind is AuthenticationError else ""
    if _ANOTHER_API.search(said):
        hint = "; OpenAIResponsesChatModel speaks that API: name the model openai-responses:..."
    return f"{where}: {said or 'no reason given'}{hint}"


# --- which error ----------------------------------------------------------------------------


def _any_of(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns), re.IGNORECASE)


# Only some providers have a code for these; the others say it in words.
_TOO_LONG = _any_of(
    r"context_length|context_size|context_window_exceeded|too_many_prompt_tokens",
    r"(maximum|model's|available|(of|than|exceeds?) the|reached) context (length|size|window)",
    r"exceed(s|ed)? (the )?(max(imum)? )?context|maximum model length|prompt exceeds max length",
    r"context (length|size|window|limit)s? (exceed|is only)|range of input length",
    r"context the overflows|context length of only",
    r"(prompt|input|inputs|messages|conversation) (is|are) too (long|large)",
    r"prompt_too_long|too many (input |prompt )?tokens(?!.{0,20} please wait)",
    r"maximum prompt length|input token count|prompt token count|input tokens exceed",
    r"exceeded model token limit|`inputs` (tokens|must have less)",
    r"reduce the length of (the|your) (messages|input|prompt)",
)
_ANSWER_LENGTH = _any_of(r"max_?(completion|output|new)?_?tokens")
_PROMPT = _any_of(r"prompt|input|messages")
_FILTERED = _any_of(
    r"content.?filter|content.?policy|content management policy|responsible.?ai",
    r"safety.?(system|policy)|usage (policy|policies|guidelines)|policy violation",
    r"content exists risk|data_inspection_failed|(was|been) flagged|requires moderation",
)
_BAD_KEY = _any_of(
    r"(invalid|incorrect|missing|no|wrong|unknown)_?-? ?(x-)?api.?key",
    r"api.?key (is )?(not valid|not found|invalid|incorrect|missing|expired)|api_key_invalid",
    r"authentication_error|permission_error|unauthenticated|permission_denied",
)
_RATE_LIMITED = _any_of(
    r"rate.?limit|too.?many.?requests|resource_exhausted|insufficient_quota|throttl"
)
_OVERLOADED = _any_of(r"overloaded|server_error|api_error|internal|unavailable|timeout|timed out")
_NO_MODEL = _any_of(
    r"model_not_found|not_found_error|deploymentnotfound|invalid_model|model_decommissioned",
    r"model not exist|not a valid model id",
)
_REFUSED = _any_of(r"invalid_request|bad_?request|invalid_argument|invalid_prompt|invalid_value")

# A limit that waiting does not lift: no money left, a day's share used up, a request that by
# itself is over the limit.
_FOR_GOOD = _any_of(
    r"insufficient_quota|billing_hard_limit|per.?day|request too large|credit balance"
)

_BY_STATUS: dict[int, type[ProviderError]] = {
    401: AuthenticationError,
    403: AuthenticationError,
    404: NotFoundError,
    408: RequestTimeoutError,
    413: ContextLengthExceededError,
    429: RateLimitedError,
}


def _is_too_long(text: str) -> bool:
    """Return whether *text* says that the prompt is too long, not just the answer asked for."""
    of_answer = _ANSWER_LENGTH.search(text) is not None and _PROMPT.search(text) is None
    return _TOO_LONG.search(text) is not None and not of_answer


_Rules = tuple[tuple[Callable[[str], object], type[ProviderError]], ...]

# Asked in this order where the status says too little: 400, 422, or none at all.
_BY_WORDS: _Rules = (
    (_is_too_long, ContextLengthExceededError),
    (_FILTERED.search, ContentFilterError),
    (_BAD_KEY.search, AuthenticationError),
    (_NO_MODEL.search, NotFoundError),
)

# Errors in an answer that had begun well; the codes only, for messages quote the user.
_BY_CODE: _Rules = (
    (_RATE_LIMITED.search, RateLimitedError),
    (_REFUSED.search, InvalidRequestError),
    (_OVERLOADED.search, OverloadedError),
)


def _kind_of(status: int, code: str, said: str) -> type[ProviderError]:
    text = f"{code} {said}"
    if status == 403 and _FILTERED.search(text):  # noqa: PLR2004
        return ContentFilterError
    if status == 500 and _is_too_long(text):  # noqa: PLR2004
        return ContextLengthExceededError  # some servers fail rather than refuse
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    if status >= 500:  # noqa: PLR2004
        return OverloadedError
    if found := _first(_BY_WORDS, text):
        return found
    # Without a status the provider had begun to answer: what stopped it is on its side.
    return InvalidRequestError if status else _first(_BY_CODE, code) or OverloadedError


def _first(rules: _Rules, text: str) -> type[ProviderError] | None:
    return next((kind for applies, kind in rules if applies(text)), None)


def _is_worth_retrying(error: ProviderError, text: str, headers: Mapping[str, str]) -> bool:
    if advice := headers.get("x-should-retry"):
        return advice == "true"
    if error.status in (409, 425):  # a conflict with what the provider is doing right now
        return True
    if error.status in (501, 505):  # what it cannot do now, it cannot do later
        return False
    return error.retryable and not _FOR_GOOD.search(text)
