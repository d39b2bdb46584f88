"""Joins the chunks of a stream into one response."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

from chatclient.json import loads
from chatclient.messages import (
    AssistantMessage,
    Media,
    Part,
    Reasoning,
    ToolCall,
    ToolCallChunk,
)
from chatclient.parts import invented_call_id
from chatclient.response import (
    NO_METADATA,
    ChatResponse,
    ChatResponseMetadata,
    Generation,
    Usage,
)
from chatclient.values import EMPTY, merged


class MessageAggregator:
    """Takes chunks one by one and returns the response so far at any time.

    Text joins text and reasoning joins reasoning for as long as nothing comes between them, so
    the parts keep the order in which they began. Pieces of one sound join, whatever comes between
    them. Tool call fragments are told apart by id, or by index where that tells nothing. One with
    a name and no id begins a call of its own where the call before it is complete, or was named in
    the same chunk. Of figures that providers repeat (usage, ids), the last that says something
    holds.
    """

    __slots__ = ("_generations", "_metadata")

    def __init__(self) -> None:
        self._generations: dict[int, _GenerationBuilder] = {}
        self._metadata = NO_METADATA

    def add(self, chunk: ChatResponse | str) -> None:
        """Take the next chunk; a string is the next piece of the first generation's text."""
        if isinstance(chunk, str):
            self.add_text(chunk)
        else:
            self.take(chunk)

    def take(self, chunk: ChatResponse) -> list[Part]:
        """Take the next chunk, and return what it tells of the first generation.

        That is its parts, whose fragments of tool calls can be told apart: all of a call have one
        id and one index, and the first of them has the name.
        """
        told: list[Part] = []
        for generation in chunk.generations:
            parts = self._builder(generation.index).add(generation)
            if not generation.index:
                told = parts
        if chunk.metadata is not NO_METADATA:
            self._metadata = _joined(self._metadata, chunk.metadata)
        return told

    def add_text(self, text: str) -> None:
        """Take the next piece of the first generation's text."""
        builder = self._generations.get(0) or self._builder(0)
        builder.add_text(text)

    def _builder(self, index: int) -> "_GenerationBuilder":
        builder = self._generations.get(index)
        if builder is None:
            builder = self._generations[index] = _GenerationBuilder()
        return builder

    def response(self) -> ChatResponse:
        """Return everything so far as one response."""
        generations = sorted(self._generations.items())
        return ChatResponse(
            tuple(builder.build(index) for index, builder in generations), self._metadata
        )


def _joined(old: ChatResponseMetadata, new: ChatResponseMetadata) -> ChatResponseMetadata:
    return ChatResponseMetadata(
        id=new.id or old.id,
        model=new.model or old.model,
        usage=_latest(old.usage, new.usage),
        rate_limit=new.rate_limit or old.rate_limit,
        request_id=new.request_id or old.request_id,
        values=merged(old.values, new.values),
    )


def _latest(old: Usage, new: Usage) -> Usage:
    """Return *new* where it says something: providers send running totals, never differences."""
    return Usage(
        new.input_tokens or old.input_tokens,
        new.output_tokens or old.output_tokens,
        old.cache_read_tokens if new.cache_read_tokens is None else new.cache_read_tokens,
        old.cache_write_tokens if new.cache_write_tokens is None else new.cache_write_tokens,
        old.reasoning_tokens if new.reasoning_tokens is None else new.reasoning_tokens,
        merged(old.native, new.native),
    )


# How well a fragment goes on with a call, the best last.
_BY_INDEX, _UNNAMED, _BY_ID, _SURELY = 1, 2, 3, 4


class _CallBuilder:
    """A tool call in the making."""

    __slots__ = ("_own_id", "_told", "arguments", "id", "index", "metadata", "name")

    def __init__(self, index: int | None) -> None:
        self._own_id = ""
        self._told = False
        self.index = index
        self.id = ""
        self.name = ""
        self.arguments: list[str] = []
        self.metadata = EMPTY

    def claim(self, chunk: ToolCallChunk) -> int:
        """Return how well *chunk* would go on with this call; 0 for not at all."""
        if chunk.name and self.name and chunk.name != self.name:
            return 0  # some servers give every call the same index and the same id, or none
        if chunk.name and not chunk.id and self._is_followed_by(chunk.arguments):
            return 0  # not even where one tool is called twice
        numbered = chunk.index is not None and self.index is not None
        elsewhere = numbered and chunk.index != self.index
        if chunk.id and chunk.id == self.id:
            if not elsewhere:
                return _SURELY
            return 0 if self._is_followed_by(chunk.arguments) else _BY_ID
        if elsewhere or (chunk.id and not numbered):
            return 0
        if chunk.id and self.id:  # some servers make a new id for each fragment
            goes_on = not chunk.name and not self._is_followed_by(chunk.arguments)
            return _BY_INDEX if goes_on else 0
        return _UNNAMED

    def _is_followed_by(self, arguments: str) -> bool:
        """Return whether *arguments* are another object after a complete one."""
        if not arguments.lstrip().startswith("{"):
            return False
        last = next((piece for piece in reversed(self.arguments) if piece.strip()), "")
        if not last.rstrip().endswith("}"):  # as it is before nearly every object inside
            return False
        return _object_in("".join(self.arguments)) is not None

    def _is_repeated_by(self, arguments: str) -> bool:
        """Return whether *arguments* are all that is there, as some servers say once more."""
        followed = self._is_followed_by(arguments)
        return followed and _object_in(arguments) == _object_in("".join(self.arguments))

    def _whole_arguments(self) -> str:
        whole = "".join(self.arguments)
        pieces = [piece for piece in self.arguments if piece.strip()]
        # Some servers say with each fragment all that there is so far; the text for a custom tool
        # may begin as it goes on, too.
        growing = len(pieces) > 1 and all(new.startswith(old) for old, new in pairwise(pieces))
        if growing and _object_in(whole) is None and _object_in(pieces[-1]) is not None:
            return pieces[-1]
        return whole

    def add(self, chunk: ToolCallChunk) -> ToolCallChunk | None:
        """Take the next fragment, and return what it tells: nothing before the name is known."""
        # Id and name are never fragmented, but some servers repeat them in every chunk.
        self.id = self.id or chunk.id
        self.name = self.name or chunk.name
        arguments = "" if self._is_repeated_by(chunk.arguments) else chunk.arguments
        self.arguments.append(arguments)
        self.metadata = merged(self.metadata, chunk.metadata)
        if not self.name:
            return None
        if not self._told:
            self._told = True
            arguments = "".join(self.arguments)
            return ToolCallChunk(self.index, self._known_as(), self.name, arguments)
        return ToolCallChunk(self.index, self._known_as(), arguments=arguments)

    def _known_as(self) -> str:
        """Return the call's id for everybody, which stays: where none has come, one is made."""
        self._own_id = self._own_id or self.id or invented_call_id()
        return self._own_id

    def build(self) -> ToolCall:
        return ToolCall(self._known_as(), self.name, self._whole_arguments(), self.metadata)


def _object_in(text: str) -> dict[str, Any] | None:
    try:
        value = loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


class _ThoughtsBuilder:
    """Thoughts in the making; a signature closes them, and what a provider keeps is whole."""

    __slots__ = ("_first", "_signature", "_texts", "provider")

    def __init__(self, first: Reasoning) -> None:
        self._first = first
        self._texts = [first.text]
        self._signature = first.signature
        self.provider = first.provider

    def takes(self, part: Reasoning) -> bool:
        """Return whether *part* goes on with these thoughts."""
        return self._signature is None and self._first.data is part.data is None

    def add(self, part: Reasoning) -> None:
        self._texts.append(part.text)
        self._signature = part.signature
        self.provider = self.provider or part.provider

    def build(self) -> Reasoning:
        if len(self._texts) == 1:
            return self._first
        return Reasoning("".join(self._texts), self._signature, self.provider)


class _SoundBuilder:
    """A sound in the making; its first bytes tell of which type it is."""

    __slots__ = ("_metadata", "_pieces", "first")

    def __init__(self, first: Media) -> None:
        self.first = first
        self._pieces: list[bytes] = []
        self._metadata = EMPTY

    def takes(self, piece: Media) -> bool:
        """Return whether *piece* goes on with this sound."""
        if self.first.id is not None and piece.id is not None:
            return piece.id == self.first.id
        # Raw samples go on without a word; another file begins with first bytes of its own.
        return piece.mime_type.lower().startswith(("audio/pcm", "audio/l16"))

    def add(self, piece: Media) -> None:
        if isinstance(piece.data, bytes):
            self._pieces.append(piece.data)
        self._metadata = merged(self._metadata, piece.metadata)

    def build(self) -> Media:
        return replace(self.first, data=b"".join(self._pieces), metadata=self._metadata)


class _GenerationBuilder:
    """One generation in the making: a list of text runs (lists), builders and finished parts."""

    __slots__ = ("_calls", "_last", "_metadata", "_parts", "_sound")

    def __init__(self) -> None:
        self._parts: list[Any] = []
        self._calls: list[_CallBuilder] = []
        self._sound: _SoundBuilder | None = None
        self._last = Generation(AssistantMessage())
        self._metadata = EMPTY

    def add(self, generation: Generation) -> list[Part]:
        """Take the next piece, and return what it tells; see `MessageAggregator.take`."""
        told: list[Part] = []
        named: list[_CallBuilder] = []
        for part in generation.output.parts:
            if isinstance(part, ToolCallChunk):
                fragment = self._add_call(part, named)
                if fragment is not None:
                    told.append(fragment)
                continue
            told.append(part)
            if type(part) is str:
                self.add_text(part)
            elif isinstance(part, Reasoning):
                self._add_reasoning(part)
            elif isinstance(part, Media) and part.mime_type.startswith("audio/"):
                self._add_sound(part)
            else:
                self._parts.append(part)
        if generation.output.metadata:
            self._metadata = merged(self._metadata, generation.output.metadata)
        if generation.finish_reason or generation.native_finish_reason or generation.metadata:
            self._last = _later(self._last, generation)
        return told

    def build(self, index: int) -> Generation:
        parts: list[Part] = []
        for part in self._parts:
            if type(part) is list:
                parts.append("".join(part))
            elif isinstance(part, _CallBuilder | _SoundBuilder | _ThoughtsBuilder):
                parts.append(part.build())
            else:
                parts.append(part)
        message = AssistantMessage(parts, metadata=self._metadata)
        return replace(self._last, output=message, index=index)

    def add_text(self, text: str) -> None:
        if self._parts and type(self._parts[-1]) is list:
            self._parts[-1].append(text)
        elif text:
            self._parts.append([text])

    def _add_call(self, chunk: ToolCallChunk, named: list[_CallBuilder]) -> ToolCallChunk | None:
        """Take the next fragment of a call, and return what it tells.

        Args:
            chunk: The fragment.
            named: The calls that the same chunk of the stream names before it.
        """
        call = self._call_of(chunk, named)
        if call is None:
            call = _CallBuilder(chunk.index)
            self._calls.append(call)
            self._parts.append(call)
        if chunk.name:
            named.append(call)
        return call.add(chunk)

    def _call_of(self, chunk: ToolCallChunk, named: list[_CallBuilder]) -> _CallBuilder | None:
        best, most = None, 0
        # The newest call is asked first: fragments without index and id belong to it.
        for call in reversed(self._calls):
            another = chunk.name and call in named and (not chunk.id or chunk.index != call.index)
            if not another and (claim := call.claim(chunk)) > most:
                best, most = call, claim
        if best is None and self._calls and not (chunk.id or chunk.name):
            return self._calls[-1]  # some servers count fragments in place of calls
        return best

    def _add_sound(self, piece: Media) -> None:
        if not isinstance(piece.data, bytes):
            self._parts.append(piece)
            return
        if self._sound is None or not self._sound.takes(piece):
            self._sound = _SoundBuilder(piece)
            self._parts.append(self._sound)
        self._sound.add(piece)

    def _add_reasoning(self, part: Reasoning) -> None:
        at = self._place_of_thoughts(part)
        old = self._parts[at] if at >= 0 else None
        if isinstance(old, _ThoughtsBuilder) and old.takes(part):
            old.add(part)
        else:
            self._parts.append(_ThoughtsBuilder(part))

    def _place_of_thoughts(self, part: Reasoning) -> int:
        """Return where the thoughts may be that *part* goes on with; -1 for nowhere."""
        last = len(self._parts) - 1
        if part.text or not part.signature or not part.provider:
            return last
        # A signature may come late, when something else has been said: it belongs to the thoughts
        # that have none yet.
        for at in range(last, -1, -1):
            if isinstance(old := self._parts[at], _ThoughtsBuilder):
                return at if old.provider == part.provider else last
        return last


def _later(old: Generation, new: Generation) -> Generation:
    return Generation(
        old.output,
        new.finish_reason or old.finish_reason,
        new.native_finish_reason or old.native_finish_reason,
        metadata=merged(old.metadata, new.metadata),
    )
