"""What an `McpToolServer` answers its clients."""

import json
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
    ToolAnnotations,
)

from chatclient.events import ToolProgress
from chatclient.messages import AssistantMessage, ToolCall, UserMessage
from chatclient.observers import all_observers
from chatclient.options import ChatOptions
from chatclient.prompt import Prompt
from chatclient.runtime import Runtime
from chatclient.tool import CONVERSATION_ID, ToolCallback, ToolResult
from chatclient.tools.mcp.content import answer_of
from chatclient.tools.mcp.server import McpProgress
from chatclient.tools.turn import ToolTurn

if TYPE_CHECKING:
    from chatclient.tools.mcp.serving import McpToolServer

_Context = ServerRequestContext[Any]


def server_of(tools: "McpToolServer") -> Server[Any]:
    """Return a server of the MCP SDK that serves *tools*."""

    async def list_tools(
        _context: _Context, _params: PaginatedRequestParams | None
    ) -> ListToolsResult:
        return ListToolsResult(tools=[_described(each) for each in await tools.callbacks()])

    async def call_tool(context: _Context, params: CallToolRequestParams) -> CallToolResult:
        return await _Call(tools, context, params).run()

    return Server(
        tools.name,
        version=tools.version,
        instructions=tools.instructions,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


def _described(callback: ToolCallback) -> Tool:
    definition, effect = callback.definition, callback.metadata.effect
    return Tool(
        name=definition.name,
        description=definition.description,
        # Through JSON: the SDK wants plain lists and dicts.
        input_schema=json.loads(json.dumps(definition.input_schema)),
        annotations=ToolAnnotations(
            read_only_hint=effect == "read", idempotent_hint=effect != "write"
        ),
    )


class _Call:
    """One call of a client."""

    def __init__(
        self, tools: "McpToolServer", context: _Context, params: CallToolRequestParams
    ) -> None:
        self._tools = tools
        self._context = context
        self._params = params
        self._said = 0

    async def run(self) -> CallToolResult:
        """Run the tool like the one call of a turn."""
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
        # No other call begins with these words: clients say nothing by which one could be told
        # from another, and the tool's idempotency key goes by them.
        prompt = Prompt.of((UserMessage(f"{name} {uuid4().hex}"),), options)
        observers = all_observers(conversation_id=options.tool_context.get(CONVERSATION_ID))
        runtime = Runtime(blocking=False, streaming=True, emitter=self._emit, observers=observers)
        result = await self._tools.manager.execute_message(
            prompt, AssistantMessage(tool_calls=[call]), (), runtime, ToolTurn.of(prompt)
        )
        if result.pending:
            return answer_of(ToolResult("The call waits for an approval.", is_error=True))
        response = result.executions[0].response
        return answer_of(ToolResult(response.data, response.media, response.is_error))

    async def _emit(self, event: object) -> None:
        """Tell the client how the tool is getting on, if it asked to be told."""
        match event:
            case ToolProgress(event=McpProgress() as news):
                pass
            case ToolProgress(event=int() | float() as done):
                news = McpProgress(done)
            case ToolProgress(event=str() as message):
                self._said += 1
                news = McpProgress(self._said, None, message)
            case _:
                return
        await self._context.session.report_progress(news.progress, news.total, news.message)
