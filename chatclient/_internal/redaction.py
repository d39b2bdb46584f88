"""Redacts text, and the strings of JSON within it."""

import re
from collections.abc import Callable
from typing import Any

from chatclient._internal.json import dumps, loads

_ESCAPED = re.compile(r'["\\\x00-\x1f]')  # characters that JSON strings escape


def redacted_text(redact: Callable[[str], str], text: str) -> str:
    r"""Return *text* redacted; if it is JSON, its strings are redacted unescaped first.

    In `"card:\n4111"`, a pattern with a word boundary before the number matches only after the
    escape `\n` has become a line break.
    """
    return redact(_with_redacted_strings(redact, text))


def _with_redacted_strings(redact: Callable[[str], str], text: str) -> str:
    if "\\" not in text:
        return text
    try:
        data = loads(text)
    except ValueError:
        return text
    redacted = _redacted_strings(redact, data)
    return text if redacted == data else dumps(redacted).decode()


def _redacted_strings(redact: Callable[[str], str], data: Any) -> Any:
    match data:
        case str() if _ESCAPED.search(data):
            return redacted_text(redact, data)
        case list():
            return [_redacted_strings(redact, item) for item in data]
        case dict():
            return {key: _redacted_strings(redact, value) for key, value in data.items()}
        case _:
            return data
