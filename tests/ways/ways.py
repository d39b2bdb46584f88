"""The ways of running a conversation; a new one is a line of `WAYS`."""

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from chatclient import ChatClient, ChatClientRequest, ChatClientResponse, Next, handoff
from chatclient.chat.message_merging import is_of_user
from chatclient.durable import ExecutionLostError, Recording, durable, recorded
from chatclient.errors import ChatClientError, EntityError
from chatclient.mcp import McpToolServer
from chatclient.testing import ScriptedModel, call
from chatclient.tools import PendingTurn, ToolMetadata
from chatclient.web import WebChat
from tests.support.journal import Journal
from tests.support.web_app import endpoints
from tests.ways.case import CONVERSATION, HANDOFF_TOOL, Case, text_of

_names = (f"way-{number}" for number in itertools.count())
_SAFE = ToolMetadata(effect="idempotent")


@dataclass(frozen=True)
class Way:
    """A way of running.

    Attributes:
        name: Its name in reports.
        run: Yields the text of the answer to each question of a case; an error ends it.
        entity: Whether the application can ask for a typed answer.
        tells_errors: Whether a model is told of an error, instead of the application.
        doubled: Whether each question is answered twice, and only the last answer stays.
        shows: Whether text is shown while it is streamed: of a turn that fails, a memory then
            stores what was shown.
    """

    name: str
    run: Callable[[Case], Iterator[str]]
    entity: bool = False
    tells_errors: bool = False
    doubled: bool = False
    shows: bool = False


def _texts(
    case: Case,
    ask: Callable[[Any], Any],
    *,
    stored: bool = False,
    client: ChatClient | None = None,
) -> Iterator[str]:
    """Yield the answers to all questions, asked with *ask*, which returns an answer or a stream."""
    client = client or case.client()
    for question in case.questions:
        yield _finish(case, client, ask(case.request(client, question)), ask, stored=stored)


def _finish(
    case: Case, client: ChatClient, answer: Any, ask: Callable[[Any], Any], *, stored: bool = False
) -> str:
    """Return the text of *answer*, once all its calls are decided."""
    while True:
        text, pending = _text_of(case, answer)
        if pending is None:
            return text
        if stored:
            client = case.client()
        turn: Any = pending.to_json() if stored else pending
        answer = ask(case.changed(client.resume(turn, case.decisions(pending))))


def _text_of(case: Case, answer: Any) -> tuple[str, PendingTurn | None]:
    if case.entity is None:
        return answer.content(), answer.pending_turn()
    try:
        return f"{answer.entity(case.entity)!r}", None
    except EntityError as error:
        if error.pending_turn is None:
            raise
        return "", error.pending_turn


class _Streamed:
    """The end of a stream, with the accessors of an answer."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.values: list[Any] = []
        self.error: EntityError | None = None

    @contextmanager
    def consumed(self) -> Iterator[None]:
        """Keep the error of a turn that waits instead of returning a value."""
        try:
            yield
        except EntityError as error:
            self.error = error

    def content(self) -> str:
        text: str = self._stream.response.chat_response.text
        return text

    def pending_turn(self) -> PendingTurn | None:
        pending: PendingTurn | None = self._stream.pending_turn()
        return pending

    def entity(self, _kind: Any) -> Any:
        if self.error is not None:
            raise self.error
        return self.values[-1]


def by_call(case: Case) -> Iterator[str]:
    return _texts(case, lambda request: request.call())


def by_acall(case: Case) -> Iterator[str]:
    async def ask(request: Any) -> Any:
        answer = request.acall()
        if case.entity is not None:  # the first accessor says what is asked for
            try:
                await answer.entity(case.entity)
            except EntityError as error:
                if error.pending_turn is None:
                    raise
        return await answer

    return _texts(case, lambda request: asyncio.run(ask(request)))


def by_stream(case: Case) -> Iterator[str]:
    def ask(request: Any) -> _Streamed:
        stream = request.stream()
        items = stream.events() if case.entity is None else stream.entity(case.entity)
        streamed = _Streamed(stream)
        with streamed.consumed():
            streamed.values += items
        return streamed

    return _texts(case, ask)


def by_astream(case: Case) -> Iterator[str]:
    async def ask(request: Any) -> _Streamed:
        stream = request.astream()
        items = stream.events() if case.entity is None else stream.entity(case.entity)
        streamed = _Streamed(stream)
        with streamed.consumed():
            streamed.values += [item async for item in items]
        return streamed

    return _texts(case, lambda request: asyncio.run(ask(request)))


def resumed_elsewhere(case: Case) -> Iterator[str]:
    """Turns that wait are stored as JSON, and continued by another client."""
    return _texts(case, lambda request: request.call(), stored=True)


def by_batch(case: Case) -> Iterator[str]:
    return _batched(case, journal=False)


def by_batch_journal(case: Case) -> Iterator[str]:
    """The journal of a batch is read again, without calls."""
    return _batched(case, journal=True)


def _batched(case: Case, *, journal: bool) -> Iterator[str]:
    client = case.client()
    for number, question in enumerate(case.questions):
        more: Any = {"journal": case.folder / f"{number}.jsonl"} if journal else {}
        request = case.request(client, question)
        (result,) = client.batch({"one": request}, case.entity, **more)
        pending = getattr(result.error, "pending_turn", None)
        if pending is not None:
            answer = client.resume(pending, case.decisions(pending)).call()
            yield _finish(case, client, answer, lambda request: request.call())
            continue
        if result.error is not None:
            raise result.error
        if journal:
            before = case.outcome(())
            (again,) = client.batch({"one": request}, case.entity, **more)
            assert again == result
            assert case.outcome(()) == before
        yield result.unwrap() if case.entity is None else repr(result.value)


def by_durable(case: Case) -> Iterator[str]:
    return _durable(case, streaming=False)


def by_durable_stream(case: Case) -> Iterator[str]:
    return _durable(case, streaming=True)


def _durable(case: Case, *, streaming: bool, client: ChatClient | None = None) -> Iterator[str]:
    turns = durable(client or case.client(), name=next(_names))
    for question in case.questions:
        turn = turns.start(case.request(turns, question), streaming=streaming)
        while True:
            if streaming:
                list(turn.events())
            result = turn.result(60)
            if result.pending_turn is None:
                break
            turn.decide(case.decisions(result.pending_turn))
        yield result.content()


class _OneStep(Journal):
    """A journal whose execution is lost after each step, before the next one."""

    def __init__(self) -> None:
        super().__init__()
        self._running = 0

    async def step(self, name: str, function: Callable[[], Awaitable[Any]]) -> Any:
        if name not in self.steps and self.ran and not self._running:
            self.lost = True
            raise ExecutionLostError
        self._running += 1
        try:
            return await super().step(name, function)
        finally:
            self._running -= 1


def recorded_with_crashes(case: Case) -> Iterator[str]:
    """The process ends after each step, and another one continues."""
    return _recorded(case, _OneStep)


def recorded_again(case: Case) -> Iterator[str]:
    """A turn is run again from its complete record: nothing is called or done."""
    return _recorded(case, Journal, again=True)


def _recorded(case: Case, make: type[Journal], *, again: bool = False) -> Iterator[str]:
    for number, question in enumerate(case.questions):
        pending: PendingTurn | None = None
        while True:
            answer = _execution(case, question, pending, f"turn-{number}", make(), again=again)
            text, pending = _text_of(case, answer)
            if pending is None:
                break
        yield text


def _execution(
    case: Case,
    question: str,
    pending: PendingTurn | None,
    key: str,
    journal: Journal,
    *,
    again: bool,
) -> Any:
    """Return the answer of a turn, or of its continuation, with a new client for each execution."""
    while True:
        client = case.client()
        if pending is None:
            request = case.request(client, question)
        else:
            stored = PendingTurn.from_json(pending.to_json())
            request = case.changed(client.resume(stored, case.decisions(stored)))
        answer = recorded(request, Recording(journal.reopen(), on_interrupted="repeat"), key).call()
        try:
            _text_of(case, answer)
        except ExecutionLostError:
            continue
        except ChatClientError:
            if again and journal.ran:
                continue
            raise
        if not again or not journal.ran:
            return answer


def by_ai_sdk(case: Case) -> Iterator[str]:
    return _AiSdk(case).texts()


def regenerated(case: Case) -> Iterator[str]:
    """Each question is answered twice; the second answer replaces the first one."""
    return _AiSdk(case).texts(regenerate=True)


def stopped(case: Case) -> Iterator[str]:
    """Each answer is stopped when something of it is seen, and then generated again."""
    return _AiSdk(case).texts(regenerate=True, stop=True)


class _AiSdk:
    """A frontend of the AI SDK: it sends the messages that it shows, and reads the stream."""

    def __init__(self, case: Case, client: Any = None) -> None:
        self._case = case
        chat = WebChat(client or case.client(), error_text=_error_name, prepare=self._prepare)
        self._app = endpoints(chat)

    def _prepare(self, request: Any, _given: Any) -> Any:
        return self._case.changed(request)

    def texts(self, *, regenerate: bool = False, stop: bool = False) -> Iterator[str]:
        for number, question in enumerate(self._case.questions):
            asked = {
                "id": f"m{number}",
                "role": "user",
                "parts": [{"type": "text", "text": question}],
            }
            text = ""
            if stop:
                body = {"id": CONVERSATION, "messages": [asked]}
                self._case.pauses = True
                if asyncio.run(_stop(self._app, "/ai-sdk", body, _SEEN)):
                    self._check_remembered(question)
                self._case.pauses = False
            else:
                text = self._turn(asked, {})
            if regenerate:
                text = self._turn(asked, {"trigger": "regenerate-message"})
            yield text

    def _check_remembered(self, question: str) -> None:
        """Check that the memories which store each turn have the question of a stopped one."""
        for stored in self._case.stored:
            texts = [m.text for m in stored() if is_of_user(m)]
            if any("Question" in text for text in texts) or question == self._case.questions[0]:
                assert any(question in text for text in texts[-1:]), texts

    def _turn(self, asked: Any, more: Any) -> str:
        messages = [asked]
        while True:
            parts, text = self._send({"id": CONVERSATION, "messages": messages, **more})
            waiting = [part for part in parts if "output" not in part]
            if not waiting:
                return text
            for part in waiting:
                if "approval" in part:
                    part["approval"]["approved"] = True
                    part["state"] = "approval-responded"
                else:
                    part["output"] = f"located {part['toolCallId']}"
                    part["state"] = "output-available"
            messages, more = [asked, {"id": "a", "role": "assistant", "parts": waiting}], {}

    def _send(self, body: Any) -> tuple[list[Any], str]:
        """Return the parts for calls of tools, and the text of the last step."""
        calls: dict[str, Any] = {}
        texts: list[str] = []
        for chunk in _post(self._app, "/ai-sdk", body):
            id = chunk.get("toolCallId")
            match chunk["type"]:
                case "start-step" | "reset-step":
                    texts = []
                case "text-delta":
                    texts.append(chunk["delta"])
                case "tool-input-available":
                    kind = f"tool-{chunk['toolName']}"
                    calls[id] = {"type": kind, "toolCallId": id, "input": chunk["input"]}
                    calls[id]["state"] = "input-available"
                case "tool-approval-request":
                    calls[id]["approval"] = {"id": chunk["approvalId"]}
                case "tool-output-available" | "tool-output-error" | "tool-output-denied":
                    calls.setdefault(id, {})["output"] = chunk.get("output")
                case "error":
                    raise WebError(chunk["errorText"])
        return list(calls.values()), "".join(texts)


_SEEN = (b'"text-delta"', b'"tool-output-available"')


async def _stop(app: Any, path: str, body: Any, seen: tuple[bytes, ...]) -> bool:
    """Send a request to *app*, and disconnect when it sends a chunk that contains one of *seen*.

    Returns:
        Whether it did.
    """
    stopped = asyncio.Event()
    messages = iter([{"type": "http.request", "body": json.dumps(body).encode()}])

    async def receive() -> dict[str, Any]:
        for message in messages:
            return message
        await stopped.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if any(each in message.get("body", b"") for each in seen):
            stopped.set()
            await asyncio.sleep(3600)  # cancelled, because the client is gone

    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": path, "headers": headers}
    more = {"query_string": b"", "scheme": "http", "http_version": "1.1", "root_path": ""}
    task = asyncio.create_task(app({**scope, **more, "asgi": {"version": "3.0"}}, receive, send))
    await asyncio.wait([task])
    return stopped.is_set()


class WebError(Exception):
    """An error in a frontend; the text is the name of its class."""


def _error_name(error: Exception) -> str:
    return type(error).__name__


def _post(app: Any, path: str, body: Any) -> list[Any]:
    """Return the events that *app* answers a request with."""

    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.post(path, json=body)

    response = asyncio.run(send())
    assert response.status_code == httpx.codes.OK, response.text
    lines = [line.removeprefix("data: ") for line in response.text.splitlines()]
    return [json.loads(line) for line in lines if line.startswith("{")]


def by_ag_ui(case: Case) -> Iterator[str]:
    app = endpoints(
        WebChat(case.client(), error_text=_error_name, prepare=lambda r, _: case.changed(r))
    )
    for number, question in enumerate(case.questions):
        body: dict[str, Any] = {
            "threadId": CONVERSATION,
            "runId": f"r{number}",
            "tools": [],
            "context": [],
            "state": None,
            "forwardedProps": {},
            "messages": [{"id": f"m{number}", "role": "user", "content": question}],
        }
        while True:
            texts: dict[str, str] = {}
            waiting: list[Any] = []
            called: dict[str, str] = {}
            for event in _post(app, "/ag-ui", body):
                match event["type"]:
                    case "TEXT_MESSAGE_CONTENT":
                        id = event["messageId"]
                        texts[id] = texts.get(id, "") + event["delta"]
                    case "MESSAGES_SNAPSHOT":
                        texts = {
                            m["id"]: m.get("content") or ""
                            for m in event["messages"]
                            if m["role"] == "assistant"
                        }
                    case "TOOL_CALL_START":
                        called[event["toolCallId"]] = event["toolCallName"]
                    case "TOOL_CALL_RESULT":
                        called.pop(event["toolCallId"], None)
                    case "RUN_ERROR":
                        raise WebError(event["message"])
                    case "RUN_FINISHED":
                        waiting = (event.get("outcome") or {}).get("interrupts") or []
            for each in waiting:
                called.pop(each["toolCallId"], None)
            if not waiting and not called:
                break
            approved = [
                {"interruptId": each["id"], "status": "resolved", "payload": {"approved": True}}
                for each in waiting
            ]
            results = [
                {"id": f"t{id}", "role": "tool", "toolCallId": id, "content": f"located {id}"}
                for id in called
            ]
            body = {**body, "messages": [*body["messages"], *results], "resume": approved or None}
        yield list(texts.values())[-1] if texts else ""


def as_agent(case: Case) -> Iterator[str]:
    return _texts(case, lambda request: request.call(), client=_caller(case))


def _caller(case: Case) -> ChatClient:
    """Return a client that passes each question to the client of *case*, and its answer on."""
    tool = case.client().as_tool("delegate", "Answers.", metadata=_SAFE, conversation=CONVERSATION)

    def answer(prompt: Any) -> Any:
        last = prompt.messages[-1]
        if last.role == "user":
            return call("delegate", {"request": last.text}, id=f"delegate-{last.text[9]}")
        return last.responses[-1].data

    return ChatClient.builder(ScriptedModel(answer)).default_tools(tool).build()


def as_durable_agent(case: Case) -> Iterator[str]:
    return _durable(case, streaming=False, client=_caller(case))


def called_by_advisor(case: Case) -> Iterator[str]:
    inner = case.client()

    async def delegate(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        question = text_of(request.prompt)
        answer = case.request(inner, question).acall()
        return await answer.chat_client_response()

    outer = ChatClient.builder(ScriptedModel()).default_advisors(delegate).build()

    def ask(request: Any) -> Any:
        async def run() -> Any:
            return await request.acall()

        return asyncio.run(run())

    return _texts(case, ask, client=outer)


def after_handoff(case: Case) -> Iterator[str]:
    def answer(prompt: Any) -> Any:
        return call(HANDOFF_TOOL, {}, id=f"handoff-{prompt.messages[-1].text[9]}")

    target = handoff(case.client(), "target", "Knows.")
    first = ChatClient.builder(ScriptedModel(answer)).default_tools(target).build()
    return _texts(case, lambda request: request.call(), client=first)


def by_mcp_server(case: Case) -> Iterator[str]:
    from mcp import Client

    tool = case.client().as_tool("case", "Answers.", metadata=_SAFE, conversation=CONVERSATION)
    server = McpToolServer(tool).server

    async def ask(question: str) -> Any:
        async with Client(server) as client:
            return await client.call_tool("case", {"request": question})

    for question in case.questions:
        result = asyncio.run(ask(question))
        (content,) = result.content
        if result.is_error:
            raise McpFailedError(content.text)
        yield content.text


class McpFailedError(Exception):
    """An MCP client received a failed call."""


WAYS = (
    Way("call", by_call, entity=True),
    Way("acall", by_acall, entity=True),
    Way("stream", by_stream, entity=True, shows=True),
    Way("astream", by_astream, entity=True, shows=True),
    Way("resumed elsewhere", resumed_elsewhere, entity=True),
    Way("batch", by_batch, entity=True),
    Way("batch with journal", by_batch_journal, entity=True),
    Way("durable", by_durable),
    Way("durable, streamed", by_durable_stream, shows=True),
    Way("recorded, with crashes", recorded_with_crashes, entity=True),
    Way("recorded, run again", recorded_again, entity=True),
    Way("AI SDK", by_ai_sdk, shows=True),
    Way("AG-UI", by_ag_ui, shows=True),
    Way("agent", as_agent, tells_errors=True),
    Way("agent of a durable turn", as_durable_agent, tells_errors=True),
    Way("called by an advisor", called_by_advisor),
    Way("after a handoff", after_handoff),
    Way("MCP server", by_mcp_server, tells_errors=True),
    Way("regenerated", regenerated, doubled=True, shows=True),
    Way("stopped and asked again", stopped, doubled=True, shows=True),
)
