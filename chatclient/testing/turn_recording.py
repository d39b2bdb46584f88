"""`TurnRecording`: what happened in a turn, as a file from which a test replays it."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from chatclient._internal.checks import check_type
from chatclient._internal.json import dumps, loads
from chatclient.chat.messages import Message
from chatclient.chat.prompt import Prompt
from chatclient.chat.serialization import (
    call_to_dict,
    error_to_dict,
    message_from_dict,
    message_to_dict,
    response_to_dict,
    tool_response_to_dict,
)
from chatclient.chat.stored_values import LEFT_OUT, from_stored, to_stored
from chatclient.errors import UsageError
from chatclient.observability.operations import (
    WAITS,
    ClientCall,
    MemoryAccess,
    ModelCall,
    ToolRun,
)
from chatclient.observability.prefix import PromptPiece, prompt_pieces
from chatclient.observability.trail import Trail
from chatclient.runtime.observation import Step
from chatclient.testing.recording import Redact, redacted_json, set_options, unchanged

RecordedKind: TypeAlias = Literal["model", "question", "decision", "memory", "tool"]
"""The kinds of recorded steps, as those of a `TurnStep`."""

StepPath: TypeAlias = tuple[str, ...]
"""The ids of the calls to the agents within which a step happened; empty for the turn itself, and
an empty id for a client that an advisor asked."""


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """A step of a turn.

    Attributes:
        kind: What it is.
        path: Where in the turn it happened.
        result: What it returned, or the error, as `TurnStep.load` reads it; of a tool call, the
            call and its response.
        pieces: What was sent to the model; empty for other steps.
        options: The options that were sent to the model.
    """

    kind: RecordedKind
    path: StepPath
    result: Mapping[str, Any]
    pieces: tuple[PromptPiece, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TurnRecording:
    """A turn, as JSON values that a test can replay; see `replay_turn`.

    Attributes:
        messages: The messages of the request, without system messages.
        params: The advisor params of the request, such as the id of the conversation.
        steps: The model calls, tool calls, decisions, and readings of memories.
        answer: The text of the answer; empty if the turn has failed or waits.
        redact: Applied to all texts when the turn was recorded, and to those of replays before they
            are compared.
    """

    messages: tuple[Message, ...]
    params: Mapping[str, Any]
    steps: tuple[RecordedStep, ...]
    answer: str
    redact: Redact = unchanged

    @classmethod
    def of(cls, trail: Trail, *, redact: Redact = unchanged) -> "TurnRecording":
        """Return the recording of a turn that has ended.

        Args:
            trail: The trail of the turn: `answer.trail()`, or `error.trail` of one that failed.
            redact: Replaces secrets in each text. Strings within JSON, such as arguments, are
                redacted separately, unescaped.

        Raises:
            UsageError: The trail is not that of a request of a client.
        """
        check_type("a trail", trail, Trail)
        call = trail.steps[0].operation if trail.steps else None
        if not isinstance(call, ClientCall):
            msg = "only the trail of a client's request can be recorded: answer.trail()"
            raise UsageError(msg)
        result = trail.steps[0].result
        data = {
            "messages": [message_to_dict(message) for message in trail.request_messages],
            "params": dict(call.context),
            "answer": "" if result is None or call.turn.pending is not None else result.text,
        }
        data = redacted_json(loads(dumps(to_stored(data))), redact)
        steps = [_recorded(path, step, redact) for path, step in steps_within(trail.steps)]
        return _from_dict(data, [step for step in steps if step is not None], redact)

    @classmethod
    def load(cls, path: str | Path, *, redact: Redact = unchanged) -> "TurnRecording":
        """Read a file that `save` has written.

        Args:
            path: The file.
            redact: The function with which it was recorded.

        Raises:
            OSError: The file cannot be read.
            UsageError: It is not the recording of a turn.
        """
        try:
            data = loads(Path(path).read_bytes())
            return _from_dict(data, list(_steps_from_list(data["steps"])), redact)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            msg = f"{path} is not the recording of a turn: {error!r}"
            raise UsageError(msg) from error

    def save(self, path: str | Path) -> None:
        """Write an indented JSON file.

        Raises:
            OSError: The file cannot be written.
        """
        data = {
            "messages": to_stored({"of": [message_to_dict(each) for each in self.messages]})["of"],
            "params": to_stored(dict(self.params)),
            "answer": self.answer,
            "steps": list(_steps_to_list(self.steps)),
        }
        text = json.dumps(data, indent=1, ensure_ascii=False) + "\n"
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        # Lone surrogates, which some models emit, become JSON escapes.
        path.write_bytes(text.encode("utf-8", "backslashreplace"))


def steps_within(steps: Sequence[Step], path: StepPath = ()) -> Iterator[tuple[StepPath, Step]]:
    """Yield *steps* and those of nested requests, with their paths."""
    for step in steps:
        yield path, step
        run = step.operation
        inner = (*path, run.call.id if isinstance(run, ToolRun) else "")
        for nested in step.turns or ():
            yield from steps_within(nested, inner)


def pieces_of(prompt: Prompt, redact: Redact) -> tuple[PromptPiece, ...]:
    """Return what is sent of *prompt*, redacted."""
    return tuple(
        piece if redact is unchanged else PromptPiece(piece.kind, _redacted_json(piece, redact))
        for piece in prompt_pieces(prompt)
    )


def options_of(prompt: Prompt, redact: Redact) -> dict[str, Any]:
    """Return the options of *prompt* as JSON values, redacted."""
    options: dict[str, Any] = redacted_json(
        loads(dumps(to_stored(set_options(prompt.options)))), redact
    )
    return options


def _redacted_json(piece: PromptPiece, redact: Redact) -> str:
    return dumps(redacted_json(loads(piece.text), redact)).decode()


def _recorded(path: StepPath, step: Step, redact: Redact) -> RecordedStep | None:
    """Return *step* as it is recorded; None if it is repeated."""
    match step.operation:
        case ModelCall(prompt=prompt, auxiliary=auxiliary):
            value = None if step.result is None else response_to_dict(step.result)
            result = _outcome("response", value, step, redact)
            kind: RecordedKind = "question" if auxiliary else "model"
            pieces = pieces_of(prompt, redact)
            return RecordedStep(kind, path, result, pieces, options_of(prompt, redact))
        case MemoryAccess(access="load"):
            found = None if step.result is None else [message_to_dict(m) for m in step.result]
            return RecordedStep("memory", path, _outcome("messages", found, step, redact))
        case ToolRun(call=call):
            response = None
            if step.result is not None and WAITS not in step.found:
                response = {**tool_response_to_dict(step.result.response), "metadata": {}}
            data = {"call": call_to_dict(call), "response": response}
            return RecordedStep("tool", path, _json(data, redact))
    if step.operation.kind == "decision":
        return RecordedStep("decision", path, _outcome("response", step.result, step, redact))
    return None


def _outcome(name: str, value: Any, step: Step, redact: Redact) -> dict[str, Any]:
    error = step.error
    if value is not None and not isinstance(error, Exception):
        return _json({name: value}, redact)
    return _json({"error": error_to_dict(error or RuntimeError("not ended"))}, redact)


def _json(data: Mapping[str, Any], redact: Redact) -> dict[str, Any]:
    result: dict[str, Any] = redacted_json(loads(dumps(to_stored(data))), redact)
    return result


def _steps_to_list(steps: Sequence[RecordedStep]) -> Iterator[dict[str, Any]]:
    """Yield *steps* as JSON values; a prompt says only what differs from the one before."""
    before: dict[StepPath, tuple[PromptPiece, ...]] = {}
    for step in steps:
        data: dict[str, Any] = {"kind": step.kind}
        if step.path:
            data["path"] = step.path
        if step.kind in ("model", "question"):
            known, same = before.get(step.path, ()), 0
            while step.pieces[: same + 1] == known[: same + 1] and same < len(step.pieces):
                same += 1
            before[step.path] = step.pieces
            data["same"] = same
            data["pieces"] = [{p.kind: loads(p.text)} for p in step.pieces[same:]]
            data["options"] = step.options
        yield {**data, "result": step.result}


def _steps_from_list(data: Sequence[Mapping[str, Any]]) -> Iterator[RecordedStep]:
    """Yield the steps that `_steps_to_list` has yielded."""
    before: dict[StepPath, tuple[PromptPiece, ...]] = {}
    for each in data:
        path = tuple(each.get("path", ()))
        pieces: tuple[PromptPiece, ...] = ()
        if each["kind"] in ("model", "question"):
            new = [(kind, value) for piece in each["pieces"] for kind, value in piece.items()]
            pieces = before.get(path, ())[: each["same"]]
            pieces += tuple(PromptPiece(kind, dumps(value).decode()) for kind, value in new)
            before[path] = pieces
        options = each.get("options", {})
        yield RecordedStep(each["kind"], path, each["result"], pieces, options)


def _from_dict(
    data: Mapping[str, Any], steps: Sequence[RecordedStep], redact: Redact
) -> TurnRecording:
    messages = from_stored({"of": data["messages"]})["of"]
    params = {name: v for name, v in from_stored(data["params"]).items() if name != LEFT_OUT}
    return TurnRecording(
        tuple(message_from_dict(each) for each in messages),
        params,
        tuple(steps),
        data["answer"],
        redact,
    )
