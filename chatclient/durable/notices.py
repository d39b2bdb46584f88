"""`Notices` and `Outbox`: what happens to turns, for all readers of a process at once.

A process that runs turns tells others with a notification of PostgreSQL that a turn has ended or
has published events. One thread of each process reads the news for all of its readers, in one
query; it also asks from time to time, which is all that there is on SQLite.
"""

import asyncio
import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future
from types import TracebackType
from typing import Self

from chatclient.durable.dbos_steps import FAULTS, sqlalchemy_errors
from chatclient.durable.tables import Published, Tables
from chatclient.extend import get_logger

log = get_logger(__name__)

_ASK_SECONDS, _ASK_SECONDS_LISTENING = 0.1, 1.0
"""The seconds between two queries for all readers. While notifications arrive, the queries are for
those that were lost, such as that of a process which was killed after it had stored an end."""

_LISTEN_SECONDS = 0.2  # between two looks whether the process ends
_END_SECONDS = 0.05  # in which ends are collected before other processes are told
_RETRY_SECONDS = 1.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0  # seconds


class Watch:
    """Waits for the end of a workflow, and for what it publishes; a context manager.

    Args:
        notices: Those of the process.
        id: The id of the workflow.
        offset: How many published values are known already; None if only the end matters.
        loop: The event loop of the reader, or None for a thread that blocks.

    Attributes:
        id: The id of the workflow.
        offset: How many published values were received, or None.
        ended: Whether it has ended, and all that it has published was received; also if it does
            not exist.
        output: The output of a workflow that has just succeeded in this process, as it is stored.
    """

    def __init__(
        self,
        notices: "Notices",
        id: str,
        offset: int | None,
        loop: asyncio.AbstractEventLoop | None,
    ) -> None:
        self.id, self.offset, self.ended = id, offset, False
        self.output: str | None = None
        self._notices = notices
        self._values: list[Published] = []
        self._loop = loop
        self._event: threading.Event | asyncio.Event = (
            threading.Event() if loop is None else asyncio.Event()
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        self._notices.forget(self)

    def wait(self, seconds: float | None = None) -> bool:
        """Block until there is something new, and return False if *seconds* have passed before."""
        assert isinstance(self._event, threading.Event)  # noqa: S101 - for type checkers
        return self._event.wait(seconds)

    async def await_news(self, seconds: float | None = None) -> bool:
        """Wait until there is something new; see `wait`."""
        assert isinstance(self._event, asyncio.Event)  # noqa: S101 - for type checkers
        try:
            async with asyncio.timeout(seconds):
                await self._event.wait()
        except TimeoutError:
            return False
        return True

    def take(self) -> tuple[list[Published], bool]:
        """Return the values that were published since the last call, and whether these are all."""
        # In this order: what arrives meanwhile sets it again, and the end comes after the values.
        self._event.clear()
        ended = self.ended
        values, self._values = self._values, []
        return values, ended

    def receive(self, values: Iterable[Published], *, ended: bool) -> None:
        """Add values, in the thread that reads for all, and wake the reader."""
        if self.offset is not None:
            new = [value for value in values if value.offset >= self.offset]
            self._values += new
            self.offset += len(new)
            if not new and not ended:
                return
        elif not ended:
            return
        self.ended = ended
        self.wake()

    def wake(self) -> None:
        """Let the reader look for itself."""
        if self._loop is None:
            self._event.set()
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._event.set)


class Notices:
    """Reads for all watches of a process.

    Args:
        tables: The tables of the process.
    """

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._watches: dict[str, set[Watch]] = {}
        self._told: set[str] = set()  # the ids of workflows with news
        self._new: list[tuple[float, str]] = []  # watches that are new, and when to ask for them
        self._ask_at = 0.0
        self._is_listening = False
        self._condition = threading.Condition()
        self._closed = threading.Event()
        self._threads: list[threading.Thread] = []

    def watch(
        self,
        id: str,
        offset: int | None = None,
        *,
        loop: asyncio.AbstractEventLoop | None = None,
        is_new: bool = False,
    ) -> Watch:
        """Return a watch; the first look for news is immediate, unless the workflow *is_new*."""
        watch = Watch(self, id, offset, loop)
        with self._condition:
            if self.is_closed:
                watch.wake()  # its reader looks for itself
            elif not self._threads:
                # Only in processes that have readers.
                works = [self._read]
                if self._tables.notifies:
                    works.append(self._listen)
                for work in works:
                    thread = threading.Thread(target=work, name="chatclient-notices", daemon=True)
                    self._threads.append(thread)
                    thread.start()
            self._watches.setdefault(id, set()).add(watch)
            # One that has just been started has hardly ended, and most ends are told.
            self._new.append((time.monotonic() + (_ASK_SECONDS if is_new else 0.0), id))
            self._condition.notify()
        return watch

    @property
    def is_closed(self) -> bool:
        """Whether nothing is read any more."""
        return self._closed.is_set()

    def forget(self, watch: Watch) -> None:
        """Forget a watch whose reader has gone."""
        with self._condition:
            others = self._watches[watch.id]
            others.discard(watch)
            if not others:
                del self._watches[watch.id]

    def tell(self, ids: Iterable[str]) -> None:
        """Let readers of the workflows *ids* read."""
        with self._condition:
            watched = [id for id in ids if any(not it.ended for it in self._watches.get(id, ()))]
            if watched:
                self._told.update(watched)
                self._condition.notify()

    def end(self, id: str, output: str | None = None) -> None:
        """Tell that the workflow *id* has ended, and its output if it is known."""
        for watch in self._watches_of([id]):
            if watch.offset is None:  # it needs no query
                watch.output = output
                watch.receive((), ended=True)
        self.tell([id])

    def close(self) -> None:
        """End; readers that wait look for themselves."""
        with self._condition:
            self._closed.set()
            self._condition.notify()
            watches = [each for several in self._watches.values() for each in several]
        for thread in self._threads:
            thread.join()
        for watch in watches:
            watch.wake()

    def _read(self) -> None:
        while (ids := self._due()) is not None:
            offsets = {id: self._least_offset(id) for id in ids}
            try:
                news = self._tables.news(offsets)
            except Exception as error:  # noqa: BLE001 - readers look for themselves, and raise it
                log.warning("turns not read", error=repr(error))
                self._closed.wait(_RETRY_SECONDS)
                for watch in self._watches_of(ids):
                    watch.wake()
                continue
            for watch in self._watches_of(ids):
                values, ended = news[watch.id]
                watch.receive(values, ended=ended)

    def _due(self) -> set[str] | None:
        """Wait for workflows to read, and return their ids; None at the end."""
        with self._condition:
            while not self._closed.is_set():
                now = time.monotonic()
                ids, self._told = self._told, set()
                ids.update(id for at, id in self._new if at <= now)
                self._new = [each for each in self._new if each[0] > now]
                if now >= self._ask_at:
                    # Counted from the end of the last query: a slow database is asked less often.
                    ids.update(self._watches)
                ids &= self._watches.keys()
                if ids:
                    self._ask_at = now + self._pause
                    return ids
                ends = [at for at, _ in self._new]
                ends += [self._ask_at] if self._watches else []
                self._condition.wait(max(min(ends) - now, 0.001) if ends else None)
        return None

    @property
    def _pause(self) -> float:
        return _ASK_SECONDS_LISTENING if self._is_listening else _ASK_SECONDS

    def _least_offset(self, id: str) -> int | None:
        offsets = [each.offset for each in self._watches_of([id])]
        return min((each for each in offsets if each is not None), default=None)

    def _watches_of(self, ids: Iterable[str]) -> list[Watch]:
        with self._condition:
            return [watch for id in ids for watch in self._watches.get(id, ())]

    def _listen(self) -> None:
        """Tell the watches what other processes tell."""
        while not self._closed.is_set():
            try:
                with self._tables.listening() as told:
                    self._set_listening(is_listening=True)
                    while not self._closed.is_set():
                        self.tell(told(_LISTEN_SECONDS))
            except Exception as error:  # noqa: BLE001 - of the database or its driver
                log.warning("notifications not received", error=repr(error))
            self._set_listening(is_listening=False)
            self._closed.wait(_RETRY_SECONDS)

    def _set_listening(self, *, is_listening: bool) -> None:
        with self._condition:
            self._is_listening = is_listening
            self._ask_at = 0.0  # for what was told before
            self._condition.notify()


class Outbox:
    """Stores what the turns of a process publish, and tells that turns have ended.

    A thread stores what all turns have to store since the last time in one transaction.

    Args:
        tables: The tables of the process.
        notices: The readers of this process, which are told without the database.
    """

    def __init__(self, tables: Tables, notices: Notices) -> None:
        self._tables, self._notices = tables, notices
        self._rows: list[tuple[Future[None], dict[str, object]]] = []
        self._ended: list[str] = []
        self._condition = threading.Condition()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="chatclient-outbox", daemon=True)
        self._thread.start()

    async def publish(self, id: str, step: int, value: str) -> None:
        """Store a value, and return when readers can see it."""
        stored: Future[None] = Future()
        row = self._tables.event_row(id, step, value)
        with self._condition:
            self._rows.append((stored, row))
            self._condition.notify()
        # If the reader of the future is cancelled, they are stored all the same.
        await asyncio.shield(asyncio.wrap_future(stored))

    def end(self, id: str, output: str | None) -> None:
        """Tell that the workflow *id* has ended, with *output* or an error."""
        self._notices.end(id, output)
        if self._tables.notifies:
            with self._condition:
                self._ended.append(id)
                self._condition.notify()

    def close(self) -> None:
        """Store what there is, and end."""
        with self._condition:
            self._is_closed = True
            self._condition.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._condition:
                while not self._rows and not self._ended:
                    if self._is_closed:
                        return
                    self._condition.wait()
                if not self._rows:  # a notification costs a transaction: one for several turns
                    self._condition.wait_for(lambda: self._rows or self._is_closed, _END_SECONDS)
                rows, self._rows = self._rows, []
                ended, self._ended = self._ended, []
            error = self._store([row for _, row in rows], ended)
            for stored, _ in rows:
                if error is None:
                    stored.set_result(None)
                else:
                    stored.set_exception(error)
            self._notices.tell(str(row["id"]) for _, row in rows)

    def _store(self, rows: list[dict[str, object]], ended: list[str]) -> Exception | None:
        """Store *rows*, also if the database is away for a while; return why they are not."""
        pause = _FIRST_PAUSE
        while True:
            try:
                self._tables.publish(rows, ended)
            # Of two processes that publish for one turn, the later one has to count again.
            except (*FAULTS, sqlalchemy_errors.IntegrityError) as error:
                if not rows or self._is_closed:  # that a turn has ended is found out later
                    return error
                if pause == _FIRST_PAUSE:
                    log.warning("the turn waits for its database", error=repr(error))
                with self._condition:
                    self._condition.wait_for(lambda: self._is_closed, pause)
                pause = min(pause * 2, _LONGEST_PAUSE)
            except Exception as error:  # noqa: BLE001 - raised by the steps that publish
                return error
            else:
                return None
