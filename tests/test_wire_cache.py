"""What was sent before, and what of it the next request need not encode."""

import gc
import json
import weakref
from typing import Any

import pytest

from chatclient import AssistantMessage, ChatOptions, Message, SystemMessage, UserMessage
from chatclient.providers.wire_cache import EncodedOptions, WireCache, kept_wire

SYSTEM = SystemMessage("s")
FIRST, SECOND = UserMessage("1"), UserMessage("2")
SAID = AssistantMessage("a")
FORM, OTHER_FORM = object(), object()


class Encoder:
    """Encodes messages, and notes which; a system message has no element."""

    def __init__(self) -> None:
        self.encoded: list[Message] = []

    def __call__(self, message: Message, form: object) -> list[dict[str, Any]]:
        self.encoded.append(message)
        return [] if message is SYSTEM else [{"said": message.text + "!" * (form is OTHER_FORM)}]


def said(wire: bytes) -> str:
    return "".join(element["said"] for element in json.loads(b"[%b]" % wire))


@pytest.fixture(autouse=True)
def _sent_elsewhere() -> None:
    """Let each test meet messages that keep no form of its own."""
    send_elsewhere()


def send_elsewhere() -> None:
    """Send all messages with another model, whose form they now keep."""
    for message in (SYSTEM, FIRST, SECOND, SAID):
        kept_wire(message, object(), lambda *_: ())


@pytest.mark.parametrize("form", [FORM, OTHER_FORM])
def test_a_message_keeps_the_form_in_which_it_was_sent_last(form: object) -> None:
    """It is encoded once, and anew when it is sent in another form."""
    encoder = Encoder()
    wire = kept_wire(FIRST, form, encoder)

    assert kept_wire(FIRST, form, encoder) is wire
    assert encoder.encoded == [FIRST]
    assert kept_wire(FIRST, object(), lambda *_: [{"a": 1}, {"b": 2}]) == b'{"a":1},{"b":2}'
    assert kept_wire(FIRST, form, encoder) == wire


@pytest.mark.parametrize(
    ("messages", "text", "new"),
    [
        ((SYSTEM, FIRST, SAID), "1a", []),
        ((SYSTEM, FIRST, SAID, SECOND), "1a2", [SECOND]),
        ((SYSTEM, FIRST), "1", []),
        ((SYSTEM, FIRST, SECOND), "12", [SECOND]),
        ((SYSTEM, SECOND), "2", [SECOND]),
        ((SYSTEM,), "", []),
        ((FIRST, SAID), "1a", [FIRST, SAID]),
        ((), "", []),
    ],
    ids=str,
)
def test_only_what_is_new_is_encoded(
    messages: tuple[Message, ...], text: str, new: list[Message]
) -> None:
    """Whatever both conversations begin with is taken from the one before."""
    cache, encoder = WireCache(), Encoder()
    assert said(cache.join((SYSTEM, FIRST, SAID), FORM, encoder)) == "1a"
    encoder.encoded.clear()
    send_elsewhere()

    assert said(cache.join(messages, FORM, encoder)) == text
    assert encoder.encoded == new
    assert said(cache.join((*messages, SAID), FORM, encoder)) == f"{text}a"


def test_equal_messages_are_the_same_when_they_are_all_there_is() -> None:
    """A conversation that a memory has loaded anew is known by its content."""
    cache, encoder = WireCache(), Encoder()
    cache.join((UserMessage("1"), AssistantMessage("a")), FORM, encoder)
    encoder.encoded.clear()

    assert said(cache.join((FIRST, SAID, SECOND), FORM, encoder)) == "1a2"
    assert encoder.encoded == [SECOND]


def test_another_form_begins_anew() -> None:
    """What was encoded for one dialect is no use in another."""
    cache, encoder = WireCache(), Encoder()
    cache.join((FIRST, SAID), FORM, encoder)

    assert said(cache.join((FIRST, SAID), OTHER_FORM, encoder)) == "1!a!"
    assert len(encoder.encoded) == 4


def test_the_same_options_are_encoded_once() -> None:
    """Equal ones are not the same: what is in them may differ all the same, such as 1 and True."""
    heads: EncodedOptions[str] = EncodedOptions()
    encoded: list[str] = []

    def encode(options: ChatOptions, *, streaming: bool) -> str:
        encoded.append(f"{options.model} {streaming}")
        return encoded[-1]

    some, others = ChatOptions(model="a"), ChatOptions(model="a")
    for options, streaming in ((some, False), (some, False), (some, True), (others, True)):
        assert heads.get(options, encode, streaming=streaming) == f"a {streaming}"
    assert encoded == ["a False", "a True", "a True"]
    assert heads.get(others, encode) == "a False"


def test_the_options_are_not_held_on_to() -> None:
    """What a request tells its tools goes with it, and does not wait for the next one."""
    heads: EncodedOptions[str] = EncodedOptions()
    options = ChatOptions(tool_context={"session": object()})
    here = weakref.ref(options)
    heads.get(options, lambda options, streaming: f"{options.model} {streaming}")
    del options
    gc.collect()

    assert here() is None
