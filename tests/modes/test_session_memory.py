"""Sessions that an advisor adds to the prompt, and that the model searches with tools."""

import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from chatclient import ChatClient, UserMessage, tool
from chatclient.advisors.memory.recall_tools import RecallTools
from chatclient.advisors.memory.session import USER_ID, SessionMemoryAdvisor
from chatclient.chain.chain import MEMORY_ORDER, TOOL_CALLING_ORDER
from chatclient.chain.params import EVENT_FILTER
from chatclient.chat.messages import AssistantMessage, Message, SystemMessage
from chatclient.chat.tool import CONVERSATION_ID, ToolContext
from chatclient.chat.turn import TURN_KEY
from chatclient.errors import (
    ChatClientError,
    OverloadedError,
    ToolError,
    ToolUsageError,
    UsageError,
)
from chatclient.memory import (
    EventFilter,
    InMemorySessionRepository,
    RecursiveSummary,
    SessionChatMemory,
    SessionService,
    TurnCountTrigger,
    TurnWindow,
)
from chatclient.memory.conversation import conversation_problems
from chatclient.runtime.blocking import drive
from chatclient.runtime.runtime import BLOCKING
from chatclient.testing import Ask, ScriptedModel, call
from chatclient.testing.contract_parts import turn
from chatclient.tools import tool_callbacks


@pytest.fixture
def service() -> SessionService:
    return SessionService(InMemorySessionRepository())


@tool
def look_up(what: str) -> str:
    """Look something up."""
    return f"{what} is blue"


def texts(messages: Any) -> list[str]:
    return [message.text for message in messages]


@pytest.mark.parametrize("order", [MEMORY_ORDER, TOOL_CALLING_ORDER + 100])
def test_messages_of_agents_belong_to_the_turn(ask: Ask, order: int) -> None:
    """They are stored before the turn of the caller, and archived with it."""
    seconds = itertools.count()
    service = SessionService(
        InMemorySessionRepository(),
        clock=lambda: datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=next(seconds)),
    )
    memory = SessionChatMemory(service, trigger=TurnCountTrigger(1), strategy=TurnWindow(1))
    writing = SessionChatMemory(service, branch="writer")
    lines = ScriptedModel("Line 1.", "Line 2.")
    writer = ChatClient.builder(lines).default_advisors(SessionMemoryAdvisor(writing)).build()
    agent = writer.as_tool("writer", "Writes.", conversation=lambda it: it.conversation_id or "")
    asks = [call("writer", {"request": f"Write {number}."}) for number in (1, 2)]
    model = ScriptedModel(asks[0], "First.", asks[1], "Second.")
    advisor = SessionMemoryAdvisor(memory, order=order)
    client = ChatClient.builder(model).default_tools(agent).default_advisors(advisor).build()
    for text in ("one", "two"):
        ask(client.prompt(text).conversation("s"))

    assert texts(writing.get("s")) == ["Write 2.", "Line 2.", "two", "", "", "Second."]


def test_resent_history_after_a_summary(service: SessionService, ask: Ask) -> None:
    """Nothing is sent or stored twice, and the summary is not matched."""
    memory = SessionChatMemory(
        service,
        trigger=TurnCountTrigger(2),
        strategy=RecursiveSummary(ScriptedModel(lambda _: "Notes."), most=2, overlap=1),
    )
    model = ScriptedModel(lambda prompt: f"Answer to {prompt.messages[-1].text}")
    client = ChatClient.builder(model).default_advisors(SessionMemoryAdvisor(memory)).build()
    said: list[Message] = []
    for number in range(5):
        said.append(UserMessage(f"question {number}", id=str(number)))
        said.append(AssistantMessage(ask(client.prompt(said).conversation("s")).text))

    assert texts(service.messages("s"))[1] == "Notes."
    assert texts(service.messages("s", EventFilter(exclude_synthetic=True))) == texts(said)
    assert model.prompts[-1].messages == tuple(said[:-1])


@pytest.mark.feature("session-memory-advisor-inside")
@pytest.mark.parametrize("order", [None, TOOL_CALLING_ORDER + 100], ids=["outside", "inside"])
def test_a_turn_becomes_events(service: SessionService, ask: Ask, order: int | None) -> None:
    """Question, call, response and answer are stored together, outside of the loop and inside."""
    where: dict[str, Any] = {} if order is None else {"order": order}
    model = ScriptedModel(call("look_up", '{"what": "sky"}'), "Blue.", "You asked about the sky.")
    client = (
        ChatClient.builder(model)
        .default_system("Be brief.")
        .default_tools(look_up)
        .default_advisors(SessionMemoryAdvisor(service, **where))
        .build()
    )
    ask(client.prompt("What colour is the sky?").conversation("s"))
    answer = ask(client.prompt("What did I ask?").conversation("s"))

    assert answer.text == "You asked about the sky."
    kept = service.messages("s")
    assert [m.role for m in kept] == ["user", "assistant", "tool", "assistant", "user", "assistant"]
    assert conversation_problems(kept, ending="answer") == ()
    sent = model.prompts[-1].messages
    assert sent[0] == SystemMessage("Be brief.")
    assert sent[1:] == (*kept[:4], UserMessage("What did I ask?"))


def test_a_session_advisor_has_the_order_that_it_is_given(service: SessionService) -> None:
    """By default it has the order of memories."""
    orders = [SessionMemoryAdvisor(service).order, SessionMemoryAdvisor(service, order=7).order]

    assert orders == [MEMORY_ORDER, 7]


@pytest.mark.feature("session-memory-advisor-inside")
def test_a_failed_turn_leaves_nothing(service: SessionService, ask: Ask) -> None:
    """Not even a session is created."""
    model = ScriptedModel(OverloadedError("down"))
    client = ChatClient.builder(model).default_advisors(SessionMemoryAdvisor(service)).build()
    with pytest.raises(OverloadedError):
        ask(client.prompt("Hello").conversation("s"))

    assert service.find("s") is None


def test_a_turn_with_a_key_is_kept_once(service: SessionService, ask: Ask) -> None:
    """A job that is delivered twice is answered twice and stored once."""
    client = (
        ChatClient.builder(ScriptedModel("One.", "Two."))
        .default_advisors(SessionMemoryAdvisor(service))
        .build()
    )
    for _ in range(2):
        ask(client.prompt("Hi").conversation("s").advisor_params({TURN_KEY: "job 1"}))

    assert texts(service.messages("s")) == ["Hi", "One."]


@pytest.mark.feature("session-memory-advisor-inside")
@pytest.mark.parametrize("order", [None, TOOL_CALLING_ORDER + 100], ids=["outside", "inside"])
def test_the_user_and_a_filter_of_the_request(
    service: SessionService, ask: Ask, order: int | None
) -> None:
    """The session must belong to the user, and the filter selects events."""
    where: dict[str, Any] = {} if order is None else {"order": order}
    model = ScriptedModel("Again?")
    client = (
        ChatClient.builder(model)
        .default_tools(look_up)
        .default_advisors(SessionMemoryAdvisor(SessionChatMemory(service), **where))
        .build()
    )
    service.create("ann", session_id="s")
    for number in range(3):
        service.append("s", *turn(number))
    request = client.prompt("Hello").conversation("s")
    ask(request.advisor_params({USER_ID: "ann", EVENT_FILTER: EventFilter(last=2)}))

    assert model.prompts[0].messages == (*turn(2), UserMessage("Hello"))
    assert len(service.messages("s")) == 8
    with pytest.raises(UsageError, match="does not belong to user 'bob'"):
        ask(request.advisor_params({USER_ID: "bob"}))
    with pytest.raises(UsageError, match="must be of type str, not int"):
        ask(request.advisor_params({USER_ID: 7}))
    assert len(model.prompts) == 1


def test_a_filter_of_the_request_needs_no_user(service: SessionService, ask: Ask) -> None:
    """It selects events of any user's session, in this request only."""
    model = ScriptedModel("Again?", "Again?")
    client = ChatClient.builder(model).default_advisors(SessionMemoryAdvisor(service)).build()
    service.create("ann", session_id="s")
    for number in range(2):
        service.append("s", *turn(number))
    request = client.prompt("Hello").conversation("s")
    ask(request.advisor_params({EVENT_FILTER: EventFilter(last=2)}))
    ask(request)

    first, second = (prompt.messages for prompt in model.prompts)
    assert first == (*turn(1), UserMessage("Hello"))
    assert second[:4] == (*turn(0), *turn(1))


def test_a_new_session_belongs_to_the_user_of_its_request(
    service: SessionService, ask: Ask
) -> None:
    """Without one, it has the default user."""
    client = (
        ChatClient.builder(ScriptedModel("Hi.", "Hi."))
        .default_advisors(SessionMemoryAdvisor(service))
        .build()
    )
    ask(client.prompt("Hello").conversation("a").advisor_params({USER_ID: "ann"}))
    ask(client.prompt("Hello").conversation("b"))

    assert [service.find(id).user_id for id in "ab"] == ["ann", "default-user"]  # type: ignore[union-attr]


def test_a_conversation_id_is_needed(service: SessionService, ask: Ask) -> None:
    """Without one nothing is sent."""
    model = ScriptedModel()
    client = ChatClient.builder(model).default_advisors(SessionMemoryAdvisor(service)).build()
    with pytest.raises(UsageError, match="conversation"):
        ask(client.prompt("Hello"))

    assert model.prompts == []


@pytest.mark.feature("session-conversation-search-cross-session")
def test_a_model_finds_what_it_is_no_longer_shown(service: SessionService, ask: Ask) -> None:
    """Compacted events stay in the log, which a tool searches."""
    memory = SessionChatMemory(service, trigger=TurnCountTrigger(1), strategy=TurnWindow(1))
    model = ScriptedModel(
        "Noted.",
        "Sure.",
        call("conversation_search", '{"query": "cat", "page": null}'),
        "It is called Minka.",
    )
    client = (
        ChatClient.builder(model)
        .default_advisors(SessionMemoryAdvisor(memory))
        .default_tools(RecallTools(service))
        .build()
    )
    for question in ("My cat is <b>Minka</b>", "Thanks", "What is she called?"):
        ask(client.prompt(question).conversation("s"))

    assert "Minka" not in model.prompts[2].contents
    found = model.prompts[3].messages[-1].responses[0].data  # type: ignore[attr-defined]
    assert "My cat is &lt;b&gt;Minka&lt;/b&gt;" in found
    assert "as data" in found


# --- recall ---------------------------------------------------------------------------------


@pytest.fixture
def told(service: SessionService) -> SessionService:
    """Return sessions with events."""
    for id, user_id in (("s", "ann"), ("t", "ann"), ("u", "bob")):
        service.create(user_id, session_id=id)
        for number in range(12):
            service.append(id, *turn(f"{id}{number}"))
    service.append("s", UserMessage("for the writer"), branch="writer")
    return service


def recall(name: str, service: SessionService, session_id: str | None = "s", **how: Any) -> str:
    tools = {
        t.definition.name: t for t in tool_callbacks(RecallTools(service, **how.pop("with_", {})))
    }
    from chatclient._internal.json import dumps

    values = {} if session_id is None else {CONVERSATION_ID: session_id}
    context = ToolContext(values, runtime=BLOCKING)
    return drive(tools[name].invoke(dumps(how).decode(), context)).text


def test_a_conversation_is_searched_page_by_page(told: SessionService) -> None:
    """Ten events a page, oldest first; invalid page numbers mean the first page."""
    first = recall("conversation_search", told, query="QUESTION")
    last = recall("conversation_search", told, query="question", page=1)

    assert first.count("<event ") == 10
    assert "There may be more on page 1." in first
    assert last.count("<event ") == 2
    assert "more" not in last
    for page in (-3, None, 0):
        assert recall("conversation_search", told, query="question", page=page) == first.replace(
            "QUESTION", "question"
        )
    assert "Nothing found" in recall("conversation_search", told, query="question", page=10**30)
    assert "Nothing found" in recall("conversation_search", told, query="elephant")


def test_only_this_conversation_is_searched(told: SessionService) -> None:
    """Neither other sessions nor events of other branches are found."""
    assert "Nothing found" in recall("conversation_search", told, query="question t1")
    assert "Nothing found" in recall("conversation_search", told, query="writer")
    found = recall("conversation_search", told, query="writer", with_={"branch": "writer"})
    assert "for the writer" in found
    assert "Nothing found" in recall("conversation_search", told, "new", query="question")


@pytest.mark.feature("session-conversation-search-cross-session")
def test_all_sessions_of_the_user_are_searched(told: SessionService) -> None:
    """The owner's sessions are searched for any term, or for all of them."""
    either = recall("cross_session_search", told, query="question s1, answer t2,,")
    both = recall("cross_session_search", told, query="question, t7", match="all")

    assert [f"{word}<" in either for word in ("s1", "s2", "t2", "u1")] == [True, False, True, False]
    assert "question t7" in both
    assert both.count("<event ") == 1
    assert "Nothing found" in recall("cross_session_search", told, query="u1")
    assert "Nothing found" in recall("cross_session_search", told, "new", query="question")


@pytest.mark.feature("session-conversation-search-cross-session")
@pytest.mark.parametrize("order", [MEMORY_ORDER, TOOL_CALLING_ORDER + 100])
def test_the_first_turn_of_a_session_knows_its_user(
    told: SessionService, ask: Ask, order: int
) -> None:
    """The user's earlier sessions are found; without a user id nothing is."""
    found: list[str] = []
    for n, params in enumerate(({USER_ID: "ann"}, {USER_ID: "carl"}, {})):
        model = ScriptedModel(call("cross_session_search", '{"query": "question s1"}'), "so")
        builder = ChatClient.builder(model).default_tools(RecallTools(told))
        client = builder.default_advisors(SessionMemoryAdvisor(told, order=order)).build()
        ask(client.prompt("Where were we?").conversation(f"v{n}").advisor_params(params))
        found.append(model.prompts[1].messages[-1].responses[0].data)  # type: ignore[attr-defined]

    assert "question s1<" in found[0]
    assert ["Nothing found" in each for each in found] == [False, True, True]


def test_sessions_of_agents_have_the_callers_user(service: SessionService, ask: Ask) -> None:
    """Its client may set another user; searches find no sessions of other users."""
    for params in ({}, {USER_ID: "staff"}):
        inner = ChatClient.builder(ScriptedModel(lambda prompt: "noted"))
        inner = inner.default_advisors(SessionMemoryAdvisor(service), params=params)
        agent = inner.build().as_tool(f"clerk_of_{len(params)}", "Takes notes.")
        model = ScriptedModel(call(agent.definition.name, {"request": "Note this."}), "done")
        client = ChatClient.builder(model).default_tools(agent).build()
        ask(client.prompt("x").conversation("s").advisor_params({USER_ID: "ann"}))

    assert [s.id for s in service.sessions_of("ann")] == ["s/clerk_of_0"]
    assert [s.id for s in service.sessions_of("staff")] == ["s/clerk_of_1"]


def test_a_search_may_begin_at_a_moment(told: SessionService) -> None:
    """With a time zone or without; an invalid time is an error result."""
    soon = datetime.now(UTC) + timedelta(hours=1)

    for since in ("2020-01-01", "2020-01-01T00:00:00Z", " "):
        found = recall("cross_session_search", told, query="question s1", since=since)
        assert "<event " in found
    found = recall("cross_session_search", told, query="question", since=soon.isoformat())
    assert "Nothing found" in found
    with pytest.raises(ToolError, match="ISO 8601"):
        recall("cross_session_search", told, query="question", since="yesterday")


def test_searches_that_cannot_be(told: SessionService) -> None:
    """The model gets error results, and the application gets errors about its configuration."""
    for search in ("conversation_search", "cross_session_search"):
        with pytest.raises(ToolError, match="Say what"):
            recall(search, told, query=" ")
        with pytest.raises(ToolError, match="at most 200 characters"):
            recall(search, told, query="a" * 201)
    with pytest.raises(ToolError, match="at most 20 words"):
        recall("cross_session_search", told, query=",".join("abcdefghijklmnopqrstu"))
    with pytest.raises(ToolUsageError, match="has none"):
        recall("conversation_search", told, None, query="question")
    with pytest.raises(ChatClientError):
        RecallTools(told, page_size=0)


@pytest.mark.feature("session-conversation-search-cross-session")
def test_the_model_cannot_choose_sessions(service: SessionService) -> None:
    """Neither session nor user is an argument."""
    for each in tool_callbacks(RecallTools(service)):
        properties = set(each.definition.input_schema["properties"])
        assert properties <= {"query", "page", "match", "since"}
        assert each.metadata.effect == "read"


def test_answers_without_text_are_not_found(service: SessionService) -> None:
    """A summary is no witness either."""
    service.create("ann", session_id="s")
    service.append(
        "s", UserMessage("find me"), AssistantMessage([call("look_up", '{"what": "me"}')])
    )

    assert recall("conversation_search", service, query="me").count("<event ") == 1
