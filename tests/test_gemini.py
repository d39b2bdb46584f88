"""Gemini through the client and on its own, against a server as strict as the real one."""

import asyncio
import base64
import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
from conftest import Ask, Mode
from loopback import LoopbackServer, as_json
from replay import collect
from servers import Reply

from chatclient import (
    AssistantMessage,
    ChatClient,
    ChatOptions,
    ChatResponse,
    Media,
    Message,
    Prompt,
    SystemMessage,
    ToolCall,
    ToolResponse,
    ToolResponseMessage,
    UserMessage,
)
from chatclient.aggregator import MessageAggregator
from chatclient.errors import (
    AuthenticationError,
    ContextLengthExceededError,
    InvalidRequestError,
    InvalidResponseError,
    OverloadedError,
    RateLimitedError,
    StreamInterruptedError,
    UsageError,
)
from chatclient.events import ReasoningDelta, ToolCallDelta, ToolCallStarted
from chatclient.messages import ProviderPart, Reasoning
from chatclient.providers.gemini import GeminiChatModel, GeminiChatOptions
from chatclient.providers.gemini_decoding import decode_part, decode_response
from chatclient.providers.gemini_encoding import (
    FROM_3,
    UP_TO_2,
    EncodedConversation,
    dialect_of,
    encode_message,
    encode_options,
)
from chatclient.providers.gemini_stream import StreamDecoder, StreamReader
from chatclient.response import Usage
from chatclient.serialization import message_from_dict, message_to_dict
from chatclient.tool import ToolDefinition, ToolMetadata, ToolResult
from chatclient.tools import ToolContext, tool, tool_callbacks

Json = dict[str, Any]

PIXEL = b"\x89PNG\xfb\xff\xfe"

# --- the server -----------------------------------------------------------------------------

_FIELDS = {
    "contents",
    "systemInstruction",
    "tools",
    "toolConfig",
    "generationConfig",
    "safetySettings",
    "cachedContent",
    "labels",
    "continuationToken",
}
_KINDS = {
    "text",
    "inlineData",
    "fileData",
    "functionCall",
    "functionResponse",
    "executableCode",
    "codeExecutionResult",
}


def call(name: str, args: Json, **more: Any) -> Json:
    """Return the part that calls a function; `id` goes into the call, the rest beside it."""
    function = {"name": name, "args": args, **({"id": more.pop("id")} if "id" in more else {})}
    return {"functionCall": function, **more}


def answer(*parts: str | Json, **candidate: Any) -> Json:
    """Return a whole answer; texts stand for text parts."""
    content = {"parts": [{"text": p} if isinstance(p, str) else p for p in parts], "role": "model"}
    return {
        "candidates": [{"content": content, "finishReason": "STOP", "index": 0, **candidate}],
        "usageMetadata": {
            "promptTokenCount": 10,
            "toolUsePromptTokenCount": 3,
            "candidatesTokenCount": 5,
            "thoughtsTokenCount": 7,
            "cachedContentTokenCount": 4,
            "totalTokenCount": 25,
        },
        "modelVersion": "stub-001",
        "responseId": "r1",
    }


def as_stream(whole: Json) -> bytes:
    """Return *whole* as a stream tells it: parts one by one, text by words, all at CRLFs."""
    candidate = whole["candidates"][0]
    parts = [piece for part in candidate["content"]["parts"] for piece in _told(part)]
    chunks = [_chunk(whole, part) for part in parts]
    end = {**candidate, "content": {"parts": [{"text": ""}], "role": "model"}}
    chunks.append({**whole, "candidates": [end]})
    return b"".join(b"data: %b\r\n\r\n" % json.dumps(chunk).encode() for chunk in chunks)


def _told(part: Json) -> Iterator[Json]:
    words = part["text"].split(" ") if part.keys() <= {"text", "thought"} else []
    if len(words) < 2:
        yield part
        return
    for at, word in enumerate(words):
        yield {**part, "text": f" {word}" if at else word}


def _chunk(whole: Json, part: Json) -> Json:
    content = {"parts": [part], "role": "model"}
    return {**whole, "candidates": [{"content": content, "index": 0}]}


def problem_of(request: Json) -> str | None:
    """Return why the service would refuse *request*."""
    if unknown := request.keys() - _FIELDS:
        return f"Unknown name {unknown}"
    contents = request.get("contents") or []
    if not contents or contents[-1]["role"] != "user":
        return "contents have to end with the user"
    for content in contents:
        if content["role"] not in ("user", "model"):
            return "Please use a valid role: user, model."
        kinds = [part.keys() & _KINDS for part in content["parts"]]
        if not kinds or any(len(kind) != 1 for kind in kinds):
            return f"each part has to have one field of data: {content}"
    return next(filter(None, itertools.starmap(_mismatch, itertools.pairwise(contents))), None)


def _mismatch(content: Json, following: Json) -> str | None:
    calls = [part["functionCall"] for part in content["parts"] if "functionCall" in part]
    results = [p["functionResponse"] for p in following["parts"] if "functionResponse" in p]
    known = [(c["name"], c.get("id")) for c in calls]
    if known != [(r["name"], r.get("id")) for r in results]:
        return f"function responses {results} do not answer the function calls {known}"
    objects = [c["args"] for c in calls] + [r["response"] for r in results]
    if not all(isinstance(value, dict) for value in objects):
        return "arguments and responses have to be objects"
    return None


class Gemini:
    """A server and what it was asked; it gives its answers in order, the last for ever."""

    def __init__(self, *answers: Json | Reply) -> None:
        self._answers = list(answers)
        self.requests: list[Json] = []
        self.paths: list[str] = []
        self.headers: list[dict[str, str]] = []
        self._models: list[GeminiChatModel] = []
        self._server = LoopbackServer(self._reply)

    @property
    def url(self) -> str:
        return self._server.url

    def close(self) -> None:
        for model in self._models:
            model.close()
        self._server.close()

    def _reply(self, path: str, headers: dict[str, str], request: Json) -> Reply:
        self.paths.append(path)
        self.headers.append(headers)
        self.requests.append(request)
        if problem := problem_of(request):
            error = {"code": 400, "message": problem, "status": "INVALID_ARGUMENT"}
            return as_json({"error": error}, 400)
        reply = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(reply, Reply):
            return reply
        if ":streamGenerateContent?alt=sse" in path:
            return Reply(as_stream(reply), content_type="text/event-stream")
        return as_json(reply)

    def model(self, name: str = "gemini-2.5-flash", **settings: Any) -> GeminiChatModel:
        settings = {"api_key": "secret", "base_url": self.url, **settings}
        self._models.append(GeminiChatModel(name, **settings))
        return self._models[-1]

    @property
    def contents(self) -> list[Json]:
        """What the last request held."""
        contents: list[Json] = self.requests[-1]["contents"]
        return contents


@pytest.fixture
def gemini() -> Iterator[Callable[..., Gemini]]:
    """Start servers that speak Gemini's API; all are gone after the test."""
    started: list[Gemini] = []

    def start(*answers: Json | Reply) -> Gemini:
        started.append(Gemini(*answers))
        return started[-1]

    yield start
    for one in started:
        one.close()


Start = Callable[..., Gemini]


@tool
def weather(city: str) -> str:
    """Tell the weather."""
    if city == "Atlantis":
        msg = f"{city} has no weather"
        raise ValueError(msg)
    return f"sunny in {city}"


@tool
def count() -> int:
    """Count."""
    return 42


# --- through the client ---------------------------------------------------------------------


def test_an_answer_comes_with_all_that_is_known_about_it(ask: Ask, gemini: Start) -> None:
    """Text, finish reason, model and usage are those of the service."""
    server = gemini(answer("Hello you there", groundingMetadata={"webSearchQueries": ["x"]}))
    client = ChatClient.builder(server.model()).default_system("Be brief.").build()

    result = ask(client.prompt("Hi"))

    response = result.response.chat_response
    assert result.text == "Hello you there"
    assert (response.metadata.id, response.metadata.model) == ("r1", "stub-001")
    usage = response.usage
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (13, 12, 25)
    assert (usage.cache_read_tokens, usage.reasoning_tokens) == (4, 7)
    assert response.result is not None
    assert (response.finish_reason, response.result.native_finish_reason) == ("stop", "STOP")
    assert response.result.metadata == {"groundingMetadata": {"webSearchQueries": ["x"]}}
    assert server.requests[0] == {
        "systemInstruction": {"parts": [{"text": "Be brief."}]},
        "contents": [{"role": "user", "parts": [{"text": "Hi"}]}],
    }
    assert server.headers[0]["x-goog-api-key"] == "secret"
    assert "secret" not in server.paths[0]


def to_be_continued(*parts: str | Json, token: str | None = "dG9r") -> Json:
    more = {} if token is None else {"continuationToken": token}
    return answer(*parts, finishReason="CONTINUATION", **more)


def test_an_answer_that_is_too_long_for_one_request_is_gone_on_with(
    ask: Ask, gemini: Start
) -> None:
    """The same request is sent again with the token; all parts are one answer, and all count."""
    ends = (to_be_continued("One two. "), to_be_continued("Three. ", token="bmV4dA=="))
    server = gemini(*ends, answer("End."))
    result = ask(ChatClient.create(server.model()).prompt("Count."))
    response = result.response.chat_response
    first, *others = server.requests

    assert result.text == response.text == "One two. Three. End."
    assert response.finish_reason == "stop"
    assert response.usage == Usage(3 * 13, 3 * 12, 3 * 4, None, 3 * 7)
    assert others == [
        {**first, "continuationToken": "dG9r"},
        {**first, "continuationToken": "bmV4dA=="},
    ]


@pytest.mark.parametrize(("most", "requests"), [(None, 9), (1, 2), (0, 1)])
def test_an_answer_without_an_end_is_cut_off(
    ask: Ask, gemini: Start, most: int | None, requests: int
) -> None:
    """After so many continuations it is handed out as far as it goes."""
    server = gemini(to_be_continued("On. "))
    model = server.model(options=GeminiChatOptions(max_continuations=most))
    result = ask(ChatClient.create(model).prompt("Count."))

    assert len(server.requests) == requests
    assert result.text == "On. " * requests
    assert result.response.chat_response.finish_reason == "length"


def test_only_what_has_a_token_can_be_gone_on_with(ask: Ask, gemini: Start) -> None:
    """Not an answer without one, nor several answers at once, nor one that ended otherwise."""
    several = to_be_continued("a")
    several["candidates"] *= 2
    several["candidates"][1] = {**several["candidates"][1], "index": 1}
    whole = answer("c", continuationToken="dG9r")
    for said in (to_be_continued("b", token=None), several, whole):
        event = Reply(b"data: %b\r\n\r\n" % json.dumps(said).encode())
        server = gemini(event if ask.streaming else said)
        ask(ChatClient.create(server.model()).prompt("Count."))

        assert len(server.requests) == 1


def test_a_number_of_continuations_has_to_be_one() -> None:
    """Others are refused before anything is sent."""
    with pytest.raises(UsageError, match="max_continuations must be at least 0"):
        GeminiChatOptions(max_continuations=-1)


def test_a_tool_is_called_and_its_signature_goes_back(ask: Ask, gemini: Start) -> None:
    """The thought signature stands in the next round where it stood in the answer."""
    server = gemini(
        answer("Let me see.", call("weather", {"city": "Rome"}, thoughtSignature="c2ln")),
        answer("It is sunny."),
    )
    client = ChatClient.builder(server.model()).default_tools(weather).build()

    result = ask(client.prompt("How is Rome?"))

    assert result.text.endswith("It is sunny.")
    assert server.contents == [
        {"role": "user", "parts": [{"text": "How is Rome?"}]},
        {
            "role": "model",
            "parts": [
                {"text": "Let me see."},
                {
                    "functionCall": {"name": "weather", "args": {"city": "Rome"}},
                    "thoughtSignature": "c2ln",
                },
            ],
        },
        {
            "role": "user",
            "parts": [
                {
                    "functionResponse": {
                        "name": "weather",
                        "response": {"result": "sunny in Rome"},
                    }
                }
            ],
        },
    ]
    [declaration] = server.requests[0]["tools"][0]["functionDeclarations"]
    assert declaration["name"] == "weather"
    assert declaration["parametersJsonSchema"]["required"] == ["city"]
    first = result.executions[0]
    assert first.tool_call.id.startswith("gemini-call-")


@pytest.mark.parametrize("ids", [("", ""), ("a1", "a2")])
def test_parallel_calls_are_answered_in_their_order(
    ask: Ask, gemini: Start, ids: tuple[str, str]
) -> None:
    """Two calls of one tool are told apart by place, or by id where the service gives one."""
    calls = [
        call("weather", {"city": city}, **({"id": id} if id else {}))
        for city, id in zip(("Rome", "Oslo"), ids, strict=True)
    ]
    server = gemini(answer(*calls), answer("Sunny in both."))
    client = ChatClient.builder(server.model()).default_tools(weather).build()

    result = ask(client.prompt("How are Rome and Oslo?"))

    assert result.text == "Sunny in both."
    assert [part["functionResponse"]["response"] for part in server.contents[-1]["parts"]] == [
        {"result": "sunny in Rome"},
        {"result": "sunny in Oslo"},
    ]
    assert len({execution.tool_call.id for execution in result.executions}) == 2
    assert ("a1" in json.dumps(server.contents)) == bool(ids[0])


def test_a_failing_tool_is_told_as_an_error(ask: Ask, gemini: Start) -> None:
    """What went wrong goes back under the key that the service knows for it."""
    server = gemini(answer(call("weather", {"city": "Atlantis"})), answer("It sank."))
    client = ChatClient.builder(server.model()).default_tools(weather).build()

    result = ask(client.prompt("How is Atlantis?"))

    [part] = server.contents[-1]["parts"]
    assert result.text == "It sank."
    assert part["functionResponse"]["response"].keys() == {"error"}


def test_thoughts_are_told_and_go_back(ask: Ask, gemini: Start) -> None:
    """Thoughts are reasoning, not text; their parts go back with the conversation."""
    thought = {"text": "Hm, let me think", "thought": True}
    server = gemini(answer(thought, call("count", {})), answer("42"))
    client = ChatClient.builder(server.model()).default_tools(count).build()

    result = ask(client.prompt("Count!"))

    assert result.text == "42"
    assert server.contents[1]["parts"][0] == thought
    told = "".join(event.text for event in result.events if isinstance(event, ReasoningDelta))
    assert told == ("Hm, let me think" if ask.streaming else "")


def test_structured_output_is_asked_for_by_schema(ask: Ask, gemini: Start) -> None:
    """An output schema goes out as JSON Schema, with the mime type that it needs."""
    server = gemini(answer('{"n": 1}'))
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    client = ChatClient.create(server.model())

    result = ask(client.prompt("Give me a number").options(output_schema=schema))

    assert result.text == '{"n": 1}'
    assert server.requests[0]["generationConfig"] == {
        "responseMimeType": "application/json",
        "responseJsonSchema": schema,
    }


def test_a_refused_prompt_is_filtered_content(ask: Ask, gemini: Start) -> None:
    """An answer without candidates says why in its finish reason."""
    blocked = {"promptFeedback": {"blockReason": "SAFETY"}, "modelVersion": "stub"}
    events = Reply(b"data: %b\r\n" % json.dumps(blocked).encode())
    server = gemini(events if ask.streaming else as_json(blocked))

    result = ask(ChatClient.create(server.model()).prompt("How to …?"))

    response = result.response.chat_response
    assert (result.text, response.finish_reason) == ("", "content_filter")
    assert response.result is not None
    assert response.result.native_finish_reason == "SAFETY"
    assert response.metadata.values["promptFeedback"] == blocked["promptFeedback"]


MALFORMED: Json = {"content": {}, "finishReason": "MALFORMED_FUNCTION_CALL"}


def failed(ask: Ask, candidate: Json) -> Reply:
    """Return an answer in which there is nothing but *candidate*."""
    whole = {"candidates": [candidate], "usageMetadata": {"promptTokenCount": 9}}
    return (
        Reply(b"data: %b\r\n\r\n" % json.dumps(whole).encode()) if ask.streaming else as_json(whole)
    )


@pytest.mark.parametrize("thoughts", [[], [{"text": "hm", "thought": True}]])
def test_a_call_that_the_model_could_not_write_is_asked_for_again(
    ask: Ask, gemini: Start, monkeypatch: pytest.MonkeyPatch, thoughts: list[Json]
) -> None:
    """The service gives nothing of it; as an answer, nothing would be the end of the turn."""
    monkeypatch.setattr("random.uniform", lambda *_: 0.0)
    nothing = failed(ask, {**MALFORMED, "content": {"parts": thoughts}})
    server = gemini(nothing, answer(call("weather", {"city": "Rome"})), answer("Sunny."))
    request = ChatClient.create(server.model(max_retries=1)).prompt("?").tools(weather)
    if ask.streaming and thoughts:  # what was said cannot be taken back
        with pytest.raises(InvalidResponseError, match="MALFORMED_FUNCTION_CALL"):
            ask(request)
        return

    assert ask(request).text == "Sunny."
    assert len(server.requests) == 3


@pytest.mark.parametrize("mode", ["stream", "astream"])
def test_pieces_without_a_word_are_no_answer(
    gemini: Start, mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that could not be written is asked for again behind them, too."""
    monkeypatch.setattr("random.uniform", lambda *_: 0.0)
    silent = {"content": {"role": "model", "parts": [{"text": ""}]}}
    events = [{"candidates": [candidate]} for candidate in (silent, silent, MALFORMED)]
    nothing = b"".join(b"data: %b\r\n\r\n" % json.dumps(event).encode() for event in events)
    server = gemini(Reply(nothing), answer("Sunny."))

    assert Ask(mode)(ChatClient.create(server.model(max_retries=1)).prompt("?")).text == "Sunny."


def test_calls_that_never_can_be_written_are_an_error(ask: Ask, gemini: Start) -> None:
    """Another model may have an answer; where there are words, they are the answer."""
    client = ChatClient.create(gemini(failed(ask, MALFORMED)).model(max_retries=0))
    with pytest.raises(InvalidResponseError, match="MALFORMED_FUNCTION_CALL") as caught:
        ask(client.prompt("?"))
    words = failed(ask, {**MALFORMED, "content": {"parts": [{"text": "Well"}]}})
    said = ask(ChatClient.create(gemini(words).model()).prompt("?"))

    assert caught.value.retryable
    assert (said.text, said.response.chat_response.finish_reason) == ("Well", "error")


@pytest.mark.parametrize(
    ("status", "message", "kind"),
    [
        (400, "contents are wrong", InvalidRequestError),
        (400, "The input token count (9) exceeds the maximum", ContextLengthExceededError),
        (403, "Permission denied", AuthenticationError),
        (429, "Quota exceeded", RateLimitedError),
        (503, "The model is overloaded", OverloadedError),
    ],
)
def test_refusals_are_told_apart(
    ask: Ask, gemini: Start, status: int, message: str, kind: type[Exception]
) -> None:
    """The service's status and words decide what is raised."""
    error = {"error": {"code": status, "message": message, "status": "X"}}
    server = gemini(as_json(error, status))
    client = ChatClient.create(server.model(max_retries=0))

    with pytest.raises(kind, match=f"gemini answered {status}: {message[:9]}") as caught:
        ask(client.prompt("Hi"))

    assert caught.value.status == status  # type: ignore[attr-defined]


def test_a_busy_service_is_asked_again_when_it_says(ask: Ask, gemini: Start) -> None:
    """The delay that Google puts into the body is kept."""
    info = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "0.01s"}
    error = {"error": {"code": 429, "message": "Slow down", "details": [info]}}
    server = gemini(as_json(error, 429), answer("Here I am"))

    result = ask(ChatClient.create(server.model()).prompt("Hi"))

    assert result.text == "Here I am"
    assert len(server.requests) == 2


@pytest.mark.parametrize("mode", ["stream", "astream"])
@pytest.mark.parametrize(
    "failure",
    [
        b'data: {"error": {"code": 503, "message": "gone", "status": "UNAVAILABLE"}}\r\n\r\n',
        b'{\n  "error": {\n    "code": 503,\n    "message": "gone"\n  }\n}\n',
        b'{"error": {"code": 503, "message": "gone"}}',
    ],
)
def test_an_error_in_a_stream_is_raised(gemini: Start, failure: bytes, mode: str) -> None:
    """An error that comes after the first words is one, whether framed as an event or not."""
    begun = b'data: {"candidates": [{"content": {"parts": [{"text": "We"}]}}]}\r\n\r\n'
    model = gemini(Reply(begun + failure, content_type="text/event-stream")).model()

    with pytest.raises(OverloadedError, match="gone"):
        Ask(mode)(ChatClient.create(model).prompt("Hi"))  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["stream", "astream"])
def test_a_stream_that_breaks_off_carries_what_had_come(gemini: Start, mode: str) -> None:
    """Without a finish reason an answer is not over, however cleanly the connection ends."""
    begun = b'data: {"candidates": [{"content": {"parts": [{"text": "We were"}]}}]}\r\n\r\n'
    model = gemini(Reply(begun, content_type="text/event-stream")).model()

    with pytest.raises(StreamInterruptedError) as caught:
        Ask(mode)(ChatClient.create(model).prompt("Hi"))  # type: ignore[arg-type]

    assert caught.value.partial.text == "We were"


@pytest.mark.parametrize("body", [b"<html>busy</html>", b'{"this": 1}', b"[1]", b"\xff"])
def test_an_answer_that_cannot_be_read_is_reported(ask: Ask, gemini: Start, body: bytes) -> None:
    """Whatever else comes with status 200 is an error that shows its beginning."""
    server = gemini(Reply(body))

    with pytest.raises(InvalidResponseError):
        ask(ChatClient.create(server.model(max_retries=0)).prompt("Hi"))


@pytest.mark.parametrize(
    "candidates",
    [
        "x",
        ["x"],
        [{"content": {"parts": "x"}}],
        [{"content": {"parts": [1]}}],
        [{"content": {"parts": [{"text": 1.5}]}}],
        [{"content": {"parts": [{"text": 1, "thought": True}]}}],
        [{"content": {"parts": [{"text": "a", "thought": True, "thoughtSignature": ["b"]}]}}],
        [{"content": {"parts": [{"inlineData": {"mimeType": ["a"], "data": "YQ=="}}]}}],
        [{"index": [0]}],
    ],
)
def test_json_of_another_shape_is_reported(candidates: Any) -> None:
    """Wrong types inside an answer are the service's fault and are called so."""
    data = {"candidates": candidates}

    with pytest.raises(InvalidResponseError, match="is not a response"):
        decode_response(data)
    with pytest.raises(InvalidResponseError, match="is not a response"):
        StreamDecoder().feed(json.dumps(data).encode())


def test_an_error_in_an_answer_is_raised(gemini: Start) -> None:
    """An error object is one even with status 200."""
    server = gemini(as_json({"error": {"code": 503, "message": "Try later"}}))

    with pytest.raises(OverloadedError, match="Try later"):
        server.model().call("Hi")


# --- where and as whom ----------------------------------------------------------------------


def test_the_environment_gives_the_key(gemini: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """GEMINI_API_KEY goes before GOOGLE_API_KEY; without either there is an error at once."""
    server = gemini(answer("ok"))
    monkeypatch.delenv("GEMINI_API_KEY", raising=False)
    monkeypatch.delenv("GOOGLE_API_KEY", raising=False)
    with pytest.raises(UsageError, match="GEMINI_API_KEY"):
        GeminiChatModel()
    server.model(api_key=None).call("Hi")
    monkeypatch.setenv("GOOGLE_API_KEY", "second")
    server.model(api_key=None).call("Hi")
    monkeypatch.setenv("GEMINI_API_KEY", "first")
    server.model(api_key=None).call("Hi")

    assert [h.get("x-goog-api-key") for h in server.headers] == [None, "second", "first"]


def test_vertex_ai_gets_a_fresh_token_each_time(gemini: Start) -> None:
    """Below a project's URL the key is an access token, asked for with every request."""
    server = gemini(answer("ok"))
    tokens = iter(["one", "two"])
    base = f"{server.url}/v1/projects/p/locations/l/publishers/google"
    model = server.model(api_key=lambda: next(tokens), base_url=base)

    model.call("Hi")
    model.call("Hi")

    assert [h["authorization"] for h in server.headers] == ["Bearer one", "Bearer two"]
    path = "/v1/projects/p/locations/l/publishers/google/models/gemini-2.5-flash:generateContent"
    assert server.paths[0] == path
    with pytest.raises(UsageError, match="access tokens"):
        GeminiChatModel(base_url="https://aiplatform.googleapis.com/v1/projects/p/locations/l")


def test_a_model_may_have_a_path(gemini: Start) -> None:
    """A tuned model is asked under its own name, also when a request chooses it."""
    server = gemini(answer("ok"))
    prompt = Prompt("Hi", ChatOptions(model="tunedModels/mine"))

    server.model().call(prompt)

    assert server.paths == ["/tunedModels/mine:generateContent"]


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("mine?key=other#", "/models/mine%3Fkey%3Dother%23"),
        ("publishers/google/models/m@001", "/publishers/google/models/m@001"),
        ("../../other", None),
        ("models/..", None),
        ("/models/mine", None),
        (".", None),
    ],
)
def test_a_models_name_leads_nowhere_else(name: str, path: str | None, gemini: Start) -> None:
    """Whoever may choose a model does not choose a method, a query or another service with it."""
    server = gemini(answer("ok"))
    with (
        nullcontext()
        if path
        else pytest.raises(UsageError, match="is not the name of a Gemini model")
    ):
        server.model().call(Prompt("Hi", ChatOptions(model=name)))

    assert server.paths == ([f"{path}:generateContent"] if path else [])


def test_a_model_shows_itself_without_its_key(gemini: Start) -> None:
    """A model's repr says which model and where."""
    server = gemini(answer("ok"))
    with server.model("gemini-3-pro") as model:
        assert repr(model) == f"GeminiChatModel('gemini-3-pro', base_url='{server.url}')"
        assert "secret" not in repr(vars(model))

    async def use() -> str:
        async with server.model() as model:
            return (await model.acall("Hi")).text

    assert asyncio.run(use()) == "ok"


# --- options --------------------------------------------------------------------------------


ALL_OPTIONS = GeminiChatOptions(
    temperature=0.5,
    top_p=0.9,
    top_k=40,
    max_tokens=100,
    stop=("END",),
    presence_penalty=0.1,
    frequency_penalty=0.2,
    seed=7,
    candidate_count=2,
    thinking_budget=0,
    include_thoughts=True,
    safety_settings={"HARM_CATEGORY_HARASSMENT": "BLOCK_NONE"},
    cached_content="cachedContents/1",
    server_tools=({"googleSearch": {}},),
    response_modalities=("TEXT", "IMAGE"),
    labels={"team": "a"},
    extra={"generationConfig": {"audioTimestamp": True}, "serviceTier": "flex"},
)
ALL_FIELDS = {
    "generationConfig": {
        "temperature": 0.5,
        "topP": 0.9,
        "topK": 40,
        "maxOutputTokens": 100,
        "stopSequences": ("END",),
        "presencePenalty": 0.1,
        "frequencyPenalty": 0.2,
        "seed": 7,
        "candidateCount": 2,
        "responseModalities": ("TEXT", "IMAGE"),
        "thinkingConfig": {"thinkingBudget": 0, "includeThoughts": True},
        "audioTimestamp": True,
    },
    "safetySettings": [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}],
    "cachedContent": "cachedContents/1",
    "labels": {"team": "a"},
    "tools": [{"googleSearch": {}}],
    "serviceTier": "flex",
}


def test_options_go_where_the_api_wants_them() -> None:
    """Each option has its place; what is not modelled is laid over the rest."""
    assert encode_options(ALL_OPTIONS) == ALL_FIELDS


class Strict:
    """A tool whose schema the service is to enforce."""

    definition = ToolDefinition("strict", "A strict tool.", {"type": "object"}, strict=True)
    metadata = ToolMetadata()

    async def invoke(self, arguments: str, context: ToolContext) -> ToolResult:
        return ToolResult(arguments)


@pytest.mark.parametrize(
    ("choice", "strict", "config"),
    [
        (None, False, None),
        ("auto", False, {"mode": "AUTO"}),
        ("none", False, {"mode": "NONE"}),
        ("required", False, {"mode": "ANY"}),
        ("count", False, {"mode": "ANY", "allowedFunctionNames": ["count"]}),
        (None, True, {"mode": "VALIDATED"}),
        ("required", True, {"mode": "ANY"}),
    ],
)
def test_tool_choices_are_calling_modes(
    choice: str | None, config: Json | None, *, strict: bool
) -> None:
    """Our four choices are modes of the service; strict tools ask for validated calls."""
    tools = tool_callbacks(count, *([Strict()] if strict else []))
    options = GeminiChatOptions(tool_callbacks=tuple(tools), tool_choice=choice)

    wanted = None if config is None else {"functionCallingConfig": config}
    assert encode_options(options).get("toolConfig") == wanted


def test_our_options_are_valid() -> None:
    """Google's own types accept the configuration and the tools that we send."""
    types = pytest.importorskip("google.genai.types")
    options = GeminiChatOptions(
        temperature=0.5,
        thinking_level="LOW",
        response_logprobs=True,
        logprobs=3,
        media_resolution="MEDIA_RESOLUTION_LOW",
        speech_config={"voiceConfig": {"prebuiltVoiceConfig": {"voiceName": "Kore"}}},
        output_schema={"type": "object"},
        tool_callbacks=tuple(tool_callbacks(weather, Strict())),
        server_tools=({"googleSearch": {}}, {"codeExecution": {}}),
        tool_choice="weather",
    )

    body = json.loads(json.dumps(encode_options(options)))

    types.GenerationConfig.model_validate(body["generationConfig"])
    types.ToolConfig.model_validate(body["toolConfig"])
    assert len([types.Tool.model_validate(tool) for tool in body["tools"]]) == 3


def test_our_server_is_honest() -> None:
    """Google's own types accept what the server of these tests answers."""
    types = pytest.importorskip("google.genai.types")
    whole = answer("a b", {"text": "hm", "thought": True}, call("f", {"x": 1}, id="1"))
    reader = StreamReader()
    chunks = [json.loads(value) for value in reader.feed(as_stream(whole))]

    parsed = [types.GenerateContentResponse.model_validate(each) for each in (whole, *chunks)]

    assert len(parsed) == 6
    assert parsed[0].usage_metadata.total_token_count == 25


# --- messages -------------------------------------------------------------------------------


def contents(*messages: Message, dialect: Any = UP_TO_2) -> list[Json]:
    conversation = EncodedConversation().continued(messages, dialect)
    encoded: list[Json] = json.loads(b"[%b]" % conversation.contents)
    return encoded


def test_system_messages_are_the_instruction() -> None:
    """Wherever they stand, system messages are parts of the one instruction."""
    messages = (SystemMessage("A"), UserMessage("Hi"), SystemMessage("B"))

    conversation = EncodedConversation().continued(messages, UP_TO_2)

    assert conversation.system == b'{"text":"A"},{"text":"B"}'
    assert conversation.contents == b'{"role":"user","parts":[{"text":"Hi"}]}'


def test_media_go_inline_or_by_uri() -> None:
    """Bytes and data URLs are sent, other URLs named; what belongs to a video stays with it."""
    encoded = base64.b64encode(PIXEL).decode()
    message = UserMessage(
        [
            "Look:",
            Media("image/png", PIXEL),
            Media("image/png", f"data:image/png;base64,{encoded}"),
            Media("video/mp4", "gs://b/v.mp4", metadata={"videoMetadata": {"fps": 1}, "mine": 2}),
            Media("audio/mp3", "gs://b/a", metadata={"audioMetadata": {"endOffset": "3s"}}),
            ProviderPart("gemini", {"text": "as it was"}),
        ]
    )
    audio = {"mimeType": "audio/mp3", "fileUri": "gs://b/a"}

    inline = {"inlineData": {"mimeType": "image/png", "data": encoded}}
    file = {"fileData": {"mimeType": "video/mp4", "fileUri": "gs://b/v.mp4"}}
    assert encode_message(message, UP_TO_2) == [
        {"text": "Look:"},
        inline,
        inline,
        {**file, "videoMetadata": {"fps": 1}},
        {"fileData": audio, "audioMetadata": {"endOffset": "3s"}},
        {"text": "as it was"},
    ]


@pytest.mark.parametrize(
    ("data", "is_error", "response"),
    [
        ('{"a": 1}', False, {"a": 1}),
        ("plain text", False, {"result": "plain text"}),
        ("42", False, {"result": 42}),
        ("[1]", False, {"result": [1]}),
        ("", False, {"result": ""}),
        ("it broke", True, {"error": "it broke"}),
        ('{"error": "it broke"}', True, {"error": "it broke"}),
        ('{"code": 1}', True, {"error": {"code": 1}}),
    ],
)
def test_a_tools_answer_is_always_an_object(data: str, response: Json, *, is_error: bool) -> None:
    """Anything but an object is wrapped into one."""
    message = ToolResponseMessage([ToolResponse("1", "f", data, is_error)])

    [part] = encode_message(message, UP_TO_2)

    assert part["functionResponse"] == {"id": "1", "name": "f", "response": response}


def test_a_file_is_found_by_its_uri_only() -> None:
    """An id alone would come out as an empty address."""
    with pytest.raises(UsageError, match="by their URI, not by an id such as 'file-1'"):
        encode_message(UserMessage([Media("image/png", "", id="file-1")]), UP_TO_2)


def test_a_name_that_no_tool_can_have_is_sent_as_one() -> None:
    """In the call and in its response, which belong together by their name."""
    call = AssistantMessage(None, [ToolCall("1", "functions:add", "{}")])
    result = ToolResponseMessage([ToolResponse("1", "functions:add", "x")])
    (asked,), (told,) = encode_message(call, UP_TO_2), encode_message(result, UP_TO_2)

    assert asked["functionCall"]["name"] == told["functionResponse"]["name"] == "functions_add"


def test_arguments_that_are_no_object_are_wrapped() -> None:
    """What another model wrote wrongly can still be sent."""
    calls = [ToolCall("1", "f", text) for text in ("", "[1]", "{oops", "{'a': 1}")]

    parts = encode_message(AssistantMessage(None, calls), UP_TO_2)

    assert [part["functionCall"]["args"] for part in parts] == [
        {},
        {"malformed_arguments": "[1]"},
        {"malformed_arguments": "{oops"},
        {"a": 1},
    ]


def test_media_of_tools_stand_where_the_model_takes_them() -> None:
    """From version 3 on they are part of the function response, before beside it."""
    image = Media("image/png", PIXEL)
    message = ToolResponseMessage(
        [ToolResponse("", "f", "{}", media=(image,)), ToolResponse("", "g", "{}", media=(image,))]
    )
    blob = {"inlineData": {"mimeType": "image/png", "data": base64.b64encode(PIXEL).decode()}}

    new, old = encode_message(message, FROM_3), encode_message(message, UP_TO_2)

    assert [part["functionResponse"]["parts"] for part in new] == [[blob], [blob]]
    assert old[2:] == [
        {"text": "Content returned by tool f:"},
        blob,
        {"text": "Content returned by tool g:"},
        blob,
    ]


def test_the_answers_to_one_round_are_one_content() -> None:
    """Tool responses in several messages still answer one content of calls."""
    calls = AssistantMessage(None, [ToolCall("1", "f", "{}"), ToolCall("2", "g", "{}")])
    first, second = (
        ToolResponseMessage([ToolResponse(id, name, "{}")]) for id, name in (("1", "f"), ("2", "g"))
    )
    for between in ((), (SystemMessage("Hm"),), (AssistantMessage(),)):
        history = (UserMessage("Hi"), calls, first, *between, second)
        begun = EncodedConversation().continued(history[:-1], UP_TO_2)

        whole = contents(*history)
        later = begun.continued(history, UP_TO_2)

        assert [len(content["parts"]) for content in whole] == [1, 2, 2]
        assert json.loads(b"[%b]" % later.contents) == whole


def test_other_messages_start_anew() -> None:
    """A conversation that is not the continuation of the last one is encoded from its start."""
    begun = EncodedConversation().continued((UserMessage("A"),), UP_TO_2)

    other = begun.continued((UserMessage("B"), AssistantMessage("C"), UserMessage("D")), UP_TO_2)
    renewed = begun.continued((UserMessage("A"),), FROM_3)

    assert b'"A"' not in other.contents
    assert renewed.dialect is FROM_3


def test_empty_messages_are_left_out() -> None:
    """A message that says nothing would be refused, and is not missed."""
    assert contents(UserMessage("A"), AssistantMessage(), UserMessage("B")) == [
        {"role": "user", "parts": [{"text": "A"}]},
        {"role": "user", "parts": [{"text": "B"}]},
    ]


def test_what_others_thought_is_not_sent() -> None:
    """Of other providers' parts only the text is of use."""
    message = AssistantMessage(
        [Reasoning("hm", "sig", "anthropic"), ProviderPart("openai", {"x": 1}, "cited"), "said"]
    )

    assert encode_message(message, UP_TO_2) == [{"text": "cited"}, {"text": "said"}]


def test_calls_of_other_models_are_marked_for_strict_ones() -> None:
    """Models that insist on signatures get the documented stand-in for calls not theirs."""
    calls = [ToolCall("a", "f", "{}"), ToolCall("b", "f", "{}")]
    own = [ToolCall("a", "f", "{}", {"thoughtSignature": "c2ln"}), ToolCall("b", "f", "{}")]

    def signatures(calls: list[ToolCall], dialect: Any) -> list[Any]:
        parts = encode_message(AssistantMessage(None, calls), dialect)
        return [part.get("thoughtSignature") for part in parts]

    assert signatures(calls, FROM_3) == ["skip_thought_signature_validator", None]
    assert signatures(own, FROM_3) == ["c2ln", None]
    assert signatures(calls, UP_TO_2) == [None, None]


@pytest.mark.parametrize(
    ("model", "is_new"),
    [
        ("gemini-2.5-pro", False),
        ("gemini-3-pro-preview", True),
        ("publishers/google/models/gemini-10.1-flash", True),
        ("gemini-flash-latest", True),
        ("tunedModels/mine", False),
    ],
)
def test_names_tell_the_generation(model: str, *, is_new: bool) -> None:
    """Models from version 3 on are known by their names."""
    assert dialect_of(model) is (FROM_3 if is_new else UP_TO_2)


class Note(Message):
    """No kind of message that the library knows."""

    role = "user"


def test_unknown_messages_are_refused() -> None:
    """A message of another kind is a mistake of the caller."""
    with pytest.raises(UsageError, match="Note is not a kind of message"):
        contents(Note())


@pytest.mark.parametrize(
    "part",
    [
        {"text": "done", "thoughtSignature": "c2ln"},
        {"text": "", "thoughtSignature": "c2ln"},
        {"text": "hm", "thought": True, "thoughtSignature": "c2ln"},
        {"thought": True, "thoughtSignature": "c2ln"},
        {"inlineData": {"mimeType": "image/png", "data": "QUI="}, "thoughtSignature": "c2ln"},
        {"inlineData": {"mimeType": "image/png", "data": "QUI="}, "thought": True},
        {"inlineData": {"mimeType": "image/png", "data": "cut"}},
        {"fileData": {"mimeType": "image/png", "fileUri": "gs://b/i.png"}},
        {"functionCall": {"id": "1", "name": "f", "args": {"é": "ü"}}, "thoughtSignature": "c2ln"},
        {"executableCode": {"language": "PYTHON", "code": "1"}, "thoughtSignature": "c2ln"},
        {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1"}},
        {"toolCall": {"toolType": "GOOGLE_SEARCH_WEB"}, "thoughtSignature": "c2ln"},
        {"somethingNew": {"a": [1]}},
    ],
)
def test_parts_survive_the_way_through_memory(part: Json) -> None:
    """What the model said is stored as JSON and sent back as it was, with its signature."""
    decoded = decode_part(part)
    assert decoded is not None
    stored = json.dumps(message_to_dict(AssistantMessage([decoded])))

    message = message_from_dict(json.loads(stored))

    assert encode_message(message, FROM_3) == [part]


def test_what_has_signatures_is_still_text_and_media() -> None:
    """A signed text counts as text, a drawn image as media, in either alphabet of base 64."""
    data = base64.urlsafe_b64encode(PIXEL).decode()
    image = {"inlineData": {"mimeType": "image/png", "data": data}, "thoughtSignature": "c2ln"}
    response = decode_response(
        answer("Here ", {"text": "it is", "thoughtSignature": "eA=="}, image)
    )

    assert response.text == "Here it is"
    assert response.output is not None
    assert [media.data for media in response.output.media] == [PIXEL]
    assert decode_part({}) is None


# --- answers --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("native", "reason"),
    [
        ("STOP", "stop"),
        (1, "stop"),
        ("MAX_TOKENS", "length"),
        (2, "length"),
        ("CONTINUATION", "length"),
        ("SAFETY", "content_filter"),
        ("IMAGE_SAFETY", "content_filter"),
        ("ESCALATION", "content_filter"),
        ("MALFORMED_FUNCTION_CALL", "error"),
        ("SOMETHING_NEW", "error"),
        ("FINISH_REASON_UNSPECIFIED", None),
        (0, None),
        (None, None),
    ],
)
def test_finish_reasons_have_one_meaning(native: Any, reason: str | None) -> None:
    """Names and numbers are mapped alike; the service's own word stays beside ours."""
    result = decode_response(answer("x", finishReason=native)).result

    assert result is not None
    assert result.finish_reason == reason
    assert result.native_finish_reason == (None if reason is None else str(native))


def test_calls_decide_the_finish_reason() -> None:
    """The service says STOP also when it calls a function."""
    for native in ("STOP", None):
        assert decode_response(answer(call("f", {}), finishReason=native)).finish_reason == (
            "tool_call"
        )


def test_several_answers_are_told_apart(gemini: Start) -> None:
    """Each candidate is a generation of its own, whole or streamed."""

    def candidate(index: int, text: str, **more: Any) -> Json:
        return {"content": {"parts": [{"text": text}]}, "index": index, **more}

    whole = {"candidates": [candidate(0, "a"), candidate(1, "b")]}
    chunks: list[Json] = [
        {"candidates": [candidate(0, "a"), candidate(1, "x")]},
        {"candidates": [candidate(1, "y")]},
        {"candidates": [candidate(0, "b", finishReason="STOP")]},
        {"candidates": [candidate(1, "z", finishReason="MAX_TOKENS")]},
    ]
    stream = b"".join(b"data: %b\n\n" % json.dumps(chunk).encode() for chunk in chunks)

    response = joined([stream])

    assert [g.output.text for g in decode_response(whole).generations] == ["a", "b"]
    assert [g.output.text for g in response.generations] == ["ab", "xyz"]
    assert [g.finish_reason for g in response.generations] == ["stop", "length"]
    with pytest.raises(StreamInterruptedError):
        joined([stream.rpartition(b"data:")[0]])


# --- streams --------------------------------------------------------------------------------


def joined(chunks: list[bytes]) -> ChatResponse:
    reader, decoder, aggregator = StreamReader(), StreamDecoder(), MessageAggregator()
    for chunk in chunks:
        for value in reader.feed(chunk):
            aggregator.add(decoder.feed(value))
    for value in reader.finish():
        aggregator.add(decoder.feed(value))
    if (last := decoder.finish()) is not None:
        aggregator.add(last)
    return aggregator.response()


def streamed(*functions: Json, **last: Any) -> ChatResponse:
    """Return what a stream comes to whose chunks hold one `functionCall` each."""
    chunks: list[Json] = [
        {"candidates": [{"content": {"parts": [{"functionCall": function}]}}]}
        for function in functions
    ]
    chunks.append({"candidates": [{"finishReason": "STOP", **last}]})
    return joined([b"data: %b\n\n" % json.dumps(chunk).encode() for chunk in chunks])


def piece(path: str, **value: Any) -> Json:
    return {"jsonPath": path, **value}


@pytest.mark.parametrize(
    "end", [b"data: [DONE]\n\n", b"data: DONE\r\n\r\n", b"data: DONE", b"DONE"]
)
def test_the_end_of_another_api_is_no_part_of_the_answer(end: bytes) -> None:
    """Nor is an event without data; gateways add both."""
    last = b'data: {"candidates":[{"content":{"parts":[{"text":"Hi"}]},"finishReason":"STOP"}]}\n\n'

    assert joined([b"data:\n\n", last, end]).text == "Hi"


def test_an_array_may_begin_with_a_byte_order_mark() -> None:
    """However it arrives."""
    content = {"parts": [{"text": "Hi"}]}
    text = as_json([{"candidates": [{"content": content, "finishReason": "STOP"}]}]).body
    text = b"\xef\xbb\xbf" + text

    for size in (1, 2, 5, len(text)):
        assert joined([text[at : at + size] for at in range(0, len(text), size)]).text == "Hi"


def test_log_probabilities_of_a_stream_add_up() -> None:
    """The whole has those of all its tokens."""

    def token(text: str, **more: Any) -> Json:
        chosen = {"chosenCandidates": [{"token": text}]}
        return {"content": {"parts": [{"text": text}]}, "logprobsResult": chosen, **more}

    chunks = [{"candidates": [token("a")]}, {"candidates": [token("b", finishReason="STOP")]}]
    stream = joined([b"data: %b\n\n" % json.dumps(chunk).encode() for chunk in chunks])

    assert stream.generations[0].metadata == {
        "logprobsResult": {"chosenCandidates": [{"token": "a"}, {"token": "b"}]}
    }


def test_arguments_may_come_in_pieces() -> None:
    """Vertex streams arguments value by value, each at its place."""
    response = streamed(
        {"name": "f", "willContinue": True},
        {"partialArgs": [piece("$.a[0].b", stringValue="on", willContinue=True)]}
        | {"willContinue": True},
        {"partialArgs": [piece("$.a[0].b", stringValue="e")], "willContinue": True},
        {"partialArgs": [piece("$.a[1]", numberValue=2.5)], "willContinue": True},
        {"partialArgs": [piece("$['c d']", boolValue=True)], "willContinue": True},
        {"partialArgs": [piece('$["e"]', nullValue="NULL_VALUE"), piece("$")]},
        {},
        {"name": "g", "args": {"x": 1}},
    )

    assert response.finish_reason == "tool_call"
    assert response.output is not None
    assert [(call.name, json.loads(call.arguments)) for call in response.output.tool_calls] == [
        ("f", {"a": [{"b": "one"}, 2.5], "c d": True, "e": None}),
        ("g", {"x": 1}),
    ]


@pytest.mark.parametrize(
    "path",
    [
        *("$.a[1]", "$.a[999999999]", f"$.a[{10**30}]", f"$.a[{'9' * 5_000}]"),
        *("$" + ".a" * 50_000, "$" + "[0]" * 5_000, "['" * 100_000),
    ],
)
def test_a_piece_of_an_argument_has_a_place(path: str) -> None:
    """One that is far away, or deep down, takes no memory and no time."""
    with pytest.raises(InvalidResponseError):
        streamed({"name": "f", "partialArgs": [piece(path, stringValue="x")]})


def test_a_call_ends_with_the_next_or_with_the_answer() -> None:
    """Where the last piece of a call does not say so, what follows does."""
    response = streamed(
        {"name": "f", "partialArgs": [piece("$.a", stringValue="1")], "willContinue": True},
        {"name": "g", "id": "g1", "args": {"b": 2}, "willContinue": True},
    )

    assert response.output is not None
    assert [json.loads(call.arguments) for call in response.output.tool_calls] == [
        {"a": "1"},
        {"b": 2},
    ]
    assert response.output.tool_calls[1].id == "g1"


def test_arguments_may_follow_a_call_that_seemed_to_have_none() -> None:
    """Some servers name the call first and tell its arguments later, and announce nothing."""
    response = streamed(
        {"name": "f", "args": {}},
        {"args": {"path": "/a"}},
        {"name": "g"},
        {"name": "h", "args": {}},
    )

    assert response.output is not None
    assert [(call.name, call.arguments) for call in response.output.tool_calls] == [
        ("f", '{"path":"/a"}'),
        ("g", "{}"),
        ("h", "{}"),
    ]


def test_tool_calls_are_told_as_events(gemini: Start) -> None:
    """A call is announced with its name, its arguments follow."""
    server = gemini(answer(call("count", {"a": 1}, id="c1")), answer("42"))
    client = ChatClient.builder(server.model()).default_tools(count).build()

    events = list(client.prompt("Count!").stream().events())

    assert ToolCallStarted("c1", "count", 0) in events
    assert ToolCallDelta("c1", '{"a":1}', 0) in events


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_an_array_is_a_stream_as_well(size: int) -> None:
    """Where `alt=sse` was lost, the chunks come as the elements of an array."""
    chunks = [
        {"candidates": [{"content": {"parts": [{"text": "Héllo "}]}}]},
        {"candidates": [{"content": {"parts": [{"text": "you"}]}, "finishReason": "STOP"}]},
    ]
    body = b"\n " + json.dumps(chunks, ensure_ascii=False).encode()

    response = joined([body[at : at + size] for at in range(0, len(body), size)])

    assert response.text == "Héllo you"
    with pytest.raises(StreamInterruptedError):
        joined([body[:-20]])
    with pytest.raises(InvalidResponseError):
        joined([b"[}"])


def test_usage_that_came_with_text_is_not_lost(gemini: Start) -> None:
    """The last figures count, whichever chunk they came with."""

    def chunk(text: str, tokens: int, **candidate: Any) -> bytes:
        usage = {"usageMetadata": {"promptTokenCount": 1, "candidatesTokenCount": tokens}}
        content = {"content": {"parts": [{"text": text}]}, **candidate}
        return b"data: %b\n\n" % json.dumps({"candidates": [content], **usage}).encode()

    body = b"".join(
        [chunk("a", 1), chunk("b", 2, finishReason="STOP"), chunk("c", 3), chunk("d", 4)]
    )
    model = gemini(Reply(body, content_type="text/event-stream")).model()

    response = collect(model.stream("Hi"))

    assert response.text == "abcd"
    assert response.usage.output_tokens == 4


def test_an_image_in_a_stream_is_media(gemini: Start) -> None:
    """Media come whole, in a chunk of their own."""
    data = base64.b64encode(PIXEL).decode()
    server = gemini(answer("Look: ", {"inlineData": {"mimeType": "image/png", "data": data}}))

    chunks = list(server.model().stream("Draw!"))

    media = [m for c in chunks if c.output for m in c.output.media]
    assert media == [Media("image/png", PIXEL)]
