"""Chooses retrievers for a query."""

import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Literal

from chatclient._internal.checks import check_callable, check_choice, check_type
from chatclient.chat.model import ChatModel
from chatclient.chat.options import ChatOptions
from chatclient.errors import UsageError
from chatclient.retrieval.model_step import DATA, QueryCall
from chatclient.retrieval.query import DocumentRetriever, Query, RetrievalError
from chatclient.runtime.runtime import Runtime

ROUTING_TEMPLATE = (
    "Say which of the sources may hold what answers the question: their numbers, with commas "
    f"between them, and nothing else. {DATA}\n\n"
    "<sources>\n{sources}\n</sources>\n\n<question>{query}</question>"
)

RoutingFallback = Literal["all", "none", "raise"]
"""What to do if the model names no source: use all retrievers, none, or raise an error."""

_NUMBER = re.compile(r"(?<!\d)\d{1,9}(?!\d)")  # longer ones are not the number of a source


class LanguageModelQueryRouter:
    """A router that lets a model choose sources by their descriptions.

    ```python
    router = LanguageModelQueryRouter(model, {"prices and offers": shop, "opening hours": wiki})
    RetrievalAugmentationAdvisor(query_router=router)
    ```

    Args:
        model: The model; a low temperature is recommended.
        retrievers: The retrievers by description of their content.
        fallback: The retrievers to use if the model fails or names no source.
        template: The prompt, with `{query}` and `{sources}`.
        options: Options of the request to the model.

    Raises:
        UsageError: There are no retrievers, one of them is not callable, or *fallback* has an
            unknown value.
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
        hint = 'describe the content of each: {"opening hours": retriever}'
        check_type("the retrievers of a router", retrievers, Mapping, hint)
        for retriever in retrievers.values():
            check_callable("a retriever", retriever, takes=("query", "runtime"))
        if not retrievers:
            msg = "a router needs at least one retriever"
            raise UsageError(msg)
        check_choice("fallback", fallback, RoutingFallback)
        self._retrievers = tuple(retrievers.values())
        self._fallback = fallback
        sources = "\n".join(
            f'<source number="{number}">{escape(description, quote=False)}</source>'
            for number, description in enumerate(retrievers, 1)
        )
        placeholders = ("query", "sources")
        self._call = QueryCall(model, template, {"sources": sources}, placeholders, options)

    async def __call__(self, query: Query, runtime: Runtime) -> Sequence[DocumentRetriever]:
        """Return the retrievers for *query*.

        Raises:
            RetrievalError: The model named no source, and *fallback* is `"raise"`.
        """
        text = await self._call(query, runtime)
        numbers = dict.fromkeys(int(number) for number in _NUMBER.findall(text))
        chosen = [self._retrievers[n - 1] for n in numbers if 0 < n <= len(self._retrievers)]
        if chosen or self._fallback == "none":
            return chosen
        if self._fallback == "raise":
            msg = "the model named no source for the query"
            raise RetrievalError(msg)
        return self._retrievers
