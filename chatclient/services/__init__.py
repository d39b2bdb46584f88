"""Declarative services: an interface says what is wanted, a client does it."""

from chatclient.chain import SOURCES
from chatclient.services.markers import MemoryId, system_message, user_message
from chatclient.services.results import Result
from chatclient.services.service import ai_service

__all__ = ["SOURCES", "MemoryId", "Result", "ai_service", "system_message", "user_message"]
