"""Tests that every `ChatModel`, `EmbeddingModel` and `RerankModel` must pass. They need pytest.

Use them in a test module:

    class TestMyModel(ChatModelContract):
        @pytest.fixture
        def model(self):
            with MyModel(...) as model:
                yield model

For detailed assertion messages, call
`pytest.register_assert_rewrite("chatclient.testing.model_contract")` in the conftest before the
import.
"""

import asyncio
import json
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import isclose, isfinite
from typing import Literal, get_args

import pytest

from chatclient.chat.aggregator import MessageAggregator
from chatclient.chat.embedding import EmbeddingModel, Vector
from chatclient.chat.messages import (
    AssistantMessage,
    Message,
    SystemMessage,
    ToolResponse,
    ToolResponseMessage,
    UserMessage,
)
from chatclient.chat.model import ChatModel
from chatclient.chat.options import ChatOptions
from chatclient.chat.prompt import Prompt
from chatclient.chat.rerank import RerankModel
from chatclient.chat.response import ChatResponse, FinishReason
from chatclient.chat.tool import ToolContext, ToolDefinition, ToolMetadata, ToolResult
from chatclient.errors import ChatClientError, ProviderError, UsageError, WrongTypeError
from chatclient.runtime.blocking import drive
from chatclient.runtime.runtime import BLOCKING, ON_LOOP
from chatclient.testing.contract_parts import EVERY_KIND, check_loop_is_free, turn

Mode = Literal["call", "acall", "stream", "astream"]
MODES: tuple[Mode, ...] = get_args(Mode)
FINISH_REASONS = frozenset[str | None]((*get_args(FinishReason), None))

QUESTION = "Say something about cats, in one sentence."
TEXTS = (
    "the cat sleeps on the sofa",
    "a dog runs in the park",
    "invoices are paid within thirty days",
    "Ünïcödé 猫 \U0001f408, '\"\\ % _ \r\n\t end",
    "x",
)
"""Texts that differ, to embed and to score."""


@dataclass(frozen=True)
class Chat:
    """A chat model that is called in one of four modes."""

    model: ChatModel
    mode: Mode

    def __call__(self, prompt: Prompt | str) -> ChatResponse:
        """Return the response; of a stream, that of its joined chunks."""
        match self.mode:
            case "call":
                return self.model.call(prompt)
            case "acall":
                return asyncio.run(self.model.acall(prompt))
            case "stream":
                joined = MessageAggregator()
                for chunk in self.model.stream(prompt):
                    joined.add(chunk)
                return joined.response()
            case "astream":
                return asyncio.run(streamed(self.model, prompt))


async def streamed(model: ChatModel, prompt: Prompt | str) -> ChatResponse:
    """Return the response of the joined chunks of *model*."""
    joined = MessageAggregator()
    async for chunk in model.astream(prompt):
        joined.add(chunk)
    return joined.response()


class Weather:
    """A tool that is offered, and not run."""

    definition = ToolDefinition(
        "weather",
        "Tell the weather in a city.",
        {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    )
    metadata = ToolMetadata()

    async def invoke(self, arguments: str, context: ToolContext) -> ToolResult:
        """Never called: a model runs no tools."""
        raise NotImplementedError


class ChatModelContract:
    """The tests of a chat model; a subclass defines the fixture `model`.

    `model` has to answer any conversation with a text. A subclass may also define `calling_model`,
    which answers with a call of the tool that it is offered and, once it is told the result, with a
    text; and `failing_model`, whose service fails.
    """

    @pytest.fixture
    def model(self) -> ChatModel:
        """Return the model to test."""
        raise NotImplementedError

    @pytest.fixture
    def calling_model(self) -> ChatModel:
        """Return a model that calls a tool; default: those tests are skipped."""
        pytest.skip("there is no fixture calling_model")

    @pytest.fixture
    def failing_model(self) -> ChatModel:
        """Return a model whose service fails; default: those tests are skipped."""
        pytest.skip("there is no fixture failing_model")

    @pytest.fixture(params=MODES)
    def mode(self, request: pytest.FixtureRequest) -> Mode:
        """Return each way of calling a model."""
        mode: Mode = request.param
        return mode

    def test_it_answers_in_every_mode(self, model: ChatModel, mode: Mode) -> None:
        """With a text, a known finish reason or none, and no negative number of tokens."""
        response = Chat(model, mode)(QUESTION)

        assert isinstance(response, ChatResponse)
        assert response.text
        assert response.finish_reason in FINISH_REASONS
        assert not response.has_tool_calls()
        usage = response.usage
        assert min(usage.input_tokens, usage.output_tokens) >= 0

    def test_modes_agree(self, model: ChatModel) -> None:
        """The same fields are reported in all four modes."""
        responses = [Chat(model, mode)(QUESTION) for mode in MODES]

        assert len({response.finish_reason for response in responses}) == 1
        assert len({len(response.generations) for response in responses}) == 1

    @pytest.mark.parametrize(
        "messages",
        [
            [SystemMessage("Be brief."), UserMessage(QUESTION)],
            [UserMessage("Hello."), AssistantMessage("Hello!"), UserMessage(QUESTION)],
            [*turn(1, 3), UserMessage(QUESTION)],
            [UserMessage("x" * 10_000)],
            [UserMessage("Ünïcödé 猫 \U0001f408, '\"\\ % _ \r\n\t end")],
        ],
        ids=["system", "history", "tool calls", "long", "characters"],
    )
    def test_conversations(self, model: ChatModel, messages: list[Message], mode: Mode) -> None:
        """System texts, earlier turns with calls, long texts and all characters are accepted."""
        assert Chat(model, mode)(Prompt(messages)).text

    @pytest.mark.parametrize("message", EVERY_KIND, ids=lambda message: type(message).__name__)
    def test_every_message_is_sent_or_refused(
        self, model: ChatModel, message: Message, mode: Mode
    ) -> None:
        """What a model cannot send is an error of this library."""
        try:
            response = Chat(model, mode)(Prompt([message, UserMessage(QUESTION)]))
        except ChatClientError:
            return
        assert response.text

    def test_a_prompt_is_not_changed(self, model: ChatModel, mode: Mode) -> None:
        """The same prompt may be sent again."""
        messages = [SystemMessage("Be brief."), UserMessage(QUESTION)]
        prompt = Prompt(messages, ChatOptions(max_tokens=50))
        Chat(model, mode)(prompt)

        assert list(prompt.messages) == messages
        assert prompt.options == ChatOptions(max_tokens=50)

    def test_a_stream_may_be_left(self, model: ChatModel) -> None:
        """After its first chunk, and the model answers again."""

        async def leave() -> None:
            stream = model.astream(QUESTION)
            await anext(stream)
            await stream.aclose()

        chunks = model.stream(QUESTION)
        next(chunks)
        chunks.close()
        asyncio.run(leave())

        assert model.call(QUESTION).text

    def test_concurrent_calls(self, model: ChatModel) -> None:
        """From threads, and from tasks on one event loop after another."""

        async def together() -> list[ChatResponse]:
            return await asyncio.gather(*(model.acall(QUESTION) for _ in range(5)))

        with ThreadPoolExecutor(5) as pool:
            responses = list(pool.map(model.call, [QUESTION] * 5))
        responses += asyncio.run(together()) + asyncio.run(together())

        assert all(response.text for response in responses)

    def test_the_event_loop_is_not_blocked(self, model: ChatModel) -> None:
        """Neither by an answer, nor by a stream."""
        check_loop_is_free(lambda: model.acall(QUESTION))
        check_loop_is_free(lambda: streamed(model, QUESTION))

    def test_a_call_can_be_cancelled(self, model: ChatModel) -> None:
        """The model answers afterwards."""

        async def cancel() -> ChatResponse:
            task = asyncio.create_task(model.acall(QUESTION))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled() or task.exception() is None
            return await model.acall(QUESTION)

        assert asyncio.run(cancel()).text

    def test_it_says_what_it_is(self, model: ChatModel) -> None:
        """Logs and spans have a name of the model and one of the provider."""
        assert model.name
        assert model.provider
        assert model.name in repr(model)

    def test_it_can_be_closed_twice(self, model: ChatModel) -> None:
        """Closing is not an error, blocking or not."""
        model.close()
        asyncio.run(model.aclose())
        model.close()

    def test_calls_of_tools(self, calling_model: ChatModel, mode: Mode) -> None:
        """They have ids and arguments in JSON, and the model takes their results."""
        options = ChatOptions(tool_callbacks=(Weather(),))
        history = [UserMessage("What is the weather in Paris?")]
        response = Chat(calling_model, mode)(Prompt(history, options))

        calls = response.message.tool_calls
        assert [call.name for call in calls] == ["weather"] * len(calls)
        assert len({call.id for call in calls if call.id}) == len(calls) > 0
        assert all(isinstance(json.loads(call.arguments), dict) for call in calls)
        assert response.finish_reason == "tool_call"

        told = [ToolResponse(call.id, call.name, "14 degrees") for call in calls]
        messages = [*history, response.message, ToolResponseMessage(told)]
        answered = Chat(calling_model, mode)(Prompt(messages, options))
        assert answered.text
        assert not answered.has_tool_calls()

    def test_failures(self, failing_model: ChatModel, mode: Mode) -> None:
        """A failure of the service is a `ProviderError` that names the provider."""
        with pytest.raises(ProviderError) as caught:
            Chat(failing_model, mode)(QUESTION)

        assert caught.value.provider


class EmbeddingModelContract:
    """The tests of an embedding model; a subclass defines the fixture `model`."""

    @pytest.fixture
    def model(self) -> EmbeddingModel:
        """Return the model to test."""
        raise NotImplementedError

    def test_one_vector_for_each_text(self, model: EmbeddingModel) -> None:
        """In the order of the texts, finite, and all of the same length."""
        vectors = model.embed(TEXTS)

        assert len(vectors) == len(TEXTS)
        assert len({len(vector) for vector in vectors}) == 1
        assert model.dimensions in (None, len(vectors[0]))
        assert all(isfinite(number) for vector in vectors for number in vector)
        for text, vector in zip(TEXTS, vectors, strict=True):
            assert is_close(model.embed([text])[0], vector)

    def test_texts_are_told_apart(self, model: EmbeddingModel) -> None:
        """Equal texts have equal vectors, and different ones others."""
        cat, dog, again = model.embed([TEXTS[0], TEXTS[1], TEXTS[0]])

        assert is_close(cat, again)
        assert not is_close(cat, dog)

    def test_batches(self, model: EmbeddingModel) -> None:
        """More texts than one request takes keep their order."""
        count = min(2 * model.options.batch_size + 1, 300)
        texts = [f"{TEXTS[at % len(TEXTS)]} {at}" for at in range(count)]
        vectors = model.embed(iter(texts))

        assert len(vectors) == count
        assert is_close(vectors[-1], model.embed(texts[-1:])[0])
        assert model.embed([]) == []

    def test_modes_agree(self, model: EmbeddingModel) -> None:
        """On an event loop, the vectors are the same."""
        for blocking, awaited in zip(
            model.embed(TEXTS), asyncio.run(model.aembed(TEXTS)), strict=True
        ):
            assert is_close(blocking, awaited)

    def test_concurrent_calls(self, model: EmbeddingModel) -> None:
        """Each thread, and each task, gets the vectors of its own texts."""

        async def together() -> list[list[Vector]]:
            return await asyncio.gather(*(model.aembed([text]) for text in TEXTS))

        expected = model.embed(TEXTS)
        with ThreadPoolExecutor(len(TEXTS)) as pool:
            found = list(pool.map(lambda text: model.embed([text]), TEXTS))
        for vectors in (found, asyncio.run(together())):
            for [vector], wanted in zip(vectors, expected, strict=True):
                assert is_close(vector, wanted)

    def test_a_single_text_is_refused(self, model: EmbeddingModel) -> None:
        """It would be taken for a list of its characters."""
        with pytest.raises(WrongTypeError):
            model.embed("cat")

    def test_tokens(self, model: EmbeddingModel) -> None:
        """A model with a limit counts them."""
        if model.max_tokens is None:
            pytest.skip("the model has no limit")
        few, many = model.count_tokens("cat"), model.count_tokens("cat " * 50)

        assert 0 < few < many

    def test_the_event_loop_is_not_blocked(self, model: EmbeddingModel) -> None:
        """By a request."""
        check_loop_is_free(lambda: model.aembed(TEXTS))

    def test_it_has_a_name(self, model: EmbeddingModel) -> None:
        """For logs and spans."""
        assert model.name

    def test_it_can_be_closed_twice(self, model: EmbeddingModel) -> None:
        """Closing is not an error, blocking or not."""
        model.close()
        asyncio.run(model.aclose())


class RerankModelContract:
    """The tests of a rerank model; a subclass defines the fixture `model`."""

    @pytest.fixture
    def model(self) -> RerankModel:
        """Return the model to test."""
        raise NotImplementedError

    def test_one_score_for_each_text(self, model: RerankModel) -> None:
        """In the order of the texts, and finite."""
        scores = scores_of(model, TEXTS[0], TEXTS)

        assert len(scores) == len(TEXTS)
        assert all(isfinite(score) for score in scores)
        assert is_close(scores_of(model, TEXTS[0], TEXTS[::-1])[::-1], scores)

    def test_the_relevant_text_has_the_best_score(self, model: RerankModel) -> None:
        """A text that says what the query says comes before texts about other things."""
        scores = scores_of(model, TEXTS[0], [TEXTS[2], TEXTS[0], TEXTS[1]])

        assert scores[1] == max(scores)
        assert scores[1] > min(scores)

    def test_batches(self, model: RerankModel) -> None:
        """More texts than one request takes keep their order."""
        count = min(2 * model.options.batch_size + 1, 300)
        texts = [*(f"{TEXTS[2]} {at}" for at in range(count - 1)), TEXTS[0]]
        scores = scores_of(model, TEXTS[0], iter(texts))

        assert len(scores) == count
        assert scores[-1] == max(scores)
        assert scores_of(model, TEXTS[0], []) == []

    def test_modes_agree(self, model: RerankModel) -> None:
        """On an event loop, the scores are the same."""
        awaited = asyncio.run(model.score_all(TEXTS[0], TEXTS, ON_LOOP))

        assert is_close(scores_of(model, TEXTS[0], TEXTS), awaited)

    def test_concurrent_calls(self, model: RerankModel) -> None:
        """Each thread gets the scores of its own query."""
        expected = [scores_of(model, query, TEXTS) for query in TEXTS]
        with ThreadPoolExecutor(len(TEXTS)) as pool:
            found = list(pool.map(lambda query: scores_of(model, query, TEXTS), TEXTS))

        assert all(map(is_close, found, expected))

    @pytest.mark.parametrize("query", ["", " "])
    def test_a_blank_query_is_refused(self, model: RerankModel, query: str) -> None:
        """Nothing can be relevant to it."""
        with pytest.raises(UsageError):
            scores_of(model, query, TEXTS)

    def test_the_event_loop_is_not_blocked(self, model: RerankModel) -> None:
        """By a request."""
        check_loop_is_free(lambda: model.score_all(TEXTS[0], TEXTS, ON_LOOP))

    def test_it_has_a_name(self, model: RerankModel) -> None:
        """For logs and errors."""
        assert model.name

    def test_it_can_be_closed_twice(self, model: RerankModel) -> None:
        """Closing is not an error, blocking or not."""
        model.close()
        asyncio.run(model.aclose())


def scores_of(model: RerankModel, query: str, texts: Iterable[str]) -> list[float]:
    """Return the scores of *texts*, in their order."""
    return drive(model.score_all(query, texts, BLOCKING))


def is_close(found: Sequence[float], expected: Sequence[float]) -> bool:
    """Return whether two vectors are equal, apart from rounding in batches."""
    return len(found) == len(expected) and all(
        isclose(one, other, rel_tol=0.01, abs_tol=0.001)
        for one, other in zip(found, expected, strict=True)
    )
