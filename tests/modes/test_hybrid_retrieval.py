"""Keyword and hybrid retrieval and reranking, through a client in each of the four modes."""

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from chatclient import ChatClient, Runtime
from chatclient.advisors import RetrievalAugmentationAdvisor
from chatclient.errors import OverloadedError, UsageError, WrongTypeError
from chatclient.observability import Retrieval
from chatclient.providers import (
    CohereRerankModel,
    EmbeddingModel,
    JinaRerankModel,
    RerankModel,
    Vector,
)
from chatclient.retrieval import (
    ConcatenationJoiner,
    Document,
    DocumentReranker,
    HybridDocumentRetriever,
    InMemoryVectorStore,
    KeywordDocumentRetriever,
    Query,
    VectorStoreDocumentRetriever,
)
from chatclient.runtime.blocking import drive
from chatclient.runtime.runtime import BLOCKING
from chatclient.testing import Ask, ScriptedModel
from tests.support.loopback import as_json
from tests.support.rerank_server import RerankServer

WORDS = ["refund", "money", "back", "ship", "deliver", "parcel"]


class Meaning(EmbeddingModel):
    """A vector with places for refunds and for deliveries."""

    async def embed_batch(self, texts: Sequence[str], runtime: Runtime) -> list[Vector]:
        return [
            [
                float(any(word in text.lower() for word in WORDS[:3])),
                float(any(word in text.lower() for word in WORDS[3:])),
                0.01,
            ]
            for text in texts
        ]


REFUND = Document("We refund an order within 14 days.", {"shop": "eu"}, "refund")
PARCEL = Document("A parcel takes two days to arrive.", {"shop": "eu"}, "parcel")
ERROR = Document("Error E4711 means that the card was declined.", {"shop": "us"}, "error")
OFFICE = Document("The office is open on Mondays.", {"shop": "us"}, "office")
ALL = (REFUND, PARCEL, ERROR, OFFICE)


def vectors(*, top_k: int = 4) -> VectorStoreDocumentRetriever:
    store = InMemoryVectorStore(Meaning())
    store.add(ALL)
    return VectorStoreDocumentRetriever(store, top_k=top_k, threshold=0.5)


def ids(documents: Sequence[Document]) -> list[str]:
    return [document.id for document in documents]


def found(retriever: Any, text: str, **context: Any) -> list[str]:
    return ids(drive(retriever(Query(text, context=context), BLOCKING)))


def client_of(*retrievers: Any, **settings: Any) -> ChatClient:
    advisor = RetrievalAugmentationAdvisor(*retrievers, **settings)
    return ChatClient.builder(ScriptedModel(*["Fine."] * 3)).default_advisors(advisor).build()


@pytest.fixture
def server() -> Iterator[RerankServer]:
    with RerankServer() as started:
        yield started


# --- reranking ---


@pytest.mark.feature("retrieval-reranking")
@pytest.mark.parametrize(("make", "path"), [(CohereRerankModel, "/v2"), (JinaRerankModel, "/v1")])
def test_reranked_documents_of_an_answer(
    ask: Ask, server: RerankServer, make: Callable[..., RerankModel], path: str
) -> None:
    """The most relevant documents come first, with the scores of the model."""
    model = make(api_key="k", base_url=server.url + path)
    reranker = DocumentReranker(model, top_k=2)
    client = client_of(KeywordDocumentRetriever(ALL), vectors(), post_processors=[reranker])

    asked = ask(client.prompt("refund of an order within days"))

    documents = asked.response.turn.sources
    assert [(d.id, d.score) for d in documents] == [("refund", 0.833333), ("parcel", 0.166667)]
    [request] = server.requests
    assert request["query"] == "refund of an order within days"
    assert sorted(request["documents"]) == sorted(d.text for d in (REFUND, PARCEL))
    assert asked.text == "Fine."
    names = [step.operation.name for step in asked.answer.trail().steps]
    assert f"rerank {model.name}" in names


def test_reranker_threshold(server: RerankServer) -> None:
    """Documents with a lower score are left out."""
    model = JinaRerankModel(base_url=server.url + "/v1")
    reranker = DocumentReranker(model, threshold=0.5)

    assert ids(drive(reranker(Query("refund order"), ALL, BLOCKING))) == ["refund"]
    assert drive(reranker(Query("refund order"), (Document(" "),), BLOCKING)) == []
    assert repr(reranker) == "DocumentReranker('jina-reranker-v2-base-multilingual')"


def test_failed_reranker(ask: Ask, caplog: pytest.LogCaptureFixture) -> None:
    """Documents keep their order if the model fails, or the request fails."""
    busy = [as_json({"message": "busy"}, 503) for _ in range(2)]
    with RerankServer(*busy) as server:
        model = CohereRerankModel(api_key="k", base_url=server.url + "/v2", max_retries=0)
        retriever = KeywordDocumentRetriever(ALL)
        kept = client_of(retriever, post_processors=[DocumentReranker(model, top_k=1)])
        strict = DocumentReranker(model, fallback="raise")
        raised = client_of(retriever, post_processors=[strict])

        with caplog.at_level(logging.WARNING):
            asked = ask(kept.prompt("when does a parcel arrive?"))
        with pytest.raises(OverloadedError):
            ask(raised.prompt("when does a parcel arrive?"))

    assert ids(asked.response.turn.sources) == ["parcel"]
    assert "documents not reranked" in caplog.text


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"top_k": 0}, "top_k must be at least 1"),
        ({"threshold": "high"}, "threshold must be a number"),
        ({"fallback": "ignore"}, "fallback"),
    ],
)
def test_invalid_reranker_settings(settings: Any, message: str) -> None:
    """Invalid settings raise when the reranker is made."""
    with pytest.raises(UsageError, match=message):
        DocumentReranker(JinaRerankModel(base_url="http://127.0.0.1:9"), **settings)
    with pytest.raises(WrongTypeError, match="a rerank model must be a RerankModel"):
        DocumentReranker("rerank-v3.5")  # type: ignore[arg-type]


# --- keywords ---


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("what does E4711 mean", "error"),
        ("refunds for orders", "refund"),
        ("declined cards", "error"),
        ("offise hours monday", "office"),
    ],
)
def test_keywords_find_documents(query: str, first: str) -> None:
    """Numbers, other forms of a word, and words with typos are found."""
    assert found(KeywordDocumentRetriever(ALL), query)[0] == first


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        *(("Hauptstrasse", "street"), ("HAUPTSTRASSE", "street"), ("Lodz", "city")),
        *(("\u732b", "cat"), ("\u72d7", "dog"), ("\u6211", "dog")),
        *(("to be or not to be", "hamlet"), ("who are the who?", "band")),
    ],
)
def test_words_that_are_written_or_found_otherwise(query: str, expected: str) -> None:
    """Letters without a plain form, single Chinese characters, and questions of stop words only."""
    texts = {
        "street": "Die Hauptstra\u00dfe ist gesperrt.",
        "city": "The train to \u0141\u00f3d\u017a is late.",
        "cat": "\u732b\u304c\u597d\u304d\u3067\u3059\u3002",
        "dog": "\u6211\u559c\u6b22\u72d7\u3002",
        "hamlet": "To be, or not to be, that is the question.",
        "band": "The Who are a band.",
    }
    retriever = KeywordDocumentRetriever(Document(text, id=id) for id, text in texts.items())

    assert found(retriever, query)[0] == expected


def test_misspelt_words_are_corrected() -> None:
    """A query of which no word occurs is searched with corrected words."""
    assert found(KeywordDocumentRetriever(ALL), "parzel") == ["parcel"]
    assert found(KeywordDocumentRetriever(ALL), "zebra") == []
    assert found(KeywordDocumentRetriever(), "parcel") == []


def test_keyword_results_are_limited_and_scored(ask: Ask) -> None:
    """There are at most top_k documents, in the order of their scores."""
    client = client_of(KeywordDocumentRetriever(ALL, top_k=2))

    documents = ask(client.prompt("days of the office, days of parcels")).response.turn.sources

    assert len(documents) == 2
    assert documents[0].score >= documents[1].score > 0


def test_keyword_filters() -> None:
    """Filters of the retriever, of a function and of the request restrict the documents."""
    query, us = "days of the office and parcels", {"shop": "us"}
    context = {"vector_store_filter_expression": {"shop": "eu"}}

    assert found(KeywordDocumentRetriever(ALL, where=us), query) == ["office"]
    assert found(KeywordDocumentRetriever(ALL, where=lambda _: us), query) == ["office"]
    narrowed = KeywordDocumentRetriever(ALL, where=us)
    assert set(found(narrowed, query, **context)) == {"refund", "parcel"}
    with pytest.raises(UsageError, match="filter"):
        KeywordDocumentRetriever(where="shop")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="top_k"):
        KeywordDocumentRetriever(top_k=0)


async def test_keyword_index_changes() -> None:
    """Documents are added, replaced and deleted."""
    retriever = KeywordDocumentRetriever(ALL, top_k=100)
    await retriever.aadd([Document("A drone brings the parcel.", {}, "parcel")])
    with pytest.raises(WrongTypeError, match="wrap a text"):
        retriever.add(["text"])  # type: ignore[list-item]
    with pytest.raises(WrongTypeError, match="put a single one into a list"):
        retriever.add(ALL[0])  # type: ignore[arg-type]

    assert repr(retriever) == "KeywordDocumentRetriever(4 documents)"
    assert ids(await retriever(Query("drone"), Runtime(blocking=False))) == ["parcel"]
    assert found(retriever, "arrive") == []
    retriever.delete(["parcel", "unknown"])
    assert (len(retriever), found(retriever, "parcel")) == (3, [])
    retriever.delete(["error"])
    assert (len(retriever), found(retriever, "office")) == (2, ["office"])
    retriever.delete([each.id for each in ALL])
    assert (len(retriever), found(retriever, "refund")) == (0, [])


def test_documents_that_are_added_one_by_one() -> None:
    """Many small additions and one large one find the same documents."""
    documents = [Document(f"Item{n} costs {n} coins", {}, str(n)) for n in range(200)]
    at_once, one_by_one = KeywordDocumentRetriever(documents), KeywordDocumentRetriever()
    for document in documents:
        one_by_one.add([document])
    one_by_one.delete(["7"])
    one_by_one.add([documents[7]])

    for n in (0, 7, 123, 199):
        query = f"price of item{n}"
        assert found(one_by_one, query)[0] == found(at_once, query)[0] == str(n)
    assert len(one_by_one) == 200


def test_large_keyword_index(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large indexes are searched in a worker thread of an event loop."""
    monkeypatch.setattr("chatclient.retrieval.retrievers._SEARCHED_AT_ONCE", 3)
    monkeypatch.setattr("chatclient.retrieval.retrievers._FILTERED_AT_ONCE", 3)
    client = client_of(KeywordDocumentRetriever(ALL, top_k=1))

    asked = ask(client.prompt("E4711"))

    assert ids(asked.response.turn.sources) == ["error"]


def test_keyword_retrieval_is_observed(ask: Ask) -> None:
    """The search is an operation in the trail of the request."""
    asked = ask(client_of(KeywordDocumentRetriever(ALL)).prompt("E4711"))

    operations = [step.operation for step in asked.answer.trail().steps]
    searches = [operation for operation in operations if isinstance(operation, Retrieval)]
    assert [search.query for search in searches] == ["E4711"]


# --- hybrid ---


@pytest.mark.feature("retrieval-keywords-hybrid")
def test_hybrid_retrieval_finds_meaning_and_words(ask: Ask) -> None:
    """What one of the retrievers does not find, the other one does."""
    hybrid = HybridDocumentRetriever(vectors(), KeywordDocumentRetriever(ALL), top_k=3)
    client = client_of(hybrid)

    by_both = ask(client.prompt("may I get my money back after E4711?"))
    by_meaning = ask(client.prompt("money back"))
    by_words = ask(client.prompt("E4711"))

    assert set(ids(by_both.response.turn.sources)) == {"refund", "error"}
    assert ids(by_meaning.response.turn.sources) == ["refund"]
    assert ids(by_words.response.turn.sources)[0] == "error"


def test_documents_of_several_retrievers_come_first() -> None:
    """Ranks are fused, and the results are limited afterwards."""

    def finding(*documents: Document) -> Any:
        return lambda query, runtime: documents

    hybrid = HybridDocumentRetriever(
        finding(ERROR, REFUND, ERROR), finding(PARCEL, REFUND), top_k=2
    )

    documents = drive(hybrid(Query("q"), BLOCKING))
    assert [(d.id, d.score) for d in documents] == [("refund", 2 / 62), ("error", 1 / 61)]


def test_hybrid_retriever_with_another_joiner() -> None:
    """A joiner of scores may replace the fusion of ranks."""
    scored = [REFUND.scored(0.2)], [PARCEL.scored(0.9)]
    retrievers = [lambda query, runtime, found=found: found for found in scored]
    hybrid = HybridDocumentRetriever(*retrievers, joiner=ConcatenationJoiner())

    assert found(hybrid, "q") == ["parcel", "refund"]


def test_failing_part_of_a_hybrid_retriever(ask: Ask, caplog: pytest.LogCaptureFixture) -> None:
    """The other retrievers are used."""

    async def broken(query: Query, runtime: Runtime) -> Sequence[Document]:
        message = "no connection"
        raise OSError(message)

    hybrid = HybridDocumentRetriever(broken, KeywordDocumentRetriever(ALL), timeout=5)
    with caplog.at_level(logging.WARNING):
        asked = ask(client_of(hybrid).prompt("E4711"))

    assert ids(asked.response.turn.sources) == ["error"]
    assert "no connection" in caplog.text


def test_invalid_hybrid_settings() -> None:
    """A hybrid retriever has retrievers and valid limits."""
    keyword = KeywordDocumentRetriever(ALL)
    with pytest.raises(UsageError, match="at least one retriever"):
        HybridDocumentRetriever()
    with pytest.raises(UsageError, match="a retriever"):
        HybridDocumentRetriever("store")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="top_k"):
        HybridDocumentRetriever(keyword, top_k=0)
    with pytest.raises(UsageError, match="timeout"):
        HybridDocumentRetriever(keyword, timeout=0)
    assert repr(HybridDocumentRetriever(keyword)) == (
        "HybridDocumentRetriever(KeywordDocumentRetriever(4 documents))"
    )
