"""What models have in common that leave the answer to other models."""

from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack

from chatclient.checks import check_kind
from chatclient.errors import UsageError
from chatclient.model import ChatModel, OutputMode
from chatclient.operations import note_answering_model
from chatclient.options import ChatOptions
from chatclient.prompt import Prompt, with_default_options

_WEAKEST_FIRST: tuple[OutputMode, ...] = ("instructions", "tool", "schema")


class ModelChoice:
    """The models that there are to choose from.

    Args:
        models: The models.

    Raises:
        UsageError: There is none, or one of them is not a chat model.
    """

    def __init__(self, models: Sequence[ChatModel]) -> None:
        for model in models:
            check_kind("a model to choose from", model, ChatModel, _hint(model))
        if not models:
            msg = "there is nothing to choose from: give at least one model"
            raise UsageError(msg)
        self.models = tuple(models)

    def output_mode(self, options: ChatOptions) -> OutputMode:
        """Return how all of the models can be held to a schema."""
        modes = {model.output_mode(model.options.merge(options)) for model in self.models}
        return next(mode for mode in _WEAKEST_FIRST if mode in modes)

    def close(self) -> None:
        """Close all models."""
        with ExitStack() as stack:
            for model in reversed(self.models):  # the last is closed first
                stack.callback(model.close)

    async def aclose(self) -> None:
        """Close all models."""
        async with AsyncExitStack() as stack:
            for model in reversed(self.models):
                stack.push_async_callback(model.aclose)


def _hint(model: object) -> str:
    if isinstance(model, str):
        return f"a name stands for a model in ChatClient.create({model!r}).model"
    return "pass models one by one; that of a client is at client.model"


def prompt_for(model: ChatModel, prompt: Prompt) -> Prompt:
    """Return *prompt* as *model* is asked it, and let the present call be known as one of it."""
    complete = with_default_options(prompt, model.options)
    note_answering_model(model, complete)
    return complete
