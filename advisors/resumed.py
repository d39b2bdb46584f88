"""A turn that goes on after it has waited for approval."""

from collections.abc import Mapping, Sequence
from typing import Any

from chatclient.errors import ToolLoopError
from chatclient.messages import Message
from chatclient.prompt import Prompt
from chatclient.runtime import Runtime
from chatclient.tools import Decision, PendingTurn, ToolCallingManager, ToolExecutionResult
from chatclient.tools.compensation import with_undone
from chatclient.tools.turn import ToolTurn


class Resumed:
    """What has been decided about a turn that waited: its calls are run once, and no more.

    An advisor outside of the loop may send its request again, for a better answer or because the
    model was busy. The calls that were approved have been run then; their answers are used again.

    Args:
        pending: The turn.
        decisions: What was decided, by tool call id.

    Attributes:
        usage: What the turn had cost before it waited, until an answer has told it.
    """

    def __init__(self, pending: PendingTurn, decisions: Mapping[str, Decision]) -> None:
        self.pending = pending
        self.decisions = decisions
        self.usage = pending.usage
        self._sent = 0
        self._turn: ToolTurn | None = None
        self._result: ToolExecutionResult | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.pending, self.decisions)

    async def run(
        self, prompt: Prompt, manager: ToolCallingManager, runtime: Runtime, turn: ToolTurn
    ) -> ToolExecutionResult:
        """Return what came of the calls that waited.

        Args:
            prompt: What the loop was sent.
            manager: Runs the calls.
            runtime: How the request runs.
            turn: The turn as it goes on, with nothing done yet.

        Raises:
            UsageError: The decisions cannot be carried out; nothing was run.
            ToolLoopError: The calls were begun before, and nobody knows what came of them.
        """
        if self._turn is not None:
            return self._again(self._turn, turn)
        self._turn, self._sent = turn, len(prompt.messages)
        try:
            self._result = await manager.resume(
                self.pending, self.decisions, prompt.options, runtime, turn
            )
        finally:
            if not turn.resumed:  # it still waits, and may be gone on with
                self._turn = None
        return self._result

    def said_since(self, prompt: Prompt) -> Sequence[Message]:
        """Return what an advisor has added to *prompt* since the calls were run."""
        return prompt.messages[self._sent :]

    def _again(self, first: ToolTurn, turn: ToolTurn) -> ToolExecutionResult:
        """Return the result once more, with what has been undone since."""
        result = self._result
        if result is None:
            turn.abandoned = True  # what there was to undo has been undone
            msg = (
                "the calls of the resumed turn were started but did not finish; they are not run "
                "again unless somebody resumes the turn again"
            )
            raise ToolLoopError(msg)
        turn.resume(self.pending)
        turn.undone.update(first.undone)
        # They came to an answer that has stayed.
        turn.settled |= first.by_identity().keys() - turn.earlier
        result = with_undone(result, first.undone)
        answered = {response.id for response in self.pending.responses}
        known = turn.by_identity()
        for execution in result.executions:
            if execution.tool_call.id not in answered:
                turn.remember(execution)
                if id(execution.tool_call) not in known:
                    turn.executions.append(execution)
        turn.end_round()
        turn.calls.update(call.name for call in self.pending.pending)
        for call in self.pending.message.tool_calls:
            turn.ordinal(call)
        return result
