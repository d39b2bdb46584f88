"""A loopback server of the Hugging Face Hub's protocol for downloads."""

import hashlib
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

COMMIT = "0123456789abcdef0123456789abcdef01234567"
_PATH = re.compile(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)")


@dataclass
class HubServer:
    """Serves *files*, by repository and path, at the revisions `main` and `COMMIT`.

    Attributes:
        files: The content of the files.
        sent: What is sent instead of a file's content.
        cut_after: Number of bytes after which the first download is disconnected, or None.
        requests: Method, path and `Range` header of each request.
    """

    files: dict[tuple[str, str], bytes]
    sent: dict[tuple[str, str], bytes] = field(default_factory=dict)
    cut_after: int | None = None
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def ranges(self) -> list[str | None]:
        """The `Range` headers of the downloads."""
        return [span for method, _, span in self.requests if method == "GET"]


def _handler(hub: HubServer) -> Any:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer()

        def do_GET(self) -> None:
            self._answer()

        def _answer(self) -> None:
            span = self.headers["range"]
            hub.requests.append((self.command, self.path, span))
            match = _PATH.fullmatch(self.path)
            if match is None:
                self._refuse(None)
                return
            repository, revision, path = match.groups()
            if all(repository != known for known, _ in hub.files):
                self._refuse("RepoNotFound")
            elif revision not in ("main", COMMIT):
                self._refuse("RevisionNotFound")
            elif (repository, path) not in hub.files:
                self._refuse("EntryNotFound")
            else:
                self._send((repository, path), span)

        def _refuse(self, code: str | None) -> None:
            self.send_response_only(404)
            if code is not None:
                self.send_header("x-error-code", code)
            self.send_header("x-repo-commit", COMMIT)
            self.send_header("content-length", "0")
            self.end_headers()

        def _send(self, key: tuple[str, str], span: str | None) -> None:
            content = hub.files[key]
            start = 0 if span is None else int(span.removeprefix("bytes=").split("-")[0])
            body = hub.sent.get(key, content)[start:]
            self.send_response_only(206 if span else 200)
            if span:
                total = len(content)
                self.send_header("content-range", f"bytes {start}-{total - 1}/{total}")
            self.send_header("content-length", str(len(body)))
            self.send_header("etag", '"pointer"')
            self.send_header("x-repo-commit", COMMIT)
            self.send_header("x-linked-etag", f'"{hashlib.sha256(content).hexdigest()}"')
            self.send_header("x-linked-size", str(len(content)))
            self.end_headers()
            if self.command == "GET":
                cut, hub.cut_after = hub.cut_after, None
                self.wfile.write(body[:cut])
                self.close_connection = cut is not None

        def log_message(self, format: str, *args: Any) -> None:
            """Print nothing."""

    return Handler
