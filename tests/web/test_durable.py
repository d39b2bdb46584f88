"""Durable turns in frontends: they look like other turns, and continue without a reader."""

import asyncio
import itertools
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Any

import httpx
import pytest
from starlette.requests import Request

from chatclient import (
    AssistantMessage,
    ChatClient,
    ChatClientRequest,
    ChatClientRequestSpec,
    ChatClientResponse,
    ChatModel,
    ChatResponse,
    Next,
    Prompt,
    ToolContext,
    ToolResponseMessage,
    UserMessage,
    handoff,
    tool,
)
from chatclient.chat.response import Generation
from chatclient.durable import (
    Engine,
    TurnHandle,
    TurnQueue,
    TurnRetries,
    TurnStatus,
    durable,
    launch,
)
from chatclient.durable.workflow import runners
from chatclient.errors import OverloadedError, UsageError
from chatclient.memory import MessageWindowChatMemory
from chatclient.runtime.runtime import Runtime
from chatclient.testing import ScriptedModel, call
from chatclient.tools import Decision, ExternalTool, ToolDefinition, ToolMetadata
from chatclient.web import InMemoryPendingTurns, UiData, UiRequest, UiState, WebChat
from chatclient.web.chat import DurableRunner
from chatclient.web.requests import RefusedError
from chatclient.web.turns import TurnEvents
from tests.support.gated_model import GatedModel
from tests.support.node import run_script
from tests.support.waiting import settled
from tests.support.web_app import endpoints, travel_client
from tests.support.web_server import serving

TRAINS = call("find_trains", {"city": "Rome"}, id="call_1")
BOOKING = call("book_train", {"number": "IC 1"}, id="call_9")
names = (f"web-{number}" for number in itertools.count())


@pytest.fixture(scope="module", autouse=True)
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    path = tmp_path_factory.mktemp("durable") / "turns.db"
    queues = [TurnQueue("web", poll_seconds=0.02)]
    with launch(f"sqlite:///{path}", queues=queues, takeover_seconds=60) as launched:
        yield launched


def user(text: str, id: str = "m1") -> dict[str, Any]:
    return {"id": id, "role": "user", "parts": [{"type": "text", "text": text}]}


def ask(address: str, *messages: Any) -> Any:
    given = {"url": f"{address}/ai-sdk", "id": "c1", "messages": messages}
    answer = run_script("ai_sdk.mjs", given)
    assert answer["error"] is None, answer
    return answer


def shown(client: ChatClient, *, approved: bool, is_durable: bool) -> tuple[Any, list[Any]]:
    """Return what a frontend shows of a turn, with decisions if it waits, and transient data."""
    served = durable(client, name=next(names)) if is_durable else client
    with serving(endpoints(WebChat(served))) as address:
        answer = ask(address, user("Go."))
        message, chunks = answer["message"], answer["chunks"]
        waiting = [part for part in message["parts"] if part.get("approval")]
        for part in waiting:
            part["state"] = "approval-responded"
            part["approval"]["approved"] = approved
        if waiting:
            answer = ask(address, user("Go."), message)
            message, chunks = answer["message"], [*chunks, *answer["chunks"]]
    data = [each["data"] for each in chunks if each["type"].startswith("data-")]
    return message["parts"], data


@tool(effect="read")
async def draw(context: ToolContext) -> str:
    """Draw."""
    await context.emit(UiState({"drawn": 1}))
    await context.emit(UiData("chart", [1], transient=True))
    await context.progress("half")
    await context.progress(object())
    return "drawn"


@tool(effect="read")
def fail() -> str:
    """Fail."""
    raise RuntimeError("a secret")


async def polite(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
    """Change the answer after it was streamed."""
    response = await call_next(request)
    text = response.chat_response.text.replace("Damn", "Dear me")
    return response.mutate(chat_response=ChatResponse.of(text))


async def canned(_request: ChatClientRequest, _next: Next) -> ChatClientResponse:
    """Answer without the model."""
    return ChatClientResponse(ChatResponse.of("Canned."))


def with_agent() -> ChatClient:
    agent = travel_client(ScriptedModel([BOOKING], "The agent has booked."))
    clerk = agent.as_tool("clerk", "Books trains.", metadata=ToolMetadata(effect="read"))
    model = ScriptedModel([call("clerk", {"request": "Book it."}, id="call_1")], "Done.")
    return ChatClient.builder(model).default_tools(clerk).build()


def with_handoff() -> ChatClient:
    clerk = travel_client(ScriptedModel([TRAINS], [BOOKING], "The clerk has booked."))
    to_clerk = handoff(clerk, "clerk", "Books trains.")
    model = ScriptedModel(["I ask.", call("handoff_to_clerk", id="h1")])
    return ChatClient.builder(model).default_tools(to_clerk).build()


def with_advisor(model: ChatModel, advisor: Any) -> ChatClient:
    return ChatClient.builder(model).default_advisors(advisor).build()


CLIENTS: dict[str, Callable[[], ChatClient]] = {
    "tools": lambda: travel_client(
        ScriptedModel(["Let me see.", TRAINS], ["And book.", BOOKING, TRAINS], "Done.")
    ),
    "events": lambda: travel_client(ScriptedModel(call("draw", id="d1"), "Drawn."), draw),
    "failure": lambda: travel_client(ScriptedModel(call("fail", id="f1"), "A pity."), fail),
    "unknown": lambda: travel_client(ScriptedModel(call("fly", id="f1"), "A pity.")),
    "invalid": lambda: travel_client(ScriptedModel(call("find_trains", "{}", id="f1"), "Hm.")),
    "agent": with_agent,
    "handoff": with_handoff,
    "replaced": lambda: with_advisor(ScriptedModel("Damn, no train."), polite),
    "canned": lambda: with_advisor(ScriptedModel(), canned),
}


@pytest.mark.parametrize("approved", [True, False])
@pytest.mark.parametrize("name", CLIENTS)
def test_looks_like_a_turn_in_the_process(name: str, approved: bool) -> None:
    """A frontend shows the same of a durable turn as of one in the process."""
    expected, expected_data = shown(CLIENTS[name](), approved=approved, is_durable=False)
    parts, data = shown(CLIENTS[name](), approved=approved, is_durable=True)

    assert [without_ids(part) for part in parts] == [without_ids(part) for part in expected]
    assert joined(data) == joined(expected_data)


def without_ids(part: Any) -> Any:
    return {key: value for key, value in part.items() if key != "id"}


def joined(data: list[Any]) -> list[Any]:
    """Return *data* with the pieces of texts joined: durable turns publish larger ones."""
    found: list[Any] = []
    for each in data:
        last = found[-1] if found else None
        match last, each:
            case {"toolCallId": id, "value": str(text)}, {"value": str(more)} if (
                each["toolCallId"] == id
            ):
                found[-1] = {**each, "value": text + more}
            case _:
                found.append(each)
    return found


@pytest.mark.parametrize("is_durable", [True, False])
@pytest.mark.parametrize("below", ["agent", "handoff"])
def test_calls_of_clients_below(below: str, is_durable: bool) -> None:
    """A frontend approves calls of an agent, or of a client that the turn was handed to.

    It gives the results of their external tools.
    """
    where = ExternalTool(ToolDefinition("where", "Where the user is.", {}))
    model = ScriptedModel([BOOKING, call("where", {}, id="w1")], "Booked from Rome.")
    clerk = travel_client(model, where)
    first = (
        [call("clerk", {"request": "Book."}, id="a1")]
        if below == "agent"
        else [call("handoff_to_clerk", id="a1")]
    )
    tools = {
        "agent": clerk.as_tool("clerk", "Books.", metadata=ToolMetadata(effect="read")),
        "handoff": handoff(clerk, "clerk", "Books."),
    }
    client = ChatClient.builder(ScriptedModel(first, "Done.")).default_tools(tools[below]).build()
    served = durable(client, name=next(names)) if is_durable else client
    with serving(endpoints(WebChat(served))) as address:
        message = ask(address, user("Go."))["message"]
        waiting = {part["type"]: part for part in message["parts"]}
        booking, locating = waiting["tool-book_train"], waiting["tool-where"]
        booking["state"] = "approval-responded"
        booking["approval"]["approved"] = True
        assert "approval" not in locating
        locating |= {"state": "output-available", "output": "Rome"}
        ended = ask(address, user("Go."), message)["message"]["parts"]

    [results] = [m for m in model.prompts[1].messages[-1:] if isinstance(m, ToolResponseMessage)]
    assert [each.data for each in results.responses] == ["Booked a seat on IC 1.", "Rome"]
    texts = [part["text"] for part in ended if part["type"] == "text"]
    assert texts[-1] == ("Done." if below == "agent" else "Booked from Rome.")


def test_ids_of_memory() -> None:
    """Messages have the ids under which they are stored."""
    memory = MessageWindowChatMemory()
    client = travel_client(ScriptedModel([TRAINS], [BOOKING], "Booked."), memory=memory)
    with serving(endpoints(WebChat(durable(client, name=next(names))))) as address:
        given = {
            "url": f"{address}/ag-ui",
            "threadId": "t1",
            "runs": [
                {"messages": [{"id": "m1", "role": "user", "content": "Go."}]},
                {"resume": {"status": "resolved", "payload": {"approved": True}}},
            ],
        }
        waiting, ended = run_script("ag_ui.mjs", given)

    finished = [event for event in waiting["events"] if event["type"] == "RUN_FINISHED"]
    assert finished[0]["outcome"]["type"] == "interrupt"
    ids = [message["id"].partition("/")[0] for message in ended["messages"]]
    assert ids == [message.id for message in memory.get("t1")]
    assert ended["messages"][-1]["content"] == "Booked."


def test_tool_of_the_frontend() -> None:
    """Tools that an agent of AG-UI brings along are stored with the turn."""
    where = {"name": "where", "description": "Where the user is.", "parameters": {}}
    model = ScriptedModel([call("where", {}, id="w1"), TRAINS], "You are in Rome.")
    with serving(endpoints(WebChat(durable(travel_client(model), name=next(names))))) as address:
        body = {
            "threadId": "t1",
            "runId": "r1",
            "tools": [where],
            "state": {"a": 1},
            "messages": [{"id": "m1", "role": "user", "content": "Where am I?"}],
        }
        first = httpx.post(f"{address}/ag-ui", json=body, timeout=30)
        assert '"pendingToolCallIds":["w1"]' in first.text
        result = {"id": "m3", "role": "tool", "content": "Rome", "toolCallId": "w1"}
        body["messages"] = [*body["messages"], result]
        second = httpx.post(f"{address}/ag-ui", json=body, timeout=30)

    assert "You are in Rome." in second.text


class Breaks(ChatModel):
    """A model whose first answer breaks off."""

    def __init__(self) -> None:
        self.calls = 0

    async def generate(self, prompt: Prompt, runtime: Runtime) -> ChatResponse:
        raise NotImplementedError

    async def generate_stream(
        self, prompt: Prompt, runtime: Runtime
    ) -> AsyncGenerator[ChatResponse | str, None]:
        self.calls += 1
        yield "There are "
        if self.calls == 1:
            raise OverloadedError("busy")
        yield "two trains."
        yield ChatResponse((Generation(AssistantMessage(), "stop"),))


@pytest.mark.parametrize("path", ["ai-sdk", "ag-ui"])
def test_round_that_begins_again(path: str) -> None:
    """The text of a model call that is repeated is removed from the frontend."""
    again = TurnRetries(seconds=0.01)
    served = durable(ChatClient.create(Breaks()), name=next(names), retries=again)
    with serving(endpoints(WebChat(served))) as address:
        if path == "ai-sdk":
            parts = ask(address, user("Trains?"))["message"]["parts"]
            texts = [part["text"] for part in parts if part["type"] == "text"]
        else:
            runs = [{"messages": [{"id": "m1", "role": "user", "content": "Trains?"}]}]
            given = {"url": f"{address}/ag-ui", "threadId": "t1", "runs": runs}
            messages = run_script("ag_ui.mjs", given)[0]["messages"]
            texts = [each["content"] for each in messages if each["role"] == "assistant"]

    assert texts == ["There are two trains."]


def test_turn_without_reader() -> None:
    """A turn continues without a reader, blocks its conversation, and is cancelled by DELETE."""
    model = GatedModel()
    served = durable(ChatClient.create(model), name=next(names))
    body = {"id": "c1", "messages": [user("Trains?")]}
    with serving(endpoints(WebChat(served, queue="web"))) as address:
        url, stream = f"{address}/ai-sdk", f"{address}/ai-sdk/c1/stream"
        assert httpx.get(stream).status_code == 204
        with httpx.stream("POST", url, json=body) as response:
            assert any("There are" in line for line in response.iter_lines())
        refused = httpx.post(url, json=body)
        assert (refused.status_code, refused.json()["detail"]) == (
            409,
            "Wait for the answer first.",
        )
        with httpx.stream("GET", stream) as response:
            assert any("There are" in line for line in response.iter_lines())
        model.gate.set()
        assert settled(lambda: httpx.get(stream).status_code == 204)
        assert '"two trains."' in httpx.get(stream, params={"unanswered": "m1"}).text
        assert httpx.get(stream, params={"unanswered": "m0"}).status_code == 204

        model.gate.clear()
        with httpx.stream("POST", url, json=body) as response:
            assert any("There are" in line for line in response.iter_lines())
        assert httpx.delete(stream).status_code == 204
        assert settled(lambda: httpx.get(stream).status_code == 204)
        assert "The answer was stopped." in httpx.get(stream, params={"unanswered": "m1"}).text
        assert httpx.delete(f"{address}/ai-sdk/c2/stream").status_code == 204


def test_decision_that_cannot_be_applied() -> None:
    """It is refused, and the turn still waits; one for no turn is gone."""
    waits = durable(travel_client(ScriptedModel([BOOKING], "Booked.")), name=next(names))
    with serving(endpoints(WebChat(waits))) as address:
        body: dict[str, Any] = {
            "threadId": "t1",
            "runId": "r1",
            "messages": [{"id": "m1", "role": "user", "content": "Book it."}],
        }
        answer = {"interruptId": "call_9", "status": "resolved"}

        def resume(payload: Any) -> httpx.Response:
            given = {**body, "resume": [{**answer, "payload": payload}]}
            return httpx.post(f"{address}/ag-ui", json=given, timeout=30)

        assert resume(True).status_code == 409
        httpx.post(f"{address}/ag-ui", json=body, timeout=30)
        assert resume({"approved": True, "arguments": {"train": 1}}).status_code == 422
        assert (
            "Booked a seat on IC 2."
            in resume({"approved": True, "arguments": {"number": "IC 2"}}).text
        )
        assert resume(True).status_code == 409


async def test_settings() -> None:
    """Stores of turns are for clients in the process, queues for durable ones."""
    client = ChatClient.create(ScriptedModel())
    with pytest.raises(UsageError, match="leave out `pending`"):
        WebChat(durable(client, name=next(names)), InMemoryPendingTurns())
    with pytest.raises(UsageError, match="started in a queue"):
        WebChat(client, queue="web")


def test_prepared_request() -> None:
    """`prepare` gives a durable turn its tool context, which has a JSON form."""
    seen: list[Any] = []

    @tool(effect="read")
    def who(context: ToolContext) -> str:
        """Who the user is."""
        seen.append(context["user"])
        return "You."

    def prepare(spec: ChatClientRequestSpec, ui: UiRequest) -> ChatClientRequestSpec:
        return spec.tool_context(user=ui.http.headers["x-user"])

    client = travel_client(ScriptedModel(call("who"), "You."), who)
    chat = WebChat(durable(client, name=next(names)), prepare=prepare)
    with serving(endpoints(chat)) as address:
        body = {"id": "c1", "messages": [user("Who am I?")]}
        httpx.post(f"{address}/ai-sdk", json=body, headers={"x-user": "ann"}, timeout=30)

    assert seen == ["ann"]


async def test_concurrent_requests() -> None:
    """Of two concurrent starts, and of two concurrent decisions, one is refused."""
    model = ScriptedModel([BOOKING], "Booked.")
    served = durable(travel_client(model), name=next(names))
    turns = DurableRunner(served)
    request = served.prompt("Book it.")

    begun = await asyncio.gather(
        turns.begin("c1", request), turns.begin("c1", request), return_exceptions=True
    )
    assert {type(each) for each in begun} == {TurnEvents, RefusedError}
    last = await served.conversation("c1").alast()
    assert last is not None
    waiting = (await last.aresult()).pending_turn
    assert waiting is not None
    with pytest.raises(RefusedError, match="Decide about"):
        await turns.begin("c1", request)

    decisions = {"call_9": Decision(approved=True)}
    resumed = await asyncio.gather(
        turns.resume("c1", request, waiting, decisions),
        turns.resume("c1", request, waiting, decisions),
        return_exceptions=True,
    )
    assert {type(each) for each in resumed} == {TurnEvents, RefusedError}
    await last.aresult()
    await last.adelete()
    with pytest.raises(RefusedError, match="do not wait"):
        await turns.resume("c1", request, waiting, decisions)


async def test_message_after_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message after Stop waits until the stopped turn has ended, unless that takes long."""
    begun, go_on = threading.Event(), threading.Event()

    @tool
    def work() -> str:
        """Work."""
        begun.set()
        assert go_on.wait(30)
        return "worked"

    model = ScriptedModel(call("work"), "Hello.")
    served = durable(ChatClient.builder(model).default_tools(work).build(), name=next(names))
    turns = DurableRunner(served)
    await turns.begin("c1", served.prompt("Work."))
    assert await asyncio.to_thread(begun.wait, 30)
    await turns.cancel("c1")
    assert await turns.follow("c1", None) is None

    with monkeypatch.context() as patch:
        patch.setattr("chatclient.web.chat._STOP_SECONDS", 0.0)
        with pytest.raises(RefusedError, match="Wait for the answer"):
            await turns.pending("c1")
    waits = asyncio.create_task(turns.pending("c1"))
    go_on.set()

    assert await waits is None
    await turns.begin("c1", served.prompt("Hello?"))
    last = await served.conversation("c1").alast()
    assert last is not None
    assert (await last.aresult(60)).content() == "Hello."


async def test_decision_without_the_tool() -> None:
    """A server without the pending tool refuses the decision, and the turn stays pending."""
    name = next(names)
    served = durable(travel_client(ScriptedModel([BOOKING], "Booked.")), name=name)
    turn = await served.conversation("c1").astart("Book it.")
    pending = (await turn.aresult()).pending_turn
    assert pending is not None
    del runners[name]  # in the other server there is only this one
    turns = DurableRunner(durable(ChatClient.create(ScriptedModel()), name=name))

    with pytest.raises(RefusedError, match="at the moment") as refused:
        await turns.resume("c1", turns.prompt(), pending, {"call_9": Decision(approved=True)})

    assert refused.value.status == 503
    assert (await turn.astatus()).state == "waiting"


async def test_decision_while_another_request_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that finds the turn waiting does not wait if a decision was made since."""
    model = GatedModel()
    served = durable(ChatClient.create(model), name=next(names))
    turns = DurableRunner(served)
    await turns.begin("c1", served.prompt("Go."))

    async def waiting(_turn: TurnHandle) -> TurnStatus:
        return TurnStatus("waiting", None, None)

    monkeypatch.setattr(TurnHandle, "astatus", waiting)
    with pytest.raises(RefusedError, match="Wait for the answer"):
        await asyncio.wait_for(turns.pending("c1"), 5)
    model.gate.set()


def test_turn_without_events() -> None:
    """A frontend shows the answer of a turn without events, also after a decision."""
    served = durable(travel_client(ScriptedModel([BOOKING], "Booked.")), name=next(names))
    asked = served.prompt().messages(UserMessage("Book it.", id="m1"))
    turn = served.conversation("c1").start(asked)
    turn.result()
    with serving(endpoints(WebChat(served))) as address:
        shown = httpx.get(f"{address}/ai-sdk/c1/stream").text
        turn.decide("approve")
        turn.result()
        after = httpx.get(f"{address}/ai-sdk/c1/stream", params={"unanswered": "m1"})

    assert '"type":"tool-approval-request"' in shown
    assert '"delta":"Booked."' in after.text


def test_conversation_that_is_refused() -> None:
    """It is refused in the same way by all endpoints of the AI SDK."""

    def refuse(_request: Request, _id: str) -> str:
        raise UsageError("a secret")

    chat = WebChat(durable(travel_client(ScriptedModel()), name=next(names)), conversation=refuse)
    with serving(endpoints(chat)) as address:
        stream = f"{address}/ai-sdk/c1/stream"
        body = {"id": "c1", "messages": [user("Go.")]}
        answers = [
            httpx.post(f"{address}/ai-sdk", json=body),
            httpx.get(stream),
            httpx.delete(stream),
        ]

    for answer in answers:
        assert (answer.status_code, answer.json()) == (422, {"detail": "The request is invalid."})
