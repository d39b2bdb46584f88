"""Reuse of encoded messages and options in later requests."""

import gc
import json
import weakref
from typing import Any

import pytest

from chatclient import AssistantMessage, ChatOptions, Message, SystemMessage, UserMessage
from chatclient.providers.wire.request_body import EncodedOptions, WireCache, cached_json

SYSTEM = SystemMessage("s")
FIRST, SECOND = UserMessage("1"), UserMessage("2")
SAID = AssistantMessage("a")
FORM, OTHER_FORM = object(), object()


class Encoder:
    """Encodes messages and records which; a system message has no element."""

    def __init__(self) -> None:
        self.encoded: list[Message] = []

    def __call__(self, message: Message, form: object) -> list[dict[str, Any]]:
        self.encoded.append(message)
        return [] if message is SYSTEM else [{"said": message.text + "!" * (form is OTHER_FORM)}]


def message_texts(wire: bytes) -> str:
    return "".join(element["said"] for element in json.loads(b"[%b]" % wire))


@pytest.fixture(autouse=True)
def _sent_with_another_model() -> None:
    """Give each test messages without cached JSON."""
    send_with_another_model()


def send_with_another_model() -> None:
    """Send all messages with another model, whose JSON they then cache."""
    for message in (SYSTEM, FIRST, SECOND, SAID):
        cached_json(message, object(), lambda *_: ())


@pytest.mark.parametrize("form", [FORM, OTHER_FORM])
def test_message_caches_its_last_form(form: object) -> None:
    """A message is encoded once, and again for another dialect."""
    encoder = Encoder()
    wire = cached_json(FIRST, form, encoder)

    assert cached_json(FIRST, form, encoder) is wire
    assert encoder.encoded == [FIRST]
    assert cached_json(FIRST, object(), lambda *_: [{"a": 1}, {"b": 2}]) == b'{"a":1},{"b":2}'
    assert cached_json(FIRST, form, encoder) == wire


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
def test_common_prefix_is_not_encoded_again(
    messages: tuple[Message, ...], text: str, new: list[Message]
) -> None:
    """The common prefix of two conversations is reused."""
    cache, encoder = WireCache(), Encoder()
    assert message_texts(cache.join((SYSTEM, FIRST, SAID), FORM, encoder)) == "1a"
    encoder.encoded.clear()
    send_with_another_model()

    assert message_texts(cache.join(messages, FORM, encoder)) == text
    assert encoder.encoded == new
    assert message_texts(cache.join((*messages, SAID), FORM, encoder)) == f"{text}a"


def test_reloaded_conversation_is_recognised() -> None:
    """A conversation reloaded from memory is recognised by equality."""
    cache, encoder = WireCache(), Encoder()
    cache.join((UserMessage("1"), AssistantMessage("a")), FORM, encoder)
    encoder.encoded.clear()

    assert message_texts(cache.join((FIRST, SAID, SECOND), FORM, encoder)) == "1a2"
    assert encoder.encoded == [SECOND]


def test_other_dialect_is_encoded_again() -> None:
    """JSON of one dialect is not reused for another."""
    cache, encoder = WireCache(), Encoder()
    cache.join((FIRST, SAID), FORM, encoder)

    assert message_texts(cache.join((FIRST, SAID), OTHER_FORM, encoder)) == "1!a!"
    assert len(encoder.encoded) == 4


def test_identical_options_are_encoded_once() -> None:
    """Options are compared by identity, since equal ones may differ, as 1 and True do."""
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


def test_options_are_not_retained() -> None:
    """The cache does not keep options and their tools alive after a request."""
    heads: EncodedOptions[str] = EncodedOptions()
    options = ChatOptions(tool_context={"session": object()})
    here = weakref.ref(options)
    heads.get(options, lambda options, streaming: f"{options.model} {streaming}")
    del options
    gc.collect()

    assert here() is None
