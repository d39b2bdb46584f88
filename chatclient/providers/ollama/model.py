"""Chat models of Ollama's native API."""

import os
import re
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Unpack

from chatclient._internal.frozen import EMPTY, FrozenDict
from chatclient._internal.json import loads, loads_exact
from chatclient.chat.messages import (
    AssistantMessage,
    Media,
    Message,
    Part,
    Reasoning,
    SystemMessage,
    ToolCall,
    ToolCallChunk,
    ToolResponseMessage,
    UserMessage,
)
from chatclient.chat.model import ChatModel, OutputMode
from chatclient.chat.options import ChatOptions, model_options
from chatclient.chat.parts import generate_call_id
from chatclient.chat.prompt import Prompt
from chatclient.chat.response import (
    NO_METADATA,
    ChatResponse,
    ChatResponseMetadata,
    FinishReason,
    Generation,
    Usage,
)
from chatclient.chat.tool import ToolDefinition
from chatclient.errors import InvalidResponseError, ResponseLimitError, UsageError
from chatclient.providers.http.auth import Headers, Key, key_source
from chatclient.providers.http.client import HttpAnswer, HttpClient
from chatclient.providers.http.errors import (
    empty_response,
    invalid_response,
    raise_for_error,
    stream_ended_early,
)
from chatclient.providers.http.limits import LIMITS, ResponseLimits
from chatclient.providers.http.model import HttpModel, HttpOptions, HttpSettings
from chatclient.providers.http.reader import Chunk, join_stream, with_listener
from chatclient.providers.http.request import first_url
from chatclient.providers.wire.common_options import (
    CommonOptions,
    automatic,
    encode_effort,
    field,
    is_off,
    lacking,
)
from chatclient.providers.wire.fields import (
    MALFORMED,
    arguments_object,
    base64_of,
    dump_arguments,
    encode_tool_media,
    int_field,
    option_fields,
    other_fields,
    text_field,
    unsupported_message,
)
from chatclient.providers.wire.request_body import EncodedOptions, RequestHead, WireCache
from chatclient.providers.wire.sendable_schemas import OLLAMA_RULES
from chatclient.providers.wire.tools import sendable_definitions, with_server_tools
from chatclient.runtime.runtime import Runtime

PROVIDER = "ollama"

_SAME_NAME = {name: name for name in ("model", "think", "keep_alive", "logprobs", "top_logprobs")}
_MODEL_OPTIONS = {name: name for name in ("min_p", "repeat_penalty", "num_ctx")}


def _reasoning(value: Any, options: ChatOptions) -> Mapping[str, Any] | str:
    if "gpt-oss" in (options.model or ""):
        return encode_effort(value, "think", ("low", "medium", "high"))
    if isinstance(value, int) and value:
        return "reasoning is on or off; there is no number of tokens"
    return {"think": not is_off(value)}


def _tool_choice(choice: str, options: ChatOptions) -> Mapping[str, Any] | str:
    if choice in ("auto", "none") or not options.tool_callbacks:
        return EMPTY  # with `none`, no tools are sent
    return "its models cannot be forced to call a tool"


def _parallel_tool_calls(allowed: bool, options: ChatOptions) -> Mapping[str, Any] | str:  # noqa: FBT001
    if allowed or not options.tool_callbacks:
        return EMPTY
    return "its models may always ask for several tools"


COMMON_OPTIONS = CommonOptions(
    "Ollama",
    {
        **{
            name: field(f"options.{name}")
            for name in (
                *("temperature", "top_p", "top_k", "stop", "seed"),
                *("presence_penalty", "frequency_penalty"),
            )
        },
        "max_tokens": field("options.num_predict"),
        "tool_choice": _tool_choice,
        "parallel_tool_calls": _parallel_tool_calls,
        "reasoning": _reasoning,
        "cache": automatic,
        "service_tier": lacking("the server has none"),
        "user_id": lacking("the server does not ask for it"),
    },
    {"reasoning": ("think",)},
)
"""How the API takes the common options."""


def encode_options(options: ChatOptions, *, streaming: bool) -> dict[str, Any]:
    """Return the fields of a request that its options determine."""
    options = COMMON_OPTIONS.settle(with_server_tools(options, COMMON_OPTIONS.provider))
    body = COMMON_OPTIONS.encode(options) | option_fields(options, _SAME_NAME)
    body["stream"] = streaming  # its default is true
    parameters = body.pop("options", {}) | option_fields(options, _MODEL_OPTIONS)
    parameters.update(getattr(options, "model_options", None) or {})
    if parameters:
        body["options"] = parameters
    output_format = options.output_schema
    if output_format is None:
        output_format = getattr(options, "response_format", None)
    if output_format is not None:
        body["format"] = output_format
    if options.tool_callbacks and options.tool_choice != "none":
        body["tools"] = [_tool(each) for each in sendable_definitions(options, OLLAMA_RULES)]
    return body


def _tool(definition: ToolDefinition) -> dict[str, Any]:
    function = {
        **definition.provider_options.get(PROVIDER, EMPTY),
        "name": definition.name,
        "description": definition.description,
        "parameters": definition.input_schema,
    }
    return {"type": "function", "function": function}


def encode_message(message: Message) -> list[dict[str, Any]]:
    """Return *message* as JSON objects; each tool response becomes a message."""
    match message:
        case SystemMessage():
            return [{"role": "system", "content": message.text}]
        case UserMessage():
            user = {"role": "user", "content": message.text}
            return [_with_images(user, [_image(media) for media in message.media])]
        case AssistantMessage():
            body: dict[str, Any] = {"role": "assistant", "content": message.text}
            if reasoning := "".join(r.text for r in message.reasoning if r.provider == PROVIDER):
                body["thinking"] = reasoning
            if message.tool_calls:
                body["tool_calls"] = [_tool_call(call) for call in message.tool_calls]
            # Other models may return audio or URLs.
            images = [m for m in message.media if m.mime_type.startswith("image/")]
            return [_with_images(body, [_image(m) for m in images if base64_of(m) is not None])]
        case ToolResponseMessage():
            return list(_tool_responses(message))
        case _:
            raise unsupported_message(message)


def _tool_call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": arguments_object(call.arguments)}
    return {"id": call.id, "function": function}


def _tool_responses(message: ToolResponseMessage) -> Iterable[dict[str, Any]]:
    for response in message.responses:
        images, errors = encode_tool_media(response.media, _image)
        body = {
            "role": "tool",
            "content": "\n".join(filter(None, [response.data, *errors])),
            "tool_name": response.name,
            "tool_call_id": response.id,
        }
        yield _with_images(body, images)


def _with_images(body: dict[str, Any], images: list[str]) -> dict[str, Any]:
    return {**body, "images": images} if images else body


def _image(media: Media) -> str:
    if not media.mime_type.startswith("image/"):
        msg = f"Ollama takes images only, not {media.mime_type}"
        raise UsageError(msg)
    content = base64_of(media)
    return media.base64() if content is None else content


class Lines:
    """Splits the bytes of a stream into lines."""

    __slots__ = ("_rest", "limit")

    def __init__(self, limit: int = LIMITS.event_bytes) -> None:
        self.limit = limit
        self._rest = bytearray()

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the lines that *chunk* completes, except blank ones.

        Raises:
            ResponseLimitError: A line is longer than the limit.
        """
        if b"\n" not in chunk:
            self._rest += chunk
            if len(self._rest) > self.limit:
                msg = f"a line of the stream is longer than {self.limit:,} bytes"
                raise ResponseLimitError(
                    msg, limit="event_bytes", maximum=self.limit, provider=PROVIDER
                )
            return []
        first, *lines = chunk.split(b"\n")
        lines = [bytes(self._rest) + first, *lines]
        self._rest = bytearray(lines.pop())
        return [line for line in lines if line.strip()]

    def finish(self) -> bytes:
        """Return the last line if it was not terminated."""
        return bytes(self._rest).strip()


def decode_response(body: bytes) -> ChatResponse:
    """Return the response in *body*, or raise the error that it reports."""
    data = _read(body)
    try:
        _check_answered(data)
        return _response(data, [*_content(data), *_calls(data)], _metadata(data))
    except MALFORMED as error:
        raise invalid_response(PROVIDER, body, error) from error


def _read(body: bytes) -> dict[str, Any]:
    """Return the decoded JSON of a response or line, after a check that it has a message."""
    try:
        data = loads_exact(body) if b'"tool_calls"' in body else loads(body)
    except ValueError as error:
        raise invalid_response(PROVIDER, body, error) from error
    raise_for_error(PROVIDER, data, EMPTY)
    if not isinstance(data, dict) or not isinstance(data.get("message"), dict):
        raise invalid_response(PROVIDER, body)
    return data


def _check_answered(data: Mapping[str, Any]) -> None:
    """Raise if the server has loaded or unloaded the model, and has not asked it."""
    if data.get("done_reason") in ("load", "unload") and not [*_content(data), *_calls(data)]:
        raise empty_response(PROVIDER, data)


def _content(data: Mapping[str, Any]) -> Iterable[Part]:
    message = data["message"]
    if reasoning := text_field(message.get("thinking")):
        yield Reasoning(reasoning, provider=PROVIDER)
    if text := text_field(message.get("content")):
        yield text


def _calls(data: Mapping[str, Any]) -> Iterable[ToolCall]:
    for call in data["message"].get("tool_calls") or ():
        function = call.get("function") or {}
        arguments = dump_arguments(function.get("arguments"))
        # Calls of older servers have no id.
        id = text_field(call.get("id")) or generate_call_id()
        yield ToolCall(id, text_field(function.get("name")), arguments)


def _response(
    data: Mapping[str, Any],
    parts: list[Part],
    metadata: ChatResponseMetadata,
    *,
    has_calls: bool = False,
) -> ChatResponse:
    native = data.get("done_reason")
    reason: FinishReason | None = None
    if data.get("done"):
        reason = "length" if native == "length" else "stop"
    output = AssistantMessage(parts)
    if reason == "stop" and (has_calls or output.tool_calls):
        reason = "tool_call"
    logprobs = FrozenDict({"logprobs": data["logprobs"]}) if data.get("logprobs") else EMPTY
    return ChatResponse((Generation(output, reason, native, metadata=logprobs),), metadata)


def _metadata(data: Mapping[str, Any]) -> ChatResponseMetadata:
    figures = {k: v for k, v in data.items() if k.endswith(("_count", "_duration"))}
    usage = Usage(
        int_field(data.get("prompt_eval_count")) or 0,  # missing if the prompt was cached
        int_field(data.get("eval_count")) or 0,
        native=FrozenDict(figures) if figures else EMPTY,
    )
    known = ("model", "message", "done", "done_reason", "logprobs", *figures)
    return ChatResponseMetadata(
        model=data.get("model") or "", usage=usage, values=other_fields(data, known)
    )


class StreamDecoder:
    """Converts the lines of a stream to chunks.

    Attributes:
        complete: Whether the server has marked the end of the answer.
    """

    __slots__ = ("_calls", "_logprobs", "_started", "complete")

    def __init__(self) -> None:
        self._started = False
        self.complete = False
        self._calls = 0
        self._logprobs: list[Any] = []

    def feed(self, line: bytes) -> ChatResponse | str:
        """Return the chunk of a line."""
        data = _read(line)
        try:
            message = data["message"]
            plain = not (data.get("done") or message.get("thinking") or message.get("tool_calls"))
            if plain and self._started and not data.get("logprobs"):
                return text_field(message.get("content"))
            if not self._started:
                _check_answered(data)
            metadata = NO_METADATA if self._started and not data.get("done") else _metadata(data)
            self._started = True
            self.complete = self.complete or bool(data.get("done"))
            parts = [*_content(data), *self._call_chunks(data)]
            self._logprobs.extend(data.get("logprobs") or ())
            if self.complete and self._logprobs:  # the last chunk contains those of all tokens
                data = {**data, "logprobs": self._logprobs}
            return _response(data, parts, metadata, has_calls=self._calls > 0)
        except MALFORMED as error:
            raise invalid_response(PROVIDER, line, error) from error

    def finish(self, rest: bytes) -> ChatResponse | str | None:
        """Check that the answer is complete, and return the chunk in *rest*, an unfinished line."""
        last = None
        if rest:
            with suppress(InvalidResponseError):
                last = self.feed(rest)
        if not self.complete:
            raise stream_ended_early(PROVIDER)
        return last

    def _call_chunks(self, data: Mapping[str, Any]) -> Iterable[ToolCallChunk]:
        for call in _calls(data):
            yield ToolCallChunk(self._calls, call.id, call.name, call.arguments)
            self._calls += 1


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

    def context_window(self, options: ChatOptions) -> int | None:
        """Return `num_ctx`, if it is set."""
        return getattr(options, "num_ctx", None)

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
