"""Checks of the way to an answer: tool calls, and what was spent."""

from decimal import Decimal
from typing import Any, cast

import pytest

from chatclient import ChatClient, Usage, tool
from chatclient.chat import Cost
from chatclient.chat.messages import AssistantMessage
from chatclient.chat.response import ChatResponse, ChatResponseMetadata, Generation
from chatclient.errors import OverloadedError, UsageError, WrongTypeError
from chatclient.observability import Trail
from chatclient.testing import (
    Ask,
    CriterionEvaluator,
    EvaluationRequest,
    Evaluator,
    ExpectedToolCalls,
    FactCheckingEvaluator,
    ScriptedModel,
    SpendingLimit,
    ToolCallCount,
    ToolCallPattern,
    assert_passes,
    call,
)
from chatclient.tools import ToolApproval, ToolCallingManager


@tool(effect="read")
def search(query: str) -> str:
    """Search for tables."""
    return f"two tables for {query}"


@tool
def book(city: str, seats: int = 2) -> str:
    """Book a table."""
    if not seats:
        msg = "no seats"
        raise ValueError(msg)
    return f"booked {seats} in {city}"


ROME, OSTIA = call("search", {"query": "Rome"}), call("search", {"query": "Ostia"})
SCRIPT = (
    ROME,
    [OSTIA, call("book", {"city": "Rome", "seats": 4})],
    "Booked.",
)


def booking(*script: Any) -> ChatClient:
    return (
        ChatClient.builder(ScriptedModel(*(script or SCRIPT))).default_tools(search, book).build()
    )


def problem_of(trail: Trail, evaluator: Evaluator) -> str:
    verdict = evaluator.evaluate(EvaluationRequest.of_trail(trail))
    assert verdict.score == verdict.passed
    assert verdict.passed == (not verdict.feedback)
    return verdict.feedback.partition(";")[0]


@pytest.fixture(scope="module")
def trail() -> Trail:
    """The trail of a turn that calls `search`, `search` and `book`."""
    return booking().prompt("A table in Rome, please.").call().trail()


def test_all_modes(ask: Ask) -> None:
    """The calls of a turn are checked the same in all modes."""
    asked = ask(booking().prompt("A table in Rome, please."))

    assert_passes(
        asked.response,
        ExpectedToolCalls("search", "search", "book", order="exact"),
        SpendingLimit(model_calls=3, tool_calls=3, tokens=45, seconds=60),
        CriterionEvaluator(ScriptedModel("Yes."), "It searches before it books."),
    )


@pytest.mark.parametrize(
    ("order", "expected", "problem"),
    [
        ("exact", ["search", "search", "book"], ""),
        ("exact", ["search", "book", "book"], "call 2 is not book(...)"),
        ("exact", ["search", "search"], "call 3 was not expected"),
        ("exact", [], "call 1 was not expected"),
        ("exact", ["search", "search", "book", "pay"], "call 4 is missing: pay(...)"),
        ("in_order", ["search", "book"], ""),
        ("in_order", ["book"], ""),
        ("in_order", ["pay"], "no call is pay(...)"),
        ("in_order", ["book", "search"], "no call is search(...) after call 3"),
        ("in_order", [OSTIA, "book"], ""),
        ("in_order", [OSTIA, "search"], "no call is search(...) after call 2"),
        ("any_order", ["book", "search"], ""),
        ("any_order", ["book", "book"], "no call of its own is book(...)"),
        # The first pattern has to leave the call with which it was matched first to the second.
        ("any_order", ["search", ROME], ""),
        ("any_order", [ROME, ROME], "no call of its own is search(query='Rome')"),
    ],
)
def test_order(trail: Trail, order: Any, expected: list[Any], problem: str) -> None:
    """Calls are compared exactly, in order, or in any order."""
    assert problem_of(trail, ExpectedToolCalls(*expected, order=order)) == problem


def is_even(number: int) -> bool:
    return number % 2 == 0


@pytest.mark.parametrize(
    ("arguments", "text", "matches"),
    [
        (None, "...", True),
        ({"city": "Rome", "seats": 4}, "city='Rome', seats=4", True),
        ({"city": "Rome"}, "city='Rome'", False),
        ({"city": "Rome", "seats": 5}, "city='Rome', seats=5", False),
        ({"city": "Rome", "seats": is_even}, "city='Rome', seats=is_even", True),
        ({"city": str.islower, "seats": is_even}, "city=islower, seats=is_even", False),
        (lambda given: given["seats"] > 3, "<lambda>", True),
        (lambda given: "date" in given, "<lambda>", False),
    ],
)
def test_arguments(trail: Trail, arguments: Any, text: str, matches: bool) -> None:
    """Arguments are compared with values or by predicates."""
    pattern = ToolCallPattern("book", arguments)

    assert str(pattern) == f"book({text})"
    assert (problem_of(trail, ExpectedToolCalls(pattern)) == "") is matches


@pytest.mark.parametrize("arguments", ["[1]", "{", "null"])
def test_arguments_that_are_no_object(arguments: str) -> None:
    """Arguments that cannot be read are unlike all expected ones, and the tool was called."""
    trail = booking(call("book", arguments), "Sorry.").prompt("Book!").call().trail()

    assert problem_of(trail, ExpectedToolCalls("book")) == ""
    assert problem_of(trail, ExpectedToolCalls(ToolCallPattern("book", {}))) != ""


def test_calls_without_arguments() -> None:
    """A call without arguments has an empty mapping of them."""
    trail = booking(call("book", ""), "Sorry.").prompt("Book!").call().trail()

    assert problem_of(trail, ExpectedToolCalls(call("book"), order="exact")) == ""


@pytest.mark.parametrize(
    ("check", "problem"),
    [
        (ToolCallCount("search", 2), ""),
        (ToolCallCount("search", 1), "calls of search(...): 2, not 1"),
        (ToolCallCount("search", 3, 9), "calls of search(...): 2, not 3 to 9"),
        (ToolCallCount("search", 0, 2), ""),
        (ToolCallCount("pay", 0), ""),
        (ToolCallCount(OSTIA, 0), "calls of search(query='Ostia'): 1, not 0"),
    ],
)
def test_count(trail: Trail, check: Evaluator, problem: str) -> None:
    """Calls are counted, and may be forbidden."""
    assert problem_of(trail, check) == problem


@pytest.mark.parametrize(
    ("limit", "problem"),
    [
        ({"model_calls": 3, "tool_calls": 3, "tokens": 45}, ""),
        ({"model_calls": 2}, "model_calls: 3, not 2 at most"),
        ({"tool_calls": 0}, "tool_calls: 3, not 0 at most"),
        ({"tokens": 44}, "tokens: 45, not 44 at most"),
        ({"seconds": 0}, "seconds: "),
        ({"cost": 1}, "the cost is not known"),
    ],
)
def test_spending(trail: Trail, limit: Any, problem: str) -> None:
    """What was spent is limited; a cost that is not known is not below a limit."""
    found = problem_of(trail, SpendingLimit(**limit))

    assert found.startswith(problem)
    assert bool(found) == bool(problem)


def test_cost() -> None:
    """The cost of all rounds counts."""
    usage = Usage(input_tokens=1, output_tokens=1, cost=Cost(Decimal("0.25"), "USD"))
    message = AssistantMessage("Hello.")
    model = ScriptedModel(ChatResponse((Generation(message),), ChatResponseMetadata(usage=usage)))
    trail = ChatClient.create(model).prompt("Hi!").call().trail()

    assert problem_of(trail, SpendingLimit(cost=0.25)) == ""
    assert problem_of(trail, SpendingLimit(cost=0.2)) == "cost: 0.25, not 0.2 at most"


def test_agents() -> None:
    """Calls of an agent are its own, and count in what was spent."""
    agent = booking().as_tool("booker", description="Books tables.")
    model = ScriptedModel(call("booker", {"request": "Rome"}), "Done.")
    trail = ChatClient.builder(model).default_tools(agent).build().prompt("Book!").call().trail()

    assert problem_of(trail, ExpectedToolCalls("booker", order="exact")) == ""
    assert problem_of(trail.inner[0], ExpectedToolCalls("search", "book")) == ""
    assert problem_of(trail, SpendingLimit(model_calls=5, tool_calls=4)) == ""
    assert problem_of(trail, SpendingLimit(model_calls=4)) == "model_calls: 5, not 4 at most"


def test_failure_shows_the_way() -> None:
    """The message has each problem with the calls that were made, and the trail."""
    model = ScriptedModel(
        call("book", {"city": "Rome", "seats": 0}), call("search", {"query": "x"}), "Full."
    )
    client = ChatClient.builder(model).default_tools(search, book).build()
    answer = client.prompt("Book!").call()
    calls = ExpectedToolCalls("search", "book")

    assert repr(calls) == "ExpectedToolCalls(search(...), book(...), order='in_order')"
    with pytest.raises(AssertionError) as caught:
        assert_passes(
            answer,
            calls,
            ToolCallCount("search", 1),
            CriterionEvaluator(ScriptedModel("No. It did not ask."), "It asks first."),
        )

    problems, _, trail = str(caught.value).partition("\nturn (")
    assert problems.splitlines() == [
        f"{calls}: no call is book(...) after call 2; the calls were:",
        '  1. book({"city":"Rome","seats":0}) failed: no seats',
        '  2. search({"query":"x"}) -> two tables for x',
        "CriterionEvaluator('It asks first.'): It did not ask.",
    ]
    assert "round 3: ScriptedModel" in trail


def test_call_that_waits() -> None:
    """A call that waits for approval was made, and has no result."""
    manager = ToolCallingManager(interceptors=[ToolApproval()])
    client = booking(call("book", {"city": "Rome"})).mutate().tool_calling_manager(manager).build()
    answer = client.prompt("Book!").call()

    with pytest.raises(AssertionError, match=r"1\. book.* waits for approval"):
        assert_passes(answer, ToolCallCount("book", 0))


def test_failed_turn() -> None:
    """The trail of a failed turn is checked as well."""
    client = booking(call("search", {"query": "Rome"}), OverloadedError("busy"))
    with pytest.raises(OverloadedError) as caught:
        client.prompt("Book!").call().content()
    trail = caught.value.trail
    assert trail is not None

    assert_passes(trail, ExpectedToolCalls("search", order="exact"))
    assert EvaluationRequest.of_trail(trail).answer == ""


def test_no_calls() -> None:
    """The problem says that no tool was called."""
    trail = booking("Hello.").prompt("Hi!").call().trail()

    verdict = ExpectedToolCalls("book").evaluate(EvaluationRequest.of_trail(trail))
    assert verdict.feedback == "no call is book(...); no call"
    assert_passes(trail, ExpectedToolCalls(order="exact"))


def test_empty_trail() -> None:
    """A trail without steps has neither a question nor an answer."""
    request = EvaluationRequest.of_trail(Trail())

    assert (request.question, request.answer, request.tool_calls) == ("", "", ())


def test_criterion_sees_calls() -> None:
    """The judge sees criterion, question, calls and answer, all escaped."""
    judge = ScriptedModel("Yes.")
    answer = booking(call("book", {"city": "</calls>"}), "<b>Done</b>").prompt("a < b").call()

    assert_passes(answer, CriterionEvaluator(judge, "It says <b>."))

    [prompt] = judge.prompts
    assert "<criterion>It says &lt;b&gt;.</criterion>" in prompt.contents
    assert "<question>a &lt; b</question>" in prompt.contents
    assert 'book({"city":"&lt;/calls&gt;"}) -&gt; booked 2 in &lt;/calls&gt;' in prompt.contents
    assert "<answer>&lt;b&gt;Done&lt;/b&gt;</answer>" in prompt.contents


def test_no_trail() -> None:
    """Checks need a trail, which a request of two texts does not have."""
    request = EvaluationRequest("Hi!", "Hello.")

    assert not ToolCallCount("book", 0).can_judge(request)
    with pytest.raises(UsageError, match="needs a trail"):
        ToolCallCount("book", 0).evaluate(request)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda _: ExpectedToolCalls(), UsageError, "name the expected calls"),
        (lambda _: ExpectedToolCalls("a", order="sorted"), UsageError, "order must be"),  # type: ignore[arg-type]
        (lambda _: ExpectedToolCalls(3), WrongTypeError, "an expected call"),  # type: ignore[arg-type]
        (lambda _: ToolCallCount("a", -1), UsageError, "least"),
        (lambda _: ToolCallCount("a", 2, 1), UsageError, "most"),
        (lambda _: SpendingLimit(), UsageError, "needs a limit"),
        (lambda _: SpendingLimit(tokens=-1), UsageError, "tokens"),
        (lambda _: CriterionEvaluator(ScriptedModel(), " "), UsageError, "must not be blank"),
        (assert_passes, UsageError, "at least one evaluator"),
        (lambda trail: assert_passes(trail, cast("Any", "search")), WrongTypeError, "an evaluator"),
        (lambda _: assert_passes("text", ToolCallCount("a", 0)), WrongTypeError, "the trail"),  # type: ignore[arg-type]
        (
            lambda trail: assert_passes(trail, FactCheckingEvaluator(ScriptedModel())),
            UsageError,
            "needs documents",
        ),
    ],
)
def test_misuse(trail: Trail, make: Any, error: type[Exception], message: str) -> None:
    """Wrong usage is an error that says what is wrong."""
    with pytest.raises(error, match=message):
        make(trail)
