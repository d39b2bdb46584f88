"""The connections of a client: which HTTP library, which pools, proxies, TLS and HTTP/2."""

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

from chatclient.errors import UsageError
from chatclient.forks import keep, register_after_fork
from chatclient.tasks import to_its_end


@dataclass(frozen=True, slots=True)
class Connections:
    """How to connect; given as `http_client=` in place of an HTTP client of one's own.

    Attributes:
        proxy: The URL of a proxy, with user and password if it wants them; empty for none. None
            for the one that the environment names (`HTTPS_PROXY`, `ALL_PROXY`, `NO_PROXY`, …),
            which nothing on this machine is asked through. `socks5://` needs the extra `socks`.
        http2: Whether to speak HTTP/2 with servers that do (extra `http2`).
        tls: What to trust, such as a company's own certificates; None for the usual ones.
    """

    proxy: str | None = field(default=None, repr=False)
    http2: bool = False
    tls: ssl.SSLContext | None = None


# --- libraries ------------------------------------------------------------------------------

_LIBRARIES = {"httpx": "httpx", "httpx2": "httpx2", "aiohttp": "httpx"}


@cache
def _library(name: str) -> ModuleType:
    return importlib.import_module(name)


def http_library() -> ModuleType:
    """Return the HTTP library in use.

    That is httpx2 where it is installed, else httpx. The environment's `CHATCLIENT_HTTP` decides
    otherwise: `httpx`, `httpx2`, or `aiohttp` for httpx over aiohttp's connections, which carry
    the most requests (extra `aiohttp`; blocking requests then go over httpx).

    Raises:
        UsageError: The environment names something else, or what is not installed.
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
    return _require(_LIBRARIES[name], name)


def _require(module: str, extra: str) -> ModuleType:
    try:
        return _library(module)
    except ImportError as error:
        msg = f"{module} is not installed; pip install 'chatclient[{extra}]'"
        raise UsageError(msg) from error


def library_of(thing: Any) -> ModuleType:
    """Return the HTTP library that a client or response belongs to, whatever its subclass.

    Raises:
        UsageError: It belongs to none that is known here.
    """
    for kind in type(thing).__mro__:
        root = kind.__module__.partition(".")[0]
        if root in ("httpx", "httpx2"):
            return _library(root)
    msg = f"http_client= takes a client of httpx or httpx2, or Connections, not {thing!r}"
    raise UsageError(msg)


def errors_of_aiohttp() -> tuple[type[Exception], ...]:
    """Return the errors that aiohttp's transport lets through untranslated, if it is in use."""
    aiohttp = sys.modules.get("aiohttp")
    return () if aiohttp is None else (aiohttp.ClientError,)


@cache
def _tls(library: ModuleType, *, http2: bool) -> ssl.SSLContext:
    # One for all clients: loading the certificates takes longer than twenty requests. But not for
    # both protocols: the library writes into it which one to negotiate.
    del http2
    try:
        context: ssl.SSLContext = library.create_ssl_context()
    except OSError as error:  # which does not say which file
        msg = f"cannot load the TLS certificates: {error}; check SSL_CERT_FILE and SSL_CERT_DIR"
        raise UsageError(msg) from error
    return context


# --- pools ----------------------------------------------------------------------------------

_SHARDS = 64
_PER_SHARD = 4  # requests at once before the next pool is opened
_PER_HTTP2_SHARD = 64  # they share a connection, and servers allow a hundred as a rule
_CONNECTIONS = 1000
_KEEPALIVE_SECONDS = 30.0

# Routers and balancers forget connections on which nothing is said, as while a model thinks; and
# only the system itself notices that the other side is gone.
_PROBES = (("TCP_KEEPIDLE", 60), ("TCP_KEEPALIVE", 60), ("TCP_KEEPINTVL", 60), ("TCP_KEEPCNT", 5))
_SOCKET_OPTIONS = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in _PROBES
        if hasattr(socket, name)  # each system has some of them
    ),
]


@dataclass(slots=True, eq=False)
class Shard:
    """One of several smaller pools: searching one big pool costs more than the request."""

    transport: Any
    busy: int = 0
    idle_since: float = 0.0

    def release(self) -> None:
        """Note that a request is over."""
        self.busy -= 1
        self.idle_since = time.monotonic()


class _LoopPools:
    """The pools of one event loop; they close with the loop, and leave *siblings* then."""

    def __init__(self, siblings: "_PoolsByLoop") -> None:
        self.shards: list[Shard] = []
        self.next_look = 0.0  # for pools that nobody needs any more
        self._siblings = siblings
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
            # Who knows this generator knows the loop, through the hook by which the loop ends it.
            self._siblings.pop(asyncio.get_running_loop(), None)
            for shard in self.shards:
                await shard.transport.aclose()

    async def close_idle(self) -> None:
        """Close the pools that a rush has left behind.

        A pool closes idle connections when it is used, and the first ones are used first.
        """
        now = time.monotonic()
        self.next_look = now + _KEEPALIVE_SECONDS
        for shard in self.shards[1:]:
            is_idle = not shard.busy and shard.idle_since + _KEEPALIVE_SECONDS <= now
            if is_idle and shard in self.shards:  # nobody else has closed it meanwhile
                self.shards.remove(shard)
                await to_its_end(shard.transport.aclose())

    async def aclose(self) -> None:
        """Close all connections."""
        await self._end.aclose()


_PoolsByLoop = dict[asyncio.AbstractEventLoop, _LoopPools]


class Pools:
    """The connections to one address: blocking requests share a pool, each loop has its own.

    Nothing is opened before the first request.

    Args:
        base_url: The address.
        settings: How to connect.
    """

    def __init__(self, base_url: str, settings: Connections) -> None:
        self._base_url = base_url
        self._settings = settings
        self._per_shard = _PER_HTTP2_SHARD if settings.http2 else _PER_SHARD
        self._lock = threading.Lock()
        self._prepared = False
        self._blocking: Any = None
        self._hang_up: finalize[..., Pools] | None = None
        self._loops: _PoolsByLoop = {}

    def blocking(self) -> Any:
        """Return the transport of blocking requests."""
        return self._blocking or self._first_blocking()

    async def on_loop(self) -> Shard:
        """Return a shard of the running loop's pools that has room."""
        if not self._prepared:
            # Loading the library and the certificates takes long enough for others to feel it.
            await anyio.to_thread.run_sync(self._prepare)
            self._prepared = True
        loop = asyncio.get_running_loop()
        pools = self._loops.get(loop)
        if pools is None:
            self._forget_closed_loops()
            pools = self._loops[loop] = _LoopPools(self._loops)
            await pools.begin()
        if time.monotonic() >= pools.next_look:
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
        self._forget_closed_loops()
        with self._lock:
            hang_up, self._hang_up, self._blocking = self._hang_up, None, None
        if hang_up is not None:
            hang_up()

    async def aclose(self) -> None:
        """Close the connections of blocking requests and of the running loop."""
        pools = self._loops.pop(asyncio.get_running_loop(), None)
        if pools is not None:
            await pools.aclose()
        self.close()

    def _first_blocking(self) -> Any:
        with self._lock:
            if self._blocking is None:
                self._blocking = transport = self._open(blocking=True)
                # For those who forget to close; it is called once, by whoever comes first.
                self._hang_up = finalize(self, transport.close)
                register_after_fork(self)
            return self._blocking

    def after_fork(self) -> None:
        """Begin anew: two processes would read each other's answers."""
        self._lock = threading.Lock()  # some thread of the parent may have held it
        if self._hang_up is not None:
            self._hang_up.detach()
            keep(self._blocking)
        self._hang_up = self._blocking = None

    def _forget_closed_loops(self) -> None:
        """Let go of loops that closed without ending their generators, and so of their sockets."""
        for loop in list(self._loops):
            if loop.is_closed():
                self._loops.pop(loop, None)

    def _prepare(self) -> None:
        """Load what all connections need."""
        library = http_library()
        _transport_kind(library, blocking=False, http2=self._settings.http2)
        with suppress(ImportError):  # newer releases load it with the first connection only
            _library(library.__name__.replace("httpx", "httpcore"))
        if self._settings.tls is None and library.URL(self._base_url).scheme == "https":
            _tls(library, http2=self._settings.http2)

    def _open(self, *, blocking: bool) -> Any:
        """Return connections without a client on top: redirects, cookies and the like are not ours.

        Leaving out the client saves a tenth of what a request costs.
        """
        library = http_library()
        http2 = self._settings.http2
        kind = _transport_kind(library, blocking=blocking, http2=http2)
        # As many connections may idle as may exist: httpx's blocking pool loses requests when it
        # has to close idle ones under load.
        limits = library.Limits(
            max_connections=_CONNECTIONS,
            max_keepalive_connections=_CONNECTIONS,
            keepalive_expiry=_KEEPALIVE_SECONDS,
        )
        address = library.URL(self._base_url)
        given = self._settings.proxy
        proxy = _proxy_for(address) if given is None else given
        verify: Any = self._settings.tls
        if verify is None:
            verify = _tls(library, http2=http2) if address.scheme == "https" else False
        try:
            behind = library.Proxy(proxy) if proxy else None
            return kind(
                limits=limits,
                verify=verify,
                http2=http2,
                proxy=behind,
                socket_options=_SOCKET_OPTIONS,
            )
        except ImportError as error:
            msg = "SOCKS proxies need socksio; pip install 'chatclient[socks]'"
            raise UsageError(msg) from error
        except (ValueError, library.InvalidURL) as error:
            # The libraries hide passwords in what they say of an address.
            msg = f"cannot connect through the proxy: {error}"
            raise UsageError(msg) from error


def _transport_kind(library: ModuleType, *, blocking: bool, http2: bool) -> Any:
    aiohttp = os.environ.get("CHATCLIENT_HTTP") == "aiohttp" and not blocking
    if http2 and aiohttp:
        msg = "aiohttp does not speak HTTP/2; leave out http2=True, or CHATCLIENT_HTTP"
        raise UsageError(msg)
    if http2:
        _require("h2", "http2")
    if aiohttp:
        return _require("httpx_aiohttp", "aiohttp").AiohttpTransport
    return library.HTTPTransport if blocking else library.AsyncHTTPTransport


def is_here(host: str) -> bool:
    """Return whether *host* is this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _proxy_for(url: Any) -> str | None:
    """Return the proxy that the environment names for *url*, if any.

    There is none for this machine itself: what a local model is asked stays here.
    """
    proxies = urllib.request.getproxies()
    if not proxies or is_here(url.host) or "*" in proxies.get("no", "").split(","):
        return None
    if urllib.request.proxy_bypass(url.netloc.decode()):
        return None
    found = proxies.get(url.scheme) or proxies.get("all")
    return f"http://{found}" if found and "://" not in found else found
