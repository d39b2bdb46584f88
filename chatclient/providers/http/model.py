"""Base class and HTTP settings of models that send requests, directly or as items of a batch."""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypedDict, TypeVar, cast

from chatclient._internal.closeable import Closeable
from chatclient._internal.frozen import EMPTY, FrozenDict
from chatclient._internal.parameters import explain_parameters
from chatclient.chat.model import PROCESSING, BatchApi, SendItem
from chatclient.chat.response import ChatResponse
from chatclient.providers.http.auth import Headers, KeySource, Signer, auth_headers, without_keys
from chatclient.providers.http.client import HttpAnswer, HttpClient
from chatclient.providers.http.errors import parse_json
from chatclient.providers.http.limits import LIMITS, ResponseLimits
from chatclient.providers.http.request import Timeouts
from chatclient.providers.http.retry import RetryPolicy
from chatclient.runtime.runtime import Runtime


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


class _Named(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def address(self) -> str: ...


class HttpModel(Closeable):
    """Base class of models that send requests with `_http`, which `close` and `aclose` close."""

    _http: HttpClient

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        explain_parameters(cls)  # models are also made by name, without the public packages

    def __repr__(self: _Named) -> str:
        return f"{type(self).__name__}({self.name!r}, base_url={self.address!r})"

    @property
    def address(self) -> str:
        """The base URL of the server, without credentials, also if its path contains a key."""
        return without_keys(self._http.base_url)

    def close(self) -> None:
        """Close the connections of blocking calls."""
        self._http.close()

    async def aclose(self) -> None:
        """Close the connections of blocking calls and of this event loop."""
        await self._http.aclose()


T = TypeVar("T")
M = TypeVar("M", bound=HttpModel)


class BatchHttpClient:
    """Has the interface of an `HttpClient` that does not stream; requests become items of a batch.

    Args:
        http: The client whose requests are answered in batches.
        send: Answers a request.
    """

    def __init__(self, http: HttpClient, send: SendItem) -> None:
        self._http = http
        self._send = send
        self.provider = http.provider
        self.base_url = http.base_url

    async def post(
        self,
        runtime: Runtime,
        path: str,
        body: bytes,
        decode: Callable[[HttpAnswer], T],
        headers: Headers = EMPTY,
    ) -> T:
        """Return the decoded response of an item with *body*."""
        answer = decode(HttpAnswer(EMPTY, await self._send(path, body, headers, runtime)))
        if not isinstance(answer, ChatResponse):
            return answer
        values = FrozenDict({**answer.metadata.values, PROCESSING: "batch"})
        return cast("T", replace(answer, metadata=replace(answer.metadata, values=values)))


def batched_model(model: M, api: BatchApi, send: SendItem) -> tuple[M, BatchApi]:
    """Return a copy of *model* whose requests go to *send*, and *api*."""
    other = copy.copy(model)
    other._http = cast("HttpClient", BatchHttpClient(model._http, send))  # noqa: SLF001
    return other, api


def json_of(http: HttpClient) -> Callable[[HttpAnswer], Mapping[str, Any]]:
    """Return a function that decodes an answer that is a JSON object."""

    def decode(answer: HttpAnswer) -> Mapping[str, Any]:
        data: Mapping[str, Any] = parse_json(http.provider, answer.body)
        return data

    return decode


def json_lines(http: HttpClient) -> Callable[[HttpAnswer], list[Mapping[str, Any]]]:
    """Return a function that decodes an answer in the JSON Lines format."""

    def decode(answer: HttpAnswer) -> list[Mapping[str, Any]]:
        lines: Iterable[bytes] = filter(None, answer.body.splitlines())
        # Exact numbers, as in answers that are not part of a batch.
        values: Iterator[Any] = (parse_json(http.provider, line, exact=True) for line in lines)
        return list(values)

    return decode
