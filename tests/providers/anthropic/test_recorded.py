"""The Messages API against all recorded traffic, responses and requests."""

import base64
import copy
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import count, takewhile
from typing import Any, cast

import pytest

from chatclient import (
    AssistantMessage,
    ChatResponse,
    Media,
    Message,
    Prompt,
    SystemMessage,
    ToolResponse,
    ToolResponseMessage,
    UserMessage,
)
from chatclient.chat.messages import ProviderPart
from chatclient.chat.model import ChatModel
from chatclient.chat.tool import ToolCallback, ToolContext, ToolDefinition, ToolMetadata, ToolResult
from chatclient.errors import StreamInterruptedError
from chatclient.providers.anthropic.decoding import StreamDecoder, decode_block
from chatclient.providers.anthropic.model import AnthropicChatModel, AnthropicChatOptions
from chatclient.providers.http.reader import ServerSentEventDecoder
from tests.support.replay import (
    PATIENT,
    Chunking,
    Exchange,
    LineEnds,
    Noise,
    ask_all,
    by_api,
    collect,
    compare,
    exchanges,
    expected,
    needs_recordings,
    pieces,
    with_line_ends,
    with_noise,
)

pytestmark = [needs_recordings, pytest.mark.exhaustive]

Json = dict[str, Any]

FIFTEEN_ANSWERS = "481f829a0be8"
"""Not one exchange but the fifteen answers of a tool loop, one after another in one file."""


def recorded() -> list[Exchange]:
    return [e for e in exchanges("anthropic.messages") if e.id != FIFTEEN_ANSWERS]


def streams() -> list[Exchange]:
    return [e for e in recorded() if e.streaming and e.status == 200]


# --- responses ------------------------------------------------------------------------------


@pytest.mark.parametrize("chunking", ["whole", "random"])
@pytest.mark.parametrize("blocking", [True, False])
def test_recorded_exchanges(*, blocking: bool, chunking: Chunking) -> None:
    """Every answer and error is decoded as recorded, over sockets."""

    def create(url: str) -> ChatModel:
        return AnthropicChatModel("m", api_key="key", base_url=url, max_retries=0, timeout=PATIENT)

    outcomes, paths = ask_all(recorded(), create, chunking, blocking=blocking)

    wrong = {str(e): found for e, o in outcomes.items() if (found := compare(o, expected(e)))}
    print(f"understood, blocking {blocking}, {chunking}:", by_api(outcomes))  # noqa: T201
    assert wrong == {}
    assert paths == {"/v1/messages"}


def decoded(chunks: Iterable[bytes]) -> ChatResponse:
    events, decoder = ServerSentEventDecoder(), StreamDecoder()
    found = [decoder.feed(data) for chunk in chunks for data, _ in events.feed(chunk)]
    decoder.finish(events.finish())
    return collect(cast("Iterable[ChatResponse]", [c for c in found if c is not None]))


@pytest.mark.parametrize(
    ("chunking", "line_ends", "noise"),
    [
        ("byte", "as recorded", "none"),
        ("utf8", "as recorded", "bom"),
        ("crlf", "crlf", "comments"),
        ("random", "as recorded", "none"),
        ("random", "cr", "blank"),
        ("random", "crlf", "id"),
        ("line", "lf", "retry"),
    ],
)
def test_chunking_and_noise(chunking: Chunking, line_ends: LineEnds, noise: Noise) -> None:
    """Chunking, line endings and noise do not affect the response."""
    wrong = [
        str(exchange)
        for exchange in streams()
        if decoded(
            pieces(
                with_noise(with_line_ends(exchange.body, line_ends), noise),
                chunking,
                seed=len(exchange.body),
            )
        )
        != decoded([exchange.body])
    ]

    assert wrong == []


def test_truncated_recorded_streams() -> None:
    """A stream truncated before its stop reason raises."""
    taken = []
    for exchange in streams():
        end = exchange.body.rindex(b"event: message_delta")
        for share in (0.0, 0.3, 0.6, 0.9, 1.0):
            try:
                decoded([exchange.body[: int(end * share)]])
            except StreamInterruptedError:
                continue
            taken.append(f"{exchange}: {share}")

    assert taken == []


def test_missing_last_event() -> None:
    """Without its last event the answer is the same."""
    wrong = [
        str(exchange)
        for exchange in streams()
        if decoded([exchange.body[: exchange.body.rindex(b"event: message_stop")]])
        != decoded([exchange.body])
    ]

    assert wrong == []


def test_file_with_several_answers() -> None:
    """The recording is a program's tool loop of fourteen streamed calls and a text."""
    for exchange in exchanges("anthropic.messages"):
        if exchange.id != FIFTEEN_ANSWERS:
            continue
        start = b"event: message_start"
        *with_calls, last = [decoded([start + body]) for body in exchange.body.split(start)[1:]]

        assert len(with_calls) == 14
        assert all(response.finish_reason == "tool_call" for response in with_calls)
        assert all(len(r.output.tool_calls) == 1 for r in with_calls if r.output is not None)
        assert compare(last, {**expected(exchange), "tool_calls": []}) == []


def test_streamed_message_is_sent_back() -> None:
    """A streamed message is sent back as its original blocks in order."""
    wrong = {}
    for exchange in streams():
        output = decoded([exchange.body]).output
        assert output is not None
        sent = request_of([UserMessage("Hi"), output, UserMessage("Go on")])["messages"][1:-1]
        content = [block for message in sent for block in message["content"]]
        if (found := with_joined_text(content)) != (made := with_joined_text(blocks_in(exchange))):
            wrong[str(exchange)] = (found, made)

    assert wrong == {}


def blocks_in(exchange: Exchange) -> list[Json]:
    """Return the blocks of a stream, joined as in the API reference."""
    blocks: dict[int, Json] = {}
    for line in exchange.body.decode().splitlines():
        event = json.loads(line[5:]) if line.startswith("data:") else {}
        match event.get("type"):
            case "content_block_start":
                blocks[event["index"]] = {**event["content_block"], "partial": ""}
            case "content_block_delta":
                apply(event["delta"], blocks[event["index"]])
    ordered = [blocks[index] for index in sorted(blocks)]
    for block in ordered:
        block["input" if block["partial"] else "partial"] = json.loads(block["partial"] or "0")
        del block["partial"]
    return ordered


def apply(delta: Json, block: Json) -> None:
    match delta:
        case {"partial_json": piece}:
            block["partial"] += piece
        case {"citation": citation}:
            block["citations"] = [*(block.get("citations") or ()), citation]
        case _:
            key = delta["type"].removesuffix("_delta")
            block[key] = block.get(key, "") + delta[key]


def with_joined_text(blocks: list[Json]) -> list[Json]:
    """Return *blocks* with adjacent plain text joined, without unsigned thinking."""
    joined: list[Json] = []
    for block in blocks:
        if block["type"] == "thinking" and not block.get("signature"):
            continue
        plain = block["type"] == "text" and not block.get("citations")
        if plain and joined and joined[-1].keys() == {"type", "text"}:
            joined[-1]["text"] += block["text"]
        elif not plain or block["text"].strip():
            joined.append({"type": "text", "text": block["text"]} if plain else block)
    return joined


# --- requests -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Offered:
    """A tool with a definition only."""

    definition: ToolDefinition
    metadata: ToolMetadata = field(default_factory=ToolMetadata)

    async def invoke(self, arguments: str, context: ToolContext) -> ToolResult:
        raise NotImplementedError


def requests() -> dict[Exchange, Json]:
    """Return the recorded requests that were accepted."""
    found = {e: e.request for e in recorded() if e.status == 200 and e.request.get("messages")}
    copied: dict[Exchange, Json] = copy.deepcopy(found)
    return copied


def rebuilt(request: Json, server: str = "anthropic") -> Json:
    """Return the request encoded from the conversation and options of a recorded one."""
    request = copy.deepcopy(request)
    return request_of(messages_of(request), server, **options_of(request))


def request_of(messages: Iterable[Message], server: str = "anthropic", **options: Any) -> Json:
    model = AnthropicChatModel(
        api_key="key",
        base_url=None if server == "anthropic" else "http://127.0.0.1:11434",
        options=AnthropicChatOptions(**options, unset="cache"),
    )
    body: Json = json.loads(model._body(Prompt(messages, model.options), streaming=False))
    return body


def messages_of(request: Json) -> list[Message]:
    """Return the messages of a recorded request."""
    messages: list[Message] = [SystemMessage(b["text"]) for b in as_blocks(request.get("system"))]
    for message in request["messages"]:
        blocks = as_blocks(message["content"])
        match message["role"]:
            case "assistant":
                parts = [part for block in blocks if (part := decode_block(block)) is not None]
                messages.append(AssistantMessage(parts))
            case "user":
                messages += user_messages(blocks)
            case _:
                messages.append(UserMessage([ProviderPart("anthropic", message)]))
    return messages


def as_blocks(content: str | list[Json] | None) -> list[Json]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content or []


def user_messages(blocks: list[Json]) -> Iterator[Message]:
    results = [*takewhile(lambda block: response_in(block) is not None, blocks)]
    responses = [response for block in results if (response := response_in(block)) is not None]
    if responses:
        yield ToolResponseMessage(responses)
    if more := blocks[len(results) :]:
        yield UserMessage([user_part(block) for block in more])


def response_in(block: Json) -> ToolResponse | None:
    """Return the tool response of a block, or None for provider results."""
    if block["type"] != "tool_result":
        return None
    content = as_blocks(block["content"])
    first = [c["text"] for c in content[:1] if c["type"] == "text"]
    media = [media_in(c) for c in content[len(first) :]]
    if not all(isinstance(m, Media) for m in media):
        return None
    return ToolResponse(
        block["tool_use_id"],
        "tool",
        "".join(first),
        is_error=bool(block.get("is_error")),
        media=tuple(cast("list[Media]", media)),
    )


def user_part(block: Json) -> str | Media | ProviderPart:
    if block.keys() == {"type", "text"}:
        return str(block["text"])
    return media_in(block) or ProviderPart("anthropic", block, block.get("text", ""))


def media_in(block: Json) -> Media | None:
    if block["type"] == "container_upload":
        return Media("text/csv", "", id=block["file_id"])
    if block["type"] not in ("image", "document"):
        return None
    more = {k: v for k, v in block.items() if k not in ("type", "source")}
    mime_type = "image/png" if block["type"] == "image" else "application/pdf"
    match block["source"]:
        case {"type": "base64", "media_type": mime_type, "data": data}:
            return Media(mime_type, base64.b64decode(data), metadata=more)
        case {"type": "text", "data": text}:
            return Media("text/plain", text.encode(), metadata=more)
        case {"type": "url", "url": url}:
            return Media(mime_type, url, metadata=more)
        case {"file_id": id}:
            return Media(mime_type, "", id=id, metadata=more)
    return None


def options_of(request: Json) -> Json:
    """Return the options of a recorded request."""
    beside = ("messages", "system", "stream")
    left = {key: value for key, value in request.items() if key not in beside}
    encoded: Json = {k: left.pop(k) for k in ("model", "max_tokens", "temperature") if k in left}
    encoded["stop"] = left.pop("stop_sequences", None)
    encoded["thinking"] = left.pop("thinking", None)
    config = left.pop("output_config", {})
    encoded["effort"] = config.pop("effort", None)
    encoded["output_schema"] = config.pop("format", {}).get("schema")
    tools = left.pop("tools", [])
    encoded["tool_callbacks"] = tuple(offered(t) for t in tools if is_ours(t))
    encoded["server_tools"] = [tool for tool in tools if not is_ours(tool)]
    choice = left.pop("tool_choice", {"type": None})
    encoded["tool_choice"] = {"any": "required"}.get(choice["type"], choice.get("name"))
    encoded["tool_choice"] = encoded["tool_choice"] or choice["type"]
    encoded["parallel_tool_calls"] = False if choice.get("disable_parallel_tool_use") else None
    return {**encoded, "extra": {**left, "output_config": config} if config else left}


def is_ours(tool: Json) -> bool:
    return tool.keys() - {"cache_control", "strict"} == {"name", "description", "input_schema"}


def offered(tool: Json) -> ToolCallback:
    definition = ToolDefinition(
        tool["name"], tool["description"], tool["input_schema"], tool.get("strict")
    )
    return Offered(definition)


def canonical(request: Json) -> Json:
    """Return a request in a normal form for comparison."""
    fields = {k: without_marks(v) for k, v in request.items() if k not in ("stream", "messages")}
    tools = [with_properties(tool) for tool in fields.get("tools", ())]
    fields["tools"] = sorted(tools, key=lambda tool: not is_ours(tool))
    fields["system"] = without_marks(as_blocks(request.get("system")))
    fields["messages"] = []
    calls = Calls()
    for message in request["messages"]:
        blocks = [canonical_block(block, calls) for block in as_blocks(message["content"])]
        turns = fields["messages"]
        if turns and turns[-1]["role"] == message["role"] != "system":
            turns[-1]["content"] += blocks
        else:
            turns.append({**message, "content": blocks})
    return fields


def with_properties(tool: Json) -> Json:
    """Return a tool whose schema has `properties`, which may be omitted."""
    if not is_ours(tool):
        return tool
    return {**tool, "input_schema": {"properties": {}, **tool["input_schema"]}}


def without_marks(value: Any) -> Any:
    """Return system blocks and tools without cache marks."""
    if not isinstance(value, list):
        return value
    return [
        {k: v for k, v in item.items() if k != "cache_control"} if isinstance(item, dict) else item
        for item in value
    ]


class Calls(dict[str, int]):
    """The index of the last call of each id, as some servers repeat ids."""

    def __init__(self) -> None:
        self._numbers = count()

    def called(self, id: str) -> int:
        self[id] = next(self._numbers)
        return self[id]


def canonical_block(block: Json, calls: Calls) -> Json:
    if block["type"] == "tool_use":
        return {**block, "id": calls.called(block["id"])}
    if block["type"] != "tool_result":
        return block
    block = {**block, "tool_use_id": calls[block["tool_use_id"]]}
    left_out = () if block.get("is_error") else ("is_error",)
    result = {k: v for k, v in block.items() if k not in (*left_out, "cache_control")}
    return {**result, "content": as_blocks(block.get("content"))}


def test_recorded_request_round_trip() -> None:
    """Every recorded request survives the round trip."""
    wrong = {}
    for exchange, request in requests().items():
        made = rebuilt(request, exchange.provider)
        if canonical(made) != canonical(request):
            wrong[str(exchange)] = (made, request)
    several = [r for r in requests().values() if len(r["messages"]) > 1]
    print(f"requests: {len(requests())}, of several turns: {len(several)}")  # noqa: T201

    assert wrong == {}
    assert several


@cache
def official_problems() -> Callable[[Json], list[str]]:
    """Return a function that lists the official package's validation errors."""
    package = pytest.importorskip("anthropic")
    pydantic = pytest.importorskip("pydantic")
    kinds = [package.types.MessageCreateParams, package.types.beta.message_create_params]
    adapters = [
        pydantic.TypeAdapter(kinds[0]),
        pydantic.TypeAdapter(kinds[1].MessageCreateParams),
    ]

    def problems(request: Json) -> list[str]:
        found = []
        for adapter in adapters:
            try:
                exhaust(adapter.validate_python(request))
            except pydantic.ValidationError as error:
                found.append(str(error))
            else:
                return []
        return found

    return problems


def exhaust(value: Any) -> None:
    """Iterate over everything, as the official types validate iterables lazily."""
    if isinstance(value, Mapping):
        value = value.values()
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        for item in value:
            exhaust(item)


def test_requests_match_official_types() -> None:
    """Requests for all recorded conversations are valid by the official types."""
    problems = official_problems()
    wrong = {}
    for exchange, request in requests().items():
        if found := problems(rebuilt(request)):
            wrong[str(exchange)] = found

    assert wrong == {}
    assert problems({"model": "m", "max_tokens": 1, "messages": [{"role": "user"}]})
    assert problems(request_of([UserMessage("Hi")], extra={"tools": [{"type": "none"}]}))
