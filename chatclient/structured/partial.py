"""Values of unfinished answers: as much of a type as its JSON spells so far.

pydantic validates whole values. Here, what is whole already is validated by pydantic; the rest is
built of its parts: a model without the fields that are still to come, a list of the items so far.
What does not fit, because it is cut off or because it is wrong, is left out.
"""

import dataclasses
import functools
import re
import types
from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

import typing_extensions
from pydantic import AliasChoices, BaseModel, TypeAdapter
from pydantic_core import from_json

from chatclient.structured.json_schema import Also
from chatclient.thoughts import answer_so_far

NOTHING: Any = object()
"""Stands for a value that is not there yet; None may be a value."""

_BEGIN = re.compile(r"```[^\n`]*\n\s*|(?=[{\[])")
# A number at the end may go on: of 1994, the 19 is nothing to show.
_OPEN_NUMBER = re.compile(r"(?<=[\s:,\[])-?\d[\d.eE+-]*$")
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


def partial_value(kind: Any, text: str, *, wrapped: str | None) -> Any:
    """Return what *text*, the beginning of an answer, spells of a *kind*.

    Fields that are still to come are their defaults. Those that have none are empty where they hold
    any number of items, and None otherwise.

    Args:
        kind: Any type that pydantic knows.
        text: The answer so far, with whatever the model writes before its JSON.
        wrapped: The property that the value may stand in, if it is no object itself.

    Returns:
        The value so far, or `NOTHING`.
    """
    value = _parsed(answer_so_far(text))
    if wrapped is not None and isinstance(value, dict) and value.keys() <= {wrapped}:
        value = value.get(wrapped, NOTHING)
    return NOTHING if value is NOTHING or value == {} else _built(kind, value)


def _parsed(text: str) -> Any:
    begin = _BEGIN.search(text)
    if begin is None:
        return NOTHING
    try:
        return from_json(
            _OPEN_NUMBER.sub("", text[begin.end() :]), allow_partial="trailing-strings"
        )
    except ValueError:
        return NOTHING


def _built(kind: Any, value: Any) -> Any:
    """Return *value* as a *kind*: validated when it is whole, else of those parts that fit."""
    # Code of the type's own (validators, defaults, hashes) may fail on half a value in any way.
    try:
        return _adapter(kind).validate_python(value)
    except Exception:  # noqa: BLE001
        try:
            return _with_others(kind, _of_parts(_bare(kind), value), value)
        except Exception:  # noqa: BLE001
            return NOTHING


def _with_others(kind: Any, part: Any, value: Any) -> Any:
    """Return *part* with what *value* spells of the other types that a *kind* is of, too."""
    notes = get_args(kind)[1:] if get_origin(kind) is Annotated else ()
    for other in (each for note in notes if isinstance(note, Also) for each in note.kinds):
        more = _built(other, value)
        if isinstance(part, dict) and isinstance(more, dict):
            part = {**part, **more}
    return part


@functools.lru_cache(maxsize=1024)
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _bare(kind: Any) -> Any:
    """Return *kind* without what is only said about it."""
    while True:
        origin = get_origin(kind)
        if origin is Annotated or origin in _QUALIFIERS:
            kind = get_args(kind)[0]
        elif isinstance(kind, typing_extensions.TypeAliasType):
            kind = kind.__value__
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


def _parts(wanted: Iterable[tuple[Any, Any, Any]]) -> dict[Any, Any]:
    """Return those of (type, key, value) that fit, by key."""
    built = ((key, _built(kind, value)) for kind, key, value in wanted)
    return {key: part for key, part in built if part is not NOTHING}


def _of_items(collection: Any, arguments: tuple[Any, ...], value: list[Any]) -> Any:
    make = _MAKERS.get(collection)
    # Of a tuple with so many places, those that are still to come have no value.
    if make is None or (make is tuple and arguments[1:] != (...,)):
        return NOTHING
    return make(_parts((arguments[0], at, each) for at, each in enumerate(value)).values())


def _of_union(branches: Collection[Any], value: Any) -> Any:
    """Return the only branch that *value* can become; while there are several, nothing."""
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


@dataclass(frozen=True, slots=True)
class _Record:
    """A type with fields.

    Attributes:
        kind: The type.
        fields: Of each field its JSON key, its name and its type.
        starts: What makes the value, until there is one, of each field that holds items.
    """

    kind: Any
    fields: tuple[tuple[str, str, Any], ...]
    starts: tuple[tuple[str, Callable[[], Any]], ...]

    @classmethod
    def of(cls, kind: Any, fields: tuple[tuple[str, str, Any], ...]) -> "_Record":
        starts = {name: start for _, name, each in fields if (start := _start_of(each)) is not None}
        return cls(kind, fields, tuple(starts.items()))

    def parts(self, value: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields that are there and fit, by name."""
        return _parts((kind, name, value[key]) for key, name, kind in self.fields if key in value)

    def make(self, parts: dict[str, Any]) -> Any:
        """Return a value of the type with *parts*, not validated."""
        kind: Any = self.kind
        if typing_extensions.is_typeddict(kind):
            return parts
        to_come: dict[str, Any] = dict.fromkeys(name for _, name, _ in self.fields)
        to_come.update((name, start()) for name, start in self.starts)
        if issubclass(kind, BaseModel):
            fields = kind.model_fields
            missing = {name: to_come[name] for name in to_come if fields[name].is_required()}
            return kind.model_construct(set(parts), **{**missing, **parts})
        if hasattr(kind, "_field_defaults"):  # a named tuple
            return kind(**{**to_come, **kind._field_defaults, **parts})
        return _made(kind, parts, to_come)


def _start_of(kind: Any) -> Callable[[], Any] | None:
    """Return what makes an empty *kind*, if that is a collection of any number of items."""
    bare = _bare(kind)
    collection = get_origin(bare) or bare
    if collection is tuple and get_args(bare)[1:] not in ((), (...,)):
        return None
    if collection in _MAPPINGS:
        return dict
    return functools.partial(_MAKERS[collection], ()) if collection in _MAKERS else None


def _made(kind: Any, parts: Mapping[str, Any], to_come: Mapping[str, Any]) -> Any:
    """Return a dataclass instance, around its `__init__`, which wants all fields."""
    made = object.__new__(kind)
    for each in dataclasses.fields(kind):
        missing = each.default is dataclasses.MISSING
        value: Any = to_come.get(each.name) if missing else each.default
        if each.default_factory is not dataclasses.MISSING:
            value = each.default_factory()
        object.__setattr__(made, each.name, parts.get(each.name, value))
    return made


@functools.lru_cache(maxsize=1024)
def _record_of(kind: Any) -> _Record | None:
    """Return what fields a type has, or None when it is no record."""
    model = get_origin(kind) or kind
    if _is_root_model(kind):
        return None
    if isinstance(model, type) and issubclass(model, BaseModel):
        return _Record.of(kind, _model_fields(kind))
    named = isinstance(model, type) and issubclass(model, tuple) and hasattr(model, "_fields")
    if named or dataclasses.is_dataclass(model) or typing_extensions.is_typeddict(model):
        hints = get_type_hints(model, include_extras=True)
        given = dict(zip(getattr(model, "__parameters__", ()), get_args(kind), strict=False))
        fields = ((name, name, _with_arguments(hint, given)) for name, hint in hints.items())
        return _Record.of(model, tuple(fields))
    return None


def _is_root_model(kind: Any) -> bool:
    # Importing `RootModel` would make pydantic look for its plugins.
    return isinstance(kind, type) and getattr(kind, "__pydantic_root_model__", False)


def _with_arguments(kind: Any, given: Mapping[Any, Any]) -> Any:
    """Return *kind* with what stands for its type variables: of `Page[Film]`, T is Film."""
    variables = getattr(kind, "__parameters__", ())
    if not given or not variables or isinstance(kind, type):
        return given.get(kind, kind) if isinstance(kind, TypeVar) else kind
    return kind[tuple(given.get(variable, variable) for variable in variables)]


@functools.lru_cache(maxsize=1024)
def _model_fields(model: type[BaseModel]) -> tuple[tuple[str, str, Any], ...]:
    fields: list[tuple[str, str, Any]] = []
    for name, field in model.model_fields.items():
        alias = field.validation_alias
        choices = alias.choices if isinstance(alias, AliasChoices) else [alias]
        kind: Any = field.annotation
        for constraint in field.metadata:
            kind = Annotated[kind, constraint]
        keys = dict.fromkeys([*(key for key in choices if isinstance(key, str)), name])
        fields.extend((key, name, kind) for key in keys)
    return tuple(fields)
