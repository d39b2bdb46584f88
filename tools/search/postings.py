"""What a keyword index holds of some tools: for each term, which of them have it and how much.

The impact of a term on a tool depends on the tool alone: field lengths are compared with fixed
typical ones, which on real catalogs serve as well as their own averages. So tools that were indexed
at different times can be searched together. It is held in one byte, whose lowest bit says that the
term is in the name.
"""

from array import array
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from chatclient.tools.search.index import ToolReference
from chatclient.tools.search.text import Words, concepts, parameter_texts


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


# Tuned on half of the development queries over 16,000 tools, checked on the other half.
_NAME = _Field(1.7, 1.0, 4.0)
_SUMMARY = _Field(1.0, 0.75, 11.5)
_PARAMETER_NAMES = _Field(0.46, 1.0, 4.3)
_PARAMETER_DESCRIPTIONS = _Field(0.30, 0.45, 14.0)
_VALUES = _Field(0.17, 1.0, 1.3)
_SATURATION = 1.15
_LEVELS = 255
_SEARCHED = 8  # entries per tool asked for, from which on searching is cheaper than reading


def impacts(reference: ToolReference, words: Words) -> dict[str, int]:
    """Return the impact of each term and concept on a tool: 1 to 255, odd for those in the name."""
    names, descriptions, values = parameter_texts(reference.parameters)
    in_name = words.terms(reference.tool_name)
    occurrences: dict[str, float] = {}
    for spec, terms in (
        (_NAME, in_name),
        (_SUMMARY, words.terms(reference.summary)),
        (_PARAMETER_NAMES, words.terms(" ".join(names))),
        (_PARAMETER_DESCRIPTIONS, words.terms(" ".join(descriptions))),
        (_VALUES, words.terms(" ".join(values))),
    ):
        if terms:
            worth = spec.worth(len(terms))
            for term in terms:
                occurrences[term] = occurrences.get(term, 0.0) + worth
    levels = {
        term: int(_LEVELS * count / (_SATURATION + count)) & ~1 or 2
        for term, count in occurrences.items()
    }
    levels.update(_concept_impacts(levels))
    for term in in_name:
        levels[term] |= 1
    return levels


def _concept_impacts(levels: Mapping[str, int]) -> dict[str, int]:
    """Return for each concept the impact of its strongest term."""
    found: dict[str, int] = {}
    known = concepts()
    for term in levels.keys() & known.keys():
        level = levels[term]
        for concept in known[term]:
            if found.get(concept, 0) < level:
                found[concept] = level
    return found


class Postings:
    """The terms of some tools; never changes."""

    __slots__ = ("_impacts", "_name_lengths", "_peaks", "_starts", "_terms", "_tools")

    def __init__(self, references: Sequence[ToolReference], words: Words) -> None:
        tools: dict[str, list[int]] = {}
        strengths: dict[str, bytearray] = {}
        name_lengths = bytearray()
        for number, reference in enumerate(references):
            name_length = 0
            for term, level in impacts(reference, words).items():
                if term not in tools:
                    tools[term], strengths[term] = [], bytearray()
                tools[term].append(number)
                strengths[term].append(level)
                name_length += level & 1
            name_lengths.append(min(name_length, 255))
        kind = "H" if len(references) <= 1 << 16 else "I"
        self._terms = {term: number for number, term in enumerate(tools)}
        self._starts = array("I", [0])
        self._tools = array(kind)
        for numbers in tools.values():
            self._tools.extend(numbers)
            self._starts.append(len(self._tools))
        self._impacts = b"".join(strengths.values())
        self._peaks = bytes(map(max, strengths.values()))
        self._name_lengths = bytes(name_lengths)

    def frequency(self, term: str) -> int:
        """Return how many tools have *term*."""
        number = self._terms.get(term)
        return 0 if number is None else self._starts[number + 1] - self._starts[number]

    def having(self, term: str) -> tuple[Sequence[int], bytes]:
        """Return the tools that have *term*, and its impact on each."""
        number = self._terms.get(term)
        if number is None:
            return (), b""
        start, end = self._starts[number], self._starts[number + 1]
        return self._tools[start:end], self._impacts[start:end]

    def hits(self, term: str, places: Mapping[int, int]) -> list[tuple[int, int]]:
        """Return the places of those tools that have *term*, each with its impact.

        Args:
            term: The term.
            places: The place of each tool, in the order of the tools.
        """
        number = self._terms.get(term)
        if number is None:
            return []
        start, end = self._starts[number], self._starts[number + 1]
        if end - start < _SEARCHED * len(places):
            listed = zip(self._tools[start:end], self._impacts[start:end], strict=True)
            return [(places[tool], impact) for tool, impact in listed if tool in places]
        found = []
        for tool, place in places.items():
            start = bisect_left(self._tools, tool, start, end)
            if start < end and self._tools[start] == tool:
                found.append((place, self._impacts[start]))
        return found

    def name_length(self, tool: int) -> int:
        """Return how many different terms the name of a tool has."""
        return self._name_lengths[tool]
