"""`ReReadingAdvisor`: repeats the question in the prompt."""

from collections.abc import Collection

from chatclient.advisors.retrieval.question import question_in
from chatclient.chain.chain import MEMORY_ORDER, ChatClientRequest, ChatClientResponse, Next
from chatclient.chat.template import PromptTemplate, require_placeholders

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
