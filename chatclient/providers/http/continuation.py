"""Answers that a service splits over several responses; no I/O."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace

from chatclient._internal.frozen import EMPTY, FrozenDict
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
            answer = joined.response().with_usage(_total(answer.usage, continuation.usage))
        return answer

    async def stream(
        self, stream: Callable[[Prompt], AsyncGenerator[Chunk, None]], prompt: Prompt, limit: int
    ) -> AsyncGenerator[Chunk, None]:
        """Yield the chunks of the complete answer, with at most *limit* more requests."""
        answer, earlier, is_last = MessageAggregator(), NO_USAGE, False
        following: Prompt | None = prompt
        for left in range(limit, -1, -1):
            if following is None:
                return
            usage = NO_USAGE  # of this request
            async with aclosing(stream(following)) as chunks:
                async for chunk in chunks:
                    if isinstance(chunk, str):
                        answer.add_text(chunk)
                        yield chunk
                        continue
                    is_last = is_last or self._is_last(chunk, is_final=not left)
                    usage, counted = chunk.usage or usage, chunk
                    if chunk.usage:
                        total = _total(earlier, usage)
                        # Consumers join native values, and those so far are not of the answer.
                        counted = chunk.with_usage(
                            total if is_last else replace(total, native=EMPTY)
                        )
                    answer.add(counted)
                    yield counted
            earlier = _total(earlier, usage)
            if left:
                following = self.next_prompt(prompt, answer.response())

    def _is_last(self, chunk: ChatResponse, *, is_final: bool) -> bool:
        native = chunk.result.native_finish_reason if chunk.result else None
        return native is not None and (is_final or native != self.unfinished)


def _total(earlier: Usage, usage: Usage) -> Usage:
    """Return the usage of an answer; its native values list those of each request."""
    if not earlier:
        return usage
    requests = [
        each for one in (earlier, usage) for each in one.native.get("requests", [one.native])
    ]
    return replace(earlier + usage, native=FrozenDict({"requests": requests}))
