"""Turns of a conversation: how an advisor begins them and has them remembered.

A turn is what is said from a request to its answer, with the tool calls between. It is begun by
reading the memory, and written to it at its end, as a unit. One that comes to no answer (it
failed, was cancelled or limited by an error, or waits for approval) leaves nothing behind.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any
from uuid import uuid4

from chatclient.advisors.notes import note_messages, noted, noted_messages
from chatclient.advisors.recognition import end_of, going_before, without_end
from chatclient.advisors.tool_calling import (
    EARLIER_MESSAGES,
    PENDING_TURN,
    RESUME,
    TOOL_MESSAGES,
    UNDONE,
)
from chatclient.chain import ChatClientRequest, ChatClientResponse, Next
from chatclient.checks import check_kind
from chatclient.errors import DeadlineExceededError, UsageError
from chatclient.exchange import ended_by_tools, whole_answer
from chatclient.memory.chat_memory import ChatMemory
from chatclient.memory.repository import checked_id
from chatclient.messages import (
    AssistantMessage,
    Message,
    ToolResponse,
    ToolResponseMessage,
    UserMessage,
    last_turn_begin,
    system_messages,
    without_system,
)
from chatclient.operations import MemoryAccess
from chatclient.prompt import DEFAULT_MESSAGES, Prompt
from chatclient.response import ChatResponse
from chatclient.runtime import Runtime
from chatclient.tool import CONVERSATION_ID
from chatclient.tools import PendingTurn
from chatclient.tools.compensation import rewritten
from chatclient.turn_taking import in_turns, present_turn, says_something
from chatclient.values import without

TURN_KEY = "chat_memory_turn_key"
"""The key in a request's context of the turn's own key: a turn that is made twice with the same
one, because a queue delivered its job twice, say, is remembered once."""

NEW_MESSAGES = "chat_memory_new_messages"
"""The key in a request's context, behind a memory advisor, of what the request adds to the
conversation, a tuple of messages."""

_NOTE = "chat_memory"  # how much of a turn that waits for approval is still to be remembered


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn that has begun.

    Attributes:
        conversation_id: The conversation that it belongs to.
        own: What it began with: the messages that the request adds to the conversation.
        history: What the memory shows of the turns before; nothing where the prompt holds it.
        key: Names the turn, so that it is remembered once; or None.
        said: What models and tools had said before the turn waited, if it did.
    """

    conversation_id: str
    own: tuple[Message, ...]
    history: tuple[Message, ...]
    key: str | None
    said: tuple[Message, ...] = ()


Show = Callable[[ChatClientRequest, tuple[Message, ...]], ChatClientRequest]
"""Returns a request in which the model is shown what was said before."""


class Turns:
    """Begins turns and has them remembered, for an advisor outside or inside the tool loop.

    Inside, `run` only shows the memory in each round when a `WholeTurns` outside of the loop has
    begun the turn and will end it.

    Args:
        memory: What remembers the conversations.
        tool_messages: Whether tool calls and their answers are remembered too.
    """

    def __init__(self, memory: ChatMemory, *, tool_messages: bool) -> None:
        hint = "put a repository into one: MessageWindowChatMemory(repository)"
        check_kind("a memory", memory, ChatMemory, hint)
        self.memory = memory
        self.tool_messages = tool_messages
        # Where the two halves of an advisor meet: other memory advisors have turns of their own.
        self.slot = f"chat_memory_turn_{id(self):x}"

    async def run(
        self, request: ChatClientRequest, call_next: Next, show: Show
    ) -> ChatClientResponse:
        """Return the response to *request*, asked with what was said before.

        Raises:
            UsageError: The request has no conversation id.
            ChatMemoryError: The memory failed.
        """
        turn: Turn | None = request.context.get(self.slot)
        if turn is not None:
            history = turn.history
            if EARLIER_MESSAGES not in request.context:  # another memory inside has shown its own
                said = spoken(request)
                history, _ = going_before(history, said, default_count(request, said))
            return await call_next(show(request, history))
        turn = await self.begin(request)
        begun = request.mutate(context={NEW_MESSAGES: turn.own})
        response = await self.end(turn, request, await call_next(show(begun, turn.history)))
        return _without(response, _set_here(request))

    async def begin(self, request: ChatClientRequest) -> Turn:
        """Return the turn that *request* begins, or goes on with.

        Raises:
            UsageError: The request has no conversation id.
            ChatMemoryError: The conversation cannot be read.
        """
        conversation_id = conversation_id_of(request)
        begin = self._resume if RESUME in request.context else self._start
        turn = await begin(request, conversation_id, turn_key_of(request))
        earlier = self._stored_already(request, conversation_id)
        if earlier:
            return _asked_again(turn, request, earlier)
        known = request.context.get(TOOL_MESSAGES, ())
        if known and not self.tool_messages:  # asked again, with what the tools have said
            turn = replace(turn, own=_others(turn.own, known), said=(*turn.said, *known))
        return turn

    async def _start(
        self, request: ChatClientRequest, conversation_id: str, key: str | None
    ) -> Turn:
        """Return the turn that begins with the last words of *request*."""
        said = in_turns(spoken(request), UserMessage)
        own: tuple[Message, ...] | None = request.context.get(NEW_MESSAGES)
        if own is None:
            own = said[default_count(request, said) :]
        history = await self._load(conversation_id, request.runtime)
        history, end = going_before(history, said, default_count(request, said))
        own = own[max(0, end - len(said) + len(own)) :]
        return Turn(conversation_id, own, history, key)

    async def _resume(
        self, request: ChatClientRequest, conversation_id: str, key: str | None
    ) -> Turn:
        """Return the turn that goes on after it has waited."""
        pending: PendingTurn = request.context[RESUME].pending
        said = without_system(pending.messages)
        note = pending.notes.get(_NOTE, {})
        start = len(said) - note["messages"] if note else last_turn_begin(said) or 0
        # The messages that waited may be what other advisors made of them, such as retrieval.
        own = noted_messages(note.get("own", ()), pending)
        if not own:
            own = tuple(takewhile(lambda m: isinstance(m, UserMessage), said[start:]))
        # Where the memory stands outside the loop, the waiting turn holds what was before it.
        shown = start > default_count(request, said)
        history = () if shown else await self._load(conversation_id, request.runtime)
        # What advisors have said to the model on the way, such as that it errs, is among the rest.
        tools = noted_messages(note["said"], pending) if note else said[start + len(own) :]
        return Turn(conversation_id, own, history, note.get("key", key), tools)

    def _stored_already(
        self, request: ChatClientRequest, conversation_id: str
    ) -> list[tuple[Message, ...]]:
        """Return the turns that *request* has led to already, where an advisor asks again."""
        return [
            step.result
            for step in request.runtime.steps or ()
            if isinstance(done := step.operation, MemoryAccess)
            and (done.access, done.conversation_id) == ("store", conversation_id)
            and done.owner == self.slot
            and step.result
        ]

    async def end(
        self, turn: Turn, request: ChatClientRequest, response: ChatClientResponse
    ) -> ChatClientResponse:
        """Return *response* when the turn that led to it is remembered, or waits.

        Raises:
            ChatMemoryError: The turn cannot be kept.
        """
        before = request.context.get(TOOL_MESSAGES, ())
        tools = response.context.get(TOOL_MESSAGES, ())
        earlier = rewritten(turn.said, response.context.get(UNDONE, {}))
        said = (*earlier, *_others(tools, before))

        def note() -> dict[str, Any]:
            pending: PendingTurn = response.context[PENDING_TURN]
            waiting = without_system(pending.messages)
            return {
                "own": note_messages(turn.own, pending),
                "said": note_messages(said, pending),
                "messages": len(waiting) - _begin_of(turn.own, said, waiting),
                "key": turn.key or uuid4().hex,
            }

        waiting = noted(_NOTE, note, request, response)
        if waiting is not None:
            return waiting
        messages = self._kept(turn, said, response.chat_response)
        if messages:
            in_time(request.runtime)
            runtime = request.runtime
            access = MemoryAccess("store", turn.conversation_id, self.slot)
            with runtime.observe(access) as observed:
                work = self.memory.append(turn.conversation_id, messages, runtime, key=turn.key)
                await stored(work, runtime)
                observed.result = messages
        return response

    def _kept(
        self, turn: Turn, said: tuple[Message, ...], response: ChatResponse
    ) -> tuple[Message, ...]:
        """Return what is remembered of a turn that is over: nothing if it came to nothing."""
        if not turn.own:
            return ()
        kept = (*turn.own, *said) if self.tool_messages else _with_words(turn.own, said)
        answer = answer_of(response)
        if answer is not None:
            return in_turns((*kept, answer))
        goes_on = response.has_tool_calls() or response.paused
        return () if goes_on else _without_answer(in_turns(kept), response)

    async def _load(self, conversation_id: str, runtime: Runtime) -> tuple[Message, ...]:
        in_time(runtime)
        access = MemoryAccess("load", conversation_id, self.slot)
        with runtime.observe(access) as observed:
            messages = observed.result = await self.memory.load(conversation_id, runtime)
        return messages


class WholeTurns:
    """Stands around the tool loop for a memory advisor inside: begins each turn and ends it.

    Args:
        turns: The advisor's.
        order: Where it stands.
        name: The advisor's.
    """

    def __init__(self, turns: Turns, order: int, name: str) -> None:
        self.order = order
        self.name = f"{name}, whole turns"
        self._turns = turns

    async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        """Return the response of the loop, once its turn is remembered."""
        turns = self._turns
        turn = await turns.begin(request)
        begun = request.mutate(context={turns.slot: turn, NEW_MESSAGES: turn.own})
        response = await turns.end(turn, request, await call_next(begun))
        return _without(response, {turns.slot, EARLIER_MESSAGES} | _set_here(request))


def conversation_id_of(request: ChatClientRequest) -> str:
    """Return the id of the conversation that *request* continues.

    Raises:
        UsageError: It has none, or a blank one.
    """
    conversation_id = request.context.get(CONVERSATION_ID)
    if conversation_id is None:
        msg = (
            "memory needs to know which conversation a request belongs to, and nothing was sent: "
            'give it an id with .conversation("...")'
        )
        raise UsageError(msg)
    return checked_id(str(conversation_id))


def turn_key_of(request: ChatClientRequest) -> str | None:
    """Return the key that *request* gives its turn, or None."""
    key = request.context.get(TURN_KEY)
    return None if key is None else str(key)  # ids of jobs are numbers or UUIDs, too


async def stored(work: Awaitable[object], runtime: Runtime) -> None:
    """Await *work*, with which the turn is remembered, and let it stand from then on.

    What a memory says was done must not be undone. That is so, too, when the request is cancelled
    meanwhile: stores finish what they have begun.
    """
    try:
        await work
    except asyncio.CancelledError:
        runtime.settle()
        raise
    runtime.settle()


def in_time(runtime: Runtime) -> None:
    """See that there is time to begin with a store, which may take as long as its own limits say.

    Raises:
        DeadlineExceededError: There is none.
    """
    if not runtime.remaining():
        msg = "the deadline passed before the conversation could be read or written"
        raise DeadlineExceededError(msg)


def spoken(request: ChatClientRequest) -> tuple[Message, ...]:
    """Return what *request* says, but for system messages, with what the loop has left to us."""
    earlier: tuple[Message, ...] = request.context.get(EARLIER_MESSAGES, ())
    return (*earlier, *without_system(request.prompt.messages))


def default_count(request: ChatClientRequest, said: tuple[Message, ...]) -> int:
    """Return how many messages *said* begins with that every conversation of the client does."""
    defaults = without_system(request.context.get(DEFAULT_MESSAGES, ()))
    return len(defaults) if defaults and said[: len(defaults)] == defaults else 0


def shown_as_messages(
    request: ChatClientRequest, history: tuple[Message, ...]
) -> ChatClientRequest:
    """Return *request* with *history* before the messages that are its own."""
    said = spoken(request)
    present = request.prompt.messages
    if not history and len(said) <= len(present):
        return _shown(request, request.prompt)
    at = default_count(request, said)
    systems = system_messages((*present, *history))
    messages = (*systems, *said[:at], *without_system(history), *said[at:])
    return _shown(request, Prompt.of(messages, request.prompt.options))


def _shown(request: ChatClientRequest, prompt: Prompt) -> ChatClientRequest:
    """Return *request* with *prompt*, which holds what the loop has left to a memory."""
    if EARLIER_MESSAGES not in request.context:
        return request.mutate(prompt=prompt)
    context = without(request.context, EARLIER_MESSAGES)
    return ChatClientRequest(prompt, context, request.runtime)


def answer_of(response: ChatResponse) -> AssistantMessage | None:
    """Return the message that answers a turn, or None when there is none that can be sent back.

    That is so when the model said nothing, when its tool calls were not run, when it has paused and
    the application is to send it back, and when a filter or guard withheld the answer: neither
    what was refused nor the refusal belongs in a memory.
    """
    if response.has_tool_calls() or response.paused or _is_withheld(response):
        return None
    answer = whole_answer(response)
    return answer if answer is not None and says_something(answer) else None


def _is_withheld(response: ChatResponse) -> bool:
    """Return whether a filter or guard has withheld the answer."""
    return response.finish_reason == "content_filter"


def _with_words(own: tuple[Message, ...], said: Sequence[Message]) -> tuple[Message, ...]:
    """Return *own* with what the user has *said* meanwhile, in one message with the words before.

    Without what the tools said between, the user would speak twice in a row.
    """
    words = [message for message in said if isinstance(message, UserMessage)]
    if not words:
        return own
    if isinstance(last := own[-1], UserMessage):
        own, words = own[:-1], [last, *words]
    parts = [part for message in words for part in ("\n\n", *message.parts)]
    return (*own, UserMessage(parts[1:], metadata=words[0].metadata))


def _without_answer(said: tuple[Message, ...], response: ChatResponse) -> tuple[Message, ...]:
    """Return what of *said* tools have come to, as a whole turn; nothing where there were none.

    The model would do it all again if it did not know.
    """
    heard = len(said)
    while heard and isinstance(said[heard - 1], UserMessage):  # while tools ran, and to nobody
        heard -= 1
    last = said[heard - 1] if heard else None
    if not isinstance(last, ToolResponseMessage):
        return ()
    if _is_withheld(response):
        last = _unseen(last)
    return ended_by_tools((*said[: heard - 1], last))


def _unseen(results: ToolResponseMessage) -> ToolResponseMessage:
    """Return that tools have run, without what they returned: the answer to it was withheld.

    It may be the reason, and would then be the reason for each answer to come.
    """

    def unseen(result: ToolResponse) -> ToolResponse:
        if result.is_error:
            return result
        told = f"What '{result.name}' returned is not shown: the answer to it was withheld."
        return replace(result, data=told, media=())

    return results.mutate(responses=map(unseen, results.responses))


def _begin_of(own: Sequence[Message], said: Sequence[Message], waiting: Sequence[Message]) -> int:
    """Return where in *waiting* a turn begins that has its *own* messages and what was *said* on.

    Advisors may have put others for its own ones, and said things themselves.
    """
    for known, before in ((own, 0), (said, len(own))):
        for at, message in enumerate(waiting):
            if known and message is known[0]:
                return max(0, at - before)
    return max(0, len(waiting) - len(own) - len(said))


def _asked_again(
    turn: Turn, request: ChatClientRequest, earlier: Sequence[tuple[Message, ...]]
) -> Turn:
    """Return what *turn* adds to the *earlier* ones that the same *request* has led to.

    An advisor outside of the memory asks again: with words to the last answer, from what tools
    have said already, or just once more.
    """
    said = in_turns(spoken(request), UserMessage)
    end = end_of(earlier[-1], said)
    known = request.context.get(TOOL_MESSAGES, ())
    own = _others(turn.own, known) if end is None else said[end:]
    history = turn.history
    heard = _end_of_messages(known, said)
    if heard:
        answered = [at for at, m in enumerate(said, 1) if isinstance(m, AssistantMessage)]
        # Behind what the tools have said stand answers, and what is wrong with the last of them.
        own = said[max(heard, *answered) :] or _others(said[present_turn(said) :], known)
    if end is not None or heard:
        # The request itself shows what the model has said, or its tools have done.
        history = without_end(history, [message for each in earlier for message in each])
    key = turn.key and f"{turn.key} {len(earlier)}"
    return Turn(turn.conversation_id, own, history, key)


def _others(messages: Sequence[Message], known: Sequence[Message]) -> tuple[Message, ...]:
    """Return those of *messages* that are not among those *known*."""
    present = {id(message) for message in known}
    return tuple(message for message in messages if id(message) not in present)


def _end_of_messages(part: Sequence[Message], whole: Sequence[Message]) -> int:
    """Return the index behind the last of *part* in *whole*; 0 if there is none of it."""
    present = {id(message) for message in part}
    return max((at for at, m in enumerate(whole, 1) if id(m) in present), default=0)


def _set_here(request: ChatClientRequest) -> set[str]:
    """Return the keys of what the outermost memory advisor tells the others."""
    return set() if NEW_MESSAGES in request.context else {NEW_MESSAGES}


def _without(response: ChatClientResponse, keys: set[str]) -> ChatClientResponse:
    """Return *response* without what was meant for inner advisors only."""
    return ChatClientResponse(response.chat_response, without(response.context, *keys))
