"""Logs: events with fields, over the standard library's loggers."""

import io
import json
import logging
import subprocess
import sys
from typing import Any

import pytest
import structlog

from chatclient._internal.logging import get_logger
from chatclient.observability import log_fields

LOG = get_logger("chatclient.tests")


def fields_of(record: logging.LogRecord) -> Any:
    return record.__dict__["chatclient"]


@pytest.mark.parametrize("level", ["debug", "info"])
def test_event_message_and_level(caplog: pytest.LogCaptureFixture, level: str) -> None:
    """Event and fields form the message, at the given level."""
    caplog.set_level(logging.DEBUG, "chatclient.tests")

    getattr(LOG, level)("answered", model="m", seconds=1.5)

    assert caplog.record_tuples == [
        ("chatclient.tests", getattr(logging, level.upper()), "answered model='m' seconds=1.5")
    ]


def test_event_without_fields(caplog: pytest.LogCaptureFixture) -> None:
    """Without fields the message is the event."""
    caplog.set_level(logging.INFO, "chatclient.tests")

    LOG.info("started")

    assert caplog.messages == ["started"]


def test_record_fields(caplog: pytest.LogCaptureFixture) -> None:
    """The record has the field values, also those that the message omits."""
    caplog.set_level(logging.INFO, "chatclient.tests")

    LOG.info("answered", usage={"in": 1}, request_id=None)

    assert caplog.messages == ["answered usage={'in': 1}"]
    assert fields_of(caplog.records[0]) == {
        "event": "answered",
        "usage": {"in": 1},
        "request_id": None,
    }


@pytest.mark.parametrize("level", ["debug", "info", "warning"])
def test_record_location(caplog: pytest.LogCaptureFixture, level: str) -> None:
    """File, line and function are those of the caller."""
    caplog.set_level(logging.DEBUG, "chatclient.tests")

    getattr(LOG, level)("here")

    (record,) = caplog.records
    assert (record.filename, record.funcName) == (
        "test_logging.py",
        "test_record_location",
    )


def test_percent_signs(caplog: pytest.LogCaptureFixture) -> None:
    """Percent signs in values are not format specifiers."""
    caplog.set_level(logging.INFO, "chatclient.tests")

    LOG.info("100%s", text="50% %d")

    assert caplog.messages == ["100%s text='50% %d'"]


def test_fields_named_like_record_attributes(caplog: pytest.LogCaptureFixture) -> None:
    """Fields may have the names of record attributes."""
    caplog.set_level(logging.INFO, "chatclient.tests")

    LOG.info("called", name="weather", args="{}")

    assert caplog.records[0].name == "chatclient.tests"
    assert fields_of(caplog.records[0])["name"] == "weather"


def test_exception_of_a_record(caplog: pytest.LogCaptureFixture) -> None:
    """Handlers print the traceback; the exception is no field."""
    caplog.set_level(logging.INFO, "chatclient.tests")
    error = ValueError("broken")

    LOG.info("failed", exc_info=error)

    record = caplog.records[0]
    assert record.exc_info is not None
    assert record.exc_info[1] is error
    assert fields_of(record) == {"event": "failed"}


@pytest.mark.parametrize(
    ("threshold", "expected"),
    [(logging.DEBUG, ["one", "two"]), (logging.INFO, ["two"]), (logging.WARNING, [])],
)
def test_levels(caplog: pytest.LogCaptureFixture, threshold: int, expected: list[str]) -> None:
    """The configured level is checked for each event."""
    for level in (logging.CRITICAL, threshold):
        caplog.set_level(level, "chatclient.tests")
        LOG.debug("one")
        LOG.info("two")

    assert caplog.messages == expected


def test_no_import_without_logging() -> None:
    """Nothing is printed or imported unless logging is enabled."""
    code = (
        "import sys; from chatclient._internal.logging import get_logger; log = get_logger('a');"
        "log.info('x'); log.debug('y'); print('structlog' in sys.modules)"
    )

    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert (ran.stdout, ran.stderr) == ("False\n", "")


@pytest.mark.parametrize("extras", [False, True])
def test_fields_in_structlog(extras: bool) -> None:
    """With the processor, each field is once in the JSON; other records are left as they are."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    chain: list[Any] = [structlog.stdlib.add_log_level, log_fields]
    if extras:
        chain.insert(0, structlog.stdlib.ExtraAdder())
    processors: list[Any] = [
        structlog.stdlib.ProcessorFormatter.remove_processors_meta,
        structlog.processors.JSONRenderer(sort_keys=True),
    ]
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(foreign_pre_chain=chain, processors=processors)
    )
    logger = logging.getLogger("chatclient.tests")
    logger.addHandler(handler)
    try:
        LOG.warning("retried", seconds=0.5, tool=None)
        logger.warning("another")
    finally:
        logger.removeHandler(handler)

    assert [json.loads(line) for line in stream.getvalue().splitlines()] == [
        {"event": "retried", "level": "warning", "seconds": 0.5},
        {"event": "another", "level": "warning"},
    ]
