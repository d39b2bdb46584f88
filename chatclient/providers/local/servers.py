"""Finds servers of local models on this machine: Ollama and llama.cpp."""

import os
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, Unpack
from urllib.parse import urlsplit

from chatclient._internal.json import loads
from chatclient._internal.logging import get_logger
from chatclient.chat.model import ChatModel
from chatclient.chat.options import ChatOptions
from chatclient.providers.compatible import compatible_model
from chatclient.providers.http.settings import HttpOptions
from chatclient.providers.ollama.model import OllamaChatModel, default_base_url

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
