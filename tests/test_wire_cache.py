"""What was sent last, and what of it the next request need not encode."""

import pytest

from chatclient import AssistantMessage, Message, SystemMessage, UserMessage
from chatclient.providers.wire_cache import WireCache

SYSTEM = SystemMessage("s")
FIRST, SECOND = UserMessage("1"), UserMessage("2")
SAID = AssistantMessage("a")
FORM, OTHER_FORM = object(), object()


class Encoder:
    """Encodes messages, and notes which; a system message has no element."""

    def __init__(self) -> None:
        self.encoded: list[Message] = []

    def __call__(self, message: Message, form: object) -> bytes:
        self.encoded.append(message)
        return b"" if message is SYSTEM else message.text.encode() + b"!" * (form is OTHER_FORM)


@pytest.mark.parametrize(
    ("messages", "wire", "new"),
    [
        ((SYSTEM, FIRST, SAID), b"1,a", []),
        ((SYSTEM, FIRST, SAID, SECOND), b"1,a,2", [SECOND]),
        ((SYSTEM, FIRST), b"1", []),
        ((SYSTEM, FIRST, SECOND), b"1,2", [SECOND]),
        ((SYSTEM, SECOND), b"2", [SECOND]),
        ((SYSTEM,), b"", []),
        ((FIRST, SAID), b"1,a", [FIRST, SAID]),
        ((), b"", []),
    ],
    ids=str,
)
def test_only_what_is_new_is_encoded(
    messages: tuple[Message, ...], wire: bytes, new: list[Message]
) -> None:
    """Whatever both conversations begin with is taken from the one before."""
    cache, encoder = WireCache(), Encoder()
    assert cache.joined((SYSTEM, FIRST, SAID), FORM, encoder) == b"1,a"
    encoder.encoded.clear()

    assert cache.joined(messages, FORM, encoder) == wire
    assert encoder.encoded == new
    assert cache.joined((*messages, SAID), FORM, encoder) == b",".join([wire, b"a"]).strip(b",")


def test_equal_messages_are_the_same_when_they_are_all_there_is() -> None:
    """A conversation that a memory has loaded anew is known by its content."""
    cache, encoder = WireCache(), Encoder()
    cache.joined((UserMessage("1"), AssistantMessage("a")), FORM, encoder)
    encoder.encoded.clear()

    assert cache.joined((FIRST, SAID, SECOND), FORM, encoder) == b"1,a,2"
    assert encoder.encoded == [SECOND]


def test_another_form_begins_anew() -> None:
    """What was encoded for one dialect is no use in another."""
    cache, encoder = WireCache(), Encoder()
    cache.joined((FIRST, SAID), FORM, encoder)

    assert cache.joined((FIRST, SAID), OTHER_FORM, encoder) == b"1!,a!"
    assert len(encoder.encoded) == 4
