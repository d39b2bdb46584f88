"""Chat Completions answers as responses; no I/O."""

import base64
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from chatclient.json import dumps
from chatclient.messages import (
    AssistantMessage,
    Media,
    ProviderPart,
    Reasoning,
    ToolCall,
    ToolCallChunk,
)
from chatclient.parts import invented_call_id
from chatclient.providers.failures import error_from, no_answer, unreadable
from chatclient.providers.fields import MISSHAPEN, arguments_of, beside, number_of, text_of
from chatclient.providers.keys import Headers
from chatclient.providers.openai_dialect import REASONING_FIELD, Dialect
from chatclient.providers.openai_metadata import metadata_of
from chatclient.providers.openai_thoughts import FIELDS, of_content
from chatclient.response import ChatResponse, FinishReason, Generation
from chatclient.values import EMPTY, FrozenDict

# --- whole answers --------------------------------------------------------------------------


def decode_response(data: Any, dialect: Dialect, headers: Headers = EMPTY) -> ChatResponse:
    """Return the response that a whole answer spells.

    Raises:
        ProviderError: The answer is an error in disguise.
        InvalidResponseError: The answer is of no known form, or there is none in it.
    """
    try:
        refuse_errors(data, dialect, headers)
        generations = tuple(
            _generation(choice, at, dialect.provider)
            for at, choice in enumerate(data["choices"] or ())  # null at gateways that have none
        )
        if not generations:
            raise no_answer(dialect.provider, data)
        return ChatResponse(generations, metadata_of(data, headers))
    except MISSHAPEN as error:
        raise unreadable(dialect.provider, data) from error


def refuse_errors(data: Any, dialect: Dialect, headers: Headers, event: str = "") -> None:
    """Raise the error that an answer, or an event of one, reports although its status is 200."""
    if not isinstance(data, Mapping):
        return
    choices = data.get("choices")
    groq = data.get("x_groq")  # says why a stream was stopped early
    places = (data, groq if isinstance(groq, Mapping) else EMPTY, *(choices or ()))
    failures = (place.get("error") for place in places)
    if failure := next(filter(None, failures), None):
        raise error_from(dialect.provider, 0, {**data, "error": failure}, headers)
    said = choices is None and ("message" in data or "detail" in data)
    if event == "error" or data.get("object") == "error" or said:
        raise error_from(dialect.provider, 0, data, headers)


def _generation(choice: Mapping[str, Any], at: int, provider: str) -> Generation:
    message = choice.get("message") or {}
    output = message_of(message, provider)
    native = choice.get("finish_reason")
    calls, refused = bool(output.tool_calls), bool(message.get("refusal"))
    return Generation(
        output,
        finish_reason(native, calls=calls, refused=refused),
        native,
        number_of(choice.get("index")) or at,
        beside(choice, CHOICE_FIELDS),
    )


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
    """Return why an answer ended, from the provider's word and from what was said."""
    reason = None if native is None else _FINISH_REASONS.get(native, "stop")
    # A forced tool call ends with "stop" at some servers: what was said counts, not the word. Where
    # the word says that the answer was cut off, it counts.
    if calls and reason in (None, "stop"):
        return "tool_call"
    return "content_filter" if refused and reason == "stop" else reason


# --- the parts of a message -----------------------------------------------------------------

CHOICE_FIELDS = frozenset({"message", "delta", "finish_reason", "index", "text"})

# Kept as they are: what the provider's own tools did, and what it wants back.
_KEPT = ("annotations", "executed_tools", "extra_content", *FIELDS)

_COMMON = frozenset({"role", "content", "refusal", "reasoning", "reasoning_content", "tool_calls"})
_MESSAGE_FIELDS = _COMMON | {"function_call", "audio", "images", *_KEPT}


def message_of(message: Mapping[str, Any], provider: str) -> AssistantMessage:
    """Return what the model said in a whole message."""
    parts = parts_of(message, provider, _whole_call)
    return AssistantMessage(parts, metadata=message_metadata(message))


def parts_of(
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
    if refusal := text_of(message.get("refusal")):
        parts.append(_refusal(refusal, provider))
    if not message.keys() <= _COMMON:
        parts.extend(_rare_parts(message, provider, call_part))
    if calls := message.get("tool_calls"):
        parts.extend(call_part(call) for call in calls)
    return parts


def message_metadata(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a message, or a stream's delta, has beside its parts."""
    more = beside(message, _MESSAGE_FIELDS)
    for name in ("reasoning_content", "reasoning"):
        if message.get(name):
            return FrozenDict({**more, REASONING_FIELD: name})
    return more


def _listed_content(content: Any, provider: str) -> Iterator[Any]:
    """Yield the parts of content that some servers give as a list, or as the JSON asked for."""
    if not isinstance(content, list):
        yield dumps(content).decode()
        return
    for item in content:
        kind, text = item.get("type"), item.get("text")
        if kind == "thinking":
            yield _thinking(item, provider)
        elif kind == "reasoning":
            yield from of_content(item, provider)
        elif kind in ("text", None) and isinstance(text, str):
            if text:
                yield text
        elif kind == "refusal":
            yield _refusal(text_of(item.get("refusal")), provider)
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
        yield from _sound(audio, provider, spoken=not message.get("content"))
    for key in _KEPT:
        if value := message.get(key):
            yield ProviderPart(provider, FrozenDict({key: value}))
    call = message.get("function_call")  # from before there were tools
    if call and (call.get("name") or call.get("arguments")):
        yield call_part({"index": 0, "function": call})


def _image(url: str) -> Media:
    head, comma, content = url.partition(",")
    if head.startswith("data:") and comma:
        mime_type = head.removeprefix("data:").partition(";")[0]
        return Media(mime_type or "image/png", base64.b64decode(content))
    return Media("image/png", url)


def _sound(audio: Mapping[str, Any], provider: str, *, spoken: bool) -> Iterator[Any]:
    """Yield what is said, what it sounds like, and the id by which the provider remembers it."""
    id = audio.get("id") or None
    if spoken and (transcript := audio.get("transcript")):
        yield transcript
    if data := audio.get("data"):
        sound = base64.b64decode(data)
        end = audio.get("expires_at")
        metadata = FrozenDict({"expires_at": end}) if end else EMPTY
        yield Media(_sound_type(sound), sound, id, metadata=metadata)
    if id is not None:
        yield ProviderPart(provider, FrozenDict({"audio": {"id": id}}))


_SOUNDS = {b"RIFF": "audio/wav", b"OggS": "audio/ogg", b"fLaC": "audio/flac", b"ID3": "audio/mpeg"}


def _sound_type(sound: bytes) -> str:
    """Return the type of a sound by its first bytes: the answer does not say, the request did."""
    for magic, mime_type in _SOUNDS.items():
        if sound.startswith(magic):
            return mime_type
    if len(sound) > 1 and sound[0] == 0xFF and sound[1] & 0xE0 == 0xE0:  # noqa: PLR2004
        return "audio/aac" if sound[1] & 0x06 == 0 else "audio/mpeg"
    return "audio/pcm"


# --- tool calls -----------------------------------------------------------------------------


def _whole_call(call: Mapping[str, Any]) -> ToolCall:
    id, name, arguments, metadata = _said_of(call)
    if not arguments and "type" not in metadata:
        arguments = "{}"
    # The result has to name one.
    return ToolCall(id or invented_call_id(), name, arguments, metadata)


def call_chunk(call: Mapping[str, Any]) -> ToolCallChunk:
    """Return a fragment of a tool call."""
    return ToolCallChunk(number_of(call.get("index")), *_said_of(call))


def _said_of(call: Mapping[str, Any]) -> tuple[str, str, str, Mapping[str, Any]]:
    """Return the id, the name, the arguments and the metadata of a tool call, or a fragment."""
    extra = call.get("extra_content")
    kept = {"extra_content": extra} if extra else {}
    function = call.get("function")
    if function is None and (function := call.get("custom")) is not None:
        kept["type"] = "custom"
    function = function or {}
    arguments = function.get("arguments") or function.get("input")
    written = arguments_of(arguments) if arguments else ""  # a fragment may have none
    id, name = str(call.get("id") or ""), text_of(function.get("name"))
    return id, name, written, FrozenDict(kept) if kept else EMPTY
