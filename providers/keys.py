"""Keys of providers: where they come from, and the headers that carry them."""

import os
from collections.abc import Awaitable, Callable, Mapping

from chatclient.errors import UsageError, WrongTypeError
from chatclient.runtime import Runtime
from chatclient.values import EMPTY

Headers = Mapping[str, str]

HeaderSource = Headers | Callable[[Runtime], Awaitable[Headers]]
"""Headers, or what gives those of a request; it is asked each time, for tokens that rotate."""

KeySource = str | Callable[[], str | Awaitable[str]]
"""A key, or a function, plain or asynchronous, that returns the current one."""

Key = KeySource | None
"""A key, a function that returns the current one, or None for the environment's."""


def key_source(api_key: Key, *variables: str, wanted_by: str = "") -> KeySource:
    """Return the key, or what gives it.

    Args:
        api_key: As the application gave it.
        variables: The variables of the environment that may hold it, the usual one first.
        wanted_by: Who answers nobody without a key; empty for a server that may not ask for one.

    Raises:
        UsageError: A key is wanted, and there is none.
        WrongTypeError: It is neither a text nor a function.
    """
    if callable(api_key):
        return api_key
    if api_key is None:
        api_key = next((key for name in variables if (key := os.environ.get(name))), "")
    if not api_key and wanted_by:
        msg = f"{wanted_by} needs an API key: set {variables[0]} or pass api_key="
        raise UsageError(msg)
    return _text("api_key", api_key, "a text or a function that returns one")


def headers_with(
    key: KeySource, more: Headers | None, *, name: str = "authorization", scheme: str = "Bearer "
) -> HeaderSource:
    """Return the headers of a request, or what gives them: the key of the moment, and *more*.

    Args:
        key: The key, or what gives it; without one, no header carries it. A function is called as
            the application's own, so that one that waits for its token holds up no event loop.
        more: Headers that go before that of the key, if there are any.
        name: The header that carries the key.
        scheme: What stands before it there.

    Raises:
        WrongTypeError: *more* are no headers.
    """
    others = lower_case(more)

    def carrying(token: str) -> Headers:
        # Files and shells leave a line end behind.
        token = _text("what a function returns as api_key", token or "", "a text").strip()
        return {name: f"{scheme}{token}", **others} if token else others

    if isinstance(key, str):
        return carrying(key)

    async def headers(runtime: Runtime) -> Headers:
        return carrying(await runtime.invoke(key))

    return headers


def lower_case(headers: Headers | None) -> dict[str, str]:
    """Return *headers*, as an application gave them, with names in lower case.

    Raises:
        WrongTypeError: They are no mapping, or a name or a value is no text.
    """
    given: object = headers or EMPTY
    if not isinstance(given, Mapping):
        msg = f"headers must be a mapping of names to texts, not a {type(given).__name__}"
        raise WrongTypeError(msg)
    found = {}
    for name, value in given.items():
        name = _text("the name of a header", name, "a text")  # noqa: PLW2901 - now it is one
        # A key may be among them.
        found[name.lower()] = _text(f"the header {name!r}", value, "a text").strip()
    return found


def _text(what: str, given: object, right: str) -> str:
    if isinstance(given, str):
        return given
    # What it is may be secret, and is not shown.
    hint = ", such as its get_secret_value()" if hasattr(given, "get_secret_value") else ""
    msg = f"{what} must be {right}{hint}, not a {type(given).__name__}"
    raise WrongTypeError(msg)
