"""Puts a request together: its chain, its options and its tools."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from typing_extensions import TypeIs

from chatclient.advisors.tool_calling import REFRESH_TOOLS, ToolCallingAdvisor
from chatclient.chain import (
    MEMORY_ORDER,
    Advisor,
    AdvisorChain,
    is_memory,
    is_tool_calling,
    name_of,
    order_of,
)
from chatclient.closing import Closeable
from chatclient.driving import drive
from chatclient.errors import ToolDefinitionError, UsageError
from chatclient.instructions import SystemRequest
from chatclient.messages import Message, SystemMessage
from chatclient.model import ChatModel
from chatclient.observation import Observer
from chatclient.options import NO_OPTIONS, ChatOptions, checked
from chatclient.runtime import BLOCKING, Runtime
from chatclient.spec import RequestSpec
from chatclient.tool import CONVERSATION_ID, ToolCallback, ToolCallbackProvider, ToolRequest
from chatclient.tools import ToolCallbackResolver, ToolCallingManager
from chatclient.tools.resolution import resolve_tool
from chatclient.tools.sources import DuplicatePolicy, Resolved, offered_by, without_duplicates
from chatclient.values import merged

Offers = dict[int, tuple[list[ToolCallback], frozenset[str]]]
"""What the providers of a request offered, and took away, by their identity."""


@dataclass(frozen=True)
class Engine:
    """What all requests of a client share and none can change.

    Attributes:
        owned: What was opened for the client and is closed with it, beside the model.
    """

    model: ChatModel
    manager: ToolCallingManager
    resolver: ToolCallbackResolver | None = None
    duplicate_tools: DuplicatePolicy = "error"
    observers: tuple[Observer, ...] = ()
    owned: tuple[Closeable, ...] = ()


# --- the chain ------------------------------------------------------------------------------


def build_chain(engine: Engine, spec: RequestSpec) -> AdvisorChain:
    """Return the chain of *spec*, with a tool loop unless it has one or wants none.

    Raises:
        UsageError: Two advisors want to run the tool loop, or share one memory.
    """
    advisors = list(spec.advisors)
    loops = [advisor for advisor in advisors if is_tool_calling(advisor)]
    if len(loops) > 1:
        names = ", ".join(f"{name_of(loop)} (order {order_of(loop)})" for loop in loops)
        msg = f"only one advisor can run the tool loop, but there are {len(loops)}: {names}"
        raise UsageError(msg)
    _refuse_shared_memory([advisor for advisor in advisors if is_memory(advisor)])
    if not loops and spec.tool_calling:
        loops = [ToolCallingAdvisor(engine.manager)]
        advisors.append(loops[0])
    for loop in loops:
        advisors = _with_halves(engine, loop, sorted(advisors, key=order_of))
    return AdvisorChain(advisors, engine.model)


def _refuse_shared_memory(advisors: Sequence[Advisor]) -> None:
    """Refuse advisors that would keep each turn in the same place, and send it, twice.

    Raises:
        UsageError: There are two.
    """
    kept: dict[int, Advisor] = {}
    for advisor in advisors:
        memory = getattr(advisor, "memory", advisor)
        place = id(getattr(memory, "repository", memory))
        if place in kept:
            msg = (
                f"{name_of(kept[place])} and {name_of(advisor)} share one memory: each turn would"
                " be kept and sent twice; leave one of them out"
            )
            raise UsageError(msg)
        kept[place] = advisor


def _with_halves(engine: Engine, loop: Advisor, advisors: list[Advisor]) -> list[Advisor]:
    """Return *advisors*, which are in order, with those on both sides of *loop* on both sides.

    Memory inside the loop has a second half around it, and a guard outside one that sees each
    round.
    """
    at = advisors.index(loop)
    inside = [advisor for advisor in advisors[at + 1 :] if is_memory(advisor)]
    if isinstance(loop, ToolCallingAdvisor):
        loop = loop.in_chain(engine.manager, memory_inside=bool(inside))
    makers = [getattr(advisor, "around_loop", None) for advisor in inside]
    # Where memory stands by default: what is remembered is not what others have made of it.
    order = min(MEMORY_ORDER, order_of(loop))
    halves = [around_loop(order) for around_loop in makers if around_loop is not None]
    rounds = [half for advisor in advisors[:at] if (half := _inside(advisor, order_of(loop)))]
    return sorted([*advisors[:at], *halves, loop, *rounds, *advisors[at + 1 :]], key=order_of)


def _inside(advisor: Advisor, order: int) -> Advisor | None:
    """Return the half of *advisor* that stands right inside of the tool loop, if it has one."""
    inside_loop = getattr(advisor, "inside_loop", None)
    return None if inside_loop is None else inside_loop(order)


def describe_chain(chain: AdvisorChain) -> str:
    """Return the chain as text, outermost first, with what runs once per round indented."""
    lines = ["ChatClient"]
    indent = ""
    for advisor in chain.advisors:
        lines.append(f"{indent}→ {name_of(advisor)} (order {order_of(advisor)})")
        if is_tool_calling(advisor):
            indent = "    "
            lines[-1] += ": what follows runs once per round"
    lines.append(f"{indent}→ {chain.model.name} ({type(chain.model).__name__})")
    return "\n".join(lines)


def draw_chain(chain: AdvisorChain) -> str:
    """Return the chain as a Mermaid flowchart; what runs once per round is in a box."""
    lines = ["flowchart TB", '    client(["ChatClient"])']
    indent, above = "    ", "client"
    for number, advisor in enumerate(chain.advisors):
        here = f"advisor{number}"
        lines.append(f'{indent}{here}["{name_of(advisor)}"]')
        lines.append(f"{indent}{above} --> {here}")
        if is_tool_calling(advisor):
            lines.append(f'{indent}tools[["tools"]]')
            lines.append(f"{indent}{here} <--> tools")
            lines.append(f'{indent}subgraph loop ["once per round"]')
            indent *= 2
        above = here
    lines.append(f'{indent}model[("{chain.model.name}")]')
    lines.append(f"{indent}{above} --> model")
    if len(indent) > 4:  # noqa: PLR2004 - inside the box
        lines.append("    end")
    return "\n".join(lines)


# --- texts ----------------------------------------------------------------------------------


async def with_system_text(spec: RequestSpec, runtime: Runtime) -> RequestSpec:
    """Return *spec* with the system text that its function writes, if it has one.

    Raises:
        UsageError: The function returned no text.
    """
    written = spec.written_system
    if written is None:
        return spec
    arguments: list[SystemRequest] = []
    if written.wants_request:
        said = spec.messages_beside_system()
        conversation_id = spec.advisor_params.get(CONVERSATION_ID)
        arguments = [SystemRequest(said, conversation_id, spec.tool_context, spec.advisor_params)]
    text = await runtime.invoke(written.function, *arguments)
    if not isinstance(text, str):
        name = getattr(written.function, "__name__", repr(written.function))
        msg = f"{name} has to return the system text, and returned {text!r}"
        raise UsageError(msg)
    return replace(spec, system=replace(spec.system, text=text), written_system=None)


# --- options and tools ----------------------------------------------------------------------


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
    if options is not None and options is not NO_OPTIONS:
        spec = spec.with_options(options)
    if values:
        kind = type(engine.model.options)
        if isinstance(options, kind):
            kind = type(options)
        spec = spec.with_options(kind(**checked(kind, values)))
    return spec


def static_options(engine: Engine, spec: RequestSpec) -> ChatOptions | None:
    """Return the complete options of *spec*, or None when they differ from request to request."""
    if any(_is_provider(source) for source in spec.tool_sources):
        return None
    return drive(complete_options(engine, spec, (), BLOCKING))


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

    seen, known = _spoken(messages), options.tool_callbacks or ()

    async def refresh(messages: Sequence[Message], runtime: Runtime) -> Sequence[ToolCallback]:
        nonlocal seen, known
        if (spoken := _spoken(messages)) != seen:
            options = await complete_options(engine, spec, tuple(messages), runtime, offers)
            seen, known = spoken, options.tool_callbacks or ()
        return known

    return options, merged(spec.advisor_params, {REFRESH_TOOLS: refresh})


def _spoken(messages: Iterable[Message]) -> list[Message]:
    """Return *messages* without system texts, which advisors may change without saying anything."""
    return [message for message in messages if not isinstance(message, SystemMessage)]


async def complete_options(
    engine: Engine,
    spec: RequestSpec,
    messages: tuple[Message, ...],
    runtime: Runtime,
    offers: Offers | None = None,
) -> ChatOptions:
    """Return the model's options with those of *spec* on top, and all tools found.

    Tools given to the client or request stand in for tools in the options. What providers offered
    is kept in *offers*; those in there are not asked again unless they are dynamic.

    Raises:
        ToolDefinitionError: A name is known to no resolver.
        DuplicateToolError: Two tools have the same name, and the policy is to refuse that.
    """
    options = engine.model.options.merge(spec.options)
    changes: dict[str, Any] = {}
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
        callbacks = await _callbacks(engine, spec.tool_sources, request, runtime, offers)
    if options.tool_names:
        callbacks += [await _named(engine, name, runtime) for name in options.tool_names]
    unique = list(without_duplicates(callbacks, engine.duplicate_tools))
    if unique != list(options.tool_callbacks or ()):
        changes["tool_callbacks"] = unique
    return options.mutate(**changes) if changes else options


async def _callbacks(
    engine: Engine,
    sources: Iterable[Resolved],
    request: ToolRequest,
    runtime: Runtime,
    offers: Offers,
) -> list[ToolCallback]:
    """Return the tools of *sources*, in their order; providers are asked after all others."""
    found: list[list[ToolCallback]] = []
    providers: list[tuple[int, ToolCallbackProvider]] = []
    for at, source in enumerate(sources):
        if isinstance(source, str):
            found.append([await _named(engine, source, runtime)])
        elif not _is_provider(source):
            found.append([source])
        else:
            found.append([])
            providers.append((at, source))
    for at, provider in providers:
        offer = offers.get(id(provider))
        if offer is None or getattr(provider, "dynamic", False):
            request = replace(request, callbacks=tuple(chain.from_iterable(found)))
            offer = offers[id(provider)] = await _offer(provider, request, runtime)
        found[at], hidden = offer
        if hidden:  # of what comes before it
            found[: at + 1] = [
                [c for c in callbacks if c.definition.name not in hidden]
                for callbacks in found[: at + 1]
            ]
    return list(chain.from_iterable(found))


def _is_provider(source: Resolved) -> TypeIs[ToolCallbackProvider]:
    # Asking `isinstance` of a protocol takes 12 microseconds, and there may be a thousand tools.
    return hasattr(source, "tool_callbacks")


async def _offer(
    provider: ToolCallbackProvider, request: ToolRequest, runtime: Runtime
) -> tuple[list[ToolCallback], frozenset[str]]:
    """Return what *provider* offers, and the names of what it takes away."""
    offered = offered_by(provider, await _asked(provider.tool_callbacks, request, runtime))
    hidden_tools = getattr(provider, "hidden_tools", None)
    if hidden_tools is None:
        return offered, frozenset()
    return offered, frozenset(await _asked(hidden_tools, request, runtime))


async def _asked(method: Callable[..., Any], request: ToolRequest, runtime: Runtime) -> Any:
    """Ask a provider, with the request if it wants to know it."""
    wants_request = bool(inspect.signature(method).parameters)
    return await runtime.invoke(method, *([request] if wants_request else []))


async def _named(engine: Engine, name: str, runtime: Runtime) -> ToolCallback:
    callback = await resolve_tool(engine.resolver, name, runtime)
    if callback is None:
        resolver = engine.resolver or "there is none; set one with tool_callback_resolver()"
        msg = f"no tool {name!r} is known to the client's resolver ({resolver})"
        raise ToolDefinitionError(msg)
    return callback
