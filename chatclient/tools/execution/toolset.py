"""The tools of a turn, found by name."""

import re
from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from chatclient._internal.frozen import EMPTY
from chatclient._internal.json import loads
from chatclient.chat.messages import AssistantMessage, Part, ToolCall
from chatclient.chat.tool import ToolCallback, ToolMetadata
from chatclient.errors import ToolArgumentError, ToolUsageError, UnknownToolError
from chatclient.runtime.runtime import Runtime
from chatclient.tools.function.decorator import PLAIN

# Namespaces, channel tokens and parentheses that models or the parsers of servers add to names:
# gpt-oss `functions.x` and `x<|channel|>commentary`, Gemini `default_api:x`, others `x()`.
_DECORATED = re.compile(
    r"(?:(?:functions|default_api|tools?)[.:/])?(?P<name>[^\s.:/<>()]+)(?:<\|.*|\(\))?", re.DOTALL
)

Callbacks = Mapping[str, ToolCallback]
"""Tools by name."""


Answer = ToolCallback | Awaitable[ToolCallback | None] | None
"""The result of a resolver: a tool or None, or an awaitable of them."""


class ToolCallbackResolver(Protocol):
    """Finds tools by name."""

    def resolve(self, name: str, /) -> Answer:
        """Return the tool *name*, or None; may be asynchronous."""
        ...


async def resolve_tool(
    resolver: ToolCallbackResolver | None, name: str, runtime: Runtime
) -> ToolCallback | None:
    """Return the tool *name* of *resolver*, or None.

    Raises:
        ToolUsageError: It returned something else.
    """
    callback = None if resolver is None else await runtime.call(resolver.resolve, name)
    if callback is None or isinstance(callback, ToolCallback):
        return callback
    msg = f"{resolver!r} returned {callback!r} for {name!r}; it must return a ToolCallback or None"
    raise ToolUsageError(msg)


@dataclass(frozen=True, slots=True, eq=False)
class Toolset:
    """The tools that may be run in a turn.

    Attributes:
        offered: The tools in the request to the model, by name.
        unoffered: Tools by name that are run although the model was not offered them.
        resolver: Finds other tools by name, if there is one.
        found: Tools that the resolver has found, by name.
    """

    offered: Callbacks
    unoffered: Callbacks = EMPTY
    resolver: ToolCallbackResolver | None = None
    found: Callbacks = EMPTY

    def get(self, name: str) -> ToolCallback | None:
        """Return the tool *name*, or None, without calling the resolver."""
        if (callback := self.offered.get(name)) is not None:
            return callback
        return self.unoffered.get(name) or self.found.get(name)

    async def find(self, name: str, runtime: Runtime) -> ToolCallback:
        """Return the tool *name*, from the resolver if necessary.

        Raises:
            UnknownToolError: There is none; the message contains similar names.
        """
        callback = self.get(name)
        if callback is None:
            callback = await resolve_tool(self.resolver, name, runtime)
        if callback is None:
            raise UnknownToolError(_unknown(name, list(self.offered)), tool_name=name)
        return callback

    async def with_resolved(self, names: Iterable[str], runtime: Runtime) -> "Toolset":
        """Return these tools and those of *names* that only the resolver finds."""
        resolved: dict[str, ToolCallback] = {}
        for name in () if self.resolver is None else names:
            if name in resolved or self.get(name) is not None:
                continue
            try:
                callback = await resolve_tool(self.resolver, name, runtime)
            except Exception:  # noqa: BLE001, S112 - running the tool raises it again
                continue
            if callback is not None:
                resolved[name] = callback
        return replace(self, found={**self.found, **resolved}) if resolved else self

    def named_in(self, message: AssistantMessage) -> AssistantMessage:
        """Return *message* with calls of decorated names as calls of the offered tools.

        A name is decorated if no tool has it, and one has the name without decoration.
        """
        if None not in [self.get(call.name) for call in message.tool_calls]:
            return message
        parts = [self._named(part) for part in message.parts]
        return type(message)(parts, metadata=message.metadata)

    def _named(self, part: Part) -> Part:
        if not isinstance(part, ToolCall):
            return part
        decorated = _DECORATED.fullmatch(part.name.strip())
        name = part.name if decorated is None else decorated["name"]
        if self.get(part.name) is not None or self.get(name) is None:
            return part
        return replace(part, name=name)

    def metadata_of(self, name: str) -> ToolMetadata:
        """Return the metadata of the tool *name*; the defaults if there is none."""
        callback = self.get(name)
        return PLAIN if callback is None else callback.metadata


def _unknown(name: str, offered: list[str]) -> str:
    from difflib import get_close_matches  # noqa: PLC0415 - imported for a message only

    nearest = get_close_matches(name, offered, n=3)
    if nearest:
        hint = f"did you mean {' or '.join(map(repr, nearest))}?"
    elif offered:
        hint = f"available: {', '.join(sorted(offered)[:20])}"
    else:
        hint = "no tools are available"
    return f"There is no tool {name!r}; {hint}"


def check_complete(call: ToolCall, callback: ToolCallback | None) -> None:
    """Check that a call at the end of a truncated message is complete.

    Raises:
        ToolArgumentError: It is not.
    """
    msg = f"The call of {call.name} was cut off, perhaps at a token limit; make it again, shorter"
    truncated = ToolArgumentError(msg, tool_name=call.name, malformed=True)
    try:
        arguments = loads(call.arguments.strip() or "{}")
    except ValueError as error:
        raise truncated from error
    # Truncated before its arguments begin, the call would run with defaults.
    if not arguments and callback is not None and callback.definition.input_schema["properties"]:
        raise truncated
