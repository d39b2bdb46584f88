"""Values that a recorded turn takes and returns, as JSON, and one execution of it."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence, Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any

from chatclient.chain.chain import ChatClientResponse
from chatclient.chat.options import ChatOptions
from chatclient.chat.pending_turn import Decision, PendingTurn
from chatclient.chat.response import ChatResponse
from chatclient.chat.serialization import (
    call_from_dict,
    call_to_dict,
    error_from_dict,
    error_to_dict,
    message_from_dict,
    message_to_dict,
    response_from_dict,
    response_to_dict,
    tool_response_from_dict,
    tool_response_to_dict,
    tool_result_from_dict,
    tool_result_to_dict,
)
from chatclient.chat.stored_values import LEFT_OUT, equal_form
from chatclient.chat.tool import ToolExecution, ToolMetadata
from chatclient.chat.tool_definition import ToolDefinition
from chatclient.chat.turn import TURN_KEY, Turn, TurnSettings
from chatclient.client.accessors import executions_in, pending_in, require_answer, warn_waiting
from chatclient.client.pipeline import Pipeline
from chatclient.client.request import ChatClientRequestSpec
from chatclient.client.request_settings import TextSettings
from chatclient.durable.events import FORMAT_VERSION
from chatclient.durable.recording import (
    OnInterrupted,
    Publisher,
    RecordedSteps,
    RecordedTurn,
    Recording,
    StepRecorder,
    TurnRetries,
)
from chatclient.errors import (
    ChatClientError,
    ChatMemoryUnavailableError,
    TurnVersionError,
    UsageError,
)
from chatclient.extend import BLOCKING, NO_OPTIONS, ON_LOOP, drive, from_stored, merged, to_stored
from chatclient.observability.trail import Trail
from chatclient.runtime.cancellation import Cancellation, run_request
from chatclient.structured.converters import converter_of
from chatclient.structured.output import read_answer
from chatclient.tools.function.data_tool import ExternalTool
from chatclient.tools.sources import Resolved, ToolSource

_MISSING = object()
_TURN_SETTINGS = ("replaces", "is_displayed")


def recorded(
    request: ChatClientRequestSpec,
    recording: Recording,
    key: str,
    *,
    retries: TurnRetries | None = None,
) -> ChatClientRequestSpec:
    """Return *request* with its model calls and tool calls recorded.

    Also those of clients that it is handed to, of agents, and of clients that advisors ask.

    Args:
        request: The request; it can be called in each of the four ways.
        recording: The record of the turn; a new one for each execution.
        key: Identifies the turn. Idempotency keys of tools are derived from it, and memories store
            the turn once under it, unless the request has an idempotency key itself.
        retries: Whether failed model calls are repeated.
    """
    settings = request.settings
    if retries is not None:
        recording.retries = retries
    return request.with_settings(
        replace(
            settings,
            advisor_params=merged({TURN_KEY: key}, settings.advisor_params),
            turn=replace(settings.turn, recorder=recording),
        )
    )


def request_to_dict(request: ChatClientRequestSpec) -> dict[str, Any]:
    """Return what *request* has in addition to the defaults of its client, as JSON values.

    Raises:
        UsageError: It has something that has no JSON form, such as additional tools.
    """
    settings, defaults = request.settings, request.pipeline.defaults
    if settings.advisors is not defaults.advisors:
        msg = "a durable request cannot have advisors of its own: give them to the client"
        raise UsageError(msg)
    if settings.system_function is not defaults.system_function and settings.system_function:
        msg = "a durable request cannot have a system function: give it to the client, or a text"
        raise UsageError(msg)
    found: dict[str, Any] = {
        "messages": [
            message_to_dict(message)
            for message in settings.messages_without_system()[len(defaults.messages) :]
        ],
        "tool_context": _added("tool_context", settings.tool_context, defaults.tool_context),
        "params": _added("advisor_params", settings.advisor_params, defaults.advisor_params),
        "options": _added_options(settings.options, defaults.options),
        "tool_calling": settings.tool_calling,
    }
    if turn := {name: True for name in _TURN_SETTINGS if getattr(settings.turn, name)}:
        found["turn"] = turn
    if settings.system != defaults.system:
        found["system"] = settings.system.render(settings.renderer)
    if settings.tools is not None:
        found["tools"] = _tools_to_list(settings.tools, defaults.default_tools)
    return to_stored(found)


def request_from_dict(pipeline: Pipeline, data: Mapping[str, Any]) -> ChatClientRequestSpec:
    """Return the request in *data*, the result of `request_to_dict`.

    Args:
        pipeline: That of the client.
        data: The request.
    """
    data, defaults = from_stored(data), pipeline.defaults
    settings = replace(
        defaults,
        user=TextSettings(),
        messages=(*defaults.messages, *(message_from_dict(each) for each in data["messages"])),
        tool_context=merged(defaults.tool_context, data["tool_context"]),
        advisor_params=merged(defaults.advisor_params, data["params"]),
        tool_calling=data["tool_calling"],
        turn=TurnSettings(**data.get("turn", {})),
        deadline=None,
    )
    if "system" in data:
        settings = replace(
            settings,
            system=TextSettings().updated(data["system"], None, (), None),
            system_function=None,
        )
    request = ChatClientRequestSpec(pipeline, settings)
    if "tools" in data:
        request = request.tools(*_tools_from_list(data["tools"], defaults.default_tools))
    return request.options(**data["options"]) if data["options"] else request


def tool_names(pipeline: Pipeline) -> list[str]:
    """Return the names of the client's default tools, without those of providers."""
    named = []
    for source in pipeline.defaults.default_tools:
        if isinstance(source, str):
            named.append(source)
        elif (definition := getattr(source, "definition", None)) is not None:
            named.append(definition.name)
    return named


def _tools_to_list(tools: Sequence[Resolved], defaults: Sequence[Resolved]) -> list[Any]:
    """Return the tools of a request as JSON values.

    Raises:
        UsageError: One has no JSON form.
    """
    found: list[Any] = []
    if defaults and all(any(tool is each for each in tools) for tool in defaults):
        found.append({"defaults": True})
        tools = [each for each in tools if not any(each is tool for tool in defaults)]
    for tool in tools:
        if isinstance(tool, ExternalTool) and tool.metadata == ToolMetadata():
            found.append({"external": tool.definition.to_json()})
        elif isinstance(tool, str):
            found.append(tool)
        else:
            msg = (
                "a durable request cannot have tools of its own, which another process would not"
                " find: give them to the client, or give the names of tools that its resolver finds"
            )
            raise UsageError(msg)
    return found


def _tools_from_list(data: Sequence[Any], defaults: Sequence[Resolved]) -> Iterator[ToolSource]:
    """Yield the tools in *data*, the result of `_tools_to_list`."""
    for each in data:
        if isinstance(each, str):
            yield each
        elif "defaults" in each:
            yield from defaults
        else:
            yield ExternalTool(ToolDefinition.from_json(each["external"]))


def _added(what: str, given: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return what *given* has in addition to *defaults*, after a check that it can be stored.

    Raises:
        UsageError: A value has no JSON form. The message does not contain it.
    """
    found: dict[str, Any] = {}
    for key, value in given.items():
        if defaults.get(key, _MISSING) is value:
            continue
        found[key] = value
        if equal_form(value) is None and value is not None:
            msg = (
                f"{what}[{key!r}] of a durable request is a {type(value).__name__}, which has no"
                " JSON form: give an id, and let the client's tools find the object"
            )
            raise UsageError(msg)
    return found


def _added_options(given: ChatOptions | None, defaults: ChatOptions | None) -> dict[str, Any]:
    if given is None or given is defaults:
        return {}
    given_values, values = given.set_values(), (defaults or NO_OPTIONS).set_values()
    for each in (given_values, values):
        for name in ("tool_callbacks", "tool_context", "tool_names"):  # those of the settings
            each.pop(name, None)
    return {**dict.fromkeys(given.unset), **_added("options", given_values, values)}


@dataclass(frozen=True, slots=True)
class TurnResult:
    """The result of a durable turn, so far.

    Attributes:
        chat_response: The last response of the model, with the usage of the turn.
        pending_turn: The turn, if it waits for decisions; otherwise None.
        interrupted: The ids of calls that wait because a process ended while their tools ran; it
            is unknown whether they took effect.
        tool_executions: The executed tool calls, in order.
    """

    chat_response: ChatResponse
    pending_turn: PendingTurn | None = None
    interrupted: tuple[str, ...] = ()
    tool_executions: tuple[ToolExecution, ...] = ()

    def content(self) -> str:
        """Return the text of the answer.

        If the turn waits, this is the text before the tool calls, and a warning is logged.
        """
        if self.pending_turn is not None:
            warn_waiting(self.pending_turn)
        return self.chat_response.text

    def entity(self, kind: Any) -> Any:
        """Return the answer as a value of the type *kind*; see `CallResponse.entity`.

        Raises:
            EntityError: The turn waits for decisions, or the answer cannot be converted.
        """
        turn = Turn()
        turn.pending = self.pending_turn
        require_answer(ChatClientResponse(self.chat_response, turn=turn))
        return read_answer(self.chat_response, converter_of(kind))


def result_to_dict(
    response: ChatClientResponse, interrupted: Sequence[str], seconds_left: float | None
) -> dict[str, Any]:
    """Return the result of a segment as JSON values.

    Args:
        response: The response of its request.
        interrupted: The ids of interrupted calls.
        seconds_left: The seconds until the deadline of the turn, or None.
    """
    pending = pending_in(response)
    return to_stored(
        {
            "response": response_to_dict(response.chat_response),
            "pending": None if pending is None else pending.to_json(),
            "interrupted": [*interrupted] if pending is not None else [],
            "executions": [_execution_to_dict(each) for each in executions_in(response)],
            "seconds_left": seconds_left,
            "format": FORMAT_VERSION,
        }
    )


def result_from_dict(data: Mapping[str, Any]) -> TurnResult:
    """Return the result of a segment from what `result_to_dict` returned."""
    data = from_stored(data)
    pending = data["pending"]
    return TurnResult(
        response_from_dict(data["response"]),
        None if pending is None else PendingTurn.from_json(pending),
        tuple(data["interrupted"]),
        tuple(_execution_from_dict(each) for each in data["executions"]),
    )


def _execution_to_dict(execution: ToolExecution) -> dict[str, Any]:
    error = execution.error
    return {
        "call": call_to_dict(execution.tool_call),
        "response": tool_response_to_dict(execution.response),
        "seconds": execution.seconds,
        "attempt": execution.attempt,
        "error": None if error is None else error_to_dict(error),
        "started": execution.started,
    }


def _execution_from_dict(data: Mapping[str, Any]) -> ToolExecution:
    error = data["error"]
    return ToolExecution(
        call_from_dict(data["call"]),
        tool_response_from_dict(data["response"]),
        data["seconds"],
        data["attempt"],
        None if error is None else error_from_dict(error),
        started=data["started"],
    )


def decisions_to_dict(decisions: Mapping[str, Decision]) -> dict[str, Any]:
    """Return *decisions* as JSON values."""
    found: dict[str, Any] = {}
    for id, decision in decisions.items():
        result = decision.result
        found[id] = {
            "approved": decision.approved,
            "message": decision.message,
            "arguments": decision.arguments,
            "result": None if result is None else tool_result_to_dict(result),
            "by": decision.by,
        }
    return to_stored(found)


def decisions_from_dict(data: Mapping[str, Any]) -> dict[str, Decision]:
    """Return the decisions in *data*, the result of `decisions_to_dict`."""
    return {
        id: Decision(
            each["approved"],
            each["message"],
            each["arguments"],
            None if each["result"] is None else tool_result_from_dict(each["result"]),
            each.get("by", ""),  # older records have none
        )
        for id, each in from_stored(data).items()
        if id != LEFT_OUT
    }


_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 10.0  # seconds
_REPLAY_SECONDS = 10.0  # for a turn that is repeated after its deadline, until its next new step


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class SegmentRunner:
    """Runs segments of the turns of one client.

    Attributes:
        pipeline: The pipeline of the client.
        on_interrupted: What happens with interrupted calls of tools that write.
        retries: Whether failed model calls are repeated.
    """

    pipeline: Pipeline
    on_interrupted: OnInterrupted
    retries: TurnRetries | None

    async def run(
        self,
        data: Mapping[str, Any],
        steps: StepRecorder,
        *,
        recovered: bool,
        publisher: Publisher,
        now: Callable[[], float],
    ) -> dict[str, Any]:
        """Return the result of a segment, as JSON values; it has been checked.

        Args:
            data: What the segment was started with.
            steps: Records the steps.
            recovered: Whether an earlier execution has recorded steps.
            publisher: Receives the events.
            now: Returns the time on the clock of the database.
        """
        pause = _FIRST_PAUSE
        while True:
            recording = Recording(
                steps,
                started=data["started"],
                deadline=data["deadline"],
                on_interrupted=self.on_interrupted,
                publisher=publisher if data["streaming"] else None,
                now=now,
            )
            try:
                return await self._run_once(data, recording, recovered=recovered)
            except ChatMemoryUnavailableError:
                # Repeated only if it failed before its first new step: nothing was undone then.
                if recording.live or pause > _LONGEST_PAUSE:
                    raise
            await asyncio.sleep(pause)
            pause, recovered = pause * 2, True

    async def _run_once(
        self, data: Mapping[str, Any], recording: Recording, *, recovered: bool
    ) -> dict[str, Any]:
        """Return the result of a segment, continuing after its recorded steps."""
        deadline, resume = data["deadline"], data["resume"]
        request = request_from_dict(self.pipeline, data["request"])
        if resume is not None:
            request = request.resuming(resume["turn"], decisions_from_dict(resume["decisions"]))
        if deadline is not None:
            left = max(deadline - recording.now(), _REPLAY_SECONDS if recovered else 0.001)
            request = request.deadline(left)
        request = recorded(request, recording, data["turn"], retries=self.retries)
        runtime = ON_LOOP.streamed_to(_discard) if data["streaming"] else ON_LOOP
        cancellation = Cancellation()
        work = request.pipeline.run(request.settings, runtime.with_cancellation(cancellation))
        response = await run_request(work, cancellation)
        seconds_left = None if deadline is None else deadline - recording.now()
        return result_to_dict(response, recording.interrupted, seconds_left)

    def trail(self, data: Mapping[str, Any], steps: Mapping[str, Any]) -> Trail:
        """Return the trail of a segment from its record; nothing is called or stored.

        Args:
            data: What the segment was started with.
            steps: The recorded values of its steps, by name.

        Raises:
            UsageError: A step is not recorded, because the segment has not ended.
        """
        found = RecordedSteps(steps)
        recording = RecordedTurn(found, on_interrupted=self.on_interrupted)
        request = request_from_dict(self.pipeline, data["request"])
        request = recorded(request, recording, data["turn"], retries=self.retries)
        trail = Trail()
        runtime = replace(BLOCKING, steps=trail.steps, observers=())
        try:
            drive(request.pipeline.run(request.settings, runtime))
        except ChatClientError:
            if found.missing is not None:
                raise
            # The turn has failed with this error.
        return trail

    def check(self, data: Mapping[str, Any], recorded: Mapping[str, Any]) -> None:
        """Check that this version reads a segment, and has the tools that it needs to continue.

        Args:
            data: What the segment was started with.
            recorded: The recorded values of its steps, by name.

        Raises:
            TurnVersionError: It does not.
        """
        try:
            called = self._called(data, recorded)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            msg = (
                f"what is stored of turn {data['turn']!r} is not read here"
                f" ({type(error).__name__}): run a worker of the release that has stored it"
            )
            raise TurnVersionError(msg, turn_id=data["turn"]) from error
        check_tools(self.pipeline, data, called)

    def _called(self, data: Mapping[str, Any], recorded: Mapping[str, Any]) -> set[str]:
        """Return the names of the tools of a segment; it is read as when the turn continues."""
        request_from_dict(self.pipeline, data["request"]).settings  # noqa: B018 - may raise
        from_stored(dict(recorded))
        values = [each["value"] for name, each in recorded.items() if name.startswith("model ")]
        responses = [each["response"] for each in values if "response" in each]
        called = {
            call.name
            for response in map(response_from_dict, responses)
            for generation in response.generations
            for call in generation.output.tool_calls
        }
        if (resume := data["resume"]) is not None:
            decisions = decisions_from_dict(resume["decisions"])
            called |= needed_tools(PendingTurn.from_json(resume["turn"]), decisions)
        return called


def needed_tools(pending: PendingTurn, decisions: Mapping[str, Decision]) -> set[str]:
    """Return the names of the tools without which *pending* cannot continue with *decisions*.

    These are the tools of calls that were run, which may have to be undone, and of those that will
    be run.
    """
    waiting = [
        call
        for call in (*pending.pending, *pending.held)
        if call.id not in decisions or decisions[call.id].approved
    ]
    run = [each.tool_call for each in pending.executions if each.arguments is not None]
    return {call.name for call in (*waiting, *run)}


def check_tools(pipeline: Pipeline, data: Mapping[str, Any], called: AbstractSet[str]) -> None:
    """Check that a client has those *called* tools that it had when a turn was started.

    Raises:
        TurnVersionError: Tools are missing.
    """
    missing = sorted(called & set(data["tools"]) - set(tool_names(pipeline)))
    if missing:
        names = ", ".join(missing)
        msg = (
            f"turn {data['turn']!r} has called tools that the client {data['client']!r} does not"
            f" have here: {names}. Run a worker of a version that has them"
        )
        raise TurnVersionError(msg, turn_id=data["turn"], missing_tools=missing)


async def _discard(_event: object) -> None:
    """Drop an event; the publisher has it."""
