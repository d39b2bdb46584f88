"""Stems of English words."""

import random
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from chatclient.retrieval.keywords import tokenizer
from chatclient.retrieval.keywords.tokenizer import stem, stem_by_rules
from chatclient.tools.search import KeywordToolIndex, ToolReference, ToolSearchRequest

# fmt: off
STEMS = {
    "calculation": "calcul", "calculator": "calcul", "cities": "citi", "ties": "tie",
    "running": "run", "hoping": "hope", "hopped": "hop", "agreed": "agre", "feed": "feed",
    "sing": "sing", "glasses": "glass", "gas": "gas", "bus": "bus", "conditional": "condit",
    "rationally": "ration", "hopefulness": "hope", "geology": "geolog", "analogous": "analog",
    "sensitivity": "sensit", "relative": "relat", "native": "nativ", "adoption": "adopt",
    "region": "region", "controlled": "control", "fall": "fall", "happy": "happi", "say": "say",
    "yearly": "year", "beyond": "beyond", "employer": "employ", "generate": "generat",
    "generalization": "general", "apology": "apolog", "quickly": "quick", "conflated": "conflat",
    "sized": "size", "repeatedly": "repeat", "communism": "communism", "rate": "rate",
    "logi": "logi", "adding": "add", "egged": "egg", "dying": "die", "evenings": "evening",
    "proceeds": "proceed", "news": "news", "skies": "sky", "pasted": "paste", "univers": "univer",
    "internal": "internal", "organization": "organiz", "biologist": "biolog", "yyy": "yyy",
}
# fmt: on
ENDINGS = (
    *tokenizer._ENDINGS,
    "s",
    "ies",
    "ied",
    "ed",
    "ing",
    "eedly",
    "y",
    "e",
    "ll",
    "ying",
    "bb",
)
STARTS = ("past", "univers", "inter", "gener", "y", "ay", "b", "str", "ad", "of", "hop", "")


@pytest.mark.parametrize(("word", "expected"), STEMS.items())
def test_stemming(word: str, expected: str) -> None:
    """Forms of one word have one stem, as in Snowball."""
    assert stem_by_rules(word) == expected


@pytest.mark.parametrize("word", ["by", "größe", "a1b", ""])
def test_other_words(word: str) -> None:
    """Short words, and those with other characters, stay."""
    assert stem(word) == word


def test_stems_of_snowball() -> None:
    """The rules give the stems of PyStemmer, for words with all endings."""
    stemmer = pytest.importorskip("Stemmer").Stemmer("english")
    rng = random.Random(3)
    words = set(STEMS)
    for _ in range(5_000):
        middle = "".join(rng.choices("aeiouybdfglmnprstxw", k=rng.randint(0, 4)))
        words.add(f"{rng.choice(STARTS)}{middle}{rng.choice(ENDINGS)}{rng.choice(('', 's', 'ly'))}")
    expected = {word: stemmer.stemWord(word) for word in words if len(word) > 2}

    assert {word: stem_by_rules(word) for word in expected} == expected
    assert {word: stem(word) for word in expected} == expected


@pytest.mark.parametrize("module", [None, SimpleNamespace(version=lambda: "2.2.0.3")])
def test_without_pystemmer(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library's own rules are used if PyStemmer is missing, or too old."""
    monkeypatch.setitem(sys.modules, "Stemmer", module)
    tokenizer._snowball.cache_clear()

    assert stem("adding") == "add"
    assert tokenizer._snowball() is None
    tokenizer._snowball.cache_clear()


def test_doubled_letters() -> None:
    """A tool that adds something is found by a question about adding."""
    index = KeywordToolIndex()
    tools = [ToolReference(name, f"{name} a thing") for name in ("add_contact", "ad_report")]
    index.index_tools("s", tools)

    found = index.search(ToolSearchRequest("s", "adding people", 1))
    assert found.tool_names == ("add_contact",)
