"""The operations of a request that observers receive.

Attribute names follow OpenTelemetry's semantic conventions for generative AI, version 0.1.0:
https://github.com/open-telemetry/semantic-conventions-genai. Our own begin with `chatclient.`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from chatclient._internal.frozen import EMPTY
from chatclient.chat.messages import ToolCall
from chatclient.chat.model import ChatModel
from chatclient.chat.options import NO_OPTIONS
from chatclient.chat.prompt import Prompt
from chatclient.chat.response import ChatResponse
from chatclient.chat.turn import Turn
from chatclient.observability.semantic_conventions import (
    content_attributes,
    finish_reasons,
    option_attributes,
    provider_name,
    server_attributes,
    tool_names,
    total_usage,
    usage_counts,
)
from chatclient.runtime.observation import Attributes, Kind, Operation, current_step

# Unlike other values, operations are not frozen: several are created for each request, and creating
# a frozen dataclass takes three times as long.

TIME_TO_FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"
"""Attribute recorded during a model call: seconds until the first chunk of a stream."""

ANSWERING_MODEL = "chatclient.model"
"""Attribute recorded during a model call: the name of the model that answered."""

WAITS = "chatclient.tool.waits_for"
"""Attribute recorded during a tool call that is suspended: `approval`."""

EMPTY_PROMPT = Prompt.of((), NO_OPTIONS)
"""The prompt of a request before it is prepared."""


@dataclass(slots=True, eq=False)
class ClientCall(Operation):
    """A request of a client with all advisors, rounds and tools.

    Attributes:
        prompt: The prompt for the advisors; empty before the request is prepared.
        advisors: The names of the advisors, outermost first; empty before the request is prepared.
        streaming: Whether events are consumed.
        conversation_id: The id of the conversation, or None.
        context: The context of the request.
        turn: The record of the turn.
        client: The name of the client, or None.
    """

    kind: ClassVar[Kind] = "client"
    prompt: Prompt
    advisors: tuple[str, ...]
    streaming: bool
    conversation_id: str | None
    context: Mapping[str, Any] = field(default=EMPTY, repr=False)
    turn: Turn = field(default_factory=Turn, repr=False)
    client: str | None = None

    @property
    def name(self) -> str:
        """`invoke_agent`, and the client's name if it has one."""
        return "invoke_agent" if self.client is None else f"invoke_agent {self.client}"

    def attributes(self) -> Attributes:
        """Return the client's name, the conversation and the mode."""
        return _without_none(
            {
                "gen_ai.operation.name": "invoke_agent",
                "gen_ai.agent.name": self.client,
                "gen_ai.conversation.id": self.conversation_id,
                "chatclient.stream": self.streaming,
            }
        )

    def advisors_and_tools(self) -> Attributes:
        """Return the names of the advisors and tools."""
        return _without_none(
            {
                "chatclient.advisors": self.advisors or None,
                "chatclient.tools": tool_names(self.prompt.options),
            }
        )

    def outcome(self, result: ChatResponse) -> Attributes:
        """Return the finish reasons and the usage of all rounds."""
        return {
            "gen_ai.response.finish_reasons": finish_reasons(result),
            **total_usage(result.usage),
        }


@dataclass(slots=True, eq=False)
class AdvisorPass(Operation):
    """The call of one advisor, including the inner part of the chain.

    Attributes:
        advisor: The name of the advisor.
        order: Its order.
        prompt: The prompt of its request.
    """

    kind: ClassVar[Kind] = "advisor"
    advisor: str
    order: int
    prompt: Prompt

    @property
    def name(self) -> str:
        """The kind and the advisor."""
        return f"advisor {self.advisor}"

    def attributes(self) -> Attributes:
        """Return the name and the order of the advisor."""
        return {"chatclient.advisor.name": self.advisor, "chatclient.advisor.order": self.order}


@dataclass(slots=True, eq=False)
class ModelCall(Operation):
    """One call of a model with all its retries.

    Attributes:
        model: The model.
        prompt: The prompt.
        streaming: Whether the model streams.
        conversation_id: The id of the conversation, or None.
        auxiliary: Whether the call is not a round of the turn: an advisor or a memory calls a
            model, for a summary for example.
        known: What budgets have counted of its response when it has ended; None if nothing was
            sent.
    """

    kind: ClassVar[Kind] = "model"
    model: ChatModel
    prompt: Prompt
    streaming: bool
    conversation_id: str | None = None
    auxiliary: bool = False
    known: ChatResponse | None = None

    @property
    def name(self) -> str:
        """The operation and the model."""
        return f"chat {self.prompt.options.model or self.model.name}"

    def attributes(self) -> Attributes:
        """Return the model, the options and the tools."""
        options = self.prompt.options
        choices = getattr(options, "n", None)
        found: dict[str, Any] = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": provider_name(self.model.provider),
            "gen_ai.conversation.id": self.conversation_id,
            "gen_ai.output.type": "json" if options.output_schema is not None else None,
            "gen_ai.request.stream": self.streaming or None,
            "gen_ai.request.choice.count": None if choices == 1 else choices,
            "chatclient.tools": tool_names(options),
            **server_attributes(self.model.address),
            **option_attributes(options),
        }
        return _without_none(found)

    def outcome(self, result: ChatResponse) -> Attributes:
        """Return the answering model, the finish reasons and the usage."""
        metadata = result.metadata
        found = {
            "gen_ai.response.id": metadata.id or None,
            "gen_ai.response.model": metadata.model or None,
            "gen_ai.response.finish_reasons": finish_reasons(result) or None,
            "chatclient.request.id": metadata.request_id,
        }
        return {**_without_none(found), **usage_counts(metadata.usage)}

    def content(self, result: ChatResponse | None) -> Mapping[str, str]:
        """Return the messages sent and received, and the tools."""
        return content_attributes(self.prompt, result)


@dataclass(slots=True, eq=False)
class ToolRun(Operation):
    """One tool call, including interceptors; its result is a `ToolExecution`.

    Attributes:
        call: The call.
        description: The description of the tool; empty for an unknown one.
        conversation_id: The id of the conversation, or None.
    """

    kind: ClassVar[Kind] = "tool"
    call: ToolCall
    description: str
    conversation_id: str | None = None

    @property
    def name(self) -> str:
        """The operation and the tool."""
        return f"execute_tool {self.call.name}"

    def attributes(self) -> Attributes:
        """Return the tool and the call."""
        return _without_none(
            {
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": self.call.name,
                "gen_ai.tool.call.id": self.call.id,
                "gen_ai.tool.type": "function",
                "gen_ai.tool.description": self.description or None,
                "gen_ai.conversation.id": self.conversation_id,
            }
        )

    def failure(self, result: Any) -> BaseException | None:
        """Return the error of the tool, which became a result for the model."""
        error: BaseException | None = result.error
        return error

    def content(self, result: Any) -> Mapping[str, str]:
        """Return the arguments of the tool, and the result sent to the model."""
        found = {"gen_ai.tool.call.arguments": self.call.arguments or "{}"}
        if result is not None:
            found["gen_ai.tool.call.result"] = result.response.data
        return found


@dataclass(slots=True, eq=False)
class ToolUndo(Operation):
    """The compensation of a tool call; its result is the `ToolExecution` with its new response.

    Attributes:
        call: The call that is undone.
        cause: The reason.
    """

    kind: ClassVar[Kind] = "undo"
    call: ToolCall
    cause: str

    @property
    def name(self) -> str:
        """The operation and the tool."""
        return f"undo_tool {self.call.name}"

    def attributes(self) -> Attributes:
        """Return the tool, the call and the reason."""
        return {
            "gen_ai.tool.name": self.call.name,
            "gen_ai.tool.call.id": self.call.id,
            "chatclient.undo.cause": self.cause,
        }


@dataclass(slots=True, eq=False)
class MemoryAccess(Operation):
    """Loading a conversation from memory, or storing it; the result is its messages.

    Attributes:
        access: `load` or `store`.
        conversation_id: The id of the conversation.
    """

    kind: ClassVar[Kind] = "memory"
    access: str
    conversation_id: str

    @property
    def name(self) -> str:
        """The access."""
        return f"{self.access} memory"

    def attributes(self) -> Attributes:
        """Return the access and the conversation."""
        return {
            "chatclient.memory.access": self.access,
            "gen_ai.conversation.id": self.conversation_id,
        }

    def outcome(self, result: Any) -> Attributes:
        """Return the number of messages."""
        return {"chatclient.memory.messages": len(result)}


@dataclass(slots=True, eq=False)
class Retrieval(Operation):
    """A search for documents or tools; the result is the list of matches.

    Attributes:
        query: The query.
        source: The name of the store or index.
    """

    kind: ClassVar[Kind] = "retrieval"
    query: str
    source: str

    @property
    def name(self) -> str:
        """The operation and the source."""
        return f"retrieval {self.source}"

    def attributes(self) -> Attributes:
        """Return the source."""
        return {"gen_ai.operation.name": "retrieval", "gen_ai.data_source.id": self.source}

    def outcome(self, result: Any) -> Attributes:
        """Return the number of results."""
        return {"chatclient.retrieval.results": len(result)}

    def content(self, result: Any) -> Mapping[str, str]:  # noqa: ARG002 - documents are not recorded
        """Return the query."""
        return {"gen_ai.retrieval.query.text": self.query}


@dataclass(slots=True, eq=False)
class Reranking(Operation):
    """Scoring of retrieved documents by a rerank model; the result is the documents that are kept.

    Attributes:
        model: The name of the model.
    """

    kind: ClassVar[Kind] = "retrieval"
    model: str

    @property
    def name(self) -> str:
        """The operation and the model."""
        return f"rerank {self.model}"

    def attributes(self) -> Attributes:
        """Return the model; the conventions have no operation for it yet."""
        return {"gen_ai.operation.name": "rerank", "gen_ai.request.model": self.model}

    def outcome(self, result: Any) -> Attributes:
        """Return the number of documents."""
        return {"chatclient.retrieval.results": len(result)}


def note_answering_model(model: ChatModel, prompt: Prompt) -> None:
    """Record in the current model call that *model* answers it, instead of a composite model.

    Args:
        model: The model that is called.
        prompt: Its prompt, with the complete options.
    """
    step = current_step()
    if step is None or not isinstance(step.operation, ModelCall):
        return
    step.note(ANSWERING_MODEL, prompt.options.model or model.name)
    step.note("gen_ai.provider.name", provider_name(model.provider))
    for name, value in server_attributes(model.address).items():
        step.note(name, value)
    if prompt.options.model is not None:
        step.note("gen_ai.request.model", prompt.options.model)


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


@dataclass(slots=True, eq=False)
class RetryWait(Operation):
    """The wait before a failed HTTP request is retried.

    Attributes:
        provider: The name of the provider.
        reason: The name of the error.
        seconds: The duration of the wait.
    """

    kind: ClassVar[Kind] = "retry"
    provider: str
    reason: str
    seconds: float

    @property
    def name(self) -> str:
        """The same for all operations of this type."""
        return "wait for retry"

    def attributes(self) -> Attributes:
        """Return the reason and the duration."""
        return {"chatclient.retry.reason": self.reason, "chatclient.retry.seconds": self.seconds}


@dataclass(slots=True, eq=False)
class Fallback(Operation):
    """An event without duration: a model has failed, and the next one is called.

    Attributes:
        model: The `FallbackModel`.
        failed: The model that has failed.
        reason: The name of the error.
    """

    kind: ClassVar[Kind] = "retry"
    model: ChatModel
    failed: ChatModel
    reason: str

    @property
    def name(self) -> str:
        """The same for all operations of this type."""
        return "fall back"

    def attributes(self) -> Attributes:
        """Return the failed model and the reason."""
        return {
            "chatclient.fallback.failed": self.failed.name,
            "chatclient.fallback.reason": self.reason,
        }
