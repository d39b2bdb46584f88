"""Sees to it that a prompt fits the model's context window before it is sent."""

from collections.abc import Callable, Sequence
from typing import Literal

from chatclient.advisors.last_options import LastOptions
from chatclient.chain import LOWEST_PRECEDENCE, ChatClientRequest, ChatClientResponse, Next
from chatclient.checks import check_callable, check_number, check_word
from chatclient.errors import ContextWindowError
from chatclient.json import dumps
from chatclient.memory.window import Window, estimated_tokens
from chatclient.messages import Message, system_messages
from chatclient.options import ChatOptions
from chatclient.prompt import Prompt
from chatclient.turn_taking import present_turn

CONTEXT_WINDOW_ORDER = LOWEST_PRECEDENCE - 700
"""Where the guard stands by default: inside the tool loop, where every round makes a prompt grow,
and outside of what counts and keeps model calls."""

TRIMMED_MESSAGES = "trimmed_messages"
"""The key in a response's context of how many messages were left out, when any were."""

_BYTES_PER_TOKEN = 4


class ContextWindowAdvisor:
    """Leaves out the oldest turns of a prompt that is too long, or raises before it is sent.

    Turns are left out whole: a question goes with its answer and the tool calls between. System
    messages and the current turn always stay; if they alone do not fit, that is an error. Memory is
    not touched: a later request may send these turns again.

    Args:
        max_tokens: The size of the context window in tokens, prompt and answer together.
        on_exceeded: Whether to `"trim"`, and raise only if that is not enough, or to `"raise"`.
        reserve: Tokens to keep free for the answer where the options set no `max_tokens`.
        estimator: Says how many tokens a message comes to; default: one for four bytes. One that
            counts exactly makes the guard exact.
        order: Where the advisor stands in the chain.

    Raises:
        UsageError: *max_tokens* is less than one, *reserve* less than nothing, *on_exceeded* not
            a known value, or *estimator* cannot be called.
    """

    name = "ContextWindowAdvisor"

    def __init__(
        self,
        max_tokens: int,
        *,
        on_exceeded: Literal["trim", "raise"] = "trim",
        reserve: int = 1024,
        estimator: Callable[[Message], int] = estimated_tokens,
        order: int = CONTEXT_WINDOW_ORDER,
    ) -> None:
        check_number("max_tokens", max_tokens, least=1)
        check_number("reserve", reserve)
        check_callable("what counts tokens", estimator, takes=("message",))
        self.max_tokens = max_tokens
        self.order = order
        check_word("on_exceeded", on_exceeded, "trim", "raise")
        self._trim = on_exceeded == "trim"
        self._reserve = reserve
        self._estimate = estimator
        self._tokens_beside = LastOptions(_tokens_beside)

    async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        """Return the response to the prompt, or to what of it fits.

        Raises:
            ContextWindowError: It does not fit; nothing was sent.
        """
        prompt = request.prompt
        answer = prompt.options.max_tokens or self._reserve
        room = self.max_tokens - answer - self._tokens_beside.get(prompt.options)
        if self._tokens(prompt.messages) <= room:
            return await call_next(request)
        kept = self._kept(prompt.messages, room) if self._trim else prompt.messages
        tokens = self._tokens(kept)
        if tokens > room:
            msg = (
                f"the prompt has about {tokens} tokens, but the context window of {self.max_tokens}"
                f" has room for {max(room, 0)} beside tools and answer;"
                " shorten the current turn, or lower max_tokens in the options"
            )
            raise ContextWindowError(msg, tokens=tokens, limit=room)
        trimmed = len(prompt.messages) - len(kept)
        response = await call_next(request.mutate(prompt=Prompt.of(kept, prompt.options)))
        return response.mutate(context={TRIMMED_MESSAGES: trimmed})

    def _kept(self, messages: tuple[Message, ...], room: int) -> tuple[Message, ...]:
        """Return the newest whole turns that there is room for, and all system messages."""
        start = Window.tokens(max(room, 1), self._estimate).start(messages)
        start = min(start, present_turn(messages))
        older = system_messages(messages[:start])
        return (*older, *messages[start:])

    def _tokens(self, messages: Sequence[Message]) -> int:
        return sum(map(self._estimate, messages))


def _tokens_beside(options: ChatOptions) -> int:
    """Return about how many tokens tools and schema take beside the messages."""
    definitions = [callback.definition for callback in options.tool_callbacks or ()]
    described = [[d.name, d.description, d.input_schema] for d in definitions]
    described += [[options.output_schema]] if options.output_schema is not None else []
    return sum(len(dumps(each)) // _BYTES_PER_TOKEN for each in described)
