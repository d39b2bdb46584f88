"""How a user logs in at an MCP server: the settings, and where tokens are kept."""

import hashlib
import json
import os
import sys
import tempfile
import webbrowser
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from chatclient.errors import UsageError
from chatclient.extend import check_callable, check_type, get_logger, seconds

OpenUrl = Callable[[str], object | Awaitable[object]]
"""Shows a page to the user. A plain function is called in a worker thread."""

_LAST_PORT = 65_535
_SERVICE = "chatclient MCP"  # the name of the entries in a keyring

log = get_logger(__name__)


def open_browser(url: str) -> None:
    """Open *url* in the user's browser; without one, ask for it at the standard error stream."""
    if not webbrowser.open(url):
        print(f"Open this page to log in: {url}", file=sys.stderr)  # noqa: T201 - for the user


@dataclass(frozen=True, slots=True)
class McpOAuth:
    """The login of a user at an MCP server through the browser: OAuth with PKCE.

    The browser is redirected to a port of this machine that listens during the login. Tokens are
    refreshed, and kept for the next start in the user's keyring if the extra `keyring` is
    installed, otherwise in a file that only the user can read.

    Attributes:
        client_id: The id of the application, for servers that do not register clients by
            themselves; or the URL of its client metadata document, for servers that read it.
        client_secret: The secret that belongs to it, if there is one.
        port: The port of the redirect, for an application whose redirect is registered as
            `http://127.0.0.1:<port>/callback`; 0 for any.
        timeout: Seconds that the user may take. They do not count towards `connect_timeout`.
        open_url: Shows the page to the user; default: in the browser.

    Raises:
        UsageError: A value is of the wrong type or out of range, or there is a secret without an
            id.
    """

    client_id: str | None = None
    client_secret: str | None = field(default=None, repr=False)
    port: int = 0
    timeout: float = 300.0
    open_url: OpenUrl = open_browser

    def __post_init__(self) -> None:
        if self.client_secret is not None and self.client_id is None:
            msg = "a client_secret belongs to a client_id; pass both"
            raise UsageError(msg)
        check_type("port", self.port, int)
        if not 0 <= self.port <= _LAST_PORT:
            msg = f"port must be from 0 to {_LAST_PORT}, not {self.port}"
            raise UsageError(msg)
        object.__setattr__(self, "timeout", seconds("timeout", self.timeout))
        check_callable("open_url", self.open_url, "pass a function of the URL")


class TokenStore:
    """The stored login of the user at one server, in a keyring or a file.

    Args:
        url: The URL of the server.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        digest = hashlib.sha256(url.encode()).hexdigest()[:16]
        self.path = _data_dir() / "mcp" / f"{urlsplit(url).hostname}-{digest}.json"

    def load(self) -> dict[str, Any]:
        """Return what was saved; empty if there is nothing, or nothing that can be read."""
        text = None
        if (keyring := _keyring()) is not None:
            with suppress(Exception):  # each system's keyring has errors of its own
                text = keyring.get_password(_SERVICE, self._url)
        if text is None:
            with suppress(OSError):
                text = self.path.read_text("utf-8")
        with suppress(ValueError):
            loaded = json.loads(text or "{}")
            if isinstance(loaded, dict):
                return loaded
        return {}

    def save(self, values: dict[str, Any]) -> None:
        """Save *values*; a failure is logged, because the login itself has succeeded."""
        text = json.dumps(values)
        if (keyring := _keyring()) is not None:
            try:
                keyring.set_password(_SERVICE, self._url, text)
            except Exception as error:  # noqa: BLE001 - locked, too long for Windows, and others
                log.info("keyring refuses the login, saved in a file", error=type(error).__name__)
            else:
                self.path.unlink(missing_ok=True)  # of the time without a keyring
                return
        try:
            # Replace the file by one that only its owner may read.
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # `mkstemp` makes files of mode 600.
            handle, name = tempfile.mkstemp(dir=self.path.parent, prefix=".login-")
            try:
                with os.fdopen(handle, "w", encoding="utf-8") as file:
                    file.write(text)
                Path(name).replace(self.path)
            except OSError:
                Path(name).unlink(missing_ok=True)
                raise
        except OSError as error:
            log.warning("mcp login cannot be saved", path=str(self.path), error=error.strerror)


def _keyring() -> Any:
    """Return the `keyring` package, or None if it is not installed or finds no keyring."""
    try:
        import keyring  # noqa: PLC0415 - an extra
        from keyring.backends.fail import Keyring as Missing  # noqa: PLC0415 - as above
    except ImportError:
        return None
    return None if isinstance(keyring.get_keyring(), Missing) else keyring


def _data_dir() -> Path:
    """Return the folder for data of this library in the user's home."""
    if sys.platform == "win32" and (local := os.environ.get("LOCALAPPDATA")):
        return Path(local) / "chatclient"
    given = os.environ.get("XDG_DATA_HOME")
    return (Path(given) if given else Path.home() / ".local" / "share") / "chatclient"
