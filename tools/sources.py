"""Finds the tools in whatever an application passes to `.tools(...)`."""

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from chatclient.checks import misfit
from chatclient.driving import drive
from chatclient.errors import ToolDefinitionError
from chatclient.runtime import BLOCKING
from chatclient.tool import ToolCallback, ToolCallbackProvider, ToolDefinition, ToolMetadata
from chatclient.tools.callback import FunctionToolCallback
from chatclient.tools.decorator import ToolMark, is_marked, mark_of
from chatclient.tools.duplicates import without_duplicates
from chatclient.tools.naming import check_tool_name

ToolSource = Callable[..., Any] | ToolCallback | ToolCallbackProvider | str | Iterable[Any] | object
"""Functions, decorated or not; objects and modules with decorated functions; tool callbacks and
providers of them; names that the client's resolver knows; and collections of all these."""

Resolved = ToolCallback | ToolCallbackProvider | str

# What to write in place of what is no source, by the name of its type: not all are loaded here.
_MENDS = {
    "ChatClient": "; a client is a tool as client.as_tool(name, description)",
    "McpServer": "; put it into McpToolCallbackProvider(...)",
    "ToolDefinition": (
        "; say what runs it: DataToolCallback(definition, executor), or that it is done elsewhere:"
        " ExternalTool(definition)"
    ),
    "dict": "; a tool made of data is a DataToolCallback(ToolDefinition(...), executor)",
}

# Which attributes of a class are tools, found once per class.
_tools_of_class: "WeakKeyDictionary[type, tuple[tuple[str, ToolMark], ...]]" = WeakKeyDictionary()


def tool_callbacks(*sources: ToolSource) -> list[ToolCallback]:
    """Return the tools found in *sources*, in the order given and, within one, as defined.

    Raises:
        ToolDefinitionError: A source holds no tool, or a tool cannot be built.
        DuplicateToolError: Two tools have the same name.
    """
    callbacks: list[ToolCallback] = []
    for found in resolve_sources(sources):
        if isinstance(found, str):
            msg = f"{found!r} is a name; only a client with a resolver can find a tool by name"
            raise ToolDefinitionError(msg)
        if isinstance(found, ToolCallback):
            callbacks.append(found)
        else:
            callbacks.extend(_provided(found))
    return list(without_duplicates(callbacks, "error"))


def _provided(provider: ToolCallbackProvider) -> Iterable[ToolCallback]:
    """Return what a provider offers outside of any request."""
    if error := misfit(provider.tool_callbacks, 0):
        msg = f"{provider!r} offers tools for a request only; pass it to .tools(...)"
        raise ToolDefinitionError(msg) from error
    return offered_by(provider, drive(BLOCKING.invoke(provider.tool_callbacks)))


def offered_by(provider: ToolCallbackProvider, offered: Any) -> list[ToolCallback]:
    """Return what *provider* has *offered* as callbacks; None is nothing.

    Raises:
        ToolDefinitionError: Something of it is not a tool.
    """
    if offered is None:
        return []
    try:
        callbacks: list[Any] = list(offered)
        # Asking `isinstance` of a protocol takes 12 microseconds, and there may be a thousand.
        if all(hasattr(each, "definition") for each in callbacks):
            return callbacks
        return [found for each in callbacks for found in tool_callbacks(each)]
    except (ToolDefinitionError, TypeError) as error:
        msg = f"{provider!r} must return an iterable of tools: {error}"
        raise ToolDefinitionError(msg) from error


def resolve_sources(sources: Iterable[ToolSource]) -> list[Resolved]:
    """Return *sources* as callbacks, providers (not asked yet) and names."""
    resolved: list[Resolved] = []
    for source in sources:
        resolved.extend(_resolve(source))
    return resolved


def _resolve(source: Any) -> Sequence[Resolved]:
    if isinstance(source, str):
        return (source,)
    if isinstance(source, ToolCallback):
        return (_checked(source),)
    if isinstance(source, type):
        return _tools_of_attributes(source, _marked_attributes(source))
    if isinstance(source, ToolCallbackProvider):
        return (source,)
    if inspect.isroutine(source):
        return (FunctionToolCallback(source),)
    if isinstance(source, ModuleType):
        return _tools_of_module(source)
    if marked := _marked_attributes(type(source)):
        return _tools_of_attributes(source, marked)
    if callable(source):
        return (FunctionToolCallback(source),)
    if isinstance(source, Iterable) and not isinstance(source, Mapping):
        return resolve_sources(source)
    kind = type(source).__name__
    msg = (
        f"{source!r} is not a source of tools: it is neither a function nor a ToolCallback, and "
        f"{kind} has no method with @tool{_MENDS.get(kind) or _lacking(source)}"
    )
    raise ToolDefinitionError(msg)


def _checked(callback: ToolCallback) -> ToolCallback:
    """Return a callback, which may be the application's own, known to say what it is."""
    for name, kind in (("definition", ToolDefinition), ("metadata", ToolMetadata)):
        said = getattr(callback, name)
        if not isinstance(said, kind):
            msg = f"{callback!r} must have a {kind.__name__} as its {name}, not {said!r}"
            raise ToolDefinitionError(msg)
    check_tool_name(callback.definition.name)
    return callback


def _lacking(source: object) -> str:
    """Return what *source* lacks to be a `ToolCallback`, if it has something of one."""
    parts = ("definition", "metadata", "invoke")
    lacking = [name for name in parts if not hasattr(source, name)]
    return f"; a ToolCallback has {' and '.join(lacking)}, too" if len(lacking) < len(parts) else ""


def _marked_attributes(kind: type) -> tuple[tuple[str, ToolMark], ...]:
    known = _tools_of_class.get(kind)
    if known is None:
        known = _tools_of_class[kind] = tuple(_marks_in(kind).items())
    return known


def _marks_in(kind: type) -> dict[str, ToolMark]:
    """Return the marks of a class by the names of its attributes, its bases' first.

    An override without the decorator keeps the tool, an override with it has the last word, and
    None takes the tool away.
    """
    found: dict[str, ToolMark] = {}
    for cls in reversed(kind.__mro__):
        seen: set[int] = set()  # another name for the same function is no other tool
        for name, attribute in vars(cls).items():
            if (mark := mark_of(attribute)) and id(attribute) not in seen:
                found[name] = mark
                seen.add(id(attribute))
            elif attribute is None:
                found.pop(name, None)
    return found


def _tools_of_attributes(
    source: Any, marked: Iterable[tuple[str, ToolMark]]
) -> list[FunctionToolCallback]:
    callbacks: list[FunctionToolCallback] = []
    for attribute, mark in marked:
        function = getattr(source, attribute)
        if isinstance(source, type) and _needs_instance(source, attribute):
            msg = f"{source.__name__}.{attribute} is a method; pass {source.__name__}() instead"
            raise ToolDefinitionError(msg)
        callbacks.append(
            FunctionToolCallback(
                function,
                name=mark.name or _own_name(source, attribute),
                description=mark.description,
                metadata=_bound(mark.metadata, source),
                result_converter=mark.result_converter,
                strict=mark.strict,
            )
        )
    if not callbacks:
        name = source.__name__
        mend = f"FunctionToolCallback(function, input_type={name})"
        is_input = hasattr(source, "model_json_schema")  # elsewhere such a class is a tool
        hint = f"; as what a function takes it goes into {mend}" if is_input else ""
        raise ToolDefinitionError(f"{name} has no method with @tool{hint}")
    return callbacks


def _own_name(source: Any, attribute: str) -> str | None:
    """Return *attribute* where its function would go by the name of another one."""
    defined = inspect.getattr_static(source, attribute)
    return attribute if isinstance(defined, functools.partialmethod) else None


def _bound(metadata: ToolMetadata, source: Any) -> ToolMetadata:
    """Return *metadata* with the method of *source* that it names as compensation."""
    name = metadata.compensation
    if not isinstance(name, str):
        return metadata
    return replace(metadata, compensation=getattr(source, name, name))


def _needs_instance(kind: type, attribute: str) -> bool:
    return inspect.isfunction(inspect.getattr_static(kind, attribute))


def has_tools(module: ModuleType) -> bool:
    """Return whether *module* defines functions with `@tool`; imported ones do not count."""
    return next(_defined_tools(module), None) is not None


def _defined_tools(module: ModuleType) -> Iterator[Callable[..., Any]]:
    """Yield what has `@tool` in *module*, also where another decorator made it an object."""
    for value in vars(module).values():
        if callable(value) and is_marked(value) and not inspect.ismethod(value):
            function = inspect.unwrap(value)
            # Other objects do not say where they are from.
            if not inspect.isfunction(function) or function.__module__ == module.__name__:
                yield value


def _tools_of_module(module: ModuleType) -> list[FunctionToolCallback]:
    functions = {id(function): function for function in _defined_tools(module)}
    callbacks = [FunctionToolCallback(function) for function in functions.values()]
    if not callbacks:
        msg = f"module {module.__name__} has no function with @tool"
        raise ToolDefinitionError(msg)
    return callbacks
