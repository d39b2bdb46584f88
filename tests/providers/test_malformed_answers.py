"""Each field of each provider's answers, missing or of another type.

A malformed answer raises a `ProviderError` and nothing else. An accepted answer can be shown,
counted, stored and sent back.
"""

import copy
import json
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import pytest

from chatclient import ChatModel, ChatResponse, Message, UserMessage
from chatclient.chat.messages import ToolResponse, ToolResponseMessage
from chatclient.chat.serialization import message_from_dict, message_to_dict
from chatclient.errors import InvalidRequestError, ProviderError
from tests.support import converse_server
from tests.support.examples import examples, some
from tests.support.replay import collect
from tests.support.services import SERVICES, Service

USAGE: dict[str, dict[str, Any]] = {
    "chat": {
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "total_tokens": 15,
        "prompt_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 2},
        "completion_tokens_details": {"reasoning_tokens": 3},
    },
    "responses": {
        "input_tokens": 10,
        "output_tokens": 5,
        "total_tokens": 15,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 2},
        "output_tokens_details": {"reasoning_tokens": 3},
    },
    "anthropic": {
        "input_tokens": 4,
        "output_tokens": 5,
        "cache_read_input_tokens": 4,
        "cache_creation_input_tokens": 2,
        "output_tokens_details": {"thinking_tokens": 3},
    },
    "gemini": {
        "promptTokenCount": 10,
        "candidatesTokenCount": 2,
        "cachedContentTokenCount": 4,
        "thoughtsTokenCount": 3,
        "toolUsePromptTokenCount": 0,
    },
    "ollama": {"prompt_eval_count": 10, "eval_count": 5},
    "bedrock": {
        "inputTokens": 4,
        "outputTokens": 5,
        "totalTokens": 15,
        "cacheReadInputTokens": 4,
        "cacheWriteInputTokens": 2,
    },
}
USAGE_KEY = {"gemini": "usageMetadata"}
ARGUMENTS = '{"city": "Rome"}'
CITATION = {"type": "char_location", "cited_text": "x", "document_index": 0}
ANSWERS: dict[str, dict[str, Any]] = {
    "chat": {
        "id": "r",
        "model": "m",
        "choices": [
            {
                "index": 0,
                "finish_reason": "tool_calls",
                "message": {
                    "role": "assistant",
                    "content": "Let me look.",
                    "reasoning_content": "Rome, then.",
                    "tool_calls": [
                        {
                            "id": "c1",
                            "type": "function",
                            "function": {"name": "look", "arguments": ARGUMENTS},
                        }
                    ],
                },
            }
        ],
        "usage": USAGE["chat"],
    },
    "responses": {
        "id": "r",
        "model": "m",
        "status": "completed",
        "output": [
            {
                "type": "reasoning",
                "id": "rs",
                "summary": [{"type": "summary_text", "text": "Rome, then."}],
                "encrypted_content": "s",
            },
            {
                "type": "message",
                "id": "m",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "Let me look.", "annotations": []}],
            },
            {
                "type": "function_call",
                "id": "f",
                "call_id": "c1",
                "name": "look",
                "arguments": ARGUMENTS,
            },
        ],
        "usage": USAGE["responses"],
    },
    "anthropic": {
        "id": "r",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "stop_reason": "tool_use",
        "content": [
            {"type": "thinking", "thinking": "Rome, then.", "signature": "s"},
            {"type": "text", "text": "Let me look."},
            {"type": "text", "text": "It is said.", "citations": [CITATION]},
            {"type": "tool_use", "id": "c1", "name": "look", "input": {"city": "Rome"}},
        ],
        "usage": USAGE["anthropic"],
    },
    "gemini": {
        "responseId": "r",
        "modelVersion": "m",
        "candidates": [
            {
                "index": 0,
                "finishReason": "STOP",
                "content": {
                    "role": "model",
                    "parts": [
                        {"text": "Rome, then.", "thought": True},
                        {"text": "Let me look."},
                        {
                            "functionCall": {"name": "look", "args": {"city": "Rome"}, "id": "c1"},
                            "thoughtSignature": "cw==",
                        },
                    ],
                },
            }
        ],
        "usageMetadata": USAGE["gemini"],
    },
    "ollama": {
        "model": "m",
        "done": True,
        "done_reason": "stop",
        "message": {
            "role": "assistant",
            "content": "Let me look.",
            "thinking": "Rome, then.",
            "tool_calls": [{"function": {"name": "look", "arguments": {"city": "Rome"}}}],
        },
        **USAGE["ollama"],
    },
    "bedrock": {
        **converse_server.response(
            {"reasoningContent": {"reasoningText": {"text": "Rome, then.", "signature": "s"}}},
            "Let me look.",
            {"citationsContent": {"content": [{"text": "It is said."}], "citations": [CITATION]}},
            {"toolUse": {"toolUseId": "c1", "name": "look", "input": {"city": "Rome"}}},
            stop="tool_use",
        ),
        "usage": USAGE["bedrock"],
    },
}
"""What each service answers when its model thinks, speaks and calls a tool."""

BLOCKS = ANSWERS["anthropic"]["content"]
DELTA = ANSWERS["chat"]["choices"][0]["message"]
STREAMS: dict[str, list[dict[str, Any]]] = {
    "chat": [
        {"id": "r", "model": "m", "choices": [{"index": 0, "delta": DELTA}]},
        {"id": "r", "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]},
        {"id": "r", "choices": [], "usage": USAGE["chat"]},
    ],
    "responses": [
        {"type": "response.created", "response": {"id": "r", "model": "m", "output": []}},
        *(
            {"type": f"response.output_item.{what}", "output_index": at, "item": item}
            for at, item in enumerate(ANSWERS["responses"]["output"])
            for what in ("added", "done")
        ),
        {"type": "response.completed", "response": ANSWERS["responses"]},
    ],
    "anthropic": [
        {"type": "message_start", "message": {**ANSWERS["anthropic"], "content": []}},
        *(
            event
            for at, block in enumerate(BLOCKS)
            for event in (
                {"type": "content_block_start", "index": at, "content_block": block},
                {"type": "content_block_stop", "index": at},
            )
        ),
        {
            "type": "message_delta",
            "delta": {"stop_reason": "tool_use"},
            "usage": USAGE["anthropic"],
        },
        {"type": "message_stop"},
    ],
    "gemini": [ANSWERS["gemini"]],
    "ollama": [
        {**ANSWERS["ollama"], "done": False},
        {"model": "m", "message": {"role": "assistant", "content": ""}, "done": True},
    ],
    "bedrock": [{kind: event} for kind, event in converse_server.events_of(ANSWERS["bedrock"])],
}

MISSING = object()
OTHERS = [MISSING, None, 7, True, "x", ["x"], {"a": 1}, 10**400]


def mutations(value: Any) -> Iterator[Any]:
    """Yield copies of *value* with one field missing or replaced."""
    for path in list(paths(value)):
        for other in OTHERS:
            copied = place = copy.deepcopy(value)
            for step in path[:-1]:
                place = place[step]
            if other is MISSING:
                del place[path[-1]]
            else:
                place[path[-1]] = other
            yield copied


def paths(value: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if here:
        yield here
    if isinstance(value, dict | list):
        inner = value.items() if isinstance(value, dict) else enumerate(value)
        for step, each in inner:
            yield from paths(each, (*here, step))


class Wire:
    """Answers requests with a fixed body and records what was sent."""

    def __init__(self, service: Service) -> None:
        self.status, self.answer, self.kind = 200, b"", "application/json"
        client = httpx.Client(transport=httpx.MockTransport(self._respond))
        self.model: ChatModel = service.model("http://x", http_client=client)

    def _respond(self, _request: httpx.Request) -> httpx.Response:
        headers = {"content-type": self.kind}
        return httpx.Response(self.status, headers=headers, content=self.answer)

    def holding(self, status: int, answer: bytes, kind: str) -> ChatModel:
        self.status, self.answer, self.kind = status, answer, kind
        return self.model


def as_stream(service: Service, events: Sequence[Any]) -> bytes:
    if "amazon" in service.stream_type:
        named = [each for each in events if isinstance(each, dict)]
        return b"".join(converse_server.event(*item) for each in named for item in each.items())
    lines = [json.dumps(event).encode() for event in events]
    if "ndjson" in service.stream_type:
        return b"\n".join(lines) + b"\n"
    return b"".join(b"data: %b\n\n" % line for line in lines)


def is_usable(response: ChatResponse, wire: Wire) -> bool:
    """Return whether *response* can be shown, counted, stored and sent back."""
    assert (response.usage + response.usage).total_tokens == 2 * response.usage.total_tokens
    message = response.output
    if message is None or not message.parts:
        return True
    assert isinstance(message.text, str)
    stored = json.loads(json.dumps(message_to_dict(message)))
    assert message_from_dict(stored) == message
    responses = [ToolResponse(call.id, call.name, "seen") for call in message.tool_calls]
    following: Message = ToolResponseMessage(responses) if responses else UserMessage("Go on.")
    with pytest.raises(InvalidRequestError):  # from the server
        wire.holding(400, b'{"error": {"message": "no"}}', "application/json").call(
            [UserMessage("Hi"), message, following]
        )
    return True


@pytest.mark.parametrize("service", SERVICES, ids=str)
def test_mutated_answer(service: Service) -> None:
    """A mutated answer is usable or raises a `ProviderError`; wrong types mostly raise."""
    wire, refused = Wire(service), 0
    for answer in some([*mutations(ANSWERS[service.name])]):
        body = json.dumps(answer).encode()
        try:
            response = wire.holding(200, body, "application/json").call("Hi")
        except ProviderError:
            refused += 1
        else:
            assert is_usable(response, wire), answer
    assert refused > examples(25)


@pytest.mark.parametrize("service", SERVICES, ids=str)
def test_mutated_stream(service: Service) -> None:
    """A stream with a mutated event is usable or raises a `ProviderError`."""
    wire, refused = Wire(service), 0
    body = as_stream(service, STREAMS[service.name])
    assert collect(wire.holding(200, body, service.stream_type).stream("Hi")).has_tool_calls()
    for events in some([*mutations(STREAMS[service.name])]):
        body = as_stream(service, events)
        try:
            response = collect(wire.holding(200, body, service.stream_type).stream("Hi"))
        except ProviderError:
            refused += 1
        else:
            assert is_usable(response, wire), events
    assert refused > examples(25)


@pytest.mark.parametrize("service", SERVICES, ids=str)
@pytest.mark.parametrize("written", [str, float])
def test_token_counts_as_strings_or_floats(service: Service, written: Any) -> None:
    """Token counts may be strings or floats, as some gateways send them."""

    def rewritten(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: rewritten(each) for key, each in value.items()}
        return written(value)

    def read(usage: dict[str, Any]) -> Any:
        answer = {**ANSWERS[service.name]}
        answer |= (
            usage if service.name == "ollama" else {USAGE_KEY.get(service.name, "usage"): usage}
        )
        body = json.dumps(answer).encode()
        return Wire(service).holding(200, body, "application/json").call("Hi").usage

    usual, found = read(USAGE[service.name]), read(rewritten(USAGE[service.name]))
    assert (usual.input_tokens, usual.output_tokens) == (10, 5)
    assert [(usual + usual).total_tokens, usual.cache_read_tokens, usual.reasoning_tokens] == [
        (found + found).total_tokens,
        found.cache_read_tokens,
        found.reasoning_tokens,
    ]


@pytest.mark.parametrize("service", SERVICES, ids=str)
@pytest.mark.parametrize("given", [ARGUMENTS, json.loads(ARGUMENTS), "", None, {}])
@pytest.mark.parametrize("streaming", [False, True])
def test_argument_forms(service: Service, given: Any, *, streaming: bool) -> None:
    """Arguments may be an object, a string or missing with every API."""
    if service.name == "gemini" and given == ARGUMENTS:
        pytest.skip("Gemini's API has no such gateway")

    def written(value: Any) -> Any:
        if isinstance(value, list):
            return [written(each) for each in value]
        if not isinstance(value, dict):
            return value
        names = ("arguments", "input", "args")
        return {key: given if key in names else written(each) for key, each in value.items()}

    wire = Wire(service)
    if streaming:
        body = as_stream(service, written(STREAMS[service.name]))
        response = collect(wire.holding(200, body, service.stream_type).stream("Hi"))
    else:
        body = json.dumps(written(ANSWERS[service.name])).encode()
        response = wire.holding(200, body, "application/json").call("Hi")

    assert response.output is not None
    (call,) = response.output.tool_calls
    assert json.loads(call.arguments or "{}") == (json.loads(ARGUMENTS) if given else {})
