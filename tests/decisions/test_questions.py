"""Questions, answers, requests and responses of decision models."""

import asyncio
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest

from chatclient import Runtime
from chatclient.decisions import (
    ChoiceAnswer,
    ChoiceQuestion,
    DecisionAnswer,
    DecisionModel,
    DecisionRefusal,
    DecisionRequest,
    DecisionResponse,
    ScoreAnswer,
    ScoreQuestion,
    YesNoAnswer,
    YesNoQuestion,
)
from chatclient.errors import (
    ContentFilterError,
    InvalidResponseError,
    UsageError,
    WrongTypeError,
)

TEAM = ChoiceQuestion("Which team?", {"billing": "invoices", "sales": ""})
ANGER = ScoreQuestion("How angry?", ["calm", "annoyed", "furious"])


class Fixed(DecisionModel):
    """Answers with what it was given."""

    def __init__(self, response: Any) -> None:
        self._response = response

    async def answer(self, request: DecisionRequest, runtime: Runtime) -> DecisionResponse:
        response: DecisionResponse = self._response
        return response


def decided(results: Mapping[str, DecisionAnswer | DecisionRefusal], **questions: Any) -> Any:
    return Fixed(DecisionResponse(results)).decide("text", questions)


@pytest.mark.feature("decision-questions")
def test_answers_from_probabilities() -> None:
    """A score is the mean of the levels, which count from 0."""
    team = TEAM.answer({"billing": 0.75, "sales": 0.25})
    anger = ANGER.answer({"calm": 0.0, "annoyed": 0.5, "furious": 0.5})

    assert YesNoQuestion("x").answer({"yes": 0.9, "no": 0.1}) == YesNoAnswer(0.9)
    assert (team.value, team.margin()) == ("billing", 0.5)
    assert (anger.score, anger.probabilities["calm"]) == (1.5, 0.0)


def test_a_threshold_includes_its_value() -> None:
    assert YesNoAnswer(0.5).is_yes()
    assert not YesNoAnswer(0.7).is_yes(0.71)


def test_there_is_no_margin_without_probabilities() -> None:
    with pytest.raises(UsageError, match="did not tell the probabilities"):
        ChoiceAnswer("billing").margin()


@pytest.mark.parametrize("probability", [-0.1, 1.1, float("nan"), True, "1"])
def test_a_probability_is_a_number_from_0_to_1(probability: Any) -> None:
    for wrong in (
        lambda: YesNoAnswer(probability),
        lambda: ChoiceAnswer("a", {"a": probability}),
        lambda: ScoreAnswer(0, {"a": probability}),
    ):
        with pytest.raises(UsageError, match="from 0 to 1"):
            wrong()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: YesNoQuestion(" "), "must not be blank"),
        (lambda: YesNoQuestion(7), "a question must be a str"),  # type: ignore[arg-type]
        (lambda: ChoiceQuestion("x", "ab"), "a collection of texts"),
        (lambda: ChoiceQuestion("x", 7), "a collection of texts"),  # type: ignore[arg-type]
        (lambda: ChoiceQuestion("x", ["a"]), "at least two different"),
        (lambda: ChoiceQuestion("x", ["a", "b", "a"]), "at least two different"),
        (lambda: ChoiceQuestion("x", ["a", " "]), "a name that is not blank"),
        (lambda: ChoiceQuestion("x", {"a": "", "b": None}), "each of the options"),
        (lambda: ScoreQuestion("x", ["a", 7]), "each of the levels"),  # type: ignore[list-item]
        (lambda: DecisionRequest(" ", {"a": "x"}), "must not be empty"),
        (lambda: DecisionRequest({}, {"a": "x"}), "must not be empty"),
        (lambda: DecisionRequest(["a"], {"a": "x"}), "input of a decision"),  # type: ignore[arg-type]
        (lambda: DecisionRequest({"a": [{"b": object()}]}, {"a": "x"}), r"input\.a\[0\]\.b must"),
        (lambda: DecisionRequest({7: "a"}, {"a": "x"}), "a name in input"),  # type: ignore[dict-item]
        (lambda: DecisionRequest("t", {}), "give at least one"),
        (lambda: DecisionRequest("t", "x"), "questions must be"),  # type: ignore[arg-type]
        (lambda: DecisionRequest("t", {" ": "x"}), "the name of a question"),
        (lambda: DecisionRequest("t", {"a": None}), "must be a YesNoQuestion"),  # type: ignore[dict-item]
    ],
)
def test_requests_are_checked_before_they_are_sent(make: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()


def test_an_input_by_name_is_json() -> None:
    given = {"user": "Hi", "orders": [1, 2.5, None, True]}
    request = DecisionRequest(MappingProxyType(given), {"a": "Is it polite?"})
    given["user"] = "changed"

    assert request.text == '{"user":"Hi","orders":[1,2.5,null,true]}'
    assert request.questions == {"a": YesNoQuestion("Is it polite?")}


def test_results_are_in_the_order_of_the_questions() -> None:
    response = decided({"b": YesNoAnswer(0.2), "a": YesNoAnswer(0.9)}, a="x", b="y")

    assert list(response.results) == ["a", "b"]


@pytest.mark.feature("decision-checked-answers")
@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("x", ChoiceAnswer("yes")),
        (TEAM, YesNoAnswer(1.0)),
        (TEAM, ChoiceAnswer("support")),
        (TEAM, ChoiceAnswer("sales", {"sales": 0.5, "support": 0.5})),
        (ANGER, ScoreAnswer(2.1)),
        (ANGER, ScoreAnswer(1.0, {"cold": 1.0})),
    ],
)
def test_answers_must_fit_the_questions(question: Any, answer: Any) -> None:
    with pytest.raises(InvalidResponseError, match="no answer to it"):
        decided({"a": answer}, a=question)


def test_all_questions_must_be_answered() -> None:
    with pytest.raises(InvalidResponseError, match="did not answer the question 'b'"):
        decided({"a": YesNoAnswer(1.0)}, a="x", b="y")


def test_a_model_returns_a_response() -> None:
    with pytest.raises(WrongTypeError, match=r"what answer\(\) of Fixed returns"):
        Fixed(None).decide("t", {"a": "x"})


@pytest.mark.feature("decision-checked-answers")
def test_answers_are_read_by_kind() -> None:
    results: dict[str, DecisionAnswer | DecisionRefusal] = {
        "a": YesNoAnswer(0.9),
        "b": ChoiceAnswer("sales"),
        "c": ScoreAnswer(1.0),
        "d": DecisionRefusal("policy"),
        "e": DecisionRefusal(),
    }
    response = decided(results, a="x", b=TEAM, c=ANGER, d="y", e="z")

    assert response.yes_no("a").probability == 0.9
    assert response.choice("b").value == "sales"
    assert response.score("c").score == 1.0
    assert [response.is_answered(name) for name in "acdf"] == [True, True, False, False]
    assert [response.is_refused(name) for name in "adf"] == [False, True, False]
    with pytest.raises(ContentFilterError, match=r"the question 'd': policy$"):
        response.yes_no("d")
    with pytest.raises(ContentFilterError, match=r"the question 'e'$"):
        response.yes_no("e")
    with pytest.raises(UsageError, match="is a ChoiceAnswer, not a YesNoAnswer"):
        response.yes_no("b")
    with pytest.raises(UsageError, match="no question 'z'; the questions are a, b, c, d, e"):
        response.choice("z")


@pytest.mark.feature("decision-model")
def test_a_model_is_called_on_a_loop() -> None:
    model = Fixed(DecisionResponse({"a": YesNoAnswer(0.9)}))

    async def decide() -> DecisionResponse:
        async with model:
            return await model.adecide("t", {"a": "x"})

    assert asyncio.run(decide()).yes_no("a").is_yes()
    assert (model.name, model.provider) == ("Fixed", "custom")
