"""Sessions with the same tools share one index, and a change costs what has changed."""

import copy
import sys
import threading
from collections.abc import Callable

import pytest

from chatclient.tools.search import KeywordToolIndex, ToolReference, ToolSearchRequest
from chatclient.tools.search.catalog import Catalogs, Segment
from chatclient.tools.search.postings import Postings


def tools(count: int, start: int = 0) -> tuple[ToolReference, ...]:
    return tuple(
        ToolReference(f"tool_{n}", f"Does thing number{n} well.")
        for n in range(start, start + count)
    )


@pytest.fixture
def indexed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Note how many tools are indexed each time that some are."""
    counts: list[int] = []
    build = Postings.__init__

    def counting(self: Postings, references: tuple[ToolReference, ...], *rest: object) -> None:
        counts.append(len(references))
        build(self, references, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Postings, "__init__", counting)
    return counts


def test_ten_thousand_sessions_cost_one_index(indexed: list[int]) -> None:
    """Equal tools are indexed once, whether they are the same objects or not."""
    index = KeywordToolIndex()
    first = tools(1000)
    for number in range(10_000):
        given = first if number % 1000 else tuple(map(copy.copy, reversed(first)))
        index.index_tools(f"session-{number}", given)

    assert indexed == [1000]
    request = ToolSearchRequest("session-9999", "number77", 1)
    assert index.search(request).tool_names == ("tool_77",)


def test_a_few_new_tools_cost_no_more_than_themselves(indexed: list[int]) -> None:
    """Sessions with tools of their own share the rest; nobody finds another's."""
    index = KeywordToolIndex()
    shared = tools(1000)
    for number in range(50):
        own = ToolReference(f"own_{number}", f"Private matter{number}.")
        index.index_tools(f"s{number}", (*shared, own))

    assert indexed == [1001] + [1] * 49
    for number in (0, 1, 49):
        request = ToolSearchRequest(f"s{number}", "private matter number5")
        names = index.search(request).tool_names
        assert f"own_{number}" in names
        assert [name for name in names if name.startswith("own")] == [f"own_{number}"]


def test_changes_one_by_one_stay_cheap(indexed: list[int]) -> None:
    """A catalog that changes again and again is put together anew now and then."""
    index = KeywordToolIndex()
    for step in range(60):
        index.index_tools("s", tools(400, step))
        names = index.search(
            ToolSearchRequest("s", f"number{step} number{step + 399}", 5)
        ).tool_names
        assert set(names[:2]) == {f"tool_{step}", f"tool_{step + 399}"}
        gone = index.search(ToolSearchRequest("s", f"number{step - 1}", 500)).tool_names
        assert f"tool_{step - 1}" not in gone

    assert sum(indexed) < 400 + 60 * 40


def test_another_catalog_is_indexed_anew(indexed: list[int]) -> None:
    """Where little is the same, nothing is shared."""
    index = KeywordToolIndex()
    index.index_tools("s", tools(100))
    index.index_tools("s", tools(100, 70))
    index.index_tools("s", tools(100, 300))

    assert indexed == [100, 100, 100]


def test_a_session_that_comes_again_finds_its_index(indexed: list[int]) -> None:
    """Catalogs that nobody has stay for a while, for sessions of one request."""
    index = KeywordToolIndex()
    for number in range(20):
        index.index_tools(f"s{number}", tools(300))
        index.clear_index(f"s{number}")

    assert indexed == [300]


def test_catalogs_that_nobody_has_are_forgotten() -> None:
    """What no session has goes, but for those used last; what one has stays."""
    catalogs: Catalogs[None] = Catalogs()
    kept = catalogs.assign("keeper", tools(30, 5000)).catalog
    dropped: list[Segment[None]] = []
    for number in range(40):
        dropped += catalogs.assign("changing", tools(30, 100 * number)).dropped

    assert 30 <= len(dropped) <= 39
    assert catalogs.of("keeper") is kept
    assert not any(part.segment in dropped for part in kept.parts) if kept else False
    catalogs.remove("keeper")
    assert catalogs.of("keeper") is None


def test_a_catalog_in_use_outlives_those_used_last() -> None:
    """A session that is cleared long after others came drops what only it had."""
    catalogs: Catalogs[None] = Catalogs()
    mine = catalogs.assign("mine", tools(30)).catalog
    for number in range(1, 20):
        catalogs.assign(f"other{number}", tools(30, 100 * number))

    assert mine is not None
    assert catalogs.remove("mine").dropped == tuple(part.segment for part in mine.parts)


def test_a_segment_is_dropped_with_its_last_catalog() -> None:
    """Catalogs that share a segment keep it until the last of them is gone."""
    catalogs: Catalogs[None] = Catalogs()
    one = catalogs.assign("one", tools(100)).catalog
    two = catalogs.assign("two", tools(101)).catalog
    assert one is not None
    assert two is not None
    assert one.parts[0].segment is two.parts[0].segment
    catalogs.remove("one")
    dropped: list[Segment[None]] = []
    for number in range(1, 20):
        dropped += catalogs.assign("busy", tools(30, 1000 * number)).dropped

    assert one.parts[0].segment not in dropped
    assert set(catalogs.clear()) >= {part.segment for part in two.parts}


def test_a_session_that_moves_on_lets_go_once() -> None:
    """Of what it had, and of what is too old to be kept, even where both are the same."""
    catalogs: Catalogs[None] = Catalogs()
    catalogs.assign("s", tools(1000))  # shares its segment with the next
    shared = catalogs.assign("other", (*tools(1000), *tools(1, 5000))).catalog
    assert shared is not None
    for start in range(10_000, 16_000, 1000):  # as many as are kept, then one more
        catalogs.assign(f"s{start}", tools(100, start))

    change = catalogs.assign("s", tools(100, 20_000))

    assert change.catalog is catalogs.of("s")
    assert change.dropped == ()
    assert [part.segment.users for part in shared.parts] == [1, 1]


def test_sessions_that_come_again_are_not_all_recent() -> None:
    """However many have tools of their own, a new one is compared with a few."""
    catalogs: Catalogs[None] = Catalogs()
    for _ in range(2):
        for number in range(50):
            catalogs.assign(f"s{number}", tools(3, 100 * number))

    assert len(catalogs._recent) < 10


class _Busy:
    """A lock with somebody who gets it as soon as it is free for the first time."""

    def __init__(self, meanwhile: Callable[[], object]) -> None:
        self._lock = threading.Lock()
        self._meanwhile: Callable[[], object] | None = meanwhile

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        meanwhile, self._meanwhile = self._meanwhile, None
        if meanwhile is not None:
            meanwhile()


def test_a_catalog_that_is_dropped_while_it_is_given_out_is_made_anew() -> None:
    """It has its tools, though it was known a moment ago and no longer is."""
    catalogs: Catalogs[None] = Catalogs()
    given = tools(100)

    def meanwhile() -> None:
        catalogs.remove("first")
        for start in range(1000, 11_000, 1000):
            catalogs.assign(f"s{start}", tools(100, start))

    known = catalogs.assign("first", given).catalog
    catalogs._lock = _Busy(meanwhile)  # type: ignore[assignment]
    again = catalogs.assign("second", given).catalog

    assert again is not None
    assert again is not known
    assert again.size == 100


def test_the_same_tuple_costs_nothing() -> None:
    """Nothing of the tools is looked at when the very tuple is given again."""
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


def test_filters_are_remembered_per_catalog(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tools that a role may find are worked out once, in limits."""
    monkeypatch.setattr("chatclient.tools.search.catalog._FILTERS", 2)
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
