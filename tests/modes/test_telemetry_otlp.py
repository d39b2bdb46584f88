"""What a collector gets: the real SDK, its OTLP exporter, real HTTP, the protocol's messages."""

from collections.abc import Iterator

import pytest
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from chatclient import ChatClient, tool
from chatclient.errors import ProviderError
from chatclient.observability.telemetry import Telemetry
from chatclient.testing import Ask, ScriptedModel, call
from chatclient.tools import ToolCallingManager
from tests.support.otlp_collector import Collector, Span, told

ERROR = 2  # Status.StatusCode, opentelemetry/proto/trace/v1/trace.proto


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.close()


@tool
def get_weather(city: str) -> str:
    """Get the weather in a city."""
    if city == "Atlantis":
        msg = "it sank"
        raise LookupError(msg)
    return f"sunny in {city}"


@pytest.mark.feature("observation-span-hierarchy-streams-too")
def test_a_collector_gets_the_turn(ask: Ask, collector: Collector) -> None:
    """It gets the complete tree in one trace, with the conventions' names, and metrics."""
    tracers = TracerProvider()
    tracers.add_span_processor(
        BatchSpanProcessor(OTLPSpanExporter(f"{collector.address}/v1/traces"))
    )
    exporter = OTLPMetricExporter(f"{collector.address}/v1/metrics")
    meters = MeterProvider([PeriodicExportingMetricReader(exporter)])
    cities = [
        call("get_weather", '{"city": "Rome"}', id="1"),
        call("get_weather", '{"city": "Atlantis"}', id="2"),
    ]
    client = (
        ChatClient.builder(ScriptedModel(cities, "Sunny.", ProviderError("gone", provider="x")))
        .default_tools(get_weather)
        .tool_calling_manager(ToolCallingManager(blocking_concurrency=4))
        .observers(Telemetry(tracers, meters))
        .build()
    )
    assert ask(client.prompt("Weather?").conversation("c1")).text == "Sunny."
    with pytest.raises(ProviderError):
        ask(client.prompt("Again?"))
    tracers.shutdown()
    meters.shutdown()

    tree = collector.tree()
    assert sorted(tree[3:5]) == ["    execute_tool get_weather"] * 2
    assert [*tree[:3], *tree[5:]] == [
        "invoke_agent",
        "  advisor ToolCallingAdvisor",
        "    chat ScriptedModel",
        "    chat ScriptedModel",
        "invoke_agent",
        "  advisor ToolCallingAdvisor",
        "    chat ScriptedModel",
    ]
    first, second = ({s.trace_id for s in part} for part in _by_turn(collector.spans))
    assert len(first) == len(second) == 1
    assert first != second

    tools = {told(s)["gen_ai.tool.call.id"]: s for s in collector.spans if "execute" in s.name}
    assert tools["1"].status.code != ERROR
    assert tools["2"].status.code == ERROR
    assert told(tools["2"])["error.type"] == "LookupError"
    assert told(tools["1"])["gen_ai.conversation.id"] == "c1"
    failed = [s for s in collector.spans if s.status.code == ERROR and "execute" not in s.name]
    assert [told(s)["error.type"] for s in failed] == ["ProviderError"] * 3

    assert "gen_ai.client.inference.duration" in collector.metrics
    for kind, total in (("input", 20), ("output", 10)):
        each = collector.metrics[f"gen_ai.client.inference.operation.{kind}_tokens"]
        assert sum(point.sum for point in each.histogram.data_points) == total
        used = collector.metrics[f"gen_ai.client.inference.usage.{kind}_tokens"]
        assert sum(point.as_int for point in used.sum.data_points) == total


def _by_turn(spans: list[Span]) -> tuple[list[Span], list[Span]]:
    roots = sorted((s for s in spans if not s.parent_span_id), key=lambda s: s.start_time_unix_nano)
    _, second = roots
    return (
        [s for s in spans if s.start_time_unix_nano < second.start_time_unix_nano],
        [s for s in spans if s.start_time_unix_nano >= second.start_time_unix_nano],
    )
