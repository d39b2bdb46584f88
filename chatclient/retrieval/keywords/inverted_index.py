"""An inverted index of documents, which are texts or tools.

The id of a document is its position in the index. The impact of a term in a document is
its BM25F weight without the inverse document frequency, as one byte. It depends only on the
document: field lengths are compared with fixed typical lengths, which work as well as averages on
real catalogs. So documents that were indexed at different times can be searched together. The two
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
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple, TypeVar

from chatclient.retrieval.keywords.tokenizer import concepts

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Field:
    """The weight of a field, and how much a long field is penalised."""

    weight: float
    length_penalty: float
    typical_length: float

    def worth(self, length: int) -> float:
        """Return the weight of one occurrence of a term in a field of *length* terms."""
        penalty = self.length_penalty
        return self.weight / (1 - penalty + penalty * length / self.typical_length)


_MAX_IMPACT = 255

IN_NAME = 1
"""The bit of an impact that is set if the term is in the name of the document."""
IN_VALUES = 2
"""The bit of an impact that is set if the term is in a value that a parameter allows."""
_FLAGS = IN_NAME | IN_VALUES
_NOT_IN_NAME = bytes(impact for impact in range(256) if not impact & IN_NAME)
_CODE_POINTS = sys.maxunicode + 1


class IndexedDocument(NamedTuple):
    """A document as an index stores it.

    Attributes:
        impacts: The impact of each term and concept.
        required: The number of arguments that a tool requires.
    """

    impacts: Mapping[str, int]
    required: int = 0


def term_impacts(
    fields: Iterable[tuple[Field, Collection[str]]],
    saturation: float,
    *,
    name: Iterable[str] = (),
    values: Iterable[str] = (),
) -> dict[str, int]:
    """Return the impact of each term and concept in a document.

    Args:
        fields: The terms of each field.
        saturation: The worth at which an impact is half of the maximum.
        name: The terms of the name.
        values: The terms of the values that parameters allow.
    """
    occurrences: dict[str, float] = {}
    get = occurrences.get
    for spec, terms in fields:
        if terms:
            worth = spec.worth(len(terms))
            for term in terms:
                occurrences[term] = get(term, 0.0) + worth
    impacts = {
        term: int(_MAX_IMPACT * worth / (saturation + worth)) & ~_FLAGS or _FLAGS + 1
        for term, worth in occurrences.items()
    }
    of_concepts = _concept_impacts(impacts)
    for term in name:
        impacts[term] |= IN_NAME
    for term in values:
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


class InvertedIndex:
    """The postings of several documents; immutable.

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

    def __init__(self, documents: Iterable[IndexedDocument]) -> None:
        ids: defaultdict[str, int] = defaultdict(count().__next__)
        terms: list[int] = []
        all_impacts = bytearray()
        name_lengths = bytearray()
        required = bytearray()
        self._document_ends = array("I", [0])
        self.total_impacts = array("I")
        for by_term, number in documents:
            required.append(min(number, 255))
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
        self.required = bytes(required)
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


@dataclass(frozen=True, slots=True)
class IndexView:
    """The part of an index that is searched.

    Attributes:
        index: The index.
        offset: The number of its first document in the search.
        removed: The ids of documents that are not searched.
    """

    index: InvertedIndex
    offset: int = 0
    removed: Collection[int] = frozenset()

    def among(self, numbers: Sequence[int]) -> Sequence[int]:
        """Return the numbers of this view among *numbers*, which are sorted."""
        end = self.offset + len(self.index.required)
        return numbers[bisect_left(numbers, self.offset) : bisect_left(numbers, end)]


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
