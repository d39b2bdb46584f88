"""Clocks that tests set forward instead of waiting."""

import time

import pytest

_monotonic = time.monotonic
_passed = 0.0


def monotonic() -> float:
    """Return the time of `time.monotonic`, and the seconds that tests have let pass.

    Those are kept after a test: event loops that outlive it rely on a clock that never goes back.
    """
    return _monotonic() + _passed


class Clock:
    """The clocks `time.time` and `time.monotonic`, and so those of event loops.

    A loop on another thread notices when it wakes up the next time, and a thread that waits with a
    timeout does not: set the clock where the code under test runs, such as in a tool.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._ahead, wall = 0.0, time.time
        monkeypatch.setattr(time, "time", lambda: wall() + self._ahead)
        time.monotonic = monotonic

    def advance(self, seconds: float) -> None:
        """Let *seconds* pass."""
        global _passed  # noqa: PLW0603 - there is one clock
        self.set_forward(seconds)
        _passed += seconds

    def set_forward(self, seconds: float) -> None:
        """Set the time of day *seconds* forward; nothing that waits for a time notices."""
        self._ahead += seconds
