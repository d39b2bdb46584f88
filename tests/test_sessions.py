"""Sessions: events, filters, when and how logs are compacted, expiry, and the service."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from chatclient.driving import drive
from chatclient.errors import (
    ChatMemoryError,
    ContextLengthExceededError,
    OverloadedError,
    UsageError,
)
from chatclient.memory.conversation import conversation_problems
from chatclient.memory.sessions import (
    COMPACTION_SOURCE,
    AnyTrigger,
    Compaction,
    EventFilter,
    InMemorySessionRepository,
    RecursiveSummary,
    Session,
    SessionChatMemory,
    SessionEvent,
    SessionService,
    SlidingWindow,
    TokenCountTrigger,
    TokenWindow,
    TurnCountTrigger,
    TurnWindow,
)
from chatclient.memory.summary import SUMMARY
from chatclient.messages import (
    AssistantMessage,
    Message,
    SystemMessage,
    ToolResponse,
    ToolResponseMessage,
    UserMessage,
)
from chatclient.prompt import Prompt
from chatclient.response import ChatResponse, FinishReason
from chatclient.runtime import BLOCKING
from chatclient.testing import Answer, ScriptedModel
from chatclient.testing.memory import turn

START = datetime(2026, 1, 1, tzinfo=UTC)


class Clock:
    """A clock that is set by hand."""

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
    """Return a log, an event for each word.

    A word begins with S (synthetic), U (the user), A (the assistant), T (a tool); a letter before
    a colon is the branch. What is said is the word.
    """
    kinds: dict[str, Callable[[str], Message]] = {
        "A": AssistantMessage,
        "T": lambda word: ToolResponseMessage([ToolResponse(word, "look", word)]),
    }
    events = []
    for at, word in enumerate(text.split()):
        branch, _, said = word.rpartition(":")
        kind = kinds.get(said[0], UserMessage)
        events.append(
            SessionEvent(
                f"{at}",
                "s",
                START + timedelta(seconds=at),
                kind(word),
                branch or None,
                synthetic=said.startswith("S"),
            )
        )
    return events


def words(events: Sequence[SessionEvent]) -> str:
    return " ".join(event.message.text for event in events)


def archived(strategy: Any, log: str) -> str:
    compaction = drive(strategy(events_of(log), BLOCKING))
    return words(compaction.archived) if compaction else ""


# --- events and filters ---------------------------------------------------------------------


@pytest.mark.parametrize("branch", ["", ".", "a.", ".a", "a..b", " a", "a. b"])
def test_a_branch_is_a_path_of_names(branch: str) -> None:
    """Anything else would make events that nobody sees."""
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
def test_moments_have_a_time_zone(make: Any) -> None:
    """Machines in different zones would take the others for something else."""
    with pytest.raises(UsageError, match="needs a time zone"):
        make(datetime(2026, 1, 1))  # noqa: DTZ001


@pytest.mark.parametrize(("id", "user_id"), [("", "u"), (" ", "u"), ("s", "")])
def test_sessions_have_names(id: str, user_id: str) -> None:
    """Blank ids are refused."""
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
def test_filters_that_cannot_be(filter: dict[str, Any], complaint: str) -> None:
    """Each says what is wrong."""
    with pytest.raises(UsageError, match=complaint):
        EventFilter(**filter)


def test_one_role_and_sets_of_them_will_do() -> None:
    """A text is one role, and not its letters."""
    several = EventFilter(roles={"user", "tool"}, keywords={"cats"})

    assert several == EventFilter(roles={"user", "tool"}, keywords=("cats",))
    assert EventFilter(roles="user") == EventFilter(roles={"user"})


def test_blank_terms_are_dropped() -> None:
    """They would be found everywhere."""
    assert EventFilter(keyword="  ", keywords=("", " Cats ")) == EventFilter(keywords=("cats",))
    assert not EventFilter(keyword=" ", keywords=(" ",)).searches


def test_pages_have_a_size_and_a_number() -> None:
    """Without, it is the first, and of twenty."""
    assert EventFilter(page=1).bounds == (20, 40)
    assert EventFilter(page_size=5).bounds == (0, 5)
    assert EventFilter().bounds is None


def test_merging_lays_one_filter_over_another() -> None:
    """What is set wins, what is excluded stays excluded."""
    base = EventFilter(since=START, keyword="a", exclude_synthetic=True)
    over = EventFilter(keyword="b", roles={"user"}, exclude_archived=True)

    assert base.merge(over) == EventFilter(
        since=START,
        keyword="b",
        roles={"user"},
        exclude_synthetic=True,
        exclude_archived=True,
    )


def test_merging_replaces_a_page_by_the_last_events() -> None:
    """And the other way round: both together mean nothing."""
    last, page = EventFilter(last=5), EventFilter(page=2, page_size=3)

    assert last.merge(page) == page
    assert page.merge(last) == last
    assert page.merge(EventFilter(page=4)) == EventFilter(page=4, page_size=3)
    assert last.merge(EventFilter(page_size=4)) == EventFilter(page_size=4)


# --- triggers and strategies ----------------------------------------------------------------


def test_turns_are_counted_by_what_the_user_says() -> None:
    """Summaries and branches do not count."""
    trigger = TurnCountTrigger(2)

    assert not trigger(events_of("S S U A U A x:U x:A"))
    assert trigger(events_of("U A U A U"))
    assert not trigger(events_of("U A T U A U x:U U A"))


def test_tokens_are_counted() -> None:
    """From the threshold on it is time."""
    trigger = TokenCountTrigger(3, lambda _: 1)

    assert not trigger(events_of("U A"))
    assert trigger(events_of("S U A"))


def test_any_of_several_triggers() -> None:
    """One is enough."""
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
def test_strategies_that_cannot_be(make: Any) -> None:
    """A window without room, or a trigger that never says yes, is a mistake."""
    with pytest.raises(UsageError):
        make()


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
def test_a_sliding_window_is_cut_where_a_turn_begins(most: int, log: str, expected: str) -> None:
    """The newest turn stays whole however long it is; branches go with their turn."""
    assert archived(SlidingWindow(most), log) == expected


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
def test_a_window_of_turns_keeps_what_stands_before_the_first(
    most: int, log: str, expected: str
) -> None:
    """Preamble and summaries stay, older turns go."""
    assert archived(TurnWindow(most), log) == expected


@pytest.mark.parametrize(
    ("most", "log", "expected"),
    [
        (4, "U1 A1 U2 A2", ""),
        (3, "U1 A1 U2 A2", "U1 A1"),
        (3, "S S U1 A1 U2 A2", "U1 A1"),
        (1, "S S S U1 A1 U2 A2", "U1 A1"),
        (1, "U1 A1 A1", ""),
        (9, "A0 U1 A1", ""),
    ],
)
def test_a_window_of_tokens(most: int, log: str, expected: str) -> None:
    """Summaries take their share of the room; the newest turn is never archived."""
    assert archived(TokenWindow(most, lambda _: 1), log) == expected


def test_what_an_agent_said_within_a_turn_goes_with_it() -> None:
    """It is in the log before the turn is, because agents are done before the turn is."""
    log = events_of("U1 A1 x:U x:A U2 A2")
    asked = log[4].timestamp - timedelta(seconds=3)
    log[4] = SessionEvent("q", "s", asked, log[4].message)
    compaction = drive(SlidingWindow(2)(log, BLOCKING))

    assert compaction is not None
    assert words(compaction.archived) == "U1 A1"


def test_a_summary_takes_the_place_of_what_was_said_and_of_the_one_before() -> None:
    """The model reads the old one, what is archived and how it goes on, but no branches."""
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
    asked = model.prompts[0].contents
    assert all(word in asked for word in ("A-old-notes", "U1", "A1", "U2"))
    assert not any(word in asked for word in ("Squestion", "secret", "A2", "U3"))


def test_without_an_overlap_the_model_reads_only_what_is_archived() -> None:
    """Nothing of what stays is sent."""
    model = ScriptedModel("Notes.")
    drive(RecursiveSummary(model, most=2, overlap=0)(events_of("U1 A1 U2 A2"), BLOCKING))

    assert "U2" not in model.prompts[0].contents
    assert "continuation" not in model.prompts[0].contents


def test_an_empty_summary_changes_nothing() -> None:
    """And when there is nothing to archive, no model is asked."""
    model = ScriptedModel("  ")
    strategy = RecursiveSummary(model, most=2, overlap=1)

    assert drive(strategy(events_of("U1 A1"), BLOCKING)) is None
    assert model.prompts == []
    assert drive(strategy(events_of("U1 A1 U2 A2"), BLOCKING)) is None
    assert len(model.prompts) == 1


@pytest.mark.parametrize("reason", ["length", "content_filter"])
def test_a_summary_that_is_not_whole_changes_nothing(reason: FinishReason) -> None:
    """Half a summary, or a refusal, stands for nothing that was said."""
    model = ScriptedModel(ChatResponse.of("The user is called A", reason))
    strategy = RecursiveSummary(model, most=2, overlap=1)

    assert drive(strategy(events_of("U1 A1 U2 A2"), BLOCKING)) is None


def test_what_is_too_long_for_the_model_is_summarised_bit_by_bit() -> None:
    """A log that has outgrown the summariser would stay as it is for good otherwise."""

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


def test_a_turn_that_is_too_long_for_the_model_is_not_archived() -> None:
    """Half a turn is no conversation."""
    model = ScriptedModel(*[ContextLengthExceededError("too long")] * 9)
    strategy = RecursiveSummary(model, most=2, overlap=1)

    with pytest.raises(ContextLengthExceededError):
        drive(strategy(events_of("U1 A1 U2 A2 U3 A3"), BLOCKING))
    assert len(model.prompts) == 2


# --- the service ----------------------------------------------------------------------------


def test_a_session_is_created_once_for_its_user(service: SessionService) -> None:
    """It gets an id unless it has one, and lasts for sixty days unless told otherwise."""
    session = service.create("ann")
    short = service.create("ann", session_id="s", time_to_live=timedelta(1), metadata={"a": 1})

    assert session.expires_at == START + timedelta(days=60)
    assert short == Session("s", "ann", START, START + timedelta(1), {"a": 1})
    assert service.create("ann", session_id="s") == short
    assert service.sessions_of("ann") == [session, short]
    with pytest.raises(UsageError, match="does not belong to user 'bob'"):
        service.create("bob", session_id="s")


def test_nobody_reads_an_expired_session(clock: Clock) -> None:
    """It is as if it did not exist, until it is deleted or begun anew."""
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


def test_sessions_may_last_for_ever(clock: Clock) -> None:
    """Without a time to live there is no end."""
    service = SessionService(InMemorySessionRepository(), time_to_live=None, clock=clock)

    assert service.create("ann").expires_at is None


def test_an_expired_session_is_gone(service: SessionService, clock: Clock) -> None:
    """Nobody finds it, and another user may begin one of its id."""
    service.create("ann", session_id="s", time_to_live=timedelta(1))
    service.append("s", *turn(1))
    clock.moment += timedelta(1)

    assert service.find("s") is None
    assert service.sessions_of("ann") == []
    assert service.create("bob", session_id="s").user_id == "bob"
    assert service.messages("s") == ()


def test_expired_sessions_are_deleted(service: SessionService, clock: Clock) -> None:
    """And counted; others stay."""
    for days in (1, 2, 3):
        service.create("ann", session_id=f"s{days}", time_to_live=timedelta(days))
    clock.moment += timedelta(2)

    assert service.delete_expired() == 2
    assert service.delete_expired() == 0
    assert [session.id for session in service.sessions_of("ann")] == ["s3"]
    assert service.delete("s3") is True
    assert service.delete("s3") is False


def test_a_unit_with_a_key_is_appended_once(service: SessionService) -> None:
    """Made again, it says that it was there."""
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


def test_what_is_archived_can_still_be_found(service: SessionService) -> None:
    """The model is no longer shown it; the log has it."""
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


def test_a_log_is_compacted_only_when_it_is_time(service: SessionService) -> None:
    """And only if the strategy archives something."""

    async def nothing(_events: Any, _runtime: Any) -> Compaction | None:
        return Compaction(())

    service.create("ann", session_id="s")
    service.append("s", *turn(1))

    assert service.compact("s", TurnCountTrigger(1), TurnWindow(1)) is None
    assert service.compact("s", lambda _: True, TurnWindow(1)) is None
    assert service.compact("s", lambda _: True, nothing) is None


def test_a_compaction_that_comes_too_late_changes_nothing(service: SessionService) -> None:
    """What was said meanwhile is neither archived nor lost."""
    service.create("ann", session_id="s")
    service.append("s", *turn(1), *turn(2))

    async def slow(events: Sequence[SessionEvent], runtime: Any) -> Compaction | None:
        await service.sessions.append("s", turn(3), runtime)
        return Compaction(tuple(events[:2]))

    assert service.compact("s", lambda _: True, slow) is None
    assert service.messages("s") == (*turn(1), *turn(2), *turn(3))


async def test_the_service_on_a_loop(service: SessionService, clock: Clock) -> None:
    """Every operation has its asynchronous twin."""
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


def test_sessions_as_a_chat_memory(service: SessionService) -> None:
    """A turn creates its session, belongs to the default user, and can be forgotten."""
    memory = SessionChatMemory(service)
    memory.add("s", turn(1))
    memory.add("s", [])

    assert memory.get("s") == list(turn(1))
    assert [session.id for session in service.sessions_of("default-user")] == ["s"]
    memory.clear("s")
    assert memory.get("s") == []


def test_a_turn_with_a_key_is_remembered_once(service: SessionService) -> None:
    """Repeating a job repeats no turn, not even when it came out longer."""
    memory = SessionChatMemory(service)
    for rounds in (1, 3):
        memory.add("s", turn(1, rounds), key="job")

    assert memory.get("s") == list(turn(1))


def test_a_session_of_another_user_is_refused(service: SessionService) -> None:
    """When the memory knows whose it has to be."""
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


def test_agents_see_what_is_above_them(service: SessionService) -> None:
    """Siblings and those below are hidden."""
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


def test_the_log_is_compacted_after_a_turn(service: SessionService) -> None:
    """The model is then shown less; what it is shown is always a conversation."""
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


def test_a_compaction_that_fails_costs_no_turn(service: SessionService) -> None:
    """It is logged, and tried again after the next turn."""
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


def test_a_filter_leaves_no_half_turns(service: SessionService) -> None:
    """A turn that it tears apart is not shown."""
    memory = SessionChatMemory(service, event_filter=EventFilter(last=5))
    for number in range(3):
        memory.add("s", turn(number, 2))

    assert memory.get("s") == list(turn(2, 2))
    answers = memory.narrowed(None, EventFilter(roles={"user"}))
    assert answers.get("s") == []


def test_a_filter_leaves_whole_turns_as_they_are(service: SessionService, clock: Clock) -> None:
    """A question of several messages is one, and what the system says later tears nothing apart."""
    memory = SessionChatMemory(service, event_filter=EventFilter(last=20))
    question = [UserMessage("Here is the text:"), UserMessage("Sum it up.")]
    said = [
        [SystemMessage("Be brief."), *question, AssistantMessage("It is long.")],
        [SystemMessage("Be kind."), UserMessage("Thanks."), AssistantMessage("Welcome.")],
    ]
    for messages in said:
        memory.add("s", messages)
        clock.moment += timedelta(seconds=1)

    assert memory.get("s") == [*said[0], *said[1]]


def test_a_question_without_its_answer_does_not_join_the_next(
    service: SessionService, clock: Clock
) -> None:
    """It is half a turn, where the filter leaves out what was answered."""
    memory = SessionChatMemory(service, event_filter=EventFilter(keyword="cat"))
    memory.add("s", [UserMessage("A cat?"), AssistantMessage("No.")])
    clock.moment += timedelta(seconds=1)
    memory.add("s", [UserMessage("Which cat?"), AssistantMessage("That cat.")])

    assert memory.get("s") == [UserMessage("Which cat?"), AssistantMessage("That cat.")]


def test_a_key_may_be_used_in_several_branches(service: SessionService) -> None:
    """The agents that work on a job name their turns after it, and so does the one above them."""
    memories = [SessionChatMemory(service, branch=branch) for branch in ("a.b", "a", "b", None)]
    for _ in range(2):
        for number, memory in enumerate(memories):
            memory.add("s", turn(number), key="job")

    said = [event.message for event in service.events("s")]
    assert said == [message for number in range(4) for message in turn(number)]


@pytest.mark.parametrize(
    "options", [{"trigger": TurnCountTrigger(1)}, {"strategy": TurnWindow(1)}, {"branch": "a."}]
)
def test_memories_that_cannot_be(service: SessionService, options: dict[str, Any]) -> None:
    """Half a compaction does nothing."""
    with pytest.raises(UsageError):
        SessionChatMemory(service, **options)


def test_only_messages_are_appended(service: SessionService) -> None:
    """Only messages go into a log."""
    service.create("ann", session_id="s")
    text: Any = "hello"

    with pytest.raises(TypeError, match="expected messages"):
        service.append("s", text)
    assert service.events("s") == ()
