"""A tool index that searches the words of a query as patterns in names and descriptions.

A query comes from a model, so it is never compiled as a regular expression: a pattern such as
`(a+)+$` would keep a core busy for hours. Its words are taken literally, except that `*` in a word
matches any run of word characters and `|` separates words like a space.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from time import perf_counter

from chatclient.retrieval.keywords.synonyms import STOP_WORDS
from chatclient.runtime.runtime import Runtime
from chatclient.tools.search.index import (
    DEFAULT_MAX_RESULTS,
    ToolIndex,
    ToolReference,
    ToolSearchRequest,
    ToolSearchResponse,
    as_response,
)
from chatclient.tools.search.segments import Catalog, Catalogs

_SEPARATORS = re.compile(r"[\s,;:.!?()\[\]{}\"'|]+")
_STARS = re.compile(r"\*+")
_MOST_CHARACTERS = 200  # of a pattern; further words are ignored
_MOST_STARS = 2  # in a word, so that a match cannot take long
_AT_ONCE = 2_000  # tools that are searched without leaving the event loop: some 10 ms


@lru_cache(256)
def pattern_of(query: str) -> re.Pattern[str]:
    """Return the pattern for a query; the pattern of a query without words finds all tools."""
    words = [word for word in _SEPARATORS.split(query.casefold()) if word.strip("*")]
    significant = [word for word in words if len(word) > 1 and word not in STOP_WORDS]
    pieces: list[str] = []
    room = _MOST_CHARACTERS
    for word in dict.fromkeys(significant or words):
        piece = _literal(word)
        room -= len(piece) + 1
        if pieces and room < 0:
            break
        pieces.append(piece)
    # Longer ones first: `get_user` takes precedence over `get`.
    return re.compile("|".join(sorted(pieces, key=len, reverse=True)), re.IGNORECASE)


def _literal(word: str) -> str:
    pieces = [re.escape(piece) for piece in _STARS.split(word, _MOST_STARS)]
    return r"\w{0,40}".join(piece.replace(r"\*", "") for piece in pieces)


class RegexToolIndex(ToolIndex):
    """Finds tools whose name or description contains words of the query, also within words.

    A match in the name counts twice as much as one in the description, and an early one more than
    a late one.

    Args:
        max_results: The number of results of a search without a limit.
    """

    def __init__(self, *, max_results: int = DEFAULT_MAX_RESULTS) -> None:
        self._max_results = max_results
        self._catalogs: Catalogs[None] = Catalogs()

    async def put(
        self,
        session_id: str,
        references: Sequence[ToolReference],
        runtime: Runtime,  # noqa: ARG002 - does not wait
    ) -> None:
        """Set the tools of a session."""
        self._catalogs.assign(session_id, references)

    async def find(self, request: ToolSearchRequest, runtime: Runtime) -> ToolSearchResponse:
        """Search the tools of one session."""
        started = perf_counter()
        catalog = self._catalogs.of(request.session_id)
        if catalog is None:
            return as_response("regex", request, (), 0, started)
        if catalog.size > _AT_ONCE:
            found = await runtime.invoke(_search, catalog, request)
        else:
            found = _search(catalog, request)
        limit = request.limit(self._max_results)
        return as_response("regex", request, found[:limit], len(found), started)

    async def drop(self, session_id: str, runtime: Runtime) -> None:  # noqa: ARG002
        """Remove the tools of a session."""
        self._catalogs.remove(session_id)


def _search(
    catalog: Catalog[None], request: ToolSearchRequest
) -> list[tuple[float, ToolReference]]:
    pattern = pattern_of(request.query)
    found = [
        (score, reference)
        for view in catalog.views
        for _, reference in view.live()
        if request.admits(reference) and (score := _score(pattern, reference)) > 0
    ]
    return sorted(found, key=lambda pair: (-pair[0], pair[1].tool_name))


def _score(pattern: re.Pattern[str], reference: ToolReference) -> float:
    if not pattern.pattern:
        return 1.0
    return _match_score(pattern, reference.tool_name, 2, 1.0) + _match_score(
        pattern, reference.summary, 1, 0.5
    )


def _match_score(pattern: re.Pattern[str], text: str, each: int, early: float) -> float:
    places = [match.start() for match in pattern.finditer(text)]
    return each * len(places) + early / (1 + 0.1 * places[0]) if places else 0.0
