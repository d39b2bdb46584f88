"""Prompt-cache breakpoints (`cache_control`) and their maximum number per request; no I/O."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from chatclient._internal.json import dumps, loads
from chatclient.chat.messages import Message

_MAX_BREAKPOINTS = 4  # Anthropic rejects requests with more
# Includes the type, so that a tool's parameter with this name does not match.
_BREAKPOINT = re.compile(rb'"cache_control":\{[^{}]*"type":"ephemeral"')
_FIELD = "cache_control"


def may_exceed_limit(messages: Iterable[Message]) -> bool:
    """Return whether *messages* may have too many breakpoints; faster than searching the JSON."""
    marked = [m for m in messages if m.metadata and _FIELD in m.metadata]
    return len(marked) > _MAX_BREAKPOINTS


def limit_breakpoints(messages: bytes, rest: bytes = b"") -> bytes:
    """Remove the oldest breakpoints of *messages* if these and the *rest* have too many.

    The newest are kept, because the next request continues this conversation.
    """
    allowed = max(_MAX_BREAKPOINTS - len(_BREAKPOINT.findall(rest)), 0)
    if len(_BREAKPOINT.findall(messages)) <= allowed:
        return messages
    elements = loads(b"[%b]" % messages)
    # System messages come last here: all requests start with them, so their breakpoints are kept.
    by_age = sorted(elements, key=lambda message: message["role"] in ("system", "developer"))
    marked = [block for message in by_age for block in _blocks(message) if _FIELD in block]
    # May be fewer than the pattern matched, if tool arguments contain such a field.
    for block in marked[: max(len(marked) - allowed, 0)]:
        del block[_FIELD]
    return dumps(elements)[1:-1]


def _blocks(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the content blocks of a message, including those inside tool results."""
    content = message.get("content")
    for block in content if isinstance(content, list) else ():
        yield from _blocks(block)
        yield block
