"""Auxiliary model calls: those of advisors, memories and judges."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from chatclient import (
    ChatClient,
    ChatClientRequest,
    ChatClientResponse,
    ChatModel,
    ChatOptions,
    Next,
)
from chatclient.advisors import ask_model
from chatclient.advisors.memory.advisors import MessageChatMemoryAdvisor
from chatclient.advisors.retrieval.advisor import RetrievalAugmentationAdvisor
from chatclient.chain.chain import Advisor
from chatclient.errors import DeadlineExceededError, UsageError
from chatclient.memory import (
    InMemorySessionRepository,
    RecursiveSummary,
    SessionChatMemory,
    SessionService,
    SummarizingChatMemory,
    TurnCountTrigger,
    Window,
)
from chatclient.observability.telemetry import Telemetry
from chatclient.retrieval import Document, Query, RewriteQueryTransformer
from chatclient.runtime.blocking import drive
from chatclient.runtime.runtime import BLOCKING, Runtime
from chatclient.testing import Ask, ScriptedModel
from chatclient.testing.evaluation import EvaluationRequest, RelevancyEvaluator


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    yield exporter
    exporter.shutdown()


@pytest.fixture
def telemetry(spans: InMemorySpanExporter) -> Iterator[Telemetry]:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    yield Telemetry(provider)
    provider.shutdown()


async def found(query: Query, runtime: Runtime) -> Sequence[Document]:
    return [Document("The zoo opens at nine.")]


def summarizing(helper: ChatModel) -> Advisor:
    few = Window.messages(2)
    return MessageChatMemoryAdvisor(SummarizingChatMemory(helper, trigger=few, window=few))


def compacting(helper: ChatModel) -> Advisor:
    strategy = RecursiveSummary(helper, most=2, overlap=1)
    service = SessionService(InMemorySessionRepository())
    memory = SessionChatMemory(service, trigger=TurnCountTrigger(1), strategy=strategy)
    return MessageChatMemoryAdvisor(memory)


def rewriting(helper: ChatModel) -> Advisor:
    return RetrievalAugmentationAdvisor(found, query_transformers=[RewriteQueryTransformer(helper)])


def judged(helper: ChatModel) -> Advisor:
    judge = RelevancyEvaluator(helper)

    async def advise(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        response = await call_next(request)
        await judge.judge(EvaluationRequest.of("?", response), request.runtime)
        return response

    return advise


@pytest.mark.feature("observation-model-calls-beside-rounds")
@pytest.mark.parametrize("make", [summarizing, compacting, rewriting, judged])
def test_what_the_library_asks_models_itself_is_seen(
    ask: Ask, make: Callable[[ChatModel], Advisor], telemetry: Telemetry, spans: Any
) -> None:
    """Auxiliary calls are in the trail and in telemetry, and not in the stream."""
    helper = ScriptedModel(lambda prompt: "yes", options=ChatOptions(model="helper"))
    builder = ChatClient.builder(ScriptedModel(lambda prompt: "nine")).observers(telemetry)
    client = builder.default_advisors(make(helper)).build()
    results = [ask(client.prompt("When?").conversation("c")) for _ in range(3)]
    trails = [result.response.trail for result in results]

    auxiliary_calls = [
        step.result.text for trail in trails if trail is not None for step in trail.auxiliary_calls
    ]
    assert len(helper.prompts) == len(auxiliary_calls) > 0
    assert [result.text for result in results] == ["nine", "nine", "nine"]
    named = [span for span in spans.get_finished_spans() if span.name == "chat helper"]
    assert len(named) == len(auxiliary_calls)


def test_an_advisor_may_let_the_user_hear_it(ask: Ask) -> None:
    """With the runtime of its request the model's words are streamed as they come."""
    other = ScriptedModel("Seven pieces", chunks=2, options=ChatOptions(temperature=0.5))

    async def answer(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        return ChatClientResponse(await ask_model(other, request.prompt, request.runtime))

    client = ChatClient.builder(ScriptedModel()).default_advisors(answer).build()
    result = ask(client.prompt("x"))

    assert result.text == "Seven pieces"
    assert other.prompts[0].options.temperature == 0.5
    assert len(result.events) == (8 if ask.streaming else 0)


def test_outside_of_a_client_calls_are_in_telemetry(
    spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A judge in a test has no trail, but spans of the application."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    judge = RelevancyEvaluator(ScriptedModel("Yes."))

    assert judge.evaluate(EvaluationRequest("1 + 1?", "2")).passed
    assert [span.name for span in spans.get_finished_spans()] == ["chat ScriptedModel"]
    provider.shutdown()


def test_no_model_call_without_text_or_time() -> None:
    """A blank text and a passed deadline are refused before the call."""
    model = ScriptedModel()
    with pytest.raises(UsageError, match="blank"):
        drive(ask_model(model, "  ", BLOCKING))
    with pytest.raises(DeadlineExceededError, match="before the model was called"):
        drive(ask_model(model, "?", BLOCKING.with_deadline(0)))

    assert model.prompts == []
