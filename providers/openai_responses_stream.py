"""Answers of OpenAI's Responses, whole or streamed: JSON and events to responses; no I/O."""

import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, ClassVar

from chatclient.aggregator import MessageAggregator
from chatclient.errors import InvalidResponseError, ProviderError, StreamInterruptedError
from chatclient.json import loads
from chatclient.messages import AssistantMessage, Part, Reasoning, ToolCallChunk
from chatclient.providers.failures import error_from, request_id
from chatclient.providers.keys import Headers
from chatclient.providers.openai_metadata import beside, rate_limit
from chatclient.providers.openai_responses_codec import (
    CALLS,
    CONVERSATION,
    PROVIDER,
    Item,
    decode_item,
    refusal,
)
from chatclient.response import (
    NO_USAGE,
    ChatResponse,
    ChatResponseMetadata,
    FinishReason,
    Generation,
    Usage,
)
from chatclient.values import EMPTY, FrozenDict

# --- whole answers --------------------------------------------------------------------------

# Errors that are none of the provider's; its codes for these name no status.
_REFUSED = re.compile(r"image|invalid|_policy|data_residency")
_FAILED = ("failed", "cancelled")
_FINISH_REASONS: dict[str, FinishReason] = {
    "completed": "stop",
    "complete": "stop",
    "incomplete": "length",
    "max_output_tokens": "length",
    "content_filter": "content_filter",
    "failed": "error",
    "cancelled": "error",
}


def decode_response(data: Any, provider: str, headers: Headers = EMPTY) -> ChatResponse:
    """Return the response that a whole answer spells.

    Args:
        data: The answer's JSON.
        provider: What the server is called in errors.
        headers: The answer's headers.

    Raises:
        ProviderError: The answer says that it failed.
        InvalidResponseError: The answer is of no known form.
    """
    if not isinstance(data, Mapping) or not isinstance(data.get("output"), list):
        if isinstance(data, Mapping) and data.get("error"):
            raise _failure(data, provider, headers)
        msg = f"{provider} answered with JSON that is not a response: {str(data)[:200]}"
        raise InvalidResponseError(msg, provider=provider, body=data)
    if data.get("error") and data.get("status") in _FAILED:
        raise _failure(data, provider, headers)
    items = _items(data)
    parts = [part for at, item in enumerate(items) for part in decode_item(item, at)]
    whole = MessageAggregator()  # joins the parts exactly as those of a stream are joined
    whole.add(_ending(data, _kinds(items), parts, headers))
    return whole.response()


def _failure(data: Item, provider: str, headers: Headers) -> ProviderError:
    """Return the error that a failed response, or an event, describes."""
    error = data.get("error") or data
    code = error.get("code") if isinstance(error, Mapping) else None
    status = 400 if isinstance(code, str) and _REFUSED.search(code) else 0
    return error_from(provider, status, {"error": error}, headers)


def _items(data: Item) -> list[Item]:
    return [item for item in data.get("output") or () if isinstance(item, Mapping)]


def _kinds(items: Iterable[Item]) -> set[str]:
    """Return which kinds of items there are; a refusal counts as one."""
    kinds = {str(item.get("type")) for item in items}
    contents = (item.get("content") or () for item in items if item.get("type") == "message")
    if any(piece.get("type") == "refusal" for content in contents for piece in content):
        kinds.add("refusal")
    return kinds


def _ending(data: Item, kinds: set[str], parts: list[Part], headers: Headers) -> ChatResponse:
    """Return the chunk that ends a response: its last parts and what is known about it."""
    details = data.get("incomplete_details") or {}
    native = details.get("reason") or data.get("status")
    reason = _FINISH_REASONS.get(str(native))
    if reason == "stop":
        if not kinds.isdisjoint(CALLS):
            reason = "tool_call"
        elif "refusal" in kinds:
            reason = "content_filter"
    message = AssistantMessage(parts, metadata=_held_in(data.get("conversation")))
    return ChatResponse((Generation(message, reason, native),), _metadata(data, headers))


def _held_in(conversation: Any) -> Mapping[str, Any]:
    id = conversation.get("id") if isinstance(conversation, Mapping) else None
    return FrozenDict({CONVERSATION: id}) if id else EMPTY


def _metadata(data: Item, headers: Headers) -> ChatResponseMetadata:
    return ChatResponseMetadata(
        id=data.get("id") or "",
        model=data.get("model") or "",
        usage=_usage(data.get("usage") or {}),
        rate_limit=rate_limit(headers),
        request_id=request_id(headers),
        values=beside(data, ("id", "model", "usage", "output", "object")),
    )


def _usage(usage: Item) -> Usage:
    if not usage:
        return NO_USAGE
    of_input = usage.get("input_tokens_details") or {}
    of_output = usage.get("output_tokens_details") or {}
    return Usage(
        usage.get("input_tokens") or 0,
        usage.get("output_tokens") or 0,
        of_input.get("cached_tokens"),
        of_input.get("cache_write_tokens"),
        of_output.get("reasoning_tokens"),
        FrozenDict(usage),
    )


# --- streams ---------------------------------------------------------------------------------


class _OpenItem:
    """An output item of a stream, from its first event on."""

    __slots__ = (
        *("begun", "call_id", "done", "free", "held"),
        *("named", "number", "said", "source", "type"),
    )

    def __init__(self, number: int, item: Item) -> None:
        self.number = number
        self.begun = item
        self.type: str | None = item.get("type")
        self.call_id: str = item.get("call_id") or ""
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

    Raises (from both methods):
        ProviderError: The stream reports an error.
        StreamInterruptedError: It ended before its answer did.
        InvalidResponseError: An event cannot be read.
    """

    __slots__ = (
        *("_begun", "_by_id", "_by_index", "_finished"),
        *("_headers", "_kinds", "_open", "_provider", "_started"),
    )

    def __init__(self, provider: str, headers: Headers = EMPTY) -> None:
        self._provider = provider
        self._headers = headers
        self._begun: list[_OpenItem] = []
        self._open: deque[_OpenItem] = deque()
        self._by_index: dict[int, _OpenItem] = {}
        self._by_id: dict[str, _OpenItem] = {}
        self._kinds: set[str] = set()
        self._started = False
        self._finished = False

    def feed(self, data: bytes) -> ChatResponse | str | None:
        """Return the chunk that an event spells, or None when there is nothing in it."""
        if self._finished or data == b"[DONE]":
            return None
        try:
            event = loads(data)
            kind = event.get("type")
        except (ValueError, AttributeError) as error:
            shown = data[:200].decode(errors="replace")
            msg = f"{self._provider} streamed something that is not an event: {shown!r}"
            raise InvalidResponseError(msg, provider=self._provider) from error
        if kind == "error" or (kind is None and event.get("error")):
            raise _failure(event, self._provider, self._headers)
        read = self._readers.get(kind or "")
        return None if read is None else read(self, event)

    def finish(self, rest: bytes) -> ChatResponse | str | None:
        """Make sure that the stream came to its end; return the chunk in its *rest*, if any."""
        chunk = None
        with suppress(InvalidResponseError):  # of which nothing can be made, being cut off
            chunk = self.feed(rest)  # the last event without its blank line, or a bare error
        if not self._finished:
            msg = f"{self._provider}'s stream ended before its answer did"
            raise StreamInterruptedError(msg, provider=self._provider)
        return chunk

    # --- what each kind of event tells ---

    def _read_start(self, event: Item) -> ChatResponse | None:
        if self._started:
            return None
        self._started = True
        response = event.get("response") or {}
        head = {"id": response.get("id"), "model": response.get("model")}
        return ChatResponse((), _metadata(head, self._headers))

    def _read_added(self, event: Item) -> ChatResponse | str | None:
        data = event.get("item") or {}
        item = self._begin(event, data)
        if item.type not in CALLS or not item.call_id or not data.get("name"):
            return None
        item.named = True
        return self._tell(item, ToolCallChunk(item.number, item.call_id, data["name"]))

    def _read_text(self, event: Item) -> ChatResponse | str | None:
        item, text = self._item_of(event), event.get("delta") or ""
        item.said.append(text)
        if self._open and item is self._open[0]:
            return text or None
        return self._tell(item, text)

    def _read_thought(self, event: Item) -> ChatResponse | str | None:
        item, text = self._item_of(event), event.get("delta") or ""
        item.source = item.source or event["type"]
        if not text or item.source != event["type"]:
            return None  # either the summary or the thoughts themselves: whichever came first
        item.said.append(text)
        return self._tell(item, Reasoning(text, provider=PROVIDER))

    def _read_arguments(self, event: Item) -> ChatResponse | str | None:
        item, text = self._item_of(event), event.get("delta") or ""
        if not text:
            return None
        item.said.append(text)
        return self._tell(item, ToolCallChunk(item.number, item.call_id, arguments=text))

    def _read_refusal(self, event: Item) -> ChatResponse | str | None:
        item, text = self._item_of(event), event.get("refusal") or ""
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
        if data.get("error") and data["status"] in _FAILED:
            raise _failure(data, self._provider, self._headers)
        items = _items(data)
        for at, whole in enumerate(items):
            item = self._known(at, whole) or self._begin({"output_index": at}, whole)
            self._complete(item, whole)
        for item in self._open:
            item.done = True
        self._finished = True
        return _ending(data, self._kinds, self._released(), self._headers)

    _readers: ClassVar[Mapping[str, Callable[..., ChatResponse | str | None]]] = {
        "response.created": _read_start,
        "response.queued": _read_start,
        "response.in_progress": _read_start,
        "response.output_item.added": _read_added,
        "response.output_text.delta": _read_text,
        "response.reasoning_summary_text.delta": _read_thought,
        "response.reasoning_text.delta": _read_thought,
        "response.function_call_arguments.delta": _read_arguments,
        "response.custom_tool_call_input.delta": _read_arguments,
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
        self._kinds |= _kinds([data])
        parts = decode_item(data, item.number, "".join(item.said))
        if item.named and isinstance(call := parts[0], ToolCallChunk):
            parts = [ToolCallChunk(call.index, call.id, "", call.arguments, call.metadata)]
        item.held += parts
        item.done = True

    def _tell(self, item: _OpenItem, *parts: Part) -> ChatResponse | str | None:
        """Return the chunk of what can be told now, once *parts* of *item* are there, too."""
        if parts and item.done:
            return None  # told already
        item.held += parts
        released = self._released()
        if item.free:
            released += item.held
            item.held = []
        return ChatResponse((Generation(AssistantMessage(released)),)) if released else None

    def _released(self) -> list[Part]:
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
