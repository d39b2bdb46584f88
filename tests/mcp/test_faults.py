# pyright: reportPossiblyUnboundVariable=false
# A loop over `longer_and_longer` runs at least once.
"""MCP servers that crash, hang, send invalid data or change: documented outcomes."""

import asyncio
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

from chatclient.testing import Ask
from tests.properties.test_tool_faults import problem_with
from tests.support.mcp_setup import ask_with_tools, mcp_threads, offered_names, peer, runs
from tests.support.paths import SUPPORT
from tests.support.waiting import LONG, longer_and_longer, settled

pytest.importorskip("mcp")

from chatclient import ChatClient, ToolContext
from chatclient.errors import (
    DeadlineExceededError,
    McpServerError,
    ToolArgumentError,
    ToolDefinitionError,
)
from chatclient.mcp import McpLimits, McpServer, McpToolCallbackProvider
from chatclient.mcp.connection import Connection
from chatclient.mcp.schemas import CHECK_SECONDS, misfits, validator_of
from chatclient.runtime.blocking import drive
from chatclient.runtime.runtime import ON_LOOP
from chatclient.testing import ScriptedModel, call
from chatclient.tools import ToolResult, tool_callbacks

AWAY = "the MCP server 'peer' went away during the call; whether it was carried out is not known"


@pytest.fixture(autouse=True)
def _no_leaks() -> Iterator[None]:
    before = mcp_threads()
    yield
    assert settled(lambda: len(mcp_threads()) <= len(before))


def run(provider: McpToolCallbackProvider, name: str, arguments: str = "{}") -> str:
    callback = {c.definition.name: c for c in tool_callbacks(provider)}[name]
    return drive(callback.invoke(arguments, ToolContext())).text


def check_history(model: ScriptedModel) -> None:
    """Check that every prompt of the model is a valid conversation."""
    assert not any(problem_with(prompt.messages) for prompt in model.prompts)


# --- lost connections ---


@pytest.mark.feature("mcp-reconnect")
@pytest.mark.parametrize("name", ["die", "half"])
def test_crash_during_a_call(ask: Ask, name: str) -> None:
    """The model learns that the outcome is unknown; the next call starts a process."""
    with McpToolCallbackProvider(peer()) as provider:
        result, model = ask_with_tools(
            ask, provider, call("pid", id="1"), call(name), call("pid", id="2"), "done"
        )

    first, died, second = result.executions
    assert (died.response.data, died.is_error) == (AWAY, True)
    assert isinstance(died.error, McpServerError)
    assert died.error.server == "peer"
    assert first.response.data != second.response.data
    assert not runs(int(first.response.data))
    check_history(model)


def test_idempotent_call_is_repeated(ask: Ask, tmp_path: Path) -> None:
    """For a trusted server an idempotent call is repeated transparently."""
    server = peer(env={"DIED": str(tmp_path / "died")}, trust_annotations=True)

    with McpToolCallbackProvider(server) as provider:
        result, _ = ask_with_tools(ask, provider, call("die_once"), "done")

    assert result.executions[0].response.data == "alive"


@pytest.mark.feature("mcp-reconnect")
def test_other_calls_are_not_repeated(ask: Ask, tmp_path: Path) -> None:
    """A call that may have been executed is not repeated."""
    server = peer(env={"DIED": str(tmp_path / "died")})

    with McpToolCallbackProvider(server) as provider:
        result, _ = ask_with_tools(ask, provider, call("die_once"), "done")

    assert result.executions[0].response.data == AWAY


def test_repeated_crash(ask: Ask, tmp_path: Path) -> None:
    """A second crash is reported."""
    nowhere = tmp_path / "no such folder" / "died"
    server = peer(env={"DIED": str(nowhere)}, trust_annotations=True)

    with McpToolCallbackProvider(server) as provider:
        result, _ = ask_with_tools(ask, provider, call("die_once"), "done")

    assert result.executions[0].response.data.endswith("'peer' went away twice during the call")


def has_detected_crash(provider: McpToolCallbackProvider) -> bool:
    """Return whether the provider has detected the end of its server."""
    assert provider._pool is not None
    session = provider._pool.connections["peer"]._session
    return session is None or session.ended


def test_crash_between_calls(ask: Ask) -> None:
    """The next call starts a process without an error."""
    with McpToolCallbackProvider(peer()) as provider:
        pid = int(run(provider, "pid"))
        os.kill(pid, signal.SIGKILL)
        # The call must not race with the detection of the crash.
        assert settled(lambda: not runs(pid) and has_detected_crash(provider))

        result, _ = ask_with_tools(ask, provider, call("pid"), "done")

    assert not result.executions[0].is_error
    assert result.executions[0].response.data != str(pid)


def test_failing_restart(ask: Ask, tmp_path: Path) -> None:
    """A call without a server is an error for the model, and the turn continues."""
    program = tmp_path / "server"
    program.symlink_to(sys.executable)
    peer_file = str(SUPPORT / "mcp_peer.py")
    server = McpServer.stdio("peer", str(program), peer_file)
    with McpToolCallbackProvider(server) as provider:
        pid = int(run(provider, "pid"))
        model = ScriptedModel(lambda prompt: _kill_then_call(prompt, pid, program))
        result = ask(ChatClient.builder(model).default_tools(provider).build().prompt("x"))

    [execution] = result.executions
    # Whether the crash is detected before or by the call depends on the operating system.
    assert execution.response.data.startswith(
        (
            "the MCP server 'peer' cannot be reached by starting ",
            "the MCP server 'peer' went away during the call",
        )
    )
    assert result.text == "done"


def _kill_then_call(prompt: Any, pid: int, program: Path) -> Any:
    if len(prompt.messages) > 1:
        return "done"
    program.unlink()
    os.kill(pid, signal.SIGKILL)
    settled(lambda: not runs(pid))
    return call("echo", '{"text": "hi"}')


# --- time-outs ---


@pytest.mark.feature("mcp-tool-execution-timeout-60")
def test_call_timeout(ask: Ask, tmp_path: Path) -> None:
    """The model gets an error, the call is cancelled, and the server stays in use."""
    for seconds in longer_and_longer():
        cancelled = tmp_path / f"cancelled after {seconds}"
        server = peer(env={"CANCELLED": str(cancelled)}, timeout=seconds)
        # A machine may be too busy even for the listing.
        with McpToolCallbackProvider(server) as provider, suppress(McpServerError):
            result, model = ask_with_tools(
                ask, provider, call("hang"), call("echo", '{"text": "hi"}'), "done"
            )
            hung, echoed = result.executions
            if not echoed.is_error:
                assert settled(cancelled.exists)
                break

    assert (hung.response.data, hung.is_error) == ("The tool 'hang' did not answer in time.", True)
    assert echoed.response.data == "hi"
    check_history(model)


def test_hung_server_is_restarted(ask: Ask, caplog: pytest.LogCaptureFixture) -> None:
    """After a time-out, a server that answers no ping is started again for the next call."""
    for seconds in (1, 10, 60):
        caplog.clear()
        with McpToolCallbackProvider(peer(fault="deaf", timeout=seconds)) as provider:
            result, model = ask_with_tools(
                ask, provider, call("pid", id="1"), call("hang"), call("pid", id="2"), "done"
            )
        first, hung, second = result.executions
        if not first.is_error and not second.is_error:
            break

    assert hung.response.data == "The tool 'hang' did not answer in time."
    assert not second.is_error
    assert first.response.data != second.response.data
    assert not runs(int(first.response.data))
    assert caplog.text.count("mcp server does not respond") == 1
    check_history(model)


SLOW = """
import asyncio, os
from chatclient.mcp import McpToolServer
from chatclient import tool

@tool
async def hang() -> None:
    await asyncio.sleep(60)

@tool
async def pid() -> int:
    return os.getpid()

McpToolServer(hang, pid, name="slow", version="1").serve_stdio()
"""


@pytest.mark.process("MCP server of the SDK")
def test_slow_server_of_the_newest_protocol() -> None:
    """It has no ping, but answers another request while a tool waits, so it is kept."""
    server = McpServer.stdio("slow", sys.executable, "-c", SLOW, timeout=4)
    with McpToolCallbackProvider(server) as provider:
        result, _ = ask_with_tools(
            Ask("call"), provider, call("pid", id="1"), call("hang"), call("pid", id="2"), "done"
        )

    first, hung, second = (execution.response.data for execution in result.executions)
    assert hung == "The tool 'hang' did not answer in time."
    assert first == second


def test_deadline_ends_a_call(ask: Ask) -> None:
    """The deadline of the request applies besides the server's time-out."""
    with McpToolCallbackProvider(peer()) as provider:
        tool_callbacks(provider)  # connect first, as the start takes longer than the deadline
        client = ChatClient.builder(ScriptedModel(call("hang"))).default_tools(provider).build()

        with pytest.raises(DeadlineExceededError):
            ask(client.prompt("x").deadline(0.5))


def test_closed_stream_cancels_the_call(tmp_path: Path) -> None:
    """The server receives a cancellation."""
    cancelled = tmp_path / "cancelled"
    with McpToolCallbackProvider(peer(env={"CANCELLED": str(cancelled)})) as provider:
        model = ScriptedModel([call("hang", id="1"), call("progress", id="2")])
        client = ChatClient.builder(model).default_tools(provider).build()

        async def leave() -> None:
            async with client.prompt("x").astream().events() as events:
                async for event in events:
                    if type(event).__name__ == "ToolProgress":
                        break

        import asyncio

        asyncio.run(leave())

        assert settled(cancelled.exists)


# --- invalid data ---


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("garbage", "the MCP server 'peer' does not keep to the protocol: its answer is no MCP"),
        ("unstructured", "the MCP server 'peer' does not keep to the protocol: Invalid structured"),
    ],
)
def test_invalid_result(ask: Ask, name: str, message: str) -> None:
    """The model gets an error, and the connection stays open."""
    with McpToolCallbackProvider(peer()) as provider:
        result, model = ask_with_tools(
            ask, provider, call("pid", id="1"), call(name), call("pid", id="2"), "done"
        )

    first, broken, second = result.executions
    assert broken.is_error
    assert broken.response.data.startswith(message)
    assert first.response.data == second.response.data
    check_history(model)


def test_other_output_is_skipped(ask: Ask) -> None:
    """Other lines on the standard output are skipped."""
    with McpToolCallbackProvider(peer(fault="noisy")) as provider:
        result, _ = ask_with_tools(ask, provider, call("echo", '{"text": "hi"}'), "done")

    assert result.executions[0].response.data == "hi"


def test_uncheckable_schemas() -> None:
    """Broken, remote and recursive schemas are left to the server."""
    with McpToolCallbackProvider(peer(fault="odd")) as provider:
        names = [c.definition.name for c in tool_callbacks(provider)]

        first, *odd = names
        assert first == "echo"  # the first of two is used
        assert odd[:5] == ["broken", "elsewhere", "letters", "ahead", "named"]
        assert odd[5:] == ["unread", "itself", "tiny"]
        for name in odd:
            assert run(provider, name, '{"a": 1%s}' % ("0" * 400)) == f"{name} has run"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("pattern", "The arguments for pattern do not fit:\n- a: 'aaa"),
        ("dialect", "The arguments for dialect do not fit:\n- a: 'aaa"),
        ("forks", "forks has run"),
        ("choices", "choices has run"),
        ("alike", "alike has run"),
        ("answer", "the MCP server 'peer' does not keep to the protocol: Invalid structured"),
    ],
)
def test_expensive_schemas(ask: Ask, name: str, message: str) -> None:
    """Validation that would not end is left to the server."""
    with McpToolCallbackProvider(peer(fault="hostile")) as provider:
        result, _ = ask_with_tools(
            ask, provider, call(name, json.dumps({"a": "a" * 40 + "!"})), "done"
        )

    assert result.executions[0].response.data.startswith(message)


async def test_check_beside_the_loop() -> None:
    """A result whose check takes long is checked in another thread than that of the event loop."""
    async with McpToolCallbackProvider(peer(fault="hostile")) as provider:
        [long] = [c for c in await provider.tool_callbacks() if c.definition.name == "long"]
        before = time.thread_time()
        result = await long.invoke("{}", ToolContext(runtime=ON_LOOP))
        used = time.thread_time() - before

    assert isinstance(result, ToolResult)
    assert used < CHECK_SECONDS / 2


def test_patterns() -> None:
    """Patterns follow ECMAScript, for texts of limited length."""
    with McpToolCallbackProvider(peer(fault="odd")) as provider:
        assert run(provider, "letters", '{"a": "é"}') == "letters has run"
        with pytest.raises(ToolArgumentError, match="does not match"):
            run(provider, "letters", '{"a": "1"}')
        assert run(provider, "letters", json.dumps({"a": "1" * 2_000})) == "letters has run"


@pytest.mark.parametrize(
    ("wanted", "value", "alike"),
    [
        (True, [1, 1], True),
        (True, [{"a": 1, "b": 2}, {"b": 2, "a": 1}], True),
        (True, [1, True, "1"], False),
        (True, "aa", False),
        (False, [1, 1], False),
    ],
)
def test_unique_items(wanted: bool, value: Any, alike: bool) -> None:
    """Duplicate items are reported, also with another order of fields."""
    found = misfits(validator_of({"uniqueItems": wanted}), value, CHECK_SECONDS)

    assert found is not None
    assert ["the same item twice" in error.message for error in found] == [True] * alike


def test_invalid_tool_is_omitted(caplog: pytest.LogCaptureFixture) -> None:
    """Other tools are kept, and the log names it once."""
    from mcp_types import Tool

    with (
        caplog.at_level(logging.WARNING, "chatclient"),
        McpToolCallbackProvider(peer(), tool_filter=lambda _, t: t.name in "pid text") as provider,
    ):
        assert len(tool_callbacks(provider)) == 1
        pool = provider._pool
        assert pool is not None
        connection = pool.connections["peer"]
        # The current SDK rejects such a listing completely.
        connection.known = (*connection.known, Tool(name="text", input_schema={"type": "string"}))
        names = [c.definition.name for _ in range(2) for c in tool_callbacks(provider)]

    assert names == ["pid", "pid"]
    assert caplog.text.count("mcp tool left out") == 1


# --- changes without notification ---


def test_removed_tool(ask: Ask) -> None:
    """The model gets the server's error; the next request does not offer the tool."""
    with McpToolCallbackProvider(peer()) as provider:
        result, model = ask_with_tools(ask, provider, call("shrink"), call("pid"), "done")
        _, after = ask_with_tools(ask, provider, "done")

    removed = result.executions[1]
    assert (removed.response.data, removed.is_error) == ("Unknown tool: pid", True)
    assert offered_names(after) == ["echo", "shrink"]
    check_history(model)


def test_unannounced_tools(ask: Ask) -> None:
    """Tools are listed again after a while; unchanged ones stay the same objects in their order."""
    with McpToolCallbackProvider(peer(fault="unannounced", refresh_after=0.2)) as provider:
        before = tool_callbacks(provider)
        ask_with_tools(ask, provider, call("grow"), "done")
        time.sleep(0.2)
        _, model = ask_with_tools(ask, provider, "done")
        after = tool_callbacks(provider)

    assert offered_names(model) == ["weather", "rename", "grow", "grown_3"]
    assert all(a is b for a, b in zip(before, after, strict=False))


def test_listing_without_refresh() -> None:
    """Without a time, only the server's word counts."""
    with McpToolCallbackProvider(peer(fault="unannounced", refresh_after=None)) as provider:
        run(provider, "grow")
        assert len(tool_callbacks(provider)) == 3


@pytest.mark.parametrize("pin", [True, False])
def test_renamed_parameter(ask: Ask, pin: bool) -> None:
    """A call that does not fit asks the server for the tool; a pinned one stays as it was."""
    source = peer(fault="unannounced", retry_after=0.1)
    with McpToolCallbackProvider(source, pin=pin) as provider:
        asked = (call("rename"), call("weather", '{"place": "Oslo"}'), call("weather"), "done")
        tool_callbacks(provider)
        time.sleep(0.1)
        result, model = ask_with_tools(ask, provider, *asked)
        _, after = ask_with_tools(ask, provider, "done")

    _, renamed, misfit = result.executions
    if pin:
        assert renamed.is_error
        assert "place: unknown" in renamed.response.data
        assert offered_names(after) == ["rename", "grow"]
    else:
        assert renamed.response.data == "Oslo"
        assert "place: missing, but required" in misfit.response.data
        assert "which now are {" in misfit.response.data
    check_history(model)


def test_arguments_for_a_lost_server(tmp_path: Path) -> None:
    """Arguments that do not fit are reported as such, although the server is gone."""
    program = tmp_path / "server"
    program.symlink_to(sys.executable)
    server = McpServer.stdio("peer", str(program), str(SUPPORT / "mcp_peer.py"), retry_after=0.01)
    with McpToolCallbackProvider(server) as provider:
        pid = int(run(provider, "pid"))
        [echo] = [c for c in tool_callbacks(provider) if c.definition.name == "echo"]
        program.unlink()
        os.kill(pid, signal.SIGKILL)
        assert settled(lambda: has_detected_crash(provider))

        with pytest.raises(ToolArgumentError, match="text: missing, but required"):
            drive(echo.invoke("{}", ToolContext()))


# --- failing connections ---

BROKEN = {
    "dead": (
        lambda **settings: peer(fault="dead", **settings),
        r"cannot be reached .*: it exited with status 3$",
    ),
    "missing": (
        lambda **settings: McpServer.stdio("peer", "/no/such/program", **settings),
        r"cannot be reached by starting .* \(FileNotFoundError: ",
    ),
    "mute": (
        lambda **settings: peer(fault="mute", connect_timeout=0.4, **settings),
        "did not answer within 0.4 s",
    ),
    "silent": (
        lambda **settings: peer(fault="silent-list", timeout=0.4, **settings),
        "did not list its tools in time",
    ),
    "dying": (lambda **settings: peer(fault="dead-list", **settings), "went away twice"),
    "refused": (
        lambda **settings: McpServer.http("peer", "http://127.0.0.1:9/mcp", **settings),
        r"cannot be reached \(ConnectError\)",
    ),
    "unstartable": (
        lambda **settings: McpServer.stdio(
            "peer",
            sys.executable,
            env={"PORT": 5},  # type: ignore[dict-item]
            connect_timeout=LONG,
            **settings,
        ),
        r"cannot be reached by starting .* \(ValidationError\)",
    ),
}
each_broken = pytest.mark.parametrize(
    ("server", "message"), list(BROKEN.values()), ids=list(BROKEN)
)


@pytest.mark.feature("mcp-request-timeout-initialisation")
@each_broken
def test_required_server_fails(ask: Ask, server: Callable[..., McpServer], message: str) -> None:
    """The error names the server and is raised before a model call."""
    model = ScriptedModel("never")

    with (
        McpToolCallbackProvider(server()) as provider,
        pytest.raises(McpServerError, match=message) as raised,
    ):
        ask(ChatClient.builder(model).default_tools(provider).build().prompt("x"))

    assert raised.value.server == "peer"
    assert model.prompts == []


@pytest.mark.feature("mcp-fail-one-server-fails")
@each_broken
def test_optional_server_fails(
    server: Callable[..., McpServer], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Tools of other servers are offered, and the log names the server."""
    with (
        caplog.at_level(logging.WARNING, "chatclient"),
        McpToolCallbackProvider(
            server(required=False, retry_after=LONG),
            peer("other"),
            tool_filter=lambda _server, t: t.name == "pid",
        ) as provider,
    ):
        result, model = ask_with_tools(Ask("call"), provider, call("pid"), "done")
        tool_callbacks(provider)

    assert offered_names(model) == ["pid"]
    assert not result.executions[0].is_error
    assert caplog.text.count("mcp server left out") == 1  # not tried again for every request


async def test_concurrent_requests_share_a_failure() -> None:
    """Requests that wait for the same connection share its failure."""
    async with McpToolCallbackProvider(peer(fault="mute", connect_timeout=0.5)) as provider:
        with pytest.raises(McpServerError):  # loads the SDK
            await provider.tool_callbacks()
        started = time.monotonic()
        errors = await asyncio.gather(
            *(provider.tool_callbacks() for _ in range(200)), return_exceptions=True
        )
        took = time.monotonic() - started

    assert {str(error) for error in errors} == {"the MCP server 'peer' did not answer within 0.5 s"}
    assert took < 90  # one after another, they would wait for half a second each


def test_server_recovers(tmp_path: Path) -> None:
    """An omitted server is tried again after a while."""
    program = tmp_path / "server"
    peer_file = str(SUPPORT / "mcp_peer.py")
    server = McpServer.stdio("peer", str(program), peer_file, required=False, retry_after=0.05)

    with McpToolCallbackProvider(server) as provider:
        assert tool_callbacks(provider) == []
        program.symlink_to(sys.executable)
        assert settled(lambda: len(tool_callbacks(provider)) > 0)


def test_tools_of_a_lost_server(tmp_path: Path) -> None:
    """Its tools are not offered while it is omitted."""
    program = tmp_path / "server"
    program.symlink_to(sys.executable)
    peer_file = str(SUPPORT / "mcp_peer.py")
    server = McpServer.stdio("peer", str(program), peer_file, required=False, retry_after=0.05)

    with McpToolCallbackProvider(server) as provider:
        pid = int(run(provider, "pid"))
        program.unlink()
        os.kill(pid, signal.SIGKILL)

        assert settled(lambda: tool_callbacks(provider) == [])


def test_resource_listing_with_failing_servers(ask: Ask) -> None:
    """A server that fails or lacks templates omits only its own resources."""
    servers = (
        peer("a", "resources"),
        peer("b", "mute-resources", timeout=0.4),
        peer("c"),
        peer("d", "half-resources"),
    )
    with McpToolCallbackProvider(*servers, resources=True, prefix="always") as provider:
        result, _ = ask_with_tools(ask, provider, call("list_resources"), "done")

    [execution] = result.executions
    assert not execution.is_error
    assert json.loads(execution.response.data) == [
        {"server": "a", "name": "a", "uri": "file:///a"},
        {"server": "b", "error": "it did not answer in time"},
        {"server": "d", "error": "out of order"},
    ]


def test_close_during_a_call(caplog: pytest.LogCaptureFixture) -> None:
    """A repeatable call does not reconnect after closing."""
    provider = McpToolCallbackProvider(peer(fault="mute-resources"), resources=True)
    listing = {c.definition.name: c for c in tool_callbacks(provider)}["list_resources"]
    message: list[str] = []
    request = threading.Thread(
        target=lambda: message.append(drive(listing.invoke("{}", ToolContext())).text)
    )
    request.start()
    time.sleep(0.2)  # the server does not answer

    provider.close()
    request.join()

    assert "the connection to the MCP server 'peer' was closed" in message[0]
    assert caplog.text == ""


def test_server_without_tools() -> None:
    """Tools are not listed without the capability."""
    with McpToolCallbackProvider(peer(fault="no-tools")) as provider:
        assert tool_callbacks(provider) == []


def test_endless_listing() -> None:
    """The number of pages is limited."""
    with McpToolCallbackProvider(peer(fault="endless")) as provider:
        names = [c.definition.name for c in tool_callbacks(provider)]

    assert names.count("echo") == 1


def test_cancelled_connection() -> None:
    """A cancelled connection leaves no process or thread."""
    import asyncio

    async def give_up() -> None:
        async with McpToolCallbackProvider(peer(fault="mute")) as provider:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await provider.tool_callbacks()

    asyncio.run(give_up())


def test_missing_program(ask: Ask) -> None:
    """The error names the program and the system's reason."""
    server = McpServer.stdio("bad", "no-such-program-here", "--token", "s3cret")
    builder = ChatClient.builder(ScriptedModel())

    with McpToolCallbackProvider(server) as provider, pytest.raises(McpServerError) as caught:
        ask(builder.default_tools(provider).build().prompt("x"))
    message = str(caught.value)
    assert "by starting 'no-such-program-here' (FileNotFoundError: No such file" in message
    assert "s3cret" not in message


def test_last_lines_of_a_failed_start(ask: Ask) -> None:
    """The error has the exit status and the last lines, without values of the environment."""
    command = (sys.executable, "-S", str(SUPPORT / "mcp_peer.py"), "unready")
    secret = ("--api-key=s3cr3t-1", "--token", "s3cr3t-2", "--verbose", "loud")
    server = McpServer.stdio("bad", *command, *secret, env={"KEY": "s3cr3t-0"})
    builder = ChatClient.builder(ScriptedModel())

    with McpToolCallbackProvider(server) as provider, pytest.raises(McpServerError) as caught:
        ask(builder.default_tools(provider).build().prompt("x"))
    assert "it exited with status 3; the last lines" in str(caught.value)
    lines = caught.value.stderr.splitlines()
    assert lines[0] == "line 12"
    assert lines[-2:] == [
        "cannot connect to http://me:***@db, password = ***",
        "no database for *** --api-key=*** --token *** --verbose loud",
    ]
    assert str(caught.value).endswith(caught.value.stderr)


def test_standard_error_goes_to_the_log(ask: Ask, caplog: pytest.LogCaptureFixture) -> None:
    """Line by line, with the name of the server and without secrets."""
    caplog.set_level("INFO", "chatclient")
    code = (
        "import sys; sys.stderr.write('one s3cr3t-0\\n\\x1b[1mtwo' + 'x' * 9000 + '\\nlast');"
        f"sys.stderr.flush(); exec(open({str(SUPPORT / 'mcp_peer.py')!r}).read())"
    )
    server = McpServer.stdio("chatty", sys.executable, "-c", code, env={"KEY": "s3cr3t-0"})
    with McpToolCallbackProvider(server) as provider:
        ask(ChatClient.builder(ScriptedModel("x")).default_tools(provider).build().prompt("x"))

    records: list[Any] = [r for r in caplog.records if "standard error" in r.getMessage()]
    lines = [record.chatclient["line"] for record in records]
    assert lines[0] == "one ***"
    assert lines[1].startswith("[1mtwox")
    assert len(lines[1]) <= 300
    assert lines[-1] == "last"
    assert {record.chatclient["server"] for record in records} == {"chatty"}


def test_flood_on_standard_error(ask: Ask, caplog: pytest.LogCaptureFixture) -> None:
    """A line full of names of secrets costs no time, and further lines are dropped."""
    caplog.set_level("INFO", "chatclient")
    code = (
        "import sys; sys.stderr.write('token-' * 1300 + '\\n' + 'a\\n' * 100_000);"
        f"sys.stderr.flush(); exec(open({str(SUPPORT / 'mcp_peer.py')!r}).read())"
    )
    limits = McpLimits(log_messages=5)
    server = McpServer.stdio("chatty", sys.executable, "-S", "-c", code, limits=limits)
    with McpToolCallbackProvider(server) as provider:
        result, _ = ask_with_tools(ask, provider, call("echo", '{"text": "hi"}'), "done")

    records: list[Any] = [r for r in caplog.records if "standard error" in r.getMessage()]
    lines = [record.chatclient["line"] for record in records]
    assert result.executions[0].response.data == "hi"
    assert lines[0].startswith("token-token-")
    assert lines[1:] == ["a"] * 4 + ["(further lines are dropped for a minute)"]


def test_last_lines_are_not_for_the_model(ask: Ask, tmp_path: Path) -> None:
    """The error for the model does not have the last lines of a server that cannot be restarted."""
    fault = tmp_path / "fault"
    fault.write_text("")
    start = f"import sys; sys.argv[1:] = open({str(fault)!r}).read().split()"
    code = f"{start}; exec(open({str(SUPPORT / 'mcp_peer.py')!r}).read())"
    server = McpServer.stdio("peer", sys.executable, "-S", "-c", code, env={"KEY": "s3cr3t-0"})
    with McpToolCallbackProvider(server) as provider:
        pid = int(run(provider, "pid"))
        [echo] = [c for c in tool_callbacks(provider) if c.definition.name == "echo"]
        fault.write_text("unready")
        os.kill(pid, signal.SIGKILL)
        assert settled(lambda: has_detected_crash(provider))

        with pytest.raises(McpServerError, match=r"it exited with status 3$") as caught:
            drive(echo.invoke('{"text": "hi"}', ToolContext()))
    assert isinstance(caught.value.__cause__, McpServerError)
    assert "line 19" in str(caught.value.__cause__)


def test_command_line_as_program(ask: Ask) -> None:
    """A command line as program raises with a fix."""
    server = McpServer.stdio("bad", "no-such-program-here --local-timezone UTC")
    builder = ChatClient.builder(ScriptedModel())

    with (
        McpToolCallbackProvider(server) as provider,
        pytest.raises(
            McpServerError, match=r"arguments one by one: 'no-such-program-here', \.\.\."
        ),
    ):
        ask(builder.default_tools(provider).build().prompt("x"))


def test_server_instead_of_provider() -> None:
    """The error names the provider to use."""
    server: Any = McpServer.stdio("bad", "no-such-program-here")

    with pytest.raises(ToolDefinitionError, match=r"goes into McpToolCallbackProvider\(...\)"):
        ChatClient.builder(ScriptedModel()).default_tools(server)


async def test_contexts_that_do_not_compare() -> None:
    """A call ends although a context variable of another one has a value without a truth value."""

    class Oddity:
        def __eq__(self, other: object) -> bool:
            raise ValueError("ambiguous")

        __hash__ = None  # type: ignore[assignment]

    class Waiting(Connection):
        async def request(self, exchange: Any, *, repeatable: bool = False) -> Any:
            return await exchange

    variable: ContextVar[Oddity] = ContextVar("variable")
    connection = Waiting(peer())

    async def called(seconds: float) -> None:
        variable.set(Oddity())
        await connection.call(asyncio.sleep(seconds))  # type: ignore[arg-type]

    first = asyncio.create_task(called(3600))
    await asyncio.sleep(0)
    await asyncio.create_task(called(0))
    first.cancel()
    with suppress(asyncio.CancelledError):
        await first
    assert connection._calls == []
