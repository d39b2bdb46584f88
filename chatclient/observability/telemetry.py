"""Spans and metrics with OpenTelemetry's API.

Requests are traced if the application has set up the OpenTelemetry SDK. Content, such as prompts
and answers, is not recorded by default. To record it, pass `Telemetry(capture_content=True)` to the
builder, or set `OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT=true`.
"""

import os
from collections.abc import Callable, Mapping
from contextvars import Token
from typing import Any

from opentelemetry import context as otel_context, metrics, trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode

from chatclient._internal.logging import get_logger
from chatclient._internal.text import error_text, redacted_text
from chatclient.errors import UnknownToolError
from chatclient.observability.operations import TIME_TO_FIRST_CHUNK, ClientCall
from chatclient.observability.semantic_conventions import COST, CURRENCY
from chatclient.runtime.observation import Attributes, Kind, Observer, Operation, Step

log = get_logger(__name__)

ERROR_TEXT = "error.message"
"""The attribute name that redaction gets for the text of an error."""

Redact = Callable[[str, str], str | None]
"""Redacts the text of an attribute, given its name and text; None drops the attribute."""

_NAME = "chatclient"
_CAPTURE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_KINDS: Mapping[Kind, SpanKind] = {
    "model": SpanKind.CLIENT,
    "memory": SpanKind.CLIENT,
    "retrieval": SpanKind.CLIENT,
    "decision": SpanKind.CLIENT,
}

# Bucket boundaries recommended by the conventions.
_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_TOKENS = tuple(float(4**power) for power in range(14))

# Attributes of low cardinality, used as labels of metrics.
_MODEL_LABELS = (
    "gen_ai.operation.name",
    "gen_ai.provider.name",
    "gen_ai.request.model",
    "gen_ai.response.model",
    "server.address",
    "server.port",
)
# Counters of tokens, by the attribute with the number. Only the first two count in every call.
_TOKEN_COUNTERS = {
    f"gen_ai.usage.{kind}_tokens": f"gen_ai.client.inference.usage.{kind}_tokens"
    for kind in ("input", "output", "cache_read.input", "cache_write.input", "reasoning.output")
}
_TOKEN_HISTOGRAMS = {
    f"gen_ai.usage.{kind}_tokens": f"gen_ai.client.inference.operation.{kind}_tokens"
    for kind in ("input", "output")
}
# Providers report text, images and sound together.
_MODALITY = {"gen_ai.token.modality": "unknown"}
_TOOL_LABELS = ("gen_ai.operation.name", "gen_ai.tool.name")
_OPERATION_ONLY = ("gen_ai.operation.name",)
_TURN_LABELS = ("gen_ai.operation.name", "gen_ai.agent.name")


class Telemetry:
    """An observer that creates a span for each operation, and metrics of requests and calls.

    Args:
        tracer_provider: The provider of tracers; default: the application's.
        meter_provider: The provider of meters; default: the application's.
        capture_content: Whether prompts, answers, tool arguments and results are recorded as
            attributes; default: the environment variable, else False.
        redact: Called with each such text before it is recorded; texts of errors have the name
            `error.message`. Strings within JSON are redacted separately, unescaped. A text for
            which it raises or returns None is dropped.
    """

    def __init__(
        self,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: metrics.MeterProvider | None = None,
        *,
        capture_content: bool | None = None,
        redact: Redact | None = None,
    ) -> None:
        if capture_content is None:
            capture_content = os.environ.get(_CAPTURE, "").lower() in ("true", "1")
        self._capture = capture_content
        self._redact = redact
        self._tracer = trace.get_tracer(_NAME, tracer_provider=tracer_provider)
        meter = metrics.get_meter(_NAME, meter_provider=meter_provider)
        self._duration = _seconds(
            meter, "gen_ai.client.inference.duration", "Duration of a model call"
        )
        self._first_chunk = _seconds(
            meter,
            "gen_ai.client.inference.time_to_first_chunk",
            "Time until the first chunk of a stream",
        )
        self._turn_duration = _seconds(
            meter, "gen_ai.invoke_agent.duration", "Duration of a request with all its rounds"
        )
        self._tool_duration = _seconds(
            meter, "gen_ai.execute_tool.duration", "Duration of a tool call"
        )
        self._token_counters = {
            attribute: meter.create_counter(name, "{token}", "Tokens used by model calls")
            for attribute, name in _TOKEN_COUNTERS.items()
        }
        self._token_histograms = {
            attribute: meter.create_histogram(
                name,
                "{token}",
                "Tokens used by a model call",
                explicit_bucket_boundaries_advisory=_TOKENS,
            )
            for attribute, name in _TOKEN_HISTOGRAMS.items()
        }
        self._cost = meter.create_counter(
            "chatclient.client.cost", "{currency}", "Cost of model calls"
        )

    def begin(self, operation: Operation) -> "_SpanObservation":
        """Start a span and make it current until the operation ends."""
        span = self._tracer.start_span(
            operation.name,
            kind=_KINDS.get(operation.kind, SpanKind.INTERNAL),
            attributes=operation.attributes(),
        )
        if isinstance(operation, ClientCall):
            operation.turn.span = operation.turn.span or span.get_span_context()
        token = otel_context.attach(trace.set_span_in_context(span))
        return _SpanObservation(self, span, token)

    def recordable(self, content: Mapping[str, str]) -> dict[str, str]:
        """Return *content* redacted."""
        if self._redact is None:
            return dict(content)
        redacted = {name: self._redacted(self._redact, name, content[name]) for name in content}
        return {name: text for name, text in redacted.items() if text is not None}

    def description_of(self, error: BaseException, error_type: str) -> str:
        """Return the redacted text of *error* if content is captured, else *error_type*."""
        if not self._capture:
            return error_type
        return self.recordable({ERROR_TEXT: error_text(error)}).get(ERROR_TEXT, error_type)

    def _redacted(self, redact: Redact, name: str, text: str) -> str | None:
        def redact_string(text: str) -> str:
            result = redact(name, text)
            if result is None:
                raise _Dropped
            return result

        try:
            return redacted_text(redact_string, text)
        except _Dropped:
            return None
        except Exception as error:  # noqa: BLE001 - application code
            log.warning("redaction failed", attribute=name, error=type(error).__name__)
            return None

    def count(
        self, operation: Operation, seconds: float, found: Attributes, error_type: str | None
    ) -> None:
        """Record the metrics of an operation; *found* are the attributes of its end."""
        if operation.kind not in ("client", "model", "tool"):
            return
        attributes = {**operation.attributes(), **found}
        labels = {} if error_type is None else {"error.type": error_type}
        if operation.kind == "client":
            self._turn_duration.record(seconds, {**labels, **_only(attributes, _TURN_LABELS)})
            return
        if operation.kind == "tool":
            # Names invented by the model would create an unbounded number of time series.
            known = _OPERATION_ONLY if error_type == UnknownToolError.__name__ else _TOOL_LABELS
            self._tool_duration.record(seconds, {**labels, **_only(attributes, known)})
            return
        model = _only(attributes, _MODEL_LABELS)
        self._duration.record(seconds, {**labels, **model})
        if (first := attributes.get(TIME_TO_FIRST_CHUNK)) is not None:
            self._first_chunk.record(_number(first), model)
        by_modality = {**model, **_MODALITY}
        for name, counter in self._token_counters.items():
            # A call without usage, such as one that failed, counts as 0.
            if name in attributes or name in self._token_histograms:
                counter.add(_number(attributes.get(name, 0)), by_modality)
        for name, histogram in self._token_histograms.items():
            if name in attributes:
                histogram.record(_number(attributes[name]), model)
        if (cost := attributes.get(COST)) is not None:
            self._cost.add(_number(cost), {**model, CURRENCY: attributes[CURRENCY]})

    @property
    def captures_content(self) -> bool:
        """Whether content is recorded."""
        return self._capture


class _Dropped(Exception):  # noqa: N818 - not an error
    """Redaction dropped the text."""


def _seconds(meter: metrics.Meter, name: str, description: str) -> metrics.Histogram:
    boundaries = _SECONDS
    return meter.create_histogram(
        name, "s", description, explicit_bucket_boundaries_advisory=boundaries
    )


class _SpanObservation:
    """Ends the span of an operation."""

    __slots__ = ("_span", "_telemetry", "_token")

    def __init__(self, telemetry: Telemetry, span: Span, token: Token[Context]) -> None:
        self._telemetry = telemetry
        self._span = span
        self._token = token

    def end(self, ended: Step, error: BaseException | None) -> None:
        """End the span with the attributes of the result, and record metrics."""
        # First, so that the caller's span is current again even if something below fails.
        otel_context.detach(self._token)
        operation, result = ended.operation, ended.result
        error_type = None if error is None else _type_of(error)
        try:
            outcome = {} if result is None else operation.outcome(result)
            found: dict[str, Any] = {**outcome, **ended.found}
            if self._span.is_recording():
                self._describe(operation, result, found)
                if error is not None and error_type is not None:
                    description = self._telemetry.description_of(error, error_type)
                    self._span.set_attribute("error.type", error_type)
                    self._span.set_status(Status(StatusCode.ERROR, description))
        finally:
            self._span.end()
        self._telemetry.count(operation, ended.seconds or 0.0, found, error_type)

    def _describe(self, operation: Operation, result: Any, found: dict[str, Any]) -> None:
        if self._telemetry.captures_content:
            found |= self._telemetry.recordable(operation.content(result))
        self._span.set_attributes(found)


def default_observers(observers: tuple[Observer, ...]) -> tuple[Observer, ...]:
    """Return a `Telemetry` for the application's OpenTelemetry providers.

    Empty if the application has set up no provider, or if *observers* contain a `Telemetry`.
    """
    if _no_provider_set() or any(isinstance(observer, Telemetry) for observer in observers):
        return ()
    tracers, meters = trace.get_tracer_provider(), metrics.get_meter_provider()
    if _records_nothing(tracers) and _records_nothing(meters):
        return ()
    # Providers are compared by identity: those of others, such as Logfire's, need not be hashable.
    global _latest  # noqa: PLW0603 - a race creates one object too many, nothing else
    latest = _latest
    if latest is None or latest[0] is not tracers or latest[1] is not meters:
        latest = _latest = (tracers, meters, Telemetry(tracers, meters))
    return (latest[2],)


_latest: tuple[trace.TracerProvider, metrics.MeterProvider, Telemetry] | None = None


def _no_provider_set() -> bool:
    """Return whether the application has certainly set no provider.

    Reads private variables of the API, because its functions take some microseconds per request;
    returns False if these variables do not exist.
    """
    tracers = getattr(trace, "_TRACER_PROVIDER", _UNKNOWN)
    meters = getattr(getattr(metrics, "_internal", None), "_METER_PROVIDER", _UNKNOWN)
    return tracers is None and meters is None and not _NAMED_BY_ENVIRONMENT


_UNKNOWN = object()
# The API reads these variables once.
_NAMED_BY_ENVIRONMENT = bool(
    {"OTEL_PYTHON_TRACER_PROVIDER", "OTEL_PYTHON_METER_PROVIDER"} & os.environ.keys()
)


def _records_nothing(provider: object) -> bool:
    """Return whether *provider* is one of the API's no-op providers."""
    return type(provider).__module__.startswith(("opentelemetry.trace", "opentelemetry.metrics"))


def _type_of(error: BaseException) -> str:
    """Return the type of *error* for the attribute `error.type`, which has low cardinality."""
    kind = type(error)
    module = "" if kind.__module__ in ("builtins", "chatclient.errors") else f"{kind.__module__}."
    return f"{module}{kind.__qualname__}"


def _only(attributes: Attributes, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: attributes[name] for name in names if name in attributes}


def _number(value: Any) -> float:
    number: float = value
    return number
