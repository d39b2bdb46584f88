"""Creates the parts of a client from settings."""

import importlib
from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

from chatclient.advisors.memory.advisors import MessageChatMemoryAdvisor, PromptChatMemoryAdvisor
from chatclient.advisors.simple_logger import SimpleLoggerAdvisor
from chatclient.advisors.tool_loop.advisor import ToolCallingAdvisor
from chatclient.chain.chain import LOWEST_PRECEDENCE, TOOL_CALLING_ORDER, Advisor
from chatclient.chat.model import ChatModel
from chatclient.chat.options import ChatOptions
from chatclient.client.options import with_options
from chatclient.client.request_settings import RequestSettings
from chatclient.client.shared_parts import SharedParts
from chatclient.errors import UsageError
from chatclient.extend import check_type, loads, needed_by
from chatclient.memory.chat_memory import MessageWindowChatMemory
from chatclient.memory.repository import ChatMemoryRepository, InMemoryChatMemoryRepository
from chatclient.providers.registry import chat_model
from chatclient.runtime.observation import Observer
from chatclient.settings.settings import (
    ChatClientSettings,
    MemorySettings,
    ObservationSettings,
    RetrySettings,
    ToolCallingSettings,
    ToolLimitsSettings,
    ToolSearchSettings,
)
from chatclient.tools.execution.failure import ToolFailurePolicy, ToolLimits
from chatclient.tools.execution.manager import ToolCallingManager
from chatclient.tools.execution.toolset import ToolCallbackResolver

_INDEXES = {
    "keyword": ("chatclient.tools.search.keyword", "KeywordToolIndex"),
    "provider": ("chatclient.tools.search.keyword", "ProviderToolIndex"),
    "regex": ("chatclient.tools.search.regex", "RegexToolIndex"),
}


def client_parts(
    settings: ChatClientSettings | None,
    model: ChatModel | None,
    resolver: ToolCallbackResolver | None,
    tool_index: Any,
) -> tuple[SharedParts, RequestSettings]:
    """Return the parts of a client and its default settings; see `ChatClient.from_settings`.

    Raises:
        UsageError: A setting is invalid, or an object that it requires is missing.
    """
    settings = ChatClientSettings.load() if settings is None else settings
    check_type("settings", settings, ChatClientSettings)
    model = _model(settings) if model is None else model
    check_type("a model", model, ChatModel, "set the name of a model in the settings")
    manager = manager_of(settings, resolver)
    repository = repository_of(settings)
    request = RequestSettings(
        advisors=tuple(advisors_of(settings, manager, tool_index, repository)),
        tool_calling=settings.tool_calling.enabled,
    )
    shared = SharedParts(
        model,
        manager,
        resolver,
        observers=observers_of(settings),
        owned=() if repository is None else (repository,),
    )
    options = options_of(settings, type(model.options))
    return shared, with_options(shared, request, None, options).with_options_as_defaults()


def _model(settings: ChatClientSettings) -> ChatModel:
    if settings.model is None:
        msg = "no model: set CHATCLIENT_MODEL, `model` in chatclient.toml, or pass model="
        raise UsageError(msg)
    return chat_model(settings.model, **model_settings_of(settings))


def options_of(settings: ChatClientSettings, kind: type[ChatOptions]) -> Any:
    """Return the options in the settings as arguments for *kind*."""
    kinds = get_type_hints(kind)
    return {
        name: _option_value(each, kinds.get(name, Any)) for name, each in settings.options.items()
    }


def _option_value(given: Any, kind: Any) -> Any:
    """Return *given*, parsed as JSON if it is a string; a number only if *kind* accepts it."""
    try:
        value = loads(given) if isinstance(given, str) else given
    except ValueError:
        return given
    if not isinstance(value, int | float):
        return value
    takes = {kind, *get_args(kind)}
    fits = type(value) in takes or Any in takes or (type(value) is int and float in takes)
    return value if fits else given


def manager_of(
    settings: ChatClientSettings, resolver: ToolCallbackResolver | None
) -> ToolCallingManager:
    """Return the manager that runs the tools.

    Raises:
        UsageError: `fallback_enabled` is set without a resolver.
    """
    tools = settings.tools
    fallback = tools.resolution.fallback_enabled
    if fallback and resolver is None:
        msg = "tools.resolution.fallback_enabled needs a resolver: from_settings(resolver=...)"
        raise UsageError(msg)
    return ToolCallingManager(
        resolver=resolver if fallback else None,
        max_concurrency=tools.max_concurrency,
        blocking_concurrency=tools.blocking_concurrency,
        wait_together=tools.wait_together,
        eager_reads=tools.eager_reads,
        limits=_limits(tools.limits),
        exception_processor=ToolFailurePolicy(always_raise=tools.throw_exception_on_error),
    )


def _limits(settings: ToolLimitsSettings) -> ToolLimits:
    seconds = settings.max_seconds
    return ToolLimits(
        max_rounds=settings.max_rounds,
        max_calls_per_tool=settings.max_calls_per_tool,
        max_total_calls=settings.max_total_tool_calls,
        max_seconds=None if seconds is None else seconds.total_seconds(),
        per_tool=settings.max_calls_per_tool_overrides,
        excluded=settings.excluded_tools,
        max_repeats=settings.max_repeats,
        on_exceeded=settings.on_limit_exceeded,
    )


def advisors_of(
    settings: ChatClientSettings,
    manager: ToolCallingManager,
    tool_index: Any,
    repository: ChatMemoryRepository | None,
) -> list[Advisor]:
    """Return the advisors for the settings.

    Raises:
        UsageError: An object that a setting requires is missing.
    """
    advisors: list[Advisor] = []
    if repository is not None:
        advisors.append(_memory(settings.memory, repository))
    advisors.extend(_logger(settings.observations))
    if settings.tool_calling.enabled:
        if settings.tool_search.enabled:
            advisors.append(_tool_search(settings, manager, tool_index))
        elif settings.tool_calling != ToolCallingSettings():
            advisors.append(ToolCallingAdvisor(manager, **_loop(settings, None)))
    return advisors


def _logger(settings: ObservationSettings) -> Iterator[Advisor]:
    if settings.log_prompt or settings.log_completion:
        # Outside the tool loop but inside the memory, or directly around the model.
        order = TOOL_CALLING_ORDER - 10 if settings.log_at == "client" else LOWEST_PRECEDENCE - 100
        unlogged = {
            "request_to_text": settings.log_prompt,
            "response_to_text": settings.log_completion,
        }
        never: dict[str, Any] = {name: None for name, logged in unlogged.items() if not logged}
        yield SimpleLoggerAdvisor(order=order, level="info", **never)


def observers_of(settings: ChatClientSettings) -> tuple[Observer, ...]:
    """Return the observers for the settings."""
    if not settings.observations.include_content:
        return ()
    from chatclient.observability.telemetry import Telemetry  # noqa: PLC0415 - loads OpenTelemetry

    return (Telemetry(capture_content=True),)


def _loop(settings: ChatClientSettings, order: int | None) -> dict[str, Any]:
    loop = settings.tool_calling
    return _without_unset(
        order=loop.advisor_order if order is None else order,
        stream_tool_call_responses=loop.stream_tool_call_responses,
    )


def _tool_search(settings: ChatClientSettings, manager: ToolCallingManager, index: Any) -> Advisor:
    from chatclient.advisors.tool_search.advisor import (  # noqa: PLC0415 - optional
        ToolSearchToolCallingAdvisor,
    )

    search = settings.tool_search
    from chatclient.tools.search.index import (  # noqa: PLC0415 - optional
        CompositeEvictionStrategy,
        LruEvictionStrategy,
        TtlEvictionStrategy,
    )

    lru = LruEvictionStrategy(search.eviction.lru_max_sessions)
    return ToolSearchToolCallingAdvisor(
        _index(search) if index is None else index,
        reference_tool_name_accumulation=search.reference_tool_name_accumulation,
        eviction_strategy=lru
        if search.eviction.ttl is None
        else CompositeEvictionStrategy(lru, TtlEvictionStrategy(search.eviction.ttl)),
        always_visible=search.always_visible,
        manager=manager,
        **_without_unset(
            disclosure=search.disclosure,
            max_results=search.max_results,
            system_message_suffix=search.system_message_suffix,
            session_id_key_name=search.session_id_key_name,
            threshold=search.threshold,
        ),
        **_loop(settings, search.advisor_order),
    )


def _index(settings: ToolSearchSettings) -> Any:
    if settings.tool_index_type not in _INDEXES:
        kind = settings.tool_index_type
        msg = f"a {kind} tool index needs a vector store; pass it: from_settings(tool_index=...)"
        raise UsageError(msg)
    module, name = _INDEXES[settings.tool_index_type]
    return getattr(importlib.import_module(module), name)()


def _memory(settings: MemorySettings, repository: ChatMemoryRepository) -> Advisor:
    memory = MessageWindowChatMemory(repository, max_messages=settings.max_messages)
    given = _without_unset(tool_messages=settings.tool_messages, order=settings.advisor_order)
    kind = MessageChatMemoryAdvisor if settings.advisor == "messages" else PromptChatMemoryAdvisor
    return kind(memory, **given)


def repository_of(settings: ChatClientSettings) -> ChatMemoryRepository | None:
    """Return the store of conversations, not yet connected; None without memory."""
    memory = settings.memory
    if not memory.enabled:
        return None
    match memory.repository:
        case "sql":
            with needed_by("SqlChatMemoryRepository"):
                from chatclient.memory.sql.repository import (  # noqa: PLC0415 - an extra
                    SqlChatMemoryRepository,
                )

            sql = memory.sql
            given = _without_unset(
                create_schema=sql.initialize_schema, table_prefix=sql.table_prefix
            )
            return SqlChatMemoryRepository(sql.url, **given)
        case "redis":
            from chatclient.memory.redis import (  # noqa: PLC0415 - an extra
                RedisChatMemoryRepository,
            )

            redis = memory.redis
            given = _without_unset(key_prefix=redis.key_prefix, time_to_live=redis.time_to_live)
            return RedisChatMemoryRepository(redis.url, **given)
        case _:
            return InMemoryChatMemoryRepository()


def model_settings_of(settings: ChatClientSettings) -> dict[str, Any]:
    """Return keyword arguments for the model, without those that are not set."""
    retry = settings.retry
    if retry == RetrySettings():
        return {}
    from chatclient.providers.http.retry import RetryPolicy  # noqa: PLC0415 - optional

    first, longest = retry.backoff.initial_interval, retry.backoff.max_interval
    return {
        "max_retries": RetryPolicy(
            **_without_unset(
                max_retries=retry.max_attempts,
                first_wait=None if first is None else first.total_seconds(),
                longest_wait=None if longest is None else longest.total_seconds(),
                multiplier=retry.backoff.multiplier,
            ),
            on_codes=retry.on_http_codes,
            excluded_codes=retry.exclude_on_http_codes,
            on_client_errors=retry.on_client_errors,
        )
    }


def _without_unset(**values: Any) -> dict[str, Any]:
    """Return *values* without None."""
    return {name: value for name, value in values.items() if value is not None}
