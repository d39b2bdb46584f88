"""The connections to several MCP servers, kept on a thread of their own.

A session of the MCP SDK is bound to one event loop, and to the task that opened it. Requests come
from any thread and any loop, or from none. So all sessions of a provider live on one `LoopThread`,
each in a task that does nothing but keep it open, and a request goes there for the time of one
exchange. The same connection serves blocking and asynchronous requests alike.
"""

import asyncio
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from chatclient.errors import UsageError
from chatclient.forks import ForkSafeLock
from chatclient.observation import forget_present_step
from chatclient.runtime import Runtime
from chatclient.threads import LoopThread
from chatclient.tools.mcp.connection import Connection
from chatclient.tools.mcp.server import McpServer

T = TypeVar("T")

_GRACE = 10.0  # seconds the servers of a dropped provider get to end


class Hub:
    """All connections of a provider, and the thread they live on.

    Args:
        servers: Which servers; none is connected yet.
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
        timeout: float | None = None,  # noqa: ASYNC109 - handed on as a number
    ) -> T:
        """Run *job* where the connections live; see `Runtime.run_on`.

        Raises:
            UsageError: The hub was closed.
        """

        async def alone(there: Runtime) -> T:
            # A session keeps the context of what was sent last, which would keep the request, and
            # with its tools this hub.
            forget_present_step()
            return await job(there)

        return await runtime.run_on(self._open()[0], alone, timeout=timeout)

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
            if thread is None or not thread.alive:  # the first time, or in a forked child
                self._thread = thread = LoopThread("chatclient-mcp")
                self._connections = {each.name: Connection(each) for each in self.servers}
                # A hub that is dropped, or still open when the process ends, takes its servers'
                # processes with it.
                weakref.finalize(self, _end, thread, self._connections)
            return thread, self._connections


def _end(thread: LoopThread, connections: dict[str, Connection]) -> None:
    """Do what `Hub.close` does, when there is no hub any more."""
    if not thread.alive:
        return
    end = threading.Thread(target=_end_now, args=(thread, connections))
    # Nobody is to wait where garbage happens to be collected, least of all *thread* itself; but a
    # process that ends would wait for no other thread.
    (end.start if threading.main_thread().is_alive() else end.run)()


def _end_now(thread: LoopThread, connections: dict[str, Connection]) -> None:
    """Disconnect, and end the thread, however many servers take too long to end."""
    done = threading.Event()

    async def disconnect() -> None:
        await _close_all(connections.values())
        done.set()

    tasks: list[Any] = []  # a task that nobody refers to may be collected before it has run
    thread.soon(lambda: tasks.append(thread.create_task(disconnect())))
    done.wait(_GRACE)
    thread.close()


async def _close_all(connections: Iterable[Connection]) -> None:
    await asyncio.gather(*(connection.close() for connection in connections))
