"""The inverted index of a segment of tools.

A document is a tool; its id is its position in the segment. The impact of a term in a document is
its BM25F weight without the inverse document frequency, as one byte. It depends only on the
document: field lengths are compared with fixed typical lengths, which work as well as averages on
real catalogs. So tools that were indexed at different times can be searched together. The two
lowest bits of an impact are flags, `IN_NAME` and `IN_VALUES`; as part of the number they are
negligible, so scores use an impact as it is.

The index contains each posting (a term in a document, with its impact) twice: by term, to find
documents, and by document, to score them in detail. Terms are stored as hashes, because the words
would take twice the memory of everything else. The terms of a document are a string with one
character for each, because strings are the fastest to search.
"""

import sys
from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeVar

from chatclient.tools.search.index import ToolReference
from chatclient.tools.search.tokenizer import Words, concepts, parameter_texts

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Field:
    """The weight of a field, and how much a long field is penalised."""

    weight: float
    length_penalty: float
    typical_length: float

    def worth(self, length: int) -> float:
        """Return the weight of one occurrence of a term in a field of *length* terms."""
        penalty = self.length_penalty
        return self.weight / (1 - penalty + penalty * length / self.typical_length)


# Tuned on 16,000 tools and 3,000 queries, so that both of two random halves improve.
_NAME = _Field(1.7, 1.0, 4.0)
_SUMMARY = _Field(0.6, 0.45, 11.5)
_PARAMETER_NAMES = _Field(0.46, 0.6, 4.3)
_PARAMETER_DESCRIPTIONS = _Field(0.30, 0.27, 14.0)
_VALUES = _Field(0.17, 1.0, 1.3)
_SATURATION = 0.8
_MAX_IMPACT = 255

IN_NAME = 1
"""The bit of an impact that is set if the term is in the name of the tool."""
IN_VALUES = 2
"""The bit of an impact that is set if the term is in a value that a parameter allows."""
_FLAGS = IN_NAME | IN_VALUES
_NOT_IN_NAME = bytes(impact for impact in range(256) if not impact & IN_NAME)
_CODE_POINTS = sys.maxunicode + 1


def term_impacts(reference: ToolReference, words: Words) -> dict[str, int]:
    """Return the impact of each term and concept in the document of a tool."""
    names, descriptions, values = parameter_texts(reference.parameters)
    in_name = words.identifier_terms(reference.tool_name)
    in_values = words.terms(" ".join(values))
    occurrences: dict[str, float] = {}
    get = occurrences.get
    for spec, terms in (
        (_NAME, in_name),
        (_SUMMARY, words.terms(reference.summary)),
        (_PARAMETER_NAMES, words.identifier_terms(*names)),
        (_PARAMETER_DESCRIPTIONS, words.terms(" ".join(descriptions))),
        (_VALUES, in_values),
    ):
        if terms:
            worth = spec.worth(len(terms))
            for term in terms:
                occurrences[term] = get(term, 0.0) + worth
    impacts = {
        term: int(_MAX_IMPACT * worth / (_SATURATION + worth)) & ~_FLAGS or _FLAGS + 1
        for term, worth in occurrences.items()
    }
    of_concepts = _concept_impacts(impacts)
    for term in in_name:
        impacts[term] |= IN_NAME
    for term in in_values:
        impacts[term] |= IN_VALUES
    impacts.update(of_concepts)
    return impacts


def _concept_impacts(impacts: Mapping[str, int]) -> dict[str, int]:
    """Return for each concept the impact of its strongest term."""
    strongest: dict[str, int] = {}
    concepts_of = concepts()
    for term, impact in impacts.items():
        for concept in concepts_of.get(term, ()):
            if strongest.get(concept, 0) < impact:
                strongest[concept] = impact
    return strongest


def _required(schema: Mapping[str, Any]) -> int:
    """Return the number of required arguments."""
    required = schema.get("required")
    return min(len(required), 255) if isinstance(required, list) else 0


class InvertedIndex:
    """The postings of several tools; immutable.

    A term id is a number that identifies a term within this index.

    Attributes:
        name_lengths: The number of distinct terms in the name of each document.
        required: The number of required arguments of each document.
        total_impacts: The sum of the impacts of each document's terms.
    """

    __slots__ = (
        "_document_ends",
        "_document_impacts",
        "_document_terms",
        "_hashes",
        "_posting_documents",
        "_posting_impacts",
        "_posting_starts",
        "_term_ids",
        "name_lengths",
        "required",
        "total_impacts",
    )

    def __init__(self, references: Sequence[ToolReference], words: Words) -> None:
        ids: defaultdict[str, int] = defaultdict(count().__next__)
        terms: list[int] = []
        all_impacts = bytearray()
        name_lengths = bytearray()
        self._document_ends = array("I", [0])
        self.total_impacts = array("I")
        for reference in references:
            by_term = term_impacts(reference, words)
            terms += map(ids.__getitem__, by_term)
            impacts = bytes(by_term.values())
            all_impacts += impacts
            name_lengths.append(min(len(impacts.translate(None, _NOT_IN_NAME)), 255))
            self.total_impacts.append(sum(impacts))
            self._document_ends.append(len(terms))
        hashes = list(map(_hash, ids))
        order = sorted(range(len(hashes)), key=hashes.__getitem__)
        self._hashes = array("q", [hashes[term_id] for term_id in order])
        self._term_ids = array(_array_type(len(order)), order)
        characters = list(map(term_character, range(len(ids))))
        self._document_terms = "".join(map(characters.__getitem__, terms))
        self._document_impacts = bytes(all_impacts)
        self.name_lengths = bytes(name_lengths)
        self.required = bytes(_required(reference.parameters) for reference in references)
        self._invert(terms)

    def _invert(self, terms: Sequence[int]) -> None:
        """Store the postings of each term, sorted by descending impact.

        Args:
            terms: The term ids of all documents, one document after another.
        """
        # A posting is one number that is smaller for a greater impact. It has as few bits as
        # possible, because small numbers are compared faster.
        bits = len(self.total_impacts).bit_length()
        by_term: list[list[int]] = [[] for _ in self._hashes]
        for document in range(len(self.total_impacts)):
            start, end = self._document_ends[document], self._document_ends[document + 1]
            impacts = self._document_impacts[start:end]
            for term_id, impact in zip(terms[start:end], impacts, strict=True):
                by_term[term_id].append((_MAX_IMPACT - impact) << bits | document)
        starts = array("I", [0])
        postings = []
        for of_term in by_term:
            of_term.sort()
            postings += of_term
            starts.append(len(postings))
        self._posting_starts = starts
        mask = (1 << bits) - 1
        self._posting_documents = array(
            _array_type(len(self.total_impacts)), [posting & mask for posting in postings]
        )
        self._posting_impacts = bytes([_MAX_IMPACT - (posting >> bits) for posting in postings])

    def term_ids(self, terms: Iterable[str]) -> dict[str, int]:
        """Return the ids of those of *terms* that a document has."""
        hashes = self._hashes
        count = len(hashes)
        ids: dict[str, int] = {}
        for term in terms:
            code = _hash(term)
            place = bisect_left(hashes, code)
            if place < count and hashes[place] == code:
                ids[term] = self._term_ids[place]
        return ids

    def document_frequencies(self, term_ids: Mapping[str, int]) -> dict[str, int]:
        """Return the number of documents with each term."""
        starts = self._posting_starts
        return {term: starts[i + 1] - starts[i] for term, i in term_ids.items()}

    def top_postings(self, term_id: int, most: int) -> tuple[Sequence[int], bytes]:
        """Return the documents and impacts of up to *most* postings with the greatest impact."""
        start = self._posting_starts[term_id]
        end = min(self._posting_starts[term_id + 1], start + most)
        return self._posting_documents[start:end], self._posting_impacts[start:end]

    def matches(self, document: int, query: Iterable[tuple[str, T]]) -> list[tuple[T, int]]:
        """Return the terms of *query* that a document has, with their impacts.

        Args:
            document: The document.
            query: Terms in any form, each after its `term_character`.
        """
        start, end = self._document_ends[document], self._document_ends[document + 1]
        terms, impacts = self._document_terms[start:end], self._document_impacts
        return [
            (term, impacts[start + terms.index(character)])
            for character, term in query
            if character in terms
        ]


def term_character(term_id: int) -> str:
    """Return the character for a term; with more than a million terms, two may share one."""
    return chr(term_id % _CODE_POINTS)


def _hash(term: str) -> int:
    """Return a 64-bit number that is practically unique for *term*."""
    # Of the encoded text, because the hashes of the strings ag and 条 are equal.
    return hash(term.encode())


def _array_type(count: int) -> str:
    """Return the type code of an array of numbers below *count*."""
    return "H" if count <= 1 << 16 else "I"
