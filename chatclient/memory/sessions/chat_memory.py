"""Sessions as a chat memory."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from chatclient.checks import check_kind
from chatclient.errors import UsageError
from chatclient.memory.chat_memory import ChatMemory, afterwards
from chatclient.memory.conversation import conversation_problems
from chatclient.memory.repository import checked_id
from chatclient.memory.sessions.compaction import CompactionStrategy, CompactionTrigger
from chatclient.memory.sessions.event import Session, SessionEvent, check_branch
from chatclient.memory.sessions.filter import EVERYTHING, EventFilter
from chatclient.memory.sessions.service import SessionService
from chatclient.memory.summary import SUMMARY
from chatclient.messages import AssistantMessage, Message, SystemMessage, UserMessage, ends_turn
from chatclient.runtime import Runtime


@dataclass(frozen=True, slots=True, eq=False)
class SessionChatMemory(ChatMemory):
    """Remembers conversations as sessions, each turn as events in the session's log.

    A session is created with its first turn. After a turn, the log is compacted if it is time to;
    when that fails, it is logged, and the next turn tries again.

    Attributes:
        service: Where the sessions are.
        user_id: Whose they have to be, or None to take whatever there is.
        default_user_id: Whose sessions are that are created without a user id.
        event_filter: What of the log the model is shown. It is never shown archived events, nor
            half a turn: one that the filter tears apart is left out.
        branch: The agent whose memory this is, as a dotted path, or None for the one that talks
            with the user. It sees what the agents above it see, and appends to its own branch.
        trigger: Says when the log is compacted.
        strategy: Says what is then archived.
        begun: When the turn began that will be appended, or None if nobody knows. What agents
            have said since belongs to it.

    Raises:
        UsageError: The service is none, there is a trigger without a strategy or the other way
            round, or the branch is no path of names.
    """

    service: SessionService
    user_id: str | None = None
    default_user_id: str = "default-user"
    event_filter: EventFilter = EVERYTHING
    branch: str | None = None
    trigger: CompactionTrigger | None = None
    strategy: CompactionStrategy | None = None
    begun: datetime | None = None

    def __post_init__(self) -> None:
        hint = "put a repository into one: SessionService(repository)"
        check_kind("a service of sessions", self.service, SessionService, hint)
        check_branch(self.branch)
        if (self.trigger is None) != (self.strategy is None):
            msg = "compaction takes both, a trigger and a strategy; or leave both out"
            raise UsageError(msg)

    def narrowed(
        self, user_id: str | None, event_filter: EventFilter | None
    ) -> "SessionChatMemory":
        """Return this memory for one user and with a filter on top of its own."""
        own = self.event_filter
        return replace(
            self,
            user_id=self.user_id if user_id is None else user_id,
            event_filter=own if event_filter is None else own.merge(event_filter),
        )

    async def load(self, conversation_id: str, runtime: Runtime) -> tuple[Message, ...]:
        """Return what the model is to be shown: summaries first, then the turns.

        Raises:
            UsageError: The session belongs to another user.
        """
        session = await self._find(conversation_id, runtime)
        if session is None:
            return ()
        shown = self.event_filter.merge(
            EventFilter(exclude_archived=True, branch=self.branch or "")
        )
        events = await self.service.sessions.events(session, runtime, shown)
        if self.event_filter != EVERYTHING:
            events = _whole_turns(events)
        return tuple(map(_as_shown, events))

    async def append(
        self,
        conversation_id: str,
        messages: Sequence[Message],
        runtime: Runtime,
        *,
        key: str | None = None,
    ) -> None:
        """Append *messages* to the session's log as a unit, and compact it if it is time to.

        Raises:
            UsageError: The session belongs to another user.
        """
        if not messages:
            return
        # As a whole: whoever cancels it between two steps would take the turn for kept.
        await runtime.shielded(self._keep(conversation_id, messages, runtime, key))
        if self.trigger is None or self.strategy is None:
            return
        sessions = self.service.sessions
        work = sessions.compact(conversation_id, self.trigger, self.strategy, runtime)
        await afterwards(work, runtime, "compaction failed", session_id=conversation_id)

    async def delete(self, conversation_id: str, runtime: Runtime) -> None:
        """Delete a session, with everything in its log."""
        await self.service.sessions.repository.delete(checked_id(conversation_id), runtime)

    async def _keep(
        self, conversation_id: str, messages: Sequence[Message], runtime: Runtime, key: str | None
    ) -> None:
        sessions = self.service.sessions
        session = await self._find(conversation_id, runtime)
        if session is None:
            owner = self.user_id or self.default_user_id
            session = await sessions.create(owner, runtime, session_id=conversation_id)
        await sessions.append(
            session, messages, runtime, key=key, branch=self.branch, begun=self.begun
        )

    async def _find(self, conversation_id: str, runtime: Runtime) -> Session | None:
        session = await self.service.sessions.find(conversation_id, runtime)
        if session is not None and self.user_id not in (None, session.user_id):
            msg = f"session {conversation_id!r} does not belong to user {self.user_id!r}"
            raise UsageError(msg)
        return session


def _as_shown(event: SessionEvent) -> Message:
    """Return the message of *event*; a summary is marked as one, for it was never said."""
    message = event.message
    if event.synthetic and isinstance(message, UserMessage | AssistantMessage):
        return message.mutate(metadata={**message.metadata, SUMMARY: True})
    return message


def _whole_turns(events: Sequence[SessionEvent]) -> tuple[SessionEvent, ...]:
    """Return *events* without the turns that a provider would refuse as they are.

    System messages belong to no turn, and stay where they are.
    """
    turns: list[list[SessionEvent]] = [[]]
    for event in events:
        if isinstance(event.message, SystemMessage):
            continue
        if isinstance(event.message, UserMessage) and not _same_question(turns[-1], event):
            turns.append([])
        turns[-1].append(event)
    whole = {id(event) for turn in turns if _is_whole(turn) for event in turn}
    return tuple(e for e in events if isinstance(e.message, SystemMessage) or id(e) in whole)


def _same_question(turn: Sequence[SessionEvent], event: SessionEvent) -> bool:
    """Return whether the user goes on with *event* where *turn* has no answer yet.

    Both were appended together, then: a filter may have torn the answer off another question.
    """
    if not turn or ends_turn(turn[-1].message):
        return False
    before = turn[-1]
    return (before.timestamp, before.branch) == (event.timestamp, event.branch)


def _is_whole(turn: Sequence[SessionEvent]) -> bool:
    """Return whether *turn* is one that providers accept; its question may be several messages."""
    messages = [event.message for event in turn]
    while len(messages) > 1 and all(isinstance(m, UserMessage) for m in messages[:2]):
        del messages[0]
    return not conversation_problems(messages, ending="answer")
