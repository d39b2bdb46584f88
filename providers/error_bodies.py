"""Finds what an answer says about an error; each provider has another place for it."""

from collections.abc import Iterator, Mapping
from typing import Any

from chatclient.providers.fields import MISSHAPEN, count_of


def error_in(data: Any) -> Any:
    """Return the part of an answer that describes the error."""
    if isinstance(data, list) and data:
        data = data[0]
    if not isinstance(data, Mapping):
        return data
    if data.get("errors") and isinstance(data["errors"], list):
        return data["errors"][0]
    return data.get("error") or data


def said_in(error: Any) -> str:
    """Return what is said about the error; where that has no known form, the whole of it."""
    try:
        return " ".join(_messages(error))
    except MISSHAPEN:
        return str(error)


def _messages(error: Any) -> Iterator[str]:
    """Yield what is said about the error, by the provider and by the one behind it."""
    if not isinstance(error, Mapping):
        yield str(error).strip()
        return
    said = next((error[key] for key in ("message", "detail", "error", "msg") if error.get(key)), "")
    if isinstance(said, list):
        said = "; ".join(_complaint(item) for item in said)
    elif isinstance(said, Mapping):
        said = "; ".join(_messages(said)) or str(dict(said))
    yield str(said)
    metadata = error.get("metadata")
    if isinstance(metadata, Mapping) and (raw := metadata.get("raw")):
        yield f"({raw})"


def _complaint(item: Any) -> str:
    """Return in one line what a validator says about one place of the request."""
    if not isinstance(item, Mapping) or "msg" not in item:
        return str(item)
    where = ".".join(str(step) for step in item.get("loc") or ())
    return f"{where}: {item['msg']}" if where else str(item["msg"])


def code_in(data: Any, error: Any) -> str:
    """Return the words that name the kind of error, as far as they have a known form."""
    try:
        return " ".join(_codes(data, error))
    except MISSHAPEN:
        return ""


def _codes(data: Any, error: Any) -> Iterator[str]:
    """Yield the words that name the kind of error, from the narrowest out."""
    for place in (error,) if error is data else (error, data):
        if isinstance(place, Mapping):
            values = (place.get(key) for key in ("code", "type", "status", "reason"))
            yield from (str(value) for value in values if isinstance(value, str | int))
    for detail in details_in(error):
        yield from (str(detail[key]) for key in ("reason", "code") if detail.get(key))
        yield from (str(v.get("quotaId", "")) for v in detail.get("violations") or ())


def details_in(error: Any) -> Iterator[Mapping[str, Any]]:
    """Yield what an error says beside its message: Google's list, Azure's inner error."""
    if not isinstance(error, Mapping):
        return
    for key in ("details", "innererror"):
        value = error.get(key)
        items = value if isinstance(value, list) else [value]
        yield from (item for item in items if isinstance(item, Mapping))


def status_in(error: Any) -> int:
    """Return the HTTP status that an error inside an answer names, or 0."""
    if isinstance(error, Mapping):
        for key in ("status_code", "code", "status"):
            value = error.get(key)
            if isinstance(value, str):
                value = count_of(value)
            if isinstance(value, int) and 400 <= value < 600:  # noqa: PLR2004
                return value
    return 0


_REQUEST_IDS = (
    "x-request-id",
    "request-id",
    "apim-request-id",
    "x-goog-request-id",
    "mistral-correlation-id",
    "x-amzn-requestid",
)


def request_id(headers: Mapping[str, str], data: Any = None) -> str | None:
    """Return the provider's id of a request, from wherever it puts it."""
    for name in _REQUEST_IDS:
        if value := headers.get(name):
            return value
    value = data.get("request_id") if isinstance(data, Mapping) else None
    return value if isinstance(value, str) else None
