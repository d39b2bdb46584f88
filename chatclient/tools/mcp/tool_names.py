"""Names of the tools of MCP servers."""

import hashlib
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Literal

from chatclient.chat.tool import RESERVED_TOOL_NAMES
from chatclient.tools.function.naming import sanitise_tool_name

ToolNamePrefix = Literal["on_clash", "always", "never"]
"""When a tool's name gets its server's name as a prefix."""

_DIGEST = 8  # hexadecimal digits


def names_for(
    tools: Sequence[tuple[str, str]], prefix: ToolNamePrefix, taken: Collection[str] = ()
) -> list[str]:
    """Return a valid name for each of *tools*, which depends only on the arguments.

    Args:
        tools: For each tool the name of its server, and its own name.
        prefix: When the server's name is prepended; always to the names of the library's own tools.
        taken: Names of other tools, which count as clashes, too.
    """
    names = [sanitise_tool_name(tool) for _, tool in tools]
    counts = Counter([*names, *taken])
    for at, (server, tool) in enumerate(tools):
        clashes = prefix != "never" and counts[names[at]] > 1
        if prefix == "always" or clashes or names[at] in RESERVED_TOOL_NAMES:
            names[at] = sanitise_tool_name(f"{server}_{tool}")
        if names[at] in RESERVED_TOOL_NAMES:  # such as "final" and "answer"
            names[at] = _distinct(names[at], server, tool)
    if prefix == "never":
        return names
    # "a" with "b_c" and "a_b" with "c" still clash; so do names that differ only in characters
    # that no provider accepts.
    counts = Counter([*names, *taken])
    return [
        name if counts[name] == 1 else _distinct(name, server, tool)
        for name, (server, tool) in zip(names, tools, strict=True)
    ]


def _distinct(name: str, server: str, tool: str) -> str:
    digest = hashlib.sha256(f"{server}\0{tool}".encode(errors="surrogatepass")).hexdigest()
    return f"{name[: 63 - _DIGEST]}_{digest[:_DIGEST]}"
