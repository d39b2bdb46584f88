"""The batch API of Anthropic: Message Batches."""

from collections.abc import Mapping, Sequence
from typing import Any

from chatclient._internal.json import dumps, dumps_exact
from chatclient.chat.batch_api import BatchAnswers, BatchApi, BatchItem
from chatclient.errors import ProviderError
from chatclient.providers.http.client import HttpClient
from chatclient.providers.http.errors import error_from_data
from chatclient.providers.http.model import json_lines, json_of
from chatclient.providers.http.url import path_step
from chatclient.runtime.runtime import Runtime

_PATH = "/v1/messages/batches"
_BETA = "anthropic-beta"


class AnthropicBatchApi(BatchApi):
    """Sends requests as one Message Batch.

    Args:
        http: The HTTP client of the model.
    """

    max_requests = 100_000
    max_bytes = 256_000_000

    def __init__(self, http: HttpClient) -> None:
        self._http = http

    async def submit(self, items: Sequence[BatchItem], runtime: Runtime) -> str:
        """Create the batch, with the beta features of all its requests."""
        requests = b",".join(
            b'{"custom_id":%b,"params":%b}' % (dumps(item.key), item.body) for item in items
        )
        betas = {item.headers[_BETA]: None for item in items if _BETA in item.headers}
        headers = {_BETA: ",".join(betas)} if betas else {}
        body = b'{"requests":[%b]}' % requests
        batch = await self._http.post(runtime, _PATH, body, json_of(self._http), headers)
        return str(batch["id"])

    async def answers(self, batch_id: str, runtime: Runtime) -> BatchAnswers | None:
        """Return the answers of a batch that has ended; None if it has not."""
        path = f"{_PATH}/{path_step(batch_id)}"
        batch = await self._http.get(runtime, path, json_of(self._http))
        if batch["processing_status"] != "ended":
            return None
        lines = await self._http.get(runtime, f"{path}/results", json_lines(self._http))
        return {line["custom_id"]: self._answer(line["result"]) for line in lines}

    async def cancel(self, batch_id: str, runtime: Runtime) -> None:
        """Cancel a batch."""
        path = f"{_PATH}/{path_step(batch_id)}/cancel"
        await self._http.post(runtime, path, b"{}", json_of(self._http))

    def _answer(self, result: Mapping[str, Any]) -> bytes | ProviderError:
        if result["type"] == "succeeded":
            return dumps_exact(result["message"]).encode()
        kind = result["type"]  # errored, canceled or expired
        body = result.get("error") or {"error": {"message": f"the request was {kind}"}}
        return error_from_data(self._http.provider, 0, body)
