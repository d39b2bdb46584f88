"""Tool resolvers, and a registry of modules and packages."""

import asyncio
import sys
import threading
import types
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from chatclient import ChatClient, ChatOptions, Prompt, tool
from chatclient.errors import DuplicateToolError, ToolDefinitionError, ToolUsageError
from chatclient.testing import Ask, ScriptedModel, call
from chatclient.tools import (
    DelegatingToolCallbackResolver,
    StaticToolCallbackResolver,
    ToolCallback,
    ToolCallbackResolver,
    ToolRegistry,
    tool_callbacks,
)
from tests.modes.test_tool_calling import client_of, results


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
async def greet(name: str) -> str:
    """Greet a person."""
    return f"Hello {name}"


@tool(return_direct=True)
def direct() -> str:
    """Answer directly."""
    return "straight"


ADD = call("add", '{"a": 1, "b": 2}')

FILES = {
    "__init__.py": "from .weather import forecast\nfrom chatclient import tool\n"
    "@tool\ndef about() -> str:\n    return 'a package'\n",
    "weather.py": "from chatclient import tool\n"
    "@tool\ndef forecast(city: str) -> str:\n    return f'sunny in {city}'\n",
    "helpers.py": "def helper() -> None: ...\n",
    "deep/__init__.py": "",
    "deep/money.py": "from chatclient import tool\nfrom ..weather import forecast\n"
    "@tool\nasync def convert(amount: int) -> int:\n    return 2 * amount\n",
}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    """Make a package with tools in some of its modules."""
    for path, text in FILES.items():
        file = tmp_path / "toolbox" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield import_module("toolbox")
    for name in [name for name in sys.modules if name.split(".")[0] == "toolbox"]:
        del sys.modules[name]


def names(registry: ToolRegistry) -> list[str]:
    return sorted(callback.definition.name for callback in registry.tool_callbacks())


def offered(prompt: Prompt) -> list[str]:
    return [callback.definition.name for callback in prompt.options.tool_callbacks or ()]


def known_to(model: ScriptedModel, resolver: ToolCallbackResolver) -> ChatClient:
    return ChatClient.builder(model).tool_callback_resolver(resolver).build()


# --- packages and modules ---


@pytest.mark.feature("resolver-boot-default-resolver-over")
def test_register_package(ask: Ask, package: types.ModuleType) -> None:
    """Each tool is registered where it is defined, not where it is imported."""
    registry = ToolRegistry(package)
    assert names(registry) == ["about", "convert", "forecast"]

    model = ScriptedModel(
        [call("forecast", '{"city": "Bern"}'), call("convert", '{"amount": 2}')], "done"
    )
    ask(known_to(model, registry).prompt("x").tools("forecast", "convert"))
    assert results(model.prompts[1]) == ["sunny in Bern", "4"]


def test_register_module(package: types.ModuleType) -> None:
    """Only tools defined in the module are registered."""
    assert names(ToolRegistry(import_module("toolbox.deep.money"))) == ["convert"]
    assert names(ToolRegistry(import_module("toolbox.deep"))) == ["convert"]


def test_module_without_tools(package: types.ModuleType) -> None:
    """The error names the module or package."""
    with pytest.raises(ToolDefinitionError, match=r"module toolbox\.helpers has no function"):
        ToolRegistry(import_module("toolbox.helpers"))
    bare = types.ModuleType("bare")
    bare.__path__ = []
    with pytest.raises(ToolDefinitionError, match="module bare has no function"):
        ToolRegistry(bare)


# --- adding and removing ---


@pytest.mark.feature("resolver-boot-default-resolver-over")
def test_register_and_unregister(ask: Ask) -> None:
    """Changes apply also to clients built before."""
    registry = ToolRegistry()
    model = ScriptedModel("one", "two", "three")
    client = ChatClient.builder(model).default_tools(registry).build()
    ask(client.prompt("x"))
    registry.register(add, [greet])
    ask(client.prompt("x"))
    registry.unregister("add")
    registry.unregister("nobody")
    ask(client.prompt("x"))

    assert [offered(prompt) for prompt in model.prompts] == [[], ["add", "greet"], ["greet"]]
    assert registry.resolve("add") is None
    assert registry.resolve("greet") is not None


def test_duplicate_registration() -> None:
    """A duplicate is rejected, and nothing of its batch is added."""
    registry = ToolRegistry(add)
    with pytest.raises(DuplicateToolError) as caught:
        registry.register(greet, add)

    assert caught.value.tool_names == ("add",)
    assert names(registry) == ["add"]
    registry.unregister("add")
    registry.register(add)
    assert names(registry) == ["add"]


@pytest.mark.feature("resolver-boot-default-resolver-over")
def test_registry_is_thread_safe() -> None:
    """Concurrent registrations are complete, and one of two duplicates wins."""
    registry = ToolRegistry()
    refused: list[Exception] = []
    start = threading.Barrier(8)

    def register(n: int) -> None:
        start.wait()
        for each in range(20):
            try:
                registry.register(tool(name=f"tool_{(n // 2) * 20 + each}")(lambda: None))
            except DuplicateToolError as error:
                refused.append(error)

    threads = [threading.Thread(target=register, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert (len(names(registry)), len(refused)) == (80, 80)


# --- by name ---


@pytest.mark.feature("request-tools-name")
def test_tool_names(ask: Ask) -> None:
    """Names are resolved in requests, client defaults and options."""
    resolver = StaticToolCallbackResolver(add, greet, direct)
    requests: list[Any] = [
        lambda client: client.prompt("x").tools("add", greet),
        lambda client: client.mutate().default_tools("add", greet).build().prompt("x"),
        lambda client: client.prompt("x").tools(greet).options(tool_names=["add"]),
        lambda client: client.prompt("x").options(ChatOptions(tool_names=("greet", "add"))),
        lambda client: client.prompt(Prompt("x", ChatOptions(tool_names=("add", "greet")))),
    ]
    for request in requests:
        model = ScriptedModel(ADD, "done")
        ask(request(known_to(model, resolver)))
        assert sorted(offered(model.prompts[0])) == ["add", "greet"]
        assert results(model.prompts[1]) == ["3"]


@pytest.mark.feature("refused-tool-names-unknown")
def test_unknown_tool_name(ask: Ask) -> None:
    """The error names the tool and the resolver."""
    model = ScriptedModel("never")
    with pytest.raises(ToolDefinitionError, match=r"'nobody'.*StaticToolCallbackResolver\(add\)"):
        ask(known_to(model, StaticToolCallbackResolver(add)).prompt("x").tools("nobody"))
    with pytest.raises(ToolDefinitionError, match="none: give the tool itself, or set one"):
        ask(ChatClient.create(model).prompt("x").options(tool_names=["add"]))
    assert model.prompts == []


def other_add(a: int) -> int:
    return a


twin = tool(name="add")(other_add)


def test_repeated_tool(ask: Ask) -> None:
    """A tool given twice is offered once; another with its name is a duplicate."""
    model = ScriptedModel("hi")
    client = known_to(model, StaticToolCallbackResolver(add))
    ask(client.prompt("x").tools("add", add, "add"))

    assert offered(model.prompts[0]) == ["add"]
    with pytest.raises(DuplicateToolError):
        ask(client.prompt("x").tools("add", twin))


@pytest.mark.feature("resolver-static-tool-callback-resolver")
def test_static_resolver_duplicates() -> None:
    """Duplicate names are rejected."""
    with pytest.raises(DuplicateToolError):
        StaticToolCallbackResolver(add, [twin])


def test_module_that_registers_its_tools(
    package: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Modules may register tools while the registry imports them."""
    registry = ToolRegistry()
    monkeypatch.setattr(package, "registry", registry, raising=False)
    path = Path(next(iter(package.__path__)), "own.py")
    path.write_text(
        "from toolbox import registry\nfrom chatclient import tool\n"
        "def _made():\n    @tool\n    def made() -> str:\n        return 'made'\n"
        "    return made\nregistry.register(_made())\n"
        "@tool\ndef own() -> str:\n    return 'own'\n"
    )
    thread = threading.Thread(target=registry.register, args=(package,), daemon=True)
    thread.start()
    thread.join(10)

    assert not thread.is_alive()
    assert names(registry) == ["about", "convert", "forecast", "made", "own"]


def test_main_module_is_not_imported(package: types.ModuleType) -> None:
    """`__main__` of a package is not imported."""
    path = Path(next(iter(package.__path__)), "__main__.py")
    path.write_text("raise SystemExit('run')\n")

    assert names(ToolRegistry(package)) == ["about", "convert", "forecast"]


@pytest.mark.feature(
    "resolver-tool-callback-resolver", "resolver-delegating-tool-callback-resolver"
)
def test_delegating_resolver(ask: Ask) -> None:
    """The first resolver that knows the name is used."""

    @tool(name="add")
    def other_add(a: int, b: int) -> str:
        return "other"

    resolved: list[str] = []

    class Lazy:
        def resolve(self, name: str, /) -> ToolCallback | None:
            resolved.append(name)
            return StaticToolCallbackResolver(other_add, greet).resolve(name)

    resolver = DelegatingToolCallbackResolver(StaticToolCallbackResolver(add), Lazy())
    model = ScriptedModel([ADD, call("greet", '{"name": "Ann"}')], "done")
    ask(known_to(model, resolver).prompt("x").tools("add", "greet"))

    assert results(model.prompts[1]) == ["3", "Hello Ann"]
    assert resolved == ["greet"]
    assert resolver.resolve("nobody") is None


class Remote:
    """A resolver that waits for its tools."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    async def resolve(self, name: str, /) -> Any:
        await asyncio.sleep(0)
        return self.answer if name == "greet" else None


@pytest.mark.feature("resolver-tool-callback-resolver")
@pytest.mark.parametrize("first", [Remote(None), StaticToolCallbackResolver(add)])
def test_async_resolver(ask: Ask, first: ToolCallbackResolver) -> None:
    """It is awaited by the client and during a turn."""
    (greeting,) = tool_callbacks(greet)
    resolver = DelegatingToolCallbackResolver(first, Remote(greeting), Remote(None))
    model = ScriptedModel(call("greet", '{"name": "Ada"}'), "hello")
    ask(known_to(model, resolver).prompt("x").tools("greet"))
    lone = ScriptedModel([call("greet", '{"name": "Bo"}'), call("nobody")], "hello")
    ask(client_of(lone, resolver=resolver).prompt("x"))

    assert results(model.prompts[1]) == ["Hello Ada"]
    assert results(lone.prompts[1]) == [
        "Hello Bo", "There is no tool 'nobody'; no tools are available",
    ]  # fmt: skip


def test_resolver_with_wrong_result(ask: Ask) -> None:
    """The error names the resolver and is not sent to the model."""
    with pytest.raises(ToolUsageError, match=r"Remote.* returned 7 for 'greet'; it must return"):
        ask(known_to(ScriptedModel("hi"), Remote(7)).prompt("x").tools("greet"))
    with pytest.raises(ToolUsageError, match=r"Remote.* returned 7 for 'greet'; it must return"):
        ask(client_of(ScriptedModel(call("greet")), resolver=Remote(7)).prompt("x"))


def test_registry_rejects_names() -> None:
    """A registry accepts tools, not names."""
    with pytest.raises(ToolDefinitionError, match="only a client with a resolver"):
        ToolRegistry("add")


# --- additional tools of a manager ---


def test_resolved_tool_keeps_its_metadata(ask: Ask) -> None:
    """It returns directly or runs exclusively like an offered tool."""
    model = ScriptedModel(call("direct"), "never")
    client = client_of(model, add, resolver=ToolRegistry(direct))

    assert ask(client.prompt("x")).text == "straight"
    assert offered(model.prompts[0]) == ["add"]


def test_failing_resolver(ask: Ask) -> None:
    """The model gets the error; parallel calls are answered."""

    class Broken:
        def resolve(self, name: str, /) -> ToolCallback | None:
            raise LookupError("the catalogue is closed")

    model = ScriptedModel([ADD, call("other")], "done")
    ask(client_of(model, add, resolver=Broken()).prompt("x"))

    assert results(model.prompts[1]) == ["3", "the catalogue is closed"]
