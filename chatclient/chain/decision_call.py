"""Calls decision models, with observation and deadline."""

from chatclient.chat.decision_model import (
    DecisionModel,
    DecisionRequest,
    DecisionResponse,
    decide_checked,
)
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
