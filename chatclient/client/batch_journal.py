"""The journal of a batch, and its requests to the batch API of a provider."""

import asyncio
import hashlib
import os
import stat
from collections import Counter
from collections.abc import Coroutine, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any, TypeAlias

from chatclient._internal.json import dumps, loads
from chatclient._internal.logging import get_logger
from chatclient.chat.model import BatchAnswers, BatchApi, BatchItem
from chatclient.chat.pending_turn import PendingTurn
from chatclient.chat.response import ChatResponse
from chatclient.chat.serialization import response_from_dict, response_to_dict
from chatclient.chat.stored_values import from_stored, to_stored
from chatclient.errors import (
    AuthenticationError,
    ChatClientError,
    InvalidResponseError,
    NotFoundError,
    ProviderError,
    UsageError,
)
from chatclient.runtime.runtime import ON_LOOP, Runtime

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
                line = line if begin else _HEADER + line  # it may have been deleted since
                if file.write(line) == len(line):
                    os.fsync(file.fileno())
                    return
                # A part of a line would damage the journal for the next line.
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


_LONGEST_WAIT = 60.0  # seconds between two polls
_MOST_FAILURES = 10  # of polls in succession
_MORE_BYTES = 300  # of a request in a batch, besides its body


class BatchQueue:
    """Answers requests through a batch API; belongs to one event loop.

    Requests that arrive within `collect_seconds` of each other are submitted as one batch. The
    next round of a tool loop is another request, and so part of another batch.

    Args:
        journal: Records what was submitted and answered.
        collect_seconds: Seconds without a new request after which a batch is submitted.
        poll_seconds: Seconds between the first polls for the answers; later ones are rarer.
    """

    def __init__(
        self, journal: BatchJournal, *, collect_seconds: float, poll_seconds: float
    ) -> None:
        self.api: BatchApi
        self._journal = journal
        self._collect_seconds = collect_seconds
        self._poll_seconds = poll_seconds
        self._seen: Counter[str] = Counter()
        self._items: dict[str, list[BatchItem]] = {}
        self._sizes: Counter[str] = Counter()  # of the items
        self._answers: dict[str, asyncio.Future[bytes]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def resume(self) -> None:
        """Wait for the batches in the journal that had no answers."""
        for batch_id, keys in list(self._journal.batches.items()):
            for key in keys:
                self._future(key)
            self._start(keys, self._wait(batch_id, keys))

    async def send(
        self, path: str, body: bytes, headers: Mapping[str, str], _runtime: Runtime
    ) -> bytes:
        """Return the JSON of the response to a request.

        Raises:
            ProviderError: The provider failed to answer it.
        """
        digest = hashlib.blake2b(path.encode() + b"\0" + body, digest_size=16).hexdigest()
        self._seen[digest] += 1
        key = f"{digest}-{self._seen[digest]}"
        if (answer := self._journal.answers.get(key)) is not None:
            return answer.encode()
        recorded = key in self._answers
        future = self._future(key)
        if not recorded:
            item = BatchItem(key, path, body, headers)
            size = len(item.body) + _MORE_BYTES
            # Before the item is added, which would make the batch too large.
            if self._sizes[item.path] + size > self.api.max_bytes:
                self._submit_collected()
            items = self._items.setdefault(item.path, [])
            items.append(item)
            self._sizes[item.path] += size
            if self._timer is not None:
                self._timer.cancel()
            if len(items) >= self.api.max_requests:
                self._submit_collected()
            else:
                loop = asyncio.get_running_loop()
                self._timer = loop.call_later(self._collect_seconds, self._submit_collected)
        return await future

    async def aclose(self) -> None:
        """Stop waiting; submitted batches continue."""
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def cancel(self) -> None:
        """Cancel the submitted batches."""
        for batch_id in list(self._journal.batches):
            with suppress(ProviderError):  # it may have ended
                await self.api.cancel(batch_id, ON_LOOP)

    def _future(self, key: str) -> "asyncio.Future[bytes]":
        if key not in self._answers:
            self._answers[key] = asyncio.get_running_loop().create_future()
        return self._answers[key]

    def _submit_collected(self) -> None:
        collected, self._items = self._items, {}
        self._sizes.clear()
        for items in collected.values():
            keys = [item.key for item in items]
            self._start(keys, self._submit(items, keys))

    def _start(self, keys: list[str], coroutine: Coroutine[Any, Any, None]) -> None:
        """Run *coroutine*, which answers the requests *keys*; an error is that of each of them."""

        async def run() -> None:
            try:
                await coroutine
            except Exception as error:  # noqa: BLE001 - raised in each of the requests
                self._fail(keys, error)

        task = asyncio.get_running_loop().create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _submit(self, items: list[BatchItem], keys: list[str]) -> None:
        batch_id = await self.api.submit(items, ON_LOOP)
        # Before anything else: without the id, a restart would submit and pay for the batch again.
        self._journal.add_batch(batch_id, keys)
        _log.info("batch submitted", batch=batch_id, requests=len(keys))
        await self._wait(batch_id, keys)

    async def _wait(self, batch_id: str, keys: list[str]) -> None:
        try:
            answers = await self._poll(batch_id)
        except ProviderError as error:
            # After an error that may pass, the batch stays in the journal, to be fetched later.
            if not error.retryable and not isinstance(error, AuthenticationError):
                self._journal.end_batch(batch_id, {})
            raise
        found = {key: answers.get(key, answers.get(at)) for at, key in enumerate(keys)}
        texts = {key: body.decode() for key, body in found.items() if isinstance(body, bytes)}
        # Before the requests continue, so that a crash in one of them loses no answer.
        self._journal.end_batch(batch_id, texts)
        for key, answer in found.items():
            if isinstance(answer, bytes):
                future = self._future(key)
                if not future.done():
                    future.set_result(answer)
            else:
                self._fail([key], answer or _missing(batch_id))

    async def _poll(self, batch_id: str) -> BatchAnswers:
        """Return the answers of a batch when it has ended.

        A batch takes hours, in which the service may be out of reach for a while. Some do not know
        a batch that has just been created, or have no answers yet when it has ended.
        """
        seconds, failures = self._poll_seconds, 0
        while True:
            try:
                answers = await self.api.answers(batch_id, ON_LOOP)
            except ProviderError as error:
                failures += 1
                passes = error.retryable or isinstance(error, NotFoundError)
                if not passes or failures == _MOST_FAILURES:
                    raise
                _log.warning("batch not polled", batch=batch_id, error=type(error).__name__)
            else:
                failures = 0 if answers is None else failures + 1
                if answers or failures == _MOST_FAILURES:
                    return answers or {}
            await asyncio.sleep(seconds)
            seconds = min(seconds * 1.5, max(_LONGEST_WAIT, self._poll_seconds))

    def _fail(self, keys: list[str], error: Exception) -> None:
        for key in keys:
            future = self._future(key)
            if not future.done():
                future.set_exception(error)
                future.exception()  # its waiter may be gone


def _missing(batch_id: str) -> ChatClientError:
    msg = f"the answers of batch {batch_id} lack this request"
    return InvalidResponseError(msg, provider="")
