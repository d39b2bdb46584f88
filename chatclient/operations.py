"""The operations of a request, as observers are told of them.

Attribute names follow OpenTelemetry's semantic conventions for generative AI, version 1.41:
https://opentelemetry.io/docs/specs/semconv/gen-ai/. Our own begin with `chatclient.`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from chatclient.conventions import (
    content_of,
    finish_reasons,
    provider_name,
    requested,
    tool_names,
    usage_counts,
)
from chatclient.messages import Message, ToolCall
from chatclient.model import ChatModel
from chatclient.observation import Attributes, Kind, Operation, present_step
from chatclient.options import NO_OPTIONS
from chatclient.prompt import Prompt
from chatclient.response import ChatResponse
from chatclient.values import EMPTY

# Not frozen, like everything else that is a value: several are made for each request, and a frozen
# one costs three times as much to make.

TIME_TO_FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"
"""Seconds until a stream's first chunk, an attribute found on the way."""

ANSWERING_MODEL = "chatclient.model"
"""The name of the model that was asked in the end, an attribute found on the way."""

WAITS = "chatclient.tool.waits_for"
"""What a tool call waits for that was not run: `approval`; an attribute found on the way."""

NOTHING_YET = Prompt.of((), NO_OPTIONS)
"""The prompt of a request that is still being made ready."""


@dataclass(slots=True, eq=False)
class ClientCall(Operation):
    """A whole request of a client: all advisors, rounds and tools.

    Attributes:
        prompt: What the advisors are given; empty until that is known, which may never be.
        advisors: Their names, outermost first; none until then.
        streaming: Whether somebody consumes events.
        conversation_id: The conversation, if there is one.
        context: What the advisors are told beside it.
        said: What models and tools have said since, in whole rounds; the tool loop keeps it.
        asked: The request's messages without system texts, as guardrails let them pass and
            rewritten where calls were undone. Of a turn that goes on: what was said before it
            waited, whatever its prompt says.
    """

    kind: ClassVar[Kind] = "client"
    prompt: Prompt
    advisors: tuple[str, ...]
    streaming: bool
    conversation_id: str | None
    context: Mapping[str, Any] = field(default=EMPTY, repr=False)
    said: tuple[Message, ...] = field(default=(), repr=False)
    asked: tuple[Message, ...] = field(default=(), repr=False)

    @property
    def name(self) -> str:
        """The same for all clients."""
        return "chat_client"

    def attributes(self) -> Attributes:
        """Return whose it is."""
        return _without_none(
            {
                "gen_ai.operation.name": "invoke_workflow",
                "gen_ai.workflow.name": "chat_client",
                "gen_ai.conversation.id": self.conversation_id,
                "chatclient.stream": self.streaming,
            }
        )

    def taking_part(self) -> Attributes:
        """Return which advisors and tools take part, once they are known."""
        return _without_none(
            {
                "chatclient.advisors": self.advisors or None,
                "chatclient.tools": tool_names(self.prompt.options),
            }
        )

    def outcome(self, result: ChatResponse) -> Attributes:
        """Return how it ended, and what all rounds cost together."""
        return {
            "gen_ai.response.finish_reasons": finish_reasons(result),
            **usage_counts(result.usage),
        }


@dataclass(slots=True, eq=False)
class AdvisorPass(Operation):
    """One request passing one advisor, with everything inside of it.

    Attributes:
        advisor: Its name.
        order: Where it stands.
        prompt: What it was given.
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
        """Return which advisor it is."""
        return {"chatclient.advisor.name": self.advisor, "chatclient.advisor.order": self.order}


@dataclass(slots=True, eq=False)
class ModelCall(Operation):
    """One call of a model, with all its retries.

    Attributes:
        model: The model.
        prompt: What it is sent.
        streaming: Whether it streams.
        conversation_id: The conversation, if there is one.
        aside: Whether it is no round of the turn: somebody needs a word of a model on the way,
            such as a summary.
    """

    kind: ClassVar[Kind] = "model"
    model: ChatModel
    prompt: Prompt
    streaming: bool
    conversation_id: str | None = None
    aside: bool = False

    @property
    def name(self) -> str:
        """The operation and the model."""
        return f"chat {self.prompt.options.model or self.model.name}"

    def attributes(self) -> Attributes:
        """Return what is asked of which model."""
        options = self.prompt.options
        found: dict[str, Any] = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": provider_name(self.model),
            "gen_ai.conversation.id": self.conversation_id,
            "gen_ai.output.type": "json" if options.output_schema is not None else None,
            "gen_ai.request.stream": self.streaming or None,
            "gen_ai.request.choice.count": getattr(options, "n", None),
            "chatclient.tools": tool_names(options),
            **requested(options),
        }
        return _without_none(found)

    def outcome(self, result: ChatResponse) -> Attributes:
        """Return which model answered, how it ended, and what it cost."""
        metadata = result.metadata
        found = {
            "gen_ai.response.id": metadata.id or None,
            "gen_ai.response.model": metadata.model or None,
            "gen_ai.response.finish_reasons": finish_reasons(result) or None,
            "chatclient.request.id": metadata.request_id,
        }
        return {**_without_none(found), **usage_counts(metadata.usage)}

    def content(self, result: ChatResponse | None) -> Mapping[str, str]:
        """Return the messages both ways, and the tools offered."""
        return content_of(self.prompt, result)


@dataclass(slots=True, eq=False)
class ToolRun(Operation):
    """One tool call, with all interceptors around it; its result is a tool execution.

    Attributes:
        call: What the model asked for.
        description: What the model was told about the tool; empty for an unknown one.
        conversation_id: The conversation, if there is one.
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
        """Return which tool is called."""
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
        """Return what the tool raised, though the model was told something else."""
        error: BaseException | None = result.error
        return error

    def content(self, result: Any) -> Mapping[str, str]:
        """Return what the tool was given, and what the model was told."""
        found = {"gen_ai.tool.call.arguments": self.call.arguments or "{}"}
        if result is not None:
            found["gen_ai.tool.call.result"] = result.response.data
        return found


@dataclass(slots=True, eq=False)
class MemoryAccess(Operation):
    """A conversation being read from, or written to, its memory; the result is its messages.

    Attributes:
        access: `load` or `store`.
        conversation_id: Which conversation.
        owner: Tells the memories of a chain apart, each of which has its own part of it.
        turn: Names the turn that is written, where its memory has a name for it.
    """

    kind: ClassVar[Kind] = "memory"
    access: str
    conversation_id: str
    owner: str = ""
    turn: str = ""

    @property
    def name(self) -> str:
        """The access."""
        return f"{self.access} memory"

    def attributes(self) -> Attributes:
        """Return which conversation it is about."""
        return {
            "chatclient.memory.access": self.access,
            "gen_ai.conversation.id": self.conversation_id,
        }

    def outcome(self, result: Any) -> Attributes:
        """Return how many messages there were."""
        return {"chatclient.memory.messages": len(result)}


@dataclass(slots=True, eq=False)
class Retrieval(Operation):
    """A search for documents or tools; the result is those found.

    Attributes:
        query: What is looked for.
        source: Where: the name of the store or index.
    """

    kind: ClassVar[Kind] = "retrieval"
    query: str
    source: str

    @property
    def name(self) -> str:
        """The operation and the source."""
        return f"retrieve {self.source}"

    def attributes(self) -> Attributes:
        """Return where it is looked for."""
        return {"gen_ai.operation.name": "retrieval", "gen_ai.data_source.id": self.source}

    def outcome(self, result: Any) -> Attributes:
        """Return how many were found."""
        return {"chatclient.retrieval.results": len(result)}

    def content(self, result: Any) -> Mapping[str, str]:  # noqa: ARG002 - documents are the store's
        """Return what was looked for."""
        return {"gen_ai.retrieval.query.text": self.query}


@dataclass(slots=True, eq=False)
class RetryWait(Operation):
    """The wait before a request is repeated that failed for a passing reason.

    Attributes:
        provider: Whose server failed.
        reason: The name of the error.
        seconds: How long is waited.
    """

    kind: ClassVar[Kind] = "retry"
    provider: str
    reason: str
    seconds: float

    @property
    def name(self) -> str:
        """The same for all."""
        return "wait for retry"

    def attributes(self) -> Attributes:
        """Return why, and for how long."""
        return {"chatclient.retry.reason": self.reason, "chatclient.retry.seconds": self.seconds}


@dataclass(slots=True, eq=False)
class Fallback(Operation):
    """A moment: a model has failed, and the next one is asked in its place.

    Attributes:
        model: The model that knows the others.
        failed: The one that has failed.
        reason: The name of the error.
    """

    kind: ClassVar[Kind] = "retry"
    model: ChatModel
    failed: ChatModel
    reason: str

    @property
    def name(self) -> str:
        """The same for all."""
        return "fall back"

    def attributes(self) -> Attributes:
        """Return who has failed, and why."""
        return {
            "chatclient.fallback.failed": self.failed.name,
            "chatclient.fallback.reason": self.reason,
        }


def note_answering_model(model: ChatModel, prompt: Prompt) -> None:
    """Note that *model* answers the model call under way, in place of the model that was called.

    Args:
        model: The model that is asked in the end.
        prompt: What it is asked, with its own options.
    """
    step = present_step()
    if step is None or not isinstance(step.operation, ModelCall):
        return
    step.note(ANSWERING_MODEL, prompt.options.model or model.name)
    step.note("gen_ai.provider.name", provider_name(model))
    if prompt.options.model is not None:
        step.note("gen_ai.request.model", prompt.options.model)


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
