"""What a request asks: the user's last message that no advisor has added."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from chatclient.advisors.tool_calling import EARLIER_MESSAGES, TOOL_MESSAGES
from chatclient.chain import ChatClientRequest
from chatclient.messages import Message, UserMessage, without_system
from chatclient.prompt import Prompt
from chatclient.turn_taking import CORRECTION

PUT_AS = "question_put_as"
"""The key in a request's context of how an advisor has put the question, and of the question."""

RETRIEVED = "retrieved_for_question"
"""The key in a request's context of what advisors have found for the question, and made of it: it
is found once, however often the model is asked."""

IN_SYSTEM_TEXT = "memory_in_system_text"
"""The key in a request's context of what a memory tells in the system text, a tuple of messages:
they were said before those of the prompt."""


@dataclass(frozen=True, slots=True)
class Question:
    """What a request asks, and where it stands.

    Attributes:
        message: The user's message.
        among: The messages that it is one of: the prompt's, or those that the tool loop has left
            out of it, for a memory further in to send.
        at: Its index in them.
    """

    message: UserMessage
    among: tuple[Message, ...]
    at: int

    @property
    def before(self) -> tuple[Message, ...]:
        """What was said before it, without system messages."""
        return without_system(self.among[: self.at])

    def asked_as(self, text: str, request: ChatClientRequest) -> ChatClientRequest:
        """Return *request* with *text* in place of the question's."""
        before, after = self.among[: self.at], self.among[self.at + 1 :]
        changed = (*before, self.message.mutate(text=text), *after)
        if self.among is request.prompt.messages:
            return request.mutate(prompt=Prompt.of(changed, request.prompt.options))
        return request.mutate(context={EARLIER_MESSAGES: changed})


def question_in(request: ChatClientRequest, known: str | None) -> Question | None:
    """Return what *request* asks, or None when it asks nothing in words.

    Advisors that ask for a better answer mark their messages with `CORRECTION` in the metadata:
    these are no questions of the user's. Nor is what users have said on the way to an answer.

    Args:
        request: The request.
        known: The question of the rounds before, if there were any: what users have said since is
            said on the way.
    """
    said = _said_by_user(request)
    question = next(said, None)
    if question is None:
        return None
    if known is not None and question.message.text != known:
        question = next((each for each in said if each.message.text == known), question)
    return question if question.message.text.strip() else None


def _said_by_user(request: ChatClientRequest) -> Iterator[Question]:
    """Yield what could be the question, the latest first."""
    on_the_way: Sequence[Message] = request.context.get(TOOL_MESSAGES, ())
    for messages in (request.prompt.messages, request.context.get(EARLIER_MESSAGES, ())):
        for at in reversed(range(len(messages))):
            message = messages[at]
            if not isinstance(message, UserMessage) or CORRECTION in message.metadata:
                continue
            if not any(message is each for each in on_the_way):
                yield Question(message, messages, at)


def in_own_words(question: Question, request: ChatClientRequest) -> str:
    """Return *question* as the user put it, whatever an advisor has made of it since."""
    put, own = request.context.get(PUT_AS, ("", ""))
    return own if put == question.message.text else question.message.text
