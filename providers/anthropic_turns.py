"""Turns in which Anthropic runs tools of its own; no I/O.

A long one the API pauses: sent back as it is, the model goes on. One that waits for tools of the
application may have code running in a container, which the next request has to name.
"""

from collections.abc import Mapping
from typing import Any

from chatclient.messages import AssistantMessage, Message, UserMessage
from chatclient.options import ChatOptions
from chatclient.prompt import Prompt
from chatclient.providers.anthropic_decoding import CONTAINER, PAUSED
from chatclient.providers.continuations import Continuation
from chatclient.response import ChatResponse


def runs_tools(options: ChatOptions) -> bool:
    """Return whether the provider may run tools of its own, by which alone turns become long."""
    return bool(getattr(options, "server_tools", None) or options.extra)


def _sent_back(prompt: Prompt, answer: ChatResponse) -> Prompt | None:
    if not answer.paused or answer.has_tool_calls():  # whose results it would want
        return None
    return Prompt.of((*prompt.messages, answer.message), prompt.options)


PAUSES = Continuation(PAUSED, _sent_back)
"""How the model is asked to go on with a turn that was paused."""


def in_container(prompt: Prompt) -> ChatOptions:
    """Return the options of *prompt*, with the container in which its last turn is at work."""
    options = prompt.options
    id = _container_of(prompt.messages) if runs_tools(options) else None
    if id is None:
        return options
    given: str | Mapping[str, Any] | None = options.extra.get("container")
    match given:
        case str():
            return options
        case Mapping():  # what else is to be in it, such as skills
            container: Any = {"id": id, **given}
        case _:
            container = id
    return options.mutate(extra={**options.extra, "container": container})


def _container_of(messages: tuple[Message, ...]) -> str | None:
    """Return the id of the container that the turn at the end of *messages* has begun, if any."""
    at = len(messages)
    while at and isinstance(messages[at - 1], UserMessage):
        at -= 1
    if at < len(messages) and at and isinstance(messages[at - 1], AssistantMessage):
        return None  # that turn is over
    for message in reversed(messages[:at]):
        if isinstance(message, UserMessage):
            break
        if isinstance(id := message.metadata.get(CONTAINER), str):
            return id
    return None
