"""Readers of turns are told of news, with one query for all of a process."""

import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from uuid import uuid4

import pytest

from chatclient import ChatClient, tool
from chatclient.durable import DurableClient, TurnQueue, durable, launch
from chatclient.durable.launching import _url
from chatclient.durable.notices import Notices
from chatclient.durable.tables import Published, Tables
from chatclient.testing import ScriptedModel, call
from tests.support.turn_databases import KINDS, run_sql, turn_database
from tests.support.waiting import settled


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with turn_database(request.param, tmp_path) as found:
        yield found


class CountingTables(Tables):
    """Tables of another process, which count queries for news."""

    queries = 0

    def news(self, offsets: Mapping[str, int | None]) -> dict[str, tuple[list[Published], bool]]:
        self.queries += 1
        return super().news(offsets)


class Stopped:
    """A client whose turn stops in its tool until the test lets it continue."""

    def __init__(self) -> None:
        self.go_on = threading.Event()

        @tool(effect="read")
        def stop() -> str:
            """Stop."""
            assert self.go_on.wait(60)
            return "stopped"

        model = ScriptedModel(call("stop"), "Done.")
        client = ChatClient.builder(model).default_tools(stop).build()
        self.client: DurableClient = durable(client, name=uuid4().hex)


@pytest.fixture
def other(url: str) -> Iterator[tuple[Notices, CountingTables]]:
    """The notices of a process that reads only, with its tables."""
    tables = CountingTables(_url(url), "chatclient")
    notices = Notices(tables)
    yield notices, tables
    notices.close()
    tables.close()


def test_news_of_another_process(url: str, other: tuple[Notices, CountingTables]) -> None:
    """A reader receives each published value once, from where it begins, and then the end."""
    stopped, (notices, _) = Stopped(), other
    with launch(url):
        turn = stopped.client.start("Go.", streaming=True)
        with notices.watch(turn.id, 0) as watch, notices.watch(turn.id, 1) as late:
            assert watch.wait(30)
            values, ended = watch.take()
            assert values
            assert not ended
            stopped.go_on.set()
            turn.result()
            assert settled(lambda: watch.ended and late.ended)
            values += watch.take()[0]

            assert [each.offset for each in values] == list(range(len(values)))
            assert late.take()[0] == values[1:]


def test_one_query_for_all_readers(url: str, other: tuple[Notices, CountingTables]) -> None:
    """Many readers that wait need as many queries as one."""
    stopped, (notices, tables) = Stopped(), other
    with launch(url):
        turns = [stopped.client.start("Go.", delay=3600, key=str(n)) for n in range(40)]
        watches = [notices.watch(turn.id) for turn in turns]
        time.sleep(0.5)
        before = tables.queries
        time.sleep(1.0)
        assert tables.queries - before <= 12
        for turn in turns:
            turn.cancel()
        assert all(watch.wait(30) and watch.ended for watch in watches)


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
def test_lost_notifications(url: str, other: tuple[Notices, CountingTables]) -> None:
    """Without its connection, a process asks instead, and listens again soon."""
    stopped, (notices, _) = Stopped(), other
    with launch(url, queues=[TurnQueue("any", poll_seconds=0.02)]):
        turn = stopped.client.start("Go.", queue="any")
        with notices.watch(turn.id) as watch:
            assert not watch.wait(0.5)
            run_sql(
                url,
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where query = 'LISTEN chatclient_turns'",
            )
            stopped.go_on.set()
            assert watch.wait(30)
            assert watch.ended
        turn.result()


def test_turn_that_does_not_exist(url: str, other: tuple[Notices, CountingTables]) -> None:
    """A reader does not wait for a turn that was deleted, or that there never was."""
    notices, _ = other
    with launch(url), notices.watch("nobody/1", 0) as watch:
        assert watch.wait(30)
        assert watch.take() == ([], True)
