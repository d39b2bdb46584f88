"""Requests of the Vercel AI SDK: UI messages, with decisions and results of tools."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

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
from chatclient.services.web.incoming import Incoming, InvalidInputError, media_of

_DENIED = "The user did not allow this call."


class _Model(BaseModel):
    """Reads what this module needs; newer versions of the SDK may send more."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, strict=True)


class Approval(_Model):
    """The approval of a tool call."""

    id: str
    approved: bool | None = None
    reason: str | None = None


class UiPart(_Model):
    """A part of a message; which fields it has depends on its type."""

    type: str
    text: str = ""
    url: str | None = None
    media_type: str | None = None
    filename: str | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None
    state: str | None = None
    input: Any = None
    output: Any = None
    error_text: str | None = None
    approval: Approval | None = None

    @property
    def tool(self) -> str | None:
        """The name of the tool, if the part is a tool call."""
        if self.type == "dynamic-tool":
            return self.tool_name
        return self.type.removeprefix("tool-") if self.type.startswith("tool-") else None


class UiMessage(_Model):
    """A message of the frontend."""

    id: str
    role: Literal["system", "user", "assistant"]
    parts: list[UiPart]


class ChatRequest(_Model):
    """What `DefaultChatTransport` sends; other fields are the application's."""

    model_config = ConfigDict(extra="allow")

    id: Annotated[str, Field(min_length=1)]
    messages: Annotated[list[UiMessage], Field(min_length=1)]
    state: Any = None
    trigger: str | None = None
    message_id: str | None = None


def parse_chat_request(body: Any) -> Incoming:
    """Return the request in *body*, a JSON value.

    Raises:
        InvalidInputError: It is not one.
    """
    try:
        request = ChatRequest.model_validate(body)
    except ValidationError as error:
        raise InvalidInputError.of(error) from error
    last = request.messages[-1]
    calls = [part for part in last.parts if part.tool] if last.role == "assistant" else []
    return Incoming(
        conversation_id=request.id,
        messages=tuple(message for each in request.messages for message in _messages(each)),
        continues=last.role == "assistant",
        # An edited message has its id here; one that is new has none.
        replaces=request.trigger == "regenerate-message" or request.message_id == last.id,
        decisions=dict(_decisions(calls)),
        results=dict(_results(calls)),
        state=request.state,
        properties={
            **(request.model_extra or {}),
            **request.model_dump(
                by_alias=True, exclude_none=True, include={"trigger", "message_id"}
            ),
        },
    )


def _decisions(calls: Sequence[UiPart]) -> Iterator[tuple[str, Decision]]:
    for part in calls:
        approval = part.approval
        if approval is not None and approval.approved is not None:
            yield approval.id, Decision(approval.approved, approval.reason or "")


def _results(calls: Sequence[UiPart]) -> Iterator[tuple[str, Decision]]:
    """Yield what the frontend's own tools returned, by the ids of the calls."""
    for part in calls:
        if part.state == "output-available":
            yield part.tool_call_id or "", Decision.answered(_text(part.output))
        elif part.state == "output-error":
            yield part.tool_call_id or "", Decision(approved=False, message=part.error_text or "")


def _messages(message: UiMessage) -> Iterator[Message]:
    """Yield the messages in one of the frontend; instructions are the application's."""
    if message.role == "user":
        yield UserMessage(list(_content(message.parts)), id=message.id)
    elif message.role == "assistant":
        id: str | None = message.id
        for step in _steps(message.parts):
            yield AssistantMessage([*_content(step), *_calls(step)], id=id)
            id = None  # the others belong to the same turn
            if responses := list(_responses(step)):
                yield ToolResponseMessage(responses)


def _steps(parts: Sequence[UiPart]) -> Iterator[list[UiPart]]:
    step: list[UiPart] = []
    for part in parts:
        if part.type == "step-start":
            if step:
                yield step
            step = []
        else:
            step.append(part)
    yield step


def _content(parts: Sequence[UiPart]) -> Iterator[str | Media]:
    """Yield texts and files; reasoning without its signature is of no use for the model."""
    for part in parts:
        if part.type == "text" and part.text:
            yield part.text
        elif part.type == "file" and part.url is not None:
            yield media_of(part.url, part.media_type, part.filename)


def _calls(parts: Sequence[UiPart]) -> Iterator[ToolCall]:
    for part in parts:
        if (name := part.tool) and part.tool_call_id:
            yield ToolCall(part.tool_call_id, name, dumps(part.input or {}).decode())


def _responses(parts: Sequence[UiPart]) -> Iterator[ToolResponse]:
    for part in parts:
        id, name = part.tool_call_id or "", part.tool or ""
        match part.state if name else None:
            case "output-available":
                yield ToolResponse(id, name, _text(part.output))
            case "output-error":
                yield ToolResponse(id, name, part.error_text or "", is_error=True)
            case "output-denied":
                reason = part.approval.reason if part.approval else None
                yield ToolResponse(id, name, reason or _DENIED, is_error=True)
            case _:
                pass


def _text(output: Any) -> str:
    return output if isinstance(output, str) else dumps(output).decode()
