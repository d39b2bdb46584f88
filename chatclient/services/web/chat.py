"""`WebChat`: serves a client to frontends of AG-UI and of the Vercel AI SDK."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from chatclient._internal.logging import get_logger
from chatclient.chat.events import ApprovalNeeded
from chatclient.client.client import ChatClient
from chatclient.client.request import ChatClientRequestSpec
from chatclient.errors import UsageError
from chatclient.observability.trail import Trail
from chatclient.runtime.runtime import ON_LOOP
from chatclient.services.web.ai_sdk_messages import parse_chat_request
from chatclient.services.web.ai_sdk_stream import AiSdkEncoder
from chatclient.services.web.error_text import public_error_text
from chatclient.services.web.event_stream import EventStreamResponse
from chatclient.services.web.external_calls import with_external_calls
from chatclient.services.web.incoming import Incoming, InvalidInputError
from chatclient.services.web.part_reader import PartReader
from chatclient.services.web.pending_turns import InMemoryPendingTurns, PendingTurnStore
from chatclient.services.web.turn_request import begin_turn, resume_turn
from chatclient.tools.pending_turn import PendingTurn

log = get_logger(__name__)

_BLOCKED = "Decide about the tool calls that wait, then go on."
_GONE = "These tool calls do not wait for a decision any more."


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
        context: What the frontend tells about the user, as pairs of a description and a value
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


@dataclass(frozen=True, slots=True)
class _Refusal(Exception):  # noqa: N818 - an answer to the browser
    """The request is refused with a status and a text."""

    status: int
    text: str


@dataclass(frozen=True)
class WebChat:
    """Serves a client to frontends: `ai_sdk` and `ag_ui` are endpoints of Starlette and FastAPI.

    Attributes:
        client: The client, which the application closes.
        pending: Keeps turns that wait for approval or for a tool of the frontend.
        conversation: Returns the id of the conversation. Default: the id that the frontend says,
            so that whoever knows it can read the conversation.
        prepare: Returns the request of the client with more settings, such as the user's tool
            context; it is called for new and for resumed turns.
        error_text: Returns what the user is told of an error.
        trail: Whether the trail of the turn is sent. It has internals; use it in development.
        max_body_bytes: The maximum size of a request in bytes.
        keep_alive_seconds: How often a stream sends a comment, so that proxies keep it open.
    """

    client: ChatClient
    pending: PendingTurnStore = field(default_factory=InMemoryPendingTurns)
    conversation: ConversationOf | None = None
    prepare: Prepare | None = None
    error_text: Callable[[Exception], str] = public_error_text
    trail: bool = False
    max_body_bytes: int = 20_000_000
    keep_alive_seconds: float = 15.0

    async def ai_sdk(self, request: Request) -> Response:
        """Answer a request of the AI SDK's `DefaultChatTransport` with a UI message stream."""

        def encoder_for(reader: PartReader) -> Encoder:
            return AiSdkEncoder(reader, trail=self.trail)

        try:
            incoming = parse_chat_request(await self._body(request))
            return await self._respond(request, incoming, encoder_for)
        except (_Refusal, UsageError) as error:
            return _refused(error)

    async def ag_ui(self, request: Request) -> Response:
        """Answer a request of AG-UI's `HttpAgent` with events of AG-UI.

        Raises:
            UsageError: The extra `ag-ui` is not installed.
        """
        try:
            from chatclient.services.web.ag_ui_messages import (  # noqa: PLC0415 - optional
                incoming_of,
                parse_input,
            )
            from chatclient.services.web.ag_ui_stream import AgUiEncoder  # noqa: PLC0415
        except ImportError as error:
            msg = "AG-UI needs ag-ui-protocol; pip install 'chatclient[ag-ui]'"
            raise UsageError(msg) from error

        try:
            given = parse_input(await self._body(request))

            def encoder_for(reader: PartReader) -> Encoder:
                return AgUiEncoder(reader, given, trail=self.trail)

            return await self._respond(request, incoming_of(given), encoder_for)
        except (_Refusal, UsageError) as error:
            return _refused(error)

    async def _body(self, request: Request) -> bytes:
        """Return the body of *request*.

        A browser asks the server before it sends JSON to another site, so requests that other
        sites forge are refused.
        """
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise _Refusal(415, "The content type must be application/json.")
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > self.max_body_bytes:
                raise _Refusal(413, "The request is too large.")
        return bytes(body)

    async def _respond(
        self, http: Request, incoming: Incoming, encoder_for: Callable[[PartReader], Encoder]
    ) -> Response:
        conversation_id = incoming.conversation_id
        if self.conversation is not None:
            conversation_id = await ON_LOOP.call(self.conversation, http, conversation_id)
        turn = await ON_LOOP.invoke(self.pending.get, conversation_id)
        spec = await self._request(incoming, conversation_id, turn)
        if self.prepare is not None:
            given = incoming.state, incoming.context, incoming.properties
            spec = await ON_LOOP.call(self.prepare, spec, UiRequest(http, conversation_id, *given))
        if turn is not None and not await ON_LOOP.invoke(self.pending.take, conversation_id, turn):
            raise _Refusal(409, _GONE)
        stream = spec.astream()
        encoder = encoder_for(PartReader(stream.trail(), turn))
        events = self._events(conversation_id, stream, encoder)
        return EventStreamResponse(events, encoder.headers, self.keep_alive_seconds)

    async def _request(
        self, incoming: Incoming, conversation_id: str, turn: PendingTurn | None
    ) -> ChatClientRequestSpec:
        if turn is not None and not incoming.continues:
            raise _Refusal(409, _BLOCKED)
        if turn is None and incoming.continues:
            raise _Refusal(409, _GONE)
        if turn is None:
            return begin_turn(self.client.prompt(), incoming, conversation_id)
        return resume_turn(self.client.prompt(), incoming, turn, conversation_id)

    async def _events(
        self, conversation_id: str, stream: Any, encoder: Encoder
    ) -> AsyncGenerator[bytes, None]:
        """Yield the encoded events; leaving early cancels the request."""
        try:
            for data in encoder.begin():
                yield data
            async with stream:
                async for event in stream.events():
                    known = event
                    if isinstance(event, ApprovalNeeded):
                        known = await self._stored(conversation_id, event.turn, stream.trail())
                    for data in encoder.encode(known):
                        yield data
        except Exception as error:  # the browser always gets an end
            log.warning("web request failed", error=repr(error), exc_info=error)
            for data in encoder.fail(self.error_text(error)):
                yield data
        for data in encoder.end():
            yield data

    async def _stored(
        self, conversation_id: str, turn: PendingTurn, trail: Trail
    ) -> ApprovalNeeded:
        """Store *turn*, and return the event for it.

        Raises:
            InvalidInputError: Another turn of the conversation waits: two were begun at once.
        """
        # As it is read again, so that stores can compare it: dates in metadata become texts.
        turn = PendingTurn.from_json(with_external_calls(turn, trail).to_json())
        if not await ON_LOOP.invoke(self.pending.put, conversation_id, turn):
            raise InvalidInputError(_BLOCKED)
        return ApprovalNeeded(turn)


def _refused(error: _Refusal | UsageError) -> Response:
    match error:
        case _Refusal(status=status, text=text):
            pass
        case InvalidInputError():
            status, text = 422, str(error)
        case _:
            log.warning("web request refused", error=repr(error), exc_info=error)
            status, text = 422, "The request is invalid."
    return JSONResponse({"detail": text}, status)
