"""Decisions about calls that need approval: `ApprovalRules`, and a decision model."""

import json
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from chatclient._internal.checks import check_callable, check_moment, check_type, names
from chatclient._internal.json import loads
from chatclient._internal.logging import described
from chatclient.chat.messages import ToolCall
from chatclient.chat.pending_turn import Decision
from chatclient.chat.tool import USER_ID
from chatclient.chat.turn import present_turn
from chatclient.decisions.call import ask_decision
from chatclient.decisions.model import DecisionModel, DecisionRequest
from chatclient.decisions.questions import YesNoQuestion, check_probability
from chatclient.errors import ProviderError, UsageError
from chatclient.extend import get_logger
from chatclient.tools.execution.approval import ToolInvocation


@dataclass(frozen=True)
class ApprovalRule:
    """Allows or denies calls of a tool without asking.

    Attributes:
        tool: The name of the tool.
        arguments: The arguments that a call must have, by name, as JSON values, and no others;
            None: any arguments.
        free: The names of further arguments, which may be missing or have any value.
        approved: Whether the calls are allowed.
        expires: When the rule ends, with a time zone; None: never.
        id: The id of the rule.

    Raises:
        UsageError: *expires* has no time zone, or *arguments* are no mapping.
    """

    tool: str
    arguments: Mapping[str, Any] | None = None
    free: frozenset[str] = frozenset()
    approved: bool = True
    expires: datetime | None = None
    id: str = field(default_factory=lambda: uuid.uuid4().hex[:12])

    def __post_init__(self) -> None:
        if self.arguments is not None:
            check_type("arguments", self.arguments, Mapping)
        object.__setattr__(self, "free", names(self.free))
        if self.expires is not None:
            check_moment("expires", self.expires)

    @classmethod
    def for_call(
        cls,
        call: ToolCall,
        *,
        free: str | Iterable[str] = (),
        approved: bool = True,
        lasts: timedelta | None = None,
    ) -> "ApprovalRule":
        """Return the rule for calls like *call*, such as one of `PendingTurn.to_decide`.

        Args:
            call: The call.
            free: The names of arguments whose values may differ; all others are the same.
            approved: Whether the calls are allowed.
            lasts: For how long; None: without end.

        Raises:
            UsageError: The arguments of the call are no JSON object.
        """
        arguments = _arguments(call)
        if arguments is None:
            msg = f"the call of {call.name!r} has no JSON object as its arguments"
            raise UsageError(msg)
        others = names(free)
        fixed = {name: value for name, value in arguments.items() if name not in others}
        expires = None if lasts is None else datetime.now(UTC) + lasts
        return cls(call.name, fixed, others, approved, expires)

    def applies(self, call: ToolCall) -> bool:
        """Return whether the rule decides about *call* now."""
        if call.name != self.tool or self.is_expired:
            return False
        if self.arguments is None:
            return True
        given = _arguments(call)
        if given is None:
            return False
        fixed = {name: value for name, value in given.items() if name not in self.free}
        # As JSON, in which 1 and true differ.
        return _text(fixed) == _text(dict(self.arguments))

    @property
    def is_expired(self) -> bool:
        """Whether the rule has ended."""
        return self.expires is not None and self.expires <= datetime.now(UTC)

    def to_dict(self) -> dict[str, Any]:
        """Return the rule as JSON values."""
        return {
            "tool": self.tool,
            "arguments": None if self.arguments is None else dict(self.arguments),
            "free": sorted(self.free),
            "approved": self.approved,
            "expires": None if self.expires is None else self.expires.isoformat(),
            "id": self.id,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "ApprovalRule":
        """Return the rule that `to_dict` wrote."""
        expires = data["expires"]
        return cls(
            data["tool"],
            data["arguments"],
            frozenset(data["free"]),
            data["approved"],
            None if expires is None else datetime.fromisoformat(expires),
            data["id"],
        )


def _text(arguments: Mapping[str, Any]) -> str:
    return json.dumps(arguments, sort_keys=True)


def _arguments(call: ToolCall) -> dict[str, Any] | None:
    try:
        found = loads(call.arguments or "{}")
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def user_of(invocation: ToolInvocation) -> str | None:
    """Return the user of the request, or None."""
    user: str | None = invocation.context.get(USER_ID)
    return user


class ApprovalRules:
    """Decides about calls by rules, each of an owner; an `ask` of `ToolApproval`.

    The rules are kept in this process. A subclass that keeps them elsewhere has its own `add`,
    `remove` and `of`, plain or asynchronous.

    A rule that denies prevails. The id of the rule is `decided_by` of the execution. About other
    calls, and if there is no owner, nothing is decided.

    Args:
        owner: A function, plain or asynchronous, that returns whose rules decide about a call, or
            None; default: the user of the request, its advisor param `USER_ID`.
    """

    def __init__(
        self, *, owner: Callable[[ToolInvocation], str | Awaitable[str | None] | None] = user_of
    ) -> None:
        check_callable("owner", owner, takes=("invocation",))
        self._owner = owner
        self._rules: dict[str, dict[str, ApprovalRule]] = {}

    def add(self, owner: str, rule: ApprovalRule) -> Any:
        """Store *rule* of *owner*; it replaces the one with its id."""
        self._rules.setdefault(owner, {})[rule.id] = rule

    def remove(self, owner: str, id: str) -> Any:
        """Delete the rule with *id* of *owner*, if there is one."""
        self._rules.get(owner, {}).pop(id, None)

    def of(self, owner: str) -> Any:
        """Return the rules of *owner*, a sequence; they may have expired."""
        return tuple(self._rules.get(owner, {}).values())

    async def __call__(self, invocation: ToolInvocation) -> Decision | None:
        """Return the decision about a call, or None."""
        runtime, call = invocation.context.runtime, invocation.tool_call
        owner = await runtime.invoke(self._owner, invocation)
        if owner is None:
            return None
        rules: Sequence[ApprovalRule] = await runtime.invoke(self.of, owner)
        found = [rule for rule in rules if rule.applies(call)]
        if not found:
            return None
        rule = min(found, key=lambda rule: rule.approved)
        return Decision(rule.approved, by=f"rule {rule.id}")


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
