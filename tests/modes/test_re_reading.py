"""Re-reading: the question twice, in every round, and once in memory."""

import pytest

from chatclient import ChatClient, UserMessage, tool
from chatclient.advisors.memory.advisors import MessageChatMemoryAdvisor
from chatclient.advisors.retrieval.advisor import ReReadingAdvisor
from chatclient.chat.messages import Media, SystemMessage
from chatclient.errors import TemplateError
from chatclient.memory import InMemoryChatMemoryRepository, MessageWindowChatMemory
from chatclient.testing import Ask, ScriptedModel, call


@tool
def look_up() -> str:
    """Look something up."""
    return "found"


@pytest.mark.feature("advisors-re-reading")
def test_the_question_is_put_twice(ask: Ask) -> None:
    """The same in all rounds; braces in the question are no placeholders; media stay."""
    model = ScriptedModel(call("look_up"), "ok")
    client = ChatClient.builder(model).default_advisors(ReReadingAdvisor()).default_tools(look_up)
    picture = Media("image/png", b"1")
    ask(client.build().prompt().user("What is {x}?", media=picture))

    for prompt in model.prompts:
        assert prompt.messages[0].text == "What is {x}?\n\nRead the question again: What is {x}?"
        assert isinstance(prompt.messages[0], UserMessage)
        assert prompt.messages[0].media == (picture,)


@pytest.mark.feature("advisors-re-reading")
def test_memory_keeps_the_original_question(ask: Ask) -> None:
    """The text that is added for the model is not stored."""
    memory = MessageWindowChatMemory(InMemoryChatMemoryRepository())
    client = (
        ChatClient.builder(ScriptedModel("ok"))
        .default_advisors(ReReadingAdvisor("{question} {question}"))
        .default_advisors(MessageChatMemoryAdvisor(memory))
        .build()
    )
    ask(client.prompt("Why?").conversation("c"))

    assert memory.get("c")[0] == UserMessage("Why?")


@pytest.mark.parametrize("messages", [[SystemMessage("Talk.")], [UserMessage([Media("a/b", b"")])]])
def test_without_a_question_there_is_nothing_to_repeat(
    ask: Ask, messages: list[UserMessage]
) -> None:
    """A request without a user's text goes through as it is."""
    model = ScriptedModel("ok")
    ask(ChatClient.builder(model).default_advisors(ReReadingAdvisor()).build().prompt(messages))

    assert list(model.prompts[0].messages) == messages


def test_a_template_needs_the_question() -> None:
    """Otherwise it would be lost."""
    with pytest.raises(TemplateError, match="question"):
        ReReadingAdvisor("Think twice.")
