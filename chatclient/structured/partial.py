"""Values of unfinished JSON.

Complete parts are validated by pydantic. Incomplete ones are built from their complete parts: a
list of the items so far, or a model, whose missing fields have default, empty or None values.
Invalid parts are omitted.
"""

import dataclasses
import functools
import re
import types
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
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import typing_extensions
from pydantic import AliasChoices, AliasPath, BaseModel, TypeAdapter
from pydantic_core import from_json

from chatclient._internal.json import exact_float
from chatclient._internal.type_variables import alias_value, replace_variables
from chatclient.chat.thinking_tags import answer_so_far
from chatclient.structured.answer_cleaning import NOTHING
from chatclient.structured.json_schema import AllOf
from chatclient.tools.function.alias_paths import Path
from chatclient.tools.function.exact_numbers import NumberRewriter

_BEGIN = re.compile(r"```[^\n`]*\n\s*|(?=[{\[])")
# A number at the end may be incomplete.
_OPEN_NUMBER = re.compile(r"(?<=[\s:,\[])-?\d[\d.eE+-]*$")
# pydantic's parser of partial JSON returns floats; numbers are passed as strings to keep digits.
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"?|(?P<number>-?\d[\d.eE+-]*)', re.DOTALL)
_MARK = "\ue000"
_MAKERS: Mapping[Any, Callable[[Iterable[Any]], Any]] = {
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
    value = _parsed(answer_so_far(text), numbers)
    if wrapped is not None and isinstance(value, dict) and value.keys() <= {wrapped}:
        value = value.get(wrapped, NOTHING)
    return NOTHING if value is NOTHING or value == {} else _built(kind, value)


def _parsed(text: str, numbers: NumberRewriter) -> Any:
    begin = _BEGIN.search(text)
    if begin is None:
        return NOTHING
    text = _OPEN_NUMBER.sub("", text[begin.end() :])
    is_exact = numbers.may_change(text) and _MARK not in text
    try:
        value = from_json(
            _TOKEN.sub(_marked, text) if is_exact else text, allow_partial="trailing-strings"
        )
    except ValueError:
        return NOTHING
    return numbers.convert(_unmarked(value)) if is_exact else value


def _marked(token: re.Match[str]) -> str:
    """Return *token*; a number with a fraction or an exponent becomes a marked string."""
    number = token["number"]
    return f'"{_MARK}{number}"' if number and not number.lstrip("-").isdigit() else token[0]


def _unmarked(value: Any) -> Any:
    match value:
        case str() if value.startswith(_MARK):
            return exact_float(value.removeprefix(_MARK))
        case dict():
            return {key: _unmarked(item) for key, item in value.items()}
        case list():
            return [_unmarked(item) for item in value]
        case _:
            return value


def _built(kind: Any, value: Any) -> Any:
    """Return *value* as a *kind*: validated if it is complete, else built from its valid parts."""
    # Code of the type (validators, defaults, hashes) may raise any error for a partial value.
    try:
        return _adapter(kind).validate_python(value)
    except Exception:  # noqa: BLE001
        try:
            return _with_all_of(kind, _of_parts(_bare(kind), value), value)
        except Exception:  # noqa: BLE001
            return NOTHING


def _with_all_of(kind: Any, part: Any, value: Any) -> Any:
    """Return *part* merged with the parts of the other types that an `allOf` requires."""
    notes = get_args(kind)[1:] if get_origin(kind) is Annotated else ()
    for other in (each for note in notes if isinstance(note, AllOf) for each in note.kinds):
        more = _built(other, value)
        if isinstance(part, dict) and isinstance(more, dict):
            part = {**part, **more}
    return part


@functools.lru_cache(maxsize=1024)
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _bare(kind: Any) -> Any:
    """Return *kind* without annotations, qualifiers and aliases."""
    while True:
        origin = get_origin(kind)
        if origin is Annotated or origin in _QUALIFIERS:
            kind = get_args(kind)[0]
        elif hasattr(kind, "__value__"):  # a `type` statement's
            kind = alias_value(kind)
        else:
            return kind


def _of_parts(kind: Any, value: Any) -> Any:
    origin = get_origin(kind)
    if origin in _UNIONS:
        return _of_union(get_args(kind), value)
    if _is_root_model(kind):
        [(_, _, root)] = _model_fields(kind)
        part = _built(root, value)
        return part if part is NOTHING else kind.model_construct(part)
    if isinstance(value, list):
        return _of_items(origin or kind, get_args(kind), value)
    if not isinstance(value, dict):
        return NOTHING
    if isinstance(origin, type) and issubclass(origin, Mapping):
        keys = {key: _built(get_args(kind)[0], key) for key in value}
        parts = _parts((get_args(kind)[-1], keys[key], value[key]) for key in value)
        parts.pop(NOTHING, None)
        return parts
    record = _record_of(kind)
    return NOTHING if record is None else record.make(record.parts(value))


def _parts(items: Iterable[tuple[Any, Any, Any]]) -> dict[Any, Any]:
    """Return the valid parts of *items*, tuples of type, key and value, by key."""
    built = ((key, _built(kind, value)) for kind, key, value in items)
    return {key: part for key, part in built if part is not NOTHING}


def _of_items(collection: Any, arguments: tuple[Any, ...], value: list[Any]) -> Any:
    make = _MAKERS.get(collection)
    # A tuple of fixed length has no value for missing items.
    if make is None or (make is tuple and arguments[1:] != (...,)):
        return NOTHING
    return make(_parts((arguments[0], at, each) for at, each in enumerate(value)).values())


def _of_union(branches: Collection[Any], value: Any) -> Any:
    """Return *value* as the only matching branch; `NOTHING` if several match."""
    found = []
    for branch in map(_bare, branches):
        record = _record_of(branch) if isinstance(value, dict) else None
        if record is None:
            part = _of_parts(branch, value)
            if part is not NOTHING:
                found.append(part)
        elif value and len(parts := record.parts(value)) == len(value):
            found.append(record.make(parts))
    return found[0] if len(found) == 1 else NOTHING


# --- records --------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Record:
    """A type with fields.

    Attributes:
        kind: The type.
        fields: The place in the JSON object, the name and the type of each field.
        factories: The factories of empty values of the fields that are collections.
    """

    kind: Any
    fields: tuple[tuple[Path, str, Any], ...]
    factories: tuple[tuple[str, Callable[[], Any]], ...]

    @classmethod
    def of(cls, kind: Any, fields: tuple[tuple[Path, str, Any], ...]) -> "_Record":
        found = {name: make for _, name, each in fields if (make := _empty_factory(each))}
        return cls(kind, fields, tuple(found.items()))

    def parts(self, value: Mapping[str, Any]) -> dict[str, Any]:
        """Return the valid fields in *value*, by name."""
        found = ((kind, name, _value_at(value, path)) for path, name, kind in self.fields)
        return _parts(each for each in found if each[2] is not NOTHING)

    def make(self, parts: dict[str, Any]) -> Any:
        """Return a value of the type with *parts*, not validated."""
        kind: Any = self.kind
        if typing_extensions.is_typeddict(kind):
            return parts
        empty: dict[str, Any] = dict.fromkeys(name for _, name, _ in self.fields)
        empty.update((name, make()) for name, make in self.factories)
        if issubclass(kind, BaseModel):
            fields = kind.model_fields
            missing = {name: empty[name] for name in empty if fields[name].is_required()}
            return kind.model_construct(set(parts), **{**missing, **parts})
        if hasattr(kind, "_field_defaults"):  # a named tuple
            return kind(**{**empty, **kind._field_defaults, **parts})
        return _new_dataclass(kind, parts, empty)


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
    bare = _bare(kind)
    collection = get_origin(bare) or bare
    if collection is tuple and get_args(bare)[1:] not in ((), (...,)):
        return None
    if collection in _MAPPINGS:
        return dict
    return functools.partial(_MAKERS[collection], ()) if collection in _MAKERS else None


def _new_dataclass(kind: Any, parts: Mapping[str, Any], empty: Mapping[str, Any]) -> Any:
    """Return a dataclass instance without calling its `__init__`, which requires all fields."""
    instance = object.__new__(kind)
    for each in dataclasses.fields(kind):
        missing = each.default is dataclasses.MISSING
        value: Any = empty.get(each.name) if missing else each.default
        if each.default_factory is not dataclasses.MISSING:
            value = each.default_factory()
        object.__setattr__(instance, each.name, parts.get(each.name, value))
    return instance


@functools.lru_cache(maxsize=1024)
def _record_of(kind: Any) -> _Record | None:
    """Return the fields of a type; None if it is not a model, dataclass, tuple or `TypedDict`."""
    model = get_origin(kind) or kind
    if _is_root_model(kind):
        return None
    if isinstance(model, type) and issubclass(model, BaseModel):
        return _Record.of(kind, _model_fields(kind))
    named = isinstance(model, type) and issubclass(model, tuple) and hasattr(model, "_fields")
    if named or dataclasses.is_dataclass(model) or typing_extensions.is_typeddict(model):
        hints = get_type_hints(model, include_extras=True)
        given = dict(zip(getattr(model, "__parameters__", ()), get_args(kind), strict=False))
        kinds = {n: replace_variables(hint, lambda v: given.get(v, v)) for n, hint in hints.items()}
        return _Record.of(model, tuple(((name,), name, kind) for name, kind in kinds.items()))
    return None


def _is_root_model(kind: Any) -> bool:
    # Importing `RootModel` would make pydantic load its plugins.
    return isinstance(kind, type) and getattr(kind, "__pydantic_root_model__", False)


@functools.lru_cache(maxsize=1024)
def _model_fields(model: type[BaseModel]) -> tuple[tuple[Path, str, Any], ...]:
    fields: list[tuple[Path, str, Any]] = []
    for name, field in model.model_fields.items():
        alias = field.validation_alias
        choices = alias.choices if isinstance(alias, AliasChoices) else [alias]
        kind: Any = field.annotation
        for constraint in field.metadata:
            kind = Annotated[kind, constraint]
        paths = [c.path if isinstance(c, AliasPath) else [c] for c in choices if c is not None]
        fields.extend((tuple(path), name, kind) for path in (*paths, [name]))
    return tuple(fields)
