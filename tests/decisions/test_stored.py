"""Answers of decision models, stored and read."""

import json
import subprocess
import sys
from typing import Any

import pytest

from chatclient.chat.stored_values import from_stored, to_stored
from chatclient.decisions import (
    ChoiceQuestion,
    DecisionMetadata,
    DecisionRefusal,
    DecisionResponse,
    ScoreQuestion,
    YesNoAnswer,
)

TEAM = ChoiceQuestion("Which team?", {"billing": "invoices", "sales": ""})
ANGER = ScoreQuestion("How angry?", ["calm", "furious"])
VALUES = [
    YesNoAnswer(0.5),
    TEAM.answer({"billing": 0.75, "sales": 0.25}),
    ANGER.answer({"calm": 0.0, "furious": 1.0}),
    DecisionRefusal("no"),
    DecisionMetadata("1", "m"),
    DecisionResponse({"it": YesNoAnswer(0.5)}),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_reads_what_was_stored(value: Any) -> None:
    """A value is read as an equal one, also by a process that has not loaded the package."""
    stored = json.dumps(to_stored({"it": value}))
    code = (
        "import json, sys; from chatclient.chat.stored_values import from_stored;"
        "print(type(from_stored(json.loads(sys.argv[1]))['it']).__name__)"
    )
    ran = subprocess.run([sys.executable, "-c", code, stored], capture_output=True, check=True)

    assert from_stored(json.loads(stored))["it"] == value
    assert ran.stdout.decode().strip() == type(value).__name__
