"""Tools of MCP servers: those that they offer, and those that read their resources and prompts."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from functools import cached_property
from itertools import compress
from typing import Annotated, Any, TypeVar, cast

from jsonschema.protocols import Validator
from mcp import Client, MCPError
from mcp_types import METHOD_NOT_FOUND, CallToolResult, Prompt, Tool

from chatclient._internal.text import shortened
from chatclient.chat.messages import Media
from chatclient.chat.tool import (
    Effect,
    ToolCallback,
    ToolContext,
    ToolDefinition,
    ToolMetadata,
    ToolProgress,
    ToolResult,
)
from chatclient.chat.tool_definition import describe_name
from chatclient.errors import McpServerError, ToolArgumentError, ToolDefinitionError, ToolError
from chatclient.extend import ON_LOOP, dumps, get_logger
from chatclient.mcp.connection import Connection, ConnectionPool, all_pages
from chatclient.mcp.content import (
    add_resource,
    from_mcp_result,
    has_page,
    is_content_for_model,
    read_content,
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
from chatclient.tools.function.callback import FunctionToolCallback
from chatclient.tools.function.schema import ToolParam, signature_of_schema
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


log = get_logger(__name__)

T = TypeVar("T")

_SERVER = ToolParam(description="The server's name, as listed.")


def resource_tools(pool: ConnectionPool) -> list[ToolCallback]:
    """Return tools that list and read the resources of the servers of *pool*."""

    async def list_resources() -> list[dict[str, Any]]:
        """List the resources (files, records and the like) that can be read."""
        return await _from_all(pool, _resources)

    async def read_resource(
        server: Annotated[str, _SERVER],
        uri: Annotated[str, ToolParam(description="The resource's URI, as listed.")],
    ) -> ToolResult:
        """Read a resource."""
        answer = await _request(pool, server, lambda client: client.read_resource(uri))
        texts: list[str] = []
        media: list[Media] = []
        for content in answer.contents:
            add_resource(content, texts, media)
        return _result(pool, server, texts, media)

    return _tools(list_resources, read_resource)


def prompt_tools(pool: ConnectionPool) -> list[ToolCallback]:
    """Return tools that list and fill in the prompts of the servers of *pool*."""

    async def list_prompts() -> list[dict[str, Any]]:
        """List the prompts (prepared instructions) that there are, with their arguments."""
        return await _from_all(pool, _prompts)

    async def get_prompt(
        server: Annotated[str, _SERVER],
        name: Annotated[str, ToolParam(description="The prompt's name, as listed.")],
        arguments: dict[str, str] | None = None,
    ) -> ToolResult:
        """Return a prompt, filled in."""
        answer = await _request(pool, server, lambda client: client.get_prompt(name, arguments))
        all_texts: list[str] = []
        all_media: list[Media] = []
        for message in answer.messages:
            texts, media = read_content(filter(is_content_for_model, [message.content]))
            all_texts.extend(f"{message.role}: {text}" for text in texts)
            all_media.extend(media)
        return _result(pool, server, all_texts, all_media)

    return _tools(list_prompts, get_prompt)


def _result(pool: ConnectionPool, server: str, texts: list[str], media: list[Media]) -> ToolResult:
    """Return the result with these lines and *media*, within the limits of *server*."""
    text = "\n".join(texts)
    pool.connections[server].server.limits.check_size(text, media, server)
    return ToolResult(text, tuple(media))


def _tools(*functions: Callable[..., Any]) -> list[ToolCallback]:
    metadata = ToolMetadata(effect="read")
    return [FunctionToolCallback(function, metadata=metadata) for function in functions]


async def _resources(connection: Connection) -> list[dict[str, Any]]:
    server = connection.server

    async def exchange(client: Client) -> list[dict[str, Any]]:
        if client.server_capabilities.resources is None:
            return []
        listed = await all_pages(
            client.list_resources, lambda page: page.resources, "resources", server
        )
        templates = await _templates(client, server)
        return _within_limits(
            server,
            [
                *(
                    _described(server, each, uri=each.uri)
                    for each in filter(is_content_for_model, listed)
                ),
                *(
                    _described(server, each, uri_template=each.uri_template)
                    for each in filter(is_content_for_model, templates)
                ),
            ],
        )

    return await _with_timeout(connection, exchange)


async def _templates(client: Client, server: McpServer) -> list[Any]:
    list_page = client.list_resource_templates
    try:
        return await all_pages(list_page, lambda page: page.resource_templates, "resources", server)
    except MCPError as error:
        if error.code == METHOD_NOT_FOUND:  # a server may have resources without templates
            return []
        raise


async def _prompts(connection: Connection) -> list[dict[str, Any]]:
    server = connection.server

    async def exchange(client: Client) -> list[dict[str, Any]]:
        if client.server_capabilities.prompts is None:
            return []
        listed = await all_pages(client.list_prompts, lambda page: page.prompts, "prompts", server)
        return _within_limits(server, [_described_prompt(server, each) for each in listed])

    return await _with_timeout(connection, exchange)


def _described_prompt(server: McpServer, prompt: Prompt) -> dict[str, Any]:
    arguments = [each.model_dump(exclude_none=True) for each in prompt.arguments or ()]
    return _described(server, prompt, arguments=arguments)


def _described(server: McpServer, item: Any, **more: Any) -> dict[str, Any]:
    described = {"server": server.name, "name": item.name, **more}
    if item.description:
        described["description"] = item.description
    return described


def _within_limits(server: McpServer, listed: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what is *listed* without definitions that are too long.

    Raises:
        McpServerError: The listing is too large.
    """
    limits = server.limits
    definitions = [json.dumps(item, ensure_ascii=False) for item in listed]
    is_short = [len(definition) <= limits.definition_length for definition in definitions]
    if excess := is_short.count(False):
        log.warning("mcp definitions left out, which are too long", server=server.name, n=excess)
    limits.check_size("".join(compress(definitions, is_short)), (), server.name)
    return list(compress(listed, is_short))


async def _from_all(
    pool: ConnectionPool, list_items: Callable[[Connection], Awaitable[list[dict[str, Any]]]]
) -> list[dict[str, Any]]:
    """Return the items of all servers, with an error for each that fails; runs concurrently."""

    async def job(_runtime: Runtime) -> list[dict[str, Any]]:
        async def one(connection: Connection) -> list[dict[str, Any]]:
            try:
                return await list_items(connection)
            except (ToolError, TimeoutError) as error:
                why = str(error) or "it did not answer in time"
                return [{"server": connection.server.name, "error": why}]

        answers = await asyncio.gather(*map(one, pool.connections.values()))
        return [item for answer in answers for item in answer]

    return await pool.run(ON_LOOP, job)


async def _request(
    pool: ConnectionPool, server: str, exchange: Callable[[Client], Awaitable[T]]
) -> T:
    connection = pool.connections.get(server)
    if connection is None:
        msg = f"there is no server {server!r}; there is {', '.join(pool.connections)}"
        raise ToolError(msg)

    async def job(_runtime: Runtime) -> T:
        return await _with_timeout(connection, exchange)

    return await pool.run(ON_LOOP, job)


async def _with_timeout(connection: Connection, exchange: Callable[[Client], Awaitable[T]]) -> T:
    """Return the result of *exchange* within the server's timeout, so that others need not wait."""
    async with asyncio.timeout(connection.server.timeout):
        return await connection.request(exchange, repeatable=True)
