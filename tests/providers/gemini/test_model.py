"""Gemini through the client and directly, against a strict test server."""

import asyncio
import base64
import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

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
    ToolContext,
    ToolResponse,
    ToolResponseMessage,
    UserMessage,
    tool,
)
from chatclient.chat.aggregator import MessageAggregator
from chatclient.chat.events import ReasoningDelta, ToolCallDelta, ToolCallStarted
from chatclient.chat.messages import ProviderPart, Reasoning
from chatclient.chat.response import Usage
from chatclient.chat.serialization import message_from_dict, message_to_dict
from chatclient.chat.tool import ToolDefinition, ToolMetadata, ToolResult
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
from chatclient.providers.gemini.decoding import (
    StreamDecoder,
    StreamReader,
    decode_part,
    decode_response,
)
from chatclient.providers.gemini.encoding import (
    FROM_3,
    UP_TO_2,
    EncodedConversation,
    dialect_of,
    encode_message,
    encode_options,
)
from chatclient.providers.gemini.model import GeminiChatModel, GeminiChatOptions
from chatclient.testing import Ask, Mode
from chatclient.tools import tool_callbacks
from tests.support.loopback import LoopbackServer, as_json
from tests.support.replay import collect
from tests.support.servers import Reply

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
    """Return a function call part; `id` is a field of the call, others are fields of the part."""
    function = {"name": name, "args": args, **({"id": more.pop("id")} if "id" in more else {})}
    return {"functionCall": function, **more}


def answer(*parts: str | Json, **candidate: Any) -> Json:
    """Return a complete answer; strings become text parts."""
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


def as_stream(complete: Json) -> bytes:
    """Return *complete* as a stream of parts, with text split into words, and CRLFs."""
    candidate = complete["candidates"][0]
    parts = [piece for part in candidate["content"]["parts"] for piece in _chunks(part)]
    chunks = [_chunk(complete, part) for part in parts]
    end = {**candidate, "content": {"parts": [{"text": ""}], "role": "model"}}
    chunks.append({**complete, "candidates": [end]})
    return b"".join(b"data: %b\r\n\r\n" % json.dumps(chunk).encode() for chunk in chunks)


def _chunks(part: Json) -> Iterator[Json]:
    words = part["text"].split(" ") if part.keys() <= {"text", "thought"} else []
    if len(words) < 2:
        yield part
        return
    for at, word in enumerate(words):
        yield {**part, "text": f" {word}" if at else word}


def _chunk(complete: Json, part: Json) -> Json:
    content = {"parts": [part], "role": "model"}
    return {**complete, "candidates": [{"content": content, "index": 0}]}


def problem_of(request: Json) -> str | None:
    """Return why the service would reject *request*."""
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


class GeminiServer:
    """A server that returns its answers in order, repeating the last, and records requests."""

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
        """The contents of the last request."""
        contents: list[Json] = self.requests[-1]["contents"]
        return contents


@pytest.fixture
def gemini() -> Iterator[Callable[..., GeminiServer]]:
    """Start Gemini servers that are closed after the test."""
    started: list[GeminiServer] = []

    def start(*answers: Json | Reply) -> GeminiServer:
        started.append(GeminiServer(*answers))
        return started[-1]

    yield start
    for one in started:
        one.close()


Start = Callable[..., GeminiServer]


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


# --- requests and responses -----------------------------------------------------------------


def test_response_fields(ask: Ask, gemini: Start) -> None:
    """The response has text, finish reason, model and usage."""
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


def truncated_answer(*parts: str | Json, token: str | None = "dG9r") -> Json:
    more = {} if token is None else {"continuationToken": token}
    return answer(*parts, finishReason="CONTINUATION", **more)


def test_answer_is_continued(ask: Ask, gemini: Start) -> None:
    """Continuations with the token are joined to one answer with all usage."""
    ends = (truncated_answer("One two. "), truncated_answer("Three. ", token="bmV4dA=="))
    server = gemini(*ends, answer("End."))
    result = ask(ChatClient.create(server.model()).prompt("Count."))
    response = result.response.chat_response
    first, *others = server.requests

    assert result.text == response.text == "One two. Three. End."
    assert response.finish_reason == "stop"
    usage = replace(response.usage, native={}, cost=None)
    assert usage == Usage(3 * 13, 3 * 12, 3 * 4, None, 3 * 7)
    assert len(response.usage.native["requests"]) == 3
    assert others == [
        {**first, "continuationToken": "dG9r"},
        {**first, "continuationToken": "bmV4dA=="},
    ]


@pytest.mark.parametrize(("most", "requests"), [(None, 9), (1, 2), (0, 1)])
def test_continuation_limit(ask: Ask, gemini: Start, most: int | None, requests: int) -> None:
    """After the maximum of continuations the partial answer is returned."""
    server = gemini(truncated_answer("On. "))
    model = server.model(options=GeminiChatOptions(max_continuations=most))
    result = ask(ChatClient.create(model).prompt("Count."))

    assert len(server.requests) == requests
    assert result.text == "On. " * requests
    assert result.response.chat_response.finish_reason == "length"


def test_answers_without_continuation(ask: Ask, gemini: Start) -> None:
    """Answers without a token, several candidates and other endings are not continued."""
    several = truncated_answer("a")
    several["candidates"] *= 2
    several["candidates"][1] = {**several["candidates"][1], "index": 1}
    complete = answer("c", continuationToken="dG9r")
    for body in (truncated_answer("b", token=None), several, complete):
        event = Reply(b"data: %b\r\n\r\n" % json.dumps(body).encode())
        server = gemini(event if ask.streaming else body)
        ask(ChatClient.create(server.model()).prompt("Count."))

        assert len(server.requests) == 1


def test_invalid_continuation_limit() -> None:
    """An invalid limit raises before a request is sent."""
    with pytest.raises(UsageError, match="max_continuations must be at least 0"):
        GeminiChatOptions(max_continuations=-1)


@pytest.mark.feature("schema-upper-case-type-values")
def test_tool_call_with_signature(ask: Ask, gemini: Start) -> None:
    """The thought signature is sent back at its original position."""
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
def test_parallel_calls(ask: Ask, gemini: Start, ids: tuple[str, str]) -> None:
    """Results of two calls of a tool are matched by order, or by id if present."""
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


def test_failed_tool_result(ask: Ask, gemini: Start) -> None:
    """The failure is sent under the key `error`."""
    server = gemini(answer(call("weather", {"city": "Atlantis"})), answer("It sank."))
    client = ChatClient.builder(server.model()).default_tools(weather).build()

    result = ask(client.prompt("How is Atlantis?"))

    [part] = server.contents[-1]["parts"]
    assert result.text == "It sank."
    assert part["functionResponse"]["response"].keys() == {"error"}


def test_thoughts(ask: Ask, gemini: Start) -> None:
    """Thoughts are reasoning, not text, and are sent back."""
    thought = {"text": "Hm, let me think", "thought": True}
    server = gemini(answer(thought, call("count", {})), answer("42"))
    client = ChatClient.builder(server.model()).default_tools(count).build()

    result = ask(client.prompt("Count!"))

    assert result.text == "42"
    assert server.contents[1]["parts"][0] == thought
    thoughts = "".join(event.text for event in result.events if isinstance(event, ReasoningDelta))
    assert thoughts == ("Hm, let me think" if ask.streaming else "")


def test_output_schema(ask: Ask, gemini: Start) -> None:
    """An output schema is sent as JSON Schema with its MIME type."""
    server = gemini(answer('{"n": 1}'))
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    client = ChatClient.create(server.model())

    result = ask(client.prompt("Give me a number").options(output_schema=schema))

    assert result.text == '{"n": 1}'
    assert server.requests[0]["generationConfig"] == {
        "responseMimeType": "application/json",
        "responseJsonSchema": schema,
    }


def test_blocked_prompt(ask: Ask, gemini: Start) -> None:
    """An answer without candidates has the block reason as finish reason."""
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


def failed_answer(ask: Ask, candidate: Json) -> Reply:
    """Return an answer with nothing but *candidate*."""
    complete = {"candidates": [candidate], "usageMetadata": {"promptTokenCount": 9}}
    return (
        Reply(b"data: %b\r\n\r\n" % json.dumps(complete).encode())
        if ask.streaming
        else as_json(complete)
    )


@pytest.mark.parametrize("thoughts", [[], [{"text": "hm", "thought": True}]])
def test_malformed_call_is_retried(
    ask: Ask, gemini: Start, monkeypatch: pytest.MonkeyPatch, thoughts: list[Json]
) -> None:
    """An empty answer with a malformed call is retried."""
    monkeypatch.setattr("random.uniform", lambda *_: 0.0)
    nothing = failed_answer(ask, {**MALFORMED, "content": {"parts": thoughts}})
    server = gemini(nothing, answer(call("weather", {"city": "Rome"})), answer("Sunny."))
    request = ChatClient.create(server.model(max_retries=1)).prompt("?").tools(weather)
    if ask.streaming and thoughts:  # delivered content excludes a retry
        with pytest.raises(InvalidResponseError, match="MALFORMED_FUNCTION_CALL"):
            ask(request)
        return

    assert ask(request).text == "Sunny."
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    "reason", ["MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS"]
)
def test_call_that_the_service_rejects(ask: Ask, gemini: Start, reason: str) -> None:
    """A signature alone is no answer."""
    signature = {"text": "", "thoughtSignature": "c2ln"}
    rejected = {"content": {"parts": [signature]}, "finishReason": reason}
    client = ChatClient.create(gemini(failed_answer(ask, rejected)).model(max_retries=0))

    with pytest.raises(InvalidResponseError, match=reason):
        ask(client.prompt("?"))


@pytest.mark.parametrize("mode", ["stream", "astream"])
def test_malformed_call_after_empty_chunks(
    gemini: Start, mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A malformed call after empty chunks is retried as well."""
    monkeypatch.setattr("random.uniform", lambda *_: 0.0)
    silent = {"content": {"role": "model", "parts": [{"text": ""}]}}
    events = [{"candidates": [candidate]} for candidate in (silent, silent, MALFORMED)]
    nothing = b"".join(b"data: %b\r\n\r\n" % json.dumps(event).encode() for event in events)
    server = gemini(Reply(nothing), answer("Sunny."))

    assert Ask(mode)(ChatClient.create(server.model(max_retries=1)).prompt("?")).text == "Sunny."


def test_repeated_malformed_call_raises(ask: Ask, gemini: Start) -> None:
    """It raises after the retries, unless the answer has text."""
    client = ChatClient.create(gemini(failed_answer(ask, MALFORMED)).model(max_retries=0))
    with pytest.raises(InvalidResponseError, match="MALFORMED_FUNCTION_CALL") as caught:
        ask(client.prompt("?"))
    words = failed_answer(ask, {**MALFORMED, "content": {"parts": [{"text": "Well"}]}})
    result = ask(ChatClient.create(gemini(words).model()).prompt("?"))

    assert caught.value.retryable
    assert (result.text, result.response.chat_response.finish_reason) == ("Well", "error")


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
def test_error_classes(
    ask: Ask, gemini: Start, status: int, message: str, kind: type[Exception]
) -> None:
    """Status and message give the error class."""
    error = {"error": {"code": status, "message": message, "status": "X"}}
    server = gemini(as_json(error, status))
    client = ChatClient.create(server.model(max_retries=0))

    with pytest.raises(kind, match=f"gemini answered {status}: {message[:9]}") as caught:
        ask(client.prompt("Hi"))

    assert caught.value.status == status  # type: ignore[attr-defined]


def test_retry_delay_in_the_body(ask: Ask, gemini: Start) -> None:
    """The delay in Google's error body is respected."""
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
def test_error_in_stream(gemini: Start, failure: bytes, mode: str) -> None:
    """An error after the first content is raised, as an event or as plain JSON."""
    beginning = b'data: {"candidates": [{"content": {"parts": [{"text": "We"}]}}]}\r\n\r\n'
    model = gemini(Reply(beginning + failure, content_type="text/event-stream")).model()

    with pytest.raises(OverloadedError, match="gone"):
        Ask(mode)(ChatClient.create(model).prompt("Hi"))  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["stream", "astream"])
def test_interrupted_stream(gemini: Start, mode: str) -> None:
    """Without a finish reason a stream is interrupted; the error has the partial response."""
    beginning = b'data: {"candidates": [{"content": {"parts": [{"text": "We were"}]}}]}\r\n\r\n'
    model = gemini(Reply(beginning, content_type="text/event-stream")).model()

    with pytest.raises(StreamInterruptedError) as caught:
        Ask(mode)(ChatClient.create(model).prompt("Hi"))  # type: ignore[arg-type]

    assert caught.value.partial.text == "We were"


@pytest.mark.parametrize("body", [b"<html>busy</html>", b'{"this": 1}', b"[1]", b"\xff"])
def test_invalid_body(ask: Ask, gemini: Start, body: bytes) -> None:
    """The error shows the beginning of the body."""
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
def test_wrong_types_in_answer(candidates: Any) -> None:
    """Wrong types inside an answer raise `InvalidResponseError`."""
    data = {"candidates": candidates}

    with pytest.raises(InvalidResponseError, match="is not a response"):
        decode_response(data)
    with pytest.raises(InvalidResponseError, match="is not a response"):
        StreamDecoder().feed(json.dumps(data).encode())


def test_error_with_status_200(gemini: Start) -> None:
    """An error object with status 200 is raised."""
    server = gemini(as_json({"error": {"code": 503, "message": "Try later"}}))

    with pytest.raises(OverloadedError, match="Try later"):
        server.model().call("Hi")


# --- URL, key and model ---------------------------------------------------------------------


def test_key_from_environment(gemini: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """GEMINI_API_KEY wins over GOOGLE_API_KEY; without a key the model cannot be made."""
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


def test_vertex_ai_access_token(gemini: Start) -> None:
    """With a project's URL the key is an access token, requested per request."""
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


def test_model_path(gemini: Start) -> None:
    """A tuned model's path is used, also from request options."""
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
def test_model_name_is_quoted(name: str, path: str | None, gemini: Start) -> None:
    """A model name cannot change the method, query or host of the URL."""
    server = gemini(answer("ok"))
    with nullcontext() if path else pytest.raises(UsageError, match="cannot be a model's name"):
        server.model().call(Prompt("Hi", ChatOptions(model=name)))

    assert server.paths == ([f"{path}:generateContent"] if path else [])


def test_repr_contains_no_key(gemini: Start) -> None:
    """The repr has model and URL, but no key."""
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
    service_tier="flex",
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
    },
    "safetySettings": [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}],
    "cachedContent": "cachedContents/1",
    "labels": {"team": "a"},
    "tools": [{"googleSearch": {}}],
    "serviceTier": "flex",
}


def test_option_fields() -> None:
    """Options are sent in their fields."""
    assert encode_options(ALL_OPTIONS) == ALL_FIELDS


class Strict:
    """A tool with a strict schema."""

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
def test_tool_choice(choice: str | None, config: Json | None, *, strict: bool) -> None:
    """Tool choices are calling modes; strict tools request validated calls."""
    tools = tool_callbacks(count, *([Strict()] if strict else []))
    options = GeminiChatOptions(tool_callbacks=tuple(tools), tool_choice=choice)

    wanted = None if config is None else {"functionCallingConfig": config}
    assert encode_options(options).get("toolConfig") == wanted


def test_options_match_official_types() -> None:
    """The sent configuration and tools are valid by Google's types."""
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


def test_server_matches_official_types() -> None:
    """Answers of the test server are valid by Google's types."""
    types = pytest.importorskip("google.genai.types")
    complete = answer("a b", {"text": "hm", "thought": True}, call("f", {"x": 1}, id="1"))
    reader = StreamReader()
    chunks = [json.loads(value) for value in reader.feed(as_stream(complete))]

    parsed = [types.GenerateContentResponse.model_validate(each) for each in (complete, *chunks)]

    assert len(parsed) == 6
    assert parsed[0].usage_metadata.total_token_count == 25


# --- messages -------------------------------------------------------------------------------


def contents(*messages: Message, dialect: Any = UP_TO_2) -> list[Json]:
    conversation = EncodedConversation().continued(messages, dialect)
    encoded: list[Json] = json.loads(b"[%b]" % conversation.contents)
    return encoded


def test_system_messages() -> None:
    """System messages at any position are parts of the instruction."""
    messages = (SystemMessage("A"), UserMessage("Hi"), SystemMessage("B"))

    conversation = EncodedConversation().continued(messages, UP_TO_2)

    assert conversation.system == b'{"text":"A"},{"text":"B"}'
    assert conversation.contents == b'{"role":"user","parts":[{"text":"Hi"}]}'


def test_media_parts() -> None:
    """Content and data URLs are sent inline, other URLs by reference, with video metadata."""
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
def test_tool_result_is_an_object(data: str, response: Json, *, is_error: bool) -> None:
    """Other results are wrapped in an object."""
    message = ToolResponseMessage([ToolResponse("1", "f", data, is_error)])

    [part] = encode_message(message, UP_TO_2)

    assert part["functionResponse"] == {"id": "1", "name": "f", "response": response}


def test_file_requires_a_uri() -> None:
    """A file with an id only raises."""
    with pytest.raises(UsageError, match="by their URI, not by an id such as 'file-1'"):
        encode_message(UserMessage([Media("image/png", "", id="file-1")]), UP_TO_2)


def test_invalid_tool_name() -> None:
    """An invalid name is replaced in the call and in its response."""
    call = AssistantMessage(None, [ToolCall("1", "functions:add", "{}")])
    result = ToolResponseMessage([ToolResponse("1", "functions:add", "x")])
    (sent_call,), (sent_result,) = encode_message(call, UP_TO_2), encode_message(result, UP_TO_2)

    assert (
        sent_call["functionCall"]["name"]
        == sent_result["functionResponse"]["name"]
        == "functions_add"
    )


def test_arguments_are_an_object() -> None:
    """Other arguments are wrapped in an object."""
    calls = [ToolCall("1", "f", text) for text in ("", "[1]", "{oops", "{'a': 1}")]

    parts = encode_message(AssistantMessage(None, calls), UP_TO_2)

    assert [part["functionCall"]["args"] for part in parts] == [
        {},
        {"malformed_arguments": "[1]"},
        {"malformed_arguments": "{oops"},
        {"a": 1},
    ]


def test_tool_media() -> None:
    """From version 3 media are part of the function response, before that they follow it."""
    image = Media("image/png", PIXEL)
    drawn = Media("image/png", PIXEL, metadata={"thoughtSignature": "c2ln"})  # by another agent
    message = ToolResponseMessage(
        [ToolResponse("", "f", "{}", media=(image,)), ToolResponse("", "g", "{}", media=(drawn,))]
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


def test_tool_results_are_merged() -> None:
    """Results in several messages form one content."""
    calls = AssistantMessage(None, [ToolCall("1", "f", "{}"), ToolCall("2", "g", "{}")])
    first, second = (
        ToolResponseMessage([ToolResponse(id, name, "{}")]) for id, name in (("1", "f"), ("2", "g"))
    )
    for between in ((), (SystemMessage("Hm"),), (AssistantMessage(),)):
        history = (UserMessage("Hi"), calls, first, *between, second)
        prefix = EncodedConversation().continued(history[:-1], UP_TO_2)

        complete = contents(*history)
        later = prefix.continued(history, UP_TO_2)

        assert [len(content["parts"]) for content in complete] == [1, 2, 2]
        assert json.loads(b"[%b]" % later.contents) == complete


def test_other_conversation_is_encoded_again() -> None:
    """A conversation that is no continuation is encoded from its start."""
    earlier = EncodedConversation().continued((UserMessage("A"),), UP_TO_2)

    other = earlier.continued((UserMessage("B"), AssistantMessage("C"), UserMessage("D")), UP_TO_2)
    renewed = earlier.continued((UserMessage("A"),), FROM_3)

    assert b'"A"' not in other.contents
    assert renewed.dialect is FROM_3


def test_empty_messages_are_omitted() -> None:
    """Empty messages are omitted, as the service rejects them."""
    assert contents(UserMessage("A"), AssistantMessage(), UserMessage("B")) == [
        {"role": "user", "parts": [{"text": "A"}]},
        {"role": "user", "parts": [{"text": "B"}]},
    ]


def test_foreign_parts() -> None:
    """Only the text of other providers' parts is sent."""
    message = AssistantMessage(
        [Reasoning("hm", "sig", "anthropic"), ProviderPart("openai", {"x": 1}, "cited"), "said"]
    )

    assert encode_message(message, UP_TO_2) == [{"text": "cited"}, {"text": "said"}]


def test_placeholder_signature() -> None:
    """Calls of other models get the documented placeholder signature."""
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
def test_model_generation_by_name(model: str, *, is_new: bool) -> None:
    """Models from version 3 are recognised by name."""
    assert dialect_of(model) is (FROM_3 if is_new else UP_TO_2)


class Note(Message):
    """A message of an unknown type."""

    role = "user"


def test_unknown_message_type() -> None:
    """A message of an unknown type raises."""
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
def test_stored_parts_round_trip(part: Json) -> None:
    """Parts restored from JSON are sent back unchanged, with signatures."""
    decoded = decode_part(part)
    assert decoded is not None
    stored = json.dumps(message_to_dict(AssistantMessage([decoded])))

    message = message_from_dict(json.loads(stored))

    assert encode_message(message, FROM_3) == [part]


def test_signed_text_and_media() -> None:
    """Signed text is text, signed images are media, in both base64 alphabets."""
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
def test_finish_reasons(native: Any, reason: str | None) -> None:
    """Names and numbers are normalised, and the native value is kept."""
    result = decode_response(answer("x", finishReason=native)).result

    assert result is not None
    assert result.finish_reason == reason
    assert result.native_finish_reason == (None if reason is None else str(native))


def test_finish_reason_with_calls() -> None:
    """STOP with a function call gives `tool_calls`."""
    for native in ("STOP", None):
        assert decode_response(answer(call("f", {}), finishReason=native)).finish_reason == (
            "tool_call"
        )


def test_several_candidates(gemini: Start) -> None:
    """Each candidate is a generation, complete or streamed."""

    def candidate(index: int, text: str, **more: Any) -> Json:
        return {"content": {"parts": [{"text": text}]}, "index": index, **more}

    complete = {"candidates": [candidate(0, "a"), candidate(1, "b")]}
    chunks: list[Json] = [
        {"candidates": [candidate(0, "a"), candidate(1, "x")]},
        {"candidates": [candidate(1, "y")]},
        {"candidates": [candidate(0, "b", finishReason="STOP")]},
        {"candidates": [candidate(1, "z", finishReason="MAX_TOKENS")]},
    ]
    stream = b"".join(b"data: %b\n\n" % json.dumps(chunk).encode() for chunk in chunks)

    response = joined([stream])

    assert [g.output.text for g in decode_response(complete).generations] == ["a", "b"]
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
    """Return the response of a stream with one `functionCall` per chunk."""
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
def test_foreign_end_event(end: bytes) -> None:
    """`[DONE]` and events without data are ignored."""
    last = b'data: {"candidates":[{"content":{"parts":[{"text":"Hi"}]},"finishReason":"STOP"}]}\n\n'

    assert joined([b"data:\n\n", last, end]).text == "Hi"


def test_array_with_bom() -> None:
    """A BOM before an array is ignored with any chunking."""
    content = {"parts": [{"text": "Hi"}]}
    text = as_json([{"candidates": [{"content": content, "finishReason": "STOP"}]}]).body
    text = b"\xef\xbb\xbf" + text

    for size in (1, 2, 5, len(text)):
        assert joined([text[at : at + size] for at in range(0, len(text), size)]).text == "Hi"


def test_streamed_log_probabilities() -> None:
    """The joined response has the values of all tokens."""

    def token(text: str, **more: Any) -> Json:
        chosen = {"chosenCandidates": [{"token": text}]}
        return {"content": {"parts": [{"text": text}]}, "logprobsResult": chosen, **more}

    chunks = [{"candidates": [token("a")]}, {"candidates": [token("b", finishReason="STOP")]}]
    stream = joined([b"data: %b\n\n" % json.dumps(chunk).encode() for chunk in chunks])

    assert stream.generations[0].metadata == {
        "logprobsResult": {"chosenCandidates": [{"token": "a"}, {"token": "b"}]}
    }


def test_streamed_arguments() -> None:
    """Vertex streams arguments value by value with their paths."""
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
def test_argument_path_limits(path: str) -> None:
    """A huge index or deep path is rejected without using memory or time."""
    with pytest.raises(InvalidResponseError):
        streamed({"name": "f", "partialArgs": [piece(path, stringValue="x")]})


def test_end_of_streamed_call() -> None:
    """A call without an end mark ends with the next part or the answer."""
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


def test_unannounced_arguments() -> None:
    """Arguments may follow a call that seemed complete."""
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


def test_tool_call_events(gemini: Start) -> None:
    """A call is announced with its name, followed by its arguments."""
    server = gemini(answer(call("count", {"a": 1}, id="c1")), answer("42"))
    client = ChatClient.builder(server.model()).default_tools(count).build()

    events = list(client.prompt("Count!").stream().events())

    assert ToolCallStarted("c1", "count", 0) in events
    assert ToolCallDelta("c1", '{"a":1}', 0) in events


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_array_instead_of_sse(size: int) -> None:
    """Without `alt=sse` the chunks are elements of an array."""
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


def test_usage_in_any_chunk(gemini: Start) -> None:
    """The last usage is used, in whichever chunk it is."""

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


def test_streamed_image(gemini: Start) -> None:
    """An image in a chunk is media."""
    data = base64.b64encode(PIXEL).decode()
    server = gemini(answer("Look: ", {"inlineData": {"mimeType": "image/png", "data": data}}))

    chunks = list(server.model().stream("Draw!"))

    media = [m for c in chunks if c.output for m in c.output.media]
    assert media == [Media("image/png", PIXEL)]
