"""What all requests of a client share."""

from dataclasses import dataclass

from chatclient.closing import Closeable
from chatclient.model import ChatModel
from chatclient.observation import Observer
from chatclient.tools import ToolCallbackResolver, ToolCallingManager
from chatclient.tools.duplicates import DuplicatePolicy


@dataclass(frozen=True)
class Engine:
    """What all requests of a client share, and cannot change.

    Attributes:
        owned: What was opened for the client and is closed with it, beside the model.
    """

    model: ChatModel
    manager: ToolCallingManager
    resolver: ToolCallbackResolver | None = None
    duplicate_tools: DuplicatePolicy = "error"
    observers: tuple[Observer, ...] = ()
    owned: tuple[Closeable, ...] = ()
