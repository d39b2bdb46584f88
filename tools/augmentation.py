"""Tools that take more from the model than they are told: the rest goes to the application."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError

from chatclient.errors import ToolArgumentError, ToolDefinitionError
from chatclient.json import dumps, loads
from chatclient.tool import ToolCallback, ToolContext, ToolDefinition, ToolMetadata, ToolResult
from chatclient.tools.generation import deep_frozen
from chatclient.tools.repair import repair_json
from chatclient.tools.sources import ToolSource, tool_callbacks

M = TypeVar("M", bound=BaseModel)


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


Consumer = Callable[[AugmentedArguments[M]], Any]
"""Takes the additional arguments before the tool runs; plain or asynchronous."""


class AugmentedToolCallback(Generic[M]):
    """A tool with additional arguments, handed to a consumer and not to the tool.

    Useful for a model's reasons, its confidence, a line for the user to read meanwhile. How the
    tool is to be run, such as that it returns directly, stays as it is.

    Args:
        delegate: The tool.
        arguments: A pydantic model of the additional arguments.
        consumer: Takes them before the tool runs.
        keep: Whether the tool gets them as well.

    Raises:
        ToolDefinitionError: The model has no fields, or the tool has an argument of that name.
    """

    def __init__(
        self,
        delegate: ToolCallback,
        arguments: type[M],
        consumer: Consumer[M] | None = None,
        *,
        keep: bool = False,
    ) -> None:
        self.delegate = delegate
        self._model = arguments
        self._consumer = consumer
        self._keep = keep
        self.definition = _augmented(delegate.definition, arguments)

    @property
    def metadata(self) -> ToolMetadata:
        """How the tool is to be run."""
        return self.delegate.metadata

    async def invoke(self, arguments: str, context: ToolContext) -> ToolResult:
        """Hand the additional arguments to the consumer, then run the tool."""
        given = _object(arguments, self.definition.name)
        extra = self._extra(given)
        if self._consumer is not None:
            event = AugmentedArguments(self.definition, arguments, extra)
            await context.runtime.invoke(self._consumer, event)
        if not self._keep:
            given = {k: v for k, v in given.items() if k not in self._model.model_fields}
        return await self.delegate.invoke(dumps(given).decode(), context)

    def _extra(self, given: Mapping[str, Any]) -> M:
        values = {name: given[name] for name in self._model.model_fields if name in given}
        try:
            return self._model.model_validate(values)
        except ValidationError as error:
            details = [
                f"{'.'.join(map(str, item['loc']))}: {item['msg']}"
                for item in error.errors(include_url=False)
            ]
            told = "".join(f"\n- {line}" for line in details)
            name = self.definition.name
            msg = f"The arguments for {name} do not fit:{told}"
            raise ToolArgumentError(msg, tool_name=name, details=details) from error


def _object(arguments: str, name: str) -> dict[str, Any]:
    text = arguments.strip() or "{}"
    try:
        value = loads(text)
    except ValueError as error:
        mended = repair_json(text)
        if mended is None:
            msg = f"The arguments for {name} are not valid JSON: {error}"
            raise ToolArgumentError(msg, tool_name=name, malformed=True) from error
        value = loads(mended)
    if not isinstance(value, dict):
        msg = f"The arguments for {name} should be a JSON object"
        raise ToolArgumentError(msg, tool_name=name)
    return value


def _augmented(definition: ToolDefinition, arguments: type[BaseModel]) -> ToolDefinition:
    more = arguments.model_json_schema()
    extra: dict[str, Any] = more.get("properties", {})
    schema = dict(definition.input_schema)
    own: Mapping[str, Any] = schema.get("properties", {})
    if not extra:
        msg = f"{arguments.__name__} has no fields to add to tool {definition.name!r}"
        raise ToolDefinitionError(msg)
    if clash := sorted(set(own) & set(extra)):
        msg = f"tool {definition.name!r} has arguments {clash} of its own; rename the added ones"
        raise ToolDefinitionError(msg)
    for prop in extra.values():
        prop.pop("title", None)
    schema["properties"] = {**own, **extra}
    schema["required"] = [*schema.get("required", ()), *more.get("required", ())]
    if definitions := {**schema.get("$defs", {}), **more.get("$defs", {})}:
        schema["$defs"] = definitions
    return ToolDefinition(
        definition.name, definition.description, deep_frozen(schema), definition.strict
    )


def augment(
    *sources: ToolSource,
    arguments: type[M],
    consumer: Consumer[M] | None = None,
    keep: bool = False,
) -> list[AugmentedToolCallback[M]]:
    """Return the tools in *sources* with additional arguments; see `AugmentedToolCallback`."""
    return [
        AugmentedToolCallback(callback, arguments, consumer, keep=keep)
        for callback in tool_callbacks(*sources)
    ]
