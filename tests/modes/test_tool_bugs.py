"""Mistakes in a tool's code: which failures they are, and who learns of them."""

import logging
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator, BaseModel, field_validator

from chatclient import ChatClient, ToolResponseMessage, tool
from chatclient.testing import Ask, ScriptedModel, call

PRICES = {"tea": 3}
refunds: list[int] = []


def priced(article: str) -> str:
    """Fail for articles without a price."""
    PRICES[article]
    return article


class Order(BaseModel):
    article: str

    @field_validator("article")
    @classmethod
    def has_a_price(cls, value: str) -> str:
        return priced(value)


@dataclass
class Line:
    article: str

    def __post_init__(self) -> None:
        len(self.article, 1)  # type: ignore[call-arg]


@tool
def annotated(article: Annotated[str, AfterValidator(priced)]) -> str:
    """Order an article."""
    return "ordered"


@tool
def modelled(order: Order) -> str:
    """Order an article."""
    return "ordered"


@tool
def built(line: Line) -> str:
    """Order an article."""
    return "ordered"


def refund(euro: int) -> None:
    refunds.append(euro)


@tool(compensation=refund)
def debit(euro: int) -> str:
    """Debit an account."""
    return "debited"


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (annotated, {"article": "gold"}),
        (modelled, {"order": {"article": "gold"}}),
        (built, {"line": {"article": "tea"}}),
    ],
)
def test_an_unexpected_error_of_a_validator(ask: Ask, function: Any, arguments: Any) -> None:
    """The arguments are rejected; the tool has not run, so nothing is undone."""
    refunds.clear()
    calls = [call("debit", {"euro": 5}), call(function.__name__, arguments)]
    model = ScriptedModel(calls, "done")
    client = ChatClient.builder(model).default_tools(debit, function).build()

    assert ask(client.prompt("x")).text == "done"

    message = model.prompts[1].messages[-1]
    assert isinstance(message, ToolResponseMessage)
    assert message.responses[1].metadata["failure"] == "invalid_arguments"
    assert "could not be checked" in message.responses[1].data
    assert refunds == []


def test_a_bug_in_a_tool_is_logged_once(
    ask: Ask, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A `NameError` and the like are logged with their traceback, once for each line of code."""

    @tool
    def lines(number: int) -> str:
        """Fail."""
        if number:
            return missing  # type: ignore[name-defined,no-any-return]  # noqa: F821
        return None.upper()  # type: ignore[no-any-return,attr-defined]

    monkeypatch.setattr("chatclient.tools.execution.failure._logged", {})
    caplog.set_level(logging.WARNING, "chatclient")
    model = ScriptedModel(*(call("lines", {"number": n}) for n in (1, 1, 0)), "done")
    ask(ChatClient.builder(model).default_tools(lines).build().prompt("x"))

    [name_error, attribute_error] = [r for r in caplog.records if "has a bug" in r.getMessage()]
    assert name_error.levelname == attribute_error.levelname == "WARNING"
    assert name_error.exc_info is not None
    assert name_error.exc_info[0] is NameError
    assert "lines" in name_error.getMessage()


def test_a_failure_that_may_happen_is_not_logged(
    ask: Ask, caplog: pytest.LogCaptureFixture
) -> None:
    """An unreachable service and wrong arguments are error results, and are not logged."""

    @tool
    def fetch(number: int) -> str:
        """Fetch."""
        raise ConnectionError("gone")

    model = ScriptedModel(call("fetch", {"number": 1}), call("fetch", {"number": "?"}), "done")
    ask(ChatClient.builder(model).default_tools(fetch).build().prompt("x"))

    assert [r for r in caplog.records if "has a bug" in r.getMessage()] == []
