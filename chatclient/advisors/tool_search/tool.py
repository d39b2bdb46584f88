"""`ToolSearchTool`: the tool with which a model searches for other tools."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from pydantic import BaseModel, Field

from chatclient._internal.frozen import EMPTY
from chatclient._internal.json import dumps, loads
from chatclient._internal.logging import get_logger
from chatclient.chain.calls_by_name import CALL_TOOL
from chatclient.chat.messages import ToolResponse
from chatclient.chat.tool import (
    STEP,
    ToolCallback,
    ToolContext,
    ToolDefinition,
    ToolMetadata,
    ToolResult,
)
from chatclient.runtime.runtime import Runtime
from chatclient.tools.function.schema import ToolSignature, signature_of_model
from chatclient.tools.search.index import DEFAULT_MAX_RESULTS, ToolSearchRequest, ToolSearchResponse

SEARCH_TOOL = "toolSearchTool"
"""The name of the search tool."""

DESCRIPTION = (
    "Finds tools by what they do. Most tools are not listed: describe what you need, and those "
    "found can be called{} from then on. Names, descriptions and parameters are searched."
)

_BY_NAME = f" with {CALL_TOOL}"

MAX_RESULTS = 5
"""The default number of results of a search; five definitions are about 650 tokens."""

_MAX_REQUESTED = 10  # the limit for a model, unless the application sets a higher one
_LISTED_CATEGORIES = 30
_METADATA = ToolMetadata(effect="read")

_FOUND = "Nothing has been done yet. Call one of these tools{} now."
_NO_MATCH = (
    "No tool matches. Try other words for what you need, or answer without a tool if none can help."
)
_BLANK = "The query is blank. Describe in a few words what the tool should do."
_OTHER_CATEGORIES = "No tool of that category matches; these are of other categories. "

log = get_logger(__name__)

Find = Callable[[ToolSearchRequest, Runtime], Awaitable[ToolSearchResponse]]
"""Searches the tools of one request in its session."""


class _Search(BaseModel):
    query: str = Field(description="What the tool should do, in a few plain words.")
    max_results: int | None = Field(
        None, alias="maxResults", description="At most how many tools to find, 1 to 10; default 5."
    )
    category: str | None = Field(
        None, alias="categoryFilter", description="Only tools of this category, if known."
    )


@cache
def _signature() -> ToolSignature:
    """Return the signature of the tool, created on first use instead of at import."""
    return signature_of_model(_Search, name=SEARCH_TOOL)


@cache
def definition_of(categories: tuple[str, ...], *, by_name: bool = False) -> ToolDefinition:
    """Return the definition of the search tool; its description lists *categories*.

    Args:
        categories: The categories of the tools.
        by_name: Whether found tools are called by name.
    """
    description = DESCRIPTION.format(_BY_NAME if by_name else "")
    if 0 < len(categories) <= _LISTED_CATEGORIES:
        description += f" Categories: {', '.join(categories)}."
    return ToolDefinition(SEARCH_TOOL, description, _signature().input_schema)


class ToolSearchTool:
    """Searches the tools of one request.

    Args:
        find: The function that searches.
        tools: The tools that may be found, by name; other results of an index are dropped.
        categories: The categories to list in the description.
        roles: The roles of the user.
        max_results: The number of results if the model does not pass one; None leaves it to the
            index.
        by_name: Whether found tools are called by name, so that the result has their definitions.
    """

    metadata = _METADATA

    def __init__(
        self,
        find: Find,
        tools: Mapping[str, ToolCallback],
        *,
        categories: tuple[str, ...],
        roles: Collection[str],
        max_results: int | None,
        by_name: bool,
    ) -> None:
        self.definition = definition_of(categories, by_name=by_name)
        self._find = find
        self._tools = tools
        self._by_name = by_name
        self._roles = frozenset(roles)
        self._max_results = max_results

    async def invoke(self, arguments: str, context: ToolContext) -> ToolResult:
        """Search; the result lists names, best first, and an instruction for the model."""
        search: _Search = next(iter(_signature().bind(arguments, context).values()))
        query = search.query.strip()
        if not query:
            return self._result((), _BLANK)
        limit = self._limit(search.max_results)
        request = ToolSearchRequest("", query, limit, search.category, self._roles)
        names, note = await self._search(request, context.runtime), ""
        if not names and request.wanted_categories:
            # Models invent categories; that must not hide tools.
            unfiltered = replace(request, category_filter=None)
            names, note = await self._search(unfiltered, context.runtime), _OTHER_CATEGORIES
        note += _FOUND.format(_BY_NAME if self._by_name else "")
        return self._result(names, note if names else _NO_MATCH)

    def _result(self, names: Sequence[str], note: str) -> ToolResult:
        found: list[Any] = [*names]
        if self._by_name:
            found = [_described(self._tools[name].definition) for name in names]
        text = dumps({"tools": found, "note": note}).decode()
        return ToolResult(text, metadata={STEP: True} if names else EMPTY)

    async def _search(self, request: ToolSearchRequest, runtime: Runtime) -> Sequence[str]:
        response = await self._find(request, runtime)
        names = [name for name in dict.fromkeys(response.tool_names) if name in self._tools]
        log.debug("tool search", found=names, seconds=response.seconds)
        return names

    def _limit(self, requested: int | None) -> int | None:
        """Return the number of tools to find: the one that the model requested, with a maximum."""
        if requested is None or requested < 1:
            return self._max_results
        return min(requested, max(_MAX_REQUESTED, self._max_results or DEFAULT_MAX_RESULTS))


def _described(definition: ToolDefinition) -> dict[str, Any]:
    return {
        "name": definition.name,
        "description": definition.description,
        "parameters": definition.input_schema,
    }


def found_names(response: ToolResponse) -> list[str]:
    """Return the names in the response of a search.

    The list is empty if the response is an error, or an interceptor changed its format.
    """
    if response.is_error:
        return []
    try:
        answer: Any = loads(response.data)
    except ValueError:
        return []
    found = answer.get("tools") if isinstance(answer, Mapping) else answer
    if isinstance(found, list):  # of names, or of definitions
        found = [each.get("name") if isinstance(each, Mapping) else each for each in found]
    return string_items(found)


def string_items(value: Any) -> list[str]:
    """Return the strings in *value*, or an empty list if it is not a list; stores may change it."""
    return [name for name in value if isinstance(name, str)] if isinstance(value, list) else []
