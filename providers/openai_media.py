"""Images, sound and documents as parts of Chat Completions messages; no I/O."""

import mimetypes
from typing import Any

from chatclient.errors import UsageError
from chatclient.messages import Media
from chatclient.providers.media import base64_of, is_here
from chatclient.providers.openai_dialect import Dialect


def media_part(media: Media, dialect: Dialect) -> dict[str, Any]:
    """Return *media* in the form that the server takes.

    Raises:
        UsageError: It takes none, or not in the form in which the media is there.
    """
    kind = media.mime_type.partition("/")[0]
    if kind == "image":
        detail = {key: media.metadata[key] for key in ("detail",) if key in media.metadata}
        return {"type": "image_url", "image_url": {"url": _url(media, dialect), **detail}}
    if kind == "audio" and (content := base64_of(media)) is not None:
        sound = {"data": content, "format": _audio_format(media.mime_type)}
        return {"type": "input_audio", "input_audio": sound}
    if kind == "video" and (name := dialect.video_field) is not None:
        return {"type": name, name: {"url": _url(media, dialect)}}
    if dialect.document_field == "document_url":
        return {"type": "document_url", "document_url": _url(media, dialect)}
    if media.id is not None:
        return {"type": "file", "file": {"file_id": media.id}}
    if not dialect.documents_by_url and not is_here(media):
        raise UsageError(f"{_refused(media, dialect)} by its URL in {_elsewhere(kind)}")
    return {"type": "file", "file": {"filename": file_name(media), "file_data": media.url()}}


def _url(media: Media, dialect: Dialect) -> str:
    if url := media.url():
        return url
    kind = media.mime_type.partition("/")[0]
    raise UsageError(f"{_refused(media, dialect)} by its id in {_elsewhere(kind)}")


def _refused(media: Media, dialect: Dialect) -> str:
    return f"{dialect.provider} takes no {media.mime_type}"


def _elsewhere(kind: str) -> str:
    # The other API takes neither sound nor video.
    other = "" if kind in ("audio", "video") else ", or ask through the Responses API"
    return f"Chat Completions; send the bytes{other}"


def file_name(media: Media) -> str:
    """Return what a file is called; the ending tells the provider how to read it."""
    return media.name or f"file{mimetypes.guess_extension(media.mime_type) or ''}"


def _audio_format(mime_type: str) -> str:
    """Return what the API calls a type of sound."""
    subtype = mime_type.partition("/")[2]
    return {"mpeg": "mp3", "x-wav": "wav", "wave": "wav", "vnd.wave": "wav"}.get(subtype, subtype)
