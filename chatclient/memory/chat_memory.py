"""Chat memory: what of a conversation is shown to the model, over what is kept of it."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Iterable, Sequence

from chatclient.checks import check_kind
from chatclient.driving import drive
from chatclient.errors import WrongTypeError
from chatclient.logs import described, get_logger
from chatclient.memory.in_memory import InMemoryChatMemoryRepository
from chatclient.memory.repository import ChatMemoryRepository, Conversation, checked_id
from chatclient.memory.window import TokenEstimator, Window, estimated_tokens, kept_from
from chatclient.messages import (
    Message,
    SystemMessage,
    as_messages,
    system_messages,
    without_system,
)
from chatclient.runtime import BLOCKING, ON_LOOP, Runtime

log = get_logger(__name__)


class ChatMemory(ABC):
    """Remembers conversations: stores messages, and returns those that the model is shown.

    An implementor writes the three coroutines `load`, `append` and `delete`, which serve blocking
    and asynchronous callers alike and do all waiting through the runtime they are given. The
    other methods are the face for applications.
    """

    @abstractmethod
    async def load(self, conversation_id: str, runtime: Runtime) -> tuple[Message, ...]:
        """Return the messages of a conversation that the model is shown, in order."""

    @abstractmethod
    async def append(
        self,
        conversation_id: str,
        messages: Sequence[Message],
        runtime: Runtime,
        *,
        key: str | None = None,
    ) -> None:
        """Remember *messages*, a turn as a rule, as a unit.

        What has been begun must be finished although the request is being cancelled, by way of
        `runtime.shielded`: unless the cancellation has an error as its cause, the turn then counts
        as stored, and what its tools have done is not undone.

        Args:
            conversation_id: Which conversation.
            messages: What was said.
            runtime: How the request runs.
            key: Names this addition: made again with the same key, it changes nothing.
        """

    @abstractmethod
    async def delete(self, conversation_id: str, runtime: Runtime) -> None:
        """Forget a conversation, if there is one."""

    def add(
        self,
        conversation_id: str,
        messages: Message | Iterable[Message],
        *,
        key: str | None = None,
    ) -> None:
        """Remember *messages*, all of them or none.

        Args:
            conversation_id: Which conversation; it begins with the first messages added.
            messages: One, or several in their order.
            key: Names this addition: made again with the same key, it changes nothing.

        Raises:
            UsageError: The id is blank.
            TypeError: One of *messages* is something else.
            ChatMemoryError: They could not be kept.
        """
        drive(self._add(conversation_id, messages, key, BLOCKING))

    async def aadd(
        self,
        conversation_id: str,
        messages: Message | Iterable[Message],
        *,
        key: str | None = None,
    ) -> None:
        """Remember *messages*; see `add`."""
        await self._add(conversation_id, messages, key, ON_LOOP)

    def get(self, conversation_id: str) -> list[Message]:
        """Return what the model is shown of a conversation; nothing if it does not exist.

        Raises:
            UsageError: The id is blank.
            ChatMemoryError: It could not be read.
        """
        return list(drive(self.load(checked_id(conversation_id), BLOCKING)))

    async def aget(self, conversation_id: str) -> list[Message]:
        """Return what the model is shown of a conversation; see `get`."""
        return list(await self.load(checked_id(conversation_id), ON_LOOP))

    def clear(self, conversation_id: str) -> None:
        """Forget a conversation, if it exists.

        Raises:
            UsageError: The id is blank.
        """
        drive(self.delete(checked_id(conversation_id), BLOCKING))

    async def aclear(self, conversation_id: str) -> None:
        """Forget a conversation; see `clear`."""
        await self.delete(checked_id(conversation_id), ON_LOOP)

    async def _add(
        self,
        conversation_id: str,
        messages: Message | Iterable[Message],
        key: str | None,
        runtime: Runtime,
    ) -> None:
        several = as_messages(messages)
        await self.append(checked_id(conversation_id), several, runtime, key=key)


class WindowChatMemory(ChatMemory):
    """Shows the newest turns of a conversation, as many as a window allows.

    The repository keeps the whole conversation. Messages outside the window are not read.

    Only the latest system messages count: adding other ones replaces them, and adding the same ones
    again changes nothing.

    Args:
        window: How much is shown.
        repository: Where conversations are kept; default: in the memory of this process.
        prune: Whether what has long left the window is deleted from the repository, so that it
            holds about twice the window at most.

    Raises:
        WrongTypeError: *window* is not a `Window`, or *repository* not a repository.
    """

    def __init__(
        self,
        window: Window,
        repository: ChatMemoryRepository | None = None,
        *,
        prune: bool = False,
    ) -> None:
        self.window = window
        check_kind("a window", window, Window, "write Window.messages(20)")
        self.repository = checked_repository(repository)
        self.prune = prune

    async def load(self, conversation_id: str, runtime: Runtime) -> tuple[Message, ...]:
        """Return the window."""
        last = self.window.first_look
        while True:
            found = await self.repository.load(conversation_id, runtime, last=last)
            what = f"what load() of {type(self.repository).__name__} returns"
            check_kind(what, found, Conversation, "of a list, make one: Conversation(messages)")
            start = self.window.start(found.messages)
            # Fewer than asked for are all, also where somebody has deleted some by hand.
            everything = found.complete or len(without_system(found.messages)) < last
            if everything or _leaves_out(found.messages, start):
                return kept_from(found.messages, start)
            last *= 4

    async def append(
        self,
        conversation_id: str,
        messages: Sequence[Message],
        runtime: Runtime,
        *,
        key: str | None = None,
    ) -> None:
        """Keep *messages*."""
        await append_messages(self.repository, conversation_id, messages, runtime, key=key)
        if self.prune:
            work = self._prune(conversation_id, runtime)
            await afterwards(work, runtime, "pruning failed", conversation_id=conversation_id)

    async def delete(self, conversation_id: str, runtime: Runtime) -> None:
        """Delete a conversation from the repository."""
        await self.repository.delete(conversation_id, runtime)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({type(self.repository).__name__})"

    async def _prune(self, conversation_id: str, runtime: Runtime) -> None:
        """Delete what is outside the window, if that is as much as the window itself."""
        little = 2 * self.window.first_look
        last = little + 1
        while True:
            found = await self.repository.load(conversation_id, runtime, last=last)
            outside = len(without_system(found.messages[: self.window.start(found.messages)]))
            inside = len(without_system(found.messages)) - outside
            if outside + inside > little and outside >= inside:
                await self.repository.rewrite(conversation_id, self.window.kept, runtime)
                return
            if found.complete or outside + inside < last:
                return
            last *= 2


class MessageWindowChatMemory(WindowChatMemory):
    """Shows the newest turns of a conversation, up to a number of messages.

    Args:
        repository: Where conversations are kept; default: in the memory of this process.
        max_messages: How many messages are shown at most, system messages included. The newest
            turn is shown whole in any case.
        prune: Whether what has long left the window is deleted from the repository.

    Raises:
        UsageError: *max_messages* is less than one, or *repository* is not a repository.
    """

    def __init__(
        self,
        repository: ChatMemoryRepository | None = None,
        *,
        max_messages: int = 20,
        prune: bool = False,
    ) -> None:
        super().__init__(Window.messages(max_messages), repository, prune=prune)


class TokenWindowChatMemory(WindowChatMemory):
    """Shows the newest turns of a conversation, up to a number of tokens.

    Args:
        repository: Where conversations are kept; default: in the memory of this process.
        max_tokens: How many tokens are shown at most, system messages included. The newest turn
            is shown whole in any case.
        estimator: Counts the tokens of a message.
        prune: Whether what has long left the window is deleted from the repository.

    Raises:
        UsageError: *max_tokens* is less than one, or *repository* is not a repository.
    """

    def __init__(
        self,
        repository: ChatMemoryRepository | None = None,
        *,
        max_tokens: int,
        estimator: TokenEstimator = estimated_tokens,
        prune: bool = False,
    ) -> None:
        super().__init__(Window.tokens(max_tokens, estimator), repository, prune=prune)


def checked_repository(repository: ChatMemoryRepository | None) -> ChatMemoryRepository:
    """Return *repository*, or a new one in the memory of this process.

    Raises:
        UsageError: It is not a repository.
    """
    if repository is None:
        return InMemoryChatMemoryRepository()
    given: object = repository
    if not isinstance(given, ChatMemoryRepository):
        msg = (
            f"{repository!r} is not a repository: conversations are kept in a ChatMemoryRepository,"
            " such as SqlChatMemoryRepository(url); the number of messages is max_messages="
        )
        raise WrongTypeError(msg)
    return repository


def _leaves_out(messages: Sequence[Message], start: int) -> bool:
    """Return whether messages other than system messages stand before index *start*."""
    return any(not isinstance(m, SystemMessage) for m in messages[:start])


async def append_messages(
    repository: ChatMemoryRepository,
    conversation_id: str,
    messages: Sequence[Message],
    runtime: Runtime,
    *,
    key: str | None,
) -> None:
    """Add *messages* to a conversation; system messages among them replace those before.

    They are added as a unit, together with new system messages. Old ones are taken away
    afterwards: whoever looks in between sees both. Whoever cancels waits for all of it, and knows
    by the cause of the cancellation if they could not be added.
    """
    work = _append_messages(repository, conversation_id, messages, runtime, key=key)
    await runtime.shielded(work)


async def _append_messages(
    repository: ChatMemoryRepository,
    conversation_id: str,
    messages: Sequence[Message],
    runtime: Runtime,
    *,
    key: str | None,
) -> None:
    systems = system_messages(messages)
    if not systems:
        await repository.append(conversation_id, messages, runtime, key=key)
        return
    found = await repository.load(conversation_id, runtime, last=0)
    before = system_messages(found.messages)
    if all(system in before for system in systems):
        await repository.append(conversation_id, without_system(messages), runtime, key=key)
        return
    added = await repository.append(conversation_id, messages, runtime, key=key)
    if added and before:

        def without_old(present: Sequence[Message]) -> tuple[Message, ...]:
            return (*systems, *without_system(present))

        await repository.rewrite(conversation_id, without_old, runtime)


async def afterwards(work: Awaitable[object], runtime: Runtime, failure: str, **about: str) -> None:
    """Await *work* that comes after a turn was kept, which neither fails of it nor is undone.

    Args:
        work: It may take long, and be interrupted.
        runtime: That of the request that the turn belongs to.
        failure: What the log says when it fails.
        **about: What it says beside that.
    """
    try:
        await work
    except Exception as error:  # noqa: BLE001 - the next turn tries again
        log.warning(failure, **about, error=described(error))
    except BaseException:
        runtime.settle()
        raise
