"""The key of a tool call, which identifies it within a process."""

import copy
import json
import pickle
from dataclasses import asdict, replace

from pydantic import TypeAdapter

from chatclient.chat.messages import AssistantMessage, ToolCall
from chatclient.chat.parts import call_key, with_new_key
from chatclient.chat.serialization import message_to_dict


def call() -> ToolCall:
    return ToolCall("1", "weather", '{"city": "Ulm"}')


def test_equal_calls_have_different_keys() -> None:
    """Comparison, hash and repr ignore the key."""
    one, other = call(), call()

    assert call_key(one) is call_key(one)
    assert call_key(one) is not call_key(other)
    assert (one, hash(one), repr(one)) == (other, hash(other), repr(other))


def test_changed_copy_keeps_the_key() -> None:
    """A changed copy is the same call."""
    original = call()
    changed = replace(original, id="2", arguments="{}")

    assert call_key(changed) is call_key(original)
    assert call_key(replace(changed, name="wind")) is call_key(original)


def test_new_key() -> None:
    """A call with a new key is equal but a different call."""
    original = call()
    renewed = with_new_key(original)

    assert renewed == original
    assert call_key(renewed) is not call_key(original)


def test_key_is_not_serialised() -> None:
    """Neither this library nor pickle serialises the key."""
    made = call()
    call_key(made)
    fields = {"id", "name", "arguments", "metadata"}

    assert set(asdict(made)) == fields
    assert set(json.loads(TypeAdapter(ToolCall).dump_json(made))) == fields
    assert "key" not in json.dumps(message_to_dict(AssistantMessage(tool_calls=[made])))


def test_other_copies_have_new_keys() -> None:
    """Unpickled and deep copied calls have new keys."""
    made = call()
    copies = [pickle.loads(pickle.dumps(made)), copy.deepcopy(made)]

    assert copies == [made, made]
    assert len({call_key(each) for each in (made, *copies)}) == 3
