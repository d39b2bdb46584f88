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

from chatclient.chat.events import RoundEnded, ToolCallFinished
from chatclient.chat.messages import AssistantMessage, ToolResponse, ToolResponseMessage
from chatclient.chat.pending_notes import load_turn
from chatclient.chat.pending_turn import Decision, PendingTurn
from chatclient.chat.turn import Turn
from chatclient.client.client import ChatClient
from chatclient.client.request import ChatClientRequestSpec
from chatclient.durable.client import UNFINISHED, DurableClient
from chatclient.durable.handle import TurnHandle
from chatclient.errors import (
    BudgetExceededError,
    ConnectionFailedError,
    ContentFilterError,
    ContextLengthExceededError,
    ConversationBusyError,
    DeadlineExceededError,
    GuardrailError,
    OverloadedError,
    RateLimitedError,
    RateLimitExceededError,
    RequestTimeoutError,
    ToolLoopError,
    TurnCancelledError,
    TurnVersionError,
    UsageError,
)
from chatclient.extend import ON_LOOP, check_type, get_logger, needed_by
from chatclient.web.ai_sdk import AiSdkEncoder, parse_chat_request
from chatclient.web.parts import PartReader
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
    LATER,
    RUNS,
    WAITS,
    InMemoryPendingTurns,
    PendingTurnStore,
    ProcessRunner,
    TurnEvents,
    TurnRunner,
)

_STOP_SECONDS = 30.0  # that a message waits for the end of a turn that is being cancelled


@dataclass(frozen=True)
class DurableRunner:
    """Runs durable turns: the process of the server follows their events.

    Attributes:
        durable: The durable client.
        queue: The queue that turns are started in, or None.
    """

    durable: DurableClient
    queue: str | None = None

    def prompt(self) -> ChatClientRequestSpec:
        """Return a new request of the client."""
        return self.durable.prompt()

    async def pending(self, conversation_id: str) -> PendingTurn | None:
        """Return the turn of the conversation that waits for decisions, or None.

        One that the user has just stopped is waited for: its tools end, and its calls are undone.

        Raises:
            RefusedError: A turn is running.
        """
        turn = await self.durable.conversation(conversation_id).alast()
        if turn is None:
            return None
        if (state := (await turn.astatus()).state) == "cancelling":
            try:
                await turn.aresult(_STOP_SECONDS)
            except TurnCancelledError:
                return None
            except TimeoutError as error:
                raise RefusedError(409, RUNS) from error
            state = (await turn.astatus()).state
        if state not in UNFINISHED:
            return None
        # Not `aresult`, which waits if another request has just decided.
        result = await asyncio.to_thread(turn.result_so_far)
        if result is None:
            raise RefusedError(409, RUNS)
        return result.pending_turn

    async def begin(self, conversation_id: str, request: ChatClientRequestSpec) -> TurnEvents:
        """Begin a turn.

        Raises:
            RefusedError: Another one was started at the same time.
        """
        conversation = self.durable.conversation(conversation_id)
        try:
            turn = await conversation.astart(request, queue=self.queue, streaming=True)
        except ConversationBusyError as error:
            raise RefusedError(409, WAITS if error.state == "waiting" else RUNS) from error
        return await _followed(turn, None)

    async def resume(
        self,
        conversation_id: str,
        request: ChatClientRequestSpec,  # noqa: ARG002 - that of the first segment is stored
        turn: PendingTurn,
        decisions: Mapping[str, Decision],
    ) -> TurnEvents:
        """Continue *turn*, which waits.

        Raises:
            RefusedError: It does not wait any more, or not every tool that it needs is here.
            UsageError: A decision cannot be applied.
        """
        last = await self.durable.conversation(conversation_id).alast()
        if last is None:
            raise RefusedError(409, GONE)
        try:
            await last.adecide(dict(decisions))
        except TurnVersionError as error:
            raise RefusedError(503, LATER) from error
        except UsageError as error:
            # If it still waits, the decision is wrong; otherwise another request has decided.
            if (await last.astatus()).state == "waiting":
                raise
            raise RefusedError(409, GONE) from error
        return await _followed(last, turn)

    async def follow(self, conversation_id: str, unanswered: str | None) -> TurnEvents | None:
        """Return the turn that runs or waits, from its beginning."""
        turn = await self.durable.conversation(conversation_id).alast()
        if turn is None:
            return None
        if (await turn.astatus()).state not in ("queued", "running", "waiting", "stuck"):
            record = await asyncio.to_thread(turn.record)
            if unanswered is None or record.request_messages[-1].id != unanswered:
                return None
        return await _followed(turn, None)

    async def cancel(self, conversation_id: str) -> None:
        """Cancel the turn that runs or waits, if there is one."""
        turn = await self.durable.conversation(conversation_id).alast()
        if turn is not None:
            await turn.acancel()


async def _followed(turn: TurnHandle, resumed: PendingTurn | None) -> TurnEvents:
    if resumed is None:
        record = await asyncio.to_thread(turn.record)
    else:
        record = load_turn(resumed, {})
    return TurnEvents(lambda: record, _events(turn, record, resumed), resumed)


async def _events(
    turn: TurnHandle, record: Turn, resumed: PendingTurn | None
) -> AsyncGenerator[Any, None]:
    """Yield the events of *turn*, and append the rounds that they complete to its record."""
    message: AssistantMessage | None = None
    results: dict[str, ToolResponse] = {}
    if resumed is not None:
        message, results = resumed.message, {each.id: each for each in resumed.responses}
    async with aclosing(turn.aevents(after_decisions=resumed is not None)) as events:
        async for event in events:
            match event:
                case RoundEnded(response=response):
                    if message is not None and results:
                        record.append((message, ToolResponseMessage(tuple(results.values()))))
                    message, results = response.output, {}
                case ToolCallFinished(tool_call=call, response=answer):
                    results[call.id] = answer
                case _:
                    pass
            yield event


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
