"""`ChatResponse`: the generations of a model, with usage and metadata."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal

from chatclient._internal.checks import attribute_hints, check_type, names
from chatclient._internal.frozen import EMPTY, freeze_fields
from chatclient.chat.messages import AssistantMessage
from chatclient.chat.parts import new_text
from chatclient.errors import InvalidResponseError, UsageError

FinishReason = Literal[
    "stop",
    "length",
    "tool_call",
    "content_filter",
    "error",
    "return_direct",
    "tool_call_limit_exceeded",
]
"""Why a generation ended. The first five are from OpenTelemetry's GenAI conventions; the values of
providers are mapped to them. The last two are set by the tool loop."""


@dataclass(frozen=True, slots=True)
class Cost:
    """An amount of money.

    Attributes:
        amount: The amount, exact.
        currency: The currency's code.
    """

    amount: Decimal = Decimal(0)
    currency: str = "USD"

    def __add__(self, other: "Cost") -> "Cost":
        """Return the sum.

        Raises:
            UsageError: The currencies differ.
        """
        if self.currency != other.currency:
            msg = f"amounts in {self.currency} and {other.currency} have no sum"
            raise UsageError(msg)
        return Cost(self.amount + other.amount, self.currency)

    def __str__(self) -> str:
        return f"{self.amount.normalize():f} {self.currency}"


@dataclass(frozen=True, slots=True)
class Usage:
    """Numbers of tokens, and what they cost.

    Attributes:
        input_tokens: Prompt tokens, including cached ones.
        output_tokens: Generated tokens, including reasoning.
        cache_read_tokens: Input tokens read from a cache, or None if not reported.
        cache_write_tokens: Input tokens written to a cache, or None if not reported.
        reasoning_tokens: Output tokens of reasoning, or None if not reported.
        native: The provider's own values; empty for a sum of several usages. If one answer took
            several requests that are billed separately, they are listed in `requests`, each with
            its `model` if that is another one.
        cost: What the model calls cost, with the extra `prices`; None without it, and if the price
            of one of the models is not known.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None
    native: Mapping[str, Any] = field(default=EMPTY, repr=False)
    cost: Cost | None = None

    if not TYPE_CHECKING:  # type checkers know all attributes
        __getattr__ = attribute_hints(
            {"prompt_tokens": "it is .input_tokens", "completion_tokens": "it is .output_tokens"}
        )

    def __post_init__(self) -> None:
        for name in ("input_tokens", "output_tokens"):
            given = getattr(self, name)
            if not isinstance(given, (int, float)):
                check_type(name, given, (int, float), "write 0 where it is not known")
        if self.native is not EMPTY:
            freeze_fields(self, "native")

    @property
    def total_tokens(self) -> int:
        """The sum of input and output tokens."""
        return self.input_tokens + self.output_tokens

    @property
    def cached_share(self) -> float | None:
        """The share of the input tokens that were read from a cache, or None if not reported."""
        if self.cache_read_tokens is None or not self.input_tokens:
            return None
        return self.cache_read_tokens / self.input_tokens

    def tokens_text(self) -> str:
        """Return the numbers as text, such as `1200 (90% cached) + 50 tokens`."""
        share = self.cached_share
        cached = "" if share is None else f" ({share:.0%} cached)"
        return f"{self.input_tokens}{cached} + {self.output_tokens} tokens"

    def __bool__(self) -> bool:
        return self.input_tokens + self.output_tokens > 0

    def __add__(self, other: "Usage") -> "Usage":
        """Return the sum; if one is empty, the other one unchanged."""
        if other.input_tokens + other.output_tokens == 0:
            return self
        if self.input_tokens + self.output_tokens == 0:
            return other
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            _sum(self.cache_read_tokens, other.cache_read_tokens),
            _sum(self.cache_write_tokens, other.cache_write_tokens),
            _sum(self.reasoning_tokens, other.reasoning_tokens),
            cost=None if self.cost is None or other.cost is None else self.cost + other.cost,
        )


NO_USAGE = Usage()


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None and other is None else (one or 0) + (other or 0)


@dataclass(frozen=True, slots=True)
class RateLimit:
    """Rate limits reported by the provider; None if unknown. Times until reset are in seconds."""

    requests_limit: int | None = None
    requests_remaining: int | None = None
    requests_reset: float | None = None
    tokens_limit: int | None = None
    tokens_remaining: int | None = None
    tokens_reset: float | None = None


@dataclass(frozen=True, slots=True)
class ChatResponseMetadata:
    """Metadata of a response.

    Attributes:
        id: The provider's id of the response.
        model: The model's name as reported by the provider.
        usage: The tokens used, in all rounds of a tool loop.
        rate_limit: The rate limits, or None if the provider does not report them.
        request_id: The provider's id of the HTTP request, to quote in a support ticket.
        values: Other values of the provider.
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

_TOOL_CALLS = attrgetter("output.tool_calls")


@dataclass(frozen=True, slots=True)
class Generation:
    """One answer of the model, of several if the request asks for them.

    Attributes:
        output: The message.
        finish_reason: Why the generation ended; in a stream, None before the last chunk.
        native_finish_reason: The provider's own value of the finish reason.
        index: The number of the generation, from 0.
        metadata: The provider's own values, such as log probabilities.
    """

    output: AssistantMessage
    finish_reason: FinishReason | None = None
    native_finish_reason: str | None = None
    index: int = 0
    metadata: Mapping[str, Any] = EMPTY

    def __post_init__(self) -> None:
        output: object = self.output
        if not isinstance(output, AssistantMessage):
            hint = "wrap a text: AssistantMessage(text)"
            check_type("the output of a generation", output, AssistantMessage, hint)
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
            check_type("generations", given, Iterable, "put a single one into a tuple")
            object.__setattr__(self, "generations", tuple(self.generations))
        generations: tuple[object, ...] = self.generations
        for each in generations:
            if not isinstance(each, Generation):
                check_type("a generation", each, Generation, "of a text: ChatResponse.of(text)")
        metadata: object = self.metadata
        if not isinstance(metadata, ChatResponseMetadata):
            hint = "usage goes into it: ChatResponseMetadata(usage=usage)"
            check_type("the metadata of a response", metadata, ChatResponseMetadata, hint)

    if not TYPE_CHECKING:  # type checkers know all attributes
        __getattr__ = attribute_hints(
            {
                "choices": "they are its .generations; the first message is .message",
                "content": "its text is its .text",
                "entity": "a client has it: client.prompt(...).call().entity(type)",
                "output": "its message is its .message, and its text is its .text",
                "output_text": "its text is its .text",
                "tool_calls": "they are in its .message.tool_calls",
            }
        )

    @classmethod
    def of(cls, text: str, finish_reason: FinishReason | None = "stop") -> "ChatResponse":
        """Return a response with *text* as its only generation."""
        return cls((Generation(AssistantMessage(text), finish_reason),))

    @property
    def result(self) -> Generation | None:
        """The first generation, or None without generations."""
        return self.generations[0] if self.generations else None

    @property
    def output(self) -> AssistantMessage | None:
        """The message of the first generation, or None without generations."""
        return self.generations[0].output if self.generations else None

    @property
    def message(self) -> AssistantMessage:
        """The message of the first generation.

        Raises:
            InvalidResponseError: There are no generations.
        """
        if not self.generations:
            msg = "the model's response has no message; `output` is None then"
            raise InvalidResponseError(msg)
        return self.generations[0].output

    @property
    def text(self) -> str:
        """The text of the first generation; empty without generations.

        If several tools returned directly, it is the text of all their results, separated by blank
        lines.
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
        """Whether the provider paused while running its own tools.

        It continues when the message is sent back unchanged.
        """
        return bool(self.generations) and self.generations[0].native_finish_reason == "pause_turn"

    @property
    def usage(self) -> Usage:
        """The tokens used."""
        return self.metadata.usage

    def has_tool_calls(self) -> bool:
        """Return whether any generation has tool calls."""
        return any(map(_TOOL_CALLS, self.generations))

    def has_finish_reasons(self, reasons: str | Iterable[str]) -> bool:
        """Return whether a generation has one of *reasons*, ours or the provider's own values."""
        wanted = {reason.lower() for reason in names(reasons)}
        return any(
            reason is not None and reason.lower() in wanted
            for generation in self.generations
            for reason in (generation.finish_reason, generation.native_finish_reason)
        )

    def with_usage(self, usage: Usage) -> "ChatResponse":
        """Return this response with another *usage*."""
        if usage == self.metadata.usage:
            return self
        return replace(self, metadata=replace(self.metadata, usage=usage))

    def with_text(self, change: str | Callable[[str], str]) -> "ChatResponse":
        """Return this response with another text; tool calls, usage and the rest are kept.

        Args:
            change: The new text of the first generation, or a function from old to new text, which
                is applied to all generations with text.

        Raises:
            WrongTypeError: The new text is not a text, but None for example.
        """
        if not callable(change):
            first, *others = self.generations or ChatResponse.of("").generations
            changed = (_with_text(first, new_text(change, "")), *others)
        else:
            changed = tuple(
                _with_text(each, new_text(change, text)) if (text := each.output.text) else each
                for each in self.generations
            )
        return replace(self, generations=changed)


def _with_text(generation: Generation, text: str) -> Generation:
    return replace(generation, output=generation.output.mutate(text=text))
