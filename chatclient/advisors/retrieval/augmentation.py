"""`Augmentation`: adds documents to the question of a request, for all retrieval advisors."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from chatclient._internal.checks import check_type
from chatclient._internal.frozen import merged
from chatclient.advisors.retrieval.question import (
    original_text,
    question_in,
)
from chatclient.chain.chain import ChatClientRequest, ChatClientResponse, Next
from chatclient.chain.params import FILTER_EXPRESSION
from chatclient.chat.document import Document, documents_among
from chatclient.chat.pending_notes import load_note, save_note
from chatclient.retrieval.query import Query, QueryAugmenter
from chatclient.runtime.runtime import Runtime

Find = Callable[[Query, Runtime], Awaitable[Sequence[Document]]]
"""Returns the documents for a query."""


class Augmentation:
    """Adds documents to the user's question; they are retrieved once for all rounds of a tool loop.

    Args:
        find: Finds the documents.
        augment: Renders question and documents to the text that the model gets.
        key: The key of the documents in contexts and metadata.
    """

    def __init__(self, find: Find, augment: QueryAugmenter, key: str) -> None:
        self._find = find
        self._augment = augment
        self._key = key

    async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        """Return the response to the augmented request, with the documents."""
        turn = request.turn
        note: Mapping[str, Any] | None = load_note(self._key, turn)
        if note is None:
            augmented = await self._augmented(request)
            if augmented is None:
                return await call_next(request)
            sent, documents = augmented
            turn.record_sources(self, documents)
        else:  # the suspended turn contains the augmented question, and all sources
            sent, documents = request, documents_among(note["documents"])
        context = {self._key: documents}
        response = await call_next(sent.mutate(context=context))
        answer = response.chat_response
        metadata = answer.metadata
        values = merged(metadata.values, context)
        answer = replace(answer, metadata=replace(metadata, values=values))
        save_note(self._key, lambda: {"documents": documents}, turn)
        return response.mutate(chat_response=answer, context=context)

    async def _augmented(
        self, request: ChatClientRequest
    ) -> tuple[ChatClientRequest, tuple[Document, ...]] | None:
        """Return *request* with the augmented question, and the documents; None without text."""
        retrieved = request.turn.part.retrieved
        entry: tuple[str, str, tuple[Document, ...], Any] | None = retrieved.get(self)
        question = question_in(request, None if entry is None else entry[0])
        if question is None:
            return None
        question_text = question.message.text
        where = request.context.get(FILTER_EXPRESSION)
        if entry is None or entry[0] != question_text or entry[3] != where:
            history = (*request.in_system_text, *question.history)
            query = Query(original_text(question, request), history, request.context)
            documents = tuple(await self._find(query, request.runtime))
            query = replace(query, text=question_text)
            text = await request.runtime.call(self._augment, query, documents)
            check_type("what an augmenter returns", text, str)
            entry = retrieved[self] = (question_text, text, documents, where)
        _, text, documents, _ = entry
        return question.with_text(text, request), documents
