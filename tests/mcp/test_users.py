"""One MCP server with many users: the recipe of docs/mcp.md, with tokens per user."""

import gc
import re
import socket
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import pytest
import uvicorn

from chatclient.testing import Ask
from tests.support.mcp_setup import ask_with_tools, mcp_threads
from tests.support.paths import ROOT
from tests.support.waiting import settled

pytest.importorskip("mcp")

import httpx2

from chatclient import ChatClient, ToolContext, tool
from chatclient.errors import McpServerError
from chatclient.mcp import McpServer, McpToolCallbackProvider, McpToolServer
from chatclient.runtime.blocking import drive
from chatclient.testing import ScriptedModel, call
from chatclient.tools import tool_callbacks

PAGE = ROOT / "docs" / "mcp.md"
RECIPE = re.compile(
    r"^### A connection for each user\n.*?^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL
)

user: ContextVar[str] = ContextVar("user")

pytestmark = pytest.mark.usefixtures("small_heap")


@dataclass
class Crm:
    """A server that identifies users by token and records the use of connections."""

    users: set[str]
    refused: bytes = b"nothing"
    waiting: bool = False
    url: str = ""
    tokens: dict[Any, set[str]] = field(default_factory=lambda: defaultdict(set))
    go_on: threading.Event = field(default_factory=threading.Event)

    def app(self) -> Callable[..., Any]:
        @tool(effect="read")
        def whoami() -> str:
            """Tell who asks."""
            return user.get()

        @tool
        def wait() -> str:
            """Take a while."""
            self.waiting = True
            self.go_on.wait(10)
            return user.get()

        served = McpToolServer(whoami, wait).http_app()

        async def checked(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http":
                token = dict(scope["headers"]).get(b"authorization", b"").decode()
                self.tokens[tuple(scope["client"])].add(token)
                name = token.removeprefix("Bearer ")
                if name not in self.users:
                    await send({"type": "http.response.start", "status": 401, "headers": []})
                    await send({"type": "http.response.body", "body": b"who are you?"})
                    return
                user.set(name)
                messages = [await receive()]
                if self.refused in messages[0].get("body", b""):
                    await send({"type": "http.response.start", "status": 403, "headers": []})
                    await send({"type": "http.response.body", "body": b"not you"})
                    return

                async def again() -> Any:
                    return messages.pop() if messages else await receive()

                await served(scope, again, send)
                return
            await served(scope, receive, send)

        return checked


@pytest.fixture
def crm() -> Iterator[Crm]:
    crm = Crm({"ada", "bob", *map(str, range(8))})
    listener = socket.create_server(("127.0.0.1", 0))
    crm.url = f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
    config = uvicorn.Config(crm.app(), log_level="error", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    yield crm
    server.should_exit = True
    thread.join(30)
    listener.close()
    assert not thread.is_alive()


@pytest.fixture
def small_heap() -> Iterator[None]:
    """Limit garbage collection to recent objects, as these tests run it often."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def recipe(crm: Crm) -> Iterator[dict[str, Any]]:
    """Return the definitions of the page, with the test server."""
    found = RECIPE.search(PAGE.read_text(encoding="utf-8"))
    assert found is not None
    names: dict[str, Any] = {
        "McpServer": McpServer,
        "McpToolCallbackProvider": McpToolCallbackProvider,
        "client": ChatClient.builder(ScriptedModel(call("whoami"), "done")).build(),
    }
    exec(found[1], names)
    names["CRM"] = crm.url
    before = connected()
    yield names
    names["crm_of"].cache_clear()
    names.clear()
    assert settled(lambda: connected() <= before)


def connected() -> int:
    """Return the number of connected users, after garbage collection."""
    gc.collect()
    return len(mcp_threads())


@pytest.mark.feature("mcp-headers-depend-asks")
def test_connection_per_user(ask: Ask, crm: Crm, recipe: dict[str, Any]) -> None:
    """A connection is used by one user only, and reused."""
    answers = []
    for name in ("ada", "bob", "ada", "bob"):
        result, _ = ask_with_tools(ask, recipe["crm_of"](name), call("whoami"), "done")
        answers.append(result.executions[0].response.data)

    assert answers == ["ada", "bob", "ada", "bob"]
    assert {len(tokens) for tokens in crm.tokens.values()} == {1}
    assert recipe["crm_of"].cache_info().misses == 2


def test_function_of_the_page(recipe: dict[str, Any]) -> None:
    """The documented function answers a request."""
    assert recipe["answer"]("Who am I?", "ada") == "done"


def test_concurrent_users(crm: Crm, recipe: dict[str, Any]) -> None:
    """Concurrent users get their own answers."""
    names = [str(n % 8) for n in range(32)]

    def ask_as(name: str) -> str:
        answer, _ = ask_with_tools(Ask("call"), recipe["crm_of"](name), call("whoami"), "done")
        return answer.executions[0].response.data

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask_as, names)) == names
    assert {len(tokens) for tokens in crm.tokens.values()} == {1}


@pytest.mark.feature("mcp-headers-depend-asks")
def test_evicted_user_is_disconnected_later(ask: Ask, crm: Crm, recipe: dict[str, Any]) -> None:
    """A running call of an evicted user completes."""
    crm_of = lru_cache(maxsize=1)(recipe["crm_of"].__wrapped__)
    before = connected()
    answers: list[str] = []

    def ask_ada() -> None:
        result, _ = ask_with_tools(ask, crm_of("ada"), call("wait"), "done")
        answers.append(result.executions[0].response.data)

    request = threading.Thread(target=ask_ada)
    request.start()
    assert settled(lambda: connected() > before)
    assert tool_callbacks(crm_of("bob"))  # evicts ada's
    crm.go_on.set()
    request.join()

    assert answers == ["ada"]
    assert settled(lambda: connected() == before + 1)
    crm_of.cache_clear()
    assert settled(lambda: connected() == before)


@pytest.mark.parametrize(("timeout", "least"), [(60, 300), (1800, 1801), (None, None)])
def test_call_timeout_exceeds_http_timeout(
    ask: Ask, crm: Crm, timeout: float | None, least: float | None
) -> None:
    """The HTTP client waits longer than the call's time-out."""
    waits: list[float | None] = []

    class Watch(httpx2.Auth):
        def auth_flow(self, request: Any) -> Any:
            waits.append(request.extensions["timeout"]["read"])
            yield request

    headers = {"Authorization": "Bearer ada"}
    server = McpServer.http("crm", crm.url, headers=headers, auth=Watch())
    with McpToolCallbackProvider(replace(server, timeout=timeout)) as provider:
        result, _ = ask_with_tools(ask, provider, call("whoami"), "done")

    assert result.executions[0].response.data == "ada"
    if least is None:
        assert set(waits) == {None}
    else:
        assert all(wait is not None and wait >= least for wait in waits)


def test_rejected_token(ask: Ask, recipe: dict[str, Any]) -> None:
    """The error is raised before a model call, without the token."""
    with pytest.raises(McpServerError, match=r"'crm' refuses its user \(HTTP 401\)") as raised:
        ask_with_tools(ask, recipe["crm_of"]("eve"), "never")

    assert "eve" not in str(raised.value)


def test_token_rejected_later(crm: Crm, recipe: dict[str, Any]) -> None:
    """A rejected call is not reported as of unknown outcome."""
    callbacks = {c.definition.name: c for c in tool_callbacks(recipe["crm_of"]("ada"))}
    crm.users.clear()

    for _ in range(2):
        with pytest.raises(McpServerError, match=r"'crm' refuses its user \(HTTP 401\)"):
            drive(callbacks["whoami"].invoke("{}", ToolContext()))


@pytest.mark.parametrize("trust_annotations", [True, False])
def test_forbidden_call(
    ask: Ask, crm: Crm, recipe: dict[str, Any], trust_annotations: bool
) -> None:
    """A forbidden call is not repeated, and the connection stays open."""
    headers = {"Authorization": "Bearer ada"}
    server = McpServer.http("crm", crm.url, headers=headers, trust_annotations=trust_annotations)
    crm.refused = b'"name":"whoami"'
    with McpToolCallbackProvider(server) as provider:
        callbacks = {c.definition.name: c for c in tool_callbacks(provider)}
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(drive, callbacks["wait"].invoke("{}", ToolContext()))
            assert settled(lambda: crm.waiting)
            result, _ = ask_with_tools(ask, provider, call("whoami"), "done")
            crm.go_on.set()

        message = "the MCP server 'crm' refuses its user (HTTP 403); check headers and auth"
        assert result.executions[0].response.data == message
        assert waiting.result().text == "ada"
