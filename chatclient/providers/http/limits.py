"""Limits for responses."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from typing import ClassVar

from chatclient._internal.checks import check_number
from chatclient._internal.json import MOST_LEVELS
from chatclient.chat.messages import ToolCall, ToolCallChunk
from chatclient.chat.response import ChatResponse
from chatclient.errors import ResponseLimitError


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseLimits:
    """What a server may send, so that none can exhaust memory or time.

    Valid responses stay far below these limits. Bytes are counted after decompression. A larger
    response raises `ResponseLimitError`; the body of an error response is truncated instead.
    A model takes other limits as `limits=`.

    Attributes:
        stream_bytes: Total bytes of a stream, including comments and empty events.
        event_bytes: Bytes of one event or line of a stream.
        answer_bytes: Bytes of a response that is not streamed; enough for 2,000 vectors.
        error_bytes: Bytes read from the body of an error response.
        nesting: Levels of lists and objects in JSON, which the parser determines.
        empty_events: Events of a stream without content, such as keep-alive messages.
        tool_calls: Tool calls of one response.

    Raises:
        UsageError: A limit is not a number greater than 0.
    """

    stream_bytes: int = 256 * 2**20
    event_bytes: int = 64 * 2**20
    answer_bytes: int = 256 * 2**20
    error_bytes: int = 2**20
    nesting: ClassVar[int] = MOST_LEVELS
    empty_events: int = 1_000_000
    tool_calls: int = 10_000

    def __post_init__(self) -> None:
        for each in fields(self):
            check_number(f"the limit {each.name}", getattr(self, each.name), least=1)


LIMITS = ResponseLimits()


class CallCounter:
    """Counts the tool calls of one response.

    Args:
        limits: The limits.
        provider: The provider's name, for errors.
    """

    __slots__ = ("_count", "_limit", "_provider")

    def __init__(self, limits: ResponseLimits, provider: str) -> None:
        self._limit = limits.tool_calls
        self._provider = provider
        self._count = 0

    def count(self, chunks: Iterable[ChatResponse | str]) -> Iterator[ChatResponse | str]:
        """Yield *chunks*, and count the calls in them; see `add`."""
        for chunk in chunks:
            if isinstance(chunk, ChatResponse):
                self.add(chunk)
            yield chunk

    def add(self, chunk: ChatResponse) -> None:
        """Count the calls that begin in *chunk*.

        Raises:
            ResponseLimitError: There are too many.
        """
        for generation in chunk.generations:
            self._count += _calls_in(generation.output.parts)
        if self._count > self._limit:
            msg = f"the answer of {self._provider} has more than {self._limit:,} tool calls"
            raise ResponseLimitError(
                msg, limit="tool_calls", maximum=self._limit, provider=self._provider
            )


def _calls_in(parts: Iterable[object]) -> int:
    return sum(
        isinstance(part, ToolCall) or (isinstance(part, ToolCallChunk) and bool(part.name))
        for part in parts
    )
