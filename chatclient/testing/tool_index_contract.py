"""Tests that every `ToolIndex` must pass. They need pytest.

Use them in a test module:

    class TestMyIndex(ToolIndexContract):
        @pytest.fixture
        def index(self):
            return MyIndex(...)

For detailed assertion messages, call
`pytest.register_assert_rewrite("chatclient.testing.tool_index_contract")` in the conftest before
the import.
"""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import pytest

from chatclient.testing.contract_parts import check_loop_is_free
from chatclient.tools.search.index import (
    ToolIndex,
    ToolReference,
    ToolSearchRequest,
    ToolSearchResponse,
)


def _tool(verb: str, thing: str, **fields: Any) -> ToolReference:
    schema = {"type": "object", "properties": {thing: {"type": "string"}}}
    return ToolReference(f"{verb}_{thing}", f"{verb} the {thing}", schema, **fields)


TOOLS = (
    _tool("list", "invoice"),
    _tool("delete", "invoice", roles={"admin"}),
    _tool("show", "weather", categories={"Outdoor"}),
    _tool("book", "holiday", categories={"staff", "outdoor"}),
)
"""Tools that are found by the words of their names."""


@dataclass(frozen=True)
class Searched:
    """An index that is called blocking, or each time on a new event loop."""

    index: ToolIndex
    blocking: bool

    def put(self, session: str, references: Sequence[ToolReference]) -> None:
        """Replace the tools of a session."""
        if self.blocking:
            self.index.index_tools(session, references)
        else:
            asyncio.run(self.index.aindex_tools(session, references))

    def find(self, session: str, query: str, **rest: Any) -> ToolSearchResponse:
        """Search the tools of a session."""
        request = ToolSearchRequest(session, query, **rest)
        if self.blocking:
            return self.index.search(request)
        return asyncio.run(self.index.asearch(request))

    def names(self, session: str, query: str, **rest: Any) -> set[str]:
        """Return the names of the tools that are found."""
        return set(self.find(session, query, **rest).tool_names)

    def drop(self, session: str) -> None:
        """Remove the tools of a session."""
        if self.blocking:
            self.index.clear_index(session)
        else:
            asyncio.run(self.index.aclear_index(session))


class ToolIndexContract:
    """The tests; a subclass defines the fixture `index`, which is empty.

    The index must find a tool by a word of its name.
    """

    @pytest.fixture
    def index(self) -> ToolIndex:
        """Return the index to test."""
        raise NotImplementedError

    @pytest.fixture(params=["blocking", "on a loop"])
    def searched(self, request: pytest.FixtureRequest, index: ToolIndex) -> Searched:
        """Return the index with tools, in both modes."""
        searched = Searched(index, blocking=request.param == "blocking")
        searched.put("a", TOOLS)
        return searched

    def test_tools_are_found(self, searched: Searched) -> None:
        """The best first, each with its score and its own content."""
        found = searched.find("a", "weather")

        assert found.tool_names[0] == "show_weather"
        assert replace(found.tool_references[0], relevance_score=None) == TOOLS[2]
        scores = [reference.relevance_score for reference in found.tool_references]
        assert None not in scores
        assert scores == sorted(scores, key=float, reverse=True)  # type: ignore[arg-type]
        assert found.total_matches >= len(found.tool_references)
        assert found.query == "weather"
        assert found.search_type
        assert found.seconds >= 0

    def test_sessions_are_apart(self, searched: Searched) -> None:
        """A session that is unknown, or was cleared, has no tools."""
        searched.put("b", TOOLS[:1])

        assert searched.names("b", "weather") & {"show_weather"} == set()
        assert searched.names("b", "invoice") == {"list_invoice"}
        searched.drop("b")
        searched.drop("never seen")
        assert searched.find("b", "invoice").tool_references == ()
        assert searched.find("never seen", "invoice").tool_references == ()
        assert "show_weather" in searched.names("a", "weather")

    def test_tools_are_replaced(self, searched: Searched) -> None:
        """Those that are not given again are gone, and changed ones have new words."""
        changed = replace(TOOLS[0], summary="count the penguins")
        searched.put("a", (changed, TOOLS[2]))

        assert "book_holiday" not in searched.names("a", "holiday")
        assert "list_invoice" in searched.names("a", "penguins")

    def test_equal_tools_may_be_given_again(self, searched: Searched) -> None:
        """As the same object or as another one; later changes of a list do not count."""
        given = [*TOOLS]
        searched.put("a", TOOLS)
        searched.put("a", given)
        given.clear()

        assert "show_weather" in searched.names("a", "weather")

    def test_the_first_of_equal_names_is_used(self, searched: Searched) -> None:
        """And it is found once."""
        second = ToolReference("show_weather", "another one about the weather")
        searched.put("a", (*TOOLS, second))
        found = [
            reference.summary
            for reference in searched.find("a", "weather").tool_references
            if reference.tool_name == "show_weather"
        ]

        assert found == [TOOLS[2].summary]

    @pytest.mark.parametrize("limit", [1, 2])
    def test_the_number_of_results_is_limited(self, searched: Searched, limit: int) -> None:
        """None and zero mean the index's own limit."""
        tools = [_tool("list", f"invoice{number}") for number in range(30)]
        searched.put("many", [*TOOLS, *tools])

        assert len(searched.find("many", "list invoice", max_results=limit).tool_names) == limit
        usual = searched.names("many", "list invoice")
        assert searched.names("many", "list invoice", max_results=0) == usual

    def test_excluded_tools(self, searched: Searched) -> None:
        """They are not found."""
        assert "show_weather" not in searched.names("a", "weather", exclude={"show_weather"})

    def test_roles(self, searched: Searched) -> None:
        """A tool for a role is found by those who have it."""
        assert "delete_invoice" not in searched.names("a", "delete invoice")
        assert "delete_invoice" in searched.names("a", "delete invoice", roles={"admin", "x"})

    def test_categories(self, searched: Searched) -> None:
        """One of several is enough, whatever its case."""
        query = "weather holiday invoice"

        assert searched.names("a", query, category_filter="OUTDOOR") == {
            "show_weather",
            "book_holiday",
        }
        assert searched.names("a", query, category_filter=["staff", "none"]) == {"book_holiday"}
        assert searched.names("a", query, category_filter="nowhere") == set()
        assert "list_invoice" in searched.names("a", query, category_filter=" ")

    @pytest.mark.parametrize(
        "query",
        ["", " ", '"', "* (", "'; drop table tool; --", "猫 \U0001f408", "\0", "x" * 10_000],
    )
    def test_any_query_is_answered(self, searched: Searched, query: str) -> None:
        """Models write all kinds of text."""
        found = searched.find("a", query)

        assert set(found.tool_names) <= {tool.tool_name for tool in TOOLS}

    def test_concurrent_calls(self, index: ToolIndex) -> None:
        """Threads that use sessions of their own do not disturb each other."""

        def work(number: int) -> bool:
            session, tool = f"s{number}", TOOLS[number % 2 * 2]
            searched = Searched(index, blocking=number % 3 > 0)
            for _ in range(5):
                searched.put(session, (tool,))
                if searched.names(session, tool.tool_name.split("_")[1]) != {tool.tool_name}:
                    return False
                searched.drop(session)
            return True

        with ThreadPoolExecutor(6) as pool:
            assert all(pool.map(work, range(12)))

    def test_the_event_loop_is_not_blocked(self, index: ToolIndex) -> None:
        """Neither by indexing, nor by a search."""
        request = ToolSearchRequest("a", "weather")

        async def use() -> None:
            await index.aindex_tools("a", [*TOOLS])
            await index.asearch(request)
            await index.aclear_index("a")

        check_loop_is_free(use)
