"""Splits text into the terms that are indexed and searched."""

import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache, partial
from itertools import chain
from typing import TypeVar

from chatclient._internal.text import normalized
from chatclient.retrieval.keywords.stemming import stem
from chatclient.retrieval.keywords.synonyms import CONCEPTS, STOP_WORDS

_T = TypeVar("_T")

_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)?")
_PLAIN_WORD = re.compile(r"[A-Za-z0-9]+(?:'[A-Za-z0-9]+)?")  # the same where all is ASCII
_BETWEEN = bytes(
    code if chr(code).isascii() and (chr(code).isalnum() or chr(code) == "'") else ord(" ")
    for code in range(256)
)
"""Translates the bytes of an ASCII text: separators of words become blanks."""
# An identifier's words: `getHTTPCode2` is get, http, code, 2.
_PART = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+")
# Beyond ASCII, only letters and digits are distinguished, not upper and lower case.
_PLAIN_PART = re.compile(r"[^\W\d_]+|\d+")
# Scripts without spaces between words, or with particles joined to words: Thai, Lao, Burmese,
# Khmer, Japanese, Chinese, Korean. Pairs of neighbouring characters are used instead of words.
_UNSPACED = re.compile(
    r"([\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3"
    r"\uf900-\ufaff\U00020000-\U0003ffff]+)"
)
_HAN = re.compile(r"[\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
_ACCENTS = re.compile(r"[\u0300-\u036f]")
# Letters that are no letter with an accent, and how they are written without them.
_WRITTEN = str.maketrans({"ß": "ss", "ẞ": "SS", "æ": "ae", "Æ": "AE", "œ": "oe", "Œ": "OE"})
_WRITTEN |= {ord(each): plain for each, plain in zip("øØłŁđĐı", "oOlLdDi", strict=True)}
# The end of a clause: punctuation, or a word that introduces another clause. A run of punctuation
# is matched only from its beginning, or a long one would take quadratic time. For speed, all
# alternatives begin with one set of characters, and both cases of a letter are written out.
_CLAUSE = re.compile(
    r"[.;?!\n,\s](?:(?<=[.;?!\n])(?<![.;?!\n][.;?!\n])[.;?!\n]*(?:\s|$)"
    r"|(?:(?<=,)\s+|(?<=\s)\s*)(?:[Aa](?:[Nn][Dd]|[Ll][Ss][Oo])|[Tt][Hh][Ee][Nn])\s+)"
)
_BLANKS = re.compile(r"(\s\s)\s+")
_LONGEST = 4_000  # characters of a query that are read; a longer text is a document
_MOST_CLAUSES = 12  # of a query; the rest of a longer one counts as one clause

_MONTHS = "January February March April June July August September October November December"
_DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday today tomorrow yesterday weekend"
_DATES = frozenset(stem(word.lower()) for word in f"{_MONTHS} {_DAYS}".split())
_BEFORE_SIGN = 10  # characters: the maximum distance from the start of a value to its sign
# Values that suggest a kind of argument: a sign that is searched first, because most queries have
# none, then the pattern of the value, and the terms of the arguments.
_VALUES = tuple(
    (
        re.compile(sign),
        tuple((re.compile(look), tuple(map(stem, words))) for look, *words in looks),
    )
    for sign, *looks in (
        (
            r"\d",
            (r"\b(?:\d{4}-\d\d-\d\d|\d{1,2}/\d{1,2}/\d{2,4})\b", "date"),
            (r"\b(?i:may)\s+\d|\d\s+May\b", "date"),
            (r"\b\d{1,2}:\d\d\b", "time"),
            (r"\b\d{1,2}\s*(?i:[ap]\.?m)\b", "time"),
            (r"[$€£¥]\s*\d", "amount", "price"),
            (r"\d\s*%", "percentage"),
        ),
        (
            r"\.\w",
            (r"\b(?i:www)\.", "url"),
            (r"\b\d{1,3}(?:\.\d{1,3}){3}\b", "ip"),
            (r"\d\.\d+,\s*-?\d+\.\d", "latitude", "longitude"),
            (r"\w\.(?i:csv|pdf|txt|json|png|jpe?g|docx?|xlsx?|mp[34]|py|zip)\b", "file"),
        ),
        ("@", (r"\S@[^\s@]{1,253}\.\w", "email")),
        ("://", (r"(?i:https?)://", "url")),
        (",", (r",(?<=[a-z],)\s*[A-Z]{2}\b", "city", "location")),
    )
)


class _Known(dict[str, _T]):
    """A cache that computes a value on the first lookup of a word."""

    def __init__(self, make: Callable[[str], _T], most: int) -> None:
        self._make = make
        self._most = most

    def __missing__(self, word: str) -> _T:
        if len(self) >= self._most:
            self.clear()
        self[word] = made = self._make(word)
        return made


_Stems = Mapping[str, str]
"""The stems of lower-case words."""


class Words:
    """Splits text into terms, and caches the terms of each word.

    Args:
        most: The number of words to cache; unlimited for short-lived instances.
    """

    def __init__(self, most: int = sys.maxsize) -> None:
        self._stems = stems = _Known(stem, most)
        self._words = _Known(partial(_word_terms, stems), most)
        self._identifiers = _Known(partial(_identifier_terms, stems), most)

    def terms(self, text: str) -> list[str]:
        """Return the stems of the significant words of *text*, in their order.

        A word such as `YouTube` yields its parts and the joined word.
        """
        return list(chain.from_iterable(map(self._words.__getitem__, _words(text))))

    def faint_terms(self, text: str) -> set[str]:
        """Return the terms of *text* that only a query without others is about.

        These are stop words and single Chinese or Japanese characters.
        """
        stop_words = STOP_WORDS.intersection(map(str.lower, set(_words(text))))
        characters = () if text.isascii() else _HAN.findall(text)
        return {*map(self._stems.__getitem__, stop_words), *characters}

    def identifier_terms(self, *names: str) -> list[str]:
        """Return the stems of the words of *names*; stop words only if there are no others."""
        return list(chain.from_iterable(map(self._identifiers.__getitem__, names)))

    def clauses(self, query: str) -> list[list[str]]:
        """Return the terms of each clause of *query*; full stops and `and` separate clauses.

        A query of stop words only is treated as the name of a tool.
        """
        texts = _CLAUSE.split(query, _MOST_CLAUSES - 1)
        found = [terms for text in texts if (terms := list(dict.fromkeys(self.terms(text))))]
        return found or [list(dict.fromkeys(_identifier_terms(self._stems, query)))]

    def clause_texts(self, query: str) -> list[str]:
        """Return the texts of the clauses of *query*, without those that have no terms."""
        texts = _CLAUSE.split(query, _MOST_CLAUSES - 1)
        return [text.strip() for text in texts if self.terms(text)]

    @staticmethod
    def spaced(identifier: str) -> str:
        """Return the words of an identifier with spaces between them."""
        return " ".join(part for word in _WORD.findall(identifier) for part in _parts(word))


def _word_terms(stems: _Stems, word: str) -> tuple[str, ...]:
    if word.isalpha() and word[1:].islower():  # as nearly all are
        lower = word.lower()
        return () if lower in STOP_WORDS else (stems[lower],)
    if "'" in word and not _PLAIN_WORD.fullmatch(word):  # quoted
        words = _PLAIN_WORD.findall(word)
        return tuple(chain.from_iterable(_word_terms(stems, each) for each in words))
    parts = [part.lower() for part in _parts(word.partition("'")[0])]
    terms = _significant(stems, parts)
    if len(parts) == 2 and word.isalpha():  # noqa: PLR2004
        return (*terms, stems["".join(parts)])
    return terms


def _identifier_terms(stems: _Stems, name: str) -> tuple[str, ...]:
    if name.isascii():  # separators are in none of the parts
        parts = _PART.findall(name)
    else:
        parts = [part for word in _words(name) for part in _parts(word)]
    parts = [part.lower() for part in parts]
    return _significant(stems, parts) or tuple([stems[part] for part in parts])


def _significant(stems: _Stems, parts: Iterable[str]) -> tuple[str, ...]:
    return tuple([stems[part] for part in parts if part not in STOP_WORDS])


def _words(text: str) -> list[str]:
    """Return the words of *text* without accents; those of ASCII text may contain quotes."""
    if text.isascii():
        return text.encode().translate(_BETWEEN).decode().split()
    plain = _ACCENTS.sub("", normalized("NFKD", text)).translate(_WRITTEN)
    plain = normalized("NFC", plain)
    words: list[str] = []
    for index, piece in enumerate(_UNSPACED.split(plain)):
        words += _pairs(piece) if index % 2 else _WORD.findall(piece)
    return words


def _pairs(run: str) -> list[str]:
    return [run[at : at + 2] for at in range(len(run) - 1)] or [run]


def _parts(word: str) -> list[str]:
    if word.isascii():
        return _PART.findall(word)
    return [word] if _UNSPACED.match(word) else _PLAIN_PART.findall(word)


@cache
def concepts() -> Mapping[str, tuple[str, ...]]:
    """Return the concepts of each stem, as terms that differ from all words."""
    found: dict[str, tuple[str, ...]] = {}
    for number, words in enumerate(CONCEPTS):
        for word in sorted({stem(word) for word in words}):
            found[word] = (*found.get(word, ()), f"#{number}")
    return found


def is_concept(term: str) -> bool:
    """Return whether *term* is a concept and not a word."""
    return term.startswith("#")


def tidied(query: str) -> str:
    """Return *query* with a limited length and without long runs of blanks.

    Queries come from models and users, and must not block an event loop.
    """
    return _BLANKS.sub(r"\1", query[:_LONGEST])


def hinted(query: str, terms: Collection[str]) -> list[str]:
    """Return terms for the kinds of values that *query* contains, such as a date.

    Args:
        query: The query.
        terms: Its terms.
    """
    found = [] if _DATES.isdisjoint(terms) else ["date"]
    for sign, looks in _VALUES:
        seen = sign.search(query)
        if seen is not None:
            start = max(seen.start() - _BEFORE_SIGN, 0)
            for look, kinds in looks:
                if look.search(query, start):
                    found += kinds
    return found
