"""Gemini and Claude on Vertex AI, with tokens of a local token service."""

import asyncio
import json
import os
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from chatclient import ChatClient, tool
from chatclient.errors import (
    AuthenticationError,
    ConnectionFailedError,
    UnsupportedToolError,
    UsageError,
)
from chatclient.providers import (
    AnthropicChatOptions,
    CodeExecution,
    FileSearch,
    McpConnector,
    WebFetch,
    WebSearch,
    chat_model,
    vertex_model,
)
from chatclient.testing import Ask
from tests.support import messages_server
from tests.support.loopback import LoopbackServer, as_json
from tests.support.servers import Reply

pytest.importorskip("google.auth")
pytest.importorskip("cryptography")

Json = dict[str, Any]
CLAUDE = "claude-sonnet-4-5@20250929"
GEMINI = "gemini-2.5-flash"
EMAIL = "robot@my-project.iam.gserviceaccount.com"
PLACE = "/v1/projects/my-project/locations/global/publishers"


@tool
def weather(city: str) -> str:
    """Return a forecast."""
    return f"Sunny in {city}"


@pytest.fixture(scope="module")
def key() -> Any:
    """Return a private and its public key, both as PEM."""
    from cryptography.hazmat.primitives import serialization as forms
    from cryptography.hazmat.primitives.asymmetric import rsa

    private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem, none = forms.Encoding.PEM, forms.NoEncryption()
    public_form = forms.PublicFormat.SubjectPublicKeyInfo
    return (
        private.private_bytes(pem, forms.PrivateFormat.PKCS8, none).decode(),
        private.public_key().public_bytes(pem, public_form).decode(),
    )


class Google:
    """Vertex AI and Google's token service.

    Attributes:
        answers: The answers of the models; the last one is repeated.
        requests: Path, headers and body of the requests to models.
        tokens: The tokens that were issued.
        lifetime: Seconds until a token expires.
        refusal: What the token service answers instead of a token.
    """

    def __init__(self, public_key: str, *answers: Json) -> None:
        self._public_key = public_key
        self.answers = list(answers)
        self.requests: list[tuple[str, dict[str, str], Json]] = []
        self.tokens: list[str] = []
        self.lifetime = 3600
        self.refusal: Reply | None = None
        self._server = LoopbackServer(self._reply, raw=True)
        self.url = self._server.url
        self.close = self._server.close

    def _reply(self, path: str, headers: dict[str, str], body: bytes) -> Reply:
        if path == "/expired":
            return as_json({"error": "invalid_grant", "error_description": "log in again"}, 400)
        if path == "/token":
            return self.refusal or self._issue(parse_qs(body.decode()))
        self.requests.append((path, headers, json.loads(body)))
        if headers.get("authorization") not in [f"Bearer {token}" for token in self.tokens]:
            return as_json({"error": {"code": 401, "message": "no valid token"}}, 401)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if "stream" not in path:
            return as_json(answer)
        stream = messages_server.as_stream(answer) if "anthropic" in path else _sse(answer)
        return Reply(stream, content_type="text/event-stream")

    def _issue(self, form: dict[str, list[str]]) -> Reply:
        from google.auth import jwt

        audience = "https://oauth2.googleapis.com/token"
        claims = jwt.decode(form["assertion"][0], self._public_key, audience=audience)  # type: ignore[no-untyped-call]
        assert claims["iss"] == EMAIL
        assert claims["scope"] == "https://www.googleapis.com/auth/cloud-platform"
        time.sleep(0.05)  # so that other requests come meanwhile
        self.tokens.append(f"token-of-some-length-{len(self.tokens)}")
        return as_json({"access_token": self.tokens[-1], "expires_in": self.lifetime})


def _sse(answer: Json) -> bytes:
    return b"data: %b\r\n\r\n" % json.dumps(answer).encode()


Start = Callable[..., Google]


@pytest.fixture
def google(key: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Start servers, the last of which issues the tokens of the default credentials."""
    private, public = key
    started: list[Google] = []
    monkeypatch.delenv("GOOGLE_CLOUD_LOCATION", raising=False)
    monkeypatch.delenv("GOOGLE_CLOUD_PROJECT", raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")

    def start(*answers: Json) -> Google:
        started.append(Google(public, *answers))
        account = {
            "type": "service_account",
            "project_id": "my-project",
            "private_key_id": "k",
            "private_key": private,
            "client_email": EMAIL,
            "token_uri": f"{started[-1].url}/token",
        }
        path = tmp_path / "account.json"
        path.write_text(json.dumps(account))
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
        return started[-1]

    yield start
    for one in started:
        one.close()


def gemini_answer(text: str) -> Json:
    content = {"role": "model", "parts": [{"text": text}]}
    return {"candidates": [{"content": content, "finishReason": "STOP"}], "usageMetadata": {}}


def test_gemini(ask: Ask, google: Start) -> None:
    """Gemini is asked below the project and location, with a token."""
    server = google(gemini_answer("Hello"))
    with vertex_model(GEMINI, base_url=server.url) as model:
        assert ask(ChatClient.create(model).prompt("Hi")).text == "Hello"

    ((path, headers, body),) = server.requests
    method = "streamGenerateContent?alt=sse" if ask.streaming else "generateContent"
    assert path == f"{PLACE}/google/models/{GEMINI}:{method}"
    assert headers["authorization"] == f"Bearer {server.tokens[0]}"
    assert body["contents"][0]["parts"] == [{"text": "Hi"}]
    assert model.provider == "vertex"


def test_claude(ask: Ask, google: Start) -> None:
    """Claude is asked with the version in the body, and the model in the path; tools work."""
    call = messages_server.tool_use("c1", "weather", {"city": "Rome"})
    server = google(messages_server.message(call), messages_server.message("Sunny."))
    options = AnthropicChatOptions(betas="a-beta")
    with vertex_model(CLAUDE, base_url=server.url, options=options) as model:
        asked = ask(ChatClient.create(model).prompt("Rome?").tools(weather))

    assert asked.text == "Sunny."
    assert model.provider == "vertex"
    method = "streamRawPredict" if ask.streaming else "rawPredict"
    for path, headers, body in server.requests:
        assert path == f"{PLACE}/anthropic/models/{CLAUDE}:{method}"
        assert headers["authorization"] == f"Bearer {server.tokens[0]}"
        assert headers["anthropic-beta"] == "a-beta"
        assert {"anthropic-version", "x-api-key"}.isdisjoint(headers)
        assert body["anthropic_version"] == "vertex-2023-10-16"
        assert body.get("stream", False) is ask.streaming
        assert "model" not in body
    assert len(server.requests) == 2
    assert len(server.tokens) == 1


@pytest.mark.parametrize("blocking", [True, False])
def test_one_token_for_concurrent_requests(google: Start, *, blocking: bool) -> None:
    """Concurrent requests wait for one token."""
    server = google(gemini_answer("Hello"))
    model = vertex_model(GEMINI, base_url=server.url)

    async def ask_all() -> list[str]:
        async with model:
            answers = await asyncio.gather(*[model.acall("Hi") for _ in range(8)])
            return [each.text for each in answers]

    if blocking:
        with ThreadPoolExecutor(8) as threads, model:
            texts = [each.text for each in threads.map(model.call, ["Hi"] * 8)]
    else:
        texts = asyncio.run(ask_all())

    assert texts == ["Hello"] * 8
    assert len(server.tokens) == 1


def test_renewed_token(google: Start) -> None:
    """A token is renewed before it expires."""
    server = google(gemini_answer("Hello"))
    server.lifetime = 1
    with vertex_model(GEMINI, base_url=server.url) as model:
        model.call("Hi")
        time.sleep(0.6)
        model.call("Hi")

    sent = [headers["authorization"] for _, headers, _ in server.requests]
    assert sent == [f"Bearer {token}" for token in server.tokens]
    assert len(server.tokens) == 2


def test_given_credentials(google: Start) -> None:
    """Credentials of the application are used as they are, and renewed when they expire."""
    from google.oauth2.service_account import Credentials

    server = google(gemini_answer("Hello"))
    account = json.loads(Path(os.environ["GOOGLE_APPLICATION_CREDENTIALS"]).read_text())
    credentials: Any = Credentials.from_service_account_info(account)  # type: ignore[no-untyped-call]
    with vertex_model(GEMINI, credentials=credentials, base_url=server.url) as model:
        assert model.call("Hi").text == "Hello"
    assert "/projects/my-project/" in server.requests[0][0]

    fixed: Any = Credentials.from_service_account_info(account)  # type: ignore[no-untyped-call]
    fixed._scopes = ["https://www.googleapis.com/auth/cloud-platform"]
    fixed.token = server.tokens[0]
    fixed.expiry = (datetime.now(UTC) + timedelta(hours=1)).replace(tzinfo=None)
    with vertex_model(GEMINI, credentials=fixed, base_url=server.url) as model:
        model.call("Hi")
    assert len(server.tokens) == 1


def test_refused_token(ask: Ask, google: Start) -> None:
    """A refusal of the token service is an `AuthenticationError`, without secrets."""
    server = google(gemini_answer("Hello"))
    server.refusal = as_json({"error": "invalid_grant", "error_description": "no account"}, 400)
    with (
        vertex_model(GEMINI, base_url=server.url) as model,
        pytest.raises(AuthenticationError, match="no account") as raised,
    ):
        ask(ChatClient.create(model).prompt("Hi"))

    assert "assertion" not in str(raised.value)
    assert server.requests == []


@pytest.mark.parametrize(
    ("name", "tools"),
    [
        (GEMINI, [FileSearch("store"), McpConnector("m", "https://mcp.example")]),
        (CLAUDE, [WebFetch(), CodeExecution(), McpConnector("m", "https://mcp.example")]),
    ],
)
def test_tools_that_vertex_does_not_have(google: Start, name: str, tools: list[Any]) -> None:
    """They are refused, or their fallbacks are offered."""
    with vertex_model(name, base_url=google({}).url) as model:
        client = ChatClient.create(model)
        for each in tools:
            with pytest.raises(UnsupportedToolError):
                client.prompt("x").tools(each).call().content()


def test_tools_of_vertex_beside_functions(google: Start) -> None:
    """A field that only the Gemini API has is not sent."""
    server = google(gemini_answer("Hello"))
    with vertex_model("gemini-3-flash", base_url=server.url) as model:
        ChatClient.create(model).prompt("x").tools(weather, WebSearch()).call().content()

    [(_, _, body)] = server.requests
    assert [*body["tools"][0], *body["tools"][1]] == ["functionDeclarations", "googleSearch"]
    assert "includeServerSideToolInvocations" not in body.get("toolConfig", {})


@pytest.mark.parametrize("name", [GEMINI, CLAUDE])
def test_no_batches(google: Start, name: str) -> None:
    """Vertex AI takes batches from its storage only."""
    with (
        vertex_model(name, base_url=google({}).url) as model,
        pytest.raises(UsageError, match="no batch API"),
    ):
        ChatClient.create(model).batch(["x"], use_batch_api=True)


def test_new_login(google: Start) -> None:
    """Default credentials that were refused are read again, in case of another login."""
    server = google(gemini_answer("Hello"))
    path = Path(os.environ["GOOGLE_APPLICATION_CREDENTIALS"])
    login = path.read_text()
    path.write_text(login.replace("/token", "/expired"))
    with vertex_model(GEMINI, project="my-project", base_url=server.url) as model:
        with pytest.raises(AuthenticationError):
            model.call("Hi")
        path.write_text(login)

        assert model.call("Hi").text == "Hello"


def test_quota_project(ask: Ask, google: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The project that is billed is sent with the token."""
    monkeypatch.setenv("GOOGLE_CLOUD_QUOTA_PROJECT", "who-pays")
    server = google(gemini_answer("Hello"))
    with vertex_model(GEMINI, base_url=server.url) as model:
        ask(ChatClient.create(model).prompt("Hi"))

    [(_, headers, _)] = server.requests
    assert headers["x-goog-user-project"] == "who-pays"
    assert headers["authorization"] == f"Bearer {server.tokens[0]}"


def test_errors_show_no_tokens(google: Start) -> None:
    """What the token service quotes of a request is masked, also in the cause."""
    server = google(gemini_answer("Hello"))
    quoted = "stale: eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJtZSJ9.c2lnbmF0dXJl, 1//0gAbCdEfGhIj"
    server.refusal = as_json({"error": "invalid_grant", "error_description": quoted}, 400)
    with (
        vertex_model(GEMINI, base_url=server.url) as model,
        pytest.raises(AuthenticationError, match=r"stale: \*\*\*, \*\*\*") as raised,
    ):
        model.call("Hi")

    shown = "".join(traceback.format_exception(raised.value))
    assert "eyJ" not in shown
    assert "1//0g" not in shown


def test_silent_token_service(google: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token service that does not answer is not awaited for minutes."""
    monkeypatch.setattr("chatclient.providers.vertex.TOKEN_SECONDS", 0.2)
    google(gemini_answer("Hello"))
    path = Path(os.environ["GOOGLE_APPLICATION_CREDENTIALS"])
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/token"
        account = {**json.loads(path.read_text()), "token_uri": url}
        path.write_text(json.dumps(account))
        with (
            vertex_model(GEMINI, max_retries=0) as model,
            pytest.raises(ConnectionFailedError, match="token service"),
        ):
            model.call("Hi")


def test_token_service_is_away(google: Start) -> None:
    """A token service that cannot be reached is a `ConnectionFailedError`."""
    server = google(gemini_answer("Hello"))
    path = Path(os.environ["GOOGLE_APPLICATION_CREDENTIALS"])
    path.write_text(path.read_text().replace(server.url, "http://127.0.0.1:9"))
    with (
        vertex_model(GEMINI, base_url=server.url, max_retries=0) as model,
        pytest.raises(ConnectionFailedError, match="token service"),
    ):
        model.call("Hi")


@pytest.mark.parametrize(
    "location",
    [
        "attacker.example/",
        "attacker.example#",
        "me@attacker.example:443/",
        "a.b",
        "EU",
        "\u0435u",
        "x\n",
    ],
)
def test_location_is_a_name(location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot choose another server, which would get the token."""
    with pytest.raises(UsageError, match="is not the name of a location"):
        vertex_model(GEMINI, project="p", location=location)
    monkeypatch.setenv("GOOGLE_CLOUD_LOCATION", location)
    with pytest.raises(UsageError, match="is not the name of a location"):
        chat_model(f"vertex:{CLAUDE}", project="p")


@pytest.mark.parametrize(
    ("location", "server"),
    [
        (None, "https://aiplatform.googleapis.com"),
        ("europe-west1", "https://europe-west1-aiplatform.googleapis.com"),
        ("eu", "https://aiplatform.eu.rep.googleapis.com"),
    ],
)
def test_addresses(location: str | None, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The location chooses the server; project and location come from the environment, too."""
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "p")
    monkeypatch.delenv("GOOGLE_CLOUD_LOCATION", raising=False)
    place = f"{server}/v1/projects/p/locations/{location or 'global'}/publishers"
    assert chat_model(f"vertex:{GEMINI}", location=location).address == f"{place}/google"
    if location:
        monkeypatch.setenv("GOOGLE_CLOUD_LOCATION", location)
    assert chat_model(f"vertex:{CLAUDE}").address == f"{place}/anthropic"


def test_mistakes(google: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unknown models, and missing projects, credentials and packages raise before a request."""
    from google.auth.credentials import AnonymousCredentials

    with pytest.raises(UsageError, match="neither a Gemini nor a Claude"):
        vertex_model("llama-4")
    with pytest.raises(UsageError, match="names no model"):
        chat_model("vertex")
    anonymous: Any = AnonymousCredentials()  # type: ignore[no-untyped-call]
    with pytest.raises(UsageError, match="GOOGLE_CLOUD_PROJECT"):
        vertex_model(GEMINI, credentials=anonymous)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "nowhere.json"))
    with pytest.raises(UsageError, match="credentials and a project"):
        vertex_model(GEMINI)
    with (
        vertex_model(GEMINI, project="p") as model,
        pytest.raises(AuthenticationError, match="no access token"),
    ):
        model.call("Hi")
    monkeypatch.setitem(sys.modules, "google.auth.transport.requests", None)
    with pytest.raises(UsageError, match=r"chatclient\[vertex\]"):
        vertex_model(GEMINI, project="p")
