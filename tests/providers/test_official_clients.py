"""The official packages accept the answers of the test servers."""

import gc
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.chaos_server import CLOSE, ChaosServer, http
from tests.support.servers import ChatServer, completion
from tests.support.services import SERVICES, TEXT, Service

pytestmark = pytest.mark.exhaustive

Ask = Callable[[str, bool], str]


def ask_chat(url: str, streaming: bool) -> str:
    import openai

    client = openai.OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0)
    with client:
        messages: Any = [{"role": "user", "content": "Hi"}]
        if not streaming:
            complete = client.chat.completions.create(model="m", messages=messages)
            assert complete.usage is not None
            assert complete.choices[0].finish_reason == "stop"
            return complete.choices[0].message.content or ""
        chunks = list(client.chat.completions.create(model="m", messages=messages, stream=True))
        assert chunks[-1].usage is not None
        return "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)


def ask_responses(url: str, streaming: bool) -> str:
    import openai

    client = openai.OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0)
    with client:
        if not streaming:
            return client.responses.create(model="m", input="Hi").output_text
        with client.responses.stream(model="m", input="Hi") as stream:
            text = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
            assert stream.get_final_response().output_text == text
            return text


def ask_anthropic(url: str, streaming: bool) -> str:
    import anthropic

    client = anthropic.Anthropic(base_url=url, api_key="k", max_retries=0)
    with client:
        messages: Any = [{"role": "user", "content": "Hi"}]
        named: Any = {"model": "m", "max_tokens": 9, "messages": messages}
        if not streaming:
            return "".join(b.text for b in client.messages.create(**named).content)
        with client.messages.stream(**named) as stream:
            text = "".join(stream.text_stream)
            assert stream.get_final_message().stop_reason == "end_turn"
            return text


def ask_gemini(url: str, streaming: bool) -> str:
    genai = pytest.importorskip("google.genai")
    client = genai.Client(api_key="k", http_options={"base_url": url, "api_version": "v1beta"})
    try:
        if not streaming:
            return str(client.models.generate_content(model="m", contents="Hi").text)
        chunks = list(client.models.generate_content_stream(model="m", contents="Hi"))
        assert chunks[-1].candidates[0].finish_reason == "STOP"
        return "".join(chunk.text or "" for chunk in chunks)
    finally:
        client.close()


def ask_ollama(url: str, streaming: bool) -> str:
    import ollama

    client = ollama.Client(host=url)
    messages: Any = [{"role": "user", "content": "Hi"}]
    if not streaming:
        return client.chat(model="m", messages=messages).message.content or ""
    lines = list(client.chat(model="m", messages=messages, stream=True))
    assert lines[-1].done
    return "".join(line.message.content or "" for line in lines)


def ask_bedrock(url: str, streaming: bool) -> str:
    from botocore import UNSIGNED
    from botocore.config import Config
    from botocore.session import Session

    client: Any = Session().create_client(
        "bedrock-runtime", "eu-west-1", endpoint_url=url, config=Config(signature_version=UNSIGNED)
    )
    asked: Any = {"modelId": "m", "messages": [{"role": "user", "content": [{"text": "Hi"}]}]}
    if not streaming:
        return str(client.converse(**asked)["output"]["message"]["content"][0]["text"])
    events = list(client.converse_stream(**asked)["stream"])
    assert "metadata" in events[-1]
    deltas = [
        event["contentBlockDelta"]["delta"] for event in events if "contentBlockDelta" in event
    ]
    return "".join(delta["text"] for delta in deltas)


ASK: dict[str, Ask] = {
    "bedrock": ask_bedrock,
    "chat": ask_chat,
    "responses": ask_responses,
    "anthropic": ask_anthropic,
    "gemini": ask_gemini,
    "ollama": ask_ollama,
}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::Warning")
@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("service", SERVICES, ids=str)
def test_service_answers_are_valid(service: Service, streaming: bool) -> None:
    """The official packages parse the answers that the test services give."""
    kind = service.stream_type if streaming else "application/json"
    answer = http(service.answer(streaming=streaming), headers={"content-type": kind})
    with ChaosServer([[answer, CLOSE]]) as server:
        assert ASK[service.name](server.url, streaming).strip() == TEXT
    gc.collect()  # some packages leave sockets open; collect them here, not in another test


def test_parallel_calls_are_valid(chat_server: Callable[..., ChatServer]) -> None:
    """OpenAI's package joins the fragments of two calls in the same way."""
    import openai

    calls = [("c1", "add", '{"a": 1, "b": 2}'), ("c2", "add", '{"a": 3, "b": 4}')]
    server = chat_server(completion("Let me see.", *calls))
    with openai.OpenAI(base_url=server.url, api_key="k", max_retries=0) as client:
        messages: Any = [{"role": "user", "content": "Hi"}]
        with client.chat.completions.stream(model="m", messages=messages) as stream:
            for _event in stream:
                pass
            message = stream.get_final_completion().choices[0].message

    assert message.content == "Let me see."
    parsed = [(c.id, c.function.name, c.function.arguments) for c in message.tool_calls or ()]
    assert parsed == calls
