"""A provider of the tools of MCP servers, and the names that models see."""

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from chatclient.chat.messages import Message
from chatclient.chat.tool import RESERVED_TOOL_NAMES, ToolCallback, ToolRequest
from chatclient.chat.tool_definition import sanitise_tool_name
from chatclient.errors import McpServerError, ToolDefinitionError, UsageError
from chatclient.extend import (
    BLOCKING,
    EMPTY,
    ON_LOOP,
    Closeable,
    ForkSafeLock,
    check_choice,
    check_type,
    drive,
    get_logger,
)
from chatclient.mcp.offers import (
    McpCompletion,
    McpContent,
    McpPrompt,
    McpResource,
    McpResourceTemplate,
)
from chatclient.mcp.server import MAKE_ONE, AcceptedTools, McpServer, ToolContextToMeta
from chatclient.runtime.runtime import Runtime

if TYPE_CHECKING:  # the SDK loads with the first connection
    from chatclient.mcp.connection import Connection, ConnectionPool
    from chatclient.mcp.listing import Offers


ToolNamePrefix = Literal["on_clash", "always", "never"]
"""When a tool's name gets its server's name as a prefix."""

_DIGEST = 8  # hexadecimal digits


def names_for(
    tools: Sequence[tuple[str, str]], prefix: ToolNamePrefix, taken: Collection[str] = ()
) -> list[str]:
    """Return a valid name for each of *tools*, which depends only on the arguments.

    Args:
        tools: For each tool the name of its server, and its own name.
        prefix: When the server's name is prepended; always to the names of the library's own tools.
        taken: Names of other tools, which count as clashes, too.
    """
    names = [sanitise_tool_name(tool) for _, tool in tools]
    counts = Counter([*names, *taken])
    for index, (server, tool) in enumerate(tools):
        clashes = prefix != "never" and counts[names[index]] > 1
        if prefix == "always" or clashes or names[index] in RESERVED_TOOL_NAMES:
            names[index] = sanitise_tool_name(f"{server}_{tool}")
        if names[index] in RESERVED_TOOL_NAMES:  # such as "final" and "answer"
            names[index] = _distinct(names[index], server, tool)
    if prefix == "never":
        return names
    # "a" with "b_c" and "a_b" with "c" still clash; so do names that differ only in characters
    # that no provider accepts.
    counts = Counter([*names, *taken])
    return [
        name if counts[name] == 1 else _distinct(name, server, tool)
        for name, (server, tool) in zip(names, tools, strict=True)
    ]


def _distinct(name: str, server: str, tool: str) -> str:
    digest = hashlib.sha256(f"{server}\0{tool}".encode(errors="surrogatepass")).hexdigest()
    return f"{name[: 63 - _DIGEST]}_{digest[:_DIGEST]}"


log = get_logger(__name__)


class McpToolCallbackProvider(Closeable):
    """Provides the tools of MCP servers for blocking and asynchronous requests.

    All servers are connected on the first request. Their tools are listed once, and again after a
    server has reported a change, its connection was lost, or its `refresh_after` has passed. Close
    the provider, or use it in `with` or `async with`, to end its processes, its thread and its
    connections.

    Args:
        *servers: The servers.
        tool_filter: Returns whether a tool is offered, given its server's name and the tool of the
            MCP SDK; default: all are.
        rename: Returns the name of a tool, given its server's name and its own.
        prefix: When tool names get their server's name as a prefix. On a clash, all tools of that
            name get it, in any order of responses; so does a tool with the same name as one that
            the request has from another source.
        meta: Selects values of the tool context that servers get; default: none.
        resources: Whether models get tools to list and read the servers' resources.
        prompts: Whether models get tools to list and fill in the servers' prompts.
        pin: Whether a tool is left out when its server changes its description or its schema, for
            example after it was approved; a change is logged in any case. Or the accepted tools, as
            `fingerprints` returns them, so that other tools are left out as well.

    Raises:
        UsageError: There is no server, one is of the wrong type, two have the same name, or
            *prefix* is unknown.
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
        pin: bool | Mapping[str, str] = False,
    ) -> None:
        for server in servers:
            check_type("a server", server, McpServer, MAKE_ONE)
        names = Counter(server.name for server in servers)
        if not servers or max(names.values()) > 1:
            msg = "a provider needs at least one MCP server, each with a name of its own"
            raise UsageError(msg)
        self.servers = servers
        self._accepts = tool_filter or (lambda _server, _tool: True)
        self._rename = rename or (lambda _server, tool: tool)
        check_choice("prefix", prefix, ToolNamePrefix)
        self._prefix: ToolNamePrefix = prefix
        self._meta = meta
        self._resources = resources
        self._prompts = prompts
        self._lock = ForkSafeLock()
        self._making = ForkSafeLock()
        self._closed = False
        self._pool: ConnectionPool | None = None
        # By server, tool and name for models: the listed tool and its callback, cached so that an
        # unchanged tool stays the same object.
        self._callbacks: dict[tuple[str, str, str], tuple[Any, ToolCallback | None]] = {}
        self._extra: list[ToolCallback] | None = None
        self._accepted = AcceptedTools(pin)

    async def tool_callbacks(self, request: ToolRequest | None = None) -> list[ToolCallback]:
        """Return the tools of all servers.

        Raises:
            McpServerError: A required server cannot be reached or does not respond.
            UsageError: The provider was closed.
        """
        pool = self._connected()
        connections = pool.connections
        if any(not (each.is_listed or each.is_paused) for each in connections.values()):
            await pool.run(ON_LOOP, self._list_all)
        if self._extra is None:
            from chatclient.mcp.listing import prompt_tools, resource_tools  # noqa: PLC0415

            self._extra = [
                *(resource_tools(pool) if self._resources else ()),
                *(prompt_tools(pool) if self._prompts else ()),
            ]
        extra = self._extra
        other_tools = extra if request is None else [*extra, *request.callbacks]
        taken = {callback.definition.name for callback in other_tools}
        tools = [
            (connection.server, tool)
            for connection in connections.values()
            for tool in connection.known
            if self._accepts(connection.server.name, tool)
        ]
        preferred = [(server.name, self._rename(server.name, tool.name)) for server, tool in tools]
        names = names_for(preferred, self._prefix, taken)
        keys = [
            (server.name, tool.name, name)
            for (server, tool), name in zip(tools, names, strict=True)
        ]
        if any(self._listed(key) is not tool for key, (_, tool) in zip(keys, tools, strict=True)):
            # In a worker thread: schemas may be large.
            await ON_LOOP.invoke(self._make_callbacks, pool, keys, tools)
        callbacks = [self._callbacks[key][1] for key in keys]
        return [*(c for c in callbacks if c is not None), *extra]

    def resources(self) -> list[McpResource]:
        """Return the resources of all servers, also those that no model should see.

        Raises:
            McpServerError: A required server cannot be reached, or does not answer.
        """
        return drive(self._offers("resources", BLOCKING))

    async def aresources(self) -> list[McpResource]:
        """Return the resources of all servers; see `resources`."""
        return await self._offers("resources", ON_LOOP)

    def resource_templates(self) -> list[McpResourceTemplate]:
        """Return the templates of resources of all servers; see `resources`."""
        return drive(self._offers("templates", BLOCKING))

    async def aresource_templates(self) -> list[McpResourceTemplate]:
        """Return the templates of resources of all servers; see `resources`."""
        return await self._offers("templates", ON_LOOP)

    def read_resource(self, server: str, uri: str) -> list[McpContent]:
        """Return the content of a resource; a server may return several parts.

        Args:
            server: The name of the server.
            uri: The URI of the resource.

        Raises:
            UsageError: There is no such server.
            McpServerError: It cannot be reached, does not answer, or has no such resource.
        """
        return drive(self._read(server, uri, BLOCKING))

    async def aread_resource(self, server: str, uri: str) -> list[McpContent]:
        """Return the content of a resource; see `read_resource`."""
        return await self._read(server, uri, ON_LOOP)

    def prompts(self) -> list[McpPrompt]:
        """Return the prompts of all servers; see `resources`."""
        return drive(self._offers("prompts", BLOCKING))

    async def aprompts(self) -> list[McpPrompt]:
        """Return the prompts of all servers; see `resources`."""
        return await self._offers("prompts", ON_LOOP)

    def get_prompt(
        self, server: str, name: str, arguments: Mapping[str, str] = EMPTY
    ) -> list[Message]:
        """Return the messages of a prompt, for `ChatClientRequestSpec.messages`.

        Args:
            server: The name of the server.
            name: The name of the prompt.
            arguments: The values of its arguments.

        Raises:
            UsageError: There is no such server.
            McpServerError: It cannot be reached, does not answer, or refuses the prompt.
        """
        return drive(self._get_prompt(server, name, arguments, BLOCKING))

    async def aget_prompt(
        self, server: str, name: str, arguments: Mapping[str, str] = EMPTY
    ) -> list[Message]:
        """Return the messages of a prompt; see `get_prompt`."""
        return await self._get_prompt(server, name, arguments, ON_LOOP)

    def complete(
        self,
        target: McpPrompt | McpResourceTemplate,
        argument: str,
        value: str,
        *,
        given: Mapping[str, str] = EMPTY,
    ) -> McpCompletion:
        """Return what a server proposes for an argument, such as while a user types.

        Args:
            target: The prompt or the template.
            argument: The name of the argument, or of the variable.
            value: What the user has typed so far.
            given: The values of other arguments.

        Returns:
            The proposals; none if the server makes none.

        Raises:
            McpServerError: It cannot be reached, does not answer, or refuses.
        """
        return drive(self._complete(target, argument, value, given, BLOCKING))

    async def acomplete(
        self,
        target: McpPrompt | McpResourceTemplate,
        argument: str,
        value: str,
        *,
        given: Mapping[str, str] = EMPTY,
    ) -> McpCompletion:
        """Return what a server proposes for an argument; see `complete`."""
        return await self._complete(target, argument, value, given, ON_LOOP)

    async def _offers(self, kind: "Offers", runtime: Runtime) -> list[Any]:
        from chatclient.mcp.listing import offers_of  # noqa: PLC0415 - loads the SDK

        return await offers_of(self._connected(), kind, runtime)

    async def _read(self, server: str, uri: str, runtime: Runtime) -> list[McpContent]:
        from chatclient.mcp.listing import read  # noqa: PLC0415 - loads the SDK

        return await read(self._connected(), server, uri, runtime)

    async def _get_prompt(
        self, server: str, name: str, arguments: Mapping[str, str], runtime: Runtime
    ) -> list[Message]:
        from chatclient.mcp.listing import filled_prompt  # noqa: PLC0415 - loads the SDK

        return await filled_prompt(self._connected(), server, name, arguments, runtime)

    async def _complete(
        self,
        target: McpPrompt | McpResourceTemplate,
        argument: str,
        value: str,
        given: Mapping[str, str],
        runtime: Runtime,
    ) -> McpCompletion:
        check_type("what is completed", target, (McpPrompt, McpResourceTemplate))
        from chatclient.mcp.listing import completion  # noqa: PLC0415 - loads the SDK

        return await completion(self._connected(), target, (argument, value), given, runtime)

    def close(self) -> None:
        """Disconnect from the servers; the tools cannot be used any more."""
        drive(self._close(BLOCKING))

    async def aclose(self) -> None:
        """Disconnect from the servers; the tools cannot be used any more."""
        await self._close(ON_LOOP)

    @property
    def fingerprints(self) -> dict[str, str]:
        """Digests of the tools that were listed so far, by server and name; see *pin*."""
        return dict(self._accepted.fingerprints)

    def __repr__(self) -> str:
        return f"McpToolCallbackProvider({', '.join(server.name for server in self.servers)})"

    async def _close(self, runtime: Runtime) -> None:
        with self._lock:
            self._closed = True
            pool = self._pool
        if pool is not None:
            await pool.close(runtime)

    def _connected(self) -> "ConnectionPool":
        with self._lock:
            if self._closed:
                msg = f"{self!r} was closed; make a new one to connect the servers again"
                raise UsageError(msg)
            if self._pool is None:
                from chatclient.mcp.connection import ConnectionPool  # noqa: PLC0415 - loads the SDK

                self._pool = ConnectionPool(self.servers)
            return self._pool

    async def _list_all(self, _runtime: Runtime) -> None:
        """List the tools of all servers concurrently, where necessary."""
        connections = [c for c in self._connected().connections.values() if not c.is_paused]
        await asyncio.gather(*(self._list(connection) for connection in connections))

    async def _list(self, connection: "Connection") -> None:
        try:
            await connection.list_tools()
        except McpServerError as error:
            if connection.server.required:
                raise
            log.warning("mcp server left out", server=connection.server.name, error=str(error))

    def _listed(self, key: tuple[str, str, str]) -> Any:
        """Return the tool for which the callback with *key* was made, or None."""
        return self._callbacks.get(key, (None, None))[0]

    def _make_callbacks(
        self,
        pool: "ConnectionPool",
        keys: Sequence[tuple[str, str, str]],
        tools: Sequence[tuple[McpServer, Any]],
    ) -> None:
        """Make the callbacks of new and changed tools; None for one whose schema is invalid."""
        from chatclient.mcp.callback import McpToolCallback  # noqa: PLC0415 - loads the SDK

        with self._making:
            for key, (server, tool) in zip(keys, tools, strict=True):
                if self._listed(key) is tool:
                    continue
                callback, name = None, key[2]
                try:
                    if self._accepted.accepts(server, tool):
                        callback = McpToolCallback(
                            pool, server, tool, name, self._meta, self._accepted
                        )
                except ToolDefinitionError as error:
                    log.warning("mcp tool left out", server=server.name, error=str(error))
                self._callbacks[key] = (tool, callback)
