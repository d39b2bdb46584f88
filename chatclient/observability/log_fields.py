"""`log_fields`: a processor of structlog for the log records of this library."""

from collections.abc import MutableMapping
from typing import Any


def log_fields(
    _logger: object, _method: str, event_dict: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Replace the text of a record of this library by its event and its fields.

    For `foreign_pre_chain` of `structlog.stdlib.ProcessorFormatter`. The message of a record is a
    text that contains the fields, for plain formatters; with this processor, each field is a key of
    the output, and occurs once. Records of other libraries are left as they are.

    Returns:
        The given mapping, changed.
    """
    fields: object = getattr(event_dict.get("_record"), "chatclient", None)
    if isinstance(fields, dict):
        event_dict.pop("chatclient", None)  # of `structlog.stdlib.ExtraAdder`
        event_dict.update({key: value for key, value in fields.items() if value is not None})
    return event_dict
