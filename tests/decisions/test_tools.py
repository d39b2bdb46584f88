"""Tools chosen by a decision model: in a tool search, or before the first model call."""

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from chatclient import (
    AssistantMessage,
    ChatClient,
    ChatClientRequest,
    ChatClientResponse,
    Message,
    Next,
    Prompt,
    UserMessage,
    tool,
)
from chatclient.advisors import (
    HIGHEST_PRECEDENCE,
    MessageChatMemoryAdvisor,
    ToolSearchToolCallingAdvisor,
)
from chatclient.advisors.tool_search.tool import SEARCH_TOOL
from chatclient.chat.options import ChatOptions
from chatclient.chat.parts import Media
from chatclient.chat.withheld_tool import allowed_names
from chatclient.decisions import (
    ChatDecisionModel,
    DecisionRefusal,
    DecisionToolIndex,
    NarrowingToolProvider,
)
from chatclient.errors import (
    ContentFilterError,
    DeadlineExceededError,
    OverloadedError,
    TemplateError,
    ToolDefinitionError,
    UsageError,
)
from chatclient.memory import InMemoryChatMemoryRepository, MessageWindowChatMemory
from chatclient.providers import FallbackChatModel
from chatclient.testing import Ask, ScriptedModel, call
from chatclient.tools import ToolCallback, ToolRequest, tool_callbacks
from chatclient.tools.search import ToolReference, ToolSearchRequest
from tests.support.decisions import ComputedDecisions, always


@tool(effect="read")
def weather() -> str:
    """Tell the weather."""
    return "sunny"


@tool(effect="read")
def news() -> str:
    """Return the latest headlines."""
    return "nothing new"


@tool(effect="read")
def trains() -> str:
    """Tell when trains leave."""
    return "at nine"


@tool(effect="read", always_visible=True)
def help_desk() -> str:
    """Call a person."""
    return "soon"


TOOLS = [weather, news, trains, help_desk]
REFERENCES = [ToolReference.of(each.definition) for each in tool_callbacks(*TOOLS)]


def in_text(text: str, name: str) -> float:
    """Return a high probability if the input contains the name of the tool."""
    return 0.9 - len(name) / 100 if name in text else 0.1


# --- the index ---


def searched(index: DecisionToolIndex, query: str, **settings: Any) -> tuple[str, ...]:
    index.index_tools("s", REFERENCES)
    return index.search(ToolSearchRequest("s", query, **settings)).tool_names


def test_an_index_asks_about_each_tool() -> None:
    """All questions are one request, and the most probable tool is first."""
    model = ComputedDecisions(in_text)
    index = DecisionToolIndex(model)
    index.index_tools("s", REFERENCES)
    response = asyncio.run(index.asearch(ToolSearchRequest("s", "trains or news")))

    assert response.tool_names == ("news", "trains")
    assert response.tool_references[0].relevance_score == pytest.approx(0.86)
    assert (response.search_type, response.total_matches) == ("decision", 2)
    [request] = model.requests
    assert request.text == "trains or news"
    assert "Return the latest headlines." in request.typed_questions["news"].text


def test_limits_of_an_index() -> None:
    model = always(0.7)

    assert len(searched(DecisionToolIndex(model), "x")) == 4
    assert len(searched(DecisionToolIndex(model, max_results=3), "x")) == 3
    assert len(searched(DecisionToolIndex(model), "x", max_results=2)) == 2
    assert searched(DecisionToolIndex(model, min_probability=0.71), "x") == ()
    assert searched(DecisionToolIndex(model), "x", exclude=("news", "trains")) == (
        *("help_desk", "weather"),
    )


def test_a_search_is_split_into_requests() -> None:
    model = ComputedDecisions(in_text)

    assert searched(DecisionToolIndex(model, tools_per_request=3), "help_desk") == ("help_desk",)
    assert [len(request.questions) for request in model.requests] == [3, 1]


def test_no_model_call_without_query_or_tools() -> None:
    model = always(1.0)
    index = DecisionToolIndex(model)

    assert searched(index, " ") == ()
    index.clear_index("s")
    assert index.search(ToolSearchRequest("s", "weather")).tool_names == ()
    assert model.requests == []


def test_a_question_of_your_own() -> None:
    model = always(1.0)
    searched(DecisionToolIndex(model, question="Is {name} of use?"), "x")

    assert model.requests[0].typed_questions["news"].text == "Is news of use?"


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"question": "Is it of use?"}, TemplateError),
        ({"max_results": 0}, UsageError),
        ({"tools_per_request": 0}, UsageError),
        ({"min_probability": 2}, UsageError),
        ({"model": ScriptedModel()}, UsageError),
    ],
)
def test_wrong_settings_of_an_index(settings: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        DecisionToolIndex(**{"model": always(1.0), **settings})


@pytest.mark.feature("decision-tool-index")
def test_a_tool_is_found_and_called(ask: Ask) -> None:
    model = ScriptedModel(call(SEARCH_TOOL, {"query": "trains"}), call("trains"), "At nine.")
    index = DecisionToolIndex(ComputedDecisions(in_text))
    builder = ChatClient.builder(model).default_tools(*TOOLS)
    client = builder.default_advisors(ToolSearchToolCallingAdvisor(index, threshold=0)).build()

    assert ask(client.prompt("When?")).text == "At nine."
    assert "trains" in offered(model.prompts[1])
    assert "news" not in offered(model.prompts[1])


def test_a_failed_search_is_an_error_result(ask: Ask) -> None:
    model = ScriptedModel(call(SEARCH_TOOL, {"query": "trains"}), "I cannot search.")
    index = DecisionToolIndex(always(OverloadedError("busy")))
    builder = ChatClient.builder(model).default_tools(*TOOLS)
    client = builder.default_advisors(ToolSearchToolCallingAdvisor(index, threshold=0)).build()
    asked = ask(client.prompt("When?"))

    assert asked.text == "I cannot search."
    assert isinstance(asked.executions[0].error, OverloadedError)


# --- narrowing ---


def offered(prompt: Prompt) -> list[str]:
    return [each.definition.name for each in prompt.options.tool_callbacks or ()]


def narrowed(
    ask: Ask, provider: NarrowingToolProvider, messages: str | Iterable[Message], *answers: Any
) -> list[list[str]]:
    """Return the tools that are offered in each round of a request."""
    model = ScriptedModel(*(answers or ("Done.",)))
    prompt = ChatClient.create(model).prompt
    ask((prompt(messages) if isinstance(messages, str) else prompt(list(messages))).tools(provider))
    return [offered(prompt) for prompt in model.prompts]


@pytest.mark.feature("decision-narrowing")
def test_tools_are_narrowed_before_the_first_call(ask: Ask) -> None:
    """Those always visible stay, and keep their place."""
    model = ComputedDecisions(in_text)

    assert narrowed(ask, NarrowingToolProvider(TOOLS, model), "The trains, please") == [
        ["trains", "help_desk"]
    ]
    [request] = model.requests
    assert list(request.questions) == ["weather", "news", "trains"]
    assert request.input == {
        "task": "The trains, please",
        "messages": [{"role": "user", "text": "The trains, please"}],
    }


class Withholding(ScriptedModel):
    """Can restrict calls to some of the tools that it is sent."""

    def can_withhold_tools(self, options: ChatOptions) -> bool:
        return True


def test_tools_are_withheld_where_the_provider_can(ask: Ask) -> None:
    """All tools are sent in each turn; one that is withheld is unknown if it is called."""
    chat = Withholding(call("weather"), "At nine.", "Sunny.")
    provider = NarrowingToolProvider(TOOLS, ComputedDecisions(in_text))
    client = ChatClient.builder(chat).default_tools(provider).build()
    first = ask(client.prompt("The trains, please"))
    ask(client.prompt("The weather, please"))

    assert [offered(prompt) for prompt in chat.prompts] == [offered(chat.prompts[0])] * 3
    assert set(offered(chat.prompts[0])) == {"weather", "news", "trains", "help_desk"}
    allowed = [allowed_names(prompt.options) for prompt in chat.prompts]
    called = ["weather", "trains", "help_desk"]  # a tool that was called is always offered
    assert allowed == [["trains", "help_desk"], called, ["weather", "help_desk"]]
    assert "no tool 'weather'" in first.executions[0].response.data


def test_a_chosen_tool_that_is_withheld(ask: Ask) -> None:
    """It is an error, as with a provider that cannot withhold tools."""
    provider = NarrowingToolProvider(TOOLS, ComputedDecisions(in_text))
    client = ChatClient.builder(Withholding("x")).default_tools(provider).build()

    with pytest.raises(UsageError, match="not 'weather'"):
        ask(client.prompt("The trains, please").options(tool_choice="weather"))


@pytest.mark.parametrize(("second", "tools"), [(Withholding, 4), (ScriptedModel, 2)])
def test_all_models_of_a_fallback_have_to_withhold(ask: Ask, second: Any, tools: int) -> None:
    """Otherwise, the list of tools is narrowed for all of them."""
    first = Withholding("x")
    provider = NarrowingToolProvider(TOOLS, ComputedDecisions(in_text))
    model = FallbackChatModel(first, second("y"))
    ask(ChatClient.builder(model).default_tools(provider).build().prompt("The trains, please"))

    assert len(offered(first.prompts[0])) == tools


def test_the_model_is_called_once_per_turn(ask: Ask) -> None:
    """All rounds of a turn offer the same tools, also after a text of the model."""
    model = ComputedDecisions(in_text)
    called = AssistantMessage("Let me see.", tool_calls=[call("trains")])
    rounds = narrowed(ask, NarrowingToolProvider(TOOLS, model), "trains, news", called, "At nine.")

    assert rounds == [["news", "trains", "help_desk"]] * 2
    assert len(model.requests) == 1


def test_names_that_are_always_included(ask: Ask) -> None:
    provider = NarrowingToolProvider(TOOLS, ComputedDecisions(in_text), always_include="weather")

    assert narrowed(ask, provider, "The trains, please") == [["weather", "trains", "help_desk"]]


def test_the_most_probable_tools(ask: Ask) -> None:
    provider = NarrowingToolProvider(TOOLS, ComputedDecisions(in_text), max_results=1)

    assert narrowed(ask, provider, "trains, news, weather") == [["news", "help_desk"]]


def test_the_latest_messages_with_text(ask: Ask) -> None:
    """Older messages, and those of other roles, are left out."""
    model = ComputedDecisions(in_text)
    history = [
        UserMessage("The news?"),
        AssistantMessage("There are none."),
        UserMessage("And the trains?"),
        AssistantMessage("At nine."),
        UserMessage("And tomorrow?"),
    ]

    assert narrowed(ask, NarrowingToolProvider(TOOLS, model), history) == [["trains", "help_desk"]]
    assert narrowed(ask, NarrowingToolProvider(TOOLS, model, max_messages=1), history) == [
        ["help_desk"]
    ]
    assert [m["text"] for m in model.requests[0].input["messages"]] == [  # type: ignore[index]
        *("And the trains?", "At nine.", "And tomorrow?")
    ]


def test_with_a_memory(ask: Ask) -> None:
    """Remembered messages count, and tools that were called stay, as some providers need them."""
    model = ComputedDecisions(in_text)
    chat = ScriptedModel(call("weather"), "Sunny.", "Nothing new.")
    memory = MessageWindowChatMemory(InMemoryChatMemoryRepository())
    builder = ChatClient.builder(chat).default_tools(NarrowingToolProvider(TOOLS, model))
    client = builder.default_advisors(MessageChatMemoryAdvisor(memory)).build()
    ask(client.prompt("The weather, or the news?").conversation("c"))
    ask(client.prompt("What else?").conversation("c"))

    assert offered(chat.prompts[2]) == ["weather", "news", "help_desk"]
    assert len(model.requests) == 3


class Rewrite:
    """An advisor outside of the tool loop that replaces what the user wrote."""

    order = HIGHEST_PRECEDENCE

    async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        prompt = request.prompt.augment_user_message("Answer briefly.")
        return await call_next(request.mutate(prompt=prompt))


def test_the_words_of_the_user(ask: Ask) -> None:
    """They are part of the input even if an advisor rewrites them."""
    model = ComputedDecisions(in_text)
    chat = ScriptedModel("Done.")

    client = ChatClient.builder(chat).default_advisors(Rewrite()).build()
    ask(client.prompt("The trains, please").tools(NarrowingToolProvider(TOOLS, model)))

    assert offered(chat.prompts[0]) == ["trains", "help_desk"]
    assert model.requests[-1].input == {
        "task": "The trains, please",
        "messages": [{"role": "user", "text": "Answer briefly."}],
    }


def test_everything_is_offered_without_text(ask: Ask) -> None:
    model = always(0.0)
    picture = UserMessage([Media("image/png", b"\x89PNG")])

    assert narrowed(ask, NarrowingToolProvider(TOOLS, model), [picture]) == [
        ["weather", "news", "trains", "help_desk"]
    ]
    assert narrowed(ask, NarrowingToolProvider([help_desk], model), "Hi") == [["help_desk"]]
    assert model.requests == []


@pytest.mark.feature("decision-narrowing")
@pytest.mark.parametrize(
    ("result", "error"),
    [(OverloadedError("busy"), OverloadedError), (DecisionRefusal("policy"), ContentFilterError)],
)
def test_if_the_model_fails(
    ask: Ask, result: Any, error: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    """All tools are offered, none, or the request fails."""
    model = always(result)
    everything = narrowed(ask, NarrowingToolProvider(TOOLS, model), "Hi")
    nothing = narrowed(ask, NarrowingToolProvider(TOOLS, model, on_failure="none"), "Hi")

    assert everything == [["weather", "news", "trains", "help_desk"]]
    assert nothing == [["help_desk"]]
    warnings = [r.getMessage() for r in caplog.records if "tools not narrowed" in r.getMessage()]
    assert ["offered='all'" in warnings[0], "offered='none'" in warnings[1]] == [True, True]
    with pytest.raises(error):
        narrowed(ask, NarrowingToolProvider(TOOLS, model, on_failure="fail"), "Hi")


class Counted:
    """A provider that counts its calls."""

    def __init__(self, *, dynamic: bool) -> None:
        self.dynamic = dynamic
        self.calls = 0

    def tool_callbacks(self) -> list[ToolCallback]:
        self.calls += 1
        return tool_callbacks(*TOOLS)

    def hidden_tools(self) -> list[str]:
        return ["help_desk"]


@pytest.mark.parametrize(("dynamic", "calls"), [(False, 1), (True, 2)])
def test_a_wrapped_provider_is_called_as_usual(ask: Ask, dynamic: bool, calls: int) -> None:
    """Again in each round only if it is dynamic; what it hides stays hidden."""
    counted = Counted(dynamic=dynamic)
    provider = NarrowingToolProvider(counted, ComputedDecisions(in_text))

    assert narrowed(ask, provider, "trains", call("trains"), "At nine.") == [["trains"]] * 2
    assert counted.calls == calls


def test_a_decision_is_in_the_trail(ask: Ask) -> None:
    provider = NarrowingToolProvider(TOOLS, ComputedDecisions(in_text))
    client = ChatClient.create(ScriptedModel("Done."))
    trail = ask(client.prompt("trains").tools(provider)).response.trail
    assert trail is not None
    decisions = [step.operation.name for step in trail.steps if step.operation.kind == "decision"]

    assert decisions == ["decide judge-1"]


def test_the_deadline_applies(ask: Ask) -> None:
    """A failure of the model would offer all tools; a passed deadline ends the request."""
    slow = ChatDecisionModel(ScriptedModel("{}", delay=5.0))
    client = ChatClient.create(ScriptedModel("Done."))
    request = client.prompt("trains").tools(NarrowingToolProvider(TOOLS, slow)).deadline(0.1)

    with pytest.raises(DeadlineExceededError):
        ask(request)


def test_a_failed_decision_is_in_the_trail(ask: Ask) -> None:
    provider = NarrowingToolProvider(TOOLS, always(OverloadedError("busy")))
    client = ChatClient.create(ScriptedModel("Done."))
    trail = ask(client.prompt("trains").tools(provider)).response.trail

    line = "decision: decide judge-1: weather, news, trains failed: OverloadedError('busy')"
    assert line in str(trail)


def test_tools_outside_of_a_client() -> None:
    provider = NarrowingToolProvider(TOOLS, ComputedDecisions(in_text))
    callbacks = provider.tool_callbacks(ToolRequest((UserMessage("news"),)))

    assert [each.definition.name for each in callbacks] == ["news", "help_desk"]


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"tools": "weather"}, ToolDefinitionError),
        ({"on_failure": "some"}, UsageError),
        ({"max_messages": 0}, UsageError),
        ({"max_results": 0}, UsageError),
        ({"model": ScriptedModel()}, UsageError),
    ],
)
def test_wrong_settings_of_a_provider(settings: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        NarrowingToolProvider(**{"tools": TOOLS, "model": always(1.0), **settings})
