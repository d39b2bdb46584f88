"""The keyword index: words, names, clauses and scores."""

import json
import os
import random
import subprocess
import sys
import time
from itertools import islice, permutations, product
from typing import Any

import pytest

from chatclient.retrieval.keywords.inverted_index import term_character
from chatclient.retrieval.keywords.tokenizer import Words, hinted
from chatclient.tools.search import KeywordToolIndex, ToolReference, ToolSearchRequest
from chatclient.tools.search.segments import parameter_texts
from tests.support.paths import ROOT

DATA = ROOT.parent / "shared" / "data" / "toolsearch"


def parameters(**descriptions: str) -> dict[str, Any]:
    properties = {name: {"type": "string", "description": d} for name, d in descriptions.items()}
    return {"type": "object", "properties": properties}


FILLING = tuple(
    ToolReference(f"{verb}_{thing}", f"{verb.title()}s a {thing} of somebody.")
    for verb in ("paint", "wash", "carry", "hide")
    for thing in ("fence", "door", "bucket", "stone", "ladder", "rope")
)


def first(query: str, *tools: ToolReference, filling: bool = True) -> str:
    index = KeywordToolIndex()
    index.index_tools("s", (*tools, *(FILLING if filling else ())))
    return (index.search(ToolSearchRequest("s", query, 5)).tool_names or ("",))[0]


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("getHTTPCode2", ["http", "code", "2"]),
        ("list_open-orders.v3", ["list", "open", "order", "v", "3"]),
        ("the user's Änderung", ["user", "anderung"]),
        ("the user's 'quoted' word's' ' rock'n'roll", ["user", "quot", "word", "rock", "roll"]),
        ("天气 forecast", ["天气", "forecast"]),
        ("Additionally, is there anything else you can assist me with? Thanks!", []),
        ("", []),
    ],
)
def test_tokenisation(text: str, terms: list[str]) -> None:
    """Camel case, underscores, dots and digits separate words; stop words are removed."""
    assert Words().terms(text) == terms


@pytest.mark.parametrize(
    ("query", "clauses"),
    [
        ("pay it. ship it", ["pay it", "ship it"]),
        ("pay it, and then ship it", ["pay it", "then ship it"]),
        (
            "pay it AND ship it Then bill it\nalso file it",
            ["pay it", "ship it", "bill it", "file it"],
        ),
        ("pay it;\nship it?! Bill it...", ["pay it", "ship it", "Bill it"]),
        ("pay v1.2 of a.b,and ship sand", ["pay v1.2 of a.b,and ship sand"]),
        ("pay the band also", ["pay the band also"]),
        ("pay\n\nand ship", ["pay", "and ship"]),
    ],
)
def test_clauses(query: str, clauses: list[str]) -> None:
    """Requests are split at punctuation before blanks and at conjunctions."""
    assert Words().clause_texts(query) == clauses


def test_non_latin_words_are_distinct() -> None:
    """Non-Latin words do not collide with short Latin ones of the same bytes."""
    assert first("条", ToolReference("ag", "Sells ag."), ToolReference("it", "条")) == "it"
    assert first("条", ToolReference("ag", "Sells ag.")) == ""


def test_word_cache_is_limited() -> None:
    """The cache of words does not grow without limit."""
    words = Words(3)
    words.terms("one two three four five")

    words.identifier_terms("oneTwo", "twoThree", "threeFour", "fourFive")

    assert len(words._stems) <= 3
    assert len(words._words) <= 3
    assert len(words._identifiers) <= 3
    assert words.terms("Lists two orders") == ["list", "two", "order"]


@pytest.mark.parametrize("query", ["on YouTube", "on youtube", "on You Tube"])
@pytest.mark.parametrize("name", ["youtube_search", "YouTubeSearch"])
def test_compound_names(query: str, name: str) -> None:
    """`YouTube` is found as it is, in lower case and by its parts."""
    tool = ToolReference(name, "Searches YouTube.")
    assert first(query, tool) == name


@pytest.mark.parametrize(("query", "name"), [("help", "help"), ("who am I?", "who_am_i")])
def test_name_of_stop_words(query: str, name: str) -> None:
    """Stop words are searched if a name or a request has no other words."""
    assert first(query, ToolReference(name, "")) == name


@pytest.mark.feature("search-lucene-tool-index")
@pytest.mark.parametrize(
    "name", ["getInvoice", "get_invoice", "billing.invoice.get", "GET-INVOICE"]
)
def test_name_spellings(name: str) -> None:
    """The words of a name are found however they are joined."""
    assert first("show me invoices", ToolReference(name)) == name


@pytest.mark.feature("search-lucene-tool-index")
def test_parameters_are_searched() -> None:
    """Parameter names, descriptions and enum values are searched at any depth."""
    take = ToolReference("a", "Does it.", parameters(latitude="Where", radius="In kilometres"))
    deep: dict[str, Any] = {"properties": {"list": {"items": {"enum": ["celsius", 3]}}}}

    assert first("within a radius", take) == "a"
    assert first("how many kilometres", take) == "a"
    assert first("in celsius", ToolReference("b", "Does it.", deep)) == "b"
    assert parameter_texts({"properties": {"x": {"$ref": "#/$defs/D"}}, "$defs": {
        "D": {"properties": {"inner": {"description": "about"}}}
    }}) == (["x", "inner"], ["about"], [])  # fmt: skip


def test_name_weight() -> None:
    """A match in the name ranks above one in the description."""
    named = ToolReference("zebra_lookup", "Does something quite different from others.")
    described = ToolReference("animal_lookup", "Tells something about a zebra and others.")

    assert first("zebra", described, named) == "zebra_lookup"


def test_complete_name_match() -> None:
    """Of equal matches, the tool whose complete name is in the query ranks first."""
    exact = ToolReference("z_convert_currency")
    longer = ToolReference("a_convert_currency_table_legacy_export")

    assert first("convert currency", longer, exact) == "z_convert_currency"


def test_rare_word_weight() -> None:
    """Rare words have more weight."""
    assert first("paint a walrus", ToolReference("walrus_show", "x")) == "walrus_show"


@pytest.mark.feature("search-lucene-tool-index")
def test_several_clauses() -> None:
    """Each clause ranks its tool first, with other clauses of any length."""
    index = KeywordToolIndex()
    many = [
        ToolReference(f"weather_{n}", f"Weather forecast for the city, kind {n}.") for n in range(9)
    ]
    index.index_tools("s", (*many, ToolReference("mail_send", "Sends a mail."), *FILLING))
    query = "What is the weather forecast for the city of Rome? And then send a mail to Bob."

    assert "mail_send" in index.search(ToolSearchRequest("s", query, 3)).tool_names


def test_synonyms() -> None:
    """A synonym matches, ranked below the word itself."""
    film = ToolReference("find_film", "Finds films.")

    assert first("a good movie", film) == "find_film"
    assert first("a good movie", film, ToolReference("z_movie", "Movies.")) == "z_movie"


def test_synonym_without_exact_match() -> None:
    """A synonym has full weight if no tool has the word itself."""
    weather = ToolReference("outlook", "Gives information about the weather.")
    planner = ToolReference("day_planner", "Plans the later hours of a day.")

    assert first("will it rain later?", weather, planner) == "outlook"


def test_number_weight() -> None:
    """Numbers have less weight than words, as they are mostly arguments."""
    named = ToolReference("apollo_7", "Tells a story.")
    meant = ToolReference("units", "Expresses a weight in kilograms.")

    assert first("7 kilograms", named, meant) == "units"
    assert first("apollo 7", named, meant) == "apollo_7"


@pytest.mark.parametrize(
    ("query", "terms"),
    [
        ("on 2024-05-01", {"date"}), ("on March 3", {"date"}), ("tomorrow", {"date"}),
        ("at 10:30", {"time"}), ("5 pm", {"time"}), ("to bob@example.org", {"email"}),
        ("of https://example.org", {"url"}), ("for $20", {"amount", "price"}),
        ("of 10.0.0.1", {"ip"}), ("at 48.1, 11.5", {"latitud", "longitud"}),
        ("in data.csv", {"file"}), ("by 20 %", {"percentag"}), ("in Boston, MA", {"citi", "locat"}),
        ("in REPORT.PDF", {"file"}), ("on may 5", {"date"}), ("at 5 P.M", {"time"}),
        ("of WWW.example.org", {"url"}), ("of HTTPS://example", {"url"}),
        ("nothing of the kind", set()),
    ],
)  # fmt: skip
def test_value_types_hint_at_parameters(query: str, terms: set[str]) -> None:
    """The types of values in a request hint at parameters."""
    assert set(hinted(query, Words().terms(query))) == terms
    after_much = f"{'Please do what I want, '.lower() * 5}{query}"
    assert set(hinted(after_much, Words().terms(query))) == terms


def test_weekday_is_a_date() -> None:
    """The name of a weekday hints at a date."""
    booking = ToolReference("reserve", "Reserves.", {"properties": {"date": {"type": "string"}}})

    assert first("on Thursday", booking, ToolReference("other", "Other things.")) == "reserve"


def test_value_breaks_a_tie() -> None:
    """A date in the request favours the tool with a date parameter."""
    plain = ToolReference("a_booking", "Books it.", parameters(person="Who"))
    dated = ToolReference("b_booking", "Books it.", parameters(date="When"))

    assert first("booking 2024-05-01", plain, dated) == "b_booking"


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("the wheather please", "get_weather_forecast"),  # additional letter
        ("the wether please", "get_weather_forecast"),  # missing letter
        ("the weatter please", "get_weather_forecast"),  # wrong letter
        ("the waether please", "get_weather_forecast"),  # swapped letters
        ("the waetter please", ""),  # two mistakes
        ("the weather please", "get_weather_forecast"),
        ("wéather", "get_weather_forecast"),  # additional accent
        ("погода", ""),
    ],
)
def test_misspelt_word(query: str, expected: str) -> None:
    """An unknown word matches words with an edit distance of one."""
    forecast = ToolReference("get_weather_forecast", "Looks ahead.")
    assert first(query, forecast, filling=False) == expected


def test_known_words_are_not_corrected() -> None:
    """Known and short words are not corrected."""
    tools = (ToolReference("list_boats", "Boats."), ToolReference("list_boots", "Boots."))
    index = KeywordToolIndex()
    index.index_tools("s", tools)
    assert index.search(ToolSearchRequest("s", "boots", 5)).tool_names == ("list_boots",)
    assert index.search(ToolSearchRequest("s", "bots", 5)).tool_names == ()
    assert index.search(ToolSearchRequest("s", "boxts list", 1)).tool_names == ("list_boats",)


def test_ties_are_ordered_by_name() -> None:
    """Ties are ordered by name, so that results are deterministic."""
    tools = [ToolReference(f"copy_{n:02}", "Makes a photocopy.") for n in range(30)]
    shuffled = tools.copy()
    random.Random(1).shuffle(shuffled)
    index = KeywordToolIndex()
    index.index_tools("s", shuffled)

    found = index.search(ToolSearchRequest("s", "photocopy", 5)).tool_names
    assert found == tuple(f"copy_{n:02}" for n in range(5))


SCORING = """
from chatclient.tools.search import KeywordToolIndex, ToolReference, ToolSearchRequest
from chatclient.retrieval.keywords.synonyms import CONCEPTS

words = sorted(word for words in CONCEPTS for word in words)
index = KeywordToolIndex()
index.index_tools("s", [ToolReference(f"t_{n}", " ".join(words[n::70])) for n in range(70)])
for n in range(9):
    print(index.search(ToolSearchRequest("s", " ".join(words[n::90]))).tool_references)
"""


@pytest.mark.process("Python")
def test_scores_are_deterministic() -> None:
    """Scores do not depend on the hash seed of the process."""
    outputs = {
        subprocess.check_output(
            [sys.executable, "-c", SCORING], env={**os.environ, "PYTHONHASHSEED": seed}
        )
        for seed in "0123"
    }

    assert len(outputs) == 1


def test_exact_name() -> None:
    """The exact name of a tool outweighs all words shared with others."""
    tools = [
        ToolReference(f"{city}_time", f"The current time: get the current time of {city}.")
        for city in ("rome", "oslo", "bonn", "cork", "lima", "kyiv")
    ]
    named = ToolReference("get_current_time", "Reads a clock.", parameters(place="Where it hangs"))

    query = "Use get_current_time to find out what the current time of Rome or Oslo is"
    assert first(query, *tools, named) == "get_current_time"


def test_enum_value() -> None:
    """A value that only one tool allows selects that tool."""
    schema = {"type": "object", "properties": {"kind": {"enum": ["walnut", "oak"]}}}
    tools = (ToolReference("b_wood", "Orders wood.", schema), ToolReference("a_wood", "Orders it."))

    assert first("wood, oak", *tools) == "b_wood"


def test_fewer_required_parameters_rank_first() -> None:
    """Of equal tools, the one with fewer required parameters ranks first."""
    schema = parameters(one="x", two="x", three="x")
    demanding = ToolReference("a_raft", "Builds it.", {**schema, "required": ["one", "two"]})
    modest = ToolReference("b_raft", "Builds it.", {**schema, "required": []})

    assert first("raft", demanding, modest) == "b_raft"


def test_specific_tool_ranks_first() -> None:
    """A tool with fewer other words ranks first."""
    broad = ToolReference("a_one", "Kites, boats, balloons, planes, gliders, trains and rockets.")
    narrow = ToolReference("b_one", "Boats, kites.")

    assert first("kites and boats", broad, narrow) == "b_one"


def test_result_count_of_a_frequent_word() -> None:
    """A frequent word finds as many tools as requested."""
    index = KeywordToolIndex()
    index.index_tools("s", [ToolReference(f"item_{n}", "Handles it.") for n in range(1000)])

    assert len(index.search(ToolSearchRequest("s", "item", 300)).tool_names) == 300


def test_removed_tools_take_no_result_slots() -> None:
    """Removed tools do not reduce the number of results."""
    index = KeywordToolIndex()
    strong = [ToolReference(f"kite_{n}", "Kites.") for n in range(240)]
    weak = [ToolReference(f"thing_{n}", "A thing for toys and such as a kite.") for n in range(780)]
    index.index_tools("s", (*strong, *weak))
    index.index_tools("s", weak)

    found = index.search(ToolSearchRequest("s", "kite", 5)).tool_names
    assert len(found) == 5
    assert all(name.startswith("thing_") for name in found)


def test_filter_before_ranking() -> None:
    """Filters apply before ranking, so a weak match of a category is found."""
    index = KeywordToolIndex()
    others = [ToolReference(f"kite_{n}", "Kites.") for n in range(2000)]
    own = ToolReference(
        "thing", "A thing for toys and such as a kite.", categories=frozenset({"toys"})
    )
    index.index_tools("s", (*others, own))

    request = ToolSearchRequest("s", "kite", 5, category_filter=frozenset({"toys"}))
    assert index.search(request).tool_names == ("thing",)


def test_frequent_words_nominate_few_tools() -> None:
    """Frequent words nominate few tools; the best results are unchanged."""
    index = KeywordToolIndex()
    tools = [ToolReference(f"item_{n}", f"Handles an item of group {n % 3}.") for n in range(2000)]
    index.index_tools("s", (*tools, ToolReference("zebra_item", "About a zebra, an item.")))

    response = index.search(ToolSearchRequest("s", "the zebra item of group 1, 500 or 7", 3))
    assert set(response.tool_names) == {"zebra_item", "item_500", "item_7"}


def test_more_than_65536_words() -> None:
    """Catalogs with more words than two bytes can number are supported."""
    words = ["".join(letters) for letters in islice(product("bcdfghjkmn", repeat=5), 70_000)]
    tools = [
        ToolReference(f"tool_{at}", " ".join(words[at : at + 100])) for at in range(0, 70_000, 100)
    ]
    index = KeywordToolIndex()
    index.index_tools("s", tools)

    for at in (
        0,
        55_296,
        57_344,
        65_535,
        65_536,
        69_999,
    ):  # including boundaries of character classes
        found = index.search(ToolSearchRequest("s", words[at]))
        assert found.tool_names == (f"tool_{at - at % 100}",)
    assert term_character(sys.maxunicode + 6) == term_character(5)  # a million words raise no error


def test_clauses_beyond_the_limit() -> None:
    """Clauses beyond the limit are joined to one."""
    query = ". ".join(f"Thing number {n}" for n in range(40)) + ". And wash a walrus"

    assert first(query, ToolReference("walrus_wash", "Washes it.")) == "walrus_wash"
    assert len(Words().clauses(query)) == 12


@pytest.mark.skipif(not DATA.exists(), reason="the evaluation data is not here")
def test_search_quality() -> None:
    """On real tools and requests the quality is at least as documented."""
    tools = [json.loads(line) for line in (DATA / "catalog.jsonl").read_text().splitlines()]
    queries = [json.loads(line) for line in (DATA / "queries.jsonl").read_text().splitlines()]
    index = KeywordToolIndex()
    for source in {tool["source"] for tool in tools} - {"toucan-mcp"}:
        own = [
            ToolReference(t["id"], t["description"], t["parameters"])
            for t in tools
            if t["source"] == source
        ]
        index.index_tools(source, own)
    shares = []
    for query in queries[::6]:
        session = query["source"].removesuffix("-agent")
        found = index.search(ToolSearchRequest(session, query["query"], 5)).tool_names
        alike = query.get("alts", {})
        hits = [
            gold in found or not set(found).isdisjoint(alike.get(gold, ()))
            for gold in query["gold"]
        ]
        shares.append(sum(hits) / len(hits))

    assert sum(shares) / len(shares) > 0.81


@pytest.mark.feature("search-lucene-tool-index")
@pytest.mark.parametrize(
    ("description", "query"),
    [
        ("查询指定城市的天气预报", "北京的天气怎么样"),
        ("都市の天気予報を取得します", "天気を教えて"),
        ("도시의 날씨를 조회합니다", "날씨 조회"),
        ("พยากรณ์อากาศของเมือง", "พยากรณ์อากาศ"),
        ("查询 GPT模型 的价格", "gpt"),
        ("Kauft 茶 ein", "茶"),
        ("Récupère la météo d'une ville", "meteo"),
        ("Recupere la meteo", "météo"),
        ("Envi\u0301a un correo electro\u0301nico", "electrónico"),
        ("Показывает прогноз погоды", "прогноз"),
        ("Показывает мой счёт", "счет"),
    ],
)
def test_other_scripts(description: str, query: str) -> None:
    """Scripts without spaces and accents in any form are searched."""
    assert first(query, ToolReference("it", description)) == "it"


def test_corrections_are_limited() -> None:
    """The number of words to correct per request is limited."""
    forecast = ToolReference("weather_forecast", "Says what the weather will be.")
    unknown = ["".join(letters) for letters in permutations("bcdfgh")][:100]

    assert first(" ".join([*unknown[:20], "wheather"]), forecast) == "weather_forecast"
    assert first(" ".join([*unknown, "wheather"]), forecast) == ""


@pytest.mark.parametrize(
    "query",
    [
        "fence" + " " * 20_000 + "bucket",
        "paint fence " + "!" * 20_000 + "x",
        "paint fence " + "a" * 20_000,
        "paint fence " + "@" * 20_000,
        "paint fence " + "1.2" * 7_000,
        "paint fence " + ", and " * 4_000,
    ],
    ids=["blanks", "punctuation", "letters", "at signs", "numbers", "clauses"],
)
def test_query_time(query: str) -> None:
    """No query, which a model writes, takes long."""
    started = time.thread_time()
    found = first(query)
    assert time.thread_time() - started < 0.5  # quadratic time would take seconds
    assert "fence" in found
