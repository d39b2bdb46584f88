"""The server that the conformance suite of MCP asks for, as far as a server of tools can be it."""

import asyncio
import sys
from typing import Any

from chatclient import Media, ToolContext, tool
from chatclient.errors import ToolError
from chatclient.mcp import McpProgress, McpToolServer
from chatclient.tools import FunctionToolCallback

PNG = Media("image/png", b"\x89PNG\r\n\x1a\n")
WAV = Media("audio/wav", b"RIFF\x00\x00\x00\x00WAVE")
TEXT = Media("text/plain", b"This is an embedded resource content.", name="example.txt")
SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {"name": {"type": "string"}, "address": {"$ref": "#/$defs/address"}},
    "additionalProperties": False,
}


@tool
def test_simple_text() -> str:
    """Return a text."""
    return "This is a simple text response for testing."


@tool
def test_image_content() -> Media:
    """Return an image."""
    return PNG


@tool
def test_audio_content() -> Media:
    """Return sound."""
    return WAV


@tool
def test_embedded_resource() -> Media:
    """Return a resource."""
    return TEXT


@tool
def test_multiple_content_types() -> list[str | Media]:
    """Return several kinds of content."""
    return ["Multiple content types test:", PNG, TEXT]


@tool
def test_error_handling() -> str:
    """Fail."""
    raise ToolError("This tool intentionally returns an error for testing")


@tool
async def test_tool_with_progress(context: ToolContext) -> str:
    """Report progress."""
    for done in (0, 50, 100):
        await context.progress(McpProgress(done, 100))
        await asyncio.sleep(0.05)
    return "Done."


def anything(**_given: Any) -> str:
    """Take arguments of a schema of its own."""
    return "Done."


def main() -> None:
    """Serve the tools on the port that is the first argument."""
    own_schema = FunctionToolCallback(
        anything, name="json_schema_2020_12_tool", input_schema=SCHEMA
    )
    tools = [
        *(test_simple_text, test_image_content, test_audio_content, test_embedded_resource),
        *(test_multiple_content_types, test_error_handling, test_tool_with_progress, own_schema),
    ]
    McpToolServer(*tools, name="conformance", version="1").serve_http(port=int(sys.argv[1]))


if __name__ == "__main__":
    main()
