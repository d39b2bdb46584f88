"""Asks for typed answers, and asks again when they do not fit."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from chatclient.advisors.holding import HeldBack
from chatclient.chain import (
    HIGHEST_PRECEDENCE,
    LOWEST_PRECEDENCE,
    ChatClientRequest,
    ChatClientResponse,
    Next,
)
from chatclient.checks import check_kind
from chatclient.errors import DeadlineExceededError, EntityError, UsageError
from chatclient.events import RoundEnded, TextDelta, ToolCallDelta, ToolCallStarted
from chatclient.messages import AssistantMessage, Message, ToolCall, UserMessage
from chatclient.options import ChatOptions
from chatclient.prompt import Prompt
from chatclient.response import ChatResponse, Generation
from chatclient.runtime import Runtime
from chatclient.structured.converters import StructuredOutputConverter, converter_of
from chatclient.structured.output import (
    STRUCTURED_OUTPUT,
    VALIDATED,
    StructuredOutput,
    read_answer,
    with_format,
)
from chatclient.tool import ToolContext, ToolDefinition, ToolMetadata, ToolResult
from chatclient.turn_taking import CORRECTION, corrected

VALIDATION_ORDER = LOWEST_PRECEDENCE - 2000
"""Where answers are validated: inside the tool loop and memory, around every model call."""

_FORMAT_ORDER = LOWEST_PRECEDENCE - 1000
_TOOL = "final_answer"
_DESCRIPTION = "Give the final answer. Call this once you know it, in place of answering in words."


class StructuredOutputValidationAdvisor:
    """Asks the model again, showing it what it answered and what is wrong with that.

    It stands next to the model, so memory and the tool loop see only the answer that fits. An
    answer that asks for tools is none yet, and passes as it is.

    In a stream, what the model says is held back until it fits, unless the request consumes
    partial values, which begin anew with each attempt.

    Args:
        kind: What the answer has to be, a type, a JSON Schema as a mapping or a converter; default:
            what the request asks for with `entity(...)`, and nothing where it asks for no entity.
        max_attempts: How often the model may be asked for one answer, the first time included.
        order: Where the advisor stands in the chain.

    Raises:
        UsageError: The type has no schema, or an argument is out of range.
    """

    name = "StructuredOutputValidationAdvisor"
    validates_output = True

    def __init__(
        self,
        kind: type[Any] | StructuredOutputConverter[Any] | Any = None,
        *,
        max_attempts: int = 3,
        order: int = VALIDATION_ORDER,
    ) -> None:
        check_kind("max_attempts", max_attempts, int)
        if max_attempts < 1:
            msg = (
                f"max_attempts counts the first attempt: it must be at least 1, not {max_attempts}"
            )
            raise UsageError(msg)
        if not HIGHEST_PRECEDENCE < order < LOWEST_PRECEDENCE:
            msg = "the order of a validation advisor must lie between the highest and the lowest"
            raise UsageError(msg)
        self.converter = None if kind is None else converter_of(kind)
        self.max_attempts = max_attempts
        self.order = order

    async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        """Return the first response that fits.

        Raises:
            EntityError: None of the attempts fits.
        """
        asked: StructuredOutput[Any] | None = request.context.get(STRUCTURED_OUTPUT)
        converter = self.converter or (asked.converter if asked is not None else None)
        if converter is None:
            return await call_next(request)
        hold = request.runtime.streaming and not (asked is not None and asked.streamed)
        return await self._ask_until_it_fits(request, call_next, converter, hold=hold)

    async def _ask_until_it_fits(
        self,
        request: ChatClientRequest,
        call_next: Next,
        converter: StructuredOutputConverter[Any],
        *,
        hold: bool,
    ) -> ChatClientResponse:
        usage = None
        sent, attempt = request, 1
        while True:
            held = HeldBack(request.runtime)
            response = await call_next(sent.mutate(runtime=held.runtime) if hold else sent)
            answer = response.chat_response
            usage = answer.usage if usage is None else usage + answer.usage
            response = response.mutate(chat_response=answer.with_usage(usage))
            if answer.has_tool_calls():
                await held.release()
                return response
            try:
                value = read_answer(response.chat_response, converter)
            except EntityError as error:
                await held.release(words=False)
                if attempt == self.max_attempts:
                    raise _exhausted(error, attempt) from (error.__cause__ or error)
                sent, attempt = sent.mutate(prompt=_corrected(sent, answer, error)), attempt + 1
            else:
                await held.release()
                return response.mutate(context={VALIDATED: (converter, answer.text, value)})


def _exhausted(error: EntityError, attempts: int) -> EntityError:
    message = f"after {attempts} attempts, {error}" if attempts > 1 else str(error)
    return EntityError(message, text=error.text, errors=error.errors, response=error.response)


def _corrected(sent: ChatClientRequest, answer: ChatResponse, error: EntityError) -> Prompt:
    """Return the prompt with the answer that does not fit and what is wrong with it."""
    if not sent.runtime.remaining():
        msg = "the deadline passed before the model could be asked for a better answer"
        raise DeadlineExceededError(msg) from error
    told = "\n".join(f"- {line}" for line in error.errors)
    correction = f"That is not what was asked for:\n{told}\nGive the whole answer again, put right."
    messages = corrected(sent.prompt.messages, answer.output, correction)
    return Prompt.of(messages, sent.prompt.options)


class StructuredOutputAdvisor:
    """Says how to answer, in every round, for requests that ask for an entity.

    It is added to such requests by itself, next to the model: memory never sees what it adds.
    """

    name = "StructuredOutputAdvisor"
    order = _FORMAT_ORDER

    async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        """Return the response, its text the answer."""
        output: StructuredOutput[Any] = request.context[STRUCTURED_OUTPUT]
        schema = output.converter.json_schema
        # Where tools may no longer be called, as at the limit of a loop, words have to do.
        may_call = request.prompt.options.tool_choice != "none"
        if output.mode == "tool" and schema is not None and may_call:
            return await _ask_for_call(request, call_next, schema)
        if output.mode != "schema" and output.converter.format:
            return await call_next(request.mutate(prompt=_told(request.prompt, output)))
        return await call_next(request)


def _told(prompt: Prompt, output: StructuredOutput[Any]) -> Prompt:
    """Return *prompt* with the format added to the user's last message, or else the system's."""
    messages = prompt.messages
    for at in reversed(range(len(messages))):
        message = messages[at]
        if isinstance(message, UserMessage) and CORRECTION not in message.metadata:
            told = output.told if message is output.asked else None
            # The same object in every round, so that a provider encodes it once.
            changed: Message = told or with_format(message, output.converter.format)
            return prompt.of((*messages[:at], changed, *messages[at + 1 :]), prompt.options)
    format = output.converter.format
    return prompt.augment_system_message(lambda text: f"{text}\n\n{format}" if text else format)


# --- the answer as a tool call --------------------------------------------------------------


async def _ask_for_call(
    request: ChatClientRequest, call_next: Next, schema: Mapping[str, Any]
) -> ChatClientResponse:
    """Offer a tool that takes the answer, and return its arguments as the answer's text."""
    options, name = _with_answer_tool(request.prompt.options, schema)
    answering = _Answering(name, request.runtime)
    response = await call_next(
        request.mutate(
            prompt=request.prompt.with_options(options),
            runtime=request.runtime.with_emitter(answering.emit),
        )
    )
    return response.mutate(chat_response=_as_text(response.chat_response, name))


def _with_answer_tool(options: ChatOptions, schema: Mapping[str, Any]) -> tuple[ChatOptions, str]:
    present = options.tool_callbacks or ()
    taken = {callback.definition.name for callback in present}
    name = _TOOL
    while name in taken:
        name += "_"
    tool = _AnswerTool(ToolDefinition(name, _DESCRIPTION, schema))
    changes: dict[str, Any] = {"tool_callbacks": (*present, tool)}
    if options.tool_choice is None:  # what the request says itself holds
        changes["tool_choice"] = "required" if present else name
    return options.mutate(**changes), name


class _AnswerTool:
    """A tool that is called but never run."""

    def __init__(self, definition: ToolDefinition) -> None:
        self.definition = definition
        self.metadata = ToolMetadata(effect="read")

    async def invoke(self, arguments: str, context: ToolContext) -> ToolResult:  # noqa: ARG002
        """Return the answer, for those who run the tools of a prompt themselves."""
        return ToolResult(arguments)


def _as_text(answer: ChatResponse, name: str) -> ChatResponse:
    """Return *answer* with the call of the answer tool as its text.

    Beside calls of other tools it is dropped: the model will know better once it has seen them.
    """
    return replace(answer, generations=tuple(_spoken(each, name) for each in answer.generations))


def _spoken(generation: Generation, name: str) -> Generation:
    message = generation.output
    answers = [call for call in message.tool_calls if call.name == name]
    if not answers:
        return generation
    others = [call for call in message.tool_calls if call.name != name]
    if others:
        return replace(generation, output=message.mutate(tool_calls=others))
    kept = [part for part in message.parts if not isinstance(part, str | ToolCall)]
    output = AssistantMessage([*kept, answers[0].arguments], metadata=message.metadata)
    cut_off = generation.finish_reason == "length"
    return replace(generation, output=output, finish_reason="length" if cut_off else "stop")


class _Answering:
    """Streams the arguments of the answer tool as the words they are."""

    def __init__(self, name: str, runtime: Runtime) -> None:
        self._name = name
        self._runtime = runtime
        self._calls: list[ToolCallStarted] = []

    async def emit(self, event: Any) -> None:
        match event:
            case ToolCallStarted(name=self._name):
                self._calls.append(event)
                return
            case ToolCallDelta(arguments=arguments) if self._calls:
                of = [_belongs(event, call) for call in self._calls]
                if True in of[1:]:
                    return  # only the first answer counts
                event = TextDelta(arguments) if of[0] else event
            case RoundEnded(response=response):
                event = RoundEnded(_as_text(response, self._name))
            case _:
                pass
        await self._runtime.emit(event)


def _belongs(delta: ToolCallDelta, call: ToolCallStarted) -> bool:
    return (delta.id, delta.index) == (call.id, call.index)
