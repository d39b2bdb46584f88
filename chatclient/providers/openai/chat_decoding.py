"""Decodes Chat Completions responses, and usage, rate limits and ids of all; no I/O."""

import base64
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from chatclient._internal.frozen import EMPTY, FrozenDict, merged
from chatclient._internal.json import dumps
from chatclient.chat.messages import (
    AssistantMessage,
    Media,
    ProviderPart,
    Reasoning,
    ToolCall,
    ToolCallChunk,
)
from chatclient.chat.parts import generate_call_id
from chatclient.chat.response import (
    NO_USAGE,
    ChatResponse,
    ChatResponseMetadata,
    FinishReason,
    Generation,
    RateLimit,
    Usage,
)
from chatclient.providers.http.auth import Headers
from chatclient.providers.http.errors import (
    empty_response,
    error_from_data,
    failed_base_response,
    invalid_response,
    parse_duration,
    request_id,
)
from chatclient.providers.openai.dialect import REASONING_FIELD, Dialect
from chatclient.providers.openai.reasoning import FIELDS, ThinkTags, decode_reasoning_item
from chatclient.providers.wire.fields import (
    MALFORMED,
    dump_arguments,
    int_field,
    other_fields,
    parse_count,
    text_field,
)

# `obfuscation` and `p` are padding against traffic analysis.
_KNOWN = frozenset({"id", "model", "usage", "choices", "object", "obfuscation", "p"})


def metadata_of(data: Mapping[str, Any], headers: Headers) -> ChatResponseMetadata:
    """Return the metadata of a response, or of a chunk."""
    return ChatResponseMetadata(
        id=data.get("id") or "",
        model=data.get("model") or "",
        usage=usage_of(data),
        rate_limit=rate_limit(headers),
        request_id=request_id(headers, data),
        values=other_fields(data, _KNOWN),
    )


_CACHED = (
    "prompt_cache_hit_tokens",
    "cached_tokens",
    "num_cached_tokens",
    "cache_read_input_tokens",
)
_WRITTEN = ("cache_creation_input_tokens",)


def usage_of(data: Mapping[str, Any]) -> Usage:
    """Return the usage of a response, or of a chunk."""
    usage = data.get("usage")
    if not usage:
        groq = data.get("x_groq")
        usage = groq.get("usage") if isinstance(groq, Mapping) else None
    if not usage:
        return NO_USAGE
    prompt = usage.get("prompt_tokens_details") or usage.get("prompt_token_details") or {}
    output = usage.get("completion_tokens_details") or usage.get("completion_token_details") or {}
    reasoning = int_field(output.get("reasoning_tokens"))
    sent = int_field(usage.get("prompt_tokens")) or 0
    cached = int_field(prompt.get("cached_tokens"))
    written = int_field(prompt.get("cache_write_tokens"))
    return Usage(
        sent,
        _output_tokens(usage, sent, reasoning or 0),
        _first(usage, _CACHED) if cached is None else cached,
        _first(usage, _WRITTEN) if written is None else written,
        reasoning,
        FrozenDict(usage),
    )


def _first(usage: Mapping[str, Any], names: Iterable[str]) -> int | None:
    """Return the first field of *usage* in *names*."""
    for name in names:
        if (value := usage.get(name)) is not None:
            return int_field(value)
    return None


def _output_tokens(usage: Mapping[str, Any], sent: int, reasoning: int) -> int:
    """Return all generated tokens; xAI's `completion_tokens` do not include reasoning."""
    tokens = int_field(usage.get("completion_tokens")) or 0
    is_separate = sent + tokens + reasoning == int_field(usage.get("total_tokens"))
    return tokens + reasoning if is_separate else tokens


_NOT_LIMITED = RateLimit()


def rate_limit(headers: Headers) -> RateLimit | None:
    """Return the rate limit in the response headers, or None."""
    fields = {
        name.removeprefix("x-").removeprefix("ratelimit-"): value
        for name, value in headers.items()
        if "ratelimit-" in name
    }
    if not fields:
        return None
    # Without a unit, `reset-requests` is ignored: seconds at some services, else milliseconds.
    reset = fields.get("reset-requests")
    # Names of OpenAI, Azure and Groq; of Mistral; of services that limit only requests.
    limit = RateLimit(
        requests_limit=_count(fields, "limit-requests", "limit-req-minute", "limit"),
        requests_remaining=_count(
            fields, "remaining-requests", "remaining-req-minute", "remaining"
        ),
        requests_reset=_count(fields, "reset") if reset is None else parse_duration(reset),
        tokens_limit=_count(fields, "limit-tokens", "limit-tokens-minute"),
        tokens_remaining=_count(fields, "remaining-tokens", "remaining-tokens-minute"),
        tokens_reset=parse_duration(fields.get("reset-tokens", "")),
    )
    return None if limit == _NOT_LIMITED else limit


def _count(fields: Mapping[str, str], *names: str) -> int | None:
    return next((parse_count(fields[name]) for name in names if name in fields), None)


def decode_response(data: Any, dialect: Dialect, headers: Headers = EMPTY) -> ChatResponse:
    """Return the response in *data*, or raise the error that it reports."""
    try:
        raise_for_errors(data, dialect, headers)
        generations = tuple(
            _generation(choice, at, dialect)
            for at, choice in enumerate(data["choices"] or ())  # null at some gateways
        )
        if not generations:
            raise empty_response(dialect.provider, data)
        return ChatResponse(generations, metadata_of(data, headers))
    except MALFORMED as error:
        raise invalid_response(dialect.provider, data, error) from error


def raise_for_errors(data: Any, dialect: Dialect, headers: Headers, event_name: str = "") -> None:
    """Raise the error that a response, or an event of a stream, reports despite status 200."""
    if not isinstance(data, dict):
        return
    choices = data.get("choices")
    groq = data.get("x_groq")  # the reason why a stream was aborted
    places = (data, groq if isinstance(groq, Mapping) else EMPTY, *(choices or ()))
    if error := next(filter(None, (place.get("error") for place in places)), None):
        raise error_from_data(dialect.provider, 0, {**data, "error": error}, headers)
    is_message = choices is None and ("message" in data or "detail" in data)
    is_failure = data.get("success") is False or failed_base_response(data)
    if event_name == "error" or data.get("object") == "error" or is_message or is_failure:
        raise error_from_data(dialect.provider, 0, data, headers)


def _generation(choice: Mapping[str, Any], at: int, dialect: Dialect) -> Generation:
    message = choice.get("message") or {}
    output = decode_message(message, dialect.provider)
    if dialect.think_tags:
        tags = ThinkTags(dialect.provider)
        parts = [*tags.split(output.parts), *tags.end()]
        output = AssistantMessage(parts, metadata=output.metadata)
    native = choice.get("finish_reason")
    calls, refused = bool(output.tool_calls), bool(message.get("refusal"))
    return Generation(
        output,
        finish_reason(native, calls=calls, refused=refused),
        native,
        int_field(choice.get("index")) or at,
        _choice_metadata(choice),
    )


def _choice_metadata(choice: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the other fields of a complete choice; log probabilities as in a stream."""
    fields = other_fields(choice, CHOICE_FIELDS)
    if not (logprobs := fields.get("logprobs")):
        return fields
    return FrozenDict({**fields, "logprobs": {k: v for k, v in logprobs.items() if v}})


_FINISH_REASONS: dict[str, FinishReason] = {
    "stop": "stop",
    "eos": "stop",
    "": "stop",
    "length": "length",
    "model_length": "length",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_calls": "tool_call",
    "function_call": "tool_call",
    "content_filter": "content_filter",
    "sensitive": "content_filter",
    "error": "error",
    "abort": "error",
    "network_error": "error",
    "insufficient_system_resource": "error",
}


def finish_reason(native: str | None, *, calls: bool, refused: bool) -> FinishReason | None:
    """Return the finish reason, from the provider's reason and the content of the answer."""
    reason = None if native is None else _FINISH_REASONS.get(native, "stop")
    # Some servers report "stop" after a forced tool call. Other reasons, such as "length", are
    # correct.
    if calls and reason in (None, "stop"):
        return "tool_call"
    return "content_filter" if refused and reason == "stop" else reason


CHOICE_FIELDS = frozenset({"message", "delta", "finish_reason", "index", "text"})

# Kept unchanged: results of the provider's own tools, and fields to send back.
_KEPT_FIELDS = ("annotations", "executed_tools", "extra_content", *FIELDS)

_COMMON_FIELDS = frozenset(
    {"role", "content", "refusal", "reasoning", "reasoning_content", "tool_calls"}
)
_MESSAGE_FIELDS = _COMMON_FIELDS | {"function_call", "audio", "images", *_KEPT_FIELDS}


def decode_message(message: Mapping[str, Any], provider: str) -> AssistantMessage:
    """Return a complete message."""
    parts = decode_parts(message, provider, _decode_call)
    return AssistantMessage(parts, metadata=message_metadata(message))


def decode_parts(
    message: Mapping[str, Any], provider: str, call_part: Callable[[Mapping[str, Any]], Any]
) -> list[Any]:
    """Return the parts of a message, or of a stream's delta."""
    parts: list[Any] = []
    thoughts = message.get("reasoning_content") or message.get("reasoning")
    if isinstance(thoughts, str) and thoughts:
        parts.append(Reasoning(thoughts, provider=provider))
    content = message.get("content")
    if isinstance(content, str):
        if content:
            parts.append(content)
    elif content:
        parts.extend(_listed_content(content, provider))
    if refusal := text_field(message.get("refusal")):
        parts.append(_refusal(refusal, provider))
    if not message.keys() <= _COMMON_FIELDS:
        parts.extend(_rare_parts(message, provider, call_part))
    if calls := message.get("tool_calls"):
        parts.extend(call_part(call) for call in calls)
    return parts


def message_metadata(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fields of a message, or a stream's delta, that are not decoded to parts."""
    metadata = other_fields(message, _MESSAGE_FIELDS)
    for name in ("reasoning_content", "reasoning"):
        if message.get(name):
            return FrozenDict({**metadata, REASONING_FIELD: name})
    return metadata


def _listed_content(content: Any, provider: str) -> Iterator[Any]:
    """Yield the parts of content that is a list, or (at some servers) the requested JSON."""
    if not isinstance(content, list):
        yield dumps(content).decode()
        return
    for item in content:
        kind, text = item.get("type"), item.get("text")
        if kind == "thinking":
            yield _thinking(item, provider)
        elif kind == "reasoning":
            yield from decode_reasoning_item(item, provider)
        elif kind in ("text", None) and isinstance(text, str):
            if text:
                yield text
        elif kind == "refusal":
            yield _refusal(text_field(item.get("refusal")), provider)
        else:
            yield ProviderPart(provider, FrozenDict(item), text if isinstance(text, str) else "")


def _refusal(text: str, provider: str) -> ProviderPart:
    return ProviderPart(provider, FrozenDict({"refusal": text}), text)


def _thinking(item: Mapping[str, Any], provider: str) -> Reasoning:
    thinking = item.get("thinking") or ()
    if isinstance(thinking, str):
        return Reasoning(thinking, provider=provider)
    text = "".join(piece.get("text") or "" for piece in thinking)
    plain = all(piece.get("type") == "text" for piece in thinking)
    return Reasoning(text, provider=provider, data=None if plain else FrozenDict(item))


def _rare_parts(
    message: Mapping[str, Any], provider: str, call_part: Callable[[Mapping[str, Any]], Any]
) -> Iterator[Any]:
    for image in message.get("images") or ():
        yield _image(image["image_url"]["url"])
    if audio := message.get("audio"):
        with_transcript = not message.get("content")
        # Yield the transcript, the audio data, and the provider's id of the audio.
        id = audio.get("id") or None
        if with_transcript and (transcript := audio.get("transcript")):
            yield transcript
        if data := audio.get("data"):
            content = base64.b64decode(data)
            end = audio.get("expires_at")
            metadata = FrozenDict({"expires_at": end}) if end else EMPTY
            yield Media(_audio_type(content), content, id, metadata=metadata)
        if id is not None:
            yield ProviderPart(provider, FrozenDict({"audio": {"id": id}}))
    for key in _KEPT_FIELDS:
        if value := message.get(key):
            yield ProviderPart(provider, FrozenDict({key: value}))
    call = message.get("function_call")  # deprecated form of `tool_calls`
    if call and (call.get("name") or call.get("arguments")):
        yield call_part({"index": 0, "function": call})


def _image(url: str) -> Media:
    head, comma, content = url.partition(",")
    if head.startswith("data:") and comma:
        mime_type = head.removeprefix("data:").partition(";")[0]
        return Media(mime_type or "image/png", base64.b64decode(content))
    return Media("image/png", url)


_AUDIO = {b"RIFF": "audio/wav", b"OggS": "audio/ogg", b"fLaC": "audio/flac", b"ID3": "audio/mpeg"}


def _audio_type(content: bytes) -> str:
    """Return the MIME type by the first bytes; only the request contained the format."""
    for magic, mime_type in _AUDIO.items():
        if content.startswith(magic):
            return mime_type
    if len(content) > 1 and content[0] == 0xFF and content[1] & 0xE0 == 0xE0:  # noqa: PLR2004
        return "audio/aac" if content[1] & 0x06 == 0 else "audio/mpeg"
    return "audio/pcm"


def _decode_call(call: Mapping[str, Any]) -> ToolCall:
    id, name, arguments, metadata = _call_fields(call)
    if not arguments and "type" not in metadata:
        arguments = "{}"
    # The tool's result refers to an id.
    return ToolCall(id or generate_call_id(), name, arguments, metadata)


def call_chunk(call: Mapping[str, Any]) -> ToolCallChunk:
    """Return a chunk of a tool call."""
    return ToolCallChunk(int_field(call.get("index")), *_call_fields(call))


def _call_fields(call: Mapping[str, Any]) -> tuple[str, str, str, Mapping[str, Any]]:
    """Return id, name, arguments and metadata of a tool call, or of a chunk of one."""
    extra = call.get("extra_content")
    metadata = FrozenDict({"extra_content": extra}) if extra else EMPTY
    function = call.get("function")
    if function is None and (function := call.get("custom")) is not None:
        metadata = merged(metadata, {"type": "custom"})
    function = function or {}
    arguments = function.get("arguments") or function.get("input")
    text = dump_arguments(arguments) if arguments else ""  # a chunk may have none
    return str(call.get("id") or ""), text_field(function.get("name")), text, metadata
