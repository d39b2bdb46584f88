"""Recorded turns, replayed with clients of today."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from chatclient import (
    ChatClient,
    ChatClientBuilder,
    ChatClientRequest,
    ChatClientResponse,
    Next,
    Prompt,
    UserMessage,
    tool,
)
from chatclient.advisors import (
    InputGuardrailAdvisor,
    MessageChatMemoryAdvisor,
    ask_model,
)
from chatclient.chat.recorder import TurnStep
from chatclient.decisions import ChatDecisionModel, decision_input_guardrail
from chatclient.errors import (
    ChatMemoryUnavailableError,
    GuardrailError,
    OverloadedError,
    UsageError,
)
from chatclient.memory import InMemoryChatMemoryRepository, MessageWindowChatMemory
from chatclient.observability import Trail
from chatclient.testing import (
    Answer,
    AnswerFunction,
    Ask,
    ReplayError,
    ScriptedModel,
    TurnRecording,
    TurnReplay,
    areplay_turn,
    call,
    replay_turn,
)
from chatclient.tools import ToolApproval, ToolCallingManager

Replay: TypeAlias = Callable[..., TurnReplay]


@pytest.fixture(params=["blocking", "async"])
def replay(request: pytest.FixtureRequest) -> Replay:
    """Replay a turn, blocking and async."""
    if request.param == "blocking":
        return replay_turn
    return lambda *args, **options: asyncio.run(areplay_turn(*args, **options))


SYSTEM = "You book tables."
RAN: list[str] = []


@tool
def search(query: str) -> str:
    """Search for tables."""
    RAN.append(query)
    if query == "nowhere":
        msg = "no such city"
        raise ValueError(msg)
    return f"two tables in {query}"


@pytest.fixture(autouse=True)
def ran() -> list[str]:
    """What the tool was called with."""
    RAN.clear()
    return RAN


def app(*answers: Answer | AnswerFunction, system: str = SYSTEM) -> ChatClient:
    builder = ChatClient.builder(ScriptedModel(*answers)).default_system(system)
    return builder.default_tools(search).build()


ROME = call("search", {"query": "Rome"})
OSTIA = call("search", {"query": "Ostia"})
NAPLES = call("search", {"query": "Naples"})


def recorded(client: ChatClient, text: str = "A table!") -> TurnRecording:
    return TurnRecording.of(client.prompt(text).call().trail())


def test_same_prompts(ask: Ask, replay: Replay, tmp_path: Path, ran: list[str]) -> None:
    """A turn is replayed from its file without models and tools, with equal prompts."""
    response = ask(app([ROME, NAPLES], "Two.").prompt("A table!")).response
    assert response.trail is not None
    TurnRecording.of(response.trail).save(tmp_path / "deep" / "turn.json")
    ran.clear()

    recording = TurnRecording.load(tmp_path / "deep" / "turn.json")
    found = replay(recording, app())

    assert found.difference is None
    assert str(found) == "first difference in prompts: none\nfirst difference in answers: none"
    assert found.answer == "Two."
    assert ran == []
    assert recording == TurnRecording.of(response.trail)
    prompts = [round_.messages for round_ in found.trail.rounds]
    assert prompts == [round_.messages for round_ in response.trail.rounds]


def test_prompt_is_stored_once(tmp_path: Path) -> None:
    """The file has only what a prompt has in addition to the one before."""
    recorded(app(ROME, NAPLES, "Two.")).save(tmp_path / "turn.json")

    assert (tmp_path / "turn.json").read_text().count("You book tables.") == 1


async def shouting(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
    messages = [*request.prompt.messages[:-1], UserMessage(request.prompt.contents.upper())]
    return await call_next(request.mutate(prompt=Prompt(messages, request.prompt.options)))


@tool
def pay(amount: int) -> str:
    """Pay."""
    RAN.append("paid")
    return f"paid {amount}"


@tool(name="search")
def other_search(query: str) -> str:
    """Search for free tables."""
    return query


CHANGES: dict[str, Callable[[ChatClientBuilder], ChatClientBuilder]] = {
    "system": lambda builder: builder.default_system("You book chairs."),
    "added": lambda builder: builder.default_tools(pay),
    "removed": lambda builder: ChatClient.builder(ScriptedModel()).default_system(SYSTEM),
    "tool": lambda builder: CHANGES["removed"](builder).default_tools(other_search),
    "advisor": lambda builder: builder.default_advisors(shouting),
    "option": lambda builder: builder.default_options(temperature=0.5),
}


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ("system", """system text 1: '...:"system","content":"You book tables."}' became '..."""),
        ("added", "tool 2 was added: '[\"pay\",\"Pay.\","),
        ("removed", "tool 1 is missing: '[\"search\","),
        ("tool", "tool 1: '[\"search\",\"Search for tables.\","),
        ("advisor", "message 1 (by shouting): "),
        ("option", "option temperature: None became 0.5"),
    ],
)  # fmt: skip
def test_first_difference(replay: Replay, change: str, difference: str) -> None:
    """A changed client sends other prompts, and the first difference is named."""
    recording = recorded(app(ROME, "Two."))

    found = replay(recording, CHANGES[change](app().mutate()).build())

    assert found.prompt_difference is not None
    assert found.prompt_difference.startswith(f"model call 1: {difference}")
    assert found.difference == found.prompt_difference
    assert found.answer == "Two."
    assert found.answer_difference is None


def test_more_is_asked_than_was_recorded(replay: Replay) -> None:
    """A client that goes on where the recorded turn ended fails, and the trail is kept."""

    async def twice(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        await call_next(request)
        return await call_next(request)

    found = replay(recorded(app("Hello.")), app().mutate().default_advisors(twice).build())

    assert isinstance(found.error, ReplayError)
    assert found.prompt_difference is None
    assert (found.difference or "").startswith("this was not recorded: model 0; fork_at= lets")
    assert found.answer_difference == "the final answer: 'Hello.' became ''"
    assert len(found.trail.rounds) == 1
    assert "error: ReplayError" in str(found)


def test_less_is_asked_than_was_recorded(replay: Replay) -> None:
    """A client that ends earlier than the recorded turn is different."""
    client = app().mutate().default_options(internal_tool_execution_enabled=False).build()

    found = replay(recorded(app(ROME, "Two.")), client)

    assert found.difference == "1 model calls instead of 2"
    assert found.answer_difference == "1 answers of the model instead of 2"


@pytest.mark.parametrize(
    ("fork_at", "answers", "sent", "difference"),
    [
        (1, (NAPLES, "One."), 2, 'answer 1: \'search({"query":"Rome"})\' became '),
        (2, (NAPLES, "One."), 2, 'answer 2: \'search({"query":"Ostia"})\' became '),
        (2, (OSTIA, "Three."), 2, "answer 3: 'Three tables.' became 'Three.'"),
        (3, ("Three tables.",), 1, None),
        (2, (call("search", "{"), "No."), 2, 'answer 2: \'search({"query":"Ostia"})\' became '),
        (9, (), 0, None),
    ],
)
def test_fork(
    replay: Replay, ran: list[str], fork_at: int, answers: Any, sent: int, difference: str | None
) -> None:
    """From a model call on, models answer, and tools run that were not called before."""
    recording = recorded(app(ROME, OSTIA, "Three tables."))
    ran.clear()
    client = app(*answers)

    found = replay(recording, client, fork_at=fork_at)

    if difference is None:
        assert found.answer_difference is None
    else:
        assert (found.answer_difference or "").startswith(difference)
    assert isinstance(client.model, ScriptedModel)
    assert len(client.model.prompts) == sent
    assert ran == (["Naples"] if NAPLES in answers else [])


def test_fork_with_another_prompt(replay: Replay) -> None:
    """A request says what is different: another system text, here, and the fork answers to it."""
    client = app(lambda prompt: prompt.messages[0].text)
    recording = recorded(app(ROME, "Two."))

    found = replay(recording, client.prompt().system("Be brief."), fork_at=2)

    assert found.answer == "Be brief."
    assert found.prompt_difference is not None
    assert found.prompt_difference.startswith("model call 1: system text 1")
    assert found.answer_difference == "answer 2: 'Two.' became 'Be brief.'"


def test_memory(ask: Ask, replay: Replay) -> None:
    """The history is the recorded one, and the memory of today is neither read nor changed."""

    def chat(memory: MessageWindowChatMemory, *answers: Answer) -> ChatClient:
        advisor = MessageChatMemoryAdvisor(memory)
        return app(*answers).mutate().default_advisors(advisor).build()

    client = chat(MessageWindowChatMemory(), "Hello.", "Two.")
    request = client.prompt().conversation("c1")
    request.user("Hi!").call().content()
    response = ask(request.user("A table!")).response
    memory = MessageWindowChatMemory()

    assert response.trail is not None
    found = replay(TurnRecording.of(response.trail), chat(memory))

    assert found.difference is None
    assert found.trail.rounds[0].messages == 4
    assert memory.get("c1") == []


class Away(InMemoryChatMemoryRepository):
    """A store that cannot be reached."""

    async def load(self, *_args: Any, **_more: Any) -> Any:
        msg = "the database is away"
        raise ChatMemoryUnavailableError(msg)


def test_memory_that_failed(replay: Replay) -> None:
    """A memory that could not be read fails again."""

    def chat(memory: MessageWindowChatMemory) -> ChatClient:
        return app().mutate().default_advisors(MessageChatMemoryAdvisor(memory)).build()

    with pytest.raises(ChatMemoryUnavailableError) as caught:
        chat(MessageWindowChatMemory(Away())).prompt("Hi!").conversation("c1").call().content()
    assert caught.value.trail is not None

    found = replay(TurnRecording.of(caught.value.trail), chat(MessageWindowChatMemory()))

    assert isinstance(found.error, ChatMemoryUnavailableError)


class Storing:
    """A recorder that gives each reading of a memory from what it has stored of it."""

    name = ""

    def __init__(self) -> None:
        self.stored: list[Any] = []

    def clock(self) -> float:
        return 0.0

    def inside(self, _name: str, _call: Any = None) -> "Storing":
        return self

    async def step(self, step: TurnStep[Any], runtime: Any) -> Any:
        if step.kind != "memory":
            return await step.run(runtime)
        try:
            outcome = await step.run(runtime)
        except ChatMemoryUnavailableError as error:
            outcome = error
        self.stored.append(step.dump(outcome))
        return await step.load(self.stored[-1])

    async def store(self, work: Any, runtime: Any) -> Any:
        return await work(runtime)

    async def confirm(self) -> None: ...


@pytest.mark.parametrize("is_away", [False, True])
def test_recorder_of_memories(ask: Ask, is_away: bool) -> None:
    """The reading of a memory is a step, whose messages or error a recorder can store."""
    memory = MessageWindowChatMemory(Away() if is_away else InMemoryChatMemoryRepository())
    client = app("Hello.").mutate().default_advisors(MessageChatMemoryAdvisor(memory)).build()
    if not is_away:
        memory.add("c1", [UserMessage("Earlier")])
    recorder = Storing()
    request = client.prompt("Hi!").conversation("c1")
    settings = request.settings
    turn = replace(settings.turn, recorder=recorder)
    request = request.with_settings(replace(settings, turn=turn))

    if is_away:
        with pytest.raises(ChatMemoryUnavailableError, match="the database is away"):
            ask(request)
    else:
        assert ask(request).response.turn.conversation_id == "c1"
        assert isinstance(client.model, ScriptedModel)
        assert [m.text for m in client.model.prompts[0].messages[1:]] == ["Earlier", "Hi!"]
    assert len(recorder.stored) == 1


def test_agents_and_auxiliary_calls(replay: Replay, tmp_path: Path) -> None:
    """Agents are replayed step by step, and the questions of advisors are as well."""

    async def asking(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        await ask_model(helper, "Is it a table?", request.runtime.silent())
        return await call_next(request)

    def supervisor(agents: list[Answer], *answers: Answer) -> ChatClient:
        agent = app(*agents).as_tool("booker", description="Books tables.")
        builder = ChatClient.builder(ScriptedModel(*answers)).default_tools(agent)
        return builder.default_advisors(asking).build()

    helper = ScriptedModel("Yes.", "Yes.")
    orders = [call("booker", {"request": city}, id=city) for city in ("Rome", "Ostia")]
    client = supervisor([ROME, "Two.", OSTIA, "One."], orders, "Three.")
    recorded(client).save(tmp_path / "turn.json")

    recording = TurnRecording.load(tmp_path / "turn.json")
    found = replay(recording, supervisor([]))

    assert found.difference is None
    assert len(found.trail.inner) == 2
    assert found.trail.usage.total_tokens == 8 * 15
    assert helper.unused == 0


def test_what_a_tool_asks(replay: Replay) -> None:
    """A tool is replayed with all that it does: nobody asks its client."""
    inner = ChatClient.create(ScriptedModel("Two."))

    @tool
    def find(city: str) -> str:
        """Find tables."""
        return inner.prompt(city).call().content()

    def client(*answers: Answer) -> ChatClient:
        return ChatClient.builder(ScriptedModel(*answers)).default_tools(find).build()

    found = replay(recorded(client(call("find", {"city": "Rome"}), "Two.")), client())

    assert found.difference is None


def test_decisions(replay: Replay) -> None:
    """Decisions are replayed with what they refused."""

    def guarded(answer: str) -> ChatClient:
        judge = ChatDecisionModel(ScriptedModel(answer), logprobs=False)
        guardrail = decision_input_guardrail(judge, {"chairs": "Is it about chairs?"})
        return app("Hm.").mutate().default_advisors(InputGuardrailAdvisor(guardrail)).build()

    with pytest.raises(GuardrailError) as caught:
        guarded('{"q1": {"Yes": 0.9, "No": 0.1}}').prompt("A chair!").call().content()
    assert caught.value.trail is not None

    found = replay(TurnRecording.of(caught.value.trail), guarded("?"))

    assert isinstance(found.error, GuardrailError)
    assert found.prompt_difference is None


def test_failed_turn(replay: Replay, ran: list[str], tmp_path: Path) -> None:
    """A turn that failed fails again, without undoing or running anything."""
    undone: list[str] = []

    def undo(query: str) -> None:
        undone.append(query)

    @tool(compensation=undo)
    def reserve(query: str) -> str:
        """Reserve a table."""
        ran.append(query)
        return "reserved"

    client = app(call("reserve", {"query": "Rome"}), OverloadedError("busy"))
    client = client.mutate().default_tools(reserve).build()
    with pytest.raises(OverloadedError) as caught:
        client.prompt("A table!").call().content()
    assert caught.value.trail is not None
    assert undone == ["Rome"]
    TurnRecording.of(caught.value.trail).save(tmp_path / "turn.json")

    found = replay(TurnRecording.load(tmp_path / "turn.json"), client)

    assert isinstance(found.error, OverloadedError)
    assert found.difference is None
    assert (ran, undone) == (["Rome"], ["Rome"])


def test_nothing_is_undone(replay: Replay) -> None:
    """A fork that fails undoes nothing, because most of its calls were not made."""
    undone: list[str] = []

    def undo(query: str) -> None:
        undone.append(query)

    @tool(name="search", compensation=undo)
    def reserve(query: str) -> str:
        """Reserve a table."""
        return query

    recording = recorded(app(ROME, "Two."))
    client = app(NAPLES, OverloadedError("busy"))

    found = replay(recording, client.prompt().tools(reserve), fork_at=2)

    assert isinstance(found.error, OverloadedError)
    assert undone == []


def test_tool_that_did_not_run(replay: Replay, ran: list[str]) -> None:
    """A tool that would run today, and did not run then, is not run."""
    client = app(ROME).mutate().default_options(internal_tool_execution_enabled=False).build()
    recording = recorded(client)

    found = replay(recording, app())

    assert (found.difference or "").startswith("this was not recorded: ")
    assert ran == []


def test_failing_tool(replay: Replay) -> None:
    """The error of a tool is the recorded one."""
    recording = recorded(app(call("search", {"query": "nowhere"}), "Sorry."))

    found = replay(recording, app())

    assert found.difference is None
    assert "no such city" in str(found.trail)


def test_turn_that_waits(replay: Replay) -> None:
    """A call that waited for approval waits again."""
    manager = ToolCallingManager(interceptors=[ToolApproval()])
    client = app(call("pay", {"amount": 3})).mutate().default_tools(pay)
    recording = recorded(client.tool_calling_manager(manager).build())

    found = replay(recording, client.build())

    assert found.difference is None
    assert RAN == []


def test_redaction(replay: Replay, tmp_path: Path) -> None:
    """A redacted recording has no secrets, and is compared with redacted prompts."""

    def redact(text: str) -> str:
        return text.replace("Rome", "<city>")

    client = app(ROME, "Two in Rome.")
    trail = client.prompt("A table in Rome!").call().trail()
    TurnRecording.of(trail, redact=redact).save(tmp_path / "turn.json")

    assert "Rome" not in (tmp_path / "turn.json").read_text()
    found = replay(TurnRecording.load(tmp_path / "turn.json", redact=redact), app())
    assert found.difference is None
    assert found.answer == "Two in <city>."


def test_misuse(tmp_path: Path) -> None:
    """Other trails, files and numbers are errors."""
    recording = recorded(app("Hello."))
    (tmp_path / "turn.json").write_text("[]")

    with pytest.raises(UsageError, match=r"only the trail of a client's request"):
        TurnRecording.of(Trail())
    with pytest.raises(UsageError, match=r"turn\.json is not the recording of a turn"):
        TurnRecording.load(tmp_path / "turn.json")
    with pytest.raises(UsageError, match="fork_at"):
        replay_turn(recording, app(), fork_at=0)
