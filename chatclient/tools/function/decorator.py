"""`@tool`: marks a function or method as a tool."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, NoReturn, TypeVar, overload

from chatclient._internal.frozen import EMPTY
from chatclient.chat.tool import Effect, ReturnDirect, ToolMetadata
from chatclient.chat.tool_definition import check_provider_options
from chatclient.errors import ToolDefinitionError, WrongTypeError
from chatclient.tools.function.result import ResultConverter, check_converter

F = TypeVar("F", bound=Callable[..., Any])

_MARK = "__chatclient_tool__"
PLAIN = ToolMetadata()

_OPTIONS = (
    *("name", "description", "result_converter", "strict", "provider_options"),
    *(field.name for field in fields(ToolMetadata)),
)
_APPROVAL = (
    "@tool(confirm=True) asks for approval of each call, and"
    " ToolCallingManager(interceptors=[ToolApproval()]) of all calls with"
    ' effect="write", which is the default'
)
_SCHEMA = "a tool with a schema of its own is a FunctionToolCallback(function, input_schema=...)"
_ELSEWHERE = {
    "title": '@tool(provider_options={"mcp": {"title": ...}}) is the title that MCP clients get',
    **dict.fromkeys(
        ("approval_mode", "needs_approval", "requires_approval", "requires_confirmation"), _APPROVAL
    ),
    **dict.fromkeys(("args_schema", "input_schema", "parameters", "schema"), _SCHEMA),
}


def _refuse(name: str, /, *_args: object, **_kwargs: object) -> NoReturn:
    msg = (
        f"@tool leaves a function as it is, without .{name}(): call it, function(...); as a model"
        " does, FunctionToolCallback(function).call(arguments), with JSON"
    )
    raise WrongTypeError(msg)


# Functions get them as attributes: a function cannot explain which attributes it does not have.
_METHODS = {
    name: partial(_refuse, name) for name in ("ainvoke", "arun", "call", "execute", "invoke", "run")
}


@dataclass(frozen=True, slots=True, eq=False)
class ToolMark:
    """The arguments of `@tool`; None for the default of the function."""

    name: str | None = None
    description: str | None = None
    metadata: ToolMetadata = PLAIN
    result_converter: ResultConverter | None = None
    strict: bool | None = None
    provider_options: Mapping[str, Mapping[str, Any]] = EMPTY


@overload
def tool(function: F, /) -> F: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    return_direct: ReturnDirect = False,
    result_converter: ResultConverter | None = None,
    timeout: float | None = None,
    sequential: bool = False,
    concurrency_group: str | None = None,
    exclusive: bool = False,
    effect: Effect = "write",
    confirm: bool = False,
    background: bool = False,
    always_visible: bool = False,
    compensation: Callable[..., Any] | str | None = None,
    strict: bool | None = None,
    provider_options: Mapping[str, Mapping[str, Any]] = EMPTY,
) -> Callable[[F], F]: ...


def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    result_converter: ResultConverter | None = None,
    strict: bool | None = None,
    provider_options: Mapping[str, Mapping[str, Any]] = EMPTY,
    **metadata: Any,
) -> Any:
    """Mark a function or method as a tool; it stays callable as before.

    Works bare or with arguments, on plain and `async` functions, on methods (also private, static
    and class methods, above or below those decorators), and is inherited: a method that overrides
    a tool is one.

    Args:
        function: The function, when used without parentheses.
        name: What the model calls it; default: the function's name.
        description: What it is for; default: the docstring's summary, else the name in words.
        result_converter: Makes the result a text for the model; default: strings as they are,
            everything else as JSON.
        strict: Whether the provider enforces the schema; default: as in the model's options.
        provider_options: More fields for single providers; see `ToolDefinition`.
        **metadata: How it is run: `return_direct`, `timeout`, `sequential`,
            `concurrency_group`, `exclusive`, `effect`, `confirm`, `background`, `always_visible`,
            `compensation`; see `ToolMetadata`.

    Raises:
        ToolDefinitionError: There is no function, or it is a tool already, or its result converter
            is no plain function of one value.
        UsageError: One of the values is not a known one.
        WrongTypeError: There is no option of that name.
    """
    if result_converter is not None:
        check_converter(result_converter)
    _check_names(metadata)
    check_provider_options(provider_options, "@tool" if name is None else f"tool {name!r}")
    mark = ToolMark(
        name, description, ToolMetadata(**metadata), result_converter, strict, provider_options
    )

    def decorate(target: F) -> F:
        # A static or class method carries the mark on the function inside.
        function = getattr(target, "__func__", target)
        _check(function, mark)
        try:
            setattr(function, _MARK, mark)
            for method, refuse in _METHODS.items():
                if not hasattr(function, method):
                    setattr(function, method, refuse)
        except (AttributeError, TypeError) as error:
            msg = f"@tool cannot mark {function!r}; make a tool of it: FunctionToolCallback(...)"
            raise ToolDefinitionError(msg) from error
        return target

    return decorate if function is None else decorate(function)


def _check_names(given: Iterable[str]) -> None:
    """Check that all options are known, with hints for options of other frameworks.

    Raises:
        WrongTypeError: One of them is not.
    """
    for name in given:
        if name not in _OPTIONS:
            hint = _ELSEWHERE.get(name, f"its options are {', '.join(_OPTIONS)}")
            msg = f"@tool has no option {name!r}; {hint}"
            raise WrongTypeError(msg)


def _check(function: Any, mark: ToolMark) -> None:
    # A partialmethod becomes a function in its class, a property does not.
    is_method = hasattr(function, "__get__") and not isinstance(function, property)
    if not callable(function) and not is_method:
        msg = (
            f"@tool marks a function, not {function!r}; a name goes into @tool(name=...), and what"
            " it is for into @tool(description=...)"
        )
        raise ToolDefinitionError(msg)
    before = mark_of(function) if is_marked(function) else None
    # What functools.wraps makes has the mark of the function inside.
    if before not in (None, mark) and before is not mark_of(getattr(function, "__wrapped__", None)):
        name = getattr(function, "__name__", repr(function))
        other = mark.name or "other"
        msg = (
            f"{name} is a tool already, and would lose its first name; make another tool of it"
            f" with FunctionToolCallback({name}, name={other!r}, description=...)"
        )
        raise ToolDefinitionError(msg)


def is_marked(target: object) -> bool:
    """Return whether `@tool` was applied to *target* itself, a function or any other object."""
    # Statically: a module may hold objects that do not like to be asked for an attribute.
    mark = inspect.getattr_static(target, _MARK, None)
    return mark is not None and inspect.getattr_static(type(target), _MARK, None) is None


def mark_of(target: object) -> ToolMark | None:
    """Return the mark of `@tool` on a function, method or static method, or None."""
    try:
        mark = getattr(getattr(target, "__func__", target), _MARK, None)
    except Exception:  # noqa: BLE001 - such as that of a proxy without a target
        return None
    return mark if isinstance(mark, ToolMark) else None  # some objects have any attribute
