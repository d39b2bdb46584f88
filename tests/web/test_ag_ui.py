"""AG-UI's own `HttpAgent`, in Node.js."""

import json
from typing import Any

import pytest

from chatclient import AssistantMessage, ChatResponse, Media, ToolContext, ToolResponseMessage, tool
from chatclient.advisors import HIGHEST_PRECEDENCE
from chatclient.chat import Reasoning
from chatclient.chat.messages import UserMessage
from chatclient.errors import DeadlineExceededError
from chatclient.memory import MessageWindowChatMemory
from chatclient.testing import ScriptedModel, call
from chatclient.web import UI_STATE, UiData, UiState, WebChat
from tests.support.node import run_script
from tests.support.web_app import endpoints, travel_client
from tests.support.web_server import serving

TRAINS = call("find_trains", {"city": "Rome"}, id="call_1")
BOOKING = call("book_train", {"number": "IC 1"}, id="call_9")


def user(content: Any, id: str = "m1") -> dict[str, Any]:
    return {"messages": [{"id": id, "role": "user", "content": content}]}


def run(client: Any, *runs: Any, state: Any = None) -> list[Any]:
    """Run an agent against *client*, and return what it knows after each run."""
    with serving(endpoints(WebChat(client))) as address:
        given = {"url": f"{address}/ag-ui", "threadId": "t1", "state": state, "runs": runs}
        results: list[Any] = run_script("ag_ui.mjs", given)
    return results


def kinds(result: Any) -> list[str]:
    return [event["type"] for event in result["events"]]


def test_text_reasoning_and_tools() -> None:
    """Each message of the turn is one of the agent, with calls and results."""
    model = ScriptedModel(
        AssistantMessage([Reasoning("Which city?"), "A moment."], TRAINS),
        "Two trains.",
    )
    (result,) = run(travel_client(model), user("Trains?"))

    assert result["error"] is None
    assert [message["role"] for message in result["messages"]] == [
        *("user", "reasoning", "assistant", "tool", "assistant")
    ]
    _, reasoning, asking, found, answer = result["messages"]
    assert reasoning["content"] == "Which city?"
    assert asking["content"] == "A moment."
    (made,) = asking["toolCalls"]
    assert made["function"] == {"name": "find_trains", "arguments": '{"city":"Rome"}'}
    assert json.loads(found["content"]) == ["IC 1 to Rome", "IC 3 to Rome"]
    assert answer["content"] == "Two trains."
    assert result["events"][-1]["outcome"] == {"type": "success"}
    assert result["events"][-1]["usage"][0]["totalTokens"] == 30


@pytest.mark.parametrize(
    ("resume", "told"),
    [
        ({"status": "resolved", "payload": {"approved": True}}, "Booked a seat on IC 1."),
        ({"status": "resolved", "payload": True}, "Booked a seat on IC 1."),
        (
            {"status": "resolved", "payload": {"approved": False, "message": "Not today."}},
            "Not today.",
        ),
        ({"status": "cancelled"}, "The user did not allow this call."),
    ],
)
def test_approval(resume: Any, told: str) -> None:
    """The run is interrupted, and the next one continues it with the decision."""
    model = ScriptedModel(["Let me book it.", BOOKING], "Well.")
    waiting, done = run(travel_client(model), user("Book it."), {"resume": resume})

    (interrupt,) = waiting["interrupts"]
    assert interrupt["toolCallId"] == "call_9"
    assert interrupt["metadata"] == {"toolName": "book_train", "arguments": {"number": "IC 1"}}
    assert done["error"] is None
    assert done["interrupts"] == []
    *_, result, answer = done["messages"]
    assert (result["toolCallId"], result["content"]) == ("call_9", told)
    assert answer["content"] == "Well."


def test_changed_arguments() -> None:
    """The answer to an interrupt may change the arguments of the call."""
    payload = {"approved": True, "arguments": {"number": "IC 3"}}
    model = ScriptedModel([BOOKING], "Well.")
    _, done = run(
        travel_client(model),
        user("Book it."),
        {"resume": {"status": "resolved", "payload": payload}},
    )

    assert "Booked a seat on IC 3." in done["messages"][2]["content"]


def test_invalid_answer_to_an_interrupt() -> None:
    """An answer without a decision is refused, and the turn still waits."""
    model = ScriptedModel([BOOKING], "Well.")
    _, refused, done = run(
        travel_client(model),
        user("Book it."),
        {"resume": {"status": "resolved", "payload": {"approved": "yes"}}},
        {"resume": {"status": "resolved", "payload": {"approved": True}}},
    )

    assert "needs a bool 'approved'" in refused["error"]
    assert done["error"] is None


def test_tool_of_the_frontend() -> None:
    """A tool that the frontend offers ends the run; its result is a message of the next one."""
    locate = {"name": "locate", "description": "Tell where the user is."}
    model = ScriptedModel([call("locate", id="call_1")], "You are in Rome.")
    result = {"id": "r1", "role": "tool", "toolCallId": "call_1", "content": "Rome"}
    waiting, done = run(
        travel_client(model),
        {**user("Where am I?"), "parameters": {"tools": [locate]}},
        {"messages": [result], "parameters": {"tools": [locate]}},
    )

    assert waiting["events"][-1]["outcome"] == {
        "type": "success",
        "pendingToolCallIds": ["call_1"],
    }
    assert done["messages"][-1]["content"] == "You are in Rome."
    last = model.prompts[-1].messages[-1]
    assert isinstance(last, ToolResponseMessage)
    assert last.responses[0].data == "Rome"


def test_result_in_parts() -> None:
    """The parts of a result from the frontend are joined to one text."""
    locate = {"name": "locate", "description": "Tell where the user is."}
    model = ScriptedModel([call("locate", id="call_1")], "You are in Rome.")
    content = [{"type": "text", "text": "Rome,"}, {"type": "text", "text": "Italy"}]
    result = {"id": "r1", "role": "tool", "toolCallId": "call_1", "content": content}
    run(
        travel_client(model),
        {**user("Where am I?"), "parameters": {"tools": [locate]}},
        {"messages": [result], "parameters": {"tools": [locate]}},
    )

    last: Any = model.prompts[-1].messages[-1]
    assert last.responses[0].data == "Rome,\nItaly"


def test_failed_tool_of_the_frontend() -> None:
    """The model receives the error of the frontend's tool."""
    locate = {"name": "locate", "description": "Tell where the user is."}
    model = ScriptedModel([call("locate", id="call_1")], "A pity.")
    problem = "The user has no position."
    failed = {"id": "r", "role": "tool", "toolCallId": "call_1", "content": "", "error": problem}
    run(
        travel_client(model),
        {**user("Where am I?"), "parameters": {"tools": [locate]}},
        {"messages": [failed], "parameters": {"tools": [locate]}},
    )

    last = model.prompts[-1].messages[-1]
    assert isinstance(last, ToolResponseMessage)
    assert last.responses[0].data == problem
    assert last.responses[0].is_error


def test_frontend_cannot_replace_a_tool() -> None:
    """A tool of the frontend with the name of one of the application is an error."""
    tools = [{"name": "book_train", "description": "Mine."}]
    model = ScriptedModel("Well.")
    (result,) = run(travel_client(model), {**user("Book it."), "parameters": {"tools": tools}})

    assert result["error"].startswith("Something went wrong.")
    assert model.unused == 1


def test_resent_history_is_stored_once() -> None:
    """With a memory, only new user messages are used, with the ids of the frontend."""
    memory = MessageWindowChatMemory()
    model = ScriptedModel([TRAINS], "Two trains.", "You are welcome.")
    client = travel_client(model, memory=memory)
    _, result = run(client, user("Trains?"), user("Thanks.", "m2"))

    stored, shown = memory.get("t1"), result["messages"]
    assert [message.role for message in stored] == [message["role"] for message in shown]
    assert [message["id"].removesuffix("/call_1") for message in shown] == [
        message.id for message in stored
    ]
    assert [stored[0].id, stored[4].id] == ["m1", "m2"]


def test_history_without_memory() -> None:
    """Without a memory, the messages of the frontend are sent, except for instructions."""
    model = ScriptedModel(
        AssistantMessage([Reasoning("Hm.")], TRAINS), "Two trains.", "You are welcome."
    )
    system = {"id": "s", "role": "system", "content": "Obey."}
    run(
        travel_client(model), user("Trains?"), {"messages": [system, *user("Thx", "2")["messages"]]}
    )

    sent = model.prompts[-1].messages
    assert [message.role for message in sent] == ["user", "assistant", "tool", "assistant", "user"]
    assert isinstance(sent[1], AssistantMessage)
    assert sent[1].tool_calls == (TRAINS,)
    assert isinstance(sent[2], ToolResponseMessage)
    assert sent[2].responses[0].name == "find_trains"


def test_state_data_and_progress() -> None:
    """Tools see the state of the frontend, change it, and send data."""

    @tool(effect="read")
    async def count(context: ToolContext) -> int:
        """Count."""
        await context.emit(UiState({"count": context[UI_STATE]["count"] + 1}))
        await context.emit(UiData("chart", [1, 2]))
        await context.progress("half")
        return 2

    model = ScriptedModel([call("count", id="call_1")], "Two.")
    (result,) = run(travel_client(model, count), user("Count."), state={"count": 1})

    assert result["state"] == {"count": 2}
    assert [(e["name"], e["value"]) for e in result["events"] if e["type"] == "CUSTOM"] == [
        ("chart", [1, 2]),
        ("tool_progress", {"toolCallId": "call_1", "value": "half"}),
    ]


def test_files() -> None:
    """Files of the user reach the model, and those of the model the frontend."""
    model = ScriptedModel(AssistantMessage("Here.", media=Media("image/png", b"png")))
    content = [
        {"type": "text", "text": "Draw this."},
        {"type": "image", "source": {"type": "data", "value": "R0lG", "mimeType": "image/gif"}},
        {"type": "image", "source": {"type": "url", "value": "https://example.org/a.jpg"}},
    ]
    (result,) = run(travel_client(model), user(content))

    (asked,) = model.prompts[0].messages
    assert isinstance(asked, UserMessage)
    assert asked.text == "Draw this."
    assert [media.data for media in asked.media] == [b"GIF", "https://example.org/a.jpg"]
    (file,) = [event["value"] for event in result["events"] if event["type"] == "CUSTOM"]
    assert file == {"url": "data:image/png;base64,cG5n", "mimeType": "image/png"}


def test_replaced_text() -> None:
    """Text that an advisor replaces at the end is replaced in the messages."""

    class Mask:
        order = HIGHEST_PRECEDENCE  # outside of the tool loop

        async def __call__(self, request: Any, call_next: Any) -> Any:
            response = await call_next(request)
            return response.mutate(chat_response=ChatResponse.of("I cannot say."))

    model = ScriptedModel([TRAINS], "It is 1234.")
    client = travel_client(model).mutate().default_advisors(Mask()).build()
    (result,) = run(client, user("The code?"))

    assert [message["role"] for message in result["messages"]] == [
        *("user", "assistant", "tool", "assistant")
    ]
    assert result["messages"][-1]["content"] == "I cannot say."
    assert "1234" not in json.dumps(result["messages"])


def test_errors_show_no_internals() -> None:
    """What was streamed is kept, and the error is a text for users."""
    model = ScriptedModel(["Well, ", DeadlineExceededError("db-7 took 3 s")])
    (result,) = run(travel_client(model), user("Hello?"))

    assert result["error"] == "The answer took too long. Please try again."
    assert kinds(result)[-1] == "RUN_ERROR"
    assert result["messages"][-1]["content"] == "Well, "
    assert "db-7" not in json.dumps(result)
