"""The tools of MCP servers, offered to models and run."""

import asyncio
import contextlib
import gc
import json
import os
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Ask
from mcp_setup import asked_for, mcp_threads, names_offered, peer, runs
from waiting import settled

pytest.importorskip("mcp")

from chatclient import ChatClient
from chatclient.driving import drive
from chatclient.errors import ToolExecutionError, UsageError
from chatclient.events import ToolCallFinished, ToolProgress
from chatclient.messages import Media
from chatclient.testing import ScriptedModel, call
from chatclient.tools import (
    ToolCallback,
    ToolCallingManager,
    ToolContext,
    ToolFailurePolicy,
    tool,
    tool_callbacks,
)
from chatclient.tools.mcp import (
    McpProgress,
    McpServer,
    McpToolCallbackProvider,
    tool_context_meta,
)


@pytest.fixture(scope="module")
def provider() -> Iterator[McpToolCallbackProvider]:
    """One server for all tests that leave it as it is."""
    with McpToolCallbackProvider(peer()) as provider:
        yield provider


def named(provider: McpToolCallbackProvider, name: str) -> Any:
    """Return a tool as it is offered outside of any request."""
    return {c.definition.name: c for c in tool_callbacks(provider)}[name]


def run(callback: ToolCallback, arguments: str = "{}") -> str:
    return drive(callback.invoke(arguments, ToolContext())).text


def test_a_tool_of_a_server_is_offered_and_run(ask: Ask, provider: McpToolCallbackProvider) -> None:
    """It is a tool like any other, in all four modes."""
    asked, model = asked_for(ask, provider, call("echo", '{"text": "hi", "times": 2}'), "done")

    assert asked.text == "done"
    [execution] = asked.executions
    assert (execution.response.data, execution.is_error) == ("hi\nhi", False)
    assert execution.metadata == {"seen": True}
    definition = next(
        c.definition for c in model.prompts[0].options.tool_callbacks if c.definition.name == "echo"
    )
    assert definition.description == "Does echo."
    assert definition.input_schema["required"] == ["text"]
    assert "$schema" not in definition.input_schema


def test_one_connection_serves_all_modes_and_threads(provider: McpToolCallbackProvider) -> None:
    """Blocking and asynchronous requests, on any thread or loop, share the server's process."""
    pids: set[str] = set()

    def all_ways() -> None:
        for mode in ("call", "acall", "stream", "astream"):
            asked, _ = asked_for(Ask(mode), provider, call("pid"), "done")
            pids.add(asked.executions[0].response.data)

    threads = [threading.Thread(target=all_ways) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(pids) == 1
    assert int(pids.pop()) != os.getpid()


async def test_blocking_requests_work_inside_a_running_loop(
    provider: McpToolCallbackProvider,
) -> None:
    """A notebook's cell may ask without `await`."""
    asked, _ = asked_for(Ask("call"), provider, call("echo", '{"text": "hi"}'), "done")

    assert asked.executions[0].response.data == "hi"


async def test_calls_of_one_response_run_at_the_same_time(
    provider: McpToolCallbackProvider,
) -> None:
    """A slow call does not hold up the others."""
    model = ScriptedModel([call("hang", id="1"), call("echo", '{"text": "hi"}', id="2")])
    client = ChatClient.builder(model).default_tools(provider).build()
    seen = []

    async with client.prompt("x").astream().events() as events:
        async for event in events:
            if isinstance(event, ToolCallFinished):
                seen.append(event.tool_call.name)
                break

    assert seen == ["echo"]


def test_an_unchanged_tool_stays_the_same_object(provider: McpToolCallbackProvider) -> None:
    """What is computed of a tool is computed once, and the server is not asked again."""
    assert tool_callbacks(provider) == tool_callbacks(provider)
    assert named(provider, "echo") is named(provider, "echo")


async def test_many_requests_at_once_list_once() -> None:
    """All get the same tools, and the server is not asked for each of them."""
    async with McpToolCallbackProvider(peer()) as provider:
        listed = await asyncio.gather(*(provider.tool_callbacks() for _ in range(20)))

    assert {id(callbacks[0]) for callbacks in listed} == {id(listed[0][0])}


def test_what_else_a_server_says_of_a_tool_is_kept(provider: McpToolCallbackProvider) -> None:
    """The application finds title, annotations and origin in the definition; no model does."""
    said = named(provider, "echo").definition.metadata["mcp"]

    assert said == {
        "server": "peer",
        "tool": "echo",
        "title": "Echo",
        "annotations": {"readOnlyHint": True},
    }
    assert named(provider, "echo").server == "peer"
    assert repr(named(provider, "echo")) == "McpToolCallback('echo', server='peer')"


# --- arguments ---


@pytest.mark.parametrize(
    ("arguments", "detail"),
    [
        ("{}", "text: missing"),
        ('{"text": 1}', "text: 1 is not of type 'string'"),
        ('{"text": "x", "times": 0}', "times: 0 is less than the minimum"),
    ],
)
def test_arguments_that_do_not_fit_are_not_sent(
    ask: Ask, provider: McpToolCallbackProvider, arguments: str, detail: str
) -> None:
    """The server's schema is checked here, and the model is told what is wrong."""
    asked, _ = asked_for(ask, provider, call("echo", arguments), "done")

    [execution] = asked.executions
    assert execution.is_error
    assert detail in execution.response.data


def test_many_mistakes_are_told_in_part() -> None:
    """A model is not flooded."""
    from mcp_types import Tool

    from chatclient.errors import ToolArgumentError
    from chatclient.tools.mcp.callback import McpToolCallback
    from chatclient.tools.mcp.hub import Hub

    schema = {"type": "object", "properties": {f"p{n}": {"type": "object"} for n in range(30)}}
    callback = McpToolCallback(
        Hub([]),  # nothing is sent
        peer(),
        Tool(name="t", input_schema=schema),
        "t",
        None,
    )

    with pytest.raises(ToolArgumentError) as raised:
        drive(callback.invoke(json.dumps({f"p{n}": [] for n in range(30)}), ToolContext()))

    assert len(raised.value.details) == 10


# --- results ---


def test_what_a_tool_says_of_its_failure_is_told(
    ask: Ask, provider: McpToolCallbackProvider
) -> None:
    """`isError` is an error for the model, in the server's words, with all that came along."""
    asked, _ = asked_for(ask, provider, call("fail"), "done")

    [execution] = asked.executions
    assert execution.is_error
    assert execution.response.data == "The printer is on fire."
    assert execution.response.media == (Media("image/png", b"\1\2\3"),)
    assert execution.metadata == {"room": 3, "failure": "exception"}


@pytest.mark.parametrize(
    ("name", "told"), [("refuse", "out of office"), ("misfit", "Unknown tool: misfit")]
)
def test_a_refusal_is_told(
    ask: Ask, provider: McpToolCallbackProvider, name: str, told: str
) -> None:
    """An error of the protocol ends no turn: it is what a model can mend, or work around."""
    asked, _ = asked_for(ask, provider, call(name), "done")

    assert (asked.executions[0].response.data, asked.executions[0].is_error) == (told, True)
    assert asked.text == "done"


def test_the_failure_policy_holds(ask: Ask, provider: McpToolCallbackProvider) -> None:
    """Where failures are raised, a server's are as well."""
    manager = ToolCallingManager(exception_processor=ToolFailurePolicy(always_raise=True))
    client = (
        ChatClient.builder(ScriptedModel(call("fail")))
        .default_tools(provider)
        .tool_calling_manager(manager)
        .build()
    )

    with pytest.raises(ToolExecutionError, match="printer"):
        ask(client.prompt("x"))


# --- progress and context ---


def test_progress_is_streamed(ask: Ask, provider: McpToolCallbackProvider) -> None:
    """Who listens sees how far the tool is; without a listener the server is not asked to tell."""
    asked, _ = asked_for(ask, provider, call("progress"), "done")

    seen = [event.event for event in asked.events if isinstance(event, ToolProgress)]
    if ask.streaming:
        assert seen == [McpProgress(1.0, 2.0), McpProgress(2.0, 2.0)]
        assert asked.executions[0].response.data == "told"
    else:
        assert asked.executions[0].response.data == "not asked to tell"


def test_the_tool_context_stays_here(ask: Ask, provider: McpToolCallbackProvider) -> None:
    """A server is told nothing of it unless the application says what."""
    asked, _ = asked_for(ask, provider, call("meta"), "done", tenant="acme")

    meta = json.loads(asked.executions[0].response.data)
    assert set(meta) <= {"progressToken"}


def test_the_application_chooses_what_a_server_is_told(ask: Ask) -> None:
    """The chosen keys go along as `_meta`, where they have a value."""
    meta = tool_context_meta("tenant", "locale", "user")

    with McpToolCallbackProvider(peer(), meta=meta) as provider:
        asked, _ = asked_for(ask, provider, call("meta"), "ok", tenant="acme", user=None, key="s")

    told = json.loads(asked.executions[0].response.data)
    told.pop("progressToken", None)
    assert told == {"tenant": "acme"}


# --- which tools, and what they are called ---


def test_tools_can_be_left_out() -> None:
    """The filter sees the server's name and the tool as the server lists it."""
    with McpToolCallbackProvider(
        peer(), tool_filter=lambda server, tool: server == "peer" and tool.name in ("echo", "pid")
    ) as provider:
        assert [c.definition.name for c in tool_callbacks(provider)] == ["echo", "pid"]


def test_a_mistake_in_a_filter_shows() -> None:
    """It is no reason to leave the server's tools out."""

    def broken(_server: str, _tool: Any) -> bool:
        raise LookupError("broken")

    with (
        McpToolCallbackProvider(peer(), tool_filter=broken) as provider,
        pytest.raises(LookupError, match="broken"),
    ):
        tool_callbacks(provider)


def test_clashing_tools_of_two_servers_are_told_apart(ask: Ask) -> None:
    """Each gets its server's name in front, and reaches its own server."""

    def keep(server: str, tool: Any) -> bool:
        return tool.name == "pid" or (server, tool.name) == ("b", "echo")

    with McpToolCallbackProvider(peer("b"), peer("a"), tool_filter=keep) as provider:
        asked, model = asked_for(ask, provider, [call("a_pid"), call("b_pid")], "done")

    assert names_offered(model) == ["echo", "b_pid", "a_pid"]
    assert len({execution.response.data for execution in asked.executions}) == 2


@pytest.mark.parametrize("first", [True, False])
def test_a_server_cannot_stand_in_for_a_tool_of_the_application(
    ask: Ask, provider: McpToolCallbackProvider, first: bool
) -> None:
    """The application's tool keeps its name, wherever it stands; the server's gets another one."""

    @tool
    def echo() -> str:
        """Say something."""
        return "from here"

    answers = [call("echo"), call("peer_echo", '{"text": "from there"}')]
    sources = [echo, provider] if first else [provider, echo]
    asked, _ = asked_for(ask, sources, answers, "done")

    assert [e.response.data for e in asked.executions] == ["from here", "from there"]


def test_a_server_cannot_stand_in_for_the_tools_that_read_resources(ask: Ask) -> None:
    """They are the provider's own, and keep their names."""
    with McpToolCallbackProvider(peer(fault="resources"), resources=True) as provider:
        answers = [call("list_resources"), call("peer_list_resources")]
        asked, _ = asked_for(ask, provider, answers, "done")

    ours, theirs = (each.response.data for each in asked.executions)
    assert json.loads(ours) == [{"server": "peer", "name": "a", "uri": "file:///a"}]
    assert theirs == "list_resources has run"


def test_tools_can_be_renamed() -> None:
    """The server is still called by its own name for the tool."""
    with McpToolCallbackProvider(
        peer(), rename=lambda server, tool: f"{server}.{tool}", prefix="never"
    ) as provider:
        assert run(named(provider, "peer_echo"), '{"text": "hi"}') == "hi"


def test_annotations_count_only_when_trusted(provider: McpToolCallbackProvider) -> None:
    """A server's word on what its tools do is taken where the application says so."""
    with McpToolCallbackProvider(peer(trust_annotations=True)) as trusting:
        effects = {c.definition.name: c.metadata.effect for c in tool_callbacks(trusting)}

    assert (effects["echo"], effects["die_once"], effects["pid"]) == ("read", "idempotent", "write")
    assert named(provider, "echo").metadata.effect == "write"


def test_the_time_a_server_gets_is_that_of_its_tools() -> None:
    """The setting is what the tool loop goes by; None is no limit."""
    assert peer(timeout=None).timeout is None
    with McpToolCallbackProvider(peer(timeout=7)) as provider:
        assert named(provider, "echo").metadata.timeout == 7


# --- changes ---


def test_changed_tools_are_offered_in_the_next_request(ask: Ask) -> None:
    """The server says that they changed, and is asked again."""
    with McpToolCallbackProvider(peer()) as provider:
        _, model = asked_for(ask, provider, call("grow"), "done")
        before = names_offered(model)
        settled(lambda: len(tool_callbacks(provider)) > len(before))
        _, model = asked_for(ask, provider, "done")

    assert set(names_offered(model)) - set(before) == {f"grown_{len(before)}"}


# --- many servers ---


class _Meeting:
    """Transports of servers that all wait for each other before they are connected."""

    def __init__(self, servers: int) -> None:
        self._missing = servers
        self._all: asyncio.Event | None = None

    def joined_by(self, server: McpServer) -> McpServer:
        @contextlib.asynccontextmanager
        async def transport() -> AsyncIterator[Any]:
            self._all = self._all or asyncio.Event()
            self._missing -= 1
            if not self._missing:
                self._all.set()
            await self._all.wait()
            async with server.connect() as streams:
                yield streams

        return McpServer(server.name, transport, connect_timeout=10)


def test_servers_are_connected_at_the_same_time() -> None:
    """Many slow servers take as long as the slowest of them."""
    meeting = _Meeting(3)

    with McpToolCallbackProvider(
        *(meeting.joined_by(peer(name)) for name in "abc"), prefix="always"
    ) as provider:
        names = [c.definition.name for c in tool_callbacks(provider)]

    assert [name for name in names if name.endswith("_echo")] == ["a_echo", "b_echo", "c_echo"]


# --- the end ---


def test_nothing_is_left_after_closing() -> None:
    """The servers' processes and the thread are gone, and the tools say why they do not work."""
    provider = McpToolCallbackProvider(peer("a"), peer("b"))
    pids = [
        int(run(c)) for c in tool_callbacks(provider) if c.definition.name in ("a_pid", "b_pid")
    ]
    callback = named(provider, "a_pid")
    before = mcp_threads()

    provider.close()
    provider.close()

    assert len(pids) == 2
    assert not any(map(runs, pids))
    assert len(mcp_threads()) == len(before) - 1
    with pytest.raises(UsageError, match="closed"):
        run(callback)
    with pytest.raises(UsageError, match="closed"):
        tool_callbacks(provider)


async def test_it_can_be_closed_asynchronously() -> None:
    """`async with` leaves nothing either."""
    async with McpToolCallbackProvider(peer()) as provider:
        callbacks = {c.definition.name: c for c in await provider.tool_callbacks()}
        result = await callbacks["pid"].invoke("{}", ToolContext())

    assert not runs(int(result.text))


def test_closing_what_was_never_connected_is_nothing() -> None:
    """No thread and no process was ever there."""
    before = mcp_threads()

    provider = McpToolCallbackProvider(peer())
    provider.close()
    asyncio.run(provider.aclose())

    assert mcp_threads() == before
    with pytest.raises(UsageError, match="closed"):
        tool_callbacks(provider)


def test_a_provider_that_is_dropped_takes_its_servers_with_it() -> None:
    """Forgetting to close leaves no process behind, and holds up nobody."""
    provider = McpToolCallbackProvider(peer(fault="lingering"))
    pid = int(run(named(provider, "pid")))

    started = time.monotonic()
    del provider
    took = time.monotonic() - started

    assert took < 0.5
    assert settled(lambda: not runs(pid))


def test_a_provider_may_be_collected_on_its_own_thread() -> None:
    """Where garbage is found, nobody can wait for the connections that live there."""
    provider = McpToolCallbackProvider(peer())
    pid = int(run(named(provider, "pid")))
    hub = provider._hub
    assert hub is not None
    thread, _ = hub._open()
    thread.circle = provider.circle = [provider, hub]  # type: ignore[attr-defined]
    seconds: list[float] = []

    def collect() -> None:
        started = time.monotonic()
        del thread.circle  # type: ignore[attr-defined]
        gc.collect()
        seconds.append(time.monotonic() - started)

    del provider, hub
    thread.soon(collect)

    assert settled(lambda: not runs(pid))
    assert settled(lambda: not thread.alive)
    assert seconds[0] < 5


def test_callbacks_keep_their_connection() -> None:
    """A tool that is still used works, though nobody holds the provider any more."""
    callback = named(McpToolCallbackProvider(peer()), "pid")

    assert runs(int(run(callback)))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_connects_anew() -> None:
    """The parent's thread does not run in the child, which needs one and a server of its own."""
    with McpToolCallbackProvider(peer()) as provider:
        pid = run(named(provider, "pid"))
        read, write = os.pipe()
        child = os.fork()
        if not child:
            try:
                os.write(write, run(named(provider, "pid")).encode())
            finally:
                os._exit(0)
        os.close(write)
        os.waitpid(child, 0)
        told = os.read(read, 100).decode()
        os.close(read)

        assert told.isdigit()
        assert told != pid
        assert run(named(provider, "pid")) == pid


# --- mistakes ---


def test_a_provider_needs_servers_with_names_of_their_own() -> None:
    """The mistake shows when the provider is made."""
    with pytest.raises(UsageError, match="at least one"):
        McpToolCallbackProvider()
    with pytest.raises(UsageError, match="a name of its own"):
        McpToolCallbackProvider(peer("a"), peer("a"))


@pytest.mark.parametrize(
    "settings",
    [
        {"timeout": -1},
        {"timeout": 0},
        {"connect_timeout": 0},
        {"retry_after": 0},
        {"name": " "},
        {"roots": [3]},
        {"log_level": "loud"},
    ],
)
def test_settings_of_a_server_are_checked(settings: Any) -> None:
    """A server that could never work is refused at once."""
    with pytest.raises(UsageError):
        peer(**settings)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (
            lambda: McpServer("a", "uvx"),  # type: ignore[arg-type]
            r"not 'uvx'; make one: McpServer\.stdio\(",
        ),
        (
            lambda: McpServer.stdio("a", ["uvx", "b"]),  # type: ignore[arg-type]
            "arguments one by one",
        ),
        (
            lambda: McpServer.stdio("a", "uvx", Path("b")),  # type: ignore[arg-type]
            r"a path as str\(path\)",
        ),
        (lambda: McpServer.http("a", "localhost:8000/mcp"), "begin with http://"),
    ],
)
def test_a_server_that_could_not_be_reached_is_refused(make: Any, told: str) -> None:
    """When it is made, and with what to write instead."""
    with pytest.raises(UsageError, match=told):
        make()


def test_without_the_sdk_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra is named, with the command."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)

    with pytest.raises(UsageError, match=r"pip install 'chatclient\[mcp\]'"):
        McpServer.http("x", "http://localhost/mcp")


def test_a_description_shows_no_secret() -> None:
    """Headers and environment stay out of logs."""
    server = McpServer.http("x", "http://localhost/mcp", headers={"Authorization": "Bearer s3cr3t"})

    assert "s3cr3t" not in repr(server)
    assert "s3cr3t" not in repr(peer(env={"KEY": "s3cr3t"}))
    assert repr(McpToolCallbackProvider(server)) == "McpToolCallbackProvider(x)"
