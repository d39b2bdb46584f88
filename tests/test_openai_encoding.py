"""Prompts as Chat Completions requests, by data."""

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from chatclient.errors import UsageError
from chatclient.messages import (
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
from chatclient.options import ChatOptions
from chatclient.providers.compatible import PRESETS
from chatclient.providers.openai import (
    COMPATIBLE,
    OPENAI,
    Dialect,
    OpenAIChatOptions,
    encode_message,
    encode_options,
)
from chatclient.providers.openai_dialect import REASONING_FIELD, with_system_role
from chatclient.providers.wire_cache import kept_wire
from chatclient.tool import ToolContext, ToolDefinition, ToolMetadata, ToolResult

MISTRAL = PRESETS["mistral"].dialect
OPENROUTER = PRESETS["openrouter"].dialect


@dataclass(frozen=True)
class Declared:
    """A tool of which only the declaration matters."""

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
    return encode_options(options, dialect, streaming=streaming)


def on_wire(message: Message, dialect: Dialect = OPENAI) -> dict[str, Any]:
    (element,) = encode_message(message, dialect)
    return element


# --- options --------------------------------------------------------------------------------


def test_common_options_are_written_as_the_server_calls_them() -> None:
    """The same options have other names with other servers."""
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
def test_an_option_that_the_server_lacks_is_not_sent(server: str, *, has_it: bool) -> None:
    """So options can be set once for several models, although some refuse unknown fields."""
    options = ChatOptions(top_k=5)

    assert ("top_k" in options_on_wire(options, PRESETS[server].dialect)) is has_it
    assert "top_k" not in options_on_wire(options, OPENAI)


def test_options_of_openai_are_written() -> None:
    """What only OpenAI knows is an option with a type."""
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


@pytest.mark.parametrize(("dialect", "asked"), [(OPENAI, {"include_usage": True}), (MISTRAL, None)])
def test_usage_of_a_stream_is_asked_for_where_it_must_be(dialect: Dialect, asked: Any) -> None:
    """Some servers send no usage unless asked; others refuse to be asked."""
    body = options_on_wire(ChatOptions(), dialect, streaming=True)

    assert body["stream"] is True
    assert body.get("stream_options") == asked


@pytest.mark.parametrize(
    ("choice", "written"),
    [
        ("auto", "auto"),
        ("none", "none"),
        ("required", "required"),
        ("add", {"type": "function", "function": {"name": "add"}}),
    ],
)
def test_a_tool_may_be_chosen(choice: str, written: Any) -> None:
    """A choice is one of three words, or the name of a tool."""
    options = ChatOptions(tool_callbacks=(tool(),), tool_choice=choice, parallel_tool_calls=False)
    body = options_on_wire(options)

    assert body["tool_choice"] == written
    assert body["parallel_tool_calls"] is False


def test_without_tools_nothing_is_chosen() -> None:
    """The API refuses a choice of tools where there are none."""
    assert options_on_wire(ChatOptions(tool_choice="auto", parallel_tool_calls=True)) == {}


@pytest.mark.parametrize(
    ("declared", "asked", "written"),
    [
        (tool(), None, None),
        (tool(strict=True), None, True),
        (tool(CLOSED, strict=False), True, False),
        (tool(CLOSED), True, True),
        (tool(OPEN), True, False),
        (tool(CLOSED), False, False),
    ],
)
def test_tools_are_strict_where_they_can_be(
    declared: Declared, *, asked: bool | None, written: bool | None
) -> None:
    """A tool's own word holds; else the option's, if the schema has the form that it takes."""
    options = OpenAIChatOptions(tool_callbacks=(declared,), strict_tools=asked)

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
def test_answers_are_strict_where_they_can_be(schema: dict[str, Any], *, strict: bool) -> None:
    """A schema that strict mode would refuse is sent as advice."""
    body = options_on_wire(ChatOptions(output_schema=schema))

    sent = {"properties": {}, "required": [], **schema} if strict else schema
    assert body["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": sent, "strict": strict},
    }


def test_what_strict_mode_does_not_know_is_left_out() -> None:
    """It would refuse the whole request; alternatives it knows by another name."""
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
def test_the_name_of_a_schema_is_one_that_the_api_takes(title: str, name: str) -> None:
    """Titles of generic types have brackets, which a name must not."""
    body = options_on_wire(ChatOptions(output_schema={**CLOSED, "title": title}))

    assert body["response_format"]["json_schema"]["name"] == name


def test_extra_fields_go_on_top() -> None:
    """What is not modelled is sent as it is; lists of tools and stream options are joined."""
    server_tool = {"type": "openrouter:web_search"}
    extra = {"tools": [server_tool], "stream_options": {"x": 1}, "model": "other", "top_a": 0.1}
    options = ChatOptions(model="m", tool_callbacks=(tool(),), extra=extra)
    body = options_on_wire(options, streaming=True)

    assert [t["type"] for t in body["tools"]] == ["function", "openrouter:web_search"]
    assert body["stream_options"] == {"include_usage": True, "x": 1}
    assert (body["model"], body["top_a"]) == ("other", 0.1)
    assert options_on_wire(ChatOptions(extra={"tools": [server_tool]})) == {"tools": [server_tool]}


# --- system and user ------------------------------------------------------------------------


def test_system_messages_speak_in_the_role_the_model_knows() -> None:
    """The role is the dialect's, or the message's own."""
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
def test_a_message_may_end_what_is_cached(message: Message) -> None:
    """Servers in front of Anthropic's models take its marks; OpenAI's would refuse them."""
    assert on_wire(message, COMPATIBLE)["content"] == MARKED
    assert on_wire(message, OPENAI)["content"] == "x"


def test_what_has_no_content_is_not_marked() -> None:
    """A call of a tool stays what it is; of several parts, the last one has the mark."""
    call = AssistantMessage(None, [ToolCall("c", "f", "{}")], metadata={"cache_control": MARK})
    picture = UserMessage("x", [Media("image/png", "https://x.org/a.png")], {"cache_control": MARK})

    assert on_wire(call, COMPATIBLE)["content"] is None
    assert [p.get("cache_control") for p in on_wire(picture, COMPATIBLE)["content"]] == [None, MARK]


def test_a_message_may_say_who_speaks() -> None:
    """Names go out in the letters that the API allows."""
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
def test_media_are_written_by_their_kind(media: Media, written: dict[str, Any]) -> None:
    """Images, sounds and documents each have a part of their own."""
    content = on_wire(UserMessage("see", [media]))["content"]

    assert content == [{"type": "text", "text": "see"}, written]


def test_servers_take_media_in_their_own_ways() -> None:
    """Videos and documents have other parts with other servers."""
    video = UserMessage([Media("video/mp4", "https://x.org/a.mp4")])
    document = UserMessage([Media("application/pdf", "https://x.org/a.pdf")])

    assert on_wire(video, COMPATIBLE)["content"] == [
        {"type": "video_url", "video_url": {"url": "https://x.org/a.mp4"}}
    ]
    assert on_wire(document, MISTRAL)["content"] == [
        {"type": "document_url", "document_url": "https://x.org/a.pdf"}
    ]


def test_a_content_part_is_not_taken_apart() -> None:
    """What has a type is content, whatever its fields are called."""
    part = ProviderPart("openai", {"type": "odd", "name": "x", "refusal": "no"}, "said")

    assert on_wire(AssistantMessage([part])) == {"role": "assistant", "content": "said"}


def test_parts_of_a_provider_go_to_that_provider_only() -> None:
    """Others are sent their text, if they have one."""
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


def test_an_answer_without_text_has_none() -> None:
    """Beside calls, refusals and sounds, no content is null; alone it is empty."""
    call = ToolCall("c1", "add", "{}")

    assert on_wire(AssistantMessage())["content"] == ""
    assert on_wire(AssistantMessage("", [call]))["content"] is None
    assert on_wire(AssistantMessage("hm", [call]))["content"] == "hm"


def test_a_refusal_goes_back_as_one() -> None:
    """Its provider is told that it refused; others read the words."""
    pieces = [ProviderPart("openai", {"refusal": text}, text) for text in ("I ", "won't")]
    message = AssistantMessage(pieces)

    assert on_wire(message) == {"role": "assistant", "content": None, "refusal": "I won't"}
    assert on_wire(message, COMPATIBLE) == {"role": "assistant", "content": "I won't"}


def test_a_spoken_answer_goes_back_by_its_id() -> None:
    """The provider remembers the sound; others get the transcript."""
    sound = Media("audio/wav", b"RIFF", "audio_1")
    id = ProviderPart("openai", {"audio": {"id": "audio_1"}})
    message = AssistantMessage(["hello", sound, id, id])

    assert on_wire(message) == {"role": "assistant", "content": None, "audio": {"id": "audio_1"}}
    assert on_wire(message, COMPATIBLE) == {"role": "assistant", "content": "hello"}


def test_citations_stay_with_us() -> None:
    """What a request has no field for is kept, not sent."""
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
def test_reasoning_goes_back_where_the_server_wants_it(
    dialect: Dialect, field_name: str | None
) -> None:
    """In a field of a fixed name, in the one it came in, or not at all."""
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
def test_where_reasoning_must_not_be_missing_it_is_empty(message: AssistantMessage) -> None:
    """DeepSeek refuses a message without the field, though the model itself did not think."""
    assert on_wire(message, PRESETS["deepseek"].dialect)["reasoning_content"] == ""
    assert "reasoning" not in on_wire(message, PRESETS["vllm"].dialect)


def test_reasoning_of_an_unknown_origin_is_kept_back_from_servers_that_echo() -> None:
    """A server that wants back what it sent is not sent what it did not."""
    message = AssistantMessage("x", reasoning=[Reasoning("so")])

    assert on_wire(message, COMPATIBLE) == {"role": "assistant", "content": "x"}


def test_signed_reasoning_goes_back_unchanged() -> None:
    """OpenRouter's details take the place of the text, all pieces together."""
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


def test_signed_blocks_of_thought_go_back_unchanged() -> None:
    """LiteLLM's take the place of the text, as OpenRouter's details do."""
    blocks = [{"type": "thinking", "thinking": "so", "signature": "s"}]
    name = COMPATIBLE.provider
    kept, received = ProviderPart(name, {"thinking_blocks": blocks}), {REASONING_FIELD: "reasoning"}
    message = AssistantMessage([Reasoning("so", provider=name), kept], metadata=received)
    element = on_wire(message, COMPATIBLE)

    assert element == {"role": "assistant", "content": "", "thinking_blocks": blocks}


def test_thoughts_that_came_in_the_content_go_back_there() -> None:
    """Databricks wants them signed; another provider's, or another API's, are kept back."""
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


def test_mistral_takes_thoughts_as_content() -> None:
    """There, content is a list as soon as it is more than text."""
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
def test_no_arguments_are_an_empty_object(arguments: str) -> None:
    """The API wants JSON, some models write nothing."""
    element = on_wire(AssistantMessage("", [ToolCall("c1", "now", arguments)]))

    assert element["tool_calls"][0]["function"] == {"name": "now", "arguments": "{}"}


@pytest.mark.parametrize("written", ['{"a":', '{"a":1', '{"a":"b', "[1]", '"a"'])
def test_malformed_arguments_do_not_spoil_the_conversation(written: str) -> None:
    """Servers that parse the history get an object that holds what the model wrote."""
    message = AssistantMessage("", [ToolCall("c1", "add", written)])

    as_written = on_wire(message, OPENAI)["tool_calls"][0]["function"]["arguments"]
    assert as_written == written
    parsed = json.loads(on_wire(message, COMPATIBLE)["tool_calls"][0]["function"]["arguments"])
    assert parsed == {"malformed_arguments": written}


@pytest.mark.parametrize("written", ["{'a': 1,}", '{"a":1,', '"{\\"a\\":1}"'])
def test_arguments_that_the_tool_could_mend_are_sent_mended(written: str) -> None:
    """Shown as malformed beside the result, they would teach the model to write such."""
    message = AssistantMessage("", [ToolCall("c1", "add", written)])

    parsed = json.loads(on_wire(message, COMPATIBLE)["tool_calls"][0]["function"]["arguments"])
    assert parsed == {"a": 1}


def test_calls_of_custom_tools_go_back_as_such() -> None:
    """Their input is free text."""
    call = ToolCall("c1", "math", "4 + 4", {"type": "custom"})

    assert on_wire(AssistantMessage("", [call]))["tool_calls"] == [
        {"id": "c1", "type": "custom", "custom": {"name": "math", "input": "4 + 4"}}
    ]


def test_a_call_keeps_its_thought_signature_where_it_is_wanted() -> None:
    """Gemini's compatible endpoint demands it back; OpenAI would not know it."""
    extra = {"google": {"thought_signature": "s"}}
    message = AssistantMessage("", [ToolCall("c1", "add", "{}", {"extra_content": extra})])

    assert on_wire(message, COMPATIBLE)["tool_calls"][0]["extra_content"] == extra
    assert "extra_content" not in on_wire(message, OPENAI)["tool_calls"][0]


@pytest.mark.parametrize("id", ["call_4f39f3af-3267", "0", "äöüäöüäöü", "a1b2c3d4e5"])
def test_ids_have_the_length_that_mistral_wants(id: str) -> None:
    """Nine letters and digits, the same for a call and its result."""
    call = on_wire(AssistantMessage("", [ToolCall(id, "add", "{}")]), MISTRAL)["tool_calls"][0]
    result = on_wire(ToolResponseMessage([ToolResponse(id, "add", "3")]), MISTRAL)

    assert len(call["id"]) == 9
    assert call["id"].isalnum()
    assert call["id"] == result["tool_call_id"]


def test_mistrals_own_ids_stay() -> None:
    """An id of the right form is sent as it is."""
    message = AssistantMessage("", [ToolCall("D681PevKs", "add", "{}")])

    assert on_wire(message, MISTRAL)["tool_calls"][0]["id"] == "D681PevKs"


def test_what_a_tool_shows_is_shown_by_the_user() -> None:
    """A tool message holds text only; pictures follow in a message of the user."""
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
    """The form is kept with the message, for each dialect anew."""
    message = SystemMessage("x")

    def role(dialect: Dialect) -> Any:
        return json.loads(kept_wire(message, dialect, encode_message))["role"]

    assert [role(OPENAI), role(with_system_role(OPENAI, "developer")), role(OPENAI)] == [
        "system",
        "developer",
        "system",
    ]


def test_openai_takes_no_documents_by_their_url() -> None:
    """Its Chat Completions do not, other servers may; the error says what to do instead."""
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
def test_media_that_the_api_has_no_form_for_are_refused(
    media: Media, dialect: Dialect, problem: str
) -> None:
    """Rather than sent with an empty address; the error names what works."""
    with pytest.raises(UsageError, match=problem):
        on_wire(UserMessage([media]), dialect)


def test_ids_are_as_short_as_openai_wants_them() -> None:
    """A conversation that began with another server goes on; a call and its result stay a pair."""
    id = f"chatcmpl-tool-{'a' * 32}"
    call = AssistantMessage("", [ToolCall(id, "now", "{}")])
    result = ToolResponseMessage([ToolResponse(id, "now", "noon")])
    short = on_wire(call, OPENAI)["tool_calls"][0]["id"]

    assert len(short) == 40
    assert on_wire(result, OPENAI)["tool_call_id"] == short
    assert on_wire(result, PRESETS["azure"].dialect)["tool_call_id"] == short
    assert on_wire(result, COMPATIBLE)["tool_call_id"] == id


def test_a_message_of_no_known_kind_is_refused() -> None:
    """A kind of message that this library does not have is an error of the caller's."""
    with pytest.raises(UsageError, match="Message is not a kind of message"):
        encode_message(Message(), OPENAI)


def test_a_sound_at_an_address_is_sent_as_a_file() -> None:
    """Only a sound that is at hand can be sent as one."""
    sound = Media("audio/wav", "https://x.org/a.wav")
    content = on_wire(UserMessage([sound]), COMPATIBLE)["content"]

    assert content[0]["file"]["file_data"] == "https://x.org/a.wav"
