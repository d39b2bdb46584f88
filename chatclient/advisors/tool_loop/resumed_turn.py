"""`ResumedTurn`: a suspended turn that continues with the decisions about its calls."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from chatclient.chat.messages import Message
from chatclient.chat.parts import call_key
from chatclient.chat.prompt import Prompt
from chatclient.chat.tool import HANDOFF
from chatclient.chat.turn import Turn
from chatclient.errors import ToolLoopError
from chatclient.runtime.runtime import Runtime
from chatclient.tools.execution.approval import Decision
from chatclient.tools.execution.compensation import with_undone
from chatclient.tools.execution.manager import ToolCallingManager
from chatclient.tools.execution.result import ToolExecutionResult
from chatclient.tools.execution.turn import ToolTurn
from chatclient.tools.pending_turn import PendingTurn


class ResumedTurn:
    """A suspended turn and the decisions about its calls; it runs each call once.

    An advisor outside of the loop may send its request again, for a better answer or because the
    model was busy. The approved calls have been run then, and their results are used again.

    Args:
        pending: The suspended turn.
        decisions: The decisions, by tool call id.

    Attributes:
        usage: The usage of the turn before it was suspended, until a response has reported it.
        result: What the calls of the suspended round returned, once they were run.
        handed_over: The same for the client that the turn was handed to, or None.
    """

    def __init__(self, pending: PendingTurn, decisions: Mapping[str, Decision]) -> None:
        self.pending = pending
        self.decisions = decisions
        self.usage = pending.usage
        self.result: ToolExecutionResult | None = None
        self.handed_over: ResumedTurn | None = None
        self._sent = 0
        self._turn: ToolTurn | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.pending, self.decisions)

    @property
    def started(self) -> bool:
        """Whether the calls were started."""
        return self._turn is not None

    def inside_handoff(self) -> "ResumedTurn":
        """Return the same for the client that the turn was handed to; see `handover`."""
        if self.handed_over is None:
            notes = self.pending.notes[HANDOFF]["notes"]
            self.handed_over = ResumedTurn(replace(self.pending, notes=notes), self.decisions)
        return self.handed_over

    async def run(
        self, prompt: Prompt, manager: ToolCallingManager, runtime: Runtime, turn: ToolTurn
    ) -> ToolExecutionResult:
        """Return the result of the suspended round.

        Args:
            prompt: The prompt that the loop was called with.
            manager: Runs the calls.
            runtime: The request's runtime.
            turn: The state of the tools for the turn, still empty.

        Raises:
            UsageError: The decisions cannot be carried out; nothing was run.
            ToolLoopError: The calls were started before, and their outcome is unknown.
        """
        if self._turn is not None:
            return self._reuse_result(self._turn, turn)
        self._turn, self._sent = turn, len(prompt.messages)
        try:
            self.result = await manager.resume(
                self.pending, self.decisions, prompt.options, runtime, turn
            )
        finally:
            if not turn.resumed:  # still suspended, and may be resumed again
                self._turn = None
        return self.result

    def added_since(self, prompt: Prompt, turn: Turn) -> Sequence[Message]:
        """Return what an advisor has added to *prompt* since the calls were run.

        The round of these calls itself is left out; the result has it.
        """
        result = self.result
        known = {m.id for m in result.conversation_history if m.id} if result else set[str]()
        return [m for m in turn.updated(prompt.messages[self._sent :]) if m.id not in known]

    def _reuse_result(self, first: ToolTurn, turn: ToolTurn) -> ToolExecutionResult:
        """Return the result again, with the calls that have been undone since."""
        result = self.result
        if result is None:
            turn.abandoned = True  # what could be undone has been undone
            msg = (
                "the calls of the resumed turn were started but did not finish; they are not run "
                "again unless somebody resumes the turn again"
            )
            raise ToolLoopError(msg)
        turn.resume(self.pending)
        turn.compensation.repeat(first.compensation)
        result = with_undone(result, first.compensation.undone)
        answered = {response.id for response in self.pending.responses}
        known = turn.compensation.by_key()
        for execution in result.executions:
            if execution.tool_call.id not in answered:
                turn.remember(execution)
                if call_key(execution.tool_call) not in known:
                    turn.executions.append(execution)
        turn.end_round()
        turn.calls.update(call.name for call in (*self.pending.pending, *self.pending.held))
        for call in self.pending.message.tool_calls:
            turn.keys.next_ordinal(call)
        return result
