"""Servers that break in every way, for each provider: the documented outcome, every time.

The table of outcomes is in docs/providers.md.
"""

import gzip
import socket
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from email.utils import formatdate

import httpx
import pytest
from chaos_server import CLOSE, END, RESET, STALL, ChaosServer, Step, chunked, http
from services import SERVICES, TEXT, Outcome, Service, outcome_of
from waiting import settled

from chatclient.errors import (
    ConnectionFailedError,
    InvalidRequestError,
    InvalidResponseError,
    OverloadedError,
    ProviderError,
    RateLimitedError,
    RequestTimeoutError,
    StreamInterruptedError,
)
from chatclient.providers.http import RetryPolicy, Timeouts
from chatclient.providers.sse import LARGEST_EVENT

pytestmark = pytest.mark.exhaustive

PATIENCE = 10.0  # seconds between two pieces of an answer, however slow the machine is
IMPATIENCE = 0.3  # the same where the server falls silent before it said anything
SHORT_PATIENCE = 1.0  # the same where it says something before that
SOON = 20.0  # seconds that nothing here may take

AT_ONCE = RetryPolicy(1, 0.01, 5.0)


@pytest.fixture(params=["call", "acall", "stream", "astream"])
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
    """Start servers that play one script per request; all are gone after the test."""
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
    """Ask, and make sure that it took no longer than it may and left no connection in use."""
    timeout = Timeouts(read=patience_for(server.scripts))
    model = service.model(server.url, max_retries=retry, timeout=timeout)
    started = time.monotonic()
    outcome = outcome_of(model, mode)

    assert time.monotonic() - started < SOON
    assert outcome.in_use == 0
    assert settled(lambda: server.open_connections == 0)
    return outcome


def patience_for(scripts: Sequence[Sequence[Step]]) -> float:
    """Return a time without a word that comes only where a script wants it to."""
    silent = [script for script in scripts if STALL in script]
    if not silent:
        return PATIENCE
    return SHORT_PATIENCE if any(whole_head(script) for script in silent) else IMPATIENCE


def whole_head(script: Sequence[Step]) -> bool:
    return any(isinstance(step, bytes) and b"\r\n\r\n" in step for step in script)


# --- what breaks ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Fault:
    """How a server breaks, and what comes of it.

    Attributes:
        script: What it does to a request for the given answer, whose content type is given.
        whole: What a whole answer comes to: an error, or None for the answer.
        streamed: The same of a stream.
        asked_again: Whether a retry follows where one is allowed; a stream that has begun has none.
    """

    script: Callable[[bytes, str], Sequence[Step]]
    whole: type[ProviderError] | None
    streamed: type[ProviderError] | None
    asked_again: tuple[bool, bool] = (False, False)


def said(answer: bytes, kind: str) -> bytes:
    return http(answer, headers={"content-type": kind})


def half(answer: bytes) -> bytes:
    return answer[: answer.index(b"three")]


def refused(status: int, body: bytes = b'{"error": {"message": "no"}}', **headers: str) -> bytes:
    return http(body, status, {name.replace("_", "-"): value for name, value in headers.items()})


BOTH, WHOLE_ONLY = (True, True), (True, False)

FAULTS = {
    # --- before the answer begins
    "reset before the answer": Fault(
        lambda answer, kind: [RESET], ConnectionFailedError, ConnectionFailedError, BOTH
    ),
    "hung up before the answer": Fault(
        lambda answer, kind: [CLOSE], ConnectionFailedError, ConnectionFailedError, BOTH
    ),
    "silent": Fault(lambda answer, kind: [STALL], RequestTimeoutError, RequestTimeoutError, BOTH),
    "half the headers, then silent": Fault(
        lambda answer, kind: [said(answer, kind)[:30], STALL],
        RequestTimeoutError,
        RequestTimeoutError,
        BOTH,
    ),
    "no HTTP": Fault(
        lambda answer, kind: [b"SSH-2.0-OpenSSH_9.6\r\n", CLOSE],
        ConnectionFailedError,
        ConnectionFailedError,
        BOTH,
    ),
    # --- in the middle
    "reset in the body": Fault(
        lambda answer, kind: [
            http(half(answer), headers={"content-type": kind}, more=1000),
            RESET,
        ],
        ConnectionFailedError,
        StreamInterruptedError,
        WHOLE_ONLY,
    ),
    "hung up in the body": Fault(
        lambda answer, kind: [
            http(half(answer), headers={"content-type": kind}, more=1000),
            CLOSE,
        ],
        ConnectionFailedError,
        StreamInterruptedError,
        WHOLE_ONLY,
    ),
    "half a chunk": Fault(
        lambda answer, kind: [chunked(half(answer))[:-20], CLOSE],
        ConnectionFailedError,
        StreamInterruptedError,
        WHOLE_ONLY,
    ),
    "silent in the body": Fault(
        lambda answer, kind: [chunked(half(answer)), STALL],
        RequestTimeoutError,
        StreamInterruptedError,
        WHOLE_ONLY,
    ),
    "reset when all was said": Fault(
        lambda answer, kind: [chunked(answer), RESET], ConnectionFailedError, None, WHOLE_ONLY
    ),
    "hung up when all was said": Fault(
        lambda answer, kind: [chunked(answer), CLOSE], ConnectionFailedError, None, WHOLE_ONLY
    ),
    "silent when all was said": Fault(
        lambda answer, kind: [chunked(answer), STALL], RequestTimeoutError, None, WHOLE_ONLY
    ),
    "cut short without a word": Fault(
        lambda answer, kind: [chunked(half(answer)), END],
        InvalidResponseError,
        StreamInterruptedError,
    ),
    "reset before the first word": Fault(
        lambda answer, kind: [chunked(), RESET], ConnectionFailedError, StreamInterruptedError, BOTH
    ),
    "silent before the first word": Fault(
        lambda answer, kind: [chunked(), STALL], RequestTimeoutError, StreamInterruptedError, BOTH
    ),
    # --- something else
    "no JSON": Fault(
        lambda answer, kind: [said(answer.replace(b'{"', b"{'"), kind)],
        InvalidResponseError,
        InvalidResponseError,
    ),
    "JSON broken in the middle": Fault(
        lambda answer, kind: [said(broken(answer), kind)],
        InvalidResponseError,
        InvalidResponseError,
    ),
    "JSON of another shape": Fault(
        lambda answer, kind: [said(b'data: [1]\n\n{"a": 1}\n\n', kind)],
        InvalidResponseError,
        InvalidResponseError,
    ),
    "nothing": Fault(
        lambda answer, kind: [said(b"", kind)], InvalidResponseError, InvalidResponseError
    ),
    "no content": Fault(
        lambda answer, kind: [b"HTTP/1.1 204 No Content\r\n\r\n"],
        InvalidResponseError,
        InvalidResponseError,
    ),
    "a page": Fault(
        lambda answer, kind: [said(b"<html>\n<h1>Sign in</h1>\n</html>\n", "text/html")],
        InvalidResponseError,
        InvalidResponseError,
    ),
    "elsewhere": Fault(
        lambda answer, kind: [refused(302, b"", location="http://127.0.0.1:1/")],
        InvalidRequestError,
        InvalidRequestError,
    ),
    # --- encodings
    "brotli, which was not asked for": Fault(
        lambda answer, kind: [http(b"\x0b\x02\x80", headers={"content-encoding": "br"})],
        InvalidResponseError,
        InvalidResponseError,
    ),
    "no gzip, as it says": Fault(
        lambda answer, kind: [http(answer, headers={"content-encoding": "gzip"})],
        InvalidResponseError,
        InvalidResponseError,
    ),
    "half of a gzip": Fault(
        lambda answer, kind: [
            http(half_of(gzip.compress(answer)), headers={"content-encoding": "gzip"})
        ],
        InvalidResponseError,
        InvalidResponseError,
    ),
    # --- refusals
    "500": Fault(lambda answer, kind: [refused(500)], OverloadedError, OverloadedError, BOTH),
    "502 with a page": Fault(
        lambda answer, kind: [refused(502, b"<html>Bad gateway</html>")],
        OverloadedError,
        OverloadedError,
        BOTH,
    ),
    "503 without a body": Fault(
        lambda answer, kind: [refused(503, b"")], OverloadedError, OverloadedError, BOTH
    ),
    "529": Fault(lambda answer, kind: [refused(529)], OverloadedError, OverloadedError, BOTH),
    "501": Fault(lambda answer, kind: [refused(501)], OverloadedError, OverloadedError),
    "429 with half a body": Fault(
        lambda answer, kind: [http(b'{"err', 429, more=100), RESET],
        RateLimitedError,
        RateLimitedError,
        BOTH,
    ),
    "429, then silent": Fault(
        lambda answer, kind: [http(b'{"err', 429, more=100), STALL],
        RateLimitedError,
        RateLimitedError,
        BOTH,
    ),
    "400 that never ends": Fault(
        lambda answer, kind: [http(b"x" * 3_000_000, 400, more=100), STALL],
        InvalidRequestError,
        InvalidRequestError,
    ),
    # --- odd, but an answer
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
    "wrong content type": Fault(lambda answer, kind: [said(answer, "text/html")], None, None),
    "byte by byte": Fault(
        lambda answer, kind: [chunked(*(bytes([byte]) for byte in answer)), END], None, None
    ),
    "slow, but not too slow": Fault(
        lambda answer, kind: [0.05, chunked(half(answer)), 0.05, rest(answer), END], None, None
    ),
    "hints first": Fault(
        lambda answer, kind: [b"HTTP/1.1 103 Early Hints\r\n\r\n", said(answer, kind)], None, None
    ),
    "HTTP/1.0": Fault(lambda answer, kind: [b"HTTP/1.0 200 OK\r\n\r\n", answer, CLOSE], None, None),
}


def broken(answer: bytes) -> bytes:
    """Return *answer* with a brace left out where it says `two`."""
    at = answer.rindex(b"{", 0, answer.index(b"two"))
    return answer[:at] + answer[at + 1 :]


def half_of(body: bytes) -> bytes:
    return body[: len(body) // 2]


def rest(answer: bytes) -> bytes:
    piece = answer.removeprefix(half(answer))
    return b"%x\r\n%b\r\n" % (len(piece), piece)


def expect(name: str, service: Service, mode: str, play: Play) -> None:
    """Let a server break again and again, and look at what comes of it."""
    fault, streaming = FAULTS[name], is_streaming(mode)
    answer = service.answer(streaming=streaming)
    server = play(fault.script(answer, service.stream_type if streaming else "application/json"))
    outcome = ask(service, server, mode, AT_ONCE)

    expected = fault.streamed if streaming else fault.whole
    if "all was said" in name and streaming and service.name == "gemini":
        expected = StreamInterruptedError  # the API does not say which piece is the last
    if expected is None:
        assert (outcome.error, outcome.text) == (None, TEXT)
    else:
        assert isinstance(outcome.error, expected), repr(outcome.error)
        assert "a-key-of-some-length" not in repr(outcome.error)
    if expected is StreamInterruptedError:
        came = "one two three" if "all was said" in name else "one two"
        assert outcome.text.strip() == ("" if "first word" in name else came)
    assert len(server.requests) == 1 + fault.asked_again[streaming]


@pytest.mark.parametrize("name", FAULTS)
def test_whatever_breaks_has_its_outcome(
    name: str, service: Service, mode: str, play: Play
) -> None:
    """The error of the table, or the answer; what had arrived of a stream was handed out."""
    expect(name, service, mode, play)


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("library", ["httpx", "aiohttp"])
def test_it_is_the_same_over_each_library(
    name: str, library: str, mode: str, play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table holds over the HTTP libraries that are not used by default as well."""
    pytest.importorskip({"aiohttp": "httpx_aiohttp"}.get(library, library))
    if library == "aiohttp" and mode in ("call", "stream"):
        pytest.skip("aiohttp carries asynchronous requests only")
    monkeypatch.setenv("CHATCLIENT_HTTP", library)
    expect(name, SERVICES[0], mode, play)


@pytest.mark.parametrize("name", [name for name, fault in FAULTS.items() if any(fault.asked_again)])
def test_what_passes_is_asked_again(name: str, service: Service, mode: str, play: Play) -> None:
    """Where a retry is of use, its answer is the answer."""
    fault, streaming = FAULTS[name], is_streaming(mode)
    if not fault.asked_again[streaming]:
        pytest.skip("a stream that has begun is not begun again")
    kind = service.stream_type if streaming else "application/json"
    answer = service.answer(streaming=streaming)
    server = play(fault.script(answer, kind), [said(answer, kind)])
    outcome = ask(service, server, mode, AT_ONCE)

    assert (outcome.error, outcome.text) == (None, TEXT)
    assert len(server.requests) == 2


SIGN_OF_LIFE = b"3\r\n:\n\n\r\n"  # a comment, which is one piece of the body


@pytest.mark.parametrize(
    ("mode", "rest"),
    [
        ("stream", 300 * [0.1, SIGN_OF_LIFE]),
        ("astream", 300 * [0.1, SIGN_OF_LIFE]),
        ("astream", [STALL]),
    ],
)
def test_a_connection_that_stays_open_when_all_was_said_is_left(
    mode: str, rest: Sequence[Step], play: Play
) -> None:
    """The answer is whole, and what there is to do with it does not wait for the server."""
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
}
"""How each service ends a stream that it has begun with status 200."""


def told_first(service: Service, *, streaming: bool) -> bytes:
    if streaming:
        return said(ERRORS[service.name], service.stream_type)
    return said(b'{"error": {"message": "busy", "code": 503}}', "application/json")


def test_an_error_before_the_first_word_is_asked_again(
    service: Service, mode: str, play: Play
) -> None:
    """Services that are overloaded may say so in an answer that had begun well."""
    streaming = is_streaming(mode)
    answer = service.answer(streaming=streaming)
    kind = service.stream_type if streaming else "application/json"
    server = play([told_first(service, streaming=streaming)], [said(answer, kind)])
    outcome = ask(service, server, mode, AT_ONCE)

    assert (outcome.error, outcome.text) == (None, TEXT)
    assert len(server.requests) == 2


def test_an_error_before_the_first_word_is_raised_in_the_end(
    service: Service, mode: str, play: Play
) -> None:
    """It is the service's own, and quotes no key."""
    server = play([told_first(service, streaming=is_streaming(mode))])
    outcome = ask(service, server, mode, AT_ONCE)

    assert isinstance(outcome.error, OverloadedError)
    assert "busy" in str(outcome.error)
    assert len(server.requests) == 2


@pytest.mark.parametrize("mode", ["stream", "astream"])
def test_an_error_after_the_first_word_is_raised(service: Service, mode: str, play: Play) -> None:
    """What was said cannot be taken back."""
    begun = service.stream(TEXT).partition(b"three")[0]
    begun = begun[: max(begun.rfind(b"\n\n"), begun.rfind(b"\r\n\r\n"), begun.rfind(b"\n")) + 1]
    server = play([said(begun + b"\n" + ERRORS[service.name], service.stream_type)])
    outcome = ask(service, server, mode, AT_ONCE)

    assert isinstance(outcome.error, OverloadedError)
    assert outcome.text.strip() == "one two"
    assert len(server.requests) == 1


@pytest.mark.parametrize("how", [RESET, CLOSE, STALL])
@pytest.mark.parametrize("mode", ["stream", "astream"])
def test_what_breaks_behind_a_streamed_answer_takes_nothing_from_it(
    how: Step, service: Service, mode: str, play: Play
) -> None:
    """The last event says that the answer is whole; only Gemini's streams have none."""
    server = play([chunked(service.stream(TEXT)), how])
    outcome = ask(service, server, mode, AT_ONCE)

    assert outcome.text == TEXT
    assert isinstance(outcome.error, StreamInterruptedError) is (service.name == "gemini")
    assert len(server.requests) == 1


KEY = b"a-key-of-some-length"
QUOTING: dict[str, Sequence[Step]] = {
    "as no JSON": [http(b"What is " + KEY + b"?")],
    "as no text": [http(b'{"what": "\xff ' + KEY + b'"}')],
    "as an error": [http(b'{"error": {"message": "no ' + KEY + b'", "code": 503}}')],
    "in a refusal": [http(b'{"error": {"message": "no ' + KEY + b'"}}', 401)],
    "as no HTTP": [KEY + b"\r\n\r\n", CLOSE],
    "as no header": [b"HTTP/1.1 200 OK\r\n" + KEY + b"\r\n\r\n", CLOSE],
    "as the request's id": [http(b"{}", 500, {"x-request-id": KEY.decode()})],
}


def chain_of(error: BaseException | None) -> Iterator[BaseException]:
    if error is not None:
        yield error
        yield from chain_of(error.__cause__)
        yield from chain_of(error.__context__)


@pytest.mark.parametrize("how", QUOTING)
@pytest.mark.parametrize("library", ["httpx", "aiohttp"])
def test_a_key_that_is_quoted_comes_out_nowhere(
    how: str,
    library: str,
    service: Service,
    mode: str,
    play: Play,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not in the error, nor in what it was caused by, nor where that keeps what was read."""
    pytest.importorskip({"aiohttp": "httpx_aiohttp"}.get(library, library))
    monkeypatch.setenv("CHATCLIENT_HTTP", library)
    outcome = ask(service, play(QUOTING[how]), mode)

    assert isinstance(outcome.error, ProviderError)
    for error in chain_of(outcome.error):
        assert KEY.decode() not in f"{error!r} {error.args} {vars(error)}"


def test_an_error_of_a_client_of_ones_own_does_not_show_the_request(play: Play) -> None:
    """It would show the URL, and whoever looks for them the headers."""
    server = play([RESET])
    url = f"{server.url}?code={KEY.decode()}"
    with httpx.Client() as client, pytest.raises(ConnectionFailedError) as caught:
        SERVICES[0].model(url, http_client=client).call("Hi")

    for error in chain_of(caught.value):
        assert KEY.decode() not in f"{error!r} {vars(error)}"


def test_nobody_is_there(service: Service, mode: str) -> None:
    """A refused connection is told with the address."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
    outcome = outcome_of(service.model(url), mode)

    assert isinstance(outcome.error, ConnectionFailedError)
    assert url in str(outcome.error)
    assert outcome.in_use == 0


def test_a_line_without_an_end(service: Service, mode: str, play: Play) -> None:
    """One line of 64 MB is an answer when it is whole; no event of a stream is so long."""
    streaming = is_streaming(mode)
    text = "x" * (LARGEST_EVENT + 1)
    if not streaming:
        server = play([http(service.whole(text))])
        model = service.model(server.url)
        outcome = outcome_of(model, mode)
        assert len(outcome.text) == len(text)
        return
    line = service.stream("one two").partition(b"two")[0] + text.encode()
    outcome = outcome_of(service.model(play([chunked(line), END]).url), mode)

    assert type(outcome.error) is InvalidResponseError
    assert "larger than" in str(outcome.error) or "longer than" in str(outcome.error)
    assert outcome.in_use == 0


# --- how long to wait -----------------------------------------------------------------------


def date_in(seconds: float) -> str:
    return formatdate(time.time() + seconds, usegmt=True)


WAITS: dict[str, tuple[Callable[[], dict[str, str]], float, float]] = {
    # what the server says, and between which seconds the retry comes: a slow machine takes longer
    "seconds": (lambda: {"retry-after": "1"}, 1.0, 4.5),
    "a fraction": (lambda: {"retry-after": "0.3"}, 0.3, 4.5),
    "milliseconds": (lambda: {"retry-after-ms": "300", "retry-after": "99"}, 0.3, 4.5),
    "no milliseconds": (lambda: {"retry-after-ms": "0", "retry-after": "0.3"}, 0.3, 4.5),
    "a date": (lambda: {"retry-after": date_in(2)}, 0.2, 4.5),
    "a date that has passed": (lambda: {"retry-after": date_in(-99)}, 0.0, 4.5),
    "zero": (lambda: {"retry-after": "0"}, 0.0, 4.5),
    "negative": (lambda: {"retry-after": "-5"}, 0.0, 4.5),
    "garbage": (lambda: {"retry-after": "soon, 7 or so"}, 0.0, 4.5),
    "no number": (lambda: {"retry-after": "nan"}, 0.0, 4.5),
    "no date": (lambda: {"retry-after": "Fri, 99 Foo 99999 99:99:99 GMT"}, 0.0, 4.5),
    "nothing": (dict, 0.0, 4.5),
}


@pytest.mark.parametrize("form", WAITS)
def test_the_wait_is_the_one_asked_for(form: str, service: Service, mode: str, play: Play) -> None:
    """Every form of Retry-After is kept to; without a usable one the wait is a short one."""
    headers, earliest, latest = WAITS[form]
    streaming = is_streaming(mode)
    kind = service.stream_type if streaming else "application/json"
    again = said(service.answer(streaming=streaming), kind)
    server = play([http(b"{}", 429, headers())], [again])
    outcome = ask(service, server, mode, AT_ONCE)

    first, second = server.requests
    assert outcome.text == TEXT
    assert earliest - 0.02 <= second.at - first.at <= latest


@pytest.mark.parametrize(
    ("header", "asked"),
    [
        (lambda: {"retry-after": "6"}, 6),
        (lambda: {"retry-after-ms": "5500"}, 5.5),
        (lambda: {"retry-after": date_in(3600)}, 3600),
        (lambda: {"retry-after": "1e300"}, 1e300),
    ],
    ids=["seconds", "milliseconds", "date", "for ever"],
)
@pytest.mark.parametrize("status", [429, 503])
def test_too_long_a_wait_is_raised_at_once(
    header: Callable[[], dict[str, str]],
    asked: float,
    status: int,
    service: Service,
    mode: str,
    play: Play,
) -> None:
    """Coming back before the time would only be refused again: the caller is told when to."""
    server = play([http(b"{}", status, header())])
    outcome = ask(service, server, mode, AT_ONCE)

    assert isinstance(outcome.error, RateLimitedError if status == 429 else OverloadedError)
    assert outcome.error.retry_after == pytest.approx(asked, abs=2)
    assert len(server.requests) == 1
