"""The short examples: the demo, and a custom advisor, provider, tool index and repository."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Iterator
from datetime import datetime, tzinfo
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import quickstart
from custom_advisor import HideAddresses
from custom_provider import SpeakModel, body_of
from custom_repository import JsonChatMemoryRepository
from custom_tool_index import SqliteToolIndex

from chatclient import (
    AssistantMessage,
    ChatClient,
    ChatModel,
    ChatResponse,
    Prompt,
    UserMessage,
)
from chatclient.advisors.memory.advisors import MessageChatMemoryAdvisor
from chatclient.advisors.tool_search.advisor import ToolSearchToolCallingAdvisor
from chatclient.errors import (
    InvalidResponseError,
    OverloadedError,
    StreamInterruptedError,
    WrongTypeError,
)
from chatclient.memory import ChatMemoryRepository, MessageWindowChatMemory
from chatclient.providers.composite import FallbackChatModel
from chatclient.providers.http.auth import Headers
from chatclient.runtime.runtime import Runtime
from chatclient.testing import (
    Answer,
    Ask,
    ChatModelContract,
    ScriptedModel,
    ToolIndexContract,
    call,
)
from chatclient.testing.repository_contract import ChatMemoryRepositoryContract
from chatclient.tools import FunctionToolCallback
from chatclient.tools.search import ToolIndex, ToolReference, ToolSearchRequest
from tests.support.paths import ROOT

# --- the demo -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("now", "tomorrow", "alarm"),
    [
        ("2026-12-31 23:55", "Friday, 01 January 2027", "00:05"),
        ("2028-02-28 00:10", "Tuesday, 29 February 2028", "00:20"),
        ("2026-02-28 12:59", "Sunday, 01 March 2026", "13:09"),
    ],
)
def test_demo_at_every_hour(
    now: str, tomorrow: str, alarm: str, monkeypatch: pytest.MonkeyPatch, ask: Ask
) -> None:
    """Tools do the date arithmetic that small models get wrong."""

    class Clock(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            return datetime.fromisoformat(now).astimezone(tz)

    monkeypatch.setattr(quickstart, "datetime", Clock)
    tools = quickstart.DateTimeTools()
    asked = [call("get_date", {"days_from_today": 1}), call("set_alarm", {"minutes_from_now": 10})]
    client = ChatClient.builder(ScriptedModel(asked, "Done.")).default_tools(tools).build()

    told = [execution.response.data for execution in ask(client.prompt("Go")).executions]

    assert told == [tomorrow, f"The alarm will ring at {alarm}."]
    assert [f"{each:%H:%M}" for each in tools.alarms] == [alarm]


def test_demo_output(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Three questions with their tool calls and answers."""
    model = ScriptedModel(
        call("get_date", {"days_from_today": 1}),
        "It is Friday.",
        call("set_alarm", {"minutes_from_now": 10}),
        "It will ring.",
        call("get_current_weather", {"city": "Paris"}),
        "It is 19 degrees.",
    )
    monkeypatch.setattr(quickstart, "choose_model", lambda: model)

    quickstart.main()

    shown = capsys.readouterr().out
    for line in ("called get_date(", "It is Friday.", "called set_alarm(", "It will ring."):
        assert line in shown
    assert '"temperature_celsius":19' in shown
    assert "    It is 19 degrees.\n" in shown
    assert "Alarms set: none" not in shown
    assert model.unused == 0


# --- the advisor ----------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 3, 100])
def test_addresses_are_masked(ask: Ask, size: int) -> None:
    """Addresses are restored in the answer with any chunking."""

    def echo(prompt: Prompt) -> Answer:
        return f"{prompt.contents} <em> <email-9> <"

    model = ScriptedModel(echo, chunks=size)
    client = ChatClient.builder(model).default_advisors(HideAddresses()).build()
    said = "Tell ada@example.org and bob@x.co.uk, not ada@example.org!"

    answer = ask(client.prompt(said))

    sent = model.prompts[0].contents
    assert sent == "Tell <email-1> and <email-2>, not <email-1>!"
    assert answer.text == answer.response.chat_response.text == f"{said} <em> <email-9> <"


def test_other_messages_are_unchanged(ask: Ask) -> None:
    """System texts and requests without addresses are unchanged."""
    model = ScriptedModel("Hello.")
    client = ChatClient.builder(model).default_advisors(HideAddresses()).build()

    assert ask(client.prompt("Hi").system("Be root@localhost.net")).text == "Hello."
    assert model.prompts[0].messages[0].text == "Be root@localhost.net"
    assert model.prompts[0].messages[1] == UserMessage("Hi")


# --- the provider ---------------------------------------------------------------------------


class SpeakServer:
    """The service of the example."""

    def __init__(self) -> None:
        self.bodies: list[Any] = []
        self.replies: list[tuple[int, bytes]] = []
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                service.bodies.append(body)
                status, answer = service.answer(body)
                self.send_response(status)
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def answer(self, body: Any) -> tuple[int, bytes]:
        if self.replies:
            return self.replies.pop(0)
        said = f"You said: {body['lines'][-1]}"
        if not body["stream"]:
            return 200, json.dumps({"said": said, "stopped": "stop"}).encode()
        lines = [{"piece": said[:5]}, {"piece": said[5:]}, {"stopped": "stop"}]
        return 200, b"".join(json.dumps(line).encode() + b"\n" for line in lines)

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def speak() -> Iterator[SpeakServer]:
    server = SpeakServer()
    yield server
    server.close()


class TestSpeakModel(ChatModelContract):
    """The contract of chat models."""

    @pytest.fixture
    def model(self, speak: SpeakServer) -> Iterator[ChatModel]:
        with SpeakModel(speak.url) as model:
            yield model

    @pytest.fixture
    def failing_model(self, speak: SpeakServer) -> Iterator[ChatModel]:
        speak.replies = [(401, b"who are you?")] * 9
        with SpeakModel(speak.url) as model:
            yield model


@pytest.mark.process("tests of the docs")
def test_provider_of_the_docs(tmp_path: Path) -> None:
    """The file at the end of the page passes the contract."""
    page = (ROOT / "docs" / "providers.md").read_text(encoding="utf-8")
    code = page.partition("### Test it\n")[2].partition("```python\n")[2].partition("```")[0]
    (tmp_path / "test_speak.py").write_text(code, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio"]

    done = subprocess.run(
        [*command, f"--rootdir={tmp_path}", str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
        capture_output=True,
        text=True,
    )

    assert done.returncode == 0, done.stdout
    assert "4 skipped" in done.stdout  # calls of tools


def test_custom_provider(ask: Ask, speak: SpeakServer) -> None:
    """Four modes from one coroutine and one generator; failures are retried."""
    speak.replies = [(503, b"busy")]
    with ChatClient.create(SpeakModel(speak.url)) as client:
        answer = ask(client.prompt("Hello.").system("Be brief."))

    assert answer.text == answer.response.chat_response.text == "You said: user: Hello."
    assert answer.response.chat_response.finish_reason == "stop"
    assert len(speak.bodies) == 2
    assert speak.bodies[1] == {
        "model": "parrot",
        "lines": ["system: Be brief.", "user: Hello."],
        "stream": ask.streaming,
    }


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        ((500, b"oh"), OverloadedError),
        ((200, b"<html>\n"), InvalidResponseError),
        ((200, b'{"piece": "half"}\n'), StreamInterruptedError),
    ],
    ids=["error status", "invalid", "truncated"],
)
def test_custom_provider_errors(
    ask: Ask, speak: SpeakServer, reply: tuple[int, bytes], error: type[Exception]
) -> None:
    """Errors are typed."""
    if error is StreamInterruptedError and not ask.streaming:
        pytest.skip("applies to streams only")
    speak.replies = [reply] * 3
    with ChatClient.create(SpeakModel(speak.url)) as client, pytest.raises(error):
        ask(client.prompt("Hello."))


@pytest.mark.parametrize("wrong", [None, AssistantMessage("Hi.")])
def test_custom_provider_with_wrong_chunks(ask: Ask, speak: SpeakServer, wrong: Any) -> None:
    """The error names the expected type of chunk."""
    if not ask.streaming:
        pytest.skip("applies to streams only")

    class Wrong:
        def __init__(self, headers: Headers) -> None:
            pass

        def feed(self, piece: bytes) -> list[Any]:
            return [wrong]

        def finish(self) -> list[Any]:
            return []

    class Faulty(SpeakModel):
        def generate_stream(
            self, prompt: Prompt, runtime: Runtime
        ) -> AsyncGenerator[ChatResponse | str, None]:
            return self._http.stream(runtime, "/v0/speak", body_of(prompt, stream=True), Wrong)

    for model in (Faulty(speak.url), FallbackChatModel(Faulty(speak.url))):
        with pytest.raises(WrongTypeError, match=r"of parrot yields must be a.* ChatResponse"):
            ask(ChatClient.create(model).prompt("Hi"))


# --- the tool index -------------------------------------------------------------------------


def made(name: str, description: str) -> FunctionToolCallback:
    return FunctionToolCallback(lambda: f"ran {name}", name=name, description=description)


class TestSqliteToolIndex(ToolIndexContract):
    """The contract of tool indexes."""

    @pytest.fixture
    def index(self, tmp_path: Path) -> ToolIndex:
        return SqliteToolIndex(str(tmp_path / "tools.db"))


TOOLS = [
    *(made(f"list_{thing}s", f"Lists {thing}s.") for thing in ("ticket", "invoice", "server")),
    *(made(f"delete_{thing}s", f"Deletes {thing}s.") for thing in ("ticket", "invoice", "server")),
    *(made(f"play_song_{n}", f"Plays song {n}.") for n in range(4)),
]


def test_custom_tool_index(ask: Ask, tmp_path: Path) -> None:
    """The model finds its tool in the database."""
    advisor = ToolSearchToolCallingAdvisor(SqliteToolIndex(str(tmp_path / "tools.db")))
    model = ScriptedModel(
        call("toolSearchTool", '{"query": "which tickets are there?", "maxResults": 1}'),
        call("list_tickets"),
        "None.",
    )
    client = ChatClient.builder(model).default_tools(TOOLS).default_advisors(advisor).build()

    assert ask(client.prompt("Tickets?").conversation("c")).text == "None."
    offered = [c.definition.name for c in model.prompts[1].options.tool_callbacks or ()]
    assert offered == ["toolSearchTool", "list_tickets"]


def test_custom_tool_index_sessions(tmp_path: Path) -> None:
    """Sessions are isolated, and the file is persistent."""
    path = str(tmp_path / "tools.db")
    index = SqliteToolIndex(path)
    references = [ToolReference.of(callback.definition) for callback in TOOLS]
    index.index_tools("a", references)
    index.index_tools("b", references[:1])

    def found(query: str, session: str = "a", **more: Any) -> tuple[str, ...]:
        return index.search(ToolSearchRequest(session, query, **more)).tool_names

    assert found("delete invoices")[0] == "delete_invoices"
    assert found("tickets", "b") == ("list_tickets",)
    assert found("song", max_results=2, exclude={"play_song_0"}) == ("play_song_1", "play_song_2")
    assert found("?!") == ()
    index.clear_index("a")
    assert found("tickets") == ()
    index = SqliteToolIndex(path)
    index.index_tools("b", references[:1])
    assert found("ticket", "b") == ("list_tickets",)


# --- the repository -------------------------------------------------------------------------


class TestJsonFiles(ChatMemoryRepositoryContract):
    """The repository contract for files."""

    @pytest.fixture
    def repository(self, tmp_path: Path) -> ChatMemoryRepository:
        return JsonChatMemoryRepository(tmp_path / "conversations")


def test_custom_repository(ask: Ask, tmp_path: Path) -> None:
    """Another process finds the stored conversation."""
    model = ScriptedModel("Hello, Ada.", "Ada.")
    for question in ("I am Ada.", "Who am I?"):
        memory = MessageWindowChatMemory(JsonChatMemoryRepository(tmp_path))
        advisor = MessageChatMemoryAdvisor(memory)
        client = ChatClient.builder(model).default_advisors(advisor).build()
        ask(client.prompt(question).conversation("ada"))

    said = [message.text for message in model.prompts[1].messages]
    assert said == ["I am Ada.", "Hello, Ada.", "Who am I?"]
