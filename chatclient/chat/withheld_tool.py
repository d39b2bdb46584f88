"""`WithheldTool`: a tool that stays in the prompt, but may not be called in a request."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from chatclient.chat.options import ChatOptions
from chatclient.chat.tool import (
    ToolCallback,
    ToolContext,
    ToolDefinition,
    ToolMetadata,
    ToolResult,
)
from chatclient.errors import UnknownToolError


@dataclass(frozen=True, slots=True)
class WithheldTool:
    """A tool that the model may not call in this request.

    It is sent all the same to a provider that can restrict calls to some of the tools, so that the
    beginning of the prompt stays the same; see `ChatModel.can_withhold_tools`. Other requests do
    not contain it. It is never run.

    Attributes:
        delegate: The tool.
    """

    delegate: ToolCallback

    @property
    def definition(self) -> ToolDefinition:
        """The tool's description for the model."""
        return self.delegate.definition

    @property
    def metadata(self) -> ToolMetadata:
        """How the tool is run, if it may be called."""
        return self.delegate.metadata

    async def invoke(self, arguments: str, context: ToolContext) -> ToolResult:  # noqa: ARG002
        """Raise an error, because the tool may not be called.

        Raises:
            UnknownToolError: Always.
        """
        name = self.definition.name
        msg = f"There is no tool {name!r} for this request"
        raise UnknownToolError(msg, tool_name=name)


def callable_tools(callbacks: Iterable[ToolCallback]) -> tuple[ToolCallback, ...]:
    """Return the tools of *callbacks* that the model may call."""
    return tuple([each for each in callbacks if type(each) is not WithheldTool])


def allowed_names(options: ChatOptions) -> Sequence[str] | None:
    """Return the names of the tools that the model may call; None if none is withheld."""
    callbacks = options.tool_callbacks or ()
    if WithheldTool not in map(type, callbacks):
        return None
    return [each.definition.name for each in callable_tools(callbacks)]
