"""Every recorded exchange of Chat Completions, replayed over the loopback in all four ways."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from chatclient.chat.aggregator import MessageAggregator
from chatclient.chat.response import ChatResponse
from chatclient.errors import ChatClientError, ProviderError, StreamInterruptedError
from chatclient.providers.http.reader import ServerSentEventDecoder
from chatclient.providers.openai.chat import OpenAIChatModel
from chatclient.providers.openai.chat_stream import StreamDecoder
from chatclient.providers.openai.dialect import COMPATIBLE
from tests.support.replay import (
    PATIENT,
    Chunking,
    Exchange,
    LineEnds,
    Noise,
    ReplayServer,
    by_api,
    collect,
    compare,
    exchanges,
    expected,
    needs_recordings,
    pieces,
    with_line_ends,
    with_noise,
)

pytestmark = [needs_recordings, pytest.mark.exhaustive]

EXCHANGES = exchanges("openai.chat")
STREAMS = [e for e in EXCHANGES if e.streaming and e.status == 200]
APIS = by_api(EXCHANGES)

Outcome = ChatResponse | ChatClientError
RUN: Counter[str] = Counter()


@pytest.fixture(scope="module")
def server() -> Iterator[ReplayServer]:
    with ReplayServer() as server:
        yield server


def model_of(url: str) -> OpenAIChatModel:
    return OpenAIChatModel("m", api_key="k", base_url=url, max_retries=0, timeout=PATIENT)


def blocking_outcome(server: ReplayServer, exchange: Exchange) -> Outcome:
    RUN["stream" if exchange.streaming else "call"] += 1
    with model_of(server.url(exchange)) as model:
        try:
            return collect(model.stream("hi")) if exchange.streaming else model.call("hi")
        except ChatClientError as error:
            return error


async def async_outcome(server: ReplayServer, exchange: Exchange) -> Outcome:
    RUN["astream" if exchange.streaming else "acall"] += 1
    async with model_of(server.url(exchange, "random", seed=RUN.total())) as model:
        try:
            if exchange.streaming:
                return collect([chunk async for chunk in model.astream("hi")])
            return await model.acall("hi")
        except ChatClientError as error:
            return error


def differences(outcomes: dict[Exchange, Outcome]) -> dict[str, list[str]]:
    compared = ((e, compare(outcome, expected(e))) for e, outcome in outcomes.items())
    return {str(exchange): found for exchange, found in compared if found}


@pytest.mark.parametrize("api", APIS)
def test_recorded_blocking_responses(server: ReplayServer, api: str) -> None:
    """`call` and `stream` return the recorded response of every exchange."""
    outcomes = {e: blocking_outcome(server, e) for e in EXCHANGES if e.api == api}

    assert differences(outcomes) == {}


@pytest.mark.parametrize("api", APIS)
def test_recorded_async_responses(server: ReplayServer, api: str) -> None:
    """`acall` and `astream` return the recorded response of every exchange."""

    async def ask_all() -> dict[Exchange, Outcome]:
        return {e: await async_outcome(server, e) for e in EXCHANGES if e.api == api}

    outcomes = asyncio.run(ask_all())

    assert differences(outcomes) == {}


def decoded(body: bytes, chunking: Chunking, seed: int = 0) -> Outcome:
    """Return the response of a stream without a network."""
    events = ServerSentEventDecoder()
    decoder = StreamDecoder(COMPATIBLE)
    chunks: list[ChatResponse | str] = []
    try:
        for piece in pieces(body, chunking, seed):
            for data, kind in events.feed(piece):
                chunk = decoder.feed(data, kind)
                if chunk is not None:
                    chunks.append(chunk)
        chunks.extend(decoder.finish(events.finish()))
    except ProviderError as error:
        return error
    return collect(chunks)


@pytest.mark.parametrize(
    ("chunking", "line_ends", "noise"),
    [
        ("byte", "as recorded", "none"),
        ("utf8", "as recorded", "none"),
        ("line", "lf", "retry"),
        ("crlf", "crlf", "none"),
        ("byte", "cr", "none"),
        ("random", "as recorded", "comments"),
        ("random", "crlf", "bom"),
        ("random", "cr", "id"),
        ("random", "lf", "blank"),
    ],
)
def test_chunking_line_endings_and_noise(
    chunking: Chunking, line_ends: LineEnds, noise: Noise
) -> None:
    """Chunking, line endings and comments do not affect the response."""
    outcomes = {
        exchange: decoded(with_noise(with_line_ends(exchange.body, line_ends), noise), chunking, at)
        for at, exchange in enumerate(STREAMS)
    }

    assert differences(outcomes) == {}


def test_completed_stream_has_no_more_content() -> None:
    """No content follows after the decoder has completed a stream."""
    for exchange in STREAMS:
        outcome = decoded(exchange.body, "whole")
        if isinstance(outcome, ChatResponse):
            assert content_of(until_complete(exchange.body)) == content_of(outcome), exchange


def until_complete(body: bytes) -> ChatResponse:
    """Return the content of a stream up to its completion."""
    decoder, content = StreamDecoder(COMPATIBLE), MessageAggregator()
    for data, kind in ServerSentEventDecoder().feed(body):
        content.add(decoder.feed(data, kind) or "")
        if decoder.is_finished:
            break
    return content.response()


def content_of(response: ChatResponse) -> list[Any]:
    messages = [generation.output for generation in response.generations]
    return [
        [m.text, "".join(r.text for r in m.reasoning), [c.arguments for c in m.tool_calls]]
        for m in messages
    ]


@pytest.mark.parametrize("clean_end", [True, False], ids=["clean end", "reset"])
def test_truncated_recorded_stream(server: ReplayServer, *, clean_end: bool) -> None:
    """A truncated stream raises, with a clean end or a reset."""
    complete = [e for e in exchanges("openai.chat", feature="finish_tool") if e in STREAMS]
    assert complete

    for exchange in complete:
        half = exchange.body.index(b'"tool_calls"') + 40
        url = server.url(exchange, "random", cut_at=half, clean_end=clean_end)
        with model_of(url) as model, pytest.raises(StreamInterruptedError):
            collect(model.stream("hi"))


def test_every_exchange_is_covered(
    request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    """The number of exchanges of each service is complete."""
    if not {"call", "acall", "stream", "astream"} <= RUN.keys():
        pytest.skip("only a part of this module runs")
    streamed = by_api(e for e in EXCHANGES if e.streaming)
    terminal = request.config.get_terminal_writer()
    with capsys.disabled():
        terminal.line("\nChat Completions, exchanges that equal the recording (whole + streamed):")
        for api, count in APIS.items():
            terminal.line(f"  {api:24} {count - streamed.get(api, 0):4} + {streamed.get(api, 0):3}")

    assert RUN["call"] == RUN["acall"] == len(EXCHANGES) - sum(streamed.values())
    assert RUN["stream"] == RUN["astream"] == sum(streamed.values())
