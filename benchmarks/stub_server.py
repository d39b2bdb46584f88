"""A Chat Completions server for benchmarks: raw asyncio, fixed answers, its own process.

Run as a script it prints its port and serves until its standard input closes. The path says what
is wanted, after `/v1`: `/plain`, `/rounds/20` (tool calls for 20 rounds, then an answer),
`/parallel/8` (8 calls at once, then an answer), `/stream/1000` (that many chunks),
`/slow/100` (an answer after that many milliseconds).
"""

import asyncio
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from subprocess import PIPE, Popen
from typing import Any


def completion(message: dict[str, Any], reason: str) -> bytes:
    """Return a complete answer."""
    return json.dumps(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1,
            "model": "stub",
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", **message},
                    "finish_reason": reason,
                    "logprobs": None,
                }
            ],
            "usage": {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120},
        }
    ).encode()


def calls(count: int, start: int = 0) -> bytes:
    """Return an answer with *count* tool calls, whose arguments start at *start*."""
    asked = [
        {
            "id": f"call_{n}",
            "type": "function",
            "function": {"name": "add", "arguments": json.dumps({"a": n, "b": 2})},
        }
        for n in range(start, start + count)
    ]
    return completion({"content": None, "tool_calls": asked}, "tool_calls")


def stream(count: int) -> bytes:
    """Return a stream of *count* chunks of text."""
    head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "stub"}
    lines: list[str] = []
    for n in range(count):
        choice = {"index": 0, "delta": {"content": f"word{n} "}, "finish_reason": None}
        lines.append("data: " + json.dumps({**head, "choices": [choice]}))
    end = {"index": 0, "delta": {}, "finish_reason": "stop"}
    lines.append("data: " + json.dumps({**head, "choices": [end]}))
    usage = {"prompt_tokens": 1, "completion_tokens": count, "total_tokens": count + 1}
    lines.append("data: " + json.dumps({**head, "choices": [], "usage": usage}))
    return ("\n\n".join([*lines, "data: [DONE]"]) + "\n\n").encode()


ANSWER = completion({"content": "The answer is 42."}, "stop")
STREAMS: dict[int, bytes] = {}


async def respond(path: str, body: bytes) -> tuple[bytes, bytes]:
    """Return the content type and the body of an answer."""
    _, _, kind, *rest = path.split("/")
    number = int(rest[0]) if rest and rest[0].isdigit() else 0
    done = body.count(b'"role":"tool"') + body.count(b'"role": "tool"')
    if kind == "rounds" and done < number:
        return b"application/json", calls(1, start=done)
    if kind == "parallel" and done == 0:
        return b"application/json", calls(number)
    if kind == "stream":
        return b"text/event-stream", STREAMS.setdefault(number, stream(number))
    if kind == "slow":
        await asyncio.sleep(number / 1000)
    return b"application/json", ANSWER


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer the requests of one connection."""
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            lines = head.decode("latin-1").split("\r\n")
            length = next(
                (int(x.split(":")[1]) for x in lines if x.lower().startswith("content-length")), 0
            )
            body = await reader.readexactly(length)
            kind, answer = await respond(lines[0].split(" ")[1], body)
            writer.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b"
                % (kind, len(answer), answer)
            )
            await writer.drain()
    except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
        pass  # the client, or the benchmark, is done
    finally:
        writer.close()


async def main() -> None:
    """Serve until standard input closes."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=2**26, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


@contextmanager
def running() -> Iterator[str]:
    """Run the server in a subprocess and yield its base URL."""
    with Popen([sys.executable, __file__], stdin=PIPE, stdout=PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
        finally:
            process.stdin.close()


if __name__ == "__main__":
    asyncio.run(main())
