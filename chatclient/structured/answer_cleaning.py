"""Strips code fences and surrounding text from structured answers; and the missing value."""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from chatclient._internal.text import without_thoughts

Cleaner = Callable[[str], str]
"""Removes text around the answer of a model."""

NOTHING: Any = object()
"""Stands for a missing value; None may be a value."""

_FENCED = re.compile(r"```[^\n`]*\n(.*?)```", re.DOTALL)
_FENCE = "```"
_OPENER = re.compile(r"[{\[]")
_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*+"|[{}\[\]]', re.DOTALL)
_BRACKETS = re.compile(r"[{}\[\]]")
# Ends with the last quote that is not escaped: all quotes before it are closed, none after it is.
_WITH_STRINGS = re.compile(r'.*(?<!\\)(?:\\\\)*+"', re.DOTALL)
_MAX_VALUES = 50  # number of candidates, from the end of the text


def without_fence(text: str) -> str:
    """Return *text* without a Markdown code fence that encloses all of it."""
    bare = text.strip()
    if len(bare) <= 2 * len(_FENCE) or not (bare.startswith(_FENCE) and bare.endswith(_FENCE)):
        return text
    inside = bare[len(_FENCE) : -len(_FENCE)]
    first, line_break, rest = inside.partition("\n")
    return (rest if line_break else first).strip()


def cleaned(text: str, cleaners: Iterable[Cleaner] = (without_thoughts, without_fence)) -> str:
    """Return *text* after all *cleaners*, without surrounding whitespace."""
    text = text.strip()
    for clean in cleaners:
        text = clean(text)
    return text.strip()


def json_within(text: str) -> Iterator[str]:
    """Yield the parts of *text* that may be the requested JSON, the most likely first.

    Fenced blocks come before unfenced values, and later ones before earlier ones, because models
    correct themselves.
    """
    yield from (block.strip() for block in reversed(_FENCED.findall(text)[-_MAX_VALUES:]))
    yield from reversed([*_values(text)][-_MAX_VALUES:])


def _values(text: str) -> Iterator[str]:
    """Yield the outermost objects and arrays in *text*, found by matching brackets.

    Stops at an unclosed one: a value inside of a truncated answer is not the answer.
    """
    at, strings_end = 0, _strings_end(text)
    while (opener := _OPENER.search(text, at)) is not None:
        begin, depth = opener.start(), 0
        for bracket in _brackets(text, begin, strings_end):
            depth += 1 if bracket[0] in "{[" else -1
            if not depth:
                break
        else:
            return
        at = bracket.end()
        yield text[begin:at]


def brackets(text: str) -> Iterator[re.Match[str]]:
    """Yield the brackets in *text* outside of strings; an unclosed string is not one."""
    return _brackets(text, 0, _strings_end(text))


def _brackets(text: str, begin: int, strings_end: int) -> Iterator[re.Match[str]]:
    for token in _TOKENS.finditer(text, begin, strings_end):
        if len(token[0]) == 1:
            yield token
    yield from _BRACKETS.finditer(text, max(begin, strings_end))


def _strings_end(text: str) -> int:
    found = _WITH_STRINGS.match(text)
    return 0 if found is None else found.end()
