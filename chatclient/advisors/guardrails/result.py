"""`GuardrailResult`, and the types of guardrail functions."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from chatclient._internal.checks import check_choice
from chatclient.chain.chain import ChatClientRequest
from chatclient.chat.response import ChatResponse
from chatclient.errors import UsageError

Outcome = Literal["success", "failure", "fatal", "retry", "reprompt"]
"""The decision of a guardrail."""


@dataclass(frozen=True, slots=True)
class GuardrailResult:
    """The decision of a guardrail; created by one of the class methods.

    Attributes:
        outcome: The decision.
        message: The reason, for the error message.
        text: The rewritten text, or the prompt of a retry.

    Raises:
        UsageError: *outcome* is not a known value, or `reprompt` without a text.
    """

    outcome: Outcome
    message: str = ""
    text: str | None = None

    def __post_init__(self) -> None:
        check_choice("a guardrail's outcome", self.outcome, Outcome)
        if self.outcome == "reprompt" and not (self.text or "").strip():
            msg = (
                "a reprompt needs what the model is told: GuardrailResult.reprompt(message, prompt)"
            )
            raise UsageError(msg)

    @classmethod
    def success(cls, text: str | None = None) -> "GuardrailResult":
        """Accept the message, with its text replaced by *text* if that is given."""
        return cls("success", text=text)

    @classmethod
    def failure(cls, message: str) -> "GuardrailResult":
        """Refuse the message, after the other guardrails have checked it as well."""
        return cls("failure", message)

    @classmethod
    def fatal(cls, message: str) -> "GuardrailResult":
        """Refuse the message; the other guardrails are not called."""
        return cls("fatal", message)

    @classmethod
    def retry(cls, message: str) -> "GuardrailResult":
        """Call the model again with the same messages and tool results (output only)."""
        return cls("retry", message)

    @classmethod
    def reprompt(cls, message: str, prompt: str) -> "GuardrailResult":
        """Call the model again with its answer and *prompt* appended (output only)."""
        return cls("reprompt", message, prompt)


Judgement = GuardrailResult | None | Awaitable[GuardrailResult | None]
"""The return value of a guardrail, plain or async; None is success."""

InputGuardrail = Callable[[ChatClientRequest], Judgement]
"""Checks a request and returns a `GuardrailResult`, or None for success; plain or async."""

OutputGuardrail = (
    Callable[[ChatResponse], Judgement] | Callable[[ChatResponse, ChatClientRequest], Judgement]
)
"""Checks a response and returns a `GuardrailResult`, or None for success; plain or async.

It may take the request as a second argument. The context of that request is the response's, and its
turn has the documents that the answer is based on (`sources`) and the tools that were run."""
