"""The contract of a chat model, and of the batch API that a provider may have."""

from abc import ABC, abstractmethod
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import aclosing
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

from chatclient._internal.checks import attribute_hints, check_type
from chatclient._internal.closeable import Closeable
from chatclient._internal.exceptions import raise_single
from chatclient._internal.foreign_names import CALL_SYNONYMS
from chatclient.chat.messages import Message
from chatclient.chat.options import NO_OPTIONS, ChatOptions, check_tool_names
from chatclient.chat.prompt import Prompt, as_prompt, with_default_options
from chatclient.chat.response import ChatResponse
from chatclient.errors import ChatClientError, WrongTypeError
from chatclient.runtime.blocking import drive
from chatclient.runtime.event_stream import AsyncEvents, drive_stream
from chatclient.runtime.runtime import BLOCKING, ON_LOOP, Runtime, within_callers_deadline
from chatclient.runtime.threads import is_awaitable

if TYPE_CHECKING:  # only loaded with server tools
    from chatclient.chat.server_tools import ServerTool

OutputMode = Literal["schema", "tool", "instructions"]
"""How a model returns JSON: its provider enforces a schema, it calls a tool whose parameters are
the answer, or it follows instructions in the prompt."""

RESPONSE_HINT = "of a text, make one: ChatResponse.of(text)"
"""The end of the error message for a model that returns or yields a value of another type."""

PromptLike = str | Message | Iterable[Message] | Prompt


class ChatModel(Closeable, ABC):
    """A chat model.

    A subclass implements `generate`, and `generate_stream` if the model streams; both serve
    blocking and asynchronous callers. They must wait with the methods of the given runtime, or use
    `chatclient.providers.http.client`, which does.

    A model that is called directly returns tool calls unexecuted: `ChatClient` runs them, or the
    application itself with `ToolCallingManager`.
    """

    if not TYPE_CHECKING:  # type checkers know all attributes
        __getattr__ = attribute_hints(
            dict.fromkeys(
                (*CALL_SYNONYMS, "prompt"),
                "a client asks it: ChatClient.create(model).prompt(...).call().content();"
                " without one, .call(text)",
            )
        )

    @property
    def options(self) -> ChatOptions:
        """The default options, for those that a prompt does not set."""
        return NO_OPTIONS

    @property
    def name(self) -> str:
        """The model's name in logs, spans and `print(client)`."""
        return self.options.model or type(self).__name__

    def output_mode(self, options: ChatOptions) -> OutputMode:  # noqa: ARG002 - for subclasses
        """Return how to request JSON from this model in a request with *options*.

        Overridden by models that do not enforce `ChatOptions.output_schema`, or not together with
        tools, or not every schema.
        """
        return "schema"

    def context_window(self, options: ChatOptions) -> int | None:  # noqa: ARG002 - for subclasses
        """Return the size of the context window in tokens, for prompt and answer, or None.

        Overridden by models that know it; that of others may be in the data of the extra `prices`.
        """
        return None

    def has_server_tool(
        self,
        tool: "ServerTool",  # noqa: ARG002 - for subclasses
        options: ChatOptions,  # noqa: ARG002
    ) -> bool:
        """Return whether the provider runs *tool* in a request with *options*.

        If not, the tool's fallback is run in this process.
        """
        return False

    def can_withhold_tools(self, options: ChatOptions) -> bool:  # noqa: ARG002 - for subclasses
        """Return whether the provider can restrict calls to some of the tools that it is sent.

        If not, a request with *options* contains only the tools that may be called.
        """
        return False

    def offers_logprobs(self, options: ChatOptions) -> bool:  # noqa: ARG002 - for subclasses
        """Return whether the model reports log probabilities in a request with *options*.

        They are requested by `logprobs` and `top_logprobs` in `ChatOptions.extra`, and reported in
        `Generation.metadata`, as in OpenAI's Chat Completions or Ollama's API.
        """
        return False

    @property
    def provider(self) -> str:
        """The provider's name in spans and metrics, such as `openai`."""
        name = type(self).__name__.removesuffix("Model").removesuffix("Chat")
        return name.lower() or "custom"

    @property
    def address(self) -> str:
        """The base URL or another address, without secrets; empty for models in this process.

        Caches identify a model by `provider`, `name` and `address`.
        """
        return ""

    def batched(self, send: "SendItem") -> "tuple[ChatModel, BatchApi] | None":  # noqa: ARG002
        """Return the provider's batch API, and a copy of this model whose requests go to *send*.

        None, the default, means that the provider has no batch API.
        """
        return None

    def __repr__(self) -> str:
        kind, name = type(self).__name__, self.name
        return f"{kind}()" if name == kind else f"{kind}({name!r})"

    @abstractmethod
    async def generate(self, prompt: Prompt, runtime: Runtime) -> ChatResponse:
        """Return the model's response to *prompt*, whose options include the defaults."""

    async def generate_stream(
        self, prompt: Prompt, runtime: Runtime
    ) -> AsyncGenerator[ChatResponse | str, None]:
        """Yield the response to *prompt* in chunks; a model without streaming yields one.

        A chunk that contains only text may be a `str`.
        """
        yield await generate_checked(self, prompt, runtime)

    def call(self, prompt: PromptLike) -> ChatResponse:
        """Return the model's response.

        Raises:
            UsageError: There is nothing to send, or tools are given by name.
            ProviderError: The provider failed or refused the request.
        """
        runtime = within_callers_deadline(BLOCKING)
        return drive(generate_checked(self, self._with_defaults(prompt), runtime))

    async def acall(self, prompt: PromptLike) -> ChatResponse:
        """Return the model's response; see `call`."""
        runtime = within_callers_deadline(ON_LOOP)
        return await generate_checked(self, self._with_defaults(prompt), runtime)

    def stream(self, prompt: PromptLike) -> Generator[ChatResponse, None, None]:
        """Yield the model's response in chunks; close the generator to leave early."""
        return drive_stream(self._chunk_emitter(prompt), within_callers_deadline(BLOCKING))

    def astream(self, prompt: PromptLike) -> AsyncEvents[ChatResponse, None]:
        """Yield the model's response in chunks; `aclose()` the iterator to leave early."""
        return AsyncEvents(self._chunk_emitter(prompt), within_callers_deadline(ON_LOOP))

    def _with_defaults(self, prompt: PromptLike) -> Prompt:
        result = with_default_options(as_prompt(prompt), self.options)
        check_tool_names(result.options)
        return result

    def _chunk_emitter(self, prompt: PromptLike) -> Any:
        """Return a coroutine function that emits the chunks of the response to *prompt*."""
        prompt = self._with_defaults(prompt)

        async def emit_chunks(runtime: Runtime) -> None:
            async with aclosing(stream_checked(self, prompt, runtime)) as chunks:
                async for chunk in chunks:
                    response = ChatResponse.of(chunk, None) if isinstance(chunk, str) else chunk
                    await runtime.emit(response)

        return emit_chunks


async def generate_checked(model: ChatModel, prompt: Prompt, runtime: Runtime) -> ChatResponse:
    """Return the result of `generate` of *model*.

    Raises:
        WrongTypeError: `generate` is not a coroutine, or does not return a `ChatResponse`.
    """
    awaitable: object = model.generate(prompt, runtime)
    if not isinstance(awaitable, CoroutineType) and not is_awaitable(awaitable):
        msg = f"generate() of {model.name} must be a coroutine: write `async def`"
        raise WrongTypeError(msg)
    try:
        response = await awaitable
    except ExceptionGroup as group:
        raise_single(group)
    if not isinstance(response, ChatResponse):
        what = f"what generate() of {model.name} returns"
        check_type(what, response, ChatResponse, RESPONSE_HINT)
    return cast("ChatResponse", response)


def stream_checked(
    model: ChatModel, prompt: Prompt, runtime: Runtime
) -> AsyncGenerator[ChatResponse | str, None]:
    """Return the generator of `generate_stream` of *model*.

    Raises:
        WrongTypeError: `generate_stream` is not an asynchronous generator.
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


PROCESSING = "processing"
"""Key in the metadata of a response: `batch` if it is from a batch, which is cheaper."""


class BatchItem(NamedTuple):
    """A request of a batch.

    Attributes:
        key: Identifies the request within its batch.
        path: The path of the request, below the base URL.
        body: The JSON of the request.
        headers: Headers of this request in addition to those of the model.
    """

    key: str
    path: str
    body: bytes
    headers: Mapping[str, str]


SendItem = Callable[[str, bytes, Mapping[str, str], Runtime], Awaitable[bytes]]
"""Answers a request with the JSON of its response. Takes path, JSON, headers and runtime."""

BatchAnswers = Mapping[str | int, bytes | ChatClientError]
"""The JSON of the response of each request, or why there is none. By key, or by the position of the
request in its batch, from 0, if the provider does not repeat keys."""


class BatchApi(ABC):
    """The batch API of a provider.

    Attributes:
        max_requests: The maximum number of requests of one batch.
        max_bytes: The maximum number of bytes of one batch.
    """

    max_requests: int = 10_000
    max_bytes: int = 100_000_000

    @abstractmethod
    async def submit(self, items: Sequence[BatchItem], runtime: Runtime) -> str:
        """Submit a batch, and return its id."""

    @abstractmethod
    async def answers(self, batch_id: str, runtime: Runtime) -> BatchAnswers | None:
        """Return the answers of a batch that has ended; None if it has not.

        Raises:
            ProviderError: The provider does not know the batch, or has rejected it.
        """

    @abstractmethod
    async def cancel(self, batch_id: str, runtime: Runtime) -> None:
        """Cancel a batch. Requests that were answered before have answers."""
