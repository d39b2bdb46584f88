"""Messages, turns and ids that are difficult to store."""

from chatclient.chat.messages import (
    AssistantMessage,
    Media,
    Message,
    ProviderPart,
    Reasoning,
    SystemMessage,
    ToolCall,
    ToolResponse,
    ToolResponseMessage,
    UserMessage,
)

EVERY_KIND: tuple[Message, ...] = (
    SystemMessage("Be brief.", {"source": "policy", "revision": 3}),
    UserMessage(
        ["Look: ", Media("image/png", b"\x89PNG\x00\xff", name="a.png"), "what is it?"],
        metadata={"user": {"id": 7, "tags": ["a", "b"]}, "score": 0.25, "none": None},
    ),
    AssistantMessage(
        [
            Reasoning("I shall look.", "c2lnbmF0dXJl", "anthropic", {"type": "thinking"}),
            "I will look it up.",
            ToolCall("call_1", "look_up", '{"q": "png"', {"thought_signature": "xyz"}),
            ToolCall("call_2", "look_up", "{}"),
        ],
        metadata={"id": "msg_1"},
    ),
    ToolResponseMessage(
        [
            ToolResponse(
                "call_1",
                "look_up",
                '{"a": "cat"}',
                media=(Media("image/jpeg", "https://example.com/cat.jpg", id="file-1"),),
                metadata={"ms": 12},
            ),
            ToolResponse("call_2", "look_up", "no such thing", is_error=True),
        ],
        {"round": 1},
    ),
    AssistantMessage(
        [ProviderPart("openai", {"type": "web_search", "n": [1, 2]}, "A cat"), ".", ""],
    ),
    UserMessage(
        "Ünïcödé 猫 🐈 \U0001f468\u200d\U0001f469, '\"\\ % _ `; --\r\n\t\x00 \x7f \ud800 end"
    ),
    AssistantMessage("x" * 100_000),
)
"""Messages of every kind, with all fields, special characters and a long text."""

AWKWARD_IDS = (
    "a",
    "A",
    "a ",
    " a",
    "á",
    "a%",
    "a_",
    "a*",
    "a:b",
    "a/b/../c",
    "{a}",
    "'; DROP TABLE a; --",
    "猫🐈",
    '"a"',
    "\0",
    "\ud800",
    "long" * 250,
    "long" * 250 + "!",
)
"""Conversation ids that a store may confuse with each other."""


def turn(number: object, rounds: int = 1) -> tuple[Message, ...]:
    """Return a turn with the given number of rounds; all but the last have a tool call."""
    tool_rounds: list[Message] = []
    for at in range(rounds - 1):
        call = ToolCall(f"call_{number}_{at}", "look_up", "{}")
        tool_rounds += [
            AssistantMessage([call]),
            ToolResponseMessage([ToolResponse(call.id, call.name, f"{at}")]),
        ]
    return (UserMessage(f"question {number}"), *tool_rounds, AssistantMessage(f"answer {number}"))
