"""Probabilities of outcomes from the log probabilities of tokens."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from chatclient.chat.response import ChatResponse
from chatclient.errors import InvalidResponseError
from chatclient.structured.decisions.prompts import Labels

_LEAST_PROBABILITY = 0.01  # of all labels together; less is noise
_AROUND = " \t\r\n\"'`*_.,:;()[]<>"


def outcome_probabilities(response: ChatResponse, labels: Labels) -> dict[str, float]:
    """Return the probability of each outcome, from the first token of *response* that is a label.

    If none is, from the alternatives of the first token. The probabilities of the tokens that stand
    for labels are normalised to a sum of 1.

    Raises:
        InvalidResponseError: There are no log probabilities, or hardly any for the labels.
    """
    tokens = list(_tokens(response))
    if not tokens:
        msg = (
            "the model reported no log probabilities; ask it for probabilities instead, with"
            " ChatDecisionModel(model, logprobs=False)"
        )
        raise InvalidResponseError(msg, body=response.text)
    chosen = next((token for token in tokens if _label(token, labels) is not None), tokens[0])
    sums = _label_probabilities(chosen, labels)
    total = sum(sums.values())
    if total < _LEAST_PROBABILITY:
        msg = (
            f"the model did not begin with one of {', '.join(labels)}; if it reasons first, switch"
            " that off, or use ChatDecisionModel(model, logprobs=False)"
        )
        raise InvalidResponseError(msg, body=response.text)
    return {outcome: value / total for outcome, value in sums.items()}


def _tokens(response: ChatResponse) -> Iterator[Mapping[str, Any]]:
    """Yield the tokens with their alternatives; the form is that of OpenAI or Ollama."""
    found: Any = None if response.result is None else response.result.metadata.get("logprobs")
    if isinstance(found, Mapping):
        found = found.get("content")
    if isinstance(found, Sequence) and not isinstance(found, str):
        yield from (each for each in found if isinstance(each, Mapping))


def _label(token: Mapping[str, Any], labels: Labels) -> str | None:
    """Return the label that *token* stands for; words in any case, letters exactly."""
    text = str(token.get("token", "")).strip(_AROUND)
    if len(text) > 1:
        text = text.capitalize()
    return text if text in labels else None


def _label_probabilities(token: Mapping[str, Any], labels: Labels) -> dict[str, float]:
    """Return the probabilities of the outcomes at the place of *token*; spellings are summed up."""
    sums = dict.fromkeys(labels.values(), 0.0)
    alternatives = {str(each.get("token")): each for each in token.get("top_logprobs") or ()}
    # The token itself is not among the alternatives if it is not one of the most probable.
    for each in {str(token.get("token")): token, **alternatives}.values():
        label = _label(each, labels)
        logprob = each.get("logprob")
        if label is not None and isinstance(logprob, int | float):
            sums[labels[label]] += math.exp(min(logprob, 0.0))
    return sums
