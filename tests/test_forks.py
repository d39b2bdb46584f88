"""Forks: what a child writes is kept, and no child waits for a thread that it does not have."""

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
from bag_of_words import BagOfWords

from chatclient import ChatClient, forks
from chatclient.advisors.caching import InMemoryResponseStore, ResponseCacheAdvisor
from chatclient.advisors.rate_limit import RateLimitAdvisor
from chatclient.forks import ForkBarrier, ForkSafeLock
from chatclient.memory import InMemoryChatMemoryRepository, SqlChatMemoryRepository
from chatclient.memory.sessions import InMemorySessionRepository, SessionService
from chatclient.messages import UserMessage
from chatclient.providers.local import LocalChatModel
from chatclient.testing import ScriptedModel
from chatclient.tools.search import KeywordToolIndex, ToolReference, ToolSearchRequest
from chatclient.vector_store import Document, InMemoryVectorStore, SqliteVectorStore

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
    if pid == 0:  # pragma: no cover - coverage is not told of it
        status = 1
        try:
            child()
            status = 0
        finally:
            os._exit(status)
    return pid


def status_of(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize(
    ("make", "query"),
    [
        (a_memory, "SELECT conversation_id FROM chatclient_conversation"),
        (a_vector_store, "SELECT id FROM documents"),
    ],
)
def test_what_a_child_writes_is_kept_when_the_parent_closes_first(
    tmp_path: Path, make: Callable[[Path], tuple[Any, Use]], query: str
) -> None:
    """A file of SQLite that was in use before the fork loses nothing that was acknowledged."""
    path = tmp_path / "file.db"
    store, use = make(path)
    use("before")
    ready, told = os.pipe()
    closed, go_on = os.pipe()

    def child() -> None:  # pragma: no cover
        use("child 1")
        os.write(told, b"x")
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


def test_a_store_in_memory_is_copied_to_the_child() -> None:
    """A child has what was there, and its own from then on."""
    store = SqliteVectorStore(":memory:", BagOfWords())
    store.add([Document("cat", id="before")])

    def child() -> None:  # pragma: no cover
        store.add([Document("cat", id="child")])
        assert len(store.similarity_search("cat")) == 2

    assert status_of(fork(child)) == 0
    assert len(store.similarity_search("cat")) == 1
    store.close()
    assert status_of(fork(lambda: None)) == 0  # what is closed is in nobody's way


def test_a_child_does_not_wait_for_a_thread_of_the_parents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even when something takes longer than a fork waits for it."""
    monkeypatch.setattr("chatclient.forks._PATIENCE", 0.01)
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


def test_a_child_builds_the_tool_index_that_its_parent_was_building() -> None:
    """It does not wait for the thread that was at it."""
    tools = [ToolReference(f"tool_{number}", "Does a thing.") for number in range(300)]
    index = KeywordToolIndex()
    catalog = index._catalogs.assign("s", tools).catalog
    assert catalog is not None

    def child() -> None:  # pragma: no cover
        signal.alarm(20)
        assert index.search(ToolSearchRequest("s", "tool 77", 1)).tool_names == ("tool_77",)

    with catalog.parts[0].segment.building:
        assert status_of(fork(child)) == 0


def test_only_what_knows_of_forks_has_a_lock_of_its_own() -> None:
    """A plain lock that a thread of the parent held would be held in the child for ever."""
    root = Path(forks.__file__).parent
    owners = {path.name for path in root.glob("**/*.py") if "threading.Lock" in path.read_text()}
    folders = ("advisors", "providers", "tools")  # links, which `**` does not follow
    files = (path for name in folders for path in (root / name).glob("**/*.py"))
    owners |= {path.name for path in files if "threading.Lock" in path.read_text()}

    assert owners == {
        "forks.py",
        # These have an `after_fork`.
        *("catalog.py", "connections.py", "sqlite.py", "sql_schema.py", "threads.py"),
        *("answers.py", "budget.py", "interruption.py"),  # one request's
        "replaying.py",  # a test's
        "llama_server.py",  # looks at the process id
    }


def test_ctrl_c_does_not_keep_a_lock() -> None:
    """No line of Python is run between what takes it and the block that gives it back."""
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


def test_who_was_interrupted_inside_may_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C may come before a thread is known to have left, and before a fork is known of."""
    monkeypatch.setattr(forks, "_PATIENCE", 60.0)
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


def test_a_fork_and_what_must_not_be_disturbed_wait_for_each_other() -> None:
    """Nothing is under way in a fork, and nothing begins."""
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
