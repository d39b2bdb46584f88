"""A server that plays scripts of bytes, pauses and disconnections."""

import contextlib
import json
import selectors
import socket
import struct
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Self

Step = bytes | float | Literal["reset", "close"]
"""Bytes to send, seconds to wait, or how to close the connection."""

RESET: Final = "reset"
CLOSE: Final = "close"
STALL = 30.0  # seconds; ends when the client disconnects


def http(
    body: bytes, status: int = 200, headers: dict[str, str] | None = None, *, more: int = 0
) -> bytes:
    """Return a complete response; *more* is added to its content length."""
    named = {"content-type": "application/json", **(headers or {})}
    named["content-length"] = str(len(body) + more)
    head = "".join(f"{name}: {value}\r\n" for name, value in named.items())
    return f"HTTP/1.1 {status} Reason\r\n{head}\r\n".encode() + body


def chunked(*chunks: bytes, headers: str = "content-type: text/event-stream") -> bytes:
    """Return the response with *chunks*, without its last chunk."""
    head = f"HTTP/1.1 200 OK\r\n{headers}\r\ntransfer-encoding: chunked\r\n\r\n".encode()
    return head + b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)


END = b"0\r\n\r\n"  # last chunk of a response


@dataclass
class Request:
    """A received request and its time."""

    at: float
    path: str
    headers: dict[str, str]
    body: Any


@dataclass
class ChaosServer:
    """Plays one script per request in order, and repeats the last one.

    Attributes:
        scripts: The steps for each request.
        requests: The received requests.
    """

    scripts: Sequence[Sequence[Step]]
    requests: list[Request] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._closing = False
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    @property
    def open_connections(self) -> int:
        with self._lock:
            return len(self._open)

    def close(self) -> None:
        self._closing = True
        # Closing a listener does not wake the thread that waits for it.
        with contextlib.suppress(OSError):
            socket.create_connection(self._listener.getsockname(), 1).close()
        self._thread.join(2)
        self._listener.close()
        with self._lock:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _accept(self) -> None:
        while not self._closing:
            connection, _ = self._listener.accept()
            with self._lock:
                self._open.add(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            with contextlib.suppress(OSError):
                while (script := self._receive(connection)) is not None:
                    if not self._play(script, connection):
                        break
        finally:
            with self._lock:
                self._open.discard(connection)
            connection.close()

    def _receive(self, connection: socket.socket) -> Sequence[Step] | None:
        """Read a request and return its script, or None if the client has disconnected."""
        received = b""
        while b"\r\n\r\n" not in received:
            if not (piece := connection.recv(65536)):
                return None
            received += piece
        head, _, body = received.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = {n.lower(): v.strip() for n, _, v in (line.partition(":") for line in lines)}
        while len(body) < int(headers["content-length"]):
            body += connection.recv(65536)
        with self._lock:
            at = min(len(self.requests), len(self.scripts) - 1)
            path = first.split(" ")[1]
            self.requests.append(Request(time.monotonic(), path, headers, json.loads(body)))
        return self.scripts[at]

    def _play(self, script: Sequence[Step], connection: socket.socket) -> bool:
        """Return whether the connection can be used for another request."""
        for step in script:
            match step:
                case bytes():
                    connection.sendall(step)
                case "reset":
                    linger = struct.pack("ii", 1, 0)  # discards unsent data
                    time.sleep(0.02)  # lets earlier data arrive
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                    return False
                case "close":
                    return False
                case _:
                    if _disconnects(connection, within=step):
                        return False
        return True


def _disconnects(connection: socket.socket, within: float) -> bool:
    """Wait for the client to disconnect, for this number of seconds."""
    with selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_READ)
        return bool(selector.select(within))
