"""Media as requests hold them, whatever the API."""

from collections.abc import Callable, Iterable
from typing import TypeVar

from chatclient.errors import UsageError
from chatclient.messages import Media

_T = TypeVar("_T")


def base64_of(media: Media) -> str | None:
    """Return the content in base 64, or None where it is not here: *media* has but a URL or id.

    Args:
        media: Bytes, a URL, or a `data:` URL, which is not decoded to be encoded again.
    """
    if not isinstance(media.data, str):
        return media.base64()
    head, is_encoded, content = media.data.partition(";base64,")
    return content if is_encoded and head.startswith("data:") else None


def shown_by_tool(
    media: Iterable[Media], form: Callable[[Media], _T]
) -> tuple[list[_T], list[str]]:
    """Return what a tool has shown as the API takes it, and in words what it takes in no form.

    The tool has run, and may have been another model's: an error would lose the turn, or every
    later one of the conversation.

    Args:
        media: What the tool returned.
        form: Returns one of them as the API takes it, or raises a `UsageError`.
    """
    shown: list[_T] = []
    told: list[str] = []
    for each in media:
        try:
            shown.append(form(each))
        except UsageError as error:
            told.append(f"[{each.name or each.mime_type} cannot be shown: {error}]")
    return shown, told


def is_here(media: Media) -> bool:
    """Return whether the content itself is here, as bytes or in a `data:` URL."""
    return not isinstance(media.data, str) or media.data.startswith("data:")
