"""Spans and metrics with the real SDK, in all four modes."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from chatclient import (
    ChatClient,
    ChatClientRequest,
    ChatClientResponse,
    ChatResponse,
    Media,
    Next,
    Prompt,
    UserMessage,
    tool,
)
from chatclient.advisors.memory.advisors import MessageChatMemoryAdvisor
from chatclient.advisors.retrieval.advisor import QuestionAnswerAdvisor
from chatclient.advisors.tool_loop.advisor import ToolCallingAdvisor
from chatclient.chat.messages import (
    AssistantMessage,
    Part,
    ProviderPart,
    Reasoning,
    ToolCall,
    ToolResponse,
    ToolResponseMessage,
)
from chatclient.chat.options import ChatOptions
from chatclient.chat.response import Generation, Usage
from chatclient.client.request import ChatClientRequestSpec
from chatclient.errors import ChatClientError, EntityError, McpServerError, ProviderError
from chatclient.memory import MessageWindowChatMemory
from chatclient.observability.operations import ModelCall
from chatclient.observability.semantic_conventions import option_attributes, server_attributes
from chatclient.observability.telemetry import Telemetry
from chatclient.providers import FallbackChatModel, OpenAIChatOptions, compatible_model
from chatclient.retrieval import Document, InMemoryVectorStore
from chatclient.runtime.observation import Operation
from chatclient.testing import Answer, Ask, ScriptedModel, call
from chatclient.tools import ToolApproval, ToolCallingManager, ToolRequest, tool_callbacks
from tests.support.bag_of_words import BagOfWords
from tests.support.servers import ChatServer


class Recorded:
    """Spans and metrics of one test, in memory."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.reader = InMemoryMetricReader()
        self.meters = MeterProvider([self.reader])

    def telemetry(self, **settings: Any) -> Telemetry:
        return Telemetry(self.tracers, self.meters, **settings)

    @property
    def spans(self) -> list[ReadableSpan]:
        return sorted(self.exporter.get_finished_spans(), key=lambda span: span.start_time or 0)

    def span(self, name: str) -> ReadableSpan:
        (found,) = (span for span in self.spans if span.name == name)
        return found

    def tree(self) -> list[str]:
        """Return the spans' names, indented below their parents."""
        by_id = {span.context.span_id: span for span in self.spans if span.context}

        def depth(span: ReadableSpan) -> int:
            return 0 if span.parent is None else 1 + depth(by_id[span.parent.span_id])

        return [f"{'  ' * depth(span)}{span.name}" for span in self.spans]

    def points(self, metric: str) -> list[Any]:
        """Return the data points of a metric."""
        data = self.reader.get_metrics_data()
        return [
            point
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for found in scope.metrics
            if found.name == metric
            for point in found.data.data_points
        ]

    def close(self) -> None:
        self.tracers.shutdown()
        self.meters.shutdown()


@pytest.fixture
def recorded() -> Iterator[Recorded]:
    recorded = Recorded()
    yield recorded
    recorded.close()


@tool
def get_weather(city: str) -> str:
    """Get the weather in a city."""
    if city == "Atlantis":
        msg = "it sank"
        raise LookupError(msg)
    return f"sunny in {city}"


async def outer(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
    return await call_next(request)


class Offering:
    """A provider that calls a function in each request."""

    def __init__(self, offer: Callable[[ToolRequest], list[Any]]) -> None:
        self.tool_callbacks = offer


class Inner:
    order = 10

    async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        return await call_next(request)


TWO_CITIES = [
    call("get_weather", '{"city": "Rome"}', id="1"),
    call("get_weather", '{"city": "Atlantis"}', id="2"),
]


def client_of(
    recorded: Recorded, *answers: Answer | Callable[..., Answer], **settings: Any
) -> ChatClient:
    model = ScriptedModel(*answers, options=ChatOptions(model="m-1", temperature=0.5))
    manager = ToolCallingManager(blocking_concurrency=4)
    return (
        ChatClient.builder(model)
        .default_tools(get_weather)
        .default_advisors(Inner())
        .tool_calling_manager(manager)
        .observers(recorded.telemetry(**settings))
        .build()
    )


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


@pytest.mark.feature(
    "observation-chat-client", "observation-advisor", "observation-span-hierarchy-streams-too"
)
def test_the_spans_of_a_turn_are_nested(ask: Ask, recorded: Recorded) -> None:
    """Client, advisors, rounds and concurrent tools: one tree, the same in every mode."""
    ask(client_of(recorded, TWO_CITIES, "Fine.").prompt("Weather?"))

    assert recorded.tree() == [
        "invoke_agent",
        "  advisor ToolCallingAdvisor",
        "    advisor Inner",
        "      chat m-1",
        "    execute_tool get_weather",
        "    execute_tool get_weather",
        "    advisor Inner",
        "      chat m-1",
    ]


@pytest.mark.feature("observation-chat-client", "observation-gen-client-operation")
def test_spans_have_the_attributes_of_the_conventions(ask: Ask, recorded: Recorded) -> None:
    """GenAI attributes on model and client spans; costs are those of the round, and of all."""
    client = client_of(recorded, [call("get_weather", '{"city": "Rome"}')], "Fine.")
    ask(client.prompt("Weather?").conversation("c-1"))

    model = attributes(recorded.spans[3])
    assert model | {"gen_ai.response.time_to_first_chunk": 1} == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "scripted",
        "gen_ai.conversation.id": "c-1",
        "gen_ai.request.model": "m-1",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.response.id": "response-1",
        "gen_ai.response.model": "scripted",
        "gen_ai.response.finish_reasons": ("tool_call",),
        "gen_ai.response.time_to_first_chunk": 1,
        "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.output_tokens": 5,
        "chatclient.tools": ("get_weather",),
        **({"gen_ai.request.stream": True} if ask.streaming else {}),
    }
    assert ("gen_ai.response.time_to_first_chunk" in model) == ask.streaming
    assert attributes(recorded.span("invoke_agent")) == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.conversation.id": "c-1",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": 20,
        "gen_ai.usage.output_tokens": 10,
        "chatclient.stream": ask.streaming,
        "chatclient.advisors": ("ToolCallingAdvisor", "Inner"),
        "chatclient.tools": ("get_weather",),
    }
    assert attributes(recorded.span("execute_tool get_weather")) == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.conversation.id": "c-1",
        "gen_ai.tool.name": "get_weather",
        "gen_ai.tool.call.id": "call_get_weather",
        "gen_ai.tool.type": "function",
        "gen_ai.tool.description": "Get the weather in a city.",
    }
    assert attributes(recorded.span("advisor ToolCallingAdvisor"))["chatclient.advisor.name"] == (
        "ToolCallingAdvisor"
    )


@pytest.mark.feature("observation-observations-vector-stores")
def test_memory_is_observed(ask: Ask, recorded: Recorded) -> None:
    """The advisor loads the conversation; the turn is stored when all advisors are done."""
    memory = MessageChatMemoryAdvisor(MessageWindowChatMemory())
    client = (
        ChatClient.builder(ScriptedModel("Hi."))
        .default_advisors(memory)
        .observers(recorded.telemetry())
        .build()
    )
    ask(client.prompt("Hello").conversation("c-1"))

    assert recorded.tree()[1:3] == ["  advisor MessageChatMemoryAdvisor", "    load memory"]
    assert recorded.tree()[-1] == "  store memory"
    assert attributes(recorded.span("store memory")) == {
        "chatclient.memory.access": "store",
        "chatclient.memory.messages": 2,
        "gen_ai.conversation.id": "c-1",
    }
    assert attributes(recorded.span("load memory"))["chatclient.memory.messages"] == 0


@pytest.mark.feature("observation-observations-vector-stores")
def test_retrieval_is_observed(ask: Ask, recorded: Recorded) -> None:
    """A search in a vector store is a span; the query is content."""
    pytest.importorskip("numpy")
    store = InMemoryVectorStore(BagOfWords())
    store.add([Document("Trains to Rome leave at nine.")])
    client = (
        ChatClient.builder(ScriptedModel("At nine."))
        .default_advisors(QuestionAnswerAdvisor(store))
        .observers(recorded.telemetry(capture_content=True))
        .build()
    )
    ask(client.prompt("When do trains leave?"))

    assert attributes(recorded.span("retrieval InMemoryVectorStore")) == {
        "gen_ai.operation.name": "retrieval",
        "gen_ai.data_source.id": "InMemoryVectorStore",
        "gen_ai.retrieval.query.text": "When do trains leave?",
        "chatclient.retrieval.results": 1,
    }


@pytest.mark.feature("observation-counter-gen-client-token")
def test_all_kinds_of_tokens_are_recorded(recorded: Recorded) -> None:
    """Cached, written and reasoning tokens have separate attributes."""
    usage = Usage(10, 5, cache_read_tokens=4, cache_write_tokens=3, reasoning_tokens=2)
    client = (
        ChatClient.builder(ScriptedModel("Hi.", usage=usage))
        .observers(recorded.telemetry())
        .build()
    )
    client.prompt("Hi").call().content()

    found = attributes(recorded.span("chat ScriptedModel"))
    assert found["gen_ai.usage.cache_read.input_tokens"] == 4
    assert found["gen_ai.usage.cache_write.input_tokens"] == 3
    assert found["gen_ai.usage.reasoning.output_tokens"] == 2
    parts = ("cache_read.input", "cache_write.input", "reasoning.output")
    used = [recorded.points(f"gen_ai.client.inference.usage.{part}_tokens") for part in parts]
    assert [point.value for (point,) in used] == [4, 3, 2]


@pytest.mark.feature("observation-tool")
def test_a_tools_error_is_on_its_span(ask: Ask, recorded: Recorded) -> None:
    """Only the tool's span has failed, because the turn continues."""
    ask(client_of(recorded, [call("get_weather", '{"city": "Atlantis"}')], "Hm.").prompt("?"))

    failed = recorded.span("execute_tool get_weather")
    assert attributes(failed)["error.type"] == "LookupError"
    assert not failed.status.is_ok
    assert [span.name for span in recorded.spans if not span.status.is_ok] == [failed.name]


def test_a_call_that_waits_is_no_error(ask: Ask, recorded: Recorded) -> None:
    """A suspended call has failed neither on its span nor in metrics."""
    client = client_of(recorded, [call("get_weather", '{"city": "Rome"}')])
    manager = ToolCallingManager(interceptors=[ToolApproval()])
    ask(client.mutate().tool_calling_manager(manager).build().prompt("?"))

    waiting = attributes(recorded.span("execute_tool get_weather"))
    assert waiting["chatclient.tool.waits_for"] == "approval"
    assert not any("error.type" in attributes(span) for span in recorded.spans)
    (point,) = recorded.points("gen_ai.execute_tool.duration")
    assert "error.type" not in point.attributes


@pytest.mark.feature("observation-tool")
def test_an_unknown_tool_is_on_a_span(ask: Ask, recorded: Recorded) -> None:
    """A call of an unknown tool has a span, too."""
    ask(client_of(recorded, [call("get_wether", "{}")], "Hm.").prompt("?"))

    assert attributes(recorded.span("execute_tool get_wether"))["error.type"] == "UnknownToolError"


def test_metrics_of_unknown_tools(ask: Ask, recorded: Recorded) -> None:
    """Names that a model invents are counted together, because their number is unlimited."""
    made_up = [call(f"made_up_{number}", "{}") for number in range(3)]
    ask(client_of(recorded, made_up, "Hm.").prompt("?"))

    (point,) = recorded.points("gen_ai.execute_tool.duration")
    labels = {"gen_ai.operation.name": "execute_tool", "error.type": "UnknownToolError"}
    assert (point.attributes, point.count) == (labels, 3)


def test_a_failure_is_on_every_span_around_it(ask: Ask, recorded: Recorded) -> None:
    """Types of the library's errors are short, and no span stays open."""
    client = client_of(recorded, ProviderError("overloaded", provider="scripted"))
    with pytest.raises(ProviderError) as caught:
        ask(client.prompt("?"))

    assert [attributes(span)["error.type"] for span in recorded.spans] == ["ProviderError"] * 4
    assert "failed: ProviderError" in str(caught.value.trail)


def broken(_request: ToolRequest) -> list[Any]:
    """Fail as a provider of tools."""
    msg = "the registry is down"
    raise McpServerError(msg, server="registry")


EARLY: dict[str, tuple[str, Callable[[ChatClient], ChatClientRequestSpec]]] = {
    "template": ("TemplateError", lambda c: c.prompt().user("Hi {name}", params={})),
    "tool": ("ToolDefinitionError", lambda c: c.prompt("Hi").tools("unread-of")),
    "nothing": ("UsageError", lambda c: c.prompt()),
    "provider": ("McpServerError", lambda c: c.prompt("Hi").tools(Offering(broken))),
    "system": ("KeyError", lambda c: c.prompt("Hi").system(lambda: os.environ["UNHEARD_OF"])),
    "loops": ("UsageError", lambda c: c.prompt("Hi").advisors(*[ToolCallingAdvisor()] * 2)),
}


@pytest.mark.parametrize("why", EARLY)
def test_a_failure_before_the_first_advisor_is_seen(ask: Ask, recorded: Recorded, why: str) -> None:
    """It has a span, a metric and a trail."""
    error_type, request = EARLY[why]
    with pytest.raises(Exception) as caught:  # noqa: PT011 - of all kinds
        ask(request(client_of(recorded, "unasked")))

    (span,) = recorded.spans
    (point,) = recorded.points("gen_ai.invoke_agent.duration")
    assert span.name == "invoke_agent"
    assert span.status.status_code is StatusCode.ERROR
    assert attributes(span)["error.type"] == point.attributes["error.type"] == error_type
    if isinstance(caught.value, ChatClientError):
        assert caught.value.trail.steps[0].error is caught.value


def test_what_is_made_ready_for_a_request_is_a_part_of_it(ask: Ask, recorded: Recorded) -> None:
    """Spans of system text functions and tool providers are children of the request."""

    def write() -> str:
        with recorded.tracers.get_tracer("app").start_as_current_span("read settings"):
            return "Be brief."

    ask(client_of(recorded, "Fine.").prompt("Hi").system(write))

    assert recorded.tree()[:2] == ["invoke_agent", "  read settings"]


def test_leaving_a_stream_early_ends_the_spans(recorded: Recorded) -> None:
    """All spans end, and are marked as incomplete."""
    stream = client_of(recorded, "A long answer.").prompt("?").stream().content()
    next(stream)
    stream.close()

    assert {attributes(span).get("error.type") for span in recorded.spans} == {"GeneratorExit"}
    assert len(recorded.spans) == 4


def test_nothing_that_was_said_is_recorded_unasked(ask: Ask, recorded: Recorded) -> None:
    """By default neither prompts, answers, arguments nor results are recorded."""
    ask(client_of(recorded, [call("get_weather", '{"city": "Rome"}')], "Fine.").prompt("Hush?"))

    told = json.dumps([attributes(span) for span in recorded.spans])
    for secret in ("Hush", "Rome", "Fine", "sunny"):
        assert secret not in told


@pytest.mark.feature("observation-include-content-filters")
def test_content_is_recorded_on_request(ask: Ask, recorded: Recorded) -> None:
    """In the form of the conventions: messages with parts, both ways."""
    client = client_of(
        recorded, [call("get_weather", '{"city": "Rome"}')], "Fine.", capture_content=True
    )
    ask(client.prompt("Weather?").system("Be brief."))

    second = attributes(recorded.spans[-1])
    assert json.loads(second["gen_ai.system_instructions"]) == [
        {"type": "text", "content": "Be brief."}
    ]
    assert json.loads(second["gen_ai.input.messages"]) == [
        {"role": "user", "parts": [{"type": "text", "content": "Weather?"}]},
        {
            "role": "assistant",
            "parts": [
                {
                    "type": "tool_call",
                    "id": "call_get_weather",
                    "name": "get_weather",
                    "arguments": {"city": "Rome"},
                }
            ],
        },
        {
            "role": "tool",
            "parts": [
                {
                    "type": "tool_call_response",
                    "id": "call_get_weather",
                    "response": "sunny in Rome",
                }
            ],
        },
    ]
    (answer,) = json.loads(second["gen_ai.output.messages"])
    assert second["gen_ai.response.finish_reasons"] == ("stop",)
    assert "".join(part["content"] for part in answer["parts"]) == "Fine."
    (definition,) = json.loads(second["gen_ai.tool.definitions"])
    assert definition["name"] == "get_weather"
    assert definition["parameters"]["required"] == ["city"]
    run = attributes(recorded.span("execute_tool get_weather"))
    assert run["gen_ai.tool.call.arguments"] == '{"city": "Rome"}'
    assert run["gen_ai.tool.call.result"] == "sunny in Rome"


def test_every_kind_of_part_is_described(recorded: Recorded) -> None:
    """Media without their bytes, reasoning, and what only a provider knows by its type."""
    client = client_of(recorded, "Yes.", capture_content=True)
    said: list[Part] = [Reasoning("Hm."), "I see.", ProviderPart("scripted", {"a": 1})]
    media = [
        Media("image/png", b"..."),
        Media("audio/wav", "https://x/y"),
        Media("application/pdf", "file-1", id="file-1"),
    ]
    client.prompt(
        [
            UserMessage("Look:", media),
            AssistantMessage(said),
            UserMessage("And?"),
        ]
    ).call().content()

    first, second, _ = json.loads(attributes(recorded.spans[-1])["gen_ai.input.messages"])
    assert first["parts"][1:] == [
        {"type": "media", "modality": "image", "mime_type": "image/png", "bytes": 3},
        {"type": "uri", "modality": "audio", "mime_type": "audio/wav", "uri": "https://x/y"},
        {
            "type": "file",
            "modality": "document",
            "mime_type": "application/pdf",
            "file_id": "file-1",
        },
    ]
    assert [part["type"] for part in second["parts"]] == ["reasoning", "text", "ProviderPart"]


@pytest.mark.feature("observation-include-content-filters")
def test_what_is_recorded_can_be_redacted(recorded: Recorded) -> None:
    """The hook sees each text with its attribute's name, and may drop it."""

    def redact(name: str, text: str) -> str | None:
        return None if name == "gen_ai.output.messages" else text.replace("4711", "…")

    client = client_of(recorded, "Secret.", capture_content=True, redact=redact)
    client.prompt("My code is 4711.").call().content()

    found = attributes(recorded.span("chat m-1"))
    assert "My code is …." in found["gen_ai.input.messages"]
    assert "gen_ai.output.messages" not in found


@tool(effect="read")
def look_up(text: str, numbers: list[int]) -> str:
    """Look something up."""
    return "Found:\n4711"


@pytest.mark.parametrize("withheld", [False, True])
def test_redaction_gets_unescaped_texts(recorded: Recorded, *, withheld: bool) -> None:
    """Spans hold them as JSON, in which the end of a line would become part of the next word."""

    def redact(name: str, text: str) -> str | None:
        found = re.search(r"\b4711\b", text)
        return None if found and withheld else re.sub(r"\b4711\b", "…", text)

    asks = call("look_up", r'{"text": "at\n4711", "numbers": [4711]}')
    model = ScriptedModel(["Well,\n4711.", asks], "It is\n4711 or 47110.")
    observer = Telemetry(recorded.tracers, capture_content=True, redact=redact)
    client = ChatClient.builder(model).default_tools(look_up).observers(observer).build()
    client.prompt("My code:\n4711").system("Mind\n4711").call().content()

    kept = [str(value) for span in recorded.spans for value in attributes(span).values()]
    assert not any("4711" in text.replace("47110", "") for text in kept)
    said = [text for text in kept if "47110" in text]
    assert len(said) == (0 if withheld else 1)
    for text in said:
        (answer,) = json.loads(text)
        assert answer["parts"] == [{"type": "text", "content": "It is\n… or 47110."}]


def _spelled_wrong(recorded: Recorded, **settings: Any) -> list[str]:
    """Return the status descriptions of failed spans, for an answer that is not a number."""
    client = client_of(recorded, *["Call 4711!"] * 5, **settings)
    with pytest.raises(EntityError, match="4711"):
        client.prompt("?").call().entity(int, validate=True)
    return [span.status.description or "" for span in recorded.spans if not span.status.is_ok]


def test_what_was_said_is_not_in_a_status(recorded: Recorded) -> None:
    """By default a failed span has only the error's type, because errors may quote answers."""
    said = _spelled_wrong(recorded)

    assert said
    assert set(said) == {"EntityError"}


def test_the_text_of_an_error_is_redacted(recorded: Recorded) -> None:
    """Where content is recorded, it is too, and the hook sees it as `error.message`."""
    names: set[str] = set()

    def redact(name: str, text: str) -> str:
        names.add(name)
        return text.replace("4711", "…")

    said = _spelled_wrong(recorded, capture_content=True, redact=redact)
    assert all("Call …!" in text for text in said)
    assert "error.message" in names


def test_a_redaction_that_raises_loses_no_span(
    recorded: Recorded, caplog: pytest.LogCaptureFixture
) -> None:
    """What it cannot redact is left out, and logged without the text."""

    def redact(name: str, text: str) -> str:
        raise KeyError(text)

    said = _spelled_wrong(recorded, capture_content=True, redact=redact)
    assert set(said) == {"EntityError"}
    assert not any("gen_ai.input.messages" in attributes(span) for span in recorded.spans)
    assert "redaction failed" in caplog.text
    assert "4711" not in caplog.text


def test_the_environment_can_ask_for_content(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenTelemetry's own variable enables it."""
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "true")
    client_of(recorded, "Hi.").prompt("Hello").call().content()

    assert "Hello" in attributes(recorded.span("chat m-1"))["gen_ai.input.messages"]


@pytest.mark.feature("observation-counter-gen-client-token", "observation-key-values-low-high")
def test_metrics_count_calls_and_tokens(ask: Ask, recorded: Recorded) -> None:
    """They are grouped by provider, model and outcome, and tools by name."""
    ask(client_of(recorded, TWO_CITIES, "Fine.").prompt("Weather?"))

    labels = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "scripted",
        "gen_ai.request.model": "m-1",
        "gen_ai.response.model": "scripted",
    }
    (duration,) = recorded.points("gen_ai.client.inference.duration")
    assert (duration.attributes, duration.count) == (labels, 2)
    for kind, total in (("input", 20), ("output", 10)):
        (used,) = recorded.points(f"gen_ai.client.inference.usage.{kind}_tokens")
        assert (used.attributes, used.value) == (
            {**labels, "gen_ai.token.modality": "unknown"},
            total,
        )
        (each,) = recorded.points(f"gen_ai.client.inference.operation.{kind}_tokens")
        assert (each.attributes, each.sum, each.count) == (labels, total, 2)
    tools = recorded.points("gen_ai.execute_tool.duration")
    assert {point.attributes.get("error.type"): point.count for point in tools} == {
        None: 1,
        "LookupError": 1,
    }
    (turn,) = recorded.points("gen_ai.invoke_agent.duration")
    assert turn.attributes["gen_ai.operation.name"] == "invoke_agent"
    assert turn.count == 1
    first = recorded.points("gen_ai.client.inference.time_to_first_chunk")
    assert sum(point.count for point in first) == (2 if ask.streaming else 0)


@pytest.mark.feature("observation-application-span-parent")
def test_a_span_of_the_application_is_the_parent(ask: Ask, recorded: Recorded) -> None:
    """The turn is a child of the current span, and tools run within their span."""
    seen: list[str] = []

    @tool
    def look() -> str:
        """Look around."""
        from opentelemetry import trace

        seen.append(getattr(trace.get_current_span(), "name", "none"))
        return "nothing"

    client = client_of(recorded, [call("look")], "Fine.").prompt("?").tools(look)
    with recorded.tracers.get_tracer("app").start_as_current_span("web request"):
        ask(client)

    assert recorded.tree()[:2] == ["web request", "  invoke_agent"]
    assert seen == ["execute_tool look"]


def test_an_unsampled_turn_is_counted_all_the_same(recorded: Recorded) -> None:
    """Sampling is about spans; metrics are complete."""
    from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

    telemetry = Telemetry(TracerProvider(sampler=ALWAYS_OFF), recorded.meters)
    client = ChatClient.builder(ScriptedModel("Hi.")).observers(telemetry).build()
    client.prompt("Hi").call().content()

    assert recorded.points("gen_ai.client.inference.duration")[0].count == 1


class Clumsy:
    """An observer that fails at both ends."""

    def begin(self, operation: Operation) -> Any:
        if operation.kind == "client":
            raise RuntimeError
        return self

    def end(self, *_args: object) -> None:
        raise RuntimeError


@pytest.mark.feature(
    "observation-chat-model-listener-request", "observation-listeners-failures-logged-ignored"
)
def test_the_error_of_an_observer_is_logged(ask: Ask, caplog: pytest.LogCaptureFixture) -> None:
    """Its error is logged, and the answer is returned."""
    client = ChatClient.builder(ScriptedModel("Hi.")).observers(Clumsy()).build()

    assert ask(client.prompt("Hi")).text == "Hi."
    assert "observer failed" in caplog.text


_PROGRAM = """
import sys
from chatclient import ChatClient
from chatclient.testing import ScriptedModel

def ask():
    ChatClient.create(ScriptedModel("Hi.")).prompt("Hi").call().content()

ask()
assert "opentelemetry.trace" not in sys.modules or {by_environment}
from opentelemetry import trace
ask()
assert "opentelemetry.sdk.trace" not in sys.modules or {by_environment}
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
exporter = InMemorySpanExporter()
if {by_environment}:
    provider = trace.get_tracer_provider()
else:
    provider = TracerProvider()
    trace.set_tracer_provider(provider)
provider.add_span_processor(SimpleSpanProcessor(exporter))
ask()
ask()
print(*(span.name for span in exporter.get_finished_spans()))
"""


@pytest.mark.process("Python")
@pytest.mark.parametrize("by_environment", [False, True])
def test_an_sdk_is_used_as_soon_as_it_is_set_up(by_environment: bool) -> None:
    """The API is imported only after that."""
    environment = {**os.environ, "OTEL_PYTHON_TRACER_PROVIDER": "sdk_tracer_provider"}
    program = _PROGRAM.format(by_environment=by_environment)
    ran = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env=environment if by_environment else None,
    )

    assert ran.stderr == ""
    turn = ["chat ScriptedModel", "advisor ToolCallingAdvisor", "invoke_agent"]
    assert ran.stdout.split() == " ".join(turn * 2).split()


def test_the_api_is_known_from_the_inside() -> None:
    """The detection depends on internals of OpenTelemetry; this test fails if they change."""
    from opentelemetry import trace
    from opentelemetry.metrics import _internal as metrics

    assert trace._TRACER_PROVIDER is None
    assert metrics._METER_PROVIDER is None


@pytest.mark.parametrize("renamed", [False, True])
def test_providers_that_are_set_are_found(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch, renamed: bool
) -> None:
    """They are found with the detection, and without it."""
    from opentelemetry import trace

    if renamed:
        monkeypatch.delattr(trace, "_TRACER_PROVIDER")
        monkeypatch.setattr(trace, "get_tracer_provider", lambda: recorded.tracers)
    else:
        monkeypatch.setattr(trace, "_TRACER_PROVIDER", recorded.tracers)
    ChatClient.create(ScriptedModel("Hi.")).prompt("Hi").call().content()
    assert len(recorded.spans) == 3


@pytest.mark.feature("observation-tool")
def test_tools_of_an_own_loop_are_observed(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have spans without a client and its observers."""
    from opentelemetry import trace

    monkeypatch.setattr(trace, "_TRACER_PROVIDER", recorded.tracers)
    prompt = Prompt("?", ChatOptions(tool_callbacks=tool_callbacks(get_weather)))
    response = ChatResponse((Generation(AssistantMessage(TWO_CITIES)),))
    ToolCallingManager().execute_tool_calls(prompt, response)

    assert [span.name for span in recorded.spans] == ["execute_tool get_weather"] * 2
    assert [span.status.is_ok for span in recorded.spans] == [True, False]


def test_an_explicit_telemetry_replaces_the_default(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise each span would exist twice."""
    from opentelemetry import trace

    monkeypatch.setattr(trace, "get_tracer_provider", lambda: recorded.tracers)
    client_of(recorded, "Hi.").prompt("Hi").call().content()
    assert len(recorded.spans) == 4


@pytest.mark.feature("observation-conventions-your-own")
def test_calls_are_described_by_themselves() -> None:
    """A custom operation needs only a kind."""

    class Lookup(Operation):
        kind = "retrieval"

    lookup = Lookup()

    assert lookup.name == "retrieval"
    assert (lookup.attributes(), lookup.outcome(1), lookup.content(1)) == ({}, {}, {})
    assert lookup.failure(1) is None


def test_server_and_reasoning_of_a_call(
    ask: Ask, recorded: Recorded, chat_server: Callable[..., ChatServer]
) -> None:
    """Host and port are on the span and in metrics; with a fallback, those of the answer."""
    server = chat_server("Hello.")
    with (
        compatible_model("vllm", "m", base_url=server.url) as model,
        compatible_model("vllm", "m", base_url="http://127.0.0.1:9", max_retries=0) as down,
    ):
        for each in (model, FallbackChatModel(down, model)):
            client = ChatClient.builder(each).observers(recorded.telemetry()).build()
            ask(client.prompt("Hi").options(reasoning="low"))

    port = urlsplit(server.url).port
    for span in (s for s in recorded.spans if s.name.startswith("chat ")):
        found = attributes(span)
        assert (found["server.address"], found["server.port"]) == ("127.0.0.1", port)
        assert found["gen_ai.request.reasoning.level"] == "low"
    durations = recorded.points("gen_ai.client.inference.duration")
    assert {point.attributes["server.port"] for point in durations} == {port}


def test_options_that_are_described() -> None:
    """A budget is no level, one answer is the default, and not each address is a URL."""
    budget = option_attributes(ChatOptions(reasoning=1024))
    assert budget["chatclient.request.reasoning.budget"] == 1024
    assert "gen_ai.request.reasoning.level" not in budget
    for count, told in ((1, None), (2, 2)):
        prompt = Prompt("Hi", OpenAIChatOptions(n=count))
        found = ModelCall(ScriptedModel(), prompt, streaming=False).attributes()
        assert found.get("gen_ai.request.choice.count") == told
    assert server_attributes("https://a.org/v1") == {"server.address": "a.org", "server.port": 443}
    for address in ("", "/models/a.gguf", "http://[::1", "http://a:1/ → http://b:2/"):
        assert not server_attributes(address)


def test_a_failed_call_used_no_tokens(ask: Ask, recorded: Recorded) -> None:
    """It counts with 0, and is not among the sizes of calls."""
    client = client_of(recorded, ProviderError("down", provider="scripted"))
    with pytest.raises(ProviderError):
        ask(client.prompt("Hi"))

    (used,) = recorded.points("gen_ai.client.inference.usage.input_tokens")
    assert used.value == 0
    assert "error.type" not in used.attributes
    assert recorded.points("gen_ai.client.inference.operation.input_tokens") == []
    (duration,) = recorded.points("gen_ai.client.inference.duration")
    assert duration.attributes["error.type"] == "ProviderError"


def test_arguments_that_are_no_json_are_recorded_as_they_are(recorded: Recorded) -> None:
    """A model may write anything."""
    client = client_of(recorded, "Yes.", capture_content=True)
    said = AssistantMessage(
        tool_calls=[ToolCall("1", "get_weather", "{city"), ToolCall("2", "f", "")]
    )
    results = [ToolResponse("1", "get_weather", "no"), ToolResponse("2", "f", "yes")]
    client.prompt([UserMessage("?"), said, ToolResponseMessage(results)]).call().content()

    _, message, _ = json.loads(attributes(recorded.spans[-1])["gen_ai.input.messages"])
    assert [part["arguments"] for part in message["parts"]] == ["{city", {}]
