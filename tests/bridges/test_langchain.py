"""Adapters for tools and models of LangChain, in both directions, with the real packages."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any

import pytest

pytest.importorskip("langchain_core", reason="the extra `langchain` is not installed")

from langchain_core.language_models import FakeListChatModel, GenericFakeChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.tools import (
    BaseTool,
    BaseToolkit,
    InjectedToolArg,
    StructuredTool,
    Tool,
    ToolException,
    tool as langchain_tool,
)
from pydantic import AliasChoices, AliasPath, BaseModel, ConfigDict, Field

from chatclient import (
    AssistantMessage,
    ChatClient,
    ChatOptions,
    Media,
    Message,
    SystemMessage,
    TextDelta,
    ToolCall,
    ToolContext,
    ToolResponse,
    ToolResponseMessage,
    UserMessage,
    tool,
)
from chatclient.bridges import LangChainChatModel, to_langchain, tools_from_langchain
from chatclient.chat import ProviderPart, Reasoning, ToolCallDelta
from chatclient.errors import (
    RateLimitedError,
    ToolDefinitionError,
    ToolError,
    UnsupportedOptionError,
    UsageError,
    WrongTypeError,
)
from chatclient.testing import Ask, ScriptedModel, call
from chatclient.tools import DataToolCallback, FunctionToolCallback, ToolDefinition, ToolMetadata
from tests.modes.test_tool_calling import client_of, results
from tests.support.servers import ChatServer, Reply, completion
from tests.support.waiting import asettled, settled

PNG = b"\x89PNG"
IMAGE = {"type": "image", "base64": "iVBORw==", "mime_type": "image/png"}


@langchain_tool
def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: The first.
        b: The second.
    """
    return a + b


@langchain_tool
async def wait(seconds: float) -> str:
    """Wait."""
    await asyncio.sleep(seconds)
    return "done"


@langchain_tool(response_format="content_and_artifact")
def chart(name: str) -> tuple[list[Any], dict[str, int]]:
    """Draw a chart."""
    return [{"type": "text", "text": name}, IMAGE, {"type": "json", "json": 1}], {"points": 3}


@langchain_tool
def broken(kind: str) -> str:
    """Fail."""
    if kind == "tool":
        msg = "try another city"
        raise ToolException(msg)
    raise LookupError(kind)


class Shout(BaseTool):
    """A tool that is a class, with an asynchronous method only."""

    name: str = "shout"
    description: str = "Shouts."

    def _run(self, text: str) -> str:
        raise NotImplementedError

    async def _arun(self, text: str) -> str:
        return text.upper()


class Kit(BaseToolkit):
    """A toolkit."""

    def get_tools(self) -> list[BaseTool]:
        return [add, Shout()]


# --- their tools ---


def test_tools_run(ask: Ask) -> None:
    """Plain, asynchronous and class-based ones, of toolkits and lists."""
    calls = [
        call("add", {"a": 1, "b": 2}),
        call("wait", {"seconds": 0.0}),
        call("shout", {"text": "hey"}),
    ]
    tools = tools_from_langchain(Kit(), [wait])
    model = ScriptedModel(calls, "done")
    ask(client_of(model, *tools).prompt("x"))

    assert results(model.prompts[1]) == ["3", "done", "HEY"]
    schema = tools[0].definition.input_schema
    assert schema["properties"]["a"]["type"] == "integer"
    assert tools[0].definition.description.startswith("Add two numbers.")


def test_content_and_artifact(ask: Ask) -> None:
    """The model gets text and media; the application gets the artifact."""
    model = ScriptedModel(call("chart", {"name": "sales"}), "done")
    [execution] = ask(client_of(model, *tools_from_langchain(chart)).prompt("x")).executions

    assert execution.value == {"points": 3}
    assert execution.response.data == 'sales\n{"type":"json","json":1}'
    assert execution.response.media == (Media("image/png", PNG),)


V0_IMAGE = {"type": "image", "source_type": "base64", "data": "iVBORw==", "mime_type": "image/png"}
URL_IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw=="}}
CACHED = {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}
DOCUMENT_SOURCE = {"type": "text", "media_type": "text/plain", "data": "b"}


@pytest.mark.parametrize(
    ("returned", "text", "media"),
    [
        ([CACHED, "b", {"type": "document", "source": DOCUMENT_SOURCE}], "a\nb\nb", 0),
        ([V0_IMAGE], "", 1),
        ([URL_IMAGE, {"type": "search_result", "n": 1}], '{"type":"search_result","n":1}', 1),
        # These only look like blocks.
        ([], "[]", 0),
        ([{"type": "text", "value": 1}], '[{"type":"text","value":1}]', 0),
        ([{"type": "text", "text": None}], '[{"type":"text","text":null}]', 0),
        ([{"type": "text", "text": "a", "n": 1}], '[{"type":"text","text":"a","n":1}]', 0),
        ([{"type": "file", "name": "a"}], '[{"type":"file","name":"a"}]', 0),
        ([{"type": "file", "file_id": 7}, IMAGE], None, 0),
        ([{"type": "image", "base64": "x!"}], '[{"type":"image","base64":"x!"}]', 0),
        ([{"type": "image", "url": "a b"}], '[{"type":"image","url":"a b"}]', 0),
        ([{"type": "image_url", "image_url": 1}], '{"type":"image_url","image_url":1}', 0),
        ([{"type": "document", "source": 1}], '{"type":"document","source":1}', 0),
        ([{"type": "text", "text": 1, "x": object}], None, 0),
        ({"type": "text", "text": "a"}, '{"type": "text", "text": "a"}', 0),
    ],
)
def test_blocks(ask: Ask, returned: Any, text: str | None, media: int) -> None:
    """Blocks that LangChain accepts are text and media; all else is data, and nothing is lost."""

    @langchain_tool
    def look() -> Any:
        """Look."""
        return returned

    model = ScriptedModel(call("look"), "done")
    [execution] = ask(client_of(model, *tools_from_langchain(look)).prompt("x")).executions

    assert not execution.is_error
    assert execution.response.media == (Media("image/png", PNG),) * media
    if text is not None:
        assert execution.response.data == text
    assert text or media or all(str(key) in execution.response.data for key in returned[0])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"kind": "tool"}, "try another city"),
        ({"kind": "other"}, "other"),
        ({}, "kind"),
    ],
)
def test_errors_are_error_results(ask: Ask, arguments: Any, told: str) -> None:
    """The model receives an error result, and the turn continues."""
    model = ScriptedModel(call("broken", arguments), "done")
    [execution] = ask(client_of(model, *tools_from_langchain(broken)).prompt("x")).executions

    assert execution.is_error
    assert told in execution.response.data


def test_errors_that_the_tool_handles(ask: Ask) -> None:
    """They are error results as well."""
    handling = broken.model_copy(update={"handle_tool_error": "sorry"})
    model = ScriptedModel(call("broken", {"kind": "tool"}), "done")
    [execution] = ask(client_of(model, *tools_from_langchain(handling)).prompt("x")).executions

    assert (execution.is_error, execution.response.data) == (True, "sorry")


def test_validators_of_the_tool_hold(ask: Ask) -> None:
    """Validators that the JSON Schema cannot express are applied."""
    from pydantic import field_validator

    class Even(BaseModel):
        n: int

        @field_validator("n")
        @classmethod
        def even(cls, value: int) -> int:
            if value % 2:
                msg = "must be even"
                raise ValueError(msg)
            return value

    halve = StructuredTool.from_function(
        lambda n: n // 2, name="halve", description="Halve.", args_schema=Even
    )
    model = ScriptedModel(call("halve", {"n": 3}), call("halve", {"n": 4}), "done")
    first, second = ask(client_of(model, *tools_from_langchain(halve)).prompt("x")).executions

    assert "n: Value error, must be even" in first.response.data
    assert second.response.data == "2"


def test_injected_arguments(ask: Ask) -> None:
    """The model does not see them; the tool context has their values."""

    @langchain_tool
    def orders(year: int, user: Annotated[str, InjectedToolArg]) -> str:
        """List orders."""
        return f"{year} of {user}"

    [found] = tools_from_langchain(orders)
    assert "user" not in found.definition.input_schema["properties"]
    model = ScriptedModel(call("orders", {"year": 2026}), "done")
    ask(client_of(model, found).prompt("x").tool_context(user="ada"))

    assert results(model.prompts[1]) == ["2026 of ada"]


class DeleteArguments(BaseModel):
    """The arguments, with a hidden one that has other names on the wire, and any others."""

    model_config = ConfigDict(extra="allow", populate_by_name=True)
    path: str = Field(alias="filePath")
    is_admin: Annotated[bool, InjectedToolArg] = Field(
        default=False, validation_alias=AliasChoices("isAdmin", "admin", AliasPath("user", "admin"))
    )


def test_a_model_cannot_write_injected_arguments(ask: Ask) -> None:
    """Hidden arguments in a call are dropped; those of the application stay."""

    @langchain_tool
    def by_function(path: str, is_admin: Annotated[bool, InjectedToolArg] = False) -> str:
        """Delete a file."""
        return f"{path} {is_admin}"

    @langchain_tool(args_schema=DeleteArguments)
    def by_model(path: str, is_admin: bool = False, **more: Any) -> str:
        """Delete a file."""
        return f"{path} {is_admin}"

    schema = {"path": {"type": "string"}, "is_admin": {"type": "boolean"}}

    @langchain_tool(args_schema={"type": "object", "properties": schema, "required": ["path"]})
    def by_schema(path: str, is_admin: Annotated[bool, InjectedToolArg] = False) -> str:
        """Delete a file."""
        return f"{path} {is_admin}"

    forged = {"is_admin": True, "isAdmin": True, "admin": True, "user": {"admin": True}}
    for each in (by_function, by_model, by_schema):
        model = ScriptedModel(call(each.name, {"path": "a"} | forged), "done")
        [tool] = tools_from_langchain(each)
        assert tool.definition.input_schema["properties"].keys() == {"path"}
        # Only hidden arguments are taken from the tool context.
        ask(client_of(model, tool).prompt("x").tool_context(path="b", filePath="b"))
        assert results(model.prompts[1]) == ["a False"]
    model = ScriptedModel(call("by_function", {"path": "a", "is_admin": False}), "done")
    allowed = client_of(model, *tools_from_langchain(by_function)).prompt("x")
    ask(allowed.tool_context(is_admin=True))
    assert results(model.prompts[1]) == ["a True"]


def test_cancellation_reaches_the_tool() -> None:
    """A cancelled request ends an asynchronous tool."""
    ended: list[str] = []

    @langchain_tool
    async def long() -> str:
        """Take long."""
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("long")
        return ""

    async def main() -> None:
        model = ScriptedModel(call("long"), "never")
        request = client_of(model, *tools_from_langchain(long)).prompt("x")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(request.acall().content(), 0.2)
        assert ended == ["long"]

    asyncio.run(main())


def test_direct_results_and_metadata(ask: Ask) -> None:
    """`return_direct` is that of the tool, unless metadata is given."""
    direct = Tool("direct", lambda text: f"{text}!", "Answers.", return_direct=True)
    model = ScriptedModel(call("direct", {"__arg1": "Hi"}))

    assert ask(client_of(model, *tools_from_langchain(direct)).prompt("x")).text == "Hi!"
    [reading] = tools_from_langchain(direct, metadata=ToolMetadata(effect="read"))
    assert (reading.metadata.effect, reading.metadata.return_direct) == ("read", False)


def test_what_is_no_tool_is_refused() -> None:
    """Other objects and names that providers do not accept are refused."""
    function: Any = len
    with pytest.raises(WrongTypeError, match="a tool of LangChain"):
        tools_from_langchain(function)
    with pytest.raises(ToolDefinitionError):
        tools_from_langchain(Tool("my tool", str, "x"))


# --- our tools ---


class Desk:
    """Tools of ours."""

    @tool
    def greet(self, name: str, context: ToolContext) -> str:
        """Greet by name."""
        return f"{context['greeting']} {name}"

    @tool
    async def fail(self) -> str:
        """Fail."""
        msg = "not today"
        raise ToolError(msg)

    @tool
    def picture(self) -> Media:
        """Draw."""
        return Media("image/png", PNG, name="a.png")


@pytest.mark.parametrize("blocking", [True, False])
def test_our_tools_in_langchain(blocking: bool) -> None:
    """They take calls of LangChain, and return content, artifact and status."""
    tools = {each.name: each for each in to_langchain(Desk(), tool_context={"greeting": "Hi"})}

    def run(called: str, **arguments: Any) -> ToolMessage:
        given: Any = {"type": "tool_call", "id": "1", "name": called, "args": arguments}
        found: ToolMessage
        of = tools[called]
        found = of.invoke(given) if blocking else asyncio.run(of.ainvoke(given))
        return found

    greeting = run("greet", name="Ada")
    assert (greeting.content, greeting.artifact, greeting.status) == ("Hi Ada", "Hi Ada", "success")
    failed = run("fail")
    assert (failed.content, failed.status) == ("not today", "error")
    assert run("greet", name={"no": "text"}).status == "error"
    blocks: Any = run("picture").content
    assert blocks[1] == {**IMAGE, "filename": "a.png"}
    schema: Any = tools["greet"].args_schema
    assert list(schema["properties"]) == ["name"]


@pytest.mark.parametrize("blocking", [True, False])
def test_parameters_that_langchain_has_itself(blocking: bool) -> None:
    """Parameters of our tools may have the names of LangChain's own arguments."""
    names = ("config", "run_manager", "self", "callbacks", "args", "kwargs", "tool_input")
    schema = {"type": "object", "properties": {name: {"type": "string"} for name in names}}
    taken = DataToolCallback(
        ToolDefinition("take", "Take all.", schema), lambda call, context: call.arguments
    )
    [tool] = to_langchain(taken)
    given: Any = {"type": "tool_call", "id": "1", "name": "take", "args": {n: n for n in names}}

    message = tool.invoke(given) if blocking else asyncio.run(tool.ainvoke(given))

    assert json.loads(message.content) == {name: name for name in names}


def test_there_and_back(ask: Ask) -> None:
    """A tool of ours through LangChain is the same tool, with media and value."""
    [picture] = tools_from_langchain(*to_langchain(Desk().picture))
    model = ScriptedModel(call("picture"), "done")
    [execution] = ask(client_of(model, picture).prompt("x")).executions

    assert execution.response.media == (Media("image/png", PNG, name="a.png"),)


def test_a_result_that_is_an_error() -> None:
    """A tool may return one instead of raising it."""
    from chatclient.tools import ToolResult

    @tool
    def odd() -> ToolResult:
        return ToolResult("no", is_error=True)

    with pytest.raises(ToolException, match="no"):
        to_langchain(odd)[0].model_copy(update={"handle_tool_error": False}).invoke({})


# --- their models ---


class Recorded(GenericFakeChatModel):
    """A fake that streams chunks as given, and records what it was asked."""

    asked: list[Any] = []  # noqa: RUF012 - of pydantic
    bound: list[Any] = []  # noqa: RUF012
    chunks: list[AIMessageChunk] = []  # noqa: RUF012

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        self.bound.append({"tools": tools, **kwargs})
        return self

    def _generate(self, messages: Any, *args: Any, **kwargs: Any) -> ChatResult:
        self.asked.append((messages, kwargs))
        message = next(self.messages)
        if isinstance(message, Exception):
            raise message
        assert isinstance(message, AIMessage)
        return ChatResult(generations=[ChatGeneration(message=message)])

    def _stream(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
        if not self.chunks:
            [generation] = self._generate(messages, *args, **kwargs).generations
            message: Any = generation.message
            calls: Any = [
                {
                    "name": c["name"],
                    "args": str(c["args"]).replace("'", '"'),
                    "id": c["id"],
                    "index": 0,
                }
                for c in message.tool_calls
            ]
            chunk = AIMessageChunk(
                content=message.content,
                tool_call_chunks=calls,
                usage_metadata=message.usage_metadata,
            )
            yield ChatGenerationChunk(message=chunk)
            return
        yield from (ChatGenerationChunk(message=chunk) for chunk in self.chunks)


def recorded(*messages: Any, chunks: Any = ()) -> Recorded:
    return Recorded(messages=iter(messages), asked=[], bound=[], chunks=list(chunks))


USAGE: Any = {
    "input_tokens": 7,
    "output_tokens": 3,
    "total_tokens": 10,
    "input_token_details": {"cache_read": 2, "cache_creation": 1},
    "output_token_details": {"reasoning": 1},
}


def test_a_model_answers(ask: Ask) -> None:
    """The response has the text and the usage."""
    theirs = recorded(AIMessage(content="Hello.", usage_metadata=USAGE))
    client = ChatClient.builder(LangChainChatModel(theirs)).default_system("Be brief.").build()
    result = ask(client.prompt("Hi"))

    assert result.text == "Hello."
    usage = result.response.chat_response.usage
    assert (usage.input_tokens, usage.output_tokens, usage.reasoning_tokens) == (7, 3, 1)
    assert (usage.cache_read_tokens, usage.cache_write_tokens) == (2, 1)
    [(messages, _)] = theirs.asked
    assert [type(message).__name__ for message in messages] == ["SystemMessage", "HumanMessage"]


def test_a_model_calls_tools(ask: Ask) -> None:
    """Ours, and those of LangChain; the loop is that of the client."""
    wanted: Any = {"type": "tool_call", "name": "add", "args": {"a": 1, "b": 2}, "id": "c1"}
    theirs = recorded(AIMessage(content="", tool_calls=[wanted]), AIMessage(content="It is 3."))
    client = ChatClient.create(LangChainChatModel(theirs))
    options = ChatOptions(tool_choice="required", parallel_tool_calls=False, temperature=0.5)
    request = client.prompt("1 + 2?").tools(*tools_from_langchain(add)).options(options)
    result = ask(request)

    assert result.text == "It is 3."
    first, second = theirs.bound
    assert first["tools"][0]["function"]["name"] == "add"
    assert (first["tool_choice"], first["parallel_tool_calls"]) == ("any", False)
    assert "tool_choice" not in second
    messages, settings = theirs.asked[1]
    assert settings["temperature"] == 0.5
    assert messages[1].tool_calls == [wanted]
    assert (messages[2].content, messages[2].tool_call_id) == ("3", "c1")


def test_a_stream_of_a_model(ask: Ask) -> None:
    """Texts, fragments of calls and usage, chunk by chunk."""
    begin: Any = {"index": 0, "name": "add", "id": "c", "args": None}
    end: Any = {"index": 0, "name": None, "id": None, "args": '{"a": 1}'}
    thought: Any = [{"type": "thinking", "thinking": "Hm.", "index": 0}]
    text: Any = [{"type": "text", "text": "Let me ", "index": 1}]
    stop = {"stop_reason": "tool_use"}
    chunks = [
        AIMessageChunk(content=thought, id="r1", usage_metadata=USAGE),
        AIMessageChunk(content=text),
        AIMessageChunk(content="see."),
        AIMessageChunk(content="", tool_call_chunks=[begin]),
        AIMessageChunk(content="", tool_call_chunks=[end]),
        AIMessageChunk(content="", usage_metadata=USAGE, response_metadata=stop),
    ]
    if not ask.streaming:
        pytest.skip("a call has no chunks")
    client = ChatClient.create(LangChainChatModel(recorded(chunks=chunks)))
    result = ask(client.prompt("x").tool_calling(enabled=False))

    response = result.response.chat_response
    assert response.finish_reason == "tool_call"
    assert response.usage.total_tokens == 20
    [wanted] = response.generations[0].output.tool_calls
    assert (wanted.id, wanted.name, wanted.arguments) == ("c", "add", '{"a": 1}')
    texts = [event.text for event in result.events if isinstance(event, TextDelta)]
    assert texts == ["Let me ", "see."]
    assert any(isinstance(event, ToolCallDelta) for event in result.events)


def test_messages_of_all_kinds(ask: Ask) -> None:
    """Media, reasoning and parts of providers go there; foreign reasoning does not."""
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "s"}
    cited = {"type": "text", "text": "It is.", "citations": ["a"]}
    theirs = recorded(
        AIMessage(content=[thought, cited, {"type": "text", "text": "So."}, IMAGE]),
        AIMessage(content="fine"),
    )
    client = ChatClient.create(LangChainChatModel(theirs))
    history: list[Message] = [
        SystemMessage("s"),
        UserMessage(["look", Media("application/pdf", "https://a.example/b.pdf")]),
        AssistantMessage(
            [
                Reasoning("foreign", "x", "anthropic"),
                ProviderPart("openai", {"a": 1}, "cited"),
                ToolCall("1", "look", '{"a": 1}'),
                ToolCall("2", "look", "no JSON"),
            ]
        ),
        ToolResponseMessage(
            [
                ToolResponse("1", "look", "seen", media=(Media("image/png", PNG),)),
                ToolResponse("2", "look", "bad", is_error=True),
            ]
        ),
    ]
    first = ask(client.prompt(history).user("And?"))
    messages, _ = theirs.asked[0]

    assert messages[1].content == [
        {"type": "text", "text": "look"},
        {"type": "file", "mime_type": "application/pdf", "url": "https://a.example/b.pdf"},
    ]
    assert messages[2].content == "cited"
    assert [each["args"] for each in messages[2].tool_calls] == [{"a": 1}]
    assert messages[2].invalid_tool_calls[0]["args"] == "no JSON"
    assert messages[3].content == [{"type": "text", "text": "seen"}, IMAGE]
    assert messages[4].status == "error"
    assert first.response.chat_response.text == "It is.So."

    ask(client.prompt(first.answer.messages()).user("More!"))
    again = theirs.asked[1][0][-2]
    assert again.content == [thought, cited, {"type": "text", "text": "So."}, IMAGE]


def test_malformed_calls_of_a_model() -> None:
    """The model receives an error result."""
    bad: Any = {"type": "invalid_tool_call", "name": "add", "args": "{", "id": "c", "error": "e"}
    theirs = recorded(AIMessage(content="", invalid_tool_calls=[bad]), AIMessage(content="sorry"))
    client = ChatClient.create(LangChainChatModel(theirs))
    answer = client.prompt("x").tools(*tools_from_langchain(add)).call()

    assert answer.content() == "sorry"
    assert answer.tool_executions()[0].is_error


def test_options_without_a_common_name(ask: Ask) -> None:
    """Refused if set on a request, dropped if a default."""
    model = LangChainChatModel(
        recorded(AIMessage(content="x")), options=ChatOptions(model="m", stop=("a",))
    )
    client = ChatClient.builder(model).default_options(top_k=3).build()

    assert ask(client.prompt("x")).text == "x"
    assert model.name == "m"
    for options in (ChatOptions(top_k=3), ChatOptions(output_schema={"type": "object"})):
        request = ChatClient.create(model).prompt("x").options(options)
        with pytest.raises(UnsupportedOptionError):
            ask(request)


class Sum(BaseModel):
    """A typed answer."""

    total: int


def test_typed_answers() -> None:
    """They are requested by instructions, or by a call of a tool if the model has tools."""
    plain = LangChainChatModel(FakeListChatModel(responses=['{"total": 3}']))
    assert ChatClient.create(plain).prompt("?").call().entity(Sum) == Sum(total=3)
    assert plain.output_mode(ChatOptions()) == "instructions"
    wanted: Any = {"type": "tool_call", "name": "final_answer", "args": {"total": 3}, "id": "c1"}
    calling = LangChainChatModel(recorded(AIMessage(content="", tool_calls=[wanted])))
    assert ChatClient.create(calling).prompt("?").call().entity(Sum, native=True) == Sum(total=3)


def test_leaving_a_stream_ends_the_model() -> None:
    """The generator of LangChain is closed, on an event loop and without one."""
    closed: list[str] = []

    class Endless(FakeListChatModel):
        async def _astream(
            self, messages: Any, *args: Any, **kwargs: Any
        ) -> AsyncIterator[ChatGenerationChunk]:
            try:
                while True:
                    yield ChatGenerationChunk(message=AIMessageChunk(content="x"))
                    await asyncio.sleep(0)
            finally:
                closed.append("closed")

    client = ChatClient.create(LangChainChatModel(Endless(responses=["x"])))

    async def leave() -> None:
        async with client.prompt("?").astream() as stream:
            async for _ in stream:
                break
        assert closed == ["closed"]

    asyncio.run(leave())
    with client.prompt("?").stream() as stream:
        next(iter(stream))
    assert closed == ["closed", "closed"]


def test_cancelling_a_call_ends_the_model() -> None:
    """The coroutine of LangChain is cancelled."""
    begun, ended = threading.Event(), list[str]()

    class Slow(FakeListChatModel):
        async def _agenerate(self, messages: Any, *args: Any, **kwargs: Any) -> ChatResult:
            begun.set()
            try:
                await asyncio.sleep(60)
            finally:
                ended.append("ended")
            raise AssertionError

    client = ChatClient.create(LangChainChatModel(Slow(responses=["x"])))

    async def main() -> None:
        task = asyncio.create_task(client.prompt("?").acall().content())
        assert await asettled(begun.is_set)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert settled(lambda: ended == ["ended"])  # on its own loop


def test_model_without_tools(ask: Ask) -> None:
    """A model that has no method for tools is named."""
    model = LangChainChatModel(FakeListChatModel(responses=["Hi."]))
    client = ChatClient.create(model)

    assert ask(client.prompt("x")).text == "Hi."
    with pytest.raises(UsageError, match="FakeListChatModel takes no tools"):
        ask(client.prompt("x").tools(Desk().picture))


def test_what_is_no_model_is_refused() -> None:
    """The error names a class that is a model."""
    model: Any = object()
    with pytest.raises(WrongTypeError, match="ChatOpenAI"):
        LangChainChatModel(model)


def test_errors_without_a_status_are_passed_on(ask: Ask) -> None:
    """They are raised unchanged."""
    client = ChatClient.create(LangChainChatModel(recorded(LookupError("odd"))))
    with pytest.raises(LookupError, match="odd"):
        ask(client.prompt("x"))


def test_a_real_integration(ask: Ask, chat_server: Callable[..., ChatServer]) -> None:
    """`ChatOpenAI` over HTTP: tools, an answer, and a refusal with its status."""
    openai = pytest.importorskip("langchain_openai")
    busy = Reply(b'{"error": {"message": "slow down"}}', 429)
    server = chat_server(completion(None, ("c1", "add", '{"a": 1, "b": 2}')), "It is 3.", busy)
    theirs = openai.ChatOpenAI(
        model="m-1", base_url=server.url, api_key="k", max_retries=0, stream_usage=True
    )
    model = LangChainChatModel(theirs)
    client = ChatClient.create(model)
    result = ask(client.prompt("1 + 2?").tools(*tools_from_langchain(add)))

    assert result.response.chat_response.text == "It is 3."
    assert result.response.chat_response.finish_reason == "stop"
    assert (model.name, model.provider) == ("m-1", "openai")
    sent = server.requests[1]["messages"]
    assert [message["role"] for message in sent] == ["user", "assistant", "tool"]
    with pytest.raises(RateLimitedError, match="slow down") as caught:
        ask(client.prompt("again"))
    assert caught.value.status == 429

    @tool
    async def close() -> None:
        await theirs.root_async_client.close()

    # Blocking, and so on the loop that its connections belong to.
    FunctionToolCallback(close).call("{}")


def test_history_from_langchain_is_unused() -> None:
    """A message of LangChain is no prompt."""
    message: Any = HumanMessage("x")
    with pytest.raises(TypeError):
        ChatClient.create(ScriptedModel()).prompt([message])
