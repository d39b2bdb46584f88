"""Spans and metrics, through OpenTelemetry's API.

Set up the SDK as any application does, and every request is traced: nothing is to be switched on
here, and nothing is recorded that was said. For the latter, give the builder a `Telemetry` of your
own with `capture_content=True`, or set `OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT=true`.
"""

import os
from collections.abc import Callable, Mapping
from contextvars import Token
from functools import lru_cache
from typing import Any

from opentelemetry import context as otel_context
from opentelemetry import metrics, trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode

from chatclient.errors import UnknownToolError
from chatclient.logs import get_logger
from chatclient.observation import Attributes, Kind, Observer, Operation, Step
from chatclient.operations import TIME_TO_FIRST_CHUNK
from chatclient.redaction import redacted_text

log = get_logger(__name__)

ERROR_TEXT = "error.message"
"""The name by which redaction knows the text of an error, the description of a span's status."""

Redact = Callable[[str, str], str | None]
"""Takes an attribute's name and its text; returns what may be recorded, or None for nothing."""

_NAME = "chatclient"
_CAPTURE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_KINDS: Mapping[Kind, SpanKind] = {"model": SpanKind.CLIENT, "memory": SpanKind.CLIENT}

# The boundaries that the conventions advise.
_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_TOKENS = tuple(float(4**power) for power in range(14))

# Attributes with few values, which metrics can be split by.
_MODEL_LABELS = (
    "gen_ai.operation.name",
    "gen_ai.provider.name",
    "gen_ai.request.model",
    "gen_ai.response.model",
)
_TOOL_LABELS = ("gen_ai.operation.name", "gen_ai.tool.name")
_OPERATION_ONLY = ("gen_ai.operation.name",)
_TURN_LABELS = ("gen_ai.operation.name", "gen_ai.workflow.name")


class Telemetry:
    """An observer that makes a span of every operation, and metrics of requests and their calls.

    Args:
        tracer_provider: Where spans go; default: the application's.
        meter_provider: Where metrics go; default: the application's.
        capture_content: Whether prompts, answers, tool arguments and results are recorded as
            attributes; default: as the environment variable says, otherwise not.
        redact: Sees every such text before it is recorded, those of errors as `error.message`.
            Of a text that is JSON it also sees each string that is escaped in it, as it was said.
            A text for which it raises, or returns None, is left out.
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
            meter, "gen_ai.client.operation.duration", "How long a call of a model took"
        )
        self._first_chunk = _seconds(
            meter,
            "gen_ai.client.operation.time_to_first_chunk",
            "How long a stream let its consumer wait",
        )
        self._turn_duration = _seconds(
            meter, "gen_ai.invoke_workflow.duration", "How long a request took, with all its rounds"
        )
        self._tool_duration = _seconds(
            meter, "gen_ai.execute_tool.duration", "How long a tool took"
        )
        self._tokens = meter.create_histogram(
            "gen_ai.client.token.usage",
            "{token}",
            "How many tokens a call of a model took",
            explicit_bucket_boundaries_advisory=_TOKENS,
        )

    def begin(self, operation: Operation) -> "_Spanned":
        """Begin a span, current until the operation ends."""
        span = self._tracer.start_span(
            operation.name,
            kind=_KINDS.get(operation.kind, SpanKind.INTERNAL),
            attributes=operation.attributes(),
        )
        token = otel_context.attach(trace.set_span_in_context(span))
        return _Spanned(self, span, token)

    def recordable(self, content: Mapping[str, str]) -> dict[str, str]:
        """Return what of *content* may be recorded."""
        if self._redact is None:
            return dict(content)
        redacted = {name: self._redacted(self._redact, name, content[name]) for name in content}
        return {name: text for name, text in redacted.items() if text is not None}

    def description_of(self, error: BaseException, error_type: str) -> str:
        """Return what a span may say of *error*, whose text may quote what was said."""
        if not self._capture:
            return error_type
        return self.recordable({ERROR_TEXT: str(error)}).get(ERROR_TEXT, error_type)

    def _redacted(self, redact: Redact, name: str, text: str) -> str | None:
        def recordable(text: str) -> str:
            kept = redact(name, text)
            if kept is None:
                raise _Withheld
            return kept

        try:
            return redacted_text(recordable, text)
        except _Withheld:
            return None
        except Exception as error:  # noqa: BLE001 - what cannot be redacted is left out, no more
            log.warning("redaction failed", attribute=name, error=type(error).__name__)
            return None

    def count(
        self, operation: Operation, seconds: float, found: Attributes, error_type: str | None
    ) -> None:
        """Add an operation, of which more was *found* on the way, to the metrics."""
        if operation.kind not in ("client", "model", "tool"):
            return
        attributes = {**operation.attributes(), **found}
        labels = {} if error_type is None else {"error.type": error_type}
        if operation.kind == "client":
            self._turn_duration.record(seconds, {**labels, **_only(attributes, _TURN_LABELS)})
            return
        if operation.kind == "tool":
            # Of names that a model makes up there is no end, and each would be a series of its own.
            known = _OPERATION_ONLY if error_type == UnknownToolError.__name__ else _TOOL_LABELS
            self._tool_duration.record(seconds, {**labels, **_only(attributes, known)})
            return
        labels |= _only(attributes, _MODEL_LABELS)
        self._duration.record(seconds, labels)
        if (first := attributes.get(TIME_TO_FIRST_CHUNK)) is not None:
            self._first_chunk.record(_number(first), labels)
        for kind in ("input", "output"):
            if (count := attributes.get(f"gen_ai.usage.{kind}_tokens")) is not None:
                self._tokens.record(_number(count), {**labels, "gen_ai.token.type": kind})

    @property
    def captures_content(self) -> bool:
        """Whether what was said is recorded."""
        return self._capture


class _Withheld(Exception):  # noqa: N818 - not an error
    """Nothing of a text may be recorded."""


def _seconds(meter: metrics.Meter, name: str, what: str) -> metrics.Histogram:
    return meter.create_histogram(name, "s", what, explicit_bucket_boundaries_advisory=_SECONDS)


class _Spanned:
    """An operation with its span."""

    __slots__ = ("_span", "_telemetry", "_token")

    def __init__(self, telemetry: Telemetry, span: Span, token: Token[Context]) -> None:
        self._telemetry = telemetry
        self._span = span
        self._token = token

    def end(self, ended: Step, error: BaseException | None) -> None:
        """End the span, with what became known."""
        otel_context.detach(self._token)
        operation, result = ended.operation, ended.result
        error_type = None if error is None else _type_of(error)
        try:
            outcome = {} if result is None else operation.outcome(result)
            found: dict[str, Any] = {**outcome, **ended.found}
            if self._span.is_recording():
                self._describe(operation, result, found)
                if error is not None and error_type is not None:
                    self._fail(error, error_type)
        finally:
            self._span.end()
        self._telemetry.count(operation, ended.seconds or 0.0, found, error_type)

    def _describe(self, operation: Operation, result: Any, found: dict[str, Any]) -> None:
        if self._telemetry.captures_content:
            found |= self._telemetry.recordable(operation.content(result))
        self._span.set_attributes(found)

    def _fail(self, error: BaseException, error_type: str) -> None:
        said = self._telemetry.description_of(error, error_type)
        self._span.set_attribute("error.type", error_type)
        self._span.set_status(Status(StatusCode.ERROR, said))


def default_observers(observers: tuple[Observer, ...]) -> tuple[Observer, ...]:
    """Return the observer for the application's providers.

    There is none when the application has set up no provider, or has a `Telemetry` of its own.
    """
    if _nothing_set() or any(isinstance(observer, Telemetry) for observer in observers):
        return ()
    tracers, meters = trace.get_tracer_provider(), metrics.get_meter_provider()
    if _is_silent(tracers) and _is_silent(meters):
        return ()
    return (_telemetry(tracers, meters),)


@lru_cache(maxsize=8)
def _telemetry(tracers: trace.TracerProvider, meters: metrics.MeterProvider) -> Telemetry:
    return Telemetry(tracers, meters)


def _nothing_set() -> bool:
    """Return whether the application has surely set no provider.

    The API's functions say so too, but cost every request some microseconds. They are asked where
    its modules look different from what is known of them.
    """
    tracers = getattr(trace, "_TRACER_PROVIDER", _UNKNOWN)
    meters = getattr(getattr(metrics, "_internal", None), "_METER_PROVIDER", _UNKNOWN)
    return tracers is None and meters is None and not _NAMED_BY_ENVIRONMENT


_UNKNOWN = object()
# As the API reads it: once, when a provider is first asked for.
_NAMED_BY_ENVIRONMENT = bool(
    {"OTEL_PYTHON_TRACER_PROVIDER", "OTEL_PYTHON_METER_PROVIDER"} & os.environ.keys()
)


def _is_silent(provider: object) -> bool:
    """Return whether *provider* is one of the API's own, which record nothing."""
    return type(provider).__module__.startswith(("opentelemetry.trace", "opentelemetry.metrics"))


def _type_of(error: BaseException) -> str:
    """Return an error's name as the conventions want it: short, and one of few."""
    kind = type(error)
    module = "" if kind.__module__ in ("builtins", "chatclient.errors") else f"{kind.__module__}."
    return f"{module}{kind.__qualname__}"


def _only(attributes: Attributes, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: attributes[name] for name in names if name in attributes}


def _number(value: Any) -> float:
    number: float = value
    return number
