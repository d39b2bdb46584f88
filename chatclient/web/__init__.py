"""Web frontends: chat pages, the protocols of AI SDK and AG-UI."""

from typing import TYPE_CHECKING

from chatclient._internal.exports import lazy_exports

if TYPE_CHECKING:
    from chatclient.chat.events import (
        UI_STATE as UI_STATE,
        UiData as UiData,
        UiState as UiState,
    )
    from chatclient.web.chat import (
        UiRequest as UiRequest,
        WebChat as WebChat,
        public_error_text as public_error_text,
    )
    from chatclient.web.page import (
        web_app as web_app,
    )
    from chatclient.web.pending_turns_sql import (
        SqlPendingTurns as SqlPendingTurns,
    )
    from chatclient.web.turns import (
        InMemoryPendingTurns as InMemoryPendingTurns,
        PendingTurnStore as PendingTurnStore,
    )
else:  # not seen by type checkers, which would take any name for one that exists
    __getattr__, __dir__ = lazy_exports(__name__)
