"""Forks: writes of a child are kept, and no child waits for a lock of its parent's threads."""

import os
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import chatclient
from chatclient import ChatClient
from chatclient.advisors.rate_limit import RateLimitAdvisor
from chatclient.advisors.response_cache import InMemoryResponseStore, ResponseCacheAdvisor
from chatclient.chat.messages import UserMessage
from chatclient.memory import (
    InMemoryChatMemoryRepository,
    InMemorySessionRepository,
    SessionService,
    SqlChatMemoryRepository,
)
from chatclient.providers.local.model import LocalChatModel
from chatclient.retrieval import Document, InMemoryVectorStore, SqliteVectorStore
from chatclient.runtime import threads as forks
from chatclient.runtime.threads import ForkBarrier, ForkSafeLock
from chatclient.testing import ScriptedModel
from chatclient.tools.search import KeywordToolIndex, ToolReference, ToolSearchRequest
from tests.support.bag_of_words import BagOfWords

pytest.importorskip("numpy")
pytest.importorskip("sqlalchemy")
if not hasattr(os, "fork"):  # pragma: no cover
    pytest.skip("this platform has no fork", allow_module_level=True)

Use = Callable[[str], object]


def a_memory(path: Path) -> tuple[Any, Use]:
    repository = SqlChatMemoryRepository(f"sqlite:///{path}")
    return repository, lambda name: repository.save_all(name, [UserMessage("Hello")])


def a_vector_store(path: Path) -> tuple[Any, Use]:
    store = SqliteVectorStore(path, BagOfWords())
    return store, lambda name: store.add([Document("cat", id=name)])


def fork(child: Callable[[], object]) -> int:
    pid = os.fork()
    if pid == 0:  # pragma: no cover - not measured by coverage
        status = 1
        try:
            child()
            status = 0
        finally:
            os._exit(status)
    return pid


def status_of(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.feature("memory-no-locking-between-processes")
@pytest.mark.parametrize(
    ("make", "query"),
    [
        (a_memory, "SELECT conversation_id FROM chatclient_conversation"),
        (a_vector_store, "SELECT id FROM documents"),
    ],
)
def test_writes_of_a_child_are_kept(
    tmp_path: Path, make: Callable[[Path], tuple[Any, Use]], query: str
) -> None:
    """A SQLite file in use before the fork keeps all committed writes."""
    path = tmp_path / "file.db"
    store, use = make(path)
    use("before")
    ready, acknowledged = os.pipe()
    closed, go_on = os.pipe()

    def child() -> None:  # pragma: no cover
        use("child 1")
        os.write(acknowledged, b"x")
        os.read(closed, 1)
        use("child 2")

    pid = fork(child)
    use("parent")
    os.read(ready, 1)
    store.close()
    os.write(go_on, b"x")
    status = status_of(pid)

    assert status == 0
    with sqlite3.connect(path) as file:
        kept = {name for (name,) in file.execute(query)}
    file.close()
    assert kept == {"before", "parent", "child 1", "child 2"}


def test_in_memory_store_is_copied() -> None:
    """A child has the entries before the fork and its own."""
    store = SqliteVectorStore(":memory:", BagOfWords())
    store.add([Document("cat", id="before")])

    def child() -> None:  # pragma: no cover
        store.add([Document("cat", id="child")])
        assert len(store.similarity_search("cat")) == 2

    assert status_of(fork(child)) == 0
    assert len(store.similarity_search("cat")) == 1
    store.close()
    assert status_of(fork(lambda: None)) == 0  # closed stores do not delay a fork


def test_child_does_not_wait_for_parent_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock held longer than a fork waits does not block the child."""
    monkeypatch.setattr("chatclient.runtime.threads._WAIT_SECONDS", 0.01)
    stores = [InMemoryVectorStore(BagOfWords()), SqliteVectorStore(tmp_path / "s.db", BagOfWords())]
    conversations = InMemoryChatMemoryRepository()
    sessions = InMemorySessionRepository()
    answers, limit = InMemoryResponseStore(), RateLimitAdvisor(requests=1)
    model = ScriptedModel("Rome")
    advisors = ResponseCacheAdvisor(answers), limit
    client = ChatClient.builder(model).default_advisors(*advisors).build()
    local = LocalChatModel()
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        holders: list[Any] = [*stores, conversations, sessions, answers, limit, local]
        with ExitStack() as locks:
            for each in holders:
                locks.enter_context(each._lock)
            held.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()

    def child() -> None:  # pragma: no cover
        for store in stores:
            store.add([Document("cat")])
        conversations.save_all("c", [UserMessage("Hello")])
        SessionService(sessions).create("ada")
        assert client.prompt("?").call().content() == "Rome"
        local.close()

    pid = fork(child)
    done.set()
    thread.join()
    assert status_of(pid) == 0
    for store in stores:
        store.close()


def test_child_builds_the_tool_index() -> None:
    """A child does not wait for the parent's thread that builds an index."""
    tools = [ToolReference(f"tool_{number}", "Does a thing.") for number in range(300)]
    index = KeywordToolIndex()
    catalog = index._catalogs.assign("s", tools).catalog
    assert catalog is not None

    def child() -> None:  # pragma: no cover
        signal.alarm(20)
        assert index.search(ToolSearchRequest("s", "tool 77", 1)).tool_names == ("tool_77",)

    with catalog.views[0].segment.building:
        assert status_of(fork(child)) == 0


def test_plain_locks_are_listed() -> None:
    """A plain lock held during a fork would stay locked in the child."""
    root = Path(chatclient.__file__).parent
    owners = {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        if "threading.Lock" in path.read_text(encoding="utf-8")
    }

    assert owners == {
        # These have an `after_fork`.
        "memory/sql/database.py",
        "providers/http/connections.py",
        "retrieval/vector_store/sqlite.py",
        "runtime/threads.py",
        "tools/search/segments.py",
        # Used by a single request.
        "advisors/budget.py",
        "client/call_response.py",
        "runtime/blocking.py",
        # Used by tests.
        "testing/recording.py",
        # Compares the process id.
        "providers/local/llama_server.py",
    }


def test_interrupt_releases_the_lock() -> None:
    """No Python line runs between acquiring the lock and its `with` block."""
    lock, lines = ForkSafeLock(), []

    def note(frame: FrameType, event: str, _argument: object) -> Any:
        lines.append(f"{event} in {frame.f_code.co_name}")
        return note

    before = sys.gettrace()
    sys.settrace(note)
    try:
        with lock:
            held = lock._lock.locked()
    finally:
        sys.settrace(before)

    assert held
    assert not lock._lock.locked()
    assert lines == []


def test_fork_after_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt during the bookkeeping of threads or forks does not prevent a fork."""
    monkeypatch.setattr(forks, "_WAIT_SECONDS", 60.0)
    barrier = ForkBarrier()
    barrier.__enter__()
    began = time.monotonic()
    barrier.begin_fork()
    assert time.monotonic() - began < 30
    barrier.end_fork()
    barrier.end_fork()
    entering = threading.Thread(target=barrier.__enter__, daemon=True)
    entering.start()
    entering.join(30)

    assert not entering.is_alive()


def test_forks_and_guarded_sections_exclude_each_other() -> None:
    """During a fork no guarded section runs or starts."""
    barrier, order = ForkBarrier(), []
    inside, leave = threading.Event(), threading.Event()

    def work(name: str) -> None:
        with barrier:
            inside.set()
            leave.wait()
            order.append(name)

    first = threading.Thread(target=work, args=("first",))
    first.start()
    inside.wait()
    threading.Timer(0.01, leave.set).start()
    barrier.begin_fork()
    order.append("fork")
    second = threading.Thread(target=work, args=("second",))
    second.start()
    barrier.end_fork()
    first.join()
    second.join()

    assert order == ["first", "fork", "second"]
