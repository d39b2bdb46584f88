"""The inverted index of a segment of tools: the tools of each term, and the terms of each tool.

The impact of a term on a tool depends only on the tool: field lengths are compared with fixed
typical lengths, which work as well as averages on real catalogs. So tools that were indexed at
different times can be searched together. An impact is one byte. Its two lowest bits tell whether
the term is in the name and whether it is in a value that a parameter allows.

The data is stored twice: by term, to find tools, and by tool, to score them in detail. Terms are
stored as hashes, because the words would take twice the memory of everything else. The terms of a
tool are a string with one character for each, because strings are the fastest to search.
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
_LEVELS = 255

IN_NAME = 1
"""The bit of an impact that is set if the term is in the name of the tool."""
IN_VALUES = 2
"""The bit of an impact that is set if the term is in a value that a parameter allows."""
_FLAGS = IN_NAME | IN_VALUES
_NOT_IN_NAME = bytes(level for level in range(256) if not level & IN_NAME)
_LETTERS = sys.maxunicode + 1  # the number of code points


def impacts(reference: ToolReference, words: Words) -> dict[str, int]:
    """Return the impact of each term and concept on a tool, up to 255 including the flags."""
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
    levels = {
        term: int(_LEVELS * worth / (_SATURATION + worth)) & ~_FLAGS or _FLAGS + 1
        for term, worth in occurrences.items()
    }
    found = _concept_impacts(levels)
    for term in in_name:
        levels[term] |= IN_NAME
    for term in in_values:
        levels[term] |= IN_VALUES
    levels.update(found)
    return levels


def _concept_impacts(levels: Mapping[str, int]) -> dict[str, int]:
    """Return for each concept the impact of its strongest term."""
    found: dict[str, int] = {}
    known = concepts()
    for term, level in levels.items():
        for concept in known.get(term, ()):
            if found.get(concept, 0) < level:
                found[concept] = level
    return found


def _required(schema: Mapping[str, Any]) -> int:
    """Return the number of required arguments."""
    required = schema.get("required")
    return min(len(required), 255) if isinstance(required, list) else 0


class Postings:
    """The terms of several tools; immutable.

    Attributes:
        name_lengths: The number of distinct terms in the name of each tool.
        required: The number of required arguments of each tool.
        totals: The sum of the impacts of each tool's terms.
    """

    __slots__ = (
        "_ends",
        "_hashes",
        "_impacts",
        "_letters",
        "_levels",
        "_numbers",
        "_starts",
        "_tools",
        "name_lengths",
        "required",
        "totals",
    )

    def __init__(self, references: Sequence[ToolReference], words: Words) -> None:
        numbers: defaultdict[str, int] = defaultdict(count().__next__)
        terms: list[int] = []
        levels = bytearray()
        name_lengths = bytearray()
        self._ends = array("I", [0])
        self.totals = array("I")
        for reference in references:
            found = impacts(reference, words)
            terms += map(numbers.__getitem__, found)
            strengths = bytes(found.values())
            levels += strengths
            name_lengths.append(min(len(strengths.translate(None, _NOT_IN_NAME)), 255))
            self.totals.append(sum(strengths))
            self._ends.append(len(terms))
        hashes = list(map(_hash, numbers))
        order = sorted(range(len(hashes)), key=hashes.__getitem__)
        self._hashes = array("q", [hashes[number] for number in order])
        self._numbers = array(_kind(len(order)), order)
        letters = list(map(letter_of, range(len(numbers))))
        self._letters = "".join(map(letters.__getitem__, terms))
        self._levels = bytes(levels)
        self.name_lengths = bytes(name_lengths)
        self.required = bytes(_required(reference.parameters) for reference in references)
        self._invert(terms)

    def _invert(self, terms: Sequence[int]) -> None:
        """Store the tools of each term, sorted by descending impact."""
        # A tool and its impact in one number that is smaller for a greater impact. It has as few
        # bits as possible, because small numbers are compared faster.
        bits = len(self.totals).bit_length()
        having: list[list[int]] = [[] for _ in self._hashes]
        for tool in range(len(self.totals)):
            start, end = self._ends[tool], self._ends[tool + 1]
            for number, level in zip(terms[start:end], self._levels[start:end], strict=True):
                having[number].append((_LEVELS - level) << bits | tool)
        starts = array("I", [0])
        strongest = []
        for each in having:
            each.sort()
            strongest += each
            starts.append(len(strongest))
        self._starts = starts
        tools = (1 << bits) - 1
        self._tools = array(_kind(len(self.totals)), [code & tools for code in strongest])
        self._impacts = bytes([_LEVELS - (code >> bits) for code in strongest])

    def numbers(self, terms: Iterable[str]) -> dict[str, int]:
        """Return the numbers of those of *terms* that a tool has."""
        hashes = self._hashes
        count = len(hashes)
        found: dict[str, int] = {}
        for term in terms:
            code = _hash(term)
            place = bisect_left(hashes, code)
            if place < count and hashes[place] == code:
                found[term] = self._numbers[place]
        return found

    def frequencies(self, numbers: Mapping[str, int]) -> dict[str, int]:
        """Return the number of tools of each term, given the numbers of the terms."""
        starts = self._starts
        return {term: starts[number + 1] - starts[number] for term, number in numbers.items()}

    def having(self, number: int, most: int) -> tuple[Sequence[int], bytes]:
        """Return up to *most* tools that a term has the greatest impact on, and the impacts."""
        start = self._starts[number]
        end = min(self._starts[number + 1], start + most)
        return self._tools[start:end], self._impacts[start:end]

    def matches(self, tool: int, wanted: Iterable[tuple[str, T]]) -> list[tuple[T, int]]:
        """Return the terms of *wanted* that a tool has, with their impacts.

        Each term of *wanted* comes after its letter.
        """
        start, end = self._ends[tool], self._ends[tool + 1]
        letters, levels = self._letters[start:end], self._levels
        return [
            (term, levels[start + letters.index(letter)])
            for letter, term in wanted
            if letter in letters
        ]


def letter_of(number: int) -> str:
    """Return the character for a term; with more than a million terms, two may share one."""
    return chr(number % _LETTERS)


def _hash(term: str) -> int:
    """Return a 64-bit number that is practically unique for *term*."""
    # Of the encoded text, because the hashes of the strings ag and 条 are equal.
    return hash(term.encode())


def _kind(count: int) -> str:
    """Return the type code of an array of numbers below *count*."""
    return "H" if count <= 1 << 16 else "I"
