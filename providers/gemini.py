"""Google's Gemini models: the Gemini API and Vertex AI."""

import re
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from chatclient.checks import check_number
from chatclient.errors import UsageError
from chatclient.json import dumps
from chatclient.model import ChatModel, OutputMode
from chatclient.options import ChatOptions, model_options
from chatclient.prompt import Prompt
from chatclient.providers.addresses import first_url
from chatclient.providers.continuations import continuations_in
from chatclient.providers.failures import json_of
from chatclient.providers.gemini_decoding import PROVIDER, decode_response
from chatclient.providers.gemini_encoding import (
    LONG_ANSWERS,
    EncodedConversation,
    dialect_of,
    encode_options,
)
from chatclient.providers.gemini_stream import StreamDecoder, StreamReader
from chatclient.providers.http import HttpAnswer, HttpClient, OverHttp, RetryPolicy, Timeouts
from chatclient.providers.keys import Headers, HeaderSource, Key, headers_with, key_source
from chatclient.providers.listening import overheard
from chatclient.providers.reading import Chunk
from chatclient.providers.wire_cache import EncodedOptions
from chatclient.response import ChatResponse
from chatclient.runtime import Runtime

_SCHEMA_BESIDE_TOOLS = re.compile(r"gemini-(?:[3-9]|\d\d)")

BASE_URL = "https://generativelanguage.googleapis.com/v1beta"
"""Where the Gemini API is."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class GeminiChatOptions(ChatOptions):
    """Options of Gemini beside the common ones; it has none for parallel tool calls.

    A tool definition that is `strict` has Gemini enforce the schemas of all tools.

    Attributes:
        thinking_budget: Tokens to think with; 0 for no thinking, -1 for the model's own choice.
        thinking_level: How hard models from version 3 on think, such as `low`.
        include_thoughts: Whether to summarise the thoughts, as `Reasoning` parts.
        candidate_count: How many answers to give.
        safety_settings: Thresholds such as `BLOCK_NONE`, by harm category.
        cached_content: The name of a cached beginning of the conversation.
        server_tools: Tools that Google runs, such as `{"googleSearch": {}}`.
        response_mime_type: The form of the answer, when it is not that of an output schema.
        response_modalities: What to answer with, such as `TEXT` and `IMAGE`.
        response_logprobs: Whether to report log probabilities, kept in `Generation.metadata`.
        logprobs: How many alternatives to report for each token.
        media_resolution: How closely images and videos are looked at.
        speech_config: How spoken answers sound.
        image_config: What drawn answers look like.
        labels: Vertex AI's labels of the request, for billing.
        max_continuations: How often at most Gemini is asked to go on with an answer that is too
            long for one request; 0 for not at all, by default 8.

    Raises:
        UsageError: *max_continuations* is not a number or negative, or as with `ChatOptions`.
    """

    thinking_budget: int | None = None
    thinking_level: str | None = None
    include_thoughts: bool | None = None
    candidate_count: int | None = None
    safety_settings: Mapping[str, str] | None = None
    cached_content: str | None = None
    server_tools: Sequence[Mapping[str, Any]] | None = None
    response_mime_type: str | None = None
    response_modalities: str | Sequence[str] | None = None
    response_logprobs: bool | None = None
    logprobs: int | None = None
    media_resolution: str | None = None
    speech_config: Mapping[str, Any] | None = None
    image_config: Mapping[str, Any] | None = None
    labels: Mapping[str, str] | None = None
    max_continuations: int | None = None

    def __post_init__(self) -> None:
        ChatOptions.__post_init__(self)  # slots: there is no `super()` without arguments
        if self.max_continuations is not None:
            check_number("max_continuations", self.max_continuations)


class GeminiChatModel(OverHttp, ChatModel):
    """A model behind the Gemini API or Vertex AI.

    Args:
        model: Which model; a name with slashes, such as that of a tuned model or of a Vertex
            endpoint, is used as it is.
        api_key: The key, or a function that returns the current one; default: the environment's
            `GEMINI_API_KEY` or `GOOGLE_API_KEY`.
        base_url: Where the API is, with its version. For Vertex AI it ends with
            `/projects/{project}/locations/{location}/publishers/google`, and `api_key` gives
            access tokens, which expire: pass a function.
        options: Options for every request.
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
        model: str = "gemini-2.5-flash",
        *,
        api_key: Key = None,
        base_url: str | None = None,
        options: ChatOptions | None = None,
        max_retries: int | RetryPolicy = 2,
        timeout: float | Timeouts | None = 600.0,
        headers: Mapping[str, str] | None = None,
        http_client: Any = None,
    ) -> None:
        base_url = first_url(base_url, BASE_URL)
        self._options = model_options(GeminiChatOptions, model, options)
        self._http = HttpClient(
            PROVIDER,
            base_url,
            headers_for(api_key, base_url, headers),
            timeout,
            max_retries,
            http_client,
        )
        self._heads: EncodedOptions[bytes] = EncodedOptions()
        self._sent = EncodedConversation()

    @property
    def options(self) -> ChatOptions:
        """The options that hold where a prompt sets none."""
        return self._options

    def output_mode(self, options: ChatOptions) -> OutputMode:
        """Return how the model is best held to a schema."""
        # Before Gemini 3 a schema and tools exclude each other.
        beside_tools = _SCHEMA_BESIDE_TOOLS.search(options.model or self.name) is not None
        return "tool" if options.tool_callbacks and not beside_tools else "schema"

    async def generate(self, prompt: Prompt, runtime: Runtime) -> ChatResponse:
        """Return the model's response to *prompt*."""
        path = f"{path_of(prompt.options.model or self.name)}:generateContent"

        async def ask(prompt: Prompt) -> ChatResponse:
            return await self._http.post(runtime, path, self._body(prompt), _decoded)

        return await LONG_ANSWERS.whole(ask, prompt, continuations_in(prompt.options))

    def generate_stream(
        self, prompt: Prompt, runtime: Runtime
    ) -> AsyncGenerator[ChatResponse | str, None]:
        """Return the chunks of the model's response to *prompt*, as they come."""
        path = f"{path_of(prompt.options.model or self.name)}:streamGenerateContent?alt=sse"

        def ask(prompt: Prompt) -> AsyncGenerator[ChatResponse | str, None]:
            return self._http.stream(runtime, path, self._body(prompt), _Reader)

        return LONG_ANSWERS.streamed(ask, prompt, continuations_in(prompt.options))

    def _body(self, prompt: Prompt) -> bytes:
        head = self._heads.get(prompt.options, _head)
        dialect = dialect_of(prompt.options.model or self.name)
        self._sent = sent = self._sent.continued(prompt.messages, dialect)
        fields = [head] if head else []
        if sent.system:
            fields.append(b'"systemInstruction":{"parts":[%b]}' % sent.system)
        fields.append(b'"contents":[%b]' % sent.contents)
        return b"{%b}" % b",".join(fields)


def _head(options: ChatOptions, **_: bool) -> bytes:
    """Return the fields of a request but its messages; it is the path that says "stream"."""
    return dumps(encode_options(options))[1:-1]


def _decoded(answer: HttpAnswer) -> ChatResponse:
    return decode_response(json_of(PROVIDER, answer.body), answer.headers)


class _Reader:
    """Reads a streamed answer, of events or, from some servers, of one list."""

    def __init__(self, headers: Headers) -> None:
        self._values = overheard(StreamReader())
        self._decoder = StreamDecoder(headers)

    def feed(self, piece: bytes) -> Iterator[Chunk]:
        return map(self._decoder.feed, self._values.feed(piece))

    def finish(self) -> Iterator[Chunk]:
        yield from map(self._decoder.feed, self._values.finish())
        last = self._decoder.finish()
        if last is not None:
            yield last


def path_of(model: str) -> str:
    """Return where *model* is below the base URL.

    Raises:
        UsageError: Its name would lead elsewhere.
    """
    steps = model.split("/")
    if {"", ".", ".."}.intersection(steps):
        msg = f"{model!r} is not the name of a Gemini model"
        raise UsageError(msg)
    path = "/".join(quote(step, safe="@") for step in steps)
    return f"/{path}" if "/" in model else f"/models/{path}"


def headers_for(api_key: Key, base_url: str, more: Headers | None) -> HeaderSource:
    """Return what gives the headers of requests: with a key, or on Vertex AI with a token.

    Raises:
        UsageError: There is no key for Google's own service.
    """
    on_google = "googleapis.com" in base_url
    if "/projects/" not in base_url:
        wanted_by = "Gemini" if on_google else ""
        key = key_source(api_key, "GEMINI_API_KEY", "GOOGLE_API_KEY", wanted_by=wanted_by)
        return headers_with(key, more, name="x-goog-api-key", scheme="")
    if not api_key and on_google:
        msg = "Vertex AI needs access tokens: pass a function that returns them as api_key="
        raise UsageError(msg)
    return headers_with(key_source(api_key or ""), more)
