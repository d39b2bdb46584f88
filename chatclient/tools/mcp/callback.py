"""A tool of an MCP server."""

from functools import cached_property
from typing import Any, cast

from jsonschema.protocols import Validator
from mcp import Client
from mcp_types import CallToolResult, Tool

from chatclient.chat.tool import (
    Effect,
    ToolContext,
    ToolDefinition,
    ToolMetadata,
    ToolProgress,
    ToolResult,
)
from chatclient.errors import McpServerError
from chatclient.runtime.runtime import Runtime
from chatclient.tools.function.binding import unfit
from chatclient.tools.function.naming import describe_name
from chatclient.tools.function.schema import signature_of_schema
from chatclient.tools.mcp.connection_pool import ConnectionPool
from chatclient.tools.mcp.content import from_mcp_result
from chatclient.tools.mcp.schemas import misfits, validator_of
from chatclient.tools.mcp.server import McpProgress, McpServer, ToolContextToMeta


class McpToolCallback:
    """A tool that an MCP server runs.

    Args:
        pool: Contains the connection.
        server: The server of the tool.
        tool: The tool as the server lists it.
        name: The name for models.
        meta: Selects values of the tool context that the server gets.

    Raises:
        ToolDefinitionError: The tool's schema is not the schema of an object.
    """

    def __init__(
        self,
        pool: ConnectionPool,
        server: McpServer,
        tool: Tool,
        name: str,
        meta: ToolContextToMeta | None,
    ) -> None:
        self._pool = pool
        self._server = server
        self._tool = tool
        self._meta = meta
        # Not every provider accepts this keyword.
        schema = {key: value for key, value in tool.input_schema.items() if key != "$schema"}
        self._signature = signature_of_schema(schema, name=name, check=False)
        self.definition = ToolDefinition(
            name,
            tool.description or tool.title or describe_name(tool.name),
            self._signature.input_schema,
            metadata={"mcp": _origin(server, tool)},
            provider_options=server.provider_options,
        )
        self.metadata = ToolMetadata(
            timeout=server.timeout,
            effect=_effect(tool) if server.trust_annotations else "write",
        )

    @property
    def server(self) -> str:
        """The name of the tool's server."""
        return self._server.name

    async def invoke(self, arguments: str, context: ToolContext) -> ToolResult:
        """Call the tool on its server; see `ToolCallback.invoke`.

        Raises:
            McpServerError: The server cannot be reached, the connection was lost, or the result is
                too large or does not fit.
            ToolError: The tool failed, or the server rejected the call.
            TimeoutError: The server did not respond in time.
        """
        given = self.read_arguments(arguments)
        # In a type that tracebacks show without values.
        meta = ToolContext(dict(self._meta(context) or {}) if self._meta is not None else {})

        async def call(runtime: Runtime) -> CallToolResult:
            async def report(progress: float, total: float | None, message: str | None) -> None:
                event = McpProgress(progress, total, message)
                await runtime.emit(ToolProgress(context.tool_call_id, context.tool_name, event))

            async def exchange(client: Client) -> CallToolResult:
                return await client.call_tool(
                    self._tool.name,
                    given,
                    # Only streams consume progress.
                    progress_callback=report if runtime.streaming else None,
                    meta=cast("Any", dict(meta) or None),
                )

            connection = self._pool.connections[self._server.name]
            return await connection.request(exchange, repeatable=self.metadata.effect != "write")

        timeout = self.metadata.timeout if context.timeout is None else context.timeout
        result = await self._pool.run(context.runtime, call, timeout)
        self._check(result)
        return from_mcp_result(result, self._server.limits, self._server.name)

    def read_arguments(self, arguments: str) -> dict[str, Any]:
        """Return the arguments for the server; see `ToolInvocation.arguments`.

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

    def _check(self, result: CallToolResult) -> None:
        """Check *result* against the tool's output schema.

        Raises:
            McpServerError: It does not fit.
        """
        if result.is_error or self._tool.output_schema is None:
            return
        if "structured_content" not in result.model_fields_set:
            wrong = "its answer has no structured content"
        elif found := misfits(self._output, result.structured_content):
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
    """Return the server's other metadata of its tool, for the application."""
    kept = {"title", "annotations", "output_schema", "icons", "meta"}
    metadata = tool.model_dump(mode="json", by_alias=True, include=kept, exclude_none=True)
    return {"server": server.name, "tool": tool.name, **metadata}


def _effect(tool: Tool) -> Effect:
    hints = tool.annotations
    if hints is None:
        return "write"
    if hints.read_only_hint:
        return "read"
    return "idempotent" if hints.idempotent_hint else "write"
