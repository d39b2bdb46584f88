"""Prompt-cache breakpoints (`cache_control`) and their maximum number per request; no I/O."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from chatclient._internal.json import dumps, loads
from chatclient.chat.messages import AssistantMessage, Message
from chatclient.chat.prompt import Prompt

_MAX_BREAKPOINTS = 4  # Anthropic rejects requests with more
# Includes the type, so that a tool's parameter with this name does not match.
_BREAKPOINT = re.compile(rb'"cache_control":\{[^{}]*"type":"ephemeral"')
_FIELD = "cache_control"


def ends_conversation(prompt: Prompt, breakpoints: int) -> bool:
    """Return whether to cache the end of a conversation.

    With the option `auto`, that is if another request will probably begin with all of *prompt*: it
    offers tools, so there may be another round, or it has an answer, so there may be another turn.

    Args:
        prompt: The request.
        breakpoints: The number of breakpoints that it has.
    """
    options = prompt.options
    if options.cache != "auto":
        return options.cache == "conversation"
    if breakpoints >= _MAX_BREAKPOINTS:
        return False
    offers_tools = bool(options.tool_callbacks) and options.tool_choice != "none"
    return offers_tools or any(isinstance(each, AssistantMessage) for each in prompt.messages)


def with_last_block_marked(turns: bytes, breakpoint_: bytes) -> bytes:
    """Return *turns* with a breakpoint at their end, unless there is one.

    The API can also find the end by itself, if the request has the breakpoint; Vertex AI and
    compatible servers refuse that.
    """
    if not turns.endswith(b"}]}") or ends_marked(turns):
        return turns
    return b'%b,"cache_control":%b}]}' % (turns[:-3], breakpoint_)


def ends_marked(elements: bytes) -> bool:
    """Return whether the last block of *elements*, messages or blocks as JSON, has a breakpoint."""
    if b'"cache_control":' not in elements:  # quotes in texts are escaped
        return False
    last = loads(b"[%b]" % elements)[-1]
    return _FIELD in (last["content"][-1] if "role" in last else last)


def may_add_breakpoint(wire: bytes) -> bool:
    """Return whether the JSON of a request has fewer breakpoints than are allowed."""
    return count_breakpoints(wire) < _MAX_BREAKPOINTS


def count_breakpoints(wire: bytes) -> int:
    """Return the number of breakpoints in the JSON of a request."""
    return len(_BREAKPOINT.findall(wire))


def may_exceed_limit(messages: Iterable[Message]) -> bool:
    """Return whether *messages* may have too many breakpoints; faster than searching the JSON."""
    marked = [m for m in messages if m.metadata and _FIELD in m.metadata]
    return len(marked) > _MAX_BREAKPOINTS


def limit_breakpoints(messages: bytes, rest: bytes = b"") -> bytes:
    """Remove the oldest breakpoints of *messages* if these and the *rest* have too many.

    The newest are kept, because the next request continues this conversation.
    """
    allowed = max(_MAX_BREAKPOINTS - count_breakpoints(rest), 0)
    if count_breakpoints(messages) <= allowed:
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
