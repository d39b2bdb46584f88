"""Gemini against all recorded traffic, responses and requests."""

import base64
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import groupby
from typing import Any

import pytest

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
from chatclient.chat.aggregator import MessageAggregator
from chatclient.chat.messages import ProviderPart
from chatclient.chat.model import ChatModel
from chatclient.errors import (
    AuthenticationError,
    ChatClientError,
    InvalidRequestError,
    InvalidResponseError,
    StreamInterruptedError,
)
from chatclient.providers.gemini.decoding import (
    StreamDecoder,
    StreamReader,
    decode_part,
    decode_response,
)
from chatclient.providers.gemini.encoding import (
    FROM_3,
    UP_TO_2,
    Dialect,
    EncodedConversation,
    encode_message,
)
from chatclient.providers.gemini.model import GeminiChatModel
from tests.support.replay import (
    PATIENT,
    Chunking,
    Exchange,
    LineEnds,
    Noise,
    ask_all,
    by_api,
    compare,
    exchanges,
    expected,
    needs_recordings,
    pieces,
    with_line_ends,
    with_noise,
)

pytestmark = [needs_recordings, pytest.mark.exhaustive]

Json = dict[str, Any]


def recorded() -> list[Exchange]:
    return exchanges("gemini.generateContent", "gemini.streamGenerateContent")


def streams() -> list[Exchange]:
    return [e for e in recorded() if e.streaming and e.status == 200]


# --- expected outcomes ----------------------------------------------------------------------

_NO_RESPONSE = {"candidates", "promptFeedback", "usageMetadata"}


def failure(exchange: Exchange) -> type[ChatClientError] | None:
    """Return the error that a recording implies without stating it."""
    expectation, body = expected(exchange), exchange.response.get("body")
    if b"API_KEY_INVALID" in exchange.body:  # with status 400
        return AuthenticationError
    if isinstance(body, dict) and exchange.status == 200 and not body.keys() & _NO_RESPONSE:
        return InvalidResponseError
    if re.search(rb"^\{\s*\"error\"", exchange.body, re.MULTILINE) and exchange.status == 200:
        return InvalidRequestError  # a bare object at the end of a stream: cancelled, code 499
    if (
        exchange.streaming
        and exchange.status == 200
        and not (expectation["finish"] or "blocked" in expectation)
    ):
        return StreamInterruptedError
    return None


def expected_response(exchange: Exchange) -> Mapping[str, Any]:
    """Return the expected response, with corrections to the recording's oracle."""
    expectation = dict(expected(exchange))
    expectation["finish"] = expectation.get("finish") or expectation.get("blocked")
    usage = dict(expectation.get("usage") or {})
    output = usage.get("output", 0) + usage.get("reasoning", 0)
    if usage.get("total", 0) - output < usage.get("input", 0):
        usage.pop("total", None)  # edited by hand: the total is wrong
        expectation["usage"] = usage
    return expectation


def differences(outcome: ChatResponse | Exception, exchange: Exchange) -> list[str]:
    """Return the differences between an outcome and its recording."""
    kind = failure(exchange)
    if kind is None:
        return compare(outcome, expected_response(exchange))
    return [] if type(outcome) is kind else [f"{outcome!r} is no {kind.__name__}"]


# --- responses ------------------------------------------------------------------------------


@pytest.mark.parametrize("chunking", ["whole", "random"])
@pytest.mark.parametrize("blocking", [True, False])
def test_recorded_exchanges(*, blocking: bool, chunking: Chunking) -> None:
    """Every answer and error is decoded as recorded, over sockets."""

    def create(url: str) -> ChatModel:
        return GeminiChatModel("m", api_key="key", base_url=url, max_retries=0, timeout=PATIENT)

    outcomes, paths = ask_all(recorded(), create, chunking, blocking=blocking)

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
def test_chunking(chunking: Chunking) -> None:
    """Chunking does not affect the response."""
    wrong = {
        str(exchange): found
        for seed, exchange in enumerate(streams())
        if (found := differences(outcome_of(pieces(exchange.body, chunking, seed)), exchange))
    }

    assert wrong == {}


@pytest.mark.parametrize("noise", ["none", "comments", "bom", "blank", "id", "retry"])
@pytest.mark.parametrize("line_ends", ["lf", "crlf", "cr"])
def test_line_endings_and_noise(line_ends: LineEnds, noise: Noise) -> None:
    """Line endings and legal additions to the stream do not affect the response."""
    wrong = {}
    for seed, exchange in enumerate(streams()):
        if "sse_text" in exchange.response:
            body = with_noise(with_line_ends(exchange.body, line_ends), noise)
            if found := differences(outcome_of(pieces(body, "random", seed)), exchange):
                wrong[str(exchange)] = found

    assert wrong == {}


def test_truncated_recorded_streams() -> None:
    """A truncated stream raises `StreamInterruptedError`."""
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


def camel_case(part: Json) -> Json:
    """Return a part with camel-case names; requests may use either case."""
    result: Json = {}
    for key, value in part.items():
        name = _CAMEL.get(key, key)
        if name in ("inlineData", "fileData"):
            value = {_CAMEL.get(k, k): v for k, v in value.items()}  # noqa: PLW2901
        elif name == "functionResponse" and "parts" in value:
            value = {**value, "parts": [camel_case(p) for p in value["parts"]]}  # noqa: PLW2901
        result[name] = value
    return result


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def contents_of(request: Json) -> list[tuple[str, list[Json]]]:
    """Return the role and the parts of each content."""
    return [
        (
            content.get("role") or "user",
            [camel_case(part) for part in as_list(content.get("parts", []))],
        )
        for content in as_list(request.get("contents", []))
    ]


def system_of(request: Json) -> list[Json]:
    parts: list[Json] = as_list((request.get("systemInstruction") or {}).get("parts", []))
    return parts


def messages_of(request: Json) -> Iterator[Message]:
    """Yield the messages of a recorded request."""
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
        other = [decode_part(part) for part in parts if "functionResponse" not in part]
        if other:
            yield UserMessage([p for p in other if isinstance(p, str | Media | ProviderPart)])


def response_of(result: Json, calls: list[ToolCall]) -> ToolResponse:
    """Return the response to the call with its id or, without one, with its name."""
    place = next(
        at
        for at, call in enumerate(calls)
        if result.get("id", call.id) == call.id and result["name"] == call.name
    )
    call = calls.pop(place)
    media = [m for part in result.get("parts", ()) if isinstance(m := decode_part(part), Media)]
    data = json.dumps(result["response"])
    return ToolResponse(call.id, call.name, data, "error" in result["response"], tuple(media))


def normalized(contents: Iterable[tuple[str, list[Json]]]) -> list[tuple[str, list[Json]]]:
    """Return contents in a normal form for comparison."""
    runs = groupby(contents, key=lambda content: content[0])
    return [
        (role, [m for _, ps in run for p in ps if (m := normalized_part(p))]) for role, run in runs
    ]


def normalized_part(part: Json) -> Json | None:
    part = camel_case(part)
    if part == {"text": ""}:
        return None
    if "inlineData" in part:  # both base64 alphabets are in use
        data = part["inlineData"]["data"].translate({45: 43, 95: 47})
        blob = {**part["inlineData"], "data": base64.b64decode(data)}
        return {**part, "inlineData": blob}
    if "functionResponse" in part and "parts" in part["functionResponse"]:
        inner = [normalized_part(p) for p in part["functionResponse"]["parts"]]
        return {"functionResponse": {**part["functionResponse"], "parts": inner}}
    if "functionCall" in part:
        part["functionCall"] = {"args": {}, **part["functionCall"]}
    return part


def rebuilt(request: Json, dialect: Dialect) -> Json:
    """Return the request encoded from a recorded conversation."""
    conversation = EncodedConversation().continued(tuple(messages_of(request)), dialect)
    contents: list[Json] = json.loads(b"[%b]" % conversation.contents)
    system: list[Json] = json.loads(b"[%b]" % conversation.system)
    return {"contents": contents, "systemInstruction": {"parts": system}}


def dialect_of(exchange: Exchange) -> Dialect:
    """Return the dialect that the client of a recorded request used."""
    nested = any("parts" in p.get("functionResponse", ()) for p in all_parts(exchange.request))
    return Dialect(media_in_results=nested)


def all_parts(request: Json) -> list[Json]:
    return [part for _, parts in contents_of(request) for part in parts]


@cache
def conversations() -> list[Exchange]:
    """Return the exchanges with conversations; one has the role `function`."""
    roles = {"user", "model", "function"}
    return [
        e for e in recorded() if e.request and {role for role, _ in contents_of(e.request)} <= roles
    ]


def test_recorded_request_round_trip() -> None:
    """A recorded conversation survives the round trip."""
    wrong = {}
    for exchange in conversations():
        request = rebuilt(exchange.request, dialect_of(exchange))
        encoded, recorded_contents = (
            normalized(contents_of(request)),
            normalized(contents_of(exchange.request)),
        )
        system = [part for part in system_of(exchange.request) if part["text"]]
        if encoded != recorded_contents or request["systemInstruction"]["parts"] != system:
            wrong[str(exchange)] = (encoded, recorded_contents)

    several = [e for e in conversations() if len(contents_of(e.request)) > 1]
    print(f"requests: {by_api(conversations())}, multi-turn: {by_api(several)}")  # noqa: T201
    assert wrong == {}
    assert len(several) > 50


def test_incremental_encoding() -> None:
    """Encoding round by round equals encoding everything together."""
    for exchange in conversations():
        messages = tuple(messages_of(exchange.request))
        conversation = EncodedConversation()
        for size in range(1, len(messages) + 1):
            conversation = conversation.continued(messages[:size], UP_TO_2)

        assert conversation == EncodedConversation().continued(messages, UP_TO_2)


@pytest.mark.parametrize("dialect", [UP_TO_2, FROM_3])
def test_requests_match_official_types(dialect: Dialect) -> None:
    """Requests for all recorded conversations are valid by Google's types."""
    types = pytest.importorskip("google.genai.types")
    for exchange in conversations():
        request = rebuilt(exchange.request, dialect)
        for content in [*request["contents"], request["systemInstruction"]]:
            types.Content.model_validate(content)


def answer_parts(exchange: Exchange) -> list[Json]:
    """Return the parts of a recorded answer, joined if it was streamed."""
    body = exchange.response.get("body")
    if "sse_text" in exchange.response:
        texts = re.split(r"\r?\n\r?\n", exchange.response["sse_text"])
        body = [json.loads(t.removeprefix("data:")) for t in texts if t.startswith("data:")]
    parts = [
        part
        for chunk in as_list(body)
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


def has_streamed_calls(exchange: Exchange) -> bool:
    """Return whether tool calls were streamed in fragments, which are sent back joined."""
    return "streamed_partial_args" in exchange.features


def test_recorded_answers_are_sent_back() -> None:
    """Every part of an answer, with its signature, is sent back unchanged."""
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
        encoded = encode_message(response.output or AssistantMessage(), UP_TO_2)
        if normalized([("model", encoded)]) != normalized([("model", answer_parts(exchange))]):
            wrong[str(exchange)] = (encoded, answer_parts(exchange))

    assert wrong == {}
