"""Completes the options of a request: the model's, the client's and its own, with all tools."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from chatclient.advisors.tool_calling import REFRESH_TOOLS
from chatclient.driving import drive
from chatclient.engine import Engine
from chatclient.errors import ToolDefinitionError, UsageError
from chatclient.messages import Message, without_system
from chatclient.options import NO_OPTIONS, ChatOptions, checked
from chatclient.runtime import BLOCKING, Runtime
from chatclient.spec import RequestSpec
from chatclient.tool import CONVERSATION_ID, ToolCallback, ToolRequest
from chatclient.tools.duplicates import without_duplicates
from chatclient.tools.offers import Offers, is_provider, offered_tools
from chatclient.tools.resolution import resolve_tool
from chatclient.tools.sources import Resolved
from chatclient.values import merged


def with_options(
    engine: Engine, spec: RequestSpec, options: ChatOptions | None, values: Mapping[str, Any]
) -> RequestSpec:
    """Return *spec* with more options, single ones checked against what the model knows.

    Raises:
        UsageError: The model's provider has no such option, or *options* is not a ChatOptions.
    """
    given: object = options
    if not isinstance(given, ChatOptions | None):
        msg = f"options are given by name, like options(temperature=0.2), not as {given!r}"
        raise UsageError(msg)
    kind = type(engine.model.options)
    several = [] if options is None or options is NO_OPTIONS else [options]
    if values:
        named = type(options) if isinstance(options, kind) else kind
        several.append(named(**checked(named, values)))
    for each in several:
        if isinstance(each, kind):  # those of another provider would leave no place for them
            spec = spec.with_options_of(kind)
        spec = spec.with_options(each)
    return spec


def with_request_options(
    engine: Engine, spec: RequestSpec, options: ChatOptions | None, values: Mapping[str, Any]
) -> RequestSpec:
    """Return *spec* with options of a single request.

    Tools and tool context among them are the request's own, and so go before the client's.

    Raises:
        UsageError: As in `with_options`.
    """
    spec = _with_tools_of(spec, with_options(engine, spec, options, values))
    for context in (options or NO_OPTIONS).tool_context, values.get("tool_context"):
        if context:
            spec = spec.with_tool_context(context)
    return spec


def _with_tools_of(before: RequestSpec, spec: RequestSpec) -> RequestSpec:
    """Return *spec* with the tools that its options have and those of *before* do not."""
    gone: list[Resolved] = []
    come: list[Resolved] = []
    changed = False
    for old, new in zip(_tools_in(before), _tools_in(spec), strict=True):
        if new is not None and new is not old:
            changed = True
            gone.extend(old or ())
            come.extend(new)
    if not changed:
        return spec
    if spec.tools is not None:  # options stand in for those set before
        spec = replace(spec, tools=tuple(t for t in spec.tools if t not in gone))
    return spec.with_tools(come, keep_defaults=False)


def _tools_in(spec: RequestSpec) -> tuple[Sequence[Resolved] | None, ...]:
    options = spec.options or NO_OPTIONS
    return options.tool_callbacks, options.tool_names


def static_options(engine: Engine, spec: RequestSpec) -> ChatOptions | None:
    """Return the complete options of *spec*, or None when they differ from request to request."""
    if any(is_provider(source) for source in spec.tool_sources):
        return None
    return drive(complete_options(engine, spec, (), BLOCKING))


def runs_tools(engine: Engine, spec: RequestSpec) -> bool:
    """Return whether a request of *spec* runs tools, rather than handing calls back."""
    options = engine.model.options.merge(spec.options)
    return spec.tool_calling and options.internal_tool_execution_enabled is not False


async def complete_request(
    engine: Engine, spec: RequestSpec, messages: tuple[Message, ...], runtime: Runtime
) -> tuple[ChatOptions, Mapping[str, Any]]:
    """Return the complete options of *spec*, and the context that its advisors start with.

    The context tells the tool loop how to ask dynamic providers again, if there are any.
    """
    offers: Offers = {}
    options = await complete_options(engine, spec, messages, runtime, offers)
    if not any(getattr(source, "dynamic", False) for source in spec.tool_sources):
        return options, spec.advisor_params
    later = [c for source in spec.tool_sources for c in getattr(source, "tools_to_come", ())]
    if later:  # a clash is found before anything is sent
        without_duplicates([*(options.tool_callbacks or ()), *later], engine.duplicate_tools)

    # Advisors may change system texts without anything being said.
    seen, known = without_system(messages), options.tool_callbacks or ()

    async def refresh(messages: Sequence[Message], runtime: Runtime) -> Sequence[ToolCallback]:
        nonlocal seen, known
        if (spoken := without_system(messages)) != seen:
            options = await complete_options(engine, spec, tuple(messages), runtime, offers)
            seen, known = spoken, options.tool_callbacks or ()
        return known

    return options, merged(spec.advisor_params, {REFRESH_TOOLS: refresh})


async def complete_options(
    engine: Engine,
    spec: RequestSpec,
    messages: tuple[Message, ...],
    runtime: Runtime,
    offers: Offers | None = None,
) -> ChatOptions:
    """Return the model's options with those of *spec* on top, and all tools found.

    Tools given to the client or request stand in for tools in the options, those of the request
    for names in them as well. What providers offered is kept in *offers*; those in there are not
    asked again unless they are dynamic.

    Raises:
        ToolDefinitionError: A name is known to no resolver.
        DuplicateToolError: Two tools have the same name, and the policy is to refuse that.
    """
    options = engine.model.options.merge(spec.options)
    changes: dict[str, Any] = {}
    if not spec.tool_calling:
        changes["internal_tool_execution_enabled"] = False
    if spec.tool_context:
        changes["tool_context"] = {**options.tool_context, **spec.tool_context}
    request = ToolRequest(
        messages,
        changes.get("tool_context", options.tool_context),
        spec.advisor_params.get(CONVERSATION_ID),
    )
    callbacks = list(options.tool_callbacks or ())
    if spec.tool_sources or spec.tools is not None:
        offers = {} if offers is None else offers
        sources = [
            await _named_tool(engine, source, runtime) if isinstance(source, str) else source
            for source in spec.tool_sources
        ]
        callbacks = await offered_tools(sources, request, runtime, offers)
    if options.tool_names and spec.tools is None:
        callbacks += [await _named_tool(engine, name, runtime) for name in options.tool_names]
    unique = list(without_duplicates(callbacks, engine.duplicate_tools))
    if unique != list(options.tool_callbacks or ()):
        changes["tool_callbacks"] = unique
    return options.mutate(**changes) if changes else options


async def _named_tool(engine: Engine, name: str, runtime: Runtime) -> ToolCallback:
    """Return the tool that the client's resolver knows by *name*.

    Raises:
        ToolDefinitionError: It knows none.
    """
    callback = await resolve_tool(engine.resolver, name, runtime)
    if callback is None:
        none = "there is none: give the tool itself, or set one with tool_callback_resolver()"
        msg = f"no tool {name!r} is known to the client's resolver ({engine.resolver or none})"
        raise ToolDefinitionError(msg)
    return callback
