"""Parsing of base URLs."""

import base64
from typing import NamedTuple
from urllib.parse import quote, unquote, urlsplit

from chatclient._internal.frozen import EMPTY
from chatclient.errors import UsageError, WrongTypeError
from chatclient.providers.http.auth import Headers, SecretHeaders


class BaseUrl(NamedTuple):
    """A parsed base URL.

    Attributes:
        url: The URL without credentials and query; paths are appended to it.
        headers: Basic authorization, if the URL contained credentials.
        query: Query of every request, such as the API's version.
    """

    url: str
    headers: Headers = EMPTY
    query: str = ""

    def join(self, path: str) -> str:
        """Return the URL of *path*, which may contain a query."""
        if not self.query:
            return self.url + path
        return f"{self.url}{path}{'&' if '?' in path else '?'}{self.query}"


def first_url(*given: str | None) -> str:
    """Return the first URL in *given* that is not empty."""
    url: object = next(filter(None, given), "")
    if not isinstance(url, str):  # not shown, because it may contain a password
        msg = f"base_url must be a text, not a {type(url).__name__}; of a URL pass str(url)"
        raise WrongTypeError(msg)
    return url


def parse_base_url(base_url: str) -> BaseUrl:
    """Parse *base_url*; errors contain no credentials."""
    before_query, _, query = base_url.partition("?")
    scheme, separator, rest = before_query.partition("://")
    authority, slash, path = rest.partition("/")
    user, at, host = authority.rpartition("@")
    if separator == "" or scheme not in ("http", "https"):
        shown = before_query.rpartition("@")[2]
        msg = f"base_url must begin with http:// or https://, not {shown!r}"
        raise UsageError(msg)
    # After a `#`, a server would not see the path.
    if not _is_valid_host(host) or not base_url.isprintable() or "#" in base_url:
        problem = "check host, port and line ends; there must be no #; / in a password is %2F"
        msg = f"base_url names no server: {problem}"
        raise UsageError(msg)
    headers = SecretHeaders({"authorization": _basic(user)}) if at else EMPTY
    return BaseUrl(f"{scheme}://{host}{slash}{path}".rstrip("/"), headers, query)


def path_step(name: str, *, safe: str = "") -> str:
    """Return *name*, such as that of a model or the id of a batch, as one step of a path.

    Raises:
        UsageError: *name* is empty, or a step that clients resolve: `.` or `..`.
    """
    if name in ("", ".", ".."):
        msg = f"{name!r} cannot be a model's name or an id"
        raise UsageError(msg)
    return quote(name, safe=safe)


def _is_valid_host(host: str) -> bool:
    """Return whether *host* is a valid host with an optional port."""
    try:
        parts = urlsplit(f"//{host}")
        name = parts.hostname or ""
        return parts.port != 0 and name.encode("idna") != b""
    except ValueError:  # the port is not a number, a label too long
        return False


def _basic(user: str) -> str:
    """Return the value of the `authorization` header for *user*, `name:password` of a URL."""
    name, _, password = user.partition(":")
    secret = f"{unquote(name)}:{unquote(password)}".encode()
    return f"Basic {base64.b64encode(secret).decode()}"
