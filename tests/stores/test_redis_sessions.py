"""Sessions in Redis."""

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
import redis

from chatclient.errors import ChatMemoryError, ChatMemoryUnavailableError, UsageError
from chatclient.memory import EVERYTHING, RedisSessionRepository, SessionRepository
from chatclient.runtime.blocking import drive
from chatclient.runtime.runtime import BLOCKING
from chatclient.testing.contract_parts import turn
from chatclient.testing.session_contract import (
    START,
    SessionRepositoryContract,
    SessionStore,
    a_session,
    an_event,
)
from tests.support.databases import redis_place


@pytest.mark.feature("session-redis")
@pytest.mark.feature("session-repository-contract")
class TestRedis(SessionRepositoryContract):
    """The contract on a real server, with a client that decodes and one that does not."""

    @pytest.fixture(params=[False, True])
    def repository(self, request: pytest.FixtureRequest) -> Iterator[SessionRepository]:
        with (
            redis_place() as (url, prefix),
            redis.Redis.from_url(url, decode_responses=request.param) as client,
            RedisSessionRepository(client, key_prefix=prefix) as repository,
        ):
            yield repository


@pytest.fixture
def place() -> Iterator[tuple[str, str]]:
    with redis_place() as found:
        yield found


@pytest.fixture
def store(place: tuple[str, str]) -> Iterator[SessionStore]:
    url, prefix = place
    with RedisSessionRepository(url, key_prefix=prefix) as repository:
        yield SessionStore(repository, blocking=True)


def test_deleted_sessions_leave_no_keys(store: SessionStore, place: tuple[str, str]) -> None:
    """Neither logs nor indexes remain."""
    url, prefix = place
    store.create(a_session("s", metadata={"agent": "a"}, expires_at=START))
    store.append("s", an_event("s", "1"))
    store.call("delete", "s")

    with redis.Redis.from_url(url) as client:
        assert client.keys(f"{prefix}*") == []


def test_prefixes_are_separate(place: tuple[str, str]) -> None:
    """A repository whose prefix begins with that of another one has other sessions."""
    url, prefix = place
    with (
        RedisSessionRepository(url, key_prefix=prefix) as short,
        RedisSessionRepository(url, key_prefix=f"{prefix}session:") as long,
    ):
        stores = [SessionStore(each, blocking=True) for each in (short, long)]
        for store, id in zip(stores, ("session:a", "a"), strict=True):
            store.create(a_session(id))

        assert [[s.id for s in store.call("find_by_user", "ann")] for store in stores] == [
            ["session:a"],
            ["a"],
        ]


def test_repeated_commands(store: SessionStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command repeated after a lost reply is applied once, and returns the same."""
    for name in ("_save", "_append"):
        script = getattr(store.repository, name)

        def twice(keys: Any, arguments: Any, script: Any = script) -> Any:
            script(keys, arguments)
            return script(keys, arguments)

        monkeypatch.setattr(store.repository, name, twice)

    assert store.create(a_session("s")) is True
    assert store.create(a_session("s")) is False
    assert store.append("s", an_event("s", "1"), expected=0) is True
    assert store.append("s", an_event("s", "1")) is False
    assert store.ids("s") == ["1"]


def test_retention_of_a_changing_log(store: SessionStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Events that are appended during a deletion are neither lost nor deleted."""
    store.create(a_session("s"))
    for year in (2026, 2028):
        times = {"timestamp": START.replace(year=year)}
        question, answer = (
            an_event("s", f"{year}{at}", m, **times) for at, m in enumerate(turn(1))
        )
        store.append("s", question, answer)
    repository: Any = store.repository
    forget = repository._forget
    calls: list[Any] = []

    def append_first(keys: Any, arguments: Any) -> Any:
        if not calls:
            drive(repository.append("s", [an_event("s", "next", turn(2)[1], **times)], BLOCKING))
        calls.append(arguments)
        return forget(keys, arguments)

    monkeypatch.setattr(repository, "_forget", append_first)
    assert store.call("delete_older", datetime(2020, 1, 1, tzinfo=UTC)) == 0
    assert store.call("delete_older", datetime(2027, 1, 1, tzinfo=UTC)) == 2
    assert len(calls) == 2
    assert store.ids("s") == ["20280", "20281", "next"]


def test_long_log(store: SessionStore) -> None:
    """Logs may exceed the limit of arguments of a Redis function."""
    store.create(a_session("s"))
    store.append("s", *(an_event("s", f"{number}") for number in range(9000)))

    assert len(store.read("s", EVERYTHING).events) == 9000
    assert store.ids("s", last=1, exclude_archived=True) == ["8999"]


@pytest.mark.feature("memory-store-down-chat-memory")
def test_unreachable_server() -> None:
    """The error names the server, without secrets."""
    repository = RedisSessionRepository("redis://ann:hush@127.0.0.1:9/0")
    with pytest.raises(ChatMemoryUnavailableError, match=r"127\.0\.0\.1:9") as caught:
        drive(repository.find("s", BLOCKING))
    assert "hush" not in str(caught.value)


def test_unreadable_event(store: SessionStore, place: tuple[str, str]) -> None:
    """The error names the session."""
    url, prefix = place
    store.create(a_session("s"))
    store.append("s", an_event("s", "1"))
    with redis.Redis.from_url(url) as client:
        client.hset(f"{prefix}session:s:{len(prefix)}", "e0", "{")

    with pytest.raises(ChatMemoryError, match="session 's' cannot be read") as caught:
        store.read("s")
    assert caught.value.conversation_id == "s"


def test_unserialisable_values(store: SessionStore) -> None:
    """The error names what cannot be stored."""
    odd = {"user": object()}
    with pytest.raises(ChatMemoryError, match="a session cannot be stored: user is"):
        store.create(a_session("s", metadata=odd))
    store.create(a_session("s"))
    with pytest.raises(ChatMemoryError, match="cannot be stored"):
        store.append("s", an_event("s", "1", metadata=odd))
    assert store.ids("s") == []


def test_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the command."""
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(UsageError, match=r"RedisSessionRepository needs redis-py; pip install"):
        RedisSessionRepository()
