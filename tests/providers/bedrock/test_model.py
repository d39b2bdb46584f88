"""Bedrock through the client, against a server that verifies signatures."""

import asyncio
import base64
import logging
import re
import socket
import sys
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from chatclient import (
    AssistantMessage,
    ChatClient,
    Media,
    Message,
    Prompt,
    SystemMessage,
    ToolCall,
    ToolResponse,
    ToolResponseMessage,
    UserMessage,
    tool,
)
from chatclient.chat.messages import ProviderPart, Reasoning
from chatclient.errors import (
    AuthenticationError,
    ConnectionFailedError,
    InvalidRequestError,
    ProviderError,
    RateLimitedError,
    ResponseLimitError,
    UnsupportedOptionError,
    UsageError,
)
from chatclient.providers import BedrockChatModel, BedrockChatOptions, ResponseLimits, chat_model
from chatclient.testing import Ask
from chatclient.tools import ExternalTool, ToolDefinition, tool_callbacks
from tests.support.bodies import body_of
from tests.support.converse_server import ConverseServer, Json, response
from tests.support.loopback import LoopbackServer, as_json
from tests.support.servers import Reply

botocore = pytest.importorskip("botocore")

CLAUDE = "us.anthropic.claude-sonnet-4-5-20250929-v1:0"
NOVA = "us.amazon.nova-2-lite-v1:0"
SECRET = "a-secret-access-key-of-some-length"
TOKEN = "a-session-token-of-some-length"
Start = Callable[..., ConverseServer]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set AWS credentials and a region, and no other source of credentials."""
    for name in ("AWS_SESSION_TOKEN", "AWS_BEARER_TOKEN_BEDROCK", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_REGION", "eu-west-1")


@pytest.fixture
def converse() -> Iterator[Start]:
    """Start servers that are closed after the test."""
    started: list[ConverseServer] = []

    def start(*answers: Any) -> ConverseServer:
        started.append(ConverseServer(*answers, secret=SECRET))
        return started[-1]

    yield start
    for one in started:
        one.close()


def model_of(server: ConverseServer, name: str = CLAUDE, **settings: Any) -> BedrockChatModel:
    return BedrockChatModel(name, base_url=server.url, max_retries=0, **settings)


def sent(server: ConverseServer, *messages: Message, model: str = CLAUDE, **options: Any) -> Json:
    """Return the body of a request, which botocore finds valid."""
    chosen = BedrockChatOptions(**options)
    with model_of(server, model, options=chosen) as asked:
        asked.call(messages or [UserMessage("Hi")])
    return valid(server.requests[-1])


def valid(body: Json) -> Json:
    """Return *body* after botocore has checked it against the service's model."""
    from botocore.session import Session
    from botocore.validate import validate_parameters

    service = Session().get_service_model("bedrock-runtime")
    shape = service.operation_model("Converse").input_shape
    assert shape is not None
    validate_parameters({"modelId": "m", **body}, shape)
    return body


@tool
def weather(city: str) -> str:
    """Return a forecast."""
    return f"Sunny in {city}"


THOUGHT = {"reasoningContent": {"reasoningText": {"text": "Rome, then.", "signature": "sig"}}}
REDACTED = {"reasoningContent": {"redactedContent": "c2VjcmV0"}}
CALL = {"toolUse": {"toolUseId": "c1", "name": "weather", "input": {"city": "Rome"}}}


def test_tool_loop(ask: Ask, converse: Start) -> None:
    """Reasoning, calls and results go to the model and back; requests are signed."""
    calls = response(THOUGHT, REDACTED, "Let me see.", CALL, stop="tool_use")
    server = converse(calls, response("Sunny."))
    with model_of(server) as model:
        client = ChatClient.builder(model).default_system("Be brief.").build()
        asked = ask(client.prompt("How is Rome?").tools(weather))

    assert asked.text.endswith("Sunny.")
    assert asked.response.chat_response.finish_reason == "stop"
    first, second = map(valid, server.requests)
    assert first["system"] == [{"text": "Be brief."}]
    assert first["toolConfig"]["tools"][0]["toolSpec"]["name"] == "weather"
    assert second["messages"][1:] == [
        {"role": "assistant", "content": [THOUGHT, REDACTED, {"text": "Let me see."}, CALL]},
        {
            "role": "user",
            "content": [
                {"toolResult": {"toolUseId": "c1", "content": [{"text": "Sunny in Rome"}]}}
            ],
        },
    ]
    operation = "converse-stream" if ask.streaming else "converse"
    assert set(server.paths) == {f"/model/{CLAUDE}/{operation}"}


def test_usage_and_metadata(ask: Ask, converse: Start) -> None:
    """Usage includes cached tokens; a trace of the guardrail is kept."""
    usage = {"inputTokens": 3, "outputTokens": 4, "totalTokens": 17}
    usage |= {"cacheReadInputTokens": 8, "cacheWriteInputTokens": 2}
    answer = response("No.", stop="guardrail_intervened", trace={"guardrail": {}})
    server = converse({**answer, "usage": usage})
    with model_of(server) as model:
        found = ask(ChatClient.create(model).prompt("Hi")).response.chat_response

    assert (found.usage.input_tokens, found.usage.total_tokens) == (13, 17)
    assert (found.usage.cache_read_tokens, found.usage.cache_write_tokens) == (8, 2)
    assert found.finish_reason == "content_filter"
    assert found.metadata.values["trace"] == {"guardrail": {}}


@pytest.mark.parametrize(
    ("native", "reason"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("content_filtered", "content_filter"),
        ("malformed_tool_use", "error"),
        ("a_reason_of_tomorrow", "stop"),
    ],
)
def test_stop_reasons(converse: Start, native: str, reason: str) -> None:
    """Stop reasons are mapped, and kept as the service names them."""
    with model_of(converse(response("Hi", stop=native))) as model:
        found = model.call("Hi")

    assert found.result is not None
    assert (found.finish_reason, found.result.native_finish_reason) == (reason, native)


# --- requests -------------------------------------------------------------------------------


def test_content_of_messages(converse: Start) -> None:
    """Media, results with media, failed results and parts of other providers are encoded."""
    image = Media("image/png", b"png")
    page = Media("application/pdf", b"pdf", name="A page, of (mine).pdf")
    stored = Media("video/quicktime", "s3://bucket/film.mov")
    notes = Media("text/x-notes", b"notes", metadata={"context": "old"})
    calls = [ToolCall("c:1", "look", "{}"), ToolCall("c2", "look", '{"at": 1}')]
    results = [
        ToolResponse("c:1", "look", "seen", media=(image, Media("font/woff", b"f", name="f"))),
        ToolResponse("c2", "look", " ", is_error=True),
    ]
    foreign: list[Any] = [
        Reasoning("Hm.", "sig", "anthropic"),
        ProviderPart("gemini", {"x": 1}, "Cited."),
    ]
    own = ProviderPart("bedrock", {"guardContent": {"text": {"text": "Mind this."}}})
    body = sent(
        converse(response("ok")),
        SystemMessage("Be brief.", {"cache_control": {"type": "ephemeral"}}),
        UserMessage(["Look: ", image, page, stored, notes, " ", own, *foreign[1:]]),
        AssistantMessage([*foreign, Reasoning("unsigned", provider="bedrock"), *calls, image]),
        ToolResponseMessage(results),
        UserMessage("And?"),
        AssistantMessage("It is "),
    )

    assert body["system"] == [{"text": "Be brief."}, {"cachePoint": {"type": "default"}}]
    users, assistant, answers, prefill = (each["content"] for each in body["messages"])
    encoded = {name: base64.b64encode(name.encode()).decode() for name in ("png", "pdf", "notes")}
    assert users == [
        {"text": "Look: "},
        {"image": {"format": "png", "source": {"bytes": encoded["png"]}}},
        {
            "document": {
                "format": "pdf",
                "name": "A page of (mine)",
                "source": {"bytes": encoded["pdf"]},
            }
        },
        {"video": {"format": "mov", "source": {"s3Location": {"uri": "s3://bucket/film.mov"}}}},
        {
            "document": {
                "format": "txt",
                "name": "document",
                "source": {"bytes": encoded["notes"]},
                "context": "old",
            }
        },
        own.data,
        {"text": "Cited."},
    ]
    assert assistant == [
        {"text": "Cited."},
        {"toolUse": {"toolUseId": "c_1", "name": "look", "input": {}}},
        {"toolUse": {"toolUseId": "c2", "name": "look", "input": {"at": 1}}},
    ]
    first, second = answers[0]["toolResult"], answers[1]["toolResult"]
    assert first["content"][0] == {"text": "seen"}
    assert "cannot be shown" in first["content"][1]["text"]
    assert first["content"][2]["image"]["format"] == "png"
    assert second == {"toolUseId": "c2", "content": [{"text": "error"}], "status": "error"}
    assert answers[2:] == [{"text": "And?"}]
    assert prefill == [{"text": "It is"}]


def test_ids_of_calls_are_unique_and_short() -> None:
    """Ids that the API does not take are replaced, by the same ones in calls and results."""
    model = BedrockChatModel(CLAUDE, api_key="k", base_url="http://b")
    given = ["", "a" * 100, "b" + "a" * 99, "c.1", "c:1"]
    messages: list[Message] = [UserMessage("?")]
    for ids in (given, given[1:2]):
        messages.append(AssistantMessage(tool_calls=[ToolCall(id, "look", "{}") for id in ids]))
        messages.append(ToolResponseMessage([ToolResponse(id, "look", id or "-") for id in ids]))
    turns = body_of(model, Prompt(messages))["messages"]
    called = [block["toolUse"]["toolUseId"] for turn in turns[1::2] for block in turn["content"]]
    results = [block["toolResult"] for turn in turns[2::2] for block in turn["content"]]

    assert called == [result["toolUseId"] for result in results]
    assert len(set(called)) == 6
    assert all(re.fullmatch("[a-zA-Z0-9_-]{1,64}", id) for id in called)


def test_names_of_documents(converse: Start) -> None:
    """Documents of a request have distinct names, which later requests repeat."""

    def document(name: str | None) -> Media:
        return Media("application/pdf", b"x", name=name)

    own = ProviderPart("bedrock", {"document": {"name": "A", "format": "txt", "source": {}}})
    own = replace(own, data={"document": {**own.data["document"], "source": {"text": "t"}}})
    result = ToolResponse("c", "f", "", media=(document("a.xls"), document("a 2.xls")))
    messages = [
        UserMessage(["Look", document("a.pdf"), document("a.docx"), document(None)]),
        AssistantMessage([ToolCall("c", "f", "{}"), ToolCall("d", "f", "{}")]),
        ToolResponseMessage([result, replace(result, id="d")]),
        AssistantMessage("Seen."),
        UserMessage(["And?", document("\u6587.pdf"), document("\u5b57.pdf"), own]),
        UserMessage(["These?", document("x" * 300), document("x" * 300 + ".txt")]),
    ]

    def names(body: Any) -> list[str]:
        if isinstance(body, list):
            return [name for each in body for name in names(each)]
        if not isinstance(body, dict):
            return []
        found = [body["document"]["name"]] if "document" in body else []
        return found + [name for each in body.values() for name in names(each)]

    early, late = (names(sent(converse(response("ok")), *messages[:end])) for end in (3, 6))

    assert late == [
        *("a", "a 2", "document", "a 3", "a 2 2", "a 4", "a 2 3", "document 2", "document 3"),
        *("A 5", "x" * 200, "x" * 198 + " 2"),
    ]
    assert early == late[: len(early)]
    assert isinstance(messages[0], UserMessage)
    assert messages[0].media[1].name == "a.docx"


def test_unsupported_content(converse: Start) -> None:
    """Media and messages that the API does not take are an error before sending."""
    server = converse(response("ok"))

    class Other(Message):
        """A message of the application."""

    with model_of(server) as model:
        with pytest.raises(UsageError, match="no font/woff"):
            model.call(UserMessage(["Look", Media("font/woff", b"f")]))
        with pytest.raises(UsageError, match="its address"):
            model.call(UserMessage(["Look", Media("image/png", "https://example.org/a.png")]))
        with pytest.raises(UsageError, match="Other is not"):
            model.call([Other()])
    assert server.requests == []


def test_options(converse: Start) -> None:
    """Options are sent under the names of the API; others go into the fields of the model."""
    body = sent(
        converse(response("ok")),
        temperature=0.5,
        max_tokens=9,
        stop="END",
        top_k=3,
        guardrail={"guardrailIdentifier": "g", "guardrailVersion": "1"},
        output_schema={"type": "object"},
        model_fields={"anthropic_beta": ["x"]},
        extra={"serviceTier": {"type": "flex"}},
    )

    assert body == {
        "messages": [{"role": "user", "content": [{"text": "Hi"}]}],
        "inferenceConfig": {"maxTokens": 9, "temperature": 0.5, "stopSequences": ["END"]},
        "additionalModelRequestFields": {
            "top_k": 3,
            "anthropic_beta": ["x"],
        },
        "guardrailConfig": {"guardrailIdentifier": "g", "guardrailVersion": "1"},
        "outputConfig": {
            "textFormat": {
                "type": "json_schema",
                "structure": {"jsonSchema": {"schema": '{"type":"object"}'}},
            }
        },
        "serviceTier": {"type": "flex"},
    }


def test_top_k_and_thinking_by_model(converse: Start) -> None:
    """`top_k` has another place in Nova, and none in other models."""
    server = converse(response("ok"))
    nova = sent(server, model=NOVA, top_k=3, thinking={"type": "adaptive"})
    llama = sent(server, model="meta.llama4-maverick-17b-instruct-v1:0", top_k=3)

    fields = {"thinking": {"type": "adaptive"}, "inferenceConfig": {"topK": 3}}
    assert nova["additionalModelRequestFields"] == fields
    assert "additionalModelRequestFields" not in llama


OPUS = "us.anthropic.claude-opus-4-7"
GPT_OSS = "openai.gpt-oss-120b-1:0"


@pytest.mark.parametrize("name", ["temperature", "top_p", "top_k"])
def test_sampling_of_claude(converse: Start, name: str) -> None:
    """Claude without sampling options, or while it thinks, is not sent any."""
    server, given = converse(response("ok")), dict[str, Any]({name: 2})
    plain = sent(server, model=GPT_OSS if name != "top_k" else NOVA, **given)

    assert sent(server, model=CLAUDE, **given) != sent(server, model=CLAUDE)
    assert plain != sent(server, model=GPT_OSS)
    thinking = {"thinking": {"type": "enabled", "budget_tokens": 2000}}
    body = sent(server, thinking=2000, **given)
    assert (body["additionalModelRequestFields"], body.get("inferenceConfig")) == (thinking, None)
    newer = sent(server, model=OPUS)
    assert sent(server, model=OPUS, **given) == newer
    with (
        model_of(server, OPUS) as model,
        pytest.raises(UnsupportedOptionError, match="no sampling options"),
    ):
        ChatClient.create(model).prompt("Hi").options(**given).call().content()


def test_reasoning_of_other_models(converse: Start) -> None:
    """Models other than Claude take an effort, together with a schema."""
    server = converse(response("ok"))
    schema: Any = {"type": "object"}

    assert sent(server, model=GPT_OSS, reasoning="minimal")["outputConfig"] == {"effort": "low"}
    both = sent(server, model=NOVA, reasoning="high", output_schema=schema)["outputConfig"]
    assert both["effort"] == "high"
    assert both["textFormat"]["type"] == "json_schema"
    assert "outputConfig" not in sent(server, model=NOVA, reasoning="none")
    mistral = "mistral.mistral-large-2402-v1:0"
    assert "outputConfig" not in sent(server, model=mistral, reasoning="high")
    client = ChatClient.create(BedrockChatModel(mistral, api_key="key", region="eu-west-1"))
    with pytest.raises(UnsupportedOptionError, match="model_fields"):
        client.prompt("Hi").options(reasoning="high").call().content()


def test_guardrail_of_streams(ask: Ask, converse: Start) -> None:
    """How a guardrail checks a stream is sent for streams only."""
    guardrail = {"guardrailIdentifier": "g", "guardrailVersion": "1"}
    server = converse(response("ok"))
    options = BedrockChatOptions(guardrail={**guardrail, "streamProcessingMode": "async"})
    with model_of(server, options=options) as model:
        ask(ChatClient.create(model).prompt("Hi"))

    mode = {"streamProcessingMode": "async"} if ask.streaming else {}
    assert server.requests[0]["guardrailConfig"] == {**guardrail, **mode}


def test_marks_of_messages(converse: Start) -> None:
    """A cache point may have a lifetime; system text may be checked by a guardrail."""
    cached = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    body = sent(
        converse(response("ok")),
        SystemMessage("Rome is in Italy.", {"guard_content": ["grounding_source"], **cached}),
        SystemMessage("Be brief.", {"guard_content": True}),
        UserMessage("Hi", metadata=cached),
    )

    point = {"cachePoint": {"type": "default", "ttl": "1h"}}
    source = {"text": "Rome is in Italy.", "qualifiers": ["grounding_source"]}
    assert body["system"] == [
        {"guardContent": {"text": source}},
        point,
        {"guardContent": {"text": {"text": "Be brief."}}},
    ]
    assert body["messages"][0]["content"] == [{"text": "Hi"}, point]


POINT = {"cachePoint": {"type": "default"}}


@pytest.mark.parametrize(
    ("cache", "points"),
    [
        ("tools", (1, 0, 0)),
        ("system", (1, 1, 0)),
        ("conversation", (1, 1, 1)),
        ("auto", (1, 1, 1)),
    ],
)
def test_cache(converse: Start, cache: Any, points: tuple[int, ...]) -> None:
    """Cache points end the tools, the system text and the conversation."""
    messages = [SystemMessage("Be brief."), UserMessage("Hi")]
    tools = tool_callbacks(weather)
    body = sent(converse(response("ok")), *messages, cache=cache, tool_callbacks=tools)

    places = (body["toolConfig"]["tools"], body["system"], body["messages"][-1]["content"])
    assert tuple(place.count(POINT) for place in places) == points
    body = sent(converse(response("ok")), *messages, cache=cache)
    assert (POINT in body["messages"][-1]["content"]) is (cache == "conversation")


def test_own_cache_points(converse: Start) -> None:
    """`auto` adds none to the application's; none are doubled, and the oldest of five left out."""
    mark: Any = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    server, tools = converse(response("ok")), tool_callbacks(weather)
    body = sent(
        server,
        SystemMessage("s"),
        UserMessage("Hi", metadata=mark),
        cache="auto",
        tool_callbacks=tools,
    )
    assert str(body).count("cachePoint") == 1

    turns = [
        each
        for _ in range(3)
        for each in (UserMessage("a", metadata=mark), AssistantMessage("b", metadata=mark))
    ]
    body = sent(server, *turns[:5], cache="conversation")
    assert [str(turn).count("cachePoint") for turn in body["messages"]] == [0, 1, 1, 1, 1]


def test_cache_points_of_nova(converse: Start) -> None:
    """Nova gets no cache point after tools or their results, and no lifetime."""
    mark: Any = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    call = AssistantMessage([ToolCall("1", "weather", "{}")])
    result = ToolResponseMessage([ToolResponse("1", "weather", "sunny")])
    body = sent(
        converse(response("ok")),
        SystemMessage("s", mark),
        UserMessage("Hi"),
        call,
        result,
        model=NOVA,
        cache="conversation",
        tool_callbacks=tool_callbacks(weather),
    )
    assert body["system"] == [{"text": "s"}, POINT]
    assert str(body).count("cachePoint") == 1


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("auto", {"auto": {}}),
        ("required", {"any": {}}),
        ("weather", {"tool": {"name": "weather"}}),
        (None, None),
    ],
)
def test_tool_choice(converse: Start, choice: str | None, expected: Json | None) -> None:
    """A tool choice is sent in the form of the API."""
    tools = tool_callbacks(weather)
    body = sent(converse(response("ok")), tool_choice=choice, tool_callbacks=tools)

    assert body["toolConfig"].get("toolChoice") == expected


def test_tools_of_earlier_calls(converse: Start) -> None:
    """Where the conversation has calls, tools are sent although none may be called."""
    server = converse(response("ok"))
    tools = tool_callbacks(weather)
    called = [
        UserMessage("Hi"),
        AssistantMessage([ToolCall("c1", "look", "{}")]),
        ToolResponseMessage([ToolResponse("c1", "look", "seen")]),
    ]

    def offered(*messages: Message, **options: Any) -> list[str]:
        config = sent(server, *messages, **options).get("toolConfig", {"tools": []})
        return [next(iter(each.values()))["name"] for each in config["tools"]]

    assert offered(UserMessage("Hi"), tool_callbacks=tools, tool_choice="none") == []
    assert offered(*called, tool_callbacks=tools, tool_choice="none") == ["weather"]
    assert offered(*called) == ["look"]
    assert offered(UserMessage("Hi"), server_tools="nova_grounding") == ["nova_grounding"]


def test_tool_without_description(converse: Start) -> None:
    """Blank descriptions, which the API refuses, are left out; strict tools are marked."""
    definition = ToolDefinition("look", strict=True)
    body = sent(converse(response("ok")), tool_callbacks=[ExternalTool(definition)])

    (spec,) = (each["toolSpec"] for each in body["toolConfig"]["tools"])
    assert spec.keys() == {"name", "inputSchema", "strict"}
    assert spec["inputSchema"]["json"]["type"] == "object"


@pytest.mark.parametrize("answer", [{"output": 1}, [], {"error": {"message": "no"}}])
def test_malformed_answers(converse: Start, answer: Any) -> None:
    """An answer that is an error, or no response, is a `ProviderError`."""
    with model_of(converse(as_json(answer))) as model, pytest.raises(ProviderError):
        model.call("Hi")


def test_output_modes() -> None:
    """Claude and Nova are forced to call a tool for JSON, unless they think; others are asked."""
    model = BedrockChatModel(CLAUDE)

    def mode(**options: Any) -> str:
        return model.output_mode(BedrockChatOptions(**options))

    assert mode() == mode(model=NOVA) == mode(thinking="disabled") == "tool"
    assert mode(thinking=2000) == mode(model="meta.llama3-70b") == "instructions"


# --- credentials and errors -----------------------------------------------------------------


@pytest.mark.parametrize("library", ["httpx", "httpx2", "aiohttp"])
@pytest.mark.parametrize(
    "name", [NOVA, "arn:aws:bedrock:us-east-1:1:inference-profile/us.x~y.z-v1:0", "a b/ü%"]
)
def test_signed_path(
    converse: Start, name: str, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every HTTP library sends the path that was signed."""
    pytest.importorskip({"aiohttp": "httpx_aiohttp"}.get(library, library))
    monkeypatch.setenv("CHATCLIENT_HTTP", library)
    server = converse(response("ok"))

    async def ask_twice() -> None:
        async with model_of(server, name) as model:
            assert (await model.acall("Hi")).text == "ok"
            assert model.call("Hi").text == "ok"

    asyncio.run(ask_twice())
    assert {unquote(path) for path in server.paths} == {f"/model/{name}/converse"}


def test_error_texts(converse: Start) -> None:
    """The error has the message of AWS about a signature, without the signature."""

    def refuse(headers: dict[str, str]) -> Reply:
        signature = headers["authorization"].rpartition("=")[2]
        text = f"Credential should be scoped to a region; {headers['x-amz-date']}; {signature}"
        return as_json({"message": text}, 403)

    server = converse(refuse)
    with model_of(server) as model, pytest.raises(AuthenticationError) as raised:
        model.call("Hi")

    date = server.headers[0]["x-amz-date"]
    assert f"Credential should be scoped to a region; {date}; ***" in str(raised.value)


def test_expired_credentials(
    ask: Ask, converse: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The server's refusal is an `AuthenticationError`; secrets are shown nowhere."""
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("AWS_SESSION_TOKEN", TOKEN)
    server = converse(response("ok"))
    with model_of(server) as model:
        with pytest.raises(AuthenticationError, match="is expired") as raised:
            ask(ChatClient.create(model).prompt("Hi"))
        shown = f"{model!r} {raised.value!r} {vars(raised.value)} {caplog.text}"

    assert server.headers[0]["x-amz-security-token"] == TOKEN
    assert raised.value.status == 403
    signature = server.headers[0]["authorization"].rpartition("=")[2]
    assert [each for each in (SECRET, TOKEN, signature) if each in shown] == []


def renewable_session(renewals: list[str]) -> Any:
    """Return a session whose credentials have expired, and renew once per call."""
    from botocore.credentials import RefreshableCredentials
    from botocore.session import Session

    def renew() -> dict[str, str]:
        renewals.append(TOKEN)
        return {
            "access_key": "AKIDEXAMPLE",
            "secret_key": SECRET,
            "token": TOKEN,
            "expiry_time": "2199-01-01T00:00:00Z",
        }

    old = {**renew(), "token": "an old token", "expiry_time": "2001-01-01T00:00:00Z"}
    renewals.clear()
    session = Session()
    session._credentials = RefreshableCredentials.create_from_metadata(old, renew, "test")  # type: ignore[attr-defined]
    return session


@pytest.mark.parametrize("blocking", [True, False])
def test_credentials_are_renewed_once(converse: Start, *, blocking: bool) -> None:
    """Concurrent requests renew expired credentials once."""
    renewals: list[str] = []
    server = converse(response("ok"))
    server.valid_tokens = {TOKEN}
    model = model_of(server, session=renewable_session(renewals))

    async def ask_all() -> list[str]:
        async with model:
            answers = await asyncio.gather(*[model.acall("Hi") for _ in range(8)])
            return [each.text for each in answers]

    if blocking:
        with ThreadPoolExecutor(8) as threads, model:
            texts = [each.text for each in threads.map(model.call, ["Hi"] * 8)]
    else:
        texts = asyncio.run(ask_all())

    assert texts == ["ok"] * 8
    assert renewals == [TOKEN]


def test_bearer_token(ask: Ask, converse: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Bedrock API key is sent in place of a signature."""
    monkeypatch.setenv("AWS_BEARER_TOKEN_BEDROCK", "bedrock-api-key-1234")
    server = converse(response("ok"))
    with model_of(server) as model:
        assert ask(ChatClient.create(model).prompt("Hi")).text == "ok"

    assert server.headers[0]["authorization"] == "Bearer bedrock-api-key-1234"
    assert "x-amz-date" not in server.headers[0]


def test_no_credentials(converse: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without credentials, the error names the variables; a broken profile is an error, too."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    server = converse(response("ok"))
    with model_of(server) as model, pytest.raises(AuthenticationError, match="AWS_ACCESS_KEY_ID"):
        model.call("Hi")

    monkeypatch.setenv("AWS_PROFILE", "missing")
    with (
        model_of(server, region="us-east-1") as model,
        pytest.raises(AuthenticationError, match="cannot be loaded"),
    ):
        model.call("Hi")


def test_silent_credentials_service(
    converse: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service that does not issue credentials is not awaited for minutes."""
    monkeypatch.setattr("chatclient.providers.bedrock.model.TOKEN_SECONDS", 0.2)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    token = tmp_path / "token"
    token.write_text("eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJtZSJ9.c2ln")
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/chat")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(token))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", url)
        with (
            model_of(converse(response("ok"))) as model,
            pytest.raises(ConnectionFailedError, match="issues AWS credentials"),
        ):
            model.call("Hi")


def test_refused_credentials(
    converse: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the service quotes of a request is masked."""
    quoted = "token eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJtZSJ9.c2ln"
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    (tmp_path / "token").write_text("a token")
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/chat")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
    text = f"<ErrorResponse><Error><Code>ExpiredToken</Code><Message>{quoted}</Message></Error>"
    refusal = Reply(f"{text}</ErrorResponse>".encode(), 400, content_type="text/xml")
    with LoopbackServer(lambda *_: refusal, raw=True) as sts:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", sts.url)
        with (
            model_of(converse(response("ok"))) as model,
            pytest.raises(AuthenticationError, match=r"token \*\*\*") as raised,
        ):
            model.call("Hi")
    assert "eyJ" not in "".join(traceback.format_exception(raised.value))


def test_credentials_service_is_away(converse: Start) -> None:
    """A service of credentials that cannot be reached is a `ConnectionFailedError`."""
    from botocore.credentials import DeferredRefreshableCredentials
    from botocore.exceptions import EndpointConnectionError
    from botocore.session import Session

    def renew() -> dict[str, str]:
        raise EndpointConnectionError(endpoint_url="http://sts.example")

    session: Any = Session()
    session._credentials = DeferredRefreshableCredentials(renew, "test")
    with (
        model_of(converse(response("ok")), session=session) as model,
        pytest.raises(ConnectionFailedError, match=r"sts\.example"),
    ):
        model.call("Hi")


def test_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The region chooses the server; the environment may name another."""
    assert BedrockChatModel(NOVA).address == "https://bedrock-runtime.eu-west-1.amazonaws.com"
    chinese = BedrockChatModel(NOVA, region="cn-north-1").address
    assert chinese == "https://bedrock-runtime.cn-north-1.amazonaws.com.cn"
    named = chat_model(f"bedrock:{NOVA}", region="us-east-1")
    assert repr(named) == (
        f"BedrockChatModel('{NOVA}', base_url='https://bedrock-runtime.us-east-1.amazonaws.com')"
    )
    with pytest.raises(UsageError, match="names no model"):
        chat_model("bedrock")
    with pytest.raises(UsageError, match="knows no address"):
        BedrockChatModel(NOVA, region="no region")
    monkeypatch.setenv("AWS_ENDPOINT_URL_BEDROCK_RUNTIME", "https://bedrock.example")
    assert BedrockChatModel(NOVA).address == "https://bedrock.example"
    monkeypatch.delenv("AWS_REGION")
    with pytest.raises(UsageError, match="needs a region"):
        BedrockChatModel(NOVA)


def test_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without botocore, the error names the extra."""
    monkeypatch.setitem(sys.modules, "botocore.session", None)
    with pytest.raises(UsageError, match=r"chatclient\[bedrock\]"):
        BedrockChatModel(NOVA)


def test_errors(converse: Start) -> None:
    """Errors have the type of their status, or of the kind that a header names."""
    kind = {"x-amzn-errortype": "ExpiredTokenException:http://internal"}
    cases = [
        (as_json({"message": "Malformed input"}, 400), InvalidRequestError),
        (as_json({"message": "no longer"}, 400, **kind), AuthenticationError),
        (as_json({"message": "Too many tokens, please wait"}, 429), RateLimitedError),
    ]
    for reply, expected in cases:
        with model_of(converse(reply)) as model, pytest.raises(expected) as raised:
            model.call("Hi")
        assert type(raised.value) is expected


def test_limits(ask: Ask, converse: Start) -> None:
    """Too many calls are an error."""
    calls = [{"toolUse": {"toolUseId": f"c{n}", "name": "f", "input": {}}} for n in range(3)]
    server = converse(response(*calls, stop="tool_use"))
    with (
        model_of(server, limits=ResponseLimits(tool_calls=2)) as model,
        pytest.raises(ResponseLimitError),
    ):
        ask(ChatClient.create(model).prompt("Hi").tools(weather))
