"""Recorded turns whose steps belong to several clients: handoffs, agents, questions of advisors."""

from collections.abc import Callable
from typing import Any

import pytest

from chatclient import (
    AssistantMessage,
    ChatClient,
    ChatClientRequest,
    ChatClientRequestSpec,
    ChatClientResponse,
    Next,
    Prompt,
    Runtime,
    UserMessage,
    handoff,
    tool,
)
from chatclient.advisors import MessageChatMemoryAdvisor, RetrievalAugmentationAdvisor, ask_model
from chatclient.decisions import (
    DecisionModel,
    DecisionRequest,
    DecisionResponse,
    YesNoAnswer,
    ask_decision,
)
from chatclient.durable import ExecutionLostError, Recording, TurnRetries, recorded
from chatclient.errors import OverloadedError
from chatclient.memory import MessageWindowChatMemory, SqlChatMemoryRepository
from chatclient.retrieval import Document, Query
from chatclient.testing import Ask, Asked, ScriptedModel, call
from chatclient.tools import ToolCallingManager, ToolMetadata
from tests.support.journal import Journal

# A process that ends between two steps has begun no other.
ONE_BY_ONE = ToolCallingManager(max_concurrency=1)


class World:
    """Models and tools that note what they do; all executions of a turn share them."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def model(self, name: str, script: Callable[[int], Any]) -> ScriptedModel:
        """Return a model whose answers depend on the number of tool results it is shown."""

        def answer(prompt: Prompt) -> Any:
            self.log.append(f"{name} is asked")
            return script(sum(message.role == "tool" for message in prompt.messages))

        return ScriptedModel(answer)

    def writing(self, name: str) -> Any:
        """Return a tool that writes."""

        @tool(name=name)
        def write() -> str:
            """Write."""
            self.log.append(f"{name} ran")
            return f"{name} done"

        return write


def steps_of(*answers: Any) -> Callable[[int], Any]:
    return lambda results: answers[min(results, len(answers) - 1)]


def handed_over(world: World) -> ChatClientRequestSpec:
    """A turn that another client continues, which writes."""
    script = steps_of(None, call("refund", id="r"), "Refunded.")
    billing = ChatClient.builder(world.model("billing", script)).name("billing")
    to_billing = handoff(billing.default_tools(world.writing("refund")).build(), description="x")
    script = steps_of([call("note", id="n"), call("handoff_to_billing", id="h")])
    triage = ChatClient.builder(world.model("triage", script)).tool_calling_manager(ONE_BY_ONE)
    return triage.default_tools(to_billing, world.writing("note")).build().prompt("Money back!")


def with_agent(world: World) -> ChatClientRequestSpec:
    """A turn with two calls of an agent, whose tool writes."""
    script = steps_of(call("order", id="o"), "Ordered.")
    agent = ChatClient.builder(world.model("agent", script)).default_tools(world.writing("order"))
    tool = agent.build().as_tool("buyer", "Buys.")
    script = steps_of([call("buyer", {"request": each}, id=each) for each in ("tea", "ham")], "ok")
    chief = ChatClient.builder(world.model("chief", script)).tool_calling_manager(ONE_BY_ONE)
    return chief.build().prompt("Buy!").tools(tool)


def with_questions(world: World) -> ChatClientRequestSpec:
    """A turn whose advisor asks a model, a decision model and another client with a tool."""
    helper = world.model("helper", steps_of("helped"))
    clerk = ChatClient.builder(world.model("clerk", steps_of(call("file", id="f"), "filed")))
    clerk_client = clerk.default_tools(world.writing("file")).build()

    class Judge(DecisionModel):
        async def answer(self, request: DecisionRequest, runtime: Runtime) -> DecisionResponse:
            world.log.append("judge is asked")
            return DecisionResponse(dict.fromkeys(request.questions, YesNoAnswer(0.75)))

    async def advisor(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        helped = await ask_model(helper, "Help!", request.runtime.silent())
        judged = await ask_decision(Judge(), DecisionRequest("x", {"ok": "?"}), request.runtime)
        filed = await request.runtime.invoke(lambda: clerk_client.prompt("File!").call().content())
        said = f"{helped.text} {judged.yes_no('ok').probability} {filed}"
        return await call_next(request.mutate(prompt=request.prompt.augment_user_message(said)))

    model = ScriptedModel(lambda prompt: f"I know: {prompt.contents}")
    return ChatClient.builder(model).default_advisors(advisor).build().prompt("Hi")


MakeTurn = Callable[[World], ChatClientRequestSpec]
TURNS: list[MakeTurn] = [handed_over, with_agent, with_questions]
turns = pytest.mark.parametrize("turn", TURNS, ids=lambda it: it.__name__)


def run(ask: Ask, turn: MakeTurn, world: World, journal: Journal) -> Asked:
    return ask(recorded(turn(world), Recording(journal), "turn-1"))


@turns
def test_nothing_is_called_again(ask: Ask, turn: MakeTurn) -> None:
    """A turn that is run again from its complete record calls no model and no tool of any client.

    It leads to the same answer, executions, messages and usage.
    """
    world, journal = World(), Journal()
    first = run(ask, turn, world, journal)
    world.log.clear()

    again = run(ask, turn, world, journal.reopen())

    assert (world.log, journal.ran) == ([], [])
    assert again.response.chat_response == first.response.chat_response
    assert again.executions == first.executions
    assert again.response.turn.messages() == first.response.turn.messages()
    assert again.answer.round_responses() == first.answer.round_responses()
    assert again.answer.trail().usage == first.answer.trail().usage


@turns
def test_continues_after_each_step(ask: Ask, turn: MakeTurn) -> None:
    """Wherever a process ends between two steps, another one repeats nothing that was done."""
    world, journal = World(), Journal()
    expected = run(ask, turn, world, journal)
    begun = {name.replace("begin ", "tool ") for name in journal.steps if "begin " in name}
    steps, done = [name for name in journal.steps if name not in begun], sorted(world.log)
    assert len(steps) > 5

    for step in steps:
        world, journal = World(), Journal()
        journal.stop_before = step
        with pytest.raises(ExecutionLostError):
            run(ask, turn, world, journal)
        again = run(ask, turn, world, journal.reopen())

        assert again.response.chat_response.text == expected.response.chat_response.text
        assert (step, sorted(world.log)) == (step, done)


@pytest.mark.parametrize(
    ("turn", "step", "waiting"),
    [
        (handed_over, "tool refund", ["r"]),
        (with_agent, "agent buyer {}/tool order", ["tea/o", "ham/o"]),
    ],
)
def test_an_interrupted_write_waits(
    ask: Ask, turn: MakeTurn, step: str, waiting: list[str]
) -> None:
    """Also one of an agent, or of a client that the turn was handed to; it is done once."""
    world, journal = World(), Journal()
    run(ask, turn, world, journal)
    prefix, _, suffix = step.partition("{}")
    name = next(
        each for each in journal.steps if each.startswith(prefix) and each.find(suffix) >= 0
    )
    world, journal = World(), Journal()
    journal.stop_after = name
    with pytest.raises(ExecutionLostError):
        run(ask, turn, world, journal)
    recording = Recording(journal.reopen())

    asked = ask(recorded(turn(world), recording, "turn-1"))

    assert set(recording.interrupted) <= set(waiting)
    assert asked.waiting.to_decide().keys() == set(recording.interrupted)
    assert len([each for each in world.log if each.endswith("ran")]) <= 2


def test_retries_reach_each_client(ask: Ask) -> None:
    """`TurnRetries` apply to a client that the turn was handed to, to agents and to questions."""
    busy = OverloadedError("busy")
    agent = ChatClient.create(ScriptedModel(busy, "It is.")).as_tool(
        "expert", "Knows.", metadata=ToolMetadata(effect="read")
    )
    helper = ScriptedModel(busy, "helped", lambda _: "helped")

    async def advisor(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        await ask_model(helper, "Help!", request.runtime.silent())
        return await call_next(request)

    script = busy, call("expert", {"request": "?"}), "Done."
    second = ChatClient.builder(ScriptedModel(*script)).default_tools(agent)
    second = second.default_advisors(advisor)
    first = ChatClient.create(ScriptedModel(call("handoff_to_second")))
    request = first.prompt("x").tools(handoff(second.build(), "second", "Answers."))
    retries = TurnRetries(attempts=2, seconds=0.001)

    assert ask(recorded(request, Recording(Journal()), "t", retries=retries)).text == "Done."


def test_equal_questions_are_different_steps(ask: Ask) -> None:
    """A question that is asked twice is recorded twice, in any order with others."""
    world, journal = World(), Journal()
    helper = ScriptedModel("one", "two", "three")

    async def advisor(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        for text in ("Help!", "Really?", "Help!"):
            world.log.append((await ask_model(helper, text, request.runtime.silent())).text)
        return await call_next(request)

    for answers in (("Fine.",), ()):
        request = ChatClient.create(ScriptedModel(*answers)).prompt("x").advisors(advisor)
        ask(recorded(request, Recording(journal), "t"))

    assert world.log == ["one", "two", "three"] * 2


def test_the_memory_of_an_agent_stores_once(ask: Ask) -> None:
    """A turn that is run again does not store the turns of its agents again."""
    repository, journal = SqlChatMemoryRepository("sqlite://"), Journal()
    memory = MessageChatMemoryAdvisor(MessageWindowChatMemory(repository))
    for agent_answers, answers in (
        (("It is.",), (call("expert", {"request": "?"}), "Done.")),
        ((), ()),
    ):
        agent = ChatClient.builder(ScriptedModel(*agent_answers)).default_advisors(memory).build()
        expert = agent.as_tool("expert", "Knows.", conversation="e")
        request = ChatClient.create(ScriptedModel(*answers)).prompt("x").tools(expert)
        ask(recorded(request, Recording(journal), "t"))

    assert len(repository.find_by_conversation_id("e")) == 2
    repository.close()


def test_what_a_tool_asks_is_part_of_its_step(ask: Ask) -> None:
    """A tool is one step, with the requests that its function makes."""
    inner = ChatClient.create(ScriptedModel("inner"))
    journal = Journal()

    @tool(effect="read")
    def look() -> str:
        return inner.prompt("?").call().content()

    request = ChatClient.create(ScriptedModel(call("look"), "Done.")).prompt("x").tools(look)
    ask(recorded(request, Recording(journal), "t"))

    assert [name.split(" ")[0] for name in journal.steps] == ["model", "tool", "model"]


def test_retrieval_and_reading_of_memory_are_repeated(ask: Ask) -> None:
    """They are no steps: a turn that is run again looks for documents and messages again."""
    journal, memory = Journal(), MessageWindowChatMemory()
    memory.add("c", [UserMessage("Before."), AssistantMessage("Yes.")])
    queries: list[Query] = []

    def retrieve(query: Query, _: Runtime) -> list[Document]:
        queries.append(query)
        return [Document("a")]

    for answers in (["Done."], []):
        advisors = MessageChatMemoryAdvisor(memory), RetrievalAugmentationAdvisor(retrieve)
        request = ChatClient.create(ScriptedModel(*answers)).prompt("x").conversation("c")
        asked = ask(recorded(request.advisors(*advisors), Recording(journal), "t"))

    assert asked.text == "Done."
    assert [name.split(" ")[0] for name in journal.steps] == ["model"]
    assert len(queries) == 2
