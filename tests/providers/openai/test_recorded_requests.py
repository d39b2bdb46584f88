"""Round trips of recorded requests through messages and options."""

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import pytest

from chatclient._internal.json import loads
from chatclient.chat.messages import (
    AssistantMessage,
    Media,
    Message,
    ProviderPart,
    Reasoning,
    SystemMessage,
    ToolCall,
    ToolResponse,
    ToolResponseMessage,
    UserMessage,
)
from chatclient.chat.serialization import message_from_dict, message_to_dict
from chatclient.chat.tool import ToolContext, ToolDefinition, ToolMetadata, ToolResult
from chatclient.providers.openai.chat import OpenAIChatOptions, encode_options
from chatclient.providers.openai.chat_decoding import decode_response
from chatclient.providers.openai.chat_encoding import encode_message
from chatclient.providers.openai.chat_format import messages_from_openai, messages_to_openai
from chatclient.providers.openai.dialect import (
    COMPATIBLE,
    OPENAI,
    PRESETS,
    REASONING_FIELD,
    Dialect,
)
from chatclient.providers.wire.request_body import RequestHead
from tests.support.replay import RECORDINGS, Exchange, exchanges, needs_recordings

pytestmark = needs_recordings

# Rejected requests may have been invalid.
REQUESTS = [e for e in exchanges("openai.chat", extra=False) if e.status == 200]


def dialect_of(exchange: Exchange) -> Dialect:
    preset = PRESETS.get(exchange.provider)
    return preset.dialect if preset else OPENAI if exchange.provider == "openai" else COMPATIBLE


# --- from JSON to messages ------------------------------------------------------------------


def messages_of(wire: list[dict[str, Any]], dialect: Dialect) -> list[Message]:
    names = {c.get("id"): c["function"]["name"] for m in wire for c in m.get("tool_calls") or ()}
    messages: list[Message] = []
    for role, group in groupby(wire, key=lambda message: message["role"]):
        if role == "tool":
            messages.append(ToolResponseMessage([tool_response(m, names) for m in group]))
            continue
        read = {"user": user, "assistant": assistant}.get(role, system)
        messages.extend(read(message, dialect) for message in group)
    return messages


def system(wire: dict[str, Any], _dialect: Dialect) -> SystemMessage:
    content = wire["content"]
    metadata = {} if wire["role"] == "system" else {"role": wire["role"]}
    if isinstance(content, str):
        return SystemMessage(content, metadata)
    cached = {key: part[key] for part in content for key in part.keys() & {"cache_control"}}
    return SystemMessage("".join(part["text"] for part in content), {**metadata, **cached})


def user(wire: dict[str, Any], dialect: Dialect) -> UserMessage:
    content = wire["content"]
    parts: list[Any] = [content]
    if not isinstance(content, str):
        parts = [content_part(part, dialect) for part in content]
    if name := wire.get("name"):
        parts.append(ProviderPart(dialect.provider, {"name": name}))
    return UserMessage(parts)


def content_part(wire: dict[str, Any], dialect: Dialect) -> Any:
    kind = wire["type"]
    known = {key for key, value in wire.items() if value is not None} <= {"type", kind}
    match kind:
        case "text" if known:
            return wire["text"]
        case "image_url" if known:
            return image_media_of(wire["image_url"])
        case "video_url":
            return media_of(wire["video_url"]["url"], "video/webm")
        case "document_url":
            return media_of(wire["document_url"], "application/pdf")
        case "input_audio":
            sound = wire["input_audio"]
            return Media(f"audio/{sound['format']}", base64.b64decode(sound["data"]))
        case "file" if "file_data" in wire["file"]:
            name = wire["file"].get("filename")
            return media_of(wire["file"]["file_data"], "application/pdf", name=name)
        case _:
            return ProviderPart(dialect.provider, wire, wire.get("text") or "")


def image_media_of(wire: Any) -> Media:
    image = image_of(wire)
    return media_of(image.pop("url"), "image/png", metadata=image)


def image_of(wire: Any) -> dict[str, Any]:
    return {"url": wire} if isinstance(wire, str) else dict(wire)


def media_of(url: str, mime_type: str, **more: Any) -> Media:
    head, _, content = url.partition(";base64,")
    if not content:
        return Media(mime_type, url, **more)
    return Media(head.removeprefix("data:"), base64.b64decode(content), **more)


def assistant(wire: dict[str, Any], dialect: Dialect) -> AssistantMessage:
    parts: list[Any] = []
    metadata: dict[str, Any] = {}
    for key in ("reasoning_content", "reasoning"):
        if (thoughts := wire.get(key)) and not parts:
            parts.append(Reasoning(thoughts, provider=dialect.provider))
            metadata[REASONING_FIELD] = key
    content = wire.get("content")
    for part in [content] if isinstance(content, str) else content or ():
        if isinstance(part, dict) and part["type"] == "thinking":
            text = "".join(piece["text"] for piece in part["thinking"])
            parts.append(Reasoning(text, provider=dialect.provider))
        else:
            parts.append(part if isinstance(part, str) else part["text"])
    parts.extend(
        ProviderPart(dialect.provider, {key: wire[key]}, wire[key] if key == "refusal" else "")
        for key in ("refusal", "reasoning_details", "name", "prefix")
        if wire.get(key)
    )
    for at, call in enumerate(wire.get("tool_calls") or ()):
        function = call["function"]
        parts.append(
            ToolCall(call.get("id") or f"call_{at}", function["name"], function["arguments"])
        )
    return AssistantMessage(parts, metadata=metadata)


def tool_response(wire: dict[str, Any], names: Mapping[str | None, str]) -> ToolResponse:
    id, content = wire.get("tool_call_id"), wire["content"]
    media: list[Media] = []
    if not isinstance(content, str):
        media = [image_media_of(p["image_url"]) for p in content if p["type"] == "image_url"]
        content = "".join(part["text"] for part in content if part["type"] == "text")
    name = names.get(id) or wire.get("name") or ""
    return ToolResponse(id or "call_0", name, content, media=tuple(media))


# --- comparison of messages -----------------------------------------------------------------


def normalized(wire: list[dict[str, Any]]) -> list[Any]:
    """Return JSON messages in a normal form for comparison."""
    result: list[Any] = []
    for message in wire:
        content = list(parts_in(message.get("content")))
        if message["role"] == "tool":
            result.append(("tool", message.get("tool_call_id"), texts_in(content)))
            content = [part for part in content if part["type"] != "text"]
        elif texts_in(content).startswith("Content returned by tool"):
            content = content[1:]  # the introduction that the encoder adds to a tool's images
        else:
            result.append((message["role"], texts_in(content), other_fields_in(message)))
            result.extend(marks_in(content))
        result.extend(part for part in content if part["type"] != "text")
    return result


def parts_in(content: Any) -> Iterator[dict[str, Any]]:
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content or ()
    for part in parts:
        known: dict[str, Any] = {key: v for key, v in part.items() if v is not None}
        if "image_url" in known:
            known["image_url"] = image_of(known["image_url"])
        if "thinking" in known:
            known["thinking"] = "".join(thought["text"] for thought in known["thinking"])
        yield known


def texts_in(content: list[dict[str, Any]]) -> str:
    return "".join(part["text"] for part in content if part["type"] == "text")


def marks_in(content: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return fields of text parts besides the text, such as cache marks."""
    texts = (part for part in content if part["type"] == "text")
    marks = ({k: v for k, v in part.items() if k not in ("type", "text")} for part in texts)
    return [mark for mark in marks if mark]


def other_fields_in(message: dict[str, Any]) -> dict[str, Any]:
    fields = {
        "reasoning": message.get("reasoning_content") or message.get("reasoning"),
        "calls": [
            (call["function"]["name"], json.loads(call["function"]["arguments"]))
            for call in message.get("tool_calls") or ()
        ],
        "ids": [call["id"] for call in message.get("tool_calls") or () if "id" in call],
        **{key: message.get(key) for key in ("refusal", "reasoning_details", "name", "prefix")},
    }
    return {key: value for key, value in fields.items() if value}


def encoded(messages: list[Message], dialect: Dialect) -> list[dict[str, Any]]:
    elements = [element for m in messages for element in encode_message(m, dialect)]
    encoded: list[dict[str, Any]] = json.loads(json.dumps(elements))
    return encoded


def without_generated_ids(encoded: list[dict[str, Any]]) -> None:
    """Remove generated call ids from *encoded* where the recording has none."""
    for message in encoded:
        for call in message.get("tool_calls") or ():
            if call["id"].startswith("call_") and len(call["id"]) < 8:
                del call["id"]
        if message.get("tool_call_id") == "call_0":
            del message["tool_call_id"]


def test_recorded_conversation_round_trip() -> None:
    """Text, media, reasoning, calls, results, names and cache marks are kept."""
    lost: dict[str, Any] = {}
    for exchange in REQUESTS:
        dialect = dialect_of(exchange)
        encoded_answer = encoded(messages_of(exchange.request["messages"], dialect), dialect)
        without_generated_ids(encoded_answer)
        recorded = normalized(exchange.request["messages"])
        if normalized(encoded_answer) != recorded:
            lost[str(exchange)] = list(zip(normalized(encoded_answer), recorded, strict=False))

    assert lost == {}


@pytest.mark.feature("lc4j-conversations-openai-them")
def test_recorded_conversation_import() -> None:
    """Conversations sent to OpenAI are imported and exported without change."""
    recorded = [e.request["messages"] for e in REQUESTS if e.provider == "openai"]
    lost = {}
    for messages in recorded:
        again = json.loads(json.dumps(messages_to_openai(messages_from_openai(messages))))
        if normalized(again) != normalized(messages):
            lost[json.dumps(messages)] = again

    assert lost == {}
    assert any("tool_calls" in message for messages in recorded for message in messages)


def test_stored_conversation_is_sent_unchanged() -> None:
    """A conversation restored from memory is sent byte for byte as before."""
    for exchange in REQUESTS:
        dialect = dialect_of(exchange)
        messages = messages_of(exchange.request["messages"], dialect)
        stored = [json.loads(json.dumps(message_to_dict(message))) for message in messages]

        assert encoded([message_from_dict(s) for s in stored], dialect) == encoded(
            messages, dialect
        )


# --- options --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Declared:
    """A tool with a definition only."""

    definition: ToolDefinition
    metadata: ToolMetadata = field(default_factory=ToolMetadata)

    async def invoke(self, arguments: str, context: ToolContext) -> ToolResult:
        raise NotImplementedError


RENAMED = {
    "max_completion_tokens": "max_tokens",
    "random_seed": "seed",
    "metadata": "request_metadata",
}


def options_of(request: dict[str, Any]) -> OpenAIChatOptions:
    given = {RENAMED.get(key, key): value for key, value in request.items() if value is not None}
    for key in ("messages", "stream", "stream_options"):
        given.pop(key, None)
    functions = [t["function"] for t in given.get("tools") or () if is_function(t)]
    extra = {"tools": [t for t in given.pop("tools", ()) if not is_function(t)]}
    if functions:
        given["tool_callbacks"] = tuple(Declared(definition_of(f)) for f in functions)
    choice = given.get("tool_choice")
    if isinstance(choice, dict) and "function" in choice:
        given["tool_choice"] = choice["function"]["name"]
    elif choice == "any" or not functions:
        extra["tool_choice"] = given.pop("tool_choice", None)
    if isinstance(given.get("stop"), str):
        given["stop"] = (given["stop"],)
    known = OpenAIChatOptions.__dataclass_fields__.keys() - {"reasoning"}  # OpenRouter's object
    extra.update({key: given.pop(key) for key in list(given) if key not in known})
    return OpenAIChatOptions(extra={k: v for k, v in extra.items() if v}, **given)


def is_function(tool: dict[str, Any]) -> bool:
    return "function" in tool


def definition_of(function: dict[str, Any]) -> ToolDefinition:
    return ToolDefinition(
        function["name"],
        function.get("description") or "",
        function.get("parameters") or {},
        function.get("strict"),
    )


def settings(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a request in a normal form."""
    sent = {RENAMED.get(key, key): value for key, value in request.items() if value}
    for key in ("messages", "stream", "stream_options"):
        sent.pop(key, None)
    if "tools" in sent:
        tools = [settings_of_tool(tool) for tool in sent["tools"]]
        sent["tools"] = sorted(tools, key=lambda tool: json.dumps(tool, sort_keys=True))
    if isinstance(sent.get("tool_choice"), dict):
        sent["tool_choice"] = sent["tool_choice"]["function"]
    if isinstance(sent.get("stop"), str):
        sent["stop"] = [sent["stop"]]
    return sent


def settings_of_tool(tool: dict[str, Any]) -> dict[str, Any]:
    if not is_function(tool):
        return tool
    return {key: value for key, value in tool["function"].items() if value or key == "strict"}


def test_recorded_options_round_trip() -> None:
    """Every field of every recorded request is an option or part of `extra`."""
    lost: dict[str, Any] = {}
    for exchange in REQUESTS:
        options = options_of(exchange.request)
        fields = encode_options(options, dialect_of(exchange), streaming=exchange.streaming)
        encoded_answer = settings(json.loads(RequestHead(fields, options.extra).body({})))
        recorded = settings(exchange.request)
        if encoded_answer != recorded:
            keys = encoded_answer.keys() | recorded.keys()
            lost[str(exchange)] = {
                k: (encoded_answer.get(k), recorded.get(k))
                for k in keys
                if encoded_answer.get(k) != recorded.get(k)
            }

    assert lost == {}


# --- the official schema --------------------------------------------------------------------


def test_requests_match_the_official_schema() -> None:
    """Recorded conversations are sent to OpenAI as valid requests."""
    jsonschema = pytest.importorskip("jsonschema")
    path = RECORDINGS / "schemas" / "openai-chat-request.json"
    official = jsonschema.Draft202012Validator(json.loads(path.read_text(encoding="utf-8")))
    problems: dict[str, str] = {}
    openai = replace(OPENAI, documents_by_url=True)  # in some conversations of other services
    for exchange in REQUESTS:
        messages = messages_of(exchange.request["messages"], dialect_of(exchange))
        options = options_of(exchange.request)
        if exchange.provider not in (
            "openai",
            "azure",
        ):  # OpenAI lacks the other fields of these services
            options = options.mutate(extra={}, reasoning_effort=None, service_tier=None, top_k=None)
        fields = encode_options(options, OPENAI, streaming=exchange.streaming) | {"model": "m"}
        body = json.loads(RequestHead(fields, options.extra).body({}))
        body["messages"] = json.loads(json.dumps(encoded(messages, openai)))
        if error := jsonschema.exceptions.best_match(official.iter_errors(body)):
            problems[str(exchange)] = f"{list(error.absolute_path)}: {error.message[:300]}"

    assert problems == {}


# --- answers in later requests --------------------------------------------------------------


def follow_ups() -> Iterator[tuple[Exchange, dict[str, Any]]]:
    """Yield exchanges whose answer the client sent back unchanged, and the message."""
    by_source = {exchange.recorded["source"]: exchange for exchange in REQUESTS}
    for source, exchange in by_source.items():
        cassette, _, number = source.rpartition("#")
        following = by_source.get(f"{cassette}#{int(number) + 1}")
        if following is None or "body" not in exchange.response:
            continue
        sent, then = exchange.request["messages"], following.request["messages"][:-1]
        if len(then) > len(sent) and then[: len(sent)] == sent:
            message = then[len(sent)]
            if comparable_content(message) == comparable_content(answer_of(exchange)):
                yield exchange, message


def answer_of(exchange: Exchange) -> dict[str, Any]:
    message: dict[str, Any] = exchange.response["body"]["choices"][0]["message"]
    return message


def comparable_content(message: dict[str, Any]) -> Any:
    meaning = other_fields_in(message)
    return (
        texts_in(list(parts_in(message.get("content")))),
        meaning.get("calls"),
        meaning.get("ids"),
    )


def test_answers_are_sent_back_as_recorded() -> None:
    """An answer sent back equals that of the recorded follow-up request."""
    pairs = list(follow_ups())
    for exchange, recorded in pairs:
        response = decode_response(loads(exchange.body), dialect_of(exchange))
        assert response.output is not None
        (encoded_answer,) = encoded([response.output], dialect_of(exchange))

        assert comparable_content(encoded_answer) == comparable_content(recorded), exchange

    assert len(pairs) > 20
