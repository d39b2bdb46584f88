"""Helpers for tests of MCP: servers, requests, and checks for leaked threads and processes."""

import os
import sys
import threading
from typing import Any

from chatclient import ChatClient
from chatclient.mcp import McpServer
from chatclient.testing import Answer, Ask, Asked, ScriptedModel
from tests.support.paths import SUPPORT

PEER = SUPPORT / "mcp_peer.py"


def peer(name: str = "peer", fault: str = "", env: Any = None, **settings: Any) -> McpServer:
    """Return a server with the given fault; see mcp_peer.py."""
    # -S: the server needs only the standard library and starts twice as fast without site.
    return McpServer.stdio(name, sys.executable, "-S", str(PEER), fault, env=env, **settings)


def ask_with_tools(ask: Ask, source: Any, *answers: Answer, **builder: Any) -> tuple[Asked, Any]:
    """Return the result of a request with the tools of *source*, and the model."""
    model = ScriptedModel(*answers)
    client = ChatClient.builder(model).default_tools(source).build()
    request = client.prompt("x")
    if builder:
        request = request.tool_context(builder)
    return ask(request), model


def offered_names(model: ScriptedModel, at: int = 0) -> list[str]:
    """Return the names of the tools offered in model call number *at*."""
    return [c.definition.name for c in model.prompts[at].options.tool_callbacks or ()]


def mcp_threads() -> list[threading.Thread]:
    """Return the threads of connections."""
    return [each for each in threading.enumerate() if each.name == "chatclient-mcp"]


def runs(pid: int) -> bool:
    """Return whether process *pid* exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
