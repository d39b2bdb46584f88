"""Generates prompts with everything that messages and options may contain."""

from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

from chatclient import (
    AssistantMessage,
    Media,
    Message,
    SystemMessage,
    ToolCall,
    ToolResponse,
    ToolResponseMessage,
    UserMessage,
)
from chatclient.chat import ProviderPart, Reasoning
from chatclient.tools import tool_callbacks

MIME_TYPES = (
    *("image/png", "image/jpg", "image/webp", "image/svg+xml"),
    *("audio/wav", "audio/mpeg", "audio/ogg", "video/mp4", "video/quicktime"),
    *("application/pdf", "text/plain", "text/csv", "application/json", "application/zip"),
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
)
NAMES = (None, "a.pdf", "a.docx", "報告.pdf", "  ", "x" * 300 + ".txt", 'say "a/b".csv')
MEDIA_METADATA = (
    {"detail": "low"},
    {"citations": {"enabled": True}, "context": "From the shop."},
    {"cache_control": {"type": "ephemeral"}},
    {"videoMetadata": {"fps": 2}, "thoughtSignature": "c2ln"},
    {"expires_at": 5},
)
TEXTS = st.sampled_from(
    ("Hi", "", " ", "line\nend", "\ud83d\ude00 \N{EURO SIGN}", "{", '"', "x" * 99)
)
CONTENT = st.sampled_from((b"", b"%PDF-1.4", b"text", bytes(range(256))))

media = st.builds(
    Media,
    st.sampled_from(MIME_TYPES),
    CONTENT,
    name=st.sampled_from(NAMES),
    metadata=st.sampled_from(({}, *MEDIA_METADATA)),
)
linked_media = st.builds(
    Media,
    st.sampled_from(MIME_TYPES),
    st.sampled_from(("https://example.org/a", "data:image/png;base64,aQ==", "s3://bucket/a.png")),
    name=st.sampled_from(NAMES),
)
stored_media = st.builds(Media, st.sampled_from(MIME_TYPES), st.just(""), st.just("file-1"))
any_media = media | linked_media | stored_media

# What each provider adds to messages; other providers must not get it.
OWN_PARTS: Mapping[str, tuple[Any, ...]] = {
    "anthropic": (
        Reasoning("why", "sig", "anthropic"),
        Reasoning(
            provider="anthropic", data={"type": "redacted_thinking", "data": "EncryptedData"}
        ),
        ProviderPart("anthropic", {"type": "compaction", "content": "So far."}),
        ProviderPart(
            "anthropic",
            {
                "type": "server_tool_use",
                "id": "srvtoolu_1",
                "name": "web_search",
                "input": {"query": "x"},
            },
        ),
    ),
    "openai": (
        Reasoning("why", provider="openai"),
        Reasoning(
            provider="openai",
            data={"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "abc"},
        ),
        ProviderPart("openai", {"refusal": "No."}, "No."),
        ProviderPart("openai", {"annotations": [{"type": "url_citation"}]}),
        ProviderPart(
            "openai",
            {
                "type": "web_search_call",
                "id": "ws_1",
                "status": "completed",
                "action": {"type": "search", "query": "x", "queries": ["x"]},
            },
        ),
    ),
    "gemini": (
        Reasoning("why", "c2ln", "gemini"),
        ProviderPart("gemini", {"text": "signed", "thoughtSignature": "c2ln"}, "signed"),
        ProviderPart("gemini", {"executableCode": {"language": "PYTHON", "code": "1"}}),
    ),
    "bedrock": (
        Reasoning("why", "sig", "bedrock"),
        Reasoning(provider="bedrock", data={"reasoningContent": {"redactedContent": "YQ=="}}),
        ProviderPart("bedrock", {"citationsContent": {"content": [{"text": "It."}]}}, "It."),
    ),
    "ollama": (Reasoning("why", provider="ollama"),),
}
parts = st.sampled_from([part for own in OWN_PARTS.values() for part in own])
CALL_METADATA: tuple[dict[str, Any], ...] = (
    {},
    {"caller": {"type": "direct"}},
    {"thoughtSignature": "c2ln"},
    {"openai": {"id": "fc_1", "status": "completed"}},
    {"extra_content": {"google": {"thought_signature": "c2ln"}}},
)
MESSAGE_METADATA: tuple[dict[str, Any], ...] = (
    {},
    {"name": "Ada Lovelace"},
    {"cache_control": {"type": "ephemeral"}},
    {"theirs": object},
)
message_metadata = st.sampled_from(MESSAGE_METADATA)
calls = st.lists(
    st.builds(
        ToolCall,
        st.sampled_from(("c1", "c2", "toolu_1", "call|x" * 20, "gemini-call-1", "c.1")),
        st.sampled_from(("look", "search", "functions.look", "gone", "x" * 70)),
        st.sampled_from(("{}", "", '{"n": 1.50}', '{"n": [1]}', "{broken", '["list"]')),
        st.sampled_from(CALL_METADATA),
    ),
    max_size=3,
    unique_by=lambda call: call.id,
)
RESULTS = ("seen", "", " ", '{"output": 1, "x": 2}', '{"$ref": "#/a"}', "[1]", '{"error": 1}')


@st.composite
def rounds(draw: st.DrawFn) -> list[Message]:
    """Return an answer, and the results of the tools that it calls."""
    content: list[Any] = draw(st.lists(TEXTS | parts | media, max_size=3))
    called: list[ToolCall] = draw(calls)
    answer = AssistantMessage([*content, *called], metadata=draw(message_metadata))
    if not called:
        return [answer]
    responses = [
        ToolResponse(
            call.id,
            call.name,
            draw(st.sampled_from(RESULTS)),
            is_error=draw(st.booleans()),
            media=tuple(draw(st.lists(any_media, max_size=2))),
        )
        for call in called
    ]
    return [answer, ToolResponseMessage(responses, metadata=draw(message_metadata))]


def users(attached: st.SearchStrategy[Media]) -> st.SearchStrategy[Message]:
    """Return a strategy for user messages with *attached* media."""
    return st.builds(UserMessage, st.lists(TEXTS | attached, max_size=3), metadata=message_metadata)


systems = st.lists(st.builds(SystemMessage, TEXTS, metadata=message_metadata), max_size=2)


@st.composite
def conversations(draw: st.DrawFn) -> tuple[Message, ...]:
    """Return messages that end with one of the user, or with results of tools."""
    attached = any_media if draw(st.booleans()) else st.nothing()
    messages: list[Message] = [*draw(systems), UserMessage("Hi")]
    for _ in range(draw(st.integers(0, 2))):
        messages += [*draw(rounds()), draw(users(attached))]
    last = draw(rounds())
    if draw(st.booleans()) and isinstance(last[-1], ToolResponseMessage):
        messages += last
    elif draw(st.booleans()):
        messages.append(draw(users(attached)))
    else:
        messages.append(UserMessage("And?"))
    return tuple(messages)


def look(n: float, where: str | None = None) -> str:
    """Look at something."""
    return ""


def search(words: list[str], options: dict[str, int]) -> str:
    """Search."""
    return ""


def plain() -> None: ...


SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "string", "minLength": 1}},
    "required": ["a"],
    "additionalProperties": False,
}
options = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.sampled_from((0.0, 0.5, 1.0)),
        "top_p": st.sampled_from((0.5, 1.0)),
        "top_k": st.just(4),
        "max_tokens": st.sampled_from((99, 5000)),
        "stop": st.just(("END",)),
        "seed": st.just(7),
        "presence_penalty": st.just(0.5),
        "frequency_penalty": st.just(0.5),
        "tool_choice": st.sampled_from(("auto", "none", "required", "look")),
        "parallel_tool_calls": st.booleans(),
        "reasoning": st.sampled_from(("none", "low", "max", 2000)),
        "cache": st.sampled_from(("tools", "system", "conversation")),
        "service_tier": st.sampled_from(("default", "priority")),
        "user_id": st.just("u1"),
        "output_schema": st.just(SCHEMA),
        "tool_callbacks": st.just(tool_callbacks(look))
        | st.just(tool_callbacks(look, search, plain)),
    },
)
"""Common options, as the defaults of a client: what a model does not take is dropped."""
