"""Sources of tools: functions, methods, classes, modules, callables, data."""

import asyncio
import functools
import re
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest
from pydantic import BaseModel

from chatclient import ChatClient, Prompt, ToolContext, tool
from chatclient.chat.messages import ToolCall
from chatclient.errors import DuplicateToolError, ToolDefinitionError
from chatclient.testing import Ask, ScriptedModel, call
from chatclient.tools import (
    DataToolCallback,
    FunctionToolCallback,
    ToolCallback,
    ToolDefinition,
    ToolMetadata,
    ToolResult,
    sanitise_tool_name,
    tool_callbacks,
)
from tests.modes.test_tool_calling import client_of, results

F = TypeVar("F", bound=Callable[..., Any])


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def offered_tools(prompt: Prompt) -> dict[str, ToolDefinition]:
    """Return the tool definitions that the model received, by name."""
    callbacks = prompt.options.tool_callbacks or ()
    return {callback.definition.name: callback.definition for callback in callbacks}


def use(ask: Ask, source: Any, *calls: ToolCall) -> list[str]:
    """Return the results of *calls* of the tools in *source*."""
    model = ScriptedModel(list(calls), "done")
    result = ask(ChatClient.create(model).prompt("x").tools(source))
    assert not any(execution.is_error for execution in result.executions), result.executions
    assert {each.name for each in calls} <= set(offered_tools(model.prompts[0]))
    return results(model.prompts[1])


def names(*sources: Any) -> list[str]:
    return [callback.definition.name for callback in tool_callbacks(*sources)]


# --- methods ---


class Desk:
    """An object with tools of every kind of method."""

    kind = "desk"

    def __init__(self, owner: str) -> None:
        self.owner = owner

    @tool
    def method(self, x: int) -> str:
        """Be a method."""
        return f"{self.owner} {x}"

    @tool
    async def coroutine(self, x: int) -> str:
        """Be asynchronous."""
        await asyncio.sleep(0)
        return f"{self.owner} later {x}"

    @tool
    @staticmethod
    def static_below(x: int) -> str:
        """Be static."""
        return f"static {x}"

    @staticmethod
    @tool
    def static_above(x: int) -> str:
        """Be static, the other way round."""
        return f"static {x}"

    @tool
    @classmethod
    def class_below(cls, x: int) -> str:
        """Be of the class."""
        return f"{cls.kind} {x}"

    @classmethod
    @tool
    def class_above(cls, x: int) -> str:
        """Be of the class, the other way round."""
        return f"{cls.kind} {x}"

    @tool(name="peek")
    def __private(self, x: int) -> str:
        """Be private."""
        return f"{self.owner}'s secret {x}"

    @tool
    def __hidden(self) -> str:
        """Be private under its own name."""
        return "hidden"

    def no_tool(self) -> None:
        """Be no tool."""


@pytest.mark.feature("tool-static-methods", "tool-methods-any-visibility")
@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("method", "Ann 1"),
        ("coroutine", "Ann later 1"),
        ("static_below", "static 1"),
        ("static_above", "static 1"),
        ("class_below", "desk 1"),
        ("class_above", "desk 1"),
        ("peek", "Ann's secret 1"),
    ],
)
def test_methods(ask: Ask, name: str, answer: str) -> None:
    """Plain, async, static, class and private methods, in both decorator orders."""
    assert use(ask, Desk("Ann"), call(name, '{"x": 1}')) == [answer]


@pytest.mark.feature("tool-methods-any-visibility")
def test_methods_keep_their_order() -> None:
    """Private methods keep their names; undecorated ones are no tools."""
    assert names(Desk("Ann")) == [
        "method",
        "coroutine",
        "static_below",
        "static_above",
        "class_below",
        "class_above",
        "peek",
        "__hidden",
    ]


@pytest.mark.feature("tool-schema-generated-each-get")
def test_tools_are_bound_to_their_object(ask: Ask) -> None:
    """Two objects serve two requests, with one schema."""
    assert use(ask, Desk("Ann"), call("method", '{"x": 1}')) == ["Ann 1"]
    assert use(ask, Desk("Bob"), call("method", '{"x": 1}')) == ["Bob 1"]

    one, other = tool_callbacks(Desk("Ann"))[0], tool_callbacks(Desk("Bob"))[0]
    assert one.definition.input_schema is other.definition.input_schema


def test_bound_method(ask: Ask) -> None:
    """A bound method is a tool, decorated or not, without `self`."""
    assert use(ask, Desk("Ann").method, call("method", '{"x": 2}')) == ["Ann 2"]
    assert names(Desk("Ann").no_tool, Desk.class_above) == ["no_tool", "class_above"]


class Base:
    @tool(name="find", description="Find things.", effect="read")
    def search(self, text: str) -> str:
        return f"base {text}"

    @tool
    def remove(self) -> str:
        return "removed"


class Quiet(Base):
    def search(self, text: str, limit: int = 3) -> str:
        return f"quiet {text} {limit}"


class Loud(Base):
    @tool(name="shout")
    def search(self, text: str) -> str:
        return f"loud {text}"

    @tool
    async def extra(self) -> str:
        return "extra"


class Careful(Quiet):
    remove = None  # type: ignore[assignment]


@pytest.mark.feature("tool-inherited-methods-not-found")
def test_inherited_tools(ask: Ask) -> None:
    """A subclass has the tools of its base class."""

    class Plain(Base):
        pass

    assert names(Plain()) == ["find", "remove"]
    assert use(ask, Plain(), call("find", '{"text": "a"}')) == ["base a"]


@pytest.mark.feature("tool-description", "tool-inherited-methods-not-found")
def test_undecorated_override(ask: Ask) -> None:
    """It keeps name, description and metadata, with its own parameters."""
    assert use(ask, Quiet(), call("find", '{"text": "a", "limit": 9}')) == ["quiet a 9"]

    found = tool_callbacks(Quiet())[0]
    assert (found.definition.description, found.metadata.effect) == ("Find things.", "read")


@pytest.mark.feature("tool-name", "tool-inherited-methods-not-found", "lc4j-tool-name")
def test_decorated_override(ask: Ask) -> None:
    """Name and metadata are those of the override."""
    assert names(Loud()) == ["shout", "remove", "extra"]
    assert use(ask, Loud(), call("shout", '{"text": "a"}')) == ["loud a"]
    assert tool_callbacks(Loud())[0].metadata.effect == "write"


@pytest.mark.feature("tool-inherited-methods-not-found")
def test_removed_tool() -> None:
    """Setting the method to None removes the tool."""
    assert names(Careful()) == ["find"]


def test_mixins() -> None:
    """Tools of all bases, the most general class first."""

    class Mixin:
        @tool
        def mixed(self) -> None: ...

    class Both(Mixin, Base):
        pass

    assert sorted(names(Both())) == ["find", "mixed", "remove"]


def test_dataclass_and_pydantic_tools(ask: Ask) -> None:
    """Methods of dataclasses and pydantic models are tools."""

    @dataclass
    class Shop:
        city: str

        @tool
        def where(self) -> str:
            return self.city

    class Store(BaseModel):
        city: str

        @tool
        def where(self) -> str:
            return self.city

    assert use(ask, Shop("Bern"), call("where")) == ["Bern"]
    assert use(ask, Store(city="Basel"), call("where")) == ["Basel"]


# --- classes ---


class Calculator:
    @tool
    @staticmethod
    def square(n: int) -> int:
        """Square a number."""
        return n * n

    @classmethod
    @tool
    def cube(cls, n: int) -> int:
        """Cube a number."""
        return n**3


@pytest.mark.feature("lc4j-tool-class-passed-tool")
def test_class_as_source(ask: Ask) -> None:
    """A class with static and class methods is a source."""
    calls = [call("square", '{"n": 3}'), call("cube", '{"n": 3}')]

    assert use(ask, Calculator, *calls) == ["9", "27"]


@pytest.mark.feature("lc4j-tool-class-passed-tool")
def test_class_with_instance_methods() -> None:
    """The error names the instance to pass."""
    with pytest.raises(ToolDefinitionError, match=r"Base\.search is a method; pass Base\(\)"):
        ChatClient.create(ScriptedModel("x")).prompt("x").tools(Base)


class Empty:
    def method(self) -> None: ...


@pytest.mark.feature("source-objects-without-any-tool", "lc4j-tool-no-tool-object")
@pytest.mark.parametrize("source", [Empty(), Empty, 42, None, object(), 3.5])
def test_source_without_tools(source: Any) -> None:
    """The error names the source."""
    client = ChatClient.create(ScriptedModel("never"))
    for refuses in (tool_callbacks, client.prompt("x").tools, client.mutate().default_tools):
        with pytest.raises(ToolDefinitionError, match="no method with @tool"):
            refuses(source)


@pytest.mark.parametrize(
    ("source", "mend"),
    [
        (ChatClient.create(ScriptedModel("never")), r"as_tool\(name, description\)"),
        (ToolDefinition("clock", "Tells it.", {}), r"DataToolCallback\(definition, executor\)"),
        ({"type": "function", "function": {"name": "clock"}}, r"DataToolCallback\(Tool"),
    ],
)
def test_values_similar_to_tools(source: Any, mend: str) -> None:
    """A client, a definition and JSON of a tool raise with a fix."""
    with pytest.raises(ToolDefinitionError, match=f"is not a source of tools: .*{mend}"):
        tool_callbacks(source)


def test_input_model_is_no_tool() -> None:
    """A class for the input requires a function."""

    class Query(BaseModel):
        text: str

    with pytest.raises(ToolDefinitionError, match=r"\(function, input_type=Query\)"):
        tool_callbacks(Query)
    made = FunctionToolCallback(lambda query: query.text, name="find", input_type=Query)
    assert made.call('{"text": "tea"}') == "tea"


# --- duplicates ---


def other_add(a: int) -> int:
    return a


@pytest.mark.feature("prompt-duplicate-names-checked-client", "lc4j-tool-duplicate-names-one-class")
def test_duplicate_names() -> None:
    """The error names both locations."""
    twin = FunctionToolCallback(other_add, name="add")
    with pytest.raises(DuplicateToolError) as caught:
        ChatClient.builder(ScriptedModel("never")).default_tools(add, twin).build()

    assert caught.value.tool_names == ("add",)
    assert (
        "'add' from tests.unit.tools.test_sources.add and tests.unit.tools.test_sources.other_add"
        in str(caught.value)
    )
    with pytest.raises(
        DuplicateToolError, match=r"Base\.search and tests\.unit\.tools\.test_sources\.Quiet"
    ):
        tool_callbacks(Base(), Quiet())


@pytest.mark.feature(
    "prompt-duplicate-names-checked-client",
    "tool-options-validate-tool-callbacks-not",
    "lc4j-tool-duplicate-names-one-class",
)
def test_duplicates_of_defaults(ask: Ask) -> None:
    """Tools of the request and defaults are checked together."""
    model = ScriptedModel("never")
    client = client_of(model, add)
    twin = FunctionToolCallback(other_add, name="add")
    with pytest.raises(DuplicateToolError):
        ask(client.prompt("x").tools(twin, keep_defaults=True))
    assert model.prompts == []


@pytest.mark.feature("prompt-duplicate-names-checked-client")
def test_repeated_tool_is_no_duplicate(ask: Ask) -> None:
    """The same function, callback or method is offered once."""
    base = Base()
    (callback,) = tool_callbacks(add)
    model = ScriptedModel("hi")
    client = client_of(model, add, base)
    ask(client.prompt("x").tools(callback, add, base.search, base, keep_defaults=True))

    assert list(offered_tools(model.prompts[0])) == ["add", *names(base)]
    with pytest.raises(DuplicateToolError):
        tool_callbacks(callback, FunctionToolCallback(add, description="Something else."))


def test_alias_is_no_duplicate() -> None:
    """An alias in a module or class is the same tool."""

    class Shop:
        @tool
        def stock(self) -> None: ...

        inventory = stock

    module = module_of(
        "from chatclient import tool\n@tool\ndef stock() -> None: ...\ninventory = stock\n"
    )

    assert names(Shop()) == ["stock"]
    assert names(module) == ["stock"]


# --- invalid tools ---


@pytest.mark.feature("tool-methods-return-functions-skipped")
def test_function_as_return_type() -> None:
    """The error names the function and its location."""

    @tool
    def maker() -> Callable[[], int]:
        return int

    with pytest.raises(ToolDefinitionError, match=r"maker.*returns a function"):
        tool_callbacks(maker)


@pytest.mark.feature("function-tool-callback-builder")
def test_lambda_requires_a_name(ask: Ask) -> None:
    """A lambda without a name is rejected."""
    with pytest.raises(ToolDefinitionError, match="lambda"):
        tool_callbacks(lambda: 1)

    assert use(ask, FunctionToolCallback(lambda: 1, name="one"), call("one")) == ["1"]


@pytest.mark.feature("tool-name", "tool-names-illegal-characters-warn")
@pytest.mark.parametrize("name", ["get weather", "é", "x" * 65, "a.b", "getWéather!"])
def test_invalid_names(name: str) -> None:
    """The error proposes a valid name."""
    for make in (
        lambda: tool_callbacks(tool(name=name)(lambda: None)),
        lambda: FunctionToolCallback(other_add, name=name),
        lambda: DataToolCallback(ToolDefinition(name, "", {}), lambda c, x: ""),
    ):
        with pytest.raises(ToolDefinitionError, match="would do") as caught:
            make()
        assert repr(sanitise_tool_name(name)) in str(caught.value)
    assert names(FunctionToolCallback(other_add, name=sanitise_tool_name(name)))


# --- modules ---


def module_of(source: str, name: str = "some_tools") -> types.ModuleType:
    module = types.ModuleType(name)
    exec(source, module.__dict__)
    return module


@pytest.mark.feature("source-modules-functions")
def test_module_as_source(ask: Ask) -> None:
    """Decorated functions of the module are tools; imported ones are not."""
    module = module_of(
        "from chatclient import tool\n"
        "from tests.unit.tools.test_sources import add\n"
        "@tool\n"
        "def hello(name: str) -> str:\n    return f'Hello {name}'\n"
        "@tool\n"
        "async def bye() -> str:\n    return 'Bye'\n"
        "def helper() -> None: ...\n"
    )

    assert names(module) == ["hello", "bye"]
    assert use(ask, module, call("hello", '{"name": "Ann"}'), call("bye")) == ["Hello Ann", "Bye"]


@pytest.mark.feature("source-modules-functions")
def test_module_without_tools() -> None:
    """The error names the module."""
    with pytest.raises(ToolDefinitionError, match="module bare has no function with @tool"):
        tool_callbacks(module_of("def helper(): ...", "bare"))


@tool
@functools.cache
def cached_add(a: int, b: int) -> int:
    """Add two numbers, once."""
    return a + b


class Proxy:
    """Raises on attribute access, like proxies of some web frameworks."""

    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
        raise RuntimeError("outside of a request")

    def __call__(self) -> None: ...


@pytest.mark.feature("function-partials-callable-objects")
def test_decorated_tools_of_a_module(ask: Ask) -> None:
    """Tools wrapped by other decorators are found."""
    module = module_of(
        "import functools\n"
        "from chatclient import tool\n"
        "from tests.unit.tools.test_sources import add, cached_add, Doubler, Proxy\n"
        "@tool\n@functools.cache\ndef above() -> str:\n    return 'above'\n"
        "@functools.cache\n@tool\ndef below() -> str:\n    return 'below'\n"
        "double = tool(name='double')(Doubler())\n"
        "current = Proxy()\n"
    )

    assert names(module) == ["above", "below", "double"]
    assert use(ask, module, call("above"), call("double", '{"n": 2}')) == ["above", "4"]


def test_error_of_a_provider() -> None:
    """An error of a tool provider is raised unchanged."""

    class Broken:
        def tool_callbacks(self) -> list[Any]:
            raise TypeError("of its own")

    class ForRequests:
        def tool_callbacks(self, request: Any) -> list[Any]:
            return [request]

    with pytest.raises(TypeError, match="of its own"):
        tool_callbacks(Broken())
    with pytest.raises(ToolDefinitionError, match="for a request only"):
        tool_callbacks(ForRequests())


def test_class_with_proxy_attributes() -> None:
    """Attributes with dynamic or failing access are ignored."""

    class Proxy:
        def __init__(self, error: Exception | None = None) -> None:
            self._error = error

        def __getattr__(self, name: str) -> Any:
            if self._error is not None:
                raise self._error
            return name

    class Shop:
        remote = Proxy()
        current = Proxy(RuntimeError("outside of any request"))

        @tool
        def stock(self) -> str:
            return "tea"

    assert names(Shop()) == ["stock"]


@pytest.mark.feature("function-partials-callable-objects")
def test_partial_methods() -> None:
    """Several partial methods have their own names."""
    mark: Any = tool

    class Shop:
        @tool
        def stock(self, article: str, where: str = "") -> str:
            return article + where

        in_rome = mark(functools.partialmethod(stock, where="Rome"))
        in_oslo = mark(name="oslo")(functools.partialmethod(stock, where="Oslo"))

    assert names(Shop()) == ["stock", "in_rome", "oslo"]


def test_bound_and_unbound_function() -> None:
    """The first parameter of a bound method is hidden in either order of use."""

    def fetch(client: str, url: str) -> str:
        return f"{client} {url}"

    bound = types.MethodType(fetch, "me")
    for source in (fetch, bound, fetch):
        schema = tool_callbacks(source)[0].definition.input_schema
        assert list(schema["properties"]) == (["url"] if source is bound else ["client", "url"])


# --- other callables ---


def subtract(a: int, b: int) -> int:
    """Subtract one number from another."""
    return a - b


class Doubler:
    """Doubles numbers."""

    def __call__(self, n: int) -> int:
        """Double a number."""
        return 2 * n


class Later:
    async def __call__(self, n: int) -> int:
        await asyncio.sleep(0)
        return -n


@pytest.mark.feature("source-functions", "tool-description", "lc4j-tool-name")
def test_undecorated_function(ask: Ask) -> None:
    """Docstring and signature describe the tool."""
    assert use(ask, subtract, call("subtract", '{"a": 3, "b": 1}')) == ["2"]
    assert tool_callbacks(subtract)[0].definition.description == "Subtract one number from another."


@pytest.mark.feature("function-partials-callable-objects")
def test_callable_objects(ask: Ask) -> None:
    """They have the name of their class unless given one."""
    assert use(ask, Doubler(), call("Doubler", '{"n": 4}')) == ["8"]
    assert use(ask, FunctionToolCallback(Later(), name="later"), call("later", '{"n": 4}')) == [
        "-4"
    ]


@pytest.mark.feature("function-partials-callable-objects")
def test_partials(ask: Ask) -> None:
    """Bound arguments are not shown to the model."""
    from_ten = functools.partial(subtract, 10)
    model = ScriptedModel(call("subtract", '{"b": 4}'), "done")
    ask(ChatClient.create(model).prompt("x").tools(from_ten))

    assert results(model.prompts[1]) == ["6"]
    assert list(offered_tools(model.prompts[0])["subtract"].input_schema["properties"]) == ["b"]


def generated() -> Iterator[Any]:
    yield add
    yield [subtract, (Doubler(),)]


@pytest.mark.feature("source-arrays-collections-nested", "lc4j-tool-collection-passed-tool-refused")
@pytest.mark.parametrize(
    "collection",
    [
        [add, [subtract, (Doubler(),)]],
        (add, (subtract, [Doubler()])),
        generated(),
        dict.fromkeys([add, subtract, Doubler()]).keys(),
    ],
)
def test_collections_of_sources(collection: Any) -> None:
    """Nested lists, tuples, generators and views are sources."""
    assert names(collection) == ["add", "subtract", "Doubler"]


@pytest.mark.feature("source-tool-callback")
def test_custom_callback(ask: Ask) -> None:
    """Any object with the right attributes is a tool."""

    class Echo:
        definition = ToolDefinition("echo", "Repeat.", {"type": "object", "properties": {}})
        metadata = ToolMetadata(effect="read")

        async def invoke(self, arguments: str, context: ToolContext) -> ToolResult:
            return ToolResult(f"{arguments} for {context['who']}")

    assert isinstance(Echo(), ToolCallback)
    model = ScriptedModel(call("echo", '{"x": [1]}'), "done")
    ask(ChatClient.create(model).prompt("x").tools(Echo()).tool_context(who="Ann"))
    assert results(model.prompts[1]) == ['{"x": [1]} for Ann']


ECHO = ToolDefinition("echo", "Repeat.", {})


def custom_callback(**attributes: Any) -> Any:
    """Return an object with the shape of a `ToolCallback`."""

    async def invoke(arguments: str, context: ToolContext) -> ToolResult:
        raise NotImplementedError

    return types.SimpleNamespace(
        **{
            name: value
            for name, value in {"metadata": ToolMetadata(), "invoke": invoke, **attributes}.items()
            if value is not ...
        }
    )


class Inherits(ToolCallback):
    @property
    def definition(self) -> ToolDefinition:
        return ECHO


INHERITS = Inherits()  # type: ignore[abstract]  # which Python lets through


@pytest.mark.feature("source-tool-callback")
@pytest.mark.parametrize(
    ("source", "message"),
    [
        (custom_callback(), "; a ToolCallback has definition, too"),
        (custom_callback(metadata=..., definition=ECHO), "; a ToolCallback has metadata, too"),
        (
            custom_callback(metadata=..., invoke=..., definition=ECHO),
            "has metadata and invoke, too",
        ),
        (
            custom_callback(definition="echo"),
            "must have a ToolDefinition as its definition, not 'echo'",
        ),
        (
            custom_callback(definition=ECHO, metadata=None),
            "must have a ToolMetadata as its metadata, not None",
        ),
        (INHERITS, "must have a ToolMetadata as its metadata, not None"),
        (custom_callback(definition=ToolDefinition("an echo", "", {})), "'an_echo' would do"),
    ],
)
def test_incomplete_custom_callback(source: Any, message: str) -> None:
    """The error names the missing attribute."""
    with pytest.raises(ToolDefinitionError, match=re.escape(message)):
        ChatClient.create(ScriptedModel("never")).prompt("x").tools(source)


# --- composed decorators ---


def db_tool(**options: Any) -> Callable[[F], F]:
    """Mark a tool that reads the project's database."""
    return tool(**{"concurrency_group": "db", "effect": "read", "timeout": 5.0, **options})


@db_tool()
def rows(table: str) -> str:
    """Count rows."""
    return f"{table}: 3"


@db_tool(effect="write", name="drop")
async def drop_table(table: str) -> str:
    """Drop a table."""
    return f"{table} dropped"


def logged(function: F) -> F:
    """Wrap a tool with `functools.wraps`."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return f"!{function(*args, **kwargs)}"

    return tool(description="Announced.")(wrapper)  # type: ignore[return-value]


@logged
def hello(name: str) -> str:
    return f"Hello {name}"


@pytest.mark.feature("tool-meta-annotation")
def test_composed_decorator(ask: Ask) -> None:
    """A project's decorator sets defaults that tools override."""
    calls = [call("rows", '{"table": "t"}'), call("drop", '{"table": "t"}')]
    assert use(ask, [rows, drop_table], *calls) == ["t: 3", "t dropped"]

    reads, writes = tool_callbacks(rows, drop_table)
    assert reads.metadata == ToolMetadata(timeout=5.0, concurrency_group="db", effect="read")
    assert writes.metadata == ToolMetadata(timeout=5.0, concurrency_group="db", effect="write")


def test_wrapped_signature(ask: Ask) -> None:
    """The signature of the wrapped function is used."""
    assert use(ask, hello, call("hello", '{"name": "Ann"}')) == ["!Hello Ann"]
    assert tool_callbacks(hello)[0].definition.description == "Announced."


def test_decorated_function_is_callable() -> None:
    """A decorated function can be called directly."""
    assert add(1, 2) == 3
    assert asyncio.run(drop_table("t")) == "t dropped"
    assert Calculator.square(3) == 9


def test_unknown_decorator_option() -> None:
    """A misspelt option raises in the decorator."""
    with pytest.raises(TypeError, match="retrun_direct"):
        tool(retrun_direct=True)  # type: ignore[call-overload]


# --- FunctionToolCallback ---


class Order(BaseModel):
    """An order."""

    item: str
    count: int = 1


def order(order: Order, context: ToolContext) -> str:
    return f"{context['who']} orders {order.count} {order.item}"


@pytest.mark.feature("function-input-type")
def test_input_type(ask: Ask) -> None:
    """With an input type the callable gets one validated value."""
    ordering = FunctionToolCallback(order, input_type=Order)
    model = ScriptedModel(call("order", '{"item": "tea", "count": "2"}'), "done")
    ask(ChatClient.create(model).prompt("x").tools(ordering).tool_context(who="Ann"))

    assert results(model.prompts[1]) == ["Ann orders 2 tea"]
    assert list(ordering.definition.input_schema["properties"]) == ["item", "count"]
    assert ordering.definition.description == "An order."


@pytest.mark.feature("function-input-schema")
def test_input_schema(ask: Ask) -> None:
    """The callable gets unconverted values; required ones are checked."""
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city"],
    }

    def forecast(**arguments: Any) -> str:
        return str(sorted(arguments.items()))

    callback = FunctionToolCallback(forecast, input_schema=schema, description="Forecast.")
    made = [
        call("forecast", '{"city": "Bern", "days": 2}'),
        call("forecast", '{"days": 2}', id="f2"),
    ]
    model = ScriptedModel(made, "done")
    ask(client_of(model, callback).prompt("x"))

    answers = results(model.prompts[1])
    assert answers[0] == "[('city', 'Bern'), ('days', 2)]"
    assert "city: missing, but required" in answers[1]
    assert offered_tools(model.prompts[0])["forecast"].input_schema == schema


@pytest.mark.feature("tool-result-converter")
def test_result_converter(ask: Ask) -> None:
    """A converter returns text or a result, for decorator and callback."""

    @tool(result_converter=lambda value: f"<{value}>")
    def tagged() -> int:
        return 1

    flagged = FunctionToolCallback(
        other_add, result_converter=lambda value: ToolResult("odd", is_error=bool(value % 2))
    )
    model = ScriptedModel([call("tagged"), call("other_add", '{"a": 3}')], "done")
    result = ask(client_of(model, tagged, flagged).prompt("x"))

    assert results(model.prompts[1]) == ["<1>", "odd"]
    assert [execution.is_error for execution in result.executions] == [False, True]


@pytest.mark.feature("tool-result-converter")
def test_failing_result_converter(ask: Ask) -> None:
    """The model gets the error, and the history is complete."""

    def convert(value: Any) -> str:
        raise ValueError("cannot show that")

    callback = FunctionToolCallback(other_add, result_converter=convert)
    model = ScriptedModel(call("other_add", '{"a": 3}'), "done")
    ask(client_of(model, callback).prompt("x"))

    assert results(model.prompts[1]) == ["cannot show that"]


@pytest.mark.feature("lc4j-tool-specification-strict")
def test_strict_setting() -> None:
    """The callback overrides the decorator; None leaves it to the options."""

    @tool(strict=True)
    def exact() -> None: ...

    assert FunctionToolCallback(exact).definition.strict is True
    assert FunctionToolCallback(exact, strict=False).definition.strict is False
    assert FunctionToolCallback(add).definition.strict is None


@pytest.mark.feature("function-tool-callback-builder")
def test_callback_overrides_decorator() -> None:
    """Name, description and metadata of the callback win."""
    callback = FunctionToolCallback(
        rows, name="count_rows", description="Count.", metadata=ToolMetadata(return_direct=True)
    )

    assert (callback.definition.name, callback.definition.description) == ("count_rows", "Count.")
    assert callback.metadata == ToolMetadata(return_direct=True)
    assert repr(callback) == "FunctionToolCallback('count_rows')"


def test_description_from_name() -> None:
    """Without a docstring the description is made from the name."""

    def getCurrentTime() -> str:  # noqa: N802 - the case is the point
        return ""

    assert tool_callbacks(getCurrentTime)[0].definition.description == "get current time"


@pytest.mark.feature("tool-schema-generated-each-get")
def test_schema_is_cached() -> None:
    """A function has one schema object."""
    first, second = FunctionToolCallback(add), FunctionToolCallback(add)

    assert first.definition.input_schema is second.definition.input_schema


@pytest.mark.feature("tool-calling-tool-outside-turn")
def test_direct_callback_call() -> None:
    """A callback can be called with JSON, blocking or async."""
    assert FunctionToolCallback(add).call('{"a": 1, "b": 2}') == "3"
    assert FunctionToolCallback(drop_table).call('{"table": "t"}') == "t dropped"
    ordering = FunctionToolCallback(order, input_type=Order)
    assert ordering.call('{"item": "tea"}', {"who": "Bob"}) == "Bob orders 1 tea"


# --- data ---


@pytest.mark.feature("resolver-tools-exist-data", "lc4j-tool-tools-duplicates-unchecked")
@pytest.mark.parametrize("kind", ["plain", "async"])
def test_tools_from_data(ask: Ask, kind: str) -> None:
    """A definition and an executor, which gets the call as the model wrote it."""
    seen: list[tuple[ToolCall, str]] = []

    def execute(made: ToolCall, context: ToolContext) -> Any:
        seen.append((made, context["tenant"]))
        return {"ok": True}

    async def execute_later(made: ToolCall, context: ToolContext) -> Any:
        await asyncio.sleep(0)
        return execute(made, context)

    loaded = {
        "name": "ticket",
        "description": "Open a ticket.",
        "input_schema": {"type": "object", "properties": {"title": {"type": "string"}}},
    }
    callback = DataToolCallback(
        ToolDefinition(**loaded),  # type: ignore[arg-type]
        execute if kind == "plain" else execute_later,
    )
    made = call("ticket", '{ "title":"3" }', id="t1")
    model = ScriptedModel(made, "done")
    ask(client_of(model, callback).prompt("x").tool_context(tenant="acme"))

    assert seen == [(made, "acme")]
    assert results(model.prompts[1]) == ['{"ok":true}']
    assert offered_tools(model.prompts[0])["ticket"] == callback.definition


@pytest.mark.feature("resolver-tools-exist-data")
def test_metadata_of_tools_from_data(ask: Ask) -> None:
    """Return direct and time-outs apply."""

    def execute(made: ToolCall, context: ToolContext) -> str:
        return f"{made.name} in {context.timeout} s"

    definition = ToolDefinition("final", "Be final.", {"type": "object", "properties": {}})
    metadata = ToolMetadata(return_direct=True, timeout=3.0)
    callback = DataToolCallback(definition, execute, metadata)

    assert ask(client_of(ScriptedModel(call("final")), callback).prompt("x")).text == (
        "final in 3.0 s"
    )
    assert DataToolCallback(definition, execute).metadata == ToolMetadata()


def test_strict_tool_with_free_mapping() -> None:
    """The error names the tool and a fix."""

    @tool(strict=True)
    def labels(values: dict[str, int]) -> None: ...

    with pytest.raises(ToolDefinitionError, match="'labels' has arguments that no provider"):
        tool_callbacks(labels)
