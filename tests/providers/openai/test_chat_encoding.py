"""Encoding of prompts as Chat Completions requests, by data."""

import json
import re
from dataclasses import dataclass, field
from typing import Any

import pytest

from chatclient.chat.messages import (
    AssistantMessage,
    Media,
    Message,
    Part,
    ProviderPart,
    Reasoning,
    SystemMessage,
    ToolCall,
    ToolResponse,
    ToolResponseMessage,
    UserMessage,
)
from chatclient.chat.options import ChatOptions
from chatclient.chat.tool import ToolContext, ToolDefinition, ToolMetadata, ToolResult
from chatclient.errors import UsageError
from chatclient.providers.openai.chat import OpenAIChatOptions, encode_options
from chatclient.providers.openai.chat_encoding import encode_message
from chatclient.providers.openai.dialect import (
    COMPATIBLE,
    OPENAI,
    PRESETS,
    REASONING_FIELD,
    Dialect,
    with_system_role,
)
from chatclient.providers.wire.request_body import cached_json

MISTRAL = PRESETS["mistral"].dialect
OPENROUTER = PRESETS["openrouter"].dialect


@dataclass(frozen=True)
class Declared:
    """A tool with a definition only."""

    definition: ToolDefinition
    metadata: ToolMetadata = field(default_factory=ToolMetadata)

    async def invoke(self, arguments: str, context: ToolContext) -> ToolResult:
        raise NotImplementedError


OPEN = {"type": "object", "properties": {"a": {"type": "integer"}}}
CLOSED = {**OPEN, "required": ["a"], "additionalProperties": False}


def tool(schema: dict[str, Any] = OPEN, *, strict: bool | None = None) -> Declared:
    return Declared(ToolDefinition("add", "Add.", schema, strict))


def options_on_wire(
    options: ChatOptions, dialect: Dialect = OPENAI, *, streaming: bool = False
) -> dict[str, Any]:
    """Return the request fields for *options*, without `"stream": false`."""
    body = encode_options(options, dialect, streaming=streaming)
    assert body["stream"] is streaming
    return body if streaming else {key: body[key] for key in body if key != "stream"}


def on_wire(message: Message, dialect: Dialect = OPENAI) -> dict[str, Any]:
    (element,) = encode_message(message, dialect)
    return element


# --- options --------------------------------------------------------------------------------


@pytest.mark.feature(
    "tool-options-parallel-calls-off",
    "options-model-temperature-top-p",
    "provider-parallel-tool-calls-disable",
)
def test_option_names_of_dialects() -> None:
    """Common options have the names of each server."""
    options = ChatOptions(model="m", max_tokens=5, seed=7, stop=("x",), temperature=0.0)

    assert options_on_wire(options) == {
        "model": "m",
        "max_completion_tokens": 5,
        "seed": 7,
        "stop": ("x",),
        "temperature": 0.0,
    }
    assert options_on_wire(options, MISTRAL) == {
        "model": "m",
        "max_tokens": 5,
        "random_seed": 7,
        "stop": ("x",),
        "temperature": 0.0,
    }


@pytest.mark.parametrize(
    ("server", "has_it"), [("azure", False), ("groq", False), ("mistral", False), ("vllm", True)]
)
def test_unsupported_options_are_not_sent(server: str, *, has_it: bool) -> None:
    """Default options that a server rejects are not sent."""
    options = ChatOptions(top_k=5).as_defaults()

    assert ("top_k" in options_on_wire(options, PRESETS[server].dialect)) is has_it
    assert "top_k" not in options_on_wire(options, OPENAI)


def test_openai_options() -> None:
    """Options specific to OpenAI are typed."""
    options = OpenAIChatOptions(
        n=2,
        reasoning_effort="low",
        service_tier="flex",
        request_metadata={"a": "b"},
        response_format={"type": "json_object"},
        prompt_cache_key="k",
        stop=(),
    )

    assert options_on_wire(options) == {
        "n": 2,
        "reasoning_effort": "low",
        "service_tier": "flex",
        "metadata": {"a": "b"},
        "response_format": {"type": "json_object"},
        "prompt_cache_key": "k",
    }


@pytest.mark.parametrize(
    ("dialect", "stream_options"), [(OPENAI, {"include_usage": True}), (MISTRAL, None)]
)
def test_stream_usage_option(dialect: Dialect, stream_options: Any) -> None:
    """Stream usage is requested only from servers that need it."""
    body = options_on_wire(ChatOptions(), dialect, streaming=True)

    assert body["stream"] is True
    assert body.get("stream_options") == stream_options


@pytest.mark.feature(
    "tool-options-tool-choice-provider-specific",
    "lc4j-tool-choice-auto-required",
    "provider-tool-choice-name",
)
@pytest.mark.parametrize(
    ("choice", "written"),
    [
        ("auto", "auto"),
        ("none", "none"),
        ("required", "required"),
        ("add", {"type": "function", "function": {"name": "add"}}),
    ],
)
def test_tool_choice(choice: str, written: Any) -> None:
    """A tool choice is a keyword or the name of a tool."""
    options = ChatOptions(tool_callbacks=(tool(),), tool_choice=choice, parallel_tool_calls=False)
    body = options_on_wire(options)

    assert body["tool_choice"] == written
    assert body["parallel_tool_calls"] is False


def test_no_tool_choice_without_tools() -> None:
    """The API rejects a tool choice without tools."""
    assert options_on_wire(ChatOptions(tool_choice="auto", parallel_tool_calls=True)) == {}


@pytest.mark.feature(
    "schema-strict-form-providers", "lc4j-tool-specification-strict", "provider-strict-tools"
)
@pytest.mark.parametrize(
    ("declared", "option", "written"),
    [
        (tool(), None, None),
        (tool(strict=True), None, True),
        (tool(CLOSED, strict=False), True, False),
        (tool(CLOSED), True, True),
        (tool(OPEN), True, False),
        (tool(CLOSED), False, False),
    ],
)
def test_strict_tools(declared: Declared, *, option: bool | None, written: bool | None) -> None:
    """The tool's own setting wins over the option, if the schema can be strict."""
    options = OpenAIChatOptions(tool_callbacks=(declared,), strict_tools=option)

    assert options_on_wire(options)["tools"][0]["function"].get("strict") is written


@pytest.mark.parametrize(
    ("schema", "strict"),
    [
        (CLOSED, True),
        (OPEN, False),
        ({**CLOSED, "required": []}, False),
        ({"type": "object"}, False),
        ({"type": "object", "additionalProperties": False}, True),
        ({**CLOSED, "properties": {"a": OPEN}}, False),
        ({**CLOSED, "properties": {"a": {"anyOf": [CLOSED, {"type": "null"}]}}}, True),
        ({**CLOSED, "properties": {"a": {"anyOf": [OPEN, {"type": "null"}]}}}, False),
        ({**CLOSED, "properties": {"a": {"$ref": "#/$defs/B"}}, "$defs": {"B": CLOSED}}, True),
        ({**CLOSED, "properties": {"a": {"$ref": "#/$defs/B"}}, "$defs": {"B": OPEN}}, False),
        ({"type": "array", "items": CLOSED}, False),
        ({**CLOSED, "properties": {"a": {"not": {"type": "null"}}}}, False),
        ({**CLOSED, "properties": {"a": True}}, False),
        ({**CLOSED, "definitions": {"B": CLOSED}}, False),
    ],
)
def test_strict_output_schema(schema: dict[str, Any], *, strict: bool) -> None:
    """A schema that strict mode would reject is not strict."""
    body = options_on_wire(ChatOptions(output_schema=schema))

    sent = {"properties": {}, "required": [], **schema} if strict else schema
    assert body["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": sent, "strict": strict},
    }


@pytest.mark.feature("provider-strict-tools")
def test_strict_mode_keywords() -> None:
    """Keywords unknown to strict mode are removed; `oneOf` becomes `anyOf`."""
    places = {
        "url": {"type": "string", "format": "uri", "minLength": 1},
        "kind": {"oneOf": [{"type": "string"}, {"type": "null"}]},
    }
    schema = {**CLOSED, "properties": places, "required": ["url", "kind"]}
    options = OpenAIChatOptions(
        tool_callbacks=(tool(schema),), strict_tools=True, output_schema=schema
    )
    body = options_on_wire(options)

    function, answer = body["tools"][0]["function"], body["response_format"]["json_schema"]
    assert function["strict"] is answer["strict"] is True
    assert function["parameters"] == answer["schema"]
    assert answer["schema"]["properties"] == {
        "url": {"type": "string"},
        "kind": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    }


@pytest.mark.parametrize(
    ("title", "name"),
    [("Film", "Film"), ("list[Film]", "list_Film"), ("ä", "answer"), ("x" * 99, "x" * 64)],
)
def test_schema_name(title: str, name: str) -> None:
    """Titles of generic types become valid names."""
    body = options_on_wire(ChatOptions(output_schema={**CLOSED, "title": title}))

    assert body["response_format"]["json_schema"]["name"] == name


# --- system and user ------------------------------------------------------------------------


def test_system_role() -> None:
    """The role is that of the dialect or of the message."""
    message = SystemMessage("be brief")

    assert on_wire(message) == {"role": "system", "content": "be brief"}
    assert on_wire(message, with_system_role(OPENAI, "developer"))["role"] == "developer"
    assert on_wire(SystemMessage("x", {"role": "developer"}))["role"] == "developer"
    assert with_system_role(OPENAI, "user") is with_system_role(OPENAI, "user")
    assert with_system_role(OPENAI, "system") is OPENAI


MARK = {"type": "ephemeral"}
MARKED = [{"type": "text", "text": "x", "cache_control": MARK}]


@pytest.mark.parametrize(
    "message",
    [
        SystemMessage("x", {"cache_control": MARK}),
        UserMessage("x", metadata={"cache_control": MARK}),
        AssistantMessage("x", metadata={"cache_control": MARK}),
        ToolResponseMessage([ToolResponse("c", "f", "x")], {"cache_control": MARK}),
    ],
)
def test_cache_marks(message: Message) -> None:
    """Cache marks are sent to servers for Anthropic's models, not to OpenAI."""
    assert on_wire(message, COMPATIBLE)["content"] == MARKED
    assert on_wire(message, OPENAI)["content"] == "x"


def test_cache_mark_without_content() -> None:
    """Tool calls are not marked; of several parts the last one is."""
    call = AssistantMessage(None, [ToolCall("c", "f", "{}")], metadata={"cache_control": MARK})
    picture = UserMessage("x", [Media("image/png", "https://x.org/a.png")], {"cache_control": MARK})

    assert on_wire(call, COMPATIBLE)["content"] is None
    assert [p.get("cache_control") for p in on_wire(picture, COMPATIBLE)["content"]] == [None, MARK]


def test_message_name() -> None:
    """Names are reduced to the characters that the API allows."""
    assert on_wire(UserMessage("x", metadata={"name": "ada"})) == {
        "role": "user",
        "name": "ada",
        "content": "x",
    }
    assert on_wire(SystemMessage("x", {"name": "A. <b> Lovelace"}))["name"] == "A._b_Lovelace"
    assert on_wire(AssistantMessage("x", metadata={"name": "hal"}))["name"] == "hal"
    assert "name" not in on_wire(UserMessage("x", metadata={"name": 7}))
    results = ToolResponseMessage([ToolResponse("c", "f", "x")], {"name": "ada"})
    assert "name" not in on_wire(results)


PIXEL = Media("image/png", b"\x89PNG")


@pytest.mark.parametrize(
    ("media", "written"),
    [
        (PIXEL, {"type": "image_url", "image_url": {"url": PIXEL.url()}}),
        (
            Media("image/*", "https://x.org/a.png", metadata={"detail": "low", "mine": 1}),
            {"type": "image_url", "image_url": {"url": "https://x.org/a.png", "detail": "low"}},
        ),
        (
            Media("audio/mpeg", b"abc"),
            {"type": "input_audio", "input_audio": {"data": "YWJj", "format": "mp3"}},
        ),
        (
            Media("audio/wav", "data:audio/wav;base64,YWJj"),
            {"type": "input_audio", "input_audio": {"data": "YWJj", "format": "wav"}},
        ),
        (
            Media("application/pdf", b"abc", name="a.pdf"),
            {
                "type": "file",
                "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,YWJj"},
            },
        ),
        (
            Media("application/pdf", "", id="file-1"),
            {"type": "file", "file": {"file_id": "file-1"}},
        ),
        (
            Media("application/pdf", b"abc"),
            {
                "type": "file",
                "file": {"filename": "file.pdf", "file_data": "data:application/pdf;base64,YWJj"},
            },
        ),
    ],
    ids=lambda value: value.mime_type if isinstance(value, Media) else "",
)
def test_media_parts(media: Media, written: dict[str, Any]) -> None:
    """Images, sounds and documents have their own parts."""
    content = on_wire(UserMessage("see", [media]))["content"]

    assert content == [{"type": "text", "text": "see"}, written]


@pytest.mark.parametrize("mime_type", ["image/svg+xml", "audio/ogg"])
def test_media_that_openai_does_not_take(mime_type: str) -> None:
    """Other images and sounds are an error before sending, and a note in a tool's result."""
    media = Media(mime_type, b"a")
    result = ToolResponseMessage(ToolResponse("c1", "look", "seen", media=(media,)))
    *_, shown = encode_message(result, OPENAI)

    with pytest.raises(UsageError, match=f"openai takes no {re.escape(mime_type)}; convert it"):
        encode_message(UserMessage([media]), OPENAI)
    assert f"openai takes no {mime_type}" in shown["content"][-1]["text"]
    assert on_wire(UserMessage([media]), COMPATIBLE)["content"][0]["type"] != "text"


def test_media_parts_of_dialects() -> None:
    """Other servers have other parts for videos and documents."""
    video = UserMessage([Media("video/mp4", "https://x.org/a.mp4")])
    document = UserMessage([Media("application/pdf", "https://x.org/a.pdf")])

    assert on_wire(video, COMPATIBLE)["content"] == [
        {"type": "video_url", "video_url": {"url": "https://x.org/a.mp4"}}
    ]
    assert on_wire(document, MISTRAL)["content"] == [
        {"type": "document_url", "document_url": "https://x.org/a.pdf"}
    ]


def test_provider_part_with_type() -> None:
    """A provider part with a type is sent unchanged."""
    part = ProviderPart("openai", {"type": "odd", "name": "x", "refusal": "no"}, "said")

    assert on_wire(AssistantMessage([part])) == {"role": "assistant", "content": "said"}


@pytest.mark.feature("lc4j-aimessage-attributes-thought-signatures")
def test_foreign_provider_parts() -> None:
    """Other providers are sent the text of a provider part, if it has one."""
    part = {"type": "text", "text": "cached", "cache_control": {"type": "ephemeral"}}
    message = UserMessage(
        [
            ProviderPart("openrouter", part, "cached"),
            ProviderPart("openrouter", {"name": "ada"}),
            ProviderPart("openrouter", {"type": "odd"}),
            "",
        ]
    )

    assert on_wire(message, OPENROUTER) == {
        "role": "user",
        "content": [part, {"type": "odd"}],
        "name": "ada",
    }
    assert on_wire(message, OPENAI)["content"] == [{"type": "text", "text": "cached"}]
    assert on_wire(UserMessage(), OPENAI) == {"role": "user", "content": ""}


# --- the assistant --------------------------------------------------------------------------


def test_assistant_without_text() -> None:
    """Content is null with calls, refusals or sounds, and empty otherwise."""
    call = ToolCall("c1", "add", "{}")

    assert on_wire(AssistantMessage())["content"] == ""
    assert on_wire(AssistantMessage("", [call]))["content"] is None
    assert on_wire(AssistantMessage("hm", [call]))["content"] == "hm"


def test_refusal_is_sent_back() -> None:
    """The same provider gets the refusal, others its text."""
    pieces = [ProviderPart("openai", {"refusal": text}, text) for text in ("I ", "won't")]
    message = AssistantMessage(pieces)

    assert on_wire(message) == {"role": "assistant", "content": None, "refusal": "I won't"}
    assert on_wire(message, COMPATIBLE) == {"role": "assistant", "content": "I won't"}


def test_audio_is_sent_back_by_id() -> None:
    """The same provider gets the audio id, others the transcript."""
    sound = Media("audio/wav", b"RIFF", "audio_1")
    id = ProviderPart("openai", {"audio": {"id": "audio_1"}})
    message = AssistantMessage(["hello", sound, id, id])

    assert on_wire(message) == {"role": "assistant", "content": None, "audio": {"id": "audio_1"}}
    assert on_wire(message, COMPATIBLE) == {"role": "assistant", "content": "hello"}


def test_citations_are_not_sent() -> None:
    """Metadata without a request field is not sent."""
    part = ProviderPart("openai", {"annotations": [{"type": "url_citation"}]})

    assert on_wire(AssistantMessage(["x", part])) == {"role": "assistant", "content": "x"}


@pytest.mark.parametrize(
    ("dialect", "field_name"),
    [
        (OPENAI, None),
        (PRESETS["deepseek"].dialect, "reasoning_content"),
        (PRESETS["vllm"].dialect, "reasoning"),
        (PRESETS["together"].dialect, "thought"),
    ],
    ids=lambda value: getattr(value, "provider", value),
)
def test_reasoning_field(dialect: Dialect, field_name: str | None) -> None:
    """Reasoning is sent in a fixed field, in its original field, or not at all."""
    thoughts = [Reasoning("so ", provider=dialect.provider), Reasoning("what")]
    message = AssistantMessage(
        "x",
        reasoning=[*thoughts, Reasoning("other", provider="anthropic")],
        metadata={REASONING_FIELD: "thought"},
    )
    element = on_wire(message, dialect)

    assert {k: v for k, v in element.items() if k not in ("role", "content")} == (
        {field_name: "so what"} if field_name else {}
    )


@pytest.mark.parametrize(
    "message",
    [
        AssistantMessage("x"),
        AssistantMessage("", [ToolCall("c1", "add", "{}")]),
        AssistantMessage("x", reasoning=[Reasoning("so", provider="anthropic")]),
    ],
)
def test_required_reasoning_is_empty(message: AssistantMessage) -> None:
    """DeepSeek requires the field, also for messages without reasoning."""
    assert on_wire(message, PRESETS["deepseek"].dialect)["reasoning_content"] == ""
    assert "reasoning" not in on_wire(message, PRESETS["vllm"].dialect)


def test_foreign_reasoning_is_not_sent() -> None:
    """A server that expects its own reasoning is not sent that of others."""
    message = AssistantMessage("x", reasoning=[Reasoning("so")])

    assert on_wire(message, COMPATIBLE) == {"role": "assistant", "content": "x"}


def test_openrouter_reasoning_details() -> None:
    """Reasoning details replace the reasoning text."""
    details = [{"type": "reasoning.text", "text": "so", "signature": "s"}]
    message = AssistantMessage(
        [
            Reasoning("so", provider="openrouter"),
            ProviderPart("openrouter", {"reasoning_details": details}),
            ProviderPart("openrouter", {"reasoning_details": [{"type": "reasoning.encrypted"}]}),
        ],
        [ToolCall("c1", "add", "{}")],
        metadata={REASONING_FIELD: "reasoning"},
    )
    element = on_wire(message, OPENROUTER)

    assert element["reasoning_details"] == [*details, {"type": "reasoning.encrypted"}]
    assert "reasoning" not in element


def test_litellm_thinking_blocks() -> None:
    """Thinking blocks of LiteLLM replace the reasoning text."""
    blocks = [{"type": "thinking", "thinking": "so", "signature": "s"}]
    name = COMPATIBLE.provider
    kept, received = ProviderPart(name, {"thinking_blocks": blocks}), {REASONING_FIELD: "reasoning"}
    message = AssistantMessage([Reasoning("so", provider=name), kept], metadata=received)
    element = on_wire(message, COMPATIBLE)

    assert element == {"role": "assistant", "content": "", "thinking_blocks": blocks}


def test_databricks_reasoning_in_content() -> None:
    """Signed reasoning is sent in the content; that of other providers is not."""
    item = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "so"}]}
    name = COMPATIBLE.provider
    thoughts: list[Part] = [
        Reasoning("so", provider=name),
        Reasoning(provider=name, data=item),
    ]
    of_responses = Reasoning(provider="openai", data={"type": "reasoning", "id": "rs_1"})

    assert on_wire(AssistantMessage([*thoughts, "x"]), COMPATIBLE)["content"] == [
        item,
        {"type": "text", "text": "x"},
    ]
    assert on_wire(AssistantMessage(thoughts), COMPATIBLE)["content"] == [item]
    assert on_wire(AssistantMessage([of_responses, "x"]), COMPATIBLE)["content"] == "x"
    assert on_wire(AssistantMessage([of_responses, "x"]), OPENAI)["content"] == "x"


def test_mistral_reasoning_in_content() -> None:
    """Mistral's content is a list if it has more than text."""
    reference = {"type": "thinking", "thinking": [{"type": "reference", "reference_ids": [1]}]}
    message = AssistantMessage(
        [
            Reasoning("so", provider="mistral"),
            Reasoning("", provider="mistral", data=reference),
            Reasoning("other", provider="anthropic"),
            "x",
            ProviderPart("mistral", {"type": "reference", "reference_ids": [1]}),
            ProviderPart("openai", {"refusal": "y"}, "y"),
            ProviderPart("openai", {"annotations": []}),
        ]
    )

    assert on_wire(message, MISTRAL)["content"] == [
        {"type": "thinking", "thinking": [{"type": "text", "text": "so"}]},
        reference,
        {"type": "text", "text": "x"},
        {"type": "reference", "reference_ids": [1]},
        {"type": "text", "text": "y"},
    ]
    assert on_wire(AssistantMessage("x"), MISTRAL)["content"] == "x"
    assert on_wire(AssistantMessage(), MISTRAL)["content"] == ""


# --- tools ----------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", ["", "  ", "{}"])
def test_empty_arguments(arguments: str) -> None:
    """Empty arguments are sent as an empty object."""
    element = on_wire(AssistantMessage("", [ToolCall("c1", "now", arguments)]))

    assert element["tool_calls"][0]["function"] == {"name": "now", "arguments": "{}"}


@pytest.mark.feature("wish-invalid-arguments-replayed-provider")
@pytest.mark.parametrize("written", ['{"a":', '{"a":1', '{"a":"b', "[1]", '"a"'])
def test_malformed_arguments(written: str) -> None:
    """Malformed arguments are sent inside a JSON object."""
    message = AssistantMessage("", [ToolCall("c1", "add", written)])

    as_written = on_wire(message, OPENAI)["tool_calls"][0]["function"]["arguments"]
    assert as_written == written
    parsed = json.loads(on_wire(message, COMPATIBLE)["tool_calls"][0]["function"]["arguments"])
    assert parsed == {"malformed_arguments": written}


@pytest.mark.parametrize("written", ["{'a': 1,}", '{"a":1,', '"{\\"a\\":1}"'])
def test_repaired_arguments(written: str) -> None:
    """Arguments that were repaired are sent in their repaired form."""
    message = AssistantMessage("", [ToolCall("c1", "add", written)])

    parsed = json.loads(on_wire(message, COMPATIBLE)["tool_calls"][0]["function"]["arguments"])
    assert parsed == {"a": 1}


def test_custom_tool_call() -> None:
    """Calls of custom tools have free text input."""
    call = ToolCall("c1", "math", "4 + 4", {"type": "custom"})

    assert on_wire(AssistantMessage("", [call]))["tool_calls"] == [
        {"id": "c1", "type": "custom", "custom": {"name": "math", "input": "4 + 4"}}
    ]


def test_thought_signature() -> None:
    """Gemini's compatible endpoint gets the thought signature, OpenAI does not."""
    extra = {"google": {"thought_signature": "s"}}
    message = AssistantMessage("", [ToolCall("c1", "add", "{}", {"extra_content": extra})])

    assert on_wire(message, COMPATIBLE)["tool_calls"][0]["extra_content"] == extra
    assert "extra_content" not in on_wire(message, OPENAI)["tool_calls"][0]


@pytest.mark.parametrize("id", ["call_4f39f3af-3267", "0", "äöüäöüäöü", "a1b2c3d4e5"])
def test_mistral_call_ids(id: str) -> None:
    """Ids get nine characters, equal for a call and its result."""
    call = on_wire(AssistantMessage("", [ToolCall(id, "add", "{}")]), MISTRAL)["tool_calls"][0]
    result = on_wire(ToolResponseMessage([ToolResponse(id, "add", "3")]), MISTRAL)

    assert len(call["id"]) == 9
    assert call["id"].isalnum()
    assert call["id"] == result["tool_call_id"]


def test_valid_mistral_ids_are_kept() -> None:
    """Valid ids are sent unchanged."""
    message = AssistantMessage("", [ToolCall("D681PevKs", "add", "{}")])

    assert on_wire(message, MISTRAL)["tool_calls"][0]["id"] == "D681PevKs"


@pytest.mark.feature("lc4j-tool-image-result")
def test_tool_media_in_user_message() -> None:
    """Media of a tool follow in a user message, as tool messages hold text only."""
    message = ToolResponseMessage(
        [ToolResponse("c1", "draw", "done", media=(PIXEL,)), ToolResponse("c2", "add", "3")]
    )
    first, second, shown = encode_message(message, OPENAI)

    assert (first["tool_call_id"], first["content"]) == ("c1", "done")
    assert (second["tool_call_id"], second["content"]) == ("c2", "3")
    assert [part["type"] for part in shown["content"]] == ["text", "image_url"]
    assert "draw" in shown["content"][0]["text"]


# --- the wire form --------------------------------------------------------------------------


def test_a_message_is_encoded_once() -> None:
    """The JSON is cached with the message, per dialect."""
    message = SystemMessage("x")

    def role(dialect: Dialect) -> Any:
        return json.loads(cached_json(message, dialect, encode_message))["role"]

    assert [role(OPENAI), role(with_system_role(OPENAI, "developer")), role(OPENAI)] == [
        "system",
        "developer",
        "system",
    ]


def test_document_url() -> None:
    """OpenAI rejects document URLs; the error names an alternative."""
    message = UserMessage([Media("application/pdf", "https://x.org/a.pdf")])

    with pytest.raises(UsageError, match="send the bytes, or ask through the Responses API"):
        on_wire(message)
    assert on_wire(message, COMPATIBLE)["content"][0]["file"] == {
        "filename": "file.pdf",
        "file_data": "https://x.org/a.pdf",
    }


@pytest.mark.parametrize(
    ("media", "dialect", "problem"),
    [
        (Media("image/png", "", id="file-1"), OPENAI, "no image/png by its id .* the Responses"),
        (Media("video/mp4", "", id="file-1"), COMPATIBLE, "no video/mp4 by its id .* the bytes$"),
        (Media("application/pdf", "", id="file-1"), MISTRAL, "no application/pdf by its id"),
        (Media("audio/wav", "https://x.org/a.wav"), OPENAI, "by its URL .* send the bytes$"),
    ],
)
def test_unsupported_media(media: Media, dialect: Dialect, problem: str) -> None:
    """Unsupported media raise an error that names supported forms."""
    with pytest.raises(UsageError, match=problem):
        on_wire(UserMessage([media]), dialect)


def test_long_call_ids_are_shortened() -> None:
    """Ids of other servers are shortened, equally for a call and its result."""
    id = f"chatcmpl-tool-{'a' * 32}"
    call = AssistantMessage("", [ToolCall(id, "now", "{}")])
    result = ToolResponseMessage([ToolResponse(id, "now", "noon")])
    short = on_wire(call, OPENAI)["tool_calls"][0]["id"]

    assert len(short) == 40
    assert on_wire(result, OPENAI)["tool_call_id"] == short
    assert on_wire(result, PRESETS["azure"].dialect)["tool_call_id"] == short
    assert on_wire(result, COMPATIBLE)["tool_call_id"] == id


def test_unknown_message_type() -> None:
    """A message of an unknown type raises."""

    class Other(Message):
        pass

    with pytest.raises(UsageError, match="Other is not a kind of message"):
        encode_message(Other(), OPENAI)


def test_audio_url_is_sent_as_file() -> None:
    """A sound with a URL is sent as a file."""
    sound = Media("audio/wav", "https://x.org/a.wav")
    content = on_wire(UserMessage([sound]), COMPATIBLE)["content"]

    assert content[0]["file"]["file_data"] == "https://x.org/a.wav"
