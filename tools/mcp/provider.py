"""The tools of MCP servers, as a provider of tool callbacks."""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from chatclient.checks import check_kind, check_word
from chatclient.closing import Closeable
from chatclient.driving import drive
from chatclient.errors import McpServerError, ToolDefinitionError, UsageError
from chatclient.forks import ForkSafeLock
from chatclient.logs import get_logger
from chatclient.runtime import BLOCKING, ON_LOOP, Runtime
from chatclient.tool import ToolCallback, ToolRequest
from chatclient.tools.mcp.names import ToolNamePrefix, names_for
from chatclient.tools.mcp.server import MAKE_ONE, McpServer, ToolContextToMeta

if TYPE_CHECKING:  # the SDK loads with the first connection
    from chatclient.tools.mcp.connection import Connection
    from chatclient.tools.mcp.hub import Hub

log = get_logger(__name__)


class McpToolCallbackProvider(Closeable):
    """Offers the tools of MCP servers, to blocking and asynchronous requests alike.

    The servers are connected, all at once, when a request first wants their tools. The tools are
    listed once, and again after a server has said that they changed or its connection was lost.
    Close the provider, or use it in `with` or `async with`: the processes that were started for
    it, its thread and its connections are gone afterwards.

    Args:
        *servers: Where the tools are.
        tool_filter: Says, given a server's name and a tool as the MCP SDK describes it, whether
            the tool is offered; default: all are.
        rename: Returns what a tool is called, given its server's name and its own.
        prefix: When names get their server's name in front. On a clash, all tools of that name
            get it, whichever server answers first; so does a tool named as one that the request
            has from another source.
        meta: Chooses what of the tool context servers are told; default: nothing.
        resources: Whether models get tools to list and read the servers' resources.
        prompts: Whether models get tools to list and fill in the servers' prompts.

    Raises:
        UsageError: There is no server, one of them is none, two have one name, or *prefix* is not
            a known value.
    """

    def __init__(
        self,
        *servers: McpServer,
        tool_filter: Callable[[str, Any], bool] | None = None,
        rename: Callable[[str, str], str] | None = None,
        prefix: ToolNamePrefix = "on_clash",
        meta: ToolContextToMeta | None = None,
        resources: bool = False,
        prompts: bool = False,
    ) -> None:
        for server in servers:
            check_kind("a server", server, McpServer, MAKE_ONE)
        names = Counter(server.name for server in servers)
        if not servers or max(names.values()) > 1:
            msg = "a provider needs at least one MCP server, each with a name of its own"
            raise UsageError(msg)
        self.servers = servers
        self._accepts = tool_filter or (lambda _server, _tool: True)
        self._rename = rename or (lambda _server, tool: tool)
        check_word("prefix", prefix, ToolNamePrefix)
        self._prefix: ToolNamePrefix = prefix
        self._meta = meta
        self._resources = resources
        self._prompts = prompts
        self._lock = ForkSafeLock()
        self._closed = False
        self._hub: Hub | None = None
        # By server, tool and name for models: the tool as listed and its callback, kept so that
        # an unchanged tool stays the same object.
        self._made: dict[tuple[str, str, str], tuple[Any, ToolCallback | None]] = {}
        self._extra: list[ToolCallback] | None = None

    async def tool_callbacks(self, request: ToolRequest | None = None) -> list[ToolCallback]:
        """Return the tools of all servers.

        Raises:
            McpServerError: A required server cannot be reached or does not answer.
            UsageError: The provider was closed.
        """
        hub = self._connected()
        connections = hub.connections
        if any(each.listing is None and not each.waits for each in connections.values()):
            await hub.run(ON_LOOP, self._list_all)
        extra = self._extra_tools(hub)
        others = extra if request is None else [*extra, *request.callbacks]
        taken = {callback.definition.name for callback in others}
        found = [
            (connection.server, tool)
            for connection in connections.values()
            for tool in connection.known
            if self._accepts(connection.server.name, tool)
        ]
        wanted = [(server.name, self._rename(server.name, tool.name)) for server, tool in found]
        names = names_for(wanted, self._prefix, taken)
        callbacks = [
            self._callback(hub, server, tool, name)
            for (server, tool), name in zip(found, names, strict=True)
        ]
        return [*(c for c in callbacks if c is not None), *extra]

    def close(self) -> None:
        """Disconnect from the servers; the tools cannot be used any more."""
        drive(self._close(BLOCKING))

    async def aclose(self) -> None:
        """Disconnect from the servers; the tools cannot be used any more."""
        await self._close(ON_LOOP)

    def __repr__(self) -> str:
        return f"McpToolCallbackProvider({', '.join(server.name for server in self.servers)})"

    async def _close(self, runtime: Runtime) -> None:
        with self._lock:
            self._closed = True
            hub = self._hub
        if hub is not None:
            await hub.close(runtime)

    def _connected(self) -> "Hub":
        with self._lock:
            if self._closed:
                msg = f"{self!r} was closed; make a new one to connect the servers again"
                raise UsageError(msg)
            if self._hub is None:
                from chatclient.tools.mcp.hub import Hub  # noqa: PLC0415 - loads the SDK

                self._hub = Hub(self.servers)
            return self._hub

    async def _list_all(self, _runtime: Runtime) -> None:
        """List the tools of all servers that have to be, at the same time."""
        connections = [c for c in self._connected().connections.values() if not c.waits]
        await asyncio.gather(*(self._list(connection) for connection in connections))

    async def _list(self, connection: "Connection") -> None:
        try:
            await connection.list_tools()
        except McpServerError as error:
            if connection.server.required:
                raise
            log.warning("mcp server left out", server=connection.server.name, error=str(error))

    def _callback(self, hub: "Hub", server: McpServer, tool: Any, name: str) -> ToolCallback | None:
        """Return the tool's callback, or None when no model could call it."""
        from chatclient.tools.mcp.callback import McpToolCallback  # noqa: PLC0415 - loads the SDK

        key = (server.name, tool.name, name)
        listed, callback = self._made.get(key, (None, None))
        if listed is not tool:
            try:
                callback = McpToolCallback(hub, server, tool, name, self._meta)
            except ToolDefinitionError as error:
                log.warning("mcp tool left out", server=server.name, error=str(error))
            self._made[key] = (tool, callback)
        return callback

    def _extra_tools(self, hub: "Hub") -> list[ToolCallback]:
        if self._extra is None:
            from chatclient.tools.mcp.resources import prompt_tools, resource_tools  # noqa: PLC0415

            self._extra = [
                *(resource_tools(hub) if self._resources else ()),
                *(prompt_tools(hub) if self._prompts else ()),
            ]
        return self._extra
