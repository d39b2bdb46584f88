"""`Augmentation`: adds documents to the question of a request, for all retrieval advisors."""

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from chatclient._internal.checks import check_type
from chatclient._internal.frozen import merged
from chatclient.advisors.retrieval.question import (
    original_text,
    question_in,
)
from chatclient.advisors.tool_loop.pending_notes import load_note, save_note
from chatclient.chain.chain import DOCUMENTS, ChatClientRequest, ChatClientResponse, Next
from chatclient.chain.params import FILTER_EXPRESSION
from chatclient.retrieval.query import Query, QueryAugmenter
from chatclient.retrieval.vector_store.store import Document, documents_among
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
        note: Mapping[str, Any] | None = load_note(self._key, request.turn)
        if note is None:
            augmented = await self._augmented(request)
            if augmented is None:
                return await call_next(request)
            sent, documents = augmented
            sources = documents
        else:  # the suspended turn contains the augmented question
            sent = request
            documents, sources = _load(note["documents"]), _load(note["sources"])
        all_sources: tuple[Any, ...] = request.context.get(DOCUMENTS, ())
        all_sources = (*all_sources, *(each for each in sources if each not in all_sources))
        context = {self._key: documents, DOCUMENTS: all_sources}
        response = await call_next(sent.mutate(context=context))
        if DOCUMENTS in response.context:  # includes the documents of advisors further in
            del context[DOCUMENTS]
        answer = response.chat_response
        metadata = answer.metadata
        values = merged(metadata.values, {self._key: documents})
        answer = replace(answer, metadata=replace(metadata, values=values))
        response = response.mutate(chat_response=answer, context=context)

        def note_documents() -> dict[str, Any]:
            used = documents_among(response.context[DOCUMENTS])
            return {"documents": _dump(documents), "sources": _dump(used)}

        save_note(self._key, note_documents, request.turn)
        return response

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


def _dump(documents: Iterable[Document]) -> list[dict[str, Any]]:
    """Return *documents* as JSON values, without scores and metadata that have no JSON form."""
    return [
        {
            "text": document.text,
            "metadata": {k: v for k, v in document.metadata.items() if _has_json_form(v)},
            "id": document.id,
            "score": document.score if _has_json_form(document.score) else None,
        }
        for document in documents
    ]


def _load(values: Iterable[Mapping[str, Any]]) -> tuple[Document, ...]:
    """Return the documents that `_dump` returned as JSON values."""
    return tuple(Document(**fields) for fields in values)


def _has_json_form(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True
