"""The durable client, its conversations, and turns that are mapped over many values."""

import asyncio
import hashlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from chatclient._internal.checks import checked_id
from chatclient.chat.model import PromptLike
from chatclient.chat.pending_turn import Decision, PendingTurn, Resumption
from chatclient.chat.turn import Outcome
from chatclient.client.accessors import outcome_of, waiting_error
from chatclient.client.batch import keyed
from chatclient.client.client import ChatClient
from chatclient.client.request import ChatClientRequestSpec
from chatclient.durable.events import FORMAT_VERSION, turn_id
from chatclient.durable.handle import TurnHandle, states_of
from chatclient.durable.recording import OnInterrupted, TurnRetries
from chatclient.durable.requests import (
    SegmentRunner,
    TurnResult,
    check_tools,
    needed_tools,
    request_from_dict,
    request_to_dict,
    tool_names,
)
from chatclient.durable.states import TurnState
from chatclient.errors import ChatClientError, ConversationBusyError, UsageError
from chatclient.extend import BLOCKING, EMPTY, check_type, drive, seconds
from chatclient.observability.trail import Trail

if TYPE_CHECKING:
    from chatclient.durable.engine import Engine, Enqueued


def durable(
    client: ChatClient,
    *,
    name: str,
    on_interrupted: OnInterrupted = "ask",
    retries: TurnRetries | None = None,
) -> "DurableClient":
    """Return a client whose turns survive crashes and restarts.

    Args:
        client: The client, with its tools, memory and advisors. All processes that run its turns
            create it in the same way.
        name: Identifies the client in the database.
        on_interrupted: What happens with a call of a tool that writes, if the process ended while
            the tool ran: the turn waits for a decision, as for an approval; the tool runs again;
            or the model receives a result that says that the outcome is unknown. Tools with
            `effect="read"` and `"idempotent"` simply run again.
        retries: Whether a turn waits and continues if the provider fails; default: it fails.

    Raises:
        UsageError: This process has a client of this name already, or an argument is invalid.
        ImportError: The extra `dbos` is not installed.
    """
    from chatclient.durable.workflow import runners  # noqa: PLC0415 - an extra

    check_type("the client", client, ChatClient)
    checked_id(name, "the name of a durable client")
    if "/" in name:
        msg = f"the name of a durable client must not contain a slash: {name!r}"
        raise UsageError(msg)
    if name in runners:
        msg = f"this process has a durable client {name!r} already; use another name"
        raise UsageError(msg)
    runner = SegmentRunner(client.prompt().pipeline, on_interrupted, retries)
    made = DurableClient(client, name, runner)
    runners[name] = runner
    return made


UNFINISHED: tuple[TurnState, ...] = ("queued", "running", "waiting", "stuck", "cancelling")
_NUMBERS_AT_ONCE = 4


class DurableConversation:
    """The durable turns of one conversation; `DurableClient.conversation` returns it.

    Each method has an asynchronous twin with an `a` before its name.

    Args:
        client: The client.
        id: The id of the conversation.

    Attributes:
        id: The id of the conversation.
    """

    def __init__(self, client: "DurableClient", id: str) -> None:
        self.id = id
        self._client = client
        # Ids of conversations may be long, and are perhaps not meant for the tables of turns.
        self._digest = hashlib.sha256(id.encode()).hexdigest()[:32]

    def __repr__(self) -> str:
        return f"DurableConversation({self._client.name!r}, {self.id!r})"

    def last(self) -> TurnHandle | None:
        """Return the last turn of the conversation, or None."""
        found = self._last()
        return None if found is None else found[0]

    async def alast(self) -> TurnHandle | None:
        """Return the last turn of the conversation, or None."""
        return await asyncio.to_thread(self.last)

    def start(
        self,
        prompt: "DurableRequest",
        *,
        queue: str | None = None,
        priority: int | None = None,
        limit_key: str | None = None,
        streaming: bool = False,
    ) -> TurnHandle:
        """Start a turn of the conversation, and return its handle immediately.

        The arguments are those of `DurableClient.start`.

        Raises:
            ConversationBusyError: The last turn runs, waits or is being cancelled, or another one
                was just started.
            UsageError: The request cannot be stored, there is no such queue, or this process has no
                engine.
        """
        from chatclient.durable.engine import Enqueued  # noqa: PLC0415 - an extra

        number = 1
        if (last := self._last()) is not None:
            number = last[1] + 1
            if (state := last[0].status().state) in UNFINISHED:
                raise self._busy(last[0], state)
        # Numbers are used again if all turns are deleted; a memory stores a key once.
        request = self._client.request_of(prompt).conversation(self.id)
        turn, is_new = self._client.start_turn(
            request.idempotency_key(uuid4().hex),
            f"{self._digest}/{number}",
            Enqueued(queue, priority, None, limit_key),
            streaming=streaming,
            reject=True,
            attributes=self._attributes,
        )
        if not is_new:
            raise self._busy(turn, "running")
        return turn

    async def astart(self, prompt: "DurableRequest", **how: Any) -> TurnHandle:
        """Start a turn; see `start`, which has the same arguments."""
        return await asyncio.to_thread(lambda: self.start(prompt, **how))

    @property
    def _attributes(self) -> dict[str, str]:
        return {"conversation": f"{self._client.name}/{self._digest}"}

    def _last(self) -> tuple[TurnHandle, int] | None:
        """Return the last turn and its number."""
        from chatclient.durable.engine import current_engine  # noqa: PLC0415 - an extra

        prefix = turn_id(self._client.name, f"{self._digest}/")
        id = current_engine().newest(self._attributes, prefix)
        if id is None:
            return None
        number = int(id.removeprefix(prefix).partition("#")[0])  # a segment has a #
        # Clocks differ: a later turn of another process may have an earlier time.
        while later := self._existing(prefix, range(number + 1, number + 1 + _NUMBERS_AT_ONCE)):
            number = max(later)
        return self._client.turn(f"{prefix}{number}"), number

    @staticmethod
    def _existing(prefix: str, numbers: range) -> list[int]:
        from chatclient.durable.engine import current_engine  # noqa: PLC0415 - an extra

        found = current_engine().existing([f"{prefix}{number}" for number in numbers])
        return [number for number in numbers if f"{prefix}{number}" in found]

    def _busy(self, turn: TurnHandle, state: str) -> ConversationBusyError:
        msg = f"the last turn of conversation {self.id!r} has not ended: it is {state}"
        return ConversationBusyError(msg, turn_id=turn.id, state=state)


_POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class MapResult:
    """The result of one turn of a map.

    Attributes:
        key: The key of its prompt, or its position as a text.
        turn: The handle of the turn.
        result: The result; None if the turn failed or was cancelled.
        error: Why there is no answer, or None.
    """

    key: str
    turn: TurnHandle
    result: TurnResult | None
    error: Exception | None = None

    @property
    def outcome(self) -> Outcome:
        """How the turn ended."""
        return outcome_of(self.error)

    def unwrap(self) -> TurnResult:
        """Return the result with the answer, or raise the error."""
        if self.error is not None:
            raise self.error
        assert self.result is not None  # noqa: S101 - one of both
        return self.result


class TurnMap:
    """The turns of `DurableClient.map`; iterate over it for the results, in the order of their end.

    A turn that waits for decisions counts as ended; its result has the `pending_turn`, and its
    error reports that there is no answer. Iterating again yields all results again, in any process.

    Args:
        turns: The handles by key.
    """

    def __init__(self, turns: Mapping[str, TurnHandle]) -> None:
        self.turns = turns

    def __len__(self) -> int:
        return len(self.turns)

    def progress(self) -> Counter[TurnState]:
        """Return the number of turns in each state."""
        return Counter(states_of([*self.turns.values()]).values())

    def __iter__(self) -> Iterator[MapResult]:
        left = dict(self.turns)
        while left:
            ended = self._ended(left)
            for key in ended:
                yield self._result(key, left.pop(key))
            if left and not ended:
                time.sleep(_POLL_SECONDS)

    async def __aiter__(self) -> AsyncIterator[MapResult]:
        left = dict(self.turns)
        while left:
            ended = await asyncio.to_thread(self._ended, left)
            for key in ended:
                yield await asyncio.to_thread(self._result, key, left.pop(key))
            if left and not ended:
                await asyncio.sleep(_POLL_SECONDS)

    def _ended(self, turns: Mapping[str, TurnHandle]) -> list[str]:
        states = states_of([*turns.values()])
        # One that was deleted has no state; its result is an error.
        running = ("queued", "running", "cancelling")
        return [key for key, turn in turns.items() if states.get(turn.id) not in running]

    @staticmethod
    def _result(key: str, turn: TurnHandle) -> MapResult:
        try:
            result = turn.result()
            pending = result.pending_turn
            error = None if pending is None else waiting_error(result.chat_response, pending)
            return MapResult(key, turn, result, error)
        except ChatClientError as error:
            return MapResult(key, turn, None, error)
        except Exception as error:
            if turn.status().state != "failed":  # an error of the database
                raise
            return MapResult(key, turn, None, error)


DurableRequest = ChatClientRequestSpec | PromptLike
"""A request of the client, or what `client.prompt(...)` takes."""


class DurableClient:
    """A client whose turns survive crashes and restarts; `durable` makes one.

    Turns run in processes that have called `launch`. Each method has an asynchronous twin with an
    `a` before its name.

    Attributes:
        client: The client.
        name: Its name in the database.
    """

    def __init__(self, client: "ChatClient", name: str, runner: SegmentRunner) -> None:
        self.client = client
        self.name = name
        self._pipeline = client.prompt().pipeline
        self._runner = runner  # the registry of runners does not keep it

    def __repr__(self) -> str:
        return f"DurableClient({self.name!r}, {self.client!r})"

    def prompt(self, prompt: PromptLike | None = None) -> ChatClientRequestSpec:
        """Return a new request for `start`, as `ChatClient.prompt` does."""
        return self.client.prompt(prompt)

    def start(
        self,
        prompt: DurableRequest,
        *,
        key: str | None = None,
        queue: str | None = None,
        priority: int | None = None,
        delay: float | timedelta | None = None,
        limit_key: str | None = None,
        streaming: bool = False,
    ) -> TurnHandle:
        """Start a turn, and return its handle immediately.

        The deadline of a request counts from now; the time in which the turn waits for decisions
        does not count.

        Args:
            prompt: A text or messages, or a request: `durable_client.prompt(...)`, with options,
                tool context and params that have a JSON form.
            key: Identifies the turn: if there is a turn with this key, its handle is returned,
                and nothing is started. Default: a new one.
            queue: The name of a queue, whose workers run the turn. Default: this process, if it
                runs turns.
            priority: From 1. Turns with lower numbers start first, those without one before
                all others.
            delay: Seconds after which the turn may start.
            limit_key: The user or tenant whose limits apply, for queues with limits per key.
            streaming: Whether events are published while the turn runs, for `events`.

        Raises:
            UsageError: The request cannot be stored, there is no such queue, or this process has no
                engine.
        """
        from chatclient.durable.engine import Enqueued  # noqa: PLC0415 - an extra

        is_new = key is None
        key = uuid4().hex if key is None else checked_id(key, "the key of a turn")
        wait = None if delay is None else seconds("delay", delay)
        how = Enqueued(queue, priority, wait, limit_key)
        return self.start_turn(
            self.request_of(prompt), key, how, streaming=streaming, new_key=is_new
        )[0]

    def start_turn(
        self,
        request: ChatClientRequestSpec,
        key: str,
        how: "Enqueued",
        *,
        streaming: bool,
        reject: bool = False,
        new_key: bool = False,
        attributes: dict[str, Any] | None = None,
    ) -> tuple[TurnHandle, bool]:
        """Start a turn; return its handle and, if *reject*, whether its key was new.

        *new_key* says that no other turn has the key.
        """
        from chatclient.durable.engine import current_engine  # noqa: PLC0415 - an extra

        engine = current_engine()
        engine.check_queue(how)
        limit = request.settings.deadline
        id = turn_id(self.name, key)
        now = engine.now()
        data = {
            "format": FORMAT_VERSION,
            "client": self.name,
            "turn": id,
            "segment": 1,
            "request": request_to_dict(request),
            "started": now,
            "deadline": None if limit is None else now + limit,
            "tools": tool_names(self._pipeline),
            "streaming": streaming,
            "queue": how.queue,
            "not_before": None if how.delay is None else now + how.delay,
            "resume": None,
        }
        is_new = engine.start(id, data, how, reject=reject, attributes=attributes)
        handle = TurnHandle(
            engine, id, self._check_decisions, is_new=new_key or (reject and is_new)
        )
        return handle, is_new

    async def astart(self, prompt: DurableRequest, **how: Any) -> TurnHandle:
        """Start a turn; see `start`, which has the same arguments."""
        return await asyncio.to_thread(lambda: self.start(prompt, **how))

    def call(self, prompt: DurableRequest, **how: Any) -> TurnResult:
        """Start a turn, and wait for its result; the arguments are those of `start`."""
        return self.start(prompt, **how).result()

    async def acall(self, prompt: DurableRequest, **how: Any) -> TurnResult:
        """Start a turn, and wait for its result; the arguments are those of `start`."""
        turn = await self.astart(prompt, **how)
        return await turn.aresult()

    def map(
        self,
        prompts: Iterable[DurableRequest] | Mapping[str, DurableRequest],
        *,
        key: str,
        **how: Any,
    ) -> TurnMap:
        """Start a turn for each of many prompts; repeated with the same key, nothing starts twice.

        Args:
            prompts: The prompts; a mapping gives them keys.
            key: Identifies the map; the keys of the turns begin with it.
            **how: As in `start`, for all turns, such as `queue`.

        Returns:
            The turns: iterate over them for the results.

        Raises:
            UsageError: A prompt is invalid, or two keys are the same text; no turn was started.
        """
        from chatclient.durable.engine import current_engine  # noqa: PLC0415 - an extra

        given = keyed("a map", prompts)
        engine = current_engine()
        ids = {each: turn_id(self.name, f"{key}/{each}") for each in given}
        # Looked up together: a batch that continues has most of its turns.
        present = engine.existing([*ids.values()])
        # Made before the first turn starts, because a prompt may be invalid.
        missing = {each: self.request_of(given[each]) for each in ids if ids[each] not in present}
        return TurnMap(
            {
                each: self.start(missing[each], key=f"{key}/{each}", **how)
                if each in missing
                else self._handle(engine, id)
                for each, id in ids.items()
            }
        )

    async def amap(
        self,
        prompts: Iterable[DurableRequest] | Mapping[str, DurableRequest],
        *,
        key: str,
        **how: Any,
    ) -> TurnMap:
        """Start a turn for each of many prompts; see `map`."""
        return await asyncio.to_thread(lambda: self.map(prompts, key=key, **how))

    def turn(self, id: str | None = None, *, key: str | None = None) -> TurnHandle:
        """Return the handle of a turn that was started in any process.

        Args:
            id: The `id` of its handle.
            key: The key that it was started with, instead of the id.

        Raises:
            UsageError: Not exactly one of them is given, or this process has no engine.
        """
        from chatclient.durable.engine import current_engine  # noqa: PLC0415 - an extra

        if (id is None) == (key is None):
            msg = "give either the id or the key of the turn"
            raise UsageError(msg)
        return self._handle(current_engine(), turn_id(self.name, key or "") if id is None else id)

    def trail(self, id: str | None = None, *, key: str | None = None) -> Trail:
        """Return the trail of a turn that has ended, made again from its record.

        No model and no tool is called, and nothing is stored; memories are read. If decisions
        continued the turn, the trail ends with the calls that waited for the first ones.

        Args:
            id: The id of the turn.
            key: The key that it was started with, instead of the id.

        Raises:
            UsageError: There is no such turn, or it has not ended.
        """
        turn = self.turn(id, key=key)
        data = turn.first_input()
        return self._runner.trail(data, turn.engine.steps(turn.id))

    async def atrail(self, id: str | None = None, *, key: str | None = None) -> Trail:
        """Return the trail of a turn that has ended; see `trail`."""
        return await asyncio.to_thread(self.trail, id, key=key)

    def conversation(self, id: str) -> DurableConversation:
        """Return the durable turns of the conversation *id*, one of which runs at a time."""
        return DurableConversation(self, checked_id(id, "the id of a conversation"))

    def _handle(self, engine: "Engine", id: str) -> TurnHandle:
        return TurnHandle(engine, id, self._check_decisions)

    def request_of(self, prompt: DurableRequest) -> ChatClientRequestSpec:
        """Return *prompt* as a request.

        Raises:
            UsageError: It is a request of another client, or has an advisor param without a reader.
        """
        request = (
            prompt if isinstance(prompt, ChatClientRequestSpec) else self.client.prompt(prompt)
        )
        if request.pipeline is not self._pipeline:
            msg = (
                f"the request must be one of this client: durable_client.prompt(...), without a"
                f" model of its own; {self.name!r} runs all of its turns with its own model"
            )
            raise UsageError(msg)
        self._pipeline.check_params(request.settings)
        return request

    def _check_decisions(
        self, data: Mapping[str, Any], pending: PendingTurn, decisions: dict[str, Decision]
    ) -> None:
        check_tools(self._pipeline, data, needed_tools(pending, decisions))
        settings = request_from_dict(self._pipeline, data["request"]).settings
        resumption = Resumption(pending, decisions)
        drive(self._pipeline.check_decisions(resumption, EMPTY, BLOCKING, settings))
