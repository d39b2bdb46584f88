"""HTTP settings that all models accept."""

from dataclasses import dataclass
from typing import Any, TypedDict

from chatclient.providers.http.auth import Headers, KeySource, Signer, auth_headers
from chatclient.providers.http.client import HttpClient
from chatclient.providers.http.limits import LIMITS, ResponseLimits
from chatclient.providers.http.request import Timeouts
from chatclient.providers.http.retry import RetryPolicy


class HttpOptions(TypedDict, total=False):
    """Keyword arguments of all models that send HTTP requests."""

    max_retries: int | RetryPolicy
    """Maximum number of retries, by default 2, or a `RetryPolicy`."""

    timeout: float | Timeouts | None
    """Seconds to wait for a response, by default 600, or `Timeouts`; None for no limit."""

    headers: Headers | None
    """Additional headers of every request."""

    http_client: Any
    """A client of httpx or httpx2, which the application closes; or `Connections`."""

    limits: ResponseLimits
    """What the server may send, by default `ResponseLimits()`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    """`HttpOptions` with defaults."""

    max_retries: int | RetryPolicy = 2
    timeout: float | Timeouts | None = 600.0
    headers: Headers | None = None
    http_client: Any = None
    limits: ResponseLimits = LIMITS

    def connect(
        self,
        provider: str,
        base_url: str,
        key: KeySource,
        *,
        key_header: str = "authorization",
        scheme: str = "Bearer ",
        idempotent: bool = False,
        sign: Signer | None = None,
    ) -> HttpClient:
        """Return a client with these settings, which sends *key*; see `auth_headers`."""
        headers = auth_headers(key, self.headers, name=key_header, scheme=scheme)
        return HttpClient(
            *(provider, base_url, headers, self.timeout, self.max_retries, self.http_client),
            idempotent=idempotent,
            limits=self.limits,
            sign=sign,
        )
