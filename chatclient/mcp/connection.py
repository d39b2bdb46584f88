"""The connections to MCP servers: opened on first use, reopened after they were lost.

A session of the MCP SDK is bound to one event loop and to the task that opened it. Requests come
from any thread, with or without a loop. Therefore all sessions of a provider run on one
`LoopThread`, each in a task that only keeps it open, and requests run each exchange there. The same
connection serves blocking and asynchronous requests.
"""

import asyncio
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextvars import Context, copy_context
from functools import partial
from typing import Any, TypeVar

from mcp import Client, MCPError
from mcp_types import INVALID_PARAMS, METHOD_NOT_FOUND, REQUEST_TIMEOUT, Tool
from pydantic import ValidationError

from chatclient._internal.exceptions import WithoutLocals
from chatclient.errors import McpServerError, ToolError, UsageError
from chatclient.extend import ForkSafeLock, get_logger, seconds
from chatclient.mcp.content import is_for_model, needs_task
from chatclient.mcp.limits import Listed
from chatclient.mcp.server import McpServer
from chatclient.mcp.session import Session, ping_timeout
from chatclient.runtime.observation import detach_from_step
from chatclient.runtime.runtime import Runtime
from chatclient.runtime.threads import LoopThread

T = TypeVar("T")

Exchange = Callable[[Client], Awaitable[T]]
"""Sends requests through a connected client and returns the result."""

log = get_logger(__name__)

_MOST_PAGES = 100  # of a listing: a server may return a next cursor forever


class Connection:
    """The connection to one server.

    All methods run on the loop of the `ConnectionPool`; the listing may be read by any thread.
    """

    def __init__(self, server: McpServer) -> None:
        self.server = server
        self.known: tuple[Tool, ...] = ()
        """The server's tools; after a change the old ones until they are listed again."""
        self._listed_at: float | None = None  # None if the tools may have changed since
        self._session: Session | None = None
        self._calls: list[Context] = []  # those that run
        self._connect_lock = asyncio.Lock()
        self._list_lock = asyncio.Lock()
        self._failures = 0  # to connect
        # The last one: not the error, whose traceback refers to the request.
        self._failure = partial(_again, "", server.name, "", None)
        self._check: asyncio.Task[None] | None = None  # whether the server still responds
        self._ending: set[asyncio.Task[None]] = set()  # sessions of servers that do not
        self._closed = False
        self._changes = 0  # of the tools, as reported by the server
        self._unreachable_until = 0.0

    @property
    def is_paused(self) -> bool:
        """Whether an optional server is not contacted for now, because it was unreachable."""
        return not self.server.required and time.monotonic() < self._unreachable_until

    @property
    def is_listed(self) -> bool:
        """Whether the listing can be used: nothing has changed, and it is not too old."""
        most = self.server.refresh_after
        listed = self._listed_at
        return listed is not None and (
            most is None or time.monotonic() < listed + seconds("refresh_after", most)
        )

    async def call(self, exchange: Exchange[T], *, repeatable: bool = False) -> T:
        """Return the result of a call of a tool; see `request`."""
        context = copy_context()
        self._calls.append(context)
        try:
            return await self.request(exchange, repeatable=repeatable)
        finally:
            # By identity: contexts compare the values of their variables.
            self._calls[:] = [each for each in self._calls if each is not context]

    async def request(self, exchange: Exchange[T], *, repeatable: bool = False) -> T:
        """Return the result of *exchange* with the server.

        A request that did not reach the server is repeated over a new connection; so is a
        *repeatable* one whose connection was lost before the response.

        Raises:
            McpServerError: The server cannot be reached, or the connection was lost.
            ToolError: The server returned an error; the message is the server's.
            TimeoutError: There was no response in time.
        """
        session = await self._connected()
        try:
            return await self._exchanged(session, exchange)
        except MCPError as error:
            await session.close()
            # A server that was restarted may have other tools.
            self.forget_listing()
            if not (repeatable or session.never_reached(error)):
                msg = (
                    f"the MCP server {self.server.name!r} went away during the call;"
                    " whether it was carried out is not known"
                )
                raise McpServerError(msg, server=self.server.name) from error
        session = await self._connected()
        try:
            return await self._exchanged(session, exchange)
        except MCPError as error:
            msg = f"the MCP server {self.server.name!r} went away twice during the call"
            raise McpServerError(msg, server=self.server.name) from error

    async def _exchanged(self, session: Session, exchange: Exchange[T]) -> T:
        """Return the result of *exchange* in *session*.

        Raises:
            MCPError: The connection was lost.
        """
        loop, limit = asyncio.get_running_loop(), self.server.timeout
        # Its result is there when the time is up, so that the next request need not wait.
        check = None
        if limit is not None:
            check = loop.call_later(limit - ping_timeout(limit), self._check_soon, session)
        try:
            return await exchange(session.client)
        except MCPError as error:
            if (converted := self._converted(session, error)) is not None:
                raise converted from error
            raise
        except asyncio.CancelledError:  # perhaps at a deadline before the time-out
            self._check_soon(session)
            raise
        except (RuntimeError, ValidationError) as error:  # how the SDK reports an invalid response
            garbage = isinstance(error, ValidationError)
            what = "its answer is no MCP" if garbage else str(error).partition("\n")[0]
            msg = f"the MCP server {self.server.name!r} does not keep to the protocol: {what}"
            raise McpServerError(msg, server=self.server.name) from error
        finally:
            if check is not None:
                check.cancel()

    async def list_tools(self) -> tuple[Tool, ...]:
        """Return the server's tools; they are listed again only if they may have changed."""
        if self.is_listed:
            return self.known
        await self._connected()  # which has its own timeout
        try:
            # The time includes waiting for the lock.
            async with asyncio.timeout(self.server.timeout), self._list_lock:
                return await self._list()
        except McpServerError:
            self._pause()
            raise
        except (TimeoutError, ToolError) as error:
            self._pause()
            why = "in time" if isinstance(error, TimeoutError) else f"({error})"
            msg = f"the MCP server {self.server.name!r} did not list its tools {why}"
            raise McpServerError(msg, server=self.server.name) from error

    async def _list(self) -> tuple[Tool, ...]:
        if self.is_listed:  # by another request, while this one waited for the lock
            return self.known
        # A change that is reported during the listing makes it out of date.
        changes = self._changes
        tools = await self.request(partial(_all_tools, self.server), repeatable=True)
        # An unchanged tool stays the same object. Known tools keep their order before new ones, so
        # that providers can keep caching prompts that begin with them.
        before = {tool.name: tool for tool in self.known}
        order = {name: at for at, name in enumerate(before)}
        self.known = tuple(
            same if (same := before.get(tool.name)) == tool else tool
            for tool in sorted(tools, key=lambda tool: order.get(tool.name, len(order)))
        )
        if changes == self._changes:
            self._listed_at = time.monotonic()
        return self.known

    async def newer_tool(self, tool: Tool) -> Tool | None:
        """Return the server's present definition of *tool* if it is another one, or None.

        The tools are listed again, but not more often than every `retry_after` seconds.
        """
        listed = self._listed_at
        if listed is not None and time.monotonic() >= listed + self.server.retry_after:
            self.forget_listing()
        present = {each.name: each for each in await self.list_tools()}.get(tool.name)
        return None if present is tool else present

    def forget_listing(self) -> None:
        """List the tools again on the next use."""
        self._changes += 1
        self._listed_at = None

    def _check_soon(self, session: Session) -> None:
        """Check in the background whether the server of *session* still responds."""
        if self._check is None and session is self._session and not session.ended:
            self._check = asyncio.get_running_loop().create_task(self._check_now(session))

    async def _check_now(self, session: Session) -> None:
        """Disconnect if the server does not respond; the next request connects again."""
        try:
            if await session.responds() or session.ended:
                return
            log.warning("mcp server does not respond, reconnecting", server=self.server.name)
            self.forget_listing()
            self._session = None
            # In the background: ending a process that does not respond takes seconds.
            ending = asyncio.get_running_loop().create_task(session.close())
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)
        finally:
            self._check = None

    async def close(self) -> None:
        """Disconnect permanently and wait for the server's process to end."""
        # First, so that requests that wait for the connection do not open another one.
        self._closed = True
        await self._disconnect()
        if self._check is not None:
            await asyncio.wait([self._check])
        if self._ending:
            await asyncio.wait(self._ending)

    async def _disconnect(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _connected(self) -> Session:
        failures = self._failures
        async with self._connect_lock:
            if self._closed:  # while another request waited and would reconnect
                msg = f"the connection to the MCP server {self.server.name!r} was closed"
                raise McpServerError(msg, server=self.server.name)
            if self._failures > failures:
                # Another request failed to connect while this one waited. Each retrying in turn
                # would make the last of many requests wait for hours.
                raise self._failure()
            if self._check is not None:
                await asyncio.wait([self._check])
            session = self._session
            if session is None or session.ended:
                session = await self._connect()
            return session

    async def _connect(self) -> Session:
        await self._disconnect()
        self.forget_listing()
        # Stored before it is open, because an abandoned session has to be closed as well.
        session = self._session = Session(self.server, self.forget_listing, self._calls)
        try:
            await session.opened()
        except McpServerError as error:
            self._failures += 1
            self._failure = partial(_again, str(error), error.server, error.stderr, error.__cause__)
            self._pause()
            raise
        return session

    def _pause(self) -> None:
        """Offer none of the server's tools and do not reconnect for `retry_after` seconds."""
        self.known = ()
        self._unreachable_until = time.monotonic() + self.server.retry_after

    def _converted(self, session: Session, error: MCPError) -> Exception | None:
        """Return the error to raise for *error*, or None if the connection was lost."""
        if session.exceeded_by(error):
            return self.server.limits.large_message(self.server.name)
        if not session.lost_by(error):
            if error.code == REQUEST_TIMEOUT:
                return TimeoutError(error.message)
            if error.code in (INVALID_PARAMS, METHOD_NOT_FOUND):
                # The tools may have changed without a notification.
                self.forget_listing()
            return ToolError(error.message)
        refusal = session.refused()
        if not refusal:
            return None
        # The connection stays open for other requests; the next listing checks the user again.
        self.forget_listing()
        return McpServerError(refusal, server=self.server.name)


def _again(message: str, server: str, stderr: str, cause: BaseException | None) -> McpServerError:
    """Return an error that happened before."""
    error = McpServerError(message, server=server, stderr=stderr)
    error.__cause__ = cause
    return error


async def _all_tools(server: McpServer, client: Client) -> tuple[Tool, ...]:
    if client.server_capabilities.tools is None:
        return ()
    tools = await all_pages(client.list_tools, lambda page: page.tools, "tools", server)
    first = {tool.name: tool for tool in reversed(tools)}  # of each name
    if tasks := [name for name, tool in first.items() if needs_task(tool)]:
        log.warning("mcp tools left out: they only run as tasks", server=server.name, tools=tasks)
    return tuple(
        tool for tool in reversed(first.values()) if is_for_model(tool) and not needs_task(tool)
    )


async def all_pages(
    list_page: Callable[..., Awaitable[Any]],
    items_of: Callable[[Any], Iterable[T]],
    kind: Listed,
    server: McpServer,
) -> list[T]:
    """Return the items of all pages of a listing.

    Raises:
        McpServerError: There are more of this *kind* than the limits of *server* allow.
    """
    items: list[T] = []
    cursor: str | None = None
    cursors: set[str | None] = {None}
    while len(cursors) <= _MOST_PAGES:
        page = await list_page(cursor=cursor)
        items.extend(items_of(page))
        server.limits.check_count(len(items), kind, server.name)
        cursor = page.next_cursor
        if cursor in cursors:  # None at the end, or one that the server repeats
            break
        cursors.add(cursor)
    return items


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
