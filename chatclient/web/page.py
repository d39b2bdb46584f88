"""`web_app`: a chat page, with the endpoints of a `WebChat`."""

import base64
import hashlib
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Protocol

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

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
