"""What a guardrail is, and what it says."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from chatclient.chain import ChatClientRequest
from chatclient.checks import check_word
from chatclient.response import ChatResponse

Outcome = Literal["success", "failure", "fatal", "retry", "reprompt"]
"""What a guardrail may say."""


@dataclass(frozen=True, slots=True)
class GuardrailResult:
    """What a guardrail says; made by one of the methods.

    Attributes:
        outcome: Which of them.
        message: Why, for whoever reads the error.
        text: What to go on with: the rewritten text, or the words to ask again with.

    Raises:
        UsageError: *outcome* is not a known value.
    """

    outcome: Outcome
    message: str = ""
    text: str | None = None

    def __post_init__(self) -> None:
        check_word("a guardrail's outcome", self.outcome, Outcome)

    @classmethod
    def success(cls, text: str | None = None) -> "GuardrailResult":
        """Let it pass, as *text* if that is given."""
        return cls("success", text=text)

    @classmethod
    def failure(cls, message: str) -> "GuardrailResult":
        """Refuse it, but let the other guardrails have their say first."""
        return cls("failure", message)

    @classmethod
    def fatal(cls, message: str) -> "GuardrailResult":
        """Refuse it at once."""
        return cls("fatal", message)

    @classmethod
    def retry(cls, message: str) -> "GuardrailResult":
        """Ask the model for its answer once more, from the same results of tools (output only)."""
        return cls("retry", message)

    @classmethod
    def reprompt(cls, message: str, prompt: str) -> "GuardrailResult":
        """Show the model its answer, and ask again with the words of *prompt* (output only)."""
        return cls("reprompt", message, prompt)


Judgement = GuardrailResult | None | Awaitable[GuardrailResult | None]
"""What a guardrail returns, plain or async; None lets pass."""

InputGuardrail = Callable[[ChatClientRequest], Judgement]
"""Looks at a request and returns a `GuardrailResult`, or None for success; plain or async."""

OutputGuardrail = (
    Callable[[ChatResponse], Judgement] | Callable[[ChatResponse, ChatClientRequest], Judgement]
)
"""Looks at a response and returns a `GuardrailResult`, or None for success; plain or async.

It may ask for the request as well. The context of that is what advisors found out for the answer:
the documents that it rests on (`SOURCES`), the tools that were run."""
