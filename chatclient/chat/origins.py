"""`PromptPart`: a text of a prompt, with its origin."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from chatclient.chat.document import documents_among
from chatclient.chat.message_merging import CORRECTION, current_turn_start
from chatclient.chat.messages import (
    Message,
    SystemMessage,
    ToolResponseMessage,
    UserMessage,
    system_messages,
    without_system,
)
from chatclient.chat.tool import BACKGROUND, REMARK
from chatclient.chat.turn import Turn

Origin = Literal["system", "user", "assistant", "tool", "document", "advisor"]
"""Who has written a text: the application (`system`), the user, a model (`assistant`), a tool, the
author of a retrieved document, or an advisor that has added to the system text, such as memory."""


@dataclass(frozen=True, slots=True)
class PromptPart:
    """A text of a prompt.

    Attributes:
        origin: Who has written it.
        text: The text.
        name: The name of the tool, or the id of the document; else None.
    """

    origin: Origin
    text: str
    name: str | None = None


def prompt_parts(messages: Sequence[Message], turn: Turn | None = None) -> tuple[PromptPart, ...]:
    """Return the texts that a model has seen, each with its origin.

    The messages of a turn are taken as they were before advisors added documents to them. What a
    tool or an agent asks in another turn was written by the model that called it, so its user
    messages have the origin `assistant`; the parts of the other turn come first.

    Args:
        messages: The conversation.
        turn: The turn that made the last model call with it, or None for what has no turn.
    """
    if turn is None:
        return tuple(_parts(messages))
    outer = turn.outer
    parts = () if outer is None else prompt_parts(outer.conversation, outer)
    return (*parts, *_parts_of_turn(messages, turn))


def _parts_of_turn(messages: Sequence[Message], turn: Turn) -> Iterator[PromptPart]:
    asked_by: Origin = "user" if turn.outer is None else "assistant"
    sent = system_messages(messages)
    own = sent if turn.part.system is None else turn.part.system
    yield from _parts(own)
    added = "\n".join(message.text for message in sent)
    for message in own:
        added = added.replace(message.text, "", 1)
    if added.strip():
        yield PromptPart("advisor", added)
    spoken = without_system(messages)
    rounds = {message.id for message in turn.rounds}
    first_round = next((at for at, each in enumerate(spoken) if each.id in rounds), len(spoken))
    earlier = spoken[: current_turn_start(spoken[:first_round])]
    yield from _parts((*earlier, *turn.request_messages, *turn.rounds), asked_by)
    for document in documents_among(turn.sources):
        yield PromptPart("document", document.text, document.id)


def _parts(messages: Iterable[Message], asked_by: Origin = "user") -> Iterator[PromptPart]:
    for message in messages:
        match message:
            case ToolResponseMessage():
                for response in message.responses:
                    text, remark = response.data, response.metadata.get(REMARK)
                    if isinstance(remark, str):  # what the user said about the call
                        yield PromptPart("user", remark)
                        text = text.removeprefix(remark)
                    yield PromptPart("tool", text, response.name)
            case SystemMessage():
                yield PromptPart("system", message.text)
            case UserMessage() if BACKGROUND in message.metadata:
                names = {name for _, name in message.metadata[BACKGROUND]}
                yield PromptPart("tool", message.text, names.pop() if len(names) == 1 else None)
            case UserMessage() if CORRECTION not in message.metadata:
                yield PromptPart(asked_by, message.text)
            case _:
                yield PromptPart("assistant", message.text)
