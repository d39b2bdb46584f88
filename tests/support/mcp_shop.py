"""An MCP server made with the library. Run as `python mcp_shop.py stdio` or `… http PORT PATH`."""

import sys

from chatclient import ToolContext, tool
from chatclient.chat.messages import Media
from chatclient.mcp import McpToolServer


@tool(effect="read")
def opening_hours(day: str) -> str:
    """Tell when the shop is open."""
    print("stray output of a tool")  # noqa: T201 - it must not get between the messages
    return "closed" if day == "Sunday" else "9 to 18"


@tool
def picture() -> Media:
    """Show the shop."""
    return Media("image/png", b"\x89PNG")


@tool
def fail() -> str:
    """Fail."""
    print("I am about to fail.")  # noqa: T201 - over stdio, this must not reach the client
    raise ValueError("out of stock")


@tool
async def stock(context: ToolContext) -> dict[str, int]:
    """Count everything."""
    for shelf in range(3):
        await context.progress(f"shelf {shelf}")
    return {"tea": 3}


if __name__ == "__main__":
    server = McpToolServer(opening_hours, picture, fail, stock, name="shop", version="1.0")
    if sys.argv[1] == "stdio":
        server.serve_stdio()
    else:
        server.serve_http(port=int(sys.argv[2]), path=sys.argv[3])
