"""Splits text into the terms that are indexed and searched: stems of English words.

The stems follow Snowball 3 (snowballstem.org/algorithms/english). PyStemmer is used if it is
installed in a version with these rules; it gives the same stems faster.
"""

import re
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache, partial
from itertools import chain
from typing import TypeVar

from chatclient._internal.text import normalized
from chatclient.retrieval.keywords.synonyms import CONCEPTS, STOP_WORDS

_VOWELS = "aeiouy"
_VOWEL = re.compile("[aeiouy]")
# The text before the regions in which endings are removed: each region begins after the first
# consonant that follows a vowel, except for words in which that would be too early.
_SYLLABLE = "[^aeiouy]*[aeiouy]+[^aeiouy]"
_EARLY = "gener|commun|arsen|univers|later|emerg|organ|inter|past"
_REGIONS = re.compile(f"({_EARLY}|{_SYLLABLE})({_SYLLABLE})?")
_CONSONANT_Y = re.compile("^y|([aeiouy])y")
_SHORT_END = re.compile(r"(^[aeiouy][^aeiouy]|[^aeiouy][aeiouy][^aeiouywxY]|past)$")
_TENSES = ("eed", "ed", "ing", "ly")
_DOUBLES = ("bb", "dd", "ff", "gg", "mm", "nn", "pp", "rr", "tt")

# Longer endings come before their own endings.
_SECOND = {
    "ization": "ize", "ational": "ate", "fulness": "ful", "ousness": "ous", "iveness": "ive",
    "tional": "tion", "biliti": "ble", "lessli": "less", "entli": "ent", "ation": "ate",
    "alism": "al", "aliti": "al", "ousli": "ous", "iviti": "ive", "fulli": "ful", "enci": "ence",
    "ogist": "og", "anci": "ance", "abli": "able", "izer": "ize", "ator": "ate", "alli": "al",
    "bli": "ble",
}  # fmt: skip
_THIRD = {
    "ational": "ate", "tional": "tion", "alize": "al", "icate": "ic", "iciti": "ic", "ical": "ic",
    "ful": "", "ness": "",
}  # fmt: skip
_SECOND_ENDINGS = tuple(_SECOND)
_THIRD_ENDINGS = tuple(_THIRD)
_FOURTH = (
    "ement", "ance", "ence", "able", "ible", "ment", "ant", "ent", "ism", "ate", "iti", "ous",
    "ive", "ize", "al", "er", "ic",
)  # fmt: skip
# The endings for the steps after the first: most words have none of them.
_ENDINGS = (*_SECOND, "logi", "li", *_THIRD, "ative", *_FOURTH, "sion", "tion")
_STEMS = {
    "skis": "ski", "skies": "sky", "idly": "idl", "gently": "gentl", "ugly": "ugli",
    "early": "earli", "only": "onli", "singly": "singl",
    **{word: word for word in ("sky", "news", "howe", "atlas", "cosmos", "bias", "andes")},
}  # fmt: skip
# Without the ending of a plural, these are stems.
_SINGULARS = frozenset(
    "inning outing canning herring earring evening proceed exceed succeed".split()  # noqa: SIM905
)
# All endings of all steps end in one of these.
_CHANGING = (
    "e", "ed", "ing", "er", "al", "y", "Y", "i", "ent", "ant", "tion", "sion", "ic", "ator", "ll",
    "ous", "ism", "ful", "ness", "ogist",
)  # fmt: skip


def stem(word: str) -> str:
    """Return the stem of *word*, which is in lower case; ASCII letters only, others stay."""
    if len(word) < 3 or not word.isascii() or not word.isalpha():  # noqa: PLR2004
        return word
    return (_snowball() or stem_by_rules)(word)


@cache
def _snowball() -> Callable[[str], str] | None:
    """Return the function of PyStemmer, or None if it is not installed or too old."""
    try:
        import Stemmer  # noqa: PLC0415 - optional
    except ModuleNotFoundError:
        return None
    if int(Stemmer.version().partition(".")[0]) < 3:  # noqa: PLR2004
        return None
    local = threading.local()  # its objects are not for several threads

    def stem_word(word: str) -> str:
        stemmer = getattr(local, "stemmer", None)
        if stemmer is None:
            stemmer = local.stemmer = Stemmer.Stemmer("english")
        stem: str = stemmer.stemWord(word)
        return stem

    return stem_word


def stem_by_rules(word: str) -> str:
    """Return the stem of *word*: at least three lower-case ASCII letters."""
    if word in _STEMS:
        return _STEMS[word]
    if "y" in word:
        word = _CONSONANT_Y.sub(lambda found: f"{found[1] or ''}Y", word)
    regions = _REGIONS.match(word)
    if regions is None:
        first, second = len(word), len(word)
    else:
        first, second = regions.end(1), regions.end(2) if regions[2] else len(word)
    word = _plural(word)
    if word in _SINGULARS or not word.endswith(_CHANGING):
        return word.lower()
    word = _past_and_present(word, first)
    if len(word) > 2 and word[-1] in "yY" and word[-2] not in _VOWELS:  # noqa: PLR2004
        word = word[:-1] + "i"
    if word.endswith(_ENDINGS):
        if word.endswith("logi"):
            word = word[:-1] if len(word) - 3 >= first else word
        else:
            changed = _replaced(word, _SECOND, _SECOND_ENDINGS, first)
            if changed == word and word.endswith("li") and not word.endswith(_SECOND_ENDINGS):
                word = word[:-2] if len(word) - 2 >= first and word[-3] in "cdeghkmnrt" else word
            else:
                word = changed
        word = _replaced(word, _THIRD, _THIRD_ENDINGS, first)
        if word.endswith("ative") and len(word) - 5 >= second:
            word = word[:-5]
        word = _residue(word, second)
    return _final_letter(word, first, second).lower()


def _plural(word: str) -> str:
    if not word.endswith(("s", "ied")):
        return word
    if word.endswith("sses"):
        return word[:-2]
    if word.endswith(("ied", "ies")):
        return word[:-2] if len(word) > 4 else word[:-1]  # noqa: PLR2004
    return word[:-1] if not word.endswith(("us", "ss")) and _VOWEL.search(word[:-2]) else word


def _past_and_present(word: str, region: int) -> str:
    if not word.endswith(_TENSES):
        return word
    for ending in ("eedly", "eed"):
        if word.endswith(ending):
            cut = len(word) - len(ending)
            return word[:cut] + "ee" if cut >= region else word
    for ending in ("ingly", "edly", "ing", "ed"):
        if word.endswith(ending):
            base = word[: -len(ending)]
            if ending == "ing" and len(base) == 2 and base[1] == "y":  # noqa: PLR2004
                return base[0] + "ie"
            return _without_tense(base, region) if _VOWEL.search(base) else word
    return word


def _without_tense(base: str, region: int) -> str:
    """Return the word from which *base* was formed with `ed` or `ing`."""
    if base.endswith(("at", "bl", "iz")):
        return base + "e"
    if base.endswith(_DOUBLES):
        return base if len(base) == 3 and base[0] in "aeo" else base[:-1]  # noqa: PLR2004
    return base + "e" if region >= len(base) and _SHORT_END.search(base) else base


def _replaced(word: str, changes: Mapping[str, str], endings: tuple[str, ...], region: int) -> str:
    if not word.endswith(endings):
        return word
    ending = next(filter(word.endswith, endings))
    cut = len(word) - len(ending)
    return word[:cut] + changes[ending] if cut >= region else word


def _residue(word: str, region: int) -> str:
    if word.endswith(_FOURTH):
        cut = len(word) - len(next(filter(word.endswith, _FOURTH)))
        return word[:cut] if cut >= region else word
    if word.endswith(("sion", "tion")) and len(word) - 3 >= region:
        return word[:-3]
    return word


def _final_letter(word: str, first: int, second: int) -> str:
    before = len(word) - 1
    if word[-1] == "e":
        drop = before >= second or (before >= first and not _SHORT_END.search(word[:-1]))
        return word[:-1] if drop else word
    return word[:-1] if word.endswith("ll") and before >= second else word


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
