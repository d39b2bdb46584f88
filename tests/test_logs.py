"""Logs: events with fields, over the standard library's loggers."""

import logging
import subprocess
import sys
from typing import Any

import pytest

from chatclient.logs import get_logger

LOG = get_logger("chatclient.tests")


def fields_of(record: logging.LogRecord) -> Any:
    return record.__dict__["chatclient"]


@pytest.mark.parametrize("level", ["debug", "info"])
def test_an_event_reaches_the_standard_logger(caplog: pytest.LogCaptureFixture, level: str) -> None:
    """The event and its fields are the message, at the level it was written."""
    caplog.set_level(logging.DEBUG, "chatclient.tests")

    getattr(LOG, level)("answered", model="m", seconds=1.5)

    assert caplog.record_tuples == [
        ("chatclient.tests", getattr(logging, level.upper()), "answered model='m' seconds=1.5")
    ]


def test_an_event_without_fields_is_its_own_message(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is added to what was said."""
    caplog.set_level(logging.INFO, "chatclient.tests")

    LOG.info("started")

    assert caplog.messages == ["started"]


def test_fields_are_on_the_record(caplog: pytest.LogCaptureFixture) -> None:
    """A handler that writes JSON finds the values themselves, those left out of the text too."""
    caplog.set_level(logging.INFO, "chatclient.tests")

    LOG.info("answered", usage={"in": 1}, request_id=None)

    assert caplog.messages == ["answered usage={'in': 1}"]
    assert fields_of(caplog.records[0]) == {
        "event": "answered",
        "usage": {"in": 1},
        "request_id": None,
    }


@pytest.mark.parametrize("level", ["debug", "info", "warning"])
def test_a_record_says_where_it_was_written(caplog: pytest.LogCaptureFixture, level: str) -> None:
    """Not in the code of loggers, for formats with file, line or function."""
    caplog.set_level(logging.DEBUG, "chatclient.tests")

    getattr(LOG, level)("here")

    (record,) = caplog.records
    assert (record.filename, record.funcName) == (
        "test_logs.py",
        "test_a_record_says_where_it_was_written",
    )


def test_percent_signs_are_only_signs(caplog: pytest.LogCaptureFixture) -> None:
    """A model's words are not taken for a format."""
    caplog.set_level(logging.INFO, "chatclient.tests")

    LOG.info("100%s", text="50% %d")

    assert caplog.messages == ["100%s text='50% %d'"]


def test_names_of_record_attributes_are_free(caplog: pytest.LogCaptureFixture) -> None:
    """A field may be called what the standard library calls something else."""
    caplog.set_level(logging.INFO, "chatclient.tests")

    LOG.info("called", name="weather", args="{}")

    assert caplog.records[0].name == "chatclient.tests"
    assert fields_of(caplog.records[0])["name"] == "weather"


def test_an_exception_goes_with_the_record(caplog: pytest.LogCaptureFixture) -> None:
    """Handlers print its traceback; it is no field."""
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
def test_levels_are_the_standard_ones(
    caplog: pytest.LogCaptureFixture, threshold: int, expected: list[str]
) -> None:
    """What the application configured is asked for each event, also when it changes."""
    for level in (logging.CRITICAL, threshold):
        caplog.set_level(level, "chatclient.tests")
        LOG.debug("one")
        LOG.info("two")

    assert caplog.messages == expected


def test_silence_costs_no_structlog() -> None:
    """Nothing is printed, and nothing imported, until the application asks for events."""
    code = (
        "import sys; from chatclient.logs import get_logger; log = get_logger('a');"
        "log.info('x'); log.debug('y'); print('structlog' in sys.modules)"
    )

    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert (ran.stdout, ran.stderr) == ("False\n", "")
