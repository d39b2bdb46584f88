"""Which tools fit a query best, by the terms they share with it.

BM25F gives each tool the sum of its terms' impacts, rare terms counting more. On top of that:

* A request often wishes for several things. Each clause of it is scored by itself, and a tool that
  serves one clause well counts beside one that serves a little of everything; once a tool is
  chosen, what it serves counts less for those after it.
* A concept stands for words that mean nearly the same, and counts a third of a word; it counts as
  one where no tool has the word itself.
* It tells for a tool how much of the request it covers, how much of the tool the request speaks of,
  and how much of its name; that the request has one of the values that a parameter allows, or the
  very name. It tells against it how many arguments it cannot do without.

Each term nominates those tools that it has the greatest impact on, and only the best of them are
looked at closely: the time a search takes grows far slower than the catalog.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain, islice

from chatclient.tools.search.catalog import Catalog, Part
from chatclient.tools.search.postings import IN_NAME, IN_VALUES, Postings, letter_of
from chatclient.tools.search.spelling import neighbours
from chatclient.tools.search.text import Words, concepts, hinted, is_concept, tidied

Scored = tuple[float, int]

_CONCEPT = 0.35  # what a concept counts beside a word
_NUMBER = 0.3  # what a number counts: it is an argument, as a rule
_HINT = 0.4  # what the kind of a value counts
_MISSPELT = 0.5  # what a word counts that is nearly one of the request's
_MOST_NEIGHBOURS = 10_000  # words that are looked up for that: those that some twenty could be
_CLAUSE = 0.6  # what the best clause counts beside the whole request
_SERVED = 0.7  # how much of a term is settled by the tool that has most of it
_FRESH = 0.2  # share of a score that counts only for terms that are still open
_IN_TURN = 12  # tools that are chosen one after another; what follows is not read by models
# What a tool gains for being fit in other ways, where 1 is what the best sum of impacts counts.
_COVERED = 1.2  # for all of the request, by the weight of its words
_ALLOWED = 1.5  # for values that its parameters allow being all of the request
_SPOKEN_OF = 1.2  # for all of the tool being in the request, by the impact of its terms
_NAMED = 0.15  # for all of its name being in the request
_NAMED_EXACTLY = 3.0  # for a name of several words being in the request: it is what is meant
_REQUIRED = tuple(0.35 * math.log1p(count) for count in range(256))  # less for that many arguments
_LEAST = 0.01  # a score is positive, so that those of several indexes can be added up
_RARITY = 1.1  # exponent of the inverse document frequency
_CANDIDATES = 14  # tools that are looked at closely, at least ...
_PER_CANDIDATE = 300  # ... and one more for so many tools ...
_MOST_CANDIDATES = 60  # ... up to this
_NOMINATED = 40  # tools that a term nominates, those that it has the greatest impact on ...
_PER_NOMINATED = 100  # ... and one more for so many tools ...
_MOST_NOMINATED = 200  # ... up to this
_STRONG = 0.9  # share of all weights whose terms nominate in any case


_Term = tuple[str, float, bool, Sequence[list[float]]]
"""A term of the query in one part: itself, its weight, whether it is asked for, where it counts:
the rows of scores of its clauses."""


class Ranking:
    """One search in one catalog."""

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
        behind = chain.from_iterable(known[term] for term in terms if term in known)
        # The numbers that the terms have in each part.
        wanted = [*terms, *behind, *self._hints]
        self._numbers = [postings.numbers(wanted) for _, postings in self._parts]
        self._clauses = [self._with_concepts(clause) for clause in clauses]
        self._weigh()

    def _with_concepts(self, clause: Iterable[str]) -> dict[str, float]:
        """Return the terms of a clause and the concepts behind them, with what each counts.

        Where no tool has a word, its concepts stand for it.
        """
        shares = {term: _NUMBER if term.isdigit() else 1.0 for term in clause}
        known = concepts()
        for term in [term for term in shares if term in known]:
            share = _CONCEPT if self._is_known(term) else 1.0
            for concept in known[term]:
                shares[concept] = max(share, shares.get(concept, 0.0))
        return shares

    def _is_known(self, term: str) -> bool:
        """Return whether a tool has *term*, one of those of the query."""
        return any(term in numbers for numbers in self._numbers)

    def _weigh(self) -> None:
        """Find out what each term counts: more, the fewer tools have it."""
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
        # A concept that stands for an unknown word is as good as a word.
        self._asked = {t for t, share in shares.items() if share == 1.0 or not is_concept(t)}
        self._whole = math.fsum(w for term, w in self._weights.items() if term in self._asked)

    def correct(self) -> bool:
        """Add to the clauses what their unknown words could be meant for, and tell if any was."""
        corrected = False
        left = _MOST_NEIGHBOURS
        for clause in self._clauses:
            unknown = [t for t, share in clause.items() if share == 1.0 and not self._is_known(t)]
            near = list(islice(chain.from_iterable(map(neighbours, unknown)), left))
            left -= len(near)
            for (_, postings), numbers in zip(self._parts, self._numbers, strict=True):
                numbers.update(postings.numbers(near))
            meant = [word for word in near if word not in clause and self._is_known(word)]
            clause.update(dict.fromkeys(meant, _MISSPELT))
            corrected = corrected or bool(meant)
        if corrected:
            self._weigh()
        return corrected

    def best(
        self, limit: int, admitted: Iterable[int] | None, unwanted: Collection[str] = ()
    ) -> tuple[list[Scored], int]:
        """Return the *limit* best tools with their scores, and how many fit at all.

        Args:
            limit: How many to return.
            admitted: The numbers of those that may be found, or None for all.
            unwanted: The names of those that are left out, a few as a rule.
        """
        wanted = min(_CANDIDATES + self._size // _PER_CANDIDATE, _MOST_CANDIDATES)
        wanted = max(wanted, 2 * limit)
        sums = self._nominate(self._size if admitted is not None else wanted + len(unwanted))
        if admitted is not None:
            sums = {number: sums[number] for number in sums.keys() & admitted}
        if unwanted:  # looked for among those only that fit: the catalog may be far greater
            sums = {n: s for n, s in sums.items() if self._reference(n).tool_name not in unwanted}
        if not sums:
            return [], 0
        return self._closely(_top(sums, wanted), limit), len(sums)

    def _nominate(self, most: int) -> dict[int, float]:
        """Return those tools that a term has the greatest impact on, *most* of each or more.

        Each comes with the sum of those impacts, as far as the terms have nominated it. Terms that
        count little nominate none once the others have nominated plenty.
        """
        sums: dict[int, float] = {}
        plenty = 2 * most
        strong = _STRONG * sum(self._weights.values())
        most = max(most, min(_NOMINATED + self._size // _PER_NOMINATED, _MOST_NOMINATED))
        for (part, postings), numbers in zip(self._parts, self._numbers, strict=True):
            own: dict[int, float] = {}
            get = own.get
            heard = 0.0
            for term in sorted(numbers, key=self._weights.__getitem__, reverse=True):
                if heard >= strong and len(own) >= plenty + len(part.removed):
                    break
                weight = self._weights[term]
                heard += weight
                tools, impacts = postings.having(numbers[term], most + len(part.removed))
                for tool, impact in zip(tools, impacts, strict=True):
                    own[tool] = get(tool, 0.0) + weight * impact
            for tool in part.removed:
                own.pop(tool, None)
            offset = part.offset
            sums.update({tool + offset: value for tool, value in own.items()} if offset else own)
        return sums

    def _closely(self, chosen: Sequence[int], limit: int) -> list[Scored]:
        """Return the best of *chosen*, which are in the order of their numbers."""
        # A request of one clause is scored as a whole.
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
        """Return what a tool has of each term, and how fit it is beside the sum of that.

        What it has is added to the rows of the terms, at its *place* there.
        """
        gained: dict[str, float] = {}
        covered = allowed = 0.0
        named = spoken_of = 0
        for (text, weight, is_asked, rows), impact in postings.matches(tool, wanted):
            gained[text] = gain = weight * impact
            for row in rows:
                row[place] += gain
            if is_asked:
                covered += weight
                spoken_of += impact
                if impact & IN_NAME:
                    named += 1
                if impact & IN_VALUES:
                    allowed += weight
        merit = (
            (_COVERED * covered + _ALLOWED * allowed) / (self._whole or 1.0)
            + _SPOKEN_OF * spoken_of / postings.totals[tool]
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
        """Return the terms of the query with the letters that they have in one part."""
        found: list[tuple[str, _Term]] = []
        clauses = list(zip(rows, self._clauses, strict=False))  # no rows for a single clause
        for text, number in numbers.items():
            own = [row for row, clause in clauses if text in clause]
            term = text, self._weights[text], text in self._asked, own
            found.append((letter_of(number), term))
        return found


def _top(sums: dict[int, float], wanted: int) -> list[int]:
    """Return the *wanted* tools with the greatest sums in the order of their numbers.

    Of equal ones the first are taken, whatever order they came in.
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
            # At first, all is open.
            value = scores[place] * (_openness(gains[place], wanted) if found else 1.0)
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


def _openness(gains: Mapping[str, float], wanted: Mapping[str, float]) -> float:
    """Return what a score counts after others were chosen, by how much of its terms is open."""
    total = still = 0.0
    for term, gain in gains.items():
        total += gain
        still += gain * wanted[term]
    return 1 - _FRESH + _FRESH * still / total
