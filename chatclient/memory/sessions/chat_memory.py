"""`SessionChatMemory`: stores the turns of conversations as events of sessions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from chatclient._internal.checks import check_type, checked_id
from chatclient._internal.frozen import EMPTY, freeze_fields
from chatclient.chat.messages import AssistantMessage, Message, UserMessage
from chatclient.errors import UsageError
from chatclient.memory.chat_memory import ChatMemory, run_maintenance
from chatclient.memory.sessions.compaction import CompactionStrategy, CompactionTrigger
from chatclient.memory.sessions.event import (
    MESSAGE,
    Content,
    EventPayload,
    Session,
    SessionEvent,
    checked_branch,
)
from chatclient.memory.sessions.log import MESSAGES, EventFilter
from chatclient.memory.sessions.service import SessionService
from chatclient.memory.summary import SUMMARY
from chatclient.runtime.runtime import Runtime


@dataclass(frozen=True, slots=True, eq=False)
class SessionChatMemory(ChatMemory):
    """Stores each conversation as a session, and each turn as events in its log.

    The first turn creates the session. After a turn, the log is compacted if *trigger* requires
    it. If that fails, a warning is logged, and the next turn tries again.

    Attributes:
        service: The sessions.
        user_id: The required owner of the sessions, or None to permit any.
        default_user_id: The owner of new sessions if *user_id* is None.
        metadata: The metadata of new sessions, such as `AGENT_NAME`.
        event_filter: Selects the turns that the model sees: those with an event that matches.
            Archived events are never included. Its branch is *branch*.
        branch: The agent that uses this memory, as a dotted path, or None for the root agent.
            It sees its own branch and those of its ancestors, and appends to its own.
            Default: the branch of *event_filter*.
        trigger: Decides when the log is compacted. A memory with a branch does not compact,
            because events of branches are archived with the turn of the user.
        strategy: Decides which events are archived.
        started_at: The start time of the turn to append, if known. Events that other agents
            appended since then are part of the turn.

    Raises:
        UsageError: *service* has the wrong type, only one of *trigger* and *strategy* is given,
            *branch* is not a path of names, or *event_filter* has another branch.
    """

    service: SessionService
    user_id: str | None = None
    default_user_id: str = "default-user"
    metadata: Mapping[str, Any] = EMPTY
    event_filter: EventFilter = MESSAGES
    branch: str | None = None
    trigger: CompactionTrigger | None = None
    strategy: CompactionStrategy | None = None
    started_at: datetime | None = None

    def __post_init__(self) -> None:
        hint = "put a repository into one: SessionService(repository)"
        check_type("a service of sessions", self.service, SessionService, hint)
        freeze_fields(self, "metadata")
        branch = checked_branch(self.branch)
        wanted = self.event_filter.branch
        if wanted is not None and branch not in (None, wanted):
            msg = (
                f"this memory is of the agent {branch!r}, but its event_filter selects what "
                f"{wanted!r} sees; name one of them"
            )
            raise UsageError(msg)
        object.__setattr__(self, "branch", branch or wanted or None)
        if (self.trigger is None) != (self.strategy is None):
            msg = "compaction takes both, a trigger and a strategy; or leave both out"
            raise UsageError(msg)

    def narrowed(
        self, user_id: str | None, event_filter: EventFilter | None
    ) -> "SessionChatMemory":
        """Return a copy for one user, with *event_filter* merged into its filter.

        If *event_filter* has a branch, the copy is the memory of that agent.
        """
        narrowed = self if user_id is None else replace(self, user_id=user_id)
        if event_filter is None:
            return narrowed
        branch = self.branch if event_filter.branch is None else event_filter.branch
        return replace(narrowed, branch=branch, event_filter=self.event_filter.merge(event_filter))

    async def load(self, conversation_id: str, runtime: Runtime) -> tuple[Message, ...]:
        """Return the messages that the model should see: summaries, then turns.

        Raises:
            UsageError: It is the session of another user.
        """
        session = await self._find(conversation_id, runtime)
        if session is None:
            return ()
        required = EventFilter(
            types=MESSAGE,
            exclude_archived=True,
            complete_turns=self.event_filter != MESSAGES,
            branch=self.branch or "",
        )
        shown = self.event_filter.merge(required)
        log = await self.service.sessions.read(session, runtime, shown)
        return tuple(map(_message_for_model, log.events))

    async def append(
        self,
        conversation_id: str,
        messages: Sequence[Message],
        runtime: Runtime,
        *,
        key: str | None = None,
    ) -> None:
        """Append *messages* to the log atomically, and compact it if `trigger` requires it.

        Raises:
            UsageError: It is the session of another user.
        """
        if not messages:
            return
        # Shielded: a cancellation between two steps must not make the turn count as stored.
        await runtime.shielded(self._append(conversation_id, messages, runtime, key))
        # Only the root agent compacts: another agent must not archive turns of the user.
        if self.branch is not None or self.trigger is None or self.strategy is None:
            return
        sessions = self.service.sessions
        work = sessions.compact(conversation_id, self.trigger, self.strategy, runtime)
        await run_maintenance(work, runtime, "compaction failed", session_id=conversation_id)

    async def log(
        self, conversation_id: str, payloads: Sequence[EventPayload], runtime: Runtime
    ) -> None:
        """Append *payloads* to the log, without a compaction.

        Raises:
            UsageError: It is the session of another user.
        """
        # Shielded: the first step may create the session.
        await runtime.shielded(self._append(conversation_id, payloads, runtime))

    async def delete(self, conversation_id: str, runtime: Runtime) -> None:
        """Delete a session and its log."""
        await self.service.sessions.repository.delete(checked_id(conversation_id), runtime)

    async def cut(self, conversation_id: str, message_id: str, runtime: Runtime) -> bool:
        """Archive a message and all that follow it, and restore what the model saw before it.

        What compactions have archived since then is shown again, instead of their summaries.

        Raises:
            UsageError: It is the session of another user.
        """
        if await self._find(conversation_id, runtime) is None:
            return False
        work = self.service.sessions.rewind(conversation_id, message_id, runtime)
        # Shielded like every write, for which a repository may need several steps.
        return await runtime.shielded(work)

    async def _append(
        self,
        conversation_id: str,
        contents: Sequence[Content],
        runtime: Runtime,
        key: str | None = None,
    ) -> None:
        sessions = self.service.sessions
        session = await self._find(conversation_id, runtime)
        if session is None:
            owner = self.user_id or self.default_user_id
            session = await sessions.create(
                owner, runtime, session_id=conversation_id, metadata=self.metadata
            )
        await sessions.append(
            session, contents, runtime, key=key, branch=self.branch, started_at=self.started_at
        )

    async def _find(self, conversation_id: str, runtime: Runtime) -> Session | None:
        session = await self.service.sessions.find(conversation_id, runtime)
        if session is not None and self.user_id not in (None, session.user_id):
            msg = f"session {conversation_id!r} does not belong to user {self.user_id!r}"
            raise UsageError(msg)
        return session


def _message_for_model(event: SessionEvent) -> Message:
    """Return the message of *event*; that of a synthetic event is marked as a summary."""
    message = event.message
    if event.synthetic and isinstance(message, UserMessage | AssistantMessage):
        return message.mutate(metadata={**message.metadata, SUMMARY: True})
    return message
