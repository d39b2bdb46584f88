"""The tool loop: values of all rounds, hooks and exits."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from chatclient import (
    AssistantMessage,
    ChatClient,
    ChatClientRequest,
    ChatClientResponse,
    ChatOptions,
    ChatResponse,
    Message,
    Prompt,
    SystemMessage,
    ToolCall,
    ToolContext,
    Usage,
    UserMessage,
    tool,
)
from chatclient.advisors import ToolCallingAdvisor
from chatclient.chat.response import Generation
from chatclient.errors import DuplicateToolError, UsageError
from chatclient.testing import Answer, Ask, ScriptedModel, call
from chatclient.tools import (
    FunctionToolCallback,
    StaticToolCallbackResolver,
    ToolApproval,
    ToolCallback,
    ToolCallingManager,
    ToolExecutionResult,
    ToolLimits,
    ToolRequest,
    tool_callbacks,
)
from tests.modes.test_tool_calling import assert_paired, client_of, results


@tool(effect="read")
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
def write(line: str) -> str:
    """Write a line."""
    return f"wrote {line}"


@tool(return_direct=True, effect="read")
def direct() -> str:
    """Return a direct answer."""
    return "straight"


ADD = call("add", '{"a": 1, "b": 2}')


def offered(prompt: Prompt) -> list[str]:
    return [callback.definition.name for callback in prompt.options.tool_callbacks or ()]


# --- options ---


@pytest.mark.feature("loop-options-changed-round-used")
def test_before_call_can_change_the_tool_context(ask: Ask) -> None:
    """Tools of the same round receive it."""
    seen: list[Any] = []

    @tool
    def look(context: ToolContext) -> str:
        seen.append((context["round"], context.conversation_id))
        return "seen"

    class Numbering(ToolCallingAdvisor):
        async def before_call(self, request: ChatClientRequest) -> ChatClientRequest:
            prompt = request.prompt
            number = prompt.options.tool_context.get("round", 0) + 1
            options = prompt.options.mutate(tool_context={"round": number})
            return request.mutate(prompt=prompt.with_options(options))

    model = ScriptedModel(call("look"), call("look"), "done")
    client = ChatClient.builder(model).default_advisors(Numbering()).default_tools(look).build()
    ask(client.prompt("x").conversation("c-1"))

    assert seen == [(1, "c-1"), (2, "c-1")]


@pytest.mark.feature("loop-tools-model-own-options")
def test_tools_in_the_options_of_the_model(ask: Ask) -> None:
    """A client without tools offers and runs them."""
    options = ChatOptions(tool_callbacks=tuple(tool_callbacks(add)))
    model = ScriptedModel(ADD, "3", options=options)

    assert ask(ChatClient.create(model).prompt("x")).text == "3"
    assert offered(model.prompts[0]) == ["add"]
    assert results(model.prompts[1]) == ["3"]


@pytest.mark.feature("loop-tools-model-own-options")
def test_client_tools_replace_those_of_the_model(ask: Ask) -> None:
    """They are not merged, and tools that are not offered are not run."""
    options = ChatOptions(tool_callbacks=tuple(tool_callbacks(add)))
    model = ScriptedModel(ADD, "done", options=options)
    ask(client_of(model, write).prompt("x"))

    assert offered(model.prompts[0]) == ["write"]
    assert "There is no tool 'add'" in results(model.prompts[1])[0]


@pytest.mark.feature("tool-options-validate-tool-callbacks-not")
def test_duplicates_between_options_and_names_are_refused(ask: Ask) -> None:
    """The model's own tools and names in the options are checked together."""
    options = ChatOptions(tool_callbacks=tuple(tool_callbacks(add)))
    model = ScriptedModel("never", options=options)
    twin = StaticToolCallbackResolver(FunctionToolCallback(print, name="add", input_schema={}))
    builder = ChatClient.builder(model).tool_callback_resolver(twin)

    with pytest.raises(DuplicateToolError, match="add"):
        ask(builder.default_options(tool_names=["add"]).build().prompt("x"))
    assert model.prompts == []


# --- where the loop ends ---


class Finalizing(ToolCallingAdvisor):
    """A loop that counts its hooks, and marks the final response."""

    def __init__(self, manager: ToolCallingManager) -> None:
        super().__init__(manager)
        self.log: list[str] = []

    async def initialize_loop(self, request: ChatClientRequest) -> ChatClientRequest:
        self.log.append("initialize")
        return request

    async def after_call(self, response: ChatClientResponse) -> ChatClientResponse:
        self.log.append("after")
        return response

    async def finalize_loop(self, response: ChatClientResponse) -> ChatClientResponse:
        self.log.append("finalize")
        return response.mutate(context={"finalized": True})


@pytest.mark.feature("loop-do-finalize-loop-limit")
@pytest.mark.parametrize(
    ("answers", "limits", "text"),
    [
        (["plain"], {}, "plain"),
        ([call("direct")], {}, "straight"),
        ([ADD], {"max_rounds": 1}, "Round limit (1) reached for this turn."),
        (
            [[call("direct", id="a"), call("direct", id="b")]],
            {"max_total_calls": 1},
            "Total tool call limit (1) exceeded for this turn. No further tool calls are allowed.",
        ),
        ([call("write", '{"line": "x"}')], {}, ""),
        ([ADD, "in the end"], {"max_rounds": 1, "on_exceeded": "final_answer"}, "in the end"),
    ],
    ids=["answer", "direct", "rounds", "calls", "approval", "final answer"],
)
def test_the_loop_is_finalized_on_every_exit(
    ask: Ask, answers: list[Answer], limits: dict[str, Any], text: str
) -> None:
    """The last hook runs once after an answer, a direct result, a limit and a suspension."""
    manager = ToolCallingManager(limits=ToolLimits(**limits), interceptors=[ToolApproval()])
    loop = Finalizing(manager)
    builder = ChatClient.builder(ScriptedModel(*answers)).default_advisors(loop)
    result = ask(builder.default_tools(add, write, direct).build().prompt("x"))

    assert loop.log == ["initialize", *["after"] * len(answers), "finalize"]
    assert result.response.context["finalized"] is True
    assert result.text == text


@pytest.mark.feature("loop-checker-forces-execution-without")
def test_an_eligible_response_has_to_have_calls(ask: Ask) -> None:
    """A checker that accepts a response without calls raises an error."""
    loop = ToolCallingAdvisor(eligibility=lambda response: True)
    builder = ChatClient.builder(ScriptedModel("no calls", "never")).default_advisors(loop)

    with pytest.raises(UsageError, match="asks for no tool"):
        ask(builder.default_tools(add).build().prompt("x"))


def test_an_eligibility_checker_may_be_asynchronous(ask: Ask) -> None:
    """The result is awaited."""

    async def nothing(response: ChatResponse) -> bool:
        await asyncio.sleep(0)
        return False

    model = ScriptedModel(ADD, "never")
    builder = ChatClient.builder(model).default_advisors(ToolCallingAdvisor(eligibility=nothing))
    result = ask(builder.default_tools(add).build().prompt("x"))

    assert len(model.prompts) == 1
    assert result.response.chat_response.has_tool_calls()


@pytest.mark.feature("loop-checker-response-options")
def test_an_eligibility_checker_can_end_the_loop(ask: Ask) -> None:
    """Calls that it rejects are returned as the model wrote them."""
    seen: list[ChatResponse] = []

    def once(response: ChatResponse) -> bool:
        seen.append(response)
        return len(seen) == 1

    builder = ChatClient.builder(ScriptedModel(ADD, ADD, "never"))
    client = builder.default_advisors(ToolCallingAdvisor(eligibility=once)).default_tools(add)
    result = ask(client.build().prompt("x"))

    assert len(result.executions) == 1
    assert result.response.chat_response.has_tool_calls()


@pytest.mark.feature("loop-checker-response-options")
def test_an_eligibility_checker_may_look_at_the_options(ask: Ask) -> None:
    """A checker with two parameters receives the options of the round."""

    def no_writing(options: ChatOptions, response: ChatResponse) -> bool:
        return response.has_tool_calls() and options.temperature != 0.0

    def client(temperature: float) -> Any:
        builder = ChatClient.builder(ScriptedModel(ADD, "3"))
        loop = ToolCallingAdvisor(eligibility=no_writing)
        return (
            builder.default_advisors(loop)
            .default_tools(add)
            .build()
            .prompt("x")
            .options(temperature=temperature)
        )

    assert ask(client(0.5)).text == "3"
    assert ask(client(0.0)).response.chat_response.has_tool_calls()


# --- messages ---


@pytest.mark.feature("loop-history-off-empty-system")
@pytest.mark.parametrize("system", [None, "S"])
def test_no_system_message_is_made_up(ask: Ask, system: str | None) -> None:
    """Without history, a round has the system text only if there is one."""
    model = ScriptedModel(ADD, "3")
    loop = ToolCallingAdvisor(conversation_history=False)
    request = ChatClient.builder(model).default_advisors(loop).default_tools(add).build().prompt()
    request = request.user("x") if system is None else request.user("x").system(system)
    ask(request)

    systems = [m for m in model.prompts[1].messages if isinstance(m, SystemMessage)]
    assert systems == ([] if system is None else [SystemMessage("S")])
    assert len(model.prompts[1].messages) == 1 + len(systems)


@pytest.mark.feature("loop-checker-response-options")
def test_a_subclass_chooses_the_calls_to_run(ask: Ask) -> None:
    """`is_eligible` is called after each round, and may be asynchronous."""

    class Careful(ToolCallingAdvisor):
        async def is_eligible(self, options: ChatOptions, response: ChatResponse) -> bool:
            return response.has_tool_calls() and options.seed == 1

    for seed, text in ((1, "3"), (2, "")):
        builder = ChatClient.builder(ScriptedModel(ADD, "3")).default_advisors(Careful())
        request = builder.default_tools(add).build().prompt("x").options(seed=seed)
        assert ask(request).text == text


@pytest.mark.feature("loop-do-get-next-instructions")
@pytest.mark.parametrize("most", [2, 100], ids=["at a limit", "no limit"])
def test_a_subclass_chooses_the_messages_of_the_next_round(ask: Ask, most: int) -> None:
    """`next_messages` receives the round and its results, and the manager keeps the complete turn.

    It is also called before the final answer at a limit.
    """
    seen: list[Any] = []

    class Reminding(ToolCallingAdvisor):
        async def next_messages(
            self,
            request: ChatClientRequest,
            response: ChatClientResponse,
            result: ToolExecutionResult,
        ) -> tuple[Message, ...]:
            asked = [c.name for c in response.chat_response.generations[0].output.tool_calls]
            data = [each.data for each in result.responses]
            seen.append((len(request.prompt.messages), asked, data))
            return (*result.conversation_history, UserMessage("Be brief."))

    model = ScriptedModel(ADD, call("add", '{"a": 2, "b": 2}'), "done")
    manager = ToolCallingManager(limits=ToolLimits(max_rounds=most, on_exceeded="final_answer"))
    loop = Reminding(manager)
    client = ChatClient.builder(model).default_advisors(loop).default_tools(add).build()
    ask(client.prompt("x"))

    assert seen == [(1, ["add"], ["3"]), (4, ["add"], ["4"])]
    assert [len(prompt.messages) for prompt in model.prompts] == [1, 4, 6]
    assert model.prompts[2].messages[-1] == UserMessage("Be brief.")
    assert [m.text for m in model.prompts[2].messages].count("Be brief.") == 1


@pytest.mark.feature("lc4j-tool-dynamic-provider-window-eviction")
def test_dynamic_providers_without_history(ask: Ask) -> None:
    """The provider gets all messages of the turn, although the round does not send them."""
    seen: list[Any] = []

    class Watching:
        dynamic = True

        def tool_callbacks(self, request: ToolRequest) -> list[ToolCallback]:
            message = request.user_message
            seen.append(message and message.text)
            return tool_callbacks(add)

    model = ScriptedModel(ADD, "3")
    loop = ToolCallingAdvisor(conversation_history=False)
    builder = ChatClient.builder(model).default_advisors(loop).default_tools(Watching())
    ask(builder.build().prompt("the question"))

    assert [m.text for m in model.prompts[1].messages] == [""]
    assert seen == ["the question", "the question"]


# --- calls ---


@pytest.mark.feature("loop-several-generations-tool-calls")
def test_only_the_first_generation_with_calls_is_run(ask: Ask) -> None:
    """Calls of other generations are neither run nor in the history."""

    def asking(line: str, index: int) -> Generation:
        message = AssistantMessage(tool_calls=[call("write", f'{{"line": "{line}"}}')])
        return Generation(message, "tool_call", index=index)

    words = Generation(AssistantMessage("words"))
    several = ChatResponse((words, asking("a", 1), asking("b", 2)))
    model = ScriptedModel(several, "done")
    result = ask(client_of(model, write).prompt("x"))

    assert [each.response.data for each in result.executions] == ["wrote a"]
    assert len(model.prompts[1].messages) == 3
    assert_paired(model.prompts[1].messages)


IDS = [
    (["a", "a"], ["a", "a_2"]),
    (["a", "a", "a_2"], ["a", "a_3", "a_2"]),
    (["", ""], ["call_2", "call_3"]),
    (["a", "b"], ["a", "b"]),
]


def same(ids: Sequence[str]) -> AssistantMessage:
    parts = [ToolCall(id, "write", f'{{"line": "{n}"}}') for n, id in enumerate(ids)]
    return AssistantMessage(["First this.", *parts], metadata={"kept": True})


@pytest.mark.feature("loop-calls-one-message-same")
@pytest.mark.parametrize(("given", "distinct"), IDS)
def test_calls_of_one_id_are_distinguished(ask: Ask, given: list[str], distinct: list[str]) -> None:
    """Calls with equal ids get distinct ids, because providers require that."""
    model = ScriptedModel(same(given), "done")
    result = ask(client_of(model, write).prompt("x"))
    message = model.prompts[1].messages[1]

    assert isinstance(message, AssistantMessage)
    assert [each.id for each in message.tool_calls] == distinct
    assert (message.text, message.metadata) == ("First this.", {"kept": True})
    assert [each.tool_call.id for each in result.executions] == distinct
    assert results(model.prompts[1]) == [f"wrote {n}" for n in range(len(given))]
    assert_paired(model.prompts[1].messages)


@pytest.mark.feature("loop-calls-one-message-same")
def test_a_decision_about_one_of_several_calls_of_one_id(ask: Ask) -> None:
    """Suspended calls have distinct ids; approving one does not approve the other."""
    manager = ToolCallingManager(interceptors=[ToolApproval()])

    def client(*answers: Answer) -> tuple[ScriptedModel, ChatClient]:
        model = ScriptedModel(*answers)
        builder = ChatClient.builder(model).default_tools(write).tool_calling_manager(manager)
        return model, builder.build()

    _, first = client(same(["a", "a"]))
    turn = ask(first.prompt("x")).waiting
    assert list(turn.to_decide()) == ["a", "a_2"]
    model, second = client("done")
    ask(second.resume(turn.to_json(), {"a": False, "a_2": True}))

    assert results(model.prompts[0]) == ["The user did not allow this call.", "wrote 1"]


@pytest.mark.feature("tool-options-tool-choice-provider-specific")
def test_no_tool_is_run_where_none_may_be_called(ask: Ask) -> None:
    """A call despite `tool_choice="none"` is an error result, and then the model answers."""
    model = ScriptedModel(call("write", '{"line": "x"}'), "All right.")
    result = ask(client_of(model, write).prompt("x").options(tool_choice="none"))

    assert result.text == "All right."
    assert results(model.prompts[1]) == ["No tool may be called here; answer without"]
    assert result.executions[0].metadata["failure"] == "denied"
    assert {prompt.options.tool_choice for prompt in model.prompts} == {"none"}


def test_forbidden_calls_come_to_a_limit(ask: Ask) -> None:
    """Repeated calls despite `tool_choice="none"` count as no progress."""
    model = ScriptedModel(lambda prompt: call("write", '{"line": "x"}'))
    result = ask(client_of(model, write).prompt("x").options(tool_choice="none"))

    assert result.response.chat_response.finish_reason == "tool_call_limit_exceeded"
    assert all(execution.is_error for execution in result.executions)
    assert len(model.prompts) < 10


@pytest.mark.feature("manager-limits-checked-before-tool")
def test_limits_are_checked_before_the_tool_is_looked_up(ask: Ask) -> None:
    """Calls of unknown tools count towards the limit."""
    model = ScriptedModel(call("nothing", id="a"), call("nothing", '{"n": 1}', id="b"), "never")
    limits = ToolLimits(max_calls_per_tool=1)
    result = ask(client_of(model, add, limits=limits).prompt("x"))

    assert "limit (1) exceeded for tool 'nothing'" in result.text
    assert len(model.prompts) == 2


@pytest.mark.feature("usage-each-subscription-sums-itself")
def test_each_request_has_a_separate_usage(ask: Ask) -> None:
    """The sum over the rounds starts again with each call of a request."""
    usage = Usage(input_tokens=10, output_tokens=1)
    model = ScriptedModel(ADD, "3", ADD, "3", usage=usage)
    request = client_of(model, add).prompt("x")

    totals = [ask(request).response.chat_response.usage.total_tokens for _ in range(2)]
    assert totals == [22, 22]


@pytest.mark.feature("stream-tool-calls-chunk-before")
def test_calls_that_come_before_the_last_chunk_are_run() -> None:
    """In a stream, text may follow the calls."""
    late = AssistantMessage([ADD, "Let me see."])
    for mode in ("stream", "astream"):
        model = ScriptedModel(late, "3", chunks=3)
        ask = Ask(mode)

        assert ask(client_of(model, add).prompt("x")).text == "Let me see.\n\n3"
        assert results(model.prompts[1]) == ["3"]


@pytest.mark.feature("loop-many-turns-one-advisor")
def test_turns_of_one_client_do_not_meet() -> None:
    """Parallel turns have separate histories, limits, contexts and conversations."""

    @tool
    async def who(n: int, context: ToolContext) -> str:
        await asyncio.sleep(0.001)
        return f"{context.conversation_id} {context['tenant']} {context.attempt}"

    def answer(prompt: Prompt) -> Answer:
        made = len([m for m in prompt.messages if isinstance(m, AssistantMessage)])
        return call("who", f'{{"n": {made}}}') if made < 3 else "/".join(results(prompt))

    async def main() -> list[str]:
        client = client_of(ScriptedModel(answer), who, limits=ToolLimits(max_calls_per_tool=3))
        requests = [
            client.prompt(f"question {n}").conversation(f"c{n}").tool_context(tenant=f"t{n}")
            for n in range(50)
        ]
        return await asyncio.gather(*(request.acall().content() for request in requests))

    assert asyncio.run(main()) == [f"c{n} t{n} 3" for n in range(50)]
