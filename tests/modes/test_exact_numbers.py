"""Numbers keep the digits that a model wrote, from its JSON to a `Decimal` or an `int`."""

import asyncio
import json
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, Literal, Optional

import pytest
from pydantic import BaseModel, BeforeValidator, Field
from typing_extensions import TypedDict

from chatclient import ChatClient, tool
from chatclient._internal.json import ExactFloat, dumps_exact, loads_comparable, loads_exact
from chatclient.chat.messages import ToolCall
from chatclient.chat.tool import ToolContext, ToolDefinition, ToolMetadata
from chatclient.errors import EntityError, ToolArgumentError
from chatclient.providers.anthropic.decoding import decode_response as decode_anthropic
from chatclient.providers.gemini.decoding import StreamDecoder, decode_response as decode_gemini
from chatclient.providers.http.errors import parse_json
from chatclient.providers.ollama.model import decode_response as decode_ollama
from chatclient.structured.converters import converter_of
from chatclient.testing import Ask, ScriptedModel, call
from chatclient.tools import FunctionToolCallback, augment
from chatclient.tools.execution.approval import _same
from chatclient.tools.execution.compensation import _canonical_json
from chatclient.tools.function.data_tool import DataToolCallback
from chatclient.tools.function.schema import signature_of, signature_of_schema
from chatclient.tools.function.signature import read_arguments

LONG = "1234567890.123456789012"
WHOLE = "9007199254740993.0"
NOWHERE = ToolContext()


class Line(BaseModel):
    price: Decimal
    count: int = 1
    weight: float = 0.0
    extra: Any = None
    lines: list["Line"] = []


@dataclass
class Box:
    price: Decimal


class Row(TypedDict):
    price: Decimal


def bound(kind: Any, written: str) -> Any:
    """Return what a parameter of type *kind* gets."""

    def function(x: Any) -> None: ...

    function.__annotations__["x"] = kind
    return signature_of(function).bind(f'{{"x": {written}}}', NOWHERE)["x"]


def exactly(value: Any) -> tuple[type, str]:
    return type(value), repr(value)


CASES = [
    (Decimal, LONG, Decimal(LONG)),
    (Decimal, "12.30", Decimal("12.30")),
    (Decimal, '"12.30"', Decimal("12.30")),
    (Decimal, WHOLE, Decimal(WHOLE)),
    (Decimal, "1e400", Decimal("1e400")),
    (Decimal, "1e-400", Decimal("1e-400")),
    (Decimal, "-0.50", Decimal("-0.50")),
    (Decimal, "-0", Decimal(0)),
    (Decimal, "7" * 40, Decimal("7" * 40)),
    (Decimal | None, LONG, Decimal(LONG)),
    (Optional[Decimal], "null", None),  # noqa: UP045 - the older form
    (int | Decimal, LONG, Decimal(LONG)),
    (int | Decimal, "5", 5),
    (Decimal | str, LONG, Decimal(LONG)),
    (Literal["free"] | Decimal, LONG, Decimal(LONG)),
    (Annotated[Decimal, Field(ge=0, decimal_places=12)], LONG, Decimal(LONG)),
    (Annotated[Decimal, Field(max_digits=30)], LONG, Decimal(LONG)),
    (Annotated[Decimal, Field(decimal_places=2)], "12.300", Decimal("12.300")),
    (list[Decimal], f"[1.5, {LONG}]", [Decimal("1.5"), Decimal(LONG)]),
    (tuple[int, Decimal], f"[{WHOLE}, {LONG}]", (9007199254740993, Decimal(LONG))),
    (dict[str, Decimal], f'{{"a": {LONG}}}', {"a": Decimal(LONG)}),
    (Box, f'{{"price": {LONG}}}', Box(Decimal(LONG))),
    (Row, f'{{"price": {LONG}}}', {"price": Decimal(LONG)}),
    (int, WHOLE, 9007199254740993),
    (int, "2.0", 2),
    (int, "7" * 40, int("7" * 40)),
    (int, "7" * 40 + ".0", int("7" * 40)),
    (int, "1000000000000000000000.0e-2", 10**19),
    (int, "0.00000000000000000", 0),
    (int | str, WHOLE, 9007199254740993),
    (list[int], f"[{WHOLE}, 1]", [9007199254740993, 1]),
    (float, LONG, float(LONG)),
    (float | Decimal, LONG, float(LONG)),
    (Any, LONG, float(LONG)),
    (dict[str, Any], f'{{"a": {LONG}}}', {"a": float(LONG)}),
]


@pytest.mark.feature("lc4j-tool-big-numbers-exact")
@pytest.mark.parametrize(("kind", "written", "value"), CASES)
def test_arguments(kind: Any, written: str, value: Any) -> None:
    """Decimals and integers have all digits; floats and untyped values are plain floats."""
    assert exactly(bound(kind, written)) == exactly(value)


@pytest.mark.feature("lc4j-tool-big-numbers-exact")
@pytest.mark.parametrize(("kind", "written", "value"), CASES)
def test_entities(kind: Any, written: str, value: Any) -> None:
    """Typed answers have the same digits, bare or in the object that models are asked for."""
    converter: Any = converter_of(kind)

    assert exactly(converter.convert(written)) == exactly(value)
    assert exactly(converter.convert(f"Sure:\n```json\n{written}\n```")) == exactly(value)
    if not written.startswith("{"):
        assert exactly(converter.convert(f'{{"value": {written}}}')) == exactly(value)


@pytest.mark.parametrize(
    ("kind", "written"),
    [
        *((Decimal, each) for each in ("NaN", "Infinity", "-Infinity", "1e99999999999999999999")),
        *((int, each) for each in ("NaN", "1e400", "9007199254740993.5", "12.30", LONG)),
        (Annotated[Decimal, Field(decimal_places=2)], "12.305"),
        (Annotated[Decimal, Field(max_digits=15)], LONG),
    ],
)
def test_refused(kind: Any, written: str) -> None:
    """What is no finite number, has a fraction or breaks a constraint is refused."""
    with pytest.raises(ToolArgumentError):
        bound(kind, written)
    with pytest.raises(EntityError):
        converter_of(kind).convert(written)


def test_nested_models_and_repaired_arguments() -> None:
    """Nested values keep their digits, also in JSON that was repaired."""
    inner = f'{{"price": {LONG}, "count": {WHOLE}, "weight": {LONG}, "extra": [{LONG}]}}'
    line = bound(Line, f'{{"price": 1.10, "lines": [{inner}]}}')
    repaired = bound(Line, f'{{"price": 1.10, "lines": [{inner},],}}')
    as_text = bound(Line, json.dumps(f'{{"price": 1.10, "lines": [{inner}]}}'))

    [child] = line.lines
    assert repr(line.price) == "Decimal('1.10')"
    assert (child.price, child.count) == (Decimal(LONG), 9007199254740993)
    assert exactly([child.weight, child.extra]) == exactly([float(LONG), [float(LONG)]])
    assert repr(repaired) == repr(as_text) == repr(line)


def test_only_numbers_are_rewritten() -> None:
    """Strings and field sets of arguments with a long number are those of other arguments."""
    line = bound(Line, f'{{"price": {LONG}, "extra": {{"a": null, "b": "1.50", "c": "é\\n"}}}}')

    assert line.extra == {"a": None, "b": "1.50", "c": "é\n"}
    assert line.model_fields_set == {"price", "extra"}


def test_a_string_stays_one_where_it_is_admitted_first() -> None:
    """`str | Decimal` takes strings as they are, so a number goes through a float there."""
    kind = str | Decimal

    assert exactly(bound(kind, "1.5")) == exactly(Decimal("1.5"))
    assert exactly(bound(kind, LONG)) == exactly(Decimal(str(float(LONG))))
    assert bound(int | str, "9007199254740993.5") == 9007199254740994


def test_validators_of_the_application_get_numbers() -> None:
    """A validator that runs before pydantic's gets a float, as without this library."""
    doubled = Annotated[Decimal, BeforeValidator(lambda value: value * 2)]

    assert bound(doubled, "1.50") == Decimal(3)


def test_numbers_that_no_interpreter_reads() -> None:
    """An integer of more digits than Python reads fails as it would on its own."""
    with pytest.raises(ToolArgumentError):
        bound(list[Decimal], f"[{'1' * 5000}, 1.10]")


def test_reading() -> None:
    """Only numbers that are not written as Python writes the float are exact floats."""
    kinds = [type(each) for each in loads_exact("[1.10, 1, 1.5, 1e5]")]

    assert kinds == [ExactFloat, int, float, ExactFloat]
    assert dumps_exact(loads_exact(b'["\xed\xa0\xbd", 1.50]')) == '["\\ud83d",1.50]'


@pytest.mark.parametrize("cut", [1, 5, 1000])
def test_partial_values(cut: int) -> None:
    """Streamed values have their digits as soon as a number is complete."""
    extra = f'{{"a": [{LONG}, "x\\"1.50"]}}'
    text = f'{{"price": {LONG}, "count": {WHOLE}, "extra": {extra}, "lines": []}}'
    converter: Any = converter_of(Line)
    values = [converter.partial(text[:end]) for end in range(0, len(text) + cut, cut)]
    last = values[-1]

    assert {getattr(each, "price", None) for each in values} <= {None, Decimal(LONG)}
    assert (last.price, last.count) == (Decimal(LONG), 9007199254740993)
    assert exactly(last.extra) == exactly({"a": [float(LONG), 'x"1.50']})


def test_partial_values_without_a_model() -> None:
    """Wrapped values and lists are parsed; a string like a marked number stays a string."""
    one: Any = converter_of(Decimal)
    many: Any = converter_of(list[Decimal])
    mixed: Any = converter_of(list[str | Decimal])

    assert repr(one.partial('{"value": 12.30}')) == "Decimal('12.30')"
    assert many.partial(f"[{LONG}, 1") == [Decimal(LONG)]
    assert mixed.partial('["\ue0001.50", 1.50, ') == ["\ue0001.50", Decimal("1.5")]


def test_the_schema_has_a_number() -> None:
    """The schema has a plain number, without marks, patterns or repetitions."""

    def pay(euro: Decimal, tip: Decimal | None = None, rate: Decimal | float = 1.0) -> None: ...

    assert signature_of(pay).input_schema["properties"] == {
        "euro": {"type": "number"},
        "tip": {"type": "number"},
        "rate": {"type": "number", "default": 1.0},
    }
    assert "x-decimal" not in repr(converter_of(list[Line]).json_schema)
    assert "x-decimal" not in converter_of(list[Line]).format
    assert "x-decimal" not in repr(augment(pay, arguments=Row2)[0].definition)


class Row2(TypedDict):
    limit: Decimal


def test_tools_and_answers(ask: Ask) -> None:
    """A tool, its result and the typed answer have the digits in all ways of asking."""
    got: list[Any] = []

    @tool
    def pay(euro: Decimal, account: int) -> Decimal:
        """Pay."""
        got.append((euro, account))
        return euro

    arguments = f'{{"euro": {LONG}, "account": {WHOLE}}}'
    model = ScriptedModel(call("pay", arguments), f'{{"price": {LONG}}}')
    asked = ask(ChatClient.create(model).prompt("Pay").tools(pay))
    [execution] = asked.executions

    assert got == [(Decimal(LONG), 9007199254740993)]
    assert execution.response.data == f'"{LONG}"'
    assert execution.tool_call.arguments == arguments
    assert asked.answer.content() == f'{{"price": {LONG}}}' if not ask.streaming else True


def test_augmented_tools() -> None:
    """Additional arguments and those that are passed on keep their digits."""
    got: list[Any] = []

    def pay(euro: Decimal) -> None:
        got.append(euro)

    [augmented] = augment(pay, arguments=Row2, consumer=lambda event: got.append(event.extra))
    arguments = f'{{"euro": {LONG}, "limit": 10.50}}'
    ChatClient.create(ScriptedModel(call("pay", arguments), "done")).prompt("x").tools(
        augmented
    ).call().content()

    assert repr(got) == repr([{"limit": Decimal("10.50")}, Decimal(LONG)])


def test_tools_with_a_schema_of_their_own() -> None:
    """Integers are exact by the schema; everything else is a plain value."""
    schema = {"type": "object", "properties": {"n": {"type": "integer"}, "f": {"type": "number"}}}
    arguments = f'{{"n": {WHOLE}, "f": {LONG}, "x": [{LONG}]}}'
    expected = {"n": 9007199254740993, "f": float(LONG), "x": [float(LONG)]}
    data = DataToolCallback(ToolDefinition("t", "T.", schema), lambda call, context: None)

    assert repr(signature_of_schema(schema).read(arguments)) == repr(expected)
    assert repr(read_arguments(data, arguments)) == repr(expected)


@pytest.mark.parametrize("euro", [LONG, "7" * 40])
def test_a_compensation_gets_the_same_digits(euro: str) -> None:
    """What undoes a call gets the numbers that the call got."""
    undone: list[Any] = []

    def refund(euro: Decimal, account: int) -> None:
        undone.append((euro, account))

    def pay(euro: Decimal, account: int) -> str:
        return "paid"

    callback = FunctionToolCallback(pay, metadata=ToolMetadata(compensation=refund))
    arguments = f'{{"euro": {euro}, "account": {WHOLE}}}'
    model = ScriptedModel(call("pay", arguments), RuntimeError("down"))
    with pytest.raises(RuntimeError, match="down"):
        ChatClient.create(model).prompt("x").tools(callback).call().content()

    assert undone == [(Decimal(euro), 9007199254740993)]


def test_calls_that_differ_in_late_digits_are_different() -> None:
    """Digests and decisions tell apart what a float would not; zeros at the end do not count."""
    for same in (_same, lambda one, other: _canonical_json(one) == _canonical_json(other)):
        assert not same(f'{{"a": [{LONG}]}}', f'{{"a": [{LONG}5]}}')
        assert same('{"a": 12.30, "b": 1}', '{"b": 1, "a": 12.3}')
        assert same('{"a": 1e-400}', '{"a": 0.0}')
    assert _canonical_json('{"b":1.5,"a":2}') == '{"a":2,"b":1.5}'


ARGUMENTS = f'{{"euro": {LONG}, "list": [12.30, 1.5, 2, "x"], "big": 1e400}}'
WRITTEN = f'{{"euro":{LONG},"list":[12.30,1.5,2,"x"],"big":null}}'


def tool_calls(answer: Any) -> list[str]:
    return [each.arguments for each in answer.message.tool_calls]


def test_providers_that_send_objects() -> None:
    """Arguments that arrive as an object become text with the literals of the object."""
    anthropic = (
        f'{{"content": [{{"type": "tool_use", "id": "1", "name": "f", "input": {ARGUMENTS}}}]}}'
    )
    part = f'{{"functionCall": {{"name": "f", "args": {ARGUMENTS}}}}}'
    gemini = f'{{"candidates": [{{"content": {{"role": "model", "parts": [{part}]}}}}]}}'
    function = f'{{"function": {{"name": "f", "arguments": {ARGUMENTS}}}}}'
    ollama = f'{{"message": {{"role": "assistant", "tool_calls": [{function}]}}, "done": true}}'

    assert tool_calls(decode_anthropic(parse_json("x", anthropic.encode(), exact=True))) == [
        WRITTEN
    ]
    assert tool_calls(decode_gemini(parse_json("x", gemini.encode(), exact=True))) == [WRITTEN]
    assert tool_calls(decode_ollama(ollama.encode())) == [WRITTEN]
    assert LONG in repr(StreamDecoder().feed(gemini.encode()))


def test_writing() -> None:
    """JSON without long numbers is written as before, and an exact float is a float."""
    value = {"a": [1.5, "é", None, {"b": 1e20}], "c": {}, "d": 10**20}
    number = ExactFloat("12.30")

    assert json.loads(dumps_exact(value)) == value
    assert dumps_exact({"a": [number], 'b"': "1.50"}) == '{"a":[12.30],"b\\"":"1.50"}'
    assert (number, json.dumps(number)) == (12.3, "12.3")
    assert loads_comparable("[12.30, 1]") == [12.3, 1]


def test_async_tools_over_a_loop() -> None:
    """A coroutine function gets the digits as well."""
    got: list[Decimal] = []

    async def pay(euro: Decimal) -> None:
        got.append(euro)

    async def run() -> None:
        model = ScriptedModel(call("pay", f'{{"euro": {LONG}}}'), "done")
        stream = ChatClient.create(model).prompt("x").tools(pay).astream()
        assert [text async for text in stream.content()]

    asyncio.run(run())

    assert got == [Decimal(LONG)]


def test_data_tools_get_the_text() -> None:
    """An executor gets the arguments as the model wrote them."""
    got: list[str] = []

    def execute(made: ToolCall, context: ToolContext) -> str:
        got.append(made.arguments)
        return "done"

    callback = DataToolCallback(ToolDefinition("pay", "Pay.", {"type": "object"}), execute)
    model = ScriptedModel(call("pay", f'{{"euro": {LONG}}}'), "done")
    ChatClient.create(model).prompt("x").tools(callback).call().content()

    assert got == [f'{{"euro": {LONG}}}']
