"""Calls decision models, with observation (`DecisionCall`) and deadline."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from chatclient._internal.text import on_one_line
from chatclient.chain.model_call import (
    NOTHING_KNOWN,
    correct_failed,
    count_known,
    count_replayed,
    current_ledger,
    dump_known,
)
from chatclient.chat.recorder import TurnStep
from chatclient.chat.response import ChatResponse, ChatResponseMetadata
from chatclient.chat.serialization import error_from_dict, error_to_dict
from chatclient.chat.turn import present_recorder
from chatclient.decisions.model import (
    DecisionModel,
    DecisionRequest,
    DecisionResponse,
    decide_checked,
)
from chatclient.errors import DeadlineExceededError, RequestTimeoutError, UsageError
from chatclient.extend import dumps, from_stored, to_stored
from chatclient.observability.observers import all_observers
from chatclient.observability.semantic_conventions import provider_name, total_usage
from chatclient.runtime.observation import Attributes, Kind, Operation
from chatclient.runtime.runtime import Runtime, deadline_error, is_expired


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


async def ask_decision(
    model: DecisionModel, request: DecisionRequest, runtime: Runtime
) -> DecisionResponse:
    """Return the response of *model* to *request*, for advisors and tools.

    The call is observed, appears in the trail, and counts in a `Budget`.

    Args:
        model: The model.
        request: The request.
        runtime: The runtime of the request, usually `request.runtime`. Nothing is streamed.

    Raises:
        DeadlineExceededError: The deadline has passed.
        ProviderError: The provider failed or refused the request.
    """
    runtime = runtime.silent()
    if runtime.steps is None:  # outside of a client's request, which has the client's observers
        runtime = runtime.for_request(None, runtime.observers or all_observers())
    call = DecisionCall(model, request)
    # A model that asks chat models records those calls, which count in budgets.
    recorder = None if model.asks_models else present_recorder()
    if recorder is not None:
        return await recorder.step(_step_of(call, runtime), runtime)
    return await _decide(call, runtime)


async def _decide(call: DecisionCall, runtime: Runtime) -> DecisionResponse:
    runtime.check_cancelled()
    if not runtime.remaining():
        msg = "the deadline passed before the decision model was called"
        raise DeadlineExceededError(msg)
    ledger = None if call.model.asks_models else current_ledger()
    entry = None if ledger is None else await ledger.enter(call, runtime)
    try:
        with runtime.observe(call) as observed:
            try:
                response = await decide_checked(call.model, call.request, runtime)
            except RequestTimeoutError as error:
                if not is_expired(runtime):
                    raise
                raise deadline_error(error) from error
            observed.result = response
    except BaseException as error:
        call.known = None if isinstance(error, UsageError) else NOTHING_KNOWN
        await correct_failed(entry, call.known, runtime)
        raise
    call.known = _counted(response)
    if entry is not None:
        # Shielded: the call has been made, and a cancellation must not lose its usage.
        await runtime.shielded(entry.correct(call.known, runtime))
    return response


def _counted(response: DecisionResponse) -> ChatResponse:
    """Return what budgets count of *response*."""
    metadata = response.metadata
    return ChatResponse((), ChatResponseMetadata(metadata.id, metadata.model, metadata.usage))


def _step_of(call: DecisionCall, runtime: Runtime) -> TurnStep[DecisionResponse]:
    """Return the decision as a step of a turn."""
    model, request = call.model, call.request
    questions = to_stored({"input": request.input, "questions": request.typed_questions})
    digest = hashlib.sha256(dumps(questions)).hexdigest()[:16]

    def dump(outcome: DecisionResponse | Exception) -> dict[str, Any]:
        if isinstance(outcome, Exception):
            return {"error": error_to_dict(outcome), **dump_known(call)}
        return to_stored({"response": outcome})

    async def load(recorded: dict[str, Any]) -> DecisionResponse:
        if "error" in recorded:
            count_known(recorded)
            raise error_from_dict(recorded["error"])
        with replace(runtime, observers=()).observe(call) as observed:
            response: DecisionResponse = from_stored(recorded["response"])
            observed.result = response
        count_replayed(_counted(response))
        return response

    return TurnStep(
        "decision",
        f"decide {model.name} {digest}",
        lambda runtime: _decide(call, runtime),
        dump,
        load,
    )
