"""The configuration of an MCP server, and the definitions of its tools that are accepted."""

import hashlib
import importlib.util
import json
import shutil
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

from chatclient.chat.model import ChatModel
from chatclient.chat.tool import ToolContext
from chatclient.chat.tool_definition import check_provider_options
from chatclient.errors import MissingExtraError, ToolDefinitionError, UsageError
from chatclient.extend import EMPTY, check_callable, check_choice, check_type, get_logger, seconds
from chatclient.mcp.limits import MCP_LIMITS, McpLimits
from chatclient.mcp.oauth import McpOAuth

if TYPE_CHECKING:
    import httpx2  # that of the MCP SDK

MAKE_ONE = "make one: McpServer.stdio(name, command, *args), or McpServer.http(name, url)"

Connect = Callable[[], Any]
"""Returns a new transport of the MCP SDK for each connection."""

ToolContextToMeta = Callable[[ToolContext], Mapping[str, Any] | None]
"""Selects values of the tool context that a server gets as the `_meta` of a call."""


@dataclass(frozen=True, slots=True)
class McpElicitation:
    """A question of a server to the user.

    Attributes:
        server: The server's name.
        message: The text for the user.
        schema: The form to fill in, as the JSON Schema of an object of plain values, or None.
        url: A page for the user to visit instead, for data that the application must not see, such
            as a password or a payment; None if there is a form.
    """

    server: str
    message: str
    schema: Mapping[str, Any] | None = None
    url: str | None = None


McpUserAnswer = Mapping[str, Any] | bool | None
"""The answer to an elicitation: the values of the form, True to open the URL, False to decline,
None for no answer."""

ElicitationHandler = Callable[[McpElicitation], McpUserAnswer | Awaitable[McpUserAnswer]]
"""Asks the user. A plain function is called in a worker thread; an asynchronous one is awaited on
the loop of the connections, which is not the application's."""


McpLogLevel = Literal["debug", "info", "warning", "error"]
"""The lowest level of messages of a server's log that are passed on."""


class McpServerSettings(TypedDict, total=False):
    """The settings of `McpServer` that do not depend on the transport."""

    timeout: float | None
    connect_timeout: float
    required: bool
    retry_after: float
    refresh_after: float | timedelta | None
    trust_annotations: bool
    background: Collection[str]
    on_elicitation: ElicitationHandler | None
    sampling: ChatModel | None
    roots: Sequence[str | Path]
    log_level: McpLogLevel | None
    limits: McpLimits
    provider_options: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class McpServer:
    """An MCP server: its transport and its settings.

    Create it with `McpServer.stdio` or `McpServer.http`. It is connected on first use.

    Attributes:
        name: Used in errors, and as a prefix of tool names if two servers have a tool of the same
            name.
        connect: Returns a new transport of the MCP SDK for each connection.
        timeout: Seconds that one call or one listing may take; None for no limit.
        connect_timeout: Seconds that connecting may take, the start of its process included.
        required: Whether a request fails when the server cannot be reached. Otherwise it continues
            without the server's tools.
        retry_after: Seconds until an optional server that could not be reached is tried again, and
            until a lost subscription to its changes is renewed.
        refresh_after: Time after which the server's tools are listed again, in seconds or as a
            `timedelta`, because not every server can report that they have changed; None for
            never. A reported change always counts immediately.
        trust_annotations: Whether approval and repetition rely on what the server declares about
            its tools (`readOnlyHint`, `idempotentHint`).
        background: The server's names of tools that run in the background; see `ToolMetadata`.
        on_elicitation: Asks the user a question of the server; None if the server may not ask.
            Fields that are missing in its answer get the defaults of the form. The time that the
            user takes counts towards `timeout`.
        sampling: A model that the server may use with its own prompts, within the model's token
            limit and at the application's cost; None if it may not.
        roots: Files and folders that the server should restrict itself to, sent on request. The
            server is responsible for doing so.
        log_level: The lowest level of messages of the server's log that are written to this
            library's log; None for no messages.
        limits: What the server may send.
        provider_options: More fields of its tools for single providers, such as
            `{"anthropic": {"defer_loading": True}}`; see `ToolDefinition`.
        command: The program that is started, for errors, or None.

    Raises:
        UsageError: The name is blank, *connect* is not callable, a time is not positive, a root is
            no path, the level is unknown, the limits are no `McpLimits`, or the MCP SDK is not
            installed.
    """

    name: str
    connect: Connect = field(repr=False)
    timeout: float | None = 60.0
    connect_timeout: float = 30.0
    required: bool = True
    retry_after: float = 5.0
    refresh_after: float | timedelta | None = 300.0
    trust_annotations: bool = False
    background: Collection[str] = ()
    on_elicitation: ElicitationHandler | None = None
    sampling: ChatModel | None = None
    roots: Sequence[str | Path] = ()
    log_level: McpLogLevel | None = None
    limits: McpLimits = MCP_LIMITS
    provider_options: Mapping[str, Mapping[str, Any]] = EMPTY
    command: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        require_sdk()
        if not self.name.strip():
            msg = "an MCP server needs a name, for errors and for its tools where names clash"
            raise UsageError(msg)
        check_callable("connect", self.connect, MAKE_ONE)
        for name in ("timeout", "connect_timeout", "retry_after", "refresh_after"):
            given = getattr(self, name)
            if given is not None or name not in ("timeout", "refresh_after"):
                object.__setattr__(self, name, seconds(name, given))
        roots = [self.roots] if isinstance(self.roots, str | Path) else self.roots
        hint = 'give the names of tools: background=["name"]'
        check_type("background", self.background, (list, tuple, set, frozenset), hint)
        for root in roots:
            check_type("a root", root, (str, Path))
        object.__setattr__(
            self, "roots", tuple(Path(root).expanduser().absolute() for root in roots)
        )
        check_type("limits", self.limits, McpLimits)
        check_provider_options(self.provider_options, f"MCP server {self.name!r}")
        if self.log_level is not None:
            check_choice("log_level", self.log_level, McpLogLevel)

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
        """Return a server that is started as a process and uses its standard streams.

        Args:
            name: See the attributes.
            command: The program, looked up on the `PATH`.
            *args: Its arguments.
            env: Environment variables, in addition to the few harmless ones that every server gets.
                No others of this process are passed on.
            cwd: The working directory.
            **settings: See the attributes.

        Raises:
            UsageError: The command or an argument is not a text, or the command is a command line;
                see also `McpServer`.
        """
        for part in (command, *args):
            hint = "pass its arguments one by one, and a path as str(path)"
            check_type("the command of an MCP server", part, str, hint)
        program, _, rest = command.partition(" ")
        if rest and not args and shutil.which(program) and not shutil.which(command):
            msg = (
                f"the command of an MCP server is a program, not a command line: write"
                f" McpServer.stdio({name!r}, {program!r}, ...) with its arguments one by one"
            )
            raise UsageError(msg)

        def connect() -> Any:
            from chatclient.mcp.stdio import StdioTransport  # noqa: PLC0415

            limits = settings.get("limits", MCP_LIMITS)
            return StdioTransport(name, command, args, env, cwd, limits)

        return cls(name, connect, command=command, **settings)

    if not TYPE_CHECKING:  # what other libraries have

        @classmethod
        def sse(cls, *_args: object, **_settings: object) -> "McpServer":
            """Raise an error that names the successor of this transport."""
            msg = (
                "the transport over two endpoints (HTTP+SSE) is deprecated and not supported; most"
                " servers have its successor: McpServer.http(name, url)"
            )
            raise UsageError(msg)

    @classmethod
    def http(
        cls,
        name: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        auth: "httpx2.Auth | McpOAuth | Literal['oauth'] | None" = None,
        **settings: Unpack[McpServerSettings],
    ) -> "McpServer":
        """Return a server that uses streamable HTTP.

        Args:
            name: See the attributes.
            url: Its URL, such as `https://example.com/mcp`.
            headers: Sent with every request.
            auth: `"oauth"` to let the user log in through the browser, an `McpOAuth` for the same
                with settings, or an `httpx2.Auth`.
            **settings: See the attributes.

        Raises:
            UsageError: The URL does not begin with http:// or https://, or *auth* is none of
                these; see also `McpServer`.
        """
        if not str(url).lower().startswith(("http://", "https://")):
            msg = f"the URL of an MCP server must begin with http:// or https://, not {url!r}"
            raise UsageError(msg)
        if headers is not None:
            hint = "for a token write {'Authorization': 'Bearer ...'}"
            check_type("headers", headers, Mapping, hint)
        login: Any = McpOAuth() if auth == "oauth" else auth
        is_other = type(login).__module__.partition(".")[0] == "httpx"
        is_auth = isinstance(login, McpOAuth | None) or hasattr(login, "auth_flow")
        if is_other or not is_auth:
            msg = "auth must be 'oauth', an McpOAuth or an auth of httpx2; pass a token in headers="
            raise UsageError(msg)

        def connect() -> Any:
            from chatclient.mcp.session import HttpTransport  # noqa: PLC0415 - loads the SDK

            limits = settings.get("limits", MCP_LIMITS)
            return HttpTransport(url, dict(headers or {}), login, limits.message_size)

        return cls(name, connect, **settings)


@dataclass(frozen=True, slots=True)
class McpProgress:
    """The progress of a tool of an MCP server; the event of a `ToolProgress`.

    Attributes:
        progress: The amount that is done.
        total: The total amount, if the server knows it.
        message: The server's message.
    """

    progress: float
    total: float | None = None
    message: str | None = None


def tool_context_meta(*keys: str) -> ToolContextToMeta:
    """Return a function that selects *keys* of the tool context, if they have a value.

    Without one a server gets nothing, because the context may contain secrets.
    """

    def meta(context: ToolContext) -> Mapping[str, Any]:
        return {key: context[key] for key in keys if context.get(key) is not None}

    return meta


def require_sdk() -> None:
    """Check that the MCP SDK is installed.

    Raises:
        UsageError: It is not.
    """
    if importlib.util.find_spec("mcp") is None:  # not imported, which takes long
        msg = "MCP needs its SDK; pip install 'chatclient[mcp]'"
        raise MissingExtraError(msg)


log = get_logger(__name__)


class AcceptedTools:
    """Remembers the definitions of tools, and decides about changed ones.

    Args:
        pin: Whether a tool is left out when its server changes its definition; or the accepted
            tools, as `fingerprints` contains them, so that other tools are left out as well.
    """

    def __init__(self, pin: bool | Mapping[str, str]) -> None:  # noqa: FBT001 - see the provider
        check_type("pin", pin, (bool, Mapping))
        self._pin = pin is not False
        self._accepts_new = isinstance(pin, bool)
        self.fingerprints: dict[str, str] = {} if isinstance(pin, bool) else dict(pin)
        """Digests of the tools, by server and name."""

    def accepts(self, server: McpServer, tool: Any) -> bool:
        """Return whether *tool* is offered, and log a change of its definition.

        Raises:
            ToolDefinitionError: Its definition is too long.
        """
        definition = tool.model_dump(mode="json", by_alias=True, exclude={"meta", "icons"})
        definition = json.dumps(definition, sort_keys=True)
        if len(definition) > (most := server.limits.definition_length):
            msg = (
                f"the definition of the tool {tool.name[:100]!r} is longer than {most:,} characters"
            )
            raise ToolDefinitionError(msg)
        key, digest = f"{server.name}/{tool.name}", hashlib.sha256(definition.encode()).hexdigest()
        accepted = self.fingerprints.get(key)
        if accepted == digest:
            return True
        if accepted is None and self._accepts_new:
            self.fingerprints[key] = digest
            return True
        event = "mcp tool is not accepted" if accepted is None else "mcp tool has changed"
        log.warning(event, server=server.name, tool=tool.name, left_out=self._pin)
        if not self._pin:
            self.fingerprints[key] = digest
        return not self._pin
