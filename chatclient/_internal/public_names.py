"""The names that each public package exports, and their lazy import from the defining modules."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

_NAMES: Mapping[str, Mapping[str, str]] = {
    "chatclient": {
        "chatclient.chain.chain": (
            "DOCUMENTS HIGHEST_PRECEDENCE LOWEST_PRECEDENCE MEMORY_ORDER TOOL_CALLING_ORDER "
            "Advisor AdvisorAttributes ChatClientRequest ChatClientResponse Next"
        ),
        "chatclient.chain.model_call": "ask_model",
        "chatclient.chat.aggregator": "MessageAggregator",
        "chatclient.chain.decision_call": "ask_decision",
        "chatclient.chat.decision": (
            "ChoiceAnswer ChoiceQuestion DecisionAnswer DecisionQuestion DecisionRefusal "
            "ScoreAnswer ScoreQuestion YesNoAnswer YesNoQuestion"
        ),
        "chatclient.chat.decision_model": (
            "DecisionInput DecisionMetadata DecisionModel DecisionRequest DecisionResponse "
            "DecisionQuestions"
        ),
        "chatclient.chat.embedding": "EmbeddingModel EmbeddingOptions Vector",
        "chatclient.chat.events": (
            "ApprovalNeeded Done HandedOver ReasoningDelta ReasoningSigned RoundEnded StreamEvent "
            "TextDelta TextReplaced ToolCallDelta ToolCallFinished ToolCallStarted "
            "ToolCallUndone ToolRunStarted"
        ),
        "chatclient.chat.messages": (
            "ENDS_TURN AssistantMessage Message SystemMessage ToolResponse ToolResponseMessage "
            "UserMessage"
        ),
        "chatclient.chat.model": "ChatModel OutputMode PromptLike",
        "chatclient.chat.moderation": "Moderation ModerationModel",
        "chatclient.chat.options": "ChatOptions OptionValues ReasoningEffort",
        "chatclient.chat.parts": "Media Part ProviderPart Reasoning ToolCall ToolCallChunk",
        "chatclient.chat.prompt": "Prompt",
        "chatclient.chat.rerank": "RankedText RerankModel RerankOptions",
        "chatclient.chat.response": (
            "ChatResponse ChatResponseMetadata Cost FinishReason Generation RateLimit Usage"
        ),
        "chatclient.chat.serialization": (
            "message_from_dict message_to_dict response_from_dict response_to_dict "
            "usage_from_dict usage_to_dict"
        ),
        "chatclient.chat.stored_values": "register_stored_type",
        "chatclient.chat.template": (
            "PlaceholderRenderer PromptTemplate TemplateRenderer no_rendering"
        ),
        "chatclient.chat.tool": "CONVERSATION_ID USER_ID ToolContext ToolProgress",
        "chatclient.chat.turn": "TURN_KEY Outcome Turn",
        "chatclient.client.batch": "Batch BatchProgress BatchResult BatchSettings",
        "chatclient.client.call_response": "AsyncCallResponse CallResponse",
        "chatclient.client.builder": "ChatClientBuilder",
        "chatclient.client.client": "ChatClient",
        "chatclient.client.request": "ChatClientRequestSpec",
        "chatclient.client.handoff": "handoff",
        "chatclient.client.durations": "UNLIMITED Duration",
        "chatclient.client.settings": (
            "BackoffSettings ChatClientSettings EvictionSettings "
            "MemorySettings ObservationSettings RedisSettings RetrySettings SqlSettings "
            "ToolCallingSettings ToolLimitsSettings ToolResolutionSettings ToolSearchSettings "
            "ToolSettings"
        ),
        "chatclient.client.stream_items": "AsyncItems",
        "chatclient.client.stream_response": "AsyncStreamResponse StreamResponse",
        "chatclient.client.system_function": "SystemRequest",
        "chatclient.errors": "ChatClientError",
        "chatclient.runtime.runtime": "Runtime",
        "chatclient.structured.decisions.chat_model": "ChatDecisionModel",
        "chatclient.tools.function.decorator": "tool",
        "chatclient.tools.function.parameters": "ToolParam",
    },
    "chatclient.advisors": {
        "chatclient.chain.params": (
            "CACHE_RESPONSES EVENT_FILTER FILTER_EXPRESSION TOOL_SEARCH_ROLES"
        ),
        "chatclient.advisors.budget": "Budget Period Price SPENT Spent",
        "chatclient.advisors.usage_store": (
            "InMemoryUsageStore SharedUsageStore UsageKey UsageStore"
        ),
        "chatclient.advisors.context_window": (
            "CONTEXT_WINDOW_ORDER TRIMMED_MESSAGES ContextWindowAdvisor"
        ),
        "chatclient.advisors.guardrails.advisors": (
            "INPUT_GUARDRAIL_ORDER OUTPUT_GUARDRAIL_ORDER InputGuardrailAdvisor "
            "OutputGuardrailAdvisor"
        ),
        "chatclient.advisors.guardrails.builtin": (
            "json_guardrail moderated_input moderated_output refuse_prompt_injection"
        ),
        "chatclient.advisors.guardrails.decisions": (
            "DecisionCheck DecisionChecks decision_input_guardrail decision_output_guardrail"
        ),
        "chatclient.advisors.guardrails.result": (
            "GuardrailResult InputGuardrail Judgement OutputGuardrail"
        ),
        "chatclient.advisors.guardrails.safe_guard": (
            "FAILURE_RESPONSE SAFE_GUARD_BLOCKED SAFE_GUARD_ORDER SafeGuardAdvisor"
        ),
        "chatclient.advisors.memory.advisors": (
            "MEMORY_TEMPLATE MessageChatMemoryAdvisor PromptChatMemoryAdvisor"
        ),
        "chatclient.advisors.memory.recall_tools": "RecallTools",
        "chatclient.advisors.memory.session": "SessionMemoryAdvisor",
        "chatclient.advisors.memory.session_log": "TURN_MESSAGE SessionLogAdvisor",
        "chatclient.advisors.memory.vector_store": "VectorStoreChatMemoryAdvisor",
        "chatclient.advisors.rate_limit": "RATE_LIMIT_ORDER RateLimitAdvisor",
        "chatclient.advisors.response_cache": (
            "CACHING_ORDER REFRESH InMemoryResponseStore ResponseCacheAdvisor ResponseStore"
        ),
        "chatclient.advisors.retrieval.advisor": "RetrievalAugmentationAdvisor",
        "chatclient.advisors.retrieval.question_answer": "QuestionAnswerAdvisor",
        "chatclient.advisors.retrieval.re_reading": (
            "RE_READING_ORDER RE_READING_TEMPLATE ReReadingAdvisor"
        ),
        "chatclient.advisors.simple_logger": "SimpleLoggerAdvisor",
        "chatclient.advisors.structured_output": (
            "VALIDATION_ORDER StructuredOutputAdvisor StructuredOutputValidationAdvisor"
        ),
        "chatclient.advisors.tool_loop.advisor": "ToolCallingAdvisor",
        "chatclient.advisors.tool_loop.steering": "Steering",
        "chatclient.advisors.tool_search.advisor": "ToolSearchToolCallingAdvisor",
    },
    "chatclient.tools": {
        "chatclient.chat.tool": (
            "ACTIVATED_SKILL RETURN_DIRECT Effect ReturnDirect ToolCallback ToolCallbackProvider "
            "ToolContext ToolMetadata ToolRequest ToolResult"
        ),
        "chatclient.chat.tool_definition": "ToolDefinition sanitise_tool_name",
        "chatclient.tools.augmentation": (
            "AugmentedArguments AugmentedToolCallback AugmentedToolProvider Consumer augment"
        ),
        "chatclient.chat.resumption": "Decision Decisions",
        "chatclient.tools.execution.approval": "ToolApproval",
        "chatclient.tools.execution.failure": (
            "ExceptionText FailureKind Reaction ToolExecutionExceptionProcessor ToolFailure "
            "ToolFailurePolicy"
        ),
        "chatclient.tools.execution.interceptors": "NextTool ToolInterceptor ToolInvocation",
        "chatclient.tools.execution.limits": "OnLimit ToolLimits",
        "chatclient.tools.execution.manager": "ToolCallingManager",
        "chatclient.tools.execution.result": "ToolExecutionResult",
        "chatclient.tools.execution.toolset": "ToolCallbackResolver",
        "chatclient.tools.function.callback": "FunctionToolCallback",
        "chatclient.chat.server_tool": "Fallback ServerTool",
        "chatclient.chat.server_tools": (
            "CodeExecution FileSearch ImageGeneration McpConnector WebFetch WebSearch"
        ),
        "chatclient.tools.function.data_tool": "DataToolCallback Executor ExternalTool is_external",
        "chatclient.tools.function.decorator": "tool",
        "chatclient.tools.function.parameters": "ToolMemoryId ToolParam",
        "chatclient.tools.narrowing": "NarrowingToolProvider OnDecisionFailure",
        "chatclient.tools.mcp.provider": "McpToolCallbackProvider ToolNamePrefix",
        "chatclient.tools.handoff": "HANDOFFS Handoff",
        "chatclient.tools.langchain": "to_langchain tools_from_langchain",
        "chatclient.tools.openai_agents": "tools_from_openai_agents",
        "chatclient.tools.pydantic_ai": "tools_from_pydantic_ai",
        "chatclient.tools.mcp.limits": "McpLimits",
        "chatclient.tools.mcp.server": (
            "Connect ElicitationHandler McpElicitation McpProgress McpServer McpServerSettings "
            "McpUserAnswer ToolContextToMeta tool_context_meta"
        ),
        "chatclient.tools.mcp.tool_server": "McpToolServer ToolContextFromMeta",
        "chatclient.chat.pending_turn": "ApprovalRequired PendingTurn",
        "chatclient.tools.resolvers": (
            "DelegatingToolCallbackResolver StaticToolCallbackResolver ToolRegistry"
        ),
        "chatclient.tools.search.decision": "DecisionToolIndex",
        "chatclient.tools.search.eviction": (
            "AlwaysEvictStrategy CompositeEvictionStrategy LruEvictionStrategy NeverEvictStrategy "
            "ToolIndexEvictionStrategy TtlEvictionStrategy"
        ),
        "chatclient.tools.search.hybrid": "HybridToolIndex",
        "chatclient.tools.search.index": (
            "DEFAULT_MAX_RESULTS ToolIndex ToolReference ToolSearchRequest ToolSearchResponse"
        ),
        "chatclient.tools.search.keyword": "KeywordToolIndex",
        "chatclient.tools.search.provider": "ProviderToolIndex",
        "chatclient.tools.search.regex": "RegexToolIndex",
        "chatclient.tools.search.vector": "VectorToolIndex",
        "chatclient.tools.skills": "ACTIVATE_SKILL READ_SKILL_RESOURCE Skill Skills",
        "chatclient.tools.sources": "tool_callbacks",
        "chatclient.chat.tool_execution": "ToolExecution",
    },
    "chatclient.providers": {
        "chatclient.chat.batch_api": "BatchAnswers BatchApi BatchItem SendItem",
        "chatclient.providers.anthropic.model": "AnthropicChatModel AnthropicChatOptions",
        "chatclient.providers.azure": "azure_model",
        "chatclient.providers.bedrock.model": "BedrockChatModel",
        "chatclient.providers.bedrock.options": "BedrockChatOptions",
        "chatclient.providers.compatible": "compatible_model",
        "chatclient.providers.registry": "chat_model",
        "chatclient.providers.composite": "FallbackChatModel RoutingChatModel",
        "chatclient.providers.embeddings": (
            "GeminiEmbeddingModel OllamaEmbeddingModel OpenAIEmbeddingModel"
        ),
        "chatclient.providers.gemini.model": "GeminiChatModel GeminiChatOptions",
        "chatclient.providers.http.auth": "ExpiringCredentials Headers",
        "chatclient.providers.http.client": "HttpAnswer HttpClient",
        "chatclient.providers.http.reader": "EventReader with_listener",
        "chatclient.providers.http.model": "HttpModel",
        "chatclient.providers.http.connections": "Connections",
        "chatclient.providers.http.limits": "ResponseLimits",
        "chatclient.providers.http.retry": "RetryPolicy",
        "chatclient.providers.http.settings": "HttpOptions",
        "chatclient.providers.http.request": "Timeouts",
        "chatclient.providers.langchain": "LangChainChatModel",
        "chatclient.providers.local.fastembed": "FastEmbedEmbeddingModel FastEmbedRerankModel",
        "chatclient.providers.local.hub": "fetch_model_file",
        "chatclient.providers.local.minilm": "MiniLmEmbeddingModel",
        "chatclient.providers.local.model": "LocalChatModel",
        "chatclient.providers.local.model_file": (
            "ModelFile ModelFileCorruptError ModelFileError ModelFileNotFoundError "
            "ModelFileStorageError ModelFileUnavailableError"
        ),
        "chatclient.providers.ollama.model": "OllamaChatModel OllamaChatOptions",
        "chatclient.providers.openai.chat": "OpenAIChatModel OpenAIChatOptions",
        "chatclient.providers.openai.chat_format": "messages_from_openai messages_to_openai",
        "chatclient.providers.openai.moderation": "OpenAIModerationModel",
        "chatclient.providers.openai.presets": "Preset",
        "chatclient.providers.openai.responses": (
            "OpenAIResponsesChatModel OpenAIResponsesChatOptions"
        ),
        "chatclient.providers.rerank": "CohereRerankModel JinaRerankModel",
        "chatclient.providers.systemone": "SystemOneDecisionModel",
        "chatclient.providers.vertex": "vertex_model",
    },
    "chatclient.memory": {
        "chatclient.chat.messages": "ENDED_EARLY",
        "chatclient.memory.chat_memory": (
            "ChatMemory MessageWindowChatMemory TokenWindowChatMemory WindowChatMemory"
        ),
        "chatclient.memory.conversation": "conversation_problems repair_conversation",
        "chatclient.memory.in_memory": "InMemoryChatMemoryRepository",
        "chatclient.memory.redis": "RedisChatMemoryRepository",
        "chatclient.memory.repository": "ChatMemoryRepository Conversation newest",
        "chatclient.memory.encoding": "stamped",
        "chatclient.memory.sessions.chat_memory": "SessionChatMemory",
        "chatclient.memory.sessions.compaction": (
            "AnyTrigger Compaction CompactionStrategy CompactionTrigger SlidingWindow "
            "TokenCountTrigger TokenWindow TurnCountTrigger TurnWindow"
        ),
        "chatclient.memory.sessions.event": (
            "AGENT_NAME COMPACTION COMPACTION_SOURCE EventPayload Session SessionEvent"
        ),
        "chatclient.memory.sessions.filter": "EVERYTHING EVERY_TYPE EventFilter MESSAGES Match",
        "chatclient.memory.sessions.in_memory": "InMemorySessionRepository",
        "chatclient.memory.sessions.redis": "RedisSessionRepository",
        "chatclient.memory.sessions.repository": "SessionLog SessionRepository",
        "chatclient.memory.sessions.service": "SessionService",
        "chatclient.memory.sessions.sql": "SqlSessionRepository",
        "chatclient.memory.sessions.summary": "RecursiveSummary",
        "chatclient.memory.sql.repository": "SqlChatMemoryRepository",
        "chatclient.memory.summary": "SUMMARY SummarizingChatMemory",
        "chatclient.memory.window": "TokenEstimator Window estimated_tokens",
    },
    "chatclient.retrieval": {
        "chatclient.retrieval.decisions": "DecisionDocumentFilter",
        "chatclient.retrieval.documents": "ConcatenationJoiner DocumentLimit ReciprocalRankJoiner",
        "chatclient.retrieval.hybrid": "HybridDocumentRetriever",
        "chatclient.retrieval.keyword": "KeywordDocumentRetriever",
        "chatclient.retrieval.ingestion.conversion_cache": "ConversionCache",
        "chatclient.retrieval.ingestion.formats": "FormatSplitter",
        "chatclient.retrieval.ingestion.index": "DocumentIndex Splitter",
        "chatclient.retrieval.ingestion.limits": "ReadLimits",
        "chatclient.retrieval.ingestion.markdown": "MarkdownSplitter",
        "chatclient.retrieval.ingestion.reading": (
            "DocumentReadError OnReadError aread_documents read_documents"
        ),
        "chatclient.retrieval.ingestion.record": (
            "InMemoryIndexRecord IndexConflictError IndexEntry IndexRecord IndexRecordError "
            "IndexState SqliteIndexRecord"
        ),
        "chatclient.retrieval.ingestion.record_sql": "SqlIndexRecord",
        "chatclient.retrieval.ingestion.splitter": "ChunkLimit DocumentSplitter SizeLimit",
        "chatclient.retrieval.ingestion.text": "CodeSplitter SentenceSplitter",
        "chatclient.retrieval.ingestion.update": "IndexReport",
        "chatclient.retrieval.prompt": "ContextualQueryAugmenter framed",
        "chatclient.retrieval.query": (
            "DocumentJoiner DocumentPostProcessor DocumentRetriever Query QueryAugmenter "
            "QueryExpander QueryRouter QueryTransformer RetrievalError"
        ),
        "chatclient.retrieval.reranking": "DocumentReranker",
        "chatclient.retrieval.retrievers": "LanguageModelQueryRouter VectorStoreDocumentRetriever",
        "chatclient.retrieval.transformers": (
            "CompressionQueryTransformer MultiQueryExpander RewriteQueryTransformer "
            "TranslationQueryTransformer"
        ),
        "chatclient.retrieval.vector_store.filters": "Filter equal_to predicate",
        "chatclient.retrieval.vector_store.hybrid": "HybridVectorStore",
        "chatclient.retrieval.vector_store.in_memory": "InMemoryVectorStore",
        "chatclient.retrieval.vector_store.langchain": "LangChainVectorStore",
        "chatclient.retrieval.vector_store.pgvector": "PgVectorStore",
        "chatclient.retrieval.vector_store.qdrant": "QdrantVectorStore",
        "chatclient.retrieval.vector_store.sql_filters": "sql",
        "chatclient.retrieval.vector_store.sqlite": "SqliteVectorStore",
        "chatclient.retrieval.vector_store.store": (
            "DEFAULT_TOP_K Document SimilaritySearch VectorStore"
        ),
    },
    "chatclient.structured": {
        "chatclient.chain.params": "NATIVE_STRUCTURED_OUTPUT",
        "chatclient.chat.thinking_tags": "without_thoughts",
        "chatclient.structured.answer_cleaning": "NOTHING Cleaner cleaned without_fence",
        "chatclient.structured.converters": (
            "JsonSchemaOutputConverter ListOutputConverter MapOutputConverter "
            "StructuredOutputConverter TextOutputConverter"
        ),
        "chatclient.structured.output": ("Native ResponseEntity StructuredOutput"),
        "chatclient.structured.type_converter": "TypeOutputConverter",
    },
    "chatclient.durable": {
        "chatclient.durable.client": "DurableClient DurableRequest",
        "chatclient.durable.conversation": "DurableConversation",
        "chatclient.durable.engine": "Engine",
        "chatclient.durable.events": "DurableEvent RoundRestarted TurnDecided",
        "chatclient.durable.handle": "DurableTurn TurnState TurnStatus",
        "chatclient.durable.launching": "connect launch",
        "chatclient.durable.map": "MapResult TurnMap",
        "chatclient.durable.prefect_turn": "PrefectTurn",
        "chatclient.durable.queues": "Rate TurnQueue",
        "chatclient.chat.serialization": "error_from_dict error_to_dict",
        "chatclient.durable.recording": (
            "ExecutionLostError KnowsSteps OnInterrupted Publisher Recording StepRecorder "
            "TurnRetries"
        ),
        "chatclient.durable.registry": "durable",
        "chatclient.durable.requests": "recorded request_from_dict request_to_dict",
        "chatclient.durable.results": "TurnResult",
    },
    "chatclient.services": {
        "chatclient.chat.ui_events": "UI_STATE UiData UiState",
        "chatclient.services.markers": "MemoryId system_message user_message",
        "chatclient.services.results": "Result",
        "chatclient.services.service": "ai_service",
        "chatclient.services.web.chat": "UiRequest WebChat",
        "chatclient.services.web.error_text": "public_error_text",
        "chatclient.services.web.page": "web_app",
        "chatclient.services.web.pending_turns": "InMemoryPendingTurns PendingTurnStore",
        "chatclient.services.web.pending_turns_sql": "SqlPendingTurns",
    },
    "chatclient.observability": {
        "chatclient.observability.decision_call": "DecisionCall",
        "chatclient.observability.log_fields": "log_fields",
        "chatclient.observability.operations": (
            "ANSWERING_MODEL TIME_TO_FIRST_CHUNK WAITS AdvisorPass ClientCall "
            "MemoryAccess ModelCall Reranking Retrieval ToolRun ToolUndo"
        ),
        "chatclient.observability.retries": "Fallback RetryWait",
        "chatclient.observability.rounds": "Round",
        "chatclient.observability.telemetry": "ERROR_TEXT Redact Telemetry",
        "chatclient.observability.trail": "Trail",
        "chatclient.runtime.observation": "Observation Observer Operation Step",
    },
    "chatclient.testing": {
        "chatclient.testing.evaluation": (
            "CORRECTNESS_TEMPLATE FACT_CHECKING_TEMPLATE RELEVANCY_TEMPLATE CorrectnessEvaluator "
            "EvaluationRequest EvaluationResponse Evaluator FactCheckingEvaluator "
            "RelevancyEvaluator"
        ),
        "chatclient.testing.plugin": "chat_redact recorded_model",
        "chatclient.testing.pydantic_evals": "AnswerJudge RetrievalMetrics pydantic_evals_dataset",
        "chatclient.testing.recording": "Exchange Recording RecordingAdvisor RecordingModel Redact",
        "chatclient.testing.replaying": "ReplayError ReplayingModel",
        "chatclient.testing.repository_contract": "ChatMemoryRepositoryContract",
        "chatclient.testing.retrieval_evaluation": (
            "aevaluate_answers aevaluate_retriever evaluate_answers evaluate_retriever"
        ),
        "chatclient.testing.retrieval_report": (
            "RetrievalCase RetrievalCaseResult RetrievalReport RetrievalScores"
        ),
        "chatclient.testing.scripted": "Answer AnswerFunction ScriptedModel call",
        "chatclient.testing.session_contract": "SessionRepositoryContract",
        "chatclient.testing.vector_store_contract": "VectorStoreContract",
    },
    "chatclient.errors": {
        "chatclient.errors": (
            "AuthenticationError BlockingCallError BudgetExceededError ChatClientError "
            "ChatMemoryError ChatMemoryUnavailableError ConnectionFailedError ContentFilterError "
            "ContextLengthExceededError ContextWindowError DeadlineExceededError "
            "DuplicateToolError EntityError GuardrailError InvalidRequestError "
            "InvalidResponseError McpServerError MissingContextError NotFoundError "
            "OverloadedError ProviderError RateLimitExceededError RateLimitedError "
            "RequestTimeoutError ResponseLimitError StreamInterruptedError TemplateError "
            "ToolArgumentError ToolCallRefusedError ToolDefinitionError ToolDeniedError "
            "ToolError ToolExecutionError ToolLoopError ToolResultError ToolTimeoutError "
            "ToolUsageError UnknownPriceError UnknownToolError UnsupportedOptionError "
            "UnsupportedToolError UsageError UsageStoreError VectorStoreError "
            "VectorStoreUnavailableError VersionConflictError WrongTypeError"
        ),
    },
}

PUBLIC_NAMES: Mapping[str, Mapping[str, str]] = {
    package: {name: module for module, names in modules.items() for name in names.split()}
    for package, modules in _NAMES.items()
}
"""The defining module of each public name, by package and name."""


def lazy_exports(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a public package (PEP 562).

    `__getattr__` imports the module of a name at its first use. For a name that another public
    package exports, it raises an `ImportError` that names that package.
    """
    names = PUBLIC_NAMES[package]

    def get_attribute(name: str) -> Any:
        if name == "__all__":
            return sorted(names)
        if name in names:
            value = getattr(import_module(names[name]), name)
            setattr(sys.modules[package], name, value)
            return value
        if f"{package}.{name}" in PUBLIC_NAMES:
            return import_module(f"{package}.{name}")
        for other, exported in PUBLIC_NAMES.items():
            if name in exported:
                msg = f"cannot import {name!r} from {package!r}: use `from {other} import {name}`"
                raise ImportError(msg, name=package)
        msg = f"module {package!r} has no attribute {name!r}"
        raise AttributeError(msg, name=name, obj=sys.modules[package])

    def list_attributes() -> list[str]:
        return sorted({*vars(sys.modules[package]), *names})

    return get_attribute, list_attributes
