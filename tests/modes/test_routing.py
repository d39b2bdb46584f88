"""Another model for a call, a request or a client."""

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel

from chatclient import ChatClient, ChatModel, ChatOptions, Prompt, SystemMessage, tool
from chatclient.advisors.response_cache import InMemoryResponseStore, ResponseCacheAdvisor
from chatclient.chat.model import OutputMode
from chatclient.errors import UsageError
from chatclient.providers.anthropic.model import AnthropicChatModel, AnthropicChatOptions
from chatclient.providers.composite import ROUTE, Choose, RoutingChatModel
from chatclient.providers.openai.chat import OpenAIChatModel, OpenAIChatOptions
from chatclient.testing import Ask, ScriptedModel, call


class Film(BaseModel):
    title: str


class InWords(ScriptedModel):
    """Knows of no schemas, and remembers that it was closed."""

    closed = 0

    def output_mode(self, options: ChatOptions) -> OutputMode:
        return "instructions"

    def close(self) -> None:
        self.closed += 1


class At(ScriptedModel):
    """Answers with where it is."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self._address = address

    @property
    def address(self) -> str:
        return self._address


@tool
def look() -> str:
    """Look."""
    return "seen"


def by_context(cheap: ChatModel, strong: ChatModel) -> Choose:
    def choose(prompt: Prompt) -> ChatModel:
        return strong if prompt.options.tool_context.get("hard") else cheap

    return choose


def by_context_slowly(cheap: ChatModel, strong: ChatModel) -> Choose:
    async def choose(prompt: Prompt) -> ChatModel:
        await asyncio.sleep(0)
        return by_context(cheap, strong)(prompt)  # type: ignore[return-value]

    return choose


@pytest.mark.feature("observation-another-model-request-call")
@pytest.mark.parametrize("make", [by_context, by_context_slowly])
def test_a_function_chooses_the_model_of_each_call(ask: Ask, make: Any) -> None:
    """The model's options apply, its text is streamed, and the trail has its name."""
    cheap = ScriptedModel("cheap", options=ChatOptions(model="small"))
    strong = ScriptedModel(call("look"), "strong words", chunks=4, options=ChatOptions(model="big"))
    model = RoutingChatModel(make(cheap, strong), cheap, strong)
    client = ChatClient.builder(model).default_tools(look).build()
    result = ask(client.prompt("x").tool_context(hard=True))

    assert result.text == "strong words"
    assert result.response.trail is not None
    assert [round_.model for round_ in result.response.trail.rounds] == ["big", "big"]
    assert len([event for event in result.events if getattr(event, "text", "")]) in (0, 3)
    assert ask(client.prompt("x")).text == "cheap"
    assert model.name == "small | big"


class Alternating:
    """Chooses each model in turn, and the default route after that."""

    def __init__(self, *models: ChatModel) -> None:
        self.models = [*models]

    def __call__(self, prompt: Prompt) -> ChatModel | None:
        return self.models.pop(0) if self.models else None


def test_choice_is_kept_for_the_turn(ask: Ask) -> None:
    """The rounds of a tool loop go to one model, the next turn may go to another."""
    first = ScriptedModel("default", options=ChatOptions(model="first"))
    second = ScriptedModel(call("look"), "seen", options=ChatOptions(model="second"))
    model = RoutingChatModel(Alternating(second, first), first, second)
    client = ChatClient.builder(model).default_tools(look).build()

    result = ask(client.prompt("x"))
    assert result.text == "seen"
    assert result.response.chat_response.metadata.values[ROUTE] == "second"
    assert result.response.trail is not None
    assert [each.model for each in result.response.trail.rounds] == ["second", "second"]
    assert ask(client.prompt("x")).text == "default"


def test_choice_for_each_call(ask: Ask) -> None:
    first, second = ScriptedModel(call("look")), ScriptedModel("seen")
    model = RoutingChatModel(Alternating(first, second), second, first, keep="call")
    client = ChatClient.builder(model).default_tools(look).build()

    assert ask(client.prompt("x")).text == "seen"
    assert (len(first.prompts), len(second.prompts)) == (1, 1)


def test_choice_for_the_conversation(ask: Ask) -> None:
    first, second = ScriptedModel("a", "b"), ScriptedModel("c")
    model = RoutingChatModel(Alternating(first, second), second, first, keep="conversation")
    client = ChatClient.create(model)

    texts = [ask(client.prompt("x").conversation(id)).text for id in ("1", "2", "1")]
    assert texts == ["a", "c", "b"]


def test_default_route(ask: Ask) -> None:
    """The first model answers if nothing is chosen, also where a model is called directly."""
    first, second = ScriptedModel("one", "two"), ScriptedModel()
    model = RoutingChatModel(lambda prompt: None, first, second)

    assert ask(ChatClient.create(model).prompt("x")).text == "one"
    assert model.call("x").text == "two"
    with pytest.raises(UsageError, match="keep"):
        RoutingChatModel(lambda prompt: None, first, keep="day")  # type: ignore[arg-type]


def test_a_router_asks_for_values_as_all_its_models_can() -> None:
    """The output mode is one that all models support, and all are closed."""
    strong, cheap = ScriptedModel(), InWords('{"title": "Alien"}')
    model = RoutingChatModel(lambda prompt: cheap, strong, cheap)

    assert ChatClient.create(model).prompt("x").call().entity(Film, native=True) == Film(
        title="Alien"
    )
    assert cheap.prompts[0].options.output_schema is None
    with model:
        pass
    asyncio.run(model.aclose())
    assert cheap.closed == 2


def test_routers_are_distinguished_by_the_addresses_of_their_models(ask: Ask) -> None:
    """So that a response cache never gives the answer of another server's model of that name."""
    store = InMemoryResponseStore()
    for address in ("http://a", "http://b"):
        model = At(address)
        router = RoutingChatModel(by_context(model, model), model)
        builder = ChatClient.builder(router).default_advisors(ResponseCacheAdvisor(store))
        assert ask(builder.build().prompt("x")).text == address


def test_what_is_chosen_is_one_of_the_models(ask: Ask) -> None:
    """Another model is refused, because it would not be closed.

    Without models there is no choice.
    """
    other: Any = ScriptedModel()
    model = RoutingChatModel(lambda prompt: other, ScriptedModel())
    with pytest.raises(UsageError, match="none of the models to choose from"):
        ask(ChatClient.create(model).prompt("x"))
    with pytest.raises(UsageError, match="at least one"):
        RoutingChatModel(lambda prompt: other)
    with pytest.raises(UsageError, match="must be a ChatModel, not 'gpt'"):
        RoutingChatModel(lambda prompt: other, "gpt")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="choose must be a function"):
        RoutingChatModel(other)


@pytest.mark.feature("observation-another-model-request-call")
def test_a_request_may_have_another_model(ask: Ask) -> None:
    """Everything else is as it was, but for what the first model is called."""
    usual = ScriptedModel("usual", options=ChatOptions(model="a", temperature=0.1))
    other = ScriptedModel(call("look"), "other", options=ChatOptions(model="b", top_p=0.5))
    builder = ChatClient.builder(usual).default_system("Be kind.").default_tools(look)
    client = builder.default_options(model="a2", max_tokens=9).build()
    result = ask(client.prompt("x").model(other))

    assert result.text == "other"
    options = other.prompts[0].options
    assert (options.model, options.max_tokens) == ("b", 9)
    assert (options.top_p, options.temperature) == (0.5, None)
    assert isinstance(other.prompts[0].messages[0], SystemMessage)
    assert ask(client.prompt("x")).text == "usual"
    assert usual.prompts[0].options.model == "a2"


def test_options_of_the_other_models_provider_count(ask: Ask) -> None:
    """Also over options that were set in the form of the first one."""
    usual = ScriptedModel("never", options=OpenAIChatOptions())
    other = ScriptedModel("by name", "as an object", options=AnthropicChatOptions())
    client = ChatClient.builder(usual).default_options(temperature=0.1).build()
    request = client.prompt("x").model(other)
    ask(request.options(thinking=2000))  # type: ignore[call-arg]
    ask(request.options(AnthropicChatOptions(thinking=2000)))

    for prompt in other.prompts:
        assert isinstance(prompt.options, AnthropicChatOptions)
        assert (prompt.options.thinking, prompt.options.temperature) == (2000, 0.1)


def test_a_request_asks_for_values_as_its_own_model_can() -> None:
    """The client's would have taken a schema."""
    other = InWords('{"title": "Alien"}')
    request = ChatClient.create(ScriptedModel()).prompt("x").model(other)

    assert request.call().entity(Film, native=True) == Film(title="Alien")
    assert other.prompts[0].options.output_schema is None


def test_mutate_with_another_model() -> None:
    """The model or a name may be given; options that the new provider lacks are dropped."""
    client = ChatClient.builder(OpenAIChatModel(model="gpt-5-mini", api_key="k"))
    built = client.default_options(store=True, top_p=0.5).build()  # type: ignore[call-arg]
    changed = built.mutate().model(AnthropicChatModel(model="claude", api_key="k")).build()

    assert (built.model.name, changed.model.name) == ("gpt-5-mini", "claude")
    assert built.mutate().model("ollama:qwen3").build().model.name == "qwen3"
    with pytest.raises(UsageError, match=r"options\(model="):
        built.prompt("x").model("ollama:qwen3")  # type: ignore[arg-type]
