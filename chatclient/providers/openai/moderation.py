"""Moderation models of OpenAI's API and compatible servers."""

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from chatclient._internal.checks import check_model_name
from chatclient._internal.json import dumps
from chatclient.chat.moderation import Moderation, ModerationModel
from chatclient.errors import InvalidResponseError
from chatclient.providers.http.auth import Key
from chatclient.providers.http.client import HttpAnswer
from chatclient.providers.http.errors import parse_json, raise_for_error
from chatclient.providers.http.model import HttpModel, HttpOptions
from chatclient.providers.openai.chat import connect, openai_url
from chatclient.providers.wire.fields import MALFORMED
from chatclient.runtime.runtime import Runtime


class OpenAIModerationModel(HttpModel, ModerationModel):
    """A moderation model of OpenAI's API, or of a compatible server such as Mistral's.

    Args:
        model: The model's name.
        api_key: The key, or a function that returns the current one; default: the environment's
            `OPENAI_API_KEY`.
        base_url: URL of the API with its version; default: the environment's `OPENAI_BASE_URL`,
            else OpenAI's.
        **http: `max_retries`, `timeout` (default 60), `headers`, `http_client`, `limits`; see
            `HttpOptions`.

    Raises:
        UsageError: The key is missing, *base_url* is not an HTTP URL, or *model* is blank.
    """

    def __init__(
        self,
        model: str = "omni-moderation-latest",
        *,
        api_key: Key = None,
        base_url: str | None = None,
        **http: Unpack[HttpOptions],
    ) -> None:
        check_model_name(model)
        self._model = model
        http.setdefault("timeout", 60.0)
        self._http = connect(openai_url(base_url), api_key, http)

    @property
    def name(self) -> str:
        """The model's name."""
        return self._model

    async def moderate_all(self, texts: Sequence[str], runtime: Runtime) -> list[Moderation]:
        """Return the moderation of each text, in their order."""
        body = dumps({"model": self._model, "input": list(texts)})
        return await self._http.post(runtime, "/moderations", body, self._decode)

    def _decode(self, answer: HttpAnswer) -> list[Moderation]:
        data = parse_json(self._http.provider, answer.body)
        raise_for_error(self._http.provider, data, answer.headers)
        try:
            return [_moderation(result) for result in data["results"]]
        except MALFORMED as error:
            msg = f"{self._http.provider} answered with something that holds no moderation"
            raise InvalidResponseError(msg, provider=self._http.provider, body=data) from error


def _moderation(result: Mapping[str, Any]) -> Moderation:
    categories = tuple(name for name, applies in result["categories"].items() if applies)
    # Mistral sends only categories.
    flagged = bool(result.get("flagged", categories))
    scores = result.get("category_scores") or {}
    return Moderation(flagged, categories, {name: float(it) for name, it in scores.items()})
