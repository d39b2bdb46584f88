"""Messages as JSON, and JSON itself."""

import json
from typing import Any

import pytest
from hypothesis import given

from chatclient._internal.json import dumps, loads
from chatclient.chat.messages import (
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
from chatclient.chat.serialization import message_from_dict, message_to_dict
from chatclient.errors import UsageError
from tests.unit.chat.test_messages import JSON, MESSAGES


@pytest.mark.feature("message-storing-messages")
@given(MESSAGES)
def test_message_round_trip(message: Message) -> None:
    """A restored message is equal and has an equal hash."""
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


@pytest.mark.feature("message-storing-messages")
@pytest.mark.parametrize(("message", "stored"), STORED)
def test_stored_form_is_stable(message: Message, stored: dict[str, Any]) -> None:
    """The stored form is fixed and omits defaults."""
    assert message_to_dict(message) == stored
    assert message_from_dict(stored) == message


@pytest.mark.parametrize("role", [UserMessage, AssistantMessage])
def test_content_as_string(role: type[UserMessage | AssistantMessage]) -> None:
    """Content may be a string instead of a list."""
    assert message_from_dict({"role": role.role, "content": "Hi"}) == role("Hi")


def test_stored_data_is_not_modified() -> None:
    """Reading does not modify the stored data."""
    stored = message_to_dict(UserMessage(Media("image/png", b"\xff")))
    before = json.dumps(stored)

    message_from_dict(stored)

    assert json.dumps(stored) == before


@pytest.mark.parametrize(
    ("data", "message"),
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
def test_invalid_stored_message(data: Any, message: str) -> None:
    """Invalid data raises one error that names the problem."""
    with pytest.raises(UsageError, match="not a stored message") as caught:
        message_from_dict(data)

    assert message in str(caught.value)


def test_unknown_message_type() -> None:
    """Messages of other types are rejected when written."""

    class Telegram(Message):
        role = "user"

    with pytest.raises(TypeError, match="Telegram is not a message of this library"):
        message_to_dict(Telegram())


def test_unknown_part_type() -> None:
    """Parts of other types are rejected when written."""
    broken: Any = UserMessage("x")
    object.__setattr__(broken, "parts", (42,))  # as a third-party class might do

    with pytest.raises(TypeError, match="int is not a part of a message"):
        message_to_dict(broken)


# --- JSON -----------------------------------------------------------------------------------


@given(JSON)
def test_json_round_trip(value: Any) -> None:
    """JSON is compact, standard, and restores equal values."""
    written = dumps(value)

    assert json.loads(written) == value
    assert loads(written) == value
    assert loads(written.decode()) == value


def test_compact_json() -> None:
    """JSON has no optional white space."""
    assert dumps({"a": [1, "ü"]}) == '{"a":[1,"ü"]}'.encode()


@pytest.mark.parametrize("value", ["\ud800", {"\udfff": ["é", 1]}, ["\ud800", {1}]])
def test_lone_surrogates_are_escaped(value: Any) -> None:
    """Lone surrogates, which some models emit, are written as escapes."""
    written = dumps(value)

    assert json.loads(written.decode("ascii")) == (
        ["\ud800", [1]] if type(value) is list else value
    )


@pytest.mark.parametrize("number", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("beside", ["a", "\ud800"])
def test_nan_is_written_as_null(number: float, beside: str) -> None:
    """NaN and infinity become null, with any other text."""
    written = dumps({"a": [number, 1.5, beside], "b": (number,)})

    assert json.loads(written) == {"a": [None, 1.5, beside], "b": [None]}


def test_nan_is_read() -> None:
    """NaN and Infinity, as Python servers write them, are read."""
    assert loads('{"a": [-Infinity, Infinity]}') == {"a": [float("-inf"), float("inf")]}
    assert str(loads(b"NaN")) == "nan"


def test_lone_surrogates_are_read() -> None:
    """Lone surrogates are read."""
    assert loads(b'{"a": "x\\ud800"}') == {"a": "x\ud800"}
    assert loads('{"a": "x\ud800"}') == {"a": "x\ud800"}


@pytest.mark.parametrize(
    "data",
    ["", "{", "{'a': 1}", "1 2", b"\xff", "[" * 100_000],
    ids=["empty", "open", "quotes", "more", "no text", "deep"],
)
def test_invalid_json(data: str | bytes) -> None:
    """Invalid or deeply nested JSON raises ValueError."""
    with pytest.raises(ValueError, match=r"."):
        loads(data)


def test_error_position() -> None:
    """The error has line and column."""
    with pytest.raises(ValueError, match="line 2 column 5"):
        loads('{\n"a":}')


def _endless() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize("value", [object(), {"a": object()}, b"\xff", _endless()])
def test_unserialisable_value(value: Any) -> None:
    """Values without a JSON form raise TypeError as in Python's json."""
    with pytest.raises(TypeError, match="not serialisable as JSON"):
        dumps(value)


def test_untrusted_message_has_no_metadata() -> None:
    """Metadata may have a meaning for the library or the provider."""
    call = ToolCall("1", "look", "{}", {"type": "custom"})
    message = AssistantMessage(["Hm.", call], metadata={"cache_control": {}}, id="m1")
    response = ToolResponse("1", "look", "seen", metadata={"return_direct": True})
    results = ToolResponseMessage([response], {"ends_turn": True})

    for trusted in (message, results):
        data = message_to_dict(trusted)
        untrusted = message_from_dict(data, trusted=False)
        assert message_from_dict(data) == trusted
        assert (untrusted.metadata, untrusted.id) == ({}, trusted.id)
        assert "metadata" not in repr(message_to_dict(untrusted))


def test_untrusted_message_has_no_data_of_providers() -> None:
    """Items that providers get as they are could be system messages."""
    item = {"type": "message", "role": "system", "content": "x"}
    thought = Reasoning("Hm.", "s", "openai", item)
    message = AssistantMessage([thought, "a", ProviderPart("openai", item)])

    untrusted = message_from_dict(message_to_dict(message), trusted=False)

    assert untrusted == AssistantMessage([Reasoning("Hm.", "s", "openai"), "a"])


def test_untrusted_value() -> None:
    with pytest.raises(UsageError):
        message_from_dict([], trusted=False)  # type: ignore[arg-type]


@pytest.mark.parametrize("id", [1, ["a"], {"a": 1}, True])
def test_untrusted_ids(id: Any) -> None:
    """Ids of messages, calls, results and media are texts."""
    call = {"type": "tool_call", "id": "c", "name": "f", "arguments": "{}"}
    media = {"type": "media", "mime_type": "image/png", "url": "https://x.example/a.png"}
    result = {"id": "c", "name": "f", "data": "x"}
    for data in (
        {"role": "user", "content": "Hi", "id": id},
        {"role": "assistant", "content": [{**call, "id": id}]},
        {"role": "user", "content": ["Hi", {**media, "id": id}]},
        {"role": "tool", "responses": [{**result, "id": id}]},
        {"role": "tool", "responses": [{**result, "media": [{**media, "id": id}]}]},
    ):
        with pytest.raises(UsageError, match="an id must be a text"):
            message_from_dict(data, trusted=False)
