"""Runs the chain of a request, watched by its trail, by observers and by OpenTelemetry."""

from collections.abc import Mapping
from typing import Any

from chatclient.chain import AdvisorChain, ChatClientRequest, ChatClientResponse
from chatclient.errors import ChatClientError
from chatclient.messages import Message
from chatclient.observation import Observer
from chatclient.observers import all_observers
from chatclient.operations import ClientCall
from chatclient.prompt import Prompt
from chatclient.runtime import Runtime
from chatclient.tool import CONVERSATION_ID
from chatclient.trail import Trail


async def run_observed(
    chain: AdvisorChain,
    prompt: Prompt,
    context: Mapping[str, Any],
    runtime: Runtime,
    observers: tuple[Observer, ...],
    asked: tuple[Message, ...],
) -> ChatClientResponse:
    """Send *prompt* down *chain* and return the response with its trail.

    The trail is noted where the runtime says, for those who look at it while the request runs.
    What was *asked* may be something else than *prompt*, in a turn that goes on.
    """
    trail = Trail(runtime.steps)
    conversation_id = context.get(CONVERSATION_ID)
    runtime = runtime.watched_by(trail.steps, all_observers(observers, conversation_id))
    call = ClientCall(prompt, chain.names, runtime.streaming, conversation_id, context, asked=asked)
    try:
        with runtime.observe(call) as observed:
            observed.add_to_asker(trail.steps)
            request = ChatClientRequest(prompt, context, runtime)
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
