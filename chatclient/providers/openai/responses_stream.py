"""Decodes streams of OpenAI's Responses API; no I/O."""

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, ClassVar, TypeGuard

from chatclient._internal.frozen import EMPTY
from chatclient._internal.json import loads
from chatclient.chat.messages import AssistantMessage, Part, Reasoning, ToolCallChunk
from chatclient.chat.response import ChatResponse, Generation
from chatclient.errors import InvalidResponseError
from chatclient.providers.http.auth import Headers
from chatclient.providers.http.errors import invalid_response, stream_ended_early
from chatclient.providers.http.reader import is_end
from chatclient.providers.openai.responses_decoding import (
    CALLS,
    PART_SEPARATOR,
    decode_item,
    failure_error,
    final_chunk,
    is_failed,
    item_types,
    metadata_of,
    output_items,
    refusal,
    remainder,
)
from chatclient.providers.openai.responses_encoding import PROVIDER, Item
from chatclient.providers.wire.fields import MALFORMED, text_field

_ITEM_TYPES = {
    "response.output_text": "message",
    "response.refusal": "message",
    "response.reasoning_summary_text": "reasoning",
    "response.reasoning_text": "reasoning",
    "response.function_call_arguments": "function_call",
    "response.custom_tool_call_input": "custom_tool_call",
}
"""The type of the item to which events of a kind belong."""


@dataclass(slots=True, eq=False)
class _OpenItem:
    """An output item of a stream.

    Attributes:
        number: Index of the item, in the order in which items started.
        initial: The item in its first event.
        type: The item's type, if known.
        call_id: The id of the call, if it is one.
        named: Whether a chunk with the tool's name was emitted, so that arguments may follow.
        source: The type of the events with its reasoning; events of other types are ignored.
        part_index: The index of the part of its reasoning that was received last.
        received: Its text, reasoning or arguments so far.
        pending: The parts that have not been emitted.
        done: Whether it is complete.
        is_named_by_id: Whether an event was found to belong to it by its id.
        has_ended: Whether the event with its end was received.
        is_in_turn: Whether its parts are emitted immediately, because it and all items before it
            are complete, or calls with a known name.
    """

    number: int
    initial: Item
    type: str | None
    call_id: str
    named: bool = False
    source: str = ""
    part_index: object = None
    received: list[str] = field(default_factory=list)
    pending: list[Part] = field(default_factory=list)
    done: bool = False
    is_named_by_id: bool = False
    has_ended: bool = False
    is_in_turn: bool = False

    def fits(self, kind: str | None) -> bool:
        """Return whether it may be an item of the type *kind*."""
        return None in (self.type, kind) or self.type == kind

    def from_deltas(self) -> dict[str, Any] | None:
        """Return the complete item built from its deltas, or None for other types of items."""
        text, item = "".join(self.received), {**self.initial, "status": "completed"}
        if self.type == "message":
            return {**item, "content": [{"type": "output_text", "text": text}]}
        if self.type != "reasoning":
            return None
        if "summary" in self.source:
            return {**item, "summary": [{"type": "summary_text", "text": text}]}
        return {**item, "content": [{"type": "reasoning_text", "text": text}]}


class StreamDecoder:
    """Converts the events of a stream to chunks.

    Items may be interleaved. Parts of the first unfinished item are emitted immediately, later ones
    when the items before are complete, so that parts keep the order of the response. Items after a
    call do not wait for it, because chunks of a call are joined by id and index.

    Attributes:
        complete: Whether the server has marked the end of the stream.
    """

    __slots__ = (
        *("_items", "_by_id", "_by_index", "_by_type"),
        *("_headers", "_kinds", "_open", "_origin", "_provider", "_started", "complete"),
    )

    def __init__(self, provider: str, headers: Headers = EMPTY, origin: str = PROVIDER) -> None:
        self._provider = provider
        self._headers = headers
        self._origin = origin
        self._items: list[_OpenItem] = []
        self._open: deque[_OpenItem] = deque()
        self._by_index: dict[int, _OpenItem] = {}
        self._by_id: dict[str, _OpenItem] = {}
        self._by_type: defaultdict[str | None, deque[_OpenItem]] = defaultdict(deque)  # not ended
        self._kinds: set[str] = set()
        self._started = False
        self.complete = False

    def feed(self, data: bytes, _event: str = "") -> ChatResponse | str | None:
        """Return the chunk of an event, or None if the event has no content."""
        if self.complete or not data or is_end(data):
            return None
        try:
            event = loads(data)
            kind = event.get("type")
            if kind == "error" or (kind is None and event.get("error")):
                raise failure_error(event, self._provider, self._headers)
            read_event = self._readers.get(kind or "")
            return None if read_event is None else read_event(self, event)
        except MALFORMED as error:
            raise invalid_response(self._provider, data, error) from error

    def finish(self, rest: bytes) -> tuple[ChatResponse | str, ...]:
        """Check that the answer is complete, and return the chunk in *rest*, if any."""
        chunk = None
        with suppress(InvalidResponseError):  # truncated
            chunk = self.feed(rest)  # an event without its blank line, or an error as plain JSON
        if not self.complete:
            raise stream_ended_early(self._provider)
        return () if chunk is None else (chunk,)

    def _read_start(self, event: Item) -> ChatResponse | None:
        if self._started:
            return None
        self._started = True
        response = event.get("response") or {}
        head = {"id": response.get("id"), "model": response.get("model")}
        return ChatResponse((), metadata_of(head, self._headers))

    def _read_added(self, event: Item) -> ChatResponse | str | None:
        data = event.get("item") or {}
        item = self._open_item(event, data)
        if item.type not in CALLS or not item.call_id or not data.get("name"):
            return None
        item.named = True
        return self._chunk_of(
            item, ToolCallChunk(item.number, item.call_id, text_field(data["name"]))
        )

    def _read_text(self, event: Item) -> ChatResponse | str | None:
        item, text = self._item_of(event), text_field(event.get("delta"))
        item.received.append(text)
        if self._open and item is self._open[0]:
            return text or None
        return self._chunk_of(item, text)

    def _read_reasoning(self, event: Item) -> ChatResponse | str | None:
        item, text = self._item_of(event), text_field(event.get("delta"))
        item.source = item.source or event["type"]
        if not text or item.source != event["type"]:
            return None  # servers may send both the summary and the reasoning; the first is used
        part_index = event.get("summary_index", event.get("content_index"))
        if part_index != item.part_index and item.received:
            text = PART_SEPARATOR + text
        item.part_index = part_index
        item.received.append(text)
        return self._chunk_of(item, Reasoning(text, provider=self._origin))

    def _read_text_done(self, event: Item) -> ChatResponse | str | None:
        # Some servers send no deltas.
        item, text = self._item_of(event), text_field(event.get("text"))
        if item.received or not text:
            return None
        item.received.append(text)
        return self._chunk_of(item, text)

    def _read_arguments(self, event: Item) -> ChatResponse | str | None:
        return self._add_arguments(self._item_of(event), text_field(event.get("delta")))

    def _read_arguments_done(self, event: Item) -> ChatResponse | str | None:
        item = self._item_of(event)
        arguments = text_field(event.get("arguments") or event.get("input"))
        item.received = ["".join(item.received)]  # joined in place: the event may be repeated
        return self._add_arguments(item, remainder(arguments, item.received[0]))

    def _add_arguments(self, item: _OpenItem, text: str) -> ChatResponse | str | None:
        if not text:
            return None
        item.received.append(text)
        if not item.named:
            return None  # emitted with the name
        return self._chunk_of(item, ToolCallChunk(item.number, item.call_id, arguments=text))

    def _read_refusal(self, event: Item) -> ChatResponse | str | None:
        item, text = self._item_of(event), text_field(event.get("refusal"))
        if not text:
            return None
        item.received.append(text)
        return self._chunk_of(item, refusal(text))

    def _read_done(self, event: Item) -> ChatResponse | str | None:
        data = event.get("item") or {}
        item = self._item_of({"item_id": data.get("id"), **event}, data)
        item.has_ended = True
        if item.done:
            return None  # repeated event
        self._complete(item, data)
        return self._chunk_of(item)

    def _read_end(self, event: Item) -> ChatResponse:
        status = event["type"].rpartition(".")[2]
        response = event.get("response") or {}
        data = {**response, "status": response.get("status") or status}
        if is_failed(data):
            raise failure_error(data, self._provider, self._headers)
        finals = output_items(data)
        for index, (final, item) in enumerate(zip(finals, self._streamed(finals), strict=True)):
            self._complete(item or self._open_item({"output_index": index}, final), final)
        # The response has ended; items that it does not repeat must not hold back the others.
        for item in self._open:
            item.done = True
        self.complete = True
        parts = [*self._remaining_parts(), *self._take_emittable()]
        return final_chunk(data, self._kinds, parts, self._headers)

    _readers: ClassVar[Mapping[str, Callable[..., ChatResponse | str | None]]] = {
        "response.created": _read_start,
        "response.queued": _read_start,
        "response.in_progress": _read_start,
        "response.output_item.added": _read_added,
        "response.output_text.delta": _read_text,
        "response.output_text.done": _read_text_done,
        "response.reasoning_summary_text.delta": _read_reasoning,
        "response.reasoning_text.delta": _read_reasoning,
        "response.function_call_arguments.delta": _read_arguments,
        "response.function_call_arguments.done": _read_arguments_done,
        "response.custom_tool_call_input.delta": _read_arguments,
        "response.custom_tool_call_input.done": _read_arguments_done,
        "response.refusal.done": _read_refusal,
        "response.output_item.done": _read_done,
        "response.completed": _read_end,
        "response.incomplete": _read_end,
        "response.failed": _read_end,
    }

    def _open_item(self, event: Item, data: Item) -> _OpenItem:
        if "output_index" not in event:
            # Servers without indexes (llama.cpp) send items one after another, and their `done`
            # events only at the end.
            self._complete_last()
        call_id = text_field(data.get("call_id"))
        item = _OpenItem(len(self._items), data, data.get("type"), call_id)
        self._items.append(item)
        self._open.append(item)
        self._by_type[item.type].append(item)
        if (index := event.get("output_index")) is not None:
            self._by_index[index] = item
        if id := data.get("id") or event.get("item_id"):
            self._by_id[id] = item
        return item

    def _complete_last(self) -> None:
        # Earlier items were completed when the next one started.
        if self._items and (item := self._items[-1].from_deltas()) is not None:
            self._complete(self._items[-1], item)

    def _item_of(self, event: Item, data: Item = EMPTY) -> _OpenItem:
        """Return the item of an event, by its index, by its id or by its position."""
        kind = data.get("type") or _ITEM_TYPES.get(event["type"].rpartition(".")[0])
        id, index = event.get("item_id") or "", event.get("output_index")
        named = self._by_id.get(id)
        found = [self._by_index.get(-1 if index is None else index), named]
        if index is None or index in self._by_index:
            ended = bool(data)
            items = self._by_type[kind]
            while items and items[0].has_ended:
                items.popleft()
            found.append(items[0 if ended else -1] if items else None)
        for item in found:
            if item is None or not item.fits(kind):
                continue
            if item is named:
                item.is_named_by_id = True
                return item
            of_another = id and item.is_named_by_id and not data
            if not of_another and (not item.done or (data and not item.has_ended)):
                return item
        return self._open_item(event, {"type": kind, **data} if kind else data)

    def _streamed(self, finals: Sequence[Item]) -> list[_OpenItem | None]:
        """Return the streamed items of those of the complete response, None for new ones.

        Gateways may give them other ids and indexes, but keep their order.
        """
        found: dict[int, _OpenItem] = {}
        rest: defaultdict[str | None, OrderedDict[_OpenItem, None]] = defaultdict(OrderedDict)
        for each in self._items:
            rest[each.type][each] = None
        missing: defaultdict[str | None, list[int]] = defaultdict(list)

        def is_left(item: _OpenItem | None) -> TypeGuard[_OpenItem]:
            return item is not None and item in rest[item.type]

        def take(index: int, item: _OpenItem) -> None:
            found[index] = item
            del rest[item.type][item]

        # First by id. The others by index, unless there are as many items as are missing; the order
        # is then enough, and indexes that a gateway has changed do no harm.
        for index, final in enumerate(finals):
            if is_left(named := self._by_id.get(final.get("id") or "")):
                take(index, named)
            else:
                missing[final.get("type")].append(index)
        for kind, indexes in missing.items():
            fitting = [rest[kind], rest[None]]
            if len(indexes) != sum(map(len, fitting)):
                for index in indexes:
                    if is_left(item := self._by_index.get(index)) and item.fits(kind):
                        take(index, item)
            for index in indexes:
                first = [next(iter(items)) for items in fitting if items]
                if first and index not in found:
                    take(index, min(first, key=attrgetter("number")))
        return [found.get(index) for index in range(len(finals))]

    def _complete(self, item: _OpenItem, data: Item) -> None:
        if item.done:
            return
        self._kinds |= item_types([data])
        received = "".join(item.received)
        if not item.named and data.get(CALLS.get(str(data.get("type")), "")):
            received = ""  # arguments are not emitted before the name
        parts = decode_item(data, item.number, self._origin, received)
        if isinstance(call := parts[0], ToolCallChunk):
            name, pending = ("", "") if item.named else (call.name, received)
            arguments = pending + call.arguments
            parts = [ToolCallChunk(call.index, call.id, name, arguments, call.metadata)]
        item.pending += parts
        item.done = True

    def _chunk_of(self, item: _OpenItem, *parts: Part) -> ChatResponse | str | None:
        """Add *parts* to *item*, and return a chunk of all parts that can be emitted."""
        if parts and item.done:
            return None  # repeated event
        item.pending += parts
        ready = self._take_emittable()
        if item.is_in_turn:
            ready += item.pending
            item.pending = []
        return ChatResponse((Generation(AssistantMessage(ready)),)) if ready else None

    def _remaining_parts(self) -> list[Part]:
        """Remove and return the pending parts of items whose turn it is, usually calls."""
        in_turn = [item for item in self._items if item.is_in_turn]
        parts = [part for item in in_turn for part in item.pending]
        for item in in_turn:
            item.pending = []
        return parts

    def _take_emittable(self) -> list[Part]:
        """Remove and return the pending parts whose turn it is, in the order of the items.

        An item that is complete, or a call with a known name, no longer holds up the next one.
        """
        parts: list[Part] = []
        while self._open:
            first = self._open[0]
            parts += first.pending
            first.pending = []
            if not (first.done or first.named):
                break
            first.is_in_turn = True
            self._open.popleft()
        return parts
