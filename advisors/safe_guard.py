"""Keeps what must not be said from being asked and from being answered."""

import re
from collections.abc import Iterable
from dataclasses import replace
from itertools import dropwhile, takewhile

from chatclient.advisors.forbidden import Forbidden, ForbiddenText, Heard, Judge, all_said
from chatclient.advisors.tool_calling import RESUME
from chatclient.chain import MEMORY_ORDER, Advisor, ChatClientRequest, ChatClientResponse, Next
from chatclient.messages import (
    AssistantMessage,
    Message,
    ToolResponseMessage,
    UserMessage,
    ends_turn,
)
from chatclient.response import ChatResponse, Generation
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
        judge = Judge(self._forbidden, runtime)
        heard = Heard(self._forbidden, judge, runtime)
        sent = request.mutate(
            context={self._slot: judge}, runtime=heard.runtime if runtime.streaming else None
        )
        response = await call_next(sent)
        await heard.release()
        answer = response.chat_response
        refused = response.context.get(self._slot) is _REFUSED and answer.text == self._failure
        if not refused and await judge.forbids(all_said(answer)):
            response, refused = _refusal(response, self._failure, "output"), True
        if refused or heard.withheld:
            await heard.say_apart(response.chat_response.text)
        return self._without_slot(response)

    def _without_slot(self, response: ChatClientResponse) -> ChatClientResponse:
        return ChatClientResponse(response.chat_response, without(response.context, self._slot))


def _flat(forbidden: Iterable[Forbidden | Iterable[Forbidden]]) -> Iterable[Forbidden]:
    for item in forbidden:
        if isinstance(item, str | re.Pattern) or callable(item) or not isinstance(item, Iterable):
            yield item
        else:
            yield from item


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


def _refusal(response: ChatClientResponse, failure: str, what: str) -> ChatClientResponse:
    """Return *response* with nothing but the *failure* response, and *what* was refused."""
    generation = Generation(AssistantMessage(failure), "content_filter")
    refusal = replace(response.chat_response, generations=(generation,))
    return response.mutate(chat_response=refusal, context={SAFE_GUARD_BLOCKED: what})


_REFUSED = "refused"  # stands in the place of the judge once a round was refused


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
        if not isinstance(judge, Judge):  # none judges answers, or an advisor between began anew
            judge = Judge(self._forbidden, request.runtime)
        said = _said_meanwhile(request) if self._check_input else ""
        if said and await judge.forbids(said):
            return self._refusal(ChatClientResponse(ChatResponse(), request.context), "input")
        response = await call_next(request)
        if self._check_output and await judge.forbids(all_said(response.chat_response)):
            return self._refusal(response, "output")
        return response

    def _refusal(self, response: ChatClientResponse, what: str) -> ChatClientResponse:
        refusal = _refusal(response, self._failure, what)
        return refusal.mutate(context={self._slot: _REFUSED})
