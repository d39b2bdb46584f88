"""The advisor chain: what a request passes on its way to the model, and back."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Protocol, Self

from chatclient.aggregator import MessageAggregator
from chatclient.errors import StreamInterruptedError
from chatclient.events import RoundEnded, TextDelta, events_of
from chatclient.model import ChatModel
from chatclient.prompt import Prompt
from chatclient.response import ChatResponse
from chatclient.runtime import BLOCKING, Runtime
from chatclient.values import EMPTY, merged

HIGHEST_PRECEDENCE = -(2**31)
"""The order of an advisor that stands outside of all others."""
LOWEST_PRECEDENCE = 2**31 - 1
"""The order of an advisor that stands next to the model."""
MEMORY_ORDER = HIGHEST_PRECEDENCE + 200
"""Where memory advisors stand by default: outside the tool loop."""
TOOL_CALLING_ORDER = HIGHEST_PRECEDENCE + 300
"""Where the tool loop stands by default; advisors of higher order run once per round."""


@dataclass(frozen=True, slots=True)
class ChatClientRequest:
    """What travels down the chain.

    Attributes:
        prompt: What would be sent to the model as things stand.
        context: What advisors tell each other; it starts with the advisor params.
        runtime: How this request runs.
    """

    prompt: Prompt
    context: Mapping[str, Any] = EMPTY
    runtime: Runtime = BLOCKING

    def mutate(
        self,
        *,
        prompt: Prompt | None = None,
        context: Mapping[str, Any] | None = None,
        runtime: Runtime | None = None,
    ) -> Self:
        """Return a copy with the given values changed; *context* is laid over the present one."""
        return type(self)(
            self.prompt if prompt is None else prompt,
            self.context if context is None else merged(self.context, context),
            self.runtime if runtime is None else runtime,
        )


@dataclass(frozen=True, slots=True)
class ChatClientResponse:
    """What travels back up the chain.

    Attributes:
        chat_response: What the model said, as far as the advisors let it.
        context: What advisors found out; it starts as the innermost request's context.
    """

    chat_response: ChatResponse
    context: Mapping[str, Any] = EMPTY

    def mutate(
        self,
        *,
        chat_response: ChatResponse | None = None,
        context: Mapping[str, Any] | None = None,
    ) -> Self:
        """Return a copy with the given values changed; *context* is laid over the present one."""
        return type(self)(
            self.chat_response if chat_response is None else chat_response,
            self.context if context is None else merged(self.context, context),
        )


Next = Callable[[ChatClientRequest], Awaitable[ChatClientResponse]]
"""The rest of the chain. May be awaited once, never, or as often as an advisor needs."""


class Advisor(Protocol):
    """Intercepts requests and responses; any coroutine function of this shape is one.

    Two attributes are optional. `order` (default 0) places the advisor: lower is further out,
    equal orders keep the order in which they were added. `name` (default: that of the function or
    class) is what it is called in `print(client)`, logs and spans.

    An advisor gets and returns whole responses in all four modes. What is streamed goes past it,
    through `request.runtime.emit`; see `Runtime.with_emitter` for changing that.
    """

    def __call__(
        self, request: ChatClientRequest, call_next: Next, /
    ) -> Awaitable[ChatClientResponse]:
        """Return the response to *request*, from *call_next* or of one's own making."""
        ...


def order_of(advisor: Advisor) -> int:
    """Return where *advisor* stands."""
    order: int = getattr(advisor, "order", 0)
    return order


def name_of(advisor: Advisor) -> str:
    """Return what *advisor* is called."""
    name: str | None = getattr(advisor, "name", None) or getattr(advisor, "__name__", None)
    return name or type(advisor).__name__


def is_tool_calling(advisor: Advisor) -> bool:
    """Return whether *advisor* runs the tool loop; it says so with `handles_tool_calls = True`."""
    return bool(getattr(advisor, "handles_tool_calls", False))


def is_memory(advisor: Advisor) -> bool:
    """Return whether *advisor* supplies the conversation; it says so with `is_memory = True`."""
    return bool(getattr(advisor, "is_memory", False))


class AdvisorChain:
    """Advisors around a model, outermost first; folded once and never changed."""

    __slots__ = ("_entry", "advisors", "model")

    def __init__(self, advisors: Iterable[Advisor], model: ChatModel) -> None:
        self.advisors: tuple[Advisor, ...] = tuple(sorted(advisors, key=order_of))
        self.model = model
        self._entry = _model_call(model)
        for advisor in reversed(self.advisors):
            self._entry = _step(advisor, self._entry)

    def __call__(self, request: ChatClientRequest) -> Awaitable[ChatClientResponse]:
        """Return the response to *request*."""
        return self._entry(request)


def _step(advisor: Advisor, call_next: Next) -> Next:
    async def step(request: ChatClientRequest) -> ChatClientResponse:
        response: object = await advisor(request, call_next)
        if not isinstance(response, ChatClientResponse):
            msg = (
                f"advisor {name_of(advisor)!r} returned {response!r}; it has to return a "
                "ChatClientResponse, as a rule the one from `await call_next(request)`"
            )
            raise TypeError(msg)
        return response

    return step


def _model_call(model: ChatModel) -> Next:
    async def call_model(request: ChatClientRequest) -> ChatClientResponse:
        runtime = request.runtime
        if not runtime.streaming:
            response = await model.generate(request.prompt, runtime)
        else:
            response = await _stream_model(model, request.prompt, runtime)
        return ChatClientResponse(response, request.context)

    return call_model


async def _stream_model(model: ChatModel, prompt: Prompt, runtime: Runtime) -> ChatResponse:
    """Return the model's whole response, having emitted what it consists of as it came."""
    aggregator = MessageAggregator()
    emit = runtime.emitter
    try:
        async with aclosing(model.generate_stream(prompt, runtime)) as chunks:
            async for chunk in chunks:
                aggregator.add(chunk)
                if isinstance(chunk, str):  # nearly every chunk there is
                    if chunk:
                        await emit(TextDelta(chunk))
                    continue
                result = chunk.result
                if result is not None and not result.index:  # further answers are not streamed
                    for event in events_of(result.output):
                        await emit(event)
    except StreamInterruptedError as error:
        error.partial = aggregator.response()
        raise
    response = aggregator.response()
    await emit(RoundEnded(response))
    return response
