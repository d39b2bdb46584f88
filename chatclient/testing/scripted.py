"""`ScriptedModel`: a model for tests with predefined answers."""

from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, TypeAlias

from chatclient._internal.checks import check_type, seconds
from chatclient._internal.json import dumps
from chatclient.chat.messages import AssistantMessage, ToolCall
from chatclient.chat.model import ChatModel
from chatclient.chat.options import NO_OPTIONS, ChatOptions
from chatclient.chat.prompt import Prompt
from chatclient.chat.response import (
    ChatResponse,
    ChatResponseMetadata,
    FinishReason,
    Generation,
    Usage,
)
from chatclient.runtime.runtime import Runtime

Answer = (
    str
    | AssistantMessage
    | ChatResponse
    | ToolCall
    | Sequence[ToolCall | str | float | Exception]
    | Exception
)
"""An answer of a scripted model: a text, tool calls, a message, a response or an error. In a
sequence, a number is a pause in seconds, and an error at the end is raised after the other items
are streamed."""

_ANSWERS = (str, AssistantMessage, ChatResponse, ToolCall, Sequence, BaseException)

AnswerFunction: TypeAlias = Callable[[Prompt], Answer | Awaitable[Answer]]
"""A plain or async function that computes an answer from the prompt."""


class ScriptedModel(ChatModel):
    """A model with predefined answers, or with a function that computes them.

    Args:
        *answers: One answer for each call, in order, or the function that computes it; a single
            function computes the answers of all calls.
        chunks: The size of streamed chunks in characters, or a function that splits a text.
        delay: Seconds before each answer.
        usage: The usage of each response.
        options: The model's default options.

    Attributes:
        prompts: The prompts of all calls, in order.
        unused: The number of unused answers.

    Raises:
        UsageError: *delay* is not a number or `timedelta` of at least 0.
        AssertionError: (when called) There are no answers left.
    """

    def __init__(
        self,
        *answers: Answer | AnswerFunction,
        chunks: int | Callable[[str], Iterable[str]] = 4,
        delay: float | timedelta = 0.0,
        usage: Usage | None = None,
        options: ChatOptions = NO_OPTIONS,
    ) -> None:
        self._function = answers[0] if len(answers) == 1 and callable(answers[0]) else None
        for answer in answers:
            if not callable(answer):
                check_type("an answer of a script", answer, _ANSWERS)
        self._answers: list[Any] = list(answers)
        self._cut = _every(chunks) if isinstance(chunks, int) else chunks
        self._delay = seconds("delay", delay) if delay else 0.0
        self._usage = usage or Usage(input_tokens=10, output_tokens=5)
        self._options = options
        self.prompts: list[Prompt] = []

    @property
    def options(self) -> ChatOptions:
        """The default options."""
        return self._options

    async def generate(self, prompt: Prompt, runtime: Runtime) -> ChatResponse:
        """Return the next answer."""
        script = await self._next(prompt, runtime)
        if script.pauses[_END] or len(script.pauses) > 1:
            await _pause(runtime, sum(script.pauses.values()))
        if script.error is not None:
            raise script.error
        return script.response

    async def generate_stream(
        self, prompt: Prompt, runtime: Runtime
    ) -> AsyncGenerator[ChatResponse | str, None]:
        """Yield the next answer in chunks; the last chunk has the metadata and the usage."""
        script = await self._next(prompt, runtime)
        without_parts: list[Generation] = []
        for generation in script.response.generations:
            for at, part in enumerate(generation.output.parts):
                await _pause(runtime, script.pauses[at])
                for piece in self._cut(part) if isinstance(part, str) else (part,):
                    message = AssistantMessage([piece])
                    yield ChatResponse((Generation(message, index=generation.index),))
            metadata = generation.output.metadata
            without_parts.append(replace(generation, output=AssistantMessage(metadata=metadata)))
        await _pause(runtime, script.pauses[_END])
        if script.error is not None:
            raise script.error
        yield replace(script.response, generations=tuple(without_parts))

    @property
    def unused(self) -> int:
        """The number of unused answers; 0 with a function."""
        return 0 if self._function is not None else len(self._answers)

    async def _next(self, prompt: Prompt, runtime: Runtime) -> "_Script":
        """Return the script of the next response."""
        self.prompts.append(prompt)
        number = len(self.prompts)
        if self._delay:
            await runtime.sleep(self._delay)
        if self._function is not None:
            answer: Any = self._function
        elif self._answers:
            answer = self._answers.pop(0)
        else:
            last = repr(prompt.messages[-1]) if prompt.messages else "no message"
            msg = f"the script has no answer to call {number}, which ends with {last}"
            raise AssertionError(msg)
        if callable(answer):  # called here, without a thread: most functions do not block
            answer = await runtime.awaited(answer(prompt))
        if isinstance(answer, ChatResponse):
            return _Script(answer)
        single = isinstance(answer, str | AssistantMessage | ToolCall | Exception)
        items: list[Any] = [answer] if single else list(answer)
        error = items.pop() if items and isinstance(items[-1], Exception) else None
        pauses: defaultdict[int, float] = defaultdict(float)
        parts: list[Any] = []
        for item in items:
            if isinstance(item, int | float):
                pauses[len(parts)] += item
            else:
                parts.append(item)
        pauses[_END] = pauses.pop(len(parts), 0.0)
        message = parts[0] if isinstance(answer, AssistantMessage) else AssistantMessage(parts)
        reason: FinishReason = "tool_call" if message.tool_calls else "stop"
        metadata = ChatResponseMetadata(f"response-{number}", "scripted", self._usage)
        response = ChatResponse((Generation(message, reason),), metadata)
        return _Script(response, error, pauses)


@dataclass(frozen=True, slots=True)
class _Script:
    """How one call is answered.

    Attributes:
        response: The response.
        error: Raised after the response, or None.
        pauses: Seconds before the part at an index, and, at `_END`, after all parts.
    """

    response: ChatResponse
    error: Exception | None = None
    pauses: defaultdict[int, float] = field(default_factory=lambda: defaultdict(float))


_END = -1


async def _pause(runtime: Runtime, seconds: float) -> None:
    if seconds:
        await runtime.sleep(seconds)


def _every(size: int) -> Callable[[str], Iterable[str]]:
    def cut(text: str) -> Iterable[str]:
        return [text[at : at + size] for at in range(0, len(text), size)]

    return cut


def call(
    name: str, arguments: str | Mapping[str, Any] = "{}", *, id: str | None = None
) -> ToolCall:
    """Return a tool call as an answer of a `ScriptedModel`.

    Args:
        name: The name of the tool.
        arguments: A mapping, or a text, which may be malformed.
        id: The id of the call; default: derived from the name.
    """
    text = arguments if isinstance(arguments, str) else dumps(arguments).decode()
    return ToolCall(id or f"call_{name}", name, text)
