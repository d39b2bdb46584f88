"""`PrefectRecorder`: a recorded turn in Prefect, each step a task whose result is persisted.

    @flow
    async def support(turn: str, question: str) -> str:
        request = await PrefectRecorder(turn).recorded(client.prompt(question))
        return await request.acall().content()

If its process ends, run the flow again with the same turn, and it continues.
"""

# pyright: reportMissingImports=false

import hashlib
import json
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from chatclient._internal.checks import checked_id
from chatclient.client.request import ChatClientRequestSpec
from chatclient.durable.recording import (
    ExecutionLostError,
    OnInterrupted,
    Recording,
    TurnRetries,
)
from chatclient.durable.requests import recorded
from chatclient.extend import check_number

if TYPE_CHECKING:  # an extra
    from prefect import Task

_REPLAY_SECONDS = 10.0  # for a turn that is repeated after its deadline, until its next new step


class PrefectRecorder:
    """One execution of a turn, whose steps are tasks of Prefect; a `StepRecorder`.

    Use a new one for each execution, within a flow or outside of one, and run a turn in one process
    at a time. Prefect repeats a step whose result it cannot read, so the result storage must be
    reliable. Only `acall` and `astream` work, since the tasks are asynchronous.

    Args:
        id: The id of the turn. Idempotency keys of tools are derived from it, and memories store
            the turn once under it.
        segment: 1, and one more each time the turn is resumed after decisions.
        storage: The result storage of Prefect, such as `"s3-bucket/turns"` or a `Path`; default:
            that of the flow.

    Attributes:
        interrupted: The ids of calls that wait for a decision because the process ended while
            their tools ran.
    """

    def __init__(self, id: str, *, segment: int = 1, storage: Any = None) -> None:
        check_number("segment", segment, least=1)
        self._id = checked_id(id, "the id of a turn")
        self._directory = f"chatclient/{_digest(id)}/{segment}"
        self._storage = storage
        self.interrupted: list[str] = []

    async def recorded(
        self,
        request: ChatClientRequestSpec,
        *,
        on_interrupted: OnInterrupted = "ask",
        retries: TurnRetries | None = None,
    ) -> ChatClientRequestSpec:
        """Return *request*, which may resume a pending turn, with its calls recorded.

        Its deadline counts from the first execution.

        Args:
            request: A request, the same in each execution.
            on_interrupted: What happens with interrupted calls of tools that write.
            retries: Whether failed model calls are repeated.

        Raises:
            UsageError: *on_interrupted* is unknown.
            ImportError: The extra `prefect` is not installed.
            ExecutionLostError: Prefect could not store a result.
        """
        replayed = True

        async def now() -> float:
            nonlocal replayed
            replayed = False
            return time.time()

        started = await self.step("started", now)
        limit, deadline = request.settings.deadline, None
        if limit is not None:
            deadline = started + limit
            least = _REPLAY_SECONDS if replayed else 0.001
            request = request.deadline(max(deadline - time.time(), least))
        recording = Recording(
            self, started=started, deadline=deadline, on_interrupted=on_interrupted
        )
        self.interrupted = recording.interrupted
        return recorded(request, recording, self._id, retries=retries)

    async def step(self, name: str, function: Callable[[], Awaitable[Any]]) -> Any:
        """Return the value of the step; see `StepRecorder.step`."""
        key, ran = f"{self._directory}/{_digest(name)}", False

        # As text, because Prefect's JSON serializer imports classes that a JSON object names.
        async def run() -> str:
            nonlocal ran
            ran = True
            return json.dumps(await function())

        from prefect import Task  # noqa: PLC0415
        from prefect.cache_policies import CacheKeyFnPolicy  # noqa: PLC0415

        task = Task(
            run,
            name=name.partition(" ")[0],
            task_run_name=name.replace("{", "{{").replace("}", "}}"),
            cache_policy=CacheKeyFnPolicy(cache_key_fn=lambda _context, _inputs: key),
            persist_result=True,
            result_storage=self._storage,
            result_serializer="json",
            cache_result_in_memory=False,
            refresh_cache=False,
            retries=0,
        )
        value = await task()
        # Prefect only logs that its storage failed, and would run the step again.
        if ran and not await _is_stored(task, key):
            msg = (
                f"Prefect has not stored the result of the step {name!r}; its log tells why. Run"
                " the turn again when its result storage works, and not within a transaction"
            )
            raise ExecutionLostError(msg)
        return json.loads(value)


async def _is_stored(task: "Task[[], Any]", key: str) -> bool:
    from prefect.results import get_result_store  # noqa: PLC0415

    store = await get_result_store().aupdate_for_task(task)
    found: bool = await store.aexists(key)
    return found


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]
