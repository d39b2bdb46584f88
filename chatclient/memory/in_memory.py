"""Conversations in the memory of this process."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

from chatclient.forks import ForkSafeLock
from chatclient.memory.repository import NO_CONVERSATION, ChatMemoryRepository, Conversation
from chatclient.messages import Message, SystemMessage
from chatclient.runtime import Runtime

_KEYS = 100  # how many keys of additions a conversation remembers


class InMemoryChatMemoryRepository(ChatMemoryRepository):
    """Keeps conversations in a dictionary, for tests and for applications of one process.

    Threads and event loops may share one. Messages are immutable and kept as they are; the lists
    that hold them are never handed out.
    """

    def __init__(self) -> None:
        self._lock = ForkSafeLock()
        self._logs: dict[str, _Log] = {}
        # One count for all, so that no version comes back when a conversation is begun anew.
        self._versions = count(1)

    async def load(
        self,
        conversation_id: str,
        runtime: Runtime,  # noqa: ARG002 - there is nothing to wait for
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
        """Add *messages* at the end of a conversation."""
        if not messages:
            return True
        with self._lock:
            log = self._logs.get(conversation_id) or _Log()
            if key is not None and key in log.keys:
                return False
            self._logs[conversation_id] = log.plus(messages, next(self._versions), key)
            return True

    async def replace(
        self,
        conversation_id: str,
        messages: Sequence[Message],
        runtime: Runtime,  # noqa: ARG002
        *,
        expected: int | None = None,
    ) -> bool:
        """Put *messages* in the place of all messages of a conversation."""
        with self._lock:
            present = self._logs.get(conversation_id) or _Log()
            if expected is not None and expected != present.version:
                return False
            if messages:
                log = _Log(keys=present.keys).plus(messages, next(self._versions))
                self._logs[conversation_id] = log
            else:
                self._logs.pop(conversation_id, None)
            return True

    async def delete(self, conversation_id: str, runtime: Runtime) -> None:  # noqa: ARG002
        """Forget a conversation."""
        with self._lock:
            self._logs.pop(conversation_id, None)

    async def conversation_ids(self, runtime: Runtime) -> list[str]:  # noqa: ARG002
        """Return the ids of all conversations."""
        with self._lock:
            return list(self._logs)


@dataclass(frozen=True, slots=True)
class _Log:
    """The messages of one conversation, in one state of it.

    The states of a conversation share their lists, which only grow; each knows how much of them is
    its own. So a change comes about in a single assignment, and an interrupt (Ctrl-C) in the
    middle of one leaves the state before.
    """

    version: int = 0
    keys: tuple[str, ...] = ()
    messages: list[Message] = field(default_factory=list)
    size: int = 0
    systems: list[int] = field(default_factory=list)  # where the system messages stand
    system_count: int = 0

    def plus(self, messages: Sequence[Message], version: int, key: str | None = None) -> "_Log":
        """Return the state after *messages* were added."""
        size = self.size
        systems = [at for at, m in enumerate(messages, size) if isinstance(m, SystemMessage)]
        self.messages[size:] = messages  # where an interrupted change may have left something
        self.systems[self.system_count :] = systems
        return _Log(
            version,
            self.keys if key is None else (*self.keys[1 - _KEYS :], key),
            self.messages,
            size + len(messages),
            self.systems,
            self.system_count + len(systems),
        )

    def newest(self, last: int | None) -> Conversation:
        """Return the newest messages, at most *last* that are no system messages."""
        if last is None or last >= self.size - self.system_count:
            return Conversation(tuple(self.messages[: self.size]), self.version)
        start = self.size - last
        while missing := last - (self.size - start - self._systems_from(start)):
            start -= missing
        older = self.systems[: self.system_count - self._systems_from(start)]
        messages = (*(self.messages[at] for at in older), *self.messages[start : self.size])
        return Conversation(messages, self.version, complete=False)

    def _systems_from(self, start: int) -> int:
        return self.system_count - bisect_left(self.systems, start, hi=self.system_count)
