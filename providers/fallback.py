"""Another model when one fails."""

from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import aclosing

from chatclient.checks import check_kind, error_kinds
from chatclient.errors import ProviderError, UsageError
from chatclient.logs import get_logger
from chatclient.model import ChatModel, OutputMode
from chatclient.options import ChatOptions
from chatclient.prompt import Prompt, with_default_options
from chatclient.response import ChatResponse
from chatclient.runtime import Runtime

log = get_logger(__name__)

_WEAKEST_FIRST: tuple[OutputMode, ...] = ("instructions", "tool", "schema")

Fails = type[Exception] | Collection[type[Exception]] | Callable[[Exception], bool]
"""Which errors make the next model try: their type or types, or a function that says so."""


class FallbackChatModel(ChatModel):
    """Asks one model after another until one answers.

    Each model adds its own default options to what the prompt sets, its model name among them.
    Once a stream has said something, its error is final: what was said cannot be taken back. What
    a stream tells before its first word, such as an id, waits for that word.

    Args:
        *models: The models, in the order they are asked.
        on: Which errors make the next one try; default: everything that a provider does wrong.

    Raises:
        UsageError: There is no model, one of them is something else, or *on* is neither a type of
            errors, nor several, nor a function.
    """

    def __init__(self, *models: ChatModel, on: Fails = (ProviderError,)) -> None:
        if not models:
            msg = "a fallback needs at least one model"
            raise UsageError(msg)
        for model in models:
            check_kind("a model to fall back on", model, ChatModel, _hint(model))
        self.models = models
        self._fails = _judge(on)

    @property
    def name(self) -> str:
        """The names of all models, in order."""
        return " → ".join(model.name for model in self.models)

    @property
    def address(self) -> str:
        """The addresses of all models, in order."""
        return " → ".join(model.address for model in self.models)

    def output_mode(self, options: ChatOptions) -> OutputMode:
        """Return how all of the models can be held to a schema."""
        modes = {model.output_mode(model.options.merge(options)) for model in self.models}
        return next(mode for mode in _WEAKEST_FIRST if mode in modes)

    async def generate(self, prompt: Prompt, runtime: Runtime) -> ChatResponse:
        """Return the response of the first model that has one."""
        for model in self.models[:-1]:
            try:
                return await model.generate(with_default_options(prompt, model.options), runtime)
            except Exception as error:  # noqa: BLE001 - the caller says which ones count
                self._next_or_raise(model, error)
        last = self.models[-1]
        return await last.generate(with_default_options(prompt, last.options), runtime)

    async def generate_stream(
        self, prompt: Prompt, runtime: Runtime
    ) -> AsyncGenerator[ChatResponse | str, None]:
        """Yield the response of the first model that begins one."""
        for model in self.models:
            spoken = False
            complete = with_default_options(prompt, model.options)
            try:
                async with (
                    aclosing(model.generate_stream(complete, runtime)) as chunks,
                    aclosing(_from_the_first_word(chunks)) as told,
                ):
                    async for chunk in told:
                        spoken = True
                        yield chunk
            except Exception as error:
                if spoken or model is self.models[-1]:
                    raise
                self._next_or_raise(model, error)
            else:
                return

    def close(self) -> None:
        """Close all models."""
        for model in self.models:
            model.close()

    async def aclose(self) -> None:
        """Close all models."""
        for model in self.models:
            await model.aclose()

    def _next_or_raise(self, model: ChatModel, error: Exception) -> None:
        """Go on to the next model, or raise the error being handled."""
        if not self._fails(error):
            raise error
        log.info("fallback", model=model.name, error=repr(error))


def _judge(on: Fails) -> Callable[[Exception], bool]:
    """Return what says whether an error makes the next model try."""
    if isinstance(on, type) or not callable(on):
        kinds = error_kinds("on", on)
        return lambda error: isinstance(error, kinds)
    return on


def _hint(model: object) -> str:
    if isinstance(model, str):
        return f"a name stands for a model in ChatClient.create({model!r}).model"
    return "pass models one by one"


async def _from_the_first_word(
    chunks: AsyncGenerator[ChatResponse | str, None],
) -> AsyncGenerator[ChatResponse | str, None]:
    """Yield *chunks*, but hold back those before the first that says something."""
    silent: list[ChatResponse | str] = []
    async for chunk in chunks:
        silent.append(chunk)
        if _says_something(chunk):
            break
    for chunk in silent:
        yield chunk
    async for chunk in chunks:
        yield chunk


def _says_something(chunk: ChatResponse | str) -> bool:
    if isinstance(chunk, str):
        return chunk != ""
    return any(generation.output.parts for generation in chunk.generations)
