"""Builds HTTP requests: URL, headers, time-outs, idempotency key."""

import base64
import re
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from chatclient._internal.checks import seconds
from chatclient._internal.frozen import EMPTY
from chatclient._internal.version import __version__
from chatclient.errors import UsageError, WrongTypeError
from chatclient.providers.http.auth import Headers, SecretHeaders
from chatclient.providers.http.connections import library_of
from chatclient.runtime.runtime import Runtime


class BaseUrl(NamedTuple):
    """A parsed base URL.

    Attributes:
        url: The URL without credentials and query; paths are appended to it.
        headers: Basic authorization, if the URL contained credentials.
        query: Query of every request, such as the API's version.
    """

    url: str
    headers: Headers = EMPTY
    query: str = ""

    def join(self, path: str) -> str:
        """Return the URL of *path*, which may contain a query."""
        if not self.query:
            return self.url + path
        return f"{self.url}{path}{'&' if '?' in path else '?'}{self.query}"


def first_url(*given: str | None) -> str:
    """Return the first URL in *given* that is not empty."""
    url: object = next(filter(None, given), "")
    if not isinstance(url, str):  # not shown, because it may contain a password
        msg = f"base_url must be a text, not a {type(url).__name__}; of a URL pass str(url)"
        raise WrongTypeError(msg)
    return url


def parse_base_url(base_url: str) -> BaseUrl:
    """Parse *base_url*; errors contain no credentials."""
    before_query, _, query = base_url.partition("?")
    scheme, separator, rest = before_query.partition("://")
    authority, slash, path = rest.partition("/")
    user, at, host = authority.rpartition("@")
    if separator == "" or scheme not in ("http", "https"):
        shown = before_query.rpartition("@")[2]
        msg = f"base_url must begin with http:// or https://, not {shown!r}"
        raise UsageError(msg)
    # After a `#`, a server would not see the path.
    if not _is_valid_host(host) or not base_url.isprintable() or "#" in base_url:
        problem = "check host, port and line ends; there must be no #; / in a password is %2F"
        msg = f"base_url names no server: {problem}"
        raise UsageError(msg)
    headers = SecretHeaders({"authorization": _basic(user)}) if at else EMPTY
    return BaseUrl(f"{scheme}://{host}{slash}{path}".rstrip("/"), headers, query)


def path_step(name: str, *, safe: str = "") -> str:
    """Return *name*, such as that of a model or the id of a batch, as one step of a path.

    Raises:
        UsageError: *name* is empty, or a step that clients resolve: `.` or `..`.
    """
    if name in ("", ".", ".."):
        msg = f"{name!r} cannot be a model's name or an id"
        raise UsageError(msg)
    return quote(name, safe=safe)


def _is_valid_host(host: str) -> bool:
    """Return whether *host* is a valid host with an optional port."""
    try:
        parts = urlsplit(f"//{host}")
        name = parts.hostname or ""
        return parts.port != 0 and name.encode("idna") != b""
    except ValueError:  # the port is not a number, a label too long
        return False


def _basic(user: str) -> str:
    """Return the value of the `authorization` header for *user*, `name:password` of a URL."""
    name, _, password = user.partition(":")
    secret = f"{unquote(name)}:{unquote(password)}".encode()
    return f"Basic {base64.b64encode(secret).decode()}"


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Time-outs in seconds; None disables one.

    Attributes:
        connect: For opening a connection, or getting one from the pool.
        read: Between two pieces of the response.
        write: Between two pieces of the request.
        first_byte: Until the response headers arrive, which some servers send before generation;
            None for the value of `read`. (With aiohttp the longer of the two applies to both.)
        total: For the request including all retries and delays. It is checked after each piece of
            the response, so it may be exceeded by one `read`.

    Raises:
        UsageError: A value is not a number greater than 0.
    """

    connect: float | None = 5.0
    read: float | None = 600.0
    write: float | None = 600.0
    first_byte: float | None = None
    total: float | None = None

    def __post_init__(self) -> None:
        for name in ("connect", "read", "write", "first_byte", "total"):
            if (given := getattr(self, name)) is not None:
                object.__setattr__(self, name, seconds(name, given))

    def within(self, seconds: float) -> dict[str, float | None]:
        """Return the time-outs until the response headers, at most *seconds*, for httpx."""
        first = self.read if self.first_byte is None else self.first_byte
        connect = shorter(self.connect, seconds)
        return {
            "connect": connect,
            "read": shorter(first, seconds),
            "write": shorter(self.write, seconds),
            "pool": connect,
        }


_MIN_SECONDS = 0.001  # 0 would make sockets non-blocking


def shorter(timeout: float | None, seconds: float) -> float | None:
    """Return *timeout* limited to *seconds* (may be infinite), and greater than 0."""
    left = max(seconds, _MIN_SECONDS)
    if timeout is None:
        return None if left == float("inf") else left
    return min(timeout, left)


def as_timeouts(timeout: float | Timeouts | None) -> Timeouts:
    """Return *timeout*, a number of seconds, `Timeouts` or None for no limit, as `Timeouts`."""
    if isinstance(timeout, Timeouts):
        return timeout
    if timeout is None:
        return Timeouts(None, None, None)
    timeout = seconds("timeout", timeout)
    return Timeouts(min(5.0, timeout), timeout, timeout)


_HEADERS = {
    "accept": "*/*",
    "accept-encoding": "gzip, deflate",
    "content-type": "application/json",
    "user-agent": f"chatclient/{__version__}",
}
_IDEMPOTENCY = "idempotency-key"
_NAME = re.compile(r"[\w!#$%&'*+.^`|~-]+", re.ASCII)
_ERROR_BODY_SECONDS = 10.0
_MOST_PATHS = 64


class RequestBody(NamedTuple):
    """The content of a request, the same for all attempts."""

    path: str
    content: bytes
    headers: Headers
    key: str | None  # idempotency key
    method: str = "POST"


class _PathCache(NamedTuple):
    """URL and encoded headers of the previous request to a path."""

    library: ModuleType
    headers: Headers
    url: Any
    raw: list[tuple[bytes, bytes]]


class RequestBuilder:
    """Builds requests to one provider, and caches URL and headers of each path.

    If *own*, a client of the application sends the requests. Its headers and cookies are added; its
    time-outs, if set, override *timeouts*.
    """

    def __init__(self, base_url: BaseUrl, timeouts: Timeouts, *, own: bool) -> None:
        self._base_url = base_url
        self._timeouts = timeouts
        self._own = own
        self._cache: dict[str, _PathCache] = {}

    def url_of(self, path: str) -> str:
        """Return the URL of requests to *path*."""
        return self._base_url.join(path)

    def build(self, client: Any, body: RequestBody, headers: Headers, runtime: Runtime) -> Any:
        """Return a request with *body* and *headers* for *client*."""
        library = library_of(client)
        more = SecretHeaders({**headers, **body.headers}) if body.headers else headers
        if self._own:
            # Build a request with the application's client, which adds headers and
            # cookies.
            remaining = runtime.remaining()
            key = {} if body.key is None else {_IDEMPOTENCY: body.key}
            credentials = {} if "authorization" in client.headers else self._base_url.headers
            raw = _encode_headers(SecretHeaders({**_HEADERS, **credentials, **key, **more}))
            url = self.url_of(body.path)
            request = client.build_request(body.method, url, content=body.content, headers=raw)
            if self._timeouts_apply(client):
                request.extensions["timeout"] = self._timeouts.within(remaining)
                return request
            timeouts = request.extensions["timeout"]
            timeouts.update({name: shorter(value, remaining) for name, value in timeouts.items()})
            return request
        cached = self._cache.get(body.path)
        is_known = cached is not None and (cached.headers is more or cached.headers == more)
        if cached is None or not is_known or cached.library is not library:
            url = library.URL(self.url_of(body.path))
            host = {"host": url.netloc.decode()}
            raw = _encode_headers(
                SecretHeaders({**host, **_HEADERS, **self._base_url.headers, **more})
            )
            if len(self._cache) >= _MOST_PATHS:  # ids of batches and names of models are in paths
                self._cache.clear()
            cached = self._cache[body.path] = _PathCache(library, more, url, raw)
        raw = [*cached.raw, (b"content-length", b"%d" % len(body.content))]
        if body.key is not None and _IDEMPOTENCY not in more:
            raw.append((_IDEMPOTENCY.encode(), body.key.encode()))
        # With `stream=` instead of `content=` the library adds no headers.
        request = library.Request(
            body.method,
            cached.url,
            headers=library.Headers(raw),
            stream=library.ByteStream(body.content),
            extensions={"timeout": self._timeouts.within(runtime.remaining())},
        )
        request.read()  # some transports access `request.content`
        return request

    def _timeouts_apply(self, client: Any) -> bool:
        """Return whether our time-outs apply, because *client* has only httpx's default of 5 s."""
        return not self._own or client.timeout == library_of(client).Timeout(5.0)

    def apply_read_timeout(
        self, client: Any, request: Any, runtime: Runtime, *, is_error: bool
    ) -> None:
        """Set the read time-out for the body, after the response headers have arrived."""
        timeouts = request.extensions["timeout"]
        if self._timeouts.first_byte is not None and self._timeouts_apply(client):
            timeouts["read"] = self._timeouts.read
        if is_error:
            timeouts["read"] = shorter(timeouts["read"], _ERROR_BODY_SECONDS)
        if runtime.deadline is not None:
            timeouts["read"] = shorter(timeouts["read"], runtime.remaining())


def _header_problem(header: tuple[str, str]) -> str | None:
    """Return why *header* cannot be sent, or None."""
    name, value = header
    if not _NAME.fullmatch(name):
        return f"{name!r} cannot be the name of a header"
    if not value.isprintable() or value != value.strip():
        return f"the header {name!r} has a value with a line end or the like; check the API key"
    return None


def _encode_headers(headers: Headers) -> list[tuple[bytes, bytes]]:
    """Return *headers* as bytes; errors contain no values, which may be secret."""
    if problem := next(filter(None, map(_header_problem, headers.items())), None):
        raise UsageError(problem)
    return [(name.lower().encode("ascii"), value.encode()) for name, value in headers.items()]
