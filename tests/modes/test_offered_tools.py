"""The tools that an advisor inside the tool loop offers are those that run."""

from typing import Any

import pytest

from chatclient import ChatClient, ChatClientRequest, ChatClientResponse, tool
from chatclient.chain.chain import Next
from chatclient.testing import Ask, ScriptedModel, call
from chatclient.tools import tool_callbacks


@tool
def first() -> str:
    """The client's tool."""
    return "first ran"


@tool
def second() -> str:
    """The advisor's tool."""
    return "second ran"


class Offer:
    """Advisor inside the tool loop that replaces the offered tools."""

    order = 2**31 - 10

    def __init__(self, *tools: Any) -> None:
        self.callbacks = tool_callbacks(*tools)

    async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        """Offer other tools for this round."""
        options = request.prompt.options.mutate(tool_callbacks=self.callbacks)
        return await call_next(request.mutate(prompt=request.prompt.with_options(options)))


@pytest.mark.parametrize("default", [(first,), ()])
def test_added_tool_runs(ask: Ask, default: tuple[Any, ...]) -> None:
    model = ScriptedModel([call("second"), call("first")], "Done")
    client = ChatClient.builder(model).default_tools(*default).default_advisors(Offer(second))

    executions = ask(client.build().prompt("x")).executions

    assert [each.response.data for each in executions][:1] == ["second ran"]
    assert executions[1].is_error  # it was not offered
    assert "no tool 'first'" in executions[1].response.data


def test_tool_of_one_round_is_not_offered_in_the_next(ask: Ask) -> None:
    """The advisor decides in every round."""
    offer = Offer(first)

    @tool
    def switch() -> str:
        """Switch to the second tool."""
        offer.callbacks = tool_callbacks(second)
        return "switched"

    offer.callbacks = tool_callbacks(first, switch)
    model = ScriptedModel(call("switch"), [call("second"), call("first")], "Done")
    client = ChatClient.builder(model).default_advisors(offer).build()

    executions = ask(client.prompt("x")).executions

    texts = [each.response.data for each in executions]
    assert texts[:2] == ["switched", "second ran"]
    assert executions[2].is_error


def test_answer_without_model_uses_the_tools_of_the_loop(ask: Ask) -> None:
    """An advisor may answer instead of the model."""
    answers: list[ChatClientResponse] = []

    async def cached(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        if not answers:
            answers.append(await call_next(request))
            return answers[0]
        if len(answers) == 1:
            answers.append(answers[0])
            return answers[0]
        return await call_next(request)

    cached.order = Offer.order - 1  # type: ignore[attr-defined]
    model = ScriptedModel(call("first"), "Done")
    client = ChatClient.builder(model).default_tools(first).default_advisors(cached, Offer(first))

    executions = ask(client.build().prompt("x")).executions

    assert [each.response.data for each in executions] == ["first ran", "first ran"]
