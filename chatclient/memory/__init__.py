"""Chat memory: what a conversation consists of, from one request to the next."""

from chatclient.memory.chat_memory import (
    ChatMemory,
    MessageWindowChatMemory,
    TokenWindowChatMemory,
    WindowChatMemory,
)
from chatclient.memory.conversation import conversation_problems, repair_conversation
from chatclient.memory.in_memory import InMemoryChatMemoryRepository
from chatclient.memory.redis import RedisChatMemoryRepository
from chatclient.memory.repository import ChatMemoryRepository, Conversation
from chatclient.memory.sql import SqlChatMemoryRepository
from chatclient.memory.summary import SummarizingChatMemory
from chatclient.memory.window import Window, estimated_tokens

__all__ = [
    "ChatMemory",
    "ChatMemoryRepository",
    "Conversation",
    "InMemoryChatMemoryRepository",
    "MessageWindowChatMemory",
    "RedisChatMemoryRepository",
    "SqlChatMemoryRepository",
    "SummarizingChatMemory",
    "TokenWindowChatMemory",
    "Window",
    "WindowChatMemory",
    "conversation_problems",
    "estimated_tokens",
    "repair_conversation",
]
