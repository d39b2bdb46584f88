"""Settings: every one of them changes what a client does, wherever it is written."""

import asyncio
import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from conftest import Ask
from servers import ChatServer
from test_http import refusal

pytest.importorskip("pydantic_settings")

from chatclient import AssistantMessage, ChatClient, Prompt, UserMessage
from chatclient.advisors.memory import MessageChatMemoryAdvisor, PromptChatMemoryAdvisor
from chatclient.advisors.tool_calling import ToolCallingAdvisor
from chatclient.advisors.tool_search import ToolSearchToolCallingAdvisor
from chatclient.chain import order_of
from chatclient.configuration import options_of
from chatclient.errors import (
    InvalidRequestError,
    OverloadedError,
    ToolExecutionError,
    ToolLoopError,
    UsageError,
)
from chatclient.memory import InMemoryChatMemoryRepository
from chatclient.providers.anthropic import AnthropicChatOptions
from chatclient.providers.openai import OpenAIChatOptions
from chatclient.providers.retries import RetryPolicy
from chatclient.runtime import BLOCKING, ON_LOOP
from chatclient.settings import ChatClientSettings, MemorySettings, SqlSettings
from chatclient.testing import Answer, ScriptedModel, call
from chatclient.tools import StaticToolCallbackResolver, tool
from chatclient.tools.search import KeywordToolIndex
from chatclient.tools.search.eviction import CompositeEvictionStrategy, LruEvictionStrategy
from chatclient.tools.turn import ToolTurn


@pytest.fixture(autouse=True)
def _with_nothing_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    """Return a client of a scripted model, with environment variables as given."""
    made = ExitStack()

    def configure(*answers: Answer, tools: Any = (), **variables: str) -> ChatClient:
        for name, value in variables.items():
            monkeypatch.setenv(f"CHATCLIENT_{name}", value)
        client = made.enter_context(ChatClient.from_settings(model=ScriptedModel(*answers)))
        return client.mutate().default_tools(tools).build() if tools else client

    with made:
        yield configure


Configured = Callable[..., ChatClient]


def the(client: ChatClient, kind: type[Any]) -> Any:
    """Return the client's one advisor of a kind."""
    [found] = [advisor for advisor in client._pipeline.chain.advisors if isinstance(advisor, kind)]
    return found


# --- where they are read ---


def test_without_settings_a_client_is_as_any_other(ask: Ask, configured: Configured) -> None:
    """Every default is the library's own."""
    client = configured([call("fail"), call("work")], "done", tools=[fail, work])

    assert ask(client.prompt("x")).text == "done"
    assert str(client) == str(ChatClient.create(client.model))
    assert ChatClientSettings.load() == ChatClientSettings()


def test_environment_goes_before_files_and_one_file_before_the_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Groups are merged, setting by setting."""
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


def test_a_file_can_be_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Then no other file counts; the environment still does."""
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


def test_a_file_that_is_no_toml(tmp_path: Path) -> None:
    """The error names it."""
    (tmp_path / "chatclient.toml").write_text("model = ")

    with pytest.raises(UsageError, match=r"'chatclient\.toml' is not TOML"):
        ChatClientSettings.load()


def test_mistakes_are_told_all_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What is unknown is not passed over, what does not fit is named by setting and variable."""
    (tmp_path / "chatclient.toml").write_text("modle = 'x'\n[memory]\nmax_mesages = 2\n")
    monkeypatch.setenv("CHATCLIENT_TOOLS__MAX_CONCURRENCY", "many")

    with pytest.raises(UsageError) as raised:
        ChatClientSettings.load()

    told = str(raised.value)
    assert "modle is not a setting" in told
    assert "memory.max_mesages is not a setting" in told
    assert "tools.max_concurrency (or CHATCLIENT_TOOLS__MAX_CONCURRENCY): input should" in told


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
def test_a_misspelt_variable_is_not_passed_over(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    """What it was to say would not hold, and nobody would notice."""
    monkeypatch.setenv(variable, "s3cr3t")

    with pytest.raises(UsageError, match=f"{variable} is not a setting; a dot is") as raised:
        ChatClientSettings.load()
    assert "s3cr3t" not in "".join(traceback.format_exception(raised.value))


def test_other_variables_may_begin_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of an application, and those of the library that are no settings."""
    monkeypatch.setenv("CHATCLIENT_HTTP", "httpx")
    monkeypatch.setenv("CHATCLIENT_PORT", "80")
    monkeypatch.setenv("CHATCLIENT_MEMORY_PATH", "/tmp/app")
    monkeypatch.setenv("OTHER_MEMORY_ENABLED", "1")
    monkeypatch.setenv("CHATCLIENT_TOOL_CALLING", '{"enabled": false}')

    assert not ChatClientSettings.load().tool_calling.enabled


def test_settings_can_be_made_in_code() -> None:
    """Without any environment, for tests and tools of an application's own."""
    settings = ChatClientSettings(tool_calling={"enabled": False})  # type: ignore[arg-type]
    client = ChatClient.from_settings(settings, model=ScriptedModel(call("work")))

    assert client.prompt("x").tools(work).call().chat_response().has_tool_calls()


def test_settings_show_no_password() -> None:
    """Addresses of databases stay out of logs."""
    secret = {"sql": {"url": "postgresql://u:s3cr3t@h/d"}, "redis": {"url": "redis://:s3cr3t@h"}}

    assert "s3cr3t" not in repr(ChatClientSettings(memory=secret))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("toml", "told"),
    [
        ('[memory]\nsql = "postgresql://u:s3cr3t@h/d"', "memory.sql .* should be a valid dict"),
        ('[memory.sql]\npassword = "s3cr3t"', "memory.sql.password is not a setting"),
        ('key = "s3cr3t"', "key is not a setting"),
    ],
)
def test_a_value_in_the_wrong_place_is_not_told(tmp_path: Path, toml: str, told: str) -> None:
    """Nor by the cause: it may be a secret."""
    (tmp_path / "chatclient.toml").write_text(toml)

    with pytest.raises(UsageError, match=told) as raised:
        ChatClientSettings.load()
    assert "s3cr3t" not in "".join(traceback.format_exception(raised.value))


@pytest.mark.parametrize("toml", ["tool = 1", "[tool]\nchatclient = 'x'"])
def test_a_table_that_is_none_is_refused(tmp_path: Path, toml: str) -> None:
    """By its name and that of the file."""
    (tmp_path / "pyproject.toml").write_text(toml)

    with pytest.raises(UsageError, match=r"tool\.chatclient in 'pyproject\.toml' must be a table"):
        ChatClientSettings.load()


# --- model and options ---


def test_the_model_is_named(configured: Configured, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its name, or given to `from_settings`; one of them has to be."""
    monkeypatch.setenv("CHATCLIENT_MODEL", "ollama:qwen3")
    assert ChatClient.from_settings().model.name == "qwen3"
    monkeypatch.delenv("CHATCLIENT_MODEL")

    with pytest.raises(UsageError, match="no model: set CHATCLIENT_MODEL"):
        ChatClient.from_settings()


def test_options_of_every_request(configured: Configured) -> None:
    """Numbers stay numbers, and what the model does not know is refused."""
    client = configured("a", OPTIONS__TEMPERATURE="0.5", OPTIONS__MAX_TOKENS="7")

    client.prompt("x").call().content()

    options = client.model.prompts[0].options  # type: ignore[attr-defined]
    assert (options.temperature, options.max_tokens) == (0.5, 7)
    with pytest.raises(UsageError, match="tempreature"):
        configured("a", OPTIONS__TEMPREATURE="0.5")


def test_texts_of_options_stay_texts() -> None:
    """Digits are a number only where the option is one; what has several values is JSON."""
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


def test_tool_calling_enabled(ask: Ask, configured: Configured) -> None:
    """Without, tool calls come back unexecuted."""
    client = configured(call("work"), tools=[work], TOOL_CALLING__ENABLED="false")

    assert ask(client.prompt("x")).response.chat_response.has_tool_calls()


def test_tool_calling_advisor_order(configured: Configured) -> None:
    """The loop stands where it is put."""
    client = configured(TOOL_CALLING__ADVISOR_ORDER="5")

    assert order_of(the(client, ToolCallingAdvisor)) == 5


def test_stream_tool_call_responses(configured: Configured) -> None:
    """What the model says before it calls tools is held back."""
    client = configured(
        ["thinking", call("work")],
        "done",
        tools=[work],
        TOOL_CALLING__STREAM_TOOL_CALL_RESPONSES="false",
    )

    assert "".join(client.prompt("x").stream()) == "done"


def test_throw_exception_on_error(ask: Ask, configured: Configured) -> None:
    """A failed call ends the turn."""
    client = configured(call("fail"), tools=[fail], TOOLS__THROW_EXCEPTION_ON_ERROR="true")

    with pytest.raises(ToolExecutionError, match="broken"):
        ask(client.prompt("x"))


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
    """Each is reached, and then raises as it is told to."""
    client = configured(
        *[call("work", id=str(at)) for at in range(4)],
        tools=[work],
        TOOLS__LIMITS__ON_LIMIT_EXCEEDED="raise",
        **{f"TOOLS__LIMITS__{setting}": value},
    )

    with pytest.raises(ToolLoopError):
        ask(client.prompt("x"))


def test_no_limits(ask: Ask, configured: Configured) -> None:
    """-1 is no limit, as in the reference; what is excluded counts for no limit of its own."""
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


def test_concurrency(configured: Configured) -> None:
    """How many tools run at once is what the settings say."""
    client = configured(TOOLS__MAX_CONCURRENCY="3", TOOLS__BLOCKING_CONCURRENCY="2")

    manager = client._engine.manager
    assert (manager.concurrency(ON_LOOP), manager.concurrency(BLOCKING)) == (3, 2)


@pytest.mark.parametrize("eager", ["true", "false"])
def test_eager_reads(configured: Configured, eager: str) -> None:
    """Whether reading tools begin while a streaming model speaks is what the settings say."""
    client = configured(TOOLS__EAGER_READS=eager)

    streaming = replace(ON_LOOP, streaming=True)
    watched = client._engine.manager.watched(Prompt("x"), streaming, ToolTurn())
    assert (watched is not streaming) == (eager == "true")


def test_resolution_fallback(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tools that were not offered are run only when the settings allow it."""
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


def test_tool_search(configured: Configured) -> None:
    """Every property of the search reaches the advisor, which replaces the plain loop."""
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

    advisor = the(client, ToolCallingAdvisor)
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


def test_tool_search_finds_tools(ask: Ask, configured: Configured) -> None:
    """The model is told about the search and what is always visible, and finds the rest."""
    client = configured(
        call("toolSearchTool", '{"query": "work"}'),
        call("work"),
        "done",
        tools=[work, fail],
        TOOL_SEARCH__ENABLED="true",
        TOOL_SEARCH__THRESHOLD="0",
        TOOL_SEARCH__ALWAYS_VISIBLE='["fail"]',
    )

    asked = ask(client.prompt("x").conversation("1"))

    prompts = client.model.prompts  # type: ignore[attr-defined]
    offered = [[c.definition.name for c in p.options.tool_callbacks] for p in prompts]
    assert offered[0] == ["toolSearchTool", "fail"] or offered[0] == ["fail", "toolSearchTool"]
    assert "work" in offered[1]
    assert asked.executions[1].response.data == "worked"


def test_sessions_end_after_a_time(configured: Configured) -> None:
    """A time to live is one more reason to forget a session."""
    client = configured(TOOL_SEARCH__ENABLED="true", TOOL_SEARCH__EVICTION__TTL="PT1H")

    strategy = the(client, ToolSearchToolCallingAdvisor).eviction_strategy
    assert isinstance(strategy, CompositeEvictionStrategy)


def test_tool_index_types(configured: Configured, monkeypatch: pytest.MonkeyPatch) -> None:
    """By regular expressions, or an index of the application's own, which vectors need."""
    regex = pytest.importorskip("chatclient.tools.search.regex")
    client = configured(TOOL_SEARCH__ENABLED="true", TOOL_SEARCH__TOOL_INDEX_TYPE="regex")
    assert isinstance(the(client, ToolSearchToolCallingAdvisor).tool_index, regex.RegexToolIndex)


def test_a_vector_index_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings cannot make one; without one the client is not built."""
    monkeypatch.setenv("CHATCLIENT_TOOL_SEARCH__ENABLED", "true")
    monkeypatch.setenv("CHATCLIENT_TOOL_SEARCH__TOOL_INDEX_TYPE", "vector")
    index = KeywordToolIndex()

    client = ChatClient.from_settings(model=ScriptedModel(), tool_index=index)

    assert the(client, ToolSearchToolCallingAdvisor).tool_index is index
    with pytest.raises(UsageError, match="tool_index="):
        ChatClient.from_settings(model=ScriptedModel())


# --- memory ---


def test_memory(ask: Ask, configured: Configured) -> None:
    """A conversation is remembered, as far as the window reaches."""
    client = configured("one", "two", "three", MEMORY__ENABLED="true", MEMORY__MAX_MESSAGES="2")

    for text in ("a", "b", "c"):
        ask(client.prompt(text).conversation("1"))

    prompts = client.model.prompts  # type: ignore[attr-defined]
    assert prompts[1].messages == (UserMessage("a"), AssistantMessage("one"), UserMessage("b"))
    assert prompts[2].messages == (UserMessage("b"), AssistantMessage("two"), UserMessage("c"))


def test_memory_in_the_system_text(ask: Ask, configured: Configured) -> None:
    """The other advisor, where it is put, without what the tools said."""
    variables = {"ENABLED": "true", "ADVISOR": "prompt", "ADVISOR_ORDER": "3"}
    memory = {f"MEMORY__{name}": value for name, value in variables.items()}
    more = {"tools": [work], "MEMORY__TOOL_MESSAGES": "false"}
    client = configured(call("work"), "done", "again", **memory, **more)
    for text in ("a", "b"):
        ask(client.prompt(text).conversation("1"))
    system, question = client.model.prompts[-1].messages  # type: ignore[attr-defined]

    assert order_of(the(client, PromptChatMemoryAdvisor)) == 3
    assert question == UserMessage("b")
    assert "done" in system.text
    assert "worked" not in system.text


def test_tool_messages_in_memory(ask: Ask, configured: Configured) -> None:
    """They are remembered unless the settings say otherwise."""

    def remembered(**more: str) -> int:
        client = configured(call("work"), "done", tools=[work], MEMORY__ENABLED="true", **more)
        ask(client.prompt("x").conversation("1"))
        return len(the(client, MessageChatMemoryAdvisor).memory.get("1"))

    assert remembered() == 4
    assert remembered(MEMORY__TOOL_MESSAGES="false") == 2


def test_memory_in_a_database(
    ask: Ask, configured: Configured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another client with the same settings knows the conversation."""
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
def test_a_client_closes_the_memory_that_it_opened(tmp_path: Path, way: str) -> None:
    """Also when its model cannot be closed."""
    pytest.importorskip("sqlalchemy")

    class Stuck(ScriptedModel):
        def close(self) -> None:
            raise OSError("stuck")

    url = f"sqlite:///{tmp_path / 'memory.db'}"
    stored = MemorySettings(enabled=True, repository="sql", sql=SqlSettings(url=url))
    client = ChatClient.from_settings(ChatClientSettings(memory=stored), model=Stuck("hi"))
    client.prompt("x").conversation("1").call().content()
    memory = the(client, MessageChatMemoryAdvisor).memory
    pool = memory.repository._conversations._database.engine.pool

    assert pool.checkedin() == 1
    with pytest.raises(OSError, match="stuck"):
        client.close() if way == "close" else asyncio.run(client.aclose())
    assert memory.repository._conversations._database.engine.pool.checkedin() == 0


def test_memory_in_redis(configured: Configured) -> None:
    """Address, prefix and time to live reach the repository, which connects when it is used."""
    pytest.importorskip("redis")
    client = configured(
        MEMORY__ENABLED="true",
        MEMORY__REPOSITORY="redis",
        MEMORY__REDIS__URL="redis://127.0.0.1:1/5",
        MEMORY__REDIS__KEY_PREFIX="mine:",
        MEMORY__REDIS__TIME_TO_LIVE="P60D",
    )

    repository = the(client, MessageChatMemoryAdvisor).memory.repository
    assert repository._prefix == b"mine:"
    assert int(repository._milliseconds) == timedelta(days=60) / timedelta(milliseconds=1)
    connection = repository._client.connection_pool.connection_kwargs
    assert (connection["port"], connection["db"]) == (1, 5)


def test_memory_is_in_this_process_by_default(configured: Configured) -> None:
    """Nothing has to be installed to try it."""
    client = configured(MEMORY__ENABLED="true")

    advisor = the(client, MessageChatMemoryAdvisor)
    assert isinstance(advisor.memory.repository, InMemoryChatMemoryRepository)


# --- retries ---


@pytest.fixture
def against(
    chat_server: Callable[..., ChatServer], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[ChatClient, ChatServer]]:
    """Return a client of a server that replies as given, with settings as given."""

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


def test_max_attempts(against: Any) -> None:
    """As often as the settings say, after the first time."""
    client, server = against(refusal(503), MAX_ATTEMPTS="4", **FAST)

    with client, pytest.raises(OverloadedError):
        client.prompt("x").call().content()

    assert len(server.requests) == 5


def test_on_client_errors(against: Any) -> None:
    """What is the client's fault is tried again only when asked."""
    client, server = against(refusal(400), refusal(418), "ok", ON_CLIENT_ERRORS="true", **FAST)

    with client:
        assert client.prompt("x").call().content() == "ok"
    assert len(server.requests) == 3


def test_on_http_codes(against: Any) -> None:
    """A status that is named is tried again, whatever it is."""
    client, server = against(
        refusal(418), "made it", ON_HTTP_CODES="[418]", EXCLUDE_ON_HTTP_CODES="[418]", **FAST
    )

    with client:
        assert client.prompt("x").call().content() == "made it"
    assert len(server.requests) == 2


def test_exclude_on_http_codes(against: Any) -> None:
    """A status that is excluded is final."""
    client, server = against(refusal(503), EXCLUDE_ON_HTTP_CODES="[503]", **FAST)

    with client, pytest.raises(OverloadedError):
        client.prompt("x").call().content()

    assert len(server.requests) == 1


def test_client_errors_are_final_by_default(against: Any) -> None:
    """Setting anything else about retries does not change that."""
    client, server = against(refusal(418), **FAST)

    with client, pytest.raises(InvalidRequestError):
        client.prompt("x").call().content()

    assert len(server.requests) == 1


def test_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    """The waits reach the provider's policy."""
    from chatclient.configuration import model_settings_of

    monkeypatch.setenv("CHATCLIENT_RETRY__BACKOFF__INITIAL_INTERVAL", "2")
    monkeypatch.setenv("CHATCLIENT_RETRY__BACKOFF__MAX_INTERVAL", "PT3M")
    monkeypatch.setenv("CHATCLIENT_RETRY__BACKOFF__MULTIPLIER", "5")

    policy = model_settings_of(ChatClientSettings.load())["max_retries"]

    assert policy == RetryPolicy(first_wait=2.0, longest_wait=180.0, multiplier=5.0)


# --- the table ---


@pytest.mark.parametrize("at", ["client", "model"])
@pytest.mark.parametrize(
    ("prompt", "completion", "events"),
    [("true", "false", ["request"]), ("false", "true", ["response"]), ("true", "true", None)],
)
def test_what_is_said_is_logged(
    ask: Ask,
    configured: Configured,
    caplog: pytest.LogCaptureFixture,
    at: str,
    prompt: str,
    completion: str,
    events: list[str] | None,
) -> None:
    """Prompts, answers or both; once for a turn or for every model call; at info."""
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


def test_nothing_is_logged_by_default(
    ask: Ask, configured: Configured, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor at debug: what was said is nobody's business."""
    caplog.set_level("DEBUG", "chatclient")
    ask(configured("an answer").prompt("a question"))
    assert "question" not in caplog.text
    assert "answer" not in caplog.text


@pytest.mark.parametrize("wanted", ["true", "false"])
def test_content_in_spans(
    ask: Ask, configured: Configured, monkeypatch: pytest.MonkeyPatch, wanted: str
) -> None:
    """The application's OpenTelemetry records what was said, when it is asked to."""
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
    said = "a question" in str(attributes) and "an answer" in str(attributes)
    assert said == (wanted == "true")


def test_every_setting_is_in_the_tables() -> None:
    """The page explains every setting that there is, and none that there is not."""
    docs = Path(__file__).parent.parent / "docs"
    page = (docs / "settings.md").read_text(encoding="utf-8").partition("## All settings")[2]
    explained = re.findall(r"^\| `([a-z_.]+)` \| [^|]*\| \S", page, re.MULTILINE)
    features = (docs / "features.md").read_text(encoding="utf-8")

    names = [name.lower().replace("__", ".") for name in _variables(ChatClientSettings)]
    assert sorted(explained) == sorted(names)
    assert [name for name in explained if f"| `{name}` |" not in features] == []


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


def test_a_variable_that_is_no_json_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has several values is written as JSON; what it held is not repeated."""
    monkeypatch.setenv("CHATCLIENT_MEMORY__SQL", "postgres://u:hidden@h/db")
    with pytest.raises(UsageError, match="written as JSON") as caught:
        ChatClientSettings.load()

    assert "hidden" not in str(caught.value)


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    """Some editors write one."""
    (tmp_path / "chatclient.toml").write_bytes(b'\xef\xbb\xbfmodel = "local"\n')

    assert ChatClientSettings.load().model == "local"
