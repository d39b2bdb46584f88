"""Providers, which choose tools for each request."""

import asyncio
from typing import Any, Literal

import pytest

from chatclient import ChatClient, Prompt, UserMessage, tool
from chatclient.errors import DuplicateToolError, ToolDefinitionError
from chatclient.testing import Ask, ScriptedModel, call
from chatclient.tools import ToolCallback, ToolCallbackProvider, ToolRequest, tool_callbacks
from tests.modes.test_tool_calling import client_of, results


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
def refund() -> str:
    """Refund an order."""
    return "refunded"


@tool(name="refund")
def other_refund() -> str:
    """Refund an order, in another way."""
    return "refunded otherwise"


def offered(prompt: Prompt) -> list[str]:
    return [callback.definition.name for callback in prompt.options.tool_callbacks or ()]


class Fixed:
    """A provider of fixed tools."""

    def __init__(self, *sources: Any) -> None:
        self.callbacks = tool_callbacks(*sources)
        self.asked = 0

    def tool_callbacks(self) -> list[ToolCallback]:
        self.asked += 1
        return list(self.callbacks)


class ByRequest:
    """A provider that depends on the request."""

    def __init__(self) -> None:
        self.requests: list[ToolRequest] = []

    def tool_callbacks(self, request: ToolRequest) -> list[ToolCallback]:
        self.requests.append(request)
        wanted = "refund" in (request.user_message.text if request.user_message else "")
        return list(tool_callbacks(refund)) if wanted else []


class Later(ByRequest):
    async def tool_callbacks(self, request: ToolRequest) -> list[ToolCallback]:  # type: ignore[override]
        await asyncio.sleep(0)
        return super().tool_callbacks(request)


@pytest.mark.feature("prompt-providers-asked-when-request", "lc4j-tool-static-provider-once-per")
def test_a_provider_is_called_in_each_request(ask: Ask) -> None:
    """It is called once per request, not per round, also as a default of the client."""
    provider = Fixed(add)
    model = ScriptedModel(call("add", '{"a": 1, "b": 2}'), "done", "done")
    client = client_of(model, provider)
    assert provider.asked == 0
    ask(client.prompt("x"))
    ask(client.prompt("x"))

    assert provider.asked == 2
    assert results(model.prompts[1]) == ["3"]
    assert isinstance(provider, ToolCallbackProvider)


@pytest.mark.feature("resolver-providers-know-request", "lc4j-tool-provider-sees-request")
@pytest.mark.parametrize("kind", [ByRequest, Later])
def test_a_provider_sees_the_request(ask: Ask, kind: type[ByRequest]) -> None:
    """It receives the messages, the tool context, the conversation and the tools before it."""
    provider = kind()
    model = ScriptedModel(call("refund"), "done")
    request = client_of(model).prompt([UserMessage("earlier")]).user("I want a refund")
    request = request.tools(add, provider).tool_context(tenant="acme").conversation("c-1")
    ask(request)
    [known] = provider.requests

    assert [message.text for message in known.messages] == ["earlier", "I want a refund"]
    assert known.user_message == UserMessage("I want a refund")
    assert (dict(known.context), known.conversation_id) == ({"tenant": "acme"}, "c-1")
    assert [callback.definition.name for callback in known.callbacks] == ["add"]
    assert offered(model.prompts[0]) == ["add", "refund"]
    assert results(model.prompts[1]) == ["refunded"]


@pytest.mark.parametrize("kind", [ByRequest, Later])
def test_a_provider_may_offer_nothing(ask: Ask, kind: type[ByRequest]) -> None:
    """Without tools, a call of the model is an error result."""
    provider = kind()
    model = ScriptedModel(call("refund"), "done")
    ask(client_of(model, provider).prompt("Hello"))

    assert offered(model.prompts[0]) == []
    assert "no tools are available" in results(model.prompts[1])[0]
    assert provider.requests[0].conversation_id is None


class Hiding:
    """A provider that hides earlier tools."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def tool_callbacks(self) -> list[ToolCallback]:
        return []

    def hidden_tools(self, request: ToolRequest) -> list[str]:
        return [name for name in self.names if request.context.get("role") != "admin"]


class HidingLater(Hiding):
    async def hidden_tools(self, request: ToolRequest) -> list[str]:  # type: ignore[override]
        await asyncio.sleep(0)
        return super().hidden_tools(request)


@pytest.mark.feature("resolver-taking-tools-away-request")
@pytest.mark.parametrize("kind", [Hiding, HidingLater])
def test_a_provider_may_take_tools_away(ask: Ask, kind: type[Hiding]) -> None:
    """Earlier tools are hidden depending on the tool context; unknown names are ignored."""
    model = ScriptedModel("done", "done")
    client = client_of(model, add, refund, kind("refund", "nobody"))
    ask(client.prompt("x").tool_context(role="guest"))
    ask(client.prompt("x").tool_context(role="admin"))

    assert [offered(prompt) for prompt in model.prompts] == [["add"], ["add", "refund"]]


class HidingWhatever(Hiding):
    def __init__(self, hidden: Any) -> None:
        self.hidden = hidden

    def hidden_tools(self, request: ToolRequest) -> Any:
        return self.hidden


@pytest.mark.parametrize(("hidden", "left"), [("refund", ["add"]), (None, ["add", "refund"])])
def test_a_provider_may_take_one_tool_away_or_none(ask: Ask, hidden: Any, left: list[str]) -> None:
    """A text is one name, and None hides nothing."""
    model = ScriptedModel("done")
    ask(client_of(model, add, refund, HidingWhatever(hidden)).prompt("x"))

    assert offered(model.prompts[0]) == left


@pytest.mark.parametrize("hidden", [7, [refund]])
def test_a_provider_that_hides_no_names_is_named(ask: Ask, hidden: Any) -> None:
    """A wrong return value is an error with the provider's name, before anything is sent."""
    client = client_of(ScriptedModel("never"), add, HidingWhatever(hidden))
    with pytest.raises(ToolDefinitionError, match=r"hidden_tools of .*HidingWhatever.* must"):
        ask(client.prompt("x"))


@pytest.mark.feature("resolver-taking-tools-away-request")
def test_what_comes_after_is_not_taken_away(ask: Ask) -> None:
    """Only earlier tools are hidden, so that a tool can be replaced."""
    model = ScriptedModel(call("refund"), "done")
    ask(client_of(model, refund, Hiding("refund"), other_refund).prompt("x"))

    assert results(model.prompts[1]) == ["refunded otherwise"]


@pytest.mark.feature("resolver-taking-tools-away-request")
def test_a_hidden_tool_cannot_be_run(ask: Ask) -> None:
    """A call of a hidden tool is an error result."""
    model = ScriptedModel(call("refund"), "done")
    ask(client_of(model, add, refund, Hiding("refund")).prompt("x"))

    assert results(model.prompts[1]) == ["There is no tool 'refund'; available: add"]


@pytest.mark.feature("manager-provider-fails")
def test_what_a_provider_raises_ends_the_request(ask: Ask) -> None:
    """The error is raised before anything is sent."""

    class Broken:
        def tool_callbacks(self) -> list[ToolCallback]:
            raise LookupError("the catalogue is closed")

    model = ScriptedModel("never")
    with pytest.raises(LookupError, match="catalogue"):
        ask(client_of(model, Broken()).prompt("x"))
    assert model.prompts == []


def test_a_provider_that_needs_a_request() -> None:
    """`tool_callbacks` accepts fixed providers only; the error names the alternative."""
    assert [each.definition.name for each in tool_callbacks(Fixed(add), refund)] == [
        "add",
        "refund",
    ]
    with pytest.raises(ToolDefinitionError, match=r"pass it to \.tools"):
        tool_callbacks(ByRequest())


# --- duplicates ---


@pytest.mark.feature("builder-duplicate-names-always-fail", "lc4j-tool-duplicates-policy")
@pytest.mark.parametrize(
    ("policy", "answer"), [("first", "refunded"), ("last", "refunded otherwise")]
)
def test_one_of_several_tools_of_a_name_can_be_kept(
    ask: Ask, policy: Literal["first", "last"], answer: str
) -> None:
    """The first or the last one is kept, from any source."""
    model = ScriptedModel(call("refund"), "done")
    builder = ChatClient.builder(model).duplicate_tools(policy)
    client = builder.default_tools(refund, add, Fixed(other_refund)).build()
    ask(client.prompt("x"))

    assert sorted(offered(model.prompts[0])) == ["add", "refund"]
    assert results(model.prompts[1]) == [answer]


@pytest.mark.feature(
    "builder-duplicate-names-always-fail",
    "lc4j-tool-duplicate-static-provider-call",
    "lc4j-tool-duplicates-policy",
)
def test_several_tools_of_a_name_are_refused_by_default(ask: Ask) -> None:
    """Also if a provider returns one of them during a request."""
    model = ScriptedModel("never")
    with pytest.raises(DuplicateToolError, match="refund"):
        ask(client_of(model, refund, Fixed(other_refund)).prompt("x"))
    assert model.prompts == []


def test_a_provider_knows_the_other_tools(ask: Ask) -> None:
    """Providers are called after fixed tools are known, and the order of the tools is kept."""
    first, second = ByRequest(), ByRequest()
    model = ScriptedModel("hi")
    ask(client_of(model, first, second).prompt("x").tools(first, add, second))

    assert [c.definition.name for c in first.requests[0].callbacks] == ["add"]
    known = [c.definition.name for c in second.requests[0].callbacks]
    assert known == [*[c.definition.name for c in first.tool_callbacks(first.requests[0])], "add"]


@pytest.mark.feature("resolver-provider-returns-null")
@pytest.mark.parametrize(("offer", "names"), [(None, []), ([add, refund], ["add", "refund"])])
def test_a_provider_may_return_functions_or_nothing(ask: Ask, offer: Any, names: Any) -> None:
    """Functions are converted to tools."""

    class Provider:
        def tool_callbacks(self) -> Any:
            return offer

    model = ScriptedModel("hi")
    ask(client_of(model, Provider()).prompt("x"))

    assert offered(model.prompts[0]) == names
    assert [c.definition.name for c in tool_callbacks(Provider())] == names


@pytest.mark.feature("resolver-provider-returns-null")
@pytest.mark.parametrize("offer", [7, [7], ["add"]])
def test_a_provider_that_returns_no_tools_is_named(ask: Ask, offer: Any) -> None:
    """A wrong return value is an error with the provider's name, before anything is sent."""

    class Provider:
        def tool_callbacks(self) -> Any:
            return offer

    with pytest.raises(ToolDefinitionError, match=r"Provider.* must return an iterable of tool"):
        ask(client_of(ScriptedModel("never"), Provider()).prompt("x"))
