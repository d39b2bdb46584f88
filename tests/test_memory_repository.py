"""The repository in memory, and what all repositories share."""

from functools import partial
from typing import Any

import pytest
from conftest import Ask
from interrupts import interrupt_at

from chatclient import ChatClient
from chatclient.advisors.memory import MessageChatMemoryAdvisor
from chatclient.driving import drive
from chatclient.errors import WrongTypeError
from chatclient.memory import (
    ChatMemoryRepository,
    InMemoryChatMemoryRepository,
    MessageWindowChatMemory,
)
from chatclient.memory import in_memory as module
from chatclient.memory.repository import newest
from chatclient.runtime import BLOCKING
from chatclient.testing import ScriptedModel
from chatclient.testing.memory import EVERY_KIND, ChatMemoryRepositoryContract, turn


class TestInMemory(ChatMemoryRepositoryContract):
    """The contract, kept in the memory of this process."""

    @pytest.fixture
    def repository(self) -> ChatMemoryRepository:
        return InMemoryChatMemoryRepository()


def test_the_newest_messages_of_a_list() -> None:
    """All of them, or the last so many with every system message."""
    assert newest(list(EVERY_KIND), None) == EVERY_KIND
    assert newest(EVERY_KIND, 2) == (EVERY_KIND[0], *EVERY_KIND[-2:])
    assert newest(EVERY_KIND, 0) == EVERY_KIND[:1]


async def test_a_repository_is_closed_with_its_block() -> None:
    """Blocking and asynchronously; what opens nothing has nothing to close."""
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


def test_what_a_repository_returns_is_told_to_its_author(ask: Ask) -> None:
    """A list in place of a conversation, and nothing where it matters whether it was done."""

    class Lists(InMemoryChatMemoryRepository):
        async def load(self, *args: Any, **more: Any) -> Any:
            return list((await super().load(*args, **more)).messages)

    class Silent(InMemoryChatMemoryRepository):
        async def replace(self, *args: Any, **more: Any) -> Any:
            await super().replace(*args, **more)

    memory = MessageWindowChatMemory(Lists())
    builder = ChatClient.builder(ScriptedModel()).default_advisors(MessageChatMemoryAdvisor(memory))
    with pytest.raises(WrongTypeError, match=r"what load\(\) of Lists returns .*Conversation\("):
        ask(builder.build().prompt("Hi").conversation("c"))
    with pytest.raises(WrongTypeError, match=r"what replace\(\) of Silent returns must be a bool"):
        drive(Silent().rewrite("c", lambda _: turn(1), BLOCKING))


def test_only_the_newest_keys_are_remembered() -> None:
    """A conversation without end does not grow by its keys."""
    repository = InMemoryChatMemoryRepository()
    for number in range(150):
        drive(repository.append("c", turn(number), BLOCKING, key=f"k{number}"))

    assert drive(repository.append("c", turn(0), BLOCKING, key="k50")) is False
    assert drive(repository.append("c", turn(0), BLOCKING, key="k49")) is True


@pytest.mark.parametrize("operation", ["append", "replace", "delete"])
def test_an_interrupt_at_any_line_leaves_the_state_before_or_after(operation: str) -> None:
    """Ctrl-C may come between any two lines; the next operation finds nothing half done."""

    def change(repository: InMemoryChatMemoryRepository) -> None:
        if operation == "append":
            drive(repository.append("c", EVERY_KIND, BLOCKING, key="k"))
        elif operation == "replace":
            drive(repository.replace("c", EVERY_KIND, BLOCKING))
        else:
            drive(repository.delete("c", BLOCKING))

    whole = InMemoryChatMemoryRepository()
    whole.save_all("c", turn(1))
    change(whole)
    after = whole.find_by_conversation_id("c")
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
