"""Sessions: conversations as logs of events, with archive, summaries, branches and recall."""

from chatclient.memory.sessions.chat_memory import SessionChatMemory
from chatclient.memory.sessions.compaction import (
    AnyTrigger,
    Compaction,
    CompactionStrategy,
    CompactionTrigger,
    SlidingWindow,
    TokenCountTrigger,
    TokenWindow,
    TurnCountTrigger,
    TurnWindow,
)
from chatclient.memory.sessions.event import COMPACTION_SOURCE, Session, SessionEvent
from chatclient.memory.sessions.filter import EventFilter
from chatclient.memory.sessions.in_memory import InMemorySessionRepository
from chatclient.memory.sessions.repository import SessionLog, SessionRepository
from chatclient.memory.sessions.service import SessionService
from chatclient.memory.sessions.sql import SqlSessionRepository
from chatclient.memory.sessions.summary import RecursiveSummary

__all__ = [
    "COMPACTION_SOURCE",
    "AnyTrigger",
    "Compaction",
    "CompactionStrategy",
    "CompactionTrigger",
    "EventFilter",
    "InMemorySessionRepository",
    "RecursiveSummary",
    "Session",
    "SessionChatMemory",
    "SessionEvent",
    "SessionLog",
    "SessionRepository",
    "SessionService",
    "SlidingWindow",
    "SqlSessionRepository",
    "TokenCountTrigger",
    "TokenWindow",
    "TurnCountTrigger",
    "TurnWindow",
]
