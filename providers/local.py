"""A model on this machine, without a key and without a network."""

import os
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from chatclient.checks import check_kind
from chatclient.errors import UsageError
from chatclient.forks import ForkSafeLock
from chatclient.messages import (
    AssistantMessage,
    Message,
    Part,
    ToolCall,
    ToolCallChunk,
    ToolResponse,
    ToolResponseMessage,
)
from chatclient.model import ChatModel, OutputMode
from chatclient.options import ChatOptions
from chatclient.prompt import Prompt
from chatclient.providers.http import Timeouts
from chatclient.providers.llama_server import LlamaServer, RunningServer
from chatclient.providers.openai import Dialect, OpenAIChatModel, OpenAIChatOptions
from chatclient.providers.retries import RetryPolicy
from chatclient.providers.weights import (
    QWEN_CODER_0_5B,
    QWEN_CODER_1_5B,
    Weights,
    join_weights,
)
from chatclient.response import ChatResponse, Generation
from chatclient.runtime import Runtime
from chatclient.tool import FAILURE, STEP, ToolCallback

# llama.cpp answers with a 500 when it cannot parse all arguments.
_LLAMA = Dialect(
    provider="local", max_tokens="max_tokens", parses_arguments=True, one_system_message=True
)
_BY_NAME = {"1.5b": QWEN_CODER_1_5B, "0.5b": QWEN_CODER_0_5B}
# What only a better call can mend.
_WRONG_CALL = ("malformed_arguments", "invalid_arguments", "unknown_tool")
# Small models answer best without chance, and some never come to an end by themselves.
_OPTIONS = OpenAIChatOptions(temperature=0.0, max_tokens=1024)


class LocalChatModel(ChatModel):
    """A model run by llama.cpp on this machine (extra `local`).

    The very first request joins the weights from their packages; the first one of a process loads
    the model, which takes seconds. To show progress in your own way, call `join_weights` before.
    Models with the same settings share one server, so another one costs nothing.

    Args:
        model: Which weights (extras `weights` and `weights-small`), by constant or by name
            (`1.5b`, `0.5b`); also the path of a GGUF file, so that `"local:/models/my.gguf"`
            names a model.
        model_path: The path of any GGUF file, instead of *model*.
        options: Options for every request; default: no randomness, 1024 tokens of output.
        n_ctx: How many tokens each conversation may have, prompt and answer together.
        n_parallel: How many requests are answered at once; more of them wait.
        n_threads: Threads to compute with; default: one for each core.
        chat_template: A Jinja template for models that do not speak ChatML.
        max_retries: How often a request that failed for a passing reason is repeated, or a
            `RetryPolicy`.
        timeout: Seconds to wait for an answer, or `Timeouts`; loading is not counted.
        headers: More headers for every request.
        http_client: An httpx or httpx2 client to send requests with; the caller closes it.

    Raises:
        UsageError: *model* is neither a name nor the path of a file.
    """

    def __init__(  # noqa: PLR0913 - settings, all but the first by keyword
        self,
        model: Weights | str | os.PathLike[str] = QWEN_CODER_1_5B,
        *,
        model_path: str | os.PathLike[str] | None = None,
        options: ChatOptions | None = None,
        n_ctx: int = 4096,
        n_parallel: int = 2,
        n_threads: int | None = None,
        chat_template: str | None = None,
        max_retries: int | RetryPolicy = 2,
        timeout: float | Timeouts | None = 600.0,
        headers: Mapping[str, str] | None = None,
        http_client: Any = None,
    ) -> None:
        self._source = _source_of(model) if model_path is None else Path(model_path)
        name = self._source.name
        self._options = replace(_OPTIONS, model=name).merge(options)
        self._server_at = partial(
            LlamaServer,
            n_ctx=n_ctx,
            n_parallel=n_parallel,
            n_threads=n_threads,
            chat_template=chat_template,
        )
        self._model_at = partial(
            OpenAIChatModel,
            name,
            max_retries=max_retries,
            timeout=timeout,
            headers=headers,
            http_client=http_client,
            dialect=_LLAMA,
        )
        self._lock = ForkSafeLock()
        self._server: LlamaServer | None = None
        self._ready: tuple[RunningServer, OpenAIChatModel] | None = None

    @property
    def options(self) -> ChatOptions:
        """The options that hold where a prompt sets none."""
        return self._options

    @property
    def address(self) -> str:
        """The path of the model's file, where it was given."""
        return str(self._source) if isinstance(self._source, Path) else ""

    def output_mode(self, options: ChatOptions) -> OutputMode:
        """Return how the model is best held to a schema."""
        # llama.cpp refuses a schema beside tools.
        return "tool" if options.tool_callbacks else "schema"

    async def generate(self, prompt: Prompt, runtime: Runtime) -> ChatResponse:
        """Return the model's response to *prompt*."""
        model = await self._ensure_loaded(runtime)
        prompt = _sendable(prompt)
        response = await model.generate(prompt, runtime)
        return response if _may_call_several(prompt) else _with_one_call(response)

    async def generate_stream(
        self, prompt: Prompt, runtime: Runtime
    ) -> AsyncGenerator[ChatResponse | str, None]:
        """Yield the model's response to *prompt* as it comes."""
        model = await self._ensure_loaded(runtime)
        prompt = _sendable(prompt)
        several = _may_call_several(prompt)
        async with aclosing(model.generate_stream(prompt, runtime)) as chunks:
            async for chunk in chunks:
                yield chunk if several or isinstance(chunk, str) else _with_one_call(chunk)

    def close(self) -> None:
        """Close the connections of blocking calls, and the server when nobody else needs it."""
        if (model := self._let_go()) is not None:
            model.close()

    async def aclose(self) -> None:
        """Close the connections, and the server when nobody else needs it."""
        if (model := self._let_go()) is not None:
            await model.aclose()

    async def _ensure_loaded(self, runtime: Runtime) -> OpenAIChatModel:
        ready = self._ready
        if ready is None or not ready[0].alive:
            ready = await runtime.invoke(self._load)
        return ready[1]

    def _load(self) -> tuple[RunningServer, OpenAIChatModel]:
        """Join and load what is not there yet; blocks meanwhile."""
        with self._lock:
            if self._server is None:
                self._server = self._server_at(self._path())
            running = self._server.start()
            if self._ready is None or self._ready[0] is not running:
                if self._ready is not None:
                    self._ready[1].close()  # its server died, or is a forked parent's
                model = self._model_at(api_key=running.api_key, base_url=running.base_url)
                self._ready = (running, model)
            return self._ready

    def _path(self) -> Path:
        if isinstance(self._source, Path):
            return self._source
        return join_weights(self._source)

    def _let_go(self) -> OpenAIChatModel | None:
        with self._lock:
            server, self._server = self._server, None
            ready, self._ready = self._ready, None
        if server is not None:
            server.close()
        return None if ready is None else ready[1]


def _source_of(model: Weights | str | os.PathLike[str]) -> Weights | Path:
    if isinstance(model, Weights):
        return model
    if isinstance(model, str) and model in _BY_NAME:
        return _BY_NAME[model]
    check_kind("a local model", model, (str, os.PathLike))
    path = Path(model)
    if path.suffix != ".gguf":
        msg = (
            f"{str(path)!r} is not a local model; name one of {', '.join(_BY_NAME)} or a .gguf file"
        )
        raise UsageError(msg)
    return path


def _sendable(prompt: Prompt) -> Prompt:
    """Return *prompt* as llama.cpp and a small model get on with it best."""
    options = _with_fitting_tools(prompt.options)
    if options is not prompt.options:
        prompt = Prompt.of(prompt.messages, options)
    return prompt.with_messages(_with_marks(message) for message in prompt.messages)


def _with_fitting_tools(options: ChatOptions) -> ChatOptions:
    """Return *options* with the tools that the model shall see, and how many it may call at once.

    llama.cpp shows a model its tools even when it must not call any; a small one then writes calls
    as text. And a tool without arguments tells something that the others need, as a rule (what
    time it is): called in one go with them, it would come too late for their arguments.
    """
    tools = options.tool_callbacks
    if not tools:
        return options
    if options.tool_choice == "none":
        return options.mutate(tool_callbacks=(), tool_choice=None)
    if options.parallel_tool_calls is None and any(_needs_nothing(tool) for tool in tools):
        return options.mutate(parallel_tool_calls=False)
    return options


def _needs_nothing(tool: ToolCallback) -> bool:
    return not tool.definition.input_schema.get("properties")


def _may_call_several(prompt: Prompt) -> bool:
    return prompt.options.parallel_tool_calls is not False


def _with_one_call(response: ChatResponse) -> ChatResponse:
    """Return *response*, whole or a chunk, without further tool calls: llama.cpp lets them pass."""
    generations = tuple(_one_call(generation) for generation in response.generations)
    return replace(response, generations=generations)


def _one_call(generation: Generation) -> Generation:
    message = generation.output
    parts = list(_up_to_one_call(message.parts))
    if len(parts) == len(message.parts):
        return generation
    return replace(generation, output=AssistantMessage(parts, metadata=message.metadata))


def _up_to_one_call(parts: Iterable[Part]) -> Iterator[Part]:
    called = False
    for part in parts:
        if isinstance(part, ToolCallChunk):
            if not part.index:
                yield part
        elif not isinstance(part, ToolCall):
            yield part
        elif not called:
            called = True
            yield part


def _with_marks(message: Message) -> Message:
    """Return *message* with the marks that its results want; itself where they want none."""
    if isinstance(message, ToolResponseMessage) and any(map(_mark_of, message.responses)):
        return message.mutate(responses=[_marked(response) for response in message.responses])
    return message


def _mark_of(response: ToolResponse) -> str | None:
    """Return the word by which the template knows that another call has to follow, and why."""
    if response.metadata.get(FAILURE) in _WRONG_CALL:
        return "Error: "
    return "Step: " if response.metadata.get(STEP) else None


def _marked(response: ToolResponse) -> ToolResponse:
    mark = _mark_of(response)
    return response if mark is None else replace(response, data=mark + response.data)
