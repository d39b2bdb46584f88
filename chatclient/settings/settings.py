"""The settings of a client, read from environment variables and TOML files."""

import os
import re
import tomllib
from collections.abc import Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

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

from chatclient._internal.text import as_clause
from chatclient.chat.options import OptionValues
from chatclient.errors import UsageError
from chatclient.extend import needed_by

UNLIMITED = -1
"""The value for "no limit" in sources without None."""

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}  # in seconds
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhd])")
_AMOUNTS = re.compile(f"(?:{_AMOUNT.pattern})+")


def _seconds(value: Any) -> Any:
    """Return *value*, as a number of seconds if it is a string with a number or with units.

    Raises:
        ValueError: It is a string that is no time.
    """
    if not isinstance(value, str):
        return value
    text = value.strip().lower()
    if _AMOUNTS.fullmatch(text):
        return sum(float(amount) * _UNITS[unit] for amount, unit in _AMOUNT.findall(text))
    try:
        return float(text)
    except ValueError:
        if text.startswith("p"):
            return value  # for pydantic: ISO 8601
        msg = "not a time; write 90s, 30m, 1h, 1h30m, a number of seconds, or PT3M"
        raise ValueError(msg) from None


def _limit(value: Any) -> Any:
    return None if str(value).strip() == str(UNLIMITED) else value


def _time_limit(value: Any) -> Any:
    return _seconds(_limit(value))


def _interval(value: Any) -> Any:
    return timedelta.max if _limit(value) is None else _seconds(value)


Limit = Annotated[int | None, BeforeValidator(_limit)]
Duration = Annotated[timedelta, BeforeValidator(_seconds)]
TimeLimit = Annotated[timedelta | None, BeforeValidator(_time_limit)]
Interval = Annotated[timedelta, BeforeValidator(_interval)]


with needed_by("reading settings"):
    from pydantic_settings import (
        BaseSettings,
        InitSettingsSource,
        PydanticBaseSettingsSource,
        SettingsConfigDict,
        SettingsError,
    )

_PREFIX, _DELIMITER = "CHATCLIENT_", "__"  # of environment variables


class _Group(BaseModel):
    # Errors do not show the input, which may be a secret such as a URL with a password.
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class ToolCallingSettings(_Group):
    """Settings of the tool loop.

    Attributes:
        enabled: Whether tools are run; if not, the tool calls are returned.
        advisor_order: The order of the tool loop in the chain.
        stream_tool_call_responses: Whether the text before tool calls is streamed.
    """

    enabled: bool = True
    advisor_order: int | None = None
    stream_tool_call_responses: bool = True


class ToolLimitsSettings(_Group):
    """Limits of one turn; see `ToolLimits`. The value -1 means no limit.

    `max_seconds` is a number of seconds, or a time such as `90s`, `30m` or `PT3M`.
    """

    max_rounds: Limit = 100
    max_calls_per_tool: Limit = 40
    max_calls_per_tool_overrides: dict[str, Limit] = {}
    excluded_tools: frozenset[str] = frozenset()
    max_total_tool_calls: Limit = 150
    max_seconds: TimeLimit = None
    max_repeats: Limit = 3
    on_limit_exceeded: Literal["partial", "raise", "tell_model", "final_answer"] = "partial"


class ToolResolutionSettings(_Group):
    """Calls of tools that were not offered.

    Attributes:
        fallback_enabled: Whether such a call is run if the resolver of the client finds the tool.
    """

    fallback_enabled: bool = False


class ToolSettings(_Group):
    """Execution of tools.

    Attributes:
        throw_exception_on_error: Whether a failed call ends the turn; if not, the error is the
            tool result.
        max_concurrency: How many calls of one response run concurrently on an event loop.
        blocking_concurrency: The same for blocking requests.
        wait_together: Whether no call of a response runs while another one waits for approval.
        eager_reads: Whether read-only tools start before a streamed response is complete.
        limits: Limits of one turn.
        resolution: Calls of tools that were not offered.
    """

    throw_exception_on_error: bool = False
    max_concurrency: PositiveInt = 8
    blocking_concurrency: PositiveInt = 1
    wait_together: bool = False
    eager_reads: bool = False
    limits: ToolLimitsSettings = ToolLimitsSettings()
    resolution: ToolResolutionSettings = ToolResolutionSettings()


class EvictionSettings(_Group):
    """Eviction of tool search sessions.

    Attributes:
        lru_max_sessions: The maximum number of sessions; the least recently used are evicted.
        ttl: Time from the last use to eviction: seconds, or text such as `1h` or `PT1H`.
    """

    lru_max_sessions: PositiveInt = 1000
    ttl: TimeLimit = None


class ToolSearchSettings(_Group):
    """A tool loop in which the model searches tools; see `ToolSearchToolCallingAdvisor`.

    Attributes:
        enabled: Whether tool search is used.
        tool_index_type: The type of index. `vector` requires `from_settings(tool_index=...)`.
        disclosure: Where the model sees what it has found: `tools` or `in_conversation`.
        max_results: The default number of tools in a search result.
        system_message_suffix: Instructions for the model about the search.
        reference_tool_name_accumulation: Whether found tools stay visible.
        session_id_key_name: The key of the session id in the context of the request.
        threshold: The minimum number of tools for a search; if there are fewer, all are sent.
        always_visible: Names of tools that are always sent.
        advisor_order: The order of the tool loop in the chain.
        eviction: Eviction of sessions.
    """

    enabled: bool = False
    tool_index_type: Literal["keyword", "provider", "regex", "vector"] = "keyword"
    disclosure: Literal["tools", "in_conversation"] | None = None
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
        url: An SQLAlchemy URL, such as `postgresql+psycopg://…`.
        initialize_schema: Whether missing tables are created.
        table_prefix: The prefix of the table names.
    """

    url: str = Field(default="sqlite:///chat_memory.db", repr=False)
    initialize_schema: bool = True
    table_prefix: str | None = None


class RedisSettings(_Group):
    """Conversations in Redis.

    Attributes:
        url: The URL of the server.
        key_prefix: The prefix of the keys.
        time_to_live: Time from the last change of a conversation to its expiry.
    """

    url: str = Field(default="redis://localhost:6379/0", repr=False)
    key_prefix: str | None = None
    time_to_live: TimeLimit = None


class MemorySettings(_Group):
    """Chat memory.

    Attributes:
        enabled: Whether there is a memory.
        advisor: Whether earlier turns are sent as messages or in the system text.
        advisor_order: The order of the memory advisor in the chain.
        max_messages: The maximum number of earlier messages to send; at least half are sent.
        tool_messages: Whether tool calls and results are stored.
        repository: The store.
        sql: The database, if *repository* is `sql`.
        redis: The server, if *repository* is `redis`.
    """

    enabled: bool = False
    advisor: Literal["messages", "prompt"] = "messages"
    advisor_order: int | None = None
    max_messages: PositiveInt = 40
    tool_messages: bool = True
    repository: Literal["in_memory", "sql", "redis"] = "in_memory"
    sql: SqlSettings = SqlSettings()
    redis: RedisSettings = RedisSettings()


class BackoffSettings(_Group):
    """Waiting times before retries, as numbers of seconds or such as `5s`; see `RetryPolicy`."""

    initial_interval: Duration | None = None
    max_interval: Interval | None = None
    multiplier: PositiveFloat | None = None


class RetrySettings(_Group):
    """Retries of requests to the provider. Unset values are defaults of the provider.

    Attributes:
        max_attempts: The maximum number of retries.
        on_client_errors: Whether to retry all statuses from 400 to 499.
        on_http_codes: Additional statuses to retry.
        exclude_on_http_codes: Statuses that are not retried.
        backoff: Waiting times.
    """

    max_attempts: NonNegativeInt | None = None
    on_client_errors: bool = False
    on_http_codes: frozenset[int] = frozenset()
    exclude_on_http_codes: frozenset[int] = frozenset()
    backoff: BackoffSettings = BackoffSettings()


class ObservationSettings(_Group):
    """Content in logs and traces; none by default.

    Attributes:
        log_prompt: Whether prompts are logged, at level info.
        log_completion: Whether answers are logged, at level info.
        log_at: Whether to log once per turn (`client`) or for each model call (`model`).
        include_content: Whether OpenTelemetry spans contain prompts, answers, and tool arguments
            and results.
    """

    log_prompt: bool = False
    log_completion: bool = False
    log_at: Literal["client", "model"] = "model"
    include_content: bool = False


class ChatClientSettings(BaseSettings):
    """All settings of a client.

    Sources, highest precedence first: arguments, environment variables
    (`CHATCLIENT_TOOL_CALLING__ENABLED`), `chatclient.toml` in the working directory, and the table
    `[tool.chatclient]` in its `pyproject.toml`.

    Attributes:
        model: The name of the model, such as `openai:gpt-5-mini`.
        options: Options of all requests, by name. A string is parsed as JSON unless the option is
            a string, because environment variables contain only strings.
        tool_calling: The tool loop.
        tools: Execution of tools.
        tool_search: Tool search.
        memory: Chat memory.
        retry: Retries of requests to the provider.
        observations: Content in logs and traces.
    """

    model_config = SettingsConfigDict(
        env_prefix=_PREFIX,
        env_nested_delimiter=_DELIMITER,
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
    )
    # The files with settings, and the path of the table in each.
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
            file: A TOML file to read instead of `chatclient.toml` and `pyproject.toml`.

        Raises:
            UsageError: A setting is unknown or invalid; the message lists all of them.
        """
        kind: Any = cls if file is None else cls._reading(Path(file))
        try:
            settings: Self = kind()
        except ValidationError as error:
            problems = "".join(f"\n- {_describe(item)}" for item in error.errors(include_url=False))
            msg = f"the settings are invalid:{problems}"
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
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - not a source
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return the sources of settings, highest precedence first."""
        files = [_table(settings_cls, *each) for each in cls.files]
        unknown = InitSettingsSource(settings_cls, init_kwargs=_unknown_variables(settings_cls))
        return (init_settings, env_settings, *files, unknown)

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
    """Return the settings in a table of a TOML file; empty if the file does not exist."""
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


def _unknown_variables(settings: type[BaseSettings]) -> dict[str, Any]:
    """Return misspelt environment variables as unknown settings, so that validation fails.

    Pydantic reads only the variables of known settings and ignores all others.
    """
    variables = set(_variables(settings))
    flattened = {name.replace(_DELIMITER, "_") for name in variables}
    found: dict[str, Any] = {}
    for variable in os.environ:
        name = variable.upper().removeprefix(_PREFIX)
        group, delimiter, _ = name.partition(_DELIMITER)
        unknown = delimiter and group not in variables
        misspelt = name not in variables and name.replace(_DELIMITER, "_") in flattened
        if variable.upper().startswith(_PREFIX) and (unknown or misspelt):
            found[variable] = None
    return found


def _variables(kind: type[BaseModel]) -> Iterator[str]:
    """Yield the names of all variables of *kind* and its groups, without prefix."""
    for name, field in kind.model_fields.items():
        yield name.upper()
        inner: Iterable[str] = OptionValues.__annotations__ if name == "options" else ()
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            inner = _variables(field.annotation)
        yield from (f"{name}{_DELIMITER}{each}".upper() for each in inner)


def _describe(item: Any) -> str:
    name = ".".join(map(str, item["loc"]))
    variable = _PREFIX + _DELIMITER.join(map(str, item["loc"])).upper()
    if item["type"] == "extra_forbidden":
        hint = "; a dot is written as two underscores" if name.upper().startswith(_PREFIX) else ""
        return f"{name} is not a setting{hint}"
    return f"{name} (or {variable}): {as_clause(item['msg'])}"
