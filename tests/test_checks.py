"""Settings that are words: a slip in one is told, and never means another."""

from collections.abc import Callable
from typing import Any

import pytest

from chatclient import ChatClient
from chatclient.advisors.context_window import ContextWindowAdvisor
from chatclient.advisors.rate_limit import RateLimitAdvisor
from chatclient.advisors.simple_logger import SimpleLoggerAdvisor
from chatclient.errors import UsageError
from chatclient.messages import AssistantMessage, ToolCall
from chatclient.providers.anthropic import AnthropicChatOptions
from chatclient.structured import StructuredOutput, TypeOutputConverter
from chatclient.testing import ScriptedModel
from chatclient.tools import Decision, PendingTurn, ToolFailurePolicy, ToolLimits, tool
from chatclient.tools.approval import decisions_for

TURN = PendingTurn((), AssistantMessage(), (), (ToolCall("1", "pay", "{}"),))

SLIPS: dict[str, tuple[Callable[[Any], object], object, str]] = {
    "effect": (lambda it: tool(effect=it), "writes", "'read', 'idempotent' or 'write'"),
    "effect's case": (lambda it: tool(effect=it), "READ", "not 'READ'"),
    "return_direct": (lambda it: tool(return_direct=it), "iflast", "True, False or 'if_last'"),
    "return_direct as a number": (lambda it: tool(return_direct=it), 1, "not 1"),
    "on_exceeded": (lambda it: ToolLimits(on_exceeded=it), "throw", "on_exceeded is 'partial', "),
    "kind of failure": (
        lambda it: ToolFailurePolicy(reactions={it: "raise"}),
        "exceptions",
        "a kind of failure is 'unknown_tool', ",
    ),
    "reaction": (
        lambda it: ToolFailurePolicy(reactions={"exception": it}),
        "RAISE",
        "the reaction to 'exception' is 'tell' or 'raise', not 'RAISE'",
    ),
    "reaction to a tool": (
        lambda it: ToolFailurePolicy(tools={"pay": it}),
        "rase",
        "the reaction to failures of 'pay' is 'tell' or 'raise', not 'rase'",
    ),
    "exception_text": (
        lambda it: ToolFailurePolicy(exception_text=it),
        "none",
        "'message', 'class' or 'nothing', not 'none'",
    ),
    "duplicate_tools": (
        lambda it: ChatClient.builder(ScriptedModel("x")).duplicate_tools(it),
        "Error",
        "duplicate_tools is 'error', 'first' or 'last', not 'Error'",
    ),
    "decision": (lambda it: decisions_for(TURN, it), "yes", "'approve' or 'deny', not 'yes'"),
    "approved": (Decision, "no", "approved is True or False, not 'no'"),
    "changed arguments": (
        lambda it: Decision(approved=True, arguments=it),
        {"amount": 3},
        "a decision's arguments are JSON as text",
    ),
    "context window": (lambda it: ContextWindowAdvisor(9, on_exceeded=it), "cut", "'trim' or"),
    "rate limit": (lambda it: RateLimitAdvisor(requests=1, on_limit=it), "fail", "'wait' or"),
    "level": (lambda it: SimpleLoggerAdvisor(level=it), "INFO", "'debug' or 'info', not 'INFO'"),
    "native": (
        lambda it: StructuredOutput(TypeOutputConverter(int), native=it),
        "json",
        "True, False, None, 'schema' or 'tool', not 'json'",
    ),
    "cache": (lambda it: AnthropicChatOptions(cache=it), "all", "'conversation', not 'all'"),
}


@pytest.mark.parametrize(("make", "given", "told"), SLIPS.values(), ids=SLIPS)
def test_a_slip_is_told(make: Callable[[Any], object], given: object, told: str) -> None:
    """With what would have been right, where it was made."""
    with pytest.raises(UsageError) as caught:
        make(given)
    assert told in str(caught.value)
