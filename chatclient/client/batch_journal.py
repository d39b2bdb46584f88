"""The journal of a batch: a file of what was answered, with which it continues after a crash."""

import os
import stat
from collections.abc import Iterable
from pathlib import Path
from threading import Lock
from typing import Any, TypeAlias

from chatclient._internal.json import dumps, loads
from chatclient._internal.logging import get_logger
from chatclient.chat.pending_turn import PendingTurn
from chatclient.chat.response import ChatResponse
from chatclient.chat.serialization import response_from_dict, response_to_dict
from chatclient.chat.stored_values import from_stored, to_stored
from chatclient.errors import UsageError

_log = get_logger(__name__)

_VERSION = 1
_HEADER = dumps({"v": _VERSION, "journal": "chatclient batch"}) + b"\n"

RecordedResult: TypeAlias = tuple[ChatResponse, PendingTurn | None]
"""The response of a finished request, and its turn if it waits for decisions."""


class BatchJournal:
    """Records submitted batches, answers and results, a JSON object per line.

    Args:
        path: The file, created if it does not exist; None keeps everything in memory.

    Attributes:
        results: The result of each finished request, by its key.
        answers: The JSON of the response of each item of a batch API, by the key of the item.
        batches: The ids of submitted batches without answers, with the keys of their items.

    Raises:
        UsageError: The file is no journal, or cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        self.results: dict[str, RecordedResult] = {}
        self.answers: dict[str, str] = {}
        self.batches: dict[str, list[str]] = {}
        self._lock = Lock()
        self._path = None if path is None else Path(path)
        if self._path is not None:
            self._open(self._path)  # fails before any request is sent

    def add_result(
        self, key: str, response: ChatResponse, pending: PendingTurn | None = None
    ) -> None:
        """Record the response of a finished request, and its turn if that waits."""
        if self._path is None:
            return
        self.results[key] = response, pending
        waits = {} if pending is None else {"pending": pending.to_json()}
        self._append({"result": key, "response": response_to_dict(response), **waits})

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
        """Append a line, in one write, so that a crash damages the last line at most.

        An error is only logged: the answer has been paid for, and its consumer shall get it.
        """
        if self._path is None:
            return
        line = dumps({"v": _VERSION, **to_stored(entry)}) + b"\n"
        problem = "the disk is full"
        try:
            with self._lock, self._path.open("ab", buffering=0) as file:
                begin = file.tell()
                line = line if begin else _HEADER + line  # it may have been deleted meanwhile
                if file.write(line) == len(line):
                    os.fsync(file.fileno())
                    return
                file.truncate(begin)
        except OSError as error:
            problem = str(error)
        _log.warning("answer not recorded in the journal", path=str(self._path), problem=problem)

    def _open(self, path: Path) -> None:
        """Create the journal, or read it, and remove a line that a crash has cut off.

        A file that does not begin like a journal is left as it is.

        Raises:
            UsageError: It is no journal, or cannot be opened for writing.
        """
        try:
            with path.open("a+b") as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    msg = f"the journal must be a file, and {path} is something else"
                    raise UsageError(msg)
                file.seek(0)
                content = file.read()
                complete = content[: content.rfind(b"\n") + 1]
                if not content.startswith(_HEADER) and not _HEADER.startswith(content):
                    msg = f"{path} is not the journal of a batch"
                    raise UsageError(msg)
                self._read(complete)
                file.truncate(len(complete))
                if not complete:
                    file.write(_HEADER)
        except OSError as error:
            msg = f"the journal cannot be written: {error}"
            raise UsageError(msg) from error

    def _read(self, complete: bytes) -> None:
        for number, line in enumerate(complete.splitlines()[1:], 2):
            try:
                self._restore(loads(line))
            except (ValueError, LookupError, TypeError, AttributeError) as error:
                msg = f"{self._path} is not the journal of a batch: line {number} is none of its"
                raise UsageError(msg) from error

    def _restore(self, entry: dict[str, Any]) -> None:
        if entry["v"] != _VERSION:
            msg = f"version {entry['v']} is unknown"
            raise ValueError(msg)
        if "result" in entry:
            pending = entry.get("pending")
            turn = None if pending is None else PendingTurn.from_json(pending)
            response = response_from_dict(from_stored(entry["response"]))
            self.results[entry["result"]] = response, turn
        elif "batch" in entry:
            self.batches[entry["batch"]] = entry["keys"]
        else:
            self.batches.pop(entry["ended"], None)
            self.answers.update(entry["answers"])
