"""`ResumedRound`: the round in which a turn was suspended, with the decisions about its calls."""

from collections.abc import Sequence
from typing import Self

from chatclient.chat.messages import Message
from chatclient.chat.parts import call_key
from chatclient.chat.pending_turn import Resumption
from chatclient.chat.prompt import Prompt
from chatclient.chat.recorder import Recorder
from chatclient.chat.turn import Turn
from chatclient.errors import ToolLoopError
from chatclient.runtime.runtime import Runtime
from chatclient.tools.execution.compensation import with_undone
from chatclient.tools.execution.manager import ToolCallingManager
from chatclient.tools.execution.result import ToolExecutionResult
from chatclient.tools.execution.state import ToolState


class ResumedRound:
    """The round in which a turn was suspended; its calls run once.

    An advisor outside of the loop may send its request again, for a better answer or because the
    model was busy. The approved calls have been run then, and their results are used again.

    Args:
        resumption: The suspended turn and the decisions.
        recorder: The recorder of the turn, or None.

    Attributes:
        recorder: The recorder of the turn, or None.
        usage: The usage of the turn before it waited, until a response has reported it.
        result: What the calls returned, once they were run.
    """

    def __init__(self, resumption: Resumption, recorder: Recorder | None) -> None:
        self.pending = resumption.pending
        self.usage = resumption.pending.usage
        self.result: ToolExecutionResult | None = None
        self._decisions = resumption.decisions
        self.recorder = recorder
        self._sent = 0
        self._state: ToolState | None = None

    @classmethod
    def of(cls, resumption: Resumption, turn: Turn) -> Self:
        """Return the round of *resumption*, the same one each time.

        Another execution of a recorded *turn* has its own: the record says which calls were run.
        """
        found: Self | None = resumption.round
        if found is None or found.recorder is not turn.recorder:
            found = resumption.round = cls(resumption, turn.recorder)
        return found

    @property
    def started(self) -> bool:
        """Whether the calls were started."""
        return self._state is not None

    async def run(
        self, prompt: Prompt, manager: ToolCallingManager, runtime: Runtime, state: ToolState
    ) -> ToolExecutionResult:
        """Return the result of the suspended round.

        Args:
            prompt: The prompt that the loop was called with.
            manager: Runs the calls.
            runtime: The request's runtime.
            state: The state of the tools, still empty.

        Raises:
            UsageError: The decisions cannot be carried out; nothing was run.
            ToolLoopError: The calls were started before, and their outcome is unknown.
        """
        if self._state is not None:
            return self._reuse_result(self._state, state)
        self._state, self._sent = state, len(prompt.messages)
        try:
            self.result = await manager.resume(
                self.pending, self._decisions, prompt.options, runtime, state
            )
        finally:
            if not state.resumed:  # still suspended, and may be resumed again
                self._state = None
        return self.result

    def added_since(self, prompt: Prompt, turn: Turn) -> Sequence[Message]:
        """Return what an advisor has added to *prompt* since the calls were run.

        The round of these calls itself is left out; the result has it.
        """
        result = self.result
        known = {m.id for m in result.conversation_history if m.id} if result else set[str]()
        return [m for m in turn.updated(prompt.messages[self._sent :]) if m.id not in known]

    def _reuse_result(self, first: ToolState, state: ToolState) -> ToolExecutionResult:
        """Return the result again, with the calls that have been undone since."""
        result = self.result
        if result is None:
            state.abandoned = True  # what could be undone has been undone
            msg = (
                "the calls of the resumed turn were started but did not finish; they are not run "
                "again unless somebody resumes the turn again"
            )
            raise ToolLoopError(msg)
        state.resume(self.pending)
        state.compensation.repeat(first.compensation)
        result = with_undone(result, first.compensation.undone)
        answered = {response.id for response in self.pending.responses}
        known = state.compensation.by_key()
        for execution in result.executions:
            if execution.tool_call.id not in answered:
                state.remember([execution])
                if call_key(execution.tool_call) not in known:
                    state.executions.append(execution)
        state.end_round()
        state.calls.update(call.name for call in (*self.pending.pending, *self.pending.held))
        for call in self.pending.message.tool_calls:
            state.keys.count(call)
        return result
