"""A strict loopback server for Anthropic's Messages API."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from itertools import pairwise
from typing import Any

from chatclient.providers.anthropic.model import AnthropicChatModel
from tests.support.servers import ChatServer, Reply

Json = dict[str, Any]

# --- answers --------------------------------------------------------------------------------


def text(text: str, **more: Any) -> Json:
    return {"type": "text", "text": text, **more}


def tool_use(id: str, name: str, input: Json, **more: Any) -> Json:
    return {"type": "tool_use", "id": id, "name": name, "input": input, **more}


def thinking(thoughts: str, signature: str = "c2lnbmVk") -> Json:
    return {"type": "thinking", "thinking": thoughts, "signature": signature}


def message(*content: str | Json, **more: Any) -> Json:
    """Return a complete message; strings are text blocks."""
    blocks = [text(block) if isinstance(block, str) else block for block in content]
    calls = any(block["type"] == "tool_use" for block in blocks)
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "stub",
        "content": blocks,
        "stop_reason": "tool_use" if calls else "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 10,
            "cache_read_input_tokens": 100,
            "cache_creation_input_tokens": 1000,
            "output_tokens": 5,
        },
        **more,
    }


def as_stream(complete: Json) -> bytes:
    """Return *complete* as a stream: text by words, tool input in halves."""
    return b"".join(map(_event, _events(complete)))


def _event(event: Json) -> bytes:
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()


def _events(complete: Json) -> Iterator[Json]:
    usage = {**complete["usage"], "output_tokens": 1}
    start = {**complete, "content": [], "stop_reason": None, "usage": usage, "container": None}
    yield {"type": "message_start", "message": start}
    yield {"type": "ping"}
    for index, block in enumerate(complete["content"]):
        first, *deltas = _block_events(block)
        yield {"type": "content_block_start", "index": index, "content_block": first}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    end = {key: complete.get(key) for key in ("stop_reason", "stop_sequence", "container")}
    usage = {"output_tokens": complete["usage"]["output_tokens"]}
    yield {"type": "message_delta", "delta": end, "usage": usage}
    yield {"type": "message_stop"}


def _block_events(block: Json) -> Iterator[Json]:
    """Yield the start of a block and its deltas."""
    match block["type"]:
        case "text":
            cited = "citations" in block
            yield {**block, "text": "", **({"citations": []} if cited else {})}
            for citation in block.get("citations") or ():
                yield {"type": "citations_delta", "citation": citation}
            for word in re.findall(r"\S+\s*|\s+", block["text"]):
                yield {"type": "text_delta", "text": word}
        case "thinking":
            yield {**block, "thinking": "", "signature": ""}
            for word in re.findall(r"\S+\s*", block["thinking"]):
                yield {"type": "thinking_delta", "thinking": word}
            yield {"type": "signature_delta", "signature": block["signature"]}
        case "tool_use" | "server_tool_use":
            yield {**block, "input": {}}
            complete = json.dumps(block["input"]) if block["input"] else ""
            for piece in ("", complete[: len(complete) // 2], complete[len(complete) // 2 :]):
                yield {"type": "input_json_delta", "partial_json": piece}
        case _:
            yield block


def failure(kind: str, text: str, status: int, **headers: str) -> Reply:
    """Return an error response of the API."""
    body = {"type": "error", "error": {"type": kind, "message": text}, "request_id": "req_1"}
    return Reply(json.dumps(body).encode(), status, {"request-id": "req_1", **headers})


# --- validation -----------------------------------------------------------------------------

_FIELDS = frozenset(
    {
        *("model", "messages", "max_tokens", "system", "stream", "stop_sequences", "metadata"),
        *("temperature", "top_p", "top_k", "tools", "tool_choice", "thinking", "service_tier"),
        *("output_config", "cache_control", "container", "mcp_servers"),
    }
)
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_PROPERTY = re.compile(r"[a-zA-Z0-9_.-]{1,64}")


def problems(request: Json) -> Iterator[str]:
    """Yield why the API would reject *request*."""
    for field in sorted(set(request) - _FIELDS):
        yield f"{field}: Extra inputs are not permitted"
    if not isinstance(request.get("max_tokens"), int) or request["max_tokens"] < 1:
        yield "max_tokens: Field required"
    for tool in request.get("tools", ()):
        if "type" in tool:
            continue  # a provider tool
        if not _NAME.fullmatch(tool["name"]) or tool["input_schema"]["type"] != "object":
            yield f"tools: {tool['name']} is no proper tool"
        if not {"oneOf", "allOf", "anyOf"}.isdisjoint(tool["input_schema"]):
            yield "input_schema does not support oneOf, allOf, or anyOf at the top level"
        if not all(map(_PROPERTY.fullmatch, tool["input_schema"].get("properties", {}))):
            yield f"input_schema.properties: Property keys should match '{_PROPERTY.pattern}'"
    schema = request.get("output_config", {}).get("format", {}).get("schema")
    if schema is not None and '"minimum"' in json.dumps(schema):
        yield "output_config.format.schema: property 'minimum' is not supported"
    yield from _turn_problems(request["messages"])
    yield from _pairing_problems(request["messages"])
    if request.get("thinking", {}).get("type") == "enabled":
        yield from _thinking_problems(request["messages"])


def _turn_problems(messages: list[Json]) -> Iterator[str]:
    roles = [message["role"] for message in messages]
    if roles[:1] != ["user"] or any(a == b for a, b in pairwise(roles)):
        yield f"messages: roles must alternate, beginning with user: {roles}"
    for at, message in enumerate(messages):
        if not message["content"]:
            yield f"messages.{at}: all messages must have non-empty content"
        for block in message["content"]:
            if block["type"] == "text" and not block["text"].strip():
                yield f"messages.{at}: text content blocks must contain non-whitespace text"
            if block["type"] == "thinking" and not block.get("signature"):
                yield f"messages.{at}: thinking.signature: Field required"
    last = messages[-1]["content"][-1:]
    if roles[-1:] == ["assistant"] and last and last[0].get("text", "x")[-1:].isspace():
        yield "messages: final assistant content cannot end with trailing whitespace"


def _pairing_problems(messages: list[Json]) -> Iterator[str]:
    before: list[str] = []
    known: set[str] = set()
    for at, message in enumerate(messages):
        kinds = [block["type"] for block in message["content"]]
        results = [b["tool_use_id"] for b in message["content"] if b["type"] == "tool_result"]
        if "tool_result" in kinds[len(results) :]:
            yield f"messages.{at}: tool_result blocks must come first"
        if sorted(results) != sorted(before):
            yield f"messages.{at}: tool_use {before} and tool_result {results} do not pair up"
        calls = [block for block in message["content"] if block["type"] == "tool_use"]
        before = [call["id"] for call in calls]
        if len(known.union(before)) != len(known) + len(before) or not all(
            map(_NAME.fullmatch, before)
        ):
            yield f"messages.{at}: tool_use ids must be unique, of letters and digits: {before}"
        known.update(before)
        if not all(_NAME.fullmatch(call["name"]) for call in calls):
            yield f"messages.{at}: tool_use.name: String should match pattern"
        if not all(isinstance(call["input"], dict) for call in calls):
            yield f"messages.{at}: tool_use.input: Input should be a valid dictionary"
    if before:
        yield f"tool_use {before} without tool_result"


def _thinking_problems(messages: list[Json]) -> Iterator[str]:
    """Yield where a round of tool calls lacks its thinking."""
    for at, message in enumerate(messages):
        kinds = [block["type"] for block in message["content"]]
        if "tool_use" in kinds and kinds[0] not in ("thinking", "redacted_thinking"):
            yield f"messages.{at}: Expected `thinking` or `redacted_thinking`, found {kinds[0]}"


class MessagesServer(ChatServer):
    """Answers requests in order, each with a `Reply`, a message or a text; see `ChatServer`."""

    def __init__(self, *replies: Any) -> None:
        super().__init__(*replies)
        self._models: list[AnthropicChatModel] = []

    @property
    def url(self) -> str:
        return super().url.removesuffix("/v1")

    def model(self, **settings: Any) -> AnthropicChatModel:
        """Return a model that asks this server; it is closed with the server."""
        settings = {"api_key": "key", "base_url": self.url, **settings}
        self._models.append(AnthropicChatModel("stub", **settings))
        return self._models[-1]

    def close(self) -> None:
        for model in self._models:
            model.close()
        super().close()

    def reply_to(self, request: Json, headers: dict[str, str]) -> Reply:
        with self._lock:
            self.requests.append(request)
            self.headers.append(headers)
            reply = self._replies.pop(0) if len(self._replies) > 1 else self._replies[0]
        if not {"x-api-key", "authorization"} & headers.keys():
            return failure("authentication_error", "x-api-key header is required", 401)
        if "anthropic-version" not in headers:
            return failure("invalid_request_error", "anthropic-version: header is required", 400)
        if problem := next(problems(request), None):
            return failure("invalid_request_error", problem, 400)
        if isinstance(reply, Reply):
            return reply
        complete = message(reply) if isinstance(reply, str) else reply
        more = {"request-id": "req_1"}
        if request.get("stream"):
            return Reply(as_stream(complete), headers=more, content_type="text/event-stream")
        return Reply(json.dumps(complete).encode(), headers=more)


Serve = Callable[..., MessagesServer]


@contextmanager
def messages_servers() -> Iterator[Serve]:
    """Start Messages API servers that are closed at the end."""
    with ExitStack() as stack:
        yield lambda *replies: stack.enter_context(closing(MessagesServer(*replies)))
