"""OpenAI's Chat Completions, and every server that speaks it."""

import os
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from chatclient.errors import InvalidResponseError, StreamInterruptedError, UsageError
from chatclient.json import dumps, loads
from chatclient.messages import (
    AssistantMessage,
    Media,
    Message,
    ProviderPart,
    Reasoning,
    SystemMessage,
    ToolCall,
    ToolCallChunk,
    ToolResponse,
    ToolResponseMessage,
    UserMessage,
)
from chatclient.model import ChatModel
from chatclient.options import ChatOptions
from chatclient.prompt import Prompt
from chatclient.providers.failures import error_from
from chatclient.providers.http import Headers, HttpClient, RetryPolicy, Timeouts, as_timeouts
from chatclient.providers.sse import ServerSentEventDecoder
from chatclient.response import (
    NO_METADATA,
    ChatResponse,
    ChatResponseMetadata,
    FinishReason,
    Generation,
    RateLimit,
    Usage,
)
from chatclient.runtime import Runtime
from chatclient.tool import ToolDefinition
from chatclient.values import EMPTY, FrozenDict

_BASE_URL = "https://api.openai.com/v1"
_PATH = "/chat/completions"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAIChatOptions(ChatOptions):
    """Options of OpenAI's Chat Completions beside the common ones.

    Attributes:
        n: How many answers to give.
        reasoning_effort: How hard a reasoning model thinks.
        verbosity: How long the answer is to be.
        service_tier: Which of the provider's tiers serves the request.
        user: Who the end user is, for the provider's abuse detection.
        logit_bias: Likelihood of single tokens, by token id.
        logprobs: Whether to report log probabilities, kept in `Generation.metadata`.
        top_logprobs: How many alternatives to report for each token.
        store: Whether the provider keeps the answer.
        request_metadata: The provider's own metadata of the request.
        modalities: What to answer with, such as `text` and `audio`.
        audio: How spoken answers sound.
        prediction: Text that much of the answer is expected to repeat.
        prompt_cache_key: Ties requests to one cache.
    """

    n: int | None = None
    reasoning_effort: str | None = None
    verbosity: str | None = None
    service_tier: str | None = None
    user: str | None = None
    logit_bias: Mapping[str, float] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    store: bool | None = None
    request_metadata: Mapping[str, str] | None = None
    modalities: tuple[str, ...] | None = None
    audio: Mapping[str, Any] | None = None
    prediction: Mapping[str, Any] | None = None
    prompt_cache_key: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Dialect:
    """In what a server's Chat Completions differ from OpenAI's.

    Attributes:
        provider: What the server is called in errors.
        max_tokens: The field that bounds the output.
        usage_in_stream: Whether the server has to be asked for usage at a stream's end.
        reasoning_field: Where earlier reasoning is sent back, if at all.
    """

    provider: str = "openai"
    max_tokens: str = "max_completion_tokens"
    usage_in_stream: bool = True
    reasoning_field: str | None = None


OPENAI = Dialect()
COMPATIBLE = Dialect(provider="openai-compatible", max_tokens="max_tokens")


class OpenAIChatModel(ChatModel):
    """A model behind OpenAI's Chat Completions API, or any server that speaks it.

    Args:
        model: Which model.
        api_key: The key, or a function that returns the current one; default: the environment's
            `OPENAI_API_KEY`.
        base_url: Where the API is, with its version; default: the environment's
            `OPENAI_BASE_URL`, else OpenAI's own.
        options: Options for every request.
        max_retries: How often a request is repeated that failed for a passing reason.
        timeout: Seconds to wait for an answer, or `Timeouts`.
        headers: More headers for every request.
        http_client: An httpx or httpx2 client to send requests with; the caller closes it.
        dialect: In what the server differs from OpenAI's; default: nothing for OpenAI's own URL,
            the older common ground for others.

    Raises:
        UsageError: There is no key, or the URL is none.
    """

    def __init__(
        self,
        model: str = "gpt-5-mini",
        *,
        api_key: str | Callable[[], str] | None = None,
        base_url: str | None = None,
        options: ChatOptions | None = None,
        max_retries: int = 2,
        timeout: float | Timeouts | None = 600.0,
        headers: Mapping[str, str] | None = None,
        http_client: Any = None,
        dialect: Dialect | None = None,
    ) -> None:
        base_url = base_url or os.environ.get("OPENAI_BASE_URL") or _BASE_URL
        self._dialect = dialect or (OPENAI if base_url.startswith(_BASE_URL) else COMPATIBLE)
        defaults = OpenAIChatOptions(model=model).merge(options)
        self._options = replace(defaults, model=defaults.model or model)
        self._http = HttpClient(
            self._dialect.provider,
            base_url,
            _headers(_api_key(api_key, base_url), headers or EMPTY),
            as_timeouts(timeout),
            RetryPolicy(max_retries),
            http_client,
        )
        # The last options and what they come to: the same ones in all rounds of all requests.
        self._head: tuple[ChatOptions | None, bool, bytes] = (None, False, b"")
        self._sent: tuple[tuple[Message, ...], bytes] = ((), b"")

    @property
    def options(self) -> ChatOptions:
        """The options that hold where a prompt sets none."""
        return self._options

    async def generate(self, prompt: Prompt, runtime: Runtime) -> ChatResponse:
        """Return the model's response to *prompt*."""
        answer = await self._http.post(runtime, _PATH, self._body(prompt, streaming=False))
        try:
            data = loads(answer.body)
        except ValueError as error:
            shown = answer.body[:200].decode(errors="replace")
            msg = f"{self._dialect.provider} answered with something that is not JSON: {shown!r}"
            raise InvalidResponseError(msg, provider=self._dialect.provider) from error
        return decode_response(data, self._dialect, answer.headers)

    async def generate_stream(
        self, prompt: Prompt, runtime: Runtime
    ) -> AsyncGenerator[ChatResponse | str, None]:
        """Yield the model's response to *prompt* as it comes."""
        body = self._body(prompt, streaming=True)
        events = ServerSentEventDecoder()
        async with aclosing(self._http.stream(runtime, _PATH, body)) as pieces:
            first = await anext(pieces)
            decoder = StreamDecoder(self._dialect, first.headers)
            async for piece in pieces:
                for event in events.feed(piece.body):
                    chunk = decoder.feed(event.data)
                    if chunk is not None:
                        yield chunk
        decoder.finish(events.finish())

    def close(self) -> None:
        """Close the connections of blocking calls."""
        self._http.close()

    async def aclose(self) -> None:
        """Close the connections of blocking calls and of this event loop."""
        await self._http.aclose()

    def _body(self, prompt: Prompt, *, streaming: bool) -> bytes:
        options, was_streaming, head = self._head
        if options is not prompt.options or was_streaming != streaming:
            head = dumps(encode_options(prompt.options, self._dialect, streaming=streaming))
            self._head = (prompt.options, streaming, head)
        return b'%b,"messages":[%b]}' % (head[:-1], self._wire_of(prompt.messages))

    def _wire_of(self, messages: tuple[Message, ...]) -> bytes:
        known, wire = self._sent
        # The next round of a conversation begins with what was sent in the last one: the very
        # same messages, which the comparison sees by their identity.
        size = len(known)
        if not size or size > len(messages) or messages[:size] != known:
            size, wire = 0, b""
        new = b",".join([wire_of(message, self._dialect) for message in messages[size:]])
        wire = b"%b,%b" % (wire, new) if wire and new else wire or new
        self._sent = (messages, wire)
        return wire

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, base_url={self._http.base_url!r})"


def _api_key(api_key: str | Callable[[], str] | None, base_url: str) -> Callable[[], str]:
    """Return what gives the key; servers other than OpenAI's may want none."""
    if callable(api_key):
        return api_key
    key = api_key if api_key is not None else os.environ.get("OPENAI_API_KEY", "")
    if not key and base_url.startswith(_BASE_URL):
        msg = "OpenAI wants an API key: set OPENAI_API_KEY or pass api_key="
        raise UsageError(msg)
    return lambda: key


def _headers(key: Callable[[], str], more: Mapping[str, str]) -> Callable[[], Headers]:
    def headers() -> Headers:
        token = key()
        return {"authorization": f"Bearer {token}", **more} if token else more

    return headers


# --- encoding -------------------------------------------------------------------------------

_SAME_NAME = (
    "model",
    "temperature",
    "top_p",
    "top_k",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "stop",
    "n",
    "reasoning_effort",
    "verbosity",
    "service_tier",
    "user",
    "logit_bias",
    "logprobs",
    "top_logprobs",
    "store",
    "modalities",
    "audio",
    "prediction",
    "prompt_cache_key",
)


def encode_options(options: ChatOptions, dialect: Dialect, *, streaming: bool) -> dict[str, Any]:
    """Return all of a request but its messages."""
    body = {
        name: value
        for name in _SAME_NAME
        if (value := getattr(options, name, None)) is not None and value != ()
    }
    if options.max_tokens is not None:
        body[dialect.max_tokens] = options.max_tokens
    if (metadata := getattr(options, "request_metadata", None)) is not None:
        body["metadata"] = metadata
    if options.output_schema is not None:
        body["response_format"] = _response_format(options.output_schema)
    if options.tool_callbacks:
        body["tools"] = [_tool(callback.definition) for callback in options.tool_callbacks]
        if options.tool_choice is not None:
            body["tool_choice"] = _tool_choice(options.tool_choice)
        if options.parallel_tool_calls is not None:
            body["parallel_tool_calls"] = options.parallel_tool_calls
    if streaming:
        body["stream"] = True
        if dialect.usage_in_stream:
            body["stream_options"] = {"include_usage": True}
    body.update(options.extra)
    return body


def _response_format(schema: Mapping[str, Any]) -> dict[str, Any]:
    name = str(schema.get("title") or "answer")
    return {
        "type": "json_schema",
        "json_schema": {"name": name, "schema": schema, "strict": True},
    }


def _tool(definition: ToolDefinition) -> dict[str, Any]:
    function: dict[str, Any] = {
        "name": definition.name,
        "description": definition.description,
        "parameters": definition.input_schema,
    }
    if definition.strict is not None:
        function["strict"] = definition.strict
    return {"type": "function", "function": function}


def _tool_choice(choice: str) -> Any:
    if choice in ("auto", "none", "required"):
        return choice
    return {"type": "function", "function": {"name": choice}}


def wire_of(message: Message, dialect: Dialect) -> bytes:
    """Return *message* as the elements of a `messages` array; encoded once, then kept."""
    kept = message.wire(dialect)
    if kept is not None:
        return kept
    elements = encode_message(message, dialect)
    return message.keep_wire(dialect, b",".join(dumps(element) for element in elements))


def encode_message(message: Message, dialect: Dialect) -> list[dict[str, Any]]:
    """Return *message* as the API wants it; tool responses become a message each."""
    match message:
        case SystemMessage():
            return [{"role": "system", "content": message.text}]
        case UserMessage():
            return [{"role": "user", "content": _user_content(message)}]
        case AssistantMessage():
            return [_assistant(message, dialect)]
        case ToolResponseMessage():
            return _tool_responses(message)
        case _:
            msg = f"{type(message).__name__} is no kind of message that can be sent"
            raise UsageError(msg)


def _user_content(message: UserMessage) -> str | list[dict[str, Any]]:
    if len(message.parts) == 1 and isinstance(message.parts[0], str):
        return message.parts[0]
    return [_content_part(part) for part in message.parts]


def _content_part(part: str | Media | ProviderPart) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if isinstance(part, ProviderPart):
        return dict(part.data)
    if part.mime_type.startswith("image/"):
        image = {"url": part.url(), **part.metadata}
        return {"type": "image_url", "image_url": image}
    if part.mime_type.startswith("audio/") and not part.is_url:
        sound = {"data": part.base64(), "format": _audio_format(part.mime_type)}
        return {"type": "input_audio", "input_audio": sound}
    if part.id is not None:
        return {"type": "file", "file": {"file_id": part.id}}
    return {"type": "file", "file": {"filename": part.name or "file", "file_data": part.url()}}


def _audio_format(mime_type: str) -> str:
    subtype = mime_type.partition("/")[2]
    return {"mpeg": "mp3", "x-wav": "wav", "wave": "wav"}.get(subtype, subtype)


def _assistant(message: AssistantMessage, dialect: Dialect) -> dict[str, Any]:
    body: dict[str, Any] = {"role": "assistant", "content": message.text or None}
    for part in message.parts:
        if isinstance(part, ProviderPart) and part.provider == dialect.provider:
            body.update(part.data)
    if dialect.reasoning_field is not None and message.reasoning:
        body[dialect.reasoning_field] = "".join(r.text for r in message.reasoning)
    if calls := message.tool_calls:
        body["tool_calls"] = [_tool_call(call) for call in calls]
    elif body["content"] is None:
        body["content"] = ""
    return body


def _tool_call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments.strip() or "{}"}
    return {"id": call.id, "type": "function", "function": function, **call.metadata}


def _tool_responses(message: ToolResponseMessage) -> list[dict[str, Any]]:
    elements: list[dict[str, Any]] = [
        {"role": "tool", "tool_call_id": response.id, "content": response.data}
        for response in message.responses
    ]
    shown = [part for response in message.responses for part in _shown_media(response)]
    # A tool message holds text only; what else a tool returned is shown by the user.
    return [*elements, {"role": "user", "content": shown}] if shown else elements


def _shown_media(response: ToolResponse) -> list[dict[str, Any]]:
    if not response.media:
        return []
    introduction = f"Content returned by tool {response.name} (call {response.id}):"
    return [_content_part(introduction), *(_content_part(media) for media in response.media)]


# --- decoding -------------------------------------------------------------------------------

_FINISH_REASONS: dict[str, FinishReason] = {
    "stop": "stop",
    "eos": "stop",
    "": "stop",
    "length": "length",
    "model_length": "length",
    "tool_calls": "tool_call",
    "function_call": "tool_call",
    "content_filter": "content_filter",
    "error": "error",
    "insufficient_system_resource": "error",
}


def decode_response(data: Any, dialect: Dialect, headers: Headers = EMPTY) -> ChatResponse:
    """Return the response that a whole answer spells.

    Raises:
        ProviderError: The answer is an error in disguise.
        InvalidResponseError: The answer is of no known form.
    """
    if not isinstance(data, Mapping) or not isinstance(data.get("choices"), list):
        raise _no_answer(data, dialect, headers)
    if data.get("error") and not data["choices"]:
        raise error_from(dialect.provider, 0, data, headers)
    generations = tuple(_generation(choice, at) for at, choice in enumerate(data["choices"]))
    return ChatResponse(generations, _metadata(data, headers))


def _no_answer(data: Any, dialect: Dialect, headers: Headers) -> Exception:
    if isinstance(data, Mapping) and data.get("error"):
        return error_from(dialect.provider, 0, data, headers)
    msg = f"{dialect.provider} answered with JSON that is no chat completion: {str(data)[:200]}"
    return InvalidResponseError(msg, provider=dialect.provider, body=data)


def _generation(choice: Mapping[str, Any], at: int) -> Generation:
    message = choice.get("message") or {}
    output = AssistantMessage(_parts(message, _whole_call))
    native = choice.get("finish_reason")
    return Generation(
        output,
        _finish_reason(native, has_calls=bool(output.tool_calls)),
        native,
        choice.get("index") or at,
        _beside(choice, ("message", "finish_reason", "index")),
    )


def _finish_reason(native: str | None, *, has_calls: bool) -> FinishReason | None:
    # A forced tool call ends with "stop" at some servers: what was said counts, not the word.
    if has_calls and native not in ("length", "content_filter"):
        return "tool_call"
    return None if native is None else _FINISH_REASONS.get(native, "stop")


def _beside(data: Mapping[str, Any], known: Iterable[str]) -> Mapping[str, Any]:
    return FrozenDict(
        {key: value for key, value in data.items() if key not in known and value is not None}
    )


def _parts(message: Mapping[str, Any], call_part: Callable[[Any], Any]) -> list[Any]:
    """Return the parts of a message, or of a stream's delta."""
    parts: list[Any] = []
    thoughts = message.get("reasoning_content") or message.get("reasoning")
    if isinstance(thoughts, str) and thoughts:
        parts.append(Reasoning(thoughts))
    content = message.get("content")
    if isinstance(content, str):
        if content:
            parts.append(content)
    elif content:
        parts.extend(_listed_content(content))
    if refusal := message.get("refusal"):
        parts.append(ProviderPart("openai", FrozenDict({"refusal": refusal}), refusal))
    parts.extend(call_part(call) for call in message.get("tool_calls") or ())
    parts.extend(
        ProviderPart("openai", FrozenDict({key: value}))
        for key in ("annotations", "audio", "function_call")
        if (value := message.get(key))
    )
    return parts


def _listed_content(content: Any) -> Iterable[Any]:
    """Yield the parts of content that some servers give as a list, or as the JSON asked for."""
    if not isinstance(content, list):
        yield dumps(content).decode()
        return
    for item in content:
        if item.get("type") == "thinking":
            thinking = item.get("thinking") or []
            yield Reasoning("".join(t.get("text", "") for t in thinking))
        elif text := item.get("text"):
            yield text


def _whole_call(call: Mapping[str, Any]) -> ToolCall:
    chunk = _call_chunk(call)
    return ToolCall(chunk.id, chunk.name, chunk.arguments or "{}", chunk.metadata)


def _call_chunk(call: Mapping[str, Any]) -> ToolCallChunk:
    function = call.get("function") or {}
    arguments = function.get("arguments") or ""
    if not isinstance(arguments, str):  # some servers give the object itself
        arguments = dumps(arguments).decode()
    metadata = {k: call[k] for k in ("extra_content",) if k in call}
    return ToolCallChunk(
        call.get("index"),
        call.get("id") or "",
        function.get("name") or "",
        arguments,
        FrozenDict(metadata) if metadata else EMPTY,
    )


def _metadata(data: Mapping[str, Any], headers: Headers) -> ChatResponseMetadata:
    known = ("id", "model", "usage", "choices", "object")
    return ChatResponseMetadata(
        id=data.get("id") or "",
        model=data.get("model") or "",
        usage=_usage(data),
        rate_limit=rate_limit(headers),
        request_id=headers.get("x-request-id"),
        values=_beside(data, known),
    )


def _usage(data: Mapping[str, Any]) -> Usage:
    usage = data.get("usage") or (data.get("x_groq") or {}).get("usage")
    if not usage:
        return Usage()
    prompt = usage.get("prompt_tokens_details") or usage.get("prompt_token_details") or {}
    output = usage.get("completion_tokens_details") or usage.get("completion_token_details") or {}
    cached = (
        usage.get(k) for k in ("prompt_cache_hit_tokens", "cached_tokens", "num_cached_tokens")
    )
    return Usage(
        usage.get("prompt_tokens") or 0,
        usage.get("completion_tokens") or 0,
        next((n for n in (prompt.get("cached_tokens"), *cached) if n is not None), None),
        prompt.get("cache_write_tokens"),
        output.get("reasoning_tokens"),
        FrozenDict(usage),
    )


def rate_limit(headers: Headers) -> RateLimit | None:
    """Return what `x-ratelimit-*` headers say is left; their times come in too many forms."""
    if "x-ratelimit-remaining-requests" not in headers and (
        "x-ratelimit-remaining-tokens" not in headers
    ):
        return None

    def number(name: str) -> int | None:
        value = headers.get(f"x-ratelimit-{name}", "")
        return int(value) if value.isdigit() else None

    return RateLimit(
        requests_limit=number("limit-requests"),
        requests_remaining=number("remaining-requests"),
        tokens_limit=number("limit-tokens"),
        tokens_remaining=number("remaining-tokens"),
    )


class StreamDecoder:
    """Makes chunks of the events of a stream; no I/O.

    Raises (from both methods):
        ProviderError: The stream reports an error.
        StreamInterruptedError: It ended before its answer did.
        InvalidResponseError: An event cannot be read.
    """

    __slots__ = ("_calls", "_dialect", "_done", "_finished", "_headers", "_id")

    def __init__(self, dialect: Dialect, headers: Headers = EMPTY) -> None:
        self._dialect = dialect
        self._headers = headers
        self._id: str | None = None
        self._calls = False
        self._finished = False
        self._done = False

    def feed(self, data: bytes) -> ChatResponse | str | None:
        """Return the chunk that an event spells, or None when there is nothing in it."""
        if data == b"[DONE]":
            self._done = True
            return None
        try:
            chunk = loads(data)
            choices = chunk.get("choices") or ()
        except (ValueError, AttributeError) as error:
            shown = data[:200].decode(errors="replace")
            msg = f"{self._dialect.provider} streamed something that is not JSON: {shown!r}"
            raise InvalidResponseError(msg, provider=self._dialect.provider) from error
        if len(choices) == 1 and (text := self._plain_text(chunk, choices[0])) is not None:
            return text
        if failure := chunk.get("error"):
            raise error_from(self._dialect.provider, 0, {"error": failure}, self._headers)
        generations = tuple(g for choice in choices if (g := self._delta(choice)) is not None)
        metadata = self._metadata(chunk)
        if not generations and metadata is NO_METADATA:
            return None
        return ChatResponse(generations, metadata)

    def _plain_text(self, chunk: Mapping[str, Any], choice: Mapping[str, Any]) -> str | None:
        """Return the text of a chunk that has nothing else to say, as nearly all have."""
        delta = choice.get("delta")
        if not delta or len(delta) != 1 or self._id is None:
            return None
        text = delta.get("content")
        more = choice.get("index") or choice.get("finish_reason") or choice.get("logprobs")
        if type(text) is not str or more or chunk.get("usage") or "error" in chunk:
            return None
        return text

    def finish(self, rest: bytes) -> None:
        """Make sure that the stream came to its end."""
        if self._finished:
            return
        if rest.strip() and not self._done:
            self.feed(rest.removeprefix(b"data:").strip())  # an error without the stream's form
        if not self._done:
            msg = f"{self._dialect.provider}'s stream ended before its answer did"
            raise StreamInterruptedError(msg, provider=self._dialect.provider)

    def _delta(self, choice: Mapping[str, Any]) -> Generation | None:
        delta = choice.get("delta") or {}
        native = choice.get("finish_reason")
        parts = _parts(delta, _call_chunk)
        self._calls = self._calls or bool(delta.get("tool_calls"))
        if not parts and native is None:
            return None
        self._finished = self._finished or native is not None
        return Generation(
            AssistantMessage(parts),
            _finish_reason(native, has_calls=self._calls) if native is not None else None,
            native,
            choice.get("index") or 0,
            _beside(choice, ("delta", "finish_reason", "index")),
        )

    def _metadata(self, chunk: Mapping[str, Any]) -> ChatResponseMetadata:
        """Return the metadata of a chunk that has something new to say."""
        if self._id is not None and not chunk.get("usage") and "x_groq" not in chunk:
            return NO_METADATA
        self._id = chunk.get("id") or ""
        return _metadata(chunk, self._headers)
