"""How providers connect: proxies, TLS, HTTP/2, time-outs, and connection headers."""

import asyncio
import contextlib
import gc
import gzip
import json
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
import tracemalloc
import warnings
import zlib
from collections.abc import Callable, Coroutine, Iterator
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any
from weakref import WeakSet

import pytest

from chatclient import ChatClient, ChatModel
from chatclient.errors import (
    AuthenticationError,
    ConnectionFailedError,
    DeadlineExceededError,
    InvalidRequestError,
    InvalidResponseError,
    ProviderError,
    RequestTimeoutError,
    ResponseLimitError,
    StreamInterruptedError,
    UsageError,
)
from chatclient.providers.http import connections
from chatclient.providers.http.client import HttpClient
from chatclient.providers.http.connections import Connections, Pools
from chatclient.providers.http.limits import ResponseLimits
from chatclient.providers.http.request import Timeouts
from chatclient.providers.http.retry import RetryPolicy, as_retry_policy
from chatclient.providers.openai.chat import OpenAIChatModel
from tests.support.chaos_server import CLOSE, END, STALL, ChaosServer, Step, chunked, http
from tests.support.proxy_server import ProxyServer, SocksServer
from tests.support.servers import ChatServer
from tests.support.services import SERVICES, Service, outcome_of
from tests.support.waiting import LONG, longer_and_longer, settled

CHAT = SERVICES[0]
MODES = ("call", "acall", "stream", "astream")
KEY = "a-key-of-some-length"


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def answer_for(mode: str) -> bytes:
    streaming = mode in ("stream", "astream")
    kind = CHAT.stream_type if streaming else "application/json"
    return http(CHAT.answer(streaming=streaming), headers={"content-type": kind})


# --- opening and closing --------------------------------------------------------------------


@pytest.mark.feature("wish-first-asynchronous-request-blocks")
async def test_http_library_is_imported_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop is not blocked by the import, and concurrent requests share pools."""
    threads: list[threading.Thread] = []
    load = connections.http_library

    def recording() -> Any:
        threads.append(threading.current_thread())
        return load()

    monkeypatch.setattr(connections, "http_library", recording)
    with ChaosServer([[answer_for("acall")]] * 3) as server:
        async with CHAT.model(server.url) as model:
            answers = [model.acall("Hi") for _ in range(3)]
            assert [each.text for each in await asyncio.gather(*answers)] == ["one two three"] * 3

    assert threads[0] is not threading.main_thread()


LOADING = """
import asyncio, sys, threading

class Watching:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("httpx", "httpx2", "httpcore", "httpcore2"):
            loaded.setdefault(threading.current_thread() is threading.main_thread(), name)

from chatclient.providers.openai.chat import OpenAIChatModel
model = OpenAIChatModel("m", api_key="test", base_url=sys.argv[1])
loaded = {}
sys.meta_path.insert(0, Watching())
asyncio.run(model.acall("Hi"))
print(sorted(loaded))
"""


@pytest.mark.process("Python")
@pytest.mark.parametrize("library", ["httpx", "httpx2"])
def test_no_import_runs_on_the_loop_thread(
    chat_server: Callable[..., ChatServer], library: str
) -> None:
    """The complete library is imported off the loop, also the parts for connections."""
    pytest.importorskip(library)
    command = [sys.executable, "-c", LOADING, chat_server("Hello.").url]
    environment = {**os.environ, "CHATCLIENT_HTTP": library}
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=60, env=environment
    )

    assert done.stdout == "[False]\n"


@pytest.mark.filterwarnings("error::ResourceWarning")
def test_unclosed_model_closes_its_connections() -> None:
    """Garbage collection of a model closes its sockets without a `ResourceWarning`."""
    with ChaosServer([[answer_for("call")]]) as server:
        model = CHAT.model(server.url)
        assert model.call("Hi").text == "one two three"
        del model
        gc.collect()


def run_without_shutdown(job: Coroutine[Any, Any, Any]) -> None:
    loop = asyncio.new_event_loop()
    loop.run_until_complete(job)
    loop.close()


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.mark.usefixtures("http_library")
def test_idle_connections_are_closed_after_a_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle connections beyond the pool's limit are closed while the loop runs."""
    monkeypatch.setattr(connections, "_KEEPALIVE_SECONDS", 0.01)

    async def main(server: ChaosServer) -> None:
        async with CHAT.model(server.url) as model:
            await asyncio.gather(*(model.acall("Hi") for _ in range(60)))
            await asyncio.sleep(0.02)
            await model.acall("Hi")
            few = connections._PER_SHARD
            assert await asyncio.to_thread(settled, lambda: server.open_connections <= few)

    with ChaosServer([[0.2, answer_for("acall")]]) as server:
        asyncio.run(main(server))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts descriptors in /proc")
@pytest.mark.parametrize("run", [asyncio.run, run_without_shutdown])
def test_closed_loops_are_released(
    chat_server: Callable[..., ChatServer], run: Callable[[Any], None]
) -> None:
    """A model used on many loops keeps neither closed loops nor their sockets."""
    model = CHAT.model(chat_server(*["hello"] * 21).url)
    loops: WeakSet[asyncio.AbstractEventLoop] = WeakSet()

    async def ask() -> None:
        loops.add(asyncio.get_running_loop())
        await model.acall("Hi")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # from loops closed without shutdown
        run(ask())
        before = descriptors()
        for _ in range(20):
            run(ask())
        model.close()
        gc.collect()

    assert len(loops) <= 1  # older libraries hold on to the last one
    assert settled(lambda: descriptors() <= before)  # after the server has closed them as well


@pytest.mark.usefixtures("http_library")
@pytest.mark.parametrize("blocking", [True, False])
def test_tcp_keepalive_is_enabled(monkeypatch: pytest.MonkeyPatch, *, blocking: bool) -> None:
    """Sockets use TCP keep-alive, so that idle connections survive and dead ones fail."""
    chosen: list[tuple[Any, ...]] = []

    class Watched(socket.socket):
        def setsockopt(self, *args: Any) -> None:
            super().setsockopt(*args)
            chosen.append(args)

    with ChaosServer([[answer_for("call")]]) as server:
        monkeypatch.setattr(socket, "socket", Watched)
        assert outcome_of(CHAT.model(server.url), "call" if blocking else "acall").error is None

    assert (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1) in chosen
    assert (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 60) in chosen


FORKING = """
import os, sys
from chatclient.providers.openai.chat import OpenAIChatModel

model = OpenAIChatModel("m", api_key="k", base_url=sys.argv[1])
model.call("parent")
child = os.fork()
if not child:
    model.call("child")
    model.close()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
model.call("parent again")
model.close()
"""


@pytest.mark.feature("wish-forked-worker-uses-parent")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_forked_child_opens_its_own_connections(chat_server: Callable[..., ChatServer]) -> None:
    """Parent and child never share a connection."""
    server = chat_server("hello")
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", FORKING, server.url]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    assert (done.returncode, done.stderr) == (0, "")
    parent, child, again = server.ports
    assert parent == again != child


# --- time-outs ------------------------------------------------------------------------------


def test_first_byte_timeout(mode: str) -> None:
    """The first byte may take longer than the read time-out, later ones may not."""
    for seconds in longer_and_longer():
        timeout = Timeouts(read=seconds, first_byte=LONG)
        with ChaosServer([[3 * seconds, answer_for(mode)]]) as server:
            if outcome_of(CHAT.model(server.url, timeout=timeout), mode).text == "one two three":
                break
    half = CHAT.stream("one two three").partition(b"two")[0]
    with ChaosServer([[chunked(half), LONG]]) as server:
        started = time.monotonic()
        timeout = Timeouts(read=0.1, first_byte=LONG)
        outcome = outcome_of(CHAT.model(server.url, timeout=timeout), mode)
        assert isinstance(outcome.error, RequestTimeoutError | StreamInterruptedError)
        assert time.monotonic() - started < LONG


def test_first_byte_timeout_below_read_timeout(mode: str) -> None:
    """The first byte may have to arrive sooner than the following ones."""
    for seconds in longer_and_longer():
        patient = Timeouts(read=LONG, first_byte=seconds)
        pieces: list[Step] = [chunked(b": hello\n\n"), 2 * seconds, END]
        with ChaosServer([pieces]) as server:
            outcome = outcome_of(CHAT.model(server.url, timeout=patient), mode)
            if isinstance(outcome.error, InvalidResponseError):  # not a time-out
                break
    with ChaosServer([[STALL]]) as server:
        patient = Timeouts(read=LONG, first_byte=0.2)
        outcome = outcome_of(CHAT.model(server.url, timeout=patient), mode)
        assert isinstance(outcome.error, RequestTimeoutError)


def test_total_timeout(mode: str) -> None:
    """An answer that trickles in fails when the total time-out expires."""
    drops = [piece for _ in range(200) for piece in (0.03, b"2\r\n: \r\n")]
    with ChaosServer([[chunked(), *drops, END]]) as server:
        outcome = outcome_of(CHAT.model(server.url, timeout=Timeouts(total=0.4)), mode)

    assert isinstance(outcome.error, DeadlineExceededError)
    assert outcome.in_use == 0


def test_total_timeout_bounds_retries(mode: str) -> None:
    """A wait beyond the total time-out is not started."""
    with ChaosServer([[http(b"{}", 503, {"retry-after": "900"})]]) as server:
        timeout = Timeouts(total=600)
        model = CHAT.model(server.url, timeout=timeout, max_retries=RetryPolicy(5, 0.1, 1000))
        outcome = outcome_of(model, mode)

    assert isinstance(outcome.error, ProviderError)
    assert len(server.requests) == 1


def test_number_or_policy_of_retries() -> None:
    """A number of retries or a policy gives a `RetryPolicy`."""
    assert as_retry_policy(4) == RetryPolicy(4)
    assert as_retry_policy(RetryPolicy(1, 2, 3)) == RetryPolicy(1, 2, 3)


def test_total_timeout_bounds_a_custom_client(http_library: str) -> None:
    """The total time-out applies to a given HTTP client without a time-out."""
    import importlib

    library = importlib.import_module(http_library)
    with ChaosServer([[STALL]]) as server, library.Client(timeout=None) as mine:
        model = CHAT.model(server.url, http_client=mine, timeout=Timeouts(total=0.2))
        with pytest.raises(DeadlineExceededError):
            model.call("Hi")


@pytest.mark.parametrize(
    ("own", "first", "then"),
    [({}, 20, 8), ({"timeout": 7}, 7, 7), ({"timeout": None}, None, None)],
)
def test_custom_client_keeps_its_timeout(
    own: dict[str, Any], first: float | None, then: float | None, http_library: str
) -> None:
    """A given HTTP client without a setting uses the time-outs of the model."""
    import importlib

    library = importlib.import_module(http_library)
    waits: list[Any] = []

    def answer(request: Any) -> Any:
        waits.append(dict(request.extensions["timeout"]))
        waits.append(request.extensions["timeout"])  # mutated while the body is read
        return library.Response(200, content=CHAT.answer(streaming=False))

    timeout = Timeouts(read=8, first_byte=20)
    with library.Client(transport=library.MockTransport(answer), **own) as mine:
        CHAT.model("http://model.invalid", http_client=mine, timeout=timeout).call("Hi")

    assert [wait["read"] for wait in waits] == [first, then]


# --- keys -----------------------------------------------------------------------------------


@pytest.mark.parametrize("service", SERVICES, ids=str)
def test_idempotency_key_is_kept_for_retries(service: Service, mode: str) -> None:
    """All attempts of a request send one idempotency key, the next request another."""
    script = [http(b"{}", 503, {"retry-after-ms": "10"})]
    with ChaosServer([script]) as server:
        for _ in range(2):
            outcome_of(service.model(server.url, max_retries=1), mode)
    keys = [request.headers.get("idempotency-key") for request in server.requests]

    if service.name in ("bedrock", "gemini", "ollama"):
        assert keys == [None] * 4
    else:
        assert keys[0] == keys[1] != keys[2] == keys[3]
        assert all(keys)


def test_idempotency_key_from_headers_wins() -> None:
    """An idempotency key in the given headers is sent unchanged."""
    with ChaosServer([[http(b"{}", 400)]]) as server:
        model = CHAT.model(server.url, headers={"Idempotency-Key": "mine"})
        with model, pytest.raises(ProviderError):
            model.call("Hi")

    assert server.requests[0].headers["idempotency-key"] == "mine"


@pytest.mark.parametrize("service", SERVICES, ids=str)
def test_echoed_key_is_masked(service: Service, mode: str) -> None:
    """Error, body and cause do not contain an API key echoed by the service."""
    body = json.dumps({"error": {"message": f"bad key {KEY}!", "type": "authentication_error"}})
    with ChaosServer([[http(body.encode(), 401)]]) as server:
        outcome = outcome_of(service.model(server.url), mode)

    assert isinstance(outcome.error, AuthenticationError)
    assert "bad key ***!" in str(outcome.error)
    assert KEY not in f"{outcome.error!r} {outcome.error.body} {outcome.error.__cause__!r}"


QUOTES = {
    "an error": f'{{"error": {{"message": "{KEY} is over its quota", "at": ["{KEY}"]}}}}',
    "no JSON": f'"{KEY}{"." * 170}{KEY}',
    "no answer": f'{{"{KEY}": "{KEY}"}}',
}


@pytest.mark.parametrize("service", SERVICES, ids=str)
@pytest.mark.parametrize("quote", QUOTES.values(), ids=QUOTES)
def test_echoed_key_with_status_200_is_masked(service: Service, mode: str, quote: str) -> None:
    """An API key echoed with status 200 is masked, also when it is truncated."""
    kind = service.stream_type if mode in ("stream", "astream") else "application/json"
    body = f"data: {quote}\n\n" if kind == "text/event-stream" else f"{quote}\n"
    with ChaosServer([[http(body.encode(), headers={"content-type": kind})]]) as server:
        outcome = outcome_of(service.model(server.url), mode)

    assert isinstance(outcome.error, ProviderError)
    assert KEY[:8] not in f"{outcome.error!r} {outcome.error.body}"


@pytest.mark.parametrize(
    ("user", "query", "headers"),
    [
        ("", "", {"X-Gateway-Key": KEY}),
        ("", "", {"Cookie": f"{KEY} and more"}),
        ("", f"?code={KEY}", {}),
        (f"me:{KEY}@", "", {}),
    ],
)
def test_secret_headers_and_urls_are_masked(
    mode: str, user: str, query: str, headers: dict[str, str]
) -> None:
    """Values of non-public headers and of the URL are masked; versions are shown."""
    body = json.dumps({"error": {"message": f"bad {KEY} for 2024-10-21 of {headers}"}}).encode()
    with ChaosServer([[http(body, 400)]]) as server:
        base_url = f"{server.url.replace('//', f'//{user}')}/v1{query}"
        base_url += f"{'&' if query else '?'}api-version=2024-10-21"
        model = OpenAIChatModel("m", api_key="", base_url=base_url, headers=headers)
        outcome = outcome_of(model, mode)

    assert isinstance(outcome.error, ProviderError)
    assert KEY not in f"{outcome.error!r} {outcome.error.body}"
    assert "for 2024-10-21" in str(outcome.error)


@pytest.mark.parametrize("service", SERVICES, ids=str)
def test_key_with_line_break_is_rejected(service: Service, mode: str) -> None:
    """A line break inside a key raises without showing it; a trailing one is removed."""
    with ChaosServer([[answer_for("call")]]) as server:
        outcome = outcome_of(service.model(server.url, api_key="secret\nkey"), mode)
        assert isinstance(outcome.error, UsageError)
        assert "secret" not in f"{outcome.error} {outcome.error.__cause__}"
        for read in (f"{KEY}\n", lambda: f"{KEY}\n"):
            outcome_of(service.model(server.url, api_key=read), mode)

    assert len(server.requests) == 2
    for request in server.requests:
        assert any(value.endswith(KEY) for value in request.headers.values())


@pytest.mark.parametrize("name", ["x team", "x-team:", "", "x-équipe"])
def test_invalid_header_is_rejected(name: str, mode: str) -> None:
    """An invalid header is not a connection failure, so it is not retried."""
    with ChaosServer([[answer_for(mode)]]) as server:
        outcome = outcome_of(CHAT.model(server.url, headers={name: "a"}), mode)

    assert isinstance(outcome.error, UsageError)
    assert f"{name!r} cannot be the name of a header" in str(outcome.error)


def test_header_whitespace_is_stripped(mode: str) -> None:
    """White space around header values is removed."""
    with ChaosServer([[answer_for(mode)]]) as server:
        outcome = outcome_of(CHAT.model(server.url, headers={"X-Key": f" {KEY}\n"}), mode)

    assert outcome.error is None
    assert server.requests[0].headers["x-key"] == KEY


# --- sizes ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("http_library")
@pytest.mark.parametrize("status", [200, 400])
@pytest.mark.parametrize("named", ["gzip, gzip", "gzip\r\ncontent-encoding: gzip"])
def test_double_compression_is_rejected(mode: str, named: str, status: int) -> None:
    """A doubly compressed answer is rejected before it can fill the memory."""
    refusal = json.dumps({"error": {"message": "a reason"}}).encode()
    body = gzip.compress(gzip.compress(refusal))
    answer = http(body, status, {"content-encoding": named})
    with ChaosServer([[answer]]) as server:
        error = outcome_of(CHAT.model(server.url), mode).error

    assert isinstance(error, ProviderError)
    assert ("'gzip, gzip', which was not asked for" in str(error)) is (status == 200)
    assert "a reason" not in f"{error} {error.body}"


@cache
def packed(encoding: str) -> bytes:
    """Return 64 MB of zeros, compressed."""
    zeros = bytes(64 * 2**20)
    return gzip.compress(zeros) if encoding == "gzip" else zlib.compress(zeros)


@pytest.mark.usefixtures("http_library")
@pytest.mark.parametrize("status", [200, 400])
@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_compressed_answers_are_counted_while_they_are_unpacked(
    mode: str, encoding: str, status: int
) -> None:
    """What is packed into a few bytes takes no more memory than the limit, and some pieces."""
    answer = http(packed(encoding), status, {"content-encoding": encoding})
    most = 2**20
    limits = ResponseLimits(answer_bytes=most, stream_bytes=most, error_bytes=most)
    with ChaosServer([[answer]]) as server:
        model = CHAT.model(server.url, limits=limits)
        tracemalloc.start()
        try:
            error = outcome_of(model, mode).error
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()

    assert isinstance(error, ResponseLimitError if status == 200 else InvalidRequestError)
    assert peak < 16 * most


# --- proxies --------------------------------------------------------------------------------


@pytest.fixture
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.mark.usefixtures("no_proxies", "http_library")
def test_proxy_argument(mode: str) -> None:
    """Requests go through the proxy with its password, which is not shown."""
    with ChaosServer([[answer_for(mode), CLOSE]]) as server, ProxyServer("me:pass") as proxy:
        through = Connections(proxy=f"http://me:pass@{proxy.address}")
        model = CHAT.model(server.url, http_client=through)
        assert "pass" not in f"{through!r} {model!r} {model._http!r}"  # type: ignore[attr-defined]
        assert outcome_of(model, mode).text == "one two three"
        assert proxy.passed == [f"POST {server.url}/v1/chat/completions"]


@pytest.mark.usefixtures("no_proxies")
def test_proxy_authentication_failure(mode: str) -> None:
    """Without the password a proxy rejects the request."""
    with ProxyServer("me:pass") as proxy:
        through = Connections(proxy=f"http://me:wrong-password@{proxy.address}")
        outcome = outcome_of(CHAT.model("http://model.invalid", http_client=through), mode)

    assert isinstance(outcome.error, ProviderError)
    assert "407" in str(outcome.error)
    assert "wrong-password" not in repr(outcome.error)


@pytest.mark.usefixtures("no_proxies")
@pytest.mark.parametrize("form", ["{}", "http://{}"])
def test_proxy_environment_variables(form: str, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The usual variables and exceptions apply; an argument takes precedence."""
    with ChaosServer([[answer_for(mode), CLOSE]]) as server, ProxyServer() as proxy:
        url = server.url.replace("127.0.0.1", "0.0.0.0")  # a remote host, by name
        monkeypatch.setenv("all_proxy", form.format(proxy.address))
        assert outcome_of(CHAT.model(url), mode).text
        assert len(proxy.passed) == 1
        for exception in ("0.0.0.0", "example.org,*", url.removeprefix("http://")):
            monkeypatch.setenv("no_proxy", exception)
            assert outcome_of(CHAT.model(url), mode).text
        monkeypatch.delenv("no_proxy")
        assert outcome_of(CHAT.model(url, http_client=Connections(proxy="")), mode).text
        assert len(proxy.passed) == 1


@pytest.mark.usefixtures("no_proxies")
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_localhost_bypasses_the_proxy(
    host: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests to the local machine use a proxy only if it is given as an argument."""
    with ChaosServer([[answer_for(mode), CLOSE]]) as server, ProxyServer() as proxy:
        url = server.url.replace("127.0.0.1", host)
        monkeypatch.setenv("http_proxy", proxy.url)
        assert outcome_of(CHAT.model(url), mode).text
        assert not proxy.passed
        through = Connections(proxy=proxy.url)
        assert outcome_of(CHAT.model(url, http_client=through), mode).text
        assert len(proxy.passed) == 1


@pytest.mark.usefixtures("no_proxies", "http_library")
@pytest.mark.parametrize("credentials", ["", "me:pass"])
def test_socks_proxy(mode: str, credentials: str) -> None:
    """A SOCKS proxy works with and without a password."""
    with ChaosServer([[answer_for(mode), CLOSE]]) as server, SocksServer(credentials) as proxy:
        named = f"{credentials}@" if credentials else ""
        through = Connections(proxy=f"socks5://{named}{proxy.address}")
        assert outcome_of(CHAT.model(server.url, http_client=through), mode).text == "one two three"
        assert proxy.passed == [server.url.removeprefix("http://")]


@pytest.mark.usefixtures("no_proxies")
def test_unknown_proxy_scheme() -> None:
    """An unsupported proxy scheme raises with the first request."""
    through = Connections(proxy="gopher://me:a-password@127.0.0.1:1")
    with pytest.raises(UsageError, match="proxy") as caught:
        CHAT.model("http://model.invalid", http_client=through).call("Hi")

    assert "a-password" not in str(caught.value)


# --- TLS and HTTP/2 -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority() -> Any:
    trustme = pytest.importorskip("trustme")
    return trustme.CA()


@pytest.fixture
def trusting(authority: Any) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


@pytest.fixture
def secure_server(authority: Any) -> Iterator[str]:
    """Return the URL of an HTTPS server with a certificate from the test authority."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["content-length"])))
            body = CHAT.answer(streaming=bool(request.get("stream")))
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Print nothing."""

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    server = QuietServer(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"https://localhost:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


class QuietServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore failed TLS handshakes."""


@pytest.mark.usefixtures("no_proxies", "http_library")
def test_certificates_are_verified(mode: str, secure_server: str, trusting: ssl.SSLContext) -> None:
    """Only a client that trusts the authority connects, directly or through a proxy."""
    outcome = outcome_of(CHAT.model(secure_server), mode)
    assert isinstance(outcome.error, ConnectionFailedError)
    assert "certificate" in str(outcome.error).lower()
    settings = Connections(tls=trusting)
    assert outcome_of(CHAT.model(secure_server, http_client=settings), mode).text
    with ProxyServer() as proxy:
        through = Connections(proxy=proxy.url, tls=trusting)
        assert outcome_of(CHAT.model(secure_server, http_client=through), mode).text
        assert proxy.passed == [f"CONNECT {secure_server.removeprefix('https://')}"]


@pytest.mark.usefixtures("no_proxies", "http_library")
def test_certificate_file_error(mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error for unreadable certificates names where the file name may come from."""
    connections._tls.cache_clear()
    broken = tmp_path / "broken.pem"  # older versions of httpx ignore one that is missing
    broken.write_text("no certificate")
    monkeypatch.setenv("SSL_CERT_FILE", str(broken))
    outcome = outcome_of(CHAT.model("https://localhost:1"), mode)

    assert isinstance(outcome.error, UsageError)
    assert "SSL_CERT_FILE" in str(outcome.error)


class Http2Server:
    """Speaks HTTP/2 over TLS and gives the same answer to every request."""

    def __init__(self, authority: Any) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("localhost").configure_cert(self._context)
        self._context.set_alpn_protocols(["h2"])
        self.connections = 0
        self.requests = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        start = asyncio.run_coroutine_threadsafe(self._begin(), self._loop)
        self._server = start.result(LONG)

    async def _begin(self) -> asyncio.Server:
        return await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context)

    @property
    def url(self) -> str:
        return f"https://localhost:{self._server.sockets[0].getsockname()[1]}"

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(LONG)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(LONG)
        self._loop.close()

    async def _end(self) -> None:
        self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from h2.config import H2Configuration
        from h2.connection import H2Connection
        from h2.events import DataReceived, StreamEnded

        self.connections += 1
        connection = H2Connection(H2Configuration(client_side=False))
        connection.initiate_connection()
        bodies: dict[int, bytes] = {}
        with contextlib.suppress(OSError):
            writer.write(connection.data_to_send())
            while data := await reader.read(65536):
                for event in connection.receive_data(data):
                    if isinstance(event, DataReceived):
                        at = event.stream_id
                        bodies[at] = bodies.get(at, b"") + event.data
                        connection.acknowledge_received_data(event.flow_controlled_length, at)
                    elif isinstance(event, StreamEnded):
                        self.requests += 1
                        request = json.loads(bodies.pop(event.stream_id))
                        body = CHAT.answer(streaming=bool(request.get("stream")))
                        connection.send_headers(event.stream_id, [(":status", "200")])
                        connection.send_data(event.stream_id, body, end_stream=True)
                writer.write(connection.data_to_send())
                await writer.drain()
        writer.close()


@pytest.fixture
def http2_server(authority: Any) -> Iterator[Http2Server]:
    pytest.importorskip("h2")
    server = Http2Server(authority)
    yield server
    server.close()


@pytest.mark.usefixtures("no_proxies", "http_library")
def test_http2_setting(mode: str, http2_server: Http2Server, trusting: ssl.SSLContext) -> None:
    """With the setting, HTTP/2 is used."""
    settings = Connections(http2=True, tls=trusting)
    assert outcome_of(CHAT.model(http2_server.url, http_client=settings), mode).text

    assert http2_server.requests == 1


@pytest.mark.usefixtures("no_proxies")
def test_http2_requests_share_connections(
    http2_server: Http2Server, trusting: ssl.SSLContext
) -> None:
    """Forty concurrent requests use one or two connections."""

    async def main(model: ChatModel) -> list[str]:
        async with model:
            await model.acall("Hi")  # opens the connection
            answers = await asyncio.gather(*(model.acall("Hi") for _ in range(40)))
            return [answer.text for answer in answers]

    settings = Connections(http2=True, tls=trusting)
    model = CHAT.model(http2_server.url, http_client=settings)

    assert asyncio.run(main(model)) == ["one two three"] * 40
    assert http2_server.requests == 41
    assert http2_server.connections <= 2


def test_http2_requires_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the library the error names the extra; aiohttp has no HTTP/2."""
    import sys

    from chatclient.providers.http import connections

    model = CHAT.model("http://127.0.0.1:1", http_client=Connections(http2=True))
    connections._library.cache_clear()
    monkeypatch.setitem(sys.modules, "h2", None)
    with pytest.raises(UsageError, match=r"chatclient\[http2\]"):
        model.call("Hi")
    monkeypatch.setenv("CHATCLIENT_HTTP", "aiohttp")
    with pytest.raises(UsageError, match="aiohttp"):
        asyncio.run(model.acall("Hi"))


@pytest.mark.usefixtures("http_library")
def test_socks_requires_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the extra of this library, not that of the HTTP library."""
    import sys

    monkeypatch.setitem(sys.modules, "socksio", None)
    through = Connections(proxy="socks5://127.0.0.1:1")
    with pytest.raises(UsageError, match=r"pip install 'chatclient\[socks\]'"):
        CHAT.model("http://model.invalid", http_client=through).call("Hi")


def test_shared_connections_are_closed_with_model() -> None:
    """Connections opened for a model are closed with it."""
    with ChaosServer([[answer_for("call")]]) as server:
        model = OpenAIChatModel(
            "stub", api_key="k", base_url=f"{server.url}/v1", http_client=Connections()
        )
        with model:
            model.call("Hi")
            assert server.open_connections == 1
        assert settled(lambda: server.open_connections == 0)


def test_default_headers_of_a_custom_client() -> None:
    """A client made by hand has the default headers."""
    client = HttpClient("p", "http://127.0.0.1:1", {})

    assert (client.timeouts, client.retry) == (Timeouts(), RetryPolicy())


def test_a_request_may_fail_while_another_thread_imports_aiohttp(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A module that is being imported is in `sys.modules` without its classes."""
    monkeypatch.setitem(sys.modules, "aiohttp", ModuleType("aiohttp"))

    with pytest.raises(ConnectionFailedError):
        OpenAIChatModel("m", api_key="k", base_url="http://127.0.0.1:9", max_retries=0).call("x")


@pytest.mark.parametrize("through", ["client", "model"])
async def test_a_dropped_stream_that_broke_is_not_logged(
    through: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The error of its task is retrieved, because the loop would log it otherwise."""
    word = b'data: {"id": "r", "choices": [{"delta": {"content": "a"}}]}\n\n'
    with ChaosServer([[chunked(word), 0.01, CLOSE]]) as server:
        model = OpenAIChatModel("m", api_key="k", base_url=server.url, max_retries=0)
        stream: Any = model.astream("x")
        if through == "client":
            stream = ChatClient.create(model).prompt("x").astream().content()
        await anext(stream)
        await asyncio.sleep(0.1)
        del stream
        gc.collect()
        await asyncio.sleep(0)
        await model.aclose()

    assert "never retrieved" not in caplog.text


async def test_first_requests_prepare_the_library_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each preparation would take a thread, which stays."""
    prepared: list[Pools] = []

    def prepare(pools: Pools) -> None:
        prepared.append(pools)

    monkeypatch.setattr(Pools, "_prepare", prepare)
    pools = Pools("http://127.0.0.1:9", Connections())

    await asyncio.gather(*(pools.on_loop() for _ in range(8)))

    assert prepared == [pools]
    await pools.aclose()
