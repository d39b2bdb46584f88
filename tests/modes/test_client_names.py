"""Names of clients: in spans, metrics, logs, trails and tools."""

import logging
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from chatclient import ChatClient
from chatclient.errors import UsageError
from chatclient.observability import Telemetry
from chatclient.testing import Ask, ScriptedModel, call


def test_name_in_spans_metrics_logs_and_trail(ask: Ask, caplog: pytest.LogCaptureFixture) -> None:
    """The name distinguishes the client's requests from those of others."""
    caplog.set_level(logging.DEBUG, "chatclient")
    exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
    tracers = TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    telemetry = Telemetry(tracers, MeterProvider([reader]))
    builder = ChatClient.builder(ScriptedModel("Hello.")).name("support")
    result = ask(builder.observers(telemetry).build().prompt("Hi!"))

    (span,) = (s for s in exporter.get_finished_spans() if s.name == "invoke_agent support")
    assert span.attributes is not None
    assert span.attributes["gen_ai.agent.name"] == "support"
    data = reader.get_metrics_data()
    assert data is not None
    metrics = {m.name: m for m in data.resource_metrics[0].scope_metrics[0].metrics}
    (point,) = metrics["gen_ai.invoke_agent.duration"].data.data_points
    assert point.attributes == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "support",
    }
    assert str(result.response.trail).startswith("turn of support (")
    records: list[Any] = [r for r in caplog.records if "model call" in r.getMessage()]
    assert [record.chatclient["client"] for record in records] == ["support"]


def test_name_as_a_tool(ask: Ask) -> None:
    """A named client is a tool of that name; another name may be given."""
    agent = ChatClient.builder(ScriptedModel("It is green.")).name("tea_expert").build()
    tool = agent.as_tool(description="Answers questions about tea.")
    model = ScriptedModel(call("tea_expert", {"request": "Colour?"}), "Green.")
    result = ask(ChatClient.create(model).prompt("Which colour?").tools(tool))

    assert result.executions[0].response.data == "It is green."
    assert agent.as_tool("expert", "Answers.").definition.name == "expert"


def test_name_in_reprs() -> None:
    """The representations of a client have its name, and `mutate` keeps it."""
    builder = ChatClient.builder(ScriptedModel("Hello.")).name("support")
    client = builder.build().mutate().build()

    assert client.name == "support"
    assert repr(client) == "ChatClient('support', ScriptedModel)"
    assert repr(builder) == "ChatClientBuilder('support', ScriptedModel)"
    assert str(client).splitlines()[0] == "ChatClient 'support'"
    assert 'client(["support"])' in client.diagram()


def test_invalid_names() -> None:
    """A blank name, and a tool without a name or description, are errors."""
    builder = ChatClient.builder(ScriptedModel("Hello."))
    with pytest.raises(UsageError, match="must not be blank"):
        builder.name(" ")
    with pytest.raises(UsageError, match="needs a name"):
        builder.build().as_tool(description="Answers.")
    with pytest.raises(UsageError, match="'expert' needs a description"):
        builder.build().as_tool("expert")
