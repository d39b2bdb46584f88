"""The base class of tools that run at the provider, or in this process if it lacks them."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from chatclient.chat.tool import (
    ToolCallback,
    ToolContext,
    ToolDefinition,
    ToolMetadata,
    ToolResult,
)
from chatclient.errors import ToolError

Fallback = ToolCallback | Callable[..., Any]
"""A tool that runs in this process: a function, or a callback such as a tool of an MCP server."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ServerTool:
    """A tool that the provider runs.

    With a model whose provider does not have it, the *fallback* is offered in its place. Without a
    fallback, such a request raises `UnsupportedToolError` and is not sent.

    Attributes:
        fallback: A tool that runs in this process.
    """

    name: ClassVar[str]
    description: ClassVar[str]
    fallback: Fallback | None = field(default=None, repr=False)

    @property
    def callback(self) -> ToolCallback | None:
        """The fallback as a callback; None without one."""
        fallback = self.fallback
        return fallback if isinstance(fallback, ToolCallback) else None

    @property
    def definition(self) -> ToolDefinition:
        """The definition of the fallback, else the name of the provider's tool."""
        callback = self.callback
        if callback is None:
            return ToolDefinition(self._own_name, self.description)
        return callback.definition

    @property
    def _own_name(self) -> str:
        return self.name

    @property
    def metadata(self) -> ToolMetadata:
        """How the fallback is run; a tool search does not hide the tool."""
        callback = self.callback
        metadata = ToolMetadata(effect="read") if callback is None else callback.metadata
        return replace(metadata, always_visible=True)

    async def invoke(self, arguments: str, context: ToolContext) -> ToolResult:
        """Run the fallback."""
        callback = self.callback
        if callback is None:
            msg = f"{self.name} runs at the provider"
            raise ToolError(msg)
        return await callback.invoke(arguments, context)

    def read_arguments(self, arguments: str) -> Any:
        """Return the decoded arguments of a call of the fallback."""
        read = getattr(self.callback, "read_arguments", None)
        return None if read is None else read(arguments)
