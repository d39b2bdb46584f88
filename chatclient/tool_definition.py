"""What a model is told about a tool."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from chatclient.checks import check_kind
from chatclient.errors import ToolDefinitionError
from chatclient.json import dumps, loads
from chatclient.schemas import of_object
from chatclient.values import EMPTY, deep_frozen


@dataclass(frozen=True, slots=True, eq=False)
class ToolDefinition:
    """What a model is told about a tool.

    Attributes:
        name: What the model calls it.
        description: What it is for.
        input_schema: The JSON Schema (2020-12) of its arguments, an object; `type` and
            `properties` may be left out, and without a schema it takes none.
        strict: Whether the provider is to enforce the schema, or None to leave it to the model's
            options.
        metadata: Values for the application, as JSON; not sent.

    Raises:
        WrongTypeError: The name or the description is no text, or the schema no mapping.
        ToolDefinitionError: The schema is not that of an object.
    """

    name: str
    description: str = ""
    input_schema: Mapping[str, Any] = EMPTY
    strict: bool | None = None
    metadata: Mapping[str, Any] = EMPTY

    def __post_init__(self) -> None:
        check_kind("the name of a tool", self.name, str)
        check_kind("the description of a tool", self.description, str)
        object.__setattr__(self, "input_schema", deep_frozen(of_object(self.input_schema)))
        if self.metadata:
            object.__setattr__(self, "metadata", deep_frozen(self.metadata))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ToolDefinition):
            return NotImplemented
        return self is other or (
            self.name == other.name
            and self.description == other.description
            and self.input_schema == other.input_schema
            and self.strict == other.strict
            and self.metadata == other.metadata
        )

    def __hash__(self) -> int:
        return hash((self.name, self.description))

    def to_json(self) -> str:
        """Return this as JSON, from which `from_json` makes an equal one.

        Raises:
            TypeError: Something in the metadata has no JSON form.
        """
        fields = {
            "name": self.name,
            "description": self.description,
            "input_schema": self.input_schema,
            "strict": self.strict,
            "metadata": self.metadata,
        }
        return dumps({key: item for key, item in fields.items() if item not in (None, {})}).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Return what `to_json` wrote, or another program that writes the same fields.

        Only the name has to be there; without a schema the tool takes no arguments.

        Raises:
            ToolDefinitionError: *text* is not a definition; the error names the field.
        """
        try:
            fields = loads(text)
        except ValueError as error:
            msg = f"not a tool definition: {error}"
            raise ToolDefinitionError(msg) from error
        if not isinstance(fields, dict):
            raise _misfit("it", "a JSON object", fields)
        for name, (kind, words) in _FIELDS.items():
            if name in fields and not isinstance(fields[name], kind):
                raise _misfit(repr(name), words, fields[name])
        if unknown := sorted(fields.keys() - _FIELDS.keys()):
            msg = f"not a tool definition: it has the fields {unknown}; known are {list(_FIELDS)}"
            raise ToolDefinitionError(msg)
        if not fields.get("name"):
            raise _misfit("'name'", "a text", fields.get("name"))
        try:
            return cls(**fields)
        except ToolDefinitionError as error:
            schema = fields["input_schema"]
            wanted = "the JSON Schema of an object"
            raise _misfit("'input_schema'", wanted, schema) from error


_FIELDS: Mapping[str, tuple[Any, str]] = {
    "name": (str, "a text"),
    "description": (str, "a text"),
    "input_schema": (dict, "the JSON Schema of an object"),
    "strict": (bool | None, "true, false or null"),
    "metadata": (dict, "a JSON object"),
}


def _misfit(what: str, wanted: str, given: object) -> ToolDefinitionError:
    return ToolDefinitionError(f"not a tool definition: {what} must be {wanted}, not {given!r}")
