"""What models call the tools of MCP servers."""

import hashlib
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Literal

from chatclient.tools.naming import sanitise_tool_name

ToolNamePrefix = Literal["on_clash", "always", "never"]
"""When a tool's name gets its server's name in front."""

_DIGEST = 8  # hexadecimal digits


def names_for(
    tools: Sequence[tuple[str, str]], prefix: ToolNamePrefix, taken: Collection[str] = ()
) -> list[str]:
    """Return a name for each of *tools*, which providers accept and which depends on nothing else.

    Args:
        tools: The name of the server and the name it is to have, for each tool.
        prefix: When the server's name goes in front.
        taken: Names that other tools have already; to share one is a clash as well.
    """
    names = [sanitise_tool_name(tool) for _, tool in tools]
    if prefix == "never":
        return names
    counts = Counter([*names, *taken])
    for at, (server, tool) in enumerate(tools):
        if prefix == "always" or counts[names[at]] > 1:
            names[at] = sanitise_tool_name(f"{server}_{tool}")
    # "a" with "b_c" and "a_b" with "c" are still one; so are names that differed in what no
    # provider accepts.
    counts = Counter([*names, *taken])
    return [
        name if counts[name] == 1 else _distinct(name, server, tool)
        for name, (server, tool) in zip(names, tools, strict=True)
    ]


def _distinct(name: str, server: str, tool: str) -> str:
    digest = hashlib.sha256(f"{server}\0{tool}".encode(errors="surrogatepass")).hexdigest()
    return f"{name[: 63 - _DIGEST]}_{digest[:_DIGEST]}"
