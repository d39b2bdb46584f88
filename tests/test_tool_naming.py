"""Names of tools: which are accepted, how to make one, what it says."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatclient.errors import ToolDefinitionError
from chatclient.tools.naming import check_tool_name, describe_name, sanitise_tool_name


@pytest.mark.parametrize("name", ["a", "get_weather", "get-weather2", "_", "A" * 64])
def test_names_that_providers_accept(name: str) -> None:
    """An accepted name passes, and sanitising leaves it alone."""
    assert check_tool_name(name) == name
    assert sanitise_tool_name(name) == name


@pytest.mark.parametrize("name", ["", " ", "get weather", "a.b", "wetter\n", "größe", "A" * 65])
def test_names_that_providers_refuse(name: str) -> None:
    """A name that some provider refuses is refused at once, with one that would do."""
    with pytest.raises(ToolDefinitionError, match=re.escape(repr(sanitise_tool_name(name)))):
        check_tool_name(name)


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("get weather!", "get_weather"),
        ("a.b/c", "a_b_c"),
        ("größer", "groer"),
        ("café-menu", "cafe-menu"),
    ],
)
def test_sanitised_names_stay_readable(name: str, safe: str) -> None:
    """Accents go, and whatever else is not accepted becomes an underscore."""
    assert sanitise_tool_name(name) == safe


@given(st.text())
def test_sanitised_names_are_accepted(name: str) -> None:
    """Any text at all becomes a name that is accepted."""
    assert check_tool_name(sanitise_tool_name(name))


def test_names_that_differ_stay_different() -> None:
    """Names too long, or without any letter that is accepted, are told apart by a digest."""
    names = ["天気", "時間", "", "!", "a" * 70, "a" * 71]

    assert len({sanitise_tool_name(name) for name in names}) == len(names)


def test_a_digest_stands_after_what_can_be_read() -> None:
    """A name that is too long keeps its beginning; one without letters is called a tool."""
    long = sanitise_tool_name("get_weather_" + "x" * 70)

    assert re.fullmatch("get_weather_x{43}_[0-9a-f]{8}", long)
    assert re.fullmatch("tool_[0-9a-f]{8}", sanitise_tool_name("天気"))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("getCurrentDateTime", "get current date time"),
        ("get_current_date_time", "get current date time"),
        ("get-current.date", "get current date"),
        ("getHTTPStatus", "get http status"),
        ("simpleMethod", "simple method"),
        ("__private__", "private"),
        ("x", "x"),
    ],
)
def test_a_name_in_words(name: str, words: str) -> None:
    """A name without a description describes itself."""
    assert describe_name(name) == words
