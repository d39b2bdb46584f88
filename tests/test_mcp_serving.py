"""Our tools for the clients of others, and for our own."""

import contextlib
import json
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from conftest import Ask
from mcp_setup import asked_for
from waiting import settled

pytest.importorskip("mcp")

from mcp import Client, MCPError
from mcp_types import AudioContent, EmbeddedResource, ImageContent, ResourceLink, TextContent

from chatclient.errors import DuplicateToolError, ToolDefinitionError, UsageError
from chatclient.events import ToolProgress
from chatclient.messages import Media
from chatclient.testing import call
from chatclient.tools import (
    FunctionToolCallback,
    ToolApproval,
    ToolCallback,
    ToolCallingManager,
    ToolContext,
    ToolRegistry,
    ToolRequest,
    ToolResult,
    tool,
    tool_callbacks,
)
from chatclient.tools.mcp import (
    McpProgress,
    McpServer,
    McpToolCallbackProvider,
    McpToolServer,
)

SHOP = Path(__file__).parent / "mcp_shop.py"


@tool(effect="idempotent")
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
def tenant(context: ToolContext) -> str:
    """Tell who asks."""
    return f"{context.get('tenant')} {context.get('user')}"


# --- over both transports, to our own client ---


@pytest.fixture(scope="module")
def over_http() -> Iterator[McpServer]:
    """Start the shop on a free port, and on another one when somebody else was faster."""
    for _attempt in range(3):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        path = f"/{secrets.token_hex(8)}"  # nobody else's server knows it
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
    """Wait for *shop*, and return whether it answers at *url*; it ends when the port is taken."""

    def answers() -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return httpx.options(url).status_code == 405  # the path is known, the method is not
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


def test_served_tools_are_offered_and_run(ask: Ask, shop: McpToolCallbackProvider) -> None:
    """What a tool prints does not get between the messages; its result is a model's as ever."""
    calls = [call("opening_hours", '{"day": "Sunday"}'), call("picture"), call("fail")]

    asked, model = asked_for(ask, shop, calls, "done")

    hours, picture, failed = asked.executions
    assert hours.response.data == "closed"
    assert picture.response.media == (Media("image/png", b"\x89PNG"),)
    assert (failed.response.data, failed.is_error) == ("out of stock", True)
    definition = model.prompts[0].options.tool_callbacks[0].definition
    assert definition.description == "Tell when the shop is open."
    assert list(definition.input_schema["required"]) == ["day"]


def test_progress_of_served_tools(ask: Ask, shop: McpToolCallbackProvider) -> None:
    """What a tool tells on the way reaches the client that asks for it."""
    asked, _ = asked_for(ask, shop, call("stock"), "done")

    seen = [event.event for event in asked.events if isinstance(event, ToolProgress)]
    told = [McpProgress(n + 1.0, None, f"shelf {n}") for n in range(3)]
    assert seen == (told if ask.streaming else [])
    assert asked.executions[0].response.data == '{"tea":3}'


# --- to the SDK's own client, in this process ---


async def test_tools_as_the_sdk_sees_them() -> None:
    """Name, description, schema and what a tool does."""
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


async def test_arguments_that_do_not_fit_are_told() -> None:
    """A client's model learns what is wrong, like our own."""
    async with Client(McpToolServer(add).server) as client:
        result = await client.call_tool("add", {"a": "one"})

    assert result.is_error
    [text] = result.content
    assert isinstance(text, TextContent)
    assert "b: missing" in text.text


async def test_an_unknown_tool_is_an_error_of_the_protocol() -> None:
    """As the protocol wants it."""
    async with Client(McpToolServer(add).server) as client:
        with pytest.raises(MCPError, match="no tool 'nothing'"):
            await client.call_tool("nothing", {})


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
async def test_every_kind_of_result(result: Any, kinds: list[type]) -> None:
    """Text, images, sounds, other bytes and links keep their kind."""

    @tool
    def give() -> Any:
        """Give it."""
        return result

    async with Client(McpToolServer(give).server) as client:
        answer = await client.call_tool("give", {})

    assert [type(block) for block in answer.content] == kinds


async def test_numbers_as_progress() -> None:
    """A tool may tell a number, a text, or exactly what it means; other news stay here."""

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
from chatclient.tools import ToolContext, tool
from chatclient.tools.mcp import McpToolServer

@tool
def which(context: ToolContext) -> str:
    return f"call {context.tool_call_id}"

McpToolServer(which).serve_stdio()
"""


def test_a_call_goes_by_the_id_of_its_request() -> None:
    """Also by the first one of a client that counts from 0."""
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


async def test_tool_context_is_the_applications() -> None:
    """What a client says of itself is believed only as far as the application says."""

    def from_meta(meta: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"user": meta["user"]} if "user" in meta else {}

    context = {"tenant": "acme"}
    closed = McpToolServer(tenant, tool_context=context)
    opened = McpToolServer(tenant, tool_context=context, context_from_meta=from_meta)
    told = []
    for server in (closed, opened):
        async with Client(server.server) as client:
            meta: Any = {"user": "ann", "tenant": "other"}
            told.append((await client.call_tool("tenant", {}, meta=meta)).content[0])

    assert told == [TextContent(text="acme None"), TextContent(text="acme ann")]


async def test_no_client_approves_of_its_own_calls() -> None:
    """Not even where all that it says of itself is believed."""
    manager = ToolCallingManager(interceptors=[ToolApproval()])
    server = McpToolServer(tenant, manager=manager, context_from_meta=lambda meta: meta)
    async with Client(server.server) as client:
        ids = {str(number): True for number in range(10)}
        meta: Any = {"tool_approval_decisions": ids}
        answer = await client.call_tool("tenant", {}, meta=meta)

    assert answer.content == [TextContent(text="The call waits for an approval.")]


async def test_providers_are_asked_anew() -> None:
    """Tools may come and go; what a provider wants to know, it is told."""

    class Growing:
        def __init__(self) -> None:
            self.asked: list[ToolRequest] = []

        def tool_callbacks(self, request: ToolRequest) -> list[ToolCallback]:
            self.asked.append(request)
            return tool_callbacks(tenant) if len(self.asked) > 1 else []

    class Fixed:
        def tool_callbacks(self) -> list[ToolCallback]:
            return []

    growing = Growing()
    server = McpToolServer(add, growing, Fixed(), tool_context={"tenant": "acme"})
    names = [[c.definition.name for c in await server.callbacks()] for _ in range(2)]

    assert names == [["add"], ["add", "tenant"]]
    assert growing.asked[0].context == {"tenant": "acme"}
    assert [c.definition.name for c in growing.asked[0].callbacks] == ["add"]


async def test_sources_are_what_requests_take() -> None:
    """A tool may be there twice; a provider offers functions, or nothing, and takes tools away."""

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


async def test_equal_calls_have_keys_of_their_own() -> None:
    """Clients count their calls from 1 again; what they call twice is meant twice."""
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
    """As those of a client's turn, or of a loop of one's own."""
    with caplog.at_level("DEBUG", "chatclient"):
        async with Client(McpToolServer(add).server) as client:
            await client.call_tool("add", {"a": 1, "b": 2})

    assert [record for record in caplog.records if "add" in record.getMessage()]


async def test_what_stands_around_tools_stands_around_served_ones() -> None:
    """Interceptors and approvals of the manager hold for clients as well."""

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


# --- mistakes ---


def test_mistakes_show_when_the_server_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tools of one name, a name without a resolver, no SDK."""
    with pytest.raises(DuplicateToolError):
        McpToolServer(add, FunctionToolCallback(tenant, name="add"))
    with pytest.raises(ToolDefinitionError, match="is a name"):
        McpToolServer("add")
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(UsageError, match=r"chatclient\[mcp\]"):
        McpToolServer(add)


def test_what_a_tool_prints_is_no_part_of_the_protocol() -> None:
    """Over stdio every line is the server's; prints go to the standard error stream."""
    shop = [sys.executable, str(Path(__file__).parent / "mcp_shop.py"), "stdio"]
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
