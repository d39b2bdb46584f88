"""Every feature works in every way of running as it does with `call`, alone and with others."""

import itertools
import os
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from chatclient.durable import launch
from tests.support.examples import day, some
from tests.ways.case import Case, Feature, Outcome
from tests.ways.features import FEATURES
from tests.ways.ways import WAYS, McpFailedError, Way, WebError

CALL, *OTHERS = WAYS
BY_NAME = {feature.name: feature for feature in FEATURES}
MEMORY = BY_NAME["window memory"]
WAITS = ("approval", "external tool", "agent with approval")

# What a way does otherwise by its nature: what is not compared, and why.
EXCEPTIONS: dict[tuple[str, str], str] = {
    **{("MCP server", feature): "a client of MCP cannot decide about a call" for feature in WAITS},
    **{("called by an advisor", feature): "an advisor cannot wait: an error" for feature in WAITS},
    ("after a handoff", "prompt memory"): "the system text shows the call of the handoff",
    ("after a handoff", "tool search by name"): "the model sees the call of the handoff by name",
    ("regenerated", "tool search"): "the tools that the first answer found are offered",
    ("regenerated", "vector memory"): "a vector store has no order in which to go back",
    ("regenerated", "summarizing memory"): "a message that was summarized cannot be replaced",
    **{("stopped and asked again", each): "who waits for a decision gets one" for each in WAITS},
    ("stopped and asked again", "tool search"): "the tools that the first answer found are offered",
    ("stopped and asked again", "summarizing memory"): "a summarized message cannot be replaced",
    ("stopped and asked again", "vector memory"): "a vector store stores complete turns only",
    ("stopped and asked again", "blocked question"): "a refused question is not stored",
}
# Faults that are not repaired yet, by the feature: the ways. A repair removes its entry.
FAULTS: dict[str, tuple[str, ...]] = {}


@pytest.fixture(scope="module", autouse=True)
def _engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    path = tmp_path_factory.mktemp("ways") / "turns.db"
    # No turn is put into a queue, so none is polled.
    with launch(f"sqlite:///{path}", takeover_seconds=60, listen=()):
        yield


def run(way: Way, features: Sequence[Feature], folder: Path, questions: int = 2) -> Outcome:
    """Return what becomes of a conversation with *features*; an error takes an answer's place."""
    folder.mkdir(parents=True, exist_ok=True)
    case, answers = Case(features, folder), list[str]()
    case.questions = case.questions[:questions]
    try:
        for text in way.run(case):
            answers.append(text)
    except (WebError, McpFailedError) as error:
        answers.append(f"error {error}")
    except Exception as error:  # noqa: BLE001 - compared
        answers.append(f"error {type(error).__name__}")
    finally:
        case.close()
    return case.outcome(answers)


def differences(features: Sequence[Feature], folder: Path) -> dict[str, list[str]]:
    """Return how *features* work otherwise than with `call`, by the name of the way."""
    numbers = itertools.count()
    expected: dict[bool, Outcome] = {}
    found: dict[str, list[str]] = {}
    for way in OTHERS:
        if any((way.name, feature.name) in EXCEPTIONS for feature in features):
            continue
        given = list(features)
        if any(feature.entity for feature in given) and not way.entity:
            continue  # there is no way to ask for a typed answer
        if way.doubled and not any("memory" in feature.groups for feature in given):
            given.append(MEMORY)
        if way.doubled not in expected:
            expected[way.doubled] = run(CALL, given, folder / f"{next(numbers)}")
        wanted = expected[way.doubled]
        outcome = run(way, given, folder / f"{next(numbers)}", len(wanted.answers))
        compared = ["answers", "stored"] if way.doubled else list(vars(wanted))
        failed = wanted.answers[-1].startswith("error")
        if failed and way.tells_errors:
            compared.remove("answers")
        if failed and way.shows:
            compared.remove("stored")
            if BY_NAME["summarizing memory"] in given:  # and so may be summarized
                compared = [name for name in compared if name not in ("calls", "usage")]
        lines = [
            f"{name}: {getattr(outcome, name)} instead of {getattr(wanted, name)}"
            for name in compared
            if getattr(outcome, name) != getattr(wanted, name)
        ]
        if way.doubled and wanted.usage[0] == wanted.calls != 0 != outcome.usage[0] - outcome.calls:
            lines.append(f"usage: {outcome.usage[0]} of {outcome.calls} calls")
        if lines:
            found[way.name] = lines
    return found


def check(features: Sequence[Feature], folder: Path) -> None:
    """Check *features* together, without the ways in which one of them is known to fail."""
    found = differences(features, folder)
    for feature in features:
        for name in FAULTS.get(feature.name, ()):
            found.pop(name, None)
    assert found == {}, names_of(features)


@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.name)
def test_single_features(feature: Feature, tmp_path: Path) -> None:
    """A feature alone gives the same answers, effects, messages and usage in every way."""
    found = differences([feature], tmp_path)

    known = FAULTS.get(feature.name, ())
    assert {way: lines for way, lines in found.items() if way not in known} == {}
    assert set(found) == set(known)


def table() -> list[str]:
    """Return the lines of the table in the docs: what is not the same in every way, and why."""
    rows: dict[tuple[str, str], list[str]] = {}
    for (way, feature), reason in EXCEPTIONS.items():
        rows.setdefault((way, reason), []).append(feature)
    lines = [f"| {way} | {', '.join(names)} | {why} |" for (way, why), names in rows.items()]
    untyped = ", ".join(way.name for way in OTHERS if not way.entity)
    typed = ", ".join(feature.name for feature in FEATURES if feature.entity)
    lines.append(f"| {untyped} | {typed} | there is no way to ask for a typed answer |")
    return ["| way | feature | reason |", "|---|---|---|", *lines]


def test_table_in_the_docs() -> None:
    """The docs have the present exceptions; if this fails, replace the table by this one."""
    page = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text(encoding="utf-8")
    compared = f"{len(FEATURES)} features in {len(WAYS)} ways"

    assert "\n".join(table()) in page
    assert compared in page


def fit(features: Sequence[Feature]) -> bool:
    """Return whether *features* can be used together."""
    words = [word for feature in features for word in feature.groups]
    return len(set(features)) == len(features) and len(set(words)) == len(words)


def hides(feature: Feature) -> set[str]:
    """Return what keeps other features from showing in a set with *feature*.

    That is the ways that cannot be compared, and the feature itself if it ends a turn early.
    """
    ways = {way.name for way in OTHERS if (way.name, feature.name) in EXCEPTIONS}
    if feature.entity:
        ways |= {way.name for way in OTHERS if not way.entity}
    return ways | ({feature.name} if feature.ends else set())


def covering_sets(size: int) -> list[tuple[Feature, ...]]:
    """Return sets of up to *size* features so that each pair that fits is in one.

    A pair counts only in a set in which no other feature hides anything more.
    """
    hidden = [frozenset(hides(feature)) for feature in FEATURES]
    positions = range(len(FEATURES))
    missing = {
        (a, b) for a, b in itertools.combinations(positions, 2) if fit([FEATURES[a], FEATURES[b]])
    }
    sets = []
    while missing:
        members = list(min(missing))
        hide = hidden[members[0]] | hidden[members[1]]
        fitting = [at for at in positions if hidden[at] <= hide]
        gains = Counter[int]()  # of each feature: the number of missing pairs with the members
        for newest in members:
            fitting = [at for at in fitting if fit((FEATURES[newest], FEATURES[at]))]
            for at in fitting:
                pair = min(at, newest), max(at, newest)
                gains[at] += pair in missing and hidden[at] | hidden[newest] == hide
            best = max(fitting, key=lambda at: gains[at], default=newest)
            if newest is members[-1] and len(members) < size and gains[best] and best != newest:
                members.append(best)
        members.sort()
        for a, b in itertools.combinations(members, 2):
            if hidden[a] | hidden[b] == hide:
                missing.discard((a, b))
        sets.append(tuple(FEATURES[at] for at in members))
    return sets


PAIRS = covering_sets(20)


def names_of(features: Sequence[Feature]) -> str:
    return ", ".join(feature.name for feature in features)


@pytest.mark.parametrize("features", some(PAIRS), ids=names_of)
def test_pairs(features: Sequence[Feature], tmp_path: Path) -> None:
    """Two features work together in every way; each pair is in one of these sets."""
    check(features, tmp_path)


SEED = os.environ.get("WAYS_SEED", str(day()))


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", range(int(os.environ.get("WAYS_SETS", "100"))))
def test_random_sets_of_five(number: int, tmp_path: Path) -> None:
    """Five features work together in every way.

    `WAYS_SEED` chooses other sets than those of this day, and `WAYS_SETS` how many.
    """
    choose = random.Random(f"{SEED} {number}")
    features: list[Feature] = []
    while len(features) < 5:
        feature = choose.choice(FEATURES)
        if feature not in features and fit([*features, feature]):
            features.append(feature)
    check(features, tmp_path)
