"""A tool of an MCP server."""

from functools import cached_property
from typing import Any

from jsonschema.protocols import Validator
from mcp import Client
from mcp_types import CallToolResult, Tool

from chatclient.errors import McpServerError
from chatclient.events import ToolProgress
from chatclient.runtime import Runtime
from chatclient.tool import Effect, ToolContext, ToolDefinition, ToolMetadata, ToolResult
from chatclient.tools.binding import unfit
from chatclient.tools.mcp.content import result_of
from chatclient.tools.mcp.hub import Hub
from chatclient.tools.mcp.schemas import misfits, validator_of
from chatclient.tools.mcp.server import McpProgress, McpServer, ToolContextToMeta
from chatclient.tools.naming import describe_name
from chatclient.tools.schema import signature_of_schema


class McpToolCallback:
    """A tool that an MCP server runs.

    Args:
        hub: Knows the connection.
        server: Whose tool it is.
        tool: The tool as the server lists it.
        name: What the model calls it.
        meta: Chooses what of the tool context the server is told.

    Raises:
        ToolDefinitionError: The tool's schema is not that of an object.
    """

    def __init__(
        self, hub: Hub, server: McpServer, tool: Tool, name: str, meta: ToolContextToMeta | None
    ) -> None:
        self._hub = hub
        self._server = server
        self._tool = tool
        self._meta = meta
        # Not every provider takes the dialect's name for a keyword.
        schema = {key: value for key, value in tool.input_schema.items() if key != "$schema"}
        self._signature = signature_of_schema(schema, name=name)
        self.definition = ToolDefinition(
            name,
            tool.description or tool.title or describe_name(tool.name),
            self._signature.input_schema,
            metadata={"mcp": _origin(server, tool)},
        )
        self.metadata = ToolMetadata(
            timeout=server.timeout,
            effect=_effect(tool) if server.trust_annotations else "write",
        )

    @property
    def server(self) -> str:
        """The name of the server whose tool it is."""
        return self._server.name

    async def invoke(self, arguments: str, context: ToolContext) -> ToolResult:
        """Have the server run the tool; see `ToolCallback.invoke`.

        Raises:
            McpServerError: The server cannot be reached, or went away.
            ToolError: The server says that the tool failed, or refuses the call.
            TimeoutError: The server did not answer in time.
        """
        given = self.read_arguments(arguments)
        meta: Any = dict(self._meta(context) or {}) if self._meta is not None else {}

        async def call(runtime: Runtime) -> CallToolResult:
            async def tell(progress: float, total: float | None, message: str | None) -> None:
                news = McpProgress(progress, total, message)
                await runtime.emit(ToolProgress(context.tool_call_id, context.tool_name, news))

            async def exchange(client: Client) -> CallToolResult:
                return await client.call_tool(
                    self._tool.name,
                    given,
                    # A server that nobody listens to need not tell how far it is.
                    progress_callback=tell if runtime.streaming else None,
                    meta=meta or None,
                )

            connection = self._hub.connections[self._server.name]
            return await connection.ask(exchange, repeatable=self.metadata.effect != "write")

        timeout = self.metadata.timeout if context.timeout is None else context.timeout
        answer = await self._hub.run(context.runtime, call, timeout)
        self._check(answer)
        return result_of(answer)

    def read_arguments(self, arguments: str) -> dict[str, Any]:
        """Return what the server is sent; see `ToolInvocation.arguments`.

        Raises:
            ToolArgumentError: The arguments do not fit.
        """
        given = self._signature.read(arguments)
        problems = [
            f"{error.json_path.removeprefix('$').removeprefix('.') or 'arguments'}: {error.message}"
            for error in misfits(self._input, given) or ()
        ]
        if problems:
            raise unfit(self.definition.name, problems)
        return given

    def _check(self, answer: CallToolResult) -> None:
        """Make sure that the server answers as it says it does.

        Raises:
            McpServerError: It does not.
        """
        if answer.is_error or self._tool.output_schema is None:
            return
        if "structured_content" not in answer.model_fields_set:
            wrong = "its answer has no structured content"
        elif found := misfits(self._output, answer.structured_content):
            wrong = f"Invalid structured content: {found[0].message}"
        else:
            return
        msg = f"the MCP server {self._server.name!r} does not keep to the protocol: {wrong}"
        raise McpServerError(msg, server=self._server.name)

    @cached_property
    def _input(self) -> Validator | None:
        return validator_of(self._tool.input_schema)

    @cached_property
    def _output(self) -> Validator | None:
        return validator_of(self._tool.output_schema or {})

    def __repr__(self) -> str:
        return f"McpToolCallback({self.definition.name!r}, server={self._server.name!r})"


def _origin(server: McpServer, tool: Tool) -> dict[str, Any]:
    """Return what else the server says of its tool, for the application."""
    kept = {"title", "annotations", "output_schema", "icons", "meta"}
    said = tool.model_dump(mode="json", by_alias=True, include=kept, exclude_none=True)
    return {"server": server.name, "tool": tool.name, **said}


def _effect(tool: Tool) -> Effect:
    hints = tool.annotations
    if hints is None:
        return "write"
    if hints.read_only_hint:
        return "read"
    return "idempotent" if hints.idempotent_hint else "write"
