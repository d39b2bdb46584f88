"""Requests of durable turns: as JSON values, and with a recording."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from chatclient._internal.frozen import merged
from chatclient.chat.options import NO_OPTIONS, ChatOptions
from chatclient.chat.serialization import message_from_dict, message_to_dict
from chatclient.chat.stored_values import equal_form, from_stored, to_stored
from chatclient.chat.tool import ToolMetadata
from chatclient.chat.tool_definition import ToolDefinition
from chatclient.chat.turn import TURN_KEY, TurnSettings
from chatclient.client.pipeline import Pipeline
from chatclient.client.request import ChatClientRequestSpec
from chatclient.client.request_settings import RequestSettings, TextSettings
from chatclient.durable.recording import Recording, TurnRetries
from chatclient.errors import UsageError
from chatclient.tools.function.data_tool import ExternalTool
from chatclient.tools.sources import Resolved, ToolSource

_MISSING = object()
_TURN_SETTINGS = ("replaces", "is_displayed")


def recorded(
    request: ChatClientRequestSpec,
    recording: Recording,
    key: str,
    *,
    retries: TurnRetries | None = None,
) -> ChatClientRequestSpec:
    """Return *request* with its model calls and tool calls recorded.

    Also those of clients that it is handed to, of agents, and of clients that advisors ask.

    Args:
        request: The request; it can be called in each of the four ways.
        recording: The record of the turn; a new one for each execution.
        key: Identifies the turn. Idempotency keys of tools are derived from it, and memories store
            the turn once under it, unless the request has an idempotency key of its own.
        retries: Whether failed model calls are repeated.
    """
    settings = request.settings
    if retries is not None:
        recording.retries = retries
    return request.with_settings(
        replace(
            settings,
            advisor_params=merged({TURN_KEY: key}, settings.advisor_params),
            turn=replace(settings.turn, recorder=recording),
        )
    )


def request_to_dict(request: ChatClientRequestSpec) -> dict[str, Any]:
    """Return what *request* has in addition to the defaults of its client, as JSON values.

    Raises:
        UsageError: It has something that has no JSON form, such as tools of its own.
    """
    settings, defaults = request.settings, request.pipeline.defaults
    _check_has_json_form(settings, defaults)
    found: dict[str, Any] = {
        "messages": [
            message_to_dict(message)
            for message in settings.messages_without_system()[len(defaults.messages) :]
        ],
        "tool_context": _added("tool_context", settings.tool_context, defaults.tool_context),
        "params": _added("advisor_params", settings.advisor_params, defaults.advisor_params),
        "options": _added_options(settings.options, defaults.options),
        "tool_calling": settings.tool_calling,
    }
    if turn := {name: True for name in _TURN_SETTINGS if getattr(settings.turn, name)}:
        found["turn"] = turn
    if settings.system != defaults.system:
        found["system"] = settings.system.render(settings.renderer)
    if settings.tools is not None:
        found["tools"] = _tools_to_list(settings.tools, defaults.default_tools)
    return to_stored(found)


def request_from_dict(pipeline: Pipeline, data: Mapping[str, Any]) -> ChatClientRequestSpec:
    """Return the request in *data*, the result of `request_to_dict`.

    Args:
        pipeline: That of the client.
        data: The request.
    """
    data, defaults = from_stored(data), pipeline.defaults
    settings = replace(
        defaults,
        user=TextSettings(),
        messages=(*defaults.messages, *(message_from_dict(each) for each in data["messages"])),
        tool_context=merged(defaults.tool_context, data["tool_context"]),
        advisor_params=merged(defaults.advisor_params, data["params"]),
        tool_calling=data["tool_calling"],
        turn=TurnSettings(**data.get("turn", {})),
        deadline=None,
    )
    if "system" in data:
        settings = replace(
            settings,
            system=TextSettings().updated(data["system"], None, (), None),
            system_function=None,
        )
    request = ChatClientRequestSpec(pipeline, settings)
    if "tools" in data:
        request = request.tools(*_tools_from_list(data["tools"], defaults.default_tools))
    return request.options(**data["options"]) if data["options"] else request


def tool_names(pipeline: Pipeline) -> list[str]:
    """Return the names of the client's default tools, without those of providers."""
    named = []
    for source in pipeline.defaults.default_tools:
        if isinstance(source, str):
            named.append(source)
        elif (definition := getattr(source, "definition", None)) is not None:
            named.append(definition.name)
    return named


def _check_has_json_form(settings: RequestSettings, defaults: RequestSettings) -> None:
    if settings.advisors is not defaults.advisors:
        msg = "a durable request cannot have advisors of its own: give them to the client"
        raise UsageError(msg)
    if settings.system_function is not defaults.system_function and settings.system_function:
        msg = "a durable request cannot have a system function: give it to the client, or a text"
        raise UsageError(msg)


def _tools_to_list(tools: Sequence[Resolved], defaults: Sequence[Resolved]) -> list[Any]:
    """Return the tools of a request as JSON values.

    Raises:
        UsageError: One has no JSON form.
    """
    found: list[Any] = []
    if defaults and all(any(tool is each for each in tools) for tool in defaults):
        found.append({"defaults": True})
        tools = [each for each in tools if not any(each is tool for tool in defaults)]
    for tool in tools:
        if isinstance(tool, ExternalTool) and tool.metadata == ToolMetadata():
            found.append({"external": tool.definition.to_json()})
        elif isinstance(tool, str):
            found.append(tool)
        else:
            msg = (
                "a durable request cannot have tools of its own, which another process would not"
                " find: give them to the client, or give the names of tools that its resolver finds"
            )
            raise UsageError(msg)
    return found


def _tools_from_list(data: Sequence[Any], defaults: Sequence[Resolved]) -> Iterator[ToolSource]:
    """Yield the tools in *data*, the result of `_tools_to_list`."""
    for each in data:
        if isinstance(each, str):
            yield each
        elif "defaults" in each:
            yield from defaults
        else:
            yield ExternalTool(ToolDefinition.from_json(each["external"]))


def _added(what: str, given: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return what *given* has in addition to *defaults*, after a check that it can be stored.

    Raises:
        UsageError: A value has no JSON form. The message does not contain it.
    """
    found: dict[str, Any] = {}
    for key, value in given.items():
        if defaults.get(key, _MISSING) is value:
            continue
        found[key] = value
        if equal_form(value) is None and value is not None:
            msg = (
                f"{what}[{key!r}] of a durable request is a {type(value).__name__}, which has no"
                " JSON form: give an id, and let the client's tools find the object"
            )
            raise UsageError(msg)
    return found


def _added_options(given: ChatOptions | None, defaults: ChatOptions | None) -> dict[str, Any]:
    if given is None or given is defaults:
        return {}
    given_values, values = given.set_values(), (defaults or NO_OPTIONS).set_values()
    for each in (given_values, values):
        for name in ("tool_callbacks", "tool_context", "tool_names"):  # those of the settings
            each.pop(name, None)
    return {**dict.fromkeys(given.unset), **_added("options", given_values, values)}
