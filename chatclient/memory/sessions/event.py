"""`Session`, and `SessionEvent`: a message, or a payload of another type, in its log."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Self, TypeVar
from uuid import uuid4

from pydantic import TypeAdapter, ValidationError

from chatclient._internal.checks import check_moment, check_type, checked_id
from chatclient._internal.frozen import EMPTY, deep_frozen, frozen
from chatclient._internal.json import dumps, loads
from chatclient.chat.messages import Message, as_messages
from chatclient.errors import UsageError

T = TypeVar("T")
_Kind = type[T]  # the name `type` is taken in classes with such an attribute

MESSAGE = "message"
"""The type of events with a message."""

COMPACTION = "compaction"
"""The type of the event with which a compaction begins; its data has the ids of the messages that
it archives (`archived`) and the name of the strategy (`strategy`). If the conversation was rewound,
it also has the ids of the archived messages that are shown again (`restored`)."""

COMPACTION_SOURCE = "compaction_source"
"""The metadata key of a synthetic event with the name of the strategy that created it."""

AGENT_NAME = "agent_name"
"""The metadata key of a session with the name of the agent that it belongs to."""

_TYPE = re.compile(r"[A-Za-z][A-Za-z0-9_.]{0,63}")


def now() -> datetime:
    """Return the current time in UTC."""
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Session:
    """A conversation of a user with one or several agents.

    Attributes:
        id: The session id, which is the conversation id of its requests.
        user_id: The id of the owner.
        created_at: The time of creation.
        expires_at: The time of expiry, or None.
        metadata: JSON values of the application. Sessions are found by those that are texts.

    Raises:
        UsageError: An id is blank, or a time has no time zone.
    """

    id: str
    user_id: str
    created_at: datetime
    expires_at: datetime | None = None
    metadata: Mapping[str, Any] = EMPTY

    def __post_init__(self) -> None:
        checked_id(self.id, "a session's id")
        checked_id(self.user_id, "a session's user id")
        check_moment("created_at", self.created_at)
        check_moment("expires_at", self.expires_at)
        object.__setattr__(self, "metadata", frozen(self.metadata, "metadata"))

    def expired(self, moment: datetime) -> bool:
        """Return whether the session has expired at *moment*."""
        return self.expires_at is not None and self.expires_at <= moment

    @property
    def indexed(self) -> frozenset[tuple[str, str]]:
        """The names and values of the metadata by which the session is found."""
        return frozenset((k, v) for k, v in self.metadata.items() if isinstance(v, str))


@dataclass(frozen=True, slots=True)
class EventPayload:
    """The content of an event that is not a message, for example of an audit log.

    No model sees it, and no compaction archives it.

    Attributes:
        type: The type: letters, digits, `_` and `.`, a letter first, at most 64 characters. Begin
            it with a prefix of the application, such as `shop.ORDER`; types without a dot may get
            a meaning in later releases.
        data: JSON values by name.

    Raises:
        UsageError: The type is no such name, or that of messages, or the data has no JSON form.
    """

    type: str
    data: Mapping[str, Any] = EMPTY

    def __post_init__(self) -> None:
        check_type("an event's type", self.type, str)
        if not _TYPE.fullmatch(self.type) or self.type == MESSAGE:
            msg = (
                f"an event's type must be a name such as 'shop.ORDER', of at most 64 letters, "
                f"digits, '_' and '.', not {self.type!r}"
            )
            raise UsageError(msg)
        given = frozen(self.data, "an event's data")
        try:
            data = loads(dumps(given))
        except TypeError as error:
            msg = f"the data of an event of type {self.type!r} has no JSON form: {error}"
            raise UsageError(msg) from error
        object.__setattr__(self, "data", deep_frozen(data))

    def read(self, kind: _Kind[T]) -> T:
        """Return the data as a *kind*, such as a pydantic model, a dataclass or a `TypedDict`.

        Raises:
            UsageError: The data is no *kind*.
        """
        try:
            return TypeAdapter(kind).validate_json(dumps(self.data))
        except ValidationError as error:
            msg = f"the data of an event of type {self.type!r} is no {kind.__name__}: {error}"
            raise UsageError(msg) from error


Content = Message | EventPayload
"""The content of an event."""


@dataclass(frozen=True, slots=True)
class SessionEvent:
    """A message, or a payload of another type, in a session's log.

    Attributes:
        id: The id, unique in the session. Appending an event with an existing id has no effect.
        session_id: The id of the session.
        timestamp: The time of the event.
        content: The message or payload.
        branch: The agent that sent or received it, as a dotted path such as `lead.writer`, or
            None for the root agent, which talks with the user; an empty path becomes None.
        metadata: JSON values of the application.
        synthetic: Whether it is a summary of archived events instead of an actual message.
        archived: Whether a compaction has hidden it from the model. Not stored with the event:
            the compactions in the log define it.

    Raises:
        UsageError: The timestamp has no time zone, or the branch is not a dotted path.
    """

    id: str
    session_id: str
    timestamp: datetime
    content: Content
    branch: str | None = None
    metadata: Mapping[str, Any] = EMPTY
    synthetic: bool = False
    archived: bool = False

    def __post_init__(self) -> None:
        check_moment("timestamp", self.timestamp)
        object.__setattr__(self, "branch", checked_branch(self.branch))
        object.__setattr__(self, "metadata", frozen(self.metadata, "metadata"))

    @classmethod
    def of(
        cls,
        session_id: str,
        content: Content,
        *,
        id: str | None = None,
        timestamp: datetime | None = None,
        **rest: Any,
    ) -> Self:
        """Return an event with *content*; by default with a random id and the current time."""
        return cls(id or uuid4().hex, session_id, timestamp or now(), content, **rest)

    @property
    def type(self) -> str:
        """The type: `message`, `compaction`, or that of the payload."""
        return self.content.type if isinstance(self.content, EventPayload) else MESSAGE

    @property
    def message(self) -> Message:
        """The message.

        Raises:
            UsageError: The event has none.
        """
        if isinstance(self.content, EventPayload):
            msg = f"an event of type {self.type!r} has a payload, no message; see its type first"
            raise UsageError(msg)
        return self.content

    @property
    def payload(self) -> EventPayload:
        """The payload.

        Raises:
            UsageError: The event has a message.
        """
        if isinstance(self.content, EventPayload):
            return self.content
        msg = "an event of type 'message' has no payload; see its type first"
        raise UsageError(msg)

    @property
    def text(self) -> str:
        """The text of the message; empty without one."""
        return "" if isinstance(self.content, EventPayload) else self.content.text

    def with_archived(self, *, archived: bool) -> Self:
        """Return the event with this value of `archived`; only messages can be archived."""
        if self.archived == archived or self.type != MESSAGE:
            return self
        return replace(self, archived=archived)


def contents_of(given: Iterable[Content | Iterable[Message]]) -> tuple[Content, ...]:
    """Return the contents in *given*, single ones or collections of messages, as one tuple.

    Raises:
        WrongTypeError: One of them is neither a message nor a payload.
    """
    found: list[Content] = []
    for each in given:
        found += (each,) if isinstance(each, EventPayload) else as_messages(each)
    return tuple(found)


def checked_branch(branch: str | None) -> str | None:
    """Return *branch*, a dotted path of names, or None for the root agent: no or an empty path.

    Raises:
        UsageError: It is no such path.
    """
    if branch and not all(p and p == p.strip() for p in branch.split(".")):
        msg = f"a branch must be a path of agents' names such as 'lead.writer', not {branch!r}"
        raise UsageError(msg)
    return branch or None


def visible_branches(branch: str) -> tuple[str, ...]:
    """Return the branches that an agent sees besides the root: *branch* and its ancestors.

    Args:
        branch: The branch of the agent; empty for the root agent, which sees no branch.
    """
    parts = branch.split(".") if branch else []
    return tuple(".".join(parts[:count]) for count in range(1, len(parts) + 1))
