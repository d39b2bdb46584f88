"""An MCP server that offers tool callbacks to other programs."""

import asyncio
import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any, Literal

from chatclient._internal.checks import attribute_hints
from chatclient._internal.frozen import without
from chatclient.chat.tool import ToolCallback, ToolRequest
from chatclient.errors import UsageError
from chatclient.extend import EMPTY, ON_LOOP, check_method
from chatclient.mcp.server import require_sdk
from chatclient.tools.duplicates import without_duplicates
from chatclient.tools.execution.approval import AGENT_TURNS, DECISIONS
from chatclient.tools.execution.manager import ToolCallingManager
from chatclient.tools.sources import ToolSource, offered_tools, resolve_sources, tool_callbacks

if TYPE_CHECKING:  # the SDK loads with the first serving
    from mcp.server import Server
    from mcp.server.auth.provider import TokenVerifier
    from mcp.server.auth.settings import AuthSettings

ToolContextFromMeta = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""Returns values for the tool context from the `_meta` of a client's call."""


class McpToolServer:
    """Serves tools to MCP clients, over standard streams or streamable HTTP.

    Calls go through a `ToolCallingManager`, so that argument checks, timeouts, interceptors and
    the failure policy work as for any other call. An error of a tool is returned to the client as
    the result of the call. Providers are called for each request of a client.

    Args:
        *sources: The tools: everything that `.tools(...)` takes, except names.
        name: The name of the server.
        version: The version of the server.
        instructions: Instructions for the client's model about the server.
        manager: Runs the tools.
        tool_context: Values for the tools that clients do not see.
        context_from_meta: Returns more values from the `_meta` of a call, which replace none of
            *tool_context*; default: values from clients are not trusted.

    Raises:
        UsageError: The MCP SDK is not installed.
        ToolDefinitionError: A source contains no tool, or a tool cannot be built.
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
        # Resolved now if no provider is needed, so that mistakes are found early.
        tool_callbacks(s for s in resolved if isinstance(s, ToolCallback | str))
        self._sources = [s for s in resolved if not isinstance(s, str)]

    if not TYPE_CHECKING:  # type checkers know all attributes
        __getattr__ = attribute_hints(
            dict.fromkeys(("run", "serve", "start"), "serve it: .serve_stdio() or .serve_http()")
        )

    async def callbacks(self) -> list[ToolCallback]:
        """Return the current tools.

        Raises:
            DuplicateToolError: Two of them have the same name.
            ToolDefinitionError: A provider returned something that is no tool.
        """
        request = ToolRequest((), self._context)
        offered = await offered_tools(self._sources, request, ON_LOOP, {})
        return list(without_duplicates(offered, "error"))

    def context_for(self, meta: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the tool context of a call with *meta*."""
        values = self._context_from_meta(meta)
        # No client may approve its own calls, or replace values of the application.
        return {**without(values, DECISIONS, AGENT_TURNS), **self._context}

    @property
    def server(self) -> "Server[Any]":
        """The server of the MCP SDK, for other transports."""
        if self._server is None:
            from chatclient.mcp.server_handlers import server_of  # noqa: PLC0415 - loads the SDK

            self._server = server_of(self)
        return self._server

    def serve_stdio(self) -> None:
        """Serve the client on this process' standard streams until it disconnects."""
        asyncio.run(self.aserve_stdio())

    async def aserve_stdio(self) -> None:
        """Serve the client on this process' standard streams until it disconnects.

        Output that tools print goes to the standard error stream.
        """
        from mcp.server.stdio import stdio_server  # noqa: PLC0415 - loads the SDK

        server = self.server
        async with stdio_server() as (read, write):
            # The protocol uses the standard output, so tools must not print to it.
            with redirect_stdout(sys.stderr):
                await server.run(read, write, server.create_initialization_options())

    def http_app(
        self,
        path: str = "/mcp",
        *,
        host: str = "127.0.0.1",
        auth: "TokenVerifier | None" = None,
        auth_settings: "AuthSettings | None" = None,
    ) -> Any:
        """Return an ASGI application that serves streamable HTTP.

        Args:
            path: The path of the endpoint.
            host: The host that it will listen on. On the local host, requests with another Host
                header are rejected, so that no web page can reach the server.
            auth: Checks the bearer token of each request: a `TokenVerifier` of the MCP SDK, an
                object with `async def verify_token(token) -> AccessToken | None`. Requests without
                a valid token are refused with status 401.
            auth_settings: Scopes and the server's URL, for clients that look for the
                authorization server; default: none.

        Raises:
            UsageError: *auth* has no method `verify_token`.
        """
        settings: dict[str, Any] = {}
        if auth is not None:
            check_method("auth", auth, "verify_token", "a TokenVerifier of the MCP SDK")
            settings = {"token_verifier": auth, "auth": auth_settings or _default_auth_settings()}
        return self.server.streamable_http_app(streamable_http_path=path, host=host, **settings)

    def serve_http(
        self,
        host: str = "127.0.0.1",
        port: int = 8000,
        path: str = "/mcp",
        *,
        auth: "TokenVerifier | Literal[False] | None" = None,
        auth_settings: "AuthSettings | None" = None,
    ) -> None:
        """Serve clients over streamable HTTP until interrupted; see `aserve_http`."""
        serving = self.aserve_http(host, port, path, auth=auth, auth_settings=auth_settings)
        asyncio.run(serving)

    async def aserve_http(
        self,
        host: str = "127.0.0.1",
        port: int = 8000,
        path: str = "/mcp",
        *,
        auth: "TokenVerifier | Literal[False] | None" = None,
        auth_settings: "AuthSettings | None" = None,
    ) -> None:
        """Serve clients over streamable HTTP until cancelled or interrupted.

        Args:
            host: The host to listen on.
            port: The port.
            path: The path of the endpoint.
            auth: See `http_app`. It is required where others than this machine can connect; False
                lets everybody who can connect run the tools.
            auth_settings: See `http_app`.

        Raises:
            UsageError: *host* is not the local host, and there is no *auth*.
        """
        if auth is None and host not in _LOOPBACK:
            msg = (
                f"everybody who reaches {host!r} could run the tools; pass auth= with a"
                " TokenVerifier, or auth=False if something else protects the server"
            )
            raise UsageError(msg)
        import uvicorn  # noqa: PLC0415 - comes with the SDK

        verifier = None if auth is False else auth
        app = self.http_app(path, host=host, auth=verifier, auth_settings=auth_settings)
        server = uvicorn.Server(uvicorn.Config(app, host=host, port=port, log_level="warning"))
        serving = asyncio.ensure_future(server.serve())
        try:
            await asyncio.shield(serving)
        except asyncio.CancelledError:
            server.should_exit = True  # closes the connections and the socket
            await serving
            raise


_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def _default_auth_settings() -> "AuthSettings":
    from mcp.server.auth.settings import AuthSettings  # noqa: PLC0415 - loads the SDK
    from pydantic import AnyHttpUrl  # noqa: PLC0415 - as above

    return AuthSettings(issuer_url=AnyHttpUrl("http://localhost"), resource_server_url=None)
