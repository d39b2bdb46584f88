"""OpenAI's Responses API against all recorded traffic, responses and requests."""

import asyncio
import base64
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import pytest

from chatclient import (
    AssistantMessage,
    ChatResponse,
    Media,
    Message,
    Prompt,
    SystemMessage,
    ToolResponse,
    ToolResponseMessage,
    UserMessage,
)
from chatclient._internal.frozen import EMPTY, FrozenDict
from chatclient._internal.json_schema import strict_form
from chatclient.chat.messages import Part, ProviderPart, Reasoning
from chatclient.chat.tool import ToolContext, ToolDefinition, ToolMetadata, ToolResult
from chatclient.errors import (
    AuthenticationError,
    InvalidResponseError,
    ProviderError,
    StreamInterruptedError,
)
from chatclient.providers.http.reader import ServerSentEventDecoder
from chatclient.providers.openai.responses import (
    OpenAIResponsesChatModel,
    OpenAIResponsesChatOptions,
)
from chatclient.providers.openai.responses_decoding import decode_response
from chatclient.providers.openai.responses_stream import StreamDecoder
from tests.support.replay import (
    PATIENT,
    RECORDINGS,
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

Json = dict[str, Any]

BROKEN_JSON = "5ded271a6f81"
"""Its first and its last event lack a brace."""

OTHER_IDS = "83ba2776a29f"
"""A proxy that gives every item a new id in every event."""


def recorded() -> list[Exchange]:
    return [
        exchange
        for exchange in exchanges("openai.responses", "openai.responses.retrieve")
        if exchange.id != BROKEN_JSON and not has_several_responses(exchange)
    ]


def has_several_responses(exchange: Exchange) -> bool:
    """Return whether a file holds all responses of a tool loop."""
    return exchange.body.count(b'"type":"response.created"') > 1


def streams() -> list[Exchange]:
    return [e for e in recorded() if "sse_text" in e.response]


def differences(exchange: Exchange, outcome: ChatResponse | Exception) -> list[str]:
    """Return the differences between *outcome* and the recording."""
    wanted = expected(exchange)
    if isinstance(outcome, AuthenticationError) and wanted.get("http_status") == 400:
        # Only the message blames the key, and that is the more useful error.
        return [] if "api key" in str(wanted["error"]).lower() else [repr(outcome)]
    return compare(outcome, wanted)


def read(
    body: bytes, chunking: Chunking = "whole", seed: int = 0, headers: Mapping[str, str] = EMPTY
) -> ChatResponse:
    """Return the response of a stream with any chunking."""
    events, decoder = ServerSentEventDecoder(), StreamDecoder("openai", headers)
    chunks = [
        decoder.feed(data)
        for piece in pieces(body, chunking, seed)
        for data, _ in events.feed(piece)
    ]
    chunks.extend(decoder.finish(events.finish()))
    return collect(chunk for chunk in chunks if chunk is not None)


# --- answers --------------------------------------------------------------------------------


@dataclass
class Outcomes:
    """The outcomes of an exchange in all modes in which it was recorded."""

    exchange: Exchange
    blocking: ChatResponse | Exception
    on_loop: ChatResponse | Exception


def ask(exchange: Exchange, model: OpenAIResponsesChatModel) -> ChatResponse | Exception:
    try:
        return collect(model.stream("Hi")) if exchange.streaming else model.call("Hi")
    except ProviderError as error:
        return error


async def aask(exchange: Exchange, model: OpenAIResponsesChatModel) -> ChatResponse | Exception:
    try:
        if exchange.streaming:
            return collect([chunk async for chunk in model.astream("Hi")])
        return await model.acall("Hi")
    except ProviderError as error:
        return error


def outcomes_of(server: ReplayServer, exchange: Exchange) -> Outcomes:
    url = server.url(exchange)
    with OpenAIResponsesChatModel(
        "m", api_key="k", base_url=url, max_retries=0, timeout=PATIENT
    ) as model:

        async def on_loop() -> ChatResponse | Exception:
            async with model:
                return await aask(exchange, model)

        return Outcomes(exchange, ask(exchange, model), asyncio.run(on_loop()))


def test_recorded_answers() -> None:
    """Every recorded answer is decoded over sockets, in each of its modes."""
    with ReplayServer() as server:
        found = [outcomes_of(server, exchange) for exchange in recorded()]
        paths = {server.requests[each.exchange.id][0] for each in found}

    wrong = {
        f"{each.exchange} {way}": problems
        for each in found
        for way in ("blocking", "on_loop")
        if (problems := differences(each.exchange, getattr(each, way)))
    }
    assert not wrong
    assert paths == {"/responses"}
    total = by_api(each.exchange for each in found)
    print(f"{sum(total.values())} recorded answers understood, each twice: {total}")  # noqa: T201


def test_recorded_rate_limits() -> None:
    """Rate limit headers become metadata; those of Azure are placeholders."""
    limited = [
        read(exchange.body, headers=exchange.headers).metadata.rate_limit
        for exchange in exchanges("openai.responses", feature="ratelimit_headers")
        if exchange.streaming and exchange.provider == "openai"
    ]

    assert all(limit and limit.requests_remaining for limit in limited)
    assert limited


def test_file_with_several_responses() -> None:
    """Each response is decoded separately; the first ends at its own end."""
    files = [e for e in exchanges("openai.responses") if has_several_responses(e)]
    for exchange in files:
        answers = re.split(rb"(?=event: response.created)", exchange.body)[1:]
        found = [read(answer) for answer in answers]

        assert [bool(r.output and r.output.tool_calls) for r in found[:-1]] == [True] * len(
            found[1:]
        )
        assert compare(found[-1], expected(exchange)) == []
        assert read(exchange.body) == found[0]
    assert files


def test_invalid_json_event() -> None:
    """An event that is not JSON raises instead of being skipped."""
    broken = next((e for e in exchanges("openai.responses") if e.id == BROKEN_JSON), None)
    if broken is None:
        pytest.skip("these recordings have no such event")

    with pytest.raises(InvalidResponseError, match="not a response"):
        read(broken.body)


# --- streams --------------------------------------------------------------------------------


def last_response(exchange: Exchange) -> Json | None:
    """Return the complete response in the last event of a stream."""
    for event, _ in ServerSentEventDecoder().feed(exchange.body + b"\n\n"):
        if event.startswith(b"{"):
            data = json.loads(event)
            if data["type"] in ("response.completed", "response.incomplete"):
                response: Json = data["response"]
                return response
    return None


def comparable(response: ChatResponse, *, ids: bool = True) -> ChatResponse:
    """Return *response* without fields that differ between the stream and its last event.

    The service encrypts reasoning anew for the last event, and some leave out the model there.
    """
    (generation,) = response.generations
    parts = [comparable_part(part, ids=ids) for part in generation.output.parts]
    return ChatResponse(
        (replace(generation, output=AssistantMessage(parts)),),
        replace(response.metadata, model=""),
    )


def comparable_part(part: Part, *, ids: bool) -> Part:
    if not isinstance(part, Reasoning | ProviderPart) or not part.data:
        return part
    data = {k: v for k, v in part.data.items() if ids or k != "id"}
    if "encrypted_content" in data:
        data["encrypted_content"] = bool(data["encrypted_content"])
    return replace(part, data=data)


def test_recorded_streams_equal_their_last_event() -> None:
    """Parts, order, usage and ending equal those of the complete response."""
    for exchange in streams():
        ids = exchange.id != OTHER_IDS
        if (complete := last_response(exchange)) is None:
            assert "error_in_stream" in exchange.features, exchange
            continue
        wanted = comparable(decode_response(complete, "openai"), ids=ids)
        assert comparable(read(exchange.body), ids=ids) == wanted, exchange


CUTS: tuple[Chunking, ...] = ("line", "byte", "utf8", "crlf", "random")
LINE_ENDS: tuple[LineEnds, ...] = ("lf", "crlf", "cr")
NOISES: tuple[Noise, ...] = ("comments", "bom", "blank", "id", "retry")


def variants(body: bytes) -> Iterator[tuple[bytes, Chunking, int]]:
    """Yield a stream with every legal chunking, then random ones with noise."""
    for chunking in CUTS:
        yield body, chunking, 1
    for seed, noise in enumerate(NOISES):
        line_ends = LINE_ENDS[seed % len(LINE_ENDS)]
        yield with_noise(with_line_ends(body, line_ends), noise), "random", seed


def outcome(body: bytes, chunking: Chunking = "whole", seed: int = 0) -> ChatResponse | str:
    try:
        return read(body, chunking, seed)
    except ProviderError as error:
        return repr(error)


def test_chunking_and_noise() -> None:
    """Chunking inside characters or line ends and noise do not affect the response."""
    count = 0
    for exchange in streams():
        complete = outcome(exchange.body)
        for variant in variants(exchange.body):
            assert outcome(*variant) == complete, (exchange, variant[1:])
            count += 1

    assert count == len(streams()) * 10
    print(f"{count} variants of {len(streams())} streams: {by_api(streams())}")  # noqa: T201


def test_truncated_stream_is_error_or_complete() -> None:
    """A stream truncated before its last event is never a complete answer."""
    for exchange in streams():
        end = exchange.body.rfind(b'data: {"type":"response.completed"')
        for at in range(1, end, max(1, end // 7)):
            with pytest.raises(StreamInterruptedError):
                read(exchange.body[:at])


def test_truncated_stream_keeps_partial_response() -> None:
    """The error contains the partial response, with a reset or a clean end."""
    with ReplayServer() as server:
        for exchange in streams()[::10]:
            end = exchange.body.rfind(b"event: response.completed")
            if end < 0:
                continue
            for clean_end in (True, False):
                url = server.url(exchange, cut_at=end, clean_end=clean_end)
                with OpenAIResponsesChatModel(
                    "m", api_key="k", base_url=url, timeout=PATIENT
                ) as model:
                    chunks: list[ChatResponse] = []
                    with pytest.raises(StreamInterruptedError):
                        chunks.extend(model.stream("Hi"))


# --- requests -------------------------------------------------------------------------------


@dataclass
class Callback:
    """A recorded tool, which is not run."""

    definition: ToolDefinition
    metadata: ToolMetadata = field(default_factory=ToolMetadata)

    async def invoke(self, arguments: str, context: ToolContext) -> ToolResult:
        raise NotImplementedError


@cache
def validator(name: str) -> Any:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads(RECORDINGS.joinpath("schemas", f"{name}.json").read_text())
    return jsonschema.Draft202012Validator(schema)


def matches_schema(**body: Any) -> bool:
    """Return whether a request satisfies the published schema."""
    valid: bool = validator("openai-responses-request").is_valid(body)
    return valid


class Conversation:
    """Converts a recorded request to messages: the reverse of the encoder."""

    def __init__(self, items: Iterable[Json]) -> None:
        self.messages: list[Message] = []
        self.names: dict[str, str] = {}
        self._pending: list[Part] = []
        self._answers: list[ToolResponse] = []
        for item in items:
            self._take({"type": "message", **item})
        self._flush()

    def _take(self, item: Json) -> None:
        role = item["role"] if item["type"] == "message" else "assistant"
        if item["type"] == "function_call_output":
            self._flush(answers=False)
            self._answers.append(self._response(item))
        elif role == "assistant":
            # Two consecutive plain texts are two messages; only their form distinguishes them.
            bare = item["type"] == "message" and "id" not in item
            self._flush(
                keep_user=bare and bool(self._pending) and isinstance(self._pending[-1], str)
            )
            self._pending += self._parts(item)
        else:
            self._flush()
            self.messages.append(text_message(item))

    def _flush(self, *, keep_user: bool = True, answers: bool = True) -> None:
        if self._pending and (keep_user or not answers):
            self.messages.append(AssistantMessage(self._pending))
            self._pending = []
        if self._answers and answers:
            self.messages.append(ToolResponseMessage(self._answers))
            self._answers = []

    def _parts(self, item: Json) -> Sequence[Part]:
        if item["type"] == "message" and "id" not in item:
            return [text_of(item)]
        if item["type"] == "function_call":
            self.names[item["call_id"]] = item["name"]
        output = decode_response({"output": [item]}, "openai").output
        assert output is not None
        return output.parts

    def _response(self, item: Json) -> ToolResponse:
        name, output = self.names.get(item["call_id"], ""), item["output"]
        if isinstance(output, str):
            return ToolResponse(item["call_id"], name, output)
        return ToolResponse(item["call_id"], name, "", media=tuple(map(media, output)))


def text_of(item: Json) -> str:
    content = item["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def text_message(item: Json) -> Message:
    """Return a system or user message."""
    if item["role"] != "user":
        return SystemMessage(text_of(item))
    if isinstance(item["content"], str):
        return UserMessage(item["content"])
    return UserMessage([user_part(part) for part in item["content"]])


def user_part(part: Json) -> str | Media | ProviderPart:
    if part["type"] != "input_text":
        return media(part)
    return part["text"] if len(part) == 2 else ProviderPart("openai", FrozenDict(part))


DATA_URL = re.compile(r"data:([^;]+);base64,(.*)", re.DOTALL)


def media(part: Json) -> Media:
    url = part.get("image_url") or part.get("file_url") or part["file_data"]
    detail = {"detail": part["detail"]} if "detail" in part else {}
    if found := DATA_URL.fullmatch(url):
        data = base64.b64decode(found[2])
        return Media(found[1], data, name=part.get("filename"), metadata=detail)
    kind = "image/jpeg" if "image_url" in part else "application/pdf"
    return Media(kind, url, name=part.get("filename"), metadata=detail)


NAMES = {
    "max_output_tokens": "max_tokens",
    "metadata": "request_metadata",
    **{
        name: name
        for name in (
            *("model", "temperature", "top_p", "service_tier", "instructions", "store", "user"),
            *("previous_response_id", "conversation", "background", "prompt_cache_key"),
            "parallel_tool_calls",
        )
    },
}


def options_from(body: Json) -> OpenAIResponsesChatOptions:
    """Return options for a recorded body; fields without an option are in `extra`."""
    options = {NAMES[k]: v for k, v in body.items() if k in NAMES and v is not None}
    text, reasoning = body.get("text") or {}, body.get("reasoning") or {}
    form = text.get("format") or {}
    extra = {k: body[k] for k in EXTRAS if k in body}
    if form.get("type") == "json_schema":
        options["output_schema"] = {**form["schema"], "title": form["name"]}
    elif form:
        options["response_format"] = form
    if set(reasoning) <= {"effort", "summary"}:
        options |= {f"reasoning_{k}": v for k, v in reasoning.items() if v is not None}
    else:
        extra["reasoning"] = reasoning
    choice = body.get("tool_choice")
    if isinstance(choice, str) or (choice and "name" in choice):
        options["tool_choice"] = choice if isinstance(choice, str) else choice["name"]
    elif choice:
        extra["tool_choice"] = choice
    return OpenAIResponsesChatOptions(
        **{"store": True, **options},
        include=tuple(body.get("include") or ()),
        tool_callbacks=tuple(tools_in(body)),
        server_tools=tuple(tool for tool in body.get("tools") or () if not is_plain_function(tool)),
        extra=extra,
    )


EXTRAS = ("moderation", "prompt", "prompt_cache_options", "context_management")


def is_plain_function(tool: Json) -> bool:
    """Return whether a tool is a function of the application without settings."""
    known = {"type", "name", "description", "parameters", "strict"}
    return tool["type"] == "function" and set(tool) <= known and bool(tool.get("parameters"))


def tools_in(body: Json) -> Iterator[Callback]:
    for tool in body.get("tools") or ():
        if is_plain_function(tool):
            text, schema = tool.get("description") or "", tool["parameters"]
            strict = bool(tool.get("strict"))
            yield Callback(ToolDefinition(tool["name"], text, schema, strict=strict))


def rebuilt(body: Json) -> Json:
    """Return *body* after a round trip through messages and options."""
    items = body["input"]
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    model = OpenAIResponsesChatModel("m", api_key="k")
    prompt = Prompt(Conversation(items).messages, options_from(body))
    result: Json = json.loads(model._body(prompt, streaming=bool(body.get("stream"))))
    return result


def normalized(items: Any) -> list[Json]:
    """Return input items in a normal form."""
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    found = [normalized_item({"type": "message", **item}) for item in items]
    return [item for item in found if item.get("role") != "assistant" or item["content"]]


def normalized_item(item: Mapping[str, Any]) -> Json:
    result = {key: value for key, value in item.items() if value is not None}
    if result["type"] == "message":
        content = result["content"]
        kind = "output_text" if result["role"] == "assistant" else "input_text"
        parts = [{"type": kind, "text": content}] if isinstance(content, str) else content
        result["content"] = [normalized_part(part) for part in parts if part.get("text") != ""]
        if result.get("status") == "completed":
            del result["status"]
    if isinstance(result.get("output"), list):
        result["output"] = [normalized_part(part) for part in result["output"]]
    if result["type"] == "function_call":
        result["arguments"] = result["arguments"] or "{}"
    return result


def normalized_part(part: Json) -> Json:
    left_out: tuple[Any, ...] = (None, [], "auto")  # equivalent to a missing field
    return {key: value for key, value in part.items() if value not in left_out}


def normalized_tool(tool: Json) -> Json:
    given = {key: value for key, value in tool.items() if value is not None}
    return {"description": "", "strict": False, **given} if is_plain_function(tool) else tool


def lost_fields(body: Json, again: Json) -> list[str]:
    """Return the fields of a recorded request that the rebuilt one lacks."""
    handled = {"input", "tools", "include", "stream", "text"}
    fields = [k for k, v in body.items() if k not in handled and v is not None and v != ""]
    wrong = [k for k in fields if again.get(k) != without_nulls(body[k])]
    if normalized(body["input"]) != normalized(again["input"]):
        wrong.append("input")
    tools = [json.dumps(normalized_tool(t), sort_keys=True) for t in body.get("tools") or ()]
    if sorted(tools) != sorted(json.dumps(t, sort_keys=True) for t in again.get("tools", ())):
        wrong.append("tools")
    if set(body.get("include") or ()) - set(again.get("include", ())):
        wrong.append("include")
    return wrong + ([] if same_format(body, again) else ["text"])


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: v for k, v in value.items() if v is not None}
    # A tool chosen by name is a function, with or without the type.
    return value


def same_format(body: Json, again: Json) -> bool:
    one, two = ((b.get("text") or {}).get("format") or {} for b in (body, again))
    # Keywords outside strict mode and the order are ignored.
    schemas = [(s := form.get("schema", {})) and (strict_form(s) or s) for form in (one, two)]
    return schemas[0] == schemas[1] and all(one.get(k) == two.get(k) for k in ("type", "name"))


def requests() -> list[Exchange]:
    return [e for e in exchanges("openai.responses", extra=False) if "input" in e.request]


def test_recorded_request_round_trip() -> None:
    """Items, tools and options survive the round trip."""
    wrong = {
        str(exchange): missing
        for exchange in requests()
        if (missing := lost_fields(exchange.request, rebuilt(exchange.request)))
    }

    assert not wrong
    several = [e for e in requests() if len(normalized(e.request["input"])) > 1]
    print(f"{len(requests())} requests rebuilt ({len(several)} of several items)")  # noqa: T201


def test_rebuilt_requests_are_valid() -> None:
    """Rebuilt requests match the strict schema, except for items with missing fields."""
    as_recorded = 0
    for exchange in requests():
        again = rebuilt(exchange.request)
        bad = [item for item in again["input"] if not matches_schema(model="m", input=[item])]
        recorded_items = normalized(exchange.request["input"])
        as_recorded += bool(bad)
        assert all(normalized_item(item) in recorded_items for item in bad), exchange
        rest = [item for item in again["input"] if item not in bad]
        assert matches_schema(**{**again, "input": rest}) or not matches_schema(
            **{**exchange.request, "input": ""}
        ), exchange
    print(f"{as_recorded} of {len(requests())} requests replay items as they were recorded")  # noqa: T201


def test_recorded_answers_are_sent_back() -> None:
    """Answers are sent back as the same items in order, valid if they were."""
    count = 0
    for exchange in recorded():
        if exchange.streaming or exchange.status != 200:
            continue
        items = json.loads(exchange.body)["output"]
        output = decode_response({"output": items}, "openai").output
        assert output is not None
        options = OpenAIResponsesChatOptions(store=True)
        model = OpenAIResponsesChatModel("m", api_key="k", options=options)
        sent = json.loads(model._body(Prompt([output], model.options), streaming=False))["input"]
        while items and items[-1]["type"] == "reasoning":
            items.pop()  # the answer was truncated before an item followed
        assert normalized(sent) == normalized(items), exchange
        for item in sent:
            known = validator("openai-responses-response.wire")
            assert matches_schema(model="m", input=[item]) or not known.is_valid(
                {**json.loads(exchange.body), "output": [item]}
            ), (exchange, item)
        count += len(items)
    print(f"{count} recorded output items sent back")  # noqa: T201
