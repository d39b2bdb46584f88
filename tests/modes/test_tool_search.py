"""Tool search in the loop: which tools are offered, found and kept."""

import asyncio
import gc
import itertools
import json
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from chatclient import (
    AssistantMessage,
    ChatClient,
    ChatClientRequest,
    ChatClientResponse,
    Message,
    Next,
    Prompt,
    SystemMessage,
    ToolCall,
    ToolResponseMessage,
    UserMessage,
    tool,
)
from chatclient.advisors.memory.advisors import MessageChatMemoryAdvisor
from chatclient.advisors.tool_loop.advisor import Steering
from chatclient.advisors.tool_search.advisor import (
    SYSTEM_MESSAGE_SUFFIX,
    ToolSearchToolCallingAdvisor,
)
from chatclient.advisors.tool_search.session import FOUND_TOOLS, SessionRegistry
from chatclient.chain.chain import MEMORY_ORDER, TOOL_CALLING_ORDER
from chatclient.chain.params import TOOL_SEARCH_ROLES
from chatclient.chat.messages import ToolResponse
from chatclient.chat.serialization import message_from_dict, message_to_dict
from chatclient.chat.tool import ToolCallback, ToolContext
from chatclient.errors import DuplicateToolError, ToolUsageError, UsageError
from chatclient.memory import MessageWindowChatMemory
from chatclient.runtime.runtime import Runtime
from chatclient.testing import Answer, Ask, ScriptedModel, call
from chatclient.tools import (
    DataToolCallback,
    StaticToolCallbackResolver,
    ToolApproval,
    ToolCallingManager,
    ToolDefinition,
    ToolRequest,
    ToolResult,
)
from chatclient.tools.search import (
    HybridToolIndex,
    KeywordToolIndex,
    ToolReference,
    ToolSearchRequest,
    ToolSearchResponse,
)
from chatclient.tools.search.index import (
    AlwaysEvictStrategy,
    LruEvictionStrategy,
    NeverEvictStrategy,
)
from tests.modes.test_tool_calling import assert_paired, results

SEARCH = "toolSearchTool"
WORDS = ["weather", "mail", "calendar", "invoice", "music"]
WORDS += ["travel", "photo", "stock", "recipe", "sport"]


def made(name: str, description: str) -> ToolCallback:
    definition = ToolDefinition(name, description, {"type": "object", "properties": {}})
    return DataToolCallback(definition, lambda made_call, context: f"ran {made_call.name}")


CATALOG = [made(f"get_{word}", f"Gives the {word} one asks for.") for word in WORDS]


def search(query: str, id: str | None = None, **more: Any) -> ToolCall:
    return call(SEARCH, json.dumps({"query": query, **more}), id=id)


def client_of(
    model: ScriptedModel, advisor: ToolSearchToolCallingAdvisor | None = None, *more: Any
) -> ChatClient:
    builder = ChatClient.builder(model).default_tools(CATALOG)
    return builder.default_advisors(advisor or ToolSearchToolCallingAdvisor(), *more).build()


def turns(count: int, *answers: Answer) -> list[Answer]:
    """Return a script for so many turns, each with the same answers."""
    return [*answers] * count


def offered(prompt: Prompt) -> list[str]:
    return [callback.definition.name for callback in prompt.options.tool_callbacks or ()]


def found(prompt: Prompt) -> list[str]:
    """Return the names that the last search has found."""
    names: list[str] = json.loads(results(prompt)[0])["tools"]
    return names


class Recording(KeywordToolIndex):
    """An index that records its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[tuple[str, str]] = []
        self.requests: list[ToolSearchRequest] = []
        self.references: list[Sequence[ToolReference]] = []

    async def put(
        self, session_id: str, references: Sequence[ToolReference], runtime: Runtime
    ) -> None:
        self.log.append(("put", session_id))
        self.references.append(references)
        await super().put(session_id, references, runtime)

    async def find(self, request: ToolSearchRequest, runtime: Runtime) -> Any:
        self.requests.append(request)
        return await super().find(request, runtime)

    async def drop(self, session_id: str, runtime: Runtime) -> None:
        self.log.append(("drop", session_id))
        await super().drop(session_id, runtime)


# --- searching and finding ---


@pytest.mark.feature("search-tool-search-calling-advisor")
def test_the_model_finds_a_tool_and_calls_it(ask: Ask) -> None:
    """The model is offered only the search at first, and then the tools that it found as well."""
    model = ScriptedModel(search("weather"), call("get_weather"), "sunny")
    result = ask(client_of(model).prompt("How is the weather?"))

    assert result.text == "sunny"
    assert [offered(p) for p in model.prompts] == [
        [SEARCH],
        [SEARCH, "get_weather"],
        [SEARCH, "get_weather"],
    ]
    assert [e.tool_call.name for e in result.executions] == [SEARCH, "get_weather"]
    assert results(model.prompts[2]) == ["ran get_weather"]
    assert_paired(model.prompts[2].messages)


@pytest.mark.feature("search-tool-search")
def test_the_schema_of_the_search() -> None:
    """The schema of the search has a query and, optionally, a number and a category."""
    model = ScriptedModel("hi")
    client_of(model).prompt("x").call().content()
    [callback] = list(model.prompts[0].options.tool_callbacks or ())
    schema = callback.definition.input_schema

    assert list(schema["properties"]) == ["query", "maxResults", "categoryFilter"]
    assert schema["required"] == ["query"]
    assert callback.metadata.effect == "read"


@pytest.mark.feature("search-reference-tool-name-accumulation", "search-order-tools-random")
def test_found_tools_are_appended(ask: Ask) -> None:
    """Found tools are appended, so that the provider's cache of the tools stays valid."""
    model = ScriptedModel(
        search("sport travel"),
        search("mail"),
        [search("travel stock", "1"), search("recipe", "2")],
        "ok",
    )
    ask(client_of(model).prompt("x"))
    lists = [offered(p) for p in model.prompts]

    assert lists[1] == [SEARCH, "get_sport", "get_travel"]
    assert lists[3] == [*lists[1], "get_mail", "get_stock", "get_recipe"]
    for earlier, later in itertools.pairwise(lists):
        assert later[: len(earlier)] == earlier


@pytest.mark.parametrize("order", [MEMORY_ORDER, TOOL_CALLING_ORDER + 100])
def test_found_tools_are_offered_after_user_input(ask: Ask, order: int) -> None:
    """The user's message follows the result of the search."""
    steering = Steering()
    steering.send("Quickly, please.")
    model = ScriptedModel(search("weather"), call("get_weather"), "Sunny.")
    memory = MessageChatMemoryAdvisor(MessageWindowChatMemory(), order=order)
    ask(client_of(model, None, memory).prompt("x").conversation("c").advisors(steering))

    assert model.prompts[1].messages[-1].text == "Quickly, please."
    assert offered(model.prompts[1]) == [SEARCH, "get_weather"]
    assert offered(model.prompts[2]) == [SEARCH, "get_weather"]


@pytest.mark.feature("search-order-tools-random")
def test_a_search_without_new_tools(ask: Ask) -> None:
    """The tools stay the same object; the result lists the found ones nevertheless."""
    model = ScriptedModel(search("mail"), search("mail please"), "ok")
    ask(client_of(model).prompt("x"))

    assert found(model.prompts[2]) == ["get_mail"]
    assert model.prompts[2].options.tool_callbacks is model.prompts[1].options.tool_callbacks


@pytest.mark.feature("search-reference-tool-name-accumulation")
def test_searches_without_accumulation(ask: Ask) -> None:
    """All searches of the last response count; one without results removes nothing."""
    advisor = ToolSearchToolCallingAdvisor(reference_tool_name_accumulation=False)
    parallel = [search("travel", "1"), search("stock", "2"), search("sport", "3")]
    model = ScriptedModel(search("mail"), parallel, search("nonsense"), search("music"), "ok", "ok")
    client = client_of(model, advisor)
    ask(client.prompt("x").conversation("c"))

    assert [offered(p)[1:] for p in model.prompts] == [
        [],
        ["get_mail"],
        ["get_travel", "get_stock", "get_sport"],
        ["get_travel", "get_stock", "get_sport"],
        ["get_music"],
    ]
    history = [UserMessage("x"), ToolResponseMessage([ToolResponse("1", SEARCH, '["get_mail"]')])]
    ask(client.prompt([*history, UserMessage("y")]).conversation("c"))
    assert offered(model.prompts[-1]) == [SEARCH, "get_music"]


# --- what the model asks of the search ---


@pytest.mark.feature("search-max-results-model-wins")
@pytest.mark.parametrize(
    ("wanted", "max_results", "asked"),
    [
        (None, 5, 5),
        (None, 3, 3),
        (None, None, None),
        (2, 5, 2),
        (10, 5, 10),
        (1000, 5, 10),
        (1000, 25, 25),
        (0, 5, 5),
        (-3, 5, 5),
        ("4", 5, 4),
    ],
)
def test_the_number_of_results_is_kept_within_reason(
    wanted: Any, max_results: int | None, asked: int | None
) -> None:
    """The model's limit overrides the application's, up to ten; a limit below one is ignored."""
    index = Recording()
    advisor = ToolSearchToolCallingAdvisor(index, max_results=max_results)
    more = {} if wanted is None else {"maxResults": wanted}
    model = ScriptedModel(search("gives", **more), "ok")
    client_of(model, advisor).prompt("x").call().content()

    assert [request.max_results for request in index.requests] == [asked]
    assert len(found(model.prompts[1])) == (asked or 10) if asked != 25 else 10


def test_nothing_found_is_no_failure(ask: Ask) -> None:
    """The model receives a result without tools, and the turn continues."""
    model = ScriptedModel(search("zebra"), "I cannot.")
    result = ask(client_of(model).prompt("x"))

    assert "No tool matches" in results(model.prompts[1])[0]
    assert not result.executions[0].is_error
    assert offered(model.prompts[1]) == [SEARCH]
    assert FOUND_TOOLS not in result.response.chat_response.generations[0].output.metadata


def test_a_blank_query_searches_nothing(ask: Ask) -> None:
    """The index is not asked."""
    index = Recording()
    model = ScriptedModel(search("  "), "ok")
    ask(client_of(model, ToolSearchToolCallingAdvisor(index)).prompt("x"))

    assert "blank" in results(model.prompts[1])[0]
    assert index.log == []


@pytest.mark.feature("search-error-text-search-result")
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("nothing", "not valid JSON"),
        ("{}", "query: missing"),
        ('{"query": [5]}', "query"),
        ('{"q": "mail"}', "query: missing"),
        ('{"query": "mail", "maxResults": "many"}', "maxResults"),
        ("[1]", "JSON object"),
    ],
)
def test_garbage_arguments_are_an_error_result(ask: Ask, arguments: str, told: str) -> None:
    """The model receives an error result, and the next search works."""
    model = ScriptedModel(call(SEARCH, arguments), search("mail"), "ok")
    result = ask(client_of(model).prompt("x"))

    assert told in result.executions[0].response.data
    assert result.executions[0].is_error
    assert [offered(p) for p in model.prompts[1:]] == [[SEARCH], [SEARCH, "get_mail"]]


@pytest.mark.feature("search-error-text-search-result")
def test_an_index_that_fails_does_not_end_the_turn(ask: Ask) -> None:
    """The model receives an error result, as from any tool."""

    class Broken(KeywordToolIndex):
        async def find(self, request: ToolSearchRequest, runtime: Runtime) -> Any:
            raise ValueError('["get_mail"]')

    model = ScriptedModel(search("mail"), "ok")
    result = ask(client_of(model, ToolSearchToolCallingAdvisor(Broken())).prompt("x"))

    assert result.executions[0].is_error
    assert offered(model.prompts[1]) == [SEARCH]


@pytest.mark.parametrize("part", [False, True], ids=["alone", "in a hybrid"])
@pytest.mark.parametrize("plain", [False, True], ids=["returns names", "is a plain method"])
def test_an_index_that_returns_no_response(ask: Ask, plain: bool, part: bool) -> None:
    """The error is raised to the application, because the model cannot fix it."""

    class Names(KeywordToolIndex):
        async def find(self, request: ToolSearchRequest, runtime: Runtime) -> Any:
            return ["get_mail"]

    class Plain(KeywordToolIndex):
        def find(self, request: ToolSearchRequest, runtime: Runtime) -> Any:
            return ToolSearchResponse()

    own = Plain() if plain else Names()
    index = HybridToolIndex(KeywordToolIndex(), own) if part else own
    client = client_of(ScriptedModel(search("mail")), ToolSearchToolCallingAdvisor(index))

    said = r"find\(\) of (Plain|Names) must be `async def` and return a ToolSearchResponse, not"
    with pytest.raises(ToolUsageError, match=said):
        ask(client.prompt("x"))


def test_a_tool_that_an_index_names_twice_is_found_once(ask: Ask) -> None:
    """Duplicates in the response of an index are removed."""

    class Twice(KeywordToolIndex):
        async def find(self, request: ToolSearchRequest, runtime: Runtime) -> ToolSearchResponse:
            return ToolSearchResponse((ToolReference("get_mail"), ToolReference("get_mail")), 2)

    model = ScriptedModel(search("mail"), "ok")
    ask(client_of(model, ToolSearchToolCallingAdvisor(Twice())).prompt("x"))

    assert found(model.prompts[1]) == ["get_mail"]


@pytest.mark.feature("search-error-text-search-result")
@pytest.mark.parametrize(
    ("data", "names"),
    [
        ("Tools found: get_mail", []),
        ('["get_mail", 7, "get_zebra"]', ["get_mail"]),
        ('{"tools": "get_mail"}', []),
        ('{"names": ["get_mail"]}', []),
        ("null", []),
        ("", []),
    ],
)
def test_a_rewritten_result_finds_what_can_be_read_in_it(
    ask: Ask, data: str, names: list[str]
) -> None:
    """Tool names are read from the result, also where an interceptor has replaced it."""

    async def rewrite(invocation: Any, call_next: Any) -> Any:
        return ToolResult(data)

    manager = ToolCallingManager(interceptors=[rewrite])
    model = ScriptedModel(search("mail"), "ok")
    ask(client_of(model, ToolSearchToolCallingAdvisor(manager=manager)).prompt("x"))

    assert offered(model.prompts[1]) == [SEARCH, *names]


def by_category(callback: ToolCallback) -> ToolReference:
    name = callback.definition.name
    office = name in ("get_mail", "get_calendar", "get_invoice")
    return ToolReference.of(
        callback.definition,
        categories=["Office"] if office else ["Leisure"],
        roles=["accountant", "boss"] if name == "get_invoice" else [],
    )


@pytest.mark.feature("search-tool-search")
def test_a_category_narrows_the_search(ask: Ask) -> None:
    """The description of the search lists the categories, and the filter is applied."""
    model = ScriptedModel(search("gives", categoryFilter="office"), "ok")
    ask(client_of(model, ToolSearchToolCallingAdvisor(describe=by_category)).prompt("x"))

    assert found(model.prompts[1]) == ["get_calendar", "get_mail"]
    description = next(iter(model.prompts[0].options.tool_callbacks or ())).definition.description
    assert "Categories: Leisure, Office." in description


def test_a_category_that_the_model_made_up_hides_nothing(ask: Ask) -> None:
    """An unknown category is ignored, and the result mentions it."""
    model = ScriptedModel(
        search("mail", categoryFilter="e-mail"), search("x", categoryFilter="y"), "ok"
    )
    ask(client_of(model).prompt("x"))

    assert found(model.prompts[1]) == ["get_mail"]
    assert "other categories" in results(model.prompts[1])[0]
    assert "No tool matches" in results(model.prompts[2])[0]


@pytest.mark.parametrize("roles", ["boss", ["clerk", "boss"]])
def test_tools_for_a_role_are_found_in_that_role_only(ask: Ask, roles: Any) -> None:
    """For other roles the tools do not exist, also where the model calls them by name."""
    script: list[Answer] = [search("invoice"), call("get_invoice"), "ok"]
    advisor = ToolSearchToolCallingAdvisor(describe=by_category, always_visible="get_invoice")
    model = ScriptedModel(*script, *script)
    client = client_of(model, advisor)
    clerk = ask(client.prompt("x").advisor_params({TOOL_SEARCH_ROLES: "clerk"}))
    boss = ask(client.prompt("x").advisor_params({TOOL_SEARCH_ROLES: roles}))

    assert "no tool 'get_invoice'" in clerk.executions[1].response.data
    assert [offered(p) for p in model.prompts[:3]] == [[SEARCH]] * 3
    assert boss.executions[1].response.data == "ran get_invoice"
    assert [offered(p) for p in model.prompts[3:]] == [[SEARCH, "get_invoice"]] * 3


def for_the_boss(callback: ToolCallback) -> ToolReference:
    name = callback.definition.name
    kept = name in ("get_mail", "get_invoice", "get_stock")
    return ToolReference.of(
        callback.definition, categories=["Safe"] if kept else [], roles=["boss"] if kept else []
    )


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("count", [5, 10])
def test_roles_hold_where_all_tools_are_sent(ask: Ask, count: int, dynamic: bool) -> None:
    """Roles also apply to small catalogs and to tools of providers, in every round."""

    class Office:
        def __init__(self) -> None:
            self.dynamic = dynamic

        def tool_callbacks(self) -> list[ToolCallback]:
            return CATALOG[:count]

    clerk_may = [
        f"get_{word}" for word in WORDS[:count] if word not in ("mail", "invoice", "stock")
    ]
    model = ScriptedModel(call("get_mail"), "ok", call("get_mail"), "ok")
    advisor = ToolSearchToolCallingAdvisor(describe=for_the_boss)
    builder = ChatClient.builder(model).default_advisors(advisor)
    client = builder.default_tools(Office()).build()
    clerk = ask(client.prompt("x"))
    boss = ask(client.prompt("x").advisor_params({TOOL_SEARCH_ROLES: "boss"}))

    assert [offered(prompt) for prompt in model.prompts[:2]] == [clerk_may] * 2
    assert "no tool 'get_mail'" in clerk.executions[0].response.data
    assert boss.executions[0].response.data == "ran get_mail"


@pytest.mark.parametrize("way", ["tool_calling", "option"])
@pytest.mark.parametrize("count", [5, 10])
def test_roles_hold_where_calls_are_handed_back(ask: Ask, count: int, way: str) -> None:
    """Roles also apply where the caller runs the tools."""
    model = ScriptedModel(call("get_stock"), call("get_stock"))
    advisor = ToolSearchToolCallingAdvisor(describe=for_the_boss)
    builder = ChatClient.builder(model).default_advisors(advisor)
    request = builder.default_tools(CATALOG[:count]).build().prompt("x")
    if way == "tool_calling":
        request = request.tool_calling(False)
    else:
        request = request.options(internal_tool_execution_enabled=False)
    handed = ask(request)
    ask(request.advisor_params({TOOL_SEARCH_ROLES: "boss"}))

    assert handed.response.chat_response.has_tool_calls()
    assert not {"get_mail", "get_invoice", "get_stock"} & {*offered(model.prompts[0])}
    assert len(offered(model.prompts[1])) == count


def test_categories_of_forbidden_tools_are_hidden(ask: Ask) -> None:
    """A search in them would find nothing."""
    model = ScriptedModel("ok", "ok")
    client = client_of(model, ToolSearchToolCallingAdvisor(describe=for_the_boss, threshold=1))
    ask(client.prompt("x"))
    ask(client.prompt("x").advisor_params({TOOL_SEARCH_ROLES: "boss"}))

    clerks, bosss = ([*(prompt.options.tool_callbacks or ())] for prompt in model.prompts)
    assert "Categories" not in clerks[0].definition.description
    assert "Categories: Safe." in bosss[0].definition.description


# --- what is sent whole, and what always ---


@pytest.mark.feature("search-tool-sent-though")
@pytest.mark.parametrize(("count", "whole"), [(7, True), (8, False)])
def test_a_small_catalog_is_sent_completely(ask: Ask, count: int, whole: bool) -> None:
    """There is neither a search tool nor a system text about it."""
    model = ScriptedModel("ok")
    client = ChatClient.builder(model).default_advisors(ToolSearchToolCallingAdvisor()).build()
    ask(client.prompt("x").tools(CATALOG[:count]))

    names = [f"get_{word}" for word in WORDS[:count]]
    assert offered(model.prompts[0]) == (names if whole else [SEARCH])
    assert any(isinstance(m, SystemMessage) for m in model.prompts[0].messages) != whole


@pytest.mark.feature("search-tool-sent-though")
def test_the_threshold_can_be_moved(ask: Ask) -> None:
    """Only searchable tools count for the threshold; without any there is no search."""
    model = ScriptedModel("ok", "ok", "ok", "ok")
    for threshold, always in [(0, ()), (3, ["get_mail"]), (0, ["get_mail", "get_weather"])]:
        advisor = ToolSearchToolCallingAdvisor(threshold=threshold, always_visible=always)
        client = ChatClient.builder(model).default_advisors(advisor).build()
        ask(client.prompt("x").tools(CATALOG[:2]))
    ask(client.prompt("x"))

    both = ["get_weather", "get_mail"]
    assert [offered(p) for p in model.prompts] == [[SEARCH], both, both, []]


@pytest.mark.feature("search-behavior-always-visible", "mcp-always-visible-tool-names")
def test_some_tools_are_always_visible(ask: Ask) -> None:
    """They come in the application's order, before the found ones, and once."""
    advisor = ToolSearchToolCallingAdvisor(always_visible=["get_music", "get_mail", "get_zebra"])
    model = ScriptedModel(search("music weather"), "ok")
    ask(client_of(model, advisor).prompt("x"))

    assert offered(model.prompts[0]) == [SEARCH, "get_mail", "get_music"]
    assert offered(model.prompts[1]) == [SEARCH, "get_mail", "get_music", "get_weather"]


@pytest.mark.feature("search-tool-called-like-search")
def test_a_tool_like_the_search_is_refused(ask: Ask) -> None:
    """A tool with the name of the search is a duplicate; nothing is sent."""
    model = ScriptedModel("never")
    with pytest.raises(DuplicateToolError, match="rename it") as caught:
        ask(client_of(model).prompt("x").tools(made(SEARCH, "Mine."), keep_defaults=True))

    assert list(caught.value.tool_names) == [SEARCH]
    assert model.prompts == []


class Duck:
    """A class with public methods like those of an index, but not those of the protocol."""

    def index_tools(self, session_id: str, references: Any) -> None: ...

    def search(self, request: ToolSearchRequest) -> Any: ...

    def clear_index(self, session_id: str) -> None: ...


@pytest.mark.feature("search-tool-search-calling-advisor")
@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"max_results": 0}, "max_results must be at least 1"),
        ({"max_results": "5"}, "max_results must be a number"),
        ({"order": 2**31}, "order"),
        ({"threshold": "all"}, "threshold must be a number"),
        ({"tool_index": "lucene"}, "must be a ToolIndex, .* subclass with put, find and drop"),
        ({"tool_index": Duck()}, "must be a ToolIndex, .* subclass with put, find and drop"),
        ({"tool_index": KeywordToolIndex}, "make one"),
        ({"eviction_strategy": "lru"}, r"an object with a method on_access\(\)"),
        ({"eviction_strategy": NeverEvictStrategy}, "make one"),
        ({"system_message_suffix": 5}, "an empty text is none"),
        ({"session_id_key_name": None}, "session_id_key_name must be a str"),
        ({"describe": "tickets"}, "describe must be a function"),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], told: str) -> None:
    """Invalid settings are refused when the advisor is created."""
    with pytest.raises(UsageError, match=told):
        ToolSearchToolCallingAdvisor(**settings)


# --- the system text ---


@pytest.mark.feature("search-system-message-suffix-appended")
def test_the_system_text_describes_the_search(ask: Ask) -> None:
    """A note about the search is appended to the system text, once."""
    model = ScriptedModel("ok", "ok", "ok", "ok")
    client = client_of(model)
    ask(client.prompt("x").system("Be brief."))
    ask(client.prompt(model.prompts[0].messages))
    ask(client.prompt("x"))
    silent = client_of(model, ToolSearchToolCallingAdvisor(system_message_suffix=" "))
    ask(silent.prompt("x"))

    texts = [[m.text for m in p.messages if isinstance(m, SystemMessage)] for p in model.prompts]
    both = f"Be brief.\n\n{SYSTEM_MESSAGE_SUFFIX}"
    assert texts == [[both], [both], [SYSTEM_MESSAGE_SUFFIX], []]


# --- tools called without having been found ---


@pytest.mark.feature("search-tool-called-without-having")
def test_a_tool_that_was_never_found_is_run_all_the_same(ask: Ask) -> None:
    """A model that guesses right need not search; from then on the tool is visible."""
    model = ScriptedModel(call("get_mail"), "ok")
    result = ask(client_of(model).prompt("x"))

    assert results(model.prompts[1]) == ["ran get_mail"]
    assert not result.executions[0].is_error
    assert offered(model.prompts[1]) == [SEARCH, "get_mail"]


@pytest.mark.feature("search-tool-called-without-having")
def test_running_only_what_was_found_can_be_demanded(ask: Ask) -> None:
    """With `run_undiscovered=False`, a call of a hidden tool fails and makes the tool visible."""
    advisor = ToolSearchToolCallingAdvisor(run_undiscovered=False)
    model = ScriptedModel(call("get_mail"), call("get_mail", id="again"), "ok")
    result = ask(client_of(model, advisor).prompt("x"))

    assert [e.is_error for e in result.executions] == [True, False]
    assert offered(model.prompts[1]) == [SEARCH, "get_mail"]


@pytest.mark.feature("search-tool-called-without-having")
def test_a_tool_that_does_not_exist_is_an_error_result(ask: Ask) -> None:
    """The error result lists the visible tools, not the complete catalog."""
    model = ScriptedModel(call("get_zebra"), "ok")
    result = ask(client_of(model).prompt("x"))

    told = "There is no tool 'get_zebra'; available: toolSearchTool"
    assert told in result.executions[0].response.data
    assert offered(model.prompts[1]) == [SEARCH]


def test_a_tool_that_must_be_called_is_visible(ask: Ask) -> None:
    """A tool that `tool_choice` names is offered without a search."""
    model = ScriptedModel(call("get_mail"), "ok")
    ask(client_of(model).prompt("x").options(tool_choice="get_mail"))

    assert offered(model.prompts[0]) == [SEARCH, "get_mail"]


def test_a_search_is_not_the_call_that_is_demanded(ask: Ask) -> None:
    """`required` holds until a tool was called; but not for one that cannot be found."""
    model = ScriptedModel(search("x"), search("mail"), call("get_mail"), "ok")
    ask(client_of(model).prompt("x").options(tool_choice="required"))

    choices = [p.options.tool_choice for p in model.prompts]
    assert choices == ["required", "auto", "required", "auto"]


# --- from turn to turn ---


@pytest.mark.feature("search-found-tools-forgotten-each")
def test_the_next_turn_need_not_search(ask: Ask) -> None:
    """Found tools stay visible in their conversation, and in no other."""
    model = ScriptedModel(search("mail"), "ok", "ok", "ok", "ok")
    client = client_of(model)
    ask(client.prompt("x").conversation("c"))
    ask(client.prompt("y").conversation("c"))
    ask(client.prompt("y").conversation("d"))
    ask(client.prompt("y"))

    assert [offered(p) for p in model.prompts[2:]] == [[SEARCH, "get_mail"], [SEARCH], [SEARCH]]


def test_the_next_turn_continues_the_order(ask: Ask) -> None:
    """The first turn's tools stay where they are."""
    model = ScriptedModel(search("mail"), "ok", search("calendar mail"), "ok", "ok")
    client = client_of(model)
    for _ in range(3):
        ask(client.prompt("x").conversation("c"))

    assert offered(model.prompts[-1]) == [SEARCH, "get_mail", "get_calendar"]


class Memory:
    """A memory that stores questions and answers, and no tool messages."""

    is_memory = True

    def __init__(self, order: int, *, stored: bool = False) -> None:
        self.order = order
        self.messages: list[Message] = []
        self.stored = stored

    async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        system = [m for m in request.prompt.messages if isinstance(m, SystemMessage)]
        new = [m for m in request.prompt.messages if not isinstance(m, SystemMessage)]
        self.messages += new
        if self.stored:
            self.messages = [message_from_dict(message_to_dict(m)) for m in self.messages]
        prompt = request.prompt.with_messages([*system, *self.messages])
        response = await call_next(request.mutate(prompt=prompt))
        self.messages.append(response.chat_response.generations[0].output)
        return response


@pytest.mark.feature("search-found-tools-forgotten-each")
def test_found_tools_in_another_process(ask: Ask) -> None:
    """They are in the metadata of the stored answers; no process keeps them."""
    memory = Memory(-(2**31) + 200, stored=True)
    model = ScriptedModel(search("sport mail"), "one", "two", search("music"), "three", "four")
    for text in "abcd":
        advisor = ToolSearchToolCallingAdvisor(Recording())  # as in a process of its own
        ask(client_of(model, advisor, memory).prompt(text).conversation("c"))

    both = ["get_mail", "get_sport"]
    lists = [offered(p)[1:] for p in model.prompts]
    assert lists == [[], both, both, both, [*both, "get_music"], [*both, "get_music"]]
    assert all(not isinstance(m, ToolResponseMessage) for m in memory.messages)


@pytest.mark.feature("search-found-tools-forgotten-each")
def test_memory_inside_the_loop_sees_every_round(ask: Ask) -> None:
    """Tools found rounds ago stay visible, in this turn and the next."""
    memory = MessageChatMemoryAdvisor(MessageWindowChatMemory(), order=0)
    model = ScriptedModel(search("mail"), call("get_mail"), call("get_mail", id="2"), "one", "two")
    client = client_of(model, None, memory)
    for text in "ab":
        ask(client.prompt(text).conversation("c"))

    assert [offered(p)[1:] for p in model.prompts] == [[], *[["get_mail"]] * 4]
    assert_paired(model.prompts[-1].messages)


@pytest.mark.feature("search-found-tools-forgotten-each")
@pytest.mark.parametrize("order", [MEMORY_ORDER, 0])
@pytest.mark.parametrize("tool_messages", [True, False])
def test_found_tools_are_stored_in_the_memory(ask: Ask, order: int, tool_messages: bool) -> None:
    """Another process need not search again, wherever the memory is, with tool messages or not."""
    memory = MessageWindowChatMemory()
    model = ScriptedModel(search("sport mail"), "one", "two")
    for text in "ab":
        advisor = ToolSearchToolCallingAdvisor(Recording())
        keeper = MessageChatMemoryAdvisor(memory, order=order, tool_messages=tool_messages)
        ask(client_of(model, advisor, keeper).prompt(text).conversation("c"))

    assert offered(model.prompts[2]) == [SEARCH, "get_mail", "get_sport"]
    assert_paired(model.prompts[2].messages)
    assert sum(isinstance(m, UserMessage) for m in model.prompts[2].messages) == 2


@pytest.mark.feature("search-found-tools-result-message")
def test_a_history_of_the_applications_own_counts(ask: Ask) -> None:
    """Searches and calls among the messages are as good as those of this process."""
    model = ScriptedModel("ok")
    searched = ToolResponse("1", SEARCH, '{"tools": ["get_sport"], "note": ""}')
    failed = ToolResponse("2", SEARCH, '["get_photo"]', is_error=True)
    used = ToolResponse("3", "get_mail", "ran")
    history = [
        UserMessage("a"),
        ToolResponseMessage([searched, failed, used]),
        AssistantMessage("b", metadata={FOUND_TOOLS: ["get_music", "get_gone"]}),
        AssistantMessage("c", metadata={FOUND_TOOLS: None}),
        UserMessage("d"),
    ]
    ask(client_of(model).prompt(history))

    assert offered(model.prompts[0]) == [SEARCH, "get_sport", "get_mail", "get_music"]


def test_a_tool_that_is_missing_for_a_while_keeps_its_place(ask: Ask) -> None:
    """Tools that a request lacks are not offered, but not forgotten."""
    model = ScriptedModel(search("sport mail"), *["ok"] * 3)
    client = client_of(model)
    ask(client.prompt("x").conversation("c"))
    ask(client.prompt("x").conversation("c").tools(CATALOG[2:]))
    ask(client.prompt("x").conversation("c"))

    assert [offered(p)[1:] for p in model.prompts[2:]] == [
        ["get_sport"],
        ["get_mail", "get_sport"],
    ]


# --- indexes and sessions ---


@pytest.mark.feature("search-tools-indexed-start-session")
def test_tools_are_indexed_when_they_are_searched(ask: Ask) -> None:
    """Tools are indexed at the first search; the same tools again are the same tuple."""
    index = Recording()
    model = ScriptedModel("ok", *turns(2, search("mail"), "ok"))
    client = client_of(model, ToolSearchToolCallingAdvisor(index))
    ask(client.prompt("x").conversation("c"))
    assert index.log == []
    ask(client.prompt("x").conversation("c"))
    ask(client.prompt("x").conversation("c").tool_context(a=1))

    assert index.log == [("put", "c")] * 2
    assert index.references[0] is index.references[1]


@pytest.mark.feature("search-session-id-key-name")
def test_sessions_without_an_id_share_an_index_by_content(ask: Ask) -> None:
    """Requests without a session id share an index for each catalog."""
    index = Recording()
    model = ScriptedModel(*turns(3, search("mail"), "ok"))
    client = client_of(model, ToolSearchToolCallingAdvisor(index))
    ask(client.prompt("x"))
    ask(client.prompt("x"))
    ask(client.prompt("x").tools(CATALOG[1:]))

    ids = [session_id for _, session_id in index.log]
    assert ids[0] == ids[1] != ids[2]


@pytest.mark.feature("search-session-id-key-name")
def test_the_session_id_may_have_another_key(ask: Ask) -> None:
    """The value of the configured key is used as text."""
    index = Recording()
    advisor = ToolSearchToolCallingAdvisor(index, session_id_key_name="tenant")
    model = ScriptedModel(search("mail"), "ok")
    ask(client_of(model, advisor).prompt("x").advisor_params({"tenant": 7}).conversation("c"))

    assert index.log == [("put", "7")]


@pytest.mark.feature("search-lru-eviction-strategy-ttl")
def test_the_session_used_longest_ago_is_forgotten(ask: Ask) -> None:
    """Its index and found tools are dropped; a later request starts without them."""
    index = Recording()
    advisor = ToolSearchToolCallingAdvisor(index, eviction_strategy=LruEvictionStrategy(1))
    model = ScriptedModel(*turns(2, search("mail"), "ok"), "ok")
    client = client_of(model, advisor)
    for conversation in "aba":
        ask(client.prompt("x").conversation(conversation))

    assert index.log == [("put", "a"), ("drop", "a"), ("put", "b"), ("drop", "b")]
    assert offered(model.prompts[-1]) == [SEARCH]


@pytest.mark.feature("search-evict-session")
def test_a_session_can_be_evicted_by_hand(ask: Ask) -> None:
    """The next request indexes again and has no found tools.

    There is an asynchronous method, too.
    """
    index = Recording()
    advisor = ToolSearchToolCallingAdvisor(index, eviction_strategy=LruEvictionStrategy(2))
    model = ScriptedModel(*turns(2, search("mail"), "ok"), *["ok"] * 3)
    client = client_of(model, advisor)
    ask(client.prompt("x").conversation("a"))
    advisor.evict_session("a")
    ask(client.prompt("x").conversation("a"))
    assert offered(model.prompts[2]) == [SEARCH]
    asyncio.run(advisor.aevict_session("a"))
    for conversation in "bc":
        ask(client.prompt("x").conversation(conversation))

    assert index.log == [("put", "a"), ("drop", "a"), ("put", "a"), ("drop", "a")]


@pytest.mark.feature("search-never-evict-strategy-always")
def test_always_indexing_again_forgets_no_finds(ask: Ask) -> None:
    """Only the index is emptied; the conversation keeps its found tools."""
    index = Recording()
    advisor = ToolSearchToolCallingAdvisor(index, eviction_strategy=AlwaysEvictStrategy())
    model = ScriptedModel(search("mail"), "ok", "ok")
    client = client_of(model, advisor)
    ask(client.prompt("x").conversation("a"))
    ask(client.prompt("x").conversation("a"))

    assert index.log.count(("put", "a")) == 1
    assert index.log[0] == ("drop", "a")
    assert offered(model.prompts[-1]) == [SEARCH, "get_mail"]


def test_an_index_that_cannot_drop_a_session_is_logged(
    ask: Ask, caplog: pytest.LogCaptureFixture
) -> None:
    """The failure is logged, and the other request succeeds."""

    class Stubborn(KeywordToolIndex):
        async def drop(self, session_id: str, runtime: Runtime) -> None:
            raise OSError("no")

    advisor = ToolSearchToolCallingAdvisor(Stubborn(), eviction_strategy=LruEvictionStrategy(1))
    model = ScriptedModel("ok", "fine")
    client = client_of(model, advisor)
    ask(client.prompt("x").conversation("a"))

    assert ask(client.prompt("x").conversation("b")).text == "fine"
    assert "not cleared" in caplog.text


def test_a_session_evicted_while_it_runs_is_indexed_again(ask: Ask) -> None:
    """A search finds its tools although its session was evicted."""
    advisor = ToolSearchToolCallingAdvisor(eviction_strategy=LruEvictionStrategy(1))

    async def other_session(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        response = await call_next(request)
        for name in list(advisor._sessions._indexed):
            await advisor._remove(name, request.runtime)
        advisor.eviction_strategy.on_access("other")
        return response

    model = ScriptedModel(search("mail"), search("music"), "ok")
    ask(client_of(model, advisor, other_session).prompt("x").conversation("a"))

    assert offered(model.prompts[-1]) == [SEARCH, "get_mail", "get_music"]
    advisor.eviction_strategy.on_access("other")
    assert list(advisor.eviction_strategy.on_access("a")) == ["other"]


def test_parallel_requests_of_one_session(ask: Ask) -> None:
    """Also if one request is indexed between the other's indexing and its search."""

    class Slow(KeywordToolIndex):
        interloper: Any = None

        async def find(self, request: ToolSearchRequest, runtime: Runtime) -> Any:
            if self.interloper is not None:
                request_of_another, self.interloper = self.interloper, None
                await runtime.invoke(lambda: request_of_another.call().content())
            return await super().find(request, runtime)

    index = Slow()
    advisor = ToolSearchToolCallingAdvisor(index)
    mine, others = ScriptedModel(search("mail"), "ok"), ScriptedModel(search("song"), "ok")
    songs = [made(f"song_{i}", "Sings a song.") for i in range(8)]
    index.interloper = client_of(others, advisor).prompt("x").conversation("c").tools(songs)
    ask(client_of(mine, advisor).prompt("x").conversation("c"))

    assert offered(mine.prompts[1]) == [SEARCH, "get_mail"]
    assert set(offered(others.prompts[1])[1:]) <= {f"song_{i}" for i in range(8)}
    assert len(offered(others.prompts[1])) == 6


class Disturbed(Recording):
    """An index whose session is changed while it is searched."""

    disturb: Any = None

    async def find(self, request: ToolSearchRequest, runtime: Runtime) -> Any:
        if request.session_id == "c":
            await self.disturb(runtime)
        return await super().find(request, runtime)


@pytest.mark.parametrize("others", [None, ()], ids=["forget", "replace"])
def test_a_session_that_others_never_leave_alone(ask: Ask, others: Any) -> None:
    """After three attempts the tools are indexed under the key of their catalog, and found."""
    index = Disturbed()
    advisor = ToolSearchToolCallingAdvisor(index)

    async def disturb(runtime: Runtime) -> None:
        with advisor._sessions.updating("c", others):
            await index.drop("c", runtime)

    index.disturb = disturb
    model = ScriptedModel(search("mail"), "ok")
    ask(client_of(model, advisor).prompt("x").conversation("c"))

    puts = [key for kind, key in index.log if kind == "put"]
    assert puts[:3] == ["c"] * 3
    assert puts[3].startswith("catalog-")
    assert offered(model.prompts[1]) == [SEARCH, "get_mail"]


@pytest.mark.parametrize("during", ["put", "find"])
async def test_an_interrupted_search_leaves_no_session(
    during: str,
) -> None:
    """This holds in a cancelled scope and with an asynchronous index, too."""

    class Remote(Disturbed):
        async def put(
            self, session_id: str, references: Sequence[ToolReference], runtime: Runtime
        ) -> None:
            await super().put(session_id, references, runtime)
            await self.cancelled("put", session_id)

        async def find(self, request: ToolSearchRequest, runtime: Runtime) -> Any:
            await self.cancelled("find", request.session_id)
            return await super().find(request, runtime)

        async def cancelled(self, what: str, session_id: str) -> None:
            if what == during and session_id.startswith("catalog-"):
                scope.cancel()
                await anyio.lowlevel.checkpoint()

        async def drop(self, session_id: str, runtime: Runtime) -> None:
            await anyio.lowlevel.checkpoint()
            await super().drop(session_id, runtime)

    index = Remote()
    advisor = ToolSearchToolCallingAdvisor(index)

    async def disturb(runtime: Runtime) -> None:
        with advisor._sessions.updating("c", ()):
            await index.drop("c", runtime)

    index.disturb = disturb
    client = client_of(ScriptedModel(search("mail"), "ok"), advisor)
    with anyio.CancelScope() as scope:
        await client.prompt("x").conversation("c").acall().content()

    assert scope.cancelled_caught
    kept = {key for kind, key in index.log if kind == "put"}
    assert kept == {key for kind, key in index.log if kind == "drop"}


def test_eviction_while_a_session_is_indexed(ask: Ask) -> None:
    """It may begin before the indexing and end after it, and remove what was indexed."""
    index = Disturbed()
    advisor = ToolSearchToolCallingAdvisor(index)
    forgetting = advisor._sessions.updating("c", None)
    forgetting.__enter__()

    async def disturb(runtime: Runtime) -> None:
        await index.drop("c", runtime)

    index.disturb = disturb
    model = ScriptedModel(search("mail"), "ok", search("mail"), "ok")
    client = client_of(model, advisor)
    ask(client.prompt("x").conversation("c"))
    forgetting.__exit__(None, None, None)

    assert offered(model.prompts[1]) == [SEARCH, "get_mail"]
    assert advisor._sessions._updates == {}
    assert "c" not in advisor._sessions._indexed


def test_equal_concurrent_updates() -> None:
    """Tools count as indexed during and after equal updates, but not with another update."""
    sessions = SessionRegistry()
    tools = (ToolReference("a"),)
    with sessions.updating("c", tools) as first, sessions.updating("c", tools) as second:
        assert first is second
        assert sessions.is_indexed("c", first)
    assert sessions.is_indexed("c", first)
    with sessions.updating("c", None):
        assert not sessions.is_indexed("c", first)
    with sessions.updating("c", tools) as third:
        assert not sessions.is_indexed("c", first)
        assert sessions.is_indexed("c", third)


@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_parallel_sessions_do_not_mix(kind: str) -> None:
    """One advisor and one index serve many parallel sessions with different tools."""

    def answer(prompt: Prompt) -> Answer:
        asked = next(m.text for m in prompt.messages if isinstance(m, UserMessage))
        names = offered(prompt)[1:]
        if not names:
            return search(f"secret of {asked}")
        if isinstance(prompt.messages[-1], ToolResponseMessage) and len(prompt.messages) > 4:
            return results(prompt)[0]
        return call(names[0])

    advisor = ToolSearchToolCallingAdvisor(eviction_strategy=LruEvictionStrategy(20))
    client = client_of(ScriptedModel(answer), advisor)

    def request(i: int) -> Any:
        own = [made(f"secret_{i}_{n}", f"Tells secret {n} of {i}.") for n in range(3)]
        return client.prompt(str(i)).conversation(f"c{i % 50}").tools(own, keep_defaults=True)

    async def gather() -> list[str]:
        return list(await asyncio.gather(*(request(i).acall().content() for i in range(100))))

    if kind == "threads":
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda i: request(i).call().content(), range(100)))
    else:
        answers = asyncio.run(gather())

    assert [a.rpartition("_")[0] for a in answers] == [f"ran secret_{i}" for i in range(100)]
    assert len(advisor._sessions._found) <= 20


# --- where tools come from ---


@pytest.mark.feature("search-tools-dynamic-providers-never")
def test_tools_of_a_provider_are_searched(ask: Ask) -> None:
    """Tools of a provider are resolved for each request; unchanged ones are described once."""
    described: list[str] = []

    class Fresh:
        def tool_callbacks(self) -> list[ToolCallback]:
            return [made(c.definition.name, c.definition.description) for c in CATALOG]

    def describe(callback: ToolCallback) -> ToolReference:
        described.append(callback.definition.name)
        return ToolReference.of(callback.definition)

    index = Recording()
    advisor = ToolSearchToolCallingAdvisor(index, describe=describe)
    model = ScriptedModel(*turns(2, search("mail"), call("get_mail"), "ok"))
    client = ChatClient.builder(model).default_tools(Fresh()).default_advisors(advisor).build()
    for _ in range(2):
        assert ask(client.prompt("x")).executions[1].response.data == "ran get_mail"

    assert len(described) == 20
    assert index.references[0] is index.references[1]


@pytest.mark.feature("search-tools-dynamic-providers-never")
@pytest.mark.parametrize("always", [(), ["get_mail"]])
def test_dynamic_tools_are_searched(ask: Ask, always: list[str]) -> None:
    """Dynamic providers are called again in each round, with the conversation."""

    class Growing:
        dynamic = True

        def __init__(self) -> None:
            self.asked: list[int] = []

        def tool_callbacks(self, request: ToolRequest) -> list[ToolCallback]:
            self.asked.append(len(request.messages))
            late = made("ride_zebra", "Rides a zebra.")
            return [*CATALOG[1 if len(self.asked) > 2 else 0 :], *([late] * (len(self.asked) > 1))]

    provider = Growing()
    advisor = ToolSearchToolCallingAdvisor(always_visible=always)
    model = ScriptedModel(
        search("zebra weather"), search("zebra"), call("ride_zebra"), call("get_weather"), "ok"
    )
    client = ChatClient.builder(model).default_tools(provider).default_advisors(advisor).build()
    result = ask(client.prompt("x"))

    assert [offered(p)[1:] for p in model.prompts] == [
        [*always],
        [*always, "get_weather"],
        *[[*always, "ride_zebra"]] * 3,
    ]
    assert [e.is_error for e in result.executions] == [False, False, False, True]
    assert provider.asked == [1, 4, 6, 8, 10]
    assert not [key for key in result.response.context if "tools" in key]


@pytest.mark.feature("search-tools-indexed-start-session")
def test_a_changed_tool_is_found_by_its_new_description(ask: Ask) -> None:
    """Only the reference of the changed tool is created again."""
    index = Recording()
    model = ScriptedModel(*turns(2, search("zebra"), "ok"))
    client = client_of(model, ToolSearchToolCallingAdvisor(index))
    ask(client.prompt("x").conversation("c"))
    changed = [made("get_weather", "Rides a zebra."), *CATALOG[1:]]
    ask(client.prompt("x").conversation("c").tools(changed))

    assert found(model.prompts[-1]) == ["get_weather"]
    one, other = index.references
    assert [a is b for a, b in zip(one, other, strict=True)] == [False] + [True] * 9


def test_tools_known_to_a_resolver_are_searched(ask: Ask) -> None:
    """Names are resolved before the search, and tools in the options count as well."""
    model = ScriptedModel(search("mail"), call("get_mail"), "ok")
    builder = ChatClient.builder(model).default_advisors(ToolSearchToolCallingAdvisor())
    client = builder.tool_callback_resolver(StaticToolCallbackResolver(*CATALOG)).build()
    names = [f"get_{word}" for word in WORDS]
    result = ask(client.prompt("x").tools(*names[:5]).options(tool_names=names[5:]))

    assert result.executions[1].response.data == "ran get_mail"


@pytest.mark.feature("search-tools-indexed-start-session")
def test_unchanged_tools_are_described_once(ask: Ask) -> None:
    """A second request with an unchanged catalog describes no tool again."""
    described: list[str] = []

    def describe(callback: ToolCallback) -> ToolReference:
        described.append(callback.definition.name)
        return ToolReference.of(callback.definition)

    model = ScriptedModel(*turns(3, search("mail"), "ok"))
    client = client_of(model, ToolSearchToolCallingAdvisor(describe=describe))
    for conversation in "abc":
        ask(client.prompt("x").conversation(conversation).tool_context(a=conversation))

    assert len(described) == len(CATALOG)


# --- approval, limits, passing through ---


def test_found_tools_of_a_resumed_turn(ask: Ask) -> None:
    """In another process, they are read from the messages."""

    def client(*answers: Answer) -> tuple[ChatClient, ScriptedModel]:
        model = ScriptedModel(*answers)
        manager = ToolCallingManager(interceptors=[ToolApproval()])
        return client_of(model, ToolSearchToolCallingAdvisor(manager=manager)), model

    first, _ = client(search("mail"), [call("get_mail"), call("get_photo")])
    turn = ask(first.prompt("x")).waiting
    second, model = client("done")
    result = ask(second.resume(turn.to_json(), "approve"))

    assert result.text == "done"
    assert results(model.prompts[0]) == ["ran get_mail", "ran get_photo"]
    assert offered(model.prompts[0]) == [SEARCH, "get_mail", "get_photo"]


@pytest.mark.feature("loop-parameter-auto-register-false")
def test_tool_search_is_off_without_tool_calling(ask: Ask) -> None:
    """Applications that run tools themselves are sent all tools."""
    model = ScriptedModel(call("get_mail"), call("get_mail"))
    request = client_of(model).prompt("x")
    for handed in (
        request.options(internal_tool_execution_enabled=False),
        request.tool_calling(False),
    ):
        assert ask(handed).response.chat_response.has_tool_calls()

    assert [len(offered(prompt)) for prompt in model.prompts] == [len(CATALOG)] * 2


def test_nothing_of_the_search_is_left_in_the_response(ask: Ask) -> None:
    """The contexts of response and tools have no state of the search.

    Nothing keeps the request alive.
    """
    seen: list[dict[str, Any]] = []

    class Token:
        pass

    @tool
    async def peek(context: ToolContext) -> str:  # not in a thread: anyio's keep their last job
        """Look around."""
        seen.append(dict(context))
        return "ok"

    token = Token()
    gone = weakref.ref(token)
    model = ScriptedModel(search("look"), call("peek"), "done")
    request = client_of(model).prompt("x").tools(peek, keep_defaults=True).conversation("c")
    result = ask(request.tool_context(token=token))
    assert [sorted(each) for each in seen] == [["chat_memory_conversation_id", "token"]]
    assert not [key for key in result.response.context if "search" in key]

    seen.clear()
    model.prompts.clear()
    del token, request, result
    gc.collect()
    assert gone() is None


def test_evicted_sessions_are_not_kept() -> None:
    """Only the state of the sessions within the limit is kept."""
    advisor = ToolSearchToolCallingAdvisor(eviction_strategy=LruEvictionStrategy(3))
    model = ScriptedModel(lambda prompt: "ok" if len(prompt.messages) > 2 else search("mail"))
    client = client_of(model, advisor)
    for i in range(50):
        client.prompt("x").conversation(str(i)).call().content()

    assert (
        sorted(advisor._sessions._found) == sorted(advisor._sessions._indexed) == ["47", "48", "49"]
    )


def test_an_anonymous_catalog_is_evicted_like_a_session() -> None:
    """Catalogs of requests without a session id are evicted, too."""
    index = Recording()
    advisor = ToolSearchToolCallingAdvisor(index, eviction_strategy=LruEvictionStrategy(2))
    model = ScriptedModel(lambda prompt: "ok" if len(prompt.messages) > 2 else search("mail"))
    client = client_of(model, advisor)
    for i in range(5):
        client.prompt("x").tools(made(f"extra_{i}", "More."), keep_defaults=True).call().content()

    assert [what for what, _ in index.log].count("drop") == 3
    assert len(advisor._sessions._indexed) == 2
