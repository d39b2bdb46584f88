"""Rerank models of Cohere, Jina, and servers with the same API."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, ClassVar, Unpack

from chatclient._internal.checks import check_model_name
from chatclient.chat.rerank import NO_RERANK_OPTIONS, RerankModel, RerankOptions
from chatclient.errors import InvalidResponseError
from chatclient.providers.http.auth import Key, key_source
from chatclient.providers.http.client import HttpAnswer
from chatclient.providers.http.errors import parse_json, raise_for_error
from chatclient.providers.http.model import HttpModel, HttpOptions, HttpSettings
from chatclient.providers.http.request import first_url
from chatclient.providers.wire.fields import MALFORMED
from chatclient.providers.wire.request_body import RequestHead
from chatclient.runtime.runtime import Runtime

_COHERE_URL = "https://api.cohere.com/v2"
_JINA_URL = "https://api.jina.ai/v1"


class _HttpRerankModel(HttpModel, RerankModel):
    """A rerank model of an API with `POST /rerank`; subclasses set the options."""

    _fields: ClassVar[Mapping[str, Any]] = MappingProxyType(
        {}
    )  # of each request, unless the options have others
    _options: RerankOptions

    @property
    def options(self) -> RerankOptions:
        """The default options."""
        return self._options

    async def score_batch(self, query: str, texts: Sequence[str], runtime: Runtime) -> list[float]:
        """Return the relevance of each of *texts*, in their order."""
        fields = {"model": self.name, "query": query, "documents": texts, **self._fields}
        body = RequestHead(fields, self._options.extra).body()
        decode = _decoder(self._http.provider, len(texts))
        return await self._http.post(runtime, "/rerank", body, decode)


class CohereRerankModel(_HttpRerankModel):
    """A rerank model of Cohere's API (version 2).

    Scores are between 0 and 1. Long texts are truncated by Cohere; set the number of tokens with
    `RerankOptions(extra={"max_tokens_per_doc": 2048})`.

    Args:
        model: The model's name.
        api_key: The key, or a function that returns the current one; default: the environment's
            `CO_API_KEY` or `COHERE_API_KEY`.
        base_url: URL of the API with its version; default: the environment's `CO_API_URL` with
            `/v2`, else Cohere's.
        options: Default options.
        **http: `max_retries`, `timeout` (default 60), `headers`, `http_client`, `limits`; see
            `HttpOptions`.

    Raises:
        UsageError: The key is missing, *base_url* is not an HTTP URL, or *model* is blank.
    """

    def __init__(
        self,
        model: str = "rerank-v3.5",
        *,
        api_key: Key = None,
        base_url: str | None = None,
        options: RerankOptions = NO_RERANK_OPTIONS,
        **http: Unpack[HttpOptions],
    ) -> None:
        self._options = _with_model(model, options)
        server = os.environ.get("CO_API_URL", "").rstrip("/")
        url = first_url(base_url, server and f"{server}/v2", _COHERE_URL)
        required_by = "Cohere" if url == _COHERE_URL else ""
        key = key_source(api_key, "CO_API_KEY", "COHERE_API_KEY", required_by=required_by)
        http.setdefault("timeout", 60.0)
        self._http = HttpSettings(**http).connect("cohere", url, key)


class JinaRerankModel(_HttpRerankModel):
    """A rerank model of Jina's API, or of a server with the same API.

    Such servers are vLLM, llama.cpp (with `--reranking`), Infinity and LiteLLM, which need no key,
    and Voyage.

    Args:
        model: The model's name.
        api_key: The key, or a function that returns the current one; default: the environment's
            `JINA_API_KEY`.
        base_url: URL of the API with its version; default: Jina's.
        options: Default options.
        **http: `max_retries`, `timeout` (default 60), `headers`, `http_client`, `limits`; see
            `HttpOptions`.

    Raises:
        UsageError: The key is missing, *base_url* is not an HTTP URL, or *model* is blank.
    """

    _fields = MappingProxyType({"return_documents": False})

    def __init__(
        self,
        model: str = "jina-reranker-v2-base-multilingual",
        *,
        api_key: Key = None,
        base_url: str | None = None,
        options: RerankOptions = NO_RERANK_OPTIONS,
        **http: Unpack[HttpOptions],
    ) -> None:
        self._options = _with_model(model, options)
        url = first_url(base_url, _JINA_URL)
        key = key_source(api_key, "JINA_API_KEY", required_by="Jina" if url == _JINA_URL else "")
        http.setdefault("timeout", 60.0)
        self._http = HttpSettings(**http).connect("jina", url, key)


def _with_model(model: str, options: RerankOptions) -> RerankOptions:
    """Return *options* with *model* as the default model."""
    check_model_name(model)
    return replace(options, model=options.model or model)


def _decoder(provider: str, count: int) -> Callable[[HttpAnswer], list[float]]:
    """Return a function that decodes the scores of *count* texts, in the order of the texts."""

    def decode(answer: HttpAnswer) -> list[float]:
        data = parse_json(provider, answer.body)
        raise_for_error(provider, data, answer.headers)
        try:
            scores = _scores(data)
        except MALFORMED as error:
            msg = f"{provider} answered with something that holds no scores"
            raise InvalidResponseError(msg, provider=provider, body=data) from error
        if scores.keys() != set(range(count)):
            msg = f"{provider} did not return one score for each of {count} texts"
            raise InvalidResponseError(msg, provider=provider, body=data)
        return [scores[index] for index in range(count)]

    return decode


def _scores(data: Any) -> dict[int, float]:
    """Return the scores by the index of their text; results are sorted by score.

    Raises:
        ValueError: A text has two scores.
    """
    # Voyage has `data`; text-embeddings-inference answers with a list, and calls a score `score`.
    results = data if isinstance(data, list) else data.get("results") or data["data"]
    scores = {
        int(result["index"]): float(result.get("relevance_score", result.get("score")))
        for result in results
    }
    if len(scores) < len(results):
        msg = "a text has two scores"
        raise ValueError(msg)
    return scores
