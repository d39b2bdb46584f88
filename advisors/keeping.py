"""Turns in the memories of a request: once one of them has a turn, the others get it, too.

A turn that one memory knows of and another does not would be told to models by halves. So whoever
cancels a request whose turn is being stored waits until the memories further out have it as well.
"""

import asyncio
from collections.abc import Awaitable, Callable

from chatclient.chain import ChatClientRequest, ChatClientResponse
from chatclient.errors import DeadlineExceededError
from chatclient.runtime import Runtime
from chatclient.values import without

_KEEPING = "chat_memory_keeping"


class Keeping:
    """What the memories of one request know of each other.

    Attributes:
        kept: Whether one of them has the turn.
        cancelled: The cancellation that waits until all of them have it, or None.
    """

    def __init__(self) -> None:
        self.kept = False
        self.cancelled: asyncio.CancelledError | None = None

    def check(self) -> None:
        """Let the request end now if it is cancelled.

        Raises:
            CancelledError: It is.
        """
        if self.cancelled is not None:
            raise self.cancelled


async def keeping(
    request: ChatClientRequest,
    turn: Callable[[ChatClientRequest], Awaitable[ChatClientResponse]],
) -> ChatClientResponse:
    """Return the response of *turn*, in which memories use `stored`."""
    present: Keeping | None = request.context.get(_KEEPING)
    if present is not None:
        present.check()  # nobody asks again for a request that is cancelled
        return await turn(request)
    present = Keeping()
    try:
        response = await turn(request.mutate(context={_KEEPING: present}))
    finally:
        present.check()
    return ChatClientResponse(response.chat_response, without(response.context, _KEEPING))


async def stored(work: Awaitable[object], request: ChatClientRequest) -> None:
    """Await *work*, which stores the turn; what the turn has done is not undone from then on.

    A memory must not tell of what was undone. A cancelled request is no exception: stores finish
    what they have begun. If a store fails after it was cancelled, the failure is the cause of the
    cancellation, which is then raised at once.
    """
    keeping: Keeping = request.context[_KEEPING]
    try:
        await work
    except asyncio.CancelledError as error:
        if error.__cause__ is not None:
            raise
        keeping.cancelled = error
    keeping.kept = True
    request.runtime.settle()


def in_time_to_store(request: ChatClientRequest) -> None:
    """Make sure that the deadline has not passed, unless another memory has the turn already.

    Raises:
        DeadlineExceededError: It has.
    """
    keeping: Keeping = request.context[_KEEPING]
    if not keeping.kept:
        in_time(request.runtime)


def in_time(runtime: Runtime) -> None:
    """Make sure that the deadline has not passed; how long a store takes is for it to limit.

    Raises:
        DeadlineExceededError: It has.
    """
    if not runtime.remaining():
        msg = "the deadline passed before the conversation could be read or written"
        raise DeadlineExceededError(msg)
