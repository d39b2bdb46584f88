"""Answers of each provider's API with a given number of pieces, for `scaling.py`."""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

from chatclient.chat.model import ChatModel
from chatclient.providers import (
    AnthropicChatModel,
    GeminiChatModel,
    OllamaChatModel,
    OpenAIChatModel,
    OpenAIResponsesChatModel,
)

Event = dict[str, Any]
WORD = "twelve chars"
IMAGE = "iVBORw0K" * 32


class Answer(NamedTuple):
    """A response of the server: its status, content type and body."""

    status: int
    kind: str
    body: bytes


class Provider(Protocol):
    """An API. The pieces of an answer depend on its kind, such as `text` or `calls`."""

    name: str

    def model(self, url: str) -> ChatModel:
        """Return a model of the API at *url*."""
        ...

    def answer(self, kind: str, size: int, *, streamed: bool) -> Answer:
        """Return an answer with *size* pieces."""
        ...


def events(*parts: Event) -> Answer:
    """Return a stream of server-sent events."""
    lines = [f"event: {p['type']}\ndata: " if "type" in p else "data: " for p in parts]
    texts = [line + json.dumps(part) + "\n\n" for line, part in zip(lines, parts, strict=True)]
    return Answer(200, "text/event-stream", "".join(texts).encode())


def whole(body: Event) -> Answer:
    """Return a complete answer."""
    return Answer(200, "application/json", json.dumps(body).encode())


def refused(size: int) -> Answer:
    """Return an error that lists *size* problems."""
    problems = [{"loc": ["messages", at], "msg": WORD} for at in range(size)]
    error = {"type": "invalid_request_error", "message": WORD * size, "details": problems}
    return Answer(400, "application/json", json.dumps({"error": error}).encode())


def arguments(size: int) -> str:
    """Return the arguments of a call: an array with *size* items."""
    return json.dumps({"number": 1, "items": [WORD] * size})


def pieces_of(text: str, size: int) -> Iterator[str]:
    """Yield *text* in *size* pieces or a few more."""
    length = max(len(text) // size, 1)
    return (text[at : at + length] for at in range(0, len(text), length))


def usage(names: tuple[str, str], at: int, size: int) -> Event:
    """Return the usage after *at* tokens; complete answers have *size* more counters."""
    return {names[0]: 1, names[1]: at, **{f"counter_{number}": number for number in range(size)}}


class OpenAI:
    """Chat Completions."""

    name = "openai"
    _counts = ("prompt_tokens", "completion_tokens")

    def model(self, url: str) -> ChatModel:
        """Return a model of the API at *url*."""
        return OpenAIChatModel("m", api_key="k", base_url=url, max_retries=0)

    def answer(self, kind: str, size: int, *, streamed: bool) -> Answer:
        """Return an answer with *size* pieces."""
        if streamed:
            return events(*self._stream(kind, size))
        if kind == "errors":
            return refused(size)
        message: Event = {"role": "assistant", "content": WORD}
        if kind == "text":
            message["content"] = WORD * size
        elif kind == "reasoning":
            message["reasoning_content"] = WORD * size
        elif kind == "calls":
            message["tool_calls"] = [self._call(at, f'{{"number": {at}}}') for at in range(size)]
        elif kind == "fragments":
            message["tool_calls"] = [self._call(0, arguments(size))]
        counts = usage(self._counts, 1, size if kind == "usage" else 0)
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return whole({"id": "r", "choices": [choice], "usage": counts})

    def _call(self, at: int, text: str) -> Event:
        return {"index": at, "id": f"c{at}", "function": {"name": "add", "arguments": text}}

    def _stream(self, kind: str, size: int) -> Iterator[Event]:
        def chunk(delta: Event, reason: str | None = None, **more: Any) -> Event:
            choice = {"index": 0, "delta": delta, "finish_reason": reason}
            return {"id": "r", "choices": [choice], **more}

        yield chunk({"role": "assistant", "content": ""})
        if kind == "calls":
            for at in range(size):
                yield chunk({"tool_calls": [self._call(at, f'{{"number": {at}}}')]})
        elif kind == "fragments":
            yield chunk({"tool_calls": [self._call(0, "")]})
            for text in pieces_of(arguments(size), size):
                yield chunk({"tool_calls": [{"index": 0, "function": {"arguments": text}}]})
        elif kind == "usage":
            for at in range(size):
                yield chunk({"content": WORD}, usage=usage(self._counts, at, 0))
        else:
            field = "reasoning_content" if kind == "reasoning" else "content"
            count = size if kind in ("text", "reasoning", "errors") else 1
            yield from (chunk({field: WORD}) for _ in range(count))
        if kind == "errors":
            yield {"error": {"message": WORD * size}}
        yield chunk({}, "stop")


class Responses:
    """OpenAI's Responses API."""

    name = "responses"
    _counts = ("input_tokens", "output_tokens")

    def model(self, url: str) -> ChatModel:
        """Return a model of the API at *url*."""
        return OpenAIResponsesChatModel("m", api_key="k", base_url=url, max_retries=0)

    def answer(self, kind: str, size: int, *, streamed: bool) -> Answer:
        """Return an answer with *size* pieces."""
        if kind == "errors" and not streamed:
            return refused(size)
        items = self._items(kind, size)
        counts = usage(self._counts, 1, size if kind == "usage" else 0)
        response = {"id": "r", "status": "completed", "output": items, "usage": counts}
        if not streamed:
            return whole(response)
        return events(*self._stream(kind, size, items, response))

    def _items(self, kind: str, size: int) -> list[Event]:
        if kind == "calls":
            return [self._call(at, f'{{"number": {at}}}') for at in range(size)]
        if kind == "fragments":
            return [self._call(0, arguments(size))]
        if kind == "reasoning":
            text = {"type": "summary_text", "text": WORD * size}
            return [{"type": "reasoning", "id": "i0", "summary": [text]}]
        if kind == "images":
            image = {"type": "image_generation_call", "status": "completed", "result": IMAGE}
            return [{**image, "id": f"i{at}"} for at in range(size)]
        text = {"type": "output_text", "text": WORD * (size if kind in ("text", "errors") else 1)}
        return [{"type": "message", "id": "i0", "role": "assistant", "content": [text]}]

    def _call(self, at: int, text: str) -> Event:
        call = {"type": "function_call", "id": f"i{at}", "call_id": f"c{at}", "name": "add"}
        return {**call, "arguments": text}

    def _stream(self, kind: str, size: int, items: list[Event], response: Event) -> Iterator[Event]:
        yield {"type": "response.created", "response": {"id": "r"}}
        name = {
            "reasoning": "reasoning_summary_text",
            "fragments": "function_call_arguments",
            "calls": "function_call_arguments",
        }.get(kind, "output_text")
        for at, item in enumerate(items):
            start = {**item, "arguments": ""} if "arguments" in item else {**item, "content": []}
            place = {"output_index": at, "item_id": item["id"]}
            yield {"type": "response.output_item.added", **place, "item": start}
            if kind in ("calls", "fragments"):
                texts = pieces_of(item["arguments"], size if kind == "fragments" else 2)
            else:
                texts = (
                    WORD for _ in range(size if kind in ("text", "reasoning", "errors") else 1)
                )
            if kind != "images":
                for text in texts:
                    yield {"type": f"response.{name}.delta", **place, "delta": text}
            if kind == "errors":
                yield {"type": "error", "message": WORD * size}
                return
            yield {"type": "response.output_item.done", **place, "item": item}
        yield {"type": "response.completed", "response": response}


class Anthropic:
    """Messages API."""

    name = "anthropic"
    _counts = ("input_tokens", "output_tokens")

    def model(self, url: str) -> ChatModel:
        """Return a model of the API at *url*."""
        url = url.removesuffix("/v1")
        return AnthropicChatModel("m", api_key="k", base_url=url, max_retries=0)

    def answer(self, kind: str, size: int, *, streamed: bool) -> Answer:
        """Return an answer with *size* pieces."""
        if streamed:
            return events(*self._stream(kind, size))
        if kind == "errors":
            return refused(size)
        blocks: list[Event] = [{"type": "text", "text": WORD * (size if kind == "text" else 1)}]
        if kind == "reasoning":
            blocks = [{"type": "thinking", "thinking": WORD * size, "signature": "s"}]
        elif kind == "calls":
            blocks = [self._call(at, {"number": at}) for at in range(size)]
        elif kind == "fragments":
            blocks = [self._call(0, json.loads(arguments(size)))]
        counts = usage(self._counts, 1, size if kind == "usage" else 0)
        message = {"id": "r", "type": "message", "role": "assistant", "content": blocks}
        return whole({**message, "stop_reason": "end_turn", "usage": counts})

    def _call(self, at: int, values: Event) -> Event:
        return {"type": "tool_use", "id": f"c{at}", "name": "add", "input": values}

    def _stream(self, kind: str, size: int) -> Iterator[Event]:
        def block(at: int, start: Event, field: str, texts: Iterator[str]) -> Iterator[Event]:
            yield {"type": "content_block_start", "index": at, "content_block": start}
            key = "partial_json" if field == "input_json" else field
            for text in texts:
                delta = {"type": f"{field}_delta", key: text}
                yield {"type": "content_block_delta", "index": at, "delta": delta}
            yield {"type": "content_block_stop", "index": at}

        yield {"type": "message_start", "message": {"id": "r", "usage": {"input_tokens": 1}}}
        if kind == "calls":
            for at in range(size):
                texts = pieces_of(f'{{"number": {at}}}', 2)
                yield from block(at, self._call(at, {}), "input_json", texts)
        elif kind == "fragments":
            texts = pieces_of(arguments(size), size)
            yield from block(0, self._call(0, {}), "input_json", texts)
        elif kind == "reasoning":
            start = {"type": "thinking", "thinking": "", "signature": ""}
            yield from block(0, start, "thinking", (WORD for _ in range(size)))
        else:
            count = size if kind in ("text", "errors") else 1
            yield from block(0, {"type": "text", "text": ""}, "text", (WORD for _ in range(count)))
        if kind == "errors":
            yield {"type": "error", "error": {"type": "api_error", "message": WORD * size}}
        for at in range(size if kind == "usage" else 1):
            delta = {"stop_reason": "end_turn" if at == size - 1 or kind != "usage" else None}
            yield {"type": "message_delta", "delta": delta, "usage": usage(self._counts, at, 0)}
        yield {"type": "message_stop"}


class Gemini:
    """Gemini API."""

    name = "gemini"
    _counts = ("promptTokenCount", "candidatesTokenCount")

    def model(self, url: str) -> ChatModel:
        """Return a model of the API at *url*."""
        return GeminiChatModel("m", api_key="k", base_url=url, max_retries=0)

    def answer(self, kind: str, size: int, *, streamed: bool) -> Answer:
        """Return an answer with *size* pieces."""
        if kind == "errors" and not streamed:
            return refused(size)
        if streamed:
            return events(*self._stream(kind, size))
        parts = list(self._parts(kind, size))
        if kind in ("text", "reasoning"):
            parts = [{**parts[0], "text": WORD * size}]
        counts = usage(self._counts, 1, size if kind == "usage" else 0)
        return whole(self._chunk(parts, counts, "STOP"))

    def _chunk(self, parts: list[Event], counts: Event, reason: str | None = None) -> Event:
        candidate: Event = {"content": {"parts": parts}}
        if reason is not None:
            candidate["finishReason"] = reason
        return {"candidates": [candidate], "usageMetadata": counts, "responseId": "r"}

    def _parts(self, kind: str, size: int) -> Iterator[Event]:
        if kind == "fragments":
            yield {"functionCall": {"name": "add", "args": json.loads(arguments(size))}}
            return
        for at in range(size if kind not in ("usage", "history", "tools") else 1):
            match kind:
                case "reasoning":
                    yield {"text": WORD, "thought": True}
                case "calls":
                    yield {"functionCall": {"name": "add", "args": {"number": at}}}
                case "images":
                    yield {"inlineData": {"mimeType": "image/png", "data": IMAGE}}
                case _:
                    yield {"text": WORD}

    def _stream(self, kind: str, size: int) -> Iterator[Event]:
        if kind == "fragments":
            yield self._call({"name": "add", "willContinue": True})
            for at in range(size):
                piece = {"jsonPath": f"$.items[{at}]", "stringValue": WORD}
                yield self._call({"partialArgs": [piece], "willContinue": True})
            yield self._call({})
        else:
            for at, part in enumerate(self._parts(kind, size)):
                yield self._chunk([part], usage(self._counts, at, 0))
        if kind == "usage":
            for at in range(size):
                yield self._chunk([{"text": WORD}], usage(self._counts, at, 0))
        if kind == "errors":
            yield {"error": {"code": 500, "message": WORD * size}}
        yield self._chunk([], usage(self._counts, size, 0), "STOP")

    def _call(self, call: Event) -> Event:
        return self._chunk([{"functionCall": call}], usage(self._counts, 1, 0))


class Ollama:
    """Ollama's API, whose streams are lines of JSON."""

    name = "ollama"

    def model(self, url: str) -> ChatModel:
        """Return a model of the API at *url*."""
        return OllamaChatModel("m", base_url=url.removesuffix("/v1"), max_retries=0)

    def answer(self, kind: str, size: int, *, streamed: bool) -> Answer:
        """Return an answer with *size* pieces."""
        if kind == "errors" and not streamed:
            return refused(size)
        end = {"done": True, "done_reason": "stop", "prompt_eval_count": 1, "eval_count": 1}
        if not streamed:
            counters = range(size if kind == "usage" else 0)
            more = {f"counter_{number}": number for number in counters}
            return whole({"message": self._message(kind, size, size), **end, **more})
        count = size if kind in ("text", "reasoning", "calls", "usage", "errors") else 1
        lines: list[Event] = [
            {"message": self._message(kind, 1, size, at), "done": False} for at in range(count)
        ]
        if kind == "usage":
            lines = [{**line, "eval_count": at} for at, line in enumerate(lines)]
        if kind == "errors":
            lines.append({"error": WORD * size})
        lines.append({"message": {"role": "assistant", "content": ""}, **end})
        body = "".join(json.dumps(line) + "\n" for line in lines)
        return Answer(200, "application/x-ndjson", body.encode())

    def _message(self, kind: str, count: int, size: int, first: int = 0) -> Event:
        message: Event = {"role": "assistant", "content": ""}
        match kind:
            case "calls":
                values = [{"number": at} for at in range(first, first + count)]
            case "fragments":
                values = [json.loads(arguments(size))]
            case "reasoning":
                return {**message, "thinking": WORD * count}
            case _:
                return {**message, "content": WORD * (count if kind == "text" else 1)}
        calls = [{"function": {"name": "add", "arguments": each}} for each in values]
        return {**message, "tool_calls": calls}


PROVIDERS: tuple[Provider, ...] = (OpenAI(), Responses(), Anthropic(), Gemini(), Ollama())
