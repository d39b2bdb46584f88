"""Recorded traffic, replayed over real sockets, and the expected responses.

The recordings are next to the project (see `RECORDINGS`); where they are absent, tests marked with
`needs_recordings` skip. A test asks for exchanges and for a server::

    @needs_recordings
    def test_...():
        with ReplayServer() as server:
            for exchange in exchanges("anthropic.messages"):
                model = AnthropicChatModel("m", api_key="k", base_url=server.url(exchange))
                assert compare(model.call("hi"), expected(exchange)) == []

For any path and body below that URL the server answers with the recording, in one of its legal
variants: with other chunks, other line endings, or additional noise.
"""

import asyncio
import contextlib
import csv
import functools
import itertools
import json
import os
import random
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal, Self

import pytest

from chatclient.chat.aggregator import MessageAggregator
from chatclient.chat.model import ChatModel
from chatclient.chat.response import ChatResponse
from chatclient.errors import (
    AuthenticationError,
    ChatClientError,
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    ProviderError,
    RateLimitedError,
)
from chatclient.providers.http.request import Timeouts
from tests.support.paths import ROOT

RECORDINGS = Path(
    os.environ.get("CHATCLIENT_RECORDINGS") or ROOT.parent.joinpath("shared", "data", "wire")
)
"""Where the recorded exchanges are: folders with an `index.csv`, an `expect.jsonl`, the files."""

PATIENT = Timeouts(connect=60)
"""For a busy machine."""

needs_recordings = pytest.mark.skipif(
    not RECORDINGS.joinpath("dev", "index.csv").is_file(),
    reason=f"no recorded traffic in {RECORDINGS} (set CHATCLIENT_RECORDINGS)",
)

# --- exchanges ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Exchange:
    """One recorded request and its response; the file is read when it is first needed.

    Attributes:
        id: Unique among all exchanges.
        path: The file.
        api: The service and its API, such as `groq.chat`.
        wire_format: The API of the client, such as `openai.chat`.
        model: The requested model.
        streaming: Whether a stream was recorded.
        status: The HTTP status of the response.
        features: Its special features, such as `parallel_tools`.
    """

    id: str
    path: Path
    api: str
    wire_format: str
    model: str
    streaming: bool
    status: int
    features: frozenset[str]

    def __str__(self) -> str:
        return self.path.stem

    @property
    def provider(self) -> str:
        return self.api.partition(".")[0]

    @functools.cached_property
    def recorded(self) -> dict[str, Any]:
        recorded: dict[str, Any] = json.loads(self.path.read_text(encoding="utf-8"))
        return recorded

    @property
    def request(self) -> dict[str, Any]:
        """The recorded request's JSON body; empty where only the response is known."""
        body = (self.recorded.get("request") or {}).get("body")
        return body if isinstance(body, dict) else {}

    @property
    def response(self) -> dict[str, Any]:
        response: dict[str, Any] = self.recorded["response"]
        return response

    @functools.cached_property
    def body(self) -> bytes:
        """The response's body, byte for byte as far as it was recorded so."""
        for key in ("sse_text", "ndjson_text", "body_text"):
            if key in self.response:
                return str(self.response[key]).encode()
        return json.dumps(self.response.get("body"), ensure_ascii=False).encode()

    @property
    def headers(self) -> dict[str, str]:
        """The response's headers without those that describe the recorded connection."""
        left_out = ("content-length", "transfer-encoding", "content-encoding", "connection")
        recorded = self.response.get("headers") or {}
        headers = {k.lower(): str(v) for k, v in recorded.items() if k.lower() not in left_out}
        return {"content-type": self._content_type(), **headers}

    def _content_type(self) -> str:
        if "sse_text" in self.response:
            return "text/event-stream"
        return "application/x-ndjson" if "ndjson_text" in self.response else "application/json"


def exchanges(*wire_formats: str, extra: bool = True, feature: str = "") -> list[Exchange]:
    """Return the exchanges in *wire_formats* (all when none is named), in a stable order.

    Args:
        *wire_formats: Such as `openai.chat`.
        extra: Whether to include those of which only the response was recorded.
        feature: Only those that have it.
    """
    return [
        exchange
        for exchange in _all_exchanges()
        if (not wire_formats or exchange.wire_format in wire_formats)
        and (extra or "extra" not in exchange.path.parts)
        and (not feature or feature in exchange.features)
    ]


@functools.cache
def _all_exchanges() -> list[Exchange]:
    return [
        Exchange(
            id=row["id"],
            path=index.parent / row["file"],
            api=row["api"],
            wire_format=row["wire_format"],
            model=row["model"],
            streaming=row["streaming"] == "True",
            status=int(row["status"]),
            features=frozenset(row["features"].split(";")) - {""},
        )
        for index in sorted(RECORDINGS.rglob("index.csv"))
        for row in csv.DictReader(index.read_text(encoding="utf-8").splitlines())
    ]


@functools.cache
def _all_expected() -> dict[str, dict[str, Any]]:
    lines = (
        line
        for path in RECORDINGS.rglob("expect.jsonl")
        for line in path.read_text(encoding="utf-8").split("\n")
        if line
    )
    return {outcome["id"]: outcome for outcome in map(json.loads, lines)}


def expected(exchange: Exchange) -> dict[str, Any]:
    """Return the expected response: see `tools/expect.py` of the recordings.

    Keys: `text`, `reasoning`, `tool_calls`, `finish` (native), `usage`, `error`, `refusal` and
    `wire_format`; or only `http_status` and `error` for a refusal. The recordings' own usage does
    not include compactions and advisors of Anthropic.
    """
    outcome = _all_expected()[exchange.id]
    found = _ITERATIONS.findall(exchange.body) if outcome.get("usage") else []
    others = [
        iteration
        for iteration in (json.loads(found[-1]) if found else ())
        if iteration["type"] in ("compaction", "advisor_message")
    ]
    usage = dict(outcome.get("usage") or {})
    for iteration in others:
        usage["input"] += iteration["input_tokens"]
        usage["output"] += iteration["output_tokens"]
    return {**outcome, "usage": usage} if others else outcome


_ITERATIONS = re.compile(rb'"iterations": ?(\[[^]]*\])')


def by_api(found: Iterable[Exchange]) -> dict[str, int]:
    """Return how many exchanges there are of each API."""
    return dict(sorted(Counter(exchange.api for exchange in found).items()))


# --- variants -------------------------------------------------------------------------------

Chunking = Literal["whole", "line", "byte", "utf8", "crlf", "random"]
LineEnds = Literal["as recorded", "lf", "crlf", "cr"]
Noise = Literal["none", "comments", "bom", "blank", "id", "retry"]

_LINE_END = re.compile(rb"\r\n|\r|\n")


def with_line_ends(body: bytes, line_ends: LineEnds) -> bytes:
    """Return a stream with equal line endings."""
    if line_ends == "as recorded":
        return body
    end = {"lf": b"\n", "crlf": b"\r\n", "cr": b"\r"}[line_ends]
    return _LINE_END.sub(lambda _match: end, body)


def with_noise(body: bytes, noise: Noise) -> bytes:
    """Return a stream of server-sent events with legal but meaningless additions."""
    if noise == "none":
        return body
    if noise == "bom":
        return b"\xef\xbb\xbf" + body
    first = _LINE_END.search(body)
    end = first.group() if first else b"\n"
    added = {
        "comments": b": keep-alive" + end + end,
        "blank": end + end,
        "id": b"id: 7" + end,
        "retry": b"retry: 3000" + end,
    }[noise]
    events = body.split(end + end)
    return (end + end).join(added + event if event.strip() else event for event in events)


def pieces(body: bytes, chunking: Chunking, seed: int = 0) -> Iterator[bytes]:
    """Yield *body* in chunks as a network might deliver them.

    Args:
        body: What to cut.
        chunking: `line` after each line feed, `byte` everywhere near both ends and now and then
            between, `utf8` inside each character that has several bytes, `crlf` between the two,
            `random` at places given by *seed*.
        seed: Of `random`.
    """
    match chunking:
        case "whole":
            yield body
        case "line":
            yield from body.splitlines(keepends=True)
        case "byte":
            size = len(body)
            near = (at for at in range(1, size) if at % 97 == 0 or min(at, size - at) < 2000)
            yield from _cut(body, near)
        case "utf8":
            yield from _cut(body, (m.start() for m in re.finditer(rb"[\x80-\xbf]", body)))
        case "crlf":
            yield from _cut(body, (m.end() for m in re.finditer(rb"\r(?=\n)", body)))
        case "random":
            sizes = random.Random(seed)
            steps = iter(lambda: sizes.choice((1, 2, 3, 7, 64, 1024)), 0)
            places = itertools.takewhile(len(body).__gt__, itertools.accumulate(steps))
            yield from _cut(body, places)


def _cut(body: bytes, places: Iterable[int]) -> Iterator[bytes]:
    start = 0
    for place in places:
        yield body[start:place]
        start = place
    yield body[start:]


# --- the server -----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Replay:
    exchange: Exchange
    chunking: Chunking
    seed: int
    body: bytes
    cut_at: int | None
    clean_end: bool


class ReplayServer:
    """Answers with recorded exchanges, selected by the first part of the path.

    Attributes:
        requests: Path (below the exchange's URL), headers and body of each request, by the id of
            the exchange; the last one holds.
    """

    def __init__(self) -> None:
        self._replays: dict[str, _Replay] = {}
        self.requests: dict[str, tuple[str, dict[str, str], bytes]] = {}
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def url(
        self,
        exchange: Exchange,
        chunking: Chunking = "whole",
        *,
        seed: int = 0,
        line_ends: LineEnds = "as recorded",
        noise: Noise = "none",
        cut_at: int | None = None,
        clean_end: bool = True,
    ) -> str:
        """Return the base URL (no slash at its end) under which *exchange* is answered.

        Args:
            exchange: What to answer.
            chunking: How to cut the body; see `pieces`.
            seed: Of random chunking.
            line_ends: How lines end; for streams.
            noise: What to add; for streams.
            cut_at: Send only so many bytes of the body.
            clean_end: Whether a cut body ends as if that were all; else the connection breaks.
        """
        body = exchange.body
        if "sse_text" in exchange.response:
            body = with_noise(with_line_ends(body, line_ends), noise)
        key = f"{exchange.id}-{len(self._replays)}"
        self._replays[key] = _Replay(exchange, chunking, seed, body, cut_at, clean_end)
        return f"http://127.0.0.1:{self._server.server_address[1]}/{key}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def replay(self, path: str, headers: dict[str, str], body: bytes) -> _Replay:
        key, _, rest = path.removeprefix("/").partition("/")
        replay = self._replays[key]
        self.requests[replay.exchange.id] = (f"/{rest}", headers, body)
        return replay


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Stay quiet about clients that hang up early."""


def _handler(server: ReplayServer) -> Callable[..., BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = -1  # the head and the body of a small answer in one packet

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            replay = server.replay(self.path, headers, body)
            sent = replay.body[: replay.cut_at]
            self.send_response_only(replay.exchange.status)
            for name, value in replay.exchange.headers.items():
                self.send_header(name, value)
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            for piece in pieces(sent, replay.chunking, replay.seed):
                if piece:
                    self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            if replay.cut_at is None or replay.clean_end:
                self.wfile.write(b"0\r\n\r\n")
            else:
                self.close_connection = True

        def do_GET(self) -> None:
            self.headers["content-length"] = "0"
            self.do_POST()

        def log_message(self, format: str, *args: Any) -> None:
            """Print nothing."""

    return Handler


# --- comparing ------------------------------------------------------------------------------


def collect(chunks: Iterable[ChatResponse | str]) -> ChatResponse:
    """Return the response of streamed *chunks*."""
    aggregator = MessageAggregator()
    for chunk in chunks:
        aggregator.add(chunk)
    return aggregator.response()


def ask_all(
    recordings: Iterable[Exchange],
    create: Callable[[str], ChatModel],
    chunking: Chunking,
    *,
    blocking: bool,
) -> tuple[dict[Exchange, ChatResponse | Exception], set[str]]:
    """Ask a model for each recording, over sockets; return the outcomes and the requested paths.

    Args:
        recordings: What the server replays.
        create: Makes the model of a server's URL.
        chunking: How the bodies are cut.
        blocking: Whether `call` and `stream` are used, or `acall` and `astream`.
    """
    outcomes: dict[Exchange, ChatResponse | Exception] = {}

    async def ask(server: ReplayServer) -> None:
        for exchange in recordings:
            model = create(server.url(exchange, chunking, seed=len(outcomes)))
            try:
                if blocking:
                    answer = collect(model.stream("Hi")) if exchange.streaming else model.call("Hi")
                elif exchange.streaming:
                    answer = collect([chunk async for chunk in model.astream("Hi")])
                else:
                    answer = await model.acall("Hi")
                outcomes[exchange] = answer
            except ChatClientError as error:
                outcomes[exchange] = error
            finally:
                if blocking:
                    model.close()
                else:
                    await model.aclose()

    with ReplayServer() as server:
        asyncio.run(ask(server))
        return outcomes, {path for path, _, _ in server.requests.values()}


def compare(outcome: ChatResponse | Exception, expected: Mapping[str, Any]) -> list[str]:
    """Return the differences between *outcome* and the recording, one line each.

    Args:
        outcome: The response, or the error that the client raised.
        expected: See the function of that name.
    """
    if isinstance(outcome, Exception):
        return _compare_error(outcome, expected)
    if expected.get("error"):
        return [f"error: {outcome!r} where the recording says {expected['error']!r}"]
    found = {
        "text": outcome.text,
        "reasoning": _without_separators(_reasoning(outcome)),
        "tool_calls": [_value(call.arguments, call.name) for call in _calls(outcome)],
        "reason": outcome.finish_reason,
    }
    wanted = {
        "text": expected["text"] + expected.get("refusal", ""),
        "reasoning": _without_separators(expected["reasoning"]),
        "tool_calls": [_value(c["arguments"], c["name"]) for c in _expected_calls(expected)],
        "reason": _reason(expected, outcome.finish_reason),
    }
    return [
        *(f"{k}: {v!r} instead of {wanted[k]!r}" for k, v in found.items() if v != wanted[k]),
        *_compare_ids(outcome, expected),
        *_compare_native(outcome, expected),
        *_compare_usage(outcome, expected),
    ]


def _reasoning(response: ChatResponse) -> str:
    return "".join(part.text for part in response.output.reasoning) if response.output else ""


def _without_separators(reasoning: str) -> str:
    """Return *reasoning* without blank lines: recordings join the parts of summaries directly."""
    return reasoning.replace("\n\n", "")


def _calls(response: ChatResponse) -> tuple[Any, ...]:
    return response.output.tool_calls if response.output else ()


def _expected_calls(expected: Mapping[str, Any]) -> list[dict[str, Any]]:
    # Some servers fill the fields of missing calls with empty strings.
    return [call for call in expected["tool_calls"] if call["name"]]


def _value(arguments: Any, name: str) -> tuple[str, Any]:
    if isinstance(arguments, str):
        with contextlib.suppress(ValueError):  # free-form input: the text itself is the value
            arguments = json.loads(arguments or "{}")
    return name, arguments


def _compare_ids(response: ChatResponse, expected: Mapping[str, Any]) -> list[str]:
    pairs = zip(_calls(response), _expected_calls(expected), strict=False)
    return [
        f"id: {call.id!r} instead of {wanted['id'] or 'one made up'!r}"
        for call, wanted in pairs
        if (call.id != wanted["id"] if wanted["id"] else not call.id)
    ]


# OpenTelemetry's finish reasons for the values of all services (`wire.md`, 5.7).
_REASONS = {
    "stop": "stop eos end_turn stop_sequence completed complete STOP 1",
    "length": "length model_length max_tokens model_context_window_exceeded MAX_TOKENS 2"
    " incomplete incomplete:max_output_tokens",
    "tool_call": "tool_calls function_call tool_use",
    "content_filter": "content_filter refusal SAFETY RECITATION PROHIBITED_CONTENT BLOCKLIST SPII"
    " IMAGE_SAFETY MODEL_ARMOR incomplete:content_filter",
    "error": "error insufficient_system_resource MALFORMED_FUNCTION_CALL UNEXPECTED_TOOL_CALL"
    " OTHER failed",
}
_REASON_OF = {word: reason for reason, words in _REASONS.items() for word in words.split()}


def _reason(expected: Mapping[str, Any], found: str | None) -> str | None:
    """Return the normalised finish reason, or *found* if the recording is ambiguous."""
    native = expected["finish"]
    if native in (None, "", "pause_turn", "queued", "in_progress"):
        return "tool_call" if _expected_calls(expected) and native != "pause_turn" else found
    reason = _REASON_OF.get(str(native), found)
    if reason == "stop" and expected.get("refusal"):
        return "content_filter"
    return "tool_call" if reason == "stop" and _expected_calls(expected) else reason


def _compare_native(response: ChatResponse, expected: Mapping[str, Any]) -> list[str]:
    native = response.result.native_finish_reason if response.result else None
    wanted = str(expected["finish"] or "")
    if (native or "") in (wanted, *wanted.split(":")):
        return []
    return [f"native finish reason: {native!r} instead of {expected['finish']!r}"]


def _compare_usage(response: ChatResponse, expected: Mapping[str, Any]) -> list[str]:
    usage = response.usage
    found = {
        "input": usage.input_tokens,
        "output": usage.output_tokens,
        "cached": usage.cache_read_tokens or 0,
        "cache_write": usage.cache_write_tokens or 0,
        "reasoning": usage.reasoning_tokens or 0,
    }
    wanted = {**found, **_usage(expected)}
    return [f"usage.{k}: {v} instead of {wanted[k]}" for k, v in found.items() if v != wanted[k]]


def _usage(expected: Mapping[str, Any]) -> dict[str, int]:
    """Return the recorded usage: input with cached tokens, output with reasoning."""
    usage: dict[str, int] = {key: n or 0 for key, n in (expected["usage"] or {}).items()}
    total = usage.pop("total", 0)
    match expected["wire_format"].partition(".")[0]:
        case "openai" if usage and total == sum(usage.values()) - usage.get("cached", 0):
            usage["output"] += usage.get("reasoning", 0)  # counted separately by some
        case "anthropic" if usage:
            usage["input"] += usage.get("cached", 0) + usage.get("cache_write", 0)
        case "gemini" if usage:
            usage["output"] = usage.get("output", 0) + usage.get("reasoning", 0)
            usage["input"] = total - usage["output"] if total else usage.get("input", 0)
    return usage


_ERROR_OF: dict[int, type[ProviderError]] = {
    401: AuthenticationError,
    403: AuthenticationError,
    404: NotFoundError,
    429: RateLimitedError,
}


def _compare_error(error: Exception, expected: Mapping[str, Any]) -> list[str]:
    if not expected.get("error"):
        return [f"{type(error).__name__} ({error}) where the recording says nothing of an error"]
    status = expected.get("http_status")
    kind: type[ProviderError] = ProviderError
    if status is not None:
        default = OverloadedError if status >= 500 else InvalidRequestError
        kind = _ERROR_OF.get(status, default)
    if not isinstance(error, kind):
        return [f"{type(error).__name__} ({error}) instead of {kind.__name__}"]
    found = getattr(error, "status", None)
    return [f"status: {found} instead of {status}"] if status not in (None, found) else []
