"""Repeated runs: how often an answer passes, with a confidence interval."""

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from html import escape
from math import sqrt
from statistics import NormalDist
from typing import Any

from chatclient._internal.checks import check_callable, check_number, check_type
from chatclient._internal.frozen import EMPTY
from chatclient._internal.text import on_one_line, printable
from chatclient.errors import ChatClientError, UsageError
from chatclient.retrieval.query import NOT_RETRIEVER_FAILURES, run_step
from chatclient.runtime.blocking import drive
from chatclient.runtime.runtime import BLOCKING, ON_LOOP, Runtime, within_callers_deadline
from chatclient.testing.evaluation import (
    EvaluationRequest,
    EvaluationResponse,
    Evaluator,
    request_of,
)

RunOnce = Callable[[], Any]
"""Returns what is judged, such as the answer of a request; may be asynchronous for
`aevaluate_runs`."""

_SHOWN = 10  # maximum number of failures in a text
_FEEDBACK_LENGTH = 200  # characters


@dataclass(frozen=True, slots=True)
class PassRate:
    """How many of several runs passed.

    Attributes:
        passed: The number of runs that passed.
        total: The number of runs that were judged.
        confidence: The confidence level of the interval from `low` to `high`, such as 0.95.
    """

    passed: int
    total: int
    confidence: float = 0.95

    @property
    def rate(self) -> float:
        """The share of runs that passed; 0 without any."""
        return self.passed / self.total if self.total else 0.0

    @property
    def low(self) -> float:
        """The lower end of the confidence interval; see `high`."""
        return max(0.0, min(self.rate, self._interval[0]))  # rounding

    @property
    def high(self) -> float:
        """The upper end of the confidence interval, Wilson's score interval.

        With few runs, or a rate of 0 or 1, it is more reliable than the normal approximation.
        """
        return min(1.0, max(self.rate, self._interval[1]))

    @property
    def _interval(self) -> tuple[float, float]:
        if not self.total:
            return 0.0, 1.0
        z = NormalDist().inv_cdf((1 + self.confidence) / 2)
        square = z * z / self.total
        middle = (self.rate + square / 2) / (1 + square)
        spread = z * sqrt((self.rate * (1 - self.rate) + square / 4) / self.total) / (1 + square)
        return middle - spread, middle + spread

    def __str__(self) -> str:
        return (
            f"{self.passed} of {self.total} passed: {self.rate:.0%}"
            f" ({self.confidence:.0%} confidence: {self.low:.0%} to {self.high:.0%})"
        )


@dataclass(frozen=True, slots=True)
class RunResult:
    """One run.

    Attributes:
        request: What was judged; of a turn that failed, its trail without an answer.
        verdicts: The verdicts by the name of the evaluator.
        errors: The errors of the run (`"run"`) and of evaluators, by name.
    """

    request: EvaluationRequest | None
    verdicts: Mapping[str, EvaluationResponse] = EMPTY
    errors: Mapping[str, str] = EMPTY

    @property
    def passed(self) -> bool:
        """Whether there is no error, and no verdict is negative."""
        return not self.errors and all(verdict.passed for verdict in self.verdicts.values())

    def __str__(self) -> str:
        failed = {n: verdict.feedback for n, verdict in self.verdicts.items() if not verdict.passed}
        problems = {**self.errors, **failed}
        return "; ".join(f"{n}: {on_one_line(t, _FEEDBACK_LENGTH)}" for n, t in problems.items())


@dataclass(frozen=True, slots=True)
class RunsReport:
    """The results of repeated runs; `print` shows the rates and the runs that did not pass.

    Attributes:
        results: The result of each run.
        confidence: The confidence level of the intervals.
    """

    results: tuple[RunResult, ...]
    confidence: float = 0.95
    _names: tuple[str, ...] = field(default=(), repr=False)

    @property
    def rates(self) -> Mapping[str, PassRate]:
        """The rates by the name of the evaluator.

        A run that failed has not passed. One whose judge failed does not count.
        """
        return {name: self._rate(name) for name in self._names}

    def _rate(self, name: str) -> PassRate:
        counted = [each for each in self.results if name in each.verdicts or "run" in each.errors]
        passed = sum(name in each.verdicts and each.verdicts[name].passed for each in counted)
        return PassRate(passed, len(counted), self.confidence)

    @property
    def failures(self) -> tuple[RunResult, ...]:
        """The runs that did not pass."""
        return tuple(result for result in self.results if not result.passed)

    def __str__(self) -> str:
        lines = [f"{name}: {rate}" for name, rate in self.rates.items()]
        failed = [f"run {n}: {run}" for n, run in enumerate(self.results, 1) if not run.passed]
        more = [f"... and {len(failed) - _SHOWN} more in `failures`"]
        return printable("\n".join([*lines, *failed[:_SHOWN], *(more if failed[_SHOWN:] else [])]))

    def _repr_html_(self) -> str:
        """Return the same text, which notebooks show."""
        return report_as_html(str(self))


def report_as_html(text: str) -> str:
    """Return the text of a report for a notebook, with its columns aligned."""
    style = "white-space:pre-wrap;word-break:normal;font-family:monospace"
    return f'<pre style="{style}">{escape(text)}</pre>'


def evaluate_runs(
    run: RunOnce,
    evaluators: Mapping[str, Evaluator],
    *,
    runs: int = 20,
    confidence: float = 0.95,
) -> RunsReport:
    """Return how often what *run* returns passes, because models do not always answer the same.

    ```python
    report = evaluate_runs(
        lambda: client.prompt("A table in Rome, please.").call(),
        {"books": ExpectedToolCalls("search", "book")},
    )
    assert report.rates["books"].low > 0.8, report
    ```

    Args:
        run: Sends a request, and returns its response, trail or an `EvaluationRequest`. An error of
            the library that it raises is in the report.
        evaluators: The evaluators by the name of what they judge.
        runs: The number of runs.
        confidence: The confidence level of the intervals.

    Raises:
        UsageError: There is no evaluator, or a number is out of its range.
        WrongTypeError: *run* returns something else.
    """
    repetition = _Repetition(run, evaluators, runs, confidence)
    return drive(repetition.report(within_callers_deadline(BLOCKING), 1))


async def aevaluate_runs(
    run: RunOnce,
    evaluators: Mapping[str, Evaluator],
    *,
    runs: int = 20,
    confidence: float = 0.95,
    max_concurrency: int = 8,
) -> RunsReport:
    """Return how often what *run* returns passes, with *max_concurrency* runs at the same time.

    *run* may be asynchronous: `lambda: client.prompt("...").acall()`. Otherwise like
    `evaluate_runs`.
    """
    repetition = _Repetition(run, evaluators, runs, confidence)
    return await repetition.report(within_callers_deadline(ON_LOOP), max_concurrency)


class _Repetition:
    """The settings of repeated runs."""

    def __init__(
        self, run: RunOnce, evaluators: Mapping[str, Evaluator], runs: int, confidence: float
    ) -> None:
        check_callable("run", run, takes=())
        check_type("evaluators", evaluators, Mapping, 'name them: {"calls": evaluator}')
        for evaluator in evaluators.values():
            check_type("an evaluator", evaluator, Evaluator)
        if not evaluators or "run" in evaluators:
            msg = "repeated runs need evaluators, none of which is called 'run'"
            raise UsageError(msg)
        check_number("runs", runs, least=1)
        if not 0 < confidence < 1:
            msg = f"confidence must be between 0 and 1, not {confidence!r}"
            raise UsageError(msg)
        self._run, self._evaluators = run, dict(evaluators)
        self._runs, self._confidence = runs, confidence

    async def report(self, runtime: Runtime, limit: int) -> RunsReport:
        check_number("max_concurrency", limit, least=1)
        jobs: list[Callable[[Runtime], Coroutine[Any, Any, RunResult]]] = [self._once] * self._runs
        results = await runtime.gather(jobs, limit=limit)
        return RunsReport(tuple(results), self._confidence, tuple(self._evaluators))

    async def _once(self, runtime: Runtime) -> RunResult:
        try:
            request = request_of(await run_step(runtime, self._run))
        except NOT_RETRIEVER_FAILURES:
            raise
        except ChatClientError as error:
            failed = None if error.trail is None else EvaluationRequest.of_trail(error.trail)
            return RunResult(failed, errors={"run": _error_text(error)})
        verdicts: dict[str, EvaluationResponse] = {}
        errors: dict[str, str] = {}
        for name, evaluator in self._evaluators.items():
            try:
                verdicts[name] = await evaluator.judge(request, runtime)
            except NOT_RETRIEVER_FAILURES:
                raise
            except ChatClientError as error:
                errors[name] = _error_text(error)
        return RunResult(request, verdicts, errors)


def _error_text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
