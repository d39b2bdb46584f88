"""`DecisionCall`: the operation of a decision model that observers receive."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from chatclient._internal.text import on_one_line
from chatclient.chat.response import ChatResponse
from chatclient.decisions.model import DecisionModel, DecisionRequest, DecisionResponse
from chatclient.extend import dumps
from chatclient.observability.semantic_conventions import provider_name, total_usage
from chatclient.runtime.observation import Attributes, Kind, Operation


@dataclass(slots=True, eq=False)
class DecisionCall(Operation):
    """One call of a decision model; its result is a `DecisionResponse`.

    A `ChatDecisionModel` calls its chat model inside, each time as a `ModelCall`.

    Attributes:
        model: The model.
        request: The request.
        known: What budgets have counted of its response when it has ended; None if nothing was
            sent.
    """

    kind: ClassVar[Kind] = "decision"
    model: DecisionModel
    request: DecisionRequest
    known: ChatResponse | None = None

    @property
    def name(self) -> str:
        """The operation and the model."""
        return f"decide {self.model.name}"

    @property
    def summary(self) -> str:
        """The model and the names of the questions, without probabilities."""
        return f"decision: {self.name}: {on_one_line(', '.join(self.request.questions), 60)}"

    def attributes(self) -> Attributes:
        """Return the model and the names of the questions."""
        return {
            "gen_ai.operation.name": "decide",
            "gen_ai.provider.name": provider_name(self.model.provider),
            "gen_ai.request.model": self.model.name,
            "chatclient.decision.questions": tuple(self.request.questions),
        }

    def outcome(self, result: DecisionResponse) -> Attributes:
        """Return the answering model, the usage, and the refused questions."""
        metadata = result.metadata
        found: dict[str, Any] = {
            "gen_ai.response.id": metadata.id,
            "gen_ai.response.model": metadata.model,
            "chatclient.decision.refused": tuple(filter(result.is_refused, result.results)),
        }
        return total_usage(metadata.usage) | {name: it for name, it in found.items() if it}

    def content(self, result: DecisionResponse | None) -> Mapping[str, str]:
        """Return the input and the answers."""
        found = {"chatclient.decision.input": self.request.text}
        if result is not None:
            found["chatclient.decision.results"] = dumps(result.results).decode()
        return found
