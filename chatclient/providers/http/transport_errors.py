"""Converts errors of HTTP libraries to `ProviderError` subclasses."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from chatclient.errors import (
    ConnectionFailedError,
    InvalidResponseError,
    ProviderError,
    RequestTimeoutError,
    StreamInterruptedError,
)
from chatclient.providers.http.connections import aiohttp_errors, is_loopback, library_of
from chatclient.providers.http.redaction import without_keys


class TransportErrors:
    """Converts the transport errors of requests to one provider."""

    def __init__(self, provider: str, base_url: str) -> None:
        self._provider = provider
        self._base_url = without_keys(base_url)

    @contextmanager
    def as_interruption(self, response: Any) -> Generator[None, None, None]:
        """Convert errors while a stream is read to `StreamInterruptedError`."""
        try:
            yield
        except self.stream_error_types(response) as error:
            cause = self.convert(error)
            msg = f"the stream broke before its end: {cause}"
            interrupted = StreamInterruptedError(msg, provider=self._provider)
            interrupted.retryable = cause.retryable
            raise interrupted from safe_cause(error)

    def stream_error_types(self, response: Any) -> tuple[type[Exception], ...]:
        """Return the types of errors that interrupt the stream of *response*."""
        return (RequestTimeoutError, *self.error_types(response))

    def error_types(self, source: Any) -> tuple[type[Exception], ...]:
        """Return the types of errors that *source*, a client or response, may raise."""
        library = library_of(source)
        return (library.HTTPError, library.InvalidURL, library.StreamError, *aiohttp_errors())

    def convert(self, error: Exception) -> ProviderError:
        """Return the `ProviderError` for *error* of an HTTP library."""
        if isinstance(error, ProviderError):
            return error
        names = {kind.__name__ for kind in type(error).__mro__}
        text = str(error) or type(error).__name__
        if "TimeoutException" in names:
            msg = f"{self._provider} did not answer in time ({type(error).__name__})"
            return RequestTimeoutError(msg, provider=self._provider)
        if not names.isdisjoint(("TransportError", "ClientError")):
            msg = f"cannot talk to {self._provider} at {self._base_url}: {text}"
            if "ConnectError" in names and is_loopback(urlsplit(self._base_url).hostname or ""):
                msg += "; is the server running?"
            return ConnectionFailedError(msg, provider=self._provider)
        msg = f"the answer of {self._provider} cannot be read: {text}"
        return InvalidResponseError(msg, provider=self._provider)


def safe_cause(error: Exception) -> Exception | None:
    """Return *error* unless it is one of aiohttp, which shows the headers of the request."""
    return None if hasattr(error, "request_info") else error
