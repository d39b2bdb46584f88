"""Calls models, with observation, deadline and usage limits; the innermost step of the chain."""

import hashlib
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Literal, Protocol

from chatclient._internal.checks import check_type
from chatclient._internal.exceptions import raise_single
from chatclient._internal.json import dumps
from chatclient._internal.logging import described, get_logger
from chatclient.chain.calls_by_name import (
    CallsByNameAggregator,
    CallTool,
    as_called,
    with_calls_by_name,
)
from chatclient.chain.prices import load_prices, models_in, with_cost
from chatclient.chat.aggregator import MessageAggregator
from chatclient.chat.events import RoundEnded, TextDelta, ToolCallFinished, events_of
from chatclient.chat.message_merging import merge_consecutive
from chatclient.chat.messages import AssistantMessage
from chatclient.chat.model import (
    RESPONSE_HINT,
    ChatModel,
    PromptLike,
    generate_checked,
    stream_checked,
)
from chatclient.chat.options import check_tool_choice
from chatclient.chat.pending_turn import answered_in
from chatclient.chat.prompt import Prompt, as_prompt, with_default_options
from chatclient.chat.recorder import TurnStep
from chatclient.chat.response import ChatResponse, Generation
from chatclient.chat.serialization import (
    error_from_dict,
    error_to_dict,
    message_to_dict,
    response_from_dict,
    response_to_dict,
)
from chatclient.chat.stored_values import from_stored, to_stored
from chatclient.chat.turn import Turn, present_recorder
from chatclient.errors import (
    DeadlineExceededError,
    RequestTimeoutError,
    StreamInterruptedError,
    ToolCallRefusedError,
    UsageError,
)
from chatclient.observability.observers import all_observers
from chatclient.observability.operations import (
    ANSWERING_MODEL,
    TIME_TO_FIRST_CHUNK,
    ModelCall,
)
from chatclient.runtime.blocking import context_variable
from chatclient.runtime.observation import Step
from chatclient.runtime.runtime import Runtime, deadline_error, is_expired
from chatclient.runtime.threads import Emitter

log = get_logger(__name__)


class UsageEntry(Protocol):
    """A model call in a `UsageLedger`."""

    async def correct(self, response: ChatResponse | None, runtime: Runtime) -> None:
        """Add what is known when the call ends, however it ends.

        Args:
            response: The response, or as much of it as has arrived, or `NOTHING_KNOWN`; None if
                nothing was sent, so that the call does not count.
            runtime: The runtime of the call.
        """
        ...


class CountedModel(Protocol):
    """A model whose calls count."""

    @property
    def name(self) -> str:
        """The name of the model."""
        ...


class CountedCall(Protocol):
    """An operation that counts in a `UsageLedger`, such as a `ModelCall`."""

    known: ChatResponse | None

    @property
    def model(self) -> CountedModel:
        """The model that is called."""
        ...


class UsageLedger(Protocol):
    """Counts model calls and their usage, and may refuse calls; must be thread-safe."""

    async def enter(self, call: CountedCall, runtime: Runtime) -> UsageEntry:
        """Count *call*, which is about to be sent.

        Raises:
            Exception: The call is not allowed; it does not count.
        """
        ...

    def replay(self, response: ChatResponse) -> None:
        """Count a call and the usage of its *response*, which were counted when it was recorded."""
        ...


NOTHING_KNOWN = ChatResponse(())
"""Stands for the response of a call that has ended before its usage was known."""

_ledger: ContextVar[UsageLedger | None] = context_variable("chatclient_ledger", None)


@contextmanager
def record_usage(ledger: UsageLedger | None) -> Generator[None, None, None]:
    """Add the usage of all model calls made inside, also by other clients, to *ledger*."""
    token = _ledger.set(ledger)
    try:
        yield
    finally:
        _ledger.reset(token)


def current_ledger() -> UsageLedger | None:
    """Return the ledger of the current `record_usage` block, or None."""
    return _ledger.get()


def count_replayed(response: ChatResponse) -> None:
    """Count a call and its *response* from a record in the current ledger, if there is one.

    That of a call that failed is `NOTHING_KNOWN`.
    """
    if (ledger := _ledger.get()) is not None:
        ledger.replay(response)


def dump_known(call: CountedCall) -> dict[str, Any]:
    """Return what budgets have counted of a *call* that failed, for its record."""
    return {} if call.known is None else {"known": to_stored(response_to_dict(call.known))}


def count_known(recorded: Mapping[str, Any]) -> None:
    """Count a call that failed, from its record; see `dump_known`."""
    if (known := recorded.get("known")) is not None:
        response = response_from_dict(from_stored(known))
        count_replayed(response if response.usage else NOTHING_KNOWN)


async def ask_model(model: ChatModel, prompt: PromptLike, runtime: Runtime) -> ChatResponse:
    """Return the response of *model* to *prompt*, for advisors that call a model themselves.

    The call is observed, appears in the trail as an auxiliary call, and counts in a `Budget`.

    Args:
        model: The model; its default options apply to those that the prompt does not set.
        prompt: The prompt.
        runtime: The runtime of the request, usually `request.runtime.silent()`: otherwise, the
            answer is emitted to the user's stream.

    Raises:
        UsageError: There is nothing to send.
        DeadlineExceededError: The deadline has passed.
        ProviderError: The provider failed or refused the request.
    """
    if runtime.steps is None:  # outside of a client's request, which has the client's observers
        runtime = runtime.for_request(None, runtime.observers or all_observers())
    complete = with_default_options(as_prompt(prompt), model.options)
    call = ModelCall(model, complete, runtime.streaming, auxiliary=True)
    recorder = present_recorder()
    if recorder is None:
        return await call_model(call, runtime)
    name = f"ask {model.name} {prompt_digest(complete)}"
    return await recorder.step(_step_of(call, "question", name, runtime), runtime)


async def call_model(call: ModelCall, runtime: Runtime) -> ChatResponse:
    """Return the response to *call*, streamed if *runtime* streams.

    Raises:
        UsageError: `tool_choice` names a tool that is not offered.
        DeadlineExceededError: The deadline has passed.
        ProviderError: The provider failed or refused the request.
    """
    if call.prompt.options.tool_choice is not None:
        check_tool_choice(call.prompt.options)
    if runtime.streaming:
        await runtime.wait_for_consumer()  # no further call starts if the stream is closed now
    runtime.check_cancelled()
    if runtime.deadline is not None and not runtime.remaining():
        msg = "the deadline passed before the model was called"
        raise DeadlineExceededError(msg)
    await load_prices(runtime)
    ledger = _ledger.get()
    entry = None if ledger is None else await ledger.enter(call, runtime)
    prompt, messages = call.prompt, merge_consecutive(call.prompt.messages)
    if messages is not prompt.messages:
        prompt = Prompt.of(messages, prompt.options)
    by_name = CallTool in map(type, prompt.options.tool_callbacks or ())
    if by_name:
        prompt = with_calls_by_name(prompt)
    observed = runtime.observe(call)
    try:
        with observed:
            try:
                if runtime.streaming:
                    aggregator = CallsByNameAggregator() if by_name else MessageAggregator()
                    with _record_partial(aggregator, call, observed):
                        response = await _stream(call, prompt, runtime, observed, aggregator)
                else:
                    try:
                        response = await generate_checked(call.model, prompt, runtime)
                    except ToolCallRefusedError as error:
                        response = _with_refused_call(error)
                    response = as_called(response) if by_name else response
                    response = _with_cost(response, call, observed)
            except (RequestTimeoutError, StreamInterruptedError) as error:
                if not is_expired(runtime):
                    raise
                raise deadline_error(error) from error
            observed.result = response
    except BaseException as error:
        call.known = _known_of(observed, error)
        await correct_failed(entry, call.known, runtime)
        raise
    call.known = response
    if entry is not None:
        # Shielded: the call has been made, and a cancellation must not lose its usage.
        await runtime.shielded(entry.correct(response, runtime))
    return response


async def correct_failed(
    entry: UsageEntry | None, known: ChatResponse | None, runtime: Runtime
) -> None:
    """Correct the *entry* of a call that failed, whose error is about to be raised."""
    if entry is None:
        return
    try:
        # Shielded: the error may be a cancellation, and what was used until then counts.
        await runtime.shielded(entry.correct(known, runtime))
    except Exception as error:  # noqa: BLE001 - the call has another error already
        log.warning("usage not counted", error=described(error))


def _known_of(observed: Step, error: BaseException) -> ChatResponse | None:
    """Return what is known of a call that ended with *error*; None if nothing was sent."""
    if isinstance(error, UsageError) and TIME_TO_FIRST_CHUNK not in observed.found:
        return None  # a mistake of the application is found before anything is sent
    partial: ChatResponse | None = observed.result
    return partial if partial is not None and partial.usage else NOTHING_KNOWN


def _with_cost(response: ChatResponse, call: ModelCall, observed: Step) -> ChatResponse:
    """Return *response* with its cost, by the price of the model that answered."""
    name = observed.found.get(ANSWERING_MODEL)
    if name is None:
        return with_cost(response, call.model, call.prompt.options)
    model = next((each for each in models_in(call.model) if each.name == name), call.model)
    return with_cost(response, model, model.options)


@contextmanager
def _record_partial(
    aggregator: MessageAggregator, call: ModelCall, observed: Step
) -> Generator[None, None, None]:
    """Record the partial response of a stream that fails or is left by its consumer."""
    try:
        yield
    except BaseException as error:
        observed.result = partial = _with_cost(aggregator.response(), call, observed)
        if isinstance(error, (StreamInterruptedError, DeadlineExceededError)):
            error.partial = partial
        raise


async def _stream(
    call: ModelCall,
    prompt: Prompt,
    runtime: Runtime,
    observed: Step,
    aggregator: MessageAggregator,
) -> ChatResponse:
    """Emit the chunks of the model's response to *prompt*, and return the response."""
    what = f"what generate_stream() of {call.model.name} yields"
    started: float | None = time.perf_counter()
    emit, cancellation = runtime.emitter, runtime.cancellation
    try:
        async with aclosing(stream_checked(call.model, prompt, runtime)) as chunks:
            async for chunk in chunks:
                if cancellation is not None and cancellation.requested:
                    runtime.check_cancelled()
                if started is not None:
                    observed.note(TIME_TO_FIRST_CHUNK, time.perf_counter() - started)
                    started = None
                if isinstance(chunk, str):  # the most frequent case
                    aggregator.add_text(chunk)
                    if chunk:
                        await emit(TextDelta(chunk))
                    continue
                check_type(what, chunk, (str, ChatResponse), RESPONSE_HINT)
                await _add_chunk(chunk, aggregator, emit)
    except ExceptionGroup as group:
        raise_single(group)
    except ToolCallRefusedError as error:
        await _add_chunk(_with_refused_call(error), aggregator, emit)
    if isinstance(aggregator, CallsByNameAggregator):
        for event in events_of(aggregator.rest()):
            await emit(event)
    response = _with_cost(aggregator.response(), call, observed)
    await emit(RoundEnded(response))
    return response


async def _add_chunk(chunk: ChatResponse, aggregator: MessageAggregator, emit: Emitter) -> None:
    # Only the first generation is emitted.
    for event in events_of(aggregator.add_and_normalize(chunk)):
        await emit(event)


def _with_refused_call(error: ToolCallRefusedError) -> ChatResponse:
    """Return a response with the refused call; the tool loop sends the problem to the model."""
    message = AssistantMessage(tool_calls=[error.tool_call])
    return ChatResponse((Generation(message, "tool_call"),))


# --- recorded calls -------------------------------------------------------------------------


def prompt_digest(prompt: Prompt) -> str:
    """Return what is equal for equal prompts: a digest of their messages, without metadata."""
    messages = [message_to_dict(message) for message in prompt.messages]
    for each in messages:
        for key in ("metadata", "id", "stored_at"):
            each.pop(key, None)
    return hashlib.sha256(dumps(to_stored({"messages": messages}))).hexdigest()[:16]


def round_step(call: ModelCall, turn: Turn, runtime: Runtime) -> TurnStep[ChatResponse]:
    """Return *call*, a round of *turn*, as a step of it."""
    step = _step_of(call, "model", f"model {len(turn.rounds)}", runtime)
    return replace(step, before=lambda: [*_results(turn)])


def _step_of(
    call: ModelCall, kind: Literal["model", "question"], name: str, runtime: Runtime
) -> TurnStep[ChatResponse]:
    """Return *call* as a step of a turn."""

    def dump(outcome: ChatResponse | Exception) -> dict[str, Any]:
        if isinstance(outcome, Exception):
            return {"error": error_to_dict(outcome), **dump_known(call)}
        recorded = {"response": response_to_dict(outcome)}
        if runtime.state:  # such as the model that answered, of several
            recorded["models"] = runtime.state
        return to_stored(recorded)

    async def load(recorded: dict[str, Any]) -> ChatResponse:
        """Return the recorded response, and emit its text as one event."""
        if runtime.state is not None:
            runtime.state.update(recorded.get("models", {}))
        # Part of the trail, but nothing for observers: they have seen it when it was executed.
        with replace(runtime, observers=()).observe(call) as observed:
            if "error" in recorded:
                count_known(recorded)
                raise error_from_dict(recorded["error"])
            response = observed.result = response_from_dict(from_stored(recorded["response"]))
        count_replayed(response)
        for event in response_events(response):
            await runtime.emit(event)
        return response

    def after(outcome: ChatResponse | Exception, _seconds: float) -> list[Any]:
        """Return what a streamed call has emitted itself."""
        if runtime.streaming or isinstance(outcome, Exception):
            return []
        return response_events(outcome)

    return TurnStep(
        kind,
        name,
        lambda runtime: call_model(call, runtime),
        dump,
        load,
        after=after if kind == "model" else None,
    )


def response_events(response: ChatResponse) -> list[Any]:
    """Return the events of a model call that has returned *response*."""
    message = response.output
    return [*(() if message is None else events_of(message.parts)), RoundEnded(response)]


def _results(turn: Turn) -> Iterator[ToolCallFinished]:
    """Yield the results of the last round: of calls that were not run, too."""
    for call, response in answered_in(turn.rounds[-2:]):
        yield ToolCallFinished(call, response)
