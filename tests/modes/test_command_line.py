"""The command line: chat in the terminal, over real HTTP."""

import io
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from chatclient import ChatClient, ChatOptions, ToolCall, __version__, tool
from chatclient.__main__ import Chat, main
from chatclient.advisors.memory.advisors import MessageChatMemoryAdvisor
from chatclient.chat.messages import AssistantMessage, Reasoning
from chatclient.memory import MessageWindowChatMemory
from chatclient.testing import ScriptedModel, call
from chatclient.tools import ExternalTool, ToolDefinition
from tests.support.paths import ROOT
from tests.support.servers import ChatServer, Reply, completion

Serve = Callable[..., ChatServer]

_TOOLS = '''
from chatclient import tool

class Weather:
    @tool(effect="read")
    def get_weather(self, city: str) -> str:
        """Get the weather in a city."""
        return f"sunny in {city}" * 20

@tool
def pay(amount: int) -> str:
    """Pay."""
    return "paid"

@tool(effect="read")
def get_time() -> str:
    """Get the time."""
    raise RuntimeError("no clock")

class Named:
    def __init__(self, name):
        self.name = name
'''

CALL = completion("A moment.", ("1", "get_weather", '{"city": "Rome"}'))


@pytest.fixture
def serve(chat_server: Serve, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Serve:
    """Serve `openai:` models, and make a module of tools importable from the current folder."""
    (tmp_path / "my_cli_tools.py").write_text(_TOOLS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "my_cli_tools", raising=False)

    def start(*replies: Any) -> ChatServer:
        server = chat_server(*replies)
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("CHATCLIENT_MODEL", "openai:m-1")
        return server

    return start


def test_a_question_is_answered(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    """Arguments are joined to one text; the model and system text are as given."""
    server = serve("Hello you.")

    assert main(["--system", "Be brief.", "Say", "hello"]) == 0
    assert capsys.readouterr().out == "Hello you.\n"
    assert [message["content"] for message in server.requests[0]["messages"]] == [
        "Be brief.",
        "Say hello",
    ]
    assert server.requests[0]["model"] == "m-1"


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """The version is that of the installed package."""
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["--version"])

    assert capsys.readouterr().out.strip() == metadata.version("chatclient") == __version__


def test_turn_that_waits(capsys: pytest.CaptureFixture[str]) -> None:
    """A pending call is printed, and the exit status is not 0."""
    where = ExternalTool(ToolDefinition("where_am_i", "Where the user is."))
    model = ScriptedModel(call("where_am_i"))
    client = ChatClient.builder(model).default_tools(where).build()

    assert Chat(client, "c", sys.stdout).send("Where am I?") == 1
    assert capsys.readouterr().out == (
        "(no answer yet: a decision is needed about where_am_i({}); `chatclient web` asks for it)\n"
    )


def test_what_is_piped_in_is_answered(
    serve: Serve, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without arguments and without a terminal, the complete input is the question."""
    server = serve("Yes.\n")
    monkeypatch.setattr(sys, "stdin", io.StringIO("Is this\na question?"))

    assert main([]) == 0
    assert capsys.readouterr().out == "Yes.\n"
    assert server.requests[0]["messages"][0]["content"] == "Is this\na question?"


def test_tool_calls_are_shown_as_they_happen(
    serve: Serve, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each on a line, with long results truncated; a class is instantiated."""
    serve(CALL, completion(None, ("2", "get_time", "{}")), "Fine.")

    status = main(
        ["--tools", "my_cli_tools:Weather", "--tools", "my_cli_tools:get_time", "Weather?"]
    )

    first, second, third, last = capsys.readouterr().out.splitlines()
    assert status == 0
    assert first == "A moment."
    assert second.startswith('[get_weather({"city": "Rome"}) -> sunny in Rome')
    assert second.endswith("…]")
    assert third.startswith("[get_time({}) failed ")
    assert last == "Fine."


PAY = completion(None, ("3", "pay", '{"amount": 5}'))


@pytest.mark.parametrize(
    ("typed", "asked", "ran"),
    [
        ("y", True, True),
        ("Yes", True, True),
        ("n", True, False),
        ("", True, False),
        (None, True, False),
        ("pipe", False, False),
        ("--yes", False, True),
    ],
)
def test_tools_that_write_are_confirmed(
    serve: Serve,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    typed: str | None,
    asked: bool,
    ran: bool,
) -> None:
    """A terminal is prompted, and without one nothing runs; the end of the input means no."""
    server = serve(PAY, "Fine.")
    questions: list[str] = []

    def answer(question: str) -> str:
        questions.append(question)
        if typed is None:
            raise EOFError
        return typed

    monkeypatch.setattr("builtins.input", answer)
    monkeypatch.setattr("sys.stdin.isatty", lambda: typed != "pipe", raising=False)
    flags = ["--yes"] if typed == "--yes" else []

    assert main([*flags, "--tools", "my_cli_tools:pay", "Pay!"]) == 0
    [result] = [m["content"] for m in server.requests[1]["messages"] if m["role"] == "tool"]
    assert (result == "paid") is ran
    assert questions == (['\nRun pay({"amount": 5})? [y/N] '] if asked else [])
    assert ("--yes" in capsys.readouterr().err) is (typed == "pipe")


def test_tools_of_mcp_servers_are_confirmed(
    serve: Serve, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them, also those that their server calls read-only."""
    server = serve(completion(None, ("4", "echo", '{"text": "a"}')), "Fine.")
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)

    assert main(["--mcp", f"{sys.executable} {ROOT}/tests/support/mcp_peer.py", "Echo!"]) == 0
    [result] = [m["content"] for m in server.requests[1]["messages"] if m["role"] == "tool"]
    assert "cannot be asked" in result
    assert "echo was not run" in capsys.readouterr().err


@pytest.mark.process("MCP server of the SDK")
@pytest.mark.parametrize("flags", [[], ["--log", "info"]])
def test_standard_error_of_mcp_servers_goes_to_the_log(serve: Serve, flags: list[str]) -> None:
    """It does not interrupt the chat; `--log` shows it."""
    serve("Fine.")
    command = f"echo ready >&2; exec {sys.executable} {ROOT}/tests/support/mcp_peer.py"
    mcp = shlex.join(["sh", "-c", command])
    finished = subprocess.run(
        [sys.executable, "-m", "chatclient", *flags, "--mcp", mcp, "Hi"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
    )

    line = "INFO MCP server wrote to its standard error server='mcp1' line='ready'"
    assert finished.stdout == "Fine.\n"
    assert (line in finished.stderr) is bool(flags)
    assert flags or finished.stderr == ""


def test_a_trace_is_the_tree_of_the_turn(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    """It has times and tokens, and failures are marked."""
    serve(completion(None, ("2", "get_time", "{}")), "Fine.")

    main(["--trace", "--tools", "my_cli_tools:get_time", "Time?"])

    tree = re.sub(r" \d+\.\d ms", "", capsys.readouterr().out).splitlines()[2:]
    assert tree == [
        "  invoke_agent",
        "    advisor MessageChatMemoryAdvisor",
        "      load memory",
        "      advisor ToolCallingAdvisor",
        "        chat m-1, 10 + 5 tokens",
        "        execute_tool get_time !RuntimeError",
        "        chat m-1, 10 + 5 tokens",
        "    store memory",
    ]


def test_a_failure_is_printed_with_its_trace(
    serve: Serve, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit status is 1, and the trace until the failure is printed."""
    serve(Reply(b'{"error": {"message": "no such model"}}', 404))

    assert main(["--trace", "Hi"]) == 1
    out = capsys.readouterr().out
    assert "NotFoundError: " in out
    assert "chat m-1" in out
    assert out.splitlines()[-1].endswith("!NotFoundError")

    assert main(["Hi"]) == 1
    assert "chat m-1" not in capsys.readouterr().out


def test_a_conversation_can_be_kept(
    serve: Serve, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """It is stored in any store with a URL, and the next command continues it."""
    server = serve("Hello Ada.", "Ada.")
    memory = ["--memory", f"sqlite:///{tmp_path / 'chat.db'}", "--conversation", "c-1"]

    assert main([*memory, "I am Ada."]) == 0
    assert main([*memory, "Who am I?"]) == 0

    assert [message["content"] for message in server.requests[1]["messages"]] == [
        "I am Ada.",
        "Hello Ada.",
        "Who am I?",
    ]


@pytest.mark.process("MCP server of the SDK")
def test_mcp_servers_offer_their_tools(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    """A server is started, and ended with the chat."""
    pytest.importorskip("mcp_server_time")
    server = serve("Noon.")

    assert main(["--mcp", f"{sys.executable} -m mcp_server_time", "What time is it?"]) == 0
    offered = [tool["function"]["name"] for tool in server.requests[0]["tools"]]
    assert "get_current_time" in offered


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--model", "nonsense:x"], "nonsense"),
        (["--tools", "my_cli_tools"], "--tools needs MODULE:OBJECT, not 'my_cli_tools'"),
        (["--tools", "no_such_module:x"], "No module named 'no_such_module'"),
        (["--tools", "my_cli_tools:nothing"], "has no attribute 'nothing'"),
        (["--tools", "my_cli_tools:Named"], "cannot instantiate Named (Named.__init__() missing 1"),
        (["--mcp", "an 'open quote"], "--mcp needs a URL, or a command as in a shell, not"),
        (["--mcp", ""], "--mcp needs a URL, or a command as in a shell, not ''"),
        (["--mcp", "no-such-program", "--memory", "nonsense://x"], "not the URL of a database"),
    ],
)
def test_misuse(
    serve: Serve, capsys: pytest.CaptureFixture[str], arguments: list[str], problem: str
) -> None:
    """The error is printed to standard error with status 2, and nothing is sent."""
    server = serve("Hm.")

    assert main([*arguments, "Hi"]) == 2
    assert problem in capsys.readouterr().err
    assert server.requests == []


def test_a_chat_continues_until_an_empty_line() -> None:
    """It prints the client first, and has a memory."""
    model = ScriptedModel("Hello.", "You said: hi.")
    memory = MessageChatMemoryAdvisor(MessageWindowChatMemory())
    client = ChatClient.builder(model).default_advisors(memory).build()
    lines = iter(["Hi", "What did I say?", ""])
    out = io.StringIO()

    assert Chat(client, "c", out).run(lambda _: next(lines)) == 0
    shown = out.getvalue()
    assert shown.startswith("ChatClient\n→ MessageChatMemoryAdvisor")
    assert shown.endswith("Hello.\nYou said: hi.\n")
    assert len(model.prompts[1].messages) == 3


def test_the_end_of_the_input_ends_the_chat() -> None:
    """Ctrl-D at the prompt ends it."""

    def end(_: str) -> str:
        raise EOFError

    client = ChatClient.create(ScriptedModel())
    assert Chat(client, "c", io.StringIO()).run(end) == 0


def test_an_answer_can_be_interrupted() -> None:
    """Ctrl-C ends the answer, not the chat."""

    def answer(_: Any) -> str:
        raise KeyboardInterrupt

    out = io.StringIO()
    client = ChatClient.create(ScriptedModel(answer))

    assert Chat(client, "c", out).send("Hi") == 1
    assert out.getvalue().endswith("(interrupted)\n")


@pytest.mark.parametrize("trace", [True, False])
def test_reasoning_is_part_of_the_trace(trace: bool) -> None:
    """Reasoning is printed only with `--trace`."""
    out = io.StringIO()
    model = ScriptedModel(AssistantMessage([Reasoning("Well…"), "Yes."]))

    Chat(ChatClient.create(model), "c", out, trace=trace).send("?")

    assert ("Well…" in out.getvalue()) is trace


ESCAPE = "\x1b]52;c;aGk=\x07\r\ud83d"


def test_control_characters_are_escaped() -> None:
    """Neither text nor names, arguments, results and errors control the terminal."""

    @tool(name="look")
    def look(where: str) -> str:
        """Look."""
        return f"seen\n[pay() -> done]{ESCAPE}"

    call = ToolCall("1", "look", json.dumps({"where": ESCAPE}))
    model = ScriptedModel([f"Hm. {ESCAPE}", call], f"Done. {ESCAPE}", RuntimeError(ESCAPE))
    client = ChatClient.builder(model).default_tools(look).build()
    out = io.StringIO()
    chat = Chat(client, "terminal", out, trace=True)

    assert chat.send("look") == 0
    with pytest.raises(RuntimeError):
        chat.send("again")
    shown = out.getvalue()
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]", shown)
    assert sum(line.startswith("[") for line in shown.splitlines()) == 1
    shown.encode()


_APP = """
from chatclient import ChatClient, ChatOptions
from chatclient.testing import ScriptedModel
from my_cli_tools import Weather

def make():
    model = ScriptedModel("Rainy.", "Rainy.", options=ChatOptions(model="m"))
    return ChatClient.builder(model).default_tools(Weather()).build()

client = make()
number = 3
"""


@pytest.fixture
def recording(serve: Serve, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Record a turn from the command line, and make the module `my_cli_app` importable."""
    serve(CALL, completion("Sunny."))
    main(["--model", "openai:m", "--tools", "my_cli_tools:Weather", "--record", "turn.json", "Hi"])
    (tmp_path / "my_cli_app.py").write_text(_APP)
    monkeypatch.delitem(sys.modules, "my_cli_app", raising=False)
    return tmp_path / "turn.json"


@pytest.mark.parametrize(
    ("flags", "status", "shown"),
    [
        ((), 0, ["prompts: none", "answers: none"]),
        (("--system", "Be brief."), 1, ["prompts: model call 1: system text 1 was added"]),
        (("--fork-at", "2"), 1, ["prompts: none", "answers: answer 2: 'Sunny.' became 'Rainy.'"]),
    ],
)
@pytest.mark.parametrize("client", ["client", "make"])
def test_recorded_turn_is_replayed(
    recording: Path,
    capsys: pytest.CaptureFixture[str],
    client: str,
    flags: tuple[str, ...],
    status: int,
    shown: list[str],
) -> None:
    """A recorded turn is replayed with the client of an application, and differences shown."""
    capsys.readouterr()

    assert main(["replay", str(recording), f"my_cli_app:{client}", *flags]) == status

    out = capsys.readouterr().out
    assert [text for text in shown if text not in out] == []


def test_replay_with_another_model(
    recording: Path, chat_server: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another model answers from the fork on."""
    server = chat_server(completion("Sunny."))
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    flags = ["--model", "openai:m", "--fork-at", "2"]

    assert main(["replay", str(recording), "my_cli_app:client", *flags]) == 0

    assert len(server.requests) == 1


@pytest.mark.parametrize("client", ["client", "make"])
def test_recorded_turn_becomes_a_test(recording: Path, tmp_path: Path, client: str) -> None:
    """The written test passes with the same client, and fails with another one."""
    (tmp_path / "tests").mkdir()
    command = ["replay", str(recording), f"my_cli_app:{client}"]
    assert main([*command, "--write-test", "tests/test_it.py"]) == 0
    run = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/test_it.py"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}

    def output() -> str:
        done = subprocess.run(
            run, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        return done.stdout

    passed = output()
    changed = _APP.replace(".build()", ".default_system('!').build()")
    (tmp_path / "my_cli_app.py").write_text(changed)
    failed = output()

    assert "1 passed" in passed
    assert "system text 1 was added" in failed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.json", "my_cli_app:client"], "No such file"),
        (["my_cli_app.py", "my_cli_app:client"], "is not the recording of a turn"),
        (["turn.json", "my_cli_app:number"], "must be a ChatClient or a function"),
        (["turn.json", "my_cli_app"], "needs MODULE:OBJECT"),
    ],
)
def test_misuse_of_replay(
    recording: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    """Wrong files and clients are errors."""
    assert recording.exists()

    assert main(["replay", *arguments]) == 2

    assert message in capsys.readouterr().err


def test_failed_turn_is_recorded(serve: Serve, tmp_path: Path) -> None:
    """A turn that failed is recorded as well."""
    serve(Reply(b'{"error": {"message": "no"}}', 400))

    assert main(["--model", "openai:m", "--record", "turn.json", "Hi"]) == 1

    assert "Hi" in (tmp_path / "turn.json").read_text()


def test_printed_trail_and_client() -> None:
    """A name with a line feed does not look like another line."""
    model = ScriptedModel(f"{ESCAPE}\nround 9: forged", options=ChatOptions(model=f"m\nx{ESCAPE}"))
    client = ChatClient.create(model)
    answer = client.prompt("x").call()
    answer.content()

    for text in (str(answer.trail()), str(client)):
        assert not re.search(r"[\x00-\x08\x0b-\x1f\ud800-\udfff]", text)
        assert not any(line.startswith(("x", "round 9")) for line in text.splitlines())
