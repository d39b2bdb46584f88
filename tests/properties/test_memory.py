"""Random conversations, windows and crash points: memory and prompts are always valid."""

import asyncio
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from chatclient import AssistantMessage, ChatClient, Message, SystemMessage, UserMessage, tool
from chatclient.advisors.memory.advisors import MessageChatMemoryAdvisor, PromptChatMemoryAdvisor
from chatclient.chain.chain import MEMORY_ORDER, TOOL_CALLING_ORDER
from chatclient.chat.message_merging import begins_turn
from chatclient.chat.messages import (
    Media,
    ProviderPart,
    Reasoning,
    ToolCall,
    ToolResponse,
    ToolResponseMessage,
    without_system,
)
from chatclient.chat.prompt import Prompt
from chatclient.memory import (
    ChatMemoryRepository,
    InMemoryChatMemoryRepository,
    SummarizingChatMemory,
    Window,
    WindowChatMemory,
    conversation_problems,
)
from chatclient.memory.repository import Conversation, newest
from chatclient.memory.sql.repository import SqlChatMemoryRepository
from chatclient.memory.summary import SUMMARY
from chatclient.runtime.blocking import drive
from chatclient.runtime.runtime import BLOCKING, Runtime
from chatclient.testing import Answer, ScriptedModel, call
from chatclient.testing.contract_parts import turn
from tests.support.examples import examples

# --- windows over random conversations ------------------------------------------------------

conversations = st.lists(
    st.tuples(st.integers(1, 4), st.booleans()).map(
        lambda shape: (SystemMessage("s"),) * shape[1] + turn("x" * shape[0], shape[0])
    ),
    max_size=12,
).map(lambda turns: tuple(itertools.chain.from_iterable(turns)))

windows = st.one_of(
    st.integers(1, 12).map(Window.messages),
    st.integers(1, 120).map(Window.tokens),
    st.integers(1, 12).map(lambda most: Window.messages(most, keep=most)),
    st.tuples(st.integers(1, 12), st.integers(1, 120)).map(
        lambda most: Window.messages(most[0]) & Window.tokens(most[1], keep=most[1] // 3 + 1)
    ),
)


@pytest.mark.feature("memory-message-window-chat-memory")
@given(conversations, windows)
@settings(max_examples=examples(300), deadline=None)
def test_window_is_a_valid_end(messages: tuple[Message, ...], window: Window) -> None:
    """Complete turns in order, within the limits, with at least what the window keeps."""
    memory = WindowChatMemory(window)
    memory.repository.save_all("c", messages)
    shown = memory.get("c")
    systems = [m for m in messages if isinstance(m, SystemMessage)]
    stored, kept = without_system(messages), without_system(shown)

    assert shown == [*systems, *kept]
    assert conversation_problems(shown, ending="answer") == ()
    assert stored[len(stored) - len(kept) :] == kept
    starts = [at for at in range(len(stored)) if begins_turn(stored, at)]
    newest_turn = starts[-1] if starts else 0
    assert fits(window, shown) or kept == stored[newest_turn:]
    sliding = Window(tuple(replace(limit, most=limit.keep) for limit in window.limits))
    fitting = [at for at in starts if fits(sliding, [*systems, *stored[at:]])]
    assert len(kept) >= len(stored) - min([*fitting, newest_turn])
    if fits(window, messages):
        assert kept == stored


def fits(window: Window, messages: Sequence[Message]) -> bool:
    """Return whether *messages* are within the limits of *window*."""
    return all(sum(map(limit.size, messages)) <= limit.most for limit in window.limits)


@pytest.mark.feature("memory-message-window-chat-memory")
@given(conversations, windows, st.integers(0, 60))
@settings(max_examples=examples(300), deadline=None)
def test_window_depends_on_the_conversation_only(
    messages: tuple[Message, ...], window: Window, last: int
) -> None:
    """Not on how it was stored, how much of it was loaded, or what was removed by a rewind."""
    repository = InMemoryChatMemoryRepository()
    memory = WindowChatMemory(window, repository)
    for message in messages:
        drive(repository.append("c", [message], BLOCKING))
    shown = memory.get("c")
    drive(repository.append("c", turn("later", 3), BLOCKING))
    later = repository.find_by_conversation_id("c")
    repository.save_all("c", later[: len(messages)])
    found = drive(repository.load("c", BLOCKING, last=last))
    start = window.start(found.messages, found.older)

    assert memory.get("c") == shown
    assert list(window.select(messages)) == shown
    if start:
        assert without_system(found.messages[start:]) == without_system(shown)


@pytest.mark.feature("memory-message-window-chat-memory")
@pytest.mark.parametrize(
    ("window", "most"),
    [
        (Window.messages(40, keep=20), 30),
        (Window.messages(100), 12),
        (Window.tokens(2000), 60),
        (Window.messages(60) & Window.tokens(2000), 60),
    ],
)
def test_window_moves_in_blocks(window: Window, most: int) -> None:
    """Over 300 turns, a window moves for few of them, and is read with one query then as well."""
    queries = 0

    class Watched(InMemoryChatMemoryRepository):
        async def load(self, *args: Any, **more: Any) -> Conversation:
            nonlocal queries
            queries += 1
            return await super().load(*args, **more)

    memory = WindowChatMemory(window, Watched())
    moves = 0
    before: list[Message] = []
    for number in range(300):
        memory.add("c", turn("words " * (10 + number % 7 * 10)))
        shown = memory.get("c")
        moves += shown[: len(before)] != before
        before = shown

    assert 5 < moves <= most
    if window.limits[0].measure is None:
        assert queries == 300


@pytest.mark.feature("memory-chat-repository")
@given(st.lists(conversations, max_size=5), st.integers(0, 40))
@settings(max_examples=examples(200), deadline=None)
def test_last_messages_of_a_growing_conversation(
    additions: list[tuple[Message, ...]], last: int
) -> None:
    """The loaded messages are the end of the conversation."""
    repository = InMemoryChatMemoryRepository()
    for messages in additions:
        drive(repository.append("c", messages, BLOCKING))
    complete = tuple(itertools.chain.from_iterable(additions))
    found = drive(repository.load("c", BLOCKING, last=last))

    assert found.messages == newest(complete, last)
    assert found.complete == (len(found.messages) == len(complete))


@pytest.mark.feature("memory-summarising")
@given(st.lists(st.integers(1, 3), max_size=25), st.integers(1, 12), st.integers(1, 12))
@settings(max_examples=examples(100), deadline=None)
def test_summaries_lose_no_turn(rounds: list[int], trigger: int, window: int) -> None:
    """Each turn is shown or was passed to the summary model once, in order."""
    transcript_lines: list[str] = []

    def summarise(prompt: Prompt) -> Answer:
        text = prompt.messages[1].text.split("<conversation>")[1]
        transcript_lines.extend(line for line in text.splitlines() if "question" in line)
        return "notes"

    memory = SummarizingChatMemory(
        ScriptedModel(summarise), trigger=Window.messages(trigger), window=Window.messages(window)
    )
    for number, count in enumerate(rounds):
        memory.add("c", turn(number, count))
        shown = memory.get("c")
        assert conversation_problems(shown, ending="answer") == ()
        left = [m.text for m in shown if isinstance(m, UserMessage) and SUMMARY not in m.metadata]
        given_ = [line.partition(">")[2].partition("<")[0] for line in transcript_lines]
        assert [*given_, *left] == [f"question {n}" for n in range(number + 1)]


# --- exact round trips ----------------------------------------------------------------------

texts = st.text(max_size=20)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)  # not representable in JSON
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
metadata = st.dictionaries(texts, st.none() | st.booleans() | st.integers() | texts, max_size=3)
media = st.builds(
    Media,
    texts,
    st.binary(max_size=20) | texts.map("data:{}".format),
    st.none() | texts,
    st.none() | texts,
    metadata,
)
calls = st.builds(ToolCall, texts, texts, texts, metadata)
reasonings = st.builds(
    Reasoning, texts, st.none() | texts, texts, st.none() | st.dictionaries(texts, texts)
)
provider_parts = st.builds(ProviderPart, texts, st.dictionaries(texts, json_values), texts)
responses = st.builds(
    ToolResponse,
    texts,
    texts,
    texts,
    st.booleans(),
    st.lists(media, max_size=2).map(tuple),
    metadata,
)
messages = st.one_of(
    st.builds(SystemMessage, texts, metadata),
    st.builds(
        UserMessage,
        st.lists(texts | media | provider_parts, max_size=4),
        metadata=metadata,
    ),
    st.builds(
        AssistantMessage,
        st.lists(texts | media | reasonings | calls | provider_parts, max_size=5),
        metadata=metadata,
    ),
    st.builds(ToolResponseMessage, st.lists(responses, max_size=3), metadata),
)


@pytest.fixture(scope="module", params=["memory", "sqlite"])
def repository(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ChatMemoryRepository]:
    if request.param == "memory":
        yield InMemoryChatMemoryRepository()
        return
    pytest.importorskip("sqlalchemy", reason="the extra `sql` is not installed")
    folder: Path = tmp_path_factory.mktemp("properties")
    with SqlChatMemoryRepository(f"sqlite:///{folder / 'memory.db'}") as made:
        yield made


@pytest.mark.feature("memory-repositories-drop-tool-messages")
@given(st.lists(messages, min_size=1, max_size=4))
@settings(max_examples=examples(60), deadline=None)
def test_message_round_trip(
    repository: ChatMemoryRepository, given_messages: list[Message]
) -> None:
    """Any message is restored equal."""
    repository.save_all("c", given_messages)

    assert repository.find_by_conversation_id("c") == given_messages


# --- crashes --------------------------------------------------------------------------------


class Crash(BaseException):
    """Ends a turn like an interrupt or a cancellation."""


@dataclass
class World:
    """Counts the points of a turn and ends it at one of them."""

    plan: list[int]
    crash_at: int | None
    question: str = ""
    points: int = 0
    round: int = 0
    prompts: list[Prompt] = field(default_factory=list)
    stored: list[Message] = field(default_factory=list)

    def point(self) -> None:
        """Pass a point at which the turn may end."""
        self.points += 1
        if self.points == self.crash_at:
            raise Crash

    def answer(self, prompt: Prompt) -> Answer:
        """Answer as planned after checking the prompt."""
        self.point()
        assert conversation_problems(prompt.messages, ending="question") == ()
        users = [m.text for m in prompt.messages if isinstance(m, UserMessage)]
        assert users[-1] == self.question
        tools = sum(isinstance(m, ToolResponseMessage) for m in own_of(prompt, self.question))
        assert tools == self.round
        self.round += 1
        if self.round > len(self.plan):
            return f"answer to {self.question}"
        number = self.plan[self.round - 1]
        return [
            "hm",
            *(call("work", id=f"{self.question}.{self.round}.{n}") for n in range(number)),
        ]

    @property
    def crashed(self) -> bool:
        return self.crash_at is not None and self.points >= self.crash_at


def own_of(prompt: Prompt, question: str) -> Sequence[Message]:
    """Return the messages of *prompt* from the question on."""
    at = [m.text for m in prompt.messages].index(question)
    return prompt.messages[at:]


class Crashing(InMemoryChatMemoryRepository):
    """A repository that may crash before or after an append."""

    world: World

    async def load(self, conversation_id: str, runtime: Runtime, **more: Any) -> Any:
        self.world.point()
        return await super().load(conversation_id, runtime, **more)

    async def append(
        self, conversation_id: str, messages: Sequence[Message], runtime: Runtime, **more: Any
    ) -> bool:
        self.world.point()
        added = await super().append(conversation_id, messages, runtime, **more)
        self.world.stored = list(messages)
        self.world.point()
        return added


def run(mode: str, request: Any, world: World) -> None:
    """Send *request* in one of the modes, leaving a stream at the planned point."""
    match mode:
        case "call":
            request.call().content()
        case "acall":
            asyncio.run(request.acall().chat_client_response())
        case "stream":
            with_points(world, request.stream().content())
        case "astream":
            asyncio.run(consume(world, request))


def with_points(world: World, pieces: Any) -> None:
    try:
        for _ in pieces:
            world.point()
    finally:
        pieces.close()


async def consume(world: World, request: Any) -> None:
    async with request.astream().content() as pieces:
        async for _ in pieces:
            world.point()


turn_plans = st.tuples(
    st.lists(st.integers(1, 2), max_size=2),
    st.none() | st.integers(1, 16),
    st.sampled_from(["call", "acall", "stream", "astream"]),
)


@pytest.mark.feature("memory-failed-cancelled-turn-leaves")
@given(
    st.lists(turn_plans, min_size=1, max_size=4),
    st.integers(1, 10),
    st.sampled_from([MEMORY_ORDER, TOOL_CALLING_ORDER + 1]),
    st.sampled_from([MessageChatMemoryAdvisor, PromptChatMemoryAdvisor]),
    st.booleans(),
    st.booleans(),
)
@settings(max_examples=examples(150), deadline=None)
def test_crash_at_any_point(
    plans: list[tuple[list[int], int | None, str]],
    most: int,
    order: int,
    kind: Callable[..., Any],
    prune: bool,
    tool_messages: bool,
) -> None:
    """Complete turns are stored, and prompts are valid and contain the turn."""
    repository = Crashing()
    memory = WindowChatMemory(Window.messages(most), repository, prune=prune)
    world = World([], None)

    @tool
    def work() -> str:
        """Work."""
        world.point()
        return "worked"

    def answer(prompt: Prompt) -> Answer:
        return world.answer(prompt)

    client = (
        ChatClient.builder(ScriptedModel(answer, chunks=6))
        .default_tools(work)
        .default_advisors(kind(memory, order=order, tool_messages=tool_messages))
        .build()
    )
    expected: list[Message] = []
    for number, (plan, crash_at, mode) in enumerate(plans):
        world = repository.world = World(plan, crash_at, f"q{number}")
        try:
            run(mode, client.prompt(world.question).conversation("c"), world)
        except Crash:
            assert world.crashed
        expected += world.stored
        if not world.crashed:
            assert len(world.stored) == (2 + 2 * len(plan) if tool_messages else 2)

        repository.world = World([], None)
        stored = repository.find_by_conversation_id("c")
        assert conversation_problems(stored, ending="answer") == ()
        assert stored == expected[len(expected) - len(stored) :]
        assert conversation_problems(memory.get("c"), ending="answer") == ()
        if not prune:
            assert stored == expected
