"""What must not be said: how it is found, and how it is kept out of a stream."""

import re
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from chatclient.checks import check_callable
from chatclient.errors import UsageError
from chatclient.events import (
    ReasoningDelta,
    ReasoningSigned,
    RoundEnded,
    TextDelta,
    ToolCallDelta,
    ToolCallStarted,
)
from chatclient.json import loads
from chatclient.response import ChatResponse
from chatclient.runtime import Runtime

_WIDEST_SPACE = 5  # characters between the words of a phrase
_ESCAPES = re.compile(r'(?:\\(?:u[0-9a-fA-F]{4}|["\\/bfnrt]))+')
_CUT_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?$")
_ESCAPE = 6  # characters of the longest escape

# Letters of scripts that put no space between words: Thai and its neighbours, kana, Han characters.
# Korean does, but not before particles. In all of them, and beside them, a word is where it stands.
_NO_SPACE = (
    "\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u3005-\u3007\u3040-\u318f"
    "\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7ff\uf900-\ufaff\uff66-\uffdc\U00020000-\U0003ffff"
)
_UNSPACED = re.compile(f"[{_NO_SPACE}]")
_SPACED = rf"[^\W{_NO_SPACE}]"
_NOTHING = "(?!)"  # matches nowhere

Forbidden = str | re.Pattern[str] | Callable[[str], Any]
"""A word or phrase; a pattern; or a function, plain or asynchronous, that says whether a text
holds something forbidden."""


class ForbiddenText:
    """What must not be said, and how it is found.

    Args:
        forbidden: Words, patterns and functions.

    Raises:
        UsageError: Nothing is forbidden, a word is blank, or something is none of these.
    """

    def __init__(self, forbidden: Iterable[Forbidden]) -> None:
        each = list(forbidden)
        if not each:
            msg = "nothing is forbidden, so nothing would be refused; give at least one word"
            raise UsageError(msg)
        words = [item for item in each if isinstance(item, str)]
        if not all(word.strip() for word in words):
            msg = "a forbidden word is blank, which would forbid everything"
            raise UsageError(msg)
        self._words = _pattern_of(words)
        self._patterns = [item for item in each if isinstance(item, re.Pattern)]
        self._checks = [item for item in each if not isinstance(item, str | re.Pattern)]
        for check in self._checks:
            check_callable("what is neither a word nor a pattern", check)
        # How far back a word that has begun may reach, space that is wider than usual included.
        self._reach = max(map(_longest, words), default=0) + 1

    async def is_in(self, text: str, runtime: Runtime) -> bool:
        """Return whether *text* holds something forbidden, or does when it is read as JSON."""
        meant = _unescaped(text)
        for reading in (text,) if meant == text else (text, meant):
            if any(pattern.search(reading) for pattern in (self._words, *self._patterns)):
                return True
            for check in self._checks:
                if await runtime.invoke(check, reading):
                    return True
        return False

    def safe_length(self, text: str, known: int) -> int:
        """Return how much of *text*, safe up to *known*, stays so; -1 when it is forbidden."""
        if self._patterns or self._checks:
            return 0
        if _has_whole_word(self._words, text, known):
            return -1
        begin = max(0, known - _ESCAPE * self._reach)
        if "\\" in (tail := text[begin:]):
            # It may begin within a word, the rest of which would look like a word of its own, and
            # end within an escape, whose letter may belong to the word before it.
            meant = _unescaped(_CUT_ESCAPE.sub("", tail))
            if _has_whole_word(self._words, meant, min(begin, 1)):
                return -1
            return max(0, len(text) - _ESCAPE * self._reach)
        return max(0, len(text) - self._reach)


def _has_whole_word(words: re.Pattern[str], text: str, start: int = 0) -> bool:
    """Return whether *text* holds one of *words* and says that it has ended.

    At the end of the text it may still go on: `classic` is not the forbidden `class`.
    """
    found = words.search(text, start)
    return found is not None and found.end() < len(text)


def _unescaped(text: str) -> str:
    """Return *text* with what the escapes in it stand for, as whoever reads it as JSON finds it."""
    return _ESCAPES.sub(lambda found: str(loads(f'"{found[0]}"')), text) if "\\" in text else text


def _longest(word: str) -> int:
    """Return how many characters the pattern of *word* takes at most."""
    parts = word.split()
    return sum(map(len, parts)) + _WIDEST_SPACE * (len(parts) - 1)


def _pattern_of(words: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(_whole, words)) or _NOTHING, re.IGNORECASE)


def _whole(word: str) -> str:
    """Return the pattern of a *word* or phrase that is no part of a longer word."""
    parts = word.split()
    begin = "" if _UNSPACED.match(parts[0][0]) else rf"(?<!{_SPACED})"
    end = "" if _UNSPACED.match(parts[-1][-1]) else rf"(?!{_SPACED})"
    space = rf"\s{{1,{_WIDEST_SPACE}}}"
    return f"{begin}{space.join(map(re.escape, parts))}{end}"


def all_said(answer: ChatResponse) -> str:
    """Return the words and the thoughts of *answer*."""
    messages = [generation.output for generation in answer.generations]
    texts = [m.text for m in messages] + [r.text for m in messages for r in m.reasoning]
    return "\n".join(texts)


class Judge:
    """Judges what is said in one request, each text once: it may take a model to do so.

    Args:
        forbidden: What must not be said.
        runtime: How the request runs.
    """

    def __init__(self, forbidden: ForbiddenText, runtime: Runtime) -> None:
        self._forbidden = forbidden
        self._runtime = runtime
        self._verdicts: dict[str, bool] = {}

    async def forbids(self, text: str) -> bool:
        """Return whether *text* holds something forbidden."""
        verdict = self._verdicts.get(text)
        if verdict is None:
            verdict = self._verdicts[text] = await self._forbidden.is_in(text, self._runtime)
        return verdict


class Heard:
    """Lets through what is streamed as far as it cannot become forbidden, and withholds the rest.

    Text and thoughts are looked at apart from each other; when one gives way to the other, or to a
    tool call, or the round ends, what was held back is judged as it is. Of what a model goes on to
    say after something forbidden, nothing is let through: what becomes of the round is decided when
    it returns. Events of tools and advisors keep their place among the words.

    Args:
        forbidden: What must not be said.
        judge: Judges it, and what a whole round has said.
        runtime: Where the rest goes.

    Attributes:
        withheld: Whether something was withheld after the last words that were let through.
    """

    def __init__(self, forbidden: ForbiddenText, judge: Judge, runtime: Runtime) -> None:
        self._forbidden = forbidden
        self._judge = judge
        self._runtime = runtime
        self._kind: type[TextDelta | ReasoningDelta] = TextDelta
        self._text = ""
        self._emitted = 0
        # Other events, each with how much of the text stands before it.
        self._behind: deque[tuple[int, Any]] = deque()
        self._silent = False  # until the round ends
        self._spoken = self.withheld = False

    @property
    def runtime(self) -> Runtime:
        """What to make the call with."""
        return self._runtime.with_emitter(self._emit)

    async def _emit(self, event: Any) -> None:
        match event:
            case TextDelta() | ReasoningDelta() | ReasoningSigned():
                await self._take(event)
            case ToolCallStarted() | ToolCallDelta():
                await self.release()
                await self._runtime.emit(event)
            case RoundEnded(response=response):
                await self.release()
                if self._silent or await self._judge.forbids(all_said(response)):
                    event = RoundEnded(replace(response, generations=()))
                self._silent = False
                await self._runtime.emit(event)
            case _ if self._behind or self._emitted < len(self._text):
                # Of a tool or an advisor: the words around it are still judged as one text.
                self._behind.append((len(self._text), event))
            case _:
                await self._runtime.emit(event)

    async def _take(self, event: TextDelta | ReasoningDelta | ReasoningSigned) -> None:
        if type(event) is not self._kind:
            await self.release()
        if self._silent:
            return
        if isinstance(event, ReasoningSigned):
            await self._runtime.emit(event)
            return
        self._kind = type(event)
        self._text += event.text
        await self._say(self._forbidden.safe_length(self._text, self._emitted))

    async def say_apart(self, text: str) -> None:
        """Say *text*, apart from whatever was said before."""
        await self._runtime.emit(TextDelta(f"\n\n{text}" if self._spoken else text))

    async def release(self) -> None:
        """Say what is held back, unless it is forbidden."""
        forbidden = self._text and await self._judge.forbids(self._text)
        await self._say(-1 if forbidden else len(self._text))
        self._text, self._emitted = "", 0

    async def _say(self, safe: int) -> None:
        """Let through so much of the text, and the other events in it; below 0, no word of it."""
        if safe < 0:
            self._silent = self.withheld = True
            safe, self._text, self._emitted = len(self._text), "", 0
        while self._behind and self._behind[0][0] <= safe:
            place, event = self._behind.popleft()
            await self._say_words(place)
            await self._runtime.emit(event)
        await self._say_words(safe)

    async def _say_words(self, end: int) -> None:
        if piece := self._text[self._emitted : end]:
            self._emitted, self._spoken, self.withheld = end, True, False
            await self._runtime.emit(self._kind(piece))
