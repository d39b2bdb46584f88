"""Lets a client's requests be watched: by their trail, by observers, by OpenTelemetry."""

import os
import sys
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from chatclient.chain import AdvisorChain, ChatClientRequest, ChatClientResponse
from chatclient.errors import ChatClientError
from chatclient.observation import Observer
from chatclient.operation_log import logged
from chatclient.operations import ClientCall
from chatclient.prompt import Prompt
from chatclient.runtime import Runtime
from chatclient.tool import CONVERSATION_ID
from chatclient.trail import Trail


async def watched(
    chain: AdvisorChain,
    prompt: Prompt,
    context: Mapping[str, Any],
    runtime: Runtime,
    observers: tuple[Observer, ...],
) -> ChatClientResponse:
    """Send *prompt* down *chain* and return the response with its trail."""
    trail = Trail()
    conversation_id = context.get(CONVERSATION_ID)
    watching = (*observers, *_telemetry(observers), *logged(conversation_id))
    runtime = runtime.watched_by(trail.steps, watching)
    call = ClientCall(prompt, chain.names, runtime.streaming, conversation_id, context)
    try:
        with runtime.observe(call) as observed:
            request = ChatClientRequest(prompt, context, runtime)
            try:
                response = await runtime.until_deadline(chain(request))
            except BaseException:  # whatever ends it without an answer
                await runtime.undo()
                raise
            observed.result = response.chat_response
    except ChatClientError as error:
        error.trail = error.trail or trail
        raise
    return ChatClientResponse(response.chat_response, response.context, trail)


def _telemetry(observers: tuple[Observer, ...]) -> tuple[Observer, ...]:
    """Return what makes spans and metrics, if the application has set up OpenTelemetry.

    An application that has not does not pay for its import.
    """
    if "opentelemetry.trace" not in sys.modules and not _set_up_by_environment():
        return ()
    return _active()(observers)


@cache
def _active() -> Callable[[tuple[Observer, ...]], tuple[Observer, ...]]:
    from chatclient.telemetry import active  # noqa: PLC0415 - loads OpenTelemetry

    return active


@cache
def _set_up_by_environment() -> bool:
    """Return whether OpenTelemetry's API would load an SDK by itself."""
    return "OTEL_PYTHON_TRACER_PROVIDER" in os.environ or "OTEL_PYTHON_METER_PROVIDER" in os.environ
