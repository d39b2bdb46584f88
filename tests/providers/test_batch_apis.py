"""Batches through the batch APIs of the providers."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from chatclient import ChatClient
from chatclient.chat.model import ChatModel
from chatclient.errors import (
    AuthenticationError,
    ConnectionFailedError,
    InvalidResponseError,
    OverloadedError,
    ProviderError,
    UsageError,
)
from chatclient.providers import (
    AnthropicChatModel,
    AnthropicChatOptions,
    GeminiChatModel,
    OllamaChatModel,
    OpenAIChatModel,
    OpenAIResponsesChatModel,
)
from chatclient.providers.openai.batch import OpenAIBatchApi
from tests.support.batch_server import BatchServer
from tests.support.servers import completion

FAST: Any = {"use_batch_api": True, "collect_seconds": 0.02, "poll_seconds": 0.01}


def openai_chat(url: str) -> ChatModel:
    return OpenAIChatModel("m", api_key="k", base_url=f"{url}/v1")


def openai_responses(url: str) -> ChatModel:
    return OpenAIResponsesChatModel("m", api_key="k", base_url=f"{url}/v1")


def anthropic(url: str) -> ChatModel:
    return AnthropicChatModel("m", api_key="k", base_url=url)


def gemini(url: str) -> ChatModel:
    return GeminiChatModel("m", api_key="k", base_url=f"{url}/v1beta")


MODELS = [openai_chat, openai_responses, anthropic, gemini]


def response_of(make: Callable[[str], ChatModel], text: str) -> dict[str, Any]:
    """Return the response of the API of a model with *text*."""
    if make is openai_chat:
        return completion(text)
    if make is openai_responses:
        content = [{"type": "output_text", "text": text, "annotations": []}]
        item = {"type": "message", "id": "i", "role": "assistant", "content": content}
        return {"id": "r", "status": "completed", "output": [item], "model": "m"}
    if make is anthropic:
        block = {"type": "text", "text": text}
        usage = {"input_tokens": 3, "output_tokens": 2}
        return {
            "id": "m1",
            "type": "message",
            "role": "assistant",
            "content": [block],
            "stop_reason": "end_turn",
            "usage": usage,
        }
    part = {"content": {"role": "model", "parts": [{"text": text}]}, "finishReason": "STOP"}
    return {"candidates": [part]}


def server_for(make: Callable[[str], ChatModel]) -> BatchServer:
    """Return a server that repeats digits of the question, and fails without any."""

    def answer(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        digits = "".join(filter(str.isdigit, str(body.get("messages") or _contents(body))))
        if not digits:
            return 400, {"error": {"message": "no digits", "type": "invalid_request_error"}}
        return 200, response_of(make, f'{{"number": {digits}}}')

    return BatchServer(answer)


def _contents(body: dict[str, Any]) -> Any:
    return body.get("input") or body.get("contents")


class Number(BaseModel):
    number: int


@pytest.mark.parametrize("make", MODELS)
def test_batch_answers_each_request(make: Callable[[str], ChatModel]) -> None:
    """Requests are sent in one batch, and errors are reported for each of them."""
    together = FAST | {"collect_seconds": 0.5}  # also if the first request imports modules
    with server_for(make) as server, make(server.url) as model:
        batch = ChatClient.create(model).batch(["1", "none", "3"], Number, **together)
        results = {result.key: result for result in batch}

        assert results["0"].unwrap() == Number(number=1)
        assert results["2"].unwrap() == Number(number=3)
        assert isinstance(results["1"].error, ProviderError)
        assert "no digits" in str(results["1"].error)
        assert (batch.progress.succeeded, batch.progress.failed) == (2, 1)
        assert [len(items) for items in server.batches.values()] == [3]


@pytest.mark.parametrize("make", MODELS)
async def test_async_batch_with_repeated_request(make: Callable[[str], ChatModel]) -> None:
    with server_for(make) as server:
        async with make(server.url) as model:
            batch = ChatClient.create(model).batch({"a": "7", "b": "7"}, **FAST)
            texts = {result.key: result.value async for result in batch}

            assert texts == {"a": '{"number": 7}', "b": '{"number": 7}'}


@pytest.mark.parametrize("make", MODELS)
async def test_submitted_batch_is_fetched_after_a_restart(
    make: Callable[[str], ChatModel], tmp_path: Path
) -> None:
    """The journal has its id, so it is not submitted again."""
    journal = tmp_path / "journal"
    with server_for(make) as server:
        server.polls_needed = 1_000_000
        async with make(server.url) as model:
            batch = ChatClient.create(model).batch(["1", "2"], journal=journal, **FAST)
            with pytest.raises(TimeoutError):
                await next_within(batch, 0.5)
        server.polls_needed = 0
        async with make(server.url) as model:
            batch = ChatClient.create(model).batch(["1", "2"], journal=journal, **FAST)
            texts = {result.key: result.value async for result in batch}

            assert texts == {"0": '{"number": 1}', "1": '{"number": 2}'}
            assert len(server.batches) == 1

            again = ChatClient.create(model).batch(["1", "2"], journal=journal, **FAST)
            assert {result.key: result.value async for result in again} == texts
            assert len(server.batches) == 1


async def next_within(batch: Any, seconds: float) -> None:
    iterator = aiter(batch)
    try:
        async with asyncio.timeout(seconds):
            await anext(iterator)
    finally:
        await iterator.aclose()


@pytest.mark.parametrize("make", MODELS)
def test_cancelled_batch(make: Callable[[str], ChatModel]) -> None:
    """`cancel` ends the iteration and cancels at the provider."""
    with server_for(make) as server, make(server.url) as model:
        server.polls_needed = 1_000_000
        batch = ChatClient.create(model).batch(["1"], **FAST)
        threading.Timer(0.3, batch.cancel).start()

        assert list(batch) == []
        assert len(server.cancelled) == 1


@pytest.mark.parametrize("make", [openai_chat, gemini])
def test_rejected_batch(make: Callable[[str], ChatModel]) -> None:
    """The error of the batch is that of each of its requests."""
    with server_for(make) as server, make(server.url) as model:
        server.rejected = True
        results = list(ChatClient.create(model).batch(["1", "2"], **FAST))

        assert all(isinstance(result.error, ProviderError) for result in results)


def test_large_batches_are_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OpenAIBatchApi, "max_requests", 2)
    with server_for(openai_chat) as server, openai_chat(server.url) as model:
        together = {**FAST, "collect_seconds": 0.5}
        results = list(ChatClient.create(model).batch(["1", "2", "3"], **together))

        assert [result.error for result in results] == [None] * 3
        assert sorted(len(items) for items in server.batches.values()) == [1, 2]


@pytest.mark.parametrize("make", MODELS)
def test_batches_of_many_bytes_are_split(
    make: Callable[[str], ChatModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each batch fits the provider's limit, and a large request has a separate batch."""
    with server_for(make) as server, make(server.url) as model:
        found = model.batched(None)  # type: ignore[arg-type]
        assert found is not None
        monkeypatch.setattr(type(found[1]), "max_bytes", 3_000)
        texts = ["1" + " " * 900, "2" + " " * 900, "3" + " " * 4000, "4"]
        together = {**FAST, "collect_seconds": 0.5}
        results = list(ChatClient.create(model).batch(texts, **together))

        assert [result.error for result in results] == [None] * 4
        # They are submitted side by side.
        assert sorted(len(items) for items in server.batches.values()) == [1, 1, 2]


@pytest.mark.parametrize("form", ["none", "file", "output"])
def test_other_answers_of_gemini(form: str) -> None:
    """Answers may be in a file or in another field; without metadata, they are in order."""
    with server_for(gemini) as server, gemini(server.url) as model:
        server.form = form
        client = ChatClient.create(model)
        found = {each.key: each for each in client.batch(["1", "x", "3"], Number, **FAST)}

    assert (found["0"].unwrap(), found["2"].unwrap()) == (Number(number=1), Number(number=3))
    assert isinstance(found["1"].error, ProviderError)


def test_answer_that_is_missing() -> None:
    with BatchServer(lambda body: (204, {})) as server, anthropic(server.url) as model:
        [result] = ChatClient.create(model).batch(["1"], **FAST)

        assert isinstance(result.error, InvalidResponseError)
        assert "lack this request" in str(result.error)


@pytest.mark.parametrize("make", [openai_chat, gemini])
@pytest.mark.parametrize("polls", [3, 100])
def test_answers_that_are_late(make: Callable[[str], ChatModel], polls: int) -> None:
    """If a batch has ended and has no answers, it is polled some more times."""
    with server_for(make) as server, make(server.url) as model:
        server.empty_polls = polls
        [result] = ChatClient.create(model).batch(["1"], **FAST)

    assert result.value == ('{"number": 1}' if polls == 3 else None)
    assert server.empty_polls == (-1 if polls == 3 else 90)


@pytest.mark.parametrize(("status", "kind"), [(503, OverloadedError), (401, AuthenticationError)])
def test_server_that_is_unavailable_later(
    status: int, kind: type[ProviderError], tmp_path: Path
) -> None:
    """If polls keep failing, the batch stays in the journal, and is fetched the next time."""
    options: Any = {"journal": tmp_path / "journal", **FAST}
    with server_for(anthropic) as server:
        model = AnthropicChatModel("m", api_key="k", base_url=server.url, max_retries=0)
        client = ChatClient.create(model)
        server.refusal = status
        [result] = client.batch(["1"], **options)
        assert isinstance(result.error, kind)

        server.refusal = 0
        [result] = client.batch(["1"], **options)
        assert result.value == '{"number": 1}'
        assert len(server.batches) == 1
        client.close()


@pytest.mark.parametrize("status", [503, 404])
def test_service_that_is_unavailable_for_a_while(status: int) -> None:
    """Some polls may fail, or not find the batch, before it is fetched."""
    with server_for(anthropic) as server:
        server.refusal = status
        threading.Timer(0.15, lambda: setattr(server, "refusal", 0)).start()
        with AnthropicChatModel("m", api_key="k", base_url=server.url, max_retries=0) as model:
            [result] = ChatClient.create(model).batch(["1"], **FAST)

        assert result.value == '{"number": 1}'
        assert len(server.batches) == 1


def test_batch_that_cannot_be_submitted() -> None:
    model = GeminiChatModel("m", api_key="k", base_url="http://127.0.0.1:1/v1", max_retries=0)
    with model:
        [result] = ChatClient.create(model).batch(["1"], **FAST)

    assert isinstance(result.error, ConnectionFailedError)


def test_journal_that_cannot_be_written(tmp_path: Path) -> None:
    """The answers arrive all the same, because they have been paid for."""
    journal = tmp_path / "journal"
    with server_for(anthropic) as server, anthropic(server.url) as model:
        batch = ChatClient.create(model).batch(["1", "2"], journal=journal, **FAST)
        journal.unlink()
        journal.mkdir()
        errors = [result.error for result in batch]

    assert errors == [None, None]


def test_beta_features_of_all_requests() -> None:
    with server_for(anthropic) as server, anthropic(server.url) as model:
        client = ChatClient.create(model)
        options = [AnthropicChatOptions(betas=beta) for beta in ("a", "b", "a")]
        requests = [client.prompt("1").options(each) for each in options]
        list(client.batch(requests, **FAST))

        assert server.betas == ["a,b"]


def test_model_without_batch_api() -> None:
    with (
        OllamaChatModel("m", base_url="http://127.0.0.1:1") as model,
        pytest.raises(UsageError, match="no batch API"),
    ):
        ChatClient.create(model).batch(["x"], use_batch_api=True)
