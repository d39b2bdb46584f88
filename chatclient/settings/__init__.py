"""The settings of a client, from environment variables and TOML files."""

from typing import TYPE_CHECKING

from chatclient._internal.exports import lazy_exports

if TYPE_CHECKING:
    from chatclient.settings.settings import (
        UNLIMITED as UNLIMITED,
        BackoffSettings as BackoffSettings,
        ChatClientSettings as ChatClientSettings,
        Duration as Duration,
        EvictionSettings as EvictionSettings,
        MemorySettings as MemorySettings,
        ObservationSettings as ObservationSettings,
        RedisSettings as RedisSettings,
        RetrySettings as RetrySettings,
        SqlSettings as SqlSettings,
        ToolCallingSettings as ToolCallingSettings,
        ToolLimitsSettings as ToolLimitsSettings,
        ToolResolutionSettings as ToolResolutionSettings,
        ToolSearchSettings as ToolSearchSettings,
        ToolSettings as ToolSettings,
    )
else:  # not seen by type checkers, which would take any name for one that exists
    __getattr__, __dir__ = lazy_exports(__name__)
