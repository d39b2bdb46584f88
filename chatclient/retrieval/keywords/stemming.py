"""The stem of an English word, by the rules of Snowball 3 (snowballstem.org/algorithms/english).

PyStemmer is used if it is installed in a version with these rules; it gives the same stems faster.
"""

import re
import threading
from collections.abc import Callable, Mapping
from functools import cache

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
    first, second = _regions(word)
    word = _plural(word)
    if word in _SINGULARS or not word.endswith(_CHANGING):
        return word.lower()
    word = _past_and_present(word, first)
    if len(word) > 2 and word[-1] in "yY" and word[-2] not in _VOWELS:  # noqa: PLR2004
        word = word[:-1] + "i"
    if word.endswith(_ENDINGS):
        word = _derivation(word, first)
        word = _replaced(word, _THIRD, _THIRD_ENDINGS, first)
        if word.endswith("ative") and len(word) - 5 >= second:
            word = word[:-5]
        word = _residue(word, second)
    return _final_letter(word, first, second).lower()


def _regions(word: str) -> tuple[int, int]:
    """Return the positions of the two regions; the end of *word* if it has none."""
    regions = _REGIONS.match(word)
    if regions is None:
        return len(word), len(word)
    return regions.end(1), regions.end(2) if regions[2] else len(word)


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


def _derivation(word: str, region: int) -> str:
    if word.endswith("logi"):
        return word[:-1] if len(word) - 3 >= region else word
    changed = _replaced(word, _SECOND, _SECOND_ENDINGS, region)
    if changed == word and word.endswith("li") and not word.endswith(_SECOND_ENDINGS):
        return word[:-2] if len(word) - 2 >= region and word[-3] in "cdeghkmnrt" else word
    return changed


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
