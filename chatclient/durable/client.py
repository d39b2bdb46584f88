"""`DurableClient`: starts turns that survive crashes."""

import asyncio
import time
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from chatclient._internal.checks import checked_id, seconds
from chatclient._internal.frozen import EMPTY
from chatclient.chat.model import PromptLike
from chatclient.chat.pending_turn import PendingTurn
from chatclient.chat.resumption import Decision, Resumption
from chatclient.client.batch import keyed
from chatclient.client.request import ChatClientRequestSpec
from chatclient.durable.conversation import DurableConversation
from chatclient.durable.handle import TurnHandle, turn_id
from chatclient.durable.map import TurnMap
from chatclient.durable.requests import request_from_dict, request_to_dict, tool_names
from chatclient.durable.results import TurnResult
from chatclient.durable.turn import check_tools, needed_tools
from chatclient.errors import UsageError
from chatclient.runtime.blocking import drive
from chatclient.runtime.runtime import BLOCKING

if TYPE_CHECKING:  # it imports most of the package; and the engine needs the extra
    from chatclient.client.client import ChatClient
    from chatclient.durable.engine import Engine, Enqueued

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

    def __init__(self, client: "ChatClient", name: str, runner: object) -> None:
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
        """Start a turn, and return its handle at once.

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

        key = uuid4().hex if key is None else checked_id(key, "the key of a turn")
        wait = None if delay is None else seconds("delay", delay)
        how = Enqueued(queue, priority, wait, limit_key)
        turn, _ = self.start_turn(self.request_of(prompt), key, how, streaming=streaming)
        return turn

    def start_turn(
        self,
        request: ChatClientRequestSpec,
        key: str,
        how: "Enqueued",
        *,
        streaming: bool,
        reject: bool = False,
        attributes: dict[str, Any] | None = None,
    ) -> tuple[TurnHandle, bool]:
        """Start a turn; return its handle and, if *reject*, whether its key was new."""
        from chatclient.durable.engine import current_engine  # noqa: PLC0415 - an extra

        engine = current_engine()
        engine.check_queue(how)
        self._pipeline.check_params(request.settings)
        limit = request.settings.deadline
        id = turn_id(self.name, key)
        now = time.time()
        data = {
            "client": self.name,
            "turn": id,
            "segment": 1,
            "request": request_to_dict(request),
            "started": now,
            "deadline": None if limit is None else now + limit,
            "tools": tool_names(self._pipeline),
            "streaming": streaming,
            "queue": how.queue,
            "resume": None,
        }
        is_new = engine.start(id, data, how, reject=reject, attributes=attributes)
        return self._handle(engine, id), is_new

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

    def conversation(self, id: str) -> DurableConversation:
        """Return the durable turns of the conversation *id*, one of which runs at a time."""
        return DurableConversation(self, checked_id(id, "the id of a conversation"))

    def _handle(self, engine: "Engine", id: str) -> TurnHandle:
        return TurnHandle(engine, id, self._check_decisions)

    def request_of(self, prompt: DurableRequest) -> ChatClientRequestSpec:
        """Return the request that *prompt* is or stands for.

        Raises:
            UsageError: It is a request of another client.
        """
        if not isinstance(prompt, ChatClientRequestSpec):
            return self.client.prompt(prompt)
        if prompt.pipeline is not self._pipeline:
            msg = (
                f"the request must be one of this client: durable_client.prompt(...), without a"
                f" model of its own; {self.name!r} runs all of its turns with its own model"
            )
            raise UsageError(msg)
        return prompt

    def _check_decisions(
        self, data: Mapping[str, Any], pending: PendingTurn, decisions: dict[str, Decision]
    ) -> None:
        check_tools(self._pipeline, data, needed_tools(pending, decisions))
        settings = request_from_dict(self._pipeline, data["request"]).settings
        resumption = Resumption(pending, decisions)
        drive(self._pipeline.check_decisions(resumption, EMPTY, BLOCKING, settings))
