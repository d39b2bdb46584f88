"""A fluent chat client with an advisor chain."""

from typing import TYPE_CHECKING

from chatclient._internal.exports import lazy_exports
from chatclient._internal.version import __version__ as __version__

if TYPE_CHECKING:
    from chatclient.chain.chain import (
        Advisor as Advisor,
        ChatClientRequest as ChatClientRequest,
        ChatClientResponse as ChatClientResponse,
        Next as Next,
    )
    from chatclient.chat.events import (
        ApprovalNeeded as ApprovalNeeded,
        Done as Done,
        ReasoningDelta as ReasoningDelta,
        RoundEnded as RoundEnded,
        StreamEvent as StreamEvent,
        TextDelta as TextDelta,
        ToolCallFinished as ToolCallFinished,
        ToolCallStarted as ToolCallStarted,
    )
    from chatclient.chat.messages import (
        AssistantMessage as AssistantMessage,
        Message as Message,
        SystemMessage as SystemMessage,
        ToolResponse as ToolResponse,
        ToolResponseMessage as ToolResponseMessage,
        UserMessage as UserMessage,
    )
    from chatclient.chat.model import (
        ChatModel as ChatModel,
    )
    from chatclient.chat.options import (
        ChatOptions as ChatOptions,
    )
    from chatclient.chat.parts import (
        Media as Media,
        ToolCall as ToolCall,
    )
    from chatclient.chat.prompt import (
        Prompt as Prompt,
    )
    from chatclient.chat.response import (
        ChatResponse as ChatResponse,
        FinishReason as FinishReason,
        Generation as Generation,
        Usage as Usage,
    )
    from chatclient.chat.template import (
        PromptTemplate as PromptTemplate,
    )
    from chatclient.chat.tool import (
        CONVERSATION_ID as CONVERSATION_ID,
        USER_ID as USER_ID,
        ToolContext as ToolContext,
    )
    from chatclient.chat.turn import (
        Outcome as Outcome,
        Turn as Turn,
    )
    from chatclient.client.batch import (
        Batch as Batch,
        BatchProgress as BatchProgress,
        BatchResult as BatchResult,
        BatchSettings as BatchSettings,
    )
    from chatclient.client.builder import (
        ChatClientBuilder as ChatClientBuilder,
    )
    from chatclient.client.call_response import (
        AsyncCallResponse as AsyncCallResponse,
        CallResponse as CallResponse,
    )
    from chatclient.client.client import (
        ChatClient as ChatClient,
    )
    from chatclient.client.handoff import (
        handoff as handoff,
    )
    from chatclient.client.options import (
        SystemRequest as SystemRequest,
    )
    from chatclient.client.request import (
        ChatClientRequestSpec as ChatClientRequestSpec,
    )
    from chatclient.client.stream_items import (
        AsyncItems as AsyncItems,
    )
    from chatclient.client.stream_response import (
        AsyncStreamResponse as AsyncStreamResponse,
        StreamResponse as StreamResponse,
    )
    from chatclient.errors import (
        ChatClientError as ChatClientError,
    )
    from chatclient.runtime.progress import (
        Progress as Progress,
        ProgressBar as ProgressBar,
    )
    from chatclient.runtime.runtime import (
        Runtime as Runtime,
    )
    from chatclient.tools.function.decorator import (
        tool as tool,
    )
    from chatclient.tools.function.parameters import (
        ToolParam as ToolParam,
    )
    from chatclient.tools.handoff import (
        HANDOFFS as HANDOFFS,
        Handoff as Handoff,
    )
else:  # not seen by type checkers, which would take any name for one that exists
    __getattr__, __dir__ = lazy_exports(__name__)
