"""A loopback server whose replies are made by a function of the test."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Generic, Protocol, Self, TypeVar

from tests.support.servers import Reply

Answer = Callable[[str, dict[str, str], Any], Reply]
"""Makes the reply to a path, headers (names in lower case) and a body."""


def as_json(value: Any, status: int = 200, **headers: str) -> Reply:
    """Return the reply with *value* as JSON."""
    return Reply(json.dumps(value).encode(), status, headers)


class LoopbackServer:
    """Answers GET and POST requests until it is closed; bodies are JSON, or if *raw* bytes."""

    def __init__(self, answer: Answer, *, raw: bool = False) -> None:
        self.closing = threading.Event()
        self._server = _Server(("127.0.0.1", 0), _handler(answer, self.closing, raw=raw))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


class Closeable(Protocol):
    """What a service closes: a model."""

    def close(self) -> None: ...


M = TypeVar("M", bound=Closeable)


class Service(Generic[M]):
    """A server that sends each reply in turn, and the model that asks it.

    Attributes:
        model: The model.
        requests: Path, header `authorization` and body of each request.
    """

    def __init__(self, create: Callable[[str], M], *replies: Reply | dict[str, Any]) -> None:
        self._replies = list(replies)
        self.requests: list[tuple[str, str | None, dict[str, Any]]] = []
        self._server = LoopbackServer(self._reply)
        self.model = create(self._server.url)

    def _reply(self, path: str, headers: dict[str, str], request: dict[str, Any]) -> Reply:
        self.requests.append((path, headers.get("authorization"), request))
        reply = self._replies.pop(0)
        return reply if isinstance(reply, Reply) else as_json(reply)

    def close(self) -> None:
        self.model.close()
        self._server.close()


@contextmanager
def services(create: Callable[[str], M]) -> Iterator[Callable[..., Service[M]]]:
    """Return a function that starts a service with given replies; close all at the end.

    Args:
        create: Makes the model of a server's URL.
    """
    started: list[Service[M]] = []

    def start(*replies: Reply | dict[str, Any]) -> Service[M]:
        started.append(Service(create, *replies))
        return started[-1]

    yield start
    for each in started:
        each.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect early."""


def _handler(
    answer: Answer, closing: threading.Event, *, raw: bool
) -> Callable[..., BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["content-length"] or 0))
            body = content if raw else json.loads(content)
            headers = {name.lower(): value for name, value in self.headers.items()}
            reply = answer(self.path, headers, body)
            chunks = reply.chunks if reply.chunks is not None else [reply.body]
            size = sum(map(len, chunks)) + (1000 if reply.truncate else 0)
            self.send_response_only(reply.status)
            self.send_header("content-type", reply.content_type)
            self.send_header("content-length", str(size))
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.end_headers()
            for chunk in chunks:
                self.wfile.write(chunk)
                self.wfile.flush()
                closing.wait(reply.delay)
            self.close_connection = reply.truncate

        def do_GET(self) -> None:
            self.do_POST()

        def log_message(self, format: str, *args: Any) -> None:
            """Print nothing."""

    return Handler
