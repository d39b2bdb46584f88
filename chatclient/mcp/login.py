"""The login at an MCP server: the OAuth client of the MCP SDK, with a redirect to this machine."""

import asyncio
import socket
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any
from urllib.parse import parse_qs, urlsplit

from mcp.client.auth import (
    OAuthClientProvider,
    OAuthFlowError,
    OAuthRegistrationError,
    OAuthTokenError,
)
from mcp.client.auth.utils import is_valid_client_metadata_url
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
)
from pydantic import AnyUrl, ValidationError

from chatclient.extend import ON_LOOP
from chatclient.mcp.oauth import McpOAuth, TokenStore

_HOST = "127.0.0.1"
_PATH = "/callback"
# What a request raises that is no request of a browser.
_BROKEN = (asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError, IndexError, ValueError)
_PAGE = "<!doctype html><meta charset=utf-8><title>Login</title><p>{} You can close this page."


class Login:
    """The login of one connection.

    Args:
        url: The URL of the server.
        settings: The settings.

    Attributes:
        auth: The OAuth client, for the HTTP client of the connection.
        waiting: Is entered while the user logs in.
    """

    def __init__(self, url: str, settings: McpOAuth) -> None:
        self._settings = settings
        self._store = TokenStore(url)
        self._saved = self._store.load()
        self._page = urlsplit("")
        self._result: asyncio.Future[AuthorizationCodeResult]
        self.waiting: Callable[[], AbstractContextManager[object]] = nullcontext
        port = settings.port or self._registered_port()
        if not port:
            self._saved = {}  # registered with a redirect to a port that is in use now
            port = _free_port(0)
        self._port = port
        self._redirect = AnyUrl(f"http://{_HOST}:{port}{_PATH}")
        metadata = OAuthClientMetadata(client_name="chatclient", redirect_uris=[self._redirect])
        # An id that is a URL is that of a document that describes the client.
        document = settings.client_id if is_valid_client_metadata_url(settings.client_id) else None
        self._is_registered = settings.client_id is not None and document is None
        self.auth = OAuthClientProvider(
            url, metadata, self, self._remember, self._log_in, client_metadata_url=document
        )

    def _registered_port(self) -> int:
        """Return the port of the redirect with which this client is registered, if it is free."""
        with suppress(KeyError, IndexError, TypeError, ValueError):
            registered = urlsplit(self._saved["client"]["redirect_uris"][0]).port
            return _free_port(registered or 0)
        return 0

    # --- the storage, as the SDK calls it ---

    async def get_tokens(self) -> OAuthToken | None:
        """Return the saved tokens, and tell the SDK when they expire and where to renew them."""
        saved = self._saved
        with suppress(KeyError, ValidationError):
            tokens = OAuthToken.model_validate(saved["tokens"])
            if saved.get("metadata"):
                metadata = OAuthMetadata.model_validate(saved["metadata"])
                self.auth.context.oauth_metadata = metadata
            self.auth.context.token_expiry_time = saved.get("expires_at")
            return tokens
        return None

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """Save *tokens*."""
        context = self.auth.context
        known = context.oauth_metadata
        await self._save(
            tokens=_plain(tokens),
            expires_at=time.time() + tokens.expires_in if tokens.expires_in else None,
            metadata=None if known is None else _plain(known),
        )

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        """Return the registration of this client: that of the settings, or the saved one."""
        given = self._settings
        if self._is_registered and given.client_id is not None:
            return OAuthClientInformationFull(
                client_id=given.client_id,
                client_secret=given.client_secret,
                redirect_uris=[self._redirect],
                token_endpoint_auth_method=(
                    "none" if given.client_secret is None else "client_secret_basic"
                ),
            )
        with suppress(KeyError, ValidationError):
            return OAuthClientInformationFull.model_validate(self._saved["client"])
        return None

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Save the registration of this client."""
        await self._save(client=_plain(client_info))

    async def _save(self, **values: Any) -> None:
        self._saved = {**self._saved, **values}
        await asyncio.to_thread(self._store.save, self._saved)

    # --- the user ---

    async def _remember(self, url: str) -> None:
        self._page = urlsplit(url)

    async def _log_in(self) -> AuthorizationCodeResult:
        """Show the page for the login to the user, and return what the browser brings back.

        Raises:
            LoginError: The port is in use, or the user does not log in, or not in time.
        """
        self._result = asyncio.get_running_loop().create_future()
        try:
            listening = await asyncio.start_server(self._answer, _HOST, self._port)
        except OSError as error:
            msg = f"port {self._port} for the login is in use"
            raise LoginError(msg) from error
        try:
            with self.waiting():
                async with asyncio.timeout(self._settings.timeout):
                    await ON_LOOP.invoke(self._settings.open_url, self._page.geturl())
                    return await self._result
        except TimeoutError as error:
            msg = f"nobody logged in within {self._settings.timeout:g} s"
            raise LoginError(msg) from error
        finally:
            listening.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer a request of the browser."""
        status, page = "404 Not Found", b""
        with suppress(*_BROKEN):
            head = await reader.readuntil(b"\r\n\r\n")
            target = urlsplit(head.split(b" ", 2)[1].decode("ascii", "replace"))
            query = parse_qs(target.query)
            # Other pages can send requests here, too, but do not know the state.
            if target.path == _PATH and query.get("state") == parse_qs(self._page.query)["state"]:
                status, text = "200 OK", self._take(query)
                page = _PAGE.format(text).encode()
            kind = "content-type: text/html; charset=utf-8\r\nconnection: close"
            length = f"content-length: {len(page)}"
            writer.write(f"HTTP/1.1 {status}\r\n{kind}\r\n{length}\r\n\r\n".encode() + page)
            await writer.drain()
        writer.close()

    def _take(self, query: dict[str, list[str]]) -> str:
        """Take the result of the login from the *query* of the redirect, and return a text."""
        if self._result.done():
            return "This login is over."
        values = {name: query[name][0] for name in ("code", "state", "iss") if name in query}
        if "code" in values:
            self._result.set_result(AuthorizationCodeResult.model_validate(values))
            return "You are logged in."
        self._result.set_exception(LoginError("the login was refused or given up"))
        return "The login has failed."


class LoginError(OAuthFlowError):
    """The user could not be logged in; the message contains nothing of the server's."""


def login_failure(error: BaseException | None) -> str:
    """Return why a login failed, if *error* says so, else an empty text."""
    match error:
        case OAuthRegistrationError():
            return "it does not register this client; pass auth=McpOAuth(client_id=...)"
        case OAuthTokenError():  # whose message contains what the server wrote
            return "it gives no token"
        case OAuthFlowError():
            return str(error)
        case _:
            return ""


def _plain(model: OAuthToken | OAuthClientInformationFull | OAuthMetadata) -> dict[str, Any]:
    return model.model_dump(mode="json", exclude_none=True)


def _free_port(wanted: int) -> int:
    """Return *wanted*, or any port for 0, if nothing listens there; otherwise 0."""
    with socket.socket() as probe, suppress(OSError):
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as asyncio does
        probe.bind((_HOST, wanted))
        port: int = probe.getsockname()[1]
        return port
    return 0
