"""What the tests of MCP share: servers to connect to, and a look at what is left of them."""

import os
import sys
import threading
from pathlib import Path
from typing import Any

from conftest import Ask, Asked

from chatclient import ChatClient
from chatclient.testing import Answer, ScriptedModel
from chatclient.tools.mcp import McpServer

PEER = Path(__file__).parent / "mcp_peer.py"


def peer(name: str = "peer", fault: str = "", env: Any = None, **settings: Any) -> McpServer:
    """Return a server that does as told; see mcp_peer.py."""
    # -S: it needs nothing but the standard library, and starts twice as fast without the rest.
    return McpServer.stdio(name, sys.executable, "-S", str(PEER), fault, env=env, **settings)


def asked_for(ask: Ask, source: Any, *answers: Answer, **builder: Any) -> tuple[Asked, Any]:
    """Return what a request with the tools of *source* came to, and the model it was put to."""
    model = ScriptedModel(*answers)
    client = ChatClient.builder(model).default_tools(source).build()
    request = client.prompt("x")
    if builder:
        request = request.tool_context(builder)
    return ask(request), model


def names_offered(model: ScriptedModel, at: int = 0) -> list[str]:
    """Return the names of the tools that the model was offered in its call number *at*."""
    return [c.definition.name for c in model.prompts[at].options.tool_callbacks or ()]


def mcp_threads() -> list[threading.Thread]:
    """Return the threads that connections live on."""
    return [each for each in threading.enumerate() if each.name == "chatclient-mcp"]


def runs(pid: int) -> bool:
    """Return whether process *pid* is still there."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
