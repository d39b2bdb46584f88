"""Batches with bounded concurrency, their journal, and their errors."""

import asyncio
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from chatclient import Batch, BatchResult, ChatClient, Prompt, Usage
from chatclient.errors import EntityError, UsageError
from chatclient.testing import ScriptedModel
from tests.support.paths import ROOT


async def results_of(batch: Batch[Any], *, blocking: bool) -> dict[str, BatchResult[Any]]:
    """Return the results of *batch* by key."""
    if blocking:
        return {result.key: result for result in await asyncio.to_thread(list, batch)}
    return {result.key: result async for result in batch}


@pytest.fixture(params=[True, False], ids=["blocking", "async"])
def blocking(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


async def test_results_and_errors(blocking: bool) -> None:
    """Each request has a result or an error of its own; prompts and requests can be mixed."""

    def answer(prompt: Prompt) -> str:
        if prompt.contents == "bad":
            msg = "no"
            raise RuntimeError(msg)
        return prompt.contents.upper()

    client = ChatClient.create(ScriptedModel(answer))
    batch = client.batch({"a": "x", "b": client.prompt().user("bad"), "c": "y"})
    results = await results_of(batch, blocking=blocking)

    assert results["a"].unwrap() == "X"
    assert results["c"].response is not None
    with pytest.raises(RuntimeError, match="no"):
        results["b"].unwrap()
    assert results["b"].usage == Usage()
    assert (batch.progress.total, batch.progress.finished, batch.progress.failed) == (3, 3, 1)


async def test_at_most_so_many_requests_run_at_once(blocking: bool) -> None:
    running: list[int] = []
    lock = threading.Lock()
    most = 0

    def wait() -> None:
        nonlocal most
        with lock:
            running.append(1)
            most = max(most, len(running))
        time.sleep(0.02)
        with lock:
            running.pop()

    model = ScriptedModel(lambda prompt: "x")
    client = ChatClient.builder(model).default_advisors(_Waiting(wait)).build()
    await results_of(client.batch(["q"] * 9, concurrency=3), blocking=blocking)

    assert most == 3


class _Waiting:
    """An advisor that calls a function in a thread before the model."""

    def __init__(self, function: Any) -> None:
        self._function = function

    async def __call__(self, request: Any, call_next: Any) -> Any:
        await request.runtime.invoke(self._function)
        return await call_next(request)


class City(BaseModel):
    name: str


async def test_entities_are_restored_from_the_journal(blocking: bool, tmp_path: Path) -> None:
    """Finished requests are not sent again; failed ones are."""
    journal = tmp_path / "cities"
    first = ScriptedModel('{"name": "Rome"}', '{"nom": "Oslo"}')
    client = ChatClient.create(first)
    results = await results_of(
        client.batch(["1", "2"], City, journal=journal, concurrency=1), blocking=blocking
    )
    assert results["0"].value == City(name="Rome")
    assert isinstance(results["1"].error, EntityError)
    assert [results[key].usage.total_tokens for key in "01"] == [15, 15]

    second = ScriptedModel('{"name": "Oslo"}')
    client = ChatClient.create(second)
    results = await results_of(client.batch(["1", "2"], City, journal=journal), blocking=blocking)
    assert [results[key].value for key in "01"] == [City(name="Rome"), City(name="Oslo")]
    assert second.unused == 0


def test_cut_line_of_a_journal_is_replaced(tmp_path: Path) -> None:
    """A crash while a line was written loses that line only."""
    journal = tmp_path / "journal"
    list(ChatClient.create(ScriptedModel("a", "b")).batch(["1", "2"], journal=journal))
    journal.write_bytes(journal.read_bytes()[:-5])

    model = ScriptedModel("c")
    texts = [r.value for r in ChatClient.create(model).batch(["1", "2"], journal=journal)]

    assert sorted(map(str, texts)) == ["a", "c"] or sorted(map(str, texts)) == ["b", "c"]
    complete = list(ChatClient.create(ScriptedModel()).batch(["1", "2"], journal=journal))
    assert [result.error for result in complete] == [None, None]


def test_journal_that_cannot_be_written(tmp_path: Path) -> None:
    """It is an error before the first request is sent."""
    client = ChatClient.create(ScriptedModel())

    with pytest.raises(UsageError, match=r"the journal cannot be written: .*missing"):
        client.batch(["1"], journal=tmp_path / "missing" / "journal")


@pytest.mark.parametrize("content", ["{}\n", '{"v":2}\n', "x\n", "[1]\n"])
def test_other_file_is_not_a_journal(content: str, tmp_path: Path) -> None:
    journal = tmp_path / "notes"
    journal.write_text(content)

    with pytest.raises(UsageError, match="line 1, is not the journal"):
        ChatClient.create(ScriptedModel()).batch(["1"], journal=journal)
    assert journal.read_text() == content


async def test_leaving_early_stops_the_requests(blocking: bool) -> None:
    model = ScriptedModel(lambda prompt: "x")
    client = ChatClient.create(model)
    batch = client.batch([str(at) for at in range(100)], concurrency=2)
    if blocking:
        next(iter(batch))
    else:
        iterator = aiter(batch)
        await anext(iterator)
        await iterator.aclose()

    assert len(model.prompts) <= 2 * 2 + 2


async def test_cancel_ends_the_iteration() -> None:
    model = ScriptedModel(lambda prompt: "x")
    batch = ChatClient.create(model).batch([str(at) for at in range(100)], concurrency=1)
    async for _ in batch:
        batch.cancel()

    assert batch.progress.finished < 10


def test_invalid_batches() -> None:
    client = ChatClient.create(ScriptedModel())
    other = ChatClient.create(ScriptedModel())

    with pytest.raises(UsageError, match="at least one request"):
        client.batch([])
    with pytest.raises(UsageError, match="another client"):
        client.batch([other.prompt("x")])
    with pytest.raises(UsageError, match="no setting workers; it has concurrency"):
        client.batch(["x"], workers=2)  # type: ignore[call-overload]
    with pytest.raises(UsageError, match="concurrency"):
        client.batch(["x"], concurrency=0)


PROGRAM = """
import sys, time
from chatclient import ChatClient
from chatclient.testing import ScriptedModel

def answer(prompt):
    with open(sys.argv[2], "a") as file:
        print(prompt.contents, file=file, flush=True)
    return prompt.contents

client = ChatClient.create(ScriptedModel(answer))
for result in client.batch(map(str, range(2000)), journal=sys.argv[1]):
    assert result.unwrap() == result.key
print("done", flush=True)
"""


def test_killed_batch_continues(tmp_path: Path) -> None:
    """Killed with `kill -9` several times, it sends each finished request once."""
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "journal"), str(tmp_path / "sent")]
    for _ in range(2):
        process = subprocess.Popen(command, cwd=ROOT)
        deadline = time.monotonic() + 30
        before = _lines(tmp_path / "sent")
        while _lines(tmp_path / "sent") < before + 200 and time.monotonic() < deadline:
            time.sleep(0.01)
        process.kill()
        process.wait()
    finished = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)

    assert finished.stdout == "done\n"
    sent = (tmp_path / "sent").read_text().splitlines()
    assert set(sent) == {str(at) for at in range(2000)}
    # At most the requests that were running when the process was killed are repeated.
    assert len(sent) <= 2000 + 2 * 8


def _lines(path: Path) -> int:
    return path.read_text().count("\n") if path.exists() else 0
