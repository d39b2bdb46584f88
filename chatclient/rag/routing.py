"""Says for a query where to look."""

import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Literal

from chatclient.checks import check_callable, check_kind, check_word
from chatclient.errors import UsageError
from chatclient.model import ChatModel
from chatclient.options import ChatOptions
from chatclient.rag.asking import DATA, Asking
from chatclient.rag.query import DocumentRetriever, Query, RetrievalError
from chatclient.runtime import Runtime

ROUTING_TEMPLATE = (
    "Say which of the sources may hold what answers the question: their numbers, with commas "
    f"between them, and nothing else. {DATA}\n\n"
    "<sources>\n{sources}\n</sources>\n\n<question>{query}</question>"
)

RoutingFallback = Literal["all", "none", "raise"]
"""Where to look when the model does not say: everywhere, nowhere, or not at all."""

_NUMBER = re.compile(r"(?<!\d)\d{1,9}(?!\d)")  # what is longer numbers no source


class LanguageModelQueryRouter:
    """Has a model choose the sources for a query by their descriptions.

    ```python
    router = LanguageModelQueryRouter(model, {"prices and offers": shop, "opening hours": wiki})
    RetrievalAugmentationAdvisor(query_router=router)
    ```

    Args:
        model: Which model; a low temperature serves best.
        retrievers: The sources, by what is to be found in each.
        fallback: Where to look when the model fails or names no source.
        template: What the model is asked, with `{query}` and `{sources}`.
        options: What is asked of the model beside its own options.

    Raises:
        UsageError: There is no source, one of them cannot be called, or *fallback* is not a
            known value.
        TemplateError: The template lacks a placeholder.
    """

    def __init__(
        self,
        model: ChatModel,
        retrievers: Mapping[str, DocumentRetriever],
        *,
        fallback: RoutingFallback = "all",
        template: str = ROUTING_TEMPLATE,
        options: ChatOptions | None = None,
    ) -> None:
        hint = 'say what is to be found in each: {"opening hours": retriever}'
        check_kind("the retrievers of a router", retrievers, Mapping, hint)
        for retriever in retrievers.values():
            check_callable("a retriever", retriever, takes=("query", "runtime"))
        if not retrievers:
            msg = "a router needs sources to choose from"
            raise UsageError(msg)
        check_word("fallback", fallback, RoutingFallback)
        self._retrievers = tuple(retrievers.values())
        self._fallback = fallback
        sources = "\n".join(
            f'<source number="{number}">{escape(description, quote=False)}</source>'
            for number, description in enumerate(retrievers, 1)
        )
        self._ask = Asking(model, template, {"sources": sources}, ("query", "sources"), options)

    async def __call__(self, query: Query, runtime: Runtime) -> Sequence[DocumentRetriever]:
        """Return where to look for *query*.

        Raises:
            RetrievalError: The model does not say, and that is what *fallback* wants.
        """
        said = await self._ask(query, runtime)
        numbers = dict.fromkeys(int(number) for number in _NUMBER.findall(said))
        chosen = [self._retrievers[n - 1] for n in numbers if 0 < n <= len(self._retrievers)]
        if chosen or self._fallback == "none":
            return chosen
        if self._fallback == "raise":
            msg = "the model does not say where to look"
            raise RetrievalError(msg)
        return self._retrievers
