"""Probabilities that a model states in JSON."""

from collections.abc import Mapping
from typing import Any

from chatclient.chat.decision import DecisionAnswer, DecisionQuestion
from chatclient.chat.decision_model import DecisionRequest
from chatclient.errors import InvalidResponseError
from chatclient.structured.decisions.prompts import keyed_questions, labels_of

_PROBABILITY = {"type": "number", "minimum": 0, "maximum": 1}


def probabilities_schema(request: DecisionRequest) -> dict[str, Any]:
    """Return the JSON Schema of the probabilities by question and label."""
    return _object({key: _of_question(it) for key, it in keyed_questions(request).items()})


def _of_question(question: DecisionQuestion) -> dict[str, Any]:
    return _object(dict.fromkeys(labels_of(question), _PROBABILITY))


def _object(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def stated_answers(
    request: DecisionRequest, stated: Mapping[str, Mapping[str, float]]
) -> dict[str, DecisionAnswer]:
    """Return the answers from the *stated* probabilities, which satisfy the schema.

    Models do not sum them up to 1; they are scaled.

    Raises:
        InvalidResponseError: All outcomes of a question have the probability 0.
    """
    answers: dict[str, DecisionAnswer] = {}
    for name, (key, question) in zip(
        request.questions, keyed_questions(request).items(), strict=True
    ):
        found = stated[key]
        total = sum(found.values())
        if not total:
            msg = f"the model gives no outcome of the question {name!r} a probability"
            raise InvalidResponseError(msg, body=stated)
        labels = labels_of(question)
        answers[name] = question.answer({labels[it]: found[it] / total for it in found})
    return answers
