"""Tool search: indexes in which a model finds the few tools it needs among thousands."""

from chatclient.tools.search.hybrid import HybridToolIndex
from chatclient.tools.search.index import (
    DEFAULT_MAX_RESULTS,
    ToolIndex,
    ToolReference,
    ToolSearchRequest,
    ToolSearchResponse,
)
from chatclient.tools.search.keyword import KeywordToolIndex
from chatclient.tools.search.regex import RegexToolIndex
from chatclient.tools.search.vector import VectorToolIndex

__all__ = [
    "DEFAULT_MAX_RESULTS",
    "HybridToolIndex",
    "KeywordToolIndex",
    "RegexToolIndex",
    "ToolIndex",
    "ToolReference",
    "ToolSearchRequest",
    "ToolSearchResponse",
    "VectorToolIndex",
]
