"""Converts between results of MCP and `ToolResult`; reads the marks of content for the user only.

Sources of the marks: the annotations of the protocol; MCP Apps (`io.modelcontextprotocol/ui`), also
in the flat form of its drafts; OpenAI's Apps SDK, which came before it.
"""

import base64
import binascii
import json
from collections.abc import Iterable
from contextlib import suppress
from itertools import filterfalse
from typing import Any, assert_never

from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
    Tool,
)

from chatclient.chat.messages import Media
from chatclient.chat.tool import OWN_METADATA, ToolResult
from chatclient.errors import ToolError
from chatclient.mcp.limits import MCP_LIMITS, McpLimits

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


_UNKNOWN_TYPE = "application/octet-stream"


def from_mcp_result(
    result: CallToolResult,
    limits: McpLimits = MCP_LIMITS,
    server: str = "",
    *,
    has_page: bool = False,
) -> ToolResult:
    """Return a server's result as a `ToolResult`.

    Texts are joined by line breaks. Structured content becomes the value of the result, and is
    appended as JSON unless a text contains the same data. `_meta` becomes the metadata, without
    keys that this library uses. Content for the user only becomes metadata as well.

    Args:
        result: The result.
        limits: The server's limits.
        server: The server's name, for errors.
        has_page: Whether structured content is for a page of the server, if there is a text.

    Raises:
        McpServerError: The result is too large.
        ToolError: The tool failed. The message is the text of the result; the error has its media,
            metadata and value, too.
    """
    texts, media = read_content(filter(is_content_for_model, result.content))
    text, value = "\n".join(texts), result.structured_content
    if value is not None and not (has_page and text) and not _contains(text, value):
        data = json.dumps(value, ensure_ascii=False)
        text = f"{text}\n{data}" if text else data
    metadata = {key: item for key, item in (result.meta or {}).items() if key not in OWN_METADATA}
    if for_user := list(filterfalse(is_content_for_model, result.content)):
        metadata[USER_CONTENT] = [
            block.model_dump(mode="json", by_alias=True, exclude_none=True) for block in for_user
        ]
        text = text or ("" if media else "The result is shown to the user.")
    limits.check_size(text, media, server)
    if result.is_error:
        text = text or "the tool failed, and the server does not say why"
        raise ToolError(text, media=media, metadata=metadata, value=value)
    return ToolResult(text, media, metadata=metadata, value=value)


def read_content(content: Iterable[ContentBlock]) -> tuple[list[str], tuple[Media, ...]]:
    """Return the texts and the media of *content*."""
    texts: list[str] = []
    media: list[Media] = []
    for block in content:
        match block:
            case TextContent(text=text):
                texts.append(text)
            case ImageContent() | AudioContent():
                media.append(Media(block.mime_type, _bytes(block.data)))
            case EmbeddedResource(resource=resource):
                add_resource(resource, texts, media)
            case ResourceLink():
                about = f": {block.description}" if block.description else ""
                texts.append(f"[{block.title or block.name}]({block.uri}){about}")
            case _:
                assert_never(block)
    return texts, tuple(media)


def add_resource(
    resource: TextResourceContents | BlobResourceContents, texts: list[str], media: list[Media]
) -> None:
    """Add the content of a resource to *texts* or *media*."""
    match resource:
        case TextResourceContents(text=text):
            texts.append(text)
        case BlobResourceContents(blob=blob):
            kind = resource.mime_type or _UNKNOWN_TYPE
            media.append(Media(kind, _bytes(blob), name=resource.uri.rpartition("/")[2] or None))
        case _:
            assert_never(resource)


def _bytes(data: str) -> bytes:
    # Some servers add line breaks, or omit the padding.
    data = "".join(data.split())
    try:
        return base64.b64decode(data + "=" * (-len(data) % 4), validate=True)
    except binascii.Error as error:
        msg = "the tool's answer holds content that is not base 64"
        raise ToolError(msg) from error


def _contains(text: str, data: Any) -> bool:
    """Return whether *text* is *data* as JSON, or the single value in *data*."""
    wrapped = data.get("result") if isinstance(data, dict) and len(data) == 1 else None
    if wrapped is not None and text == wrapped:
        return True
    try:
        parsed = json.loads(text)
    except ValueError:
        return False
    return bool(parsed == data or (wrapped is not None and parsed == wrapped))


def to_mcp_result(result: ToolResult, *, structured: bool = False) -> CallToolResult:
    """Return *result* as a result of MCP.

    Args:
        result: The result.
        structured: Whether the client expects a JSON object, and gets the text as structured
            content, too. The value of the tool is not used: interceptors may have changed the text.
            Another text is sent as an error, which clients do not check.
    """
    content: list[ContentBlock] = []
    if result.text or not result.media:
        content.append(TextContent(text=result.text))
    content.extend(_block(media) for media in result.media)
    if not structured or result.is_error:
        return CallToolResult(content=content, is_error=result.is_error)
    with suppress(ValueError):
        if isinstance(data := json.loads(result.text), dict):
            return CallToolResult(content=content, structured_content=data)
    return CallToolResult(content=content, is_error=True)


def _block(media: Media) -> ContentBlock:
    kind = media.mime_type
    if isinstance(media.data, str):
        return ResourceLink(name=media.name or media.data, uri=media.data, mime_type=kind)
    if kind.startswith("image/"):
        return ImageContent(data=media.base64(), mime_type=kind)
    if kind.startswith("audio/"):
        return AudioContent(data=media.base64(), mime_type=kind)
    uri = f"attachment:///{media.name or media.id or 'content'}"
    return EmbeddedResource(
        resource=BlobResourceContents(uri=uri, mime_type=kind, blob=media.base64())
    )
