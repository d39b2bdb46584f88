"""The endpoints of `WebChat`, over HTTP."""

import asyncio
import json
import sys
import threading
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route

from chatclient import ChatClient, ChatClientRequestSpec, ChatResponse, Prompt, ToolContext, tool
from chatclient.errors import UsageError
from chatclient.memory import MessageWindowChatMemory
from chatclient.runtime.runtime import Runtime
from chatclient.testing import ScriptedModel, call
from chatclient.web import InMemoryPendingTurns, UiRequest, WebChat, web_app
from tests.support.gated_model import GatedModel
from tests.support.waiting import settled
from tests.support.web_app import endpoints, travel_client
from tests.support.web_server import serving

BOOKING = call("book_train", {"number": "IC 1"}, id="call_9")
AI_SDK: dict[str, Any] = {
    "id": "c1",
    "messages": [{"id": "1", "role": "user", "parts": [{"type": "text", "text": "Hi"}]}],
}
AG_UI = {
    "threadId": "c1",
    "runId": "r1",
    "messages": [{"id": "1", "role": "user", "content": "Hi"}],
}
BODIES = {"/ai-sdk": AI_SDK, "/ag-ui": AG_UI}
both = pytest.mark.parametrize("path", BODIES)


def post(address: str, path: str, body: Any = None, **headers: str) -> httpx.Response:
    content = json.dumps(BODIES[path] if body is None else body)
    headers = {"content-type": "application/json", **headers}
    return httpx.post(address + path, content=content, headers=headers, timeout=30)


def test_fastapi() -> None:
    """The endpoints are endpoints of FastAPI as well."""
    chat = WebChat(travel_client(ScriptedModel("Hello.", "Hello.")))
    app = FastAPI()
    app.post("/ai-sdk")(chat.ai_sdk)
    app.post("/ag-ui")(chat.ag_ui)
    with serving(app) as address:
        sdk, ag_ui = post(address, "/ai-sdk"), post(address, "/ag-ui")

    assert sdk.headers["x-vercel-ai-ui-message-stream"] == "v1"
    assert sdk.headers["cache-control"] == "no-cache, no-transform"
    assert sdk.text.endswith("data: [DONE]\n\n")
    assert '"type":"RUN_FINISHED"' in ag_ui.text


@both
@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ("no JSON", 422, "Invalid JSON"),
        ({}, 422, "Field required"),
        ({"id": "c1", "threadId": "c1", "runId": "r", "messages": []}, 422, ""),
        ("x" * 2000, 413, "The request is too large."),
    ],
)
def test_invalid_requests(path: str, body: Any, status: int, text: str) -> None:
    """They are refused, with a reason that does not repeat their content."""
    chat = WebChat(travel_client(ScriptedModel()), max_body_bytes=1000)
    with serving(endpoints(chat)) as address:
        content = body if isinstance(body, str) else json.dumps(body)
        headers = {"content-type": "application/json"}
        response = httpx.post(address + path, content=content, headers=headers)

    assert response.status_code == status
    assert text in response.json()["detail"]


TEXT = {"id": "1", "role": "user", "parts": [{"type": "text", "text": "Hi"}], "content": "Hi"}
TOOLS = [{"name": f"look{at}", "description": 'Says "{[,"\\.'} for at in range(3)]


@both
@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"messages": [TEXT] * 4}, "more than 3 messages"),
        ({"messages": [TEXT], "tools": TOOLS}, "more than 2 tools"),
        ({"messages": [TEXT], "state": [{}] * 100_000}, "more than 100,000 values"),
        ({"messages": [TEXT] * 3, "tools": TOOLS[:2], "state": '"{[,\\"' * 100_000}, ""),
    ],
)
def test_limits_of_a_request(path: str, body: Any, text: str) -> None:
    """A frontend cannot send more messages, tools or values than an application expects."""
    model = ScriptedModel("Hello.")
    chat = WebChat(ChatClient.create(model), max_messages=3, max_tools=2)
    with serving(endpoints(chat)) as address:
        response = post(address, path, {"id": "c1", "threadId": "c1", "runId": "r1", **body})

    assert response.status_code == (413 if text else 200)
    assert len(model.prompts) == (0 if text else 1)
    assert text in response.text


def _ai_sdk(**part: Any) -> Any:
    return {"id": "c1", "messages": [{"id": "1", "role": "user", "parts": [part]}]}


def _ag_ui(kind: str, value: str) -> Any:
    part = {"type": "image", "source": {"type": kind, "value": value, "mimeType": "image/png"}}
    return {**AG_UI, "messages": [{"id": "1", "role": "user", "content": [part]}]}


@pytest.mark.parametrize(
    ("path", "body", "text"),
    [
        ("/ai-sdk", _ai_sdk(type="text", text="  "), "the message of the user is blank"),
        ("/ai-sdk", _ai_sdk(type="file", url="file:///etc/passwd"), "a data: URL or a web address"),
        ("/ai-sdk", _ai_sdk(type="file", url="data:image/png;base64,?"), "not valid Base64"),
        ("/ag-ui", _ag_ui("url", "file:///etc/passwd"), "a data: URL or a web address"),
        ("/ag-ui", _ag_ui("file", "file-7"), "a data: URL or a web address"),
        ("/ag-ui", _ag_ui("data", "?"), "not Base64"),
    ],
)
def test_invalid_messages(path: str, body: Any, text: str) -> None:
    """Blank messages and files of the server are refused."""
    with serving(endpoints(WebChat(travel_client(ScriptedModel())))) as address:
        response = post(address, path, body)

    assert response.status_code == 422
    assert text in response.json()["detail"]


def test_text_of_a_data_url() -> None:
    """A data URL without Base64 is text, with its own media type."""
    model = ScriptedModel("Hello.")
    with serving(endpoints(WebChat(travel_client(model)))) as address:
        post(
            address, "/ai-sdk", _ai_sdk(type="file", url="data:text/plain,a%20b", filename="a.txt")
        )

    media: Any = model.prompts[0].messages[0]
    (file,) = media.media
    assert (file.mime_type, file.data, file.name) == ("text/plain", b"a b", "a.txt")


@both
def test_form_of_another_site(path: str) -> None:
    """What another site can send without asking first is refused."""
    with serving(endpoints(WebChat(travel_client(ScriptedModel())))) as address:
        response = httpx.post(address + path, content=json.dumps(BODIES[path]))

    assert response.status_code == 415


@both
def test_disconnected_browser(path: str) -> None:
    """The model's stream is closed, and what was shown is stored."""
    model, memory = GatedModel(), MessageWindowChatMemory()
    client = travel_client(model, memory=memory)
    with serving(endpoints(WebChat(client))) as address:
        with httpx.stream("POST", address + path, json=BODIES[path], timeout=30) as response:
            assert any("There are" in line for line in response.iter_lines())
        assert model.closed.wait(20)
    assert settled(lambda: [m.text for m in memory.get("c1")] == ["Hi", "There are "])


async def over_asgi(app: Any, body: Any, after_body: Any, send: Any) -> None:
    """Send the request as a server does that does not tell of disconnections by itself."""
    messages = iter([{"type": "http.request", "body": json.dumps(body).encode()}])

    async def receive() -> Any:
        return next(messages, None) or await after_body()

    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "method": "POST",
        "path": "/ai-sdk",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
    }
    await asyncio.wait_for(app(scope, receive, send), 20)


async def test_disconnection_by_asgi() -> None:
    """A model that is thinking is cancelled on servers of ASGI 2.4 as well."""
    model, half_sent = GatedModel(), asyncio.Event()

    async def disconnect() -> Any:
        await half_sent.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if b"There are" in message.get("body", b""):
            half_sent.set()

    await over_asgi(endpoints(WebChat(ChatClient.create(model))), AI_SDK, disconnect, send)

    assert model.closed.is_set()


async def send_nothing(_: Any) -> None:
    """Take a message as a server does whose client is gone."""
    await asyncio.sleep(0)


async def test_disconnected_before_the_turn() -> None:
    """What the user wrote is stored, though nobody waits for the answer any more."""
    gone, memory = asyncio.Event(), MessageWindowChatMemory()

    async def prepare(request: Any, _: Any) -> Any:
        gone.set()
        return request

    async def disconnect() -> Any:
        await gone.wait()
        return {"type": "http.disconnect"}

    client = travel_client(ScriptedModel(), memory=memory)
    app = endpoints(WebChat(client, prepare=prepare))
    await over_asgi(app, AI_SDK, disconnect, send_nothing)

    assert [message.text for message in memory.get("c1")][:1] == ["Hi"]


async def test_disconnected_after_a_decision() -> None:
    """A turn that was taken from the store is not lost when nobody reads how it goes on."""
    memory, store = MessageWindowChatMemory(), InMemoryPendingTurns()
    client = travel_client(ScriptedModel(BOOKING), memory=memory)
    app = endpoints(WebChat(client, store))
    await over_asgi(app, AI_SDK, asyncio.Event().wait, send_nothing)
    assert store.get("c1") is not None
    approved: dict[str, Any] = {
        "type": "tool-book_train",
        "toolCallId": "call_9",
        "state": "approval-responded",
    }
    approved |= {"input": {"number": "IC 1"}, "approval": {"id": "call_9", "approved": True}}
    answer = {"id": "2", "role": "assistant", "parts": [approved]}

    async def disconnect() -> Any:
        return {"type": "http.disconnect"}

    body = {**AI_SDK, "messages": [*AI_SDK["messages"], answer]}
    await over_asgi(app, body, disconnect, send_nothing)

    assert store.get("c1") is None
    assert [message.text for message in memory.get("c1")][:1] == ["Hi"]


async def test_closed_connection() -> None:
    """A server that raises when the connection is closed ends the request as well."""
    model = GatedModel()

    async def send(message: Any) -> None:
        if b"There are" in message.get("body", b""):
            raise OSError("closed")

    app = endpoints(WebChat(ChatClient.create(model), keep_alive_seconds=0.01))
    await over_asgi(app, AI_SDK, asyncio.Event().wait, send)

    assert model.closed.is_set()


def test_keep_alive() -> None:
    """While the model is thinking, comments keep the connection open."""
    model = GatedModel()
    chat = WebChat(ChatClient.create(model), keep_alive_seconds=0.05)
    with (
        serving(endpoints(chat)) as address,
        httpx.stream("POST", f"{address}/ai-sdk", json=AI_SDK, timeout=30) as response,
    ):
        lines = response.iter_lines()
        assert sum(line == ": wait" for line, _ in zip(lines, range(30), strict=False)) > 2
        model.gate.set()
        assert "data: [DONE]" in list(lines)


def test_conversation_and_context_of_the_login() -> None:
    """The application derives the conversation from the login, and gives tools their context."""
    memory = MessageWindowChatMemory()

    @tool(effect="read")
    def whoami(context: ToolContext) -> str:
        """Tell who the user is."""
        return str(context["user"])

    def login(request: Request) -> str:
        return request.headers["x-user"]

    async def prepare(spec: ChatClientRequestSpec, ui: UiRequest) -> ChatClientRequestSpec:
        return spec.tool_context(user=login(ui.http))

    model = ScriptedModel(call("whoami"), "I see.", call("whoami"), "I see.")
    client = travel_client(model, whoami, memory=memory)
    chat = WebChat(
        client, conversation=lambda request, own: f"{login(request)}:{own}", prepare=prepare
    )
    with serving(endpoints(chat)) as address:
        for path, name in (("/ai-sdk", "ada"), ("/ag-ui", "bob")):
            assert f'{name}"' in post(address, path, **{"x-user": name}).text

    assert len(memory.get("ada:c1")) == len(memory.get("bob:c1")) == 4
    assert memory.get("c1") == []


def test_fields_of_the_application() -> None:
    """The application sees what the frontend sends besides messages."""
    seen: list[UiRequest] = []

    def prepare(spec: ChatClientRequestSpec, ui: UiRequest) -> ChatClientRequestSpec:
        seen.append(ui)
        return spec

    context = [{"description": "page", "value": "/trains"}]
    chat = WebChat(travel_client(ScriptedModel("Hello.", "Hello.")), prepare=prepare)
    with serving(endpoints(chat)) as address:
        post(address, "/ai-sdk", {**AI_SDK, "trigger": "submit-message", "plan": "free"})
        props = {"forwardedProps": {"plan": "free"}, "context": context, "state": {"a": 1}}
        post(address, "/ag-ui", {**AG_UI, **props})

    sdk, ag_ui = seen
    assert sdk.properties == {"trigger": "submit-message", "plan": "free"}
    assert (sdk.conversation_id, sdk.state, sdk.context) == ("c1", None, ())
    assert ag_ui.properties == {"plan": "free"}
    assert (ag_ui.state, ag_ui.context) == ({"a": 1}, (("page", "/trains"),))


def test_trail_is_sent_on_request() -> None:
    """It is sent with `trail=True` only, because it has internals."""
    for trail in (False, True):
        chat = WebChat(travel_client(ScriptedModel("Hello.", "Hello.")), trail=trail)
        with serving(endpoints(chat)) as address:
            assert ('"data-trail"' in post(address, "/ai-sdk").text) is trail
            assert ('"name":"trail"' in post(address, "/ag-ui").text) is trail


def test_error_text_of_the_application() -> None:
    """The application may write the texts of errors itself."""
    chat = WebChat(
        travel_client(ScriptedModel(LookupError("a secret"))),
        error_text=lambda error: f"Ask us about {type(error).__name__}.",
    )
    with serving(endpoints(chat)) as address:
        assert '"Ask us about LookupError."' in post(address, "/ai-sdk").text


class TwoAtOnce(ScriptedModel):
    """Answers when two requests have arrived."""

    def __init__(self, *answers: Any) -> None:
        super().__init__(*answers)
        self.barrier = threading.Barrier(2)

    async def generate_stream(
        self, prompt: Prompt, runtime: Runtime
    ) -> AsyncGenerator[ChatResponse | str, None]:
        await runtime.invoke(self.barrier.wait, 20)
        async for piece in super().generate_stream(prompt, runtime):
            yield piece


def test_concurrent_turns() -> None:
    """If two turns of a conversation have to wait, the later one gets an error."""
    model = TwoAtOnce([BOOKING], [BOOKING])
    with (
        serving(endpoints(WebChat(travel_client(model)))) as address,
        ThreadPoolExecutor(2) as pool,
    ):
        texts = list(pool.map(lambda _: post(address, "/ai-sdk").text, range(2)))

    assert sum('"type":"tool-approval-request"' in text for text in texts) == 1
    assert sum("Decide about the tool calls that wait" in text for text in texts) == 1


def test_decision_is_taken_once() -> None:
    """Of two decisions at the same time, one continues the turn."""
    model = TwoAtOnce([BOOKING], "Done.")
    model.barrier = threading.Barrier(1)
    approval = {"id": "call_9", "approved": True}
    part = {"type": "tool-book_train", "toolCallId": "call_9", "state": "approval-responded"}
    message = {"id": "2", "role": "assistant", "parts": [{**part, "approval": approval}]}
    body = {"id": "c1", "messages": [*AI_SDK["messages"], message]}
    together = threading.Barrier(2)

    class Together:
        """A `prepare` that lets both requests get as far as the store."""

        async def __call__(self, spec: Any, ui: UiRequest) -> Any:
            if ui.http.headers.get("x-wait"):
                await asyncio.to_thread(together.wait, 20)
            return spec

    chat = WebChat(travel_client(model), prepare=Together())
    with serving(endpoints(chat)) as address, ThreadPoolExecutor(2) as pool:
        post(address, "/ai-sdk")
        decide = lambda _: post(address, "/ai-sdk", body, **{"x-wait": "yes"})  # noqa: E731
        statuses = sorted(response.status_code for response in pool.map(decide, range(2)))

    assert statuses == [200, 409]
    assert model.unused == 0


def test_turn_of_another_conversation() -> None:
    """A turn that the store returns for a wrong conversation is not resumed."""
    from chatclient.web import InMemoryPendingTurns

    class Careless(InMemoryPendingTurns):
        def put(self, conversation_id: str, turn: Any) -> bool:
            return super().put("c2", turn)

    chat = WebChat(travel_client(ScriptedModel([BOOKING])), Careless())
    approval = {"id": "call_9", "approved": True}
    part = {"type": "tool-book_train", "toolCallId": "call_9", "approval": approval}
    body = {"id": "c2", "messages": [{"id": "2", "role": "assistant", "parts": [part]}]}
    with serving(endpoints(chat)) as address:
        post(address, "/ai-sdk")
        response = post(address, "/ai-sdk", body)

    assert '"errorText":"Something went wrong. Please try again."' in response.text
    assert "tool-output" not in response.text


def test_invalid_tool_of_the_frontend(caplog: pytest.LogCaptureFixture) -> None:
    """A tool that no provider accepts is refused; the log has the reason."""
    body = {**AG_UI, "tools": [{"name": "a b", "description": "Mine."}]}
    with serving(endpoints(WebChat(travel_client(ScriptedModel())))) as address:
        response = post(address, "/ag-ui", body)

    assert response.json() == {"detail": "The request is invalid."}
    assert "'a b'" in caplog.text


def test_page_headers_and_hosts() -> None:
    """The page runs its own script only, and other host names are refused."""
    chat = WebChat(travel_client(ScriptedModel()))
    with serving(web_app(chat, allowed_hosts=["127.0.0.1"])) as address:
        page = httpx.get(address)
        other = httpx.get(address, headers={"host": "evil.example"})

    policy = page.headers["content-security-policy"]
    assert "default-src 'none'; script-src 'sha256-" in policy
    assert "unsafe" not in policy
    assert other.status_code == 400


def test_five_lines_of_starlette() -> None:
    """The endpoints are mounted anywhere."""
    chat = WebChat(travel_client(ScriptedModel("Hello.")))
    app = Starlette(routes=[Route("/ai-sdk", chat.ai_sdk, methods=["POST"])])
    with serving(app) as address:
        assert "Hell" in post(address, "/ai-sdk").text
        assert httpx.get(f"{address}/ai-sdk").status_code == 405


async def test_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra, the endpoint of AG-UI names it."""
    monkeypatch.setitem(sys.modules, "ag_ui.core", None)
    monkeypatch.delitem(sys.modules, "chatclient.web.ag_ui", raising=False)
    request = Request({"type": "http", "method": "POST", "headers": []})

    with pytest.raises(UsageError, match=r"pip install 'chatclient\[ag-ui\]'"):
        await WebChat(travel_client(ScriptedModel())).ag_ui(request)
