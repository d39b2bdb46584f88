"""A clock that tests set forward instead of waiting."""

import time

import pytest


class Clock:
    """The clock of `time.time` and `time.monotonic`, and so of event loops, which can be set.

    A loop on another thread notices when it wakes up the next time, and a thread that waits with a
    timeout does not: set the clock where the code under test runs, such as in a tool.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._ahead = 0.0
        wall, monotonic = time.time, time.monotonic
        monkeypatch.setattr(time, "time", lambda: wall() + self._ahead)
        monkeypatch.setattr(time, "monotonic", lambda: monotonic() + self._ahead)

    def advance(self, seconds: float) -> None:
        """Let *seconds* pass."""
        self._ahead += seconds
