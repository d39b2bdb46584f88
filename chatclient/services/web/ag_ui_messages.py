"""Requests of AG-UI: messages, tools of the frontend, answers to interrupts."""

import base64
import binascii
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ag_ui.core import (
    AssistantMessage as AgUiAssistantMessage,
    FunctionCall,
    Message as AgUiMessage,
    ResumeEntry,
    RunAgentInput,
    TextPart,
    ToolCall as AgUiToolCall,
    ToolMessage as AgUiToolMessage,
    UserMessage as AgUiUserMessage,
)
from pydantic import ValidationError

from chatclient._internal.json import dumps
from chatclient.chat.messages import (
    AssistantMessage,
    Media,
    Message,
    ToolCall,
    ToolResponse,
    ToolResponseMessage,
    UserMessage,
)
from chatclient.chat.resumption import Decision
from chatclient.chat.tool_definition import ToolDefinition
from chatclient.services.web.incoming import Incoming, InvalidInputError, media_of
from chatclient.tools.function.data_tool import ExternalTool


def parse_input(body: Any) -> RunAgentInput:
    """Return the request in *body*, a JSON value.

    Raises:
        InvalidInputError: It is not one.
    """
    try:
        return RunAgentInput.model_validate(body)
    except ValidationError as error:
        raise InvalidInputError.of(error) from error


def incoming_of(input: RunAgentInput) -> Incoming:
    """Return *input* in the form that both protocols have.

    Raises:
        InvalidInputError: A message, a tool or an answer is invalid.
    """
    messages = tuple(_messages(input.messages))
    last = input.messages[-1] if input.messages else None
    resume = input.resume or []
    return Incoming(
        conversation_id=input.thread_id,
        messages=messages,
        continues=bool(resume) or isinstance(last, AgUiToolMessage),
        replaces=True,  # AG-UI does not say whether a message is sent again
        decisions={entry.interrupt_id: _decision(entry) for entry in resume},
        results=_results(input.messages),
        tools=tuple(
            ExternalTool(ToolDefinition(tool.name, tool.description, tool.parameters or {}))
            for tool in input.tools or ()
        ),
        context=tuple((each.description, each.value) for each in input.context or ()),
        state=input.state,
        properties=input.forwarded_props if isinstance(input.forwarded_props, dict) else {},
    )


def tool_message_id(message_id: str, call_id: str) -> str:
    """Return the id for the result of one call; here, one message has the results of all."""
    return f"{message_id}/{call_id}"


def ag_ui_messages(
    messages: Sequence[Message],
    results: Mapping[str, ToolResponse],
    answer: AgUiAssistantMessage | None,
) -> Iterator[AgUiMessage]:
    """Yield the messages of rounds, with the *results* as they are shown, and the answer if any."""
    for message in messages:
        match message:
            case AssistantMessage():
                yield _assistant(message)
            case ToolResponseMessage():
                for response in message.responses:
                    yield AgUiToolMessage(
                        id=tool_message_id(message.id or "", response.id),
                        content=results.get(response.id, response).data,
                        tool_call_id=response.id,
                    )
            case _:
                pass  # the frontend's own
    if answer is not None:
        yield answer


def _assistant(message: AssistantMessage) -> AgUiAssistantMessage:
    calls = [
        AgUiToolCall(id=c.id, function=FunctionCall(name=c.name, arguments=c.arguments))
        for c in message.tool_calls
    ]
    return AgUiAssistantMessage(
        id=message.id or "", content=message.text or None, tool_calls=calls or None
    )


def _messages(given: Sequence[AgUiMessage]) -> Iterator[Message]:
    """Yield the messages of user, model and tools; instructions are the application's."""
    names: dict[str, str] = {}
    results: list[AgUiToolMessage] = []
    for message in given:
        if isinstance(message, AgUiToolMessage):
            results.append(message)
            continue
        if results:
            yield _results_message(results, names)
            results = []
        match message:
            case AgUiUserMessage(id=id, content=content):
                yield UserMessage(list(_user_parts(content)), id=id)
            case AgUiAssistantMessage(id=id, content=text, tool_calls=calls):
                names |= {call.id: call.function.name for call in calls or ()}
                made = [ToolCall(c.id, c.function.name, c.function.arguments) for c in calls or ()]
                yield AssistantMessage(text or None, made, id=id)
            case _:
                pass  # system, developer, reasoning and activity
    if results:
        yield _results_message(results, names)


def _results_message(
    results: Sequence[AgUiToolMessage], names: Mapping[str, str]
) -> ToolResponseMessage:
    first = results[0]
    responses = [
        ToolResponse(
            result.tool_call_id,
            names.get(result.tool_call_id, ""),
            _text(result),
            is_error=result.error is not None,
        )
        for result in results
    ]
    return ToolResponseMessage(responses, id=first.id.removesuffix(f"/{first.tool_call_id}"))


def _text(result: AgUiToolMessage) -> str:
    if result.error is not None:
        return result.error
    if isinstance(result.content, str):
        return result.content
    return "\n".join(part.text for part in result.content if isinstance(part, TextPart))


def _user_parts(content: Any) -> Iterator[str | Media]:
    if isinstance(content, str):
        yield content
        return
    for part in content:
        if isinstance(part, TextPart):
            yield part.text
        else:
            yield _media(part)


def _media(part: Any) -> Media:
    """Return the content of an image, sound, video or document part.

    Raises:
        InvalidInputError: It is not Base64, not a web address, or a file of another service.
    """
    source = part.source
    if source.type == "data":
        try:
            return Media(source.mime_type, base64.b64decode(source.value, validate=True))
        except binascii.Error as error:
            msg = f"the content of the {part.type} part is not Base64"
            raise InvalidInputError(msg) from error
    return media_of(source.value, source.mime_type)


def _results(messages: Sequence[AgUiMessage]) -> dict[str, Decision]:
    """Return the results of tool calls that the frontend carried out, by the ids of the calls."""
    return {
        each.tool_call_id: Decision.answered(_text(each))
        if each.error is None
        else Decision(approved=False, message=each.error)
        for each in messages
        if isinstance(each, AgUiToolMessage)
    }


def _decision(entry: ResumeEntry) -> Decision:
    """Return the decision of an answer to an interrupt.

    Raises:
        InvalidInputError: The answer is neither a bool nor an object with a bool `approved`.
    """
    if entry.status == "cancelled":
        return Decision(approved=False)
    payload = entry.payload
    answer = payload if isinstance(payload, dict) else {"approved": payload}
    approved, arguments = answer.get("approved"), answer.get("arguments")
    message = answer.get("message", "")
    if not isinstance(approved, bool) or not isinstance(message, str):
        msg = f"the answer to interrupt {entry.interrupt_id!r} needs a bool 'approved'"
        raise InvalidInputError(msg)
    changed = dumps(arguments).decode() if isinstance(arguments, dict) else None
    return Decision(approved, message, changed)
