"""Ollama through the client and on its own, against a server as strict as the real one."""

import asyncio
import base64
import json
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
from conftest import Ask
from loopback import LoopbackServer, as_json
from replay import collect
from servers import Reply

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
)
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
from chatclient.events import ReasoningDelta, ToolCallDelta, ToolCallStarted
from chatclient.messages import Reasoning
from chatclient.providers.ollama import (
    OllamaChatModel,
    OllamaChatOptions,
    headers_for,
    host_of_environment,
)
from chatclient.providers.ollama_codec import (
    StreamDecoder,
    decode_response,
    encode_message,
    encode_options,
)
from chatclient.tools import tool, tool_callbacks

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
    """Return a whole answer; what is given beside text and calls goes into the last line."""
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


def as_stream(whole: Json) -> bytes:
    """Return *whole* as a stream tells it: words line by line, calls in lines of their own."""
    message = whole["message"]
    head = {key: whole[key] for key in ("model", "created_at")}
    pieces: list[Json] = [{"thinking": word} for word in _words(message.get("thinking", ""))]
    pieces += [{"content": word} for word in _words(message["content"])]
    pieces += [{"content": "", "tool_calls": [c]} for c in message.get("tool_calls", ())]
    lines = [{**head, "message": {"role": "assistant", **p}, "done": False} for p in pieces]
    lines.append({**whole, "message": {"role": "assistant", "content": ""}})
    return b"".join(b"%b\n" % json.dumps(line).encode() for line in lines)


def _words(text: str) -> list[str]:
    return [f" {word}" if at else word for at, word in enumerate(text.split(" "))] if text else []


def problem_of(request: Json) -> str | None:
    """Return why the server would refuse *request*, or misunderstand it."""
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
            answered = (message["tool_call_id"], message["tool_name"])
            if not open_calls or open_calls.pop(0) != answered:
                return f"{answered} answers no call"
        elif open_calls:
            return f"without answer: {open_calls}"
    return None


class Ollama:
    """A server and what it was asked; it gives its answers in order, the last for ever."""

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
        self._models.append(OllamaChatModel(name, **{"base_url": self.url, **settings}))
        return self._models[-1]

    def close(self) -> None:
        for model in self._models:
            model.close()
        self._server.close()


@pytest.fixture
def ollama() -> Iterator[Callable[..., Ollama]]:
    """Start servers that speak Ollama's API; all are gone after the test."""
    started: list[Ollama] = []

    def start(*answers: Json | Reply) -> Ollama:
        started.append(Ollama(*answers))
        return started[-1]

    yield start
    for one in started:
        one.close()


Start = Callable[..., Ollama]


@tool
def weather(city: str) -> str:
    """Tell the weather."""
    if city == "Atlantis":
        msg = f"{city} has no weather"
        raise ValueError(msg)
    return f"sunny in {city}"


# --- through the client ---------------------------------------------------------------------


def test_an_answer_comes_with_all_that_is_known_about_it(ask: Ask, ollama: Start) -> None:
    """Text, finish reason, model and usage are those of the server."""
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


def test_a_tool_is_called_and_its_thoughts_go_back(ask: Ask, ollama: Start) -> None:
    """Calls go back as objects under an id that was made up, thoughts in their own field."""
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
def test_parallel_calls_are_answered_in_their_order(
    ask: Ask, ollama: Start, ids: tuple[str, str]
) -> None:
    """Two calls of one tool are told apart, by the server's ids where it gives any."""
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


def test_a_failing_tool_is_told(ask: Ask, ollama: Start) -> None:
    """What went wrong is the content of the tool's message."""
    server = ollama(answer("", call("weather", {"city": "Atlantis"})), answer("It sank."))
    client = ChatClient.builder(server.model()).default_tools(weather).build()

    result = ask(client.prompt("How is Atlantis?"))

    assert result.text == "It sank."
    assert server.requests[1]["messages"][-1]["content"] == result.executions[0].response.data
    assert result.executions[0].response.is_error


def test_structured_output_is_asked_for_by_schema(ask: Ask, ollama: Start) -> None:
    """An output schema is the format."""
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
def test_refusals_are_told_apart(
    ask: Ask, ollama: Start, status: int, message: str, kind: type[ProviderError]
) -> None:
    """Status and words decide what is raised."""
    server = ollama(as_json({"error": message}, status))

    with pytest.raises(kind, match=f"ollama answered {status}: {message}") as caught:
        ask(ChatClient.create(server.model(max_retries=0)).prompt("Hi"))

    assert caught.value.status == status


def test_a_busy_server_is_asked_again(ask: Ask, ollama: Start) -> None:
    """A full queue is a passing failure."""
    busy = as_json({"error": "server busy"}, 503, **{"retry-after": "0"})
    server = ollama(busy, answer("Here I am"))

    assert ask(ChatClient.create(server.model()).prompt("Hi")).text == "Here I am"


BEGUN = b'{"message": {"role": "assistant", "content": "We were"}, "done": false}\n'


@pytest.mark.parametrize("mode", ["stream", "astream"])
def test_an_error_in_a_stream_is_raised(ollama: Start, mode: str) -> None:
    """A line may say that the model has failed."""
    model = ollama(Reply(BEGUN + b'{"error": "an error was encountered"}\n')).model()

    with pytest.raises(ProviderError, match="an error was encountered"):
        Ask(mode)(ChatClient.create(model).prompt("Hi"))  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["stream", "astream"])
@pytest.mark.parametrize("end", [b"", b'{"message": {"role": "assi'])
def test_a_stream_that_breaks_off_carries_what_had_come(
    ollama: Start, mode: str, end: bytes
) -> None:
    """Without the line that says done an answer is not over."""
    model = ollama(Reply(BEGUN + end)).model()

    with pytest.raises(StreamInterruptedError) as caught:
        Ask(mode)(ChatClient.create(model).prompt("Hi"))  # type: ignore[arg-type]

    assert caught.value.partial.text == "We were"


def test_a_last_line_needs_no_end(ollama: Start) -> None:
    """An answer is whole without the last line feed."""
    model = ollama(Reply(as_stream(answer("Hello you")).strip())).model()

    assert collect(model.stream("Hi")).usage.output_tokens == 5


def test_tool_calls_are_told_as_events(ollama: Start) -> None:
    """A call is announced with its name, its arguments follow; calls are numbered."""
    calls = call("weather", {"city": "Rome"}, id="a"), call("weather", {"city": "Oslo"}, id="b")
    server = ollama(answer("", *calls), answer("ok"))
    client = ChatClient.builder(server.model()).default_tools(weather).build()

    events = list(client.prompt("?").stream().events())

    started = [event for event in events if isinstance(event, ToolCallStarted)]
    assert started == [ToolCallStarted("a", "weather", 0), ToolCallStarted("b", "weather", 1)]
    assert ToolCallDelta("b", '{"city":"Oslo"}', 1) in events


# --- where and as whom ----------------------------------------------------------------------


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
def test_the_environment_says_where(host: str, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """OLLAMA_HOST is understood in all the forms that Ollama itself knows."""
    monkeypatch.setenv("OLLAMA_HOST", host)

    assert host_of_environment() == url
    assert repr(OllamaChatModel("m")) == f"OllamaChatModel('m', base_url='{url}')"


def test_the_environment_may_name_a_user(
    ask: Ask, ollama: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a server behind a proxy with a password; it is sent, and not shown."""
    server = ollama(answer("hi"))
    monkeypatch.setenv("OLLAMA_HOST", server.url.replace("://", "://ada:password@"))
    with OllamaChatModel("m") as model:
        assert ask(ChatClient.create(model).prompt("Hi")).text == "hi"

    assert server.headers[0]["authorization"] == "Basic YWRhOnBhc3N3b3Jk"
    assert "password" not in repr(model)


def test_a_user_takes_nothing_from_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """The usual port and machine are filled in as without one."""
    monkeypatch.setenv("OLLAMA_HOST", "ada:password@0.0.0.0")

    assert host_of_environment() == "http://ada:password@127.0.0.1:11434"


def test_a_key_is_a_bearer_token(ollama: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hosted server's key comes from the argument, a function, or the environment."""
    server = ollama(answer("hi"))
    monkeypatch.delenv("OLLAMA_API_KEY", raising=False)
    assert headers_for(None, {"x-a": "1"}) == {"x-a": "1"}
    assert headers_for("given", {}) == {"authorization": "Bearer given"}
    server.model(api_key=lambda: "new").call("Hi")
    assert server.headers[0]["authorization"] == "Bearer new"
    monkeypatch.setenv("OLLAMA_API_KEY", "env")
    assert headers_for(None, {}) == {"authorization": "Bearer env"}


def test_a_model_is_closed_by_its_context(ollama: Start) -> None:
    """Both kinds of context manager work."""
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
    extra={"truncate": False},
)
ALL_FIELDS = {
    "model": "m",
    "stream": True,
    "think": "high",
    "keep_alive": "10m",
    "logprobs": True,
    "top_logprobs": 2,
    "format": "json",
    "truncate": False,
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


def test_options_go_where_the_api_wants_them() -> None:
    """The model's parameters are options of the request, the others its fields."""
    body = json.loads(json.dumps(encode_options(ALL_OPTIONS, streaming=True)))

    assert body == ALL_FIELDS


def test_our_options_are_valid() -> None:
    """Ollama's own types accept the fields and the tools that we send."""
    types = pytest.importorskip("ollama._types")
    options = ALL_OPTIONS.mutate(tool_callbacks=tool_callbacks(weather))
    body = json.loads(json.dumps(encode_options(options, streaming=False)))

    request = types.ChatRequest.model_validate(body)

    assert request.tools[0].function.name == "weather"
    assert "tools" not in encode_options(options.mutate(tool_choice="none"), streaming=False)


def test_our_server_is_honest() -> None:
    """Ollama's own types accept what the server of these tests answers."""
    types = pytest.importorskip("ollama._types")
    whole = answer("a b", call("f", {"x": 1}), thinking="hm")

    parsed = [
        types.ChatResponse.model_validate_json(line) for line in as_stream(whole).splitlines()
    ]

    assert types.ChatResponse.model_validate(whole).message.thinking == "hm"
    assert parsed[-1].done_reason == "stop"


# --- messages -------------------------------------------------------------------------------


def test_images_are_sent_as_base_64() -> None:
    """Bytes and data URLs are images of the message; of tools, too."""
    image, url = Media("image/png", PIXEL), Media("image/png", f"data:image/png;base64,{ENCODED}")

    [asked] = encode_message(UserMessage(["Look:", image, url]))
    [shown] = encode_message(ToolResponseMessage([ToolResponse("1", "f", "ok", media=(image,))]))

    assert asked == {"role": "user", "content": "Look:", "images": [ENCODED, ENCODED]}
    assert shown["images"] == [ENCODED]


@pytest.mark.parametrize(
    ("media", "problem"),
    [
        (Media("application/pdf", b"%PDF"), "takes images only, not application/pdf"),
        (Media("image/png", "https://example.com/i.png"), "needs the bytes"),
        (Media("image/svg+xml", "data:image/svg+xml,%3Csvg/%3E"), "needs the bytes"),
    ],
)
def test_other_media_are_refused(media: Media, problem: str) -> None:
    """What the server cannot take is an error before anything is sent."""
    with pytest.raises(UsageError, match=problem):
        encode_message(UserMessage("Look", [media]))


def test_what_another_model_spoke_or_drew_elsewhere_is_left_out() -> None:
    """A conversation that began with another server goes on."""
    media = [Media("audio/wav", b"RIFF"), Media("image/png", "https://x.org/y.png")]

    [body] = encode_message(AssistantMessage(["said", *media, Media("image/png", b"abc")]))

    assert body == {"role": "assistant", "content": "said", "images": ["YWJj"]}


def test_messages_keep_what_the_server_knows() -> None:
    """Thoughts of other providers are left out; arguments are made objects."""
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
    """No kind of message that the library knows."""

    role = "user"


def test_unknown_messages_are_refused() -> None:
    """A message of another kind is a mistake of the caller."""
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
def test_finish_reasons_have_one_meaning(line: Json, reason: str | None) -> None:
    """Only done answers have a reason, which older servers do not name."""
    assert decode_response(json.dumps(answer("x", **line)).encode()).finish_reason == reason


def test_calls_decide_the_finish_reason() -> None:
    """The server says stop also when it calls a tool, whose arguments may be a text."""
    whole = answer("", call("f", '{"a": 1}'))  # type: ignore[arg-type]

    response = decode_response(json.dumps(whole).encode())

    assert response.finish_reason == "tool_call"
    assert response.output is not None
    assert response.output.tool_calls[0].arguments == '{"a": 1}'


def test_log_probabilities_are_kept() -> None:
    """They are the generation's metadata."""
    logprobs = [{"token": "x", "logprob": -0.1}]
    line = json.dumps(answer("x", logprobs=logprobs)).encode()

    for response in (decode_response(line), StreamDecoder().feed(line)):
        assert isinstance(response, ChatResponse)
        assert response.result is not None
        assert response.result.metadata == {"logprobs": logprobs}


def test_log_probabilities_of_a_stream_add_up() -> None:
    """The whole has those of all its tokens."""
    decoder = StreamDecoder()
    lines = [
        answer("a", logprobs=[{"token": "a"}], done=False),
        answer("b", logprobs=[{"token": "b"}], done=False),
        answer(""),
    ]
    result = collect(decoder.feed(json.dumps(line).encode()) for line in lines)

    assert result.generations[0].metadata == {"logprobs": [{"token": "a"}, {"token": "b"}]}


@pytest.mark.parametrize("count", ["7", "7.0", '"7"'])
def test_a_number_may_be_written_in_several_ways(count: str) -> None:
    """Not every server that speaks this API writes whole numbers as such."""
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
def test_an_answer_that_cannot_be_read_is_reported(body: bytes) -> None:
    """Whatever else comes with status 200 is an error that shows its beginning."""
    with pytest.raises(InvalidResponseError, match="is not a response"):
        decode_response(body)
    with pytest.raises(InvalidResponseError, match="is not a response"):
        StreamDecoder().feed(body)
