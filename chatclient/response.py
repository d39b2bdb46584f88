"""What a model answers: one or more generations, what they cost, and how they ended."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from chatclient.checks import check_kind, names
from chatclient.errors import InvalidResponseError
from chatclient.messages import AssistantMessage
from chatclient.parts import new_text
from chatclient.values import EMPTY, freeze_fields

FinishReason = Literal[
    "stop",
    "length",
    "tool_call",
    "content_filter",
    "error",
    "return_direct",
    "tool_call_limit_exceeded",
]
"""Why a generation ended. The first five are those of OpenTelemetry's GenAI conventions, to which
every provider's own value is mapped; the last two are set by the tool loop."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens spent.

    Attributes:
        input_tokens: Prompt tokens, cached ones included.
        output_tokens: Generated tokens, reasoning included.
        cache_read_tokens: Input tokens that came from a cache, or None when not reported.
        cache_write_tokens: Input tokens written to a cache, or None when not reported.
        reasoning_tokens: Output tokens spent on reasoning, or None when not reported.
        native: The provider's own figures; empty when several usages were added up.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None
    native: Mapping[str, Any] = field(default=EMPTY, repr=False)

    def __post_init__(self) -> None:
        for name in ("input_tokens", "output_tokens"):
            check_kind(name, getattr(self, name), (int, float), "write 0 where it is not known")
        if self.native is not EMPTY:
            freeze_fields(self, "native")

    @property
    def total_tokens(self) -> int:
        """Input and output together."""
        return self.input_tokens + self.output_tokens

    def __bool__(self) -> bool:
        return self.total_tokens > 0

    def __add__(self, other: "Usage") -> "Usage":
        """Return both together; one that is empty changes nothing."""
        if not other:
            return self
        if not self:
            return other
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            _sum(self.cache_read_tokens, other.cache_read_tokens),
            _sum(self.cache_write_tokens, other.cache_write_tokens),
            _sum(self.reasoning_tokens, other.reasoning_tokens),
        )


NO_USAGE = Usage()


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None and other is None else (one or 0) + (other or 0)


@dataclass(frozen=True, slots=True)
class RateLimit:
    """What the provider says is left, as far as it says; times in seconds."""

    requests_limit: int | None = None
    requests_remaining: int | None = None
    requests_reset: float | None = None
    tokens_limit: int | None = None
    tokens_remaining: int | None = None
    tokens_reset: float | None = None


@dataclass(frozen=True, slots=True)
class ChatResponseMetadata:
    """What is known about a response beside its content.

    Attributes:
        id: The provider's id of the response.
        model: The model that answered, as it calls itself.
        usage: Tokens spent; over all rounds when a tool loop ran.
        rate_limit: What is left, or None when the provider does not say.
        request_id: The provider's id of the HTTP request, to quote in a support ticket.
        values: Whatever else the provider sent.
    """

    id: str = ""
    model: str = ""
    usage: Usage = NO_USAGE
    rate_limit: RateLimit | None = None
    request_id: str | None = None
    values: Mapping[str, Any] = EMPTY

    def __post_init__(self) -> None:
        if self.values is not EMPTY:
            freeze_fields(self, "values")


NO_METADATA = ChatResponseMetadata()


@dataclass(frozen=True, slots=True)
class Generation:
    """One answer of the model (there are several when several were asked for).

    Attributes:
        output: The message.
        finish_reason: Why it ended; None in all but the last chunk of a stream.
        native_finish_reason: The same in the provider's own word.
        index: Which of several answers.
        metadata: The provider's own values, such as log probabilities.
    """

    output: AssistantMessage
    finish_reason: FinishReason | None = None
    native_finish_reason: str | None = None
    index: int = 0
    metadata: Mapping[str, Any] = EMPTY

    def __post_init__(self) -> None:
        hint = "wrap a text: AssistantMessage(text)"
        check_kind("the output of a generation", self.output, AssistantMessage, hint)
        if self.metadata is not EMPTY:
            freeze_fields(self, "metadata")


@dataclass(frozen=True, slots=True)
class ChatResponse:
    """A model's response, or one chunk of it in a stream."""

    generations: tuple[Generation, ...] = ()
    metadata: ChatResponseMetadata = NO_METADATA

    def __post_init__(self) -> None:
        given: object = self.generations
        if not isinstance(given, tuple):
            check_kind("generations", given, Iterable, "put a single one into a tuple")
            object.__setattr__(self, "generations", tuple(self.generations))
        for generation in self.generations:
            check_kind("a generation", generation, Generation, "of a text: ChatResponse.of(text)")
        hint = "usage goes into it: ChatResponseMetadata(usage=usage)"
        check_kind("the metadata of a response", self.metadata, ChatResponseMetadata, hint)

    @classmethod
    def of(cls, text: str, finish_reason: FinishReason | None = "stop") -> "ChatResponse":
        """Return the response that says *text*."""
        return cls((Generation(AssistantMessage(text), finish_reason),))

    @property
    def result(self) -> Generation | None:
        """The first generation, or None when there is none."""
        return self.generations[0] if self.generations else None

    @property
    def output(self) -> AssistantMessage | None:
        """The first generation's message, or None when there is none."""
        return self.generations[0].output if self.generations else None

    @property
    def message(self) -> AssistantMessage:
        """The first generation's message, where there has to be one.

        Raises:
            InvalidResponseError: There is none.
        """
        if not self.generations:
            msg = "the model's response holds no message; `output` is None then"
            raise InvalidResponseError(msg)
        return self.generations[0].output

    @property
    def text(self) -> str:
        """The first generation's text; empty when there is none.

        Where several tools returned directly, their results are one answer: all of them, a blank
        line between each and the next.
        """
        if len(self.generations) > 1 and self.generations[0].finish_reason == "return_direct":
            return "\n\n".join(generation.output.text for generation in self.generations)
        return self.generations[0].output.text if self.generations else ""

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the first generation ended."""
        return self.generations[0].finish_reason if self.generations else None

    @property
    def paused(self) -> bool:
        """Whether the provider has paused in the middle of its own tools' work.

        Sent back as it is, the message goes on.
        """
        return bool(self.generations) and self.generations[0].native_finish_reason == "pause_turn"

    @property
    def usage(self) -> Usage:
        """Tokens spent."""
        return self.metadata.usage

    def has_tool_calls(self) -> bool:
        """Return whether any generation asks for a tool."""
        return any(generation.output.tool_calls for generation in self.generations)

    def has_finish_reasons(self, reasons: str | Iterable[str]) -> bool:
        """Return whether any generation ended for one of *reasons*, ours or the provider's."""
        wanted = {reason.lower() for reason in names(reasons)}
        return any(
            reason is not None and reason.lower() in wanted
            for generation in self.generations
            for reason in (generation.finish_reason, generation.native_finish_reason)
        )

    def with_usage(self, usage: Usage) -> "ChatResponse":
        """Return this response with *usage* as its cost."""
        if usage == self.metadata.usage:
            return self
        return replace(self, metadata=replace(self.metadata, usage=usage))

    def with_text(self, change: str | Callable[[str], str]) -> "ChatResponse":
        """Return this response with other words; tool calls, usage and all the rest stay.

        Args:
            change: The new text of the first generation, or a function from the old text to it,
                which every generation that says something goes through.

        Raises:
            WrongTypeError: There is no new text, such as of a function that returns nothing.
        """
        if not callable(change):
            first, *others = self.generations or ChatResponse.of("").generations
            changed = (_reworded(first, new_text(change, "")), *others)
        else:
            changed = tuple(
                _reworded(each, new_text(change, text)) if (text := each.output.text) else each
                for each in self.generations
            )
        return replace(self, generations=changed)


def _reworded(generation: Generation, text: str) -> Generation:
    return replace(generation, output=generation.output.mutate(text=text))
