"""Tests of tracebacks without local variables."""

from traceback import extract_tb, walk_tb

import pytest

from chatclient._internal.exceptions import WithoutLocals


def fail() -> None:
    secret = "sk-1"
    try:
        raise KeyError(len(secret))
    except KeyError as error:
        raise ExceptionGroup("both", [ValueError("1")]) from error


def test_no_locals() -> None:
    """An error keeps its frames, and what led to it does not."""
    with pytest.raises(ExceptionGroup) as caught, WithoutLocals():
        fail()

    error = caught.value
    assert [frame.name for frame in extract_tb(error.__traceback__)] == ["test_no_locals", "fail"]
    *_, (frame, _) = walk_tb(error.__traceback__)
    assert frame.f_locals == {}
    assert isinstance(error.__cause__, KeyError)
    assert error.__cause__.__traceback__ is None


def request_that_fails() -> None:
    with WithoutLocals():
        fail()


def test_errors_of_the_caller() -> None:
    """An error that the caller is handling keeps its frames and variables."""

    def of_the_application() -> None:
        answer = 42
        raise LookupError(answer)

    kept: list[LookupError] = []
    with pytest.raises(ExceptionGroup):
        try:
            of_the_application()
        except LookupError as earlier:
            kept.append(earlier)
            request_that_fails()

    *_, (frame, _) = walk_tb(kept[0].__traceback__)
    assert frame.f_locals == {"answer": 42}


def test_no_error() -> None:
    with WithoutLocals():
        done = True
    assert done
