"""`SharedParts`: what all requests of a client share."""

from collections.abc import Iterable
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from chatclient._internal.checks import check_method, check_type
from chatclient._internal.closeable import Closeable
from chatclient.chat.model import ChatModel
from chatclient.errors import UsageError
from chatclient.observability.prefix import LastPrompts
from chatclient.providers.registry import chat_model
from chatclient.runtime.observation import Observer
from chatclient.tools.duplicates import DuplicatePolicy
from chatclient.tools.execution.manager import ToolCallingManager
from chatclient.tools.execution.toolset import ToolCallbackResolver


@dataclass(frozen=True, slots=True, eq=False)
class SharedParts:
    """The parts of a client that all of its requests share.

    Attributes:
        model: The chat model.
        manager: Runs the tools.
        resolver: Finds tools by name.
        duplicate_tools: What to do if several tools have the same name.
        observers: Observe the operations of each request.
        owned: Objects other than the model that are closed with the client.
        name: The name of the client, or None.
        last_prompts: What the last requests of conversations began with.
    """

    model: ChatModel
    manager: ToolCallingManager
    resolver: ToolCallbackResolver | None = None
    duplicate_tools: DuplicatePolicy = "error"
    observers: tuple[Observer, ...] = ()
    owned: tuple[Closeable, ...] = ()
    name: str | None = None
    last_prompts: LastPrompts = field(default_factory=LastPrompts)

    @property
    def label(self) -> str:
        """The names of the client and of its model, for `repr`."""
        return self.model.name if self.name is None else f"{self.name!r}, {self.model.name}"

    def with_name(self, name: str) -> "SharedParts":
        """Return a copy with another name.

        Raises:
            UsageError: The name is blank, or not a string.
        """
        check_type("the name of a client", name, str)
        if not name.strip():
            msg = "the name of a client must not be blank"
            raise UsageError(msg)
        return replace(self, name=name)

    def with_observers(self, observers: Iterable[Observer | Iterable[Observer]]) -> "SharedParts":
        """Return a copy with more observers.

        Raises:
            WrongTypeError: One of them is not an observer.
        """
        flat: list[Any] = []
        for each in observers:
            flat.extend(each if isinstance(each, Iterable) else (each,))
        for each in flat:
            check_method("an observer", each, "begin")
        return replace(self, observers=(*self.observers, *flat))

    def close(self) -> None:
        """Close the model and the owned objects."""
        with ExitStack() as stack:
            for each in (*self.owned, self.model):
                stack.callback(each.close)

    async def aclose(self) -> None:
        """Close what `close` closes, and the connections of this event loop."""
        async with AsyncExitStack() as stack:
            for each in (*self.owned, self.model):
                stack.push_async_callback(each.aclose)


def model_of(given: ChatModel | str) -> ChatModel:
    """Return *given*, or the model with that name.

    Raises:
        UsageError: The provider in the name is unknown, or *given* is not a model.
    """
    model = chat_model(given) if isinstance(given, str) else given
    hint = "it may also be named, such as ChatClient.create('openai:gpt-5-mini')"
    check_type("a model", model, ChatModel, hint)
    return model
