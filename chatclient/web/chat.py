"""`WebChat`: serves a client to frontends of the AI SDK and of AG-UI."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

import anyio
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from chatclient.client.client import ChatClient
from chatclient.client.request import ChatClientRequestSpec
from chatclient.durable.client import DurableClient
from chatclient.errors import (
    BudgetExceededError,
    ConnectionFailedError,
    ContentFilterError,
    ContextLengthExceededError,
    DeadlineExceededError,
    GuardrailError,
    OverloadedError,
    RateLimitedError,
    RateLimitExceededError,
    RequestTimeoutError,
    ToolLoopError,
    TurnCancelledError,
    UsageError,
)
from chatclient.extend import ON_LOOP, check_type, get_logger, needed_by
from chatclient.web.ai_sdk import AiSdkEncoder, parse_chat_request
from chatclient.web.durable_turns import DurableRunner
from chatclient.web.parts import PartReader
from chatclient.web.pending_turns import InMemoryPendingTurns, PendingTurnStore
from chatclient.web.requests import (
    Incoming,
    InvalidInputError,
    RefusedError,
    begin_turn,
    decisions_in,
    json_of,
    with_frontend,
)
from chatclient.web.turns import (
    GONE,
    WAITS,
    ProcessRunner,
    TurnEvents,
    TurnRunner,
)

_TEXTS: dict[type[Exception] | tuple[type[Exception], ...], str] = {
    (DeadlineExceededError, RequestTimeoutError): "The answer took too long. Please try again.",
    (OverloadedError, RateLimitedError, ConnectionFailedError): (
        "The model is not available at the moment. Please try again later."
    ),
    (RateLimitExceededError, BudgetExceededError): (
        "A limit of this service is reached. Please try again later."
    ),
    ContextLengthExceededError: "The conversation is too long. Please start a new one.",
    (ContentFilterError, GuardrailError): "This request cannot be answered.",
    ToolLoopError: "The answer needed too many steps.",
    TurnCancelledError: "The answer was stopped.",
}

_OTHER = "Something went wrong. Please try again."


def public_error_text(error: Exception) -> str:
    """Return a text about *error* for the user of a frontend.

    It depends on the kind of the error only: messages of errors are for operators, and may name
    hosts, models and files.
    """
    if isinstance(error, InvalidInputError):
        return str(error)
    return next((text for kinds, text in _TEXTS.items() if isinstance(error, kinds)), _OTHER)


_HEADERS = {
    "cache-control": "no-cache, no-transform",
    "x-accel-buffering": "no",  # nginx would hold events back
}
_COMMENT: Message = {"type": "http.response.body", "body": b": wait\n\n", "more_body": True}


class EventStreamResponse(StreamingResponse):
    """Sends *data* until it ends or the browser disconnects, and closes *events*.

    Starlette's own response, on a server of ASGI 2.4 or newer, notices a disconnection at the next
    event only; a model that is thinking would continue.

    Args:
        data: The encoded events, one in each piece.
        events: The events of the turn, which *data* reads as soon as it is read itself.
        headers: More headers.
        keep_alive_seconds: How often a comment is sent, which proxies take for a sign of life.
    """

    def __init__(
        self,
        data: AsyncGenerator[bytes, None],
        events: AsyncGenerator[Any, None],
        headers: Mapping[str, str],
        keep_alive_seconds: float,
    ) -> None:
        super().__init__(data, headers={**_HEADERS, **headers}, media_type="text/event-stream")
        self._data, self._events = data, events
        self._keep_alive_seconds = keep_alive_seconds

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        # Two tasks send: that of the events and that of the comments.
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
                # Shielded, because the group is cancelled by now, and the turn has to clean up.
                with anyio.CancelScope(shield=True):
                    await self._data.aclose()
                    await self._events.aclose()

    async def _wait_for_disconnect(self, receive: Receive, scope: anyio.CancelScope) -> None:
        await self.listen_for_disconnect(receive)
        scope.cancel()

    async def _keep_alive(self, send: Send) -> None:
        with suppress(OSError):
            while True:
                await anyio.sleep(self._keep_alive_seconds)
                await send(_COMMENT)


log = get_logger(__name__)

T = TypeVar("T")


class Encoder(Protocol):
    """Encodes one answer in the form of a protocol."""

    headers: dict[str, str]

    def begin(self) -> Any: ...  # noqa: D102 - see its two implementations
    def encode(self, event: Any) -> Any: ...  # noqa: D102
    def fail(self, text: str) -> Any: ...  # noqa: D102
    def end(self) -> Any: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class UiRequest:
    """What a frontend sends besides messages; the application has to check it.

    Attributes:
        http: The HTTP request.
        conversation_id: The id of the conversation.
        state: The state that the frontend shares, or None.
        context: Information about the user from the frontend, as pairs of a description and a value
            (AG-UI).
        properties: The other fields of the request: `body` of the AI SDK, `forwardedProps` of
            AG-UI.
    """

    http: Request
    conversation_id: str
    state: Any = field(repr=False)
    context: tuple[tuple[str, str], ...] = field(repr=False)
    properties: Mapping[str, Any] = field(repr=False)


Prepare = Callable[
    [ChatClientRequestSpec, UiRequest], ChatClientRequestSpec | Awaitable[ChatClientRequestSpec]
]
"""Returns the request of the client to send for that of a frontend; plain or asynchronous."""

ConversationOf = Callable[[Request, str], str | Awaitable[str]]
"""Returns the id of a conversation for an HTTP request and the id that the frontend says."""


@dataclass(frozen=True)
class WebChat:
    """Serves a client to frontends: `ai_sdk` and `ag_ui` are endpoints of Starlette and FastAPI.

    Attributes:
        client: The client, which the application closes, or a durable client: its turns survive
            restarts of the server and lost connections.
        pending: Keeps turns that wait for approval or for a tool of the frontend; default: in this
            process. A durable client needs none.
        conversation: Returns the id of the conversation. Default: the id from the frontend,
            so that everyone who knows it can read the conversation.
        prepare: Returns the request of the client with more settings, such as the user's tool
            context; it is called for new and for resumed turns.
        error_text: Returns the text of an error for the user.
        trail: Whether the trail of the turn is sent. It has internals; use it in development.
        max_body_bytes: The maximum size of a request in bytes.
        max_messages: The maximum number of messages in a request. Frontends send the complete
            conversation.
        max_tools: The maximum number of tools of a frontend (AG-UI).
        keep_alive_seconds: How often a stream sends a comment, so that proxies keep it open.
        queue: The queue in which turns of a durable client are started.

    Raises:
        UsageError: *client* is no client, *pending* is given with a durable client, or *queue*
            without one.
    """

    client: ChatClient | DurableClient
    pending: PendingTurnStore | None = None
    conversation: ConversationOf | None = None
    prepare: Prepare | None = None
    error_text: Callable[[Exception], str] = public_error_text
    trail: bool = False
    max_body_bytes: int = 20_000_000
    max_messages: int = 2_000
    max_tools: int = 100
    keep_alive_seconds: float = 15.0
    queue: str | None = None
    _turns: TurnRunner = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_type("client", self.client, (ChatClient, DurableClient))
        turns: TurnRunner
        if isinstance(self.client, DurableClient):
            if self.pending is not None:
                msg = "a durable client keeps turns that wait itself: leave out `pending`"
                raise UsageError(msg)
            turns = DurableRunner(self.client, self.queue)
        else:
            if self.queue is not None:
                msg = "only turns of a durable client are started in a queue"
                raise UsageError(msg)
            pending = InMemoryPendingTurns() if self.pending is None else self.pending
            turns = ProcessRunner(self.client.prompt, pending)
        object.__setattr__(self, "_turns", turns)

    async def ai_sdk(self, request: Request) -> Response:
        """Answer a request of the AI SDK's `DefaultChatTransport` with a UI message stream."""
        try:
            incoming = await self._read(request, parse_chat_request)
            return await self._respond(request, incoming, self._ai_sdk_encoder)
        except (RefusedError, UsageError) as error:
            return _refused(error)

    async def ai_sdk_stream(self, request: Request) -> Response:
        """Answer GET with the turn that runs or waits, from its beginning; cancel it for DELETE.

        The path has the parameter `id`, the id of the conversation: `/chat/{id}/stream`. If there
        is no such turn, the status is 204. With `?unanswered=` and the id of the last message of
        the user, a turn that has ended is sent as well.
        """
        try:
            conversation_id = await self._conversation(request, request.path_params["id"])
            if request.method == "DELETE":
                await self._turns.cancel(conversation_id)
                return Response(status_code=204)
            unanswered = request.query_params.get("unanswered")
            running = await self._turns.follow(conversation_id, unanswered)
        except UsageError as error:
            return _refused(error)
        if running is None:
            return Response(status_code=204)
        return self._stream(running, self._ai_sdk_encoder)

    def _ai_sdk_encoder(self, reader: PartReader) -> Encoder:
        return AiSdkEncoder(reader, trail=self.trail)

    async def ag_ui(self, request: Request) -> Response:
        """Answer a request of AG-UI's `HttpAgent` with events of AG-UI.

        Raises:
            UsageError: The extra `ag-ui` is not installed.
        """
        with needed_by("AG-UI"):
            from chatclient.web.ag_ui import (  # noqa: PLC0415 - optional
                AgUiEncoder,
                incoming_of,
                parse_input,
            )

        def parse(body: Any) -> tuple[Any, Incoming]:
            given = parse_input(body)
            return given, incoming_of(given)

        try:
            given, incoming = await self._read(request, parse)

            def encoder_for(reader: PartReader) -> Encoder:
                return AgUiEncoder(reader, given, trail=self.trail)

            return await self._respond(request, incoming, encoder_for)
        except (RefusedError, UsageError) as error:
            return _refused(error)

    async def _read(self, request: Request, parse: Callable[[Any], T]) -> T:
        """Return what *parse* makes of the JSON in *request*.

        A browser asks the server before it sends JSON to another site, so requests that other
        sites forge are refused.
        """
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise RefusedError(415, "The content type must be application/json.")
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > self.max_body_bytes:
                raise RefusedError(413, "The request is too large.")
        limits = {"messages": self.max_messages, "tools": self.max_tools}
        # In a thread, because other requests must not wait for a long conversation.
        return await asyncio.to_thread(lambda: parse(json_of(bytes(body), limits)))

    async def _conversation(self, http: Request, id: str) -> str:
        if self.conversation is None:
            return id
        found: str = await ON_LOOP.call(self.conversation, http, id)
        return found

    async def _respond(
        self, http: Request, incoming: Incoming, encoder_for: Callable[[PartReader], Encoder]
    ) -> Response:
        id = await self._conversation(http, incoming.conversation_id)
        turn = await self._turns.pending(id)
        if turn is not None and not incoming.continues:
            raise RefusedError(409, WAITS)
        if turn is None and incoming.continues:
            raise RefusedError(409, GONE)
        request = self._turns.prompt()
        if turn is None:
            request = await asyncio.to_thread(begin_turn, request, incoming)
        decisions = {} if turn is None else decisions_in(incoming, turn)
        request = with_frontend(request.conversation(id), incoming)
        if self.prepare is not None:
            given = incoming.state, incoming.context, incoming.properties
            request = await ON_LOOP.call(self.prepare, request, UiRequest(http, id, *given))
        # The frontend displays the messages even if the turn fails.
        how = request.settings.turn
        how = replace(how, is_displayed=True, replaces=turn is None and incoming.replaces)
        request = request.in_turn(how)
        if turn is None:
            running = await self._turns.begin(id, request)
        else:
            running = await self._turns.resume(id, request, turn, decisions)
        return self._stream(running, encoder_for)

    def _stream(
        self, running: TurnEvents, encoder_for: Callable[[PartReader], Encoder]
    ) -> Response:
        encoder = encoder_for(PartReader(running.record, running.resumed))
        data = self._encoded(running, encoder)
        return EventStreamResponse(data, running.events, encoder.headers, self.keep_alive_seconds)

    async def _encoded(self, running: TurnEvents, encoder: Encoder) -> AsyncGenerator[bytes, None]:
        """Yield the encoded events."""
        try:
            for data in encoder.begin():
                yield data
            async with aclosing(running.events) as events:
                async for event in events:
                    for data in encoder.encode(event):
                        yield data
        except Exception as error:  # the browser always gets an end
            log.warning("web request failed", error=repr(error), exc_info=error)
            for data in encoder.fail(self.error_text(error)):
                yield data
        for data in encoder.end():
            yield data


def _refused(error: RefusedError | UsageError) -> Response:
    match error:
        case RefusedError(status=status, text=text):
            pass
        case InvalidInputError():
            status, text = 422, str(error)
        case _:
            log.warning("web request refused", error=repr(error), exc_info=error)
            status, text = 422, "The request is invalid."
    return JSONResponse({"detail": text}, status)
