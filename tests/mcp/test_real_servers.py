"""Third-party MCP servers: server-everything from npm and mcp-server-time from PyPI."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chatclient.testing import Ask
from tests.support.mcp_setup import ask_with_tools, offered_names, runs
from tests.support.waiting import settled

pytest.importorskip("mcp")

from chatclient.chat.messages import Media
from chatclient.chat.tool import ToolProgress
from chatclient.mcp import McpProgress, McpServer, McpToolCallbackProvider
from chatclient.testing import call
from chatclient.tools import tool_callbacks

PACKAGE = "@modelcontextprotocol/server-everything"


@pytest.fixture(scope="session")
def everything_js() -> Path:
    """Install npm's server once in a cache directory and return its program."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("npm is not installed, which the server of others comes with")
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "chatclient-tests"
    program = cache / "node_modules" / PACKAGE / "dist" / "index.js"
    if not program.exists():
        cache.mkdir(parents=True, exist_ok=True)
        installed = subprocess.run(
            [npm, "install", "--no-audit", "--no-fund", "--prefix", str(cache), PACKAGE],
            capture_output=True,
            text=True,
            check=False,
        )
        if not program.exists():
            pytest.skip(f"npm cannot install {PACKAGE}: {installed.stderr[-200:]}")
    return program


@pytest.fixture(scope="module")
def over_stdio(everything_js: Path) -> McpServer:
    return McpServer.stdio("everything", "node", str(everything_js), "stdio")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def listening(program: Path, port: int) -> Iterator[None]:
    """Run the server on a port and kill it at the end."""
    process = subprocess.Popen(
        ["node", str(program), "streamableHttp"],
        env={**os.environ, "PORT": str(port)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def listens() -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return True
        return False

    try:
        assert settled(listens, 120)
        yield
    finally:
        process.kill()
        process.wait(10)


@pytest.fixture(scope="module")
def over_http(everything_js: Path) -> Iterator[McpServer]:
    port = free_port()
    with listening(everything_js, port):
        yield McpServer.http("everything", f"http://127.0.0.1:{port}/mcp")


@pytest.fixture(scope="module", params=["stdio", "http"])
def everything(request: pytest.FixtureRequest) -> Iterator[McpToolCallbackProvider]:
    server: McpServer = request.getfixturevalue(f"over_{request.param}")
    with McpToolCallbackProvider(server, resources=True, prompts=True) as provider:
        yield provider


@pytest.fixture(scope="module")
def clock() -> McpServer:
    pytest.importorskip("mcp_server_time")
    return McpServer.stdio("time", sys.executable, "-m", "mcp_server_time")


def data(ask: Ask, provider: Any, name: str, arguments: Any = None) -> Any:
    """Return the tool response of a call."""
    result, _ = ask_with_tools(ask, provider, call(name, json.dumps(arguments or {})), "done")
    assert not result.executions[0].is_error, result.executions[0].response.data
    return result.executions[0]


@pytest.mark.process("MCP server of the SDK")
@pytest.mark.feature("mcp-transports-stdio-streamable-http")
def test_texts(ask: Ask, everything: McpToolCallbackProvider) -> None:
    """Text is unchanged over both transports."""
    assert data(ask, everything, "echo", {"message": "hi"}).response.data == "Echo: hi"
    assert "42" in data(ask, everything, "get-sum", {"a": 40, "b": 2}).response.data


@pytest.mark.feature("mcp-result-json-content-list")
def test_images(ask: Ask, everything: McpToolCallbackProvider) -> None:
    """An image is media, next to text."""
    response = data(ask, everything, "get-tiny-image").response

    [image] = response.media
    assert isinstance(image, Media)
    assert image.mime_type == "image/png"
    assert isinstance(image.data, bytes)
    assert image.data.startswith(b"\x89PNG")
    assert "image" in response.data


@pytest.mark.feature("mcp-structured-content")
def test_structured_data(ask: Ask, everything: McpToolCallbackProvider) -> None:
    """Structured content is not repeated, though it is sent as text as well."""
    execution = data(ask, everything, "get-structured-content", {"location": "Chicago"})

    content = json.loads(execution.response.data)
    assert set(content) == {"temperature", "conditions", "humidity"}
    assert execution.value == content


@pytest.mark.feature("mcp-result-json-content-list")
def test_resources_in_results(ask: Ask, everything: McpToolCallbackProvider) -> None:
    """A resource is text or bytes; a link has its target."""
    text = data(ask, everything, "get-resource-reference", {"resourceType": "Text"})
    blob = data(ask, everything, "get-resource-reference", {"resourceType": "Blob"})
    links = data(ask, everything, "get-resource-links", {"count": 2})

    assert "Resource 1" in text.response.data
    assert len(blob.response.media) == 1
    assert links.response.data.count("](demo://") == 2


@pytest.mark.feature("mcp-progress-handler")
def test_progress(ask: Ask, everything: McpToolCallbackProvider) -> None:
    """Progress is streamed in order before the result."""
    result, _ = ask_with_tools(
        ask,
        everything,
        call("trigger-long-running-operation", '{"duration": 0.2, "steps": 4}'),
        "done",
    )

    progress = [e.event for e in result.events if isinstance(e, ToolProgress)]
    seen = [each.progress for each in progress if isinstance(each, McpProgress)]
    assert seen == ([1, 2, 3, 4] if ask.streaming else [])
    assert "completed" in result.executions[0].response.data


def test_invalid_arguments(ask: Ask, everything: McpToolCallbackProvider) -> None:
    """Arguments are validated by the server's schema."""
    result, _ = ask_with_tools(ask, everything, call("get-resource-links", '{"count": 99}'), "done")

    assert result.executions[0].is_error
    assert "99 is greater than the maximum of 10" in result.executions[0].response.data


@pytest.mark.feature("mcp-resources-tools-presenter")
def test_resources_as_tools(ask: Ask, everything: McpToolCallbackProvider) -> None:
    """A model can list and read resources, text and binary."""
    listed = json.loads(data(ask, everything, "list_resources").response.data)
    documents = [item for item in listed if "uri" in item]
    templates = [item for item in listed if "uri_template" in item]
    where = {"server": "everything", "uri": documents[0]["uri"]}
    blob = {"server": "everything", "uri": "demo://resource/dynamic/blob/1"}

    assert documents[0]["server"] == "everything"
    assert templates
    assert data(ask, everything, "read_resource", where).response.data
    assert data(ask, everything, "read_resource", blob).response.media


@pytest.mark.feature("mcp-prompts")
def test_prompts_as_tools(ask: Ask, everything: McpToolCallbackProvider) -> None:
    """A model can list and render prompts."""
    listed = json.loads(data(ask, everything, "list_prompts").response.data)
    wanted = next(item for item in listed if any(a.get("required") for a in item["arguments"]))
    given = {argument["name"]: "Rome" for argument in wanted["arguments"]}
    where = {"server": "everything", "name": wanted["name"], "arguments": given}

    content = data(ask, everything, "get_prompt", where).response.data

    assert content.startswith("user: ")
    assert "Rome" in content


def test_missing_resources_and_prompts(ask: Ask, everything: McpToolCallbackProvider) -> None:
    """The error lists the servers or has the server's message."""
    calls = [
        call("read_resource", '{"server": "x", "uri": "a:b"}', id="1"),
        call("read_resource", '{"server": "everything", "uri": "a:b"}', id="2"),
        call("get_prompt", '{"server": "everything", "name": "no such"}', id="3"),
    ]
    result, _ = ask_with_tools(ask, everything, calls, "done")

    assert all(execution.is_error for execution in result.executions)
    assert result.executions[0].response.data == "there is no server 'x'; there is everything"


@pytest.mark.process("MCP server of the SDK")
def test_two_servers(ask: Ask, over_stdio: McpServer, clock: McpServer) -> None:
    """Tools of several servers are offered together, and each call reaches its own."""
    calls = [
        call("convert_time", json.dumps(ROME_TO_TOKYO)),
        call("echo", '{"message": "hi"}'),
    ]
    with McpToolCallbackProvider(over_stdio, clock) as provider:
        result, model = ask_with_tools(ask, provider, calls, "done")

    converted, echoed = result.executions
    assert "19:00" in converted.response.data
    assert echoed.response.data == "Echo: hi"
    assert {"convert_time", "get_current_time", "echo"} <= set(offered_names(model))


ROME_TO_TOKYO = {
    "source_timezone": "Etc/UTC",
    "time": "10:00",
    "target_timezone": "Asia/Tokyo",
}


@pytest.mark.process("MCP server of the SDK")
def test_failure(ask: Ask, clock: McpServer) -> None:
    """The server's message reaches the model."""
    with McpToolCallbackProvider(clock) as provider:
        result, _ = ask_with_tools(
            ask, provider, call("get_current_time", '{"timezone": "No/Where"}'), "done"
        )

    assert result.executions[0].is_error
    assert "No/Where" in result.executions[0].response.data


@pytest.mark.process("MCP server of the SDK")
def test_close_ends_the_process(over_stdio: McpServer) -> None:
    """The process ends with the provider."""
    before = set(children())
    with McpToolCallbackProvider(over_stdio) as provider:
        assert tool_callbacks(provider)
        started = set(children()) - before

    assert started
    assert settled(lambda: not any(map(runs, started)))


def children() -> list[int]:
    """Return the child processes, where the system lists them."""
    path = Path(f"/proc/{os.getpid()}/task")
    if not path.exists():
        pytest.skip("this system does not tell")
    found: list[int] = []
    for task in path.iterdir():
        with contextlib.suppress(OSError):
            found.extend(map(int, (task / "children").read_text().split()))
    return found


@pytest.mark.process("MCP server of the SDK")
def test_http_server_restart(everything_js: Path, ask: Ask) -> None:
    """After a restart one call fails, and the next starts a new session."""
    port = free_port()
    server = McpServer.http("everything", f"http://127.0.0.1:{port}/mcp")
    with McpToolCallbackProvider(server) as provider:
        with listening(everything_js, port):
            assert data(ask, provider, "echo", {"message": "1"}).response.data == "Echo: 1"
        with listening(everything_js, port):
            calls = [call("echo", '{"message": "2"}'), call("echo", '{"message": "3"}', id="3")]
            result, _ = ask_with_tools(ask, provider, *calls, "done")

    lost, found = result.executions
    assert "whether it was carried out is not known" in lost.response.data
    assert found.response.data == "Echo: 3"
