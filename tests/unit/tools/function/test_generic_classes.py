"""Tools of generic classes with type arguments."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Self, TypeVar

import pytest
import typing_extensions
from pydantic import BaseModel

from chatclient import tool
from chatclient.client.client import ChatClient
from chatclient.errors import ToolDefinitionError
from chatclient.testing import Ask, ScriptedModel, call
from chatclient.tools import FunctionToolCallback, tool_callbacks

X = TypeVar("X")
Y = TypeVar("Y")
Bound = TypeVar("Bound", bound="Item")
Either = TypeVar("Either", int, str)
WithDefault = typing_extensions.TypeVar("WithDefault", default=int)


class Item(BaseModel):
    name: str
    count: int = 1


class Page(BaseModel, Generic[X]):
    entries: list[X]


class Base(Generic[X]):
    def __init__(self) -> None:
        self.saved: list[Any] = []

    @tool
    def save(self, item: X) -> str:
        """Save an item."""
        self.saved.append(item)
        return "saved"

    @tool
    def save_all(self, items: list[X], spare: X | None = None) -> str:
        """Save several items."""
        self.saved += [*items, spare]
        return "saved"


class Items(Base[Item]):
    pass


class Numbers(Base[int]):
    pass


class ByName(Base["Item"]):
    pass


class Middle(Base[list[Y]], Generic[Y, X]):
    """Uses the type variable of its base for another purpose."""

    @tool
    def note(self, key: X, value: Annotated[Y, "The value"]) -> None:
        """Note a value."""


class Lowest(Middle[int, str]):
    pass


def schemas(source: Any) -> dict[str, Any]:
    """Return the properties of each tool of an object, by name."""
    return {
        each.definition.name: dict(each.definition.input_schema["properties"])
        for each in tool_callbacks(source)
    }


ITEM = {"$ref": "#/$defs/Item"}


def test_type_argument_of_a_generic_base(ask: Ask) -> None:
    """The function gets an object of the type argument."""
    items = Items()
    model = ScriptedModel(call("save", {"item": {"name": "tea"}}), "done")
    ask(ChatClient.builder(model).default_tools(items).build().prompt("Save tea."))

    assert items.saved == [Item(name="tea")]


@pytest.mark.parametrize("kind", [Items, ByName, Base[Item]])
def test_forms_of_type_arguments(kind: Callable[[], Any]) -> None:
    """In the bases, as a string, or where the object is made."""
    found = schemas(kind())

    assert found["save"] == {"item": ITEM}
    assert found["save_all"]["items"] == {"type": "array", "items": ITEM}


def test_subclasses_have_their_own_types() -> None:
    """One function has a schema per class."""
    for _ in range(2):
        assert schemas(Numbers())["save"] == {"item": {"type": "integer"}}
        assert schemas(Items())["save"] == {"item": ITEM}
        assert schemas(Base[str]())["save"] == {"item": {"type": "string"}}


def test_type_variables_of_several_levels() -> None:
    """A variable is resolved for the class that defines the method."""
    found = schemas(Lowest())

    assert found["save"] == {"item": {"type": "array", "items": {"type": "integer"}}}
    assert found["note"] == {
        "key": {"type": "string"},
        "value": {"type": "integer", "description": "The value"},
    }


def test_generic_models_and_class_methods() -> None:
    """Type variables in models, pydantic generics and class methods are resolved."""

    class Shelf(BaseModel, Generic[X]):
        @classmethod
        @tool
        def add(cls, page: Page[X], pair: tuple[X, ...]) -> None:
            """Add a page."""

    class IntShelf(Shelf[int]):
        pass

    for shelf in (IntShelf(), Shelf[int](), IntShelf):
        [add] = tool_callbacks(shelf)
        properties = add.definition.input_schema["properties"]
        assert properties["pair"] == {"type": "array", "items": {"type": "integer"}}
        page = add.definition.input_schema["$defs"]["Page_int_"]
        assert page["properties"]["entries"] == {"type": "array", "items": {"type": "integer"}}


def test_self_type() -> None:
    """`Self` is the inheriting class."""

    @dataclass
    class Node:
        label: str

        @tool
        def link(self, other: Self, more: list[Self] | None = None) -> str:
            """Link to another one."""
            return f"{type(other).__name__}, {more}"

    @dataclass
    class Leaf(Node):
        colour: str = "green"

    [link] = tool_callbacks(Leaf("a"))

    assert link.definition.input_schema["$defs"]["Leaf"]["properties"].keys() == {"label", "colour"}
    assert isinstance(link, FunctionToolCallback)
    assert link.call('{"other": {"label": "b", "colour": "red"}}') == "Leaf, None"


def test_partial_methods_and_callable_objects() -> None:
    """Partial methods and `__call__` are resolved."""

    class Sender(Generic[X]):
        def __call__(self, item: X, *, loud: bool) -> None:
            """Send an item."""

    class IntSender(Sender[int]):
        pass

    quiet = FunctionToolCallback(functools.partial(IntSender(), loud=False), name="send")
    bound = FunctionToolCallback(functools.partial(Numbers().save), name="save")

    assert quiet.definition.input_schema["properties"] == {"item": {"type": "integer"}}
    assert bound.definition.input_schema["properties"] == {"item": {"type": "integer"}}


def test_unbound_type_variable() -> None:
    """The default, constraints or bound are used."""

    class Loose(Generic[Bound, Either, WithDefault]):
        @tool
        def keep(self, item: Bound, either: Either, number: WithDefault) -> None:
            """Keep it."""

    class Inherited(Loose):  # type: ignore[type-arg]
        pass

    sources: list[Any] = [Loose(), Inherited()]
    for source in sources:
        properties = schemas(source)["keep"]
        assert properties["item"] == ITEM
        assert properties["either"] == {"anyOf": [{"type": "integer"}, {"type": "string"}]}
        assert properties["number"] == {"type": "integer"}


def test_type_variable_without_type() -> None:
    """The error proposes a fix."""

    class Unsaid(Base):  # type: ignore[type-arg]
        pass

    def keep(item: X) -> X:
        return item

    hint = r"parameter 'item' of Base\.save\(\) .* type variable ~X.*`class Items\(Base\[Item\]\)`"
    unsaid: list[Any] = [Base(), Unsaid()]
    for source in unsaid:
        with pytest.raises(ToolDefinitionError, match=hint):
            tool_callbacks(source)
    with pytest.raises(ToolDefinitionError, match=r"keep\(\).* type variable ~X"):
        tool_callbacks(keep)
