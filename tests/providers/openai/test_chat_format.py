"""Conversion of Chat Completions conversations to messages and back."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from chatclient import (
    AssistantMessage,
    ChatClient,
    Media,
    SystemMessage,
    ToolCall,
    ToolResponse,
    ToolResponseMessage,
    UserMessage,
    tool,
)
from chatclient.chat.messages import ProviderPart, Reasoning
from chatclient.chat.serialization import message_from_dict
from chatclient.errors import UsageError
from chatclient.memory import conversation_problems
from chatclient.providers.openai.chat_format import messages_from_openai, messages_to_openai
from chatclient.testing import Ask, ScriptedModel, call

KEPT: list[dict[str, Any]] = [
    {"role": "developer", "content": "Be brief."},
    {"role": "system", "content": "Be kind, too."},
    {"role": "user", "name": "ada", "content": "How warm is it in Rome and in Oslo?"},
    {
        "role": "assistant",
        "content": "One moment.",
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "warmth", "arguments": '{"city": "Rome"}'},
            },
            {
                "id": "call_2",
                "type": "function",
                "function": {"name": "frost", "arguments": "{}"},
            },
        ],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "21"},
    {"role": "tool", "tool_call_id": "call_2", "content": "-3"},
    {"role": "assistant", "content": "21 and -3 degrees."},
    {"role": "user", "content": "Thanks!"},
]


def user(*parts: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


def test_import_conversation() -> None:
    """Results are named after their calls, and results of a round form one message."""
    calls = (ToolCall("call_1", "warmth", '{"city": "Rome"}'), ToolCall("call_2", "frost", "{}"))
    results = (ToolResponse("call_1", "warmth", "21"), ToolResponse("call_2", "frost", "-3"))
    messages = messages_from_openai(KEPT)

    assert messages == [
        SystemMessage("Be brief.", {"role": "developer"}),
        SystemMessage("Be kind, too."),
        UserMessage("How warm is it in Rome and in Oslo?", metadata={"name": "ada"}),
        AssistantMessage("One moment.", calls),
        ToolResponseMessage(results),
        AssistantMessage("21 and -3 degrees."),
        UserMessage("Thanks!"),
    ]
    assert conversation_problems(messages) == ()


@pytest.mark.feature("lc4j-conversations-openai-them")
def test_conversation_round_trip() -> None:
    """A conversation survives the round trip and is valid JSON."""
    written = json.loads(json.dumps(messages_to_openai(messages_from_openai(KEPT))))

    assert written == KEPT


@pytest.mark.parametrize(
    ("part", "ours"),
    [
        ({"type": "text", "text": "Hi"}, "Hi"),
        (
            {"type": "image_url", "image_url": {"url": "https://x/a.jpg?s=1", "detail": "low"}},
            Media("image/jpeg", "https://x/a.jpg?s=1", metadata={"detail": "low"}),
        ),
        (
            {"type": "image_url", "image_url": {"url": "https://x/a"}},
            Media("image/png", "https://x/a"),
        ),
        (
            {"type": "image_url", "image_url": {"url": "data:image/gif;base64,AAAA"}},
            Media("image/gif", bytes(3)),
        ),
        (
            {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "mp3"}},
            Media("audio/mpeg", bytes(3)),
        ),
        (
            {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
            Media("audio/wav", bytes(3)),
        ),
        (
            {
                "type": "file",
                "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,AAAA"},
            },
            Media("application/pdf", bytes(3), name="a.pdf"),
        ),
        (
            {"type": "file", "file": {"file_id": "file-1"}},
            ProviderPart("openai", {"type": "file", "file": {"file_id": "file-1"}}),
        ),
    ],
)
def test_content_round_trip(part: dict[str, Any], ours: Any) -> None:
    """Media become media; parts specific to OpenAI are kept unchanged."""
    (message,) = messages_from_openai(user({"type": "text", "text": "See: "}, part))

    assert message == UserMessage(["See: ", ours])
    written = messages_to_openai(message)
    assert messages_from_openai(written) == [message]
    assert written[0]["content"][-1] == part


def test_alternative_forms() -> None:
    """Text parts, bare image URLs, and results with images or names are accepted."""
    text = {"type": "text", "text": "21"}
    image = {"type": "image_url", "image_url": "https://x/a.png"}
    parts: list[dict[str, Any]] = [
        {"role": "system", "content": [text, {"type": "text", "text": " it is."}]},
        {"role": "assistant", "content": [text]},
        {"role": "tool", "tool_call_id": "7", "name": "warmth", "content": [text, image]},
        {"role": "tool", "tool_call_id": "8", "content": ""},
    ]
    shown = Media("image/png", "https://x/a.png")

    assert messages_from_openai(parts) == [
        SystemMessage("21 it is."),
        AssistantMessage("21"),
        ToolResponseMessage(
            [ToolResponse("7", "warmth", "21", media=(shown,)), ToolResponse("8", "", "")]
        ),
    ]


def test_refusal_parts() -> None:
    """Refusal parts are equivalent to the refusal field."""
    parts = [{"type": "text", "text": "Sorry, "}, {"type": "refusal", "refusal": "no."}]
    [message] = messages_from_openai([{"role": "assistant", "content": parts}])

    assert message.text == "Sorry, no."
    assert messages_to_openai(message) == [
        {"role": "assistant", "content": "Sorry, ", "refusal": "no."}
    ]


def test_fields_without_counterpart_are_dropped() -> None:
    """Reasoning, error flags and metadata are dropped."""
    answer = AssistantMessage("Hi", reasoning=Reasoning("Greet."), metadata={"mine": 1})
    failed = ToolResponseMessage(ToolResponse("1", "f", "no", is_error=True))

    assert messages_to_openai([answer, failed]) == [
        {"role": "assistant", "content": "Hi"},
        {"role": "tool", "tool_call_id": "1", "content": "no"},
    ]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([{"role": "user", "content": "Hi"}, {"role": "user"}], "message 1 is not .*no 'content'"),
        ([{"role": "function", "name": "f", "content": "1"}], "one of .*'tool'], not 'function'"),
        ([{"content": "Hi"}], "message 0 is not .* its role must be one of .* not None"),
        ([{"role": "tool", "content": "1"}], "message 0 .* there is no 'tool_call_id'"),
        ([{"role": "user", "content": None}], "message 0 is not one of Chat Completions"),
        ([{"role": "assistant", "tool_calls": [{"id": "1"}]}], "a tool call has no name"),
        (user({"type": "image_url"}), "message 0 .* there is no 'image_url'"),
        (user({"type": "image_url", "image_url": {"url": "C:\\a b.png"}}), "message 0 is not"),
        ({"role": "user", "content": "Hi"}, "must be a Mapping, not 'role'"),
        (["Hi"], "message 0 of Chat Completions must be a Mapping, not 'Hi'"),
        (None, "must be an Iterable, not None; put messages into a list"),
    ],
)
def test_invalid_conversation(given: Any, message: str) -> None:
    """The error names the message and the problem."""
    with pytest.raises(UsageError, match=message):
        messages_from_openai(given)


@tool(effect="read")
def frost(city: str) -> int:
    """Tell how cold it is."""
    return -3


@pytest.mark.feature("lc4j-conversations-openai-them")
def test_conversation_is_continued(ask: Ask) -> None:
    """A client continues an imported conversation, which can be exported again."""
    model = ScriptedModel(call("frost", {"city": "Oslo"}, id="call_3"), "Colder.")
    client = ChatClient.builder(model).default_tools(frost).build()
    result = ask(client.prompt("And tomorrow?").messages(messages_from_openai(KEPT[2:7])))

    assert result.text == "Colder."
    kept = messages_to_openai(model.prompts[1].messages)
    question: dict[str, Any] = {"role": "user", "content": "And tomorrow?"}
    function = {"name": "frost", "arguments": '{"city":"Oslo"}'}
    calls = [{"id": "call_3", "type": "function", "function": function}]
    assert kept == [
        *KEPT[2:7],
        question,
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "call_3", "content": "-3"},
    ]


def places(given: Iterable[Any]) -> Any:
    client = ChatClient.create(ScriptedModel("never"))
    return (
        lambda: client.prompt(given),
        lambda: client.prompt("x").messages(given),
        lambda: client.mutate().default_messages(given),
        lambda: messages_to_openai(given),
    )


@pytest.mark.parametrize("place", range(4))
def test_dicts_instead_of_messages(place: int) -> None:
    """The error for dicts names the conversion function."""
    with pytest.raises(UsageError, match=r"go through messages_from_openai\(\[\.\.\.\]\)"):
        places(KEPT)[place]()


@pytest.mark.parametrize("message", KEPT[3:5])
def test_other_serialization_is_rejected(message: dict[str, Any]) -> None:
    """Tool calls in this form are not silently lost by the native deserialiser."""
    with pytest.raises(UsageError, match=r"read by messages_from_openai\(\[\.\.\.\]\)"):
        message_from_dict(message)
