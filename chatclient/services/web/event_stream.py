"""`EventStreamResponse`: server-sent events that end when the browser disconnects."""

from collections.abc import AsyncGenerator, Mapping

import anyio
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

_HEADERS = {
    "cache-control": "no-cache, no-transform",
    "x-accel-buffering": "no",  # nginx would hold events back
}


class EventStreamResponse(StreamingResponse):
    """Sends *events* until they end or the browser disconnects, and closes them.

    Starlette's own response, on a server of ASGI 2.4 or newer, notices a disconnection at the next
    event only; a model that is thinking would go on.

    Args:
        events: The encoded events.
        headers: More headers.
    """

    def __init__(self, events: AsyncGenerator[bytes, None], headers: Mapping[str, str]) -> None:
        super().__init__(events, headers={**_HEADERS, **headers}, media_type="text/event-stream")
        self._events = events

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._wait_for_disconnect, receive, group.cancel_scope)
            try:
                await self.stream_response(send)
            except OSError:
                pass  # the connection is closed
            finally:
                with anyio.CancelScope(shield=True):
                    await self._events.aclose()
            group.cancel_scope.cancel()

    async def _wait_for_disconnect(self, receive: Receive, scope: anyio.CancelScope) -> None:
        await self.listen_for_disconnect(receive)
        scope.cancel()
