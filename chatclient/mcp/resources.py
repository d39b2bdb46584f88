"""Tools that give models access to resources and prompts of MCP servers."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from itertools import compress
from typing import Annotated, Any, TypeVar

from mcp import Client, MCPError
from mcp_types import METHOD_NOT_FOUND, Prompt

from chatclient.chat.messages import Media
from chatclient.chat.tool import ToolCallback, ToolMetadata, ToolResult
from chatclient.errors import ToolError
from chatclient.extend import ON_LOOP, get_logger
from chatclient.mcp.connection import Connection, all_pages
from chatclient.mcp.connection_pool import ConnectionPool
from chatclient.mcp.content import add_resource, read_content
from chatclient.mcp.marks import is_content_for_model
from chatclient.mcp.server import McpServer
from chatclient.runtime.runtime import Runtime
from chatclient.tools.function.callback import FunctionToolCallback
from chatclient.tools.function.schema import ToolParam

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
