"""What a keyword index holds of some tools: which of them have a term, which terms each has.

The impact of a term on a tool depends on the tool alone: field lengths are compared with fixed
typical ones, which on real catalogs serve as well as their own averages. So tools that were indexed
at different times can be searched together. It is held in one byte, the two lowest bits of which
say whether the term is in the name and whether it is in a value that a parameter allows.

All is there twice: by term, to find tools, and by tool, to look at those closely. Of a term only a
hash is kept: the words themselves would take twice the memory of all the rest. The terms of a tool
are a text with one character for each, since nothing is searched faster.
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
from chatclient.tools.search.text import Words, concepts, parameter_texts

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Field:
    """How much a field counts, and how much of that it loses by being long."""

    weight: float
    length_penalty: float
    typical_length: float

    def worth(self, length: int) -> float:
        """Return what one occurrence of a term counts in a field of *length* terms."""
        penalty = self.length_penalty
        return self.weight / (1 - penalty + penalty * length / self.typical_length)


# Chosen over 16,000 tools and 3,000 requests, for what helps both of two random halves of these.
_NAME = _Field(1.7, 1.0, 4.0)
_SUMMARY = _Field(0.6, 0.45, 11.5)
_PARAMETER_NAMES = _Field(0.46, 0.6, 4.3)
_PARAMETER_DESCRIPTIONS = _Field(0.30, 0.27, 14.0)
_VALUES = _Field(0.17, 1.0, 1.3)
_SATURATION = 0.8
_LEVELS = 255

IN_NAME = 1
"""The bit of an impact that says that the term is in the name of the tool."""
IN_VALUES = 2
"""The bit of an impact that says that the term is in a value that a parameter allows."""
_FLAGS = IN_NAME | IN_VALUES
_NOT_IN_NAME = bytes(level for level in range(256) if not level & IN_NAME)
_LETTERS = sys.maxunicode + 1  # what `chr` knows


def impacts(reference: ToolReference, words: Words) -> dict[str, int]:
    """Return the impact of each term and concept on a tool: up to 255, its flags included."""
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
    """Return how many arguments a tool cannot do without."""
    required = schema.get("required")
    return min(len(required), 255) if isinstance(required, list) else 0


class Postings:
    """The terms of some tools; never changes.

    Attributes:
        name_lengths: How many different terms the name of each tool has.
        required: How many arguments each tool cannot do without.
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
        """Note which tools have each term, those that it has the greatest impact on first."""
        # A tool and an impact in one number, which is less for a greater impact. Small numbers are
        # compared faster, so it has no more bits than it needs.
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
        """Return the numbers that stand here for those of *terms* that a tool has."""
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
        """Return how many tools have each term, which come with their numbers."""
        starts = self._starts
        return {term: starts[number + 1] - starts[number] for term, number in numbers.items()}

    def having(self, number: int, most: int) -> tuple[Sequence[int], bytes]:
        """Return the *most* tools that a term has the greatest impact on, and those impacts."""
        start = self._starts[number]
        end = min(self._starts[number + 1], start + most)
        return self._tools[start:end], self._impacts[start:end]

    def matches(self, tool: int, wanted: Iterable[tuple[str, T]]) -> list[tuple[T, int]]:
        """Return what comes with the letter of any term that a tool has, and that term's impact."""
        start, end = self._ends[tool], self._ends[tool + 1]
        letters, levels = self._letters[start:end], self._levels
        return [
            (term, levels[start + letters.index(letter)])
            for letter, term in wanted
            if letter in letters
        ]


def letter_of(number: int) -> str:
    """Return the character that stands for a term; beyond a million terms, two may share it."""
    return chr(number % _LETTERS)


def _hash(term: str) -> int:
    """Return a number of 64 bits that, as good as certainly, no other term has."""
    # Not that of the text itself, which is the same for ag and 条: these are the same bytes.
    return hash(term.encode())


def _kind(count: int) -> str:
    """Return the type code of an array of numbers below *count*."""
    return "H" if count <= 1 << 16 else "I"
