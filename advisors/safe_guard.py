"""Keeps what must not be said from being asked and from being answered."""

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import dropwhile, takewhile
from typing import Any

from chatclient.advisors.tool_calling import RESUME
from chatclient.chain import MEMORY_ORDER, Advisor, ChatClientRequest, ChatClientResponse, Next
from chatclient.checks import check_callable
from chatclient.errors import UsageError
from chatclient.events import ReasoningDelta, ReasoningSigned, RoundEnded, TextDelta
from chatclient.json import loads
from chatclient.messages import (
    AssistantMessage,
    Message,
    ToolResponseMessage,
    UserMessage,
    ends_turn,
)
from chatclient.response import ChatResponse, Generation
from chatclient.runtime import Runtime
from chatclient.turn_taking import CORRECTION
from chatclient.values import without

SAFE_GUARD_ORDER = MEMORY_ORDER + 50
"""Where guards stand by default: inside memory, which therefore never holds what they refuse, and
outside of retrieval, whose documents nobody has said, and of the tool loop."""

SAFE_GUARD_BLOCKED = "safe_guard_blocked"
"""The key in a response's context that says what was refused: `input` or `output`."""

FAILURE_RESPONSE = (
    "I cannot respond to that because it touches on sensitive content. Could we rephrase it or"
    " talk about something else?"
)

_WIDEST_SPACE = 5  # characters between the words of a phrase
_ESCAPES = re.compile(r'(?:\\(?:u[0-9a-fA-F]{4}|["\\/bfnrt]))+')
_ESCAPE = 6  # characters of the longest escape

Forbidden = str | re.Pattern[str] | Callable[[str], Any]
"""A word or phrase; a pattern; or a function, plain or asynchronous, that says whether a text
holds something forbidden."""


class SafeGuardAdvisor:
    """Answers in the model's place where something forbidden is asked, or was answered.

    Of a request, what the user has just said is looked at; of a response, all that was said. What
    is refused is answered with a text of its own, finish reason `content_filter`, and memory keeps
    neither the question nor the refusal, so that one bad turn does not spoil the next.

    Each round of the tool loop is looked at, with what the user says meanwhile, and what is refused
    there ends the turn: the tools that the round asked for are not run. What tools did in earlier
    rounds stands, and memory keeps that they did.

    In a stream nothing forbidden is ever emitted: words are held back for as long as they may
    become forbidden, and with patterns and functions until the round has ended. What was already
    said stays said; the failure response follows it.

    A text with escapes in it is looked at twice: as it is, and as a reader of JSON finds it, since
    it may be the answer that an entity is made of.

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
        self._forbidden = ForbiddenText(_flat(forbidden))
        self._failure = failure_response
        self._check_input = check_input
        self._check_output = check_output
        # The key under which the two halves of this guard share a judge. Others have their own.
        self._slot = f"safe_guard_{id(self):x}"
        self.order = order

    def inside_loop(self, order: int) -> Advisor | None:
        """Return the half that judges each round, to stand right inside of the tool loop."""
        if not self._check_input and not self._check_output:
            return None
        return _EachRound(
            self._forbidden,
            self._failure,
            self._slot,
            order,
            check_input=self._check_input,
            check_output=self._check_output,
        )

    async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        """Return the response of the rest of the chain, or a refusal."""
        runtime = request.runtime
        # What a turn goes on with has been said before, and is what advisors have made of it.
        asked = "" if RESUME in request.context else _just_said(request)
        if self._check_input and asked and await self._forbidden.is_in(asked, runtime):
            return _refusal(
                ChatClientResponse(ChatResponse(), request.context), self._failure, "input"
            )
        if not self._check_output:
            return self._without_slot(await call_next(request))
        judge = _Judge(self._forbidden, runtime)
        heard = _Heard(self._forbidden, judge, runtime)
        sent = request.mutate(
            context={self._slot: judge}, runtime=heard.runtime if runtime.streaming else None
        )
        response = await call_next(sent)
        await heard.release()
        answer = response.chat_response
        refused = response.context.get(self._slot) is _REFUSED and answer.text == self._failure
        if not refused and await judge.forbids(_all_said(answer)):
            response, refused = _refusal(response, self._failure, "output"), True
        if refused or heard.withheld:
            await heard.say_apart(response.chat_response.text)
        return self._without_slot(response)

    def _without_slot(self, response: ChatClientResponse) -> ChatClientResponse:
        return ChatClientResponse(response.chat_response, without(response.context, self._slot))


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
            if self._words is not None and self._words.search(reading):
                return True
            if any(pattern.search(reading) for pattern in self._patterns):
                return True
            for check in self._checks:
                if await runtime.invoke(check, reading):
                    return True
        return False

    def safe_length(self, text: str, known: int) -> int:
        """Return how much of *text*, safe up to *known*, stays so; -1 when it is forbidden."""
        if self._patterns or self._checks:
            return 0
        if self._words is None:
            return len(text)
        if _has_whole_word(self._words, text, known):
            return -1
        if "\\" in (tail := text[max(0, known - _ESCAPE * self._reach) :]):
            if _has_whole_word(self._words, _unescaped(tail)):
                return -1
            return max(0, len(text) - _ESCAPE * self._reach)
        return max(0, len(text) - self._reach)


def _flat(forbidden: Iterable[Forbidden | Iterable[Forbidden]]) -> Iterable[Forbidden]:
    for item in forbidden:
        if isinstance(item, str | re.Pattern) or callable(item) or not isinstance(item, Iterable):
            yield item
        else:
            yield from item


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


def _pattern_of(words: Iterable[str]) -> re.Pattern[str] | None:
    space = rf"\s{{1,{_WIDEST_SPACE}}}"
    alternatives = [space.join(map(re.escape, word.split())) for word in words]
    if not alternatives:
        return None
    return re.compile(rf"(?<!\w)(?:{'|'.join(alternatives)})(?!\w)", re.IGNORECASE)


def _just_said(request: ChatClientRequest) -> str:
    """Return what the user says in this request, not in those before it."""
    return _said_by_user(request, AssistantMessage)


def _said_meanwhile(request: ChatClientRequest) -> str:
    """Return what the user has said while the tools of the round before were running."""
    messages = request.prompt.messages
    others = (m for m in reversed(messages) if not isinstance(m, UserMessage))
    last = next(others, None)
    if not isinstance(last, ToolResponseMessage) or ends_turn(last):
        return ""
    return _said_by_user(request, ToolResponseMessage)


def _said_by_user(request: ChatClientRequest, since: type[Message]) -> str:
    """Return what the user said after the last message of the type *since*.

    The corrections that advisors put in the user's mouth are left out.
    """
    messages: Iterable[Message] = reversed(request.prompt.messages)
    # An assistant's message at the end is what the answer is to begin with.
    messages = dropwhile(lambda m: isinstance(m, AssistantMessage), messages)
    said = list(takewhile(lambda m: not isinstance(m, since), messages))
    return "\n".join(
        m.text
        for m in reversed(said)
        if isinstance(m, UserMessage) and CORRECTION not in m.metadata
    )


def _all_said(answer: ChatResponse) -> str:
    messages = [generation.output for generation in answer.generations]
    texts = [m.text for m in messages] + [r.text for m in messages for r in m.reasoning]
    return "\n".join(texts)


def _refusal(response: ChatClientResponse, failure: str, what: str) -> ChatClientResponse:
    """Return *response* with nothing but the *failure* response, and *what* was refused."""
    generation = Generation(AssistantMessage(failure), "content_filter")
    refusal = replace(response.chat_response, generations=(generation,))
    return response.mutate(chat_response=refusal, context={SAFE_GUARD_BLOCKED: what})


_REFUSED = "refused"  # stands in the place of the judge once a round was refused


class _Judge:
    """Judges what is said in one request, each text once: it may take a model to do so."""

    def __init__(self, forbidden: ForbiddenText, runtime: Runtime) -> None:
        self._forbidden = forbidden
        self._runtime = runtime
        self._verdicts: dict[str, bool] = {}

    async def forbids(self, text: str) -> bool:
        verdict = self._verdicts.get(text)
        if verdict is None:
            verdict = self._verdicts[text] = await self._forbidden.is_in(text, self._runtime)
        return verdict


class _EachRound:
    """Refuses a round of the tool loop in which something forbidden was said, and so ends the loop.

    The model may have said it, or the user while the tools of the round before were running.
    """

    name = "SafeGuardAdvisor, each round"

    def __init__(
        self,
        forbidden: ForbiddenText,
        failure: str,
        slot: str,
        order: int,
        *,
        check_input: bool,
        check_output: bool,
    ) -> None:
        self._forbidden = forbidden
        self._failure = failure
        self._slot = slot
        self.order = order
        self._check_input = check_input
        self._check_output = check_output

    async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        judge = request.context.get(self._slot)
        if not isinstance(judge, _Judge):  # none judges answers, or an advisor between began anew
            judge = _Judge(self._forbidden, request.runtime)
        said = _said_meanwhile(request) if self._check_input else ""
        if said and await judge.forbids(said):
            return self._refusal(ChatClientResponse(ChatResponse(), request.context), "input")
        response = await call_next(request)
        if self._check_output and await judge.forbids(_all_said(response.chat_response)):
            return self._refusal(response, "output")
        return response

    def _refusal(self, response: ChatClientResponse, what: str) -> ChatClientResponse:
        refusal = _refusal(response, self._failure, what)
        return refusal.mutate(context={self._slot: _REFUSED})


class _Heard:
    """Lets through what is streamed as far as it cannot become forbidden, and withholds the rest.

    Text and thoughts are looked at apart from each other; when one gives way to the other, or the
    round ends, what was held back is judged as it is. Of what a model goes on to say after that,
    nothing is let through: what becomes of the round is decided when it returns.

    Attributes:
        withheld: Whether something was withheld after the last words that were let through.
    """

    def __init__(self, forbidden: ForbiddenText, judge: _Judge, runtime: Runtime) -> None:
        self._forbidden = forbidden
        self._judge = judge
        self._runtime = runtime
        self._kind: type[TextDelta | ReasoningDelta] = TextDelta
        self._text = ""
        self._emitted = 0
        self._silent = False  # until the round ends
        self._spoken = self.withheld = False

    @property
    def runtime(self) -> Runtime:
        return self._runtime.with_emitter(self._emit)

    async def _emit(self, event: Any) -> None:
        if self._silent and isinstance(event, TextDelta | ReasoningDelta | ReasoningSigned):
            return
        if isinstance(event, TextDelta | ReasoningDelta):
            if type(event) is not self._kind:
                await self.release()
                self._kind = type(event)
                if self._silent:
                    return
            self._text += event.text
            await self._say(self._forbidden.safe_length(self._text, self._emitted))
            return
        await self.release()
        if isinstance(event, RoundEnded):
            if self._silent or await self._judge.forbids(_all_said(event.response)):
                event = RoundEnded(replace(event.response, generations=()))
            self._silent = False
        await self._runtime.emit(event)

    async def say_apart(self, text: str) -> None:
        """Say *text*, apart from whatever was said before."""
        await self._runtime.emit(TextDelta(f"\n\n{text}" if self._spoken else text))

    async def release(self) -> None:
        """Say what is held back, unless it is forbidden."""
        forbidden = self._text and await self._judge.forbids(self._text)
        await self._say(-1 if forbidden else len(self._text))
        self._text, self._emitted = "", 0

    async def _say(self, safe: int) -> None:
        if safe < 0:
            self._silent = self.withheld = True
            self._text, self._emitted = "", 0
        elif safe > self._emitted:
            piece, self._emitted = self._text[self._emitted : safe], safe
            self._spoken, self.withheld = True, False
            await self._runtime.emit(self._kind(piece))
