"""Retry delays that providers ask for in headers and error bodies."""

import email.utils
import re
import time
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from chatclient.providers.http.error_details import details_in, error_in, message_in

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
