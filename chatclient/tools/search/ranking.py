"""Ranks tools by the terms that they share with a query.

BM25F scores each tool with the sum of its terms' impacts, where rare terms count more. In addition:

* A query often contains several requests. Each clause is scored separately, so that a tool that
  matches one clause well can compete with one that matches all of them a little. Terms that a
  chosen tool matches count less for the tools after it.
* A concept represents words of similar meaning and counts a third of a word; it counts as a word
  if no tool has the word.
* A tool's score rises with the share of the query that it covers, the share of the tool and of its
  name that the query mentions, and if the query contains a value that a parameter allows or the
  exact name. It falls with the number of required arguments.

Each term nominates the tools that it has the greatest impact on, and only the best of them are
scored in detail: the duration of a search grows far more slowly than the catalog.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain, islice

from chatclient.tools.search.inverted_index import IN_NAME, IN_VALUES, Postings, letter_of
from chatclient.tools.search.segments import Catalog, Part
from chatclient.tools.search.tokenizer import Words, concepts, hinted, is_concept, tidied
from chatclient.tools.search.typos import neighbours

Scored = tuple[float, int]

_CONCEPT = 0.35  # weight of a concept, compared to a word
_NUMBER = 0.3  # weight of a number: it is usually an argument
_HINT = 0.4  # weight of a term that a value suggests
_MISSPELT = 0.5  # weight of a word that differs from one of the query by a typo
_MOST_NEIGHBOURS = (
    10_000  # words that are looked up for that: the corrections of about twenty words
)
_CLAUSE = 0.6  # weight of the best clause, compared to the complete query
_SERVED = 0.7  # share of a term that the tool with the greatest impact satisfies
_FRESH = 0.2  # share of a score that depends on terms that are not satisfied
_IN_TURN = 12  # tools that are chosen one after another; models rarely read more
# Other components of a score, where 1 is the best sum of impacts.
_COVERED = 1.2  # if it covers the complete query, by the weight of the words
_ALLOWED = 1.5  # if the query consists of values that its parameters allow
_MENTIONED = 1.2  # if the query contains all of its terms, by their impact
_NAMED = 0.15  # if the query contains all words of its name
_NAMED_EXACTLY = 3.0  # if the query contains its name of several words literally
_REQUIRED = tuple(
    0.35 * math.log1p(count) for count in range(256)
)  # deduction for that many arguments
_LEAST = 0.01  # scores are positive, so that those of several indexes can be added
_RARITY = 1.1  # exponent of the inverse document frequency
_CANDIDATES = 14  # minimum number of tools that are scored in detail, ...
_PER_CANDIDATE = 300  # ... one more for each of so many tools, ...
_MOST_CANDIDATES = 60  # ... up to this number
_NOMINATED = 40  # minimum number of tools that a term nominates, ...
_PER_NOMINATED = 100  # ... one more for each of so many tools, ...
_MOST_NOMINATED = 200  # ... up to this number
_STRONG = 0.9  # share of all weights whose terms always nominate


_Term = tuple[str, float, bool, Sequence[list[float]]]
"""A term of the query in one part: its text, its weight, whether it is in the query itself, and the
rows of scores of its clauses."""


class Ranking:
    """A search in a catalog."""

    def __init__(self, catalog: Catalog[Postings], words: Words, query: str) -> None:
        self._parts = [
            (part, part.segment.payload) for part in catalog.parts if part.segment.payload
        ]
        self._size = catalog.size
        self._reference = catalog.reference
        self._query = query = tidied(query)
        clauses = words.clauses(query)
        terms = dict.fromkeys(chain.from_iterable(clauses))
        self._hints = hinted(query, terms)
        known = concepts()
        related = chain.from_iterable(known[term] for term in terms if term in known)
        # The numbers of the terms in each part.
        wanted = [*terms, *related, *self._hints]
        self._numbers = [postings.numbers(wanted) for _, postings in self._parts]
        self._clauses = [self._with_concepts(clause) for clause in clauses]
        self._weigh()

    def _with_concepts(self, clause: Iterable[str]) -> dict[str, float]:
        """Return the terms of a clause and their concepts, with the weight of each.

        If no tool has a word, its concepts replace it.
        """
        shares = {term: _NUMBER if term.isdigit() else 1.0 for term in clause}
        known = concepts()
        for term in [term for term in shares if term in known]:
            share = _CONCEPT if self._is_known(term) else 1.0
            for concept in known[term]:
                shares[concept] = max(share, shares.get(concept, 0.0))
        return shares

    def _is_known(self, term: str) -> bool:
        """Return whether a tool has *term* of the query."""
        return any(term in numbers for numbers in self._numbers)

    def _weigh(self) -> None:
        """Compute the weights of the terms: the fewer tools have one, the more it counts."""
        shares: dict[str, float] = {}
        for clause in reversed(self._clauses):
            shares.update(clause)
        for term in self._hints:
            shares.setdefault(term, _HINT)
        having: dict[str, int] = {}
        for (_, postings), numbers in zip(self._parts, self._numbers, strict=True):
            for term, count in postings.frequencies(numbers).items():
                having[term] = having.get(term, 0) + count
        size = self._size + 0.5
        self._weights = {
            term: shares[term] * math.log(1 + max(0.5, size - count) / (count + 0.5)) ** _RARITY
            for term, count in having.items()
        }
        # A concept that replaces an unknown word counts as a word.
        self._query_terms = {t for t, share in shares.items() if share == 1.0 or not is_concept(t)}
        self._total_weight = math.fsum(
            w for term, w in self._weights.items() if term in self._query_terms
        )

    def correct(self) -> bool:
        """Add corrections of unknown words to the clauses; return whether there were any."""
        corrected = False
        left = _MOST_NEIGHBOURS
        for clause in self._clauses:
            unknown = [t for t, share in clause.items() if share == 1.0 and not self._is_known(t)]
            near = list(islice(chain.from_iterable(map(neighbours, unknown)), left))
            left -= len(near)
            for (_, postings), numbers in zip(self._parts, self._numbers, strict=True):
                numbers.update(postings.numbers(near))
            corrections = [word for word in near if word not in clause and self._is_known(word)]
            clause.update(dict.fromkeys(corrections, _MISSPELT))
            corrected = corrected or bool(corrections)
        if corrected:
            self._weigh()
        return corrected

    def best(
        self, limit: int, admitted: Iterable[int] | None, unwanted: Collection[str] = ()
    ) -> tuple[list[Scored], int]:
        """Return the *limit* best tools with their scores, and the number of matching tools.

        Args:
            limit: The number of tools to return.
            admitted: The numbers of the tools that may be found, or None for all.
            unwanted: The names of tools to leave out, usually a few.
        """
        wanted = min(_CANDIDATES + self._size // _PER_CANDIDATE, _MOST_CANDIDATES)
        wanted = max(wanted, 2 * limit)
        sums = self._nominate(self._size if admitted is not None else wanted + len(unwanted))
        if admitted is not None:
            sums = {number: sums[number] for number in sums.keys() & admitted}
        if unwanted:  # checked only for matching tools: the catalog may be far larger
            sums = {n: s for n, s in sums.items() if self._reference(n).tool_name not in unwanted}
        if not sums:
            return [], 0
        return self._scored(_top(sums, wanted), limit), len(sums)

    def _nominate(self, most: int) -> dict[int, float]:
        """Return the tools that the terms have the greatest impact on, *most* or more of each term.

        Each has the sum of the impacts of the terms that nominated it. Terms of little weight
        nominate none if the others have nominated enough.
        """
        sums: dict[int, float] = {}
        enough = 2 * most
        strong = _STRONG * sum(self._weights.values())
        most = max(most, min(_NOMINATED + self._size // _PER_NOMINATED, _MOST_NOMINATED))
        for (part, postings), numbers in zip(self._parts, self._numbers, strict=True):
            own: dict[int, float] = {}
            get = own.get
            used = 0.0
            for term in sorted(numbers, key=self._weights.__getitem__, reverse=True):
                if used >= strong and len(own) >= enough + len(part.removed):
                    break
                weight = self._weights[term]
                used += weight
                tools, impacts = postings.having(numbers[term], most + len(part.removed))
                for tool, impact in zip(tools, impacts, strict=True):
                    own[tool] = get(tool, 0.0) + weight * impact
            for tool in part.removed:
                own.pop(tool, None)
            offset = part.offset
            sums.update({tool + offset: value for tool, value in own.items()} if offset else own)
        return sums

    def _scored(self, chosen: Sequence[int], limit: int) -> list[Scored]:
        """Return the best of *chosen*, which are sorted by number."""
        # A query of one clause has no separate scores.
        several = len(self._clauses) if len(self._clauses) > 1 else 0
        rows = [[0.0] * len(chosen) for _ in range(several)]
        gains: list[dict[str, float]] = []
        merits: list[float] = []
        for (part, postings), numbers in zip(self._parts, self._numbers, strict=True):
            wanted = self._wanted(numbers, rows)
            for number in part.among(chosen):
                gained, merit = self._fit(part, postings, number - part.offset, wanted, len(gains))
                gains.append(gained)
                merits.append(merit)
        sums = _relative([sum(gained.values()) for gained in gains])
        scores = _with_clauses(sums, [row for row in rows if any(row)])
        fair = [max(s + merit, _LEAST) for s, merit in zip(scores, merits, strict=True)]
        return [(score, chosen[place]) for score, place in _in_turn(fair, gains, limit)]

    def _fit(
        self,
        part: Part[Postings],
        postings: Postings,
        tool: int,
        wanted: Sequence[tuple[str, _Term]],
        place: int,
    ) -> tuple[dict[str, float], float]:
        """Return the gain of a tool for each term, and the other components of its score.

        The gains are added to the rows of the terms at *place*.
        """
        gained: dict[str, float] = {}
        covered = allowed = 0.0
        named = mentioned = 0
        for (text, weight, in_query, rows), impact in postings.matches(tool, wanted):
            gained[text] = gain = weight * impact
            for row in rows:
                row[place] += gain
            if in_query:
                covered += weight
                mentioned += impact
                if impact & IN_NAME:
                    named += 1
                if impact & IN_VALUES:
                    allowed += weight
        merit = (
            (_COVERED * covered + _ALLOWED * allowed) / (self._total_weight or 1.0)
            + _MENTIONED * mentioned / postings.totals[tool]
            - _REQUIRED[postings.required[tool]]
        )
        if named:
            words = postings.name_lengths[tool]
            merit += _NAMED * named / words
            if words > 1 and part.segment.references[tool].tool_name in self._query:
                merit += _NAMED_EXACTLY
        return gained, merit

    def _wanted(
        self, numbers: Mapping[str, int], rows: Sequence[list[float]]
    ) -> list[tuple[str, _Term]]:
        """Return the terms of the query with their letters in one part."""
        found: list[tuple[str, _Term]] = []
        clauses = list(zip(rows, self._clauses, strict=False))  # no rows for a single clause
        for text, number in numbers.items():
            own = [row for row, clause in clauses if text in clause]
            term = text, self._weights[text], text in self._query_terms, own
            found.append((letter_of(number), term))
        return found


def _top(sums: dict[int, float], wanted: int) -> list[int]:
    """Return the *wanted* tools with the greatest sums, sorted by number.

    Of tools with equal sums those with the smallest numbers are taken.
    """
    if len(sums) <= wanted:
        return sorted(sums)
    least = sorted(sums.values())[-wanted]
    top = [number for number, value in sums.items() if value >= least]
    if len(top) > wanted:
        better = [number for number in top if sums[number] > least]
        equal = sorted(number for number in top if sums[number] == least)
        top = better + equal[: wanted - len(better)]
    return sorted(top)


def _relative(row: Sequence[float]) -> list[float]:
    """Return *row* divided by its greatest value."""
    top = max(row)
    return [value / top for value in row] if top else list(row)


def _with_clauses(scores: Sequence[float], clauses: Sequence[Sequence[float]]) -> list[float]:
    """Return the scores for the complete query plus those for the best clause."""
    if len(clauses) < 2:  # noqa: PLR2004
        return [(1 + _CLAUSE) * value for value in scores]
    best = map(max, zip(*map(_relative, clauses), strict=True))
    return [value + _CLAUSE * clause for value, clause in zip(scores, best, strict=True)]


def _in_turn(
    scores: Sequence[float], gains: Sequence[dict[str, float]], limit: int
) -> list[tuple[float, int]]:
    """Return the best candidates one after another, by the terms that the previous ones leave.

    Args:
        scores: The score of each candidate.
        gains: The gains of each candidate by term.
        limit: The number of candidates to return.
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
                break  # no later one can be better
            # For the first candidate, no term is satisfied.
            value = scores[place] * (_openness(gains[place], wanted) if found else 1.0)
            if value > score:
                best, score = place, value
        left.remove(best)
        # Scores never rise, so that they match the order of the results.
        found.append((min(score, found[-1][0]) if found else score, best))
        for term, gain in gains[best].items():
            wanted[term] = min(wanted[term], 1 - _SERVED * gain / peaks[term])
    least = found[-1][0]
    found += [(min(scores[place], least), place) for place in left[: limit - len(found)]]
    return found


def _openness(gains: Mapping[str, float], wanted: Mapping[str, float]) -> float:
    """Return the factor for a score after others were chosen: the share of unsatisfied terms."""
    total = still = 0.0
    for term, gain in gains.items():
        total += gain
        still += gain * wanted[term]
    return 1 - _FRESH + _FRESH * still / total
