"""What notebooks and terminals show of objects."""

import inspect
import re
import xml.etree.ElementTree as ET
from importlib import import_module

import pytest

from chatclient import ChatClient, ChatClientRequest, tool
from chatclient._internal.exports import PUBLIC_PACKAGES
from chatclient.advisors import (
    Budget,
    InputGuardrailAdvisor,
    MessageChatMemoryAdvisor,
    RateLimitAdvisor,
)
from chatclient.chat.document import Document
from chatclient.errors import OverloadedError
from chatclient.memory import (
    InMemoryChatMemoryRepository,
    MessageWindowChatMemory,
    SqlChatMemoryRepository,
)
from chatclient.testing import ScriptedModel, call
from chatclient.tools import ToolCallingManager, ToolLimits

MEMORY = MessageChatMemoryAdvisor(MessageWindowChatMemory(InMemoryChatMemoryRepository()))


@tool
def find(text: str) -> str:
    """Find a text."""
    return f"<b>{text}</b>"


def polite(request: ChatClientRequest) -> None:
    """Accept each request."""


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (Budget(calls=5), "<Budget limits={'calls': 5}>"),
        (MEMORY, "<MessageChatMemoryAdvisor memory=MessageWindowChatMemory>"),
        (InputGuardrailAdvisor(polite), "<InputGuardrailAdvisor guardrails=[polite]>"),
        (InMemoryChatMemoryRepository(), "<InMemoryChatMemoryRepository>"),
        (SqlChatMemoryRepository("sqlite:////secret.db"), "<SqlChatMemoryRepository>"),
        (ToolCallingManager(limits=ToolLimits(5)), "<ToolCallingManager limits=ToolLimits>"),
        (
            ChatClient.create(ScriptedModel()).batch(["a", "b"]),
            "<Batch: 0 of 2 finished>",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:a batch was made:RuntimeWarning")
def test_short_texts(shown: object, expected: str) -> None:
    """They name the class, and values that are no texts."""
    assert repr(shown) == expected


def test_all_public_classes_have_a_short_text() -> None:
    """None of them shows an address in memory."""
    plain = [
        name
        for package in map(import_module, PUBLIC_PACKAGES)
        for name in package.__all__
        if inspect.isclass(kind := getattr(package, name))
        and kind.__repr__ is object.__repr__
        and not getattr(kind, "_is_protocol", False)
    ]
    assert plain == []


def test_trail_in_a_notebook() -> None:
    """It is a table with a row for each step, in which texts are escaped."""
    model = ScriptedModel(call("find", {"text": "x"}), "<i>Found.</i>")
    client = ChatClient.builder(model).default_tools(find).build()
    answer = client.prompt("?").call()
    assert answer._repr_html_() is None
    assert answer.content() == "<i>Found.</i>"
    table = ET.fromstring(f"<x>{answer.trail()._repr_html_()}</x>")

    assert (
        answer._repr_html_() == '<div style="white-space:pre-wrap">&lt;i&gt;Found.&lt;/i&gt;</div>'
    )
    rows = [[cell.text for cell in row] for row in table.iter("tr")]
    assert rows[0] == ["step", "result", "seconds", "time line"]
    assert [row[1] for row in rows[1:] if row[0] == "execute_tool find"] == ["<b>x</b>"]
    assert all(re.fullmatch(r"\d+\.\d{3}", row[2] or "") for row in rows[1:])


def test_failed_trail_in_a_notebook() -> None:
    """The error is in the row of the step that failed, and in those around it."""
    with pytest.raises(OverloadedError) as raised:
        ChatClient.create(ScriptedModel(OverloadedError("too busy"))).prompt("?").call().content()
    assert raised.value.trail is not None

    assert "failed: OverloadedError: too busy" in raised.value.trail._repr_html_()


def test_chain_in_a_notebook() -> None:
    """It is a picture with a box for each advisor, and a frame around the loop."""
    builder = ChatClient.builder(ScriptedModel()).default_tools(find)
    client = builder.default_advisors(MEMORY, RateLimitAdvisor(requests=1)).build()
    picture = ET.fromstring(client._repr_html_())
    texts = [each.text for each in picture.iter("{http://www.w3.org/2000/svg}text")]

    assert texts[0] == "ChatClient"
    assert "MessageChatMemoryAdvisor" in texts
    assert texts[-1] == "once per round"
    assert "href" not in client._repr_html_().replace("xmlns", "")


def test_document_in_a_notebook() -> None:
    """It is the text below the score and the metadata."""
    shown = Document("1 < 2", {"source": "a.md"}, score=0.5)._repr_html_()

    assert "score: 0.500, source: a.md" in shown
    assert "1 &lt; 2" in shown
