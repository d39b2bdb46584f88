"""Converts error responses, and errors of HTTP libraries, to `ProviderError` subclasses."""

import email.utils
import re
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from chatclient._internal.json import NestingError, dumps, loads, loads_exact
from chatclient._internal.text import printable, shortened
from chatclient.chat.parts import ToolCall, generate_call_id
from chatclient.errors import (
    AuthenticationError,
    ConnectionFailedError,
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
from chatclient.providers.http.auth import without_keys
from chatclient.providers.http.connections import aiohttp_errors, is_loopback, library_of
from chatclient.providers.http.limits import LIMITS
from chatclient.providers.wire.fields import MALFORMED, parse_count, text_field


def error_in(data: Any) -> Any:
    """Return the part of a response that describes the error."""
    if isinstance(data, list) and data:
        data = data[0]
    if not isinstance(data, Mapping):
        return data
    if data.get("errors") and isinstance(data["errors"], list):
        return data["errors"][0]
    if failed_base_response(data):
        return data["base_resp"]
    return data.get("error") or data.get("Error") or data


def failed_base_response(data: Mapping[str, Any]) -> bool:
    """Return whether `base_resp`, in which MiniMax reports errors, has an error code."""
    base = data.get("base_resp")
    return isinstance(base, Mapping) and bool(base.get("status_code"))


def message_in(error: Any) -> str:
    """Return the error message; all of *error* as text if its form is unknown."""
    try:
        return " ".join(_messages(error))
    except MALFORMED:
        return str(error)


def _messages(error: Any) -> Iterator[str]:
    """Yield the provider's message and that of the model or the upstream provider of a gateway."""
    if not isinstance(error, Mapping):
        yield str(error).strip()
        return
    fields = {str(key).lower(): value for key, value in error.items()}  # AWS has `Message` as well
    keys = ("message", "detail", "error", "msg", "status_msg", "errormessage", "title")
    message = next((fields[key] for key in keys if fields.get(key)), "")
    if isinstance(message, list):
        message = "; ".join(_validation_message(item) for item in message)
    elif isinstance(message, Mapping):
        message = "; ".join(_messages(message)) or str(dict(message))
    yield str(message)
    if original := fields.get("originalmessage"):
        yield f"({original})"
    metadata = error.get("metadata")
    if isinstance(metadata, Mapping) and (raw := metadata.get("raw")):
        yield f"({raw})"


def _validation_message(item: Any) -> str:
    """Return one validation error, such as those of FastAPI, as one line."""
    if not isinstance(item, Mapping) or "msg" not in item:
        return str(item)
    where = ".".join(str(step) for step in item.get("loc") or ())
    return f"{where}: {item['msg']}" if where else str(item["msg"])


def code_in(data: Any, error: Any) -> str:
    """Return the codes and types of the error, separated by spaces."""
    try:
        return " ".join(_codes(data, error))
    except MALFORMED:
        return ""


def _codes(data: Any, error: Any) -> Iterator[str]:
    """Yield codes and types, those of the innermost object first."""
    for item in (error,) if error is data else (error, data):
        if isinstance(item, Mapping):
            keys = ("code", "Code", "type", "__type", "status", "reason", "status_code")
            values = (item.get(key) for key in keys)
            yield from (str(value) for value in values if isinstance(value, str | int))
    for detail in details_in(error):
        yield from (str(detail[key]) for key in ("reason", "code") if detail.get(key))
        yield from (str(v.get("quotaId", "")) for v in detail.get("violations") or ())


def details_in(error: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the structured details of an error: Google's list, Azure's inner error."""
    if not isinstance(error, Mapping):
        return
    for key in ("details", "innererror"):
        value = error.get(key)
        items = value if isinstance(value, list) else [value]
        yield from (item for item in items if isinstance(item, Mapping))


def status_in(error: Any) -> int:
    """Return the HTTP status inside an error, or 0."""
    if isinstance(error, Mapping):
        for key in ("originalStatusCode", "status_code", "code", "status"):
            value = error.get(key)
            if isinstance(value, str):
                value = parse_count(value)
            if isinstance(value, int) and 400 <= value < 600:  # noqa: PLR2004
                return value
        return _MINIMAX_STATUS.get(error.get("status_code"), 0)
    return 0


# https://platform.minimax.io/docs/api-reference/errorcode
_MINIMAX_STATUS: dict[Any, int] = {
    1001: 408,
    1002: 429,
    1004: 401,
    1008: 402,
    1013: 500,
    1024: 500,
    1026: 422,
    1027: 422,
    1033: 500,
    1039: 429,
    2013: 400,
    2049: 401,
}


_REQUEST_IDS = (
    "x-request-id",
    "request-id",
    "apim-request-id",
    "x-goog-request-id",
    "mistral-correlation-id",
    "x-amzn-requestid",
)


def request_id(headers: Mapping[str, str], data: Any = None) -> str | None:
    """Return the provider's id of a request, from the headers or *data*."""
    for name in _REQUEST_IDS:
        if value := headers.get(name):
            return value
    value = data.get("request_id") if isinstance(data, Mapping) else None
    return value if isinstance(value, str) else None


_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|[dhms])")
_MAX_LENGTH = 100  # characters of a duration
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_TRY_AGAIN = re.compile(r"(?:try|retry|again)[a-z ]{0,20} (?:in|after) ((?:[\d.]+(?:ms|[hms]))+)")


def retry_after(headers: Mapping[str, str], data: Any = None) -> float | None:
    """Return the seconds that a provider asks to wait before a retry, or None.

    Looks at the headers `retry-after-ms` and `retry-after` (a number or a date), Google's
    `RetryInfo` in the body, and the sentence "please try again in 1.5s".
    """
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds:
        return milliseconds / 1000
    value = headers.get("retry-after")
    seconds = _number(value)
    if seconds is not None:
        return seconds
    if value and (until := _time_until(value)) is not None:
        return until
    error = error_in(data)
    for detail in details_in(error):
        if isinstance(delay := detail.get("retryDelay"), str):
            return parse_duration(delay)
    found = _TRY_AGAIN.search(message_in(error)) if error else None
    return parse_duration(found.group(1)) if found else None


def _time_until(date: str) -> float | None:
    """Return the seconds until an HTTP date (0 if it is past), or None if it is not a date."""
    try:
        parsed = email.utils.parsedate_tz(date)
        return None if parsed is None else max(0.0, email.utils.mktime_tz(parsed) - time.time())
    except (ValueError, OverflowError):  # such as the year 99999
        return None


@lru_cache(maxsize=256)
def parse_duration(duration: str) -> float | None:
    """Return the seconds of a duration such as `1m30.5s` or `26ms`, or None if it is invalid."""
    # The search is quadratic in a long run of digits without units.
    found = _DURATION.findall(duration) if len(duration) <= _MAX_LENGTH else ()
    if not found or "".join(number + unit for number, unit in found) != duration:
        return None
    seconds = sum(
        float(number) / 1000 if unit == "ms" else float(number) * _UNITS[unit]
        for number, unit in found
    )
    return seconds if seconds < float("inf") else None


def _number(value: str | None) -> float | None:
    try:
        number = float(value or "")
    except ValueError:
        return None
    return number if 0 <= number < float("inf") else None


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


class TransportErrors:
    """Converts the transport errors of requests to one provider."""

    def __init__(self, provider: str, base_url: str) -> None:
        self._provider = provider
        self._base_url = without_keys(base_url)

    @contextmanager
    def as_interruption(self, response: Any) -> Generator[None, None, None]:
        """Convert errors while a stream is read to `StreamInterruptedError`."""
        try:
            yield
        except self.stream_error_types(response) as error:
            cause = self.convert(error)
            msg = f"the stream broke before its end: {cause}"
            interrupted = StreamInterruptedError(msg, provider=self._provider)
            interrupted.retryable = cause.retryable
            raise interrupted from safe_cause(error)

    def stream_error_types(self, response: Any) -> tuple[type[Exception], ...]:
        """Return the types of errors that interrupt the stream of *response*."""
        return (RequestTimeoutError, *self.error_types(response))

    def error_types(self, source: Any) -> tuple[type[Exception], ...]:
        """Return the types of errors that *source*, a client or response, may raise."""
        library = library_of(source)
        return (library.HTTPError, library.InvalidURL, library.StreamError, *aiohttp_errors())

    def convert(self, error: Exception) -> ProviderError:
        """Return the `ProviderError` for *error* of an HTTP library."""
        if isinstance(error, ProviderError):
            return error
        names = {kind.__name__ for kind in type(error).__mro__}
        text = str(error) or type(error).__name__
        if "TimeoutException" in names:
            msg = f"{self._provider} did not answer in time ({type(error).__name__})"
            return RequestTimeoutError(msg, provider=self._provider)
        if not names.isdisjoint(("TransportError", "ClientError")):
            msg = f"cannot talk to {self._provider} at {self._base_url}: {text}"
            if "ConnectError" in names and is_loopback(urlsplit(self._base_url).hostname or ""):
                msg += "; is the server running?"
            return ConnectionFailedError(msg, provider=self._provider)
        msg = f"the answer of {self._provider} cannot be read: {text}"
        return InvalidResponseError(msg, provider=self._provider)


def safe_cause(error: Exception) -> Exception | None:
    """Return *error* unless it is one of aiohttp, which shows the headers of the request."""
    return None if hasattr(error, "request_info") else error
