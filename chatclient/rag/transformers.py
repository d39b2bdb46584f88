"""Steps that ask a model for a better query, or for several.

They improve the search and are not needed for it: when the model fails or says nothing, the query
stays as it is, and a warning is logged. What the model is asked about stands in tags, escaped.
"""

import re
from dataclasses import replace

from chatclient.checks import check_kind, check_number
from chatclient.memory.transcript import transcript
from chatclient.messages import AssistantMessage, UserMessage
from chatclient.model import ChatModel
from chatclient.options import ChatOptions
from chatclient.rag.asking import DATA, Asking
from chatclient.rag.query import Query
from chatclient.runtime import Runtime

REWRITE_TEMPLATE = (
    "Rewrite the question so that a search in a {target} finds what answers it: short and to the "
    f"point, without anything that does not matter. {DATA} Say the rewritten question and nothing "
    "else.\n\n<question>{query}</question>"
)
COMPRESSION_TEMPLATE = (
    "Given a conversation and a further question, write one question that can be understood "
    f"without the conversation. {DATA} Say the question and nothing else.\n\n"
    "<conversation>\n{history}\n</conversation>\n\n<question>{query}</question>"
)
TRANSLATION_TEMPLATE = (
    "Translate the question into {target_language}. If it is in that language already, repeat it "
    f"as it is. {DATA} Say the translation and nothing else.\n\n"
    "<question>{query}</question>"
)
EXPANSION_TEMPLATE = (
    "Write {number} different ways to ask the question, each of which may find other documents in "
    f"a search. {DATA} Write one to a line, without numbers and nothing else.\n\n"
    "<question>{query}</question>"
)

_BULLET = re.compile(r"^\s*(?:[-*•]|\d+[.):])\s+")


class RewriteQueryTransformer:
    """Has a model rewrite the query for what it is searched in.

    Args:
        model: Which model; a low temperature serves best.
        target: What is searched in.
        template: What the model is asked, with `{query}` and `{target}`.
        options: What is asked of the model beside its own options.

    Raises:
        TemplateError: The template lacks a placeholder.
    """

    def __init__(
        self,
        model: ChatModel,
        *,
        target: str = "vector store",
        template: str = REWRITE_TEMPLATE,
        options: ChatOptions | None = None,
    ) -> None:
        self._ask = Asking(model, template, {"target": target}, ("query", "target"), options)

    async def __call__(self, query: Query, runtime: Runtime) -> Query:
        """Return the query as the model rewrites it."""
        return await self._ask.anew(query, runtime)


class CompressionQueryTransformer:
    """Has a model put what the conversation says into the query; without one, nothing is asked.

    Args:
        model: Which model; a low temperature serves best.
        template: What the model is asked, with `{query}` and `{history}`.
        options: What is asked of the model beside its own options.

    Raises:
        TemplateError: The template lacks a placeholder.
    """

    def __init__(
        self,
        model: ChatModel,
        *,
        template: str = COMPRESSION_TEMPLATE,
        options: ChatOptions | None = None,
    ) -> None:
        self._ask = Asking(model, template, {}, ("query", "history"), options)

    async def __call__(self, query: Query, runtime: Runtime) -> Query:
        """Return the query as it can be understood alone."""
        spoken = [m for m in query.history if isinstance(m, UserMessage | AssistantMessage)]
        said = [type(m)(m.text) for m in spoken if m.text]
        if not said:
            return query
        return await self._ask.anew(query, runtime, history=transcript(said))


class TranslationQueryTransformer:
    """Has a model translate the query into the language of the documents.

    Args:
        model: Which model; a low temperature serves best.
        target_language: By its English name.
        template: What the model is asked, with `{query}` and `{target_language}`.
        options: What is asked of the model beside its own options.

    Raises:
        TemplateError: The template lacks a placeholder.
    """

    def __init__(
        self,
        model: ChatModel,
        target_language: str,
        *,
        template: str = TRANSLATION_TEMPLATE,
        options: ChatOptions | None = None,
    ) -> None:
        values = {"target_language": target_language}
        self._ask = Asking(model, template, values, ("query", "target_language"), options)

    async def __call__(self, query: Query, runtime: Runtime) -> Query:
        """Return the query in the other language."""
        return await self._ask.anew(query, runtime)


class MultiQueryExpander:
    """Has a model ask in several ways.

    Args:
        model: Which model.
        number: In how many more ways.
        include_original: Whether the query itself is among them, first.
        template: What the model is asked, with `{query}` and `{number}`.
        options: What is asked of the model beside its own options.

    Raises:
        UsageError: The number is less than one.
        TemplateError: The template lacks a placeholder.
    """

    def __init__(
        self,
        model: ChatModel,
        *,
        number: int = 3,
        include_original: bool = True,
        template: str = EXPANSION_TEMPLATE,
        options: ChatOptions | None = None,
    ) -> None:
        check_kind("number", number, int)
        check_number("number", number, least=1)
        self._number = number
        self._include_original = include_original
        self._ask = Asking(model, template, {"number": number}, ("query", "number"), options)

    async def __call__(self, query: Query, runtime: Runtime) -> list[Query]:
        """Return the queries, each once; the original one where the model wrote none."""
        said = await self._ask(query, runtime)
        lines = [_BULLET.sub("", line).strip() for line in said.splitlines()]
        texts = list(dict.fromkeys(line for line in lines if line))[: self._number]
        if self._include_original or not texts:
            texts = [query.text, *(text for text in texts if text != query.text)]
        return [replace(query, text=text) for text in texts]
