"""The advisor chain: what a request passes on its way to the model, and back."""

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from inspect import CO_VARARGS
from types import FunctionType, MethodType
from typing import Any, Protocol, Self

from chatclient.errors import WrongTypeError
from chatclient.model import ChatModel
from chatclient.model_calls import call_model
from chatclient.operations import AdvisorPass, ModelCall
from chatclient.prompt import Prompt
from chatclient.response import ChatResponse
from chatclient.runtime import BLOCKING, Runtime
from chatclient.threads import is_awaitable
from chatclient.tool import CONVERSATION_ID
from chatclient.trail import Trail
from chatclient.values import EMPTY, freeze_fields, frozen, merged

HIGHEST_PRECEDENCE = -(2**31)
"""The order of an advisor that stands outside of all others."""
LOWEST_PRECEDENCE = 2**31 - 1
"""The order of an advisor that stands next to the model."""
MEMORY_ORDER = HIGHEST_PRECEDENCE + 200
"""Where memory advisors stand by default: outside the tool loop."""
TOOL_CALLING_ORDER = HIGHEST_PRECEDENCE + 300
"""Where the tool loop stands by default; advisors of higher order run once per round."""

_ARGUMENTS = 2  # of an advisor: the request, and the rest of the chain

SOURCES = "sources"
"""The key in a response's context of what the answer rests on, such as the documents that were
retrieved for it, in order."""


@dataclass(frozen=True, slots=True)
class ChatClientRequest:
    """What travels down the chain.

    Attributes:
        prompt: What will be sent to the model, unless an advisor further in changes it.
        context: Values that advisors pass to each other; it starts with the advisor params.
        runtime: Waits, calls functions and emits events, with or without an event loop.
    """

    prompt: Prompt
    context: Mapping[str, Any] = EMPTY
    runtime: Runtime = BLOCKING

    def __post_init__(self) -> None:
        if self.context is not EMPTY:
            freeze_fields(self, "context")

    def mutate(
        self,
        *,
        prompt: Prompt | None = None,
        context: Mapping[str, Any] | None = None,
        runtime: Runtime | None = None,
    ) -> Self:
        """Return a copy with the given values changed; *context* is merged into the present one.

        Raises:
            WrongTypeError: *prompt* is not a Prompt.
        """
        given: object = prompt
        if given is not None and not isinstance(given, Prompt):
            msg = (
                f"{given!r} is not a Prompt; change the request's own, for example with"
                " request.prompt.augment_user_message(...) or .append(...)"
            )
            raise WrongTypeError(msg)
        return type(self)(
            self.prompt if prompt is None else prompt,
            self.context if context is None else merged(self.context, frozen(context, "context")),
            self.runtime if runtime is None else runtime,
        )


@dataclass(frozen=True, slots=True)
class ChatClientResponse:
    """What travels back up the chain.

    Attributes:
        chat_response: What the model said, possibly changed by advisors.
        context: What advisors found out; it starts as the innermost request's context.
        trail: What happened in the turn; the client sets it, once all advisors are done. It is
            not pickled, for it holds the tools, which are functions.
    """

    chat_response: ChatResponse
    context: Mapping[str, Any] = EMPTY
    trail: Trail | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.context is not EMPTY:
            freeze_fields(self, "context")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.chat_response, self.context)

    def mutate(
        self,
        *,
        chat_response: ChatResponse | None = None,
        context: Mapping[str, Any] | None = None,
    ) -> Self:
        """Return a copy with the given values changed; *context* is merged into the present one."""
        return type(self)(
            self.chat_response if chat_response is None else chat_response,
            self.context if context is None else merged(self.context, frozen(context, "context")),
            self.trail,
        )


Next = Callable[[ChatClientRequest], Awaitable[ChatClientResponse]]
"""The rest of the chain. May be awaited once, never, or as often as an advisor needs."""


class Advisor(Protocol):
    """Intercepts requests and responses; any coroutine function of this shape is one.

    Two attributes are optional. `order` (default 0) places the advisor: lower is further out,
    equal orders keep the order in which they were added. `name` (default: that of the function or
    class) is what it is called in `print(client)`, logs and spans.

    Two methods are optional. An advisor that has to know the model of its chain has
    `before_model(model)`, which returns the advisor to use there. An advisor outside the tool loop
    may have `inside_loop(order)`, which returns a second advisor to see each round, or None.

    An advisor gets and returns whole responses in all four modes. What is streamed goes past it,
    through `request.runtime.emit`; see `Runtime.with_emitter` for changing that.
    """

    def __call__(
        self, request: ChatClientRequest, call_next: Next, /
    ) -> Awaitable[ChatClientResponse]:
        """Return the response to *request*, from *call_next* or made here."""
        ...


def is_advisor(value: Any) -> bool:
    """Return whether *value* can be called with a request and the rest of the chain."""
    if isinstance(value, type) or not callable(value):
        return False
    function: Any = value if isinstance(value, FunctionType) else type(value).__call__
    bound = function is not value
    if isinstance(value, MethodType):
        function = value.__func__
    if not isinstance(function, FunctionType):
        return True  # such as a partial: it shows when it is called
    code = function.__code__  # a signature takes far longer, and advisors may be a request's own
    places = code.co_argcount - bound
    needed = places - len(function.__defaults__ or ())
    return needed <= _ARGUMENTS and (places >= _ARGUMENTS or bool(code.co_flags & CO_VARARGS))


def order_of(advisor: Advisor) -> int:
    """Return where *advisor* stands."""
    order: int = getattr(advisor, "order", 0)
    return order


def name_of(advisor: Callable[..., Any]) -> str:
    """Return what *advisor* is called, or another callable that it consists of."""
    name: str | None = getattr(advisor, "name", None) or getattr(advisor, "__name__", None)
    if name is None and isinstance(advisor, partial):
        return name_of(advisor.func)
    return name or type(advisor).__name__


def is_tool_calling(advisor: Advisor) -> bool:
    """Return whether *advisor* runs the tool loop; it says so with `handles_tool_calls = True`."""
    return bool(getattr(advisor, "handles_tool_calls", False))


def is_memory(advisor: Advisor) -> bool:
    """Return whether *advisor* supplies the conversation; it says so with `is_memory = True`.

    When one stands inside the tool loop, the loop sends no history of its own. A method
    `around_loop(order)` then returns an advisor that is put right outside of the loop, to see how
    its turns begin and end.
    """
    return bool(getattr(advisor, "is_memory", False))


def needs_conversation(advisor: Advisor) -> bool:
    """Return whether *advisor* refuses requests that belong to no conversation.

    Memories do; others say so with `needs_conversation = True`.
    """
    return is_memory(advisor) or bool(getattr(advisor, "needs_conversation", False))


class AdvisorChain:
    """Advisors around a model, outermost first; folded once and never changed."""

    __slots__ = ("_entry", "advisors", "model", "names")

    def __init__(self, advisors: Iterable[Advisor], model: ChatModel) -> None:
        self.advisors: tuple[Advisor, ...] = tuple(sorted(advisors, key=order_of))
        self.names = tuple(name_of(advisor) for advisor in self.advisors)
        self.model = model
        self._entry = _model_call(model)
        for advisor in reversed(self.advisors):
            self._entry = _step(advisor, self._entry, model)

    def __call__(self, request: ChatClientRequest) -> Awaitable[ChatClientResponse]:
        """Return the response to *request*."""
        return self._entry(request)


def _step(advisor: Advisor, call_next: Next, model: ChatModel) -> Next:
    name, order = name_of(advisor), order_of(advisor)
    before_model: Callable[[ChatModel], Advisor] | None = getattr(advisor, "before_model", None)
    if before_model is not None:
        advisor = before_model(model)

    async def step(request: ChatClientRequest) -> ChatClientResponse:
        if type(request) is not ChatClientRequest:
            raise _no_request(request)
        with request.runtime.observe(AdvisorPass(name, order, request.prompt)) as observed:
            pending: Any = advisor(request, call_next)
            if not is_awaitable(pending):
                raise _no_coroutine(name, pending)
            response: object = await pending
            observed.result = response
        if not isinstance(response, ChatClientResponse):
            raise _no_response(name, response)
        return response

    return step


def _no_request(given: object) -> WrongTypeError:
    return WrongTypeError(
        f"an advisor called call_next with {given!r}; it takes the request, or a changed copy:"
        " call_next(request.mutate(prompt=...))"
    )


def _no_coroutine(name: str, pending: object) -> WrongTypeError:
    if inspect.isasyncgen(pending):
        return WrongTypeError(
            f"advisor {name!r} is a generator; let it `return` one response and `yield` none"
        )
    return WrongTypeError(
        f"advisor {name!r} is not a coroutine function; write it with `async def`"
    )


def _no_response(name: str, given: object) -> WrongTypeError:
    return WrongTypeError(
        f"advisor {name!r} returned {given!r}; it must return a ChatClientResponse, as a rule the"
        " one from `await call_next(request)`"
    )


def _model_call(model: ChatModel) -> Next:
    async def ask(request: ChatClientRequest) -> ChatClientResponse:
        if type(request) is not ChatClientRequest:
            raise _no_request(request)
        runtime = request.runtime
        conversation_id = request.context.get(CONVERSATION_ID)
        call = ModelCall(model, request.prompt, runtime.streaming, conversation_id)
        return ChatClientResponse(await call_model(call, runtime), request.context)

    return ask
