"""Completes a request: system functions, options, and the tools that it offers."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from chatclient._internal.checks import check_callable, wants_argument
from chatclient._internal.frozen import EMPTY
from chatclient.chat.messages import Message, UserMessage, last_user_message, without_system
from chatclient.chat.options import NO_OPTIONS, ChatOptions, check_options
from chatclient.chat.tool import CONVERSATION_ID, ToolCallback, ToolRequest
from chatclient.chat.turn import RefreshTools
from chatclient.client.request_settings import RequestSettings
from chatclient.client.shared_parts import SharedParts
from chatclient.errors import ToolDefinitionError, UsageError
from chatclient.runtime.blocking import drive
from chatclient.runtime.runtime import BLOCKING, Runtime
from chatclient.tools.duplicates import without_duplicates
from chatclient.tools.execution.toolset import resolve_tool
from chatclient.tools.providers import Offers, is_provider, offered_tools
from chatclient.tools.sources import Resolved

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


async def with_system_text(
    settings: "RequestSettings", messages: tuple[Message, ...], runtime: Runtime
) -> "RequestSettings":
    """Return *settings* with the system text that its system function computes.

    Args:
        settings: Settings with or without a system function.
        messages: The other messages of the request.
        runtime: The runtime of the request.

    Raises:
        UsageError: The function did not return a string.
    """
    function, params = settings.system_function, settings.advisor_params
    if function is None:
        return settings
    conversation_id = params.get(CONVERSATION_ID)
    request = SystemRequest(messages, conversation_id, settings.tool_context, params)
    text = await function.text_for(request, runtime)
    return replace(settings, system=replace(settings.system, text=text), system_function=None)


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
    return drive(complete_options(shared, settings, (), BLOCKING))


def runs_tools(shared: SharedParts, settings: RequestSettings) -> bool:
    """Return whether a request runs tools instead of returning the tool calls."""
    options = shared.model.options.merge(settings.options)
    return settings.tool_calling and options.internal_tool_execution_enabled is not False


async def complete_request(
    shared: SharedParts, settings: RequestSettings, messages: tuple[Message, ...], runtime: Runtime
) -> tuple[ChatOptions, RefreshTools | None]:
    """Return the complete options of a request, and a function that lists its tools again.

    There is no function without dynamic tool providers.
    """
    offers: Offers = {}
    options = await complete_options(shared, settings, messages, runtime, offers)
    if not any(getattr(source, "dynamic", False) for source in settings.tool_sources):
        return options, None
    announced = [
        c for source in settings.tool_sources for c in getattr(source, "tools_to_come", ())
    ]
    if announced:  # report duplicates before anything is sent
        without_duplicates([*(options.tool_callbacks or ()), *announced], shared.duplicate_tools)

    # Without system messages: a change by an advisor is no reason to list tools again.
    seen, callbacks = without_system(messages), options.tool_callbacks or ()
    original = last_user_message(messages)

    async def refresh(messages: Sequence[Message], runtime: Runtime) -> Sequence[ToolCallback]:
        nonlocal seen, callbacks
        if (current := without_system(messages)) != seen:
            options = await complete_options(
                shared, settings, tuple(messages), runtime, offers, original
            )
            seen, callbacks = current, options.tool_callbacks or ()
        return callbacks

    return options, refresh


async def complete_options(
    shared: SharedParts,
    settings: RequestSettings,
    messages: tuple[Message, ...],
    runtime: Runtime,
    offers: Offers | None = None,
    original: UserMessage | None = None,
) -> ChatOptions:
    """Return the options of the model merged with those of *settings*, with resolved tools.

    Tools of the client or request replace tools in the options; tools of the request replace
    tool names in the options, too.

    Args:
        shared: The parts of the client.
        settings: The settings of the request.
        messages: The messages of the request, for tool providers.
        runtime: The runtime of the request.
        offers: Caches the tools of providers. Only dynamic providers in it are called again.
        original: The user message before advisors changed it; default: that of *messages*.

    Raises:
        ToolDefinitionError: The resolver does not know a name.
        DuplicateToolError: Two tools have the same name, and the policy does not permit it.
    """
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
        original_user_message=original,
    )
    callbacks = list(options.tool_callbacks or ())
    if settings.tool_sources or settings.tools is not None:
        offers = {} if offers is None else offers
        sources = [
            await _named_tool(shared, source, runtime) if isinstance(source, str) else source
            for source in settings.tool_sources
        ]
        callbacks = await offered_tools(sources, request, runtime, offers)
    if options.tool_names and settings.tools is None:
        callbacks += [await _named_tool(shared, name, runtime) for name in options.tool_names]
    unique = list(without_duplicates(callbacks, shared.duplicate_tools))
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
