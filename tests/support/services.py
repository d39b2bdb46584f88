"""Every provider with valid answers of its service, for tests of all providers."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from chatclient import ChatModel
from chatclient.providers.anthropic.model import AnthropicChatModel
from chatclient.providers.bedrock.model import BedrockChatModel
from chatclient.providers.gemini.model import GeminiChatModel
from chatclient.providers.ollama.model import OllamaChatModel
from chatclient.providers.openai.chat import OpenAIChatModel
from chatclient.providers.openai.responses import OpenAIResponsesChatModel
from tests.support import converse_server, messages_server, responses_server, servers

TEXT = "one two three"


@dataclass(frozen=True)
class Service:
    """A provider and its service.

    Attributes:
        name: The name in parameter ids.
        kind: The provider's model class.
        path: The path of the API.
        complete: Makes a complete answer with a text.
        stream: Makes a streamed answer with a text.
        stream_type: The stream's content type.
    """

    name: str
    kind: Callable[..., ChatModel]
    path: str
    complete: Callable[[str], bytes] = field(repr=False)
    stream: Callable[[str], bytes] = field(repr=False)
    stream_type: str = "text/event-stream"

    def model(self, url: str, **settings: Any) -> ChatModel:
        """Return a model that asks the server at *url*."""
        named = {"max_retries": 0, "api_key": "a-key-of-some-length", **settings}
        return self.kind("stub", base_url=url + self.path, **named)

    def answer(self, *, streaming: bool) -> bytes:
        return self.stream(TEXT) if streaming else self.complete(TEXT)

    def __str__(self) -> str:
        return self.name


def _gemini(text: str, **more: Any) -> Any:
    content = {"role": "model", "parts": [{"text": text}]}
    return {"candidates": [{"content": content, **more}], "usageMetadata": {}, "responseId": "r"}


def _gemini_stream(text: str) -> bytes:
    first, *rest = (f" {word}" if at else word for at, word in enumerate(text.split(" ")))
    chunks = [*map(_gemini, (first, *rest)), _gemini("", finishReason="STOP")]
    return b"".join(b"data: %b\r\n\r\n" % json.dumps(chunk).encode() for chunk in chunks)


def _ollama(text: str, *, done: bool) -> bytes:
    message = {"role": "assistant", "content": text}
    return json.dumps({"model": "stub", "message": message, "done": done}).encode()


def _ollama_stream(text: str) -> bytes:
    words = [f" {word}" if at else word for at, word in enumerate(text.split(" "))]
    lines = [*(_ollama(word, done=False) for word in words), _ollama("", done=True)]
    return b"".join(line + b"\n" for line in lines)


SERVICES = (
    Service(
        "chat",
        OpenAIChatModel,
        "/v1",
        lambda text: json.dumps(servers.completion(text)).encode(),
        lambda text: servers.as_stream(servers.completion(text)),
    ),
    Service(
        "responses",
        OpenAIResponsesChatModel,
        "/v1",
        lambda text: json.dumps(responses_server.response(text)).encode(),
        lambda text: responses_server.as_stream(
            responses_server.events_of(responses_server.response(text))
        ),
    ),
    Service(
        "anthropic",
        AnthropicChatModel,
        "",
        lambda text: json.dumps(messages_server.message(text)).encode(),
        lambda text: messages_server.as_stream(messages_server.message(text)),
    ),
    Service(
        "gemini",
        GeminiChatModel,
        "/v1beta",
        lambda text: json.dumps(_gemini(text, finishReason="STOP")).encode(),
        _gemini_stream,
    ),
    Service(
        "ollama",
        OllamaChatModel,
        "",
        lambda text: _ollama(text, done=True),
        _ollama_stream,
        "application/x-ndjson",
    ),
    Service(
        "bedrock",
        BedrockChatModel,
        "",
        lambda text: json.dumps(converse_server.response(text)).encode(),
        lambda text: converse_server.as_stream(converse_server.response(text)),
        "application/vnd.amazon.eventstream",
    ),
)


@dataclass(frozen=True)
class Outcome:
    """The outcome of a request.

    Attributes:
        text: The received text, possibly partial.
        error: The raised error, if any.
        in_use: The number of pool connections still in use.
    """

    text: str
    error: Exception | None
    in_use: int


def outcome_of(model: ChatModel, mode: str) -> Outcome:
    """Return the outcome of a request in one of the modes, and close the model."""
    if mode in ("acall", "astream"):
        return asyncio.run(_awaited(model, streaming=mode == "astream"))
    pieces: list[str] = []
    error: Exception | None = None
    with model:
        try:
            if mode == "stream":
                pieces.extend(chunk.text or "" for chunk in model.stream("Hi"))
            else:
                pieces.append(model.call("Hi").text)
        except Exception as raised:  # noqa: BLE001 - the test looks at it
            error = raised
        return Outcome("".join(pieces), error, in_use(model))


async def _awaited(model: ChatModel, *, streaming: bool) -> Outcome:
    pieces: list[str] = []
    error: Exception | None = None
    async with model:
        try:
            if streaming:
                # One by one, to keep the text before an error.
                async for chunk in model.astream("Hi"):
                    pieces += [chunk.text or ""]
            else:
                pieces.append((await model.acall("Hi")).text)
        except Exception as raised:  # noqa: BLE001 - the test looks at it
            error = raised
        return Outcome("".join(pieces), error, in_use(model))


def in_use(model: Any) -> int:
    """Return the number of connections in use in a model's pools."""
    pools = model._http._pools
    shards = [shard for loop in pools._loops.values() for shard in loop.shards]
    transports = [*(shard.transport for shard in shards), pools._blocking]
    busy: int = sum(shard.busy for shard in shards)
    for transport in transports:
        pool = getattr(transport, "_pool", None)  # aiohttp's transport has another kind
        for connection in pool.connections if pool else ():
            busy += not (connection.is_idle() or connection.is_closed())
    return busy
