"""The size of what a server sends is counted while it arrives."""

import json
import tracemalloc
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, repeat
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from chatclient.mcp import McpLimits, McpServer, McpToolCallbackProvider
from chatclient.testing import Ask, call
from tests.support.mcp_setup import ask_with_tools, peer
from tests.support.web_server import serving

MOST = 2**20  # bytes, of a message of the server
PIECE = "a" * 2**14
SIZES = {"small": 1, "medium": 256, "large": 4096}  # pieces, of the results of tools

Pieces = Iterable[bytes]


def plain(pieces: Pieces) -> Pieces:
    return pieces


def gzipped(pieces: Pieces) -> Pieces:
    return packed(pieces, 16 + zlib.MAX_WBITS)


def deflated(pieces: Pieces) -> Pieces:
    return packed(pieces, zlib.MAX_WBITS)


def packed(pieces: Pieces, bits: int) -> Pieces:
    packer = zlib.compressobj(wbits=bits)
    yield from map(packer.compress, pieces)
    yield packer.flush()


def event(pieces: Pieces) -> Pieces:
    return chain([b"data: "], pieces, [b"\n\n"])


JSON, EVENTS = "application/json", "text/event-stream"
FORMS: dict[str, tuple[str, str | None, Callable[[Pieces], Pieces]]] = {
    "plain": (JSON, None, plain),
    "gzip": (JSON, "gzip", gzipped),
    "deflate": (JSON, "deflate", deflated),
    "events": (EVENTS, None, event),
    "gzip of events": (EVENTS, "gzip", lambda pieces: gzipped(event(pieces))),
}
UNREADABLE: dict[str, tuple[str, str | None, Callable[[Pieces], Pieces]]] = {
    "twice": (JSON, "gzip, gzip", lambda pieces: gzipped(gzipped(pieces))),
    "brotli": (JSON, "br", plain),
    "damaged": (JSON, "gzip", plain),
}


def answer(message: dict[str, Any]) -> Pieces:
    """Return the response to a request of the protocol, in pieces."""
    info = {"name": "sizes", "version": "1"}
    version = "2025-06-18"
    result: dict[str, Any] = {"protocolVersion": version, "capabilities": {"tools": {}}}
    match message["method"]:
        case "initialize":
            result["serverInfo"] = info
        case "tools/list":
            result = {
                "tools": [{"name": name, "inputSchema": {"type": "object"}} for name in SIZES]
            }
        case _:
            result = {"content": [{"type": "text", "text": "…"}]}
    response = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result})
    start, _, end = response.partition("\\u2026")
    count = SIZES.get(message.get("params", {}).get("name"), 1)
    return (text.encode() for text in chain([start], repeat(PIECE, count), [end]))


@pytest.fixture
def served(request: pytest.FixtureRequest) -> Iterator[str]:
    """Return the URL of a server; the results of its tools have the form of the parameter."""
    content_type, encoding, pack = {**FORMS, **UNREADABLE}[request.param]
    headers = {} if encoding is None else {"content-encoding": encoding}

    async def respond(http: Request) -> Response:
        if http.method != "POST":
            return Response(status_code=405)
        message = json.loads(await http.body())
        if "id" not in message:
            return Response(status_code=202)
        if message["method"] != "tools/call":
            return Response(b"".join(answer(message)).replace(PIECE.encode(), b""), media_type=JSON)
        pieces = pack(answer(message))
        return StreamingResponse(pieces, media_type=content_type, headers=headers)

    app = Starlette(routes=[Route("/mcp", respond, methods=["GET", "POST", "DELETE"])])
    with serving(app) as address:
        yield f"{address}/mcp"


@pytest.mark.parametrize("served", FORMS, indirect=True)
def test_forms(ask: Ask, served: str) -> None:
    """Compressed and plain answers are read, as JSON and as events."""
    with McpToolCallbackProvider(McpServer.http("sizes", served)) as provider:
        result, _ = ask_with_tools(ask, provider, call("medium"), "done")

    assert result.executions[0].response.data == PIECE * SIZES["medium"]


@pytest.mark.parametrize("served", FORMS, indirect=True)
def test_large_message(ask: Ask, served: str) -> None:
    """A large message is an error that names the limit, before the memory has it."""
    server = McpServer.http("sizes", served, limits=McpLimits(message_size=MOST))
    answers = [call("large"), call("small")]
    with McpToolCallbackProvider(server) as provider:
        ask_with_tools(ask, provider, call("small"), "done")
        tracemalloc.start()
        try:
            result, _ = ask_with_tools(ask, provider, answers, "done")
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()

    large, small = result.executions
    assert "sent a message of more than 1,048,576 bytes" in str(large.error)
    assert "limits=McpLimits(message_size=...)" in str(large.error)
    assert small.response.data == PIECE
    assert peak < 24 * MOST


@pytest.mark.parametrize("served", UNREADABLE, indirect=True)
def test_unreadable_message(ask: Ask, served: str) -> None:
    """An encoding that was not asked for, several of them, and damage are an error of the tool."""
    with McpToolCallbackProvider(McpServer.http("sizes", served, timeout=20)) as provider:
        result, _ = ask_with_tools(ask, provider, [call("large"), call("small")], "done")

    assert [each.is_error for each in result.executions] == [True, True]
    assert all("did not answer in time" not in e.response.data for e in result.executions)


def test_large_line(ask: Ask) -> None:
    """A line of a process that is too long is an error; the next call begins a new process."""
    server = peer(limits=McpLimits(message_size=MOST))
    answers = [
        call("pid", id="1"),
        call("echo", f'{{{{"text": "{PIECE}", "times": 99}}}}'),
        call("pid"),
    ]
    with McpToolCallbackProvider(server) as provider:
        result, _ = ask_with_tools(ask, provider, *answers, "done")

    first, large, second = result.executions
    assert "sent a message of more than 1,048,576 bytes" in str(large.error)
    assert first.response.data != second.response.data


def test_long_lines(ask: Ask) -> None:
    """Lines that arrive in many pieces are read, and lines that arrive together."""
    echo = call("echo", f'{{{{"text": "{PIECE}", "times": 400}}}}')
    with McpToolCallbackProvider(peer(fault="noisy")) as provider:
        result, _ = ask_with_tools(ask, provider, [echo, call("pid")], "done")

    large, small = result.executions
    assert large.response.data == "\n".join([PIECE] * 400)
    assert small.response.data.isdecimal()
