"""`ToolDefinition`: the name, description and schema of a tool; valid names of tools."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from chatclient._internal.checks import check_type
from chatclient._internal.frozen import EMPTY, deep_frozen
from chatclient._internal.json import dumps, loads
from chatclient._internal.json_schema import complete_object_schema
from chatclient._internal.text import normalized
from chatclient.errors import ToolDefinitionError


@dataclass(frozen=True, slots=True, eq=False)
class ToolDefinition:
    """The name, description and schema of a tool, as sent to a model.

    Attributes:
        name: The name that the model uses in calls.
        description: The purpose of the tool, for the model.
        input_schema: The JSON Schema (2020-12) of its arguments, an object; `type` and
            `properties` are optional. An empty schema means no arguments.
        strict: Whether the provider has to enforce the schema; None: the model's options decide.
        metadata: Values for the application, as JSON; not sent.
        provider_options: More fields of the tool by provider, as JSON, such as
            `{"anthropic": {"defer_loading": True}}`. Each is sent to its provider only.

    Raises:
        WrongTypeError: The name or the description is not a text, or the schema or the options of a
            provider are not a mapping.
        ToolDefinitionError: The schema is not that of an object, or an option of a provider has the
            name of a field that the library sends.
    """

    name: str
    description: str = ""
    input_schema: Mapping[str, Any] = EMPTY
    strict: bool | None = None
    metadata: Mapping[str, Any] = EMPTY
    provider_options: Mapping[str, Mapping[str, Any]] = EMPTY

    def __post_init__(self) -> None:
        check_type("the name of a tool", self.name, str)
        check_type("the description of a tool", self.description, str)
        object.__setattr__(
            self, "input_schema", deep_frozen(complete_object_schema(self.input_schema))
        )
        if self.metadata:
            object.__setattr__(self, "metadata", deep_frozen(self.metadata))
        if self.provider_options:
            check_provider_options(self.provider_options, f"tool {self.name!r}")
            object.__setattr__(self, "provider_options", deep_frozen(self.provider_options))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ToolDefinition):
            return NotImplemented
        return self is other or (
            self.name == other.name
            and self.description == other.description
            and self.input_schema == other.input_schema
            and self.strict == other.strict
            and self.metadata == other.metadata
            and self.provider_options == other.provider_options
        )

    def __hash__(self) -> int:
        return hash((self.name, self.description))

    def to_json(self) -> str:
        """Return the definition as JSON text, for `from_json`.

        Raises:
            TypeError: A value in the metadata cannot be encoded as JSON.
        """
        fields = {
            "name": self.name,
            "description": self.description,
            "input_schema": self.input_schema,
            "strict": self.strict,
            "metadata": self.metadata,
            "provider_options": self.provider_options,
        }
        return dumps({key: item for key, item in fields.items() if item not in (None, {})}).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Return the definition in *text*, written by `to_json` or in the same format.

        Only the name is required.

        Raises:
            ToolDefinitionError: *text* is not a definition; the message names the invalid field.
        """
        try:
            fields = loads(text)
        except ValueError as error:
            msg = f"not a tool definition: {error}"
            raise ToolDefinitionError(msg) from error
        if not isinstance(fields, dict):
            raise _invalid("it", "a JSON object", fields)
        for name, (kind, words) in _FIELDS.items():
            if name in fields and not isinstance(fields[name], kind):
                raise _invalid(repr(name), words, fields[name])
        if unknown := sorted(fields.keys() - _FIELDS.keys()):
            msg = f"not a tool definition: it has the fields {unknown}; known are {list(_FIELDS)}"
            raise ToolDefinitionError(msg)
        if not fields.get("name"):
            raise _invalid("'name'", "a text", fields.get("name"))
        try:
            return cls(**fields)
        except ToolDefinitionError as error:
            schema = fields["input_schema"]
            wanted = "the JSON Schema of an object"
            raise _invalid("'input_schema'", wanted, schema) from error


_FIELDS: Mapping[str, tuple[Any, str]] = {
    "name": (str, "a text"),
    "description": (str, "a text"),
    "input_schema": (dict, "the JSON Schema of an object"),
    "strict": (bool | None, "true, false or null"),
    "metadata": (dict, "a JSON object"),
    "provider_options": (dict, "a JSON object"),
}


def check_provider_options(options: Mapping[str, Any], owner: str) -> None:
    """Check the options of providers for *owner*, a tool or its server.

    Raises:
        WrongTypeError: They are no mappings.
        ToolDefinitionError: The library sends a field of the same name itself.
    """
    check_type("provider_options", options, Mapping, '{"anthropic": {"defer_loading": True}}')
    for provider, fields in options.items():
        check_type(f"provider_options[{provider!r}]", fields, Mapping)
        if taken := sorted(_GENERATED & fields.keys()):
            msg = (
                f"{owner} has {', '.join(taken)} in its options for {provider!r}, but that"
                " comes from its name, description and schema; leave it out"
            )
            raise ToolDefinitionError(msg)


_GENERATED = frozenset(
    {
        *("type", "name", "description", "function", "parameters"),
        *("input_schema", "parametersJsonSchema"),
    }
)
"""The fields that the library generates, for any provider; `strict` may be set for a provider."""


def _invalid(what: str, wanted: str, given: object) -> ToolDefinitionError:
    return ToolDefinitionError(f"not a tool definition: {what} must be {wanted}, not {given!r}")


_ACCEPTED = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_LONGEST = 64
_DIGEST = 8

# Where a new word begins: `getHTTPStatus` is get HTTP status.
_WORD_START = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def check_tool_name(name: str) -> str:
    """Return *name* when every provider accepts it: 1 to 64 ASCII letters, digits, `_` and `-`.

    Raises:
        ToolDefinitionError: It is not accepted; the error proposes one that is.
    """
    if _ACCEPTED.fullmatch(name):
        return name
    msg = (
        f"{name!r} cannot be the name of a tool: providers accept 1 to 64 letters (a-z, A-Z),"
        f" digits, '_' and '-'; {sanitise_tool_name(name)!r} would do"
    )
    raise ToolDefinitionError(msg)


def sanitise_tool_name(name: str) -> str:
    """Return a name like *name* that every provider accepts; itself, if it already is one.

    Accents are dropped and everything else that is not accepted becomes `_`. A name that would lose
    its meaning that way, being too long or in another script, gets a digest of the original, so
    that two names that differ stay different.
    """
    if _ACCEPTED.fullmatch(name):
        return name
    plain = normalized("NFKD", name).encode("ascii", "ignore").decode()
    safe = re.sub(r"[^a-zA-Z0-9-]+", "_", plain).strip("_")
    if len(safe) > _LONGEST or not re.search("[a-zA-Z0-9]", safe):
        digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]
        stem = safe[: _LONGEST - _DIGEST - 1].strip("_-") or "tool"
        safe = f"{stem}_{digest}"
    return safe


def describe_name(name: str) -> str:
    """Return the words of *name*: those of `getCurrentTime` are "get current time"."""
    spaced = _WORD_START.sub(" ", re.sub(r"[\W_]+", " ", name))
    return " ".join(spaced.lower().split())
