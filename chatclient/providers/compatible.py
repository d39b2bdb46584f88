"""Models of known servers of the Chat Completions API, by name."""

from typing import Unpack

from chatclient._internal.checks import check_type
from chatclient.chat.options import ChatOptions
from chatclient.errors import UsageError
from chatclient.providers.http.auth import Key
from chatclient.providers.http.model import HttpOptions
from chatclient.providers.http.request import first_url
from chatclient.providers.openai.chat import OpenAIChatModel
from chatclient.providers.openai.dialect import PRESETS


def compatible_model(
    preset: str,
    model: str,
    *,
    api_key: Key = None,
    base_url: str | None = None,
    options: ChatOptions | None = None,
    think_tags: bool | None = None,
    **http: Unpack[HttpOptions],
) -> OpenAIChatModel:
    """Return a model of the server named *preset*.

    Args:
        preset: A name in `PRESETS`.
        model: The model's name; for Azure the deployment's name.
        api_key: The key, or a function that returns the current one, such as a token of Entra ID;
            default: the environment's.
        base_url: URL of the API with its version; default: that of the preset.
        options: Default options.
        think_tags: Whether answers may begin with reasoning in `<think>` tags, as those of local
            models without a reasoning parser do; default: as known of the server.
        **http: `max_retries`, `timeout`, `headers`, `http_client`, `limits`; see `HttpOptions`.

    Raises:
        UsageError: The preset is unknown, or its key or URL is missing.
    """
    check_type("a preset", preset, str)
    found = PRESETS.get(preset)
    if found is None:
        msg = f"no preset is called {preset!r}; there are {', '.join(sorted(PRESETS))}"
        raise UsageError(msg)
    return OpenAIChatModel(
        model,
        api_key=found.key(api_key),
        base_url=first_url(base_url) or found.locate(),
        options=options,
        dialect=found.dialect,
        think_tags=think_tags,
        **http,
    )
