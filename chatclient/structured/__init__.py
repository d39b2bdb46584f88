"""Typed answers: what to ask of a model for a type, and how to read what it answers."""

from chatclient.structured.cleaning import Cleaner, without_fence
from chatclient.structured.converters import (
    JsonSchemaOutputConverter,
    ListOutputConverter,
    MapOutputConverter,
    StructuredOutputConverter,
    TextOutputConverter,
)
from chatclient.structured.output import (
    NATIVE_STRUCTURED_OUTPUT,
    ResponseEntity,
    StructuredOutput,
)
from chatclient.structured.partial import NOTHING
from chatclient.structured.type_converter import TypeOutputConverter
from chatclient.thoughts import without_thoughts

__all__ = [
    "NATIVE_STRUCTURED_OUTPUT",
    "NOTHING",
    "Cleaner",
    "JsonSchemaOutputConverter",
    "ListOutputConverter",
    "MapOutputConverter",
    "ResponseEntity",
    "StructuredOutput",
    "StructuredOutputConverter",
    "TextOutputConverter",
    "TypeOutputConverter",
    "without_fence",
    "without_thoughts",
]
