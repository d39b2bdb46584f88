"""Messages as JSON, and JSON itself."""

import json
from typing import Any

import pytest
from hypothesis import given
from test_messages import JSON, MESSAGES

from chatclient.errors import UsageError
from chatclient.json import dumps, loads
from chatclient.messages import (
    AssistantMessage,
    Media,
    Message,
    ProviderPart,
    Reasoning,
    SystemMessage,
    ToolCall,
    ToolCallChunk,
    ToolResponse,
    ToolResponseMessage,
    UserMessage,
)
from chatclient.serialization import message_from_dict, message_to_dict


@given(MESSAGES)
def test_messages_survive_a_store(message: Message) -> None:
    """Whatever a message holds, what is read back is equal to it, and hashable like it."""
    again = message_from_dict(json.loads(json.dumps(message_to_dict(message))))

    assert again == message
    assert type(again) is type(message)
    assert hash(again) == hash(message)


STORED: list[tuple[Message, dict[str, Any]]] = [
    (SystemMessage("Be brief."), {"role": "system", "content": "Be brief."}),
    (
        UserMessage(["Look:", Media("image/png", b"\xff", name="cat.png")], metadata={"a": [1]}),
        {
            "role": "user",
            "content": [
                "Look:",
                {"type": "media", "base64": "/w==", "mime_type": "image/png", "name": "cat.png"},
            ],
            "metadata": {"a": [1]},
        },
    ),
    (
        UserMessage(Media("image/png", "https://example.org/cat.png", "file-1")),
        {
            "role": "user",
            "content": [
                {
                    "type": "media",
                    "url": "https://example.org/cat.png",
                    "mime_type": "image/png",
                    "id": "file-1",
                }
            ],
        },
    ),
    (
        AssistantMessage(
            [
                Reasoning("hm", "proof", "anthropic"),
                ProviderPart("openai", {}),
                ToolCall("", "f", ""),
                ToolCallChunk(0, arguments="{"),
            ]
        ),
        {
            "role": "assistant",
            "content": [
                {"type": "reasoning", "text": "hm", "signature": "proof", "provider": "anthropic"},
                {"type": "provider", "provider": "openai", "data": {}},
                {"type": "tool_call", "id": "", "name": "f", "arguments": ""},
                {"type": "tool_call_chunk", "index": 0, "arguments": "{"},
            ],
        },
    ),
    (
        ToolResponseMessage(
            [
                ToolResponse("1", "f", "42"),
                ToolResponse(
                    "2", "g", "no", is_error=True, media=(Media("a/b", b""),), metadata={"a": 1}
                ),
            ]
        ),
        {
            "role": "tool",
            "responses": [
                {"id": "1", "name": "f", "data": "42"},
                {
                    "id": "2",
                    "name": "g",
                    "data": "no",
                    "is_error": True,
                    "media": [{"type": "media", "base64": "", "mime_type": "a/b"}],
                    "metadata": {"a": 1},
                },
            ],
        },
    ),
]


@pytest.mark.parametrize(("message", "stored"), STORED)
def test_the_stored_form_stays_as_it_is(message: Message, stored: dict[str, Any]) -> None:
    """Stores outlive versions of this library: the form is fixed, without what is default."""
    assert message_to_dict(message) == stored
    assert message_from_dict(stored) == message


@pytest.mark.parametrize("role", [UserMessage, AssistantMessage])
def test_plain_text_content_can_be_read(role: type[UserMessage | AssistantMessage]) -> None:
    """A form written by hand may spell one text without a list."""
    assert message_from_dict({"role": role.role, "content": "Hi"}) == role("Hi")


def test_stored_data_is_not_taken_apart() -> None:
    """Reading leaves what was stored as it was, so that it can be read again."""
    stored = message_to_dict(UserMessage(Media("image/png", b"\xff")))
    before = json.dumps(stored)

    message_from_dict(stored)

    assert json.dumps(stored) == before


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ({}, "unknown role None"),
        ({"role": "developer", "content": "Hi"}, "unknown role 'developer'"),
        ({"role": "user"}, "content"),
        ({"role": "user", "content": None}, "NoneType"),
        ({"role": "user", "content": [1]}, "int"),
        ({"role": "user", "content": [{"type": "hologram"}]}, "hologram"),
        ({"role": "user", "content": [{"text": "Hi"}]}, "type"),
        ({"role": "user", "content": [{"type": "media", "mime_type": "a/b"}]}, "url"),
        ({"role": "user", "content": [{"type": "media", "base64": "a"}]}, "base64"),
        ({"role": "assistant", "content": [{"type": "tool_call"}]}, "arguments"),
        ({"role": "tool", "responses": [{"id": "1"}]}, "name"),
        ({"role": "tool", "responses": [1]}, "int"),
        ([], "list"),
    ],
)
def test_what_is_no_stored_message_is_refused(data: Any, told: str) -> None:
    """Broken data of a store is one error, which says what is wrong with it."""
    with pytest.raises(UsageError, match="not a stored message") as caught:
        message_from_dict(data)

    assert told in str(caught.value)


def test_foreign_kinds_of_messages_are_not_stored() -> None:
    """What could not be read back is refused when it is written."""

    class Telegram(Message):
        role = "user"

    with pytest.raises(TypeError, match="Telegram is not a message of this library"):
        message_to_dict(Telegram())


def test_foreign_parts_are_not_stored() -> None:
    """Nothing of a message gets lost in a store without a word."""
    broken: Any = UserMessage("x")
    object.__setattr__(broken, "parts", (42,))  # as by a class of somebody else's

    with pytest.raises(TypeError, match="int is not a part of a message"):
        message_to_dict(broken)


# --- JSON -----------------------------------------------------------------------------------


@given(JSON)
def test_json_round_trips(value: Any) -> None:
    """What is written is compact, is what the standard parser reads, and reads back equal."""
    written = dumps(value)

    assert json.loads(written) == value
    assert loads(written) == value
    assert loads(written.decode()) == value


def test_json_is_compact() -> None:
    """No byte is sent that says nothing."""
    assert dumps({"a": [1, "ü"]}) == '{"a":[1,"ü"]}'.encode()


@pytest.mark.parametrize("value", ["\ud800", {"\udfff": ["é", 1]}, ["\ud800", {1}]])
def test_lone_surrogates_are_written(value: Any) -> None:
    """Half a character, which some models emit, does not break the next request."""
    written = dumps(value)

    assert json.loads(written.decode("ascii")) == (
        ["\ud800", [1]] if type(value) is list else value
    )


@pytest.mark.parametrize("number", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("beside", ["a", "\ud800"])
def test_numbers_without_a_word_are_written_as_null(number: float, beside: str) -> None:
    """Services and databases refuse anything else, beside text of any kind."""
    written = dumps({"a": [number, 1.5, beside], "b": (number,)})

    assert json.loads(written) == {"a": [None, 1.5, beside], "b": [None]}


def test_numbers_without_a_word_are_read() -> None:
    """Servers written in Python spell them as Python does, in log probabilities say."""
    assert loads('{"a": [-Infinity, Infinity]}') == {"a": [float("-inf"), float("inf")]}
    assert str(loads(b"NaN")) == "nan"


def test_lone_surrogates_are_read() -> None:
    """Half a character in an answer is no reason to lose the rest."""
    assert loads(b'{"a": "x\\ud800"}') == {"a": "x\ud800"}
    assert loads('{"a": "x\ud800"}') == {"a": "x\ud800"}


@pytest.mark.parametrize(
    "data",
    ["", "{", "{'a': 1}", "1 2", b"\xff", "[" * 100_000],
    ids=["nothing", "open", "quotes", "more", "no text", "deep"],
)
def test_what_is_no_json_is_a_value_error(data: str | bytes) -> None:
    """However broken, and however deep: one kind of error, never a crash."""
    with pytest.raises(ValueError, match=r"."):
        loads(data)


def test_the_error_says_where_the_json_breaks() -> None:
    """Whoever debugs a model's JSON is told line and column."""
    with pytest.raises(ValueError, match="line 2 column 5"):
        loads('{\n"a":}')


def _endless() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize("value", [object(), {"a": object()}, b"\xff", _endless()])
def test_what_has_no_json_form_is_a_type_error(value: Any) -> None:
    """It is the error of Python's own JSON, and says what was being attempted."""
    with pytest.raises(TypeError, match="not serialisable as JSON"):
        dumps(value)
