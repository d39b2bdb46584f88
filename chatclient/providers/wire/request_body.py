"""Joins the parts of a request body, with the option `extra` merged into them; no I/O."""

from collections.abc import Container, Mapping
from typing import Any

from chatclient._internal.frozen import EMPTY
from chatclient._internal.json import dumps, dumps_exact, loads_exact

Fields = Mapping[str, Any]


class RequestHead:
    """The fields of a request that its options determine, encoded once.

    All bodies are made by `body`, so `extra` is merged in one place, and no field occurs twice.

    Args:
        fields: The fields of the options.
        extra: The option `extra`.
    """

    __slots__ = ("_extra", "_fields", "_names", "_wire")

    def __init__(self, fields: Fields, extra: Fields) -> None:
        self._fields, self._extra = fields, extra
        merged = merge_extra(fields, extra)
        self._names = frozenset(merged)
        self._wire = dumps(merged)[1:-1]

    @property
    def wire(self) -> bytes:
        """The JSON of the fields, without the braces."""
        return self._wire

    def body(self, messages: Mapping[str, bytes] = EMPTY) -> bytes:
        """Return the complete request; *messages* are the fields, as JSON, that depend on them."""
        if self._names.isdisjoint(messages):
            encoded = [b'"%b":%b' % (name.encode(), value) for name, value in messages.items()]
            return b"{%b}" % b",".join([self._wire, *encoded] if self._wire else encoded)
        decoded = {name: loads_exact(value) for name, value in messages.items()}
        fields = {**self._fields, **decoded}
        return dumps_exact(merge_extra(fields, self._extra, joined=messages)).encode()


def merge_extra(body: Fields, extra: Fields, joined: Container[str] = ()) -> dict[str, Any]:
    """Return a request body with the fields of *extra*, which override it.

    Objects are merged field by field unless their `type` differs. Lists are concatenated if they
    are `tools`, or in the fields *joined*.
    """
    result = {**body, **extra}
    for name in body.keys() & extra.keys():
        value, added = body[name], extra[name]
        if not (isinstance(value, Mapping) and isinstance(added, Mapping)):
            result[name] = _joined(value, added) if name == "tools" or name in joined else added
            continue
        merged = {**value, **added}
        if value.get("type", merged.get("type")) != merged.get("type"):
            continue
        for key in value.keys() & added.keys():
            if key == "tools" or name in joined:
                merged[key] = _joined(value[key], added[key])
        result[name] = merged
    return result


def _joined(value: Any, added: Any) -> Any:
    """Return two lists as one, and otherwise *added*."""
    are_lists = isinstance(value, list | tuple) and isinstance(added, list | tuple)
    return [*value, *added] if are_lists else added
