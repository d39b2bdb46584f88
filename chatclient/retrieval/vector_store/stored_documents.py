"""The metadata of documents as JSON, for databases that store less than Python."""

import re
from typing import Any

from chatclient._internal import json
from chatclient.errors import UsageError
from chatclient.retrieval.vector_store.store import Document

# NUL and lone surrogates are escaped in JSON. Exponents: databases may return integers for them.
_ALTERED = re.compile(r"\\u|\de\+")
_ODD = re.compile("[\0\ud800-\udfff]")


def metadata_json(document: Document) -> str:
    """Return the metadata of *document* as JSON.

    Raises:
        UsageError: A value has no JSON form.
    """
    try:
        return json.dumps(document.metadata).decode()
    except TypeError as error:
        msg = f"the metadata of document {document.id!r} cannot be encoded as JSON: {error}"
        raise UsageError(msg) from error


def plain_json(exact: str) -> tuple[Any, str | None]:
    """Return metadata that any database stores, and its JSON if the former lacks something.

    Filters cannot name NUL and lone surrogates, so that other characters may replace them for
    comparisons. These are the nearest in the order of texts.

    Args:
        exact: The result of `metadata_json`.
    """
    metadata = json.loads(exact)
    if not _ALTERED.search(exact):
        return metadata, None
    return _plain(metadata), exact


def _plain(value: Any) -> Any:
    match value:
        case str():
            return _ODD.sub(lambda found: "\1" if found[0] == "\0" else "\ue000", value)
        case list():
            return [_plain(item) for item in value]
        case dict():
            return {_plain(key): _plain(item) for key, item in value.items()}
        case _:
            return value
