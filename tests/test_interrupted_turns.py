"""Ctrl-C anywhere in a turn that calls tools: what is kept stays valid, and the next one works."""

import gc
import sys
import threading
from collections.abc import Callable
from functools import partial

import pytest
from interrupts import interrupt_at
from waiting import settled

from chatclient import ChatClient, ChatResponse, Prompt, callers, model_calls
from chatclient.advisors.memory import MessageChatMemoryAdvisor
from chatclient.driving import drive
from chatclient.memory import MessageWindowChatMemory, conversation_problems
from chatclient.messages import UserMessage
from chatclient.runtime import BLOCKING
from chatclient.testing import Answer, ScriptedModel, call

OURS = [module for name, module in sys.modules.items() if name.split(".")[0] == "chatclient"]
STRIDE = 41  # lines; all of them take a minute, and were clean


def book(city: str) -> str:
    """Book."""
    return city


async def look(city: str) -> str:
    """Look."""
    return city


def answer(prompt: Prompt) -> Answer:
    last = prompt.messages[-1]
    if isinstance(last, UserMessage) and last.text == "book":
        return ["hm", call("book", '{"city": "Rome"}'), call("look", '{"city": "Oslo"}')]
    return "done"


def called(client: ChatClient) -> None:
    client.prompt("book").conversation("c").call().content()


def streamed(client: ChatClient) -> None:
    assert list(client.prompt("book").conversation("c").stream().events())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore:.* was never (asked|awaited):RuntimeWarning")
@pytest.mark.parametrize("turn", [called, streamed])
@pytest.mark.parametrize("first", range(3))
def test_an_interrupted_turn_leaves_nothing_behind(
    first: int, turn: Callable[[ChatClient], None]
) -> None:
    """Its memory has the turn or nothing of it, no thread is left, and the next turn works.

    What comes after it is no part of it.
    """
    threads = threading.active_count()
    line = 1 + first * STRIDE // 3
    while True:
        memory = MessageWindowChatMemory()
        client = (
            ChatClient.builder(ScriptedModel(answer))
            .default_tools(book, look)
            .default_advisors(MessageChatMemoryAdvisor(memory))
            .build()
        )
        client.prompt("hello").conversation("c").call().content()
        if not interrupt_at(line, partial(turn, client), *OURS):
            break

        kept = memory.get("c")
        assert conversation_problems(kept, ending="answer") == ()
        assert len(kept) in (2, 6), line
        again = client.prompt("again").conversation("c").call()
        assert again.content() == "done"
        assert again.trail().parent is None, line
        line += STRIDE
    gc.collect()  # what was interrupted may say so now, and in no later test
    assert line > 1000
    # The thread that serves coroutine functions of blocking turns stays for the next ones.
    assert settled(lambda: threading.active_count() <= threads + 1)


def test_a_call_that_is_interrupted_changes_nothing_for_its_thread() -> None:
    """Wherever Ctrl-C comes while something is set for a part of the call, and put back."""

    class Purse:
        def check(self) -> None:
            """Let everything pass."""

        def add(self, answer: ChatResponse) -> None:
            """Book nothing."""

    async def work() -> None:
        with callers.caller_deadline(0.0), model_calls.booked_in(Purse()):
            pass

    interrupted = 0
    while interrupt_at(interrupted + 1, lambda: drive(work()), callers, model_calls):
        interrupted += 1
        assert callers.within_callers_deadline(BLOCKING) is BLOCKING, interrupted
        assert model_calls.present_ledger() is None, interrupted
    assert interrupted > 10
