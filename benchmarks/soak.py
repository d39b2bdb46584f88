"""Open files and memory under faults, abandoned streams and cancellations.

    python benchmarks/soak.py [--minutes 10] [--tasks 50] [--library httpx httpx2 aiohttp]

Tasks of one event loop, and a few threads with blocking requests, talk to a server in a process of
its own that answers, breaks off, stalls, refuses or sends nonsense. Each library runs in a process
of its own. A row is printed at the start, several times during the run, and at the end, when all
tasks have ended. The exit code is 1 if open files, memory, tasks or threads have grown.
"""

import argparse
import asyncio
import collections
import gc
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any, NamedTuple

LIBRARIES = ("httpx", "httpx2", "aiohttp")
ROWS = 10
WARM_UP = 0.2  # of the time, after which memory is compared
MORE_FILES = 4
MORE_MEMORY = 1.10
BLOCKING_THREADS = 2

WORDS = [
    json.dumps({"id": "r", "choices": [{"delta": {"content": f"word {n}"}}]}) for n in range(9)
]
END = json.dumps({"id": "r", "choices": [{"delta": {}, "finish_reason": "stop"}]})
EVENTS = [f"data: {event}\n\n".encode() for event in [*WORDS, END, "[DONE]"]]
MESSAGE = {"role": "assistant", "content": "The answer is 42."}
CHOICE = {"index": 0, "message": MESSAGE, "finish_reason": "stop"}
ANSWER = json.dumps({"id": "r", "choices": [CHOICE]}).encode()
FAULTS = ("reset", "stall", "error", "nonsense", "short")


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer the requests of one connection, a third of them with a fault."""
    try:
        while await answer(await read_request(reader), writer):
            pass
    except (asyncio.IncompleteReadError, ConnectionError):
        pass  # the client has hung up
    finally:
        writer.close()


async def read_request(reader: asyncio.StreamReader) -> bytes:
    """Return the body of the next request."""
    head = await reader.readuntil(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    [size] = [int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length")]
    return await reader.readexactly(size)


async def answer(request: bytes, writer: asyncio.StreamWriter) -> bool:
    """Send an answer; return whether the connection can be used again."""
    fault = random.choice(FAULTS) if random.random() < 1 / 3 else None
    if fault == "error":
        status = random.choice([400, 429, 500, 503])
        body = b'{"error": {"message": "no"}}'
        writer.write(b"HTTP/1.1 %d No\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body))
        return True
    pieces = EVENTS if b'"stream":true' in request else [ANSWER[:20], ANSWER[20:]]
    if fault == "nonsense":
        pieces = [b"data: {]\n\n", *pieces]
    kind = b"text/event-stream" if pieces[-1] == EVENTS[-1] else b"application/json"
    writer.write(
        b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ntransfer-encoding: chunked\r\n\r\n" % kind
    )
    breaks_at = random.randrange(len(pieces)) if fault else -1
    for at, piece in enumerate(pieces):
        if at == breaks_at and fault == "reset":
            writer.transport.abort()
            return False
        if at == breaks_at and fault == "short":
            return False
        if at == breaks_at and fault == "stall":
            await asyncio.sleep(2)
        writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        await writer.drain()
        await asyncio.sleep(random.choice([0, 0, 0.001, 0.005]))
    writer.write(b"0\r\n\r\n")
    await writer.drain()
    return True


async def run_server() -> None:
    """Print the port and serve until standard input closes."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


@contextmanager
def running_server() -> Iterator[str]:
    """Run the server in a subprocess and yield its base URL."""
    with Popen([sys.executable, __file__, "--serve"], stdin=PIPE, stdout=PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
        finally:
            process.stdin.close()


class Usage(NamedTuple):
    """What the process uses."""

    files: int
    megabytes: float
    tasks: int
    threads: int


def usage() -> Usage:
    """Return what the process uses now."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    megabytes = pages * os.sysconf("SC_PAGE_SIZE") / 2**20
    files = len(list(Path("/proc/self/fd").iterdir()))
    return Usage(files, megabytes, len(asyncio.all_tasks()), threading.active_count())


async def call(client: Any) -> None:
    """Ask and wait for the answer."""
    await client.prompt("Hello").acall().content()


async def stream(client: Any) -> None:
    """Read a stream to its end."""
    async for _ in client.prompt("Hello").astream().content():
        pass


async def leave(client: Any) -> None:
    """Close a stream after its first word."""
    async with client.prompt("Hello").astream().content() as words:
        await anext(words)


async def drop(client: Any) -> None:
    """Drop a stream after its first word."""
    await anext(client.prompt("Hello").astream().content())


async def cancel(client: Any) -> None:
    """Cancel a request once or twice at any moment."""
    task = asyncio.ensure_future(random.choice([call, stream, ask_model])(client))
    await asyncio.sleep(random.uniform(0, 0.03))
    for _ in range(random.choice([1, 2])):
        task.cancel()
        for _ in range(random.randrange(4)):
            await asyncio.sleep(0)
    with suppress(asyncio.CancelledError):
        await task


async def expire(client: Any) -> None:
    """Let a time-out cancel a request at any moment."""
    async with asyncio.timeout(random.uniform(0, 0.03)):
        await random.choice([call, stream])(client)


async def ask_model(client: Any) -> None:
    """Ask the model without a client's request around it."""
    await client.model.acall("Hello")


WAYS: tuple[Callable[[Any], Awaitable[None]], ...] = (
    *(call, stream, leave, drop, cancel, expire, ask_model),
)


class Soak:
    """Sends requests until its time is up, and counts how they end."""

    def __init__(self, client: Any, seconds: float) -> None:
        self._client = client
        self._end = time.monotonic() + seconds
        self.outcomes: collections.Counter[str] = collections.Counter()

    async def work(self) -> None:
        """Send asynchronous requests."""
        from chatclient.errors import ChatClientError

        while time.monotonic() < self._end:
            way = random.choice(WAYS)
            try:
                await way(self._client)
                self.outcomes[way.__name__] += 1
            except (ChatClientError, TimeoutError) as error:
                self.outcomes[type(error).__name__] += 1

    def work_blocking(self) -> None:
        """Send blocking requests; some streams are left or dropped."""
        from chatclient.errors import ChatClientError

        while time.monotonic() < self._end:
            try:
                words = self._client.prompt("Hello").stream().content()
                for _ in range(random.randrange(12)):
                    next(words, None)
                if random.random() < 1 / 2:
                    words.close()
                self._client.prompt("Hello").call().content()
                self.outcomes["blocking"] += 1
            except ChatClientError as error:
                self.outcomes[type(error).__name__] += 1


async def soak(url: str, seconds: float, tasks: int) -> tuple[list[Usage], Soak]:
    """Run all tasks and return what the process used in the meantime, and at the end."""
    from chatclient import ChatClient
    from chatclient.providers import OpenAIChatModel, Timeouts

    timeouts = Timeouts(read=1)
    model = OpenAIChatModel("m", api_key="k", base_url=url, timeout=timeouts, max_retries=1)
    run = Soak(ChatClient.create(model), seconds)
    rows = [usage()]
    print_row("start", rows[0])
    blocking = [asyncio.to_thread(run.work_blocking) for _ in range(BLOCKING_THREADS)]
    working = asyncio.gather(*(run.work() for _ in range(tasks)), *blocking)
    for at in range(1, ROWS + 1):
        await asyncio.sleep(seconds / (ROWS + 1))
        rows.append(usage())
        print_row(f"{seconds * at / (ROWS + 1):.0f} s", rows[-1])
    await working
    await asyncio.sleep(2)
    await model.aclose()
    await asyncio.sleep(0.5)
    rows.append(usage())
    print_row("end", rows[-1])
    return rows, run


def print_row(when: str, row: Usage) -> None:
    """Print what the process uses."""
    print(
        f"  {when:>8} {row.files:6} {row.megabytes:9.1f} {row.tasks:6} {row.threads:8}", flush=True
    )


def grown(rows: list[Usage], tasks: int) -> list[str]:
    """Return the names of what has grown, at the end or during the run."""
    first, warm, last = rows[0], rows[1 + int(ROWS * WARM_UP)], rows[-1]
    during = rows[2:-1]
    found = {
        "open files": last.files > first.files + MORE_FILES,
        # A connection for each task, and one to be closed.
        "open files during the run": max(row.files for row in during)
        > first.files + MORE_FILES + 2 * (tasks + BLOCKING_THREADS),
        "memory": last.megabytes > warm.megabytes * MORE_MEMORY,
        "tasks": last.tasks > first.tasks,
        "threads": last.threads > first.threads + BLOCKING_THREADS + 1,  # one prepares the library
    }
    return [name for name, is_true in found.items() if is_true]


def run_library(url: str, seconds: float, tasks: int) -> int:
    """Run in this process, print the result, and return the exit code."""
    problems: list[str] = []

    async def main() -> list[str]:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: problems.append(context["message"]))
        rows, run = await soak(url, seconds, tasks)
        counts = ", ".join(f"{name} {count:,}" for name, count in run.outcomes.most_common())
        print(f"  {run.outcomes.total():,} requests: {counts}")
        return grown(rows, tasks)

    growing = asyncio.run(main())
    for problem in [f"grown: {name}" for name in growing] + sorted(set(problems)):
        print(f"  {problem}")
    return 1 if growing or problems else 0


def main() -> None:
    """Run all libraries, one after the other."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10, help="for each library")
    parser.add_argument("--tasks", type=int, default=50)
    parser.add_argument("--library", nargs="+", choices=LIBRARIES, default=LIBRARIES)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        asyncio.run(run_server())
        return
    if arguments.url:
        sys.exit(run_library(arguments.url, arguments.minutes * 60, arguments.tasks))
    failed = False
    for library in arguments.library:
        print(f"{library}\n  {'':8} {'files':>6} {'MB':>9} {'tasks':>6} {'threads':>8}", flush=True)
        with running_server() as url:
            command = [sys.executable, "-W", "error::ResourceWarning", __file__, "--url", url]
            command += ["--minutes", str(arguments.minutes), "--tasks", str(arguments.tasks)]
            environment = {**os.environ, "CHATCLIENT_HTTP": library}
            failed |= bool(subprocess.run(command, env=environment, check=False).returncode)
    sys.exit(failed)


if __name__ == "__main__":
    main()
