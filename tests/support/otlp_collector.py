"""A loopback collector of OTLP over HTTP."""

import gzip
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

Span = Any


class Collector:
    """Takes OTLP over HTTP, as any collector does."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.metrics: dict[str, Any] = {}
        self.requests: list[tuple[str, str | None]] = []  # paths and Authorization headers
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                collector.requests.append((self.path, self.headers.get("authorization")))
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
        match path.rpartition("/v1/")[2]:
            case "traces":
                traces = ExportTraceServiceRequest.FromString(body)
                for resource in traces.resource_spans:
                    for scope in resource.scope_spans:
                        assert scope.scope.name == "chatclient"
                        self.spans.extend(scope.spans)
                return bytes(ExportTraceServiceResponse().SerializeToString())
            case "metrics":
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


def told(span: Span) -> dict[str, Any]:
    """Return the attributes of a span, as Python values."""

    def plain(value: Any) -> Any:
        kind = value.WhichOneof("value")
        found = getattr(value, kind)
        return [plain(item) for item in found.values] if kind == "array_value" else found

    return {pair.key: plain(pair.value) for pair in span.attributes}
