"""`InMemoryChatMemoryRepository`: conversations in a dictionary of this process."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

from chatclient.chat.messages import Message, SystemMessage
from chatclient.memory.encoding import stamped
from chatclient.memory.repository import (
    NO_CONVERSATION,
    REMEMBERED_KEYS,
    ChatMemoryRepository,
    Conversation,
)
from chatclient.runtime.runtime import Runtime
from chatclient.runtime.threads import ForkSafeLock


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
