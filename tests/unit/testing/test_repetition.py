"""Repeated runs, and how sure their rates are."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest

from chatclient import ChatClient
from chatclient.errors import DeadlineExceededError, OverloadedError, UsageError, WrongTypeError
from chatclient.testing import (
    CriterionEvaluator,
    EvaluationRequest,
    PassRate,
    RunsReport,
    ScriptedModel,
    SpendingLimit,
    ToolCallCount,
    aevaluate_runs,
    evaluate_runs,
)

Repeat: TypeAlias = Callable[..., RunsReport]
NEVER = {"never": ToolCallCount("pay", 0)}


@pytest.fixture(params=["blocking", "async"])
def repeat(request: pytest.FixtureRequest) -> Repeat:
    """Repeat requests of a client, blocking and async."""

    def run(client: ChatClient, evaluators: Any, **options: Any) -> RunsReport:
        if request.param == "blocking":
            return evaluate_runs(lambda: client.prompt("Hi!").call(), evaluators, **options)
        make = aevaluate_runs(
            lambda: client.prompt("Hi!").acall(), evaluators, max_concurrency=1, **options
        )
        return asyncio.run(make)

    return run


# From the score interval's formula, checked with the table of Newcombe (1998), method 3.
@pytest.mark.parametrize(
    ("passed", "total", "confidence", "low", "high"),
    [
        (81, 263, 0.95, 0.2553, 0.3662),
        (15, 148, 0.95, 0.0624, 0.1605),
        (0, 20, 0.95, 0.0, 0.1611),
        (1, 29, 0.95, 0.0061, 0.1718),
        (20, 20, 0.95, 0.8389, 1.0),
        (20, 20, 0.99, 0.7509, 1.0),
        (0, 0, 0.95, 0.0, 1.0),
    ],
)
def test_interval(passed: int, total: int, confidence: float, low: float, high: float) -> None:
    """The interval is Wilson's."""
    rate = PassRate(passed, total, confidence)

    assert rate.low == pytest.approx(low, abs=1e-4)
    assert rate.high == pytest.approx(high, abs=1e-4)
    assert rate.low <= rate.rate <= rate.high


def test_rates(repeat: Repeat) -> None:
    """Each evaluator has its own rate."""
    judge = ScriptedModel("Yes.", "No. Too short.", "Yes.", "Yes.")
    client = ChatClient.create(ScriptedModel(*["Hello."] * 4))
    polite = CriterionEvaluator(judge, "It is polite.")

    report = repeat(client, {**NEVER, "polite": polite}, runs=4)

    assert report.rates == {"never": PassRate(4, 4), "polite": PassRate(3, 4)}
    assert str(report).splitlines() == [
        "never: 4 of 4 passed: 100% (95% confidence: 51% to 100%)",
        "polite: 3 of 4 passed: 75% (95% confidence: 30% to 95%)",
        "run 2: polite: Too short.",
    ]
    assert report.failures == (report.results[1],)


def test_failed_runs(repeat: Repeat) -> None:
    """A run that failed has not passed, and has the trail of its request."""
    client = ChatClient.create(ScriptedModel(OverloadedError("busy"), "Hello."))

    report = repeat(client, NEVER, runs=2)

    assert report.rates == {"never": PassRate(1, 2)}
    assert report.results[0].errors == {"run": "OverloadedError: busy"}
    assert report.results[0].request is not None
    assert report.results[0].request.trails[0].steps


def test_failure_without_trail() -> None:
    """An error that comes from elsewhere has no trail."""

    def fail() -> None:
        msg = "busy"
        raise OverloadedError(msg)

    assert evaluate_runs(fail, NEVER, runs=1).results[0].request is None


def test_failed_judge(repeat: Repeat) -> None:
    """A run whose judge failed does not count, and is a failure."""
    judge = ScriptedModel("Perhaps.", "Yes.")
    client = ChatClient.create(ScriptedModel(*["Hello."] * 2))

    report = repeat(client, {"polite": CriterionEvaluator(judge, "It is polite.")}, runs=2)

    assert report.rates == {"polite": PassRate(1, 1)}
    assert len(report.failures) == 1
    assert "run 1: polite: InvalidResponseError" in str(report)


def test_many_failures() -> None:
    """The text has the first ten failures."""
    client = ChatClient.create(ScriptedModel(lambda _: "Hello."))
    too_much = {"spent": SpendingLimit(model_calls=0)}

    lines = str(evaluate_runs(lambda: client.prompt("Hi!").call(), too_much, runs=12)).splitlines()

    assert lines[0] == "spent: 0 of 12 passed: 0% (95% confidence: 0% to 24%)"
    assert lines[-2].startswith("run 10: spent: model_calls")
    assert lines[-1] == "... and 2 more in `failures`"


def test_concurrency() -> None:
    """Runs on an event loop are concurrent."""
    model = ScriptedModel(lambda _: "Hello.", delay=0.1)
    started = asyncio.run(_seconds(model))

    assert started < 1.5  # one after another, it would be 2 seconds at least


async def _seconds(model: ScriptedModel) -> float:
    loop = asyncio.get_running_loop()
    started = loop.time()
    client = ChatClient.create(model)
    await aevaluate_runs(lambda: client.prompt("Hi!").acall(), NEVER, max_concurrency=20)
    return loop.time() - started


def raising(error: Exception) -> Callable[[], None]:
    def run() -> None:
        raise error

    return run


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        (("text", NEVER), {}, WrongTypeError, "run must be a function"),
        ((lambda: "text", NEVER), {}, WrongTypeError, "the trail of what is judged"),
        ((lambda: "text", {}), {}, UsageError, "need evaluators"),
        ((lambda: "text", {"run": ToolCallCount("a", 0)}), {}, UsageError, "need evaluators"),
        ((lambda: "text", [ToolCallCount("a", 0)]), {}, WrongTypeError, "evaluators"),
        ((lambda: "text", {"a": "b"}), {}, WrongTypeError, "an evaluator"),
        ((lambda: "text", NEVER), {"runs": 0}, UsageError, "runs"),
        ((lambda: "text", NEVER), {"confidence": 95}, UsageError, "confidence must be between"),
        ((raising(DeadlineExceededError("spent")), NEVER), {}, DeadlineExceededError, "spent"),
        ((lambda: EvaluationRequest("", ""), NEVER), {}, UsageError, "needs a trail"),
    ],
)
def test_misuse(arguments: Any, options: Any, error: type[Exception], message: str) -> None:
    """Wrong usage and errors that end the evaluation are raised."""
    with pytest.raises(error, match=message):
        evaluate_runs(*arguments, **options)
