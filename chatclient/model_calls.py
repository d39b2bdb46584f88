"""Calls of models, whoever makes them: each is noted in the trail, observed and booked."""

import time
from collections.abc import Generator
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from typing import Protocol

from chatclient.aggregator import MessageAggregator
from chatclient.checks import check_kind
from chatclient.context_variables import context_variable
from chatclient.errors import DeadlineExceededError, StreamInterruptedError, ToolCallRefusedError
from chatclient.events import RoundEnded, TextDelta, events_of
from chatclient.inbox import Emitter
from chatclient.messages import AssistantMessage
from chatclient.model import WORDS, ChatModel, PromptLike, answer_of, chunks_of
from chatclient.observation import Step
from chatclient.observers import all_observers
from chatclient.operations import TIME_TO_FIRST_CHUNK, ModelCall
from chatclient.options import check_tool_choice
from chatclient.prompt import Prompt, as_prompt, with_default_options
from chatclient.response import ChatResponse, Generation
from chatclient.runtime import Runtime
from chatclient.turn_taking import in_turns


class Ledger(Protocol):
    """Books model calls, and may refuse them; must be safe to use from several threads at once."""

    def check(self) -> None:
        """Raise when nothing more may be sent."""
        ...

    def add(self, answer: ChatResponse) -> None:
        """Book *answer*."""
        ...


_ledger: ContextVar[Ledger | None] = context_variable("chatclient_ledger", None)


@contextmanager
def booked_in(ledger: Ledger) -> Generator[None, None, None]:
    """Have *ledger* book all model calls that are made inside, those of other clients too."""
    token = _ledger.set(ledger)
    try:
        yield
    finally:
        _ledger.reset(token)


def present_ledger() -> Ledger | None:
    """Return what books the model calls that are made here, or None."""
    return _ledger.get()


async def ask_model(model: ChatModel, prompt: PromptLike, runtime: Runtime) -> ChatResponse:
    """Return what *model* answers to *prompt*: for advisors that need a model themselves.

    Such as for a summary, a judgement or another way to put a question. The call is seen in the
    trail beside the rounds of the turn; telemetry has it, and a `Budget` counts it.

    Args:
        model: The model; its default options hold where the prompt sets none.
        prompt: What it is asked.
        runtime: The request's, as a rule `request.runtime.silent()`; otherwise the user sees the
            model's words in the stream.

    Raises:
        UsageError: There is nothing to send.
        DeadlineExceededError: There is no time left.
        ProviderError: The model's side failed.
    """
    if runtime.steps is None:  # in no client's request, which would have brought its observers
        runtime = runtime.watched_by(None, runtime.observers or all_observers())
    complete = with_default_options(as_prompt(prompt), model.options)
    return await call_model(ModelCall(model, complete, runtime.streaming, aside=True), runtime)


async def call_model(call: ModelCall, runtime: Runtime) -> ChatResponse:
    """Return the response to *call*, streamed or not as *runtime* says.

    Raises:
        UsageError: A tool has to be called that is not offered.
        DeadlineExceededError: There is no time left.
        ProviderError: The model's side failed.
    """
    check_tool_choice(call.prompt.options)
    if not runtime.remaining():
        msg = "the deadline passed before the model could be asked"
        raise DeadlineExceededError(msg)
    ledger = _ledger.get()
    if ledger is not None:
        ledger.check()
    with runtime.observe(call) as observed:
        if runtime.streaming:
            aggregator = MessageAggregator()
            with _partial_kept(aggregator, observed):
                response = await _streamed(call, runtime, observed, aggregator)
        else:
            response = await _generated(call, runtime)
        observed.result = response
    if ledger is not None:
        ledger.add(response)
    return response


async def _generated(call: ModelCall, runtime: Runtime) -> ChatResponse:
    try:
        return await answer_of(call.model, _sent(call.prompt), runtime)
    except ToolCallRefusedError as error:
        return _with_refused_call(error)


@contextmanager
def _partial_kept(aggregator: MessageAggregator, observed: Step) -> Generator[None, None, None]:
    """Keep what had arrived when a stream ends early: it breaks, or its consumer leaves."""
    try:
        yield
    except BaseException as error:
        observed.result = partial = aggregator.response()
        if isinstance(error, StreamInterruptedError):
            error.partial = partial
        raise


async def _streamed(
    call: ModelCall, runtime: Runtime, observed: Step, aggregator: MessageAggregator
) -> ChatResponse:
    """Return the model's whole response, having emitted what it consists of as it came."""
    what = f"what generate_stream() of {call.model.name} yields"
    started: float | None = time.perf_counter()
    emit = runtime.emitter
    try:
        async with aclosing(chunks_of(call.model, _sent(call.prompt), runtime)) as chunks:
            async for chunk in chunks:
                if started is not None:
                    observed.note(TIME_TO_FIRST_CHUNK, time.perf_counter() - started)
                    started = None
                if isinstance(chunk, str):  # nearly every chunk there is
                    aggregator.add_text(chunk)
                    if chunk:
                        await emit(TextDelta(chunk))
                    continue
                check_kind(what, chunk, (str, ChatResponse), WORDS)
                await _take(chunk, aggregator, emit)
    except ToolCallRefusedError as error:
        await _take(_with_refused_call(error), aggregator, emit)
    response = aggregator.response()
    await emit(RoundEnded(response))
    return response


def _sent(prompt: Prompt) -> Prompt:
    """Return *prompt* as the model is to see it."""
    messages = in_turns(prompt.messages)
    return prompt if messages is prompt.messages else Prompt.of(messages, prompt.options)


async def _take(chunk: ChatResponse, aggregator: MessageAggregator, emit: Emitter) -> None:
    for event in events_of(aggregator.take(chunk)):  # further answers are not streamed
        await emit(event)


def _with_refused_call(error: ToolCallRefusedError) -> ChatResponse:
    """Return the answer that the provider has refused: who answers calls tells the model why."""
    message = AssistantMessage(tool_calls=[error.tool_call])
    return ChatResponse((Generation(message, "tool_call"),))
