"""`Turn`: one turn of a conversation, with its messages, executions and usage."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from typing import Any, Literal, Self, TypeAlias

from chatclient._internal.logging import described, get_logger
from chatclient.chat.events import ShownAnswer
from chatclient.chat.messages import (
    AssistantMessage,
    Message,
    ToolResponseMessage,
    last_user_message,
    without_system,
)
from chatclient.chat.pending_turn import PendingTurn, Resumption
from chatclient.chat.recorder import Recorder, Work
from chatclient.chat.response import NO_USAGE, ChatResponse, Usage
from chatclient.chat.tool import ToolCallback, ToolExecution
from chatclient.errors import (
    DeadlineExceededError,
    GuardrailError,
    InvalidRequestError,
    UsageError,
)
from chatclient.runtime.blocking import context_variable
from chatclient.runtime.cancellation import UndoLog
from chatclient.runtime.runtime import Runtime

log = get_logger(__name__)

Outcome: TypeAlias = Literal["answered", "waiting", "failed", "cancelled"]
"""How a turn ended: with an answer, waiting for decisions about its tool calls, with an error, or
cancelled. Only one that is answered has an answer."""

TURN_KEY = "chat_memory_turn_key"
"""The key in a request's context of an idempotency key for the turn, set by the application. A turn
that is repeated with the same key, such as a job that a queue delivers twice, is stored once, and
its tools find the same `idempotency_key` each time."""

RefreshTools = Callable[[Sequence[Message], Runtime], Awaitable[Sequence[ToolCallback]]]
"""Returns the tools of a request for the messages so far."""

RoundWriter = Callable[[AssistantMessage | None, Runtime], Awaitable[None]]
"""Stores what a turn has added; called before each model call, and after it with the answer."""

_REFUSALS = (GuardrailError, InvalidRequestError, UsageError)


@dataclass(frozen=True, slots=True)
class Spent:
    """The usage, calls and cost of a turn, which a `Budget` counts.

    Attributes:
        usage: The number of tokens.
        calls: The number of model calls.
        cost: The sum of the cost of all calls, by the budget's *price* or the extra `prices`; calls
            whose cost is not known count nothing.
    """

    usage: Usage = NO_USAGE
    calls: int = 0
    cost: float = 0.0


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What a `ContextWindowAdvisor` left out of a prompt.

    Attributes:
        messages: The number of messages that were removed.
        results: The number of messages whose tool results were cleared.
    """

    messages: int = 0
    results: int = 0


@dataclass(slots=True, eq=False)
class PendingStore:
    """How one memory stores the turn.

    Attributes:
        store: Stores it.
        prepare: Runs before any memory stores: work that may fail or be cancelled, such as
            computing embeddings.
    """

    store: Work
    prepare: Work | None = None


@dataclass(slots=True, eq=False)
class ClientPart:
    """What one client brings into a turn; a client that the turn is handed to has its own.

    Attributes:
        default_messages: The default messages of the client, which begin every conversation. They
            are part of the prompt, but not of the turn.
        system: The system messages of the request, before advisors add to them.
        refresh_tools: Lists the tools again, if the request has providers that are asked in every
            round; else None.
        user_input: Returns the user messages that arrived since its last call, or None. The tool
            loop calls it after each round.
        output: The `StructuredOutput` that the request asks for, or None.
        resumption: What the client continues, until its tool loop has done so; or None.
        rewritten_question: The question as an advisor rewrote it, and its original text; or None.
        retrieved: For each retrieval advisor, the question, the augmented text, the documents and
            the filter; they are retrieved once, even if the model is called several times.
    """

    default_messages: tuple[Message, ...] = ()
    system: tuple[Message, ...] | None = None
    refresh_tools: RefreshTools | None = None
    user_input: Callable[[], tuple[Message, ...]] | None = None
    output: Any = None
    resumption: Resumption | None = None
    rewritten_question: tuple[str, str] | None = None
    retrieved: dict[object, tuple[str, str, Any, Any]] = field(default_factory=dict)


class Turn:
    """One turn: the messages of a request, its tool rounds, its answer, and who stores them.

    The outermost participant creates it: a client, or an advisor chain that is used without one.
    All others find it as `turn` of their request. The tool loop appends each completed round. An
    advisor that calls `call_next` again stays in the same turn: rounds are kept, and the answer
    that it rejected was never part of the record. Memories leave a `PendingStore` here, which the
    last attempt replaces, and all of them store the turn when the outermost participant has its
    response.

    The code inside `with turn:` is part of the turn, with all requests that it makes.

    Args:
        id: Identifies the turn; idempotency keys and the ids of its messages are derived from it.
        key: The idempotency key under which memories store the turn; or None.
        request_messages: What the request carries, without system messages and the client's
            default messages.
        rounds: Messages of completed rounds, if the turn continues after it was suspended.

    Attributes:
        resumed: Whether the turn continues after it was suspended.
        history_sent: Whether the suspended turn contains the history that memory had sent.
        offered_tools: The tools that the last model call offered; None before the first call.
        conversation: The messages of the last model call, after those that a memory has written
            into its system text.
        conversation_id: The conversation of the last model call, or None.
        executions: The tool calls so far, those of all attempts and clients.
        responses: What the model answered in each round, also of rejected answers.
        handoffs: The names of the clients that the turn was handed to; the last one continues it.
        pending: The turn as a value, if it waits for decisions about its tool calls; else None.
        validated: The converter, text and value of an answer that an advisor has converted.
        spent: What the turn has spent so far; nothing is counted without a `Budget`.
        left_out: What was left out of the last prompt, because it was too long.
        blocked: Whether a `SafeGuardAdvisor` refused the `input` or the `output`; else None.
        part: The state of the client that continues the turn.
        recorder: Executes the steps of the turn; None executes them directly.
        outer_recorder: The recorder of the turn that this one is part of, while it runs; or None.
        shown: What the consumer of a stream has seen of the round that is not complete, if the
            turn has a memory; or None.
        replaces: Whether the messages of the request take the place of those that memories have
            under the same ids, and of all that followed them.
        is_displayed: Whether a frontend displays the messages of the request, even if it fails.
        is_running: Whether a request runs the turn and will store it.
        is_nested: Whether a tool or an advisor of another turn made the request.
        round_writers: Called around each model call, by participant.
        state: What participants keep for the turn, by participant.
        stores: How memories store the turn when it ends, by participant.
        model_state: What models keep for the turn; see `Runtime.state`.
        span: The context of its OpenTelemetry span, if a `Telemetry` observes it; else None.
    """

    resumed = history_sent = is_running = is_nested = replaces = is_displayed = False
    shown: ShownAnswer | None = None
    offered_tools: Sequence[ToolCallback] | None = None
    conversation: tuple[Message, ...] = ()
    conversation_id: str | None = None
    handoffs: tuple[str, ...] = ()
    pending: PendingTurn | None = None
    validated: tuple[Any, str, Any] | None = None
    spent = Spent()
    left_out = LeftOut()
    blocked: Literal["input", "output"] | None = None
    recorder: Recorder | None = None
    outer_recorder: Recorder | None = None
    span: Any = None
    _outer: "Turn | None" = None

    def __init__(
        self,
        id: str | None = None,
        key: str | None = None,
        request_messages: tuple[Message, ...] = (),
        rounds: tuple[Message, ...] = (),
    ) -> None:
        self.id = os.urandom(16).hex() if id is None else id
        self.key = key
        self.request_messages = request_messages
        self.rounds = rounds
        self.executions: list[ToolExecution] = []
        self.responses: list[ChatResponse] = []
        self.part = ClientPart()
        self.round_writers: dict[object, RoundWriter] = {}
        self.state: dict[object, Any] = {}
        self.model_state: dict[str, Any] = {}
        self._beginner: object = None
        self.stores: dict[object, PendingStore] = {}
        self._early_stores: dict[object, Work] = {}
        self._finishers: dict[object, Callable[[], None]] = {}
        self._sources: dict[object, tuple[Any, ...]] = {}

    @classmethod
    def of(cls, context: Mapping[str, Any], id: str | None = None) -> Self:
        """Return a new turn for a request with *context*, perhaps with a given *id*."""
        key = context.get(TURN_KEY)
        if key is None:
            return cls(id, id)
        key = str(key)  # ids of jobs are numbers or UUIDs, too
        return cls(f"key {key}" if id is None else id, key)

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled: what the turn has led to, without the objects that took part."""
        kept = ("id", "key", "request_messages", "rounds", "executions", "responses")
        more = ("handoffs", "pending", "resumed", "history_sent", "spent", "left_out", "blocked")
        values = {name: getattr(self, name) for name in (*kept, *more)}
        return {**vars(type(self)()), **values, "_sources": {None: self.sources}}

    def __enter__(self) -> Self:
        self.is_running = True
        presence = _present.get()
        if presence is not None and presence.turn is not None:
            self._outer, self.is_nested = presence.turn, True
            self.outer_recorder = present_recorder()
        self._presence = _Presence(self)
        self._token: Token[_Presence | None] = _present.set(self._presence)
        return self

    def __exit__(self, *_error: object) -> None:
        self.is_running = False
        self._outer = self.outer_recorder = None
        self._presence.turn = None  # a context may live longer
        _present.reset(self._token)
        del self._token  # references the caller's context

    def record_inside(self, recorder: Recorder) -> None:
        """Let *recorder* execute the steps of the turn, which is part of another one.

        Unless the application has given it a key, it is the same turn in each execution of the
        other one.
        """
        self.recorder = recorder
        if self.key is None and self._outer is not None:
            self.id = self.key = f"{self._outer.id}/{recorder.name}"

    def clock(self) -> float:
        """Return the time in seconds, which measures how long the turn takes."""
        return time.monotonic() if self.recorder is None else self.recorder.clock()

    def begin(self, participant: object, messages: tuple[Message, ...]) -> None:
        """Record what the request carries where the first memory sees it.

        Advisors outside of all memories may have rewritten the messages; what they removed is not
        to be stored. An attempt with another question replaces the messages. One that continues
        them does not: it adds a rejected answer and a correction.

        Args:
            participant: The memory.
            messages: The messages that the memory sees, without system and default messages.
        """
        if self.resumed or self._beginner not in (None, participant):
            return
        question = last_user_message(self.request_messages)
        if self._beginner is None or not any(message is question for message in messages):
            rounds = {message.id for message in self.rounds}
            self.request_messages = tuple(m for m in messages if m.id not in rounds)
        self._beginner = participant

    @property
    def outer(self) -> "Turn | None":
        """The turn whose tool or advisor made the request, while it runs; or None."""
        return self._outer

    def append(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """Append the *messages* of a completed round, and return them with their ids."""
        first = len(self.request_messages) + len(self.rounds)
        added = self._identified(messages, first)
        self.rounds = (*self.rounds, *added)
        return added

    def messages(self, *following: Message) -> tuple[Message, ...]:
        """Return all messages of the turn, and those *following* them, with their ids."""
        count = len(self.request_messages) + len(self.rounds)
        request = self._identified(self.request_messages, 0)
        return (*request, *self.rounds, *self._identified(following, count))

    def _identified(self, messages: Sequence[Message], first: int) -> tuple[Message, ...]:
        """Return *messages*, those without an id with one that is the same each time."""
        return tuple(
            [
                message if message.id is not None else message.with_id(f"{self.id}-{at}")
                for at, message in enumerate(messages, first)
            ]
        )

    def contains_round(self, messages: Sequence[Message]) -> bool:
        """Return whether *messages* contain some of the turn's rounds."""
        if not self.rounds:
            return False
        ids = {message.id for message in self.rounds}
        return any(message.id in ids for message in messages)

    def updated(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """Return *messages* with the tool results of this turn as they are now.

        They change when calls are undone after their round.
        """
        results = {m.id: m for m in self.rounds if isinstance(m, ToolResponseMessage)}
        return tuple(results.get(message.id, message) for message in messages)

    def store_at_end(self, participant: object, pending: PendingStore) -> None:
        """Have a memory store the turn when it ends."""
        self.stores[participant] = pending

    def withdraw_store(self, participant: object) -> None:
        """Forget what a memory would have stored, because the turn is tried again."""
        self.stores.pop(participant, None)

    def store_if_ended_early(self, participant: object, store: Work) -> None:
        """Have a memory store the turn with *store* if it fails or is stopped; see `keeps`."""
        self._early_stores[participant] = store

    def keeps(self, error: BaseException) -> bool:
        """Return whether memories store the turn although it ended with *error*.

        That is what its user has seen, so that the next question may refer to it: a stream that was
        left after it had sent something, and everything that a frontend displays, unless the
        request is one that would be refused again, with all that follow it in the conversation.

        False unless the request is a stream with a memory, not inside another request.
        """
        if self.shown is None:
            return False
        if isinstance(error, Exception):
            return self.is_displayed and not isinstance(error, _REFUSALS)
        return self.is_displayed or self.shown.anything

    async def store_ended_early(self, runtime: Runtime) -> None:
        """Let all memories store what was shown of the turn, which has failed or was stopped."""
        stores = tuple(self._early_stores.values())
        self._early_stores.clear()
        if stores and self.recorder is not None:
            await self.recorder.confirm()
        for store in stores:
            try:
                await store(runtime)
            except Exception as error:  # noqa: BLE001 - the turn has another error already
                log.warning("turn that ended early was not stored", error=described(error))
            except (asyncio.CancelledError, GeneratorExit):
                pass  # it is stored, and the maintenance of the memory was cancelled with the turn

    @property
    def sources(self) -> tuple[Any, ...]:
        """What the answer is based on, in order and each once; usually retrieved documents."""
        found: list[Any] = []
        for sources in self._sources.values():
            found += [each for each in sources if each not in found]
        return tuple(found)

    def record_sources(self, participant: object, sources: Iterable[Any]) -> None:
        """Record *sources* of the answer; they replace those that *participant* recorded before.

        Args:
            participant: The advisor that has found them.
            sources: Documents or other values, in the order in which the model is shown them.
        """
        self._sources[participant] = tuple(sources)

    def finish_at_end(self, participant: object, finish: Callable[[], None]) -> None:
        """Call *finish* when the turn is over, stored or failed; the last one of a participant."""
        earlier = self._finishers.get(participant)
        if earlier is not None:
            earlier()
        self._finishers[participant] = finish

    async def commit(self, runtime: Runtime) -> None:
        """Let all memories store the turn, or none of them.

        Nothing is stored if the request is cancelled or late, or if the preparation of one memory
        fails. Once one of them has the turn, the others store it even if the request is cancelled
        during that, and calls of the turn are not undone any more.

        Raises:
            ChatMemoryError: A memory failed.
            DeadlineExceededError: The deadline passed before anything was stored.
        """
        stores = tuple(self.stores.values())
        self.stores.clear()
        # What may fail or take long comes first, such as embeddings: nothing is stored without it.
        for each in stores:
            if each.prepare is not None:
                await each.prepare(runtime)
        # The last point at which the turn can fail without being stored anywhere.
        runtime.check_cancelled()
        check_deadline(runtime)
        self._early_stores.clear()  # from here on, it is stored, or the memory has failed
        cancelled: asyncio.CancelledError | None = None
        for each in stores:
            try:
                if self.recorder is None:
                    await each.store(runtime)
                else:
                    await self.recorder.store(each.store, runtime)
            except asyncio.CancelledError as error:
                if error.__cause__ is not None:  # the store failed after it was cancelled
                    raise
                # The store has completed despite the cancellation, so the other memories store the
                # turn, too.
                cancelled = error
            # After the first store, not the last: if another memory fails, the turn is stored
            # nevertheless, and its calls must stay in effect.
            runtime.settle()
        if cancelled is not None:
            raise cancelled

    def close(self) -> None:
        """End the turn, and release what took part in it."""
        for finish in self._finishers.values():
            finish()
        self._finishers.clear()
        self.stores.clear()
        self._early_stores.clear()
        self.shown = None
        self.state.clear()
        self.round_writers.clear()
        self.part = ClientPart()
        self.recorder = None


class TurnEnd:
    """A context that ends a turn: memories store it, or what was done in the context is undone.

    Args:
        turn: The turn.
        undo_log: What is undone if the context fails or is cancelled.
        runtime: How the request runs.
        is_part: Whether the context is a part of the turn, which is stored by who began it.
    """

    def __init__(self, turn: Turn, undo_log: UndoLog, runtime: Runtime, *, is_part: bool) -> None:
        self._turn = turn
        self._undo_log = undo_log
        self._runtime = runtime
        self._is_part = is_part

    async def __aenter__(self) -> None: ...

    async def __aexit__(
        self, _kind: object, error: BaseException | None, _traceback: object
    ) -> None:
        """Store the turn, or undo what was done in it."""
        if error is not None:
            await self._runtime.shielded(self._end_early(error))
            return
        try:
            # An advisor may have caught the cancellation and returned a response.
            self._runtime.check_cancelled()
            if self._turn.stores and not self._is_part:
                work = self._turn.commit(self._runtime)
                await self._runtime.until_deadline(work, "memory")
        except BaseException as failure:
            await self._runtime.shielded(self._end_early(failure))
            raise

    async def _end_early(self, error: BaseException) -> None:
        """Undo and store in one step: another cancellation may arrive in the meantime."""
        keeps = not self._is_part and self._turn.keeps(error)
        await self._undo_log.undo()
        if keeps:
            await self._turn.store_ended_early(self._runtime)


@dataclass(frozen=True, slots=True, eq=False)
class TurnSettings:
    """How a request gets its turn; by default it begins a new one.

    Attributes:
        id: The id of the turn, which agents are given by their callers; default: derived from the
            `TURN_KEY`, or else random.
        recorder: Executes the steps of the turn.
        resumption: The turn that waited, and the decisions with which it continues.
        continued: The turn of another client that hands it over.
        replaces: See `Turn`.
        is_displayed: See `Turn`.
        began: Called with the turn when it begins, for those who follow it; or None.
    """

    id: str | None = None
    recorder: Recorder | None = None
    resumption: Resumption | None = None
    continued: Turn | None = None
    began: Callable[[Turn], None] | None = None
    replaces: bool = False
    is_displayed: bool = False


NEW_TURN = TurnSettings()


class _Presence:
    """The turn that code is part of, and whether it is part of a step as well."""

    __slots__ = ("in_step", "turn")

    def __init__(self, turn: Turn | None, *, in_step: bool = False) -> None:
        self.turn = turn
        self.in_step = in_step


_present: ContextVar[_Presence | None] = context_variable("chatclient_turn", None)


def present_turn() -> Turn | None:
    """Return the turn that the present code is part of, or None."""
    presence = _present.get()
    return None if presence is None else presence.turn


def present_recorder() -> Recorder | None:
    """Return the recorder of the present turn, or None.

    What a step does while it is executed is part of that step, and not recorded.
    """
    presence = _present.get()
    if presence is None or presence.turn is None or presence.in_step:
        return None
    return presence.turn.recorder


class WithinStep:
    """A context in which a step of the present turn is executed."""

    __slots__ = ("_token",)

    _token: Token[_Presence | None]

    def __enter__(self) -> None:
        """Let requests in this context be part of the step."""
        self._token = _present.set(_Presence(present_turn(), in_step=True))

    def __exit__(self, *_error: object) -> None:
        """End the step."""
        _present.reset(self._token)
        del self._token  # references the caller's context


def count_default_messages(messages: Sequence[Message], turn: Turn) -> int:
    """Return how many of the first *messages*, system messages left out, are default ones.

    Args:
        messages: The messages of a request, without system messages.
        turn: Its turn.
    """
    if not turn.part.default_messages:
        return 0
    defaults = without_system(turn.part.default_messages)
    return len(defaults) if tuple(messages[: len(defaults)]) == defaults else 0


def check_deadline(runtime: Runtime) -> None:
    """Check that there is time to use a memory; how long a store may take is up to the store.

    Raises:
        DeadlineExceededError: The deadline has passed.
    """
    if not runtime.remaining():
        msg = "the deadline passed before the conversation could be read or written"
        raise DeadlineExceededError(msg)
