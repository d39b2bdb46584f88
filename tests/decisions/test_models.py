"""Decisions by a chat model: from log probabilities, or from stated ones."""

import asyncio
import json
import math
import threading
from collections.abc import Callable
from typing import Any

import pytest

from chatclient import (
    AssistantMessage,
    ChatClient,
    ChatClientRequest,
    ChatClientResponse,
    ChatModel,
    ChatOptions,
    ChatResponse,
    Next,
    Prompt,
    Runtime,
)
from chatclient.advisors import Budget
from chatclient.chat.response import Generation
from chatclient.decisions import (
    ChatDecisionModel,
    ChoiceQuestion,
    DecisionCall,
    DecisionQuestions,
    DecisionRequest,
    DecisionResponse,
    ScoreQuestion,
    ask_decision,
)
from chatclient.errors import (
    BudgetExceededError,
    ContentFilterError,
    DeadlineExceededError,
    InvalidResponseError,
    OverloadedError,
    UsageError,
)
from chatclient.observability import ModelCall
from chatclient.providers import (
    AnthropicChatModel,
    FallbackChatModel,
    OllamaChatModel,
    OpenAIChatModel,
    chat_model,
)
from chatclient.testing import Ask, ScriptedModel
from tests.support.servers import ChatServer, completion
from tests.support.waiting import settled

QUESTIONS: DecisionQuestions = {
    "rude": "Is it rude?",
    "team": ChoiceQuestion("Which team?", {"billing": "invoices", "sales": ""}),
    "anger": ScoreQuestion("How angry?", ["calm", "annoyed", "furious"]),
}
"""Questions of all kinds; those of the first kind have the labels Yes and No, others A, B, C."""

Start = Callable[..., ChatServer]


def by_tokens(*tokens: dict[str, float], refused: str | None = None) -> dict[str, Any]:
    """Return a completion of *tokens*, each with its alternatives, the chosen one first."""
    content = [
        {
            "token": next(iter(each)),
            "logprob": math.log(next(iter(each.values()))),
            "bytes": None,
            "top_logprobs": [
                {"token": token, "logprob": math.log(p), "bytes": None} for token, p in each.items()
            ],
        }
        for each in tokens
    ]
    reply = completion("".join(next(iter(each)) for each in tokens))
    reply["choices"][0]["logprobs"] = {"content": content, "refusal": None}
    reply["choices"][0]["message"]["refusal"] = refused
    return reply


def answer_by_question(request: dict[str, Any]) -> dict[str, Any]:
    """Return what a model may answer to `QUESTIONS`."""
    text = request["messages"][-1]["content"]
    if "rude" in text:
        return by_tokens({"Yes": 0.6, " yes": 0.15, "No": 0.25})
    if "team" in text:
        return by_tokens({"B": 0.6, "A": 0.2, "Sales": 0.2})
    return by_tokens({"**": 1.0}, {"C": 0.5, "B": 0.5})


def judge(server: ChatServer, **settings: Any) -> ChatDecisionModel:
    model = OpenAIChatModel("gpt-4.1", api_key="k", base_url=server.url, max_retries=0)
    return ChatDecisionModel(model, logprobs=True, **settings)


def decide(
    model: ChatDecisionModel, questions: DecisionQuestions = QUESTIONS, *, blocking: bool = True
) -> DecisionResponse:
    if blocking:
        return model.decide("I want <b>my</b> money!", questions)
    return asyncio.run(model.adecide("I want <b>my</b> money!", questions))


@pytest.mark.feature("decision-chat-model")
@pytest.mark.parametrize("blocking", [True, False])
def test_probabilities_of_tokens(chat_server: Start, blocking: bool) -> None:
    """Spellings of a label are summed up, other tokens do not count, and decoration is skipped."""
    server = chat_server(answer_by_question)
    response = decide(judge(server), blocking=blocking)

    assert response.yes_no("rude").probability == pytest.approx(0.75)
    assert response.choice("team").value == "sales"
    assert response.choice("team").margin() == pytest.approx(0.5)
    assert response.score("anger").score == pytest.approx(1.5)
    assert response.metadata.model == "stub"
    assert response.metadata.id == "chatcmpl-1"
    assert response.metadata.usage.total_tokens == 45
    assert response.metadata.native == {"probabilities": "logprobs"}


def test_a_request_for_each_question(chat_server: Start) -> None:
    """The input comes first, escaped, so that the server can cache it."""
    server = chat_server(answer_by_question)
    decide(judge(server, options=ChatOptions(seed=7)))
    texts = [request["messages"][-1]["content"] for request in server.requests]

    assert len(texts) == 3
    assert all(
        t.startswith("<input>\nI want &lt;b&gt;my&lt;/b&gt; money!\n</input>") for t in texts
    )
    assert (
        "Which team?\n- A: billing: invoices\n- B: sales\nAnswer with one letter: A or B."
        in texts[1]
    )
    for request in server.requests:
        assert request["logprobs"] is True
        assert request["top_logprobs"] == 20
        assert (request["max_tokens"], request["temperature"], request["seed"]) == (16, 0.0, 7)


@pytest.mark.parametrize(("blocking", "most"), [(True, 1), (False, 3)])
def test_requests_are_concurrent_on_a_loop(chat_server: Start, blocking: bool, most: int) -> None:
    lock, running, peak = threading.Lock(), 0, 0

    def reply(request: dict[str, Any]) -> dict[str, Any]:
        nonlocal running, peak
        with lock:
            running += 1
            peak = max(peak, running)
        settled(lambda: peak >= most)
        with lock:
            running -= 1
        return answer_by_question(request)

    decide(judge(chat_server(reply)), blocking=blocking)

    assert peak == most


def test_a_refused_question(chat_server: Start) -> None:
    """It has a refusal, by the model or by the provider's filter; the others are answered."""

    def reply(request: dict[str, Any]) -> Any:
        if "rude" in request["messages"][-1]["content"]:
            return by_tokens({"Sorry": 1.0}, refused="I cannot judge that.")
        return answer_by_question(request)

    response = decide(judge(chat_server(reply)))

    assert response.is_refused("rude")
    assert response.is_answered("team")
    with pytest.raises(ContentFilterError):
        response.yes_no("rude")


class Filtered(ChatModel):
    """Refuses all prompts, as a provider's content filter does."""

    async def generate(self, prompt: Prompt, runtime: Runtime) -> ChatResponse:
        msg = "the prompt violates the content policy"
        raise ContentFilterError(msg)


@pytest.mark.parametrize("logprobs", [True, False])
def test_a_filtered_prompt_is_refused(logprobs: bool) -> None:
    response = decide(ChatDecisionModel(Filtered(), logprobs=logprobs))

    assert all(map(response.is_refused, QUESTIONS))


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (completion("Yes"), "reported no log probabilities.*logprobs=False"),
        (
            by_tokens({"Maybe": 0.995, "Yes": 0.005}),
            "did not begin with one of Yes, No.*logprobs=False",
        ),
    ],
)
def test_a_model_that_cannot_do_it(chat_server: Start, reply: Any, message: str) -> None:
    """The error names the alternative."""
    with pytest.raises(InvalidResponseError, match=message):
        decide(judge(chat_server(reply)), {"rude": "Is it rude?"})


def test_a_model_that_answers_something_else(chat_server: Start) -> None:
    """For another answer, the probabilities of the options count, unless they are tiny."""
    reply = by_tokens({"Nothing": 0.6, "Yes": 0.1, "No": 0.3})
    response = decide(judge(chat_server(reply)), {"rude": "Is it rude?"})

    assert response.yes_no("rude").probability == pytest.approx(0.25)


def test_a_label_without_probability(chat_server: Start) -> None:
    """Servers send -inf, which becomes null, for impossible tokens."""
    reply = by_tokens({"Yes": 1.0})
    [token] = reply["choices"][0]["logprobs"]["content"]
    token["logprob"] = token["top_logprobs"][0]["logprob"] = None

    with pytest.raises(InvalidResponseError, match="did not begin with one of Yes, No"):
        decide(judge(chat_server(reply)), {"rude": "Is it rude?"})


def test_too_many_options_for_log_probabilities(chat_server: Start) -> None:
    """Nothing is sent."""
    server = chat_server("unused")
    many = ChoiceQuestion("Which?", [f"option {at}" for at in range(21)])

    with pytest.raises(UsageError, match="'which' has more than 20 outcomes"):
        decide(judge(server), {"which": many})
    assert server.requests == []


def test_which_models_report_log_probabilities() -> None:
    """The known ones do, and models that reason do not."""
    offered = {
        "gpt-4.1": OpenAIChatModel("gpt-4.1", api_key="k"),
        "gpt-5-mini": OpenAIChatModel("gpt-5-mini", api_key="k"),
        "compatible": OpenAIChatModel("x", api_key="k", base_url="https://gateway.example/v1"),
        "vllm": chat_model("vllm:x"),
        "ollama": OllamaChatModel("x"),
        "local": chat_model("local:0.5b"),
        "chosen": chat_model("local", max_retries=0),
        "anthropic": AnthropicChatModel("claude-x", api_key="k"),
    }
    fallback = FallbackChatModel(offered["gpt-4.1"], offered["anthropic"])

    assert [name for name, it in offered.items() if it.offers_logprobs(it.options)] == [
        *("gpt-4.1", "vllm", "ollama", "local", "chosen")
    ]
    assert not fallback.offers_logprobs(fallback.options)


def test_ollamas_form_of_log_probabilities() -> None:
    """A list, without the object around it."""
    tokens = [{"token": "No", "logprob": math.log(0.9), "top_logprobs": None}]
    generation = Generation(AssistantMessage("No"), metadata={"logprobs": tokens})
    model = ScriptedModel(ChatResponse((generation,)))
    response = decide(ChatDecisionModel(model, logprobs=True), {"rude": "Is it rude?"})

    assert response.yes_no("rude").probability == 0.0


# --- stated probabilities ---

STATED = {
    "q1": {"Yes": 0.9, "No": 0.3},
    "q2": {"A": 0.1, "B": 0.4},
    "q3": {"A": 0.0, "B": 0.5, "C": 0.5},
}


@pytest.mark.feature("decision-chat-model")
@pytest.mark.parametrize("blocking", [True, False])
def test_stated_probabilities(blocking: bool) -> None:
    """All questions are one request, and the probabilities are scaled."""
    model = ScriptedModel(json.dumps(STATED))
    response = decide(ChatDecisionModel(model), blocking=blocking)
    [prompt] = model.prompts

    assert response.yes_no("rude").probability == pytest.approx(0.75)
    assert response.choice("team").probabilities == pytest.approx({"billing": 0.2, "sales": 0.8})
    assert response.score("anger").score == pytest.approx(1.5)
    assert response.metadata.native == {"probabilities": "stated"}
    assert response.metadata.usage.total_tokens == 15
    assert prompt.options.output_schema is not None
    assert "q2: Which team?\n- A: billing: invoices\n- B: sales" in prompt.messages[-1].text


class Talkative(ScriptedModel):
    """Enforces no schema."""

    def output_mode(self, options: ChatOptions) -> Any:
        return "instructions"


def test_stated_probabilities_by_instructions() -> None:
    model = Talkative(f"Sure:\n```json\n{json.dumps(STATED)}\n```")
    response = decide(ChatDecisionModel(model))

    assert response.choice("team").value == "sales"
    assert model.prompts[0].options.output_schema is None
    assert "JSON" in model.prompts[0].messages[-1].text


def test_many_options_are_numbered() -> None:
    many = ChoiceQuestion("Which?", [f"option {at}" for at in range(1, 31)])
    stated = {str(at): float(at == 30) for at in range(1, 31)}
    model = ScriptedModel(json.dumps({"q1": stated}))

    assert decide(ChatDecisionModel(model), {"a": many}).choice("a").value == "option 30"


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("I would say yes.", "did not state the probabilities"),
        ('{"q1": {"Yes": 2, "No": 0}}', "did not state the probabilities"),
        ('{"q1": {"Yes": 0, "No": 0}}', "gives no outcome of the question 'rude'"),
    ],
)
def test_an_answer_without_probabilities(answer: str, message: str) -> None:
    with pytest.raises(InvalidResponseError, match=message):
        decide(ChatDecisionModel(ScriptedModel(answer)), {"rude": "Is it rude?"})


def test_a_refused_answer() -> None:
    generation = Generation(AssistantMessage("I cannot judge that."), "content_filter")
    response = decide(ChatDecisionModel(ScriptedModel(ChatResponse((generation,)))))

    assert all(map(response.is_refused, QUESTIONS))
    assert response.metadata.native == {"probabilities": "stated"}


def test_errors_of_the_model_are_raised() -> None:
    with pytest.raises(OverloadedError):
        decide(ChatDecisionModel(ScriptedModel(OverloadedError("busy"))))


@pytest.mark.parametrize(
    "settings", [{"max_concurrency": 0}, {"blocking_concurrency": 0}, {"model": "gpt"}]
)
def test_wrong_settings(settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        ChatDecisionModel(**{"model": ScriptedModel(), **settings})


def test_the_name_is_that_of_the_chat_model() -> None:
    model = OpenAIChatModel("gpt-4.1", api_key="k")

    assert (ChatDecisionModel(model).name, ChatDecisionModel(model).provider) == (
        *("gpt-4.1", "openai"),
    )
    assert ChatDecisionModel(model, options=ChatOptions(model="gpt-4o")).name == "gpt-4o"


# --- as part of a request ---


class Deciding:
    """An advisor that asks a decision model first."""

    def __init__(self, model: ChatDecisionModel) -> None:
        self._model = model

    async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        asked = DecisionRequest(request.prompt.messages[-1].text, {"rude": "Is it rude?"})
        response = await ask_decision(self._model, asked, request.runtime)
        assert response.yes_no("rude").is_yes()
        return await call_next(request)


RUDE = '{"q1": {"Yes": 0.9, "No": 0.1}}'


@pytest.mark.feature("decision-observation")
def test_a_decision_is_in_the_trail(ask: Ask) -> None:
    """Its model calls are auxiliary calls inside it, and nothing of it is streamed."""
    model = ChatDecisionModel(ScriptedModel(RUDE))
    client = ChatClient.builder(ScriptedModel("Hi")).default_advisors(Deciding(model)).build()
    asked = ask(client.prompt("You fool"))
    trail = asked.response.trail
    assert trail is not None
    [decision] = [s for s in trail.steps if isinstance(s.operation, DecisionCall)]
    [call] = trail.auxiliary_calls

    assert asked.text == "Hi"
    assert decision.result.yes_no("rude").probability == pytest.approx(0.9)
    assert decision.operation.name == "decide ScriptedModel"
    assert isinstance(call.operation, ModelCall)
    assert call.parent is decision
    assert trail.usage.total_tokens == 30
    assert "decision: decide ScriptedModel: rude (" in str(trail)


def test_the_deadline_applies(ask: Ask) -> None:
    model = ChatDecisionModel(ScriptedModel(RUDE, delay=5.0))
    client = ChatClient.builder(ScriptedModel("Hi")).default_advisors(Deciding(model)).build()

    with pytest.raises(DeadlineExceededError):
        ask(client.prompt("You fool").deadline(0.1))


def test_a_passed_deadline() -> None:
    """Nothing is sent."""
    model = ScriptedModel(RUDE)
    runtime = Runtime(blocking=False, deadline=0.0)
    request = DecisionRequest("You fool", {"rude": "Is it rude?"})

    with pytest.raises(DeadlineExceededError, match="before the decision model was called"):
        asyncio.run(ask_decision(ChatDecisionModel(model), request, runtime))
    assert model.prompts == []


def test_decisions_count_in_a_budget(ask: Ask) -> None:
    model = ChatDecisionModel(ScriptedModel(RUDE))
    builder = ChatClient.builder(ScriptedModel("Hi"))
    client = builder.default_advisors(Budget(total_tokens=12), Deciding(model)).build()

    with pytest.raises(BudgetExceededError):
        ask(client.prompt("You fool"))
