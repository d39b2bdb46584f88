"""`ChatMemory`, which selects the messages that a model sees, and the memories with a window."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Iterable, Sequence
from typing import TYPE_CHECKING

from chatclient._internal.checks import attribute_hints, check_type, checked_id
from chatclient._internal.logging import described, get_logger
from chatclient.chat.messages import (
    Message,
    as_messages,
    system_messages,
    without_system,
)
from chatclient.errors import UsageError, WrongTypeError
from chatclient.memory.repository import (
    ChatMemoryRepository,
    Conversation,
    InMemoryChatMemoryRepository,
)
from chatclient.memory.window import TokenEstimator, Window, estimated_tokens, messages_from
from chatclient.runtime.blocking import drive
from chatclient.runtime.runtime import BLOCKING, ON_LOOP, Runtime

log = get_logger(__name__)

SUMMARIZED_IDS = "chat_memory_summarized_ids"
"""The metadata key of a summary with the ids of the messages that it takes the place of."""


class ChatMemory(ABC):
    """Stores the messages of conversations and returns those that the model should see.

    Implement the three coroutines `load`, `append` and `delete`. They serve blocking and async
    callers and wait only through the given runtime. The other methods are for applications.
    """

    if not TYPE_CHECKING:  # type checkers know all attributes
        __getattr__ = attribute_hints(
            dict.fromkeys(
                ("chat_memory", "history", "messages"),
                "they belong to a conversation: .get(conversation_id)",
            )
        )

    @abstractmethod
    async def load(self, conversation_id: str, runtime: Runtime) -> tuple[Message, ...]:
        """Return the messages of a conversation that the model should see, in order."""

    @abstractmethod
    async def append(
        self,
        conversation_id: str,
        messages: Sequence[Message],
        runtime: Runtime,
        *,
        key: str | None = None,
    ) -> None:
        """Store *messages*, usually one turn, atomically.

        Run the write with `runtime.shielded`, so that it completes although the request is
        cancelled. Unless the cancellation has an error as its cause, the turn then counts as
        stored and its tool calls are not undone.

        Args:
            conversation_id: The conversation.
            messages: The messages to append.
            runtime: The runtime of the request.
            key: Idempotency key: a second call with the same key has no effect.
        """

    @abstractmethod
    async def delete(self, conversation_id: str, runtime: Runtime) -> None:
        """Delete a conversation if it exists."""

    async def cut(self, conversation_id: str, message_id: str, runtime: Runtime) -> bool:
        """Remove a message and all that follow it; return whether it was there.

        Implement it so that frontends can edit messages and have answers generated again.

        Raises:
            UsageError: This memory cannot do it.
        """
        del conversation_id, message_id, runtime
        msg = f"{type(self).__name__} cannot remove messages: implement its coroutine cut()"
        raise UsageError(msg)

    def rewind(self, conversation_id: str, message_id: str) -> bool:
        """Remove the message with an id and all that follow it, to continue from before it.

        System messages are kept.

        Returns:
            Whether the conversation has such a message; if not, nothing was changed.

        Raises:
            UsageError: The id of the conversation is blank, or this memory cannot remove messages.
            WrongTypeError: The id of the message is not a text.
            ChatMemoryError: The repository failed.
        """
        # None would be the id of many messages.
        check_type("the id of a message", message_id, str)
        return drive(self.cut(checked_id(conversation_id), message_id, BLOCKING))

    async def arewind(self, conversation_id: str, message_id: str) -> bool:
        """Remove a message and all that follow it; see `rewind`."""
        check_type("the id of a message", message_id, str)
        return await self.cut(checked_id(conversation_id), message_id, ON_LOOP)

    def add(
        self,
        conversation_id: str,
        messages: Message | Iterable[Message],
        *,
        key: str | None = None,
    ) -> None:
        """Store all of *messages*, or none if that fails.

        Args:
            conversation_id: The conversation; created if it does not exist.
            messages: One message, or several in order.
            key: Idempotency key: a second call with the same key has no effect.

        Raises:
            UsageError: The id is blank.
            TypeError: One of *messages* is not a message.
            ChatMemoryError: The repository failed.
        """
        several = as_messages(messages)
        drive(self.append(checked_id(conversation_id), several, BLOCKING, key=key))

    async def aadd(
        self,
        conversation_id: str,
        messages: Message | Iterable[Message],
        *,
        key: str | None = None,
    ) -> None:
        """Store *messages*; see `add`."""
        several = as_messages(messages)
        await self.append(checked_id(conversation_id), several, ON_LOOP, key=key)

    def get(self, conversation_id: str) -> list[Message]:
        """Return the messages that the model should see; empty if there is no conversation.

        Raises:
            UsageError: The id is blank.
            ChatMemoryError: The repository failed.
        """
        return list(drive(self.load(checked_id(conversation_id), BLOCKING)))

    async def aget(self, conversation_id: str) -> list[Message]:
        """Return the messages that the model should see; see `get`."""
        return list(await self.load(checked_id(conversation_id), ON_LOOP))

    def clear(self, conversation_id: str) -> None:
        """Delete a conversation if it exists.

        Raises:
            UsageError: The id is blank.
        """
        drive(self.delete(checked_id(conversation_id), BLOCKING))

    async def aclear(self, conversation_id: str) -> None:
        """Delete a conversation; see `clear`."""
        await self.delete(checked_id(conversation_id), ON_LOOP)


class WindowChatMemory(ChatMemory):
    """Returns the newest turns of a conversation that fit into a window.

    The repository keeps the complete conversation; messages outside the window are not read. The
    window moves in blocks (see `Window`), if the repository reports `Conversation.older`.

    New system messages replace earlier ones. Adding equal system messages again has no effect.

    Args:
        window: The limits on the returned messages.
        repository: The store; default: an `InMemoryChatMemoryRepository`.
        prune: Whether old messages are deleted, so that the repository holds at most about
            twice the window.

    Raises:
        WrongTypeError: *window* or *repository* has the wrong type.
    """

    def __init__(
        self,
        window: Window,
        repository: ChatMemoryRepository | None = None,
        *,
        prune: bool = False,
    ) -> None:
        self.window = window
        check_type("a window", window, Window, "write Window.messages(20)")
        self.repository = checked_repository(repository)
        self.prune = prune

    async def load(self, conversation_id: str, runtime: Runtime) -> tuple[Message, ...]:
        """Return the messages in the window."""
        last = self.window.initial_count
        while True:
            conversation = await self.repository.load(conversation_id, runtime, last=last)
            what = f"the result of {type(self.repository).__name__}.load()"
            check_type(what, conversation, Conversation, "wrap a list: Conversation(messages)")
            start = self.window.start(conversation.messages, conversation.older)
            # A store from which rows were deleted by hand may return fewer, and not be complete.
            everything = conversation.complete or len(without_system(conversation.messages)) < last
            if everything or without_system(conversation.messages[:start]):
                return messages_from(conversation.messages, start)
            last *= 4

    async def append(
        self,
        conversation_id: str,
        messages: Sequence[Message],
        runtime: Runtime,
        *,
        key: str | None = None,
    ) -> None:
        """Store *messages*, and prune the conversation if `prune` is set."""
        await append_messages(self.repository, conversation_id, messages, runtime, key=key)
        if self.prune:
            work = self._prune(conversation_id, runtime)
            await run_maintenance(work, runtime, "pruning failed", conversation_id=conversation_id)

    async def delete(self, conversation_id: str, runtime: Runtime) -> None:
        """Delete a conversation from the repository."""
        await self.repository.delete(conversation_id, runtime)

    async def cut(self, conversation_id: str, message_id: str, runtime: Runtime) -> bool:
        """Remove a message and all that follow it from the repository."""
        return await cut_messages(self.repository, conversation_id, message_id, runtime)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({type(self.repository).__name__})"

    async def _prune(self, conversation_id: str, runtime: Runtime) -> None:
        """Delete the messages outside the window if they are at least as many as those inside."""
        minimum = 2 * self.window.initial_count
        last = minimum + 1
        while True:
            conversation = await self.repository.load(conversation_id, runtime, last=last)
            start = self.window.start(conversation.messages, conversation.older)
            outside = len(without_system(conversation.messages[:start]))
            inside = len(without_system(conversation.messages)) - outside
            if outside + inside > minimum and outside >= inside:
                await self.repository.rewrite(conversation_id, self.window.select, runtime)
                return
            if conversation.complete or outside + inside < last:
                return
            last *= 2


class MessageWindowChatMemory(WindowChatMemory):
    """Returns the newest turns of a conversation, limited by the number of messages.

    Args:
        repository: The store; default: an `InMemoryChatMemoryRepository`.
        max_messages: The maximum number of messages, system messages included. The newest turn
            is always returned complete.
        keep: How many messages are kept when the window moves; default: half of *max_messages*.
        prune: Whether old messages are deleted; see `WindowChatMemory`.

    Raises:
        UsageError: *max_messages* is less than one, *keep* is not between one and *max_messages*,
            or *repository* is not a repository.
    """

    def __init__(
        self,
        repository: ChatMemoryRepository | None = None,
        *,
        max_messages: int = 40,
        keep: int | None = None,
        prune: bool = False,
    ) -> None:
        super().__init__(Window.messages(max_messages, keep=keep), repository, prune=prune)


class TokenWindowChatMemory(WindowChatMemory):
    """Returns the newest turns of a conversation, limited by the number of tokens.

    Args:
        repository: The store; default: an `InMemoryChatMemoryRepository`.
        max_tokens: The maximum number of tokens, system messages included. The newest turn is
            always returned complete.
        estimator: Counts the tokens of a message.
        keep: How many tokens are kept at least when the window moves, less a part of a turn;
            default: half of *max_tokens*.
        prune: Whether old messages are deleted; see `WindowChatMemory`.

    Raises:
        UsageError: *max_tokens* is less than one, *keep* is not between one and *max_tokens*, or
            *repository* is not a repository.
    """

    def __init__(
        self,
        repository: ChatMemoryRepository | None = None,
        *,
        max_tokens: int,
        estimator: TokenEstimator = estimated_tokens,
        keep: int | None = None,
        prune: bool = False,
    ) -> None:
        super().__init__(Window.tokens(max_tokens, estimator, keep=keep), repository, prune=prune)


def checked_repository(repository: ChatMemoryRepository | None) -> ChatMemoryRepository:
    """Return *repository*, or a new in-memory repository if it is None.

    Raises:
        WrongTypeError: It is not a repository.
    """
    if repository is None:
        return InMemoryChatMemoryRepository()
    given: object = repository
    if not isinstance(given, ChatMemoryRepository):
        msg = (
            f"{repository!r} is not a repository: conversations are kept in a ChatMemoryRepository,"
            " such as SqlChatMemoryRepository(url); the number of messages is max_messages="
        )
        raise WrongTypeError(msg)
    return repository


async def append_messages(
    repository: ChatMemoryRepository,
    conversation_id: str,
    messages: Sequence[Message],
    runtime: Runtime,
    *,
    key: str | None,
) -> None:
    """Append *messages* to a conversation; new system messages replace earlier ones.

    The messages are appended atomically. Earlier system messages are removed in a second step,
    so a concurrent reader may see both. A cancelled caller waits for both steps, and a failed
    write becomes the cause of the cancellation.
    """
    work = _append_messages(repository, conversation_id, messages, runtime, key=key)
    # Shielded: between the two steps, the conversation has the old and the new system messages.
    await runtime.shielded(work)


async def _append_messages(
    repository: ChatMemoryRepository,
    conversation_id: str,
    messages: Sequence[Message],
    runtime: Runtime,
    *,
    key: str | None,
) -> None:
    systems = system_messages(messages)
    if not systems:
        await repository.append(conversation_id, messages, runtime, key=key)
        return
    found = await repository.load(conversation_id, runtime, last=0)
    before = system_messages(found.messages)
    if all(system in before for system in systems):
        await repository.append(conversation_id, without_system(messages), runtime, key=key)
        return
    added = await repository.append(conversation_id, messages, runtime, key=key)
    if added and before:

        def replace_systems(present: Sequence[Message]) -> tuple[Message, ...]:
            return (*systems, *without_system(present))

        await repository.rewrite(conversation_id, replace_systems, runtime)


async def cut_messages(
    repository: ChatMemoryRepository, conversation_id: str, message_id: str, runtime: Runtime
) -> bool:
    """Remove a message, or the summary of it, and all that follow; return whether it was there."""

    def before(present: Sequence[Message]) -> tuple[Message, ...] | None:
        for at, message in enumerate(present):
            if message_id in (message.id, *message.metadata.get(SUMMARIZED_IDS, ())):
                return (*present[:at], *system_messages(present[at:]))
        return None

    # Shielded like every write, for which a repository may need several steps.
    return await runtime.shielded(repository.rewrite(conversation_id, before, runtime))


async def run_maintenance(
    work: Awaitable[object], runtime: Runtime, failure: str, **fields: str
) -> None:
    """Await *work* that follows the storage of a turn, and log its failure instead of raising.

    If *work* is interrupted, the turn stays stored and its tool calls are not undone.

    Args:
        work: For example pruning or compaction.
        runtime: The runtime of the request that stored the turn.
        failure: The log event when *work* fails.
        **fields: Further fields of the log event.
    """
    try:
        await work
    except Exception as error:  # noqa: BLE001 - the next turn tries again
        log.warning(failure, **fields, error=described(error))
    except BaseException:
        runtime.settle()
        raise
