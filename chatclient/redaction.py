"""Texts without what must not be kept of them, whichever way they are written down."""

import re
from collections.abc import Callable
from typing import Any

from chatclient.json import dumps, loads

_ESCAPED = re.compile(r'["\\\x00-\x1f]')  # what a string in JSON has escapes for


def redacted_text(redact: Callable[[str], str], text: str) -> str:
    r"""Return *text* redacted, and before that each string that is escaped in it, if it is JSON.

    In `"card:\n4111"` no word begins with the number, but in what was said one does.
    """
    return redact(_with_redacted_strings(redact, text))


def _with_redacted_strings(redact: Callable[[str], str], text: str) -> str:
    if "\\" not in text:
        return text
    try:
        data = loads(text)
    except ValueError:
        return text
    said = _redacted_strings(redact, data)
    return text if said == data else dumps(said).decode()


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
