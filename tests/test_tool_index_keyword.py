"""How the keyword index understands names, words and wishes."""

import json
import os
import random
import subprocess
import sys
import time
from itertools import islice, permutations, product
from pathlib import Path
from typing import Any

import pytest

from chatclient.tools.search import KeywordToolIndex, ToolReference, ToolSearchRequest
from chatclient.tools.search.postings import letter_of
from chatclient.tools.search.stemming import stem
from chatclient.tools.search.text import Words, hinted, parameter_texts

DATA = Path(__file__).parent.parent.parent / "shared" / "data" / "toolsearch"


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
    ("word", "expected"),
    [
        ("calculation", "calcul"), ("calculator", "calcul"), ("cities", "citi"), ("ties", "tie"),
        ("running", "run"), ("hoping", "hope"), ("hopped", "hop"), ("agreed", "agre"),
        ("feed", "feed"), ("sing", "sing"), ("glasses", "glass"), ("gas", "gas"),
        ("bus", "bus"), ("conditional", "condit"), ("rationally", "ration"),
        ("hopefulness", "hope"),
        ("geology", "geolog"), ("analogous", "analog"), ("sensitivity", "sensit"),
        ("relative", "relat"), ("native", "nativ"), ("adoption", "adopt"), ("region", "region"),
        ("controlled", "control"), ("fall", "fall"), ("happy", "happi"), ("say", "say"),
        ("yearly", "year"), ("beyond", "beyond"), ("employer", "employ"), ("generate", "generat"),
        ("generalization", "general"), ("apology", "apolog"), ("quickly", "quick"),
        ("conflated", "conflat"), ("sized", "size"), ("by", "by"), ("größe", "größe"),
        ("repeatedly", "repeat"), ("communism", "communism"), ("rate", "rate"), ("logi", "logi"),
    ],
)  # fmt: skip
def test_words_are_reduced_to_their_stems(word: str, expected: str) -> None:
    """Forms of one word come out alike (values as of Porter's second algorithm)."""
    assert stem(word) == expected


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
def test_identifiers_are_split(text: str, terms: list[str]) -> None:
    """Camel case, underscores, dots and digits separate words; stop words go."""
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
def test_requests_are_taken_apart(query: str, clauses: list[str]) -> None:
    """At marks that something blank follows, and at words between blanks that go on."""
    assert Words().wishes(query) == clauses


def test_words_of_other_scripts_are_not_taken_for_short_ones() -> None:
    """Python keeps 条 as the two bytes that `ag` has."""
    assert first("条", ToolReference("ag", "Sells ag."), ToolReference("it", "条")) == "it"
    assert first("条", ToolReference("ag", "Sells ag.")) == ""


def test_what_is_remembered_of_words_is_limited() -> None:
    """A long-lived index does not grow with each new word."""
    words = Words(3)
    words.terms("one two three four five")

    words.identifier_terms("oneTwo", "twoThree", "threeFour", "fourFive")

    assert len(words._stems) <= 3
    assert len(words._words) <= 3
    assert len(words._identifiers) <= 3
    assert words.terms("Lists two orders") == ["list", "two", "order"]


@pytest.mark.parametrize("query", ["on YouTube", "on youtube", "on You Tube"])
@pytest.mark.parametrize("name", ["youtube_search", "YouTubeSearch"])
def test_names_of_two_words_in_one_are_found(query: str, name: str) -> None:
    """`YouTube` is found as it is, in lower case and by its parts."""
    tool = ToolReference(name, "Searches YouTube.")
    assert first(query, tool) == name


@pytest.mark.parametrize(("query", "name"), [("help", "help"), ("who am I?", "who_am_i")])
def test_a_name_that_says_nothing_is_found(query: str, name: str) -> None:
    """Words that say nothing are looked for where a name or a request has no others."""
    assert first(query, ToolReference(name, "")) == name


@pytest.mark.parametrize(
    "name", ["getInvoice", "get_invoice", "billing.invoice.get", "GET-INVOICE"]
)
def test_any_way_to_write_a_name_is_found(name: str) -> None:
    """The words of a name count, however they are joined."""
    assert first("show me invoices", ToolReference(name)) == name


def test_parameters_are_searched() -> None:
    """What a tool takes says what it is for, and so do allowed values, at any depth."""
    take = ToolReference("a", "Does it.", parameters(latitude="Where", radius="In kilometres"))
    deep: dict[str, Any] = {"properties": {"list": {"items": {"enum": ["celsius", 3]}}}}

    assert first("within a radius", take) == "a"
    assert first("how many kilometres", take) == "a"
    assert first("in celsius", ToolReference("b", "Does it.", deep)) == "b"
    assert parameter_texts({"properties": {"x": {"$ref": "#/$defs/D"}}, "$defs": {
        "D": {"properties": {"inner": {"description": "about"}}}
    }}) == (["x", "inner"], ["about"], [])  # fmt: skip


def test_the_name_counts_more_than_the_description() -> None:
    """Of two tools with a word, that with the word in its name comes first."""
    named = ToolReference("zebra_lookup", "Does something quite different from others.")
    told = ToolReference("animal_lookup", "Tells something about a zebra and others.")

    assert first("zebra", told, named) == "zebra_lookup"


def test_a_covered_name_wins() -> None:
    """Of two equal matches, the tool whose name is all in the query comes first."""
    exact = ToolReference("z_convert_currency")
    longer = ToolReference("a_convert_currency_table_legacy_export")

    assert first("convert currency", longer, exact) == "z_convert_currency"


def test_rare_words_count_more() -> None:
    """A word that few tools have decides."""
    assert first("paint a walrus", ToolReference("walrus_show", "x")) == "walrus_show"


def test_several_wishes_are_all_served() -> None:
    """Each clause brings its tool to the front, though another clause has more words."""
    index = KeywordToolIndex()
    many = [
        ToolReference(f"weather_{n}", f"Weather forecast for the city, kind {n}.") for n in range(9)
    ]
    index.index_tools("s", (*many, ToolReference("mail_send", "Sends a mail."), *FILLING))
    query = "What is the weather forecast for the city of Rome? And then send a mail to Bob."

    assert "mail_send" in index.search(ToolSearchRequest("s", query, 3)).tool_names


def test_words_for_the_same_are_understood() -> None:
    """A tool is found by a word of the same concept, after those that have the word itself."""
    film = ToolReference("find_film", "Finds films.")

    assert first("a good movie", film) == "find_film"
    assert first("a good movie", film, ToolReference("z_movie", "Movies.")) == "z_movie"


def test_a_word_that_no_tool_has_is_served_by_its_like() -> None:
    """What a word means counts in full where no tool has the word itself."""
    weather = ToolReference("outlook", "Gives information about the weather.")
    planner = ToolReference("day_planner", "Plans the later hours of a day.")

    assert first("will it rain later?", weather, planner) == "outlook"


def test_a_number_counts_less_than_a_word() -> None:
    """A number is an argument, as a rule, although a name may have it."""
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
def test_values_tell_what_they_are_for(query: str, terms: set[str]) -> None:
    """The kinds of values in a request hint at the parameters that take them."""
    assert set(hinted(query, Words().terms(query))) == terms
    after_much = f"{'Please do what I want, '.lower() * 5}{query}"
    assert set(hinted(after_much, Words().terms(query))) == terms


def test_a_day_that_no_tool_names_is_a_date() -> None:
    """The name of a day hints at a date also where no tool has that word."""
    booking = ToolReference("reserve", "Reserves.", {"properties": {"date": {"type": "string"}}})

    assert first("on Thursday", booking, ToolReference("other", "Other things.")) == "reserve"


def test_a_value_decides_between_equal_tools() -> None:
    """A date in the request favours the tool that takes one."""
    plain = ToolReference("a_booking", "Books it.", parameters(person="Who"))
    dated = ToolReference("b_booking", "Books it.", parameters(date="When"))

    assert first("booking 2024-05-01", plain, dated) == "b_booking"


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("the wheather please", "get_weather_forecast"),  # a letter too many
        ("the wether please", "get_weather_forecast"),  # one missing
        ("the weatter please", "get_weather_forecast"),  # a wrong one
        ("the waether please", "get_weather_forecast"),  # two that changed places
        ("the waetter please", ""),  # two mistakes
        ("the weather please", "get_weather_forecast"),
        ("wéather", "get_weather_forecast"),  # an accent too many
        ("погода", ""),
    ],
)
def test_a_slip_of_the_pen_is_understood(query: str, expected: str) -> None:
    """A word that no tool has may be meant for one that differs by a letter."""
    forecast = ToolReference("get_weather_forecast", "Looks ahead.")
    assert first(query, forecast, filling=False) == expected


def test_what_is_written_right_goes_first() -> None:
    """A word that is known is not mended, and short words are left alone."""
    tools = (ToolReference("list_boats", "Boats."), ToolReference("list_boots", "Boots."))
    index = KeywordToolIndex()
    index.index_tools("s", tools)
    assert index.search(ToolSearchRequest("s", "boots", 5)).tool_names == ("list_boots",)
    assert index.search(ToolSearchRequest("s", "bots", 5)).tool_names == ()
    assert index.search(ToolSearchRequest("s", "boxts list", 1)).tool_names == ("list_boats",)


def test_equal_tools_keep_one_order() -> None:
    """Ties are broken by name, so that results never change between runs."""
    tools = [ToolReference(f"copy_{n:02}", "Makes a photocopy.") for n in range(30)]
    shuffled = tools.copy()
    random.Random(1).shuffle(shuffled)
    index = KeywordToolIndex()
    index.index_tools("s", shuffled)

    found = index.search(ToolSearchRequest("s", "photocopy", 5)).tool_names
    assert found == tuple(f"copy_{n:02}" for n in range(5))


SCORING = """
from chatclient.tools.search import KeywordToolIndex, ToolReference, ToolSearchRequest
from chatclient.tools.search.vocabulary import CONCEPTS

words = sorted(word for words in CONCEPTS for word in words)
index = KeywordToolIndex()
index.index_tools("s", [ToolReference(f"t_{n}", " ".join(words[n::70])) for n in range(70)])
for n in range(9):
    print(index.search(ToolSearchRequest("s", " ".join(words[n::90]))).tool_references)
"""


def test_another_run_scores_alike() -> None:
    """The order in which a set of texts comes is another in each run, and rounding with it."""
    told = {
        subprocess.check_output(
            [sys.executable, "-c", SCORING], env={**os.environ, "PYTHONHASHSEED": seed}
        )
        for seed in "0123"
    }

    assert len(told) == 1


def test_a_name_that_is_asked_for_is_found() -> None:
    """The exact name of a tool counts more than all words that another one shares with it."""
    tools = [
        ToolReference(f"{city}_time", f"The current time: get the current time of {city}.")
        for city in ("rome", "oslo", "bonn", "cork", "lima", "kyiv")
    ]
    named = ToolReference("get_current_time", "Reads a clock.", parameters(place="Where it hangs"))

    query = "Use get_current_time to find out what the current time of Rome or Oslo is"
    assert first(query, *tools, named) == "get_current_time"


def test_an_allowed_value_tells_what_is_meant() -> None:
    """Who asks for a value that only one tool allows gets that tool, whatever it is called."""
    schema = {"type": "object", "properties": {"kind": {"enum": ["walnut", "oak"]}}}
    tools = (ToolReference("b_wood", "Orders wood.", schema), ToolReference("a_wood", "Orders it."))

    assert first("wood, oak", *tools) == "b_wood"


def test_what_asks_for_less_goes_first() -> None:
    """Of tools that fit alike, the one with fewer required arguments is tried first."""
    schema = parameters(one="x", two="x", three="x")
    demanding = ToolReference("a_raft", "Builds it.", {**schema, "required": ["one", "two"]})
    modest = ToolReference("b_raft", "Builds it.", {**schema, "required": []})

    assert first("raft", demanding, modest) == "b_raft"


def test_what_is_about_nothing_else_goes_first() -> None:
    """A tool that is about what is asked for comes before one that is about much else, too."""
    broad = ToolReference("a_one", "Kites, boats, balloons, planes, gliders, trains and rockets.")
    narrow = ToolReference("b_one", "Boats, kites.")

    assert first("kites and boats", broad, narrow) == "b_one"


def test_as_many_are_found_as_are_asked_for() -> None:
    """A frequent word finds more tools than it nominates when more are wanted."""
    index = KeywordToolIndex()
    index.index_tools("s", [ToolReference(f"item_{n}", "Handles it.") for n in range(1000)])

    assert len(index.search(ToolSearchRequest("s", "item", 300)).tool_names) == 300


def test_the_weak_are_found_when_the_strong_are_gone() -> None:
    """Tools that were taken away take no place from those that are left."""
    index = KeywordToolIndex()
    strong = [ToolReference(f"kite_{n}", "Kites.") for n in range(240)]
    weak = [ToolReference(f"thing_{n}", "A thing for toys and such as a kite.") for n in range(780)]
    index.index_tools("s", (*strong, *weak))
    index.index_tools("s", weak)

    found = index.search(ToolSearchRequest("s", "kite", 5)).tool_names
    assert len(found) == 5
    assert all(name.startswith("thing_") for name in found)


def test_whom_a_filter_admits_is_found_among_thousands() -> None:
    """A filter is no post-filter: the one tool of a category is found, however weak it is."""
    index = KeywordToolIndex()
    others = [ToolReference(f"kite_{n}", "Kites.") for n in range(2000)]
    own = ToolReference(
        "thing", "A thing for toys and such as a kite.", categories=frozenset({"toys"})
    )
    index.index_tools("s", (*others, own))

    request = ToolSearchRequest("s", "kite", 5, category_filter=frozenset({"toys"}))
    assert index.search(request).tool_names == ("thing",)


def test_large_catalogs_are_searched_by_their_telling_words() -> None:
    """A frequent word nominates few of its tools, a rare one all; the best stay the same."""
    index = KeywordToolIndex()
    tools = [ToolReference(f"item_{n}", f"Handles an item of group {n % 3}.") for n in range(2000)]
    index.index_tools("s", (*tools, ToolReference("zebra_item", "About a zebra, an item.")))

    response = index.search(ToolSearchRequest("s", "the zebra item of group 1, 500 or 7", 3))
    assert set(response.tool_names) == {"zebra_item", "item_500", "item_7"}


def test_as_many_words_as_there_are_are_told_apart() -> None:
    """A catalog with more words than two bytes can number finds each of them."""
    words = ["".join(letters) for letters in islice(product("bcdfghjkmn", repeat=5), 70_000)]
    tools = [
        ToolReference(f"tool_{at}", " ".join(words[at : at + 100])) for at in range(0, 70_000, 100)
    ]
    index = KeywordToolIndex()
    index.index_tools("s", tools)

    for at in (0, 55_296, 57_344, 65_535, 65_536, 69_999):  # where kinds of characters begin, too
        found = index.search(ToolSearchRequest("s", words[at]))
        assert found.tool_names == (f"tool_{at - at % 100}",)
    assert letter_of(sys.maxunicode + 6) == letter_of(5)  # a million words are no error


def test_long_requests_are_read_to_their_end() -> None:
    """Clauses beyond the most that are told apart are taken as one."""
    query = ". ".join(f"Thing number {n}" for n in range(40)) + ". And wash a walrus"

    assert first(query, ToolReference("walrus_wash", "Washes it.")) == "walrus_wash"
    assert len(Words().clauses(query)) == 12


@pytest.mark.skipif(not DATA.exists(), reason="the evaluation data is not here")
def test_real_requests_find_their_tools() -> None:
    """On real tools and requests the index does what the documentation says, and no worse."""
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
def test_other_scripts_are_searched(description: str, query: str) -> None:
    """Where no spaces stand between words, and whichever way accents are written or left out."""
    assert first(query, ToolReference("it", description)) == "it"


def test_only_so_many_words_are_looked_at_for_what_they_could_be() -> None:
    """Each could be hundreds, and a request may be made of nothing but such words."""
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
    ids=["blanks", "marks", "letters", "ats", "numbers", "clauses"],
)
def test_no_query_takes_long(query: str) -> None:
    """A model writes the queries, and whoever talks to it has a say in them."""
    started = time.thread_time()
    found = first(query)
    assert time.thread_time() - started < 0.5  # what takes the square of the length takes seconds
    assert "fence" in found
