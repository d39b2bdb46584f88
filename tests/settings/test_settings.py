"""Settings from environment and files: each has its effect on a client."""

import asyncio
import re
import tomllib
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from chatclient.testing import Ask
from tests.providers.http.test_client import error_reply
from tests.support.paths import ROOT
from tests.support.servers import ChatServer

pytest.importorskip("pydantic_settings")

from chatclient import AssistantMessage, ChatClient, Prompt, UserMessage, tool
from chatclient.advisors.memory.advisors import MessageChatMemoryAdvisor, PromptChatMemoryAdvisor
from chatclient.advisors.tool_loop.advisor import ToolCallingAdvisor
from chatclient.advisors.tool_search.advisor import ToolSearchToolCallingAdvisor
from chatclient.chain.chain import order_of
from chatclient.errors import (
    InvalidRequestError,
    OverloadedError,
    ToolExecutionError,
    ToolLoopError,
    UsageError,
)
from chatclient.memory import InMemoryChatMemoryRepository
from chatclient.providers.anthropic.model import AnthropicChatOptions
from chatclient.providers.http.retry import RetryPolicy
from chatclient.providers.openai.chat import OpenAIChatOptions
from chatclient.runtime.runtime import BLOCKING, ON_LOOP
from chatclient.settings.client_parts import options_of
from chatclient.settings.settings import ChatClientSettings, MemorySettings, SqlSettings
from chatclient.testing import Answer, ScriptedModel, call
from chatclient.tools import StaticToolCallbackResolver
from chatclient.tools.execution.state import ToolState
from chatclient.tools.search import KeywordToolIndex
from chatclient.tools.search.index import CompositeEvictionStrategy, LruEvictionStrategy


@pytest.fixture(autouse=True)
def _without_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in _variables(ChatClientSettings):
        monkeypatch.delenv(f"CHATCLIENT_{name}", raising=False)


@tool
def fail() -> str:
    """Fail."""
    raise ValueError("broken")


@tool
def work() -> str:
    """Work."""
    return "worked"


@pytest.fixture
def configured(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., ChatClient]]:
    """Return a client of a scripted model with environment variables."""
    made = ExitStack()

    def configure(*answers: Answer, tools: Any = (), **variables: str) -> ChatClient:
        for name, value in variables.items():
            monkeypatch.setenv(f"CHATCLIENT_{name}", value)
        client = made.enter_context(ChatClient.from_settings(model=ScriptedModel(*answers)))
        return client.mutate().default_tools(tools).build() if tools else client

    with made:
        yield configure


Configured = Callable[..., ChatClient]


def only_advisor(client: ChatClient, kind: type[Any]) -> Any:
    """Return the only advisor of a class."""
    [found] = [advisor for advisor in client._pipeline.chain.advisors if isinstance(advisor, kind)]
    return found


# --- sources ---


def test_defaults(ask: Ask, configured: Configured) -> None:
    """Without settings a client has the defaults of the library."""
    client = configured([call("fail"), call("work")], "done", tools=[fail, work])

    assert ask(client.prompt("x")).text == "done"
    assert str(client) == str(ChatClient.create(client.model))
    assert ChatClientSettings.load() == ChatClientSettings()


def test_precedence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Environment, then the files in order, merged by setting."""
    (tmp_path / "pyproject.toml").write_text(
        "[tool.chatclient]\nmodel = 'project'\n"
        "[tool.chatclient.memory]\nmax_messages = 1\nenabled = true\ntool_messages = false\n"
    )
    (tmp_path / "chatclient.toml").write_text(
        "model = 'file'\n[memory]\nmax_messages = 2\nadvisor = 'prompt'\n"
    )
    monkeypatch.setenv("CHATCLIENT_MEMORY__MAX_MESSAGES", "3")

    settings = ChatClientSettings.load()

    assert settings.model == "file"
    memory = settings.memory
    assert (memory.max_messages, memory.advisor, memory.enabled) == (3, "prompt", True)
    assert not memory.tool_messages


def test_named_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A named file replaces the others; the environment still wins."""
    (tmp_path / "chatclient.toml").write_text("model = 'other'\n[tools]\nmax_concurrency = 5\n")
    (tmp_path / "pyproject.toml").write_text("[tool.chatclient]\nmodel = 'project'\n")
    file = tmp_path / "mine.toml"
    file.write_text("model = 'mine'\n")
    monkeypatch.setenv("CHATCLIENT_TOOLS__BLOCKING_CONCURRENCY", "4")

    settings = ChatClientSettings.load(file)

    assert settings.model == "mine"
    assert (settings.tools.max_concurrency, settings.tools.blocking_concurrency) == (8, 4)
    with pytest.raises(UsageError, match="there is no file"):
        ChatClientSettings.load(tmp_path / "none.toml")


def test_invalid_toml(tmp_path: Path) -> None:
    """The error names the file."""
    (tmp_path / "chatclient.toml").write_text("model = ")

    with pytest.raises(UsageError, match=r"'chatclient\.toml' is not TOML"):
        ChatClientSettings.load()


def test_all_errors_are_listed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Unknown and invalid settings are named with their variables."""
    (tmp_path / "chatclient.toml").write_text("modle = 'x'\n[memory]\nmax_mesages = 2\n")
    monkeypatch.setenv("CHATCLIENT_TOOLS__MAX_CONCURRENCY", "many")

    with pytest.raises(UsageError) as raised:
        ChatClientSettings.load()

    message = str(raised.value)
    assert "modle is not a setting" in message
    assert "memory.max_mesages is not a setting" in message
    assert "tools.max_concurrency (or CHATCLIENT_TOOLS__MAX_CONCURRENCY): input should" in message


@pytest.mark.parametrize(
    "variable",
    [
        "CHATCLIENT_MEMROY__ENABLED",
        "CHATCLIENT_MEMORY_ENABLED",
        "CHATCLIENT_MEMORY_SQL__URL",
        "CHATCLIENT_OPTIONS_TEMPERATURE",
        "chatclient_tools_limits_max_rounds",
    ],
)
def test_misspelt_variable(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    """A misspelt variable raises."""
    monkeypatch.setenv(variable, "s3cr3t")

    with pytest.raises(UsageError, match=f"{variable} is not a setting; a dot is") as raised:
        ChatClientSettings.load()
    assert "s3cr3t" not in "".join(traceback.format_exception(raised.value))


def test_other_variables_with_the_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other variables with the prefix are ignored."""
    monkeypatch.setenv("CHATCLIENT_HTTP", "httpx")
    monkeypatch.setenv("CHATCLIENT_PORT", "80")
    monkeypatch.setenv("CHATCLIENT_MEMORY_PATH", "/tmp/app")
    monkeypatch.setenv("OTHER_MEMORY_ENABLED", "1")
    monkeypatch.setenv("CHATCLIENT_TOOL_CALLING", '{"enabled": false}')

    assert not ChatClientSettings.load().tool_calling.enabled


def test_settings_in_code() -> None:
    """Settings can be made without an environment."""
    settings = ChatClientSettings(tool_calling={"enabled": False})  # type: ignore[arg-type]
    client = ChatClient.from_settings(settings, model=ScriptedModel(call("work")))

    assert client.prompt("x").tools(work).call().chat_response().has_tool_calls()


def test_repr_masks_passwords() -> None:
    """Database URLs are masked in the repr."""
    secret = {"sql": {"url": "postgresql://u:s3cr3t@h/d"}, "redis": {"url": "redis://:s3cr3t@h"}}

    assert "s3cr3t" not in repr(ChatClientSettings(memory=secret))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ('[memory]\nsql = "postgresql://u:s3cr3t@h/d"', "memory.sql .* should be a valid dict"),
        ('[memory.sql]\npassword = "s3cr3t"', "memory.sql.password is not a setting"),
        ('key = "s3cr3t"', "key is not a setting"),
    ],
)
def test_invalid_value_is_not_shown(tmp_path: Path, toml: str, message: str) -> None:
    """Neither error nor cause contains the value."""
    (tmp_path / "chatclient.toml").write_text(toml)

    with pytest.raises(UsageError, match=message) as raised:
        ChatClientSettings.load()
    assert "s3cr3t" not in "".join(traceback.format_exception(raised.value))


@pytest.mark.parametrize("toml", ["tool = 1", "[tool]\nchatclient = 'x'"])
def test_value_instead_of_table(tmp_path: Path, toml: str) -> None:
    """The error names table and file."""
    (tmp_path / "pyproject.toml").write_text(toml)

    with pytest.raises(UsageError, match=r"tool\.chatclient in 'pyproject\.toml' must be a table"):
        ChatClientSettings.load()


# --- model and options ---


@pytest.mark.feature("setting-model")
def test_model(configured: Configured, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is a setting or an argument of `from_settings`."""
    monkeypatch.setenv("CHATCLIENT_MODEL", "ollama:qwen3")
    assert ChatClient.from_settings().model.name == "qwen3"
    monkeypatch.delenv("CHATCLIENT_MODEL")

    with pytest.raises(UsageError, match="no model: set CHATCLIENT_MODEL"):
        ChatClient.from_settings()


@pytest.mark.feature("setting-options")
def test_options(configured: Configured) -> None:
    """Numbers are numbers, and unknown options are rejected."""
    client = configured("a", OPTIONS__TEMPERATURE="0.5", OPTIONS__MAX_TOKENS="7")

    client.prompt("x").call().content()

    options = client.model.prompts[0].options  # type: ignore[attr-defined]
    assert (options.temperature, options.max_tokens) == (0.5, 7)
    with pytest.raises(UsageError, match="tempreature"):
        configured("a", OPTIONS__TEMPREATURE="0.5")


def test_option_types() -> None:
    """Digits are numbers by option type; lists are JSON."""
    texts = {"model": "1234", "stop": "5", "top_k": "6", "temperature": "1", "user": "77"}
    more = {"thinking": "1024", "betas": '["a", "b"]', "cache": '"system"', "extra": {"x": "7"}}
    settings = ChatClientSettings(options={**texts, **more})

    assert options_of(settings, AnthropicChatOptions) == {
        "model": "1234",
        "stop": "5",
        "top_k": 6,
        "temperature": 1,
        "user": 77,
        "thinking": 1024,
        "betas": ["a", "b"],
        "cache": "system",
        "extra": {"x": "7"},
    }
    assert options_of(settings, OpenAIChatOptions)["user"] == "77"


# --- tools ---


@pytest.mark.feature("setting-tool-calling-enabled")
def test_tool_calling_enabled(ask: Ask, configured: Configured) -> None:
    """If disabled, tool calls are returned unexecuted."""
    client = configured(call("work"), tools=[work], TOOL_CALLING__ENABLED="false")

    assert ask(client.prompt("x")).response.chat_response.has_tool_calls()


@pytest.mark.feature("setting-tool-calling-advisor-order")
def test_tool_calling_advisor_order(configured: Configured) -> None:
    """The loop has the order of the setting."""
    client = configured(TOOL_CALLING__ADVISOR_ORDER="5")

    assert order_of(only_advisor(client, ToolCallingAdvisor)) == 5


@pytest.mark.feature("setting-tool-calling-stream-call-responses")
def test_stream_tool_call_responses(configured: Configured) -> None:
    """If disabled, text before tool calls is not streamed."""
    client = configured(
        ["thinking", call("work")],
        "done",
        tools=[work],
        TOOL_CALLING__STREAM_TOOL_CALL_RESPONSES="false",
    )

    assert "".join(client.prompt("x").stream()) == "done"


@pytest.mark.feature("setting-tools-throw-exception-error")
def test_throw_exception_on_error(ask: Ask, configured: Configured) -> None:
    """A failed call ends the turn."""
    client = configured(call("fail"), tools=[fail], TOOLS__THROW_EXCEPTION_ON_ERROR="true")

    with pytest.raises(ToolExecutionError, match="broken"):
        ask(client.prompt("x"))


@pytest.mark.feature(
    "setting-tools-limits-max-calls-per-tool",
    "setting-tools-limits-max-calls",
    "setting-tools-limits-max-total-tool-calls",
    "setting-tools-limits-limit-exceeded",
    "setting-tools-limits-max-rounds",
    "setting-tools-limits-max-seconds",
    "setting-tools-limits-max-repeats",
)
@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("MAX_CALLS_PER_TOOL", "1"),
        ("MAX_CALLS_PER_TOOL_OVERRIDES", '{"work": 1}'),
        ("MAX_TOTAL_TOOL_CALLS", "1"),
        ("MAX_ROUNDS", "1"),
        ("MAX_SECONDS", "0.000001"),
        ("MAX_SECONDS", "PT0.000001S"),
        ("MAX_REPEATS", "1"),
    ],
)
def test_limits(ask: Ask, configured: Configured, setting: str, value: str) -> None:
    """Each limit applies with its action."""
    client = configured(
        *[call("work", id=str(at)) for at in range(4)],
        tools=[work],
        TOOLS__LIMITS__ON_LIMIT_EXCEEDED="raise",
        **{f"TOOLS__LIMITS__{setting}": value},
    )

    with pytest.raises(ToolLoopError):
        ask(client.prompt("x"))


@pytest.mark.feature("setting-tools-limits-excluded")
def test_no_limits(ask: Ask, configured: Configured) -> None:
    """-1 disables a limit; excluded tools do not count."""
    calls = [call("work", f'{{"n": {at}}}', id=str(at)) for at in range(45)]

    @tool(name="work")
    def count(n: int) -> str:
        """Count."""
        return str(n)

    unlimited = configured(calls, "done", tools=[count], TOOLS__LIMITS__MAX_CALLS_PER_TOOL="-1")
    assert ask(unlimited.prompt("x")).text == "done"
    excluded = configured(
        calls,
        "done",
        tools=[count],
        TOOLS__LIMITS__MAX_CALLS_PER_TOOL="3",
        TOOLS__LIMITS__EXCLUDED_TOOLS='["work"]',
    )
    assert ask(excluded.prompt("x")).text == "done"


@pytest.mark.feature("setting-tools-max-concurrency", "setting-tools-blocking-concurrency")
def test_concurrency(configured: Configured) -> None:
    """The setting limits the number of parallel tools."""
    client = configured(TOOLS__MAX_CONCURRENCY="3", TOOLS__BLOCKING_CONCURRENCY="2")

    manager = client._shared.manager
    assert (manager.concurrency(ON_LOOP), manager.concurrency(BLOCKING)) == (3, 2)


@pytest.mark.feature("setting-tools-eager-reads")
@pytest.mark.parametrize("eager", ["true", "false"])
def test_eager_reads(configured: Configured, eager: str) -> None:
    """The setting starts read-only tools during the stream."""
    client = configured(TOOLS__EAGER_READS=eager)

    streaming = replace(ON_LOOP, streaming=True)
    watched = client._shared.manager.watched(Prompt("x"), streaming, ToolState())
    assert (watched is not streaming) == (eager == "true")


@pytest.mark.feature("setting-tools-wait-together")
@pytest.mark.parametrize("together", ["true", "false"])
def test_wait_together(configured: Configured, together: str) -> None:
    """The setting holds all calls of a response while one of them waits."""
    client = configured(TOOLS__WAIT_TOGETHER=together)

    assert (client._shared.manager._approvals == ()) == (together == "true")


@pytest.mark.feature("setting-tools-resolution-fallback-enabled")
def test_resolution_fallback(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tools that were not offered run only if the setting allows it."""
    resolver = StaticToolCallbackResolver(work)

    def answer() -> str:
        model = ScriptedModel(call("work"), "done")
        client = ChatClient.from_settings(model=model, resolver=resolver)
        request = client.prompt("x").tools(fail)
        return ask(request).executions[0].response.data

    assert "no tool 'work'" in answer()
    monkeypatch.setenv("CHATCLIENT_TOOLS__RESOLUTION__FALLBACK_ENABLED", "true")
    assert answer() == "worked"
    with pytest.raises(UsageError, match="needs a resolver"):
        ChatClient.from_settings(model=ScriptedModel())


# --- tool search ---


@pytest.mark.feature(
    "setting-tool-search-max-results",
    "setting-tool-search-system-message-suffix",
    "setting-tool-search-reference-name-accumulation",
    "setting-tool-search-session-id-key-name",
    "setting-tool-search-advisor-order",
    "setting-tool-search-eviction-lru-max-sessions",
)
def test_tool_search(configured: Configured) -> None:
    """Every setting is passed to the advisor, which replaces the loop."""
    client = configured(
        TOOL_SEARCH__ENABLED="true",
        TOOL_SEARCH__MAX_RESULTS="3",
        TOOL_SEARCH__SYSTEM_MESSAGE_SUFFIX="Search first.",
        TOOL_SEARCH__REFERENCE_TOOL_NAME_ACCUMULATION="false",
        TOOL_SEARCH__SESSION_ID_KEY_NAME="session",
        TOOL_SEARCH__THRESHOLD="2",
        TOOL_SEARCH__ADVISOR_ORDER="9",
        TOOL_SEARCH__EVICTION__LRU_MAX_SESSIONS="4",
    )

    advisor = only_advisor(client, ToolCallingAdvisor)
    assert isinstance(advisor, ToolSearchToolCallingAdvisor)
    assert isinstance(advisor.tool_index, KeywordToolIndex)
    assert advisor.max_results == 3
    assert advisor.system_message_suffix == "Search first."
    assert not advisor.accumulates
    assert advisor.session_id_key_name == "session"
    assert advisor.threshold == 2
    assert advisor.order == 9
    eviction = advisor.eviction_strategy
    assert isinstance(eviction, LruEvictionStrategy)
    assert [list(eviction.on_access(str(at))) for at in range(5)] == [[], [], [], [], ["0"]]


@pytest.mark.feature(
    "setting-tool-search-enabled",
    "setting-tool-search-threshold",
    "setting-tool-search-always-visible",
)
def test_tool_search_finds_tools(ask: Ask, configured: Configured) -> None:
    """The model gets the search tool and visible tools, and finds the others."""
    client = configured(
        call("toolSearchTool", '{"query": "work"}'),
        call("work"),
        "done",
        tools=[work, fail],
        TOOL_SEARCH__ENABLED="true",
        TOOL_SEARCH__THRESHOLD="0",
        TOOL_SEARCH__ALWAYS_VISIBLE='["fail"]',
    )

    result = ask(client.prompt("x").conversation("1"))

    prompts = client.model.prompts  # type: ignore[attr-defined]
    offered = [[c.definition.name for c in p.options.tool_callbacks] for p in prompts]
    assert offered[0] == ["toolSearchTool", "fail"] or offered[0] == ["fail", "toolSearchTool"]
    assert "work" in offered[1]
    assert result.executions[1].response.data == "worked"


@pytest.mark.feature("setting-tool-search-disclosure")
def test_found_tools_in_the_conversation(ask: Ask, configured: Configured) -> None:
    """They are called by name, and not sent."""
    client = configured(
        call("toolSearchTool", '{"query": "work"}'),
        call("callTool", '{"name": "work", "arguments": {}}'),
        "done",
        tools=[work, fail],
        TOOL_SEARCH__ENABLED="true",
        TOOL_SEARCH__THRESHOLD="0",
        TOOL_SEARCH__DISCLOSURE="in_conversation",
    )

    result = ask(client.prompt("x").conversation("1"))

    prompts = client.model.prompts  # type: ignore[attr-defined]
    offered = [[c.definition.name for c in p.options.tool_callbacks] for p in prompts]
    assert offered == [["toolSearchTool", "callTool"]] * 3
    assert result.executions[1].response.data == "worked"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90), ("30m", 1_800), ("1h", 3_600), ("1H30m", 5_400), ("500ms", 0.5),
        ("2d", 172_800), ("1.5h", 5_400), (" 12.5 ", 12.5), ("PT3M", 180), ("-1", None),
    ],
)  # fmt: skip
def test_times(text: str, seconds: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Times have units, or are seconds; -1 is no limit."""
    names = (
        "TOOLS__LIMITS__MAX_SECONDS",
        "TOOL_SEARCH__EVICTION__TTL",
        "RETRY__BACKOFF__MAX_INTERVAL",
    )
    monkeypatch.setenv("CHATCLIENT_TOOL_SEARCH__ENABLED", "true")
    for name in (*names, "MEMORY__REDIS__TIME_TO_LIVE"):
        monkeypatch.setenv(f"CHATCLIENT_{name}", text)
    settings = ChatClientSettings.load()

    expected = None if seconds is None else timedelta(seconds=seconds)
    assert settings.tools.limits.max_seconds == expected
    assert settings.tool_search.eviction.ttl == expected
    assert settings.memory.redis.time_to_live == expected
    assert settings.retry.backoff.max_interval == (expected or timedelta.max)
    ChatClient.from_settings(settings.model_copy(update={"model": "ollama:x"}))


@pytest.mark.parametrize("text", ["soon", "30 minutes", "1h30", "m", ""])
def test_invalid_times(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error shows how times are written."""
    monkeypatch.setenv("CHATCLIENT_TOOLS__LIMITS__MAX_SECONDS", text)

    with pytest.raises(UsageError, match=r"max_seconds.*write 90s, 30m, 1h"):
        ChatClientSettings.load()


@pytest.mark.feature("setting-tool-search-eviction-ttl")
def test_tool_search_session_ttl(configured: Configured) -> None:
    """A time to live evicts sessions."""
    client = configured(TOOL_SEARCH__ENABLED="true", TOOL_SEARCH__EVICTION__TTL="PT1H")

    strategy = only_advisor(client, ToolSearchToolCallingAdvisor).eviction_strategy
    assert isinstance(strategy, CompositeEvictionStrategy)


@pytest.mark.feature("setting-tool-search-index-type")
def test_tool_index_types(configured: Configured, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regular expressions or an index of the application; vectors need the latter."""
    regex = pytest.importorskip("chatclient.tools.search.regex")
    client = configured(TOOL_SEARCH__ENABLED="true", TOOL_SEARCH__TOOL_INDEX_TYPE="regex")
    assert isinstance(
        only_advisor(client, ToolSearchToolCallingAdvisor).tool_index, regex.RegexToolIndex
    )


def test_vector_index_must_be_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a given index no client is built."""
    monkeypatch.setenv("CHATCLIENT_TOOL_SEARCH__ENABLED", "true")
    monkeypatch.setenv("CHATCLIENT_TOOL_SEARCH__TOOL_INDEX_TYPE", "vector")
    index = KeywordToolIndex()

    client = ChatClient.from_settings(model=ScriptedModel(), tool_index=index)

    assert only_advisor(client, ToolSearchToolCallingAdvisor).tool_index is index
    with pytest.raises(UsageError, match="tool_index="):
        ChatClient.from_settings(model=ScriptedModel())


# --- memory ---


@pytest.mark.feature("setting-memory-enabled", "setting-memory-max-messages")
def test_memory(ask: Ask, configured: Configured) -> None:
    """A conversation is remembered within the window."""
    client = configured("one", "two", "three", MEMORY__ENABLED="true", MEMORY__MAX_MESSAGES="2")

    for text in ("a", "b", "c"):
        ask(client.prompt(text).conversation("1"))

    prompts = client.model.prompts  # type: ignore[attr-defined]
    assert prompts[1].messages == (UserMessage("a"), AssistantMessage("one"), UserMessage("b"))
    assert prompts[2].messages == (UserMessage("b"), AssistantMessage("two"), UserMessage("c"))


@pytest.mark.feature("setting-memory-advisor", "setting-memory-advisor-order")
def test_memory_in_the_system_text(ask: Ask, configured: Configured) -> None:
    """The other advisor, with its order and without tool messages."""
    variables = {"ENABLED": "true", "ADVISOR": "prompt", "ADVISOR_ORDER": "3"}
    memory = {f"MEMORY__{name}": value for name, value in variables.items()}
    more = {"tools": [work], "MEMORY__TOOL_MESSAGES": "false"}
    client = configured(call("work"), "done", "again", **memory, **more)
    for text in ("a", "b"):
        ask(client.prompt(text).conversation("1"))
    system, question = client.model.prompts[-1].messages  # type: ignore[attr-defined]

    assert order_of(only_advisor(client, PromptChatMemoryAdvisor)) == 3
    assert question == UserMessage("b")
    assert "done" in system.text
    assert "worked" not in system.text


@pytest.mark.feature("setting-memory-tool-messages")
def test_tool_messages_in_memory(ask: Ask, configured: Configured) -> None:
    """Tool messages are remembered unless disabled."""

    def remembered(**more: str) -> int:
        client = configured(call("work"), "done", tools=[work], MEMORY__ENABLED="true", **more)
        ask(client.prompt("x").conversation("1"))
        return len(only_advisor(client, MessageChatMemoryAdvisor).memory.get("1"))

    assert remembered() == 4
    assert remembered(MEMORY__TOOL_MESSAGES="false") == 2


@pytest.mark.feature(
    "setting-memory-repository",
    "setting-memory-sql-url",
    "setting-memory-sql-initialize-schema",
    "setting-memory-sql-table-prefix",
)
def test_memory_in_a_database(
    ask: Ask, configured: Configured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another client with the same settings has the conversation."""
    pytest.importorskip("sqlalchemy")
    variables = {
        "MEMORY__ENABLED": "true",
        "MEMORY__REPOSITORY": "sql",
        "MEMORY__SQL__URL": f"sqlite:///{tmp_path / 'memory.db'}",
        "MEMORY__SQL__TABLE_PREFIX": "mine_",
    }
    ask(configured("Hello Ann.", **variables).prompt("I am Ann.").conversation("1"))

    client = configured("Ann.")
    ask(client.prompt("Who am I?").conversation("1"))

    assert len(client.model.prompts[0].messages) == 3  # type: ignore[attr-defined]
    import sqlite3

    with closing(sqlite3.connect(tmp_path / "memory.db")) as database:
        names = [name for (name,) in database.execute("SELECT name FROM sqlite_master")]
    assert any(name.startswith("mine_") for name in names)
    with pytest.raises(Exception, match="create_schema=True"):
        ask(
            configured(
                "never",
                MEMORY__SQL__TABLE_PREFIX="other_",
                MEMORY__SQL__INITIALIZE_SCHEMA="false",
            )
            .prompt("x")
            .conversation("1")
        )


@pytest.mark.parametrize("way", ["close", "aclose"])
def test_client_closes_its_memory(tmp_path: Path, way: str) -> None:
    """Memory is closed also if closing the model fails."""
    pytest.importorskip("sqlalchemy")

    class Stuck(ScriptedModel):
        def close(self) -> None:
            raise OSError("stuck")

    url = f"sqlite:///{tmp_path / 'memory.db'}"
    stored = MemorySettings(enabled=True, repository="sql", sql=SqlSettings(url=url))
    client = ChatClient.from_settings(ChatClientSettings(memory=stored), model=Stuck("hi"))
    client.prompt("x").conversation("1").call().content()
    memory = only_advisor(client, MessageChatMemoryAdvisor).memory
    pool = memory.repository._database.engine.pool

    assert pool.checkedin() == 1
    with pytest.raises(OSError, match="stuck"):
        client.close() if way == "close" else asyncio.run(client.aclose())
    assert memory.repository._database.engine.pool.checkedin() == 0


@pytest.mark.feature(
    "setting-memory-redis-url", "setting-memory-redis-key-prefix", "setting-memory-redis-time-live"
)
def test_memory_in_redis(configured: Configured) -> None:
    """URL, prefix and time to live are passed to the repository."""
    pytest.importorskip("redis")
    client = configured(
        MEMORY__ENABLED="true",
        MEMORY__REPOSITORY="redis",
        MEMORY__REDIS__URL="redis://127.0.0.1:1/5",
        MEMORY__REDIS__KEY_PREFIX="mine:",
        MEMORY__REDIS__TIME_TO_LIVE="P60D",
    )

    repository = only_advisor(client, MessageChatMemoryAdvisor).memory.repository
    assert repository._server.prefix == b"mine:"
    assert int(repository._milliseconds) == timedelta(days=60) / timedelta(milliseconds=1)
    connection = repository._server.client.connection_pool.connection_kwargs
    assert (connection["port"], connection["db"]) == (1, 5)


def test_default_memory(configured: Configured) -> None:
    """The default is in-memory."""
    client = configured(MEMORY__ENABLED="true")

    advisor = only_advisor(client, MessageChatMemoryAdvisor)
    assert isinstance(advisor.memory.repository, InMemoryChatMemoryRepository)


# --- retries ---


@pytest.fixture
def against(
    chat_server: Callable[..., ChatServer], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[ChatClient, ChatServer]]:
    """Return a client with settings for a server with the given replies."""

    def start(*replies: Any, **variables: str) -> tuple[ChatClient, ChatServer]:
        server = chat_server(*replies)
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        monkeypatch.setenv("CHATCLIENT_MODEL", "openai:test")
        for name, value in variables.items():
            monkeypatch.setenv(f"CHATCLIENT_RETRY__{name}", value)
        return ChatClient.from_settings(), server

    return start


FAST = {"BACKOFF__INITIAL_INTERVAL": "PT0.001S", "BACKOFF__MAX_INTERVAL": "0.002"}


@pytest.mark.feature("setting-retry-max-attempts")
def test_max_attempts(against: Any) -> None:
    """The number of retries is that of the setting."""
    client, server = against(error_reply(503), MAX_ATTEMPTS="4", **FAST)

    with client, pytest.raises(OverloadedError):
        client.prompt("x").call().content()

    assert len(server.requests) == 5


@pytest.mark.feature("setting-retry-client-errors")
def test_on_client_errors(against: Any) -> None:
    """Client errors are retried only by setting."""
    client, server = against(
        error_reply(400), error_reply(418), "ok", ON_CLIENT_ERRORS="true", **FAST
    )

    with client:
        assert client.prompt("x").call().content() == "ok"
    assert len(server.requests) == 3


@pytest.mark.feature("setting-retry-http-codes")
def test_on_http_codes(against: Any) -> None:
    """A listed status is retried."""
    client, server = against(
        error_reply(418), "made it", ON_HTTP_CODES="[418]", EXCLUDE_ON_HTTP_CODES="[418]", **FAST
    )

    with client:
        assert client.prompt("x").call().content() == "made it"
    assert len(server.requests) == 2


@pytest.mark.feature("setting-retry-exclude-http-codes")
def test_exclude_on_http_codes(against: Any) -> None:
    """An excluded status is not retried."""
    client, server = against(error_reply(503), EXCLUDE_ON_HTTP_CODES="[503]", **FAST)

    with client, pytest.raises(OverloadedError):
        client.prompt("x").call().content()

    assert len(server.requests) == 1


def test_other_retry_settings_keep_client_errors_final(against: Any) -> None:
    """Other retry settings do not retry client errors."""
    client, server = against(error_reply(418), **FAST)

    with client, pytest.raises(InvalidRequestError):
        client.prompt("x").call().content()

    assert len(server.requests) == 1


@pytest.mark.feature(
    "setting-retry-backoff-initial-interval",
    "setting-retry-backoff-max-interval",
    "setting-retry-backoff-multiplier",
)
def test_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    """The delays are passed to the retry policy."""
    from chatclient.settings.client_parts import model_settings_of

    monkeypatch.setenv("CHATCLIENT_RETRY__BACKOFF__INITIAL_INTERVAL", "2")
    monkeypatch.setenv("CHATCLIENT_RETRY__BACKOFF__MAX_INTERVAL", "PT3M")
    monkeypatch.setenv("CHATCLIENT_RETRY__BACKOFF__MULTIPLIER", "5")

    policy = model_settings_of(ChatClientSettings.load())["max_retries"]

    assert policy == RetryPolicy(first_wait=2.0, longest_wait=180.0, multiplier=5.0)


# --- the table ---


@pytest.mark.feature(
    "setting-observations-log-prompt",
    "setting-observations-log-completion",
    "setting-observations-log",
    "observation-log-prompt-completion",
)
@pytest.mark.parametrize("at", ["client", "model"])
@pytest.mark.parametrize(
    ("prompt", "completion", "events"),
    [("true", "false", ["request"]), ("false", "true", ["response"]), ("true", "true", None)],
)
def test_content_logging(
    ask: Ask,
    configured: Configured,
    caplog: pytest.LogCaptureFixture,
    at: str,
    prompt: str,
    completion: str,
    events: list[str] | None,
) -> None:
    """Prompts, answers or both; per turn or model call; at level info."""
    caplog.set_level("INFO", "chatclient.advisors.simple_logger")
    client = configured(
        call("work"),
        "done",
        tools=[work],
        OBSERVATIONS__LOG_PROMPT=prompt,
        OBSERVATIONS__LOG_COMPLETION=completion,
        OBSERVATIONS__LOG_AT=at,
    )
    ask(client.prompt("a question"))

    once = events or ["request", "response"]
    found = [record.__dict__["chatclient"] for record in caplog.records]
    assert [each["event"] for each in found] == once * (1 if at == "client" else 2)
    assert all(record.levelname == "INFO" for record in caplog.records)
    if prompt == "true":
        assert found[0]["text"].endswith("a question")
    if completion == "true":
        assert "done" in found[-1]["text"]


def test_no_content_logging_by_default(
    ask: Ask, configured: Configured, caplog: pytest.LogCaptureFixture
) -> None:
    """Content is not logged, not even at debug."""
    caplog.set_level("DEBUG", "chatclient")
    ask(configured("an answer").prompt("a question"))
    assert "question" not in caplog.text
    assert "answer" not in caplog.text


@pytest.mark.feature("setting-observations-include-content")
@pytest.mark.parametrize("wanted", ["true", "false"])
def test_content_in_spans(
    ask: Ask, configured: Configured, monkeypatch: pytest.MonkeyPatch, wanted: str
) -> None:
    """OpenTelemetry spans have content if enabled."""
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, tracers = InMemorySpanExporter(), TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", tracers)
    ask(configured("an answer", OBSERVATIONS__INCLUDE_CONTENT=wanted).prompt("a question"))

    attributes = [dict(span.attributes or {}) for span in exporter.get_finished_spans()]
    assert len(attributes) == 3
    has_content = "a question" in str(attributes) and "an answer" in str(attributes)
    assert has_content == (wanted == "true")


def test_settings_are_documented() -> None:
    """The documentation lists exactly the existing settings."""
    docs = ROOT / "docs"
    page = (docs / "settings.md").read_text(encoding="utf-8").partition("## All settings")[2]
    explained = re.findall(r"^\| `([a-z_.]+)` \| [^|]*\| \S", page, re.MULTILINE)
    features = tomllib.loads((docs.parent / "tests" / "features.toml").read_text(encoding="utf-8"))
    rows = [row for section in features["section"] for row in section.get("row", ())]
    translated = {row.get("here") for row in rows}

    names = [name.lower().replace("__", ".") for name in _variables(ChatClientSettings)]
    assert sorted(explained) == sorted(names)
    assert [name for name in explained if f"`{name}`" not in translated] == []


def _variables(kind: Any, prefix: str = "") -> list[str]:
    names: list[str] = []
    for name, field in kind.model_fields.items():
        inner = field.annotation
        full = f"{prefix}{name.upper()}"
        if hasattr(inner, "model_fields"):
            names.extend(_variables(inner, f"{full}__"))
        else:
            names.append(full)
    return names


def test_invalid_json_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the variable without its value."""
    monkeypatch.setenv("CHATCLIENT_MEMORY__SQL", "postgres://u:hidden@h/db")
    with pytest.raises(UsageError, match="written as JSON") as caught:
        ChatClientSettings.load()

    assert "hidden" not in str(caught.value)


def test_file_with_bom(tmp_path: Path) -> None:
    """A BOM is ignored."""
    (tmp_path / "chatclient.toml").write_bytes(b'\xef\xbb\xbfmodel = "local"\n')

    assert ChatClientSettings.load().model == "local"
