"""`GeminiChatModel`: the Gemini API and Vertex AI, and the batch mode."""

import re
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Unpack

from chatclient._internal.checks import check_number
from chatclient._internal.json import dumps, dumps_exact
from chatclient.chat.message_merging import with_user_message
from chatclient.chat.model import BatchAnswers, BatchApi, BatchItem, ChatModel, OutputMode, SendItem
from chatclient.chat.options import ChatOptions, model_options
from chatclient.chat.prompt import Prompt
from chatclient.chat.response import ChatResponse
from chatclient.chat.server_tools import ServerTool
from chatclient.errors import ProviderError, UsageError
from chatclient.providers.gemini.decoding import (
    PROVIDER,
    StreamDecoder,
    StreamReader,
    decode_response,
)
from chatclient.providers.gemini.encoding import (
    LONG_ANSWERS,
    SERVER_TOOLS,
    VERTEX_TOOLS,
    EncodedConversation,
    can_withhold,
    dialect_of,
    encode_options,
)
from chatclient.providers.http.auth import Headers, Key, key_source
from chatclient.providers.http.client import HttpAnswer, HttpClient
from chatclient.providers.http.continuation import max_continuations_of
from chatclient.providers.http.errors import error_from_data, parse_json
from chatclient.providers.http.limits import ResponseLimits
from chatclient.providers.http.model import (
    HttpModel,
    HttpOptions,
    HttpSettings,
    batched_model,
    json_lines,
    json_of,
)
from chatclient.providers.http.reader import Chunk, decode_body, with_listener
from chatclient.providers.http.request import first_url, path_step
from chatclient.providers.wire.request_body import EncodedOptions, RequestHead
from chatclient.providers.wire.sendable_schemas import GEMINI_RULES
from chatclient.providers.wire.tools import RenamedArguments, has_encoder, server_tools_in
from chatclient.runtime.runtime import Runtime

_METHOD = ":generateContent"
_FAILED = {"BATCH_STATE_FAILED", "BATCH_STATE_EXPIRED"}

_SCHEMA_WITH_TOOLS = re.compile(r"gemini-(?:[3-9]|\d\d)")

BASE_URL = "https://generativelanguage.googleapis.com/v1beta"
"""URL of the Gemini API."""

_PROJECTS = "/projects/"  # in the URLs of Vertex AI


class GeminiBatchApi(BatchApi):
    """Sends requests to one model as a batch.

    Args:
        http: The HTTP client of the model.
    """

    max_bytes = 20_000_000

    def __init__(self, http: HttpClient) -> None:
        self._http = http

    async def submit(self, items: Sequence[BatchItem], runtime: Runtime) -> str:
        """Create the batch."""
        requests = b",".join(
            b'{"request":%b,"metadata":{"key":%b}}' % (item.body, dumps(item.key)) for item in items
        )
        body = (
            b'{"batch":{"displayName":"chatclient","inputConfig":{"requests":{"requests":[%b]}}}}'
            % requests
        )
        path = f"{items[0].path.removesuffix(_METHOD)}:batchGenerateContent"
        batch = await self._http.post(runtime, path, body, json_of(self._http))
        return str(batch["name"])

    async def answers(self, batch_id: str, runtime: Runtime) -> BatchAnswers | None:
        """Return the answers of a batch that has ended; None if it has not."""
        batch = await self._http.get(runtime, _path(batch_id), self._decode)
        metadata = batch.get("metadata") or {}
        state = metadata.get("state")
        if batch.get("error") or state in _FAILED:
            error = batch.get("error") or {"message": f"the batch ended in the state {state}"}
            raise error_from_data(self._http.provider, 400, {"error": error})
        if not batch.get("done"):
            return None
        response = batch.get("response") or metadata.get("output") or {}
        lines = (response.get("inlinedResponses") or {}).get("inlinedResponses") or []
        if file := response.get("responsesFile"):
            path = f"{_path(file)}:download?alt=media"
            lines = await self._http.get(runtime, path, json_lines(self._http))
        return {_key(at, line): self._answer(line) for at, line in enumerate(lines)}

    async def cancel(self, batch_id: str, runtime: Runtime) -> None:
        """Cancel a batch."""
        await self._http.post(runtime, f"{_path(batch_id)}:cancel", b"{}", json_of(self._http))

    def _decode(self, answer: HttpAnswer) -> Mapping[str, Any]:
        data: Mapping[str, Any] = parse_json(self._http.provider, answer.body, exact=True)
        return data

    def _answer(self, line: Mapping[str, Any]) -> bytes | ProviderError:
        if "response" in line:
            return dumps_exact(line["response"]).encode()
        return error_from_data(self._http.provider, 0, {"error": line.get("error")})


def _key(position: int, line: Mapping[str, Any]) -> str | int:
    key = line.get("key") or (line.get("metadata") or {}).get("key")
    return position if key is None else str(key)


def _path(batch_id: str) -> str:
    return "".join(f"/{path_step(step)}" for step in batch_id.split("/"))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class GeminiChatOptions(ChatOptions):
    """Additional options of Gemini.

    If one tool definition is `strict`, Gemini enforces the schemas of all tools.

    Attributes:
        thinking_budget: Token budget for reasoning; 0 disables it, -1 lets the model choose.
        thinking_level: Reasoning effort of models since version 3, such as `low`.
        include_thoughts: Whether to return summaries of the reasoning, as `Reasoning` parts.
        candidate_count: Number of answers.
        safety_settings: Thresholds such as `BLOCK_NONE`, by harm category.
        cached_content: Name of a cached prefix of the conversation.
        server_tools: Server-side tools, such as `{"googleSearch": {}}`.
        response_mime_type: Format of the answer, if there is no output schema.
        response_modalities: Output types, such as `TEXT` and `IMAGE`.
        response_logprobs: Whether to report log probabilities, in `Generation.metadata`.
        logprobs: Number of alternatives to report for each token.
        media_resolution: How closely images and videos are looked at.
        speech_config: How spoken answers sound.
        image_config: What drawn answers look like.
        labels: Vertex AI's labels of the request, for billing.
        max_continuations: Maximum number of requests that continue an answer too long for one;
            default 8.

    Raises:
        UsageError: *max_continuations* is not a number or negative, or an option of `ChatOptions`
            is invalid.
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


class GeminiChatModel(HttpModel, ChatModel):
    """A model of the Gemini API or Vertex AI.

    Args:
        model: The model's name; a path such as that of a tuned model or of a Vertex endpoint is
            used unchanged.
        api_key: The key, or a function that returns the current one; default: the environment's
            `GEMINI_API_KEY` or `GOOGLE_API_KEY`.
        base_url: URL of the API with its version. For Vertex AI it ends with
            `/projects/{project}/locations/{location}/publishers/google`, and *api_key* is a
            function that returns access tokens.
        options: Default options.
        **http: `max_retries`, `timeout`, `headers`, `http_client`, `limits`; see `HttpOptions`.

    Raises:
        UsageError: The key is missing, *base_url* is not an HTTP URL, or *model* is blank.
    """

    def __init__(
        self,
        model: str = "gemini-2.5-flash",
        *,
        api_key: Key = None,
        base_url: str | None = None,
        options: ChatOptions | None = None,
        **http: Unpack[HttpOptions],
    ) -> None:
        base_url = first_url(base_url, BASE_URL)
        self._options = model_options(GeminiChatOptions, model, options)
        self._is_vertex = _PROJECTS in base_url
        self._server_tools = VERTEX_TOOLS if self._is_vertex else SERVER_TOOLS
        self._http = connect(base_url, api_key, http)
        self._head_cache: EncodedOptions[RequestHead] = EncodedOptions()
        self._conversation = EncodedConversation()
        self._renamed = RenamedArguments(GEMINI_RULES)

    @property
    def options(self) -> ChatOptions:
        """The default options."""
        return self._options

    def output_mode(self, options: ChatOptions) -> OutputMode:
        """Return how the model supports output schemas."""
        # Models before Gemini 3 do not support a schema together with tools.
        with_tools = _SCHEMA_WITH_TOOLS.search(options.model or self.name) is not None
        return "tool" if options.tool_callbacks and not with_tools else "schema"

    def can_withhold_tools(self, options: ChatOptions) -> bool:
        """Return whether the model can restrict calls to some of the tools that it is sent."""
        return can_withhold(options) and not server_tools_in(options)

    def has_server_tool(self, tool: ServerTool, options: ChatOptions) -> bool:
        """Return whether the API has *tool*."""
        return has_encoder(tool, options, self._server_tools)

    def batched(self, send: SendItem) -> tuple[ChatModel, BatchApi] | None:
        """Return Gemini's batch API, and a copy of this model whose requests go to *send*.

        Vertex AI has none: its batches are in Cloud Storage or BigQuery.
        """
        if self._is_vertex:
            return None
        return batched_model(self, GeminiBatchApi(self._http), send)

    async def generate(self, prompt: Prompt, runtime: Runtime) -> ChatResponse:
        """Return the model's response to *prompt*."""
        path = f"{path_of(prompt.options.model or self.name)}:generateContent"

        async def ask(prompt: Prompt) -> ChatResponse:
            return await self._http.post(runtime, path, self._body(prompt), _decode)

        answer = await LONG_ANSWERS.complete(ask, prompt, max_continuations_of(prompt.options))
        return self._renamed.received(answer, prompt.options)

    def generate_stream(
        self, prompt: Prompt, runtime: Runtime
    ) -> AsyncGenerator[ChatResponse | str, None]:
        """Return the chunks of the model's response to *prompt*."""
        path = f"{path_of(prompt.options.model or self.name)}:streamGenerateContent?alt=sse"

        def ask(prompt: Prompt) -> AsyncGenerator[ChatResponse | str, None]:
            return self._http.stream(runtime, path, self._body(prompt), _Reader)

        chunks = LONG_ANSWERS.stream(ask, prompt, max_continuations_of(prompt.options))
        return self._renamed.received_stream(chunks, prompt.options)

    def _body(self, prompt: Prompt) -> bytes:
        head = self._head_cache.get(prompt.options, self._head)
        dialect = dialect_of(prompt.options.model or self.name)
        messages = with_user_message(self._renamed.sent(prompt.messages, prompt.options))
        self._conversation = sent = self._conversation.continued(messages, dialect)
        system = {"systemInstruction": b'{"parts":[%b]}' % sent.system} if sent.system else {}
        return head.body({**system, "contents": b"[%b]" % sent.contents})

    def _head(self, options: ChatOptions, **_: bool) -> RequestHead:
        # Streaming is part of the path.
        return RequestHead(encode_options(options, self._server_tools), options.extra)


def _decode(answer: HttpAnswer) -> ChatResponse:
    headers = answer.headers
    return decode_body(answer.body, partial(_decode_json, headers), partial(_Reader, headers))


def _decode_json(headers: Headers, body: bytes) -> ChatResponse:
    data = parse_json(PROVIDER, body, exact=b'"functionCall"' in body)
    return decode_response(data, headers)


class _Reader:
    """Reader of a streamed answer."""

    def __init__(self, headers: Headers) -> None:
        self._split = StreamReader()
        self._values = with_listener(self._split)
        self._decoder = StreamDecoder(headers)

    def set_limits(self, limits: ResponseLimits) -> None:
        """Use other limits than the default ones."""
        self._split.set_limit(limits.event_bytes)

    def feed(self, piece: bytes) -> Iterator[Chunk]:
        return map(self._decoder.feed, self._values.feed(piece))

    def finish(self) -> Iterator[Chunk]:
        yield from map(self._decoder.feed, self._values.finish())
        last = self._decoder.finish()
        if last is not None:
            yield last


def path_of(model: str) -> str:
    """Return the path of *model*, below the base URL."""
    path = "/".join(path_step(step, safe="@") for step in model.split("/"))
    return f"/{path}" if "/" in model else f"/models/{path}"


def connect(base_url: str, api_key: Key, http: HttpOptions) -> HttpClient:
    """Return a client that sends a key, or on Vertex AI an access token."""
    settings, on_google = HttpSettings(**http), "googleapis.com" in base_url
    if _PROJECTS not in base_url:
        required_by = "Gemini" if on_google else ""
        key = key_source(api_key, "GEMINI_API_KEY", "GOOGLE_API_KEY", required_by=required_by)
        return settings.connect(PROVIDER, base_url, key, key_header="x-goog-api-key", scheme="")
    if not api_key and on_google:
        msg = "Vertex AI needs access tokens: pass a function that returns them as api_key="
        raise UsageError(msg)
    return settings.connect(PROVIDER, base_url, key_source(api_key or ""))
