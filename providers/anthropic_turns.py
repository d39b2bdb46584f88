"""Turns in which Anthropic runs tools of its own; no I/O.

A long one the API pauses: sent back as it is, the model goes on. One that waits for tools of the
application may have code running in a container, which the next request has to name.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from chatclient.aggregator import MessageAggregator
from chatclient.messages import AssistantMessage, Message, UserMessage
from chatclient.options import ChatOptions
from chatclient.prompt import Prompt
from chatclient.providers.anthropic_decoding import CONTAINER, PAUSED
from chatclient.providers.reading import Chunk
from chatclient.response import NO_USAGE, ChatResponse, Usage
from chatclient.values import EMPTY

_CONTINUATIONS = 8  # each of them has room for some ten searches


def continuations_in(options: ChatOptions) -> int:
    """Return how often a turn asked for with *options* may be gone on with."""
    if not _runs_tools(options):
        return 0
    most: int | None = getattr(options, "max_continuations", None)
    return _CONTINUATIONS if most is None else most


def _runs_tools(options: ChatOptions) -> bool:
    """Return whether the provider may run tools of its own, by which alone turns become long."""
    return bool(getattr(options, "server_tools", None) or options.extra)


async def whole_turn(
    ask: Callable[[Prompt], Awaitable[ChatResponse]], prompt: Prompt
) -> ChatResponse:
    """Return the response to *prompt*, gone on with wherever it was paused.

    Args:
        ask: Returns the response to one request.
        prompt: What is asked.
    """
    answer = await ask(prompt)
    left = continuations_in(prompt.options)
    while left and _goes_on(answer):
        left -= 1
        more = await ask(_sent_back(prompt, answer))
        joined = MessageAggregator()
        joined.add(answer)
        joined.add(more)
        answer = joined.response().with_usage(answer.usage + more.usage)
    return answer


async def streamed_turn(
    stream: Callable[[Prompt], AsyncGenerator[Chunk, None]], prompt: Prompt
) -> AsyncGenerator[Chunk, None]:
    """Yield the chunks of the response to *prompt*, gone on with wherever it was paused.

    Args:
        stream: Returns the chunks of the response to one request.
        prompt: What is asked.
    """
    said, spent, asked = MessageAggregator(), NO_USAGE, prompt
    for left in range(continuations_in(prompt.options), -1, -1):
        async with aclosing(stream(asked)) as chunks:
            async for chunk in chunks:
                counted = chunk if isinstance(chunk, str) else _counted(chunk, spent)
                said.add(counted)
                yield counted
        answer = said.response()
        if not left or not _goes_on(answer):
            return
        asked, spent = _sent_back(prompt, answer), answer.usage


def _goes_on(answer: ChatResponse) -> bool:
    """Return whether the model goes on with *answer* although nobody adds anything to it."""
    return answer.paused and not answer.has_tool_calls()


def _sent_back(prompt: Prompt, answer: ChatResponse) -> Prompt:
    return Prompt.of((*prompt.messages, answer.message), prompt.options)


def _counted(chunk: ChatResponse, spent: Usage) -> ChatResponse:
    """Return *chunk* with what was *spent* before in its running totals."""
    if not chunk.usage:
        return chunk
    total = spent + chunk.usage
    native = chunk.result.native_finish_reason if chunk.result else None
    if native in (None, PAUSED):  # the figures of one request, of which there may be several
        total = replace(total, native=EMPTY)
    return replace(chunk, metadata=replace(chunk.metadata, usage=total))


# --- containers -----------------------------------------------------------------------------


def in_container(prompt: Prompt) -> ChatOptions:
    """Return the options of *prompt*, with the container in which its last turn is at work."""
    options = prompt.options
    id = _container_of(prompt.messages) if _runs_tools(options) else None
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
