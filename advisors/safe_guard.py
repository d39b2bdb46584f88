"""Keeps what must not be said from being asked and from being answered."""

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from chatclient.chain import MEMORY_ORDER, ChatClientRequest, ChatClientResponse, Next
from chatclient.checks import check_callable
from chatclient.errors import UsageError
from chatclient.events import ReasoningDelta, RoundEnded, TextDelta
from chatclient.messages import AssistantMessage, Message, UserMessage
from chatclient.response import ChatResponse, Generation
from chatclient.runtime import Runtime

SAFE_GUARD_ORDER = MEMORY_ORDER + 50
"""Where guards stand by default: inside memory, which so never holds what they refuse, and outside
of retrieval, whose documents nobody has said, and of the tool loop."""

SAFE_GUARD_BLOCKED = "safe_guard_blocked"
"""The key in a response's context that says what was refused: `input` or `output`."""

FAILURE_RESPONSE = (
    "I cannot respond to that because it touches on sensitive content. Could we rephrase it or"
    " talk about something else?"
)

Forbidden = str | re.Pattern[str] | Callable[[str], Any]
"""A word or phrase; a pattern; or a function, plain or asynchronous, that says whether a text
holds something forbidden."""


class ForbiddenText:
    """What must not be said, and where it is said.

    Args:
        *forbidden: Words and phrases, found whole and in any case; patterns; and functions.

    Raises:
        UsageError: Nothing is forbidden, a word is blank, or something is none of these.
    """

    def __init__(self, *forbidden: Forbidden | Iterable[Forbidden]) -> None:
        each = list(_flat(forbidden))
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
            check_callable("what is forbidden", check)
        # How far back a word that has begun may reach, space that is wider than usual included.
        self._reach = max((len(word) + 4 * word.count(" ") for word in words), default=0) + 1

    async def found_in(self, text: str, runtime: Runtime) -> bool:
        """Return whether *text* holds something of it."""
        if self._words is not None and self._words.search(text):
            return True
        if any(pattern.search(text) for pattern in self._patterns):
            return True
        for check in self._checks:
            if await runtime.invoke(check, text):
                return True
        return False

    def safe_length(self, text: str, known: int) -> int:
        """Return how much of *text*, safe up to *known*, stays so; -1 when it is forbidden."""
        if self._patterns or self._checks:
            return 0
        if self._words is None:
            return len(text)
        # At its end, a word may still become another one: `class` forbids `classic` nothing.
        ended = self._words.search(text, known)
        if ended is not None and ended.end() < len(text):
            return -1
        return max(0, len(text) - self._reach)


class SafeGuardAdvisor:
    """Answers in the model's place where something forbidden is asked, or was answered.

    Of a request, what the user has just said is looked at; of a response, all that was said. What
    is refused is answered with a text of its own, finish reason `content_filter`, and memory keeps
    neither the question nor the refusal, so that one bad turn does not spoil the next.

    In a stream nothing forbidden is ever emitted: words are held back for as long as they may
    become forbidden, and with patterns and functions until the round has ended. What was already
    said stays said; the failure response follows it.

    Args:
        *forbidden: Words and phrases, found whole and in any case; patterns; and functions.
        failure_response: What to say instead.
        check_input: Whether to look at requests.
        check_output: Whether to look at responses.
        order: Where the advisor stands in the chain.

    Raises:
        UsageError: Nothing is forbidden, a word is blank, or something is none of these.
    """

    name = "SafeGuardAdvisor"

    def __init__(
        self,
        *forbidden: Forbidden | Iterable[Forbidden],
        failure_response: str = FAILURE_RESPONSE,
        check_input: bool = True,
        check_output: bool = True,
        order: int = SAFE_GUARD_ORDER,
    ) -> None:
        self._forbidden = ForbiddenText(*forbidden)
        self._failure = failure_response
        self._check_input = check_input
        self._check_output = check_output
        self.order = order

    async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        """Return the response of the rest of the chain, or a refusal."""
        runtime = request.runtime
        if self._check_input and await self._forbidden.found_in(_just_said(request), runtime):
            return self._refusal(ChatClientResponse(ChatResponse(), request.context), "input")
        if not self._check_output:
            return await call_next(request)
        guarded = _Guarded(self._forbidden, runtime)
        sent = request.mutate(runtime=guarded.runtime) if runtime.streaming else request
        try:
            response = await call_next(sent)
            await guarded.release()
        except _ForbiddenError:
            refusal = self._refusal(ChatClientResponse(ChatResponse(), request.context), "output")
            await guarded.emit_failure(self._failure)
            return refusal
        answer = response.chat_response
        if await self._forbidden.found_in(_all_said(answer), runtime):
            if guarded.spoken:
                await guarded.emit_failure(self._failure)
            return self._refusal(response, "output")
        return response

    def _refusal(self, response: ChatClientResponse, what: str) -> ChatClientResponse:
        message = AssistantMessage(self._failure)
        refusal = replace(
            response.chat_response, generations=(Generation(message, "content_filter"),)
        )
        return response.mutate(chat_response=refusal, context={SAFE_GUARD_BLOCKED: what})


def _flat(forbidden: Iterable[Forbidden | Iterable[Forbidden]]) -> Iterable[Forbidden]:
    for item in forbidden:
        if isinstance(item, str | re.Pattern) or callable(item) or not isinstance(item, Iterable):
            yield item
        else:
            yield from item


def _pattern_of(words: Iterable[str]) -> re.Pattern[str] | None:
    alternatives = [r"\s{1,5}".join(map(re.escape, word.split())) for word in words]
    if not alternatives:
        return None
    return re.compile(rf"(?<!\w)(?:{'|'.join(alternatives)})(?!\w)", re.IGNORECASE)


def _just_said(request: ChatClientRequest) -> str:
    """Return what the user says in this request, not in those before it."""
    said: list[Message] = []
    for message in reversed(request.prompt.messages):
        if isinstance(message, AssistantMessage):
            break
        said.append(message)
    return "\n".join(m.text for m in reversed(said) if isinstance(m, UserMessage))


def _all_said(answer: ChatResponse) -> str:
    messages = [generation.output for generation in answer.generations]
    texts = [m.text for m in messages] + [r.text for m in messages for r in m.reasoning]
    return "\n".join(texts)


class _ForbiddenError(Exception):
    """Ends a stream at its first forbidden word."""


class _Guarded:
    """Lets through what is streamed as far as it cannot become forbidden.

    Text and thoughts are looked at apart from each other; when one gives way to the other, or the
    round ends, what was held back is judged as it is.
    """

    def __init__(self, forbidden: ForbiddenText, runtime: Runtime) -> None:
        self._forbidden = forbidden
        self._runtime = runtime
        self._kind: type[TextDelta | ReasoningDelta] = TextDelta
        self._text = ""
        self._emitted = 0
        self.spoken = False

    @property
    def runtime(self) -> Runtime:
        return self._runtime.with_emitter(self._emit)

    async def _emit(self, event: Any) -> None:
        if isinstance(event, TextDelta | ReasoningDelta):
            if type(event) is not self._kind:
                await self.release()
                self._kind = type(event)
            self._text += event.text
            await self._say(self._forbidden.safe_length(self._text, self._emitted))
            return
        await self.release()
        if isinstance(event, RoundEnded) and await self._forbids(_all_said(event.response)):
            raise _ForbiddenError
        await self._runtime.emit(event)

    async def emit_failure(self, text: str) -> None:
        """Say *text*, apart from whatever was said before."""
        await self._runtime.emit(TextDelta(f"\n\n{text}" if self.spoken else text))

    async def release(self) -> None:
        """Say what is held back, or stop."""
        if self._text and await self._forbids(self._text):
            raise _ForbiddenError
        await self._say(len(self._text))
        self._text, self._emitted = "", 0

    async def _forbids(self, text: str) -> bool:
        return await self._forbidden.found_in(text, self._runtime)

    async def _say(self, safe: int) -> None:
        if safe < 0:
            raise _ForbiddenError
        if safe > self._emitted:
            piece, self._emitted = self._text[self._emitted : safe], safe
            self.spoken = True
            await self._runtime.emit(self._kind(piece))
