"""`serve`: the chat page of `python -m chatclient web`."""

import ipaddress
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount

from chatclient.errors import UsageError
from chatclient.web.page import Endpoints, web_app

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
    """
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
