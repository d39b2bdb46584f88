"""A model on this machine, without a key and without a network."""

import json
import os
import threading
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from chatclient.errors import UsageError
from chatclient.messages import AssistantMessage, Message, ToolCall
from chatclient.model import ChatModel
from chatclient.options import ChatOptions
from chatclient.prompt import Prompt
from chatclient.providers.http import Timeouts
from chatclient.providers.llama_server import LlamaServer, RunningServer
from chatclient.providers.openai import Dialect, OpenAIChatModel, OpenAIChatOptions
from chatclient.providers.weights import (
    QWEN_CODER_0_5B,
    QWEN_CODER_1_5B,
    Weights,
    join_weights,
)
from chatclient.response import ChatResponse
from chatclient.runtime import Runtime

_LLAMA = Dialect(provider="local", max_tokens="max_tokens")
_BY_NAME = {"1.5b": QWEN_CODER_1_5B, "0.5b": QWEN_CODER_0_5B}
# Small models answer best without chance, and some never come to an end by themselves.
_OPTIONS = OpenAIChatOptions(temperature=0.0, max_tokens=1024)


class LocalChatModel(ChatModel):
    """A model run by llama.cpp on this machine (extra `local`).

    The first request joins the model's slices, when that was never done, and loads the model,
    which takes seconds; call `join_weights` beforehand to show its progress in your own way.
    Models with the same settings share one server, so that another one costs nothing.

    Args:
        model: Which weights (extras `weights` and `weights-small`), by constant or by name
            (`1.5b`, `0.5b`), or the path of any GGUF file.
        options: Options for every request; default: no randomness, 1024 tokens of output.
        n_ctx: How many tokens each conversation may have, prompt and answer together.
        n_parallel: How many requests are answered at once; more of them wait.
        n_threads: Threads to compute with; default: one for each core.
        chat_template: A Jinja template for models that do not speak ChatML.
        max_retries: How often a request is repeated that failed for a passing reason.
        timeout: Seconds to wait for an answer, or `Timeouts`; loading is not counted.
        headers: More headers for every request.
        http_client: An httpx or httpx2 client to send requests with; the caller closes it.

    Raises:
        UsageError: *model* is neither a name nor the path of a file.
    """

    def __init__(
        self,
        model: Weights | str | os.PathLike[str] = QWEN_CODER_1_5B,
        *,
        options: ChatOptions | None = None,
        n_ctx: int = 4096,
        n_parallel: int = 2,
        n_threads: int | None = None,
        chat_template: str | None = None,
        max_retries: int = 2,
        timeout: float | Timeouts | None = 600.0,
        headers: Mapping[str, str] | None = None,
        http_client: Any = None,
    ) -> None:
        self._source = _source_of(model)
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
        self._lock = threading.Lock()
        self._server: LlamaServer | None = None
        self._ready: tuple[RunningServer, OpenAIChatModel] | None = None

    @property
    def options(self) -> ChatOptions:
        """The options that hold where a prompt sets none."""
        return self._options

    async def generate(self, prompt: Prompt, runtime: Runtime) -> ChatResponse:
        """Return the model's response to *prompt*."""
        model = await self._loaded(runtime)
        return await model.generate(_sendable(prompt), runtime)

    async def generate_stream(
        self, prompt: Prompt, runtime: Runtime
    ) -> AsyncGenerator[ChatResponse | str, None]:
        """Yield the model's response to *prompt* as it comes."""
        model = await self._loaded(runtime)
        async with aclosing(model.generate_stream(_sendable(prompt), runtime)) as chunks:
            async for chunk in chunks:
                yield chunk

    def close(self) -> None:
        """Close the connections of blocking calls, and the server when nobody else needs it."""
        if (model := self._let_go()) is not None:
            model.close()

    async def aclose(self) -> None:
        """Close the connections, and the server when nobody else needs it."""
        if (model := self._let_go()) is not None:
            await model.aclose()

    async def _loaded(self, runtime: Runtime) -> OpenAIChatModel:
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

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


def _source_of(model: Weights | str | os.PathLike[str]) -> Weights | Path:
    if isinstance(model, Weights):
        return model
    if isinstance(model, str) and model in _BY_NAME:
        return _BY_NAME[model]
    path = Path(model)
    if path.suffix != ".gguf":
        msg = f"{str(path)!r} names no local model; give {', '.join(_BY_NAME)} or a .gguf file"
        raise UsageError(msg)
    return path


def _sendable(prompt: Prompt) -> Prompt:
    """Return *prompt* with arguments that llama.cpp can parse: it refuses all others with a 500.

    A small model may well write malformed ones. Its attempt is kept, as a value.
    """
    if all(_is_sendable(message) for message in prompt.messages):
        return prompt
    return prompt.with_messages(_mended(message) for message in prompt.messages)


def _is_sendable(message: Message) -> bool:
    return not isinstance(message, AssistantMessage) or all(
        _is_object(call.arguments) for call in message.tool_calls
    )


def _mended(message: Message) -> Message:
    if not isinstance(message, AssistantMessage):
        return message
    return message.mutate(tool_calls=[_mended_call(call) for call in message.tool_calls])


def _mended_call(call: ToolCall) -> ToolCall:
    if _is_object(call.arguments):
        return call
    return replace(call, arguments=json.dumps({"malformed": call.arguments}))


def _is_object(arguments: str) -> bool:
    try:
        return isinstance(json.loads(arguments or "{}"), dict)
    except ValueError:
        return False
