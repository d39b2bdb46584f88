"""Tests that every `ChatMemoryRepository` must pass. They need pytest.

Use them in a test module:

    class TestMyRepository(ChatMemoryRepositoryContract):
        @pytest.fixture
        def repository(self):
            with MyRepository(...) as repository:
                yield repository

For detailed assertion messages, call
`pytest.register_assert_rewrite("chatclient.testing.repository_contract")` in the conftest before
the import.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4

import pytest

from chatclient.chat.messages import Message, SystemMessage, UserMessage
from chatclient.errors import UsageError
from chatclient.memory.repository import NO_CONVERSATION, ChatMemoryRepository, Conversation, newest
from chatclient.memory.window import Window, messages_from
from chatclient.runtime.blocking import drive
from chatclient.runtime.runtime import BLOCKING, ON_LOOP, Runtime
from chatclient.testing.contract_parts import (
    AWKWARD_IDS,
    EVERY_KIND,
    check_loop_is_free,
    turn,
)

T = TypeVar("T")


@dataclass(frozen=True)
class Store:
    """A repository that is called blocking, or each time on a new event loop."""

    repository: ChatMemoryRepository
    blocking: bool

    def load(self, name: str, *, last: int | None = None) -> Conversation:
        """Load a conversation."""
        return self._run(lambda runtime: self.repository.load(name, runtime, last=last))

    def append(self, name: str, messages: Sequence[Message], *, key: str | None = None) -> bool:
        """Append *messages*, and return whether they were stored."""
        return self._run(lambda runtime: self.repository.append(name, messages, runtime, key=key))

    def replace(
        self, name: str, messages: Sequence[Message], *, expected: int | None = None
    ) -> bool:
        """Replace the messages, and return whether they were stored."""
        return self._run(
            lambda runtime: self.repository.replace(name, messages, runtime, expected=expected)
        )

    def delete(self, name: str) -> None:
        """Delete a conversation."""
        self._run(lambda runtime: self.repository.delete(name, runtime))

    def delete_older_than(self, cutoff: datetime) -> int:
        """Delete old messages, and return their number."""
        return self._run(lambda runtime: self.repository.delete_older(cutoff, runtime))

    def conversation_ids(self) -> list[str]:
        """Return the ids of all conversations."""
        return self._run(self.repository.conversation_ids)

    def call(self, method: str, *arguments: object) -> Any:
        """Call a public method of the repository, or its asynchronous variant."""
        if self.blocking:
            return getattr(self.repository, method)(*arguments)
        return asyncio.run(getattr(self.repository, f"a{method}")(*arguments))

    def _run(self, start: Callable[[Runtime], Coroutine[Any, Any, T]]) -> T:
        return drive(start(BLOCKING)) if self.blocking else asyncio.run(start(ON_LOOP))


def check_turns(messages: Sequence[Message], *, workers: int, turns: int) -> None:
    """Check that *messages* are the turns `turn("worker.number", 2)`, each complete and once.

    Raises:
        AssertionError: They are not.
    """
    labels = [m.text.split()[1] for m in messages if isinstance(m, UserMessage)]
    assert tuple(messages) == tuple(m for label in labels for m in turn(label, 2))
    for worker in range(workers):
        own = [label for label in labels if label.split(".")[0] == str(worker)]
        assert own == [f"{worker}.{number}" for number in range(turns)]
    assert len(labels) == workers * turns


def day(number: int) -> datetime:
    """Return a day of January 2000."""
    return datetime(2000, 1, number, tzinfo=UTC)


def stored_on(messages: Sequence[Message], number: int) -> list[Message]:
    """Return *messages* as stored on a day of January 2000."""
    return [message.with_stored_at(day(number)) for message in messages]


def times(conversation: Conversation) -> list[datetime]:
    """Return when the messages of *conversation* were stored."""
    return [m.stored_at for m in conversation.messages if m.stored_at is not None]


def with_first(message: Message, messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Return *messages* after *message*."""
    return (message, *messages)


class ChatMemoryRepositoryContract:
    """The tests; a subclass defines the fixture `repository`, which need not be empty."""

    @pytest.fixture
    def repository(self) -> ChatMemoryRepository:
        """Return the repository to test."""
        raise NotImplementedError

    @pytest.fixture(params=["blocking", "on a loop"])
    def store(self, request: pytest.FixtureRequest, repository: ChatMemoryRepository) -> Store:
        """Return the repository in both modes."""
        return Store(repository, blocking=request.param == "blocking")

    @pytest.fixture
    def name(self) -> str:
        """Return the id of a conversation that does not exist."""
        return f"contract-{uuid4()}"

    def test_an_unknown_conversation_is_empty(self, store: Store, name: str) -> None:
        """It has no messages and version 0."""
        assert store.load(name) == NO_CONVERSATION
        assert store.load(name, last=3) == NO_CONVERSATION

    def test_messages_of_every_kind_are_loaded_unchanged(self, store: Store, name: str) -> None:
        """Messages that were appended, and messages that replaced others."""
        store.append(name, EVERY_KIND)
        appended = store.load(name)
        store.replace(name, EVERY_KIND[::-1])
        replaced = store.load(name)

        assert appended.messages == EVERY_KIND
        assert replaced.messages == EVERY_KIND[::-1]
        assert appended.complete
        assert [type(m.metadata) for m in appended.messages] == [
            type(m.metadata) for m in EVERY_KIND
        ]

    def test_messages_keep_their_order(self, store: Store, name: str) -> None:
        """Within one call of `append` and across calls."""
        turns = [turn(number, number % 3 + 1) for number in range(12)]
        for messages in turns:
            assert store.append(name, messages) is True

        found = store.load(name)
        assert found.messages == tuple(message for messages in turns for message in messages)

    def test_equal_messages_are_not_merged(self, store: Store, name: str) -> None:
        """A message that is appended twice is stored twice."""
        for _ in range(2):
            store.append(name, turn(1))

        assert store.load(name).messages == turn(1) * 2

    def test_the_given_list_is_copied(self, store: Store, name: str) -> None:
        """Later changes of the list do not change the conversation."""
        given = list(turn(1))
        store.append(name, given)
        given.clear()

        assert store.load(name).messages == turn(1)

    def test_appending_nothing_creates_no_conversation(self, store: Store, name: str) -> None:
        """A conversation without messages does not exist."""
        store.append(name, ())

        assert store.load(name) == NO_CONVERSATION
        assert name not in store.conversation_ids()

    def test_ids_are_compared_exactly(self, store: Store, name: str) -> None:
        """Case, accents, spaces, wildcards, separators and length are significant."""
        ids = [f"{id}{name}{id}" for id in AWKWARD_IDS]
        for id in ids:
            store.append(id, [UserMessage(id)])

        for id in ids:
            found = store.load(id)
            assert found.messages == (UserMessage(id),)
        stored_ids = store.conversation_ids()
        assert set(ids) <= set(stored_ids)
        assert len(stored_ids) == len(set(stored_ids))

    def test_messages_have_a_time(self, store: Store, name: str) -> None:
        """It is set when a message is stored, and kept when it is stored again."""
        earliest = datetime.now(UTC)
        store.append(name, EVERY_KIND)
        appended = times(store.load(name))
        store.replace(name, [*store.load(name).messages, UserMessage("new")])
        replaced = times(store.load(name))

        assert earliest <= min(appended) <= max(appended) <= datetime.now(UTC)
        assert {moment.utcoffset() for moment in appended} == {timedelta(0)}
        assert replaced[:-1] == appended
        assert max(appended) <= replaced[-1] <= datetime.now(UTC)

    def test_old_messages_are_deleted(self, store: Store, name: str) -> None:
        """Turns are deleted completely, and system messages with the last turn."""
        system = SystemMessage("Be brief.")
        turns = [stored_on(turn(day, 2), day) for day in (1, 2, 3)]
        straddling = (*stored_on(turn(4, 2)[:2], 4), *stored_on(turn(4, 2)[2:], 5))
        messages = [system, *turns[0], *turns[1], *turns[2], *straddling]
        gone = f"{name}-gone"
        store.append(name, messages)
        store.append(gone, [*stored_on([system], 1), *turns[0]])

        assert store.delete_older_than(day(2)) == 2 * len(turns[0]) + 1
        assert store.load(name).messages == (system, *turns[1], *turns[2], *straddling)
        assert times(store.load(name))[1:] == [m.stored_at for m in messages[5:]]
        assert store.load(gone) == NO_CONVERSATION
        assert store.delete_older_than(day(1)) == 0
        assert store.delete_older_than(day(2)) == 0
        assert store.delete_older_than(day(5)) == 3 * len(turns[0])
        store.append(name, turn(5))
        assert store.load(name).messages == (system, *turn(5))

    def test_a_cutoff_needs_a_time_zone(self, repository: ChatMemoryRepository) -> None:
        """Otherwise nothing is deleted."""
        with pytest.raises(UsageError, match="time zone"):
            repository.delete_older_than(datetime(2000, 1, 1))  # noqa: DTZ001

    def test_the_last_messages_can_be_loaded(self, store: Store, name: str) -> None:
        """The result has all system messages, and what is missing, if the store knows it."""
        systems = [SystemMessage("one"), SystemMessage("two")]
        messages = (systems[0], *turn(1), systems[1], *turn(2, 3), *turn(3))
        for message in messages:
            store.append(name, [message])
        version = store.load(name).version

        for last in range(len(messages) + 2):
            found = store.load(name, last=last)
            expected = newest(messages, last)
            older = len(messages) - len(expected)
            assert found.older in (older, None)
            assert found == Conversation(expected, version, not older, found.older)

    def test_windows_depend_on_the_conversation_only(self, store: Store, name: str) -> None:
        """While a conversation grows, they start where they would with all of its messages."""
        windows = [Window.messages(7), Window.tokens(60), Window.messages(9) & Window.tokens(70)]
        for number in range(20):
            systems = [SystemMessage(str(number))] * (number in (3, 8))
            store.append(name, [*systems, *turn(number, 1 + number % 3)])
            stored = store.load(name).messages
            for window in windows:
                found = store.load(name, last=30)
                older = found.older
                if older is None:  # windows slide
                    continue
                start = window.start(found.messages, older)
                assert messages_from(found.messages, start) == window.select(stored)

    def test_a_conversation_may_have_no_system_messages(self, store: Store, name: str) -> None:
        """Loading only system messages yields an empty, incomplete conversation."""
        store.append(name, turn(1))
        version = store.load(name).version

        found = store.load(name, last=0)
        assert found == Conversation((), version, complete=False, older=found.older)

    def test_every_change_sets_a_new_version(self, store: Store, name: str) -> None:
        """Versions are not reused, also after a conversation was deleted; loading changes none."""
        versions = []
        for _ in range(3):
            for _ in range(3):
                store.append(name, turn(1))
                versions.append(store.load(name).version)
                assert store.load(name) == store.load(name)
            store.replace(name, turn(2))
            versions.append(store.load(name, last=1).version)
            store.delete(name)

        assert len(set(versions)) == len(versions)
        assert 0 not in versions

    def test_replacing_depends_on_the_version(self, store: Store, name: str) -> None:
        """A conversation that has changed since it was loaded is not replaced."""
        store.append(name, turn(1))
        before = store.load(name)
        store.append(name, turn(2))

        assert store.replace(name, turn(9), expected=before.version) is False
        assert store.replace(name, turn(9), expected=0) is False
        found = store.load(name)
        assert found.messages == (*turn(1), *turn(2))
        assert store.replace(name, turn(9), expected=found.version) is True
        assert store.replace(name, turn(8), expected=found.version) is False
        assert store.load(name).messages == turn(9)

    def test_replacing_a_conversation_that_does_not_exist(self, store: Store, name: str) -> None:
        """It has version 0."""
        assert store.replace(name, turn(1), expected=12345) is False
        assert store.replace(name, turn(2), expected=0) is True
        assert store.replace(name, turn(3), expected=0) is False
        assert store.load(name).messages == turn(2)

    def test_messages_can_be_appended_after_replacing(self, store: Store, name: str) -> None:
        """Also if the conversation has become shorter or longer."""
        for messages in (turn(1), turn(1, 5), turn(1)):
            store.replace(name, messages)
            store.append(name, turn(2))
            found = store.load(name)
            tail = store.load(name, last=3)

            assert found.messages == (*messages, *turn(2))
            assert tail.messages == found.messages[-3:]

    def test_replacing_with_nothing_deletes(self, store: Store, name: str) -> None:
        """A conversation without messages does not exist."""
        store.append(name, turn(1))
        version = store.load(name).version
        assert store.replace(name, (), expected=version) is True

        assert store.load(name) == NO_CONVERSATION
        assert name not in store.conversation_ids()

    def test_a_conversation_can_be_deleted(self, store: Store, name: str) -> None:
        """Deleting is idempotent, and does not change other conversations."""
        other = f"{name}-other"
        for id in (name, other):
            store.append(id, turn(1))
        for _ in range(2):
            store.delete(name)

        assert store.load(name) == NO_CONVERSATION
        assert store.load(other).messages == turn(1)
        stored_ids = store.conversation_ids()
        assert name not in stored_ids
        assert other in stored_ids

    def test_appending_with_a_used_key_does_nothing(self, store: Store, name: str) -> None:
        """Keys are case-sensitive, and separate for each conversation."""
        assert store.append(name, turn(1), key="k") is True
        assert store.append(name, turn(2), key="k") is False
        assert store.append(name, turn(3), key="K") is True
        assert store.append(f"{name}-other", turn(4), key="k") is True
        assert store.append(name, (), key="k") is True
        found = store.load(name)
        assert found.messages == (*turn(1), *turn(3))

    def test_keys_are_kept_until_the_conversation_is_deleted(self, store: Store, name: str) -> None:
        """Replacing the messages keeps the keys."""
        for number in range(99):
            store.append(name, turn(number), key=f"key-{number}")
        store.replace(name, turn(100))

        assert store.append(name, turn(0), key="key-0") is False
        assert store.load(name).messages == turn(100)
        store.delete(name)
        assert store.append(name, turn(0), key="key-0") is True

    def test_threads_can_append_concurrently(
        self, repository: ChatMemoryRepository, name: str
    ) -> None:
        """Each turn is stored once and without interruption, in the order of its thread."""

        def work(worker: int) -> None:
            for number in range(10):
                drive(repository.append(name, turn(f"{worker}.{number}", 2), BLOCKING))

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(8)))

        check_turns(drive(repository.load(name, BLOCKING)).messages, workers=8, turns=10)

    def test_tasks_can_append_concurrently(
        self, repository: ChatMemoryRepository, name: str
    ) -> None:
        """Each turn is stored once and without interruption, in the order of its task."""

        async def work(worker: int) -> None:
            for number in range(10):
                await repository.append(name, turn(f"{worker}.{number}", 2), ON_LOOP)

        async def run_workers() -> tuple[Message, ...]:
            await asyncio.gather(*(work(worker) for worker in range(8)))
            return (await repository.load(name, ON_LOOP)).messages

        check_turns(asyncio.run(run_workers()), workers=8, turns=10)

    def test_appending_is_atomic(self, repository: ChatMemoryRepository, name: str) -> None:
        """Concurrent readers see only complete turns."""
        done = threading.Event()
        loaded: list[Conversation] = []

        def read() -> None:
            while not done.is_set():
                loaded.append(drive(repository.load(name, BLOCKING)))

        with ThreadPoolExecutor(2) as pool:
            readers = [pool.submit(read) for _ in range(2)]
            try:
                for number in range(20):
                    drive(repository.append(name, turn(number, 3), BLOCKING))
                    if number % 5 == 4:
                        drive(repository.replace(name, turn("new", 3), BLOCKING))
            finally:
                done.set()
            for reader in readers:
                reader.result()

        assert {len(conversation.messages) % 6 for conversation in loaded} == {0}
        contents: dict[int, tuple[Message, ...]] = {}
        for conversation in loaded:
            first = contents.setdefault(conversation.version, conversation.messages)
            assert first == conversation.messages

    def test_rewriting_keeps_concurrent_changes(
        self, repository: ChatMemoryRepository, name: str
    ) -> None:
        """Threads that append and threads that rewrite lose no message."""

        def add(worker: int) -> None:
            for number in range(5):
                drive(repository.append(name, turn(f"{worker}.{number}", 2), BLOCKING))

        def rewrite(worker: int) -> None:
            for number in range(5):
                prepend = partial(with_first, UserMessage(f"{worker}/{number}"))
                drive(repository.rewrite(name, prepend, BLOCKING))

        with ThreadPoolExecutor(6) as pool:
            jobs = [pool.submit(work, at) for at in range(3) for work in (add, rewrite)]
            for job in jobs:
                job.result()

        messages = drive(repository.load(name, BLOCKING)).messages
        markers = [m for m in messages if "/" in m.text]
        assert sorted(m.text for m in markers) == [f"{w}/{n}" for w in range(3) for n in range(5)]
        check_turns([m for m in messages if "/" not in m.text], workers=3, turns=5)

    def test_concurrent_calls_use_a_key_once(
        self, repository: ChatMemoryRepository, name: str
    ) -> None:
        """One of several threads that append with the same key stores the messages."""

        def append(_: int) -> bool:
            return drive(repository.append(name, turn(1), BLOCKING, key="k"))

        with ThreadPoolExecutor(8) as pool:
            stored = list(pool.map(append, range(8)))

        assert stored.count(True) == 1
        assert drive(repository.load(name, BLOCKING)).messages == turn(1)

    def test_a_cancelled_call_stores_all_or_nothing(
        self, repository: ChatMemoryRepository, name: str
    ) -> None:
        """No partial turn is stored, and the repository can still be used."""

        async def cancel_calls() -> int:
            completed = 0
            for number in range(40):
                task = asyncio.create_task(repository.append(name, turn(number, 3), ON_LOOP))
                await asyncio.sleep(number / 20_000)
                task.cancel()
                await asyncio.wait([task])
                completed += not task.cancelled()
            await repository.append(name, turn("last", 3), ON_LOOP)
            return completed

        completed = asyncio.run(cancel_calls())
        messages = drive(repository.load(name, BLOCKING)).messages
        questions = [m.text.split()[1] for m in messages if isinstance(m, UserMessage)]
        assert messages == tuple(m for number in questions for m in turn(number, 3))
        assert len(questions) > completed
        assert questions[-1] == "last"

    def test_the_four_operations(self, store: Store, name: str) -> None:
        """Save, find, list, delete: blocking, and asynchronous."""
        store.call("save_all", name, list(turn(1)))
        store.call("save_all", name, iter(turn(2)))

        assert store.call("find_by_conversation_id", name) == list(turn(2))
        assert name in store.call("find_conversation_ids")
        store.call("delete_by_conversation_id", name)
        assert store.call("find_by_conversation_id", name) == []
        assert name not in store.call("find_conversation_ids")

    def test_the_event_loop_is_not_blocked(
        self, repository: ChatMemoryRepository, name: str
    ) -> None:
        """All operations wait through the runtime."""

        async def use() -> None:
            await repository.append(name, turn(1), ON_LOOP, key="k")
            await repository.load(name, ON_LOOP, last=2)
            await repository.replace(name, turn(2), ON_LOOP)
            await repository.conversation_ids(ON_LOOP)
            await repository.delete_older(day(1), ON_LOOP)
            await repository.delete(name, ON_LOOP)

        check_loop_is_free(use)
