"""Rerank models of Cohere and Jina against a server that speaks the documented formats."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from chatclient import Runtime
from chatclient.errors import (
    AuthenticationError,
    DeadlineExceededError,
    InvalidRequestError,
    InvalidResponseError,
    OverloadedError,
    UsageError,
    WrongTypeError,
)
from chatclient.providers import (
    CohereRerankModel,
    JinaRerankModel,
    RankedText,
    RerankModel,
    RerankOptions,
    RetryPolicy,
    Timeouts,
)
from tests.support.chaos_server import CLOSE, RESET, STALL, ChaosServer, http
from tests.support.loopback import as_json
from tests.support.rerank_server import RerankServer
from tests.support.servers import Reply

COHERE, JINA = (CohereRerankModel, "/v2"), (JinaRerankModel, "/v1")
KINDS = (COHERE, JINA)
Kind = tuple[Callable[..., Any], str]
each_kind = pytest.mark.parametrize("kind", KINDS, ids=["cohere", "jina"])

QUERY = "capital of France"
TEXTS = ["Lyon is a city", "Paris is the capital of France", "the capital of Italy"]
RANKED = [
    RankedText(1, TEXTS[1], 1.0),
    RankedText(2, TEXTS[2], 0.666667),
    RankedText(0, TEXTS[0], 0.0),
]


@pytest.fixture
def serve() -> Iterator[Callable[..., RerankServer]]:
    """Start rerank servers that are closed after the test."""
    started: list[RerankServer] = []

    def start(*first: Reply) -> RerankServer:
        started.append(RerankServer(*first))
        return started[-1]

    yield start
    for server in started:
        server.close()


Serve = Callable[..., RerankServer]


def model_of(server: Any, kind: Kind, **settings: Any) -> Any:
    make, version = kind
    return make(**{"base_url": server.url + version, "api_key": "secret", **settings})


def ranked(model: RerankModel, *args: Any, blocking: bool = True, **kwargs: Any) -> Any:
    if blocking:
        with model:
            return model.rerank(*args, **kwargs)

    async def rerank() -> Any:
        async with model:
            return await model.arerank(*args, **kwargs)

    return asyncio.run(rerank())


@pytest.mark.parametrize("library", ["httpx", "httpx2", "aiohttp"])
@pytest.mark.parametrize("blocking", [True, False])
@each_kind
def test_texts_are_sorted_by_relevance(
    serve: Serve, kind: Kind, library: str, monkeypatch: pytest.MonkeyPatch, *, blocking: bool
) -> None:
    """The results name the position of each text, over each HTTP library."""
    monkeypatch.setenv("CHATCLIENT_HTTP", library)
    model = model_of(serve(), kind)

    assert ranked(model, QUERY, TEXTS, blocking=blocking) == RANKED


@each_kind
def test_top_k_limits_results(serve: Serve, kind: Kind) -> None:
    """The first results are returned, over several requests as well."""
    server = serve()
    model = model_of(server, kind, options=RerankOptions(batch_size=2))

    assert ranked(model, QUERY, iter(TEXTS), top_k=2) == RANKED[:2]
    assert [len(request["documents"]) for request in server.requests] == [2, 1]


def test_request_form_of_each_service(serve: Serve) -> None:
    """Fields, key and path are those of the API; Jina sends no texts back."""
    server = serve()
    cohere = RerankOptions(model="m", extra={"max_tokens_per_doc": 512})
    ranked(model_of(server, COHERE, options=cohere), "q", ["a"])
    ranked(model_of(server, JINA, options=RerankOptions(extra={"truncation": True})), "q", ["a"])

    assert server.paths == ["/v2/rerank", "/v1/rerank"]
    body = {"query": "q", "documents": ["a"]}
    name = "jina-reranker-v2-base-multilingual"
    assert server.requests == [
        {"model": "m", **body, "max_tokens_per_doc": 512},
        {"model": name, **body, "return_documents": False, "truncation": True},
    ]
    assert {headers["authorization"] for headers in server.headers} == {"Bearer secret"}


@each_kind
def test_no_texts_send_no_request(serve: Serve, kind: Kind) -> None:
    """Without texts there are no results and no request."""
    server = serve()

    assert ranked(model_of(server, kind), QUERY, []) == []
    assert server.requests == []


@pytest.mark.parametrize(
    ("query", "texts", "settings", "error", "message"),
    [
        (" ", ["a"], {}, UsageError, "must not be blank"),
        (None, ["a"], {}, WrongTypeError, "a query must be a str"),
        ("q", "a text", {}, WrongTypeError, "put a single one into a list"),
        ("q", [b"a"], {}, WrongTypeError, "a text to rerank must be a str"),
        ("q", ["a"], {"top_k": 0}, UsageError, "top_k must be at least 1"),
    ],
)
def test_wrong_arguments(
    query: Any, texts: Any, settings: Any, error: type[Exception], message: str
) -> None:
    """Wrong arguments raise before anything is sent: there is no server."""
    model = CohereRerankModel(api_key="k", base_url="http://127.0.0.1:9")
    with pytest.raises(error, match=message):
        model.rerank(query, texts, **settings)


@each_kind
def test_refused_request(serve: Serve, kind: Kind) -> None:
    """The error has the message of each API."""
    options = RerankOptions(extra={"unknown": 1})

    with pytest.raises(InvalidRequestError, match="'unknown' was unexpected"):
        ranked(model_of(serve(), kind, options=options), QUERY, TEXTS)


@pytest.mark.parametrize("status", [429, 500, 503])
@each_kind
def test_rerank_retries(serve: Serve, kind: Kind, status: int) -> None:
    """Transient failures are retried."""
    busy = as_json({"message": "busy"}, status, **{"retry-after": "0"})
    model = model_of(serve(busy), kind, max_retries=RetryPolicy(2, 0.01))

    assert ranked(model, QUERY, TEXTS) == RANKED


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize("failure", [RESET, CLOSE])
@each_kind
def test_broken_connections_are_retried(kind: Kind, failure: Any, *, blocking: bool) -> None:
    """A connection that breaks before or inside an answer is retried."""
    answer = http(b'{"results": [{"index": 0, "relevance_score": 0.5}]}')
    with ChaosServer([[failure], [answer[:-9], failure], [answer]]) as server:
        model = model_of(server, kind, max_retries=RetryPolicy(3, 0.01))

        assert ranked(model, "q", ["a"], blocking=blocking) == [RankedText(0, "a", 0.5)]
        assert len(server.requests) == 3


@pytest.mark.parametrize("blocking", [True, False])
def test_rerank_timeout(*, blocking: bool) -> None:
    """The timeout of the model applies."""
    with ChaosServer([[STALL]]) as server:
        model = model_of(server, JINA, timeout=Timeouts(total=0.2))
        with pytest.raises(DeadlineExceededError):
            ranked(model, "q", ["a"], blocking=blocking)


@each_kind
def test_errors_show_no_key(serve: Serve, kind: Kind) -> None:
    """A refused key is an authentication error, and is not shown."""
    server = serve(as_json({"message": "invalid api token co-secret-4711"}, 401))
    model = model_of(server, kind, api_key="co-secret-4711")

    with pytest.raises(AuthenticationError) as caught:
        ranked(model, QUERY, TEXTS)
    assert "secret" not in f"{caught.value} {caught.value.body} {model!r} {vars(model)}"
    assert repr(model).endswith(f"base_url='{server.url}{kind[1]}')")


@pytest.mark.parametrize(
    "answer",
    [
        [{"index": 1, "score": 0.9, "text": "b"}, {"index": 0, "score": 0.1}],
        {"object": "list", "data": [{"index": i, "relevance_score": i} for i in (1, 0)]},
        {
            "id": "x",
            "results": [{"index": i, "document": {}, "relevance_score": i} for i in (1, 0)],
        },
    ],
    ids=["text-embeddings-inference", "voyage", "vllm"],
)
def test_answers_of_other_servers(serve: Serve, answer: Any) -> None:
    """Scores are read in the forms of servers that have nearly the same API."""
    found = ranked(model_of(serve(as_json(answer)), JINA), QUERY, ["a", "b"])

    assert [each.text for each in found] == ["b", "a"]


@pytest.mark.parametrize(
    "error",
    [
        {"error": {"code": 503, "message": "later"}},
        {"object": "error", "message": "later", "type": "ServiceUnavailable", "code": 503},
    ],
)
@each_kind
def test_error_with_status_200(serve: Serve, kind: Kind, error: Any) -> None:
    """Gateways and vLLM report errors with status 200."""
    server = serve(as_json(error))

    with pytest.raises(OverloadedError, match="later"):
        ranked(model_of(server, kind, max_retries=0), QUERY, TEXTS)


@pytest.mark.parametrize(
    "body",
    [
        b"<html>",
        b"[]",
        b'{"results": [{"index": 0}]}',
        b'{"results": [{"index": 0, "relevance_score": "?"}]}',
        b'{"results": []}',
        b'{"results": [{"index": 0, "relevance_score": 1}, {"index": 0, "relevance_score": 1}]}',
        b'{"results": [{"index": 1, "relevance_score": 0.5}]}',
        b'{"results": [{"index": 0, "relevance_score": 1e999}]}',
    ],
)
@each_kind
def test_invalid_rerank_response(serve: Serve, kind: Kind, body: bytes) -> None:
    """Anything but one finite score for each text is an invalid response."""
    with pytest.raises(InvalidResponseError):
        ranked(model_of(serve(Reply(body)), kind), "q", ["a"])


def test_environment_variables(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys and Cohere's URL come from the environment; only the services require a key."""
    for variable in ("CO_API_KEY", "COHERE_API_KEY", "JINA_API_KEY", "CO_API_URL"):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(UsageError, match="CO_API_KEY"):
        CohereRerankModel()
    with pytest.raises(UsageError, match="JINA_API_KEY"):
        JinaRerankModel()
    server = serve()
    monkeypatch.setenv("CO_API_URL", server.url + "/")
    ranked(CohereRerankModel(), "q", ["a"])
    monkeypatch.setenv("COHERE_API_KEY", "c")
    ranked(CohereRerankModel(), "q", ["a"])
    monkeypatch.setenv("JINA_API_KEY", "j")
    ranked(JinaRerankModel(base_url=server.url + "/v1"), "q", ["a"])

    keys = [headers.get("authorization") for headers in server.headers]
    assert keys == [None, "Bearer c", "Bearer j"]
    assert server.paths == ["/v2/rerank", "/v2/rerank", "/v1/rerank"]


def test_invalid_rerank_options() -> None:
    """Invalid options raise when they are made."""
    with pytest.raises(UsageError, match="batch_size"):
        RerankOptions(batch_size=0)
    with pytest.raises(UsageError, match="must not be blank"):
        RerankOptions(model=" ")
    with pytest.raises(UsageError, match="must not be blank"):
        JinaRerankModel("", api_key="k")


class Lengths(RerankModel):
    """A custom rerank model: longer texts are better."""

    async def score_batch(self, query: str, texts: Sequence[str], runtime: Runtime) -> list[float]:
        await runtime.sleep(0)
        return [float(len(text)) for text in texts]


@pytest.mark.parametrize("blocking", [True, False])
def test_custom_rerank_model(*, blocking: bool) -> None:
    """A subclass with one coroutine supports blocking and async calls."""
    found = ranked(Lengths(), "q", ["a", "bbb"], blocking=blocking)

    assert found == [RankedText(1, "bbb", 3.0), RankedText(0, "a", 1.0)]
    assert Lengths().name == "Lengths"
