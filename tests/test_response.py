"""Responses: what was answered, why it ended, and what it cost."""

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatclient.errors import InvalidResponseError
from chatclient.messages import AssistantMessage, Reasoning, ToolCall
from chatclient.response import (
    NO_USAGE,
    ChatResponse,
    ChatResponseMetadata,
    Generation,
    RateLimit,
    Usage,
)

CALLING = AssistantMessage(None, [ToolCall("1", "weather", "{}")])

COUNTS = st.integers(0, 9)
USAGES = st.builds(Usage, COUNTS, COUNTS, *(st.none() | COUNTS for _ in range(3)))


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
def test_usages_add_up(one: Usage, other: Usage, both: Usage) -> None:
    """Every figure is summed; one that nobody reported stays unknown; native ones are dropped."""
    assert one + other == both
    assert other + one == both


@given(USAGES, USAGES)
def test_totals_add_up(one: Usage, other: Usage) -> None:
    """The total of a sum is the sum of the totals."""
    assert (one + other).total_tokens == one.total_tokens + other.total_tokens


@given(st.lists(USAGES.filter(bool), max_size=4))
def test_usages_can_be_summed(usages: list[Usage]) -> None:
    """The order in which rounds are added up does not matter."""
    assert sum(usages, NO_USAGE) == sum(reversed(usages), NO_USAGE)


@pytest.mark.parametrize("empty", [NO_USAGE, Usage(), Usage(0, 0, 5, native={"a": 1})])
def test_an_empty_usage_changes_nothing(empty: Usage) -> None:
    """Where only one side cost anything, it is the sum, with the provider's own figures."""
    usage = Usage(1, 2, native={"prompt_tokens": 1})

    assert not empty
    assert usage + empty is usage
    assert empty + usage is usage


def test_usage_knows_its_total() -> None:
    """Input and output together; cached and reasoning tokens are among them already."""
    usage = Usage(10, 5, 8, 1, 3)

    assert usage.total_tokens == 15
    assert usage


def test_native_figures_are_not_printed() -> None:
    """A usage reads as its own figures."""
    assert "prompt_tokens" not in repr(Usage(1, 2, native={"prompt_tokens": 1}))


def test_a_text_is_a_response() -> None:
    """The short way to a response says everything a model's would."""
    response = ChatResponse.of("Hi")

    assert response == ChatResponse((Generation(AssistantMessage("Hi"), "stop"),))
    assert response.text == "Hi"
    assert response.finish_reason == "stop"
    assert ChatResponse.of("Hi", None).finish_reason is None


def test_the_first_generation_speaks_for_the_response() -> None:
    """Whoever asked for one answer need not know that there may be several."""
    first = Generation(AssistantMessage("one"), "stop")
    second = Generation(AssistantMessage("two"), "length", index=1)
    response = ChatResponse((first, second), ChatResponseMetadata(usage=Usage(1, 2)))

    assert response.result is first
    assert response.output is first.output
    assert response.text == "one"
    assert response.finish_reason == "stop"
    assert response.usage == Usage(1, 2)


def test_a_response_may_be_empty() -> None:
    """Nothing answered is nothing to stumble over."""
    response = ChatResponse()

    assert response.result is None
    assert response.output is None
    assert response.text == ""
    assert response.finish_reason is None
    assert response.usage == NO_USAGE
    assert not response.has_tool_calls()
    assert not response.has_finish_reasons({"stop"})


@pytest.mark.parametrize(
    ("outputs", "expected"),
    [
        ([AssistantMessage("Hi")], False),
        ([CALLING], True),
        ([AssistantMessage("Hi"), CALLING], True),
    ],
)
def test_any_generation_may_ask_for_tools(
    outputs: list[AssistantMessage], *, expected: bool
) -> None:
    """Tool calls are noticed wherever they are."""
    response = ChatResponse(tuple(Generation(output) for output in outputs))

    assert response.has_tool_calls() is expected


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
def test_finish_reasons_are_known_by_both_names(reasons: Any, *, expected: bool) -> None:
    """Ours or the provider's, in any case of letters, of any generation."""
    silent, ended = (
        Generation(AssistantMessage()),
        Generation(AssistantMessage(), "stop", "END_TURN"),
    )

    assert ChatResponse((silent, ended)).has_finish_reasons(reasons) is expected


def test_only_the_usage_of_a_response_is_replaced() -> None:
    """The tool loop sets the sum of all rounds; all else stays the last round's."""
    metadata = ChatResponseMetadata("id", "model", Usage(1, 1), RateLimit(5), "request", {"a": 1})
    response = ChatResponse((Generation(CALLING),), metadata)

    changed = response.with_usage(Usage(2, 2))

    assert changed.usage == Usage(2, 2)
    assert changed.with_usage(Usage(1, 1)) == response


def test_the_same_usage_costs_no_copy() -> None:
    """Where nothing changes, the response is the same object."""
    response = ChatResponse((), ChatResponseMetadata(usage=Usage(1, 1)))

    assert response.with_usage(Usage(1, 1)) is response


def test_responses_pickle() -> None:
    """A response that went to another process is the same response."""
    metadata = ChatResponseMetadata("id", "model", Usage(1, 1), RateLimit(5), "request", {"a": 1})
    response = ChatResponse((Generation(CALLING, "tool_call", "tool_use", 0, {"a": 1}),), metadata)

    assert pickle.loads(pickle.dumps(response)) == response


def test_other_words_leave_all_else_as_it_is() -> None:
    """Tool calls, thoughts, costs and reasons stay, and so does a message that says nothing."""
    metadata = ChatResponseMetadata("id", usage=Usage(1, 1))
    thought = Reasoning("hm", "proof", "p")
    said = AssistantMessage([thought, "yes", CALLING.tool_calls[0]], metadata={"a": 1})
    silent = Generation(CALLING, "tool_call", index=1)
    response = ChatResponse((Generation(said, "tool_call"), silent), metadata)

    loud = response.with_text(str.upper)

    call = CALLING.tool_calls[0]
    assert loud.message == AssistantMessage([thought, "YES", call], metadata={"a": 1})
    assert loud.generations[1] is silent
    assert (loud.finish_reason, loud.metadata) == ("tool_call", metadata)
    assert response.with_text("no").text == "no"


def test_an_empty_response_can_be_given_words() -> None:
    """Then it is an answer like any other."""
    assert ChatResponse().with_text("x") == ChatResponse.of("x")
    assert ChatResponse().with_text(str.upper) == ChatResponse()


def test_a_message_that_has_to_be_there_is_missed_aloud() -> None:
    """`message` is never None: an advisor that needs one need not ask."""
    assert ChatResponse.of("x").message.text == "x"
    with pytest.raises(InvalidResponseError, match="no message"):
        _ = ChatResponse().message


def test_generations_may_come_in_a_list() -> None:
    """A response holds a tuple of them, which nobody can change afterwards."""
    given = [Generation(AssistantMessage("Hi."))]
    made: Any = given
    response = ChatResponse(made)
    given.clear()

    assert response == ChatResponse((Generation(AssistantMessage("Hi.")),))
