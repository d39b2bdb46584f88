"""`RecordedModel`: the advisor next to the model that records its calls."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chatclient._internal.checks import check_number, seconds
from chatclient.chain.chain import (
    LOWEST_PRECEDENCE,
    ChatClientRequest,
    ChatClientResponse,
    Next,
    turn_of,
)
from chatclient.chain.model_call import count_replayed
from chatclient.chat.events import RoundEnded, ToolCallFinished, events_of
from chatclient.chat.messages import Message
from chatclient.chat.response import ChatResponse
from chatclient.chat.serialization import response_from_dict, response_to_dict
from chatclient.durable.recorded_errors import error_from_dict, error_to_dict
from chatclient.durable.recording import Publisher, Recording
from chatclient.errors import ProviderError
from chatclient.runtime.runtime import Runtime
from chatclient.tools.pending_turn import answered_in

_LONGEST_EXPONENT = 32


@dataclass(frozen=True, slots=True)
class TurnRetries:
    """How often a turn waits and continues when the provider fails or is busy.

    A retry repeats the failed model call only, after the retries of the model itself. The pauses
    survive restarts.

    Attributes:
        attempts: The maximum number of attempts of each model call, the first one included.
        seconds: The first pause; each further one is twice as long. A `retry_after` of the provider
            that is longer takes precedence.
        longest: The longest pause in seconds.
    """

    attempts: int = 5
    seconds: float = 30.0
    longest: float = 3600.0

    def __post_init__(self) -> None:
        check_number("attempts", self.attempts, least=1)
        for name in ("seconds", "longest"):
            object.__setattr__(self, name, seconds(name, getattr(self, name)))

    def pause_after(self, attempt: int, error: Exception) -> float | None:
        """Return the seconds to wait after failed attempt number *attempt*, or None to give up."""
        if not isinstance(error, ProviderError) or not error.retryable or attempt >= self.attempts:
            return None
        pause = self.seconds * 2.0 ** min(attempt - 1, _LONGEST_EXPONENT)
        return max(min(pause, self.longest), error.retry_after or 0.0)


class RecordedModel:
    """Records the responses and errors of the model, and returns recorded ones.

    Args:
        recording: The record of the turn.
        retries: Whether failed calls are repeated.
    """

    order = LOWEST_PRECEDENCE
    name = "RecordedModel"

    def __init__(self, recording: Recording, retries: TurnRetries | None = None) -> None:
        self._recording = recording
        self._retries = retries or TurnRetries(attempts=1)

    async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        """Return the response of the model, from the record if it is there."""
        name = f"model {len(turn_of(request).rounds)}"
        attempt = 1
        while True:
            try:
                return await self._response(name, request, call_next)
            except Exception as error:
                pause = self._retries.pause_after(attempt, error)
                if pause is None:
                    raise
            attempt += 1
            await self._recording.pause(f"retry {name}", pause, request.runtime)

    async def _response(
        self, name: str, request: ChatClientRequest, call_next: Next
    ) -> ChatClientResponse:
        outcome: ChatClientResponse | Exception | None = None

        async def call_model() -> dict[str, Any]:
            nonlocal outcome
            try:
                self._recording.check_deadline()
                outcome = await self._published(name, request, call_next)
            except Exception as error:  # noqa: BLE001 - recorded, and raised below
                outcome = error
                return {"error": error_to_dict(error)}
            return {"response": response_to_dict(outcome.chat_response)}

        recorded, replayed = await self._recording.step(name, call_model)
        if replayed:
            return await _replay(recorded, request)
        if isinstance(outcome, Exception):
            raise outcome
        assert outcome is not None  # noqa: S101 - set by the step that has just run
        return outcome

    async def _published(
        self, name: str, request: ChatClientRequest, call_next: Next
    ) -> ChatClientResponse:
        """Return the response of the model, and publish its events."""
        publisher = self._recording.publisher
        if publisher is None:
            return await call_next(request)
        for event in _results(turn_of(request).rounds):
            if event.tool_call.id not in self._recording.published:
                await publisher.publish(event)
        await publisher.publish(name)
        response = await call_next(request.mutate(runtime=publishing(request.runtime, publisher)))
        if not request.runtime.streaming:
            for event in _events_of(response.chat_response):
                await publisher.publish(event)
        await publisher.flush()
        return response


def _results(rounds: Sequence[Message]) -> Iterator[ToolCallFinished]:
    """Yield the results of the last round: of calls that were not run, too."""
    for call, response in answered_in(rounds[-2:]):
        yield ToolCallFinished(call, response)


def publishing(runtime: Runtime, publisher: Publisher) -> Runtime:
    """Return *runtime* with an emitter that publishes the events as well."""

    async def emit(event: Any) -> None:
        await publisher.publish(event)
        await runtime.emit(event)

    return runtime.with_emitter(emit)


async def _replay(recorded: Mapping[str, Any], request: ChatClientRequest) -> ChatClientResponse:
    """Return the recorded response, and emit its text as one event, or raise the recorded error."""
    if "error" in recorded:
        raise error_from_dict(recorded["error"])
    response = response_from_dict(recorded["response"])
    turn_of(request).offered_tools = request.prompt.options.tool_callbacks or ()
    count_replayed(response)
    for event in _events_of(response):
        await request.runtime.emit(event)
    return ChatClientResponse(response, request.context)


def _events_of(response: ChatResponse) -> list[Any]:
    message = response.result.output if response.result else None
    return [*(() if message is None else events_of(message.parts)), RoundEnded(response)]
