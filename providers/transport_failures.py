"""What breaks between here and a provider: which errors libraries raise, and which one we do."""

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
from chatclient.providers.connections import errors_of_aiohttp, is_here, library_of


class TransportFailures:
    """Knows the failures on the way to one provider.

    Args:
        provider: Whose errors these are.
        base_url: Where it is, as it may be shown.
    """

    def __init__(self, provider: str, base_url: str) -> None:
        self._provider = provider
        self._base_url = base_url

    @contextmanager
    def interrupting(self, response: Any) -> Generator[None, None, None]:
        """Let what breaks a stream be known as such."""
        try:
            yield
        except self.breaks(response) as error:
            cause = self.error_for(error)
            msg = f"the stream broke before its end: {cause}"
            interrupted = StreamInterruptedError(msg, provider=self._provider)
            interrupted.retryable = cause.retryable
            raise interrupted from shown_cause(error)

    def breaks(self, response: Any) -> tuple[type[Exception], ...]:
        """Return what may be raised while a streamed response is read."""
        return (RequestTimeoutError, *self.kinds(response))

    def kinds(self, where: Any) -> tuple[type[Exception], ...]:
        """Return what may be raised by a client, or while a response is read."""
        library = library_of(where)
        return (library.HTTPError, library.InvalidURL, library.StreamError, *errors_of_aiohttp())

    def error_for(self, error: Exception) -> ProviderError:
        """Return what *error* of a library is to the caller."""
        if isinstance(error, ProviderError):
            return error
        names = {kind.__name__ for kind in type(error).__mro__}
        text = str(error) or type(error).__name__
        if "TimeoutException" in names:
            msg = f"{self._provider} did not answer in time ({type(error).__name__})"
            return RequestTimeoutError(msg, provider=self._provider)
        if not names.isdisjoint(("TransportError", "ClientError")):
            msg = f"cannot talk to {self._provider} at {self._base_url}: {text}"
            if "ConnectError" in names and is_here(urlsplit(self._base_url).hostname or ""):
                msg += "; is the server running?"
            return ConnectionFailedError(msg, provider=self._provider)
        msg = f"the answer of {self._provider} cannot be read: {text}"
        return InvalidResponseError(msg, provider=self._provider)


def shown_cause(error: Exception) -> Exception | None:
    """Return what may be shown as the cause: aiohttp's errors show the headers of the request."""
    return None if hasattr(error, "request_info") else error
