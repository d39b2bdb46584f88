"""Dynamic providers: tools that come and go from round to round."""

import asyncio
from typing import Any

import pytest

from chatclient import (
    ChatClient,
    ChatClientRequest,
    ChatClientResponse,
    Next,
    Prompt,
    ToolResponseMessage,
    tool,
)
from chatclient.advisors import ToolCallingAdvisor
from chatclient.advisors.memory.advisors import MessageChatMemoryAdvisor
from chatclient.advisors.tool_loop.advisor import Steering
from chatclient.errors import DuplicateToolError
from chatclient.memory import InMemoryChatMemoryRepository, MessageWindowChatMemory
from chatclient.testing import Ask, ScriptedModel, call
from chatclient.tools import (
    FunctionToolCallback,
    ToolApproval,
    ToolCallback,
    ToolCallingManager,
    ToolRequest,
    tool_callbacks,
)
from tests.modes.test_tool_calling import client_of, results


@tool(effect="read")
def log_in() -> str:
    """Log in."""
    return "welcome"


@tool(effect="read")
def log_out() -> str:
    """Log out."""
    return "good-bye"


@tool(effect="read")
def balance() -> str:
    """Tell the balance."""
    return "100"


@tool
def transfer() -> str:
    """Transfer money."""
    return "transferred"


def offered(prompt: Prompt) -> list[str]:
    return [callback.definition.name for callback in prompt.options.tool_callbacks or ()]


class Account:
    """Offers what a customer may do, which depends on what has happened."""

    dynamic = True

    def __init__(self) -> None:
        self.requests: list[ToolRequest] = []

    def tool_callbacks(self, request: ToolRequest) -> list[ToolCallback]:
        self.requests.append(request)
        said = [
            response.data
            for message in request.messages
            if isinstance(message, ToolResponseMessage)
            for response in message.responses
        ]
        inside = said.count("welcome") > said.count("good-bye")
        return tool_callbacks(balance, log_out) if inside else tool_callbacks(log_in)


class LaterAccount(Account):
    async def tool_callbacks(self, request: ToolRequest) -> list[ToolCallback]:  # type: ignore[override]
        await asyncio.sleep(0)
        return super().tool_callbacks(request)


class Once:
    """Is no dynamic provider."""

    def __init__(self) -> None:
        self.asked = 0

    def tool_callbacks(self) -> list[ToolCallback]:
        self.asked += 1
        return tool_callbacks(transfer)


CALLS = [call("log_in"), call("balance"), call("log_out"), call("balance")]


@pytest.mark.feature(
    "lc4j-tool-dynamic-provider-asked-before", "lc4j-tool-dynamic-provider-tool-gone"
)
@pytest.mark.parametrize("kind", [Account, LaterAccount])
def test_a_dynamic_provider_is_called_in_every_round(ask: Ask, kind: type[Account]) -> None:
    """What it adds can be called in the next round; what it takes back no longer."""
    account, once = kind(), Once()
    model = ScriptedModel(*CALLS, "done")
    result = ask(client_of(model, once, account).prompt("x").conversation("c"))

    outside, inside = ["transfer", "log_in"], ["transfer", "balance", "log_out"]
    assert [offered(prompt) for prompt in model.prompts] == [
        outside,
        inside,
        inside,
        outside,
        outside,
    ]
    assert [each.response.data for each in result.executions][:3] == ["welcome", "100", "good-bye"]
    assert "There is no tool 'balance'" in results(model.prompts[4])[0]
    assert once.asked == 1


def test_a_dynamic_provider_without_tools(ask: Ask) -> None:
    """Also if there are no other tools."""

    class Shop:
        dynamic = True

        def tool_callbacks(self, request: ToolRequest) -> list[ToolCallback]:
            return tool_callbacks(transfer) if len(request.messages) > 1 else []

    model = ScriptedModel(call("transfer"), call("transfer"), "done")

    assert ask(client_of(model, Shop()).prompt("x")).text == "done"
    assert [offered(prompt) for prompt in model.prompts] == [[], ["transfer"], ["transfer"]]


@pytest.mark.parametrize("given", ["provider", "steering", "decision"])
def test_context_of_the_loop_is_hidden_inside(ask: Ask, given: str) -> None:
    """Advisors inside may pass the context that they see to another client."""
    seen: list[set[str]] = []

    async def inside(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        seen.append(set(request.context))
        return await call_next(request)

    approval = ToolApproval(needed=lambda _: given == "decision")
    manager = ToolCallingManager(interceptors=[approval])
    model = ScriptedModel(call("transfer"), "done")
    client = ChatClient.builder(model).tool_calling_manager(manager).build()
    tools = [transfer, Account()] if given == "provider" else [transfer]
    advisors = [inside, Steering()] if given == "steering" else [inside]
    result = ask(client.prompt("x").tools(*tools).advisors(*advisors))
    if given == "decision":
        turn = result.answer.pending_turn()
        result = ask(client.resume(turn, "approve").tools(*tools).advisors(*advisors))

    assert result.text == "done"
    assert seen == [set(), set()]


@pytest.mark.feature(
    "lc4j-tool-dynamic-provider-asked-before", "lc4j-tool-dynamic-provider-window-eviction"
)
def test_what_a_dynamic_provider_sees(ask: Ask) -> None:
    """In each round the conversation so far, with the user's message, and the tools before it."""
    account = Account()
    model = ScriptedModel(*CALLS[:2], "done")
    request = client_of(model, transfer, account).prompt("x").tool_context(tenant="acme")
    ask(request.conversation("c"))

    assert [len(each.messages) for each in account.requests] == [1, 3, 5]
    for each in account.requests:
        assert each.user_message is not None
        assert (each.user_message.text, each.conversation_id) == ("x", "c")
        assert each.context["tenant"] == "acme"
        assert [callback.definition.name for callback in each.callbacks] == ["transfer"]


@pytest.mark.feature("lc4j-tool-dynamic-provider-asked-before")
def test_a_dynamic_provider_sees_what_is_remembered(ask: Ask) -> None:
    """In the first round of a later turn it knows the turns before; it is not asked for nothing."""
    account = Account()
    memory = MessageChatMemoryAdvisor(MessageWindowChatMemory(InMemoryChatMemoryRepository()))
    model = ScriptedModel(call("log_in"), "You are in", call("balance"), "100")
    builder = ChatClient.builder(model).default_tools(account).default_advisors(memory)
    client = builder.build()
    ask(client.prompt("Log in").conversation("c"))
    result = ask(client.prompt("What do I have?").conversation("c"))

    # The request alone, then with what came of the call; the same again with four messages before.
    assert [len(each.messages) for each in account.requests] == [1, 3, 1, 5, 7]
    assert offered(model.prompts[2]) == ["balance", "log_out"]
    assert [execution.response.data for execution in result.executions] == ["100"]


def test_an_unchanged_tool_list_is_the_same_object(ask: Ask) -> None:
    """Models cache the encoded list by identity."""

    class Steady(Account):
        def tool_callbacks(self, request: ToolRequest) -> list[ToolCallback]:
            return tools

    tools = tool_callbacks(log_in)
    model = ScriptedModel(call("log_in"), "done")
    ask(client_of(model, Steady()).prompt("x"))

    first, second = (prompt.options.tool_callbacks for prompt in model.prompts)
    assert first is second


@pytest.mark.feature("lc4j-tool-dynamic-provider-tool-gone")
def test_a_dynamic_provider_may_take_tools_away(ask: Ask) -> None:
    """Its `hidden_tools` are asked for in every round as well."""

    class OneTransfer:
        dynamic = True

        def tool_callbacks(self) -> list[ToolCallback]:
            return []

        def hidden_tools(self, request: ToolRequest) -> list[str]:
            return ["transfer"] if len(request.messages) > 1 else []

    model = ScriptedModel(call("transfer"), "done")
    ask(client_of(model, transfer, balance, OneTransfer()).prompt("x"))

    assert [offered(each) for each in model.prompts] == [["transfer", "balance"], ["balance"]]


@pytest.mark.feature("lc4j-tool-dynamic-provider-asked-before")
def test_what_a_hook_does_to_the_tools_stays(ask: Ask) -> None:
    """Tools that `before_call` added or removed once are not undone by a dynamic provider.

    Those that it has left alone stay as well.
    """

    class Choosing(ToolCallingAdvisor):
        async def before_call(self, request: ChatClientRequest) -> ChatClientRequest:
            prompt = request.prompt
            present = prompt.options.tool_callbacks or ()
            if len(prompt.messages) > 1:
                return request
            chosen = [c for c in present if c.definition.name != "transfer"]
            tools = [*chosen, *tool_callbacks(extra)]
            return request.mutate(
                prompt=prompt.with_options(prompt.options.mutate(tool_callbacks=tools))
            )

    @tool
    def extra() -> str:
        return "extra"

    @tool
    def rates() -> str:
        return "rates"

    model = ScriptedModel(*CALLS[:3], "done")
    builder = ChatClient.builder(model).default_advisors(Choosing())
    ask(builder.default_tools(transfer, rates, Account()).build().prompt("x"))

    assert [offered(prompt) for prompt in model.prompts] == [
        ["rates", "log_in", "extra"],
        ["rates", "extra", "balance", "log_out"],
        ["rates", "extra", "balance", "log_out"],
        ["rates", "extra", "log_in"],
    ]


@pytest.mark.feature("lc4j-tool-duplicate-dynamic-refresh-existing")
def test_names_are_checked_in_every_round(ask: Ask) -> None:
    """A dynamic provider that offers a name for the second time ends the request."""

    class Doubling:
        dynamic = True

        def tool_callbacks(self, request: ToolRequest) -> list[ToolCallback]:
            return [twin] if len(request.messages) > 1 else []

    twin = FunctionToolCallback(log_in, name="balance")

    model = ScriptedModel(call("balance"), "never")

    with pytest.raises(DuplicateToolError, match="balance"):
        ask(client_of(model, balance, Doubling()).prompt("x"))


def test_a_resumed_turn_asks_again(ask: Ask) -> None:
    """The tools are those of the conversation as it is then."""
    manager = ToolCallingManager(interceptors=[ToolApproval()])

    def client(*answers: Any) -> tuple[ScriptedModel, ChatClient]:
        model = ScriptedModel(*answers)
        builder = ChatClient.builder(model).default_tools(transfer, Account())
        return model, builder.tool_calling_manager(manager).build()

    _, first = client([call("log_in"), call("transfer")])
    turn = ask(first.prompt("x")).waiting
    model, second = client("done")
    result = ask(second.resume(turn.to_json(), "approve"))

    assert offered(model.prompts[0]) == ["transfer", "balance", "log_out"]
    assert "refresh_tools" not in result.response.context
