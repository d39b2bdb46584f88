"""Resources, prompts and completions of MCP servers, as tools and for the application."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from itertools import compress
from typing import Annotated, Any, Literal, TypeVar

from mcp import Client, MCPError
from mcp_types import (
    METHOD_NOT_FOUND,
    Prompt,
    PromptReference,
    Resource,
    ResourceTemplate,
    ResourceTemplateReference,
)

from chatclient.chat.messages import AssistantMessage, Media, Message, UserMessage
from chatclient.chat.tool import ToolCallback, ToolMetadata, ToolResult
from chatclient.errors import McpServerError, ToolError, UsageError
from chatclient.extend import ON_LOOP, get_logger
from chatclient.mcp.connection import Connection, ConnectionPool, all_pages
from chatclient.mcp.content import add_resource, is_content_for_model, read_content
from chatclient.mcp.offers import (
    McpCompletion,
    McpContent,
    McpPrompt,
    McpPromptArgument,
    McpResource,
    McpResourceTemplate,
)
from chatclient.mcp.server import McpServer
from chatclient.runtime.runtime import Runtime
from chatclient.tools.function.callback import FunctionToolCallback
from chatclient.tools.function.schema import ToolParam

log = get_logger(__name__)

T = TypeVar("T")

Offers = Literal["resources", "templates", "prompts"]
"""What a server lists, besides its tools."""

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
    listed = await _list(connection, "resources")
    templates = await _list(connection, "templates")
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


async def _list(connection: Connection, kind: Offers) -> list[Any]:
    """Return what a server lists of this *kind*, as the SDK has it."""
    server = connection.server

    async def exchange(client: Client) -> list[Any]:
        offers = client.server_capabilities
        if (offers.prompts if kind == "prompts" else offers.resources) is None:
            return []
        match kind:
            case "resources":
                return await all_pages(
                    client.list_resources, lambda page: page.resources, "resources", server
                )
            case "templates":
                return await _templates(client, server)
            case "prompts":
                return await all_pages(
                    client.list_prompts, lambda page: page.prompts, "prompts", server
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
    listed = await _list(connection, "prompts")
    return _within_limits(server, [_described_prompt(server, each) for each in listed])


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
    pool: ConnectionPool,
    server: str,
    exchange: Callable[[Client], Awaitable[T]],
    runtime: Runtime = ON_LOOP,
) -> T:
    connection = pool.connections.get(server)
    if connection is None:
        msg = f"there is no server {server!r}; there is {', '.join(pool.connections)}"
        raise ToolError(msg)

    async def job(_runtime: Runtime) -> T:
        return await _with_timeout(connection, exchange)

    return await pool.run(runtime, job)


async def _with_timeout(connection: Connection, exchange: Callable[[Client], Awaitable[T]]) -> T:
    """Return the result of *exchange* within the server's timeout, so that others need not wait."""
    async with asyncio.timeout(connection.server.timeout):
        return await connection.request(exchange, repeatable=True)


# --- for the application --------------------------------------------------------------------


async def offers_of(pool: ConnectionPool, kind: Offers, runtime: Runtime) -> list[Any]:
    """Return what all servers of *pool* list of this *kind*.

    Raises:
        McpServerError: A required server cannot be reached, or does not answer.
    """

    async def one(connection: Connection) -> list[Any]:
        server = connection.server
        try:
            listed = await _list(connection, kind)
            definitions = "".join(item.model_dump_json() for item in listed)
            server.limits.check_size(definitions, (), server.name)
            return [_offer(server.name, item) for item in listed]
        except (ToolError, TimeoutError) as error:
            if server.required:
                raise _server_error(error, server.name) from error
            log.warning("mcp server left out", server=server.name, error=str(error))
            return []

    async def job(_runtime: Runtime) -> list[Any]:
        answers = await asyncio.gather(*map(one, pool.connections.values()))
        return [item for answer in answers for item in answer]

    return await pool.run(runtime, job)


def _offer(server: str, item: Resource | ResourceTemplate | Prompt) -> Any:
    """Return *item* without the types of the SDK."""
    kept = item.model_dump(
        mode="json", by_alias=True, include={"annotations", "icons", "meta"}, exclude_none=True
    )
    described: dict[str, Any] = {
        "server": server,
        "name": item.name,
        "title": item.title,
        "description": item.description,
        "metadata": kept,
    }
    match item:
        case Resource(uri=uri, mime_type=kind, size=size):
            return McpResource(uri=uri, mime_type=kind, size=size, **described)
        case ResourceTemplate(uri_template=uri, mime_type=kind):
            return McpResourceTemplate(uri_template=uri, mime_type=kind, **described)
        case Prompt(arguments=arguments):
            return McpPrompt(
                arguments=tuple(
                    McpPromptArgument(each.name, each.description, bool(each.required))
                    for each in arguments or ()
                ),
                **described,
            )


async def read(pool: ConnectionPool, server: str, uri: str, runtime: Runtime) -> list[McpContent]:
    """Return the content of a resource; see `McpToolCallbackProvider.read_resource`."""
    answer = await _ask(pool, server, lambda client: client.read_resource(uri), runtime)
    contents: list[McpContent] = []
    all_texts: list[str] = []
    all_media: list[Media] = []
    for each in answer.contents:
        texts: list[str] = []
        media: list[Media] = []
        add_resource(each, texts, media)
        data = texts[0] if texts else media[0].data
        contents.append(McpContent(each.uri, data, each.mime_type, each.meta or {}))
        all_texts += texts
        all_media += media
    pool.connections[server].server.limits.check_size("".join(all_texts), all_media, server)
    return contents


async def filled_prompt(
    pool: ConnectionPool,
    server: str,
    name: str,
    arguments: Mapping[str, str],
    runtime: Runtime,
) -> list[Message]:
    """Return the messages of a prompt; see `McpToolCallbackProvider.get_prompt`."""
    given = dict(arguments)
    answer = await _ask(pool, server, lambda client: client.get_prompt(name, given), runtime)
    messages: list[Message] = []
    all_texts: list[str] = []
    all_media: list[Media] = []
    for message in answer.messages:
        texts, media = read_content([message.content])
        kind = UserMessage if message.role == "user" else AssistantMessage
        messages.append(kind([*texts, *media]))
        all_texts += texts
        all_media += media
    pool.connections[server].server.limits.check_size("".join(all_texts), all_media, server)
    return messages


async def completion(
    pool: ConnectionPool,
    target: McpPrompt | McpResourceTemplate,
    argument: tuple[str, str],
    given: Mapping[str, str],
    runtime: Runtime,
) -> McpCompletion:
    """Return what a server proposes; see `McpToolCallbackProvider.complete`."""
    name, value = argument
    reference: PromptReference | ResourceTemplateReference
    if isinstance(target, McpPrompt):
        reference = PromptReference(name=target.name)
    else:
        reference = ResourceTemplateReference(uri=target.uri_template)

    async def exchange(client: Client) -> McpCompletion:
        if client.server_capabilities.completions is None:
            return McpCompletion(())
        answer = await client.complete(
            reference, {"name": name, "value": value}, dict(given) or None
        )
        found = answer.completion
        return McpCompletion(tuple(found.values), found.total, bool(found.has_more))

    return await _ask(pool, target.server, exchange, runtime)


async def _ask(
    pool: ConnectionPool,
    server: str,
    exchange: Callable[[Client], Awaitable[T]],
    runtime: Runtime,
) -> T:
    """Return the result of *exchange*, with errors for the application instead of a model.

    Raises:
        UsageError: There is no such server.
        McpServerError: It cannot be reached, does not answer, or refuses.
    """
    if server not in pool.connections:
        msg = f"there is no MCP server {server!r}; there is {', '.join(pool.connections)}"
        raise UsageError(msg)
    try:
        return await _request(pool, server, exchange, runtime)
    except (ToolError, TimeoutError) as error:
        raise _server_error(error, server) from error


def _server_error(error: Exception, server: str) -> McpServerError:
    if isinstance(error, McpServerError):
        return error
    why = "did not answer in time" if isinstance(error, TimeoutError) else f"refuses: {error}"
    return McpServerError(f"the MCP server {server!r} {why}", server=server)
