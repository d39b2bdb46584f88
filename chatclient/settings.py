"""The settings of a client, read from environment variables and TOML files.

Needs the extra `settings`, and is imported by whoever wants it: `ChatClient.from_settings()`.
"""

import os
import tomllib
from collections.abc import Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from chatclient.errors import UsageError
from chatclient.options import OptionValues
from chatclient.texts import as_clause

try:
    from pydantic import (
        BaseModel,
        BeforeValidator,
        ConfigDict,
        Field,
        NonNegativeInt,
        PositiveFloat,
        PositiveInt,
        ValidationError,
    )
    from pydantic_settings import (
        BaseSettings,
        InitSettingsSource,
        PydanticBaseSettingsSource,
        SettingsConfigDict,
        SettingsError,
    )
except ModuleNotFoundError as missing:
    _MESSAGE = "Settings need pydantic-settings. Run: pip install 'chatclient[settings]'"
    raise UsageError(_MESSAGE) from missing

UNLIMITED = -1
"""What stands for no limit, where None cannot be written."""

_PREFIX, _DOT = "CHATCLIENT_", "__"  # of environment variables
_Limit = int | None


def _seconds(value: Any) -> Any:
    """Return a number of seconds as one, also where it was written as a text."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value  # ISO 8601


Duration = Annotated[timedelta, BeforeValidator(_seconds)]


class _Group(BaseModel):
    # A value that does not fit may be a secret, such as a URL in the wrong place.
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class ToolCallingSettings(_Group):
    """The tool loop.

    Attributes:
        enabled: Whether tools are run; without, tool calls come back unexecuted.
        advisor_order: Where the loop stands in the chain.
        stream_tool_call_responses: Whether what the model says before it calls tools is streamed.
    """

    enabled: bool = True
    advisor_order: int | None = None
    stream_tool_call_responses: bool = True


class ToolLimitsSettings(_Group):
    """How long one turn may go on; -1 is no limit. See `ToolLimits`.

    `max_seconds` is a number of them, or ISO 8601 such as `PT3M`.
    """

    max_rounds: _Limit = 100
    max_calls_per_tool: _Limit = 40
    max_calls_per_tool_overrides: dict[str, int] = {}
    excluded_tools: frozenset[str] = frozenset()
    max_total_tool_calls: _Limit = 150
    max_seconds: Duration | None = None
    max_repeats: _Limit = 3
    on_limit_exceeded: Literal["partial", "raise", "tell_model", "final_answer"] = "partial"


class ToolResolutionSettings(_Group):
    """What becomes of calls of tools that were not offered.

    Attributes:
        fallback_enabled: Whether those that the client's resolver knows are run.
    """

    fallback_enabled: bool = False


class ToolSettings(_Group):
    """How tools are run.

    Attributes:
        throw_exception_on_error: Whether a failed call ends the turn; if not, the model is told.
        max_concurrency: How many calls of one response run at once on an event loop.
        blocking_concurrency: The same in blocking requests.
        eager_reads: Whether, in a stream, tools that only read begin while the model still speaks.
        limits: How long a turn may go on.
        resolution: What becomes of calls of tools that were not offered.
    """

    throw_exception_on_error: bool = False
    max_concurrency: PositiveInt = 8
    blocking_concurrency: PositiveInt = 1
    eager_reads: bool = False
    limits: ToolLimitsSettings = ToolLimitsSettings()
    resolution: ToolResolutionSettings = ToolResolutionSettings()


class EvictionSettings(_Group):
    """Which tool search sessions are forgotten.

    Attributes:
        lru_max_sessions: How many are kept, those used last.
        ttl: How long one is kept after its last use: seconds, or ISO 8601 such as `PT1H`.
    """

    lru_max_sessions: PositiveInt = 1000
    ttl: Duration | None = None


class ToolSearchSettings(_Group):
    """Tool search in place of a plain tool loop; see `ToolSearchToolCallingAdvisor`.

    Attributes:
        enabled: Whether the model searches its tools.
        tool_index_type: What finds the tools. `vector` needs an index, passed to `from_settings`.
        max_results: How many tools a search finds when the model does not say.
        system_message_suffix: What the model is told about the search.
        reference_tool_name_accumulation: Whether tools stay visible once found.
        session_id_key_name: The key in the request's context of the session's id.
        threshold: Where fewer tools could be searched, all are sent.
        always_visible: Tools the model is always told about.
        advisor_order: Where the loop stands in the chain.
        eviction: Which sessions are forgotten.
    """

    enabled: bool = False
    tool_index_type: Literal["keyword", "regex", "vector"] = "keyword"
    max_results: PositiveInt | None = None
    system_message_suffix: str | None = None
    reference_tool_name_accumulation: bool = True
    session_id_key_name: str | None = None
    threshold: NonNegativeInt | None = None
    always_visible: frozenset[str] = frozenset()
    advisor_order: int | None = None
    eviction: EvictionSettings = EvictionSettings()


class SqlSettings(_Group):
    """Conversations in an SQL database.

    Attributes:
        url: Where, as SQLAlchemy writes it; `postgresql+psycopg://…`.
        initialize_schema: Whether missing tables are made.
        table_prefix: How the tables' names begin.
    """

    url: str = Field(default="sqlite:///chat_memory.db", repr=False)
    initialize_schema: bool = True
    table_prefix: str | None = None


class RedisSettings(_Group):
    """Conversations in Redis.

    Attributes:
        url: Where.
        key_prefix: How the keys begin.
        time_to_live: How long a conversation is kept after its last message.
    """

    url: str = Field(default="redis://localhost:6379/0", repr=False)
    key_prefix: str | None = None
    time_to_live: Duration | None = None


class MemorySettings(_Group):
    """Chat memory.

    Attributes:
        enabled: Whether conversations are remembered.
        advisor: How the model is shown what was said: as messages, or in the system text.
        advisor_order: Where the advisor stands in the chain.
        max_messages: How many messages it is shown at most.
        tool_messages: Whether tool calls and their answers are remembered too.
        repository: Where conversations are kept.
        sql: The database, for `sql`.
        redis: The server, for `redis`.
    """

    enabled: bool = False
    advisor: Literal["messages", "prompt"] = "messages"
    advisor_order: int | None = None
    max_messages: PositiveInt = 20
    tool_messages: bool = True
    repository: Literal["in_memory", "sql", "redis"] = "in_memory"
    sql: SqlSettings = SqlSettings()
    redis: RedisSettings = RedisSettings()


class BackoffSettings(_Group):
    """How long to wait before a retry, in seconds or ISO 8601; see `RetryPolicy`."""

    initial_interval: Duration | None = None
    max_interval: Duration | None = None
    multiplier: PositiveFloat | None = None


class RetrySettings(_Group):
    """When the provider is asked again; what is not set is the provider's default.

    Attributes:
        max_attempts: How often, after the first time.
        on_client_errors: Whether after every status from 400 to 499.
        on_http_codes: Statuses after which it is, in any case.
        exclude_on_http_codes: Statuses after which it is not.
        backoff: How long to wait before.
    """

    max_attempts: NonNegativeInt | None = None
    on_client_errors: bool = False
    on_http_codes: frozenset[int] = frozenset()
    exclude_on_http_codes: frozenset[int] = frozenset()
    backoff: BackoffSettings = BackoffSettings()


class ObservationSettings(_Group):
    """What of a conversation may be seen by those who watch; nothing by default.

    Attributes:
        log_prompt: Whether what a model is sent is logged, at info.
        log_completion: Whether what it answers is.
        log_at: Whether that is logged once for a turn (`client`), or for every model call.
        include_content: Whether spans hold prompts, answers, and the arguments and results of
            tools. The application's OpenTelemetry makes the spans.
    """

    log_prompt: bool = False
    log_completion: bool = False
    log_at: Literal["client", "model"] = "model"
    include_content: bool = False


class ChatClientSettings(BaseSettings):
    """All settings of a client.

    Read from these sources; the first that sets a value wins: arguments, environment variables
    (`CHATCLIENT_TOOL_CALLING__ENABLED`), `chatclient.toml` in the working directory, and the table
    `[tool.chatclient]` of its `pyproject.toml`.

    Attributes:
        model: The model's name, such as `openai:gpt-5-mini`.
        options: Options of every request, by name. Texts are JSON where the option is none: the
            environment has nothing but texts.
        tool_calling: The tool loop.
        tools: How tools are run.
        tool_search: Tool search.
        memory: Chat memory.
        retry: When the provider is asked again.
        observations: What of a conversation is logged and traced.
    """

    model_config = SettingsConfigDict(
        env_prefix=_PREFIX,
        env_nested_delimiter=_DOT,
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
    )
    # Where they may be written: files, with the table in each.
    files: ClassVar[tuple[tuple[Path, tuple[str, ...]], ...]] = (
        (Path("chatclient.toml"), ()),
        (Path("pyproject.toml"), ("tool", "chatclient")),
    )

    model: str | None = None
    options: dict[str, Any] = {}
    tool_calling: ToolCallingSettings = ToolCallingSettings()
    tools: ToolSettings = ToolSettings()
    tool_search: ToolSearchSettings = ToolSearchSettings()
    memory: MemorySettings = MemorySettings()
    retry: RetrySettings = RetrySettings()
    observations: ObservationSettings = ObservationSettings()

    @classmethod
    def load(cls, file: str | Path | None = None) -> Self:
        """Return the settings of this process.

        Args:
            file: A TOML file to read in place of `chatclient.toml` and `pyproject.toml`.

        Raises:
            UsageError: A setting is unknown or has no fitting value; all of them are named.
        """
        kind: Any = cls if file is None else cls._reading(Path(file))
        try:
            settings: Self = kind()
        except ValidationError as error:
            problems = "".join(f"\n- {_told(item)}" for item in error.errors(include_url=False))
            msg = f"the settings do not fit:{problems}"
            raise UsageError(msg) from error
        except SettingsError as error:
            msg = f"a setting with several values must be written as JSON: {error}"
            raise UsageError(msg) from error
        return settings

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - files of secrets are not ours
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return where settings come from, the first counting most."""
        files = [_table(settings_cls, *each) for each in cls.files]
        strays = InitSettingsSource(settings_cls, init_kwargs=_strays(settings_cls))
        return (init_settings, env_settings, *files, strays)

    @classmethod
    def _reading(cls, file: Path) -> Any:
        if not file.exists():
            msg = f"there is no file {str(file)!r} to read settings from"
            raise UsageError(msg)

        class OfFile(cls):  # type: ignore[misc, valid-type]
            files: ClassVar[tuple[tuple[Path, tuple[str, ...]], ...]] = ((file, ()),)

        OfFile.__name__ = cls.__name__
        return OfFile


def _table(
    settings: type[BaseSettings], file: Path, keys: Iterable[str]
) -> PydanticBaseSettingsSource:
    """Return the settings in a table of a TOML file; none where there is no such file."""
    table: Any = {}
    if file.exists():
        try:
            table = tomllib.loads(file.read_text(encoding="utf-8-sig"))
        except ValueError as error:
            msg = f"{str(file)!r} is not TOML: {error}"
            raise UsageError(msg) from error
        for key in keys:
            table = table.get(key, {}) if isinstance(table, dict) else table
        if not isinstance(table, dict):
            msg = f"{'.'.join(keys)} in {str(file)!r} must be a table of settings"
            raise UsageError(msg)
    return InitSettingsSource(settings, init_kwargs=table)


def _strays(settings: type[BaseSettings]) -> dict[str, Any]:
    """Return the environment variables that can only be meant as settings and are none, by name.

    Pydantic does not look at them: it asks the environment for what it knows.
    """
    variables = set(_variables(settings))
    meant = {name.replace(_DOT, "_") for name in variables}
    strays: dict[str, Any] = {}
    for variable in os.environ:
        name = variable.upper().removeprefix(_PREFIX)
        group, dot, _ = name.partition(_DOT)
        unknown = dot and group not in variables
        misspelt = name not in variables and name.replace(_DOT, "_") in meant
        if variable.upper().startswith(_PREFIX) and (unknown or misspelt):
            strays[variable] = None
    return strays


def _variables(kind: type[BaseModel]) -> Iterator[str]:
    """Yield the names of the variables of *kind* and all groups in it, without prefix."""
    for name, field in kind.model_fields.items():
        yield name.upper()
        inner: Iterable[str] = OptionValues.__annotations__ if name == "options" else ()
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            inner = _variables(field.annotation)
        yield from (f"{name}{_DOT}{each}".upper() for each in inner)


def _told(item: Any) -> str:
    name = ".".join(map(str, item["loc"]))
    variable = _PREFIX + _DOT.join(map(str, item["loc"])).upper()
    if item["type"] == "extra_forbidden":
        hint = "; a dot is written as two underscores" if name.upper().startswith(_PREFIX) else ""
        return f"{name} is not a setting{hint}"
    return f"{name} (or {variable}): {as_clause(item['msg'])}"
