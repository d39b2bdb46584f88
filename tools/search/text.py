"""From text to the terms that are indexed and searched: words of identifiers, stems, wishes."""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from chatclient.tools.search.stemming import stem
from chatclient.tools.search.vocabulary import CONCEPTS, STOP_WORDS

_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)?")
# An identifier's words: `getHTTPCode2` is get, http, code, 2.
_PART = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+")
# Beyond ASCII, what is a capital is not so easily said: letters and digits are told apart.
_PLAIN_PART = re.compile(r"[^\W\d_]+|\d+")
_CLAUSE = re.compile(r"[.;?!\n]+(?:\s|$)|,?\s+(?:and|then|also)\s+", re.IGNORECASE)
_MOST_CLAUSES = 12  # of a request; what is longer is a document, and its rest is taken as one
_REMEMBERED = 20_000  # words whose terms are kept

_MONTHS = "january|february|march|april|may|june|july|august|september|october|november|december"
_DAYS = "monday|tuesday|wednesday|thursday|friday|saturday|sunday|today|tomorrow|yesterday|weekend"
_DAY = re.compile(rf"\b(?:{_DAYS})\b", re.IGNORECASE)
_VALUE = re.compile(r"[\d@$€£¥%/,]|www\.|\w\.\w")  # without one of these there is no value
# Values that give away what kind of argument they are for.
_VALUES = tuple(
    (re.compile(pattern, re.IGNORECASE), tuple(map(stem, words)))
    for pattern, words in (
        (
            rf"\b\d{{4}}-\d\d-\d\d\b|\b\d{{1,2}}/\d{{1,2}}/\d{{2,4}}\b|\b(?:{_MONTHS})\s+\d",
            ("date",),
        ),
        (r"\b\d{1,2}:\d\d\b|\b\d{1,2}\s*[ap]\.?m\b", ("time",)),
        (r"\S+@\S+\.\w+", ("email",)),
        (r"https?://|\bwww\.", ("url",)),
        (r"[$€£¥]\s*\d", ("amount", "price")),
        (r"\b\d{1,3}(?:\.\d{1,3}){3}\b", ("ip",)),
        (r"-?\d+\.\d+,\s*-?\d+\.\d+", ("latitude", "longitude")),
        (r"\b\w+\.(?:csv|pdf|txt|json|png|jpe?g|docx?|xlsx?|mp[34]|py|zip)\b", ("file",)),
        (r"\d\s*%", ("percentage",)),
        (r"\b(?-i:[A-Z][a-z]+,\s*[A-Z]{2})\b", ("city", "location")),
    )
)


class Words:
    """Turns text into terms, and remembers how each word came out."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, ...]] = {}

    def terms(self, text: str) -> list[str]:
        """Return the stems of the words of *text* that say something, in their order."""
        known = self._known
        found: list[str] = []
        for word in _WORD.findall(text):
            terms = known.get(word)
            if terms is None:
                terms = self._remember(word)
            found += terms
        return found

    def clauses(self, query: str) -> list[list[str]]:
        """Return the terms of each wish of *query*: what stands between full stops and `and`s."""
        texts = _CLAUSE.split(query, _MOST_CLAUSES - 1)
        return [terms for text in texts if (terms := list(dict.fromkeys(self.terms(text))))]

    def wishes(self, query: str) -> list[str]:
        """Return the clauses of *query* as they are written, without those that say nothing."""
        texts = _CLAUSE.split(query, _MOST_CLAUSES - 1)
        return [text.strip() for text in texts if self.terms(text)]

    @staticmethod
    def spaced(identifier: str) -> str:
        """Return the words of an identifier with spaces between them."""
        return " ".join(part for word in _WORD.findall(identifier) for part in _parts(word))

    def _remember(self, word: str) -> tuple[str, ...]:
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        parts = [part.lower() for part in _parts(word.partition("'")[0])]
        terms = tuple(stem(part) for part in parts if part not in STOP_WORDS)
        self._known[word] = terms
        return terms


def _parts(word: str) -> list[str]:
    found: list[str] = (_PART if word.isascii() else _PLAIN_PART).findall(word)
    return found


@cache
def concepts() -> Mapping[str, tuple[str, ...]]:
    """Return the concepts that each stem belongs to, as terms that no word can be."""
    found: dict[str, tuple[str, ...]] = {}
    for number, words in enumerate(CONCEPTS):
        for word in sorted({stem(word) for word in words}):
            found[word] = (*found.get(word, ()), f"#{number}")
    return found


def hinted(query: str) -> set[str]:
    """Return the terms for the kinds of values that *query* has in it, such as a date."""
    found = {"date"} if _DAY.search(query) else set()
    if _VALUE.search(query):
        found.update(term for pattern, terms in _VALUES if pattern.search(query) for term in terms)
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
        if name and isinstance(description, str):
            descriptions.append(description)
        allowed = parameter.get("enum")
        if isinstance(allowed, list):
            values += [value for value in allowed if isinstance(value, str)]
    return names, descriptions, values


def _parameters(schema: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield every parameter at any depth, items of lists without a name."""
    if not isinstance(schema, Mapping):
        return
    properties = schema.get("properties")
    if isinstance(properties, Mapping):
        for name, parameter in properties.items():
            if isinstance(parameter, Mapping):
                yield name, parameter
                yield from _parameters(parameter)
    items = schema.get("items")
    if isinstance(items, Mapping):
        yield "", items
        yield from _parameters(items)
    definitions = schema.get("$defs")
    if isinstance(definitions, Mapping):
        for definition in definitions.values():
            yield from _parameters(definition)
