"""What is checked of settings that are words: a slip in one would quietly mean another."""

from collections.abc import Iterable
from typing import get_args

from chatclient.errors import UsageError


def check_word(what: str, given: object, *known: object) -> None:
    """Make sure that a setting has one of the values that it knows.

    Args:
        what: The setting.
        given: Its value.
        *known: What it may be: values, and `Literal`s for all that they have in them.

    Raises:
        UsageError: It is something else.
    """
    words = [word for each in known for word in get_args(each) or (each,)]
    # 1 is equal to True, and "READ" to nothing.
    if not any(given is word or (given == word and isinstance(given, str)) for word in words):
        msg = f"{what} is {_listed(words)}, not {given!r}"
        raise UsageError(msg)


def _listed(words: Iterable[object]) -> str:
    *others, last = map(repr, words)
    return f"{', '.join(others)} or {last}" if others else last
