"""What an application says about the MCP servers that it uses."""

import importlib.util
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

from chatclient.checks import check_callable, check_kind, check_word, seconds
from chatclient.errors import UsageError
from chatclient.model import ChatModel
from chatclient.tool import ToolContext

MAKE_ONE = "make one: McpServer.stdio(name, command, *args), or McpServer.http(name, url)"

Connect = Callable[[], Any]
"""Returns a transport of the MCP SDK, a fresh one for each connection."""

ToolContextToMeta = Callable[[ToolContext], Mapping[str, Any] | None]
"""Chooses what of the tool context a server is told, as the `_meta` of a call."""


@dataclass(frozen=True, slots=True)
class McpElicitation:
    """What a server wants to know of the user.

    Attributes:
        server: The server's name.
        message: Its words for the user.
        schema: The form that is to be filled in, as the JSON Schema of an object of plain values;
            None if there is none.
        url: Where the user is to go instead, for what the application is not to see, such as a
            password or a payment; None if there is a form.
    """

    server: str
    message: str
    schema: Mapping[str, Any] | None = None
    url: str | None = None


McpUserAnswer = Mapping[str, Any] | bool | None
"""What the user says to an elicitation: the values of the form, True to open the URL, False for no,
None for nothing."""

ElicitationHandler = Callable[[McpElicitation], McpUserAnswer | Awaitable[McpUserAnswer]]
"""Asks the user. A plain function is called in a worker thread; an asynchronous one is awaited on
the loop that the connections live on, which is no loop of the application's."""


McpLogLevel = Literal["debug", "info", "warning", "error"]
"""From which level on messages of a server's log are passed on."""


class McpServerSettings(TypedDict, total=False):
    """The settings that `McpServer` has, however the server is reached."""

    timeout: float | None
    connect_timeout: float
    required: bool
    retry_after: float
    trust_annotations: bool
    on_elicitation: ElicitationHandler | None
    sampling: ChatModel | None
    roots: Sequence[str | Path]
    log_level: McpLogLevel | None


@dataclass(frozen=True, slots=True)
class McpServer:
    """An MCP server, how it is reached and how it is treated.

    Made with `McpServer.stdio` or `McpServer.http`; connected when its tools are first wanted.

    Attributes:
        name: What it is called in errors, and in front of its tools' names where two servers
            have a tool of one name.
        connect: Makes a transport of the MCP SDK, a fresh one for each connection.
        timeout: Seconds that one call or one listing may take; None for no limit.
        connect_timeout: Seconds that connecting may take, the start of its process included.
        required: Whether a request fails when the server cannot be reached. Otherwise it goes on
            without the server's tools.
        retry_after: Seconds until a server that is not required, and could not be reached, is
            tried again; and until a lost subscription to its changes is renewed.
        trust_annotations: Whether its word is taken for what a tool does (`readOnlyHint`,
            `idempotentHint`), which approval and repetition go by.
        on_elicitation: Asks the user what the server wants to know; None if it may ask nothing.
            The time that the user takes counts towards `timeout`.
        sampling: A model that the server may put prompts of its own to, within the model's limit
            of tokens and at the application's cost; None if it may not.
        roots: Files and folders that the server is told to keep to, if it asks. It is up to the
            server to do so.
        log_level: From which level on messages of the server's log are written to this library's;
            None for none.
        command: The program that is started, for errors; None where none is.

    Raises:
        UsageError: The name is blank, *connect* cannot be called, a time is not positive, a root is
            no path, the level is not a known one, or the MCP SDK is not installed.
    """

    name: str
    connect: Connect = field(repr=False)
    timeout: float | None = 60.0
    connect_timeout: float = 30.0
    required: bool = True
    retry_after: float = 5.0
    trust_annotations: bool = False
    on_elicitation: ElicitationHandler | None = None
    sampling: ChatModel | None = None
    roots: Sequence[str | Path] = ()
    log_level: McpLogLevel | None = None
    command: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        require_sdk()
        if not self.name.strip():
            msg = "an MCP server needs a name, for errors and for its tools where names clash"
            raise UsageError(msg)
        check_callable("connect", self.connect, MAKE_ONE)
        for name in ("timeout", "connect_timeout", "retry_after"):
            given = getattr(self, name)
            if given is not None or name != "timeout":
                object.__setattr__(self, name, seconds(name, given))
        roots = [self.roots] if isinstance(self.roots, str | Path) else self.roots
        for root in roots:
            check_kind("a root", root, (str, Path))
        object.__setattr__(
            self, "roots", tuple(Path(root).expanduser().absolute() for root in roots)
        )
        if self.log_level is not None:
            check_word("log_level", self.log_level, McpLogLevel)

    @classmethod
    def stdio(
        cls,
        name: str,
        command: str,
        *args: str,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        **settings: Unpack[McpServerSettings],
    ) -> "McpServer":
        """Return a server that is started as a process and spoken to over its standard streams.

        Args:
            name: See the attributes.
            command: The program, looked up on the `PATH`.
            *args: Its arguments.
            env: Environment variables, beside the few harmless ones that every server gets;
                nothing else of this process' environment is passed on.
            cwd: Where it runs.
            **settings: See the attributes.

        Raises:
            UsageError: The command or an argument is not a text; see `McpServer`, too.
        """
        for part in (command, *args):
            hint = "pass its arguments one by one, and a path as str(path)"
            check_kind("the command of an MCP server", part, str, hint)

        def connect() -> Any:
            from mcp.client.stdio import StdioServerParameters, stdio_client  # noqa: PLC0415

            # The process' own: what notebooks and tests put in its place is no file.
            errors: Any = sys.__stderr__ or subprocess.DEVNULL
            return stdio_client(
                StdioServerParameters(
                    command=command, args=list(args), env=dict(env or {}), cwd=cwd
                ),
                errors,
            )

        return cls(name, connect, command=command, **settings)

    @classmethod
    def http(
        cls,
        name: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        auth: Any = None,
        **settings: Unpack[McpServerSettings],
    ) -> "McpServer":
        """Return a server that is spoken to over streamable HTTP.

        Args:
            name: See the attributes.
            url: Where it is, such as `https://example.com/mcp`.
            headers: Sent with every request.
            auth: An `httpx2.Auth`, such as the OAuth providers of the MCP SDK.
            **settings: See the attributes.

        Raises:
            UsageError: The URL does not begin with http:// or https://; see `McpServer`, too.
        """
        if not str(url).lower().startswith(("http://", "https://")):
            msg = f"the URL of an MCP server must begin with http:// or https://, not {url!r}"
            raise UsageError(msg)

        def connect() -> Any:
            from chatclient.tools.mcp.session import HttpTransport  # noqa: PLC0415

            return HttpTransport(url, dict(headers or {}), auth)

        return cls(name, connect, **settings)


@dataclass(frozen=True, slots=True)
class McpProgress:
    """How far a tool of an MCP server has come; the event of a `ToolProgress`.

    Attributes:
        progress: What is done so far.
        total: What there is to do in all, where the server knows.
        message: The server's words.
    """

    progress: float
    total: float | None = None
    message: str | None = None


def tool_context_meta(*keys: str) -> ToolContextToMeta:
    """Return a converter that tells servers *keys* of the tool context, where they have a value.

    Without a converter a server is told nothing: the context may hold what is no business of it.
    """

    def meta(context: ToolContext) -> Mapping[str, Any]:
        return {key: context[key] for key in keys if context.get(key) is not None}

    return meta


def require_sdk() -> None:
    """Make sure that the MCP SDK is there.

    Raises:
        UsageError: It is not.
    """
    if importlib.util.find_spec("mcp") is None:
        msg = "MCP needs its SDK. Run: pip install 'chatclient[mcp]'"
        raise UsageError(msg)
