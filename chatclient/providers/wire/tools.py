"""Tools with parameters that had to be renamed, and server tools of the provider; no I/O."""

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any, NamedTuple

from chatclient._internal.frozen import EMPTY
from chatclient._internal.json import dumps
from chatclient._internal.json_repair import repair_json
from chatclient.chat.aggregator import MessageAggregator
from chatclient.chat.messages import AssistantMessage, Message, ToolCall, ToolCallChunk
from chatclient.chat.options import ChatOptions
from chatclient.chat.response import ChatResponse, Generation
from chatclient.chat.server_tools import ServerTool, ToolSearch
from chatclient.chat.tool import ToolDefinition
from chatclient.errors import UnsupportedToolError
from chatclient.providers.wire.fields import parse_object
from chatclient.providers.wire.request_body import EncodedOptions
from chatclient.providers.wire.sendable_schemas import SchemaRules, sendable_tool

Names = Mapping[str, Mapping[str, str]]
"""For each tool with renamed parameters, the sent names by the original names."""

EncodeServerTool = Callable[[Any, ChatOptions], Mapping[str, Any] | str]
"""Returns the provider's form of a server tool, or the reason why it cannot have it."""

ServerTools = Mapping[type[ServerTool], EncodeServerTool]
"""How a provider takes each kind of server tool that it has."""


_NONE: ServerTools = {}


def sendable_definitions(options: ChatOptions, rules: SchemaRules) -> list[ToolDefinition]:
    """Return the definitions of all tools of *options*, as *rules* accept them."""
    callbacks = options.tool_callbacks or ()
    return [sendable_tool(callback.definition, rules).definition for callback in callbacks]


class _Known(NamedTuple):
    """The conversation of the last request, as given and as sent."""

    messages: tuple[Message, ...] = ()
    sent: tuple[Message, ...] = ()
    names: Names = EMPTY


class RenamedArguments:
    """Renames the arguments of tool calls in requests and responses."""

    __slots__ = ("_known", "_last", "_rules")

    def __init__(self, rules: SchemaRules) -> None:
        self._rules = rules
        self._last: EncodedOptions[Names] = EncodedOptions()
        self._known = _Known()

    def sent(self, messages: tuple[Message, ...], options: ChatOptions) -> tuple[Message, ...]:
        """Return *messages* with the sent names."""
        names = self._names(options)
        if not names:
            return messages
        last = self._known
        size = len(last.messages)
        if last.names != names or messages[:size] != last.messages:
            last, size = _Known(), 0
        # Messages of earlier requests stay the same objects, because they cache their JSON.
        sent = (*last.sent, *(_sent(message, names) for message in messages[size:]))
        self._known = _Known(messages, sent, names)
        return sent

    def received(self, response: ChatResponse, options: ChatOptions) -> ChatResponse:
        """Return *response* with the original names."""
        names = _reversed(self._names(options))
        if not names:
            return response
        changed = [_received(each, names) for each in response.generations]
        return replace(response, generations=tuple(changed))

    def received_stream(
        self, chunks: AsyncGenerator[ChatResponse | str, None], options: ChatOptions
    ) -> AsyncGenerator[ChatResponse | str, None]:
        """Return *chunks* with the original names.

        The arguments of affected calls are sent complete, at the end of the stream.
        """
        names = _reversed(self._names(options))
        return _restored(chunks, names) if names else chunks

    def _names(self, options: ChatOptions) -> Names:
        return self._last.get(options, self._names_of) if options.tool_callbacks else EMPTY

    def _names_of(self, options: ChatOptions, **_: bool) -> Names:
        tools = [sendable_tool(c.definition, self._rules) for c in options.tool_callbacks or ()]
        return {tool.definition.name: tool.names for tool in tools if tool.names}


def _reversed(names: Names) -> Names:
    return {tool: {v: k for k, v in renamed.items()} for tool, renamed in names.items()}


def _renamed(arguments: str, names: Mapping[str, str]) -> str:
    """Return *arguments* with renamed fields; unchanged if none of *names* occurs."""
    values = parse_object(arguments)
    if values is None and arguments.lstrip().startswith("{"):
        values = parse_object(repair_json(arguments) or "")
    if values is None or names.keys().isdisjoint(values):
        return arguments
    return dumps({names.get(name, name): value for name, value in values.items()}).decode()


def _with_parts(message: AssistantMessage, parts: Iterable[Any]) -> AssistantMessage:
    return AssistantMessage(parts, metadata=message.metadata)


def _sent(message: Message, names: Names) -> Message:
    return _with_calls(message, names) if isinstance(message, AssistantMessage) else message


def _with_calls(message: AssistantMessage, names: Names) -> AssistantMessage:
    if not any(call.name in names for call in message.tool_calls):
        return message
    return _with_parts(message, [_call(part, names) for part in message.parts])


def _call(part: Any, names: Names) -> Any:
    if not isinstance(part, ToolCall) or part.name not in names:
        return part
    return replace(part, arguments=_renamed(part.arguments, names[part.name]))


def _received(generation: Generation, names: Names) -> Generation:
    output = _with_calls(generation.output, names)
    return generation if output is generation.output else replace(generation, output=output)


async def _restored(
    chunks: AsyncGenerator[ChatResponse | str, None], names: Names
) -> AsyncGenerator[ChatResponse | str, None]:
    calls = _StreamedCalls(names)
    async with aclosing(chunks):
        async for chunk in chunks:
            yield chunk if isinstance(chunk, str) else calls.without_arguments(chunk)
    if rest := calls.rest():
        yield ChatResponse(rest)


class _StreamedCalls:
    """Holds the arguments of calls that have to be renamed until the end of the stream."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._aggregators: dict[int, MessageAggregator] = {}  # by the index of the generation
        # The chunks with a name, by the index of the generation and the id of the call.
        self._first: dict[tuple[int, str], ToolCallChunk] = {}

    def without_arguments(self, chunk: ChatResponse) -> ChatResponse:
        """Return *chunk* without the arguments that have to be renamed."""
        generations = tuple(self._generation(each) for each in chunk.generations)
        return replace(chunk, generations=generations)

    def rest(self) -> tuple[Generation, ...]:
        """Return the renamed arguments."""
        held_back = ((at, list(self._rest_of(at))) for at in self._aggregators)
        return tuple(
            Generation(AssistantMessage(parts), index=at) for at, parts in held_back if parts
        )

    def _generation(self, generation: Generation) -> Generation:
        output = generation.output
        if not any(isinstance(part, ToolCallChunk) for part in output.parts):
            return _received(generation, self._names)
        aggregator = self._aggregators.setdefault(generation.index, MessageAggregator())
        taken = aggregator.add_and_normalize(ChatResponse((Generation(output),)))
        parts = [self._part(part, generation.index) for part in taken]
        return replace(generation, output=_with_parts(output, parts))

    def _part(self, part: Any, generation: int) -> Any:
        if not isinstance(part, ToolCallChunk):
            return _call(part, self._names)
        first = self._first.setdefault((generation, part.id), part)
        return replace(part, arguments="") if first.name in self._names else part

    def _rest_of(self, generation: int) -> Iterator[ToolCallChunk]:
        response = self._aggregators[generation].response()
        for call in response.generations[0].output.tool_calls:
            first = self._first.get((generation, call.id))
            if first is None:
                continue  # not streamed, or without a name
            names = self._names.get(call.name)
            arguments = "" if names is None else _renamed(call.arguments, names)
            if arguments or call.metadata:
                yield ToolCallChunk(first.index, call.id, "", arguments, call.metadata)


def has_encoder(tool: ServerTool, options: ChatOptions, encoders: ServerTools) -> bool:
    """Return whether the provider has *tool* in a request with *options*."""
    encode = encoders.get(type(tool))
    return encode is not None and not isinstance(encode(tool, options), str)


def deferred_tools(options: ChatOptions, encoders: ServerTools) -> frozenset[str]:
    """Return the names of the tools that the model sees once the provider has found them."""
    searches = (
        s for s in server_tools_in(options, ToolSearch) if has_encoder(s, options, encoders)
    )
    return frozenset(name for search in searches for name in search.deferred)


def with_server_tools(
    options: ChatOptions, provider: str, encoders: ServerTools = _NONE
) -> ChatOptions:
    """Return *options* with the server tools that the provider has among its `server_tools`.

    Others stay among the callbacks, as their fallbacks.

    Raises:
        UnsupportedToolError: The provider does not have a tool, and there is no fallback.
    """
    callbacks = options.tool_callbacks or ()
    if not any(isinstance(each, ServerTool) for each in callbacks):
        return options
    kept: list[Any] = []
    native: list[Mapping[str, Any]] = []
    for each in callbacks:
        if not isinstance(each, ServerTool):
            kept.append(each)
            continue
        encode = encoders.get(type(each))
        found = "it has no such tool" if encode is None else encode(each, options)
        if not isinstance(found, str):
            native.append(found)
        elif each.callback is not None:
            kept.append(each)
        else:
            model = options.model or ""
            kind = type(each).__name__
            msg = (
                f"{provider}'s {model or 'model'} cannot use {kind}: {found}. Give it a tool"
                f" of yours for such models: {kind}(..., fallback=a_function)"
            )
            raise UnsupportedToolError(msg, tool=each.name, provider=provider, model=model)
    if not native:
        return options
    own = getattr(options, "server_tools", None) or ()
    return options.mutate(tool_callbacks=tuple(kept), server_tools=(*own, *native))


def server_tools_in(options: ChatOptions, kind: type[ServerTool] = ServerTool) -> list[Any]:
    """Return the server tools of *kind* among the callbacks of *options*."""
    return [each for each in options.tool_callbacks or () if isinstance(each, kind)]
