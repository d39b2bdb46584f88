"""Tools served by `McpToolServer`, to other clients and to our own."""

import asyncio
import contextlib
import json
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import httpx
import jsonschema
import pytest
from pydantic import BaseModel
from typing_extensions import TypedDict

from chatclient.testing import Ask
from tests.support.mcp_setup import ask_with_tools
from tests.support.paths import SUPPORT
from tests.support.waiting import settled

pytest.importorskip("mcp")

from mcp import Client, MCPError
from mcp.server.auth.provider import AccessToken
from mcp_types import AudioContent, EmbeddedResource, ImageContent, ResourceLink, TextContent

from chatclient import ToolContext, tool
from chatclient.chat.messages import Media
from chatclient.chat.tool import ToolProgress
from chatclient.errors import DuplicateToolError, ToolDefinitionError, UsageError
from chatclient.mcp import McpProgress, McpServer, McpToolCallbackProvider, McpToolServer
from chatclient.testing import call
from chatclient.tools import (
    FunctionToolCallback,
    ToolApproval,
    ToolCallback,
    ToolCallingManager,
    ToolDefinition,
    ToolRegistry,
    ToolRequest,
    ToolResult,
    tool_callbacks,
)

SHOP = SUPPORT / "mcp_shop.py"


@tool(effect="idempotent")
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
def tenant(context: ToolContext) -> str:
    """Tell who asks."""
    return f"{context.get('tenant')} {context.get('user')}"


# --- our own client, over both transports ---


@pytest.fixture(scope="module")
def over_http() -> Iterator[McpServer]:
    """Start the shop on a free port, retrying if the port is taken."""
    for _attempt in range(3):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        path = f"/{secrets.token_hex(8)}"  # no other server knows it
        url = f"http://127.0.0.1:{port}{path}"
        with subprocess.Popen([sys.executable, str(SHOP), "http", str(port), path]) as process:
            try:
                if opens(process, url):
                    yield McpServer.http("shop", url, headers={"X-Test": "1"})
                    return
            finally:
                process.kill()
    pytest.fail("the shop has not opened")


def opens(shop: "subprocess.Popen[bytes]", url: str) -> bool:
    """Wait for *shop*; return whether it serves *url*, False if the port is taken."""

    def answers() -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return httpx.options(url).status_code == 405  # known path, wrong method
        return False

    return settled(lambda: shop.poll() is not None or answers(), 60) and shop.poll() is None


@pytest.fixture(scope="module", params=["stdio", "http"])
def shop(request: pytest.FixtureRequest) -> Iterator[McpToolCallbackProvider]:
    if request.param == "stdio":
        server = McpServer.stdio("shop", sys.executable, str(SHOP), "stdio", trust_annotations=True)
    else:
        server = request.getfixturevalue("over_http")
    with McpToolCallbackProvider(server) as provider:
        yield provider


@pytest.mark.process("served tools")
@pytest.mark.feature("mcp-tools-server-sync-tool")
def test_served_tools(ask: Ask, shop: McpToolCallbackProvider) -> None:
    """Prints of a tool do not break the protocol, and results are complete."""
    calls = [call("opening_hours", '{"day": "Sunday"}'), call("picture"), call("fail")]

    result, model = ask_with_tools(ask, shop, calls, "done")

    hours, picture, failed = result.executions
    assert hours.response.data == "closed"
    assert picture.response.media == (Media("image/png", b"\x89PNG"),)
    assert (failed.response.data, failed.is_error) == ("out of stock", True)
    definition = model.prompts[0].options.tool_callbacks[0].definition
    assert definition.description == "Tell when the shop is open."
    assert list(definition.input_schema["required"]) == ["day"]


def test_progress_of_served_tools(ask: Ask, shop: McpToolCallbackProvider) -> None:
    """Progress of a tool reaches the client."""
    result, _ = ask_with_tools(ask, shop, call("stock"), "done")

    seen = [event.event for event in result.events if isinstance(event, ToolProgress)]
    progress = [McpProgress(n + 1.0, None, f"shelf {n}") for n in range(3)]
    assert seen == (progress if ask.streaming else [])
    assert result.executions[0].response.data == '{"tea":3}'


# --- the SDK's client, in this process ---


async def test_tools_in_the_sdk_client() -> None:
    """Name, description, schema and annotations."""
    server = McpToolServer(add, name="sums", version="2", instructions="Add things.")

    async with Client(server.server) as client:
        [listed] = (await client.list_tools()).tools
        result = await client.call_tool("add", {"a": 1, "b": 2})
        info, instructions = client.server_info, client.instructions

    assert (listed.name, listed.description) == ("add", "Add two numbers.")
    assert listed.input_schema["properties"]["a"] == {"type": "integer"}
    assert listed.annotations is not None
    assert (listed.annotations.read_only_hint, listed.annotations.idempotent_hint) == (False, True)
    assert result.content == [TextContent(text="3")]
    assert not result.is_error
    assert info is not None
    assert (info.name, info.version, instructions) == ("sums", "2", "Add things.")


class Stock(BaseModel):
    """What is left."""

    item: str
    left: int


class Pair(TypedDict):
    first: int


class Plain:
    """A class without a schema."""


class Unhashable:
    __hash__ = None  # type: ignore[assignment]


def stock_of(returned: Any, value: Any, **options: Any) -> FunctionToolCallback:
    """Return a tool with the return type *returned* that returns *value*."""

    async def stock() -> Any:
        return value

    stock.__annotations__["return"] = returned
    return FunctionToolCallback(stock, **options)


@pytest.mark.parametrize(
    ("returned", "value", "data"),
    [
        (Stock, Stock(item="tea", left=3), {"item": "tea", "left": 3}),
        ("Stock", Stock(item="tea", left=3), {"item": "tea", "left": 3}),
        (Pair, {"first": 1}, {"first": 1}),
        (dict[str, int], {"tea": 3}, {"tea": 3}),
    ],
)
async def test_structured_content(returned: Any, value: Any, data: Any) -> None:
    """The return type is the output schema if it is an object, and the result fits it."""
    async with Client(McpToolServer(stock_of(returned, value)).server) as client:
        [listed] = (await client.list_tools()).tools
        result = await client.call_tool("stock", {})  # which the SDK checks

    assert listed.output_schema is not None
    jsonschema.validate(result.structured_content, listed.output_schema)
    assert result.structured_content == data
    assert [json.loads(block.text) for block in result.content] == [data]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("returned", "value"),
    [
        (str, "text"),
        (list[Stock], []),
        (Stock | None, None),
        (Media, Media("image/png", b"1")),
        (dict[str, Media], {}),
        (ToolResult, ToolResult("{}")),
        ("Missing", {}),
        (Annotated[dict[str, int], Unhashable()], {}),
        (Plain, {}),
    ],
)
async def test_no_structured_content(returned: Any, value: Any) -> None:
    """Other results are content only."""
    async with Client(McpToolServer(stock_of(returned, value)).server) as client:
        [listed] = (await client.list_tools()).tools
        result = await client.call_tool("stock", {})

    if returned != dict[str, Media]:  # an object, whose values are JSON
        assert listed.output_schema is None
        assert result.structured_content is None
    assert not result.is_error


async def test_converted_results_are_not_structured() -> None:
    """A client sees no more than what the result converter lets through."""
    stock = stock_of(Stock, Stock(item="tea", left=3), result_converter=lambda _value: "some")

    async with Client(McpToolServer(stock).server) as client:
        [listed] = (await client.list_tools()).tools
        result = await client.call_tool("stock", {})

    assert listed.output_schema is None
    assert result.structured_content is None
    assert result.content == [TextContent(text="some")]


@pytest.mark.parametrize(
    ("text", "data", "is_error"),
    [('{"item":"tea","left":0}', {"item": "tea", "left": 0}, False), ("[]", None, True)],
)
async def test_changed_structured_content(text: str, data: Any, is_error: bool) -> None:
    """A client sees what an interceptor makes of a result."""

    async def masked(_invocation: Any, _call_next: Any) -> ToolResult:
        return ToolResult(text)

    stock = stock_of(Stock, Stock(item="tea", left=3))
    manager = ToolCallingManager(interceptors=[masked])
    async with Client(McpToolServer(stock, manager=manager).server) as client:
        result = await client.call_tool("stock", {})

    assert result.content == [TextContent(text=text)]
    assert (result.structured_content, result.is_error) == (data, is_error)


async def test_title_and_other_fields() -> None:
    """What only MCP has is in the options for `"mcp"`; a server's own tools keep their title."""
    schema = {"type": "object", "properties": {"left": {"type": "integer"}}}
    fields = {"title": "Stock", "outputSchema": schema, "_meta": {"shelf": 1}}
    inner = stock_of(Any, {"left": 3}, provider_options={"mcp": fields})

    async with Client(McpToolServer(inner).server) as client:
        [listed] = (await client.list_tools()).tools
        result = await client.call_tool("stock", {})

    assert (listed.title, listed.output_schema, listed.meta) == ("Stock", schema, {"shelf": 1})
    assert result.structured_content == {"left": 3}

    definition = ToolDefinition("stock", metadata={"mcp": {"title": "Stock"}})
    forwarded = replace_definition(stock_of(str, "x"), definition)
    async with Client(McpToolServer(forwarded).server) as client:
        [listed] = (await client.list_tools()).tools
    assert listed.title == "Stock"


def replace_definition(
    tool: FunctionToolCallback, definition: ToolDefinition
) -> FunctionToolCallback:
    tool.definition = definition
    return tool


async def test_invalid_arguments() -> None:
    """The client gets the errors that a model would get."""
    async with Client(McpToolServer(add).server) as client:
        result = await client.call_tool("add", {"a": "one"})

    assert result.is_error
    [text] = result.content
    assert isinstance(text, TextContent)
    assert "b: missing" in text.text


async def test_unknown_tool() -> None:
    """An unknown tool is a protocol error."""
    async with Client(McpToolServer(add).server) as client:
        with pytest.raises(MCPError, match="no tool 'nothing'"):
            await client.call_tool("nothing", {})


@pytest.mark.feature("mcp-tools-server-sync-tool")
@pytest.mark.parametrize(
    ("result", "kinds"),
    [
        ("text", [TextContent]),
        ("", [TextContent]),
        (Media("image/png", b"1"), [ImageContent]),
        (Media("audio/wav", b"1"), [AudioContent]),
        (Media("application/pdf", b"1", name="a.pdf"), [EmbeddedResource]),
        (Media("image/png", "https://x.test/a.png"), [ResourceLink]),
        (["text", Media("image/png", b"1")], [TextContent, ImageContent]),
    ],
)
async def test_result_types(result: Any, kinds: list[type]) -> None:
    """Text, images, audio, other bytes and links keep their type."""

    @tool
    def give() -> Any:
        """Give it."""
        return result

    async with Client(McpToolServer(give).server) as client:
        answer = await client.call_tool("give", {})

    assert [type(block) for block in answer.content] == kinds


async def test_progress_forms() -> None:
    """Progress may be a number, a text or an object; other events are not sent."""

    @tool
    async def work(context: ToolContext) -> str:
        """Work."""
        await context.progress(0.5)
        await context.progress("half")
        await context.progress(McpProgress(3, 4, "nearly"))
        await context.progress({"internal": True})
        await context.emit("an event of the application's own")
        return "done"

    seen: list[tuple[float, float | None, str | None]] = []

    async def progress(progress: float, total: float | None, message: str | None) -> None:
        seen.append((progress, total, message))

    async with Client(McpToolServer(work).server) as client:
        await client.call_tool("work", {}, progress_callback=progress)
        await client.call_tool("work", {})

    assert seen == [(0.5, None, None), (1, None, "half"), (3, 4, "nearly")]


WHICH = """
from chatclient import ToolContext, tool
from chatclient.mcp import McpToolServer

@tool
def which(context: ToolContext) -> str:
    return f"call {context.tool_call_id}"

McpToolServer(which).serve_stdio()
"""


@pytest.mark.process("served tools")
def test_call_id_is_the_request_id() -> None:
    """The request id is used, also 0."""
    hello = {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "x", "version": "1"},
    }
    messages: list[dict[str, Any]] = [
        {"id": 1, "method": "initialize", "params": hello},
        {"method": "notifications/initialized"},
        {"id": 0, "method": "tools/call", "params": {"name": "which", "arguments": {}}},
    ]
    with subprocess.Popen(
        [sys.executable, "-c", WHICH], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for message in messages:
            print(json.dumps({"jsonrpc": "2.0", **message}), file=process.stdin, flush=True)
        process.stdout.readline()
        answer = json.loads(process.stdout.readline())
        process.stdin.close()

    assert answer["result"]["content"] == [{"type": "text", "text": "call 0"}]


async def test_tool_context() -> None:
    """Metadata of a client is used only as configured, and replaces nothing of the server's."""

    def from_meta(meta: Mapping[str, Any]) -> Mapping[str, Any]:
        return {key: meta[key] for key in ("user", "tenant") if key in meta}

    context = {"tenant": "acme"}
    closed = McpToolServer(tenant, tool_context=context)
    opened = McpToolServer(tenant, tool_context=context, context_from_meta=from_meta)
    contexts = []
    for server in (closed, opened):
        async with Client(server.server) as client:
            meta: Any = {"user": "ann", "tenant": "other"}
            contexts.append((await client.call_tool("tenant", {}, meta=meta)).content[0])

    assert contexts == [TextContent(text="acme None"), TextContent(text="acme ann")]


async def test_client_cannot_approve_calls() -> None:
    """Client metadata never counts as approval, even if trusted."""
    manager = ToolCallingManager(interceptors=[ToolApproval()])
    server = McpToolServer(tenant, manager=manager, context_from_meta=lambda meta: meta)
    async with Client(server.server) as client:
        ids = {str(number): True for number in range(10)}
        meta: Any = {"tool_approval_decisions": ids}
        answer = await client.call_tool("tenant", {}, meta=meta)

    assert answer.content == [TextContent(text="The call waits for an approval.")]


async def test_providers_are_queried_per_request() -> None:
    """Tools may change, and providers get the request."""

    class Growing:
        def __init__(self) -> None:
            self.requests: list[ToolRequest] = []

        def tool_callbacks(self, request: ToolRequest) -> list[ToolCallback]:
            self.requests.append(request)
            return tool_callbacks(tenant) if len(self.requests) > 1 else []

    class Fixed:
        def tool_callbacks(self) -> list[ToolCallback]:
            return []

    growing = Growing()
    server = McpToolServer(add, growing, Fixed(), tool_context={"tenant": "acme"})
    names = [[c.definition.name for c in await server.callbacks()] for _ in range(2)]

    assert names == [["add"], ["add", "tenant"]]
    assert growing.requests[0].context == {"tenant": "acme"}
    assert [c.definition.name for c in growing.requests[0].callbacks] == ["add"]


async def test_sources() -> None:
    """Sources are those of requests: duplicates, functions and filtering providers."""

    class Desk:
        def tool_callbacks(self) -> list[Any]:
            return [tenant]

        def hidden_tools(self) -> list[str]:
            return ["add"]

    class Nothing:
        def tool_callbacks(self) -> None:
            return None

    twice = McpToolServer(add, ToolRegistry(add), Nothing())
    hiding = McpToolServer(add, Desk())

    for server, names in ((twice, ["add"]), (hiding, ["tenant"])):
        async with Client(server.server) as client:
            assert [each.name for each in (await client.list_tools()).tools] == names
            if server is hiding:
                with pytest.raises(MCPError, match="no tool 'add'"):
                    await client.call_tool("add", {"a": 1, "b": 2})


@pytest.mark.feature("tool-options-doing-thing-once")
async def test_equal_calls_have_different_keys() -> None:
    """Repeated calls with equal ids are distinct calls."""
    keys: list[str] = []

    @tool
    def pay(amount: int, context: ToolContext) -> None:
        keys.append(context.idempotency_key)

    server = McpToolServer(pay)
    for _ in range(2):
        async with Client(server.server) as client:
            for _ in range(2):
                await client.call_tool("pay", {"amount": 5})

    assert len(set(keys)) == 4


async def test_served_calls_are_observed(caplog: pytest.LogCaptureFixture) -> None:
    """Served calls are observed like calls of a turn."""
    with caplog.at_level("DEBUG", "chatclient"):
        async with Client(McpToolServer(add).server) as client:
            await client.call_tool("add", {"a": 1, "b": 2})

    assert [record for record in caplog.records if "add" in record.getMessage()]


async def test_interceptors_and_approvals() -> None:
    """Interceptors and approvals of the manager apply to clients."""

    async def shout(invocation: Any, call_next: Any) -> ToolResult:
        result = await call_next(invocation)
        return ToolResult(result.text.upper())

    shouting = McpToolServer(tenant, manager=ToolCallingManager(interceptors=[shout]))
    waiting = McpToolServer(
        add, manager=ToolCallingManager(interceptors=[ToolApproval(lambda _: True)])
    )

    async with Client(shouting.server) as client:
        assert (await client.call_tool("tenant", {})).content == [TextContent(text="NONE NONE")]
    async with Client(waiting.server) as client:
        result = await client.call_tool("add", {"a": 1, "b": 2})

    assert result.is_error
    assert result.content == [TextContent(text="The call waits for an approval.")]


# --- invalid arguments ---


def test_invalid_server_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Duplicate names, unresolved names and a missing SDK raise."""
    with pytest.raises(DuplicateToolError):
        McpToolServer(add, FunctionToolCallback(tenant, name="add"))
    with pytest.raises(ToolDefinitionError, match="is a name"):
        McpToolServer("add")
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(UsageError, match=r"chatclient\[mcp\]"):
        McpToolServer(add)


@pytest.mark.process("served tools")
def test_prints_go_to_stderr() -> None:
    """Over stdio prints of tools go to the standard error stream."""
    shop = [sys.executable, str(SUPPORT / "mcp_shop.py"), "stdio"]
    hello: dict[str, Any] = {"protocolVersion": "2025-03-26", "capabilities": {}}
    hello["clientInfo"] = {"name": "test", "version": "1"}
    calls: list[dict[str, Any]] = [
        {"id": 1, "method": "initialize", "params": hello},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/call", "params": {"name": "fail", "arguments": {}}},
    ]
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(shop, text=True, **pipes) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for each in calls:
            process.stdin.write(json.dumps({"jsonrpc": "2.0", **each}) + "\n")
            process.stdin.flush()
        answers = [json.loads(process.stdout.readline()) for _ in range(2)]
        _, errors = process.communicate(timeout=20)

    assert [each["id"] for each in answers] == [1, 2]
    assert "I am about to fail." in errors


class Verifier:
    """Accepts one token."""

    async def verify_token(self, token: str) -> AccessToken | None:
        """Return the access of *token*."""
        if token != "right":
            return None
        return AccessToken(token=token, client_id="tester", scopes=[])


@pytest.mark.parametrize(("token", "status"), [(None, 401), ("wrong", 401), ("right", 200)])
async def test_token_is_checked(token: str | None, status: int) -> None:
    app = McpToolServer(add).http_app(auth=Verifier())
    headers = {"accept": "application/json, text/event-stream", "host": "127.0.0.1:80"}
    if token is not None:
        headers["authorization"] = f"Bearer {token}"
    start = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"},
        },
    }
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as http,
    ):
        response = await http.post("/mcp", json=start, headers=headers)

    assert response.status_code == status


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.1", "example.org"])
async def test_public_host_requires_auth(host: str) -> None:
    """Everybody could run the tools."""
    with pytest.raises(UsageError, match="auth="):
        await McpToolServer(add).aserve_http(host)
    with pytest.raises(UsageError, match="auth"):
        McpToolServer(add).http_app(auth=True)  # type: ignore[arg-type]


@pytest.mark.parametrize("host", ["", "::ffff:0.0.0.0", "0", "LOCALHOST.example.org"])
async def test_other_public_hosts(host: str) -> None:
    with pytest.raises(UsageError, match="auth="):
        await McpToolServer(add).aserve_http(host)


@pytest.mark.parametrize("auth", ["", 0, {}])
async def test_empty_auth_is_no_permission(auth: Any) -> None:
    """Only False is: an unset variable, for example, must not open the server."""
    with pytest.raises(UsageError, match="auth"):
        await McpToolServer(add).aserve_http("0.0.0.0", auth=auth)


async def test_public_host_without_auth_on_request() -> None:
    """Something else may protect the server."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    serving = asyncio.create_task(McpToolServer(add).aserve_http("0.0.0.0", port, auth=False))
    try:
        async with httpx.AsyncClient() as http:
            for _ in range(2000):
                with contextlib.suppress(httpx.TransportError):
                    assert (await http.options(f"http://127.0.0.1:{port}/mcp")).status_code == 405
                    return
                await asyncio.sleep(0.05)
        pytest.fail("the server does not answer")
    finally:
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError, SystemExit):
            await serving
