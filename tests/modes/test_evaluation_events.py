"""Verdicts as events of OpenTelemetry."""

from collections.abc import Mapping
from typing import Any

import pytest
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from chatclient import ChatClient
from chatclient.errors import OverloadedError, WrongTypeError
from chatclient.observability import Telemetry, Trail
from chatclient.testing import (
    Ask,
    EvaluationRequest,
    EvaluationResponse,
    ScriptedModel,
    record_evaluations,
)

BAD = EvaluationResponse(False, 0.25, "It says 4711.")


class Collected:
    """A provider of loggers, and what it has collected."""

    def __init__(self) -> None:
        self._exporter = InMemoryLogRecordExporter()  # type: ignore[no-untyped-call]
        self.provider = LoggerProvider()
        self.provider.add_log_record_processor(SimpleLogRecordProcessor(self._exporter))

    @property
    def records(self) -> list[Any]:
        return [each.log_record for each in self._exporter.get_finished_logs()]

    @property
    def attributes(self) -> list[Mapping[str, Any]]:
        return [dict(record.attributes) for record in self.records]


def test_belongs_to_the_turn(ask: Ask) -> None:
    """The events have the span of the turn as parent, and the id of the response."""
    spans, events = InMemorySpanExporter(), Collected()
    tracers = TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(spans))
    telemetry = Telemetry(tracers)
    client = ChatClient.builder(ScriptedModel("Hello.")).observers(telemetry).build()
    response = ask(client.prompt("Hi!")).response

    verdicts = {"polite": EvaluationResponse(True, 1.0, "It greets."), "short": BAD}
    record_evaluations(response, verdicts, telemetry=telemetry, logger_provider=events.provider)

    first, second = events.records
    span = next(each for each in spans.get_finished_spans() if each.name == "invoke_agent")
    assert span.context is not None
    assert (first.trace_id, first.span_id) == (span.context.trace_id, span.context.span_id)
    assert {first.event_name, second.event_name} == {"gen_ai.evaluation.result"}
    assert events.attributes == [
        {
            "gen_ai.evaluation.name": "polite",
            "gen_ai.evaluation.score.value": 1.0,
            "gen_ai.evaluation.score.label": "pass",
            "gen_ai.response.id": "response-1",
        },
        {
            "gen_ai.evaluation.name": "short",
            "gen_ai.evaluation.score.value": 0.25,
            "gen_ai.evaluation.score.label": "fail",
            "gen_ai.response.id": "response-1",
        },
    ]


def test_explanation() -> None:
    """The feedback is content: it is recorded on request, and redacted."""
    events = Collected()
    telemetry = Telemetry(capture_content=True, redact=lambda _, text: text.replace("4711", "X"))
    request = EvaluationRequest("", "")

    record_evaluations(request, {"id": BAD}, telemetry=telemetry, logger_provider=events.provider)

    assert events.attributes[0]["gen_ai.evaluation.explanation"] == "It says X."


def test_current_span() -> None:
    """Without the span of a turn, the event belongs to the current span."""
    events = Collected()
    with TracerProvider().get_tracer("test").start_as_current_span("test") as span:
        for judged in (EvaluationRequest("", ""), Trail()):
            record_evaluations(judged, {"id": BAD}, logger_provider=events.provider)

    assert {record.span_id for record in events.records} == {span.get_span_context().span_id}
    assert all("gen_ai.response.id" not in each for each in events.attributes)


def test_failed_turn() -> None:
    """A turn without a response has no id of one."""
    events = Collected()
    client = ChatClient.create(ScriptedModel(OverloadedError("busy")))
    with pytest.raises(OverloadedError) as caught:
        client.prompt("Hi!").call().content()
    assert caught.value.trail is not None

    record_evaluations(caught.value.trail, {"id": BAD}, logger_provider=events.provider)

    assert "gen_ai.response.id" not in events.attributes[0]


def test_misuse() -> None:
    """Something that is no verdict is an error."""
    with pytest.raises(WrongTypeError, match="a verdict must be an EvaluationResponse"):
        record_evaluations(EvaluationRequest("", ""), {"id": True})  # type: ignore[dict-item]
