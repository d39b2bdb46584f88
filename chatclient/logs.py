"""Loggers: structlog's way of writing, the standard library's way of being configured."""

import logging
from collections.abc import MutableMapping
from typing import Any

import structlog


def get_logger(name: str) -> Any:
    """Return a structlog logger that writes to the standard logger *name*.

    Nothing is configured globally and nothing is printed unless the application sets up logging.
    An event's fields reach both the record's message and, as `extra`, the record itself.
    """
    return structlog.wrap_logger(
        logging.getLogger(name),
        processors=[structlog.stdlib.filter_by_level, _render],
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )


def _render(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of the standard logging call."""
    exc_info = event.pop("exc_info", None)
    message = event.pop("event")
    fields = " ".join(f"{key}={value!r}" for key, value in event.items() if value is not None)
    text = f"{message} {fields}" if fields else message
    return {"msg": text, "extra": {"chatclient": {"event": message, **event}}, "exc_info": exc_info}
