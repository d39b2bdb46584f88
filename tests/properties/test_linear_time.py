"""What others send takes time in proportion to its size.

Each input is so large that the square of its size would take hours.
"""

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import httpx
import pytest
from pydantic import BaseModel

from chatclient import AssistantMessage, ToolCall
from chatclient._internal.json_schema import is_recursive, strict_form
from chatclient.advisors import mask_personal_data, refuse_injected_instructions
from chatclient.chat.tool import ToolDefinition, ToolResult
from chatclient.chat.tool_definition import sanitise_tool_name
from chatclient.errors import ChatClientError
from chatclient.providers import OllamaChatModel
from chatclient.providers.http.errors import error_from_body
from chatclient.providers.openai.responses_stream import StreamDecoder
from chatclient.providers.wire.sendable_schemas import (
    ANTHROPIC_RULES,
    GEMINI_RULES,
    OPENAI_RULES,
    SchemaRules,
    sendable_tool,
)
from chatclient.retrieval import Document, KeywordDocumentRetriever
from chatclient.structured.converters import converter_of
from chatclient.tools.execution.result import with_distinct_ids
from chatclient.tools.function.schema import signature_of_schema

MARKS = "a" + "\u0301\u0327" * 500_000
"""A character with many accents, which Unicode sorts."""


class Film(BaseModel):
    title: str


def ollama(body: bytes) -> object:
    answer = httpx.MockTransport(lambda _: httpx.Response(200, content=body))
    return OllamaChatModel(http_client=httpx.Client(transport=answer), max_retries=0).call("x")


def calls_with_one_id() -> object:
    return with_distinct_ids(AssistantMessage(tool_calls=[ToolCall("a", "f", "{}")] * 100_000))


def items_with_other_ids(kind: str) -> object:
    decoder = StreamDecoder("p")
    for at in range(100_000):
        item = {"type": kind.format(at), "id": f"a{at}", "content": []}
        added = {"type": "response.output_item.added", "output_index": at, "item": item}
        decoder.feed(json.dumps(added).encode())
    content = [{"type": "output_text", "text": "t"}]
    output = [{"type": kind.format(at), "id": f"b{at}", "content": content} for at in range(99_999)]
    end = {"type": "response.completed", "response": {"status": "completed", "output": output}}
    return decoder.feed(json.dumps(end).encode())


def index(text: str) -> object:
    retriever = KeywordDocumentRetriever()
    retriever.add([Document(text)])
    return retriever


def checked_result(text: str) -> object:
    result = ToolResult(text)
    return mask_personal_data(result), refuse_injected_instructions(result)


WORK: dict[str, Callable[[], object]] = {
    "line ends in an answer": lambda: ollama(b'{"message": {}}' + b"}\n" + b"\n" * 2_000_000),
    "brackets in an answer": lambda: converter_of(Film).convert('{"}' + r"{\"}" * 100_000),
    "code of an error": lambda: error_from_body(
        "p", 429, {}, json.dumps({"error": {"code": "insufficient" * 200_000}}).encode()
    ),
    "ids of calls": calls_with_one_id,
    "items of a stream": lambda: items_with_other_ids("message"),
    "items of many types": lambda: items_with_other_ids("type {}"),
    "name of a tool": lambda: sanitise_tool_name(MARKS),
    "words": lambda: index(MARKS),
    **{
        f"check of {text[:3]!r} in a result": partial(checked_result, text * (600_000 // len(text)))
        for text in (
            "\n",
            "a@",
            "1 ",
            "A1",
            "%41",
            "&#65;",
            "ignore all ",
            "do not tell ",
            "\u0435",
        )
    },
}


@pytest.mark.parametrize("name", WORK)
def test_texts(name: str) -> None:
    """Answers, errors, calls, names and documents are read in linear time."""
    try:
        WORK[name]()
    except ChatClientError as error:
        assert name.endswith("answer"), error  # noqa: PT017 - whether it is read does not matter


COUNT = 40_000
RANGE = range(COUNT)


def an_object(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, **more}


def sent(rules: SchemaRules, schema: dict[str, Any]) -> object:
    return sendable_tool(ToolDefinition("tool", "A tool.", schema), rules)


def required() -> object:
    names = [f"p{at}" for at in range(COUNT // 2)]
    schema = an_object({name: {"type": "string"} for name in names}, required=names)
    signature_of_schema(schema, check=False).read(json.dumps(dict.fromkeys(names, "x")))
    return strict_form({**schema, "additionalProperties": False})


def chain() -> object:
    links = {f"d{at}": {"items": {"$ref": f"#/$defs/d{at + 1}"}} for at in RANGE}
    return is_recursive({"$defs": {**links, f"d{COUNT}": {"type": "string"}}})


SCHEMAS: dict[str, Callable[[], object]] = {
    "tuple": lambda: strict_form(an_object({"a": {"prefixItems": [{"const": n} for n in RANGE]}})),
    "required": required,
    "chain of references": chain,
    "references to one name": lambda: sent(
        GEMINI_RULES,
        an_object({f"p{n}": {"$ref": f"#/x/{n}/n"} for n in RANGE}, x=[{"n": {}}] * COUNT),
    ),
    "allOf": lambda: sent(
        OPENAI_RULES, an_object({}, allOf=[an_object({f"p{n}": {}}) for n in RANGE])
    ),
    "anyOf": lambda: sent(
        OPENAI_RULES,
        an_object({}, anyOf=[an_object({f"p{n}": {}}, required=[f"p{n}"]) for n in RANGE]),
    ),
    "names": lambda: sent(ANTHROPIC_RULES, an_object({f"p {n}": {} for n in RANGE})),
    "patterns": lambda: sent(
        OPENAI_RULES,
        an_object({f"p{n}": {"pattern": "(?:" * 90 + f"{n}" + ")" * 90} for n in RANGE}),
    ),
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_schemas(name: str) -> None:
    """Schemas of tools, which servers write, are read and converted in linear time."""
    SCHEMAS[name]()
