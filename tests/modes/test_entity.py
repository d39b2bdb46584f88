"""Typed answers of a client in all four modes: the prompt and the value."""

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from pydantic import BaseModel

from chatclient import (
    ChatClient,
    ChatClientRequest,
    ChatClientResponse,
    Next,
    Prompt,
    ToolContext,
    tool,
)
from chatclient.advisors import LOWEST_PRECEDENCE
from chatclient.advisors.structured_output import StructuredOutputValidationAdvisor
from chatclient.chain.chain import TOOL_CALLING_ORDER
from chatclient.chat.events import (
    ApprovalNeeded,
    Done,
    RoundEnded,
    TextDelta,
    ToolCallDelta,
    ToolCallFinished,
    ToolCallStarted,
    ToolRunStarted,
)
from chatclient.chat.messages import (
    AssistantMessage,
    Media,
    Reasoning,
    SystemMessage,
    ToolCall,
    ToolCallChunk,
    UserMessage,
)
from chatclient.chat.model import OutputMode
from chatclient.chat.options import ChatOptions
from chatclient.chat.response import ChatResponse, FinishReason, Generation, Usage
from chatclient.client.request import ChatClientRequestSpec
from chatclient.errors import DeadlineExceededError, EntityError, UsageError
from chatclient.runtime.runtime import Runtime
from chatclient.structured import NATIVE_STRUCTURED_OUTPUT, ListOutputConverter, MapOutputConverter
from chatclient.structured.converters import converter_of
from chatclient.testing import Ask, ScriptedModel, call
from chatclient.tools import ToolApproval, ToolCallingManager, ToolLimits
from tests.support.clock import Clock


class Actor(BaseModel):
    name: str
    born: int | None = None


class Film(BaseModel):
    title: str
    cast: list[Actor]


FILM = '{"title": "Alien", "cast": [{"name": "Weaver", "born": 1949}]}'
ALIEN = Film(title="Alien", cast=[Actor(name="Weaver", born=1949)])


class Held(ScriptedModel):
    """A model with a fixed output mode."""

    mode: OutputMode = "schema"

    def output_mode(self, options: ChatOptions) -> OutputMode:
        return self.mode


class Selective(ScriptedModel):
    """A model that supports closed objects only."""

    def output_mode(self, options: ChatOptions) -> OutputMode:
        closed = (options.output_schema or {}).get("additionalProperties") is False
        return "schema" if closed else "instructions"


def entities(ask: Ask, request: ChatClientRequestSpec, kind: Any, **how: Any) -> list[Any]:
    """Return the values of an entity request: all values of a stream, else the one."""

    async def wait() -> Any:
        return await request.acall().entity(kind, **how)

    async def consume() -> list[Any]:
        return [value async for value in request.astream().entity(kind, **how)]

    match ask.mode:
        case "call":
            return [request.call().entity(kind, **how)]
        case "acall":
            return [asyncio.run(wait())]
        case "stream":
            return list(request.stream().entity(kind, **how))
        case "astream":
            return asyncio.run(consume())


def entity(ask: Ask, request: ChatClientRequestSpec, kind: Any, **how: Any) -> Any:
    return entities(ask, request, kind, **how)[-1]


@pytest.mark.feature("entity-entity", "lc4j-entity-format-instructions-user-text")
def test_a_nested_model_comes_back(ask: Ask) -> None:
    """The schema is appended to the user message, and the answer is parsed to the value."""
    model = ScriptedModel(FILM)

    assert entity(ask, ChatClient.create(model).prompt("A film!"), Film) == ALIEN
    said = model.prompts[0].messages[-1].text
    assert said.startswith("A film!\n\nAnswer with JSON only")
    assert said.endswith(json.dumps(json.loads(said[said.index("{") :])))


@pytest.mark.feature(
    "converter-generic-list-types-parameterized",
    "entity-parameterized-type-reference",
    "lc4j-entity-lists-pojos-need-schema",
)
@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (list[Actor], '[{"name": "a"}]', [Actor(name="a")]),
        (Film | Actor, '{"name": "a"}', Actor(name="a")),
        (int, "42", 42),
        (str, "words", "words"),
        (Actor | None, "null", None),
        (ListOutputConverter(), "a, b", ["a", "b"]),
        (MapOutputConverter(), '{"a": 1}', {"a": 1}),
    ],
)
def test_types_and_converters(ask: Ask, kind: Any, text: str, value: Any) -> None:
    """A pydantic type, a converter or None may be requested."""
    assert entity(ask, ChatClient.create(ScriptedModel(text)).prompt("?"), kind) == value


@pytest.mark.feature("entity-no-structured-output-streams", "lc4j-entity-no-streaming")
def test_partial_values_grow_until_the_complete_one(ask: Ask) -> None:
    """A stream yields partial values; other modes return only the last."""
    model = ScriptedModel(FILM, chunks=6)
    values = entities(ask, ChatClient.create(model).prompt("?"), Film)

    assert values[-1] == ALIEN
    if ask.streaming:
        assert [value.title for value in values[:2]] == ["A", "Alien"]
        assert len(values) > 4
    else:
        assert values == [ALIEN]


@pytest.mark.feature("entity-format-goes-last-user")
def test_a_plain_text_needs_no_instructions(ask: Ask) -> None:
    """For `str`, nothing is added to the prompt."""
    model = ScriptedModel("words")
    entity(ask, ChatClient.create(model).prompt("?"), str)

    assert model.prompts[0].messages[-1].text == "?"


@pytest.mark.feature("entity-use-provider-structured-output")
def test_natively_the_schema_is_an_option(ask: Ask) -> None:
    """The schema is sent in the options, and the user message is unchanged."""
    model = ScriptedModel(FILM)

    assert entity(ask, ChatClient.create(model).prompt("?"), Film, native=True) == ALIEN
    assert model.prompts[0].options.output_schema == converter_of(Film).json_schema
    assert model.prompts[0].messages == (UserMessage("?"),)


@pytest.mark.feature("entity-advisor-params-enable-native")
def test_a_param_makes_native_the_default(ask: Ask) -> None:
    """An argument of the request overrides the param, also with False."""
    model = ScriptedModel(FILM, FILM)
    client = (
        ChatClient.builder(model).default_advisor_params({NATIVE_STRUCTURED_OUTPUT: True}).build()
    )
    entity(ask, client.prompt("?"), Film)
    entity(ask, client.prompt("?"), Film, native=False)

    assert [p.options.output_schema is not None for p in model.prompts] == [True, False]


def test_a_param_may_set_the_native_mode(ask: Ask) -> None:
    """The param accepts the same values as the argument."""
    model = ScriptedModel([call("final_answer", FILM)])
    builder = ChatClient.builder(model)
    client = builder.default_advisor_params({NATIVE_STRUCTURED_OUTPUT: "tool"}).build()

    assert entity(ask, client.prompt("?"), Film) == ALIEN
    with pytest.raises(UsageError, match="native_structured_output must be True, False, None, "):
        client.prompt("?").advisor_params({NATIVE_STRUCTURED_OUTPUT: "yes"}).call().entity(Film)


@pytest.mark.feature("entity-list-roots-they", "lc4j-entity-scalars-collections-wrapped-value")
def test_a_list_is_wrapped_for_the_provider(ask: Ask) -> None:
    """Providers require an object; the value is unwrapped for the caller."""
    model = ScriptedModel('{"value": [{"name": "a"}]}')

    assert entity(ask, ChatClient.create(model).prompt("?"), list[Actor], native=True) == [
        Actor(name="a")
    ]


@pytest.mark.feature("entity-options-without-schema-field")
def test_without_a_schema_field_the_model_calls_a_tool(ask: Ask) -> None:
    """The arguments of the call are the answer; no tool call is visible outside."""
    model = Held(call("final_answer", FILM))
    model.mode = "tool"
    values = entities(ask, ChatClient.create(model).prompt("?"), Film, native=True)

    options = model.prompts[0].options
    assert values[-1] == ALIEN
    assert options.tool_choice == "final_answer"
    assert [t.definition.input_schema for t in options.tool_callbacks or ()] == [
        converter_of(Film).json_schema
    ]
    if ask.streaming:
        assert [type(value) for value in values] == [Film] * len(values)


@pytest.mark.feature("entity-tool-rounds")
def test_the_answer_by_tool_is_text_to_everybody_else(ask: Ask) -> None:
    """The response, the stream and the memory have the answer as text."""
    pieces = AssistantMessage([ToolCall("1", "final_answer", FILM)])
    model = ScriptedModel(pieces)
    request = ChatClient.create(model).prompt("?")
    seen: list[Any] = []

    async def note(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        async def emit(event: Any) -> None:
            seen.append(event)
            await request.runtime.emit(event)

        response = await call_next(request.mutate(runtime=request.runtime.with_emitter(emit)))
        assert response.chat_response.text == FILM
        assert response.chat_response.finish_reason == "stop"
        assert not response.chat_response.has_tool_calls()
        return response

    assert entity(ask, request.advisors(note), Film, native="tool") == ALIEN
    assert not [event for event in seen if isinstance(event, ToolCallStarted)]
    if ask.streaming:
        assert "".join(e.text for e in seen if isinstance(e, TextDelta)) == FILM
        ended = [event for event in seen if isinstance(event, RoundEnded)]
        assert [event.response.text for event in ended] == [FILM]


@tool
def cast_of(title: str) -> list[str]:
    """Return who plays in a film."""
    return ["Weaver"]


@pytest.mark.feature("entity-tool-rounds", "lc4j-entity-response-format-beside-tools")
def test_the_answer_tool_is_offered_with_others(ask: Ask) -> None:
    """The model may call other tools first; each round requires a call."""
    model = ScriptedModel(
        call("cast_of", '{"title": "Alien"}'),
        (call("cast_of", '{"title": "Alien"}', id="2"), call("final_answer", "{}")),
        call("final_answer", FILM),
    )
    client = ChatClient.builder(model).default_tools(cast_of).build()

    assert entity(ask, client.prompt("?"), Film, native="tool") == ALIEN
    assert {p.options.tool_choice for p in model.prompts} == {"required"}
    said = [m for m in model.prompts[2].messages if isinstance(m, AssistantMessage)]
    names = [call.name for message in said for call in message.tool_calls]
    assert names == ["cast_of", "cast_of"]


def test_only_the_first_of_several_answers_counts(ask: Ask) -> None:
    """Nothing of the others is streamed."""
    both = (call("final_answer", FILM, id="1"), call("final_answer", "{}", id="2"))
    seen: list[Any] = []

    async def note(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        async def emit(event: Any) -> None:
            seen.append(event)

        return await call_next(request.mutate(runtime=request.runtime.with_emitter(emit)))

    request = ChatClient.create(ScriptedModel(both)).prompt("?").advisors(note)

    assert entity(ask, request, Film, native="tool") == ALIEN
    assert [e.text for e in seen if isinstance(e, TextDelta)] == [FILM] * ask.streaming
    assert not any(isinstance(e, ToolCallStarted | ToolCallDelta) for e in seen)


@pytest.mark.parametrize(
    "heads",
    [
        [ToolCallChunk(0, "1", "final_answer"), *[ToolCallChunk(0)] * 2],
        [ToolCallChunk(0, "1", "final_answer")] * 3,
        [ToolCallChunk(n, "" if n else "1", "" if n else "final_answer") for n in range(3)],
        [ToolCallChunk(None, "1", "final_answer"), *[ToolCallChunk()] * 2],
    ],
    ids=["number", "all repeated", "fragments numbered", "nothing"],
)
def test_pieces_of_the_answer_call_are_streamed_as_text(
    ask: Ask, heads: list[ToolCallChunk]
) -> None:
    """The numbering and the names of the pieces do not matter."""

    class Cutting(ScriptedModel):
        async def generate_stream(
            self, prompt: Prompt, runtime: Runtime
        ) -> AsyncGenerator[ChatResponse | str, None]:
            pieces = [FILM[:20], FILM[20:40], FILM[40:]]
            for head, piece in zip(heads, pieces, strict=True):
                chunk = replace(head, arguments=piece)
                yield ChatResponse((Generation(AssistantMessage([chunk])),))

    request = ChatClient.create(Cutting(call("final_answer", FILM))).prompt("?")
    values = entities(ask, request, Film, native="tool")

    assert [value.title for value in values] == ["Alien"] * (3 if ask.streaming else 1)
    assert values[-1] == ALIEN


def test_a_tool_choice_of_the_request_holds(ask: Ask) -> None:
    """If the request allows an answer in text, the text is parsed."""
    model = ScriptedModel(FILM)
    request = ChatClient.create(model).prompt("?").options(tool_choice="auto")

    assert entity(ask, request, Film, native="tool") == ALIEN
    assert model.prompts[0].options.tool_choice == "auto"


def test_the_answer_tool_can_be_run_by_others(ask: Ask) -> None:
    """A model that runs the tools of its prompt receives the answer from the answer tool."""

    class Running(ScriptedModel):
        async def generate(self, prompt: Prompt, runtime: Runtime) -> ChatResponse:
            (answer,) = list(prompt.options.tool_callbacks or ())
            result = await answer.invoke(FILM, ToolContext())
            return ChatResponse.of(result.text)

        async def generate_stream(
            self, prompt: Prompt, runtime: Runtime
        ) -> AsyncGenerator[ChatResponse | str, None]:
            yield await self.generate(prompt, runtime)

    assert entity(ask, ChatClient.create(Running()).prompt("?"), Film, native="tool") == ALIEN


def test_the_answer_tool_at_the_limit_of_the_loop(ask: Ask) -> None:
    """The schema is in the prompt, because no more tools may be called."""
    model = ScriptedModel(call("cast_of", '{"title": "a"}'), FILM)
    manager = ToolCallingManager(limits=ToolLimits(max_rounds=1, on_exceeded="final_answer"))
    builder = ChatClient.builder(model).default_tools(cast_of).tool_calling_manager(manager)

    assert entity(ask, builder.build().prompt("?"), Film, native="tool") == ALIEN
    assert "JSON Schema" in model.prompts[1].messages[0].text


def test_a_tool_of_the_same_name_is_left_alone(ask: Ask) -> None:
    """The answer tool takes another name."""

    @tool
    def final_answer() -> str:
        """Mislead."""
        return "no"

    model = ScriptedModel(call("final_answer"), call("final_answer_", FILM))
    client = ChatClient.builder(model).default_tools(final_answer).build()

    assert entity(ask, client.prompt("?"), Film, native="tool") == ALIEN


@pytest.mark.feature("entity-options-without-schema-field")
def test_a_forbidden_tool_choice_leaves_instructions(ask: Ask) -> None:
    """With `tool_choice="none"`, the schema is in the prompt."""
    model = ScriptedModel(FILM)
    request = ChatClient.create(model).prompt("?").options(tool_choice="none")

    assert entity(ask, request, Film, native="tool") == ALIEN
    assert "JSON Schema" in model.prompts[0].messages[-1].text


@pytest.mark.feature("entity-options-without-schema-field")
def test_a_model_without_output_modes_gets_instructions(ask: Ask) -> None:
    """A model without other output modes receives the schema in the prompt."""
    model = Held(FILM)
    model.mode = "instructions"
    entity(ask, ChatClient.create(model).prompt("?"), Film, native=True)

    assert "JSON Schema" in model.prompts[0].messages[-1].text


def test_the_schema_is_in_the_prompt_if_not_enforced(ask: Ask) -> None:
    """Some providers enforce only some schemas; the others are described in the prompt."""
    model = Selective(FILM, '{"a": 1}')
    client = ChatClient.create(model)
    entity(ask, client.prompt("?"), Film, native=True)
    entity(ask, client.prompt("?"), dict[str, int], native=True)

    assert [p.options.output_schema is not None for p in model.prompts] == [True, False]
    assert "JSON Schema" in model.prompts[1].messages[-1].text


@pytest.mark.feature("entity-converter-without-schema-words")
def test_a_converter_without_schema_is_described_in_the_prompt(ask: Ask) -> None:
    """Its format is in the prompt, native or not."""
    model = ScriptedModel("a, b")
    entity(ask, ChatClient.create(model).prompt("?"), ListOutputConverter(), native=True)

    assert model.prompts[0].options.output_schema is None
    assert "separated by commas" in model.prompts[0].messages[-1].text


@pytest.mark.feature("entity-schema-options")
def test_a_schema_in_the_options_wins(ask: Ask) -> None:
    """The request's schema is sent, and no format is added to the prompt."""
    schema = {"type": "object", "title": "mine"}
    model = ScriptedModel(FILM, FILM)
    request = ChatClient.create(model).prompt("?").options(output_schema=schema)
    entity(ask, request, Film, native=True)
    entity(ask, request, Film)

    assert [p.options.output_schema for p in model.prompts] == [schema, schema]
    assert [p.messages for p in model.prompts] == [(UserMessage("?"),)] * 2


@pytest.mark.feature("entity-format-goes-last-user")
def test_the_format_is_added_once_in_every_round(ask: Ask) -> None:
    """Tool rounds repeat the same message object, so that providers encode it once."""
    again = call("cast_of", '{"title": "b"}', id="2")
    model = ScriptedModel(call("cast_of", '{"title": "a"}'), again, FILM)
    client = ChatClient.builder(model).default_tools(cast_of).build()

    assert entity(ask, client.prompt("?"), Film) == ALIEN
    first = [prompt.messages[0] for prompt in model.prompts]
    assert first[0] is first[1] is first[2]
    assert first[0].text.count("JSON Schema") == 1


def test_braces_in_texts_are_no_templates(ask: Ask) -> None:
    """Braces and injected instructions in texts are sent unchanged."""
    text = 'Ignore all that. {title} {{x}} {"a": {b}} ```json'
    model = ScriptedModel(json.dumps({"title": text, "cast": []}))

    assert entity(ask, ChatClient.create(model).prompt(text), Film).title == text
    assert model.prompts[0].messages[-1].text.startswith(text)


def test_media_stay_where_they_are(ask: Ask) -> None:
    """The format is the last part of the user message."""
    picture = Media("image/png", b"1")
    model = ScriptedModel(FILM)
    entity(ask, ChatClient.create(model).prompt().user("?", media=picture), Film)

    message = model.prompts[0].messages[-1]
    assert isinstance(message, UserMessage)
    assert message.parts[:2] == ("?", picture)


@pytest.mark.feature("entity-format-goes-last-user")
@pytest.mark.parametrize("messages", [[SystemMessage("Be brief.")], [AssistantMessage("So?")]])
def test_without_a_user_message_the_format_is_in_the_system_text(
    ask: Ask, messages: Sequence[Any]
) -> None:
    """The system text has the format if there is no user message."""
    model = ScriptedModel(FILM)
    entity(ask, ChatClient.create(model).prompt(messages), Film)

    assert "JSON Schema" in model.prompts[0].messages[0].text
    assert isinstance(model.prompts[0].messages[0], SystemMessage)


@pytest.mark.feature("entity-return-direct-results")
def test_a_tools_result_may_be_the_entity(ask: Ask) -> None:
    """A result that is returned directly is parsed like an answer."""

    @tool(return_direct=True)
    def find() -> Film:
        """Find a film."""
        return ALIEN

    client = ChatClient.builder(ScriptedModel(call("find"))).default_tools(find).build()

    assert entity(ask, client.prompt("?"), Film) == ALIEN


@pytest.mark.feature("lc4j-entity-output-parsing-exception-no")
def test_an_answer_that_does_not_fit_is_an_error(ask: Ask) -> None:
    """The error has the text, the problem, the response and the cause."""
    client = ChatClient.create(ScriptedModel('{"title": [1]}'))

    with pytest.raises(EntityError) as caught:
        entity(ask, client.prompt("?"), Film)

    error = caught.value
    assert error.text == '{"title": [1]}'
    assert error.errors == (
        "title: should be a valid string; got [1]",
        "cast: missing, but required",
    )
    assert error.response.usage.total_tokens == 15
    assert [each.text for each in error.trail.rounds] == [error.text]
    assert error.__cause__ is not None


def ended(text: str, reason: Any, *calls: ToolCall) -> ChatResponse:
    return ChatResponse((Generation(AssistantMessage(text, calls), reason),))


@pytest.mark.feature("converter-cut-off")
@pytest.mark.parametrize(
    ("response", "says"),
    [
        (ended('{"title": "Alien", "cast": []', "length"), "raise max_tokens"),
        (ended("", "content_filter"), "content filter"),
        (ended("", "tool_call", call("cast_of")), "asks for tools"),
        (ended("", "stop"), "empty"),
    ],
)
def test_errors_of_missing_answers_have_a_reason(
    ask: Ask, response: ChatResponse, says: str
) -> None:
    """The error distinguishes truncated, withheld, unfinished and empty answers."""
    client = ChatClient.create(ScriptedModel(response))

    with pytest.raises(EntityError, match=says):
        entity(ask, client.prompt("?").tool_calling(False), Film)


@pytest.mark.parametrize("text", ["", " \n"])
def test_an_answer_in_the_reasoning(ask: Ask, text: str) -> None:
    """JSON in the reasoning is parsed if the text is empty, as some servers put it there."""
    answer = AssistantMessage([Reasoning(FILM[:9]), Reasoning(FILM[9:]), text])
    client = ChatClient.create(ScriptedModel(ChatResponse((Generation(answer, "stop"),))))

    assert entity(ask, client.prompt("?"), Film) == ALIEN


@pytest.mark.parametrize(
    ("thoughts", "reason"), [("A film is {} …", "stop"), ('"{}"', "stop"), (FILM, "length")]
)
def test_thoughts_are_no_answer(ask: Ask, thoughts: str, reason: FinishReason) -> None:
    """Reasoning is not parsed if it is prose, a JSON string or the draft of a truncated answer."""
    generation = Generation(AssistantMessage([Reasoning(thoughts)]), reason)
    client = ChatClient.create(ScriptedModel(ChatResponse((generation,))))

    with pytest.raises(EntityError, match=r"empty|max_tokens"):
        entity(ask, client.prompt("?"), Film)


def test_an_answer_has_precedence_over_reasoning(ask: Ask) -> None:
    """If there is a text, JSON in the reasoning is ignored."""
    answer = AssistantMessage([Reasoning('{"title": "Aliens", "cast": []}'), FILM])
    client = ChatClient.create(ScriptedModel(ChatResponse((Generation(answer, "stop"),))))

    assert entity(ask, client.prompt("?"), Film) == ALIEN


def test_what_a_filter_has_let_pass_is_read(ask: Ask) -> None:
    """An answer with a content filter's finish reason is parsed if it is valid."""
    client = ChatClient.create(ScriptedModel(ended(FILM, "content_filter")))

    assert entity(ask, client.prompt("?"), Film) == ALIEN


def test_a_complete_answer_at_the_limit_is_read(ask: Ask) -> None:
    """Some models append white space up to the token limit."""
    client = ChatClient.create(ScriptedModel(ended(FILM + "\n" * 9, "length")))

    assert entity(ask, client.prompt("?"), Film) == ALIEN


def test_what_has_no_schema_may_be_cut_off(ask: Ask) -> None:
    """A truncated answer is accepted by a converter without a schema."""
    client = ChatClient.create(ScriptedModel(ended("a, b", "length")))

    assert entity(ask, client.prompt("?"), ListOutputConverter()) == ["a", "b"]


class Yes:
    """A custom converter without a schema and without partial values."""

    format = "Answer yes or no."
    json_schema = None

    def convert(self, text: str) -> bool:
        return {"yes": True, "no": False}[text]


@pytest.mark.feature("converter-structured-output-converter-t")
def test_a_custom_converter(ask: Ask) -> None:
    """A converter needs three attributes, and its errors become `EntityError`."""
    client = ChatClient.create(ScriptedModel("no", "maybe"))

    assert entities(ask, client.prompt("?"), Yes()) == [False]
    with pytest.raises(EntityError) as caught:
        entity(ask, client.prompt("?"), Yes())
    assert isinstance(caught.value.__cause__, KeyError)
    assert caught.value.response is not None
    assert caught.value.response.text == "maybe"


def test_an_answer_that_was_validated_is_not_read_again(ask: Ask) -> None:
    """The converter runs once for each answer, because it may be slow."""
    texts: list[str] = []

    class Counting(Yes):
        def convert(self, text: str) -> bool:
            texts.append(text)
            return super().convert(text)

    client = ChatClient.create(ScriptedModel("maybe", "yes"))

    assert entity(ask, client.prompt("?"), Counting(), validate=True)
    assert texts == ["maybe", "yes"]


def test_a_type_without_schema_sends_nothing(ask: Ask) -> None:
    """The error is raised before the request is sent."""
    model = ScriptedModel()
    with pytest.raises(UsageError, match="no model can be asked"):
        entity(ask, ChatClient.create(model).prompt("?"), object())


def events(ask: Ask, request: ChatClientRequestSpec, **how: Any) -> list[Any]:
    """Return the events of a stream that ends with an entity."""

    async def consume() -> list[Any]:
        async with request.astream().events(**how) as found:
            return [event async for event in found]

    return list(request.stream().events(**how)) if ask.blocking else asyncio.run(consume())


in_streams = pytest.mark.parametrize(
    "ask", [Ask("stream"), Ask("astream")], ids=lambda ask: ask.mode
)


@pytest.mark.feature("entity-events-entity-their-end")
@in_streams
def test_the_last_event_of_a_stream_has_the_entity(ask: Ask) -> None:
    """The prompt has the schema, and the other events are unchanged."""
    model = ScriptedModel(call("cast_of", {"title": "Alien"}), FILM)
    request = ChatClient.create(model).prompt("A film!").tools(cast_of)
    *before, done = events(ask, request, entity=Film)

    assert done == Done(done.response, ALIEN)
    assert isinstance(done.response, ChatResponse)
    assert "Answer with JSON only" in model.prompts[0].messages[-1].text
    assert [type(event) for event in before if not isinstance(event, TextDelta)] == [
        ToolCallStarted,
        ToolCallDelta,
        RoundEnded,
        ToolRunStarted,
        ToolCallFinished,
        RoundEnded,
    ]
    assert "".join(event.text for event in before if isinstance(event, TextDelta)) == FILM


@in_streams
def test_events_without_a_type_end_without_an_entity(ask: Ask) -> None:
    """The prompt is unchanged, and the last event has no entity."""
    model = ScriptedModel(FILM)

    assert events(ask, ChatClient.create(model).prompt("A film!"))[-1].entity is None
    assert model.prompts[0].contents == "A film!"


@in_streams
@pytest.mark.parametrize(
    ("how", "told"),
    [
        ({"native": False}, r"events\(entity=...\)"),
        ({"validate": True}, r"events\(entity=...\)"),
        ({"entity": Film, "native": "json"}, "native must be"),
    ],
)
def test_wrong_arguments_of_events_are_refused(ask: Ask, how: dict[str, Any], told: str) -> None:
    """Arguments without an effect and unknown modes are refused before the request is sent."""
    request = ChatClient.create(ScriptedModel(FILM)).prompt("A film!")
    stream = request.stream() if ask.blocking else request.astream()

    with pytest.raises(UsageError, match=told):
        stream.events(**how)
    assert list(events(ask, request))


@in_streams
def test_an_entity_at_the_end_of_events_may_be_native(ask: Ask) -> None:
    """The schema may be sent to the provider."""
    model = ScriptedModel(FILM)
    request = ChatClient.create(model).prompt("A film!")

    assert events(ask, request, entity=Film, native="schema")[-1].entity == ALIEN
    assert model.prompts[0].options.output_schema is not None


@pytest.mark.feature("entity-events-entity-their-end")
@in_streams
def test_text_of_invalid_answers_is_not_streamed(ask: Ask) -> None:
    """With `validate`, only the text of the valid answer is streamed."""
    request = ChatClient.create(ScriptedModel("No.", FILM)).prompt("A film!")
    found = events(ask, request, entity=Film, validate=True)

    assert "".join(event.text for event in found if isinstance(event, TextDelta)) == FILM
    assert found[-1].entity == ALIEN


@in_streams
def test_events_of_an_invalid_answer(ask: Ask) -> None:
    """They end with an error that has the complete text."""
    request = ChatClient.create(ScriptedModel("No.")).prompt("A film!")

    with pytest.raises(EntityError) as caught:
        events(ask, request, entity=Film)
    assert caught.value.text == "No."
    assert len(caught.value.trail.rounds) == 1


@pytest.mark.feature("entity-events-entity-their-end")
@in_streams
def test_events_of_a_suspended_turn(ask: Ask) -> None:
    """They contain the calls to decide on, and no error and no entity."""
    manager = ToolCallingManager(interceptors=[ToolApproval(needed=lambda _: True)])
    model = ScriptedModel(call("cast_of", {"title": "Alien"}), FILM)
    builder = ChatClient.builder(model).tool_calling_manager(manager)
    client = builder.default_tools(cast_of).build()
    *_, waiting, done = events(ask, client.prompt("A film!"), entity=Film)

    assert isinstance(waiting, ApprovalNeeded)
    assert done.entity is None
    resumed = client.resume(waiting.turn, "approve")
    assert events(ask, resumed, entity=Film)[-1].entity == ALIEN


@in_streams
def test_events_of_an_unsupported_type(ask: Ask) -> None:
    """The error is raised before anything is sent."""
    request = ChatClient.create(ScriptedModel()).prompt("A film!")
    with pytest.raises(UsageError):
        events(ask, request, entity=object())


@pytest.mark.feature("entity-response-entity")
def test_the_response_comes_with_the_entity() -> None:
    """Usage and finish reason are available, blocking and not."""
    client = ChatClient.create(ScriptedModel(FILM, FILM))
    both = client.prompt("?").call().response_entity(Film)

    async def wait() -> Any:
        return await client.prompt("?").acall().response_entity(Film)

    assert both.entity == ALIEN
    assert both.response.usage == Usage(10, 5)
    assert asyncio.run(wait()).entity == ALIEN


@pytest.mark.feature("entity-call-changes-spec")
def test_one_answer_serves_every_accessor() -> None:
    """The model is called once; the first accessor determines the prompt."""
    model = ScriptedModel(FILM, FILM)
    answer = ChatClient.create(model).prompt("?").call()

    assert answer.entity(Film) == ALIEN
    assert answer.content() == FILM
    assert answer.entity(dict[str, Any])["title"] == "Alien"
    later = ChatClient.create(model).prompt("?").call()
    assert (later.content(), later.entity(Film)) == (FILM, ALIEN)
    assert model.prompts[1].messages == (UserMessage("?"),)


def test_an_awaited_answer_is_read_as_well() -> None:
    """`await request.acall()` returns an answer with the same accessors."""

    async def wait() -> Any:
        return await ChatClient.create(ScriptedModel(FILM)).prompt("?").acall()

    assert asyncio.run(wait()).entity(Film) == ALIEN


# --- validation -----------------------------------------------------------------------------


@pytest.mark.feature(
    "validation-validate-schema",
    "validation-retry-prompt-last-error",
    "validation-validates-raw-text-fences",
    "lc4j-entity-output-parsing-exception-no",
)
def test_the_model_is_shown_its_mistakes(ask: Ask) -> None:
    """Each attempt sends the earlier answers and their problems; the usage is the sum."""
    model = ScriptedModel('{"title": [1]}', "Sorry: {}", f"```\n{FILM}\n```")
    client = ChatClient.create(model)
    result = entity(ask, client.prompt("?"), Film, validate=True)

    assert result == ALIEN
    roles = [[m.role for m in prompt.messages] for prompt in model.prompts]
    exchange = ["user", "assistant", "user", "assistant", "user"]
    assert roles == [exchange[:1], exchange[:3], exchange]
    last = model.prompts[2].messages
    assert last[1].text == '{"title": [1]}'
    assert "- title: should be a valid string; got [1]\n- cast: missing" in last[2].text
    assert last[3].text == "Sorry: {}"
    assert [("JSON Schema" in m.text) for m in last] == [True, False, False, False, False]


@pytest.mark.parametrize("nothing", [ChatResponse(), ChatResponse.of("")])
def test_an_empty_answer_is_retried(ask: Ask, nothing: ChatResponse) -> None:
    """After an empty answer, the retry has only the problem, in the user message."""
    model = ScriptedModel(nothing, nothing, FILM)

    assert entity(ask, ChatClient.create(model).prompt("?"), Film, validate=True) == ALIEN
    [asked] = model.prompts[2].messages
    question, schema, *corrections = asked.text.split("\n\n")
    assert question == "?"
    assert "JSON Schema" in schema
    assert ["the answer is empty" in each for each in corrections] == [True, True]


@pytest.mark.feature("validation-usage-summed")
def test_all_attempts_are_paid_for() -> None:
    """The usage of an answer is the sum over all attempts."""
    client = ChatClient.create(ScriptedModel("{}", FILM))
    both = client.prompt("?").call().response_entity(Film, validate=True)

    assert both.response.usage == Usage(20, 10)


@pytest.mark.feature(
    "validation-max-repeat-attempts-3", "validation-exhausted-last-response-returned"
)
def test_after_the_last_attempt_it_is_an_error(ask: Ask) -> None:
    """By default there are three attempts; the error has the last answer."""
    model = ScriptedModel("1", "2", "3", "4")

    with pytest.raises(EntityError, match="after 3 attempts") as caught:
        entity(ask, ChatClient.create(model).prompt("?"), Film, validate=True)

    assert len(model.prompts) == 3
    assert caught.value.text == "3"
    assert caught.value.response.usage == Usage(30, 15)


@pytest.mark.feature("validation-response-tool-calls-asked")
def test_tool_calls_are_no_answers_to_validate(ask: Ask) -> None:
    """Responses with tool calls are not validated; each round has its attempts."""
    model = ScriptedModel(call("cast_of", '{"title": "a"}'), "{}", FILM)
    client = ChatClient.builder(model).default_tools(cast_of).build()

    assert entity(ask, client.prompt("?"), Film, validate=True) == ALIEN
    assert [len(prompt.messages) for prompt in model.prompts] == [1, 3, 5]


def test_only_the_good_answer_is_seen_outside(ask: Ask) -> None:
    """Memory and other outer advisors receive one question and one answer."""
    seen: list[tuple[int, str]] = []

    async def remember(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        response = await call_next(request)
        seen.append((len(request.prompt.messages), response.chat_response.text))
        return response

    model = ScriptedModel("{}", FILM)
    entity(ask, ChatClient.create(model).prompt("?").advisors(remember), Film, validate=True)

    assert seen == [(1, FILM)]


def test_validation_works_with_every_output_mode(ask: Ask) -> None:
    """It also works with a native schema and with the answer tool."""
    for native in (True, "tool"):
        answers: list[Any] = ["{}", FILM]
        if native == "tool":
            answers = [call("final_answer", answer) for answer in answers]
        model = ScriptedModel(*answers)
        request = ChatClient.create(model).prompt("?")

        assert entity(ask, request, Film, native=native, validate=True) == ALIEN
        assert len(model.prompts) == 2


@pytest.mark.feature(
    "validation-max-repeat-attempts-3", "validation-registered-validate-schema-both"
)
def test_a_custom_advisor_replaces_the_default(ask: Ask) -> None:
    """An advisor without a type validates the requested type, with its number of attempts."""
    model = ScriptedModel("1", "2")
    client = (
        ChatClient.builder(model)
        .default_advisors(StructuredOutputValidationAdvisor(max_attempts=2))
        .build()
    )

    with pytest.raises(EntityError, match="after 2 attempts"):
        entity(ask, client.prompt("?"), Film, validate=True)


@pytest.mark.feature(
    "validation-structured-output-validation-advisor", "validation-output-json-schema"
)
@pytest.mark.parametrize("kind", [Film, {"type": "object", "required": ["title"]}])
def test_an_advisor_with_a_type_validates_every_answer(ask: Ask, kind: Any) -> None:
    """An invalid answer is not streamed; the type may be a JSON schema."""
    model = ScriptedModel("No.", FILM, FILM)
    advisor = StructuredOutputValidationAdvisor(kind, max_attempts=2)
    client = ChatClient.builder(model).default_advisors(advisor).build()

    assert ask(client.prompt("?")).text == FILM
    assert len(model.prompts) == 2


def test_an_entity_and_a_validating_advisor(ask: Ask) -> None:
    """The answer matches both types, and is converted to that of the request."""
    advisor = StructuredOutputValidationAdvisor(dict[str, Any])
    client = ChatClient.builder(ScriptedModel(FILM)).default_advisors(advisor).build()

    assert entity(ask, client.prompt("?"), Film) == ALIEN


@in_streams
def test_an_invalid_answer_streams_no_text(ask: Ask) -> None:
    """Other events are streamed, such as the end of its round with the usage."""
    request = ChatClient.create(ScriptedModel("No.", FILM)).prompt("A film!")
    found = events(ask, request, entity=Film, validate=True)
    ended = [event.response.text for event in found if isinstance(event, RoundEnded)]

    assert ended == ["", FILM]


@pytest.mark.feature("validation-structured-output-validation-advisor")
def test_validation_ignores_requests_for_text(ask: Ask) -> None:
    """A request without an entity passes unchanged."""
    client = (
        ChatClient.builder(ScriptedModel("words"))
        .default_advisors(StructuredOutputValidationAdvisor())
        .build()
    )

    assert ask(client.prompt("?")).text == "words"


@pytest.mark.feature("validation-stream-unsupported")
def test_the_text_of_a_round_with_tools_is_streamed(ask: Ask) -> None:
    """The text that was held back is streamed once the response has tool calls."""
    model = ScriptedModel(("Let me see. ", call("cast_of", '{"title": "a"}')), "{}", FILM)
    client = (
        ChatClient.builder(model)
        .default_tools(cast_of)
        .default_advisors(StructuredOutputValidationAdvisor(Film))
        .build()
    )
    result = ask(client.prompt("?"))

    assert result.text == (f"Let me see. \n\n{FILM}" if ask.streaming else FILM)


@pytest.mark.feature("validation-stream-unsupported")
def test_a_stream_of_values_restarts_with_each_attempt() -> None:
    """Partial values of invalid attempts are streamed, too."""
    model = ScriptedModel('{"title": "Wrong", "cast": 1}', FILM, chunks=4)
    values = list(ChatClient.create(model).prompt("?").stream().entity(Film, validate=True))
    titles = [value.title for value in values]

    assert "Wrong" in titles
    assert titles.index("Wrong") < titles.index("A")
    assert values[-1] == ALIEN


def test_no_attempt_after_the_deadline(ask: Ask, clock: Clock) -> None:
    """There is no retry after the deadline."""

    async def take_long(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        response = await call_next(request)
        clock.advance(600)
        return response

    take_long.order = LOWEST_PRECEDENCE - 1  # type: ignore[attr-defined]
    model = ScriptedModel("{}", FILM)
    request = ChatClient.create(model).prompt("?").advisors(take_long).deadline(500)
    with pytest.raises(DeadlineExceededError, match="better answer"):
        entity(ask, request, Film, validate=True)

    assert len(model.prompts) == 1


@pytest.mark.feature("validation-order-lowest-2000-between")
@pytest.mark.parametrize(
    "arguments",
    [{"max_attempts": 0}, {"order": -(2**31)}, {"order": 2**31 - 1}, {"kind": object()}],
)
def test_wrong_arguments_of_the_advisor(arguments: dict[str, Any]) -> None:
    """Invalid arguments are refused when the advisor is created."""
    with pytest.raises(UsageError):
        StructuredOutputValidationAdvisor(**arguments)


@pytest.mark.feature("validation-order-lowest-2000-between")
def test_validation_may_be_outside_of_the_tool_loop(ask: Ask) -> None:
    """The complete turn is repeated, and responses with tool calls are not validated."""
    model = ScriptedModel(call("cast_of", '{"title": "a"}'), "{}", FILM)
    advisor = StructuredOutputValidationAdvisor(Film, order=TOOL_CALLING_ORDER - 1)
    client = ChatClient.builder(model).default_tools(cast_of).default_advisors(advisor).build()

    assert ask(client.prompt("?")).text == FILM


def test_a_turn_that_waits_for_approval_has_no_entity_yet(ask: Ask) -> None:
    """The error names the pending calls and the attribute that has them."""

    @tool
    def pay() -> None:
        """Pay."""

    manager = ToolCallingManager(interceptors=[ToolApproval(needed=lambda _: True)])
    model = ScriptedModel([FILM, call("pay")])
    builder = ChatClient.builder(model).default_tools(pay).tool_calling_manager(manager)

    with pytest.raises(EntityError, match="waits for approval of pay; see its pending_") as caught:
        entities(ask, builder.build().prompt("x"), Film)
    assert caught.value.response.has_tool_calls()
    assert list(caught.value.pending_turn.to_decide()) == ["call_pay"]
    assert len(caught.value.trail.rounds) == 1


def test_a_limit_is_reported_instead_of_invalid_json(ask: Ask) -> None:
    """The loop's text about its limit is not parsed, but JSON in it is."""

    @tool
    def look() -> str:
        """Look."""
        return "x"

    def client(on_exceeded: Any) -> ChatClient:
        model = ScriptedModel(call("look"), call("look"), FILM)
        limits = ToolLimits(
            max_rounds=1 if on_exceeded == "partial" else 2, on_exceeded=on_exceeded
        )
        manager = ToolCallingManager(limits=limits)
        return ChatClient.builder(model).default_tools(look).tool_calling_manager(manager).build()

    with pytest.raises(EntityError, match="ended at a limit: tool_call_limit_exceeded"):
        entities(ask, client("partial").prompt("x"), Film)
    assert entities(ask, client("final_answer").prompt("x"), Film)[-1] == ALIEN
