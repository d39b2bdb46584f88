"""The login at MCP servers through the browser, with an authorization server of these tests."""

import json
import os
import secrets
import socket
import stat
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import parse_qs, urlencode, urlsplit
from urllib.request import urlopen

import pytest

from chatclient.testing import Ask
from tests.support.mcp_setup import ask_with_tools

pytest.importorskip("mcp")

import uvicorn
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from pydantic import AnyHttpUrl
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Mount, Route

from chatclient import tool
from chatclient.errors import McpServerError, UsageError
from chatclient.mcp import McpOAuth, McpServer, McpToolCallbackProvider, McpToolServer, oauth
from chatclient.mcp.oauth import TokenStore, open_browser
from chatclient.testing import call
from chatclient.tools import tool_callbacks


@tool(effect="read")
def whoami() -> str:
    """Tell who asks."""
    return "ada"


@dataclass
class Office:
    """An MCP server, and the authorization server of its users."""

    url: str = ""
    logins: list[dict[str, str]] = field(default_factory=list)
    """The queries of the pages that were opened."""
    grants: list[str] = field(default_factory=list)
    tokens: set[str] = field(default_factory=set)
    registers: bool = True
    gives_tokens: bool = True
    lifetime: int = 3600

    async def verify_token(self, token: str) -> AccessToken | None:
        known = token in self.tokens
        return AccessToken(token=token, client_id="c", scopes=[]) if known else None

    def app(self) -> Starlette:
        settings = AuthSettings(
            issuer_url=AnyHttpUrl(self.url),
            resource_server_url=AnyHttpUrl(f"{self.url}/mcp"),
            validate_token_resource=False,
        )
        served = McpToolServer(whoami).http_app(auth=self, auth_settings=settings)
        routes = [
            Route("/.well-known/oauth-authorization-server", self.metadata),
            Route("/register", self.register, methods=["POST"]),
            Route("/authorize", self.authorize),
            Route("/token", self.token, methods=["POST"]),
            Mount("/", served),
        ]
        return Starlette(
            routes=routes, lifespan=lambda _app: served.router.lifespan_context(served)
        )

    async def metadata(self, _request: Request) -> Response:
        names = {"registration_endpoint": "register", "token_endpoint": "token"}
        found = {name: f"{self.url}/{path}" for name, path in names.items()}
        methods = ["none", "client_secret_basic"]
        return JSONResponse(
            {
                **found,
                "issuer": str(AnyHttpUrl(self.url)),
                "authorization_endpoint": f"{self.url}/authorize",
                "response_types_supported": ["code"],
                "code_challenge_methods_supported": ["S256"],
                "token_endpoint_auth_methods_supported": methods,
            }
        )

    async def register(self, request: Request) -> Response:
        if not self.registers:
            return Response("no", 403)
        given = await request.json()
        return JSONResponse({**given, "client_id": "c", "token_endpoint_auth_method": "none"}, 201)

    async def authorize(self, request: Request) -> Response:
        query = dict(request.query_params)
        self.logins.append(query)
        back = urlencode({"code": "code", "state": query["state"]})
        return RedirectResponse(f"{query['redirect_uri']}?{back}")

    async def token(self, request: Request) -> Response:
        body = parse_qs((await request.body()).decode())
        if not self.gives_tokens:
            return Response("secret", 400)
        self.grants.append(body["grant_type"][0])
        made = secrets.token_hex(4)
        self.tokens.add(made)
        return JSONResponse(
            {
                "access_token": made,
                "token_type": "Bearer",
                "refresh_token": "again",
                "expires_in": self.lifetime,
            }
        )


@pytest.fixture
def office() -> Iterator[Office]:
    listener = socket.create_server(("127.0.0.1", 0))
    office = Office(f"http://127.0.0.1:{listener.getsockname()[1]}")
    config = uvicorn.Config(office.app(), log_level="error", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    yield office
    server.should_exit = True
    thread.join(30)
    listener.close()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep logins in a folder of the test, and use no keyring of this machine."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr("chatclient.mcp.oauth._keyring", lambda: None)
    return tmp_path


def browse(url: str) -> bool:
    with urlopen(url) as page:
        return bool(page.read())


def connect(office: Office, **settings: Any) -> list[str]:
    """Return the names of the tools, over a new connection."""
    login = McpOAuth(**{"open_url": browse, **settings})
    server = McpServer.http("office", f"{office.url}/mcp", auth=login, connect_timeout=5)
    with McpToolCallbackProvider(server) as tools:
        return [each.definition.name for each in tool_callbacks(tools)]


def files(home: Path) -> list[Path]:
    return [path for path in home.rglob("*") if path.is_file()]


def test_login(ask: Ask, office: Office, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user logs in once, and the login is kept in a file that only the user can read."""
    monkeypatch.setattr("webbrowser.open", browse)
    server = McpServer.http("office", f"{office.url}/mcp", auth="oauth")
    with McpToolCallbackProvider(server) as tools:
        result, _ = ask_with_tools(ask, tools, call("whoami"), "done")

    assert result.executions[0].response.data == "ada"
    assert connect(office) == ["whoami"]
    assert office.grants == ["authorization_code"]
    [login] = office.logins
    assert urlsplit(login["redirect_uri"]).hostname == "127.0.0.1"
    assert login["code_challenge_method"] == "S256"
    [path] = files(home)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_expired_token(office: Office) -> None:
    """A token that has expired since the last start is renewed without the user."""
    office.lifetime = 1
    connect(office)
    time.sleep(1.1)

    assert connect(office) == ["whoami"]
    assert office.grants[0] == "authorization_code"
    assert set(office.grants[1:]) == {"refresh_token"}
    assert len(office.logins) == 1


def test_revoked_token(office: Office) -> None:
    """Who is logged out by the server logs in again."""
    connect(office)
    office.tokens.clear()

    assert connect(office) == ["whoami"]
    assert len(office.logins) == 2


def test_the_user_takes_time(office: Office) -> None:
    """The time of the user does not count towards the timeout of connecting."""

    def slowly(url: str) -> None:
        time.sleep(1)
        browse(url)

    login = McpOAuth(open_url=slowly)
    server = McpServer.http("office", f"{office.url}/mcp", auth=login, connect_timeout=0.9)
    with McpToolCallbackProvider(server) as tools:
        assert len(tool_callbacks(tools)) == 1


def answer_with(**query: str) -> Any:
    """Return a browser that comes back with *query* and the right state."""

    def open_url(url: str) -> None:
        login = {name: given[0] for name, given in parse_qs(urlsplit(url).query).items()}
        browse(f"{login['redirect_uri']}?{urlencode({'state': login['state'], **query})}")

    return open_url


def test_refused_by_the_user(office: Office) -> None:
    """A login that is given up is an error."""
    with pytest.raises(McpServerError, match="the login at the MCP server 'office' failed: the lo"):
        connect(office, open_url=answer_with(error="access_denied"))


def test_nobody_logs_in(office: Office) -> None:
    """The time for the login is limited."""
    with pytest.raises(McpServerError, match=r"failed: nobody logged in within 0\.2 s"):
        connect(office, open_url=lambda _url: None, timeout=0.2)


def test_broken_browser(office: Office) -> None:
    """An error of the application's function is the cause."""

    def fail(_url: str) -> None:
        raise KeyError("no display")

    with pytest.raises(McpServerError) as caught:
        connect(office, open_url=fail)

    assert isinstance(caught.value.__cause__, KeyError)


def test_requests_of_other_pages(office: Office) -> None:
    """Requests without the state of the login change nothing, and a second answer neither."""
    pages: list[str] = []

    def open_url(url: str) -> None:
        query = parse_qs(urlsplit(url).query)
        [back] = query["redirect_uri"]
        for wrong in (f"{back}?code=x&state=y", back, back.replace("callback", "favicon.ico")):
            with pytest.raises(HTTPError, match="404"):
                urlopen(wrong)
        for request in (b"GET", b"\r\n\r\n", b"GET //[ HTTP/1.1\r\n\r\n"):
            with socket.create_connection(("127.0.0.1", urlsplit(back).port or 0)) as broken:
                broken.sendall(request)
        for code in ("right", "late"):
            with urlopen(f"{back}?code={code}&state={query['state'][0]}") as page:
                pages.append(page.read().decode())

    assert connect(office, open_url=open_url) == ["whoami"]
    assert [("logged in" in page, "is over" in page) for page in pages] == [
        (True, False),
        (False, True),
    ]


def test_server_that_registers_no_clients(office: Office) -> None:
    """The error says what to pass, and that works."""
    office.registers = False

    with pytest.raises(McpServerError, match=r"not register this client; pass auth=McpOAuth\(cli"):
        connect(office)
    for secret in (None, "s3cret"):
        office.logins.clear()
        TokenStore(f"{office.url}/mcp").save({})
        assert connect(office, client_id="mine", client_secret=secret) == ["whoami"]
        assert office.logins[0]["client_id"] == "mine"


def test_server_that_gives_no_token(office: Office) -> None:
    """What the server wrote is not repeated."""
    office.gives_tokens = False

    with pytest.raises(McpServerError, match=r"server 'office' failed: it gives no token$"):
        connect(office)


def test_port_in_use(office: Office) -> None:
    """With a fixed port, the error names it; otherwise the client registers another one."""
    connect(office)
    port = urlsplit(office.logins[0]["redirect_uri"]).port
    assert port is not None
    office.tokens.clear()
    with socket.create_server(("127.0.0.1", port)):
        with pytest.raises(McpServerError, match=f"port {port} for the login is in use"):
            connect(office, port=port)
        assert connect(office) == ["whoami"]
    assert urlsplit(office.logins[-1]["redirect_uri"]).port != port


@pytest.mark.parametrize(
    "content", ["", "[]", "{", '{"client": {"redirect_uris": []}, "tokens": 5}', '{"client": 3}']
)
def test_unreadable_file(office: Office, content: str) -> None:
    """A damaged file means a new login."""
    path = TokenStore(f"{office.url}/mcp").path
    path.parent.mkdir(parents=True)
    path.write_text(content)

    assert connect(office) == ["whoami"]
    assert json.loads(path.read_text())["tokens"]["access_token"] in office.tokens


def test_login_that_cannot_be_saved(office: Office, home: Path) -> None:
    """The login works, and there is another one at the next start."""
    (home / "chatclient").write_text("not a folder")

    assert connect(office) == ["whoami"]
    assert connect(office) == ["whoami"]
    assert len(office.logins) == 2


def test_failed_write_leaves_nothing(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old login stays, and no temporary file."""
    store = TokenStore("http://x/mcp")
    store.save({"tokens": 1})

    def fail(_path: Path, _target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    store.save({"tokens": 2})

    assert files(home) == [store.path]
    assert store.load() == {"tokens": 1}


# --- the keyring ---


class Ring:
    """A keyring in memory, as the `keyring` package shows it."""

    def __init__(self) -> None:
        self.entries: dict[tuple[str, str], str] = {}
        self.locked = False

    def get_password(self, service: str, user: str) -> str | None:
        if self.locked:
            raise RuntimeError("locked")
        return self.entries.get((service, user))

    def set_password(self, service: str, user: str, text: str) -> None:
        if self.locked:
            raise RuntimeError("locked")
        self.entries[service, user] = text


def test_keyring(office: Office, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A keyring replaces the file; one that refuses is replaced by the file."""
    ring = Ring()
    connect(office)
    monkeypatch.setattr("chatclient.mcp.oauth._keyring", lambda: ring)
    office.tokens.clear()

    assert connect(office) == connect(office) == ["whoami"]
    assert [user for _service, user in ring.entries] == [f"{office.url}/mcp"]
    assert not files(home)
    assert len(office.logins) == 2

    ring.locked = True
    assert connect(office) == connect(office) == ["whoami"]
    assert len(files(home)) == 1
    assert len(office.logins) == 3


def test_keyring_that_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package is used if it finds a keyring."""
    keyring = pytest.importorskip("keyring")
    from keyring.backends.fail import Keyring as Missing
    from keyring.backends.null import Keyring as Null

    monkeypatch.undo()
    for backend, used in ((Missing, None), (Null, keyring)):
        monkeypatch.setattr(keyring, "get_keyring", lambda backend=backend: backend())
        assert oauth._keyring() is used
    monkeypatch.setitem(sys.modules, "keyring", None)
    assert oauth._keyring() is None


# --- settings ---


def test_wrong_settings() -> None:
    """Mistakes are found early."""
    with pytest.raises(UsageError, match="pass a token in headers"):
        McpServer.http("x", "https://x/mcp", auth="Bearer 123")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="pass both"):
        McpOAuth(client_secret="s3cret")
    with pytest.raises(UsageError, match="timeout must be a positive"):
        McpOAuth(timeout=0)
    with pytest.raises(UsageError, match="open_url"):
        McpOAuth(open_url="firefox")  # type: ignore[arg-type]
    assert "s3cret" not in repr(McpOAuth("id", "s3cret"))


def test_without_a_browser(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The user is told the page."""
    monkeypatch.setattr("webbrowser.open", lambda _url: False)

    open_browser("https://x/login")

    assert capsys.readouterr().err == "Open this page to log in: https://x/login\n"


@pytest.mark.parametrize(
    ("platform", "variables", "folder"),
    [
        ("linux", {"XDG_DATA_HOME": "/data"}, "/data/chatclient"),
        ("darwin", {"HOME": "/home/ada"}, "/home/ada/.local/share/chatclient"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local/chatclient"),
        ("win32", {"HOME": "/home/ada"}, "/home/ada/.local/share/chatclient"),
    ],
)
def test_folder(
    platform: str, variables: dict[str, str], folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each system's folder for data of a user."""
    monkeypatch.setattr("chatclient.mcp.oauth.sys.platform", platform)
    for name in ("XDG_DATA_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setitem(os.environ, name, value)

    assert TokenStore("https://crm.example/mcp").path.parent == Path(folder) / "mcp"
    assert TokenStore("https://crm.example/mcp").path.name.startswith("crm.example-")
