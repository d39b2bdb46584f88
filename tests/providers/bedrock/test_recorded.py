"""Bedrock's Converse API against all recorded traffic, responses and requests."""

import asyncio
import json
from urllib.parse import unquote

import pytest

from chatclient import AssistantMessage, ChatResponse
from chatclient.chat.aggregator import MessageAggregator
from chatclient.chat.messages import ProviderPart
from chatclient.errors import ChatClientError, InvalidRequestError
from chatclient.providers.bedrock.decoding import MessageSplitter, StreamDecoder, decode_response
from chatclient.providers.bedrock.encoding import encode_blocks
from chatclient.providers.bedrock.model import BedrockChatModel
from chatclient.providers.http.reader import EventReader
from tests.support.converse_server import Json, as_stream
from tests.support.replay import (
    PATIENT,
    Exchange,
    ReplayServer,
    exchanges,
    needs_recordings,
    pieces,
)

pytestmark = needs_recordings
pytest.importorskip("botocore")


def recorded() -> list[Exchange]:
    return exchanges("bedrock.converse")


def model_of(exchange: Exchange) -> str:
    """Return the requested model, which is a part of the path."""
    return unquote(exchange.recorded["request"]["path"]).split("/")[2]


def content_of(exchange: Exchange) -> list[Json]:
    content: list[Json] = json.loads(exchange.body)["output"]["message"]["content"]
    return content


def problems_of(exchange: Exchange, outcome: ChatResponse | Exception) -> list[str]:
    """Return the differences between *outcome* and the recording."""
    data = json.loads(exchange.body)
    if isinstance(outcome, Exception):
        told = exchange.status == 400 and data["message"] in str(outcome)
        return [] if told and isinstance(outcome, InvalidRequestError) else [repr(outcome)]
    usage = data["usage"]
    calls = [b["toolUse"] for b in content_of(exchange) if "toolUse" in b]
    calls = [call for call in calls if call.get("type") != "server_tool_use"]
    pairs = {
        "text": (outcome.text, "".join(b.get("text", "") for b in content_of(exchange))),
        "calls": (
            [(c.id, c.name, json.loads(c.arguments)) for c in outcome.output.tool_calls]
            if outcome.output
            else [],
            [(c["toolUseId"], c["name"], c["input"]) for c in calls],
        ),
        "total": (outcome.usage.total_tokens, usage["totalTokens"]),
        "output": (outcome.usage.output_tokens, usage["outputTokens"]),
        "cached": (outcome.usage.cache_read_tokens, usage.get("cacheReadInputTokens")),
        "reason": (outcome.finish_reason, "tool_call" if calls else "stop"),
    }
    return [
        f"{k}: {found!r}, not {wanted!r}" for k, (found, wanted) in pairs.items() if found != wanted
    ]


@pytest.mark.parametrize("blocking", [True, False])
def test_recorded_exchanges(*, blocking: bool) -> None:
    """Every answer and error is decoded as recorded, over sockets."""
    outcomes: dict[Exchange, ChatResponse | Exception] = {}

    async def ask(model: BedrockChatModel) -> ChatResponse | Exception:
        try:
            async with model:
                return model.call("Hi") if blocking else await model.acall("Hi")
        except ChatClientError as error:
            return error

    async def ask_all(server: ReplayServer) -> None:
        for seed, exchange in enumerate(recorded()):
            url = server.url(exchange, "random", seed=seed)
            name = model_of(exchange)
            model = BedrockChatModel(
                name, api_key="k", base_url=url, max_retries=0, timeout=PATIENT
            )
            outcomes[exchange] = await ask(model)

    with ReplayServer() as server:
        asyncio.run(ask_all(server))
        paths = {exchange: server.requests[exchange.id][0] for exchange in outcomes}

    wrong = {str(e): found for e, o in outcomes.items() if (found := problems_of(e, o))}
    assert wrong == {}
    assert len(outcomes) >= 19
    for exchange, path in paths.items():
        assert unquote(path) == f"/model/{model_of(exchange)}/converse"


def test_recorded_answers_as_streams() -> None:
    """Sent as streams in any pieces, the recorded answers decode to the same messages."""
    for seed, exchange in enumerate(recorded()):
        if exchange.status != 200:
            continue
        data = json.loads(exchange.body)
        answer = MessageAggregator()
        reader = EventReader(StreamDecoder(), None, MessageSplitter())
        for piece in pieces(as_stream(data), "random", seed):
            for chunk in reader.feed(piece):
                answer.add(chunk)
        for chunk in reader.finish():
            answer.add(chunk)

        assert problems_of(exchange, answer.response()) == []
        assert answer.response().output == decode_response(data).output


def test_recorded_answers_are_sent_back() -> None:
    """Text, reasoning, calls and other blocks are sent back unchanged."""
    for exchange in recorded():
        if exchange.status != 200:
            continue
        output = decode_response(json.loads(exchange.body)).output
        blocks = content_of(exchange)
        for call in (block["toolUse"] for block in blocks if "toolUse" in block):
            if call.get("type") == "tool_use":  # no value of the API's schema
                del call["type"]

        assert output is not None
        assert encode_blocks(output) == blocks


def test_recorded_turns_are_sent_unchanged() -> None:
    """The assistant's blocks of recorded requests survive decoding and encoding."""
    turns = [
        turn["content"]
        for exchange in recorded()
        for turn in exchange.request["messages"]
        if turn["role"] == "assistant"
    ]
    for blocks in turns:
        data = {"output": {"message": {"content": blocks}}, "stopReason": "end_turn"}
        output = decode_response(data).output

        assert isinstance(output, AssistantMessage)
        assert encode_blocks(output) == blocks
        assert all(part.data in blocks for part in output.parts if isinstance(part, ProviderPart))
    assert len(turns) > 5
