"""Tool calls without results in a history that the application sends."""

from typing import Any

import pytest

from chatclient import (
    AssistantMessage,
    ChatClient,
    Message,
    Prompt,
    ToolResponse,
    ToolResponseMessage,
    UserMessage,
    tool,
)
from chatclient.advisors import MessageChatMemoryAdvisor
from chatclient.chat.message_merging import INTERRUPTED
from chatclient.memory import (
    InMemoryChatMemoryRepository,
    MessageWindowChatMemory,
    conversation_problems,
)
from chatclient.testing import Ask, ScriptedModel, call


@tool(effect="read", confirm=True)
def look(what: str = "sky") -> str:
    """Look at something."""
    return f"{what}: blue"


def calling(*ids: str) -> AssistantMessage:
    return AssistantMessage(tool_calls=[call("look", id=id) for id in ids])


def found(*ids: str) -> ToolResponseMessage:
    return ToolResponseMessage([ToolResponse(id, "look", "blue") for id in ids])


def shape(messages: tuple[Message, ...]) -> str:
    """Return the messages as words: the text, the called ids, or the answered ids and failures."""
    words = []
    for message in messages:
        match message:
            case ToolResponseMessage():
                parts = [f"{each.id}{'!' * each.is_error}" for each in message.responses]
                words.append(f"={','.join(parts)}")
            case AssistantMessage() if message.tool_calls:
                words.append(f"?{','.join(each.id for each in message.tool_calls)}")
            case _:
                words.append(message.text)
    return " ".join(words)


HISTORIES: list[tuple[list[Message], str]] = [
    ([UserMessage("a"), calling("1"), UserMessage("b")], "a ?1 =1! b"),
    ([UserMessage("a"), calling("1")], "a ?1 =1!"),
    ([UserMessage("a"), calling("1", "2"), UserMessage("b")], "a ?1,2 =1!,2! b"),
    ([UserMessage("a"), calling("1", "2"), found("2"), UserMessage("b")], "a ?1,2 =2,1! b"),
    ([UserMessage("a"), calling("1", "2"), found("2"), found("1")], "a ?1,2 =2 =1"),
    ([UserMessage("a"), calling("1"), AssistantMessage("c"), UserMessage("b")], "a ?1 =1! c b"),
    (
        [UserMessage("a"), calling("1"), UserMessage("b"), calling("2"), found("2"), calling("3")],
        "a ?1 =1! b ?2 =2 ?3 =3!",
    ),
    ([UserMessage("a"), calling("1"), UserMessage("b"), found("1")], "a ?1 b =1"),  # to repair
    ([UserMessage("a"), calling("1"), found("1"), UserMessage("b")], "a ?1 =1 b"),
]


@pytest.mark.feature("session-open-calls-answered")
@pytest.mark.parametrize("where", ["messages", "prompt", "defaults"])
@pytest.mark.parametrize(("history", "sent"), HISTORIES)
def test_open_calls_are_answered(ask: Ask, where: str, history: list[Message], sent: str) -> None:
    """The model gets an error for each call without a result; the rest is sent as it is."""
    model = ScriptedModel("done")
    client = ChatClient.create(model)
    if where == "defaults":
        client = ChatClient.builder(model).default_messages(*history).build()
    request = client.prompt(Prompt(history)) if where == "prompt" else client.prompt()
    if where == "messages":
        request = request.messages(*history[:1]).messages(*history[1:])
    if where == "defaults":
        request = request.user("x")
        sent += " x"
    assert ask(request).text == "done"

    assert shape(model.prompts[0].messages) == sent
    texts = [r.data for m in model.prompts[0].messages for r in getattr(m, "responses", ())]
    assert {*texts} <= {INTERRUPTED, "blue"}


@pytest.mark.feature("session-open-calls-answered")
def test_answer_of_a_suspended_turn_continues(ask: Ask) -> None:
    """A new question instead of a decision is answered, in a valid conversation."""
    model = ScriptedModel(call("look", id="1"), "done")
    client = ChatClient.builder(model).default_tools(look).build()
    waiting = client.prompt("a").call()
    assert waiting.pending_turn() is not None
    asked = ask(client.prompt().messages(waiting.messages()).user("b"))

    assert asked.text == "done"
    assert shape(model.prompts[1].messages).endswith("=1! b")
    assert conversation_problems(model.prompts[1].messages, ending="question") == ()


@pytest.mark.feature("session-open-calls-answered")
def test_open_calls_in_a_memory(ask: Ask) -> None:
    """A stored conversation that was cut off is sent as a valid one; the new turn is stored."""
    memory = MessageWindowChatMemory(InMemoryChatMemoryRepository())
    memory.add("c", [UserMessage("a"), calling("1")])
    model = ScriptedModel("done")
    client = ChatClient.builder(model).default_advisors(MessageChatMemoryAdvisor(memory)).build()
    ask(client.prompt("b").conversation("c"))

    assert shape(model.prompts[0].messages) == "a ?1 =1! b"
    stored: Any = tuple(memory.get("c"))
    assert shape(stored) == "a ?1 b done"


def test_only_the_last_turn_is_new(ask: Ask) -> None:
    """The question after an open call begins another turn."""
    model = ScriptedModel("done")
    request = ChatClient.create(model).prompt().messages(UserMessage("a"), calling("1")).user("b")
    answer = request.call()

    assert shape(answer.new_messages()) == "b done"
    assert shape(answer.messages()) == "a ?1 =1! b done"
    assert ask(ChatClient.create(ScriptedModel("x")).prompt("y")).text == "x"
