"""Puts a request together: its chain, its options and its tools."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from chatclient.advisors.tool_calling import ToolCallingAdvisor
from chatclient.chain import (
    AdvisorChain,
    is_memory,
    is_tool_calling,
    name_of,
    order_of,
)
from chatclient.errors import ToolDefinitionError, UsageError
from chatclient.messages import Message
from chatclient.model import ChatModel
from chatclient.options import NO_OPTIONS, ChatOptions, checked
from chatclient.runtime import BLOCKING, Runtime, drive
from chatclient.spec import RequestSpec
from chatclient.tool import CONVERSATION_ID, ToolCallback, ToolRequest
from chatclient.tools import ToolCallbackResolver, ToolCallingManager
from chatclient.tools.sources import DuplicatePolicy, Resolved, without_duplicates


@dataclass(frozen=True)
class Engine:
    """What all requests of a client share and none can change."""

    model: ChatModel
    manager: ToolCallingManager
    resolver: ToolCallbackResolver | None = None
    duplicate_tools: DuplicatePolicy = "error"


# --- the chain ------------------------------------------------------------------------------


def build_chain(engine: Engine, spec: RequestSpec) -> AdvisorChain:
    """Return the chain of *spec*, with a tool loop unless it has one or wants none.

    Raises:
        UsageError: Two advisors want to run the tool loop.
    """
    advisors = list(spec.advisors)
    loops = [advisor for advisor in advisors if is_tool_calling(advisor)]
    if len(loops) > 1:
        names = ", ".join(f"{name_of(loop)} (order {order_of(loop)})" for loop in loops)
        msg = f"only one advisor can run the tool loop, but there are {len(loops)}: {names}"
        raise UsageError(msg)
    if not loops and spec.tool_calling:
        loops = [ToolCallingAdvisor(engine.manager)]
        advisors.append(loops[0])
    for loop in loops:
        if isinstance(loop, ToolCallingAdvisor):
            inside = any(is_memory(a) and order_of(a) > loop.order for a in advisors)
            advisors[advisors.index(loop)] = loop.in_chain(memory_inside=inside)
    return AdvisorChain(advisors, engine.model)


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


# --- options and tools ----------------------------------------------------------------------


def with_options(
    engine: Engine, spec: RequestSpec, options: ChatOptions | None, values: Mapping[str, Any]
) -> RequestSpec:
    """Return *spec* with more options, single ones checked against what the model knows.

    Raises:
        UsageError: The model's provider has no such option.
    """
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
    if not all(isinstance(source, str | ToolCallback) for source in spec.tool_sources):
        return None
    return drive(complete_options(engine, spec, (), BLOCKING))


async def complete_options(
    engine: Engine, spec: RequestSpec, messages: tuple[Message, ...], runtime: Runtime
) -> ChatOptions:
    """Return the model's options with those of *spec* on top, and all tools found.

    Tools given to the client or request stand in for tools in the options.

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
        callbacks = await _callbacks(engine, spec.tool_sources, request, runtime)
    if options.tool_names:
        callbacks += await _callbacks(engine, options.tool_names, request, runtime)
    unique = list(without_duplicates(callbacks, engine.duplicate_tools))
    if unique != list(options.tool_callbacks or ()):
        changes["tool_callbacks"] = unique
    return options.mutate(**changes) if changes else options


async def _callbacks(
    engine: Engine, sources: Iterable[Resolved], request: ToolRequest, runtime: Runtime
) -> list[ToolCallback]:
    callbacks: list[ToolCallback] = []
    for source in sources:
        if isinstance(source, str):
            callbacks.append(_named(engine, source))
        elif isinstance(source, ToolCallback):
            callbacks.append(source)
        else:
            request = replace(request, callbacks=tuple(callbacks))
            callbacks.extend(await _asked(source.tool_callbacks, request, runtime))
            if hidden_tools := getattr(source, "hidden_tools", None):
                hidden = set(await _asked(hidden_tools, request, runtime))
                callbacks = [c for c in callbacks if c.definition.name not in hidden]
    return callbacks


async def _asked(method: Callable[..., Any], request: ToolRequest, runtime: Runtime) -> Any:
    """Ask a provider, with the request if it wants to know it."""
    wants_request = bool(inspect.signature(method).parameters)
    return await runtime.invoke(method, *([request] if wants_request else []))


def _named(engine: Engine, name: str) -> ToolCallback:
    callback = engine.resolver.resolve(name) if engine.resolver is not None else None
    if callback is None:
        resolver = engine.resolver or "there is none; set one with tool_callback_resolver()"
        msg = f"no tool {name!r} is known to the client's resolver ({resolver})"
        raise ToolDefinitionError(msg)
    return callback
