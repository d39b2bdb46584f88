"""Fixtures of all tests; `ask` puts a request in each of the four ways."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from hypothesis import settings
from servers import ChatServer

from chatclient import ChatClientResponse, ChatModel
from chatclient.answers import CallResponse
from chatclient.client import ChatClientRequestSpec
from chatclient.events import TextDelta
from chatclient.tools import ToolExecution

# Everybody tries the same examples; others are tried with --hypothesis-profile=default.
settings.register_profile("same", derandomize=True, print_blob=True)
settings.load_profile("same")

Mode = Literal["call", "acall", "stream", "astream"]


@dataclass
class Asked:
    """What a request came to, whichever way it was put."""

    text: str
    response: ChatClientResponse
    executions: tuple[ToolExecution, ...]
    events: list[Any] = field(default_factory=list)
    answer: Any = None


@dataclass(frozen=True)
class Ask:
    """Puts a request in one of the four ways."""

    mode: Mode

    def __call__(self, request: ChatClientRequestSpec) -> Asked:
        match self.mode:
            case "call":
                answer = request.call()
                return self._asked(answer)
            case "acall":
                return asyncio.run(self._await(request))
            case "stream":
                stream = request.stream()
                events = list(stream.events())
                return self._streamed(events, stream)
            case "astream":
                return asyncio.run(self._consume(request))

    @property
    def streaming(self) -> bool:
        return self.mode in ("stream", "astream")

    @property
    def blocking(self) -> bool:
        return self.mode in ("call", "stream")

    async def _await(self, request: ChatClientRequestSpec) -> Asked:
        return self._asked(await request.acall())

    async def _consume(self, request: ChatClientRequestSpec) -> Asked:
        stream = request.astream()
        events = [event async for event in stream.events()]
        return self._streamed(events, stream)

    def _asked(self, answer: CallResponse) -> Asked:
        response, executions = answer.chat_client_response(), answer.tool_executions()
        return Asked(answer.content(), response, executions, answer=answer)

    def _streamed(self, events: list[Any], stream: Any) -> Asked:
        text = "".join(event.text for event in events if isinstance(event, TextDelta))
        return Asked(text, stream.response, stream.tool_executions(), events, stream)


@pytest.fixture(params=["call", "acall", "stream", "astream"])
def ask(request: pytest.FixtureRequest) -> Ask:
    return Ask(request.param)


@pytest.fixture
def chat_server() -> Iterator[Callable[..., ChatServer]]:
    """Start servers that speak Chat Completions; all are gone after the test."""
    servers: list[ChatServer] = []

    def start(*replies: Any) -> ChatServer:
        servers.append(ChatServer(*replies))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture(params=["httpx", "httpx2"])
def http_library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run the test over each HTTP library that is installed."""
    pytest.importorskip(request.param)
    monkeypatch.setenv("CHATCLIENT_HTTP", request.param)
    name: str = request.param
    return name


@pytest.fixture(scope="session")
def local_model() -> Iterator[ChatModel]:
    """Give the local model to all tests that are marked `live`; `make test` fetches its weights."""
    from chatclient.providers.local import LocalChatModel
    from chatclient.providers.weights import QWEN_CODER_1_5B, WeightsError, join_weights

    pytest.importorskip("xllamacpp", reason="the extra `local` is not installed")
    try:
        join_weights(QWEN_CODER_1_5B)
    except WeightsError as error:
        pytest.skip(f"no weights: {error}")
    with LocalChatModel() as model:
        yield model
