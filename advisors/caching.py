"""Answers from memory of answers: the same prompt, the same response."""

import hashlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, Protocol

from chatclient.advisors.last_options import LastOptions
from chatclient.chain import (
    LOWEST_PRECEDENCE,
    Advisor,
    ChatClientRequest,
    ChatClientResponse,
    Next,
)
from chatclient.checks import check_kind, check_method, check_number, seconds
from chatclient.events import RoundEnded, events_of
from chatclient.forks import ForkSafeLock
from chatclient.json import dumps, has_json_form
from chatclient.logs import get_logger
from chatclient.model import ChatModel
from chatclient.options import ChatOptions
from chatclient.prompt import Prompt
from chatclient.response import NO_USAGE, ChatResponse
from chatclient.runtime import Runtime
from chatclient.serialization import message_to_dict
from chatclient.tool import FAILURE, STEP
from chatclient.turn_taking import says_something
from chatclient.values import EMPTY, merged

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
# Of a message as a dict: the fields that are lists, and the types of parts that are sent unchanged.
_SEVERAL = frozenset({"content", "responses", "media"})
_SENT_WHOLE = frozenset({"reasoning", "tool_call", "tool_call_chunk", "provider"})
# What tools tell the application is not sent, but for what the library itself makes of it.
_SENT_OF_TOOLS = (FAILURE, STEP)


class ResponseStore(Protocol):
    """Keeps responses by key; its methods may be asynchronous, and drop what they like."""

    def get(self, key: str, /) -> ChatResponse | Awaitable[ChatResponse | None] | None:
        """Return the response kept for *key*, or None."""
        ...

    def put(self, key: str, response: ChatResponse, /) -> object:
        """Keep *response*."""
        ...


class InMemoryResponseStore:
    """Keeps the responses used last, each for some time; safe to share between threads.

    Args:
        max_entries: How many responses.
        time_to_live: For how long each, in seconds or as a `timedelta`, or None for ever.
        clock: Gives the time in seconds.

    Raises:
        UsageError: A limit is not a number, or not positive.
    """

    def __init__(
        self,
        *,
        max_entries: int = 1000,
        time_to_live: float | timedelta | None = 3600.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        check_number("max_entries", max_entries, least=1)
        self._max_entries = max_entries
        kept = float("inf") if time_to_live is None else seconds("time_to_live", time_to_live)
        self._time_to_live = kept
        self._clock = clock
        self._kept: OrderedDict[str, tuple[float, ChatResponse]] = OrderedDict()
        self._lock = ForkSafeLock()

    def get(self, key: str) -> ChatResponse | None:
        """Return the response kept for *key*, unless its time is over."""
        with self._lock:
            since, response = self._kept.get(key, (0.0, None))
            if response is None:
                return None
            if self._clock() - since >= self._time_to_live:
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

    The key is all that is sent, and where to: messages with their metadata, options, the
    definitions of the tools, and the model with its provider and its address. Inside the
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
            check_method("a response store", store, "put")
        self.store: ResponseStore = InMemoryResponseStore() if store is None else store
        self.order = order
        self._options = LastOptions(_written)

    def before_model(self, model: ChatModel) -> Advisor:
        """Return this advisor for a chain that ends in *model*: its answers are its own."""
        return partial(self._answered, (model.provider, model.name, model.address))

    async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        """Return the response kept for the prompt, or the model's."""
        return await self._answered((), request, call_next)

    async def _answered(
        self, model: tuple[str, ...], request: ChatClientRequest, call_next: Next
    ) -> ChatClientResponse:
        wanted = request.context.get(CACHE_RESPONSES)
        if wanted is False:
            return await call_next(request)
        prompt = request.prompt
        key = _key_of(prompt, self._options.get(prompt.options), model)
        runtime = request.runtime
        known = None if wanted == REFRESH else await self._kept(key, runtime)
        if known is None:
            response = await call_next(request)
            if _is_complete(response.chat_response):
                await self._keep(key, response.chat_response, runtime)
            return response
        values = merged(known.metadata.values, {"cached": True})
        known = replace(known, metadata=replace(known.metadata, usage=NO_USAGE, values=values))
        if runtime.streaming:
            for generation in known.generations[:1]:
                for event in events_of(generation.output.parts):
                    await runtime.emit(event)
            await runtime.emit(RoundEnded(known))
        return ChatClientResponse(known, request.context)

    async def _kept(self, key: str, runtime: Runtime) -> ChatResponse | None:
        try:
            kept: ChatResponse | None = await self._do(runtime, self.store.get, key)
        except Exception as error:  # noqa: BLE001 - the model can be asked
            log.warning("response not read", store=type(self.store).__name__, error=repr(error))
            return None
        if kept is not None:
            hint = "return None where none is kept"
            check_kind("what a response store returns", kept, ChatResponse, hint)
        return kept

    async def _keep(self, key: str, answer: ChatResponse, runtime: Runtime) -> None:
        try:
            await self._do(runtime, self.store.put, key, answer)
        except Exception as error:  # noqa: BLE001 - the answer is there, and has been paid for
            log.warning("response not kept", store=type(self.store).__name__, error=repr(error))

    async def _do(self, runtime: Runtime, method: Callable[..., Any], *arguments: Any) -> Any:
        if type(self.store) is InMemoryResponseStore:  # which has nothing to wait for
            return method(*arguments)
        return await runtime.invoke(method, *arguments)


def cache_key(prompt: Prompt, model: tuple[str, ...] = ()) -> str:
    """Return a text that is the same for prompts that are sent the same to *model*, and no others.

    Args:
        prompt: The prompt.
        model: What tells the model from others: its provider, its name and its address.
    """
    return _key_of(prompt, _written(prompt.options), model)


def _key_of(prompt: Prompt, options: bytes, model: tuple[str, ...]) -> str:
    said = [_said(message_to_dict(message)) for message in prompt.messages]
    return hashlib.sha256(options + dumps([model, said])).hexdigest()


def _written(options: ChatOptions) -> bytes:
    """Return what of *options* is sent, as JSON."""
    values = {name: value for name, value in options.set_values().items() if name not in _NOT_SENT}
    tools = [callback.definition for callback in options.tool_callbacks or ()]
    sent = {
        "options": type(options).__qualname__,
        "values": _sorted(values),
        "tools": [[tool.name, tool.description, tool.input_schema, tool.strict] for tool in tools],
    }
    return dumps(sent)


def _said(value: Any) -> Any:
    """Return a message, or what it consists of, as far as a provider may be told of it."""
    if not isinstance(value, dict) or value.get("type") in _SENT_WHOLE:
        return value
    kept = {**value, "metadata": _tellable(value.get("metadata", EMPTY))}
    for key in _SEVERAL & kept.keys():
        if isinstance(kept[key], list):
            kept[key] = [_said(each) for each in kept[key]]
    for response in kept.get("responses", ()):
        beside = response["metadata"]
        response["metadata"] = {key: beside[key] for key in _SENT_OF_TOOLS if key in beside}
    return kept


def _tellable(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of *metadata* has a form in JSON; nothing else can be sent."""
    return {key: _sorted(metadata[key]) for key in sorted(metadata) if has_json_form(metadata[key])}


def _sorted(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return value


def _is_complete(answer: ChatResponse) -> bool:
    return bool(answer.generations) and all(
        generation.finish_reason in _COMPLETE and says_something(generation.output)
        for generation in answer.generations
    )
