"""Another model when one fails."""

from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import aclosing

from chatclient.checks import error_kinds
from chatclient.errors import ProviderError, ToolCallRefusedError
from chatclient.logs import described, get_logger
from chatclient.model import ChatModel, OutputMode
from chatclient.operations import Fallback
from chatclient.options import ChatOptions
from chatclient.prompt import Prompt
from chatclient.providers.choice import ModelChoice, prompt_for
from chatclient.providers.first_word import up_to_first_word
from chatclient.response import ChatResponse
from chatclient.runtime import Runtime

log = get_logger(__name__)

Fails = type[Exception] | Collection[type[Exception]] | Callable[[Exception], bool]
"""Which errors make the next model try: their type or types, or a function that says so."""


class FallbackChatModel(ChatModel):
    """Asks one model after another until one answers.

    Each model adds its own default options to what the prompt sets, its model name among them. One
    that has failed is asked last for the rest of the turn; the next turn begins with the first.
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
        self._choice = ModelChoice(models)
        self._fails = _judge(on)

    @property
    def models(self) -> tuple[ChatModel, ...]:
        """The models, in the order they are asked."""
        return self._choice.models

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
        return self._choice.output_mode(options)

    async def generate(self, prompt: Prompt, runtime: Runtime) -> ChatResponse:
        """Return the response of the first model that has one."""
        *others, last = self._in_order(runtime)
        for model in others:
            try:
                return await model.generate(prompt_for(model, prompt), runtime)
            except Exception as error:  # noqa: BLE001 - the caller says which ones count
                self._next_or_raise(model, error, runtime)
        return await last.generate(prompt_for(last, prompt), runtime)

    async def generate_stream(
        self, prompt: Prompt, runtime: Runtime
    ) -> AsyncGenerator[ChatResponse | str, None]:
        """Yield the response of the first model that begins one."""
        *others, last = self._in_order(runtime)
        for model in (*others, last):
            spoken = False
            try:
                async with (
                    aclosing(model.generate_stream(prompt_for(model, prompt), runtime)) as chunks,
                    aclosing(_from_the_first_word(chunks)) as told,
                ):
                    async for chunk in told:
                        spoken = True
                        yield chunk
            except Exception as error:
                if spoken or model is last:
                    raise
                self._next_or_raise(model, error, runtime)
            else:
                return

    def close(self) -> None:
        """Close all models."""
        self._choice.close()

    async def aclose(self) -> None:
        """Close all models."""
        await self._choice.aclose()

    def _in_order(self, runtime: Runtime) -> list[ChatModel]:
        """Return the models as they are asked: those that have failed in this turn come last."""
        operations = [step.operation for step in tuple(runtime.steps or ())]
        failed = {
            id(each.failed)
            for each in operations
            if isinstance(each, Fallback) and each.model is self
        }
        return sorted(self.models, key=lambda model: id(model) in failed)

    def _next_or_raise(self, model: ChatModel, error: Exception, runtime: Runtime) -> None:
        """Go on to the next model, or raise the error being handled."""
        # A wrong tool call is an answer like any other: the model that wrote it is told.
        if isinstance(error, ToolCallRefusedError) or not self._fails(error):
            raise error
        log.info("fallback", model=model.name, error=described(error))
        with runtime.observe(Fallback(self, model, type(error).__name__)):
            pass  # a moment, for the trail and whoever watches


def _judge(on: Fails) -> Callable[[Exception], bool]:
    """Return what says whether an error makes the next model try."""
    if isinstance(on, type) or not callable(on):
        kinds = error_kinds("on", on)
        return lambda error: isinstance(error, kinds)
    return on


async def _from_the_first_word(
    chunks: AsyncGenerator[ChatResponse | str, None],
) -> AsyncGenerator[ChatResponse | str, None]:
    """Yield *chunks*, but hold back those before the first that says something."""
    for chunk in await up_to_first_word(chunks):
        yield chunk
    async for chunk in chunks:
        yield chunk
