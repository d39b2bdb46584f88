"""The tree of errors: what it promises at the top of its file, it keeps."""

import copy
import inspect
import pickle
import re
from collections.abc import Callable
from typing import Any

import pytest

from chatclient import errors
from chatclient.errors import ChatClientError, ProviderError, UsageError

CLASSES: dict[str, type[ChatClientError]] = {
    name: value
    for name, value in vars(errors).items()
    if inspect.isclass(value) and issubclass(value, ChatClientError)
}
each_error = pytest.mark.parametrize("kind", CLASSES.values())


def drawn_tree() -> dict[str, str | None]:
    """Return the parent of each error in the drawing at the top of `chatclient.errors`."""
    parents: dict[str, str | None] = {}
    above: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        if found := re.match(r"([│├└─ ]*)(\w+Error)\b", line):
            depth = len(found[1]) // 4
            parents[found[2]] = above[depth - 1] if depth else None
            above[depth:] = [found[2]]
    return parents


def drawn_attributes() -> dict[str, set[str]]:
    """Return the attributes beside each error in the drawing."""
    lines = re.findall(r"(\w+Error)\b(.*)", errors.__doc__ or "")
    return {name: set(re.findall(r"\s\.(\w+)", rest)) for name, rest in lines}


def made(kind: type[ChatClientError]) -> ChatClientError:
    """Return an error of *kind* with something in all of its attributes."""
    words = [
        parameter.name
        for base in kind.__mro__
        if base in CLASSES.values() and "__init__" in vars(base)
        for parameter in inspect.signature(vars(base)["__init__"]).parameters.values()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    ]
    return kind("told", **{word: _VALUES.get(word, word) for word in words})


_VALUES: dict[str, Any] = {
    "missing": ("a", "b"),
    "tool_names": ("a", "b"),
    "details": ("a", "b"),
    "status": 429,
    "retry_after": 1.5,
    "body": {"error": ["x"]},
    "malformed": True,
    "media": ("a",),
    "metadata": {"a": 1},
}


def test_the_drawn_tree_is_the_real_one() -> None:
    """Every error stands in the drawing, under the class it inherits from."""
    real = {
        name: next((base.__name__ for base in kind.__bases__ if base in CLASSES.values()), None)
        for name, kind in CLASSES.items()
    }

    assert drawn_tree() == real


@pytest.mark.parametrize(("name", "attributes"), drawn_attributes().items())
def test_drawn_attributes_are_there(name: str, attributes: set[str]) -> None:
    """What the drawing says an error carries, it carries."""
    assert attributes <= vars(made(CLASSES[name])).keys()


@each_error
def test_every_attribute_is_documented(kind: type[ChatClientError]) -> None:
    """Whatever a caller can read off an error is described where it is set."""
    described = "".join(base.__doc__ or "" for base in kind.__mro__ if base in CLASSES.values())

    assert [name for name in vars(made(kind)) if f"{name}: " not in described] == []


@each_error
@pytest.mark.parametrize(
    "copied", [lambda it: pickle.loads(pickle.dumps(it)), copy.copy], ids=["pickle", "copy"]
)
def test_errors_travel_between_processes(
    kind: type[ChatClientError], copied: Callable[[Any], Any]
) -> None:
    """An error raised in a worker arrives as it was, with everything it carries."""
    error = made(kind)
    error.add_note("while testing")

    again = copied(error)

    assert type(again) is kind
    assert str(again) == "told"
    assert again.args == error.args
    assert vars(again) == vars(error)


@each_error
def test_errors_need_little_to_be_raised(kind: type[ChatClientError]) -> None:
    """The message is what is printed, whatever else an error carries."""
    with pytest.raises(kind, match=r"^told$"):
        raise made(kind)


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (errors.UsageError, ValueError),
        (errors.TemplateError, ValueError),
        (errors.DuplicateToolError, ValueError),
        (errors.RequestTimeoutError, TimeoutError),
        (errors.ToolTimeoutError, TimeoutError),
        (errors.DeadlineExceededError, TimeoutError),
    ],
)
def test_errors_are_also_pythons_own(kind: type[Exception], builtin: type[Exception]) -> None:
    """Code that knows nothing of this library catches them by their usual names."""
    with pytest.raises(builtin):
        raise made(CLASSES[kind.__name__])


def test_everything_is_caught_by_one_name() -> None:
    """One `except` is enough for all that this library raises on purpose."""
    assert all(issubclass(kind, ChatClientError) for kind in CLASSES.values())
    assert issubclass(ChatClientError, Exception)


def test_only_trouble_that_may_pass_is_worth_a_retry() -> None:
    """No answer, too many requests, a server in trouble: nothing else gets better by itself."""
    retryable = {
        name for name, kind in CLASSES.items() if issubclass(kind, ProviderError) and kind.retryable
    }

    assert retryable == {
        "ConnectionFailedError",
        "RequestTimeoutError",
        "RateLimitedError",
        "OverloadedError",
    }


def test_a_provider_error_may_know_nothing() -> None:
    """Where there was no answer, there is nothing to tell of it."""
    error = ProviderError("told")

    assert vars(error) == {
        "provider": "",
        "status": None,
        "request_id": None,
        "body": None,
        "retry_after": None,
    }


@pytest.mark.parametrize(
    ("error", "name", "expected"),
    [
        (errors.TemplateError("told"), "missing", ()),
        (errors.TemplateError("told", missing=iter(["a"])), "missing", ("a",)),
        (errors.DuplicateToolError("told", tool_names=iter(["a"])), "tool_names", ("a",)),
        (errors.ToolArgumentError("told", tool_name="f"), "details", ()),
        (
            errors.ToolArgumentError("told", tool_name="f", details=iter("ab")),
            "details",
            ("a", "b"),
        ),
        (errors.StreamInterruptedError("told"), "partial", None),
        (errors.StreamInterruptedError("told", provider="openai"), "provider", "openai"),
    ],
)
def test_lists_on_errors_are_tuples(error: ChatClientError, name: str, expected: object) -> None:
    """What an error carries can be read more than once, and has a value when nothing was said."""
    assert getattr(error, name) == expected


def test_a_usage_error_is_no_provider_error() -> None:
    """Nothing was sent, so no retry and no fallback is tempted."""
    assert not issubclass(UsageError, ProviderError)
