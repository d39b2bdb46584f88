"""Search by pattern: each word of the query anywhere in the name or the description.

A query comes from a model, so it is never compiled as a regular expression: a pattern such as
`(a+)+$` would keep a core busy for hours. Its words are taken literally, with `*` in a word for any
run of word characters, and `|` between words for nothing but a space.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from time import perf_counter

from chatclient.runtime import Runtime
from chatclient.tools.search.catalog import Catalog, Catalogs
from chatclient.tools.search.index import (
    DEFAULT_MAX_RESULTS,
    ToolIndex,
    ToolReference,
    ToolSearchRequest,
    ToolSearchResponse,
    as_response,
)
from chatclient.tools.search.vocabulary import STOP_WORDS

_SEPARATORS = re.compile(r"[\s,;:.!?()\[\]{}\"'|]+")
_STARS = re.compile(r"\*+")
_MOST_CHARACTERS = 200  # of a pattern; words beyond that are left out
_MOST_STARS = 2  # in a word, so that a match cannot take long
_AT_ONCE = 2_000  # tools that are searched without leaving the event loop: some 10 ms


@lru_cache(256)
def pattern_of(query: str) -> re.Pattern[str]:
    """Return the pattern that a query is searched with; one without words finds everything."""
    words = [word for word in _SEPARATORS.split(query.casefold()) if word.strip("*")]
    telling = [word for word in words if len(word) > 1 and word not in STOP_WORDS]
    pieces: list[str] = []
    room = _MOST_CHARACTERS
    for word in dict.fromkeys(telling or words):
        piece = _literal(word)
        room -= len(piece) + 1
        if pieces and room < 0:
            break
        pieces.append(piece)
    # Longer ones first: of `get` and `get_user`, the latter matches where both could.
    return re.compile("|".join(sorted(pieces, key=len, reverse=True)), re.IGNORECASE)


def _literal(word: str) -> str:
    pieces = [re.escape(piece) for piece in _STARS.split(word, _MOST_STARS)]
    return r"\w{0,40}".join(piece.replace(r"\*", "") for piece in pieces)


class RegexToolIndex(ToolIndex):
    """Finds tools in whose name or description words of the query stand, as parts of words, too.

    A match in the name counts twice one in the description, an early one more than a late one.

    Args:
        max_results: How many tools a search gives that does not say.
    """

    def __init__(self, *, max_results: int = DEFAULT_MAX_RESULTS) -> None:
        self._max_results = max_results
        self._catalogs: Catalogs[None] = Catalogs()

    async def put(
        self,
        session_id: str,
        references: Sequence[ToolReference],
        runtime: Runtime,  # noqa: ARG002 - there is nothing to wait for
    ) -> None:
        """Make *references* the tools of a session."""
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
        """Forget the tools of a session."""
        self._catalogs.remove(session_id)


def _search(
    catalog: Catalog[None], request: ToolSearchRequest
) -> list[tuple[float, ToolReference]]:
    pattern = pattern_of(request.query)
    found = [
        (score, reference)
        for part in catalog.parts
        for _, reference in part.live()
        if request.admits(reference) and (score := _score(pattern, reference)) > 0
    ]
    return sorted(found, key=lambda pair: (-pair[0], pair[1].tool_name))


def _score(pattern: re.Pattern[str], reference: ToolReference) -> float:
    if not pattern.pattern:
        return 1.0
    return _worth(pattern, reference.tool_name, 2, 1.0) + _worth(pattern, reference.summary, 1, 0.5)


def _worth(pattern: re.Pattern[str], text: str, each: int, early: float) -> float:
    places = [match.start() for match in pattern.finditer(text)]
    return each * len(places) + early / (1 + 0.1 * places[0]) if places else 0.0
