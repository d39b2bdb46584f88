"""A forward proxy with absolute URLs and tunnels, with or without a password."""

import base64
import contextlib
import selectors
import socket
import threading
from typing import Self
from urllib.parse import urlsplit


class ProxyServer:
    """Forwards requests and records them.

    Args:
        credentials: the required `user:password`, if any.
    """

    def __init__(self, credentials: str = "") -> None:
        self._wanted = base64.b64encode(credentials.encode()).decode() if credentials else ""
        self.passed: list[str] = []
        self._closing = False
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    def close(self) -> None:
        self._closing = True
        with contextlib.suppress(OSError):  # wakes the waiting thread
            socket.create_connection(self._listener.getsockname(), 1).close()
        self._thread.join(2)
        self._listener.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _accept(self) -> None:
        while not self._closing:
            client, _ = self._listener.accept()
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        """Serve one connection."""
        with client, contextlib.suppress(OSError, ValueError):
            received = b""
            while b"\r\n\r\n" not in received:
                if not (piece := client.recv(65536)):
                    return
                received += piece
            head, _, begun = received.partition(b"\r\n\r\n")
            if self._wanted and f"basic {self._wanted}".lower() not in head.decode().lower():
                refusal = b"HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n"
                client.sendall(refusal)
                return
            method, target, _version = head.split(b"\r\n")[0].decode().split(" ")
            self.passed.append(f"{method} {target}")
            if method == "CONNECT":
                host, _, port = target.rpartition(":")
                with socket.create_connection((host, int(port)), 5) as server:
                    client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                    _forward(client, server)
                return
            there = urlsplit(target)
            with socket.create_connection((there.hostname, there.port or 80), 5) as server:
                lines = head.split(b"\r\n")
                lines[0] = f"{method} {there.path} HTTP/1.1".encode()
                server.sendall(b"\r\n".join([*lines, b"", b""]) + begun)
                _forward(client, server)


class SocksServer(ProxyServer):
    """A SOCKS5 proxy (RFC 1928), with a password or without (RFC 1929)."""

    def __init__(self, credentials: str = "") -> None:
        self._credentials = credentials
        super().__init__()

    @property
    def url(self) -> str:
        return f"socks5://{self.address}"

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError, ValueError):
            _version, count = _exactly(client, 2)
            _exactly(client, count)
            if self._credentials:
                client.sendall(b"\x05\x02")
                _version, size = _exactly(client, 2)
                user = _exactly(client, size).decode()
                password = _exactly(client, _exactly(client, 1)[0]).decode()
                right = f"{user}:{password}" == self._credentials
                client.sendall(b"\x01\x00" if right else b"\x01\x01")
                if not right:
                    return
            else:
                client.sendall(b"\x05\x00")
            _version, _connect, _reserved, kind = _exactly(client, 4)
            if kind == 1:
                host = socket.inet_ntoa(_exactly(client, 4))
            else:
                host = _exactly(client, _exactly(client, 1)[0]).decode()
            port = int.from_bytes(_exactly(client, 2))
            self.passed.append(f"{host}:{port}")
            with socket.create_connection((host, port), 5) as server:
                client.sendall(b"\x05\x00\x00\x01" + bytes(6))
                _forward(client, server)


def _exactly(client: socket.socket, size: int) -> bytes:
    """Read exactly this number of bytes."""
    received = b""
    while len(received) < size:
        if not (piece := client.recv(size - len(received))):
            raise ConnectionResetError
        received += piece
    return received


def _forward(client: socket.socket, server: socket.socket) -> None:
    """Copy bytes in both directions until one side disconnects, or sends nothing for 10 s."""
    with selectors.DefaultSelector() as selector:
        selector.register(client, selectors.EVENT_READ, server)
        selector.register(server, selectors.EVENT_READ, client)
        while ready := selector.select(10):
            for key, _ in ready:
                target: socket.socket = key.data
                source = client if target is server else server
                if not (data := source.recv(65536)):
                    return
                target.sendall(data)
