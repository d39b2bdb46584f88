"""Which calls of a turn that waits are carried out by the frontend itself."""

from collections.abc import Collection

from chatclient.tools.pending_turn import EXTERNAL_CALLS, PendingTurn


def external_calls_in(turn: PendingTurn) -> Collection[str]:
    """Return the ids of the calls that the frontend carries out."""
    ids: Collection[str] = turn.notes.get(EXTERNAL_CALLS, ())
    return ids
