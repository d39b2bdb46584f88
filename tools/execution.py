"""What running a model's tool calls comes to."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from chatclient.messages import (
    AssistantMessage,
    Message,
    ToolCall,
    ToolResponse,
    ToolResponseMessage,
    UserMessage,
)
from chatclient.prompt import Prompt
from chatclient.response import Generation
from chatclient.values import EMPTY


@dataclass(frozen=True, slots=True)
class ToolExecution:
    """One tool call that was run or refused.

    Attributes:
        tool_call: What the model asked for.
        response: What it was told.
        seconds: How long the tool took; 0.0 when it was not run.
        error: What went wrong in full, or None. The model was told `response.data` only.
    """

    tool_call: ToolCall
    response: ToolResponse
    seconds: float = 0.0
    error: Exception | None = field(default=None, compare=False)

    @property
    def is_error(self) -> bool:
        """Whether the tool failed or was refused."""
        return self.response.is_error


@dataclass(frozen=True, slots=True)
class ToolExecutionResult:
    """The outcome of all tool calls of one response.

    Attributes:
        conversation_history: The conversation with the assistant's message and the tools'
            answers at its end, ready to be sent.
        return_direct: Whether the answers are final and need not be shown to the model.
        executions: Each call, in the order of the request.
    """

    conversation_history: tuple[Message, ...]
    return_direct: bool
    executions: tuple[ToolExecution, ...]

    @property
    def responses(self) -> tuple[ToolResponse, ...]:
        """The tools' answers, in the order of the calls."""
        return tuple(execution.response for execution in self.executions)

    def generations(self) -> tuple[Generation, ...]:
        """Return each answer as a generation, for a turn that ends with them."""
        return tuple(
            Generation(
                AssistantMessage(response.data, media=response.media),
                "return_direct",
                index=index,
                metadata={"tool_id": response.id, "tool_name": response.name},
            )
            for index, response in enumerate(self.responses)
        )


@dataclass(slots=True)
class ToolTurn:
    """What the tool loop remembers from the user's message to the final answer.

    Attributes:
        context: What tools are told behind the model's back.
        calls: How often each tool was called.
        executions: Every call so far.
    """

    context: Mapping[str, object] = EMPTY
    calls: Counter[str] = field(default_factory=Counter)
    executions: list[ToolExecution] = field(default_factory=list)

    @classmethod
    def of(cls, prompt: Prompt) -> "ToolTurn":
        """Return the turn that *prompt* is in the middle of, for loops of an application's own."""
        turn = cls(prompt.options.tool_context)
        for message in reversed(prompt.messages):
            if isinstance(message, UserMessage):
                break
            if isinstance(message, ToolResponseMessage):
                turn.calls.update(response.name for response in message.responses)
        return turn
