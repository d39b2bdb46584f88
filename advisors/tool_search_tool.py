"""The tool that a model searches its tools with."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from pydantic import BaseModel, Field

from chatclient.json import dumps, loads
from chatclient.logs import get_logger
from chatclient.messages import ToolResponse
from chatclient.runtime import Runtime
from chatclient.tool import STEP, ToolContext, ToolDefinition, ToolMetadata, ToolResult
from chatclient.tools.schema import ToolSignature, signature_of_model
from chatclient.tools.search import DEFAULT_MAX_RESULTS, ToolSearchRequest, ToolSearchResponse
from chatclient.values import EMPTY

SEARCH_TOOL = "toolSearchTool"
"""What a model calls the tool that it searches its tools with."""

DESCRIPTION = (
    "Finds tools by what they do. Most tools are not listed: describe what you need, and those "
    "found can be called from then on. Names, descriptions and parameters are searched."
)

MAX_RESULTS = 5
"""How many tools a search finds unless told otherwise: five definitions are some 650 tokens."""

_MOST_RESULTS = 10  # what a model may ask for, unless the application asks for more itself
_LISTED_CATEGORIES = 30
_METADATA = ToolMetadata(effect="read")

_FOUND = "Nothing has been done yet. Call one of these tools now."
_NOTHING = (
    "No tool matches. Try other words for what you need, or answer without a tool if none can help."
)
_BLANK = "The query is blank. Describe in a few words what the tool should do."
_ELSEWHERE = "No tool of that category matches; these are of other categories. " + _FOUND

log = get_logger(__name__)

Find = Callable[[ToolSearchRequest, Runtime], Awaitable[ToolSearchResponse]]
"""Searches the tools of one request; it knows the session."""


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
    """Return what the tool takes; made when the first one is wanted, not at import."""
    return signature_of_model(_Search, name=SEARCH_TOOL)


@cache
def definition_of(categories: tuple[str, ...]) -> ToolDefinition:
    """Return what a model is told of the search in tools of *categories*."""
    description = DESCRIPTION
    if 0 < len(categories) <= _LISTED_CATEGORIES:
        description += f" Categories: {', '.join(categories)}."
    return ToolDefinition(SEARCH_TOOL, description, _signature().input_schema)


class ToolSearchTool:
    """Searches the tools of one request.

    Args:
        find: The search itself.
        names: The tools that may be found; whatever else an index returns is left out.
        categories: The categories to tell the model about.
        roles: What the searcher is.
        max_results: How many tools to find when the model does not say; None leaves it to the
            index.
    """

    metadata = _METADATA

    def __init__(
        self,
        find: Find,
        names: Collection[str],
        *,
        categories: tuple[str, ...],
        roles: Collection[str],
        max_results: int | None,
    ) -> None:
        self.definition = definition_of(categories)
        self._find = find
        self._names = names
        self._roles = frozenset(roles)
        self._max_results = max_results

    async def invoke(self, arguments: str, context: ToolContext) -> ToolResult:
        """Search; the result lists names, best first, and says what to do with them."""
        wanted: _Search = next(iter(_signature().bind(arguments, context).values()))
        query = wanted.query.strip()
        if not query:
            return _result((), _BLANK)
        limit = self._limit(wanted.max_results)
        request = ToolSearchRequest("", query, limit, wanted.category, self._roles)
        names, note = await self._search(request, context.runtime), _FOUND
        if not names and request.wanted_categories:
            # A model makes categories up; that must not hide a tool from it.
            anywhere = replace(request, category_filter=None)
            names, note = await self._search(anywhere, context.runtime), _ELSEWHERE
        return _result(names, note if names else _NOTHING)

    async def _search(self, request: ToolSearchRequest, runtime: Runtime) -> Sequence[str]:
        response = await self._find(request, runtime)
        names = [name for name in dict.fromkeys(response.tool_names) if name in self._names]
        log.debug("tool search", found=names, seconds=response.seconds)
        return names

    def _limit(self, wanted: int | None) -> int | None:
        """Return how many tools to find: what the model wants, within reason."""
        if wanted is None or wanted < 1:
            return self._max_results
        return min(wanted, max(_MOST_RESULTS, self._max_results or DEFAULT_MAX_RESULTS))


def _result(names: Sequence[str], note: str) -> ToolResult:
    text = dumps({"tools": list(names), "note": note}).decode()
    return ToolResult(text, metadata={STEP: True} if names else EMPTY)


def found_in(response: ToolResponse) -> list[str]:
    """Return the names that a search found, as its answer to the model says.

    An answer that somebody rewrote, or that tells of an error, found nothing.
    """
    if response.is_error:
        return []
    try:
        answer: Any = loads(response.data)
    except ValueError:
        return []
    return names_in(answer.get("tools") if isinstance(answer, Mapping) else answer)


def names_in(value: Any) -> list[str]:
    """Return the texts in a list, none if it is not a list: what a store or a model gave back."""
    return [name for name in value if isinstance(name, str)] if isinstance(value, list) else []
