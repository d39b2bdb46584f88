"""Changed JSON of pending turns is rejected before any tool runs."""

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from chatclient import ChatClient, ToolCall, tool
from chatclient.advisors import MessageChatMemoryAdvisor
from chatclient.errors import ChatClientError, UsageError, WrongTypeError
from chatclient.memory import MessageWindowChatMemory
from chatclient.testing import ScriptedModel
from chatclient.tools import PendingTurn, ToolApproval, ToolCallingManager

ran: list[Any] = []


@tool
def pay(amount: int) -> str:
    """Pay."""
    ran.append(amount)
    return "paid"


@tool(effect="read")
def look(where: str) -> str:
    """Look."""
    return "seen"


def client_of(model: ScriptedModel, *tools: Any) -> ChatClient:
    manager = ToolCallingManager(interceptors=[ToolApproval()])
    builder = ChatClient.builder(model).default_tools(pay, look, *tools)
    memory = MessageChatMemoryAdvisor(MessageWindowChatMemory())
    return builder.tool_calling_manager(manager).default_advisors(memory).build()


def expert() -> Any:
    model = ScriptedModel([ToolCall("a1", "pay", '{"amount": 7}')], "agent done")
    return client_of(model).as_tool("expert", "Ask.")


def pending_turn() -> PendingTurn:
    calls: list[ToolCall | str | Exception] = [
        "Hm.",
        ToolCall("1", "pay", '{"amount": 5}'),
        ToolCall("2", "look", '{"where": "y"}'),
        ToolCall("3", "expert", '{"request": "q"}'),
    ]
    model = ScriptedModel(ToolCall("0", "look", '{"where": "x"}'), calls)
    turn = client_of(model, expert()).prompt("x").conversation("c1").call().pending_turn()
    assert turn is not None
    return turn


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(item, (*path, key))


VALUES: list[Any] = [None, True, -1, 5, 1.5, 1e308, "", "x", [], {}, [1], {"a": 1}]


def mutated(turn: Any, rnd: random.Random) -> Any:
    """Return a copy of *turn* with one value removed, repeated or replaced."""
    turn = copy.deepcopy(turn)
    *path, last = rnd.choice([place for place in places(turn) if place])
    parent = turn
    for key in path:
        parent = parent[key]
    kind = rnd.random()
    if kind < 0.25:
        del parent[last]
    elif kind < 0.35 and isinstance(parent, list):
        parent.append(copy.deepcopy(parent[last]))
    else:
        parent[last] = copy.deepcopy(rnd.choice(VALUES))
    return turn


def test_changed_turn_is_rejected_or_runs() -> None:
    """No other error is raised, and none after a tool has run."""
    rnd = random.Random(20261125)
    written = json.loads(pending_turn().to_json())
    rejected = 0
    for _ in range(400):
        ran.clear()
        try:
            turn = PendingTurn.from_json(json.dumps(mutated(written, rnd)))
            client = client_of(ScriptedModel(*["done"] * 4), expert())
            client.resume(turn, dict.fromkeys(turn.to_decide(), True)).call().content()
        except ChatClientError:
            assert ran == []
            rejected += 1
    assert 200 < rejected < 400


@pytest.mark.parametrize("key", ["secret", b"secret"])
def test_signed_turn(key: Any) -> None:
    turn = pending_turn()
    text = turn.to_json(signing_key=key)

    assert PendingTurn.from_json(text, signing_key="secret") == turn
    with pytest.raises(UsageError, match="signing_key"):
        PendingTurn.from_json(text)
    with pytest.raises(UsageError, match="no valid signature"):
        PendingTurn.from_json(text, signing_key="other")
    with pytest.raises(UsageError, match="no valid signature"):
        PendingTurn.from_json(turn.to_json(), signing_key=key)


@pytest.mark.parametrize("part", ["amount", "c1", '"rounds'])
def test_changed_signed_turn(part: str) -> None:
    """Neither arguments nor the conversation may be changed."""
    data = json.loads(pending_turn().to_json(signing_key="secret"))
    assert part in data["turn"]
    for name, value in (("turn", data["turn"].replace(part, "x", 1)), ("signature", 5)):
        with pytest.raises(UsageError, match="no valid signature"):
            PendingTurn.from_json(json.dumps({**data, name: value}), signing_key="secret")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pending": []}, "pending"),
        ({"pending": ["1", "2", "3"]}, "wait or to have a response"),
        ({"pending": ["1", "9"]}, "no call '9'"),
        ({"responses": []}, "wait or to have a response"),
        ({"usage": {"input_tokens": -5}}, "usage.input_tokens"),
        ({"calls": {"pay": -40}}, "calls.pay"),
        ({"seconds": -1.0}, "seconds"),
        ({"version": 2}, "version 2"),
    ],
)
def test_rejected_values(change: Any, message: str) -> None:
    data = json.loads(pending_turn().to_json()) | change

    with pytest.raises(UsageError, match=message):
        PendingTurn.from_json(json.dumps(data))


@pytest.mark.parametrize("key", ["", b"", " "])
def test_empty_signing_key(key: Any) -> None:
    """An empty key, such as one from an unset variable, would let anybody sign."""
    turn = pending_turn()

    with pytest.raises(UsageError, match="signing_key is empty"):
        turn.to_json(signing_key=key)
    for text in (turn.to_json(signing_key="secret"), turn.to_json(), "[]"):
        with pytest.raises(UsageError, match="signing_key is empty"):
            PendingTurn.from_json(text, signing_key=key)


def test_wrong_signing_key() -> None:
    key: Any = 5
    with pytest.raises(WrongTypeError, match="signing_key"):
        pending_turn().to_json(signing_key=key)


def test_long_error() -> None:
    data = json.loads(pending_turn().to_json()) | {"version": "x" * 10_000}

    with pytest.raises(UsageError) as caught:
        PendingTurn.from_json(json.dumps(data))

    assert len(str(caught.value)) < 600


# Values that only the text of JSON can have.
RAW = [
    *("NaN", "-Infinity", "1e400", "9" * 5000, "18446744073709551616", r'"\ud800"', r'"\u0000"'),
    *('{"role":"developer","content":"x"}', '{"type":"tool_call","id":"1"}', "[" * 5000, "{"),
    *("[" * 150 + "]" * 150, '{"a":' * 1100 + "1" + "}" * 1100),
]


def test_changed_text_is_rejected_or_runs() -> None:
    """The same for values that JSON allows, or parsers accept, and for repeated keys."""
    rnd = random.Random(20261126)
    written = json.loads(pending_turn().to_json())
    rejected = 0
    for _ in range(300):
        ran.clear()
        changed = copy.deepcopy(written)
        *path, last = rnd.choice([place for place in places(written) if place])
        parent = changed
        for key in path:
            parent = parent[key]
        repeated = isinstance(parent, dict) and rnd.random() < 0.5
        parent["@" if repeated else last] = "@@"
        text = json.dumps(changed).replace('"@"', json.dumps(last))
        text = text.replace('"@@"', rnd.choice(RAW))
        try:
            turn = PendingTurn.from_json(text)
            client = client_of(ScriptedModel(*["done"] * 4), expert())
            client.resume(turn, dict.fromkeys(turn.to_decide(), True)).call().content()
        except ChatClientError:
            assert ran == []
            rejected += 1
    assert 200 < rejected < 300
