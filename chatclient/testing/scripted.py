"""`ScriptedModel`: a model for tests with predefined answers."""

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

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
    | Sequence[ToolCall | str | Exception]
    | Exception
)
"""An answer of a scripted model: a text, tool calls, a message, a response or an error. An error at
the end of a sequence is raised after the other items are streamed."""


class ScriptedModel(ChatModel):
    """A model with predefined answers, or with a function that computes them.

    Args:
        *answers: One answer for each call, in order; or a single function of the `Prompt`.
        chunks: The size of streamed chunks in characters, or a function that splits a text.
        usage: The usage of each response.
        options: The model's default options.

    Attributes:
        prompts: The prompts of all calls, in order.
        unused: The number of unused answers.

    Raises:
        AssertionError: (when called) There are no answers left.
    """

    def __init__(
        self,
        *answers: Answer | Callable[[Prompt], Answer],
        chunks: int | Callable[[str], Iterable[str]] = 4,
        usage: Usage | None = None,
        options: ChatOptions = NO_OPTIONS,
    ) -> None:
        self._function = answers[0] if len(answers) == 1 and callable(answers[0]) else None
        self._answers: list[Any] = list(answers)
        self._cut = _every(chunks) if isinstance(chunks, int) else chunks
        self._usage = usage or Usage(input_tokens=10, output_tokens=5)
        self._options = options
        self.prompts: list[Prompt] = []

    @property
    def options(self) -> ChatOptions:
        """The default options."""
        return self._options

    async def generate(self, prompt: Prompt, runtime: Runtime) -> ChatResponse:  # noqa: ARG002
        """Return the next answer."""
        response, error = self._next(prompt)
        if error is not None:
            raise error
        return response

    async def generate_stream(
        self,
        prompt: Prompt,
        runtime: Runtime,  # noqa: ARG002 - no I/O
    ) -> AsyncGenerator[ChatResponse | str, None]:
        """Yield the next answer in chunks; the last chunk has the metadata and the usage."""
        response, error = self._next(prompt)
        without_parts: list[Generation] = []
        for generation in response.generations:
            for part in generation.output.parts:
                for piece in self._cut(part) if isinstance(part, str) else (part,):
                    message = AssistantMessage([piece])
                    yield ChatResponse((Generation(message, index=generation.index),))
            metadata = generation.output.metadata
            without_parts.append(replace(generation, output=AssistantMessage(metadata=metadata)))
        if error is not None:
            raise error
        yield replace(response, generations=tuple(without_parts))

    @property
    def unused(self) -> int:
        """The number of unused answers; 0 with a function."""
        return 0 if self._function is not None else len(self._answers)

    def _next(self, prompt: Prompt) -> tuple[ChatResponse, Exception | None]:
        """Return the next response, and the error to raise after it."""
        self.prompts.append(prompt)
        if self._function is not None:
            answer: Any = self._function(prompt)
        elif self._answers:
            answer = self._answers.pop(0)
        else:
            last = repr(prompt.messages[-1]) if prompt.messages else "no message"
            msg = f"the script has no answer to call {len(self.prompts)}, which ends with {last}"
            raise AssertionError(msg)
        if isinstance(answer, ChatResponse):
            return answer, None
        if isinstance(answer, Exception):
            answer = [answer]
        if isinstance(answer, list | tuple) and answer and isinstance(answer[-1], Exception):
            *items, error = answer
            return self._response(items), error
        return self._response(answer), None

    def _response(self, answer: Any) -> ChatResponse:
        if not isinstance(answer, AssistantMessage):
            answer = AssistantMessage([answer] if isinstance(answer, str | ToolCall) else answer)
        reason: FinishReason = "tool_call" if answer.tool_calls else "stop"
        number = len(self.prompts)
        metadata = ChatResponseMetadata(f"response-{number}", "scripted", self._usage)
        return ChatResponse((Generation(answer, reason),), metadata)


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
