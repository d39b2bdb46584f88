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

from chatclient import (
    AssistantMessage,
    Batch,
    BatchProgress,
    BatchResult,
    BatchSettings,
    ChatClient,
    Prompt,
    Usage,
    tool,
)
from chatclient.advisors import Budget
from chatclient.errors import EntityError, UsageError, WrongTypeError
from chatclient.testing import Answer, ScriptedModel, call
from chatclient.tools import ToolApproval, ToolCallingManager
from tests.support.paths import ROOT
from tests.support.waiting import settled


async def results_of(batch: Batch[Any], *, blocking: bool) -> dict[str, BatchResult[Any]]:
    """Return the results of *batch* by key."""
    if blocking:
        return {result.key: result for result in await asyncio.to_thread(list, batch)}
    return {result.key: result async for result in batch}


@pytest.fixture(params=[True, False], ids=["blocking", "async"])
def blocking(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


async def test_results_and_errors(blocking: bool) -> None:
    """Each request has a result or an error; prompts and requests can be mixed."""

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


async def test_the_number_of_parallel_requests_is_limited(blocking: bool) -> None:
    running: list[int] = []
    lock = threading.Lock()
    most = 0

    def wait() -> None:
        nonlocal most
        with lock:
            running.append(1)
            most = max(most, len(running))
        settled(lambda: most >= 3)
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


def test_values_without_json_form_in_a_journal(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They are left out, and named there and in the log."""
    journal = tmp_path / "journal"
    answer = AssistantMessage("Hi.", metadata={"connection": object(), "kept": 1})
    list(ChatClient.create(ScriptedModel(answer)).batch(["1"], journal=journal))

    [restored] = ChatClient.create(ScriptedModel()).batch(["1"], journal=journal)

    assert restored.response is not None
    assert restored.response.output is not None
    assert restored.response.output.metadata == {"kept": 1}
    assert b'"left_out":{' in journal.read_bytes()
    assert "metadata.connection" in caplog.text


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


OTHER_FILES = [
    b"{}\n",
    b'{"v":2}\n',
    b"x\n",
    b'{"v":1,"result":"0"}',
    b"\x89PNG\r\n\x1a\n\x00",
    b"\x00" * 99,
    b'{"v":1,"journal":"chatclient batch"}\n[1]\n',
]


@pytest.mark.parametrize("content", OTHER_FILES)
def test_other_file_is_not_a_journal(content: bytes, tmp_path: Path) -> None:
    """A file that is no journal is left as it is, with or without a line end."""
    journal = tmp_path / "notes"
    journal.write_bytes(content)

    with pytest.raises(UsageError, match="is not the journal of a batch"):
        ChatClient.create(ScriptedModel()).batch(["1"], journal=journal)
    assert journal.read_bytes() == content


def test_cut_first_line_of_a_journal(tmp_path: Path) -> None:
    """A journal that was being created when the process was killed is created again."""
    journal = tmp_path / "journal"
    list(ChatClient.create(ScriptedModel("a")).batch(["1"], journal=journal))
    journal.write_bytes(journal.read_bytes()[:7])

    [result] = ChatClient.create(ScriptedModel("b")).batch(["1"], journal=journal)
    [again] = ChatClient.create(ScriptedModel()).batch(["1"], journal=journal)

    assert [result.value, again.value] == ["b", "b"]


def test_device_is_not_a_journal() -> None:
    """What is no file cannot keep the answers."""
    with pytest.raises(UsageError, match="must be a file"):
        ChatClient.create(ScriptedModel()).batch(["1"], journal="/dev/null")


FULL_DISK = """
import resource, sys
from chatclient import ChatClient
from chatclient.testing import ScriptedModel

model = ScriptedModel("one", "two" * 400, "three")
batch = ChatClient.create(model).batch(["1", "2", "3"], journal=sys.argv[1], concurrency=1)
resource.setrlimit(resource.RLIMIT_FSIZE, (900, 900))
print(*(result.unwrap()[:5] for result in batch))
"""


def test_full_disk(tmp_path: Path) -> None:
    """An answer that cannot be recorded is not lost, and the journal stays readable."""
    journal = tmp_path / "journal"
    # Without compiled files (-B), which Python would write in part, and others would read.
    command = [sys.executable, "-B", "-c", FULL_DISK, str(journal)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert ran.stdout == "one twotw three\n"
    assert ran.stderr.count("not recorded in the journal") == 1

    model = ScriptedModel("new")
    results = ChatClient.create(model).batch(["1", "2", "3"], journal=journal)
    assert sorted(str(result.value) for result in results) == ["new", "one", "three"]
    assert model.unused == 0


@tool
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


def paying(*answers: Answer) -> ChatClient:
    """Return a client whose payments have to be approved."""
    return (
        ChatClient.builder(ScriptedModel(*answers))
        .default_tools(pay)
        .tool_calling_manager(ToolCallingManager(interceptors=[ToolApproval()]))
        .build()
    )


@pytest.mark.parametrize("entity", [None, int])
async def test_turn_that_waits(blocking: bool, entity: Any, tmp_path: Path) -> None:
    """It is no answer: it has its pending turn, again after a crash, and can be resumed."""
    journal = tmp_path / "journal"
    client = paying("1", call("pay", {"amount": 5}))
    settings: BatchSettings = {"journal": journal, "concurrency": 1}
    batch = client.batch(["a", "b"], entity, **settings)
    results = await results_of(batch, blocking=blocking)

    assert [results[key].outcome for key in "01"] == ["answered", "waiting"]
    assert (batch.progress.succeeded, batch.progress.waiting, batch.progress.failed) == (1, 1, 0)
    assert results["1"].value is None
    assert results["1"].usage.total_tokens == 15
    with pytest.raises(EntityError, match="waits for approval of pay"):
        results["1"].unwrap()

    client = paying("7")
    again = await results_of(client.batch(["a", "b"], entity, **settings), blocking=blocking)
    assert again["1"].pending_turn == results["1"].pending_turn
    assert again["1"].pending_turn is not None

    resumed = {"1": client.resume(again["1"].pending_turn, "approve")}
    for requests in (resumed, resumed, ["a", "b"]):
        results = await results_of(client.batch(requests, entity, **settings), blocking=blocking)
        assert str(results["1"].unwrap()) == "7"


def test_batch_that_is_iterated_again(tmp_path: Path) -> None:
    """With a journal, a batch that was left continues when it is iterated again."""
    model = ScriptedModel(lambda prompt: prompt.contents)
    client = ChatClient.create(model)
    batch = client.batch(["a", "b", "c"], journal=tmp_path / "journal", concurrency=1)
    assert next(iter(batch)).value == "a"

    assert [each.value for each in batch] == ["a", "b", "c"]
    assert [prompt.contents for prompt in model.prompts].count("a") == 1


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
    for one in ("hello", b"hello", client.prompt("hello"), 5):
        with pytest.raises(WrongTypeError, match="into a list"):
            client.batch(one)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="two requests of a batch have the key '1'"):
        client.batch({1: "a", "1": "b"})  # type: ignore[dict-item]
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


@pytest.mark.process("killed batch")
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


async def test_budget_of_a_batch(blocking: bool) -> None:
    """It limits all requests together, also their tools; the others are not sent."""
    client = ChatClient.create(ScriptedModel(lambda prompt: "x"))
    batch = client.batch(["q"] * 6, concurrency=1, budget=Budget(calls=4))
    results = await results_of(batch, blocking=blocking)

    errors = [result.error for result in results.values() if result.error is not None]
    assert [str(error) for error in errors] == [
        "the batch has spent 4 of 4 (calls); nothing more was sent"
    ] * 2
    assert batch.progress.spent is not None
    assert (batch.progress.spent.calls, batch.progress.spent.usage.total_tokens) == (4, 60)
    assert (batch.progress.succeeded, batch.progress.failed) == (4, 2)


async def test_budgets_of_batch_and_turns(blocking: bool) -> None:
    """A call counts in the budget of its turn and in that of the batch."""
    model = ScriptedModel(lambda prompt: "x")
    client = ChatClient.builder(model).default_advisors(Budget(calls=1)).build()
    batch = client.batch(["q"] * 3, budget=Budget())
    await results_of(batch, blocking=blocking)

    assert batch.progress.spent is not None
    assert (batch.progress.spent.calls, batch.progress.failed) == (3, 0)


def test_budget_with_a_period() -> None:
    client = ChatClient.create(ScriptedModel())
    with pytest.raises(UsageError, match="has no period"):
        client.batch(["q"], budget=Budget(calls=1, period="day"))
    wrong: Any = 5
    with pytest.raises(WrongTypeError, match="budget"):
        client.batch(["q"], budget=wrong)


async def test_progress_of_a_batch(blocking: bool, tmp_path: Path) -> None:
    """It is reported after each request, with a rate to which the journal adds nothing."""

    def answer(prompt: Prompt) -> str:
        if prompt.contents == "c" and len(model.prompts) < 4:
            msg = "not yet"
            raise RuntimeError(msg)
        return "x"

    model = ScriptedModel(answer)
    client = ChatClient.create(model)
    for finished, known in ((3, 0), (3, 2)):
        seen: list[BatchProgress] = []
        batch = client.batch(
            list("abc"), journal=tmp_path / "j", concurrency=1, on_progress=seen.append
        )
        await results_of(batch, blocking=blocking)

        assert [each.finished for each in seen] == [1, 2, 3]
        assert batch.progress == seen[-1]
        assert (seen[-1].finished, seen[-1].known) == (finished, known)
        assert seen[-1].rate == pytest.approx((finished - known) / seen[-1].seconds)
        assert seen[0].remaining_seconds is None or known == 0
    assert seen[-1].failed == 0
