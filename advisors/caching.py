"""Answers from memory of answers: the same prompt, the same response."""

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any, Protocol

from chatclient.chain import LOWEST_PRECEDENCE, ChatClientRequest, ChatClientResponse, Next
from chatclient.checks import check_method, check_number, seconds
from chatclient.events import RoundEnded, events_of
from chatclient.json import dumps
from chatclient.logs import get_logger
from chatclient.prompt import Prompt
from chatclient.response import NO_USAGE, ChatResponse
from chatclient.runtime import Runtime
from chatclient.serialization import message_to_dict
from chatclient.values import merged

CACHING_ORDER = LOWEST_PRECEDENCE - 600
"""Where response caches stand by default: next to the model, outside of rate limits."""

CACHE_RESPONSES = "cache_responses"
"""The advisor param that keeps a request away from response caches when it is False.

An advisor that asks for another answer puts `REFRESH` there, in the request's context.
"""

REFRESH = "refresh"
"""What a request's context says under `CACHE_RESPONSES` to have the model asked in any case; its
answer is kept in place of the one before."""

log = get_logger(__name__)

_COMPLETE = ("stop", "tool_call")
# What a request tells its tools is not sent, and callbacks are described by their definitions.
_NOT_SENT = frozenset({"tool_context", "tool_callbacks", "internal_tool_execution_enabled"})
# As messages are written: what of them consists of several, and which parts have no metadata.
_SEVERAL = frozenset({"content", "responses", "media"})
_SENT_WHOLE = frozenset({"reasoning", "tool_call", "tool_call_chunk", "provider"})


class ResponseStore(Protocol):
    """Keeps responses by key; its methods may be asynchronous, and drop what they like."""

    def get(self, key: str, /) -> Any:
        """Return the `ChatResponse` kept for *key*, or None."""
        ...

    def put(self, key: str, response: ChatResponse, /) -> Any:
        """Keep *response*."""
        ...


class InMemoryResponseStore:
    """Keeps the responses used last, each for some time; safe to share between threads.

    Args:
        max_entries: How many responses.
        ttl: For how long each, in seconds or as a `timedelta`, or None for ever.
        clock: Gives the time in seconds.

    Raises:
        UsageError: A limit is no number, or not positive.
    """

    def __init__(
        self,
        *,
        max_entries: int = 1000,
        ttl: float | timedelta | None = 3600.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        check_number("max_entries", max_entries, least=1)
        self._max_entries = max_entries
        self._ttl = float("inf") if ttl is None else seconds("ttl", ttl)
        self._clock = clock
        self._kept: OrderedDict[str, tuple[float, ChatResponse]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: str) -> ChatResponse | None:
        """Return the response kept for *key*, unless its time is over."""
        with self._lock:
            since, response = self._kept.get(key, (0.0, None))
            if response is None:
                return None
            if self._clock() - since >= self._ttl:
                del self._kept[key]
                return None
            self._kept.move_to_end(key)
            return response

    def put(self, key: str, response: ChatResponse) -> None:
        """Keep *response*, in place of the one unused for longest if need be."""
        with self._lock:
            self._kept[key] = (self._clock(), response)
            self._kept.move_to_end(key)
            if len(self._kept) > self._max_entries:
                self._kept.popitem(last=False)

    def __len__(self) -> int:
        return len(self._kept)


class ResponseCacheAdvisor:
    """Answers a prompt that was answered before without asking the model.

    The key is all that is sent: messages, options and the definitions of the tools. Inside the
    tool loop every round has its own: tools that an answer from the cache asks for are run again,
    and when they answer something else, so does the model. Only complete answers are kept: no
    errors, nothing cut off or filtered.

    A response from the cache costs nothing, says so in its metadata (`cached: True`), and is
    streamed like any other, at once.

    Args:
        store: Where responses are kept; default: in memory, a thousand for an hour.
        order: Where the advisor stands in the chain.
    """

    name = "ResponseCacheAdvisor"

    def __init__(self, store: ResponseStore | None = None, *, order: int = CACHING_ORDER) -> None:
        if store is not None:
            check_method("a response store", store, "get")
        self.store: ResponseStore = InMemoryResponseStore() if store is None else store
        self.order = order

    async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        """Return the response kept for the prompt, or the model's."""
        wanted = request.context.get(CACHE_RESPONSES)
        if wanted is False:
            return await call_next(request)
        key = cache_key(request.prompt)
        runtime = request.runtime
        known: ChatResponse | None = None
        if wanted != REFRESH:
            known = await self._do(runtime, self.store.get, key)
        if known is None:
            response = await call_next(request)
            if _is_complete(response.chat_response):
                await self._keep(key, response.chat_response, runtime)
            return response
        values = merged(known.metadata.values, {"cached": True})
        known = replace(known, metadata=replace(known.metadata, usage=NO_USAGE, values=values))
        if runtime.streaming:
            for generation in known.generations[:1]:
                for event in events_of(generation.output):
                    await runtime.emit(event)
            await runtime.emit(RoundEnded(known))
        return ChatClientResponse(known, request.context)

    async def _keep(self, key: str, answer: ChatResponse, runtime: Runtime) -> None:
        try:
            await self._do(runtime, self.store.put, key, answer)
        except Exception as error:  # noqa: BLE001 - the answer is there, and has been paid for
            log.warning("response not kept", store=type(self.store).__name__, error=repr(error))

    async def _do(self, runtime: Runtime, method: Callable[..., Any], *arguments: Any) -> Any:
        if isinstance(self.store, InMemoryResponseStore):  # which has nothing to wait for
            return method(*arguments)
        return await runtime.invoke(method, *arguments)


def cache_key(prompt: Prompt) -> str:
    """Return a text that is the same for prompts that are sent the same, and no others."""
    options = prompt.options
    values = {name: value for name, value in options.set_values().items() if name not in _NOT_SENT}
    tools = [callback.definition for callback in options.tool_callbacks or ()]
    sent = {
        "options": type(options).__qualname__,
        "values": _sorted(values),
        "tools": [[tool.name, tool.description, tool.input_schema, tool.strict] for tool in tools],
        "messages": [_said(message_to_dict(message)) for message in prompt.messages],
    }
    return hashlib.sha256(dumps(sent)).hexdigest()


def _said(value: Any) -> Any:
    """Return a message, or what it consists of, without metadata, which is not sent."""
    if not isinstance(value, dict) or value.get("type") in _SENT_WHOLE:
        return value
    kept = {key: each for key, each in value.items() if key != "metadata"}
    for key in _SEVERAL & kept.keys():
        if isinstance(kept[key], list):
            kept[key] = [_said(each) for each in kept[key]]
    return kept


def _sorted(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return value


def _is_complete(answer: ChatResponse) -> bool:
    return bool(answer.generations) and all(
        generation.finish_reason in _COMPLETE and generation.output.parts
        for generation in answer.generations
    )
