"""Calls decision models, with observation and deadline."""

import hashlib
from dataclasses import replace
from typing import Any

from chatclient._internal.json import dumps
from chatclient.chat.decision_model import (
    DecisionModel,
    DecisionRequest,
    DecisionResponse,
    decide_checked,
)
from chatclient.chat.recorder import TurnStep
from chatclient.chat.serialization import error_from_dict, error_to_dict
from chatclient.chat.stored_values import from_stored, to_stored
from chatclient.chat.turn import present_recorder
from chatclient.errors import DeadlineExceededError, RequestTimeoutError
from chatclient.observability.decision_call import DecisionCall
from chatclient.observability.observers import all_observers
from chatclient.runtime.deadlines import deadline_error, is_expired
from chatclient.runtime.runtime import Runtime


async def ask_decision(
    model: DecisionModel, request: DecisionRequest, runtime: Runtime
) -> DecisionResponse:
    """Return the response of *model* to *request*, for advisors and tools.

    The call is observed, and appears in the trail.

    Args:
        model: The model.
        request: The request.
        runtime: The runtime of the request, usually `request.runtime`. Nothing is streamed.

    Raises:
        DeadlineExceededError: The deadline has passed.
        ProviderError: The provider failed or refused the request.
    """
    runtime = runtime.silent()
    if runtime.steps is None:  # outside of a client's request, which has the client's observers
        runtime = runtime.for_request(None, runtime.observers or all_observers())
    # A model that asks chat models records those calls, which count in budgets.
    recorder = None if model.asks_models else present_recorder()
    if recorder is not None:
        return await recorder.step(_step_of(model, request, runtime), runtime)
    return await _decide(model, request, runtime)


async def _decide(
    model: DecisionModel, request: DecisionRequest, runtime: Runtime
) -> DecisionResponse:
    runtime.check_cancelled()
    if not runtime.remaining():
        msg = "the deadline passed before the decision model was called"
        raise DeadlineExceededError(msg)
    with runtime.observe(DecisionCall(model, request)) as observed:
        try:
            response = await decide_checked(model, request, runtime)
        except RequestTimeoutError as error:
            if not is_expired(runtime):
                raise
            raise deadline_error(error) from error
        observed.result = response
    return response


def _step_of(
    model: DecisionModel, request: DecisionRequest, runtime: Runtime
) -> TurnStep[DecisionResponse]:
    """Return the decision as a step of a turn."""
    questions = to_stored({"input": request.input, "questions": request.typed_questions})
    digest = hashlib.sha256(dumps(questions)).hexdigest()[:16]

    def dump(outcome: DecisionResponse | Exception) -> dict[str, Any]:
        if isinstance(outcome, Exception):
            return {"error": error_to_dict(outcome)}
        return to_stored({"response": outcome})

    async def load(recorded: dict[str, Any]) -> DecisionResponse:
        if "error" in recorded:
            raise error_from_dict(recorded["error"])
        with replace(runtime, observers=()).observe(DecisionCall(model, request)) as observed:
            response: DecisionResponse = from_stored(recorded["response"])
            observed.result = response
        return response

    return TurnStep(
        "decision",
        f"decide {model.name} {digest}",
        lambda runtime: _decide(model, request, runtime),
        dump,
        load,
    )
