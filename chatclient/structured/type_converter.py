"""`TypeOutputConverter`: converts JSON text to a value of a type, with repair of malformed JSON.

`partial_value` converts unfinished JSON, for streamed entities. `_convert` lets pydantic validate a
value. If it is not valid, because it is not complete, `_convert_unfinished` converts its items or
fields, each again with `_convert`, and constructs a collection or a record without validation.
Items and fields that are not valid are omitted; fields without a value have their default, an empty
collection, or None.
"""

import dataclasses
import functools
import json
import re
import types
from collections import Counter
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Mapping,
    MutableMapping,
    Sequence,
    Set as AbstractSet,
)
from dataclasses import dataclass
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Generic,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import pydantic
import typing_extensions
from pydantic_core import ValidationError, from_json

from chatclient._internal.annotations import alias_value, cached_by_type, replace_variables
from chatclient._internal.frozen import deep_frozen
from chatclient._internal.json import exact_float, loads_exact
from chatclient._internal.json_repair import repair_json
from chatclient._internal.json_schema import JsonSchema, strict_form
from chatclient._internal.text import answer_so_far, shortened, without_thoughts
from chatclient.errors import EntityError, UsageError
from chatclient.structured.answer_cleaning import (
    NOTHING,
    Cleaner,
    brackets,
    cleaned,
    json_within,
    without_fence,
)
from chatclient.structured.json_schema import AllOf
from chatclient.tools.function.adapters import reason, schema_of, typed_dict
from chatclient.tools.function.argument_repair import NumberRewriter, public_schema, repair_value
from chatclient.tools.function.parameters import PYDANTIC_ERRORS, Path
from chatclient.tools.function.signature import problems

if TYPE_CHECKING:
    from typing_extensions import TypeForm


_BEGIN = re.compile(r"```[^\n`]*\n\s*|(?=[{\[])")
# A number at the end may be incomplete.
_OPEN_NUMBER = re.compile(r"(?<=[\s:,\[])-?\d[\d.eE+-]*$")
# pydantic's parser of partial JSON returns floats; numbers are passed as strings to keep digits.
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"?|(?P<number>-?\d[\d.eE+-]*)', re.DOTALL)
_NUMBER_MARK = "\ue000"
_COLLECTIONS: Mapping[Any, Callable[[Iterable[Any]], Any]] = {
    list: list,
    tuple: tuple,
    set: set,
    frozenset: frozenset,
    Sequence: list,
    AbstractSet: set,
}
_MAPPINGS = (dict, Mapping, MutableMapping)
_UNIONS = (Union, types.UnionType)
_QUALIFIERS = (typing_extensions.Required, typing_extensions.NotRequired)

T = TypeVar("T")

_WRAPPED = "value"
_CLEANERS = (without_thoughts, without_fence)
_FORMAT = (
    "Answer with JSON only: no words around it, no Markdown. The JSON has to satisfy this JSON"
    " Schema:\n"
)
_MOST_SHOWN = 500


def partial_value(kind: Any, text: str, numbers: NumberRewriter, *, wrapped: str | None) -> Any:
    """Return the value of type *kind* in *text*, the beginning of an answer.

    Missing fields have their defaults. Those without a default are empty if they are collections,
    else None.

    Args:
        kind: A type that pydantic supports.
        text: The answer so far; there may be other text before its JSON.
        numbers: Converts the numbers of the complete answer.
        wrapped: The property that contains the value if its type is not an object, or None.

    Returns:
        The value so far, or `NOTHING`.
    """
    value = _parse_unfinished(answer_so_far(text), numbers)
    if wrapped is not None and isinstance(value, dict) and value.keys() <= {wrapped}:
        value = value.get(wrapped, NOTHING)
    return NOTHING if value is NOTHING or value == {} else _convert(kind, value)


def _parse_unfinished(text: str, numbers: NumberRewriter) -> Any:
    begin = _BEGIN.search(text)
    if begin is None:
        return NOTHING
    text = _OPEN_NUMBER.sub("", text[begin.end() :])
    is_exact = numbers.may_change(text) and _NUMBER_MARK not in text
    try:
        value = from_json(
            _TOKEN.sub(_number_as_string, text) if is_exact else text,
            allow_partial="trailing-strings",
        )
    except ValueError:
        return NOTHING
    return numbers.convert(_restore_numbers(value)) if is_exact else value


def _number_as_string(token: re.Match[str]) -> str:
    """Return *token*; a number with a fraction or an exponent becomes a marked string."""
    number = token["number"]
    return f'"{_NUMBER_MARK}{number}"' if number and not number.lstrip("-").isdigit() else token[0]


def _restore_numbers(value: Any) -> Any:
    match value:
        case str() if value.startswith(_NUMBER_MARK):
            return exact_float(value.removeprefix(_NUMBER_MARK))
        case dict():
            return {key: _restore_numbers(item) for key, item in value.items()}
        case list():
            return [_restore_numbers(item) for item in value]
        case _:
            return value


def _convert(kind: Any, value: Any) -> Any:
    """Return *value* as a *kind*: validated if it is complete, else from its valid parts.

    `NOTHING` if there are none.
    """
    # Code of the type (validators, defaults, hashes) may raise any error for a partial value.
    try:
        return _adapter(kind).validate_python(value)
    except Exception:  # noqa: BLE001
        try:
            return _merged_with_all_of(
                kind, _convert_unfinished(_without_annotations(kind), value), value
            )
        except Exception:  # noqa: BLE001
            return NOTHING


def _merged_with_all_of(kind: Any, converted: Any, value: Any) -> Any:
    """Return *converted* merged with *value* as the other types that an `allOf` requires."""
    annotations = get_args(kind)[1:] if get_origin(kind) is Annotated else ()
    for all_of in (each for each in annotations if isinstance(each, AllOf)):
        for other_kind in all_of.kinds:
            other = _convert(other_kind, value)
            if isinstance(converted, dict) and isinstance(other, dict):
                converted = {**converted, **other}
    return converted


@cached_by_type
def _adapter(kind: Any) -> "pydantic.TypeAdapter[Any]":
    return pydantic.TypeAdapter(kind)


def _without_annotations(kind: Any) -> Any:
    """Return *kind* without annotations, qualifiers and aliases."""
    while True:
        origin = get_origin(kind)
        if origin is Annotated or origin in _QUALIFIERS:
            kind = get_args(kind)[0]
        elif hasattr(kind, "__value__"):  # a `type` statement's
            kind = alias_value(kind)
        else:
            return kind


def _convert_unfinished(kind: Any, value: Any) -> Any:
    """Return *value*, which is not a valid *kind*, as a *kind* of its valid items or fields."""
    origin = get_origin(kind)
    if origin in _UNIONS:
        return _convert_union(get_args(kind), value)
    if _is_root_model(kind):
        [(_, _, root_kind)] = _model_fields(kind)
        root = _convert(root_kind, value)
        return root if root is NOTHING else kind.model_construct(root)
    if isinstance(value, list):
        return _convert_items(origin or kind, get_args(kind), value)
    if not isinstance(value, dict):
        return NOTHING
    if isinstance(origin, type) and issubclass(origin, Mapping):
        arguments = get_args(kind)  # may be one, as of a `Counter`
        key_kind, value_kind = arguments[0], arguments[-1]
        converted = _convert_each(
            (value_kind, _convert(key_kind, key), value[key]) for key in value
        )
        # The entries whose keys are not valid (yet).
        converted.pop(NOTHING, None)
        return converted
    record = _record_type(kind)
    return NOTHING if record is None else record.construct(record.convert_fields(value))


def _convert_each(entries: Iterable[tuple[Any, Any, Any]]) -> dict[Any, Any]:
    """Return the valid values of *entries*, tuples of type, key and value, by key."""
    converted = ((key, _convert(kind, value)) for kind, key, value in entries)
    return {key: value for key, value in converted if value is not NOTHING}


def _convert_items(collection: Any, arguments: tuple[Any, ...], items: list[Any]) -> Any:
    construct = _COLLECTIONS.get(collection)
    # A tuple of fixed length has no value for missing items.
    if construct is None or (construct is tuple and arguments[1:] != (...,)):
        return NOTHING
    entries = ((arguments[0], index, item) for index, item in enumerate(items))
    return construct(_convert_each(entries).values())


def _convert_union(branches: Collection[Any], value: Any) -> Any:
    """Return *value* as the only matching branch; `NOTHING` if several match."""
    matches = []
    for branch in map(_without_annotations, branches):
        record = _record_type(branch) if isinstance(value, dict) else None
        if record is None:
            converted = _convert_unfinished(branch, value)
            if converted is not NOTHING:
                matches.append(converted)
        # A branch without one of the fields is not the one that the model writes.
        elif value and len(fields := record.convert_fields(value)) == len(value):
            matches.append(record.construct(fields))
    return matches[0] if len(matches) == 1 else NOTHING


# --- records --------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _RecordType:
    """A type with fields: a model, dataclass, named tuple or `TypedDict`.

    Attributes:
        kind: The type.
        fields: The place in the JSON object, the name and the type of each field.
        factories: The factories of empty values of the fields that are collections.
    """

    kind: Any
    fields: tuple[tuple[Path, str, Any], ...]
    factories: tuple[tuple[str, Callable[[], Any]], ...]

    @classmethod
    def of(cls, kind: Any, fields: tuple[tuple[Path, str, Any], ...]) -> "_RecordType":
        factories = {name: make for _, name, each in fields if (make := _empty_factory(each))}
        return cls(kind, fields, tuple(factories.items()))

    def convert_fields(self, value: Mapping[str, Any]) -> dict[str, Any]:
        """Return the valid fields in *value*, by name."""
        entries = ((kind, name, _value_at(value, path)) for path, name, kind in self.fields)
        return _convert_each(entry for entry in entries if entry[2] is not NOTHING)

    def construct(self, values: dict[str, Any]) -> Any:
        """Return a value of the type with these *values* of its fields, not validated."""
        kind: Any = self.kind
        if typing_extensions.is_typeddict(kind):
            return values
        empty: dict[str, Any] = dict.fromkeys(name for _, name, _ in self.fields)
        empty.update((name, make()) for name, make in self.factories)
        if issubclass(kind, pydantic.BaseModel):
            fields = kind.model_fields
            missing = {name: empty[name] for name in empty if fields[name].is_required()}
            return kind.model_construct(set(values), **{**missing, **values})
        if hasattr(kind, "_field_defaults"):  # a named tuple
            return kind(**{**empty, **kind._field_defaults, **values})
        instance = object.__new__(kind)
        for field in dataclasses.fields(kind):
            has_no_default = field.default is dataclasses.MISSING
            value: Any = empty.get(field.name) if has_no_default else field.default
            if field.default_factory is not dataclasses.MISSING:
                value = field.default_factory()
            object.__setattr__(instance, field.name, values.get(field.name, value))
        return instance


def _value_at(value: Any, path: Path) -> Any:
    """Return what an alias leads to in *value*, `NOTHING` if it is not there (yet)."""
    for step in path:
        try:
            value = value[step]
        except (LookupError, TypeError):
            return NOTHING
    return value


def _empty_factory(kind: Any) -> Callable[[], Any] | None:
    """Return a factory of empty values if *kind* is a collection of variable length."""
    bare = _without_annotations(kind)
    collection = get_origin(bare) or bare
    if collection is tuple and get_args(bare)[1:] not in ((), (...,)):
        return None
    if collection in _MAPPINGS:
        return dict
    return functools.partial(_COLLECTIONS[collection], ()) if collection in _COLLECTIONS else None


@cached_by_type
def _record_type(kind: Any) -> _RecordType | None:
    """Return *kind* as a type with fields; None if it is no such type."""
    model = get_origin(kind) or kind
    if _is_root_model(kind):
        return None
    if isinstance(model, type) and issubclass(model, pydantic.BaseModel):
        return _RecordType.of(kind, _model_fields(kind))
    named = isinstance(model, type) and issubclass(model, tuple) and hasattr(model, "_fields")
    if named or dataclasses.is_dataclass(model) or typing_extensions.is_typeddict(model):
        hints = get_type_hints(model, include_extras=True)
        bound = dict(zip(getattr(model, "__parameters__", ()), get_args(kind), strict=False))
        kinds = {n: replace_variables(hint, lambda v: bound.get(v, v)) for n, hint in hints.items()}
        return _RecordType.of(model, tuple(((name,), name, kind) for name, kind in kinds.items()))
    return None


def _is_root_model(kind: Any) -> bool:
    # Importing `RootModel` would make pydantic load its plugins.
    return isinstance(kind, type) and getattr(kind, "__pydantic_root_model__", False)


@cached_by_type
def _model_fields(model: type["pydantic.BaseModel"]) -> tuple[tuple[Path, str, Any], ...]:
    fields: list[tuple[Path, str, Any]] = []
    for name, field in model.model_fields.items():
        alias = field.validation_alias
        choices = alias.choices if isinstance(alias, pydantic.AliasChoices) else [alias]
        kind: Any = field.annotation
        for constraint in field.metadata:
            kind = Annotated[kind, constraint]
        paths = [
            c.path if isinstance(c, pydantic.AliasPath) else [c] for c in choices if c is not None
        ]
        fields.extend((tuple(path), name, kind) for path in (*paths, [name]))
    return tuple(fields)


class TypeOutputConverter(Generic[T]):
    """Converts JSON to a value of any type that pydantic supports.

    If the text is not valid, reasoning, code fences and text around the JSON are removed, and
    malformed JSON is repaired if only one reading is possible. Unknown properties are dropped,
    unless the type forbids them.

    Args:
        kind: A pydantic model, dataclass, `TypedDict`, `NamedTuple`, enum, primitive, `Literal`,
            union, or a collection of such.
        cleaners: Functions that remove text around the JSON, applied in order.
        schema: A JSON Schema for the model that replaces that of the type.

    Raises:
        UsageError: The type has no JSON Schema.
    """

    def __init__(
        self,
        kind: "TypeForm[T]",
        *,
        cleaners: Iterable[Cleaner] = _CLEANERS,
        schema: JsonSchema | None = None,
    ) -> None:
        self.kind = kind
        self._cleaners = tuple(cleaners)
        try:
            adapter: pydantic.TypeAdapter[T] = pydantic.TypeAdapter(kind)
            self._schema = schema_of(adapter) if schema is None else schema
        except PYDANTIC_ERRORS as error:
            msg = (
                f"no model can be asked for {name_of_kind(kind)}: {reason(error)}; ask for a type"
                " such as a pydantic model, a dataclass, int or list[...]"
            )
            raise UsageError(msg) from error
        self._wrapped = None if _is_object(self._schema) else _WRAPPED
        self._read = _reader(adapter, kind, self._wrapped)
        self._numbers = NumberRewriter(_with_wrapper(self._schema, self._wrapped))
        public = public_schema(self._schema)
        self.format = _FORMAT + json.dumps(public)
        self.json_schema: Mapping[str, Any] = _sendable(public, name_of_kind(kind))

    def __reduce__(self) -> tuple[Any, ...]:
        # pydantic's validators cannot be pickled.
        make = functools.partial(
            type(self), self.kind, cleaners=self._cleaners, schema=self._schema
        )
        return make, ()

    def convert(self, text: str) -> T:
        """Return the value in *text*.

        Raises:
            EntityError: *text* is not a value of the type.
        """
        try:
            return self._read(self._numbers.rewrite(text))
        except ValidationError:
            return self._convert_leniently(text)

    def partial(self, text: str) -> T:
        """Return the partial value in *text*, the beginning of an answer.

        Returns:
            A value whose missing fields have their defaults or None, or `NOTHING`.
        """
        from chatclient.structured.type_converter import partial_value  # noqa: PLC0415 - of streams

        return cast("T", partial_value(self.kind, text, self._numbers, wrapped=self._wrapped))

    def _convert_leniently(self, text: str) -> T:
        bare = cleaned(text, self._cleaners)
        if not bare:
            raise self._error(text, ["the answer is empty"])
        candidates = [bare, *json_within(bare)]
        if not bare.startswith(("{", "[")):
            candidates = [*candidates[1:], bare]
        errors: list[EntityError] = []
        for candidate in candidates:
            try:
                return self._read_repaired(_parsed(candidate), text)
            except EntityError as error:
                errors.append(error)
            except ValueError as error:
                errors.append(self._error(text, [f"not valid JSON: {error}"]))
        # Validation errors are more helpful than syntax errors.
        raise next((error for error in errors if error.__cause__ is not None), errors[0])

    def _read_repaired(self, value: Any, text: str) -> T:
        if self._wrapped is not None and isinstance(value, dict) and value.keys() == {_WRAPPED}:
            value = value[_WRAPPED]
        try:
            return self._read(json.dumps(repair_value(value, self._schema)))
        except ValidationError as error:
            known = self._schema.get("properties", {})
            raise self._error(text, problems(error, value, known, whole="answer")) from error

    def _error(self, text: str, errors: Iterable[str]) -> EntityError:
        return entity_error(name_of_kind(self.kind), text, errors)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({name_of_kind(self.kind)})"


def name_of_kind(kind: Any) -> str:
    """Return the name of a type without modules and annotations."""
    return re.sub(r"(?:[\w<>]+\.)+", "", _written(kind))


def _written(kind: Any) -> str:
    if get_origin(kind) is Annotated:
        return _written(get_args(kind)[0])
    text = kind.__name__ if isinstance(kind, type) and not get_args(kind) else str(kind)
    for part in get_args(kind):
        if "Annotated[" in repr(part):
            text = text.replace(repr(part), _written(part))
    return text


def entity_error(wanted: str, text: str, errors: Iterable[str]) -> EntityError:
    """Return the error that the answer *text* is not a *wanted* value; *errors* are the reasons."""
    errors = tuple(errors)
    lines = "".join(f"\n- {line}" for line in errors)
    shown = shortened(text, _MOST_SHOWN)
    msg = f"the answer does not fit {wanted}:{lines}\nThe model answered: {shown}"
    return EntityError(msg, text=text, errors=errors)


def _is_object(schema: Mapping[str, Any]) -> bool:
    return schema.get("type") == "object"


def _sendable(schema: JsonSchema, name: str) -> Mapping[str, Any]:
    """Return *schema* as that of an object, in the strict form if it has one."""
    if not _is_object(schema):
        schema = _wrapper(schema)
    frozen_form: Mapping[str, Any] = deep_frozen({"title": name, **(strict_form(schema) or schema)})
    return frozen_form


def _wrapper(schema: JsonSchema) -> JsonSchema:
    """Return the schema of an object that holds the value."""
    inner = {key: value for key, value in schema.items() if key != "$defs"}
    return {
        "type": "object",
        "properties": {_WRAPPED: inner},
        "required": [_WRAPPED],
        "additionalProperties": False,
        **({"$defs": schema["$defs"]} if "$defs" in schema else {}),
    }


def _with_wrapper(schema: JsonSchema, wrapped: str | None) -> JsonSchema:
    """Return the schema of all texts that are read: the value, and the object that holds it."""
    if wrapped is None:
        return schema
    return {"anyOf": [_wrapper(schema), schema], "$defs": schema.get("$defs", {})}


def _reader(
    adapter: "pydantic.TypeAdapter[T]", kind: Any, wrapped: str | None
) -> Callable[[str], T]:
    """Return a function that converts JSON of *kind*, or of an object with it in *wrapped*."""
    read: Callable[[str], T] = adapter.validator.validate_json
    if wrapped is None:
        return read
    unwrap = typed_dict({wrapped: kind}, extra="forbid").validator.validate_json

    def read_wrapped(text: str) -> T:
        if text.lstrip().startswith("{"):
            try:
                return cast("T", unwrap(text)[wrapped])
            except ValidationError:
                pass  # the type may be a union with an object
        return read(text)

    return read_wrapped


def _parsed(candidate: str) -> Any:
    """Return the value of the JSON in *candidate*, repaired if necessary, else *candidate* itself.

    Raises:
        ValueError: It looks like JSON and cannot be repaired.
    """
    try:
        return loads_exact(candidate)
    except ValueError:
        if not candidate.startswith(("{", "[", '"')):
            return candidate
        # A truncated answer must not be completed.
        repaired = repair_json(candidate) if _is_balanced(candidate) else None
        if repaired is None:
            raise
        return loads_exact(repaired)


def _is_balanced(candidate: str) -> bool:
    """Return whether *candidate* has as many closing as opening brackets outside of strings."""
    counted = Counter(bracket[0] for bracket in brackets(candidate))
    return counted["{"] == counted["}"] and counted["["] == counted["]"]
