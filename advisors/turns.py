"""Turns of a conversation: how an advisor begins them and has them remembered.

A turn is what is said from a request to its answer, with the tool calls between. It is begun by
reading the memory, and written to it at its end, as a unit. One that comes to no answer (it
failed, was cancelled or limited by an error, or waits for approval) leaves nothing behind.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from typing import Any
from uuid import uuid4

from chatclient.advisors.asking_again import asked_again, not_among
from chatclient.advisors.keeping import in_time, in_time_to_store, keeping, stored
from chatclient.advisors.notes import note_messages, noted, noted_messages
from chatclient.advisors.recognition import going_before
from chatclient.advisors.remembering import remembered
from chatclient.advisors.tool_calling import (
    EARLIER_MESSAGES,
    PENDING_TURN,
    REMEMBERED,
    RESUME,
    TOOL_MESSAGES,
    UNDONE,
)
from chatclient.chain import ChatClientRequest, ChatClientResponse, Next
from chatclient.checks import check_kind
from chatclient.errors import UsageError
from chatclient.memory.chat_memory import ChatMemory
from chatclient.memory.repository import checked_id
from chatclient.messages import (
    Message,
    UserMessage,
    last_turn_begin,
    system_messages,
    without_system,
)
from chatclient.operations import MemoryAccess
from chatclient.prompt import DEFAULT_MESSAGES, Prompt
from chatclient.runtime import Runtime
from chatclient.tool import CONVERSATION_ID, TURN_KEY
from chatclient.tools import PendingTurn
from chatclient.tools.compensation import rewritten
from chatclient.turn_taking import in_turns
from chatclient.values import without

__all__ = [
    "NEW_MESSAGES",
    "TURN_KEY",
    "Turn",
    "Turns",
    "WholeTurns",
    "conversation_id_of",
    "default_count",
    "shown_as_messages",
    "spoken",
    "turn_key_of",
]

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
        # Under this key the outer half of an advisor hands its turn to the inner one.
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
        return await keeping(request, partial(self._whole, call_next=call_next, show=show))

    async def _whole(
        self, request: ChatClientRequest, call_next: Next, show: Show
    ) -> ChatClientResponse:
        turn = await self.begin(request)
        begun = request.mutate(context=_told(request, turn))
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
        known = request.context.get(TOOL_MESSAGES, ())
        earlier = self._stored_already(request, conversation_id)
        if earlier:
            said = in_turns(spoken(request), UserMessage)
            own, history = asked_again(turn.own, turn.history, said, known, earlier)
            key = turn.key and f"{turn.key} {len(earlier)}"
            return Turn(conversation_id, own, history, key)
        if known and not self.tool_messages:  # asked again, with what the tools have said
            turn = replace(turn, own=not_among(turn.own, known), said=(*turn.said, *known))
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
        said = (*earlier, *not_among(tools, before))

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
        kept = remembered(turn.own, said, response.chat_response, tool_messages=self.tool_messages)
        if kept:
            in_time_to_store(request)
            runtime = request.runtime
            access = MemoryAccess("store", turn.conversation_id, self.slot)
            with runtime.observe(access) as observed:
                work = self.memory.append(turn.conversation_id, kept, runtime, key=turn.key)
                await stored(work, request)
                observed.result = kept
        return response

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
        return await keeping(request, partial(self._whole, call_next=call_next))

    async def _whole(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        turns = self._turns
        turn = await turns.begin(request)
        begun = request.mutate(context={turns.slot: turn, **_told(request, turn)})
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


def spoken(request: ChatClientRequest) -> tuple[Message, ...]:
    """Return what *request* says without system messages, and what the loop left out before it."""
    earlier: tuple[Message, ...] = request.context.get(EARLIER_MESSAGES, ())
    return (*earlier, *without_system(request.prompt.messages))


def default_count(request: ChatClientRequest, said: tuple[Message, ...]) -> int:
    """Return how many messages at the beginning of *said* are the client's default ones."""
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
    """Return *request* with *prompt*, which now holds what the loop had left out."""
    if EARLIER_MESSAGES not in request.context:
        return request.mutate(prompt=prompt)
    context = without(request.context, EARLIER_MESSAGES)
    return ChatClientRequest(prompt, context, request.runtime)


def _begin_of(own: Sequence[Message], said: Sequence[Message], waiting: Sequence[Message]) -> int:
    """Return where in *waiting* the turn begins that has its *own* messages and then those *said*.

    Advisors may have replaced its own ones, and added others.
    """
    for known, before in ((own, 0), (said, len(own))):
        for at, message in enumerate(waiting):
            if known and message is known[0]:
                return max(0, at - before)
    return max(0, len(waiting) - len(own) - len(said))


def _told(request: ChatClientRequest, turn: Turn) -> dict[str, Any]:
    """Return what a memory advisor tells those inside of it about its *turn*."""
    before: tuple[Message, ...] = request.context.get(REMEMBERED, ())
    return {NEW_MESSAGES: turn.own, REMEMBERED: (*before, *turn.history)}


def _set_here(request: ChatClientRequest) -> set[str]:
    """Return the keys of what the outermost memory advisor tells the others."""
    return {NEW_MESSAGES, REMEMBERED} - request.context.keys()


def _without(response: ChatClientResponse, keys: set[str]) -> ChatClientResponse:
    """Return *response* without what was meant for inner advisors only."""
    return ChatClientResponse(response.chat_response, without(response.context, *keys))
