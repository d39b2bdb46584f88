"""Which features change a prompt before its end, so that a provider reads it again."""

import itertools
from pathlib import Path

import pytest

from chatclient.observability.prefix import prompt_pieces
from tests.ways.case import Case, Feature
from tests.ways.features import FEATURES
from tests.ways.ways import WAYS

CALL = WAYS[0]
MEMORY = next(feature for feature in FEATURES if feature.name == "window memory")

# What costs.md says about each of them: what changes, once or in each turn.
CHANGES = {
    "skills": "a skill has tools of its own, which are added when it is activated",
    "tool search": "tools are added when they are found",
    "long results": "old results of tools that do not fit are replaced by a text",
    "prompt memory": "the system text has the conversation",
    "summarizing memory": "a summary takes the place of messages",
    "question answering": "the question is remembered without documents",
    "retrieval": "the question is remembered without documents",
    "re-reading": "the question is remembered without the addition",
    "rewriting advisor": "the question is remembered without the addition",
    "entity": "the question is remembered without the instructions",
    "output guardrail": "the answer is remembered without the correction",
    "validated answer": "the answer is remembered without the correction",
}


@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.name)
def test_prompts_only_grow(feature: Feature, tmp_path: Path) -> None:
    """Each request begins with the one before, in three turns, unless the feature is listed."""
    features = [feature] if "memory" in feature.groups else [feature, MEMORY]
    case = Case(features, tmp_path)
    case.questions = tuple(f"Question {number}?" for number in (1, 2, 3))
    try:
        answers = CALL.run(case)
        list(answers)
    except Exception:  # noqa: BLE001 - what was sent until then is compared
        assert feature.ends
    finally:
        case.close()
    sent = [list(prompt_pieces(prompt)) for prompt in case.model.prompts]

    changed = [one for one, other in itertools.pairwise(sent) if other[: len(one)] != one]
    assert bool(changed) == (feature.name in CHANGES)
