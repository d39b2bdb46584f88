"""MCP servers that die, hang, answer garbage or change: a documented outcome, and nothing hangs."""

import asyncio
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Ask
from mcp_setup import asked_for, mcp_threads, names_offered, peer, runs
from test_tool_faults import problem_with
from waiting import settled

pytest.importorskip("mcp")

from chatclient import ChatClient
from chatclient.driving import drive
from chatclient.errors import (
    DeadlineExceededError,
    McpServerError,
    ToolArgumentError,
    ToolDefinitionError,
)
from chatclient.testing import ScriptedModel, call
from chatclient.tools import ToolContext, tool_callbacks
from chatclient.tools.mcp import McpServer, McpToolCallbackProvider
from chatclient.tools.mcp.schemas import misfits, validator_of

AWAY = "the MCP server 'peer' went away during the call; whether it was carried out is not known"


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    before = mcp_threads()
    yield
    assert settled(lambda: len(mcp_threads()) <= len(before))


def run(provider: McpToolCallbackProvider, name: str, arguments: str = "{}") -> str:
    callback = {c.definition.name: c for c in tool_callbacks(provider)}[name]
    return drive(callback.invoke(arguments, ToolContext())).text


def check_history(model: ScriptedModel) -> None:
    """Every prompt the model got could have been sent."""
    assert not any(problem_with(prompt.messages) for prompt in model.prompts)


# --- a connection that is lost ---


@pytest.mark.parametrize("name", ["die", "half"])
def test_a_server_that_dies_in_a_call(ask: Ask, name: str) -> None:
    """The model is told that the outcome is unknown; the next call reaches a new process."""
    with McpToolCallbackProvider(peer()) as provider:
        asked, model = asked_for(
            ask, provider, call("pid", id="1"), call(name), call("pid", id="2"), "done"
        )

    first, died, second = asked.executions
    assert (died.response.data, died.is_error) == (AWAY, True)
    assert isinstance(died.error, McpServerError)
    assert died.error.server == "peer"
    assert first.response.data != second.response.data
    assert not runs(int(first.response.data))
    check_history(model)


def test_a_call_that_changes_nothing_is_made_again(ask: Ask, tmp_path: Path) -> None:
    """Where a server is trusted to know that repeating is harmless, the model notices nothing."""
    server = peer(env={"DIED": str(tmp_path / "died")}, trust_annotations=True)

    with McpToolCallbackProvider(server) as provider:
        asked, _ = asked_for(ask, provider, call("die_once"), "done")

    assert asked.executions[0].response.data == "alive"


def test_any_other_call_is_not_made_again(ask: Ask, tmp_path: Path) -> None:
    """It may have been carried out, and must not be carried out twice."""
    server = peer(env={"DIED": str(tmp_path / "died")})

    with McpToolCallbackProvider(server) as provider:
        asked, _ = asked_for(ask, provider, call("die_once"), "done")

    assert asked.executions[0].response.data == AWAY


def test_a_server_that_dies_every_time(ask: Ask, tmp_path: Path) -> None:
    """A repeated call that loses its connection again is told."""
    nowhere = tmp_path / "no such folder" / "died"
    server = peer(env={"DIED": str(nowhere)}, trust_annotations=True)

    with McpToolCallbackProvider(server) as provider:
        asked, _ = asked_for(ask, provider, call("die_once"), "done")

    assert asked.executions[0].response.data.endswith("'peer' went away twice during the call")


def has_noticed(provider: McpToolCallbackProvider) -> bool:
    """Return whether the provider knows that its server is gone."""
    assert provider._hub is not None
    session = provider._hub.connections["peer"]._session
    return session is None or session.ended


def test_a_server_that_died_between_calls_is_not_noticed(ask: Ask) -> None:
    """The next call finds a new process, without an error in between."""
    with McpToolCallbackProvider(peer()) as provider:
        pid = int(run(provider, "pid"))
        os.kill(pid, signal.SIGKILL)
        # The call is not to race with the news of the server's end.
        assert settled(lambda: not runs(pid) and has_noticed(provider))

        asked, _ = asked_for(ask, provider, call("pid"), "done")

    assert not asked.executions[0].is_error
    assert asked.executions[0].response.data != str(pid)


def test_a_server_that_cannot_be_started_again(ask: Ask, tmp_path: Path) -> None:
    """A call that finds no server is an error for the model, and the turn goes on."""
    program = tmp_path / "server"
    program.symlink_to(sys.executable)
    peer_file = str(Path(__file__).parent / "mcp_peer.py")
    server = McpServer.stdio("peer", str(program), peer_file)
    with McpToolCallbackProvider(server) as provider:
        pid = int(run(provider, "pid"))
        model = ScriptedModel(lambda prompt: _kill_then_call(prompt, pid, program))
        asked = ask(ChatClient.builder(model).default_tools(provider).build().prompt("x"))

    [execution] = asked.executions
    # Whether the death is noticed before the call or by it is up to the operating system.
    assert execution.response.data.startswith(
        (
            "the MCP server 'peer' cannot be reached by starting ",
            "the MCP server 'peer' went away during the call",
        )
    )
    assert asked.text == "done"


def _kill_then_call(prompt: Any, pid: int, program: Path) -> Any:
    if len(prompt.messages) > 1:
        return "done"
    program.unlink()
    os.kill(pid, signal.SIGKILL)
    settled(lambda: not runs(pid))
    return call("echo", '{"text": "hi"}')


# --- a server that does not answer ---


def test_a_call_that_is_not_answered_ends_in_time(ask: Ask, tmp_path: Path) -> None:
    """The model is told, the server is told as well, and goes on serving."""
    cancelled = tmp_path / "cancelled"
    server = peer(env={"CANCELLED": str(cancelled)}, timeout=1)

    with McpToolCallbackProvider(server) as provider:
        started = time.monotonic()
        asked, model = asked_for(
            ask, provider, call("hang"), call("echo", '{"text": "hi"}'), "done"
        )
        seconds = time.monotonic() - started
        assert settled(cancelled.exists)

    hung, echoed = asked.executions
    assert (hung.response.data, hung.is_error) == ("The tool 'hang' did not answer in time.", True)
    assert echoed.response.data == "hi"
    assert seconds < 30
    check_history(model)


def test_a_deadline_ends_a_call_that_hangs(ask: Ask) -> None:
    """The limit of the whole request holds, whatever the server's own is."""
    with McpToolCallbackProvider(peer()) as provider:
        tool_callbacks(provider)  # connected beforehand: the start takes longer than the deadline
        client = ChatClient.builder(ScriptedModel(call("hang"))).default_tools(provider).build()

        with pytest.raises(DeadlineExceededError):
            ask(client.prompt("x").deadline(0.5))


def test_leaving_a_stream_ends_the_call(tmp_path: Path) -> None:
    """The server is told that nobody waits any more."""
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


# --- garbage ---


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("garbage", "the MCP server 'peer' does not keep to the protocol: its answer is no MCP"),
        ("unstructured", "the MCP server 'peer' does not keep to the protocol: Invalid structured"),
    ],
)
def test_an_answer_that_is_none(ask: Ask, name: str, told: str) -> None:
    """The model is told that the server is broken, and the connection stays."""
    with McpToolCallbackProvider(peer()) as provider:
        asked, model = asked_for(
            ask, provider, call("pid", id="1"), call(name), call("pid", id="2"), "done"
        )

    first, broken, second = asked.executions
    assert broken.is_error
    assert broken.response.data.startswith(told)
    assert first.response.data == second.response.data
    check_history(model)


def test_lines_that_are_no_messages_are_skipped(ask: Ask) -> None:
    """A server that prints to its standard output still works."""
    with McpToolCallbackProvider(peer(fault="noisy")) as provider:
        asked, _ = asked_for(ask, provider, call("echo", '{"text": "hi"}'), "done")

    assert asked.executions[0].response.data == "hi"


def test_schemas_that_cannot_be_checked() -> None:
    """Broken ones, and those that point elsewhere or at themselves, the server checks."""
    with McpToolCallbackProvider(peer(fault="odd")) as provider:
        names = [c.definition.name for c in tool_callbacks(provider)]

        first, *odd = names
        assert first == "echo"  # the first of two is taken
        assert odd[:5] == ["broken", "elsewhere", "letters", "ahead", "named"]
        assert odd[5:] == ["unheard", "itself", "tiny"]
        for name in odd:
            assert run(provider, name, '{"a": 1%s}' % ("0" * 400)) == f"{name} has run"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("pattern", "The arguments for pattern do not fit:\n- a: 'aaa"),
        ("dialect", "The arguments for dialect do not fit:\n- a: 'aaa"),
        ("forks", "forks has run"),
        ("choices", "choices has run"),
        ("alike", "alike has run"),
        ("answer", "the MCP server 'peer' does not keep to the protocol: Invalid structured"),
    ],
)
def test_no_schema_of_a_server_takes_long(ask: Ask, name: str, told: str) -> None:
    """Neither for arguments nor for answers: what would never end is left to the server."""
    with McpToolCallbackProvider(peer(fault="hostile")) as provider:
        asked, _ = asked_for(ask, provider, call(name, json.dumps({"a": "a" * 40 + "!"})), "done")

    assert asked.executions[0].response.data.startswith(told)


def test_a_pattern_is_checked_as_the_server_would() -> None:
    """By none of the rules that only Python has, and in texts that are not too long."""
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
def test_items_that_are_alike_are_told(wanted: bool, value: Any, alike: bool) -> None:
    """Where the schema wants each of them once, and whatever order their fields are in."""
    found = misfits(validator_of({"uniqueItems": wanted}), value)

    assert found is not None
    assert ["the same item twice" in error.message for error in found] == [True] * alike


def test_a_tool_that_no_model_could_call_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """It does not cost the others; the log names it, once."""
    from mcp_types import Tool

    with (
        caplog.at_level(logging.WARNING, "chatclient"),
        McpToolCallbackProvider(peer(), tool_filter=lambda _, t: t.name in "pid text") as provider,
    ):
        assert len(tool_callbacks(provider)) == 1
        hub = provider._hub
        assert hub is not None
        connection = hub.connections["peer"]
        # The SDK of today refuses such a listing as a whole.
        connection.known = (*connection.known, Tool(name="text", input_schema={"type": "string"}))
        names = [c.definition.name for _ in range(2) for c in tool_callbacks(provider)]

    assert names == ["pid", "pid"]
    assert caplog.text.count("mcp tool left out") == 1


# --- changes without a word ---


def test_a_tool_that_is_gone(ask: Ask) -> None:
    """The model is told in the server's words; the next request does not offer it any more."""
    with McpToolCallbackProvider(peer()) as provider:
        asked, model = asked_for(ask, provider, call("shrink"), call("pid"), "done")
        _, after = asked_for(ask, provider, "done")

    gone = asked.executions[1]
    assert (gone.response.data, gone.is_error) == ("Unknown tool: pid", True)
    assert names_offered(after) == ["echo", "shrink"]
    check_history(model)


# --- a server that cannot be connected ---

BROKEN = {
    "dead": (lambda **settings: peer(fault="dead", **settings), "cannot be reached"),
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
            connect_timeout=2.0,
            **settings,
        ),
        r"cannot be reached by starting .* \(ValidationError\)",
    ),
}
each_broken = pytest.mark.parametrize(
    ("server", "message"), list(BROKEN.values()), ids=list(BROKEN)
)


@each_broken
def test_a_request_fails_without_a_required_server(
    ask: Ask, server: Callable[..., McpServer], message: str
) -> None:
    """The error names the server, and comes before the model is asked."""
    model = ScriptedModel("never")

    with (
        McpToolCallbackProvider(server()) as provider,
        pytest.raises(McpServerError, match=message) as raised,
    ):
        ask(ChatClient.builder(model).default_tools(provider).build().prompt("x"))

    assert raised.value.server == "peer"
    assert model.prompts == []


@each_broken
def test_a_request_goes_on_without_a_server_that_is_not_required(
    server: Callable[..., McpServer], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The other servers' tools are there; the log says whose are not."""
    with (
        caplog.at_level(logging.WARNING, "chatclient"),
        McpToolCallbackProvider(
            server(required=False), peer("other"), tool_filter=lambda _server, t: t.name == "pid"
        ) as provider,
    ):
        asked, model = asked_for(Ask("call"), provider, call("pid"), "done")
        started = time.monotonic()
        tool_callbacks(provider)
        again = time.monotonic() - started

    assert names_offered(model) == ["pid"]
    assert not asked.executions[0].is_error
    assert caplog.text.count("mcp server left out") == 1
    assert again < 0.2  # it is not tried again for every request


async def test_many_do_not_wait_one_after_the_other_for_a_server_that_is_not_there() -> None:
    """Who waits while somebody else tries to connect is told what that came to."""
    async with McpToolCallbackProvider(peer(fault="mute", connect_timeout=0.5)) as provider:
        with pytest.raises(McpServerError):  # it loads the SDK
            await provider.tool_callbacks()
        started = time.monotonic()
        errors = await asyncio.gather(
            *(provider.tool_callbacks() for _ in range(20)), return_exceptions=True
        )
        took = time.monotonic() - started

    assert {str(error) for error in errors} == {"the MCP server 'peer' did not answer within 0.5 s"}
    assert took < 8  # one has to wait for half a second, and until the process is ended


def test_a_server_that_comes_back_is_used_again(tmp_path: Path) -> None:
    """After a while a server that was left out is tried again."""
    program = tmp_path / "server"
    peer_file = str(Path(__file__).parent / "mcp_peer.py")
    server = McpServer.stdio("peer", str(program), peer_file, required=False, retry_after=0.05)

    with McpToolCallbackProvider(server) as provider:
        assert tool_callbacks(provider) == []
        program.symlink_to(sys.executable)
        assert settled(lambda: len(tool_callbacks(provider)) > 0)


def test_a_server_that_goes_away_takes_its_tools_with_it(tmp_path: Path) -> None:
    """Those that it had are not offered as long as it is left out."""
    program = tmp_path / "server"
    program.symlink_to(sys.executable)
    peer_file = str(Path(__file__).parent / "mcp_peer.py")
    server = McpServer.stdio("peer", str(program), peer_file, required=False, retry_after=0.05)

    with McpToolCallbackProvider(server) as provider:
        pid = int(run(provider, "pid"))
        program.unlink()
        os.kill(pid, signal.SIGKILL)

        assert settled(lambda: tool_callbacks(provider) == [])


def test_resources_of_other_servers_are_listed_all_the_same(ask: Ask) -> None:
    """A server need not know of templates; one that fails or is silent costs only its own."""
    servers = (
        peer("a", "resources"),
        peer("b", "mute-resources", timeout=0.4),
        peer("c"),
        peer("d", "half-resources"),
    )
    with McpToolCallbackProvider(*servers, resources=True, prefix="always") as provider:
        asked, _ = asked_for(ask, provider, call("list_resources"), "done")

    [execution] = asked.executions
    assert not execution.is_error
    assert json.loads(execution.response.data) == [
        {"server": "a", "name": "a", "uri": "file:///a"},
        {"server": "b", "error": "it did not answer in time"},
        {"server": "d", "error": "out of order"},
    ]


def test_closing_ends_what_is_under_way(caplog: pytest.LogCaptureFixture) -> None:
    """No request that could be made again connects the server once more."""
    provider = McpToolCallbackProvider(peer(fault="mute-resources"), resources=True)
    listing = {c.definition.name: c for c in tool_callbacks(provider)}["list_resources"]
    told: list[str] = []
    request = threading.Thread(
        target=lambda: told.append(drive(listing.invoke("{}", ToolContext())).text)
    )
    request.start()
    time.sleep(0.2)  # the server is asked, and does not answer

    provider.close()
    request.join()

    assert "the connection to the MCP server 'peer' was closed" in told[0]
    assert caplog.text == ""


def test_a_server_without_tools_offers_none() -> None:
    """It is not asked for what it says it does not have."""
    with McpToolCallbackProvider(peer(fault="no-tools")) as provider:
        assert tool_callbacks(provider) == []


def test_a_listing_without_an_end_is_given_up() -> None:
    """A server that always names a next page is not followed for ever."""
    with McpToolCallbackProvider(peer(fault="endless")) as provider:
        names = [c.definition.name for c in tool_callbacks(provider)]

    assert names.count("echo") == 1


def test_connecting_can_be_cancelled() -> None:
    """Who gives up waiting for a server leaves nothing behind."""
    import asyncio

    async def give_up() -> None:
        async with McpToolCallbackProvider(peer(fault="mute")) as provider:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await provider.tool_callbacks()

    asyncio.run(give_up())


def test_a_server_that_cannot_be_started_says_why(ask: Ask) -> None:
    """The error names the program and what the operating system says of it."""
    server = McpServer.stdio("bad", "no-such-program-here", "--token", "s3cret")
    builder = ChatClient.builder(ScriptedModel())

    with McpToolCallbackProvider(server) as provider, pytest.raises(McpServerError) as caught:
        ask(builder.default_tools(provider).build().prompt("x"))
    told = str(caught.value)
    assert "by starting 'no-such-program-here' (FileNotFoundError: No such file" in told
    assert "s3cret" not in told


def test_a_whole_command_line_is_no_program(ask: Ask) -> None:
    """As it stands in a shell or in the documentation of a server."""
    server = McpServer.stdio("bad", "no-such-program-here --local-timezone UTC")
    builder = ChatClient.builder(ScriptedModel())

    with (
        McpToolCallbackProvider(server) as provider,
        pytest.raises(
            McpServerError, match=r"arguments one by one: 'no-such-program-here', \.\.\."
        ),
    ):
        ask(builder.default_tools(provider).build().prompt("x"))


def test_a_server_is_no_source_of_tools_by_itself() -> None:
    """Who forgets the provider is told of it."""
    server: Any = McpServer.stdio("bad", "no-such-program-here")

    with pytest.raises(ToolDefinitionError, match=r"put it into McpToolCallbackProvider\(...\)"):
        ChatClient.builder(ScriptedModel()).default_tools(server)
