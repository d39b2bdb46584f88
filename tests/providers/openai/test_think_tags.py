"""Reasoning in tags at the beginning of the text, complete and in pieces of any size."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from chatclient import ChatClient
from chatclient.chat.aggregator import MessageAggregator
from chatclient.chat.messages import AssistantMessage, Reasoning
from chatclient.chat.response import ChatResponse
from chatclient.providers.compatible import compatible_model
from chatclient.providers.openai.chat import OpenAIChatModel
from chatclient.providers.openai.chat_decoding import decode_response
from chatclient.providers.openai.chat_encoding import encode_message
from chatclient.providers.openai.chat_stream import StreamDecoder
from chatclient.providers.openai.dialect import COMPATIBLE, PRESETS
from chatclient.providers.openai.reasoning import tagged_text
from chatclient.testing import Ask
from tests.support.servers import ChatServer, completion

DIALECT = replace(COMPATIBLE, think_tags=True)
CALL = {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}

TEXTS = [
    ("<think>Hm.</think>Yes.", "Hm.", "Yes."),
    ("\n<think>\nHm.\n</think>\n\nYes.", "\nHm.\n", "Yes."),
    ("<mm:think>A </think> B</mm:think> Yes", "A </think> B", "Yes"),
    ("<think></think>Yes.", "", "Yes."),
    ("<think>Hm", "Hm", ""),
    ("<think>Hm</thi", "Hm", ""),
    ("<think>Hm</think>\n", "Hm", ""),
    ("The tag <think>x</think>.", "", "The tag <think>x</think>."),
    (" <thin", "", " <thin"),
    ("<b>Yes</b>", "", "<b>Yes</b>"),
]


def complete(message: dict[str, Any]) -> AssistantMessage:
    data = {"id": "r", "model": "m", "choices": [{"message": message, "finish_reason": "stop"}]}
    output = decode_response(data, DIALECT).output
    assert output is not None
    return output


def streamed(*deltas: dict[str, Any]) -> AssistantMessage:
    decoder, aggregator = StreamDecoder(DIALECT), MessageAggregator()
    for at, delta in enumerate([*deltas, {}]):
        reason = "stop" if at == len(deltas) else None
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        event = json.dumps({"id": "r", "model": "m", "choices": [choice]}).encode()
        if (chunk := decoder.feed(event)) is not None:
            aggregator.add(chunk)
    for last in decoder.finish(b""):
        aggregator.add(last)
    response: ChatResponse = aggregator.response()
    assert response.output is not None
    return response.output


@pytest.mark.parametrize(("text", "thought", "answer"), TEXTS)
def test_reasoning_and_answer(text: str, thought: str, answer: str) -> None:
    """Reasoning becomes `Reasoning`; the text is sent back exactly as it was received."""
    output = complete({"content": text})

    assert ("".join(part.text for part in output.reasoning), output.text) == (thought, answer)
    assert encode_message(output, DIALECT)[0]["content"] == text


@given(st.sampled_from(TEXTS), st.sets(st.integers(1, 30)), st.booleans())
def test_pieces_equal_the_whole(case: tuple[str, str, str], cuts: set[int], calls: bool) -> None:
    """Tags are found wherever the stream splits them."""
    text = case[0]
    ends = sorted(cut for cut in cuts if cut < len(text))
    pieces = [text[a:b] for a, b in zip([0, *ends], [*ends, len(text)], strict=True)]
    more = [{"tool_calls": [CALL]}] if calls else []
    whole = complete({"content": text, **(more[0] if more else {})})
    joined = streamed({"role": "assistant"}, *({"content": piece} for piece in pieces), *more)

    assert joined.parts == whole.parts


def test_separate_reasoning_is_left_alone() -> None:
    """Servers that separate reasoning need no tags."""
    output = complete({"reasoning_content": "Hm.", "content": "Yes."})

    assert output.parts == (Reasoning("Hm.", provider=DIALECT.provider), "Yes.")


def test_other_reasoning_is_not_tagged() -> None:
    """That of other providers, and reasoning with data of another form, is no text."""
    parts = [
        Reasoning("A", provider="other"),
        Reasoning("B", provider=DIALECT.provider, data={"type": "reasoning"}),
        "Yes.",
    ]

    assert tagged_text(parts, DIALECT.provider) == ""


def test_option_and_presets(ask: Ask, chat_server: Any) -> None:
    """The option applies in all modes; a preset that needs it has it, and others do not."""
    server: ChatServer = chat_server(completion("<think>Hm.</think>Yes."))
    model = OpenAIChatModel("m", api_key="k", base_url=server.url, think_tags=True)

    assert ask(ChatClient.create(model).prompt("Hi")).text == "Yes."
    assert [n for n, preset in PRESETS.items() if preset.dialect.think_tags] == ["minimax"]
    quiet = compatible_model("minimax", "m", api_key="k", base_url=server.url, think_tags=False)
    assert quiet.call("Hi").text == "<think>Hm.</think>Yes."
