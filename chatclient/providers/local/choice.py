"""The model called `local`: files on this machine, a server that runs here, or a download."""

import os
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Unpack
from urllib.parse import urlsplit

from chatclient.chat.model import ChatModel, OutputMode
from chatclient.chat.options import NO_OPTIONS, ChatOptions
from chatclient.chat.prompt import Prompt
from chatclient.chat.response import ChatResponse
from chatclient.providers.composite import prompt_for
from chatclient.providers.http.settings import HttpOptions, HttpSettings
from chatclient.providers.local.hub import fetch_model_file, find_model_file
from chatclient.providers.local.llama_server import LlamaMissingError, llama_installed
from chatclient.providers.local.model import LocalChatModel
from chatclient.providers.local.model_file import QWEN_CODER_1_5B, ModelFileUnavailableError
from chatclient.providers.local.servers import find_server, llama_cpp_url, ollama_url
from chatclient.runtime.runtime import Runtime
from chatclient.runtime.threads import ForkSafeLock

_VARIABLE = "CHATCLIENT_LOCAL_MODEL"
_PORTABLE = HttpOptions.__annotations__.keys() | {"options"}  # other settings are of llama.cpp

_WAYS = (
    "start Ollama with a model (ollama pull qwen3), or llama.cpp (llama-server -m a.gguf), or name"
    f" a GGUF file in {_VARIABLE} or as local:/path/of/a.gguf"
)


def local_model(model: str | None = None, **settings: Any) -> ChatModel:
    """Return the model called `local`, or `local:` and *model*.

    Args:
        model: The name of weights, or the path of a GGUF file; default: the environment's
            `CHATCLIENT_LOCAL_MODEL`, else the first request chooses: see `ChosenLocalModel`.
        **settings: Arguments of `LocalChatModel`. Those of llama.cpp, such as `n_ctx`, also mean
            that no server is looked for.

    Raises:
        UsageError: *model* is neither a name nor the path of a GGUF file.
    """
    given = model or os.environ.get(_VARIABLE)
    if given:
        return LocalChatModel(given, **settings)
    if settings.keys() - _PORTABLE:
        return LocalChatModel(**settings)
    return ChosenLocalModel(**settings)


class ChosenLocalModel(ChatModel):
    """A model on this machine, chosen by the first request.

    The choice is the first of these:

    1. `LocalChatModel`, if llama.cpp is installed and the weights are on this machine;
    2. a server with a model: Ollama, else llama.cpp;
    3. `LocalChatModel`, which downloads the weights.

    Args:
        options: Default options.
        **http: `max_retries`, `timeout`, `headers`, `http_client`, `limits`; see `HttpOptions`.
    """

    def __init__(self, *, options: ChatOptions | None = None, **http: Unpack[HttpOptions]) -> None:
        HttpSettings(**http)  # raises for unknown options before the choice
        self._options = options
        self._http = http
        self._lock = ForkSafeLock()
        self._chosen: ChatModel | None = None

    @property
    def options(self) -> ChatOptions:
        """The default options, without those of the chosen model."""
        return NO_OPTIONS if self._options is None else self._options.as_defaults()

    @property
    def name(self) -> str:
        """The name of the chosen model; `local` before the choice."""
        return "local" if self._chosen is None else self._chosen.name

    @property
    def provider(self) -> str:
        """`local`; spans have the provider of the model that answered."""
        return "local"

    @property
    def address(self) -> str:
        """The address of the chosen model."""
        return "" if self._chosen is None else self._chosen.address

    def output_mode(self, options: ChatOptions) -> OutputMode:
        """Return how every model of the choice supports output schemas."""
        return "tool" if options.tool_callbacks else "schema"

    def offers_logprobs(self, options: ChatOptions) -> bool:  # noqa: ARG002 - all models do
        """Return True: every model of the choice reports them."""
        return True

    async def generate(self, prompt: Prompt, runtime: Runtime) -> ChatResponse:
        """Return the response of the chosen model.

        Raises:
            LlamaMissingError: There is no server, and llama.cpp is not installed.
            ModelFileError: There is no server, and the weights cannot be downloaded.
        """
        model = await self._choose(runtime)
        return await model.generate(prompt_for(model, prompt), runtime)

    async def generate_stream(
        self, prompt: Prompt, runtime: Runtime
    ) -> AsyncGenerator[ChatResponse | str, None]:
        """Yield the chunks of the chosen model; see `generate`."""
        model = await self._choose(runtime)
        async with aclosing(model.generate_stream(prompt_for(model, prompt), runtime)) as chunks:
            async for chunk in chunks:
                yield chunk

    def close(self) -> None:
        """Close the chosen model."""
        if self._chosen is not None:
            self._chosen.close()

    async def aclose(self) -> None:
        """Close the chosen model."""
        if self._chosen is not None:
            await self._chosen.aclose()

    async def _choose(self, runtime: Runtime) -> ChatModel:
        chosen = self._chosen
        return await runtime.invoke(self._find) if chosen is None else chosen

    def _find(self) -> ChatModel:
        with self._lock:
            if self._chosen is None:
                self._chosen = self._model()
            return self._chosen

    def _model(self) -> ChatModel:
        server = None if _has_weights() else find_server()
        if server is not None:
            return server.chat_model(self._options, **self._http)
        if not llama_installed():
            msg = (
                f"there is no local model: no server with a model answers at {_shown(ollama_url())}"
                f" (Ollama) or {_shown(llama_cpp_url())} (llama.cpp), and xllamacpp is not"
                f" installed. Run: pip install 'chatclient[local]', or {_WAYS}"
            )
            raise LlamaMissingError(msg, provider="local")
        _download_weights()
        return LocalChatModel(options=self._options, **self._http)


def _has_weights() -> bool:
    """Return whether the default weights are on this machine, and can be run."""
    return llama_installed() and find_model_file(QWEN_CODER_1_5B) is not None


def _download_weights() -> None:
    try:
        fetch_model_file(QWEN_CODER_1_5B)
    except ModelFileUnavailableError as error:
        msg = f"{error}; or {_WAYS}"
        raise ModelFileUnavailableError(msg, error.file) from error


def _shown(url: str) -> str:
    return urlsplit(url).netloc.rpartition("@")[2]  # without a password
