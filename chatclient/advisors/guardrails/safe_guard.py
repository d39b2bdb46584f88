"""`SafeGuardAdvisor`: refuses requests and responses that contain forbidden text."""

import re
from collections.abc import Collection, Iterable
from dataclasses import replace
from itertools import dropwhile, takewhile
from typing import Literal

from chatclient.advisors.guardrails.word_matcher import (
    CachedMatcher,
    Forbidden,
    ForbiddenMatcher,
    StreamFilter,
    text_and_reasoning,
)
from chatclient.chain.chain import (
    MEMORY_ORDER,
    Advisor,
    ChatClientRequest,
    ChatClientResponse,
    Next,
)
from chatclient.chat.message_merging import CORRECTION, current_turn_start, ends_turn
from chatclient.chat.messages import AssistantMessage, Message, ToolResponseMessage, UserMessage
from chatclient.chat.response import ChatResponse, Generation

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
    if not isinstance(last, ToolResponseMessage) or ends_turn(last):
        return ""
    # An assistant message at the end is the prefix of the answer (prefill).
    newest = dropwhile(lambda m: isinstance(m, AssistantMessage), reversed(messages))
    recent = takewhile(lambda m: not isinstance(m, ToolResponseMessage), newest)
    return _user_text(tuple(recent)[::-1])


def _user_text(messages: Iterable[Message]) -> str:
    """Return the text of user messages, without corrections, which advisors have added."""
    return "\n".join(
        m.text for m in messages if isinstance(m, UserMessage) and CORRECTION not in m.metadata
    )


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
