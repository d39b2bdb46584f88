"""Turns with several advisors that keep something, cut short at every step of the event loop.

By whoever cancels the request, and by the end of the loop, which cancels all tasks. Afterwards all
memories have the turn or none, what the tools have done is remembered or undone, nothing goes on,
and the conversation can.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from bag_of_words import BagOfWords
from conftest import Mode
from test_fault_points import CUTS, MEMORIES, Cut, Fault, Turn, cut_short_at_each_step

from chatclient import ChatClient, Prompt
from chatclient.advisors.budget import Budget
from chatclient.advisors.memory import MessageChatMemoryAdvisor
from chatclient.advisors.question_answer import QuestionAnswerAdvisor
from chatclient.advisors.session_memory import SessionMemoryAdvisor
from chatclient.advisors.tool_search import ToolSearchToolCallingAdvisor
from chatclient.advisors.vector_store_memory import VectorStoreChatMemoryAdvisor
from chatclient.chain import TOOL_CALLING_ORDER
from chatclient.client import ChatClientRequestSpec
from chatclient.memory import conversation_problems
from chatclient.memory.sessions import SessionChatMemory
from chatclient.messages import ToolResponseMessage, UserMessage
from chatclient.testing import Answer, call
from chatclient.tools import PendingTurn, ToolApproval, ToolCallingManager, tool
from chatclient.vector_store import Document, InMemoryVectorStore

pytest.importorskip("numpy")


def sessions(fault: Fault) -> SessionChatMemory:
    memory = MEMORIES["session"](fault)
    assert isinstance(memory, SessionChatMemory)
    return memory


class InThreeMemories(Turn):
    """Kept by a window, by a session and by what is remembered by meaning."""

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
        last = {memory.get("c")[-1].text for memory in (self.memory, self.session)}
        found = self.store.similarity_search("now done")
        assert (last, len(found)) in (({"done"}, 2), ({"yes"}, 0))
        super().check()


class InMemoriesInside(InThreeMemories):
    """The same where some of them stand inside the tool loop."""

    def advisors(self) -> list[Any]:
        inside = TOOL_CALLING_ORDER + 10
        return [
            VectorStoreChatMemoryAdvisor(self.store),
            MessageChatMemoryAdvisor(self.memory, order=inside),
            SessionMemoryAdvisor(self.session, order=inside),
        ]


class Searched(Turn):
    """Of which the model has to find its tools, and is shown documents."""

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
    """That has waited for an approval, with a session and a budget."""

    pending: PendingTurn

    def __init__(self, fault: Fault) -> None:
        super().__init__("session", fault)
        approval = ToolApproval(needed=lambda invocation: invocation.tool_call.name == "pay")
        builder = ChatClient.builder(self.model).default_tools(self)
        builder = builder.tool_calling_manager(ToolCallingManager(interceptors=[approval]))
        self.client = builder.default_advisors(*self.advisors()).build()
        waiting = self.client.prompt("now").conversation("c").call().chat_client_response()
        self.pending = waiting.context["pending_turn"]

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
        if self.memory.get("c")[-1].text == "yes" and not self.undone:  # it still waits
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
def test_whenever_a_turn_is_cut_short_all_is_in_order(
    mode: Mode, cut: Cut, turn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each step of the event loop."""
    steps = cut_short_at_each_step(TURNS[turn], mode, cut, monkeypatch)

    assert steps > 10


@pytest.mark.parametrize("turn", ["searched", "approved"])
@pytest.mark.parametrize("kind", ["error", "interrupt", "leave"])
@pytest.mark.parametrize("mode", ["call", "acall", "stream", "astream"])
def test_wherever_a_turn_is_cut_short_all_is_in_order(mode: Mode, kind: str, turn: str) -> None:
    """An error, Ctrl-C or a cancellation, a consumer that leaves: at each point there is.

    Of several memories one may fail when another has the turn already.
    """
    whole = TURNS[turn](Fault("none", 0))
    whole.run(mode)
    assert not whole.undone
    assert whole.done["Rome"] == whole.done["Oslo"] == 1
    whole.check()
    for at in range(1, whole.fault.passed + 1):
        cut = TURNS[turn](Fault(kind, at))
        cut.run(mode)
        cut.check()
