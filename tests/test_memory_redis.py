"""Conversations in Redis."""

import sys
import time
import traceback
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import redis
import redis.asyncio
from databases import redis_place

from chatclient.driving import drive
from chatclient.errors import ChatMemoryError, ChatMemoryUnavailableError, UsageError
from chatclient.memory import ChatMemoryRepository
from chatclient.memory.redis import RedisChatMemoryRepository
from chatclient.messages import UserMessage
from chatclient.runtime import BLOCKING
from chatclient.testing.memory import ChatMemoryRepositoryContract, turn


class TestRedis(ChatMemoryRepositoryContract):
    """The contract, kept by a real server."""

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
    """Return the key of the conversation that `add` adds to."""
    return f"{prefix}c:{len(prefix)}"


@pytest.mark.parametrize("decode", [False, True])
def test_a_client_stays_its_owners(place: tuple[str, str], decode: bool) -> None:
    """It is used as it is, decoding or not, and not closed."""
    url, prefix = place
    with redis.Redis.from_url(url, decode_responses=decode) as client:
        with RedisChatMemoryRepository(client, key_prefix=prefix) as repository:
            add(repository, 1, name="ünï")
            assert repository.find_by_conversation_id("ünï") == list(turn(1))
            assert repository.find_conversation_ids() == ["ünï"]
        assert client.ping()


def test_what_was_opened_is_closed(place: tuple[str, str]) -> None:
    """And opened again when it is needed again."""
    url, prefix = place
    repository = RedisChatMemoryRepository(url, key_prefix=prefix)
    add(repository, 1)
    repository.close()

    assert repository.find_by_conversation_id("c") == list(turn(1))
    repository.close()


def test_conversations_of_other_prefixes_are_not_found(place: tuple[str, str]) -> None:
    """Also where a prefix looks like a pattern."""
    url, prefix = place
    with (
        RedisChatMemoryRepository(url, key_prefix=f"{prefix}[a]*:") as one,
        RedisChatMemoryRepository(url, key_prefix=f"{prefix}a:") as other,
    ):
        add(one, 1, name="x")
        add(other, 2, name="y")

        assert one.find_conversation_ids() == ["x"]
        assert other.find_conversation_ids() == ["y"]


def test_a_prefix_may_begin_with_another(place: tuple[str, str]) -> None:
    """Neither finds, nor deletes, what is the other's, whatever its conversations are called."""
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


def test_conversations_may_expire(place: tuple[str, str]) -> None:
    """So long after their last change, as a whole."""
    url, prefix = place
    minute, instant = timedelta(minutes=1), timedelta(milliseconds=1)
    with (
        redis.Redis.from_url(url) as client,
        RedisChatMemoryRepository(url, key_prefix=prefix, time_to_live=minute) as repository,
        RedisChatMemoryRepository(url, key_prefix=prefix, time_to_live=instant) as fleeting,
        RedisChatMemoryRepository(url, key_prefix=prefix) as lasting,
    ):
        add(repository, 1)
        assert 0 < client.pttl(key_of(prefix)) <= 60_000
        client.persist(key_of(prefix))
        drive(repository.replace("c", turn(2), BLOCKING))
        assert 0 < client.pttl(key_of(prefix)) <= 60_000
        add(lasting, 3)
        assert client.pttl(key_of(prefix)) == -1
        add(fleeting, 4, name="gone")
        time.sleep(0.05)

        assert repository.find_conversation_ids() == ["c"]
        assert len(repository.find_by_conversation_id("c")) == 4
        assert repository.find_by_conversation_id("gone") == []


def test_a_command_that_is_repeated_happens_once(
    place: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client repeats what it got no answer to; it may have happened."""
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


def test_a_long_conversation(place: tuple[str, str]) -> None:
    """Longer than what a script may take from a table at once."""
    url, prefix = place
    messages = tuple(m for number in range(5000) for m in turn(number))
    with RedisChatMemoryRepository(url, key_prefix=prefix) as repository:
        drive(repository.replace("c", messages, BLOCKING))

        assert drive(repository.load("c", BLOCKING)).messages == messages
        assert drive(repository.load("c", BLOCKING, last=3)).messages == messages[-3:]


def test_scripts_that_the_server_has_forgotten(place: tuple[str, str]) -> None:
    """A restarted server is told them anew."""
    url, prefix = place
    with (
        redis.Redis.from_url(url) as client,
        RedisChatMemoryRepository(url, key_prefix=prefix) as repository,
    ):
        add(repository, 1)
        client.script_flush()
        add(repository, 2)

        assert repository.find_by_conversation_id("c") == [*turn(1), *turn(2)]


def test_a_server_that_is_down() -> None:
    """The error says which, keeps its cause, and no secret."""
    repository = RedisChatMemoryRepository("redis://ann:hush@127.0.0.1:9/0")
    with pytest.raises(ChatMemoryUnavailableError, match=r"127\.0\.0\.1:9") as caught:
        add(repository, 1)

    shown = "".join(traceback.format_exception(caught.value))
    assert caught.value.__cause__ is not None
    assert "hush" not in shown
    assert "question 1" not in shown


def test_a_server_that_refuses(place: tuple[str, str]) -> None:
    """Somebody else has put something else there."""
    url, prefix = place
    with (
        redis.Redis.from_url(url) as client,
        RedisChatMemoryRepository(url, key_prefix=prefix) as repository,
    ):
        client.set(key_of(prefix), "something")
        with pytest.raises(ChatMemoryError, match="refused"):
            add(repository, 1)


def test_what_cannot_be_read_says_so(place: tuple[str, str]) -> None:
    """Somebody has changed the hash by hand."""
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
def test_urls_that_cannot_be_used(server: str) -> None:
    """What they hold may be secret."""
    with pytest.raises(UsageError, match="not a URL of Redis") as caught:
        RedisChatMemoryRepository(server)

    assert "hush" not in str(caught.value)


def test_what_has_no_json_form_is_named(place: tuple[str, str]) -> None:
    """An error of the memory says where it stands and what it is, and nothing is kept."""
    url, prefix = place
    message = UserMessage("hi", metadata={"user": object()})
    told = r"metadata\['user'\] is of type object"
    with RedisChatMemoryRepository(url, key_prefix=prefix) as repository:
        with pytest.raises(ChatMemoryError, match=told):
            repository.save_all("c", [message])
        with pytest.raises(ChatMemoryError, match=told):
            drive(repository.append("c", [message], BLOCKING))
        assert repository.find_conversation_ids() == []


def test_other_mistakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """An asynchronous client, no time to live, a missing extra."""
    client: Any = redis.asyncio.Redis()
    with pytest.raises(UsageError, match="blocking client"):
        RedisChatMemoryRepository(client)
    with pytest.raises(UsageError, match="time_to_live"):
        RedisChatMemoryRepository(time_to_live=timedelta(0))
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(UsageError, match=r"chatclient\[redis\]"):
        RedisChatMemoryRepository()
