"""A loopback server with the batch APIs of OpenAI, Anthropic and Gemini."""

import json
import threading
from collections.abc import Callable
from email import message_from_bytes
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

Answer = Callable[[dict[str, Any]], tuple[int, dict[str, Any]]]
"""Status and JSON of the response to the JSON of a request."""


class BatchServer:
    """Processes batches.

    Attributes:
        batches: The requests of each batch, by its id.
        cancelled: The ids of cancelled batches.
        rejected: Whether the server rejects all batches when it processes them.
        polls_needed: At how many polls a batch has ended.
        refusal: The status of an error with which polls are answered; 0 for none.
        empty_polls: How many polls of a batch that has ended do not find its answers.
        form: How Gemini's answers are given: with `metadata`, without it, in a `file`, or in
            the `output` of the batch's metadata.
        betas: The header `anthropic-beta` of each POST request.
    """

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.batches: dict[str, list[dict[str, Any]]] = {}
        self.cancelled: list[str] = []
        self.rejected = False
        self.polls_needed = 2
        self.refusal = 0
        self.empty_polls = 0
        self.form = "metadata"
        self.betas: list[str | None] = []
        self._files: dict[str, bytes] = {}
        self._polls: dict[str, int] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _add(self, items: list[dict[str, Any]]) -> str:
        batch = f"batches/b{len(self.batches) + 1}"
        self.batches[batch] = items
        return batch

    def _ended(self, batch: str) -> bool:
        self._polls[batch] = self._polls.get(batch, 0) + 1
        return self._polls[batch] >= self.polls_needed

    def post(self, path: str, content_type: str, body: bytes) -> Any:
        if path == "/v1/files":
            head = f"Content-Type: {content_type}\r\n\r\n".encode()
            parts: Any = message_from_bytes(head + body).get_payload()
            purpose, file = parts
            assert purpose.get_payload(decode=True) == b"batch"
            content = file.get_payload(decode=True)
            self._files[f"file-{len(self._files)}"] = content
            return {"id": list(self._files)[-1]}
        if path.endswith(("/cancel", ":cancel")):
            self.cancelled.append(path)
            return {}
        data = json.loads(body)
        if path == "/v1/batches":
            lines = map(json.loads, self._files[data["input_file_id"]].splitlines())
            items = list(lines)
            assert {item["url"] for item in items} == {data["endpoint"]}
            return {"id": self._add(items), "status": "validating"}
        if path == "/v1/messages/batches":
            return {"id": self._add(data["requests"]), "processing_status": "in_progress"}
        assert path.endswith(":batchGenerateContent"), path
        items = data["batch"]["inputConfig"]["requests"]["requests"]
        return {"name": self._add(items), "metadata": {"state": "BATCH_STATE_PENDING"}}

    def get(self, path: str) -> Any:
        if path.startswith("/v1/files/"):
            return self._openai_lines(path.split("/")[3].partition("-")[2])
        if path.endswith("/results"):
            return self._anthropic_lines(_id_in(path.removesuffix("/results")))
        batch = _id_in(path)
        ended = self._ended(batch)
        if path.startswith("/v1/batches"):
            if self.rejected:
                return {"status": "failed", "errors": {"data": [{"message": "bad line"}]}}
            if not ended:
                return {"status": "in_progress"}
            if self._is_late():
                return {"status": "completed", "output_file_id": None}
            number = batch.rpartition("/")[2]
            return {"status": "completed", "output_file_id": f"out-{number}"}
        if path.startswith("/v1/messages"):
            return {"processing_status": "ended" if ended else "in_progress"}
        return self._gemini_batch(path, batch, ended=ended)

    def _gemini_batch(self, path: str, batch: str, *, ended: bool) -> Any:
        if self.rejected:
            return {"metadata": {"state": "BATCH_STATE_FAILED"}}
        if not ended:
            return {"metadata": {"state": "BATCH_STATE_RUNNING"}}
        if ":download" not in path and self._is_late():
            return {"done": True, "metadata": {"state": "BATCH_STATE_SUCCEEDED"}}
        if ":download" in path:
            return _lines([self._gemini_line(item) for item in self.batches[batch]])
        if self.form == "file":
            return {"done": True, "response": {"responsesFile": batch.replace("batches", "files")}}
        lines = [self._gemini_line(item) for item in self.batches[batch]]
        answers = {"inlinedResponses": {"inlinedResponses": lines}}
        if self.form == "output":
            return {"done": True, "metadata": {"output": answers}}
        return {"done": True, "response": answers}

    def _is_late(self) -> bool:
        self.empty_polls -= 1
        return self.empty_polls >= 0

    def _openai_lines(self, number: str) -> bytes:
        lines = []
        for item in self.batches[f"batches/{number}"]:
            status, body = self.answer(item["body"])
            response = {"status_code": status, "body": body}
            lines.append({"custom_id": item["custom_id"], "response": response, "error": None})
        return _lines(lines)

    def _anthropic_lines(self, batch: str) -> bytes:
        lines = []
        for item in self.batches[batch]:
            status, body = self.answer(item["params"])
            if status == 204:
                continue
            ok = {"type": "succeeded", "message": body}
            result = ok if status == 200 else {"type": "errored", "error": body}
            lines.append({"custom_id": item["custom_id"], "result": result})
        return _lines(lines)

    def _gemini_line(self, item: dict[str, Any]) -> dict[str, Any]:
        status, body = self.answer(item["request"])
        result = {"response": body} if status == 200 else {"error": body["error"]}
        if self.form == "file":
            return {"key": item["metadata"]["key"], **result}
        return result if self.form == "none" else {"metadata": item["metadata"], **result}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                server.betas.append(self.headers["anthropic-beta"])
                self._reply(server.post(self.path, self.headers["content-type"], body))

            def do_GET(self) -> None:
                if server.refusal:
                    self._reply({}, server.refusal)
                else:
                    self._reply(server.get(self.path))

            def _reply(self, value: Any, status: int = 200) -> None:
                content = value if isinstance(value, bytes) else json.dumps(value).encode()
                self.send_response_only(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: Any) -> None:
                """Print nothing."""

        return Handler


def _id_in(path: str) -> str:
    number = path.partition(":download")[0].replace("%2F", "/").rpartition("/")[2]
    return f"batches/{number}"


def _lines(values: list[Any]) -> bytes:
    return b"".join(json.dumps(value).encode() + b"\n" for value in values)
