"""HTTP library, connection pools, proxies, TLS and HTTP/2."""

import asyncio
import importlib
import ipaddress
import os
import socket
import ssl
import sys
import threading
import time
import urllib.request
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from types import ModuleType
from typing import Any
from weakref import finalize

import anyio.to_thread

from chatclient._internal.extras import needed_by
from chatclient.errors import MissingExtraError, UsageError
from chatclient.runtime.cancellation import run_shielded, running_loop
from chatclient.runtime.threads import keep, register_after_fork


@dataclass(frozen=True, slots=True)
class Connections:
    """Connection settings; pass them as `http_client=`.

    Attributes:
        proxy: URL of a proxy, with credentials if required; empty for no proxy. None reads the
            environment (`HTTPS_PROXY`, `ALL_PROXY`, `NO_PROXY`, …), which never applies to servers
            on this machine. `socks5://` needs the extra `socks`.
        http2: Whether to use HTTP/2 if the server supports it (extra `http2`).
        tls: TLS settings, such as a private certificate authority; None for the default.
    """

    proxy: str | None = field(default=None, repr=False)
    http2: bool = False
    tls: ssl.SSLContext | None = None


_LIBRARIES = {"httpx": "httpx", "httpx2": "httpx2", "aiohttp": "httpx"}


@cache
def _library(name: str) -> ModuleType:
    return importlib.import_module(name)


def http_library() -> ModuleType:
    """Return the HTTP library to use: httpx2 if it is installed, else httpx.

    The environment variable `CHATCLIENT_HTTP` overrides this: `httpx`, `httpx2`, or `aiohttp` for
    httpx over aiohttp's transport, which has the highest throughput (extra `aiohttp`; blocking
    requests then use httpx).

    Raises:
        UsageError: The variable has another value, or the library is not installed.
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
    with needed_by(f"CHATCLIENT_HTTP={name}"):
        return _library(_LIBRARIES[name])


def library_of(thing: Any) -> ModuleType:
    """Return the HTTP library whose class *thing* is an instance of."""
    for kind in type(thing).__mro__:
        root = kind.__module__.partition(".")[0]
        if root in ("httpx", "httpx2"):
            return _library(root)
    msg = f"http_client= takes a client of httpx or httpx2, or Connections, not {thing!r}"
    raise UsageError(msg)


def aiohttp_errors() -> tuple[type[Exception], ...]:
    """Return the errors that aiohttp's transport does not convert to httpx errors, if loaded."""
    # The attribute is missing while another thread imports the module.
    error_type = getattr(sys.modules.get("aiohttp"), "ClientError", None)
    return () if error_type is None else (error_type,)


@cache
def _tls(library: ModuleType, *, http2: bool) -> ssl.SSLContext:
    # Shared, because loading certificates takes longer than twenty requests. One per protocol,
    # because httpx stores the ALPN protocols in the context.
    del http2
    try:
        context: ssl.SSLContext = library.create_ssl_context()
    except OSError as error:  # does not contain the file name
        msg = f"cannot load the TLS certificates: {error}; check SSL_CERT_FILE and SSL_CERT_DIR"
        raise UsageError(msg) from error
    return context


_SHARDS = 64
_PER_SHARD = 4  # concurrent requests before the next pool is opened
_PER_HTTP2_SHARD = 64  # they share a connection; servers usually allow 100 streams
_CONNECTIONS = 1000
_KEEPALIVE_SECONDS = 30.0

# TCP keep-alive: routers and load balancers drop connections that are idle while a model thinks,
# and only probes detect a peer that is gone.
_PROBES = (("TCP_KEEPIDLE", 60), ("TCP_KEEPALIVE", 60), ("TCP_KEEPINTVL", 60), ("TCP_KEEPCNT", 5))
_SOCKET_OPTIONS = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in _PROBES
        if hasattr(socket, name)  # platform-dependent
    ),
]


@dataclass(slots=True, eq=False)
class Shard:
    """One of several small pools; the search in one large pool would cost more than a request."""

    transport: Any
    busy: int = 0
    idle_since: float = 0.0

    def release(self) -> None:
        """Mark one request as finished."""
        self.busy -= 1
        self.idle_since = time.monotonic()


class _LoopPools:
    """The pools of one event loop; when the loop shuts down, they close and leave *all_pools*."""

    def __init__(self, all_pools: "_PoolsByLoop") -> None:
        self.shards: list[Shard] = []
        self.next_cleanup = 0.0
        self.preparation = asyncio.Lock()  # one thread prepares for all first requests
        self._all_pools = all_pools
        self._closer = self._close_on_shutdown()

    async def attach(self) -> None:
        """Attach the pools to the running loop.

        `asyncio.run` closes the async generators started on a loop before it closes the loop. The
        `finally` block of a suspended generator therefore runs while connections can be closed.
        """
        await anext(self._closer)

    async def _close_on_shutdown(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            # Without this, the reference cycle through the loop's generator hook would keep the
            # closed loop alive.
            self._all_pools.pop(asyncio.get_running_loop(), None)
            for shard in self.shards:
                await shard.transport.aclose()

    async def close_idle(self) -> None:
        """Close pools that are unused since a load peak.

        A pool closes its idle connections only when it is used, and the first pools are preferred.
        """
        now = time.monotonic()
        self.next_cleanup = now + _KEEPALIVE_SECONDS
        for shard in self.shards[1:]:
            is_idle = not shard.busy and shard.idle_since + _KEEPALIVE_SECONDS <= now
            if is_idle and shard in self.shards:  # not closed by a concurrent call
                self.shards.remove(shard)
                # Shielded: no list has the shard any more, so nothing else would close it.
                await run_shielded(shard.transport.aclose())

    async def aclose(self) -> None:
        """Close all connections."""
        await self._closer.aclose()


_PoolsByLoop = dict[asyncio.AbstractEventLoop, _LoopPools]


class Pools:
    """Connection pools for one server: one for blocking requests, others per event loop.

    Nothing is opened before the first request.
    """

    def __init__(self, base_url: str, settings: Connections) -> None:
        self._base_url = base_url
        self._settings = settings
        self._per_shard = _PER_HTTP2_SHARD if settings.http2 else _PER_SHARD
        self._lock = threading.Lock()
        self._prepared = False
        self._blocking: Any = None
        self._finalizer: finalize[..., Pools] | None = None
        self._loops: _PoolsByLoop = {}

    def blocking(self) -> Any:
        """Return the transport of blocking requests."""
        return self._blocking or self._open_blocking()

    async def on_loop(self) -> Shard:
        """Return a shard of the running loop with free capacity, or the least busy one."""
        loop = running_loop()
        pools = self._loops.get(loop)
        if pools is None:
            self._remove_closed_loops()
            # Stored before the first wait, so that concurrent requests share the pools.
            pools = self._loops[loop] = _LoopPools(self._loops)
            await pools.attach()
        if not self._prepared:
            async with pools.preparation:
                if not self._prepared:
                    # In a thread: loading the library and the certificates would block the loop.
                    await anyio.to_thread.run_sync(self._prepare)
                    self._prepared = True
        if time.monotonic() >= pools.next_cleanup:
            await pools.close_idle()
        shards = pools.shards
        for shard in shards:
            if shard.busy < self._per_shard:
                return shard
        if len(shards) < _SHARDS:
            shards.append(Shard(self._open(blocking=False)))
            return shards[-1]
        return min(shards, key=lambda shard: shard.busy)

    def close(self) -> None:
        """Close the connections of blocking requests."""
        self._remove_closed_loops()
        with self._lock:
            finalizer, self._finalizer, self._blocking = self._finalizer, None, None
        if finalizer is not None:
            finalizer()

    async def aclose(self) -> None:
        """Close the connections of blocking requests and of the running loop."""
        # Removed first, so that later requests open other connections.
        pools = self._loops.pop(running_loop(), None)
        if pools is not None:
            await pools.aclose()
        self.close()

    def _open_blocking(self) -> Any:
        with self._lock:
            if self._blocking is None:
                self._blocking = transport = self._open(blocking=True)
                # Closes the connections of a client that is garbage-collected without `close()`.
                self._finalizer = finalize(self, transport.close)
                register_after_fork(self)
            return self._blocking

    def after_fork(self) -> None:
        """Abandon the parent's connections, whose responses both processes would read."""
        self._lock = threading.Lock()  # a thread of the parent may have held it
        if self._finalizer is not None:
            self._finalizer.detach()
            keep(self._blocking)
        self._finalizer = self._blocking = None

    def _remove_closed_loops(self) -> None:
        """Release the sockets of loops that were closed without closing their generators."""
        for loop in list(self._loops):
            if loop.is_closed():
                self._loops.pop(loop, None)

    def _prepare(self) -> None:
        """Import the library and load the certificates."""
        library = http_library()
        _transport_kind(library, blocking=False, http2=self._settings.http2)
        with suppress(ImportError):  # newer releases import it with the first connection
            _library(library.__name__.replace("httpx", "httpcore"))
        if self._settings.tls is None and library.URL(self._base_url).scheme == "https":
            _tls(library, http2=self._settings.http2)

    def _open(self, *, blocking: bool) -> Any:
        """Return a transport; a client on top (redirects, cookies) would cost 10 % per request."""
        library = http_library()
        http2 = self._settings.http2
        kind = _transport_kind(library, blocking=blocking, http2=http2)
        # No lower limit for idle connections: httpx's blocking pool loses requests when it closes
        # idle connections under load.
        limits = library.Limits(
            max_connections=_CONNECTIONS,
            max_keepalive_connections=_CONNECTIONS,
            keepalive_expiry=_KEEPALIVE_SECONDS,
        )
        url = library.URL(self._base_url)
        proxy = self._settings.proxy
        if proxy is None:
            proxies = urllib.request.getproxies()
            if (
                not proxies
                or is_loopback(url.host)
                or "*" in proxies.get("no", "").split(",")
                or urllib.request.proxy_bypass(url.netloc.decode())
            ):
                proxy = None
            else:
                proxy = proxies.get(url.scheme) or proxies.get("all")
                proxy = f"http://{proxy}" if proxy and "://" not in proxy else proxy
        verify: Any = self._settings.tls
        if verify is None:
            verify = _tls(library, http2=http2) if url.scheme == "https" else False
        try:
            return kind(
                limits=limits,
                verify=verify,
                http2=http2,
                proxy=library.Proxy(proxy) if proxy else None,
                socket_options=_SOCKET_OPTIONS,
            )
        except ImportError as error:
            msg = "SOCKS proxies need socksio; pip install 'chatclient[socks]'"
            raise MissingExtraError(msg) from error
        except (ValueError, library.InvalidURL) as error:
            # The libraries mask passwords in their messages.
            msg = f"cannot connect through the proxy: {error}"
            raise UsageError(msg) from error


def _transport_kind(library: ModuleType, *, blocking: bool, http2: bool) -> Any:
    aiohttp = os.environ.get("CHATCLIENT_HTTP") == "aiohttp" and not blocking
    if http2 and aiohttp:
        msg = "aiohttp does not speak HTTP/2; leave out http2=True, or CHATCLIENT_HTTP"
        raise UsageError(msg)
    if http2:
        with needed_by("HTTP/2"):
            _library("h2")
    if aiohttp:
        with needed_by("CHATCLIENT_HTTP=aiohttp"):
            return _library("httpx_aiohttp").AiohttpTransport
    return library.HTTPTransport if blocking else library.AsyncHTTPTransport


def is_loopback(host: str) -> bool:
    """Return whether *host* is a loopback address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
