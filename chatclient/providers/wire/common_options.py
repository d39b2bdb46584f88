"""Declares how an API takes the options common to all providers, and encodes them; no I/O.

Prompt-cache breakpoints (`cache_control`) and their maximum number per request are here as well.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from chatclient._internal.frozen import EMPTY
from chatclient._internal.json import dumps, loads
from chatclient._internal.logging import get_logger
from chatclient.chat.messages import AssistantMessage, Message
from chatclient.chat.options import ChatOptions
from chatclient.chat.prompt import Prompt
from chatclient.errors import UnsupportedOptionError

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


log = get_logger(__name__)

Encode = Callable[[Any, ChatOptions], Mapping[str, Any] | str]
"""Returns the fields for the value of an option, by path such as `options.seed`; or, as a text, the
reason why the API, or the model in the options, does not take the value."""

COMMON_OPTIONS = (
    *("temperature", "top_p", "top_k", "max_tokens", "stop", "seed"),
    *("presence_penalty", "frequency_penalty", "tool_choice", "parallel_tool_calls"),
    *("reasoning", "cache", "service_tier", "user_id"),
)
"""The options of which each API declares how it takes them."""


def field(path: str) -> Encode:
    """Return the encoder of an option that is sent unchanged in the field *path*."""

    def encode(value: Any, _options: ChatOptions) -> Mapping[str, Any]:
        return {path: value}

    return encode


def lacking(reason: str) -> Encode:
    """Return the encoder of an option that the API does not have."""

    def encode(_value: Any, _options: ChatOptions) -> str:
        return reason

    return encode


def automatic(_value: Any, _options: ChatOptions) -> Mapping[str, Any]:
    """Encode an option for which nothing has to be sent."""
    return EMPTY


@dataclass(frozen=True, slots=True, eq=False)
class CommonOptions:
    """How an API takes the common options.

    Attributes:
        provider: The provider's name, for errors and logs.
        encoders: The encoder of each option in `COMMON_OPTIONS`.
        own: Options of the provider that mean the same as `reasoning`, and as `user_id`.
    """

    provider: str
    encoders: Mapping[str, Encode]
    own: Mapping[str, tuple[str, ...]] = EMPTY

    def settle(self, options: ChatOptions) -> ChatOptions:
        """Return *options* without those that others for the same purpose override.

        Options of the provider override common ones, unless only the common one is no default.
        """
        for name, own in self.own.items():
            if getattr(options, name) is None:
                continue
            given = [each for each in own if getattr(options, each, None) is not None]
            if not given:
                continue
            wins = name not in options.defaults and options.defaults >= set(given)
            options = options.mutate(**dict.fromkeys(given if wins else [name]))
        return options

    def encode(self, options: ChatOptions) -> dict[str, Any]:
        """Return the request's fields for the common options that are set.

        Raises:
            UnsupportedOptionError: The model does not take one that is no default.
        """
        body: dict[str, Any] = {}
        for name in COMMON_OPTIONS:
            value = getattr(options, name)
            if value is None or value == ():
                continue
            fields = self.encoders[name](value, options)
            if isinstance(fields, str):
                self._refuse(name, fields, options)
                continue
            for path, each in fields.items():
                _put(body, path, each)
        return body

    def _refuse(self, name: str, reason: str, options: ChatOptions) -> None:
        model = options.model or ""
        if name in options.defaults:
            _log_dropped(self.provider, model, name, reason)
            return
        msg = (
            f"{self.provider}'s {model or 'model'} does not take the option {name}: {reason}."
            " Leave it out, or make it a default option of the client: those are dropped where a"
            " model does not take them"
        )
        raise UnsupportedOptionError(msg, option=name, provider=self.provider, model=model)


@lru_cache(maxsize=1024)  # one line for each model and option
def _log_dropped(provider: str, model: str, option: str, reason: str) -> None:
    log.warning("option dropped", provider=provider, model=model, option=option, reason=reason)


def _put(body: dict[str, Any], path: str, value: Any) -> None:
    *parents, name = path.split(".")
    for parent in parents:
        body = body.setdefault(parent, {})
    body[name] = value


# --- reasoning -------------------------------------------------------------------------------

_EFFORTS = ("minimal", "low", "medium", "high", "xhigh", "max")


def is_off(reasoning: str | int | None) -> bool:
    """Return whether a value of the option `reasoning` turns reasoning off."""
    return reasoning in ("none", 0)


def nearest_effort(wanted: str, offered: tuple[str, ...]) -> str:
    """Return the least effort *offered* that is not less than *wanted*, or else the greatest."""
    ordered = [effort for effort in _EFFORTS if effort in offered]
    rank = _EFFORTS.index(wanted)
    return next((effort for effort in ordered if _EFFORTS.index(effort) >= rank), ordered[-1])


def encode_effort(value: str | int, path: str, offered: tuple[str, ...]) -> Mapping[str, str] | str:
    """Return the field *path* with an effort *offered* by a model, or why there is none."""
    if is_off(value):
        if "none" in offered:
            return {path: "none"}
        return "it always reasons" if offered else EMPTY
    if not offered:
        return "it does not reason"
    if isinstance(value, int):
        return "it takes an effort, such as 'low', and no number of tokens"
    return {path: nearest_effort(value, offered)}
