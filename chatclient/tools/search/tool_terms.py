"""The terms of tools, for the inverted index."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from chatclient.retrieval.keywords.inverted_index import (
    Field,
    IndexedDocument,
    InvertedIndex,
    term_impacts,
)
from chatclient.retrieval.keywords.tokenizer import Words
from chatclient.tools.search.index import ToolReference

_OBJECT = (dict, Mapping)  # usually a dict, which is much faster to check
_NESTING = frozenset({"properties", "items", "$defs"})  # keywords with nested parameters

# Tuned on 16,000 tools and 3,000 queries, so that both of two random halves improve.
_NAME = Field(1.7, 1.0, 4.0)
_SUMMARY = Field(0.6, 0.45, 11.5)
_PARAMETER_NAMES = Field(0.46, 0.6, 4.3)
_PARAMETER_DESCRIPTIONS = Field(0.30, 0.27, 14.0)
_VALUES = Field(0.17, 1.0, 1.3)
_SATURATION = 0.8


def index_of(references: Sequence[ToolReference], words: Words) -> InvertedIndex:
    """Return an index of tools."""
    return InvertedIndex(_document(reference, words) for reference in references)


def _document(reference: ToolReference, words: Words) -> IndexedDocument:
    names, descriptions, values = parameter_texts(reference.parameters)
    in_name = words.identifier_terms(reference.tool_name)
    in_values = words.terms(" ".join(values))
    fields = (
        (_NAME, in_name),
        (_SUMMARY, words.terms(reference.summary)),
        (_PARAMETER_NAMES, words.identifier_terms(*names)),
        (_PARAMETER_DESCRIPTIONS, words.terms(" ".join(descriptions))),
        (_VALUES, in_values),
    )
    impacts = term_impacts(fields, _SATURATION, name=in_name, values=in_values)
    required = reference.parameters.get("required")
    return IndexedDocument(impacts, len(required) if isinstance(required, list) else 0)


def parameter_texts(schema: Any) -> tuple[list[str], list[str], list[str]]:
    """Return the names, descriptions and allowed values of all parameters in a JSON Schema."""
    names: list[str] = []
    descriptions: list[str] = []
    values: list[str] = []
    for name, parameter in _parameters(schema):
        if name:
            names.append(name)
            description = parameter.get("description")
            if isinstance(description, str):
                descriptions.append(description)
        allowed = parameter.get("enum")
        if isinstance(allowed, list):
            values += [value for value in allowed if isinstance(value, str)]
    return names, descriptions, values


def _parameters(schema: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield every parameter at any depth; items of lists have no name."""
    if not isinstance(schema, _OBJECT):
        return
    properties = schema.get("properties")
    if isinstance(properties, _OBJECT):
        for name, parameter in properties.items():
            if isinstance(parameter, _OBJECT):
                yield name, parameter
                if not _NESTING.isdisjoint(parameter):
                    yield from _parameters(parameter)
    items = schema.get("items")
    if isinstance(items, _OBJECT):
        yield "", items
        yield from _parameters(items)
    definitions = schema.get("$defs")
    if isinstance(definitions, _OBJECT):
        for definition in definitions.values():
            yield from _parameters(definition)
