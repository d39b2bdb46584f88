"""Bars for the progress of long work."""

import io
import sys

import pytest

from chatclient import Progress, ProgressBar


class Terminal(io.StringIO):
    """Is a terminal."""

    def isatty(self) -> bool:
        return True


def shown(monkeypatch: pytest.MonkeyPatch, *missing: str, terminal: bool = True) -> str:
    """Return what a bar writes on standard error."""
    for name in missing:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", stream := Terminal() if terminal else io.StringIO())
    bar = ProgressBar("reading")
    for finished in (1, 2, 3):
        bar(Progress(3, finished))
    return stream.getvalue()


@pytest.mark.parametrize(("package", "missing"), [("tqdm", []), ("rich", ["tqdm.std"])])
def test_bar(monkeypatch: pytest.MonkeyPatch, package: str, missing: list[str]) -> None:
    """Either package draws it."""
    pytest.importorskip(package)
    text = shown(monkeypatch, *missing)

    assert "reading" in text
    assert "100%" in text


def test_nothing_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a terminal, and without a package, there is no bar."""
    assert shown(monkeypatch, terminal=False) == ""
    assert shown(monkeypatch, "tqdm.std", "rich.console") == ""


def test_rate() -> None:
    """What took no work does not count."""
    progress = Progress(10, finished=6, known=2, seconds=2.0)

    assert (progress.rate, progress.remaining_seconds) == (2.0, 2.0)
    assert (Progress(2).rate, Progress(2).remaining_seconds) == (None, None)
    assert repr(ProgressBar("x")) == "ProgressBar('x')"
