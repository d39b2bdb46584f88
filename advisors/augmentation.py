"""Questions asked with documents: found once, and noted while a turn waits."""

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from chatclient.advisors.notes import note_of, noted
from chatclient.advisors.questions import (
    IN_SYSTEM_TEXT,
    RETRIEVED,
    in_own_words,
    question_in,
)
from chatclient.chain import SOURCES, ChatClientRequest, ChatClientResponse, Next
from chatclient.checks import check_kind
from chatclient.rag import Query, QueryAugmenter
from chatclient.runtime import Runtime
from chatclient.tools.awaiting import awaited
from chatclient.values import EMPTY, merged
from chatclient.vector_store import Document
from chatclient.vector_store.store import documents_among

Find = Callable[[Query, Runtime], Awaitable[Sequence[Document]]]
"""Finds all documents for a query, the way an advisor does it."""


class Augmentation:
    """Asks the user's question with documents, once for all rounds of a tool loop.

    Args:
        find: Finds the documents.
        augment: Makes what the model is asked.
        key: The key of the documents in contexts and metadata.
    """

    def __init__(self, find: Find, augment: QueryAugmenter, key: str) -> None:
        self._find = find
        self._augment = augment
        self._key = key
        self._slot = f"{key}_{id(self):x}"

    async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        """Return the response to the augmented request, with the documents."""
        note: Mapping[str, Any] | None = note_of(self._key, request)
        if note is None:
            augmented = await self._augmented(request)
            if augmented is None:
                return await call_next(request)
            sent, documents = augmented
            found = documents
        else:  # what has waited is the question asked with documents
            sent, documents, found = request, _read(note["documents"]), _read(note["sources"])
        sources: tuple[Any, ...] = request.context.get(SOURCES, ())
        sources = (*sources, *(each for each in found if each not in sources))
        context = {self._key: documents, SOURCES: sources}
        response = await call_next(sent.mutate(context=context))
        if SOURCES in response.context:  # those of advisors further in are among them
            del context[SOURCES]
        answer = response.chat_response
        metadata = answer.metadata
        values = merged(metadata.values, {self._key: documents})
        answer = replace(answer, metadata=replace(metadata, values=values))
        response = response.mutate(chat_response=answer, context=context)

        def noting() -> dict[str, Any]:
            rests_on = documents_among(response.context[SOURCES])
            return {"documents": _written(documents), "sources": _written(rests_on)}

        return noted(self._key, noting, request, response) or response

    async def _augmented(
        self, request: ChatClientRequest
    ) -> tuple[ChatClientRequest, tuple[Document, ...]] | None:
        """Return *request* with documents, and these; None when it asks nothing in words."""
        known: Mapping[str, Any] = request.context.get(RETRIEVED, EMPTY)
        done: tuple[str, str, tuple[Document, ...]] | None = known.get(self._slot)
        question = question_in(request, None if done is None else done[0])
        if question is None:
            return None
        asked = question.message.text
        if done is None or done[0] != asked:
            before = (*request.context.get(IN_SYSTEM_TEXT, ()), *question.before)
            query = Query(in_own_words(question, request), before, request.context)
            documents = tuple(await self._find(query, request.runtime))
            query = replace(query, text=asked)
            text = await awaited(request.runtime, self._augment(query, documents))
            check_kind("what an augmenter returns", text, str)
            done = (asked, text, documents)
            known = merged(known, {self._slot: done})
        _, text, documents = done
        return question.asked_as(text, request).mutate(context={RETRIEVED: known}), documents


def _written(documents: Iterable[Document]) -> list[dict[str, Any]]:
    """Return *documents* as JSON knows them, without scores and metadata it has no form for."""
    return [
        {
            "text": document.text,
            "metadata": {k: v for k, v in document.metadata.items() if _has_json_form(v)},
            "id": document.id,
            "score": document.score if _has_json_form(document.score) else None,
        }
        for document in documents
    ]


def _read(written: Iterable[Mapping[str, Any]]) -> tuple[Document, ...]:
    """Return the documents that `_written` has written."""
    return tuple(Document(**fields) for fields in written)


def _has_json_form(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True
