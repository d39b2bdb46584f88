"""The contract of all tool indexes, and the hybrid and vector indexes."""

import asyncio
import copy
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import pytest

from chatclient.chat.embedding import Vector
from chatclient.chat.tool import ToolDefinition
from chatclient.errors import OverloadedError, ProviderError, UsageError
from chatclient.retrieval import InMemoryVectorStore, SqliteVectorStore
from chatclient.runtime.runtime import Runtime
from chatclient.tools.search import (
    DEFAULT_MAX_RESULTS,
    HybridToolIndex,
    KeywordToolIndex,
    RegexToolIndex,
    ToolIndex,
    ToolReference,
    ToolSearchRequest,
    ToolSearchResponse,
    VectorToolIndex,
)
from tests.support.bag_of_words import BagOfWords


def vector(model: BagOfWords | None = None) -> VectorToolIndex:
    return VectorToolIndex(InMemoryVectorStore(model or BagOfWords()))


KINDS: dict[str, Callable[[ExitStack], ToolIndex]] = {
    "keyword": lambda _: KeywordToolIndex(),
    "regex": lambda _: RegexToolIndex(),
    "vector": lambda _: vector(),
    "sqlite": lambda stack: VectorToolIndex(
        stack.enter_context(SqliteVectorStore(":memory:", BagOfWords()))
    ),
    "hybrid": lambda _: HybridToolIndex(KeywordToolIndex(), vector()),
}


@pytest.fixture(params=list(KINDS))
def index(request: pytest.FixtureRequest) -> Iterator[ToolIndex]:
    with ExitStack() as stack:
        yield KINDS[request.param](stack)


def tool(name: str, summary: str = "", **more: Any) -> ToolReference:
    return ToolReference(name, summary, **more)


TOOLS = (
    tool("get_weather", "Tells the weather in a city.", categories=frozenset({"Travel"})),
    tool("send_letter", "Sends a letter to somebody.", categories=frozenset({"office", "post"})),
    tool("book_flight", "Books a seat on a plane.", categories=frozenset({"travel"})),
    tool("fire_employee", "Ends an employment.", roles=frozenset({"boss", "owner"})),
)


def find(index: ToolIndex, query: str, session: str = "s", **more: Any) -> tuple[str, ...]:
    return index.search(ToolSearchRequest(session, query, **more)).tool_names


@pytest.mark.feature("search-tool-index-tools-search")
def test_search(index: ToolIndex) -> None:
    """The best tool is first, with its score and search method."""
    index.index_tools("s", TOOLS)

    response = index.search(ToolSearchRequest("s", "weather in the city"))

    best = response.tool_references[0]
    assert best == TOOLS[0]
    assert best.relevance_score is not None
    assert best.relevance_score > 0
    assert response.total_matches >= len(response.tool_references) >= 1
    assert response.search_type in ("keyword", "regex", "vector", "hybrid")
    assert response.query == "weather in the city"
    assert response.seconds > 0


def test_results_are_ordered_by_score(index: ToolIndex) -> None:
    """Results are ordered by score."""
    index.index_tools("s", TOOLS)
    response = index.search(ToolSearchRequest("s", "weather and letter, a city and a plane seat"))
    scores = [r.relevance_score or 0.0 for r in response.tool_references]

    assert len(scores) > 1
    assert scores == sorted(scores, reverse=True)


@pytest.mark.feature("search-tool-index-tools-search")
def test_async_methods(index: ToolIndex) -> None:
    """The async methods index, search and clear."""

    async def use() -> tuple[tuple[str, ...], tuple[str, ...]]:
        await index.aindex_tools("s", TOOLS)
        request = ToolSearchRequest("s", "letter")
        before = await index.asearch(request)
        await index.aclear_index("s")
        return before.tool_names, (await index.asearch(request)).tool_names

    assert asyncio.run(use()) == (("send_letter",), ())


@pytest.mark.feature("search-one-index-per-session")
def test_sessions_are_isolated(index: ToolIndex) -> None:
    """A session finds its own tools only, also if it shares some."""
    index.index_tools("one", TOOLS[:2])
    index.index_tools("two", (*TOOLS[:2], tool("weather_map", "Draws the weather of a city.")))
    index.index_tools("three", (tool("weather_map", "Draws the weather of a city."),))

    assert find(index, "weather city", "one") == ("get_weather",)
    assert set(find(index, "weather city", "two")) == {"get_weather", "weather_map"}
    assert find(index, "weather city", "three") == ("weather_map",)
    assert find(index, "weather city", "nobody") == ()


@pytest.mark.feature("search-tool-index-tools-search")
def test_clear_session(index: ToolIndex) -> None:
    """Clearing a session does not affect others with the same tools."""
    index.index_tools("one", TOOLS)
    index.index_tools("two", TOOLS)
    index.clear_index("one")
    index.clear_index("nobody")

    assert find(index, "letter", "one") == ()
    assert find(index, "letter", "two") == ("send_letter",)
    index.index_tools("one", TOOLS)
    assert find(index, "letter", "one") == ("send_letter",)


@pytest.mark.feature("search-tool-index-tools-search")
def test_indexing_again_replaces_tools(index: ToolIndex) -> None:
    """Indexing again replaces removed and changed tools."""
    index.index_tools("s", TOOLS)
    changed = tool("send_letter", "Sends a parcel to somebody.")
    index.index_tools("s", (TOOLS[0], changed, tool("water_plants", "Waters all flowers.")))

    assert find(index, "plane") == ()
    assert find(index, "flowers") == ("water_plants",)
    assert find(index, "parcel") == ("send_letter",)
    index.index_tools("s", ())
    assert find(index, "flowers") == ()


def test_duplicate_names(index: ToolIndex) -> None:
    """The first of two tools with one name is found."""
    index.index_tools("s", (TOOLS[0], tool("get_weather", "Something about flowers.")))

    assert find(index, "flowers") == ()
    assert find(index, "weather") == ("get_weather",)


def test_result_limit(index: ToolIndex) -> None:
    """The limit applies; None, zero and negative values mean the default."""
    index.index_tools("s", tuple(tool(f"weather_{n}", "Tells the weather.") for n in range(15)))

    assert len(find(index, "weather", max_results=3)) == 3
    for wanted in (None, 0, -2):
        assert len(find(index, "weather", max_results=wanted)) == DEFAULT_MAX_RESULTS
    assert len(find(index, "weather", max_results=99)) == 15
    assert index.search(ToolSearchRequest("s", "weather", 3)).total_matches == 15


@pytest.mark.parametrize("kind", ["keyword", "regex", "vector", "hybrid"])
def test_default_result_limit(kind: str) -> None:
    """The default limit of an index can be set."""
    store = InMemoryVectorStore(BagOfWords())
    index = {
        "keyword": KeywordToolIndex(max_results=2),
        "regex": RegexToolIndex(max_results=2),
        "vector": VectorToolIndex(store, max_results=2),
        "hybrid": HybridToolIndex(KeywordToolIndex(), max_results=2),
    }[kind]
    index.index_tools("s", tuple(tool(f"weather_{n}", "Tells the weather.") for n in range(5)))

    assert len(find(index, "weather")) == 2


@pytest.mark.feature("search-category-filter-ignored-indexes")
def test_categories(index: ToolIndex) -> None:
    """Only tools of the categories are found, ignoring case and blanks."""
    index.index_tools("s", TOOLS)
    query = "weather letter plane"

    assert set(find(index, query, category_filter=" TRAVEL ")) == {"get_weather", "book_flight"}
    assert find(index, query, category_filter=["post", "nothing"]) == ("send_letter",)
    assert find(index, query, category_filter="nothing") == ()
    assert set(find(index, query, category_filter=" ")) == {r.tool_name for r in TOOLS[:3]}


@pytest.mark.feature("search-category-filter-ignored-indexes")
def test_roles(index: ToolIndex) -> None:
    """A tool with roles is found only with one of them."""
    index.index_tools("s", TOOLS)

    assert find(index, "employment") == ()
    assert find(index, "employment", roles=["clerk"]) == ()
    assert find(index, "employment", roles={"boss"}) == ("fire_employee",)
    assert find(index, "letter", roles={"boss"}) == ("send_letter",)


def test_single_string_is_one_name(index: ToolIndex) -> None:
    """A string is one role or category, not a collection of letters."""
    fire = ToolReference.of(ToolDefinition("fire", "Ends a contract.", {}), roles="admin")
    index.index_tools("s", [fire, tool("pay", "Pays a contract.")])

    assert find(index, "contract", roles="intern") == ("pay",)
    assert set(find(index, "contract", roles="admin")) == {"fire", "pay"}
    assert find(index, "contract", exclude="repay") == ("pay",)
    assert ToolReference("a", roles="admin").roles == {"admin"}  # type: ignore[arg-type]


def test_tools_are_removed_and_added_again(index: ToolIndex) -> None:
    """All tools may be removed and indexed again."""
    for tools in (TOOLS[:3], (), TOOLS[:2], (), TOOLS[:1]):
        index.index_tools("s", tools)

        assert bool(find(index, "weather")) is bool(tools)


def test_excluded_names(index: ToolIndex) -> None:
    """Excluded names do not count against the limit."""
    index.index_tools("s", tuple(tool(f"weather_{n}", "Tells the weather.") for n in range(5)))

    assert len(find(index, "weather", max_results=2, exclude={"weather_0", "weather_1"})) == 2
    assert find(index, "weather", exclude=[f"weather_{n}" for n in range(4)]) == ("weather_4",)
    for excluded in ({"weather_0", "weather_1"}, {"weather_3", "weather_4"}):
        request = ToolSearchRequest("s", "weather", 1, exclude=excluded)
        assert index.search(request).total_matches == 3


@pytest.mark.parametrize("query", ["", "   ", "?!", "(a+)+$", "\\", "[", "*", "\udcff", "x" * 5000])
def test_any_query_is_accepted(index: ToolIndex, query: str) -> None:
    """Any text is accepted as query."""
    index.index_tools("s", TOOLS)

    assert set(find(index, query)) <= {each.tool_name for each in TOOLS if not each.roles}
    assert find(index, f"weather {query}")[:1] == ("get_weather",)


def test_invalid_schemas(index: ToolIndex) -> None:
    """Invalid parts of a schema are ignored."""
    odd: list[Any] = [
        {"properties": {"a": True, "b": {"description": 3, "enum": "x", "items": [1]}}},
        {"properties": ["a"]},
        {"type": "object", "properties": {"c": {"properties": {"deep": {"type": "string"}}}}},
        {"$defs": {"D": {"properties": {"e": {"description": "e"}}}, "F": 1}},
    ]
    index.index_tools(
        "s", [tool(f"odd_{n}", "Something odd.", parameters=schema) for n, schema in enumerate(odd)]
    )

    assert len(find(index, "odd")) == 4


def test_index_is_thread_safe(index: ToolIndex) -> None:
    """Threads may index, search and clear concurrently."""
    many = tuple(tool(f"tool_{n}", f"Does thing {n} for letter {n % 7}.") for n in range(300))
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for round_ in range(3):
                own = tool(f"own_{number}", f"Something special of thread {number}.")
                index.index_tools(f"s{number}", (*many[round_ * 20 :], own))
                assert f"own_{number}" in find(index, f"special thread {number}", f"s{number}")
                assert f"own_{number}" not in find(index, "special thread", f"s{number - 1}")
                index.clear_index(f"s{number}")
        except BaseException as error:  # noqa: BLE001 - asserted below
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert errors == []


def test_concurrent_tasks(index: ToolIndex) -> None:
    """Many tasks may index the same tools concurrently."""
    many = tuple(tool(f"tool_{n}", f"Does thing {n} for letter {n % 7}.") for n in range(300))

    async def session(number: int) -> ToolSearchResponse:
        await index.aindex_tools(f"s{number}", many)
        return await index.asearch(ToolSearchRequest(f"s{number}", "letter", 3))

    async def all_sessions() -> list[ToolSearchResponse]:
        return list(await asyncio.gather(*(session(number) for number in range(8))))

    found = {response.tool_names for response in asyncio.run(all_sessions())}

    assert len(found) == 1
    assert len(found.pop()) == 3


def test_reference_from_definition() -> None:
    """A reference has the searchable fields of a definition."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    definition = ToolDefinition("add", "Adds numbers.", schema)
    reference = ToolReference.of(definition, categories=["math"], roles=["user"])

    assert reference == ToolReference(
        "add", "Adds numbers.", schema, frozenset({"math"}), frozenset({"user"})
    )
    assert hash(reference) == hash(ToolReference("add", "Adds numbers."))


@pytest.mark.parametrize(
    "other",
    [
        tool("b", "x"),
        tool("a", "y"),
        tool("a", "x", parameters={"type": "object"}),
        tool("a", "x", categories=frozenset({"c"})),
        tool("a", "x", roles=frozenset({"c"})),
    ],
)
def test_fingerprint(other: ToolReference) -> None:
    """Equal content has one fingerprint; the score is ignored."""
    assert tool("a", "x").fingerprint == tool("a", "x").scored(0.5).fingerprint
    assert tool("a", "x").fingerprint != other.fingerprint


@dataclass(frozen=True, slots=True)
class OwnedTool(ToolReference):
    owner: str = ""


def test_subclass_fields_are_not_shared(index: ToolIndex) -> None:
    """Shared results contain only the common fields of a reference."""
    for owner in ("Ann", "Bob"):
        index.index_tools(owner, [OwnedTool("send_letter", "Sends a letter.", owner=owner)])

    found = index.search(ToolSearchRequest("Bob", "a letter")).tool_references
    assert [(each, hasattr(each, "owner")) for each in found] == [
        (tool("send_letter", "Sends a letter."), False)
    ]


@pytest.mark.feature("search-vector-tool-index-description")
def test_semantic_search() -> None:
    """The vector index finds synonyms."""
    index = vector()
    index.index_tools("s", TOOLS)

    assert find(index, "climate")[0] == "get_weather"
    assert find(KeywordToolIndex(), "climate") == ()


def test_vector_index_clauses() -> None:
    """The vector index searches each clause separately."""
    index = vector()
    index.index_tools("s", TOOLS)

    assert set(find(index, "send a letter. also book a seat on a plane", max_results=2)) == {
        "send_letter",
        "book_flight",
    }


@pytest.mark.feature("search-vector-tool-index-description")
def test_embeddings_are_shared() -> None:
    """Sessions share vectors; a new tool is embedded once."""
    model = BagOfWords()
    index = vector(model)
    index.index_tools("one", TOOLS)
    index.index_tools("two", tuple(copy.copy(r) for r in TOOLS))
    assert len(model.texts) == len(TOOLS)
    index.index_tools("two", (*TOOLS, tool("one_more", "It is new.")))
    index.index_tools("one", TOOLS[1:])

    assert model.texts[len(TOOLS) :] == ["one more: It is new."]


@pytest.mark.feature("search-vector-tool-index-description")
def test_unused_documents_are_deleted() -> None:
    """The store keeps documents of sessions and of some recent catalogs."""
    store = InMemoryVectorStore(BagOfWords())
    index = VectorToolIndex(store)
    for number in range(30):
        index.index_tools("s", [tool(f"tool_{number}_{n}", f"Text {number}.") for n in range(20)])

    assert 20 <= len(store) <= 9 * 20
    index.clear_all()
    assert len(store) == 0
    index.index_tools("s", TOOLS)
    asyncio.run(index.aclear_all())
    assert len(store) == 0
    assert find(index, "text") == ()


@pytest.mark.parametrize("leave", ["clear_all", "clear_index"])
def test_clear_during_embedding(leave: str) -> None:
    """Documents of a session cleared during embedding are deleted."""
    embedded = 0

    class Slow(BagOfWords):
        async def embed_batch(self, texts: Sequence[str], runtime: Runtime) -> list[Vector]:
            nonlocal embedded
            embedded += 1
            if embedded == 1:
                if leave == "clear_all":
                    vectors.clear_all()
                else:
                    vectors.clear_index("s")
                    for number in range(10):
                        vectors.index_tools(f"{number}", [tool(f"tool_{number}", "Other words.")])
            return await super().embed_batch(texts, runtime)

    store = InMemoryVectorStore(Slow())
    vectors = VectorToolIndex(store)
    vectors.index_tools("s", TOOLS)

    assert embedded == (1 if leave == "clear_all" else 11)
    assert len(store) == embedded - 1


def test_embedding_failure() -> None:
    """An error is raised; the next attempt embeds the missing tools."""
    index = vector(BagOfWords(failures=1))
    with pytest.raises(OverloadedError):
        index.index_tools("s", TOOLS)

    assert find(index, "letter") == ("send_letter",)


@pytest.mark.feature("search-no-hybrid")
def test_hybrid_index_with_failing_part() -> None:
    """A hybrid index skips a failing part until it works again."""
    model = BagOfWords(failures=2)
    index = HybridToolIndex(KeywordToolIndex(), vector(model))
    index.index_tools("s", TOOLS)

    assert find(index, "letter") == ("send_letter",)
    assert find(index, "climate")[0] == "get_weather"


def test_hybrid_clear_with_failing_part() -> None:
    """All parts are cleared, and the error of a failing part is raised."""

    class Keeping(KeywordToolIndex):
        async def drop(self, session_id: str, runtime: Runtime) -> None:
            msg = "down"
            raise ProviderError(msg, provider="test")

    words = KeywordToolIndex()
    index = HybridToolIndex(Keeping(), words)
    index.index_tools("s", TOOLS)

    with pytest.raises(ProviderError, match="down"):
        index.clear_index("s")

    assert find(words, "weather") == ()


def test_hybrid_index_with_all_parts_failing() -> None:
    """If all parts fail, the first error is raised."""
    index = HybridToolIndex(vector(BagOfWords(failures=9)))

    with pytest.raises(OverloadedError):
        index.index_tools("s", TOOLS)
    with pytest.raises(OverloadedError):
        find(index, "letter")


@pytest.mark.parametrize(
    "make",
    [HybridToolIndex, lambda: HybridToolIndex(KeywordToolIndex(), weights=[1.0, 2.0])],
)
def test_hybrid_weights_are_validated(make: Callable[[], ToolIndex]) -> None:
    """The number of weights must match a positive number of parts."""
    with pytest.raises(UsageError, match="weight"):
        make()


def test_hybrid_candidate_count() -> None:
    """Large catalogs request more candidates; unlisted tools rank last."""
    limits: list[int | None] = []

    class Noting(KeywordToolIndex):
        async def put(
            self, session_id: str, references: Sequence[ToolReference], runtime: Runtime
        ) -> None:
            pass

        async def find(self, request: ToolSearchRequest, runtime: Runtime) -> ToolSearchResponse:
            limits.append(request.max_results)
            return await super().find(request, runtime)

    index = HybridToolIndex(Noting())
    for size in (4_900, 12_000, 30_000):
        index.index_tools("s", [TOOLS[0]] * size)
        find(index, "weather")
    index.clear_index("s")
    find(index, "weather")

    assert limits == [50, 120, 200, 50]


@pytest.mark.feature("search-no-hybrid")
def test_hybrid_weights() -> None:
    """The part with more weight decides the order."""
    tools = (tool("climate_report", "x"), tool("get_weather", "weather weather"))

    def first(weights: list[float]) -> str:
        index = HybridToolIndex(KeywordToolIndex(), vector(), weights=weights)
        index.index_tools("s", tools)
        return find(index, "climate")[0]

    assert first([5.0, 0.1]) == "climate_report"
    assert first([0.1, 5.0]) == "get_weather"


@pytest.mark.feature("search-no-hybrid")
@pytest.mark.parametrize("score", [None, 0.0, -1.0])
def test_hybrid_index_without_scores(score: float | None) -> None:
    """Ranks are used if a custom index returns no scores."""

    class Ranking(KeywordToolIndex):
        async def find(self, request: ToolSearchRequest, runtime: Runtime) -> ToolSearchResponse:
            best = tuple(replace(each, relevance_score=score) for each in (TOOLS[2], TOOLS[1]))
            return ToolSearchResponse(best, 2)

    index = HybridToolIndex(KeywordToolIndex(), Ranking())
    index.index_tools("s", TOOLS)

    assert find(index, "nothing known") == ("book_flight", "send_letter")
    assert find(index, "a letter") == ("send_letter", "book_flight")


@pytest.mark.feature("search-regex-tool-index")
def test_regex_from_a_model_is_literal() -> None:
    """Queries are literal, so no regular expression of a model is run."""
    index = RegexToolIndex()
    index.index_tools("s", (tool("a", "x" * 60 + "!"), tool("b", "(x+)+$ is written here")))

    assert find(index, "(x+x+)+y") == ()
    assert find(index, "(x+)+$") == ("b",)
    assert find(index, "we*er") == ()
    index.index_tools("s", TOOLS)
    assert find(index, "we*er") == ("get_weather",)
    assert find(index, "we*t*r*x*y") == ()
    assert set(find(index, "weather|letter")) == {"get_weather", "send_letter"}


@pytest.mark.feature("search-regex-tool-index")
def test_substring_search() -> None:
    """The name has more weight; a query without words finds everything."""
    index = RegexToolIndex()
    index.index_tools("s", (tool("a", "flower flow"), tool("wateRFLOWers", "x"), *TOOLS[:1]))

    assert find(index, "please show me the flow")[0] == "wateRFLOWers"
    assert set(find(index, "flow")) == {"wateRFLOWers", "a"}
    assert len(find(index, "")) == 3
    assert find(index, "the") == ("get_weather",)
    assert find(index, " ".join(f"word{n:04}" for n in range(99)) + " flow") == ()


def test_large_search_does_not_block_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large catalogs are searched in a thread with equal results."""
    monkeypatch.setattr("chatclient.tools.search.keyword._SEARCHED_AT_ONCE", 2)
    monkeypatch.setattr("chatclient.tools.search.keyword._AT_ONCE", 2)
    monkeypatch.setattr("chatclient.tools.search.regex._AT_ONCE", 2)

    async def first(index: ToolIndex) -> tuple[str, ...]:
        await index.aindex_tools("s", TOOLS)
        return (await index.asearch(ToolSearchRequest("s", "letter"))).tool_names

    assert asyncio.run(first(KeywordToolIndex())) == ("send_letter",)
    assert asyncio.run(first(RegexToolIndex())) == ("send_letter",)
