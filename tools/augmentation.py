"""Tools that take more from the model than they are told: the rest goes to the application."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import count
from typing import Any, Generic, TypeVar, get_origin

from pydantic import TypeAdapter

from chatclient.checks import check_callable
from chatclient.errors import ToolDefinitionError
from chatclient.json import dumps
from chatclient.schemas import strict_form
from chatclient.tool import ToolCallback, ToolContext, ToolDefinition, ToolMetadata, ToolResult
from chatclient.tools.arguments import PYDANTIC_ERRORS, reason
from chatclient.tools.binding import ArgumentReader, object_in, own_schema, read_arguments
from chatclient.tools.generation import schema_of
from chatclient.tools.sources import ToolSource, tool_callbacks
from chatclient.values import deep_frozen

M = TypeVar("M")


@dataclass(frozen=True, slots=True)
class AugmentedArguments(Generic[M]):
    """What the model said beside the tool's own arguments.

    Attributes:
        definition: The tool, as the model saw it.
        arguments: Everything that the model wrote, as JSON.
        extra: The additional arguments.
    """

    definition: ToolDefinition
    arguments: str
    extra: M


_EXTRA = "extra"

Consumer = Callable[[AugmentedArguments[M]], Any]
"""Takes the additional arguments before the tool runs; plain or asynchronous."""


class AugmentedToolCallback(Generic[M]):
    """A tool with additional arguments, handed to a consumer and not to the tool.

    Useful for a model's reasons, its confidence, a line for the user to read meanwhile. How the
    tool is to be run, such as that it returns directly, stays as it is.

    Args:
        delegate: The tool.
        arguments: A pydantic model, dataclass or `TypedDict` of the additional arguments.
        consumer: Takes them before the tool runs.
        keep: Whether the tool gets them as well.

    Raises:
        ToolDefinitionError: *arguments* is no such class or has no fields, or the tool has an
            argument of that name, or is strict and no provider can enforce the fields.
        WrongTypeError: The consumer cannot be called.
    """

    def __init__(
        self,
        delegate: ToolCallback,
        arguments: type[M],
        consumer: Consumer[M] | None = None,
        *,
        keep: bool = False,
    ) -> None:
        if consumer is not None:
            check_callable("the consumer of additional arguments", consumer, takes=("event",))
        self.delegate = delegate
        self._consumer = consumer
        self._keep = keep
        adapter, schema = _described(arguments)
        self.definition = _augmented(delegate.definition, arguments, schema)
        own = delegate.definition.input_schema.get("properties", {})
        self._names = frozenset(self.definition.input_schema["properties"]) - frozenset(own)
        validate = adapter.validator.validate_json
        self._reader = ArgumentReader(
            self.definition.name, lambda text: {_EXTRA: validate(text)}, schema
        )

    @property
    def metadata(self) -> ToolMetadata:
        """How the tool is to be run."""
        return self.delegate.metadata

    @property
    def own_schema(self) -> Mapping[str, Any]:
        """The schema of the tool's own arguments; see `FunctionToolCallback.own_schema`."""
        return own_schema(self.delegate)

    async def invoke(self, arguments: str, context: ToolContext) -> ToolResult:
        """Hand the additional arguments to the consumer, then run the tool."""
        given = object_in(arguments, self.definition.name)
        extra = self._extra(given)
        if self._consumer is not None:
            event = AugmentedArguments(self.definition, arguments, extra)
            await context.runtime.invoke(self._consumer, event)
        return await self.delegate.invoke(self._passed_on(given), context)

    def read_arguments(self, arguments: str) -> Mapping[str, Any]:
        """Return what the tool would be run with, by name, and the additional arguments.

        Raises:
            ToolArgumentError: They do not fit.
        """
        given = object_in(arguments, self.definition.name)
        extra = self._extra(given)
        return {**_by_name(extra), **read_arguments(self.delegate, self._passed_on(given))}

    def _passed_on(self, given: Mapping[str, Any]) -> str:
        """Return the arguments that the tool itself gets."""
        if not self._keep:
            given = {key: value for key, value in given.items() if key not in self._names}
        return dumps(given).decode()

    def _extra(self, given: Mapping[str, Any]) -> M:
        values = {key: value for key, value in given.items() if key in self._names}
        extra: M = self._reader.read(dumps(values).decode())[_EXTRA]
        return extra


def _described(arguments: type[M]) -> tuple[TypeAdapter[M], dict[str, Any]]:
    """Return what reads the additional arguments, and their schema."""
    wanted = "additional arguments must be a pydantic model, a dataclass or a TypedDict"
    if not isinstance(get_origin(arguments) or arguments, type):  # an object of such a class, say
        msg = f"{wanted}, not {arguments!r}"
        raise ToolDefinitionError(msg)
    try:
        adapter = TypeAdapter(arguments)
        return adapter, schema_of(adapter)
    except PYDANTIC_ERRORS as error:
        msg = f"{wanted}, not {arguments!r}: {reason(error)}"
        raise ToolDefinitionError(msg) from error


def _by_name(extra: Any) -> dict[str, Any]:
    if is_dataclass(extra):
        return {each.name: getattr(extra, each.name) for each in fields(extra)}
    return dict(extra)  # which models and mappings can be made


def _augmented(
    definition: ToolDefinition, arguments: type[Any], added: dict[str, Any]
) -> ToolDefinition:
    schema = dict(definition.input_schema)
    more = _renamed(added, schema.get("$defs", {}))
    extra: dict[str, Any] = more.get("properties", {})
    own: Mapping[str, Any] = schema.get("properties", {})
    if not extra:
        msg = f"{arguments.__name__} has no fields to add to tool {definition.name!r}"
        raise ToolDefinitionError(msg)
    if clash := sorted(set(own) & set(extra)):
        msg = f"tool {definition.name!r} has arguments {clash} of its own; rename the added ones"
        raise ToolDefinitionError(msg)
    schema["properties"] = {**own, **extra}
    schema["required"] = [*schema.get("required", ()), *more.get("required", ())]
    if definitions := {**schema.get("$defs", {}), **more.get("$defs", {})}:
        schema["$defs"] = definitions
    complete = strict_form(schema) if definition.strict else schema
    if complete is None:
        msg = f"{arguments.__name__} has fields that no provider can enforce for a strict tool"
        raise ToolDefinitionError(msg)
    return replace(definition, input_schema=deep_frozen(complete))


def _renamed(schema: dict[str, Any], taken: Mapping[str, Any]) -> dict[str, Any]:
    """Return *schema* with those of its definitions renamed whose names mean something else."""
    own: dict[str, Any] = schema.get("$defs", {})
    names: dict[str, str] = {}
    for name, meaning in own.items():
        if name in taken and taken[name] != meaning:
            free = (f"{name}_{n}" for n in count(2))
            names[name] = next(new for new in free if new not in taken and new not in own)
    if not names:
        return schema
    renamed: dict[str, Any] = _with_refs(schema, {_REF + a: _REF + b for a, b in names.items()})
    renamed["$defs"] = {names.get(key, key): item for key, item in renamed["$defs"].items()}
    return renamed


_REF = "#/$defs/"


def _with_refs(schema: Any, refs: Mapping[str, str]) -> Any:
    if isinstance(schema, list):
        return [_with_refs(item, refs) for item in schema]
    if not isinstance(schema, dict):
        return schema
    changed = {key: _with_refs(item, refs) for key, item in schema.items()}
    if isinstance(ref := changed.get("$ref"), str):
        changed["$ref"] = refs.get(ref, ref)
    return changed


def augment(
    *sources: ToolSource,
    arguments: type[M],
    consumer: Consumer[M] | None = None,
    keep: bool = False,
) -> list[AugmentedToolCallback[M]]:
    """Return the tools in *sources* with additional arguments; see `AugmentedToolCallback`.

    Raises:
        ToolDefinitionError: A source holds no tool, or *arguments* cannot be added to one.
        DuplicateToolError: Two tools have the same name.
        WrongTypeError: The consumer cannot be called.
    """
    return [
        AugmentedToolCallback(callback, arguments, consumer, keep=keep)
        for callback in tool_callbacks(*sources)
    ]
