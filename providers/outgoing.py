"""Requests to a provider, made ready to be sent: URL, headers, time-outs, a key for repetitions."""

import re
from types import ModuleType
from typing import Any, NamedTuple

from chatclient.errors import UsageError
from chatclient.providers.addresses import Address
from chatclient.providers.connections import library_of
from chatclient.providers.keys import Headers
from chatclient.providers.timeouts import Timeouts, shorter
from chatclient.runtime import Runtime
from chatclient.version import __version__

_HEADERS = {
    "accept": "*/*",
    "accept-encoding": "gzip, deflate",
    "content-type": "application/json",
    "user-agent": f"chatclient/{__version__}",
}
_IDEMPOTENCY = "idempotency-key"
_NAME = re.compile(r"[\w!#$%&'*+.^`|~-]+", re.ASCII)
_REFUSAL_SECONDS = 10.0  # for the reasons, when the status has already said it all


class Outgoing(NamedTuple):
    """What is sent, at every attempt."""

    path: str
    body: bytes
    headers: Headers
    key: str | None  # by which the provider knows one request that comes twice


class _Known(NamedTuple):
    """What all requests to one path share."""

    library: ModuleType
    headers: Headers
    url: Any
    raw: list[tuple[bytes, bytes]]


class Requests:
    """Makes the requests to one provider, with what those to one path share known already.

    Args:
        address: Where they go.
        timeouts: How long to wait for their answers.
        own: Whether a client of the application sends them, which may have headers, cookies and
            time-outs of its own. The last are those that hold, if it has any.
    """

    def __init__(self, address: Address, timeouts: Timeouts, *, own: bool) -> None:
        self._address = address
        self._timeouts = timeouts
        self._own = own
        self._known: dict[str, _Known] = {}

    def to_send(self, client: Any, outgoing: Outgoing, headers: Headers, runtime: Runtime) -> Any:
        """Return *outgoing* as a request that *client* sends, with the *headers* of all."""
        library = library_of(client)
        more = {**headers, **outgoing.headers} if outgoing.headers else headers
        if self._own:
            return self._of_own(client, outgoing, more, runtime)
        known = self._known.get(outgoing.path)
        if known is None or known.library is not library or known.headers != more:
            url = library.URL(self._address.of(outgoing.path))
            raw = _raw({"host": url.netloc.decode(), **_HEADERS, **self._address.headers, **more})
            known = self._known[outgoing.path] = _Known(library, more, url, raw)
        raw = [*known.raw, (b"content-length", b"%d" % len(outgoing.body))]
        if outgoing.key is not None and _IDEMPOTENCY not in more:
            raw.append((_IDEMPOTENCY.encode(), outgoing.key.encode()))
        # With a stream in place of content the library adds no headers: they are complete.
        request = library.Request(
            "POST",
            known.url,
            headers=library.Headers(raw),
            stream=library.ByteStream(outgoing.body),
            extensions={"timeout": self._timeouts.within(runtime.remaining())},
        )
        request.read()  # there is nothing to wait for, and transports may ask for the content
        return request

    def _of_own(self, client: Any, outgoing: Outgoing, more: Headers, runtime: Runtime) -> Any:
        """Build a request with the client: it may have headers, cookies and time-outs."""
        remaining = runtime.remaining()
        key = {} if outgoing.key is None else {_IDEMPOTENCY: outgoing.key}
        given = self._address.headers if "authorization" not in client.headers else {}
        raw = _raw({**_HEADERS, **given, **key, **more})
        url = self._address.of(outgoing.path)
        request = client.build_request("POST", url, content=outgoing.body, headers=raw)
        if self._bounds(client):
            request.extensions["timeout"] = self._timeouts.within(remaining)
            return request
        timeouts = request.extensions["timeout"]
        timeouts.update({name: shorter(value, remaining) for name, value in timeouts.items()})
        return request

    def _bounds(self, client: Any) -> bool:
        """Return whether the time-outs that hold are ours, and not those of *client*."""
        # Five seconds are the libraries' default, by which a client says nothing.
        return not self._own or client.timeout == library_of(client).Timeout(5.0)

    def wait_for_the_rest(
        self, client: Any, request: Any, runtime: Runtime, *, refused: bool
    ) -> None:
        """Replace the time-outs for the first bytes of an answer by those for the rest."""
        timeouts = request.extensions["timeout"]
        if self._timeouts.first_byte is not None and self._bounds(client):
            timeouts["read"] = self._timeouts.read
        if refused:
            timeouts["read"] = shorter(timeouts["read"], _REFUSAL_SECONDS)
        if runtime.deadline is not None:
            timeouts["read"] = shorter(timeouts["read"], runtime.remaining())


def _raw(headers: Headers) -> list[tuple[bytes, bytes]]:
    """Return *headers* in bytes.

    Raises:
        UsageError: One of them cannot be sent: a key with a line end, say, which is not shown.
    """
    for name, value in headers.items():
        if not _NAME.fullmatch(name):
            msg = f"{name!r} cannot be the name of a header"
            raise UsageError(msg)
        if not value.isprintable() or value != value.strip():
            msg = f"the header {name!r} has a value with a line end or the like; check the API key"
            raise UsageError(msg)
    return [(name.lower().encode("ascii"), value.encode()) for name, value in headers.items()]
