"""Marks at the ends of what Anthropic caches: how many a request may have; no I/O."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from chatclient.json import dumps, loads
from chatclient.messages import Message

_MOST = 4  # of them in a request; one with more is refused
# With its type, or a tool's parameter of that name would count.
_MARK = re.compile(rb'"cache_control":\{[^{}]*"type":"ephemeral"')
_FIELD = "cache_control"


def may_be_excess(messages: Iterable[Message]) -> bool:
    """Return whether so many of *messages* are marked; faster than to look at their JSON."""
    # Most have no metadata, which is seen in half the time.
    return len([m for m in messages if m.metadata and _FIELD in m.metadata]) > _MOST


def without_excess(messages: bytes, rest: bytes = b"") -> bytes:
    """Return the elements of *messages* without the oldest marks, where there are too many.

    A conversation whose messages are all marked stays sendable so: the last marks are those that
    the next request finds its beginning by.

    Args:
        messages: The elements of the conversation, with commas between.
        rest: All else of the request, whose marks stay.
    """
    room = max(_MOST - len(_MARK.findall(rest)), 0)
    if len(_MARK.findall(messages)) <= room:
        return messages
    elements = loads(b"[%b]" % messages)
    # What the system says is at the very beginning, and so of use to every request.
    by_age = sorted(elements, key=lambda message: message["role"] in ("system", "developer"))
    marked = [block for message in by_age for block in _blocks(message) if _FIELD in block]
    # Fewer than were counted where arguments of a tool have such a field too.
    for block in marked[: max(len(marked) - room, 0)]:
        del block[_FIELD]
    return dumps(elements)[1:-1]


def _blocks(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the parts of a message's content, and those of the results of tools among them."""
    content = message.get("content")
    for block in content if isinstance(content, list) else ():
        yield from _blocks(block)
        yield block
