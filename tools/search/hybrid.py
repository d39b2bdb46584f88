"""Search in several ways at once, by words and by meaning as a rule."""

from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter

from chatclient.errors import ProviderError, UsageError
from chatclient.logs import get_logger
from chatclient.runtime import Runtime
from chatclient.tools.search.index import (
    DEFAULT_MAX_RESULTS,
    ToolIndex,
    ToolReference,
    ToolSearchRequest,
    ToolSearchResponse,
    as_response,
    asked,
)

log = get_logger(__name__)

# A tool that an index does not list counts as the last that it does. In a large catalog many tools
# come close to the best, so that the list has to be longer until its last is one that does not fit.
_DEPTH = 50  # results that each index is asked for, at least ...
_PER_RESULT = 100  # ... and one for so many tools ...
_MOST_RESULTS = 200  # ... up to this


class HybridToolIndex(ToolIndex):
    """Adds up what several indexes say, each in proportion to its best result.

    An index whose provider fails is left out of that search, so that tools are still found by
    their words while an embedding service is down.

    Args:
        *indexes: Whom to ask, such as a `KeywordToolIndex` and a `VectorToolIndex`.
        weights: What each counts; None for all the same, which is best for words and MiniLM.
        max_results: How many tools a search gives that does not say.

    Raises:
        UsageError: There is no index, or not one weight for each.
    """

    def __init__(
        self,
        *indexes: ToolIndex,
        weights: Sequence[float] | None = None,
        max_results: int = DEFAULT_MAX_RESULTS,
    ) -> None:
        if weights is None:
            weights = [1.0] * len(indexes)
        if not indexes or len(weights) != len(indexes):
            msg = f"{len(indexes)} indexes and {len(weights)} weights; give one weight for each"
            raise UsageError(msg)
        self._indexes = tuple(zip(indexes, weights, strict=True))
        self._max_results = max_results
        self._sizes: dict[str, int] = {}

    async def put(
        self, session_id: str, references: Sequence[ToolReference], runtime: Runtime
    ) -> None:
        """Make *references* the tools of a session in every index.

        Raises:
            ProviderError: All of them failed.
        """
        failures = []
        for index, _ in self._indexes:
            try:
                await index.put(session_id, references, runtime)
            except ProviderError as error:
                failures.append(error)
                log.warning("tool index failed", index=type(index).__name__, error=str(error))
        self._raise_if_all(failures)
        self._sizes[session_id] = len(references)

    async def find(self, request: ToolSearchRequest, runtime: Runtime) -> ToolSearchResponse:
        """Search in every index, and add up what they say.

        Raises:
            ProviderError: All of them failed.
        """
        started = perf_counter()
        limit = request.limit(self._max_results)
        share = min(self._sizes.get(request.session_id, 0) // _PER_RESULT, _MOST_RESULTS)
        deeper = replace(request, max_results=max(_DEPTH, share, 3 * limit))
        scores: dict[str, float] = {}
        references: dict[str, ToolReference] = {}
        failures = []
        for index, weight in self._indexes:
            try:
                response = await asked(index, deeper, runtime)
            except ProviderError as error:
                failures.append(error)
                log.warning("tool index failed", index=type(index).__name__, error=str(error))
                continue
            _add(scores, response, weight)
            references.update((r.tool_name, r) for r in response.tool_references)
        self._raise_if_all(failures)
        best = sorted(references, key=lambda name: (-scores[name], name))[:limit]
        found = [(scores[name], references[name]) for name in best]
        return as_response("hybrid", request, found, len(references), started)

    async def drop(self, session_id: str, runtime: Runtime) -> None:
        """Forget the tools of a session in every index, also where one before it fails.

        Raises:
            ProviderError: One of them failed.
        """
        self._sizes.pop(session_id, None)
        failures = []
        for index, _ in self._indexes:
            try:
                await index.drop(session_id, runtime)
            except ProviderError as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def _raise_if_all(self, failures: Sequence[ProviderError]) -> None:
        if len(failures) == len(self._indexes):
            raise failures[0]


def _add(scores: dict[str, float], response: ToolSearchResponse, weight: float) -> None:
    """Add what one index says; tools beyond the end of a full answer count as its last one.

    The scores hold what is certain; the floor of each index is the same for all tools that it does
    not list, and is given to those it lists as well by leaving it out on both sides.
    """
    found = response.tool_references
    shares = _shares(found)
    cut_off = response.total_matches > len(found)
    floor = min(shares, default=0.0) if cut_off else 0.0
    for reference, share in zip(found, shares, strict=True):
        scores[reference.tool_name] = scores.get(reference.tool_name, 0.0) + weight * (
            share - floor
        )


def _shares(found: Sequence[ToolReference]) -> list[float]:
    """Return how well each tool fits compared to the best: by its place if there are no scores."""
    top = max((reference.relevance_score or 0.0 for reference in found), default=0.0)
    if top > 0:
        return [(reference.relevance_score or 0.0) / top for reference in found]
    return [1 / place for place in range(1, len(found) + 1)]
