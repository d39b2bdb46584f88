"""Replacements for names of other libraries, for hints in errors of imports."""

from collections.abc import Mapping

_BUILDER = "`ChatClient.builder(model)` from chatclient"
_MCP = "`McpServer`, `McpToolCallbackProvider` or `McpToolServer` from chatclient.mcp"
_ADVISOR = "a coroutine function of `(request, call_next)` as an advisor"
_WINDOW = "`MessageWindowChatMemory` from chatclient.memory"

REPLACEMENTS: Mapping[str, str] = {
    # Spring AI
    "AdvisorParams": "the methods of a request: `.advisor_params({...})`, `.tool_calling(False)`",
    "BaseAdvisor": _ADVISOR,
    "BeanOutputConverter": "`.call().entity(T)`, or `TypeOutputConverter` from"
    " chatclient.structured",
    "CallAdvisor": _ADVISOR,
    "ChatClientMessageAggregator": "`stream.response`",
    "DefaultToolCallingManager": "`ToolCallingManager` from chatclient.tools",
    "JdbcChatMemoryRepository": "`SqlChatMemoryRepository` from chatclient.memory",
    "LuceneToolIndex": "`KeywordToolIndex` from chatclient.tools.search",
    "MethodToolCallback": "`FunctionToolCallback(object.method)` from chatclient.tools",
    "MethodToolCallbackProvider": "`tool_callbacks(*objects)` from chatclient.tools",
    "StreamAdvisor": _ADVISOR,
    "SyncMcpToolCallbackProvider": "`McpToolCallbackProvider` from chatclient.mcp",
    "Tool": "`tool`, a decorator, from chatclient; a tool is a `ToolCallback` of chatclient.tools",
    "ToolCallAdvisor": "`ToolCallingAdvisor` from chatclient.advisors",
    "ToolCallbacks": "`tool_callbacks(*objects)` from chatclient.tools",
    "ToolCallingChatOptions": "`ChatOptions` from chatclient",
    "ToolDefinitions": "`tool_callbacks(function)[0].definition`, with chatclient.tools",
    # LangChain4j
    "AiMessage": "`AssistantMessage` from chatclient",
    "AiServices": "`ai_service` from chatclient.services",
    "ChatLanguageModel": "`ChatModel` from chatclient",
    "ChatMemoryStore": "`ChatMemoryRepository` from chatclient.memory",
    "ContentRetriever": "`DocumentRetriever` from chatclient.retrieval",
    "RetrievalAugmentor": "`RetrievalAugmentationAdvisor` from chatclient.advisors",
    "ScoringModel": "`RerankModel` from chatclient.providers",
    "StreamingChatModel": "`ChatModel` from chatclient, and `.stream()`",
    "ToolExecutionRequest": "`ToolCall` from chatclient",
    "ToolExecutionResultMessage": "`ToolResponseMessage` from chatclient",
    "ToolExecutor": "`DataToolCallback` from chatclient.tools",
    "ToolProvider": "`ToolCallbackProvider` from chatclient.tools",
    "ToolSpecification": "`ToolDefinition` from chatclient.tools",
    # LangChain
    "AIMessage": "`AssistantMessage` from chatclient",
    "BaseTool": "`ToolCallback` from chatclient.tools",
    "ChatAnthropic": "`AnthropicChatModel` from chatclient.providers",
    "ChatOllama": "`OllamaChatModel` from chatclient.providers",
    "ChatOpenAI": "`OpenAIChatModel` from chatclient.providers",
    "ChatPromptTemplate": "`PromptTemplate` from chatclient",
    "ConversationBufferMemory": _WINDOW,
    "ConversationBufferWindowMemory": _WINDOW,
    "HumanMessage": "`UserMessage` from chatclient",
    "StructuredTool": "`FunctionToolCallback` from chatclient.tools",
    "ToolMessage": "`ToolResponseMessage` from chatclient",
    "create_agent": _BUILDER,
    "create_react_agent": _BUILDER,
    "init_chat_model": "`ChatClient.create(name)` from chatclient",
    # pydantic-ai, OpenAI Agents and others
    "Agent": _BUILDER,
    "FallbackModel": "`FallbackChatModel` from chatclient.providers",
    "FunctionModel": "`ScriptedModel` from chatclient.testing",
    "FunctionTool": "`tool`, a decorator, from chatclient",
    "MCPServerStdio": _MCP,
    "MCPServerStreamableHttp": _MCP,
    "ModelRetry": "`ToolError` from chatclient.errors",
    "RunContext": "`ToolContext` from chatclient",
    "RunContextWrapper": "`ToolContext` from chatclient",
    "Runner": "`client.prompt(text).call()`",
    "SQLiteSession": "`SqlChatMemoryRepository` from chatclient.memory",
    "TestModel": "`ScriptedModel` from chatclient.testing",
    "UsageLimits": "`ToolLimits` from chatclient.tools, `Budget` from chatclient.advisors",
    "function_tool": "`tool`, a decorator, from chatclient",
    # Modules
    "agents": _BUILDER,
    "anthropic": "`AnthropicChatModel` from chatclient.providers",
    "chat_models": "the models of chatclient.providers",
    "embeddings": "the embedding models of chatclient.providers",
    "exceptions": "chatclient.errors",
    "guardrails": "`InputGuardrailAdvisor` and `OutputGuardrailAdvisor` from chatclient.advisors",
    "messages": "`UserMessage` and the others from chatclient",
    "models": "the models of chatclient.providers",
    "ollama": "`OllamaChatModel` from chatclient.providers",
    "openai": "`OpenAIChatModel` from chatclient.providers",
    "prompts": "`PromptTemplate` from chatclient",
    "rag": "chatclient.retrieval, `RetrievalAugmentationAdvisor` from chatclient.advisors",
    "sessions": "`SessionService` from chatclient.memory",
    "vectorstores": "the vector stores of chatclient.retrieval",
}
"""What to write, by the name in another library."""
