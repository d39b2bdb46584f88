"""From text to the terms that are indexed and searched: words of identifiers, stems, wishes."""

import re
import sys
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cache, partial
from itertools import chain
from typing import Any, TypeVar

from chatclient.tools.search.stemming import stem
from chatclient.tools.search.vocabulary import CONCEPTS, STOP_WORDS

_T = TypeVar("_T")

_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)?")
_PLAIN_WORD = re.compile(r"[A-Za-z0-9]+(?:'[A-Za-z0-9]+)?")  # the same where all is ASCII
_BETWEEN = bytes(
    code if chr(code).isascii() and (chr(code).isalnum() or chr(code) == "'") else ord(" ")
    for code in range(256)
)
"""What every byte of an ASCII text is to words: blank if it stands between them."""
# An identifier's words: `getHTTPCode2` is get, http, code, 2.
_PART = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+")
# Beyond ASCII, what is a capital is not so easily said: letters and digits are told apart.
_PLAIN_PART = re.compile(r"[^\W\d_]+|\d+")
# Scripts that set no space between words, or join to a word what belongs to it: Thai, Lao, Burmese,
# Khmer, Japanese, Chinese, Korean. Two neighbouring characters are the nearest thing to a word.
_UNSPACED = re.compile(
    r"([\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3"
    r"\uf900-\ufaff\U00020000-\U0003ffff]+)"
)
_ACCENTS = re.compile(r"[\u0300-\u036f]")
# What ends a clause: marks, or a word that leads on to another clause. A run of marks is looked at
# from its beginning only, or a long one would take its length squared. For speed, all that may end
# a clause begins with one set of characters, and both cases of a letter are written out.
_CLAUSE = re.compile(
    r"[.;?!\n,\s](?:(?<=[.;?!\n])(?<![.;?!\n][.;?!\n])[.;?!\n]*(?:\s|$)"
    r"|(?:(?<=,)\s+|(?<=\s)\s*)(?:[Aa](?:[Nn][Dd]|[Ll][Ss][Oo])|[Tt][Hh][Ee][Nn])\s+)"
)
_BLANKS = re.compile(r"(\s\s)\s+")
_OBJECT = (dict, Mapping)  # most are of the first, which is far quicker to tell
_NESTING = frozenset({"properties", "items", "$defs"})  # where a schema has parameters
_LONGEST = 4_000  # characters of a query that are read; what is longer is no wish, but a document
_MOST_CLAUSES = 12  # of a request; what is longer is a document, and its rest is taken as one

_MONTHS = "January February March April June July August September October November December"
_DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday today tomorrow yesterday weekend"
_DATES = frozenset(stem(word.lower()) for word in f"{_MONTHS} {_DAYS}".split())
_BEFORE_SIGN = 10  # characters: no value begins so far before the first sign of it
# Values that give away what kind of argument they are for: what has to be there at all, which is
# looked for first because most requests have none of it, then how they look, and the terms of the
# arguments.
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
    """What comes of words, made when one is looked up for the first time."""

    def __init__(self, make: Callable[[str], _T], most: int) -> None:
        self._make = make
        self._most = most

    def __missing__(self, word: str) -> _T:
        if len(self) >= self._most:
            self.clear()
        self[word] = made = self._make(word)
        return made


_Stems = Mapping[str, str]
"""The stem of any word in lower case."""


class Words:
    """Turns text into terms, and remembers how each word came out.

    Args:
        most: How many words to remember; as many as come where the words are soon done with.
    """

    def __init__(self, most: int = sys.maxsize) -> None:
        self._stems = stems = _Known(stem, most)
        self._words = _Known(partial(_word_terms, stems), most)
        self._identifiers = _Known(partial(_identifier_terms, stems), most)

    def terms(self, text: str) -> list[str]:
        """Return the stems of the words of *text* that say something, in their order.

        A word such as `YouTube` counts as what it is made of and as a whole.
        """
        return list(chain.from_iterable(map(self._words.__getitem__, _words(text))))

    def identifier_terms(self, *names: str) -> list[str]:
        """Return the stems of what *names* are made of, what says nothing only if all says so."""
        return list(chain.from_iterable(map(self._identifiers.__getitem__, names)))

    def clauses(self, query: str) -> list[list[str]]:
        """Return the terms of each wish of *query*: what stands between full stops and `and`s.

        A query of nothing but words that say nothing may still be the name of a tool.
        """
        texts = _CLAUSE.split(query, _MOST_CLAUSES - 1)
        found = [terms for text in texts if (terms := list(dict.fromkeys(self.terms(text))))]
        return found or [list(dict.fromkeys(_identifier_terms(self._stems, query)))]

    def wishes(self, query: str) -> list[str]:
        """Return the clauses of *query* as they are written, without those that say nothing."""
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
    terms = _telling(stems, parts)
    if len(parts) == 2 and word.isalpha():  # noqa: PLR2004
        return (*terms, stems["".join(parts)])
    return terms


def _identifier_terms(stems: _Stems, name: str) -> tuple[str, ...]:
    if name.isascii():  # what joins the words of a name is in none of their parts
        parts = _PART.findall(name)
    else:
        parts = [part for word in _words(name) for part in _parts(word)]
    parts = [part.lower() for part in parts]
    return _telling(stems, parts) or tuple([stems[part] for part in parts])


def _telling(stems: _Stems, parts: Iterable[str]) -> tuple[str, ...]:
    return tuple([stems[part] for part in parts if part not in STOP_WORDS])


def _words(text: str) -> list[str]:
    """Return the words of *text* without accents, those of plain text with quotes around them."""
    if text.isascii():
        return text.encode().translate(_BETWEEN).decode().split()
    plain = unicodedata.normalize("NFC", _ACCENTS.sub("", unicodedata.normalize("NFKD", text)))
    found: list[str] = []
    for at, piece in enumerate(_UNSPACED.split(plain)):
        found += _pairs(piece) if at % 2 else _WORD.findall(piece)
    return found


def _pairs(run: str) -> list[str]:
    return [run[at : at + 2] for at in range(len(run) - 1)] or [run]


def _parts(word: str) -> list[str]:
    if word.isascii():
        return _PART.findall(word)
    return [word] if _UNSPACED.match(word) else _PLAIN_PART.findall(word)


@cache
def concepts() -> Mapping[str, tuple[str, ...]]:
    """Return the concepts that each stem belongs to, as terms that no word can be."""
    found: dict[str, tuple[str, ...]] = {}
    for number, words in enumerate(CONCEPTS):
        for word in sorted({stem(word) for word in words}):
            found[word] = (*found.get(word, ()), f"#{number}")
    return found


def is_concept(term: str) -> bool:
    """Return whether *term* stands for a concept instead of a word."""
    return term.startswith("#")


def tidied(query: str) -> str:
    """Return what is read of *query*: no more than that, and no long runs of blanks.

    Queries are written by models, and by whoever talks to them: none may hold up an event loop.
    """
    return _BLANKS.sub(r"\1", query[:_LONGEST])


def hinted(query: str, terms: Collection[str]) -> list[str]:
    """Return the terms for the kinds of values that *query* has in it, such as a date.

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


def parameter_texts(schema: Any) -> tuple[list[str], list[str], list[str]]:
    """Return the names, descriptions and allowed values of all parameters in a JSON Schema."""
    names: list[str] = []
    descriptions: list[str] = []
    values: list[str] = []
    for name, parameter in _parameters(schema):
        if name:
            names.append(name)
            description = parameter.get("description")
            if isinstance(description, str):
                descriptions.append(description)
        allowed = parameter.get("enum")
        if isinstance(allowed, list):
            values += [value for value in allowed if isinstance(value, str)]
    return names, descriptions, values


def _parameters(schema: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield every parameter at any depth, items of lists without a name."""
    if not isinstance(schema, _OBJECT):
        return
    properties = schema.get("properties")
    if isinstance(properties, _OBJECT):
        for name, parameter in properties.items():
            if isinstance(parameter, _OBJECT):
                yield name, parameter
                if not _NESTING.isdisjoint(parameter):
                    yield from _parameters(parameter)
    items = schema.get("items")
    if isinstance(items, _OBJECT):
        yield "", items
        yield from _parameters(items)
    definitions = schema.get("$defs")
    if isinstance(definitions, _OBJECT):
        for definition in definitions.values():
            yield from _parameters(definition)
