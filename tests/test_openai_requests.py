"""Recorded requests, taken into our messages and options and written again: nothing is lost."""

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import pytest
from replay import RECORDINGS, Exchange, exchanges, needs_recordings

from chatclient.json import loads
from chatclient.messages import (
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
from chatclient.providers.compatible import PRESETS
from chatclient.providers.openai import (
    COMPATIBLE,
    OPENAI,
    Dialect,
    OpenAIChatOptions,
    decode_response,
    encode_message,
    encode_options,
)
from chatclient.providers.openai_dialect import REASONING_FIELD
from chatclient.providers.openai_messages import messages_from_openai, messages_to_openai
from chatclient.serialization import message_from_dict, message_to_dict
from chatclient.tool import ToolContext, ToolDefinition, ToolMetadata, ToolResult

pytestmark = needs_recordings

# What was refused may have been refused for its form.
REQUESTS = [e for e in exchanges("openai.chat", extra=False) if e.status == 200]


def dialect_of(exchange: Exchange) -> Dialect:
    preset = PRESETS.get(exchange.provider)
    return preset.dialect if preset else OPENAI if exchange.provider == "openai" else COMPATIBLE


# --- from the wire into our messages --------------------------------------------------------


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


# --- what two messages on the wire have in common -------------------------------------------


def essence(wire: list[dict[str, Any]]) -> list[Any]:
    """Return the meaning of messages, however it is written."""
    result: list[Any] = []
    for message in wire:
        content = list(parts_in(message.get("content")))
        if message["role"] == "tool":
            result.append(("tool", message.get("tool_call_id"), texts_in(content)))
            content = [part for part in content if part["type"] != "text"]
        elif texts_in(content).startswith("Content returned by tool"):
            content = content[1:]  # the introduction that a tool's images get from us
        else:
            result.append((message["role"], texts_in(content), beside_in(message)))
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
    """Return what texts have beside their text, such as cache marks."""
    texts = (part for part in content if part["type"] == "text")
    marks = ({k: v for k, v in part.items() if k not in ("type", "text")} for part in texts)
    return [mark for mark in marks if mark]


def beside_in(message: dict[str, Any]) -> dict[str, Any]:
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


def written(messages: list[Message], dialect: Dialect) -> list[dict[str, Any]]:
    elements = [element for m in messages for element in encode_message(m, dialect)]
    written: list[dict[str, Any]] = json.loads(json.dumps(elements))
    return written


def made_up_ids_removed(written: list[dict[str, Any]]) -> None:
    """Take out of *written* the ids of calls that had none on record."""
    for message in written:
        for call in message.get("tool_calls") or ():
            if call["id"].startswith("call_") and len(call["id"]) < 8:
                del call["id"]
        if message.get("tool_call_id") == "call_0":
            del message["tool_call_id"]


def test_recorded_conversations_go_through_our_messages_unchanged() -> None:
    """Text, media, reasoning, calls, results, names and cache marks survive the way and back."""
    lost: dict[str, Any] = {}
    for exchange in REQUESTS:
        dialect = dialect_of(exchange)
        ours = written(messages_of(exchange.request["messages"], dialect), dialect)
        made_up_ids_removed(ours)
        theirs = essence(exchange.request["messages"])
        if essence(ours) != theirs:
            lost[str(exchange)] = list(zip(essence(ours), theirs, strict=False))

    assert lost == {}


def test_recorded_conversations_are_read() -> None:
    """What applications have sent to OpenAI is read, and is the same when it is sent again."""
    recorded = [e.request["messages"] for e in REQUESTS if e.provider == "openai"]
    lost = {}
    for messages in recorded:
        again = json.loads(json.dumps(messages_to_openai(messages_from_openai(messages))))
        if essence(again) != essence(messages):
            lost[json.dumps(messages)] = again

    assert lost == {}
    assert any("tool_calls" in message for messages in recorded for message in messages)


def test_stored_conversations_are_sent_alike() -> None:
    """A conversation that went through memory is written byte for byte as before."""
    for exchange in REQUESTS:
        dialect = dialect_of(exchange)
        messages = messages_of(exchange.request["messages"], dialect)
        stored = [json.loads(json.dumps(message_to_dict(message))) for message in messages]

        assert written([message_from_dict(s) for s in stored], dialect) == written(
            messages, dialect
        )


# --- options --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Declared:
    """A tool of which only the declaration is known."""

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
    known = OpenAIChatOptions.__dataclass_fields__
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
    """Return what a request asks for, however it is written."""
    asked = {RENAMED.get(key, key): value for key, value in request.items() if value}
    for key in ("messages", "stream", "stream_options"):
        asked.pop(key, None)
    if "tools" in asked:
        tools = [settings_of_tool(tool) for tool in asked["tools"]]
        asked["tools"] = sorted(tools, key=lambda tool: json.dumps(tool, sort_keys=True))
    if isinstance(asked.get("tool_choice"), dict):
        asked["tool_choice"] = asked["tool_choice"]["function"]
    if isinstance(asked.get("stop"), str):
        asked["stop"] = [asked["stop"]]
    return asked


def settings_of_tool(tool: dict[str, Any]) -> dict[str, Any]:
    if not is_function(tool):
        return tool
    return {key: value for key, value in tool["function"].items() if value or key == "strict"}


def test_recorded_options_can_all_be_asked_for() -> None:
    """Every field of every recorded request is an option, or goes through `extra`."""
    lost: dict[str, Any] = {}
    for exchange in REQUESTS:
        options = options_of(exchange.request)
        body = encode_options(options, dialect_of(exchange), streaming=exchange.streaming)
        ours = settings(json.loads(json.dumps(body)))
        theirs = settings(exchange.request)
        if ours != theirs:
            keys = ours.keys() | theirs.keys()
            lost[str(exchange)] = {
                k: (ours.get(k), theirs.get(k)) for k in keys if ours.get(k) != theirs.get(k)
            }

    assert lost == {}


# --- the official schema --------------------------------------------------------------------


def test_requests_satisfy_the_official_schema() -> None:
    """What we send to OpenAI for a recorded conversation, whoever's, is valid by its own schema."""
    jsonschema = pytest.importorskip("jsonschema")
    path = RECORDINGS / "schemas" / "openai-chat-request.json"
    official = jsonschema.Draft202012Validator(json.loads(path.read_text(encoding="utf-8")))
    problems: dict[str, str] = {}
    openai = replace(OPENAI, documents_by_url=True)  # some conversations with others have these
    for exchange in REQUESTS:
        messages = messages_of(exchange.request["messages"], dialect_of(exchange))
        options = options_of(exchange.request)
        if exchange.provider not in ("openai", "azure"):  # whose other fields OpenAI has not
            options = options.mutate(extra={}, reasoning_effort=None, service_tier=None)
        body = encode_options(options, OPENAI, streaming=exchange.streaming)
        body = {**body, "model": "m", "messages": written(messages, openai)}
        body = json.loads(json.dumps(body))
        if error := jsonschema.exceptions.best_match(official.iter_errors(body)):
            problems[str(exchange)] = f"{list(error.absolute_path)}: {error.message[:300]}"

    assert problems == {}


# --- from an answer to the next request -----------------------------------------------------


def followed_up() -> Iterator[tuple[Exchange, dict[str, Any]]]:
    """Yield exchanges whose answer the same client sent back as it was, and how it did."""
    by_source = {exchange.recorded["source"]: exchange for exchange in REQUESTS}
    for source, exchange in by_source.items():
        cassette, _, number = source.rpartition("#")
        following = by_source.get(f"{cassette}#{int(number) + 1}")
        if following is None or "body" not in exchange.response:
            continue
        asked, then = exchange.request["messages"], following.request["messages"][:-1]
        if len(then) > len(asked) and then[: len(asked)] == asked:
            message = then[len(asked)]
            if said_and_called(message) == said_and_called(answered(exchange)):
                yield exchange, message


def answered(exchange: Exchange) -> dict[str, Any]:
    message: dict[str, Any] = exchange.response["body"]["choices"][0]["message"]
    return message


def said_and_called(message: dict[str, Any]) -> Any:
    meaning = beside_in(message)
    return (
        texts_in(list(parts_in(message.get("content")))),
        meaning.get("calls"),
        meaning.get("ids"),
    )


def test_an_answer_goes_back_as_the_recorded_clients_sent_it() -> None:
    """The answer, sent back, says and calls what the recorded follow-up says and calls."""
    pairs = list(followed_up())
    for exchange, theirs in pairs:
        response = decode_response(loads(exchange.body), dialect_of(exchange))
        assert response.output is not None
        (ours,) = written([response.output], dialect_of(exchange))

        assert said_and_called(ours) == said_and_called(theirs), exchange

    assert len(pairs) > 20
