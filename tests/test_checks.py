"""What is wrong in itself is told where it is made, and never means something else."""

from collections.abc import Callable
from typing import Any

import pytest
from bag_of_words import BagOfWords

from chatclient import ChatClient, ChatOptions
from chatclient.advisors.context_window import ContextWindowAdvisor
from chatclient.advisors.guardrails import (
    GuardrailResult,
    InputGuardrailAdvisor,
    OutputGuardrailAdvisor,
    refuse_prompt_injection,
)
from chatclient.advisors.rate_limit import RateLimitAdvisor
from chatclient.advisors.retrieval import RetrievalAugmentationAdvisor
from chatclient.advisors.safe_guard import SafeGuardAdvisor
from chatclient.advisors.simple_logger import SimpleLoggerAdvisor
from chatclient.errors import UsageError
from chatclient.messages import AssistantMessage, ToolCall
from chatclient.providers.anthropic import AnthropicChatOptions
from chatclient.providers.fallback import FallbackChatModel
from chatclient.rag import (
    DocumentLimit,
    LanguageModelQueryRouter,
    Query,
    VectorStoreDocumentRetriever,
)
from chatclient.runtime import Runtime
from chatclient.structured import StructuredOutput, TypeOutputConverter
from chatclient.testing import ScriptedModel
from chatclient.tools import Decision, PendingTurn, ToolFailurePolicy, ToolLimits, tool
from chatclient.tools.approval import decisions_for
from chatclient.vector_store import Document, InMemoryVectorStore, SimilaritySearch

TURN = PendingTurn((), AssistantMessage(), (), (ToolCall("1", "pay", "{}"),))

SLIPS: dict[str, tuple[Callable[[Any], object], object, str]] = {
    "effect": (lambda it: tool(effect=it), "writes", "'read', 'idempotent' or 'write'"),
    "effect's case": (lambda it: tool(effect=it), "READ", "not 'READ'"),
    "return_direct": (lambda it: tool(return_direct=it), "iflast", "True, False or 'if_last'"),
    "return_direct as a number": (lambda it: tool(return_direct=it), 1, "not 1"),
    "on_exceeded": (lambda it: ToolLimits(on_exceeded=it), "throw", "on_exceeded is 'partial', "),
    "kind of failure": (
        lambda it: ToolFailurePolicy(reactions={it: "raise"}),
        "exceptions",
        "a kind of failure is 'unknown_tool', ",
    ),
    "reaction": (
        lambda it: ToolFailurePolicy(reactions={"exception": it}),
        "RAISE",
        "the reaction to 'exception' is 'tell' or 'raise', not 'RAISE'",
    ),
    "reaction to a tool": (
        lambda it: ToolFailurePolicy(tools={"pay": it}),
        "rase",
        "the reaction to failures of 'pay' is 'tell' or 'raise', not 'rase'",
    ),
    "exception_text": (
        lambda it: ToolFailurePolicy(exception_text=it),
        "none",
        "'message', 'class' or 'nothing', not 'none'",
    ),
    "duplicate_tools": (
        lambda it: ChatClient.builder(ScriptedModel("x")).duplicate_tools(it),
        "Error",
        "duplicate_tools is 'error', 'first' or 'last', not 'Error'",
    ),
    "decision": (lambda it: decisions_for(TURN, it), "yes", "'approve' or 'deny', not 'yes'"),
    "approved": (Decision, "no", "approved is True or False, not 'no'"),
    "changed arguments": (
        lambda it: Decision(approved=True, arguments=it),
        {"amount": 3},
        "a decision's arguments are JSON as text",
    ),
    "context window": (lambda it: ContextWindowAdvisor(9, on_exceeded=it), "cut", "'trim' or"),
    "rate limit": (lambda it: RateLimitAdvisor(requests=1, on_limit=it), "fail", "'wait' or"),
    "level": (lambda it: SimpleLoggerAdvisor(level=it), "INFO", "'debug' or 'info', not 'INFO'"),
    "native": (
        lambda it: StructuredOutput(TypeOutputConverter(int), native=it),
        "json",
        "True, False, None, 'schema' or 'tool', not 'json'",
    ),
    "guardrail's outcome": (GuardrailResult, "failed", "'success', 'failure', 'fatal', "),
    "cache": (lambda it: AnthropicChatOptions(cache=it), "all", "'conversation', not 'all'"),
}


@pytest.mark.parametrize(("make", "given", "told"), SLIPS.values(), ids=SLIPS)
def test_a_slip_is_told(make: Callable[[Any], object], given: object, told: str) -> None:
    """With what would have been right, where it was made."""
    with pytest.raises(UsageError) as caught:
        make(given)
    assert told in str(caught.value)


STORE = InMemoryVectorStore(BagOfWords())


async def found(query: Query, runtime: Runtime) -> list[Document]:
    return []


MISUSES: dict[str, tuple[Callable[[], object], str]] = {
    "no guardrails": (InputGuardrailAdvisor, "give at least one"),
    "no output guardrails": (OutputGuardrailAdvisor, "give at least one"),
    "guardrails in a list": (
        lambda: InputGuardrailAdvisor([refuse_prompt_injection]),  # type: ignore[arg-type]
        "give several one by one",
    ),
    "retries of a guardrail": (
        lambda: OutputGuardrailAdvisor(lambda answer: None, max_retries=-1),
        "max_retries is at least 0, not -1",
    ),
    "a class as a guardrail": (
        lambda: InputGuardrailAdvisor(Checked),  # type: ignore[arg-type]
        "not the class Checked; make one: Checked(...)",
    ),
    "nothing forbidden": (lambda: SafeGuardAdvisor([]), "give at least one word"),
    "retrievers in a list": (
        lambda: RetrievalAugmentationAdvisor([found]),  # type: ignore[arg-type]
        "pass several one by one",
    ),
    "one transformer": (
        lambda: RetrievalAugmentationAdvisor(found, query_transformers=found),  # type: ignore[arg-type]
        "put a single one into a list",
    ),
    "a class as a step": (
        lambda: RetrievalAugmentationAdvisor(found, post_processors=[DocumentLimit]),  # type: ignore[list-item]
        "make one: DocumentLimit(...)",
    ),
    "a number as a step": (
        lambda: RetrievalAugmentationAdvisor(found, augmenter=5),  # type: ignore[arg-type]
        "a step of retrieval is a function",
    ),
    "a router's list": (
        lambda: LanguageModelQueryRouter(ScriptedModel(), [found]),  # type: ignore[arg-type]
        "say what is to be found in each",
    ),
    "a store that is none": (
        lambda: VectorStoreDocumentRetriever(BagOfWords()),  # type: ignore[arg-type]
        "is a VectorStore, not",
    ),
    "a class as an embedding model": (
        lambda: InMemoryVectorStore(BagOfWords),  # type: ignore[arg-type]
        "make one: BagOfWords(...)",
    ),
    "a text added": (lambda: STORE.add("text"), "wrap a text: Document(text)"),  # type: ignore[arg-type]
    "texts added": (lambda: STORE.add(["text"]), "not 'text'"),  # type: ignore[list-item]
    "a document's text": (lambda: Document(5), "a document's text is a str, not 5"),  # type: ignore[arg-type]
    "a document searched for": (
        lambda: STORE.similarity_search(Document("x")),  # type: ignore[arg-type]
        "by its text",
    ),
    "top_k as a text": (lambda: SimilaritySearch("x", "3"), "top_k is a number"),  # type: ignore[arg-type]
    "threshold in percent": (lambda: SimilaritySearch("x", threshold=80), "at most 1.0, not 80"),
    "a filter as a text": (
        lambda: SimilaritySearch("x", where="a == 1"),  # type: ignore[arg-type]
        "a filter is a Mapping, not 'a == 1'",
    ),
    "a second tool of a function": (
        lambda: tool(name="look_up")(tool(name="search")(lambda words: words)),
        "is a tool already",
    ),
    "a tool's name alone": (lambda: tool("weather"), "@tool(name=...)"),  # type: ignore[call-overload]
    "no time for a tool": (lambda: tool(timeout=0), "timeout is a positive number of seconds"),
    "time as a text": (lambda: tool(timeout="5"), "or a timedelta, not '5'"),  # type: ignore[call-overload]
    "names of models to fall back on": (
        lambda: FallbackChatModel("openai:gpt-5", ScriptedModel()),  # type: ignore[arg-type]
        "ChatClient.create('openai:gpt-5').model",
    ),
    "models to fall back on in a list": (
        lambda: FallbackChatModel([ScriptedModel()]),  # type: ignore[arg-type]
        "pass models one by one",
    ),
    "a name of errors": (
        lambda: FallbackChatModel(ScriptedModel(), on="RateLimitedError"),  # type: ignore[arg-type]
        "on is a type of errors, or several of them, not 'RateLimitedError'",
    ),
    "errors of tools": (
        lambda: ToolFailurePolicy(raise_on=[ValueError("x")]),  # type: ignore[list-item]
        "raise_on is a type of errors",
    ),
    "a function as a tool callback": (
        lambda: ChatOptions(tool_callbacks=[found]),  # type: ignore[list-item]
        "functions go into .tools(...)",
    ),
    "one function as tool callbacks": (
        lambda: ChatOptions(tool_callbacks=found),  # type: ignore[arg-type]
        "an object with a method invoke()",
    ),
    "a number as stop texts": (lambda: ChatOptions(stop=5), "stop is an Iterable, not 5"),  # type: ignore[arg-type]
    "a number forbidden": (lambda: SafeGuardAdvisor("a", 5), "not 5"),  # type: ignore[arg-type]
}


class Checked:
    def __call__(self, request: object) -> None: ...


@pytest.mark.parametrize(("make", "told"), MISUSES.values(), ids=MISUSES)
def test_a_misuse_is_told(make: Callable[[], object], told: str) -> None:
    """With what to do instead, before anything is sent."""
    with pytest.raises(UsageError) as caught:
        make()
    assert told in str(caught.value)
