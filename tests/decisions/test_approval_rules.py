"""Rules that decide about tool calls, and the review by a decision model."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from chatclient import USER_ID, ChatClient, tool
from chatclient.decisions import ApprovalRule, ApprovalRules, SqlApprovalRules, ToolCallReview
from chatclient.errors import OverloadedError, UsageError
from chatclient.testing import Ask, Asked, ScriptedModel, call
from chatclient.tools import (
    ToolApproval,
    ToolCallingManager,
    ToolInvocation,
)
from tests.support.databases import SQL_KINDS, sql_place
from tests.support.decisions import always

sent: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_sent() -> None:
    sent.clear()


@tool
def send(to: str, text: str = "") -> str:
    """Send a message."""
    sent.append(to)
    return "sent"


def client_of(ask: Any, arguments: str, **defaults: Any) -> ChatClient:
    """Return a client whose model sends one message."""
    model = ScriptedModel([call("send", arguments, id="s1")], "Done.")
    manager = ToolCallingManager(interceptors=[ToolApproval(ask=ask, **defaults)])
    return ChatClient.builder(model).default_tools(send).tool_calling_manager(manager).build()


def answer(ask: Ask, decide: Any, arguments: str, user: str | None = "ada") -> Asked:
    request = client_of(decide, arguments).prompt("Tell Bo.")
    return ask(request if user is None else request.advisor_params({USER_ID: user}))


def test_always_allow(ask: Ask) -> None:
    """What a person has allowed for later calls runs without asking, and the trail says why."""
    rules = ApprovalRules()
    waiting = answer(ask, rules, '{"to": "bo", "text": "Hi"}').waiting
    rule = ApprovalRule.for_call(waiting.to_decide()["s1"], free="text", lasts=timedelta(days=1))
    rules.add("ada", rule)

    allowed = answer(ask, rules, '{"text": "Ho", "to": "bo"}')

    assert allowed.text == "Done."
    assert [each.decided_by for each in allowed.executions] == [f"rule {rule.id}"]
    assert f"rule {rule.id}" in str(allowed.response.trail)


RULE = ApprovalRule("send", {"to": "bo"})


@pytest.mark.parametrize(
    ("rule", "arguments", "user", "runs"),
    [
        (RULE, '{"to": "bo"}', "ada", True),
        (RULE, '{"to": "bo", "text": "Hi"}', "ada", False),
        (RULE, '{"to": "eve"}', "ada", False),
        (RULE, '{"to": "bo"}', "bo", False),
        (RULE, '{"to": "bo"}', None, False),
        (ApprovalRule("send", {"to": "bo"}, frozenset({"text"})), '{"to": "bo"}', "ada", True),
        (ApprovalRule("send"), '{"to": "eve"}', "ada", True),
        (ApprovalRule("other"), '{"to": "bo"}', "ada", False),
        (ApprovalRule("send", expires=datetime(2020, 1, 1, tzinfo=UTC)), "{}", "ada", False),
        (ApprovalRule("send", expires=datetime(9999, 1, 1, tzinfo=UTC)), '{"to": ""}', "ada", True),
    ],
)
def test_which_calls(
    rule: ApprovalRule, arguments: str, user: str | None, *, runs: bool, ask: Ask
) -> None:
    """A rule is for a user, a tool, and for no other arguments than it names."""
    rules = ApprovalRules()
    rules.add("ada", rule)

    asked = client_of(rules, arguments, needed=lambda invocation: True).prompt("Tell Bo.")
    ask(asked if user is None else asked.advisor_params({USER_ID: user}))

    assert bool(sent) == runs


def test_values_are_json() -> None:
    """1 and true are equal in Python; what is no JSON object is not decided about."""
    rule = ApprovalRule("send", {"to": 1})

    assert rule.applies(call("send", '{"to": 1}'))
    assert not rule.applies(call("send", '{"to": true}'))
    assert not rule.applies(call("send", '{"to": 1'))
    with pytest.raises(UsageError, match="no JSON object"):
        ApprovalRule.for_call(call("send", "[1]"))
    with pytest.raises(UsageError, match="time zone"):
        ApprovalRule("send", expires=datetime(2030, 1, 1))  # noqa: DTZ001 - the fault


def test_never_allow(ask: Ask) -> None:
    """A rule that denies prevails over one that allows."""
    rules = ApprovalRules()
    rules.add("ada", ApprovalRule("send"))
    rules.add("ada", ApprovalRule("send", {"to": "eve"}, approved=False, id="no-eve"))

    denied = answer(ask, rules, '{"to": "eve"}')

    assert sent == []
    assert denied.executions[0].is_error
    assert denied.executions[0].decided_by == "rule no-eve"


def test_owner_of_the_application(ask: Ask) -> None:
    """The application says whose rules decide."""

    async def team(invocation: ToolInvocation) -> str:
        return f"team {invocation.context['team']}"

    rules = ApprovalRules(owner=team)
    rules.add("team 7", ApprovalRule("send"))
    request = client_of(rules, '{"to": "bo"}').prompt("Tell Bo.")

    ask(request.tool_context({"team": 7}))
    assert sent == ["bo"]


@pytest.fixture(params=["memory", *SQL_KINDS])
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ApprovalRules]:
    if request.param == "memory":
        yield ApprovalRules()
        return
    with sql_place(request.param, tmp_path) as (url, prefix):
        engine = sa.create_engine(url, poolclass=sa.NullPool)
        yield SqlApprovalRules(engine, f"{prefix}rules")
        engine.dispose()


def test_stores(stored: ApprovalRules) -> None:
    """Rules are kept for each owner, replaced by id, and removed."""
    expires = datetime(2030, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
    rule = ApprovalRule("send", {"to": "bö", "n": [1, None]}, frozenset({"text"}), True, expires)
    changed = ApprovalRule("send", approved=False, id=rule.id)

    stored.add("ada", rule)
    stored.add("Ada", changed)
    assert list(stored.of("ada")) == [rule]
    stored.add("ada", changed)
    assert list(stored.of("ada")) == [changed]
    stored.remove("ada", "unknown")
    stored.remove("eve", rule.id)
    stored.remove("ada", rule.id)
    assert list(stored.of("ada")) == []
    assert list(stored.of("Ada")) == [changed]


@pytest.mark.parametrize(
    ("probability", "outcome"), [(0.99, "runs"), (0.6, "waits"), (0.1, "denied")]
)
def test_review(ask: Ask, probability: float, outcome: str) -> None:
    """A sure model decides; otherwise a person does."""
    model = always(probability)
    asked = answer(ask, ToolCallReview(model, deny_below=0.2), '{"to": "bo"}')

    assert (asked.response.turn.pending is not None) == (outcome == "waits")
    assert sent == (["bo"] if outcome == "runs" else [])
    if outcome != "waits":
        assert asked.executions[0].decided_by == f"{model.name} ({probability:.2f})"
    assert model.requests[0].input == {
        "request": "Tell Bo.",
        "tool": "send",
        "description": "Send a message.",
        "arguments": '{"to": "bo"}',
    }


def test_review_fails(ask: Ask) -> None:
    """A person decides if the model does not answer."""
    review = ToolCallReview(always(OverloadedError("busy")))

    assert answer(ask, review, '{"to": "bo"}').waiting.to_decide()


def test_one_after_the_other(ask: Ask) -> None:
    """The first decides that can; the next ones are not asked."""
    rules, model = ApprovalRules(), always(0.99)
    rules.add("ada", ApprovalRule("send", {"to": "bo"}))

    answer(ask, (rules, ToolCallReview(model)), '{"to": "bo"}')
    assert model.requests == []
    answer(ask, (rules, ToolCallReview(model)), '{"to": "eve"}')
    assert sent == ["bo", "eve"]
    assert len(model.requests) == 1


def test_invalid_reviews() -> None:
    with pytest.raises(UsageError, match="deny_below"):
        ToolCallReview(always(0.5), approve_from=0.5, deny_below=0.6)


def test_read_of_the_rule() -> None:
    """The text of a rule is JSON, for stores of an application."""
    rule = ApprovalRule("send", {"to": "bo"})
    assert ApprovalRule.from_dict(json.loads(json.dumps(rule.to_dict()))) == rule
