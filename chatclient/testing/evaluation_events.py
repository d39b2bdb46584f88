"""Verdicts as events of OpenTelemetry."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from chatclient._internal.checks import check_type
from chatclient.chat.response import ChatResponse
from chatclient.observability.operations import ClientCall
from chatclient.observability.prefix import rounds_of
from chatclient.observability.trail import Trail
from chatclient.testing.evaluation import EvaluationResponse, Judged, request_of

if TYPE_CHECKING:  # loads OpenTelemetry
    from opentelemetry._logs import LoggerProvider

    from chatclient.observability.telemetry import Telemetry

EVALUATION_EVENT = "gen_ai.evaluation.result"
"""The name of the event in the conventions for generative AI."""

_EXPLANATION = "gen_ai.evaluation.explanation"


def record_evaluations(
    judged: Judged,
    verdicts: Mapping[str, EvaluationResponse],
    *,
    telemetry: "Telemetry | None" = None,
    logger_provider: "LoggerProvider | None" = None,
) -> None:
    """Record each verdict as an event `gen_ai.evaluation.result`, in the trace of the answer.

    The event belongs to the span of the turn (of a conversation, its last turn), if a `Telemetry`
    has observed it in this process, else to the current span. It has the name of the evaluation,
    the score, the label `pass` or `fail`, the id of the model's last response, and, if *telemetry*
    captures content, the feedback as explanation.

    Args:
        judged: What was judged, as for `assert_passes`.
        verdicts: The verdicts by the name of what was judged.
        telemetry: Says whether content is captured, and redacts it; default: a `Telemetry()`.
        logger_provider: The provider of loggers; default: the application's.

    Raises:
        WrongTypeError: *judged* has no trail, or a verdict is something else.
    """
    from opentelemetry import trace  # noqa: PLC0415 - not loaded without OpenTelemetry
    from opentelemetry._logs import LogRecord, SeverityNumber, get_logger  # noqa: PLC0415

    from chatclient.observability.telemetry import Telemetry  # noqa: PLC0415

    telemetry = Telemetry() if telemetry is None else telemetry
    trails = request_of(judged).trails
    turn_span = _span_of(trails[-1]) if trails else None
    context = trace.set_span_in_context(
        trace.get_current_span() if turn_span is None else trace.NonRecordingSpan(turn_span)
    )
    logger = get_logger("chatclient", logger_provider=logger_provider)
    for name, verdict in verdicts.items():
        check_type("a verdict", verdict, EvaluationResponse)
        attributes: dict[str, Any] = {
            "gen_ai.evaluation.name": name,
            "gen_ai.evaluation.score.value": verdict.score,
            "gen_ai.evaluation.score.label": "pass" if verdict.passed else "fail",
        }
        if trails and (id := _response_id(trails[-1])):
            attributes["gen_ai.response.id"] = id
        if verdict.feedback and telemetry.captures_content:
            attributes |= telemetry.recordable({_EXPLANATION: verdict.feedback})
        record = LogRecord(
            context=context,
            severity_number=SeverityNumber.INFO,
            attributes=attributes,
            event_name=EVALUATION_EVENT,
        )
        logger.emit(record)


def _span_of(trail: Trail) -> Any:
    call = trail.steps[0].operation if trail.steps else None
    return call.turn.span if isinstance(call, ClientCall) else None


def _response_id(trail: Trail) -> str:
    """Return the id of the last response of a round; empty if there is none."""
    responses: list[ChatResponse] = [s.result for s in rounds_of(trail.steps) if s.result]
    return responses[-1].metadata.id if responses else ""
