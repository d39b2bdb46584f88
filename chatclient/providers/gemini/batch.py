"""The batch mode of the Gemini API, with the requests in the body."""

from collections.abc import Mapping, Sequence
from typing import Any

from chatclient._internal.json import dumps, dumps_exact
from chatclient.chat.batch_api import BatchAnswers, BatchApi, BatchItem
from chatclient.errors import ProviderError
from chatclient.providers.http.client import HttpAnswer, HttpClient
from chatclient.providers.http.errors import error_from_data, parse_json
from chatclient.providers.http.model import json_lines, json_of
from chatclient.providers.http.url import path_step
from chatclient.runtime.runtime import Runtime

_METHOD = ":generateContent"
_FAILED = {"BATCH_STATE_FAILED", "BATCH_STATE_EXPIRED"}


class GeminiBatchApi(BatchApi):
    """Sends requests to one model as a batch.

    Args:
        http: The HTTP client of the model.
    """

    max_bytes = 20_000_000

    def __init__(self, http: HttpClient) -> None:
        self._http = http

    async def submit(self, items: Sequence[BatchItem], runtime: Runtime) -> str:
        """Create the batch."""
        requests = b",".join(
            b'{"request":%b,"metadata":{"key":%b}}' % (item.body, dumps(item.key)) for item in items
        )
        body = (
            b'{"batch":{"displayName":"chatclient","inputConfig":{"requests":{"requests":[%b]}}}}'
            % requests
        )
        path = f"{items[0].path.removesuffix(_METHOD)}:batchGenerateContent"
        batch = await self._http.post(runtime, path, body, json_of(self._http))
        return str(batch["name"])

    async def answers(self, batch_id: str, runtime: Runtime) -> BatchAnswers | None:
        """Return the answers of a batch that has ended; None if it has not."""
        batch = await self._http.get(runtime, _path(batch_id), self._decode)
        metadata = batch.get("metadata") or {}
        state = metadata.get("state")
        if batch.get("error") or state in _FAILED:
            error = batch.get("error") or {"message": f"the batch ended in the state {state}"}
            raise error_from_data(self._http.provider, 400, {"error": error})
        if not batch.get("done"):
            return None
        response = batch.get("response") or metadata.get("output") or {}
        lines = (response.get("inlinedResponses") or {}).get("inlinedResponses") or []
        if file := response.get("responsesFile"):
            path = f"{_path(file)}:download?alt=media"
            lines = await self._http.get(runtime, path, json_lines(self._http))
        return {_key(at, line): self._answer(line) for at, line in enumerate(lines)}

    async def cancel(self, batch_id: str, runtime: Runtime) -> None:
        """Cancel a batch."""
        await self._http.post(runtime, f"{_path(batch_id)}:cancel", b"{}", json_of(self._http))

    def _decode(self, answer: HttpAnswer) -> Mapping[str, Any]:
        data: Mapping[str, Any] = parse_json(self._http.provider, answer.body, exact=True)
        return data

    def _answer(self, line: Mapping[str, Any]) -> bytes | ProviderError:
        if "response" in line:
            return dumps_exact(line["response"]).encode()
        return error_from_data(self._http.provider, 0, {"error": line.get("error")})


def _key(position: int, line: Mapping[str, Any]) -> str | int:
    key = line.get("key") or (line.get("metadata") or {}).get("key")
    return position if key is None else str(key)


def _path(batch_id: str) -> str:
    return "".join(f"/{path_step(step)}" for step in batch_id.split("/"))
