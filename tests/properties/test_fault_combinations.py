"""Turns with several stateful advisors, interrupted at every step of the event loop.

The request is cancelled, or the loop shuts down, which cancels all tasks. Afterwards all memories
have the turn or none of them, effects of tools are remembered or undone, no work continues, and the
conversation can continue.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from chatclient import ChatClient, Prompt, tool
from chatclient.advisors.budget import Budget
from chatclient.advisors.memory.advisors import MessageChatMemoryAdvisor
from chatclient.advisors.memory.session import SessionMemoryAdvisor
from chatclient.advisors.memory.vector_store import VectorStoreChatMemoryAdvisor
from chatclient.advisors.retrieval.advisor import QuestionAnswerAdvisor
from chatclient.advisors.tool_search.advisor import ToolSearchToolCallingAdvisor
from chatclient.chain.chain import TOOL_CALLING_ORDER
from chatclient.chat.messages import ToolResponseMessage, UserMessage
from chatclient.client.request import ChatClientRequestSpec
from chatclient.memory import ENDED_EARLY, SessionChatMemory, conversation_problems
from chatclient.retrieval import Document, InMemoryVectorStore
from chatclient.testing import Answer, Mode, call
from chatclient.tools import PendingTurn, ToolApproval, ToolCallingManager
from tests.properties.test_fault_points import (
    CUTS,
    MEMORIES,
    Cut,
    Fault,
    Turn,
    interrupt_each_step,
)
from tests.support.bag_of_words import BagOfWords
from tests.support.examples import some

pytest.importorskip("numpy")


def sessions(fault: Fault) -> SessionChatMemory:
    memory = MEMORIES["session"](fault)
    assert isinstance(memory, SessionChatMemory)
    return memory


class InThreeMemories(Turn):
    """With a window memory, a session memory and a vector store memory."""

    def __init__(self, fault: Fault) -> None:
        self.session = sessions(fault)
        self.store = InMemoryVectorStore(BagOfWords())
        super().__init__("window", fault)
        self.session.add("c", self.memory.get("c"))

    def advisors(self) -> list[Any]:
        return [
            VectorStoreChatMemoryAdvisor(self.store),
            MessageChatMemoryAdvisor(self.memory),
            SessionMemoryAdvisor(self.session),
        ]

    def check(self) -> None:
        assert conversation_problems(self.session.get("c"), ending="answer") == ()
        first, second = (memory.get("c")[-1] for memory in (self.memory, self.session))
        stopped = ENDED_EARLY in first.metadata
        assert first.text == second.text
        assert stopped or first.text in ("done", "yes")
        found = self.store.similarity_search("now done")
        assert len(found) == (2 if first.text == "done" and not stopped else 0)
        super().check()


class InMemoriesInside(InThreeMemories):
    """The same with some memories inside the tool loop."""

    def advisors(self) -> list[Any]:
        inside = TOOL_CALLING_ORDER + 10
        return [
            VectorStoreChatMemoryAdvisor(self.store),
            MessageChatMemoryAdvisor(self.memory, order=inside),
            SessionMemoryAdvisor(self.session, order=inside),
        ]


class Searched(Turn):
    """With a tool search and retrieved documents."""

    def __init__(self, fault: Fault) -> None:
        self.documents = InMemoryVectorStore(BagOfWords())
        self.documents.add([Document("now is the time")])
        super().__init__("session", fault)

    def advisors(self) -> list[Any]:
        assert isinstance(self.memory, SessionChatMemory)
        return [
            SessionMemoryAdvisor(self.memory),
            QuestionAnswerAdvisor(self.documents),
            ToolSearchToolCallingAdvisor(threshold=0),
        ]

    def answer(self, prompt: Prompt) -> Answer:
        assert conversation_problems(prompt.messages, ending="question") == ()
        last = prompt.messages[-1]
        if isinstance(last, UserMessage):
            now = "later" not in last.text
            return call("toolSearchTool", '{"query": "book look"}') if now else "done"
        assert isinstance(last, ToolResponseMessage)
        match [response.name for response in last.responses]:
            case ["toolSearchTool"]:
                return ["hm", call("book", '{"city": "Rome"}'), call("look")]
            case ["book", "look"]:
                return call("book", '{"city": "Oslo"}')
        return "done"


class Approved(Turn):
    """A resumed turn after an approval, with a session and a budget."""

    pending: PendingTurn

    def __init__(self, fault: Fault) -> None:
        super().__init__("session", fault)
        approval = ToolApproval(needed=lambda invocation: invocation.tool_call.name == "pay")
        builder = ChatClient.builder(self.model).default_tools(self)
        builder = builder.tool_calling_manager(ToolCallingManager(interceptors=[approval]))
        self.client = builder.default_advisors(*self.advisors()).build()
        waiting = self.client.prompt("now").conversation("c").call().chat_client_response()
        assert waiting.turn.pending is not None
        self.pending = waiting.turn.pending

    @tool(compensation="repay")
    async def pay(self, amount: int) -> str:
        """Pay."""
        self.fault.point()
        await asyncio.sleep(0)
        self.done[f"paid {amount}"] += 1
        return f"paid {amount}"

    def repay(self, amount: int) -> None:
        self.undone[f"paid {amount}"] += 1

    def advisors(self) -> list[Any]:
        assert isinstance(self.memory, SessionChatMemory)
        return [SessionMemoryAdvisor(self.memory), Budget(calls=10)]

    def answer(self, prompt: Prompt) -> Answer:
        match prompt.messages[-1]:
            case UserMessage(text="now"):
                return ["hm", call("book", '{"city": "Rome"}'), call("pay", '{"amount": 5}')]
        return super().answer(prompt)

    def request(self) -> ChatClientRequestSpec:
        return self.client.resume(self.pending, "approve")

    def check(self) -> None:
        if self.memory.get("c")[-1].text == "yes" and not self.undone:  # still suspended
            assert self.done == {"Rome": 1}
            assert self.request().call().content() == "done"
        super().check()


TURNS: dict[str, Callable[[Fault], Turn]] = {
    "three memories": InThreeMemories,
    "memories inside": InMemoriesInside,
    "searched": Searched,
    "approved": Approved,
}


@pytest.mark.parametrize("turn", TURNS)
@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("mode", ["acall", "astream"])
def test_cancellation_at_every_step(
    mode: Mode, cut: Cut, turn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request is cancelled at each step of the event loop."""
    steps = interrupt_each_step(TURNS[turn], mode, cut, monkeypatch)

    assert steps > 10


@pytest.mark.parametrize("turn", ["searched", "approved"])
@pytest.mark.parametrize("kind", ["error", "interrupt", "leave"])
@pytest.mark.parametrize("mode", ["call", "acall", "stream", "astream"])
def test_fault_at_every_point(mode: Mode, kind: str, turn: str) -> None:
    """An error, an interrupt, a cancellation or a closed stream at each point."""
    complete = TURNS[turn](Fault("none", 0))
    complete.run(mode)
    assert not complete.undone
    assert complete.done["Rome"] == complete.done["Oslo"] == 1
    complete.check()
    for at in some(range(1, complete.fault.passed + 1)):
        cut = TURNS[turn](Fault(kind, at))
        cut.run(mode)
        cut.check()
