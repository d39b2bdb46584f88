"""`ToolCallReview`: a decision model decides about tool calls that need approval."""

from typing import Any

from chatclient._internal.logging import described
from chatclient.chat.pending_turn import Decision
from chatclient.chat.turn import present_turn
from chatclient.decisions.call import ask_decision
from chatclient.decisions.model import DecisionModel, DecisionRequest
from chatclient.decisions.questions import YesNoQuestion, check_probability
from chatclient.errors import ProviderError, UsageError
from chatclient.extend import check_type, get_logger
from chatclient.tools.execution.approval import ToolInvocation

log = get_logger(__name__)

ASKED_FOR = YesNoQuestion(
    "Did the user ask for this call of a tool?",
    yes_when="the call, with these arguments, does what the user has asked for and nothing else",
    no_when="the call does something else, or affects more than the user has asked for",
)
"""The default question about a call."""


class ToolCallReview:
    """Decides about tool calls by a decision model; an `ask` of `ToolApproval`.

    The model gets `request`, what the user wrote in this turn, and `tool`, `description` and
    `arguments` of the call. It does not get results of tools, which others may have written.
    Where it is not sure, or fails, nothing is decided, so that a person is asked.

    Args:
        model: The decision model.
        question: The question; yes allows the call. A text is a `YesNoQuestion`.
        approve_from: The probability of yes from which a call is allowed.
        deny_below: The probability of yes below which a call is denied; default: none is.

    Raises:
        UsageError: A probability is out of its range, or *deny_below* above *approve_from*.
        WrongTypeError: *model* is no decision model, or *question* no yes/no question.
    """

    def __init__(
        self,
        model: DecisionModel,
        *,
        question: YesNoQuestion | str = ASKED_FOR,
        approve_from: float = 0.95,
        deny_below: float = 0.0,
    ) -> None:
        check_type("a decision model", model, DecisionModel, "of a chat model: ChatDecisionModel")
        check_type("the question", question, (YesNoQuestion, str))
        check_probability("approve_from", approve_from)
        check_probability("deny_below", deny_below)
        if deny_below > approve_from:
            msg = f"deny_below={deny_below} is above approve_from={approve_from}"
            raise UsageError(msg)
        self._model = model
        self._question = YesNoQuestion(question) if isinstance(question, str) else question
        self._approve_from, self._deny_below = approve_from, deny_below

    async def __call__(self, invocation: ToolInvocation) -> Decision | None:
        """Return the decision about a call, or None."""
        turn = present_turn()
        asked: tuple[Any, ...] = () if turn is None else turn.request_messages
        input = {
            "request": "\n".join(each.text for each in asked if each.role == "user"),
            "tool": invocation.definition.name,
            "description": invocation.definition.description,
            "arguments": invocation.tool_call.arguments,
        }
        request = DecisionRequest(input, {"allowed": self._question})
        try:
            response = await ask_decision(self._model, request, invocation.context.runtime)
        except ProviderError as error:
            log.warning("tool call not reviewed", model=self._model.name, error=described(error))
            return None
        if response.is_refused("allowed"):
            return None
        probability = response.yes_no("allowed").probability
        by = f"{self._model.name} ({probability:.2f})"
        if probability >= self._approve_from:
            return Decision(approved=True, by=by)
        if probability < self._deny_below:
            return Decision(approved=False, message="This call is not allowed.", by=by)
        return None
