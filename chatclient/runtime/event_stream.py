"""Carries the events of a request to its consumer, without and with an event loop."""

import asyncio
import types
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from chatclient._internal.checks import only_asynchronous
from chatclient.errors import UsageError
from chatclient.runtime.blocking import check_for_loop, close, no_loop_error
from chatclient.runtime.cancellation import Cancellation, consume_error, running_loop, wait_all
from chatclient.runtime.runtime import Runtime
from chatclient.runtime.threads import INBOX

T = TypeVar("T")
E = TypeVar("E")

_EVENT = object()  # yielded by a suspended `emit` to `drive_stream`
_QUEUE_LENGTH = 256  # events that a stream on a loop buffers before `emit` waits


class _Channel(Generic[E]):
    """Carries one event at a time from a suspended `emit` to `drive_stream`."""

    __slots__ = ("closed", "event")

    event: E

    def __init__(self) -> None:
        self.closed = False

    @types.coroutine
    def emit(self, event: E) -> Generator[object, None, None]:
        inbox = INBOX.get()
        if inbox is not None:
            inbox.put((event, self.emit))
        # `finally` blocks may still emit after the consumer has left.
        elif not self.closed:
            self.event = event
            yield _EVENT


def drive_stream(
    start: Callable[[Runtime], Coroutine[Any, Any, T]], runtime: Runtime
) -> Generator[Any, None, T]:
    """Run a request on this thread and yield its events; the generator returns its result.

    The request runs in a copy of the caller's context, so that context variables set by the request
    are not visible to the consumer. Closing the generator closes the coroutine of the request.
    """
    channel: _Channel[Any] = _Channel()
    cancellation = Cancellation()
    coroutine = start(runtime.streamed_to(channel.emit).with_cancellation(cancellation))
    context = copy_context()
    context.run(INBOX.set, None)  # may be set by an outer request
    run, send = context.run, coroutine.send
    try:
        while True:
            try:
                token = run(send, None)
                if token is not _EVENT:
                    _throw_no_loop(coroutine, context)
            except StopIteration as stop:
                return cast("T", stop.value)
            except RuntimeError as error:
                check_for_loop(error)
                raise
            yield channel.event
    finally:
        # Before the coroutine is closed, so that its cleanup emits nothing and starts no call.
        channel.closed = cancellation.requested = True
        context.run(close, coroutine)


def _throw_no_loop(coroutine: Coroutine[Any, Any, Any], context: Context) -> None:
    """Throw a `BlockingCallError` into *coroutine*, and run it until its next event.

    Raises:
        BlockingCallError: It does not handle the error, or awaits an event loop again.
        StopIteration: It has returned.
    """
    error = no_loop_error()
    if context.run(coroutine.throw, error) is not _EVENT:
        raise error


class _Queue:
    """A bounded queue between the task of a request and the consumer of its events."""

    __slots__ = ("arrived", "closed", "drained", "events")

    def __init__(self) -> None:
        self.events: deque[Any] = deque()
        self.arrived: asyncio.Future[None] | None = None
        self.drained: asyncio.Future[None] | None = None
        self.closed = False

    async def emit(self, event: Any) -> None:
        inbox = INBOX.get()
        if inbox is not None:
            inbox.put((event, self.emit))
            return
        if self.closed:
            return
        self.events.append(event)
        if self.arrived is not None:
            _wake(self.arrived)
        if len(self.events) >= _QUEUE_LENGTH:
            await self._until_drained()

    async def wait_for_consumer(self) -> None:
        """Wait until the consumer has received all events.

        Events of other threads are not in the queue before their turn, so those do not wait.
        """
        if self.events and INBOX.get() is None:
            await self._until_drained()

    async def _until_drained(self) -> None:
        if self.drained is None or self.drained.done():
            self.drained = asyncio.get_running_loop().create_future()
        # Shielded: several tools may wait for this future, and one of them may be cancelled.
        await asyncio.shield(self.drained)

    def take(self) -> Any:
        event = self.events.popleft()
        if self.drained is not None and not self.events:
            _wake(self.drained)
        return event

    def close(self) -> None:
        self.closed = True
        self.events.clear()
        _wake(self.drained)


def _wake(future: "asyncio.Future[None] | None") -> None:
    if future is not None and not future.done():
        future.set_result(None)


class AsyncEvents(AsyncIterator[E], Generic[E, T]):
    """The events and the result of a request that runs in a separate task.

    The task starts at the first `__anext__` and ends when the iterator is exhausted, closed,
    cancelled or garbage-collected.
    """

    def __init__(
        self, start: Callable[[Runtime], Coroutine[Any, Any, T]], runtime: Runtime
    ) -> None:
        self._start = start
        self._runtime = runtime
        # The task references the queue, not this object, whose finalizer cancels the task.
        self._queue = queue = _Queue()
        self.pending, self.take = queue.events, queue.take
        self._cancellation = Cancellation()
        self._task: asyncio.Task[T] | None = None
        self._cut_off = False

    if not TYPE_CHECKING:  # type checkers know that it is none
        __iter__ = only_asynchronous

    async def __anext__(self) -> E:
        queue = self._queue
        if queue.arrived is not None:
            msg = "another task waits for the next event already; a stream has one consumer"
            raise RuntimeError(msg)
        if self._task is None:
            if queue.closed:
                raise StopAsyncIteration
            runtime = self._runtime.streamed_to(queue.emit, queue.wait_for_consumer)
            runtime = runtime.with_cancellation(self._cancellation)
            context = copy_context()
            context.run(INBOX.set, None)  # may be set by an outer request
            work = self._start(runtime)
            try:
                loop = running_loop()
            except Exception:
                work.close()
                raise
            self._task = loop.create_task(work, context=context)
            # A consumer that drops a broken stream does not retrieve the error.
            self._task.add_done_callback(consume_error)
        while not queue.events:
            if queue.closed:
                raise StopAsyncIteration
            if self._task.done():
                queue.closed = True
                try:
                    self._task.result()
                except StopAsyncIteration as error:
                    # It would look like the end of the stream; converted as in generators.
                    msg = "the request raised StopAsyncIteration"
                    raise RuntimeError(msg) from error
                raise StopAsyncIteration
            await self._wait_for_event(self._task)
        event: E = queue.take()
        return event

    def result(self) -> T:
        """Return the result of the request; valid after the iterator is exhausted.

        Raises:
            UsageError: The request was cancelled together with its consumer.
        """
        if self._cut_off:
            msg = (
                "the request ended when waiting for its next event was cancelled; to wait for some "
                "time only, wait for a task: asyncio.wait({task}, timeout=...)"
            )
            raise UsageError(msg)
        if self._task is None:
            msg = "the stream has not been started"
            raise RuntimeError(msg)
        return self._task.result()

    async def aclose(self) -> None:
        """Cancel the request and wait for its cleanup."""
        # First, because the request may wait in `emit` for this consumer.
        self._queue.close()
        task = self._task
        if task is not None:
            if not self._cancellation.requested:  # a second one would cancel the cleanup
                self._cancellation.requested = True
                task.cancel()
            await wait_all([task])
            consume_error(task)

    async def _wait_for_event(self, task: "asyncio.Task[T]") -> None:
        queue = self._queue
        queue.arrived = asyncio.get_running_loop().create_future()

        def wake(_task: "asyncio.Task[T]") -> None:
            _wake(queue.arrived)

        task.add_done_callback(wake)
        try:
            await queue.arrived
        except BaseException:
            # The consumer was cancelled and will not read the remaining events.
            self._cut_off = True
            await self.aclose()
            raise
        finally:
            queue.arrived = None
            task.remove_done_callback(wake)

    def __del__(self) -> None:
        task = self._task
        if task is not None and not task.done() and not task.get_loop().is_closed():
            # Finalizers may run on any thread; futures may only be set on that of their loop.
            task.get_loop().call_soon_threadsafe(_cancel, self._queue, self._cancellation, task)


def _cancel(queue: _Queue, cancellation: Cancellation, task: "asyncio.Task[Any]") -> None:
    queue.close()
    cancellation.requested = True
    task.cancel()
