"""The in-memory repository, and checks common to all repositories."""

from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

from chatclient import ChatClient
from chatclient.advisors.memory.advisors import MessageChatMemoryAdvisor
from chatclient.errors import WrongTypeError
from chatclient.memory import (
    ChatMemoryRepository,
    InMemoryChatMemoryRepository,
    MessageWindowChatMemory,
    repository as module,
)
from chatclient.memory.repository import newest
from chatclient.runtime.blocking import drive
from chatclient.runtime.runtime import BLOCKING
from chatclient.testing import Ask, ScriptedModel
from chatclient.testing.contract_parts import EVERY_KIND, turn
from chatclient.testing.repository_contract import ChatMemoryRepositoryContract
from tests.support.interrupts import interrupt_at


class TestInMemory(ChatMemoryRepositoryContract):
    """The repository contract for the in-memory repository."""

    @pytest.fixture
    def repository(self) -> ChatMemoryRepository:
        return InMemoryChatMemoryRepository()


async def test_old_messages_are_deleted_on_a_loop() -> None:
    """The blocking and the asynchronous method delete the same."""
    repository = InMemoryChatMemoryRepository()
    await repository.asave_all("c", turn(1))

    assert await repository.adelete_older_than(datetime.now(UTC)) == 2
    assert repository.find_conversation_ids() == []


def test_last_messages() -> None:
    """All messages or the last ones, plus every system message."""
    assert newest(list(EVERY_KIND), None) == EVERY_KIND
    assert newest(EVERY_KIND, 2) == (EVERY_KIND[0], *EVERY_KIND[-2:])
    assert newest(EVERY_KIND, 0) == EVERY_KIND[:1]


async def test_context_managers() -> None:
    """Both context managers work without resources to close."""
    closed: list[str] = []

    class Closing(InMemoryChatMemoryRepository):
        def close(self) -> None:
            closed.append("closed")
            super().close()

    with Closing() as repository:
        assert closed == []
    assert closed == ["closed"]
    async with Closing() as repository:
        await repository.asave_all("c", turn(1))
    assert closed == ["closed"] * 2


def test_wrong_return_type_of_a_repository(ask: Ask) -> None:
    """The error names the method that returned a wrong type."""

    class Lists(InMemoryChatMemoryRepository):
        async def load(self, *args: Any, **more: Any) -> Any:
            return list((await super().load(*args, **more)).messages)

    class Silent(InMemoryChatMemoryRepository):
        async def replace(self, *args: Any, **more: Any) -> Any:
            await super().replace(*args, **more)

    memory = MessageWindowChatMemory(Lists())
    builder = ChatClient.builder(ScriptedModel()).default_advisors(MessageChatMemoryAdvisor(memory))
    with pytest.raises(WrongTypeError, match=r"the result of Lists\.load\(\) .*Conversation\("):
        ask(builder.build().prompt("Hi").conversation("c"))
    with pytest.raises(WrongTypeError, match=r"the result of Silent\.replace\(\) must be a bool"):
        drive(Silent().rewrite("c", lambda _: turn(1), BLOCKING))


def test_keys_are_limited() -> None:
    """The number of stored idempotency keys is limited."""
    repository = InMemoryChatMemoryRepository()
    for number in range(150):
        drive(repository.append("c", turn(number), BLOCKING, key=f"k{number}"))

    assert drive(repository.append("c", turn(0), BLOCKING, key="k50")) is False
    assert drive(repository.append("c", turn(0), BLOCKING, key="k49")) is True


@pytest.mark.feature("memory-chat-memory-repository-four")
@pytest.mark.parametrize("operation", ["append", "replace", "delete"])
def test_interrupt_is_atomic(operation: str) -> None:
    """An interrupt at any line leaves the state before or after the operation."""

    def change(repository: InMemoryChatMemoryRepository) -> None:
        if operation == "append":
            drive(repository.append("c", EVERY_KIND, BLOCKING, key="k"))
        elif operation == "replace":
            drive(repository.replace("c", EVERY_KIND, BLOCKING))
        else:
            drive(repository.delete("c", BLOCKING))

    completed = InMemoryChatMemoryRepository()
    completed.save_all("c", turn(1))
    change(completed)
    after = completed.find_by_conversation_id("c")
    seen = set()
    line, interrupted = 0, True
    while interrupted:
        line += 1
        repository = InMemoryChatMemoryRepository()
        repository.save_all("c", turn(1))
        interrupted = interrupt_at(line, partial(change, repository), module)
        found = repository.find_by_conversation_id("c")
        seen.add(len(found))
        assert found in (list(turn(1)), after)
        tail = drive(repository.load("c", BLOCKING, last=1)).messages
        assert tail == newest(found, 1)
        drive(repository.append("c", turn(2), BLOCKING))
        assert repository.find_by_conversation_id("c") == [*found, *turn(2)]

    assert line > 1
    assert len(seen) == 2
