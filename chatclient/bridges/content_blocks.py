"""Content blocks of other frameworks, as dictionaries, and the media that they represent.

The blocks are those of LangChain, version 1, and the images of OpenAI.
"""

import base64
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote_to_bytes

from chatclient.chat.parts import Media

_DEFAULT_TYPES = {"image": "image/png", "audio": "audio/wav", "video": "video/mp4"}
_ANY_TYPE = "application/octet-stream"
_URL = re.compile("[a-zA-Z][a-zA-Z0-9+.-]+:.")


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
        return media_of_url(image.get("url") if isinstance(image, Mapping) else image, "image/png")
    if kind not in _DEFAULT_TYPES and kind != "file":
        return None
    mime_type = str(block.get("mime_type") or _DEFAULT_TYPES.get(kind, _ANY_TYPE))
    name = block.get("filename")
    name = name if isinstance(name, str) else None
    if (data := block.get("base64")) is not None:
        content = _decoded(data)
        return None if content is None else Media(mime_type, content, name=name)
    if (url := block.get("url")) is not None:
        return media_of_url(url, mime_type, name)
    return media_of_file(block.get("file_id"), mime_type, name)


def media_of_url(url: object, mime_type: str, name: str | None = None) -> Media | None:
    """Return the media at *url*, which may be a `data:` URL with the content.

    It may come from a tool, so what is no URL, or has no content, is None instead of an error.
    """
    if not isinstance(url, str) or not _URL.match(url):
        return None
    head, comma, data = url.partition(",")
    if not head.startswith("data:"):
        return Media(mime_type, url, name=name)
    kind, *parameters = head.removeprefix("data:").split(";")
    content = _decoded(data) if "base64" in parameters else unquote_to_bytes(data)
    return Media(kind or mime_type, content, name=name) if comma and content else None


def media_of_file(id: object, mime_type: str, name: str | None = None) -> Media | None:
    """Return the media that a provider stores as *id*; None if that is no id."""
    return Media(mime_type, id, id=id, name=name) if isinstance(id, str) and id else None


def _decoded(data: object) -> bytes | None:
    """Return the content of a Base64 text, or None if it is none, or empty."""
    if isinstance(data, str):
        try:
            data = base64.b64decode("".join(data.split()), validate=True)
        except ValueError:
            return None
    return data if isinstance(data, bytes) and data else None
