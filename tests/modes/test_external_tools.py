"""Calls whose results come from outside: from a person, a browser or another service."""

from dataclasses import replace
from typing import Any

import pytest
from pydantic import BaseModel

from chatclient import ChatClient, tool
from chatclient.chat.messages import Media, ToolResponse, ToolResponseMessage, UserMessage
from chatclient.errors import UsageError
from chatclient.testing import Ask, ScriptedModel, call
from chatclient.tools import (
    AugmentedArguments,
    Decision,
    ExternalTool,
    PendingTurn,
    ToolApproval,
    ToolCallingManager,
    ToolDefinition,
    ToolInvocation,
    ToolResult,
    augment,
)
from tests.modes.test_tool_calling import assert_paired, results

LOCATE = ToolDefinition(
    "locate",
    "Tell where the user is.",
    {"properties": {"exact": {"type": "boolean"}}, "required": ["exact"]},
)
LOCATED = call("locate", '{"exact": true}', id="w")
log: list[str] = []


def cancel(city: str) -> None:
    log.append(f"no {city}")


@tool(compensation=cancel)
def book(city: str) -> str:
    """Book a flight."""
    log.append(city)
    return "booked"


@tool
def pay() -> None:
    """Pay."""
    raise ValueError("declined")


@pytest.fixture(autouse=True)
def _nothing_happened() -> None:
    log.clear()


@pytest.mark.feature("lc4j-chat-request-specifications-alone")
def test_a_model_is_offered_definitions_alone(ask: Ask) -> None:
    """A loop of the application needs definitions only."""
    model = ScriptedModel(LOCATED, "You are in Rome.")
    client = ChatClient.builder(model).default_tools(ExternalTool(LOCATE)).tool_calling(False)
    question = UserMessage("Where am I?")
    asked = ask(client.build().prompt([question])).response.chat_response
    (made,) = asked.message.tool_calls
    result = ToolResponseMessage(ToolResponse(made.id, made.name, "41.9 N, 12.5 E"))
    answer = ask(client.build().prompt([question, asked.message, result]))

    assert made == LOCATED
    assert answer.text == "You are in Rome."
    for prompt in model.prompts:
        offered = [each.definition for each in prompt.options.tool_callbacks or ()]
        assert offered == [LOCATE]
    assert model.prompts[1].messages == (question, asked.message, result)


def client_of(model: ScriptedModel, approval: ToolApproval | None = None) -> ChatClient:
    interceptors = [] if approval is None else [approval]
    builder = ChatClient.builder(model).default_tools(ExternalTool(LOCATE), book, pay)
    return builder.tool_calling_manager(ToolCallingManager(interceptors=interceptors)).build()


def waiting(ask: Ask, client: ChatClient) -> PendingTurn:
    turn = ask(client.prompt("x")).waiting
    assert isinstance(turn, PendingTurn)
    return turn


@pytest.mark.feature("manager-results-elsewhere")
def test_an_external_tool_suspends_its_turn(ask: Ask) -> None:
    """A call of an external tool suspends the turn until its result is given."""
    picture = Media("image/png", b"map")
    model = ScriptedModel([LOCATED, call("book", '{"city": "Rome"}')], "done")
    client = client_of(model)
    turn = waiting(ask, client)
    assert (log, turn.to_decide()) == (["Rome"], {"w": LOCATED})
    answer = ToolResult("48.1, 11.5", (picture,), metadata={"by": "browser"})
    result = ask(client.resume(turn.to_json(), {"w": Decision.answered(answer)}))

    assert results(model.prompts[1]) == ["48.1, 11.5", "booked"]
    assert_paired(model.prompts[1].messages)
    assert result.text == "done"
    execution = result.executions[1]
    assert execution.response.media == (picture,)
    assert (execution.metadata["by"], execution.arguments) == ("browser", None)


@pytest.mark.feature("manager-results-elsewhere")
def test_an_external_tool_may_be_denied(ask: Ask) -> None:
    """The model receives the reason; an approval without a result is refused."""
    model = ScriptedModel(LOCATED, "done")
    client = client_of(model)
    turn = waiting(ask, client)
    with pytest.raises(UsageError, match=r"'locate' is not run here.*Decision.answered"):
        ask(client.resume(turn, "approve"))
    ask(client.resume(turn, {"w": Decision(approved=False, message="I will not say.")}))

    assert results(model.prompts[1]) == ["I will not say."]


def test_an_augmented_external_tool(ask: Ask) -> None:
    """The consumer gets the extra arguments once, when the model makes the call."""
    heard: list[str] = []

    class Reason(BaseModel):
        reason: str

    def hear(event: AugmentedArguments[Reason]) -> None:
        heard.append(event.extra.reason)

    tools = augment(ExternalTool(LOCATE), arguments=Reason, consumer=hear)
    made = call("locate", '{"exact": true, "reason": "to find you"}', id="w")
    model = ScriptedModel(made, "done")
    client = ChatClient.builder(model).default_tools(*tools).build()
    turn = waiting(ask, client)
    with pytest.raises(UsageError, match="'locate' is not run here"):
        ask(client.resume(turn, "approve"))
    ask(client.resume(turn, {"w": Decision.answered("48.1, 11.5")}))

    assert results(model.prompts[1]) == ["48.1, 11.5"]
    assert heard == ["to find you"]


def test_arguments_of_external_tools_are_checked(ask: Ask) -> None:
    """Invalid arguments are an error result, and the turn is not suspended."""
    model = ScriptedModel(call("locate", "{}"), "done")

    assert ask(client_of(model).prompt("x")).text == "done"
    assert "exact: missing, but required" in results(model.prompts[1])[0]


@pytest.mark.feature("manager-result-says-so")
def test_a_given_result_may_end_the_turn(ask: Ask) -> None:
    """A given result may be a direct one."""
    model = ScriptedModel(LOCATED, "never")
    client = client_of(model)
    turn = waiting(ask, client)
    answer = ToolResult("You are in Rome.", return_direct=True)
    result = ask(client.resume(turn.to_json(), {"w": Decision.answered(answer)}))

    assert (result.text, len(model.prompts)) == ("You are in Rome.", 1)


@pytest.mark.feature("manager-results-elsewhere")
@pytest.mark.parametrize("arguments", [None, '{"town": "Rome"}'])
@pytest.mark.parametrize("at_once", [True, False])
def test_a_call_may_be_answered_instead_of_being_run(
    ask: Ask, at_once: bool, arguments: str | None
) -> None:
    """A decision may have the result: the tool does not run, and is not undone."""
    answered = replace(Decision.answered("booked by phone"), arguments=arguments)
    flight = call("book", '{"city": "Rome"}', id="b")
    model = ScriptedModel(flight, call("pay"), "sorry")

    def needed(invocation: ToolInvocation) -> bool:
        return invocation.definition.name == "book"

    if at_once:
        approval = ToolApproval(needed, ask=lambda invocation: answered)
        result = ask(client_of(model, approval).prompt("x"))
    else:
        client = client_of(model, ToolApproval(needed))
        result = ask(client.resume(waiting(ask, client).to_json(), {"b": answered}))

    assert results(model.prompts[1]) == ["booked by phone"]
    assert results(model.prompts[2]) == ["declined"]
    assert (result.text, log) == ("sorry", [])


def test_an_external_tool_may_need_approval_first(ask: Ask) -> None:
    """An approved call is suspended until its result is given."""
    approval = ToolApproval(ask=lambda invocation: True)
    client = client_of(ScriptedModel(LOCATED), approval)

    assert list(waiting(ask, client).to_decide()) == ["w"]


def test_what_is_no_answer_is_refused() -> None:
    """Only what a tool could return is accepted as a result."""
    nothing: Any = None

    with pytest.raises(UsageError, match="a text or a ToolResult, not None"):
        Decision.answered(nothing)
