"""A strict loopback server for OpenAI's Responses API."""

import json
from collections.abc import Iterator
from typing import Any

from chatclient.providers.openai.responses import OpenAIResponsesChatModel
from tests.support.servers import ChatServer, Reply

Json = dict[str, Any]

# --- answers --------------------------------------------------------------------------------


def message(*content: str | Json, **more: Any) -> Json:
    """Return a message item; strings are text content."""
    parts = [output_text(part) if isinstance(part, str) else part for part in content]
    head = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed"}
    return {**head, "content": parts, **more}


def output_text(text: str, *annotations: Json) -> Json:
    return {"type": "output_text", "text": text, "annotations": list(annotations), "logprobs": []}


def call(id: str, name: str, arguments: str, **more: Any) -> Json:
    item = {"id": f"fc_{id}", "type": "function_call", "call_id": id, "name": name}
    return {**item, "arguments": arguments, "status": "completed", **more}


def reasoning(id: str, *summary: str, **more: Any) -> Json:
    texts = [{"type": "summary_text", "text": text} for text in summary]
    head = {"id": id, "type": "reasoning", "summary": texts}
    return {**head, "encrypted_content": f"secret of {id}", **more}


def response(*items: str | Json, **more: Any) -> Json:
    """Return a complete response; strings are messages."""
    output = [message(item) if isinstance(item, str) else item for item in items]
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": "stub",
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "output": output,
        "usage": {
            "input_tokens": 10,
            "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 2},
            "output_tokens": 5,
            "output_tokens_details": {"reasoning_tokens": 3},
            "total_tokens": 15,
        },
        **more,
    }


def events_of(complete: Json) -> Iterator[Json]:
    """Yield the stream events of *complete*."""
    unfinished = {**complete, "status": "in_progress", "output": []}
    del unfinished["usage"]
    yield {"type": "response.created", "response": unfinished}
    yield {"type": "response.in_progress", "response": unfinished}
    for index, item in enumerate(complete["output"]):
        for event in item_events(item):
            yield {**event, "output_index": index}
    yield {"type": f"response.{complete['status']}", "response": complete}


def item_events(item: Json) -> Iterator[Json]:
    """Yield the stream events of *item*: text by words, arguments in halves."""
    kind, id = item["type"], item["id"]
    hidden = {"message": "content", "reasoning": "summary", "function_call": "arguments"}.get(kind)
    begun = {**item, "status": "in_progress"}
    if hidden:
        begun[hidden] = type(item[hidden])()
    yield {"type": "response.output_item.added", "item": begun}
    for event in _inner_events(item):
        yield {"item_id": id, **event}
    yield {"type": "response.output_item.done", "item": item}


def _inner_events(item: Json) -> Iterator[Json]:
    match item["type"]:
        case "message":
            for index, part in enumerate(item["content"]):
                for event in _content_events(part):
                    yield {"content_index": index, **event}
        case "reasoning":
            for index, part in enumerate(item["summary"]):
                kind, place = "response.reasoning_summary_text", {"summary_index": index}
                for word in _words(part["text"]):
                    yield {"type": f"{kind}.delta", "delta": word, **place}
                yield {"type": f"{kind}.done", "text": part["text"], **place}
        case "function_call":
            kind, arguments = "response.function_call_arguments", item["arguments"]
            half = len(arguments) // 2
            for piece in (arguments[:half], arguments[half:]):
                yield {"type": f"{kind}.delta", "delta": piece}
            yield {"type": f"{kind}.done", "arguments": arguments, "name": item["name"]}


def _content_events(part: Json) -> Iterator[Json]:
    kind, name = ("text", "output_text") if part["type"] == "output_text" else ("refusal",) * 2
    yield {"type": "response.content_part.added", "part": {**part, kind: ""}}
    more: Json = {"logprobs": []} if kind == "text" else {}
    for word in _words(part[kind]):
        yield {"type": f"response.{name}.delta", "delta": word, **more}
    yield {"type": f"response.{name}.done", kind: part[kind], **more}
    yield {"type": "response.content_part.done", "part": part}


def _words(text: str) -> list[str]:
    words = text.split(" ")
    return [word if at == 0 else f" {word}" for at, word in enumerate(words)] if text else []


def as_stream(events: Iterator[Json] | list[Json]) -> bytes:
    """Return *events*, numbered, as server-sent events."""
    lines = (
        f"event: {event['type']}\ndata: {json.dumps({**event, 'sequence_number': at})}\n\n"
        for at, event in enumerate(events)
    )
    return "".join(lines).encode()


# --- validation -----------------------------------------------------------------------------

_ANSWERS = {
    *("message", "function_call", "custom_tool_call"),
    *("web_search_call", "tool_search_call"),
}


def problem(request: Json) -> str | None:
    """Return why the service would reject *request*, or None."""
    items = request["input"]
    return (
        _missing_field(items)
        or (None if request.get("conversation") else _unpaired(items))
        or _loose_reasoning(items)
        or _unknown_reasoning(request)
        or _misplaced_reasoning(request)
    )


def _missing_field(items: list[Json]) -> str | None:
    needed = {
        "message": ("role", "content"),
        "function_call": ("call_id", "name", "arguments"),
        "function_call_output": ("call_id", "output"),
        "custom_tool_call": ("call_id", "name", "input"),
        "custom_tool_call_output": ("call_id", "output"),
        "reasoning": ("id", "summary"),
    }
    for at, item in enumerate(items):
        for field in needed.get(item.get("type", "message"), ()):
            if item.get(field) is None:
                return f"Missing required parameter: 'input[{at}].{field}'."
    return None


def _unpaired(items: list[Json]) -> str | None:
    open_calls: list[tuple[str, str]] = []
    for item in items:
        kind = item.get("type", "message")
        if kind in ("function_call", "custom_tool_call"):
            open_calls.append((kind, item["call_id"]))
        elif kind.endswith("_call_output"):
            answered = (kind.removesuffix("_output"), item["call_id"])
            if answered not in open_calls:
                return f"No tool call found for {kind} with call_id {item['call_id']}."
            open_calls.remove(answered)
    return f"No tool output found for function call {open_calls[0][1]}." if open_calls else None


def _loose_reasoning(items: list[Json]) -> str | None:
    for at, item in enumerate(items):
        if item.get("type") == "reasoning":
            following = items[at + 1] if at + 1 < len(items) else {"role": "user"}
            if following.get("type") not in _ANSWERS or following.get("role") == "user":
                return (
                    f"Item '{item['id']}' of type 'reasoning' was provided without its required "
                    "following item."
                )
    return None


def _unknown_reasoning(request: Json) -> str | None:
    for item in request["input"]:
        if item.get("type") == "reasoning" and not request["store"]:
            if not item.get("encrypted_content"):
                return f"Item with id '{item['id']}' not found: `store` is set to false."
            if item["encrypted_content"] != f"secret of {item['id']}":
                return "The encrypted content could not be verified."
    return None


def _misplaced_reasoning(request: Json) -> str | None:
    kinds = {item.get("type") for item in request["input"]}
    if "reasoning" in kinds and request["model"].startswith("gpt-4"):
        return "Reasoning input items can only be provided to a reasoning or computer use model."
    return None


class ResponsesServer(ChatServer):
    """Answers requests in order and records them.

    Each reply is a `Reply`, a response (streamed when the request wants a stream), a list of
    events, a text, or a function of the request that returns one of these. The last one is
    repeated for ever.
    """

    def __init__(self, *replies: Any) -> None:
        super().__init__(*replies)
        self._models: list[OpenAIResponsesChatModel] = []

    def model(self, **settings: Any) -> OpenAIResponsesChatModel:
        """Return a model that asks this server; it is closed with the server."""
        named = {"model": "gpt-5-mini", "api_key": "key", "base_url": self.url, "max_retries": 0}
        self._models.append(OpenAIResponsesChatModel(**{**named, **settings}))
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
        if refused := problem(request):
            error = {"message": refused, "type": "invalid_request_error", "param": "input"}
            return Reply(json.dumps({"error": {**error, "code": None}}).encode(), 400)
        if callable(reply):
            reply = reply(request)
        if isinstance(reply, Reply):
            return reply
        if isinstance(reply, list):
            return Reply(as_stream(reply), content_type="text/event-stream")
        complete: Any = response(reply) if isinstance(reply, str) else reply
        if request.get("stream"):
            return Reply(as_stream(events_of(complete)), content_type="text/event-stream")
        return Reply(json.dumps(complete).encode())
