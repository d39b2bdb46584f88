"""Embedding models: OpenAI's API and servers that speak it, Ollama, Gemini."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from chatclient.checks import check_model_name
from chatclient.embedding import (
    NO_EMBEDDING_OPTIONS,
    EmbeddingModel,
    EmbeddingOptions,
    Vector,
)
from chatclient.errors import InvalidResponseError
from chatclient.json import dumps
from chatclient.providers import gemini, ollama
from chatclient.providers.addresses import first_url
from chatclient.providers.failures import refuse_error
from chatclient.providers.fields import MISSHAPEN, object_in
from chatclient.providers.http import HttpAnswer, HttpClient, OverHttp, RetryPolicy, Timeouts
from chatclient.providers.keys import Key, headers_with
from chatclient.providers.openai import BASE_URL, dialect_at, openai_key
from chatclient.runtime import Runtime


class OpenAIEmbeddingModel(OverHttp, EmbeddingModel):
    """An embedding model behind OpenAI's API, or any server that speaks it.

    Args:
        model: Which model.
        api_key: The key, or a function that returns the current one; default: the environment's
            `OPENAI_API_KEY`.
        base_url: Where the API is, with its version (and a query, where the server wants one in
            every URL); default: the environment's `OPENAI_BASE_URL`, else OpenAI's own.
        options: What is asked in every request.
        max_retries: How often a request that failed for a passing reason is repeated, or a
            `RetryPolicy`.
        timeout: Seconds to wait for an answer, or `Timeouts`.
        headers: More headers for every request.
        http_client: An httpx or httpx2 client to send requests with, which the caller closes; or
            `Connections`, for a proxy or HTTP/2.

    Raises:
        UsageError: There is no key, *base_url* is not an HTTP URL, or *model* is blank.
    """

    def __init__(
        self,
        model: str = "text-embedding-3-small",
        *,
        api_key: Key = None,
        base_url: str | None = None,
        options: EmbeddingOptions = NO_EMBEDDING_OPTIONS,
        max_retries: int | RetryPolicy = 2,
        timeout: float | Timeouts | None = 600.0,
        headers: Mapping[str, str] | None = None,
        http_client: Any = None,
    ) -> None:
        base_url = first_url(base_url, os.environ.get("OPENAI_BASE_URL"), BASE_URL)
        self._options = _naming(model, options)
        self._http = HttpClient(
            dialect_at(base_url).provider,
            base_url,
            headers_with(openai_key(api_key, base_url), headers),
            timeout,
            max_retries,
            http_client,
        )

    @property
    def options(self) -> EmbeddingOptions:
        """What is asked of the model in every request."""
        return self._options

    async def embed_batch(self, texts: Sequence[str], runtime: Runtime) -> list[Vector]:
        """Return the vectors of one batch of texts, in their order."""
        body = _body(self._options, "dimensions", {"input": texts})
        return await self._http.post(runtime, "/embeddings", dumps(body), self._decoded)

    def _decoded(self, answer: HttpAnswer) -> list[Vector]:
        data = _data(self._http.provider, answer)
        return _vectors(self._http.provider, _in_order(data.get("data")), "embedding")


class OllamaEmbeddingModel(OverHttp, EmbeddingModel):
    """An embedding model that an Ollama server runs.

    Args:
        model: Which model.
        api_key: A key, or a function that returns the current one, for servers that want one;
            default: the environment's `OLLAMA_API_KEY`.
        base_url: Where the server is; default: the environment's `OLLAMA_HOST`, else this
            machine.
        options: What is asked in every request.
        max_retries: How often a request that failed for a passing reason is repeated, or a
            `RetryPolicy`.
        timeout: Seconds to wait for an answer, or `Timeouts`.
        headers: More headers for every request.
        http_client: An httpx or httpx2 client to send requests with, which the caller closes; or
            `Connections`, for a proxy or HTTP/2.

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
        max_retries: int | RetryPolicy = 2,
        timeout: float | Timeouts | None = 600.0,
        headers: Mapping[str, str] | None = None,
        http_client: Any = None,
    ) -> None:
        self._options = _naming(model, options)
        self._http = HttpClient(
            "ollama",
            first_url(base_url, ollama.host_of_environment()),
            ollama.headers_for(api_key, headers),
            timeout,
            max_retries,
            http_client,
        )

    @property
    def options(self) -> EmbeddingOptions:
        """What is asked of the model in every request."""
        return self._options

    async def embed_batch(self, texts: Sequence[str], runtime: Runtime) -> list[Vector]:
        """Return the vectors of one batch of texts, in their order."""
        body = _body(self._options, "dimensions", {"input": texts})
        return await self._http.post(runtime, "/api/embed", dumps(body), self._decoded)

    def _decoded(self, answer: HttpAnswer) -> list[Vector]:
        data = _data(self._http.provider, answer)
        return _vectors(self._http.provider, data.get("embeddings"))


class GeminiEmbeddingModel(OverHttp, EmbeddingModel):
    """An embedding model behind the Gemini API, which takes 100 texts at once.

    What a text is for is said with `EmbeddingOptions(extra={"taskType": "RETRIEVAL_QUERY"})`.

    Args:
        model: Which model.
        api_key: The key, or a function that returns the current one; default: the environment's
            `GEMINI_API_KEY` or `GOOGLE_API_KEY`.
        base_url: Where the API is, with its version.
        options: What is asked in every request.
        max_retries: How often a request that failed for a passing reason is repeated, or a
            `RetryPolicy`.
        timeout: Seconds to wait for an answer, or `Timeouts`.
        headers: More headers for every request.
        http_client: An httpx or httpx2 client to send requests with, which the caller closes; or
            `Connections`, for a proxy or HTTP/2.

    Raises:
        UsageError: There is no key, *base_url* is not an HTTP URL, or *model* is blank.
    """

    def __init__(
        self,
        model: str = "gemini-embedding-001",
        *,
        api_key: Key = None,
        base_url: str | None = None,
        options: EmbeddingOptions = NO_EMBEDDING_OPTIONS,
        max_retries: int | RetryPolicy = 2,
        timeout: float | Timeouts | None = 600.0,
        headers: Mapping[str, str] | None = None,
        http_client: Any = None,
    ) -> None:
        base_url = first_url(base_url, gemini.BASE_URL)
        self._options = _naming(model, options)
        self._http = HttpClient(
            "gemini",
            base_url,
            gemini.headers_for(api_key, base_url, headers),
            timeout,
            max_retries,
            http_client,
        )

    @property
    def options(self) -> EmbeddingOptions:
        """What is asked of the model in every request."""
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
        return await self._http.post(runtime, batch, body, self._decoded)

    def _decoded(self, answer: HttpAnswer) -> list[Vector]:
        data = _data(self._http.provider, answer)
        return _vectors(self._http.provider, data.get("embeddings"), "values")


def _naming(model: str, options: EmbeddingOptions) -> EmbeddingOptions:
    """Return *options*, with *model* if they name none."""
    check_model_name(model)
    return replace(options, model=options.model or model)


def _body(options: EmbeddingOptions, dimensions: str, texts: dict[str, Any]) -> dict[str, Any]:
    size = {} if options.dimensions is None else {dimensions: options.dimensions}
    return {"model": options.model, **texts, **size, **options.extra}


def _data(provider: str, answer: HttpAnswer) -> Mapping[str, Any]:
    """Return the JSON of an answer, unless it tells of an error."""
    data = object_in(answer.body)
    if data is None:
        raise _unreadable(provider, answer.body.decode(errors="replace"))
    refuse_error(provider, data, answer.headers)
    return data


def _in_order(items: Any) -> Any:
    """Return *items* in the order of the texts; OpenAI promises none."""
    try:
        return sorted(items, key=lambda item: item["index"])
    except MISSHAPEN:
        return items


def _vectors(provider: str, items: Any, key: str | None = None) -> list[Vector]:
    try:
        vectors = [item if key is None else item[key] for item in items]
        return [[float(number) for number in vector] for vector in vectors]
    except MISSHAPEN as error:
        raise _unreadable(provider, items) from error


def _unreadable(provider: str, shown: Any) -> InvalidResponseError:
    msg = f"{provider} answered with something that holds no vectors: {str(shown)[:200]!r}"
    return InvalidResponseError(msg, provider=provider, body=shown)
