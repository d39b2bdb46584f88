# pyright: reportPossiblyUnboundVariable=false
# A loop over `longer_and_longer` runs at least once.
"""Agents as tools, progress in streams, direct results, and choices that force a call."""

import asyncio
import itertools
import threading
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from chatclient import (
    ChatClient,
    ChatClientRequest,
    ChatClientResponse,
    ChatResponse,
    Next,
    Prompt,
    ToolContext,
    tool,
)
from chatclient.advisors import ToolCallingAdvisor
from chatclient.advisors.guardrails.advisors import GuardrailResult, OutputGuardrailAdvisor
from chatclient.advisors.memory.advisors import MessageChatMemoryAdvisor
from chatclient.chat.events import Done, RoundEnded, TextDelta, ToolCallFinished, ToolCallStarted
from chatclient.chat.tool import CONVERSATION_ID, ToolProgress
from chatclient.errors import DeadlineExceededError, ToolDefinitionError, ToolUsageError
from chatclient.memory import MessageWindowChatMemory
from chatclient.testing import Answer, Ask, ScriptedModel, call
from chatclient.tools import (
    NextTool,
    ToolCallback,
    ToolCallingManager,
    ToolInvocation,
    ToolMetadata,
    ToolResult,
)
from tests.modes.test_tool_calling import assert_paired, client_of, results
from tests.support.waiting import longer_and_longer


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


ADD = call("add", '{"a": 1, "b": 2}')
ASK = call("expert", '{"request": "What is 1 + 2?"}')


def expert(*answers: Answer, tools: Any = (), **metadata: Any) -> tuple[ScriptedModel, Any]:
    """Return the model of an agent, and the agent as a tool."""
    model = ScriptedModel(*answers, chunks=100)
    client = ChatClient.builder(model).default_system("You are an expert.")
    agent = client.default_tools(*tools).build()
    return model, agent.as_tool("expert", "Knows all.", metadata=ToolMetadata(**metadata))


# --- agents as tools ---


@pytest.mark.feature("resolver-agent-tool", "lc4j-tool-services-tools")
def test_an_agent_is_a_tool(ask: Ask) -> None:
    """The request of the model is the agent's user text, and its answer is the tool's result."""
    inner, agent = expert(ADD, "It is 3.", tools=[add])
    model = ScriptedModel(ASK, "The expert says 3.")
    result = ask(client_of(model, agent).prompt("x"))

    assert result.text == "The expert says 3."
    assert results(model.prompts[1]) == ["It is 3."]
    assert inner.prompts[0].contents.endswith("What is 1 + 2?")
    assert results(inner.prompts[1]) == ["3"]
    assert [each.tool_call.name for each in result.executions] == ["expert"]
    assert isinstance(agent, ToolCallback)
    assert agent.definition.input_schema["required"] == ["request"]


@pytest.mark.feature("resolver-agent-tool")
def test_what_an_agent_does_appears_as_progress(ask: Ask) -> None:
    """Its events are wrapped in a stream; its text is not mixed with the answer."""
    _, agent = expert(["Let me see.", ADD], "It is 3.", tools=[add])
    result = ask(client_of(ScriptedModel(ASK, "Three."), agent).prompt("x"))

    assert result.text == "Three."
    inner = [event for event in result.events if isinstance(event, ToolProgress)]
    if not ask.streaming:
        assert inner == []
        return
    assert {(event.tool_call_id, event.tool_name) for event in inner} == {("call_expert", "expert")}
    kinds = [type(event.event).__name__ for event in inner]
    assert kinds == [
        "TextDelta",
        "ToolCallStarted",
        "ToolCallDelta",
        "RoundEnded",
        "ToolRunStarted",
        "ToolCallFinished",
        "TextDelta",
        "RoundEnded",
    ]
    order = [type(event) for event in result.events]
    assert order.index(ToolProgress) < order.index(ToolCallFinished)


@pytest.mark.feature("lc4j-tool-services-tools")
def test_agents_can_ask_agents(ask: Ask) -> None:
    """Progress is wrapped once for each agent."""
    _, innermost = expert("42")
    model = ScriptedModel(ASK, "It is 42.", chunks=100)
    middle = client_of(model, innermost).as_tool("middle", "Knows whom to ask.")
    outer = ScriptedModel(call("middle", '{"request": "?"}'), "done")
    result = ask(client_of(outer, middle).prompt("x"))

    assert results(outer.prompts[1]) == ["It is 42."]
    wrapped = [
        event.event.event
        for event in result.events
        if isinstance(event, ToolProgress) and isinstance(event.event, ToolProgress)
    ]
    assert [type(event) for event in wrapped] == ([TextDelta, RoundEnded] if ask.streaming else [])


@pytest.mark.parametrize(
    "mode",
    ["acall", "astream", "stream"],
)
@pytest.mark.parametrize("kind", ["stream", "astream"])
def test_a_stream_inside_a_tool_keeps_its_events(mode: Any, kind: str) -> None:
    """The events of a stream in a tool are not in the outer stream."""
    inner: list[type] = []

    @tool
    async def listens() -> None:
        request = client_of(ScriptedModel(ADD, "3"), add).prompt("x")
        if kind == "stream":
            inner.extend(type(event) for event in request.stream().events())
        else:
            inner.extend([type(event) async for event in request.astream().events()])

    result = Ask(mode)(client_of(ScriptedModel(call("listens"), "done"), listens).prompt("x"))

    assert inner.count(ToolCallFinished) == 1
    outer = [event for event in result.events if isinstance(event, ToolCallFinished)]
    assert [event.tool_call.name for event in outer] == (["listens"] if result.events else [])


@pytest.mark.feature("resolver-agent-tool")
def test_an_agent_has_the_context_and_the_conversation(ask: Ask) -> None:
    """The agent's tools receive the outer tool context and conversation id."""
    seen: list[Any] = []

    @tool
    def who(context: ToolContext) -> None:
        seen.append((context["tenant"], context.conversation_id))

    _, agent = expert(call("who"), "ok", tools=[who])
    request = client_of(ScriptedModel(ASK, "done"), agent).prompt("x")
    ask(request.tool_context(tenant="acme").conversation("c-1"))

    assert seen == [("acme", "c-1")]


@pytest.mark.feature("tool-options-doing-thing-once")
def test_a_repeated_question_to_an_agent_runs_again(ask: Ask) -> None:
    """Its calls have the same keys only if the turn of the caller is repeated."""
    keys: list[str] = []

    @tool
    def pay(amount: int, context: ToolContext) -> str:
        keys.append(context.idempotency_key)
        return "paid"

    def turn(question: str, *answers: Answer) -> list[str]:
        keys.clear()
        paid: list[Answer] = [call("pay", '{"amount": 5}'), "Paid."]
        _, agent = expert(*paid * 2, tools=[pay], sequential=True)
        client = client_of(ScriptedModel(*answers, "Done."), agent)
        ask(client.prompt(question).conversation("c").idempotency_key(question))
        return list(keys)

    twice = [call("expert", ASK.arguments, id=id) for id in "ab"]
    first, later = turn("Pay twice!", twice), turn("Pay again!", ASK)

    assert len({*first, *later}) == 3
    assert turn("Pay twice!", ASK, ASK) == first


@pytest.mark.feature("lc4j-tool-services-tools")
def test_an_agent_that_fails_is_a_tool_that_fails(ask: Ask) -> None:
    """The outer model receives an error result, and the turn continues."""
    _, agent = expert(LookupError("out of office"))
    model = ScriptedModel(ASK, "recovered")

    assert ask(client_of(model, agent).prompt("x")).text == "recovered"
    assert results(model.prompts[1]) == ["out of office"]


@pytest.mark.parametrize("arguments", ["{}", '{"request": "a", "more": 1}', "no JSON"])
def test_the_request_to_an_agent_is_checked(ask: Ask, arguments: str) -> None:
    """Invalid arguments are an error result, and the agent is not called."""
    inner, agent = expert("never")
    model = ScriptedModel(call("expert", arguments), "done")
    result = ask(client_of(model, agent).prompt("x"))

    assert result.executions[0].is_error
    assert inner.prompts == []


def test_an_agents_answer_can_be_the_answer(ask: Ask) -> None:
    """With a direct result, the outer model is not called again."""
    _, agent = expert("It is 3.", return_direct=True)

    assert ask(client_of(ScriptedModel(ASK), agent).prompt("x")).text == "It is 3."


def test_agents_work_side_by_side(ask: Ask) -> None:
    """Agents run in parallel up to the manager's limit, and each result has the id of its call."""
    model = ScriptedModel(lambda prompt: f"on {prompt.messages[-1].text}")
    agent = ChatClient.create(model).as_tool("expert", "Knows all.")
    calls = [call("expert", f'{{"request": "{n}"}}', id=f"e{n}") for n in range(4)]
    outer = ScriptedModel(calls, "done")
    result = ask(client_of(outer, agent, blocking_concurrency=4).prompt("x"))

    assert results(outer.prompts[1]) == ["on 0", "on 1", "on 2", "on 3"]
    ids = {event.tool_call_id for event in result.events if isinstance(event, ToolProgress)}
    assert ids == ({"e0", "e1", "e2", "e3"} if ask.streaming else set())


@pytest.mark.feature("lc4j-tool-services-tools")
def test_the_deadline_outside_holds_inside(ask: Ask) -> None:
    """The outer deadline bounds an agent's tools."""
    seen: list[float] = []

    @tool
    async def slow(context: ToolContext) -> None:
        seen.append(context.remaining_seconds)
        await asyncio.sleep(600)

    for seconds in longer_and_longer():
        _, agent = expert(call("slow"), "never", tools=[slow])
        with pytest.raises(DeadlineExceededError):
            ask(client_of(ScriptedModel(ASK, "never"), agent).prompt("x").deadline(seconds))
        if seen:
            break

    assert seen[0] <= seconds


def test_an_agents_own_timeout_is_an_error_result(ask: Ask) -> None:
    """After the agent's timeout, the outer model receives an error result."""

    @tool
    async def slow() -> None:
        await asyncio.sleep(600)

    _, agent = expert(call("slow"), "never", tools=[slow], timeout=0.05)
    model = ScriptedModel(ASK, "recovered")

    assert ask(client_of(model, agent).prompt("x").deadline(500)).text == "recovered"
    assert results(model.prompts[1]) == ["The tool 'expert' did not answer in time."]


def test_an_agent_needs_a_name_that_providers_accept() -> None:
    """The name of an agent is checked like that of every tool."""
    with pytest.raises(ToolDefinitionError, match="my_expert"):
        ChatClient.create(ScriptedModel("x")).as_tool("my expert", "Knows all.")


# --- agents that remember, and what they are given ---


def remembering(model: ScriptedModel, **how: Any) -> ToolCallback:
    """Return an agent with a memory."""
    memory = MessageChatMemoryAdvisor(MessageWindowChatMemory())
    agent = ChatClient.builder(model).default_advisors(memory).build()
    return agent.as_tool("expert", "Knows all.", **how)


def asking(times: int) -> ScriptedModel:
    """Return a model that calls the expert in each of so many turns."""
    script: list[Answer] = [ASK, "done"]
    return ScriptedModel(*script * times)


def users(prompt: Prompt) -> list[str]:
    return [message.text for message in prompt.messages if message.role == "user"]


@pytest.mark.feature("resolver-agent-tool")
def test_agents_with_a_memory(ask: Ask) -> None:
    """An agent has one conversation for each of its caller."""
    inner = ScriptedModel(lambda prompt: "an answer")
    client = client_of(asking(3), remembering(inner))
    for conversation in ("a", "a", "b"):
        ask(client.prompt("x").conversation(conversation))

    assert [len(users(prompt)) for prompt in inner.prompts] == [1, 2, 1]


async def of_user(context: ToolContext) -> str:
    return f"user-{context['user']}"


@pytest.mark.parametrize("conversation", ["shared", of_user, lambda context: context["user"]])
def test_the_conversation_of_an_agent_can_be_set(ask: Ask, conversation: Any) -> None:
    """It may be a constant or in the tool context; the caller then needs no conversation."""
    inner = ScriptedModel(lambda prompt: "an answer")
    agent = remembering(inner, conversation=conversation)
    client = client_of(asking(2), agent)
    for user in ("ada", "bob"):
        ask(client.prompt("x").tool_context(user=user))

    assert len(users(inner.prompts[1])) == (2 if conversation == "shared" else 1)


@pytest.mark.parametrize(
    ("how", "told"),
    [({}, "'expert' has a memory"), ({"conversation": " "}, "'expert' cannot be asked: a conv")],
)
def test_a_wrongly_configured_agent_ends_the_turn(ask: Ask, how: Any, told: str) -> None:
    """A configuration error of an agent is raised to the application."""
    client = client_of(ScriptedModel(ASK), remembering(ScriptedModel(), **how))

    with pytest.raises(ToolUsageError, match=told):
        ask(client.prompt("x"))


def test_a_conversation_in_the_agents_defaults_is_used(ask: Ask) -> None:
    """A conversation id in the agent client's defaults is used."""
    inner = ScriptedModel(lambda prompt: "an answer")
    memory = MessageChatMemoryAdvisor(MessageWindowChatMemory())
    builder = ChatClient.builder(inner).default_advisors(memory)
    agent = builder.default_advisor_params({CONVERSATION_ID: "one"}).build()
    client = client_of(asking(2), agent.as_tool("expert", "Knows all."))
    for conversation in ("a", "b"):
        ask(client.prompt("x").conversation(conversation))

    assert len(users(inner.prompts[1])) == 2


@pytest.mark.feature("resolver-agent-tool")
def test_an_agent_may_be_given_values(ask: Ask) -> None:
    """The model fills in the type's fields, and the agent reads them as JSON."""

    class Trip(BaseModel):
        city: str
        days: int = 2

    inner = ScriptedModel("Booked.")
    agent = ChatClient.create(inner).as_tool("travel", "Books.", input_type=Trip)
    model = ScriptedModel(call("travel", '{"city": "Rome"}'), call("travel", "{}"), "done")
    ask(client_of(model, agent).prompt("x"))

    assert agent.definition.input_schema["required"] == ["city"]
    assert inner.prompts[0].contents == '{"city":"Rome","days":2}'
    assert "city" in results(model.prompts[2])[-1]


def test_a_blank_request_to_an_agent_is_an_error_result(ask: Ask) -> None:
    """A blank request is an error result, and the agent is not called."""
    inner, agent = expert()
    model = ScriptedModel(call("expert", '{"request": " "}'), "done")
    result = ask(client_of(model, agent).prompt("x"))

    assert (result.executions[0].is_error, inner.prompts) == (True, [])
    assert "its request is blank" in results(model.prompts[1])[0]


# --- progress ---


def progress_of(events: list[Any]) -> list[Any]:
    return [event.event for event in events if isinstance(event, ToolProgress)]


@pytest.mark.feature("wish-progress-local-tools")
def test_an_async_tool_reports_its_progress(ask: Ask) -> None:
    """Progress is streamed while the tool runs; calls ignore it."""

    @tool
    async def copy(context: ToolContext, files: int = 3) -> str:
        for n in range(files):
            await asyncio.sleep(0.001)
            await context.progress(f"{n + 1}/{files}")
        return "copied"

    model = ScriptedModel(call("copy", id="c1"), "done")
    result = ask(client_of(model, copy).prompt("x"))

    assert results(model.prompts[1]) == ["copied"]
    expected = [ToolProgress("c1", "copy", f"{n}/3") for n in (1, 2, 3)] if ask.streaming else []
    assert [event for event in result.events if isinstance(event, ToolProgress)] == expected


@pytest.mark.feature("wish-progress-local-tools")
def test_progress_comes_while_the_tool_runs() -> None:
    """A blocking stream shows it before the tool has ended."""
    proceed = threading.Event()

    @tool
    async def waits(context: ToolContext) -> str:
        await context.progress("waiting")
        await asyncio.to_thread(proceed.wait, 5)
        return "went on" if proceed.is_set() else "nobody noticed"

    model = ScriptedModel(call("waits"), "done")
    stream = client_of(model, waits).prompt("x").stream()
    for event in stream.events():
        if isinstance(event, ToolProgress):
            proceed.set()

    assert results(model.prompts[1]) == ["went on"]


@pytest.mark.feature("tool-options-progress-tool")
def test_progress_of_tools_side_by_side(ask: Ask) -> None:
    """Each event has the id of its call."""

    @tool
    async def work(n: int, context: ToolContext) -> int:
        for step in range(2):
            await asyncio.sleep(0.001)
            await context.progress((n, step))
        return n

    calls = [call("work", f'{{"n": {n}}}', id=f"w{n}") for n in range(3)]
    model = ScriptedModel(calls, "done")
    result = ask(client_of(model, work, blocking_concurrency=3).prompt("x"))

    progress = [event for event in result.events if isinstance(event, ToolProgress)]
    assert all(event.tool_call_id == f"w{event.event[0]}" for event in progress)  # type: ignore[index]
    expected = [(n, step) for n in range(3) for step in range(2)] if ask.streaming else []
    assert sorted(progress_of(progress)) == expected


@pytest.mark.feature("tool-options-progress-tool")
def test_a_tool_may_emit_custom_events(ask: Ask) -> None:
    """Any object of the application is streamed unchanged."""

    @tool
    async def show(context: ToolContext) -> None:
        await context.emit({"chart": [1, 2, 3]})

    result = ask(client_of(ScriptedModel(call("show"), "done"), show).prompt("x"))

    assert ({"chart": [1, 2, 3]} in result.events) is ask.streaming


def test_an_interceptor_may_report_progress(ask: Ask) -> None:
    """An interceptor can report the progress of a plain tool, which cannot await."""

    async def announce(invocation: ToolInvocation, call_next: NextTool) -> ToolResult:
        await invocation.context.progress("begins")
        return await call_next(invocation)

    model = ScriptedModel(ADD, "done")
    result = ask(client_of(model, add, interceptors=[announce]).prompt("x"))

    assert progress_of(result.events) == (["begins"] if ask.streaming else [])


# --- direct results ---

Way = Literal["direct", "if_last", "plain"]


WAYS: dict[Way, bool | Literal["if_last"]] = {"direct": True, "if_last": "if_last", "plain": False}


def tool_of(name: str, way: Way, said_by: str) -> Any:
    """Return a tool that is direct in *way*, as set in the tool or in its result."""
    own, other = WAYS[way], way == "plain"

    @tool(name=name, return_direct=own if said_by == "tool" else other)
    def answer() -> ToolResult:
        own_word = own if said_by == "result" else None
        return ToolResult(f"from {name}", return_direct=own_word)

    return answer


@pytest.mark.feature(
    "manager-return-direct-all-tools",
    "manager-result-says-so",
    "lc4j-tool-return-behavior-immediate-last",
)
@pytest.mark.parametrize("said_by", ["tool", "result"])
@pytest.mark.parametrize(
    ("ways", "answers"),
    [
        (["direct"], [0]),
        (["if_last"], [0]),
        (["plain"], []),
        (["direct", "direct"], [0, 1]),
        (["direct", "plain"], []),
        (["plain", "direct"], []),
        (["plain", "if_last"], [1]),
        (["if_last", "plain"], []),
        (["if_last", "direct"], [0, 1]),
        (["direct", "if_last"], [0, 1]),
        (["plain", "direct", "if_last"], [2, 1]),
        (["if_last", "if_last", "plain"], []),
    ],
)
def test_when_results_are_the_answer(
    ask: Ask, ways: list[Way], answers: list[int], said_by: str
) -> None:
    """Results are the answer if all tools return directly, or the last one with `if_last`.

    Results for the model are not part of it. `return_direct` of a result overrides that of its
    tool.
    """
    tools = [tool_of(f"t{n}", way, said_by) for n, way in enumerate(ways)]
    model = ScriptedModel([call(f"t{n}") for n in range(len(ways))], "from the model")
    result = ask(client_of(model, *tools).prompt("x"))
    generations = result.response.chat_response.generations

    assert len(model.prompts) == (1 if answers else 2)
    texts = [f"from t{n}" for n in answers] or ["from the model"]
    assert result.text == result.response.chat_response.text == "\n\n".join(texts)
    if answers:
        assert [each.output.text for each in generations] == texts
        assert {each.finish_reason for each in generations} == {"return_direct"}
        assert [each.index for each in generations] == list(range(len(answers)))
        ids = [each.metadata["tool_id"] for each in generations]
        assert ids == [f"call_t{n}" for n in answers]


# --- forced calls ---


@pytest.mark.feature("loop-forced-tool-choice-never", "wish-required-loops-forever")
@pytest.mark.parametrize("choice", ["required", "add"])
def test_a_forced_call_is_forced_once(ask: Ask, choice: str) -> None:
    """After the first round the model may answer."""

    def obedient(prompt: Prompt) -> Answer:
        forced = prompt.options.tool_choice not in (None, "auto", "none")
        return ADD if forced else "It is 3."

    model = ScriptedModel(obedient)
    result = ask(client_of(model, add).prompt("x").options(tool_choice=choice))

    assert result.text == "It is 3."
    assert [prompt.options.tool_choice for prompt in model.prompts] == [choice, "auto"]


def test_a_call_is_not_forced_again_for_another_answer(ask: Ask) -> None:
    """A reprompt after the tools have run does not force a call."""
    verdicts = [GuardrailResult.reprompt("Too curt.", "In full, please."), None]

    def judge(_: ChatResponse) -> GuardrailResult | None:
        return verdicts.pop(0)

    def obedient(prompt: Prompt) -> Answer:
        forced = prompt.options.tool_choice not in (None, "auto", "none")
        return ADD if forced else "It is 3."

    model = ScriptedModel(obedient)
    client = client_of(model, add).mutate().default_advisors(OutputGuardrailAdvisor(judge)).build()
    result = ask(client.prompt("x").options(tool_choice="required"))

    assert [each.tool_call for each in result.executions] == [ADD]


@pytest.mark.feature("loop-forced-tool-choice-never", "wish-required-loops-forever")
@pytest.mark.parametrize("choice", ["auto", "none", None])
def test_a_choice_that_forces_nothing_stays(ask: Ask, choice: str | None) -> None:
    """A tool choice that forces no call is kept in all rounds."""
    model = ScriptedModel(ADD, "done")
    ask(client_of(model, add).prompt("x").options(tool_choice=choice))

    assert [prompt.options.tool_choice for prompt in model.prompts] == [choice, choice]


def with_advisor(model: ScriptedModel, *tools: Any, **settings: Any) -> ChatClient:
    advisor = ToolCallingAdvisor(ToolCallingManager(), **settings)
    return ChatClient.builder(model).default_advisors(advisor).default_tools(*tools).build()


@pytest.mark.feature("loop-forced-tool-choice-never", "wish-required-loops-forever")
def test_a_call_can_be_forced_in_every_round(ask: Ask) -> None:
    """The choice is kept on request, and a direct result ends the turn."""
    model = ScriptedModel(ADD, call("final"))
    client = with_advisor(model, add, final, reset_tool_choice=False)
    result = ask(client.prompt("x").options(tool_choice="required"))

    assert result.text == "over"
    assert [prompt.options.tool_choice for prompt in model.prompts] == ["required"] * 2


@tool(return_direct=True)
def final() -> str:
    """End."""
    return "over"


# --- what is streamed of the rounds before the last ---


@pytest.mark.feature("loop-stream-tool-call-responses")
@pytest.mark.parametrize("streamed", [True, False])
def test_the_text_of_earlier_rounds_can_be_held_back(ask: Ask, streamed: bool) -> None:
    """Then only the answer's text is streamed, with the events of all calls."""
    model = ScriptedModel(["Let me see. ", ADD], ["Once more. ", ADD], "It is 3.")
    client = with_advisor(model, add, stream_tool_call_responses=streamed)
    result = ask(client.prompt("x"))

    everything = "Let me see. \n\nOnce more. \n\nIt is 3."
    assert result.text == (everything if ask.streaming and streamed else "It is 3.")
    assert result.response.chat_response.text == "It is 3."
    if ask.streaming:
        kinds = [type(event) for event in result.events]
        assert (kinds.count(ToolCallStarted), kinds.count(RoundEnded)) == (2, 3)
        assert kinds.count(ToolCallFinished) == 2
        assert kinds[-1] is Done
    assert "Let me see." in str(model.prompts[1].messages[1])


@pytest.mark.feature("loop-stream-tool-call-responses")
def test_a_held_back_answer_is_streamed_completely_and_in_order(ask: Ask) -> None:
    """Text that was held back is streamed once it is the answer."""
    model = ScriptedModel(ADD, "It is 3.", chunks=3)
    result = ask(with_advisor(model, add, stream_tool_call_responses=False).prompt("x"))

    pieces = [event.text for event in result.events if isinstance(event, TextDelta)]
    assert pieces == (["It ", "is ", "3."] if ask.streaming else [])


def test_advisors_outside_the_loop_see_one_answer(ask: Ask) -> None:
    """They receive one response after several rounds and agents."""
    seen: list[str] = []

    async def watch(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        response = await call_next(request)
        seen.append(response.chat_response.text)
        return response

    watch.order = -(2**31) + 250  # type: ignore[attr-defined]
    _, agent = expert(ADD, "It is 3.", tools=[add])
    model = ScriptedModel(ASK, "Three.")
    builder = ChatClient.builder(model).default_tools(agent).default_advisors(watch)
    result = ask(builder.build().prompt("x"))

    assert seen == ["Three."]
    assert result.response.chat_response.usage.total_tokens == 30
    assert_paired(model.prompts[1].messages)


def test_a_client_can_be_its_own_tool(ask: Ask) -> None:
    """Recursion ends when the model answers; each level is a separate request."""
    depth = itertools.count()
    model = ScriptedModel(lambda prompt: ASK if next(depth) < 3 else "deep enough")
    tools: list[ToolCallback] = []

    class Itself:
        def tool_callbacks(self) -> list[ToolCallback]:
            return tools

    client = client_of(model, Itself())
    tools.append(client.as_tool("expert", "Asks itself."))

    assert ask(client.prompt("x")).text == "deep enough"
    assert len(model.prompts) == 7


def test_an_empty_direct_answer_streams_nothing(ask: Ask) -> None:
    """The turn ends without text."""

    @tool(return_direct=True)
    def mute() -> str:
        return ""

    result = ask(client_of(ScriptedModel(call("mute")), mute).prompt("x"))

    assert result.text == ""
    assert result.response.chat_response.finish_reason == "return_direct"
    assert TextDelta not in [type(event) for event in result.events]
