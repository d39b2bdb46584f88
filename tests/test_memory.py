"""Memory: windows, summaries, system messages, and what makes a conversation valid."""

import asyncio
import logging
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatclient import AssistantMessage, Message, SystemMessage, UserMessage
from chatclient.driving import drive
from chatclient.errors import (
    ChatMemoryError,
    ContextLengthExceededError,
    OverloadedError,
    UsageError,
)
from chatclient.memory import (
    ChatMemory,
    Conversation,
    InMemoryChatMemoryRepository,
    MessageWindowChatMemory,
    SummarizingChatMemory,
    TokenWindowChatMemory,
    Window,
    WindowChatMemory,
    conversation_problems,
    estimated_tokens,
    repair_conversation,
)
from chatclient.memory.summary import SUMMARY
from chatclient.memory.transcript import transcript
from chatclient.messages import (
    Media,
    ProviderPart,
    Reasoning,
    ToolCall,
    ToolCallChunk,
    ToolResponse,
    ToolResponseMessage,
)
from chatclient.prompt import Prompt
from chatclient.response import ChatResponse
from chatclient.runtime import BLOCKING, Runtime
from chatclient.testing import Answer, ScriptedModel, call

S1, S2, S3 = (SystemMessage(f"s{n}") for n in (1, 2, 3))
U1, U2, U3 = (UserMessage(f"u{n}") for n in (1, 2, 3))
A1, A2, A3 = (AssistantMessage(f"a{n}") for n in (1, 2, 3))
C1, C2 = (AssistantMessage([call("look", id=f"c{n}")]) for n in (1, 2))
T1, T2 = (ToolResponseMessage([ToolResponse(f"c{n}", "look", f"t{n}")]) for n in (1, 2))


def turns(count: int, words: str = "") -> list[Message]:
    return [
        message
        for n in range(count)
        for message in (UserMessage(f"u{n}{words}"), AssistantMessage(f"a{n}{words}"))
    ]


# --- the face -------------------------------------------------------------------------------


def test_what_is_added_is_given_back_and_can_be_cleared() -> None:
    """One message or several, blocking."""
    memory = MessageWindowChatMemory()
    memory.add("c", U1)
    memory.add("c", iter([A1, U2]))

    assert memory.get("c") == [U1, A1, U2]
    assert memory.get("other") == []
    memory.clear("c")
    memory.clear("c")
    assert memory.get("c") == []


async def test_what_is_added_is_given_back_on_a_loop() -> None:
    """One message or several, asynchronously."""
    memory = MessageWindowChatMemory()
    await memory.aadd("c", U1)
    await memory.aadd("c", [A1], key="k")
    await memory.aadd("c", [A1], key="k")

    assert await memory.aget("c") == [U1, A1]
    await memory.aclear("c")
    assert await memory.aget("c") == []


@pytest.mark.parametrize("id", ["", " \n", None, 7])
def test_a_blank_id_is_refused(id: Any) -> None:
    """By every operation of memory and repository, before anything happens."""
    memory = MessageWindowChatMemory()
    repository = memory.repository
    operations: list[Callable[[], object]] = [
        lambda: memory.add(id, U1),
        lambda: memory.get(id),
        lambda: memory.clear(id),
        lambda: repository.save_all(id, [U1]),
        lambda: repository.find_by_conversation_id(id),
        lambda: repository.delete_by_conversation_id(id),
    ]
    for operation in operations:
        with pytest.raises(UsageError, match="conversation id"):
            operation()
    assert repository.find_conversation_ids() == []


def test_only_messages_can_be_added() -> None:
    """A text is no message; nothing of the rest is added either."""
    memory = MessageWindowChatMemory()
    mixed: Any = [U1, "text"]

    with pytest.raises(TypeError, match="UserMessage"):
        memory.add("c", mixed)
    with pytest.raises(TypeError):
        memory.repository.save_all("c", mixed)
    assert memory.get("c") == []


# --- windows --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("most", "stored", "shown"),
    [
        # The reference's vectors that keep a conversation whole:
        (3, [U1, A1, U2, A2, U3, A3], [U3, A3]),
        (4, [U1, A1, U2, A2, U3, A3], [U2, A2, U3, A3]),
        (4, [U1, A1, A1, A1, U2, A2], [U2, A2]),
        (20, [U1, A1], [U1, A1]),
        (1, [], []),
        # Those in which it loses the running turn:
        (3, [S1, S2, U1, A1, U2, A2], [S1, S2, U2, A2]),
        (3, [U1, C1, T1, C2, T2], [U1, C1, T1, C2, T2]),
        (1, [U1, A1, U2], [U2]),
        (1, [U1, A1, U2, C1], [U2, C1]),
        # Tool calls and responses stay together, whatever the limit:
        (4, [U1, A1, U2, C1, T1, A2], [U2, C1, T1, A2]),
        (5, [U1, A1, U2, C1, T1, A2], [U2, C1, T1, A2]),
        (6, [U1, A1, U2, C1, T1, A2], [U1, A1, U2, C1, T1, A2]),
        (3, [U1, C1, T1, A1, U2, A2], [U2, A2]),
        # Several user messages in a row begin one turn:
        (3, [U1, A1, U2, U3, A3], [U2, U3, A3]),
        (2, [U1, A1, U2, U3, A3], [U2, U3, A3]),
        (3, [U1, A1, U2, S1, U3, A3], [S1, U2, U3, A3]),
        # What comes before the first user message is a turn of its own:
        (3, [A1, U1, A2, U2], [U1, A2, U2]),
        (2, [A1, U1, A2], [U1, A2]),
        (1, [A1, A2], [A1, A2]),
    ],
)
def test_the_window_holds_whole_turns(
    most: int, stored: list[Message], shown: list[Message]
) -> None:
    """The newest of them, as many as fit; the newest one in any case; system messages first."""
    memory = MessageWindowChatMemory(max_messages=most)
    memory.repository.save_all("c", stored)

    assert memory.get("c") == shown
    assert memory.repository.find_by_conversation_id("c") == stored


def test_twenty_messages_by_default() -> None:
    """Ten turns of two, whatever else there is."""
    memory = MessageWindowChatMemory()
    memory.add("c", turns(50))

    assert memory.get("c") == turns(50)[-20:]


def test_a_long_turn_is_found_however_far_back_it_begins() -> None:
    """The window looks further back until it knows where the turn begins, and no further."""

    class Watched(InMemoryChatMemoryRepository):
        looked: list[int | None] = []  # noqa: RUF012 - one test, one list

        async def load(
            self, conversation_id: str, runtime: Runtime, *, last: int | None = None
        ) -> Conversation:
            self.looked.append(last)
            return await super().load(conversation_id, runtime, last=last)

    memory = MessageWindowChatMemory(Watched(), max_messages=4)
    long = [U2, *[C1, T1] * 20, A2]
    memory.add("c", [*turns(500), *long])
    assert memory.get("c") == long
    assert Watched.looked == [5, 20, 80]

    memory.add("c", turns(2))
    assert memory.get("c") == turns(2)
    assert Watched.looked[3:] == [5]


def test_a_window_of_tokens() -> None:
    """Turns as long as their tokens fit, by any way of counting them."""
    count = lambda message: len(message.text)  # noqa: E731 - an estimator is any such function
    for most, shown in [(100, 3), (12, 3), (11, 2), (8, 2), (7, 1), (1, 1)]:
        memory = TokenWindowChatMemory(max_tokens=most, estimator=count)
        memory.add("c", turns(3))

        assert memory.get("c") == turns(3)[-2 * shown :]


def test_a_window_of_tokens_over_a_long_conversation() -> None:
    """It looks back as far as the tokens reach."""
    memory = TokenWindowChatMemory(max_tokens=1000)
    memory.add("c", turns(500))
    size = sum(map(estimated_tokens, memory.get("c")))

    assert 990 <= size <= 1000
    assert memory.get("c") == turns(500)[-len(memory.get("c")) :]


def test_windows_can_be_joined() -> None:
    """What is shown fits into both; either can be the one that counts."""
    count = lambda message: len(message.text)  # noqa: E731
    for messages, tokens in [(4, 100), (100, 8), (5, 9)]:
        window = Window.messages(messages) & Window.tokens(tokens, count)
        memory = WindowChatMemory(window)
        memory.add("c", turns(30)[:10])

        assert memory.get("c") == turns(30)[6:10]


def test_a_window_holds_something() -> None:
    """Limits below one are refused."""
    with pytest.raises(UsageError, match="at least one of the messages"):
        MessageWindowChatMemory(max_messages=0)
    with pytest.raises(UsageError, match="at least one of the tokens"):
        TokenWindowChatMemory(max_tokens=0)


@pytest.mark.parametrize(
    ("message", "tokens"),
    [
        (UserMessage("twelve bytes"), 3 + 4),
        (UserMessage("thirteen byte"), 4 + 4),
        (UserMessage("猫猫猫猫"), 3 + 4),
        (UserMessage("\ud800"), 1 + 4),
        (UserMessage(["look", Media("image/png", b"..")]), 1 + 4 + 1000),
        (SystemMessage("four"), 1 + 4),
        (AssistantMessage(["four", call("look", "{}", id="c1")], reasoning=[Reasoning("hm")]), 8),
        (AssistantMessage([ProviderPart("x", {"a": 1}, "seen")]), 2 + 4),
        (AssistantMessage([ToolCallChunk()]), 4),
        (
            ToolResponseMessage(
                [ToolResponse("c1", "look", "result", media=(Media("image/png", b""),))]
            ),
            2 + 4 + 1000,
        ),
    ],
)
def test_the_estimate_counts_everything_that_is_sent(message: Message, tokens: int) -> None:
    """A token for four bytes, four for the message, a thousand for an image."""
    assert estimated_tokens(message) == tokens


# --- pruning --------------------------------------------------------------------------------


def test_pruning_deletes_what_has_left_the_window() -> None:
    """Now and then, not with each turn; system messages and the window stay."""
    memory = MessageWindowChatMemory(max_messages=4, prune=True)
    memory.add("c", S1)
    sizes = set()
    for number in range(100):
        memory.add("c", turns(number + 1)[-2:])
        stored = memory.repository.find_by_conversation_id("c")
        sizes.add(len(stored))
        assert stored[0] == S1
        assert stored[-2:] == turns(number + 1)[-2:]

    assert max(sizes) < 15
    assert len(sizes) > 4
    assert memory.get("c") == [S1, *turns(100)[-2:]]


@pytest.mark.parametrize("most", [300, 1000])
def test_pruning_goes_as_far_back_as_the_window_does(most: int) -> None:
    """A window of tokens may hold many messages; not each turn writes them all anew."""

    class Watched(InMemoryChatMemoryRepository):
        rewrites = 0

        async def replace(self, *args: Any, **more: Any) -> bool:
            Watched.rewrites += 1
            return await super().replace(*args, **more)

    memory = TokenWindowChatMemory(Watched(), max_tokens=most, prune=True)
    for at in range(0, 500, 2):
        memory.add("c", turns(250)[at : at + 2])
    shown = len(memory.get("c"))

    assert shown <= len(memory.repository.find_by_conversation_id("c")) <= 2 * shown + 2
    assert Watched.rewrites < 20


def test_a_turn_is_kept_although_pruning_fails(caplog: pytest.LogCaptureFixture) -> None:
    """The failure is logged; the next turn tries again."""

    class Stubborn(InMemoryChatMemoryRepository):
        async def replace(self, *_args: Any, **_more: Any) -> bool:
            msg = "disk full"
            raise ChatMemoryError(msg)

    memory = MessageWindowChatMemory(Stubborn(), max_messages=2, prune=True)
    memory.add("c", turns(20))

    assert memory.get("c") == turns(20)[-2:]
    assert "pruning failed conversation_id='c'" in caplog.text


# --- system messages ------------------------------------------------------------------------


def test_other_system_messages_replace_those_before() -> None:
    """The latest count, and stand first; what was said stays."""
    memory = MessageWindowChatMemory()
    memory.add("c", [S1, S2, U1, A1])
    memory.add("c", [S3, U2, A2])

    assert memory.get("c") == [S3, U1, A1, U2, A2]
    assert memory.repository.find_by_conversation_id("c") == memory.get("c")


def test_the_same_system_messages_are_not_added_again() -> None:
    """As many times as an application says them; those of a set may come one by one."""
    memory = MessageWindowChatMemory()
    memory.add("c", [S1, S2, U1, A1])
    memory.add("c", [S2, U2, A2])
    memory.add("c", S1)

    assert memory.get("c") == [S1, S2, U1, A1, U2, A2]


def test_a_later_system_message_stands_first() -> None:
    """Providers want instructions before all else."""
    memory = MessageWindowChatMemory(max_messages=3)
    memory.add("c", [*turns(9), S1, U1])

    assert memory.get("c") == [S1, U1]
    summarizing = SummarizingChatMemory(ScriptedModel())
    summarizing.add("c", [U1, A1, S1])
    assert summarizing.get("c") == [S1, U1, A1]


def test_system_messages_with_a_key_are_added_once() -> None:
    """Also when others have replaced them meanwhile."""
    memory = MessageWindowChatMemory()
    memory.add("c", [S1, U1, A1], key="one")
    memory.add("c", [S2, U2, A2], key="two")
    memory.add("c", [S1, U1, A1], key="one")

    assert memory.get("c") == [S2, U1, A1, U2, A2]


# --- rewriting ------------------------------------------------------------------------------


def test_a_conversation_that_does_not_hold_still_cannot_be_rewritten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After many attempts the error says so, and names the conversation."""

    class Busy(InMemoryChatMemoryRepository):
        async def replace(self, *_args: Any, **_more: Any) -> bool:
            return False

    monkeypatch.setattr("chatclient.memory.repository._PAUSE", 0.0)
    repository = Busy()

    with pytest.raises(ChatMemoryError, match="'c' changed") as caught:
        drive(repository.rewrite("c", lambda _: [U1], BLOCKING))
    assert caught.value.conversation_id == "c"


def test_a_rewrite_may_leave_things_as_they_are() -> None:
    """None says so, and whoever asked is told whether anything was replaced."""
    repository = InMemoryChatMemoryRepository()
    assert drive(repository.rewrite("c", lambda _: [U1], BLOCKING)) is True
    before = drive(repository.load("c", BLOCKING))

    assert drive(repository.rewrite("c", lambda _: None, BLOCKING)) is False
    assert drive(repository.load("c", BLOCKING)) == before


# --- summaries ------------------------------------------------------------------------------


def summarizing(
    *answers: Answer | Callable[[Prompt], Answer], trigger: int = 6, window: int = 2
) -> tuple[SummarizingChatMemory, ScriptedModel]:
    model = ScriptedModel(*answers)
    memory = SummarizingChatMemory(
        model, trigger=Window.messages(trigger), window=Window.messages(window)
    )
    return memory, model


def add_turns(memory: ChatMemory, numbers: range) -> None:
    for number in numbers:
        memory.add("c", turns(number + 1)[-2:])


def texts(messages: Sequence[Message]) -> list[str]:
    return [message.text for message in messages]


def test_a_short_conversation_is_shown_whole() -> None:
    """No model is asked before the trigger is outgrown."""
    memory, model = summarizing()
    add_turns(memory, range(3))

    assert memory.get("c") == turns(3)
    assert model.prompts == []


def test_older_turns_are_folded_into_a_summary() -> None:
    """The summary stands where they stood, as something said, and the newest turns follow."""
    memory, model = summarizing("They said u0 to u2.", trigger=8)
    memory.add("c", S1)
    add_turns(memory, range(4))
    shown = memory.get("c")

    assert texts(shown)[2:] == ["They said u0 to u2.", "u3", "a3"]
    assert [SUMMARY in message.metadata for message in shown] == [False, True, True, False, False]
    assert conversation_problems(shown, ending="answer") == ()
    asked = model.prompts[0].messages[1].text
    assert '<message from="user">u2</message>' in asked
    assert "u3" not in asked
    assert "s1" not in asked
    assert memory.repository.find_by_conversation_id("c") == shown


def test_what_a_model_thinks_aloud_is_no_part_of_its_summary() -> None:
    """Where its server does not tell it apart."""
    memory, _ = summarizing("<think>\nu0, u1, u2?\n</think>\n\nThey said u0 to u2.", trigger=8)
    add_turns(memory, range(5))

    assert texts(memory.get("c"))[1] == "They said u0 to u2."


def test_the_next_summary_carries_on_the_one_before() -> None:
    """It is given as notes, not as part of the conversation, and replaced."""
    memory, model = summarizing("first notes", "second notes")
    add_turns(memory, range(6))

    assert texts(memory.get("c"))[1:] == ["second notes", "u5", "a5"]
    asked = model.prompts[1].messages[1].text
    notes, conversation = asked.split("<conversation>")
    assert "first notes" in notes
    assert "first notes" not in conversation
    assert "have we said" not in asked
    assert [word in conversation for word in ("u2", "u3", "u4", "u5")] == [False, True, True, False]


@pytest.mark.parametrize(
    "answer",
    [
        OverloadedError("busy"),
        "  ",
        "<think>They have said nothing.</think>",
        AssistantMessage(""),
        ChatResponse.of("The user is called A", "length"),
        ChatResponse.of("I cannot help with that.", "content_filter"),
    ],
)
def test_a_failing_summary_changes_nothing(
    answer: Answer, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged, the turn is kept, and the next turn tries again."""
    memory, _ = summarizing(answer, "notes")
    add_turns(memory, range(4))
    assert memory.get("c") == turns(4)
    assert "conversation_id='c'" in caplog.text
    assert [record.levelno for record in caplog.records] == [logging.WARNING]

    add_turns(memory, range(4, 5))
    assert texts(memory.get("c"))[1:] == ["notes", "u4", "a4"]


def test_what_is_too_long_for_the_model_is_folded_bit_by_bit() -> None:
    """A conversation that has outgrown the summariser would stay as it is for good otherwise."""

    def short_sighted(prompt: Prompt) -> Answer:
        said = prompt.messages[1].text
        if said.count('from="user"') > 2:
            raise ContextLengthExceededError("too long")
        return f"notes on {' '.join(re.findall('u[0-9]', said))}"

    memory, model = summarizing(short_sighted, trigger=12)
    memory.add("c", turns(7))
    assert texts(memory.get("c"))[1:3] == ["notes on u0 u1", "u2"]
    assert len(model.prompts) == 3

    add_turns(memory, range(7, 8))
    assert texts(memory.get("c"))[1:3] == ["notes on u0 u1 u2 u3", "u4"]


def test_a_turn_that_is_too_long_for_the_model_stays(caplog: pytest.LogCaptureFixture) -> None:
    """One turn cannot be halved; nor is a summary made of a summary alone."""
    memory, model = summarizing("notes", *[ContextLengthExceededError("too long")] * 9)
    add_turns(memory, range(4))
    add_turns(memory, range(4, 7))

    assert texts(memory.get("c"))[1:] == ["notes", *texts(turns(7)[6:])]
    assert "folding failed" in caplog.text
    assert "too long" in caplog.text
    assert 1 < len(model.prompts) < 7


def test_turns_added_while_the_model_summarises_are_kept() -> None:
    """The summary replaces what it was made of and nothing else."""

    def meanwhile(prompt: Prompt) -> Answer:
        drive(memory.repository.append("c", [U1, A1], BLOCKING))
        return "notes"

    memory, _ = summarizing(meanwhile)
    add_turns(memory, range(4))

    assert texts(memory.get("c"))[1:] == ["notes", "u3", "a3", "u1", "a1"]


def test_of_two_summaries_at_once_one_is_made() -> None:
    """Whoever comes second finds other messages there and leaves them."""

    def meanwhile(prompt: Prompt) -> Answer:
        memory.repository.save_all("c", [U1, A1])
        return "notes"

    memory, _ = summarizing(meanwhile)
    add_turns(memory, range(4))

    assert memory.get("c") == [U1, A1]


def test_a_turn_longer_than_the_window_is_not_folded() -> None:
    """The newest turn stays as it is; what is before it is folded."""
    memory, model = summarizing("notes")
    long = [U1, *[C1, T1] * 5, A1]
    memory.add("c", long)
    assert memory.get("c") == long
    assert model.prompts == []

    memory.add("c", [U2, A2])
    assert texts(memory.get("c"))[1:] == ["notes", "u2", "a2"]


def test_a_turn_that_alone_outgrows_trigger_and_window_waits() -> None:
    """There is nothing before it to fold but system messages."""
    count = lambda message: 0 if message is S1 else 5  # noqa: E731
    model = ScriptedModel()
    memory = SummarizingChatMemory(
        model, trigger=Window.messages(3), window=Window.tokens(100, count)
    )
    memory.add("c", [S1, *turns(3)])

    assert memory.get("c") == [S1, *turns(3)]
    assert model.prompts == []


def test_a_summary_alone_is_not_summarised() -> None:
    """Without anything said since that is to be folded, the model is not asked again."""
    memory, model = summarizing("first notes", "second notes", trigger=8, window=7)
    for question in ([U1, U1, U1], [U2, U2], [U3], [U1]):
        memory.add("c", [*question, A1])
    assert texts(memory.get("c"))[1:] == ["first notes", "u2", "u2", "a1", "u3", "a1", "u1", "a1"]
    assert len(model.prompts) == 1

    memory.add("c", [U2, A2])
    assert texts(memory.get("c"))[1] == "second notes"


def test_the_model_of_summaries_is_asked_with_its_options() -> None:
    """Its own, and those for the task over them."""
    model = ScriptedModel("notes")
    options = model.options.mutate(temperature=0.1)
    memory = SummarizingChatMemory(
        model,
        trigger=Window.messages(2),
        window=Window.messages(2),
        instructions="Note this.",
        options=options,
    )
    memory.add("c", turns(2))

    assert model.prompts[0].options.temperature == 0.1
    assert model.prompts[0].messages[0] == SystemMessage("Note this.")
    with pytest.raises(UsageError, match="instructions"):
        SummarizingChatMemory(model, instructions=" ")


async def test_summaries_on_a_loop() -> None:
    """Many turns at once, folded now and then: all of the newest are there."""
    memory, _ = summarizing(lambda prompt: "notes", trigger=20, window=10)

    await asyncio.gather(*(memory.aadd("c", turns(n + 1)[-2:]) for n in range(50)))

    shown = await memory.aget("c")
    assert conversation_problems(shown, ending="answer") == ()
    assert 10 <= len(shown) <= 22
    await memory.aclear("c")
    assert await memory.aget("c") == []


# --- the transcript -------------------------------------------------------------------------


def test_a_transcript_is_data() -> None:
    """Whatever is said, nobody breaks out of the line that holds it."""
    messages = [
        UserMessage(["</message> & co ", Media("image/png", b"", name='"a".png')]),
        AssistantMessage(
            [Reasoning("secret"), ProviderPart("x", {}, "<found>"), call("l<k", '{"q": "<"}')]
        ),
        ToolResponseMessage(
            [
                ToolResponse("1", "l<k", "it's", media=(Media("audio/wav", b"", id="f1"),)),
                ToolResponse("2", "look", "no", is_error=True, media=(Media("a/b", b""),)),
            ]
        ),
        AssistantMessage(""),
    ]

    assert transcript(messages).splitlines() == [
        '<message from="user">&lt;/message&gt; &amp; co [image/png: &quot;a&quot;.png]</message>',
        '<message from="assistant">&lt;found&gt;</message>',
        '<tool-call name="l&lt;k">{&quot;q&quot;: &quot;&lt;&quot;}</tool-call>',
        '<tool-result name="l&lt;k">it&#x27;s [audio/wav: f1]</tool-result>',
        '<tool-result name="look" failed="true">no [a/b]</tool-result>',
    ]


# --- what makes a conversation valid --------------------------------------------------------

NO_IDS = "the tool calls have no ids of their own:"


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [S1],
        [S1, S2, U1, A1],
        [U1],
        [U1, C1, T1, C2, T2, A1, U2],
        [UserMessage([Media("image/png", b"")]), AssistantMessage([Media("image/png", b"")])],
        [U1, AssistantMessage([ProviderPart("x", {})])],
    ],
)
def test_valid_conversations_have_no_problems(messages: list[Message]) -> None:
    """As every provider would have it."""
    assert conversation_problems(messages) == ()


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ([U1, S1], "message 1: a system message stands behind others"),
        ([A1], "message 0: the assistant speaks without being asked"),
        ([U1, A1, A2], "message 2: the assistant speaks without being asked"),
        ([U1, U2], "message 1: the user speaks after a message of the user"),
        ([UserMessage(" ")], "message 0: the user says nothing"),
        ([U1, AssistantMessage("")], "message 1: the assistant says nothing"),
        ([U1, AssistantMessage([Reasoning("x")])], "message 1: the assistant says nothing"),
        ([U1, AssistantMessage(["x", ToolCallChunk()])], "message 1: a tool call is in pieces"),
        ([U1, C1], "message 1: the tool calls ['c1'] are not answered by the next message"),
        ([U1, C1, A1], "message 1: the tool calls ['c1'] are not answered by the next message"),
        ([U1, C1, T2], "message 1: the tool calls ['c1'] have the answers ['c2']"),
        ([U1, A1, T1], "message 2: tool responses stand behind no tool call"),
        ([T1], "message 0: tool responses stand behind no tool call"),
        (
            [U1, AssistantMessage([ToolCall("", "x", "{}")])],
            f"message 1: {NO_IDS} ['']",
        ),
        (
            [S1, U1, AssistantMessage([call("x", id="1"), call("y", id="1")])],
            f"after 1 system messages, message 1: {NO_IDS} ['1', '1']",
        ),
    ],
)
def test_problems_are_told_with_their_place(messages: list[Message], problem: str) -> None:
    """Each in words."""
    assert problem in conversation_problems(messages)


def no_result(id: str) -> ToolResponse:
    return ToolResponse(id, "f", "There is no result: the call was interrupted.", is_error=True)


R1, R2 = ToolResponse("1", "f", "one"), ToolResponse("2", "f", "two")
F1, F12 = (
    AssistantMessage([call("f", id="1")]),
    AssistantMessage([call("f", id="1"), call("f", id="2")]),
)


@pytest.mark.parametrize(
    ("broken", "repaired"),
    [
        ([S1, U1, C1, T1, A1], [S1, U1, C1, T1, A1]),
        ([U1, S1, A1], [S1, U1, A1]),
        ([A1, F1, ToolResponseMessage(R1), A2, U1], [U1]),
        ([U1, F12, ToolResponseMessage(R2)], [U1, F12, ToolResponseMessage([no_result("1"), R2])]),
        (
            [U1, F12, ToolResponseMessage(R2), U2, ToolResponseMessage(R1), A1],
            [U1, F12, ToolResponseMessage([R1, R2]), U2, A1],
        ),
        ([U1, F1, A1], [U1, F1, ToolResponseMessage(no_result("1")), A1]),
        ([U1, A1, ToolResponseMessage(R1), U2], [U1, A1, U2]),
        ([U1, A1, UserMessage(" "), A2], [U1, AssistantMessage([*A1.parts, "\n\n", *A2.parts])]),
        (
            [U1, AssistantMessage([Reasoning("hm")]), U2],
            [U1.mutate(text=f"{U1.text}\n\n{U2.text}")],
        ),
        ([U1, AssistantMessage([ToolCallChunk(name="f")]), A1], [U1, A1]),
        (
            [U1, AssistantMessage(["a", ToolCallChunk()]), F1, ToolResponseMessage(R1)],
            [U1, AssistantMessage(["a", *F1.parts]), ToolResponseMessage(R1)],
        ),
    ],
)
def test_a_broken_conversation_is_repaired(broken: list[Message], repaired: list[Message]) -> None:
    """What was said stays, where it can."""
    found = repair_conversation(broken)
    assert [(m.role, m.text) for m in found] == [(m.role, m.text) for m in repaired]
    assert found[1:] == tuple(repaired[1:])


def test_calls_get_ids_of_their_own_and_keep_their_results() -> None:
    """Also those that had none, or one in common."""
    calls = [ToolCall(id, name, "{}") for id in ("", "1") for name in ("f", "g")]
    results = [ToolResponse("", "g", "g"), ToolResponse("", "f", "f")]
    both = [ToolResponse("1", "f", "f1"), ToolResponse("1", "g", "g1")]

    _, asked, answered = repair_conversation(
        [U1, AssistantMessage(calls), ToolResponseMessage([*results, *both])]
    )

    assert isinstance(asked, AssistantMessage)
    assert isinstance(answered, ToolResponseMessage)
    ids = [each.id for each in asked.tool_calls]
    assert ids[2] == "1"
    assert all(ids)
    assert [r.id for r in answered.responses] == ids
    assert len(set(ids)) == 4
    assert [r.data for r in answered.responses] == ["f", "g", "f1", "g1"]


def test_a_result_goes_to_its_call_by_the_id() -> None:
    """Whatever name it bears; and one that is said later belongs to the later call of that id."""
    renamed, later = ToolResponse("1", "functions.f", "one"), ToolResponse("1", "f", "again")

    repaired = repair_conversation([U1, S1, F1, ToolResponseMessage(renamed)])
    assert repaired == (S1, U1, F1, ToolResponseMessage(renamed))
    conversation = [U1, F1, U2, F1, ToolResponseMessage(later)]
    assert repair_conversation(conversation) == (
        U1,
        F1,
        ToolResponseMessage(no_result("1")),
        U2,
        F1,
        ToolResponseMessage(later),
    )


def test_messages_that_become_one_keep_what_is_known_of_them() -> None:
    """Their metadata, and their pieces: a blank line stands only between two texts."""
    answers = [
        AssistantMessage([ProviderPart("x", {})], metadata={"id": "1", "a": 1}),
        AssistantMessage("text", metadata={"id": "2"}),
    ]
    merged = AssistantMessage([ProviderPart("x", {}), "text"], metadata={"id": "2", "a": 1})
    questions = UserMessage("u", metadata={"id": "3"}), UserMessage("v", metadata={"id": "4"})

    asked, answered = repair_conversation([*questions, *answers])

    assert answered == merged
    assert answered.metadata == merged.metadata
    assert asked.text == "u\n\nv"
    assert asked.metadata == {"id": "3"}


said = st.one_of(
    st.sampled_from([S1, U1, U2, UserMessage(""), A1, A2, AssistantMessage(""), C1, C2, T1, T2]),
    st.lists(st.sampled_from(["", "1", "2"]), min_size=1, max_size=3).map(
        lambda ids: AssistantMessage([ToolCall(id, "f", "{}") for id in ids])
    ),
    st.lists(st.sampled_from(["", "1", "2"]), max_size=3).map(
        lambda ids: ToolResponseMessage([ToolResponse(id, "f", "x") for id in ids])
    ),
    st.just(AssistantMessage(["x", ToolCallChunk()])),
)


@given(st.lists(said, max_size=8))
def test_whatever_is_repaired_has_no_problems(messages: list[Message]) -> None:
    """And a conversation without problems stays as it is."""
    repaired = repair_conversation(messages)
    assert conversation_problems(repaired) == ()
    assert repair_conversation(repaired) == repaired
    if not conversation_problems(messages):
        assert repaired == tuple(messages)


def test_a_conversation_may_have_to_end_in_some_way() -> None:
    """With an answer, as memory keeps it, or with something to answer, as it is sent."""
    assert conversation_problems([U1], ending="question") == ()
    assert conversation_problems([U1, C1, T1], ending="question") == ()
    assert conversation_problems([U1, A1], ending="answer") == ()
    assert conversation_problems([], ending="answer") == ()
    assert "nothing to answer" in conversation_problems([U1, A1], ending="question")[0]
    assert "not an answer" in conversation_problems([U1, A1, S1], ending="answer")[-1]
    assert "nothing to answer" in conversation_problems([], ending="question")[0]
    assert "of the user, not an answer" in conversation_problems([U1], ending="answer")[0]


@pytest.mark.parametrize("repository", ["sqlite:///x.db", 20])
def test_a_memory_wants_a_repository(repository: Any) -> None:
    """An address or a number in its place is refused when the memory is made, with the mend."""
    told = r"SqlChatMemoryRepository\(url\).*max_messages="

    with pytest.raises(UsageError, match=told):
        MessageWindowChatMemory(repository)
    with pytest.raises(UsageError, match=told):
        TokenWindowChatMemory(repository, max_tokens=9)
