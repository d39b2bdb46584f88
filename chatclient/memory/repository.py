"""Where conversations are kept: the contract of a repository."""

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from chatclient.checks import check_kind
from chatclient.closing import Closeable
from chatclient.driving import drive
from chatclient.errors import ChatMemoryError, UsageError
from chatclient.messages import Message, SystemMessage, as_messages, system_messages
from chatclient.runtime import BLOCKING, ON_LOOP, Runtime


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation as a repository holds it, or the newest part of it.

    Attributes:
        messages: In the order in which they were added.
        version: Changes with every change of the conversation, and no two states of it ever have
            the same; 0 when there is no such conversation. Otherwise it means nothing.
        complete: Whether these are all messages there are.
    """

    messages: tuple[Message, ...] = ()
    version: int = 0
    complete: bool = True


NO_CONVERSATION = Conversation()
"""What is known of a conversation that does not exist."""

_ATTEMPTS = 100  # how often a rewrite is tried while others change the conversation
_PAUSE = 0.05  # seconds between two attempts at most


def newest(messages: Sequence[Message], last: int | None) -> tuple[Message, ...]:
    """Return the newest of *messages*, as `ChatMemoryRepository.load` does.

    For repositories that have all messages at hand anyway.
    """
    if last is None:
        return tuple(messages)
    start, wanted = len(messages), last
    while wanted and start:
        start -= 1
        wanted -= not isinstance(messages[start], SystemMessage)
    return (*system_messages(messages[:start]), *messages[start:])


def checked_id(conversation_id: object) -> str:
    """Return *conversation_id* once it is known to be usable.

    Raises:
        UsageError: It is not a text, or a blank one.
    """
    if not isinstance(conversation_id, str) or not conversation_id.strip():
        msg = f"a conversation id must be a text that is not blank, not {conversation_id!r}"
        raise UsageError(msg)
    return conversation_id


class ChatMemoryRepository(Closeable, ABC):
    """Keeps conversations: lists of messages by conversation id.

    An implementor writes the five coroutines `load`, `append`, `replace`, `delete` and
    `conversation_ids`, which serve blocking and asynchronous callers alike. They do all waiting
    through the runtime they are given; a plain driver is reached with
    `await runtime.invoke(function, ...)`. What they have to keep to:

    - Every message comes back equal to what was given, of whatever kind
      (`chatclient.serialization` makes JSON values of messages, both ways).
    - Each operation happens as a whole or not at all, whoever else (threads, tasks, processes)
      works on the same conversation, and is seen as a whole: nobody loads half of an `append`.
    - What has returned has happened, and stays, as far as the store is durable.
    - Cancelling or interrupting an operation leaves it done or not done, never half.
    - A conversation that holds no messages does not exist.

    Ids have any length and may contain anything but are never blank.
    `chatclient.testing.memory.ChatMemoryRepositoryContract` tests all of it.

    The other methods are the face for applications, blocking and asynchronous. They are what
    Spring AI calls `findConversationIds`, `findByConversationId`, `saveAll` and
    `deleteByConversationId`.
    """

    @abstractmethod
    async def load(
        self, conversation_id: str, runtime: Runtime, *, last: int | None = None
    ) -> Conversation:
        """Return the newest messages of a conversation; `NO_CONVERSATION` if there is none.

        Args:
            conversation_id: Which conversation.
            runtime: How the request runs.
            last: How many messages to return at most, or None for all. System messages are not
                counted and always among those returned, however old. What this costs must not
                grow with the messages that are left out.
        """

    @abstractmethod
    async def append(
        self,
        conversation_id: str,
        messages: Sequence[Message],
        runtime: Runtime,
        *,
        key: str | None = None,
    ) -> bool:
        """Add *messages* at the end of a conversation, as a unit; it begins with the first ones.

        Args:
            conversation_id: Which conversation.
            messages: What to add; nothing happens, whatever the key, when there are none.
            runtime: How the request runs.
            key: Names this addition. When the conversation has seen the key before, nothing is
                added, so that a caller may repeat what it does not know to have happened. Keys
                are remembered until the conversation is deleted, whatever `replace` does to the
                messages; a repository may forget all but the newest hundred of a conversation.

        Returns:
            Whether the messages were added; False when they had been before.
        """

    @abstractmethod
    async def replace(
        self,
        conversation_id: str,
        messages: Sequence[Message],
        runtime: Runtime,
        *,
        expected: int | None = None,
    ) -> bool:
        """Put *messages* in the place of all messages of a conversation.

        Args:
            conversation_id: Which conversation.
            messages: What it is to consist of; with none it is deleted.
            runtime: How the request runs.
            expected: The version that the conversation must still have (0: it must not exist),
                or None to replace whatever there is.

        Returns:
            Whether that was done; False when the conversation has another version by now.
        """

    @abstractmethod
    async def delete(self, conversation_id: str, runtime: Runtime) -> None:
        """Forget a conversation, and the keys of what was added to it, if it exists."""

    @abstractmethod
    async def conversation_ids(self, runtime: Runtime) -> list[str]:
        """Return the ids of all conversations, in any order."""

    # What follows is written in terms of the above.

    async def rewrite(
        self,
        conversation_id: str,
        change: Callable[[tuple[Message, ...]], Sequence[Message] | None],
        runtime: Runtime,
    ) -> bool:
        """Replace a conversation by what *change* makes of it, so that no addition gets lost.

        When somebody else changes the conversation meanwhile, *change* is applied anew.

        Args:
            conversation_id: Which conversation.
            change: From all its messages to what they are to be, or None to leave them.
            runtime: How the request runs.

        Returns:
            Whether it was replaced; False when *change* left it.

        Raises:
            ChatMemoryError: It did not hold still; nothing was changed.
            WrongTypeError: The repository does not say whether it has replaced anything.
        """
        for attempt in range(1, _ATTEMPTS + 1):
            found = await self.load(conversation_id, runtime)
            changed = change(found.messages)
            if changed is None:
                return False
            done = await self.replace(conversation_id, changed, runtime, expected=found.version)
            check_kind(f"what replace() of {type(self).__name__} returns", done, bool)
            if done:
                return True
            # At random, so that two who came into each other's way do not do so again.
            await runtime.sleep(random.uniform(0, min(_PAUSE, attempt / 1000)))  # noqa: S311
        msg = f"conversation {conversation_id!r} changed {_ATTEMPTS} times while it was rewritten"
        raise ChatMemoryError(msg, conversation_id=conversation_id)

    def find_conversation_ids(self) -> list[str]:
        """Return the ids of all conversations, in no particular order."""
        return drive(self.conversation_ids(BLOCKING))

    async def afind_conversation_ids(self) -> list[str]:
        """Return the ids of all conversations; see `find_conversation_ids`."""
        return await self.conversation_ids(ON_LOOP)

    def find_by_conversation_id(self, conversation_id: str) -> list[Message]:
        """Return all messages of a conversation in their order; none if it does not exist.

        Raises:
            UsageError: The id is blank.
        """
        return drive(self._find(conversation_id, BLOCKING))

    async def afind_by_conversation_id(self, conversation_id: str) -> list[Message]:
        """Return all messages of a conversation; see `find_by_conversation_id`."""
        return await self._find(conversation_id, ON_LOOP)

    def save_all(self, conversation_id: str, messages: Message | Iterable[Message]) -> None:
        """Put *messages* in the place of whatever the conversation consists of.

        Raises:
            UsageError: The id is blank.
            TypeError: One of the messages is something else.
        """
        drive(self._save(conversation_id, messages, BLOCKING))

    async def asave_all(self, conversation_id: str, messages: Message | Iterable[Message]) -> None:
        """Put *messages* in the place of the conversation; see `save_all`."""
        await self._save(conversation_id, messages, ON_LOOP)

    def delete_by_conversation_id(self, conversation_id: str) -> None:
        """Forget a conversation, if it exists.

        Raises:
            UsageError: The id is blank.
        """
        drive(self.delete(checked_id(conversation_id), BLOCKING))

    async def adelete_by_conversation_id(self, conversation_id: str) -> None:
        """Forget a conversation; see `delete_by_conversation_id`."""
        await self.delete(checked_id(conversation_id), ON_LOOP)

    async def _find(self, conversation_id: str, runtime: Runtime) -> list[Message]:
        return list((await self.load(checked_id(conversation_id), runtime)).messages)

    async def _save(
        self, conversation_id: str, messages: Message | Iterable[Message], runtime: Runtime
    ) -> None:
        await self.replace(checked_id(conversation_id), as_messages(messages), runtime)
