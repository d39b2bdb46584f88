"""Memory: windows, summaries, system messages, and validation of conversations."""

import asyncio
import logging
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, strategies as st

from chatclient import AssistantMessage, Message, SystemMessage, UserMessage
from chatclient.chat.messages import (
    Media,
    ProviderPart,
    Reasoning,
    ToolCall,
    ToolCallChunk,
    ToolResponse,
    ToolResponseMessage,
)
from chatclient.chat.prompt import Prompt
from chatclient.chat.response import ChatResponse
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
from chatclient.memory.conversation import transcript
from chatclient.memory.summary import SUMMARY
from chatclient.runtime.blocking import drive
from chatclient.runtime.runtime import BLOCKING, Runtime
from chatclient.testing import Answer, ScriptedModel, call
from tests.support.call_counts import calls_of

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


# --- public methods -------------------------------------------------------------------------


@pytest.mark.feature("memory-chat-memory-add-get")
def test_add_get_and_clear() -> None:
    """One or several messages are added, read and cleared, blocking."""
    memory = MessageWindowChatMemory()
    memory.add("c", U1)
    memory.add("c", iter([A1, U2]))

    assert memory.get("c") == [U1, A1, U2]
    assert memory.get("other") == []
    memory.clear("c")
    memory.clear("c")
    assert memory.get("c") == []


@pytest.mark.feature("memory-chat-memory-add-get")
async def test_async_add_get_and_clear() -> None:
    """One or several messages are added, read and cleared, asynchronously."""
    memory = MessageWindowChatMemory()
    await memory.aadd("c", U1)
    await memory.aadd("c", [A1], key="k")
    await memory.aadd("c", [A1], key="k")

    assert await memory.aget("c") == [U1, A1]
    await memory.aclear("c")
    assert await memory.aget("c") == []


@pytest.mark.feature("memory-blank-ids-null-messages")
@pytest.mark.parametrize("id", ["", " \n", None, 7])
def test_blank_conversation_id(id: Any) -> None:
    """Every operation of memory and repository rejects a blank id."""
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


@pytest.mark.feature("memory-blank-ids-null-messages")
async def test_rewind_needs_an_id() -> None:
    """Messages without an id are not found by None."""
    memory = MessageWindowChatMemory()
    no_id: Any = None
    memory.add("c", UserMessage("Hello"))

    with pytest.raises(TypeError, match="the id of a message"):
        memory.rewind("c", no_id)
    with pytest.raises(TypeError, match="the id of a message"):
        await memory.arewind("c", no_id)
    assert len(memory.get("c")) == 1


def test_add_rejects_strings() -> None:
    """A string raises, and none of the messages is added."""
    memory = MessageWindowChatMemory()
    mixed: Any = [U1, "text"]

    with pytest.raises(TypeError, match="UserMessage"):
        memory.add("c", mixed)
    with pytest.raises(TypeError):
        memory.repository.save_all("c", mixed)
    assert memory.get("c") == []


# --- windows --------------------------------------------------------------------------------


@pytest.mark.feature("memory-message-window-chat-memory")
@pytest.mark.parametrize(
    ("most", "stored", "shown"),
    [
        # Cases of the reference implementation that keep turns complete:
        (3, [U1, A1, U2, A2, U3, A3], [U3, A3]),
        (4, [U1, A1, U2, A2, U3, A3], [U2, A2, U3, A3]),
        (4, [U1, A1, A1, A1, U2, A2], [U2, A2]),
        (20, [U1, A1], [U1, A1]),
        (1, [], []),
        # Cases in which the reference loses the current turn:
        (3, [S1, S2, U1, A1, U2, A2], [S1, S2, U2, A2]),
        (3, [U1, C1, T1, C2, T2], [U1, C1, T1, C2, T2]),
        (1, [U1, A1, U2], [U2]),
        (1, [U1, A1, U2, C1], [U2, C1]),
        # Tool calls and responses stay together with any limit:
        (4, [U1, A1, U2, C1, T1, A2], [U2, C1, T1, A2]),
        (5, [U1, A1, U2, C1, T1, A2], [U2, C1, T1, A2]),
        (6, [U1, A1, U2, C1, T1, A2], [U1, A1, U2, C1, T1, A2]),
        (3, [U1, C1, T1, A1, U2, A2], [U2, A2]),
        # Consecutive user messages start one turn:
        (3, [U1, A1, U2, U3, A3], [U2, U3, A3]),
        (2, [U1, A1, U2, U3, A3], [U2, U3, A3]),
        (3, [U1, A1, U2, S1, U3, A3], [S1, U2, U3, A3]),
        # Messages before the first user message form a turn:
        (3, [A1, U1, A2, U2], [U1, A2, U2]),
        (2, [A1, U1, A2], [U1, A2]),
        (1, [A1, A2], [A1, A2]),
    ],
)
def test_window_of_complete_turns(most: int, stored: list[Message], shown: list[Message]) -> None:
    """The newest complete turns that fit, at least one, after the system messages."""
    memory = MessageWindowChatMemory(max_messages=most)
    memory.repository.save_all("c", stored)

    assert memory.get("c") == shown
    assert memory.repository.find_by_conversation_id("c") == stored


@pytest.mark.feature("memory-message-window-chat-memory")
def test_default_window() -> None:
    """The default window grows to 40 messages, then drops to 20."""
    memory = MessageWindowChatMemory()
    sizes = []
    for number in range(50):
        memory.add("c", turns(50)[2 * number : 2 * number + 2])
        sizes.append(len(memory.get("c")))
        assert memory.get("c") == turns(50)[: 2 * number + 2][-sizes[-1] :]

    assert sizes == [*range(2, 41, 2), *[*range(22, 41, 2)] * 3]


@pytest.mark.feature("memory-message-window-chat-memory")
def test_sliding_window() -> None:
    """A window that keeps all of its messages slides with each turn."""
    memory = MessageWindowChatMemory(max_messages=6, keep=6)
    for number in range(1, 20):
        memory.add("c", turns(number)[-2:])
        assert memory.get("c") == turns(number)[-6:]


@pytest.mark.feature("memory-left-window-deleted")
def test_long_turn() -> None:
    """The window reads back only as far as the start of the turn."""

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


@pytest.mark.feature("memory-window-tokens-none")
def test_token_window() -> None:
    """Turns are included while their tokens fit, with any token counter."""
    count = lambda message: len(message.text)  # noqa: E731 - an estimator is any such function
    for most, shown in [(100, 3), (12, 3), (11, 2), (8, 2), (7, 1), (1, 1)]:
        memory = TokenWindowChatMemory(max_tokens=most, estimator=count)
        memory.add("c", turns(3))

        assert memory.get("c") == turns(3)[-2 * shown :]


def test_token_window_of_a_long_conversation() -> None:
    """The window reads back as far as the tokens reach."""
    memory = TokenWindowChatMemory(max_tokens=1000)
    memory.add("c", turns(500))
    size = sum(map(estimated_tokens, memory.get("c")))

    assert 490 <= size <= 1000
    assert memory.get("c") == turns(500)[-len(memory.get("c")) :]


@pytest.mark.feature("memory-window-tokens-none")
def test_combined_windows() -> None:
    """The result fits both windows."""
    count = lambda message: len(message.text)  # noqa: E731
    for messages, tokens in [(4, 100), (100, 8), (5, 9)]:
        window = Window.messages(messages) & Window.tokens(tokens, count)
        memory = WindowChatMemory(window)
        memory.add("c", turns(30)[:10])

        assert memory.get("c") == turns(30)[6:10]


def test_window_limit_below_one() -> None:
    """Limits below one are rejected."""
    with pytest.raises(UsageError, match="at least one of the messages"):
        MessageWindowChatMemory(max_messages=0)
    with pytest.raises(UsageError, match="at least one of the tokens"):
        TokenWindowChatMemory(max_tokens=0)
    with pytest.raises(UsageError, match="can keep 1 to 9 when it moves, not 10"):
        TokenWindowChatMemory(max_tokens=9, keep=10)
    with pytest.raises(UsageError, match="can keep 1 to 9 when it moves, not 0"):
        MessageWindowChatMemory(max_messages=9, keep=0)


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
def test_token_estimate(message: Message, tokens: int) -> None:
    """A token per four bytes, four per message, a thousand per image."""
    assert estimated_tokens(message) == tokens


# --- pruning --------------------------------------------------------------------------------


@pytest.mark.feature("memory-left-window-deleted")
def test_pruning() -> None:
    """Messages outside the window are deleted periodically; system messages stay."""
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
def test_pruning_with_token_window(most: int) -> None:
    """A large token window is not rewritten with each turn."""

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


def test_pruning_failure(caplog: pytest.LogCaptureFixture) -> None:
    """A failure is logged, and the next turn tries again."""

    class Stubborn(InMemoryChatMemoryRepository):
        async def replace(self, *_args: Any, **_more: Any) -> bool:
            msg = "disk full"
            raise ChatMemoryError(msg)

    memory = MessageWindowChatMemory(Stubborn(), max_messages=2, prune=True)
    memory.add("c", turns(20))

    assert memory.get("c") == turns(20)[-2:]
    assert "pruning failed conversation_id='c'" in caplog.text


# --- system messages ------------------------------------------------------------------------


@pytest.mark.feature("memory-other-system-messages-replace")
def test_system_messages_are_replaced() -> None:
    """The latest system messages are kept first; other messages stay."""
    memory = MessageWindowChatMemory()
    memory.add("c", [S1, S2, U1, A1])
    memory.add("c", [S3, U2, A2])

    assert memory.get("c") == [S3, U1, A1, U2, A2]
    assert memory.repository.find_by_conversation_id("c") == memory.get("c")


@pytest.mark.feature("memory-other-system-messages-replace")
def test_repeated_system_messages() -> None:
    """Repeated system messages are stored once, also if added one by one."""
    memory = MessageWindowChatMemory()
    memory.add("c", [S1, S2, U1, A1])
    memory.add("c", [S2, U2, A2])
    memory.add("c", S1)

    assert memory.get("c") == [S1, S2, U1, A1, U2, A2]


def test_system_message_is_first() -> None:
    """A later system message is placed first, as providers expect."""
    memory = MessageWindowChatMemory(max_messages=3)
    memory.add("c", [*turns(9), S1, U1])

    assert memory.get("c") == [S1, U1]
    summarizing = SummarizingChatMemory(ScriptedModel())
    summarizing.add("c", [U1, A1, S1])
    assert summarizing.get("c") == [S1, U1, A1]


def test_keyed_system_messages() -> None:
    """They are added once, also if others have replaced them since."""
    memory = MessageWindowChatMemory()
    memory.add("c", [S1, U1, A1], key="one")
    memory.add("c", [S2, U2, A2], key="two")
    memory.add("c", [S1, U1, A1], key="one")

    assert memory.get("c") == [S2, U1, A1, U2, A2]


# --- rewriting ------------------------------------------------------------------------------


@pytest.mark.feature("memory-chat-memory-repository-four")
def test_rewrite_conflict(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After many conflicting attempts the error names the conversation."""

    class Busy(InMemoryChatMemoryRepository):
        async def replace(self, *_args: Any, **_more: Any) -> bool:
            return False

    monkeypatch.setattr("chatclient.memory.repository._PAUSE", 0.0)
    repository = Busy()

    with pytest.raises(ChatMemoryError, match="'c' changed") as caught:
        drive(repository.rewrite("c", lambda _: [U1], BLOCKING))
    assert caught.value.conversation_id == "c"


def test_rewrite_without_change() -> None:
    """A rewrite returning None changes nothing; the result reports replacement."""
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


def test_short_conversation_is_complete() -> None:
    """The model is not called below the trigger."""
    memory, model = summarizing()
    add_turns(memory, range(3))

    assert memory.get("c") == turns(3)
    assert model.prompts == []


@pytest.mark.feature("memory-summarising")
def test_summary_replaces_older_turns() -> None:
    """The summary takes their position, followed by the newest turns."""
    memory, model = summarizing("They said u0 to u2.", trigger=8)
    memory.add("c", S1)
    add_turns(memory, range(4))
    shown = memory.get("c")

    assert texts(shown)[2:] == ["They said u0 to u2.", "u3", "a3"]
    assert [SUMMARY in message.metadata for message in shown] == [False, True, True, False, False]
    assert conversation_problems(shown, ending="answer") == ()
    transcript = model.prompts[0].messages[1].text
    assert '<message from="user">u2</message>' in transcript
    assert "u3" not in transcript
    assert "s1" not in transcript
    assert memory.repository.find_by_conversation_id("c") == shown


def test_reasoning_is_not_in_the_summary() -> None:
    """Reasoning in the text of the answer is removed."""
    memory, _ = summarizing("<think>\nu0, u1, u2?\n</think>\n\nThey said u0 to u2.", trigger=8)
    add_turns(memory, range(5))

    assert texts(memory.get("c"))[1] == "They said u0 to u2."


def test_next_summary_includes_the_previous() -> None:
    """The previous summary is passed as notes and replaced."""
    memory, model = summarizing("first notes", "second notes")
    add_turns(memory, range(6))

    assert texts(memory.get("c"))[1:] == ["second notes", "u5", "a5"]
    transcript = model.prompts[1].messages[1].text
    notes, conversation = transcript.split("<conversation>")
    assert "first notes" in notes
    assert "first notes" not in conversation
    assert "have we said" not in transcript
    assert [word in conversation for word in ("u2", "u3", "u4", "u5")] == [False, True, True, False]


@pytest.mark.feature("memory-summarising")
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
def test_summary_failure(answer: Answer, caplog: pytest.LogCaptureFixture) -> None:
    """A failure is logged, the turn is kept, and the next turn tries again."""
    memory, _ = summarizing(answer, "notes")
    add_turns(memory, range(4))
    assert memory.get("c") == turns(4)
    assert "conversation_id='c'" in caplog.text
    assert [record.levelno for record in caplog.records] == [logging.WARNING]

    add_turns(memory, range(4, 5))
    assert texts(memory.get("c"))[1:] == ["notes", "u4", "a4"]


def test_summary_in_steps() -> None:
    """A conversation too long for the model is summarised in smaller steps."""

    def short_sighted(prompt: Prompt) -> Answer:
        transcript = prompt.messages[1].text
        if transcript.count('from="user"') > 2:
            raise ContextLengthExceededError("too long")
        return f"notes on {' '.join(re.findall('u[0-9]', transcript))}"

    memory, model = summarizing(short_sighted, trigger=12)
    memory.add("c", turns(7))
    assert texts(memory.get("c"))[1:3] == ["notes on u0 u1", "u2"]
    assert len(model.prompts) == 3

    add_turns(memory, range(7, 8))
    assert texts(memory.get("c"))[1:3] == ["notes on u0 u1 u2 u3", "u4"]


def test_unsummarisable_turn(caplog: pytest.LogCaptureFixture) -> None:
    """A single turn is not split, nor a summary alone summarised."""
    memory, model = summarizing("notes", *[ContextLengthExceededError("too long")] * 9)
    add_turns(memory, range(4))
    add_turns(memory, range(4, 7))

    assert texts(memory.get("c"))[1:] == ["notes", *texts(turns(7)[6:])]
    assert "summarizing failed" in caplog.text
    assert "too long" in caplog.text
    assert 1 < len(model.prompts) < 7


@pytest.mark.feature("memory-turns-once-lose-messages")
def test_turns_added_during_a_summary() -> None:
    """The summary replaces only the messages that it was made from."""

    def append_during_summary(prompt: Prompt) -> Answer:
        drive(memory.repository.append("c", [U1, A1], BLOCKING))
        return "notes"

    memory, _ = summarizing(append_during_summary)
    add_turns(memory, range(4))

    assert texts(memory.get("c"))[1:] == ["notes", "u3", "a3", "u1", "a1"]


def test_concurrent_summaries() -> None:
    """The second of two concurrent summaries is discarded."""

    def replace_during_summary(prompt: Prompt) -> Answer:
        memory.repository.save_all("c", [U1, A1])
        return "notes"

    memory, _ = summarizing(replace_during_summary)
    add_turns(memory, range(4))

    assert memory.get("c") == [U1, A1]


def test_long_newest_turn() -> None:
    """The newest turn is kept, and those before it are summarised."""
    memory, model = summarizing("notes")
    long = [U1, *[C1, T1] * 5, A1]
    memory.add("c", long)
    assert memory.get("c") == long
    assert model.prompts == []

    memory.add("c", [U2, A2])
    assert texts(memory.get("c"))[1:] == ["notes", "u2", "a2"]


def test_single_long_turn() -> None:
    """Without earlier turns nothing is summarised."""
    count = lambda message: 0 if message is S1 else 5  # noqa: E731
    model = ScriptedModel()
    memory = SummarizingChatMemory(
        model, trigger=Window.messages(3), window=Window.tokens(100, count)
    )
    memory.add("c", [S1, *turns(3)])

    assert memory.get("c") == [S1, *turns(3)]
    assert model.prompts == []


def test_a_summary_alone_is_not_summarised() -> None:
    """Without new messages to summarise the model is not called."""
    memory, model = summarizing("first notes", "second notes", trigger=8, window=7)
    for question in ([U1, U1, U1], [U2, U2], [U3], [U1]):
        memory.add("c", [*question, A1])
    assert texts(memory.get("c"))[1:] == ["first notes", "u2", "u2", "a1", "u3", "a1", "u1", "a1"]
    assert len(model.prompts) == 1

    memory.add("c", [U2, A2])
    assert texts(memory.get("c"))[1] == "second notes"


def test_summary_model_options() -> None:
    """The model's own options apply, overridden by those for summaries."""
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


async def test_async_summaries() -> None:
    """Many concurrent turns with summaries lose none of the newest."""
    memory, _ = summarizing(lambda prompt: "notes", trigger=20, window=10)

    await asyncio.gather(*(memory.aadd("c", turns(n + 1)[-2:]) for n in range(50)))

    shown = await memory.aget("c")
    assert conversation_problems(shown, ending="answer") == ()
    assert 10 <= len(shown) <= 22
    await memory.aclear("c")
    assert await memory.aget("c") == []


# --- the transcript -------------------------------------------------------------------------


@pytest.mark.feature("memory-prompt-chat-memory-advisor")
def test_transcript_escapes_content() -> None:
    """Content cannot end the line that contains it."""
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


# --- validation and repair ------------------------------------------------------------------

NO_IDS = "the ids of the tool calls are empty or not unique:"


@pytest.mark.feature("memory-conversation-problems")
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
    """Conversations valid for every provider have no problems."""
    assert conversation_problems(messages) == ()


@pytest.mark.feature("memory-conversation-problems")
@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ([U1, S1], "message 1: a system message follows other messages"),
        ([A1], "message 0: an assistant message follows no user message or tool responses"),
        (
            [U1, A1, A2],
            "message 2: an assistant message follows no user message or tool responses",
        ),
        ([U1, U2], "message 1: a user message follows a user message"),
        ([UserMessage(" ")], "message 0: the user message is empty"),
        ([U1, AssistantMessage("")], "message 1: the assistant message is empty"),
        ([U1, AssistantMessage([Reasoning("x")])], "message 1: the assistant message is empty"),
        ([U1, AssistantMessage(["x", ToolCallChunk()])], "message 1: a tool call is incomplete"),
        ([U1, C1], "message 1: no tool responses follow the tool calls ['c1']"),
        ([U1, C1, A1], "message 1: no tool responses follow the tool calls ['c1']"),
        ([U1, C1, T2], "message 1: the tool calls ['c1'] have responses with the ids ['c2']"),
        ([U1, A1, T1], "message 2: tool responses follow no tool calls"),
        ([T1], "message 0: tool responses follow no tool calls"),
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
def test_problems(messages: list[Message], problem: str) -> None:
    """Each problem has a position and a description."""
    assert problem in conversation_problems(messages)


def no_result(id: str) -> ToolResponse:
    return ToolResponse(id, "f", "There is no result: the call was interrupted.", is_error=True)


R1, R2 = ToolResponse("1", "f", "one"), ToolResponse("2", "f", "two")
F1, F12 = (
    AssistantMessage([call("f", id="1")]),
    AssistantMessage([call("f", id="1"), call("f", id="2")]),
)


@pytest.mark.feature("memory-repair-conversation")
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
def test_repair(broken: list[Message], repaired: list[Message]) -> None:
    """A repaired conversation keeps its content as far as possible."""
    found = repair_conversation(broken)
    assert [(m.role, m.text) for m in found] == [(m.role, m.text) for m in repaired]
    assert found[1:] == tuple(repaired[1:])


def test_repair_of_call_ids() -> None:
    """Missing and duplicate ids are replaced, in calls and results."""
    calls = [ToolCall(id, name, "{}") for id in ("", "1") for name in ("f", "g")]
    results = [ToolResponse("", "g", "g"), ToolResponse("", "f", "f")]
    both = [ToolResponse("1", "f", "f1"), ToolResponse("1", "g", "g1")]

    _, calls_message, results_message = repair_conversation(
        [U1, AssistantMessage(calls), ToolResponseMessage([*results, *both])]
    )

    assert isinstance(calls_message, AssistantMessage)
    assert isinstance(results_message, ToolResponseMessage)
    ids = [each.id for each in calls_message.tool_calls]
    assert ids[2] == "1"
    assert all(ids)
    assert [r.id for r in results_message.responses] == ids
    assert len(set(ids)) == 4
    assert [r.data for r in results_message.responses] == ["f", "g", "f1", "g1"]


def test_results_match_calls_by_id() -> None:
    """A result is matched with the last preceding call with its id."""
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


def test_merged_messages() -> None:
    """Metadata and parts are kept; texts are separated by a blank line."""
    answers = [
        AssistantMessage([ProviderPart("x", {})], metadata={"id": "1", "a": 1}),
        AssistantMessage("text", metadata={"id": "2"}),
    ]
    merged = AssistantMessage([ProviderPart("x", {}), "text"], metadata={"id": "2", "a": 1})
    questions = UserMessage("u", metadata={"id": "3"}), UserMessage("v", metadata={"id": "4"})

    question, answer = repair_conversation([*questions, *answers])

    assert answer == merged
    assert answer.metadata == merged.metadata
    assert question.text == "u\n\nv"
    assert question.metadata == {"id": "3"}


random_content = st.one_of(
    st.sampled_from([S1, U1, U2, UserMessage(""), A1, A2, AssistantMessage(""), C1, C2, T1, T2]),
    st.lists(st.sampled_from(["", "1", "2"]), min_size=1, max_size=3).map(
        lambda ids: AssistantMessage([ToolCall(id, "f", "{}") for id in ids])
    ),
    st.lists(st.sampled_from(["", "1", "2"]), max_size=3).map(
        lambda ids: ToolResponseMessage([ToolResponse(id, "f", "x") for id in ids])
    ),
    st.just(AssistantMessage(["x", ToolCallChunk()])),
)


@pytest.mark.feature("memory-repair-conversation")
@given(st.lists(random_content, max_size=8))
def test_repaired_conversations_are_valid(messages: list[Message]) -> None:
    """A repaired conversation has no problems; a valid one is unchanged."""
    repaired = repair_conversation(messages)
    assert conversation_problems(repaired) == ()
    assert repair_conversation(repaired) == repaired
    if not conversation_problems(messages):
        assert repaired == tuple(messages)


def many_questions(count: int) -> list[Message]:
    return [UserMessage(f"question {at}") for at in range(count)]


def many_answers(count: int) -> list[Message]:
    return [U1, *(AssistantMessage(f"answer {at}") for at in range(count))]


def many_calls(count: int) -> list[Message]:
    ids = [str(at) for at in range(count)]
    calls = AssistantMessage([ToolCall(id, "f", "{}") for id in ids])
    return [A1, U1, calls, ToolResponseMessage([no_result(id) for id in reversed(ids)])]


@pytest.mark.parametrize("conversation", [many_questions, many_answers, many_calls])
def test_repair_takes_linear_time(conversation: Callable[[int], list[Message]]) -> None:
    """Frontends may send any messages: twice as many take twice as long."""
    few, many = conversation(500), conversation(1000)

    assert calls_of(lambda: repair_conversation(many)) < 2.2 * calls_of(
        lambda: repair_conversation(few)
    )


def test_required_last_message() -> None:
    """A conversation must end with an answer in memory, or an input when sent."""
    assert conversation_problems([U1], ending="question") == ()
    assert conversation_problems([U1, C1, T1], ending="question") == ()
    assert conversation_problems([U1, A1], ending="answer") == ()
    assert conversation_problems([], ending="answer") == ()
    assert "nothing to answer" in conversation_problems([U1, A1], ending="question")[0]
    assert "is not an answer" in conversation_problems([U1, A1, S1], ending="answer")[-1]
    assert "nothing to answer" in conversation_problems([], ending="question")[0]
    assert "(role user) is not an answer" in conversation_problems([U1], ending="answer")[0]


@pytest.mark.parametrize("repository", ["sqlite:///x.db", 20])
def test_memory_requires_a_repository(repository: Any) -> None:
    """A URL or number instead of a repository raises with a fix."""
    message = r"SqlChatMemoryRepository\(url\).*max_messages="

    with pytest.raises(UsageError, match=message):
        MessageWindowChatMemory(repository)
    with pytest.raises(UsageError, match=message):
        TokenWindowChatMemory(repository, max_tokens=9)
