"""What a collector gets: the real SDK, its OTLP exporter, real HTTP, the protocol's messages."""

import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from chatclient import ChatClient
from chatclient.errors import ProviderError
from chatclient.observability.telemetry import Telemetry
from chatclient.testing import ScriptedModel, call
from chatclient.tools import ToolCallingManager, tool
from tests.support.ask import Ask

Span = Any
ERROR = 2  # Status.StatusCode, opentelemetry/proto/trace/v1/trace.proto


class Collector:
    """Takes OTLP over HTTP, as any collector does."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.metrics: dict[str, Any] = {}
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                kind = self.headers["content-type"]
                answer = collector.take(self.path, body) if kind.endswith("protobuf") else None
                self.send_response(400 if answer is None else 200)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", str(len(answer or b"")))
                self.end_headers()
                self.wfile.write(answer or b"")

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"

    def take(self, path: str, body: bytes) -> bytes | None:
        match path:
            case "/v1/traces":
                traces = ExportTraceServiceRequest.FromString(body)
                for resource in traces.resource_spans:
                    for scope in resource.scope_spans:
                        assert scope.scope.name == "chatclient"
                        self.spans.extend(scope.spans)
                return bytes(ExportTraceServiceResponse().SerializeToString())
            case "/v1/metrics":
                metrics = ExportMetricsServiceRequest.FromString(body)
                for measured in metrics.resource_metrics:
                    for scope_metrics in measured.scope_metrics:
                        self.metrics.update({m.name: m for m in scope_metrics.metrics})
                return bytes(ExportMetricsServiceResponse().SerializeToString())
            case _:
                return None

    def tree(self) -> list[str]:
        """Return the spans' names, indented below their parents."""
        by_id = {span.span_id: span for span in self.spans}

        def depth(span: Span) -> int:
            return 0 if not span.parent_span_id else 1 + depth(by_id[span.parent_span_id])

        ordered = sorted(self.spans, key=lambda span: span.start_time_unix_nano)
        return [f"{'  ' * depth(span)}{span.name}" for span in ordered]

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


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


def told(span: Span) -> dict[str, Any]:
    """Return the attributes of a span, as Python values."""

    def plain(value: Any) -> Any:
        kind = value.WhichOneof("value")
        found = getattr(value, kind)
        return [plain(item) for item in found.values] if kind == "array_value" else found

    return {pair.key: plain(pair.value) for pair in span.attributes}


@pytest.mark.feature("observation-span-hierarchy-streams-too")
def test_a_collector_gets_the_turn(ask: Ask, collector: Collector) -> None:
    """The whole tree in one trace, with the conventions' names; metrics beside it."""
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

    assert {"gen_ai.client.token.usage", "gen_ai.client.operation.duration"} <= {*collector.metrics}
    points = collector.metrics["gen_ai.client.token.usage"].histogram.data_points
    assert sum(point.sum for point in points) == 30


def _by_turn(spans: list[Span]) -> tuple[list[Span], list[Span]]:
    roots = sorted((s for s in spans if not s.parent_span_id), key=lambda s: s.start_time_unix_nano)
    _, second = roots
    return (
        [s for s in spans if s.start_time_unix_nano < second.start_time_unix_nano],
        [s for s in spans if s.start_time_unix_nano >= second.start_time_unix_nano],
    )
