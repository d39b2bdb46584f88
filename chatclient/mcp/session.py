"""A session with an MCP server, kept open by its own task, and its transport over HTTP."""

import asyncio
import json
import zlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from contextvars import Context
from types import TracebackType
from typing import Any, Self

import anyio
import httpx2
from mcp import Client, MCPError
from mcp.client.session import IncomingMessage
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import SubscriptionLost
from mcp.shared._httpx_utils import create_mcp_http_client  # the SDK has no other place for it
from mcp_types import (
    CONNECTION_CLOSED,
    EmptyResult,
    Implementation,
    LoggingMessageNotificationParams,
    PingRequest,
    SetLevelRequest,
    SetLevelRequestParams,
    ToolListChangedNotification,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from chatclient._internal.decompression import Decompressor
from chatclient._internal.version import __version__
from chatclient.errors import McpServerError
from chatclient.extend import get_logger
from chatclient.mcp.client_features import callbacks_of
from chatclient.mcp.limits import MessageCounter
from chatclient.mcp.login import Login, login_failure
from chatclient.mcp.oauth import McpOAuth
from chatclient.mcp.server import McpServer
from chatclient.mcp.stdio import StdioTransport, with_last_lines
from chatclient.runtime.cancellation import consume_error

_ENCODINGS = "gzip, deflate"
_REFUSALS = (401, 403)  # of the user, not of the request
_GRACE = 10.0  # seconds after which the call's own timeout has ended it


class HttpTransport:
    """A streamable HTTP transport with its own HTTP client, which is closed with it.

    Args:
        url: The URL of the server.
        headers: Sent with every request.
        auth: An `httpx2.Auth`, the settings of a login, or None.
        most: Bytes of a message of the server, unpacked.
    """

    def __init__(self, url: str, headers: dict[str, str], auth: Any, most: int) -> None:
        self._url = url
        self._most = most
        self.login = Login(url, auth) if isinstance(auth, McpOAuth) else None
        auth = auth if self.login is None else self.login.auth
        self._http = create_mcp_http_client(headers=headers, auth=auth)
        self._http.headers["accept-encoding"] = _ENCODINGS
        self._http.event_hooks = {"response": [self._record_refusal, self._limit]}
        self._open = AsyncExitStack()
        self.refusal: int | None = None
        """The status of the last response if it rejects the user, or None."""

    def set_read_timeout(self, seconds: float | None) -> None:
        """Allow *seconds* for a response, or any time with None.

        Servers need not send anything until then, and on a timeout the SDK would close the
        connection with all pending calls.
        """
        usual = self._http.timeout
        least = usual.read or 0.0  # also for idle streams
        read = None if seconds is None else max(least, seconds + _GRACE)
        self._http.timeout = (usual.connect, read, usual.write, usual.pool)

    async def __aenter__(self) -> Any:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._http)
            streams = await stack.enter_async_context(
                streamable_http_client(
                    self._url, http_client=self._http, max_sse_event_size=self._most
                )
            )
            self._open = stack.pop_all()
        return streams

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> Any:
        return await self._open.__aexit__(kind, error, traceback)

    async def _record_refusal(self, response: Any) -> None:
        self.refusal = response.status_code if response.status_code in _REFUSALS else None

    async def _limit(self, response: httpx2.Response) -> None:
        """Unpack and count the body of *response* while it is read.

        The HTTP library may unpack several encodings, and the SDK reads a body completely.
        """
        names = response.headers.get("content-encoding", "").lower().split(",")
        encodings = [name for each in names if (name := each.strip()) not in ("", "identity")]
        unpack: Callable[[bytes], Iterable[bytes]] = lambda chunk: (chunk,)  # noqa: E731
        if encodings:
            if len(encodings) > 1 or encodings[0] not in (*_ENCODINGS.split(", "), "x-gzip"):
                msg = f"the encoding {', '.join(encodings)!r} was not asked for"
                raise httpx2.StreamError(msg)
            unpack = Decompressor(encodings[0]).feed
            del response.headers["content-encoding"]
        # A stream has no end; the SDK counts its events.
        is_stream = response.headers.get("content-type", "").startswith("text/event-stream")
        most = float("inf") if is_stream else self._most
        response.stream = _CountedStream(response.stream, unpack, most)


class _CountedStream(httpx2.AsyncByteStream):
    """A body that is unpacked, up to a number of bytes."""

    def __init__(
        self, stream: Any, unpack: Callable[[bytes], Iterable[bytes]], most: float
    ) -> None:
        self._stream = stream
        self._unpack = unpack
        self._most = most

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        try:
            async for chunk in self._stream:
                for piece in self._unpack(chunk):
                    size += len(piece)
                    if size > self._most:
                        msg = f"the message exceeded the {self._most} byte limit"
                        raise httpx2.StreamError(msg)
                    yield piece
        except zlib.error as error:
            msg = f"the message cannot be unpacked: {error}"
            raise httpx2.StreamError(msg) from error

    async def aclose(self) -> None:
        await self._stream.aclose()


# Messages of the SDK: its codes are ambiguous.
_CLOSED = "Connection closed"
_HTTP_ERROR = "Server returned an error response"
_CLIENT = Implementation(name="chatclient", version=__version__)
_LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
_PING_TIMEOUT = 5.0  # seconds, and no more than a quarter of the time of the call that waits
_MOST_LOGGED = 2_000  # characters of a message, so that no server fills the disk

log = get_logger(__name__)


class Session:
    """An open session, and the task that keeps it open."""

    def __init__(
        self, server: McpServer, changed: Callable[[], None], calls: Sequence[Context]
    ) -> None:
        self._server = server
        self._calls = calls
        self._changed = changed
        self._stop = asyncio.Event()
        self._error: BaseException | None = None
        self._connecting: asyncio.Timeout | None = None
        self._transport: Any = None
        self._watched: _WatchedTransport | None = None
        self._log_messages = MessageCounter(server.limits.log_messages)
        self._ready: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._ready.add_done_callback(consume_error)
        # The task itself is never cancelled, only this scope: it respects what the SDK shields,
        # such as ending the server's process.
        self._scope = anyio.CancelScope()
        # An empty context: that of the connecting request must not outlive the request.
        self._task = asyncio.get_running_loop().create_task(self._keep(), context=Context())

    async def opened(self) -> None:
        """Wait until the server is connected.

        Raises:
            McpServerError: The server cannot be reached, or does not respond in time.
        """
        server = self._server
        try:
            async with asyncio.timeout(server.connect_timeout) as self._connecting:
                # Not awaited directly: the timeout would cancel the future, which other code reads.
                await asyncio.wait([self._ready])
        except TimeoutError as error:
            await self.close()
            seconds = f"{server.connect_timeout:g} s"
            msg = f"the MCP server {server.name!r} did not answer within {seconds}"
            raise self._failed(msg) from error
        except asyncio.CancelledError:
            self._scope.cancel()
            raise
        finally:
            self._connecting = None
        # Raising it here would keep the caller alive through the traceback.
        failure = self._ready.exception()
        if failure is not None:
            cause = _leaf(failure)
            # Only messages of the operating system are known to contain no secrets.
            reason = f": {cause.strerror}" if isinstance(cause, OSError) and cause.strerror else ""
            program = f" by starting {server.command!r}" if server.command else ""
            msg = (
                f"the MCP server {server.name!r} cannot be reached{program}"
                f" ({type(cause).__name__}{reason}){self._exit_report}"
                f"{_command_hint(server.command, cause)}"
            )
            if failed := login_failure(cause):
                msg = f"the login at the MCP server {server.name!r} failed: {failed}"
                raise self._failed(msg) from cause
            raise self._failed(self.refused() or msg) from cause

    @property
    def client(self) -> Client:
        """The SDK's client."""
        return self._ready.result()

    @property
    def ended(self) -> bool:
        """Whether the connection was lost or closed."""
        return self._task.done() or self._stop.is_set()

    def lost_by(self, error: MCPError) -> bool:
        """Return whether *error* means that the connection was lost."""
        # Not every server that has lost a session answers 404; some use 400 or 500.
        if _is_terminated(error) or error.message == _HTTP_ERROR:
            return True
        # Servers use the SDK's code for their own failures, too.
        return error.code == CONNECTION_CLOSED and (self.ended or error.message == _CLOSED)

    def never_reached(self, error: MCPError) -> bool:
        """Return whether the request that ended with *error* cannot have been carried out."""
        refused = type(_leaf(self._error)).__name__ == "ConnectError"  # of any HTTP library
        return refused or _is_terminated(error)

    def exceeded_by(self, error: MCPError) -> bool:
        """Return whether *error* means that a message of the server was too large."""
        # This is the message of the SDK, which has no type for it.
        limit = f"exceeded the {self._server.limits.message_size} byte limit"
        return limit in error.message or self._has_exceeded

    def refused(self) -> str:
        """Return the message for a server that rejects the user; empty if it does not."""
        status = getattr(self._transport, "refusal", None)
        if status is None:
            return ""
        name = self._server.name
        return f"the MCP server {name!r} refuses its user (HTTP {status}); check headers and auth"

    async def responds(self) -> bool:
        """Return whether the server answers a ping in a short time, also with an error."""
        session = self.client.session
        version = self.client.protocol_version
        try:
            async with asyncio.timeout(ping_timeout(self._server.timeout)):
                if version in MODERN_PROTOCOL_VERSIONS:  # which have no ping
                    await session.send_discover(version)
                else:
                    await session.send_request(PingRequest(), EmptyResult)
        except TimeoutError:
            return False
        except MCPError as error:
            return not self.lost_by(error)
        return True

    @property
    def _has_exceeded(self) -> bool:
        transport = self._transport
        return isinstance(transport, StdioTransport) and transport.has_exceeded

    @property
    def _exit_report(self) -> str:
        """How the server's process ended by itself, or an empty text."""
        if not isinstance(self._transport, StdioTransport):
            return ""
        if self._watched is None or not self._watched.ended_by_server:
            return ""
        status = self._transport.exit_status
        return "" if status is None else f": it exited with status {status}"

    def _failed(self, message: str) -> McpServerError:
        transport = self._transport
        lines = transport.last_lines if isinstance(transport, StdioTransport) else ""
        message = with_last_lines(message, lines)
        return McpServerError(message, server=self._server.name, stderr=lines)

    async def close(self) -> None:
        """End the session and wait for its task."""
        self._give_up()
        await asyncio.wait([self._task])

    def _give_up(self) -> None:
        self._stop.set()
        if not self._ready.done():
            self._scope.cancel()

    async def _keep(self) -> None:
        """Keep the session open until either side closes it."""
        try:
            with self._scope:
                async with self._unopened() as client:
                    session: Any = client.session
                    # The SDK's check could block the thread of all servers; `McpToolCallback`
                    # validates results with a time limit.
                    session.validate_tool_result = _skip_validation
                    self._ready.set_result(client)
                    listener = asyncio.create_task(self._listen(client))
                    try:
                        await self._stop.wait()
                    finally:
                        listener.cancel()
                        await asyncio.wait([listener])
        except BaseException as error:  # noqa: BLE001 - reported by `opened`, or by the next call
            self._error = error
            log.debug("mcp connection ended", server=self._server.name, error=repr(_leaf(error)))
        finally:
            self._stop.set()
            self._changed()
            if not self._ready.done():
                self._ready.set_exception(self._error or ConnectionAbortedError("closed"))

    def _unopened(self) -> Client:
        self._transport = transport = self._server.connect()
        if isinstance(transport, StdioTransport):
            transport.on_exceeded = self._give_up
        if isinstance(transport, HttpTransport):
            transport.set_read_timeout(self._server.timeout)
            if transport.login is not None:
                transport.login.waiting = self._login
        self._watched = _WatchedTransport(self._transport, self._stop)
        return Client(
            self._watched,
            cache=None,
            client_info=_CLIENT,
            message_handler=self._on_message,
            logging_callback=self._on_log,
            log_level=self._server.log_level,
            **callbacks_of(self._server, self._calls),
        )

    @contextmanager
    def _login(self) -> Iterator[None]:
        """Stop the timeout of connecting while the user logs in."""
        if self._connecting is not None:
            self._connecting.reschedule(None)
        try:
            yield
        finally:
            if self._connecting is not None:
                now = asyncio.get_running_loop().time()
                self._connecting.reschedule(now + self._server.connect_timeout)

    async def _on_message(self, message: IncomingMessage) -> None:
        if isinstance(message, ToolListChangedNotification):
            self._changed()

    async def _on_log(self, params: LoggingMessageNotificationParams) -> None:
        least = self._server.log_level
        if least is None or _LEVELS.index(params.level) < _LEVELS.index(least):
            return
        self._log_messages.add()
        if excess := self._log_messages.excess:
            if excess == 1:
                log.warning(
                    "mcp server logs too much, dropped for a minute", server=self._server.name
                )
            return
        text = params.data if isinstance(params.data, str) else json.dumps(params.data)
        write = {"debug": log.debug, "info": log.info, "notice": log.info}
        write.get(params.level, log.warning)(
            "mcp server log",
            server=self._server.name,
            level=params.level,
            logger=params.logger,
            text=text[:_MOST_LOGGED],
        )

    async def _listen(self, client: Client) -> None:
        """Subscribe to the server's log and to changes of its tools."""
        if client.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            level = self._server.log_level
            if level is not None and client.server_capabilities.logging is not None:
                wanted = SetLevelRequest(params=SetLevelRequestParams(level=level))
                with suppress(MCPError, TimeoutError):  # then it uses its own level
                    await client.session.send_request(wanted, EmptyResult)
            return
        tools = client.server_capabilities.tools
        while tools is not None and tools.list_changed:
            with suppress(SubscriptionLost, MCPError, TimeoutError):
                async with client.listen(tools_list_changed=True) as changes:
                    self._changed()  # earlier changes are not reported
                    async for _ in changes:
                        self._changed()
            await asyncio.sleep(self._server.retry_after)


async def _skip_validation(_name: str, _result: object) -> None:
    return


def ping_timeout(timeout: float | None) -> float:
    """Return the seconds that a server has for a ping, given those of a call."""
    return _PING_TIMEOUT if timeout is None else min(_PING_TIMEOUT, timeout / 4)


def _is_terminated(error: MCPError) -> bool:
    return error.message == "Session terminated"  # the SDK's message for a 404 in a session


def _leaf(error: BaseException | None) -> BaseException | None:
    """Return the first error of a group: task groups wrap the error that ends them."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _command_hint(command: str | None, cause: BaseException | None) -> str:
    """Return a hint for a program name that looks like a command line."""
    if not isinstance(cause, FileNotFoundError) or not command or " " not in command:
        return ""
    return f"; give a command and its arguments one by one: {command.split()[0]!r}, ..."


class _WatchedTransport:
    """A transport that sets an event when the server disconnects.

    The SDK reports this only to pending requests. Otherwise the next tool call would fail on a
    process that has ended, without knowing whether the call was received.
    """

    def __init__(self, transport: Any, ended: asyncio.Event) -> None:
        self._transport = transport
        self._ended = ended
        self.ended_by_server = False

    async def __aenter__(self) -> Any:
        read, write = await self._transport.__aenter__()
        return _WatchedStream(read, self._on_end), write

    def _on_end(self, error: BaseException) -> None:
        self.ended_by_server = isinstance(error, StopAsyncIteration)
        self._ended.set()

    async def __aexit__(self, *error: object) -> Any:
        return await self._transport.__aexit__(*error)


class _WatchedStream:
    def __init__(self, stream: Any, on_end: Callable[[BaseException], None]) -> None:
        self._stream = stream
        self._on_end = on_end

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __aiter__(self) -> "_WatchedStream":
        return self

    async def __anext__(self) -> Any:
        try:
            return await self._stream.__anext__()
        except BaseException as error:  # end of stream, broken pipe, closed transport
            self._on_end(error)
            raise

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> Any:
        return await self._stream.__aexit__(*error)
