"""Loggers with structlog's interface that write to the standard library's loggers.

Nothing is printed unless the application configures logging. The fields of an event are part of the
record's message, and are available as `record.chatclient`.
"""

import logging
from collections.abc import MutableMapping
from typing import Any

from chatclient.errors import EntityError, InvalidResponseError

_STACK_LEVEL = 5  # frames of structlog and of this module above the caller


class Logger:
    """Writes events with fields to the standard logger of the same name."""

    __slots__ = ("_bound", "_standard")

    def __init__(self, name: str) -> None:
        self._standard = logging.getLogger(name)
        self._bound: Any = None

    def is_enabled_for_debug(self) -> bool:
        """Return whether debug events are written."""
        return self._standard.isEnabledFor(logging.DEBUG)

    def is_enabled_for_info(self) -> bool:
        """Return whether info events are written."""
        return self._standard.isEnabledFor(logging.INFO)

    def debug(self, event: str, **fields: Any) -> None:
        """Write an event for debugging."""
        if self.is_enabled_for_debug():
            self._structlog().debug(event, **fields)

    def info(self, event: str, **fields: Any) -> None:
        """Write an event for operators."""
        if self.is_enabled_for_info():
            self._structlog().info(event, **fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Write an event that needs attention."""
        if self._standard.isEnabledFor(logging.WARNING):
            self._structlog().warning(event, **fields)

    def _structlog(self) -> Any:
        if self._bound is None:
            # Imported for the first event: with `rich` installed, it doubles the import time.
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
    """Return *error* for a log line; only its type if its text quotes a model's answer."""
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
        "stacklevel": _STACK_LEVEL,
    }
