"""Function tools of pydantic-ai as tools of this library; extra `pydantic-ai`."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, cast

from pydantic import ValidationError
from pydantic_ai import (
    ApprovalRequired as TheirApprovalRequired,
    CallDeferred,
    ModelRetry,
    RunContext,
    RunUsage,
    Tool,
    ToolReturn,
)
from pydantic_ai.messages import (
    AudioUrl,
    BinaryContent,
    CachePoint,
    FileUrl,
    ImageUrl,
    TextContent,
    UploadedFile,
    VideoUrl,
)
from pydantic_ai.toolsets import AbstractToolset, FunctionToolset

from chatclient.bridges.content_blocks import media_of_file, media_of_url
from chatclient.chat.messages import Media, ToolCall
from chatclient.chat.tool import ToolCallback, ToolContext, ToolMetadata, ToolResult
from chatclient.chat.tool_definition import ToolDefinition
from chatclient.errors import ToolArgumentError, ToolDefinitionError, ToolError
from chatclient.tools.execution.approval import is_approved
from chatclient.tools.function.data_tool import ApprovableTool, NeedsApproval, is_function
from chatclient.tools.function.result import data_result

PydanticAiTool = Tool[Any] | FunctionToolset[Any] | Callable[..., Any]


def tools_from_pydantic_ai(
    *tools: PydanticAiTool | Iterable[PydanticAiTool],
    deps: Any = None,
    metadata: ToolMetadata | None = None,
) -> list[ToolCallback]:
    """Return function tools of pydantic-ai as tools of this library.

    A `ModelRetry` becomes a `ToolError`: the model receives it, and may call again. A tool that
    requires approval, or defers a call, suspends the turn (see `client.resume`): the result of a
    deferred call is given with `Decision.answered`. The `RunContext` has the dependencies, the call
    and the conversation id, but neither model nor messages.

    Args:
        *tools: Functions, `Tool`s, `FunctionToolset`s, and collections of them.
        deps: The dependencies; or a function of the `ToolContext` that returns them. An object with
            `__call__` is no function.
        metadata: How the tools are run; default: as tools that write, with the time limit of each
            tool, and one after another if it is sequential.

    Raises:
        ToolDefinitionError: A tool or toolset is prepared for each request, or providers do not
            accept a name.
    """
    return [_callback(tool, deps, metadata) for tool in _flat(tools)]


def _flat(tools: Iterable[Any]) -> Iterable[Tool[Any]]:
    for each in tools:
        if isinstance(each, Tool):
            yield each
        elif isinstance(each, FunctionToolset):
            yield from each.tools.values()
        elif isinstance(each, AbstractToolset):
            msg = (
                f"the tools of a {type(each).__name__} are known in a run of pydantic-ai only; give"
                " the FunctionToolset in it, and change its tools with a ToolCallbackProvider"
            )
            raise ToolDefinitionError(msg)
        elif callable(each):
            yield Tool(each)
        else:
            yield from _flat(each)


def _callback(tool: Tool[Any], deps: Any, metadata: ToolMetadata | None) -> ToolCallback:
    if tool.prepare is not None:
        msg = (
            f"the tool {tool.name!r} has a function `prepare`, which needs a run of pydantic-ai;"
            " offer it with a ToolCallbackProvider instead"
        )
        raise ToolDefinitionError(msg)
    schema: Mapping[str, Any] = tool.function_schema.json_schema
    definition = ToolDefinition(tool.name, tool.description or "", schema, strict=tool.strict)
    own = ToolMetadata(timeout=tool.timeout, sequential=tool.sequential)
    return ApprovableTool(definition, partial(_run, tool, deps), metadata or own)


async def _run(tool: Tool[Any], deps: Any, call: ToolCall, context: ToolContext) -> ToolResult:
    approved = is_approved(context)
    if tool.requires_approval and not approved:
        raise NeedsApproval
    run = RunContext(
        deps=await context.runtime.invoke(deps, context) if is_function(deps) else deps,
        model=cast("Any", None),
        usage=RunUsage(),
        tool_call_id=context.tool_call_id,
        tool_name=tool.name,
        retry=context.attempt - 1,
        max_retries=tool.max_retries or 0,
        tool_call_approved=approved,
        conversation_id=context.conversation_id,
    )
    schema = tool.function_schema
    try:
        arguments = schema.validator.validate_json(call.arguments or "{}", context=run.deps)
        if tool.args_validator is not None:
            await context.runtime.invoke(partial(tool.args_validator, run, **arguments))
        returned = await schema.call(arguments, run)
        if not isinstance(returned, ToolReturn):
            value, media = _split(returned)
            return _with_media(data_result(value), media, returned)
        value, media = _split(returned.return_value)
        result = data_result(value)
        content = returned.content
        content = [content] if isinstance(content, str) else content or []
        texts, more = _split([each for each in content if not isinstance(each, CachePoint)])
        text = "\n".join([result.text, *map(_text, texts)])
        metadata = returned.metadata if isinstance(returned.metadata, Mapping) else {}
        return ToolResult(text, (*media, *more), metadata=metadata, value=returned.return_value)
    except ValidationError as error:
        msg = f"The arguments for {tool.name} do not fit: {error}"
        raise ToolArgumentError(msg, tool_name=tool.name) from error
    except ModelRetry as error:
        raise ToolError(error.message) from error
    except (TheirApprovalRequired, CallDeferred) as error:
        raise NeedsApproval from error


def _with_media(result: ToolResult, media: tuple[Media, ...], value: Any) -> ToolResult:
    return ToolResult(result.text, (*result.media, *media), value=value) if media else result


def _split(value: Any) -> tuple[Any, tuple[Media, ...]]:
    """Return *value* without its media, and the media."""
    if (single := _media(value)) is not None:
        return "", (single,)
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        return value, ()
    found = [(each, _media(each)) for each in value]
    media = tuple(each for _, each in found if each is not None)
    return ([each for each, other in found if other is None], media) if media else (value, ())


def _text(content: Any) -> str:
    return content.content if isinstance(content, TextContent) else data_result(content).text


def _media(value: Any) -> Media | None:
    """Return the media of *value*; None if it is none, or has no content."""
    if isinstance(value, BinaryContent):
        return Media(value.media_type, value.data) if value.data else None
    if isinstance(value, UploadedFile):
        return media_of_file(value.file_id, value.media_type)
    if not isinstance(value, FileUrl):
        return None
    try:
        mime_type = value.media_type
    except ValueError:  # the address does not tell
        mime_type = _TYPES.get(type(value), "application/octet-stream")
    return media_of_url(value.url, mime_type)


_TYPES: Mapping[type[FileUrl], str] = {
    ImageUrl: "image/png",
    AudioUrl: "audio/wav",
    VideoUrl: "video/mp4",
}
