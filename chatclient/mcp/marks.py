"""Marks of servers for content that is not for the model.

Sources: the annotations of the protocol; MCP Apps (`io.modelcontextprotocol/ui`), also in the flat
form of its drafts; OpenAI's Apps SDK, which came before it.
"""

from typing import Any

from mcp_types import Tool

USER_CONTENT = "mcp_user_content"
"""The metadata key of a tool result with the content that is for the user only, as it was sent."""


def is_for_model(tool: Tool) -> bool:
    """Return whether a model may call *tool*, and not only the page that the server provides."""
    meta = tool.meta or {}
    visibility = _in_ui(meta, "visibility")
    if isinstance(visibility, list) and visibility and "model" not in visibility:
        return False
    return meta.get("openai/visibility") != "private"


def needs_task(tool: Tool) -> bool:
    """Return whether *tool* can only be called as a task, whose result is fetched later."""
    return tool.execution is not None and tool.execution.task_support == "required"


def has_page(tool: Tool) -> bool:
    """Return whether results of *tool* are shown on a page; their structured content is for it."""
    meta = tool.meta or {}
    return bool(_in_ui(meta, "resourceUri") or meta.get("openai/outputTemplate"))


def is_content_for_model(item: Any) -> bool:
    """Return whether *item*, a resource or content, is neither a page nor for the user only."""
    audience = item.annotations.audience if item.annotations is not None else None
    named = getattr(item, "resource", item)
    uri = str(getattr(named, "uri", None) or getattr(named, "uri_template", ""))
    return not uri.startswith("ui://") and (not audience or "assistant" in audience)


def _in_ui(meta: dict[str, Any], name: str) -> Any:
    ui = meta.get("ui")
    found = ui.get(name) if isinstance(ui, dict) else None
    return meta.get(f"ui/{name}") if found is None else found
