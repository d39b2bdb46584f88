"""Growth of CPU time with the size of requests and answers, for all providers.

    python benchmarks/scaling.py [--base 500] [--doublings 4] [--repeat 3] [--only openai text]

A server on this machine sends answers of doubling size to a `ChatClient`: complete answers,
streams, and streams in pieces of 48 bytes. The exponent is the slope of a line through the
logarithms of size and CPU time of the client's thread: 1 is linear, 2 is quadratic. Each time is
the shortest of several. The exit code is 1 if an exponent is greater than 1.1.
"""

import argparse
import asyncio
import gc
import math
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from functools import cache
from typing import Any, NamedTuple

from scaling_answers import PROVIDERS, Answer, Provider

from chatclient import ChatClient, Media, UserMessage
from chatclient.errors import ProviderError
from chatclient.tools import FunctionToolCallback, ToolCallingManager, ToolLimits

LIMIT = 1.1
ATTEMPTS = 3  # another run may have disturbed the measurement
KINDS = ("text", "reasoning", "calls", "fragments", "images", "usage", "errors", "history", "tools")
PIECE = 48  # bytes
PLAIN = ("text", "reasoning", "fragments")
LARGE = 64  # complete answers of these kinds are larger, as they take less time than the request


class AnswerServer:
    """A server that sends the same bytes in response to each request.

    It runs in a thread; the benchmark measures the CPU time of the client's thread.
    """

    def __init__(self) -> None:
        self.answers: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/v1"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with closing(connection), connection.makefile("rb") as received, suppress(OSError):
            while line := received.readline():
                size = 0
                while line != b"\r\n":
                    name, _, value = line.lower().partition(b":")
                    size = int(value) if name == b"content-length" else size
                    line = received.readline()
                received.read(size)
                connection.sendall(self.answers.pop(0))


def http_response(answer: Answer, piece: int) -> bytes:
    """Return the response with *answer*; in chunks of *piece* bytes, or complete if it is 0."""
    head = b"HTTP/1.1 %d Reason\r\ncontent-type: %b\r\n" % (answer.status, answer.kind.encode())
    if not piece:
        return b"%bcontent-length: %d\r\n\r\n%b" % (head, len(answer.body), answer.body)
    pieces = (answer.body[at : at + piece] for at in range(0, len(answer.body), piece))
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in pieces)
    return head + b"transfer-encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"


class Job(NamedTuple):
    """A request that is measured; `delivery` is `whole`, `stream` or `pieces`."""

    provider: Provider
    kind: str
    delivery: str
    mode: str


def add(number: int) -> int:
    """Add one to a number.

    Args:
        number: The number.
    """
    return number + 1


@cache
def tool(at: int) -> FunctionToolCallback:
    """Return a tool with a name of its own; creating it takes longer than a request."""
    return FunctionToolCallback(add, name=f"add_{at}")


UNLIMITED = ToolLimits(max_calls_per_tool=None, max_total_calls=None, max_repeats=None)
IMAGE = Media("image/png", b"\x89PNG" + bytes(2000))


class Measurement:
    """Runs one job at several sizes."""

    def __init__(self, job: Job, server: AnswerServer) -> None:
        self._job = job
        self._server = server
        manager = ToolCallingManager(limits=UNLIMITED)
        builder = ChatClient.builder(job.provider.model(server.url))
        self._client = builder.tool_calling_manager(manager).build()

    def seconds(self, size: int) -> float:
        """Return the CPU time of the request with *size* pieces."""
        job = self._job
        streamed = job.delivery != "whole"
        pieces = size * LARGE if job.kind in PLAIN and not streamed else size
        answers = [job.provider.answer(job.kind, pieces, streamed=streamed)]
        if job.kind == "calls":  # the answer after the tools
            answers.append(job.provider.answer("text", 1, streamed=streamed))
        piece = {"whole": 0, "stream": 2**16, "pieces": PIECE}[job.delivery]
        self._server.answers[:] = [http_response(answer, piece) for answer in answers]
        request = self._request(size)
        gc.collect()
        gc.disable()
        try:
            if job.mode == "async":
                return asyncio.run(self._run_async(request, streamed=streamed))
            return self._run(request, streamed=streamed)
        finally:
            gc.enable()

    def _request(self, size: int) -> Any:
        request, kind = self._client.prompt(), self._job.kind
        if kind == "images":
            return request.messages(UserMessage("Look.", media=[IMAGE] * (size // 4)))
        if kind == "history":
            return request.messages(*[UserMessage(f"Question {at}?") for at in range(size)])
        request = request.user("Hello")
        if kind == "tools":
            return request.tools([tool(at) for at in range(size // 4)])
        if kind in ("calls", "fragments"):
            request = request.tools(add)
        return request.tool_calling(kind != "fragments")

    def _run(self, request: Any, *, streamed: bool) -> float:
        started = time.thread_time()
        with self._expected_error():
            if streamed:
                for _ in request.stream().events():
                    pass
            else:
                request.call().chat_response()
        return time.thread_time() - started

    def _expected_error(self) -> AbstractContextManager[None]:
        return suppress(ProviderError) if self._job.kind == "errors" else nullcontext()

    async def _run_async(self, request: Any, *, streamed: bool) -> float:
        started = time.thread_time()
        with self._expected_error():
            if streamed:
                async for _ in request.astream().events():
                    pass
            else:
                await request.acall().chat_response()
        return time.thread_time() - started


def exponent(times: dict[int, float]) -> float:
    """Return the slope of the line through the logarithms of sizes and times."""
    logarithms = [(math.log(size), math.log(time)) for size, time in times.items()]
    return statistics.linear_regression(*zip(*logarithms, strict=True)).slope


def measure(
    seconds: Callable[[int], float], sizes: list[int], repeat: int
) -> tuple[float, dict[int, float]]:
    """Return the exponent and the shortest time for each size."""
    seconds(sizes[0])
    times = dict.fromkeys(sizes, float("inf"))
    for _ in range(ATTEMPTS):
        for _ in range(repeat):
            for size in sizes:
                times[size] = min(times[size], seconds(size))
        if exponent(times) <= LIMIT:
            break
    return exponent(times), times


def jobs(modes: list[str]) -> Iterator[Job]:
    """Yield all jobs."""
    for provider in PROVIDERS:
        for kind in KINDS:
            for delivery in ("whole", "stream", "pieces"):
                for mode in modes:
                    if not (kind in ("images", "history", "tools") and delivery == "pieces"):
                        yield Job(provider, kind, delivery, mode)


def main() -> None:
    """Print a row for each job."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--base", type=int, default=500, help="the smallest number of pieces")
    parser.add_argument("--doublings", type=int, default=4)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--mode", choices=["blocking", "async"], action="append")
    parser.add_argument("--only", nargs="+", default=[], help="providers, kinds and deliveries")
    arguments = parser.parse_args()
    sizes = [arguments.base << at for at in range(arguments.doublings + 1)]
    server = AnswerServer()
    print(f"{'provider':12} {'kind':10} {'delivery':9} {'mode':9} {'largest':>10} {'exponent':>9}")
    failed = 0
    for job in jobs(arguments.mode or ["blocking"]):
        names = {job.provider.name, job.kind, job.delivery}
        if not names.issuperset(arguments.only):
            continue
        slope, times = measure(Measurement(job, server).seconds, sizes, arguments.repeat)
        mark = " superlinear" if slope > LIMIT else ""
        row = f"{job.provider.name:12} {job.kind:10} {job.delivery:9} {job.mode:9}"
        print(f"{row} {times[sizes[-1]] * 1e3:7.1f} ms {slope:9.2f}{mark}", flush=True)
        failed += slope > LIMIT
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
