"""`Progress` of long work, and `ProgressBar`, which shows it."""

import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True)
class Progress:
    """How far long work has come.

    Attributes:
        total: The number of items.
        finished: The number of those that are finished.
        known: The number of finished items that took no work, such as those in a journal.
        seconds: The seconds since the work began.
    """

    total: int
    finished: int = 0
    known: int = 0
    seconds: float = 0.0

    @property
    def rate(self) -> float | None:
        """How many items take a second together; None before the first one is finished."""
        worked = self.finished - self.known
        return worked / self.seconds if worked and self.seconds else None

    @property
    def remaining_seconds(self) -> float | None:
        """How long the rest takes at this rate, or None if that is not known."""
        left = self.total - self.finished
        return left / self.rate if self.rate else (None if left else 0.0)


OnProgress: TypeAlias = Callable[[Any], Awaitable[object] | object]
"""Called with the `Progress` when an item is finished; plain or async."""


class ProgressBar:
    """Shows `Progress` as a bar in a terminal or a notebook.

    ```python
    documents = read_documents("docs", on_progress=ProgressBar("reading"))
    ```

    It is drawn by `tqdm` or `rich`, whichever is installed, on standard error. Without both, and if
    that is a file or a pipe, nothing is shown. Use another bar for other work.

    Args:
        title: The text before the bar.
    """

    def __init__(self, title: str = "") -> None:
        self._title = title
        self._draw: Callable[[Progress], None] | None = None

    def __repr__(self) -> str:
        return f"ProgressBar({self._title!r})"

    def __call__(self, progress: Progress) -> None:
        """Show *progress*."""
        if self._draw is None:
            self._draw = _drawn(self._title, progress.total)
        self._draw(progress)


def _drawn(title: str, total: int) -> Callable[[Progress], None]:
    """Return what draws a bar."""
    if not ("ipykernel" in sys.modules or sys.stderr.isatty()):
        return lambda _: None
    for draw in (_by_tqdm, _by_rich):
        with suppress(ImportError):
            return draw(title, total)
    return lambda _: None


def _by_tqdm(title: str, total: int) -> Callable[[Progress], None]:
    bar = import_module("tqdm.std").tqdm(total=total, desc=title or None, file=sys.stderr)

    def draw(progress: Progress) -> None:
        bar.update(progress.finished - bar.n)
        if progress.finished >= progress.total:
            bar.close()

    return draw


def _by_rich(title: str, total: int) -> Callable[[Progress], None]:
    console = import_module("rich.console").Console(stderr=True)
    bar = import_module("rich.progress").Progress(console=console, auto_refresh=False)
    task = bar.add_task(title, total=total)
    bar.start()

    def draw(progress: Progress) -> None:
        bar.update(task, completed=progress.finished, refresh=True)
        if progress.finished >= progress.total:
            bar.stop()

    return draw
