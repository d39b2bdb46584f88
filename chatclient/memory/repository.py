"""`ChatMemoryRepository`: the contract of a store for conversations, and one in memory."""

import random
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import count

from chatclient._internal.checks import check_moment, check_type, checked_id
from chatclient._internal.closeable import Closeable
from chatclient.chat.messages import Message, SystemMessage, as_messages, system_messages
from chatclient.errors import ChatMemoryError
from chatclient.memory.encoding import stamped, without_older
from chatclient.runtime.blocking import drive
from chatclient.runtime.runtime import BLOCKING, ON_LOOP, Runtime
from chatclient.runtime.threads import ForkSafeLock


@dataclass(frozen=True, slots=True)
class Conversation:
    """The messages of a stored conversation, or the newest of them.

    Attributes:
        messages: The messages in the order in which they were added.
        version: An opaque number that identifies this state of the conversation and is never
            reused; 0 if the conversation does not exist.
        complete: Whether *messages* contains all messages.
        older: The number of messages that were not loaded, all of them older, or None if it is
            unknown. Windows then slide with each turn instead of moving in blocks.
    """

    messages: tuple[Message, ...] = ()
    version: int = 0
    complete: bool = True
    older: int | None = None

    def __post_init__(self) -> None:
        if self.complete:
            object.__setattr__(self, "older", 0)


NO_CONVERSATION = Conversation()
"""The result of loading a conversation that does not exist."""

REMEMBERED_KEYS = 100
"""How many idempotency keys the bundled stores keep for a conversation, the newest ones."""

_ATTEMPTS = 100  # of a rewrite while others change the conversation
_PAUSE = 0.05  # maximum number of seconds between two attempts


def newest(messages: Sequence[Message], last: int | None) -> tuple[Message, ...]:
    """Return the newest of *messages* as `ChatMemoryRepository.load` should return them.

    For repositories that load complete conversations.
    """
    if last is None:
        return tuple(messages)
    start, missing = len(messages), last
    while missing and start:
        start -= 1
        missing -= not isinstance(messages[start], SystemMessage)
    return (*system_messages(messages[:start]), *messages[start:])


class ChatMemoryRepository(Closeable, ABC):
    """Stores conversations: lists of messages by conversation id.

    Implement the five coroutines `load`, `append`, `replace`, `delete` and `conversation_ids`,
    and `ids_before` if the store can find old messages fast.
    They serve blocking and async callers and wait only through the given runtime; call a
    blocking driver with `await runtime.invoke(function, ...)`. Requirements:

    - A loaded message equals the stored one, for each message type. To convert messages to and
      from JSON values, use `chatclient.chat.serialization`.
    - `append` and `replace` store `stamped(messages)`: with the time of storing, which a message
      keeps when it is stored again.
    - Each operation is atomic and isolated from concurrent operations of other threads, tasks
      and processes: no `load` returns part of an `append`.
    - When an operation returns, its change is permanent, as far as the store is durable.
    - A cancelled or interrupted operation takes effect completely or not at all.
    - A conversation without messages does not exist.

    Conversation ids are strings of any length and content, but never blank.
    `chatclient.testing.repository_contract.ChatMemoryRepositoryContract` tests these rules.

    The other methods are for applications, blocking and async. They correspond to Spring AI's
    `findConversationIds`, `findByConversationId`, `saveAll` and
    `deleteByConversationId`.
    """

    @abstractmethod
    async def load(
        self, conversation_id: str, runtime: Runtime, *, last: int | None = None
    ) -> Conversation:
        """Return the newest messages of a conversation; `NO_CONVERSATION` if it does not exist.

        Args:
            conversation_id: The conversation.
            runtime: The runtime of the request.
            last: The maximum number of messages, or None for all. System messages do not count
                and are always included, however old. The cost must not depend on the number of
                messages that are not returned.
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
        """Append *messages* to a conversation, which is created if it does not exist.

        Args:
            conversation_id: The conversation.
            messages: The messages; without any, nothing is changed and *key* is ignored.
            runtime: The runtime of the request.
            key: Idempotency key: if the conversation has seen it, nothing is appended, so a
                caller may repeat an operation with an unknown result. Keys are kept until the
                conversation is deleted, also by `replace`; a repository may drop all but the
                newest hundred.

        Returns:
            Whether the messages were appended; False if *key* was seen before.
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
        """Replace all messages of a conversation.

        Args:
            conversation_id: The conversation.
            messages: The new messages; without any, the conversation is deleted.
            runtime: The runtime of the request.
            expected: The required version (0: the conversation must not exist), or None to
                replace any version.

        Returns:
            Whether the messages were replaced; False if the version is not *expected*.
        """

    @abstractmethod
    async def delete(self, conversation_id: str, runtime: Runtime) -> None:
        """Delete a conversation and its idempotency keys if it exists."""

    @abstractmethod
    async def conversation_ids(self, runtime: Runtime) -> list[str]:
        """Return the ids of all conversations, in any order."""

    async def rewrite(
        self,
        conversation_id: str,
        change: Callable[[tuple[Message, ...]], Sequence[Message] | None],
        runtime: Runtime,
    ) -> bool:
        """Replace a conversation by the result of *change*, without losing concurrent changes.

        If the conversation was changed concurrently, *change* is called again.

        Args:
            conversation_id: The conversation.
            change: Returns the new messages for all current ones, or None for no change.
            runtime: The runtime of the request.

        Returns:
            Whether it was replaced; False if *change* returned None.

        Raises:
            ChatMemoryError: Each attempt met a concurrent change; nothing was replaced.
            WrongTypeError: `replace` did not return a bool.
        """
        for attempt in range(1, _ATTEMPTS + 1):
            found = await self.load(conversation_id, runtime)
            changed = change(found.messages)
            if changed is None:
                return False
            done = await self.replace(conversation_id, changed, runtime, expected=found.version)
            check_type(f"the result of {type(self).__name__}.replace()", done, bool)
            if done:
                return True
            # Random, so that two competing writers do not collide again.
            await runtime.sleep(random.uniform(0, min(_PAUSE, attempt / 1000)))  # noqa: S311
        msg = f"conversation {conversation_id!r} changed {_ATTEMPTS} times while it was rewritten"
        raise ChatMemoryError(msg, conversation_id=conversation_id)

    async def ids_before(self, cutoff: datetime, runtime: Runtime) -> list[str]:  # noqa: ARG002
        """Return the ids of all conversations with messages stored before *cutoff*.

        It may return more; by default it returns all ids.
        """
        return await self.conversation_ids(runtime)

    async def delete_older(self, cutoff: datetime, runtime: Runtime) -> int:
        """Delete messages; see `delete_older_than`."""
        check_type("cutoff", cutoff, datetime)
        check_moment("cutoff", cutoff)
        deleted = 0
        for id in await self.ids_before(cutoff, runtime):
            leaving = 0

            def change(messages: tuple[Message, ...]) -> tuple[Message, ...] | None:
                nonlocal leaving
                kept = without_older(messages, cutoff)
                leaving = len(messages) - len(kept)
                return kept if leaving else None

            await self.rewrite(id, change, runtime)
            deleted += leaving
        return deleted

    def delete_older_than(self, cutoff: datetime) -> int:
        """Delete the messages that were stored before *cutoff*, and return their number.

        Turns are deleted completely, so that each conversation stays valid, and old system messages
        with the last turn of their conversation. Messages without a time, which earlier versions
        stored, are deleted with a later turn that is old enough.

        Raises:
            UsageError: *cutoff* has no time zone.
        """
        return drive(self.delete_older(cutoff, BLOCKING))

    async def adelete_older_than(self, cutoff: datetime) -> int:
        """Delete the messages that were stored before *cutoff*; see `delete_older_than`."""
        return await self.delete_older(cutoff, ON_LOOP)

    def find_conversation_ids(self) -> list[str]:
        """Return the ids of all conversations, in any order."""
        return drive(self.conversation_ids(BLOCKING))

    async def afind_conversation_ids(self) -> list[str]:
        """Return the ids of all conversations; see `find_conversation_ids`."""
        return await self.conversation_ids(ON_LOOP)

    def find_by_conversation_id(self, conversation_id: str) -> list[Message]:
        """Return all messages of a conversation in order; empty if it does not exist.

        Raises:
            UsageError: The id is blank.
        """
        return list(drive(self.load(checked_id(conversation_id), BLOCKING)).messages)

    async def afind_by_conversation_id(self, conversation_id: str) -> list[Message]:
        """Return all messages of a conversation; see `find_by_conversation_id`."""
        return list((await self.load(checked_id(conversation_id), ON_LOOP)).messages)

    def save_all(self, conversation_id: str, messages: Message | Iterable[Message]) -> None:
        """Replace all messages of a conversation.

        Raises:
            UsageError: The id is blank.
            TypeError: One of the messages is not a message.
        """
        drive(self.replace(checked_id(conversation_id), as_messages(messages), BLOCKING))

    async def asave_all(self, conversation_id: str, messages: Message | Iterable[Message]) -> None:
        """Replace all messages of a conversation; see `save_all`."""
        await self.replace(checked_id(conversation_id), as_messages(messages), ON_LOOP)

    def delete_by_conversation_id(self, conversation_id: str) -> None:
        """Delete a conversation if it exists.

        Raises:
            UsageError: The id is blank.
        """
        drive(self.delete(checked_id(conversation_id), BLOCKING))

    async def adelete_by_conversation_id(self, conversation_id: str) -> None:
        """Delete a conversation; see `delete_by_conversation_id`."""
        await self.delete(checked_id(conversation_id), ON_LOOP)


class InMemoryChatMemoryRepository(ChatMemoryRepository):
    """Stores conversations in a dictionary, for tests and single-process applications.

    Threads and event loops may share an instance. Messages are immutable, so they are not copied.
    """

    def __init__(self) -> None:
        self._lock = ForkSafeLock()
        self._logs: dict[str, _Log] = {}
        # Shared by all conversations, so that a deleted and recreated one reuses no version.
        self._versions = count(1)

    async def load(
        self,
        conversation_id: str,
        runtime: Runtime,  # noqa: ARG002 - nothing waits
        *,
        last: int | None = None,
    ) -> Conversation:
        """Return the newest messages of a conversation."""
        with self._lock:
            log = self._logs.get(conversation_id)
            return NO_CONVERSATION if log is None else log.newest(last)

    async def append(
        self,
        conversation_id: str,
        messages: Sequence[Message],
        runtime: Runtime,  # noqa: ARG002
        *,
        key: str | None = None,
    ) -> bool:
        """Append *messages* to a conversation."""
        if not messages:
            return True
        with self._lock:
            log = self._logs.get(conversation_id) or _Log()
            if key is not None and key in log.keys:
                return False
            self._logs[conversation_id] = log.extended(stamped(messages), next(self._versions), key)
            return True

    async def replace(
        self,
        conversation_id: str,
        messages: Sequence[Message],
        runtime: Runtime,  # noqa: ARG002
        *,
        expected: int | None = None,
    ) -> bool:
        """Replace all messages of a conversation."""
        with self._lock:
            present = self._logs.get(conversation_id) or _Log()
            if expected is not None and expected != present.version:
                return False
            if messages:
                log = _Log(keys=present.keys).extended(stamped(messages), next(self._versions))
                self._logs[conversation_id] = log
            else:
                self._logs.pop(conversation_id, None)
            return True

    async def delete(self, conversation_id: str, runtime: Runtime) -> None:  # noqa: ARG002
        """Delete a conversation."""
        with self._lock:
            self._logs.pop(conversation_id, None)

    async def conversation_ids(self, runtime: Runtime) -> list[str]:  # noqa: ARG002
        """Return the ids of all conversations."""
        with self._lock:
            return list(self._logs)


@dataclass(frozen=True, slots=True)
class _Log:
    """One state of a conversation.

    Successive states share lists that only grow, and each state records its length. A change
    therefore takes effect with a single assignment, and an interrupt (Ctrl-C) during a change
    leaves the previous state intact.
    """

    version: int = 0
    keys: tuple[str, ...] = ()
    messages: list[Message] = field(default_factory=list)
    size: int = 0
    systems: list[int] = field(default_factory=list)  # indexes of the system messages
    system_count: int = 0

    def extended(self, messages: Sequence[Message], version: int, key: str | None = None) -> "_Log":
        """Return the state with *messages* appended."""
        size = self.size
        systems = [at for at, m in enumerate(messages, size) if isinstance(m, SystemMessage)]
        self.messages[size:] = messages  # overwrites the remains of an interrupted change
        self.systems[self.system_count :] = systems
        return _Log(
            version,
            self.keys if key is None else (*self.keys[1 - REMEMBERED_KEYS :], key),
            self.messages,
            size + len(messages),
            self.systems,
            self.system_count + len(systems),
        )

    def newest(self, last: int | None) -> Conversation:
        """Return all system messages and the newest *last* others."""
        if last is None or last >= self.size - self.system_count:
            return Conversation(tuple(self.messages[: self.size]), self.version)
        start = self.size - last
        while missing := last - (self.size - start - self._systems_from(start)):
            start -= missing
        older = self.systems[: self.system_count - self._systems_from(start)]
        messages = (*(self.messages[at] for at in older), *self.messages[start : self.size])
        return Conversation(messages, self.version, complete=False, older=self.size - len(messages))

    def _systems_from(self, start: int) -> int:
        return self.system_count - bisect_left(self.systems, start, hi=self.system_count)
