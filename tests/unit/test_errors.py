"""The error classes match the tree in the documentation."""

import copy
import inspect
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chatclient import errors
from chatclient.errors import ChatClientError, ProviderError, UsageError

DOCUMENTED = (Path(__file__).parents[2] / "docs" / "errors.md").read_text(encoding="utf-8")
TREE = DOCUMENTED.partition("```text\n")[2].partition("```")[0]
CLASSES: dict[str, type[ChatClientError]] = {
    name: value
    for name, value in vars(errors).items()
    if inspect.isclass(value) and issubclass(value, ChatClientError)
}
each_error = pytest.mark.parametrize("kind", CLASSES.values())


def drawn_tree() -> dict[str, str | None]:
    """Return the parent of each error in the tree."""
    parents: dict[str, str | None] = {}
    above: list[str] = []
    for line in TREE.splitlines():
        if found := re.match(r"([│├└─ ]*)(\w+Error)\b", line):
            depth = len(found[1]) // 4
            parents[found[2]] = above[depth - 1] if depth else None
            above[depth:] = [found[2]]
    return parents


def drawn_attributes() -> dict[str, set[str]]:
    """Return the attributes of each error in the tree."""
    lines = re.findall(r"(\w+Error)\b(.*)", TREE)
    return {name: set(re.findall(r"\s\.(\w+)", rest)) for name, rest in lines}


def made(kind: type[ChatClientError]) -> ChatClientError:
    """Return an error of *kind* with values for all attributes."""
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


def test_documented_tree() -> None:
    """Every error is in the tree under its base class."""
    real = {
        name: next((base.__name__ for base in kind.__bases__ if base in CLASSES.values()), None)
        for name, kind in CLASSES.items()
    }

    assert drawn_tree() == real


@pytest.mark.parametrize(("name", "attributes"), drawn_attributes().items())
def test_documented_attributes(name: str, attributes: set[str]) -> None:
    """Errors have the attributes that the tree lists."""
    assert attributes <= vars(made(CLASSES[name])).keys()


@each_error
def test_every_attribute_is_documented(kind: type[ChatClientError]) -> None:
    """The docstring of a class describes the attributes that it sets."""
    described = "".join(base.__doc__ or "" for base in kind.__mro__ if base in CLASSES.values())

    assert [
        name for name in vars(made(kind)) if not re.search(rf"{name}: |`{name}`", described)
    ] == []


@each_error
@pytest.mark.parametrize(
    "copied", [lambda it: pickle.loads(pickle.dumps(it)), copy.copy], ids=["pickle", "copy"]
)
def test_errors_are_pickled_and_copied(
    kind: type[ChatClientError], copied: Callable[[Any], Any]
) -> None:
    """A copied error has its message and attributes."""
    error = made(kind)
    error.add_note("while testing")

    again = copied(error)

    assert type(again) is kind
    assert str(again) == "told"
    assert again.args == error.args
    assert vars(again) == vars(error)


@each_error
def test_message_is_sufficient(kind: type[ChatClientError]) -> None:
    """Errors can be made with a message only, which `str` returns."""
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
def test_builtin_base_classes(kind: type[Exception], builtin: type[Exception]) -> None:
    """Errors can be caught by the usual built-in classes."""
    with pytest.raises(builtin):
        raise made(CLASSES[kind.__name__])


def test_common_base_class() -> None:
    """All errors have one base class."""
    assert all(issubclass(kind, ChatClientError) for kind in CLASSES.values())
    assert issubclass(ChatClientError, Exception)


def test_retryable_errors() -> None:
    """Only connection failures, rate limits and server errors are retryable."""
    retryable = {
        name for name, kind in CLASSES.items() if issubclass(kind, ProviderError) and kind.retryable
    }

    assert retryable == {
        "ConnectionFailedError",
        "RequestTimeoutError",
        "RateLimitedError",
        "OverloadedError",
    }


def test_provider_error_without_details() -> None:
    """Without an HTTP response the attributes are empty."""
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
def test_sequences_are_tuples(error: ChatClientError, name: str, expected: object) -> None:
    """Sequence attributes are tuples with empty defaults."""
    assert getattr(error, name) == expected


def test_usage_error_is_not_a_provider_error() -> None:
    """A usage error triggers no retry or fallback."""
    assert not issubclass(UsageError, ProviderError)
