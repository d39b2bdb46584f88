"""The HTTP API of Qdrant, answered by Qdrant's local mode; for tests without a server."""

import json
import threading
import warnings
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import urlsplit

from qdrant_client import QdrantClient, models


class QdrantServer:
    """Serves the requests that vector stores send.

    Attributes:
        requests: The methods, paths and headers of the requests.
        failures: Statuses with which the next requests are answered.
        indexes: The payload indexes that were created.
    """

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.failures: list[int] = []
        self.indexes: list[str] = []
        self.client = QdrantClient(":memory:")
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def reply(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        """Return the status and the JSON for a request."""
        with self._lock:
            if self.failures:
                return self.failures.pop(0), {"status": {"error": "made up"}}
            try:
                result = self._result(method, urlsplit(path).path.split("/")[2:], body)
            except (ValueError, KeyError) as error:
                status = 404 if "not found" in str(error) else 400
                status = 409 if "already exists" in str(error) else status
                return status, {"status": {"error": str(error)}}
        return 200, {"result": result, "status": "ok", "time": 0.0}

    def _result(self, method: str, path: list[str], body: Any) -> Any:  # noqa: PLR0911 - a table
        name, *rest = path
        client = self.client
        match method, rest:
            case "GET", ["exists"]:
                return {"exists": client.collection_exists(name)}
            case "GET", []:
                return client.get_collection(name).model_dump(mode="json")
            case "PUT", []:
                made = models.CreateCollection.model_validate(body)
                return client.create_collection(name, vectors_config=made.vectors)
            case "DELETE", []:
                return client.delete_collection(name)
            case "PUT", ["index"]:
                self.indexes.append(body["field_name"])
                return {"operation_id": 0, "status": "completed"}
            case "PUT", ["points"]:
                points = models.PointsList.model_validate(body).points
                return client.upsert(name, points).model_dump(mode="json")
            case "POST", ["points", "delete"]:
                selector = models.FilterSelector.model_validate(body)
                return client.delete(name, points_selector=selector).model_dump(mode="json")
            case "POST", ["points", "count"]:
                count = models.CountRequest.model_validate(body)
                return client.count(name, count_filter=count.filter).model_dump()
            case "POST", ["points", "scroll"]:
                scroll = models.ScrollRequest.model_validate(body)
                records, page = client.scroll(
                    name,
                    limit=scroll.limit or 10,
                    offset=scroll.offset,
                    with_payload=scroll.with_payload or False,
                )
                found = [point.model_dump(mode="json") for point in records]
                return {"points": found, "next_page_offset": page}
            case "POST", ["points", "query"]:
                query = models.QueryRequest.model_validate(body)
                return client.query_points(
                    name,
                    query=body["query"]["nearest"],
                    query_filter=query.filter,
                    limit=query.limit or 10,
                    with_payload=query.with_payload or False,
                ).model_dump(mode="json")
        msg = f"{method} {path} is not supported"
        raise ValueError(msg)


def _handler(server: QdrantServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            content = self.rfile.read(int(self.headers["content-length"] or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            server.requests.append((self.command, self.path, headers))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                status, value = server.reply(
                    self.command, self.path, json.loads(content) if content else None
                )
            body = json.dumps(value).encode()
            self.send_response_only(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815 - names of the base class

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing."""

    return Handler
