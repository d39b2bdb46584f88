"""Faulty servers: every fault has its documented outcome with each provider.

The table of outcomes is in docs/providers.md.
"""

import gzip
import socket
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from email.utils import formatdate
from itertools import cycle, repeat

import httpx
import pytest

from chatclient.errors import (
    ConnectionFailedError,
    InvalidRequestError,
    InvalidResponseError,
    OverloadedError,
    ProviderError,
    RateLimitedError,
    RequestTimeoutError,
    ResponseLimitError,
    StreamInterruptedError,
)
from chatclient.providers.http.limits import LIMITS
from chatclient.providers.http.request import Timeouts
from chatclient.providers.http.retry import RetryPolicy
from tests.support import converse_server
from tests.support.chaos_server import CLOSE, END, RESET, STALL, ChaosServer, Step, chunked, http
from tests.support.pairwise import pairwise
from tests.support.services import SERVICES, TEXT, Outcome, Service, outcome_of
from tests.support.waiting import settled

pytestmark = pytest.mark.exhaustive

READ_TIMEOUT = 10.0  # seconds between two pieces of an answer, also on a slow machine
STALL_TIMEOUT = 0.3  # read time-out where the server stalls before the headers
BODY_STALL_TIMEOUT = 1.0  # read time-out where it stalls after the headers
SOON = 20.0  # seconds; the upper limit for every request here

FAST_RETRY = RetryPolicy(1, 0.01, 5.0)


MODES = ["call", "acall", "stream", "astream"]


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(params=SERVICES, ids=str)
def service(request: pytest.FixtureRequest) -> Service:
    found: Service = request.param
    return found


Play = Callable[..., ChaosServer]


@pytest.fixture
def play() -> Iterator[Play]:
    """Start servers that play one script per request and are closed after the test."""
    started: list[ChaosServer] = []

    def start(*scripts: Sequence[Step]) -> ChaosServer:
        started.append(ChaosServer(scripts))
        return started[-1]

    yield start
    for server in started:
        server.close()


def is_streaming(mode: str) -> bool:
    return mode in ("stream", "astream")


def ask(service: Service, server: ChaosServer, mode: str, retry: RetryPolicy | int = 0) -> Outcome:
    """Send a request; check that it is finished soon and leaves no connection in use."""
    timeout = Timeouts(read=read_timeout_for(server.scripts))
    model = service.model(server.url, max_retries=retry, timeout=timeout)
    started = time.monotonic()
    outcome = outcome_of(model, mode)

    assert time.monotonic() - started < SOON
    assert outcome.in_use == 0
    assert settled(lambda: server.open_connections == 0)
    return outcome


def read_timeout_for(scripts: Sequence[Sequence[Step]]) -> float:
    """Return a read time-out that expires only where a script stalls."""
    silent = [script for script in scripts if STALL in script]
    if not silent:
        return READ_TIMEOUT
    return (
        BODY_STALL_TIMEOUT
        if any(has_complete_headers(script) for script in silent)
        else STALL_TIMEOUT
    )


def has_complete_headers(script: Sequence[Step]) -> bool:
    return any(isinstance(step, bytes) and b"\r\n\r\n" in step for step in script)


# --- faults ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fault:
    """A server fault and its expected outcome.

    Attributes:
        script: Returns the steps of the server for an answer and its content type.
        complete: The error of a blocking answer, or None if it succeeds.
        streamed: The error of a streamed answer, or None if it succeeds.
        retried: Whether a retry follows, for a complete and for a streamed answer.
    """

    script: Callable[[bytes, str], Sequence[Step]]
    complete: type[ProviderError] | None
    streamed: type[ProviderError] | None
    retried: tuple[bool, bool] = (False, False)


def ok(answer: bytes, kind: str) -> bytes:
    return http(answer, headers={"content-type": kind})


def first_half(answer: bytes) -> bytes:
    return answer[: answer.index(b"three")]


def error_reply(
    status: int, body: bytes = b'{"error": {"message": "no"}}', **headers: str
) -> bytes:
    return http(body, status, {name.replace("_", "-"): value for name, value in headers.items()})


BOTH, COMPLETE_ONLY = (True, True), (True, False)

FAULTS = {
    # --- before the headers are complete
    "reset before the answer": Fault(
        lambda answer, kind: [RESET], ConnectionFailedError, ConnectionFailedError, BOTH
    ),
    "closed before the answer": Fault(
        lambda answer, kind: [CLOSE], ConnectionFailedError, ConnectionFailedError, BOTH
    ),
    "stalled before the answer": Fault(
        lambda answer, kind: [STALL], RequestTimeoutError, RequestTimeoutError, BOTH
    ),
    "stalled in the headers": Fault(
        lambda answer, kind: [ok(answer, kind)[:30], STALL],
        RequestTimeoutError,
        RequestTimeoutError,
        BOTH,
    ),
    "not HTTP": Fault(
        lambda answer, kind: [b"SSH-2.0-OpenSSH_9.6\r\n", CLOSE],
        ConnectionFailedError,
        ConnectionFailedError,
        BOTH,
    ),
    # --- in the body
    "reset in the body": Fault(
        lambda answer, kind: [
            http(first_half(answer), headers={"content-type": kind}, more=1000),
            RESET,
        ],
        ConnectionFailedError,
        StreamInterruptedError,
        COMPLETE_ONLY,
    ),
    "closed in the body": Fault(
        lambda answer, kind: [
            http(first_half(answer), headers={"content-type": kind}, more=1000),
            CLOSE,
        ],
        ConnectionFailedError,
        StreamInterruptedError,
        COMPLETE_ONLY,
    ),
    "closed in a chunk": Fault(
        lambda answer, kind: [chunked(first_half(answer))[:-20], CLOSE],
        ConnectionFailedError,
        StreamInterruptedError,
        COMPLETE_ONLY,
    ),
    "stalled in the body": Fault(
        lambda answer, kind: [chunked(first_half(answer)), STALL],
        RequestTimeoutError,
        StreamInterruptedError,
        COMPLETE_ONLY,
    ),
    "reset after the complete answer": Fault(
        lambda answer, kind: [chunked(answer), RESET], ConnectionFailedError, None, COMPLETE_ONLY
    ),
    "closed after the complete answer": Fault(
        lambda answer, kind: [chunked(answer), CLOSE], ConnectionFailedError, None, COMPLETE_ONLY
    ),
    "stalled after the complete answer": Fault(
        lambda answer, kind: [chunked(answer), STALL], RequestTimeoutError, None, COMPLETE_ONLY
    ),
    "ended early without an error": Fault(
        lambda answer, kind: [chunked(first_half(answer)), END],
        InvalidResponseError,
        StreamInterruptedError,
    ),
    "reset before the first content": Fault(
        lambda answer, kind: [chunked(), RESET], ConnectionFailedError, StreamInterruptedError, BOTH
    ),
    "stalled before the first content": Fault(
        lambda answer, kind: [chunked(), STALL], RequestTimeoutError, StreamInterruptedError, BOTH
    ),
    # --- invalid bodies
    "invalid JSON": Fault(
        lambda answer, kind: [ok(answer.replace(b'{"', b"{'"), kind)],
        InvalidResponseError,
        InvalidResponseError,
    ),
    "missing brace in JSON": Fault(
        lambda answer, kind: [ok(with_broken_json(answer), kind)],
        InvalidResponseError,
        InvalidResponseError,
    ),
    "JSON of another shape": Fault(
        lambda answer, kind: [ok(b'data: [1]\n\n{"a": 1}\n\n', kind)],
        InvalidResponseError,
        InvalidResponseError,
    ),
    "empty body": Fault(
        lambda answer, kind: [ok(b"", kind)], InvalidResponseError, InvalidResponseError
    ),
    "204 No Content": Fault(
        lambda answer, kind: [b"HTTP/1.1 204 No Content\r\n\r\n"],
        InvalidResponseError,
        InvalidResponseError,
    ),
    "HTML page": Fault(
        lambda answer, kind: [ok(b"<html>\n<h1>Sign in</h1>\n</html>\n", "text/html")],
        InvalidResponseError,
        InvalidResponseError,
    ),
    "redirect": Fault(
        lambda answer, kind: [error_reply(302, b"", location="http://127.0.0.1:1/")],
        InvalidRequestError,
        InvalidRequestError,
    ),
    # --- encodings
    "unrequested brotli": Fault(
        lambda answer, kind: [http(b"\x0b\x02\x80", headers={"content-encoding": "br"})],
        InvalidResponseError,
        InvalidResponseError,
    ),
    "gzip header without gzip": Fault(
        lambda answer, kind: [http(answer, headers={"content-encoding": "gzip"})],
        InvalidResponseError,
        InvalidResponseError,
    ),
    "truncated gzip": Fault(
        lambda answer, kind: [
            http(first_half_of(gzip.compress(answer)), headers={"content-encoding": "gzip"})
        ],
        InvalidResponseError,
        InvalidResponseError,
    ),
    # --- error statuses
    "500": Fault(lambda answer, kind: [error_reply(500)], OverloadedError, OverloadedError, BOTH),
    "502 with an HTML page": Fault(
        lambda answer, kind: [error_reply(502, b"<html>Bad gateway</html>")],
        OverloadedError,
        OverloadedError,
        BOTH,
    ),
    "503 without a body": Fault(
        lambda answer, kind: [error_reply(503, b"")], OverloadedError, OverloadedError, BOTH
    ),
    "529": Fault(lambda answer, kind: [error_reply(529)], OverloadedError, OverloadedError, BOTH),
    "501": Fault(lambda answer, kind: [error_reply(501)], OverloadedError, OverloadedError),
    "429, reset in the body": Fault(
        lambda answer, kind: [http(b'{"err', 429, more=100), RESET],
        RateLimitedError,
        RateLimitedError,
        BOTH,
    ),
    "429, stalled in the body": Fault(
        lambda answer, kind: [http(b'{"err', 429, more=100), STALL],
        RateLimitedError,
        RateLimitedError,
        BOTH,
    ),
    "400 without an end": Fault(
        lambda answer, kind: [http(b"x" * 3_000_000, 400, more=100), STALL],
        InvalidRequestError,
        InvalidRequestError,
    ),
    # --- unusual but valid answers
    "gzip": Fault(
        lambda answer, kind: [http(gzip.compress(answer), headers={"content-encoding": "gzip"})],
        None,
        None,
    ),
    "deflate": Fault(
        lambda answer, kind: [http(zlib.compress(answer), headers={"content-encoding": "deflate"})],
        None,
        None,
    ),
    "wrong content type": Fault(lambda answer, kind: [ok(answer, "text/html")], None, None),
    "byte by byte": Fault(
        lambda answer, kind: [chunked(*(bytes([byte]) for byte in answer)), END], None, None
    ),
    "slow, but not too slow": Fault(
        lambda answer, kind: [0.05, chunked(first_half(answer)), 0.05, rest(answer), END],
        None,
        None,
    ),
    "103 Early Hints first": Fault(
        lambda answer, kind: [b"HTTP/1.1 103 Early Hints\r\n\r\n", ok(answer, kind)], None, None
    ),
    "HTTP/1.0": Fault(lambda answer, kind: [b"HTTP/1.0 200 OK\r\n\r\n", answer, CLOSE], None, None),
}


def with_broken_json(answer: bytes) -> bytes:
    """Return *answer* without the brace that opens the object with `two`."""
    at = answer.rindex(b"{", 0, answer.index(b"two"))
    return answer[:at] + answer[at + 1 :]


def first_half_of(body: bytes) -> bytes:
    return body[: len(body) // 2]


def rest(answer: bytes) -> bytes:
    piece = answer.removeprefix(first_half(answer))
    return b"%x\r\n%b\r\n" % (len(piece), piece)


def expect(name: str, service: Service, mode: str, play: Play) -> None:
    """Send a request to a server with the fault *name* and check the outcome."""
    fault, streaming = FAULTS[name], is_streaming(mode)
    answer = service.answer(streaming=streaming)
    server = play(fault.script(answer, service.stream_type if streaming else "application/json"))
    outcome = ask(service, server, mode, FAST_RETRY)

    expected = fault.streamed if streaming else fault.complete
    if "complete answer" in name and streaming and service.name == "gemini":
        expected = StreamInterruptedError  # the API does not mark the last chunk
    if expected is None:
        assert (outcome.error, outcome.text) == (None, TEXT)
    else:
        assert isinstance(outcome.error, expected), repr(outcome.error)
        assert "a-key-of-some-length" not in repr(outcome.error)
    if expected is StreamInterruptedError:
        received = "one two three" if "complete answer" in name else "one two"
        assert outcome.text.strip() == ("" if "first content" in name else received)
    assert len(server.requests) == 1 + fault.retried[streaming]


@pytest.mark.parametrize(("name", "service", "mode"), pairwise([*FAULTS], SERVICES, MODES), ids=str)
def test_fault_outcome(name: str, service: Service, mode: str, play: Play) -> None:
    """Each fault gives its error, or the answer; content streamed before it is delivered."""
    expect(name, service, mode, play)


@pytest.mark.parametrize(
    ("name", "library", "mode"),
    [
        *zip(FAULTS, repeat("httpx"), cycle(MODES)),
        *zip(FAULTS, repeat("aiohttp"), cycle(["acall", "astream"])),
    ],
)
def test_fault_outcome_over_other_libraries(
    name: str, library: str, mode: str, play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The outcomes are the same over the HTTP libraries that are not the default."""
    pytest.importorskip({"aiohttp": "httpx_aiohttp"}.get(library, library))
    monkeypatch.setenv("CHATCLIENT_HTTP", library)
    expect(name, SERVICES[0], mode, play)


RETRIED = [name for name, fault in FAULTS.items() if fault.retried == BOTH]
RETRIED_COMPLETE = [name for name, fault in FAULTS.items() if fault.retried == COMPLETE_ONLY]


@pytest.mark.parametrize(
    ("name", "service", "mode"),
    [*pairwise(RETRIED, SERVICES, MODES), *pairwise(RETRIED_COMPLETE, SERVICES, ["call", "acall"])],
    ids=str,
)
def test_transient_failure_is_retried(name: str, service: Service, mode: str, play: Play) -> None:
    """A retryable fault followed by a good answer returns that answer after one retry."""
    fault, streaming = FAULTS[name], is_streaming(mode)
    kind = service.stream_type if streaming else "application/json"
    answer = service.answer(streaming=streaming)
    server = play(fault.script(answer, kind), [ok(answer, kind)])
    outcome = ask(service, server, mode, FAST_RETRY)

    assert (outcome.error, outcome.text) == (None, TEXT)
    assert len(server.requests) == 2


SSE_COMMENT = b"3\r\n:\n\n\r\n"  # a chunk that holds an SSE comment


@pytest.mark.parametrize(
    ("mode", "rest"),
    [
        ("stream", 300 * [0.1, SSE_COMMENT]),
        ("astream", 300 * [0.1, SSE_COMMENT]),
        ("astream", [STALL]),
    ],
)
def test_stream_ends_with_the_final_event(mode: str, rest: Sequence[Step], play: Play) -> None:
    """After the final event the stream ends without waiting for the server to close."""
    server = play([chunked(SERVICES[0].answer(streaming=True)), *rest])
    model = SERVICES[0].model(server.url, timeout=Timeouts(read=2 * STALL))
    started = time.monotonic()
    outcome = outcome_of(model, mode)

    assert (outcome.error, outcome.text, outcome.in_use) == (None, TEXT, 0)
    assert time.monotonic() - started < SOON
    assert settled(lambda: server.open_connections == 0)


ERRORS = {
    "chat": b'data: {"id":"c","choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
    b'data: {"error":{"message":"busy","code":503}}\n\n',
    "responses": b'data: {"type":"response.created","response":{"id":"r"}}\n\n'
    b'data: {"type":"error","code":"server_error","message":"busy"}\n\n',
    "anthropic": b'data: {"type":"message_start","message":{"id":"m","role":"assistant"}}\n\n'
    b'data: {"type":"error","error":{"type":"overloaded_error","message":"busy"}}\n\n',
    "gemini": b'data: {"error":{"code":503,"message":"busy","status":"UNAVAILABLE"}}\r\n\r\n',
    "ollama": b'{"error":"busy"}\n',
    "bedrock": converse_server.exception("serviceUnavailableException", "busy"),
}
"""Error events of each service in a stream with status 200."""


def early_error(service: Service, *, streaming: bool) -> bytes:
    if streaming:
        return ok(ERRORS[service.name], service.stream_type)
    return ok(b'{"error": {"message": "busy", "code": 503}}', "application/json")


@pytest.mark.feature("model-retry-passing-failures", "lc4j-retries-back-off-not")
def test_error_event_before_content_is_retried(service: Service, mode: str, play: Play) -> None:
    """An overload reported with status 200 before any content is retried."""
    streaming = is_streaming(mode)
    answer = service.answer(streaming=streaming)
    kind = service.stream_type if streaming else "application/json"
    server = play([early_error(service, streaming=streaming)], [ok(answer, kind)])
    outcome = ask(service, server, mode, FAST_RETRY)

    assert (outcome.error, outcome.text) == (None, TEXT)
    assert len(server.requests) == 2


def test_error_event_is_raised_after_retries(service: Service, mode: str, play: Play) -> None:
    """When retries are exhausted, the error with the service's message is raised."""
    server = play([early_error(service, streaming=is_streaming(mode))])
    outcome = ask(service, server, mode, FAST_RETRY)

    assert isinstance(outcome.error, OverloadedError)
    assert "busy" in str(outcome.error)
    assert len(server.requests) == 2


@pytest.mark.parametrize("mode", ["stream", "astream"])
def test_error_event_after_content_is_raised(service: Service, mode: str, play: Play) -> None:
    """A stream that has delivered content is not retried; the error is raised."""
    beginning = service.stream(TEXT).partition(b"three")[0]
    beginning = (
        beginning[
            : max(beginning.rfind(b"\n\n"), beginning.rfind(b"\r\n\r\n"), beginning.rfind(b"\n"))
            + 1
        ]
        + b"\n"
    )
    if service.name == "bedrock":
        events = converse_server.events_of(converse_server.response(TEXT))
        beginning = b"".join(converse_server.event(*each) for each in events[:3])
    server = play([ok(beginning + ERRORS[service.name], service.stream_type)])
    outcome = ask(service, server, mode, FAST_RETRY)

    assert isinstance(outcome.error, OverloadedError)
    assert outcome.text.strip() == "one two"
    assert len(server.requests) == 1


@pytest.mark.parametrize("form", [RESET, CLOSE, STALL])
@pytest.mark.parametrize("mode", ["stream", "astream"])
def test_fault_after_complete_stream_is_ignored(
    form: Step, service: Service, mode: str, play: Play
) -> None:
    """After the final event a fault is ignored; Gemini streams have no final event."""
    server = play([chunked(service.stream(TEXT)), form])
    outcome = ask(service, server, mode, FAST_RETRY)

    assert outcome.text == TEXT
    assert isinstance(outcome.error, StreamInterruptedError) is (service.name == "gemini")
    assert len(server.requests) == 1


KEY = b"a-key-of-some-length"
QUOTING: dict[str, Sequence[Step]] = {
    "in invalid JSON": [http(b"What is " + KEY + b"?")],
    "in invalid UTF-8": [http(b'{"what": "\xff ' + KEY + b'"}')],
    "in an error with status 200": [
        http(b'{"error": {"message": "no ' + KEY + b'", "code": 503}}')
    ],
    "in an error response": [http(b'{"error": {"message": "no ' + KEY + b'"}}', 401)],
    "instead of HTTP": [KEY + b"\r\n\r\n", CLOSE],
    "instead of a header": [b"HTTP/1.1 200 OK\r\n" + KEY + b"\r\n\r\n", CLOSE],
    "as the request id": [http(b"{}", 500, {"x-request-id": KEY.decode()})],
}


def chain_of(error: BaseException | None) -> Iterator[BaseException]:
    if error is not None:
        yield error
        yield from chain_of(error.__cause__)
        yield from chain_of(error.__context__)


@pytest.mark.parametrize(
    ("form", "library", "service", "mode"),
    [
        *pairwise([*QUOTING], ["httpx"], SERVICES, MODES),
        *pairwise([*QUOTING], ["aiohttp"], SERVICES, ["acall", "astream"]),
    ],
    ids=str,
)
def test_echoed_key_is_masked_in_errors(
    form: str,
    library: str,
    service: Service,
    mode: str,
    play: Play,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An API key echoed by the server is in no error, cause or context."""
    pytest.importorskip({"aiohttp": "httpx_aiohttp"}.get(library, library))
    monkeypatch.setenv("CHATCLIENT_HTTP", library)
    outcome = ask(service, play(QUOTING[form]), mode)

    assert isinstance(outcome.error, ProviderError)
    for error in chain_of(outcome.error):
        assert KEY.decode() not in f"{error!r} {error.args} {vars(error)}"


def test_custom_client_error_hides_the_url(play: Play) -> None:
    """Errors of a given HTTP client contain neither the URL nor its query."""
    server = play([RESET])
    url = f"{server.url}?code={KEY.decode()}"
    with httpx.Client() as client, pytest.raises(ConnectionFailedError) as caught:
        SERVICES[0].model(url, http_client=client).call("Hi")

    for error in chain_of(caught.value):
        assert KEY.decode() not in f"{error!r} {vars(error)}"


def test_connection_refused(service: Service, mode: str) -> None:
    """A refused connection raises an error that names the address."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
    outcome = outcome_of(service.model(url), mode)

    assert isinstance(outcome.error, ConnectionFailedError)
    assert url in str(outcome.error)
    assert outcome.in_use == 0


@pytest.mark.parametrize(
    ("service", "mode"), list(zip(SERVICES, cycle(["call", "acall"]), strict=False)), ids=str
)
def test_large_complete_answer(service: Service, mode: str, play: Play) -> None:
    """A blocking answer may be one line of 64 MB."""
    text = "x" * (LIMITS.event_bytes + 1)
    outcome = outcome_of(service.model(play([http(service.complete(text))]).url), mode)

    assert len(outcome.text) == len(text)


@pytest.mark.parametrize(
    ("service", "mode"), list(zip(SERVICES, cycle(["stream", "astream"]), strict=False)), ids=str
)
def test_event_without_end_is_limited(service: Service, mode: str, play: Play) -> None:
    """A stream event beyond the size limit raises `ResponseLimitError`."""
    text = "x" * (LIMITS.event_bytes + 1)
    line = service.stream("one two").partition(b"two")[0] + text.encode()
    if service.name == "bedrock":  # tells the size of an event before it
        line = converse_server.event("contentBlockDelta", {"delta": {"text": text}})
    outcome = outcome_of(service.model(play([chunked(line), END]).url), mode)

    assert type(outcome.error) is ResponseLimitError
    assert "larger than" in str(outcome.error) or "longer than" in str(outcome.error)
    assert outcome.in_use == 0


# --- Retry-After ----------------------------------------------------------------------------


def date_in(seconds: float) -> str:
    return formatdate(time.time() + seconds, usegmt=True)


WAITS: dict[str, tuple[Callable[[], dict[str, str]], float, float]] = {
    # headers of the server, and earliest and latest retry in seconds
    "seconds": (lambda: {"retry-after": "1"}, 1.0, 4.5),
    "a fraction": (lambda: {"retry-after": "0.3"}, 0.3, 4.5),
    "milliseconds": (lambda: {"retry-after-ms": "300", "retry-after": "99"}, 0.3, 4.5),
    "zero milliseconds": (lambda: {"retry-after-ms": "0", "retry-after": "0.3"}, 0.3, 4.5),
    "a date": (lambda: {"retry-after": date_in(2)}, 0.2, 4.5),
    "a date that has passed": (lambda: {"retry-after": date_in(-99)}, 0.0, 4.5),
    "zero": (lambda: {"retry-after": "0"}, 0.0, 4.5),
    "negative": (lambda: {"retry-after": "-5"}, 0.0, 4.5),
    "garbage": (lambda: {"retry-after": "soon, 7 or so"}, 0.0, 4.5),
    "not a number": (lambda: {"retry-after": "nan"}, 0.0, 4.5),
    "invalid date": (lambda: {"retry-after": "Fri, 99 Foo 99999 99:99:99 GMT"}, 0.0, 4.5),
    "no header": (dict, 0.0, 4.5),
}


@pytest.mark.parametrize(("form", "service", "mode"), pairwise([*WAITS], SERVICES, MODES), ids=str)
def test_retry_after_is_respected(form: str, service: Service, mode: str, play: Play) -> None:
    """Every form of Retry-After is respected; an unusable one gives a short wait."""
    headers, earliest, latest = WAITS[form]
    streaming = is_streaming(mode)
    kind = service.stream_type if streaming else "application/json"
    again = ok(service.answer(streaming=streaming), kind)
    server = play([http(b"{}", 429, headers())], [again])
    outcome = ask(service, server, mode, FAST_RETRY)

    first, second = server.requests
    assert outcome.text == TEXT
    assert earliest - 0.02 <= second.at - first.at <= latest


TOO_LONG: dict[str, tuple[Callable[[], dict[str, str]], float]] = {
    "seconds": (lambda: {"retry-after": "6"}, 6),
    "milliseconds": (lambda: {"retry-after-ms": "5500"}, 5.5),
    "date": (lambda: {"retry-after": date_in(3600)}, 3600),
    "infinite": (lambda: {"retry-after": "1e300"}, 1e300),
}


@pytest.mark.parametrize(
    ("form", "status", "service", "mode"),
    pairwise([*TOO_LONG], [429, 503], SERVICES, MODES),
    ids=str,
)
def test_long_retry_after_raises(
    form: str,
    status: int,
    service: Service,
    mode: str,
    play: Play,
) -> None:
    """A Retry-After above the maximum delay raises immediately with `retry_after`."""
    header, seconds = TOO_LONG[form]
    server = play([http(b"{}", status, header())])
    outcome = ask(service, server, mode, FAST_RETRY)

    assert isinstance(outcome.error, RateLimitedError if status == 429 else OverloadedError)
    assert outcome.error.retry_after == pytest.approx(seconds, abs=2)
    assert len(server.requests) == 1
