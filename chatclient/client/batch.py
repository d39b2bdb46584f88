"""Many requests in a batch: with bounded concurrency, or through the provider's batch API."""

import asyncio
import os
import queue
import threading
import time
from collections.abc import (
    AsyncGenerator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import aclosing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypedDict, TypeVar, Unpack, cast

from chatclient._internal.checks import (
    check_callable,
    check_number,
    check_type,
    missing_attribute,
)
from chatclient.advisors.budget import Budget
from chatclient.chain.chain import ChatClientResponse
from chatclient.chain.model_call import UsageLedger, record_usage
from chatclient.chat.model import PromptLike
from chatclient.chat.pending_turn import PendingTurn
from chatclient.chat.prompt import Prompt
from chatclient.chat.response import NO_USAGE, ChatResponse, Usage
from chatclient.chat.turn import Outcome, Spent
from chatclient.client.accessors import outcome_of, require_answer, waiting_error
from chatclient.client.batch_journal import BatchJournal, BatchQueue
from chatclient.client.call_response import AsyncCallResponse
from chatclient.client.dropped import warn_if_dropped
from chatclient.client.pipeline import Pipeline
from chatclient.client.request import ChatClientRequestSpec
from chatclient.errors import EntityError, UsageError, WrongTypeError
from chatclient.runtime.progress import OnProgress, Progress
from chatclient.runtime.runtime import ON_LOOP
from chatclient.structured.converters import StructuredOutputConverter, converter_of
from chatclient.structured.output import entity_in

T = TypeVar("T")
R = TypeVar("R")

_CANCEL_SECONDS = 0.5  # until a batch that waits sees that it was cancelled

BatchRequest = ChatClientRequestSpec | PromptLike
"""A request of the client, or what `client.prompt(...)` takes."""


class BatchSettings(TypedDict, total=False):
    """How a batch runs; the keyword arguments of `ChatClient.batch`.

    Attributes:
        concurrency: The number of requests that run at the same time; default 8. Does not apply to
            a batch API.
        journal: A file that records results. After a crash, a batch of the same requests with the
            same file continues: finished requests are not sent again.
        use_batch_api: Whether to use the batch API of the provider, which is cheaper and may take
            a day; default False.
        collect_seconds: Seconds to wait for more requests before a batch is submitted; default 1.
        poll_seconds: Seconds between the first polls of a batch; later ones are rarer; default 10.
        budget: Limits the tokens, calls and cost of all requests of the batch together; `Budget()`
            only counts. Requests that it does not allow fail with a `BudgetExceededError`.
        on_progress: Called with the `BatchProgress` when a request has finished, such as a
            `ProgressBar`.
    """

    concurrency: int
    journal: str | os.PathLike[str]
    use_batch_api: bool
    collect_seconds: float
    poll_seconds: float
    budget: Budget
    on_progress: OnProgress


@dataclass(frozen=True, slots=True)
class BatchResult(Generic[T]):
    """The result of one request of a batch.

    Attributes:
        key: The key of the request, or its position as a text.
        value: The text of the answer, or the entity; None if there is no answer.
        response: The response of the model; None if there is no answer.
        error: Why there is no answer, or None.
    """

    key: str
    value: T | None
    response: ChatResponse | None
    error: Exception | None = None

    @property
    def outcome(self) -> Outcome:
        """How the turn of the request ended."""
        return outcome_of(self.error)

    @property
    def pending_turn(self) -> PendingTurn | None:
        """The turn, for `client.resume`, if it waits for decisions about its tool calls."""
        return self.error.pending_turn if isinstance(self.error, EntityError) else None

    @property
    def usage(self) -> Usage:
        """The token usage, also of a turn that waits, or whose answer has the wrong form."""
        answered = self.error if isinstance(self.error, EntityError) else self
        response: ChatResponse | None = answered.response
        return NO_USAGE if response is None else response.usage

    def unwrap(self) -> T:
        """Return the value, or raise the error."""
        if self.error is not None:
            raise self.error
        return cast("T", self.value)


@dataclass(frozen=True, slots=True)
class BatchProgress(Progress):
    """How many requests of a batch have finished.

    Attributes:
        succeeded: The number of those that were answered.
        failed: The number of those that failed.
        waiting: The number of those whose turns wait for decisions about tool calls.
        spent: What the batch has spent since it was started, if it has a budget.
    """

    succeeded: int = 0
    failed: int = 0
    waiting: int = 0
    spent: Spent | None = None


class Batch(Generic[T]):
    """The requests of `ChatClient.batch`; iterate over it, with `for` or `async for`, to send them.

    Results arrive in the order in which the requests finish. Leaving the loop early stops the
    requests that are running; batches that a provider has accepted continue until `cancel`.

    Attributes:
        progress: How many requests have finished.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        requests: Mapping[str, ChatClientRequestSpec],
        entity: Any,
        settings: BatchSettings,
    ) -> None:
        self._pipeline = pipeline
        self._requests = requests
        self._converter: StructuredOutputConverter[T] | None = (
            None if entity is None else converter_of(entity)
        )
        self._concurrency = settings.get("concurrency", 8)
        check_number("concurrency", self._concurrency, least=1)
        self._collect_seconds = settings.get("collect_seconds", 1.0)
        check_number("collect_seconds", self._collect_seconds)
        self._poll_seconds = settings.get("poll_seconds", 10.0)
        check_number("poll_seconds", self._poll_seconds)
        self._use_batch_api = use_batch_api = settings.get("use_batch_api", False)
        self._budget = settings.get("budget")
        if self._budget is not None:
            check_type("budget", self._budget, Budget)
        self._start_budget()
        self._known: frozenset[str] = frozenset()
        self._on_progress = settings.get("on_progress")
        if self._on_progress is not None:
            check_callable("on_progress", self._on_progress, takes=("progress",))
        self._journal = BatchJournal(settings.get("journal"))
        self._cancelled = self._used = False
        self.progress = BatchProgress(len(requests))
        if use_batch_api:
            self._batched_pipeline(self._new_queue())  # raises if there is no batch API

    def __repr__(self) -> str:
        return f"<Batch: {self.progress.finished} of {self.progress.total} finished>"

    if not TYPE_CHECKING:  # see `ChatClientBuilder.__getattr__`

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):
                raise AttributeError(name)
            raise missing_attribute(self, name, "; iterate over it: for result in batch")

    def __del__(self) -> None:
        if not getattr(self, "_used", True):
            warn_if_dropped("a batch was made and never iterated over: nothing was sent")

    def cancel(self) -> None:
        """End the iteration, and cancel the batches that the provider works on."""
        self._cancelled = True

    def __iter__(self) -> Iterator[BatchResult[T]]:
        """Yield the results; the requests run asynchronously in a thread."""
        results: queue.Queue[BatchResult[T] | BaseException | None] = queue.Queue()
        # Results that are not consumed yet, so that a slow consumer stops the requests.
        free = asyncio.Semaphore(self._concurrency)
        with _loop_thread(self._put_results(results, free)) as loop:
            while (found := results.get()) is not None:
                if isinstance(found, BaseException):
                    raise found
                yield found
                loop.call_soon_threadsafe(free.release)

    async def __aiter__(self) -> AsyncGenerator[BatchResult[T], None]:
        """Yield the results."""
        async with aclosing(self._results()) as results:
            async for result in results:
                yield result

    async def _put_results(
        self,
        results: "queue.Queue[BatchResult[T] | BaseException | None]",
        free: asyncio.Semaphore,
    ) -> None:
        try:
            async with aclosing(self._results()) as found:
                async for result in found:
                    await free.acquire()
                    results.put(result)
        except BaseException as error:  # noqa: BLE001 - raised in the other thread
            results.put(error)
        results.put(None)

    async def _results(self) -> AsyncGenerator[BatchResult[T], None]:
        self._used = True
        self._start_budget()
        self._known = frozenset(self._journal.results)
        self.progress = BatchProgress(len(self._requests))
        begun = time.monotonic()
        waiting = iter(self._requests.items())
        batches = self._new_queue() if self._use_batch_api else None
        pipeline, most = self._pipeline, self._concurrency
        if batches is not None:
            pipeline, most = self._batched_pipeline(batches), batches.api.max_requests
            batches.resume()
        running: set[asyncio.Task[BatchResult[T]]] = set()
        # Unlike `asyncio.wait`, a queue does not look at all of thousands of tasks each time.
        ended: asyncio.Queue[asyncio.Task[BatchResult[T]]] = asyncio.Queue()
        try:
            while not self._cancelled:
                while len(running) < most and (item := next(waiting, None)) is not None:
                    task = asyncio.ensure_future(self._result(pipeline, *item))
                    running.add(task)
                    task.add_done_callback(ended.put_nowait)
                if not running:
                    return
                if (done := await _next_of(ended)) is not None:
                    running.discard(done)
                    result = done.result()
                    seconds = time.monotonic() - begun
                    outcomes = {"answered": "succeeded", "waiting": "waiting"}
                    name, before = outcomes.get(result.outcome, "failed"), self.progress
                    counts: dict[str, int] = {name: getattr(before, name) + 1}
                    self.progress = replace(
                        before,
                        finished=before.finished + 1,
                        known=before.known + (result.key in self._known),
                        seconds=seconds,
                        spent=self._spent(),
                        **counts,
                    )
                    if self._on_progress is not None:
                        await ON_LOOP.invoke(self._on_progress, self.progress)
                    yield result
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            if batches is not None:
                await batches.aclose()
        if batches is not None:
            await batches.cancel()

    async def _result(
        self, pipeline: Pipeline, key: str, request: ChatClientRequestSpec
    ) -> BatchResult[T]:
        recorded = self._journal.results.get(key)
        resumes = request.settings.turn.resumption is not None
        try:
            # A turn that was suspended runs again only if the request has decisions.
            if recorded is not None and (recorded[1] is None or not resumes):
                return self._result_of(key, *recorded)
            call = ChatClientRequestSpec(pipeline, request.settings).acall()
            with nullcontext() if self._ledger is None else record_usage(self._ledger):
                response, value = await self._answer(call)
            # Before the consumer gets it, because a crash there must not lose a paid answer.
            self._journal.add_result(key, response.chat_response)
            return BatchResult(key, value, response.chat_response)
        except EntityError as error:
            if error.pending_turn is not None:
                self._journal.add_result(key, error.response, error.pending_turn)
            return BatchResult(key, None, None, error)
        except Exception as error:  # noqa: BLE001 - belongs to this request only
            return BatchResult(key, None, None, error)

    async def _answer(self, call: AsyncCallResponse) -> tuple[ChatClientResponse, T]:
        if self._converter is not None:
            value = await call.entity(self._converter)
            return await call.chat_client_response(), value
        response = await call.chat_client_response()
        require_answer(response)
        return response, cast("T", response.chat_response.text)

    def _result_of(
        self, key: str, response: ChatResponse, pending: PendingTurn | None
    ) -> BatchResult[T]:
        """Return the result that is in the journal."""
        if pending is not None:
            return BatchResult(key, None, None, waiting_error(response, pending))
        if self._converter is None:
            return BatchResult(key, cast("T", response.text), response)
        entity = entity_in(ChatClientResponse(response), self._converter)
        return BatchResult(key, entity, response)

    def _start_budget(self) -> None:
        self._ledger: UsageLedger | None = None
        self._spent: Callable[[], Spent | None] = lambda: None
        if self._budget is not None:
            self._ledger, self._spent = self._budget.shared("the batch")

    def _new_queue(self) -> BatchQueue:
        return BatchQueue(
            self._journal,
            collect_seconds=self._collect_seconds,
            poll_seconds=self._poll_seconds,
        )

    def _batched_pipeline(self, batches: BatchQueue) -> Pipeline:
        """Return the pipeline whose model sends its requests to *batches*.

        Raises:
            UsageError: The provider has no batch API.
        """
        model = self._pipeline.shared.model
        batched = model.batched(batches.send)
        if batched is None:
            msg = f"{model!r} has no batch API; leave out use_batch_api=True"
            raise UsageError(msg)
        batched_model, batches.api = batched
        shared = replace(self._pipeline.shared, model=batched_model)
        return Pipeline(shared, self._pipeline.defaults)


def batch_of(
    pipeline: Pipeline,
    prompt: Callable[[Any], ChatClientRequestSpec],
    requests: Iterable[BatchRequest] | Mapping[str, BatchRequest],
    entity: Any,
    **settings: Unpack[BatchSettings],
) -> Batch[Any]:
    """Return the batch for the arguments of `ChatClient.batch`; *prompt* makes requests."""
    given = keyed("a batch", requests)
    if not given:
        msg = "a batch needs at least one request"
        raise UsageError(msg)
    if unknown := settings.keys() - BatchSettings.__annotations__:
        known = ", ".join(BatchSettings.__annotations__)
        msg = f"a batch has no setting {', '.join(sorted(unknown))}; it has {known}"
        raise UsageError(msg)
    specs: dict[str, ChatClientRequestSpec] = {}
    for key, request in given.items():
        spec = request if isinstance(request, ChatClientRequestSpec) else prompt(request)
        if spec._pipeline is not pipeline:
            msg = f"the request {key!r} is one of another client, or has another model"
            raise UsageError(msg)
        pipeline.check_params(spec.settings)
        specs[key] = spec
    return Batch(pipeline, specs, entity, settings)


def keyed(what: str, requests: Iterable[R] | Mapping[Any, R]) -> dict[str, R]:
    """Return *requests* by their keys as texts; without keys, by their positions.

    Raises:
        WrongTypeError: It is one request instead of several.
        UsageError: Two keys are the same text.
    """
    several: object = requests
    if isinstance(several, str | bytes | Prompt) or not isinstance(several, Iterable):
        msg = f"{what} takes several requests; put {several!r} into a list"
        raise WrongTypeError(msg)
    items = requests.items() if isinstance(requests, Mapping) else enumerate(requests)
    result: dict[str, R] = {}
    for key, request in items:
        if str(key) in result:
            msg = f"two requests of {what} have the key {str(key)!r}; keys are compared as texts"
            raise UsageError(msg)
        result[str(key)] = request
    return result


async def _next_of(ended: "asyncio.Queue[T]") -> T | None:
    """Return the next item; None after a moment, in which the batch may have been cancelled."""
    try:
        async with asyncio.timeout(_CANCEL_SECONDS):
            return await ended.get()
    except TimeoutError:
        return None


@contextmanager
def _loop_thread(coroutine: Coroutine[Any, Any, None]) -> Iterator[asyncio.AbstractEventLoop]:
    """Run *coroutine* on an event loop in a thread; cancel it at the end of the block.

    Yields:
        The event loop.
    """
    loop = asyncio.new_event_loop()
    task = loop.create_task(coroutine)

    def run() -> None:
        loop.run_until_complete(asyncio.wait([task]))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())

    thread = threading.Thread(target=run, name="chatclient-batch")
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join()
        loop.close()
