"""The advisor contract, and the chain of advisors around a model."""

import inspect
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from inspect import CO_VARARGS
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Protocol, Self

from chatclient._internal.checks import attribute_hints
from chatclient._internal.exceptions import raise_single
from chatclient._internal.frozen import EMPTY, freeze_fields, frozen, merged
from chatclient.chain.model_call import call_model, round_step
from chatclient.chain.params import ANY, check_params, params_of
from chatclient.chat.messages import AssistantMessage, Message, ToolResponseMessage
from chatclient.chat.model import ChatModel
from chatclient.chat.prompt import Prompt
from chatclient.chat.response import ChatResponse
from chatclient.chat.tool import CONVERSATION_ID
from chatclient.chat.turn import Turn, present_turn
from chatclient.chat.withheld_tool import WithheldTool, callable_tools
from chatclient.errors import ToolUsageError, WrongTypeError
from chatclient.observability.operations import AdvisorPass, ModelCall
from chatclient.observability.trail import Trail
from chatclient.runtime.runtime import BLOCKING, Runtime
from chatclient.runtime.threads import is_awaitable

HIGHEST_PRECEDENCE = -(2**31)
"""The order of the outermost advisor."""
LOWEST_PRECEDENCE = 2**31 - 1
"""The order of the innermost advisor, next to the model."""
MEMORY_ORDER = HIGHEST_PRECEDENCE + 200
"""The default order of memory advisors: outside the tool loop."""
TOOL_CALLING_ORDER = HIGHEST_PRECEDENCE + 300
"""The default order of the tool loop; advisors of higher order run once per round."""

_NOTE = 400  # characters, about as many as the notes have that take the place of tool results
_ARGUMENTS = 2  # positional arguments of an advisor: request and call_next


def _turn() -> Turn:
    """Return the turn of a request or response that an advisor makes without naming one."""
    return present_turn() or Turn()


@dataclass(frozen=True, slots=True)
class ChatClientRequest:
    """The request of an advisor.

    Attributes:
        prompt: The prompt for the model; inner advisors may change it.
        context: Values shared by advisors; initially the advisor params of the request.
        runtime: How the request runs; waits, calls functions and emits events.
        turn: The turn that the request is part of; the same object for all advisors.
        earlier: Messages of the conversation that precede those of the prompt, if the tool loop has
            left them out because a memory inside it sends them.
        in_system_text: The history that a memory has written into the system message.
    """

    prompt: Prompt
    context: Mapping[str, Any] = EMPTY
    runtime: Runtime = BLOCKING
    turn: Turn = field(default_factory=_turn, compare=False, repr=False)
    earlier: tuple[Message, ...] = ()
    in_system_text: tuple[Message, ...] = ()

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
        """Return a copy with the given values replaced; *context* is merged into the old one.

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
            self.turn,
            self.earlier,
            self.in_system_text,
        )


@dataclass(frozen=True, slots=True)
class ChatClientResponse:
    """The response of an advisor.

    Attributes:
        chat_response: The model's response; advisors may change it.
        context: Values of advisors; initially the context of the innermost request.
        trail: The trail of the turn, set by the client after all advisors. It is not pickled,
            because it references the tools, which are functions.
        turn: The turn that the response is part of.
    """

    chat_response: ChatResponse
    context: Mapping[str, Any] = EMPTY
    trail: Trail | None = field(default=None, compare=False, repr=False)
    turn: Turn = field(default_factory=_turn, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.context is not EMPTY:
            freeze_fields(self, "context")

    if not TYPE_CHECKING:  # type checkers know all attributes
        __getattr__ = attribute_hints(
            dict.fromkeys(("content", "output", "text"), "its text is its .chat_response.text")
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.chat_response, self.context, None, self.turn)

    def mutate(
        self,
        *,
        chat_response: ChatResponse | None = None,
        context: Mapping[str, Any] | None = None,
    ) -> Self:
        """Return a copy with the given values replaced; *context* is merged into the old one."""
        return type(self)(
            self.chat_response if chat_response is None else chat_response,
            self.context if context is None else merged(self.context, frozen(context, "context")),
            self.trail,
            self.turn,
        )


Next = Callable[[ChatClientRequest], Awaitable[ChatClientResponse]]
"""The inner part of the chain; an advisor may await it any number of times, also never."""


class Advisor(Protocol):
    """Intercepts requests and responses; a coroutine function with this signature is one.

    `AdvisorAttributes` declares the optional attributes that the chain reads from an advisor.

    An advisor gets and returns complete responses in all four modes. Streamed events do not pass
    through it, but through `request.runtime.emit`; `Runtime.with_emitter` intercepts them.
    """

    def __call__(
        self, request: ChatClientRequest, call_next: Next, /
    ) -> Awaitable[ChatClientResponse]:
        """Return the response to *request*, from *call_next* or a new one."""
        ...


class AdvisorAttributes:
    """The optional attributes and methods of an advisor, with their defaults.

    An advisor needs none of them, and need not be a subclass: a class that defines only `order`, or
    a function with that attribute, works as well.

    Attributes:
        order: The position in the chain: lower is further out; advisors of equal order keep the
            order in which they were added. Above `TOOL_CALLING_ORDER`, an advisor runs once per
            round of the tool loop.
        name: Its name in `print(client)`, logs and spans; default: that of the function or class.
        handles_tool_calls: Whether it runs the tool loop, in place of the default one.
        is_memory: Whether it sends the history of the conversation. If such an advisor is inside
            the tool loop, the loop does not send the history.
        needs_conversation: Whether it refuses requests without a conversation id, as every memory
            does.
        storage: The object in which a memory stores its turns; a client refuses a second memory
            with the same one.
        params: The names of the advisor params that it reads; `"*"`, the default, stands for any
            but those of the library's advisors. A param that is not read is an error.
    """

    order: int = 0
    name: str | None = None
    handles_tool_calls: bool = False
    is_memory: bool = False
    needs_conversation: bool = False
    storage: object = None
    params: Collection[str] = (ANY,)

    def before_model(self, model: ChatModel) -> Advisor | None:  # noqa: ARG002 - as below
        """Return the advisor that replaces this one in a chain around *model*, or None."""
        return None

    def inside_loop(self, order: int) -> Advisor | None:  # noqa: ARG002 - for those that need it
        """Return a second advisor that runs in each round, if this one is outside the tool loop.

        Args:
            order: The order that the second advisor is to have.
        """
        return None

    def around_loop(self, order: int) -> Advisor | None:  # noqa: ARG002 - for those that need it
        """Return a second advisor that runs once per turn, if this one is inside the tool loop.

        Args:
            order: The order that the second advisor is to have.
        """
        return None


def is_advisor(value: Any) -> bool:
    """Return whether *value* can be called with a request and `call_next`."""
    if isinstance(value, type) or not callable(value):
        return False
    function: Any = value if isinstance(value, FunctionType) else type(value).__call__
    bound = function is not value
    if isinstance(value, MethodType):
        function = value.__func__
    if not isinstance(function, FunctionType):
        return True  # a partial, for example, fails when it is called
    # Faster than `inspect.signature`; requests may add advisors.
    code = function.__code__
    parameters = code.co_argcount - bound
    required = parameters - len(function.__defaults__ or ())
    accepts_two = parameters >= _ARGUMENTS or bool(code.co_flags & CO_VARARGS)
    return required <= _ARGUMENTS and accepts_two


def _attribute(advisor: Advisor, name: str) -> Any:
    """Return an attribute that `AdvisorAttributes` declares, or its default."""
    return getattr(advisor, name, getattr(AdvisorAttributes, name))


def _second_part(advisor: Advisor, method: str, argument: object) -> Advisor | None:
    """Return what a method that `AdvisorAttributes` declares returns; None without the method."""
    make: Callable[[object], Advisor | None] | None = getattr(advisor, method, None)
    return None if make is None else make(argument)


def order_of(advisor: Advisor) -> int:
    """Return the order of *advisor*; see `AdvisorAttributes`."""
    order: int = _attribute(advisor, "order")
    return order


def name_of(advisor: Callable[..., Any]) -> str:
    """Return the name of *advisor*, or of another callable, such as a guardrail."""
    name: str | None = _attribute(advisor, "name") or getattr(advisor, "__name__", None)
    if name is None and isinstance(advisor, partial):
        return name_of(advisor.func)
    return name or type(advisor).__name__


def is_tool_calling(advisor: Advisor) -> bool:
    """Return whether *advisor* runs the tool loop; see `AdvisorAttributes`."""
    return bool(_attribute(advisor, "handles_tool_calls"))


def is_memory(advisor: Advisor) -> bool:
    """Return whether *advisor* sends the history of the conversation; see `AdvisorAttributes`."""
    return bool(_attribute(advisor, "is_memory"))


def needs_conversation(advisor: Advisor) -> bool:
    """Return whether *advisor* refuses requests without a conversation id."""
    return is_memory(advisor) or bool(_attribute(advisor, "needs_conversation"))


def storage_of(advisor: Advisor) -> object:
    """Return the storage of a memory advisor; the advisor itself if it declares none."""
    return _attribute(advisor, "storage") or advisor


def part_inside_loop(advisor: Advisor, order: int) -> Advisor | None:
    """Return the part of *advisor*, which is outside the tool loop, that runs in each round."""
    return _second_part(advisor, "inside_loop", order)


def part_around_loop(advisor: Advisor, order: int) -> Advisor | None:
    """Return the part of *advisor*, which is inside the tool loop, that runs once per turn."""
    return _second_part(advisor, "around_loop", order)


class AdvisorChain:
    """Advisors around a model, outermost first; built once and never changed.

    Args:
        advisors: The advisors.
        model: The model.
        shorten: Shortens prompts with tool results that do not fit the model's window, directly
            before each call. It is not counted as an advisor.
    """

    __slots__ = ("_entry", "_params", "advisors", "model", "names")

    def __init__(
        self, advisors: Iterable[Advisor], model: ChatModel, shorten: Advisor | None = None
    ) -> None:
        self.advisors: tuple[Advisor, ...] = tuple(sorted(advisors, key=order_of))
        self.names = tuple(name_of(advisor) for advisor in self.advisors)
        self.model = model
        self._params = params_of(*self.advisors)
        self._entry = _model_call(model)
        if shorten is not None:
            self._entry = _shortening(shorten, self._entry)
        for advisor in reversed(self.advisors):
            self._entry = _step(advisor, self._entry, model)

    def check_params(self, params: Mapping[str, Any]) -> None:
        """Check that each of the advisor *params* of a request is read.

        Raises:
            UsageError: One of them is not read.
        """
        check_params(params, self._params)

    def __call__(self, request: ChatClientRequest) -> Awaitable[ChatClientResponse]:
        """Return the response to *request*.

        A client runs the turn of its request. Without one, the chain begins a turn, and memories
        store it before the chain returns.
        """
        return self._entry(request) if request.turn.is_running else _run_turn(request, self._entry)


async def _run_turn(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
    """Return the response to *request*, in a new turn."""
    turn = Turn.of(request.context)
    try:
        with turn:
            sent = ChatClientRequest(request.prompt, request.context, request.runtime, turn)
            response = await call_next(sent)
            if turn.stores:
                await turn.commit(request.runtime)
    finally:
        turn.close()
    return response


def _step(advisor: Advisor, call_next: Next, model: ChatModel) -> Next:
    name, order = name_of(advisor), order_of(advisor)
    advisor = _second_part(advisor, "before_model", model) or advisor

    async def step(request: ChatClientRequest) -> ChatClientResponse:
        if type(request) is not ChatClientRequest:
            raise _wrong_request(request)
        with request.runtime.observe(AdvisorPass(name, order, request.prompt)) as observed:
            awaitable: Any = advisor(request, call_next)
            if not is_awaitable(awaitable):
                raise _not_a_coroutine(name, awaitable)
            try:
                response: object = await awaitable
            except ExceptionGroup as group:
                raise_single(group)
            observed.result = response
        if not isinstance(response, ChatClientResponse):
            raise _wrong_response(name, response)
        if response.turn is not request.turn and response.turn.pending is not None:
            raise _waits_elsewhere(name)
        return response

    return step


def _waits_elsewhere(name: str) -> ToolUsageError:
    return ToolUsageError(
        f"advisor {name!r} returned the response of another request, whose turn waits for approval,"
        " and nobody would resume it: decide about its pending_turn() in the advisor, or offer that"
        " client as a tool, client.as_tool(...), so that the turn waits, too"
    )


def _wrong_request(given: object) -> WrongTypeError:
    return WrongTypeError(
        f"an advisor called call_next with {given!r}; it takes the request, or a changed copy:"
        " call_next(request.mutate(prompt=...))"
    )


def _not_a_coroutine(name: str, returned: object) -> WrongTypeError:
    if inspect.isasyncgen(returned):
        return WrongTypeError(
            f"advisor {name!r} is a generator; let it `return` one response and `yield` none"
        )
    return WrongTypeError(
        f"advisor {name!r} is not a coroutine function; write it with `async def`"
    )


def _wrong_response(name: str, given: object) -> WrongTypeError:
    return WrongTypeError(
        f"advisor {name!r} returned {given!r}; it must return a ChatClientResponse, usually the"
        " one from `await call_next(request)`"
    )


def _sendable(prompt: Prompt, model: ChatModel) -> Prompt:
    """Return *prompt* without tools that may not be called, unless *model* can withhold them."""
    options = prompt.options
    # The choice of a tool that may not be called is an error.
    chosen = options.tool_choice not in (None, "auto", "none", "required")
    if not chosen and model.can_withhold_tools(options):
        return prompt
    allowed = callable_tools(options.tool_callbacks or ())
    return prompt.with_options(options.mutate(tool_callbacks=allowed))


def _shortening(shorten: Advisor, call_next: Next) -> Next:
    """Return *call_next* behind *shorten*, which leaves out tool calls and results."""

    def call(request: ChatClientRequest) -> Awaitable[ChatClientResponse]:
        if type(request) is not ChatClientRequest:
            raise _wrong_request(request)
        messages, state = request.prompt.messages, request.turn.state
        # The next round mostly adds messages to those of the last one, which are not read again.
        length, count, last = state.get(call, (0, 0, None))
        if count > len(messages) or (count and messages[count - 1] is not last):
            length = count = 0
        for message in messages[count:]:
            if isinstance(message, ToolResponseMessage):
                for response in message.responses:
                    length += len(response.data) + _NOTE * len(response.media)
            elif isinstance(message, AssistantMessage):
                for tool_call in message.tool_calls:
                    length += len(tool_call.arguments)
        if messages:
            state[call] = length, len(messages), messages[-1]
        return shorten(request, call_next) if length > _NOTE else call_next(request)

    return call


def _model_call(model: ChatModel) -> Next:
    async def call(request: ChatClientRequest) -> ChatClientResponse:
        if type(request) is not ChatClientRequest:
            raise _wrong_request(request)
        runtime, turn = request.runtime, request.turn
        prompt = request.prompt
        if WithheldTool in map(type, prompt.options.tool_callbacks or ()):
            prompt = _sendable(prompt, model)
        turn.offered_tools = prompt.options.tool_callbacks or ()
        turn.conversation = (*request.in_system_text, *prompt.messages)
        # Read by providers, such as for the key of the prompt cache, with `present_turn`.
        turn.conversation_id = conversation_id = request.context.get(CONVERSATION_ID)
        operation = ModelCall(model, prompt, runtime.streaming, conversation_id)
        for write in turn.round_writers.values():
            await write(None, runtime)  # what the model is about to see
        if turn.recorder is None:
            response = await call_model(operation, runtime)
        else:
            response = await turn.recorder.step(round_step(operation, turn, runtime), runtime)
        turn.responses.append(response)
        for write in turn.round_writers.values():
            await write(response.output, runtime)
        return ChatClientResponse(response, request.context, None, turn)

    return call
