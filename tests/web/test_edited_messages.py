"""Messages that the user edits, and answers that are generated again: memory has what is shown."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from selenium.webdriver import Chrome

from chatclient import (
    USER_ID,
    AssistantMessage,
    ChatClient,
    ChatClientRequestSpec,
    Prompt,
    UserMessage,
)
from chatclient.advisors import MessageChatMemoryAdvisor, SessionMemoryAdvisor
from chatclient.durable import DurableClient, durable, launch
from chatclient.memory import (
    ChatMemory,
    InMemorySessionRepository,
    MessageWindowChatMemory,
    SessionChatMemory,
    SessionService,
    SummarizingChatMemory,
)
from chatclient.testing import ScriptedModel
from chatclient.web import UiRequest, WebChat
from tests.support.browser import click, shown, until, write
from tests.support.gated_model import GatedModel
from tests.support.web_app import endpoints
from tests.support.web_server import serving
from tests.web.test_use_chat import page_with


def echo(prompt: Prompt) -> str:
    """Answer with the questions that the model sees."""
    return "+".join(message.text for message in prompt.messages if message.role == "user")


def sessions() -> SessionChatMemory:
    return SessionChatMemory(SessionService(InMemorySessionRepository()))


MEMORIES: dict[str, Callable[[], ChatMemory]] = {
    "window": MessageWindowChatMemory,
    "summary": lambda: SummarizingChatMemory(ScriptedModel("Summary.")),
    "sessions": sessions,
}


def client_with(memory: ChatMemory) -> ChatClient:
    advisor = (
        SessionMemoryAdvisor(memory)
        if isinstance(memory, SessionChatMemory)
        else MessageChatMemoryAdvisor(memory)
    )
    return ChatClient.builder(ScriptedModel(echo)).default_advisors(advisor).build()


def user(id: str, text: str) -> dict[str, Any]:
    return {"id": id, "role": "user", "parts": [{"type": "text", "text": text}]}


def post(address: str, path: str, *messages: Any, **fields: Any) -> None:
    body = {"id": "c1", "threadId": "c1", "runId": "r", "messages": messages, **fields}
    response = httpx.post(f"{address}/{path}", json=body, timeout=30)
    assert response.status_code == 200, response.text


def texts(memory: ChatMemory) -> list[str]:
    return [message.text for message in memory.get("c1")]


@pytest.mark.parametrize("name", MEMORIES)
def test_ai_sdk(name: str) -> None:
    """An edited message, and one that is answered again, replace all that followed them."""
    memory = MEMORIES[name]()
    with serving(endpoints(WebChat(client_with(memory)))) as address:
        post(address, "ai-sdk", user("1", "a"))
        post(address, "ai-sdk", user("2", "b"))
        post(address, "ai-sdk", user("3", "c"))
        assert texts(memory) == ["a", "a", "b", "a+b", "c", "a+b+c"]

        post(address, "ai-sdk", user("2", "B"), trigger="submit-message", messageId="2")
        assert texts(memory) == ["a", "a", "B", "a+B"]
        post(address, "ai-sdk", user("2", "B"), trigger="regenerate-message")
        assert texts(memory) == ["a", "a", "B", "a+B"]
        post(address, "ai-sdk", user("4", "d"), trigger="submit-message")
        assert texts(memory) == ["a", "a", "B", "a+B", "d", "a+B+d"]
        # One that was never stored, because its turn failed.
        post(address, "ai-sdk", user("5", "e"), trigger="regenerate-message")
        assert texts(memory)[-2:] == ["e", "a+B+d+e"]
        post(address, "ai-sdk", user("1", "A"), trigger="submit-message", messageId="1")
        assert texts(memory) == ["A", "A"]


def test_ag_ui() -> None:
    """AG-UI sends the message again with its id."""
    memory = MessageWindowChatMemory()
    chat = WebChat(client_with(memory))
    with serving(endpoints(chat)) as address:
        for id, text in [("1", "a"), ("2", "b"), ("2", "B")]:
            post(address, "ag-ui", {"id": id, "role": "user", "content": text})

    assert texts(memory) == ["a", "a", "B", "a+B"]


def test_memory_of_another_user() -> None:
    """Removing messages from the session of another user is an error."""
    memory = sessions()

    def prepare(spec: ChatClientRequestSpec, ui: UiRequest) -> ChatClientRequestSpec:
        return spec.advisor_params({USER_ID: ui.http.headers["x-user"]})

    chat = WebChat(client_with(memory), prepare=prepare)
    with serving(endpoints(chat)) as address:
        body = {"id": "c1", "messages": [user("1", "a")], "trigger": "regenerate-message"}
        for name in ("ann", "bob", "ann"):
            headers = {"x-user": name}
            response = httpx.post(f"{address}/ai-sdk", json=body, headers=headers, timeout=30)
            assert ("errorText" in response.text) == (name == "bob")
            assert texts(memory) == ["a", "a"]


AGAIN = {"trigger": "regenerate-message"}


def without_queue(client: DurableClient) -> WebChat:
    return WebChat(client, queue="missing")


def without_json_form(client: DurableClient) -> WebChat:
    return WebChat(client, prepare=lambda spec, _: spec.tool_context({"object": object()}))


@pytest.mark.parametrize("path", ["ai-sdk", "ag-ui"])
@pytest.mark.parametrize("chat_with", [without_queue, without_json_form, WebChat])
def test_refused_request(
    path: str, chat_with: Callable[[DurableClient], WebChat], tmp_path: Path
) -> None:
    """A request that is refused removes nothing, as that of a second tab while a turn runs."""
    memory = MessageWindowChatMemory()
    memory.add("c1", [UserMessage("a", id="1"), AssistantMessage("A")])
    model = GatedModel()
    advisor = MessageChatMemoryAdvisor(memory)
    client = ChatClient.builder(model).default_advisors(advisor).build()
    asked = {**user("1", "b"), "content": "b"}
    body = {"id": "c1", "threadId": "c1", "runId": "r", "messages": [asked]}
    with launch(f"sqlite:///{tmp_path / 'turns.db'}"):
        durable_client = durable(client, name=f"refused-{tmp_path.name}")
        if chat_with is WebChat:  # the first tab
            durable_client.conversation("c1").start("c", streaming=True)
        with serving(endpoints(chat_with(durable_client))) as address:
            response = httpx.post(f"{address}/{path}", json={**body, **AGAIN}, timeout=30)

        assert response.status_code == (409 if chat_with is WebChat else 422)
        assert texts(memory) == ["a", "A"]
        model.gate.set()


class Custom(MessageWindowChatMemory):
    """A memory that cannot remove messages."""

    cut = ChatMemory.cut


def test_memory_that_cannot_remove_messages() -> None:
    """The answer is shown, and not stored; a direct call raises an error."""
    memory = Custom()
    with serving(endpoints(WebChat(client_with(memory)))) as address:
        post(address, "ai-sdk", user("1", "a"))
        post(address, "ai-sdk", user("1", "b"), trigger="submit-message", messageId="1")

    assert texts(memory) == ["a", "a"]
    with pytest.raises(ValueError, match="implement its coroutine cut"):
        memory.rewind("c1", "1")


@pytest.mark.process("browser with useChat")
def test_use_chat(browser: Chrome, tmp_path: Path) -> None:
    """`regenerate` and edited messages of `useChat`, with durable turns."""
    memory = MessageWindowChatMemory()
    with (
        launch(f"sqlite:///{tmp_path / 'turns.db'}"),
        serving(page_with(durable(client_with(memory), name="edited"))) as address,
    ):
        browser.get(address)
        write(browser, "a")
        until(browser, lambda: shown(browser, ".text") == ["a", "a"])
        write(browser, "b")
        until(browser, lambda: shown(browser, ".text") == ["a", "a", "b", "a+b"])
        click(browser, "Again")
        until(browser, lambda: shown(browser, "[data-status=ready]"))
        until(browser, lambda: shown(browser, ".text") == ["a", "a", "b", "a+b"])
        until(browser, lambda: texts(memory) == ["a", "a", "b", "a+b"])
        browser.find_element("id", "text").send_keys("A")
        click(browser, "Replace the first")
        until(browser, lambda: shown(browser, ".text") == ["A", "A"])
        until(browser, lambda: texts(memory) == ["A", "A"])
        assert shown(browser, ".error") == []
