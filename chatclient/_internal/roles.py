"""Roles of objects in this library and their places, for errors of misplaced objects.

Most contracts are callables: an advisor, an interceptor and a retriever are all called with two
arguments. They differ in the annotation of the first one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from inspect import getattr_static
from types import FunctionType
from typing import Any


@dataclass(frozen=True, slots=True)
class Role:
    """The role of an object.

    Attributes:
        name: What it is, such as "an advisor".
        place: Where it belongs.
        takes: The names of the arguments that it is called with, if it is called.
    """

    name: str
    place: str
    takes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"it is {self.name}, which goes into {self.place}"


ADVISOR = ("request", "call_next")
"""The arguments that an advisor is called with."""

_STEP = "RetrievalAugmentationAdvisor(retriever)"
_STORE = "QuestionAnswerAdvisor(store) or VectorStoreDocumentRetriever(store)"

# By the type of the first argument. A last argument named runtime must be annotated, too.
_CALLED: Mapping[str, tuple[Role, ...]] = {
    "ChatClientRequest": (
        Role(
            "an advisor",
            ".advisors(...) of a request, .default_advisors(...) of a builder",
            ADVISOR,
        ),
        Role(
            "a function of a request, such as a guardrail",
            "InputGuardrailAdvisor(...)",
            ("request",),
        ),
    ),
    "ChatResponse": (
        Role(
            "a function of an answer, such as a guardrail",
            "OutputGuardrailAdvisor(...)",
            ("response",),
        ),
        Role("a guardrail of answers", "OutputGuardrailAdvisor(...)", ("response", "request")),
    ),
    "Query": (
        Role("a retriever or another step of retrieval", _STEP, ("query", "runtime")),
        Role(
            "a post-processor of documents",
            "RetrievalAugmentationAdvisor(retriever, post_processors=[...])",
            ("query", "documents", "runtime"),
        ),
    ),
    "SystemRequest": (Role("a system text", ".system(function)", ("system_request",)),),
    "ToolFailure": (
        Role(
            "a policy for failures of tools",
            "ToolCallingManager(exception_processor=policy)",
            ("failure",),
        ),
    ),
    "ToolInvocation": (
        Role(
            "an interceptor of tool calls",
            "ToolCallingManager(interceptors=[...])",
            ("invocation", "call_next"),
        ),
        Role("a condition of approvals", "ToolApproval(needed=function)", ("invocation",)),
    ),
}

# By the name of a class of this library, or of a base class.
_CLASSES: Mapping[str, Role] = {
    "ChatClient": Role("a client", ".tools(client.as_tool(name, description)), or as client.model"),
    "ChatMemory": Role("a memory", "MessageChatMemoryAdvisor(memory)"),
    "ChatMemoryRepository": Role("a store of messages", "MessageWindowChatMemory(repository)"),
    "ChatModel": Role("a chat model", "ChatClient.create(model)"),
    "ChatOptions": Role("a set of options", ".options(...) of a request, .default_options(...)"),
    "ConcatenationJoiner": Role(
        "a joiner", "RetrievalAugmentationAdvisor(retriever, joiner=joiner)", ("results",)
    ),
    "ContextualQueryAugmenter": Role(
        "an augmenter",
        "RetrievalAugmentationAdvisor(retriever, augmenter=augmenter)",
        ("query", "documents"),
    ),
    "EmbeddingModel": Role(
        "an embedding model", "a vector store, such as InMemoryVectorStore(model)"
    ),
    "McpServer": Role("an MCP server", "McpToolCallbackProvider(...)"),
    "PlaceholderRenderer": Role(
        "a template renderer", ".template_renderer(...) of a request", ("template", "values")
    ),
    "ReciprocalRankJoiner": Role(
        "a joiner", "RetrievalAugmentationAdvisor(first, second, joiner=joiner)", ("results",)
    ),
    "RerankModel": Role("a reranking model", "DocumentReranker(model)"),
    "SessionRepository": Role("a store of sessions", "SessionService(repository)"),
    "SessionService": Role("a service of sessions", "SessionMemoryAdvisor(service)"),
    "ToolCallingManager": Role("a manager", ".tool_calling_manager(manager) of a builder"),
    "ToolIndex": Role("an index of tools", "ToolSearchToolCallingAdvisor(index)"),
    "ToolLimits": Role("a limit of tools", "ToolCallingManager(limits=limits)"),
    "VectorStore": Role("a vector store", _STORE, ("documents",)),
}

_TOOL = Role("a tool", ".tools(...) of a request, .default_tools(...) of a builder")
_PROVIDER = Role(
    "a provider of tools", ".tools(...) of a request, .default_tools(...) of a builder"
)


def role_of(given: object) -> Role | None:
    """Return the role of *given*, if its type or the type of its first argument shows one."""
    kind: Any = type(given)
    for each in kind.__mro__:
        if each.__name__ in _CLASSES and _is_ours(each):
            return _CLASSES[each.__name__]
    if isinstance(given, type):
        return None
    if isinstance(given, FunctionType):
        return _called_role(given, bound=False)
    # Without calling code of the object: mocks and proxies have every attribute.
    if getattr_static(given, "tool_callbacks", None) is not None:
        return _PROVIDER
    of_tools = (getattr_static(given, name, None) for name in ("definition", "metadata", "invoke"))
    if None not in of_tools:
        return _TOOL
    if not callable(given):
        return None
    function: Any = getattr(given, "__func__", given)
    function = function if isinstance(function, FunctionType) else kind.__call__
    return _called_role(function, bound=function is not given)


def _called_role(function: Any, *, bound: bool) -> Role | None:
    if not isinstance(function, FunctionType):
        return None
    code = function.__code__
    names = code.co_varnames[bound : code.co_argcount - len(function.__defaults__ or ())]
    if not names:
        return None
    try:
        known = _CALLED.get(_type_name(function, names[0]), ())
        last = _type_name(function, names[-1]) if known else ""
    except NameError:  # a type that is imported for type checkers only, since Python 3.14
        return None
    for role in known:
        fits = len(role.takes) == len(names)
        if fits and (role.takes[-1] != "runtime" or last == "Runtime"):
            return role
    return None


def _type_name(function: FunctionType, argument: str) -> str:
    """Return the name of the argument's type if it is a type of this library, else an empty one."""
    kind: Any = function.__annotations__.get(argument)
    if isinstance(kind, str):  # an alias or a type that is not imported stays unknown
        kind = function.__globals__.get(kind)
    return kind.__name__ if isinstance(kind, type) and _is_ours(kind) else ""


def _is_ours(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "chatclient"
