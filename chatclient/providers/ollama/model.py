"""Chat models of Ollama's native API."""

import os
import re
from collections.abc import AsyncGenerator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Unpack

from chatclient.chat.model import ChatModel, OutputMode
from chatclient.chat.options import ChatOptions, model_options
from chatclient.chat.prompt import Prompt
from chatclient.chat.response import ChatResponse
from chatclient.providers.http.auth import Headers, Key, key_source
from chatclient.providers.http.client import HttpAnswer, HttpClient
from chatclient.providers.http.limits import ResponseLimits
from chatclient.providers.http.model import HttpModel
from chatclient.providers.http.reader import Chunk, join_stream, with_listener
from chatclient.providers.http.settings import HttpOptions, HttpSettings
from chatclient.providers.http.url import first_url
from chatclient.providers.ollama.codec import (
    PROVIDER,
    Lines,
    StreamDecoder,
    decode_response,
    encode_message,
    encode_options,
)
from chatclient.providers.wire.json_cache import EncodedOptions, WireCache
from chatclient.providers.wire.request_body import RequestHead
from chatclient.runtime.runtime import Runtime

_PATH = "/api/chat"
_SEVERAL_LINES = re.compile(rb"\}[^\S\n]*+\n\s*+\{\s*+\"model\"")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class OllamaChatOptions(ChatOptions):
    """Additional options of Ollama; it has none to force a tool call.

    Attributes:
        think: Whether to reason, or the effort: `low`, `medium` or `high`.
        keep_alive: How long the model stays loaded, such as `10m` or seconds; -1 for no limit.
        num_ctx: Size of the context window in tokens; longer prompts are truncated.
        min_p: Minimum probability of a token, relative to the most likely one.
        repeat_penalty: Penalty for repeated tokens.
        response_format: `json` for any JSON, if there is no output schema.
        logprobs: Whether to report log probabilities, in `Generation.metadata`.
        top_logprobs: Number of alternatives to report for each token.
        model_options: Other parameters of the model, such as `mirostat` or `num_gpu`.
    """

    think: bool | str | None = None
    keep_alive: str | float | None = None
    num_ctx: int | None = None
    min_p: float | None = None
    repeat_penalty: float | None = None
    response_format: str | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    model_options: Mapping[str, Any] | None = None


class OllamaChatModel(HttpModel, ChatModel):
    """A model of an Ollama server.

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
        model: str = "llama3.2",
        *,
        api_key: Key = None,
        base_url: str | None = None,
        options: ChatOptions | None = None,
        **http: Unpack[HttpOptions],
    ) -> None:
        self._options = model_options(OllamaChatOptions, model, options)
        self._http = connect(base_url, api_key, http)
        self._head_cache: EncodedOptions[RequestHead] = EncodedOptions()
        self._message_cache = WireCache()

    @property
    def options(self) -> ChatOptions:
        """The default options."""
        return self._options

    def output_mode(self, options: ChatOptions) -> OutputMode:
        """Return how the model supports output schemas."""
        # With a schema, Ollama's grammar does not allow tool calls.
        return "tool" if options.tool_callbacks else "schema"

    def offers_logprobs(self, options: ChatOptions) -> bool:  # noqa: ARG002 - all models do
        """Return True; Ollama reports them since version 0.12.11."""
        return True

    async def generate(self, prompt: Prompt, runtime: Runtime) -> ChatResponse:
        """Return the model's response to *prompt*."""
        body = self._body(prompt, streaming=False)
        return await self._http.post(runtime, _PATH, body, _decode)

    def generate_stream(
        self, prompt: Prompt, runtime: Runtime
    ) -> AsyncGenerator[ChatResponse | str, None]:
        """Return the chunks of the model's response to *prompt*."""
        body = self._body(prompt, streaming=True)
        return self._http.stream(runtime, _PATH, body, _Reader)

    def _body(self, prompt: Prompt, *, streaming: bool) -> bytes:
        head = self._head_cache.get(prompt.options, _head, streaming=streaming)
        messages = self._message_cache.join(
            prompt.messages, PROVIDER, lambda message, _: encode_message(message)
        )
        return head.body({"messages": b"[%b]" % messages})


def _head(options: ChatOptions, *, streaming: bool) -> RequestHead:
    return RequestHead(encode_options(options, streaming=streaming), options.extra)


def _decode(answer: HttpAnswer) -> ChatResponse:
    body = answer.body
    if _SEVERAL_LINES.search(body):  # from a server that always streams
        return join_stream(_Reader(answer.headers), body)
    return decode_response(body)


class _Reader:
    """Reader of a streamed answer, one JSON object per line."""

    def __init__(self, _headers: Headers) -> None:
        self._split = Lines()
        self._lines, self._decoder = with_listener(self._split), StreamDecoder()

    def set_limits(self, limits: ResponseLimits) -> None:
        """Use other limits than the default ones."""
        self._split.limit = limits.event_bytes

    @property
    def complete(self) -> bool:
        """Whether the server has marked the end of the answer."""
        return self._decoder.complete

    def feed(self, piece: bytes) -> Iterator[Chunk]:
        return map(self._decoder.feed, self._lines.feed(piece))

    def finish(self) -> Iterator[Chunk]:
        last = self._decoder.finish(self._lines.finish())
        if last is not None:
            yield last


def default_base_url() -> str:
    """Return the URL in `OLLAMA_HOST`, which may omit scheme, host or port."""
    host = os.environ.get("OLLAMA_HOST", "").strip().strip("\"'").rstrip("/")
    scheme, separator, address = host.rpartition("://")
    address, slash, path = address.partition("/")
    user, at, address = address.rpartition("@")
    name, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal():
        name, port = address, "" if separator else "11434"
    # The variable may contain the address on which the server listens.
    name = "127.0.0.1" if name in ("", "0.0.0.0") else name  # noqa: S104 - not used to listen
    port = f":{port}" if port else ""
    return f"{scheme or 'http'}://{user}{at}{name}{port}{slash}{path}"


def connect(base_url: str | None, api_key: Key, http: HttpOptions) -> HttpClient:
    """Return a client of an Ollama server; the key is optional."""
    url, key = first_url(base_url, default_base_url()), key_source(api_key, "OLLAMA_API_KEY")
    return HttpSettings(**http).connect(PROVIDER, url, key)
