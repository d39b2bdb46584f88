"""Typed answers: output converters and their settings."""

from typing import TYPE_CHECKING

from chatclient._internal.exports import lazy_exports

if TYPE_CHECKING:
    from chatclient._internal.text import (
        without_thoughts as without_thoughts,
    )
    from chatclient.chain.params import (
        NATIVE_STRUCTURED_OUTPUT as NATIVE_STRUCTURED_OUTPUT,
        Native as Native,
    )
    from chatclient.structured.answer_cleaning import (
        NOTHING as NOTHING,
        Cleaner as Cleaner,
        cleaned as cleaned,
        without_fence as without_fence,
    )
    from chatclient.structured.converters import (
        JsonSchemaOutputConverter as JsonSchemaOutputConverter,
        ListOutputConverter as ListOutputConverter,
        MapOutputConverter as MapOutputConverter,
        StructuredOutputConverter as StructuredOutputConverter,
        TextOutputConverter as TextOutputConverter,
    )
    from chatclient.structured.output import (
        ResponseEntity as ResponseEntity,
        StructuredOutput as StructuredOutput,
    )
    from chatclient.structured.type_converter import (
        TypeOutputConverter as TypeOutputConverter,
    )
else:  # not seen by type checkers, which would take any name for one that exists
    __getattr__, __dir__ = lazy_exports(__name__)
