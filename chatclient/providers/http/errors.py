"""Converts error responses of providers to `ProviderError` subclasses."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from chatclient._internal.json import NestingError, dumps, loads, loads_exact
from chatclient._internal.text import printable, shortened
from chatclient.chat.parts import ToolCall, generate_call_id
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
    ResponseLimitError,
    StreamInterruptedError,
    ToolCallRefusedError,
)
from chatclient.providers.http.error_details import (
    code_in,
    error_in,
    message_in,
    request_id,
    retry_after,
    status_in,
)
from chatclient.providers.http.limits import LIMITS
from chatclient.providers.http.redaction import without_keys
from chatclient.providers.wire.fields import MALFORMED, text_field


def error_from_body(
    provider: str, status: int, headers: Mapping[str, str], body: bytes, url: str = ""
) -> ProviderError:
    """Return the error that a response describes; *status* is 0 for one with a success status.

    If the status is 404, the error names *url*, without API keys, and what is unusual about it.
    """
    try:
        data = loads(body)
    except ValueError:
        data = body.decode(errors="replace")[:2000]
    return error_from_data(provider, status, data, headers, url)


def error_from_data(
    provider: str,
    status: int,
    data: Any,
    headers: Mapping[str, str] | None = None,
    url: str = "",
) -> ProviderError:
    """Return the error that decoded *data* describes; see `error_from_body`."""
    headers = headers or {}
    details = error_in(data)
    # AWS names the kind of error in a header, before a URL.
    kind = headers.get("x-amzn-errortype", "").partition(":")[0]
    reason, code = message_in(details)[:_MAX_READ], (code_in(data, details) or kind)[:_MAX_READ]
    number = status or status_in(details)
    call = _refused_call(details)
    # A model that fails behind AWS (424) has a status of its own.
    cause = status_in(details) if status == 424 else 0  # noqa: PLR2004
    error_type: type[ProviderError] = ToolCallRefusedError
    if call is None:
        error_type = _error_type(cause or number, code, reason)
    extra: dict[str, Any] = {} if call is None else {"tool_call": call}
    where = _where(url, f"{code} {reason}") if status == 404 and url else ""  # noqa: PLR2004
    error = error_type(
        _message(provider, status, reason or code, error_type, where),
        provider=provider,
        status=number or None,
        request_id=request_id(headers, data),
        body=data,
        # Some providers also send the header with successful responses.
        retry_after=retry_after(headers if status else {}, data),
        **extra,
    )
    unparsed_call = _CALL_REFUSED in code and call is None
    error.retryable = unparsed_call or _is_retryable(error, f"{code} {reason}", headers)
    return error


def raise_for_error(provider: str, data: Any, headers: Mapping[str, str]) -> None:
    """Raise if decoded *data* of a successful response reports an error."""
    if isinstance(data, dict) and (data.get("error") or data.get("object") == "error"):  # vLLM
        raise error_from_data(provider, 0, data, headers)


def parse_json(provider: str, body: bytes, *, exact: bool = False) -> Any:
    """Return the JSON of a response; if *exact*, numbers keep their digits (see `loads_exact`)."""
    try:
        return loads_exact(body) if exact else loads(body)
    except NestingError as error:
        raise invalid_response(provider, body, error) from error
    except ValueError as error:
        shown = body[:200].decode(errors="replace")
        msg = f"{provider} answered with something that is not JSON: {shown!r}"
        raise InvalidResponseError(msg, provider=provider, body=shown) from error


def invalid_response(
    provider: str, data: Any, reason: Exception | None = None
) -> InvalidResponseError:
    """Return the error for a response that cannot be interpreted, or is nested too deeply."""
    body = data[:2000].decode(errors="replace") if isinstance(data, bytes) else data
    if isinstance(reason, NestingError):
        levels = LIMITS.nesting
        msg = f"{provider} answered with JSON that is nested more than {levels} levels deep"
        return ResponseLimitError(
            msg, limit="nesting", maximum=levels, provider=provider, body=body
        )
    msg = f"{provider} answered with something that is not a response: {str(body)[:200]!r}"
    return InvalidResponseError(msg, provider=provider, body=body)


def stream_ended_early(provider: str) -> StreamInterruptedError:
    """Return the error for a stream that ended before the answer was complete."""
    msg = f"{provider}'s stream ended before its answer did"
    return StreamInterruptedError(msg, provider=provider)


def empty_response(provider: str, data: Any) -> InvalidResponseError:
    """Return the error for *data*, a response without content; a retry usually succeeds."""
    msg = f"{provider} answered with a response that has no answer in it: {str(data)[:200]}"
    error = InvalidResponseError(msg, provider=provider, body=data)
    error.retryable = True
    return error


_CALL_REFUSED = "tool_use_failed"


def _refused_call(error: Any) -> ToolCall | None:
    """Return the invalid tool call of the model that a server reports as an error, or None.

    Groq does this (console.groq.com/docs/tool-use). If the text is missing or is not a tool call,
    the request has to be retried instead.
    """
    match error:
        case {"code": code, "failed_generation": str(written)} if code == _CALL_REFUSED:
            try:
                call = loads(written)
                name, arguments = text_field(call["name"]), dumps(call["arguments"]).decode()
            except MALFORMED:
                return None
            return ToolCall(generate_call_id(), name, arguments) if name else None
        case _:
            return None


_MAX_READ = 4000  # characters of the message; validators append the complete request
_ANOTHER_API = re.compile(r"(use|supported in) /?v1/responses", re.IGNORECASE)
_MAX_SHOWN = 500  # characters of the message


def _message(
    provider: str, status: int, reason: str, error_type: type[ProviderError], where: str
) -> str:
    what = f"{provider} answered {status}{where}" if status else f"{provider} reported an error"
    reason = printable(shortened(without_keys(reason.strip()), _MAX_SHOWN))
    hint = "; check the API key" if error_type is AuthenticationError else ""
    if _ANOTHER_API.search(reason):
        hint = "; OpenAIResponsesChatModel speaks that API: name the model openai-responses:..."
    return f"{what}: {reason or 'no reason given'}{hint}"


_ENDPOINT = r"/(?:chat/completions|completions|responses|embeddings|messages)"
_NO_VERSION = re.compile(rf"(?:http://[^/]+|https://api\.openai\.com){_ENDPOINT}$")
_NAMES_MODEL = re.compile("model|deployment", re.IGNORECASE)
_UNUSUAL = (
    (rf"({_ENDPOINT}).*\1$", "\\1 is there twice: leave it out of the base URL"),
    (r"(/v\d\w*)\1(?=/)", "\\1 is there twice: leave it out of the base URL"),
    (r"(?<!:)(//)", "there are two slashes: the base URL ends without one"),
)


def _where(url: str, text: str) -> str:
    """Return where *text*, a reason with its code, is from, and what is unusual about the URL."""
    where = f" at {without_keys(url)}"
    for pattern, hint in _UNUSUAL:
        if found := re.search(pattern, url):
            return f"{where} ({found.expand(hint)})"
    # Some public servers have addresses without a version; local ones have /v1.
    if _NO_VERSION.match(url) and not _NAMES_MODEL.search(text):
        where += " (it has no version: most servers have a base URL that ends with /v1)"
    return where


def _any_of(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns), re.IGNORECASE)


# Only some providers have a code for these; for the others the message is searched.
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
_ANSWER_TOO_LONG = _any_of(r"max_?(completion|output|new)?_?tokens\W.{0,40}too (large|high|big)")
_ANSWER_LENGTH = _any_of(r"max_?(completion|output|new)?_?tokens")
_PROMPT = _any_of(r"prompt|input|messages")
_FILTERED = _any_of(
    r"content.?filter|content.?policy|content management policy|responsible.?ai",
    r"safety.?(system|policy)|usage (policy|policies|guidelines)|policy violation",
    r"content exists risk|data_inspection_failed|(was|been) flagged|requires moderation",
    r"(input|output) new_sensitive",
)
_BAD_KEY = _any_of(
    r"(invalid|incorrect|missing|no|wrong|unknown)_?-? ?(x-)?api.?key",
    r"api.?key (is )?(not valid|not found|invalid|incorrect|missing|expired)|api_key_invalid",
    r"authentication_error|permission_error|unauthenticated|permission_denied",
    r"expiredtoken|unrecognizedclient|invalidsignature|accessdenied",  # AWS
)
_RATE_LIMITED = _any_of(
    r"rate.?limit|too.?many.?requests|resource_exhausted|insufficient_quota|throttl"
)
_THROTTLED = _any_of(r"throttl|too.?many.?requests")
_OVERLOADED = _any_of(r"overloaded|server_error|api_error|internal|unavailable|timeout|timed out")
_NO_MODEL = _any_of(
    r"model_not_found|not_found_error|deploymentnotfound|invalid_model|model_decommissioned",
    r"model not exist|not a valid model id|no such model",
)
_REFUSED = _any_of(r"invalid_request|bad_?request|invalid_argument|invalid_prompt|invalid_value")

# Limits that a retry does not lift: no credit, daily quota used up, a request over the limit.
_PERMANENT = _any_of(
    r"billing_hard_limit|per.?day|request too large|credit balance|exceeded_current_quota",
    r"insufficient.?(\w+.?)?(quota|balance|credits?|funds)|out of credits|payment.?required",
    r"balance (is )?(insufficient|not enough|too low)|余额不足|欠费",
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
    """Return whether *text* is about the prompt's length, not the requested answer's."""
    if _ANSWER_TOO_LONG.search(text):
        return False
    about_answer = _ANSWER_LENGTH.search(text) is not None and _PROMPT.search(text) is None
    return _TOO_LONG.search(text) is not None and not about_answer


_Rules = tuple[tuple[Callable[[str], object], type[ProviderError]], ...]

# Tried in this order if the status is ambiguous: 400, 422 or none.
_BY_MESSAGE: _Rules = (
    (_is_too_long, ContextLengthExceededError),
    (_FILTERED.search, ContentFilterError),
    (_BAD_KEY.search, AuthenticationError),
    (_NO_MODEL.search, NotFoundError),
)

# For errors after a successful status; only codes are searched, because messages quote the user.
_BY_CODE: _Rules = (
    (_RATE_LIMITED.search, RateLimitedError),
    (_REFUSED.search, InvalidRequestError),
    (_OVERLOADED.search, OverloadedError),
)


def _error_type(status: int, code: str, reason: str) -> type[ProviderError]:
    text = f"{code} {reason}"
    if status == 403 and _FILTERED.search(text):  # noqa: PLR2004
        return ContentFilterError
    if status == 500 and _is_too_long(text):  # noqa: PLR2004
        return ContextLengthExceededError  # some servers answer 500 to a long prompt
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    if status >= 500:  # noqa: PLR2004
        return OverloadedError
    if found := _first(_BY_MESSAGE, text):
        return found
    if _THROTTLED.search(code):
        return RateLimitedError  # also with 400, at AWS
    # Without a status the answer had already started, so the request was valid.
    return InvalidRequestError if status else _first(_BY_CODE, code) or OverloadedError


def _first(rules: _Rules, text: str) -> type[ProviderError] | None:
    return next((kind for applies, kind in rules if applies(text)), None)


def _is_retryable(error: ProviderError, text: str, headers: Mapping[str, str]) -> bool:
    if advice := headers.get("x-should-retry"):
        return advice == "true"
    if error.status in (409, 425):  # temporary conflict
        return True
    if error.status in (501, 505):  # not implemented
        return False
    return error.retryable and not _PERMANENT.search(text)
