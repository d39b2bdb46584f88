"""Responses: generations, finish reasons and usage."""

import pickle
from typing import Any

import pytest
from hypothesis import given, strategies as st

from chatclient.chat.messages import AssistantMessage, Reasoning, ToolCall
from chatclient.chat.response import (
    NO_USAGE,
    ChatResponse,
    ChatResponseMetadata,
    Generation,
    RateLimit,
    Usage,
)
from chatclient.errors import InvalidResponseError

CALLING = AssistantMessage(None, [ToolCall("1", "weather", "{}")])

COUNTS = st.integers(0, 9)
USAGES = st.builds(Usage, COUNTS, COUNTS, *(st.none() | COUNTS for _ in range(3)))


@pytest.mark.feature(
    "usage-cache-tokens-summed-unknown", "usage-native-usage-dropped-when", "response-default-usage"
)
@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        (Usage(10, 20), Usage(1, 2), Usage(11, 22)),
        (Usage(1, 1, 100, 5), Usage(1, 1, 200, 0), Usage(2, 2, 300, 5)),
        (Usage(1, 1, 100), Usage(1, 1), Usage(2, 2, 100)),
        (Usage(1, 1), Usage(1, 1, None, 7), Usage(2, 2, None, 7)),
        (Usage(1, 1, reasoning_tokens=3), Usage(1, 1), Usage(2, 2, reasoning_tokens=3)),
        (Usage(1, 1, 0), Usage(1, 1), Usage(2, 2, 0)),
        (Usage(1, 0, native={"a": 1}), Usage(0, 1, native={"a": 1}), Usage(1, 1)),
    ],
)
def test_usage_addition(one: Usage, other: Usage, both: Usage) -> None:
    """Values are summed; unknown ones stay unknown; native usage is dropped."""
    assert one + other == both
    assert other + one == both


@given(USAGES, USAGES)
def test_total_of_a_sum(one: Usage, other: Usage) -> None:
    """The total of a sum is the sum of the totals."""
    assert (one + other).total_tokens == one.total_tokens + other.total_tokens


@given(st.lists(USAGES.filter(bool), max_size=4))
def test_usage_addition_is_commutative(usages: list[Usage]) -> None:
    """The order of addition does not matter."""
    assert sum(usages, NO_USAGE) == sum(reversed(usages), NO_USAGE)


@pytest.mark.feature("usage-native-usage-dropped-when", "usage-empty-usage-changes-nothing")
@pytest.mark.parametrize("empty", [NO_USAGE, Usage(), Usage(0, 0, 5, native={"a": 1})])
def test_empty_usage_is_neutral(empty: Usage) -> None:
    """Adding an empty usage keeps the other, with native usage."""
    usage = Usage(1, 2, native={"prompt_tokens": 1})

    assert not empty
    assert usage + empty is usage
    assert empty + usage is usage


@pytest.mark.feature("response-default-usage")
def test_usage_total() -> None:
    """The total is input plus output, which include cached and reasoning tokens."""
    usage = Usage(10, 5, 8, 1, 3)

    assert usage.total_tokens == 15
    assert usage


def test_repr_has_no_native_usage() -> None:
    """The repr omits native usage."""
    assert "prompt_tokens" not in repr(Usage(1, 2, native={"prompt_tokens": 1}))


def test_response_from_text() -> None:
    """A response made from text has the fields of a model's response."""
    response = ChatResponse.of("Hi")

    assert response == ChatResponse((Generation(AssistantMessage("Hi"), "stop"),))
    assert response.text == "Hi"
    assert response.finish_reason == "stop"
    assert ChatResponse.of("Hi", None).finish_reason is None


@pytest.mark.feature("response-chat-response-get-result")
def test_first_generation() -> None:
    """Attributes of the response are those of the first generation."""
    first = Generation(AssistantMessage("one"), "stop")
    second = Generation(AssistantMessage("two"), "length", index=1)
    response = ChatResponse((first, second), ChatResponseMetadata(usage=Usage(1, 2)))

    assert response.result is first
    assert response.output is first.output
    assert response.text == "one"
    assert response.finish_reason == "stop"
    assert response.usage == Usage(1, 2)


@pytest.mark.feature("response-chat-response-get-result")
def test_empty_response() -> None:
    """A response without generations has empty attributes."""
    response = ChatResponse()

    assert response.result is None
    assert response.output is None
    assert response.text == ""
    assert response.finish_reason is None
    assert response.usage == NO_USAGE
    assert not response.has_tool_calls()
    assert not response.has_finish_reasons({"stop"})


@pytest.mark.feature("response-tool-calls", "lc4j-tool-execution-requests-criterion")
@pytest.mark.parametrize(
    ("outputs", "expected"),
    [
        ([AssistantMessage("Hi")], False),
        ([CALLING], True),
        ([AssistantMessage("Hi"), CALLING], True),
    ],
)
def test_has_tool_calls(outputs: list[AssistantMessage], *, expected: bool) -> None:
    """Tool calls of any generation are found."""
    response = ChatResponse(tuple(Generation(output) for output in outputs))

    assert response.has_tool_calls() is expected


@pytest.mark.feature("response-finish-reasons", "response-chat-generation-metadata-finish")
@pytest.mark.parametrize(
    ("reasons", "expected"),
    [
        ({"stop"}, True),
        ({"STOP"}, True),
        ("stop", True),
        ("sto", False),
        (["length", "end_turn"], True),
        ({"End_Turn"}, True),
        ({"length"}, False),
        ((), False),
    ],
)
def test_has_finish_reason(reasons: Any, *, expected: bool) -> None:
    """Normalised and native reasons match in any case, of any generation."""
    silent, ended = (
        Generation(AssistantMessage()),
        Generation(AssistantMessage(), "stop", "END_TURN"),
    )

    assert ChatResponse((silent, ended)).has_finish_reasons(reasons) is expected


@pytest.mark.feature("usage-everything-else-last-round")
def test_with_usage() -> None:
    """Only the usage is replaced."""
    metadata = ChatResponseMetadata("id", "model", Usage(1, 1), RateLimit(5), "request", {"a": 1})
    response = ChatResponse((Generation(CALLING),), metadata)

    changed = response.with_usage(Usage(2, 2))

    assert changed.usage == Usage(2, 2)
    assert changed.with_usage(Usage(1, 1)) == response


@pytest.mark.feature("usage-response-untouched-when-usage")
def test_with_equal_usage() -> None:
    """An equal usage returns the same object."""
    response = ChatResponse((), ChatResponseMetadata(usage=Usage(1, 1)))

    assert response.with_usage(Usage(1, 1)) is response


def test_responses_pickle() -> None:
    """A pickled response is equal."""
    metadata = ChatResponseMetadata("id", "model", Usage(1, 1), RateLimit(5), "request", {"a": 1})
    response = ChatResponse((Generation(CALLING, "tool_call", "tool_use", 0, {"a": 1}),), metadata)

    assert pickle.loads(pickle.dumps(response)) == response


@pytest.mark.feature("response-text")
def test_with_text() -> None:
    """Tool calls, reasoning, usage and reasons are kept, and empty messages too."""
    metadata = ChatResponseMetadata("id", usage=Usage(1, 1))
    thought = Reasoning("hm", "proof", "p")
    message = AssistantMessage([thought, "yes", CALLING.tool_calls[0]], metadata={"a": 1})
    silent = Generation(CALLING, "tool_call", index=1)
    response = ChatResponse((Generation(message, "tool_call"), silent), metadata)

    loud = response.with_text(str.upper)

    call = CALLING.tool_calls[0]
    assert loud.message == AssistantMessage([thought, "YES", call], metadata={"a": 1})
    assert loud.generations[1] is silent
    assert (loud.finish_reason, loud.metadata) == ("tool_call", metadata)
    assert response.with_text("no").text == "no"


def test_with_text_of_an_empty_response() -> None:
    """A text makes an empty response a complete one."""
    assert ChatResponse().with_text("x") == ChatResponse.of("x")
    assert ChatResponse().with_text(str.upper) == ChatResponse()


@pytest.mark.feature("response-message")
def test_missing_message_raises() -> None:
    """`message` raises instead of returning None."""
    assert ChatResponse.of("x").message.text == "x"
    with pytest.raises(InvalidResponseError, match="no message"):
        _ = ChatResponse().message


def test_generations_become_a_tuple() -> None:
    """A list of generations is converted to a tuple."""
    given = [Generation(AssistantMessage("Hi."))]
    made: Any = given
    response = ChatResponse(made)
    given.clear()

    assert response == ChatResponse((Generation(AssistantMessage("Hi.")),))
