"""Which tools fit a query best, by the terms they share with it.

BM25F gives each tool the sum of its terms' impacts, rare terms counting more. On top of that:

* A request often wishes for several things. Each clause of it is scored by itself, and a tool that
  serves one clause well counts beside one that serves a little of everything; once a tool is
  chosen, what it serves counts less for those after it.
* A concept stands for words that mean nearly the same, and counts a third of a word.
* A tool whose name is covered by the query gains.

Rare terms nominate the candidates, the more frequent ones only help to rank them: the time a search
takes grows far slower than the catalog.
"""

import math
from collections.abc import Iterable, Sequence
from heapq import nlargest
from operator import itemgetter

from chatclient.tools.search.catalog import Catalog, Part
from chatclient.tools.search.postings import Postings
from chatclient.tools.search.spelling import neighbours
from chatclient.tools.search.text import Words, concepts, hinted

Scored = tuple[float, int]

_CONCEPT = 0.35  # what a concept counts beside a word
_HINT = 0.4  # what the kind of a value counts
_MISSPELT = 0.5  # what a word counts that is nearly one of the request's
_CLAUSE = 0.6  # what the best clause counts beside the whole request
_SERVED = 0.7  # how much of a term is settled by the tool that has most of it
_FRESH = 0.2  # share of a score that counts only for terms that are still open
_IN_TURN = 12  # tools that are chosen one after another; what follows is not read by models
_COVERAGE = 0.15  # what a name gains that is all in the query
_RARITY = 1.1  # exponent of the inverse document frequency
_CANDIDATES = 20  # tools that are looked at closely, at least ...
_PER_CANDIDATE = 150  # ... and one more for so many tools ...
_MOST_CANDIDATES = 120  # ... up to this
_ENOUGH = 20  # times as many nominated tools as are looked at are enough ...
_MINOR = 0.6  # ... for terms that count less than this beside the most telling one


class Ranking:
    """One search in one catalog."""

    def __init__(
        self, catalog: Catalog[Postings], words: Words, query: str, *, misspelt: bool = False
    ) -> None:
        self._parts = [
            (part, part.segment.payload) for part in catalog.parts if part.segment.payload
        ]
        self._size = catalog.size
        self._clauses = [_with_concepts(clause) for clause in words.clauses(query)]
        if misspelt:
            for clause in self._clauses:
                self._correct(clause)
        self._weights: dict[str, float] = {}
        for clause in self._clauses:
            for term, share in clause.items():
                self._weigh(term, share)
        for term in hinted(query):
            self._weigh(term, _HINT)

    def _correct(self, clause: dict[str, float]) -> None:
        """Add to a clause what its unknown words could be meant for."""
        unknown = [t for t, share in clause.items() if share == 1.0 and not self._frequency(t)]
        for term in unknown:
            for neighbour in neighbours(term):
                if neighbour not in clause and self._frequency(neighbour):
                    clause[neighbour] = _MISSPELT

    def _frequency(self, term: str) -> int:
        return sum(postings.frequency(term) for _, postings in self._parts)

    def _weigh(self, term: str, share: float) -> None:
        if term not in self._weights:
            found = self._frequency(term)
            if found:
                rarity = math.log(1 + max(0.5, self._size - found + 0.5) / (found + 0.5))
                self._weights[term] = share * rarity**_RARITY

    def best(self, limit: int, admitted: Iterable[int] | None) -> tuple[list[Scored], int]:
        """Return the *limit* best tools with their scores, and how many fit at all."""
        wanted = min(_CANDIDATES + self._size // _PER_CANDIDATE, _MOST_CANDIDATES)
        wanted = max(wanted, 2 * limit)
        sums = self._nominate(_ENOUGH * wanted if admitted is None else self._size)
        for part, _ in self._parts:
            for number in part.removed:
                sums.pop(part.offset + number, None)
        if admitted is not None:
            sums = {number: sums[number] for number in sums.keys() & admitted}
        if not sums:
            return [], 0
        return self._closely(_top(sums, wanted), limit), len(sums)

    def _nominate(self, enough: int) -> dict[int, float]:
        """Return the tools that have terms of the query, each with the sum that they come to.

        Once there are *enough*, terms that count little nominate no more.
        """
        sums: dict[int, float] = {}
        ordered = sorted(self._weights.items(), key=itemgetter(1), reverse=True)
        for term, weight in ordered:
            if len(sums) >= enough and weight < _MINOR * ordered[0][1]:
                break
            for part, postings in self._parts:
                offset = part.offset
                tools, impacts = postings.having(term)
                if not sums and not offset:
                    sums = dict(zip(tools, map(weight.__mul__, impacts), strict=True))
                    continue
                get = sums.get
                for tool, impact in zip(tools, impacts, strict=True):
                    number = tool + offset
                    sums[number] = get(number, 0.0) + weight * impact
        return sums

    def _closely(self, chosen: Sequence[int], limit: int) -> list[Scored]:
        """Return the best of *chosen*, which are in the order of their numbers."""
        whole = [0.0] * len(chosen)
        gains: list[dict[str, float]] = [{} for _ in chosen]
        named = [0] * len(chosen)
        # A request of one clause is scored as a whole.
        several = self._clauses if len(self._clauses) > 1 else ()
        clauses = [[0.0] * len(chosen) for _ in several]
        for part, postings in self._parts:
            places = self._places(part, chosen)
            for term, weight in self._weights.items():
                within = [row for row, terms in zip(clauses, several, strict=True) if term in terms]
                for place, impact in postings.hits(term, places):
                    gain = weight * impact
                    whole[place] += gain
                    gains[place][term] = gain
                    named[place] += impact & 1
                    for row in within:
                        row[place] += gain
        boosts = [
            1 + _COVERAGE * hits / (self._name_length(number) or 1) if hits else 1.0
            for hits, number in zip(named, chosen, strict=True)
        ]
        scores = _with_clauses(_relative(whole), [row for row in clauses if any(row)])
        boosted = [score * boost for score, boost in zip(scores, boosts, strict=True)]
        return [(score, chosen[place]) for score, place in _in_turn(boosted, gains, limit)]

    @staticmethod
    def _places(part: Part[Postings], chosen: Sequence[int]) -> dict[int, int]:
        """Return the tools of one part among *chosen*, by their numbers within it."""
        end = part.offset + len(part.segment.references)
        return {n - part.offset: i for i, n in enumerate(chosen) if part.offset <= n < end}

    def _name_length(self, number: int) -> int:
        for part, postings in reversed(self._parts):
            if number >= part.offset:
                return postings.name_length(number - part.offset)
        raise IndexError(number)


def _top(sums: dict[int, float], wanted: int) -> list[int]:
    """Return the *wanted* tools with the greatest sums in the order of their numbers.

    Of equal ones the first are taken, whatever order they came in.
    """
    if len(sums) <= wanted:
        return sorted(sums)
    least = nlargest(wanted, sums.values())[-1]
    top = [number for number, value in sums.items() if value > least]
    last = sorted(number for number, value in sums.items() if value == least)
    return sorted(top + last[: wanted - len(top)])


def _with_concepts(clause: Iterable[str]) -> dict[str, float]:
    """Return the terms of a clause and the concepts behind them, with what each counts."""
    shares = dict.fromkeys(clause, 1.0)
    known = concepts()
    for term in list(shares):
        for concept in known.get(term, ()):
            shares.setdefault(concept, _CONCEPT)
    return shares


def _relative(row: Sequence[float]) -> list[float]:
    """Return *row* with its greatest value as 1."""
    top = max(row)
    return [value / top for value in row] if top else list(row)


def _with_clauses(whole: Sequence[float], clauses: Sequence[Sequence[float]]) -> list[float]:
    """Return the scores for the whole request with those for the best clause on top."""
    if len(clauses) < 2:  # noqa: PLR2004
        return [(1 + _CLAUSE) * value for value in whole]
    best = map(max, zip(*map(_relative, clauses), strict=True))
    return [value + _CLAUSE * clause for value, clause in zip(whole, best, strict=True)]


def _in_turn(
    scores: Sequence[float], gains: Sequence[dict[str, float]], limit: int
) -> list[tuple[float, int]]:
    """Return the best candidates one after another, each for what those before it leave open.

    Args:
        scores: What each candidate has.
        gains: What each has of which term.
        limit: How many to return.
    """
    peaks: dict[str, float] = {}
    for each in gains:
        for term, gain in each.items():
            if gain > peaks.get(term, 0.0):
                peaks[term] = gain
    wanted = dict.fromkeys(peaks, 1.0)
    left = sorted(range(len(scores)), key=lambda place: (-scores[place], place))
    found: list[tuple[float, int]] = []
    while left and len(found) < min(limit, _IN_TURN):
        best, score = left[0], -1.0
        for place in left:
            if scores[place] <= score:
                break  # nothing that follows can be better
            if not found:  # all is open yet
                value = scores[place]
            else:
                open_ = sum(gain * wanted[term] for term, gain in gains[place].items())
                total = sum(gains[place].values()) or 1.0
                value = scores[place] * (1 - _FRESH + _FRESH * open_ / total)
            if value > score:
                best, score = place, value
        left.remove(best)
        # Scores only fall, so that they tell the order of the results.
        found.append((min(score, found[-1][0]) if found else score, best))
        for term, gain in gains[best].items():
            wanted[term] = min(wanted[term], 1 - _SERVED * gain / peaks[term])
    least = found[-1][0]
    found += [(min(scores[place], least), place) for place in left[: limit - len(found)]]
    return found
