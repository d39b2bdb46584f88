"""Moderation models: OpenAI's API, and servers that speak it."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from chatclient.checks import check_model_name
from chatclient.errors import InvalidResponseError
from chatclient.json import dumps
from chatclient.moderation import Moderation, ModerationModel
from chatclient.providers.addresses import first_url
from chatclient.providers.failures import json_of, refuse_error
from chatclient.providers.fields import MISSHAPEN
from chatclient.providers.http import HttpAnswer, HttpClient, OverHttp, RetryPolicy, Timeouts
from chatclient.providers.keys import Key, headers_with
from chatclient.providers.openai import BASE_URL, dialect_at, openai_key
from chatclient.runtime import Runtime


class OpenAIModerationModel(OverHttp, ModerationModel):
    """A moderation model behind OpenAI's API, or any server that speaks it, such as Mistral's.

    Args:
        model: Which model.
        api_key: The key, or a function that returns the current one; default: the environment's
            `OPENAI_API_KEY`.
        base_url: Where the API is, with its version; default: the environment's
            `OPENAI_BASE_URL`, else OpenAI's own.
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
        model: str = "omni-moderation-latest",
        *,
        api_key: Key = None,
        base_url: str | None = None,
        max_retries: int | RetryPolicy = 2,
        timeout: float | Timeouts | None = 60.0,
        headers: Mapping[str, str] | None = None,
        http_client: Any = None,
    ) -> None:
        base_url = first_url(base_url, os.environ.get("OPENAI_BASE_URL"), BASE_URL)
        check_model_name(model)
        self._model = model
        self._http = HttpClient(
            dialect_at(base_url).provider,
            base_url,
            headers_with(openai_key(api_key, base_url), headers),
            timeout,
            max_retries,
            http_client,
        )

    @property
    def name(self) -> str:
        """What to call this model in errors and logs."""
        return self._model

    async def moderate_all(self, texts: Sequence[str], runtime: Runtime) -> list[Moderation]:
        """Return what is to be said of each text, in their order."""
        body = dumps({"model": self._model, "input": list(texts)})
        return await self._http.post(runtime, "/moderations", body, self._decoded)

    def _decoded(self, answer: HttpAnswer) -> list[Moderation]:
        data = json_of(self._http.provider, answer.body)
        refuse_error(self._http.provider, data, answer.headers)
        try:
            return [_moderation(result) for result in data["results"]]
        except MISSHAPEN as error:
            msg = f"{self._http.provider} answered with something that holds no moderation"
            raise InvalidResponseError(msg, provider=self._http.provider, body=data) from error


def _moderation(result: Mapping[str, Any]) -> Moderation:
    categories = tuple(name for name, applies in result["categories"].items() if applies)
    # Mistral says only for what a text is flagged.
    flagged = bool(result.get("flagged", categories))
    scores = result.get("category_scores") or {}
    return Moderation(flagged, categories, {name: float(it) for name, it in scores.items()})
