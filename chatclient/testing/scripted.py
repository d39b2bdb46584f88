"""A model for tests: gives scripted answers, and keeps the prompts that it got."""

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from chatclient.json import dumps
from chatclient.messages import AssistantMessage, ToolCall
from chatclient.model import ChatModel
from chatclient.options import NO_OPTIONS, ChatOptions
from chatclient.prompt import Prompt
from chatclient.response import (
    ChatResponse,
    ChatResponseMetadata,
    FinishReason,
    Generation,
    Usage,
)
from chatclient.runtime import Runtime

Answer = (
    str
    | AssistantMessage
    | ChatResponse
    | ToolCall
    | Sequence[ToolCall | str | Exception]
    | Exception
)
"""What a scripted model answers: a text, tool calls, a whole message or response, or an error. An
error that ends a sequence breaks a stream off after what stands before it."""


class ScriptedModel(ChatModel):
    """Answers in the order given, or as a function of the prompt.

    Args:
        *answers: One for each call, in order; or a single function from a `Prompt` to an answer.
        chunks: How streamed text is cut: a number of characters, or a function from the text to
            its pieces.
        usage: What each answer costs.
        options: The model's default options.

    Attributes:
        prompts: Every prompt the model was asked, in order.
        unused: How many answers have not been used.

    Raises:
        AssertionError: (when called) there are no answers left.
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
        """The options that hold where a prompt sets none."""
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
        runtime: Runtime,  # noqa: ARG002 - a script waits for nothing
    ) -> AsyncGenerator[ChatResponse | str, None]:
        """Yield the next answer in pieces: text as cut, then everything else, then the costs."""
        response, error = self._next(prompt)
        silent: list[Generation] = []
        for generation in response.generations:
            for part in generation.output.parts:
                for piece in self._cut(part) if isinstance(part, str) else (part,):
                    message = AssistantMessage([piece])
                    yield ChatResponse((Generation(message, index=generation.index),))
            metadata = generation.output.metadata
            silent.append(replace(generation, output=AssistantMessage(metadata=metadata)))
        if error is not None:
            raise error
        yield replace(response, generations=tuple(silent))

    @property
    def unused(self) -> int:
        """How many answers have not been used."""
        return 0 if self._function is not None else len(self._answers)

    def _next(self, prompt: Prompt) -> tuple[ChatResponse, Exception | None]:
        """Return the next answer, and the error that comes after it."""
        self.prompts.append(prompt)
        if self._function is not None:
            answer: Any = self._function(prompt)
        elif self._answers:
            answer = self._answers.pop(0)
        else:
            asked = repr(prompt.messages[-1]) if prompt.messages else "nothing"
            msg = f"the script has no answer to call {len(self.prompts)}, which asks {asked}"
            raise AssertionError(msg)
        if isinstance(answer, ChatResponse):
            return answer, None
        if isinstance(answer, Exception):
            answer = [answer]
        if isinstance(answer, list | tuple) and answer and isinstance(answer[-1], Exception):
            *said, error = answer
            return self._response(said), error
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
    """Return a tool call, for scripts.

    Args:
        name: Which tool.
        arguments: A mapping, or a text as a model might write it.
        id: Made from the name unless given.
    """
    text = arguments if isinstance(arguments, str) else dumps(arguments).decode()
    return ToolCall(id or f"call_{name}", name, text)
