"""Takes away what models write around the answer that was asked for."""

import re
from collections.abc import Callable, Iterable, Iterator

from chatclient.thoughts import without_thoughts

Cleaner = Callable[[str], str]
"""Returns a model's text without something that does not belong to the answer."""

_FENCED = re.compile(r"```[^\n`]*\n(.*?)```", re.DOTALL)
_FENCE = "```"
_OPENER = re.compile(r"[{\[]")
_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*+"|["{}\[\]]', re.DOTALL)
_BRACKETS = re.compile(r"[{}\[\]]")
_MOST_VALUES = 50  # tried, counted from the last


def without_fence(text: str) -> str:
    """Return *text* without the Markdown fence around it, if it has one around all of it."""
    bare = text.strip()
    if len(bare) <= 2 * len(_FENCE) or not (bare.startswith(_FENCE) and bare.endswith(_FENCE)):
        return text
    inside = bare[len(_FENCE) : -len(_FENCE)]
    first, line_break, rest = inside.partition("\n")
    return (rest if line_break else first).strip()


def cleaned(text: str, cleaners: Iterable[Cleaner] = (without_thoughts, without_fence)) -> str:
    """Return *text* as all of *cleaners* leave it, without space around it."""
    text = text.strip()
    for clean in cleaners:
        text = clean(text)
    return text.strip()


def json_within(text: str) -> Iterator[str]:
    """Yield what in *text* may be the JSON that was asked for, the likeliest first.

    Fenced blocks go before what stands between words, and the last goes before the first, because
    models correct themselves on the way.
    """
    yield from (block.strip() for block in reversed(_FENCED.findall(text)[-_MOST_VALUES:]))
    yield from reversed([*_values(text)][-_MOST_VALUES:])


def _values(text: str) -> Iterator[str]:
    """Yield the outermost objects and arrays between the words of *text*, as brackets tell.

    What is never closed is not looked into: a part of an unfinished answer may look like a whole.
    """
    at = 0
    while (opener := _OPENER.search(text, at)) is not None:
        end = _end_of_value(text, opener.start())
        if end is None:
            return
        yield text[opener.start() : end]
        at = end


def _end_of_value(text: str, begin: int) -> int | None:
    depth = 0
    for bracket in brackets(text, begin):
        depth += 1 if bracket[0] in "{[" else -1
        if not depth:
            return bracket.end()
    return None


def brackets(text: str, begin: int = 0) -> Iterator[re.Match[str]]:
    """Yield the brackets in *text* that are in no string; one that never ends is none."""
    for token in _TOKENS.finditer(text, begin):
        if token[0] == '"':  # looked for its end in vain once, and not from each quote in it
            yield from _BRACKETS.finditer(text, token.end())
            return
        if len(token[0]) == 1:
            yield token
