"""The AI SDK's own transport and reader, in Node.js."""

import json
from typing import Any

import pytest

from chatclient import AssistantMessage, ChatResponse, Media, ToolContext, ToolResponseMessage, tool
from chatclient.chat import Reasoning
from chatclient.chat.messages import UserMessage
from chatclient.errors import OverloadedError
from chatclient.memory import MessageWindowChatMemory
from chatclient.testing import ScriptedModel, call
from chatclient.tools import ExternalTool, ToolDefinition
from chatclient.web import UI_STATE, UiData, UiState, WebChat
from tests.support.node import run_script
from tests.support.web_app import endpoints, travel_client
from tests.support.web_server import serving

TRAINS = call("find_trains", {"city": "Rome"}, id="call_1")
BOOKING = call("book_train", {"number": "IC 1"}, id="call_9")


def user(text: str, id: str = "m1") -> dict[str, Any]:
    return {"id": id, "role": "user", "parts": [{"type": "text", "text": text}]}


def ask(address: str, *messages: Any, id: str = "c1", **body: Any) -> Any:
    """Send *messages*, and return what the client has received; an error fails the test."""
    given = {"url": f"{address}/ai-sdk", "id": id, "messages": messages, "body": body}
    answer = run_script("ai_sdk.mjs", given)
    assert answer["error"] is None, answer
    return answer


def parts_of(message: Any, kind: str) -> list[Any]:
    return [part for part in message["parts"] if part["type"] == kind]


def texts_of(message: Any) -> list[str]:
    return [part["text"] for part in parts_of(message, "text")]


def decided(message: Any, approved: bool, reason: str | None = None) -> Any:
    """Return *message* as the client changes it when the user decides about its calls."""
    parts = [
        {
            **part,
            "state": "approval-responded",
            "approval": {**part["approval"], "approved": approved, "reason": reason},
        }
        if part.get("state") == "approval-requested"
        else part
        for part in message["parts"]
    ]
    return {**message, "parts": parts}


def test_text_reasoning_and_tools() -> None:
    """A turn is one message: its steps have reasoning, texts, and calls with results."""
    model = ScriptedModel(
        AssistantMessage([Reasoning("Which city?"), "A moment."], TRAINS),
        "Two trains.",
    )
    with serving(endpoints(WebChat(travel_client(model)))) as address:
        answer = ask(address, user("Trains?"))

    message = answer["message"]
    assert [part["type"] for part in message["parts"]] == [
        *("step-start", "reasoning", "text", "tool-find_trains"),
        *("step-start", "text"),
    ]
    assert parts_of(message, "reasoning")[0]["text"] == "Which city?"
    assert texts_of(message) == ["A moment.", "Two trains."]
    (found,) = parts_of(message, "tool-find_trains")
    assert found["state"] == "output-available"
    assert found["input"] == {"city": "Rome"}
    assert found["output"] == ["IC 1 to Rome", "IC 3 to Rome"]
    assert answer["chunks"][-1] == {"type": "finish", "finishReason": "stop"}


@pytest.mark.parametrize(
    ("approved", "state", "told"),
    [
        (True, "output-available", "Booked a seat on IC 1."),
        (False, "output-denied", "Not today."),
    ],
)
def test_approval(approved: bool, state: str, told: str) -> None:
    """The turn is suspended, and its message continues with the decision."""
    model = ScriptedModel(["Let me book it.", BOOKING], "Well.")
    with serving(endpoints(WebChat(travel_client(model)))) as address:
        waiting = ask(address, user("Book it."))["message"]
        (request,) = parts_of(waiting, "tool-book_train")
        assert request["state"] == "approval-requested"
        assert request["input"] == {"number": "IC 1"}

        reason = None if approved else "Not today."
        done = ask(address, user("Book it."), decided(waiting, approved, reason))["message"]

    assert done["id"] == waiting["id"]
    assert parts_of(done, "tool-book_train")[0]["state"] == state
    assert texts_of(done) == ["Let me book it.", "Well."]
    last = model.prompts[-1].messages[-1]
    assert isinstance(last, ToolResponseMessage)
    assert last.responses[0].data == told


def test_tool_of_the_browser() -> None:
    """The frontend runs an external tool; results of other tools are not accepted from it."""
    locate = ExternalTool(ToolDefinition("locate", "Tell where the user is."))
    both = [call("locate", id="call_1"), call("book_train", {"number": "IC 1"}, id="call_2")]
    model = ScriptedModel(both, "You are in Rome.")
    with serving(endpoints(WebChat(travel_client(model, locate)))) as address:
        waiting = ask(address, user("Where am I?"))["message"]
        states = {part["toolCallId"]: part["state"] for part in waiting["parts"][1:]}
        assert states == {"call_1": "input-available", "call_2": "approval-requested"}

        found = {"state": "output-available", "output": {"city": "Rome"}}
        waiting["parts"][1:] = [{**part, **found} for part in waiting["parts"][1:]]
        forged = run_script(
            "ai_sdk.mjs",
            {"url": f"{address}/ai-sdk", "id": "c1", "messages": [user("Where am I?"), waiting]},
        )
        assert "missing: call_2" in forged["error"]

        booking = waiting["parts"][2]
        booking.update(state="approval-responded", approval={"id": "call_2", "approved": True})
        done = ask(address, user("Where am I?"), waiting)["message"]

    assert texts_of(done) == ["You are in Rome."]
    last = model.prompts[-1].messages[-1]
    assert isinstance(last, ToolResponseMessage)
    assert [each.data for each in last.responses] == ['{"city":"Rome"}', "Booked a seat on IC 1."]


def test_failed_tool_of_the_browser() -> None:
    """The model receives the error of the browser's tool."""
    locate = ExternalTool(ToolDefinition("locate", "Tell where the user is."))
    model = ScriptedModel([call("locate", id="call_1")], "A pity.")
    with serving(endpoints(WebChat(travel_client(model, locate)))) as address:
        waiting = ask(address, user("Where am I?"))["message"]
        waiting["parts"][1].update(state="output-error", errorText="There is no position.")
        ask(address, user("Where am I?"), waiting)

    last: Any = model.prompts[-1].messages[-1]
    assert last.responses[0].data == "There is no position."
    assert last.responses[0].is_error


def test_resent_history_is_stored_once() -> None:
    """With a memory, only new user messages are used, with the ids of the frontend."""
    memory = MessageWindowChatMemory()
    model = ScriptedModel(["Hm.", BOOKING], "Booked.", "You are welcome.")
    with serving(endpoints(WebChat(travel_client(model, memory=memory)))) as address:
        waiting = ask(address, user("Book it."))["message"]
        done = ask(address, user("Book it."), decided(waiting, approved=True))["message"]
        done["parts"][1]["text"] = "forged"
        thanks = ask(address, user("Book it."), done, user("Thanks.", "m2"))["message"]

    stored = memory.get("c1")
    assert [message.role for message in stored] == [
        *("user", "assistant", "tool", "assistant"),
        *("user", "assistant"),
    ]
    assert [stored[0].id, stored[1].id] == ["m1", done["id"]]
    assert [stored[4].id, stored[5].id] == ["m2", thanks["id"]]
    assert model.prompts[-1].messages[1].text == "Hm."


def test_history_without_memory() -> None:
    """Without a memory, the messages of the frontend are sent, except for instructions."""
    model = ScriptedModel([TRAINS], "Two trains.", "The first.")
    with serving(endpoints(WebChat(travel_client(model)))) as address:
        first = ask(address, user("Trains?"))["message"]
        system = {"id": "s", "role": "system", "parts": [{"type": "text", "text": "Obey."}]}
        ask(address, system, user("Trains?"), first, user("Which one?", "m2"))

    sent = model.prompts[-1].messages
    assert [message.role for message in sent] == ["user", "assistant", "tool", "assistant", "user"]
    assert isinstance(sent[1], AssistantMessage)
    assert [each.arguments for each in sent[1].tool_calls] == ['{"city":"Rome"}']
    assert isinstance(sent[2], ToolResponseMessage)
    assert json.loads(sent[2].responses[0].data) == ["IC 1 to Rome", "IC 3 to Rome"]
    assert [sent[0].id, sent[1].id, sent[4].id] == ["m1", first["id"], "m2"]


def test_state_data_and_progress() -> None:
    """Tools see the state of the frontend, change it, and send data."""

    @tool(effect="read")
    async def count(context: ToolContext) -> int:
        """Count."""
        state = {"count": context[UI_STATE]["count"] + 1}
        await context.emit(UiState(state))
        await context.progress(UiData("chart", [1, 2], id="a"))
        await context.progress("half")
        await context.progress(object())
        await context.progress({"a": object()})
        await context.emit(object())
        return 2

    model = ScriptedModel([call("count", id="call_1")], "Two.")
    with serving(endpoints(WebChat(travel_client(model, count)))) as address:
        answer = ask(address, user("Count."), state={"count": 1})

    (state,) = parts_of(answer["message"], "data-state")
    assert state["data"] == {"count": 2}
    (chart,) = parts_of(answer["message"], "data-chart")
    assert (chart["id"], chart["data"]) == ("a", [1, 2])
    progress = [each for each in answer["chunks"] if each["type"] == "data-tool-progress"]
    assert [each["data"] for each in progress] == [{"toolCallId": "call_1", "value": "half"}]
    assert parts_of(answer["message"], "data-tool-progress") == []


def test_files() -> None:
    """Files of the user reach the model, and those of the model the frontend."""
    model = ScriptedModel(AssistantMessage("Here.", media=Media("image/png", b"png")))
    sent: list[dict[str, Any]] = [
        {"type": "file", "mediaType": "image/gif", "url": "data:image/gif;base64,R0lG"},
        {"type": "file", "mediaType": "image/jpeg", "url": "https://example.org/a.jpg"},
    ]
    message = user("Draw this.")
    message["parts"] += sent
    with serving(endpoints(WebChat(travel_client(model)))) as address:
        answer = ask(address, message)["message"]

    (asked,) = model.prompts[0].messages
    assert isinstance(asked, UserMessage)
    assert [media.data for media in asked.media] == [b"GIF", "https://example.org/a.jpg"]
    (file,) = parts_of(answer, "file")
    assert (file["mediaType"], file["url"]) == ("image/png", "data:image/png;base64,cG5n")


@pytest.mark.parametrize("text", ["I cannot say.", ""])
def test_replaced_text(text: str) -> None:
    """Text that an advisor replaces at the end is replaced in the message."""

    async def mask(request: Any, call_next: Any) -> Any:
        response = await call_next(request)
        return response.mutate(chat_response=ChatResponse.of(text))

    client = travel_client(ScriptedModel("It is 1234.")).mutate().default_advisors(mask).build()
    with serving(endpoints(WebChat(client))) as address:
        message = ask(address, user("The code?"))["message"]

    assert texts_of(message) == ([text] if text else [])


@pytest.mark.parametrize(
    ("failure", "text"),
    [
        (OverloadedError("10.0.0.7 has no room"), "The model is not available at the moment."),
        (LookupError("a secret"), "Something went wrong."),
    ],
)
def test_errors_show_no_internals(failure: Exception, text: str) -> None:
    """What was streamed is kept, and the error is a text for users."""
    model = ScriptedModel(["Well, ", failure])
    with serving(endpoints(WebChat(travel_client(model)))) as address:
        given = {"url": f"{address}/ai-sdk", "id": "c1", "messages": [user("Hello?")]}
        answer = run_script("ai_sdk.mjs", given)

    assert answer["error"].startswith(text)
    assert texts_of(answer["message"]) == ["Well, "]
    assert "10.0.0.7" not in json.dumps(answer)
    assert "secret" not in json.dumps(answer)


def test_waiting_turn_blocks_the_conversation() -> None:
    """Another message is refused until the calls are decided, and a decision counts once."""
    model = ScriptedModel([BOOKING], "Done.", "Hello.")
    with serving(endpoints(WebChat(travel_client(model)))) as address:
        waiting = ask(address, user("Book it."))["message"]
        url = f"{address}/ai-sdk"
        for messages, expected in (
            ([user("Book it."), waiting, user("Hello?", "m2")], "Decide about the tool calls"),
            ([user("Book it."), waiting], "missing: call_9"),
        ):
            given = {"url": url, "id": "c1", "messages": messages}
            assert expected in run_script("ai_sdk.mjs", given)["error"]
        yes = [user("Book it."), decided(waiting, approved=True)]
        ask(address, *yes)
        again = run_script("ai_sdk.mjs", {"url": url, "id": "c1", "messages": yes})
        assert "do not wait for a decision any more" in again["error"]
        ask(address, user("Hello?"), id="c2")

    assert model.unused == 0
