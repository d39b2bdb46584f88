"""Streamed answers of OpenAI's Responses: events in, chunks out; no I/O."""

from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, ClassVar

from chatclient.errors import InvalidResponseError
from chatclient.json import loads
from chatclient.messages import AssistantMessage, Part, Reasoning, ToolCallChunk
from chatclient.providers.failures import ended_early, unreadable
from chatclient.providers.fields import MISSHAPEN, text_of
from chatclient.providers.keys import Headers
from chatclient.providers.openai_responses_decoding import (
    CALLS,
    decode_item,
    ending,
    failed,
    failure,
    items_of,
    kinds_of,
    metadata_of,
    refusal,
    rest_of,
)
from chatclient.providers.openai_responses_encoding import PROVIDER, Item
from chatclient.providers.sse import is_end
from chatclient.response import ChatResponse, Generation
from chatclient.values import EMPTY


class _OpenItem:
    """An output item of a stream, from its first event on.

    Attributes:
        number: Its place among the items, in the order in which they began.
        begun: The item as it was when it began.
        type: Its type, if that was told.
        call_id: The id of the call, if it is one.
        named: Whether a chunk has told what is called, so that arguments may follow.
        source: The type of the events that tell its thoughts; there may be two kinds, and one is
            enough.
        said: Its text, thoughts or arguments so far.
        held: The parts that wait for their turn.
        done: Whether it is whole.
        free: Whether nothing of it has to wait any more: it, and each item before it, is whole or a
            call whose name was told.
    """

    __slots__ = (
        *("begun", "call_id", "done", "free", "held"),
        *("named", "number", "said", "source", "type"),
    )

    def __init__(self, number: int, item: Item) -> None:
        self.number = number
        self.begun = item
        self.type: str | None = item.get("type")
        self.call_id = text_of(item.get("call_id"))
        self.named = False
        self.source = ""
        self.said: list[str] = []
        self.held: list[Part] = []
        self.done = False
        self.free = False

    def as_told(self) -> dict[str, Any] | None:
        """Return the item that its events have told so far, where these tell all there is."""
        text, whole = "".join(self.said), {**self.begun, "status": "completed"}
        if self.type == "message":
            return {**whole, "content": [{"type": "output_text", "text": text}]}
        if self.type != "reasoning":
            return None
        if "summary" in self.source:
            return {**whole, "summary": [{"type": "summary_text", "text": text}]}
        return {**whole, "content": [{"type": "reasoning_text", "text": text}]}


class StreamDecoder:
    """Makes chunks of the events of a stream; no I/O.

    Items may come interleaved. What belongs to the first unfinished one is told at once, the rest
    is held back until its turn, so that the parts stand in the order of the whole response. Calls
    hold nothing back: their fragments find together wherever they stand.

    Attributes:
        complete: Whether the server has said that nothing more comes.

    Raises (from both methods):
        ProviderError: The stream reports an error.
        StreamInterruptedError: It ended before its answer did.
        InvalidResponseError: An event cannot be read.
    """

    __slots__ = (
        *("_begun", "_by_id", "_by_index"),
        *("_headers", "_kinds", "_open", "_origin", "_provider", "_started", "complete"),
    )

    def __init__(self, provider: str, headers: Headers = EMPTY, origin: str = PROVIDER) -> None:
        self._provider = provider
        self._headers = headers
        self._origin = origin
        self._begun: list[_OpenItem] = []
        self._open: deque[_OpenItem] = deque()
        self._by_index: dict[int, _OpenItem] = {}
        self._by_id: dict[str, _OpenItem] = {}
        self._kinds: set[str] = set()
        self._started = False
        self.complete = False

    def feed(self, data: bytes, _event: str = "") -> ChatResponse | str | None:
        """Return the chunk that an event spells, or None when there is nothing in it."""
        if self.complete or not data or is_end(data):
            return None
        try:
            event = loads(data)
            kind = event.get("type")
            if kind == "error" or (kind is None and event.get("error")):
                raise failure(event, self._provider, self._headers)
            read = self._readers.get(kind or "")
            return None if read is None else read(self, event)
        except MISSHAPEN as error:
            raise unreadable(self._provider, data) from error

    def finish(self, rest: bytes) -> tuple[ChatResponse | str, ...]:
        """Make sure that the stream came to its end; return the chunk in its *rest*, if any."""
        chunk = None
        with suppress(InvalidResponseError):  # of which nothing can be made, being cut off
            chunk = self.feed(rest)  # the last event without its blank line, or a bare error
        if not self.complete:
            raise ended_early(self._provider)
        return () if chunk is None else (chunk,)

    # --- what each kind of event tells ---

    def _read_start(self, event: Item) -> ChatResponse | None:
        if self._started:
            return None
        self._started = True
        response = event.get("response") or {}
        head = {"id": response.get("id"), "model": response.get("model")}
        return ChatResponse((), metadata_of(head, self._headers))

    def _read_added(self, event: Item) -> ChatResponse | str | None:
        data = event.get("item") or {}
        item = self._begin(event, data)
        if item.type not in CALLS or not item.call_id or not data.get("name"):
            return None
        item.named = True
        return self._tell(item, ToolCallChunk(item.number, item.call_id, text_of(data["name"])))

    def _read_text(self, event: Item) -> ChatResponse | str | None:
        item, text = self._item_of(event), text_of(event.get("delta"))
        item.said.append(text)
        if self._open and item is self._open[0]:
            return text or None
        return self._tell(item, text)

    def _read_thought(self, event: Item) -> ChatResponse | str | None:
        item, text = self._item_of(event), text_of(event.get("delta"))
        item.source = item.source or event["type"]
        if not text or item.source != event["type"]:
            return None  # either the summary or the thoughts themselves: whichever came first
        item.said.append(text)
        return self._tell(item, Reasoning(text, provider=self._origin))

    def _read_whole_text(self, event: Item) -> ChatResponse | str | None:
        # Of use where it is all that a server tells of a text.
        item, text = self._item_of(event), text_of(event.get("text"))
        if item.said or not text:
            return None
        item.said.append(text)
        return self._tell(item, text)

    def _read_arguments(self, event: Item) -> ChatResponse | str | None:
        return self._tell_arguments(self._item_of(event), text_of(event.get("delta")))

    def _read_whole_arguments(self, event: Item) -> ChatResponse | str | None:
        item = self._item_of(event)
        whole = text_of(event.get("arguments") or event.get("input"))
        return self._tell_arguments(item, rest_of(whole, "".join(item.said)))

    def _tell_arguments(self, item: _OpenItem, text: str) -> ChatResponse | str | None:
        if not text:
            return None
        item.said.append(text)
        if not item.named:
            return None  # nobody could tell yet whose arguments they are
        return self._tell(item, ToolCallChunk(item.number, item.call_id, arguments=text))

    def _read_refusal(self, event: Item) -> ChatResponse | str | None:
        item, text = self._item_of(event), text_of(event.get("refusal"))
        if not text:
            return None
        item.said.append(text)
        return self._tell(item, refusal(text))

    def _read_done(self, event: Item) -> ChatResponse | str | None:
        data = event.get("item") or {}
        item = self._item_of({"item_id": data.get("id"), **event}, data)
        if item.done:
            return None  # told already
        self._complete(item, data)
        return self._tell(item)

    def _read_end(self, event: Item) -> ChatResponse:
        status = event["type"].rpartition(".")[2]
        response = event.get("response") or {}
        data = {**response, "status": response.get("status") or status}
        if failed(data):
            raise failure(data, self._provider, self._headers)
        items = items_of(data)
        for at, whole in enumerate(items):
            item = self._known(at, whole) or self._begin({"output_index": at}, whole)
            self._complete(item, whole)
        for item in self._open:
            item.done = True
        self.complete = True
        parts = [*self._rest(), *self._release()]
        return ending(data, self._kinds, parts, self._headers)

    _readers: ClassVar[Mapping[str, Callable[..., ChatResponse | str | None]]] = {
        "response.created": _read_start,
        "response.queued": _read_start,
        "response.in_progress": _read_start,
        "response.output_item.added": _read_added,
        "response.output_text.delta": _read_text,
        "response.output_text.done": _read_whole_text,
        "response.reasoning_summary_text.delta": _read_thought,
        "response.reasoning_text.delta": _read_thought,
        "response.function_call_arguments.delta": _read_arguments,
        "response.function_call_arguments.done": _read_whole_arguments,
        "response.custom_tool_call_input.delta": _read_arguments,
        "response.custom_tool_call_input.done": _read_whole_arguments,
        "response.refusal.done": _read_refusal,
        "response.output_item.done": _read_done,
        "response.completed": _read_end,
        "response.incomplete": _read_end,
        "response.failed": _read_end,
    }

    # --- items ---

    def _begin(self, event: Item, data: Item) -> _OpenItem:
        if "output_index" not in event:
            # Servers that number no items (llama.cpp) tell them one after another, and only at
            # the very end that each is done.
            self._complete_as_told()
        item = _OpenItem(len(self._begun), data)
        self._begun.append(item)
        self._open.append(item)
        if (index := event.get("output_index")) is not None:
            self._by_index[index] = item
        if id := data.get("id") or event.get("item_id"):
            self._by_id[id] = item
        return item

    def _complete_as_told(self) -> None:
        for item in self._open:
            if (told := item.as_told()) is not None:
                self._complete(item, told)

    def _item_of(self, event: Item, data: Item = EMPTY) -> _OpenItem:
        """Return the item an event belongs to: by its index, or (some servers say none) its id."""
        id = event.get("item_id")
        item = self._by_index.get(event.get("output_index", -1)) or self._by_id.get(id or "")
        if item is None and id is None and self._open:
            return self._open[-1]
        if item is None or (item.done and self._by_id.get(id or "") is not item):
            return self._begin(event, data)
        return item

    def _known(self, at: int, data: Item) -> _OpenItem | None:
        """Return the item that stands at place *at* of the whole response, if it was told of."""
        if item := self._by_id.get(data.get("id") or ""):
            return item
        item = self._by_index.get(at)
        if item is None and not data.get("id") and at < len(self._begun):
            item = self._begun[at]
        return item if item is not None and item.type in (None, data.get("type")) else None

    def _complete(self, item: _OpenItem, data: Item) -> None:
        if item.done:
            return
        self._kinds |= kinds_of([data])
        said = "".join(item.said)
        parts = decode_item(data, item.number, self._origin, said)
        if isinstance(call := parts[0], ToolCallChunk):
            name, told = ("", "") if item.named else (call.name, said)
            arguments = told + call.arguments
            parts = [ToolCallChunk(call.index, call.id, name, arguments, call.metadata)]
        item.held += parts
        item.done = True

    def _tell(self, item: _OpenItem, *parts: Part) -> ChatResponse | str | None:
        """Return the chunk of what can be told now, once *parts* of *item* are there, too."""
        if parts and item.done:
            return None  # told already
        item.held += parts
        released = self._release()
        if item.free:
            released += item.held
            item.held = []
        return ChatResponse((Generation(AssistantMessage(released)),)) if released else None

    def _rest(self) -> list[Part]:
        """Return what is left to tell of items that hold nothing back: the calls, as a rule."""
        free = [item for item in self._begun if item.free]
        parts = [part for item in free for part in item.held]
        for item in free:
            item.held = []
        return parts

    def _release(self) -> list[Part]:
        """Return what need not be held back any longer."""
        parts: list[Part] = []
        while self._open:
            first = self._open[0]
            parts += first.held
            first.held = []
            if not (first.done or first.named):
                break
            first.free = True
            self._open.popleft()
        return parts
