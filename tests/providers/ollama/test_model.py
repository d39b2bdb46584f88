"""Ollama through the client and directly, against a strict test server."""

import asyncio
import base64
import json
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest

from chatclient import (
    AssistantMessage,
    ChatClient,
    ChatResponse,
    Media,
    Message,
    SystemMessage,
    ToolCall,
    ToolResponse,
    ToolResponseMessage,
    UserMessage,
    tool,
)
from chatclient.chat.events import ReasoningDelta, ToolCallDelta, ToolCallStarted
from chatclient.chat.messages import Reasoning
from chatclient.errors import (
    ContextLengthExceededError,
    InvalidRequestError,
    InvalidResponseError,
    NotFoundError,
    OverloadedError,
    ProviderError,
    StreamInterruptedError,
    UsageError,
)
from chatclient.providers.ollama.model import (
    OllamaChatModel,
    OllamaChatOptions,
    StreamDecoder,
    connect,
    decode_response,
    default_base_url,
    encode_message,
    encode_options,
)
from chatclient.testing import Ask
from chatclient.tools import tool_callbacks
from tests.support.loopback import LoopbackServer, as_json
from tests.support.replay import collect
from tests.support.servers import Reply

Json = dict[str, Any]

PIXEL = b"\x89PNG\xfb\xff\xfe"
ENCODED = base64.b64encode(PIXEL).decode()

# --- the server -----------------------------------------------------------------------------

_FIELDS = {
    "model",
    "messages",
    "stream",
    "options",
    "format",
    "keep_alive",
    "tools",
    "think",
    "logprobs",
    "top_logprobs",
}


def call(name: str, arguments: Json, **more: Any) -> Json:
    return {"function": {"name": name, "arguments": arguments}, **more}


def answer(content: str = "", *calls: Json, **more: Any) -> Json:
    """Return a complete answer; other fields go into the last line."""
    message: Json = {"role": "assistant", "content": content}
    if thoughts := more.pop("thinking", None):
        message["thinking"] = thoughts
    if calls:
        message["tool_calls"] = list(calls)
    return {
        "model": "stub:1b",
        "created_at": "2026-01-01T00:00:00Z",
        "message": message,
        "done": True,
        "done_reason": "stop",
        "total_duration": 9,
        "prompt_eval_count": 10,
        "eval_count": 5,
        **more,
    }


def as_stream(complete: Json) -> bytes:
    """Return *complete* as a stream, with a line per word and per call."""
    message = complete["message"]
    head = {key: complete[key] for key in ("model", "created_at")}
    pieces: list[Json] = [{"thinking": word} for word in _words(message.get("thinking", ""))]
    pieces += [{"content": word} for word in _words(message["content"])]
    pieces += [{"content": "", "tool_calls": [c]} for c in message.get("tool_calls", ())]
    lines = [{**head, "message": {"role": "assistant", **p}, "done": False} for p in pieces]
    lines.append({**complete, "message": {"role": "assistant", "content": ""}})
    return b"".join(b"%b\n" % json.dumps(line).encode() for line in lines)


def _words(text: str) -> list[str]:
    return [f" {word}" if at else word for at, word in enumerate(text.split(" "))] if text else []


def problem_of(request: Json) -> str | None:
    """Return why the server would reject or misunderstand *request*."""
    if unknown := request.keys() - _FIELDS:
        return f"unknown fields: {unknown}"
    for message in request["messages"]:
        if not isinstance(message.get("content"), str):
            return "content has to be a text"
        calls = [c["function"]["arguments"] for c in message.get("tool_calls", ())]
        if not all(isinstance(arguments, dict) for arguments in calls):
            return "arguments have to be objects"
    return _unpaired(request["messages"])


def _unpaired(messages: list[Json]) -> str | None:
    open_calls: list[tuple[str, str]] = []
    for before, message in pairwise([{}, *messages]):
        if calls := before.get("tool_calls"):
            open_calls = [(c["id"], c["function"]["name"]) for c in calls]
        if message["role"] == "tool":
            result_key = (message["tool_call_id"], message["tool_name"])
            if not open_calls or open_calls.pop(0) != result_key:
                return f"{result_key} answers no call"
        elif open_calls:
            return f"without answer: {open_calls}"
    return None


class OllamaServer:
    """A server that returns its answers in order, repeating the last, and records requests."""

    def __init__(self, *answers: Json | Reply) -> None:
        self._answers = list(answers)
        self._models: list[OllamaChatModel] = []
        self.requests: list[Json] = []
        self.headers: list[dict[str, str]] = []
        self._server = LoopbackServer(self._reply)

    @property
    def url(self) -> str:
        return self._server.url

    def _reply(self, path: str, headers: dict[str, str], request: Json) -> Reply:
        self.headers.append(headers)
        self.requests.append(request)
        if path != "/api/chat":
            return Reply(b"404 page not found", 404, content_type="text/plain")
        if problem := problem_of(request):
            return as_json({"error": problem}, 400)
        reply = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(reply, Reply):
            return reply
        if request.get("stream", True):
            return Reply(as_stream(reply), content_type="application/x-ndjson")
        return as_json(reply)

    def model(self, name: str = "qwen3:1.7b", **settings: Any) -> OllamaChatModel:
        settings.setdefault("base_url", self.url)
        self._models.append(OllamaChatModel(name, **settings))
        return self._models[-1]

    def close(self) -> None:
        for model in self._models:
            model.close()
        self._server.close()


@pytest.fixture
def ollama() -> Iterator[Callable[..., OllamaServer]]:
    """Start Ollama servers that are closed after the test."""
    started: list[OllamaServer] = []

    def start(*answers: Json | Reply) -> OllamaServer:
        started.append(OllamaServer(*answers))
        return started[-1]

    yield start
    for one in started:
        one.close()


Start = Callable[..., OllamaServer]


@tool
def weather(city: str) -> str:
    """Tell the weather."""
    if city == "Atlantis":
        msg = f"{city} has no weather"
        raise ValueError(msg)
    return f"sunny in {city}"


# --- requests and responses -----------------------------------------------------------------


def test_response_fields(ask: Ask, ollama: Start) -> None:
    """The response has text, finish reason, model and usage."""
    server = ollama(answer("Hello you there"))
    client = ChatClient.builder(server.model()).default_system("Be brief.").build()

    result = ask(client.prompt("Hi"))

    response = result.response.chat_response
    assert result.text == "Hello you there"
    assert response.metadata.model == "stub:1b"
    assert response.metadata.values == {"created_at": "2026-01-01T00:00:00Z"}
    assert (response.usage.input_tokens, response.usage.output_tokens) == (10, 5)
    assert response.usage.native["total_duration"] == 9
    assert response.result is not None
    assert (response.finish_reason, response.result.native_finish_reason) == ("stop", "stop")
    assert server.requests == [
        {
            "model": "qwen3:1.7b",
            "stream": ask.streaming,
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "Hi"},
            ],
        }
    ]
    assert "authorization" not in server.headers[0]


def test_tool_call_with_thinking(ask: Ask, ollama: Start) -> None:
    """Calls are sent back as objects with a generated id, thinking in its own field."""
    server = ollama(
        answer("Let me see.", call("weather", {"city": "Rome"}), thinking="Rome it is"),
        answer("It is sunny."),
    )
    client = ChatClient.builder(server.model()).default_tools(weather).build()

    result = ask(client.prompt("How is Rome?"))

    [execution] = result.executions
    assistant, response = server.requests[1]["messages"][1:]
    assert result.text.endswith("It is sunny.")
    assert assistant == {
        "role": "assistant",
        "content": "Let me see.",
        "thinking": "Rome it is",
        "tool_calls": [call("weather", {"city": "Rome"}, id=execution.tool_call.id)],
    }
    assert response == {
        "role": "tool",
        "content": "sunny in Rome",
        "tool_name": "weather",
        "tool_call_id": execution.tool_call.id,
    }
    [offered] = server.requests[0]["tools"]
    assert offered["function"]["parameters"]["required"] == ["city"]
    thoughts = "".join(e.text for e in result.events if isinstance(e, ReasoningDelta))
    assert thoughts == ("Rome it is" if ask.streaming else "")


@pytest.mark.parametrize("ids", [("", ""), ("a1", "a2")])
def test_parallel_calls(ask: Ask, ollama: Start, ids: tuple[str, str]) -> None:
    """Two calls of a tool are distinguished, by the server's ids if present."""
    calls = [
        call("weather", {"city": city}, **({"id": id} if id else {}))
        for city, id in zip(("Rome", "Oslo"), ids, strict=True)
    ]
    server = ollama(answer("", *calls), answer("Sunny in both."))
    client = ChatClient.builder(server.model()).default_tools(weather).build()

    result = ask(client.prompt("How are Rome and Oslo?"))

    responses = server.requests[1]["messages"][2:]
    assert result.text == "Sunny in both."
    assert [r["content"] for r in responses] == ["sunny in Rome", "sunny in Oslo"]
    assert len({r["tool_call_id"] for r in responses}) == 2
    assert ids[0] in ("", responses[0]["tool_call_id"])


def test_failed_tool_result(ask: Ask, ollama: Start) -> None:
    """The failure is the content of the tool message."""
    server = ollama(answer("", call("weather", {"city": "Atlantis"})), answer("It sank."))
    client = ChatClient.builder(server.model()).default_tools(weather).build()

    result = ask(client.prompt("How is Atlantis?"))

    assert result.text == "It sank."
    assert server.requests[1]["messages"][-1]["content"] == result.executions[0].response.data
    assert result.executions[0].response.is_error


def test_output_schema(ask: Ask, ollama: Start) -> None:
    """An output schema is sent as `format`."""
    server = ollama(answer('{"n": 1}'))
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}

    result = ask(
        ChatClient.create(server.model()).prompt("A number!").options(output_schema=schema)
    )

    assert result.text == '{"n": 1}'
    assert server.requests[0]["format"] == schema


@pytest.mark.parametrize(
    ("status", "message", "kind"),
    [
        (400, "invalid options", InvalidRequestError),
        (400, "input exceeds maximum context length", ContextLengthExceededError),
        (404, "model 'x' not found", NotFoundError),
        (500, "model runner has stopped", OverloadedError),
    ],
)
def test_error_classes(
    ask: Ask, ollama: Start, status: int, message: str, kind: type[ProviderError]
) -> None:
    """Status and message give the error class."""
    server = ollama(as_json({"error": message}, status))

    with pytest.raises(kind, match=rf"ollama answered {status}( at .*)?: {message}") as caught:
        ask(ChatClient.create(server.model(max_retries=0)).prompt("Hi"))

    assert caught.value.status == status


def test_busy_server_is_retried(ask: Ask, ollama: Start) -> None:
    """A full queue is a transient failure."""
    busy = as_json({"error": "server busy"}, 503, **{"retry-after": "0"})
    server = ollama(busy, answer("Here I am"))

    assert ask(ChatClient.create(server.model()).prompt("Hi")).text == "Here I am"


BEGUN = b'{"message": {"role": "assistant", "content": "We were"}, "done": false}\n'


@pytest.mark.parametrize("mode", ["stream", "astream"])
def test_error_in_stream(ollama: Start, mode: str) -> None:
    """An error line is raised."""
    model = ollama(Reply(BEGUN + b'{"error": "an error was encountered"}\n')).model()

    with pytest.raises(ProviderError, match="an error was encountered"):
        Ask(mode)(ChatClient.create(model).prompt("Hi"))  # type: ignore[arg-type]


@pytest.mark.parametrize("reason", ["load", "unload"])
def test_model_that_was_only_loaded(ask: Ask, ollama: Start, reason: str) -> None:
    """An answer for which the model was not asked is repeated."""
    loaded = {**answer(""), "done_reason": reason}
    server = ollama(Reply(json.dumps(loaded).encode() + b"\n"), answer("Fine."))

    assert ask(ChatClient.create(server.model(max_retries=1)).prompt("Hi")).text == "Fine."


@pytest.mark.parametrize("mode", ["stream", "astream"])
@pytest.mark.parametrize("end", [b"", b'{"message": {"role": "assi'])
def test_interrupted_stream(ollama: Start, mode: str, end: bytes) -> None:
    """Without its last line a stream is interrupted; the error has the partial response."""
    model = ollama(Reply(BEGUN + end)).model()

    with pytest.raises(StreamInterruptedError) as caught:
        Ask(mode)(ChatClient.create(model).prompt("Hi"))  # type: ignore[arg-type]

    assert caught.value.partial.text == "We were"


def test_unterminated_last_line(ollama: Start) -> None:
    """The last line needs no line feed."""
    model = ollama(Reply(as_stream(answer("Hello you")).strip())).model()

    assert collect(model.stream("Hi")).usage.output_tokens == 5


def test_tool_call_events(ollama: Start) -> None:
    """A call is announced with its name, followed by its arguments; calls are numbered."""
    calls = call("weather", {"city": "Rome"}, id="a"), call("weather", {"city": "Oslo"}, id="b")
    server = ollama(answer("", *calls), answer("ok"))
    client = ChatClient.builder(server.model()).default_tools(weather).build()

    events = list(client.prompt("?").stream().events())

    started = [event for event in events if isinstance(event, ToolCallStarted)]
    assert started == [ToolCallStarted("a", "weather", 0), ToolCallStarted("b", "weather", 1)]
    assert ToolCallDelta("b", '{"city":"Oslo"}', 1) in events


# --- URL and key ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("", "http://127.0.0.1:11434"),
        ("0.0.0.0", "http://127.0.0.1:11434"),
        (":9000", "http://127.0.0.1:9000"),
        ("host:1", "http://host:1"),
        ("[::1]", "http://[::1]:11434"),
        ("[::1]:9", "http://[::1]:9"),
        ("https://ollama.com", "https://ollama.com"),
        ("http://localhost:11434/", "http://localhost:11434"),
        ("proxy:80/ollama/", "http://proxy:80/ollama"),
        ("proxy/ollama", "http://proxy:11434/ollama"),
        ("https://proxy/ollama", "https://proxy/ollama"),
        ('"host:1"', "http://host:1"),
    ],
)
def test_host_from_environment(host: str, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """OLLAMA_HOST is accepted in all forms that Ollama accepts."""
    monkeypatch.setenv("OLLAMA_HOST", host)

    assert default_base_url() == url
    assert repr(OllamaChatModel("m")) == f"OllamaChatModel('m', base_url='{url}')"


def test_userinfo_in_host(ask: Ask, ollama: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """User and password of the host are sent but not shown."""
    server = ollama(answer("hi"))
    monkeypatch.setenv("OLLAMA_HOST", server.url.replace("://", "://ada:password@"))
    with OllamaChatModel("m") as model:
        assert ask(ChatClient.create(model).prompt("Hi")).text == "hi"

    assert server.headers[0]["authorization"] == "Basic YWRhOnBhc3N3b3Jk"
    assert "password" not in repr(model)


def test_host_defaults_with_userinfo(monkeypatch: pytest.MonkeyPatch) -> None:
    """Default host and port apply also with a user."""
    monkeypatch.setenv("OLLAMA_HOST", "ada:password@0.0.0.0")

    assert default_base_url() == "http://ada:password@127.0.0.1:11434"


def test_bearer_token(ollama: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The key of a hosted server is an argument, a function or a variable."""
    server = ollama(answer("hi"))
    monkeypatch.delenv("OLLAMA_API_KEY", raising=False)
    assert connect(None, None, {"headers": {"x-a": "1"}}).headers == {"x-a": "1"}
    assert connect(None, "given", {}).headers == {"authorization": "Bearer given"}
    server.model(api_key=lambda: "new").call("Hi")
    assert server.headers[0]["authorization"] == "Bearer new"
    monkeypatch.setenv("OLLAMA_API_KEY", "env")
    assert connect(None, None, {}).headers == {"authorization": "Bearer env"}


def test_context_managers(ollama: Start) -> None:
    """Both context managers close the model."""
    server = ollama(answer("ok"))

    async def use() -> ChatResponse:
        async with server.model() as model:
            return await model.acall("Hi")

    assert asyncio.run(use()).text == "ok"
    with server.model() as model:
        assert model.call("Hi").text == "ok"


# --- options --------------------------------------------------------------------------------


ALL_OPTIONS = OllamaChatOptions(
    model="m",
    temperature=0.5,
    top_p=0.9,
    top_k=40,
    min_p=0.1,
    max_tokens=100,
    stop=("END",),
    presence_penalty=0.1,
    frequency_penalty=0.2,
    repeat_penalty=1.1,
    seed=7,
    num_ctx=8192,
    model_options={"mirostat": 1},
    think="high",
    keep_alive="10m",
    logprobs=True,
    top_logprobs=2,
    response_format="json",
)
ALL_FIELDS = {
    "model": "m",
    "stream": True,
    "think": "high",
    "keep_alive": "10m",
    "logprobs": True,
    "top_logprobs": 2,
    "format": "json",
    "options": {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.1,
        "num_predict": 100,
        "stop": ["END"],
        "presence_penalty": 0.1,
        "frequency_penalty": 0.2,
        "repeat_penalty": 1.1,
        "seed": 7,
        "num_ctx": 8192,
        "mirostat": 1,
    },
}


def test_option_fields() -> None:
    """Model parameters are sent in `options`, others as fields of the request."""
    body = json.loads(json.dumps(encode_options(ALL_OPTIONS, streaming=True)))

    assert body == ALL_FIELDS


def test_options_match_official_types() -> None:
    """The sent fields and tools are valid by Ollama's types."""
    types = pytest.importorskip("ollama._types")
    options = ALL_OPTIONS.mutate(tool_callbacks=tool_callbacks(weather))
    body = json.loads(json.dumps(encode_options(options, streaming=False)))

    request = types.ChatRequest.model_validate(body)

    assert request.tools[0].function.name == "weather"
    assert "tools" not in encode_options(options.mutate(tool_choice="none"), streaming=False)


def test_server_matches_official_types() -> None:
    """Answers of the test server are valid by Ollama's types."""
    types = pytest.importorskip("ollama._types")
    complete = answer("a b", call("f", {"x": 1}), thinking="hm")

    parsed = [
        types.ChatResponse.model_validate_json(line) for line in as_stream(complete).splitlines()
    ]

    assert types.ChatResponse.model_validate(complete).message.thinking == "hm"
    assert parsed[-1].done_reason == "stop"


# --- messages -------------------------------------------------------------------------------


def test_images() -> None:
    """Content and data URLs are sent as base64, also those of tools."""
    image, url = Media("image/png", PIXEL), Media("image/png", f"data:image/png;base64,{ENCODED}")

    [encoded] = encode_message(UserMessage(["Look:", image, url]))
    [shown] = encode_message(ToolResponseMessage([ToolResponse("1", "f", "ok", media=(image,))]))

    assert encoded == {"role": "user", "content": "Look:", "images": [ENCODED, ENCODED]}
    assert shown["images"] == [ENCODED]


@pytest.mark.parametrize(
    ("media", "problem"),
    [
        (Media("application/pdf", b"%PDF"), "takes images only, not application/pdf"),
        (Media("image/png", "https://example.com/i.png"), "needs the bytes"),
        (Media("image/svg+xml", "data:image/svg+xml,%3Csvg/%3E"), "needs the bytes"),
    ],
)
def test_unsupported_media(media: Media, problem: str) -> None:
    """Other media raise before a request is sent."""
    with pytest.raises(UsageError, match=problem):
        encode_message(UserMessage("Look", [media]))


def test_foreign_media_are_omitted() -> None:
    """Media created by other models are omitted."""
    media = [Media("audio/wav", b"RIFF"), Media("image/png", "https://x.org/y.png")]

    [body] = encode_message(AssistantMessage(["said", *media, Media("image/png", b"abc")]))

    assert body == {"role": "assistant", "content": "said", "images": ["YWJj"]}


def test_message_fields() -> None:
    """Foreign reasoning is omitted; arguments become objects."""
    calls = [ToolCall(str(at), "f", text) for at, text in enumerate(("", "[1]", "{oops"))]
    thoughts = [Reasoning("mine", provider="ollama"), Reasoning("theirs", "sig", "anthropic")]

    [body] = encode_message(AssistantMessage("said", calls, reasoning=thoughts))

    assert (body["content"], body["thinking"]) == ("said", "mine")
    assert [c["function"]["arguments"] for c in body["tool_calls"]] == [
        {},
        {"malformed_arguments": "[1]"},
        {"malformed_arguments": "{oops"},
    ]
    assert encode_message(SystemMessage("s")) == [{"role": "system", "content": "s"}]


class Note(Message):
    """A message of an unknown type."""

    role = "user"


def test_unknown_message_type() -> None:
    """A message of an unknown type raises."""
    with pytest.raises(UsageError, match="Note is not a kind of message"):
        encode_message(Note())


# --- answers --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ({"done_reason": "length"}, "length"),
        ({"done_reason": "stop"}, "stop"),
        ({"done_reason": "load"}, "stop"),
        ({"done_reason": None}, "stop"),
        ({"done": False, "done_reason": None}, None),
    ],
)
def test_finish_reasons(line: Json, reason: str | None) -> None:
    """Only completed answers have a reason, which older servers omit."""
    assert decode_response(json.dumps(answer("x", **line)).encode()).finish_reason == reason


def test_finish_reason_with_calls() -> None:
    """The reason "stop" with a call gives `tool_calls`; arguments may be a string."""
    complete = answer("", call("f", '{"a": 1}'))  # type: ignore[arg-type]

    response = decode_response(json.dumps(complete).encode())

    assert response.finish_reason == "tool_call"
    assert response.output is not None
    assert response.output.tool_calls[0].arguments == '{"a": 1}'


def test_log_probabilities_are_kept() -> None:
    """Log probabilities are metadata of the generation."""
    logprobs = [{"token": "x", "logprob": -0.1}]
    line = json.dumps(answer("x", logprobs=logprobs)).encode()

    for response in (decode_response(line), StreamDecoder().feed(line)):
        assert isinstance(response, ChatResponse)
        assert response.result is not None
        assert response.result.metadata == {"logprobs": logprobs}


def test_streamed_log_probabilities() -> None:
    """The joined response has the values of all tokens."""
    decoder = StreamDecoder()
    lines = [
        answer("a", logprobs=[{"token": "a"}], done=False),
        answer("b", logprobs=[{"token": "b"}], done=False),
        answer(""),
    ]
    result = collect(decoder.feed(json.dumps(line).encode()) for line in lines)

    assert result.generations[0].metadata == {"logprobs": [{"token": "a"}, {"token": "b"}]}


@pytest.mark.parametrize("count", ["7", "7.0", '"7"'])
def test_number_forms(count: str) -> None:
    """Integers may be floats or strings, as some servers send them."""
    response = decode_response(b'{"message": {}, "done": true, "eval_count": %b}' % count.encode())

    assert repr(response.usage.total_tokens) == "7"


@pytest.mark.parametrize(
    "body",
    [
        b"<html>",
        b"[]",
        b'{"message": 1}',
        b'{"message": {"tool_calls": [1]}}',
        b'{"message": {"tool_calls": 1}}',
        b'{"message": {"content": 1}}',
        b'{"message": {"thinking": ["x"]}}',
        b'{"message": {"tool_calls": [{"id": 1}]}}',
        b'{"message": {}, "done": true, "eval_count": [1]}',
    ],
)
def test_invalid_body(body: bytes) -> None:
    """The error shows the beginning of the body."""
    with pytest.raises(InvalidResponseError, match="is not a response"):
        decode_response(body)
    with pytest.raises(InvalidResponseError, match="is not a response"):
        StreamDecoder().feed(body)
