"""The connection to one MCP server: made when it is needed, made again when it was lost."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

from mcp import Client, MCPError
from mcp_types import INVALID_PARAMS, METHOD_NOT_FOUND, REQUEST_TIMEOUT, Tool
from pydantic import ValidationError

from chatclient.errors import McpServerError, ToolError
from chatclient.tools.mcp.server import McpServer
from chatclient.tools.mcp.session import Session

T = TypeVar("T")

Exchange = Callable[[Client], Awaitable[T]]
"""Asks a server something, once it is connected."""

_MOST_PAGES = 100  # of a listing: a server that always names a next one must not be followed


class Connection:
    """One server: connected when it is needed, and again when the connection was lost.

    All methods run on the loop of the `Hub`; the listing may be looked at from anywhere.
    """

    def __init__(self, server: McpServer) -> None:
        self.server = server
        self.listing: tuple[Tool, ...] | None = None
        """The server's tools as last listed, or None when they have to be listed (again)."""
        self.known: tuple[Tool, ...] = ()
        """The same, but never None: after a change, the old tools until they are listed again."""
        self._session: Session | None = None
        self._connect_lock = asyncio.Lock()
        self._list_lock = asyncio.Lock()
        self._failures = 0  # of attempts to connect
        self._failure: tuple[str, BaseException | None] = ("", None)  # the last one, and its cause
        self._closed = False
        self._changes = 0  # of the tools, as far as the server tells
        self._unreachable_until = 0.0

    @property
    def waits(self) -> bool:
        """Whether the server is better left alone for now: it could not be reached just before."""
        return not self.server.required and time.monotonic() < self._unreachable_until

    async def ask(self, exchange: Exchange[T], *, repeatable: bool = False) -> T:
        """Return what the server answers.

        A request that did not reach the server is made again over a new connection; so is a
        *repeatable* one whose connection was lost before its answer came.

        Raises:
            McpServerError: The server cannot be reached, or the connection was lost.
            ToolError: The server refuses; the message is the server's.
            TimeoutError: No answer came in time.
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
        """Return what the server answers in *session*.

        Raises:
            MCPError: The connection was lost.
        """
        try:
            return await exchange(session.client)
        except MCPError as error:
            if refused := self._refused(session, error):
                raise refused from error
            raise
        except (RuntimeError, ValidationError) as error:  # by which the SDK refuses what it gets
            raise self._garbled(error) from error

    async def list_tools(self) -> tuple[Tool, ...]:
        """Return the server's tools, from the server only when they may have changed."""
        if self.listing is not None:
            return self.listing
        await self._connected()  # which has a time limit of its own
        try:
            # Waiting for somebody else's listing counts as well.
            async with asyncio.timeout(self.server.timeout), self._list_lock:
                return await self._list()
        except McpServerError:
            self._leave_alone()
            raise
        except (TimeoutError, ToolError) as error:
            self._leave_alone()
            why = "in time" if isinstance(error, TimeoutError) else f"({error})"
            msg = f"the MCP server {self.server.name!r} did not list its tools {why}"
            raise McpServerError(msg, server=self.server.name) from error

    async def _list(self) -> tuple[Tool, ...]:
        if self.listing is not None:  # by somebody else, meanwhile
            return self.listing
        changes = self._changes
        tools = await self.ask(_all_tools, repeatable=True)
        self.known = tools
        if changes == self._changes:
            self.listing = tools
        return tools

    def forget_listing(self) -> None:
        """List the tools again when they are next wanted."""
        self._changes += 1
        self.listing = None

    async def close(self) -> None:
        """Disconnect for good; a process that was started for it is gone afterwards."""
        self._closed = True
        await self._disconnect()

    async def _disconnect(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _connected(self) -> Session:
        failures = self._failures
        async with self._connect_lock:
            if self._closed:  # while somebody waited for an answer, and would ask again
                msg = f"the connection to the MCP server {self.server.name!r} was closed"
                raise McpServerError(msg, server=self.server.name)
            if self._failures > failures:
                # Somebody tried while this one waited. If all tried, one after the other, the
                # last of many would wait for hours.
                msg, cause = self._failure
                raise McpServerError(msg, server=self.server.name) from cause
            session = self._session
            if session is None or session.ended:
                session = await self._connect()
            return session

    async def _connect(self) -> Session:
        await self._disconnect()
        self.forget_listing()
        # Kept before it is open: one that is given up has to be waited for as well.
        session = self._session = Session(self.server, self.forget_listing)
        try:
            await session.opened()
        except McpServerError as error:
            self._failures += 1
            self._failure = str(error), error.__cause__  # the error itself knows the request
            self._leave_alone()
            raise
        return session

    def _leave_alone(self) -> None:
        """Offer none of the server's tools, and do not try it again, for the time it is given."""
        self.known = ()
        self._unreachable_until = time.monotonic() + self.server.retry_after

    def _refused(self, session: Session, error: MCPError) -> Exception | None:
        """Return what the server says with *error*, or None if the connection was lost."""
        if not session.lost_by(error):
            return self._told(error)
        refusal = session.refused()
        if not refusal:
            return None
        # Others may still use the connection; whether this user may at all, the next listing tells.
        self.forget_listing()
        return McpServerError(refusal, server=self.server.name)

    def _told(self, error: MCPError) -> Exception:
        """Return *error*, which the server answered, as what it means to a caller."""
        if error.code == REQUEST_TIMEOUT:
            return TimeoutError(error.message)
        if error.code in (INVALID_PARAMS, METHOD_NOT_FOUND):
            # It may have other tools by now, without having said so.
            self.forget_listing()
        return ToolError(error.message)

    def _garbled(self, error: Exception) -> McpServerError:
        """Return the error for an answer that the SDK refuses."""
        garbage = isinstance(error, ValidationError)
        what = "its answer is no MCP" if garbage else str(error).partition("\n")[0]
        msg = f"the MCP server {self.server.name!r} does not keep to the protocol: {what}"
        return McpServerError(msg, server=self.server.name)


async def _all_tools(client: Client) -> tuple[Tool, ...]:
    if client.server_capabilities.tools is None:
        return ()
    tools = await all_pages(client.list_tools, lambda page: page.tools)
    return tuple({tool.name: tool for tool in reversed(tools)}.values())[::-1]  # the first wins


async def all_pages(
    list_page: Callable[..., Awaitable[Any]], items_of: Callable[[Any], Iterable[T]]
) -> list[T]:
    """Return the items of all pages of a listing."""
    items: list[T] = []
    cursor: str | None = None
    for _ in range(_MOST_PAGES):
        page = await list_page(cursor=cursor)
        items.extend(items_of(page))
        cursor = page.next_cursor
        if cursor is None:
            break
    return items
