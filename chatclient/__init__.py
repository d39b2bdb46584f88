"""A fluent chat client with an advisor chain."""

from typing import TYPE_CHECKING

from chatclient._internal.exports import lazy_exports
from chatclient._internal.version import __version__ as __version__

if TYPE_CHECKING:
    from chatclient.chain.chain import (
        HIGHEST_PRECEDENCE as HIGHEST_PRECEDENCE,
        LOWEST_PRECEDENCE as LOWEST_PRECEDENCE,
        MEMORY_ORDER as MEMORY_ORDER,
        TOOL_CALLING_ORDER as TOOL_CALLING_ORDER,
        Advisor as Advisor,
        AdvisorAttributes as AdvisorAttributes,
        ChatClientRequest as ChatClientRequest,
        ChatClientResponse as ChatClientResponse,
        Next as Next,
    )
    from chatclient.chain.model_call import (
        ask_model as ask_model,
    )
    from chatclient.chat.aggregator import (
        MessageAggregator as MessageAggregator,
    )
    from chatclient.chat.embedding import (
        EmbeddingModel as EmbeddingModel,
        EmbeddingOptions as EmbeddingOptions,
        Vector as Vector,
    )
    from chatclient.chat.events import (
        ApprovalNeeded as ApprovalNeeded,
        Done as Done,
        HandedOver as HandedOver,
        ReasoningDelta as ReasoningDelta,
        ReasoningSigned as ReasoningSigned,
        RoundEnded as RoundEnded,
        StreamEvent as StreamEvent,
        TextDelta as TextDelta,
        TextReplaced as TextReplaced,
        ToolCallDelta as ToolCallDelta,
        ToolCallFinished as ToolCallFinished,
        ToolCallStarted as ToolCallStarted,
        ToolCallUndone as ToolCallUndone,
        ToolRunStarted as ToolRunStarted,
    )
    from chatclient.chat.messages import (
        ENDS_TURN as ENDS_TURN,
        AssistantMessage as AssistantMessage,
        Message as Message,
        SystemMessage as SystemMessage,
        ToolResponse as ToolResponse,
        ToolResponseMessage as ToolResponseMessage,
        UserMessage as UserMessage,
    )
    from chatclient.chat.model import (
        ChatModel as ChatModel,
        OutputMode as OutputMode,
        PromptLike as PromptLike,
    )
    from chatclient.chat.moderation import (
        Moderation as Moderation,
        ModerationModel as ModerationModel,
    )
    from chatclient.chat.options import (
        ChatOptions as ChatOptions,
        OptionValues as OptionValues,
        ReasoningEffort as ReasoningEffort,
    )
    from chatclient.chat.parts import (
        Media as Media,
        Part as Part,
        ProviderPart as ProviderPart,
        Reasoning as Reasoning,
        ToolCall as ToolCall,
        ToolCallChunk as ToolCallChunk,
    )
    from chatclient.chat.prompt import (
        Prompt as Prompt,
    )
    from chatclient.chat.rerank import (
        RankedText as RankedText,
        RerankModel as RerankModel,
        RerankOptions as RerankOptions,
    )
    from chatclient.chat.response import (
        ChatResponse as ChatResponse,
        ChatResponseMetadata as ChatResponseMetadata,
        Cost as Cost,
        FinishReason as FinishReason,
        Generation as Generation,
        RateLimit as RateLimit,
        Usage as Usage,
    )
    from chatclient.chat.serialization import (
        message_from_dict as message_from_dict,
        message_to_dict as message_to_dict,
        response_from_dict as response_from_dict,
        response_to_dict as response_to_dict,
        usage_from_dict as usage_from_dict,
        usage_to_dict as usage_to_dict,
    )
    from chatclient.chat.stored_values import (
        register_stored_type as register_stored_type,
    )
    from chatclient.chat.template import (
        PlaceholderRenderer as PlaceholderRenderer,
        PromptTemplate as PromptTemplate,
        TemplateRenderer as TemplateRenderer,
        no_rendering as no_rendering,
    )
    from chatclient.chat.tool import (
        CONVERSATION_ID as CONVERSATION_ID,
        USER_ID as USER_ID,
        ToolContext as ToolContext,
        ToolProgress as ToolProgress,
    )
    from chatclient.chat.turn import (
        TURN_KEY as TURN_KEY,
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
else:  # not seen by type checkers, which would take any name for one that exists
    __getattr__, __dir__ = lazy_exports(__name__)
