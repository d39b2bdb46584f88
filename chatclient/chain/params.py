"""The advisor params that advisors of this library read, and the check that each has a reader."""

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from chatclient._internal.checks import check_choice
from chatclient.chat.tool import CONVERSATION_ID, USER_ID
from chatclient.chat.turn import TURN_KEY
from chatclient.errors import UsageError

FILTER_EXPRESSION = "vector_store_filter_expression"
"""The advisor param with a metadata filter for the retrieval of this request, which replaces that
of advisors and retrievers."""

EVENT_FILTER = "chat_memory_event_filter"
"""The advisor param with an `EventFilter` on top of that of a session memory."""

TOP_K = "chat_memory_vector_store_top_k"
"""The advisor param with the maximum number of entries that a vector store memory recalls."""

CACHE_RESPONSES = "cache_responses"
"""The advisor param that disables response caches for a request if it is False.

An advisor that requests another answer sets it to `REFRESH` in the request's context.
"""

TOOL_SEARCH_ROLES = "tool_search_roles"
"""The advisor param with the user's role or roles, for the tool search."""

NATIVE_STRUCTURED_OUTPUT = "native_structured_output"
"""The advisor param with the default of the parameter `native` of `entity`, a `Native`."""

Native: TypeAlias = bool | Literal["schema", "tool"]
"""Whether the provider enforces the schema (True: in the mode that suits the model best)."""

_CLIENT = frozenset({CONVERSATION_ID, USER_ID, TURN_KEY, NATIVE_STRUCTURED_OUTPUT})

_READERS: Mapping[str, str] = {
    FILTER_EXPRESSION: "QuestionAnswerAdvisor and RetrievalAugmentationAdvisor would, the latter"
    " if each of its retrievers does",
    EVENT_FILTER: "SessionMemoryAdvisor would",
    TOP_K: "VectorStoreChatMemoryAdvisor would",
    CACHE_RESPONSES: "ResponseCacheAdvisor would",
    TOOL_SEARCH_ROLES: "ToolSearchToolCallingAdvisor would",
}


ANY = "*"
"""In the `params` of an advisor: it may read any param but those of the library's advisors."""


def params_of(*readers: object) -> frozenset[str]:
    """Return the names in `params` of all *readers*; who has none may read `ANY`.

    Names in the `ignored_params` of a reader are left out, although others read them: a search that
    ignores the filter of a request would find what the filter excludes.
    """
    read = frozenset(name for each in readers for name in getattr(each, "params", (ANY,)))
    return read.difference(*(getattr(each, "ignored_params", ()) for each in readers))


def params_of_retrievers(*retrievers: object) -> frozenset[str]:
    """Return the names in `params` of *retrievers*; `FILTER_EXPRESSION` only if all have it.

    A retriever without the filter would find documents that the others leave out.
    """
    filtering = all(FILTER_EXPRESSION in params_of(each) for each in retrievers)
    return params_of(*retrievers) - (frozenset() if filtering else {FILTER_EXPRESSION})


def check_native(what: str, given: object) -> None:
    """Check that *given* is a `Native` or None; the error calls it *what*.

    Raises:
        UsageError: It is not.
    """
    check_choice(what, given, True, False, None, "schema", "tool")  # noqa: FBT003 - values


def check_params(params: Mapping[str, Any], readable: frozenset[str]) -> None:
    """Check that an advisor or the client reads each of *params*.

    A param that is not read, such as a filter of documents, would have no effect and no error.

    Args:
        params: The advisor params of a request.
        readable: The params that its advisors read, perhaps with `ANY`.

    Raises:
        UsageError: One of them is not read, or that for native output has an unknown value.
    """
    if NATIVE_STRUCTURED_OUTPUT in params:
        check_native(NATIVE_STRUCTURED_OUTPUT, params[NATIVE_STRUCTURED_OUTPUT])
    unread = params.keys() - _CLIENT - readable
    if ANY in readable:
        unread &= _READERS.keys()
    if not unread:
        return
    name = min(unread)
    if name in _READERS:
        hint = _READERS[name]
    else:
        from difflib import get_close_matches  # noqa: PLC0415 - imported for a message only

        near = get_close_matches(name, {*_CLIENT, *_READERS, *readable}, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "leave it out"
    msg = (
        f"no advisor of this request reads the advisor param {name!r}, or one that searches does"
        " not, so it would not have its effect:"
        f" {hint}; an advisor or a retriever of your own says so with an attribute,"
        f" params = {{{name!r}}}"
    )
    raise UsageError(msg)
