"""API keys and credentials that expire, headers that contain them, and errors without them."""

import base64
import binascii
import os
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from os.path import commonprefix
from typing import Any, Generic, TypeVar
from urllib.parse import parse_qsl

from chatclient._internal.exceptions import chain_of
from chatclient._internal.frozen import EMPTY
from chatclient._internal.logging import get_logger
from chatclient._internal.text import printable, shortened
from chatclient.errors import ProviderError, UsageError, WrongTypeError
from chatclient.runtime.runtime import Runtime
from chatclient.runtime.threads import ForkSafeLock

log = get_logger(__name__)

T = TypeVar("T")

TOKEN_SECONDS = 20
"""The time-out of a request of other libraries for a token, whose own ones are minutes."""

_MARGIN = 180.0  # seconds; less than that of google-auth, azure-identity and botocore
_RETRY = 15.0  # seconds between attempts to replace credentials that are still valid

# Every other header may contain a key; gateways define their own.
_PUBLIC = frozenset(
    {
        *("accept", "accept-encoding", "anthropic-beta", "anthropic-version", "connection"),
        *("content-length", "content-type", "host", "http-referer", "idempotency-key"),
        *("openai-beta", "openai-organization", "openai-project", "transfer-encoding"),
        *("user-agent", "x-amz-date", "x-goog-user-project", "x-title"),
    }
)
_MIN_LENGTH = 8  # characters; shorter values would match ordinary text


# Some providers quote the rejected key. (An ordinary word after "Bearer" has no digit.)
_KEY = re.compile(
    r"\b(?:(?:sk|gsk|xai|pplx|hf|r8)[-_]|Bearer (?=[-.=]*[a-zA-Z_]*[\d*])|AIza)[-\w.*=]{6,}"
)


class ExpiringCredentials(Generic[T]):
    """Credentials that are fetched when they are first needed, and again before they expire.

    Safe to share between threads and event loops: one request fetches for all that need it at the
    same time, and fails for all. While the present credentials are valid, others do not wait for
    it, and an error of *fetch* is only logged.

    Args:
        fetch: Returns the credentials and when they expire, in seconds as of `time.time` (None for
            never). It may block: on an event loop, it runs in a worker thread.
    """

    def __init__(self, fetch: Callable[[], tuple[T, float | None]]) -> None:
        self._fetch = fetch
        self._lock = ForkSafeLock()
        self._value: T | None = None
        self._expires = 0.0
        self._renewal = 0.0  # from when on to fetch again
        self._error: Exception | None = None  # of the last fetch
        self._fetches = 0  # completed ones

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    async def current(self, runtime: Runtime) -> T:
        """Return credentials that have not expired.

        Raises:
            Exception: An error of *fetch*, if there are no valid credentials.
        """
        # No local variable holds the value, because tracebacks may show it.
        if self._value is not None and time.time() < self._renewal:
            return self._value
        return await runtime.invoke(self._renewed)

    def _renewed(self) -> T:
        fetches = self._fetches
        with self._lock:
            now = time.time()
            if self._value is not None and now < self._renewal:
                return self._value  # another request has renewed them
            if self._error is not None and fetches != self._fetches:
                raise self._error  # another request has tried
            # Until then, other requests use the present credentials, unless these have expired.
            self._renewal = min(now + _RETRY, self._expires)
            try:
                value, expires = self._fetch()
                if expires is None:
                    self._value, self._expires, self._renewal = value, float("inf"), float("inf")
                else:
                    left = max(expires - time.time(), 0.0)
                    self._value, self._expires = value, expires
                    self._renewal = expires - min(_MARGIN, left / 2)
                self._error = None
            except Exception as error:
                if self._value is None or now >= self._expires:
                    self._error = error
                    raise
                log.warning("credentials could not be renewed", error=type(error).__name__)
            finally:
                self._fetches += 1
            return self._value


Headers = Mapping[str, str]
"""HTTP headers by name."""


class SecretHeaders(Mapping[str, str]):
    """HTTP headers whose values are not shown, not even by tracebacks with local variables."""

    __slots__ = ("_values",)

    def __init__(self, values: Headers) -> None:
        self._values = dict(values)

    def __getitem__(self, name: str) -> str:
        return self._values[name]

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mapping) and self._values == dict(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"SecretHeaders({', '.join(self._values)})"


HeaderSource = Headers | Callable[[Runtime], Awaitable[Headers]]
"""Headers, or a function that is called before each request, for tokens that expire."""

Signer = Callable[[Runtime, str, bytes], Awaitable[Headers]]
"""Returns headers of a request to a URL with a body, such as its signature; called per attempt."""

KeySource = (
    str
    | Callable[[], str | Awaitable[str]]
    | ExpiringCredentials[str]
    | ExpiringCredentials[SecretHeaders]
)
"""A key, a function, plain or asynchronous, that returns the current one, or tokens that expire,
which may be headers."""

Key = KeySource | None
"""A `KeySource`, or None to read the environment."""


def key_source(api_key: Key, *variables: str, required_by: str = "") -> KeySource:
    """Return *api_key*, or if it is None the first of the environment *variables* that is set.

    Raises:
        UsageError: There is no key, but the service named *required_by* requires one.
        WrongTypeError: *api_key* is neither a string nor a function.
    """
    if callable(api_key) or isinstance(api_key, ExpiringCredentials):
        return api_key
    if api_key is None:
        api_key = next((key for name in variables if (key := os.environ.get(name))), "")
    if not api_key and required_by:
        msg = f"{required_by} needs an API key: set {variables[0]} or pass api_key="
        raise UsageError(msg)
    return _require_str("api_key", api_key, "a text or a function that returns one")


def auth_headers(
    key: KeySource, more: Headers | None, *, name: str = "authorization", scheme: str = "Bearer "
) -> HeaderSource:
    """Return the headers of a request (or a function that returns them): the key and *more*.

    Args:
        key: The key or a function that returns it; no header is added for an empty key. The
            function runs through `Runtime.invoke`, so a blocking one does not block the event loop.
        more: Additional headers; they override the key's header.
        name: The name of the key's header.
        scheme: The prefix of the key in the header.

    Raises:
        WrongTypeError: *more* are not valid headers.
    """
    others = SecretHeaders(lower_case_headers(more))

    def with_key(token: str) -> Headers:
        # Keys read from files or shells often end with a newline.
        token = _require_str("what a function returns as api_key", token or "", "a text").strip()
        return SecretHeaders({name: f"{scheme}{token}", **others}) if token else others

    if isinstance(key, str):
        return with_key(key)

    async def headers(runtime: Runtime) -> Headers:
        if isinstance(key, ExpiringCredentials):
            current = await key.current(runtime)
            return (
                with_key(current)
                if isinstance(current, str)
                else SecretHeaders({**current, **others})
            )
        return with_key(await runtime.invoke(key))

    return headers


def lower_case_headers(headers: Headers | None) -> dict[str, str]:
    """Return the application's *headers* with lower-case names."""
    given: object = headers or EMPTY
    if not isinstance(given, Mapping):
        msg = f"headers must be a mapping of names to texts, not a {type(given).__name__}"
        raise WrongTypeError(msg)
    lower_case = {}
    for name, value in given.items():
        name = _require_str("the name of a header", name, "a text")  # noqa: PLW2901 - narrowed
        lower_case[name.lower()] = _require_str(f"the header {name!r}", value, "a text").strip()
    return lower_case


def _require_str(what: str, given: object, expected: str) -> str:
    if isinstance(given, str):
        return given
    # The value may be a secret, so only its type is shown.
    hint = ", such as its get_secret_value()" if hasattr(given, "get_secret_value") else ""
    msg = f"{what} must be {expected}{hint}, not a {type(given).__name__}"
    raise WrongTypeError(msg)


def without_keys(text: str) -> str:
    """Return *text* with `***` for what looks like an API key."""
    return _KEY.sub("***", text)


def redact_from(error: ProviderError, request: Any) -> None:
    """Mask the secrets of *request* in *error* and its causes.

    Some services quote a rejected key, and errors contain the response. Prefixes of a secret are
    masked too, because quoted responses may be truncated.
    """
    secrets = {secret for secret in _secrets_of(request) if len(secret) >= _MIN_LENGTH}
    longest_first = sorted(secrets, key=len, reverse=True)
    if error.__cause__ is None and error.__suppress_context__:
        error.__context__ = None  # may contain secrets in attributes that are not searched
    _redact(error, lambda text: _masked(text, longest_first), request)


# Of Google (also what is sent for tokens), JWT, and keys of AWS, which are 40 characters long.
_TOKENS = re.compile(
    r"\beyJ[\w-]{5,}\.[\w-]+(\.[\w-]*)?|\b(ya29\.|1//|GOCSPX-)[\w.-]{6,}"
    r"|(?<![\w+/])(?=[A-Za-z+/]*\d)[A-Za-z0-9+/]{40}(?![\w+/])"
)
_MAX_SHOWN = 500  # characters of a message


def token_service_error(
    kind: type[ProviderError], what: str, error: Exception, provider: str
) -> ProviderError:
    """Return an error of *kind* for one of a token service, without tokens, also in its cause.

    Args:
        kind: The class of the error.
        what: What has failed.
        error: The error of the library that asks for tokens.
        provider: The provider's name.
    """
    text = _without_tokens(str(error.args[0] if error.args else error))  # a cut key is no match
    found = kind(f"{what}: {printable(shortened(text, _MAX_SHOWN))}", provider=provider)
    found.__cause__ = error
    _redact(found, _without_tokens)
    return found


def _without_tokens(text: str) -> str:
    return _TOKENS.sub("***", text)


def _redact(error: BaseException, mask: Callable[[str], str], removed: object = None) -> None:
    """Apply *mask* to all texts in *error* and its causes, and remove the object *removed*.

    Errors in their arguments and attributes are included.
    """
    pending = chain_of(error)
    done: set[int] = set()
    while pending:
        linked = pending.pop()
        if id(linked) in done:
            continue
        done.add(id(linked))
        for value in (*linked.args, *vars(linked).values()):
            pending += chain_of(value) if isinstance(value, BaseException) else ()
        linked.args = tuple(_mask_in(mask, value) for value in linked.args)
        for name, value in vars(linked).items():
            masked = None if value is removed else _mask_in(mask, value)
            if masked != value:
                setattr(linked, name, masked)


class Redacting:
    """A context whose provider errors do not contain the secrets of *request*.

    *request* is None if it is not built yet.
    """

    __slots__ = ("_request",)

    def __init__(self, request: Any) -> None:
        self._request = request

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """Mask the secrets in *error*."""
        if self._request is not None and isinstance(error, ProviderError):
            redact_from(error, self._request)


def _secrets_of(request: Any) -> Iterator[str]:
    for name, value in request.headers.items():
        if name.lower() not in _PUBLIC:
            scheme, _, token = value.partition(" ")
            if scheme.startswith("AWS4-"):  # only the signature is secret
                yield token.rpartition("=")[2]
                continue
            yield from (value, token)
            if scheme == "Basic":
                with suppress(binascii.Error, UnicodeDecodeError):
                    yield from base64.b64decode(token).decode().split(":", 1)
    for name, value in parse_qsl(request.url.query.decode()):
        if "version" not in name:
            yield value


def _mask_in(mask: Callable[[str], str], value: Any) -> Any:
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, dict):
        return {_mask_in(mask, key): _mask_in(mask, item) for key, item in value.items()}
    return [_mask_in(mask, item) for item in value] if isinstance(value, list) else value


def _masked(text: str, secrets: Iterable[str]) -> str:
    for secret in secrets:
        first, *others = text.split(secret[:_MIN_LENGTH])
        rest = secret[_MIN_LENGTH:]
        cut = (piece[len(commonprefix((piece, rest))) :] for piece in others)  # noqa: RUF071 - texts
        text = "***".join((first, *cut))
    return text
