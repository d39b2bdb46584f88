"""Messages and their parts: immutable values."""

import copy
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from chatclient._internal.frozen import FrozenDict
from chatclient.chat.message_merging import append_messages
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
    as_messages,
)
from chatclient.chat.prompt import Prompt
from chatclient.chat.serialization import message_from_dict, message_to_dict
from chatclient.errors import UsageError

CALL = ToolCall("1", "weather", '{"city": "Ulm"}')
IMAGE = Media("image/png", b"\x89PNG", name="cat.png")
THOUGHT = Reasoning("hm", "proof", "anthropic")
CITED = ProviderPart("anthropic", {"type": "citation"}, "quoted")
SILENT = ProviderPart("openai", {"type": "input_file"})

# --- the time of storing --------------------------------------------------------------------


@pytest.mark.parametrize(
    "message",
    [SystemMessage("a"), UserMessage("a"), AssistantMessage("a"), ToolResponseMessage([])],
)
def test_time_of_storing(message: Any) -> None:
    """It is kept by copies and as JSON, and not compared; others' messages lose it."""
    moment = datetime(2026, 1, 1, 12, tzinfo=UTC)
    message.cache_wire("dialect", b"{}")
    stored = message.with_stored_at(moment)
    data = message_to_dict(stored)

    assert stored == message
    assert message.stored_at is None
    assert stored.wire("dialect") == b"{}"
    assert SystemMessage("a").with_stored_at(moment).wire("dialect") is None
    copies = (stored.with_id("1"), stored.mutate(metadata={"a": 1}), message_from_dict(data))
    for kept in (*copies, pickle.loads(pickle.dumps(stored)), copy.copy(stored)):
        assert kept.stored_at == moment
    assert message_from_dict(data, trusted=False).stored_at is None


@pytest.mark.parametrize("moment", [datetime(2026, 1, 1), "2026-01-01"])  # noqa: DTZ001
def test_invalid_time_of_storing(moment: Any) -> None:
    """A time needs a time zone."""
    for make in (SystemMessage, UserMessage, AssistantMessage):
        with pytest.raises((UsageError, TypeError)):
            make("a", stored_at=moment)


# --- pickling and copying -------------------------------------------------------------------

TEXT = st.text(max_size=5)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=4,
)
METADATA = st.dictionaries(TEXT, JSON, max_size=2).map(FrozenDict)
MEDIA = st.builds(
    Media,
    TEXT,
    st.binary(max_size=5) | TEXT.map("data:{}".format),
    st.none() | TEXT,
    st.none() | TEXT,
    METADATA,
)
REASONING = st.builds(Reasoning, TEXT, st.none() | TEXT, TEXT, st.none() | METADATA)
CALLS = st.builds(ToolCall, TEXT, TEXT, TEXT, METADATA)
CALL_CHUNKS = st.builds(ToolCallChunk, st.none() | st.integers(0, 3), TEXT, TEXT, TEXT, METADATA)
PROVIDER_PARTS = st.builds(ProviderPart, TEXT, METADATA, TEXT)
RESPONSES = st.builds(
    ToolResponse, TEXT, TEXT, TEXT, st.booleans(), st.lists(MEDIA, max_size=2).map(tuple), METADATA
)
PARTS = TEXT | MEDIA | REASONING | CALLS | CALL_CHUNKS | PROVIDER_PARTS
MESSAGES: st.SearchStrategy[Message] = st.one_of(
    st.builds(SystemMessage, TEXT, METADATA),
    st.builds(UserMessage, st.lists(TEXT | MEDIA | PROVIDER_PARTS, max_size=3), metadata=METADATA),
    st.builds(AssistantMessage, st.lists(PARTS, max_size=4), metadata=METADATA),
    st.builds(ToolResponseMessage, st.lists(RESPONSES, max_size=2), METADATA),
)


@given(MESSAGES)
def test_messages_pickle(message: Message) -> None:
    """A pickled message is equal."""
    again = pickle.loads(pickle.dumps(message))

    assert again == message
    assert type(again) is type(message)
    assert hash(again) == hash(message)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
@given(message=MESSAGES)
def test_messages_are_copied(copied: Callable[[Any], Any], message: Message) -> None:
    """All ways to copy give an equal message of the same type."""
    again = copied(message)

    assert again == message
    assert type(again) is type(message)


# --- common to all messages -----------------------------------------------------------------

MAKERS: list[Callable[..., Message]] = [
    lambda metadata: SystemMessage("Be brief.", metadata),
    lambda metadata: UserMessage("Hi", metadata=metadata),
    lambda metadata: AssistantMessage("Hi", metadata=metadata),
    lambda metadata: ToolResponseMessage([ToolResponse("1", "weather", "rain")], metadata),
]
each_kind = pytest.mark.parametrize("make", MAKERS, ids=["system", "user", "assistant", "tool"])


@pytest.mark.feature("message-metadata-copied")
@each_kind
def test_metadata_is_copied(make: Callable[..., Message]) -> None:
    """The message is independent of the given dict."""
    mine = {"source": "form"}
    message = make(mine)

    mine["source"] = "changed"

    assert message.metadata == {"source": "form"}
    assert hash(message) == hash(make({"source": "form"}))


@pytest.mark.feature("message-system-message-user-assistant")
@each_kind
def test_messages_are_immutable(make: Callable[..., Message]) -> None:
    """No attribute can be assigned."""
    message: Any = make({})

    with pytest.raises(FrozenInstanceError):
        message.metadata = {"a": 1}


@pytest.mark.feature("message-system-message-user-assistant")
@each_kind
def test_equality_includes_metadata(make: Callable[..., Message]) -> None:
    """Messages are equal if all fields are."""
    assert make({"a": 1}) == make({"a": 1})
    assert make({"a": 1}) != make({"a": 2})


@pytest.mark.feature("message-mutate-copy")
@each_kind
def test_mutate_metadata(make: Callable[..., Any]) -> None:
    """A changed copy is a new message; the original is unchanged."""
    message = make({"a": 1})

    changed = message.mutate(metadata={"b": 2})

    assert changed == make({"b": 2})
    assert message == make({"a": 1})
    assert message.mutate() == message


@pytest.mark.feature("message-type")
@pytest.mark.parametrize(
    ("message", "role"),
    [
        (SystemMessage(""), "system"),
        (UserMessage(), "user"),
        (AssistantMessage(), "assistant"),
        (ToolResponseMessage([]), "tool"),
    ],
)
def test_roles(message: Message, role: str) -> None:
    """Each message class has its role."""
    assert message.role == role


@pytest.mark.feature("message-system-message-user-assistant")
def test_messages_of_different_roles_differ() -> None:
    """Equal text with different roles is not equal."""
    messages: list[Message] = [UserMessage("Hi"), AssistantMessage("Hi"), SystemMessage("Hi")]

    assert len(set(messages)) == 3


@pytest.mark.feature("message-mutate-copy")
def test_mutate_keeps_the_subclass() -> None:
    """A custom message class is kept."""

    class Draft(AssistantMessage):
        __slots__ = ()

    assert type(Draft("a").mutate(text="b")) is Draft


# --- content --------------------------------------------------------------------------------


@pytest.mark.feature("message-text-media-order", "lc4j-aimessage-text-thinking-tool")
@pytest.mark.parametrize(
    ("message", "parts"),
    [
        (UserMessage(), ()),
        (UserMessage(""), ()),
        (UserMessage("Hi"), ("Hi",)),
        (UserMessage("Look:", [IMAGE]), ("Look:", IMAGE)),
        (UserMessage(media=[IMAGE]), (IMAGE,)),
        (UserMessage(IMAGE), (IMAGE,)),
        (UserMessage(["Before", IMAGE, "after"]), ("Before", IMAGE, "after")),
        (UserMessage(part for part in ("a", "b")), ("a", "b")),
        (AssistantMessage(), ()),
        (AssistantMessage("Hi", [CALL]), ("Hi", CALL)),
        (AssistantMessage(None, [CALL]), (CALL,)),
        (
            AssistantMessage("Hi", [CALL], media=[IMAGE], reasoning=[THOUGHT]),
            (THOUGHT, "Hi", IMAGE, CALL),
        ),
        (AssistantMessage([CALL, "Hi", THOUGHT]), (CALL, "Hi", THOUGHT)),
    ],
)
def test_content_forms(message: UserMessage | AssistantMessage, parts: tuple[Any, ...]) -> None:
    """Content is a string, a part, parts or empty, plus keyword arguments."""
    assert message.parts == parts


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (SystemMessage("Be brief."), "Be brief."),
        (UserMessage(), ""),
        (UserMessage("Hi"), "Hi"),
        (UserMessage(["a", IMAGE, "b"]), "ab"),
        (UserMessage(IMAGE), ""),
        (AssistantMessage(["a", CITED, "b"]), "aquotedb"),
        (AssistantMessage("Hi", [CALL], reasoning=[THOUGHT]), "Hi"),
        (AssistantMessage([THOUGHT]), ""),
        (ToolResponseMessage([ToolResponse("1", "weather", "rain")]), ""),
    ],
)
def test_text(message: Message, text: str) -> None:
    """The text joins text and citations, without reasoning and tool results."""
    assert message.text == text


@pytest.mark.feature("message-thoughts-message-metadata", "lc4j-aimessage-text-thinking-tool")
def test_parts_by_type() -> None:
    """Calls, media and reasoning are returned in order."""
    other = replace(CALL, id="2")
    message = AssistantMessage([CALL, "Hi", THOUGHT, IMAGE, other])

    assert message.tool_calls == (CALL, other)
    assert message.reasoning == (THOUGHT,)
    assert message.media == (IMAGE,)
    assert UserMessage(["a", IMAGE]).media == (IMAGE,)


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([], ("new",)),
        (["old"], ("new",)),
        ([IMAGE, "old", "older"], (IMAGE, "new")),
        ([THOUGHT, "old", CALL], (THOUGHT, "new", CALL)),
        ([CITED, IMAGE, "old"], ("new", IMAGE)),
        ([SILENT, "old"], (SILENT, "new")),
        ([THOUGHT, CALL], (THOUGHT, "new", CALL)),
        ([CALL], ("new", CALL)),
    ],
)
def test_mutate_text(parts: list[Any], expected: tuple[Any, ...]) -> None:
    """New text replaces all text at its first position; reasoning stays first."""
    assert AssistantMessage(parts).mutate(text="new").parts == expected


def test_mutate_empty_text() -> None:
    """Empty text removes all text parts."""
    assert AssistantMessage("old", [CALL]).mutate(text="").parts == (CALL,)
    assert UserMessage("old", [IMAGE]).mutate(text="").parts == (IMAGE,)


@pytest.mark.feature("message-mutate-copy")
def test_mutate_replaces_text_media_and_calls() -> None:
    """Text, media and calls are replaced separately or together."""
    other = replace(IMAGE, name="dog.png")
    call = replace(CALL, id="2")

    assert SystemMessage("old").mutate(text="new") == SystemMessage("new")
    assert SystemMessage("old").mutate(text="") == SystemMessage("")
    assert UserMessage("a", [IMAGE]).mutate(media=[other]) == UserMessage("a", [other])
    assert UserMessage("a", [IMAGE]).mutate(text="b", media=[]) == UserMessage("b")
    assert AssistantMessage("a", [CALL]).mutate(tool_calls=[call]) == AssistantMessage("a", [call])
    assert AssistantMessage("a", [CALL]).mutate(tool_calls=[]) == AssistantMessage("a")


@pytest.mark.feature("message-tool-response")
def test_mutate_replaces_responses() -> None:
    """Tool responses can be replaced."""
    short = ToolResponse("1", "weather", "…")
    message = ToolResponseMessage([ToolResponse("1", "weather", "rain " * 9)], {"a": 1})

    assert message.mutate(responses=[short]) == ToolResponseMessage([short], {"a": 1})


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        (UserMessage("Hi"), "UserMessage('Hi')"),
        (UserMessage(), "UserMessage([])"),
        (AssistantMessage("Hi", metadata={"a": 1}), "AssistantMessage('Hi', metadata={'a': 1})"),
        (AssistantMessage(["a", THOUGHT]), f"AssistantMessage(['a', {THOUGHT!r}])"),
    ],
)
def test_repr(message: Message, shown: str) -> None:
    """The repr is the code that makes the message."""
    assert repr(message) == shown


# --- wire forms -----------------------------------------------------------------------------


def test_cached_wire_form() -> None:
    """A message caches the JSON of one provider."""
    message, mine, other = UserMessage("Hi"), object(), object()

    assert message.wire(mine) is None
    assert message.cache_wire(mine, b"{}") == b"{}"
    assert message.wire(mine) == b"{}"
    assert message.wire(other) is None


def test_wire_form_is_not_part_of_the_value() -> None:
    """Cached JSON is not compared, copied or pickled."""
    message, dialect = UserMessage("Hi"), "dialect"
    message.cache_wire(dialect, b"{}")

    assert message == UserMessage("Hi")
    assert hash(message) == hash(UserMessage("Hi"))
    for again in (copy.copy(message), pickle.loads(pickle.dumps(message)), message.mutate()):
        assert again.wire(dialect) is None


# --- media ----------------------------------------------------------------------------------


@pytest.mark.feature("request-media-mime-type-resource", "message-media")
@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("cat.png", None, "image/png"),
        ("cat.webp", None, "image/webp"),
        ("cat.png", "image/x-cat", "image/x-cat"),
        ("cat", "image/png", "image/png"),
    ],
)
def test_media_from_file(tmp_path: Path, name: str, given: str | None, expected: str) -> None:
    """The type is derived from the name unless given; the name is kept."""
    path = tmp_path / name
    path.write_bytes(b"meow")

    assert Media.from_file(path, given) == Media(expected, b"meow", name=name)
    assert Media.from_file(str(path), given).data == b"meow"


@pytest.mark.feature("refused-media-without-type")
def test_file_of_unknown_type(tmp_path: Path) -> None:
    """The error names the argument for the type."""
    with pytest.raises(UsageError, match=r"type of 'cat'; pass mime_type="):
        Media.from_file(tmp_path / "cat")


@pytest.mark.feature("refused-unreadable-resource")
def test_missing_file(tmp_path: Path) -> None:
    """A missing file raises the usual OSError."""
    with pytest.raises(FileNotFoundError):
        Media.from_file(tmp_path / "cat.png")


@pytest.mark.feature("message-get-data-byte-array")
def test_media_bytes() -> None:
    """Bytes have a base64 form and a data URL."""
    media = Media("image/png", b"\xff\x00")

    assert not media.is_url
    assert media.base64() == "/wA="
    assert media.url() == "data:image/png;base64,/wA="


@pytest.mark.feature("request-media", "message-media", "message-get-data-byte-array")
def test_media_url() -> None:
    """Media with a URL have no bytes and are not downloaded."""
    media = Media("image/png", "https://example.org/cat.png")

    assert media.is_url
    assert media.url() == "https://example.org/cat.png"
    with pytest.raises(UsageError, match=r"needs the bytes of 'https://example\.org/cat\.png'"):
        media.base64()


@pytest.mark.parametrize("data", [b"secret", "https://example.org/?token=secret"])
def test_media_repr_has_no_content(data: bytes | str) -> None:
    """The repr contains neither content nor URL."""
    shown = repr(AssistantMessage([Media("image/png", data, name="cat.png")]))

    assert "secret" not in shown
    assert "cat.png" in shown


# --- as_messages ----------------------------------------------------------------------------


def test_as_messages() -> None:
    """Any iterable becomes a tuple, and a tuple is not copied."""
    message = UserMessage("Hi")
    given = (message,)

    assert as_messages(given) is given
    assert as_messages(iter([message])) == given


@pytest.mark.parametrize("messages", [["Hi"], ("Hi",), [UserMessage("Hi"), None]])
def test_as_messages_rejects_strings(messages: Any) -> None:
    """A string among messages raises with a hint."""
    with pytest.raises(TypeError, match=r"wrap text in UserMessage"):
        as_messages(messages)


@pytest.mark.parametrize("part", [3, None, {"type": "text"}, UserMessage("x")])
def test_assistant_parts_are_checked(part: Any) -> None:
    """An invalid part raises when the message is made."""
    with pytest.raises(TypeError, match="is not a part of a message"):
        AssistantMessage(["a", part])
    with pytest.raises(TypeError, match="is not a part of a message"):
        AssistantMessage("a", [part])


@pytest.mark.feature("refused-name-file-where-url")
@pytest.mark.parametrize(
    "data", ["cat.png", "./cat", "/tmp/cat", "C:\\cat.png", "a cat", "iVBORw0KGgo=", "a" * 81]
)
def test_invalid_media_string(data: str) -> None:
    """A file name or base64 text raises with a fix."""
    with pytest.raises(UsageError, match=r"is not a URL; use Media\.from_file\(path\)"):
        Media("image/png", data)


@pytest.mark.parametrize("data", [Path("cat.png"), None, 3])
def test_invalid_media_content(data: Any) -> None:
    """Bytes-like objects are converted; other types raise."""
    with pytest.raises(TypeError, match=r"media must be bytes or a URL, .* use Media\.from_file"):
        Media("image/png", data)
    held: Any = bytearray(b"x")
    assert {Media("image/png", held)} == {Media("image/png", b"x")}


@pytest.mark.parametrize(
    "data",
    [
        *("https://example.com/cat.png", "gs://bucket/cat.png", "data:image/png;base64,iVBO="),
        *("files/abc-123", "file-abc_1", ""),
    ],
)
def test_media_url_forms(data: str) -> None:
    """URLs and provider file names are accepted; with an id, any value."""
    assert Media("image/png", data).data == data
    assert Media("image/png", "cat.png", id="file-1").id == "file-1"


def test_single_items_instead_of_lists() -> None:
    """A single item is accepted instead of a list."""
    image = Media("image/png", b"x")
    call, answer = ToolCall("1", "f", "{}"), ToolResponse("1", "f", "x")
    hi = UserMessage("hi", image)

    assert hi == UserMessage(["hi", image]) == UserMessage("hi", [image])
    assert AssistantMessage("ok", call, media=image).parts == ("ok", image, call)
    assert ToolResponseMessage(answer) == ToolResponseMessage([answer])
    assert Prompt("x").append([hi], hi).messages[1:] == (hi, hi)
    assert Prompt("x").with_messages(hi) == Prompt(hi)


def test_continued_answer_metadata() -> None:
    """Metadata of both halves is merged, the second wins."""
    first = AssistantMessage("one ", metadata={"id": "1", "region": "eu"})
    rest = AssistantMessage("two", metadata={"id": "2"})

    [joined] = append_messages((first,), (rest,))
    assert joined.text == "one two"
    assert joined.metadata == {"id": "2", "region": "eu"}
