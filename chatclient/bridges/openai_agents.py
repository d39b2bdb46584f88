"""Function tools of the OpenAI Agents SDK as tools of this library; extra `openai-agents`."""

import copy
from collections.abc import Iterable
from functools import partial
from typing import Any

from agents import FunctionTool, ToolOutputFileContent, ToolOutputImage, ToolOutputText, Usage
from agents.tool import set_function_tool_failure_error_function
from agents.tool_context import ToolContext as TheirContext
from pydantic import TypeAdapter, ValidationError

from chatclient.bridges.content_blocks import media_of_file, media_of_url
from chatclient.chat.messages import Media, ToolCall
from chatclient.chat.tool import ToolCallback, ToolContext, ToolMetadata, ToolResult
from chatclient.chat.tool_definition import ToolDefinition
from chatclient.errors import ToolDefinitionError
from chatclient.extend import check_type, loads
from chatclient.tools.execution.approval import is_approved
from chatclient.tools.function.data_tool import ApprovableTool, NeedsApproval, is_function
from chatclient.tools.function.result import data_result


def tools_from_openai_agents(
    *tools: FunctionTool | Iterable[FunctionTool],
    context: Any = None,
    metadata: ToolMetadata | None = None,
) -> list[ToolCallback]:
    """Return function tools of the OpenAI Agents SDK as tools of this library.

    Errors of a tool are handled by the failure policy of the client, unless the tool has a
    `failure_error_function` of its own. A tool that needs approval suspends the turn (see
    `client.resume`). Tools that are not enabled are left out.

    Args:
        *tools: The tools, made by `@function_tool` for example, and collections of them.
        context: The `context` of the run for the tools; or a function of the `ToolContext` that
            returns it. An object with `__call__` is no function.
        metadata: How the tools are run; default: as tools that write, with the time limit of each
            tool.

    Raises:
        WrongTypeError: One of them is not a function tool.
        ToolDefinitionError: A tool has guardrails, or a function decides whether it is enabled.
    """
    return [_callback(tool, context, metadata) for tool in _flat(tools) if tool.is_enabled]


def _flat(tools: Iterable[Any]) -> Iterable[FunctionTool]:
    for each in tools:
        if isinstance(each, list | tuple):
            yield from _flat(each)
        else:
            check_type("a tool of OpenAI Agents", each, FunctionTool)
            yield each


def _callback(tool: FunctionTool, values: Any, metadata: ToolMetadata | None) -> ToolCallback:
    if tool.tool_input_guardrails or tool.tool_output_guardrails or callable(tool.is_enabled):
        msg = (
            f"the tool {tool.name!r} has guardrails or a function `is_enabled`, which need a run of"
            " the SDK; use a tool interceptor, or a ToolCallbackProvider, instead"
        )
        raise ToolDefinitionError(msg)
    strict = tool.strict_json_schema or None
    definition = ToolDefinition(tool.name, tool.description, tool.params_json_schema, strict=strict)
    if getattr(
        tool, "_use_default_failure_error_function", False
    ):  # errors would look like results
        tool = set_function_tool_failure_error_function(copy.copy(tool), None)
    own = ToolMetadata(timeout=tool.timeout_seconds)
    return ApprovableTool(definition, partial(_run, tool, values), metadata or own)


async def _run(tool: FunctionTool, values: Any, call: ToolCall, context: ToolContext) -> ToolResult:
    given = await context.runtime.invoke(values, context) if is_function(values) else values
    theirs = TheirContext(
        context=given,
        usage=Usage(),
        tool_name=tool.name,
        tool_call_id=context.tool_call_id,
        tool_arguments=call.arguments,
    )
    needed: Any = tool.needs_approval
    if callable(needed):
        decide: Any = needed
        arguments, id = loads(call.arguments), context.tool_call_id
        needed = await context.runtime.invoke(decide, theirs, arguments, id)
    if needed and not is_approved(context):
        raise NeedsApproval
    returned = await tool.on_invoke_tool(theirs, call.arguments)
    items = returned if isinstance(returned, list | tuple) else [returned]
    outputs = [_output(each) for each in items]
    parts = [each.text if isinstance(each, ToolOutputText) else _media(each) for each in outputs]
    if not parts or None in parts:
        return data_result(returned)
    texts = [each for each in parts if isinstance(each, str)]
    media = tuple(each for each in parts if isinstance(each, Media))
    return ToolResult("\n".join(texts), media, value=returned)


_Output = ToolOutputText | ToolOutputImage | ToolOutputFileContent
_OUTPUTS: TypeAdapter[_Output] = TypeAdapter(_Output)


def _output(returned: Any) -> _Output | None:
    """Return what a tool returned as an output of the SDK, or None if it is something else."""
    if isinstance(returned, _Output):
        return returned
    if not isinstance(returned, dict) or "type" not in returned:  # as the SDK does
        return None
    try:
        output = _OUTPUTS.validate_python(returned)
    except ValidationError:
        return None
    return output if returned.keys() <= type(output).model_fields.keys() else None


def _media(output: ToolOutputImage | ToolOutputFileContent | None) -> Media | None:
    match output:
        case ToolOutputImage():
            url = output.image_url
            if url is None:
                return media_of_file(output.file_id, _IMAGE)
            return media_of_url(url, _IMAGE)
        case ToolOutputFileContent():
            name, data = output.filename, output.file_data
            if data is not None:
                url = data if data.startswith("data:") else f"data:{_FILE};base64,{data}"
                return media_of_url(url, _FILE, name)
            if output.file_url is not None:
                return media_of_url(output.file_url, _FILE, name)
            return media_of_file(output.file_id, _FILE, name)
    return None


_IMAGE, _FILE = "image/png", "application/octet-stream"
