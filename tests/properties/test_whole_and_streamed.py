"""A random answer, complete and as a stream in random fragments, gives equal responses."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

import httpx
import pytest
from hypothesis import given, strategies as st

from chatclient import ChatModel, ChatResponse
from chatclient.chat.aggregator import MessageAggregator
from chatclient.chat.parts import ToolCall
from chatclient.providers import (
    AnthropicChatModel,
    BedrockChatModel,
    GeminiChatModel,
    OllamaChatModel,
    OpenAIChatModel,
    OpenAIResponsesChatModel,
)
from tests.support import converse_server

Json = dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """An answer, independent of the provider.

    Attributes:
        reasoning: The reasoning text, which may be empty.
        text: The text, which may be empty.
        calls: Name and arguments of tool calls.
        tokens: Input and output tokens.
        cut_off: Whether the answer is truncated.
        log_probs: Whether there are log probabilities, where the test supports them.
    """

    reasoning: str
    text: str
    calls: list[tuple[str, Json]]
    tokens: tuple[int, int]
    cut_off: bool
    log_probs: bool


@dataclass
class Fragments:
    """Splits text at random places."""

    seed: int
    _random: Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = Random(self.seed)

    def of(self, text: str) -> list[str]:
        if not text:
            return []
        count = self._random.randint(0, min(4, len(text) - 1))
        cuts = sorted(self._random.sample(range(1, len(text)), count)) if count else []
        return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]

    def maybe(self) -> bool:
        return self._random.random() < 0.5

    def arguments(self, arguments: Json) -> str:
        """Return the JSON text; servers send no arguments as `{}` or as nothing."""
        return "" if not arguments and self.maybe() else json.dumps(arguments)


def sse(*chunks: Json, end: bytes = b"") -> bytes:
    return b"".join(b"data: %b\n\n" % json.dumps(chunk).encode() for chunk in chunks) + end


# --- Chat Completions -----------------------------------------------------------------------


def chat_complete(answer: Answer, fragments: Fragments) -> bytes:
    message: Json = {"role": "assistant", "content": answer.text or None}
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    if answer.calls:
        message["tool_calls"] = [
            {
                "id": f"call_{at}",
                "type": "function",
                "function": {"name": name, "arguments": fragments.arguments(arguments)},
            }
            for at, (name, arguments) in enumerate(answer.calls)
        ]
    choice = {"index": 0, "message": message, "finish_reason": chat_finish(answer)}
    choice |= chat_log_probs(answer, answer.text)
    return json.dumps(
        {"id": "c", "model": "m", "created": 1, "choices": [choice], "usage": chat_usage(answer)}
    ).encode()


def chat_finish(answer: Answer) -> str:
    return "length" if answer.cut_off else "tool_calls" if answer.calls else "stop"


def chat_log_probs(answer: Answer, text: str) -> Json:
    if not answer.log_probs or not text:
        return {}
    listed = [{"token": each, "logprob": -ord(each) / 7, "top_logprobs": []} for each in text]
    return {"logprobs": {"content": listed, "refusal": None}}


def chat_usage(answer: Answer) -> Json:
    read, written = answer.tokens
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


def chat_stream(answer: Answer, fragments: Fragments) -> bytes:
    def chunks() -> Iterator[Json]:
        def chunk(delta: Json, finish: str | None = None) -> Json:
            choice = {"index": 0, "delta": delta, "finish_reason": finish}
            return {"id": "c", "model": "m", "created": 1, "choices": [choice]}

        yield chunk({"role": "assistant", "content": "" if fragments.maybe() else None})
        for piece in fragments.of(answer.reasoning):
            yield chunk({"reasoning_content": piece})
        for piece in fragments.of(answer.text):
            content = chunk({"content": piece})
            content["choices"][0] |= chat_log_probs(answer, piece)
            yield content
        for at, (name, arguments) in enumerate(answer.calls):
            begin: Json = {"index": at, "id": f"call_{at}", "type": "function"}
            pieces = fragments.of(fragments.arguments(arguments))
            first = pieces.pop(0) if pieces and fragments.maybe() else ""
            begin["function"] = {"name": name, "arguments": first}
            yield chunk({"tool_calls": [begin]})
            for piece in pieces:
                yield chunk({"tool_calls": [{"index": at, "function": {"arguments": piece}}]})
        if fragments.maybe():
            yield chunk({}, chat_finish(answer))
            yield {**chunk({}), "choices": [], "usage": chat_usage(answer)}
        else:
            yield {**chunk({}, chat_finish(answer)), "usage": chat_usage(answer)}

    return sse(*chunks(), end=b"data: [DONE]\n\n")


# --- Responses ------------------------------------------------------------------------------


def responses_items(answer: Answer, fragments: Fragments) -> Iterator[Json]:
    if answer.reasoning:
        summary = [{"type": "summary_text", "text": answer.reasoning}]
        yield {"type": "reasoning", "id": "rs", "summary": summary}
    if answer.text:
        part = {"type": "output_text", "text": answer.text, "annotations": []}
        item = {"type": "message", "id": "ms", "role": "assistant", "content": [part]}
        yield {**item, "status": "completed"}
    for at, (name, arguments) in enumerate(answer.calls):
        yield {
            "type": "function_call",
            "id": f"fc_{at}",
            "call_id": f"call_{at}",
            "name": name,
            "arguments": fragments.arguments(arguments),
            "status": "completed",
        }


def responses_object(answer: Answer, items: list[Json]) -> Json:
    read, written = answer.tokens
    return {
        "id": "r",
        "object": "response",
        "created_at": 1,
        "model": "m",
        "status": "incomplete" if answer.cut_off else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if answer.cut_off else None,
        "error": None,
        "output": items,
        "usage": {"input_tokens": read, "output_tokens": written, "total_tokens": read + written},
    }


def responses_complete(answer: Answer, fragments: Fragments) -> bytes:
    return json.dumps(responses_object(answer, list(responses_items(answer, fragments)))).encode()


def responses_stream(answer: Answer, fragments: Fragments) -> bytes:
    items = list(responses_items(answer, fragments))
    complete = responses_object(answer, items)

    def events() -> Iterator[Json]:
        started = {**complete, "status": "in_progress", "output": [], "incomplete_details": None}
        yield {"type": "response.created", "response": {**started, "usage": None}}
        for at, item in enumerate(items):
            for event in responses_item_events(item, fragments):
                yield {"output_index": at, **event}
        yield {"type": f"response.{complete['status']}", "response": complete}

    return sse(*events())


def responses_item_events(item: Json, fragments: Fragments) -> Iterator[Json]:
    place = {"item_id": item["id"]}
    match item["type"]:
        case "reasoning":
            yield {"type": "response.output_item.added", "item": {**item, "summary": []}}
            kind, place = "response.reasoning_summary", {**place, "summary_index": 0}
            text = item["summary"][0]["text"]
            part = {"type": "summary_text", "text": ""}
            yield {"type": f"{kind}_part.added", "part": part, **place}
            for piece in fragments.of(text):
                yield {"type": f"{kind}_text.delta", "delta": piece, **place}
            yield {"type": f"{kind}_text.done", "text": text, **place}
        case "message":
            yield {"type": "response.output_item.added", "item": {**item, "content": []}}
            (part,) = item["content"]
            place = {**place, "content_index": 0}
            empty = {**part, "text": ""}
            yield {"type": "response.content_part.added", "part": empty, **place}
            for piece in fragments.of(part["text"]):
                yield {"type": "response.output_text.delta", "delta": piece, **place}
            yield {"type": "response.output_text.done", "text": part["text"], **place}
        case "function_call":
            yield {"type": "response.output_item.added", "item": {**item, "arguments": ""}}
            for piece in fragments.of(item["arguments"]):
                kind = "response.function_call_arguments"
                yield {"type": f"{kind}.delta", "delta": piece, **place}
    yield {"type": "response.output_item.done", "item": item}


# --- Messages -------------------------------------------------------------------------------


def anthropic_blocks(answer: Answer) -> Iterator[Json]:
    if answer.reasoning:
        yield {"type": "thinking", "thinking": answer.reasoning, "signature": "c2ln"}
    if answer.text:
        yield {"type": "text", "text": answer.text}
    for at, (name, arguments) in enumerate(answer.calls):
        yield {"type": "tool_use", "id": f"call_{at}", "name": name, "input": arguments}


def anthropic_message(answer: Answer) -> Json:
    reason = "max_tokens" if answer.cut_off else "tool_use" if answer.calls else "end_turn"
    read, written = answer.tokens
    return {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": list(anthropic_blocks(answer)),
        "stop_reason": reason,
        "stop_sequence": None,
        "usage": {"input_tokens": read, "output_tokens": written},
    }


def anthropic_complete(answer: Answer, fragments: Fragments) -> bytes:
    return json.dumps(anthropic_message(answer)).encode()


def anthropic_stream(answer: Answer, fragments: Fragments) -> bytes:
    message = anthropic_message(answer)

    def events() -> Iterator[Json]:
        usage = {**message["usage"], "output_tokens": 1}
        start = {**message, "content": [], "stop_reason": None, "usage": usage}
        yield {"type": "message_start", "message": start}
        for at, block in enumerate(message["content"]):
            first, *deltas = anthropic_deltas(block, fragments)
            yield {"type": "content_block_start", "index": at, "content_block": first}
            for delta in deltas:
                yield {"type": "content_block_delta", "index": at, "delta": delta}
            yield {"type": "content_block_stop", "index": at}
        end = {"stop_reason": message["stop_reason"], "stop_sequence": None}
        yield {"type": "message_delta", "delta": end, "usage": message["usage"]}
        yield {"type": "message_stop"}

    return sse(*events())


def anthropic_deltas(block: Json, fragments: Fragments) -> Iterator[Json]:
    match block["type"]:
        case "thinking":
            yield {**block, "thinking": "", "signature": ""}
            for piece in fragments.of(block["thinking"]):
                yield {"type": "thinking_delta", "thinking": piece}
            yield {"type": "signature_delta", "signature": block["signature"]}
        case "text":
            yield {**block, "text": ""}
            for piece in fragments.of(block["text"]):
                yield {"type": "text_delta", "text": piece}
        case "tool_use":
            yield {**block, "input": {}}
            for piece in ["", *fragments.of(fragments.arguments(block["input"]))]:
                yield {"type": "input_json_delta", "partial_json": piece}


# --- Gemini ---------------------------------------------------------------------------------


def gemini_calls(answer: Answer, fragments: Fragments) -> Iterator[Json]:
    for at, (name, arguments) in enumerate(answer.calls):
        call: Json = {"id": f"call_{at}", "name": name}
        if arguments or fragments.maybe():
            call["args"] = arguments
        yield {"functionCall": call}


def gemini_chunk(answer: Answer, parts: list[Json], *, last: bool) -> Json:
    candidate: Json = {"content": {"role": "model", "parts": parts}, "index": 0}
    chunk: Json = {"candidates": [candidate], "modelVersion": "m", "responseId": "r"}
    if last:
        candidate["finishReason"] = "MAX_TOKENS" if answer.cut_off else "STOP"
        read, written = answer.tokens
        chunk["usageMetadata"] = {"promptTokenCount": read, "candidatesTokenCount": written}
    return chunk


def gemini_complete(answer: Answer, fragments: Fragments) -> bytes:
    parts: list[Json] = []
    if answer.reasoning:
        parts.append({"text": answer.reasoning, "thought": True})
    if answer.text:
        parts.append({"text": answer.text})
    parts += gemini_calls(answer, fragments)
    return json.dumps(gemini_chunk(answer, parts, last=True)).encode()


def gemini_stream(answer: Answer, fragments: Fragments) -> bytes:
    parts: list[Json] = [
        *({"text": piece, "thought": True} for piece in fragments.of(answer.reasoning)),
        *({"text": piece} for piece in fragments.of(answer.text)),
        *gemini_calls(answer, fragments),
    ]
    chunks: list[Json] = []
    while parts:
        count = 2 if fragments.maybe() else 1
        chunks.append(gemini_chunk(answer, parts[:count], last=False))
        parts = parts[count:]
    end = [{"text": ""}] if fragments.maybe() else []
    return sse(*chunks, gemini_chunk(answer, end, last=True))


# --- Ollama ---------------------------------------------------------------------------------


def ollama_line(answer: Answer, message: Json, *, last: bool) -> Json:
    line: Json = {
        "model": "m",
        "created_at": "2026-01-01T00:00:00Z",
        "message": {"role": "assistant", "content": "", **message},
        "done": last,
    }
    if last:
        read, written = answer.tokens
        line["done_reason"] = "length" if answer.cut_off else "stop"
        line |= {"prompt_eval_count": read, "eval_count": written}
    return line


def ollama_calls(answer: Answer) -> list[Json]:
    return [
        {"id": f"call_{at}", "function": {"name": name, "arguments": arguments}}
        for at, (name, arguments) in enumerate(answer.calls)
    ]


def ollama_complete(answer: Answer, fragments: Fragments) -> bytes:
    message: Json = {"content": answer.text}
    if answer.reasoning:
        message["thinking"] = answer.reasoning
    if answer.calls:
        message["tool_calls"] = ollama_calls(answer)
    return json.dumps(ollama_line(answer, message, last=True)).encode()


def ollama_stream(answer: Answer, fragments: Fragments) -> bytes:
    messages: list[Json] = [
        *({"thinking": piece} for piece in fragments.of(answer.reasoning)),
        *({"content": piece} for piece in fragments.of(answer.text)),
        *({"tool_calls": [call]} for call in ollama_calls(answer)),
    ]
    lines = [ollama_line(answer, message, last=False) for message in messages]
    lines.append(ollama_line(answer, {}, last=True))
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


# --- Bedrock --------------------------------------------------------------------------------


def bedrock_answer(answer: Answer) -> Json:
    blocks: list[Any] = []
    if answer.reasoning:
        text = {"text": answer.reasoning, "signature": "c2lnbmVk"}
        blocks.append({"reasoningContent": {"reasoningText": text}})
    if answer.text:
        blocks.append(answer.text)
    blocks += [
        {"toolUse": {"toolUseId": f"call_{at}", "name": name, "input": arguments}}
        for at, (name, arguments) in enumerate(answer.calls)
    ]
    stop = "max_tokens" if answer.cut_off else "tool_use" if answer.calls else "end_turn"
    read, written = answer.tokens
    usage = {"inputTokens": read, "outputTokens": written, "totalTokens": read + written}
    return {**converse_server.response(*blocks, stop=stop), "usage": usage}


def bedrock_complete(answer: Answer, fragments: Fragments) -> bytes:
    return json.dumps(bedrock_answer(answer)).encode()


def bedrock_stream(answer: Answer, fragments: Fragments) -> bytes:
    def deltas(delta: Json) -> list[Json]:
        match delta:
            case {"text": text}:
                return [{"text": piece} for piece in fragments.of(text)]
            case {"toolUse": {"input": text}}:
                return [{"toolUse": {"input": piece}} for piece in fragments.of(text)]
            case {"reasoningContent": {"text": text}}:
                return [{"reasoningContent": {"text": piece}} for piece in fragments.of(text)]
        return [delta]

    events = [
        {**event, "delta": delta} if delta else event
        for _, event in converse_server.events_of(bedrock_answer(answer))
        for delta in (deltas(event["delta"]) if "delta" in event else [None])
    ]
    return b"".join(converse_server.event(kind_of(event), event) for event in events)


def kind_of(event: Json) -> str:
    """Return the kind of an event of Bedrock, which its fields tell."""
    kinds = {
        "role": "messageStart",
        "start": "contentBlockStart",
        "delta": "contentBlockDelta",
        "stopReason": "messageStop",
        "usage": "metadata",
    }
    return next((kind for field, kind in kinds.items() if field in event), "contentBlockStop")


# --- the property ---------------------------------------------------------------------------

Encode = Callable[[Answer, Fragments], bytes]

PROVIDERS: dict[str, tuple[Callable[..., ChatModel], Encode, Encode]] = {
    "chat": (OpenAIChatModel, chat_complete, chat_stream),
    "responses": (OpenAIResponsesChatModel, responses_complete, responses_stream),
    "anthropic": (AnthropicChatModel, anthropic_complete, anthropic_stream),
    "gemini": (GeminiChatModel, gemini_complete, gemini_stream),
    "ollama": (OllamaChatModel, ollama_complete, ollama_stream),
    "bedrock": (BedrockChatModel, bedrock_complete, bedrock_stream),
}

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=5,
)
texts = st.text(st.characters(codec="utf-8", exclude_characters="<"), max_size=30)
answers = st.builds(
    Answer,
    reasoning=texts.map(str.strip),
    text=texts.map(str.strip),
    calls=st.lists(
        st.tuples(
            st.sampled_from(["weather", "delete", "delete_draft"]),
            st.dictionaries(st.text(max_size=4), values, max_size=3),
        ),
        max_size=3,
    ),
    tokens=st.tuples(st.integers(1, 10**6), st.integers(1, 10**6)),
    cut_off=st.booleans(),
    log_probs=st.booleans(),
).filter(lambda answer: bool(answer.text or answer.calls))


def response_to(make: Callable[..., ChatModel], body: bytes, *, streamed: bool) -> ChatResponse:
    kind = "application/json" if not streamed else "text/event-stream"
    transport = httpx.MockTransport(
        lambda _: httpx.Response(200, content=body, headers={"content-type": kind})
    )
    with httpx.Client(transport=transport) as client:
        model = make("m", api_key="key", http_client=client, base_url="http://test")
        if not streamed:
            return model.call("Hi")
        aggregator = MessageAggregator()
        for chunk in model.stream("Hi"):
            aggregator.add(chunk)
        return aggregator.response()


def comparable(response: ChatResponse) -> Any:
    """Return all fields of *response*, without the spaces in arguments."""
    return [
        (
            [
                (part.id, part.name, json.loads(part.arguments), part.metadata)
                if isinstance(part, ToolCall)
                else part
                for part in generation.output.parts
            ],
            generation.output.metadata,
            generation.finish_reason,
            generation.native_finish_reason,
            generation.metadata,
        )
        for generation in response.generations
    ], response.metadata


@pytest.mark.parametrize("provider", PROVIDERS)
@given(answer=answers, seed=st.integers(0, 2**32))
def test_streamed_equals_complete_answer(provider: str, answer: Answer, seed: int) -> None:
    """Text, reasoning, calls with their arguments, finish reason, usage and metadata are equal."""
    make, complete, stream = PROVIDERS[provider]
    expected = response_to(make, complete(answer, Fragments(seed)), streamed=False)
    joined = response_to(make, stream(answer, Fragments(seed + 1)), streamed=True)

    assert comparable(joined) == comparable(expected)


@pytest.mark.parametrize("provider", PROVIDERS)
@given(answer=answers, seed=st.integers(0, 2**32))
def test_answer_in_the_other_form(provider: str, answer: Answer, seed: int) -> None:
    """A server may always stream, or never."""
    make, complete, stream = PROVIDERS[provider]
    expected = response_to(make, complete(answer, Fragments(seed)), streamed=False)
    joined = response_to(make, stream(answer, Fragments(seed)), streamed=False)
    whole = response_to(make, complete(answer, Fragments(seed)), streamed=True)

    assert comparable(joined) == comparable(expected)
    assert comparable(whole) == comparable(expected)
