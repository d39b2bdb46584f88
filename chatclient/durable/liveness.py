"""`Liveness`: the signs of life of this process, and turns that no process runs."""

import threading
import time
from collections.abc import Callable

from chatclient._internal.logging import get_logger
from chatclient.durable.running import RunningExecutions
from chatclient.durable.tables import Tables

log = get_logger(__name__)

_BEATS = 4  # beats that may be missed
_LOOK = 0.5  # seconds between looks for turns that are to be cancelled


class Liveness:
    """Tells other processes that this one is alive, and lets turns continue that nobody runs.

    DBOS continues the turns of a process when a process with the same id starts. This lets others
    continue them as well. A process that is only slow loses its turns, too, and finds out at its
    next step; nothing is executed twice because of that. At each sign of life, what the database
    says this process runs is compared with what it runs.

    Args:
        tables: The tables of this process.
        silent_seconds: How long a process must have been silent.
        running: The turns that this process runs.

    Attributes:
        each_beat: Called after each beat.
    """

    each_beat: Callable[[], None]

    def __init__(self, tables: Tables, silent_seconds: float, running: RunningExecutions) -> None:
        self._tables = tables
        self._silent, self._interval = silent_seconds, silent_seconds / _BEATS
        self._running = running
        self.each_beat = lambda: None
        self._trusted_from = 0.0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chatclient-liveness", daemon=True)

    def start(self) -> None:
        """Begin; the first beat is stored before this returns."""
        self._tables.create()
        self._tables.beat()
        self._thread.start()

    def stop(self) -> None:
        """End; other processes may continue the turns of this one immediately."""
        self._stopping.set()
        self._thread.join()
        try:
            self._tables.end()
        except Exception as error:  # noqa: BLE001 - others find out after some time
            log.warning("end of this process not stored", error=repr(error))
        self._tables.close()

    def _run(self) -> None:
        pause, next_beat = min(_LOOK, self._interval), time.monotonic() + self._interval
        while not self._stopping.wait(pause):
            pause = min(_LOOK, self._interval)
            try:
                self._cancel()
                if time.monotonic() >= next_beat:
                    next_beat = time.monotonic() + self._interval
                    self._beat()
            except Exception as error:  # noqa: BLE001 - of the database or its driver; the next one
                # Others could not give signs of life either: they may be alive.
                self._trusted_from = time.monotonic() + self._silent
                pause = self._interval
                log.warning("liveness not updated", error=repr(error))

    def _cancel(self) -> None:
        executed = self._running.executed()
        for id in self._tables.cancelled(executed) if executed else ():
            self._running.cancel(id)

    def _beat(self) -> None:
        self._tables.beat()
        own = self._tables.continue_own(self._running.ids())
        others = self._tables.continue_others() if time.monotonic() > self._trusted_from else []
        if own or others:
            log.info("turns taken over", turns=[*own, *others])
        self.each_beat()
