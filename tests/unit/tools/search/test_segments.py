"""Shared index segments of sessions, and incremental changes."""

import copy
import sys
import threading
from collections.abc import Callable, Iterable

import pytest

from chatclient.retrieval.keywords.inverted_index import IndexedDocument, InvertedIndex
from chatclient.tools.search import KeywordToolIndex, ToolReference, ToolSearchRequest
from chatclient.tools.search.segments import Catalogs, Segment


def tools(count: int, start: int = 0) -> tuple[ToolReference, ...]:
    return tuple(
        ToolReference(f"tool_{n}", f"Does thing number{n} well.")
        for n in range(start, start + count)
    )


@pytest.fixture
def indexed_counts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the number of tools of each indexing."""
    counts: list[int] = []
    build = InvertedIndex.__init__

    def counting(self: InvertedIndex, documents: Iterable[IndexedDocument]) -> None:
        given = list(documents)
        counts.append(len(given))
        build(self, given)

    monkeypatch.setattr(InvertedIndex, "__init__", counting)
    return counts


@pytest.mark.feature("search-one-index-per-session")
def test_sessions_share_one_index(indexed_counts: list[int]) -> None:
    """Equal tools are indexed once, also as different objects."""
    index = KeywordToolIndex()
    first = tools(1000)
    for number in range(10_000):
        given = first if number % 1000 else tuple(map(copy.copy, reversed(first)))
        index.index_tools(f"session-{number}", given)

    assert indexed_counts == [1000]
    request = ToolSearchRequest("session-9999", "number77", 1)
    assert index.search(request).tool_names == ("tool_77",)


@pytest.mark.feature("search-one-index-per-session")
def test_only_new_tools_are_indexed(indexed_counts: list[int]) -> None:
    """Sessions share common tools and index only their own."""
    index = KeywordToolIndex()
    shared = tools(1000)
    for number in range(50):
        own = ToolReference(f"own_{number}", f"Private matter{number}.")
        index.index_tools(f"s{number}", (*shared, own))

    assert indexed_counts == [1001] + [1] * 49
    for number in (0, 1, 49):
        request = ToolSearchRequest(f"s{number}", "private matter number5")
        names = index.search(request).tool_names
        assert f"own_{number}" in names
        assert [name for name in names if name.startswith("own")] == [f"own_{number}"]


def test_segments_are_merged(indexed_counts: list[int]) -> None:
    """After many small changes the segments are merged."""
    index = KeywordToolIndex()
    for step in range(60):
        index.index_tools("s", tools(400, step))
        names = index.search(
            ToolSearchRequest("s", f"number{step} number{step + 399}", 5)
        ).tool_names
        assert set(names[:2]) == {f"tool_{step}", f"tool_{step + 399}"}
        removed = index.search(ToolSearchRequest("s", f"number{step - 1}", 500)).tool_names
        assert f"tool_{step - 1}" not in removed

    assert sum(indexed_counts) < 400 + 60 * 40


def test_different_catalog_shares_nothing(indexed_counts: list[int]) -> None:
    """Catalogs with little in common share no segment."""
    index = KeywordToolIndex()
    index.index_tools("s", tools(100))
    index.index_tools("s", tools(100, 70))
    index.index_tools("s", tools(100, 300))

    assert indexed_counts == [100, 100, 100]


def test_recent_catalogs_are_kept(indexed_counts: list[int]) -> None:
    """Unused catalogs are kept for a while."""
    index = KeywordToolIndex()
    for number in range(20):
        index.index_tools(f"s{number}", tools(300))
        index.clear_index(f"s{number}")

    assert indexed_counts == [300]


def test_unused_catalogs_are_dropped() -> None:
    """Unused catalogs are dropped except recent ones; used ones are kept."""
    catalogs: Catalogs[None] = Catalogs()
    kept = catalogs.assign("keeper", tools(30, 5000)).catalog
    dropped: list[Segment[None]] = []
    for number in range(40):
        dropped += catalogs.assign("changing", tools(30, 100 * number)).dropped

    assert 30 <= len(dropped) <= 39
    assert catalogs.of("keeper") is kept
    assert not any(view.segment in dropped for view in kept.views) if kept else False
    catalogs.remove("keeper")
    assert catalogs.of("keeper") is None


def test_used_catalog_is_kept() -> None:
    """Clearing a session later drops only its own catalog."""
    catalogs: Catalogs[None] = Catalogs()
    mine = catalogs.assign("mine", tools(30)).catalog
    for number in range(1, 20):
        catalogs.assign(f"other{number}", tools(30, 100 * number))

    assert mine is not None
    assert catalogs.remove("mine").dropped == tuple(view.segment for view in mine.views)


def test_a_segment_is_dropped_with_its_last_catalog() -> None:
    """A shared segment is kept until its last catalog is dropped."""
    catalogs: Catalogs[None] = Catalogs()
    one = catalogs.assign("one", tools(100)).catalog
    two = catalogs.assign("two", tools(101)).catalog
    assert one is not None
    assert two is not None
    assert one.views[0].segment is two.views[0].segment
    catalogs.remove("one")
    dropped: list[Segment[None]] = []
    for number in range(1, 20):
        dropped += catalogs.assign("busy", tools(30, 1000 * number)).dropped

    assert one.views[0].segment not in dropped
    assert set(catalogs.clear()) >= {view.segment for view in two.views}


def test_catalog_is_released_once() -> None:
    """A session that changes catalogs releases the previous one once."""
    catalogs: Catalogs[None] = Catalogs()
    catalogs.assign("s", tools(1000))  # shares its segment with the next one
    shared = catalogs.assign("other", (*tools(1000), *tools(1, 5000))).catalog
    assert shared is not None
    for start in range(10_000, 16_000, 1000):  # one more than the number that is kept
        catalogs.assign(f"s{start}", tools(100, start))

    change = catalogs.assign("s", tools(100, 20_000))

    assert change.catalog is catalogs.of("s")
    assert change.dropped == ()
    assert [view.segment.catalogs for view in shared.views] == [1, 1]


def test_recent_catalogs_are_limited() -> None:
    """A new catalog is compared with a few recent ones."""
    catalogs: Catalogs[None] = Catalogs()
    for _ in range(2):
        for number in range(50):
            catalogs.assign(f"s{number}", tools(3, 100 * number))

    assert len(catalogs._recent) < 10


class _Busy:
    """A lock that runs a function when it is first released."""

    def __init__(self, on_release: Callable[[], object]) -> None:
        self._lock = threading.Lock()
        self._on_release: Callable[[], object] | None = on_release

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        on_release, self._on_release = self._on_release, None
        if on_release is not None:
            on_release()


def test_catalog_dropped_during_assignment() -> None:
    """A catalog dropped concurrently is built again."""
    catalogs: Catalogs[None] = Catalogs()
    given = tools(100)

    def on_release() -> None:
        catalogs.remove("first")
        for start in range(1000, 11_000, 1000):
            catalogs.assign(f"s{start}", tools(100, start))

    known = catalogs.assign("first", given).catalog
    catalogs._lock = _Busy(on_release)  # type: ignore[assignment]
    again = catalogs.assign("second", given).catalog

    assert again is not None
    assert again is not known
    assert again.size == 100


def test_same_tuple_is_not_inspected() -> None:
    """The identical tuple is recognised without reading its tools."""
    catalogs: Catalogs[None] = Catalogs()
    given = tools(1000)
    catalogs.assign("s", given)
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        catalogs.assign("s", given)
        catalogs.assign("t", given)
    finally:
        sys.setprofile(None)

    assert calls < 60


def test_filters_are_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tools visible to a role are cached per catalog, within limits."""
    monkeypatch.setattr("chatclient.tools.search.segments._FILTERS", 2)
    catalogs: Catalogs[None] = Catalogs()
    given = tuple(
        ToolReference(f"t{n}", roles=frozenset({f"role{n % 4}"}), categories=frozenset({"c"}))
        for n in range(40)
    )
    catalog = catalogs.assign("s", given).catalog
    assert catalog is not None

    for role in ("role0", "role1", "role2", "role0"):
        found = catalog.admitted(ToolSearchRequest("s", "", roles={role}))
        assert found is catalog.admitted(ToolSearchRequest("s", "", roles=[role]))
        assert found is not None
        assert {frozenset(catalog.reference(n).roles) for n in found} == {frozenset({role})}
    assert catalogs.assign("t", tools(3)).catalog is not None
    with pytest.raises(IndexError):
        catalog.reference(40)
