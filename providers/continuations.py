"""Answers that a service gives in several responses, each when it is asked to go on; no I/O."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace

from chatclient.aggregator import MessageAggregator
from chatclient.options import ChatOptions
from chatclient.prompt import Prompt
from chatclient.providers.reading import Chunk
from chatclient.response import NO_USAGE, ChatResponse, Usage
from chatclient.values import EMPTY

_CONTINUATIONS = 8


def continuations_in(options: ChatOptions) -> int:
    """Return how often a service may be asked to go on with an answer to *options*."""
    most: int | None = getattr(options, "max_continuations", None)
    return _CONTINUATIONS if most is None else most


@dataclass(frozen=True, slots=True)
class Continuation:
    """How a service is asked to go on.

    Attributes:
        unfinished: Its word for why a response ended that is not the last one.
        rest_of: Returns what to ask for the rest of an answer, given the prompt and all that was
            answered so far; None where there is nothing more to come.
    """

    unfinished: str
    rest_of: Callable[[Prompt, ChatResponse], Prompt | None]

    async def whole(
        self, ask: Callable[[Prompt], Awaitable[ChatResponse]], prompt: Prompt, most: int
    ) -> ChatResponse:
        """Return the whole answer to *prompt*.

        Args:
            ask: Returns the response to one request.
            prompt: What is asked.
            most: How often to ask for more, at most.
        """
        answer = await ask(prompt)
        for _ in range(most):
            asked = self.rest_of(prompt, answer)
            if asked is None:
                break
            more = await ask(asked)
            joined = MessageAggregator()
            joined.add(answer)
            joined.add(more)
            answer = joined.response().with_usage(answer.usage + more.usage)
        return answer

    async def streamed(
        self, stream: Callable[[Prompt], AsyncGenerator[Chunk, None]], prompt: Prompt, most: int
    ) -> AsyncGenerator[Chunk, None]:
        """Yield the chunks of the whole answer to *prompt*.

        Args:
            stream: Returns the chunks of the response to one request.
            prompt: What is asked.
            most: How often to ask for more, at most.
        """
        said, spent, over = MessageAggregator(), NO_USAGE, False
        asked: Prompt | None = prompt
        for left in range(most, -1, -1):
            if asked is None:
                return
            async with aclosing(stream(asked)) as chunks:
                async for chunk in chunks:
                    if isinstance(chunk, str):
                        said.add_text(chunk)
                        yield chunk
                        continue
                    over = over or self._is_last(chunk)
                    counted = _counted(chunk, spent, over=over)
                    said.add(counted)
                    yield counted
            if left:
                answer = said.response()
                asked, spent = self.rest_of(prompt, answer), answer.usage

    def _is_last(self, chunk: ChatResponse) -> bool:
        native = chunk.result.native_finish_reason if chunk.result else None
        return native not in (None, self.unfinished)


def _counted(chunk: ChatResponse, spent: Usage, *, over: bool) -> ChatResponse:
    """Return *chunk* with what was *spent* before in its running totals."""
    if not chunk.usage:
        return chunk
    total = spent + chunk.usage
    if not over:  # the figures of one request, of which there may be several
        total = replace(total, native=EMPTY)
    return replace(chunk, metadata=replace(chunk.metadata, usage=total))
