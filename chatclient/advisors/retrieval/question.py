"""`Question`: the user message of a request that its answer is for; `ReReadingAdvisor`."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from chatclient.chain.chain import MEMORY_ORDER, ChatClientRequest, ChatClientResponse, Next
from chatclient.chat.message_merging import CORRECTION
from chatclient.chat.messages import Message, UserMessage, without_system
from chatclient.chat.prompt import Prompt
from chatclient.chat.template import PromptTemplate, require_placeholders


@dataclass(frozen=True, slots=True)
class Question:
    """The question of a request, and its position.

    Attributes:
        message: The user message.
        messages: The messages that contain it: those of the prompt, or those that the tool loop
            has removed from the prompt because a memory inside the loop sends them.
        index: Its index in the messages.
    """

    message: UserMessage
    messages: tuple[Message, ...]
    index: int

    @property
    def history(self) -> tuple[Message, ...]:
        """The messages before it, without system messages."""
        return without_system(self.messages[: self.index])

    def with_text(self, text: str, request: ChatClientRequest) -> ChatClientRequest:
        """Return *request* with the text of the question replaced by *text*."""
        before, after = self.messages[: self.index], self.messages[self.index + 1 :]
        changed = (*before, self.message.mutate(text=text), *after)
        if self.messages is request.prompt.messages:
            return request.mutate(prompt=Prompt.of(changed, request.prompt.options))
        return replace(request, earlier=changed)


def question_in(request: ChatClientRequest, text: str | None) -> Question | None:
    """Return the question of *request*, or None if it has no text.

    Corrections, which advisors mark with `CORRECTION` in the metadata, and user input that arrived
    while the turn ran are not questions.

    Args:
        request: The request.
        text: The text of the question in earlier rounds, if any; later user messages are then
            input that arrived while the turn ran.
    """
    candidates = _candidates(request)
    question = next(candidates, None)
    if question is None:
        return None
    if text is not None and question.message.text != text:
        question = next((each for each in candidates if each.message.text == text), question)
    return question if question.message.text.strip() else None


def _candidates(request: ChatClientRequest) -> Iterator[Question]:
    """Yield the user messages that may be the question, the latest first."""
    turn = request.turn
    for messages in (request.prompt.messages, request.earlier):
        for index in reversed(range(len(messages))):
            message = messages[index]
            if not isinstance(message, UserMessage) or CORRECTION in message.metadata:
                continue
            if not turn.contains_round([message]):
                yield Question(message, messages, index)


def original_text(question: Question, request: ChatClientRequest) -> str:
    """Return the text of *question* before an advisor rewrote it."""
    rewritten, original = request.turn.part.rewritten_question or ("", "")
    return original if rewritten == question.message.text else question.message.text


RE_READING_ORDER = MEMORY_ORDER + 60
"""The default order: inside memory, which stores the original question, and outside of retrieval,
whose documents should not be repeated."""

RE_READING_TEMPLATE = "{question}\n\nRead the question again: {question}"
"""The default template."""


class ReReadingAdvisor:
    """Repeats the question, which improves the reasoning of models (RE2, arXiv 2309.06275).

    Args:
        template: The text that replaces the user's; `{question}` is the placeholder for that.
        order: The position in the chain.

    Raises:
        TemplateError: The template lacks the placeholder.
    """

    name = "ReReadingAdvisor"
    params: Collection[str] = ()

    def __init__(
        self, template: str = RE_READING_TEMPLATE, *, order: int = RE_READING_ORDER
    ) -> None:
        self._template = PromptTemplate(template)
        self.order = order
        require_placeholders(self._template, "question")

    async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        """Return the response to the repeated question."""
        part = request.turn.part
        question = question_in(request, part.rewritten_question and part.rewritten_question[1])
        if question is None:
            return await call_next(request)
        original = question.message.text
        text = self._template.render(question=original)
        part.rewritten_question = text, original
        return await call_next(question.with_text(text, request))
