"""HTTP for all providers: requests, retries, time-outs, errors.

The only module that sends anything, over httpx or its successor httpx2 (same interface, far
cheaper under concurrency); and, beside the runtime, the only one that knows whether a request
blocks.
"""

import os
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

import anyio

from chatclient.closing import Closeable
from chatclient.errors import (
    DeadlineExceededError,
    InvalidResponseError,
    ProviderError,
    RequestTimeoutError,
    UsageError,
)
from chatclient.observation import present_listener
from chatclient.providers.addresses import address_of
from chatclient.providers.characters import WholeCharacters
from chatclient.providers.connections import Connections, Pools, Shard, http_library, library_of
from chatclient.providers.failures import error_of
from chatclient.providers.first_word import begun_by
from chatclient.providers.keys import Headers, HeaderSource
from chatclient.providers.outgoing import Outgoing, Requests
from chatclient.providers.reading import Chunk, Reader, is_complete, is_over
from chatclient.providers.retries import RetryPolicy, as_retry_policy, with_retries
from chatclient.providers.secrecy import hide, hiding
from chatclient.providers.timeouts import Timeouts, as_timeouts
from chatclient.providers.transport_failures import TransportFailures, shown_cause
from chatclient.runtime import Runtime
from chatclient.values import EMPTY

__all__ = [
    "Connections",
    "Headers",
    "HttpAnswer",
    "HttpClient",
    "OverHttp",
    "Reader",
    "RetryPolicy",
    "Timeouts",
    "as_retry_policy",
    "as_timeouts",
    "http_library",
]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """A whole answer: status 2xx, headers with lower-case names, and the body."""

    headers: Headers
    body: bytes


class _Begun(NamedTuple):
    """An answer of which only the headers have been read."""

    response: Any
    shard: Shard | None
    headers: Headers
    request: Any


class _Speaking(NamedTuple):
    """A streamed answer that has said something."""

    until_hung_up: AsyncExitStack
    breaks: tuple[type[Exception], ...]
    reader: Reader
    pieces: AsyncGenerator[bytes, None]
    first: Iterator[Chunk]
    is_all: bool


# So that a server gone wild cannot fill the memory; vectors of 2,000 texts have room.
_LARGEST_ANSWER = 256 * 2**20
_LARGEST_REFUSAL = 2**20
_LAST_SECONDS = 3.0  # for what may follow a complete answer, such as what it has cost


class HttpClient:
    """Sends requests to one provider, blocking or not, and keeps the connections.

    Safe to share between threads and event loops: blocking requests share one pool, each loop
    has its own. Nothing is opened before the first request.

    Args:
        provider: Whose errors these are.
        base_url: What paths are appended to. A user and password in it are sent as Basic
            authorization, where no such header is set, and shown nowhere; a query goes with every
            path.
        headers: The headers of each request, or what gives them.
        timeouts: How long to wait: seconds for an answer, or `Timeouts`.
        retry: When to ask again: how often at most, or a `RetryPolicy`.
        http_client: A client of the application's own, blocking or asynchronous, which is then
            used as it is, and not closed here; or how to connect, as `Connections`. The time-outs
            of a client that sets some go before *timeouts*, but for the one in total.
        idempotent: Whether each request names a key, the same one at every attempt.

    Raises:
        UsageError: *base_url* does not begin with http:// or https://, or a time or a number of
            retries makes no sense.
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
    ) -> None:
        address = address_of(base_url)
        self.provider = provider
        self.base_url = address.url
        if not callable(headers):
            headers = {name.lower(): value for name, value in headers.items()}
        self.headers = headers
        self.timeouts = as_timeouts(timeouts)
        self.retry = as_retry_policy(retry)
        self.idempotent = idempotent
        settings = http_client if isinstance(http_client, Connections) else None
        self._own = http_client if settings is None else None
        self._pools = Pools(self.base_url, settings or Connections())
        self._failures = TransportFailures(provider, self.base_url)
        self._requests = Requests(address, self.timeouts, own=self._own is not None)

    async def post(
        self,
        runtime: Runtime,
        path: str,
        body: bytes,
        decode: Callable[[HttpAnswer], T],
        headers: Headers = EMPTY,
    ) -> T:
        """Send JSON and return what the whole answer spells.

        Args:
            runtime: How the request runs.
            path: What follows the base URL.
            body: The JSON.
            decode: Reads the answer of each attempt. Some answers succeed and say that they
                failed: raised from here, such an error is retried like any other.
            headers: More headers, for this request only.

        Raises:
            ProviderError: There was none, or a refusal; retries have been made.
            DeadlineExceededError: The request's deadline has passed.
        """
        runtime, outgoing = self._begin(runtime, path, body, headers)

        async def attempt() -> T:
            begun = await self._open(runtime, outgoing)
            with hiding(begun.request):
                try:
                    content = await self._whole(begun.response, runtime, _LARGEST_ANSWER)
                except self._failures.kinds(begun.response) as error:
                    raise self._failures.error_for(error) from shown_cause(error)
                finally:
                    await self._hang_up(begun.response, begun.shard, runtime)
                if (tell := present_listener("received")) is not None:
                    tell(content)
                return decode(HttpAnswer(begun.headers, content))

        return await with_retries(attempt, self.retry, runtime, self.provider)

    async def stream(
        self,
        runtime: Runtime,
        path: str,
        body: bytes,
        read: Callable[[Headers], Reader],
        headers: Headers = EMPTY,
    ) -> AsyncGenerator[Chunk, None]:
        """Send JSON, and yield what the answer spells as it comes. Closing the generator hangs up.

        Args:
            runtime: How the request runs.
            path: What follows the base URL.
            body: The JSON.
            read: Returns what reads an answer with such headers; asked for each attempt.
            headers: More headers, for this request only.

        Raises:
            ProviderError: As with `post`. Until something of the answer was said, a failure that
                passes is retried, one that the answer itself tells of among them.
            StreamInterruptedError: The connection broke, or went silent, before the answer's end.
        """
        runtime, outgoing = self._begin(runtime, path, body, headers)
        attempt = partial(self._speak, runtime, outgoing, read)
        speaking = await with_retries(attempt, self.retry, runtime, self.provider)
        async with speaking.until_hung_up:
            for chunk in speaking.first:
                yield chunk
            if speaking.is_all:
                return
            reader, feed = speaking.reader, speaking.reader.feed
            try:
                while (
                    not is_complete(reader)
                    and (piece := await anext(speaking.pieces, None)) is not None
                ):
                    for chunk in feed(piece):
                        yield chunk
                end = time.monotonic() + _LAST_SECONDS
                while (piece := await _last_piece(speaking.pieces, end, runtime)) is not None:
                    for chunk in feed(piece):
                        yield chunk
            except speaking.breaks:
                # Some proxies hang up when all is said.
                if not is_over(reader):
                    raise
            for chunk in reader.finish():
                yield chunk

    def close(self) -> None:
        """Close the connections of blocking requests."""
        self._pools.close()

    async def aclose(self) -> None:
        """Close the connections of blocking requests and of this event loop."""
        await self._pools.aclose()

    # --- one exchange ---

    def _begin(
        self, runtime: Runtime, path: str, body: bytes, headers: Headers
    ) -> tuple[Runtime, Outgoing]:
        if self.timeouts.total is not None:
            runtime = runtime.with_deadline(self.timeouts.total)
        if (tell := present_listener("sent")) is not None:
            tell(body)
        key = os.urandom(16).hex() if self.idempotent else None
        return runtime, Outgoing(path, body, headers, key)

    async def _speak(
        self, runtime: Runtime, outgoing: Outgoing, read: Callable[[Headers], Reader]
    ) -> _Speaking:
        async with AsyncExitStack() as stack:
            begun = await self._open(runtime, outgoing)
            stack.push_async_callback(self._hang_up, begun.response, begun.shard, runtime)
            stack.enter_context(hiding(begun.request))
            stack.enter_context(self._failures.interrupting(begun.response))
            pieces = self._pieces(begun.response, runtime)
            await stack.enter_async_context(aclosing(pieces))
            reader = WholeCharacters(read(begun.headers))
            first, is_all = await begun_by(reader, pieces)
            breaks = self._failures.breaks(begun.response)
            return _Speaking(stack.pop_all(), breaks, reader, pieces, first, is_all)

    async def _open(self, runtime: Runtime, outgoing: Outgoing) -> _Begun:
        """Send a request and return its answer, of which only the headers have been read."""
        self._check_time(runtime)
        client, shard = await self._client_for(runtime)
        if shard is not None:
            shard.busy += 1
        request: Any = None
        response: Any = None
        try:
            source = self.headers
            headers = await source(runtime) if callable(source) else source
            self._check_time(runtime)  # a key may be long in coming
            request = self._requests.to_send(client, outgoing, headers, runtime)
            if self._own is not None:
                # Wherever it led, the key would go along.
                sent = client.send(request, stream=True, follow_redirects=False)
            elif runtime.blocking:
                sent = client.handle_request(request)
            else:
                sent = client.handle_async_request(request)
            response = sent if runtime.blocking else await sent
            refused = not response.is_success
            self._requests.wait_for_the_rest(client, request, runtime, refused=refused)
            if not refused:
                return _Begun(response, shard, self._headers_of(response, request), request)
            refusal = await self._refusal(response, request, runtime)
        except BaseException as error:
            await self._hang_up(response, shard, runtime)
            if isinstance(error, self._failures.kinds(client)):
                with hiding(request):
                    raise self._failures.error_for(error) from shown_cause(error)
            raise
        await self._hang_up(response, shard, runtime)
        raise refusal

    def _check_time(self, runtime: Runtime) -> None:
        if runtime.remaining():
            return
        if self.timeouts.total is not None:  # another model may have more time
            msg = f"{self.provider} could not be asked in time"
            raise RequestTimeoutError(msg, provider=self.provider)
        msg = f"the deadline passed before {self.provider} could be asked"
        raise DeadlineExceededError(msg)

    async def _hang_up(self, response: Any, shard: Shard | None, runtime: Runtime) -> None:
        if shard is not None:
            shard.release()
        if response is not None:
            response.close() if runtime.blocking else await response.aclose()

    async def _client_for(self, runtime: Runtime) -> "tuple[Any, Shard | None]":
        if self._own is not None:
            return self._own_client(runtime), None
        if runtime.blocking:
            return self._pools.blocking(), None
        shard = await self._pools.on_loop()
        return shard.transport, shard

    def _own_client(self, runtime: Runtime) -> Any:
        library = library_of(self._own)
        kind = library.Client if runtime.blocking else library.AsyncClient
        if not isinstance(self._own, kind):
            wanted = f"{library.__name__}.{kind.__name__}"
            modes = "call() and stream()" if runtime.blocking else "acall() and astream()"
            msg = f"{modes} need http_client= to be a {wanted}"
            raise UsageError(msg)
        return self._own

    # --- answers ---

    def _headers_of(self, response: Any, request: Any) -> Headers:
        """Return an answer's headers, if its body is encoded in a way that was asked for.

        Raises:
            InvalidResponseError: It is not, and may not be readable here; or it is encoded twice,
                by which a few bytes could fill the memory at once.
        """
        received = _plain(response.headers)
        if "content-encoding" not in received:
            return received
        encodings = response.headers.get_list("content-encoding", split_commas=True)
        used = [name for each in encodings if (name := each.strip().lower()) != "identity"]
        asked = f"x-gzip, {request.headers.get('accept-encoding', '')}"
        wanted = {name.partition(";")[0].strip() for name in asked.split(",")}
        if len(used) <= 1 and wanted.issuperset(used):
            return received
        encoding = ", ".join(used)
        msg = f"{self.provider} answered in the encoding {encoding!r}, which was not asked for"
        raise InvalidResponseError(msg, provider=self.provider)

    async def _whole(self, response: Any, runtime: Runtime, limit: int) -> bytes:
        content: list[bytes] = []
        size = 0
        async with aclosing(self._pieces(response, runtime)) as pieces:
            async for piece in pieces:
                content.append(piece)
                size += len(piece)
                if size > limit:
                    msg = f"the answer of {self.provider} is larger than {limit:,} bytes"
                    raise InvalidResponseError(msg, provider=self.provider)
        return b"".join(content)

    async def _pieces(self, response: Any, runtime: Runtime) -> AsyncGenerator[bytes, None]:
        """Yield an answer's body as it comes.

        Raises:
            RequestTimeoutError: There is no time left for more.
        """
        # Clients of others may come with answers that are known from the beginning.
        decoded = self._own is not None or "content-encoding" in response.headers
        if runtime.blocking:
            for piece in response.iter_bytes() if decoded else response.iter_raw():
                self._keep_to_the_time(runtime)
                yield piece
        else:
            async for piece in response.aiter_bytes() if decoded else response.aiter_raw():
                self._keep_to_the_time(runtime)
                yield piece

    def _keep_to_the_time(self, runtime: Runtime) -> None:
        if runtime.deadline is not None and not runtime.remaining():
            msg = f"{self.provider} did not finish in time"
            raise RequestTimeoutError(msg, provider=self.provider)

    async def _refusal(self, response: Any, request: Any, runtime: Runtime) -> ProviderError:
        """Return the error for a refusal, with its reasons as far as they can be read."""
        content = b""
        # The status says the most; a body that cannot be read or never ends takes nothing from it.
        with suppress(ProviderError, *self._failures.kinds(response)):
            self._headers_of(response, request)
            content = await self._whole(response, runtime, _LARGEST_REFUSAL)
        headers = _plain(response.headers)
        refusal = error_of(self.provider, response.status_code, headers, content)
        hide(refusal, request)
        return refusal


async def _last_piece(
    pieces: AsyncGenerator[bytes, None], end: float, runtime: Runtime
) -> bytes | None:
    """Return another piece of an answer that is complete, or None when nothing comes before *end*.

    Some gateways leave the connection open when all is said, or go on with nothing but signs of
    life. A blocking request waits for the next of these signs, or for its read time-out.
    """
    left = end - time.monotonic()
    if left <= 0:
        return None
    if runtime.blocking:
        return await anext(pieces, None)
    with anyio.move_on_after(left):
        return await anext(pieces, None)
    return None


class _Named(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def address(self) -> str: ...


class OverHttp(Closeable):
    """A model that has its answers from `_http`; closing it closes the connections."""

    _http: HttpClient

    def __repr__(self: _Named) -> str:
        return f"{type(self).__name__}({self.name!r}, base_url={self.address!r})"

    @property
    def address(self) -> str:
        """The base URL of the server, without user and password."""
        return self._http.base_url

    def close(self) -> None:
        """Close the connections of blocking calls."""
        self._http.close()

    async def aclose(self) -> None:
        """Close the connections of blocking calls and of this event loop."""
        await self._http.aclose()


def _plain(headers: Any) -> Headers:
    """Return headers as a dict with lower-case names: theirs decodes at every look."""
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in headers.raw}
