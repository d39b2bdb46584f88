"""Interfaces and web frontends that a chat client serves."""

from typing import TYPE_CHECKING

from chatclient._internal.exports import lazy_exports

if TYPE_CHECKING:
    from chatclient.chat.ui_events import (
        UI_STATE as UI_STATE,
        UiData as UiData,
        UiState as UiState,
    )
    from chatclient.services.markers import (
        MemoryId as MemoryId,
        system_message as system_message,
        user_message as user_message,
    )
    from chatclient.services.results import (
        Result as Result,
    )
    from chatclient.services.service import (
        ai_service as ai_service,
    )
    from chatclient.services.web.chat import (
        UiRequest as UiRequest,
        WebChat as WebChat,
        public_error_text as public_error_text,
    )
    from chatclient.services.web.page import (
        web_app as web_app,
    )
    from chatclient.services.web.pending_turns import (
        InMemoryPendingTurns as InMemoryPendingTurns,
        PendingTurnStore as PendingTurnStore,
    )
    from chatclient.services.web.pending_turns_sql import (
        SqlPendingTurns as SqlPendingTurns,
    )
else:  # not seen by type checkers, which would take any name for one that exists
    __getattr__, __dir__ = lazy_exports(__name__)
