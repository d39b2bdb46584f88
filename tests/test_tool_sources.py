"""Whatever `.tools(...)` takes: functions, methods, classes, modules, callables, data."""

import asyncio
import functools
import re
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest
from conftest import Ask
from pydantic import BaseModel
from test_tool_calling import client_of, results

from chatclient import ChatClient, Prompt
from chatclient.errors import DuplicateToolError, ToolDefinitionError
from chatclient.messages import ToolCall
from chatclient.testing import ScriptedModel, call
from chatclient.tools import (
    DataToolCallback,
    FunctionToolCallback,
    ToolCallback,
    ToolContext,
    ToolDefinition,
    ToolMetadata,
    ToolResult,
    sanitise_tool_name,
    tool,
    tool_callbacks,
)

F = TypeVar("F", bound=Callable[..., Any])


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def offered(prompt: Prompt) -> dict[str, ToolDefinition]:
    """Return what the model was told about its tools, by name."""
    callbacks = prompt.options.tool_callbacks or ()
    return {callback.definition.name: callback.definition for callback in callbacks}


def use(ask: Ask, source: Any, *calls: ToolCall) -> list[str]:
    """Return what the tools in *source* answer when a model makes *calls*."""
    model = ScriptedModel(list(calls), "done")
    result = ask(ChatClient.create(model).prompt("x").tools(source))
    assert not any(execution.is_error for execution in result.executions), result.executions
    assert {each.name for each in calls} <= set(offered(model.prompts[0]))
    return results(model.prompts[1])


def names(*sources: Any) -> list[str]:
    return [callback.definition.name for callback in tool_callbacks(*sources)]


# --- methods of every kind ---


class Desk:
    """An object with tools of every kind."""

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
def test_methods_of_every_kind_are_tools(ask: Ask, name: str, answer: str) -> None:
    """Plain, async, static, class and private methods, in both orders of decorators."""
    assert use(ask, Desk("Ann"), call(name, '{"x": 1}')) == [answer]


def test_tools_of_an_object_come_in_the_order_of_their_definition() -> None:
    """Private ones keep their own name; what has no decorator is no tool."""
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


def test_each_object_has_its_own_tools(ask: Ask) -> None:
    """Two objects of one class can serve two requests; the schema is computed once."""
    assert use(ask, Desk("Ann"), call("method", '{"x": 1}')) == ["Ann 1"]
    assert use(ask, Desk("Bob"), call("method", '{"x": 1}')) == ["Bob 1"]

    one, other = tool_callbacks(Desk("Ann"))[0], tool_callbacks(Desk("Bob"))[0]
    assert one.definition.input_schema is other.definition.input_schema


def test_a_bound_method_is_a_tool(ask: Ask) -> None:
    """A single method can be passed, decorated or not; `self` is no argument."""
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


def test_tools_are_inherited(ask: Ask) -> None:
    """A subclass has the tools of its base class."""

    class Plain(Base):
        pass

    assert names(Plain()) == ["find", "remove"]
    assert use(ask, Plain(), call("find", '{"text": "a"}')) == ["base a"]


def test_an_override_without_the_decorator_stays_a_tool(ask: Ask) -> None:
    """It keeps name, description and metadata, and takes what the override takes."""
    assert use(ask, Quiet(), call("find", '{"text": "a", "limit": 9}')) == ["quiet a 9"]

    found = tool_callbacks(Quiet())[0]
    assert (found.definition.description, found.metadata.effect) == ("Find things.", "read")


def test_an_override_with_the_decorator_has_the_last_word(ask: Ask) -> None:
    """Name and metadata are those of the override."""
    assert names(Loud()) == ["shout", "remove", "extra"]
    assert use(ask, Loud(), call("shout", '{"text": "a"}')) == ["loud a"]
    assert tool_callbacks(Loud())[0].metadata.effect == "write"


def test_a_tool_can_be_taken_away() -> None:
    """A subclass that sets the method to None does not have the tool."""
    assert names(Careful()) == ["find"]


def test_mixins_bring_their_tools() -> None:
    """All bases count, in the order of the method resolution from the most general on."""

    class Mixin:
        @tool
        def mixed(self) -> None: ...

    class Both(Mixin, Base):
        pass

    assert sorted(names(Both())) == ["find", "mixed", "remove"]


def test_dataclasses_and_pydantic_models_can_have_tools(ask: Ask) -> None:
    """What the object is beside does not matter."""

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


def test_a_class_of_static_and_class_methods_is_a_source(ask: Ask) -> None:
    """Tools that need no object need none."""
    calls = [call("square", '{"n": 3}'), call("cube", '{"n": 3}')]

    assert use(ask, Calculator, *calls) == ["9", "27"]


def test_a_class_whose_tools_need_an_object_is_refused() -> None:
    """The error says what to pass instead."""
    with pytest.raises(ToolDefinitionError, match=r"Base\.search is a method; pass Base\(\)"):
        ChatClient.create(ScriptedModel("x")).prompt("x").tools(Base)


class Empty:
    def method(self) -> None: ...


@pytest.mark.parametrize("source", [Empty(), Empty, 42, None, object(), 3.5])
def test_what_holds_no_tool_is_refused(source: Any) -> None:
    """The error names what was passed; nothing is silently offered."""
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
def test_what_is_nearly_a_tool_is_refused_with_the_mend(source: Any, mend: str) -> None:
    """A client, a definition, and a tool as providers are sent one."""
    with pytest.raises(ToolDefinitionError, match=f"is not a source of tools: .*{mend}"):
        tool_callbacks(source)


def test_a_model_of_the_input_is_no_tool() -> None:
    """Something has to be run with it."""

    class Query(BaseModel):
        text: str

    with pytest.raises(ToolDefinitionError, match=r"\(function, input_type=Query\)"):
        tool_callbacks(Query)
    made = FunctionToolCallback(lambda query: query.text, name="find", input_type=Query)
    assert made.call('{"text": "tea"}') == "tea"


# --- duplicates ---


def other_add(a: int) -> int:
    return a


def test_duplicates_are_named_with_both_places() -> None:
    """Two tools of one name are refused, and the error says where each comes from."""
    twin = FunctionToolCallback(other_add, name="add")
    with pytest.raises(DuplicateToolError) as caught:
        ChatClient.builder(ScriptedModel("never")).default_tools(add, twin).build()

    assert caught.value.tool_names == ("add",)
    assert "'add' from test_tool_sources.add and test_tool_sources.other_add" in str(caught.value)
    with pytest.raises(DuplicateToolError, match=r"Base\.search and test_tool_sources\.Quiet"):
        tool_callbacks(Base(), Quiet())


def test_duplicates_in_a_request_are_refused_before_anything_is_sent(ask: Ask) -> None:
    """Tools of the request and defaults kept beside them are looked at together."""
    model = ScriptedModel("never")
    client = client_of(model, add)
    twin = FunctionToolCallback(other_add, name="add")
    with pytest.raises(DuplicateToolError):
        ask(client.prompt("x").tools(twin, keep_defaults=True))
    assert model.prompts == []


def test_the_very_same_tool_is_no_duplicate(ask: Ask) -> None:
    """A default may be given again, as a function, a callback or a method; it is offered once."""
    base = Base()
    (callback,) = tool_callbacks(add)
    model = ScriptedModel("hi")
    client = client_of(model, add, base)
    ask(client.prompt("x").tools(callback, add, base.search, base, keep_defaults=True))

    assert list(offered(model.prompts[0])) == ["add", *names(base)]
    with pytest.raises(DuplicateToolError):
        tool_callbacks(callback, FunctionToolCallback(add, description="Something else."))


def test_another_name_for_a_tool_is_no_other_tool() -> None:
    """In a module and in a class."""

    class Shop:
        @tool
        def stock(self) -> None: ...

        inventory = stock

    module = module_of(
        "from chatclient.tools import tool\n@tool\ndef stock() -> None: ...\ninventory = stock\n"
    )

    assert names(Shop()) == ["stock"]
    assert names(module) == ["stock"]


# --- what cannot be a tool ---


def test_a_function_as_a_result_is_refused() -> None:
    """The error names the function and where it is."""

    @tool
    def maker() -> Callable[[], int]:
        return int

    with pytest.raises(ToolDefinitionError, match=r"maker.*returns a function"):
        tool_callbacks(maker)


def test_a_lambda_needs_a_name(ask: Ask) -> None:
    """Without one it is refused; with one it is a tool like any other."""
    with pytest.raises(ToolDefinitionError, match="lambda"):
        tool_callbacks(lambda: 1)

    assert use(ask, FunctionToolCallback(lambda: 1, name="one"), call("one")) == ["1"]


@pytest.mark.parametrize("name", ["get weather", "é", "x" * 65, "a.b", "getWéather!"])
def test_names_are_checked(name: str) -> None:
    """A name that some provider would refuse is refused here, with one that would do."""
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


def test_a_module_is_a_source(ask: Ask) -> None:
    """Its own decorated functions are tools; imported and undecorated ones are not."""
    module = module_of(
        "from chatclient.tools import tool\n"
        "from test_tool_sources import add\n"
        "@tool\n"
        "def hello(name: str) -> str:\n    return f'Hello {name}'\n"
        "@tool\n"
        "async def bye() -> str:\n    return 'Bye'\n"
        "def helper() -> None: ...\n"
    )

    assert names(module) == ["hello", "bye"]
    assert use(ask, module, call("hello", '{"name": "Ann"}'), call("bye")) == ["Hello Ann", "Bye"]


def test_a_module_without_tools_is_refused() -> None:
    """The error names the module."""
    with pytest.raises(ToolDefinitionError, match="module bare has no function with @tool"):
        tool_callbacks(module_of("def helper(): ...", "bare"))


@tool
@functools.cache
def cached_add(a: int, b: int) -> int:
    """Add two numbers, once."""
    return a + b


class Proxy:
    """Does not like to be asked, as the proxies of some web frameworks."""

    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
        raise RuntimeError("outside of a request")

    def __call__(self) -> None: ...


def test_what_decorators_make_of_tools_are_tools(ask: Ask) -> None:
    """A module's tools need not be plain functions."""
    module = module_of(
        "import functools\n"
        "from chatclient.tools import tool\n"
        "from test_tool_sources import add, cached_add, Doubler, Proxy\n"
        "@tool\n@functools.cache\ndef above() -> str:\n    return 'above'\n"
        "@functools.cache\n@tool\ndef below() -> str:\n    return 'below'\n"
        "double = tool(name='double')(Doubler())\n"
        "current = Proxy()\n"
    )

    assert names(module) == ["above", "below", "double"]
    assert use(ask, module, call("above"), call("double", '{"n": 2}')) == ["above", "4"]


def test_what_a_provider_raises_is_raised_as_it_is() -> None:
    """Only one that wants a request is said to want one."""

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


def test_attributes_of_a_class_may_be_anything() -> None:
    """Such as a proxy that has every attribute, or none at the moment."""

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


def test_partial_methods_go_by_their_own_names() -> None:
    """Several may be made of one method."""
    mark: Any = tool

    class Shop:
        @tool
        def stock(self, article: str, where: str = "") -> str:
            return article + where

        in_rome = mark(functools.partialmethod(stock, where="Rome"))
        in_oslo = mark(name="oslo")(functools.partialmethod(stock, where="Oslo"))

    assert names(Shop()) == ["stock", "in_rome", "oslo"]


def test_a_function_may_be_bound_and_unbound() -> None:
    """Whichever is asked for first: bound, its first parameter is given."""

    def fetch(client: str, url: str) -> str:
        return f"{client} {url}"

    bound = types.MethodType(fetch, "me")
    for source in (fetch, bound, fetch):
        schema = tool_callbacks(source)[0].definition.input_schema
        assert list(schema["properties"]) == (["url"] if source is bound else ["client", "url"])


# --- callables of every kind ---


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


def test_an_undecorated_function_is_a_tool(ask: Ask) -> None:
    """Passing it says enough; its docstring and signature say the rest."""
    assert use(ask, subtract, call("subtract", '{"a": 3, "b": 1}')) == ["2"]
    assert tool_callbacks(subtract)[0].definition.description == "Subtract one number from another."


def test_callable_objects_are_tools(ask: Ask) -> None:
    """They are called what their class is called, unless they are given a name."""
    assert use(ask, Doubler(), call("Doubler", '{"n": 4}')) == ["8"]
    assert use(ask, FunctionToolCallback(Later(), name="later"), call("later", '{"n": 4}')) == [
        "-4"
    ]


def test_partials_are_tools(ask: Ask) -> None:
    """What is fixed already the model is not asked for."""
    from_ten = functools.partial(subtract, 10)
    model = ScriptedModel(call("subtract", '{"b": 4}'), "done")
    ask(ChatClient.create(model).prompt("x").tools(from_ten))

    assert results(model.prompts[1]) == ["6"]
    assert list(offered(model.prompts[0])["subtract"].input_schema["properties"]) == ["b"]


def generated() -> Iterator[Any]:
    yield add
    yield [subtract, (Doubler(),)]


@pytest.mark.parametrize(
    "collection",
    [
        [add, [subtract, (Doubler(),)]],
        (add, (subtract, [Doubler()])),
        generated(),
        dict.fromkeys([add, subtract, Doubler()]).keys(),
    ],
)
def test_collections_of_sources_are_sources(collection: Any) -> None:
    """Lists, tuples, generators and views of sources, also within each other."""
    assert names(collection) == ["add", "subtract", "Doubler"]


def test_a_tool_callback_of_ones_own_is_a_tool(ask: Ask) -> None:
    """Anything of the right shape can be passed; it needs nothing of this library's classes."""

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


def own(**attributes: Any) -> Any:
    """Return an object that means to be a `ToolCallback`."""

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


@pytest.mark.parametrize(
    ("source", "told"),
    [
        (own(), "; a ToolCallback has definition, too"),
        (own(metadata=..., definition=ECHO), "; a ToolCallback has metadata, too"),
        (own(metadata=..., invoke=..., definition=ECHO), "has metadata and invoke, too"),
        (own(definition="echo"), "must have a ToolDefinition as its definition, not 'echo'"),
        (own(definition=ECHO, metadata=None), "must have a ToolMetadata as its metadata, not None"),
        (INHERITS, "must have a ToolMetadata as its metadata, not None"),
        (own(definition=ToolDefinition("an echo", "", {})), "'an_echo' would do"),
    ],
)
def test_a_callback_of_ones_own_that_is_none_is_refused(source: Any, told: str) -> None:
    """Before anything is sent, and with what it lacks."""
    with pytest.raises(ToolDefinitionError, match=re.escape(told)):
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


def announced(function: F) -> F:
    """Wrap a tool the way decorators do."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return f"!{function(*args, **kwargs)}"

    return tool(description="Announced.")(wrapper)  # type: ignore[return-value]


@announced
def hello(name: str) -> str:
    return f"Hello {name}"


def test_a_project_can_compose_decorators(ask: Ask) -> None:
    """Its own decorator sets defaults, which single tools change."""
    calls = [call("rows", '{"table": "t"}'), call("drop", '{"table": "t"}')]
    assert use(ask, [rows, drop_table], *calls) == ["t: 3", "t dropped"]

    reads, writes = tool_callbacks(rows, drop_table)
    assert reads.metadata == ToolMetadata(timeout=5.0, concurrency_group="db", effect="read")
    assert writes.metadata == ToolMetadata(timeout=5.0, concurrency_group="db", effect="write")


def test_a_decorator_that_wraps_keeps_the_signature(ask: Ask) -> None:
    """What `functools.wraps` says is believed."""
    assert use(ask, hello, call("hello", '{"name": "Ann"}')) == ["!Hello Ann"]
    assert tool_callbacks(hello)[0].definition.description == "Announced."


def test_a_decorated_function_stays_as_it_was() -> None:
    """It can be called, and tested, like before."""
    assert add(1, 2) == 3
    assert asyncio.run(drop_table("t")) == "t dropped"
    assert Calculator.square(3) == 9


def test_an_option_that_no_tool_has_is_refused() -> None:
    """A misspelt option is an error where it is written."""
    with pytest.raises(TypeError, match="retrun_direct"):
        tool(retrun_direct=True)  # type: ignore[call-overload]


# --- FunctionToolCallback ---


class Order(BaseModel):
    """An order of something."""

    item: str
    count: int = 1


def order(order: Order, context: ToolContext) -> str:
    return f"{context['who']} orders {order.count} {order.item}"


def test_a_whole_input_can_be_one_value(ask: Ask) -> None:
    """With an input type the callable gets one validated value."""
    ordering = FunctionToolCallback(order, input_type=Order)
    model = ScriptedModel(call("order", '{"item": "tea", "count": "2"}'), "done")
    ask(ChatClient.create(model).prompt("x").tools(ordering).tool_context(who="Ann"))

    assert results(model.prompts[1]) == ["Ann orders 2 tea"]
    assert list(ordering.definition.input_schema["properties"]) == ["item", "count"]
    assert ordering.definition.description == "An order of something."


def test_a_schema_can_be_given(ask: Ask) -> None:
    """The callable gets what the schema names, as it comes; what is required is checked."""
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

    told = results(model.prompts[1])
    assert told[0] == "[('city', 'Bern'), ('days', 2)]"
    assert "city: missing, but required" in told[1]
    assert offered(model.prompts[0])["forecast"].input_schema == schema


def test_a_result_can_be_converted(ask: Ask) -> None:
    """A converter makes text or a whole result, for the decorator and the callback alike."""

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


def test_a_converter_that_fails_fails_like_its_tool(ask: Ask) -> None:
    """The model is told, and the history stays whole."""

    def convert(value: Any) -> str:
        raise ValueError("cannot show that")

    callback = FunctionToolCallback(other_add, result_converter=convert)
    model = ScriptedModel(call("other_add", '{"a": 3}'), "done")
    ask(client_of(model, callback).prompt("x"))

    assert results(model.prompts[1]) == ["cannot show that"]


def test_a_tool_says_whether_it_is_strict() -> None:
    """The callback's word goes before the decorator's; nothing leaves it to the options."""

    @tool(strict=True)
    def exact() -> None: ...

    assert FunctionToolCallback(exact).definition.strict is True
    assert FunctionToolCallback(exact, strict=False).definition.strict is False
    assert FunctionToolCallback(add).definition.strict is None


def test_what_a_callback_is_told_goes_before_the_decorator() -> None:
    """Name, description and metadata can be given where the tool is used."""
    callback = FunctionToolCallback(
        rows, name="count_rows", description="Count.", metadata=ToolMetadata(return_direct=True)
    )

    assert (callback.definition.name, callback.definition.description) == ("count_rows", "Count.")
    assert callback.metadata == ToolMetadata(return_direct=True)
    assert repr(callback) == "FunctionToolCallback('count_rows')"


def test_a_tool_without_words_is_described_by_its_name() -> None:
    """A function without docstring is what its name says."""

    def getCurrentTime() -> str:  # noqa: N802 - the case is the point
        return ""

    assert tool_callbacks(getCurrentTime)[0].definition.description == "get current time"


def test_a_schema_is_computed_once() -> None:
    """However often a function is offered, its schema is the very same object."""
    first, second = FunctionToolCallback(add), FunctionToolCallback(add)

    assert first.definition.input_schema is second.definition.input_schema


def test_a_callback_can_be_tried_out() -> None:
    """Outside of any conversation it can be called with JSON, plain or async."""
    assert FunctionToolCallback(add).call('{"a": 1, "b": 2}') == "3"
    assert FunctionToolCallback(drop_table).call('{"table": "t"}') == "t dropped"
    ordering = FunctionToolCallback(order, input_type=Order)
    assert ordering.call('{"item": "tea"}', {"who": "Bob"}) == "Bob orders 1 tea"


# --- data ---


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_tools_can_be_data(ask: Ask, kind: str) -> None:
    """A definition from anywhere, and one executor that gets the call as the model made it."""
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
    made = call("ticket", '{"title": 3, unchecked', id="t1")
    model = ScriptedModel(made, "done")
    ask(client_of(model, callback).prompt("x").tool_context(tenant="acme"))

    assert seen == [(made, "acme")]
    assert results(model.prompts[1]) == ['{"ok":true}']
    assert offered(model.prompts[0])["ticket"] == callback.definition


def test_tools_that_are_data_have_metadata(ask: Ask) -> None:
    """They can return directly, and be given a time like others."""

    def execute(made: ToolCall, context: ToolContext) -> str:
        return f"{made.name} in {context.timeout} s"

    definition = ToolDefinition("final", "Be final.", {"type": "object", "properties": {}})
    metadata = ToolMetadata(return_direct=True, timeout=3.0)
    callback = DataToolCallback(definition, execute, metadata)

    assert ask(client_of(ScriptedModel(call("final")), callback).prompt("x")).text == (
        "final in 3.0 s"
    )
    assert DataToolCallback(definition, execute).metadata == ToolMetadata()


def test_a_strict_tool_has_arguments_that_can_be_enforced() -> None:
    """Free-form mappings cannot; the error names the tool and says what to do."""

    @tool(strict=True)
    def labels(values: dict[str, int]) -> None: ...

    with pytest.raises(ToolDefinitionError, match="'labels' has arguments that no provider"):
        tool_callbacks(labels)
