"""The contracts of models and indexes: ours pass, and mistakes are found."""

import asyncio
import socket
import sqlite3
import threading
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

import pytest

from chatclient import ChatModel, ChatResponse, Prompt, ToolResponseMessage
from chatclient.chat.messages import UserMessage
from chatclient.errors import OverloadedError
from chatclient.memory import InMemoryChatMemoryRepository
from chatclient.memory.sessions.in_memory import InMemorySessionRepository
from chatclient.providers import EmbeddingModel, RerankModel
from chatclient.retrieval import InMemoryVectorStore
from chatclient.runtime.runtime import Runtime
from chatclient.testing import (
    ChatMemoryRepositoryContract,
    ChatModelContract,
    EmbeddingModelContract,
    RerankModelContract,
    ScriptedModel,
    SessionRepositoryContract,
    ToolIndexContract,
    call,
)
from chatclient.testing.contract_parts import check_loop_is_free
from chatclient.testing.model_contract import MODES
from chatclient.testing.tool_index_contract import TOOLS, Searched
from chatclient.testing.vector_store_contract import WordCounts
from chatclient.tools.search import (
    HybridToolIndex,
    KeywordToolIndex,
    RegexToolIndex,
    ToolIndex,
    ToolReference,
    ToolSearchRequest,
    ToolSearchResponse,
    VectorToolIndex,
)


class Echo(ChatModel):
    """Answers with its last message, and calls its first tool."""

    async def generate(self, prompt: Prompt, runtime: Runtime) -> ChatResponse:
        await runtime.sleep(0)
        return ChatResponse.of(f"You said: {prompt.messages[-1].text[:50]}")


def calling(prompt: Prompt) -> Any:
    if isinstance(prompt.messages[-1], ToolResponseMessage):
        return "14 degrees."
    return call("weather", {"city": "Paris"})


class Overloaded(ChatModel):
    """Always fails."""

    async def generate(self, prompt: Prompt, runtime: Runtime) -> ChatResponse:
        raise OverloadedError("busy", provider="echo")


class TestEcho(ChatModelContract):
    """The smallest model."""

    @pytest.fixture
    def model(self) -> ChatModel:
        return Echo()

    @pytest.fixture
    def calling_model(self) -> ChatModel:
        return ScriptedModel(*[calling] * 20)

    @pytest.fixture
    def failing_model(self) -> ChatModel:
        return Overloaded()


class TestWordCounts(EmbeddingModelContract):
    """Vectors of words."""

    @pytest.fixture
    def model(self) -> EmbeddingModel:
        return WordCounts()


class Overlap(RerankModel):
    """Counts common words."""

    async def score_batch(self, query: str, texts: Sequence[str], runtime: Runtime) -> list[float]:
        await runtime.sleep(0)
        wanted = set(query.split())
        return [len(wanted & set(text.split())) / len(wanted) for text in texts]


class TestOverlap(RerankModelContract):
    """Common words."""

    @pytest.fixture
    def model(self) -> RerankModel:
        return Overlap()


class TestIndexes(ToolIndexContract):
    """The indexes of the library."""

    @pytest.fixture(params=["keyword", "regex", "vector", "hybrid"])
    def index(self, request: pytest.FixtureRequest) -> ToolIndex:
        match request.param:
            case "keyword":
                return KeywordToolIndex()
            case "regex":
                return RegexToolIndex()
            case "vector":
                return VectorToolIndex(InMemoryVectorStore(WordCounts()))
            case _:
                vectors = VectorToolIndex(InMemoryVectorStore(WordCounts()))
                return HybridToolIndex(KeywordToolIndex(), vectors)


# --- mistakes that the contracts find ---


class Mute(Echo):
    async def generate(self, prompt: Prompt, runtime: Runtime) -> ChatResponse:
        return ChatResponse.of("")


class Sleepy(Echo):
    async def generate(self, prompt: Prompt, runtime: Runtime) -> ChatResponse:
        time.sleep(0.001)  # noqa: ASYNC251
        return await super().generate(prompt, runtime)


class Busy(Echo):
    async def generate(self, prompt: Prompt, runtime: Runtime) -> ChatResponse:
        end = time.perf_counter() + 0.08
        while time.perf_counter() < end:
            pass
        return await super().generate(prompt, runtime)


class LosesReason(Echo):
    async def generate_stream(
        self, prompt: Prompt, runtime: Runtime
    ) -> AsyncGenerator[ChatResponse | str, None]:
        yield "Hello."


class Refuses(Echo):
    async def generate(self, prompt: Prompt, runtime: Runtime) -> ChatResponse:
        for message in prompt.messages:
            message.text.encode("ascii")
        return await super().generate(prompt, runtime)


class OneAtATime(Echo):
    def __init__(self) -> None:
        self._busy = threading.Lock()

    async def generate(self, prompt: Prompt, runtime: Runtime) -> ChatResponse:
        assert self._busy.acquire(blocking=False)
        await runtime.sleep(0.02)
        self._busy.release()
        return await super().generate(prompt, runtime)


class ClosedOnce(Echo):
    closed = False

    def close(self) -> None:
        assert not self.closed
        self.closed = True


class Nameless(Echo):
    @property
    def name(self) -> str:
        return ""


class ThrowsPlainly(Echo):
    async def generate(self, prompt: Prompt, runtime: Runtime) -> ChatResponse:
        raise ConnectionError("refused")


def in_modes(test: Callable[..., None], *rest: Any) -> Callable[[Any], None]:
    def run(model: Any) -> None:
        for mode in MODES:
            test(ChatModelContract(), model, *rest, mode)

    return run


CHAT = ChatModelContract
SAMPLE = [UserMessage("猫")]


@pytest.mark.parametrize(
    ("model", "finds"),
    [
        (Mute, in_modes(CHAT.test_it_answers_in_every_mode)),
        (Sleepy, lambda model: CHAT().test_the_event_loop_is_not_blocked(model)),
        (Busy, lambda model: CHAT().test_the_event_loop_is_not_blocked(model)),
        (LosesReason, lambda model: CHAT().test_modes_agree(model)),
        (Refuses, in_modes(CHAT.test_conversations, SAMPLE)),
        (Refuses, in_modes(CHAT.test_every_message_is_sent_or_refused, SAMPLE[0])),
        (OneAtATime, lambda model: CHAT().test_concurrent_calls(model)),
        (ClosedOnce, lambda model: CHAT().test_it_can_be_closed_twice(model)),
        (Nameless, lambda model: CHAT().test_it_says_what_it_is(model)),
        (ThrowsPlainly, in_modes(CHAT.test_failures)),
        (Echo, in_modes(CHAT.test_calls_of_tools)),
    ],
)
def test_mistakes_of_chat_models(model: type[ChatModel], finds: Callable[[Any], None]) -> None:
    """A planted mistake fails the test that is about it, and the plain model passes."""
    with pytest.raises((AssertionError, ValueError, ConnectionError, pytest.fail.Exception)):
        finds(model())


class Sorted(WordCounts):
    """Returns vectors in the order of the texts' names."""

    async def embed_batch(self, texts: Sequence[str], runtime: Runtime) -> list[list[float]]:
        return await super().embed_batch(sorted(texts), runtime)


class Constant(WordCounts):
    async def embed_batch(self, texts: Sequence[str], runtime: Runtime) -> list[list[float]]:
        return [[1.0, 0.0]] * len(texts)


class NotANumber(WordCounts):
    async def embed_batch(self, texts: Sequence[str], runtime: Runtime) -> list[list[float]]:
        return [[float("nan")]] * len(texts)


class NoTokens(WordCounts):
    @property
    def max_tokens(self) -> int:
        return 512

    def count_tokens(self, text: str) -> int:
        return 0


EMBEDDING = EmbeddingModelContract()


@pytest.mark.parametrize(
    ("model", "finds"),
    [
        (Sorted, EMBEDDING.test_one_vector_for_each_text),
        (Constant, EMBEDDING.test_texts_are_told_apart),
        (NotANumber, EMBEDDING.test_one_vector_for_each_text),
        (NoTokens, EMBEDDING.test_tokens),
    ],
)
def test_mistakes_of_embedding_models(
    model: type[EmbeddingModel], finds: Callable[[Any], None]
) -> None:
    """A planted mistake fails the test that is about it."""
    with pytest.raises(AssertionError):
        finds(model())


class Backwards(Overlap):
    async def score_batch(self, query: str, texts: Sequence[str], runtime: Runtime) -> list[float]:
        return [-score for score in await super().score_batch(query, texts, runtime)]


class ByPosition(Overlap):
    async def score_batch(self, query: str, texts: Sequence[str], runtime: Runtime) -> list[float]:
        return [float(at) for at in range(len(texts))]


@pytest.mark.parametrize(
    ("model", "finds"),
    [
        (Backwards, RerankModelContract().test_the_relevant_text_has_the_best_score),
        (Backwards, RerankModelContract().test_batches),
        (ByPosition, RerankModelContract().test_one_score_for_each_text),
    ],
)
def test_mistakes_of_rerankers(model: type[RerankModel], finds: Callable[[Any], None]) -> None:
    """A planted mistake fails the test that is about it."""
    with pytest.raises(AssertionError):
        finds(model())


class OneSession(KeywordToolIndex):
    """Mixes sessions up."""

    async def put(
        self, session_id: str, references: Sequence[ToolReference], runtime: Runtime
    ) -> None:
        await super().put("all", references, runtime)

    async def find(self, request: ToolSearchRequest, runtime: Runtime) -> ToolSearchResponse:
        mixed = ToolSearchRequest("all", request.query, roles={"admin"})
        return await super().find(mixed, runtime)


@pytest.mark.parametrize(
    "finds",
    [
        ToolIndexContract.test_sessions_are_apart,
        ToolIndexContract.test_the_number_of_results_is_limited,
        ToolIndexContract.test_excluded_tools,
        ToolIndexContract.test_roles,
        ToolIndexContract.test_categories,
    ],
)
def test_mistakes_of_tool_indexes(finds: Callable[..., None]) -> None:
    """A planted mistake fails the test that is about it."""
    searched = Searched(OneSession(), blocking=True)
    searched.put("a", TOOLS)
    with pytest.raises(AssertionError):
        rest = [1] if finds is ToolIndexContract.test_the_number_of_results_is_limited else []
        finds(ToolIndexContract(), searched, *rest)


class BlockingMemory(InMemoryChatMemoryRepository):
    """Waits on the loop."""

    async def load(self, *arguments: Any, **options: Any) -> Any:
        sqlite3.connect(":memory:").close()
        return await super().load(*arguments, **options)


class BlockingSessions(InMemorySessionRepository):
    """Waits on the loop."""

    async def find(self, *arguments: Any, **options: Any) -> Any:
        time.sleep(0.001)  # noqa: ASYNC251
        return await super().find(*arguments, **options)


def test_stores_that_block_the_loop() -> None:
    """Both contracts of stores find them."""
    with pytest.raises(AssertionError, match=r"blocked by .*sqlite3"):
        ChatMemoryRepositoryContract().test_the_event_loop_is_not_blocked(BlockingMemory(), "a")
    with pytest.raises(AssertionError, match=r"blocked by time\.sleep"):
        SessionRepositoryContract().test_the_event_loop_is_not_blocked(BlockingSessions(), "a")


def test_what_blocks_a_loop() -> None:
    """Reading files and blocking sockets do; imports, threads and the loop's own sockets do not."""

    async def reads() -> None:
        open(__file__).close()  # noqa: ASYNC230, PTH123

    async def connects() -> None:
        one, other = socket.socketpair()
        one.send(b"x")
        other.recv(1)
        one.close()
        other.close()

    async def waits() -> None:
        import this_module_does_not_exist  # type: ignore[import-not-found] # noqa: F401

    async def serves() -> None:
        server = await asyncio.start_server(lambda _r, w: w.close(), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await reader.read()
        writer.close()
        server.close()
        await asyncio.to_thread(time.sleep, 0.001)

    with pytest.raises(AssertionError, match="open"):
        check_loop_is_free(reads)
    with pytest.raises(AssertionError, match="recv"):
        check_loop_is_free(connects)
    with pytest.raises(ModuleNotFoundError):
        check_loop_is_free(waits)
    check_loop_is_free(serves)
