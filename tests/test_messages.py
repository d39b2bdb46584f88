"""Messages and their parts: values that read well and never change."""

import copy
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatclient.errors import UsageError
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
    as_messages,
)
from chatclient.prompt import Prompt
from chatclient.turn_taking import continued
from chatclient.values import FrozenDict

CALL = ToolCall("1", "weather", '{"city": "Ulm"}')
IMAGE = Media("image/png", b"\x89PNG", name="cat.png")
THOUGHT = Reasoning("hm", "proof", "anthropic")
CITED = ProviderPart("anthropic", {"type": "citation"}, "quoted")
SILENT = ProviderPart("openai", {"type": "input_file"})

# --- every message there can be -------------------------------------------------------------

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
    """A message that went to another process is the same message."""
    again = pickle.loads(pickle.dumps(message))

    assert again == message
    assert type(again) is type(message)
    assert hash(again) == hash(message)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
@given(message=MESSAGES)
def test_messages_copy(copied: Callable[[Any], Any], message: Message) -> None:
    """Every usual way to copy a value gives an equal one of the same kind."""
    again = copied(message)

    assert again == message
    assert type(again) is type(message)


# --- what all messages share ----------------------------------------------------------------

MAKERS: list[Callable[..., Message]] = [
    lambda metadata: SystemMessage("Be brief.", metadata),
    lambda metadata: UserMessage("Hi", metadata=metadata),
    lambda metadata: AssistantMessage("Hi", metadata=metadata),
    lambda metadata: ToolResponseMessage([ToolResponse("1", "weather", "rain")], metadata),
]
each_kind = pytest.mark.parametrize("make", MAKERS, ids=["system", "user", "assistant", "tool"])


@each_kind
def test_metadata_is_the_messages_own(make: Callable[..., Message]) -> None:
    """The dict that metadata came from may change afterwards; the message does not."""
    mine = {"source": "form"}
    message = make(mine)

    mine["source"] = "changed"

    assert message.metadata == {"source": "form"}
    assert hash(message) == hash(make({"source": "form"}))


@each_kind
def test_messages_cannot_be_changed(make: Callable[..., Message]) -> None:
    """Nothing about a message can be assigned."""
    message: Any = make({})

    with pytest.raises(FrozenInstanceError):
        message.metadata = {"a": 1}


@each_kind
def test_messages_differ_by_metadata(make: Callable[..., Message]) -> None:
    """Two messages are equal when everything about them is."""
    assert make({"a": 1}) == make({"a": 1})
    assert make({"a": 1}) != make({"a": 2})


@each_kind
def test_mutate_changes_metadata_and_nothing_else(make: Callable[..., Any]) -> None:
    """A changed copy is a new message; the old one stays as it was."""
    message = make({"a": 1})

    changed = message.mutate(metadata={"b": 2})

    assert changed == make({"b": 2})
    assert message == make({"a": 1})
    assert message.mutate() == message


@pytest.mark.parametrize(
    ("message", "role"),
    [
        (SystemMessage(""), "system"),
        (UserMessage(), "user"),
        (AssistantMessage(), "assistant"),
        (ToolResponseMessage([]), "tool"),
    ],
)
def test_every_kind_has_its_role(message: Message, role: str) -> None:
    """The role is the one providers and stores know."""
    assert message.role == role


def test_messages_of_different_kinds_differ() -> None:
    """The same words from the user and from the model are two things."""
    messages: list[Message] = [UserMessage("Hi"), AssistantMessage("Hi"), SystemMessage("Hi")]

    assert len(set(messages)) == 3


def test_a_subclass_survives_mutate() -> None:
    """An application's own kind of message stays that kind."""

    class Draft(AssistantMessage):
        __slots__ = ()

    assert type(Draft("a").mutate(text="b")) is Draft


# --- content --------------------------------------------------------------------------------


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
def test_content_comes_in_many_forms(
    message: UserMessage | AssistantMessage, parts: tuple[Any, ...]
) -> None:
    """A text, a part, any iterable of parts, or nothing; what goes beside has its place."""
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
def test_text_is_what_was_said(message: Message, text: str) -> None:
    """All text in order, cited passages among it; neither thoughts nor tool results."""
    assert message.text == text


def test_parts_can_be_had_by_kind() -> None:
    """Calls, media and reasoning are found wherever they stand, in order."""
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
def test_new_text_stands_where_the_old_began(parts: list[Any], expected: tuple[Any, ...]) -> None:
    """All text gives way to the new one, the rest keeps its order; thoughts stay in front."""
    assert AssistantMessage(parts).mutate(text="new").parts == expected


def test_empty_text_leaves_no_part() -> None:
    """Taking the text away leaves media and calls only."""
    assert AssistantMessage("old", [CALL]).mutate(text="").parts == (CALL,)
    assert UserMessage("old", [IMAGE]).mutate(text="").parts == (IMAGE,)


def test_mutate_replaces_text_media_and_calls() -> None:
    """Each can be exchanged by itself or together with others."""
    other = replace(IMAGE, name="dog.png")
    call = replace(CALL, id="2")

    assert SystemMessage("old").mutate(text="new") == SystemMessage("new")
    assert SystemMessage("old").mutate(text="") == SystemMessage("")
    assert UserMessage("a", [IMAGE]).mutate(media=[other]) == UserMessage("a", [other])
    assert UserMessage("a", [IMAGE]).mutate(text="b", media=[]) == UserMessage("b")
    assert AssistantMessage("a", [CALL]).mutate(tool_calls=[call]) == AssistantMessage("a", [call])
    assert AssistantMessage("a", [CALL]).mutate(tool_calls=[]) == AssistantMessage("a")


def test_mutate_replaces_responses() -> None:
    """A tool's answer can be exchanged, as for one that is too long."""
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
def test_messages_read_well(message: Message, shown: str) -> None:
    """What is printed is what one would write."""
    assert repr(message) == shown


# --- wire forms -----------------------------------------------------------------------------


def test_a_message_keeps_one_wire_form() -> None:
    """A provider finds its own form again, and never another provider's."""
    message, mine, other = UserMessage("Hi"), object(), object()

    assert message.wire(mine) is None
    assert message.keep_wire(mine, b"{}") == b"{}"
    assert message.wire(mine) == b"{}"
    assert message.wire(other) is None


def test_a_wire_form_is_no_part_of_the_message() -> None:
    """It is neither compared nor copied nor pickled: it is no more than a shortcut."""
    message, dialect = UserMessage("Hi"), "dialect"
    message.keep_wire(dialect, b"{}")

    assert message == UserMessage("Hi")
    assert hash(message) == hash(UserMessage("Hi"))
    for again in (copy.copy(message), pickle.loads(pickle.dumps(message)), message.mutate()):
        assert again.wire(dialect) is None


# --- media ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("cat.png", None, "image/png"),
        ("cat.webp", None, "image/webp"),
        ("cat.png", "image/x-cat", "image/x-cat"),
        ("cat", "image/png", "image/png"),
    ],
)
def test_media_are_read_from_files(
    tmp_path: Path, name: str, given: str | None, expected: str
) -> None:
    """The type comes from the name unless it is given; the name goes with the content."""
    path = tmp_path / name
    path.write_bytes(b"meow")

    assert Media.from_file(path, given) == Media(expected, b"meow", name=name)
    assert Media.from_file(str(path), given).data == b"meow"


def test_a_file_of_unknown_type_is_refused(tmp_path: Path) -> None:
    """Nobody guesses what a provider would make of it; the error says what to pass."""
    with pytest.raises(UsageError, match=r"type of 'cat'; pass mime_type="):
        Media.from_file(tmp_path / "cat")


def test_a_missing_file_is_an_os_error(tmp_path: Path) -> None:
    """Files fail as files do."""
    with pytest.raises(FileNotFoundError):
        Media.from_file(tmp_path / "cat.png")


def test_bytes_have_a_base_64_form_and_a_data_url() -> None:
    """Content that is here can be sent in either form."""
    media = Media("image/png", b"\xff\x00")

    assert not media.is_url
    assert media.base64() == "/wA="
    assert media.url() == "data:image/png;base64,/wA="


def test_a_url_is_sent_as_it_is_and_never_read() -> None:
    """What is elsewhere has an address and no bytes."""
    media = Media("image/png", "https://example.org/cat.png")

    assert media.is_url
    assert media.url() == "https://example.org/cat.png"
    with pytest.raises(UsageError, match=r"needs the bytes of 'https://example\.org/cat\.png'"):
        media.base64()


@pytest.mark.parametrize("data", [b"secret", "https://example.org/?token=secret"])
def test_media_do_not_print_their_content(data: bytes | str) -> None:
    """Megabytes and signed addresses stay out of logs."""
    shown = repr(AssistantMessage([Media("image/png", data, name="cat.png")]))

    assert "secret" not in shown
    assert "cat.png" in shown


# --- as_messages ----------------------------------------------------------------------------


def test_messages_become_a_tuple() -> None:
    """Any iterable of messages will do, and a tuple is not copied."""
    message = UserMessage("Hi")
    given = (message,)

    assert as_messages(given) is given
    assert as_messages(iter([message])) == given


@pytest.mark.parametrize("messages", [["Hi"], ("Hi",), [UserMessage("Hi"), None]])
def test_what_is_no_message_is_refused(messages: Any) -> None:
    """A text among messages gets a hint instead of a guess."""
    with pytest.raises(TypeError, match=r"wrap text in UserMessage"):
        as_messages(messages)


@pytest.mark.parametrize("part", [3, None, {"type": "text"}, UserMessage("x")])
def test_an_assistants_message_is_made_of_parts(part: Any) -> None:
    """What is none is refused where it is put in, not where a provider meets it."""
    with pytest.raises(TypeError, match="is not a part of a message"):
        AssistantMessage(["a", part])
    with pytest.raises(TypeError, match="is not a part of a message"):
        AssistantMessage("a", [part])


@pytest.mark.parametrize(
    "data", ["cat.png", "./cat", "/tmp/cat", "C:\\cat.png", "a cat", "iVBORw0KGgo=", "a" * 81]
)
def test_a_text_that_is_no_url_is_no_media(data: str) -> None:
    """A file's name, or content in base 64, is refused with the mend."""
    with pytest.raises(UsageError, match=r"is not a URL; use Media\.from_file\(path\)"):
        Media("image/png", data)


@pytest.mark.parametrize("data", [Path("cat.png"), None, 3])
def test_what_is_no_content_is_no_media(data: Any) -> None:
    """It is refused where it is put in; only what holds bytes will do as well, as bytes."""
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
def test_addresses_of_every_kind_are_media(data: str) -> None:
    """URLs, and the names that providers give to files; with an id, anything goes."""
    assert Media("image/png", data).data == data
    assert Media("image/png", "cat.png", id="file-1").id == "file-1"


def test_one_stands_for_several() -> None:
    """Media, calls, answers and messages need no list where there is one of them."""
    image = Media("image/png", b"x")
    asked, answer = ToolCall("1", "f", "{}"), ToolResponse("1", "f", "x")
    hi = UserMessage("hi", image)

    assert hi == UserMessage(["hi", image]) == UserMessage("hi", [image])
    assert AssistantMessage("ok", asked, media=image).parts == ("ok", image, asked)
    assert ToolResponseMessage(answer) == ToolResponseMessage([answer])
    assert Prompt("x").append([hi], hi).messages[1:] == (hi, hi)
    assert Prompt("x").with_messages(hi) == Prompt(hi)


def test_an_answer_that_goes_on_keeps_what_belongs_to_both_halves() -> None:
    """The metadata of the end counts where both have some."""
    begun = AssistantMessage("one ", metadata={"id": "1", "region": "eu"})
    rest = AssistantMessage("two", metadata={"id": "2"})

    [whole] = continued((begun,), (rest,))
    assert whole.text == "one two"
    assert whole.metadata == {"id": "2", "region": "eu"}
