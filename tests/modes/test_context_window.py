"""The context window: which messages are removed, kept or refused."""

import gc
import itertools
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
    tool,
)
from chatclient.advisors.context_window import (
    ContextWindowAdvisor,
)
from chatclient.advisors.guardrails.advisors import GuardrailResult, OutputGuardrailAdvisor
from chatclient.chat.turn import LeftOut
from chatclient.errors import ContextLengthExceededError, ContextWindowError, UsageError
from chatclient.memory.conversation import conversation_problems
from chatclient.memory.window import estimated_tokens
from chatclient.testing import Ask, ScriptedModel, call


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
        (79, ["Be brief.", "three"]),
        (59, ["Be brief.", "three"]),
        (20, ["Be brief.", "three"]),
    ],
)
def test_the_oldest_turns_are_removed_completely(ask: Ask, room: int, texts: list[str]) -> None:
    """A question is removed with its calls and its answer, so that the rest is valid."""
    model = ScriptedModel("ok")
    result = ask(client_of(model, room).prompt(HISTORY))

    sent = model.prompts[0].messages
    assert [m.text for m in sent] == texts
    assert conversation_problems(sent) == ()
    assert result.response.turn.left_out == LeftOut(messages=len(HISTORY) - len(texts))


@pytest.mark.feature("advisors-last-max-token-size")
@pytest.mark.parametrize("how", [{}, {"on_exceeded": "raise"}])
def test_what_cannot_fit_is_never_sent(ask: Ask, how: Any) -> None:
    """The error has the size and the limit, and its type is that of the provider's error."""
    model = ScriptedModel()
    with pytest.raises(ContextWindowError, match="room for 19") as caught:
        ask(client_of(model, 19, **how).prompt(HISTORY))

    assert model.prompts == []
    assert caught.value.limit == 19
    assert caught.value.tokens == (20 if not how else 80)
    assert isinstance(caught.value, ContextLengthExceededError)


def test_nothing_is_left_out_where_that_is_not_wanted(ask: Ask) -> None:
    """With `on_exceeded="raise"`, the advisor raises instead of trimming."""
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


def test_a_turn_that_may_not_be_shortened_ends_when_it_is_too_long(ask: Ask) -> None:
    """Every round is looked at, and nothing is sent that does not fit."""
    model = ScriptedModel(*(call("look_up", '{"word": "x"}', id=str(n)) for n in range(9)))
    client = client_of(model, 90, clear_tool_results=False).mutate().default_tools(look_up).build()
    with pytest.raises(ContextWindowError):
        ask(client.prompt("?"))

    assert [len(prompt.messages) for prompt in model.prompts] == [1, 3, 5]


def test_answer_tools_and_schema_need_room_too(ask: Ask) -> None:
    """Tools, schema and the reserved answer count as well as the messages."""
    client = client_of(ScriptedModel("ok", "ok"), 80)
    ask(client.prompt(HISTORY).options(max_tokens=100))
    with_schema = ChatOptions(max_tokens=159, output_schema={"type": "object"})
    for options in (ChatOptions(max_tokens=180), with_schema):
        with pytest.raises(ContextWindowError):
            ask(client.prompt(HISTORY).options(options))
    with pytest.raises(ContextWindowError):
        ask(client.prompt(HISTORY).options(max_tokens=150).tools(look_up))


def test_the_advisor_holds_on_to_no_request(ask: Ask) -> None:
    """The tool context is released after the request, not with the next one."""

    class Session:
        """An object of the tool context."""

    model, session = ScriptedModel("ok"), Session()
    client = client_of(model, 80)
    here = weakref.ref(session)
    ask(client.prompt("?").tool_context({"session": session}))
    del session
    model.prompts.clear()
    gc.collect()

    assert here() is None


def test_tokens_are_estimated_by_default(ask: Ask) -> None:
    """The estimate is one token for four bytes, which is rarely too low."""
    client = (
        ChatClient.builder(ScriptedModel("ok"))
        .default_advisors(ContextWindowAdvisor(600, reserve=100))
        .build()
    )
    assert ask(client.prompt("word " * 300)).text == "ok"
    with pytest.raises(ContextWindowError):
        ask(client.prompt("word " * 500))


def test_a_window_has_some_size() -> None:
    """A window of zero tokens is refused."""
    with pytest.raises(UsageError):
        ContextWindowAdvisor(0)
    ContextWindowAdvisor(1)


def looked_up(count: int, size: int) -> list[Message]:
    """Return the rounds of a turn in which a tool gave results of *size* characters."""
    return [
        message
        for at in range(count)
        for message in (
            AssistantMessage(tool_calls=[ToolCall(str(at), "look_up", "{}")]),
            ToolResponseMessage([ToolResponse(str(at), "look_up", "x" * size)]),
        )
    ]


def test_old_tool_results_are_cleared_first(ask: Ask) -> None:
    """In a turn of many rounds, old results are cleared, and the newest are kept."""
    model = ScriptedModel(*["ok"] * 8)
    client = (
        ChatClient.builder(model).default_advisors(ContextWindowAdvisor(2000, reserve=0)).build()
    )
    question = UserMessage("?")
    result = ask(client.prompt([question, *looked_up(12, 800)]))
    sent = model.prompts[0].messages
    results = [m.responses[0].data for m in sent if isinstance(m, ToolResponseMessage)]
    cleared = sum("left out" in each for each in results)

    assert [type(m) for m in sent] == [UserMessage, *[AssistantMessage, ToolResponseMessage] * 12]
    assert results[cleared:] == ["x" * 800] * (12 - cleared)
    assert all("left out" in each for each in results[:cleared])
    assert 3 <= cleared <= 8
    assert result.response.turn.left_out == LeftOut(results=cleared)
    with pytest.raises(ContextWindowError):
        ask(client.prompt([UserMessage("? " * 4000), *looked_up(4, 3000)]))


def test_turns_are_removed_if_clearing_does_not_suffice(ask: Ask) -> None:
    """What is left is then cleared if it is still too long; without clearing, it is refused."""
    older = [UserMessage("old " * 1000), AssistantMessage("1")]
    prompt = [*older, UserMessage("?"), *looked_up(12, 800)]

    def sent(**how: Any) -> list[str]:
        model = ScriptedModel("ok")
        advisor = ContextWindowAdvisor(2000, reserve=0, **how)
        result = ask(ChatClient.builder(model).default_advisors(advisor).build().prompt(prompt))
        left_out = result.response.turn.left_out
        assert (left_out.messages, left_out.results > 2) == (2, True)
        return [m.text for m in model.prompts[0].messages]

    assert sent()[0] == "?"
    with pytest.raises(ContextWindowError):
        sent(clear_tool_results=False)


@pytest.mark.parametrize("rounds", [0, 2])
def test_the_beginning_of_the_prompt_rarely_changes(rounds: int) -> None:
    """While a conversation grows, turns are removed and results cleared in blocks."""
    model = ScriptedModel(*["ok"] * 100)
    client = (
        ChatClient.builder(model).default_advisors(ContextWindowAdvisor(3000, reserve=0)).build()
    )
    history: list[Message] = []
    for number in range(100):
        history.append(UserMessage(f"{number} " + "word " * 20))
        client.prompt(history).call().content()
        history += [*looked_up(rounds, 400), AssistantMessage("answer " * 20)]
    sent = [prompt.messages for prompt in model.prompts]
    changes = sum(b[: len(a)] != a for a, b in itertools.pairwise(sent))

    assert 2 < changes < 25
    assert all(sum(map(estimated_tokens, each)) > 1300 for each in sent[40:])


def test_a_little_is_cleared_rather_than_nothing(ask: Ask) -> None:
    """The newest results are cleared if the prompt does not fit otherwise."""
    sizes = iter([300, 300, 2000, 2000, 2000])

    @tool
    def read(page: int) -> str:
        """Read."""
        return "r" * next(sizes)

    calls = [call("read", {"page": page}) for page in range(5)]
    window = ContextWindowAdvisor(1710, reserve=10)
    client = (
        ChatClient.builder(ScriptedModel(*calls, "done"))
        .default_tools(read)
        .default_advisors(window)
        .build()
    )

    assert ask(client.prompt("go")).text == "done"
