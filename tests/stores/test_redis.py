"""Conversations in Redis."""

import sys
import time
import traceback
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis
import redis.asyncio

from chatclient.chat.messages import UserMessage
from chatclient.errors import ChatMemoryError, ChatMemoryUnavailableError, UsageError
from chatclient.memory import ChatMemoryRepository
from chatclient.memory.redis import RedisChatMemoryRepository
from chatclient.runtime.blocking import drive
from chatclient.runtime.runtime import BLOCKING
from chatclient.testing.contract_parts import turn
from chatclient.testing.repository_contract import ChatMemoryRepositoryContract
from tests.support.databases import redis_place


class TestRedis(ChatMemoryRepositoryContract):
    """The repository contract on a real server."""

    @pytest.fixture
    def repository(self) -> Iterator[ChatMemoryRepository]:
        with (
            redis_place() as (url, prefix),
            RedisChatMemoryRepository(url, key_prefix=prefix) as repository,
        ):
            yield repository


@pytest.fixture
def place() -> Iterator[tuple[str, str]]:
    with redis_place() as found:
        yield found


def add(repository: ChatMemoryRepository, *numbers: int, name: str = "c") -> None:
    for number in numbers:
        drive(repository.append(name, turn(number), BLOCKING))


def key_of(prefix: str) -> str:
    """Return the key of the conversation that `add` uses."""
    return f"{prefix}c:{len(prefix)}"


@pytest.mark.parametrize("decode", [False, True])
def test_custom_client(place: tuple[str, str], decode: bool) -> None:
    """A given client, decoding or not, is used and not closed."""
    url, prefix = place
    with redis.Redis.from_url(url, decode_responses=decode) as client:
        with RedisChatMemoryRepository(client, key_prefix=prefix) as repository:
            add(repository, 1, name="ünï")
            assert repository.find_by_conversation_id("ünï") == list(turn(1))
            assert repository.find_conversation_ids() == ["ünï"]
        assert client.ping()


def test_close_and_reopen(place: tuple[str, str]) -> None:
    """Closed connections are opened again when needed."""
    url, prefix = place
    repository = RedisChatMemoryRepository(url, key_prefix=prefix)
    add(repository, 1)
    repository.close()

    assert repository.find_by_conversation_id("c") == list(turn(1))
    repository.close()


def test_prefixes(place: tuple[str, str]) -> None:
    """Prefixes are literal, also if they look like a pattern."""
    url, prefix = place
    with (
        RedisChatMemoryRepository(url, key_prefix=f"{prefix}[a]*:") as one,
        RedisChatMemoryRepository(url, key_prefix=f"{prefix}a:") as other,
    ):
        add(one, 1, name="x")
        add(other, 2, name="y")

        assert one.find_conversation_ids() == ["x"]
        assert other.find_conversation_ids() == ["y"]


@pytest.mark.feature("memory-redis-chat-memory-repository")
def test_prefix_of_another_prefix(place: tuple[str, str]) -> None:
    """A repository neither finds nor deletes conversations of the other."""
    url, prefix = place
    with (
        RedisChatMemoryRepository(url, key_prefix=prefix) as short,
        RedisChatMemoryRepository(url, key_prefix=f"{prefix}tenant:") as long,
    ):
        add(long, 1, name="ada")
        assert short.find_conversation_ids() == []
        for name in ("tenant:ada", f"tenant:ada:{len(prefix) + 7}"):
            short.delete_by_conversation_id(name)
            add(short, 2, name=name)

        assert long.find_conversation_ids() == ["ada"]
        assert long.find_by_conversation_id("ada") == list(turn(1))
        assert len(short.find_conversation_ids()) == 2


@pytest.mark.feature("memory-redis-chat-memory-repository")
def test_expiry(place: tuple[str, str]) -> None:
    """A conversation expires completely after its last change."""
    url, prefix = place
    minute, instant = timedelta(minutes=1), timedelta(milliseconds=1)
    with (
        redis.Redis.from_url(url) as client,
        RedisChatMemoryRepository(url, key_prefix=prefix, time_to_live=minute) as repository,
        RedisChatMemoryRepository(url, key_prefix=prefix, time_to_live=instant) as fleeting,
        RedisChatMemoryRepository(url, key_prefix=prefix) as lasting,
    ):
        add(repository, 1)
        left: Any = client.pttl(key_of(prefix))  # typed differently by each release of redis
        assert 0 < left <= 60_000
        client.persist(key_of(prefix))
        drive(repository.replace("c", turn(2), BLOCKING))
        left = client.pttl(key_of(prefix))
        assert 0 < left <= 60_000
        add(lasting, 3)
        assert client.pttl(key_of(prefix)) == -1
        add(fleeting, 4, name="gone")
        time.sleep(0.05)

        assert repository.find_conversation_ids() == ["c"]
        assert len(repository.find_by_conversation_id("c")) == 4
        assert repository.find_by_conversation_id("gone") == []


@pytest.mark.feature("memory-redis-chat-memory-repository")
def test_repeated_command(place: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A command repeated after a lost answer is applied once."""
    url, prefix = place
    with RedisChatMemoryRepository(url, key_prefix=prefix) as repository:
        twice(repository, "_append", monkeypatch)
        twice(repository, "_replace", monkeypatch)

        assert drive(repository.append("c", turn(1), BLOCKING)) is True
        assert drive(repository.append("c", turn(2), BLOCKING, key="k")) is True
        assert drive(repository.append("c", turn(3), BLOCKING, key="k")) is False
        found = drive(repository.load("c", BLOCKING))
        assert found.messages == (*turn(1), *turn(2))
        assert drive(repository.replace("c", turn(4), BLOCKING, expected=found.version)) is True
        assert drive(repository.replace("c", turn(5), BLOCKING, expected=found.version)) is False
        assert drive(repository.load("c", BLOCKING)).messages == turn(4)


def twice(repository: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    script = getattr(repository, name)

    def run(keys: Any, arguments: Any) -> Any:
        script(keys, arguments)
        return script(keys, arguments)

    monkeypatch.setattr(repository, name, run)


def test_long_conversation(place: tuple[str, str]) -> None:
    """Conversations may exceed the limit of script results."""
    url, prefix = place
    messages = tuple(m for number in range(5000) for m in turn(number))
    with RedisChatMemoryRepository(url, key_prefix=prefix) as repository:
        drive(repository.replace("c", messages, BLOCKING))

        assert drive(repository.load("c", BLOCKING)).messages == messages
        assert drive(repository.load("c", BLOCKING, last=3)).messages == messages[-3:]


def test_missing_scripts(place: tuple[str, str]) -> None:
    """Scripts are loaded again after a restart."""
    url, prefix = place
    with (
        redis.Redis.from_url(url) as client,
        RedisChatMemoryRepository(url, key_prefix=prefix) as repository,
    ):
        add(repository, 1)
        client.script_flush()
        add(repository, 2)

        assert repository.find_by_conversation_id("c") == [*turn(1), *turn(2)]


@pytest.mark.feature("memory-store-down-chat-memory")
def test_unreachable_server() -> None:
    """The error names the server and keeps its cause, without secrets."""
    repository = RedisChatMemoryRepository("redis://ann:hush@127.0.0.1:9/0")
    with pytest.raises(ChatMemoryUnavailableError, match=r"127\.0\.0\.1:9") as caught:
        add(repository, 1)

    shown = "".join(traceback.format_exception(caught.value))
    assert caught.value.__cause__ is not None
    assert "hush" not in shown
    assert "question 1" not in shown


def test_wrong_type_of_key(place: tuple[str, str]) -> None:
    """A key with another type raises."""
    url, prefix = place
    with (
        redis.Redis.from_url(url) as client,
        RedisChatMemoryRepository(url, key_prefix=prefix) as repository,
    ):
        client.set(key_of(prefix), "something")
        with pytest.raises(ChatMemoryError, match="refused"):
            add(repository, 1)


def test_unreadable_data(place: tuple[str, str]) -> None:
    """Invalid stored data raises."""
    url, prefix = place
    with (
        redis.Redis.from_url(url) as client,
        RedisChatMemoryRepository(url, key_prefix=prefix) as repository,
    ):
        add(repository, 1)
        client.hset(key_of(prefix), "0", "{")
        with pytest.raises(ChatMemoryError, match="cannot be read") as caught:
            repository.find_by_conversation_id("c")

    assert caught.value.conversation_id == "c"


@pytest.mark.parametrize("server", ["hush", "http://ann:hush@host", "redis://ann:hush@host:x/0"])
def test_invalid_urls(server: str) -> None:
    """The error does not show the URL."""
    with pytest.raises(UsageError, match="not a URL of Redis") as caught:
        RedisChatMemoryRepository(server)

    assert "hush" not in str(caught.value)


@pytest.mark.feature("memory-no-json-form-type")
def test_unserialisable_value(place: tuple[str, str], caplog: pytest.LogCaptureFixture) -> None:
    """A value without a JSON form is left out and logged; the others are read as they were."""
    url, prefix = place
    now = datetime.now(UTC)
    message = UserMessage("hi", metadata={"redis user": object(), "at": now})
    with RedisChatMemoryRepository(url, key_prefix=prefix) as repository:
        repository.save_all("c", [message])
        drive(repository.append("c", [message], BLOCKING))
        found = repository.find_by_conversation_id("c")

    assert [each.metadata for each in found] == [{"at": now}] * 2
    assert "metadata.redis user" in caplog.text


def test_invalid_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """An async client, no time to live, and a missing extra raise."""
    client: Any = redis.asyncio.Redis()
    with pytest.raises(UsageError, match="blocking client"):
        RedisChatMemoryRepository(client)
    with pytest.raises(UsageError, match="time_to_live"):
        RedisChatMemoryRepository(time_to_live=timedelta(0))
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(UsageError, match=r"chatclient\[redis\]"):
        RedisChatMemoryRepository()
