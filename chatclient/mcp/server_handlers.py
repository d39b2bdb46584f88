"""Handles the requests that clients send to an `McpToolServer`."""

import inspect
import json
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from mcp import MCPError
from mcp.server import Server
from mcp.server.context import ServerRequestContext
from mcp_types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    Tool,
)
from pydantic import PydanticUserError, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from chatclient.chat.messages import AssistantMessage, Media, ToolCall, UserMessage
from chatclient.chat.options import ChatOptions
from chatclient.chat.prompt import Prompt
from chatclient.chat.response import ChatResponse, Generation
from chatclient.chat.tool import CONVERSATION_ID, ToolCallback, ToolProgress, ToolResult
from chatclient.extend import dumps
from chatclient.mcp.content import to_mcp_result
from chatclient.mcp.server import McpProgress
from chatclient.observability.observers import all_observers
from chatclient.runtime.runtime import Runtime
from chatclient.tools.execution.state import ToolState
from chatclient.tools.function.callback import FunctionToolCallback

if TYPE_CHECKING:
    from chatclient.mcp.tool_server import McpToolServer

_Context = ServerRequestContext[Any]


def server_of(tools: "McpToolServer") -> Server[Any]:
    """Return a server of the MCP SDK that serves *tools*."""

    async def list_tools(
        _context: _Context, _params: PaginatedRequestParams | None
    ) -> ListToolsResult:
        return ListToolsResult(tools=[_to_mcp_tool(each) for each in await tools.callbacks()])

    async def call_tool(context: _Context, params: CallToolRequestParams) -> CallToolResult:
        return await _Call(tools, context, params).run()

    return Server(
        tools.name,
        version=tools.version,
        instructions=tools.instructions,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


def _to_mcp_tool(callback: ToolCallback) -> Tool:
    definition, effect = callback.definition, callback.metadata.effect
    title = definition.metadata.get("mcp", {}).get("title")  # of another server's tool
    fields: dict[str, Any] = {
        "annotations": {"readOnlyHint": effect == "read", "idempotentHint": effect != "write"},
        "outputSchema": _output_schema(callback),
        **({} if title is None else {"title": title}),
        **definition.provider_options.get("mcp", {}),
        "name": definition.name,
        "description": definition.description,
        "inputSchema": definition.input_schema,
    }
    # As JSON, because the SDK needs plain lists and dicts.
    return Tool.model_validate_json(dumps(fields))


def _output_schema(callback: ToolCallback) -> Mapping[str, Any] | None:
    """Return the JSON Schema of a tool's results; None unless they are objects.

    It is that of the return type, or `outputSchema` in the options for `"mcp"`.
    """
    given = callback.definition.provider_options.get("mcp", {})
    if "outputSchema" in given:
        declared: Mapping[str, Any] = given["outputSchema"]
        return declared
    # A converter decides what the client gets to see.
    if not isinstance(callback, FunctionToolCallback) or callback.result_converter is not None:
        return None
    try:
        returned = inspect.signature(callback.function, eval_str=True).return_annotation
        return _schema_of(returned)
    except (NameError, TypeError, ValueError):  # not found, not hashable, without a signature
        return None


@lru_cache(maxsize=1_000)
def _schema_of(returned: Any) -> Mapping[str, Any] | None:
    """Return the JSON Schema of a return type if it is that of an object, otherwise None."""
    if returned in (inspect.Signature.empty, Any, Media, ToolResult):
        return None
    try:
        adapter = TypeAdapter(returned)
        schema = adapter.json_schema(mode="serialization", schema_generator=_SchemaGenerator)
    except PydanticUserError:  # a type that has no schema
        return None
    return schema if schema.get("type") == "object" else None


class _SchemaGenerator(GenerateJsonSchema):
    ignored_warning_kinds = {  # noqa: RUF012 - declared so by pydantic
        "skipped-choice",
        "non-serializable-default",
    }


class _Call:
    """A call of a client."""

    def __init__(
        self, tools: "McpToolServer", context: _Context, params: CallToolRequestParams
    ) -> None:
        self._tools = tools
        self._context = context
        self._params = params
        self._messages = 0

    async def run(self) -> CallToolResult:
        """Run the tool as the only call of a turn."""
        name = self._params.name
        callbacks = await self._tools.callbacks()
        if all(callback.definition.name != name for callback in callbacks):
            raise MCPError(INVALID_PARAMS, f"there is no tool {name!r}")
        meta: dict[str, Any] = dict(self._params.meta or {})
        options = ChatOptions(
            tool_callbacks=tuple(callbacks), tool_context=self._tools.context_for(meta)
        )
        arguments = json.dumps(self._params.arguments or {})
        call = ToolCall(str(self._context.request_id), name, arguments)
        # A unique text: clients send nothing that distinguishes equal calls.
        prompt = Prompt.of((UserMessage(f"{name} {uuid4().hex}"),), options)
        observers = all_observers(conversation_id=options.tool_context.get(CONVERSATION_ID))
        runtime = Runtime(blocking=False, streaming=True, emitter=self._emit, observers=observers)
        calls = ChatResponse((Generation(AssistantMessage(tool_calls=[call])),))
        result = await self._tools.manager.execute(prompt, calls, runtime, ToolState.of(prompt))
        if result.pending:
            return to_mcp_result(ToolResult("The call waits for an approval.", is_error=True))
        response = result.executions[0].response
        tool = next(each for each in callbacks if each.definition.name == name)
        return to_mcp_result(
            ToolResult(response.data, response.media, response.is_error),
            structured=_output_schema(tool) is not None,
        )

    async def _emit(self, event: object) -> None:
        """Report the progress of the tool, if the client asked for it."""
        match event:
            case ToolProgress(event=McpProgress() as progress):
                pass
            case ToolProgress(event=int() | float() as done):
                progress = McpProgress(done)
            case ToolProgress(event=str() as message):
                self._messages += 1
                progress = McpProgress(self._messages, None, message)
            case _:
                return
        await self._context.session.report_progress(
            progress.progress, progress.total, progress.message
        )
