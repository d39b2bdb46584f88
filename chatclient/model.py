"""The contract of a chat model."""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Coroutine, Generator, Iterable
from contextlib import aclosing
from typing import Any, Literal, cast

from chatclient.callers import within_callers_deadline
from chatclient.checks import check_kind
from chatclient.closing import Closeable
from chatclient.driving import drive
from chatclient.errors import WrongTypeError
from chatclient.event_streams import AsyncEvents, drive_stream
from chatclient.messages import Message
from chatclient.options import NO_OPTIONS, ChatOptions, check_tool_names
from chatclient.prompt import Prompt, as_prompt, with_default_options
from chatclient.response import ChatResponse
from chatclient.runtime import BLOCKING, ON_LOOP, Runtime
from chatclient.threads import is_awaitable

OutputMode = Literal["schema", "tool", "instructions"]
"""How a model is made to answer with JSON: its provider enforces a schema, or it calls a tool that
takes the answer, or it is told in words."""

WORDS = "of a text, make one: ChatResponse.of(text)"
"""What to do for a model that returns or yields something else."""

PromptLike = str | Message | Iterable[Message] | Prompt


class ChatModel(Closeable, ABC):
    """A model that continues conversations.

    An implementor writes `generate`, and `generate_stream` if the model streams; both serve
    blocking and asynchronous callers alike. They do all waiting through the runtime they are
    given (or through `chatclient.providers.http`, which does).

    Called directly, a model hands tool calls back unexecuted: running them is the business of
    `ChatClient`, or of `ToolCallingManager` in a loop of the application's own.
    """

    @property
    def options(self) -> ChatOptions:
        """The options that hold where a prompt sets none."""
        return NO_OPTIONS

    @property
    def name(self) -> str:
        """What to call this model in logs, spans and `print(client)`."""
        return self.options.model or type(self).__name__

    def output_mode(self, options: ChatOptions) -> OutputMode:  # noqa: ARG002 - for those that differ
        """Return how this model is best held to a schema, when it is asked with *options*.

        `ChatOptions.output_schema` says that every model takes one; those that do not, or not
        beside tools, or not every schema, say here what to do instead.
        """
        return "schema"

    @property
    def provider(self) -> str:
        """Whose model this is, in spans and metrics, such as `openai`."""
        name = type(self).__name__.removesuffix("Model").removesuffix("Chat")
        return name.lower() or "custom"

    @property
    def address(self) -> str:
        """Where the model is asked, such as a base URL, without secrets; empty in this process.

        With `provider` and `name` it tells models apart whose answers must not be mixed up.
        """
        return ""

    def __repr__(self) -> str:
        kind, name = type(self).__name__, self.name
        return f"{kind}()" if name == kind else f"{kind}({name!r})"

    @abstractmethod
    async def generate(self, prompt: Prompt, runtime: Runtime) -> ChatResponse:
        """Return the model's response to *prompt*, whose options are complete."""

    async def generate_stream(
        self, prompt: Prompt, runtime: Runtime
    ) -> AsyncGenerator[ChatResponse | str, None]:
        """Yield the response to *prompt* in chunks; a model that cannot stream has only one.

        A chunk that is nothing but the next piece of text may be that text itself.
        """
        yield await answer_of(self, prompt, runtime)

    def call(self, prompt: PromptLike) -> ChatResponse:
        """Return the model's response.

        Raises:
            UsageError: There is nothing to send, or tools are given by name.
            ProviderError: The model's side failed.
        """
        return drive(answer_of(self, self._complete(prompt), within_callers_deadline(BLOCKING)))

    async def acall(self, prompt: PromptLike) -> ChatResponse:
        """Return the model's response; see `call`."""
        return await answer_of(self, self._complete(prompt), within_callers_deadline(ON_LOOP))

    def stream(self, prompt: PromptLike) -> Generator[ChatResponse, None, None]:
        """Yield the model's response in chunks; close the generator to leave early."""
        return drive_stream(self._emitter_of(prompt), within_callers_deadline(BLOCKING))

    def astream(self, prompt: PromptLike) -> AsyncEvents[ChatResponse, None]:
        """Yield the model's response in chunks; `aclose()` the iterator to leave early."""
        return AsyncEvents(self._emitter_of(prompt), within_callers_deadline(ON_LOOP))

    def _complete(self, prompt: PromptLike) -> Prompt:
        complete = with_default_options(as_prompt(prompt), self.options)
        check_tool_names(complete.options)
        return complete

    def _emitter_of(self, prompt: PromptLike) -> Any:
        complete = self._complete(prompt)

        async def emit_chunks(runtime: Runtime) -> None:
            async with aclosing(chunks_of(self, complete, runtime)) as chunks:
                async for chunk in chunks:
                    whole = ChatResponse.of(chunk, None) if isinstance(chunk, str) else chunk
                    await runtime.emit(whole)

        return emit_chunks


async def answer_of(model: ChatModel, prompt: Prompt, runtime: Runtime) -> ChatResponse:
    """Return the response of *model*, whoever wrote it.

    Raises:
        WrongTypeError: It is no response, or does not have to be awaited.
    """
    answer: object = model.generate(prompt, runtime)
    if not is_awaitable(answer):
        msg = f"generate() of {model.name} must be a coroutine: write `async def`"
        raise WrongTypeError(msg)
    response = await answer
    check_kind(f"what generate() of {model.name} returns", response, ChatResponse, WORDS)
    return cast("ChatResponse", response)


def chunks_of(
    model: ChatModel, prompt: Prompt, runtime: Runtime
) -> AsyncGenerator[ChatResponse | str, None]:
    """Return the chunks of the response of *model*, whoever wrote it.

    Raises:
        WrongTypeError: They do not come from an asynchronous generator.
    """
    chunks = model.generate_stream(prompt, runtime)
    if hasattr(chunks, "aclose"):
        return chunks
    if isinstance(chunks, Coroutine):
        chunks.close()
    msg = (
        f"generate_stream() of {model.name} must be an asynchronous generator: "
        "write `async def`, and `yield` the chunks"
    )
    raise WrongTypeError(msg)
