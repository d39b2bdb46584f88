"""Tools that run at the provider: web search, code execution and others, and their base class."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from chatclient._internal.checks import check_type
from chatclient.chat.parts import as_tuple
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


@dataclass(frozen=True, kw_only=True, eq=False)
class WebTool(ServerTool):
    """A tool that reads pages of the web.

    Attributes:
        allowed_domains: The only domains that are read.
        blocked_domains: Domains that are not read.
        max_uses: The maximum number of uses in a request.
    """

    allowed_domains: str | Sequence[str] = ()
    blocked_domains: str | Sequence[str] = ()
    max_uses: int | None = None

    def __post_init__(self) -> None:
        for name in ("allowed_domains", "blocked_domains"):
            object.__setattr__(self, name, as_tuple(getattr(self, name)))


@dataclass(frozen=True, kw_only=True, eq=False)
class WebSearch(WebTool):
    """Searches the web.

    Attributes:
        allowed_domains: The only domains with results.
        blocked_domains: Domains without results.
        max_uses: The maximum number of searches in a request.
        fallback: A tool that searches, with a parameter for what is searched.
    """

    name = "web_search"
    description = "Search the web."


@dataclass(frozen=True, kw_only=True, eq=False)
class WebFetch(WebTool):
    """Reads pages of the web whose addresses are in the conversation.

    Attributes:
        allowed_domains: The only domains that are read.
        blocked_domains: Domains that are not read.
        max_uses: The maximum number of pages in a request.
        fallback: A tool that reads a page, with a parameter for its address.
    """

    name = "web_fetch"
    description = "Read a page of the web."


@dataclass(frozen=True, kw_only=True, eq=False)
class CodeExecution(ServerTool):
    """Runs code that the model writes, in a sandbox of the provider.

    Attributes:
        fallback: A tool that runs code.
    """

    name = "code_execution"
    description = "Run code."


@dataclass(frozen=True, eq=False)
class FileSearch(ServerTool):
    """Searches files that were uploaded to the provider.

    Attributes:
        stores: The provider's ids of the stores of files.
        max_results: The maximum number of results of a search.
        fallback: A tool that searches your documents.
    """

    name = "file_search"
    description = "Search files."
    stores: str | Sequence[str]
    max_results: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "stores", as_tuple(self.stores))


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageGeneration(ServerTool):
    """Draws images.

    Attributes:
        size: The size, such as `1024x1024`.
        quality: The quality, such as `low`.
        fallback: A tool that draws an image.
    """

    name = "image_generation"
    description = "Draw an image."
    size: str | None = None
    quality: str | None = None


@dataclass(frozen=True, eq=False)
class McpConnector(ServerTool):
    """Tools of a remote MCP server, which the provider connects to and runs without asking.

    `McpToolCallbackProvider` connects from this process, with every model.

    Attributes:
        label: A name for the server, for the model.
        url: The server's URL.
        authorization: A token for the server.
        allowed_tools: The only tools that are offered.
        fallback: A tool that does what is needed from the server.
    """

    name = "mcp_connector"
    description = "Use an MCP server."
    label: str
    url: str
    authorization: str | None = field(default=None, kw_only=True, repr=False)
    allowed_tools: str | Sequence[str] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        check_type("the label of an MCP server", self.label, str)
        object.__setattr__(self, "allowed_tools", as_tuple(self.allowed_tools))

    @property
    def _own_name(self) -> str:
        return self.label  # there may be several servers


SearchVariant = Literal["bm25", "regex"]
"""How a provider finds tools: by the words of a query, or by a regular expression."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ToolSearch(ServerTool):
    """Finds tools among those of the request; used by `ProviderToolIndex`.

    Attributes:
        deferred: The names of the tools that the model sees once it has found them.
        variant: The kind of search; None is the provider's own choice.
        fallback: A tool that searches in this process.
    """

    name = "tool_search"
    description = "Find tools."
    deferred: tuple[str, ...] = ()
    variant: SearchVariant | None = None
