"""A custom repository that stores each conversation in a JSON file.

python examples/custom_repository.py
"""

import json
import secrets
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from chatclient import ChatClient, Message, Runtime
from chatclient.advisors import MessageChatMemoryAdvisor
from chatclient.chat import message_from_dict, message_to_dict
from chatclient.memory import (
    ChatMemoryRepository,
    Conversation,
    MessageWindowChatMemory,
    newest,
    stamped,
)


@dataclass(frozen=True)
class Log:
    """The content of a file. An empty conversation has no file and version 0."""

    messages: tuple[Message, ...] = ()
    version: int = 0
    keys: tuple[str, ...] = ()

    def changed(self, messages: Sequence[Message], *keys: str) -> "Log":
        """Return a log with *messages* and a new version."""
        return Log(stamped(messages), secrets.randbits(62) + 1, (*self.keys, *keys))


class JsonChatMemoryRepository(ChatMemoryRepository):
    """Stores conversations in a folder that one process uses.

    Each change rewrites the file, so conversations should not exceed a few hundred messages.

    Args:
        folder: The folder of the files; created if it does not exist.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._lock = threading.Lock()

    async def load(
        self, conversation_id: str, runtime: Runtime, *, last: int | None = None
    ) -> Conversation:
        """Return the newest messages of a conversation."""
        log = await runtime.finish(self._read, conversation_id)
        messages = newest(log.messages, last)
        older = len(log.messages) - len(messages)
        return Conversation(messages, log.version, complete=not older, older=older)

    async def append(
        self,
        conversation_id: str,
        messages: Sequence[Message],
        runtime: Runtime,
        *,
        key: str | None = None,
    ) -> bool:
        """Append *messages* to a conversation, unless *key* was used before."""

        def with_more(log: Log) -> Log | None:
            if key is not None and key in log.keys:
                return None
            return log.changed((*log.messages, *messages), *(() if key is None else (key,)))

        return not messages or await runtime.finish(self._change, conversation_id, with_more)

    async def replace(
        self,
        conversation_id: str,
        messages: Sequence[Message],
        runtime: Runtime,
        *,
        expected: int | None = None,
    ) -> bool:
        """Replace all messages, unless the version has changed."""

        def with_these(log: Log) -> Log | None:
            return log.changed(messages) if expected in (None, log.version) else None

        return await runtime.finish(self._change, conversation_id, with_these)

    async def delete(self, conversation_id: str, runtime: Runtime) -> None:
        """Delete a conversation."""
        await runtime.finish(self._change, conversation_id, lambda _: Log())

    async def conversation_ids(self, runtime: Runtime) -> list[str]:
        """Return the ids of all conversations."""
        return await runtime.finish(self._ids)

    # The methods below block. In asynchronous modes, `runtime.finish` calls them in a worker thread
    # and completes a change that has started even if the request is cancelled.

    def _read(self, conversation_id: str) -> Log:
        try:
            data = json.loads(self._path(conversation_id).read_bytes())
        except FileNotFoundError:
            return Log()
        messages = tuple(message_from_dict(each) for each in data["messages"])
        return Log(messages, data["version"], tuple(data["keys"]))

    def _change(self, conversation_id: str, change: Callable[[Log], Log | None]) -> bool:
        path = self._path(conversation_id)
        with self._lock:
            log = change(self._read(conversation_id))
            if log is None:
                return False
            if not log.messages:
                path.unlink(missing_ok=True)
                return True
            data = {
                "id": conversation_id,
                "version": log.version,
                "keys": log.keys,
                "messages": [message_to_dict(message) for message in log.messages],
            }
            # Renaming is atomic, so concurrent readers see the old or the new file.
            written = path.with_suffix(".new")
            written.write_text(json.dumps(data))
            written.replace(path)
            return True

    def _ids(self) -> list[str]:
        with self._lock:
            return [json.loads(path.read_bytes())["id"] for path in self._folder.glob("*.json")]

    def _path(self, conversation_id: str) -> Path:
        # Ids may be long and contain characters that file names must not.
        name = sha256(conversation_id.encode("utf-8", "surrogatepass")).hexdigest()
        return self._folder / f"{name}.json"


if __name__ == "__main__":
    memory = MessageWindowChatMemory(JsonChatMemoryRepository(Path("conversations")))
    client = ChatClient.builder("local").default_advisors(MessageChatMemoryAdvisor(memory)).build()
    chat = client.prompt().conversation("ada")
    chat.user("My name is Ada.").call().content()
    print(chat.user("What is my name?").call().content())
