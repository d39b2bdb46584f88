"""Helpers to encode media, for all APIs."""

import base64
import re
from collections.abc import Callable, Iterable
from typing import TypeVar

from chatclient.chat.messages import Media
from chatclient.errors import UsageError

_T = TypeVar("_T")


def base64_of(media: Media) -> str | None:
    """Return the content of *media* as base64, or None if it has only a URL or id."""
    if not isinstance(media.data, str):
        return media.base64()
    head, is_encoded, content = media.data.partition(";base64,")
    return content if is_encoded and head.startswith("data:") else None


_COMPLETE = re.compile("[^=]+=*")


def join_base64(pieces: Iterable[str]) -> str:
    """Return the base64 of what *pieces* encode together: a text in pieces, or several texts."""
    complete = _COMPLETE.findall("".join(pieces))
    if len(complete) < 2:  # noqa: PLR2004 - only the last piece has padding, if any
        return "".join(complete)
    return base64.b64encode(b"".join(map(base64.b64decode, complete))).decode()


def encode_tool_media(
    media: Iterable[Media], encode: Callable[[Media], _T]
) -> tuple[list[_T], list[str]]:
    """Return the encoded media of a tool result, and messages about those that the API rejects.

    Rejected media (for which *encode* raises `UsageError`) are no error, because that would fail
    every later request of the conversation.
    """
    encoded: list[_T] = []
    messages: list[str] = []
    for item in media:
        try:
            encoded.append(encode(item))
        except UsageError as error:
            messages.append(f"[{item.name or item.mime_type} cannot be shown: {error}]")
    return encoded, messages


def is_inline(media: Media) -> bool:
    """Return whether *media* contains its content, as bytes or a `data:` URL."""
    return not isinstance(media.data, str) or media.data.startswith("data:")
