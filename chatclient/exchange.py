"""What was said in one turn, read from the response that it came to."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from chatclient.advisors.notes import note_messages, noted_messages
from chatclient.advisors.resumed import Resumed
from chatclient.advisors.tool_calling import PENDING_TURN, RESUME, TOOL_MESSAGES, UNDONE
from chatclient.chain import ChatClientRequest, ChatClientResponse
from chatclient.messages import (
    ENDS_TURN,
    AssistantMessage,
    Message,
    Part,
    ToolResponseMessage,
    last_turn_begin,
    system_messages,
)
from chatclient.observation import Step
from chatclient.operations import ModelCall
from chatclient.prompt import Prompt
from chatclient.response import ChatResponse
from chatclient.tools import PendingTurn
from chatclient.tools.compensation import rewritten
from chatclient.turn_taking import continued, says_something

_NOTE = "said"  # what was said in a turn that waits, as dicts or as places in its messages


def noted(response: ChatClientResponse) -> ChatClientResponse:
    """Return *response*, if its turn waits with what was said in it so far."""
    pending: PendingTurn | None = response.context.get(PENDING_TURN)
    if pending is None:
        return response
    said = note_messages(_said(response), pending)
    pending = replace(pending, notes={**pending.notes, _NOTE: said})
    return response.mutate(context={PENDING_TURN: pending})


def said_before(context: Mapping[str, Any]) -> tuple[Message, ...]:
    """Return what was said in the turn that a request goes on with, as `noted` has left it.

    Nothing for a request that goes on with none.
    """
    resumed: Resumed | None = context.get(RESUME)
    if resumed is None:
        return ()
    return noted_messages(resumed.pending.notes.get(_NOTE, ()), resumed.pending)


def as_said(request: ChatClientRequest) -> ChatClientRequest:
    """Return *request*; of a turn that goes on, with what was said before it waited.

    Its own messages may be what advisors have made of them.
    """
    said = said_before(request.context)
    if not said:
        return request
    systems = system_messages(request.prompt.messages)
    return request.mutate(prompt=Prompt.of((*systems, *said), request.prompt.options))


def messages_in(response: ChatClientResponse) -> tuple[Message, ...]:
    """Return what the request carried, what models and tools said, and the answer."""
    said = _said(response)
    answer = whole_answer(response.chat_response)
    # One that has paused is sent back as it is.
    if answer is None or not (says_something(answer) or response.chat_response.paused):
        return ended_by_tools(said)
    return continued(said, (answer,))


def new_messages_in(response: ChatClientResponse) -> tuple[Message, ...]:
    """Return those of the messages that belong to the turn: from the user's last words on."""
    return messages_in(response)[last_turn_begin(_asked(response)) :]


def round_responses_in(response: ChatClientResponse) -> tuple[ChatResponse, ...]:
    """Return what the model answered in each round, the last one among them."""
    steps = () if response.trail is None else response.trail.steps
    return tuple(step.result for step in steps if _is_whole_round(step))


def _is_whole_round(step: Step) -> bool:
    call = step.operation
    whole = step.result is not None and step.error is None
    return isinstance(call, ModelCall) and not call.aside and whole


def whole_answer(response: ChatResponse) -> AssistantMessage | None:
    """Return the message that the model, or the tools in its place, answered with."""
    generations = response.generations
    if response.finish_reason != "return_direct" or len(generations) == 1:
        return response.output
    parts: list[Part] = []
    for generation in generations:  # a blank line between each and the next
        parts += ["\n\n", *generation.output.parts] if parts else generation.output.parts
    return AssistantMessage(parts)


def ended_by_tools(said: tuple[Message, ...]) -> tuple[Message, ...]:
    """Return *said*; if its end is what tools have answered, that ends the turn."""
    last = said[-1] if said else None
    if not isinstance(last, ToolResponseMessage):
        return said
    return (*said[:-1], last.mutate(metadata={**last.metadata, ENDS_TURN: True}))


def _said(response: ChatClientResponse) -> tuple[Message, ...]:
    """Return what was said up to the answer."""
    tool_messages: tuple[Message, ...] = response.context.get(TOOL_MESSAGES, ())
    return continued(_asked(response), tool_messages)


def _asked(response: ChatClientResponse) -> tuple[Message, ...]:
    """Return what the request carried beside defaults, told anew where calls of it were undone.

    Of a turn that goes on, that is what was said before it waited.
    """
    if response.trail is None:
        return ()
    return rewritten(response.trail.asked, response.context.get(UNDONE, {}))
