"""A model that plays the user."""

import asyncio
import json
from collections.abc import Callable
from typing import TypeAlias

import pytest

from chatclient import ChatClient, Runtime, tool
from chatclient.advisors import MessageChatMemoryAdvisor, RetrievalAugmentationAdvisor
from chatclient.errors import EntityError, UsageError
from chatclient.memory import MessageWindowChatMemory
from chatclient.retrieval import Document, Query
from chatclient.testing import (
    Answer,
    ExpectedToolCalls,
    ScriptedModel,
    SimulatedConversation,
    SimulatedUser,
    assert_passes,
    call,
)
from chatclient.tools import ToolApproval, ToolCallingManager

Talk: TypeAlias = Callable[[SimulatedUser, ChatClient], SimulatedConversation]


@pytest.fixture(params=["blocking", "async"])
def talk(request: pytest.FixtureRequest) -> Talk:
    """Hold a conversation, blocking and async."""
    if request.param == "blocking":
        return lambda user, client: user.talk_to(client, conversation_id="c1")
    return lambda user, client: asyncio.run(user.atalk_to(client, conversation_id="c1"))


def says(message: str, *, done: bool = False) -> str:
    return json.dumps({"goal_reached": done, "message": message})


@tool
def book(city: str) -> str:
    """Book a table."""
    return f"booked in {city}"


def assistant(*answers: Answer) -> ChatClient:
    """Return a client with a tool and a memory."""
    memory = MessageChatMemoryAdvisor(MessageWindowChatMemory())
    client = ChatClient.builder(ScriptedModel(*answers)).default_tools(book)
    return client.default_advisors(memory).build()


def test_reaches_goal(talk: Talk) -> None:
    """Both talk until the user has what it wants; memory knows what was said."""
    model = ScriptedModel(says("A table, please."), says("In <Rome>."), says("", done=True))
    user = SimulatedUser(
        ChatClient.create(model), "A table in Rome.", persona="You are in a hurry."
    )
    client = assistant("Where?", call("book", {"city": "Rome"}), "It is booked.")

    conversation = talk(user, client)

    assert conversation.goal_reached
    assert conversation.conversation_id == "c1"
    assert conversation.text == (
        "user: A table, please.\n\nassistant: Where?\n\n"
        "user: In <Rome>.\n\nassistant: It is booked."
    )
    assert str(conversation).endswith("(the goal was reached: A table in Rome.)")
    assert "Your goal: A table in Rome.\nYou are in a hurry." in model.prompts[0].contents
    assert "user: In &lt;Rome&gt;." in model.prompts[2].contents
    assert_passes(conversation.to_evaluate(), ExpectedToolCalls("book", order="exact"))
    assert isinstance(client.model, ScriptedModel)
    assert len(client.model.prompts[1].messages) == 3


@pytest.mark.parametrize(
    ("script", "turns"), [([says("Hi!")] * 3, 2), ([says("Hi!"), says(" ")], 1), ([says("")], 0)]
)
def test_gives_up(talk: Talk, script: list[str], turns: int) -> None:
    """The user gives up after some turns, or without anything to say."""
    user = SimulatedUser(ChatClient.create(ScriptedModel(*script)), "To be heard.", max_turns=2)

    conversation = talk(user, assistant("Hm.", "Hm."))

    assert not conversation.goal_reached
    assert len(conversation.turns) == turns
    assert "not reached" in str(conversation)


def test_turn_that_waits(talk: Talk) -> None:
    """The conversation ends when a turn waits for a decision, which the user cannot make."""
    manager = ToolCallingManager(interceptors=[ToolApproval()])
    builder = assistant(call("book", {"city": "Rome"})).mutate()
    client = builder.tool_calling_manager(manager).build()
    user = SimulatedUser(ChatClient.create(ScriptedModel(says("Book!"))), "A table.")

    conversation = talk(user, client)

    assert not conversation.goal_reached
    assert conversation.turns[0].response.turn.pending is not None


def test_documents() -> None:
    """The documents of all turns are part of what is judged."""

    def search(query: Query, runtime: Runtime) -> list[Document]:
        return [Document(f"About {query.text}")]

    client = ChatClient.builder(ScriptedModel("At nine.", "At ten."))
    client = client.default_advisors(RetrievalAugmentationAdvisor(search))
    model = ScriptedModel(says("lions"), says("zebras"), says("", done=True))

    found = SimulatedUser(ChatClient.create(model), "Opening hours").talk_to(client.build())

    texts = [document.text for document in found.to_evaluate().documents]
    assert texts == ["About lions", "About zebras"]
    assert found.to_evaluate().question == "Opening hours"
    assert len(found.conversation_id) > 10


def test_user_that_does_not_play() -> None:
    """A model that does not answer in the form it is asked for is an error."""
    user = SimulatedUser(ChatClient.create(ScriptedModel("Hello!")), "A table.")

    with pytest.raises(EntityError):
        user.talk_to(assistant())


def test_misuse() -> None:
    """A user needs a goal and a turn."""
    client = assistant()

    with pytest.raises(UsageError, match="the goal must not be blank"):
        SimulatedUser(client, " ")
    with pytest.raises(UsageError, match="max_turns"):
        SimulatedUser(client, "A table.", max_turns=0)
