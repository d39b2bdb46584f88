"""The model called `local`: which of those on this machine it is."""

import importlib.machinery
import json
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from chatclient import ChatClient, ChatOptions
from chatclient.advisors import Budget
from chatclient.chat import Cost
from chatclient.errors import UsageError
from chatclient.observability import Telemetry
from chatclient.providers.local import model as local
from chatclient.providers.local.choice import (
    ChosenLocalModel,
    LocalServer,
    find_server,
    llama_cpp_url,
)
from chatclient.providers.local.hub import (
    PACKAGED,
    QWEN_CODER_1_5B,
    ModelFileCorruptError,
    ModelFileUnavailableError,
    record_verified,
)
from chatclient.providers.local.llama_server import LlamaMissingError
from chatclient.providers.local.model import LocalChatModel
from chatclient.providers.registry import chat_model
from chatclient.testing import Ask
from chatclient.tools import tool_callbacks
from tests.providers.local.test_hub import set_endpoint
from tests.providers.local.test_model import Engine, get_time
from tests.support.hub_server import HubServer
from tests.support.loopback import LoopbackServer, as_json
from tests.support.servers import ChatServer, Reply, as_stream as completion_stream, completion

OLLAMA_TAGS = {
    "models": [
        {"name": "nomic-embed-text:latest", "details": {"family": "nomic-bert"}},
        {"name": "qwen3:latest", "model": "qwen3:latest", "details": {"family": "qwen3"}},
        {"name": "llama3.2:latest", "details": {"family": "llama"}},
    ]
}
LLAMA_MODELS = {"object": "list", "data": [{"id": "gemma.gguf", "owned_by": "llamacpp"}]}


class Machine:
    """The servers of a machine, on ports of their own, and what is installed on it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch
        self._servers: list[LoopbackServer] = []
        self.requests: list[tuple[str, dict[str, str], Any]] = []
        for variable in ("OLLAMA_HOST", "LLAMA_ARG_HOST", "LLAMA_ARG_PORT"):
            monkeypatch.delenv(variable, raising=False)
        monkeypatch.delenv("CHATCLIENT_LOCAL_MODEL", raising=False)
        # Nothing listens on a port that was just bound and closed.
        self._patch.setenv("OLLAMA_HOST", f"127.0.0.1:{free_port()}")
        self._patch.setenv("LLAMA_ARG_PORT", str(free_port()))
        self._patch.setitem(sys.modules, "xllamacpp", None)  # not installed
        self._patch.delitem(PACKAGED, QWEN_CODER_1_5B)  # `make demo` installs these packages

    def serve(self, answers: dict[str, Any]) -> str:
        """Start a server with *answers* by path, and return its address."""

        def answer(path: str, headers: dict[str, str], body: Any) -> Reply:
            self.requests.append((path, headers, json.loads(body) if body else None))
            found = answers.get(path, Reply(b"no such page", 404, content_type="text/html"))
            return found if isinstance(found, Reply) else as_json(found)

        self._servers.append(LoopbackServer(answer, raw=True))
        return self._servers[-1].url.removeprefix("http://")

    def ollama(self, tags: Any = OLLAMA_TAGS) -> None:
        message = {"message": {"role": "assistant", "content": "from Ollama"}}
        usage = {"prompt_eval_count": 3, "eval_count": 2}
        done = {**message, **usage, "model": "qwen3:latest", "done": True, "done_reason": "stop"}
        address = self.serve({"/api/tags": tags, "/api/chat": done})
        self._patch.setenv("OLLAMA_HOST", address)

    def llama_cpp(self, models: Any = LLAMA_MODELS, *, streaming: bool = False) -> None:
        complete = completion("from llama.cpp")
        reply: Any = complete
        if streaming:
            reply = Reply(completion_stream(complete), content_type="text/event-stream")
        address = self.serve({"/v1/models": models, "/v1/chat/completions": reply})
        self._patch.setenv("LLAMA_ARG_PORT", address.rpartition(":")[2])

    def install_llama(self) -> None:
        module = ModuleType("xllamacpp")
        module.__spec__ = importlib.machinery.ModuleSpec("xllamacpp", None)
        self._patch.setitem(sys.modules, "xllamacpp", module)

    def store_weights(self, cache: Path) -> Path:
        """Put a file into the cache of the hub that counts as the default weights."""
        pytest.importorskip("huggingface_hub.file_download")
        hub: Any = pytest.importorskip("huggingface_hub")
        self._patch.setattr(hub.constants, "HF_HUB_CACHE", str(cache / "hub"))
        self._patch.setenv("CHATCLIENT_CACHE_DIR", str(cache / "records"))
        folder = cache / "hub" / f"models--{QWEN_CODER_1_5B.repository.replace('/', '--')}"
        path = folder / "snapshots" / ("a" * 40) / QWEN_CODER_1_5B.filename
        path.parent.mkdir(parents=True)
        path.write_bytes(b"GGUF")
        (folder / "refs").mkdir()
        (folder / "refs" / "main").write_text("a" * 40)
        record_verified(path, QWEN_CODER_1_5B)
        return path

    def close(self) -> None:
        for server in self._servers:
            server.close()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    made = Machine(monkeypatch)
    yield made
    made.close()


def test_ollama_is_found(ask: Ask, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first model that can chat answers; the search sends no key."""
    monkeypatch.setenv("OLLAMA_API_KEY", "a-secret-key")
    machine.ollama()
    machine.llama_cpp()
    with chat_model("local") as model:
        assert model.name == "local"
        asked = ask(ChatClient.create(model).prompt("Hi").options(temperature=0.5))

        assert (model.name, model.provider) == ("qwen3:latest", "local")
    assert asked.text == "from Ollama"
    (probe, headers, _), (_, _, sent) = machine.requests
    assert probe == "/api/tags"
    assert "authorization" not in headers
    assert sent["model"] == "qwen3:latest"
    assert sent["options"] == {"temperature": 0.5}  # none of those of the weights
    assert asked.response.trail is not None
    assert "qwen3:latest" in str(asked.response.trail)


def test_llama_cpp_is_found(ask: Ask, machine: Machine) -> None:
    """If there is no Ollama, or it has no model."""
    machine.ollama({"models": []})
    machine.llama_cpp(streaming=ask.streaming)
    with chat_model("local") as model:
        asked = ask(ChatClient.create(model).prompt("Hi"))
        assert model.name == "gemma.gguf"
        assert model.address.startswith("http://127.0.0.1:")

    assert asked.text == "from llama.cpp"


def test_choice_is_made_once(machine: Machine) -> None:
    """Later requests go straight to the server."""
    machine.ollama()
    with ChatClient.create("local") as client:
        for _ in range(3):
            client.prompt("Hi").call().content()

    assert [path for path, _, _ in machine.requests] == ["/api/tags", *["/api/chat"] * 3]


@pytest.mark.parametrize(
    "answer",
    [
        {"object": "list", "data": [{"id": "m", "owned_by": "vllm"}]},
        {"object": "list", "data": None},
        ["m"],
        Reply(b"<html>Jenkins</html>", content_type="text/html"),
        Reply(b"{}", 401),
        Reply(b"", truncate=True),
    ],
)
def test_other_servers_are_no_models(machine: Machine, answer: Any) -> None:
    """Many programs listen on port 8080."""
    machine.llama_cpp(answer)

    assert find_server() is None


def test_silent_server_is_given_up(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A port that accepts connections and never answers costs a second."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        monkeypatch.setenv("OLLAMA_HOST", f"127.0.0.1:{listener.getsockname()[1]}")
        machine.llama_cpp()

        assert find_server() == LocalServer("llamacpp", llama_cpp_url(), "gemma.gguf")


@pytest.mark.parametrize(
    ("host", "port", "url"),
    [
        ("", "", "http://127.0.0.1:8080"),
        ("0.0.0.0", "9000", "http://127.0.0.1:9000"),
        ("::1", "", "http://[::1]:8080"),
        ("gpu.lan", "", "http://gpu.lan:8080"),
    ],
)
def test_address_of_llama_cpp(
    monkeypatch: pytest.MonkeyPatch, host: str, port: str, url: str
) -> None:
    """It comes from the variables that the server reads itself."""
    monkeypatch.setenv("LLAMA_ARG_HOST", host)
    monkeypatch.setenv("LLAMA_ARG_PORT", port)

    assert llama_cpp_url() == url


@pytest.mark.parametrize("host", ["http://[::1", "a b", "127.0.0.1:99999", "/tmp/llama.sock"])
def test_impossible_addresses(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    """They are no server."""
    monkeypatch.setenv("OLLAMA_HOST", host)
    monkeypatch.setenv("LLAMA_ARG_HOST", host)

    assert find_server() is None


def test_weights_on_this_machine_come_first(
    ask: Ask,
    machine: Machine,
    chat_server: Callable[..., ChatServer],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No server is looked for."""
    engine = Engine(chat_server("from the weights"))
    monkeypatch.setattr(local, "LlamaServer", engine)
    machine.ollama()
    machine.install_llama()
    path = machine.store_weights(tmp_path)
    with chat_model("local") as model:
        asked = ask(ChatClient.create(model).prompt("Hi"))

        assert model.name == QWEN_CODER_1_5B.name
    assert asked.text == "from the weights"
    assert engine.path == str(path)
    assert engine.server.requests[0]["temperature"] == 0.0
    assert machine.requests == []


def test_names_files_and_settings_are_explicit(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then weights are run here, and nothing is looked for."""
    machine.ollama()
    for model in (
        chat_model("local:0.5b"),
        chat_model("local:/models/a.gguf"),
        chat_model("local", n_ctx=8192),
    ):
        assert isinstance(model, LocalChatModel)
    monkeypatch.setenv("CHATCLIENT_LOCAL_MODEL", "/models/b.gguf")
    assert chat_model("local").address == "/models/b.gguf"
    assert chat_model("local:/models/a.gguf").address == "/models/a.gguf"
    monkeypatch.setenv("CHATCLIENT_LOCAL_MODEL", "qwen3")
    with pytest.raises(UsageError, match="'qwen3' is not a local model"):
        chat_model("local")
    assert machine.requests == []


def test_options_and_http_settings_hold_for_servers(machine: Machine) -> None:
    """They are the same for all models; wrong ones raise in the constructor."""
    machine.ollama()
    with chat_model("local", options=ChatOptions(seed=7), headers={"x-team": "a"}) as model:
        model.call("Hi")
    wrong: Any = {"time_out": 1}
    with pytest.raises(TypeError, match="time_out"):
        ChosenLocalModel(**wrong)

    _, headers, sent = machine.requests[-1]
    assert sent["options"] == {"seed": 7}
    assert headers["x-team"] == "a"


def test_nothing_is_found(ask: Ask, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the addresses, without passwords, and every way; the next request retries."""
    monkeypatch.setenv("OLLAMA_HOST", f"http://me:hush@127.0.0.1:{free_port()}")
    client = ChatClient.create("local")
    with pytest.raises(LlamaMissingError) as caught:
        ask(client.prompt("Hi"))

    said = str(caught.value)
    for way in ("127.0.0.1:", "pip install 'chatclient[local]'", "ollama pull", "llama-server"):
        assert way in said
    assert "CHATCLIENT_LOCAL_MODEL" in said
    assert "hush" not in said
    machine.llama_cpp(streaming=ask.streaming)
    assert ask(client.prompt("Hi")).text == "from llama.cpp"


def test_no_download_without_a_network(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error of the download also names the servers."""
    hub: Any = pytest.importorskip("huggingface_hub")
    pytest.importorskip("huggingface_hub.file_download")
    monkeypatch.setattr(hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", True)
    machine.install_llama()
    with ChosenLocalModel() as model, pytest.raises(ModelFileUnavailableError) as caught:
        model.call("Hi")

    assert "HF_HUB_OFFLINE is set" in str(caught.value)
    assert "start Ollama" in str(caught.value)


async def test_closed_with_its_model(machine: Machine) -> None:
    """Closing before the first request is possible, too."""
    machine.ollama()
    async with chat_model("local") as model:
        await model.acall("Hi")
    async with chat_model("local"):
        pass
    chat_model("local").close()


def test_output_mode() -> None:
    """The way to ask for JSON is one that all choices have."""
    model = chat_model("local")

    assert model.output_mode(ChatOptions()) == "schema"
    assert model.output_mode(ChatOptions(tool_callbacks=tool_callbacks(get_time))) == "tool"


def test_weights_are_downloaded(
    machine: Machine,
    chat_server: Callable[..., ChatServer],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """If llama.cpp is installed and there is no server."""
    monkeypatch.setattr(local, "LlamaServer", Engine(chat_server("from the weights")))
    machine.install_llama()
    path = machine.store_weights(tmp_path)
    content = path.read_bytes()
    path.unlink()
    with HubServer({(QWEN_CODER_1_5B.repository, QWEN_CODER_1_5B.filename): content}) as hub:
        set_endpoint(monkeypatch, hub.url)
        with pytest.raises(ModelFileCorruptError), ChosenLocalModel() as model:
            model.call("Hi")  # the real file has a gigabyte

    assert hub.requests


def test_chosen_models_cost_nothing(machine: Machine) -> None:
    """So a limit of cost does not refuse them, before and after the choice."""
    pytest.importorskip("genai_prices")
    machine.ollama()
    client = ChatClient.builder("local").default_advisors(Budget(cost=1.0)).build()
    costs = [client.prompt("Hi").call().chat_response().usage.cost for _ in range(2)]

    assert costs == [Cost(), Cost()]


def test_spans_name_the_server(machine: Machine) -> None:
    """They have its provider and model."""
    exporter = InMemorySpanExporter()
    tracers = TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    machine.ollama()
    ChatClient.builder("local").observers(Telemetry(tracers)).build().prompt("Hi").call().content()

    (found,) = (s.attributes or {} for s in exporter.get_finished_spans() if "chat " in s.name)
    assert found["gen_ai.provider.name"] == "ollama"
    assert found["gen_ai.request.model"] == "qwen3:latest"
