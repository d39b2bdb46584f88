"""Joins tool names that a stream of Chat Completions sends in fragments; no I/O."""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from chatclient._internal.frozen import EMPTY, FrozenDict
from chatclient.chat.messages import ToolCallChunk


class CallNames:
    """Withholds tool calls until their names are complete.

    A server may stream a name in fragments, repeat it in every chunk, or send a longer prefix each
    time. A name is complete when its arguments start or the answer ends. Later calls wait for
    earlier ones to keep the order of calls; text and reasoning are not withheld.
    """

    __slots__ = ("_by_id", "_by_index", "_indexes", "_pending", "_without_arguments")

    def __init__(self) -> None:
        self._pending: deque[_PendingCall] = deque()
        self._by_id: dict[str, _PendingCall] = {}
        self._by_index: dict[int, _PendingCall] = {}
        self._indexes: set[int | None] = set()  # of all calls so far
        self._without_arguments: set[str] = set()  # ids

    def __bool__(self) -> bool:
        """Whether a call is withheld."""
        return bool(self._pending)

    def join(self, parts: list[Any]) -> list[Any]:
        """Return the parts of a chunk, with each call whose name is now complete."""
        for part in parts:
            if type(part) is ToolCallChunk and (part.name or self._pending):
                return self._join_chunks(parts)
        return parts  # the usual case

    def end(self) -> list[ToolCallChunk]:
        """Return the calls that are withheld when the answer ends."""
        chunks = [chunk for call in self._pending for chunk in call.chunks()]
        self._pending.clear()
        self._by_id.clear()
        self._by_index.clear()
        return chunks

    def awaits_arguments(self, id: str) -> bool:
        """Return whether no arguments of the call with this id have been received."""
        return id in self._without_arguments

    def _join_chunks(self, parts: list[Any]) -> list[Any]:
        joined: list[Any] = []
        started: set[_PendingCall] = set()
        for part in parts:
            if type(part) is ToolCallChunk:
                joined += self._add(part, started)
            else:
                joined.append(part)
        return joined

    def _add(self, chunk: ToolCallChunk, started: set["_PendingCall"]) -> Sequence[ToolCallChunk]:
        """Add a chunk, and return the chunks that need not be withheld any longer."""
        call = self._call_of(chunk, started)
        if call is None:
            if not chunk.name:
                return (chunk,)  # continues a call that is not withheld
            call = _PendingCall()
            self._pending.append(call)
            started.add(call)
        call.add(chunk)
        self._register(call, chunk)
        return list(self._release())

    def _call_of(self, chunk: ToolCallChunk, started: set["_PendingCall"]) -> "_PendingCall | None":
        """Return the pending call that *chunk* continues."""
        call = self._by_id.get(chunk.id) or self._call_by_index(chunk)
        if call is None or not chunk.name:
            return call
        return call if call.takes_name_of(chunk, same_chunk=call in started) else None

    def _call_by_index(self, chunk: ToolCallChunk) -> "_PendingCall | None":
        newest = self._pending[-1] if self._pending else None
        if chunk.index is None:
            call = newest
        elif chunk.name or chunk.index in self._indexes:
            call = self._by_index.get(chunk.index)
        else:
            call = newest  # some servers number the chunks instead of the calls
        if call is not None and chunk.name and chunk.id and (call.id or chunk.index is None):
            return None  # a new call with another id
        return call

    def _register(self, call: "_PendingCall", chunk: ToolCallChunk) -> None:
        self._indexes.add(chunk.index)
        if chunk.index is not None:
            self._by_index[chunk.index] = call
        if chunk.id:
            self._by_id[chunk.id] = call
        if call.id:
            change = self._without_arguments.discard if call.arguments else None
            (change or self._without_arguments.add)(call.id)

    def _release(self) -> Iterator[ToolCallChunk]:
        """Yield the calls whose names are complete, up to the first whose name is not."""
        while self._pending and self._pending[0].arguments:
            yield from self._pending.popleft().chunks()
        if not self._pending:
            self._by_id.clear()
            self._by_index.clear()


class _PendingCall:
    """A tool call whose name may be incomplete, or that waits for an earlier call.

    Attributes:
        id: The id; empty if not received yet.
        arguments: The chunks since the start of the arguments.
    """

    __slots__ = ("_index", "_length", "_metadata", "_name", "arguments", "id")

    def __init__(self) -> None:
        self.id = ""
        self.arguments: list[ToolCallChunk] = []
        self._index: int | None = None
        self._name: list[str] = []
        self._length = 0
        self._metadata: dict[str, Any] = {}

    def takes_name_of(self, chunk: ToolCallChunk, *, same_chunk: bool) -> bool:
        """Return whether the name in *chunk* may be a fragment of this call's name.

        Within one chunk of the stream, the index or the id has to match.
        """
        if self.arguments:
            return False
        if None in (self._index, chunk.index):
            return not same_chunk or bool(chunk.id)
        return not same_chunk or (self._index == chunk.index and bool(self.id))

    def add(self, chunk: ToolCallChunk) -> None:
        """Add the next chunk."""
        if self.arguments:
            self.arguments.append(chunk)
            return
        self.id = self.id or chunk.id
        # Some servers change the index when the arguments start.
        self._index = self._index if chunk.index is None else chunk.index
        self._metadata.update(chunk.metadata)
        self._add_name(chunk.name)
        if chunk.arguments:
            name = "".join(self._name)
            metadata = FrozenDict(self._metadata) if self._metadata else EMPTY
            self.arguments = [ToolCallChunk(self._index, self.id, name, chunk.arguments, metadata)]

    def chunks(self) -> list[ToolCallChunk]:
        """Return the chunks; the first contains the complete name."""
        if self.arguments:
            return self.arguments
        metadata = FrozenDict(self._metadata) if self._metadata else EMPTY
        return [ToolCallChunk(self._index, self.id, "".join(self._name), metadata=metadata)]

    def _add_name(self, fragment: str) -> None:
        if len(fragment) >= self._length and fragment.startswith("".join(self._name)):
            self._name = [fragment]  # a repetition or a longer prefix
            self._length = len(fragment)
        else:
            self._name.append(fragment)
            self._length += len(fragment)
