"""The HTTP client of all providers.

Requests are sent with httpx or its successor httpx2, which has the same interface and less overhead
under concurrency.
"""

import os
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import (
    AbstractContextManager,
    AsyncExitStack,
    aclosing,
    contextmanager,
    nullcontext,
    suppress,
)
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

from chatclient._internal.checks import check_type
from chatclient._internal.exceptions import WithoutLocals
from chatclient._internal.frozen import EMPTY
from chatclient.chat.response import ChatResponse
from chatclient.errors import (
    DeadlineExceededError,
    ProviderError,
    RequestTimeoutError,
    StreamInterruptedError,
    UsageError,
)
from chatclient.providers.http.auth import (
    Headers,
    HeaderSource,
    Redacting,
    SecretHeaders,
    Signer,
    redact_from,
)
from chatclient.providers.http.body import (
    BodyReader,
    received_headers,
    shielded_send,
    trailing_piece,
)
from chatclient.providers.http.connections import Connections, Pools, Shard, library_of
from chatclient.providers.http.errors import TransportErrors, error_from_body, safe_cause
from chatclient.providers.http.limits import LIMITS, CallCounter, ResponseLimits
from chatclient.providers.http.reader import (
    Chunk,
    Reader,
    SurrogateJoiner,
    is_complete,
    is_finished,
    read_first_chunk,
)
from chatclient.providers.http.request import (
    RequestBody,
    RequestBuilder,
    Timeouts,
    as_timeouts,
    parse_base_url,
)
from chatclient.providers.http.retry import RetryPolicy, as_retry_policy, with_retries
from chatclient.runtime.cancellation import running_loop
from chatclient.runtime.observation import wire_listener
from chatclient.runtime.runtime import Runtime, deadline_error, is_expired

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """A successful response: headers with lower-case names, and the complete body."""

    headers: Headers
    body: bytes


class _OpenResponse(NamedTuple):
    """A successful response whose body has not been read."""

    response: Any
    shard: Shard | None
    headers: Headers
    request: Any


class _StartedStream(NamedTuple):
    """A stream that has been read up to its first content."""

    cleanup: AsyncExitStack
    error_types: tuple[type[Exception], ...]
    reader: Reader
    pieces: AsyncGenerator[bytes, None]
    first: Iterator[Chunk]
    is_complete: bool


_TRAILING_SECONDS = 3.0  # for metadata after a complete answer, such as usage


class HttpClient:
    """HTTP client for one provider, for blocking and asynchronous requests.

    Safe to share between threads and event loops: blocking requests share one pool, each loop
    has its own. Nothing is opened before the first request.

    Args:
        provider: The provider's name, for errors.
        base_url: URL that paths are appended to. Credentials in it are sent as Basic authorization
            unless that header is set, and never shown; its query is added to each request.
        headers: The headers of each request, or a function that returns them.
        timeouts: Seconds to wait for a response, or `Timeouts`.
        retry: Maximum number of retries, or a `RetryPolicy`.
        http_client: A blocking or asynchronous client of httpx or httpx2, which the application
            closes; or `Connections`. Time-outs set on a client override *timeouts*, except
            `total`.
        idempotent: Whether requests contain an idempotency key, the same for all attempts.
        limits: What the server may send.
        sign: Returns headers that depend on URL and body, such as a signature.

    Raises:
        UsageError: *base_url* is not an HTTP URL, or a time-out or number of retries is invalid.
    """

    def __init__(
        self,
        provider: str,
        base_url: str,
        headers: HeaderSource,
        timeouts: float | Timeouts | None = 600.0,
        retry: int | RetryPolicy = 2,
        http_client: Any = None,
        *,
        idempotent: bool = False,
        limits: ResponseLimits = LIMITS,
        sign: Signer | None = None,
    ) -> None:
        check_type("limits", limits, ResponseLimits)
        parsed = parse_base_url(base_url)
        self.provider = provider
        self.base_url = parsed.url
        if not callable(headers):
            headers = SecretHeaders({name.lower(): value for name, value in headers.items()})
        self.headers = headers
        self.timeouts = as_timeouts(timeouts)
        self.retry = as_retry_policy(retry)
        self.idempotent = idempotent
        self._sign = sign
        settings = http_client if isinstance(http_client, Connections) else None
        self._own = http_client if settings is None else None
        self._pools = Pools(self.base_url, settings or Connections())
        self._errors = TransportErrors(provider, self.base_url)
        own = self._own is not None
        self._requests = RequestBuilder(parsed, self.timeouts, own=own)
        self.limits = limits
        self._bodies = BodyReader(provider, limits, own=own)

    async def post(
        self,
        runtime: Runtime,
        path: str,
        body: bytes,
        decode: Callable[[HttpAnswer], T],
        headers: Headers = EMPTY,
    ) -> T:
        """Send JSON and return the decoded response.

        Args:
            runtime: The runtime of the request.
            path: Path to append to the base URL.
            body: The JSON.
            decode: Decodes the response of an attempt. A `ProviderError` that it raises, such as
                for an error reported with status 200, is retried like any other.
            headers: Additional headers of this request.

        Raises:
            ProviderError: The last attempt failed.
            DeadlineExceededError: The request's deadline has passed.
        """
        return await self._request(*self._prepare(runtime, path, body, headers), decode)

    async def get(self, runtime: Runtime, path: str, decode: Callable[[HttpAnswer], T]) -> T:
        """Send a GET request and return the decoded response; otherwise like `post`."""
        runtime, request_body = self._prepare(runtime, path, b"", EMPTY)
        return await self._request(runtime, request_body._replace(method="GET"), decode)

    async def _request(
        self, runtime: Runtime, request_body: RequestBody, decode: Callable[[HttpAnswer], T]
    ) -> T:
        async def attempt() -> T:
            opened = await self._open(runtime, request_body)
            with Redacting(opened.request):
                try:
                    content = await self._bodies.read(
                        opened.response, opened.headers, runtime, "answer_bytes"
                    )
                except self._errors.error_types(opened.response) as error:
                    raise self._errors.convert(error) from safe_cause(error)
                finally:
                    await self._release(opened.response, opened.shard, runtime)
                if (notify := wire_listener("received")) is not None:
                    notify(content)
                decoded = decode(HttpAnswer(opened.headers, content))
                if isinstance(decoded, ChatResponse):
                    CallCounter(self.limits, self.provider).add(decoded)
                return decoded

        with WithoutLocals(), self._total_timeout(runtime):
            return await with_retries(attempt, self.retry, runtime, self.provider)

    async def stream(
        self,
        runtime: Runtime,
        path: str,
        body: bytes,
        read: Callable[[Headers], Reader],
        headers: Headers = EMPTY,
    ) -> AsyncGenerator[Chunk, None]:
        """Send JSON and yield the chunks of the response. Closing the generator disconnects.

        Args:
            runtime: The runtime of the request.
            path: Path to append to the base URL.
            body: The JSON.
            read: Returns a reader for a response with these headers; called for each attempt.
            headers: Additional headers of this request.

        Raises:
            ProviderError: As with `post`. Errors are retried until the first content, including
                those reported inside the stream.
            StreamInterruptedError: The connection broke, or a read timed out, inside the answer.
        """
        runtime, request_body = self._prepare(runtime, path, body, headers)
        attempt = partial(self._start_stream, runtime, request_body, read)
        with WithoutLocals(), self._total_timeout(runtime):
            started = await with_retries(attempt, self.retry, runtime, self.provider)
            async with started.cleanup:
                calls = CallCounter(self.limits, self.provider)
                for chunk in calls.count(started.first):
                    yield chunk
                if started.is_complete:
                    return
                reader, feed = started.reader, started.reader.feed
                try:
                    while (
                        not is_complete(reader)
                        and (piece := await anext(started.pieces, None)) is not None
                    ):
                        for chunk in calls.count(feed(piece)):
                            yield chunk
                    end = time.monotonic() + _TRAILING_SECONDS
                    while (piece := await trailing_piece(started.pieces, end, runtime)) is not None:
                        for chunk in feed(piece):
                            yield chunk
                except started.error_types:
                    # Some proxies abort the connection after the answer.
                    if not is_finished(reader):
                        raise
                for chunk in calls.count(reader.finish()):
                    yield chunk

    def close(self) -> None:
        """Close the connections of blocking requests."""
        self._pools.close()

    async def aclose(self) -> None:
        """Close the connections of blocking requests and of this event loop."""
        await self._pools.aclose()

    def _total_timeout(self, runtime: Runtime) -> AbstractContextManager[None]:
        """Return a context that converts a time-out which is due to `Timeouts.total`."""
        return _UNLIMITED if self.timeouts.total is None else _with_total_timeout(runtime)

    def _prepare(
        self, runtime: Runtime, path: str, body: bytes, headers: Headers
    ) -> tuple[Runtime, RequestBody]:
        if self.timeouts.total is not None:
            runtime = runtime.with_deadline(self.timeouts.total)
        if (notify := wire_listener("sent")) is not None:
            notify(body)  # once per request, whatever the number of attempts
        key = os.urandom(16).hex() if self.idempotent else None
        return runtime, RequestBody(path, body, headers, key)

    async def _start_stream(
        self, runtime: Runtime, body: RequestBody, read: Callable[[Headers], Reader]
    ) -> _StartedStream:
        async with AsyncExitStack() as stack:
            opened = await self._open(runtime, body)
            stack.push_async_callback(self._release, opened.response, opened.shard, runtime)
            stack.enter_context(Redacting(opened.request))
            stack.enter_context(self._errors.as_interruption(opened.response))
            pieces = self._bodies.stream(opened.response, opened.headers, runtime, "stream_bytes")
            await stack.enter_async_context(aclosing(pieces))
            plain_reader = read(opened.headers)
            if (set_limits := getattr(plain_reader, "set_limits", None)) is not None:
                set_limits(self.limits)
            reader = SurrogateJoiner(plain_reader)
            first, is_end = await read_first_chunk(reader, pieces)
            error_types = self._errors.stream_error_types(opened.response)
            return _StartedStream(stack.pop_all(), error_types, reader, pieces, first, is_end)

    async def _open(self, runtime: Runtime, body: RequestBody) -> _OpenResponse:
        """Send a request and return its response when the headers have arrived."""
        self._check_deadline(runtime)
        client, shard = await self._client_for(runtime)
        if shard is not None:
            # Before the first wait, so that concurrent requests choose other shards.
            shard.busy += 1
        request: Any = None
        response: Any = None
        try:
            source = self.headers
            headers = await source(runtime) if callable(source) else source
            if self._sign is not None:
                url = self._requests.url_of(body.path)
                signed = await self._sign(runtime, url, body.content)
                headers = SecretHeaders({**headers, **signed})
            self._check_deadline(runtime)  # again, because the key function may be slow
            request = self._requests.build(client, body, headers, runtime)
            if self._own is not None:
                # A redirect would send the key to another server.
                sent = client.send(request, stream=True, follow_redirects=False)
            elif runtime.blocking:
                sent = client.handle_request(request)
            else:
                sent = client.handle_async_request(request)
            response = sent if runtime.blocking else await shielded_send(sent, request)
            is_error = not response.is_success
            self._requests.apply_read_timeout(client, request, runtime, is_error=is_error)
            if not is_error:
                received = self._bodies.check_encoding(response, request)
                return _OpenResponse(response, shard, received, request)
            content = b""
            # If the body cannot be read, the error is built from status and headers.
            with suppress(ProviderError, *self._errors.error_types(response)):
                encoded = self._bodies.check_encoding(response, request)
                content = await self._bodies.read(response, encoded, runtime, "error_bytes")
            headers = received_headers(response.headers)
            url = str(request.url.copy_with(username=None, password=None, query=None))
            failure = error_from_body(self.provider, response.status_code, headers, content, url)
            redact_from(failure, request)
        except BaseException as error:
            await self._release(response, shard, runtime)
            if isinstance(error, self._errors.error_types(client)):
                with Redacting(request):
                    raise self._errors.convert(error) from safe_cause(error)
            raise
        await self._release(response, shard, runtime)
        raise failure

    def _check_deadline(self, runtime: Runtime) -> None:
        if runtime.remaining():
            return
        msg = f"the deadline passed before {self.provider} could be asked"
        raise DeadlineExceededError(msg)

    async def _release(self, response: Any, shard: Shard | None, runtime: Runtime) -> None:
        if shard is not None:
            shard.release()
        if response is not None:
            response.close() if runtime.blocking else await response.aclose()

    async def _client_for(self, runtime: Runtime) -> "tuple[Any, Shard | None]":
        if self._own is not None:
            library = library_of(self._own)
            if not runtime.blocking:
                running_loop()  # fails under trio, which the clients support
            kind = library.Client if runtime.blocking else library.AsyncClient
            if not isinstance(self._own, kind):
                wanted = f"{library.__name__}.{kind.__name__}"
                modes = "call() and stream()" if runtime.blocking else "acall() and astream()"
                msg = f"{modes} need http_client= to be a {wanted}"
                raise UsageError(msg)
            return self._own, None
        if runtime.blocking:
            return self._pools.blocking(), None
        shard = await self._pools.on_loop()
        return shard.transport, shard


_UNLIMITED = nullcontext()


@contextmanager
def _with_total_timeout(runtime: Runtime) -> Generator[None, None, None]:
    try:
        yield
    except (RequestTimeoutError, StreamInterruptedError) as error:
        if not is_expired(runtime):
            raise
        raise deadline_error(error) from error
