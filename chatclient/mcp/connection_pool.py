"""The connections to several MCP servers, on a dedicated thread.

A session of the MCP SDK is bound to one event loop and to the task that opened it. Requests come
from any thread, with or without a loop. Therefore all sessions of a provider run on one
`LoopThread`, each in a task that only keeps it open, and requests run each exchange there. The same
connection serves blocking and asynchronous requests.
"""

import asyncio
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from chatclient._internal.exceptions import WithoutLocals
from chatclient.errors import UsageError
from chatclient.extend import ForkSafeLock
from chatclient.mcp.connection import Connection
from chatclient.mcp.server import McpServer
from chatclient.runtime.observation import detach_from_step
from chatclient.runtime.runtime import Runtime
from chatclient.runtime.threads import LoopThread

T = TypeVar("T")

_GRACE = 10.0  # seconds for the servers of a dropped provider to end


class ConnectionPool:
    """All connections of a provider, and their thread.

    Args:
        servers: The servers; they are connected on first use.
    """

    def __init__(self, servers: Iterable[McpServer]) -> None:
        self.servers = tuple(servers)
        self._lock = ForkSafeLock()
        self._thread: LoopThread | None = None
        self._connections: dict[str, Connection] = {}
        self._closed = False

    @property
    def connections(self) -> dict[str, Connection]:
        """The connections by the names of their servers."""
        return self._open()[1]

    async def run(
        self,
        runtime: Runtime,
        job: Callable[[Runtime], Coroutine[Any, Any, T]],
        timeout: float | None = None,  # noqa: ASYNC109 - passed on as a number
    ) -> T:
        """Run *job* on the thread of the connections; see `Runtime.run_on`.

        Raises:
            UsageError: The pool was closed.
        """

        async def detached(there: Runtime) -> T:
            # A session keeps the context of its last message. It must not keep the request alive,
            # whose tools refer to this pool.
            detach_from_step()
            with WithoutLocals():
                return await job(there)

        return await runtime.run_on(self._open()[0], detached, timeout=timeout)

    async def close(self, runtime: Runtime) -> None:
        """Disconnect from all servers, and end the thread."""
        with self._lock:
            self._closed = True
            thread, self._thread = self._thread, None
        if thread is None or not thread.alive:
            return
        connections = self._connections.values()

        async def disconnect(_runtime: Runtime) -> None:
            await _close_all(connections)

        await runtime.run_on(thread, disconnect)
        thread.close()

    def _open(self) -> tuple[LoopThread, dict[str, Connection]]:
        with self._lock:
            if self._closed:
                msg = "the MCP servers were closed; make a new provider to connect them again"
                raise UsageError(msg)
            thread = self._thread
            if thread is None or not thread.alive:  # on first use, or in a forked child
                self._thread = thread = LoopThread("chatclient-mcp")
                self._connections = {each.name: Connection(each) for each in self.servers}
                # Ends the servers' processes when the pool is collected or this process ends.
                weakref.finalize(self, _end, thread, self._connections)
            return thread, self._connections


def _end(thread: LoopThread, connections: dict[str, Connection]) -> None:
    """Close the connections of a pool that was collected."""
    if not thread.alive:
        return
    end = threading.Thread(target=_end_now, args=(thread, connections))
    # Garbage collection may run on any thread, also on *thread* itself, and must not block it. At
    # the end of the process, a new thread would not be waited for.
    (end.start if threading.main_thread().is_alive() else end.run)()


def _end_now(thread: LoopThread, connections: dict[str, Connection]) -> None:
    """Disconnect and end the thread, waiting a limited time for the servers."""
    done = threading.Event()

    async def disconnect() -> None:
        await _close_all(connections.values())
        done.set()

    tasks: list[Any] = []  # a task without a reference may be collected before it has run
    thread.soon(lambda: tasks.append(thread.create_task(disconnect())))
    done.wait(_GRACE)
    thread.close()


async def _close_all(connections: Iterable[Connection]) -> None:
    await asyncio.gather(*(connection.close() for connection in connections))
