"""Tracebacks with local variables, such as those of structlog and rich, contain no secrets."""

import asyncio
import inspect
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from structlog.tracebacks import extract

from chatclient import ChatClient, ToolCall, ToolContext
from chatclient.errors import McpServerError, ProviderError, ToolExecutionError
from chatclient.mcp import McpServer, McpToolCallbackProvider, tool_context_meta
from chatclient.providers import (
    AnthropicChatModel,
    BedrockChatModel,
    ExpiringCredentials,
    GeminiChatModel,
    OpenAIChatModel,
)
from chatclient.providers.http.auth import SecretHeaders
from chatclient.testing import Ask, ScriptedModel
from chatclient.tools import FunctionToolCallback, ToolCallingManager, ToolFailurePolicy
from tests.support.loopback import LoopbackServer, as_json
from tests.support.mcp_setup import peer
from tests.support.servers import Reply

SECRETS = (
    *("sk-very-secret-1", "header-secret-2", "context-secret-3", "password-secret-4"),
    "query-secret-5",
)
KEY, HEADER, CONTEXT, PASSWORD, QUERY = SECRETS

Make = Callable[..., Any]

pytestmark = pytest.mark.skipif(
    "use_rich" not in inspect.signature(extract).parameters,
    reason="this structlog cannot show local variables without rich",
)


def leaks(error: BaseException, *, use_rich: bool) -> list[str]:
    """Return the local variables that show a secret, in the frames of all libraries."""
    found = []
    trace = extract(
        type(error),
        error,
        error.__traceback__,
        show_locals=True,
        locals_max_length=1000,
        locals_max_string=10_000,
        use_rich=use_rich,
    )
    for stack in trace.stacks:
        for frame in stack.frames:
            if "/tests/" in frame.filename:
                continue
            found += [
                f"{frame.filename}:{frame.lineno} {name}"
                for name, text in (frame.locals or {}).items()
                if any(secret in text for secret in SECRETS)
            ]
    return found


def ask_for_error(ask: Ask, request: Any) -> BaseException:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - any error will do
        ask(request)
    return caught.value


@pytest.mark.parametrize("use_rich", [True, False])
@pytest.mark.parametrize("make", [OpenAIChatModel, AnthropicChatModel, GeminiChatModel])
@pytest.mark.parametrize("status", [401, 500, None])
def test_failed_request(ask: Ask, make: Make, status: int | None, use_rich: bool) -> None:
    """The server returns an error, or cannot be reached."""
    if use_rich:
        pytest.importorskip("rich")
    with LoopbackServer(lambda *_: as_json({"error": {"message": "no"}}, status or 500)) as server:
        url = server.url if status else "http://127.0.0.1:9"
        url = url.replace("//", f"//user:{PASSWORD}@")
        model = make("m", api_key=KEY, base_url=url, headers={"x-own": HEADER}, max_retries=0)
        request = ChatClient.create(model).prompt("x").tool_context(tenant=CONTEXT)
        error = ask_for_error(ask, request)

    assert leaks(error, use_rich=use_rich) == []


BROKEN = Reply(b"data: {}\n\n", 200, {}, "text/event-stream", truncate=True)


@pytest.mark.parametrize("library", ["httpx", "httpx2", "aiohttp"])
@pytest.mark.parametrize("failure", ["refused", "slow", "401", "broken"])
def test_frames_of_http_libraries(
    ask: Ask, library: str, failure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The frames of httpx, aiohttp, anyio and asyncio are shown without their variables."""
    pytest.importorskip("httpx_aiohttp" if library == "aiohttp" else library)
    monkeypatch.setenv("CHATCLIENT_HTTP", library)

    def reply(*_: object) -> Reply:
        if failure == "slow":
            time.sleep(0.3)
        return as_json({"error": {"message": "no"}}, 401) if failure == "401" else BROKEN

    with LoopbackServer(reply) as server:
        url = "http://127.0.0.1:9" if failure == "refused" else server.url
        url = url.replace("//", f"//user:{PASSWORD}@") + f"/v1?token={QUERY}"
        timeout = 0.1 if failure == "slow" else 60
        headers = {"x-own": HEADER}
        settings: Any = {"headers": headers, "max_retries": 0, "timeout": timeout}
        model = OpenAIChatModel("m", api_key=KEY, base_url=url, **settings)
        error = ask_for_error(ask, ChatClient.create(model).prompt("x").tool_context(t=CONTEXT))

    assert isinstance(error, ProviderError)
    assert leaks(error, use_rich=False) == []


async def test_cancelled_request() -> None:
    """`asyncio.timeout` shows the frames that it interrupts."""

    def slow(*_: object) -> Reply:
        time.sleep(0.3)
        return BROKEN

    with LoopbackServer(slow) as server:
        url = f"{server.url}/v1?token={QUERY}"
        request = ChatClient.create(OpenAIChatModel("m", api_key=KEY, base_url=url)).prompt("x")
        with pytest.raises(TimeoutError) as caught:
            async with asyncio.timeout(0.1):
                await request.acall()

    assert leaks(caught.value, use_rich=False) == []


@pytest.mark.parametrize("key", [lambda: KEY, lambda: f"{KEY}\nx", f"{KEY}\nx"])
def test_key_function_and_invalid_key(ask: Ask, key: Any) -> None:
    with LoopbackServer(lambda *_: as_json({"error": {"message": "no"}}, 400)) as server:
        model = OpenAIChatModel("m", api_key=key, base_url=server.url, max_retries=0)
        error = ask_for_error(ask, ChatClient.create(model).prompt("x"))

    assert leaks(error, use_rich=False) == []


@pytest.mark.parametrize("fails", [True, False])
def test_expiring_credentials(ask: Ask, *, fails: bool) -> None:
    """The token has expired, and cannot be renewed or is refused."""
    tokens = [(KEY, 0.0)]

    def fetch() -> tuple[str, float]:
        return tokens.pop() if fails else tokens[0]

    with LoopbackServer(lambda *_: as_json({"error": {"message": "no"}}, 400)) as server:
        key = ExpiringCredentials(fetch)
        model = OpenAIChatModel("m", api_key=key, base_url=server.url, max_retries=0)
        request = ChatClient.create(model).prompt("x")
        ask_for_error(ask, request)
        error = ask_for_error(ask, request)

    assert isinstance(error, IndexError) is fails
    assert leaks(error, use_rich=False) == []


@pytest.mark.parametrize("status", [403, None])
def test_signed_request(ask: Ask, status: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request is signed with the credentials of AWS."""
    pytest.importorskip("botocore")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEY)
    monkeypatch.setenv("AWS_SESSION_TOKEN", HEADER)
    with LoopbackServer(lambda *_: as_json({"message": "no"}, status or 500)) as server:
        url = server.url if status else "http://127.0.0.1:9"
        model = BedrockChatModel("m", region="eu-west-1", base_url=url, max_retries=0)
        error = ask_for_error(ask, ChatClient.create(model).prompt("x"))

    assert leaks(error, use_rich=False) == []


def test_failed_tool(ask: Ask) -> None:
    """The tool context may contain secrets, too."""

    def fail(context: ToolContext) -> str:
        raise RuntimeError("failed")

    policy = ToolFailurePolicy(always_raise=True)
    manager = ToolCallingManager(exception_processor=policy)
    builder = ChatClient.builder(ScriptedModel(ToolCall("1", "fail", "{}")))
    builder = builder.default_tools(FunctionToolCallback(fail)).tool_calling_manager(manager)
    error = ask_for_error(ask, builder.build().prompt("x").tool_context(tenant=CONTEXT))

    assert leaks(error, use_rich=False) == []


def test_mcp_server(ask: Ask) -> None:
    """A server that cannot be reached, with secrets in its URL, headers and tool context."""
    url = f"http://user:{PASSWORD}@127.0.0.1:9/mcp?token={QUERY}"
    with McpToolCallbackProvider(McpServer.http("s", url, headers={"x": KEY})) as provider:
        request = ChatClient.create(ScriptedModel("x")).prompt("x").tools(provider)
        error = ask_for_error(ask, request.tool_context(tenant=CONTEXT))

    assert isinstance(error, McpServerError)
    assert leaks(error, use_rich=False) == []


def test_failed_mcp_tool(ask: Ask) -> None:
    """The values of the tool context that a server gets are not shown, either."""
    manager = ToolCallingManager(exception_processor=ToolFailurePolicy(always_raise=True))
    model = ScriptedModel(ToolCall("1", "fail", "{}"))
    client = ChatClient.builder(model).tool_calling_manager(manager).build()
    with McpToolCallbackProvider(peer(), meta=tool_context_meta("tenant")) as provider:
        request = client.prompt("x").tools(provider).tool_context(tenant=CONTEXT)
        error = ask_for_error(ask, request)

    assert isinstance(error, ToolExecutionError)
    assert leaks(error, use_rich=False) == []


def test_secret_headers() -> None:
    headers: Mapping[str, str] = SecretHeaders({"authorization": KEY, "x-own": "a"})

    assert repr(headers) == "SecretHeaders(authorization, x-own)"
    assert (headers["x-own"], [*headers], len(headers)) == ("a", ["authorization", "x-own"], 2)
    assert headers == {"authorization": KEY, "x-own": "a"}
    assert headers != {"authorization": KEY}
    other: object = KEY
    assert headers != other
