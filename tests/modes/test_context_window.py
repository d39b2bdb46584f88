"""The context window: what is left out, what stays, and what is never sent."""

import gc
import weakref
from typing import Any

import pytest

from chatclient import (
    AssistantMessage,
    ChatClient,
    ChatOptions,
    ChatResponse,
    Message,
    SystemMessage,
    ToolCall,
    ToolResponse,
    ToolResponseMessage,
    UserMessage,
)
from chatclient.advisors.context_window import TRIMMED_MESSAGES, ContextWindowAdvisor
from chatclient.advisors.guardrails.advisors import GuardrailResult, OutputGuardrailAdvisor
from chatclient.errors import ContextLengthExceededError, ContextWindowError, UsageError
from chatclient.memory.conversation import conversation_problems
from chatclient.testing import ScriptedModel, call
from chatclient.tools import tool
from tests.support.ask import Ask


def ten_each(message: Message) -> int:
    return 10


def client_of(model: ScriptedModel, room: int, **how: Any) -> ChatClient:
    advisor = ContextWindowAdvisor(room + 100, reserve=100, estimator=ten_each, **how)
    return ChatClient.builder(model).default_advisors(advisor).build()


HISTORY: list[Message] = [
    SystemMessage("Be brief."),
    UserMessage("one"),
    AssistantMessage("1"),
    UserMessage("two"),
    AssistantMessage(tool_calls=[ToolCall("c", "look_up", "{}")]),
    ToolResponseMessage([ToolResponse("c", "look_up", "found")]),
    AssistantMessage("2"),
    UserMessage("three"),
]


@pytest.mark.feature("advisors-last-max-token-size")
@pytest.mark.parametrize(
    ("room", "texts"),
    [
        (80, ["Be brief.", "one", "1", "two", "", "", "2", "three"]),
        (70, ["Be brief.", "two", "", "", "2", "three"]),
        (60, ["Be brief.", "two", "", "", "2", "three"]),
        (59, ["Be brief.", "three"]),
        (20, ["Be brief.", "three"]),
    ],
)
def test_the_oldest_turns_are_left_out_whole(ask: Ask, room: int, texts: list[str]) -> None:
    """A question goes with its answer and the calls between; what is left can be sent."""
    model = ScriptedModel("ok")
    result = ask(client_of(model, room).prompt(HISTORY))

    sent = model.prompts[0].messages
    assert [m.text for m in sent] == texts
    assert conversation_problems(sent) == ()
    assert result.response.context.get(TRIMMED_MESSAGES, 0) == len(HISTORY) - len(texts)


@pytest.mark.feature("advisors-last-max-token-size")
@pytest.mark.parametrize("how", [{}, {"on_exceeded": "raise"}])
def test_what_cannot_fit_is_never_sent(ask: Ask, how: Any) -> None:
    """The error says how much there is and how much may be; it is like the provider's own."""
    model = ScriptedModel()
    with pytest.raises(ContextWindowError, match="room for 19") as caught:
        ask(client_of(model, 19, **how).prompt(HISTORY))

    assert model.prompts == []
    assert caught.value.limit == 19
    assert caught.value.tokens == (20 if not how else 80)
    assert isinstance(caught.value, ContextLengthExceededError)


def test_nothing_is_left_out_where_that_is_not_wanted(ask: Ask) -> None:
    """Then trimming is somebody else's business."""
    with pytest.raises(ContextWindowError):
        ask(client_of(ScriptedModel(), 70, on_exceeded="raise").prompt(HISTORY))


def test_trimming_keeps_the_question_of_a_retry(ask: Ask) -> None:
    """A correction begins no turn, so the question before it is kept."""

    def longer(answer: ChatResponse) -> GuardrailResult | None:
        return GuardrailResult.reprompt("short", "Longer!") if len(answer.text) < 5 else None

    def asked(room: int) -> list[str]:
        model = ScriptedModel("3", "And three.")
        guarded = client_of(model, room).mutate().default_advisors(OutputGuardrailAdvisor(longer))
        ask(guarded.build().prompt(HISTORY))
        return [message.text for message in model.prompts[1].messages]

    assert asked(40) == ["Be brief.", "three", "3", "Longer!"]
    with pytest.raises(ContextWindowError, match="about 40 tokens"):
        asked(39)


@tool
def look_up(word: str) -> str:
    """Look a word up."""
    return word


def test_every_round_is_looked_at(ask: Ask) -> None:
    """A turn that outgrows the window by itself ends before it is sent."""
    model = ScriptedModel(*(call("look_up", '{"word": "x"}', id=str(n)) for n in range(9)))
    client = client_of(model, 90).mutate().default_tools(look_up).build()
    with pytest.raises(ContextWindowError):
        ask(client.prompt("?"))

    assert [len(prompt.messages) for prompt in model.prompts] == [1, 3, 5]


def test_answer_tools_and_schema_need_room_too(ask: Ask) -> None:
    """Of a window, the prompt's messages are only a part."""
    client = client_of(ScriptedModel("ok", "ok"), 80)
    ask(client.prompt(HISTORY).options(max_tokens=100))
    with_schema = ChatOptions(max_tokens=159, output_schema={"type": "object"})
    for options in (ChatOptions(max_tokens=180), with_schema):
        with pytest.raises(ContextWindowError):
            ask(client.prompt(HISTORY).options(options))
    with pytest.raises(ContextWindowError):
        ask(client.prompt(HISTORY).options(max_tokens=150).tools(look_up))


def test_the_advisor_holds_on_to_no_request(ask: Ask) -> None:
    """What it told its tools goes with it, and does not wait for the next one."""

    class Session:
        """A connection to a database, say."""

    model, session = ScriptedModel("ok"), Session()
    client = client_of(model, 80)
    here = weakref.ref(session)
    ask(client.prompt("?").tool_context({"session": session}))
    del session
    model.prompts.clear()
    gc.collect()

    assert here() is None


def test_tokens_are_estimated_unless_somebody_counts(ask: Ask) -> None:
    """One for four bytes, which errs on the safe side in most languages."""
    client = (
        ChatClient.builder(ScriptedModel("ok"))
        .default_advisors(ContextWindowAdvisor(600, reserve=100))
        .build()
    )
    assert ask(client.prompt("word " * 300)).text == "ok"
    with pytest.raises(ContextWindowError):
        ask(client.prompt("word " * 500))


def test_a_window_has_some_size() -> None:
    """None at all is a mistake."""
    with pytest.raises(UsageError):
        ContextWindowAdvisor(0)
    ContextWindowAdvisor(1)
