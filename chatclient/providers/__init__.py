"""Chat, embedding and moderation models, and the HTTP settings they share."""

from typing import TYPE_CHECKING

from chatclient._internal.exports import lazy_exports

if TYPE_CHECKING:
    from chatclient.chat.embedding import (
        EmbeddingModel as EmbeddingModel,
        EmbeddingOptions as EmbeddingOptions,
        Vector as Vector,
    )
    from chatclient.chat.moderation import (
        Moderation as Moderation,
        ModerationModel as ModerationModel,
    )
    from chatclient.chat.rerank import (
        RankedText as RankedText,
        RerankModel as RerankModel,
        RerankOptions as RerankOptions,
    )
    from chatclient.chat.server_tools import (
        CodeExecution as CodeExecution,
        Fallback as Fallback,
        FileSearch as FileSearch,
        ImageGeneration as ImageGeneration,
        McpConnector as McpConnector,
        ServerTool as ServerTool,
        WebFetch as WebFetch,
        WebSearch as WebSearch,
    )
    from chatclient.chat.withheld_tool import (
        WithheldTool as WithheldTool,
    )
    from chatclient.providers.anthropic.model import (
        AnthropicChatModel as AnthropicChatModel,
        AnthropicChatOptions as AnthropicChatOptions,
    )
    from chatclient.providers.azure import (
        azure_model as azure_model,
    )
    from chatclient.providers.bedrock.encoding import (
        BedrockChatOptions as BedrockChatOptions,
    )
    from chatclient.providers.bedrock.model import (
        BedrockChatModel as BedrockChatModel,
    )
    from chatclient.providers.compatible import (
        compatible_model as compatible_model,
    )
    from chatclient.providers.composite import (
        FallbackChatModel as FallbackChatModel,
        RoutingChatModel as RoutingChatModel,
    )
    from chatclient.providers.embeddings import (
        GeminiEmbeddingModel as GeminiEmbeddingModel,
        OllamaEmbeddingModel as OllamaEmbeddingModel,
        OpenAIEmbeddingModel as OpenAIEmbeddingModel,
    )
    from chatclient.providers.gemini.model import (
        GeminiChatModel as GeminiChatModel,
        GeminiChatOptions as GeminiChatOptions,
    )
    from chatclient.providers.http.auth import (
        ExpiringCredentials as ExpiringCredentials,
        Headers as Headers,
    )
    from chatclient.providers.http.connections import (
        Connections as Connections,
    )
    from chatclient.providers.http.limits import (
        ResponseLimits as ResponseLimits,
    )
    from chatclient.providers.http.reader import (
        with_listener as with_listener,
    )
    from chatclient.providers.http.request import (
        Timeouts as Timeouts,
    )
    from chatclient.providers.http.retry import (
        RetryPolicy as RetryPolicy,
    )
    from chatclient.providers.local.fastembed import (
        FastEmbedEmbeddingModel as FastEmbedEmbeddingModel,
        FastEmbedRerankModel as FastEmbedRerankModel,
    )
    from chatclient.providers.local.hub import (
        ModelFile as ModelFile,
        ModelFileCorruptError as ModelFileCorruptError,
        ModelFileError as ModelFileError,
        ModelFileNotFoundError as ModelFileNotFoundError,
        ModelFileStorageError as ModelFileStorageError,
        ModelFileUnavailableError as ModelFileUnavailableError,
        fetch_model_file as fetch_model_file,
    )
    from chatclient.providers.local.minilm import (
        MiniLmEmbeddingModel as MiniLmEmbeddingModel,
    )
    from chatclient.providers.local.model import (
        LocalChatModel as LocalChatModel,
    )
    from chatclient.providers.ollama.model import (
        OllamaChatModel as OllamaChatModel,
        OllamaChatOptions as OllamaChatOptions,
    )
    from chatclient.providers.openai.chat import (
        OpenAIChatModel as OpenAIChatModel,
        OpenAIChatOptions as OpenAIChatOptions,
    )
    from chatclient.providers.openai.chat_format import (
        messages_from_openai as messages_from_openai,
        messages_to_openai as messages_to_openai,
    )
    from chatclient.providers.openai.dialect import (
        Preset as Preset,
    )
    from chatclient.providers.openai.moderation import (
        OpenAIModerationModel as OpenAIModerationModel,
    )
    from chatclient.providers.openai.responses import (
        OpenAIResponsesChatModel as OpenAIResponsesChatModel,
        OpenAIResponsesChatOptions as OpenAIResponsesChatOptions,
    )
    from chatclient.providers.registry import (
        chat_model as chat_model,
    )
    from chatclient.providers.rerank import (
        CohereRerankModel as CohereRerankModel,
        JinaRerankModel as JinaRerankModel,
    )
    from chatclient.providers.vertex import (
        vertex_model as vertex_model,
    )
else:  # not seen by type checkers, which would take any name for one that exists
    __getattr__, __dir__ = lazy_exports(__name__)
