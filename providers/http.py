"""HTTP for all providers: connections, time-outs, retries, errors.

The only module that knows an HTTP library: httpx, or its successor httpx2 (same interface, far
cheaper under concurrency) where that is installed. And, beside the runtime, the only one that
knows whether a request blocks: it picks the blocking or the asynchronous client.
"""

import asyncio
import importlib
import os
import ssl
import threading
import urllib.request
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import ModuleType
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import tenacity

from chatclient.errors import (
    ConnectionFailedError,
    DeadlineExceededError,
    InvalidResponseError,
    ProviderError,
    RequestTimeoutError,
    StreamInterruptedError,
    UsageError,
)
from chatclient.logs import get_logger
from chatclient.providers.failures import error_of
from chatclient.runtime import Runtime
from chatclient.values import EMPTY

log = get_logger(__name__)

T = TypeVar("T")
Headers = Mapping[str, str]
HeaderSource = Callable[[], Headers]
"""Gives the headers of a request; asked each time, for tokens that rotate."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long to wait, in seconds; None waits for ever.

    Attributes:
        connect: For a connection, and for a free place in the pool.
        read: For the answer to begin, and between any two of its chunks.
        write: For the network to take the next piece of the request.
    """

    connect: float | None = 5.0
    read: float | None = 600.0
    write: float | None = 600.0

    def within(self, seconds: float) -> dict[str, float | None]:
        """Return these as the HTTP library wants them, none longer than *seconds*."""
        connect, read, write = (
            min(value, seconds) if value is not None else _finite(seconds)
            for value in (self.connect, self.read, self.write)
        )
        return {"connect": connect, "read": read, "write": write, "pool": connect}


def _finite(seconds: float) -> float | None:
    return None if seconds == float("inf") else seconds


def as_timeouts(timeout: float | Timeouts | None) -> Timeouts:
    """Return *timeout* as `Timeouts`; a number bounds the wait for the answer, None nothing."""
    if isinstance(timeout, Timeouts):
        return timeout
    if timeout is None:
        return Timeouts(None, None, None)
    return Timeouts(min(5.0, timeout), timeout, timeout)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """When to ask again: after connection failures, 408, 409, 429 and 5xx.

    A wait that the provider asks for is kept, up to `longest_wait`; otherwise it doubles from
    `first_wait` on, with jitter. Once a byte of the answer has arrived, nothing is retried.

    Attributes:
        max_retries: How often to ask again.
        first_wait: Seconds before the first retry, at most.
        longest_wait: Seconds before any retry, at most.
    """

    max_retries: int = 2
    first_wait: float = 0.5
    longest_wait: float = 60.0


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """A whole answer: status 2xx, headers with lower-case names, and the body."""

    headers: Headers
    body: bytes


@dataclass(slots=True)
class _Shard:
    """One of several smaller pools: searching one big pool costs more than the request."""

    transport: Any
    busy: int = 0


class _LoopPools:
    """The pools of one event loop; they close with the loop."""

    def __init__(self) -> None:
        self.shards: list[_Shard] = []
        self._end = self._until_the_end()

    async def begin(self) -> None:
        """Tie the pools to the running loop.

        A loop that ends (`asyncio.run`) first ends the asynchronous generators begun on it, so
        one that waits to be ended is told when to hang up, while that is still possible.
        """
        await anext(self._end)

    async def _until_the_end(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            for shard in self.shards:
                await shard.transport.aclose()

    async def aclose(self) -> None:
        """Close all connections."""
        await self._end.aclose()


_SHARDS = 64
_PER_SHARD = 4  # requests at once before the next pool is opened
_CONNECTIONS = 1000
_KEEPALIVE_SECONDS = 30.0
_HEADERS = {
    "accept": "*/*",
    "accept-encoding": "gzip, deflate",
    "content-type": "application/json",
    "user-agent": "chatclient",
}


@cache
def _library(name: str) -> ModuleType:
    return importlib.import_module(name)


def http_library() -> ModuleType:
    """Return the HTTP library in use.

    That is httpx2 where it is installed, else httpx. The environment's `CHATCLIENT_HTTP` decides
    otherwise: `httpx`, `httpx2`, or `aiohttp` for httpx over aiohttp's connections, which carry
    the most requests (extra `aiohttp`; blocking requests then go over httpx).

    Raises:
        UsageError: The environment names something else.
    """
    name = os.environ.get("CHATCLIENT_HTTP")
    if name is None:
        try:
            return _library("httpx2")
        except ImportError:
            return _library("httpx")
    if name not in _LIBRARIES:
        msg = f"CHATCLIENT_HTTP is {name!r}; it can be {', '.join(_LIBRARIES)}"
        raise UsageError(msg)
    return _library(_LIBRARIES[name])


_LIBRARIES = {"httpx": "httpx", "httpx2": "httpx2", "aiohttp": "httpx"}


def _transport_kind(library: ModuleType, *, blocking: bool) -> Any:
    if blocking:
        return library.HTTPTransport
    if os.environ.get("CHATCLIENT_HTTP") == "aiohttp":
        return _library("httpx_aiohttp").AiohttpTransport
    return library.AsyncHTTPTransport


@cache
def _tls(library: ModuleType) -> ssl.SSLContext:
    # One for all clients: loading the certificates takes longer than twenty requests.
    context: ssl.SSLContext = library.create_ssl_context()
    return context


@dataclass(eq=False)
class HttpClient:
    """Sends requests to one provider, blocking or not, and keeps the connections.

    Safe to share between threads and event loops: blocking requests share one pool, each loop
    has its own. Nothing is opened before the first request.

    Attributes:
        provider: Whose errors these are.
        base_url: What paths are appended to.
        headers: Gives the headers of each request.
        timeouts: How long to wait.
        retry: When to ask again.
        http_client: A client of the application's own, blocking or asynchronous, which is then
            used as it is, and not closed here.
    """

    provider: str
    base_url: str
    headers: HeaderSource = field(repr=False)
    timeouts: Timeouts = Timeouts()
    retry: RetryPolicy = RetryPolicy()
    http_client: Any = None

    def __post_init__(self) -> None:
        self.base_url = self.base_url.rstrip("/")
        if not self.base_url.startswith(("http://", "https://")):
            msg = f"base_url has to begin with http:// or https://, not {self.base_url!r}"
            raise UsageError(msg)
        self._lock = threading.Lock()
        # Per path what all requests share: library, headers, URL, headers in bytes.
        self._known: dict[str, tuple[ModuleType, Headers, Any, list[tuple[bytes, bytes]]]] = {}
        self._blocking: Any = None
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopPools] = WeakKeyDictionary()

    async def post(
        self, runtime: Runtime, path: str, body: bytes, headers: Headers = EMPTY
    ) -> HttpAnswer:
        """Send JSON and return the whole answer.

        Args:
            runtime: How the request runs.
            path: What follows the base URL.
            body: The JSON.
            headers: More headers, for this request only.

        Raises:
            ProviderError: There was none, or a refusal; retries have been made.
            DeadlineExceededError: The request's deadline has passed.
        """

        async def attempt() -> HttpAnswer:
            response, shard = await self._open(runtime, path, body, headers)
            try:
                content = response.read() if runtime.blocking else await response.aread()
            except self._failures(response) as error:
                raise self._translated(error) from error
            finally:
                await self._hang_up(response, shard, runtime)
            return HttpAnswer(_plain(response.headers), content)

        return await self._with_retries(runtime, attempt)

    async def stream(
        self, runtime: Runtime, path: str, body: bytes, headers: Headers = EMPTY
    ) -> "AsyncGenerator[HttpAnswer, None]":
        """Send JSON and yield the answer piece by piece, each with the headers.

        The first piece is empty and comes with the headers. Close the generator (`aclosing`) to
        hang up.

        Raises:
            ProviderError: As with `post`; once the headers are there, nothing is retried.
            StreamInterruptedError: The connection broke, or went silent, in the middle.
        """
        response, shard = await self._with_retries(
            runtime, lambda: self._open(runtime, path, body, headers)
        )
        received = _plain(response.headers)
        encoded = "content-encoding" in received
        try:
            yield HttpAnswer(received, b"")
            if runtime.blocking:
                for chunk in response.iter_bytes() if encoded else response.iter_raw():
                    yield HttpAnswer(received, chunk)
            else:
                async for chunk in response.aiter_bytes() if encoded else response.aiter_raw():
                    yield HttpAnswer(received, chunk)
        except self._failures(response) as error:
            cause = self._translated(error)
            msg = f"the stream broke before its end: {cause}"
            raise StreamInterruptedError(msg, provider=self.provider) from error
        finally:
            await self._hang_up(response, shard, runtime)

    def close(self) -> None:
        """Close the connections of blocking requests."""
        with self._lock:
            transport, self._blocking = self._blocking, None
        if transport is not None:
            transport.close()

    async def aclose(self) -> None:
        """Close the connections of blocking requests and of this event loop."""
        with self._lock:
            pools = self._loops.pop(asyncio.get_running_loop(), None)
        if pools is not None:
            await pools.aclose()
        self.close()

    # --- one exchange ---

    async def _open(
        self, runtime: Runtime, path: str, body: bytes, headers: Headers
    ) -> "tuple[Any, _Shard | None]":
        """Send a request and return its answer, of which only the headers have been read."""
        if not runtime.remaining():
            msg = f"the deadline passed before {self.provider} could be asked"
            raise DeadlineExceededError(msg)
        client, shard = await self._client_for(runtime)
        if shard is not None:
            shard.busy += 1
        response: Any = None
        try:
            request = self._request(client, path, body, headers, runtime)
            if self.http_client is not None:
                sent = client.send(request, stream=True)
            elif runtime.blocking:
                sent = client.handle_request(request)
            else:
                sent = client.handle_async_request(request)
            response = sent if runtime.blocking else await sent
            if response.is_success:
                return response, shard
            content = response.read() if runtime.blocking else await response.aread()
        except BaseException as error:
            await self._hang_up(response, shard, runtime)
            if isinstance(error, self._failures(client)):
                raise self._translated(error) from error
            raise
        await self._hang_up(response, shard, runtime)
        raise error_of(self.provider, response.status_code, _plain(response.headers), content)

    async def _hang_up(self, response: Any, shard: _Shard | None, runtime: Runtime) -> None:
        if shard is not None:
            shard.busy -= 1
        if response is not None:
            response.close() if runtime.blocking else await response.aclose()

    def _request(
        self, client: Any, path: str, body: bytes, headers: Headers, runtime: Runtime
    ) -> Any:
        library = _library_of(client)
        more = {**self.headers(), **headers}
        if self.http_client is not None:
            # Through its own builder: it may have headers, cookies and time-outs of its own.
            named = {**_HEADERS, **more}
            return client.build_request("POST", self.base_url + path, content=body, headers=named)
        known = self._known.get(path)
        if known is None or known[0] is not library or known[1] != more:
            url = library.URL(self.base_url + path)
            named = {"host": url.netloc.decode(), **_HEADERS, **more}
            raw = [(name.encode("ascii"), value.encode()) for name, value in named.items()]
            known = self._known[path] = (library, more, url, raw)
        _, _, url, raw = known
        sent = library.Headers([*raw, (b"content-length", b"%d" % len(body))])
        timeout = self.timeouts.within(runtime.remaining())
        # With a stream in place of content the library adds no headers: they are complete.
        stream = library.ByteStream(body)
        extensions = {"timeout": timeout}
        request = library.Request("POST", url, headers=sent, stream=stream, extensions=extensions)
        request.read()  # there is nothing to wait for, and transports may ask for the content
        return request

    # --- clients ---

    async def _client_for(self, runtime: Runtime) -> "tuple[Any, _Shard | None]":
        if self.http_client is not None:
            return self._own_client(runtime), None
        if runtime.blocking:
            return self._blocking or self._open_blocking(), None
        loop = asyncio.get_running_loop()
        pools = self._loops.get(loop)
        if pools is None:
            pools = self._loops[loop] = _LoopPools()
            await pools.begin()
        shards = pools.shards
        for shard in shards:
            if shard.busy < _PER_SHARD:
                return shard.transport, shard
        if len(shards) < _SHARDS:
            shards.append(_Shard(self._new_transport(blocking=False)))
            return shards[-1].transport, shards[-1]
        shard = min(shards, key=lambda shard: shard.busy)
        return shard.transport, shard

    def _own_client(self, runtime: Runtime) -> Any:
        library = _library_of(self.http_client)
        kind = library.Client if runtime.blocking else library.AsyncClient
        if not isinstance(self.http_client, kind):
            wanted = f"{library.__name__}.{kind.__name__}"
            modes = "call() and stream()" if runtime.blocking else "acall() and astream()"
            msg = f"{modes} need http_client= to be a {wanted}"
            raise UsageError(msg)
        return self.http_client

    def _open_blocking(self) -> Any:
        with self._lock:
            if self._blocking is None:
                self._blocking = self._new_transport(blocking=True)
            return self._blocking

    def _new_transport(self, *, blocking: bool) -> Any:
        """Return connections without a client on top: redirects, cookies and the like are not ours.

        Leaving out the client saves a tenth of what a request costs.
        """
        library = http_library()
        # As many connections may idle as may exist: httpx's blocking pool loses requests when it
        # has to close idle ones under load.
        limits = library.Limits(
            max_connections=_CONNECTIONS,
            max_keepalive_connections=_CONNECTIONS,
            keepalive_expiry=_KEEPALIVE_SECONDS,
        )
        secure = self.base_url.startswith("https://")
        address = library.URL(self.base_url)
        proxy = _proxy_for(address)
        return _transport_kind(library, blocking=blocking)(
            limits=limits,
            verify=_tls(library) if secure else False,
            proxy=library.Proxy(proxy) if proxy else None,
        )

    # --- failures ---

    def _failures(self, where: Any) -> "tuple[type[Exception], ...]":
        library = _library_of(where)
        return (library.HTTPError, library.InvalidURL, library.StreamError)

    def _translated(self, error: BaseException) -> ProviderError:
        names = {kind.__name__ for kind in type(error).__mro__}
        text = str(error) or type(error).__name__
        if "TimeoutException" in names:
            msg = f"{self.provider} did not answer in time ({type(error).__name__})"
            return RequestTimeoutError(msg, provider=self.provider)
        if "TransportError" in names:
            msg = f"cannot talk to {self.provider} at {self.base_url}: {text}"
            return ConnectionFailedError(msg, provider=self.provider)
        msg = f"the answer of {self.provider} cannot be read: {text}"
        return InvalidResponseError(msg, provider=self.provider)

    async def _with_retries(
        self, runtime: Runtime, attempt: "Callable[[], Coroutine[Any, Any, T]]"
    ) -> T:
        try:
            return await attempt()
        except ProviderError as error:
            if not error.retryable or not self.retry.max_retries:
                raise
            first: ProviderError | None = error

        async def again() -> T:
            # The first failure is replayed into tenacity, which is only called upon when there
            # is one: asking it beforehand would cost every request.
            nonlocal first
            if first is not None:
                failed, first = first, None
                raise failed
            return await attempt()

        return await self._retrying(runtime)(again)

    def _retrying(self, runtime: Runtime) -> tenacity.AsyncRetrying:
        policy = self.retry
        backoff = tenacity.wait_random_exponential(policy.first_wait, policy.longest_wait)

        def wait(state: tenacity.RetryCallState) -> float:
            asked = getattr(_error_in(state), "retry_after", None)
            return backoff(state) if asked is None else min(asked, policy.longest_wait)

        enough = tenacity.stop_after_attempt(policy.max_retries + 1)

        def log_retry(state: tenacity.RetryCallState) -> None:
            error = repr(_error_in(state))
            log.info("retry", provider=self.provider, error=error, wait=state.upcoming_sleep)

        return tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception(lambda error: getattr(error, "retryable", False)),
            stop=lambda state: enough(state) or state.upcoming_sleep >= runtime.remaining(),
            wait=wait,
            before_sleep=log_retry,
            sleep=runtime.sleep,
            reraise=True,
        )


def _error_in(state: tenacity.RetryCallState) -> BaseException | None:
    return state.outcome.exception() if state.outcome is not None else None


def _plain(headers: Any) -> Headers:
    """Return headers as a dict with lower-case names: theirs decodes at every look."""
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in headers.raw}


def _proxy_for(url: Any) -> str | None:
    """Return the proxy that the environment names for *url*, if any."""
    proxies = urllib.request.getproxies()
    if not proxies or urllib.request.proxy_bypass(url.host):
        return None
    return proxies.get(url.scheme) or proxies.get("all")


def _library_of(thing: Any) -> ModuleType:
    """Return the HTTP library that a client or response belongs to, whatever its subclass."""
    for kind in type(thing).__mro__:
        root = kind.__module__.partition(".")[0]
        if root in ("httpx", "httpx2"):
            return _library(root)
    msg = f"http_client= takes a client of httpx or httpx2, not {thing!r}"
    raise UsageError(msg)
