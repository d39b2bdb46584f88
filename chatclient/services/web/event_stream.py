"""`EventStreamResponse`: server-sent events that end when the browser disconnects."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress

import anyio
from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

_HEADERS = {
    "cache-control": "no-cache, no-transform",
    "x-accel-buffering": "no",  # nginx would hold events back
}
_COMMENT: Message = {"type": "http.response.body", "body": b": wait\n\n", "more_body": True}


class EventStreamResponse(StreamingResponse):
    """Sends *events* until they end or the browser disconnects, and closes them.

    Starlette's own response, on a server of ASGI 2.4 or newer, notices a disconnection at the next
    event only; a model that is thinking would go on.

    Args:
        events: The encoded events, one in each piece.
        headers: More headers.
        keep_alive_seconds: How often a comment is sent, which proxies take for a sign of life.
    """

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        headers: Mapping[str, str],
        keep_alive_seconds: float,
    ) -> None:
        super().__init__(events, headers={**_HEADERS, **headers}, media_type="text/event-stream")
        self._events = events
        self._keep_alive_seconds = keep_alive_seconds

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        lock = anyio.Lock()

        async def send_in_turn(message: Message) -> None:
            async with lock:
                await send(message)

        async with anyio.create_task_group() as group:
            group.start_soon(self._wait_for_disconnect, receive, group.cancel_scope)
            group.start_soon(self._keep_alive, send_in_turn)
            try:
                with suppress(OSError):  # the connection is closed
                    await self.stream_response(send_in_turn)
                group.cancel_scope.cancel()
            finally:
                with anyio.CancelScope(shield=True):
                    await self._events.aclose()

    async def _wait_for_disconnect(self, receive: Receive, scope: anyio.CancelScope) -> None:
        await self.listen_for_disconnect(receive)
        scope.cancel()

    async def _keep_alive(self, send: Send) -> None:
        with suppress(OSError):
            while True:
                await anyio.sleep(self._keep_alive_seconds)
                await send(_COMMENT)
