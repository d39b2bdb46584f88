"""What MCP servers offer to an application: resources, prompts, and completions."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from chatclient.chat.messages import Media
from chatclient.extend import EMPTY

_UNKNOWN_TYPE = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class McpResource:
    """A resource of an MCP server: a file, a record, or the page of an MCP app.

    Attributes:
        server: The name of the server.
        uri: Identifies the resource; that of a page begins with `ui://`.
        name: The name.
        title: The name for people, or None.
        description: What it is, or None.
        mime_type: The type of its content, or None.
        size: The number of bytes, or None.
        metadata: The other fields of the server, such as `annotations` and `_meta`.
    """

    server: str
    uri: str
    name: str
    title: str | None = None
    description: str | None = None
    mime_type: str | None = None
    size: int | None = None
    metadata: Mapping[str, Any] = field(default=EMPTY, repr=False)


@dataclass(frozen=True, slots=True)
class McpResourceTemplate:
    """Resources of an MCP server whose URIs have variables; see `McpResource`.

    Attributes:
        server: The name of the server.
        uri_template: The URI, with variables in braces (RFC 6570).
        name: The name.
        title: The name for people, or None.
        description: What the resources are, or None.
        mime_type: The type of their content, or None.
        metadata: The other fields of the server.
    """

    server: str
    uri_template: str
    name: str
    title: str | None = None
    description: str | None = None
    mime_type: str | None = None
    metadata: Mapping[str, Any] = field(default=EMPTY, repr=False)


@dataclass(frozen=True, slots=True)
class McpContent:
    """A part of the content of a resource.

    Attributes:
        uri: The URI of the part.
        data: A text or bytes.
        mime_type: The type, or None.
        metadata: The `_meta` of the server, such as what the page of an MCP app may load.
    """

    uri: str
    data: str | bytes = field(repr=False)
    mime_type: str | None = None
    metadata: Mapping[str, Any] = field(default=EMPTY, repr=False)

    @property
    def part(self) -> str | Media:
        """The content as a part of a message."""
        if isinstance(self.data, str):
            return self.data
        name = self.uri.rpartition("/")[2] or None
        return Media(self.mime_type or _UNKNOWN_TYPE, self.data, name=name)


@dataclass(frozen=True, slots=True)
class McpPromptArgument:
    """An argument of a prompt.

    Attributes:
        name: The name.
        description: What it is, or None.
        required: Whether the prompt needs it.
    """

    name: str
    description: str | None = None
    required: bool = False


@dataclass(frozen=True, slots=True)
class McpPrompt:
    """A prompt of an MCP server, which the application fills in.

    Attributes:
        server: The name of the server.
        name: The name.
        title: The name for people, or None.
        description: What it is for, or None.
        arguments: The arguments.
        metadata: The other fields of the server.
    """

    server: str
    name: str
    title: str | None = None
    description: str | None = None
    arguments: tuple[McpPromptArgument, ...] = ()
    metadata: Mapping[str, Any] = field(default=EMPTY, repr=False)


@dataclass(frozen=True, slots=True)
class McpCompletion:
    """What a server proposes for an argument.

    Attributes:
        values: The values, the best ones first.
        total: The number of all values, or None if it is not known.
        has_more: Whether there are more.
    """

    values: tuple[str, ...]
    total: int | None = None
    has_more: bool = False
