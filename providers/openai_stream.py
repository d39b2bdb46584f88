"""Streamed Chat Completions answers as chunks; no I/O."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from chatclient.errors import InvalidResponseError
from chatclient.json import loads
from chatclient.messages import AssistantMessage, ProviderPart, ToolCallChunk
from chatclient.providers.failures import ended_early, unreadable
from chatclient.providers.fields import MISSHAPEN, beside, number_of
from chatclient.providers.keys import Headers
from chatclient.providers.openai_decoding import (
    CHOICE_FIELDS,
    call_chunk,
    finish_reason,
    message_metadata,
    parts_of,
    refuse_errors,
)
from chatclient.providers.openai_dialect import Dialect
from chatclient.providers.openai_metadata import metadata_of
from chatclient.providers.openai_thoughts import FIELDS, ContentThoughts, FieldThoughts
from chatclient.providers.sse import is_end
from chatclient.response import (
    NO_METADATA,
    ChatResponse,
    ChatResponseMetadata,
    Generation,
)
from chatclient.values import EMPTY, FrozenDict


@dataclass(slots=True)
class _Choice:
    """What a stream has said of one answer so far."""

    calls: bool = False
    refused: bool = False
    finished: bool = False
    details: dict[str, FieldThoughts] = field(default_factory=dict)
    thoughts: ContentThoughts = field(default_factory=ContentThoughts)
    logprobs: dict[str, list[Any]] = field(default_factory=dict)
    sound: ProviderPart | None = None

    def without_details(self, delta: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return *delta* without its pieces of reasoning that have to go back whole; take those."""
        if delta.keys().isdisjoint(FIELDS):
            return delta
        for name in FIELDS:
            for piece in delta.get(name) or ():
                self.details.setdefault(name, FieldThoughts()).add(piece)
        return {key: value for key, value in delta.items() if key not in FIELDS}

    def without_known_sound(self, parts: list[Any]) -> list[Any]:
        """Return *parts* without the id of a sound that is known: each chunk of it repeats it."""
        new = [part for part in parts if part != self.sound]
        for part in new:
            if isinstance(part, ProviderPart) and "audio" in part.data:
                self.sound = part
        return new

    def add_logprobs(self, logprobs: Mapping[str, Any]) -> None:
        """Take the log probabilities of the next tokens."""
        for name, tokens in logprobs.items():
            if isinstance(tokens, list):
                self.logprobs.setdefault(name, []).extend(tokens)


# What chunks repeat; anything else is news.
_ROUTINE = frozenset(
    {
        *("id", "object", "created", "model", "choices", "usage", "obfuscation", "p", "provider"),
        *("system_fingerprint", "service_tier"),
    }
)
_NO_ID_YET = object()


class StreamDecoder:
    """Makes chunks of the events of a stream; no I/O.

    Attributes:
        complete: Whether the server has said that nothing more comes.

    Raises (from both methods):
        ProviderError: The stream reports an error.
        StreamInterruptedError: It ended before its answer did.
        InvalidResponseError: An event cannot be read.
    """

    __slots__ = ("_choices", "_dialect", "_headers", "_id", "complete")

    def __init__(self, dialect: Dialect, headers: Headers = EMPTY) -> None:
        self._dialect = dialect
        self._headers = headers
        self._id: object = _NO_ID_YET
        self._choices: dict[int, _Choice] = {}
        self.complete = False

    @property
    def is_over(self) -> bool:
        """Whether nothing more can come, but figures."""
        return bool(self._choices) and (self.complete or not self._unfinished())

    def feed(self, data: bytes, event: str = "") -> ChatResponse | str | None:
        """Return the chunk that an event spells, or None when there is nothing in it.

        Args:
            data: The event's data.
            event: The event's type, if it has one.
        """
        if self.complete or not data:
            return None
        try:
            chunk = loads(data)
            choices: Any = chunk.get("choices") or ()
            if len(choices) == 1 and (text := self._plain_text(chunk, choices[0])) is not None:
                return text
            refuse_errors(chunk, self._dialect, self._headers, event)
            generations = tuple(g for choice in choices if (g := self._delta(choice)) is not None)
            metadata = self._metadata(chunk)
        except MISSHAPEN as error:
            if is_end(data):  # which is no JSON object, and asked here once instead of each time
                self.complete = True
                return None
            raise unreadable(self._dialect.provider, data) from error
        if not generations and metadata is NO_METADATA:
            return None
        return ChatResponse(generations, metadata)

    def finish(self, rest: bytes) -> Iterator[ChatResponse | str]:
        """Yield what the end of the stream still tells, and make sure that it is the end.

        Args:
            rest: What was left of the stream after its last event.
        """
        if rest.strip() and not self.complete:
            with suppress(InvalidResponseError):  # a part of an event
                if (chunk := self.feed(rest.strip())) is not None:
                    yield chunk
        if not self.is_over:
            raise ended_early(self._dialect.provider)
        if unfinished := self._unfinished():  # a server that never says why it stops
            yield ChatResponse(tuple(self._closing(at, {}, "") for at in unfinished))

    def _unfinished(self) -> list[int]:
        """Return which of the answers have not told their end."""
        return [at for at, choice in self._choices.items() if not choice.finished]

    def _plain_text(self, chunk: Mapping[str, Any], choice: Mapping[str, Any]) -> str | None:
        """Return the text of a chunk that has nothing else to say, as nearly all have."""
        delta = choice.get("delta")
        if not delta or len(delta) != 1 or chunk.get("id") != self._id or not self._choices:
            return None
        text = delta.get("content")
        more = choice.get("index") or choice.get("finish_reason") or choice.get("logprobs")
        more = more or choice.get("content_filter_results") or chunk.get("usage")
        return None if more or type(text) is not str or "error" in chunk else text

    def _delta(self, choice: Mapping[str, Any]) -> Generation | None:
        # A server that knows no streams answers with the whole message.
        delta = choice.get("delta")
        if delta is None:
            delta = choice.get("message") or {}
        at = number_of(choice.get("index")) or 0
        state = self._choices.get(at)
        if state is None:
            state = self._choices[at] = _Choice()
        provider, delta = self._dialect.provider, state.without_details(delta)
        if logprobs := choice.get("logprobs"):
            state.add_logprobs(logprobs)
        parts = state.thoughts.join(parts_of(delta, provider, call_chunk), provider)
        if "audio" in delta:
            parts = state.without_known_sound(parts)
        state.calls = state.calls or any(type(part) is ToolCallChunk for part in parts)
        state.refused = state.refused or bool(delta.get("refusal"))
        native = choice.get("finish_reason")
        metadata, said = beside(choice, CHOICE_FIELDS), message_metadata(delta)
        if native:  # some servers have an empty reason in every chunk
            closing = self._closing(at, metadata, native)
            message = AssistantMessage((*parts, *closing.output.parts), metadata=said)
            return Generation(message, closing.finish_reason, native, at, closing.metadata)
        if not parts and not metadata and not said:
            return None
        message = AssistantMessage(parts, metadata=said)
        return Generation(message, index=at, metadata=metadata)

    def _closing(self, at: int, metadata: Mapping[str, Any], native: str) -> Generation:
        """Return the end of an answer: the reason, and what had to be complete to be told."""
        state = self._choices[at]
        state.finished = True
        provider = self._dialect.provider
        parts: list[Any] = [*state.thoughts.end(provider)]
        for name, thoughts in state.details.items():
            parts.append(ProviderPart(provider, FrozenDict({name: thoughts.end()})))
        state.details = {}
        if state.logprobs:
            metadata = FrozenDict({**metadata, "logprobs": state.logprobs})
        reason = finish_reason(native, calls=state.calls, refused=state.refused)
        return Generation(AssistantMessage(parts), reason, native, at, metadata)

    def _metadata(self, chunk: Mapping[str, Any]) -> ChatResponseMetadata:
        """Return the metadata of a chunk that has something new to say."""
        id = chunk.get("id")
        if self._id == id and not chunk.get("usage") and chunk.keys() <= _ROUTINE:
            return NO_METADATA
        self._id = id
        return metadata_of(chunk, self._headers)
