"""Tools of MCP servers, and tools offered as an MCP server."""
