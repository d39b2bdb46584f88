"""A tool index in which the model's provider searches, if it has a tool search."""

from collections.abc import Sequence

from chatclient._internal.checks import check_choice, check_type
from chatclient.chat.server_tools import SearchVariant, ToolSearch
from chatclient.runtime.runtime import Runtime
from chatclient.tools.search.index import (
    ToolIndex,
    ToolReference,
    ToolSearchRequest,
    ToolSearchResponse,
)
from chatclient.tools.search.keyword import KeywordToolIndex


class ProviderToolIndex(ToolIndex):
    """Lets the model's provider search.

    All tools are sent to the provider, marked so that the model sees those that it finds. With
    models without a tool search, and outside of `ToolSearchToolCallingAdvisor`, *fallback* searches
    in this process.

    Args:
        fallback: The index for other models; default: by keywords.
        variant: `bm25` or `regex`, for providers that have both; default: the provider's choice,
            for Anthropic `bm25`. Models without that variant use *fallback*.

    Raises:
        UsageError: *variant* is unknown, or *fallback* is not a `ToolIndex`.
    """

    def __init__(
        self, fallback: ToolIndex | None = None, *, variant: SearchVariant | None = None
    ) -> None:
        if fallback is not None:
            check_type("the fallback of a tool index", fallback, ToolIndex)
        check_choice("variant", variant, "bm25", "regex", None)
        self.fallback = KeywordToolIndex() if fallback is None else fallback
        self.server_tool = ToolSearch(variant=variant)

    async def put(
        self, session_id: str, references: Sequence[ToolReference], runtime: Runtime
    ) -> None:
        """Set the tools of a session in the fallback."""
        await self.fallback.put(session_id, references, runtime)

    async def find(self, request: ToolSearchRequest, runtime: Runtime) -> ToolSearchResponse:
        """Search with the fallback."""
        return await self.fallback.find(request, runtime)

    async def drop(self, session_id: str, runtime: Runtime) -> None:
        """Remove the tools of a session from the fallback."""
        await self.fallback.drop(session_id, runtime)
