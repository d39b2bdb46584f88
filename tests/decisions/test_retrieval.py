"""Documents that a decision model finds helpful."""

from typing import Any

import pytest

from chatclient import ChatClient, Runtime
from chatclient.advisors import RetrievalAugmentationAdvisor
from chatclient.decisions import (
    DecisionDocumentFilter,
    DecisionModel,
    DecisionRequest,
    DecisionResponse,
    YesNoAnswer,
    YesNoQuestion,
)
from chatclient.errors import OverloadedError, UsageError
from chatclient.retrieval import Document, Query
from chatclient.testing import Ask, ScriptedModel
from tests.support.decisions import ComputedDecisions, always

DOCUMENTS = [
    Document("The zoo opens at nine.", id="1"),
    Document("The museum is closed.", id="2"),
    Document("The zoo closes at six.", id="3"),
]


def about_zoo(text: str, _name: str) -> float:
    return 0.9 if "zoo" in text.partition('"document"')[2] else 0.3


def found(ask: Ask, keep: DecisionDocumentFilter) -> list[str]:
    """Return the ids of the documents that a request gets."""

    def retrieve(_query: Query, _runtime: Any) -> list[Document]:
        return DOCUMENTS

    advisor = RetrievalAugmentationAdvisor(retrieve, post_processors=[keep])
    client = ChatClient.builder(ScriptedModel("At nine.")).default_advisors(advisor).build()
    response = ask(client.prompt("When does the zoo open?"))
    return [document.id for document in response.answer.documents()]


@pytest.mark.feature("decision-documents")
def test_documents_that_do_not_help_are_dropped(ask: Ask) -> None:
    """The others keep their order."""
    model = ComputedDecisions(about_zoo)

    assert found(ask, DecisionDocumentFilter(model)) == ["1", "3"]
    assert {request.input["document"] for request in model.requests} == {  # type: ignore[index]
        document.text for document in DOCUMENTS
    }
    assert {request.input["query"] for request in model.requests} == {  # type: ignore[index]
        "When does the zoo open?"
    }


def test_threshold_and_question(ask: Ask) -> None:
    model = ComputedDecisions(about_zoo)
    keep = DecisionDocumentFilter(model, question="Is it of use?", min_probability=0.3)

    assert found(ask, keep) == ["1", "2", "3"]
    assert model.requests[0].questions == {"helps": YesNoQuestion("Is it of use?")}


def test_all_documents_are_kept_if_the_model_fails(ask: Ask) -> None:
    assert found(ask, DecisionDocumentFilter(always(OverloadedError("busy")))) == ["1", "2", "3"]


class Counting(DecisionModel):
    """Finds everything helpful, and counts concurrent requests."""

    def __init__(self) -> None:
        self._running = 0
        self.peak = 0

    async def answer(self, request: DecisionRequest, runtime: Runtime) -> DecisionResponse:
        self._running += 1
        self.peak = max(self.peak, self._running)
        await runtime.sleep(0.05)
        self._running -= 1
        return DecisionResponse({"helps": YesNoAnswer(1.0)})


def test_documents_are_judged_concurrently_on_a_loop(ask: Ask) -> None:
    """Blocking requests judge them one after another."""
    model = Counting()
    found(ask, DecisionDocumentFilter(model, max_concurrency=2))

    assert model.peak == (1 if ask.blocking else 2)


@pytest.mark.parametrize(
    "settings",
    [
        {"model": ScriptedModel()},
        {"question": 7},
        {"question": " "},
        {"min_probability": 2},
        {"max_concurrency": 0},
        {"blocking_concurrency": 0},
    ],
)
def test_wrong_settings(settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        DecisionDocumentFilter(**{"model": always(1.0), **settings})
