"""`SafeGuardAdvisor`: keeps forbidden text out of requests and answers, also while they stream."""

import re
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from itertools import dropwhile, takewhile
from typing import Any, Literal

from chatclient._internal.checks import check_callable
from chatclient._internal.json import loads
from chatclient.chain.chain import (
    MEMORY_ORDER,
    Advisor,
    ChatClientRequest,
    ChatClientResponse,
    Next,
)
from chatclient.chat.events import (
    ReasoningDelta,
    ReasoningSigned,
    RoundEnded,
    TextDelta,
    ToolCallDelta,
    ToolCallStarted,
)
from chatclient.chat.message_merging import current_turn_start, ends_turn, is_of_user
from chatclient.chat.messages import AssistantMessage, Message, ToolResponseMessage, UserMessage
from chatclient.chat.response import ChatResponse, Generation
from chatclient.chat.tool import BACKGROUND
from chatclient.errors import UsageError
from chatclient.runtime.runtime import Runtime

_MAX_SPACE = 5  # characters between the words of a phrase
_ESCAPES = re.compile(r'(?:\\(?:u[0-9a-fA-F]{4}|["\\/bfnrt]))+')
_PARTIAL_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?$")
_MAX_ESCAPE = 6  # characters of the longest escape

# Letters of scripts without spaces between words: Thai and related scripts, kana, Han characters.
# Korean has spaces, but not before particles. Words next to these letters have no word boundary.
_NO_SPACE = (
    "\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u3005-\u3007\u3040-\u318f"
    "\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7ff\uf900-\ufaff\uff66-\uffdc\U00020000-\U0003ffff"
)
_UNSPACED = re.compile(f"[{_NO_SPACE}]")
_SPACED = rf"[^\W{_NO_SPACE}]"
_NO_MATCH = "(?!)"  # never matches

Forbidden = str | re.Pattern[str] | Callable[[str], Any]
"""A word or phrase; a pattern; or a function, plain or asynchronous, that returns whether a text
contains something forbidden."""


class ForbiddenMatcher:
    """Decides whether a text is forbidden, by words, patterns and functions.

    Args:
        forbidden: Words, patterns and functions.

    Attributes:
        needs_complete_text: Whether incomplete text cannot be checked, because of patterns or
            functions.
        lookbehind: The number of safe characters that `safe_length` reads.

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
        self._words = re.compile("|".join(map(_word_pattern, words)) or _NO_MATCH, re.IGNORECASE)
        self._patterns = [item for item in each if isinstance(item, re.Pattern)]
        self._checks = [item for item in each if not isinstance(item, str | re.Pattern)]
        for check in self._checks:
            check_callable("what is neither a word nor a pattern", check)
        # The longest match, with the maximum space between words, and the character after it.
        self._max_match = max(map(_max_length, words), default=0) + 1
        self.needs_complete_text = bool(self._patterns or self._checks)
        self.lookbehind = _MAX_ESCAPE * self._max_match + 1

    async def matches(self, text: str, runtime: Runtime) -> bool:
        """Return whether *text*, as it is or with JSON escapes decoded, is forbidden."""
        decoded = _decode_escapes(text)
        for variant in (text,) if decoded == text else (text, decoded):
            if any(pattern.search(variant) for pattern in (self._words, *self._patterns)):
                return True
            for check in self._checks:
                if await runtime.invoke(check, variant):
                    return True
        return False

    def safe_length(self, text: str, emitted: int) -> int:
        """Return the length of the prefix of *text* that later text cannot make forbidden.

        Only words are checked.

        Args:
            text: The text received so far; its start may be missing, up to `lookbehind` characters
                before the end of the safe prefix.
            emitted: The length of the prefix that is known to be safe.

        Returns:
            The length; -1 if *text* contains a forbidden word.
        """
        if _has_complete_match(self._words, text, emitted):
            return -1
        start = max(0, emitted - _MAX_ESCAPE * self._max_match)
        if "\\" in (tail := text[start:]):
            # The tail may start inside a word, whose rest must not match as a word. It may end with
            # a partial escape, whose character may belong to the last word.
            decoded = _decode_escapes(_PARTIAL_ESCAPE.sub("", tail))
            if _has_complete_match(self._words, decoded, min(start, 1)):
                return -1
            return max(0, len(text) - _MAX_ESCAPE * self._max_match)
        return max(0, len(text) - self._max_match)


def _has_complete_match(words: re.Pattern[str], text: str, start: int = 0) -> bool:
    """Return whether one of *words* occurs in *text* and is followed by another character.

    A match at the end of the text may be the start of a longer word: `class` of `classic`.
    """
    found = words.search(text, start)
    return found is not None and found.end() < len(text)


def _decode_escapes(text: str) -> str:
    """Return *text* with the JSON escapes in it decoded."""
    return _ESCAPES.sub(lambda found: str(loads(f'"{found[0]}"')), text) if "\\" in text else text


def _max_length(word: str) -> int:
    """Return the maximum length of a match of *word*."""
    parts = word.split()
    return sum(map(len, parts)) + _MAX_SPACE * (len(parts) - 1)


def _word_pattern(word: str) -> str:
    """Return a pattern that matches *word*, or a phrase, unless it is part of a longer word."""
    parts = word.split()
    start = "" if _UNSPACED.match(parts[0][0]) else rf"(?<!{_SPACED})"
    end = "" if _UNSPACED.match(parts[-1][-1]) else rf"(?!{_SPACED})"
    space = rf"\s{{1,{_MAX_SPACE}}}"
    return f"{start}{space.join(map(re.escape, parts))}{end}"


def text_and_reasoning(answer: ChatResponse) -> str:
    """Return text and reasoning of all generations of *answer*."""
    messages = [generation.output for generation in answer.generations]
    texts = [m.text for m in messages] + [r.text for m in messages for r in m.reasoning]
    return "\n".join(texts)


class CachedMatcher:
    """Checks the texts of one request, each text once, because a check may call a model.

    Args:
        matcher: Finds forbidden text.
        runtime: The runtime of the request.
    """

    def __init__(self, matcher: ForbiddenMatcher, runtime: Runtime) -> None:
        self._matcher = matcher
        self._runtime = runtime
        self._results: dict[str, bool] = {}

    async def matches(self, text: str) -> bool:
        """Return whether *text* is forbidden."""
        result = self._results.get(text)
        if result is None:
            result = self._results[text] = await self._matcher.matches(text, self._runtime)
        return result


class StreamFilter:
    """Emits the events of a stream, and withholds text that is or may become forbidden.

    Text and reasoning are checked separately. Buffered text is checked when the other kind follows,
    when a tool call starts, and when the round ends. After forbidden text, no text of the round is
    emitted; the advisor decides about the round when it has its response. Events of tools and
    advisors keep their position in the text.

    Args:
        matcher: Finds forbidden words in a text that is still incomplete.
        cache: Checks complete texts.
        runtime: The runtime that events are emitted to.

    Attributes:
        withheld: Whether text was withheld after the last text that was emitted.
    """

    def __init__(self, matcher: ForbiddenMatcher, cache: CachedMatcher, runtime: Runtime) -> None:
        self._matcher = matcher
        self._cache = cache
        self._runtime = runtime
        self._delta: type[TextDelta | ReasoningDelta] = TextDelta
        self._received: list[str] = []  # the text since the last release, and its length
        self._end = 0
        self._emitted = 0  # length of the emitted prefix
        self._text = ""  # the end of the text, at least what is not emitted
        self._start = 0  # where `_text` starts
        # Other events, each with its position in the text.
        self._queued: deque[tuple[int, Any]] = deque()
        self._discarding = False  # until the round ends
        self._has_emitted = self.withheld = False

    @property
    def runtime(self) -> Runtime:
        """The runtime to call the rest of the chain with."""
        return self._runtime.with_emitter(self._emit)

    async def _emit(self, event: Any) -> None:
        match event:
            case TextDelta() | ReasoningDelta() | ReasoningSigned():
                await self._append(event)
            case ToolCallStarted() | ToolCallDelta():
                await self.release()
                await self._runtime.emit(event)
            case RoundEnded(response=response):
                await self.release()
                if self._discarding or await self._cache.matches(text_and_reasoning(response)):
                    event = RoundEnded(replace(response, generations=()))
                self._discarding = False
                await self._runtime.emit(event)
            case _ if self._queued or self._emitted < self._end:
                # An event of a tool or advisor; the text around it is still checked as one text.
                self._queued.append((self._end, event))
            case _:
                await self._runtime.emit(event)

    async def _append(self, event: TextDelta | ReasoningDelta | ReasoningSigned) -> None:
        if type(event) is not self._delta:
            await self.release()
        if self._discarding:
            return
        if isinstance(event, ReasoningSigned):
            await self._runtime.emit(event)
            return
        self._delta = type(event)
        self._received.append(event.text)
        self._end += len(event.text)
        if self._matcher.needs_complete_text:
            return
        # Emitted text is removed: a growing text would be copied with each event.
        self._text += event.text
        safe = self._matcher.safe_length(self._text, self._emitted - self._start)
        await self._flush(safe if safe < 0 else self._start + safe)
        if (surplus := self._emitted - self._matcher.lookbehind - self._start) > 0:
            self._text = self._text[surplus:]
            self._start += surplus

    async def emit_paragraph(self, text: str) -> None:
        """Emit *text*, after a blank line if text was emitted before."""
        await self._runtime.emit(TextDelta(f"\n\n{text}" if self._has_emitted else text))

    async def release(self) -> None:
        """Emit the buffered text unless it is forbidden."""
        self._text, self._start = "".join(self._received), 0
        forbidden = self._text and await self._cache.matches(self._text)
        await self._flush(-1 if forbidden else self._end)
        self._clear_text()

    def _clear_text(self) -> None:
        self._received, self._text = [], ""
        self._start = self._emitted = self._end = 0

    async def _flush(self, safe: int) -> None:
        """Emit the first *safe* characters and the events among them; if negative, only events."""
        if safe < 0:
            self._discarding = self.withheld = True
            safe = self._end
            self._clear_text()
        while self._queued and self._queued[0][0] <= safe:
            position, event = self._queued.popleft()
            await self._emit_text(position)
            await self._runtime.emit(event)
        await self._emit_text(safe)

    async def _emit_text(self, end: int) -> None:
        if text := self._text[self._emitted - self._start : end - self._start]:
            self._emitted, self._has_emitted, self.withheld = end, True, False
            await self._runtime.emit(self._delta(text))


SAFE_GUARD_ORDER = MEMORY_ORDER + 50
"""The default order: inside memory, which does not store refused requests; outside of retrieval,
whose documents are not user input; and outside of the tool loop."""

FAILURE_RESPONSE = (
    "I cannot respond to that because it touches on sensitive content. Could we rephrase it or"
    " talk about something else?"
)


class SafeGuardAdvisor:
    """Replaces the response if the user's message or the answer contains forbidden text.

    The advisor checks the new user messages of a request, and text and reasoning of a response. A
    refused turn returns the failure response with finish reason `content_filter`. Memory stores
    neither the question nor the refusal, because they could affect later answers.

    Inside the tool loop, each round is checked, with the user input that arrived while tools ran.
    A refusal ends the turn: the tool calls of that round are not run. The tool calls of earlier
    rounds are kept, also by memory.

    A stream never emits forbidden text. Text is buffered for as long as it may become a forbidden
    word; with patterns or functions, until the round ends. The failure response follows the text
    that was already emitted.

    A text with JSON escapes is checked as it is and with the escapes decoded, because a structured
    output may be read from it.

    Args:
        *forbidden: Words and phrases, matched at word boundaries and in any case; patterns; and
            functions.
        failure_response: The text of the response that replaces a refused one.
        check_input: Whether to check requests.
        check_output: Whether to check responses.
        order: The position in the chain.

    Raises:
        UsageError: Nothing is forbidden, a word is blank, or something is none of these.
    """

    name = "SafeGuardAdvisor"
    params: Collection[str] = ()

    def __init__(
        self,
        *forbidden: Forbidden | Iterable[Forbidden],
        failure_response: str = FAILURE_RESPONSE,
        check_input: bool = True,
        check_output: bool = True,
        order: int = SAFE_GUARD_ORDER,
    ) -> None:
        self._matcher = ForbiddenMatcher(_flatten(forbidden))
        self._failure_response = failure_response
        self._check_input = check_input
        self._check_output = check_output
        self.order = order

    def inside_loop(self, order: int) -> Advisor | None:
        """Return the part that checks each round of the tool loop."""
        if not self._check_input and not self._check_output:
            return None
        return _RoundGuard(
            self._matcher,
            self._failure_response,
            order,
            check_input=self._check_input,
            check_output=self._check_output,
        )

    async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        """Return the response of the rest of the chain, or a refusal."""
        runtime, request.turn.blocked = request.runtime, None
        # The messages of a resumed turn were checked before advisors rewrote them.
        user_text = "" if request.turn.part.resumption is not None else _new_user_text(request)
        if self._check_input and user_text and await self._matcher.matches(user_text, runtime):
            response = ChatClientResponse(ChatResponse(), request.context)
            return _refusal(response, self._failure_response, "input")
        if not self._check_output:
            return await call_next(request)
        # Shared with the part inside the loop.
        state = request.turn.state
        cache = state[self._matcher] = CachedMatcher(self._matcher, runtime)
        stream = StreamFilter(self._matcher, cache, runtime)
        sent = request.mutate(runtime=stream.runtime) if runtime.streaming else request
        response = await call_next(sent)
        await stream.release()
        answer = response.chat_response
        refused = state[self._matcher] is _REFUSED and answer.text == self._failure_response
        if not refused and await cache.matches(text_and_reasoning(answer)):
            response, refused = _refusal(response, self._failure_response, "output"), True
        if refused or stream.withheld:
            await stream.emit_paragraph(response.chat_response.text)
        return response


def _flatten(forbidden: Iterable[Forbidden | Iterable[Forbidden]]) -> Iterable[Forbidden]:
    for item in forbidden:
        if isinstance(item, str | re.Pattern) or callable(item) or not isinstance(item, Iterable):
            yield item
        else:
            yield from item


def _new_user_text(request: ChatClientRequest) -> str:
    """Return the text of the user messages of the turn; the client may continue that of another."""
    messages = request.prompt.messages
    return _user_text(messages[current_turn_start(messages) :])


def _steering_text(request: ChatClientRequest) -> str:
    """Return the user input that arrived while the tools of the previous round ran."""
    messages = request.prompt.messages
    others = (m for m in reversed(messages) if not isinstance(m, UserMessage))
    last = next(others, None)
    results = takewhile(lambda m: isinstance(m, UserMessage), reversed(messages))
    if not any(BACKGROUND in m.metadata for m in results) and (
        not isinstance(last, ToolResponseMessage) or ends_turn(last)
    ):
        return ""
    # An assistant message at the end is the prefix of the answer (prefill).
    newest = dropwhile(lambda m: isinstance(m, AssistantMessage), reversed(messages))
    recent = takewhile(lambda m: not isinstance(m, ToolResponseMessage), newest)
    return _user_text(tuple(recent)[::-1])


def _user_text(messages: Iterable[Message]) -> str:
    """Return the text of user messages, without corrections, which advisors have added."""
    return "\n".join(m.text for m in messages if is_of_user(m))


def _refusal(
    response: ChatClientResponse, failure_response: str, blocked: Literal["input", "output"]
) -> ChatClientResponse:
    """Return *response* with *failure_response* as its answer, and record what was *blocked*."""
    generation = Generation(AssistantMessage(failure_response), "content_filter")
    refusal = replace(response.chat_response, generations=(generation,))
    response.turn.blocked = blocked
    return response.mutate(chat_response=refusal)


_REFUSED = "refused"  # replaces the cache in the state of the turn once a round is refused


class _RoundGuard:
    """The part of `SafeGuardAdvisor` inside the tool loop; refusing a round ends the loop.

    It checks the answer of each round, and the user input that arrived while tools ran.
    """

    name = "SafeGuardAdvisor, each round"
    params: Collection[str] = ()

    def __init__(
        self,
        matcher: ForbiddenMatcher,
        failure_response: str,
        order: int,
        *,
        check_input: bool,
        check_output: bool,
    ) -> None:
        self._matcher = matcher
        self._failure_response = failure_response
        self.order = order
        self._check_input = check_input
        self._check_output = check_output

    async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        state = request.turn.state
        cache = state.get(self._matcher)
        if not isinstance(cache, CachedMatcher):  # outputs are not checked, or a round was refused
            cache = CachedMatcher(self._matcher, request.runtime)
        user_text = _steering_text(request) if self._check_input else ""
        if user_text and await cache.matches(user_text):
            state[self._matcher] = _REFUSED
            response = ChatClientResponse(ChatResponse(), request.context)
            return _refusal(response, self._failure_response, "input")
        response = await call_next(request)
        if self._check_output and await cache.matches(text_and_reasoning(response.chat_response)):
            state[self._matcher] = _REFUSED
            return _refusal(response, self._failure_response, "output")
        return response
