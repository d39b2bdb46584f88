"""Tools of MCP servers."""

from functools import cached_property
from typing import Any, cast

from jsonschema.protocols import Validator
from mcp import Client
from mcp_types import CallToolResult, Tool

from chatclient._internal.text import shortened
from chatclient.chat.tool import (
    Effect,
    ToolContext,
    ToolDefinition,
    ToolMetadata,
    ToolProgress,
    ToolResult,
)
from chatclient.chat.tool_definition import describe_name
from chatclient.errors import McpServerError, ToolArgumentError, ToolDefinitionError
from chatclient.extend import dumps
from chatclient.mcp.connection import ConnectionPool
from chatclient.mcp.content import (
    from_mcp_result,
    has_page,
)
from chatclient.mcp.schemas import (
    CHECK_SECONDS,
    CHECK_SECONDS_ON_LOOP,
    misfits,
    validator_of,
)
from chatclient.mcp.server import AcceptedTools, McpProgress, McpServer, ToolContextToMeta
from chatclient.mcp.stdio import with_last_lines
from chatclient.runtime.runtime import Runtime
from chatclient.tools.function.schema import signature_of_schema
from chatclient.tools.function.signature import unfit

_MOST_SHOWN = 500  # characters of a message, which may contain all of a value


class McpToolCallback:
    """A tool that an MCP server runs.

    Args:
        pool: Contains the connection.
        server: The server of the tool.
        tool: The tool as the server lists it.
        name: The name for models.
        meta: Selects values of the tool context that the server gets.
        accepted: Decides whether another definition of the tool may be used.

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
        accepted: AcceptedTools,
    ) -> None:
        self._accepted = accepted
        self._pool = pool
        self._server = server
        self._tool = tool
        self._meta = meta
        # Not every provider accepts this keyword.
        schema = {key: value for key, value in tool.input_schema.items() if key != "$schema"}
        self._signature = signature_of_schema(schema, name=name, check=False)
        kept = {"title", "annotations", "output_schema", "icons", "meta"}
        metadata = tool.model_dump(mode="json", by_alias=True, include=kept, exclude_none=True)
        self.definition = ToolDefinition(
            name,
            tool.description or tool.title or describe_name(tool.name),
            self._signature.input_schema,
            metadata={"mcp": {"server": server.name, "tool": tool.name, **metadata}},
            provider_options=server.provider_options,
        )
        self.metadata = ToolMetadata(
            timeout=server.timeout,
            effect=_effect(tool) if server.trust_annotations else "write",
            background=tool.name in server.background,
        )

    @property
    def server(self) -> str:
        """The name of the tool's server."""
        return self._server.name

    async def invoke(self, arguments: str, context: ToolContext) -> ToolResult:
        """Call the tool on its server; see `ToolCallback.invoke`.

        If the arguments do not fit, the server is asked whether the tool has changed.

        Raises:
            ToolArgumentError: The arguments do not fit.
            McpServerError: The server cannot be reached, the connection was lost, or the result is
                too large or does not fit.
            ToolError: The tool failed, or the server rejected the call.
            TimeoutError: The server did not respond in time.
        """
        try:
            given = self.read_arguments(arguments)
        except ToolArgumentError as error:
            newer = await self._newer(context)
            if newer is None:
                raise
            given = newer.read_changed_arguments(arguments, error)
            return await newer.call(given, context)
        return await self.call(given, context)

    async def call(self, given: dict[str, Any], context: ToolContext) -> ToolResult:
        """Call the tool with arguments that fit; see `invoke`."""
        # In a type that tracebacks show without values.
        meta = ToolContext(dict(self._meta(context) or {}) if self._meta is not None else {})

        async def call(runtime: Runtime) -> CallToolResult:
            reported = 0

            async def report(progress: float, total: float | None, message: str | None) -> None:
                nonlocal reported
                reported += 1
                if reported > self._server.limits.progress_events:
                    return
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
            return await connection.call(exchange, repeatable=self.metadata.effect != "write")

        try:
            result = await self._pool.run(context.runtime, call, self._timeout(context))
        except McpServerError as error:
            if not error.stderr:
                raise
            # The output of a program is not sent to models.
            message = str(error).removesuffix(with_last_lines("", error.stderr))
            raise McpServerError(message, server=error.server) from error
        # In a worker thread: the check and large content take time.
        return await context.runtime.invoke(self._converted, result)

    def read_arguments(self, arguments: str) -> dict[str, Any]:
        """Return the arguments for the server; see `ToolInvocation.arguments`.

        Raises:
            ToolArgumentError: The arguments do not fit.
        """
        given = self._signature.read(arguments)
        problems = [
            f"{error.json_path.removeprefix('$').removeprefix('.') or 'arguments'}: "
            f"{shortened(error.message, _MOST_SHOWN)}"
            for error in misfits(self._input, given, CHECK_SECONDS_ON_LOOP) or ()
        ]
        if problems:
            raise unfit(self.definition.name, problems)
        return given

    def read_changed_arguments(self, arguments: str, before: ToolArgumentError) -> dict[str, Any]:
        """Return arguments that did not fit the earlier definition of the tool.

        Raises:
            ToolArgumentError: They do not fit this definition, either.
        """
        try:
            return self.read_arguments(arguments)
        except ToolArgumentError as error:
            schema = dumps(self.definition.input_schema).decode()
            changed = f"the server has changed the parameters, which now are {schema}"
            details = [*error.details, changed]
            raise unfit(self.definition.name, details, malformed=error.malformed) from before

    async def _newer(self, context: ToolContext) -> "McpToolCallback | None":
        """Return the tool as its server defines it now, if it has changed and is accepted."""

        async def listed(_runtime: Runtime) -> Tool | None:
            return await self._pool.connections[self._server.name].newer_tool(self._tool)

        try:
            tool = await self._pool.run(context.runtime, listed, self._timeout(context))
            if tool is None or not self._accepted.accepts(self._server, tool):
                return None
            name = self.definition.name
            return await context.runtime.invoke(
                McpToolCallback, self._pool, self._server, tool, name, self._meta, self._accepted
            )
        except (McpServerError, TimeoutError, ToolDefinitionError):  # the next request reports it
            return None

    def _timeout(self, context: ToolContext) -> float | None:
        return self.metadata.timeout if context.timeout is None else context.timeout

    def _converted(self, result: CallToolResult) -> ToolResult:
        """Return *result* after a check against the tool's output schema.

        Raises:
            McpServerError: It does not fit, or is too large.
            ToolError: The tool failed.
        """
        server, wrong = self._server.name, ""
        if not result.is_error and self._tool.output_schema is not None:
            if "structured_content" not in result.model_fields_set:
                wrong = "its answer has no structured content"
            elif found := misfits(self._output, result.structured_content, CHECK_SECONDS):
                message = shortened(found[0].message, _MOST_SHOWN)
                wrong = f"Invalid structured content: {message}"
        if wrong:
            msg = f"the MCP server {server!r} does not keep to the protocol: {wrong}"
            raise McpServerError(msg, server=server)
        return from_mcp_result(result, self._server.limits, server, has_page=has_page(self._tool))

    @cached_property
    def _input(self) -> Validator | None:
        return validator_of(self._tool.input_schema)

    @cached_property
    def _output(self) -> Validator | None:
        return validator_of(self._tool.output_schema or {})

    def __repr__(self) -> str:
        return f"McpToolCallback({self.definition.name!r}, server={self._server.name!r})"


def _effect(tool: Tool) -> Effect:
    hints = tool.annotations
    if hints is None:
        return "write"
    if hints.read_only_hint:
        return "read"
    return "idempotent" if hints.idempotent_hint else "write"
