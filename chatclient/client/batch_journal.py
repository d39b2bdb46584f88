"""The journal of a batch: a file of what was answered, with which it continues after a crash."""

import os
from collections.abc import Iterable
from pathlib import Path
from threading import Lock
from typing import Any

from chatclient._internal.json import dumps, loads
from chatclient.chat.response import ChatResponse
from chatclient.chat.serialization import response_from_dict, response_to_dict
from chatclient.errors import UsageError

_VERSION = 1


class BatchJournal:
    """Records submitted batches, answers and results, a JSON object per line.

    Args:
        path: The file, created if it does not exist; None keeps everything in memory.

    Attributes:
        results: The complete response of each finished request, by its key.
        answers: The JSON of the response of each item of a batch API, by the key of the item.
        batches: The ids of submitted batches without answers, with the keys of their items.

    Raises:
        UsageError: The file is no journal, or cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        self.results: dict[str, ChatResponse] = {}
        self.answers: dict[str, str] = {}
        self.batches: dict[str, list[str]] = {}
        self._lock = Lock()
        self._path = None if path is None else Path(path)
        self._end = 0
        if self._path is not None:
            _create(self._path)  # fails before any request is sent
            self._read(self._path.read_bytes())

    def add_result(self, key: str, response: ChatResponse) -> None:
        """Record the response of a finished request."""
        self._append({"result": key, "response": response_to_dict(response)})

    def add_batch(self, batch_id: str, keys: Iterable[str]) -> None:
        """Record a submitted batch."""
        self.batches[batch_id] = list(keys)
        self._append({"batch": batch_id, "keys": self.batches[batch_id]})

    def end_batch(self, batch_id: str, answers: dict[str, str]) -> None:
        """Record the answers of a batch; its items without an answer may be submitted again."""
        self.batches.pop(batch_id, None)
        self.answers.update(answers)
        self._append({"ended": batch_id, "answers": answers})

    def _append(self, entry: dict[str, Any]) -> None:
        """Append a line, in one write, so that a crash damages the last line at most."""
        if self._path is None:
            return
        line = dumps({"v": _VERSION, **entry}) + b"\n"
        with self._lock, self._path.open("r+b" if self._path.exists() else "xb") as file:
            file.truncate(self._end)  # removes a line that a crash has cut off
            file.seek(self._end)
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
            self._end += len(line)

    def _read(self, content: bytes) -> None:
        complete = content[: content.rfind(b"\n") + 1]
        self._end = len(complete)
        for number, line in enumerate(complete.splitlines(), 1):
            try:
                self._restore(loads(line))
            except (ValueError, LookupError, TypeError, AttributeError) as error:
                msg = f"{self._path}, line {number}, is not the journal of a batch"
                raise UsageError(msg) from error

    def _restore(self, entry: dict[str, Any]) -> None:
        if entry["v"] != _VERSION:
            msg = f"version {entry['v']} is unknown"
            raise ValueError(msg)
        if "result" in entry:
            self.results[entry["result"]] = response_from_dict(entry["response"])
        elif "batch" in entry:
            self.batches[entry["batch"]] = entry["keys"]
        else:
            self.batches.pop(entry["ended"], None)
            self.answers.update(entry["answers"])


def _create(path: Path) -> None:
    """Create *path* unless it exists.

    Raises:
        UsageError: It cannot be opened for writing.
    """
    try:
        path.open("ab").close()
    except OSError as error:
        msg = f"the journal cannot be written: {error}"
        raise UsageError(msg) from error
