"""Answers that a service splits over several responses; no I/O."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace

from chatclient._internal.frozen import EMPTY
from chatclient.chat.aggregator import MessageAggregator
from chatclient.chat.options import ChatOptions
from chatclient.chat.prompt import Prompt
from chatclient.chat.response import NO_USAGE, ChatResponse, Usage
from chatclient.providers.http.reader import Chunk

_DEFAULT_CONTINUATIONS = 8


def max_continuations_of(options: ChatOptions) -> int:
    """Return how many continuation requests *options* allow."""
    value: int | None = getattr(options, "max_continuations", None)
    return _DEFAULT_CONTINUATIONS if value is None else value


@dataclass(frozen=True, slots=True)
class Continuation:
    """Sends continuation requests until an answer is complete.

    Attributes:
        unfinished: The native finish reason of a response that is not the last.
        next_prompt: Returns the prompt of the next request, given the original prompt and the
            answer so far; None if the answer is complete.
    """

    unfinished: str
    next_prompt: Callable[[Prompt, ChatResponse], Prompt | None]

    async def complete(
        self, ask: Callable[[Prompt], Awaitable[ChatResponse]], prompt: Prompt, limit: int
    ) -> ChatResponse:
        """Return the complete answer to *prompt*, with at most *limit* more requests."""
        answer = await ask(prompt)
        for _ in range(limit):
            following = self.next_prompt(prompt, answer)
            if following is None:
                break
            continuation = await ask(following)
            joined = MessageAggregator()
            joined.add(answer)
            joined.add(continuation)
            answer = joined.response().with_usage(answer.usage + continuation.usage)
        return answer

    async def stream(
        self, stream: Callable[[Prompt], AsyncGenerator[Chunk, None]], prompt: Prompt, limit: int
    ) -> AsyncGenerator[Chunk, None]:
        """Yield the chunks of the complete answer, with at most *limit* more requests."""
        answer, earlier_usage, is_last = MessageAggregator(), NO_USAGE, False
        following: Prompt | None = prompt
        for left in range(limit, -1, -1):
            if following is None:
                return
            async with aclosing(stream(following)) as chunks:
                async for chunk in chunks:
                    if isinstance(chunk, str):
                        answer.add_text(chunk)
                        yield chunk
                        continue
                    is_last = is_last or self._is_last(chunk)
                    counted = _with_total_usage(chunk, earlier_usage, is_last=is_last)
                    answer.add(counted)
                    yield counted
            if left:
                so_far = answer.response()
                following, earlier_usage = self.next_prompt(prompt, so_far), so_far.usage

    def _is_last(self, chunk: ChatResponse) -> bool:
        native = chunk.result.native_finish_reason if chunk.result else None
        return native not in (None, self.unfinished)


def _with_total_usage(chunk: ChatResponse, earlier: Usage, *, is_last: bool) -> ChatResponse:
    """Return *chunk* with the usage of *earlier* responses added to its own."""
    if not chunk.usage:
        return chunk
    total = earlier + chunk.usage
    if not is_last:  # native figures count one request only
        total = replace(total, native=EMPTY)
    return replace(chunk, metadata=replace(chunk.metadata, usage=total))
