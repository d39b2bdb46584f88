"""Rewritten tool schemas for providers, and calls mapped back to the original names."""

import json
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel, Field, TypeAdapter

from chatclient import ChatClient, ChatOptions, ChatResponse, Prompt
from chatclient.chat.aggregator import MessageAggregator
from chatclient.chat.messages import AssistantMessage, ToolCall, ToolCallChunk, UserMessage
from chatclient.chat.response import Generation
from chatclient.chat.tool import ToolContext, ToolDefinition, ToolMetadata, ToolResult
from chatclient.errors import ToolDefinitionError
from chatclient.mcp import McpToolCallbackProvider
from chatclient.providers.anthropic.options import encode_options as anthropic_request
from chatclient.providers.gemini.encoding import encode_options as gemini_request
from chatclient.providers.ollama.model import encode_options as ollama_request
from chatclient.providers.openai.chat import OpenAIChatModel, encode_options as chat_request
from chatclient.providers.openai.dialect import COMPATIBLE, OPENAI
from chatclient.providers.openai.responses import encode_options as responses_request
from chatclient.providers.wire.sendable_schemas import (
    ANTHROPIC_RULES,
    COMPATIBLE_RULES,
    GEMINI_RULES,
    OLLAMA_RULES,
    OPENAI_RULES,
    SchemaRules,
    converted_tool,
    sendable_tool,
)
from chatclient.providers.wire.tools import RenamedArguments
from chatclient.testing import Ask
from tests.modes.test_entity import entity
from tests.support.mcp_setup import peer
from tests.support.messages_server import Serve, message, messages_servers, tool_use
from tests.support.replay import RECORDINGS, needs_recordings
from tests.support.servers import completion
from tests.support.services import SERVICES

Json = dict[str, Any]

ALL_RULES = {
    "anthropic": ANTHROPIC_RULES,
    "compatible": COMPATIBLE_RULES,
    "gemini": GEMINI_RULES,
    "ollama": OLLAMA_RULES,
    "openai": OPENAI_RULES,
}
TEXT = {"type": "string"}


class Recorder:
    """Returns its arguments."""

    metadata = ToolMetadata()

    def __init__(self, schema: Json, name: str = "save", **more: Any) -> None:
        self.definition = ToolDefinition(name, "Saves.", schema, **more)
        self.given: list[Json] = []

    async def invoke(self, arguments: str, context: ToolContext) -> ToolResult:
        self.given.append(json.loads(arguments))
        return ToolResult(arguments)


def sent(schema: Json, rules: SchemaRules, **more: Any) -> ToolDefinition:
    return sendable_tool(ToolDefinition("save", "Saves.", schema, **more), rules).definition


def schema_of(schema: Json, rules: SchemaRules) -> Json:
    found: Json = json.loads(json.dumps(sent(schema, rules).input_schema))
    return found


@pytest.fixture
def serve() -> Iterator[Serve]:
    with messages_servers() as start:
        yield start


# --- unions at the top level ----------------------------------------------------------------

BY_URL = {"properties": {"url": TEXT}, "required": ["url"]}
BY_TEXT = {"properties": {"text": TEXT, "size": {"type": "integer"}}, "required": ["text"]}


@pytest.mark.parametrize("rules", ALL_RULES.values(), ids=ALL_RULES)
@pytest.mark.parametrize("keyword", ["anyOf", "oneOf"])
def test_union_is_merged_into_an_object(keyword: str, rules: SchemaRules) -> None:
    """It has the properties of all; only those required by all are required."""
    schema = {"properties": {"id": TEXT}, "required": ["id"], keyword: [BY_URL, BY_TEXT]}

    assert schema_of(schema, rules) == {
        "type": "object",
        "properties": {"id": TEXT, "url": TEXT, "text": TEXT, "size": {"type": "integer"}},
        "required": ["id"],
    }


@pytest.mark.parametrize(("keyword", "count"), [("anyOf", "at least"), ("oneOf", "exactly")])
def test_description_lists_alternatives(keyword: str, count: str) -> None:
    """The description states which properties belong together."""
    definition = sent({keyword: [BY_URL, BY_TEXT]}, OPENAI_RULES)

    assert definition.description == (
        f"Saves.\n\nGive {count} one of these sets of arguments: url; or text (optional: size)."
    )


def test_any_of_required() -> None:
    """`anyOf` of `required` lists keeps the properties."""
    schema = {
        "properties": {"route": TEXT, "file": TEXT},
        "anyOf": [{"required": ["route"]}, {"required": ["file"]}],
    }
    definition = sent(schema, ANTHROPIC_RULES)

    assert definition.input_schema == {
        "type": "object",
        "properties": {"route": TEXT, "file": TEXT},
    }
    assert definition.description.endswith("sets of arguments: route; or file.")


def test_discriminator_becomes_an_enum() -> None:
    """A discriminator states its alternative in the schema and in the description."""
    film = {"properties": {"kind": {"const": "film"}, "title": TEXT}, "required": ["kind", "title"]}
    song = {"properties": {"kind": {"const": "song"}, "title": TEXT}, "required": ["kind"]}
    definition = sent({"oneOf": [film, song]}, OPENAI_RULES)

    assert definition.input_schema["properties"] == {
        "kind": {"enum": ["film", "song"]},
        "title": TEXT,
    }
    assert definition.input_schema["required"] == ["kind"]
    assert 'kind="film", title; or kind="song" (optional: title).' in definition.description


def test_property_union() -> None:
    """A property with several types becomes a union inside the object."""
    schema = {"anyOf": [{"properties": {"id": TEXT}}, {"properties": {"id": {"type": "integer"}}}]}

    assert schema_of(schema, OPENAI_RULES)["properties"] == {
        "id": {"anyOf": [TEXT, {"type": "integer"}]}
    }


def test_all_of_is_merged() -> None:
    """All parts of an `allOf` are merged."""
    schema = {
        "allOf": [{"$ref": "#/$defs/Base"}, BY_URL],
        "$defs": {"Base": {"properties": {"id": TEXT}, "required": ["id"]}},
    }

    assert schema_of(schema, OPENAI_RULES) == {
        "type": "object",
        "properties": {"id": TEXT, "url": TEXT},
        "required": ["id", "url"],
        "$defs": schema["$defs"],
    }


def test_top_level_reference() -> None:
    """A top-level reference to a definition, also a recursive one, is resolved."""
    node = {
        "type": "object",
        "properties": {"next": {"$ref": "#/$defs/Node"}, "root": {"$ref": "#"}},
    }
    schema = {"$ref": "#/$defs/Node", "$defs": {"Node": node}}
    found = schema_of(schema, OPENAI_RULES)

    assert found["properties"] == {
        "next": {"$ref": "#/$defs/Node"},
        "root": {"$ref": "#/$defs/Arguments"},
    }
    assert "$ref" not in found
    Draft202012Validator(found).validate({"next": {"next": {}}})


def test_enum_of_objects() -> None:
    """Each property has the values that it has in the objects."""
    schema = {"enum": [{"a": 1}, {"a": 2, "b": True}]}

    assert schema_of(schema, OPENAI_RULES) == {
        "type": "object",
        "properties": {"a": {"enum": [1, 2]}, "b": {"const": True}},
        "required": ["a"],
    }


@pytest.mark.parametrize(
    ("schema", "properties", "closed"),
    [
        ({"const": {"a": 1}}, {"a": {"const": 1}}, False),
        ({"anyOf": [True, {"properties": {"a": TEXT}}]}, {"a": TEXT}, False),
        ({"anyOf": [{**BY_URL, "additionalProperties": False}]}, {"url": TEXT}, True),
        (
            {"additionalProperties": False, "properties": {"a": TEXT}, "oneOf": [{}]},
            {"a": TEXT},
            True,
        ),
        ({"allOf": [{"properties": {"a": True}}, {"properties": {"a": TEXT}}]}, {"a": TEXT}, False),
        (
            {"properties": {"a": TEXT}, "allOf": [{"properties": {"a": {"$ref": "#/$defs/A"}}}]},
            {"a": {"$ref": "#/$defs/A"}},
            False,
        ),
        ({"properties": {"a": TEXT}, "anyOf": []}, {"a": TEXT}, False),
        ({"anyOf": [{"properties": []}]}, {}, False),
        ({"properties": {"a": 7}, "anyOf": [{}]}, {"a": 7}, False),
        ({"anyOf": [{"type": ["object", "null"], **BY_URL}]}, {"url": TEXT}, False),
    ],
)
def test_rare_schema_forms(schema: Json, properties: Json, closed: bool) -> None:
    """Rare forms of JSON Schema are merged."""
    found = schema_of(schema, ANTHROPIC_RULES)

    assert found["properties"] == properties
    assert ("additionalProperties" in found) is closed
    assert found["type"] == "object"


def test_not_is_described() -> None:
    """A top-level `not` is moved into the description."""
    definition = sent({"properties": {"a": TEXT}, "not": {"required": ["a"]}}, OPENAI_RULES)

    assert "not" not in definition.input_schema
    assert definition.description.endswith('The arguments must not fit {"required":["a"]}.')


def test_non_object_alternatives_are_dropped() -> None:
    """Alternatives that are not objects are dropped, as arguments are an object."""
    schema = {"anyOf": [BY_URL, {"type": "null"}, False]}

    assert schema_of(schema, OPENAI_RULES)["required"] == ["url"]


@pytest.mark.parametrize("keyword", ["anyOf", "allOf"])
def test_exponential_schema_is_merged_fast(keyword: str) -> None:
    """A schema with 2 ** 50 alternatives is merged quickly."""
    forks = {f"a{i}": {keyword: [{"$ref": f"#/$defs/a{i + 1}"}] * 2} for i in range(50)}
    schema = {"$ref": "#/$defs/a0", "$defs": {**forks, "a50": BY_URL}}

    assert schema_of(schema, OPENAI_RULES)["required"] == ["url"]


@pytest.mark.parametrize("strict", [True, False, None])
def test_merged_schema_is_not_strict(strict: bool | None) -> None:
    """A merged schema has optional properties, so it cannot be strict."""
    assert sent({"anyOf": [BY_URL, BY_TEXT]}, OPENAI_RULES, strict=strict).strict is None


# --- names ----------------------------------------------------------------------------------

ODD = {
    "properties": {
        "filter[id]": {**TEXT, "description": "Which."},
        "filter_id": TEXT,
        "$top": {"type": "integer"},
        "Größe": TEXT,
        "名前": TEXT,
        "x" * 65: TEXT,
        "a.b-c": TEXT,
    },
    "required": ["$top"],
    "dependentRequired": {"$top": ["filter[id]"]},
}


@pytest.mark.parametrize("rules", [ANTHROPIC_RULES, COMPATIBLE_RULES, GEMINI_RULES])
def test_invalid_names_are_replaced(rules: SchemaRules) -> None:
    """Valid names are kept, and two names never become equal."""
    found = schema_of(ODD, rules)
    names = list(found["properties"])

    assert rules.property_names is not None
    assert all(map(rules.property_names.fullmatch, names))
    assert len(names) == len(ODD["properties"])
    assert {"filter_id", "a.b-c", "top"} <= set(names)
    assert found["required"] == ["top"]
    assert found["dependentRequired"] == {"top": [names[0]]}
    assert found["properties"][names[0]]["description"] == "filter[id]: Which."


def test_renaming_is_deterministic() -> None:
    """Prompt caches and earlier calls depend on stable names."""
    converted_tool.cache_clear()
    first = schema_of(ODD, ANTHROPIC_RULES)
    converted_tool.cache_clear()

    assert schema_of(ODD, ANTHROPIC_RULES) == first


def test_conditions_are_renamed() -> None:
    """Conditions about renamed parameters use the new names."""
    schema = {
        "properties": {"a b": True, "c d": False},
        "if": {"properties": {"a b": {"const": 1}}},
        "then": {"required": ["c d"]},
        "dependentSchemas": {"a b": {"required": ["c d"]}, "c d": True},
    }

    assert schema_of(schema, ANTHROPIC_RULES) == {
        "type": "object",
        "properties": {"a_b": {"description": "a b"}, "c_d": False},
        "if": {"properties": {"a_b": {"const": 1, "description": "a b"}}},
        "then": {"required": ["c_d"]},
        "dependentSchemas": {"a_b": {"required": ["c_d"]}, "c_d": True},
    }


def test_nested_names_are_kept() -> None:
    """Names of nested properties are kept, as providers accept them."""
    schema = {"properties": {"a": {"type": "object", "properties": {"b c": TEXT}}}}

    assert sendable_tool(definition := ToolDefinition("a", "", schema), ANTHROPIC_RULES).names == {}
    assert sendable_tool(definition, ANTHROPIC_RULES).definition is definition


def test_described_names_are_the_sent_ones() -> None:
    """Descriptions of alternatives use the names that are sent."""
    union = {"anyOf": [{"properties": {"a b": TEXT}, "required": ["a b"]}, BY_URL]}

    assert sent(union, ANTHROPIC_RULES).description.endswith("arguments: a_b; or url.")


# --- nested schemas -------------------------------------------------------------------------


def test_missing_items_are_added() -> None:
    """The items of a tuple are a union of its elements."""
    pair = {"type": "array", "prefixItems": [TEXT, {"type": "integer"}]}
    schema = {"properties": {"pair": pair, "list": {"type": ["array", "null"]}}}

    assert schema_of(schema, OPENAI_RULES)["properties"] == {
        "pair": {**pair, "items": {"anyOf": [TEXT, {"type": "integer"}]}},
        "list": {"type": ["array", "null"], "items": {}},
    }
    assert sent(schema, ANTHROPIC_RULES).input_schema["properties"] == schema["properties"]


@pytest.mark.parametrize("rules", ALL_RULES.values(), ids=ALL_RULES)
def test_tuples_use_draft_2020_12(rules: SchemaRules) -> None:
    """A list in `items` becomes `prefixItems`."""
    items = {"type": "array", "items": [TEXT, TEXT], "additionalItems": TEXT}
    schema = {"properties": {"pair": items}}
    pair = schema_of(schema, rules)["properties"]["pair"]

    assert pair["prefixItems"] == [TEXT, TEXT]
    assert pair["items"] == TEXT
    assert "additionalItems" not in pair


def test_unsupported_patterns_are_removed() -> None:
    """Unsupported patterns are removed; the tool still validates them."""
    schema = {"properties": {"a": {**TEXT, "pattern": r"^\p{L}+$"}, "b": {"pattern": "^a+$"}}}

    assert schema_of(schema, OPENAI_RULES)["properties"] == {"a": TEXT, "b": {"pattern": "^a+$"}}


def test_boolean_schemas_become_objects() -> None:
    """Boolean schemas become objects, except in `additionalProperties`."""
    schema = {"properties": {"a": True, "b": False}, "additionalProperties": False}

    assert schema_of(schema, OLLAMA_RULES)["properties"] == {"a": {}, "b": {"not": {}}}
    assert schema_of(schema, OLLAMA_RULES)["additionalProperties"] is False
    assert schema_of(schema, OPENAI_RULES)["properties"] == {"a": True, "b": False}


def test_gemini_references() -> None:
    """Other reference targets move into `$defs`; description and default are kept."""
    schema = {
        "properties": {
            "headers": {"type": "object"},
            "more": {"$ref": "#/properties/headers", "title": "More", "description": "More."},
            "old": {"$ref": "#/definitions/Old"},
            "self": {"$ref": "#"},
            "any": True,
        },
        "$defs": {"headers": TEXT},
        "definitions": {"Old": {"properties": {"next": {"$ref": "#/definitions/Old"}}}},
    }
    found = schema_of(schema, GEMINI_RULES)

    assert found["properties"] == {
        "headers": {"type": "object"},
        "more": {"$ref": "#/$defs/headers_2", "description": "More."},
        "old": {"$ref": "#/$defs/Old"},
        "self": {"$ref": "#/$defs/Arguments"},
        "any": True,
    }
    assert "definitions" not in found
    assert found["$defs"]["Old"] == {"properties": {"next": {"$ref": "#/$defs/Old"}}}
    assert found["$defs"]["Arguments"]["properties"]["self"] == {"$ref": "#/$defs/Arguments"}


def test_references_into_merged_alternatives() -> None:
    """Targets inside merged alternatives move into `$defs`."""
    schema = {
        "anyOf": [
            {"properties": {"a": {"$ref": "#/anyOf/0/$defs/A"}}, "$defs": {"A": TEXT}},
            {"properties": {"b": {"$ref": "#/anyOf/0/properties/a"}}},
        ]
    }
    found = schema_of(schema, OPENAI_RULES)

    assert found["$defs"] == {"A": TEXT, "a": {"$ref": "#/$defs/A"}}
    assert not Draft202012Validator(found).is_valid({"b": 1})


# --- unchanged schemas and messages ---------------------------------------------------------

PLAIN: list[Json] = [
    {},
    {"properties": {"a": TEXT}, "required": ["a"], "additionalProperties": False},
    {"properties": {"a": {"anyOf": [TEXT, {"type": "null"}]}}, "additionalProperties": TEXT},
    {"properties": {"a": {"type": ["string", "null"]}, "b": {"const": 1}}},
    {
        "properties": {"a": {"$ref": "#/$defs/Node", "description": "A node."}},
        "$defs": {"Node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}}},
    },
]


@pytest.mark.parametrize("rules", ALL_RULES.values(), ids=ALL_RULES)
@pytest.mark.parametrize("schema", PLAIN)
def test_valid_schema_is_unchanged(schema: Json, rules: SchemaRules) -> None:
    """Valid schemas are sent byte for byte, so that prompt caches stay valid."""
    definition = ToolDefinition("save", "Saves.", schema)

    assert sendable_tool(definition, rules).definition is definition


@needs_recordings
@pytest.mark.exhaustive
@pytest.mark.parametrize("api", ["anthropic", "gemini", "ollama", "openai"])
def test_recorded_schemas_are_unchanged(api: str) -> None:
    """Tool schemas of successful recorded requests are unchanged."""
    definitions = [
        ToolDefinition(name, "", schema)
        for path in RECORDINGS.joinpath("dev").glob(f"{api}.*.json")
        for name, schema in recorded_tools(json.loads(path.read_text()))
    ]

    assert definitions
    for definition in definitions:
        assert sendable_tool(definition, ALL_RULES[api]).definition is definition


def recorded_tools(exchange: Json) -> Iterator[tuple[str, Json]]:
    """Yield name and schema of the tools in successful recorded requests."""
    body = exchange["request"]["body"]
    if exchange["response"]["status"] != 200 or not isinstance(body, dict):
        return
    tools: list[Any] = body.get("tools") or []
    for tool in [each for each in tools if isinstance(each, dict)]:
        for declaration in tool.get("functionDeclarations") or [tool.get("function", tool)]:
            schemas = (
                declaration.get(k) for k in ("parametersJsonSchema", "parameters", "input_schema")
            )
            schema = next(filter(None, schemas), None)
            if schema is not None and schema.get("type") == "object":
                yield declaration.get("name") or "", schema


def test_key_order_is_kept() -> None:
    """Key order, and so the bytes that are sent, is kept."""
    first = ToolDefinition("save", "Saves.", {"properties": {"a": TEXT}, "type": "object"})
    second = ToolDefinition("save", "Saves.", {"type": "object", "properties": {"a": TEXT}})

    assert first == second
    assert sendable_tool(first, OPENAI_RULES).definition is first
    assert sendable_tool(second, OPENAI_RULES).definition is second


def test_unaffected_conversation_is_not_copied() -> None:
    """Conversations without renamed tools are not copied."""
    renamed = RenamedArguments(ANTHROPIC_RULES)
    options = ChatOptions(tool_callbacks=[Recorder(PLAIN[1])])
    messages = (UserMessage("x"), AssistantMessage(tool_calls=[ToolCall("1", "save", "{}")]))
    answer = ChatResponse((Generation(messages[1]),))

    assert renamed.sent(messages, options) is messages
    assert renamed.received(answer, options) is answer


def test_renamed_messages_are_cached() -> None:
    """Renamed messages stay the same objects, so that their JSON is reused."""
    renamed = RenamedArguments(ANTHROPIC_RULES)
    call = AssistantMessage(["a", ToolCall("1", "save", '{"$top": 1}')])
    first = renamed.sent((call,), ChatOptions(tool_callbacks=[Recorder(ODD)]))
    again = renamed.sent((call, call), ChatOptions(tool_callbacks=[Recorder(ODD)]))

    assert first[0].tool_calls[0].arguments == '{"top":1}'  # type: ignore[attr-defined]
    assert again[0] is first[0]


# --- unsupported schemas --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"$ref": "#/$defs/Lost"}, "refers to '#/$defs/Lost', which it does not define"),
        ({"$ref": "https://x.test/a.json"}, "refers to 'https://x.test/a.json', which is not part"),
        ({"$ref": "#"}, "its top level refers to itself, by '#'"),
        ({"anyOf": [{"$ref": "#"}]}, "its top level refers to itself"),
        ({"anyOf": [{"type": "string"}]}, "none of the alternatives of its 'anyOf' is an object"),
        ({"enum": [1, 2]}, "none of the alternatives of its 'enum' is an object"),
        ({"allOf": [{"type": "string"}]}, "a part of its 'allOf' is not an object"),
        ({"$ref": "#/$defs/A", "$defs": {"A": TEXT}}, "refers to '#/$defs/A', which is not an obj"),
        ({"anyOf": 7}, "it is no JSON Schema"),
    ],
)
def test_unsupported_schema_names_the_tool(schema: Json, reason: str) -> None:
    """The error names the tool, before a request is sent."""
    with OpenAIChatModel("m", api_key="k", base_url="http://127.0.0.1:9/v1") as model:
        options = ChatOptions(tool_callbacks=[Recorder(schema)])
        with pytest.raises(ToolDefinitionError) as caught:
            model.call(Prompt("x", options))

    assert "the input schema of the tool 'save' cannot be converted" in str(caught.value)
    assert reason in str(caught.value)


@pytest.mark.parametrize("service", SERVICES, ids=str)
def test_unsupported_schema_sends_no_request(service: Any) -> None:
    """With every provider the error is raised without a server."""
    options = ChatOptions(tool_callbacks=[Recorder({"$ref": "#/$defs/Lost"})])
    with service.model("http://127.0.0.1:9") as model:
        with pytest.raises(ToolDefinitionError, match="'save'"):
            model.call(Prompt("x", options))
        with pytest.raises(ToolDefinitionError, match="'save'"):
            list(model.stream(Prompt("x", options)))


# --- requests -------------------------------------------------------------------------------

HARD: list[Json] = [
    ODD,
    {"anyOf": [BY_URL, BY_TEXT]},
    {"properties": {"pair": {"type": "array", "items": [TEXT, TEXT]}, "any": True}},
    {"properties": {"a": {"$ref": "#/properties/b", "title": "A"}, "b": {"type": "object"}}},
]


@needs_recordings
@pytest.mark.parametrize("schema", HARD)
@pytest.mark.parametrize("api", ["chat", "responses"])
def test_requests_match_the_openai_schema(api: str, schema: Json) -> None:
    """Requests are valid by OpenAI's published schema."""
    path = RECORDINGS / "schemas" / f"openai-{api}-request.json"
    options = ChatOptions(model="m", tool_callbacks=[Recorder(schema)])
    request = (
        {
            "messages": [{"role": "user", "content": "x"}],
            **chat_request(options, OPENAI, streaming=False),
        }
        if api == "chat"
        else {"input": "x", **responses_request(options, streaming=False)}
    )
    tool = request["tools"][0]

    Draft202012Validator(json.loads(path.read_text())).validate(json.loads(json.dumps(request)))
    assert {"anyOf", "oneOf", "allOf"}.isdisjoint(tool.get("function", tool)["parameters"])


@pytest.mark.parametrize("schema", HARD)
def test_requests_match_official_types(schema: Json) -> None:
    """Requests are valid by the types of the official packages."""
    anthropic = pytest.importorskip("anthropic")
    genai = pytest.importorskip("google.genai")
    ollama = pytest.importorskip("ollama")
    options = ChatOptions(model="m", tool_callbacks=[Recorder(schema)])
    tool = anthropic_request(options, streaming=False)["tools"][0]
    TypeAdapter(anthropic.types.ToolParam).validate_python(tool)
    declarations = gemini_request(options)["tools"][0]["functionDeclarations"]
    genai.types.Tool.model_validate({"functionDeclarations": declarations})
    ollama.Tool.model_validate(ollama_request(options, streaming=False)["tools"][0])
    parameters = chat_request(options, COMPATIBLE, streaming=False)["tools"][0]["function"]

    for found in (
        tool["input_schema"],
        declarations[0]["parametersJsonSchema"],
        parameters["parameters"],
    ):
        Draft202012Validator.check_schema(json.loads(json.dumps(found)))


# --- calls ----------------------------------------------------------------------------------


def test_arguments_have_original_names(ask: Ask, serve: Serve) -> None:
    """Calls use the sent names; the tool and the history have the original ones."""
    given = {"top": 3, "a.b-c": "x"}
    server = serve(message("I save.", tool_use("toolu_1", "save", given)), "done")
    tool = Recorder(ODD)
    result = ask(ChatClient.create(server.model()).prompt("x").tools(tool))

    assert result.text.endswith("done")
    assert tool.given == [{"$top": 3, "a.b-c": "x"}]
    assert json.loads(result.executions[0].arguments or "") == tool.given[0]
    assert server.requests[1]["messages"][1]["content"][1]["input"] == given


def test_other_calls_are_unchanged(ask: Ask, chat_server: Any) -> None:
    """Calls of other tools are unchanged, also with the same argument names."""
    calls = [("1", "other", '{"top": 1}'), ("2", "save", '{"top": 2}'), ("3", "save", "{}")]
    server = chat_server(completion(None, *calls), "done")
    tool, other = Recorder(ODD), Recorder({"properties": {"top": {}}}, "other")
    with OpenAIChatModel("m", api_key="k", base_url=server.url) as model:
        result = ask(ChatClient.create(model).prompt("x").tools(tool, other))

    assert result.text == "done"
    assert other.given == [{"top": 1}]
    assert tool.given == [{"$top": 2}, {}]
    sent_back = [c["function"] for c in server.requests[1]["messages"][1]["tool_calls"]]
    assert [json.loads(each["arguments"]) for each in sent_back] == [{"top": 1}, {"top": 2}, {}]


def test_mcp_tool_with_rewritten_schema(ask: Ask, serve: Serve) -> None:
    """A tool of an MCP server with such a schema can be called."""
    server = serve(message(tool_use("toolu_1", "attach", {"source_url": "http://a"})), "done")
    client = ChatClient.create(server.model())
    with McpToolCallbackProvider(peer("peer", "union")) as tools:
        result = ask(client.prompt("x").tools(tools))

    assert result.text == "done"
    assert result.executions[0].response.data == '{"source url": "http://a"}'


class Address(BaseModel):
    street: str = Field(alias="street name")


def test_entity_tool_arguments_are_restored(ask: Ask, serve: Serve) -> None:
    """An entity requested as tool arguments has its original names."""
    server = serve(message(tool_use("toolu_1", "final_answer", {"street_name": "Elm"})))
    request = ChatClient.create(server.model()).prompt("x")
    found = entity(ask, request, Address, native="tool")

    assert found == Address.model_validate({"street name": "Elm"})
    assert list(server.requests[0]["tools"][0]["input_schema"]["properties"]) == ["street_name"]


def test_malformed_arguments_are_unchanged() -> None:
    """Malformed arguments are passed to the tool, which reports the error."""
    renamed = RenamedArguments(ANTHROPIC_RULES)
    options = ChatOptions(tool_callbacks=[Recorder(ODD)])

    def received(arguments: str) -> str:
        call = AssistantMessage(tool_calls=[ToolCall("1", "save", arguments)])
        response = renamed.received(ChatResponse((Generation(call),)), options)
        return response.generations[0].output.tool_calls[0].arguments

    assert received("top, please") == "top, please"
    assert received('{"filter_id": 1.0}') == '{"filter_id": 1.0}'
    assert received('{"top": 1,}') == '{"$top":1}'


async def test_streamed_calls_are_restored() -> None:
    """Calls in fragments are restored by index or id, with several choices or metadata."""
    renamed = RenamedArguments(ANTHROPIC_RULES)
    options = ChatOptions(tool_callbacks=[Recorder(ODD)])

    async def chunks() -> AsyncGenerator[ChatResponse | str, None]:
        for index in (0, 1):
            yield chunk(index, ToolCallChunk(0, "a", "save", metadata={"signature": "s"}))
            yield chunk(index, "text", ToolCallChunk(0, "", "", '{"to'))
            yield chunk(index, ToolCallChunk(1, "b", "other", '{"top": 5}'))
            yield chunk(index, ToolCallChunk(0, "a", "", 'p": 1}'))
            yield chunk(index, ToolCallChunk(1, "b"), ToolCall("c", "save", '{"top": 2}'))
            yield chunk(index, ToolCall("d", "save", '{"top": 3}'))
        yield "more"

    aggregator = MessageAggregator()
    async for each in renamed.received_stream(chunks(), options):
        aggregator.add(each)
    first, second = aggregator.response().generations

    assert first.output.text == "textmore"
    for generation in (first, second):
        save, other, *complete = generation.output.tool_calls
        assert (save.id, save.arguments, save.metadata) == ("a", '{"$top":1}', {"signature": "s"})
        assert (other.name, other.arguments) == ("other", '{"top": 5}')
        assert [call.arguments for call in complete] == ['{"$top":2}', '{"$top":3}']


def chunk(index: int, *parts: Any) -> ChatResponse:
    return ChatResponse((Generation(AssistantMessage(parts), index=index),))
