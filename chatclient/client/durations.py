"""Times and limits in settings, as environment variables and TOML files contain them."""

import re
from datetime import timedelta
from typing import Annotated, Any

from pydantic import BeforeValidator

UNLIMITED = -1
"""The value for "no limit" in sources without None."""

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}  # in seconds
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhd])")
_AMOUNTS = re.compile(f"(?:{_AMOUNT.pattern})+")


def _seconds(value: Any) -> Any:
    """Return *value*, as a number of seconds if it is a string with a number or with units.

    Raises:
        ValueError: It is a string that is no time.
    """
    if not isinstance(value, str):
        return value
    text = value.strip().lower()
    if _AMOUNTS.fullmatch(text):
        return sum(float(amount) * _UNITS[unit] for amount, unit in _AMOUNT.findall(text))
    try:
        return float(text)
    except ValueError:
        if text.startswith("p"):
            return value  # for pydantic: ISO 8601
        msg = "not a time; write 90s, 30m, 1h, 1h30m, a number of seconds, or PT3M"
        raise ValueError(msg) from None


def _limit(value: Any) -> Any:
    return None if str(value).strip() == str(UNLIMITED) else value


def _time_limit(value: Any) -> Any:
    return _seconds(_limit(value))


def _interval(value: Any) -> Any:
    return timedelta.max if _limit(value) is None else _seconds(value)


Limit = Annotated[int | None, BeforeValidator(_limit)]
Duration = Annotated[timedelta, BeforeValidator(_seconds)]
TimeLimit = Annotated[timedelta | None, BeforeValidator(_time_limit)]
Interval = Annotated[timedelta, BeforeValidator(_interval)]
