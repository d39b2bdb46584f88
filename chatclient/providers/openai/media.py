"""Encodes images, audio and documents for Chat Completions; no I/O."""

import mimetypes
from typing import Any

from chatclient.chat.messages import Media
from chatclient.errors import UsageError
from chatclient.providers.openai.dialect import Dialect
from chatclient.providers.wire.media import base64_of, is_inline


def media_part(media: Media, dialect: Dialect) -> dict[str, Any]:
    """Return *media* as a content part, or raise `UsageError` if the server does not accept it."""
    kind = media.mime_type.partition("/")[0]
    if kind == "image":
        detail = {key: media.metadata[key] for key in ("detail",) if key in media.metadata}
        return {"type": "image_url", "image_url": {"url": _url(media, dialect), **detail}}
    if kind == "audio" and (content := base64_of(media)) is not None:
        audio = {"data": content, "format": _audio_format(media.mime_type)}
        return {"type": "input_audio", "input_audio": audio}
    if kind == "video" and (name := dialect.video_field) is not None:
        return {"type": name, name: {"url": _url(media, dialect)}}
    if dialect.document_field == "document_url":
        return {"type": "document_url", "document_url": _url(media, dialect)}
    if media.id is not None:
        return {"type": "file", "file": {"file_id": media.id}}
    if not dialect.documents_by_url and not is_inline(media):
        raise UsageError(f"{_rejection(media, dialect)} by its URL in {_alternative(kind)}")
    return {"type": "file", "file": {"filename": file_name(media), "file_data": media.url()}}


def _url(media: Media, dialect: Dialect) -> str:
    if url := media.url():
        return url
    kind = media.mime_type.partition("/")[0]
    raise UsageError(f"{_rejection(media, dialect)} by its id in {_alternative(kind)}")


def _rejection(media: Media, dialect: Dialect) -> str:
    return f"{dialect.provider} takes no {media.mime_type}"


def _alternative(kind: str) -> str:
    # The Responses API accepts neither audio nor video.
    other = "" if kind in ("audio", "video") else ", or ask through the Responses API"
    return f"Chat Completions; send the bytes{other}"


def file_name(media: Media) -> str:
    """Return the file name; the provider reads the type from its extension."""
    return media.name or f"file{mimetypes.guess_extension(media.mime_type) or ''}"


def _audio_format(mime_type: str) -> str:
    """Return the API's name of an audio type."""
    subtype = mime_type.partition("/")[2]
    return {"mpeg": "mp3", "x-wav": "wav", "wave": "wav", "vnd.wave": "wav"}.get(subtype, subtype)
