"""Loggers: structlog's way of writing, the standard library's way of being configured.

Nothing is configured globally and nothing is printed unless the application sets up logging. An
event's fields reach both the record's message and, as `record.chatclient`, the record itself.
"""

import logging
from collections.abc import MutableMapping
from typing import Any

from chatclient.errors import EntityError, InvalidResponseError

_STACK = 5  # how far from the standard logger's caller it is to whoever writes: structlog, and us


class Logger:
    """Writes events with fields to the standard logger of its name."""

    __slots__ = ("_bound", "_standard")

    def __init__(self, name: str) -> None:
        self._standard = logging.getLogger(name)
        self._bound: Any = None

    def is_enabled_for_debug(self) -> bool:
        """Return whether anybody wants to know what only matters when something is looked into."""
        return self._standard.isEnabledFor(logging.DEBUG)

    def is_enabled_for_info(self) -> bool:
        """Return whether anybody wants to know what matters in operation."""
        return self._standard.isEnabledFor(logging.INFO)

    def debug(self, event: str, **fields: Any) -> None:
        """Write an event that matters when something is looked into."""
        if self.is_enabled_for_debug():
            self._structlog().debug(event, **fields)

    def info(self, event: str, **fields: Any) -> None:
        """Write an event that matters in operation."""
        if self.is_enabled_for_info():
            self._structlog().info(event, **fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Write an event that somebody should look into."""
        if self._standard.isEnabledFor(logging.WARNING):
            self._structlog().warning(event, **fields)

    def _structlog(self) -> Any:
        if self._bound is None:
            # Imported when the first event is written: with `rich` installed it costs as much as
            # everything else together, and most processes never write at this level.
            import structlog  # noqa: PLC0415

            self._bound = structlog.wrap_logger(
                self._standard,
                processors=[_render],
                wrapper_class=structlog.stdlib.BoundLogger,
                cache_logger_on_first_use=True,
            )
        return self._bound


def get_logger(name: str) -> Logger:
    """Return the logger called *name*."""
    return Logger(name)


def described(error: BaseException | None) -> str:
    """Return what a log says of *error*: its kind alone where its text quotes an answer."""
    quotes = isinstance(error, InvalidResponseError | EntityError)
    return type(error).__name__ if quotes else repr(error)


def _render(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of the standard logging call."""
    exc_info = event.pop("exc_info", None)
    message = event.pop("event")
    fields = " ".join(f"{key}={value!r}" for key, value in event.items() if value is not None)
    text = f"{message} {fields}" if fields else message
    return {
        "msg": text,  # without arguments, logging leaves percent signs alone
        "extra": {"chatclient": {"event": message, **event}},
        "exc_info": exc_info,
        "stacklevel": _STACK,
    }
