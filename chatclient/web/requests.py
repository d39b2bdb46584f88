"""Checked requests of frontends, and the requests of a client that are made from them."""

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, Self
from urllib.parse import unquote_to_bytes

from pydantic import ValidationError
from pydantic_core import from_json

from chatclient.chain.chain import is_memory
from chatclient.chat.events import UI_STATE
from chatclient.chat.messages import Media, Message, UserMessage
from chatclient.chat.pending_turn import Decision, PendingTurn
from chatclient.client.request import ChatClientRequestSpec
from chatclient.errors import UsageError
from chatclient.extend import EMPTY
from chatclient.memory.conversation import repair_conversation
from chatclient.tools.function.data_tool import ExternalTool

_MOST_ERRORS = 3
_MOST_VALUES = 100_000
_BACKSLASH = ord("\\")


class RefusedError(Exception):
    """The request of a frontend is refused, with a status of HTTP and a text for the user."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class InvalidInputError(UsageError):
    """The request of a frontend is invalid; its text may be shown."""

    @classmethod
    def of(cls, error: ValidationError) -> Self:
        """Return the error for a request that does not fit the protocol, without its content."""
        found = error.errors(include_input=False, include_url=False, include_context=False)
        places = (
            f"{'.'.join(map(str, each['loc'])) or 'the request'}: {each['msg']}"
            for each in found[:_MOST_ERRORS]
        )
        return cls("; ".join(places))


def json_of(body: bytes, limits: Mapping[str, int]) -> Any:
    """Return the JSON value in *body*.

    Args:
        body: The body of a request.
        limits: The maximum lengths of lists in it, by their names.

    Raises:
        InvalidInputError: It is not JSON.
        RefusedError: It has too many values, or a list is too long.
    """
    if _has_more_values(body, _MOST_VALUES):
        raise RefusedError(413, f"The request has more than {_MOST_VALUES:,} values.")
    try:
        value = from_json(body)
    except ValueError as error:
        msg = f"the request: Invalid JSON: {error}"
        raise InvalidInputError(msg) from error
    for name, most in limits.items():
        found = value.get(name) if isinstance(value, dict) else None
        if isinstance(found, list) and len(found) > most:
            raise RefusedError(413, f"The request has more than {most:,} {name}.")
    return value


def _has_more_values(body: bytes, most: int) -> bool:
    """Return whether the JSON in *body* has more than *most* values.

    To build millions of objects takes seconds, so they are counted before. What is in a text does
    not count: files are long, and code is full of braces.
    """
    count = at = 0
    while count <= most:
        quote = body.find(b'"', at)
        end = len(body) if quote < 0 else quote
        count += body.count(b",", at, end) + body.count(b"[", at, end) + body.count(b"{", at, end)
        if quote < 0:
            return count > most
        at = quote
        while True:  # to the end of the text: a quote after an even number of backslashes
            at = body.find(b'"', at + 1)
            if at < 0:
                return count > most  # invalid
            before = at - 1
            while body[before] == _BACKSLASH:
                before -= 1
            if (at - before) % 2:
                break
        at += 1
    return True


@dataclass(frozen=True, slots=True)
class Incoming:
    """The request of a frontend.

    Attributes:
        conversation_id: The id of the conversation, from the frontend.
        messages: The messages of user, model and tools, with their ids.
        continues: Whether it continues a turn that waits, instead of beginning one.
        replaces: Whether the message of the user takes the place of the one with its id, if the
            memory has one, and of all that followed.
        decisions: Decisions about tool calls, by the ids for decisions.
        results: What the frontend's own tools returned, by the ids of the calls.
        tools: Tools that the frontend carries out.
        context: Information about the user from the frontend: descriptions and values.
        state: The state that the frontend shares, or None.
        properties: Other fields, for the application.
    """

    conversation_id: str
    messages: tuple[Message, ...]
    continues: bool
    replaces: bool
    decisions: Mapping[str, Decision]
    results: Mapping[str, Decision]
    tools: tuple[ExternalTool, ...] = ()
    context: tuple[tuple[str, str], ...] = ()
    state: Any = field(default=None, repr=False)
    properties: Mapping[str, Any] = EMPTY


def media_of(url: str, mime_type: str | None, name: str | None = None) -> Media:
    """Return the content of a file part: that of a `data:` URL, or a web address.

    Raises:
        InvalidInputError: It is another URL, or invalid.
    """
    if url.startswith("data:"):
        header, _, data = url[len("data:") :].partition(",")
        try:
            content = (
                base64.b64decode(data, validate=True)
                if header.endswith(";base64")
                else unquote_to_bytes(data)
            )
        except binascii.Error as error:
            msg = "a file is not valid Base64"
            raise InvalidInputError(msg) from error
        kind = mime_type or header.partition(";")[0]
        return Media(kind or "application/octet-stream", content, name=name)
    if not url.startswith(("https://", "http://")):
        msg = "a file must be a data: URL or a web address"
        raise InvalidInputError(msg)
    return Media(mime_type or "application/octet-stream", url, name=name)


def begin_turn(request: ChatClientRequestSpec, incoming: Incoming) -> ChatClientRequestSpec:
    """Return *request* with the messages of a new turn.

    With a memory, only the new messages of the user are used: the memory has the others, and what
    a browser sends of them can be forged. Without one, the messages of the frontend are all that
    the model receives.

    Raises:
        InvalidInputError: There is no user message.
    """
    messages: Sequence[Message] = incoming.messages
    if any(map(is_memory, request.settings.advisors)):
        last = takewhile(lambda message: isinstance(message, UserMessage), reversed(messages))
        messages = tuple(last)[::-1]
    else:
        messages = repair_conversation(messages)
    asked = messages[-1] if messages else None
    if not isinstance(asked, UserMessage) or not (asked.text.strip() or asked.media):
        msg = "the message of the user is blank"
        raise InvalidInputError(msg)
    return request.messages(messages)


def decisions_in(incoming: Incoming, turn: PendingTurn) -> dict[str, Decision]:
    """Return the decisions about all calls of *turn* that wait.

    The result of a call is accepted for the frontend's own tools only: for others, it would be a
    way to make up what a tool of the application has returned.

    Raises:
        InvalidInputError: A decision is missing.
    """
    external = turn.external_calls
    decisions = {
        id: found[id]
        for id in turn.to_decide()
        if id in (found := incoming.results if id in external else incoming.decisions)
    }
    if missing := [id for id in turn.to_decide() if id not in decisions]:
        msg = f"decide about all tool calls that wait; missing: {', '.join(missing)}"
        raise InvalidInputError(msg)
    return decisions


def with_frontend(request: ChatClientRequestSpec, incoming: Incoming) -> ChatClientRequestSpec:
    """Return *request* with the tools and the state of the frontend."""
    if incoming.state is not None:
        request = request.tool_context({UI_STATE: incoming.state})
    return request.tools(*incoming.tools, keep_defaults=True) if incoming.tools else request
