"""How the events of a request reach whoever consumes them, without and with an event loop."""

import asyncio
import types
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from contextvars import Context, copy_context
from typing import Any, Generic, TypeVar, cast

from chatclient.driving import check_for_loop, close, no_loop
from chatclient.errors import UsageError
from chatclient.inbox import INBOX
from chatclient.runtime import Runtime
from chatclient.tasks import ended, look_at_error

T = TypeVar("T")
E = TypeVar("E")

_EVENT = object()  # what a suspended `emit` yields to `drive_stream`
_QUEUE_LENGTH = 64  # events a stream on a loop may run ahead of its consumer


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
        # Once the consumer has left, `finally` blocks still run, and may still emit.
        elif not self.closed:
            self.event = event
            yield _EVENT


def drive_stream(
    start: Callable[[Runtime], Coroutine[Any, Any, T]], runtime: Runtime
) -> Generator[Any, None, T]:
    """Run a request on this thread, yielding its events; the generator's value is its result.

    The request runs in a copy of the caller's context, so that a context variable set inside is
    never visible to the code between two events. Closing the generator closes the request where
    it stands.
    """
    channel: _Channel[Any] = _Channel()
    coroutine = start(runtime.streamed_to(channel.emit))
    context = copy_context()
    context.run(INBOX.set, None)  # that of a request around this one
    try:
        while True:
            try:
                token = context.run(coroutine.send, None)
                if token is not _EVENT:
                    _refuse_to_wait(coroutine, context)
            except StopIteration as stop:
                return cast("T", stop.value)
            except RuntimeError as error:
                check_for_loop(error)
                raise
            yield channel.event
    finally:
        channel.closed = True
        context.run(close, coroutine)


def _refuse_to_wait(coroutine: Coroutine[Any, Any, Any], context: Context) -> None:
    """Have *coroutine* go on from where it waits for a loop, up to its next event.

    Raises:
        BlockingCallError: It has no answer to that, or waits for a loop again.
        StopIteration: It has come to its end.
    """
    refusal = no_loop()
    if context.run(coroutine.throw, refusal) is not _EVENT:
        raise refusal


class _Queue:
    """A short queue between the task that runs a request and the one that consumes its events."""

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
        _wake(self.arrived)
        if len(self.events) >= _QUEUE_LENGTH:
            if self.drained is None or self.drained.done():
                self.drained = asyncio.get_running_loop().create_future()
            # Shielded: several tools may wait for room, and one of them may be cancelled.
            await asyncio.shield(self.drained)

    def take(self) -> Any:
        event = self.events.popleft()
        if not self.events:
            _wake(self.drained)
        return event

    def close(self) -> None:
        self.closed = True
        self.events.clear()
        _wake(self.drained)


def _wake(future: "asyncio.Future[None] | None") -> None:
    if future is not None and not future.done():
        future.set_result(None)


def _look_for_error(task: "asyncio.Task[Any]") -> None:
    """Raise what ended *task*, if anything did.

    Raises:
        RuntimeError: A `StopAsyncIteration` did, which nobody may take for the end of the stream:
            generators do the same.
    """
    try:
        task.result()
    except StopAsyncIteration as error:
        msg = "the request raised StopAsyncIteration"
        raise RuntimeError(msg) from error


class AsyncEvents(AsyncIterator[E], Generic[E, T]):
    """The events of a request that runs in a task of its own, and what it came to.

    The task starts with the first `__anext__` and is gone, with everything it holds, once the
    iterator is exhausted, closed, cancelled or dropped.
    """

    def __init__(
        self, start: Callable[[Runtime], Coroutine[Any, Any, T]], runtime: Runtime
    ) -> None:
        self._start = start
        self._runtime = runtime
        # The task knows the queue and not this object, so that dropping this object ends it.
        self._queue = _Queue()
        self._task: asyncio.Task[T] | None = None
        self._cut_off = False

    async def __anext__(self) -> E:
        queue = self._queue
        if queue.arrived is not None:
            msg = "another task waits for the next event already; a stream has one consumer"
            raise RuntimeError(msg)
        if self._task is None:
            if queue.closed:
                raise StopAsyncIteration
            runtime = self._runtime.streamed_to(queue.emit)
            context = copy_context()
            context.run(INBOX.set, None)  # that of a request around this one
            self._task = asyncio.get_running_loop().create_task(
                self._start(runtime), context=context
            )
        while not queue.events:
            if queue.closed:
                raise StopAsyncIteration
            if self._task.done():
                queue.closed = True
                _look_for_error(self._task)
                raise StopAsyncIteration
            await self._wait_for_event(self._task)
        event: E = queue.take()
        return event

    def result(self) -> T:
        """Return what the request came to; valid once the iterator is exhausted.

        Raises:
            UsageError: The request was ended, because a consumer that waited was cancelled.
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
        """Cancel the request and wait until it has cleaned up."""
        self._queue.close()
        task = self._task
        if task is not None:
            task.cancel()
            await ended([task])
            look_at_error(task)

    async def _wait_for_event(self, task: "asyncio.Task[T]") -> None:
        queue = self._queue
        queue.arrived = asyncio.get_running_loop().create_future()

        def wake(_task: "asyncio.Task[T]") -> None:
            _wake(queue.arrived)

        task.add_done_callback(wake)
        try:
            await queue.arrived
        except BaseException:
            # The consumer was cancelled: nobody will come back for the rest.
            self._cut_off = True
            await self.aclose()
            raise
        finally:
            queue.arrived = None
            task.remove_done_callback(wake)

    def __del__(self) -> None:
        task = self._task
        if task is not None and not task.done() and not task.get_loop().is_closed():
            # Collected by whichever thread, and a future may be set on its loop's only.
            task.get_loop().call_soon_threadsafe(_end, self._queue, task)


def _end(queue: _Queue, task: "asyncio.Task[Any]") -> None:
    queue.close()
    task.cancel()
