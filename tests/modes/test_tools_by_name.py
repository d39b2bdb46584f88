"""Tools that the model has found in the conversation and calls by name."""

import asyncio
import json
from collections.abc import AsyncGenerator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, strategies as st

from chatclient import (
    AssistantMessage,
    ChatClient,
    ChatModel,
    ChatResponse,
    Prompt,
    ToolCall,
    ToolResponseMessage,
    tool,
)
from chatclient.advisors import MessageChatMemoryAdvisor, ToolSearchToolCallingAdvisor
from chatclient.advisors.tool_search.session import FOUND_TOOLS
from chatclient.chain.calls_by_name import CALL_TOOL, CallsByNameAggregator, as_called
from chatclient.chat.events import ToolCallDelta, ToolCallStarted
from chatclient.chat.messages import ToolCallChunk
from chatclient.chat.response import Generation
from chatclient.errors import DuplicateToolError, ToolCallRefusedError
from chatclient.memory import MessageWindowChatMemory
from chatclient.runtime.runtime import Runtime
from chatclient.testing import Ask, ScriptedModel, call
from chatclient.tools import Decision, ToolCallingManager, ToolInvocation, ToolLimits
from tests.modes.test_tool_search import CATALOG, SEARCH, made, offered, search


def by_name(name: str, arguments: Any = None, id: str | None = None) -> ToolCall:
    return call(CALL_TOOL, {"name": name, "arguments": arguments or {}}, id=id or f"call_{name}")


def client_of(
    model: ChatModel, *tools: Any, undiscovered: bool = True, **manager: Any
) -> ChatClient:
    search = ToolSearchToolCallingAdvisor(
        disclosure="in_conversation", run_undiscovered=undiscovered
    )
    return (
        ChatClient.builder(model)
        .default_tools(CATALOG, *tools)
        .tool_calling_manager(ToolCallingManager(**manager))
        .default_advisors(search)
        .build()
    )


def called(prompt: Prompt) -> list[tuple[str, str]]:
    """Return names and arguments of all calls in *prompt*."""
    assistant = (m for m in prompt.messages if isinstance(m, AssistantMessage))
    return [(each.name, each.arguments) for message in assistant for each in message.tool_calls]


def answered(prompt: Prompt) -> list[str]:
    """Return the names in all results in *prompt*."""
    messages = (m for m in prompt.messages if isinstance(m, ToolResponseMessage))
    return [each.name for message in messages for each in message.responses]


def test_found_tools_are_called_by_name(ask: Ask) -> None:
    """The model is sent two tools and what it said; the application sees calls of the tool."""
    model = ScriptedModel(search("weather"), by_name("get_weather", {"day": 1}), "sunny")
    result = ask(client_of(model).prompt("How is the weather?"))

    assert [offered(prompt) for prompt in model.prompts] == [[SEARCH, CALL_TOOL]] * 3
    found = json.loads(model.prompts[1].messages[-1].responses[0].data)  # type: ignore[attr-defined]
    assert found["tools"] == [
        {
            "name": "get_weather",
            "description": "Gives the weather one asks for.",
            "parameters": {"type": "object", "properties": {}},
        }
    ]
    assert [(e.tool_call.name, e.tool_call.arguments) for e in result.executions[1:]] == [
        ("get_weather", '{"day":1}')
    ]
    assert result.executions[1].response.name == "get_weather"
    assert called(model.prompts[2])[1] == (
        CALL_TOOL,
        '{"name":"get_weather","arguments":{"day":1}}',
    )
    assert answered(model.prompts[2]) == [SEARCH, CALL_TOOL]
    assert result.response.chat_response.generations[0].output.metadata[FOUND_TOOLS] == [
        "get_weather"
    ]
    if ask.streaming:
        started = [event for event in result.events if isinstance(event, ToolCallStarted)]
        assert [event.name for event in started] == [SEARCH, "get_weather"]
        deltas = [e.arguments for e in result.events if isinstance(e, ToolCallDelta)]
        assert "".join(deltas).endswith('{"day":1}')


def test_the_prompt_only_grows(ask: Ask) -> None:
    """Tools that are found in later turns change nothing that was sent before."""
    model = ScriptedModel(
        *(search("weather", "s1"), by_name("get_weather", id="c1"), "one"),
        *(search("mail", "s2"), by_name("get_mail", id="c2"), "two"),
        *(by_name("get_weather", id="c3"), "three"),
    )
    memory = MessageWindowChatMemory()
    client = client_of(model).mutate().default_advisors(MessageChatMemoryAdvisor(memory)).build()
    for question in ("a", "b", "c"):
        ask(client.prompt(question).conversation("c"))

    sent = [prompt.messages for prompt in model.prompts]
    for earlier, later in pairwise(sent):
        assert later[: len(earlier)] == earlier
    assert {tuple(offered(prompt)) for prompt in model.prompts} == {(SEARCH, CALL_TOOL)}
    stored = (m for m in memory.get("c") if isinstance(m, AssistantMessage))
    names = [each.name for message in stored for each in message.tool_calls]
    assert names == [SEARCH, "get_weather", SEARCH, "get_mail", "get_weather"]


def test_messages_are_encoded_once() -> None:
    """Messages of earlier requests are the same objects when they are sent again."""
    model = ScriptedModel(search("weather"), by_name("get_weather"), "one")
    client_of(model).prompt("a").call().content()

    second, third = (prompt.messages for prompt in model.prompts[1:])
    assert all(one is other for one, other in zip(second, third, strict=False))


@tool(effect="write", confirm=True)
def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


def test_approval_is_about_the_tool_itself(ask: Ask) -> None:
    """The user sees its name and arguments, and the call is run as approved."""
    model = ScriptedModel(search("pay"), by_name("pay", {"amount": 5}), "done")
    client = client_of(model, pay)
    turn = ask(client.prompt("x")).waiting
    [(id, waiting)] = turn.to_decide().items()
    assert (waiting.name, waiting.arguments) == ("pay", '{"amount":5}')

    result = ask(client.resume(turn, {id: Decision(True, arguments='{"amount": 7}')}))
    assert result.executions[-1].response.data.endswith("paid 7")
    assert called(model.prompts[-1])[-1] == (CALL_TOOL, '{"name":"pay","arguments":{"amount":5}}')


def test_the_tools_own_settings_apply(ask: Ask) -> None:
    """Argument checks, limits for a tool, interceptors and approval see the tool itself."""
    seen: list[str] = []

    @tool
    def order(item: str) -> str:
        """Order an item."""
        return f"ordered {item}"

    async def note(invocation: ToolInvocation, call_next: Any) -> Any:
        seen.append(f"{invocation.tool_call.name} {invocation.context.attempt}")
        return await call_next(invocation)

    model = ScriptedModel(
        *(search("order item"), by_name("order", {"things": 1}, "1")),
        *(by_name("order", {"item": "tea"}, "2"), by_name("order", {"item": "jam"}, "3"), "done"),
    )
    limits = ToolLimits(per_tool={"order": 2}, on_exceeded="tell_model")
    result = ask(client_of(model, order, interceptors=[note], limits=limits).prompt("x"))

    assert seen == [f"{SEARCH} 1", "order 1", "order 2"]
    told = [each.response.data for each in result.executions[1:]]
    assert "item: missing" in told[0]
    assert told[1] == "ordered tea"
    assert "order" in told[2]
    assert {each.tool_call.name for each in result.executions[1:]} == {"order"}


def test_compensation_undoes_calls_by_name(ask: Ask) -> None:
    """A call is undone like one of a tool that was sent."""
    undone: list[str] = []

    def unbook(item: str) -> None:
        undone.append(item)

    @tool(compensation=unbook)
    def book(item: str) -> str:
        """Book an item."""
        return item

    model = ScriptedModel(search("book item"), by_name("book", {"item": "tea"}), ValueError("x"))
    with pytest.raises(ValueError, match="x"):
        ask(client_of(model, book).prompt("x"))

    assert undone == ["tea"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("nothing", "needs an object"),
        ('{"arguments": {}}', "needs an object"),
        ('{"name": 5}', "needs an object"),
        ('{"name": "get_wether", "arguments": {}}', "no tool 'get_wether'"),
    ],
)
def test_calls_of_unknown_tools_are_error_results(ask: Ask, arguments: str, told: str) -> None:
    """The error result names the problem, and the next call works."""
    model = ScriptedModel(call(CALL_TOOL, arguments), by_name("get_mail"), "ok")
    result = ask(client_of(model).prompt("x"))

    assert told in result.executions[0].response.data
    assert result.executions[1].response.data == "ran get_mail"
    if ask.streaming:
        started = [event.name for event in result.events if isinstance(event, ToolCallStarted)]
        assert started[-1] == "get_mail"
        assert len(started) == 2


def test_tools_called_directly_are_run(ask: Ask) -> None:
    """Some models use the name that they have read; it is sent back as a call by name."""
    model = ScriptedModel(search("mail"), call("get_mail"), "ok")
    result = ask(client_of(model).prompt("x"))

    assert result.executions[1].response.data == "ran get_mail"
    assert called(model.prompts[2])[1] == (CALL_TOOL, '{"name":"get_mail","arguments":{}}')


def test_only_found_tools_are_run_if_required(ask: Ask) -> None:
    """With `run_undiscovered=False` a tool must be found first."""
    model = ScriptedModel(by_name("get_mail"), search("mail"), by_name("get_mail", id="2"), "ok")
    first, _, second = ask(client_of(model, undiscovered=False).prompt("x")).executions

    assert "no tool 'get_mail'" in first.response.data
    assert second.response.data == "ran get_mail"


def test_a_chosen_tool_is_sent(ask: Ask) -> None:
    """The model can only be forced to call a tool that is sent."""
    model = ScriptedModel(call("get_mail"), "ok")
    ask(client_of(model).prompt("x").options(tool_choice="get_mail"))

    assert offered(model.prompts[0]) == [SEARCH, CALL_TOOL, "get_mail"]
    assert called(model.prompts[1]) == [("get_mail", "{}")]


def test_no_tool_has_the_name_of_the_call(ask: Ask) -> None:
    """The error says which tool has to be renamed."""
    with pytest.raises(DuplicateToolError, match=CALL_TOOL):
        ask(client_of(ScriptedModel("x"), made(CALL_TOOL, "Calls.")).prompt("x"))


def test_a_call_that_the_server_refuses_names_the_tool(ask: Ask) -> None:
    """The loop tells the model what was wrong with the call of the tool."""
    refused = ToolCallRefusedError("bad", tool_call=by_name("get_mail", id="1"))
    model = ScriptedModel(refused, "ok")
    result = ask(client_of(model).prompt("x"))

    assert result.executions[0].tool_call.name == "get_mail"


class Fragments(ChatModel):
    """Streams tool calls in small fragments, and waits before the last one."""

    def __init__(self, calls: list[ToolCall], before_last: Any) -> None:
        self.calls = calls
        self.before_last = before_last
        self.asked = 0

    async def generate(self, prompt: Prompt, runtime: Runtime) -> ChatResponse:
        raise NotImplementedError

    async def generate_stream(
        self, prompt: Prompt, runtime: Runtime
    ) -> AsyncGenerator[ChatResponse | str, None]:
        self.asked += 1
        if self.asked > 1:
            yield "done"
            return
        for at, each in enumerate(self.calls):
            for chunk in fragments(each, at, 3):
                yield chunk
        await self.before_last()


def fragments(each: ToolCall, index: int, size: int) -> list[ChatResponse]:
    pieces = [each.arguments[at : at + size] for at in range(0, len(each.arguments), size)]
    chunks = [
        ToolCallChunk(index, each.id, each.name),
        *(ToolCallChunk(index, "", "", p) for p in pieces),
    ]
    return [ChatResponse((Generation(AssistantMessage([chunk])),)) for chunk in chunks]


async def test_reading_tools_start_while_the_model_streams() -> None:
    """The first call runs when the second one begins, not when the message is complete."""
    ran = asyncio.Event()

    @tool(effect="read")
    async def look(item: str) -> str:
        ran.set()
        return item

    calls = [by_name("look", {"item": item}, id=item) for item in ("tea", "jam")]
    model = Fragments(calls, lambda: asyncio.wait_for(ran.wait(), 5))
    stream = client_of(model, look, eager_reads=True).prompt("x").astream()
    events = [event async for event in stream.events()]

    started = [event for event in events if isinstance(event, ToolCallStarted)]
    assert [(event.id, event.name) for event in started] == [("tea", "look"), ("jam", "look")]
    assert [each.response.data for each in stream.tool_executions()] == ["tea", "jam"]


FORMS = [
    '{"name":"t","arguments":{"a":"}\\"{","b":[{}]}}',
    ' {\n "name" : "t", "arguments" : {"a": 1} } ',
    '{"arguments": {"a": 1}, "name": "t"}',
    '{"name": "t"}',
    '{"name": "t", "a": 1}',
    '{"name": "t", "arguments": "{\\"a\\": 1}"}',
    '{"name": "t", "arguments": {"a": 1}',
    '{"name": "t", "arguments": {"a": 1',
    '{"a": 1}',
    "nothing",
    "",
]


@given(st.lists(st.sampled_from(FORMS), min_size=1, max_size=3), st.integers(1, 40))
def test_streamed_calls_are_those_of_the_response(forms: list[str], size: int) -> None:
    """Events and response agree, whatever the form of a call and the size of the fragments."""
    calls = [ToolCall(f"c{at}", CALL_TOOL, form) for at, form in enumerate(forms)]
    aggregator = CallsByNameAggregator()
    parts: list[Any] = []
    for at, each in enumerate(calls):
        for chunk in fragments(each, at, size):
            parts += aggregator.add_and_normalize(chunk)
    parts += aggregator.rest()
    streamed: dict[str, tuple[str, str]] = {}
    for part in parts:
        name, arguments = streamed.get(part.id, ("", ""))
        streamed[part.id] = (name + part.name, arguments + part.arguments)

    received = aggregator.response().generations[0].output.tool_calls
    assert streamed == {each.id: (each.name, each.arguments) for each in received}
    whole = ChatResponse((Generation(AssistantMessage(tool_calls=calls)),))
    expected = [
        (each.name, each.arguments) for each in as_called(whole).generations[0].output.tool_calls
    ]
    empty = [
        ("callTool", "{}") if form == "" else each
        for form, each in zip(forms, expected, strict=True)
    ]
    assert [(each.name, each.arguments) for each in received] == empty


@pytest.mark.parametrize(
    ("form", "name", "arguments"),
    [
        (FORMS[0], "t", {"a": '}"{', "b": [{}]}),
        *((form, "t", {"a": 1}) for form in (FORMS[1], FORMS[2], FORMS[4], FORMS[5], FORMS[6])),
        (FORMS[3], "t", {}),
        (FORMS[8], CALL_TOOL, {"a": 1}),
    ],
)
def test_forms_of_calls(form: str, name: str, arguments: Any) -> None:
    """Models order the fields as they like, leave out the object, or encode it twice."""
    response = ChatResponse((Generation(AssistantMessage(tool_calls=[call(CALL_TOOL, form)])),))
    [received] = as_called(response).generations[0].output.tool_calls

    assert (received.name, json.loads(received.arguments)) == (name, arguments)
