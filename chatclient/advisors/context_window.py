"""`ContextWindowAdvisor`: shortens or refuses prompts that exceed the model's context window."""

import copy
import re
from collections.abc import Callable, Collection, Sequence
from typing import Literal, Self

from chatclient._internal.checks import check_callable, check_choice, check_number
from chatclient._internal.json import dumps
from chatclient.chain.chain import LOWEST_PRECEDENCE, ChatClientRequest, ChatClientResponse, Next
from chatclient.chain.prices import listed_context_window, load_prices, models_in
from chatclient.chat.messages import Message
from chatclient.chat.model import ChatModel
from chatclient.chat.options import ChatOptions, OptionsCache
from chatclient.chat.prompt import Prompt
from chatclient.chat.turn import LeftOut
from chatclient.errors import ContextLengthExceededError, ContextWindowError
from chatclient.memory.shortening import READ_RESULT, Shortening
from chatclient.memory.window import estimated_tokens
from chatclient.runtime.runtime import Runtime
from chatclient.tools.execution.result import RESULT_READER

_STATE = "context_windows"  # the key of the sizes that a turn has learned
_NUMBER = r"\(?(\d[\d,]{2,})"
_LIMITS = re.compile(
    rf"(?:context.(?:length|size|window)|maximum|max|limit|allowed)\D{{0,60}}?{_NUMBER}"
    rf"|> {_NUMBER}|{_NUMBER} (?:tokens? )?(?:maximum|max|limit)",
    re.IGNORECASE,
)

_LEARNED = "_learned_context_windows"  # the attribute of a model with the sizes by model name


def window_size(model: ChatModel, options: ChatOptions, runtime: Runtime) -> int | None:
    """Return the size of the context window of *model* in tokens, or None if it is not known.

    Of several models between which *model* chooses, it is the smallest known one.
    """
    name = options.model or model.name
    kept = (runtime.state or {}).get(_STATE, {})
    learned = kept.get(name) or vars(model).get(_LEARNED, {}).get(name)
    if learned is not None:
        return int(learned)
    sizes = []
    for each in models_in(model):
        own = options if each is model else each.options
        size = each.context_window(own)
        if size is None:
            size = listed_context_window(each, own)
        if size is not None:
            sizes.append(size)
    # The estimates of tokens are for English; code and other languages have more.
    return min(sizes) * 3 // 4 if sizes else None


def learn_window_size(
    model: ChatModel,
    options: ChatOptions,
    runtime: Runtime,
    error: ContextLengthExceededError,
    tokens: int,
) -> int:
    """Return the size of the context window of *model* after a prompt did not fit, and keep it.

    It is the number in the error, or else three quarters of the prompt that was sent. The turn
    keeps it as well, so that it is shown the same after it was suspended or restarted.

    Args:
        model: The model.
        options: Those of the prompt.
        runtime: How the request runs.
        error: The error of the provider.
        tokens: The estimated size of the prompt and the answer.
    """
    numbers = [
        int(number.replace(",", ""))
        for match in _LIMITS.finditer(str(error))
        if (number := next(filter(None, match.groups()), None))
    ]
    # The largest: others are limits of the answer or of images, and the size is kept.
    size = max([number for number in numbers if number < tokens], default=tokens * 3 // 4)
    name = options.model or model.name
    vars(model).setdefault(_LEARNED, {})[name] = size
    if runtime.state is not None:
        runtime.state[_STATE] = {**runtime.state.get(_STATE, {}), name: size}
    return size


CONTEXT_WINDOW_ORDER = LOWEST_PRECEDENCE - 700
"""The default order: inside the tool loop, whose prompts grow with every round, and outside of rate
limits and response caches."""


_PROVIDER_EDITS = "context_management"  # the field with which Anthropic and OpenAI shorten prompts
_BYTES_PER_TOKEN = 4
_READER_TOKENS = 150  # of the tool that reads results, when it is offered
_LEAST_ROOM = 1000  # tokens; with less, the tool would take too much of it
_ATTEMPTS = 8  # with ever smaller prompts, if the size of the window is not known


class ContextWindowAdvisor:
    """Shortens a prompt that is too long, or raises before it is sent.

    See `Shortening` for what is left out, and when: old tool results first, then the oldest turns,
    then the oldest tool calls of the current turn. System messages and the texts of the current
    turn are never removed; if they alone do not fit, an error is raised. Memory and the turn keep
    everything, and the model gets a tool that reads and searches the results that are left out.

    What is sent depends on the prompt only, and its beginning rarely changes, so that providers can
    cache it.

    Args:
        max_tokens: The size of the context window in tokens, for prompt and answer. Default: that
            of the model, as its options or the extra `prices` say, less a quarter, because tokens
            are estimated. If it is not known, it is learned from the first error of the provider
            about a prompt that is too long.
        on_exceeded: `"trim"` raises only if shortening is not sufficient; `"raise"` never shortens.
        clear_tool_results: Whether tool results and tool calls are left out.
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
        max_tokens: int | None = None,
        *,
        on_exceeded: Literal["trim", "raise"] = "trim",
        clear_tool_results: bool = True,
        reserve: int = 1024,
        estimator: Callable[[Message], int] = estimated_tokens,
        order: int = CONTEXT_WINDOW_ORDER,
    ) -> None:
        if max_tokens is not None:
            check_number("max_tokens", max_tokens, least=1)
        check_number("reserve", reserve)
        if estimator is not estimated_tokens:  # each client has an advisor with the default one
            check_callable("a token estimator", estimator, takes=("message",))
        self.max_tokens = max_tokens
        self.order = order
        check_choice("on_exceeded", on_exceeded, "trim", "raise")
        self._trim = on_exceeded == "trim"
        self._clear = clear_tool_results
        self._reserve = reserve
        self._estimate = estimator
        self._overhead = OptionsCache(_overhead)
        self.model: ChatModel | None = None
        self.only_results = False

    def before_model(self, model: ChatModel) -> Self:
        """Return a copy for *model*, whose window is used if none is given."""
        adapted = copy.copy(self)
        adapted.model = model
        return adapted

    @classmethod
    def lenient(cls, model: ChatModel) -> Self:
        """Return the advisor of clients that have none: it only leaves out tool results and calls.

        It never raises, and leaves prompts as they are that the provider is asked to shorten. The
        chain does not call it for prompts without tool results.
        """
        advisor = cls().before_model(model)
        advisor.only_results = True
        return advisor

    async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        """Return the response to the prompt, shortened if necessary.

        Raises:
            ContextWindowError: The prompt does not fit; nothing was sent.
        """
        if self.only_results and _PROVIDER_EDITS in request.prompt.options.extra:
            return await call_next(request)
        size = self.max_tokens
        if size is None and self.model is not None:
            await load_prices(request.runtime)
            size = window_size(self.model, request.prompt.options, request.runtime)
        request.turn.left_out = LeftOut()
        sent = request if size is None else self._shortened(request, size)
        for _ in range(_ATTEMPTS):
            try:
                return await call_next(sent)
            except ContextLengthExceededError as error:
                if self.model is None or self.max_tokens is not None or not self._trim:
                    raise
                before = sent.prompt.messages
                tokens = self._tokens(before) + self._beside(sent.prompt.options)
                options = request.prompt.options
                size = learn_window_size(self.model, options, request.runtime, error, tokens)
                sent = self._shortened(request, size)
                if self._tokens(sent.prompt.messages) >= self._tokens(before):
                    raise
        return await call_next(sent)

    def _shortened(self, request: ChatClientRequest, size: int) -> ChatClientRequest:
        """Return *request* so that it fits into *size* tokens, and record what is left out.

        Raises:
            ContextWindowError: It does not fit.
        """
        prompt = request.prompt
        room = size - self._beside(prompt.options)
        if not self._trim:
            self._check(self._tokens(prompt.messages), room, size)
            return request
        offers_reader = room > _LEAST_ROOM and _may_read(prompt.options)
        reader = _READER_TOKENS if offers_reader else 0
        shortening = self._shortening(request, room - reader, readable=offers_reader)
        messages = shortening.show(prompt.messages)
        if not shortening.cleared:
            offers_reader, reader = False, 0
        self._check(shortening.tokens, room - reader, size)
        if not shortening.active:
            return request
        options = prompt.options
        if offers_reader:
            request.turn.state[READ_RESULT] = shortening
            options = options.mutate(
                tool_callbacks=(*(options.tool_callbacks or ()), RESULT_READER)
            )
        request.turn.left_out = LeftOut(shortening.removed, shortening.cleared)
        return request.mutate(prompt=Prompt.of(messages, options))

    def _shortening(self, request: ChatClientRequest, room: int, *, readable: bool) -> Shortening:
        """Return the shortening of the turn's last prompt, if this one continues it."""
        turns = not self.only_results
        last: Shortening | None = request.turn.state.get(self)
        if (
            last is None
            or last.settings != (room, self._estimate, self._clear, turns, readable)
            or not last.continues(request.prompt.messages)
        ):
            last = request.turn.state[self] = Shortening(
                room, self._estimate, results=self._clear, turns=turns, readable=readable
            )
        return last

    def _check(self, tokens: int, room: int, size: int) -> None:
        """Check that *tokens* fit.

        Raises:
            ContextWindowError: They do not.
        """
        if tokens > room and not self.only_results:
            msg = (
                f"the prompt has about {tokens} tokens, but the context window of {size}"
                f" has room for {max(room, 0)} beside tools and answer;"
                " shorten the current turn, or lower max_tokens in the options"
            )
            raise ContextWindowError(msg, tokens=tokens, limit=room)

    def _beside(self, options: ChatOptions) -> int:
        """Return the tokens of all that is not messages: the answer, tools and schema."""
        return (options.max_tokens or self._reserve) + self._overhead.get(options)

    def _tokens(self, messages: Sequence[Message]) -> int:
        return sum(map(self._estimate, messages))


def _may_read(options: ChatOptions) -> bool:
    """Return whether the model can be offered the tool that reads results."""
    tools = options.tool_callbacks
    if not tools or options.internal_tool_execution_enabled is False:
        return False
    return all(tool.definition.name != READ_RESULT for tool in tools)


def _overhead(options: ChatOptions) -> int:
    """Return the estimated tokens of tools and output schema."""
    definitions = [callback.definition for callback in options.tool_callbacks or ()]
    described = [[d.name, d.description, d.input_schema] for d in definitions]
    described += [[options.output_schema]] if options.output_schema is not None else []
    return sum(len(dumps(each)) // _BYTES_PER_TOKEN for each in described)
