"""Runs the chain of a request, watched by its trail, by observers and by OpenTelemetry."""

from collections.abc import Mapping
from typing import Any, Protocol

from chatclient.chain import AdvisorChain, ChatClientRequest, ChatClientResponse
from chatclient.errors import ChatClientError
from chatclient.observation import Observer
from chatclient.observers import all_observers
from chatclient.operations import NOTHING_YET, ClientCall
from chatclient.prompt import Prompt
from chatclient.runtime import Runtime
from chatclient.tool import CONVERSATION_ID
from chatclient.trail import Trail


class Prepare(Protocol):
    """Makes ready what a request is to send, which may take a while and may fail."""

    async def __call__(
        self, call: ClientCall, runtime: Runtime
    ) -> tuple[AdvisorChain, Prompt, Mapping[str, Any]]:
        """Return the chain, and the prompt and the context that it is given.

        What is known of the request before, *call* is told.
        """
        ...


async def run_observed(
    prepare: Prepare,
    context: Mapping[str, Any],
    runtime: Runtime,
    observers: tuple[Observer, ...],
) -> ChatClientResponse:
    """Send what *prepare* makes ready down its chain and return the response with its trail.

    The trail is noted where the runtime says, for those who look at it while the request runs. A
    request that fails before anything is sent is observed like any other.
    """
    trail = Trail(runtime.steps)
    conversation_id = context.get(CONVERSATION_ID)
    runtime = runtime.watched_by(trail.steps, all_observers(observers, conversation_id))
    call = ClientCall(NOTHING_YET, (), runtime.streaming, conversation_id, context)
    try:
        with runtime.observe(call) as observed:
            observed.add_to_asker(trail.steps)
            chain, call.prompt, call.context = await prepare(call, runtime)
            call.advisors = chain.names
            if runtime.observers:
                observed.found = call.taking_part()
            request = ChatClientRequest(call.prompt, call.context, runtime)
            try:
                response = await runtime.until_deadline(chain(request))
            except BaseException:  # whatever ends it without an answer
                await runtime.undo()
                raise
            runtime.settle()  # what would undo the request holds all of it, and is held by it
            observed.result = response.chat_response
    except ChatClientError as error:
        error.trail = trail  # that of an agent which raised it is a part of it
        raise
    return ChatClientResponse(response.chat_response, response.context, trail)
