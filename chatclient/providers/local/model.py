"""Chat model that runs on this machine, without a key or network."""

import os
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Unpack

from chatclient._internal.checks import check_type
from chatclient.chat.messages import (
    AssistantMessage,
    Message,
    Part,
    ToolCall,
    ToolCallChunk,
    ToolResponse,
    ToolResponseMessage,
)
from chatclient.chat.model import ChatModel, OutputMode
from chatclient.chat.options import ChatOptions
from chatclient.chat.prompt import Prompt
from chatclient.chat.response import ChatResponse, Generation
from chatclient.chat.tool import FAILURE, STEP, ToolCallback
from chatclient.errors import UsageError
from chatclient.providers.http.model import HttpOptions, HttpSettings
from chatclient.providers.local.hub import (
    QWEN_CODER_0_5B,
    QWEN_CODER_1_5B,
    ModelFile,
    fetch_model_file,
)
from chatclient.providers.local.llama_server import (
    LlamaServer,
    RunningServer,
    require_llama,
)
from chatclient.providers.openai.chat import OpenAIChatModel, OpenAIChatOptions
from chatclient.providers.openai.dialect import Dialect, local
from chatclient.runtime.runtime import Runtime
from chatclient.runtime.threads import ForkSafeLock

# llama.cpp answers 500 if it cannot parse the arguments of an earlier call.
_LLAMA = Dialect(
    provider="local",
    max_tokens="max_tokens",
    unsupported=frozenset({"service_tier", "user_id"}),
    reasoning=local,
    parses_arguments=True,
    one_system_message=True,
)
_BY_NAME = {"1.5b": QWEN_CODER_1_5B, "0.5b": QWEN_CODER_0_5B}
# Failures after which the model has to correct its call.
_WRONG_CALL = ("malformed_arguments", "invalid_arguments", "unknown_tool")
# Small models answer best without randomness, and some do not stop by themselves.
_OPTIONS = OpenAIChatOptions(temperature=0.0, max_tokens=1024)


class LocalChatModel(ChatModel):
    """A model run by llama.cpp on this machine (extra `local`).

    The first request downloads the weights, as `fetch_model_file` does; the first one of each
    process loads the model, which takes seconds. Models with the same settings share one server.

    Args:
        model: The file of the weights, or its name (`1.5b`, `0.5b`); or the path of a GGUF file, as
            in `"local:/models/my.gguf"`.
        model_path: The path of any GGUF file, instead of *model*.
        options: Default options, in addition to temperature 0 and 1024 tokens of output.
        n_ctx: Tokens per conversation, prompt and answer together.
        n_parallel: Number of concurrent requests; others wait.
        n_threads: Number of threads; default: one per core.
        chat_template: Jinja template for models that do not use ChatML.
        **http: `max_retries`, `timeout` (not including loading), `headers`, `http_client`,
            `limits`; see `HttpOptions`.

    Raises:
        UsageError: *model* is neither a name nor the path of a file.
    """

    def __init__(
        self,
        model: ModelFile | str | os.PathLike[str] = QWEN_CODER_1_5B,
        *,
        model_path: str | os.PathLike[str] | None = None,
        options: ChatOptions | None = None,
        n_ctx: int = 4096,
        n_parallel: int = 2,
        n_threads: int | None = None,
        chat_template: str | None = None,
        **http: Unpack[HttpOptions],
    ) -> None:
        self._source = _source_of(model) if model_path is None else Path(model_path)
        name = self._source.name
        self._options = replace(_OPTIONS, model=name).merge(options).as_defaults()
        self._server_at = partial(
            LlamaServer,
            n_ctx=n_ctx,
            n_parallel=n_parallel,
            n_threads=n_threads,
            chat_template=chat_template,
        )
        self._n_ctx = n_ctx
        HttpSettings(**http)  # raises for unknown options before the model is loaded
        self._model_at = partial(OpenAIChatModel, name, dialect=_LLAMA, **http)
        self._lock = ForkSafeLock()
        self._server: LlamaServer | None = None
        self._ready: tuple[RunningServer, OpenAIChatModel] | None = None

    @property
    def options(self) -> ChatOptions:
        """The default options."""
        return self._options

    @property
    def address(self) -> str:
        """The path of the model's file, if one was given."""
        return str(self._source) if isinstance(self._source, Path) else ""

    def context_window(self, options: ChatOptions) -> int:  # noqa: ARG002 - the same for all
        """Return the tokens per conversation."""
        return self._n_ctx

    def output_mode(self, options: ChatOptions) -> OutputMode:
        """Return how the model supports output schemas."""
        # llama.cpp rejects a schema together with tools.
        return "tool" if options.tool_callbacks else "schema"

    def offers_logprobs(self, options: ChatOptions) -> bool:  # noqa: ARG002 - all models do
        """Return True."""
        return True

    async def generate(self, prompt: Prompt, runtime: Runtime) -> ChatResponse:
        """Return the model's response to *prompt*."""
        model = await self._ensure_loaded(runtime)
        prompt = _adapt_prompt(prompt)
        response = await model.generate(prompt, runtime)
        return response if _allows_parallel_calls(prompt) else _with_one_call(response)

    async def generate_stream(
        self, prompt: Prompt, runtime: Runtime
    ) -> AsyncGenerator[ChatResponse | str, None]:
        """Yield the chunks of the model's response to *prompt*."""
        model = await self._ensure_loaded(runtime)
        prompt = _adapt_prompt(prompt)
        parallel = _allows_parallel_calls(prompt)
        async with aclosing(model.generate_stream(prompt, runtime)) as chunks:
            async for chunk in chunks:
                yield chunk if parallel or isinstance(chunk, str) else _with_one_call(chunk)

    def close(self) -> None:
        """Close the connections of blocking calls, and the server unless it has other users."""
        if (model := self._release()) is not None:
            model.close()

    async def aclose(self) -> None:
        """Close the connections, and the server unless it has other users."""
        if (model := self._release()) is not None:
            await model.aclose()

    async def _ensure_loaded(self, runtime: Runtime) -> OpenAIChatModel:
        ready = self._ready
        if ready is None or not ready[0].alive:
            ready = await runtime.invoke(self._load)
        return ready[1]

    def _load(self) -> tuple[RunningServer, OpenAIChatModel]:
        """Download the weights and start the server if needed; blocks."""
        with self._lock:
            if self._server is None:
                self._server = self._server_at(self._path())
            running = self._server.start()
            if self._ready is None or self._ready[0] is not running:
                if self._ready is not None:
                    self._ready[1].close()  # its server exited, or is that of the parent process
                model = self._model_at(api_key=running.api_key, base_url=running.base_url)
                self._ready = (running, model)
            return self._ready

    def _path(self) -> Path:
        if isinstance(self._source, Path):
            return self._source
        require_llama()  # before a long download
        return fetch_model_file(self._source)

    def _release(self) -> OpenAIChatModel | None:
        with self._lock:
            server, self._server = self._server, None
            ready, self._ready = self._ready, None
        if server is not None:
            server.close()
        return None if ready is None else ready[1]


def _source_of(model: ModelFile | str | os.PathLike[str]) -> ModelFile | Path:
    if isinstance(model, ModelFile):
        return model
    if isinstance(model, str) and model in _BY_NAME:
        return _BY_NAME[model]
    check_type("a local model", model, (str, os.PathLike))
    path = Path(model)
    if path.suffix != ".gguf":
        msg = (
            f"{str(path)!r} is not a local model; name one of {', '.join(_BY_NAME)} or a .gguf file"
        )
        raise UsageError(msg)
    return path


def _adapt_prompt(prompt: Prompt) -> Prompt:
    """Return *prompt* adapted to llama.cpp and small models."""
    tools = prompt.options.tool_callbacks
    if not tools:
        options = prompt.options
    elif prompt.options.tool_choice == "none":
        options = prompt.options.mutate(tool_callbacks=(), tool_choice=None)
    elif prompt.options.parallel_tool_calls is None and any(
        _has_no_parameters(tool) for tool in tools
    ):
        options = prompt.options.mutate(parallel_tool_calls=False)
    else:
        options = prompt.options
    if options is not prompt.options:
        prompt = Prompt.of(prompt.messages, options)
    return prompt.with_messages(_with_prefixes(message) for message in prompt.messages)


def _has_no_parameters(tool: ToolCallback) -> bool:
    return not tool.definition.input_schema.get("properties")


def _allows_parallel_calls(prompt: Prompt) -> bool:
    return prompt.options.parallel_tool_calls is not False


def _with_one_call(response: ChatResponse) -> ChatResponse:
    """Return *response*, or a chunk, with only the first tool call; llama.cpp allows several."""
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


def _with_prefixes(message: Message) -> Message:
    """Return *message* with prefixes that tell the chat template that another call follows."""
    if isinstance(message, ToolResponseMessage) and any(map(_prefix_of, message.responses)):
        results = [replace(each, data=_prefix_of(each) + each.data) for each in message.responses]
        return message.mutate(responses=results)
    return message


def _prefix_of(response: ToolResponse) -> str:
    if response.metadata.get(FAILURE) in _WRONG_CALL:
        return "Error: "
    return "Step: " if response.metadata.get(STEP) else ""
