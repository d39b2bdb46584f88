"""API keys and the headers that contain them."""

import os
from collections.abc import Awaitable, Callable, Iterator, Mapping

from chatclient._internal.frozen import EMPTY
from chatclient.errors import UsageError, WrongTypeError
from chatclient.providers.http.credentials import ExpiringCredentials
from chatclient.runtime.runtime import Runtime

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

KeySource = str | Callable[[], str | Awaitable[str]] | ExpiringCredentials[str]
"""A key, a function, plain or asynchronous, that returns the current one, or tokens that expire."""

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
            return with_key(await key.current(runtime))
        return with_key(await runtime.invoke(key))

    return headers


def lower_case_headers(headers: Headers | None) -> dict[str, str]:
    """Return the application's *headers* with lower-case names."""
    given: object = headers or EMPTY
    if not isinstance(given, Mapping):
        msg = f"headers must be a mapping of names to texts, not a {type(given).__name__}"
        raise WrongTypeError(msg)
    found = {}
    for name, value in given.items():
        name = _require_str("the name of a header", name, "a text")  # noqa: PLW2901 - narrowed
        found[name.lower()] = _require_str(f"the header {name!r}", value, "a text").strip()
    return found


def _require_str(what: str, given: object, expected: str) -> str:
    if isinstance(given, str):
        return given
    # The value may be a secret, so only its type is shown.
    hint = ", such as its get_secret_value()" if hasattr(given, "get_secret_value") else ""
    msg = f"{what} must be {expected}{hint}, not a {type(given).__name__}"
    raise WrongTypeError(msg)
