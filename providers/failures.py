"""Tells from a provider's answer what went wrong; the shapes differ, what to do next does not."""

import email.utils
import re
import time
from collections.abc import Mapping
from typing import Any

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
)
from chatclient.json import loads

_REQUEST_IDS = ("x-request-id", "request-id", "apim-request-id", "x-goog-request-id")

# Only some providers have a code for it; the others say it in words.
_TOO_LONG = re.compile(
    r"context.?length|context window|maximum context|prompt is too long|too.many.(prompt.)?tokens"
    r"|input token count|exceeds? the (available|maximum) (context|number of tokens)"
    r"|reduce the length of the messages",
    re.IGNORECASE,
)
_FILTERED = re.compile(
    r"content.?filter|content.?policy|content management policy|responsibleai"
    r"|safety.?(system|policy)",
    re.IGNORECASE,
)


def error_of(provider: str, status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
    """Return the error that a provider's refusal stands for.

    Args:
        provider: Whose answer it is.
        status: The HTTP status, or the one an error inside a stream names; 0 when unknown.
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
    """Return the error that decoded *data* stands for; see `error_of`."""
    headers = headers or {}
    said, code = _message(data), _code(data)
    status = status or _status_in(data)
    kind = _kind(status, f"{code} {said}")
    where = f"{provider} answered {status}" if status else f"{provider} reported an error"
    hint = "; check the API key" if kind is AuthenticationError else ""
    return kind(
        f"{where}: {said or code or 'no reason given'}{hint}",
        provider=provider,
        status=status or None,
        request_id=next((headers[name] for name in _REQUEST_IDS if name in headers), None),
        body=data,
        retry_after=retry_after(headers, data),
    )


def _kind(status: int, text: str) -> type[ProviderError]:
    if status in (401, 403):
        return AuthenticationError
    if status == 429 or "rate_limit" in text:  # noqa: PLR2004
        return RateLimitedError
    if status == 408:  # noqa: PLR2004
        return RequestTimeoutError
    if status >= 500 or "overloaded" in text or "server_error" in text:  # noqa: PLR2004
        return OverloadedError
    if _TOO_LONG.search(text):
        return ContextLengthExceededError
    if _FILTERED.search(text):
        return ContentFilterError
    if status == 404:  # noqa: PLR2004
        return NotFoundError
    if status == 409:  # noqa: PLR2004
        return ConnectionFailedError  # a conflict on the provider's side; asking again helps
    return InvalidRequestError if status else InvalidResponseError


def _error(data: Any) -> Any:
    """Return the part of an answer that describes the error."""
    if isinstance(data, list) and data:
        data = data[0]
    return data.get("error", data) if isinstance(data, Mapping) else data


def _message(data: Any) -> str:
    error = _error(data)
    if isinstance(error, Mapping):
        for key in ("message", "detail", "error", "msg"):
            if value := error.get(key):
                return value if isinstance(value, str) else str(value)
        return ""
    return str(error).strip()


def _code(data: Any) -> str:
    error = _error(data)
    if not isinstance(error, Mapping):
        return ""
    return " ".join(str(error[key]) for key in ("code", "type", "status") if error.get(key))


def _status_in(data: Any) -> int:
    error = _error(data)
    if isinstance(error, Mapping):
        for key in ("status_code", "code", "status"):
            value = error.get(key)
            if isinstance(value, int) and 400 <= value < 600:  # noqa: PLR2004
                return value
    return 0


def retry_after(headers: Mapping[str, str], data: Any = None) -> float | None:
    """Return the seconds a provider asks to wait, in whichever of the usual places it says so."""
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds:
        return milliseconds / 1000
    value = headers.get("retry-after")
    if value is None:
        return _delay_in(data)
    seconds = _number(value)
    if seconds is not None:
        return seconds
    date = email.utils.parsedate_tz(value)
    return None if date is None else max(0.0, email.utils.mktime_tz(date) - time.time())


def _number(value: str | None) -> float | None:
    try:
        number = float(value or "")
    except ValueError:
        return None
    return number if 0 <= number < float("inf") else None


def _delay_in(data: Any) -> float | None:
    """Return the delay that Google puts into the body (google.rpc.RetryInfo)."""
    error = _error(data)
    details = error.get("details") if isinstance(error, Mapping) else None
    for detail in details if isinstance(details, list) else ():
        delay = detail.get("retryDelay") if isinstance(detail, Mapping) else None
        if isinstance(delay, str):
            return _number(delay.removesuffix("s"))
    return None
