"""Tool search: indexes of tools, and when they forget a session's tools."""

from typing import TYPE_CHECKING

from chatclient._internal.exports import lazy_exports

if TYPE_CHECKING:
    from chatclient.tools.search.hybrid import (
        HybridToolIndex as HybridToolIndex,
    )
    from chatclient.tools.search.index import (
        DEFAULT_MAX_RESULTS as DEFAULT_MAX_RESULTS,
        AlwaysEvictStrategy as AlwaysEvictStrategy,
        CompositeEvictionStrategy as CompositeEvictionStrategy,
        LruEvictionStrategy as LruEvictionStrategy,
        NeverEvictStrategy as NeverEvictStrategy,
        ToolIndex as ToolIndex,
        ToolIndexEvictionStrategy as ToolIndexEvictionStrategy,
        ToolReference as ToolReference,
        ToolSearchRequest as ToolSearchRequest,
        ToolSearchResponse as ToolSearchResponse,
        TtlEvictionStrategy as TtlEvictionStrategy,
    )
    from chatclient.tools.search.keyword import (
        KeywordToolIndex as KeywordToolIndex,
        ProviderToolIndex as ProviderToolIndex,
    )
    from chatclient.tools.search.regex import (
        RegexToolIndex as RegexToolIndex,
    )
    from chatclient.tools.search.vector import (
        VectorToolIndex as VectorToolIndex,
    )
else:  # not seen by type checkers, which would take any name for one that exists
    __getattr__, __dir__ = lazy_exports(__name__)
