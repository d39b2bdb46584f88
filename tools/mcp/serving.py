"""Our tools for the clients of others: an MCP server made of tool callbacks."""

import asyncio
import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any

from chatclient.runtime import ON_LOOP
from chatclient.tool import ToolCallback, ToolRequest
from chatclient.tools.approval import AGENT_TURNS, DECISIONS
from chatclient.tools.duplicates import without_duplicates
from chatclient.tools.manager import ToolCallingManager
from chatclient.tools.mcp.server import require_sdk
from chatclient.tools.offers import offered_tools
from chatclient.tools.sources import ToolSource, resolve_sources, tool_callbacks
from chatclient.values import EMPTY, without

if TYPE_CHECKING:  # the SDK loads with the first serving
    from mcp.server import Server

ToolContextFromMeta = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""Makes tool context out of the `_meta` that a client sent with a call."""


class McpToolServer:
    """Serves tools to MCP clients, over standard streams or streamable HTTP.

    Calls go through a `ToolCallingManager`, so that argument checks, timeouts, interceptors and
    the failure policy are those of every other call. What goes wrong in a tool is told to the
    client as the result of the call. Providers are asked anew for each request of a client.

    Args:
        *sources: The tools; whatever `.tools(...)` takes, but names.
        name: What the server calls itself.
        version: Which version of it this is.
        instructions: What a client's model is told about the server as a whole.
        manager: Runs the tools.
        tool_context: What the tools are told behind the clients' backs.
        context_from_meta: Makes more tool context from the `_meta` of a call; default: what a
            client sends there is not believed.

    Raises:
        UsageError: The MCP SDK is not installed.
        ToolDefinitionError: A source holds no tool, or a tool cannot be built.
    """

    def __init__(
        self,
        *sources: ToolSource,
        name: str = "chatclient",
        version: str = "",
        instructions: str | None = None,
        manager: ToolCallingManager | None = None,
        tool_context: Mapping[str, Any] = EMPTY,
        context_from_meta: ToolContextFromMeta | None = None,
    ) -> None:
        require_sdk()
        self.name = name
        self.version = version
        self.instructions = instructions
        self.manager = manager or ToolCallingManager()
        resolved = resolve_sources(sources)
        self._context = tool_context
        self._context_from_meta = context_from_meta or (lambda _meta: EMPTY)
        self._server: Server[Any] | None = None
        # Found now where that asks nobody: mistakes show when the server is made.
        tool_callbacks(s for s in resolved if isinstance(s, ToolCallback | str))
        self._sources = [s for s in resolved if not isinstance(s, str)]

    async def callbacks(self) -> list[ToolCallback]:
        """Return the tools as they are now.

        Raises:
            DuplicateToolError: Two of them have the same name.
            ToolDefinitionError: What a provider offers is no tool.
        """
        request = ToolRequest((), self._context)
        offered = await offered_tools(self._sources, request, ON_LOOP, {})
        return list(without_duplicates(offered, "error"))

    def context_for(self, meta: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what the tools are told in a call that came with *meta*."""
        said = self._context_from_meta(meta)
        # Where everything is believed, no client approves of its own calls.
        return {**self._context, **without(said, DECISIONS, AGENT_TURNS)}

    @property
    def server(self) -> "Server[Any]":
        """The server of the MCP SDK, for transports that this class does not know."""
        if self._server is None:
            from chatclient.tools.mcp.handlers import server_of  # noqa: PLC0415 - loads the SDK

            self._server = server_of(self)
        return self._server

    def serve_stdio(self) -> None:
        """Serve the client at this process' standard streams until it hangs up."""
        asyncio.run(self.aserve_stdio())

    async def aserve_stdio(self) -> None:
        """Serve the client at this process' standard streams until it hangs up.

        What tools print meanwhile goes to the standard error stream.
        """
        from mcp.server.stdio import stdio_server  # noqa: PLC0415 - loads the SDK

        server = self.server
        async with stdio_server() as (read, write):
            # The stream belongs to the protocol now: what a tool prints is no part of it.
            with redirect_stdout(sys.stderr):
                await server.run(read, write, server.create_initialization_options())

    def http_app(self, path: str = "/mcp", *, host: str = "127.0.0.1") -> Any:
        """Return an ASGI application that serves streamable HTTP.

        Args:
            path: Where in the application.
            host: Where it will listen. At the local host only requests that name it are
                answered, so that no web page can reach the server behind its user's back.
        """
        return self.server.streamable_http_app(streamable_http_path=path, host=host)

    def serve_http(self, host: str = "127.0.0.1", port: int = 8000, path: str = "/mcp") -> None:
        """Serve clients over streamable HTTP until interrupted."""
        asyncio.run(self.aserve_http(host, port, path))

    async def aserve_http(
        self, host: str = "127.0.0.1", port: int = 8000, path: str = "/mcp"
    ) -> None:
        """Serve clients over streamable HTTP until cancelled or interrupted."""
        import uvicorn  # noqa: PLC0415 - comes with the SDK

        config = uvicorn.Config(
            self.http_app(path, host=host), host=host, port=port, log_level="warning"
        )
        await uvicorn.Server(config).serve()
