"""Invalid values raise where they are passed in."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol

import pytest

from chatclient import (
    ChatClient,
    ChatClientRequest,
    ChatClientResponse,
    ChatOptions,
    ChatResponse,
    Prompt,
    ToolContext,
    tool,
)
from chatclient.advisors.budget import Budget
from chatclient.advisors.context_window import ContextWindowAdvisor
from chatclient.advisors.guardrails.advisors import (
    GuardrailResult,
    InputGuardrailAdvisor,
    OutputGuardrailAdvisor,
    refuse_prompt_injection,
)
from chatclient.advisors.guardrails.safe_guard import SafeGuardAdvisor
from chatclient.advisors.memory.advisors import MessageChatMemoryAdvisor
from chatclient.advisors.memory.session import SessionMemoryAdvisor
from chatclient.advisors.memory.vector_store import VectorStoreChatMemoryAdvisor
from chatclient.advisors.rate_limit import RateLimitAdvisor
from chatclient.advisors.response_cache import InMemoryResponseStore, ResponseCacheAdvisor
from chatclient.advisors.retrieval.advisor import RetrievalAugmentationAdvisor
from chatclient.advisors.simple_logger import SimpleLoggerAdvisor
from chatclient.advisors.structured_output import StructuredOutputValidationAdvisor
from chatclient.advisors.tool_loop.advisor import ToolCallingAdvisor
from chatclient.advisors.tool_search.advisor import ToolSearchToolCallingAdvisor
from chatclient.chat.messages import (
    AssistantMessage,
    Media,
    SystemMessage,
    ToolCall,
    ToolResponse,
    ToolResponseMessage,
    UserMessage,
)
from chatclient.chat.pending_turn import decisions_for
from chatclient.chat.response import Generation, Usage
from chatclient.chat.template import PromptTemplate
from chatclient.errors import RateLimitExceededError, UsageError
from chatclient.memory import (
    EventFilter,
    InMemoryChatMemoryRepository,
    InMemorySessionRepository,
    MessageWindowChatMemory,
    RecursiveSummary,
    SessionChatMemory,
    SessionService,
    SlidingWindow,
    SummarizingChatMemory,
    TokenCountTrigger,
    TokenWindow,
    Window,
)
from chatclient.observability.telemetry import Telemetry
from chatclient.providers.anthropic.model import AnthropicChatOptions
from chatclient.providers.compatible import compatible_model
from chatclient.providers.composite import FallbackChatModel
from chatclient.providers.http.request import Timeouts
from chatclient.providers.local.model import LocalChatModel
from chatclient.providers.openai.chat import OpenAIChatModel
from chatclient.providers.registry import chat_model
from chatclient.retrieval import (
    Document,
    DocumentLimit,
    InMemoryVectorStore,
    LanguageModelQueryRouter,
    MultiQueryExpander,
    Query,
    ReciprocalRankJoiner,
    RewriteQueryTransformer,
    SimilaritySearch,
    VectorStoreDocumentRetriever,
)
from chatclient.runtime.observation import Observation, Operation, Step
from chatclient.runtime.runtime import Runtime
from chatclient.services import ai_service, system_message, user_message
from chatclient.structured import StructuredOutput, TypeOutputConverter
from chatclient.testing import Ask, ScriptedModel, call
from chatclient.tools import (
    DataToolCallback,
    Decision,
    DelegatingToolCallbackResolver,
    ExternalTool,
    PendingTurn,
    StaticToolCallbackResolver,
    ToolApproval,
    ToolCallingManager,
    ToolDefinition,
    ToolFailurePolicy,
    ToolLimits,
    ToolResult,
    augment,
)
from chatclient.tools.search import KeywordToolIndex
from tests.support.bag_of_words import BagOfWords

TURN = PendingTurn((), AssistantMessage(), (), (ToolCall("1", "pay", "{}"),))

SLIPS: dict[str, tuple[Callable[[Any], object], object, str]] = {
    "effect": (lambda it: tool(effect=it), "writes", "'read', 'idempotent' or 'write'"),
    "effect's case": (lambda it: tool(effect=it), "READ", "not 'READ'"),
    "return_direct": (lambda it: tool(return_direct=it), "iflast", "True, False or 'if_last'"),
    "return_direct as a number": (lambda it: tool(return_direct=it), 1, "not 1"),
    "on_exceeded": (
        lambda it: ToolLimits(on_exceeded=it),
        "throw",
        "on_exceeded must be 'partial', ",
    ),
    "kind of failure": (
        lambda it: ToolFailurePolicy(reactions={it: "raise"}),
        "exceptions",
        "a kind of failure must be 'unknown_tool', ",
    ),
    "reaction": (
        lambda it: ToolFailurePolicy(reactions={"exception": it}),
        "RAISE",
        "the reaction to 'exception' must be 'tell', 'raise' or 'raise_unexpected', not 'RAISE'",
    ),
    "reaction to a tool": (
        lambda it: ToolFailurePolicy(tools={"pay": it}),
        "rase",
        "to failures of 'pay' must be 'tell', 'raise' or 'raise_unexpected', not 'rase'",
    ),
    "exception_text": (
        lambda it: ToolFailurePolicy(exception_text=it),
        "none",
        "'message', 'class' or 'nothing', not 'none'",
    ),
    "duplicate_tools": (
        lambda it: ChatClient.builder(ScriptedModel("x")).duplicate_tools(it),
        "Error",
        "duplicate_tools must be 'error', 'first' or 'last', not 'Error'",
    ),
    "decision": (lambda it: decisions_for(TURN, it), "yes", "'approve' or 'deny', not 'yes'"),
    "approved": (Decision, "no", "approved must be True or False, not 'no'"),
    "changed arguments": (
        lambda it: Decision(approved=True, arguments=it),
        {"amount": 3},
        "a decision's arguments must be JSON as text",
    ),
    "a result decided": (
        lambda it: Decision(approved=True, result=it),
        "paid",
        "a decision's result must be a ToolResult, as of Decision.answered, not 'paid'",
    ),
    "context window": (lambda it: ContextWindowAdvisor(9, on_exceeded=it), "cut", "'trim' or"),
    "rate limit": (lambda it: RateLimitAdvisor(requests=1, on_exceeded=it), "fail", "'wait' or"),
    "level": (lambda it: SimpleLoggerAdvisor(level=it), "INFO", "'debug' or 'info', not 'INFO'"),
    "native": (
        lambda it: StructuredOutput(TypeOutputConverter(int), native=it),
        "json",
        "True, False, None, 'schema' or 'tool', not 'json'",
    ),
    "guardrail's outcome": (GuardrailResult, "failed", "'success', 'failure', 'fatal', "),
    "cache": (lambda it: AnthropicChatOptions(cache=it), "all", "'conversation', not 'all'"),
    "model": (lambda it: ChatOptions(model=it), 5, "the name of a model must be a str, not 5"),
    "dialect": (lambda it: OpenAIChatModel(dialect=it), "vllm", "must be a Dialect, not 'vllm'"),
}


@pytest.mark.parametrize(("make", "given", "message"), SLIPS.values(), ids=SLIPS)
def test_invalid_argument(make: Callable[[Any], object], given: object, message: str) -> None:
    """The error is raised by the constructor and names a valid value."""
    with pytest.raises(UsageError) as caught:
        make(given)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "provider", ["openai", "openai-responses", "anthropic", "gemini", "ollama"]
)
@pytest.mark.parametrize(
    ("name", "message"), [(None, "must be a str, not None"), (" ", "not be blank")]
)
def test_model_name_is_required(provider: str, name: Any, message: str) -> None:
    """A missing environment variable as model name raises."""
    kind = type(chat_model(f"{provider}:m", api_key="k"))
    with pytest.raises(UsageError, match=message):
        kind(name, api_key="k")  # type: ignore[call-arg]


MODEL = ScriptedModel()
STORE = InMemoryVectorStore(BagOfWords())


async def found(query: Query, runtime: Runtime) -> list[Document]:
    return []


class Speaker(Protocol):
    def say(self, text: str) -> str: ...


MISUSES: dict[str, tuple[Callable[[], object], str]] = {
    "no guardrails": (InputGuardrailAdvisor, "give at least one"),
    "no output guardrails": (OutputGuardrailAdvisor, "give at least one"),
    "guardrails in a list": (
        lambda: InputGuardrailAdvisor([refuse_prompt_injection]),  # type: ignore[arg-type]
        "give several one by one",
    ),
    "retries of a guardrail": (
        lambda: OutputGuardrailAdvisor(lambda answer: None, max_retries=-1),
        "max_retries must be at least 0, not -1",
    ),
    "a text as a rate": (
        lambda: RateLimitAdvisor(requests="60"),  # type: ignore[arg-type]
        "requests must be a number, not '60'",
    ),
    "a text as a period": (
        lambda: RateLimitAdvisor(requests=60, period="60"),  # type: ignore[arg-type]
        "period must be a number of seconds or a timedelta, not '60'",
    ),
    "a text as a wait": (
        lambda: RateLimitAdvisor(requests=60, max_wait="5"),  # type: ignore[arg-type]
        "max_wait must be a number of seconds or a timedelta, not '5'",
    ),
    "a text as a budget": (
        lambda: Budget(total_tokens="5"),  # type: ignore[arg-type]
        "total_tokens must be an int or a float, not '5'",
    ),
    "a number as a price": (
        lambda: Budget(cost=1, price=0.01),  # type: ignore[arg-type]
        "a price must be a function",
    ),
    "a text as a window": (
        lambda: ContextWindowAdvisor("128k"),  # type: ignore[arg-type]
        "max_tokens must be a number, not '128k'",
    ),
    "a text as attempts": (
        lambda: StructuredOutputValidationAdvisor(max_attempts="3"),  # type: ignore[arg-type]
        "max_attempts must be an int, not '3'",
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
        "an augmenter must be a function",
    ),
    "a retriever of one parameter": (
        lambda: RetrievalAugmentationAdvisor(lambda query: []),  # type: ignore[arg-type,misc]
        "a retriever is called with (query, runtime), which",
    ),
    "a joiner of two parameters": (
        lambda: RetrievalAugmentationAdvisor(found, joiner=lambda a, b: []),  # type: ignore[arg-type,misc]
        "a joiner is called with (results), which",
    ),
    "a router's list": (
        lambda: LanguageModelQueryRouter(ScriptedModel(), [found]),  # type: ignore[arg-type]
        "describe the content of each",
    ),
    "a store that is none": (
        lambda: VectorStoreDocumentRetriever(BagOfWords()),  # type: ignore[arg-type]
        "must be a VectorStore, not",
    ),
    "a class as an embedding model": (
        lambda: InMemoryVectorStore(BagOfWords),  # type: ignore[arg-type]
        "make one: BagOfWords(...)",
    ),
    "a text added": (lambda: STORE.add("text"), "wrap a text: Document(text)"),  # type: ignore[arg-type]
    "texts added": (lambda: STORE.add(["text"]), "not 'text'"),  # type: ignore[list-item]
    "a document's text": (lambda: Document(5), "a document's text must be a str, not 5"),  # type: ignore[arg-type]
    "a number as a document's id": (
        lambda: Document("x", id=5),  # type: ignore[arg-type]
        "a document's id must be a str, not 5",
    ),
    "a document's number": (lambda: STORE.delete(5), "put them into a list"),  # type: ignore[arg-type]
    "numbers of documents": (lambda: STORE.delete([5]), "a name must be a str, not 5"),  # type: ignore[list-item]
    "no time for a retriever": (
        lambda: RetrievalAugmentationAdvisor(found, timeout=0),
        "timeout must be a positive number of seconds, not 0",
    ),
    "no retrieval at once": (
        lambda: RetrievalAugmentationAdvisor(found, max_concurrency=0),
        "max_concurrency must be at least 1, not 0",
    ),
    "no retrieval beside another": (
        lambda: RetrievalAugmentationAdvisor(found, blocking_concurrency="2"),  # type: ignore[arg-type]
        "blocking_concurrency must be a number, not '2'",
    ),
    "documents in words": (
        lambda: DocumentLimit(max_documents="3"),  # type: ignore[arg-type]
        "max_documents must be a number, not '3'",
    ),
    "less than no text": (
        lambda: DocumentLimit(max_characters=-1),
        "max_characters must be at least 0, not -1",
    ),
    "a rank before the first": (
        lambda: ReciprocalRankJoiner(k=-1),
        "k must be at least 0, not -1",
    ),
    "half another way to ask": (
        lambda: MultiQueryExpander(ScriptedModel(), number=1.5),  # type: ignore[arg-type]
        "number must be an int, not 1.5",
    ),
    "a query that is none": (lambda: Query(5), "a query must be a str, not 5"),  # type: ignore[arg-type]
    "a size in words": (
        lambda: ContextWindowAdvisor("8000"),  # type: ignore[arg-type]
        "max_tokens must be a number, not '8000'",
    ),
    "less than nothing kept free": (
        lambda: ContextWindowAdvisor(8000, reserve=-1),
        "reserve must be at least 0, not -1",
    ),
    "a size as what counts": (
        lambda: ContextWindowAdvisor(8000, estimator=4),  # type: ignore[arg-type]
        "a token estimator must be a function",
    ),
    "a window that counts nothing": (
        lambda: Window.tokens(100, lambda: 1),  # type: ignore[arg-type,misc]
        "a token estimator is called with (message), which",
    ),
    "half a window": (
        lambda: Window.messages(5) & 3,  # type: ignore[operator]
        "a window must be a Window, not 3; write Window.messages(20)",
    ),
    "a name as what summarises sessions": (
        lambda: RecursiveSummary("openai:gpt-5"),  # type: ignore[arg-type]
        "the model for summaries must be a ChatModel, not 'openai:gpt-5'",
    ),
    "a summary without instructions": (
        lambda: RecursiveSummary(ScriptedModel(), instructions=" "),
        "instructions must not be blank",
    ),
    "options of a summary as data": (
        lambda: SummarizingChatMemory(ScriptedModel(), options={"temperature": 0}),  # type: ignore[arg-type]
        "options must be a ChatOptions",
    ),
    "a number of events in words": (
        lambda: SlidingWindow("5"),  # type: ignore[arg-type]
        "a window's number of events must be an int, not '5'",
    ),
    "tokens that nobody counts": (
        lambda: TokenWindow(5, None),  # type: ignore[arg-type]
        "a token estimator must be a function",
    ),
    "a threshold that nobody reaches": (
        lambda: TokenCountTrigger(5, estimator=5),  # type: ignore[arg-type]
        "a token estimator must be a function",
    ),
    "the last in words": (
        lambda: EventFilter(last="5"),  # type: ignore[arg-type]
        "last must be an int, not '5'",
    ),
    "a day in words": (
        lambda: EventFilter(since="2026-11-25"),  # type: ignore[arg-type]
        "since must be a datetime, not '2026-11-25'",
    ),
    "a document searched for": (
        lambda: STORE.similarity_search(Document("x")),  # type: ignore[arg-type]
        "by its text",
    ),
    "top_k as a text": (lambda: SimilaritySearch("x", "3"), "top_k must be a number"),  # type: ignore[arg-type]
    "threshold in percent": (lambda: SimilaritySearch("x", threshold=80), "at most 1.0, not 80"),
    "a filter as a text": (
        lambda: SimilaritySearch("x", where="a == 1"),  # type: ignore[arg-type]
        "a filter must be a Mapping, not 'a == 1'",
    ),
    "a second tool of a function": (
        lambda: tool(name="look_up")(tool(name="search")(lambda words: words)),
        "is a tool already",
    ),
    "a tool's name alone": (lambda: tool("weather"), "@tool(name=...)"),  # type: ignore[call-overload]
    "no time for a tool": (lambda: tool(timeout=0), "timeout must be a positive number of seconds"),
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
        "on must be an exception type, or several of them, not 'RateLimitedError'",
    ),
    "errors of tools": (
        lambda: ToolFailurePolicy(raise_on=[ValueError("x")]),  # type: ignore[list-item]
        "raise_on must be an exception type",
    ),
    "a number of failures": (
        lambda: ToolFailurePolicy(max_failures="3"),  # type: ignore[arg-type]
        "max_failures must be a number, not '3'",
    ),
    "approval always needed": (
        lambda: ToolApproval(needed=True),  # type: ignore[arg-type]
        "needed must be a function or another callable object",
    ),
    "approval that looks at nothing": (
        lambda: ToolApproval(needed=lambda: True),  # type: ignore[arg-type,misc]
        "needed is called with (invocation), which",
    ),
    "an answer to nothing": (
        lambda: ToolApproval(ask=lambda: True),  # type: ignore[arg-type,misc]
        "ask is called with (invocation), which",
    ),
    "an interceptor that lets nothing through": (
        lambda: ToolCallingManager(interceptors=[MODEL.call]),  # type: ignore[list-item]
        "an interceptor is called with (invocation, call_next), which",
    ),
    "a processor of nothing": (
        lambda: ToolCallingManager(exception_processor=lambda: "x"),  # type: ignore[arg-type]
        "exception_processor is called with (failure), which",
    ),
    "a consumer of nothing": (
        lambda: augment(
            ExternalTool(ToolDefinition("find")),
            arguments=Query,
            consumer=lambda: None,  # type: ignore[arg-type,misc]
        ),
        "the consumer of additional arguments is called with (event), which",
    ),
    "a decision as what asks": (
        lambda: ToolApproval(ask="approve"),  # type: ignore[arg-type]
        "ask must be a function",
    ),
    "resolvers in a list": (
        lambda: DelegatingToolCallbackResolver([StaticToolCallbackResolver()]),  # type: ignore[arg-type]
        "pass several one by one",
    ),
    "a function as a tool callback": (
        lambda: ChatOptions(tool_callbacks=[found]),  # type: ignore[list-item]
        "functions go into .tools(...)",
    ),
    "arguments of a call as data": (
        lambda: ToolCall("1", "find", {"city": "Rome"}),  # type: ignore[arg-type]
        "the arguments of a tool call must be a str, not {'city': 'Rome'}; write json.dumps(...)",
    ),
    "an answer of a tool as data": (
        lambda: ToolResponse("1", "find", {"city": "Rome"}),  # type: ignore[arg-type]
        "the data of a tool response must be a str, not {'city': 'Rome'}; write json.dumps(...)",
    ),
    "a result as data": (
        lambda: ToolResult({"city": "Rome"}),  # type: ignore[arg-type]
        "the text of a ToolResult must be a str, not {'city': 'Rome'}; make it one, such as",
    ),
    "a definition as a tool callback": (
        lambda: ChatOptions(tool_callbacks=[ToolDefinition("find")]),  # type: ignore[list-item]
        "a definition alone is offered as ExternalTool(definition)",
    ),
    "a mapping as a definition": (
        lambda: DataToolCallback({"name": "find"}, print),  # type: ignore[arg-type]
        "must be a ToolDefinition, not {'name': 'find'}; make one: ToolDefinition(name, ",
    ),
    "a text as a definition": (
        lambda: ExternalTool("find"),  # type: ignore[arg-type]
        "must be a ToolDefinition, not 'find'",
    ),
    "data without what runs it": (
        lambda: DataToolCallback(ToolDefinition("find"), None),  # type: ignore[arg-type]
        "the executor of tool 'find' must be a function",
    ),
    "what runs data and takes its arguments": (
        lambda: DataToolCallback(ToolDefinition("find"), lambda title: title),  # type: ignore[arg-type,misc]
        "the executor of tool 'find' is called with (call, context), which",
    ),
    "one function as tool callbacks": (
        lambda: ChatOptions(tool_callbacks=found),  # type: ignore[arg-type]
        "a tool callback must be a ToolCallback",
    ),
    "a number as stop texts": (lambda: ChatOptions(stop=5), "stop must be an Iterable, not 5"),  # type: ignore[arg-type]
    "a mapping as a message": (
        lambda: UserMessage({"role": "user", "content": "hi"}),
        "{'role': 'user', 'content': 'hi'} is not a part of a message",
    ),
    "a number among parts": (
        lambda: UserMessage(["a", 5]),  # type: ignore[list-item]
        "5 is not a part of a message: no text and no media",
    ),
    "a number as a message": (lambda: UserMessage(5), "5 is not a part of a message"),  # type: ignore[arg-type]
    "nothing as a system message": (
        lambda: SystemMessage(None),  # type: ignore[arg-type]
        "the content of a system message must be a str, not None",
    ),
    "a tuple as a tool's answer": (
        lambda: ToolResponseMessage([("1", "a", "x")]),  # type: ignore[list-item]
        "a tool's answer must be a ToolResponse, not ('1', 'a', 'x')",
    ),
    "a text among messages": (
        lambda: Prompt("x").append("hi"),  # type: ignore[arg-type]
        "expected messages, got 'hi'; wrap text in UserMessage(...)",
    ),
    "a mapping as options": (
        lambda: Prompt("x", {"temperature": 1}),  # type: ignore[arg-type]
        "write ChatOptions(temperature=0.2)",
    ),
    "a name as the model of summaries": (
        lambda: SummarizingChatMemory("local"),  # type: ignore[arg-type]
        "the model for summaries must be a ChatModel, not 'local'",
    ),
    "a number as a window": (
        lambda: SummarizingChatMemory(MODEL, window=20),  # type: ignore[arg-type]
        "write Window.messages(20)",
    ),
    "a text in a window": (
        lambda: MessageWindowChatMemory(max_messages="20"),  # type: ignore[arg-type]
        "the number of messages in a window must be an int, not '20'",
    ),
    "a memory over a memory": (
        lambda: MessageWindowChatMemory(MessageWindowChatMemory()),  # type: ignore[arg-type]
        "conversations are kept in a ChatMemoryRepository",
    ),
    "a repository as a memory": (
        lambda: MessageChatMemoryAdvisor(InMemoryChatMemoryRepository()),  # type: ignore[arg-type]
        "put a repository into one: MessageWindowChatMemory(repository)",
    ),
    "a class as a memory": (
        lambda: MessageChatMemoryAdvisor(MessageWindowChatMemory),  # type: ignore[arg-type]
        "make one: MessageWindowChatMemory(...)",
    ),
    "a memory as a session": (
        lambda: SessionMemoryAdvisor(MessageWindowChatMemory()),  # type: ignore[arg-type]
        "SessionService(repository)",
    ),
    "a repository as sessions": (
        lambda: SessionChatMemory(InMemorySessionRepository()),  # type: ignore[arg-type]
        "put a repository into one: SessionService(repository)",
    ),
    "a memory as a vector store": (
        lambda: VectorStoreChatMemoryAdvisor(MessageWindowChatMemory()),  # type: ignore[arg-type]
        "vector_store must be a VectorStore, not MessageWindowChatMemory(",
    ),
    "a mapping of responses": (
        lambda: ResponseCacheAdvisor({}),  # type: ignore[arg-type]
        "a response store must be an object with a method put(), not {}",
    ),
    "a class of sessions": (
        lambda: SessionService(InMemorySessionRepository),  # type: ignore[arg-type]
        "make one: InMemorySessionRepository(...)",
    ),
    "no time to live": (
        lambda: SessionService(InMemorySessionRepository(), time_to_live=0),
        "time_to_live must be a positive number of seconds",
    ),
    "an endless time to live": (
        lambda: SessionService(InMemorySessionRepository(), time_to_live=float("inf")),
        "time_to_live must be at most 999999999 days, or None for ever, not inf",
    ),
    "an observer's class": (
        lambda: ChatClient.builder(MODEL).observers(Telemetry),  # type: ignore[arg-type]
        "make one: Telemetry(...)",
    ),
    "a function as an observer": (
        lambda: ChatClient.builder(MODEL).observers([print]),  # type: ignore[list-item]
        "an observer must be an object with a method begin()",
    ),
    "a model's class": (
        lambda: ChatClient.create(ScriptedModel),  # type: ignore[arg-type]
        "a model must be a ChatModel, not the class ScriptedModel; make one",
    ),
    "a client's client": (
        lambda: ChatClient.create(ChatClient.create(MODEL)),  # type: ignore[arg-type]
        "ChatClient.create('openai:gpt-5-mini')",
    ),
    "a model's class in place of another model": (
        lambda: ChatClient.builder(MODEL).model(ScriptedModel),  # type: ignore[arg-type]
        "a model must be a ChatModel, not the class ScriptedModel; make one",
    ),
    "tool calling as a text": (
        lambda: ChatClient.builder(MODEL).tool_calling("false"),  # type: ignore[arg-type]
        "tool_calling must be a bool, not 'false'",
    ),
    "tool calling of a request as a text": (
        lambda: ChatClient.create(MODEL).prompt("x").tool_calling("false"),  # type: ignore[arg-type]
        "tool_calling must be a bool, not 'false'",
    ),
    "no model": (lambda: ChatClient.create(None), "a ChatModel, not None"),  # type: ignore[arg-type]
    "a manager's class": (
        lambda: ChatClient.builder(MODEL).tool_calling_manager(ToolCallingManager),  # type: ignore[arg-type]
        "make one: ToolCallingManager(...)",
    ),
    "a mapping of tools": (
        lambda: ChatClient.builder(MODEL).tool_callback_resolver({}),  # type: ignore[arg-type]
        "put tools into a StaticToolCallbackResolver(...)",
    ),
    "a name of a renderer": (
        lambda: ChatClient.builder(MODEL).default_template_renderer("jinja"),  # type: ignore[arg-type]
        "a template renderer must be a function",
    ),
    "a class of limits": (
        lambda: ToolCallingManager(limits=ToolLimits),  # type: ignore[arg-type]
        "make one: ToolLimits(...)",
    ),
    "tools in place of what knows them": (
        lambda: ToolCallingManager(resolver=[found]),  # type: ignore[arg-type]
        "resolver must be an object with a method resolve(), not [",
    ),
    "the name of an exception": (
        lambda: ToolCallingManager(exception_processor="ValueError"),  # type: ignore[arg-type]
        "exception_processor must be a function",
    ),
    "one interceptor": (
        lambda: ToolCallingManager(interceptors=found),  # type: ignore[arg-type]
        "put a single one into a list",
    ),
    "nothing at once": (lambda: ToolCallingManager(max_concurrency=0), "must be at least 1, not 0"),
    "nothing at once in blocking calls": (
        lambda: ToolCallingManager(blocking_concurrency=0),
        "blocking_concurrency must be at least 1, not 0",
    ),
    "an approval as a manager": (
        lambda: ToolCallingAdvisor(ToolApproval()),  # type: ignore[arg-type]
        "interceptor of tool calls, which goes into ToolCallingManager(interceptors=[...])",
    ),
    "limits as a manager": (
        lambda: ToolCallingAdvisor(ToolLimits()),  # type: ignore[arg-type]
        "a tool calling manager must be a ToolCallingManager",
    ),
    "a negative timeout": (
        lambda: OpenAIChatModel(api_key="x", timeout=-5),
        "timeout must be a positive number of seconds, not -5",
    ),
    "a part of a timeout": (lambda: Timeouts(read=0), "read must be a positive number of seconds"),
    "the order of nothing": (
        lambda: ToolCallingAdvisor(order=None),  # type: ignore[arg-type]
        "the order of an advisor must be an int, not None",
    ),
    "a number that decides": (
        lambda: ToolCallingAdvisor(eligibility=5),  # type: ignore[arg-type]
        "eligibility must be a function",
    ),
    "as many results as a text": (
        lambda: ToolSearchToolCallingAdvisor(max_results="5"),  # type: ignore[arg-type]
        "max_results must be a number",
    ),
    "no suffix": (
        lambda: ToolSearchToolCallingAdvisor(system_message_suffix=5),  # type: ignore[arg-type]
        "system_message_suffix must be a str",
    ),
    "no instructions": (
        lambda: SummarizingChatMemory(MODEL, instructions=None),  # type: ignore[arg-type]
        "instructions must be a str, not None",
    ),
    "a named model beside settings": (
        lambda: ChatClient.from_settings(model="local"),  # type: ignore[arg-type]
        "set the name of a model in the settings",
    ),
    "a dict of settings": (
        lambda: ChatClient.from_settings({"model": "local"}),  # type: ignore[arg-type]
        "settings must be a ChatClientSettings, not {'model': 'local'}",
    ),
    "no local model": (
        lambda: LocalChatModel(None),  # type: ignore[arg-type]
        "a local model must be a str or a PathLike, not None",
    ),
    "no name of a model": (
        lambda: chat_model(None),  # type: ignore[arg-type]
        "the name of a model must be a str, not None",
    ),
    "no preset": (
        lambda: compatible_model([], "m"),  # type: ignore[arg-type]
        "a preset must be a str, not []",
    ),
    "a text of metadata": (
        lambda: UserMessage("x", metadata="y"),  # type: ignore[arg-type]
        "metadata must be a mapping, such as a dict, not str",
    ),
    "a number of metadata": (
        lambda: Media("image/png", b"x", metadata=5),  # type: ignore[arg-type]
        "metadata must be a mapping, such as a dict, not int",
    ),
    "a list as the context of a request": (
        lambda: ChatClientRequest(Prompt("x"), {"a": 1}).mutate(context=["b"]),  # type: ignore[arg-type]
        "context must be a mapping, such as a dict, not list",
    ),
    "a list as the context of a response": (
        lambda: ChatClientResponse(ChatResponse.of("x"), {"a": 1}).mutate(context=["b"]),  # type: ignore[arg-type]
        "context must be a mapping, such as a dict, not list",
    ),
    "a text as the output of a generation": (
        lambda: Generation("x"),  # type: ignore[arg-type]
        "the output of a generation must be an AssistantMessage, not 'x'; wrap a text: Ass",
    ),
    "a text as a response": (
        lambda: ChatResponse("x"),  # type: ignore[arg-type]
        "a generation must be a Generation, not 'x'; of a text: ChatResponse.of(text)",
    ),
    "one generation as a response": (
        lambda: ChatResponse(Generation(AssistantMessage("x"))),  # type: ignore[arg-type]
        "put a single one into a tuple",
    ),
    "a usage as metadata": (
        lambda: ChatResponse((), Usage(1, 2)),  # type: ignore[arg-type]
        "usage goes into it: ChatResponseMetadata(usage=usage)",
    ),
    "tokens that are not known": (
        lambda: Usage(None, 2),  # type: ignore[arg-type]
        "input_tokens must be an int or a float, not None; write 0 where it is not known",
    ),
    "negative retries": (
        lambda: OpenAIChatModel(api_key="x", max_retries=-1),
        "max_retries must be at least 0, not -1",
    ),
    "a client that is asked for queries": (
        lambda: RewriteQueryTransformer(ChatClient.create(MODEL)),  # type: ignore[arg-type]
        "of a client, pass client.model",
    ),
    "a class of an index": (
        lambda: ToolSearchToolCallingAdvisor(KeywordToolIndex),  # type: ignore[arg-type]
        "make one: KeywordToolIndex(...)",
    ),
    "a class of a store": (
        lambda: ResponseCacheAdvisor(InMemoryResponseStore),  # type: ignore[arg-type]
        "make one: InMemoryResponseStore(...)",
    ),
    "a model as the client of a service": (
        lambda: ai_service(Speaker, MODEL),  # type: ignore[arg-type]
        "the client of a service must be a ChatClient, not ScriptedModel(); wrap a model: ",
    ),
    "a system message without its text": (
        lambda: system_message(Speaker.say),  # type: ignore[arg-type]
        'write @system_message("...")',
    ),
    "a template as a user message": (
        lambda: user_message(PromptTemplate("Hi {name}")),  # type: ignore[arg-type]
        "a user message must be a str or a Path, not PromptTemplate(",
    ),
    "a user message of a whole interface": (
        lambda: user_message("Hi")(Speaker),
        "@user_message is for methods, not for the class Speaker",
    ),
    "a property as a tool": (
        lambda: tool(property(len)),  # type: ignore[call-overload]
        "@tool marks a function, not <property object",
    ),
    "a text as a tool context": (
        lambda: ChatClient.create(MODEL).prompt("x").tool_context("prod"),  # type: ignore[arg-type]
        "a tool context must be a Mapping, not 'prod'; pass a mapping, or values by name",
    ),
    "a text as params": (
        lambda: ChatClient.builder(MODEL).default_system("Hi {name}", params="x"),  # type: ignore[arg-type]
        "params must be a Mapping, not 'x'",
    ),
    "a text as params of advisors": (
        lambda: ChatClient.builder(MODEL).default_advisors(params="x"),  # type: ignore[arg-type]
        "params must be a Mapping, not 'x'",
    ),
    "a text as a deadline": (
        lambda: ChatClient.create(MODEL).prompt("x").deadline("5"),  # type: ignore[arg-type]
        "a deadline must be a number of seconds or a timedelta, not '5'",
    ),
    "a number as a template": (lambda: PromptTemplate(5), "a template must be a str, not 5"),  # type: ignore[arg-type]
    "a template without values": (
        lambda: PromptTemplate("Hi {name}").render(),
        "by name to render()",
    ),
    "a number as an advisor": (
        lambda: ChatClient.builder(MODEL).default_advisors(5),  # type: ignore[arg-type]
        "5 is not an advisor",
    ),
    "a text as an advisor": (
        lambda: ChatClient.builder(MODEL).default_advisors("memory"),  # type: ignore[arg-type]
        "'memory' is not an advisor",
    ),
    "one text to embed": (lambda: BagOfWords().embed("x"), "put a single one into a list"),
    "a number forbidden": (lambda: SafeGuardAdvisor("a", 5), "not 5"),  # type: ignore[arg-type]
}


class Checked:
    def __call__(self, request: object) -> None: ...


@pytest.mark.feature(
    "advisors-empty-list-passes-everything", "lc4j-tool-tools-duplicates-unchecked"
)
@pytest.mark.parametrize(("make", "message"), MISUSES.values(), ids=MISUSES)
def test_misuse(make: Callable[[], object], message: str) -> None:
    """The error names the correct usage before a request is sent."""
    with pytest.raises(UsageError) as caught:
        make()
    assert message in str(caught.value)


def test_durations() -> None:
    """Durations are seconds or timedeltas everywhere."""
    hour = timedelta(hours=1)
    sessions = SessionService(InMemorySessionRepository(), time_to_live=3600)
    session = sessions.create("ada", time_to_live=60)

    assert sessions.sessions.time_to_live == hour
    assert session.expires_at == session.created_at + timedelta(minutes=1)
    assert InMemoryResponseStore(time_to_live=hour).get("x") is None
    rate = RateLimitAdvisor(requests=1, period=hour, max_wait=timedelta(minutes=59))
    client = ChatClient.builder(ScriptedModel("a")).default_advisors(rate).build()
    client.prompt("x").call().content()
    with pytest.raises(RateLimitExceededError, match="1 requests in 3600 s"):
        client.prompt("x").call().content()


@pytest.mark.feature("observation-conventions-your-own")
def test_list_of_observers(ask: Ask) -> None:
    """Observers are accepted as a list."""
    seen: list[str] = []

    class Watching:
        def begin(self, operation: Operation) -> Observation:
            seen.append(operation.name)
            return self

        def end(self, ended: Step, error: BaseException | None) -> None: ...

    ask(ChatClient.builder(ScriptedModel("x")).observers([Watching()]).build().prompt("x"))

    assert seen


def test_request_method_on_a_builder() -> None:
    """The error names how to start a request."""
    builder: Any = ChatClient.builder(MODEL)

    with pytest.raises(AttributeError, match=r"no 'prompt'; call \.build\(\) first"):
        builder.prompt("x")
    assert not hasattr(builder, "colour")
    assert repr(builder) == "ChatClientBuilder(ScriptedModel)"


@pytest.mark.parametrize("name", ["build", "clone"])
def test_builder_method_on_a_client(name: str) -> None:
    """The error names `mutate()`."""
    client: Any = ChatClient.create(MODEL)

    with pytest.raises(
        AttributeError, match=rf"no '{name}'; it is built and never changes: use it"
    ):
        getattr(client, name)()


def test_tool_context_names(ask: Ask) -> None:
    """Tool context keys may equal the parameter names of the methods."""

    @tool
    def stage(context: ToolContext) -> str:
        return str(dict(context))

    model = ScriptedModel(call("stage"), "done")
    client = ChatClient.builder(model).default_tools(stage).default_tool_context(context="prod")
    client = client.default_advisors(lambda request, call_next: call_next(request))
    request = client.build().prompt("x").tool_context(more=1).deadline(timedelta(minutes=5))
    result = ask(request.advisor_params(params="p"))

    assert result.executions[0].response.data == "{'context': 'prod', 'more': 1}"
    assert result.response.context["params"] == "p"


def test_reprs() -> None:
    """Reprs name classes and models, but no secrets or content."""
    client = ChatClient.create(MODEL)

    assert repr(client.prompt("secret")) == "ChatClientRequestSpec(ScriptedModel)"
    assert repr(MODEL) == "ScriptedModel()"
    assert repr(FallbackChatModel(MODEL)) == "FallbackChatModel('ScriptedModel')"
    memory = MessageWindowChatMemory()
    assert repr(memory) == "MessageWindowChatMemory(InMemoryChatMemoryRepository)"
