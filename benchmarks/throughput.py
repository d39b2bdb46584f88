"""Requests per second of one process, if the server needs 100 ms for each.

    python benchmarks/throughput.py [--seconds 4] [--concurrency 200]

200 tasks ask a stub server in a process of its own, which answers after 100 ms; so 2,000 requests
a second is the most there could be. Each way runs in a process of its own, one after the other.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable

from stub_server import running

WAYS = {
    "plain httpx": ("httpx", "by hand"),
    "plain httpx2": ("httpx2", "by hand"),
    "chatclient over httpx": ("httpx", "chatclient"),
    "chatclient over httpx2": ("httpx2", "chatclient"),
    "chatclient over aiohttp": ("aiohttp", "chatclient"),
}


def by_hand(library: str, url: str) -> Callable[[], Awaitable[object]]:
    """Return a function that sends a request with a plain client."""
    import importlib

    httpx = importlib.import_module(library)
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    client = httpx.AsyncClient(timeout=60, limits=limits)
    body = {"model": "stub", "messages": [{"role": "user", "content": "What is 1 + 2?"}]}

    async def ask() -> object:
        response = await client.post(f"{url}/chat/completions", json=body)
        return response.json()["choices"][0]["message"]["content"]

    return ask


def by_us(url: str) -> Callable[[], Awaitable[object]]:
    """Return a function that sends a request with a `ChatClient`."""
    from chatclient import ChatClient
    from chatclient.providers import OpenAIChatModel

    client = ChatClient.create(OpenAIChatModel("stub", api_key="test", base_url=url))
    return lambda: client.prompt("What is 1 + 2?").acall().content()


async def load(ask: Callable[[], Awaitable[object]], seconds: float, tasks: int) -> list[float]:
    """Return requests per second and CPU milliseconds per request."""
    done = 0
    end = time.perf_counter() + seconds

    async def work() -> None:
        nonlocal done
        while time.perf_counter() < end:
            await ask()
            done += 1

    await ask()
    started, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(work() for _ in range(tasks)))
    elapsed = time.perf_counter() - started
    return [done / elapsed, (time.process_time() - cpu) / done * 1e3]


def main() -> None:
    """Print a row for each client."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--concurrency", type=int, default=200)
    parser.add_argument("--way", choices=list(WAYS), help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.way:
        library, how = WAYS[arguments.way]
        url = f"{arguments.url}/slow/100"
        ask = by_us(url) if how == "chatclient" else by_hand(library, url)
        print(json.dumps(asyncio.run(load(ask, arguments.seconds, arguments.concurrency))))
        return
    print(f"{'way':26} {'requests/s':>11} {'CPU/request':>12}")
    with running() as url:
        for way, (library, _) in WAYS.items():
            command = [sys.executable, __file__, "--way", way, "--url", url]
            command += ["--seconds", str(arguments.seconds)]
            command += ["--concurrency", str(arguments.concurrency)]
            environment = {**os.environ, "CHATCLIENT_HTTP": library}
            run = subprocess.run(command, env=environment, capture_output=True, check=False)
            if run.returncode:
                reason = run.stderr.decode().strip().splitlines()[-1]
                print(f"{way:26} not run: {reason}")
                continue
            rate, cpu = json.loads(run.stdout)
            print(f"{way:26} {rate:11.0f} {cpu:9.2f} ms", flush=True)


if __name__ == "__main__":
    main()
