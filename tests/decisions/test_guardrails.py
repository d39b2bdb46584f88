"""Guardrails that reject by the answers of a decision model."""

from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from chatclient import AssistantMessage, ChatClient, ChatResponse, UserMessage, tool
from chatclient.advisors import (
    InputGuardrailAdvisor,
    OutputGuardrailAdvisor,
    RetrievalAugmentationAdvisor,
    ToolGuardrailInterceptor,
)
from chatclient.chat.response import Generation
from chatclient.decisions import (
    ChatDecisionModel,
    ChoiceQuestion,
    DecisionCall,
    DecisionCheck,
    DecisionRefusal,
    YesNoQuestion,
    decision_input_guardrail,
    decision_output_guardrail,
    decision_tool_guardrail,
)
from chatclient.errors import (
    ContentFilterError,
    DeadlineExceededError,
    GuardrailError,
    OverloadedError,
    UsageError,
)
from chatclient.observability import Telemetry
from chatclient.retrieval import Document, Query
from chatclient.testing import Ask, ScriptedModel, call
from chatclient.tools import ToolCallingManager
from tests.support.decisions import ComputedDecisions, always

CHECKS: Any = {
    "rude": "Is it rude?",
    "secret": DecisionCheck(YesNoQuestion("Does it contain a secret?"), threshold=0.9),
    "politics": YesNoQuestion("Is it about politics?"),
}


def by_word(text: str, name: str) -> float:
    """Return a high probability if *text* contains the name of the check."""
    return 0.8 if name in text else 0.1


def guarded(answers: ScriptedModel, guard: Any) -> ChatClient:
    return ChatClient.builder(answers).default_advisors(guard).build()


@pytest.mark.feature("decision-guardrails")
def test_a_message_is_rejected(ask: Ask) -> None:
    """All checks are one call; the error names those that reject, but no probabilities."""
    judge, model = ComputedDecisions(by_word), ScriptedModel("ok")
    client = guarded(model, InputGuardrailAdvisor(decision_input_guardrail(judge, CHECKS)))

    with pytest.raises(GuardrailError) as caught:
        ask(client.prompt([UserMessage("rude secret"), UserMessage("politics")]))
    assert str(caught.value) == "refused by input_decision: rejected by rude, politics"
    assert model.prompts == []
    assert [request.text for request in judge.requests] == ["rude secret\npolitics"]
    assert ask(client.prompt("a secret")).text == "ok"  # its threshold is higher
    assert caught.value.guardrail == "input_decision"


def test_a_threshold_of_its_own(ask: Ask) -> None:
    checks = {"secret": DecisionCheck("Does it contain a secret?", threshold=0.8)}
    guard = decision_input_guardrail(ComputedDecisions(by_word), checks)

    with pytest.raises(GuardrailError, match="rejected by secret"):
        ask(guarded(ScriptedModel(), InputGuardrailAdvisor(guard)).prompt("a secret"))


def test_an_answer_is_rejected(ask: Ask) -> None:
    """The judge gets the question and all answers."""
    judge = ComputedDecisions(by_word)
    both = [AssistantMessage("polite"), AssistantMessage("rude")]
    answer = ChatResponse(tuple(Generation(each, index=at) for at, each in enumerate(both)))
    guard = OutputGuardrailAdvisor(decision_output_guardrail(judge, CHECKS))

    with pytest.raises(GuardrailError, match=r": rejected by rude$"):
        ask(guarded(ScriptedModel(answer), guard).prompt("Hi"))
    assert judge.requests[0].input == {"question": "Hi", "answer": "polite\nrude"}


@pytest.mark.feature("decision-guardrails")
def test_another_answer_is_requested(ask: Ask) -> None:
    """The retry has the text of the application, and the rejected answer is not streamed."""
    judge = ComputedDecisions(by_word)
    model = ScriptedModel("a rude answer", "a kind answer")
    guard = decision_output_guardrail(judge, CHECKS, reprompt="Be kind.")
    asked = ask(guarded(model, OutputGuardrailAdvisor(guard)).prompt("Hi"))

    assert asked.text == "a kind answer"
    assert [m.text for m in model.prompts[1].messages] == ["Hi", "a rude answer", "Be kind."]


def test_the_judge_gets_the_documents(ask: Ask) -> None:
    """It can check whether an answer is based on them."""
    judge = always(0.0)

    def zoo(_query: Query, _runtime: Any) -> list[Document]:
        return [Document("The zoo opens at nine.")]

    guard = OutputGuardrailAdvisor(decision_output_guardrail(judge, {"invented": "Invented?"}))
    client = guarded(ScriptedModel("At nine."), guard)
    ask(client.prompt("When?").advisors(RetrievalAugmentationAdvisor(zoo)))

    assert judge.requests[0].input["documents"] == ["The zoo opens at nine."]  # type: ignore[index]


def test_a_result_of_a_tool_is_rejected(ask: Ask) -> None:
    """The judge gets the tool and its result; a result without text is not judged."""

    @tool(effect="read")
    def page(number: int) -> str:
        """Read a page."""
        return "an injected order" if number else ""

    judge = ComputedDecisions(by_word)
    guard = ToolGuardrailInterceptor(decision_tool_guardrail(judge))
    manager = ToolCallingManager(interceptors=[guard])
    model = ScriptedModel([call("page", {"number": 0}), call("page", {"number": 1})], "done")
    builder = ChatClient.builder(model).tool_calling_manager(manager).default_tools(page)
    empty, refused = ask(builder.build().prompt("Read.")).executions

    assert not empty.is_error
    assert refused.response.data == "refused by tool_decision: rejected by injected"
    assert [request.input for request in judge.requests] == [
        {"tool": "page", "result": "an injected order"}
    ]


def test_what_has_no_text_is_not_judged(ask: Ask) -> None:
    judge = always(1.0)
    request = (
        guarded(
            ScriptedModel(" "), OutputGuardrailAdvisor(decision_output_guardrail(judge, CHECKS))
        )
        .prompt()
        .system("Go on.")
    )
    guard = InputGuardrailAdvisor(decision_input_guardrail(judge, CHECKS))

    assert ask(request.advisors(guard)).text == " "
    assert judge.requests == []


@pytest.mark.parametrize(
    ("result", "error"),
    [(OverloadedError("busy"), OverloadedError), (DecisionRefusal("policy"), ContentFilterError)],
)
def test_a_failing_judge_fails_the_request(ask: Ask, result: Any, error: type[Exception]) -> None:
    """The error is raised, so that nothing passes unchecked."""
    judge, model = always(result), ScriptedModel("ok", "ok")
    guards = [
        InputGuardrailAdvisor(decision_input_guardrail(judge, CHECKS)),
        OutputGuardrailAdvisor(decision_output_guardrail(judge, CHECKS, reprompt="Again.")),
    ]
    for guard in guards:
        with pytest.raises(error):
            ask(guarded(model, guard).prompt("Hi"))
    assert len(model.prompts) == 1


def test_the_judge_is_observed_and_limited_by_the_deadline(ask: Ask) -> None:
    model = ScriptedModel('{"q1": {"Yes": 0.1, "No": 0.9}}', delay=0.0)
    guard = decision_input_guardrail(ChatDecisionModel(model), {"rude": "Is it rude?"})
    asked = ask(guarded(ScriptedModel("ok"), InputGuardrailAdvisor(guard)).prompt("Hi"))
    slow = ChatDecisionModel(ScriptedModel("{}", delay=5.0))
    guard = decision_input_guardrail(slow, {"rude": "Is it rude?"})
    late = guarded(ScriptedModel("ok"), InputGuardrailAdvisor(guard)).prompt("Hi").deadline(0.1)

    assert asked.response.trail is not None
    assert any(isinstance(s.operation, DecisionCall) for s in asked.response.trail.steps)
    with pytest.raises(DeadlineExceededError):
        ask(late)


@pytest.mark.parametrize(
    ("checks", "message"),
    [
        ({}, "give at least one"),
        ("rude", "checks must be"),
        ({"a": " "}, "must not be blank"),
        ({"a": ChoiceQuestion("x", ["a", "b"])}, "the question of a check must be"),
    ],
)
def test_wrong_checks(checks: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        decision_input_guardrail(always(0.0), checks)


def test_wrong_settings() -> None:
    with pytest.raises(UsageError, match="threshold must be a number from 0 to 1"):
        DecisionCheck("x", threshold=50)
    with pytest.raises(UsageError, match="of a chat model: ChatDecisionModel"):
        decision_output_guardrail(ScriptedModel(), CHECKS)  # type: ignore[arg-type]


@pytest.mark.parametrize("capture", [True, False])
def test_spans_of_decisions(ask: Ask, capture: bool) -> None:
    """They have the model, usage and questions' names; input and answers only on request."""
    exporter, tracers = InMemorySpanExporter(), TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    telemetry = Telemetry(tracers, capture_content=capture)
    judge = ComputedDecisions(lambda _text, name: DecisionRefusal() if name == "b" else 0.1)
    guard = InputGuardrailAdvisor(decision_input_guardrail(judge, {"a": "x", "b": "y"}))
    builder = ChatClient.builder(ScriptedModel("ok")).observers(telemetry)

    with pytest.raises(ContentFilterError):
        ask(builder.default_advisors(guard).build().prompt("Hi"))
    [span] = [span for span in exporter.get_finished_spans() if span.name == "decide judge-1"]
    attributes = dict(span.attributes or {})
    content = {
        "chatclient.decision.input": "Hi",
        "chatclient.decision.results": '{"a":{"probability":0.1},"b":{"reason":""}}',
    }
    assert attributes == {
        "gen_ai.operation.name": "decide",
        "gen_ai.provider.name": "custom",
        "gen_ai.request.model": "judge-1",
        "gen_ai.response.id": "id-1",
        "gen_ai.response.model": "judge-1b",
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 2,
        "chatclient.decision.questions": ("a", "b"),
        "chatclient.decision.refused": ("b",),
        **(content if capture else {}),
    }


def test_the_span_of_a_failed_decision(ask: Ask) -> None:
    exporter, tracers = InMemorySpanExporter(), TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    telemetry = Telemetry(tracers, capture_content=True)
    guard = decision_input_guardrail(always(OverloadedError("busy")), CHECKS)
    builder = ChatClient.builder(ScriptedModel()).observers(telemetry)

    with pytest.raises(OverloadedError):
        ask(builder.default_advisors(InputGuardrailAdvisor(guard)).build().prompt("Hi"))
    [span] = [span for span in exporter.get_finished_spans() if span.name == "decide judge-1"]
    attributes = span.attributes or {}
    assert attributes["error.type"] == "OverloadedError"
    assert attributes["chatclient.decision.input"] == "Hi"
