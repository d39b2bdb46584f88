"""Logs of sessions: payloads, versions, earlier views, complete turns and indexed metadata."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from chatclient.chat.messages import AssistantMessage, Message, SystemMessage, UserMessage
from chatclient.errors import ChatMemoryError, UsageError, VersionConflictError, WrongTypeError
from chatclient.memory import (
    AGENT_NAME,
    COMPACTION,
    EVERYTHING,
    Compaction,
    EventFilter,
    EventPayload,
    InMemorySessionRepository,
    RecursiveSummary,
    SessionChatMemory,
    SessionEvent,
    SessionLog,
    SessionService,
    TurnCountTrigger,
    TurnWindow,
)
from chatclient.testing import ScriptedModel
from chatclient.testing.contract_parts import turn

START = datetime(2026, 1, 1, tzinfo=UTC)
ORDER = EventPayload("shop.ORDER", {"number": 7, "on": "2026-01-02", "lines": ["tea", {"n": 2}]})


@dataclass
class Order:
    """What the application stores."""

    number: int
    on: date


@pytest.fixture
def service() -> SessionService:
    service = SessionService(InMemorySessionRepository(), clock=lambda: START)
    service.create("ann", session_id="s")
    return service


def texts(log: SessionLog | Sequence[SessionEvent]) -> list[str]:
    events = log.events if isinstance(log, SessionLog) else log
    return [event.text or event.type for event in events]


# --- payloads -------------------------------------------------------------------------------


@pytest.mark.feature("session-event-types")
def test_payload_and_messages_are_one_unit(service: SessionService) -> None:
    """Payloads are appended like messages, and read only if their type is asked for."""
    messages = turn(1)
    events = service.append("s", ORDER, messages, key="k", metadata={"by": "shop"})

    assert [event.type for event in events] == ["shop.ORDER", "message", "message"]
    assert [event.id for event in events] == ["k:0", "k:1", "k:2"]
    assert service.append("s", ORDER, key="k") == ()
    assert service.messages("s") == messages
    assert service.events("s", EventFilter(types="shop.ORDER")) == events[:1]
    assert service.events("s", EVERYTHING) == events
    assert events[0].payload == ORDER
    assert events[0].payload.read(Order) == Order(7, date(2026, 1, 2))
    assert SessionChatMemory(service).get("s") == list(messages)


@pytest.mark.feature("session-event-types")
def test_content_of_another_type(service: SessionService) -> None:
    """Asking for what an event does not have raises and names its type."""
    order, question, _ = service.append("s", ORDER, turn(1))

    with pytest.raises(UsageError, match=r"'shop\.ORDER' has a payload, no message"):
        _ = order.message
    with pytest.raises(UsageError, match="'message' has no payload"):
        _ = question.payload
    with pytest.raises(UsageError, match=r"'shop\.ORDER' is no Order"):
        EventPayload("shop.ORDER", {"number": "seven"}).read(Order)
    with pytest.raises(UsageError, match="has a payload"):
        service.messages("s", EVERYTHING)


@pytest.mark.parametrize("name", ["", "message", "1a", "shop order", "a" * 65, "shop-ORDER", "é"])
def test_invalid_types(name: str) -> None:
    """The error shows a valid name."""
    with pytest.raises(UsageError, match=r"such as 'shop\.ORDER'"):
        EventPayload(name)


def test_payload_is_plain_json() -> None:
    """Data has the same form in every store, and cannot be changed."""
    payload = EventPayload("a" * 64, {"on": date(2026, 1, 2), "pair": (1, 2), "nested": {"a": 1}})
    nested: Any = payload.data["nested"]

    assert payload.data == {"on": "2026-01-02", "pair": [1, 2], "nested": {"a": 1}}
    with pytest.raises(TypeError, match="immutable"):
        nested["a"] = 2
    with pytest.raises(UsageError, match="no JSON form"):
        EventPayload("a", {"a": object()})
    data: Any = ["a"]
    with pytest.raises(WrongTypeError, match="an event's data must be a mapping"):
        EventPayload("a", data)


def test_compactions_are_not_appended_by_hand(service: SessionService) -> None:
    """A wrong one would hide messages."""
    with pytest.raises(UsageError, match="only compact"):
        service.append("s", EventPayload(COMPACTION, {"archived": []}))
    assert service.events("s", EVERYTHING) == ()


@pytest.mark.feature("session-event-types")
def test_payloads_are_not_compacted(service: SessionService) -> None:
    """Triggers and strategies see messages only, and payloads stay in the view of all types."""
    for number in range(3):
        service.append("s", turn(number), ORDER)
    done = service.compact("s", TurnCountTrigger(2), TurnWindow(1))

    assert done is not None
    assert len(done.archived) == 4
    active = service.events("s", EventFilter(types="*", exclude_archived=True))
    assert texts(active) == [
        *["shop.ORDER"] * 2,
        "question 2",
        "answer 2",
        "shop.ORDER",
        COMPACTION,
    ]


# --- versions -------------------------------------------------------------------------------


@pytest.mark.feature("session-version-checked-append")
async def test_append_to_a_version(service: SessionService) -> None:
    """Nothing is appended to a log that has changed; a repeated key is no conflict."""
    log = service.read("s")
    service.append("s", turn(1), expected_version=log.version, key="k")

    for append in (service.append, service.aappend):
        with pytest.raises(VersionConflictError, match="version 2, not 0") as caught:
            await append("s", turn(2), expected_version=log.version)  # type: ignore[misc]
    assert (caught.value.expected, caught.value.actual) == (0, 2)
    assert isinstance(caught.value, ChatMemoryError)
    assert service.append("s", turn(1), expected_version=0, key="k") == ()
    log = await service.aread("s")
    assert await service.aappend("s", turn(2), expected_version=log.version)
    assert service.messages("s") == (*turn(1), *turn(2))
    assert service.read("nowhere") == SessionLog()


# --- earlier views --------------------------------------------------------------------------


@pytest.mark.feature("session-compaction-boundary")
async def test_earlier_views(service: SessionService) -> None:
    """What the model saw at any version is rebuilt, also summaries that were replaced."""
    summaries = RecursiveSummary(
        ScriptedModel("One.", "Two.", "Three.", "Four."), most=2, overlap=0
    )
    views = []
    for number in range(5):
        service.append("s", turn(number))
        service.compact("s", TurnCountTrigger(1), summaries)
        version = service.read("s").version
        views.append((version, service.messages("s"), service.read("s", EVERYTHING).events))

    assert "Two." in texts(service.read("s"))
    assert len({view for _, view, _ in views}) == 5
    for version, view, log in views:
        assert service.messages("s", version=version) == view
        assert service.read("s", EVERYTHING, version=version) == SessionLog(log, version)
    assert await service.amessages("s", version=2) == turn(0)
    assert service.messages("s", version=0) == ()
    last = EventFilter(exclude_archived=True, last=1, complete_turns=True)
    assert service.messages("s", last, version=2) == turn(0)
    assert service.read("s", version=10**30).version == service.read("s").version
    with pytest.raises(UsageError, match="version must be at least 0"):
        service.read("s", version=-1)


@pytest.mark.feature("session-compaction-boundary")
def test_compaction_is_an_event(service: SessionService) -> None:
    """It names the strategy and what it archives, and events before it are not changed."""
    service.append("s", turn(1), turn(2))
    before = service.events("s")
    model = ScriptedModel("Notes.")
    service.compact("s", TurnCountTrigger(1), RecursiveSummary(model, most=2, overlap=0))
    boundary, *summary = service.events("s", EVERYTHING)[4:]

    assert boundary.type == COMPACTION
    assert boundary.payload.data == {
        "archived": [event.id for event in before[:2]],
        "strategy": "RecursiveSummary",
    }
    assert [event.synthetic for event in summary] == [True, True]
    assert service.events("s")[2:4] == before[2:]

    async def all_but_last(events: Sequence[SessionEvent], _runtime: Any) -> Compaction:
        return Compaction(tuple(events[:-1]))

    service.compact("s", TurnCountTrigger(1), TurnWindow(9))
    service.compact("s", lambda _: True, all_but_last)
    newest = service.events("s", EventFilter(types=COMPACTION, last=1))[0]
    assert newest.payload.data["strategy"] == "all_but_last"
    assert texts(service.events("s", EventFilter(exclude_archived=True))) == ["answer 2"]


def test_strategy_archives_other_events(service: SessionService) -> None:
    """A strategy that archives what is not active fails, and changes nothing."""
    service.append("s", turn(1))
    strange = SessionEvent.of("s", UserMessage("hi"), id="x")

    async def strategy(_events: Any, _runtime: Any) -> Compaction:
        return Compaction((strange,))

    with pytest.raises(UsageError, match=r"strategy archives events that are not active: \['x'\]"):
        service.compact("s", lambda _: True, strategy)
    assert len(service.events("s", EVERYTHING)) == 2


# --- whole turns ----------------------------------------------------------------------------


@pytest.mark.feature("session-last-widened")
@pytest.mark.parametrize(
    ("filter", "expected"),
    [
        ({"last": 1}, "T"),
        ({"last": 2}, "q3 a3 T"),
        ({"last": 4}, "q2 w2 a2 q3 a3 T"),
        ({"last": 6}, "q2 w2 a2 q3 a3 T"),
        ({"last": 8}, "q1 r1 a1 q2 w2 a2 q3 a3 T"),
        ({"last": 9}, "q1 r1 a1 q2 w2 a2 q3 a3 T"),
        ({"last": 99}, "S q1 r1 a1 q2 w2 a2 q3 a3 T"),
        ({"last": 4, "branch": ""}, "q2 a2 q3 a3 T"),
        ({"keyword": "w2"}, "q2 w2 a2"),
        ({"keyword": "w2", "branch": ""}, ""),
        ({"keyword": "a", "last": 1}, "q3 a3"),
        ({"roles": "assistant", "page": 1, "page_size": 2}, "q2 w2 a2 q3 a3"),
        ({"roles": "system"}, "S T"),
        ({"since": START + timedelta(seconds=4)}, "q2 w2 a2 q3 a3 T"),
        ({"until": START + timedelta(seconds=1)}, "S q1 r1 a1"),
        ({"last": 2, "types": "*"}, "T shop.ORDER"),
        ({"types": "shop.ORDER", "last": 1}, "shop.ORDER"),
    ],
)
def test_complete_turns(filter: dict[str, Any], expected: str) -> None:
    """Each turn with a selected event is complete; events outside of turns are not added."""
    moments = iter(START + timedelta(seconds=at) for at in range(99))
    service = SessionService(InMemorySessionRepository(), clock=lambda: START)
    service.create("ann", session_id="s")
    service.sessions.clock = lambda: next(moments)
    service.sessions.time_to_live = None
    units: list[list[Message | EventPayload]] = [
        [SystemMessage("S"), UserMessage("q1"), UserMessage("r1"), AssistantMessage("a1")],
        [UserMessage("q2")],
        [AssistantMessage("w2")],
        [AssistantMessage("a2")],
        [UserMessage("q3"), AssistantMessage("a3")],
        [SystemMessage("T"), ORDER],
    ]
    for number, unit in enumerate(units):
        service.append("s", *unit, branch="writer" if number == 2 else None)

    found = service.events("s", EventFilter(**filter, complete_turns=True))
    assert " ".join(texts(found)) == expected


def test_search_finds_single_events(service: SessionService) -> None:
    """Complete turns of several sessions cannot be searched."""
    with pytest.raises(UsageError, match="a search finds single events"):
        service.search("ann", EventFilter(last=1, complete_turns=True))


# --- metadata -------------------------------------------------------------------------------


@pytest.mark.feature("session-find-by-metadata")
async def test_sessions_by_metadata(service: SessionService) -> None:
    """Texts of the metadata find unexpired sessions, also those that a memory created."""
    memory = SessionChatMemory(service, metadata={AGENT_NAME: "support"})
    memory.add("first", turn(1))
    service.create("bob", session_id="gone", time_to_live=1, metadata={AGENT_NAME: "support"})
    service.create("bob", session_id="second", metadata={AGENT_NAME: "support"})
    service.sessions.clock = lambda: START + timedelta(minutes=1)

    found = service.find_by_metadata(AGENT_NAME, "support")
    assert [session.id for session in found] == ["first", "second"]
    assert await service.afind_by_metadata(AGENT_NAME, "support") == found
    assert service.find_by_metadata(AGENT_NAME, "sales") == []
    number: Any = 7
    with pytest.raises(WrongTypeError, match="only texts are indexed"):
        service.find_by_metadata("number", number)
