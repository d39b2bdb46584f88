"""Reads message, code, status and retry delay of an error from answers of all providers."""

import email.utils
import re
import time
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from chatclient.providers.wire.fields import MALFORMED, parse_count


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
