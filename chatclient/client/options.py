"""Completes a request: system functions, options, and the tools that it offers."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from chatclient._internal.checks import check_callable, wants_argument
from chatclient._internal.frozen import EMPTY
from chatclient.chat.messages import Message, UserMessage, last_user_message, without_system
from chatclient.chat.options import NO_OPTIONS, ChatOptions, check_options
from chatclient.chat.tool import CONVERSATION_ID, ToolCallback, ToolRequest
from chatclient.client.request_settings import RequestSettings
from chatclient.client.shared_parts import SharedParts
from chatclient.errors import ToolDefinitionError, UsageError
from chatclient.runtime.blocking import drive
from chatclient.runtime.runtime import BLOCKING, Runtime
from chatclient.tools.duplicates import without_duplicates
from chatclient.tools.execution.toolset import resolve_tool
from chatclient.tools.sources import Offers, Resolved, is_provider, offered_tools

if TYPE_CHECKING:
    from chatclient.client.request_settings import RequestSettings


@dataclass(frozen=True, slots=True)
class SystemRequest:
    """The argument of a function that computes a system text.

    Attributes:
        messages: The other messages of the request, before a memory adds its messages.
        conversation_id: The conversation id, or None.
        tool_context: The tool context.
        params: The advisor params.
    """

    messages: tuple[Message, ...] = ()
    conversation_id: str | None = None
    tool_context: Mapping[str, Any] = field(default=EMPTY, repr=False)
    params: Mapping[str, Any] = EMPTY

    @property
    def user_message(self) -> UserMessage | None:
        """The last user message, or None."""
        return last_user_message(self.messages)


SystemFunction = (
    Callable[[], str | Awaitable[str]] | Callable[[SystemRequest], str | Awaitable[str]]
)
"""A plain or async function that returns a system text.

It is called with a `SystemRequest` if it has a parameter without a default value other than None.
"""


@dataclass(slots=True, eq=False)
class SystemTextFunction:
    """A `SystemFunction`, and whether it takes a `SystemRequest`."""

    function: Callable[..., Any]
    wants_request: bool

    @classmethod
    def of(cls, function: Callable[..., Any]) -> "SystemTextFunction":
        """Return the wrapper of *function*.

        Raises:
            WrongTypeError: It takes other arguments, or has another role.
        """
        wants_request = wants_argument(function)
        what = "a function for the system text"
        check_callable(what, function, takes=("system_request",) if wants_request else ())
        return cls(function, wants_request)

    async def text_for(self, request: SystemRequest, runtime: Runtime) -> str:
        """Return the system text for *request*.

        Raises:
            UsageError: The function did not return a string.
        """
        text = await runtime.invoke(self.function, *([request] if self.wants_request else []))
        if not isinstance(text, str):
            name = getattr(self.function, "__name__", repr(self.function))
            msg = f"{name} must return the system text, but returned {text!r}"
            raise UsageError(msg)
        return text


async def with_system_message(
    settings: RequestSettings, messages: tuple[Message, ...], runtime: Runtime
) -> tuple[Message, ...]:
    """Return *messages* after the system message, whose text may be computed by a function.

    Args:
        settings: The settings of the request.
        messages: The other messages of the request.
        runtime: The runtime of the request.

    Raises:
        UsageError: The function did not return a string, or there is nothing to send.
        TemplateError: Values for the system template are missing.
    """
    if settings.system_function is not None:
        params, context = settings.advisor_params, settings.tool_context
        request = SystemRequest(messages, params.get(CONVERSATION_ID), context, params)
        text = await settings.system_function.text_for(request, runtime)
        settings = replace(settings, system=replace(settings.system, text=text))
    if not (settings.system.is_template and settings.renderer_may_block):
        return settings.prepend_system_message(messages)
    return await runtime.invoke(settings.prepend_system_message, messages)


def with_options(
    shared: SharedParts,
    settings: RequestSettings,
    options: ChatOptions | None,
    values: Mapping[str, Any],
) -> RequestSettings:
    """Return *settings* with *options*, and with single *values* by name.

    Raises:
        UsageError: The provider of the model has no such option, or *options* is not a
            `ChatOptions`.
    """
    given: object = options
    if not isinstance(given, ChatOptions | None):
        msg = f"options are given by name, like options(temperature=0.2), not as {given!r}"
        raise UsageError(msg)
    kind = type(shared.model.options)
    layers = [] if options is None or options is NO_OPTIONS else [options]
    if values:
        named = type(options) if isinstance(options, kind) else kind
        given_values = {
            name: value for name, value in check_options(named, values).items() if value is not None
        }
        layers.append(named(**given_values, unset=values.keys() - given_values.keys()))
    for each in layers:
        if isinstance(each, kind):  # convert options of another provider
            settings = settings.with_options_of(kind)
        settings = settings.with_options(each)
    return settings


def with_request_options(
    shared: SharedParts,
    settings: RequestSettings,
    options: ChatOptions | None,
    values: Mapping[str, Any],
) -> RequestSettings:
    """Return *settings* with options of a single request; see `with_options`.

    Tools in the options replace the default tools of the client, and the tool context in the
    options takes precedence over that of the client.
    """
    settings = _with_tools_of(settings, with_options(shared, settings, options, values))
    for context in (options or NO_OPTIONS).tool_context, values.get("tool_context"):
        if context:
            settings = settings.with_tool_context(context)
    return settings


def _with_tools_of(before: RequestSettings, settings: RequestSettings) -> RequestSettings:
    """Return *settings* with the tools that its options have in addition to those of *before*."""
    removed: list[Resolved] = []
    added: list[Resolved] = []
    changed = False
    for old, new in zip(_tools_in(before), _tools_in(settings), strict=True):
        if new is not None and new is not old:
            changed = True
            removed.extend(old or ())
            added.extend(new)
    if not changed:
        return settings
    if settings.tools is not None:  # new options replace earlier ones
        settings = replace(settings, tools=tuple(t for t in settings.tools if t not in removed))
    return settings.with_tools(added, keep_defaults=False)


def _tools_in(settings: RequestSettings) -> tuple[Sequence[Resolved] | None, ...]:
    options = settings.options or NO_OPTIONS
    return options.tool_callbacks, options.tool_names


def static_options(shared: SharedParts, settings: RequestSettings) -> ChatOptions | None:
    """Return the complete options, or None if tool providers compute them for each request."""
    if any(is_provider(source) for source in settings.tool_sources):
        return None
    return drive(RequestOptions(shared, settings).complete((), BLOCKING))


def runs_tools(shared: SharedParts, settings: RequestSettings) -> bool:
    """Return whether a request runs tools instead of returning the tool calls."""
    options = shared.model.options.merge(settings.options)
    return settings.tool_calling and options.internal_tool_execution_enabled is not False


class RequestOptions:
    """The complete options of a request: those of the model and its own, with its tools.

    Tools of the client or request replace tools in the options; tools of the request replace
    tool names in the options, too.

    Args:
        shared: The parts of the client.
        settings: The settings of the request.

    Attributes:
        is_dynamic: Whether a provider may offer other tools in each round.
    """

    def __init__(self, shared: SharedParts, settings: RequestSettings) -> None:
        dynamic = [each for each in settings.tool_sources if getattr(each, "dynamic", False)]
        self.is_dynamic = bool(dynamic)
        self._shared = shared
        self._settings = settings
        self._offers: Offers = {}
        self._original: UserMessage | None = None  # before advisors changed it
        self._seen: tuple[Message, ...] = ()
        self._callbacks: Sequence[ToolCallback] = ()

    async def begin(self, messages: tuple[Message, ...], runtime: Runtime) -> ChatOptions:
        """Return the options for the first round; see `complete`."""
        options = await self.complete(messages, runtime)
        if self.is_dynamic:
            # Without system messages: a change by an advisor is no reason to list tools again.
            self._seen, self._callbacks = without_system(messages), options.tool_callbacks or ()
            self._original = last_user_message(messages)
        return options

    async def refresh(
        self, messages: Sequence[Message], runtime: Runtime
    ) -> Sequence[ToolCallback]:
        """Return the tools for the *messages* so far; only dynamic providers are called again."""
        if (current := without_system(messages)) != self._seen:
            options = await self.complete(tuple(messages), runtime)
            self._seen, self._callbacks = current, options.tool_callbacks or ()
        return self._callbacks

    async def complete(self, messages: tuple[Message, ...], runtime: Runtime) -> ChatOptions:
        """Return the options of the model merged with those of the request, with resolved tools.

        Args:
            messages: The messages of the request, for tool providers.
            runtime: The runtime of the request.

        Raises:
            ToolDefinitionError: The resolver does not know a name.
            DuplicateToolError: Two tools have the same name, and the policy does not permit it.
        """
        shared, settings = self._shared, self._settings
        options = shared.model.options.merge(settings.options)
        if settings.tool_context:  # never in a local variable, which tracebacks may show
            options = options.mutate(tool_context={**options.tool_context, **settings.tool_context})
        changes: dict[str, Any] = {}
        if not settings.tool_calling:
            changes["internal_tool_execution_enabled"] = False
        request = ToolRequest(
            messages,
            options.tool_context,
            settings.advisor_params.get(CONVERSATION_ID),
            original_user_message=self._original,
        )
        sources: Sequence[Resolved] = settings.tool_sources
        if settings.tools is None:
            sources = (*(sources or options.tool_callbacks or ()), *(options.tool_names or ()))
        tools = [
            await _named_tool(shared, source, runtime) if isinstance(source, str) else source
            for source in sources
        ]
        callbacks = await offered_tools(tools, request, runtime, self._offers)
        unique = list(without_duplicates(callbacks, shared.duplicate_tools))
        if self.is_dynamic:  # report duplicates before anything is sent
            announced = [c for each in tools for c in getattr(each, "tools_to_come", ())]
            without_duplicates([*unique, *announced], shared.duplicate_tools)
        if unique != list(options.tool_callbacks or ()):
            changes["tool_callbacks"] = unique
        return options.mutate(**changes) if changes else options


async def _named_tool(shared: SharedParts, name: str, runtime: Runtime) -> ToolCallback:
    """Return the tool that the resolver of the client finds for *name*.

    Raises:
        ToolDefinitionError: It finds none.
    """
    callback = await resolve_tool(shared.resolver, name, runtime)
    if callback is None:
        none = "there is none: give the tool itself, or set one with tool_callback_resolver()"
        msg = f"no tool {name!r} is known to the client's resolver ({shared.resolver or none})"
        raise ToolDefinitionError(msg)
    return callback
