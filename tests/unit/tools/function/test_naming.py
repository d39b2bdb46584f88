"""Tool names: validation, sanitising and descriptions."""

import re

import pytest
from hypothesis import given, strategies as st

from chatclient.chat.tool_definition import check_tool_name, describe_name, sanitise_tool_name
from chatclient.errors import ToolDefinitionError


@pytest.mark.parametrize("name", ["a", "get_weather", "get-weather2", "_", "A" * 64])
def test_valid_names(name: str) -> None:
    """A valid name is accepted and unchanged by sanitising."""
    assert check_tool_name(name) == name
    assert sanitise_tool_name(name) == name


@pytest.mark.feature("tool-names-illegal-characters-warn")
@pytest.mark.parametrize("name", ["", " ", "get weather", "a.b", "wetter\n", "größe", "A" * 65])
def test_invalid_names(name: str) -> None:
    """The error proposes a valid name."""
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
    """Accents are removed; other invalid characters become underscores."""
    assert sanitise_tool_name(name) == safe


@pytest.mark.feature("tool-names-illegal-characters-warn")
@given(st.text())
def test_sanitised_names_are_valid(name: str) -> None:
    """Any text is sanitised to a valid name."""
    assert check_tool_name(sanitise_tool_name(name))


@pytest.mark.feature("tool-names-illegal-characters-warn")
def test_sanitised_names_stay_different() -> None:
    """Long and empty names are distinguished by a digest."""
    names = ["天気", "時間", "", "!", "a" * 70, "a" * 71]

    assert len({sanitise_tool_name(name) for name in names}) == len(names)


def test_digest_position() -> None:
    """The digest follows the readable start, or `tool`."""
    long = sanitise_tool_name("get_weather_" + "x" * 70)

    assert re.fullmatch("get_weather_x{43}_[0-9a-f]{8}", long)
    assert re.fullmatch("tool_[0-9a-f]{8}", sanitise_tool_name("天気"))


@pytest.mark.feature("tool-description-derived-name", "tool-description-without-text-raw")
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
def test_name_in_words(name: str, words: str) -> None:
    """A name is converted to a description."""
    assert describe_name(name) == words
