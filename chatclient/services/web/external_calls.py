"""Notes in a pending turn which of its calls the frontend itself carries out."""

from collections.abc import Collection
from dataclasses import replace

from chatclient.observability.operations import ClientCall
from chatclient.observability.trail import Trail
from chatclient.tools.function.data_tool import is_external
from chatclient.tools.pending_turn import PendingTurn

_NOTE = "web_external_calls"


def with_external_calls(turn: PendingTurn, trail: Trail) -> PendingTurn:
    """Return *turn* with a note of its calls of external tools.

    The process that resumes the turn may not know its tools.
    """
    names = _external_names(trail)
    ids = [call.id for call in turn.pending if call.name in names and call.id not in turn.agents]
    return replace(turn, notes={**turn.notes, _NOTE: ids})


def external_calls_in(turn: PendingTurn) -> Collection[str]:
    """Return the ids of the calls that the frontend carries out."""
    ids: Collection[str] = turn.notes.get(_NOTE, ())
    return ids


def _external_names(trail: Trail) -> frozenset[str]:
    call = trail.steps[0].operation
    tools = call.prompt.options.tool_callbacks if isinstance(call, ClientCall) else ()
    return frozenset(tool.definition.name for tool in tools or () if is_external(tool))
