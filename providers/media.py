"""Media as requests hold them, whatever the API."""

from chatclient.messages import Media


def base64_of(media: Media) -> str | None:
    """Return the content in base 64, or None where it is not here: *media* has but a URL or id.

    Args:
        media: Bytes, a URL, or a `data:` URL, which is not decoded to be encoded again.
    """
    if not isinstance(media.data, str):
        return media.base64()
    head, is_encoded, content = media.data.partition(";base64,")
    return content if is_encoded and head.startswith("data:") else None


def is_here(media: Media) -> bool:
    """Return whether the content itself is here, as bytes or in a `data:` URL."""
    return not isinstance(media.data, str) or media.data.startswith("data:")
