"""`ContextWindowAdvisor`: shortens or refuses prompts that exceed the model's context window."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Literal

from chatclient._internal.checks import check_callable, check_choice, check_number
from chatclient._internal.json import dumps
from chatclient.chain.chain import LOWEST_PRECEDENCE, ChatClientRequest, ChatClientResponse, Next
from chatclient.chat.message_merging import current_turn_start
from chatclient.chat.messages import Message, ToolResponseMessage, system_messages
from chatclient.chat.options import ChatOptions, OptionsCache
from chatclient.chat.prompt import Prompt
from chatclient.chat.turn import LeftOut
from chatclient.errors import ContextWindowError
from chatclient.memory.window import Window, block_start, estimated_tokens

CONTEXT_WINDOW_ORDER = LOWEST_PRECEDENCE - 700
"""The default order: inside the tool loop, whose prompts grow with every round, and outside of rate
limits and response caches."""

CLEARED = "This result was removed, because the conversation is long."
"""What the model sees instead of the result of a tool that was cleared."""

_BYTES_PER_TOKEN = 4
_KEPT_RESULTS = 3  # newest messages with tool results that are never cleared


class ContextWindowAdvisor:
    """Shortens a prompt that is too long, or raises before it is sent.

    First, old tool results are replaced by `CLEARED`, but not the newest three. If that does not
    suffice, the oldest turns are removed: a question with its answer and the tool calls in between.
    System messages and the current turn are never removed; if they alone do not fit, an error is
    raised. Memory is not changed: a later request may send these turns and results again.

    Both happen in blocks, so that providers can cache the beginning of the prompts: at least a
    quarter of the room is cleared, or about half of it removed. What is sent depends on the prompt
    only.

    Args:
        max_tokens: The size of the context window in tokens, for prompt and answer.
        on_exceeded: `"trim"` raises only if trimming is not sufficient; `"raise"` never trims.
        clear_tool_results: Whether old tool results are cleared before turns are removed.
        reserve: The tokens reserved for the answer if the options set no `max_tokens`.
        estimator: Returns the number of tokens of a message; default: one per four bytes. With an
            exact count, the limit is exact.
        order: The position in the chain.

    Raises:
        UsageError: *max_tokens* is less than one, *reserve* is negative, *on_exceeded* is not a
            known value, or *estimator* is not callable.
    """

    name = "ContextWindowAdvisor"
    params: Collection[str] = ()

    def __init__(
        self,
        max_tokens: int,
        *,
        on_exceeded: Literal["trim", "raise"] = "trim",
        clear_tool_results: bool = True,
        reserve: int = 1024,
        estimator: Callable[[Message], int] = estimated_tokens,
        order: int = CONTEXT_WINDOW_ORDER,
    ) -> None:
        check_number("max_tokens", max_tokens, least=1)
        check_number("reserve", reserve)
        check_callable("a token estimator", estimator, takes=("message",))
        self.max_tokens = max_tokens
        self.order = order
        check_choice("on_exceeded", on_exceeded, "trim", "raise")
        self._trim = on_exceeded == "trim"
        self._clear = clear_tool_results
        self._reserve = reserve
        self._estimate = estimator
        self._overhead = OptionsCache(_overhead)

    async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        """Return the response to the prompt, trimmed if necessary.

        Raises:
            ContextWindowError: The prompt does not fit; nothing was sent.
        """
        prompt, request.turn.left_out = request.prompt, LeftOut()
        answer = prompt.options.max_tokens or self._reserve
        room = self.max_tokens - answer - self._overhead.get(prompt.options)
        if self._tokens(prompt.messages) <= room:
            return await call_next(request)
        kept, cleared, trimmed = prompt.messages, 0, 0
        if self._trim:
            kept, cleared = self._cleared(prompt.messages, room, room // 4)
        if self._trim and not cleared:
            left = self._trimmed(prompt.messages, room)
            trimmed = len(prompt.messages) - len(left)
            kept, cleared = self._cleared(left, room, room // 4)
            if not cleared:  # rather a little than an error
                kept, cleared = self._cleared(left, room, 0)
        tokens = self._tokens(kept)
        if tokens > room:
            msg = (
                f"the prompt has about {tokens} tokens, but the context window of {self.max_tokens}"
                f" has room for {max(room, 0)} beside tools and answer;"
                " shorten the current turn, or lower max_tokens in the options"
            )
            raise ContextWindowError(msg, tokens=tokens, limit=room)
        request.turn.left_out = LeftOut(trimmed, cleared)
        return await call_next(request.mutate(prompt=Prompt.of(kept, prompt.options)))

    def _cleared(
        self, messages: tuple[Message, ...], room: int, spare: int
    ) -> tuple[tuple[Message, ...], int]:
        """Return *messages* with old tool results cleared so that they fit, and their number.

        Nothing is cleared if that would free less than *spare* tokens more than required.
        """
        excess = self._tokens(messages) - room
        results = [at for at, m in enumerate(messages) if isinstance(m, ToolResponseMessage)]
        if excess <= 0 or not self._clear or len(results) <= _KEPT_RESULTS:
            return messages, 0
        without = {at: _without_results(messages[at]) for at in results[:-_KEPT_RESULTS]}
        saved = [
            max(self._estimate(m) - self._estimate(without[at]), 0) if at in without else 0
            for at, m in enumerate(messages)
        ]
        freed = list(accumulate(saved))
        if freed[-1] < excess + spare:
            return messages, 0
        # Everything before this index is cleared.
        first = next(at for at, total in enumerate(freed, 1) if total >= excess)
        end = next(at for at, total in enumerate(freed, 1) if total >= excess + spare)
        until = block_start(first, end + 1)
        changed = {at: without[at] for at in range(until) if saved[at]}
        return tuple(changed.get(at, m) for at, m in enumerate(messages)), len(changed)

    def _trimmed(self, messages: tuple[Message, ...], room: int) -> tuple[Message, ...]:
        """Return the newest complete turns that fit, and all system messages."""
        start = Window.tokens(max(room, 1), self._estimate).start(messages)
        start = min(start, current_turn_start(messages))
        older = system_messages(messages[:start])
        return (*older, *messages[start:])

    def _tokens(self, messages: Sequence[Message]) -> int:
        return sum(map(self._estimate, messages))


def _without_results(message: Message) -> ToolResponseMessage:
    assert isinstance(message, ToolResponseMessage)  # noqa: S101
    responses = [replace(response, data=CLEARED, media=()) for response in message.responses]
    return message.mutate(responses=responses)


def _overhead(options: ChatOptions) -> int:
    """Return the estimated tokens of tools and output schema."""
    definitions = [callback.definition for callback in options.tool_callbacks or ()]
    described = [[d.name, d.description, d.input_schema] for d in definitions]
    described += [[options.output_schema]] if options.output_schema is not None else []
    return sum(len(dumps(each)) // _BYTES_PER_TOKEN for each in described)
