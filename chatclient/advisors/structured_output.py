"""Advisors that request structured output, and retry if an answer is invalid."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from chatclient._internal.checks import check_type
from chatclient.advisors.guardrails.advisors import HeldStream
from chatclient.chain.chain import (
    HIGHEST_PRECEDENCE,
    LOWEST_PRECEDENCE,
    ChatClientRequest,
    ChatClientResponse,
    Next,
)
from chatclient.chat.events import RoundEnded, TextDelta, ToolCallDelta, ToolCallStarted
from chatclient.chat.message_merging import is_of_user, with_correction
from chatclient.chat.messages import AssistantMessage, ToolCall, UserMessage
from chatclient.chat.options import ChatOptions
from chatclient.chat.prompt import Prompt
from chatclient.chat.response import ChatResponse, Generation
from chatclient.chat.tool import ToolContext, ToolDefinition, ToolMetadata, ToolResult
from chatclient.errors import DeadlineExceededError, EntityError, UsageError
from chatclient.runtime.runtime import Runtime
from chatclient.structured.converters import StructuredOutputConverter, converter_of
from chatclient.structured.output import (
    StructuredOutput,
    read_answer,
    with_format,
)

VALIDATION_ORDER = LOWEST_PRECEDENCE - 2000
"""The default order of validation: inside the tool loop and memory, around every model call."""

_FORMAT_ORDER = LOWEST_PRECEDENCE - 1000
_TOOL = "final_answer"
_DESCRIPTION = "Give the final answer. Call this once you know it, in place of answering in words."


class StructuredOutputValidationAdvisor:
    """Validates answers, and retries with the invalid answer and its errors in the prompt.

    It is next to the model, so memory and the tool loop only get the valid answer. Responses with
    tool calls are not validated.

    In a stream, text is buffered until it is valid, unless the request consumes partial values,
    which restart with each attempt.

    Args:
        kind: The type of the answer: a type, a JSON Schema as a mapping or a converter; default:
            the one that the request passes to `entity(...)`; without it, nothing is validated.
        max_attempts: The maximum number of model calls for one answer, including the first.
        order: The position in the chain.

    Raises:
        UsageError: The type has no schema, or an argument is out of range.
    """

    name = "StructuredOutputValidationAdvisor"
    params: Collection[str] = ()

    def __init__(
        self,
        kind: type[Any] | StructuredOutputConverter[Any] | Any = None,
        *,
        max_attempts: int = 3,
        order: int = VALIDATION_ORDER,
    ) -> None:
        check_type("max_attempts", max_attempts, int)
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
        """Return the first valid response.

        Raises:
            EntityError: The last attempt is invalid as well.
        """
        output: StructuredOutput[Any] | None = request.turn.part.output
        converter = self.converter or (output.converter if output is not None else None)
        if converter is None:
            return await call_next(request)
        hold = request.runtime.streaming and not (output is not None and output.streamed)
        return await self._call_until_valid(request, call_next, converter, hold=hold)

    async def _call_until_valid(
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
            held = HeldStream(request.runtime)
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
                # Only the text is dropped: the round has ended, and its usage counts.
                await held.release(text=False)
                if attempt == self.max_attempts:
                    message = f"after {attempt} attempts, {error}" if attempt > 1 else str(error)
                    raise EntityError(
                        message, text=error.text, errors=error.errors, response=error.response
                    ) from (error.__cause__ or error)
                if not sent.runtime.remaining():
                    msg = "the deadline passed before the model could be asked for a better answer"
                    raise DeadlineExceededError(msg) from error
                errors = "\n".join(f"- {line}" for line in error.errors)
                correction = (
                    f"That is not what was asked for:\n{errors}\nGive the whole answer again,"
                    " put right."
                )
                messages = with_correction(sent.prompt.messages, answer.output, correction)
                sent, attempt = (
                    sent.mutate(prompt=Prompt.of(messages, sent.prompt.options)),
                    attempt + 1,
                )
            else:
                await held.release()
                request.turn.validated = converter, answer.text, value
                return response


class StructuredOutputAdvisor:
    """Adds the output format to every round of a request for an entity.

    The client adds it to such requests, next to the model: memory never stores the format.
    """

    name = "StructuredOutputAdvisor"
    params: Collection[str] = ()
    order = _FORMAT_ORDER

    async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        """Return the response, with the structured answer as its text."""
        output: StructuredOutput[Any] = request.turn.part.output
        schema = output.converter.json_schema
        # If no tools may be called, as at the limit of a loop, the format is given as text.
        may_call = request.prompt.options.tool_choice != "none"
        if output.mode == "tool" and schema is not None and may_call:
            options, name = _with_answer_tool(request.prompt.options, schema)
            stream = _AnswerStream(name, request.runtime)
            response = await call_next(
                request.mutate(
                    prompt=request.prompt.with_options(options),
                    runtime=request.runtime.with_emitter(stream.emit),
                )
            )
            return response.mutate(chat_response=_as_text(response.chat_response, name))
        if output.mode != "schema" and output.converter.format:
            return await call_next(request.mutate(prompt=_prompt_with_format(request, output)))
        return await call_next(request)


def _prompt_with_format(request: ChatClientRequest, output: StructuredOutput[Any]) -> Prompt:
    """Return the prompt with the format in the last user message, or else in the system message."""
    prompt, state = request.prompt, request.turn.state
    messages = prompt.messages
    for index in reversed(range(len(messages))):
        message = messages[index]
        if isinstance(message, UserMessage) and is_of_user(message):
            plain, formatted = state.get(StructuredOutputAdvisor, (None, None))
            if message is not plain:
                formatted = with_format(message, output.converter.format)
            # The same object in every round, so that a provider encodes it once.
            state[StructuredOutputAdvisor] = message, formatted
            changed_messages = (*messages[:index], formatted, *messages[index + 1 :])
            return prompt.of(changed_messages, prompt.options)
    format = output.converter.format
    return prompt.augment_system_message(lambda text: f"{text}\n\n{format}" if text else format)


# --- the answer as a tool call --------------------------------------------------------------


def _with_answer_tool(options: ChatOptions, schema: Mapping[str, Any]) -> tuple[ChatOptions, str]:
    present = options.tool_callbacks or ()
    taken = {callback.definition.name for callback in present}
    name = _TOOL
    while name in taken:
        name += "_"
    tool = _AnswerTool(ToolDefinition(name, _DESCRIPTION, schema))
    changed = options.mutate(tool_callbacks=(*present, tool))
    if options.tool_choice is None:  # the choice of the request takes precedence
        choice = ChatOptions(tool_choice="required" if present else name)
        # A default: some models cannot be forced to call a tool.
        changed = changed.merge(choice.as_defaults())
    return changed, name


class _AnswerTool:
    """A tool that is called but never run."""

    def __init__(self, definition: ToolDefinition) -> None:
        self.definition = definition
        self.metadata = ToolMetadata(effect="read")

    async def invoke(self, arguments: str, context: ToolContext) -> ToolResult:  # noqa: ARG002
        """Return the answer, for applications that run the tools of a prompt themselves."""
        return ToolResult(arguments)


def _as_text(answer: ChatResponse, name: str) -> ChatResponse:
    """Return *answer* with the arguments of the answer tool as its text.

    If other tools are called as well, the call is dropped: their results may change the answer.
    """
    generations = tuple(_generation_as_text(each, name) for each in answer.generations)
    return replace(answer, generations=generations)


def _generation_as_text(generation: Generation, name: str) -> Generation:
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


class _AnswerStream:
    """Emits the arguments of the answer tool as text deltas."""

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
                belongs = [(event.id, event.index) == (call.id, call.index) for call in self._calls]
                if True in belongs[1:]:
                    return  # only the first answer counts
                event = TextDelta(arguments) if belongs[0] else event
            case RoundEnded(response=response):
                event = RoundEnded(_as_text(response, self._name))
            case _:
                pass
        await self._runtime.emit(event)
