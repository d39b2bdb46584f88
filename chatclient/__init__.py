"""A fluent chat client with an advisor chain."""

from chatclient.chain import (
    HIGHEST_PRECEDENCE,
    LOWEST_PRECEDENCE,
    MEMORY_ORDER,
    TOOL_CALLING_ORDER,
    Advisor,
    ChatClientRequest,
    ChatClientResponse,
    Next,
)
from chatclient.client import ChatClient
from chatclient.errors import ChatClientError
from chatclient.messages import (
    AssistantMessage,
    Media,
    Message,
    SystemMessage,
    ToolCall,
    ToolResponse,
    ToolResponseMessage,
    UserMessage,
)
from chatclient.model import ChatModel
from chatclient.model_calls import ask_model
from chatclient.options import ChatOptions
from chatclient.prompt import Prompt
from chatclient.response import ChatResponse, Usage
from chatclient.template import PromptTemplate
from chatclient.version import __version__ as __version__

__all__ = [
    "HIGHEST_PRECEDENCE",
    "LOWEST_PRECEDENCE",
    "MEMORY_ORDER",
    "TOOL_CALLING_ORDER",
    "Advisor",
    "AssistantMessage",
    "ChatClient",
    "ChatClientError",
    "ChatClientRequest",
    "ChatClientResponse",
    "ChatModel",
    "ChatOptions",
    "ChatResponse",
    "Media",
    "Message",
    "Next",
    "Prompt",
    "PromptTemplate",
    "SystemMessage",
    "ToolCall",
    "ToolResponse",
    "ToolResponseMessage",
    "Usage",
    "UserMessage",
    "ask_model",
]
