"""The batch API of OpenAI, for Chat Completions and Responses."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from chatclient._internal.json import dumps, dumps_exact
from chatclient.chat.model import BatchAnswers, BatchApi, BatchItem
from chatclient.errors import ChatClientError, ProviderError
from chatclient.providers.http.client import HttpClient
from chatclient.providers.http.errors import error_from_data
from chatclient.providers.http.model import json_lines, json_of
from chatclient.providers.http.request import path_step
from chatclient.runtime.runtime import Runtime

_ENDED = {"completed", "expired", "cancelled"}  # an expired batch has partial results


class OpenAIBatchApi(BatchApi):
    """Sends a file of requests, and reads the files of answers and errors.

    Args:
        http: The HTTP client of the model.
    """

    max_requests = 50_000
    max_bytes = 200_000_000

    def __init__(self, http: HttpClient) -> None:
        self._http = http

    async def submit(self, items: Sequence[BatchItem], runtime: Runtime) -> str:
        """Upload the requests as a file, and create the batch."""
        endpoint = f"/v1{items[0].path}"  # the API's version, with any base URL
        lines = b"\n".join(
            b'{"custom_id":%b,"method":"POST","url":%b,"body":%b}'
            % (dumps(item.key), dumps(endpoint), item.body)
            for item in items
        )
        content_type, upload = _upload_form(lines)
        headers = {"content-type": content_type}
        decode = json_of(self._http)
        file = await self._http.post(runtime, "/files", upload, decode, headers)
        body = {
            "input_file_id": file["id"],
            "endpoint": endpoint,
            "completion_window": "24h",
        }
        batch = await self._http.post(runtime, "/batches", dumps(body), decode)
        return str(batch["id"])

    async def answers(self, batch_id: str, runtime: Runtime) -> BatchAnswers | None:
        """Return the answers of a batch that has ended; None if it has not."""
        batch = await self._http.get(runtime, _path(batch_id), json_of(self._http))
        if batch["status"] == "failed":  # none of its requests was processed
            errors = (batch.get("errors") or {}).get("data") or [{"message": "the batch failed"}]
            error = error_from_data(self._http.provider, 400, {"error": errors[0]})
            error.retryable = False
            raise error
        if batch["status"] not in _ENDED:
            return None
        answers: dict[str | int, bytes | ChatClientError] = {}
        for field in ("output_file_id", "error_file_id"):
            if (file := batch.get(field)) is not None:
                path = f"/files/{path_step(file)}/content"
                lines = await self._http.get(runtime, path, json_lines(self._http))
                answers.update({line["custom_id"]: self._answer(line) for line in lines})
        return answers

    async def cancel(self, batch_id: str, runtime: Runtime) -> None:
        """Cancel a batch."""
        await self._http.post(runtime, f"{_path(batch_id)}/cancel", b"{}", json_of(self._http))

    def _answer(self, line: Mapping[str, Any]) -> bytes | ProviderError:
        response = line.get("response") or {}
        status, body = response.get("status_code", 0), response.get("body")
        if status == 200:  # noqa: PLR2004
            return dumps_exact(body).encode()
        return error_from_data(self._http.provider, status, body or {"error": line.get("error")})


def _path(batch_id: str) -> str:
    return f"/batches/{path_step(batch_id)}"


def _upload_form(lines: bytes) -> tuple[str, bytes]:
    """Return content type and body of a form that uploads *lines* as a file."""
    boundary = os.urandom(16).hex()
    parts = (
        ('name="purpose"', b"", b"batch"),
        ('name="file"; filename="batch.jsonl"', b"Content-Type: application/jsonl\r\n", lines),
    )
    body = b"".join(
        b"--%b\r\nContent-Disposition: form-data; %b\r\n%b\r\n%b\r\n"
        % (boundary.encode(), name.encode(), header, content)
        for name, header, content in parts
    )
    return f"multipart/form-data; boundary={boundary}", body + b"--%b--\r\n" % boundary.encode()
