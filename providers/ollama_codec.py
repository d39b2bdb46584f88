"""Ollama's messages and lines, both ways; no I/O."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from chatclient.errors import InvalidResponseError, UsageError
from chatclient.messages import (
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
from chatclient.options import ChatOptions
from chatclient.parts import invented_call_id
from chatclient.providers.failures import ended_early, refuse_error, unreadable
from chatclient.providers.fields import (
    MISSHAPEN,
    arguments_in,
    arguments_of,
    beside,
    fields_of,
    number_of,
    object_in,
    overlaid,
    text_of,
    unsendable,
)
from chatclient.providers.media import base64_of, shown_by_tool
from chatclient.providers.sse import LARGEST_EVENT
from chatclient.response import (
    NO_METADATA,
    ChatResponse,
    ChatResponseMetadata,
    FinishReason,
    Generation,
    Usage,
)
from chatclient.tool import ToolDefinition
from chatclient.values import EMPTY, FrozenDict

PROVIDER = "ollama"

# --- encoding -------------------------------------------------------------------------------

_SAME_NAME = ("model", "think", "keep_alive", "logprobs", "top_logprobs")
_MODEL_OPTIONS = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "max_tokens": "num_predict",
    "stop": "stop",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "repeat_penalty": "repeat_penalty",
    "seed": "seed",
    "num_ctx": "num_ctx",
}


def encode_options(options: ChatOptions, *, streaming: bool) -> dict[str, Any]:
    """Return all of a request but its messages."""
    body = fields_of(options, {name: name for name in _SAME_NAME})
    body["stream"] = streaming  # its default is true
    parameters = fields_of(options, _MODEL_OPTIONS)
    parameters.update(getattr(options, "model_options", None) or {})
    if parameters:
        body["options"] = parameters
    wanted = getattr(options, "response_format", None)
    if options.output_schema is not None or wanted is not None:
        body["format"] = wanted if options.output_schema is None else options.output_schema
    if options.tool_callbacks and options.tool_choice != "none":
        body["tools"] = [_tool(callback.definition) for callback in options.tool_callbacks]
    return overlaid(body, options.extra)


def _tool(definition: ToolDefinition) -> dict[str, Any]:
    function = {
        "name": definition.name,
        "description": definition.description,
        "parameters": definition.input_schema,
    }
    return {"type": "function", "function": function}


def encode_message(message: Message, _form: str = PROVIDER) -> list[dict[str, Any]]:
    """Return *message* in the only form there is; tool responses become a message each."""
    match message:
        case SystemMessage():
            return [{"role": "system", "content": message.text}]
        case UserMessage():
            body = {"role": "user", "content": message.text}
            return [_with_images(body, [_image(media) for media in message.media])]
        case AssistantMessage():
            return [_assistant(message)]
        case ToolResponseMessage():
            return list(_tool_responses(message))
        case _:
            raise unsendable(message)


def _assistant(message: AssistantMessage) -> dict[str, Any]:
    body: dict[str, Any] = {"role": "assistant", "content": message.text}
    if thoughts := "".join(r.text for r in message.reasoning if r.provider == PROVIDER):
        body["thinking"] = thoughts
    if message.tool_calls:
        body["tool_calls"] = [_tool_call(call) for call in message.tool_calls]
    return _with_images(body, [_image(m) for m in message.media if _is_known_image(m)])


def _is_known_image(media: Media) -> bool:
    """Return whether *media* can be sent; another model may have spoken, or drawn elsewhere."""
    return media.mime_type.startswith("image/") and base64_of(media) is not None


def _tool_call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": arguments_in(call.arguments)}
    return {"id": call.id, "function": function}


def _tool_responses(message: ToolResponseMessage) -> Iterable[dict[str, Any]]:
    for response in message.responses:
        images, told = shown_by_tool(response.media, _image)
        body = {
            "role": "tool",
            "content": "\n".join(filter(None, [response.data, *told])),
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


# --- decoding -------------------------------------------------------------------------------


class Lines:
    """Takes the bytes of a stream as they come and gives the lines they complete.

    Args:
        limit: How many bytes a line may have, so that a server gone wild cannot fill the memory.
    """

    __slots__ = ("_limit", "_rest")

    def __init__(self, limit: int = LARGEST_EVENT) -> None:
        self._limit = limit
        self._rest = bytearray()

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the lines that *chunk* completes, without blank ones.

        Raises:
            InvalidResponseError: A line is longer than the limit.
        """
        if b"\n" not in chunk:
            self._rest += chunk
            if len(self._rest) > self._limit:
                msg = f"a line of the stream is longer than {self._limit:,} bytes"
                raise InvalidResponseError(msg, provider=PROVIDER)
            return []
        first, *lines = chunk.split(b"\n")
        lines = [bytes(self._rest) + first, *lines]
        self._rest = bytearray(lines.pop())
        return [line for line in lines if line.strip()]

    def finish(self) -> bytes:
        """Return the last line, if it has no end."""
        return bytes(self._rest).strip()


def decode_response(body: bytes) -> ChatResponse:
    """Return the response that a whole answer spells.

    Raises:
        ProviderError: The answer is an error in disguise.
        InvalidResponseError: The answer is of no known form.
    """
    data = _read(body)
    try:
        return _response(data, [*_content(data), *_calls(data)], _metadata(data))
    except MISSHAPEN as error:
        raise unreadable(PROVIDER, body) from error


def _read(body: bytes) -> dict[str, Any]:
    """Return an answer or a line of one, which is known to have a message."""
    data = object_in(body)
    refuse_error(PROVIDER, data, EMPTY)
    if data is None or not isinstance(data.get("message"), dict):
        raise unreadable(PROVIDER, body)
    return data


def _content(data: Mapping[str, Any]) -> Iterable[Part]:
    message = data["message"]
    if thoughts := text_of(message.get("thinking")):
        yield Reasoning(thoughts, provider=PROVIDER)
    if text := text_of(message.get("content")):
        yield text


def _calls(data: Mapping[str, Any]) -> Iterable[ToolCall]:
    for call in data["message"].get("tool_calls") or ():
        function = call.get("function") or {}
        arguments = arguments_of(function.get("arguments"))
        # Older servers give calls no id.
        id = text_of(call.get("id")) or invented_call_id()
        yield ToolCall(id, text_of(function.get("name")), arguments)


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
        number_of(data.get("prompt_eval_count")) or 0,  # missing where all of it was cached
        number_of(data.get("eval_count")) or 0,
        native=FrozenDict(figures) if figures else EMPTY,
    )
    known = ("model", "message", "done", "done_reason", "logprobs", *figures)
    return ChatResponseMetadata(
        model=data.get("model") or "", usage=usage, values=beside(data, known)
    )


class StreamDecoder:
    """Makes chunks of the lines of a stream; no I/O.

    Attributes:
        complete: Whether the server has said that nothing more comes.

    Raises (from `feed` and `finish`):
        ProviderError: The stream reports an error.
        StreamInterruptedError: It ended before its answer did.
        InvalidResponseError: A line cannot be read.
    """

    __slots__ = ("_calls", "_logprobs", "_started", "complete")

    def __init__(self) -> None:
        self._started = False
        self.complete = False
        self._calls = 0
        self._logprobs: list[Any] = []

    def feed(self, line: bytes) -> ChatResponse | str:
        """Return the chunk that a line spells."""
        data = _read(line)
        try:
            return self._chunk(data)
        except MISSHAPEN as error:
            raise unreadable(PROVIDER, line) from error

    def _chunk(self, data: Mapping[str, Any]) -> ChatResponse | str:
        message = data["message"]
        plain = not (data.get("done") or message.get("thinking") or message.get("tool_calls"))
        if plain and self._started and not data.get("logprobs"):
            return text_of(message.get("content"))
        metadata = NO_METADATA if self._started and not data.get("done") else _metadata(data)
        self._started = True
        self.complete = self.complete or bool(data.get("done"))
        parts = [*_content(data), *self._call_chunks(data)]
        self._logprobs.extend(data.get("logprobs") or ())
        if self.complete and self._logprobs:  # the end tells those of all tokens
            data = {**data, "logprobs": self._logprobs}
        return _response(data, parts, metadata, has_calls=self._calls > 0)

    def finish(self, rest: bytes) -> ChatResponse | str | None:
        """Return what a last line without an end says, once the answer is known to be whole.

        Args:
            rest: That line, or nothing.
        """
        last = None
        if rest:
            with suppress(InvalidResponseError):
                last = self.feed(rest)
        if not self.complete:
            raise ended_early(PROVIDER)
        return last

    def _call_chunks(self, data: Mapping[str, Any]) -> Iterable[ToolCallChunk]:
        for call in _calls(data):
            yield ToolCallChunk(self._calls, call.id, call.name, call.arguments)
            self._calls += 1
