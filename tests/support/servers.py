"""A strict loopback server for Chat Completions."""

import json
import select
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Reply:
    """A reply of the server, byte for byte."""

    body: bytes
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    content_type: str = "application/json"
    delay: float = 0.0
    truncate: bool = False  # close the connection although more was announced
    chunks: list[bytes] | None = None  # sent one by one, `delay` apart


def completion(text: str | None, *calls: tuple[str, str, str], **extra: Any) -> dict[str, Any]:
    """Return a complete completion with *text* and calls of (id, name, arguments)."""
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = [
            {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
            for id, name, arguments in calls
        ]
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "stub",
        "choices": [
            {
                "index": 0,
                "message": message,
                "finish_reason": "tool_calls" if calls else "stop",
            }
        ],
        "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
        **extra,
    }


def as_stream(complete: dict[str, Any]) -> bytes:
    """Return *complete* as a stream: text by words, arguments in halves."""
    choice = complete["choices"][0]
    message = choice["message"]
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": word} for word in _words(message.get("content") or "")]
    for index, call in enumerate(message.get("tool_calls") or ()):
        function = call["function"]
        half = len(function["arguments"]) // 2
        start = {"name": function["name"], "arguments": ""}
        begin = {"index": index, "id": call["id"], "type": "function", "function": start}
        deltas.append({"tool_calls": [begin]})
        deltas += [
            {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}
            for piece in (function["arguments"][:half], function["arguments"][half:])
        ]
    chunks = [_chunk(complete, [{"index": 0, "delta": d, "finish_reason": None}]) for d in deltas]
    end = {"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}
    chunks.append(_chunk(complete, [end]))
    chunks.append({**_chunk(complete, []), "usage": complete["usage"]})
    lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
    return ("".join(lines) + "data: [DONE]\n\n").encode()


def _words(text: str) -> list[str]:
    words = text.split(" ")
    return [word if at == 0 else f" {word}" for at, word in enumerate(words)] if text else []


def _chunk(complete: dict[str, Any], choices: list[dict[str, Any]]) -> dict[str, Any]:
    head = {key: complete[key] for key in ("id", "created", "model")}
    return {**head, "object": "chat.completion.chunk", "choices": choices}


def pairing_problem(messages: list[dict[str, Any]]) -> str | None:
    """Return why a provider would reject *messages*: calls and results do not match."""
    open_ids: list[str] = []
    for at, message in enumerate(messages):
        if message["role"] == "tool":
            if message["tool_call_id"] not in open_ids:
                return f"messages[{at}]: tool result for no open call {message['tool_call_id']!r}"
            open_ids.remove(message["tool_call_id"])
            continue
        if open_ids:
            return f"messages[{at}]: tool calls without results: {open_ids}"
        open_ids = [call["id"] for call in message.get("tool_calls") or ()]
        if len(set(open_ids)) != len(open_ids):
            return f"messages[{at}]: tool call ids are not unique: {open_ids}"
    return f"tool calls without results: {open_ids}" if open_ids else None


class ChatServer:
    """Answers requests in order and records them.

    Each reply is a `Reply`, a completion (streamed when the request wants a stream), a text, or a
    function of the request that returns one of these. The last one is repeated.
    """

    def __init__(self, *replies: Any) -> None:
        self._replies = list(replies)
        self._lock = threading.Lock()
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.ports: list[int] = []  # of the requests' clients
        self.aborted = 0
        self.closing = threading.Event()
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    @property
    def open_connections(self) -> int:
        return self._server.open_connections

    def close(self) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def reply_to(self, request: dict[str, Any], headers: dict[str, str]) -> Reply:
        with self._lock:
            self.requests.append(request)
            self.headers.append(headers)
            reply: Any = self._replies.pop(0) if len(self._replies) > 1 else self._replies[0]
        if problem := pairing_problem(request["messages"]):
            error = {"error": {"message": problem, "type": "invalid_request_error"}}
            return Reply(json.dumps(error).encode(), 400)
        if callable(reply):
            reply = reply(request)
        if isinstance(reply, Reply):
            return reply
        complete: dict[str, Any] = completion(reply) if isinstance(reply, str) else reply
        if request.get("stream"):
            return Reply(as_stream(complete), content_type="text/event-stream")
        return Reply(json.dumps(complete).encode())


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.open_connections = 0

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect; tests read `aborted`."""


def _handler(server: ChatServer) -> Callable[..., BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def setup(self) -> None:
            super().setup()
            self.server.open_connections += 1  # type: ignore[attr-defined]

        def finish(self) -> None:
            self.server.open_connections -= 1  # type: ignore[attr-defined]
            super().finish()

        def do_POST(self) -> None:
            length = int(self.headers["content-length"])
            request = json.loads(self.rfile.read(length))
            server.ports.append(self.client_address[1])
            reply = server.reply_to(request, {k.lower(): v for k, v in self.headers.items()})
            try:
                self._send(reply)
            except OSError:
                server.aborted += 1
                self.close_connection = True

        def _send(self, reply: Reply) -> None:
            chunks = reply.chunks if reply.chunks is not None else [reply.body]
            if reply.chunks is None:
                self._pause(reply.delay)
            self.send_response(reply.status)
            size = sum(map(len, chunks)) + (1000 if reply.truncate else 0)
            headers = {"content-type": reply.content_type, "content-length": str(size)}
            for name, value in {**headers, **reply.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            for chunk in chunks:
                self.wfile.write(chunk)
                if reply.chunks is not None:
                    self.wfile.flush()
                    self._pause(reply.delay)
            if reply.truncate:
                self.close_connection = True

        def _pause(self, seconds: float) -> None:
            """Wait for *seconds*, or until the server closes.

            Raises:
                ConnectionAbortedError: The client has disconnected.
            """
            end = time.monotonic() + seconds
            client = select.poll()
            client.register(self.connection, select.POLLIN)
            while (left := end - time.monotonic()) > 0 and not server.closing.is_set():
                if client.poll(1000 * min(left, 0.05)):
                    raise ConnectionAbortedError

        def log_message(self, format: str, *args: Any) -> None:
            """Print nothing."""

    return Handler
