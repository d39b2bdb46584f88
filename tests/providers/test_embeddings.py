"""Embedding models: batches, options and errors, blocking and on a loop."""

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from chatclient.chat.embedding import EmbeddingModel, EmbeddingOptions, Vector
from chatclient.errors import (
    AuthenticationError,
    InvalidResponseError,
    OverloadedError,
    UsageError,
)
from chatclient.providers.embeddings import (
    GeminiEmbeddingModel,
    OllamaEmbeddingModel,
    OpenAIEmbeddingModel,
)
from chatclient.providers.http.retry import RetryPolicy
from chatclient.runtime.runtime import Runtime
from tests.support.loopback import LoopbackServer, as_json
from tests.support.servers import Reply

Json = dict[str, Any]

KINDS = (OpenAIEmbeddingModel, OllamaEmbeddingModel, GeminiEmbeddingModel)


def vector_of(text: str) -> Vector:
    """Return a vector that identifies a text."""
    return [float(len(text)), 0.5]


def answer_to(path: str, request: Json) -> Any:
    """Return the answer in the form of the requested service."""
    if path == "/embeddings":
        items = [{"index": i, "embedding": vector_of(t)} for i, t in enumerate(request["input"])]
        return {"data": items[::-1], "model": request["model"], "usage": {"prompt_tokens": 1}}
    if path == "/api/embed":
        return {"model": request["model"], "embeddings": [vector_of(t) for t in request["input"]]}
    assert path.endswith(":batchEmbedContents")
    texts = [each["content"]["parts"][0]["text"] for each in request["requests"]]
    return {"embeddings": [{"values": vector_of(text)} for text in texts]}


class Service:
    """An embedding server with the API of every service."""

    def __init__(self, *first: Reply) -> None:
        self._first = list(first)
        self._models: list[Any] = []
        self.requests: list[Json] = []
        self.paths: list[str] = []
        self.headers: list[dict[str, str]] = []
        self._server = LoopbackServer(self._reply)

    @property
    def url(self) -> str:
        return self._server.url

    def _reply(self, path: str, headers: dict[str, str], request: Json) -> Reply:
        self.paths.append(path)
        self.headers.append(headers)
        self.requests.append(request)
        return self._first.pop(0) if self._first else as_json(answer_to(path, request))

    def model(self, kind: Callable[..., Any], **settings: Any) -> Any:
        settings = {"base_url": self.url, "api_key": "secret", **settings}
        self._models.append(kind(**settings))
        return self._models[-1]

    def close(self) -> None:
        for model in self._models:
            model.close()
        self._server.close()


@pytest.fixture
def service() -> Iterator[Callable[..., Service]]:
    """Start embedding servers that are closed after the test."""
    started: list[Service] = []

    def start(*first: Reply) -> Service:
        started.append(Service(*first))
        return started[-1]

    yield start
    for one in started:
        one.close()


Start = Callable[..., Service]


def embedded(model: EmbeddingModel, texts: Sequence[str], *, blocking: bool) -> list[Vector]:
    if blocking:
        return model.embed(texts)

    async def embed() -> list[Vector]:
        async with model:
            return await model.aembed(texts)

    return asyncio.run(embed())


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_vectors_keep_the_order_of_texts(
    service: Start, kind: Callable[..., Any], *, blocking: bool
) -> None:
    """Each text has its vector, also over several requests."""
    server = service()
    texts = ["a", "bb", "ccc", "dddd", "ééééé"]
    model = server.model(kind, options=EmbeddingOptions(batch_size=2))

    assert embedded(model, texts, blocking=blocking) == [vector_of(text) for text in texts]
    assert len(server.requests) == 3


def test_request_form_of_each_service(service: Start) -> None:
    """Model, dimensions and extra fields are sent where each API expects them."""
    server = service()
    options = EmbeddingOptions(model="m", dimensions=2, extra={"x": 1})

    for kind in KINDS:
        assert server.model(kind, options=options).embed(["Hi"]) == [vector_of("Hi")]

    assert server.paths == ["/embeddings", "/api/embed", "/models/m:batchEmbedContents"]
    plain = {"model": "m", "input": ["Hi"], "dimensions": 2, "x": 1}
    content = {"content": {"parts": [{"text": "Hi"}]}, "outputDimensionality": 2}
    assert server.requests == [
        plain,
        plain,
        {"requests": [{"model": "models/m", **content, "x": 1}]},
    ]
    keys = [headers.get("authorization") for headers in server.headers]
    assert keys == ["Bearer secret", "Bearer secret", None]
    assert server.headers[2]["x-goog-api-key"] == "secret"


def test_batches_are_limited_by_characters(service: Start) -> None:
    """Batches have a maximum size; a longer text is sent alone."""
    server = service()
    texts = ["aaa", "bb", "c", "d" * 9, "ee", "ff"]
    model = server.model(OpenAIEmbeddingModel, options=EmbeddingOptions(batch_characters=5))

    assert model.embed(texts) == [vector_of(text) for text in texts]
    batches = [" ".join(request["input"]) for request in server.requests]
    assert batches == ["aaa bb", "c", "d" * 9, "ee ff"]


def test_default_batch_fits_the_token_limit(service: Start) -> None:
    """The default batch fits OpenAI's limit even with one token per character."""
    server = service()
    server.model(OpenAIEmbeddingModel).embed(["字" * 8_000] * 50)

    assert [len(request["input"]) for request in server.requests] == [37, 13]


def test_no_texts_send_no_request(service: Start) -> None:
    """Without texts there are no vectors and no request."""
    server = service()

    assert server.model(OpenAIEmbeddingModel).embed([]) == []
    assert server.requests == []


def test_single_string_is_rejected(service: Start) -> None:
    """A string instead of a list of strings is rejected."""
    with pytest.raises(TypeError, match="put a single one into a list"):
        service().model(OpenAIEmbeddingModel).embed("Hi")


@pytest.mark.parametrize("wrong", [None, ["Hi"], b"Hi"])
def test_non_string_text_is_rejected(service: Start, wrong: Any) -> None:
    """An item that is not a string raises before a request is sent."""
    server = service()
    with pytest.raises(TypeError, match="a text to embed must be a str, not "):
        server.model(OpenAIEmbeddingModel).embed(["Hi", wrong])

    assert server.requests == []


@pytest.mark.parametrize("status", [503, 200])
@pytest.mark.parametrize("kind", KINDS)
def test_embedding_retries(service: Start, kind: Callable[..., Any], status: int) -> None:
    """Transient failures are retried as with chat models."""
    busy = as_json({"error": {"message": "busy"}}, status, **{"retry-after": "0"})
    server = service(busy)

    model = server.model(kind, max_retries=RetryPolicy(2, 0.01))
    assert model.embed(["Hi"]) == [vector_of("Hi")]


@pytest.mark.parametrize("kind", KINDS)
def test_embedding_error_classes(service: Start, kind: Callable[..., Any]) -> None:
    """Errors have the classes of chat models, also with status 200."""
    refused = as_json({"error": {"message": "wrong key"}}, 401)
    hidden = as_json({"error": {"code": 503, "message": "later"}})
    server = service(refused, hidden)

    with pytest.raises(AuthenticationError, match="wrong key"):
        server.model(kind).embed(["Hi"])
    with pytest.raises(OverloadedError, match="later"):
        server.model(kind, max_retries=0).embed(["Hi"])


def test_embedding_error_names_its_server(service: Start) -> None:
    """The provider name is that of a chat model of the same server."""
    server = service(as_json({"error": {"message": "wrong key"}}, 401))

    with pytest.raises(AuthenticationError, match="openai-compatible answered 401") as caught:
        server.model(OpenAIEmbeddingModel).embed(["Hi"])
    assert caught.value.provider == "openai-compatible"


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"{}", b'{"data": [1], "embeddings": [1]}'])
@pytest.mark.parametrize("kind", KINDS)
def test_invalid_embedding_response(service: Start, kind: Callable[..., Any], body: bytes) -> None:
    """Any other body with status 200 is an invalid response."""
    server = service(Reply(body))

    with pytest.raises(InvalidResponseError):
        server.model(kind).embed(["Hi"])


def test_text_with_two_vectors(service: Start) -> None:
    """Vectors for one text twice raise; servers that number none of them are accepted."""
    texts = ["a", "b", "c"]

    def answer(*indexes: int) -> Reply:
        return as_json({"data": [{"index": i, "embedding": [float(i)]} for i in indexes]})

    with pytest.raises(InvalidResponseError, match="no vectors"):
        service(answer(0, 2, 2)).model(OpenAIEmbeddingModel).embed(texts)
    assert len(service(answer(0, 0, 0)).model(OpenAIEmbeddingModel).embed(texts)) == 3


@pytest.mark.parametrize("kind", KINDS)
def test_missing_vector(service: Start, kind: Callable[..., Any]) -> None:
    """A missing vector raises, for it would shift the others."""
    server = service(as_json({"data": [], "embeddings": []}))

    with pytest.raises(InvalidResponseError, match="0 vectors for 1 texts"):
        server.model(kind).embed(["Hi"])


def test_embedding_environment_variables(service: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenAI's variables apply to embeddings; OpenAI itself requires a key."""
    server = service()
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    monkeypatch.setenv("OPENAI_API_KEY", "env")

    server.model(OpenAIEmbeddingModel, base_url=None, api_key=None).embed(["Hi"])
    server.model(OpenAIEmbeddingModel, base_url=None, api_key=lambda: "new").embed(["Hi"])
    server.model(OpenAIEmbeddingModel, base_url=None, api_key="").embed(["Hi"])

    keys = [headers.get("authorization") for headers in server.headers]
    assert keys == ["Bearer env", "Bearer new", None]
    monkeypatch.delenv("OPENAI_BASE_URL")
    monkeypatch.delenv("OPENAI_API_KEY")
    with pytest.raises(UsageError, match="OPENAI_API_KEY"):
        OpenAIEmbeddingModel()


@pytest.mark.parametrize("kind", KINDS)
def test_model_name_is_required(kind: Callable[..., Any]) -> None:
    """A blank or missing model variable raises."""
    with pytest.raises(UsageError, match="must not be blank"):
        kind("", api_key="k")
    with pytest.raises(UsageError, match="must be a str, not None"):
        kind(None, api_key="k")


@pytest.mark.parametrize("name", ["dimensions", "batch_size", "batch_characters"])
def test_invalid_embedding_options(name: str) -> None:
    """Invalid options raise before a request is sent."""
    for wrong in (0, "9"):
        options: dict[str, Any] = {name: wrong}
        with pytest.raises(UsageError, match=name):
            EmbeddingOptions(**options)
    with pytest.raises(UsageError, match="must not be blank"):
        EmbeddingOptions(model=" ")


def test_default_embedding_options() -> None:
    """Each model class has a default model and no default dimensions."""
    models = [kind(api_key="k") for kind in KINDS]

    names = ["text-embedding-3-small", "nomic-embed-text", "gemini-embedding-001"]
    assert [model.name for model in models] == names
    assert [model.dimensions for model in models] == [None, None, None]


def test_embedding_repr() -> None:
    """The repr shows the URL but not the key."""
    model = OllamaEmbeddingModel("m", api_key="secret", base_url="http://ada:secret@gpu:11434")

    assert repr(model) == "OllamaEmbeddingModel('m', base_url='http://gpu:11434')"
    assert "secret" not in repr(vars(model))


class Lengths(EmbeddingModel):
    """A custom embedding model."""

    async def embed_batch(self, texts: Sequence[str], runtime: Runtime) -> list[Vector]:
        await runtime.sleep(0)
        return [vector_of(text) for text in texts]


@pytest.mark.parametrize("blocking", [True, False])
def test_custom_embedding_model(*, blocking: bool) -> None:
    """A subclass with one coroutine supports blocking and async calls."""
    with Lengths() as model:
        texts = json.loads('["a", "bb"]')

        assert embedded(model, texts, blocking=blocking) == [vector_of(text) for text in texts]
        assert (model.name, model.dimensions) == ("Lengths", None)
