"""`serve`: the chat page of `python -m chatclient web`."""

import ipaddress
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from starlette.applications import Starlette
from starlette.routing import Mount

from chatclient.client.client import ChatClient
from chatclient.errors import UsageError
from chatclient.services.web.chat import WebChat
from chatclient.services.web.page import web_app

_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1", "[::1]")


def web_chat(found: object, name: str) -> WebChat:
    """Return the chat for *found*: a client, a `WebChat`, or a function that returns one.

    Raises:
        UsageError: It is something else.
    """
    if not isinstance(found, ChatClient | WebChat) and callable(found):
        found = found()
    if isinstance(found, ChatClient):
        return WebChat(found, trail=True)
    if isinstance(found, WebChat):
        return found
    msg = f"{name} must be a ChatClient, a WebChat or a function that returns one, not {found!r}"
    raise UsageError(msg)


def serve(chat: WebChat, host: str, port: int, report: Callable[[str], object]) -> None:
    """Serve the chat page until the process is interrupted.

    Args:
        chat: What the page talks to; its client is closed at the end.
        host: The address to bind.
        port: The port; 0 for any that is free.
        report: Called with each line for the user.

    Raises:
        UsageError: The extra `web` is not installed, or the address cannot be bound.
    """
    try:
        import uvicorn  # noqa: PLC0415 - optional
    except ImportError as error:
        msg = "the chat page needs uvicorn; pip install 'chatclient[web]'"
        raise UsageError(msg) from error

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
        await chat.client.aclose()

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
