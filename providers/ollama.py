"""Models of an Ollama server, through its own chat API."""

import os
from collections.abc import AsyncGenerator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from chatclient.json import dumps
from chatclient.model import ChatModel, OutputMode
from chatclient.options import ChatOptions, model_options
from chatclient.prompt import Prompt
from chatclient.providers.addresses import first_url
from chatclient.providers.http import HttpAnswer, HttpClient, OverHttp, RetryPolicy, Timeouts
from chatclient.providers.keys import Headers, HeaderSource, Key, headers_with, key_source
from chatclient.providers.listening import overheard
from chatclient.providers.ollama_codec import (
    PROVIDER,
    Lines,
    StreamDecoder,
    decode_response,
    encode_message,
    encode_options,
)
from chatclient.providers.reading import Chunk
from chatclient.providers.wire_cache import EncodedOptions, WireCache
from chatclient.response import ChatResponse
from chatclient.runtime import Runtime

_PATH = "/api/chat"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class OllamaChatOptions(ChatOptions):
    """Options of Ollama beside the common ones; it cannot be told which tool to call.

    Attributes:
        think: Whether to think, or how hard: `low`, `medium`, `high`.
        keep_alive: How long the model stays loaded, such as `10m` or seconds; -1 for ever.
        num_ctx: The size of the context window in tokens; what does not fit is cut off.
        min_p: Leaves out tokens that are so much less likely than the likeliest.
        repeat_penalty: Against repeating tokens.
        response_format: `json` for any JSON, when there is no output schema.
        logprobs: Whether to report log probabilities, kept in `Generation.metadata`.
        top_logprobs: How many alternatives to report for each token.
        model_options: More of the model's own parameters, such as `mirostat` or `num_gpu`.
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


class OllamaChatModel(OverHttp, ChatModel):
    """A model that an Ollama server runs.

    Args:
        model: Which model.
        api_key: A key, or a function that returns the current one, for servers that want one;
            default: the environment's `OLLAMA_API_KEY`.
        base_url: Where the server is; default: the environment's `OLLAMA_HOST`, else this
            machine.
        options: Options for every request.
        max_retries: How often a request that failed for a passing reason is repeated, or a
            `RetryPolicy`.
        timeout: Seconds to wait for an answer, or `Timeouts`; loading a model takes its time.
        headers: More headers for every request.
        http_client: An httpx or httpx2 client to send requests with, which the caller closes; or
            `Connections`, for a proxy or HTTP/2.

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
        max_retries: int | RetryPolicy = 2,
        timeout: float | Timeouts | None = 600.0,
        headers: Mapping[str, str] | None = None,
        http_client: Any = None,
    ) -> None:
        self._options = model_options(OllamaChatOptions, model, options)
        self._http = HttpClient(
            PROVIDER,
            first_url(base_url, host_of_environment()),
            headers_for(api_key, headers),
            timeout,
            max_retries,
            http_client,
        )
        self._heads: EncodedOptions[bytes] = EncodedOptions()
        self._sent = WireCache()

    @property
    def options(self) -> ChatOptions:
        """The options that hold where a prompt sets none."""
        return self._options

    def output_mode(self, options: ChatOptions) -> OutputMode:
        """Return how the model is best held to a schema."""
        # Ollama's grammar leaves a model no way to call a tool beside it.
        return "tool" if options.tool_callbacks else "schema"

    async def generate(self, prompt: Prompt, runtime: Runtime) -> ChatResponse:
        """Return the model's response to *prompt*."""
        body = self._body(prompt, streaming=False)
        return await self._http.post(runtime, _PATH, body, _decoded)

    def generate_stream(
        self, prompt: Prompt, runtime: Runtime
    ) -> AsyncGenerator[ChatResponse | str, None]:
        """Return the chunks of the model's response to *prompt*, as they come."""
        body = self._body(prompt, streaming=True)
        return self._http.stream(runtime, _PATH, body, _Reader)

    def _body(self, prompt: Prompt, *, streaming: bool) -> bytes:
        head = self._heads.get(prompt.options, _head, streaming=streaming)
        messages = self._sent.join(prompt.messages, PROVIDER, encode_message)
        return b'%b,"messages":[%b]}' % (head[:-1], messages)


def _head(options: ChatOptions, *, streaming: bool) -> bytes:
    """Return all of a request but its messages."""
    return dumps(encode_options(options, streaming=streaming))


def _decoded(answer: HttpAnswer) -> ChatResponse:
    return decode_response(answer.body)


class _Reader:
    """Reads a streamed answer, a JSON object a line."""

    def __init__(self, _headers: Headers) -> None:
        self._lines, self._decoder = overheard(Lines()), StreamDecoder()

    @property
    def complete(self) -> bool:
        """Whether the server has said that nothing more comes."""
        return self._decoder.complete

    def feed(self, piece: bytes) -> Iterator[Chunk]:
        return map(self._decoder.feed, self._lines.feed(piece))

    def finish(self) -> Iterator[Chunk]:
        last = self._decoder.finish(self._lines.finish())
        if last is not None:
            yield last


def host_of_environment() -> str:
    """Return the URL that `OLLAMA_HOST` stands for, in whichever of the forms Ollama knows."""
    host = os.environ.get("OLLAMA_HOST", "").strip().strip("\"'").rstrip("/")
    scheme, separator, address = host.rpartition("://")
    address, slash, path = address.partition("/")
    user, at, address = address.rpartition("@")
    name, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal():
        name, port = address, "" if separator else "11434"
    # A server that listens everywhere is asked here.
    name = "127.0.0.1" if name in ("", "0.0.0.0") else name  # noqa: S104 - an address to call
    port = f":{port}" if port else ""
    return f"{scheme or 'http'}://{user}{at}{name}{port}{slash}{path}"


def headers_for(api_key: Key, more: Headers | None) -> HeaderSource:
    """Return what gives the headers of requests; a server of one's own wants no key."""
    return headers_with(key_source(api_key, "OLLAMA_API_KEY"), more)
