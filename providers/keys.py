"""Keys of providers: where they come from, and the headers that carry them."""

import os
from collections.abc import Awaitable, Callable, Mapping

from chatclient.errors import UsageError
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
    """
    if callable(api_key):
        return api_key
    if api_key is None:
        api_key = next((key for name in variables if (key := os.environ.get(name))), "")
    if not api_key and wanted_by:
        msg = f"{wanted_by} needs an API key: set {variables[0]} or pass api_key="
        raise UsageError(msg)
    return api_key


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
    """
    others = {name.lower(): value for name, value in (more or EMPTY).items()}

    def carrying(token: str) -> Headers:
        token = (token or "").strip()  # files and shells leave a line end behind
        return {name: f"{scheme}{token}", **others} if token else others

    if isinstance(key, str):
        return carrying(key)

    async def headers(runtime: Runtime) -> Headers:
        return carrying(await runtime.invoke(key))

    return headers
