"""Tool search by the model's provider, and by this process for other models."""

import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from chatclient import ChatClient, ChatModel
from chatclient.advisors import MessageChatMemoryAdvisor, ToolSearchToolCallingAdvisor
from chatclient.advisors.tool_search.advisor import SYSTEM_MESSAGE_SUFFIX
from chatclient.chain.params import TOOL_SEARCH_ROLES
from chatclient.chat.messages import without_system
from chatclient.chat.tool import ToolCallback
from chatclient.errors import UsageError
from chatclient.memory import MessageWindowChatMemory
from chatclient.providers import (
    AnthropicChatModel,
    FallbackChatModel,
    OpenAIResponsesChatModel,
)
from chatclient.testing import Ask, ScriptedModel, call
from chatclient.tools import DataToolCallback, ToolDefinition
from chatclient.tools.search import (
    KeywordToolIndex,
    ProviderToolIndex,
    ToolReference,
    ToolSearchRequest,
)
from tests.providers.anthropic.test_recorded import official_problems
from tests.support import messages_server, responses_server
from tests.support.messages_server import MessagesServer
from tests.support.replay import RECORDINGS, exchanges, needs_recordings
from tests.support.responses_server import ResponsesServer

Json = dict[str, Any]
SEARCH = "toolSearchTool"
WORDS = [
    "weather",
    "mail",
    "calendar",
    "invoice",
    "music",
    "travel",
    "photo",
    "stock",
    "recipe",
    "sport",
]
NAMES = [f"get_{word}" for word in WORDS]


def made(name: str) -> ToolCallback:
    definition = ToolDefinition(name, f"Gives the {name[4:]}.")
    return DataToolCallback(definition, lambda call, context: f"ran {call.name}")


CATALOG = [made(name) for name in NAMES]


def client_of(model: ChatModel, *, memory: Any = None, **search: Any) -> ChatClient:
    advisor = ToolSearchToolCallingAdvisor(ProviderToolIndex(), **search)
    memories = [] if memory is None else [MessageChatMemoryAdvisor(memory)]
    return (
        ChatClient.builder(model)
        .default_system("Be brief.")
        .default_tools(CATALOG)
        .default_advisors(advisor, *memories)
        .build()
    )


# --- Anthropic ---------------------------------------------------------------------------------

REFERENCES = [{"type": "tool_reference", "tool_name": "get_weather"}]
FOUND_BY_CLAUDE: list[Any] = [
    {"type": "text", "text": "I look for a tool."},
    {
        "type": "server_tool_use",
        "id": "srvtoolu_1",
        "name": "tool_search_tool_bm25",
        "input": {"query": "weather"},
    },
    {
        "type": "tool_search_tool_result",
        "tool_use_id": "srvtoolu_1",
        "content": {"type": "tool_search_tool_search_result", "tool_references": REFERENCES},
    },
    {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {}},
]


@pytest.fixture
def claude() -> Iterator[Callable[..., tuple[MessagesServer, AnthropicChatModel]]]:
    """Start servers with models that search tools."""
    opened: list[Any] = []

    def start(*replies: Any, model: str = "claude-sonnet-4-5") -> Any:
        server = MessagesServer(*replies)
        found = AnthropicChatModel(model, api_key="key", base_url=server.url, max_retries=0)
        opened.extend((found, server))
        return server, found

    yield start
    for each in opened:
        each.close()


def test_claude_finds_a_tool(ask: Ask, claude: Any) -> None:
    """All tools are sent, deferred, and what the search returned goes back unchanged."""
    server, model = claude(messages_server.message(*FOUND_BY_CLAUDE), "sunny")

    asked = ask(client_of(model).prompt("How is the weather?"))

    first, second = server.requests
    assert first["tools"] == second["tools"]  # so that the cached prompt stays valid
    *tools, search = first["tools"]
    assert [tool["name"] for tool in tools if tool["defer_loading"]] == NAMES
    assert search == {"type": "tool_search_tool_bm25_20251119", "name": "tool_search_tool_bm25"}
    assert first["system"] == [{"type": "text", "text": "Be brief."}]
    assert second["messages"][1]["content"] == FOUND_BY_CLAUDE
    assert second["messages"][2]["content"][0]["content"] == "ran get_weather"
    assert asked.text.endswith("sunny")
    assert [each.tool_call.name for each in asked.executions] == ["get_weather"]


def test_history_keeps_the_search(ask: Ask, claude: Any) -> None:
    """A memory brings the blocks to the next turn, which offers the same tools."""
    server, model = claude(messages_server.message(*FOUND_BY_CLAUDE), "sunny", "As I said.")
    client = client_of(model, memory=MessageWindowChatMemory())
    ask(client.prompt("How is the weather?").conversation("c"))
    ask(client.prompt("Really?").conversation("c"))

    *_, second, third = server.requests
    assert third["messages"][1]["content"] == FOUND_BY_CLAUDE
    assert third["tools"] == second["tools"]


def test_cache_breakpoint_is_not_on_a_deferred_tool(claude: Any) -> None:
    """The API refuses it there."""
    server, model = claude("Hello.")

    client_of(model).prompt("Hi").options(cache="tools").call().content()

    assert [
        tool.get("name") for tool in server.requests[0]["tools"] if "cache_control" in tool
    ] == ["tool_search_tool_bm25"]


def test_visible_tools_are_not_deferred(claude: Any) -> None:
    """Nor is the one that has to be called."""
    server, model = claude("Hello.")
    request = client_of(model, always_visible="get_music").prompt("Hi")

    request.options(tool_choice="get_mail").call().content()

    (sent,) = server.requests
    shown = [tool["name"] for tool in sent["tools"] if not tool.get("defer_loading")]
    assert shown == ["get_music", "get_mail", "tool_search_tool_bm25"]
    assert len(sent["tools"]) == len(CATALOG) + 1


def test_roles_restrict_what_the_provider_gets(claude: Any) -> None:
    """A tool of another role is not sent."""
    server, model = claude("Hello.")

    def describe(callback: ToolCallback) -> ToolReference:
        roles = ["admin"] if callback.definition.name == "get_mail" else []
        return ToolReference.of(callback.definition, roles=roles)

    client = client_of(model, describe=describe)
    client.prompt("Hi").call().content()
    client.prompt("Hi").advisor_params({TOOL_SEARCH_ROLES: "admin"}).call().content()

    without, with_role = ({tool["name"] for tool in each["tools"]} for each in server.requests)
    assert with_role - without == {"get_mail"}


@needs_recordings
def test_recorded_search(ask: Ask, claude: Any) -> None:
    """A recorded answer is sent back block by block."""
    (recorded,) = (e for e in exchanges("anthropic.messages") if e.id == "24bef35a4d78")
    answer = recorded.response["body"]
    names = [tool["name"] for tool in recorded.request["tools"][1:]]
    server, model = claude(answer, "It is sunny.")

    ask(client_of(model).prompt("Weather in Tokyo?").tools([made(name) for name in names]))

    assert server.requests[1]["messages"][1]["content"] == answer["content"]


# --- OpenAI ------------------------------------------------------------------------------------

FOUND_BY_GPT: list[Any] = [
    {
        "id": "tsc_1",
        "type": "tool_search_call",
        "status": "completed",
        "arguments": {"paths": ["get_weather"]},
        "call_id": None,
        "execution": "server",
    },
    {
        "id": "tso_1",
        "type": "tool_search_output",
        "status": "completed",
        "call_id": None,
        "execution": "server",
        "tools": [
            {
                "type": "function",
                "defer_loading": True,
                "name": "get_weather",
                "parameters": {},
                "strict": False,
            }
        ],
    },
    responses_server.call("1", "get_weather", "{}", namespace="get_weather"),
]


def test_gpt_finds_a_tool(ask: Ask) -> None:
    """All functions are sent, deferred, and the items of the search go back unchanged."""
    items = [responses_server.reasoning("rs_1"), *FOUND_BY_GPT]
    with closing(ResponsesServer(responses_server.response(*items), "sunny")) as server:
        model = server.model(model="gpt-5.4")
        asked = ask(client_of(model).prompt("How is the weather?"))

    first, second = server.requests
    assert first["tools"] == second["tools"]
    *functions, search = first["tools"]
    assert [each["name"] for each in functions if each["defer_loading"]] == NAMES
    assert search == {"type": "tool_search"}
    assert second["input"][-5:-1] == items
    assert asked.text == "sunny"


def test_search_after_reasoning_of_another_server(ask: Ask) -> None:
    """Without its reasoning, the items of a search are sent without their ids."""
    items = [responses_server.reasoning("rs_1"), *FOUND_BY_GPT]
    with (
        closing(ResponsesServer(responses_server.response(*items), "sunny")) as server,
        closing(ResponsesServer("So it is.")) as other,
    ):
        first = client_of(server.model(model="gpt-5.4"))
        asked = ask(first.prompt("How is the weather?"))
        messages = without_system(asked.response.trail.messages)  # type: ignore[union-attr]
        ask(client_of(other.model(model="gpt-5.5")).prompt("And?").messages(*messages))

    sent = {each.get("type"): each for each in other.requests[0]["input"]}
    assert "reasoning" not in sent
    assert "id" not in sent["tool_search_call"]
    assert "id" not in sent["tool_search_output"]


@needs_recordings
def test_requests_match_the_official_schemas(claude: Any) -> None:
    """OpenAI's schema, and the types of Anthropic's library."""
    jsonschema = pytest.importorskip("jsonschema")
    path = RECORDINGS / "schemas" / "openai-responses-request.json"
    official = jsonschema.Draft202012Validator(json.loads(path.read_text(encoding="utf-8")))
    answer = responses_server.response(*FOUND_BY_GPT)
    with closing(ResponsesServer(answer, "sunny")) as server:
        client_of(server.model(model="gpt-5.4")).prompt("How is the weather?").call().content()
    messages, model = claude(messages_server.message(*FOUND_BY_CLAUDE), "sunny")
    client_of(model).prompt("How is the weather?").call().content()

    assert [problem for each in messages.requests for problem in official_problems()(each)] == []
    assert [error.message for each in server.requests for error in official.iter_errors(each)] == []


# --- other models ------------------------------------------------------------------------------


def local_search(query: str) -> Any:
    return call(SEARCH, json.dumps({"query": query}))


def test_other_models_search_in_this_process(ask: Ask) -> None:
    """Only the search tool is sent, with its instruction."""
    model = ScriptedModel(local_search("weather"), call("get_weather"), "sunny")

    asked = ask(client_of(model).prompt("How is the weather?"))

    names = [
        [callback.definition.name for callback in prompt.options.tool_callbacks or ()]
        for prompt in model.prompts
    ]
    assert names == [[SEARCH], [SEARCH, "get_weather"], [SEARCH, "get_weather"]]
    assert SYSTEM_MESSAGE_SUFFIX in model.prompts[0].messages[0].text
    assert asked.text.endswith("sunny")


def test_all_models_of_a_fallback_must_search(ask: Ask, claude: Any) -> None:
    """A model that cannot gets what it can use."""
    server, model = claude("Hello.")

    ask(client_of(FallbackChatModel(model, ScriptedModel("x"))).prompt("Hi"))
    ask(client_of(FallbackChatModel(model, model)).prompt("Hi"))

    assert [len(each["tools"]) for each in server.requests] == [1, len(CATALOG) + 1]


def test_model_that_is_exchanged_later(ask: Ask, claude: Any) -> None:
    """If an advisor chooses a model without a search, that model gets all tools."""
    server, model = claude("Hello.")

    async def cheaper(request: Any, call_next: Any) -> Any:
        prompt = request.prompt.mutate_options(model="claude-3-haiku-20240307")
        return await call_next(request.mutate(prompt=prompt))

    cheaper.order = 1  # type: ignore[attr-defined] # inside the loop
    ask(client_of(model).mutate().default_advisors(cheaper).build().prompt("Hi"))

    names = [tool["name"] for tool in server.requests[0]["tools"]]
    assert names == [SEARCH, *NAMES]
    assert not any("defer_loading" in tool for tool in server.requests[0]["tools"])


def test_tools_found_here_need_no_search_there(claude: Any) -> None:
    """A conversation may change to a model whose provider searches; the tools are deferred."""
    server, model = claude("Hello.")
    memory = MessageWindowChatMemory()
    script = ScriptedModel(local_search("weather"), call("get_weather"), "sunny")
    for each in (script, model):
        client = client_of(each, memory=memory)
        client.prompt("How is the weather?").conversation("c").call().content()

    assert [tool.get("defer_loading", False) for tool in server.requests[0]["tools"]] == [
        *itertools.repeat(True, len(CATALOG)),
        False,
    ]


def test_kinds_of_search(claude: Any) -> None:
    """Anthropic has two."""
    server, model = claude("Hello.")
    advisor = ToolSearchToolCallingAdvisor(ProviderToolIndex(variant="regex"))
    client = ChatClient.builder(model).default_tools(CATALOG).default_advisors(advisor).build()

    client.prompt("Hi").call().content()

    assert server.requests[0]["tools"][-1]["type"] == "tool_search_tool_regex_20251119"


@pytest.mark.parametrize(
    ("name", "has"),
    [
        ("claude-sonnet-4-5", True),
        ("claude-haiku-4-5-20251001", True),
        ("anthropic/claude-opus-5", True),
        ("claude-opus-4-1-20250805", False),
        ("claude-sonnet-4-20250514", False),
        ("claude-3-5-haiku-latest", False),
        ("minimax-m2", False),
        ("gpt-5.4", True),
        ("gpt-5.4-mini", True),
        ("gpt-5.10", True),
        ("gpt-6", True),
        ("gpt-5.4-nano", False),
        ("gpt-5.3", False),
        ("gpt-5-mini", False),
        ("openai/gpt-5.4", False),
    ],
)
def test_models_with_a_search(name: str, has: bool) -> None:
    """The models with a search are those of the providers' documentation."""
    kind = OpenAIResponsesChatModel if "gpt" in name else AnthropicChatModel
    with kind(name, api_key="k") as model:
        assert model.has_server_tool(ProviderToolIndex().server_tool, model.options) == has


def test_one_kind_of_search_at_openai() -> None:
    """There, a kind that was asked for is searched in this process."""
    search = ProviderToolIndex(variant="bm25").server_tool
    with OpenAIResponsesChatModel("gpt-5.4", api_key="k") as model:
        assert not model.has_server_tool(search, model.options)


def test_index_on_its_own() -> None:
    """Outside of an advisor, the fallback searches."""
    index = ProviderToolIndex(KeywordToolIndex())
    index.index_tools("s", [ToolReference("get_mail", "Gives the mail.")])
    assert index.search(ToolSearchRequest("s", "mail")).tool_names == ("get_mail",)
    index.clear_index("s")
    assert not index.search(ToolSearchRequest("s", "mail")).tool_names


def test_wrong_arguments() -> None:
    """They are refused when the index is made."""
    wrong: Any = "bm26"
    with pytest.raises(UsageError, match="variant"):
        ProviderToolIndex(variant=wrong)
    with pytest.raises(UsageError, match="fallback of a tool index"):
        ProviderToolIndex(wrong)
