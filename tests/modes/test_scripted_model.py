"""Scripts of functions, pauses, delays and failures, in all four modes."""

import asyncio
import time
from typing import Any

import pytest

from chatclient import ChatClient, Prompt, TextDelta
from chatclient.errors import DeadlineExceededError, OverloadedError, UsageError
from chatclient.testing import Answer, Ask, ScriptedModel, call


async def later(prompt: Prompt) -> Answer:
    await asyncio.sleep(0)
    return f"later: {prompt.contents}"


def test_functions_among_answers(ask: Ask) -> None:
    """Plain and async ones answer one call each; a single one answers all."""
    model = ScriptedModel("first", lambda prompt: prompt.contents.upper(), later)
    client = ChatClient.create(model)

    assert [ask(client.prompt(text)).text for text in "abc"] == ["first", "B", "later: c"]
    assert model.unused == 0
    always = ScriptedModel(later)
    assert [ask(ChatClient.create(always).prompt(text)).text for text in "ab"] == [
        "later: a",
        "later: b",
    ]
    assert always.unused == 0


def test_a_function_that_fails(ask: Ask) -> None:
    """Its error is that of the model, whether raised or returned."""

    async def fails(prompt: Prompt) -> Answer:
        raise OverloadedError(prompt.contents)

    client = ChatClient.create(ScriptedModel(fails, lambda _: OverloadedError("b")))
    for text in "ab":
        with pytest.raises(OverloadedError, match=text):
            ask(client.prompt(text))


def test_pauses_and_a_failure_in_an_answer(ask: Ask) -> None:
    """In a stream they come between the items; without, all before the answer."""
    script: list[Any] = [0.02, "One.", 0.02, 0.02, call("x"), 0.02, OverloadedError("busy")]
    client = ChatClient.create(ScriptedModel(script, chunks=100))
    started = time.monotonic()
    with pytest.raises(OverloadedError):
        ask(client.prompt("x"))

    assert time.monotonic() - started >= 0.08


def test_pieces_of_a_paused_stream() -> None:
    """What precedes a pause has arrived before it."""
    client = ChatClient.create(ScriptedModel(["One.", 0.2, "Two."], chunks=100))
    events = client.prompt("x").stream().events()
    first, second = (time.monotonic() for event in events if isinstance(event, TextDelta))

    assert second - first >= 0.2


def test_delay_before_each_answer(ask: Ask) -> None:
    """It counts towards the deadline of the request."""
    client = ChatClient.create(ScriptedModel("a", "b", delay=0.05))
    started = time.monotonic()

    assert ask(client.prompt("x")).text == "a"
    assert time.monotonic() - started >= 0.05
    with pytest.raises(DeadlineExceededError):
        ask(client.prompt("x").deadline(0.01))


def test_delay_is_a_duration() -> None:
    """A negative delay is refused."""
    with pytest.raises(UsageError, match="delay"):
        ScriptedModel("a", delay=-1)
