"""Embedding models of OpenAI and compatible servers, Ollama, and Gemini."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Unpack

from chatclient._internal.checks import check_model_name
from chatclient._internal.json import dumps
from chatclient.chat.embedding import (
    NO_EMBEDDING_OPTIONS,
    EmbeddingModel,
    EmbeddingOptions,
    Vector,
)
from chatclient.errors import InvalidResponseError
from chatclient.providers.gemini import model as gemini
from chatclient.providers.http.auth import Key
from chatclient.providers.http.client import HttpAnswer
from chatclient.providers.http.errors import raise_for_error
from chatclient.providers.http.model import HttpModel, HttpOptions
from chatclient.providers.http.request import first_url
from chatclient.providers.ollama import model as ollama
from chatclient.providers.openai.chat import connect, openai_url
from chatclient.providers.wire.fields import MALFORMED, parse_object
from chatclient.providers.wire.request_body import merge_extra
from chatclient.runtime.runtime import Runtime


class OpenAIEmbeddingModel(HttpModel, EmbeddingModel):
    """An embedding model of OpenAI's API, or of a compatible server.

    Args:
        model: The model's name.
        api_key: The key, or a function that returns the current one; default: the environment's
            `OPENAI_API_KEY`.
        base_url: URL of the API with its version, and a query if the server needs one; default: the
            environment's `OPENAI_BASE_URL`, else OpenAI's.
        options: Default options.
        **http: `max_retries`, `timeout`, `headers`, `http_client`, `limits`; see `HttpOptions`.

    Raises:
        UsageError: The key is missing, *base_url* is not an HTTP URL, or *model* is blank.
    """

    def __init__(
        self,
        model: str = "text-embedding-3-small",
        *,
        api_key: Key = None,
        base_url: str | None = None,
        options: EmbeddingOptions = NO_EMBEDDING_OPTIONS,
        **http: Unpack[HttpOptions],
    ) -> None:
        self._options = _with_model(model, options)
        self._http = connect(openai_url(base_url), api_key, http)

    @property
    def options(self) -> EmbeddingOptions:
        """The default options."""
        return self._options

    async def embed_batch(self, texts: Sequence[str], runtime: Runtime) -> list[Vector]:
        """Return the vectors of one batch of texts, in their order."""
        body = _body(self._options, "dimensions", {"input": texts})
        decode = _decoder(self._http.provider, "data", "embedding")
        return await self._http.post(runtime, "/embeddings", dumps(body), decode)


class OllamaEmbeddingModel(HttpModel, EmbeddingModel):
    """An embedding model of an Ollama server.

    Args:
        model: The model's name.
        api_key: The key, if the server requires one, or a function that returns the current one;
            default: the environment's `OLLAMA_API_KEY`.
        base_url: URL of the server; default: the environment's `OLLAMA_HOST`, else port 11434 of
            this machine.
        options: Default options.
        **http: `max_retries`, `timeout`, `headers`, `http_client`, `limits`; see `HttpOptions`.

    Raises:
        UsageError: *base_url* is not an HTTP URL, or *model* is blank.
    """

    def __init__(
        self,
        model: str = "nomic-embed-text",
        *,
        api_key: Key = None,
        base_url: str | None = None,
        options: EmbeddingOptions = NO_EMBEDDING_OPTIONS,
        **http: Unpack[HttpOptions],
    ) -> None:
        self._options = _with_model(model, options)
        self._http = ollama.connect(base_url, api_key, http)

    @property
    def options(self) -> EmbeddingOptions:
        """The default options."""
        return self._options

    async def embed_batch(self, texts: Sequence[str], runtime: Runtime) -> list[Vector]:
        """Return the vectors of one batch of texts, in their order."""
        body = _body(self._options, "dimensions", {"input": texts})
        decode = _decoder(self._http.provider, "embeddings")
        return await self._http.post(runtime, "/api/embed", dumps(body), decode)


class GeminiEmbeddingModel(HttpModel, EmbeddingModel):
    """An embedding model of the Gemini API, with up to 100 texts per request.

    Set the purpose of the vectors with `EmbeddingOptions(extra={"taskType": "RETRIEVAL_QUERY"})`.

    Args:
        model: The model's name.
        api_key: The key, or a function that returns the current one; default: the environment's
            `GEMINI_API_KEY` or `GOOGLE_API_KEY`.
        base_url: URL of the API with its version.
        options: Default options.
        **http: `max_retries`, `timeout`, `headers`, `http_client`, `limits`; see `HttpOptions`.

    Raises:
        UsageError: The key is missing, *base_url* is not an HTTP URL, or *model* is blank.
    """

    def __init__(
        self,
        model: str = "gemini-embedding-001",
        *,
        api_key: Key = None,
        base_url: str | None = None,
        options: EmbeddingOptions = NO_EMBEDDING_OPTIONS,
        **http: Unpack[HttpOptions],
    ) -> None:
        self._options = _with_model(model, options)
        self._http = gemini.connect(first_url(base_url, gemini.BASE_URL), api_key, http)

    @property
    def options(self) -> EmbeddingOptions:
        """The default options."""
        return self._options

    async def embed_batch(self, texts: Sequence[str], runtime: Runtime) -> list[Vector]:
        """Return the vectors of one batch of texts, in their order."""
        path = gemini.path_of(self.name)
        named = replace(self._options, model=path.removeprefix("/"))
        requests = [
            _body(named, "outputDimensionality", {"content": {"parts": [{"text": text}]}})
            for text in texts
        ]
        batch, body = f"{path}:batchEmbedContents", dumps({"requests": requests})
        decode = _decoder(self._http.provider, "embeddings", "values")
        return await self._http.post(runtime, batch, body, decode)


def _with_model(model: str, options: EmbeddingOptions) -> EmbeddingOptions:
    """Return *options* with *model* as the default model."""
    check_model_name(model)
    return replace(options, model=options.model or model)


def _body(options: EmbeddingOptions, dimensions: str, texts: dict[str, Any]) -> dict[str, Any]:
    size = {} if options.dimensions is None else {dimensions: options.dimensions}
    return merge_extra({"model": options.model, **texts, **size}, options.extra)


def _decoder(provider: str, field: str, key: str = "") -> Callable[[HttpAnswer], list[Vector]]:
    """Return a function that decodes the vectors in *field*, or in *key* of its items."""

    def decode(answer: HttpAnswer) -> list[Vector]:
        data = parse_object(answer.body)
        if data is None:
            raise _unreadable(provider, answer.body.decode(errors="replace"))
        raise_for_error(provider, data, answer.headers)
        items: Any = data.get(field)
        try:
            vectors = [item[key] for item in _in_order(items)] if key else items
            return [[float(number) for number in vector] for vector in vectors]
        except MALFORMED as error:
            raise _unreadable(provider, items) from error

    return decode


def _in_order(items: Any) -> Any:
    """Return *items* in the order of the texts, which OpenAI does not guarantee.

    Raises:
        ValueError: Two of them are for one text.
    """
    try:
        ordered = sorted(items, key=lambda item: item["index"])
    except MALFORMED:
        return items
    if len({item["index"] for item in items}) not in (1, len(items)):  # some servers do not count
        msg = "a text has two vectors"
        raise ValueError(msg)
    return ordered


def _unreadable(provider: str, shown: Any) -> InvalidResponseError:
    msg = f"{provider} answered with something that holds no vectors: {str(shown)[:200]!r}"
    return InvalidResponseError(msg, provider=provider, body=shown)
