"""Chat memories, sessions, and the repositories that store them."""

from typing import TYPE_CHECKING

from chatclient._internal.exports import lazy_exports

if TYPE_CHECKING:
    from chatclient.chat.messages import (
        ENDED_EARLY as ENDED_EARLY,
    )
    from chatclient.memory.chat_memory import (
        ChatMemory as ChatMemory,
        MessageWindowChatMemory as MessageWindowChatMemory,
        TokenWindowChatMemory as TokenWindowChatMemory,
        WindowChatMemory as WindowChatMemory,
    )
    from chatclient.memory.conversation import (
        conversation_problems as conversation_problems,
        repair_conversation as repair_conversation,
    )
    from chatclient.memory.encoding import (
        stamped as stamped,
    )
    from chatclient.memory.redis import (
        RedisChatMemoryRepository as RedisChatMemoryRepository,
    )
    from chatclient.memory.repository import (
        ChatMemoryRepository as ChatMemoryRepository,
        Conversation as Conversation,
        InMemoryChatMemoryRepository as InMemoryChatMemoryRepository,
        newest as newest,
    )
    from chatclient.memory.sessions.chat_memory import (
        SessionChatMemory as SessionChatMemory,
    )
    from chatclient.memory.sessions.compaction import (
        AnyTrigger as AnyTrigger,
        Compaction as Compaction,
        CompactionStrategy as CompactionStrategy,
        CompactionTrigger as CompactionTrigger,
        RecursiveSummary as RecursiveSummary,
        SlidingWindow as SlidingWindow,
        TokenCountTrigger as TokenCountTrigger,
        TokenWindow as TokenWindow,
        TurnCountTrigger as TurnCountTrigger,
        TurnWindow as TurnWindow,
    )
    from chatclient.memory.sessions.event import (
        AGENT_NAME as AGENT_NAME,
        COMPACTION as COMPACTION,
        COMPACTION_SOURCE as COMPACTION_SOURCE,
        EventPayload as EventPayload,
        Session as Session,
        SessionEvent as SessionEvent,
    )
    from chatclient.memory.sessions.in_memory import (
        InMemorySessionRepository as InMemorySessionRepository,
    )
    from chatclient.memory.sessions.log import (
        EVERY_TYPE as EVERY_TYPE,
        EVERYTHING as EVERYTHING,
        MESSAGES as MESSAGES,
        EventFilter as EventFilter,
        Match as Match,
        SessionLog as SessionLog,
        SessionRepository as SessionRepository,
    )
    from chatclient.memory.sessions.redis import (
        RedisSessionRepository as RedisSessionRepository,
    )
    from chatclient.memory.sessions.service import (
        SessionService as SessionService,
    )
    from chatclient.memory.sessions.sql import (
        SqlSessionRepository as SqlSessionRepository,
    )
    from chatclient.memory.sql.repository import (
        SqlChatMemoryRepository as SqlChatMemoryRepository,
    )
    from chatclient.memory.summary import (
        SUMMARY as SUMMARY,
        SummarizingChatMemory as SummarizingChatMemory,
    )
    from chatclient.memory.window import (
        TokenEstimator as TokenEstimator,
        Window as Window,
        estimated_tokens as estimated_tokens,
    )
else:  # not seen by type checkers, which would take any name for one that exists
    __getattr__, __dir__ = lazy_exports(__name__)
