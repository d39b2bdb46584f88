"""Content blocks of other frameworks, as dictionaries, and the media that they stand for.

The blocks are those of LangChain, version 1, and the images of OpenAI.
"""

import base64
import binascii
from collections.abc import Iterable, Mapping
from typing import Any

from chatclient._internal.json import dumps
from chatclient.chat.parts import Media

_DEFAULT_TYPES = {"image": "image/png", "audio": "audio/wav", "video": "video/mp4"}
_ANY_TYPE = "application/octet-stream"


def block_of(media: Media) -> dict[str, Any]:
    """Return the block of *media*."""
    kind = media.mime_type.partition("/")[0]
    block: dict[str, Any] = {
        "type": kind if kind in _DEFAULT_TYPES else "file",
        "mime_type": media.mime_type,
    }
    if media.id is not None:
        block["file_id"] = media.id
    elif isinstance(media.data, str):
        block["url"] = media.data
    else:
        block["base64"] = media.base64()
    if media.name is not None:
        block["filename"] = media.name
    return block


def media_of(block: Mapping[str, Any]) -> Media | None:
    """Return the media of *block*, or None if it is of another kind, or not complete."""
    kind = block.get("type")
    if kind == "image_url":
        image = block.get("image_url")
        url = image.get("url") if isinstance(image, Mapping) else image
        return media_of_url(url, "image/png") if isinstance(url, str) else None
    if kind not in _DEFAULT_TYPES and kind != "file":
        return None
    mime_type = str(block.get("mime_type") or _DEFAULT_TYPES.get(kind, _ANY_TYPE))
    name = block.get("filename")
    if (data := block.get("base64")) is not None:
        content = _decoded(data)
        return None if content is None else Media(mime_type, content, name=name)
    if (url := block.get("url")) is not None:
        return media_of_url(str(url), mime_type, name)
    id = block.get("file_id")
    return None if id is None else Media(mime_type, str(id), id=str(id), name=name)


def media_of_url(url: str, mime_type: str, name: str | None = None) -> Media:
    """Return the media at *url*, which may be a `data:` URL with the content."""
    head, comma, data = url.partition(",")
    if not (head.startswith("data:") and comma):
        return Media(mime_type, url, name=name)
    content = _decoded(data) or b""
    return Media(head.removeprefix("data:").partition(";")[0] or mime_type, content, name=name)


def read_blocks(content: str | Iterable[Any]) -> tuple[str, tuple[Media, ...]]:
    """Return the text and the media of *content*: a text, or blocks and texts.

    Texts are joined by line breaks; blocks of other kinds are included as JSON.
    """
    if isinstance(content, str):
        return content, ()
    texts: list[str] = []
    media: list[Media] = []
    for block in content:
        if isinstance(block, str):
            texts.append(block)
        elif isinstance(block, Mapping) and block.get("type") == "text":
            texts.append(str(block.get("text", "")))
        elif isinstance(block, Mapping) and (found := media_of(block)) is not None:
            media.append(found)
        else:
            texts.append(dumps(block).decode())
    return "\n".join(texts), tuple(media)


def _decoded(data: object) -> bytes | None:
    if isinstance(data, bytes):
        return data
    try:
        return base64.b64decode(str(data))
    except (binascii.Error, ValueError):
        return None
