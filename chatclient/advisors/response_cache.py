"""`ResponseCacheAdvisor`: reuses the responses to identical prompts."""

import hashlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, Protocol

from chatclient._internal.checks import check_method, check_number, check_type, seconds
from chatclient._internal.frozen import EMPTY, merged
from chatclient._internal.json import dumps, has_json_form
from chatclient._internal.logging import get_logger
from chatclient.chain.chain import (
    LOWEST_PRECEDENCE,
    Advisor,
    ChatClientRequest,
    ChatClientResponse,
    Next,
)
from chatclient.chain.params import CACHE_RESPONSES
from chatclient.chat.events import RoundEnded, events_of
from chatclient.chat.message_merging import has_content
from chatclient.chat.model import ChatModel
from chatclient.chat.options import ChatOptions, OptionsCache
from chatclient.chat.prompt import Prompt
from chatclient.chat.recorder import TurnStep
from chatclient.chat.response import NO_USAGE, ChatResponse
from chatclient.chat.serialization import message_to_dict, response_from_dict, response_to_dict
from chatclient.chat.server_tools import ServerTool
from chatclient.chat.stored_values import from_stored, to_stored
from chatclient.chat.tool import FAILURE, STEP
from chatclient.runtime.runtime import Runtime
from chatclient.runtime.threads import ForkSafeLock

CACHING_ORDER = LOWEST_PRECEDENCE - 600
"""The default order of response caches: next to the model, outside of rate limits."""

REFRESH = "refresh"
"""The value of `CACHE_RESPONSES` that calls the model in any case, and replaces the cached
response."""

log = get_logger(__name__)

_COMPLETE = ("stop", "tool_call")
# The tool context is not sent, and callbacks are identified by their definitions.
_NOT_SENT = frozenset({"tool_context", "tool_callbacks", "internal_tool_execution_enabled"})
# Of a message as a dict: the fields that are lists, and the types of parts that are sent unchanged.
_LIST_FIELDS = frozenset({"content", "responses", "media"})
_UNCHANGED_PARTS = frozenset({"reasoning", "tool_call", "tool_call_chunk", "provider"})
# The metadata of tool results is not sent, except for the keys that the library interprets.
_SENT_TOOL_METADATA = (FAILURE, STEP)


class ResponseStore(Protocol):
    """Stores responses by key; its methods may be asynchronous, and it may drop entries."""

    def get(self, key: str, /) -> ChatResponse | Awaitable[ChatResponse | None] | None:
        """Return the response stored under *key*, or None."""
        ...

    def put(self, key: str, response: ChatResponse, /) -> object:
        """Store *response* under *key*."""
        ...


class InMemoryResponseStore:
    """Stores the most recently used responses, with a time to live; thread-safe.

    Args:
        max_entries: The maximum number of responses.
        time_to_live: The time to live of an entry in seconds or as a `timedelta`, or None for no
            limit.
        clock: Returns the time in seconds.

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
        lifetime = float("inf") if time_to_live is None else seconds("time_to_live", time_to_live)
        self._time_to_live = lifetime
        self._clock = clock
        self._entries: OrderedDict[str, tuple[float, ChatResponse]] = OrderedDict()
        self._lock = ForkSafeLock()

    def get(self, key: str) -> ChatResponse | None:
        """Return the response stored under *key*, unless it has expired."""
        with self._lock:
            stored_at, response = self._entries.get(key, (0.0, None))
            if response is None:
                return None
            if self._clock() - stored_at >= self._time_to_live:
                del self._entries[key]
                return None
            self._entries.move_to_end(key)
            return response

    def put(self, key: str, response: ChatResponse) -> None:
        """Store *response*, and remove the least recently used one if there are too many."""
        with self._lock:
            self._entries[key] = (self._clock(), response)
            self._entries.move_to_end(key)
            if len(self._entries) > self._max_entries:
                self._entries.popitem(last=False)

    def __len__(self) -> int:
        return len(self._entries)


class ResponseCacheAdvisor:
    """Returns the cached response if an identical prompt was sent before.

    The key covers all data that is sent, and its destination: messages with their metadata,
    options, the definitions of the tools, and the model with its provider and address. Inside the
    tool loop, each round has its key: the tool calls of a cached response are run again, and if
    their results differ, the model is called. Only complete responses are cached: no errors, and
    none that were cut off or filtered.

    A cached response has no usage, has `cached: True` in its metadata, and is streamed without
    delay.

    Args:
        store: The store of the responses; default: in memory, a thousand for an hour.
        order: The position in the chain.
    """

    name = "ResponseCacheAdvisor"
    params: Collection[str] = (CACHE_RESPONSES,)

    def __init__(self, store: ResponseStore | None = None, *, order: int = CACHING_ORDER) -> None:
        if store is not None:
            check_method("a response store", store, "get")
            check_method("a response store", store, "put")
        self.store: ResponseStore = InMemoryResponseStore() if store is None else store
        self.order = order
        self._options = OptionsCache(_dump_options)

    def before_model(self, model: ChatModel) -> Advisor:
        """Return this advisor for a chain around *model*, which becomes part of the keys."""
        return partial(self._respond, (model.provider, model.name, model.address))

    async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        """Return the cached response to the prompt, or the model's."""
        return await self._respond((), request, call_next)

    async def _respond(
        self, model: tuple[str, ...], request: ChatClientRequest, call_next: Next
    ) -> ChatClientResponse:
        mode = request.context.get(CACHE_RESPONSES)
        if mode is False:
            return await call_next(request)
        prompt = request.prompt
        key = _key_of(prompt, self._options.get(prompt.options), model)
        runtime = request.runtime
        cached = None if mode == REFRESH else await self._found(key, request)
        if cached is None:
            response = await call_next(request)
            generations = response.chat_response.generations
            if generations and all(
                each.finish_reason in _COMPLETE and has_content(each.output) for each in generations
            ):
                try:
                    await self._call_store(runtime, self.store.put, key, response.chat_response)
                except Exception as error:  # noqa: BLE001 - must not fail a request that has its response
                    log.warning(
                        "response not kept", store=type(self.store).__name__, error=repr(error)
                    )
            return response
        values = merged(cached.metadata.values, {"cached": True})
        cached = replace(cached, metadata=replace(cached.metadata, usage=NO_USAGE, values=values))
        if runtime.streaming:
            for generation in cached.generations[:1]:
                for event in events_of(generation.output.parts):
                    await runtime.emit(event)
            await runtime.emit(RoundEnded(cached))
        return ChatClientResponse(cached, request.context)

    async def _found(self, key: str, request: ChatClientRequest) -> ChatResponse | None:
        """Return the cached response, if there is one.

        A look-up is a step of a recorded turn: another execution of the turn would find the
        response that the one before it has stored.
        """
        recorder = request.turn.recorder
        if recorder is None:
            return await self._load(key, request.runtime)

        def dump(found: ChatResponse | Exception | None) -> dict[str, Any]:
            if isinstance(found, ChatResponse):
                return to_stored({"found": response_to_dict(found)})
            return {"found": None}

        async def load(recorded: dict[str, Any]) -> ChatResponse | None:
            found = recorded["found"]
            return None if found is None else response_from_dict(from_stored(found))

        step = TurnStep("lookup", f"cache {key[:16]}", partial(self._load, key), dump, load)
        return await recorder.step(step, request.runtime)

    async def _load(self, key: str, runtime: Runtime) -> ChatResponse | None:
        try:
            stored: ChatResponse | None = await self._call_store(runtime, self.store.get, key)
        except Exception as error:  # noqa: BLE001 - the model is called instead
            log.warning("response not read", store=type(self.store).__name__, error=repr(error))
            return None
        if stored is not None:
            hint = "return None where none is kept"
            check_type("what a response store returns", stored, ChatResponse, hint)
        return stored

    async def _call_store(
        self, runtime: Runtime, method: Callable[..., Any], *arguments: Any
    ) -> Any:
        if type(self.store) is InMemoryResponseStore:  # never blocks
            return method(*arguments)
        return await runtime.invoke(method, *arguments)


def cache_key(prompt: Prompt, model: tuple[str, ...] = ()) -> str:
    """Return the digest of the data that is sent for *prompt*, and of *model*.

    Args:
        prompt: The prompt.
        model: The identity of the model: its provider, name and address.
    """
    return _key_of(prompt, _dump_options(prompt.options), model)


def _key_of(prompt: Prompt, options: bytes, model: tuple[str, ...]) -> str:
    messages = [_sent_fields(message_to_dict(message)) for message in prompt.messages]
    for message in messages:
        # Memories add these two; they are not sent.
        message.pop("id", None)
        message.pop("stored_at", None)
    return hashlib.sha256(options + dumps([model, messages])).hexdigest()


def _dump_options(options: ChatOptions) -> bytes:
    """Return the options that are sent, as JSON."""
    values = {name: value for name, value in options.set_values().items() if name not in _NOT_SENT}
    tools = [callback.definition for callback in options.tool_callbacks or ()]
    sent = {
        "options": type(options).__qualname__,
        "values": _sorted(values),
        "tools": [[tool.name, tool.description, tool.input_schema, tool.strict] for tool in tools],
        "server_tools": [
            repr(callback)  # without secrets
            for callback in options.tool_callbacks or ()
            if isinstance(callback, ServerTool)
        ],
    }
    return dumps(sent)


def _sent_fields(value: Any) -> Any:
    """Return a message, part or tool result as a dict, reduced to the fields that may be sent."""
    if not isinstance(value, dict) or value.get("type") in _UNCHANGED_PARTS:
        return value
    sent = {**value, "metadata": _json_metadata(value.get("metadata", EMPTY))}
    for key in _LIST_FIELDS & sent.keys():
        if isinstance(sent[key], list):
            sent[key] = [_sent_fields(each) for each in sent[key]]
    for response in sent.get("responses", ()):
        metadata = response["metadata"]
        response["metadata"] = {k: metadata[k] for k in _SENT_TOOL_METADATA if k in metadata}
    return sent


def _json_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the items of *metadata* that have a JSON form, sorted; others cannot be sent."""
    return {key: _sorted(metadata[key]) for key in sorted(metadata) if has_json_form(metadata[key])}


def _sorted(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return value
