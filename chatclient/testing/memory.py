"""What every repository of conversations has to do, as tests that its author can run.

Needs pytest. In a module of your own tests:

    class TestMyRepository(ChatMemoryRepositoryContract):
        @pytest.fixture
        def repository(self):
            with MyRepository(...) as repository:
                yield repository

With `pytest.register_assert_rewrite("chatclient.testing.memory")` in your conftest, before the
import, a failing test shows what it compared.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4

import pytest

from chatclient.driving import drive
from chatclient.memory.repository import (
    NO_CONVERSATION,
    ChatMemoryRepository,
    Conversation,
    newest,
)
from chatclient.messages import Message, SystemMessage, UserMessage
from chatclient.runtime import BLOCKING, ON_LOOP, Runtime
from chatclient.testing.conversations import AWKWARD_IDS, EVERY_KIND, turn

__all__ = [
    "AWKWARD_IDS",
    "EVERY_KIND",
    "ChatMemoryRepositoryContract",
    "Store",
    "check_turns",
    "turn",
]

T = TypeVar("T")


@dataclass(frozen=True)
class Store:
    """A repository that is called the blocking way, or each time on a new event loop."""

    repository: ChatMemoryRepository
    blocking: bool

    def load(self, name: str, *, last: int | None = None) -> Conversation:
        """Return what the repository loads."""
        return self._run(lambda runtime: self.repository.load(name, runtime, last=last))

    def append(self, name: str, messages: Sequence[Message], *, key: str | None = None) -> bool:
        """Return whether the repository has added *messages*."""
        return self._run(lambda runtime: self.repository.append(name, messages, runtime, key=key))

    def replace(
        self, name: str, messages: Sequence[Message], *, expected: int | None = None
    ) -> bool:
        """Return whether the repository has put in *messages*."""
        return self._run(
            lambda runtime: self.repository.replace(name, messages, runtime, expected=expected)
        )

    def delete(self, name: str) -> None:
        """Have the repository forget a conversation."""
        self._run(lambda runtime: self.repository.delete(name, runtime))

    def conversation_ids(self) -> list[str]:
        """Return the ids of all conversations."""
        return self._run(self.repository.conversation_ids)

    def _run(self, start: Callable[[Runtime], Coroutine[Any, Any, T]]) -> T:
        return drive(start(BLOCKING)) if self.blocking else asyncio.run(start(ON_LOOP))


class ChatMemoryRepositoryContract:
    """The tests; a subclass has a fixture `repository`, which may hold other conversations."""

    @pytest.fixture
    def repository(self) -> ChatMemoryRepository:
        """Give the repository to be tested."""
        raise NotImplementedError

    @pytest.fixture(params=["blocking", "on a loop"])
    def store(self, request: pytest.FixtureRequest, repository: ChatMemoryRepository) -> Store:
        """Give the repository as it is used in either way."""
        return Store(repository, blocking=request.param == "blocking")

    @pytest.fixture
    def name(self) -> str:
        """Give the id of a conversation that does not exist."""
        return f"contract-{uuid4()}"

    # --- what is kept -----------------------------------------------------------------------

    def test_an_unknown_conversation_is_empty(self, store: Store, name: str) -> None:
        """What was never added to has no messages and version 0."""
        assert store.load(name) == NO_CONVERSATION
        assert store.load(name, last=3) == NO_CONVERSATION

    def test_every_kind_of_message_comes_back_equal(self, store: Store, name: str) -> None:
        """Nothing of a message is lost or changed, appended or put in another's place."""
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

    def test_messages_come_in_the_order_in_which_they_were_added(
        self, store: Store, name: str
    ) -> None:
        """Within one addition and from one to the next, however fast they follow."""
        turns = [turn(number, number % 3 + 1) for number in range(12)]
        for messages in turns:
            assert store.append(name, messages) is True

        found = store.load(name)
        assert found.messages == tuple(message for messages in turns for message in messages)

    def test_equal_messages_are_kept_each(self, store: Store, name: str) -> None:
        """The same words said twice are two messages."""
        for _ in range(2):
            store.append(name, turn(1))

        assert store.load(name).messages == turn(1) * 2

    def test_what_was_handed_over_is_not_shared(self, store: Store, name: str) -> None:
        """Changing the list that was added changes nothing."""
        given = list(turn(1))
        store.append(name, given)
        given.clear()

        assert store.load(name).messages == turn(1)

    def test_adding_nothing_begins_no_conversation(self, store: Store, name: str) -> None:
        """A conversation without messages does not exist."""
        store.append(name, ())

        assert store.load(name) == NO_CONVERSATION
        assert name not in store.conversation_ids()

    def test_ids_are_not_taken_for_each_other(self, store: Store, name: str) -> None:
        """Case, accents, blanks, wildcards, separators and length all tell ids apart."""
        ids = [f"{id}{name}{id}" for id in AWKWARD_IDS]
        for id in ids:
            store.append(id, [UserMessage(id)])

        for id in ids:
            found = store.load(id)
            assert found.messages == (UserMessage(id),)
        known = store.conversation_ids()
        assert set(ids) <= set(known)
        assert len(known) == len(set(known))

    # --- the newest part --------------------------------------------------------------------

    def test_only_the_newest_messages_are_loaded_when_asked(self, store: Store, name: str) -> None:
        """The last so many, the system messages beside them, and whether there are more."""
        systems = [SystemMessage("one"), SystemMessage("two")]
        messages = (systems[0], *turn(1), systems[1], *turn(2, 3), *turn(3))
        for message in messages:
            store.append(name, [message])
        version = store.load(name).version

        for last in range(len(messages) + 2):
            found = store.load(name, last=last)
            expected = newest(messages, last)
            assert found == Conversation(expected, version, len(expected) == len(messages))

    def test_a_conversation_may_have_no_system_messages(self, store: Store, name: str) -> None:
        """Who asks for these alone is told that there is more."""
        store.append(name, turn(1))
        version = store.load(name).version

        assert store.load(name, last=0) == Conversation((), version, complete=False)

    # --- versions and replacing -------------------------------------------------------------

    def test_every_change_gives_another_version(self, store: Store, name: str) -> None:
        """No version comes back, not even when a conversation is deleted and begun anew."""
        versions = []
        for _ in range(3):
            for _ in range(3):
                store.append(name, turn(1))
                versions.append(store.load(name).version)
            store.replace(name, turn(2))
            versions.append(store.load(name, last=1).version)
            store.delete(name)

        assert len(set(versions)) == len(versions)
        assert 0 not in versions

    def test_reading_changes_no_version(self, store: Store, name: str) -> None:
        """What was loaded twice without a change between is the same."""
        store.append(name, turn(1))
        first = store.load(name)

        assert store.load(name) == first

    def test_replacing_depends_on_the_version(self, store: Store, name: str) -> None:
        """A conversation that has changed since it was loaded is left alone."""
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

    def test_replacing_what_must_not_exist(self, store: Store, name: str) -> None:
        """Version 0 is that of a conversation that does not exist; no other version fits it."""
        assert store.replace(name, turn(1), expected=12345) is False
        assert store.replace(name, turn(2), expected=0) is True
        assert store.replace(name, turn(3), expected=0) is False
        assert store.load(name).messages == turn(2)

    def test_additions_go_on_after_replacing(self, store: Store, name: str) -> None:
        """New messages stand behind those that were put in, be they fewer or more."""
        for put in (turn(1), turn(1, 5), turn(1)):
            store.replace(name, put)
            store.append(name, turn(2))
            found = store.load(name)
            tail = store.load(name, last=3)

            assert found.messages == (*put, *turn(2))
            assert tail.messages == found.messages[-3:]

    def test_replacing_with_nothing_deletes(self, store: Store, name: str) -> None:
        """A conversation without messages does not exist."""
        store.append(name, turn(1))
        version = store.load(name).version
        assert store.replace(name, (), expected=version) is True

        assert store.load(name) == NO_CONVERSATION
        assert name not in store.conversation_ids()

    def test_a_deleted_conversation_is_gone(self, store: Store, name: str) -> None:
        """Deleting works once and again, and touches no other conversation."""
        other = f"{name}-other"
        for id in (name, other):
            store.append(id, turn(1))
        for _ in range(2):
            store.delete(name)

        assert store.load(name) == NO_CONVERSATION
        assert store.load(other).messages == turn(1)
        known = store.conversation_ids()
        assert name not in known
        assert other in known

    # --- keys -------------------------------------------------------------------------------

    def test_an_addition_with_a_known_key_is_not_made_again(self, store: Store, name: str) -> None:
        """A caller may repeat what may have happened; other keys and conversations do not mind."""
        assert store.append(name, turn(1), key="k") is True
        assert store.append(name, turn(2), key="k") is False
        assert store.append(name, turn(3), key="K") is True
        assert store.append(f"{name}-other", turn(4), key="k") is True
        assert store.append(name, (), key="k") is True
        found = store.load(name)
        assert found.messages == (*turn(1), *turn(3))

    def test_keys_outlive_the_messages_but_not_the_conversation(
        self, store: Store, name: str
    ) -> None:
        """Replacing the messages forgets no key; deleting the conversation does."""
        for number in range(99):
            store.append(name, turn(number), key=f"key-{number}")
        store.replace(name, turn(100))

        assert store.append(name, turn(0), key="key-0") is False
        assert store.load(name).messages == turn(100)
        store.delete(name)
        assert store.append(name, turn(0), key="key-0") is True

    # --- several at once --------------------------------------------------------------------

    def test_additions_of_several_threads_lose_nothing(
        self, repository: ChatMemoryRepository, name: str
    ) -> None:
        """Each turn is there once and in one piece, and those of a thread are in its order."""

        def work(worker: int) -> None:
            for number in range(10):
                drive(repository.append(name, turn(f"{worker}.{number}", 2), BLOCKING))

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(8)))

        check_turns(drive(repository.load(name, BLOCKING)).messages, workers=8, turns=10)

    def test_additions_of_several_tasks_lose_nothing(
        self, repository: ChatMemoryRepository, name: str
    ) -> None:
        """Each turn is there once and in one piece, and those of a task are in its order."""

        async def work(worker: int) -> None:
            for number in range(10):
                await repository.append(name, turn(f"{worker}.{number}", 2), ON_LOOP)

        async def work_together() -> tuple[Message, ...]:
            await asyncio.gather(*(work(worker) for worker in range(8)))
            return (await repository.load(name, ON_LOOP)).messages

        check_turns(asyncio.run(work_together()), workers=8, turns=10)

    def test_nobody_sees_half_an_addition(
        self, repository: ChatMemoryRepository, name: str
    ) -> None:
        """What is loaded while others add and replace consists of whole units."""
        done = threading.Event()
        seen: list[Conversation] = []

        def read() -> None:
            while not done.is_set():
                seen.append(drive(repository.load(name, BLOCKING)))

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

        assert {len(conversation.messages) % 6 for conversation in seen} == {0}
        contents: dict[int, tuple[Message, ...]] = {}
        for conversation in seen:
            kept = contents.setdefault(conversation.version, conversation.messages)
            assert kept == conversation.messages

    def test_rewriting_loses_no_addition(self, repository: ChatMemoryRepository, name: str) -> None:
        """Those who rewrite and those who add come into each other's way and lose nothing."""

        def add(worker: int) -> None:
            for number in range(5):
                drive(repository.append(name, turn(f"{worker}.{number}", 2), BLOCKING))

        def rewrite(worker: int) -> None:
            for number in range(5):
                put_first = partial(_with_first, UserMessage(f"{worker}/{number}"))
                drive(repository.rewrite(name, put_first, BLOCKING))

        with ThreadPoolExecutor(6) as pool:
            jobs = [pool.submit(work, at) for at in range(3) for work in (add, rewrite)]
            for job in jobs:
                job.result()

        messages = drive(repository.load(name, BLOCKING)).messages
        markers = [m for m in messages if "/" in m.text]
        assert sorted(m.text for m in markers) == [f"{w}/{n}" for w in range(3) for n in range(5)]
        check_turns([m for m in messages if "/" not in m.text], workers=3, turns=5)

    def test_a_key_is_used_once_by_all(self, repository: ChatMemoryRepository, name: str) -> None:
        """Of several who make the same addition at once, one does."""
        with ThreadPoolExecutor(8) as pool:
            made = list(
                pool.map(
                    lambda _: drive(repository.append(name, turn(1), BLOCKING, key="k")), range(8)
                )
            )

        assert made.count(True) == 1
        assert drive(repository.load(name, BLOCKING)).messages == turn(1)

    def test_a_cancelled_addition_is_made_or_not(
        self, repository: ChatMemoryRepository, name: str
    ) -> None:
        """Wherever it is cancelled, no half turn stays, and the repository goes on working."""

        async def cancel_additions() -> int:
            made = 0
            for number in range(40):
                task = asyncio.create_task(repository.append(name, turn(number, 3), ON_LOOP))
                await asyncio.sleep(number / 20_000)
                task.cancel()
                await asyncio.wait([task])
                made += not task.cancelled()
            await repository.append(name, turn("last", 3), ON_LOOP)
            return made

        made = asyncio.run(cancel_additions())
        messages = drive(repository.load(name, BLOCKING)).messages
        questions = [m.text.split()[1] for m in messages if isinstance(m, UserMessage)]
        assert messages == tuple(m for number in questions for m in turn(number, 3))
        assert len(questions) > made
        assert questions[-1] == "last"

    # --- the face for applications ----------------------------------------------------------

    def test_the_four_operations(self, repository: ChatMemoryRepository, name: str) -> None:
        """Blocking: save, find, list, delete."""
        repository.save_all(name, list(turn(1)))
        repository.save_all(name, iter(turn(2)))

        assert repository.find_by_conversation_id(name) == list(turn(2))
        assert name in repository.find_conversation_ids()
        repository.delete_by_conversation_id(name)
        assert repository.find_by_conversation_id(name) == []
        assert name not in repository.find_conversation_ids()

    def test_the_four_operations_on_a_loop(
        self, repository: ChatMemoryRepository, name: str
    ) -> None:
        """Asynchronous: save, find, list, delete."""

        async def operate() -> None:
            await repository.asave_all(name, list(turn(1)))
            await repository.asave_all(name, iter(turn(2)))

            assert await repository.afind_by_conversation_id(name) == list(turn(2))
            assert name in await repository.afind_conversation_ids()
            await repository.adelete_by_conversation_id(name)
            assert await repository.afind_by_conversation_id(name) == []
            assert name not in await repository.afind_conversation_ids()

        asyncio.run(operate())


def _with_first(message: Message, messages: tuple[Message, ...]) -> tuple[Message, ...]:
    return (message, *messages)


def check_turns(messages: Sequence[Message], *, workers: int, turns: int) -> None:
    """Check that *messages* are the turns `turn("worker.number", 2)`, each once and in one piece.

    Raises:
        AssertionError: They are not.
    """
    labels = [m.text.split()[1] for m in messages if isinstance(m, UserMessage)]
    assert tuple(messages) == tuple(m for label in labels for m in turn(label, 2))
    for worker in range(workers):
        own = [label for label in labels if label.split(".")[0] == str(worker)]
        assert own == [f"{worker}.{number}" for number in range(turns)]
    assert len(labels) == workers * turns
