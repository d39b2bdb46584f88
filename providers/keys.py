"""Keys of providers: where they come from, and the headers that carry them."""

import os
from collections.abc import Callable, Mapping

from chatclient.errors import UsageError

Headers = Mapping[str, str]

HeaderSource = Callable[[], Headers]
"""Gives the headers of a request; asked each time, for tokens that rotate."""

Key = str | Callable[[], str] | None
"""A key, a function that returns the current one, or None for the environment's."""


def key_source(api_key: Key, *variables: str, wanted_by: str = "") -> Callable[[], str]:
    """Return what gives the key.

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
        msg = f"{wanted_by} wants an API key: set {variables[0]} or pass api_key="
        raise UsageError(msg)
    key = api_key.strip()  # files and shells leave a line end behind
    return lambda: key


def headers_with(
    key: Callable[[], str], more: Headers, *, name: str = "authorization", scheme: str = "Bearer "
) -> HeaderSource:
    """Return what gives the headers of a request: the key of the moment, and *more*.

    Args:
        key: Gives the key; without one, no header carries it.
        more: Headers that go before that of the key.
        name: The header that carries the key.
        scheme: What stands before it there.
    """
    more = {name.lower(): value for name, value in more.items()}

    def headers() -> Headers:
        token = key()
        return {name: f"{scheme}{token}", **more} if token else more

    return headers
