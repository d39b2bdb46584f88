"""What a base URL says: where a server is, who asks, and what every URL ends with."""

import base64
from typing import NamedTuple
from urllib.parse import unquote

from chatclient.errors import UsageError
from chatclient.providers.keys import Headers
from chatclient.values import EMPTY


class Address(NamedTuple):
    """Where a server is.

    Attributes:
        url: What paths are appended to; no secret is in it.
        headers: What carries the user and password that the URL named, if it did.
        query: What goes with every path, such as the API's version.
    """

    url: str
    headers: Headers = EMPTY
    query: str = ""

    def of(self, path: str) -> str:
        """Return the URL of *path*, which may have a query of its own."""
        if not self.query:
            return self.url + path
        return f"{self.url}{path}{'&' if '?' in path else '?'}{self.query}"


def address_of(base_url: str) -> Address:
    """Return the address that *base_url* stands for.

    Raises:
        UsageError: It is not a URL of HTTP.
    """
    scheme, separator, rest = base_url.partition("://")
    rest, _, query = rest.partition("?")
    where, slash, path = rest.partition("/")
    user, at, host = where.rpartition("@")
    if separator == "" or scheme not in ("http", "https"):
        shown = base_url.rpartition("@")[2]
        msg = f"base_url has to begin with http:// or https://, not {shown!r}"
        raise UsageError(msg)
    headers = {"authorization": _basic(user)} if at else EMPTY
    return Address(f"{scheme}://{host}{slash}{path}".rstrip("/"), headers, query)


def _basic(user: str) -> str:
    """Return the header by which a user is named, as browsers make it of a URL."""
    name, _, password = user.partition(":")
    secret = f"{unquote(name)}:{unquote(password)}".encode()
    return f"Basic {base64.b64encode(secret).decode()}"
