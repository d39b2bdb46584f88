"""Ctrl-C at any line of a turn with tools: memory stays valid, and the next turn works."""

import gc
import sys
import threading
from collections.abc import Callable
from functools import partial

import pytest

from chatclient import ChatClient, ChatResponse, Prompt
from chatclient.advisors.memory.advisors import MessageChatMemoryAdvisor
from chatclient.chain import model_call as model_calls
from chatclient.chain.model_call import CountedCall
from chatclient.chat.messages import UserMessage
from chatclient.memory import ENDED_EARLY, MessageWindowChatMemory, conversation_problems
from chatclient.runtime import runtime as callers
from chatclient.runtime.blocking import drive
from chatclient.runtime.runtime import BLOCKING, Runtime
from chatclient.testing import Answer, ScriptedModel, call
from tests.support.interrupts import interrupt_at
from tests.support.waiting import settled

OURS = [module for name, module in sys.modules.items() if name.split(".")[0] == "chatclient"]
STRIDE = 41  # lines; testing all of them takes a minute


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
def test_interrupted_turn(first: int, turn: Callable[[ChatClient], None]) -> None:
    """No thread is left, and the next turn works.

    Memory has all or nothing of the turn; of a stream that has sent something, it may have what was
    shown. Later turns are separate.
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
        ended_early = ENDED_EARLY in kept[-1].metadata
        assert len(kept) in ((3, 4, 5, 6) if ended_early else (2, 6)), line
        assert turn is streamed or not ended_early
        again = client.prompt("again").conversation("c").call()
        assert again.content() == "done"
        assert again.trail().parent is None, line
        line += STRIDE
    gc.collect()  # report destructor warnings now, not in a later test
    assert line > 1000
    # The thread for coroutine functions of blocking turns is kept.
    assert settled(lambda: threading.active_count() <= threads + 1)


def test_interrupt_restores_thread_state() -> None:
    """An interrupt at any line restores thread-local state."""

    class Purse:
        async def enter(self, call: CountedCall, runtime: Runtime) -> model_calls.UsageEntry:
            raise NotImplementedError

        def replay(self, response: ChatResponse) -> None:
            """Do nothing."""

    async def work() -> None:
        with callers.CallerDeadline(0.0), model_calls.record_usage(Purse()):
            pass

    interrupted = 0
    while interrupt_at(interrupted + 1, lambda: drive(work()), callers, model_calls):
        interrupted += 1
        assert callers.within_callers_deadline(BLOCKING) is BLOCKING, interrupted
        assert model_calls.current_ledger() is None, interrupted
    assert interrupted >= 10
