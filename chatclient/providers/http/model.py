"""Base class of models that send HTTP requests."""

from typing import Protocol

from chatclient._internal.closeable import Closeable
from chatclient.providers.http.client import HttpClient


class _Named(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def address(self) -> str: ...


class HttpModel(Closeable):
    """Base class of models that send requests with `_http`, which `close` and `aclose` close."""

    _http: HttpClient

    def __repr__(self: _Named) -> str:
        return f"{type(self).__name__}({self.name!r}, base_url={self.address!r})"

    @property
    def address(self) -> str:
        """The base URL of the server, without credentials."""
        return self._http.base_url

    def close(self) -> None:
        """Close the connections of blocking calls."""
        self._http.close()

    async def aclose(self) -> None:
        """Close the connections of blocking calls and of this event loop."""
        await self._http.aclose()
