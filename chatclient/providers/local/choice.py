"""The model called `local`: files on this machine, a server that runs here, or a download."""

import os
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, closing
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, Unpack
from urllib.parse import urlsplit

from chatclient._internal.json import loads
from chatclient._internal.logging import get_logger
from chatclient.chat.model import ChatModel, OutputMode
from chatclient.chat.options import NO_OPTIONS, ChatOptions
from chatclient.chat.prompt import Prompt
from chatclient.chat.response import ChatResponse
from chatclient.providers.compatible import compatible_model
from chatclient.providers.composite import prompt_for
from chatclient.providers.http.model import HttpOptions, HttpSettings
from chatclient.providers.local.hub import (
    QWEN_CODER_1_5B,
    ModelFileUnavailableError,
    fetch_model_file,
    find_model_file,
)
from chatclient.providers.local.llama_server import LlamaMissingError, llama_installed
from chatclient.providers.local.model import LocalChatModel
from chatclient.providers.ollama.model import OllamaChatModel, default_base_url
from chatclient.runtime.runtime import Runtime
from chatclient.runtime.threads import ForkSafeLock

log = get_logger(__name__)

_SECONDS = 1.0  # a server of this machine answers within milliseconds, even while it generates
_MAX_BYTES = 1_000_000
_ANY_ADDRESS = ("", "0.0.0.0", "::")  # noqa: S104 - where servers listen, not this process
# Architectures of models that only embed texts, in Ollama's details of a model.
_EMBEDDING = ("bert", "nomic-bert")


@dataclass(frozen=True, slots=True)
class LocalServer:
    """A server of local models.

    Attributes:
        kind: `ollama` or `llamacpp`.
        url: The URL of the server, without a path.
        model: The name of the model to use.
    """

    kind: str
    url: str
    model: str

    def chat_model(self, options: ChatOptions | None, **http: Unpack[HttpOptions]) -> ChatModel:
        """Return the model of this server."""
        if self.kind == "ollama":
            return OllamaChatModel(self.model, base_url=self.url, options=options, **http)
        url = f"{self.url}/v1"
        return compatible_model(self.kind, self.model, base_url=url, options=options, **http)


def ollama_url() -> str:
    """Return the URL of the Ollama server, from its own variable `OLLAMA_HOST`."""
    return default_base_url()


def llama_cpp_url() -> str:
    """Return the URL of the llama.cpp server, from its own variables for address and port."""
    host = os.environ.get("LLAMA_ARG_HOST", "").strip()
    host = "127.0.0.1" if host in _ANY_ADDRESS else host
    port = os.environ.get("LLAMA_ARG_PORT", "").strip() or "8080"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def find_server() -> LocalServer | None:
    """Return the server on this machine that has a model: Ollama, else llama.cpp.

    Ollama's model is the one that was downloaded or changed last. Blocks for two seconds at most if
    nothing answers, and hardly at all if nothing listens.
    """
    for kind, url, path, model_in in (
        ("ollama", ollama_url(), "/api/tags", _ollama_model),
        ("llamacpp", llama_cpp_url(), "/v1/models", _llama_cpp_model),
    ):
        if (name := _ask(url, path, model_in)) is not None:
            log.info("local model server", kind=kind, model=name)
            return LocalServer(kind, url, name)
    return None


def _ask(url: str, path: str, model_in: Callable[[Any], str | None]) -> str | None:
    """Return the model of a server; None if there is none, or something else listens there.

    No key is sent, and no proxy is used.
    """
    try:
        parts = urlsplit(url)
        connect = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        with closing(connect(parts.hostname or "", parts.port, timeout=_SECONDS)) as connection:
            connection.request("GET", f"{parts.path}{path}", headers={"accept": "application/json"})
            response = connection.getresponse()
            content = response.read(_MAX_BYTES) if response.status == HTTPStatus.OK else b"null"
        return model_in(loads(content))
    except (OSError, HTTPException, ValueError) as error:
        log.debug("no local model server", path=path, error=type(error).__name__)
        return None


def _ollama_model(data: Any) -> str | None:
    """Return the first model that can chat in an answer of Ollama, the one changed last."""
    names = (_name(each, "name") for each in _items(data, "models") if not _only_embeds(each))
    return next(filter(None, names), None)


def _only_embeds(model: Mapping[str, Any]) -> bool:
    details = model.get("details")
    return isinstance(details, Mapping) and details.get("family") in _EMBEDDING


def _llama_cpp_model(data: Any) -> str | None:
    """Return the model in an answer of llama.cpp; other servers use its port as well."""
    owned = (each for each in _items(data, "data") if each.get("owned_by") == "llamacpp")
    return next(filter(None, (_name(each, "id") for each in owned)), None)


def _items(data: Any, name: str) -> list[Mapping[str, Any]]:
    items = data.get(name) if isinstance(data, Mapping) else None
    found = items if isinstance(items, list) else []
    return [each for each in found if isinstance(each, Mapping)]


def _name(item: Mapping[str, Any], key: str) -> str | None:
    name = item.get(key)
    return name if isinstance(name, str) and name.strip() else None


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
        try:
            fetch_model_file(QWEN_CODER_1_5B)
        except ModelFileUnavailableError as error:
            msg = f"{error}; or {_WAYS}"
            raise ModelFileUnavailableError(msg, error.file) from error
        return LocalChatModel(options=self._options, **self._http)


def _has_weights() -> bool:
    """Return whether the default weights are on this machine, and can be run."""
    return llama_installed() and find_model_file(QWEN_CODER_1_5B) is not None


def _shown(url: str) -> str:
    return urlsplit(url).netloc.rpartition("@")[2]  # without a password
