"""What a base URL says: where a server is, who asks, and what every URL ends with."""

import base64
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from chatclient.errors import UsageError, WrongTypeError
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


def first_url(*given: str | None) -> str:
    """Return the first URL in *given*: the application's, the environment's, the usual one.

    Raises:
        WrongTypeError: It is no text.
    """
    url: object = next(filter(None, given), "")
    if not isinstance(url, str):  # not shown: there may be a password in it
        msg = f"base_url must be a text, not a {type(url).__name__}; of a URL pass str(url)"
        raise WrongTypeError(msg)
    return url


def address_of(base_url: str) -> Address:
    """Return the address that *base_url* stands for.

    Raises:
        UsageError: It is not a URL of HTTP; what may be secret of it is not shown.
    """
    before_query, _, query = base_url.partition("?")
    scheme, separator, rest = before_query.partition("://")
    where, slash, path = rest.partition("/")
    user, at, host = where.rpartition("@")
    if separator == "" or scheme not in ("http", "https"):
        shown = before_query.rpartition("@")[2]
        msg = f"base_url must begin with http:// or https://, not {shown!r}"
        raise UsageError(msg)
    if not (_is_server(host) and base_url.isprintable()):
        msg = "base_url names no server: check host, port and line ends; / in a password is %2F"
        raise UsageError(msg)
    headers = {"authorization": _basic(user)} if at else EMPTY
    return Address(f"{scheme}://{host}{slash}{path}".rstrip("/"), headers, query)


def _is_server(host: str) -> bool:
    """Return whether *host*, a port behind it or not, may stand in a URL."""
    try:
        parts = urlsplit(f"//{host}")
        name = parts.hostname or ""
        return parts.port != 0 and name.encode("idna") != b""
    except ValueError:  # the port is not a number, a label too long
        return False


def _basic(user: str) -> str:
    """Return the header by which a user is named, as browsers make it of a URL."""
    name, _, password = user.partition(":")
    secret = f"{unquote(name)}:{unquote(password)}".encode()
    return f"Basic {base64.b64encode(secret).decode()}"
