"""Fields of requests, and those of answers, looked at before anything is made of them."""

from collections.abc import Mapping
from typing import Any

from chatclient.options import ChatOptions


def fields_of(options: ChatOptions, names: Mapping[str, str]) -> dict[str, Any]:
    """Return those of *options* that are set, by what the API calls them.

    Args:
        options: Those of a request, perhaps another provider's, which lack some.
        names: What the API calls each option.
    """
    return {
        wire: value
        for name, wire in names.items()
        if (value := getattr(options, name, None)) is not None and value != ()
    }


MISSHAPEN = (AttributeError, IndexError, KeyError, TypeError, ValueError)
"""What a codec meets where an answer is not of the form it has to be."""


def text_of(value: Any) -> str:
    """Return a field that has to be text, or may be left out.

    Raises:
        TypeError: It is something else.
    """
    if type(value) is str:
        return value
    if value:
        msg = f"{value!r:.80} is no text"
        raise TypeError(msg)
    return ""


def number_of(value: Any) -> int | None:
    """Return a field that counts something, or None where it is left out.

    Raises:
        TypeError: It is something else.
        ValueError: It is a text that spells no number.
    """
    if value is None or type(value) is int:
        return value
    if isinstance(value, str):
        return int(value) if value else None
    msg = f"{value!r:.80} is no number"
    raise TypeError(msg)


_DIGITS = 18


def count_of(text: str) -> int | None:
    """Return the number that *text*, such as a header, spells; None where it spells none."""
    return int(text) if len(text) <= _DIGITS and text.isascii() and text.isdigit() else None
