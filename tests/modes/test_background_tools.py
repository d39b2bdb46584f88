"""Tools that run in the background."""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest

from chatclient import (
    ChatClient,
    ChatOptions,
    Media,
    Prompt,
    ToolContext,
    UserMessage,
    handoff,
    tool,
)
from chatclient.advisors import MessageChatMemoryAdvisor, ToolCallingAdvisor
from chatclient.chat.events import TextDelta, ToolCallFinished, ToolRunStarted
from chatclient.chat.messages import Message, ToolResponseMessage
from chatclient.chat.origins import prompt_parts
from chatclient.chat.tool import BACKGROUND, ToolProgress
from chatclient.durable import ExecutionLostError, Recording, recorded
from chatclient.errors import (
    DeadlineExceededError,
    OverloadedError,
    ToolExecutionError,
    UsageError,
)
from chatclient.memory import MessageWindowChatMemory, conversation_problems
from chatclient.testing import Ask, ScriptedModel, TurnRecording, call, replay_turn
from chatclient.tools import (
    ExternalTool,
    PendingTurn,
    ToolApproval,
    ToolCallingManager,
    ToolDefinition,
    ToolFailurePolicy,
    ToolLimits,
    ToolMetadata,
    tool_callbacks,
)
from tests.support.journal import Journal


class Mine:
    """Tools in the background, which end when they are allowed to."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.draining = threading.Event()
        self.runs: list[str] = []
        self.keys: set[str] = set()
        self.stopped: list[str] = []
        self.filled: list[str] = []

    def fill(self, place: str) -> None:
        self.filled.append(place)

    @tool(background=True, effect="idempotent", compensation="fill")
    def dig(self, place: str, context: ToolContext) -> str:
        """Dig somewhere."""
        assert self.open.wait(30)
        self.runs.append(place)
        self.keys.add(context.idempotency_key)
        if place == "swamp":
            raise OSError("the shovel sank")
        return f"gold in {place}"

    @tool(background=True)
    async def drain(self) -> str:
        """Drain the mine, which never ends."""
        self.draining.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.stopped.append("drain")
        return "dry"

    def opens(self, answer: Any) -> Any:
        """Return an answer of the model, after which the tools may end."""

        def answered(_: Prompt) -> Any:
            self.open.set()
            return answer

        return answered


@pytest.fixture
def mine() -> Iterator[Mine]:
    mine = Mine()
    yield mine
    mine.open.set()


def client(mine: Mine, *answers: Any, tools: Sequence[Any] = (), **options: Any) -> ChatClient:
    manager = ToolCallingManager(**options)
    builder = ChatClient.builder(ScriptedModel(*answers)).tool_calling_manager(manager)
    return builder.default_tools(mine, *tools).build()


def prompts_of(client: ChatClient) -> list[Prompt]:
    model: Any = client.model
    prompts: list[Prompt] = model.prompts
    for prompt in prompts:
        assert conversation_problems(prompt.messages) == ()
    for before, after in pairwise(prompts):
        assert after.messages[: len(before.messages)] == before.messages
    return prompts


def results_in(messages: Sequence[Message]) -> list[str]:
    """Return the texts of the messages with results, without what introduces them."""
    found = [m.text for m in messages if isinstance(m, UserMessage) and BACKGROUND in m.metadata]
    return [text.partition("\n\n")[2] for text in found]


def test_result_follows(ask: Ask, mine: Mine) -> None:
    """The model goes on after the call, and gets the result after its preliminary answer."""
    asking = client(mine, call("dig", {"place": "A"}, id="d"), mine.opens("Soon."), "Gold!")

    asked = ask(asking.prompt("Dig"))

    _, started, finished = prompts_of(asking)
    (told,) = [m for m in started.messages if isinstance(m, ToolResponseMessage)]
    assert "'dig' was started in the background, with the id 'd'" in told.responses[0].data
    assert finished.messages[-2].text == "Soon."
    assert results_in(finished.messages) == ["Result of 'dig', started with the id 'd':\ngold in A"]
    assert asked.response.chat_response.text == "Gold!"
    assert [e.response.data for e in asked.executions] == ["gold in A"]
    trail = asked.response.trail
    assert trail is not None
    steps = [s for s in trail.steps if s.operation.name == "execute_tool dig"]
    assert len(steps) == 1
    if ask.streaming:
        finishes = [e for e in asked.events if isinstance(e, ToolCallFinished)]
        assert [e.response.data for e in finishes] == ["gold in A"]
        assert len([e for e in asked.events if isinstance(e, ToolRunStarted)]) == 1


def test_result_arrives_between_rounds(ask: Ask, mine: Mine) -> None:
    """A result that has arrived is given to the model with the next tool results."""

    @tool(effect="read")
    def wait() -> str:
        """Wait until the tool has run."""
        mine.open.set()
        return "waited"

    def waits_for_result(prompt: Prompt) -> Any:
        return "Done." if results_in(prompt.messages) else call("wait")

    dig = call("dig", {"place": "A"}, id="d")
    model = ScriptedModel(dig, *[waits_for_result] * 10_000)
    limits = ToolLimits(max_rounds=None, max_total_calls=None, excluded=["wait"])
    manager = ToolCallingManager(limits=limits)
    asking = ChatClient.builder(model).tool_calling_manager(manager).default_tools(mine, wait)

    built = asking.build()
    assert ask(built.prompt("Dig")).response.chat_response.text == "Done."

    *_, before, result = prompts_of(built)[-1].messages
    assert isinstance(before, ToolResponseMessage)
    assert results_in([result]) == ["Result of 'dig', started with the id 'd':\ngold in A"]


def test_several_results(ask: Ask, mine: Mine) -> None:
    """All results come in one message, in the order of the calls; a failure is one of them."""

    @tool(background=True, effect="read")
    def draw() -> list[Any]:
        """Draw a picture."""
        assert mine.open.wait(30)
        return ["a map", Media("image/png", b"\x89PNG")]

    calls = [call("dig", {"place": "swamp"}, id="a"), call("draw", id="b")]
    asking = client(mine, calls, mine.opens("Soon."), "Done.", tools=[draw])

    asked = ask(asking.prompt("Dig"))

    message = prompts_of(asking)[-1].messages[-1]
    assert isinstance(message, UserMessage)
    failed, drawn = results_in([message])[0].split("\n\n")
    assert failed == "'dig', started with the id 'a', has failed:\nthe shovel sank"
    assert drawn == "Result of 'draw', started with the id 'b':\na map"
    assert len(message.media) == 1
    assert [e.is_error for e in asked.executions] == [True, False]
    assert isinstance(asked.executions[0].error, OSError)


def test_failure_undoes_earlier_calls(ask: Ask, mine: Mine) -> None:
    """A failure in the background undoes the calls before it, as any other does."""
    places = [call("dig", {"place": "A"}, id="a"), call("dig", {"place": "swamp"}, id="b")]
    asking = client(mine, places, mine.opens("Soon."), "Sorry.")

    asked = ask(asking.prompt("Dig"))

    assert mine.filled == ["A"]
    told = [m for m in asking_model(asking).prompts[-1].messages if m.role == "tool"]
    assert "'dig' was run, and then undone because 'dig' failed." in repr(told)
    assert asked.response.chat_response.text == "Sorry."


def asking_model(client: ChatClient) -> ScriptedModel:
    model: Any = client.model
    assert isinstance(model, ScriptedModel)
    return model


def test_refused_calls_are_answered_at_once(ask: Ask, mine: Mine) -> None:
    """Wrong arguments, and a denial, are results of the call itself; nothing was started."""
    wrong = call("dig", {"where": "A"}, id="a")
    asking = client(mine, wrong, "Sorry.")

    (execution,) = ask(asking.prompt("Dig")).executions

    assert execution.is_error
    assert "place" in execution.response.data
    (told,) = [m for m in prompts_of(asking)[-1].messages if isinstance(m, ToolResponseMessage)]
    assert told.responses == (execution.response,)
    assert mine.runs == []


def test_approval_comes_first(ask: Ask, mine: Mine) -> None:
    """A call waits for approval before it starts; nothing runs while the turn waits."""
    approval = ToolApproval(needed=lambda each: "B" in each.tool_call.arguments)
    first, second = call("dig", {"place": "A"}, id="a"), call("dig", {"place": "B"}, id="b")
    answers = [first, mine.opens(second), mine.opens("Soon."), "Done."]
    asking = client(mine, *answers, interceptors=[approval])
    waiting = ask(asking.prompt("Dig")).waiting
    assert mine.runs == ["A"]
    mine.open.clear()
    assert list(waiting.to_decide()) == ["b"]

    stored = PendingTurn.from_json(waiting.to_json())
    resumed = ask(asking.resume(stored, "approve"))

    assert mine.runs == ["A", "B"]
    assert resumed.response.chat_response.text == "Done."
    assert [e.response.data for e in resumed.executions] == ["gold in A", "gold in B"]
    results = results_in(prompts_of(asking)[-1].messages)
    assert "".join(results).count("Result of 'dig'") == 2


def test_results_of_a_round_that_waits(ask: Ask, mine: Mine) -> None:
    """Calls that were started beside one that waits have their results as responses."""
    approval = ToolApproval(needed=lambda each: "B" in each.tool_call.arguments)
    calls = [call("dig", {"place": "A"}, id="a"), call("dig", {"place": "B"}, id="b")]
    mine.open.set()
    asking = client(mine, calls, "Soon.", "Done.", interceptors=[approval])

    waiting = ask(asking.prompt("Dig")).waiting
    denied = ask(asking.resume(waiting, "deny"))

    (told,) = [m for m in prompts_of(asking)[-1].messages if isinstance(m, ToolResponseMessage)]
    assert told.responses[0].data == "gold in A"
    assert told.responses[1].is_error
    assert denied.response.chat_response.text == "Soon."


def test_answer_cancels(ask: Ask, mine: Mine) -> None:
    """With `background_calls="cancel"`, the answer is final, and calls that run are cancelled."""
    asking = client(mine, call("drain"), "Enough.", background_calls="cancel")

    asked = ask(asking.prompt("Drain"))

    assert asked.response.chat_response.text == "Enough."
    assert len(prompts_of(asking)) == 2
    (execution,) = asked.executions
    assert execution.response.data == "The call was cancelled before it had a result."
    if ask.streaming:
        finishes = [e for e in asked.events if isinstance(e, ToolCallFinished)]
        assert [e.response for e in finishes] == [execution.response]


@pytest.mark.parametrize("fails", ["model", "deadline"])
def test_failed_turn_leaves_nothing_running(ask: Ask, mine: Mine, fails: str) -> None:
    """When the turn fails, calls that run are cancelled, and those that have ended are undone."""

    def fail(_: Prompt) -> Any:
        mine.open.set()
        assert mine.draining.wait(30)
        if fails == "model":
            while not mine.runs:
                threading.Event().wait(0.001)
            raise OverloadedError("busy")
        return "Soon."

    calls = [call("dig", {"place": "A"}), call("drain")]
    asking = client(mine, calls, fail)
    request = asking.prompt("Dig")
    if fails == "deadline":
        request = request.deadline(2)

    with pytest.raises((OverloadedError, DeadlineExceededError)):
        ask(request)

    assert mine.filled == ["A"]
    assert mine.stopped == ["drain"]


def test_left_stream_cancels(mine: Mine) -> None:
    """Leaving a stream cancels what runs in the background."""

    def words(_: Prompt) -> str:
        assert mine.draining.wait(30)
        return "Some words that nobody reads."

    asking = client(mine, call("drain"), words)

    for event in asking.prompt("Drain").stream().events():
        if isinstance(event, TextDelta):
            break

    assert mine.stopped == ["drain"]


def test_failure_that_raises(ask: Ask, mine: Mine) -> None:
    """A failure policy that raises ends the turn."""
    asking = client(
        mine,
        call("dig", {"place": "swamp"}),
        mine.opens("Soon."),
        exception_processor=ToolFailurePolicy(always_raise=True),
    )

    with pytest.raises(ToolExecutionError):
        ask(asking.prompt("Dig"))


def test_limit_makes_the_answer_final(ask: Ask, mine: Mine) -> None:
    """A limit that allows no further round cancels what runs, and the answer stands."""
    limits = ToolLimits(max_rounds=2)
    asking = client(mine, call("drain"), "Enough.", limits=limits)

    assert ask(asking.prompt("Drain")).response.chat_response.text == "Enough."
    assert len(prompts_of(asking)) == 2


def test_limit_before_the_answer(ask: Ask, mine: Mine) -> None:
    """At a limit after tools, the model answers from what there is."""

    @tool(effect="read")
    def look() -> str:
        """Look."""
        return "seen"

    limits = ToolLimits(max_rounds=2, on_exceeded="final_answer")
    answers = [call("drain", id="d"), call("look"), "Not drained."]
    asking = client(mine, *answers, tools=[look], limits=limits)

    assert ask(asking.prompt("Drain")).response.chat_response.text == "Not drained."
    assert (
        "'drain', started with the id 'd', has failed"
        in results_in(prompts_of(asking)[-1].messages)[0]
    )


def test_handoff_waits(ask: Ask, mine: Mine) -> None:
    """Before another client takes over, the results are in the conversation."""
    target = ChatClient.create(model := ScriptedModel("I see gold."))
    passing = handoff(target, "pass", "Pass on.")
    answers = [call("dig", {"place": "A"}, id="d"), mine.opens(call("handoff_to_pass"))]
    asking = client(mine, *answers, tools=[passing])

    assert ask(asking.prompt("Dig")).response.chat_response.text == "I see gold."
    assert results_in(model.prompts[-1].messages) == [
        "Result of 'dig', started with the id 'd':\ngold in A"
    ]


def test_direct_results_wait(ask: Ask, mine: Mine) -> None:
    """A result that would be the answer is not, while calls run: the model answers again."""

    @tool(effect="read", return_direct=True)
    def quote() -> str:
        """Quote."""
        return "quoted"

    answers = [call("dig", {"place": "A"}), mine.opens(call("quote")), "Both."]
    asking = client(mine, *answers, tools=[quote])

    assert ask(asking.prompt("Dig")).response.chat_response.text == "Both."


def test_agent(ask: Ask, mine: Mine) -> None:
    """An agent runs in the background; one that must ask a person has failed."""

    @tool
    def pay() -> str:
        """Pay."""
        raise AssertionError

    def agent(name: str, *answers: Any) -> Any:
        builder = ChatClient.builder(ScriptedModel(*answers)).default_tools(pay)
        builder = builder.tool_calling_manager(ToolCallingManager(interceptors=[ToolApproval()]))
        return builder.build().as_tool(name, "Works.", metadata=ToolMetadata(background=True))

    calls = [call("clerk", {"request": "?"}, id="a"), call("buyer", {"request": "?"}, id="b")]
    agents = [agent("clerk", "Filed."), agent("buyer", call("pay"))]
    asking = client(mine, calls, "Soon.", "Done.", tools=agents)

    asked = ask(asking.prompt("Work"))

    assert [e.response.data[:20] for e in asked.executions] == ["Filed.", "It was not finished:"]
    assert asked.executions[1].is_error


def test_preliminary_text_can_be_left_out(ask: Ask, mine: Mine) -> None:
    """Without the text of rounds that call tools, a preliminary answer is not streamed either."""
    model = ScriptedModel(call("dig", {"place": "A"}), mine.opens("Soon."), "Gold!")
    advisor = ToolCallingAdvisor(stream_tool_call_responses=False)
    asking = ChatClient.builder(model).default_tools(mine).default_advisors(advisor).build()

    asked = ask(asking.prompt("Dig"))

    if ask.streaming:
        texts = [e.text for e in asked.events if isinstance(e, TextDelta)]
        assert "".join(texts).strip() == "Gold!"


@pytest.mark.parametrize("tool_messages", [True, False])
def test_memory(ask: Ask, mine: Mine, tool_messages: bool) -> None:
    """The turn is stored as one, with the results if tools are stored, and never as a question."""
    memory = MessageWindowChatMemory()
    advisor = MessageChatMemoryAdvisor(memory, tool_messages=tool_messages)
    answers = [call("dig", {"place": "A"}, id="d"), mine.opens("Soon."), "Gold!", "Yes."]
    asking = client(mine, *answers)
    for question in ("Dig", "Sure?"):
        ask(asking.prompt(question).advisors(advisor).conversation("c"))

    stored = memory.get("c")
    assert conversation_problems(stored) == ()
    results = ["user"] if tool_messages else []
    before = ["user", "assistant", "tool", "assistant"] if tool_messages else ["user"]
    assert [m.role for m in stored] == [*before, *results, "assistant", "user", "assistant"]
    assert len(results_in(stored)) == len(results)


def test_recorded_turn(ask: Ask, mine: Mine) -> None:
    """After a crash while the tool runs, the turn continues; a recorded call is not run again."""
    journal = Journal()

    def run(*answers: Any) -> Any:
        asking = client(mine, *answers)
        return ask(recorded(asking.prompt("Dig"), Recording(journal), "turn"))

    journal.stop_after = "tool dig"
    with pytest.raises(ExecutionLostError):
        run(call("dig", {"place": "A"}, id="d"), mine.opens("Soon."))
    assert mine.runs == ["A"]
    journal.reopen()

    again = run("Gold!")

    assert again.response.chat_response.text == "Gold!"
    assert mine.runs == ["A", "A"]
    assert len(mine.keys) == 1
    journal.reopen()
    assert run().response.chat_response == again.response.chat_response
    assert journal.ran == []


def test_interrupted_write_is_reported(ask: Ask, mine: Mine) -> None:
    """A call that may have written is not repeated: the model is told, as it was answered."""

    @tool(background=True)
    def sell() -> str:
        """Sell."""
        assert mine.open.wait(30)
        mine.runs.append("sell")
        return "sold"

    journal = Journal()

    def run(*answers: Any) -> Any:
        asking = client(mine, *answers, tools=[sell])
        return ask(recorded(asking.prompt("Sell"), Recording(journal), "turn"))

    journal.stop_after = "tool sell"
    with pytest.raises(ExecutionLostError):
        run(call("sell", id="s"), mine.opens("Soon."))
    journal.reopen()

    again = run("Unsure.")

    assert mine.runs == ["sell"]
    assert again.response.chat_response.text == "Unsure."
    assert "It is not known how much was done" in again.executions[-1].response.data


def test_replay(ask: Ask, mine: Mine) -> None:
    """A recorded turn sends the same prompts when it is replayed, and runs no tool."""
    answers = [call("dig", {"place": "A"}, id="d"), mine.opens("Soon."), "Gold!"]
    trail = ask(client(mine, *answers).prompt("Dig")).response.trail
    assert trail is not None

    replay = replay_turn(TurnRecording.of(trail), client(mine))

    assert replay.difference is None
    assert mine.runs == ["A"]


@pytest.mark.parametrize(
    "other", [{"return_direct": True}, {"sequential": True}, {"exclusive": True}]
)
def test_contradictions(other: dict[str, Any]) -> None:
    """A background tool cannot be the answer, and overlaps with others."""
    with pytest.raises(UsageError, match="background"):
        ToolMetadata(background=True, **other)


def test_loop_of_the_application(mine: Mine) -> None:
    """In a loop of the application's own, the tool runs like all others."""
    mine.open.set()
    model = ScriptedModel(call("dig", {"place": "A"}))
    options = ChatOptions(tool_callbacks=tool_callbacks(mine))
    prompt = Prompt([UserMessage("Dig")], options)
    result = ToolCallingManager().execute_tool_calls(prompt, model.call(prompt))

    assert [each.data for each in result.responses] == ["gold in A"]


def test_progress(ask: Ask, mine: Mine) -> None:
    """Progress of a call reaches the consumer of a stream."""

    @tool(background=True, effect="read")
    async def work(context: ToolContext) -> str:
        """Work."""
        await context.progress("half")
        return "worked"

    asked = ask(client(mine, call("work"), "Soon.", "Done.", tools=[work]).prompt("Work"))

    if ask.streaming:
        assert [e.event for e in asked.events if isinstance(e, ToolProgress)] == ["half"]


def test_what_is_not_run_here(ask: Ask, mine: Mine) -> None:
    """A tool that the application runs itself waits for its result as usual."""
    metadata = ToolMetadata(background=True)
    locate = ExternalTool(ToolDefinition("locate", "Locate.", {"type": "object"}), metadata)

    asked = ask(client(mine, call("locate", id="x"), tools=[locate]).prompt("Where?"))

    assert list(asked.waiting.to_decide()) == ["x"]


def test_origin_of_results(ask: Ask, mine: Mine) -> None:
    """Results have the tool as their origin, although they come in a message of the user's role."""
    asking = client(mine, call("dig", {"place": "A"}), mine.opens("Soon."), "Gold!")

    turn = ask(asking.prompt("Dig")).response.turn

    parts = prompt_parts(prompts_of(asking)[-1].messages, turn)
    (result,) = [part for part in parts if "gold in A" in part.text]
    assert (result.origin, result.name) == ("tool", "dig")
