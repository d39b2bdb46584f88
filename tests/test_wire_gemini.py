"""Gemini against recorded traffic: all of it, in every legal cut, both ways."""

import asyncio
import base64
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import groupby
from typing import Any

import pytest
from replay import (
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

from chatclient import (
    AssistantMessage,
    ChatResponse,
    Media,
    Message,
    SystemMessage,
    ToolCall,
    ToolResponse,
    ToolResponseMessage,
    UserMessage,
)
from chatclient.aggregator import MessageAggregator
from chatclient.errors import (
    AuthenticationError,
    ChatClientError,
    InvalidRequestError,
    InvalidResponseError,
    StreamInterruptedError,
)
from chatclient.messages import ProviderPart
from chatclient.providers.gemini import GeminiChatModel
from chatclient.providers.gemini_decoding import decode_part, decode_response
from chatclient.providers.gemini_encoding import (
    FROM_3,
    UP_TO_2,
    Dialect,
    EncodedConversation,
    encode_message,
)
from chatclient.providers.gemini_stream import StreamDecoder, StreamReader

pytestmark = [needs_recordings, pytest.mark.exhaustive]

Json = dict[str, Any]


def recorded() -> list[Exchange]:
    return exchanges("gemini.generateContent", "gemini.streamGenerateContent")


def streams() -> list[Exchange]:
    return [e for e in recorded() if e.streaming and e.status == 200]


# --- what the recordings say ----------------------------------------------------------------

_NO_RESPONSE = {"candidates", "promptFeedback", "usageMetadata"}


def failure(exchange: Exchange) -> type[ChatClientError] | None:
    """Return the error that the recording amounts to although it does not say so."""
    said, body = expected(exchange), exchange.response.get("body")
    if b"API_KEY_INVALID" in exchange.body:  # with status 400
        return AuthenticationError
    if isinstance(body, dict) and exchange.status == 200 and not body.keys() & _NO_RESPONSE:
        return InvalidResponseError
    if re.search(rb"^\{\s*\"error\"", exchange.body, re.MULTILINE) and exchange.status == 200:
        return InvalidRequestError  # a bare object at the end of a stream: cancelled, code 499
    if exchange.streaming and exchange.status == 200 and not (said["finish"] or "blocked" in said):
        return StreamInterruptedError
    return None


def wanted(exchange: Exchange) -> Mapping[str, Any]:
    """Return what the recording says, where the oracle is less exact than we are."""
    said = dict(expected(exchange))
    said["finish"] = said.get("finish") or said.get("blocked")
    usage = dict(said.get("usage") or {})
    output = usage.get("output", 0) + usage.get("reasoning", 0)
    if usage.get("total", 0) - output < usage.get("input", 0):
        usage.pop("total", None)  # written by hand: the sum is none
        said["usage"] = usage
    return said


def differences(outcome: ChatResponse | Exception, exchange: Exchange) -> list[str]:
    """Return in what an outcome differs from what the recording says."""
    kind = failure(exchange)
    if kind is None:
        return compare(outcome, wanted(exchange))
    return [] if type(outcome) is kind else [f"{outcome!r} is no {kind.__name__}"]


# --- responses ------------------------------------------------------------------------------


def ask_blocking(model: GeminiChatModel, *, streaming: bool) -> ChatResponse | Exception:
    try:
        return collect(model.stream("Hi")) if streaming else model.call("Hi")
    except ChatClientError as error:
        return error
    finally:
        model.close()


async def ask_async(model: GeminiChatModel, *, streaming: bool) -> ChatResponse | Exception:
    try:
        if streaming:
            return collect([chunk async for chunk in model.astream("Hi")])
        return await model.acall("Hi")
    except ChatClientError as error:
        return error
    finally:
        await model.aclose()


@pytest.mark.parametrize("chunking", ["whole", "random"])
@pytest.mark.parametrize("blocking", [True, False])
def test_every_recorded_exchange_is_understood(*, blocking: bool, chunking: Chunking) -> None:
    """Each answer and each refusal comes out as its recording says, over real sockets."""
    outcomes: dict[Exchange, ChatResponse | Exception] = {}

    async def ask_all(server: ReplayServer) -> None:
        for exchange in recorded():
            url = server.url(exchange, chunking, seed=len(outcomes))
            model = GeminiChatModel(
                "m", api_key="key", base_url=url, max_retries=0, timeout=PATIENT
            )
            streaming = exchange.streaming
            outcomes[exchange] = (
                ask_blocking(model, streaming=streaming)
                if blocking
                else await ask_async(model, streaming=streaming)
            )

    with ReplayServer() as server:
        asyncio.run(ask_all(server))
        paths = {path for path, _, _ in server.requests.values()}

    wrong = {str(e): found for e, o in outcomes.items() if (found := differences(o, e))}
    print(f"understood, blocking {blocking}, {chunking}:", by_api(outcomes))  # noqa: T201
    assert wrong == {}
    assert paths == {"/models/m:generateContent", "/models/m:streamGenerateContent?alt=sse"}
    assert by_api(outcomes) == by_api(recorded())


def decoded(chunks: Iterable[bytes]) -> ChatResponse:
    reader, decoder, aggregator = StreamReader(), StreamDecoder(), MessageAggregator()
    for chunk in chunks:
        for value in reader.feed(chunk):
            aggregator.add(decoder.feed(value))
    for value in reader.finish():
        aggregator.add(decoder.feed(value))
    if (last := decoder.finish()) is not None:
        aggregator.add(last)
    return aggregator.response()


def outcome_of(chunks: Iterable[bytes]) -> ChatResponse | Exception:
    try:
        return decoded(chunks)
    except ChatClientError as error:
        return error


@pytest.mark.parametrize("chunking", ["whole", "line", "byte", "utf8", "crlf", "random"])
def test_a_stream_may_be_cut_anywhere(chunking: Chunking) -> None:
    """However the network cuts a stream, it says the same."""
    wrong = {
        str(exchange): found
        for seed, exchange in enumerate(streams())
        if (found := differences(outcome_of(pieces(exchange.body, chunking, seed)), exchange))
    }

    assert wrong == {}


@pytest.mark.parametrize("noise", ["none", "comments", "bom", "blank", "id", "retry"])
@pytest.mark.parametrize("line_ends", ["lf", "crlf", "cr"])
def test_line_ends_and_noise_mean_nothing(line_ends: LineEnds, noise: Noise) -> None:
    """Whatever else the format of event streams allows changes nothing."""
    wrong = {}
    for seed, exchange in enumerate(streams()):
        if "sse_text" in exchange.response:
            body = with_noise(with_line_ends(exchange.body, line_ends), noise)
            if found := differences(outcome_of(pieces(body, "random", seed)), exchange):
                wrong[str(exchange)] = found

    assert wrong == {}


def test_a_stream_that_ends_early_is_an_error() -> None:
    """Whatever had not finished when the stream ended is reported as interrupted."""
    wrong = []
    for exchange in streams():
        place = exchange.body.find(b"inishReason")
        for cut in (place // 3, place // 2, place - 1):
            outcome = outcome_of([exchange.body[:cut]])
            if place > 0 and not isinstance(outcome, StreamInterruptedError):
                wrong.append((str(exchange), cut, outcome))

    assert wrong == []


# --- requests -------------------------------------------------------------------------------

_CAMEL = {
    "inline_data": "inlineData",
    "file_data": "fileData",
    "function_call": "functionCall",
    "function_response": "functionResponse",
    "thought_signature": "thoughtSignature",
    "mime_type": "mimeType",
    "file_uri": "fileUri",
}


def camel(part: Json) -> Json:
    """Return a part as the API answers; requests may use either way of writing."""
    result: Json = {}
    for key, value in part.items():
        name = _CAMEL.get(key, key)
        if name in ("inlineData", "fileData"):
            value = {_CAMEL.get(k, k): v for k, v in value.items()}  # noqa: PLW2901
        elif name == "functionResponse" and "parts" in value:
            value = {**value, "parts": [camel(p) for p in value["parts"]]}  # noqa: PLW2901
        result[name] = value
    return result


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def contents_of(request: Json) -> list[tuple[str, list[Json]]]:
    """Return the role and the parts of each content."""
    return [
        (content.get("role") or "user", [camel(part) for part in listed(content.get("parts", []))])
        for content in listed(request.get("contents", []))
    ]


def system_of(request: Json) -> list[Json]:
    parts: list[Json] = listed((request.get("systemInstruction") or {}).get("parts", []))
    return parts


def messages_of(request: Json) -> Iterator[Message]:
    """Yield the messages that a recorded request spells."""
    for part in system_of(request):
        yield SystemMessage(part["text"])
    calls: list[ToolCall] = []
    for role, parts in contents_of(request):
        if role == "model":
            message = AssistantMessage([p for part in parts if (p := decode_part(part))])
            calls.extend(message.tool_calls)
            yield message
            continue
        results = [part["functionResponse"] for part in parts if "functionResponse" in part]
        if results:
            yield ToolResponseMessage([response_of(result, calls) for result in results])
        said = [decode_part(part) for part in parts if "functionResponse" not in part]
        if said:
            yield UserMessage([p for p in said if isinstance(p, str | Media | ProviderPart)])


def response_of(result: Json, calls: list[ToolCall]) -> ToolResponse:
    """Return the response to the call of its id or, without one, to the next of its name."""
    place = next(
        at
        for at, call in enumerate(calls)
        if result.get("id", call.id) == call.id and result["name"] == call.name
    )
    call = calls.pop(place)
    media = [m for part in result.get("parts", ()) if isinstance(m := decode_part(part), Media)]
    data = json.dumps(result["response"])
    return ToolResponse(call.id, call.name, data, "error" in result["response"], tuple(media))


def meaning(contents: Iterable[tuple[str, list[Json]]]) -> list[tuple[str, list[Json]]]:
    """Return contents such that those that mean the same are equal."""
    runs = groupby(contents, key=lambda content: content[0])
    return [(role, [m for _, ps in run for p in ps if (m := plain(p))]) for role, run in runs]


def plain(part: Json) -> Json | None:
    part = camel(part)
    if part == {"text": ""}:
        return None
    if "inlineData" in part:  # both alphabets of base 64 are in use
        data = part["inlineData"]["data"].translate({45: 43, 95: 47})
        blob = {**part["inlineData"], "data": base64.b64decode(data)}
        return {**part, "inlineData": blob}
    if "functionResponse" in part and "parts" in part["functionResponse"]:
        inner = [plain(p) for p in part["functionResponse"]["parts"]]
        return {"functionResponse": {**part["functionResponse"], "parts": inner}}
    if "functionCall" in part:
        part["functionCall"] = {"args": {}, **part["functionCall"]}
    return part


def built(request: Json, dialect: Dialect) -> Json:
    """Return the request that we make of the conversation of a recorded one."""
    conversation = EncodedConversation().continued(tuple(messages_of(request)), dialect)
    contents: list[Json] = json.loads(b"[%b]" % conversation.contents)
    system: list[Json] = json.loads(b"[%b]" % conversation.system)
    return {"contents": contents, "systemInstruction": {"parts": system}}


def dialect_asked(exchange: Exchange) -> Dialect:
    """Return the dialect of the recorded request: what its client did, not all of which had to."""
    nested = any("parts" in p.get("functionResponse", ()) for p in all_parts(exchange.request))
    return Dialect(media_in_results=nested)


def all_parts(request: Json) -> list[Json]:
    return [part for _, parts in contents_of(request) for part in parts]


@cache
def conversations() -> list[Exchange]:
    """Return the exchanges whose request holds a conversation; one of them has a third role."""
    roles = {"user", "model", "function"}
    return [
        e for e in recorded() if e.request and {role for role, _ in contents_of(e.request)} <= roles
    ]


def test_nothing_of_a_recorded_request_is_lost() -> None:
    """A conversation that goes through our messages comes out as it was."""
    wrong = {}
    for exchange in conversations():
        request = built(exchange.request, dialect_asked(exchange))
        ours, theirs = meaning(contents_of(request)), meaning(contents_of(exchange.request))
        system = [part for part in system_of(exchange.request) if part["text"]]
        if ours != theirs or request["systemInstruction"]["parts"] != system:
            wrong[str(exchange)] = (ours, theirs)

    several = [e for e in conversations() if len(contents_of(e.request)) > 1]
    print(f"requests: {by_api(conversations())}, multi-turn: {by_api(several)}")  # noqa: T201
    assert wrong == {}
    assert len(several) > 50


def test_a_conversation_goes_on_where_it_was() -> None:
    """Encoding round by round gives what encoding it all at once gives."""
    for exchange in conversations():
        messages = tuple(messages_of(exchange.request))
        conversation = EncodedConversation()
        for size in range(1, len(messages) + 1):
            conversation = conversation.continued(messages[:size], UP_TO_2)

        assert conversation == EncodedConversation().continued(messages, UP_TO_2)


@pytest.mark.parametrize("dialect", [UP_TO_2, FROM_3])
def test_our_requests_are_valid(dialect: Dialect) -> None:
    """Google's own types accept every request that we make of a recorded conversation."""
    types = pytest.importorskip("google.genai.types")
    for exchange in conversations():
        request = built(exchange.request, dialect)
        for content in [*request["contents"], request["systemInstruction"]]:
            types.Content.model_validate(content)


def answered(exchange: Exchange) -> list[Json]:
    """Return the parts of a recorded answer, in a stream's case joined as a reader would."""
    body = exchange.response.get("body")
    if "sse_text" in exchange.response:
        texts = re.split(r"\r?\n\r?\n", exchange.response["sse_text"])
        body = [json.loads(t.removeprefix("data:")) for t in texts if t.startswith("data:")]
    parts = [
        part
        for chunk in listed(body)
        for candidate in chunk.get("candidates") or ()
        for part in (candidate.get("content") or {}).get("parts") or ()
        if part not in ({}, {"text": ""})
    ]
    joined: list[Json] = []
    for part in parts:
        if (
            joined
            and exchange.streaming
            and part.keys() == joined[-1].keys() <= {"text", "thought"}
        ):
            joined[-1] = {**part, "text": joined[-1]["text"] + part["text"]}
        else:
            joined.append(part)
    return joined


def in_pieces(exchange: Exchange) -> bool:
    """Return whether a tool call came in pieces, which are sent back as one."""
    return "streamed_partial_args" in exchange.features


def test_an_answer_is_sent_back_unchanged() -> None:
    """Every part of a recorded answer, with its signature, goes back as it came."""
    wrong = {}
    for exchange in recorded():
        if (
            exchange.status != 200
            or failure(exchange)
            or "streamed_partial_args" in exchange.features
        ):
            continue
        response = (
            decoded([exchange.body])
            if exchange.streaming
            else decode_response(json.loads(exchange.body))
        )
        ours = encode_message(response.output or AssistantMessage(), UP_TO_2)
        if meaning([("model", ours)]) != meaning([("model", answered(exchange))]):
            wrong[str(exchange)] = (ours, answered(exchange))

    assert wrong == {}
