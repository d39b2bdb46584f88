"""Sessions: events, filters, compaction, expiry, and the service."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from chatclient.chat.messages import (
    AssistantMessage,
    Message,
    SystemMessage,
    ToolResponse,
    ToolResponseMessage,
    UserMessage,
)
from chatclient.chat.prompt import Prompt
from chatclient.chat.response import ChatResponse, FinishReason
from chatclient.errors import (
    ChatMemoryError,
    ContextLengthExceededError,
    OverloadedError,
    UsageError,
)
from chatclient.memory import (
    COMPACTION_SOURCE,
    AnyTrigger,
    ChatMemory,
    Compaction,
    CompactionStrategy,
    EventFilter,
    InMemorySessionRepository,
    RecursiveSummary,
    Session,
    SessionChatMemory,
    SessionEvent,
    SessionRepository,
    SessionService,
    SlidingWindow,
    SummarizingChatMemory,
    TokenCountTrigger,
    TokenWindow,
    TurnCountTrigger,
    TurnWindow,
    Window,
)
from chatclient.memory.conversation import conversation_problems
from chatclient.memory.summary import QUESTION, SUMMARY
from chatclient.runtime.blocking import drive
from chatclient.runtime.runtime import BLOCKING
from chatclient.testing import Answer, ScriptedModel
from chatclient.testing.contract_parts import turn

START = datetime(2026, 1, 1, tzinfo=UTC)


class Clock:
    """A clock that is set manually."""

    def __init__(self) -> None:
        self.moment = START

    def __call__(self) -> datetime:
        return self.moment


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def service(clock: Clock) -> SessionService:
    return SessionService(InMemorySessionRepository(), clock=clock)


def events_of(text: str) -> list[SessionEvent]:
    """Return a log with an event for each word.

    A word starts with S (synthetic), U (user), A (assistant) or T (tool) and is the text of its
    event; a letter before a colon is the branch.
    """
    kinds: dict[str, Callable[[str], Message]] = {
        "A": AssistantMessage,
        "T": lambda word: ToolResponseMessage([ToolResponse(word, "look", word)]),
    }
    events = []
    for at, word in enumerate(text.split()):
        branch, _, event_word = word.rpartition(":")
        kind = kinds.get(event_word[0], UserMessage)
        events.append(
            SessionEvent(
                f"{at}",
                "s",
                START + timedelta(seconds=at),
                kind(word),
                branch or None,
                synthetic=event_word.startswith("S"),
            )
        )
    return events


def words(events: Sequence[SessionEvent]) -> str:
    return " ".join(event.message.text for event in events)


def archived(strategy: Any, log: str) -> str:
    compaction = drive(strategy(events_of(log), BLOCKING))
    return words(compaction.archived) if compaction else ""


# --- events and filters ---------------------------------------------------------------------


@pytest.mark.parametrize("branch", [".", "a.", ".a", "a..b", " a", "a. b"])
def test_branch_names(branch: str) -> None:
    """An invalid branch raises, as its events would be invisible."""
    with pytest.raises(UsageError, match="path of agents' names"):
        SessionEvent.of("s", UserMessage("hi"), branch=branch)


@pytest.mark.parametrize(
    "make",
    [
        lambda moment: Session("s", "u", moment),
        lambda moment: Session("s", "u", START, moment),
        lambda moment: SessionEvent.of("s", UserMessage("hi"), timestamp=moment),
        lambda moment: EventFilter(since=moment),
        lambda moment: EventFilter(until=moment),
    ],
)
def test_times_require_a_time_zone(make: Any) -> None:
    """Naive times are rejected."""
    with pytest.raises(UsageError, match="needs a time zone"):
        make(datetime(2026, 1, 1))  # noqa: DTZ001


@pytest.mark.parametrize(("id", "user_id"), [("", "u"), (" ", "u"), ("s", "")])
def test_blank_session_id(id: str, user_id: str) -> None:
    """Blank ids are rejected."""
    with pytest.raises(UsageError, match="not blank"):
        Session(id, user_id, START)


@pytest.mark.parametrize(
    ("filter", "complaint"),
    [
        ({"last": 0}, "last must be at least 1"),
        ({"page": -1}, "page must be at least 0"),
        ({"page_size": 0}, "page_size must be at least 1"),
        ({"last": 3, "page": 0}, "last= and page="),
        ({"last": 3, "page_size": 5}, "last= and page="),
        ({"pattern": "("}, "not a regular expression"),
        ({"keywords": "cats"}, "pass a single one as keyword="),
        ({"branch": "a..b"}, "path of agents' names"),
        ({"roles": "User"}, "a role must be 'system', 'user', 'assistant' or 'tool', not 'User'"),
        ({"match": "every"}, "match must be None, 'any' or 'all', not 'every'"),
    ],
)
def test_invalid_filters(filter: dict[str, Any], complaint: str) -> None:
    """The error names the contradiction."""
    with pytest.raises(UsageError, match=complaint):
        EventFilter(**filter)


def test_filter_roles() -> None:
    """A single role or a set of roles is accepted."""
    several = EventFilter(roles={"user", "tool"}, keywords={"cats"})

    assert several == EventFilter(roles={"user", "tool"}, keywords=("cats",))
    assert EventFilter(roles="user") == EventFilter(roles={"user"})


def test_blank_search_terms() -> None:
    """Blank terms are ignored, as they would match everything."""
    assert EventFilter(keyword="  ", keywords=("", " Cats ")) == EventFilter(keywords=("cats",))
    assert not EventFilter(keyword=" ", keywords=(" ",)).has_text_conditions


def test_page_defaults() -> None:
    """The default is the first page of twenty."""
    assert EventFilter(page=1).bounds == (20, 40)
    assert EventFilter(page_size=5).bounds == (0, 5)
    assert EventFilter().bounds is None


@pytest.mark.feature("session-event-filter-merge")
def test_merge_filters() -> None:
    """Set fields win; exclusions are kept."""
    base = EventFilter(since=START, keyword="a", exclude_synthetic=True)
    over = EventFilter(keyword="b", roles={"user"}, exclude_archived=True)

    assert base.merge(over) == EventFilter(
        since=START,
        keyword="b",
        roles={"user"},
        exclude_synthetic=True,
        exclude_archived=True,
    )


@pytest.mark.feature("session-event-filter-merge")
def test_merge_page_and_last() -> None:
    """A page replaces `last` and vice versa."""
    last, page = EventFilter(last=5), EventFilter(page=2, page_size=3)

    assert last.merge(page) == page
    assert page.merge(last) == last
    assert page.merge(EventFilter(page=4)) == EventFilter(page=4, page_size=3)
    assert last.merge(EventFilter(page_size=4)) == EventFilter(page_size=4)


# --- triggers and strategies ----------------------------------------------------------------


@pytest.mark.feature("session-turn-count-trigger-token")
def test_turn_trigger() -> None:
    """User messages count, without summaries and branches."""
    trigger = TurnCountTrigger(2)

    assert not trigger(events_of("S S U A U A x:U x:A"))
    assert trigger(events_of("U A U A U"))
    assert not trigger(events_of("U A T U A U x:U U A"))


def test_token_trigger() -> None:
    """The trigger applies from the threshold on, to what the root agent sees."""
    trigger = TokenCountTrigger(3, lambda _: 1)

    assert not trigger(events_of("U A x:U x:A"))
    assert trigger(events_of("S U A"))


@pytest.mark.feature("session-turn-count-trigger-token")
def test_any_trigger() -> None:
    """One of several triggers suffices."""
    trigger = AnyTrigger(TurnCountTrigger(5), TokenCountTrigger(2, lambda _: 1))

    assert trigger(events_of("U A"))
    assert not trigger(events_of("U"))


@pytest.mark.parametrize(
    "make",
    [
        lambda: TurnCountTrigger(0),
        lambda: TokenCountTrigger(0),
        AnyTrigger,
        lambda: SlidingWindow(0),
        lambda: TurnWindow(0),
        lambda: TokenWindow(0),
        lambda: RecursiveSummary(ScriptedModel(), most=2, overlap=2),
        lambda: RecursiveSummary(ScriptedModel(), overlap=-1),
    ],
)
def test_invalid_strategies(make: Any) -> None:
    """A window without room or a trigger without a condition raises."""
    with pytest.raises(UsageError):
        make()


@pytest.mark.feature("session-sliding-window-turn-token")
@pytest.mark.parametrize(
    ("most", "log", "expected"),
    [
        (4, "U1 A1 U2 A2", ""),
        (4, "U1 A1 U2 A2 U3 A3", "U1 A1"),
        (3, "U1 A1 U2 A2", "U1 A1"),
        (2, "S S U1 A1 U2 A2", "U1 A1"),
        (3, "U1 A1 x:U1 x:A1 U2 A2", "U1 A1 x:U1 x:A1"),
        (4, "U1 x:U x:A x:A A1 U2 A2", ""),
        (1, "U1 A1 A1 A1", ""),
        (2, "U1 A1 U2 A2 A2 A2", "U1 A1"),
        (2, "A0 A0 U1 A1", "A0 A0"),
        (2, "A0 A0 A0", ""),
        (2, "U1 A1 U2a U2b A2", "U1 A1"),
        (2, "U1 A1 U2 A2 T2 U2b A2", "U1 A1"),
        (2, "U1 A1 T1 x:U1 x:A1 U1b A1", ""),
        (2, "", ""),
    ],
)
def test_sliding_window(most: int, log: str, expected: str) -> None:
    """The newest turn is complete; branches belong to their turn."""
    assert archived(SlidingWindow(most), log) == expected


@pytest.mark.feature("session-sliding-window-turn-token")
@pytest.mark.parametrize(
    ("most", "log", "expected"),
    [
        (2, "U1 A1 U2 A2", ""),
        (2, "U1 A1 U2 A2 A2 U3", "U1 A1"),
        (1, "A0 U1 A1 x:U U2 A2", "U1 A1 x:U"),
        (1, "S S U1 A1 U2 A2", "U1 A1"),
        (1, "A0", ""),
    ],
)
def test_turn_window(most: int, log: str, expected: str) -> None:
    """Preamble and summaries are kept, older turns archived."""
    assert archived(TurnWindow(most), log) == expected


@pytest.mark.feature("session-sliding-window-turn-token")
@pytest.mark.parametrize(
    ("most", "log", "expected"),
    [
        (4, "U1 A1 U2 A2", ""),
        (3, "U1 A1 U2 A2", "U1 A1"),
        (3, "S S U1 A1 U2 A2", "U1 A1"),
        (1, "S S S U1 A1 U2 A2", "U1 A1"),
        (1, "U1 A1 A1", ""),
        (9, "A0 U1 A1", ""),
        (4, "U1 A1 x:U x:A U2 A2", ""),
    ],
)
def test_token_window(most: int, log: str, expected: str) -> None:
    """Summaries count, branches do not; the newest turn is never archived."""
    assert archived(TokenWindow(most, lambda _: 1), log) == expected


@pytest.mark.feature("session-branches")
def test_branch_events_are_archived_with_their_turn() -> None:
    """Events of agents precede their turn in the log."""
    log = events_of("U1 A1 x:U x:A U2 A2")
    question_time = log[4].timestamp - timedelta(seconds=3)
    log[4] = SessionEvent("q", "s", question_time, log[4].message)
    compaction = drive(SlidingWindow(2)(log, BLOCKING))

    assert compaction is not None
    assert words(compaction.archived) == "U1 A1"


@pytest.mark.feature("session-recursive-summarization")
def test_summary_strategy() -> None:
    """The model gets the previous summary, the archived events and the following ones."""
    model = ScriptedModel(" New notes. ")
    log = events_of("Squestion A-old-notes U1 A1 x:Usecret U2 A2 U3 A3")
    log[1] = SessionEvent("a", "s", START, log[1].message, synthetic=True)
    compaction = drive(RecursiveSummary(model, most=4, overlap=1)(log, BLOCKING))

    assert compaction is not None
    assert compaction.summary is not None
    assert words(compaction.archived) == "U1 A1 x:Usecret"
    assert [type(e.message) for e in compaction.summary] == [UserMessage, AssistantMessage]
    assert compaction.summary[1].message.text == "New notes."
    assert all(e.synthetic and e.metadata[COMPACTION_SOURCE] for e in compaction.summary)
    assert {e.timestamp for e in compaction.summary} == {compaction.archived[-1].timestamp}
    contents = model.prompts[0].contents
    assert all(word in contents for word in ("A-old-notes", "U1", "A1", "U2"))
    assert not any(word in contents for word in ("Squestion", "secret", "A2", "U3"))


def test_summary_without_overlap() -> None:
    """Only the archived events are sent to the model."""
    model = ScriptedModel("Notes.")
    drive(RecursiveSummary(model, most=2, overlap=0)(events_of("U1 A1 U2 A2"), BLOCKING))

    assert "U2" not in model.prompts[0].contents
    assert "continuation" not in model.prompts[0].contents


@pytest.mark.feature("session-recursive-summarization")
def test_empty_summary() -> None:
    """An empty summary is discarded; without archived events no model is called."""
    model = ScriptedModel("  ")
    strategy = RecursiveSummary(model, most=2, overlap=1)

    assert drive(strategy(events_of("U1 A1"), BLOCKING)) is None
    assert model.prompts == []
    assert drive(strategy(events_of("U1 A1 U2 A2"), BLOCKING)) is None
    assert len(model.prompts) == 1


@pytest.mark.parametrize("reason", ["length", "content_filter"])
def test_incomplete_summary(reason: FinishReason) -> None:
    """A truncated or refused summary is discarded."""
    model = ScriptedModel(ChatResponse.of("The user is called A", reason))
    strategy = RecursiveSummary(model, most=2, overlap=1)

    assert drive(strategy(events_of("U1 A1 U2 A2"), BLOCKING)) is None


@pytest.mark.feature("session-recursive-summarization")
def test_summary_in_steps() -> None:
    """A log too long for the model is summarised in smaller steps."""

    def short_sighted(prompt: Prompt) -> Answer:
        archived = prompt.contents.partition("</conversation>")[0]
        if archived.count('from="user"') > 2:
            raise ContextLengthExceededError("too long")
        return "Notes."

    model = ScriptedModel(short_sighted)
    log = events_of("U1 A1 U2 A2 x:U x:A U3 A3 U4 A4 U5 A5")
    compaction = drive(RecursiveSummary(model, most=2, overlap=1)(log, BLOCKING))

    assert compaction is not None
    assert words(compaction.archived) == "U1 A1 U2 A2 x:U x:A"
    assert '<continuation>\n<message from="user">U3' in model.prompts[-1].contents
    assert len(model.prompts) == 2


def test_unsummarisable_turn() -> None:
    """A single turn is not split."""
    model = ScriptedModel(*[ContextLengthExceededError("too long")] * 9)
    strategy = RecursiveSummary(model, most=2, overlap=1)

    with pytest.raises(ContextLengthExceededError):
        drive(strategy(events_of("U1 A1 U2 A2 U3 A3"), BLOCKING))
    assert len(model.prompts) == 2


# --- the service ----------------------------------------------------------------------------


@pytest.mark.feature("session-time-live-60")
def test_create_session(service: SessionService) -> None:
    """A session gets an id unless given, and lasts sixty days by default."""
    session = service.create("ann")
    short = service.create("ann", session_id="s", time_to_live=timedelta(1), metadata={"a": 1})

    assert session.expires_at == START + timedelta(days=60)
    assert short == Session("s", "ann", START, START + timedelta(1), {"a": 1})
    assert service.create("ann", session_id="s") == short
    assert service.sessions_of("ann") == [session, short]
    with pytest.raises(UsageError, match="does not belong to user 'bob'"):
        service.create("bob", session_id="s")


def test_expired_session_is_not_read(clock: Clock) -> None:
    """It is treated as missing until it is deleted or created again."""
    service = SessionService(InMemorySessionRepository(), clock=clock)
    service.create("ann", session_id="old", time_to_live=timedelta(1))
    service.append("old", UserMessage("gout"), AssistantMessage("noted"))
    service.create("ann", session_id="new")
    service.append("new", UserMessage("gout again"), AssistantMessage("noted"))
    everything, newest = EventFilter(keyword="gout"), EventFilter(keyword="gout", last=1)
    assert len(service.search("ann", everything)) == 2
    clock.moment += timedelta(2)
    service.append("new", UserMessage("well"), AssistantMessage("noted"))

    assert service.events("old") == ()
    assert service.messages("old") == ()
    assert [e.session_id for e in service.search("ann", everything)] == ["new"]
    assert [e.session_id for e in service.search("ann", newest)] == ["new"]
    with pytest.raises(ChatMemoryError, match="no session 'old'"):
        service.append("old", UserMessage("more"))


def test_session_without_expiry(clock: Clock) -> None:
    """Without a time to live a session does not expire."""
    service = SessionService(InMemorySessionRepository(), time_to_live=None, clock=clock)

    assert service.create("ann").expires_at is None


@pytest.mark.feature("session-time-live-60")
def test_expired_session_id_is_free(service: SessionService, clock: Clock) -> None:
    """It is not found, and another user may create one with its id."""
    service.create("ann", session_id="s", time_to_live=timedelta(1))
    service.append("s", *turn(1))
    clock.moment += timedelta(1)

    assert service.find("s") is None
    assert service.sessions_of("ann") == []
    assert service.create("bob", session_id="s").user_id == "bob"
    assert service.messages("s") == ()


@pytest.mark.feature("session-time-live-60")
def test_delete_expired_sessions(service: SessionService, clock: Clock) -> None:
    """Only expired sessions are deleted and counted."""
    for days in (1, 2, 3):
        service.create("ann", session_id=f"s{days}", time_to_live=timedelta(days))
    clock.moment += timedelta(2)

    assert service.delete_expired() == 2
    assert service.delete_expired() == 0
    assert [session.id for session in service.sessions_of("ann")] == ["s3"]
    assert service.delete("s3") is True
    assert service.delete("s3") is False


def test_append_with_key(service: SessionService) -> None:
    """A repeated append with the same key reports a duplicate."""
    service.create("ann", session_id="s")
    events = service.append("s", *turn(1), key="k", branch="x", metadata={"a": 1})

    assert [(e.id, e.branch, e.metadata, e.timestamp) for e in events] == [
        (f'["k","x",{at}]', "x", {"a": 1}, START) for at in range(2)
    ]
    assert service.append("s", *turn(2), key="k", branch="x") == ()
    assert service.append("s") == ()
    assert service.events("s") == events
    with pytest.raises(ChatMemoryError, match="create it first"):
        service.append("nowhere", *turn(1))


def test_archived_events_are_searchable(service: SessionService) -> None:
    """Archived events are not shown to the model but stay in the log."""
    service.create("ann", session_id="s")
    for number in range(4):
        service.append("s", *turn(number))
    done = service.compact("s", TurnCountTrigger(3), TurnWindow(1))

    assert done is not None
    assert len(done.archived) == 6
    assert service.messages("s") == turn(3)
    assert len(service.events("s")) == 8
    found = service.search("ann", EventFilter(keyword="answer 1"))
    assert [event.message.text for event in found] == ["answer 1"]


def test_compaction_trigger(service: SessionService) -> None:
    """A log is compacted only if triggered and if the strategy archives events."""

    async def nothing(_events: Any, _runtime: Any) -> Compaction | None:
        return Compaction(())

    service.create("ann", session_id="s")
    service.append("s", *turn(1))

    assert service.compact("s", TurnCountTrigger(1), TurnWindow(1)) is None
    assert service.compact("s", lambda _: True, TurnWindow(1)) is None
    assert service.compact("s", lambda _: True, nothing) is None


@pytest.mark.feature("session-compact-events-compare-swap")
def test_late_compaction(service: SessionService) -> None:
    """Events appended during the compaction are neither archived nor lost."""
    service.create("ann", session_id="s")
    service.append("s", *turn(1), *turn(2))

    async def slow(events: Sequence[SessionEvent], runtime: Any) -> Compaction | None:
        await service.sessions.append("s", turn(3), runtime)
        return Compaction(tuple(events[:2]))

    assert service.compact("s", lambda _: True, slow) is None
    assert service.messages("s") == (*turn(1), *turn(2), *turn(3))


async def test_async_service(service: SessionService, clock: Clock) -> None:
    """Every operation has an async counterpart."""
    session = await service.acreate("ann", session_id="s", time_to_live=timedelta(1))
    events = await service.aappend("s", *turn(1), *turn(2))

    assert await service.afind("s") == session
    assert await service.asessions_of("ann") == [session]
    assert await service.aevents("s") == events
    assert await service.acompact("s", TurnCountTrigger(1), TurnWindow(1)) is not None
    assert await service.amessages("s") == turn(2)
    assert len(await service.asearch("ann", EventFilter(keyword="question"))) == 2
    clock.moment += timedelta(2)
    assert await service.adelete_expired() == 1
    assert await service.adelete("s") is False


# --- as a chat memory -----------------------------------------------------------------------


def test_session_memory(service: SessionService) -> None:
    """A turn creates its session for the default user, and can be cleared."""
    memory = SessionChatMemory(service)
    memory.add("s", turn(1))
    memory.add("s", [])

    assert memory.get("s") == list(turn(1))
    assert [session.id for session in service.sessions_of("default-user")] == ["s"]
    memory.clear("s")
    assert memory.get("s") == []


@pytest.mark.feature("session-event-idempotent-ids")
def test_turn_with_key(service: SessionService) -> None:
    """Repeating a job does not repeat its turn, even if it is longer."""
    memory = SessionChatMemory(service)
    for rounds in (1, 3):
        memory.add("s", turn(1, rounds), key="job")

    assert memory.get("s") == list(turn(1))


def test_session_of_another_user(service: SessionService) -> None:
    """A memory with a user rejects sessions of others."""
    memory = SessionChatMemory(service)
    memory.narrowed("ann", None).add("s", turn(1))

    assert memory.get("s") == list(turn(1))
    assert memory.narrowed("ann", None).get("s") == list(turn(1))
    for operate in (
        lambda: memory.narrowed("bob", None).get("s"),
        lambda: memory.narrowed("bob", None).add("s", turn(2)),
    ):
        with pytest.raises(UsageError, match="does not belong to user 'bob'"):
            operate()


@pytest.mark.feature("session-branches")
def test_branch_visibility(service: SessionService) -> None:
    """Siblings and child branches are hidden."""
    root, lead, writer, other = (
        SessionChatMemory(service, branch=branch)
        for branch in (None, "lead", "lead.writer", "other")
    )
    for memory in (root, lead, writer, other):
        memory.add("s", turn(memory.branch))

    assert root.get("s") == list(turn(None))
    assert lead.get("s") == [*turn(None), *turn("lead")]
    assert writer.get("s") == [*turn(None), *turn("lead"), *turn("lead.writer")]
    assert other.get("s") == [*turn(None), *turn("other")]


@pytest.mark.feature("session-branches")
@pytest.mark.parametrize("branch", ["lead.writer", ""])
def test_filter_with_branch(service: SessionService, branch: str) -> None:
    """A filter's branch is the agent that reads and writes; the root agent has an empty one."""
    SessionChatMemory(service).add("s", turn("root"))
    agent = SessionChatMemory(service, branch=branch)
    agent.add("s", turn("agent"))
    lead = SessionChatMemory(service, branch="lead")
    memories = [
        SessionChatMemory(service, event_filter=EventFilter(branch=branch)),
        lead.narrowed(None, EventFilter(branch=branch)),
    ]
    for number, memory in enumerate(memories):
        assert memory.get("s") == agent.get("s")
        memory.add("s", turn(number))

    assert agent.get("s") == [m for name in ("root", "agent", 0, 1) for m in turn(name)]
    branches = [event.branch for event in service.events("s")]
    assert branches == [None] * 2 + [branch or None] * 6
    service.append("s", UserMessage("more"), branch=branch)
    assert service.events("s")[-1].branch == (branch or None)


def test_compaction_after_a_turn(service: SessionService) -> None:
    """The model gets fewer messages, which are a valid conversation."""
    memory = SessionChatMemory(
        service, trigger=TurnCountTrigger(3), strategy=RecursiveSummary(ScriptedModel("Notes."))
    )
    for number in range(8):
        memory.add("s", turn(number, 2))
        assert conversation_problems(memory.get("s"), ending="answer") == ()

    shown = memory.get("s")
    assert shown[1] == AssistantMessage("Notes.", metadata={SUMMARY: True})
    assert shown[-4:] == list(turn(7, 2))
    assert len(shown) < 8 * 4
    assert len(service.events("s", EventFilter(exclude_synthetic=True))) == 8 * 4


@pytest.mark.feature("session-failing-summary-fails-turn")
def test_compaction_failure(service: SessionService) -> None:
    """A failure is logged, and the next turn tries again."""
    model = ScriptedModel(OverloadedError("down"), "Notes.")
    memory = SessionChatMemory(
        service, trigger=TurnCountTrigger(1), strategy=RecursiveSummary(model, most=2, overlap=1)
    )
    for number in range(3):
        memory.add("s", turn(number))
        expected = [m for n in range(number + 1) for m in turn(n)]
        if number < 2:
            assert memory.get("s") == expected

    assert len(model.prompts) == 2
    assert memory.get("s")[-2:] == list(turn(2))
    assert len(memory.get("s")) == 4


@pytest.mark.feature("session-message-filter")
@pytest.mark.feature("session-last-widened")
def test_filter_selects_complete_turns(service: SessionService) -> None:
    """A turn with an event that matches is shown completely."""
    memory = SessionChatMemory(service, event_filter=EventFilter(last=5))
    for number in range(3):
        memory.add("s", turn(number, 2))

    assert memory.get("s") == [*turn(1, 2), *turn(2, 2)]
    answers = memory.narrowed(None, EventFilter(keyword="answer 0", last=1))
    assert answers.get("s") == list(turn(0, 2))
    assert memory.narrowed(None, EventFilter(types="app.NOTE", last=1)).get("s") == [*turn(2, 2)]


@pytest.mark.feature("session-message-filter")
def test_filter_keeps_complete_turns(service: SessionService, clock: Clock) -> None:
    """Several user messages or a later system message do not split a turn."""
    memory = SessionChatMemory(service, event_filter=EventFilter(last=20))
    question = [UserMessage("Here is the text:"), UserMessage("Sum it up.")]
    turns_of_messages = [
        [SystemMessage("Be brief."), *question, AssistantMessage("It is long.")],
        [SystemMessage("Be kind."), UserMessage("Thanks."), AssistantMessage("Welcome.")],
    ]
    for messages in turns_of_messages:
        memory.add("s", messages)
        clock.moment += timedelta(seconds=1)

    assert memory.get("s") == [*turns_of_messages[0], *turns_of_messages[1]]


async def test_delete_older_events(service: SessionService, clock: Clock) -> None:
    """Both methods delete old turns; the cutoff needs a time zone."""
    service.create("ann", session_id="s")
    for number in range(3):
        service.append("s", *turn(number))
        clock.moment += timedelta(days=1)

    assert service.delete_older_than(clock.moment - timedelta(days=2)) == 2
    assert await service.adelete_older_than(clock.moment - timedelta(days=1)) == 2
    assert service.messages("s") == turn(2)
    assert [message.stored_at for message in service.messages("s")] == [
        event.timestamp for event in service.events("s")
    ]
    with pytest.raises(UsageError, match="time zone"):
        service.delete_older_than(datetime(2026, 1, 1))  # noqa: DTZ001


def test_repository_without_deletion() -> None:
    """The error names what it cannot do."""

    class Whole(InMemorySessionRepository):
        delete_older = SessionRepository.delete_older

    with pytest.raises(UsageError, match="Whole cannot delete single events"):
        SessionService(Whole()).delete_older_than(START)


@pytest.mark.feature("session-event-idempotent-ids")
def test_key_per_branch(service: SessionService) -> None:
    """Agents may use the key of their job in each branch."""
    memories = [SessionChatMemory(service, branch=branch) for branch in ("a.b", "a", "b", None)]
    for _ in range(2):
        for number, memory in enumerate(memories):
            memory.add("s", turn(number), key="job")

    messages = [event.message for event in service.events("s")]
    assert messages == [message for number in range(4) for message in turn(number)]


@pytest.mark.parametrize(
    "options",
    [
        {"trigger": TurnCountTrigger(1)},
        {"strategy": TurnWindow(1)},
        {"branch": "a."},
        {"branch": "a", "event_filter": EventFilter(branch="b")},
    ],
)
def test_invalid_session_memories(service: SessionService, options: dict[str, Any]) -> None:
    """A compaction without trigger or strategy raises."""
    with pytest.raises(UsageError):
        SessionChatMemory(service, **options)


def test_append_rejects_strings(service: SessionService) -> None:
    """Only messages can be appended."""
    service.create("ann", session_id="s")
    text: Any = "hello"

    with pytest.raises(TypeError, match="expected messages"):
        service.append("s", text)
    assert service.events("s") == ()


def test_branch_memory_does_not_compact(service: SessionService) -> None:
    """Compaction is done by the memory of the root branch."""
    settings: dict[str, Any] = {"trigger": TurnCountTrigger(1), "strategy": TurnWindow(1)}
    service.create("ann", session_id="s")
    root = SessionChatMemory(service)
    for number in range(3):
        root.add("s", turn(str(number)))
    agent = SessionChatMemory(service, branch="agent", **settings)
    for number in range(3):
        agent.add("s", turn(f"task {number}"))

    assert [m.text for m in root.get("s") if isinstance(m, UserMessage)] == [
        "question 0",
        "question 1",
        "question 2",
    ]


class Raced(InMemorySessionRepository):
    """A repository to which another writer appends at the worst moment, once."""

    rival: Callable[[], object] | None = None

    async def append(self, *args: Any, **how: Any) -> bool:
        rival, self.rival = self.rival, None
        if rival is not None:
            rival()
        return await super().append(*args, **how)


def test_rewind() -> None:
    """Messages are archived, also those that were appended concurrently; the log keeps them."""
    repository = Raced()
    service = SessionService(repository)
    memory = SessionChatMemory(service)
    for id in ("1", "2"):
        memory.add("s", [UserMessage(f"Q{id}", id=id), AssistantMessage(f"A{id}")])
    repository.rival = lambda: memory.add("s", [UserMessage("Q3"), AssistantMessage("A3")])

    assert memory.rewind("s", "2")
    assert [message.text for message in memory.get("s")] == ["Q1", "A1"]
    assert [event.message.text for event in service.read("s").events] == [
        *("Q1", "A1", "Q2", "A2", "Q3", "A3")
    ]
    assert not memory.rewind("s", "2")
    assert not memory.rewind("other", "1")


SUMMARY_OF = ScriptedModel(lambda _: "So far.")


def questions(memory: ChatMemory) -> str:
    return " ".join(m.text for m in memory.get("s") if isinstance(m, UserMessage))


@pytest.mark.parametrize(
    "strategy",
    [
        SlidingWindow(2),
        TurnWindow(1),
        TokenWindow(16),
        RecursiveSummary(SUMMARY_OF, most=2, overlap=0),
    ],
    ids=lambda strategy: type(strategy).__name__,
)
async def test_rewind_to_an_archived_message(
    service: SessionService, strategy: CompactionStrategy
) -> None:
    """The model sees what it saw before that message, without later turns and their summary."""
    memory = SessionChatMemory(service, trigger=TurnCountTrigger(3), strategy=strategy)
    before: dict[str, list[Message]] = {}
    for id in "12345678":
        before[id] = memory.get("s")
        memory.add("s", [UserMessage(f"Q{id}", id=id), AssistantMessage(f"A{id}")])
    assert "Q6" not in questions(memory)

    for id in "863":  # 6 is archived, 3 was archived and summarised twice
        assert await memory.arewind("s", id)
        assert memory.get("s") == before[id]
        assert not memory.rewind("s", id)
    memory.add("s", [UserMessage("other", id="3"), AssistantMessage("A")])
    assert questions(memory) == "Q1 Q2 other"
    assert memory.rewind("s", "3")
    assert memory.rewind("s", "1")
    assert memory.get("s") == []
    version = service.read("s").version
    assert service.messages("s", version=version) == service.messages("s")


def test_rewind_keeps_other_messages(service: SessionService, clock: Clock) -> None:
    """Messages of other agents in the removed turn are removed; system messages are kept."""
    memory = SessionChatMemory(service)
    agent = SessionChatMemory(service, branch="a")
    memory.add("s", [SystemMessage("S1"), UserMessage("Q1", id="1"), AssistantMessage("A1")])
    agent.add("s", turn("of 1"))
    clock.moment += timedelta(seconds=1)
    started = replace(memory, started_at=clock.moment)
    agent.add("s", turn("of 2"))
    started.add("s", [UserMessage("Q2", id="2"), AssistantMessage("A2"), SystemMessage("S2")])

    assert memory.rewind("s", "2")
    seen = ["S1", "Q1", "A1", "question of 1", "answer of 1", "S2"]
    assert [message.text for message in agent.get("s")] == seen


def test_rewind_to_a_summarised_message() -> None:
    """A memory that keeps no originals removes the summary, and with it what came before."""
    memory = SummarizingChatMemory(
        SUMMARY_OF, trigger=Window.messages(5), window=Window.messages(2)
    )
    memory.add("s", SystemMessage("S"))
    for id in "12345":
        memory.add("s", [UserMessage(f"Q{id}", id=id), AssistantMessage(f"A{id}")])
    assert questions(memory) == f"{QUESTION} Q5"

    assert not memory.rewind("s", "6")
    assert memory.rewind("s", "2")
    assert memory.get("s") == [SystemMessage("S")]
