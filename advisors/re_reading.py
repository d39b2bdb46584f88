"""Has the model read the question twice."""

from chatclient.advisors.questions import PUT_AS, question_in
from chatclient.chain import MEMORY_ORDER, ChatClientRequest, ChatClientResponse, Next
from chatclient.template import PromptTemplate, require_placeholders

RE_READING_ORDER = MEMORY_ORDER + 60
"""Where it stands by default: inside memory, which keeps the question as it was asked, and outside
of retrieval, whose documents are not to be read twice."""

RE_READING_TEMPLATE = "{question}\n\nRead the question again: {question}"
"""What the model is asked by default."""


class ReReadingAdvisor:
    """Puts the question twice, which makes models reason better (RE2, arXiv 2309.06275).

    Args:
        template: What to ask in place of the user's text; `{question}` stands for that.
        order: Where the advisor stands in the chain.

    Raises:
        TemplateError: The template has no place for the question.
    """

    name = "ReReadingAdvisor"

    def __init__(
        self, template: str = RE_READING_TEMPLATE, *, order: int = RE_READING_ORDER
    ) -> None:
        self._template = PromptTemplate(template)
        self.order = order
        require_placeholders(self._template, "question")

    async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        """Return the response to the question asked twice."""
        _, known = request.context.get(PUT_AS, ("", None))
        question = question_in(request, known)
        if question is None:
            return await call_next(request)
        own = question.message.text
        text = self._template.render(question=own)
        asked = question.asked_as(text, request)
        return await call_next(asked.mutate(context={PUT_AS: (text, own)}))
