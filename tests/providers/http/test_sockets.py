"""Connections return to the pool or are closed at the end of every request."""

import asyncio
import gzip
import json
import random
import ssl
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme

from chatclient.errors import InvalidResponseError
from chatclient.providers.http.body import shielded_stream
from chatclient.providers.http.connections import Connections
from chatclient.providers.openai.chat import OpenAIChatModel
from tests.support.examples import some

REQUESTS = 50
MAX_IDLE = 8  # sockets of idle connections, of client and server
WORDS = [json.dumps({"id": "r", "choices": [{"delta": {"content": word}}]}) for word in "abcd"]
END = json.dumps({"id": "r", "choices": [{"delta": {}, "finish_reason": "stop"}]})
EVENTS = b"".join(f"data: {event}\n\n".encode() for event in [*WORDS, END, "[DONE]"])


@asynccontextmanager
async def server(
    *, encoding: str = "", at_once: bool = False, tls: ssl.SSLContext | None = None
) -> AsyncIterator[str]:
    """Yield the address of a server that streams the same answer to each request, in pieces."""
    compressions: dict[str, Callable[[bytes], bytes]] = {
        "gzip": gzip.compress,
        "deflate": zlib.compress,
    }
    compress = compressions.get(encoding, bytes)
    body = compress(EVENTS)
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n"
    head += f"content-encoding: {encoding}\r\n\r\n".encode() if encoding else b"\r\n"
    writers: list[asyncio.StreamWriter] = []
    size_of_pieces = len(body) if at_once else 60

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        with suppress(asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
            while True:
                request = await reader.readuntil(b"\r\n\r\n")
                [size] = [
                    int(line.split(b":")[1])
                    for line in request.lower().split(b"\r\n")
                    if line.startswith(b"content-length")
                ]
                await reader.readexactly(size)
                writer.write(head)
                for at in range(0, len(body), size_of_pieces):
                    piece = body[at : at + size_of_pieces]
                    writer.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
                    await writer.drain()
                    await asyncio.sleep(0)
                writer.write(b"0\r\n\r\n")
                await writer.drain()
        writer.close()

    started = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=tls)
    scheme = "http" if tls is None else "https"
    try:
        yield f"{scheme}://127.0.0.1:{started.sockets[0].getsockname()[1]}/v1"
    finally:
        started.close()
        for writer in writers:
            writer.close()


def sockets() -> int:
    """Return how many sockets this process has open."""
    count = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            count += str(descriptor.readlink()).startswith("socket:")
    return count


async def close_after_last_chunk(model: Any) -> None:
    """Close a stream after its last chunk."""
    stream = model.astream("x")
    async for chunk in stream:
        if chunk.text.endswith("d"):
            break
    for _ in range(random.randrange(12)):
        await asyncio.sleep(0)
    await stream.aclose()


async def close_after_first_chunk(model: Any) -> None:
    """Close a stream after its first chunk."""
    stream = model.astream("x")
    await anext(stream)
    await stream.aclose()


async def drop(model: Any) -> None:
    """Drop a stream without closing it."""
    await anext(model.astream("x"))
    await asyncio.sleep(0.002)


async def consume(model: Any) -> None:
    async for _ in model.astream("x"):
        pass


async def cancel(model: Any) -> None:
    """Cancel a request at a random time."""
    task = asyncio.ensure_future(consume(model))
    await asyncio.sleep(random.uniform(0, 0.012))
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def cancel_twice(model: Any) -> None:
    """Cancel a request again during its cleanup."""
    task = asyncio.ensure_future(consume(model))
    await asyncio.sleep(random.uniform(0, 0.012))
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def cancel_at_the_end(model: Any) -> None:
    """Cancel a request some loop iterations after its last chunk."""
    last = asyncio.Event()

    async def read() -> None:
        async for chunk in model.astream("x"):
            if chunk.text.endswith("d"):
                last.set()

    task = asyncio.ensure_future(read())
    await last.wait()
    for _ in range(random.randrange(12)):
        await asyncio.sleep(0)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def expire(model: Any) -> None:
    """Let a time-out cancel a request at a random time."""
    with suppress(TimeoutError):
        async with asyncio.timeout(random.uniform(0, 0.012)):
            await consume(model)


async def cancel_blocking_answer(model: Any) -> None:
    """Cancel a request without streaming whose answer is not readable."""
    task = asyncio.ensure_future(model.acall("x"))
    await asyncio.sleep(random.uniform(0, 0.012))
    task.cancel()
    with suppress(asyncio.CancelledError, Exception):
        await task


async def leaked_sockets(model: Any, use: Callable[[Any], Awaitable[None]]) -> int:
    """Return how many additional sockets are open after many requests."""
    await consume(model)
    before = sockets()
    for _ in range(REQUESTS):
        await use(model)
    await asyncio.sleep(0.05)
    return sockets() - before


ENDINGS = [
    close_after_last_chunk,
    close_after_first_chunk,
    cancel,
    cancel_at_the_end,
    cancel_twice,
    expire,
    cancel_blocking_answer,
    drop,
]


ANSWERS: dict[str, dict[str, Any]] = {
    "pieces": {},
    "gzip": {"encoding": "gzip"},
    "deflate": {"encoding": "deflate"},
    "at once": {"at_once": True},
}
CASES = [("httpx", answer, use) for answer in ANSWERS for use in ENDINGS]
CASES += [
    (library, "at once", use)
    for library in ("httpx2", "aiohttp")
    for use in (close_after_first_chunk, cancel_at_the_end, cancel_twice, drop)
]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("library", "answer", "use"), CASES)
async def test_ended_request_leaks_no_connection(
    library: str,
    use: Callable[[Any], Awaitable[None]],
    answer: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Closed, cancelled or expired requests close or reuse their socket."""
    pytest.importorskip("httpx_aiohttp" if library == "aiohttp" else library)
    monkeypatch.setenv("CHATCLIENT_HTTP", library)
    async with (
        server(**ANSWERS[answer]) as url,
        OpenAIChatModel(model="m", api_key="k", base_url=url, max_retries=0) as model,
    ):
        assert await leaked_sockets(model, use) <= MAX_IDLE


async def ask(model: Any) -> None:
    """Ask without streaming; the answer cannot be read."""
    with suppress(InvalidResponseError):
        await model.acall("x")


def unfinished_connections(model: Any) -> list[str]:
    """Return the connections of *model* that are neither idle nor closed."""
    [pools] = model._http._pools._loops.values()
    return [
        str(connection)
        for shard in pools.shards
        for connection in shard.transport._pool.connections
        if not (connection.is_idle() or connection.is_closed())
    ]


ANYIO = tuple(map(int, version("anyio").split(".")[:2]))
closed_while_opened = pytest.mark.skipif(
    ANYIO < (4, 16), reason="older anyio leaves a cancelled connection to garbage collection"
)


@closed_while_opened
@pytest.mark.parametrize("again", [None, 0, 1, 2])
@pytest.mark.parametrize("use", [ask, consume])
@pytest.mark.parametrize("library", ["httpx", "httpx2"])
async def test_cancellation_at_any_step_leaks_no_connection(
    library: str,
    use: Callable[[Any], Awaitable[None]],
    again: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not even if the request is cancelled again some steps later."""
    pytest.importorskip(library)
    monkeypatch.setenv("CHATCLIENT_HTTP", library)
    async with server() as url:
        for steps in some(range(70)):
            model = OpenAIChatModel("m", api_key="k", base_url=url, max_retries=0)
            await model._http._pools.on_loop()
            task = asyncio.ensure_future(use(model))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            if again is not None:
                for _ in range(again):
                    await asyncio.sleep(0)
                task.cancel()
            with suppress(asyncio.CancelledError):
                await task

            assert unfinished_connections(model) == [], steps
            await model.aclose()


@closed_while_opened
@pytest.mark.parametrize(
    "use", [close_after_first_chunk, cancel, cancel_twice, cancel_blocking_answer, drop]
)
@pytest.mark.parametrize("library", ["httpx", "httpx2", "aiohttp"])
async def test_encrypted_connections_do_not_leak(
    library: str, use: Callable[[Any], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cancellation may interrupt the handshake."""
    pytest.importorskip("httpx_aiohttp" if library == "aiohttp" else library)
    monkeypatch.setenv("CHATCLIENT_HTTP", library)
    authority = trustme.CA()
    served = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(served)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    connections = Connections(tls=trusting)
    async with (
        server(tls=served) as url,
        OpenAIChatModel("m", api_key="k", base_url=url, http_client=connections) as model,
    ):
        assert await leaked_sockets(model, use) <= MAX_IDLE


@pytest.mark.parametrize(
    "use", [close_after_first_chunk, cancel, cancel_at_the_end, cancel_twice, drop]
)
async def test_custom_client_over_aiohttp_leaks_no_connection(
    use: Callable[[Any], Awaitable[None]],
) -> None:
    """A client of httpx over aiohttp's connections, made by the application."""
    transport = pytest.importorskip("httpx_aiohttp").AiohttpTransport()
    async with server() as url, httpx.AsyncClient(transport=transport) as client:
        model = OpenAIChatModel("m", api_key="k", base_url=url, max_retries=0, http_client=client)

        assert await leaked_sockets(model, use) <= MAX_IDLE


@closed_while_opened
@pytest.mark.parametrize("use", [close_after_last_chunk, cancel_at_the_end, cancel_twice, drop])
@pytest.mark.parametrize("library", ["httpx", "httpx2"])
async def test_custom_client_leaks_no_connection(
    library: str, use: Callable[[Any], Awaitable[None]]
) -> None:
    """A given HTTP client leaks no connections either."""
    kind = pytest.importorskip(library).AsyncClient
    async with server(at_once=True) as url, kind() as client:
        model = OpenAIChatModel(
            model="m", api_key="k", base_url=url, max_retries=0, http_client=client
        )

        assert await leaked_sockets(model, use) <= MAX_IDLE


@pytest.mark.parametrize("library", ["httpx", "httpx2"])
async def test_abandoned_blocking_stream_is_closed(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closing or dropping the iterator closes the connection."""
    pytest.importorskip(library)
    monkeypatch.setenv("CHATCLIENT_HTTP", library)

    def abandon(model: OpenAIChatModel) -> None:
        for at in range(REQUESTS // 2):
            stream = model.stream("x")
            next(stream)
            if at % 2:
                stream.close()

    async with server() as url:
        model = OpenAIChatModel(model="m", api_key="k", base_url=url, max_retries=0)
        before = sockets()
        await asyncio.to_thread(abandon, model)
        await asyncio.sleep(0.05)

        assert sockets() - before <= MAX_IDLE
        model.close()


async def test_close_failure_keeps_the_cancellation() -> None:
    """A failure during close is the cause of the cancellation."""
    closing = asyncio.Event()

    class Body(httpx.AsyncByteStream):
        async def aclose(self) -> None:
            closing.set()
            await asyncio.sleep(0.01)
            raise OSError

    task = asyncio.ensure_future(shielded_stream(Body()).aclose())
    await closing.wait()
    task.cancel()

    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    assert isinstance(caught.value.__cause__, OSError)
    with pytest.raises(OSError):  # noqa: PT011
        await shielded_stream(Body()).aclose()
