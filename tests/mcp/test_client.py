"""The tools of MCP servers, offered to models and run."""

import asyncio
import contextlib
import gc
import json
import os
import threading
import time
import weakref
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from chatclient.testing import Ask
from tests.support.mcp_setup import ask_with_tools, mcp_threads, offered_names, peer, runs
from tests.support.waiting import settled

pytest.importorskip("mcp")

from chatclient import ChatClient, ToolContext, tool
from chatclient.chat.events import ToolCallFinished
from chatclient.chat.messages import Media
from chatclient.chat.tool import ToolProgress
from chatclient.errors import ToolDefinitionError, ToolExecutionError, UsageError
from chatclient.mcp import (
    McpLimits,
    McpProgress,
    McpServer,
    McpToolCallbackProvider,
    tool_context_meta,
)
from chatclient.runtime.blocking import drive
from chatclient.testing import ScriptedModel, call
from chatclient.tools import ToolCallback, ToolCallingManager, ToolFailurePolicy, tool_callbacks


@pytest.fixture(scope="module")
def provider() -> Iterator[McpToolCallbackProvider]:
    """One server for all tests that do not change it."""
    with McpToolCallbackProvider(peer()) as provider:
        yield provider


def callback_named(provider: McpToolCallbackProvider, name: str) -> Any:
    """Return the callback of a tool outside a request."""
    return {c.definition.name: c for c in tool_callbacks(provider)}[name]


def run(callback: ToolCallback, arguments: str = "{}") -> str:
    return drive(callback.invoke(arguments, ToolContext())).text


@pytest.mark.feature("mcp-sync-mcp-tool-callback", "mcp-return-tool-result-attributes")
def test_tool_is_offered_and_run(ask: Ask, provider: McpToolCallbackProvider) -> None:
    """A tool of a server is used like any other."""
    result, model = ask_with_tools(
        ask, provider, call("echo", '{"text": "hi", "times": 2}'), "done"
    )

    assert result.text == "done"
    [execution] = result.executions
    assert (execution.response.data, execution.is_error) == ("hi\nhi", False)
    assert execution.metadata == {"seen": True}
    definition = next(
        c.definition for c in model.prompts[0].options.tool_callbacks if c.definition.name == "echo"
    )
    assert definition.description == "Does echo."
    assert definition.input_schema["required"] == ["text"]
    assert "$schema" not in definition.input_schema


@pytest.mark.feature("mcp-sync-mcp-tool-callback")
def test_one_connection_serves_all_modes_and_threads(provider: McpToolCallbackProvider) -> None:
    """All modes, threads and loops share the server's process."""
    pids: set[str] = set()

    def all_ways() -> None:
        for mode in ("call", "acall", "stream", "astream"):
            result, _ = ask_with_tools(Ask(mode), provider, call("pid"), "done")
            pids.add(result.executions[0].response.data)

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
    """A blocking request works inside a running loop."""
    result, _ = ask_with_tools(Ask("call"), provider, call("echo", '{"text": "hi"}'), "done")

    assert result.executions[0].response.data == "hi"


async def test_parallel_calls(
    provider: McpToolCallbackProvider,
) -> None:
    """Calls of one response run concurrently."""
    model = ScriptedModel([call("hang", id="1"), call("echo", '{"text": "hi"}', id="2")])
    client = ChatClient.builder(model).default_tools(provider).build()
    seen = []

    async with client.prompt("x").astream().events() as events:
        async for event in events:
            if isinstance(event, ToolCallFinished):
                seen.append(event.tool_call.name)
                break

    assert seen == ["echo"]


@pytest.mark.feature("mcp-cache-invalidate-tools-changed")
def test_listed_tools_are_cached(provider: McpToolCallbackProvider) -> None:
    """An unchanged listing gives the same tool objects without a request."""
    assert tool_callbacks(provider) == tool_callbacks(provider)
    assert callback_named(provider, "echo") is callback_named(provider, "echo")


async def test_concurrent_requests_list_once() -> None:
    """Concurrent requests share one listing."""
    async with McpToolCallbackProvider(peer()) as provider:
        listed = await asyncio.gather(*(provider.tool_callbacks() for _ in range(20)))

    assert {id(callbacks[0]) for callbacks in listed} == {id(listed[0][0])}


@pytest.mark.feature("mcp-annotations-title-output-schema")
def test_tool_metadata(provider: McpToolCallbackProvider) -> None:
    """Title, annotations and origin are in the definition, not sent to the model."""
    metadata = callback_named(provider, "echo").definition.metadata["mcp"]

    assert metadata == {
        "server": "peer",
        "tool": "echo",
        "title": "Echo",
        "annotations": {"readOnlyHint": True},
    }
    assert callback_named(provider, "echo").server == "peer"
    assert repr(callback_named(provider, "echo")) == "McpToolCallback('echo', server='peer')"


# --- arguments ---


@pytest.mark.feature("mcp-arguments-parse-failure-raised")
@pytest.mark.parametrize(
    ("arguments", "detail"),
    [
        ("{}", "text: missing"),
        ('{"text": [1]}', "text: [1] is not of type 'string'"),
        ('{"text": "x", "times": 0}', "times: 0 is less than the minimum"),
    ],
)
def test_invalid_arguments_are_not_sent(
    ask: Ask, provider: McpToolCallbackProvider, arguments: str, detail: str
) -> None:
    """Arguments are validated by the server's schema, and the model gets the errors."""
    result, _ = ask_with_tools(ask, provider, call("echo", arguments), "done")

    [execution] = result.executions
    assert execution.is_error
    assert detail in execution.response.data


def test_error_list_is_truncated() -> None:
    """Long error lists are truncated."""
    from mcp_types import Tool

    from chatclient.errors import ToolArgumentError
    from chatclient.mcp.callback import McpToolCallback
    from chatclient.mcp.connection import ConnectionPool
    from chatclient.mcp.server import AcceptedTools

    schema = {"type": "object", "properties": {f"p{n}": {"type": "object"} for n in range(30)}}
    callback = McpToolCallback(
        ConnectionPool([peer("broken", "dead")]),  # nothing is sent
        peer("broken"),
        Tool(name="t", input_schema=schema),
        "t",
        None,
        AcceptedTools(pin=False),
    )

    with pytest.raises(ToolArgumentError) as raised:
        drive(callback.invoke(json.dumps({f"p{n}": [] for n in range(30)}), ToolContext()))

    assert len(raised.value.details) == 10


# --- results ---


@pytest.mark.feature("mcp-error-told")
def test_tool_failure(ask: Ask, provider: McpToolCallbackProvider) -> None:
    """`isError` is an error with the server's complete content."""
    result, _ = ask_with_tools(ask, provider, call("fail"), "done")

    [execution] = result.executions
    assert execution.is_error
    assert execution.response.data == "The printer is on fire."
    assert execution.response.media == (Media("image/png", b"\1\2\3"),)
    assert execution.metadata == {"room": 3, "failure": "exception"}


@pytest.mark.feature("mcp-protocol-error-hard-failure")
@pytest.mark.parametrize(
    ("name", "message"), [("refuse", "out of office"), ("misfit", "Unknown tool: misfit")]
)
def test_protocol_error_of_a_call(
    ask: Ask, provider: McpToolCallbackProvider, name: str, message: str
) -> None:
    """A protocol error of a call is an error for the model, and the turn continues."""
    result, _ = ask_with_tools(ask, provider, call(name), "done")

    assert (result.executions[0].response.data, result.executions[0].is_error) == (message, True)
    assert result.text == "done"


def test_failure_policy(ask: Ask, provider: McpToolCallbackProvider) -> None:
    """If failures are raised, those of servers are raised too."""
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


@pytest.mark.feature("mcp-progress-handler")
def test_progress_is_streamed(ask: Ask, provider: McpToolCallbackProvider) -> None:
    """Progress is streamed; without a stream it is not requested."""
    result, _ = ask_with_tools(ask, provider, call("progress"), "done")

    seen = [event.event for event in result.events if isinstance(event, ToolProgress)]
    if ask.streaming:
        assert seen == [McpProgress(1.0, 2.0), McpProgress(2.0, 2.0)]
        assert result.executions[0].response.data == "told"
    else:
        assert result.executions[0].response.data == "not asked to tell"


def test_progress_is_limited() -> None:
    """Further events are dropped, and the call continues."""
    with McpToolCallbackProvider(peer(limits=McpLimits(progress_events=1))) as provider:
        result, _ = ask_with_tools(Ask("stream"), provider, call("progress"), "done")

    seen = [event.event for event in result.events if isinstance(event, ToolProgress)]
    assert seen == [McpProgress(1.0, 2.0)]
    assert result.executions[0].response.data == "told"


@pytest.mark.feature("mcp-tool-context-mcp-meta")
def test_tool_context_is_not_sent(ask: Ask, provider: McpToolCallbackProvider) -> None:
    """The tool context is sent only if configured."""
    result, _ = ask_with_tools(ask, provider, call("meta"), "done", tenant="acme")

    meta = json.loads(result.executions[0].response.data)
    assert set(meta) <= {"progressToken"}


@pytest.mark.feature("mcp-tool-context-mcp-meta")
def test_selected_tool_context_is_sent(ask: Ask) -> None:
    """Selected keys with a value are sent as `_meta`."""
    meta = tool_context_meta("tenant", "locale", "user")

    with McpToolCallbackProvider(peer(), meta=meta) as provider:
        result, _ = ask_with_tools(
            ask, provider, call("meta"), "ok", tenant="acme", user=None, key="s"
        )

    sent = json.loads(result.executions[0].response.data)
    sent.pop("progressToken", None)
    assert sent == {"tenant": "acme"}


# --- filters and names ---


@pytest.mark.feature("mcp-tool-filter-names")
def test_tool_filter() -> None:
    """The filter gets the server's name and the listed tool."""
    with McpToolCallbackProvider(
        peer(), tool_filter=lambda server, tool: server == "peer" and tool.name in ("echo", "pid")
    ) as provider:
        assert [c.definition.name for c in tool_callbacks(provider)] == ["echo", "pid"]


@pytest.mark.feature("mcp-tool-filter-names")
def test_failing_filter() -> None:
    """An error in a filter is raised."""

    def broken(_server: str, _tool: Any) -> bool:
        raise LookupError("broken")

    with (
        McpToolCallbackProvider(peer(), tool_filter=broken) as provider,
        pytest.raises(LookupError, match="broken"),
    ):
        tool_callbacks(provider)


@pytest.mark.feature("mcp-tool-name-prefix")
def test_equal_names_of_two_servers(ask: Ask) -> None:
    """Each tool gets its server's name as prefix and calls its own server."""

    def keep(server: str, tool: Any) -> bool:
        return tool.name == "pid" or (server, tool.name) == ("b", "echo")

    with McpToolCallbackProvider(peer("b"), peer("a"), tool_filter=keep) as provider:
        result, model = ask_with_tools(ask, provider, [call("a_pid"), call("b_pid")], "done")

    assert offered_names(model) == ["echo", "b_pid", "a_pid"]
    assert len({execution.response.data for execution in result.executions}) == 2


@pytest.mark.feature("mcp-clash-tool-application-error")
@pytest.mark.parametrize("first", [True, False])
def test_name_of_an_application_tool(
    ask: Ask, provider: McpToolCallbackProvider, first: bool
) -> None:
    """The application's tool keeps its name in any order."""

    @tool
    def echo() -> str:
        """Return a text."""
        return "from here"

    answers = [call("echo"), call("peer_echo", '{"text": "from there"}')]
    sources = [echo, provider] if first else [provider, echo]
    result, _ = ask_with_tools(ask, sources, answers, "done")

    assert [e.response.data for e in result.executions] == ["from here", "from there"]


def test_name_of_a_resource_tool(ask: Ask) -> None:
    """The provider's resource tools keep their names."""
    with McpToolCallbackProvider(peer(fault="resources"), resources=True) as provider:
        answers = [call("list_resources"), call("peer_list_resources")]
        result, _ = ask_with_tools(ask, provider, answers, "done")

    ours, theirs = (each.response.data for each in result.executions)
    assert json.loads(ours) == [{"server": "peer", "name": "a", "uri": "file:///a"}]
    assert theirs == "list_resources has run"


@pytest.mark.feature("mcp-tool-name-mapper")
def test_renamed_tool() -> None:
    """The server is called with its own name for the tool."""
    with McpToolCallbackProvider(
        peer(), rename=lambda server, tool: f"{server}.{tool}", prefix="never"
    ) as provider:
        assert run(callback_named(provider, "peer_echo"), '{"text": "hi"}') == "hi"


@pytest.mark.feature("mcp-annotations-title-output-schema")
def test_options_of_providers() -> None:
    """A server's tools have its fields for single providers."""
    options = {"anthropic": {"defer_loading": True}}
    with McpToolCallbackProvider(peer(provider_options=options)) as provider:
        assert callback_named(provider, "echo").definition.provider_options == options
    with pytest.raises(ToolDefinitionError, match="MCP server 'peer' has name in its options"):
        peer(provider_options={"anthropic": {"name": "x"}})


def test_annotations_require_trust(provider: McpToolCallbackProvider) -> None:
    """Annotations apply only to trusted servers."""
    with McpToolCallbackProvider(peer(trust_annotations=True)) as trusting:
        effects = {c.definition.name: c.metadata.effect for c in tool_callbacks(trusting)}

    assert (effects["echo"], effects["die_once"], effects["pid"]) == ("read", "idempotent", "write")
    assert callback_named(provider, "echo").metadata.effect == "write"


def test_timeout_of_a_server() -> None:
    """The setting is the time-out of the tools; None is no limit."""
    assert peer(timeout=None).timeout is None
    with McpToolCallbackProvider(peer(timeout=7)) as provider:
        assert callback_named(provider, "echo").metadata.timeout == 7


# --- changes ---


@pytest.mark.feature("mcp-cache-invalidate-tools-changed")
def test_changed_tools(ask: Ask) -> None:
    """After a change notification the next request lists again."""
    with McpToolCallbackProvider(peer()) as provider:
        _, model = ask_with_tools(ask, provider, call("grow"), "done")
        before = offered_names(model)
        settled(lambda: len(tool_callbacks(provider)) > len(before))
        _, model = ask_with_tools(ask, provider, "done")

    assert set(offered_names(model)) - set(before) == {f"grown_{len(before)}"}


@pytest.mark.parametrize("pin", [True, False])
def test_changed_description(ask: Ask, pin: bool, caplog: pytest.LogCaptureFixture) -> None:
    """A server may show a harmless tool first, and instructions for the model later."""
    with McpToolCallbackProvider(peer(), pin=pin) as provider:
        _, model = ask_with_tools(ask, provider, call("reword"), "done")
        assert "echo" in offered_names(model)
        first = provider.fingerprints
        settled(lambda: "has changed" in caplog.text or not tool_callbacks(provider))
        _, model = ask_with_tools(ask, provider, "done")

        assert caplog.text.count("mcp tool has changed") == 1
        assert ("echo" in offered_names(model)) is not pin
        assert (provider.fingerprints == first) is pin


def test_accepted_tools() -> None:
    """Fingerprints that were stored accept the tools of a later process."""
    with McpToolCallbackProvider(peer()) as provider:
        tool_callbacks(provider)
        accepted = provider.fingerprints
    del accepted["peer/pid"]
    accepted["peer/fail"] = "another"

    with McpToolCallbackProvider(peer(), pin=accepted) as provider:
        names = {callback.definition.name for callback in tool_callbacks(provider)}
    assert "echo" in names
    assert not {"pid", "fail"} & names


# --- many servers ---


class _Rendezvous:
    """Transports that connect only when all servers connect concurrently."""

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


@pytest.mark.feature("mcp-clients-listed-one-after")
def test_servers_connect_concurrently() -> None:
    """Connecting takes as long as the slowest server."""
    meeting = _Rendezvous(3)

    with McpToolCallbackProvider(
        *(meeting.joined_by(peer(name)) for name in "abc"), prefix="always"
    ) as provider:
        names = [c.definition.name for c in tool_callbacks(provider)]

    assert [name for name in names if name.endswith("_echo")] == ["a_echo", "b_echo", "c_echo"]


# --- closing ---


def test_close() -> None:
    """Processes and thread end, and the tools raise a clear error."""
    provider = McpToolCallbackProvider(peer("a"), peer("b"))
    pids = [
        int(run(c)) for c in tool_callbacks(provider) if c.definition.name in ("a_pid", "b_pid")
    ]
    callback = callback_named(provider, "a_pid")
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


async def test_async_close() -> None:
    """`async with` closes processes and thread."""
    async with McpToolCallbackProvider(peer()) as provider:
        callbacks = {c.definition.name: c for c in await provider.tool_callbacks()}
        result = await callbacks["pid"].invoke("{}", ToolContext())

    assert not runs(int(result.text))


def test_close_without_connection() -> None:
    """An unused provider starts no thread or process."""
    before = mcp_threads()

    provider = McpToolCallbackProvider(peer())
    provider.close()
    asyncio.run(provider.aclose())

    assert mcp_threads() == before
    with pytest.raises(UsageError, match="closed"):
        tool_callbacks(provider)


def test_dropped_provider_ends_its_servers() -> None:
    """Garbage collection ends the processes without blocking."""
    provider = McpToolCallbackProvider(peer(fault="lingering"))
    pid = int(run(callback_named(provider, "pid")))

    started = time.monotonic()
    del provider
    took = time.monotonic() - started

    assert took < 1.5  # the process has two seconds to end
    assert settled(lambda: not runs(pid))


def test_provider_collected_on_its_own_thread() -> None:
    """Garbage collection on the connection thread does not wait for it."""
    provider = McpToolCallbackProvider(peer())
    pid = int(run(callback_named(provider, "pid")))
    pool = provider._pool
    assert pool is not None
    thread, _ = pool._open()
    thread.circle = provider.circle = [provider, pool]  # type: ignore[attr-defined]
    seconds: list[float] = []
    collected = weakref.ref(provider)

    def collect() -> None:
        started = time.monotonic()
        del thread.circle  # type: ignore[attr-defined]
        while collected() is not None:  # a collection does nothing while another thread has one
            gc.collect()
        seconds.append(time.monotonic() - started)

    del provider, pool
    thread.soon(collect)

    assert settled(lambda: not runs(pid))
    assert settled(lambda: not thread.alive)
    assert seconds[0] < 10  # the time that a server gets to end


def test_callbacks_keep_their_connection() -> None:
    """A tool in use keeps the connection of a dropped provider."""
    callback = callback_named(McpToolCallbackProvider(peer()), "pid")

    assert runs(int(run(callback)))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_forked_child_reconnects() -> None:
    """A child starts its own thread and server."""
    with McpToolCallbackProvider(peer()) as provider:
        pid = run(callback_named(provider, "pid"))
        read, write = os.pipe()
        child = os.fork()
        if not child:
            try:
                os.write(write, run(callback_named(provider, "pid")).encode())
            finally:
                os._exit(0)
        os.close(write)
        os.waitpid(child, 0)
        output = os.read(read, 100).decode()
        os.close(read)

        assert output.isdigit()
        assert output != pid
        assert run(callback_named(provider, "pid")) == pid


# --- invalid arguments ---


def test_servers_need_unique_names() -> None:
    """Duplicate names raise when the provider is made."""
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
        {"refresh_after": 0},
        {"name": " "},
        {"roots": [3]},
        {"log_level": "loud"},
    ],
)
def test_invalid_server_settings(settings: Any) -> None:
    """Invalid settings raise when the server is made."""
    with pytest.raises(UsageError):
        peer(**settings)


@pytest.mark.parametrize(
    ("make", "message"),
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
        (
            lambda: McpServer.stdio("a", "git status"),
            "a program, not a command line",
        ),
        (lambda: McpServer.http("a", "localhost:8000/mcp"), "begin with http://"),
        (
            lambda: McpServer.http("a", "http://localhost/mcp", auth=("a",)),  # type: ignore[arg-type]
            "pass a token in headers=",
        ),
    ],
)
def test_invalid_server_address(make: Any, message: str) -> None:
    """The error contains the correct form."""
    with pytest.raises(UsageError, match=message):
        make()


def test_missing_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the extra and the command."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)

    with pytest.raises(UsageError, match=r"pip install 'chatclient\[mcp\]'"):
        McpServer.http("x", "http://localhost/mcp")


def test_repr_has_no_secrets() -> None:
    """Headers and environment are not in the repr."""
    server = McpServer.http("x", "http://localhost/mcp", headers={"Authorization": "Bearer s3cr3t"})

    assert "s3cr3t" not in repr(server)
    assert "s3cr3t" not in repr(peer(env={"KEY": "s3cr3t"}))
    assert repr(McpToolCallbackProvider(server)) == "McpToolCallbackProvider(x)"
