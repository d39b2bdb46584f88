"""Turns with agents, retries and tools that are undone, as frontends see them."""

import json
from typing import Any

import httpx
import pytest

from chatclient import (
    AssistantMessage,
    ChatClient,
    ChatResponse,
    Prompt,
    ToolContext,
    UserMessage,
    tool,
)
from chatclient.advisors import HIGHEST_PRECEDENCE, ToolCallingAdvisor
from chatclient.chat import Reasoning
from chatclient.errors import OverloadedError, UsageError
from chatclient.memory import MessageWindowChatMemory
from chatclient.testing import ScriptedModel, call
from chatclient.tools import ToolMetadata
from chatclient.web import UiData, UiState, WebChat, public_error_text
from tests.support.node import run_script
from tests.support.web_app import endpoints, travel_client
from tests.support.web_server import serving

BOOKING = call("book_train", {"number": "IC 1"}, id="call_9")
TRAINS = call("find_trains", {"city": "Rome"}, id="call_1")


def user(text: str) -> dict[str, Any]:
    return {"id": "m1", "role": "user", "parts": [{"type": "text", "text": text}]}


def ask(address: str, *messages: Any) -> Any:
    given = {"url": f"{address}/ai-sdk", "id": "c1", "messages": messages}
    answer = run_script("ai_sdk.mjs", given)
    assert answer["error"] is None, answer
    return answer


def run(client: ChatClient, text: str = "Go.") -> Any:
    """Run an agent of AG-UI, and return what it knows."""
    with serving(endpoints(WebChat(client))) as address:
        messages = [{"id": "m1", "role": "user", "content": text}]
        given = {"url": f"{address}/ag-ui", "threadId": "t1", "runs": [{"messages": messages}]}
        return run_script("ag_ui.mjs", given)[0]


def states(message: Any) -> dict[str, str]:
    return {
        part["toolCallId"]: part["state"]
        for part in message["parts"]
        if part["type"].startswith("tool-")
    }


@pytest.mark.parametrize("approved", [True, False])
def test_approval_inside_an_agent(approved: bool) -> None:
    """A pending call of an agent is a separate part, and gets its result."""
    agent = travel_client(ScriptedModel([BOOKING], "The agent has booked."))
    clerk = agent.as_tool("clerk", "Books trains.", metadata=ToolMetadata(effect="read"))
    model = ScriptedModel([call("clerk", {"request": "Book it."}, id="call_1")], "Done.")
    client = ChatClient.builder(model).default_tools(clerk).build()
    with serving(endpoints(WebChat(client))) as address:
        waiting = ask(address, user("Book it."))["message"]
        assert states(waiting) == {
            "call_1": "input-available",
            "call_1/call_9": "approval-requested",
        }
        (part,) = [each for each in waiting["parts"] if each.get("approval")]
        part.update(state="approval-responded")
        part["approval"]["approved"] = approved
        answer = ask(address, user("Book it."), waiting)

    assert states(answer["message"]) == {
        "call_1": "output-available",
        "call_1/call_9": "output-available" if approved else "output-denied",
    }
    progress = [each["data"] for each in answer["chunks"] if each["type"] == "data-tool-progress"]
    assert "".join(each["value"] for each in progress) == "The agent has booked."


def test_events_inside_an_agent() -> None:
    """State and data of an agent's tools reach the frontend, as does the agent of an agent."""

    @tool(effect="read")
    async def draw(context: ToolContext) -> str:
        """Draw."""
        await context.emit(UiState({"drawn": 1}))
        await context.emit(UiData("chart", [1], transient=True))
        return "drawn"

    inner = ChatClient.builder(ScriptedModel([call("draw", id="d1")], "Inner.")).default_tools(draw)
    outer_model = ScriptedModel([call("inner", {"request": "Go."}, id="i1")], "Outer.")
    outer = ChatClient.builder(outer_model).default_tools(inner.build().as_tool("inner", "Draws."))
    model = ScriptedModel([call("outer", {"request": "Go."}, id="o1")], "Done.")
    client = ChatClient.builder(model).default_tools(outer.build().as_tool("outer", "Draws."))
    with serving(endpoints(WebChat(client.build()))) as address:
        answer = ask(address, user("Draw."))

    data = [each for each in answer["chunks"] if each["type"].startswith("data-")]
    assert {"type": "data-state", "id": "state", "data": {"drawn": 1}} in data
    assert {"type": "data-chart", "data": [1], "transient": True} in data
    assert {each["data"]["toolCallId"] for each in data if "tool-progress" in each["type"]} == {
        *("o1", "o1/i1")
    }


def test_rounds_that_are_not_streamed() -> None:
    """Calls that the stream withholds are shown when they run, in one step."""
    model = ScriptedModel(["A moment.", TRAINS, call("find_trains", '{"city":"Oslo"}')], "Two.")
    client = travel_client(model).mutate()
    advisor = ToolCallingAdvisor(stream_tool_call_responses=False)
    client = client.default_advisors(advisor)
    with serving(endpoints(WebChat(client.build()))) as address:
        message = ask(address, user("Trains?"))["message"]

    assert [part["type"] for part in message["parts"]] == [
        *("step-start", "tool-find_trains", "tool-find_trains", "step-start", "text")
    ]
    assert set(states(message).values()) == {"output-available"}
    assert message["parts"][1]["input"] == {"city": "Rome"}


def test_ids_of_rounds_that_are_not_streamed() -> None:
    """Their messages have the ids that memory gives them."""
    memory = MessageWindowChatMemory()
    model = ScriptedModel([TRAINS], [call("find_trains", '{"city":"Oslo"}', id="call_2")], "Two.")
    advisor = ToolCallingAdvisor(stream_tool_call_responses=False)
    client = travel_client(model, memory=memory).mutate().default_advisors(advisor).build()
    shown = [message["id"].partition("/")[0] for message in run(client)["messages"]]

    assert shown == [message.id for message in memory.get("t1")]


class AskAgain:
    """Asks again until the answer is good."""

    order = HIGHEST_PRECEDENCE

    async def __call__(self, request: Any, call_next: Any) -> Any:
        await call_next(request)
        return await call_next(request)


def test_rejected_answer() -> None:
    """The answer that an advisor rejects is replaced by the next one."""

    def client() -> ChatClient:
        builder = travel_client(ScriptedModel("Bad.", "Good.")).mutate()
        return builder.default_advisors(AskAgain()).build()

    result = run(client())
    assert [message["content"] for message in result["messages"]] == ["Go.", "Good."]
    with serving(endpoints(WebChat(client()))) as address:
        message = ask(address, user("Go."))["message"]
    assert [part.get("text") for part in message["parts"]] == [None, "Good."]


def test_undone_call() -> None:
    """The frontend receives an event for a call that was undone."""
    undone: list[str] = []

    def undo(number: str) -> None:
        undone.append(number)

    @tool(effect="write", compensation=undo)
    def reserve(number: str) -> str:
        """Reserve a seat."""
        return f"Reserved {number}."

    def client() -> ChatClient:
        model = ScriptedModel([call("reserve", {"number": "7"}, id="r1")], OverloadedError("busy"))
        return ChatClient.builder(model).default_tools(reserve).build()

    result = run(client())
    (custom,) = [event for event in result["events"] if event["type"] == "CUSTOM"]
    assert custom["name"] == "tool_call_undone"
    assert custom["value"]["toolCallId"] == "r1"

    with serving(endpoints(WebChat(client()))) as address:
        given = {"url": f"{address}/ai-sdk", "id": "c1", "messages": [user("Go.")]}
        answer = run_script("ai_sdk.mjs", given)
    assert states(answer["message"]) == {"r1": "output-error"}
    assert undone == ["7", "7"]


def test_failed_tool() -> None:
    """The frontend shows the error result that the model receives, not the exception."""

    @tool(effect="read")
    def lookup() -> str:
        """Look it up."""
        raise RuntimeError("a secret")

    model = ScriptedModel([call("lookup", id="l1")], "A pity.")
    with serving(endpoints(WebChat(travel_client(model, lookup)))) as address:
        answer = ask(address, user("Look."))

    assert answer["message"]["parts"][1]["errorText"] == "The tool failed."
    assert "secret" not in json.dumps(answer)


def test_blank_pieces_and_late_text() -> None:
    """An answer that an advisor makes without the model is a message as well."""

    async def canned(request: Any, call_next: Any) -> Any:
        response = await call_next(request)
        return response.mutate(chat_response=ChatResponse.of("Canned."))

    model = ScriptedModel(AssistantMessage([Reasoning("Hm.")]))
    result = run(travel_client(model).mutate().default_advisors(canned).build())

    assert [message["role"] for message in result["messages"]] == ["user", "reasoning", "assistant"]
    assert result["messages"][-1]["content"] == "Canned."


def test_history_of_failed_and_denied_calls() -> None:
    """What the frontend resends of a turn without a result is a conversation for the model."""
    sent: list[Prompt] = []

    def answer(prompt: Prompt) -> str:
        sent.append(prompt)
        return "I see."

    def part(id: str, **state: Any) -> dict[str, Any]:
        return {"type": "tool-book_train", "toolCallId": id, "input": {"number": "IC 1"}, **state}

    parts = [
        {"type": "step-start"},
        {"type": "reasoning", "text": "Hm."},
        {
            "type": "dynamic-tool",
            "toolName": "other",
            "toolCallId": "0",
            "state": "output-available",
        },
        part("1", state="output-error", errorText="No seats."),
        part("2", state="output-denied", approval={"id": "2", "approved": False, "reason": "No."}),
        part("3", state="output-denied"),
        part("4", state="input-available"),
        {"type": "data-chart", "data": [1]},
    ]
    body = {
        "id": "c1",
        "messages": [
            user("Book."),
            {"id": "a1", "role": "assistant", "parts": parts},
            {"id": "m2", "role": "user", "parts": [{"type": "text", "text": "Why?"}]},
        ],
    }
    with serving(endpoints(WebChat(travel_client(ScriptedModel(answer))))) as address:
        assert httpx.post(f"{address}/ai-sdk", json=body).status_code == 200

    _, asked, results, last = sent[0].messages
    assert isinstance(asked, AssistantMessage)
    assert [each.name for each in asked.tool_calls] == ["other", *["book_train"] * 4]
    found: Any = results
    assert [each.data for each in found.responses[:4]] == [
        *("null", "No seats.", "No.", "The user did not allow this call.")
    ]
    assert found.responses[4].is_error
    assert last == UserMessage("Why?")


def test_two_messages_of_the_user() -> None:
    """With a memory, all user messages since the last answer are new."""
    memory = MessageWindowChatMemory()
    model = ScriptedModel("I see.")
    with serving(endpoints(WebChat(travel_client(model, memory=memory)))) as address:
        second = {**user("And?"), "id": "m2"}
        ask(address, user("Hello?"), second)

    assert [message.text for message in memory.get("c1")][-1] == "I see."
    assert "Hello?" in model.prompts[0].messages[0].text


def test_state_without_json_form() -> None:
    """State and data need a JSON form."""
    with pytest.raises(UsageError, match="a state for a frontend needs a JSON form, and object"):
        UiState(object())
    with pytest.raises(UsageError, match="the data 'chart' for a frontend"):
        UiData("chart", object())


def test_texts_of_errors() -> None:
    """Texts depend on the kind of an error."""
    assert public_error_text(OverloadedError("10.0.0.7")) == (
        "The model is not available at the moment. Please try again later."
    )
    assert public_error_text(KeyError("x")) == "Something went wrong. Please try again."
