"""The signature of a tool's function: reads, validates and binds what a model wrote."""

import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self, TypeAlias, TypeVar

import pydantic
from pydantic_core import ValidationError

from chatclient._internal.frozen import FrozenDict
from chatclient._internal.json import loads_exact
from chatclient._internal.json_repair import repair_json, replace_surrogates
from chatclient._internal.text import as_clause, error_text, shortened
from chatclient.chat.tool import ToolCallback, ToolContext, ToolExecution
from chatclient.errors import (
    ChatClientError,
    ToolArgumentError,
    ToolDefinitionError,
    ToolUsageError,
)
from chatclient.tools.function.argument_repair import NumberRewriter, repair_value
from chatclient.tools.function.parameters import (
    MISSING,
    PYDANTIC_ERRORS,
    Parameter,
    describe_callable,
)

Validate: TypeAlias = Callable[[str], dict[str, Any]]
"""Makes arguments by name from JSON text, or raises pydantic's `ValidationError`."""

MOST_LINES = 10
_MOST_CHARACTERS = 80


class ArgumentReader:
    """Reads the arguments of one tool.

    Valid arguments are read by *validate*. Only others get a second look: there, damage
    is repaired, and if something still does not fit, every problem is reported.

    Args:
        tool_name: For messages.
        validate: Reads arguments that need no mending.
        schema: What the arguments are, with `$defs` at the root.
        hidden: Parameters that the library fills in; a value from the model is ignored.
        wrapped: The one property that holds the input, if the schema was wrapped around it;
            the bare input is read as well.
    """

    __slots__ = ("_hidden", "_numbers", "_validate", "_wrapped", "schema", "tool_name")

    def __init__(
        self,
        tool_name: str,
        validate: Validate,
        schema: Mapping[str, Any],
        *,
        hidden: Iterable[str] = (),
        wrapped: str | None = None,
    ) -> None:
        self.tool_name = tool_name
        self._validate = validate
        self.schema = schema
        self._numbers = NumberRewriter(schema)
        self._hidden = frozenset(hidden)
        self._wrapped = wrapped

    def read(self, text: str) -> dict[str, Any]:
        """Return the arguments by name; blank text is an empty object.

        Raises:
            ToolArgumentError: They do not fit; the error lists all problems.
        """
        try:
            return self._validate(self._numbers.rewrite(text))
        except ValidationError:
            # Repaired only if they are not valid, so that valid arguments are never changed.
            name, bare = self.tool_name, self._wrapped is not None
            try:
                given = repair_value(self._input(_value_in(text, name, bare=bare)), self.schema)
                mended = json.dumps(given)
            except RecursionError as error:
                raise unfit(name, ["nested too deeply"]) from error
            try:
                return self._validate(mended)
            except ValidationError as error:
                known = self.schema.get("properties", {})
                raise unfit(name, problems(error, given, known)) from error
            except Exception as error:
                raise self._unchecked(error) from error
        except Exception as error:
            raise self._unchecked(error) from error

    def _unchecked(self, error: Exception) -> Exception:
        """Return the error for arguments whose validator raised something else than it should.

        The tool has not run, so this is no failure of the tool.
        """
        if isinstance(error, ChatClientError):
            return error
        detail = f"could not be checked: {type(error).__name__}: {error_text(error)}"
        return unfit(self.tool_name, [detail])

    def _input(self, value: Any) -> dict[str, Any]:
        if self._wrapped is not None and not (isinstance(value, dict) and self._wrapped in value):
            return {self._wrapped: value} if value != {} else {}
        given = _as_object(value, self.tool_name)
        return {key: item for key, item in given.items() if key not in self._hidden}


def read_arguments(callback: ToolCallback, arguments: str) -> Mapping[str, Any]:
    """Return the arguments of *callback* by name; plain JSON if it has no `read_arguments`.

    Raises:
        ToolArgumentError: The arguments do not fit.
    """
    read: Any = getattr(callback, "read_arguments", None)
    if read is None:
        schema = callback.definition.input_schema
        given: Mapping[str, Any] = NumberRewriter(schema).convert(
            object_in(arguments, callback.definition.name)
        )
        return given
    values: Mapping[str, Any] = read(arguments)
    return values


def own_schema(callback: ToolCallback) -> Mapping[str, Any]:
    """Return the schema of what *callback* takes, before it took the form that providers enforce.

    That form has no defaults, and knows nothing that may be left out.
    """
    schema: Mapping[str, Any] = getattr(callback, "own_schema", callback.definition.input_schema)
    return schema


def object_in(arguments: str, tool_name: str) -> dict[str, Any]:
    """Return the JSON object that a model wrote as the arguments of a tool; blank means `{}`.

    Raises:
        ToolArgumentError: There is none.
    """
    return _as_object(_value_in(arguments, tool_name), tool_name)


def _value_in(text: str, tool_name: str, *, bare: bool = False) -> Any:
    """Return the JSON that a model wrote, mended; *bare* if it may be a text and no object."""
    text = replace_surrogates(text)
    if not text.strip():
        return {}
    try:
        value = loads_exact(text)
    except ValueError as error:
        mended = repair_json(text)
        if mended is None:
            details = [f"not valid JSON: {error}; got {shortened(text, _MOST_CHARACTERS)}"]
            raise unfit(tool_name, details, malformed=True) from error
        value = loads_exact(mended)
    inner = repair_json(value) if isinstance(value, str) and not bare else None
    return value if inner is None else loads_exact(inner)


def _as_object(value: Any, tool_name: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise unfit(tool_name, [f"should be a JSON object; got {_shown(value)}"])
    return value


def unfit(tool_name: str, details: list[str], *, malformed: bool = False) -> ToolArgumentError:
    """Return the error of arguments that do not fit, with what is wrong with them line by line."""
    told = "".join(f"\n- {line}" for line in details)
    msg = f"The arguments for {tool_name} do not fit:{told}"
    return ToolArgumentError(msg, tool_name=tool_name, details=details, malformed=malformed)


# --- what to tell the model -----------------------------------------------------------------

_UNKNOWN = "unknown"
_MISSING = "missing, but required"
_SENTENCES = {
    "missing": _MISSING,
    "missing_argument": _MISSING,
    "extra_forbidden": _UNKNOWN,
    "unexpected_keyword_argument": _UNKNOWN,
}


def problems(
    error: ValidationError, given: Any, known: Iterable[str], *, whole: str = "arguments"
) -> list[str]:
    """Return one line for each place where something is wrong.

    Args:
        error: The error of pydantic.
        given: The arguments.
        known: The names that the outermost object may have.
        whole: The name of the outermost value.
    """
    said: dict[str, list[str]] = {}
    shown: dict[str, str] = {}
    for item in error.errors(include_url=False, include_context=False):
        path = "".join(_steps(tuple(item["loc"]), given))
        place = path.removeprefix(".") or whole
        sentence = _SENTENCES.get(item["type"])
        if sentence is None:
            sentence = as_clause(item["msg"].removeprefix("Value error, ").removeprefix("Input "))
            shown.setdefault(place, f"; got {_shown(item['input'])}")
        elif sentence == _UNKNOWN and len(item["loc"]) == 1:
            sentence = f"{_UNKNOWN}; known are {', '.join(known) or 'none'}"
        if sentence not in said.setdefault(place, []):
            said[place].append(sentence)
    lines = [
        f"{place}: {', or '.join(sentences)}{shown.get(place, '')}"
        for place, sentences in said.items()
    ]
    left = len(lines) - MOST_LINES
    return lines if left <= 0 else [*lines[:MOST_LINES], f"and {left} more of the kind"]


def _steps(location: tuple[int | str, ...], value: Any) -> Iterator[str]:
    for depth, step in enumerate(location):
        is_last = depth == len(location) - 1
        match value:
            case dict() if step in value or is_last:
                value = value.get(step)
                yield f".{step}"
            case list() if isinstance(step, int) and step < len(value):
                value = value[step]
                yield f"[{step}]"
            case list() if isinstance(step, int) and is_last:  # what a tuple lacks
                yield f"[{step}]"


def _shown(value: Any) -> str:
    return shortened(json.dumps(value, ensure_ascii=False, default=repr), _MOST_CHARACTERS)


T = TypeVar("T")


@dataclass(slots=True, eq=False)
class ToolSignature:
    """What a tool takes and whether it gives something back.

    Attributes:
        input_schema: The JSON Schema (2020-12) of the arguments, an object.
        description: The description in the docstring; empty without one.
        returns_nothing: Whether it is declared `-> None`.
    """

    input_schema: FrozenDict[str, Any]
    description: str
    returns_nothing: bool
    _reader: ArgumentReader = field(repr=False)
    _injected: "Injected" = field(repr=False)
    _positional: tuple[Parameter, ...] = field(default=(), repr=False)

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of what the model may give, in order."""
        return tuple(self.input_schema.get("properties", ()))

    @property
    def own_schema(self) -> Mapping[str, Any]:
        """The input schema with the marks of what is read as a `Decimal`."""
        return self._reader.schema

    def read(self, arguments: str) -> dict[str, Any]:
        """Return what the model gives, by name, without what the library fills in.

        Raises:
            ToolArgumentError: The arguments do not fit.
        """
        return self._reader.read(arguments)

    def bind(self, arguments: str, context: ToolContext) -> dict[str, Any]:
        """Return what to call the function with, by name.

        Parameters that the model left out and that have a default are not among it.

        Args:
            arguments: A JSON object as the model wrote it; blank means `{}`.
            context: Goes to the parameters that ask for it.

        Raises:
            ToolArgumentError: The arguments do not fit; message and details are for the model.
            ToolUsageError: The function wants the conversation's id and there is no conversation.
        """
        values = self._reader.read(arguments)
        for name in self._injected.contexts:
            values[name] = context
        for conversation in self._injected.conversations:
            self._inject_conversation(conversation, values, context.conversation_id)
        return values

    def prepare(
        self, function: Callable[..., T], arguments: str, context: ToolContext
    ) -> Callable[[], T]:
        """Return the call of *function* with what `bind` returns, ready to be made.

        Unlike `bind` alone, it also serves functions that take parameters by position only.
        """
        values = self.bind(arguments, context)
        if not self._positional:
            return functools.partial(function, **values)
        given = [each.name in values for each in self._positional]
        last = len(given) - given[::-1].index(True) if True in given else 0
        places = [values.pop(each.name, each.default) for each in self._positional[:last]]
        return functools.partial(function, *places, **values)

    def _inject_conversation(
        self, target: "ConversationParameter", values: dict[str, Any], conversation: str | None
    ) -> None:
        parameter = target.parameter
        if conversation is None and parameter.default is not MISSING:
            return
        if conversation is None and not parameter.admits_none:
            msg = (
                f"tool {self._reader.tool_name!r} needs the conversation's id for"
                f" {parameter.name!r}, but the request belongs to no conversation;"
                " give the request an id, or the parameter a default"
            )
            raise ToolUsageError(msg)
        try:
            values[parameter.name] = None if conversation is None else target.convert(conversation)
        except ValidationError as error:
            msg = (
                f"tool {self._reader.tool_name!r} takes the conversation's id as"
                f" {parameter.annotation!r} in {parameter.name!r}, and {conversation!r} is none;"
                " change the type or the id"
            )
            raise ToolUsageError(msg) from error


@dataclass(slots=True, eq=False)
class ConversationParameter:
    """A parameter for the conversation's id.

    Attributes:
        parameter: The parameter.
        convert: Returns an id as the declared type, or raises pydantic's `ValidationError`.
    """

    parameter: Parameter
    convert: Callable[[str], Any]

    @classmethod
    def of(cls, parameter: Parameter, place: str) -> Self:
        """Return *parameter* with the conversion to its type.

        Raises:
            ToolDefinitionError: No text can become a value of its type.
        """
        try:
            convert = pydantic.TypeAdapter(parameter.annotation).validate_python
        except PYDANTIC_ERRORS as error:
            raise _no_id(parameter, place) from error
        try:
            convert("x")
        except ValidationError as error:
            kinds = [each["type"] for each in error.errors(include_url=False)]
            if all(kind.endswith("_type") or kind in _REFUSES_TEXT for kind in kinds):
                raise _no_id(parameter, place) from error
        except Exception:  # noqa: BLE001, S110 - a validator of the application met no real id
            pass
        return cls(parameter, convert)


_REFUSES_TEXT = {"is_instance_of", "is_subclass_of", "none_required", "sequence_str"}
"""Errors of pydantic for any text; the others of the kind end with `_type`."""


def _no_id(parameter: Parameter, place: str) -> ToolDefinitionError:
    msg = (
        f"parameter {parameter.name!r} of {place} gets the conversation's id, a text, which cannot"
        f" become a {parameter.annotation!r}; use str, int, UUID or the like"
    )
    return ToolDefinitionError(msg)


@dataclass(slots=True, eq=False)
class Injected:
    """The parameters that the library fills in: by name with the context, or with its id."""

    contexts: tuple[str, ...]
    conversations: tuple[ConversationParameter, ...]

    @classmethod
    def of(cls, parameters: Iterable[Parameter], place: str) -> Self:
        """Return those of *parameters* that the model never sees.

        Args:
            parameters: The parameters of a function.
            place: The function, for messages.

        Raises:
            ToolDefinitionError: One of them has a type that the library has no value for.
        """
        parameters = tuple(parameters)
        return cls(
            tuple(each.name for each in parameters if each.role == "context"),
            tuple(
                ConversationParameter.of(each, place)
                for each in parameters
                if each.role == "memory_id"
            ),
        )

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all of them."""
        return (*self.contexts, *(each.parameter.name for each in self.conversations))


def compensation_name(tool: str) -> str:
    """Return the name of the compensation of *tool*, for errors and idempotency keys."""
    return f"the compensation of {tool}"


def wants_execution(compensation: Callable[..., Any]) -> bool:
    """Return whether a `ToolExecution` is the only parameter of *compensation*."""
    parameters = describe_callable(compensation).parameters
    return [each.annotation for each in parameters] == [ToolExecution]
