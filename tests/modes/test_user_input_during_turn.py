"""User input during a turn."""

from collections.abc import Sequence
from typing import Any

import pytest

from chatclient import (
    AssistantMessage,
    ChatClient,
    ChatClientRequest,
    ChatClientResponse,
    ChatResponse,
    Next,
    ToolContext,
    UserMessage,
    tool,
)
from chatclient.advisors.guardrails.advisors import GuardrailResult, OutputGuardrailAdvisor
from chatclient.advisors.memory.advisors import MessageChatMemoryAdvisor
from chatclient.advisors.retrieval.advisor import ReReadingAdvisor
from chatclient.advisors.tool_loop.advisor import Steering
from chatclient.chain.chain import LOWEST_PRECEDENCE, MEMORY_ORDER, TOOL_CALLING_ORDER
from chatclient.chat.messages import Media, Message
from chatclient.chat.response import FinishReason, Generation
from chatclient.errors import OverloadedError, UsageError
from chatclient.memory import (
    EventFilter,
    InMemorySessionRepository,
    MessageWindowChatMemory,
    SessionChatMemory,
    SessionService,
    Window,
    conversation_problems,
)
from chatclient.testing import Ask, ScriptedModel, call
from chatclient.tools import ToolApproval, ToolCallingManager


def said(messages: Sequence[Message]) -> list[str]:
    return [f"{message.role}: {message.text}" for message in messages if message.text]


@pytest.mark.feature("observation-saying-something-turn-while")
@pytest.mark.parametrize("order", [MEMORY_ORDER, LOWEST_PRECEDENCE - 3000])
@pytest.mark.parametrize("tool_messages", [True, False])
def test_user_input_is_sent_and_stored(ask: Ask, order: int, tool_messages: bool) -> None:
    """All later rounds have it, and so has the next turn with each kind of memory."""
    steering = Steering()

    @tool
    def plan() -> str:
        """Plan the trip."""
        if not steering.unread and len(model.prompts) == 1:
            steering.send("Make it Paris.")
        return "planned"

    model = ScriptedModel(call("plan"), call("plan"), "To Paris.", "Yes.")
    memory = MessageWindowChatMemory()
    advisor = MessageChatMemoryAdvisor(memory, order=order, tool_messages=tool_messages)
    client = ChatClient.builder(model).default_tools(plan).default_advisors(advisor).build()
    result = ask(client.prompt("Rome?").conversation("c").advisors(steering))

    new = ["user: Rome?", "user: Make it Paris.", "assistant: To Paris."]
    assert said(model.prompts[1].messages)[0] == new[0]
    assert said(model.prompts[1].messages)[-1] == new[1]
    assert said(model.prompts[2].messages) == new[:2]
    assert said(result.answer.new_messages()) == new
    kept = new if tool_messages else ["user: Rome?\n\nMake it Paris.", new[2]]
    assert said(tuple(memory.get("c"))) == kept
    assert conversation_problems(memory.get("c")) == ()
    assert steering.unread == ()


def test_user_input_changes_no_keys(ask: Ask) -> None:
    """Idempotency keys are the same if a turn is repeated without the input."""
    steering = Steering()
    keys: list[str] = []

    @tool
    def plan() -> str:
        """Plan the trip."""
        steering.send("Make it Paris.")
        return "planned"

    @tool
    def book(context: ToolContext) -> str:
        """Book the trip."""
        keys.append(context.idempotency_key)
        return "booked"

    for advisors in ([steering], []):
        model = ScriptedModel(call("plan"), call("book"), "Booked.")
        client = ChatClient.builder(model).default_tools(plan, book).build()
        ask(client.prompt("Rome?").idempotency_key("trip").advisors(*advisors))

    assert keys[0] == keys[1]


def test_user_input_is_merged_into_the_question(ask: Ask) -> None:
    """The question keeps its metadata, and the messages before it stay unchanged."""
    steering = Steering()

    @tool
    def plan() -> str:
        """Plan the trip."""
        steering.send(UserMessage("Make it Paris.", metadata={"n": 2}))
        return "planned"

    memory = MessageWindowChatMemory()
    advisor = MessageChatMemoryAdvisor(memory, tool_messages=False)
    model = ScriptedModel(call("plan"), "To Paris.")
    client = ChatClient.builder(model).default_tools(plan).default_advisors(advisor).build()
    imported = [UserMessage("Hi."), AssistantMessage("Hello.")]
    request = client.prompt().messages(imported).user("Rome?", metadata={"n": 1})
    ask(request.conversation("c").advisors(steering))

    question = UserMessage("Rome?\n\nMake it Paris.", metadata={"n": 1})
    kept = memory.get("c")
    assert said(kept) == [*said(imported), f"user: {question.text}", "assistant: To Paris."]
    assert kept[2].metadata == {"n": 1}


def test_user_input_is_in_the_trail_while_the_model_answers() -> None:
    """A stream that is closed before the end has it in its trail."""
    steering = Steering()

    @tool
    def plan() -> str:
        """Plan the trip."""
        steering.send("Make it Paris.")
        return "planned"

    client = ChatClient.create(ScriptedModel(call("plan"), "To Paris."))
    stream = client.prompt("Rome?").tools(plan).advisors(steering).stream()
    pieces = stream.content()
    next(pieces)

    assert said(stream.trail().messages)[-1] == "user: Make it Paris."


def test_unread_user_input_is_kept(ask: Ask) -> None:
    """Input after the last round is not sent, and is available for the next turn."""
    steering = Steering()
    steering.send(UserMessage("Too late."))
    client = ChatClient.create(ScriptedModel("done"))

    assert ask(client.prompt("x").advisors(steering)).text == "done"
    assert steering.unread == (UserMessage("Too late."),)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [(" ", "blank"), (UserMessage(""), "blank"), (7, "must be a UserMessage, not 7")],
)
def test_invalid_user_input_is_refused_immediately(wrong: Any, told: str) -> None:
    """The error is not delayed until the tools have run."""
    steering = Steering()
    with pytest.raises(UsageError, match=told):
        steering.send(wrong)
    steering.send(UserMessage(Media("image/png", b"...")))

    assert [message.text for message in steering.unread] == [""]


def test_a_resumed_turn_sends_user_input(ask: Ask) -> None:
    """It is sent after the results of the decided calls."""

    @tool
    def pay() -> str:
        """Pay."""
        return "paid"

    steering = Steering()
    model = ScriptedModel(call("pay"), "done")
    manager = ToolCallingManager(interceptors=(ToolApproval(),))
    client = ChatClient.builder(model).tool_calling_manager(manager).default_tools(pay).build()
    turn = ask(client.prompt("x").advisors(steering)).answer.pending_turn()
    steering.send("Hurry.")
    result = ask(client.resume(turn, "approve").advisors(steering))

    assert result.text == "done"
    assert said(model.prompts[1].messages)[-1] == "user: Hurry."


def test_user_input_begins_no_turn(ask: Ask) -> None:
    """Filters and windows keep the turn complete."""
    steering = Steering()

    @tool
    def plan() -> str:
        """Plan the trip."""
        steering.send("Make it Paris.")
        return "planned"

    service = SessionService(InMemorySessionRepository())
    memory = SessionChatMemory(service, event_filter=EventFilter(last=9))
    model = ScriptedModel(call("plan"), "To Paris.", "Yes.")
    builder = ChatClient.builder(model).default_advisors(MessageChatMemoryAdvisor(memory))
    client = builder.default_tools(plan).build()
    ask(client.prompt("Rome?").conversation("c").advisors(steering))
    ask(client.prompt("Sure?").conversation("c"))

    messages = model.prompts[2].messages
    assert said(messages)[0] == "user: Rome?"
    assert said(messages)[-3:] == ["user: Make it Paris.", "assistant: To Paris.", "user: Sure?"]
    assert Window.messages(4).start(messages) == len(messages) - 1


def test_a_turn_with_user_input_is_undone_completely(ask: Ask) -> None:
    """User input does not begin another turn: calls before it are undone, too."""
    steering, undone = Steering(), list[str]()

    @tool(compensation=lambda: undone.append("trip"))
    def plan() -> str:
        """Plan the trip."""
        steering.send("Make it Paris.")
        return "planned"

    @tool(effect="read")
    def look() -> str:
        """Look."""
        return "seen"

    busy = OverloadedError("busy", provider="x")
    model = ScriptedModel(call("plan"), call("look"), busy)
    client = ChatClient.builder(model).default_tools(plan, look).build()
    with pytest.raises(OverloadedError) as caught:
        ask(client.prompt("Rome?").advisors(steering))

    assert undone == ["trip"]
    roles = [message.role for message in caught.value.trail.messages]
    assert roles == ["user", "assistant", "tool", "user", "assistant", "tool"]


class Brief:
    """An advisor that adds to the last user message."""

    order = TOOL_CALLING_ORDER - 10

    async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        prompt = request.prompt.augment_user_message(lambda text: f"{text} Be brief.")
        return await call_next(request.mutate(prompt=prompt))


@pytest.mark.parametrize("approval", [False, True])
@pytest.mark.parametrize("order", [MEMORY_ORDER, TOOL_CALLING_ORDER + 100])
@pytest.mark.parametrize("advisor", [ReReadingAdvisor(), Brief()])
def test_user_input_is_stored_after_a_retry(
    ask: Ask, advisor: Any, order: int, approval: bool
) -> None:
    """It is stored as the user wrote it, although advisors change it in a retry."""

    def sure(answer: ChatResponse) -> GuardrailResult | None:
        return GuardrailResult.retry("unsure") if answer.text == "Perhaps." else None

    @tool
    def plan() -> str:
        """Plan the trip."""
        return "planned"

    script = [call("plan", id=str(number)) for number in range(4)]
    model = ScriptedModel(script[0], script[1], "Perhaps.", "Perhaps.", script[2], "To Paris.")
    memory = MessageWindowChatMemory()
    first = ToolApproval(needed=lambda made: approval and made.tool_call.id == "0")
    client = (
        ChatClient.builder(model)
        .default_tools(plan)
        .default_advisors(MessageChatMemoryAdvisor(memory, order=order))
        .default_advisors(advisor, OutputGuardrailAdvisor(sure))
        .tool_calling_manager(ToolCallingManager(interceptors=[first]))
        .build()
    )
    steering = Steering()
    steering.send("Make it Paris.")
    result = ask(client.prompt("Rome?").conversation("c").advisors(steering))
    if approval:
        turn = result.answer.pending_turn()
        result = ask(client.resume(turn, "approve").advisors(steering))

    kept = tuple(memory.get("c"))
    assert said(kept) == ["user: Rome?", "user: Make it Paris.", "assistant: To Paris."]
    assert conversation_problems(kept, ending="answer") == ()
    assert result.answer.new_messages() == kept
    for prompt in model.prompts:
        assert conversation_problems(prompt.messages, ending="question") == ()


def test_corrections_are_not_stored_with_user_input(ask: Ask) -> None:
    """The user input is stored, once."""

    def sure(answer: ChatResponse) -> GuardrailResult | None:
        unsure = answer.text == "Perhaps."
        return GuardrailResult.reprompt("unsure", "Are you sure?") if unsure else None

    @tool
    def plan() -> str:
        """Plan the trip."""
        steering.send("Make it Paris.")
        return "planned"

    steering = Steering()
    model = ScriptedModel(call("plan"), "Perhaps.", "To Paris.")
    builder = ChatClient.builder(model).default_tools(plan)
    client = builder.default_advisors(OutputGuardrailAdvisor(sure)).build()
    result = ask(client.prompt("Rome?").advisors(steering))

    new = ["user: Rome?", "user: Make it Paris.", "assistant: To Paris."]
    assert said(model.prompts[-1].messages)[-1] == "user: Are you sure?"
    assert said(result.answer.new_messages()) == new


@pytest.mark.parametrize("finish", ["stop", "content_filter"])
@pytest.mark.parametrize("order", [MEMORY_ORDER, TOOL_CALLING_ORDER + 100])
@pytest.mark.parametrize("tool_messages", [True, False])
def test_user_input_after_a_withheld_answer(
    ask: Ask, finish: FinishReason, order: int, *, tool_messages: bool
) -> None:
    """The turn was stored up to its tool results.

    Later user input is stored with the next answer.
    """

    def sure(answer: ChatResponse) -> GuardrailResult | None:
        return GuardrailResult.retry("no answer") if answer.text != "To Paris." else None

    @tool
    def plan() -> str:
        """Plan the trip."""
        steering.send("Make it Paris.")
        return "planned"

    nothing = [ChatResponse((Generation(AssistantMessage(""), finish),)) for _ in range(2)]
    model = ScriptedModel(call("plan"), *nothing, "To Paris.")
    memory = MessageWindowChatMemory()
    remembering = MessageChatMemoryAdvisor(memory, order=order, tool_messages=tool_messages)
    guard = OutputGuardrailAdvisor(sure, order=MEMORY_ORDER - 100)
    builder = ChatClient.builder(model).default_tools(plan).default_advisors(remembering, guard)
    steering = Steering()
    ask(builder.build().prompt("Rome?").conversation("c").advisors(steering))

    kept = tuple(memory.get("c"))
    first = ["user: Rome?", "user: Make it Paris."]
    heard = first if tool_messages else ["user: Rome?\n\nMake it Paris."]
    assert said(kept) == [*heard, "assistant: To Paris."]
    assert conversation_problems(kept, ending="answer") == ()
    assert said(model.prompts[-1].messages) == first
