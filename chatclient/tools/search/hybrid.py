"""A tool index that combines several others, usually keywords and embeddings."""

from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter

from chatclient._internal.logging import get_logger
from chatclient.errors import ProviderError, UsageError
from chatclient.runtime.runtime import Runtime
from chatclient.tools.search.index import (
    DEFAULT_MAX_RESULTS,
    ToolIndex,
    ToolReference,
    ToolSearchRequest,
    ToolSearchResponse,
    as_response,
    find_checked,
)

log = get_logger(__name__)

# A tool that an index does not return is scored like the last one that it does. In a large catalog
# many tools have nearly the best score, so more results are needed to include a bad match.
_DEPTH = 50  # minimum number of results of each index, ...
_PER_RESULT = 100  # ... at least one for each of so many tools, ...
_MOST_RESULTS = 200  # ... up to this number


class HybridToolIndex(ToolIndex):
    """Adds the scores of several indexes, each relative to its best result.

    An index whose provider fails is left out of that search, so that tools are still found by
    keywords while an embedding service is down.

    Args:
        *indexes: The indexes, such as a `KeywordToolIndex` and a `VectorToolIndex`.
        weights: The weight of each; None for equal weights, the best for keywords and MiniLM.
        max_results: The number of results of a search without a limit.

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
        """Set the tools of a session in every index.

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
        """Search in every index and add the scores.

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
                response = await find_checked(index, deeper, runtime)
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
        """Remove the tools of a session from every index, even if one fails.

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
    """Add the scores of one index; tools left out of a truncated result score like its last one.

    This minimum is the same for all tools that the result leaves out. It is subtracted from the
    scores of the others instead of being added to each of them.
    """
    found = response.tool_references
    top = max((reference.relevance_score or 0.0 for reference in found), default=0.0)
    if top > 0:
        shares = [(reference.relevance_score or 0.0) / top for reference in found]
    else:
        shares = [1 / place for place in range(1, len(found) + 1)]
    truncated = response.total_matches > len(found)
    floor = min(shares, default=0.0) if truncated else 0.0
    for reference, share in zip(found, shares, strict=True):
        scores[reference.tool_name] = scores.get(reference.tool_name, 0.0) + weight * (
            share - floor
        )
