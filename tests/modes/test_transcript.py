"""The messages of a turn, for a request that continues the conversation."""

import asyncio
from typing import Any

import pytest

from chatclient import (
    Advisor,
    AssistantMessage,
    ChatClient,
    ChatClientRequest,
    ChatClientResponse,
    ChatResponse,
    Message,
    Next,
    SystemMessage,
    ToolContext,
    ToolResponse,
    ToolResponseMessage,
    UserMessage,
    tool,
)
from chatclient.advisors.guardrails.advisors import (
    GuardrailResult,
    InputGuardrailAdvisor,
    OutputGuardrailAdvisor,
)
from chatclient.advisors.memory.advisors import MessageChatMemoryAdvisor
from chatclient.advisors.retrieval.advisor import ReReadingAdvisor
from chatclient.advisors.tool_loop.advisor import Steering
from chatclient.chain.chain import MEMORY_ORDER, TOOL_CALLING_ORDER
from chatclient.chat.messages import Reasoning
from chatclient.chat.response import Generation
from chatclient.errors import ChatClientError, OverloadedError
from chatclient.memory import MessageWindowChatMemory, conversation_problems
from chatclient.observability.trail import Trail
from chatclient.testing import Answer, Ask, ScriptedModel, call
from chatclient.tools import ToolApproval, ToolCallingManager


@tool
def weather(city: str) -> str:
    """Return the weather in a city."""
    return f"sunny in {city}"


ASKS = call("weather", '{"city": "Rome"}')


def kinds(messages: tuple[Message, ...]) -> list[str]:
    return [message.role for message in messages]


@pytest.mark.feature("answer-messages-turn")
def test_the_messages_of_a_turn_carry_a_conversation_on(ask: Ask) -> None:
    """`messages()` of one request can be passed to the next one, without duplicates."""
    model = ScriptedModel(ASKS, "Sunny.", "You are welcome.")
    builder = ChatClient.builder(model).default_system("Be brief.").default_tools(weather)
    example = [UserMessage("Hi"), AssistantMessage("Hello")]
    client = builder.default_messages(example).build()

    first = ask(client.prompt("How is Rome?")).answer.messages()
    second = ask(client.prompt("Thanks!").messages(first)).answer

    assert kinds(first) == ["user", "assistant", "tool", "assistant"]
    assert model.prompts[-1].messages == (
        SystemMessage("Be brief."),
        *example,
        *first,
        UserMessage("Thanks!"),
    )
    assert second.messages() == (
        *first,
        UserMessage("Thanks!"),
        AssistantMessage("You are welcome."),
    )
    assert second.new_messages() == second.messages()[-2:]
    assert conversation_problems(second.messages(), ending="answer") == ()


@pytest.mark.feature("answer-messages-turn")
def test_new_messages_begin_with_the_question(ask: Ask) -> None:
    """Tool calls, their results and the answer follow."""
    model = ScriptedModel(ASKS, "Sunny.")
    history = [UserMessage("Hi"), AssistantMessage("Hello")]
    client = ChatClient.builder(model).default_tools(weather).build()

    new = ask(client.prompt([*history, UserMessage("How is Rome?")])).answer.new_messages()

    assert new[0] == UserMessage("How is Rome?")
    assert new[1] == AssistantMessage(None, [ASKS])
    assert isinstance(new[2], ToolResponseMessage)
    assert new[3:] == (AssistantMessage("Sunny."),)


def test_what_a_memory_showed_is_not_among_the_messages(ask: Ask) -> None:
    """History of a memory is left out, because the memory adds it again."""
    model = ScriptedModel("1", "2")
    memory = MessageChatMemoryAdvisor(MessageWindowChatMemory())
    client = ChatClient.builder(model).default_advisors(memory).build()

    ask(client.prompt("a").conversation("c"))
    messages = ask(client.prompt("b").conversation("c")).answer.messages()

    assert len(model.prompts[-1].messages) == 3
    assert messages == (UserMessage("b"), AssistantMessage("2"))


def test_messages_have_the_rewritten_text(ask: Ask) -> None:
    """The messages have the text that a guardrail rewrote, not the original."""

    def masked(request: ChatClientRequest) -> GuardrailResult:
        said = request.prompt.messages[-1].text
        return GuardrailResult.success(said.replace("4711", "****"))

    model = ScriptedModel(ASKS, "Noted.", OverloadedError("busy"))
    builder = ChatClient.builder(model).default_tools(weather)
    client = builder.default_advisors(InputGuardrailAdvisor(masked)).build()
    history = [UserMessage("Hi"), AssistantMessage("Hello")]
    answer = ask(client.prompt([*history, UserMessage("My PIN is 4711")])).answer

    asked = UserMessage("My PIN is ****")
    assert answer.messages()[:3] == (*history, asked)
    assert answer.new_messages()[0] == asked
    with pytest.raises(OverloadedError) as failed:
        ask(client.prompt("My PIN is 4711"))
    assert failed.value.trail is not None
    assert failed.value.trail.messages == (asked,)


def test_direct_results_are_one_answer(ask: Ask) -> None:
    """Several results that are the answer become one message, as in a memory."""

    @tool(return_direct=True)
    def now(city: str) -> str:
        """Tell the time in a city."""
        return f"noon in {city}"

    calls = [call("now", '{"city": "Rome"}', id="1"), call("now", '{"city": "Oslo"}', id="2")]
    client = ChatClient.builder(ScriptedModel(calls)).default_tools(now).build()

    answer = ask(client.prompt("x")).answer

    assert answer.messages()[-1].text == "noon in Rome\n\nnoon in Oslo"


def test_a_turn_that_waited_is_one_turn(ask: Ask) -> None:
    """When it has ended, its messages begin with the question.

    While it is suspended, with the calls.
    """
    model = ScriptedModel(ASKS, "Sunny.")
    manager = ToolCallingManager(interceptors=[ToolApproval(needed=lambda _: True)])
    builder = ChatClient.builder(model).default_system("Be brief.").default_tools(weather)
    client = builder.tool_calling_manager(manager).build()

    waiting = ask(client.prompt("How is Rome?")).answer
    resumed = ask(client.resume(waiting.pending_turn(), "approve")).answer

    assert kinds(waiting.new_messages()) == ["user", "assistant"]
    assert kinds(resumed.new_messages()) == ["user", "assistant", "tool", "assistant"]


@pytest.mark.parametrize("nothing", [(), "", " \n", [Reasoning("Hm.")]])
def test_an_empty_answer_is_no_message(ask: Ask, nothing: Any) -> None:
    """An empty answer is left out, because providers refuse it."""
    model = ScriptedModel(AssistantMessage(nothing))
    answer = ask(ChatClient.create(model).prompt("x")).answer

    assert answer.messages() == (UserMessage("x"),)


def test_an_answer_that_pauses_is_sent_back_as_it_is(ask: Ask) -> None:
    """A paused answer is kept with all its parts, because the provider continues it."""
    thought = AssistantMessage(reasoning=Reasoning("Hm."))
    model = ScriptedModel(ChatResponse((Generation(thought, None, "pause_turn"),)))
    answer = ask(ChatClient.create(model).prompt("x")).answer

    assert answer.messages() == (UserMessage("x"), thought)


def test_a_turn_without_an_answer_is_over_in_its_messages(ask: Ask) -> None:
    """A user message after it begins another turn."""
    model = ScriptedModel(ASKS, AssistantMessage(), ASKS, "Sunny.")
    client = ChatClient.builder(model).default_tools(weather).build()
    first = ask(client.prompt("Rome?")).answer.messages()
    second = ask(client.prompt("And now?").messages(first)).answer

    assert kinds(first) == ["user", "assistant", "tool"]
    assert conversation_problems(first, ending="answer") == ()
    assert kinds(second.new_messages()) == ["user", "assistant", "tool", "assistant"]
    assert second.messages() == (*first, *second.new_messages())


@pytest.mark.parametrize("inside", [False, True])
def test_messages_of_a_suspended_turn_are_the_original_ones(ask: Ask, inside: bool) -> None:
    """Its messages have no history of a memory, and the question as the user wrote it."""
    memory = MessageWindowChatMemory()
    order = TOOL_CALLING_ORDER + 100 if inside else MEMORY_ORDER
    model = ScriptedModel("Hello.", ASKS, call("weather", '{"city": "Oslo"}', id="2"), "Sunny.")
    builder = ChatClient.builder(model).default_tools(weather)
    builder = builder.default_messages(UserMessage("Hi"), AssistantMessage("Hi!"))
    advisors: list[Advisor] = [ReReadingAdvisor(), MessageChatMemoryAdvisor(memory, order=order)]
    manager = ToolCallingManager(interceptors=[ToolApproval(needed=lambda _: True)])
    client = builder.default_advisors(advisors).tool_calling_manager(manager).build()
    client.prompt("Good morning!").conversation("c").call().content()
    pending = client.prompt("How is Rome?").conversation("c").call().pending_turn()
    assert pending is not None
    waiting = ask(client.resume(pending.to_json(), "approve")).answer
    answer = ask(client.resume(waiting.pending_turn(), "approve")).answer

    assert kinds(waiting.messages()) == ["user", "assistant", "tool", "assistant"]
    assert answer.messages() == answer.new_messages() == tuple(memory.get("c")[2:])
    assert answer.messages()[0] == UserMessage("How is Rome?")


def test_a_system_message_does_not_split_a_turn(ask: Ask) -> None:
    """User input after tool results is part of the same turn, as in the memory."""
    said = [
        UserMessage("Rome?"),
        AssistantMessage(tool_calls=[call("look")]),
        ToolResponseMessage([ToolResponse("call_look", "look", "sunny")]),
        SystemMessage("Be brief."),
        UserMessage("And Oslo?"),
    ]
    answer = ask(ChatClient.create(ScriptedModel("Both sunny.")).prompt(said)).answer

    assert answer.new_messages()[0].text == "Rome?"


def test_messages_of_a_turn_suspended_twice(ask: Ask) -> None:
    """They begin with the question, also with user input during the turn."""
    steering = Steering()
    model = ScriptedModel(ASKS, call("weather", '{"city": "Oslo"}', id="2"), "Sunny.")
    manager = ToolCallingManager(interceptors=[ToolApproval(needed=lambda _: True)])
    builder = ChatClient.builder(model).default_tools(weather)
    client = builder.tool_calling_manager(manager).build()
    turn = ask(client.prompt("How is Rome?")).answer.pending_turn()
    steering.send("And Oslo?")
    turn = ask(client.resume(turn, "approve").advisors(steering)).answer.pending_turn()
    answer = ask(client.resume(turn.to_json(), "approve")).answer

    assert kinds(answer.new_messages()) == [
        *("user", "assistant", "tool"),
        *("user", "assistant", "tool", "assistant"),
    ]


@pytest.mark.parametrize("order", [MEMORY_ORDER, TOOL_CALLING_ORDER + 100])
def test_messages_of_a_resumed_turn_that_failed(ask: Ask, order: int) -> None:
    """Without the history of the memory, and with the original question."""
    memory = MessageWindowChatMemory()
    model = ScriptedModel("Hello.", ASKS, OverloadedError("busy"))
    manager = ToolCallingManager(interceptors=[ToolApproval(needed=lambda _: True)])
    client = (
        ChatClient.builder(model)
        .default_system("Be brief.")
        .default_tools(weather)
        .default_advisors(ReReadingAdvisor(), MessageChatMemoryAdvisor(memory, order=order))
        .tool_calling_manager(manager)
        .build()
    )
    client.prompt("Good morning!").conversation("c").call().content()
    turn = ask(client.prompt("How is Rome?").conversation("c")).answer.pending_turn()
    with pytest.raises(OverloadedError) as caught:
        ask(client.resume(turn.to_json(), "approve"))

    assert caught.value.trail is not None
    messages = caught.value.trail.messages
    assert kinds(messages) == ["user", "assistant", "tool"]
    assert messages[0] == UserMessage("How is Rome?")


def test_an_answer_without_a_model_is_an_answer(ask: Ask) -> None:
    """The answer of an advisor is in the messages, without a response of a round."""

    async def refuse(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        return ChatClientResponse(ChatResponse.of("No."))

    answer = ask(ChatClient.create(ScriptedModel()).prompt("x").advisors(refuse)).answer

    assert answer.messages() == (UserMessage("x"), AssistantMessage("No."))
    assert answer.round_responses() == ()


@pytest.mark.feature("lc4j-tool-result-intermediate-responses")
def test_the_answers_of_all_rounds_can_be_had(ask: Ask) -> None:
    """`round_responses()` has the response of each round with its usage."""
    model = ScriptedModel(["One moment.", ASKS], "Sunny.")
    client = ChatClient.builder(model).default_tools(weather).build()

    rounds = ask(client.prompt("x")).answer.round_responses()

    assert [each.text for each in rounds] == ["One moment.", "Sunny."]
    assert [each.usage.total_tokens for each in rounds] == [15, 15]


def test_an_async_answer_has_its_messages() -> None:
    """The accessors of an asynchronous answer are awaited."""

    async def main() -> tuple[Any, ...]:
        answer = ChatClient.create(ScriptedModel("b")).prompt("a").acall()
        return (
            await answer.messages(),
            await answer.new_messages(),
            await answer.round_responses(),
        )

    said, new, rounds = asyncio.run(main())

    assert said == new == (UserMessage("a"), AssistantMessage("b"))
    assert [each.text for each in rounds] == ["b"]


def test_the_messages_of_a_stream_are_known_at_its_end() -> None:
    """Reading them earlier is an error."""
    stream = ChatClient.create(ScriptedModel("b")).prompt("a").stream()
    pieces = iter(stream)
    next(pieces)

    with pytest.raises(ValueError, match="has not ended"):
        stream.messages()
    list(pieces)
    assert stream.messages()[-1] == AssistantMessage("b")


# --- after a failure ---


def busy() -> OverloadedError:
    return OverloadedError("busy", provider="x")


booked: list[str] = []


@tool
def book(city: str, context: ToolContext) -> str:
    """Book a room."""
    booked.append(context.idempotency_key)
    return f"booked {city}"


BOOKS = call("book", {"city": "Rome"})


@pytest.fixture(autouse=True)
def _nothing_booked() -> None:
    booked.clear()


@pytest.mark.feature("observation-going-after-failure")
@pytest.mark.parametrize("remembers", [False, True])
def test_a_turn_that_failed_can_be_continued(ask: Ask, remembers: bool) -> None:
    """The trail has the messages of complete rounds, so that no tool runs again."""
    memory = MessageWindowChatMemory()
    memory.add("c", [UserMessage("Hi"), AssistantMessage("Hello")])
    advisors = [MessageChatMemoryAdvisor(memory)] if remembers else []
    model = ScriptedModel(BOOKS, busy(), BOOKS, "Two rooms.")
    builder = ChatClient.builder(model).default_system("Be brief.").default_tools(book)
    client = builder.default_advisors(*advisors).build()
    with pytest.raises(OverloadedError) as caught:
        ask(client.prompt("A room!").conversation("c"))
    messages = caught.value.trail.messages
    assert kinds(messages) == ["user", "assistant", "tool"]

    assert ask(client.prompt(messages).conversation("c")).text == "Two rooms."
    assert conversation_problems(model.prompts[-1].messages) == ()
    assert len(booked) == len(set(booked)) == 2  # the second room is one more
    assert kinds(tuple(memory.get("c")))[2:] == (
        ["user", "assistant", "tool", "assistant", "tool", "assistant"] if remembers else []
    )


@pytest.mark.feature("observation-going-after-failure")
def test_a_resumed_turn_that_failed_can_be_continued(ask: Ask) -> None:
    """Approved calls that have run are not run again."""
    manager = ToolCallingManager(interceptors=[ToolApproval()])
    model = ScriptedModel(ASKS, BOOKS, busy(), "Booked.")
    builder = ChatClient.builder(model).default_tools(book, weather).tool_calling_manager(manager)
    client = builder.build()
    turn = ask(client.prompt("A room!")).waiting
    turn = ask(client.resume(turn, "approve")).waiting
    with pytest.raises(OverloadedError) as caught:
        ask(client.resume(turn, "approve"))

    messages = caught.value.trail.messages
    assert kinds(messages) == ["user", "assistant", "tool", "assistant", "tool"]
    assert (ask(client.prompt(messages)).text, len(booked)) == ("Booked.", 1)


@pytest.mark.feature("observation-going-after-failure")
def test_a_continued_turn_shows_undone_calls(ask: Ask) -> None:
    """A failure after the loop keeps the rounds, too."""

    @tool(compensation=lambda: None)
    def hold() -> str:
        """Hold a room."""
        return "held"

    def failing(*answers: Answer, guard: Any = None) -> ChatClientError:
        builder = ChatClient.builder(ScriptedModel(*answers)).default_tools(hold)
        client = builder.default_advisors(*([guard] if guard else [])).build()
        with pytest.raises(ChatClientError) as caught:
            ask(client.prompt("A room!"))
        return caught.value

    undone = failing(call("hold"), busy()).trail.messages[-1].responses[0].data
    assert "undone because the turn failed" in undone

    refused = OutputGuardrailAdvisor(lambda _: GuardrailResult.fatal("no"))
    after = failing(call("hold"), "Held.", guard=refused).trail.messages
    assert [message.role for message in after] == ["user", "assistant", "tool"]
    assert after[-1].responses[0].data == undone
    assert kinds(failing(busy()).trail.messages) == ["user"]
    assert (Trail().messages, Trail().request_messages, Trail().parent) == ((), (), None)


def test_a_turn_begins_with_all_last_user_messages(ask: Ask) -> None:
    """A question may consist of several messages."""
    question = [UserMessage("c"), UserMessage("d")]
    client = ChatClient.create(ScriptedModel("e"))
    result = ask(client.prompt([UserMessage("a"), AssistantMessage("b"), *question]))

    assert [m.text for m in result.answer.new_messages()] == ["c", "d", "e"]
