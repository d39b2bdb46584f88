"""Messages of running turns in the log of their session."""

from typing import Any

import pytest

from chatclient import (
    USER_ID,
    AssistantMessage,
    ChatClient,
    ChatResponse,
    Message,
    ToolResponseMessage,
    UserMessage,
    handoff,
    tool,
)
from chatclient.advisors import (
    TURN_MESSAGE,
    GuardrailResult,
    OutputGuardrailAdvisor,
    SessionLogAdvisor,
    SessionMemoryAdvisor,
)
from chatclient.chat import message_from_dict
from chatclient.errors import OverloadedError, UsageError, WrongTypeError
from chatclient.memory import (
    EventFilter,
    InMemorySessionRepository,
    SessionChatMemory,
    SessionService,
)
from chatclient.testing import Answer, Ask, ScriptedModel, call
from chatclient.tools import ToolCallingManager

STEPS = EventFilter(types=TURN_MESSAGE)


@tool(effect="read")
def look(what: str = "sky") -> str:
    """Look at something."""
    return f"{what}: blue"


@tool(confirm=True)
def pay(amount: int = 1) -> str:
    """Pay an amount."""
    return f"paid {amount}"


@pytest.fixture
def service() -> SessionService:
    return SessionService(InMemorySessionRepository())


def client_of(
    service: SessionService, *answers: Answer, **manager: Any
) -> tuple[ScriptedModel, ChatClient]:
    model = ScriptedModel(*answers)
    builder = ChatClient.builder(model).default_tools(look, pay)
    builder = builder.default_advisors(SessionMemoryAdvisor(service), SessionLogAdvisor(service))
    return model, builder.tool_calling_manager(ToolCallingManager(**manager)).build()


def logged(service: SessionService, id: str = "s") -> list[Message]:
    data = [event.payload.data for event in service.events(id, STEPS)]
    return [message_from_dict(each["message"]) for each in data]


def kinds(messages: Any) -> str:
    """Return a letter for each message: a question, calls, results or an answer."""
    letters = []
    for message in messages:
        match message:
            case UserMessage():
                letters.append("q")
            case ToolResponseMessage():
                letters.append("r")
            case AssistantMessage():
                letters.append("c" if message.tool_calls else "a")
    return "".join(letters)


@pytest.mark.feature("session-model-calls-logged")
def test_messages_are_logged_once(ask: Ask, service: SessionService) -> None:
    """The log has all messages of a turn; the turn itself is stored as a unit besides."""
    calls = [call("look", id="1"), call("look", id="2")]
    _, client = client_of(service, call("look"), calls, "done", "again")
    ask(client.prompt("a").conversation("s"))
    ask(client.prompt("b").conversation("s"))

    assert kinds(logged(service)) == "qcrcra" + "qa"
    assert kinds(service.messages("s")) == "qcrcra" + "qa"
    assert [m.text for m in logged(service)] == [m.text for m in service.messages("s")]
    data = [event.payload.data for event in service.events("s", STEPS)]
    assert len({each["turn"] for each in data}) == len({each["run"] for each in data}) == 2


@pytest.mark.feature("session-model-calls-logged")
def test_a_failed_turn_continues(ask: Ask, service: SessionService) -> None:
    """The log has the messages before the failure, and a request can continue from them."""
    model, client = client_of(service, call("look"), OverloadedError("down"), "done")
    with pytest.raises(OverloadedError):
        ask(client.prompt("a").conversation("s"))

    assert service.messages("s") == ()
    assert kinds(logged(service)) == "qcr"
    assert ask(client.prompt().messages(logged(service)).conversation("s")).text == "done"
    assert kinds(model.prompts[-1].messages) == "qcr"


def test_what_was_rejected_is_logged(ask: Ask, service: SessionService) -> None:
    """Answers that a guardrail rejects are in the log, and not in the turn."""

    def not_bad(answer: ChatResponse) -> GuardrailResult:
        if answer.text != "bad":
            return GuardrailResult.success()
        return GuardrailResult.reprompt("bad", "Better!")

    model, client = client_of(service, "bad", call("look"), "good")
    guarded = client.mutate().default_advisors(OutputGuardrailAdvisor(not_bad)).build()
    ask(guarded.prompt("a").conversation("s"))

    assert [m.text for m in logged(service) if not m.text.startswith("sky")] == [
        "a",
        "bad",
        "",
        "",
        "good",
    ]
    assert kinds(logged(service)) == "qacra"
    assert kinds(service.messages("s")) == "qcra"
    assert len(model.prompts) == 3


@pytest.mark.feature("session-model-calls-logged")
def test_a_resumed_turn_is_another_run(ask: Ask, service: SessionService) -> None:
    """It is logged completely, with the id of its turn."""
    _, client = client_of(service, call("pay"), "done")
    turn = ask(client.prompt("a").conversation("s")).waiting
    assert kinds(logged(service)) == "qc"
    ask(client.resume(turn.to_json(), "approve"))

    assert kinds(logged(service)) == "qc" + "qcra"
    data = [event.payload.data for event in service.events("s", STEPS)]
    assert len({each["turn"] for each in data}) == 1
    assert len({each["run"] for each in data}) == 2


@pytest.mark.parametrize("both", [False, True])
def test_the_log_is_passed_on_with_a_handoff(ask: Ask, service: SessionService, both: bool) -> None:
    """The messages of the second client are logged, once, whether or not it logs itself."""
    second = ChatClient.builder(ScriptedModel(call("look"), "done")).default_tools(look)
    if both:
        second = second.default_advisors(SessionLogAdvisor(service))
    _, first = client_of(service, call("handoff_to_second"))
    to_second = handoff(second.build(), "second", "Answers.")
    ask(first.prompt("a").tools(to_second).conversation("s"))

    assert kinds(logged(service)) == "qcrcra"
    assert kinds(service.messages("s")) == "qcrcra"


def test_no_answer_is_not_logged(ask: Ask, service: SessionService) -> None:
    """A response without a generation leaves the question."""
    client = ChatClient.builder(ScriptedModel(ChatResponse(())))
    ask(client.default_advisors(SessionLogAdvisor(service)).build().prompt("a").conversation("s"))

    assert kinds(logged(service)) == "q"


def test_sessions_of_the_log(ask: Ask, service: SessionService) -> None:
    """The log follows the rules of a session memory, also on its own."""
    memory = SessionChatMemory(service, branch="writer", metadata={"agent": "x"})
    model = ScriptedModel("done", "done")
    client = ChatClient.builder(model).default_advisors(SessionLogAdvisor(memory)).build()
    request = client.prompt("a").conversation("s")
    ask(request.advisor_params({USER_ID: "ann"}))

    assert [session.id for session in service.sessions_of("ann")] == ["s"]
    assert {event.branch for event in service.events("s", STEPS)} == {"writer"}
    assert [session.id for session in service.find_by_metadata("agent", "x")] == ["s"]
    with pytest.raises(UsageError, match="does not belong to user 'bob'"):
        ask(request.advisor_params({USER_ID: "bob"}))
    with pytest.raises(UsageError, match="conversation"):
        ask(client.prompt("a"))
    wrong: Any = InMemorySessionRepository()
    with pytest.raises(WrongTypeError, match="SessionService"):
        SessionLogAdvisor(wrong)
