"""The tools that may be run in a turn, and how one of them is found by its name."""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from chatclient.errors import UnknownToolError
from chatclient.messages import AssistantMessage, Part, ToolCall
from chatclient.runtime import Runtime
from chatclient.tool import ToolCallback, ToolMetadata
from chatclient.tools.decorator import PLAIN
from chatclient.tools.resolution import ToolCallbackResolver, resolve_tool
from chatclient.values import EMPTY

_NAMESPACE = "functions."

Callbacks = Mapping[str, ToolCallback]
"""Tools by name."""


@dataclass(frozen=True, slots=True)
class RunnableTools:
    """The tools that may be run in a turn: those that were offered, and more.

    Attributes:
        offered: What the model was told about, by name.
        unoffered: More tools, by name, that are run if the model names them all the same.
        resolver: Knows others by name, if there is one.
        found: What the resolver has been asked for already, by name.
    """

    offered: Callbacks
    unoffered: Callbacks = EMPTY
    resolver: ToolCallbackResolver | None = None
    found: Callbacks = EMPTY

    def get(self, name: str) -> ToolCallback | None:
        """Return the tool called *name*, or None; the resolver is not asked."""
        callback = self.offered.get(name)
        if callback is None:
            callback = self.unoffered.get(name)
        return self.found.get(name) if callback is None else callback

    async def find(self, name: str, runtime: Runtime) -> ToolCallback:
        """Return the tool called *name*, which the resolver may know.

        Raises:
            UnknownToolError: There is none; the message tells the nearest names.
        """
        callback = self.get(name)
        if callback is None:
            callback = await resolve_tool(self.resolver, name, runtime)
        if callback is None:
            raise UnknownToolError(_unknown(name, list(self.offered)), tool_name=name)
        return callback

    async def with_resolved(self, names: Iterable[str], runtime: Runtime) -> "RunnableTools":
        """Return these tools, and those of *names* that only the resolver knows."""
        found: dict[str, ToolCallback] = {}
        for name in () if self.resolver is None else names:
            if name in found or self.get(name) is not None:
                continue
            try:
                callback = await resolve_tool(self.resolver, name, runtime)
            except Exception:  # noqa: BLE001, S112 - running the tool fails as well, and is told
                continue
            if callback is not None:
                found[name] = callback
        return replace(self, found={**self.found, **found}) if found else self

    def named_in(self, message: AssistantMessage) -> AssistantMessage:
        """Return *message* with calls of `functions.NAME` as calls of the tool NAME.

        Models that learned to call tools in a namespace of that name write it now and then, gpt-oss
        above all. No tool is called so itself: services refuse a dot.
        """
        if not any(call.name.startswith(_NAMESPACE) for call in message.tool_calls):
            return message
        parts = [self._named(part) for part in message.parts]
        return type(message)(parts, metadata=message.metadata)

    def _named(self, part: Part) -> Part:
        if not isinstance(part, ToolCall):
            return part
        name = part.name.removeprefix(_NAMESPACE)
        return part if self.get(name) is None else replace(part, name=name)

    def metadata_of(self, name: str) -> ToolMetadata:
        """Return how the tool called *name* is to be run; in no special way, if there is none."""
        callback = self.get(name)
        return PLAIN if callback is None else callback.metadata


def _unknown(name: str, offered: list[str]) -> str:
    nearest = difflib.get_close_matches(name, offered, n=3)
    if nearest:
        hint = f"did you mean {' or '.join(map(repr, nearest))}?"
    elif offered:
        hint = f"available: {', '.join(sorted(offered)[:20])}"
    else:
        hint = "no tools are available"
    return f"There is no tool {name!r}; {hint}"
