"""Requests under an event loop that is not asyncio's."""

import gc
from collections.abc import Awaitable, Callable

import pytest

from chatclient import ChatClient
from chatclient.errors import UsageError
from chatclient.providers.openai.chat import OpenAIChatModel
from chatclient.runtime.cancellation import running_loop
from chatclient.testing import ScriptedModel

trio = pytest.importorskip("trio")

NOWHERE = "http://127.0.0.1:9/v1"


async def call_client() -> None:
    await ChatClient.create(ScriptedModel("Hi")).prompt("x").acall().content()


async def stream_client() -> None:
    await anext(ChatClient.create(ScriptedModel("Hi")).prompt("x").astream().content())


async def call_model() -> None:
    await OpenAIChatModel("m", api_key="k", base_url=NOWHERE).acall("x")


async def close_model() -> None:
    await OpenAIChatModel("m", api_key="k", base_url=NOWHERE).aclose()


async def call_model_with_client() -> None:
    import httpx

    async with httpx.AsyncClient() as client:
        await OpenAIChatModel("m", api_key="k", base_url=NOWHERE, http_client=client).acall("x")


@pytest.mark.parametrize(
    "use", [call_client, stream_client, call_model, close_model, call_model_with_client]
)
def test_trio_is_named_in_the_error(use: Callable[[], Awaitable[None]]) -> None:
    """The error names what is needed, and no coroutine is left that was never awaited."""
    with pytest.raises(UsageError, match=r"need asyncio.*under trio.*trio\.to_thread"):
        trio.run(use)
    gc.collect()  # nor does a response warn that it was forgotten


def test_blocking_requests_run_in_a_thread_of_trio() -> None:
    """They work as the error suggests."""
    client = ChatClient.create(ScriptedModel("Hi"))

    async def ask() -> str:
        text: str = await trio.to_thread.run_sync(client.prompt("x").call().content)
        return text

    assert trio.run(ask) == "Hi"


def test_without_a_loop_the_error_is_that_of_asyncio() -> None:
    """Blocking requests convert it to an error of their own."""
    with pytest.raises(RuntimeError, match="no running event loop"):
        running_loop()
