"""A chat page with the endpoints of a `WebChat`; `serve` is `python -m chatclient web`."""

import base64
import hashlib
import ipaddress
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Mount, Route

from chatclient.errors import UsageError
from chatclient.extend import needed_by

_PAGE = Path(__file__).with_name("page.html")


class Endpoints(Protocol):
    """The endpoints of a `WebChat`."""

    async def ai_sdk(self, request: Request, /) -> Response:
        """Answer a request of the AI SDK."""
        ...

    async def ai_sdk_stream(self, request: Request, /) -> Response:
        """Answer a request to continue a stream of the AI SDK, or to cancel a turn."""
        ...

    async def ag_ui(self, request: Request, /) -> Response:
        """Answer a request of AG-UI."""
        ...


def web_app(chat: Endpoints, *, allowed_hosts: Sequence[str] = ("*",)) -> Starlette:
    """Return an ASGI application with a chat page, and the endpoints of *chat*.

    Mounted into another application, its path ends with a slash: `/chat/`.

    Args:
        chat: A `WebChat`.
        allowed_hosts: The host names that browsers may use; a site whose name an attacker points
            to this computer is refused.
    """
    return Starlette(
        routes=[
            Route("/", _page),
            Route("/ai-sdk", chat.ai_sdk, methods=["POST"]),
            Route("/ai-sdk/{id:path}/stream", chat.ai_sdk_stream, methods=["GET", "DELETE"]),
            Route("/ag-ui", chat.ag_ui, methods=["POST"]),
        ],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=list(allowed_hosts))],
    )


async def _page(_request: Request) -> Response:
    page, policy = _page_and_policy()
    return HTMLResponse(page, headers={"content-security-policy": policy})


@cache
def _page_and_policy() -> tuple[str, str]:
    """Return the page and its content security policy: only its own script and style are used."""
    page = _PAGE.read_text("utf-8")
    policy = (
        f"default-src 'none'; script-src {_hash_of('script', page)};"
        f" style-src {_hash_of('style', page)}; img-src data: https: http:; connect-src 'self';"
        " base-uri 'none'; form-action 'self'; frame-ancestors 'self'"
    )
    return page, policy


def _hash_of(tag: str, page: str) -> str:
    (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
    return f"'sha256-{digest}'"


_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1", "[::1]")


def serve(
    chat: Endpoints,
    host: str,
    port: int,
    *,
    report: Callable[[str], object],
    close: Callable[[], Awaitable[None]],
) -> None:
    """Serve the chat page until the process is interrupted.

    Args:
        chat: A `WebChat`.
        host: The address to bind.
        port: The port; 0 for any that is free.
        report: Called with each line for the user.
        close: Called at the end, on the event loop of the server.

    Raises:
        UsageError: The address cannot be bound.
        MissingExtraError: The extra `web` is not installed.
    """
    with needed_by("the chat page"):
        import uvicorn  # noqa: PLC0415 - `web_app` needs no server

    listener = _bound(host, port)
    local = _is_loopback(host)
    shown = f"[{host}]" if ":" in host else host
    report(f"http://{shown}:{listener.getsockname()[1]}/  (Ctrl-C ends it)")
    if not local:
        report("Whoever reaches this address can use the client and its tools: there is no login.")
    page = web_app(chat, allowed_hosts=_LOOPBACK_NAMES if local else ("*",))

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        yield
        await close()

    app = Starlette(routes=[Mount("/", page)], lifespan=lifespan)
    config: Any = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=3)
    with listener, suppress(KeyboardInterrupt):
        uvicorn.Server(config).run([listener])


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        msg = f"cannot listen on {host} port {port}: {error.strerror}; see --host and --port"
        raise UsageError(msg) from error


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # another name
        return False
