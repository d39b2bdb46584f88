"""Turns that are stopped or fail: the model knows afterwards what the page shows."""

import itertools
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Any

import httpx
import pytest
from selenium.webdriver import Chrome

from chatclient import ChatClient, ChatModel, ChatResponse, Prompt
from chatclient.advisors import MessageChatMemoryAdvisor
from chatclient.advisors.memory.advisors import NO_ANSWER
from chatclient.durable import Engine, durable, launch
from chatclient.errors import (
    ContentFilterError,
    ContextLengthExceededError,
    GuardrailError,
    OverloadedError,
    UsageError,
)
from chatclient.memory import ENDED_EARLY, MessageWindowChatMemory
from chatclient.runtime.runtime import Runtime
from chatclient.testing import ScriptedModel, call
from chatclient.web import WebChat
from tests.support.browser import click, shown, until, write
from tests.support.node import run_script
from tests.support.waiting import settled
from tests.support.web_app import endpoints, travel_client
from tests.support.web_server import serving
from tests.web.test_use_chat import page_with

NAME, QUESTION = "My name is Ada.", "What is my name?"
SEEN = f"user: {NAME}, assistant: Nice , user: {QUESTION}"
names = (f"early-{number}" for number in itertools.count())


@pytest.fixture(scope="module", autouse=True)
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    path = tmp_path_factory.mktemp("durable") / "turns.db"
    with launch(f"sqlite:///{path}", takeover_seconds=60) as launched:
        yield launched


class HalfModel(ChatModel):
    """Answers a name with one word, and then fails or waits; a question with what it sees."""

    def __init__(self, *, fails: bool = False) -> None:
        self.fails = fails

    async def generate(self, prompt: Prompt, runtime: Runtime) -> ChatResponse:
        raise NotImplementedError

    async def generate_stream(
        self, prompt: Prompt, runtime: Runtime
    ) -> AsyncGenerator[ChatResponse | str, None]:
        if prompt.messages[-1].text == QUESTION:
            yield ", ".join(f"{message.role}: {message.text}" for message in prompt.messages)
            return
        yield "Nice "
        if self.fails:
            raise OverloadedError("busy", provider="test")
        await runtime.sleep(3600)


def user(text: str, id: str) -> dict[str, Any]:
    return {"id": id, "role": "user", "parts": [{"type": "text", "text": text}], "content": text}


def client_with(model: ChatModel, memory: MessageWindowChatMemory) -> ChatClient:
    advisor = MessageChatMemoryAdvisor(memory)
    return ChatClient.builder(model).default_advisors(advisor).build()


def post(address: str, path: str, *messages: Any, **fields: Any) -> None:
    body = {"id": "c1", "threadId": "c1", "runId": "r", "messages": messages, **fields}
    response = httpx.post(f"{address}/{path}", json=body, timeout=30)
    assert response.status_code == httpx.codes.OK, response.text


def by_ai_sdk(address: str, after_first: Callable[[], None], *, fails: bool) -> str:
    """Send the name, press Stop if it does not fail, and return the answer to the question."""
    given = {"url": f"{address}/ai-sdk", "id": "c1"}
    first = user(NAME, "m1")
    begun = run_script(
        "ai_sdk.mjs", {**given, "messages": [first], **({} if fails else {"stopAfter": "Nice"})}
    )
    after_first()
    messages = [first, begun["message"], user(QUESTION, "m2")]
    answer = run_script("ai_sdk.mjs", {**given, "messages": messages})
    return "".join(part.get("text", "") for part in answer["message"]["parts"])


def by_ag_ui(address: str, after_first: Callable[[], None], *, fails: bool) -> str:
    """The same with the client of AG-UI."""
    given = {"url": f"{address}/ag-ui", "threadId": "c1"}
    run = {"messages": [user(NAME, "m1")], **({} if fails else {"stopAfter": "Nice"})}
    (begun,) = run_script("ag_ui.mjs", {**given, "runs": [run]})
    after_first()
    run = {"messages": [user(QUESTION, "m2")]}
    (result,) = run_script("ag_ui.mjs", {**given, "messages": begun["messages"], "runs": [run]})
    text: str = result["messages"][-1]["content"]
    return text


@pytest.mark.parametrize("is_durable", [False, True], ids=["process", "durable"])
@pytest.mark.parametrize("fails", [False, True], ids=["stopped", "failed"])
@pytest.mark.parametrize("way", [by_ai_sdk, by_ag_ui])
def test_next_question(way: Callable[..., str], *, fails: bool, is_durable: bool) -> None:
    """The next question may refer to the last question and to the words that were shown."""
    memory = MessageWindowChatMemory()
    client = client_with(HalfModel(fails=fails), memory)
    chat = WebChat(durable(client, name=next(names)) if is_durable else client)
    with serving(endpoints(chat)) as address:

        def after_first() -> None:
            if is_durable and not fails:  # a durable turn goes on without a reader
                httpx.delete(f"{address}/ai-sdk/c1/stream", timeout=30)
            assert settled(lambda: bool(memory.get("c1")))

        assert way(address, after_first, fails=fails) == SEEN

    assert [message.text for message in memory.get("c1")] == [NAME, "Nice ", QUESTION, SEEN]
    assert ENDED_EARLY in memory.get("c1")[1].metadata


@pytest.mark.parametrize("is_durable", [False, True], ids=["process", "durable"])
def test_stop_button(browser: Chrome, *, is_durable: bool) -> None:
    """`stop` of `useChat`; a durable turn is cancelled on the server as well."""
    memory = MessageWindowChatMemory()
    client = client_with(HalfModel(), memory)
    with serving(page_with(durable(client, name=next(names)) if is_durable else client)) as address:
        browser.get(address)
        write(browser, NAME)
        until(browser, lambda: shown(browser, ".assistant .text") == ["Nice"])
        click(browser, "Stop")
        until(browser, lambda: bool(memory.get("c1")))
        write(browser, QUESTION)
        until(browser, lambda: shown(browser, ".assistant .text") == ["Nice", SEEN])
        assert shown(browser, ".error") == []


@pytest.mark.parametrize("path", ["ai-sdk", "ag-ui"])
def test_stopped_while_it_waits(path: str) -> None:
    """A durable turn that waits for an approval, and is stopped, is stored as it is shown."""
    memory = MessageWindowChatMemory()
    booking = call("book_train", {"number": "IC 1"}, id="call_9")
    client = travel_client(ScriptedModel(["Let me book.", booking], "Ada."), memory=memory)
    with serving(endpoints(WebChat(durable(client, name=next(names))))) as address:
        post(address, path, user(NAME, "m1"))
        httpx.delete(f"{address}/ai-sdk/c1/stream", timeout=30)
        post(address, path, user(QUESTION, "m2"))

    texts = [message.text for message in memory.get("c1")]
    assert texts == [NAME, "Let me book.", "", QUESTION, "Ada."]
    assert ENDED_EARLY in memory.get("c1")[2].metadata


@pytest.mark.parametrize("path", ["ai-sdk", "ag-ui"])
def test_failed_before_the_first_word(path: str) -> None:
    """The page shows the question and an error; both questions reach the model, in this order."""
    memory = MessageWindowChatMemory()
    model = ScriptedModel(OverloadedError("busy", provider="test"), "Ada.", "Ada.")
    first, second = user(NAME, "m1"), user(QUESTION, "m2")
    with serving(endpoints(WebChat(client_with(model, memory)))) as address:
        post(address, path, first)
        assert [message.text for message in memory.get("c1")] == [NAME, NO_ANSWER]
        post(address, path, first, second)

    assert [message.text for message in model.prompts[-1].messages] == [NAME, QUESTION]
    assert [m.text for m in memory.get("c1") if m.role == "user"] == [NAME, QUESTION]


@pytest.mark.parametrize("path", ["ai-sdk", "ag-ui"])
@pytest.mark.parametrize(
    "error",
    [
        ContextLengthExceededError("too long", provider="test"),
        ContentFilterError("no", provider="test"),
        UsageError("no video"),
        GuardrailError("no", guardrail="g", messages=["no"]),
    ],
)
def test_requests_that_were_refused(path: str, error: Exception) -> None:
    """A request that a provider or a guardrail refuses would be refused again: it is not stored."""
    memory = MessageWindowChatMemory()
    with serving(endpoints(WebChat(client_with(ScriptedModel(error), memory)))) as address:
        post(address, path, user(NAME, "m1"))

    assert memory.get("c1") == []


@pytest.mark.parametrize("path", ["ai-sdk", "ag-ui"])
def test_answer_again(path: str) -> None:
    """The answer to a question that had failed takes its place."""
    memory = MessageWindowChatMemory()
    model = ScriptedModel(["Nice ", OverloadedError("busy", provider="test")], "Hi.", "Hi, Ada.")
    with serving(endpoints(WebChat(client_with(model, memory)))) as address:
        post(address, path, user("Hello.", "m0"))
        for _ in range(2):
            post(address, path, user(NAME, "m1"), trigger="regenerate-message")

    assert [message.text for message in memory.get("c1")][-2:] == [NAME, "Hi, Ada."]
    assert sum(message.text == NAME for message in memory.get("c1")) == 1
