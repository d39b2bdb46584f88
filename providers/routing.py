"""One of several models, chosen for each call."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

from chatclient.errors import UsageError
from chatclient.model import ChatModel, OutputMode
from chatclient.options import ChatOptions
from chatclient.prompt import Prompt
from chatclient.providers.choice import ModelChoice, prompt_for
from chatclient.response import ChatResponse
from chatclient.runtime import Runtime

Choose = Callable[[Prompt], ChatModel | Awaitable[ChatModel]]
"""Says which model is asked a prompt; plain or asynchronous."""


class RoutingChatModel(ChatModel):
    """Asks the model that a function chooses, anew for each call.

    Each model adds its own default options to what the prompt sets, its model name among them. In a
    tool loop each round is a call. What the choice depends on is in the prompt: its messages, its
    options, and in `prompt.options.tool_context` what the application has said of the request.

    Args:
        choose: Returns one of *models* for a prompt; plain or asynchronous.
        *models: All models there are to choose from; they are closed with this one.

    Raises:
        UsageError: There is no model; or, when asked, *choose* returned none of them.
    """

    def __init__(self, choose: Choose, *models: ChatModel) -> None:
        given: object = choose
        if not callable(given):
            msg = f"choose must be a function of the prompt, not {given!r}"
            raise UsageError(msg)
        self._choose = choose
        self._choice = ModelChoice(models)

    @property
    def models(self) -> tuple[ChatModel, ...]:
        """All models there are to choose from."""
        return self._choice.models

    @property
    def name(self) -> str:
        """The names of all models."""
        return " | ".join(model.name for model in self.models)

    @property
    def address(self) -> str:
        """The addresses of all models."""
        return " | ".join(model.address for model in self.models)

    def output_mode(self, options: ChatOptions) -> OutputMode:
        """Return how all of the models can be held to a schema."""
        return self._choice.output_mode(options)

    async def generate(self, prompt: Prompt, runtime: Runtime) -> ChatResponse:
        """Return the response of the model that is chosen."""
        model = await self._pick(prompt, runtime)
        return await model.generate(prompt_for(model, prompt), runtime)

    async def generate_stream(
        self, prompt: Prompt, runtime: Runtime
    ) -> AsyncGenerator[ChatResponse | str, None]:
        """Yield the response of the model that is chosen."""
        model = await self._pick(prompt, runtime)
        async with aclosing(model.generate_stream(prompt_for(model, prompt), runtime)) as chunks:
            async for chunk in chunks:
                yield chunk

    def close(self) -> None:
        """Close all models."""
        self._choice.close()

    async def aclose(self) -> None:
        """Close all models."""
        await self._choice.aclose()

    async def _pick(self, prompt: Prompt, runtime: Runtime) -> ChatModel:
        model: object = await runtime.invoke(self._choose, prompt)
        for each in self.models:
            if each is model:
                return each
        msg = f"{model!r} was chosen, which is none of the models to choose from: {self.name}"
        raise UsageError(msg)
