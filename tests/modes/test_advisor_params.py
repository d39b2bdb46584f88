"""Advisor params: they are passed to those that read them, and an unread one is an error."""

from typing import Any

import pytest

from chatclient import ChatClient, ChatClientRequest, ChatClientResponse, Next
from chatclient.advisors import (
    FILTER_EXPRESSION,
    Budget,
    MessageChatMemoryAdvisor,
    QuestionAnswerAdvisor,
    RetrievalAugmentationAdvisor,
)
from chatclient.errors import UsageError
from chatclient.memory import MessageWindowChatMemory
from chatclient.retrieval import (
    Document,
    DocumentRetriever,
    HybridDocumentRetriever,
    InMemoryVectorStore,
    KeywordDocumentRetriever,
    LanguageModelQueryRouter,
    Query,
    ReciprocalRankJoiner,
    VectorStoreDocumentRetriever,
    equal_to,
)
from chatclient.runtime.runtime import Runtime
from chatclient.testing import Ask, ScriptedModel
from tests.support.bag_of_words import BagOfWords

pytest.importorskip("numpy")

DOCUMENTS = [
    Document("The price is ten.", {"tenant": tenant}, id=tenant) for tenant in ("acme", "other")
]


def store() -> InMemoryVectorStore:
    found = InMemoryVectorStore(BagOfWords())
    found.add(DOCUMENTS)
    return found


def vectors(**how: Any) -> VectorStoreDocumentRetriever:
    return VectorStoreDocumentRetriever(store(), **how)


def keywords(**how: Any) -> KeywordDocumentRetriever:
    return KeywordDocumentRetriever(DOCUMENTS, **how)


class Own:
    """A retriever of an application that declares its params."""

    params = (FILTER_EXPRESSION,)

    async def __call__(self, query: Query, runtime: Runtime) -> list[Document]:
        wanted = query.context[FILTER_EXPRESSION]["tenant"]["eq"]
        return [each for each in DOCUMENTS if each.metadata["tenant"] == wanted]


async def everything(query: Query, runtime: Runtime) -> list[Document]:
    return DOCUMENTS


async def chooses(query: Query, runtime: Runtime) -> list[DocumentRetriever]:
    return [everything]


READERS = {
    "question answering": lambda: QuestionAnswerAdvisor(store()),
    "vectors": lambda: RetrievalAugmentationAdvisor(vectors()),
    "keywords": lambda: RetrievalAugmentationAdvisor(keywords()),
    "hybrid": lambda: RetrievalAugmentationAdvisor(HybridDocumentRetriever(vectors(), keywords())),
    "own filter": lambda: RetrievalAugmentationAdvisor(vectors(where={"tenant": "other"})),
    "filter function": lambda: RetrievalAugmentationAdvisor(
        keywords(where=lambda query: {"tenant": "other"})
    ),
    "retriever of one's own": lambda: RetrievalAugmentationAdvisor(Own()),
    "beside another": lambda: RetrievalAugmentationAdvisor(
        HybridDocumentRetriever(vectors(), Own()), joiner=ReciprocalRankJoiner()
    ),
    "router": lambda: RetrievalAugmentationAdvisor(
        query_router=LanguageModelQueryRouter(ScriptedModel("1"), {"prices": vectors()})
    ),
}


def client_of(*advisors: Any) -> ChatClient:
    return ChatClient.builder(ScriptedModel("Ten.")).default_advisors(*advisors).build()


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_every_retrieval_reads_the_filter(ask: Ask, reader: Any) -> None:
    """One param filters each advisor and each retriever."""
    request = client_of(reader()).prompt("What is the price?")
    answer = ask(request.advisor_params({FILTER_EXPRESSION: equal_to(tenant="acme")}))

    documents = answer.response.chat_response.metadata.values
    assert [each.id for value in documents.values() for each in value] == ["acme"]


UNFILTERED = {
    "function": lambda: RetrievalAugmentationAdvisor(everything),
    "beside others": lambda: RetrievalAugmentationAdvisor(vectors(), everything),
    "hybrid": lambda: RetrievalAugmentationAdvisor(HybridDocumentRetriever(Own(), everything)),
    "choice of a model": lambda: RetrievalAugmentationAdvisor(
        query_router=LanguageModelQueryRouter(
            ScriptedModel("1"), {"prices": vectors(), "all": everything}
        )
    ),
    "router": lambda: RetrievalAugmentationAdvisor(query_router=chooses),
}


@pytest.mark.parametrize("others", [[], [QuestionAnswerAdvisor(store())]], ids=["alone", "two"])
@pytest.mark.parametrize("advisor", UNFILTERED.values(), ids=UNFILTERED)
def test_retrievers_that_do_not_read_the_filter(ask: Ask, advisor: Any, others: Any) -> None:
    """They are refused, because they might find documents of all tenants.

    That another advisor reads the filter makes no difference.
    """
    request = client_of(advisor(), *others).prompt("What is the price?")

    with pytest.raises(UsageError, match="if each of its retrievers does; an advisor or a retriev"):
        ask(request.advisor_params({FILTER_EXPRESSION: equal_to(tenant="acme")}))


def test_a_param_of_one_request_of_a_batch() -> None:
    """It is an error before the first request is sent."""
    model = ScriptedModel(lambda prompt: "Ten.")
    client = ChatClient.create(model)
    wrong = client.prompt("Hi").advisor_params({FILTER_EXPRESSION: equal_to(tenant="acme")})

    with pytest.raises(UsageError, match="no advisor of this request reads"):
        client.batch([client.prompt("Hi"), wrong])
    assert model.prompts == []


@pytest.mark.parametrize("where", [None, {}, {"tenant": {}}, {"$or": [{}]}, {"tenant": {"ne": {}}}])
def test_a_filter_that_finds_everything_is_refused(ask: Ask, where: Any) -> None:
    """An empty filter, as a missing value may make it, is an error, and no model is called."""
    client = client_of(RetrievalAugmentationAdvisor(vectors(where={"tenant": "acme"})))

    with pytest.raises(UsageError, match="filter"):
        ask(client.prompt("Price?").advisor_params({FILTER_EXPRESSION: where}))


@pytest.mark.parametrize("value", [{"ne": ""}, {}, None, ["acme", "other"]])
def test_plain_values(value: Any) -> None:
    """A value from outside cannot become a comparison."""
    with pytest.raises(UsageError, match="tenant must be compared with a text"):
        equal_to(tenant=value)
    with pytest.raises(UsageError, match="needs a value"):
        equal_to()


async def passes(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
    return await call_next(request)


class ReadsTenant:
    """An advisor of an application that declares its params."""

    params = {"tenant"}  # noqa: RUF012 - as applications write it

    async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        assert request.context["tenant"] == "acme"
        return await call_next(request)


@pytest.mark.parametrize(
    ("advisors", "param", "hint"),
    [
        ([], FILTER_EXPRESSION, "RetrievalAugmentationAdvisor would"),
        ([passes], FILTER_EXPRESSION, "RetrievalAugmentationAdvisor would"),
        ([passes], "tool_search_roles", "ToolSearchToolCallingAdvisor would"),
        ([], "tenant", "leave it out"),
        ([Budget(calls=3)], "tenant", "leave it out"),
        ([MessageChatMemoryAdvisor(MessageWindowChatMemory())], "tenant", "leave it out"),
        ([ReadsTenant()], "tenants", "did you mean 'tenant'"),
    ],
)
def test_a_param_that_is_not_read(ask: Ask, advisors: Any, param: str, hint: str) -> None:
    """It would have no effect, so nothing is sent."""
    request = client_of(*advisors).prompt("Hi").conversation("c")

    with pytest.raises(UsageError, match=f"reads the advisor param {param!r}.*{hint}"):
        ask(request.advisor_params({param: "acme"}))


@pytest.mark.parametrize(
    "advisor",
    [passes, ReadsTenant(), Budget(calls=9, period="day", key=lambda r: r.context["tenant"])],
)
def test_params_of_the_application(ask: Ask, advisor: Any) -> None:
    """An advisor without declared params may read any param of the application."""
    answer = ask(client_of(advisor).prompt("Hi").advisor_params({"tenant": "acme"}))

    assert answer.text == "Ten."
