"""Errors for common mistakes contain the correct code."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any
from unittest.mock import AsyncMock

import httpx
import pytest
from pydantic import BaseModel

import chatclient.advisors
import chatclient.mcp
import chatclient.retrieval
import chatclient.testing
import chatclient.tools
import chatclient.tools.search
from chatclient import (
    ChatClient,
    ChatClientRequest,
    ChatClientResponse,
    ChatOptions,
    ChatResponse,
    Next,
    PromptTemplate,
    Runtime,
    SystemRequest,
    ToolContext,
    tool,
)
from chatclient.advisors import (
    InputGuardrailAdvisor,
    MessageChatMemoryAdvisor,
    OutputGuardrailAdvisor,
    RetrievalAugmentationAdvisor,
    ToolSearchToolCallingAdvisor,
)
from chatclient.chat import PlaceholderRenderer
from chatclient.errors import ToolDefinitionError, UsageError, WrongTypeError
from chatclient.mcp import McpToolCallbackProvider
from chatclient.memory import MessageWindowChatMemory
from chatclient.providers import FallbackChatModel, RoutingChatModel
from chatclient.providers.openai.chat import OpenAIChatModel
from chatclient.retrieval import (
    Document,
    DocumentReadError,
    HybridDocumentRetriever,
    InMemoryVectorStore,
    Query,
    VectorStoreDocumentRetriever,
)
from chatclient.structured import TypeOutputConverter
from chatclient.testing import Recording, RecordingModel, ScriptedModel
from chatclient.tools import (
    DataToolCallback,
    DelegatingToolCallbackResolver,
    FunctionToolCallback,
    NextTool,
    ToolApproval,
    ToolCallback,
    ToolCallingManager,
    ToolFailure,
    ToolFailurePolicy,
    ToolInvocation,
    ToolLimits,
    ToolRegistry,
    ToolRequest,
    ToolResult,
    tool_callbacks,
)
from chatclient.tools.search import VectorToolIndex
from tests.support.bag_of_words import BagOfWords

MODEL = ScriptedModel(lambda prompt: "Hello!")


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (lambda it: it.builder(MODEL).prompt, "has no 'prompt'; call .build() first"),
        (lambda it: it.builder(MODEL).system, "here it is .default_system(...)"),
        (
            lambda it: it.builder(MODEL).memory,
            ".default_advisors(MessageChatMemoryAdvisor(memory))",
        ),
        (lambda it: it.builder(MODEL).conversation, "a request has: client.prompt(...).conversat"),
        (lambda it: it.builder(MODEL).middleware, "a ChatClientBuilder has no 'middleware'"),
        (lambda it: it.create(MODEL).stream, "a request has: client.prompt(...).stream(...)"),
        (lambda it: it.create(MODEL).default_tools, "client.mutate().default_tools(...).build()"),
        (lambda it: it.create(MODEL).run, "no 'run'; ask it: client.prompt(...).call().content()"),
        (lambda it: it.create(MODEL).entity, "ask it: client.prompt(...).call().entity()"),
        (lambda it: it.create(MODEL).generate, "a ChatClient has no 'generate'"),
        (lambda it: it.create(MODEL).prompt("x").events, "stream it: .stream().events()"),
        (lambda it: it.create(MODEL).prompt("x").content, "send it first: .call().content()"),
        (lambda it: it.create(MODEL).prompt("x").default_tools, "of one request it is .tools(...)"),
        (lambda it: it.create(MODEL).prompt("x").invoke, "send it: .call().content()"),
        (lambda it: it.create(MODEL).prompt("x").temperature, ": .options(temperature=...)"),
        (lambda it: it.create(MODEL).prompt("x").memory, "MessageChatMemoryAdvisor(memory)) of"),
        (lambda it: it.builder(MODEL).max_tokens, ": .default_options(max_tokens=...)"),
        (lambda it: it.create(MODEL).prompt("x").sytem, "a ChatClientRequestSpec has no 'sytem'"),
        (lambda it: it.create(MODEL).prompt("x").tool_callbacks, "names of tools, go into .tools("),
        (lambda it: it.create(MODEL).prompt("x").tool_names, "names of tools, go into .tools("),
        (lambda it: it.builder(MODEL).default_tool_callbacks, "go into .default_tools("),
        (lambda it: it.builder(MODEL).tool_names, "a ChatClientBuilder has no 'tool_names'"),
    ],
)
def test_method_of_another_object(mistake: Callable[[Any], Any], message: str) -> None:
    """The error names the object with the method."""
    with pytest.raises(AttributeError, match=r".") as caught:
        mistake(ChatClient)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (lambda it: it.text, "has no 'text'; its text is its .content()"),
        (lambda it: it.metadata, "has no 'metadata'; its response has it: {way}.metadata"),
        (lambda it: it.finish_reason, "its response has it: {way}.finish_reason"),
        (lambda it: it.final_output, "has no 'final_output'"),
    ],
)
def test_attribute_of_a_response(mistake: Callable[[Any], Any], message: str) -> None:
    """The error names the method for text or response."""
    request = ChatClient.create(MODEL).prompt("Hi")
    ways = {
        request.call(): "CallResponse {answer.chat_response()",
        request.acall(): "AsyncCallResponse {(await answer.chat_response())",
        request.stream(): "StreamResponse {stream.response.chat_response",
        request.astream(): "AsyncStreamResponse {stream.response.chat_response",
    }
    for answer, names in ways.items():
        name, _, way = names.partition(" {")
        with pytest.raises(AttributeError, match=name) as caught:
            mistake(answer)
        assert message.format(way=way) in str(caught.value)
        answer._used = True  # consumed, so there is no warning


def test_repr_of_a_response() -> None:
    """The repr shows whether the request was sent."""
    request = ChatClient.create(MODEL).prompt("Hi")
    answer, stream = request.call(), request.stream()
    assert repr(answer) == "<CallResponse: nothing was sent yet>"
    for _ in stream:
        assert repr(stream) == "<StreamResponse: no answer yet>"
    assert (answer.content(), repr(answer)) == ("Hello!", "CallResponse('Hello!')")
    assert repr(stream) == "StreamResponse('Hello!')"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            MessageWindowChatMemory(),
            "it is a memory, which goes into MessageChatMemoryAdvisor(memory)",
        ),
        (
            ToolApproval(),
            "interceptor of tool calls, which goes into ToolCallingManager(interceptors=[...])",
        ),
        (ToolLimits(), "ToolCallingManager(limits=limits)"),
        (ToolFailurePolicy(), "ToolCallingManager(exception_processor=policy)"),
        (ToolCallingManager(), ".tool_calling_manager(manager) of a builder"),
        (ToolRegistry(), ".tools(...) of a request, .default_tools(...)"),
    ],
)
def test_wrong_advisor(given: Any, message: str) -> None:
    """The error names the right method, and no client is built."""
    with pytest.raises(WrongTypeError) as caught:
        ChatClient.builder(MODEL).default_advisors(given)
    assert message in str(caught.value)


async def advisor(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
    return await call_next(request)


async def interceptor(invocation: "ToolInvocation", call_next: NextTool) -> ToolResult:
    return await call_next(invocation)


class Library:
    def find(self, query: Query, runtime: Runtime) -> list[Document]:
        return []


def post_processor(query: Query, found: list[Document], runtime: Runtime) -> list[Document]:
    return found


def guardrail(request: ChatClientRequest) -> None: ...


def answer_guardrail(response: ChatResponse, request: ChatClientRequest) -> None: ...


def system_text(request: SystemRequest) -> str:
    return ""


def policy(failure: ToolFailure) -> str:
    return ""


STORE = InMemoryVectorStore(BagOfWords())
RENDERER = PlaceholderRenderer()
FUNCTION = FunctionToolCallback(lambda: "", name="f", description="Do it.")

# What each of these goes into, as the error says.
ROLES: dict[Any, str] = {
    advisor: ".default_advisors(...)",
    interceptor: "ToolCallingManager(interceptors=[...])",
    Library().find: "RetrievalAugmentationAdvisor(retriever)",
    post_processor: "RetrievalAugmentationAdvisor(retriever, post_processors=[...])",
    guardrail: "InputGuardrailAdvisor(...)",
    answer_guardrail: "OutputGuardrailAdvisor(...)",
    system_text: ".system(function)",
    policy: "ToolCallingManager(exception_processor=policy)",
    RENDERER: ".template_renderer(...)",
    STORE: "VectorStoreDocumentRetriever(store)",
    FUNCTION: ".default_tools(...)",
    ToolRegistry(): ".default_tools(...)",
    MODEL: "ChatClient.create(model)",
    ToolCallingManager(): ".tool_calling_manager(manager)",
    MessageWindowChatMemory(): "MessageChatMemoryAdvisor(memory)",
}

# What takes one of these, and the places that may be right.
PLACES: dict[str, tuple[Callable[[Any], object], str]] = {
    "advisors of a client": (ChatClient.builder(MODEL).clone().default_advisors, "advisors"),
    "advisors of a request": (ChatClient.create(MODEL).prompt("x").advisors, "advisors"),
    "a system text": (ChatClient.create(MODEL).prompt("x").system, ".system("),
    "a renderer": (ChatClient.create(MODEL).prompt("x").template_renderer, "renderer"),
    "a template's renderer": (lambda it: PromptTemplate("x", renderer=it), "renderer"),
    "tools": (ChatClient.create(MODEL).prompt("x").tools, "tools("),
    "tools of options": (lambda it: ChatOptions(tool_callbacks=[it]), "tools("),
    "a model": (ChatClient.create, "create("),
    "a manager": (ChatClient.builder(MODEL).clone().tool_calling_manager, "tool_calling_manager("),
    "a resolver": (lambda it: ToolCallingManager(resolver=it), "tools("),
    "interceptors": (lambda it: ToolCallingManager(interceptors=[it]), "interceptors"),
    "a failure policy": (lambda it: ToolCallingManager(exception_processor=it), "exception_proc"),
    "a reaction": (lambda it: ToolFailurePolicy(tools={"f": it}), "exception_processor"),
    "a condition": (lambda it: ToolApproval(needed=it), "none"),
    "an executor": (lambda it: DataToolCallback(FUNCTION.definition, it), "none"),
    "guardrails": (InputGuardrailAdvisor, "InputGuardrail"),
    "guardrails of answers": (OutputGuardrailAdvisor, "OutputGuardrail"),
    "retrievers": (RetrievalAugmentationAdvisor, "(retriever)"),
    "several retrievers": (HybridDocumentRetriever, "(retriever)"),
    "a joiner": (lambda it: RetrievalAugmentationAdvisor(Library().find, joiner=it), "none"),
    "an augmenter": (lambda it: RetrievalAugmentationAdvisor(Library().find, augmenter=it), "none"),
    "a vector store": (VectorStoreDocumentRetriever, "(store)"),
    "an index of tools": (VectorToolIndex, "(store)"),
    "a memory": (MessageChatMemoryAdvisor, "(memory)"),
    "a choice of models": (lambda it: RoutingChatModel(it, MODEL), "none"),
    "a choice of errors": (lambda it: FallbackChatModel(MODEL, on=it), "none"),
    "a description of tools": (lambda it: ToolSearchToolCallingAdvisor(describe=it), "none"),
    "a recorded model": (lambda it: RecordingModel(it, Recording()), "create("),
}


@pytest.mark.parametrize(("place", "right"), PLACES.values(), ids=PLACES)
def test_object_in_the_wrong_place(place: Callable[[Any], object], right: str) -> None:
    """The error is raised where the object is given, and names the right place."""
    for given, belongs in ROLES.items():
        if right not in belongs:
            with pytest.raises(UsageError) as caught:
                place(given)
            assert "which goes into " in str(caught.value)
            assert belongs in str(caught.value)


def test_functions_without_annotations_have_any_role() -> None:
    """Where the types of arguments are unknown, their number decides."""
    plain: Any = lambda first, second: None  # noqa: E731 - it has no annotations

    ToolCallingManager(interceptors=[plain])
    RetrievalAugmentationAdvisor(plain)
    ChatClient.builder(MODEL).default_advisors(plain).build()


def test_objects_with_every_attribute_have_any_role() -> None:
    """Mocks of an application's tests are what they are given as."""
    ToolCallingManager(interceptors=[AsyncMock()])
    RetrievalAugmentationAdvisor(AsyncMock())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"needs_approval": True}, "@tool(confirm=True) asks for approval of each call"),
        ({"requires_approval": True}, "interceptors=[ToolApproval()]"),
        ({"args_schema": {}}, "FunctionToolCallback(function, input_schema=...)"),
        ({"timeout": 5, "retries": 2}, "@tool has no option 'retries'; its options are name, desc"),
    ],
)
def test_option_of_another_decorator(options: dict[str, Any], message: str) -> None:
    """The error of `@tool` names the equivalent option."""
    with pytest.raises(TypeError, match="@tool has no option") as caught:
        tool(**options)
    assert isinstance(caught.value, UsageError)
    assert message in str(caught.value)


def test_description_instead_of_function() -> None:
    """The error names `name` and `description`."""
    with pytest.raises(ToolDefinitionError, match=r"name=\.\.\.\), .* @tool\(description=\.\.\.\)"):
        tool("Sums two numbers")  # type: ignore[call-overload]


def found() -> str:
    """Find it."""
    return ""


@dataclass
class Film:
    title: str


class Invoice(BaseModel):
    number: int


def takes_session(session: ScriptedModel) -> None:
    """Take an application object."""


def takes_typed_context(context: "ToolContext[int]") -> None:  # type: ignore[type-arg]
    """Take a context of another framework."""


def chooses_tools(request: ToolRequest) -> list[ToolCallback]:
    """Choose tools in a function."""
    return []


@pytest.mark.parametrize(
    ("mistake", "error", "message"),
    [
        (
            lambda: tool_callbacks(takes_typed_context),
            ToolDefinitionError,
            "no type: context.require(name, type)",
        ),
        (
            lambda: tool_callbacks(chooses_tools),
            ToolDefinitionError,
            "what chooses tools is a provider, an object with a method tool_callbacks(request)",
        ),
        (
            lambda: McpToolCallbackProvider("uvx mcp-server-time"),  # type: ignore[arg-type]
            WrongTypeError,
            "make one: McpServer.stdio(",
        ),
        (
            lambda: OpenAIChatModel(api_key="x", options={"temperature": 1}),  # type: ignore[arg-type]
            WrongTypeError,
            "write ChatOptions(temperature=0.2)",
        ),
        (
            lambda: (
                ChatClient.builder(MODEL)
                .tool_callback_resolver(DelegatingToolCallbackResolver(ToolRegistry(found)))
                .default_tools("find")
                .build()
            ),
            ToolDefinitionError,
            "resolver (DelegatingToolCallbackResolver(ToolRegistry(found)))",
        ),
        (lambda: tool_callbacks(takes_session), ToolDefinitionError, "goes through a ToolContext"),
        (
            lambda: TypeOutputConverter([int]),  # type: ignore[arg-type]
            UsageError,
            "ask for a type such as",
        ),
        (
            lambda: ChatClient.create(MODEL).prompt("x").call().entity(Film("Alien")),  # type: ignore[call-overload]
            UsageError,
            "not an object of it: pass Film",
        ),
    ],
)
def test_mistake(mistake: Callable[[], object], error: type[Exception], message: str) -> None:
    """The error is raised before a request, with relevant advice only."""
    with pytest.raises(error) as caught:
        mistake()
    assert message in str(caught.value)
    assert "arbitrary_types_allowed" not in str(caught.value)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ('client.prompt("x", temperature=1)', "client.prompt(...).options(temperature=...)"),
        ('client.prompt("x", tools=[found])', "client.prompt(...).tools(...)"),
        ('client.prompt("x", name="Ada")', "client.prompt().user(text, params={'name': ...})"),
        ('client.prompt().user("{name}", name="Ada")', "params={'name': ...}"),
        ('client.prompt().user("x", seed=1)', ".options(seed=...)"),
        ('client.mutate().default_system("{name}", name="Ada")', "params={'name': ...}"),
        ('client.prompt("x").advisors(conversation_id="1")', ".conversation(id)"),
        ("client.mutate().default_advisors(top_k=1)", "params={'top_k': ...}"),
        ('client.prompt("x").params(name="Ada")', ".user(text, params={...})"),
        ('client.prompt("x").tool(found)', ".tools(...)"),
        ('client.prompt("x").media("a.png")', ".user(text, media=...)"),
        ('client.prompt("x").options(tools=[found])', "a request has .tools(...)"),
        ('client.prompt("x").options(stream=True)', "with .stream()"),
        ("answer.stream()", "client.prompt(...).stream()"),
        ("ScriptedModel(5)", "an answer of a script must be"),
        ('Document("x").page_content', "its text is its .text"),
        ("answer.json()", ".entity(type)"),
        ('answer.entity("Film")', "pass the class itself"),
        ("answer.entity(Invoice(number=1))", "pass Invoice"),
        ('client.batch(["x"]).results', "for result in batch"),
        ("Budget(5)", "by name; its parameters are total_tokens"),
        ("ToolCallingManager(found)", "by name; its parameters are resolver"),
        ('ToolApproval(tools=["found"])', "its parameters are needed"),
        ('McpServer("time")', "McpServer.stdio(name, command"),
        ('read_documents("docs/*.md")', "choose files of a directory by pattern="),
        ('read_documents(["a", "b"])', "one by one"),
    ],
)
def test_mistake_in_a_notebook(code: str, message: str) -> None:
    """The error says what to write instead."""
    client = ChatClient.create(ScriptedModel(lambda _: "x"))
    answer = client.prompt("x").call()
    assert answer.content() == "x"
    known: dict[str, Any] = {"client": client, "answer": answer, "found": found, "Invoice": Invoice}
    known |= {"ScriptedModel": ScriptedModel, "Document": Document}
    public = (chatclient, chatclient.advisors, chatclient.mcp, chatclient.retrieval)
    names = {name: getattr(package, name) for package in public for name in package.__all__}
    with pytest.raises((AttributeError, TypeError, UsageError, DocumentReadError)) as caught:
        eval(code, names | vars(chatclient.tools) | known)

    assert message in str(caught.value)


@tool
def marked() -> str:
    """Do nothing."""
    return ""


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("from chatclient import OpenAI", "use `OpenAIChatModel` from chatclient.providers"),
        ("from chatclient import AsyncClient", "and `.acall()` or `.astream()`"),
        ("from chatclient import MCPClient", "use `McpServer`,"),
        ("from chatclient.client import ChatClient", "use `from chatclient import ChatClient`"),
        ("from chatclient.client import Quux", "dir(chatclient.client) lists its names"),
        ("from chatclient.errors import APIError", "use `ProviderError` from chatclient.errors"),
        ("from chatclient.errors import Quux", "dir(chatclient.errors) lists its names"),
        ("from chatclient.tools import Quux", "dir(chatclient.tools) lists its names"),
        ("from chatclient.advisors import MemoryAdvisor", "`MessageChatMemoryAdvisor(memory)`"),
        ("ChatClient()", "write ChatClient.create(model)"),
        ("client.prompt('x').call(stream=True)", "a stream is .stream(), or .astream()"),
        ("client.prompt('x').call(temperature=1)", ".options(temperature=...)"),
        ("client.prompt('x').call(tools=[])", "everything is said before"),
        ("client.prompt('x').timeout(5)", "a .deadline(seconds)"),
        ("client.prompt('x').retry(3)", "max_retries=..."),
        ("client.prompt('x').conversation_id('a')", "a request belongs to a .conversation(id)"),
        ("client.complete('x')", "ask it: client.prompt(...).call().content()"),
        ("OpenAIChatModel('gpt-5-mini', key='x')", "has no parameter 'key'; it is 'api_key'"),
        ("OpenAIChatModel('gpt-5-mini', api_key='x').invoke('x')", "a client asks it"),
        ("MODEL.call('x').content", "its text is its .text"),
        ("MODEL.call('x').choices", "they are its .generations"),
        ("MODEL.call('x').message.content", "its text is its .text"),
        ("MODEL.call('x').tool_calls", "they are in its .message.tool_calls"),
        ("MODEL.call('x').entity(int)", "client.prompt(...).call().entity(type)"),
        ("MessageWindowChatMemory().messages", "they belong to a conversation"),
        ("MessageWindowChatMemory(window=5)", "it is 'max_messages'"),
        ("McpServer.http('a', 'https://x', headers='Bearer x')", "'Authorization': 'Bearer ...'"),
        ("McpServer.http('a', 'https://x', auth=True)", "auth must be 'oauth', an McpOAuth"),
        ("McpServer.http('a', 'https://x', auth=httpx.BasicAuth('a', 'b'))", "an auth of httpx2"),
        ("client.prompt('a', 'b')", "prompt() is given too many values; it takes prompt="),
        ("client.prompt().user('{a}', {'a': 1})", "too many values; it takes text="),
        ("client.prompt('x').tools(tools=[found])", ".tools(function, ...), not tools=[...]"),
        ("client.prompt('x').call(True)", "call() is given too many values; it takes nothing"),
        ("Prompt('x', temperature=1)", "write options=ChatOptions(temperature=...)"),
        ("PromptTemplate('{a}').format(a=1)", "it is .render(name=...)"),
        ("McpServer.sse('a', 'https://x')", "McpServer.http(name, url)"),
        pytest.param(
            *("McpToolServer(found).run()", ".serve_stdio() or .serve_http()"),
            marks=pytest.mark.skipif(find_spec("mcp") is None, reason="needs the extra mcp"),
        ),
        ("McpOAuth(port=-5)", "port must be from 0 to 65535"),
        ("tool(title='x')", "is the title that MCP clients get"),
        ("UserMessage(text='x')", "UserMessage() has no parameter 'text'; it is 'content'"),
        ("AssistantMessage(text='x')", "AssistantMessage() has no parameter 'text'; it is 'conten"),
        ("SystemMessage('x', role='system')", "its parameters are content, metadata, id, stored_"),
        ("ToolCall(id='1', name='f', args='{}')", "it is 'arguments'"),
        ("Media(url='https://x/a.png')", "it is 'data'"),
        ("Usage(prompt_tokens=1)", "it is 'input_tokens'"),
        ("Usage(total_tokens=1)", "it is made of the others"),
        ("Usage().prompt_tokens", "a Usage has no 'prompt_tokens'; it is .input_tokens"),
        ("Prompt(text='x')", "it is 'messages'"),
        ("Message('x')", "make a UserMessage, SystemMessage, AssistantMessage or"),
        (
            "UserMessage('x').text = 'y'",
            "never changes: make a changed copy with .mutate(",
        ),
        ("ToolCall('1', 'f', '{}').name = 'g'", "copy with dataclasses.replace(..., name=...)"),
        ("ToolCallback(found)", "ToolCallback is a contract and is not called: write FunctionTool"),
        ("list(client.prompt('x').astream())", "AsyncStreamResponse is asynchronous: write 'async"),
        ("list(MODEL.astream('x'))", "AsyncEvents is asynchronous"),
        ("client.prompt('x').call().content.strip()", "is a method: write .content().strip"),
        ("client.prompt('x').acall().trail.steps", "is a method: write .trail().steps"),
        ("client.prompt('x').stream.content()", "is a method: write .stream().content"),
        ("client.prompt.user('x')", "ChatClient.prompt is a method: write .prompt().user"),
        ("answer.content + '!'", "'MethodNotCalled' and 'str'"),
        ("marked.invoke({})", "@tool leaves a function as it is, without .invoke(): call it"),
        ("marked.run('x')", "FunctionToolCallback(function).call(arguments)"),
        ("ChatOptions(tool_callbacks=[marked])", "functions go into .tools(...)"),
        ("FunctionToolCallback(marked).call({})", "write json.dumps(...)"),
        ("client.predict('x')", "ask it: client.prompt(...).call().content()"),
        ("client.bind_tools([found])", "tools go into .tools(...)"),
        ("client.prompt('x').with_structured_output(int)", ".call().entity(type) is the answer"),
        (
            "client.prompt('x').sytem('y')",
            "has no 'sytem'; did you mean .system?",
        ),
        ("client.mutate().default_temperature(1)", ".default_options(temperature=...)"),
        ("answer.answer", "its text is its .content()"),
        ("ChatClient.builder()", "missing 1 required positional argument: 'model'"),
        ("MessageChatMemoryAdvisor(conversation_id='a')", "client.prompt(...).conversation(id)"),
        ("McpServer(command='uvx', args=[])", "write McpServer.stdio(name, command, *args)"),
        ("KeywordToolIndex().search('x')", "write ToolSearchRequest(session_id, query)"),
        ("CorrectnessEvaluator(MODEL).evaluate('x')", "write EvaluationRequest(question, answer)"),
        ("from chatclient.providers.openai import OpenAIChatModel", "use `from chatclient.provid"),
        ("chatclient.ChatModell", "did you mean `from chatclient import ChatModel`?"),
    ],
)
def test_mistake_of_a_newcomer(code: str, message: str) -> None:
    """The message says what to write instead."""
    answer = ChatClient.create(MODEL).prompt("x").call()
    assert answer.content() == "Hello!"
    public = (chatclient, chatclient.testing, chatclient.tools, chatclient.tools.search)
    names = {
        **{name: getattr(package, name) for package in public for name in package.__all__},
        **globals(),
        "answer": answer,
        "client": ChatClient.create(MODEL),
        "McpServer": chatclient.mcp.McpServer,
        "McpToolServer": chatclient.mcp.McpToolServer,
        "McpOAuth": chatclient.mcp.McpOAuth,
        "httpx": httpx,
    }
    with pytest.raises((ImportError, AttributeError, TypeError, UsageError)) as caught:
        exec(code, names)

    assert message in str(caught.value)
