"""Typed interfaces that a chat client implements."""

from typing import TYPE_CHECKING

from chatclient._internal.exports import lazy_exports

if TYPE_CHECKING:
    from chatclient.services.results import (
        MemoryId as MemoryId,
        Result as Result,
        system_message as system_message,
        user_message as user_message,
    )
    from chatclient.services.service import (
        ai_service as ai_service,
    )
else:  # not seen by type checkers, which would take any name for one that exists
    __getattr__, __dir__ = lazy_exports(__name__)
