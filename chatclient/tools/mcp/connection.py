"""The connection to one MCP server: opened on first use, reopened after it was lost."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any, TypeVar

from mcp import Client, MCPError
from mcp_types import INVALID_PARAMS, METHOD_NOT_FOUND, REQUEST_TIMEOUT, Tool
from pydantic import ValidationError

from chatclient.errors import McpServerError, ToolError
from chatclient.tools.mcp.limits import Listed
from chatclient.tools.mcp.server import McpServer
from chatclient.tools.mcp.session import Session

T = TypeVar("T")

Exchange = Callable[[Client], Awaitable[T]]
"""Sends requests through a connected client and returns the result."""

_MOST_PAGES = 100  # of a listing: a server may return a next cursor forever


class Connection:
    """The connection to one server.

    All methods run on the loop of the `ConnectionPool`; the listing may be read by any thread.
    """

    def __init__(self, server: McpServer) -> None:
        self.server = server
        self.listing: tuple[Tool, ...] | None = None
        """The server's tools, or None if they have to be listed (again)."""
        self.known: tuple[Tool, ...] = ()
        """The same, but after a change the old tools until they are listed again."""
        self._session: Session | None = None
        self._connect_lock = asyncio.Lock()
        self._list_lock = asyncio.Lock()
        self._failures = 0  # to connect
        self._failure: tuple[str, BaseException | None] = (
            "",
            None,
        )  # the message and cause of the last one
        self._closed = False
        self._changes = 0  # of the tools, as reported by the server
        self._unreachable_until = 0.0

    @property
    def is_paused(self) -> bool:
        """Whether an optional server is not contacted for now, because it was unreachable."""
        return not self.server.required and time.monotonic() < self._unreachable_until

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
        try:
            return await exchange(session.client)
        except MCPError as error:
            if (converted := self._converted(session, error)) is not None:
                raise converted from error
            raise
        except (RuntimeError, ValidationError) as error:  # how the SDK reports an invalid response
            raise self._protocol_error(error) from error

    async def list_tools(self) -> tuple[Tool, ...]:
        """Return the server's tools; they are listed again only if they may have changed."""
        if self.listing is not None:
            return self.listing
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
        if self.listing is not None:  # by another request, while this one waited for the lock
            return self.listing
        changes = self._changes
        tools = await self.request(partial(_all_tools, self.server), repeatable=True)
        self.known = tools
        if changes == self._changes:
            self.listing = tools
        return tools

    def forget_listing(self) -> None:
        """List the tools again on the next use."""
        self._changes += 1
        self.listing = None

    async def close(self) -> None:
        """Disconnect permanently and wait for the server's process to end."""
        self._closed = True
        await self._disconnect()

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
                msg, cause = self._failure
                raise McpServerError(msg, server=self.server.name) from cause
            session = self._session
            if session is None or session.ended:
                session = await self._connect()
            return session

    async def _connect(self) -> Session:
        await self._disconnect()
        self.forget_listing()
        # Stored before it is open, because an abandoned session has to be closed as well.
        session = self._session = Session(self.server, self.forget_listing)
        try:
            await session.opened()
        except McpServerError as error:
            self._failures += 1
            self._failure = (
                str(error),
                error.__cause__,
            )  # not the error, whose traceback refers to the request
            self._pause()
            raise
        return session

    def _pause(self) -> None:
        """Offer none of the server's tools and do not reconnect for `retry_after` seconds."""
        self.known = ()
        self._unreachable_until = time.monotonic() + self.server.retry_after

    def _converted(self, session: Session, error: MCPError) -> Exception | None:
        """Return the error to raise for *error*, or None if the connection was lost."""
        if not session.lost_by(error):
            return self._server_error(error)
        refusal = session.refused()
        if not refusal:
            return None
        # The connection stays open for other requests; the next listing checks the user again.
        self.forget_listing()
        return McpServerError(refusal, server=self.server.name)

    def _server_error(self, error: MCPError) -> Exception:
        """Return the error to raise for an error response of the server."""
        if error.code == REQUEST_TIMEOUT:
            return TimeoutError(error.message)
        if error.code in (INVALID_PARAMS, METHOD_NOT_FOUND):
            # The tools may have changed without a notification.
            self.forget_listing()
        return ToolError(error.message)

    def _protocol_error(self, error: Exception) -> McpServerError:
        """Return the error for a response that the SDK rejects."""
        garbage = isinstance(error, ValidationError)
        what = "its answer is no MCP" if garbage else str(error).partition("\n")[0]
        msg = f"the MCP server {self.server.name!r} does not keep to the protocol: {what}"
        return McpServerError(msg, server=self.server.name)


async def _all_tools(server: McpServer, client: Client) -> tuple[Tool, ...]:
    if client.server_capabilities.tools is None:
        return ()
    tools = await all_pages(client.list_tools, lambda page: page.tools, "tools", server)
    return tuple({tool.name: tool for tool in reversed(tools)}.values())[
        ::-1
    ]  # keeps the first of each name


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
