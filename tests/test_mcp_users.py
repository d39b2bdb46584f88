"""One MCP server, many users: the recipe of docs/mcp.md, with a server that knows them apart."""

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
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from conftest import Ask
from mcp_setup import asked_for, mcp_threads
from waiting import settled

pytest.importorskip("mcp")

import httpx2

from chatclient import ChatClient
from chatclient.driving import drive
from chatclient.errors import McpServerError
from chatclient.testing import ScriptedModel, call
from chatclient.tools import ToolContext, tool, tool_callbacks
from chatclient.tools.mcp import McpServer, McpToolCallbackProvider, McpToolServer

PAGE = Path(__file__).parent.parent / "docs" / "mcp.md"
RECIPE = re.compile(
    r"^### A connection for each user\n.*?^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL
)

user: ContextVar[str] = ContextVar("user")

pytestmark = pytest.mark.usefixtures("small_heap")


@dataclass
class Crm:
    """A server that knows its users by their tokens, and who has used which connection."""

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
                asked = [await receive()]
                if self.refused in asked[0].get("body", b""):
                    await send({"type": "http.response.start", "status": 403, "headers": []})
                    await send({"type": "http.response.body", "body": b"not you"})
                    return

                async def again() -> Any:
                    return asked.pop() if asked else await receive()

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
    """Have the garbage collector look at what is new only: these tests ask it all the time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def recipe(crm: Crm) -> Iterator[dict[str, Any]]:
    """What the page defines, with the server of the test."""
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
    """Return how many users are, those aside whom only garbage remembers."""
    gc.collect()
    return len(mcp_threads())


def test_each_user_has_a_connection_of_their_own(
    ask: Ask, crm: Crm, recipe: dict[str, Any]
) -> None:
    """The server never hears of two users over one connection, and keeps each of theirs."""
    told = []
    for name in ("ada", "bob", "ada", "bob"):
        asked, _ = asked_for(ask, recipe["crm_of"](name), call("whoami"), "done")
        told.append(asked.executions[0].response.data)

    assert told == ["ada", "bob", "ada", "bob"]
    assert {len(tokens) for tokens in crm.tokens.values()} == {1}
    assert recipe["crm_of"].cache_info().misses == 2


def test_the_function_of_the_page_answers(recipe: dict[str, Any]) -> None:
    """It is what an endpoint would call."""
    assert recipe["answer"]("Who am I?", "ada") == "done"


def test_many_users_ask_at_the_same_time(crm: Crm, recipe: dict[str, Any]) -> None:
    """Nobody gets an answer that was meant for somebody else."""
    names = [str(n % 8) for n in range(32)]

    def asked(name: str) -> str:
        answer, _ = asked_for(Ask("call"), recipe["crm_of"](name), call("whoami"), "done")
        return answer.executions[0].response.data

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(asked, names)) == names
    assert {len(tokens) for tokens in crm.tokens.values()} == {1}


def test_who_falls_out_of_the_cache_is_disconnected_after_the_last_request(
    ask: Ask, crm: Crm, recipe: dict[str, Any]
) -> None:
    """A call that is under way is not cut off."""
    crm_of = lru_cache(maxsize=1)(recipe["crm_of"].__wrapped__)
    before = connected()
    told: list[str] = []

    def ask_ada() -> None:
        asked, _ = asked_for(ask, crm_of("ada"), call("wait"), "done")
        told.append(asked.executions[0].response.data)

    request = threading.Thread(target=ask_ada)
    request.start()
    assert settled(lambda: connected() > before)
    assert tool_callbacks(crm_of("bob"))  # ada's falls out
    crm.go_on.set()
    request.join()

    assert told == ["ada"]
    assert settled(lambda: connected() == before + 1)
    crm_of.cache_clear()
    assert settled(lambda: connected() == before)


@pytest.mark.parametrize(("timeout", "least"), [(60, 300), (1800, 1801), (None, None)])
def test_a_call_has_the_time_that_it_is_given(
    ask: Ask, crm: Crm, timeout: float | None, least: float | None
) -> None:
    """However long the server sends nothing: the HTTP client waits for longer."""
    waits: list[float | None] = []

    class Watch(httpx2.Auth):
        def auth_flow(self, request: Any) -> Any:
            waits.append(request.extensions["timeout"]["read"])
            yield request

    headers = {"Authorization": "Bearer ada"}
    server = McpServer.http("crm", crm.url, headers=headers, auth=Watch())
    with McpToolCallbackProvider(replace(server, timeout=timeout)) as provider:
        asked, _ = asked_for(ask, provider, call("whoami"), "done")

    assert asked.executions[0].response.data == "ada"
    if least is None:
        assert set(waits) == {None}
    else:
        assert all(wait is not None and wait >= least for wait in waits)


def test_a_refused_token_is_named(ask: Ask, recipe: dict[str, Any]) -> None:
    """Before the model is asked, the application is told; without the token."""
    with pytest.raises(McpServerError, match=r"'crm' refuses its user \(HTTP 401\)") as raised:
        asked_for(ask, recipe["crm_of"]("eve"), "never")

    assert "eve" not in str(raised.value)


def test_a_token_that_is_refused_later_is_named(crm: Crm, recipe: dict[str, Any]) -> None:
    """A call that was not let in is not said to be of unknown outcome."""
    callbacks = {c.definition.name: c for c in tool_callbacks(recipe["crm_of"]("ada"))}
    crm.users.clear()

    for _ in range(2):
        with pytest.raises(McpServerError, match=r"'crm' refuses its user \(HTTP 401\)"):
            drive(callbacks["whoami"].invoke("{}", ToolContext()))


@pytest.mark.parametrize("trust_annotations", [True, False])
def test_a_call_that_is_refused_cuts_nobody_off(
    ask: Ask, crm: Crm, recipe: dict[str, Any], trust_annotations: bool
) -> None:
    """What a user may not do says nothing of the connection, and is not asked for twice."""
    headers = {"Authorization": "Bearer ada"}
    server = McpServer.http("crm", crm.url, headers=headers, trust_annotations=trust_annotations)
    crm.refused = b'"name":"whoami"'
    with McpToolCallbackProvider(server) as provider:
        callbacks = {c.definition.name: c for c in tool_callbacks(provider)}
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(drive, callbacks["wait"].invoke("{}", ToolContext()))
            assert settled(lambda: crm.waiting)
            asked, _ = asked_for(ask, provider, call("whoami"), "done")
            crm.go_on.set()

        told = "the MCP server 'crm' refuses its user (HTTP 403); check headers and auth"
        assert asked.executions[0].response.data == told
        assert waiting.result().text == "ada"
