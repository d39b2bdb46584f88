"""What MCP servers and our tools answer, each in the other's form."""

import base64
import binascii
import json
from collections.abc import Iterable
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
)

from chatclient.errors import ToolError
from chatclient.messages import Media
from chatclient.tool import OWN_METADATA, ToolResult

_UNKNOWN_TYPE = "application/octet-stream"


def result_of(answer: CallToolResult) -> ToolResult:
    """Return what a server answered as a tool's result.

    Texts are joined by lines. What the server answered as data is told as JSON, unless a text
    says the same; it is the result's value as well. The answer's `_meta` is the result's metadata,
    but for what would be the library's own word there.

    Raises:
        ToolError: The server says that the tool failed; the message is its words, and all the rest
            of the answer is beside it.
    """
    texts, media = told(answer.content)
    text = "\n".join(texts)
    if answer.structured_content is not None and not _says(text, answer.structured_content):
        data = json.dumps(answer.structured_content, ensure_ascii=False)
        text = f"{text}\n{data}" if text else data
    metadata = {key: item for key, item in (answer.meta or {}).items() if key not in OWN_METADATA}
    value = answer.structured_content
    if answer.is_error:
        text = text or "the tool failed, and the server does not say why"
        raise ToolError(text, media=media, metadata=metadata, value=value)
    return ToolResult(text, media, metadata=metadata, value=value)


def told(content: Iterable[ContentBlock]) -> tuple[list[str], tuple[Media, ...]]:
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
    # Some servers break lines, or leave the padding out.
    data = "".join(data.split())
    try:
        return base64.b64decode(data + "=" * (-len(data) % 4), validate=True)
    except binascii.Error as error:
        msg = "the tool's answer holds content that is not base 64"
        raise ToolError(msg) from error


def _says(text: str, data: Any) -> bool:
    """Return whether *text* is *data*, or the one value that it is wrapped around."""
    wrapped = data.get("result") if isinstance(data, dict) and len(data) == 1 else None
    if wrapped is not None and text == wrapped:
        return True
    try:
        said = json.loads(text)
    except ValueError:
        return False
    return bool(said == data or (wrapped is not None and said == wrapped))


def answer_of(result: ToolResult) -> CallToolResult:
    """Return a tool's result in the form of MCP."""
    content: list[ContentBlock] = []
    if result.text or not result.media:
        content.append(TextContent(text=result.text))
    content.extend(_block(media) for media in result.media)
    return CallToolResult(content=content, is_error=result.is_error)


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
