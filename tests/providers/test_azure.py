"""OpenAI's models on Azure: addresses, keys, and tokens of a local identity service."""

import asyncio
import sys
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import unquote

import pytest

from chatclient import ChatClient
from chatclient.errors import AuthenticationError, ConnectionFailedError, UsageError
from chatclient.providers import azure_model, chat_model
from chatclient.testing import Ask
from tests.support.loopback import LoopbackServer, as_json
from tests.support.servers import Reply, as_stream, completion

pytest.importorskip("azure.identity")

V1 = "/openai/v1/chat/completions"


class Azure:
    """A deployment, and the identity service of an Azure app.

    Attributes:
        requests: Path and headers of the requests to models.
        tokens: The tokens that were issued.
        lifetime: Seconds until a token expires.
        refusal: What the identity service answers instead of a token.
    """

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.tokens: list[str] = []
        self.lifetime = 3600
        self.refusal: Reply | None = None
        self._server = LoopbackServer(self._reply, raw=True)
        self.url = self._server.url
        self.close = self._server.close

    def _reply(self, path: str, headers: dict[str, str], body: bytes) -> Reply:
        if path.startswith("/identity"):
            return self.refusal or self._issue(path)
        self.requests.append((path, headers))
        answer = completion("Hello")
        if b'"stream":true' in body:
            return Reply(as_stream(answer), content_type="text/event-stream")
        return as_json(answer)

    def _issue(self, path: str) -> Reply:
        assert "resource=https://cognitiveservices.azure.com" in unquote(path)
        time.sleep(0.05)  # so that other requests come meanwhile
        self.tokens.append(f"token-of-some-length-{len(self.tokens)}")
        expires = str(int(time.time()) + self.lifetime)
        return as_json({"access_token": self.tokens[-1], "expires_on": expires, "resource": "r"})


@pytest.fixture
def azure(monkeypatch: pytest.MonkeyPatch) -> Iterator[Azure]:
    """Start the server, and name it in the environment as Azure does in its apps."""
    server = Azure()
    for name in ("AZURE_OPENAI_API_KEY", "AZURE_CLIENT_ID", "AZURE_TENANT_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", server.url)
    monkeypatch.setenv("IDENTITY_ENDPOINT", f"{server.url}/identity")
    monkeypatch.setenv("IDENTITY_HEADER", "h")
    yield server
    server.close()


def test_default_credential(ask: Ask, azure: Azure) -> None:
    """Without a key, a token of the default credential is sent to the v1 API."""
    with chat_model("azure:my-gpt") as model:
        assert ask(ChatClient.create(model).prompt("Hi")).text == "Hello"

    ((path, headers),) = azure.requests
    assert path == V1
    assert headers["authorization"] == f"Bearer {azure.tokens[0]}"
    assert model.provider == "azure"


@pytest.mark.parametrize("blocking", [True, False])
def test_one_token_for_concurrent_requests(azure: Azure, *, blocking: bool) -> None:
    """Concurrent requests wait for one token."""
    model = azure_model("my-gpt")

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
    assert len(azure.tokens) == 1


class Credential:
    """A credential of the application, whose tokens are valid for *lifetime* seconds."""

    def __init__(self, lifetime: float = 3600, error: Exception | None = None) -> None:
        self.scopes: list[str] = []
        self._lifetime = lifetime
        self._error = error

    def get_token(self, *scopes: str, **_: Any) -> Any:
        from azure.core.credentials import AccessToken

        if self._error is not None:
            raise self._error
        self.scopes += scopes
        return AccessToken(f"token-{len(self.scopes)}", int(time.time() + self._lifetime))


@pytest.mark.parametrize(
    ("endpoint", "audience"),
    [
        (None, "cognitiveservices.azure.com"),
        ("https://acme.openai.azure.us", "cognitiveservices.azure.us"),
        ("https://acme.openai.azure.cn/", "cognitiveservices.azure.cn"),
        ("https://acme.azure.us.example.org", "cognitiveservices.azure.com"),
        ("https://acme.services.ai.azure.com", "cognitiveservices.azure.com"),
        ("https://acme.services.ai.azure.com/api/projects/mine", "ai.azure.com"),
        (
            "https://services.ai.azure.com.example.org/api/projects/mine",
            "cognitiveservices.azure.com",
        ),
    ],
)
def test_given_credential(azure: Azure, endpoint: str | None, audience: str) -> None:
    """A given credential is used in place of a key, with the scope of its cloud or project."""
    credential = Credential()
    with azure_model("my-gpt", endpoint=endpoint, credential=credential) as model:
        token = asyncio.run(_authorization(model))

    assert token == "Bearer token-1"
    assert credential.scopes == [f"https://{audience}/.default"]


async def _authorization(model: Any) -> str:
    from chatclient.runtime.runtime import ON_LOOP

    headers = await model._http.headers(ON_LOOP)
    return str(headers["authorization"])


def test_renewed_token(azure: Azure) -> None:
    """A token is renewed when it is about to expire."""
    with azure_model("my-gpt", credential=Credential(0)) as model:
        model.call("Hi")
        model.call("Hi")

    assert [headers["authorization"] for _, headers in azure.requests] == [
        "Bearer token-1",
        "Bearer token-2",
    ]


def test_dated_version(ask: Ask, azure: Azure, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a date as version, the deployment is in the path, and a key in its own header."""
    settings: dict[str, Any] = {"api_version": "2024-10-21", "endpoint": f"{azure.url}/openai/v1"}
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", "a-key-of-some-length")
    with azure_model("my gpt", **settings) as model:
        assert ask(ChatClient.create(model).prompt("Hi")).text == "Hello"
    with azure_model("my gpt", credential=Credential(), **settings) as model:
        ask(ChatClient.create(model).prompt("Hi"))

    (path, with_key), (_, with_token) = azure.requests
    assert path == "/openai/deployments/my%20gpt/chat/completions?api-version=2024-10-21"
    assert with_key["api-key"] == "a-key-of-some-length"
    assert "authorization" not in with_key
    assert with_token["authorization"] == "Bearer token-1"
    assert "api-key" not in with_token
    assert azure.tokens == []


def test_keys_and_other_urls(azure: Azure) -> None:
    """The v1 API takes keys as bearer tokens; another URL is used unchanged."""
    url = f"{azure.url}/gateway?team=a"
    with azure_model("my-gpt", api_key=lambda: "key-1", api_version="preview") as model:
        model.call("Hi")
    with azure_model("my-gpt", api_key="key-2", base_url=url, api_version="preview") as model:
        model.call("Hi")

    assert [(path, headers["authorization"]) for path, headers in azure.requests] == [
        (f"{V1}?api-version=preview", "Bearer key-1"),
        ("/gateway/chat/completions?team=a&api-version=preview", "Bearer key-2"),
    ]


def test_refused_token(ask: Ask, azure: Azure) -> None:
    """A refusal of the identity service is an `AuthenticationError`."""
    azure.refusal = as_json({"message": "no identity"}, 400)
    with (
        azure_model("my-gpt") as model,
        pytest.raises(AuthenticationError, match="no token of Entra"),
    ):
        ask(ChatClient.create(model).prompt("Hi"))
    assert azure.requests == []


def test_errors_show_no_tokens(azure: Azure) -> None:
    """What the identity service quotes of a request is masked."""
    from azure.core.exceptions import ClientAuthenticationError

    quoted = "assertion eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJtZSJ9.c2ln is expired"
    credential = Credential(error=ClientAuthenticationError(quoted))
    with (
        azure_model("my-gpt", credential=credential) as model,
        pytest.raises(AuthenticationError, match=r"assertion \*\*\* is expired") as raised,
    ):
        model.call("Hi")
    assert "eyJ" not in "".join(traceback.format_exception(raised.value))
    assert azure.requests == []


def test_identity_service_is_away(azure: Azure) -> None:
    """A service that cannot be reached is a `ConnectionFailedError`."""
    from azure.core.exceptions import ServiceRequestError

    credential = Credential(error=ServiceRequestError("no route"))
    with (
        azure_model("my-gpt", credential=credential, max_retries=0) as model,
        pytest.raises(ConnectionFailedError, match="no route"),
    ):
        model.call("Hi")


def test_mistakes(azure: Azure, monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing endpoints and packages, and contradictions raise before a request."""
    from azure.identity.aio import DefaultAzureCredential

    with pytest.raises(UsageError, match="not both"):
        azure_model("m", api_key="k", credential=Credential())
    wrong: Any = DefaultAzureCredential()
    with pytest.raises(UsageError, match=r"azure\.identity\.aio"):
        azure_model("m", credential=wrong)
    with pytest.raises(UsageError, match="names no model"):
        chat_model("azure")
    monkeypatch.setitem(sys.modules, "azure.identity", None)
    with pytest.raises(UsageError, match=r"AZURE_OPENAI_API_KEY.*chatclient\[azure\]"):
        azure_model("m")
    monkeypatch.delenv("AZURE_OPENAI_ENDPOINT")
    with pytest.raises(UsageError, match="AZURE_OPENAI_ENDPOINT"):
        azure_model("m", api_key="k")
