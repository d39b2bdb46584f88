"""`CallTool`: one tool with which a model calls others by name, translated around model calls.

A model that has found a tool in the conversation calls it with `callTool`. Outside of the model
call there are only calls of the tools themselves, so that everything that runs, approves, limits,
stores or shows them is the same as for a tool that was sent.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

from chatclient._internal.json import dumps, loads
from chatclient._internal.json_repair import repair_json
from chatclient.chat.aggregator import MessageAggregator
from chatclient.chat.messages import (
    AssistantMessage,
    Message,
    Part,
    ToolCall,
    ToolCallChunk,
    ToolResponse,
    ToolResponseMessage,
)
from chatclient.chat.prompt import Prompt
from chatclient.chat.response import ChatResponse
from chatclient.chat.tool import ToolContext, ToolDefinition, ToolMetadata, ToolResult
from chatclient.errors import ToolArgumentError

CALL_TOOL = "callTool"
"""The name of the tool that calls others."""

_DESCRIPTION = (
    "Calls a tool that is not listed, but was found by a search before. Its name, description and "
    "parameters are in the result of that search."
)
_SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "description": "The name of the tool."},
        "arguments": {
            "type": "object",
            "description": "The arguments of the tool, as its parameters require.",
            "additionalProperties": True,
        },
    },
    "required": ["name", "arguments"],
}
_METADATA = ToolMetadata(effect="read")
_HEAD = re.compile(
    r'\s*\{\s*"name"\s*:\s*"(?P<name>[^"\\\x00-\x1f]+)"\s*,\s*"arguments"\s*:\s*(?=\{)'
)
_LONGEST_HEAD = 500  # characters; beyond, the call is read when it is complete
_BRACKETS = re.compile(r'["\\{}]')


class _Known(NamedTuple):
    """The conversation of the last request, as given and as sent, and the tools of the request."""

    messages: tuple[Message, ...] = ()
    sent: tuple[Message, ...] = ()
    offered: frozenset[str] = frozenset()


class CallTool:
    """Calls other tools by name; it is run only if the model's call names none."""

    metadata = _METADATA

    def __init__(self) -> None:
        self._known = _Known()  # replaced as a whole, so that threads need no lock

    @property
    def definition(self) -> ToolDefinition:
        """The tool's description for the model."""
        return _definition()

    async def invoke(self, arguments: str, context: ToolContext) -> ToolResult:  # noqa: ARG002
        """Tell the model how to call a tool.

        Raises:
            ToolArgumentError: Always.
        """
        msg = (
            f'{CALL_TOOL} needs an object with the name of a tool and its arguments: {{"name":'
            ' "...", "arguments": {...}}'
        )
        raise ToolArgumentError(msg, tool_name=CALL_TOOL)

    def sent(self, prompt: Prompt) -> Prompt:
        """Return *prompt* with calls of tools that it does not offer as calls of this tool."""
        callbacks = prompt.options.tool_callbacks or ()
        offered = frozenset(callback.definition.name for callback in callbacks)
        last, messages = self._known, prompt.messages
        size = len(last.messages)
        if last.offered != offered or messages[:size] != last.messages:
            last, size = _Known(), 0
        # Messages of earlier requests stay the same objects, because they cache their JSON.
        sent = (*last.sent, *(_sent(message, offered) for message in messages[size:]))
        self._known = _Known(messages, sent, offered)
        return Prompt.of(sent, prompt.options)


@cache
def _definition() -> ToolDefinition:
    return ToolDefinition(CALL_TOOL, _DESCRIPTION, _SCHEMA)


def with_calls_by_name(prompt: Prompt) -> Prompt:
    """Return *prompt*, which offers a `CallTool`, as it is sent."""
    tools = prompt.options.tool_callbacks or ()
    return next(tool for tool in tools if isinstance(tool, CallTool)).sent(prompt)


def as_called(response: ChatResponse) -> ChatResponse:
    """Return *response* with the calls of the tools that were called by name."""
    generations = [
        replace(each, output=_with_parts(each.output, map(_called, each.output.parts)))
        if any(call.name == CALL_TOOL for call in each.output.tool_calls)
        else each
        for each in response.generations
    ]
    return replace(response, generations=tuple(generations))


class CallsByNameAggregator(MessageAggregator):
    """Joins the chunks of a model that has a `CallTool`.

    The fragments of a call by name become those of a call of the tool itself as soon as its name is
    known.
    """

    __slots__ = ("_calls",)

    def __init__(self) -> None:
        super().__init__()
        self._calls: dict[str, _StreamedCall] = {}

    def add_and_normalize(self, chunk: ChatResponse) -> list[Part]:
        """Add a chunk, and return its parts of the first generation, with the tools called."""
        parts = super().add_and_normalize(chunk)
        return [each for part in parts for each in self._translated(part)]

    def rest(self) -> list[Part]:
        """Return the calls of which nothing was returned, because their form is unusual."""
        held = {id for id, call in self._calls.items() if not call.is_open}
        return [
            part
            for generation in self.response().generations
            if not generation.index
            for part in generation.output.tool_calls
            if part.id in held
        ]

    def response(self) -> ChatResponse:
        """Return the response so far, with the tools called."""
        return as_called(super().response())

    def _translated(self, part: Part) -> Iterator[Part]:
        if not isinstance(part, ToolCallChunk):
            yield _called(part)
            return
        if part.name == CALL_TOOL:
            self._calls[part.id] = _StreamedCall()
        call = self._calls.get(part.id)
        if call is None:
            yield part
        elif (translated := call.add(part)) is not None:
            yield translated


class _StreamedCall:
    """A call by name whose arguments are streamed."""

    __slots__ = ("_arguments", "_held", "is_open")

    def __init__(self) -> None:
        self._held = ""
        self._arguments = _ObjectScanner()
        self.is_open = False  # whether the call of the tool has begun

    def add(self, chunk: ToolCallChunk) -> ToolCallChunk | None:
        """Add a fragment, and return what it adds to the call of the tool; None for nothing."""
        if self.is_open:
            taken = self._arguments.take(chunk.arguments)
            return replace(chunk, name="", arguments=taken) if taken else None
        if len(self._held) > _LONGEST_HEAD:
            return None
        self._held += chunk.arguments
        head = _HEAD.match(self._held)
        if head is None:
            return None
        self.is_open = True
        arguments = self._arguments.take(self._held[head.end() :])
        return replace(chunk, name=head["name"], arguments=arguments)


class _ObjectScanner:
    """Takes the first JSON object of a text that arrives in fragments, in linear time."""

    __slots__ = ("_depth", "_ended", "_escaped", "_in_string")

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = self._escaped = self._ended = False

    def take(self, fragment: str) -> str:
        """Return the part of *fragment* that belongs to the object."""
        if self._ended:
            return ""
        skipped = 0 if self._escaped else -1
        for match in _BRACKETS.finditer(fragment):
            at, sign = match.start(), match.group()
            if at == skipped:
                continue
            if sign == '"':
                self._in_string = not self._in_string
            elif sign == "\\":
                skipped = at + 1 if self._in_string else skipped
            elif not self._in_string:
                self._depth += 1 if sign == "{" else -1
                if not self._depth:
                    self._ended = True
                    return fragment[: at + 1]
        self._escaped = skipped == len(fragment)
        return fragment


def _called(part: Part) -> Part:
    """Return *part*, or the call of the tool that it calls by name."""
    if not isinstance(part, ToolCall) or part.name != CALL_TOOL:
        return part
    head = _HEAD.match(part.arguments)
    if head is not None:  # as the model wrote it, as for a tool that was sent
        arguments = _ObjectScanner().take(part.arguments[head.end() :])
        return replace(part, name=head["name"], arguments=arguments)
    values = _object(part.arguments) or _object(repair_json(part.arguments) or "")
    if values is None or not isinstance(name := values.pop("name", None), str):
        return part
    given = values.get("arguments", values)  # some models leave out the inner object
    if isinstance(given, str):
        return replace(part, name=name, arguments=given)
    return replace(part, name=name, arguments=dumps(given or {}).decode())


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _sent(message: Message, offered: frozenset[str]) -> Message:
    if isinstance(message, AssistantMessage):
        if all(call.name in offered for call in message.tool_calls):
            return message
        return _with_parts(message, [_call_by_name(part, offered) for part in message.parts])
    if not isinstance(message, ToolResponseMessage):
        return message
    if all(response.name in offered for response in message.responses):
        return message
    return message.mutate(responses=[_response_by_name(r, offered) for r in message.responses])


def _call_by_name(part: Part, offered: frozenset[str]) -> Part:
    if not isinstance(part, ToolCall) or part.name in offered:
        return part
    name = dumps(part.name).decode()
    arguments = part.arguments.strip() or "{}"
    if _object(arguments) is None:
        arguments = dumps(part.arguments).decode()
    return replace(part, name=CALL_TOOL, arguments=f'{{"name":{name},"arguments":{arguments}}}')


def _response_by_name(response: ToolResponse, offered: frozenset[str]) -> ToolResponse:
    return response if response.name in offered else replace(response, name=CALL_TOOL)


def _with_parts(message: AssistantMessage, parts: Iterable[Part]) -> AssistantMessage:
    return AssistantMessage(
        parts, metadata=message.metadata, id=message.id, stored_at=message.stored_at
    )
