"""The input of a tool: its JSON Schema for the model, and reading the model's JSON.

Both come from the same place, a function's signature as a rule, once per tool; so what the schema
admits is also what binds.
"""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NotRequired

import pydantic

from chatclient._internal.frozen import deep_frozen
from chatclient._internal.json_schema import JsonSchema, complete_object_schema, strict_form
from chatclient.chat.tool import ToolContext
from chatclient.chat.tool_definition import check_tool_name, describe_name, sanitise_tool_name
from chatclient.errors import ToolDefinitionError
from chatclient.tools.function.adapters import (
    arguments_of,
    reason,
    schema_of,
    typed_dict,
    validator_of,
)
from chatclient.tools.function.argument_repair import public_schema, repair_value
from chatclient.tools.function.docstring import parse_docstring
from chatclient.tools.function.parameters import (
    MISSING,
    PYDANTIC_ERRORS,
    CallableDescription,
    Parameter,
    ToolMemoryId,
    ToolParam,
    bound_by_partial,
    describe_callable,
    returns_function,
    returns_nothing,
)
from chatclient.tools.function.schema_parts import misfits
from chatclient.tools.function.signature import (
    MOST_LINES,
    ArgumentReader,
    Injected,
    ToolSignature,
    Validate,
    compensation_name,
    unfit,
    wants_execution,
)

__all__ = [
    "ToolMemoryId",
    "ToolParam",
    "ToolSignature",
    "check_tool_name",
    "describe_name",
    "sanitise_tool_name",
    "signature_of",
    "signature_of_model",
    "signature_of_schema",
    "strict_form",
]


def signature_of(function: Callable[..., Any], *, name: str | None = None) -> ToolSignature:
    """Return the signature of a function, from its annotations, defaults and docstring.

    Whether the model must give a parameter is what `ToolParam` says, else whether `Field` or the
    function has a default, else whether its type admits None, which it then gets when it is left
    out. Its description comes from `ToolParam`, else `Field`, else a bare text next to the type,
    else the docstring.

    Args:
        function: A function, bound method, partial or callable object, plain or async.
        name: The tool's name, for messages; default: the function's.

    Raises:
        ToolDefinitionError: The function cannot be a tool; the error contains place and reason.
    """
    callee = describe_callable(function)
    for each in callee.parameters:
        if each.kind in _VARIADIC:
            msg = (
                f"{callee.place} takes {_VARIADIC[each.kind]}{each.name}, which no schema can"
                " describe; name its parameters, or give the tool an input schema of its own"
            )
            raise ToolDefinitionError(msg)
    if returns_function(callee.returns):
        msg = f"{callee.place} returns a function, which no model can call; return its result"
        raise ToolDefinitionError(msg)
    said = parse_docstring(callee.doc)
    arguments = tuple(each for each in callee.parameters if each.role == "argument")
    adapter, schema = arguments_of(arguments, said.parameters, callee.place)
    injected = Injected.of(callee.parameters, callee.place)
    reader = ArgumentReader(
        name or _name(function),
        validator_of(adapter),
        schema,
        hidden=injected.names,
    )
    return ToolSignature(
        deep_frozen(public_schema(schema)),
        said.summary,
        returns_nothing(callee.returns),
        reader,
        injected,
        _by_position(callee),
    )


def signature_of_model(
    input_type: Any, function: Callable[..., Any] | None = None, *, name: str | None = None
) -> ToolSignature:
    """Return the signature of a tool whose input is one value of *input_type*.

    The function gets the value as its first parameter. A model, dataclass, `TypedDict` or mapping
    is the arguments; any other type, such as `str` or a list, becomes their only property, named
    like the parameter, and may also come bare. A second parameter without annotation is taken for
    the `ToolContext`.

    Args:
        input_type: Any type that pydantic knows.
        function: What will be called; without it, `bind` names the value `input`.
        name: The tool's name, for messages; default: the function's.

    Raises:
        ToolDefinitionError: The type has no schema, or the function does not take one value.
    """
    callee = describe_callable(function) if function is not None else _ANYTHING
    target, injected = _one_value(callee)
    said = parse_docstring(callee.doc)
    parameter = Parameter(target.name, target.kind, input_type)
    schema, read, wrapped = _input_parameter(parameter, said.parameters, callee.place)
    described = schema.pop("description", "")
    return ToolSignature(
        deep_frozen(public_schema(schema)),
        said.summary or described,
        returns_nothing(callee.returns),
        ArgumentReader(name or _name(function), read, schema, wrapped=wrapped),
        injected,
        _by_position(callee),
    )


def signature_of_schema(
    schema: Mapping[str, Any],
    function: Callable[..., Any] | None = None,
    *,
    name: str | None = None,
    check: bool = True,
) -> ToolSignature:
    """Return the signature of a tool with its own JSON Schema.

    The properties are passed by name, repaired and checked against the schema.

    Args:
        schema: The JSON Schema of an object; `type` and `properties` may be left out.
        function: What will be called; its `ToolContext` parameters are filled in.
        name: The tool's name, for messages; default: the function's.
        check: Whether values are checked against the schema; their names always are.

    Raises:
        ToolDefinitionError: The schema is not that of an object, or has properties that the
            function does not take.
        WrongTypeError: The schema is no mapping.
    """
    complete = dict(complete_object_schema(schema))
    callee = describe_callable(function) if function is not None else _ANYTHING
    injected = Injected.of(callee.parameters, callee.place)
    bound = set(bound_by_partial(function))
    hidden = {*injected.names, *(bound - set(complete["properties"]))}
    takes = _keywords(callee) if function is not None else None
    validate = _by_name(complete, takes, {*bound, *hidden}, callee.place)
    tool_name = name or _name(function)
    required = [each for each in complete.get("required", ()) if each not in hidden]
    checked = {**complete, "required": required}

    def read(text: str) -> dict[str, Any]:
        values = repair_value(validate(text), complete)
        given = {key: item for key, item in values.items() if key not in hidden}
        if check and (problems := misfits(given, checked)):
            raise unfit(tool_name, problems[:MOST_LINES])
        return given

    return ToolSignature(
        deep_frozen(complete),
        parse_docstring(callee.doc).summary,
        returns_nothing(callee.returns),
        ArgumentReader(tool_name, read, complete, hidden=hidden),
        injected,
        _by_position(callee),
    )


# --- parts ----------------------------------------------------------------------------------

_ANYTHING = CallableDescription("the tool", None, (Parameter("input"),), MISSING)
_VARIADIC = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}


def _name(function: Callable[..., Any] | None) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    return "the tool" if function is None else getattr(function, "__name__", "the tool")


def _keywords(callee: CallableDescription) -> set[str] | None:
    """Return the names that a callable takes from the model; None when it takes any."""
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in callee.parameters):
        return None
    variadic = inspect.Parameter.VAR_POSITIONAL
    return {e.name for e in callee.parameters if e.role == "argument" and e.kind is not variadic}


def _by_name(schema: JsonSchema, takes: set[str] | None, others: set[str], place: str) -> Validate:
    """Return what reads an object whose properties are passed by name, as they come.

    Args:
        schema: The object's.
        takes: The names that the function takes from the model; None when it takes any.
        others: The names of parameters that the model does not give.
        place: The function, for messages.

    Raises:
        ToolDefinitionError: The schema has properties that the function does not take.
    """
    required = dict.fromkeys(schema.get("required", ()))
    fields = {key: Any if key in required else NotRequired[Any] for key in schema["properties"]}
    fields.update(dict.fromkeys(required, Any))
    closed = schema.get("additionalProperties") is False and "patternProperties" not in schema
    if takes is not None:
        if strange := [key for key in fields if key not in takes | others]:
            msg = f"the input schema has {strange}, which {place} does not take"
            raise ToolDefinitionError(msg)
        if not closed:
            fields = {**dict.fromkeys(takes, NotRequired[Any]), **fields}
    forbids = closed or takes is not None
    return typed_dict(fields, extra="forbid" if forbids else "allow").validator.validate_json


def _by_position(callee: CallableDescription) -> tuple[Parameter, ...]:
    return tuple(
        each for each in callee.parameters if each.kind is inspect.Parameter.POSITIONAL_ONLY
    )


def _one_value(callee: CallableDescription) -> tuple[Parameter, Injected]:
    """Return the parameter for the input, and those that the library fills in."""
    takes = [
        each for each in callee.parameters if each.role == "argument" and each.kind not in _VARIADIC
    ]
    injected = [each for each in callee.parameters if each.role != "argument"]
    unclear = [each for each in takes[1:] if each.default is MISSING]
    if len(unclear) == 1 and unclear[0].annotation is MISSING and not injected:
        second = unclear.pop()
        injected.append(Parameter(second.name, second.kind, ToolContext))
    if not takes or unclear:
        msg = (
            f"{callee.place} should take the whole input as its one parameter, and a ToolContext"
            " if it wants one; leave input_type out to give it each value by name"
        )
        raise ToolDefinitionError(msg)
    return takes[0], Injected.of(injected, callee.place)


def _input_parameter(
    parameter: Parameter, texts: Mapping[str, str], place: str
) -> tuple[JsonSchema, Validate, str | None]:
    """Return the schema of one value as all arguments, its reader, and its name if it has one."""
    try:
        adapter: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(parameter.annotation)
        schema = schema_of(adapter)
    except PYDANTIC_ERRORS as error:
        msg = f"{place} cannot take {parameter.annotation!r} as its input: {reason(error)}"
        raise ToolDefinitionError(msg) from error
    if schema.get("type") == "object":
        validate, name = validator_of(adapter), parameter.name
        return {"type": "object", "properties": {}, **schema}, lambda x: {name: validate(x)}, None
    wrapper, schema = arguments_of((parameter,), texts, place)
    return schema, validator_of(wrapper), parameter.name


def check_compensation(name: str, parameters: Sequence[str], compensation: Any) -> None:
    """Check that *compensation* can undo calls of the tool *name*.

    Args:
        name: The name of the tool.
        parameters: The names of its parameters.
        compensation: The compensation in its metadata.

    Raises:
        ToolDefinitionError: It is not callable, or needs parameters that the tool does not have.
    """
    if not callable(compensation):
        msg = f"the compensation of tool {name!r} is {compensation!r}, which cannot be called"
        raise ToolDefinitionError(msg)
    try:
        alone = wants_execution(compensation)
    except Exception as error:
        msg = f"the parameters of the compensation of tool {name!r} cannot be read: {error}"
        raise ToolDefinitionError(msg) from error
    if alone:
        return
    schema = signature_of(compensation, name=compensation_name(name)).input_schema
    if missing := [each for each in schema.get("required", ()) if each not in parameters]:
        msg = (
            f"the compensation of tool {name!r} needs {missing}, which the tool does not get; it "
            f"takes some of {list(parameters)}, or one ToolExecution"
        )
        raise ToolDefinitionError(msg)
