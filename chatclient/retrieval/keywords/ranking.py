"""Ranks documents, which are texts or tools, by the terms that they share with a query.

A candidate is a document that is scored in detail. A term contributes its
weight in the query (the inverse document frequency, reduced for concepts and corrections) times its
impact in the document (a small integer, whose lowest bits are flags that hardly change it); the sum
is the BM25F score. In addition:

* A query often contains several requests. Each clause is scored separately, so that a tool that
  matches one clause well can compete with one that matches all of them a little. Terms that a
  result covers count less for the results after it, which makes these more diverse.
* A concept represents words of similar meaning and counts a third of a word; it counts as a word
  if no tool has the word.
* A tool's score rises with the share of the query that it covers, the share of the tool and of its
  name that the query mentions, and if the query contains a value that a parameter allows or the
  exact name. It falls with the number of required arguments.

The first stage retrieves the postings with the greatest impact of each term, and only the best of
their documents become candidates: the duration of a search grows far more slowly than the catalog.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice

from chatclient.retrieval.keywords.inverted_index import (
    IN_NAME,
    IN_VALUES,
    IndexView,
    InvertedIndex,
    term_character,
)
from chatclient.retrieval.keywords.tokenizer import Words, concepts, hinted, is_concept, tidied

Scored = tuple[float, int]

_CONCEPT = 0.35  # weight of a concept, compared to a word
_NUMBER = 0.3  # weight of a number: it is usually an argument
_HINT = 0.4  # weight of a term that a value suggests
_MISSPELT = 0.5  # weight of a word that differs from one of the query by a typo
_MOST_NEIGHBOURS = 10_000  # possible corrections that are looked up: those of about twenty words
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_SHORTEST_CORRECTED = 5  # letters; corrections of shorter words are often unrelated words
_LONGEST_CORRECTED = 30  # letters; longer texts are no words, and have too many corrections
_CLAUSE = 0.6  # weight of the best clause, compared to the complete query
_COVERAGE = 0.7  # share of a term that is covered by the result with its highest term score
_NOVELTY = 0.2  # share of a score that depends on terms that earlier results do not cover
_DIVERSIFIED = 12  # results that are chosen one after another; models rarely read more
# Bonuses of a score, where 1 is the best BM25F score.
_COVERED = 1.2  # if it covers the complete query, by the weight of the words
_ALLOWED = 1.5  # if the query consists of values that its parameters allow
_MENTIONED = 1.2  # if the query contains all of its terms, by their impact
_NAMED = 0.15  # if the query contains all words of its name
_NAMED_EXACTLY = 3.0  # if the query contains its name of several words literally
_REQUIRED_ARGUMENTS = tuple(
    0.35 * math.log1p(count) for count in range(256)
)  # deduction for that many arguments
_LEAST = 0.01  # scores are positive, so that those of several indexes can be added
_RARITY = 1.1  # exponent of the inverse document frequency
_CANDIDATES = 14  # minimum number of candidates, ...
_PER_CANDIDATE = 300  # ... one more for each of so many tools, ...
_MOST_CANDIDATES = 60  # ... up to this number
_POSTINGS = 40  # minimum number of postings that are retrieved for a term, ...
_PER_POSTING = 100  # ... one more for each of so many tools, ...
_MOST_POSTINGS = 200  # ... up to this number
_STRONG = 0.9  # share of all weights whose terms are always looked up


_QueryTerm = tuple[str, float, bool, Sequence[list[float]]]
"""A term of the query: its text, its weight, whether it is in the query itself, and for each clause
with this term the scores of the candidates, to which its term scores are added."""


class Ranking:
    """A search in several indexes.

    Args:
        views: The indexes, with consecutive numbers for their documents.
        size: The number of documents that are searched.
        words: Converts the query to terms.
        query: The query.
        name_of: Returns the name of the document with a number; by default, the number as text.
    """

    def __init__(
        self,
        views: Iterable[IndexView],
        size: int,
        words: Words,
        query: str,
        name_of: Callable[[int], str] = str,
    ) -> None:
        self._indexes = [(view, view.index) for view in views]
        self._size = size
        self._name_of = name_of
        self._query = query = tidied(query)
        clauses = words.clauses(query)
        terms = dict.fromkeys(chain.from_iterable(clauses))
        self._hints = hinted(query, terms)
        concepts_of = concepts()
        related = chain.from_iterable(concepts_of.get(term, ()) for term in terms)
        all_terms = [*terms, *related, *self._hints]
        self._term_ids = [index.term_ids(all_terms) for _, index in self._indexes]
        self._clauses = [self._with_concepts(clause) for clause in clauses]
        self._weigh()

    def _with_concepts(self, clause: Iterable[str]) -> dict[str, float]:
        """Return the terms of a clause and their concepts, with the weight of each.

        If no tool has a word, its concepts replace it.
        """
        shares = {term: _NUMBER if term.isdigit() else 1.0 for term in clause}
        concepts_of = concepts()
        for term in [term for term in shares if term in concepts_of]:
            share = _CONCEPT if self._has_postings(term) else 1.0
            for concept in concepts_of[term]:
                shares[concept] = max(share, shares.get(concept, 0.0))
        return shares

    def _has_postings(self, term: str) -> bool:
        """Return whether a tool has *term* of the query."""
        return any(term in term_ids for term_ids in self._term_ids)

    def _weigh(self) -> None:
        """Compute the weights of the terms: the fewer tools have one, the more it counts."""
        shares: dict[str, float] = {}
        for clause in reversed(self._clauses):
            shares.update(clause)
        for term in self._hints:
            shares.setdefault(term, _HINT)
        frequencies: dict[str, int] = {}
        for (_, index), term_ids in zip(self._indexes, self._term_ids, strict=True):
            for term, count in index.document_frequencies(term_ids).items():
                frequencies[term] = frequencies.get(term, 0) + count
        size = self._size + 0.5
        self._weights = {
            term: shares[term] * math.log(1 + max(0.5, size - count) / (count + 0.5)) ** _RARITY
            for term, count in frequencies.items()
        }
        # A concept that replaces an unknown word counts as a word.
        self._query_terms = {t for t, share in shares.items() if share == 1.0 or not is_concept(t)}
        self._total_weight = math.fsum(
            w for term, w in self._weights.items() if term in self._query_terms
        )

    def correct(self) -> bool:
        """Add corrections of unknown words to the clauses; return whether there were any."""
        corrected = False
        remaining = _MOST_NEIGHBOURS
        for clause in self._clauses:
            unknown = [
                t for t, share in clause.items() if share == 1.0 and not self._has_postings(t)
            ]
            near = list(islice(chain.from_iterable(map(_neighbours, unknown)), remaining))
            remaining -= len(near)
            for (_, index), term_ids in zip(self._indexes, self._term_ids, strict=True):
                term_ids.update(index.term_ids(near))
            corrections = [word for word in near if word not in clause and self._has_postings(word)]
            clause.update(dict.fromkeys(corrections, _MISSPELT))
            corrected = corrected or bool(corrections)
        if corrected:
            self._weigh()
        return corrected

    def best(
        self, limit: int, admitted: Iterable[int] | None, excluded: Collection[str] = ()
    ) -> tuple[list[Scored], int]:
        """Return the *limit* best tools with their scores, and the number of matching tools.

        Args:
            limit: The number of tools to return.
            admitted: The documents that may be found, or None for all.
            excluded: The names of tools to leave out, usually a few.
        """
        count = min(_CANDIDATES + self._size // _PER_CANDIDATE, _MOST_CANDIDATES)
        count = max(count, 2 * limit)
        scores = self._retrieve(self._size if admitted is not None else count + len(excluded))
        if admitted is not None:
            scores = {document: scores[document] for document in scores.keys() & admitted}
        if excluded:  # checked only for matching tools: the catalog may be far larger
            scores = {
                document: score
                for document, score in scores.items()
                if self._name_of(document) not in excluded
            }
        if not scores:
            return [], 0
        return self._rerank(_top(scores, count), limit), len(scores)

    def _retrieve(self, most: int) -> dict[int, float]:
        """Return documents with partial scores, from the first *most* or more postings of terms.

        A partial score is the sum of the term scores of the retrieved postings. Terms of little
        weight are not looked up if the others have found enough documents.
        """
        scores: dict[int, float] = {}
        enough = 2 * most
        strong = _STRONG * sum(self._weights.values())
        most = max(most, min(_POSTINGS + self._size // _PER_POSTING, _MOST_POSTINGS))
        for (view, index), term_ids in zip(self._indexes, self._term_ids, strict=True):
            of_view: dict[int, float] = {}
            get = of_view.get
            used = 0.0
            for term in sorted(term_ids, key=self._weights.__getitem__, reverse=True):
                if used >= strong and len(of_view) >= enough + len(view.removed):
                    break
                weight = self._weights[term]
                used += weight
                postings = index.top_postings(term_ids[term], most + len(view.removed))
                for document, impact in zip(*postings, strict=True):
                    of_view[document] = get(document, 0.0) + weight * impact
            for document in view.removed:
                of_view.pop(document, None)
            offset = view.offset
            scores.update({d + offset: s for d, s in of_view.items()} if offset else of_view)
        return scores

    def _rerank(self, candidates: Sequence[int], limit: int) -> list[Scored]:
        """Return the best of *candidates*, which are sorted."""
        # A query of one clause has no separate scores.
        scored_clauses = len(self._clauses) if len(self._clauses) > 1 else 0
        clause_scores = [[0.0] * len(candidates) for _ in range(scored_clauses)]
        term_scores: list[dict[str, float]] = []
        bonuses: list[float] = []
        for (view, index), term_ids in zip(self._indexes, self._term_ids, strict=True):
            query = self._query_terms_of(term_ids, clause_scores)
            for document in view.among(candidates):
                by_term, bonus = self._score(
                    view, index, document - view.offset, query, len(term_scores)
                )
                term_scores.append(by_term)
                bonuses.append(bonus)
        sums = _relative([sum(by_term.values()) for by_term in term_scores])
        clauses = [row for row in clause_scores if any(row)]
        if len(clauses) < 2:  # noqa: PLR2004
            scores = [(1 + _CLAUSE) * score for score in sums]
        else:
            best = map(max, zip(*map(_relative, clauses), strict=True))
            scores = [score + _CLAUSE * clause for score, clause in zip(sums, best, strict=True)]
        scores = [max(s + bonus, _LEAST) for s, bonus in zip(scores, bonuses, strict=True)]
        return [(score, candidates[i]) for score, i in _diversified(scores, term_scores, limit)]

    def _score(
        self,
        view: IndexView,
        index: InvertedIndex,
        document: int,
        query: Sequence[tuple[str, _QueryTerm]],
        candidate: int,
    ) -> tuple[dict[str, float], float]:
        """Return the term scores of a document and its bonus.

        The term scores are added to the clauses' scores of *candidate*, the document's position
        among the candidates.
        """
        term_scores: dict[str, float] = {}
        covered = allowed = 0.0
        named = mentioned = 0
        for (text, weight, in_query, clause_scores), impact in index.matches(document, query):
            term_scores[text] = score = weight * impact
            for row in clause_scores:
                row[candidate] += score
            if in_query:
                covered += weight
                mentioned += impact  # with its flags, as in `total_impacts`
                if impact & IN_NAME:
                    named += 1
                if impact & IN_VALUES:
                    allowed += weight
        bonus = (
            (_COVERED * covered + _ALLOWED * allowed) / (self._total_weight or 1.0)
            + _MENTIONED * mentioned / index.total_impacts[document]
            - _REQUIRED_ARGUMENTS[index.required[document]]
        )
        if named:
            words = index.name_lengths[document]
            bonus += _NAMED * named / words
            if words > 1 and self._name_of(document + view.offset) in self._query:
                bonus += _NAMED_EXACTLY
        return term_scores, bonus

    def _query_terms_of(
        self, term_ids: Mapping[str, int], clause_scores: Sequence[list[float]]
    ) -> list[tuple[str, _QueryTerm]]:
        """Return the terms of the query that an index has, each after its character there."""
        query: list[tuple[str, _QueryTerm]] = []
        clauses = list(zip(clause_scores, self._clauses, strict=False))  # none for a single clause
        for text, term_id in term_ids.items():
            rows = [row for row, clause in clauses if text in clause]
            term = text, self._weights[text], text in self._query_terms, rows
            query.append((term_character(term_id), term))
        return query


def _top(scores: dict[int, float], count: int) -> list[int]:
    """Return the *count* documents with the greatest scores, sorted by document.

    Of documents with equal scores those with the smallest numbers are taken.
    """
    if len(scores) <= count:
        return sorted(scores)
    least = sorted(scores.values())[-count]
    top = [document for document, score in scores.items() if score >= least]
    if len(top) > count:
        better = [document for document in top if scores[document] > least]
        equal = sorted(document for document in top if scores[document] == least)
        top = better + equal[: count - len(better)]
    return sorted(top)


def _relative(scores: Sequence[float]) -> list[float]:
    """Return *scores* divided by the greatest."""
    top = max(scores)
    return [score / top for score in scores] if top else list(scores)


def _diversified(
    scores: Sequence[float], term_scores: Sequence[dict[str, float]], limit: int
) -> list[tuple[float, int]]:
    """Return the best candidates with their scores, preferring terms not covered by earlier ones.

    Args:
        scores: The score of each candidate.
        term_scores: The term scores of each candidate.
        limit: The number of candidates to return.
    """
    highest: dict[str, float] = {}
    for by_term in term_scores:
        for term, score in by_term.items():
            if score > highest.get(term, 0.0):
                highest[term] = score
    uncovered = dict.fromkeys(highest, 1.0)  # the share of each term
    remaining = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
    results: list[tuple[float, int]] = []
    while remaining and len(results) < min(limit, _DIVERSIFIED):
        best, best_score = remaining[0], -1.0
        for candidate in remaining:
            if scores[candidate] <= best_score:
                break  # no later one can be better
            # Before the first result, no term is covered.
            novelty = _novelty(term_scores[candidate], uncovered) if results else 1.0
            score = scores[candidate] * novelty
            if score > best_score:
                best, best_score = candidate, score
        remaining.remove(best)
        # Scores never rise, so that they match the order of the results.
        results.append((min(best_score, results[-1][0]) if results else best_score, best))
        for term, score in term_scores[best].items():
            uncovered[term] = min(uncovered[term], 1 - _COVERAGE * score / highest[term])
    least = results[-1][0]
    results += [(min(scores[i], least), i) for i in remaining[: limit - len(results)]]
    return results


def _novelty(term_scores: Mapping[str, float], uncovered: Mapping[str, float]) -> float:
    """Return the factor for a candidate's score by the share of its terms that is uncovered."""
    total = new = 0.0
    for term, score in term_scores.items():
        total += score
        new += score * uncovered[term]
    return 1 - _NOVELTY + _NOVELTY * new / total


def _neighbours(word: str) -> Iterator[str]:
    """Yield all texts that differ from *word* by one typo; most are no words."""
    if (
        not _SHORTEST_CORRECTED <= len(word) <= _LONGEST_CORRECTED
        or not word.isascii()
        or not word.isalpha()
    ):
        return
    for position in range(len(word) + 1):
        before, after = word[:position], word[position:]
        if after:
            yield before + after[1:]
        if len(after) > 1:
            yield before + after[1] + after[0] + after[2:]
        for letter in _LETTERS:
            if after:
                yield before + letter + after[1:]
            yield before + letter + after
