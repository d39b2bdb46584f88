"""Joins the chunks of a stream into one response."""

from dataclasses import replace
from typing import Any

from chatclient._internal.frozen import frozen
from chatclient.chat.call_builder import CallBuilder
from chatclient.chat.messages import (
    AssistantMessage,
    Media,
    Part,
    Reasoning,
    ToolCallChunk,
)
from chatclient.chat.response import (
    NO_METADATA,
    ChatResponse,
    ChatResponseMetadata,
    Generation,
    Usage,
)


class MessageAggregator:
    """Joins chunks; the response so far is available at any time.

    Consecutive pieces of text, and of reasoning, are joined; parts keep the order of their first
    pieces. Pieces of one sound are joined even if other parts come between them. Fragments of tool
    calls are assigned by id, else by index. A fragment with a name and without an id starts a new
    call if the previous call is complete or was named in the same chunk. Of repeated metadata
    (usage, ids), the last value that is set wins. Log probabilities of tokens are joined by the
    decoder of the stream, not here.
    """

    __slots__ = ("_generations", "_metadata", "_native_usage", "_values")

    def __init__(self) -> None:
        self._generations: dict[int, _GenerationBuilder] = {}
        # Updated in place, and frozen in `response`.
        self._metadata = NO_METADATA
        self._native_usage: dict[str, Any] = {}
        self._values: dict[str, Any] = {}

    def add(self, chunk: ChatResponse | str) -> None:
        """Add a chunk; a `str` is text of the first generation."""
        if isinstance(chunk, str):
            self.add_text(chunk)
        else:
            self.add_and_normalize(chunk)

    def add_and_normalize(self, chunk: ChatResponse) -> list[Part]:
        """Add a chunk, and return its parts of the first generation.

        Fragments of tool calls are normalized: those of one call have the same id and index, and
        the first one has the name.
        """
        first: list[Part] = []
        for generation in chunk.generations:
            parts = self._builder(generation.index).add(generation)
            if not generation.index:
                first = parts
        if chunk.metadata is not NO_METADATA:
            self._metadata = _joined(self._metadata, chunk.metadata)
            self._native_usage.update(chunk.metadata.usage.native)
            self._values.update(chunk.metadata.values)
        return first

    def add_text(self, text: str) -> None:
        """Add text of the first generation."""
        builder = self._generations.get(0) or self._builder(0)
        builder.add_text(text)

    def _builder(self, index: int) -> "_GenerationBuilder":
        builder = self._generations.get(index)
        if builder is None:
            builder = self._generations[index] = _GenerationBuilder()
        return builder

    def response(self) -> ChatResponse:
        """Return the chunks so far as one response."""
        generations = sorted(self._generations.items())
        metadata = self._metadata
        if metadata is not NO_METADATA:
            usage = replace(metadata.usage, native=frozen(self._native_usage))
            metadata = replace(metadata, usage=usage, values=frozen(self._values))
        return ChatResponse(tuple(builder.build(index) for index, builder in generations), metadata)


def _joined(old: ChatResponseMetadata, new: ChatResponseMetadata) -> ChatResponseMetadata:
    """Return *old* updated with the values set in *new*, without the mappings."""
    return ChatResponseMetadata(
        id=new.id or old.id,
        model=new.model or old.model,
        usage=_latest(old.usage, new.usage),
        rate_limit=new.rate_limit or old.rate_limit,
        request_id=new.request_id or old.request_id,
    )


def _latest(old: Usage, new: Usage) -> Usage:
    """Return *old* updated with the values set in *new*: providers send totals, not differences."""
    return Usage(
        new.input_tokens or old.input_tokens,
        new.output_tokens or old.output_tokens,
        old.cache_read_tokens if new.cache_read_tokens is None else new.cache_read_tokens,
        old.cache_write_tokens if new.cache_write_tokens is None else new.cache_write_tokens,
        old.reasoning_tokens if new.reasoning_tokens is None else new.reasoning_tokens,
    )


class _ReasoningBuilder:
    """Joins pieces of reasoning, until a signature or a part with provider data."""

    __slots__ = ("_first", "_signature", "_texts", "provider")

    def __init__(self, first: Reasoning) -> None:
        self._first = first
        self._texts = [first.text]
        self._signature = first.signature
        self.provider = first.provider

    def accepts(self, part: Reasoning) -> bool:
        """Return whether *part* continues this reasoning."""
        return self._signature is None and self._first.data is part.data is None

    def add(self, part: Reasoning) -> None:
        self._texts.append(part.text)
        self._signature = part.signature
        self.provider = self.provider or part.provider

    def build(self) -> Reasoning:
        if len(self._texts) == 1:
            return self._first
        return Reasoning("".join(self._texts), self._signature, self.provider)


class _AudioBuilder:
    """Joins pieces of a sound; the first one determines the type."""

    __slots__ = ("_metadata", "_pieces", "first")

    def __init__(self, first: Media) -> None:
        self.first = first
        self._pieces: list[bytes] = []
        self._metadata: dict[str, Any] = {}

    def accepts(self, piece: Media) -> bool:
        """Return whether *piece* continues this sound."""
        if self.first.id is not None and piece.id is not None:
            return piece.id == self.first.id
        # Without ids, only raw samples can be joined; other formats begin with a header.
        return piece.mime_type.lower().startswith(("audio/pcm", "audio/l16"))

    def add(self, piece: Media) -> None:
        if isinstance(piece.data, bytes):
            self._pieces.append(piece.data)
        self._metadata.update(piece.metadata)

    def build(self) -> Media:
        return replace(self.first, data=b"".join(self._pieces), metadata=frozen(self._metadata))


class _GenerationBuilder:
    """Joins the chunks of one generation.

    Its parts so far are lists of text pieces, builders of other parts, and complete parts. The
    generation's metadata (not that of its message) contains finish reasons and log probabilities.
    """

    __slots__ = (
        *("_audio", "_by_id", "_by_index", "_generation", "_message_metadata", "_metadata"),
        *("_newest", "_parts", "_reasoning_at"),
    )

    def __init__(self) -> None:
        self._parts: list[Any] = []
        # The newest call, also by id and by index (None: without one).
        self._newest: CallBuilder | None = None
        self._by_id: dict[str, CallBuilder] = {}
        self._by_index: dict[int | None, CallBuilder] = {}
        self._reasoning_at = -1  # index of the last reasoning among the parts
        self._audio: _AudioBuilder | None = None
        self._generation = Generation(AssistantMessage())
        self._metadata: dict[str, Any] = {}
        self._message_metadata: dict[str, Any] = {}

    def add(self, generation: Generation) -> list[Part]:
        """Add a chunk, and return its parts; see `MessageAggregator.add_and_normalize`."""
        parts: list[Part] = []
        named: set[CallBuilder] = set()
        for part in generation.output.parts:
            if isinstance(part, ToolCallChunk):
                fragment = self._add_call(part, named)
                if fragment is not None:
                    parts.append(fragment)
                continue
            parts.append(part)
            if type(part) is str:
                self.add_text(part)
            elif isinstance(part, Reasoning):
                self._add_reasoning(part)
            elif isinstance(part, Media) and part.mime_type.startswith("audio/"):
                self._add_audio(part)
            else:
                self._parts.append(part)
        if generation.output.metadata:
            self._message_metadata.update(generation.output.metadata)
        if generation.finish_reason or generation.native_finish_reason or generation.metadata:
            self._generation = _later(self._generation, generation)
            self._metadata.update(generation.metadata)
        return parts

    def build(self, index: int) -> Generation:
        parts: list[Part] = []
        for part in self._parts:
            if type(part) is list:
                parts.append("".join(part))
            elif isinstance(part, CallBuilder | _AudioBuilder | _ReasoningBuilder):
                parts.append(part.build())
            else:
                parts.append(part)
        message = AssistantMessage(parts, metadata=frozen(self._message_metadata))
        metadata = frozen(self._metadata)
        return replace(self._generation, output=message, index=index, metadata=metadata)

    def add_text(self, text: str) -> None:
        if self._parts and type(self._parts[-1]) is list:
            self._parts[-1].append(text)
        elif text:
            self._parts.append([text])

    def _add_call(self, chunk: ToolCallChunk, named: set[CallBuilder]) -> ToolCallChunk | None:
        """Add a fragment of a call, and return its new content.

        Args:
            chunk: The fragment.
            named: The calls that previous fragments of the same chunk have named.
        """
        call = self._find_call(chunk, named)
        if call is None:
            call = self._newest = self._by_index[chunk.index] = CallBuilder(chunk.index)
            self._parts.append(call)
        if chunk.name:
            named.add(call)
        fragment = call.add(chunk)
        if call.id:
            self._by_id[call.id] = call
        return fragment

    def _find_call(self, chunk: ToolCallChunk, named: set[CallBuilder]) -> CallBuilder | None:
        best, best_score = None, 0
        for call in self._candidates(chunk):
            another = chunk.name and call in named and (not chunk.id or chunk.index != call.index)
            if not another and (score := call.match_score(chunk)) > best_score:
                best, best_score = call, score
        if best is None and not (chunk.id or chunk.name):
            return self._newest  # some servers number fragments instead of calls
        return best

    def _candidates(self, chunk: ToolCallChunk) -> list[CallBuilder]:
        """Return the calls that *chunk* may be part of."""
        id, index = chunk.id, chunk.index
        found = [self._by_id.get(id)] if id else []
        if index is not None:
            found.append(self._by_index.get(index))
        if not id:
            found.append(self._newest if index is None else self._by_index.get(None))
        return [call for call in found if call is not None]

    def _add_audio(self, piece: Media) -> None:
        if not isinstance(piece.data, bytes):
            self._parts.append(piece)
            return
        if self._audio is None or not self._audio.accepts(piece):
            self._audio = _AudioBuilder(piece)
            self._parts.append(self._audio)
        self._audio.add(piece)

    def _add_reasoning(self, part: Reasoning) -> None:
        at = self._reasoning_index(part)
        old = self._parts[at] if at >= 0 else None
        if isinstance(old, _ReasoningBuilder) and old.accepts(part):
            old.add(part)
        else:
            self._reasoning_at = len(self._parts)
            self._parts.append(_ReasoningBuilder(part))

    def _reasoning_index(self, part: Reasoning) -> int:
        """Return the index of the part that *part* may continue; -1 if there is none."""
        last = len(self._parts) - 1
        if part.text or not part.signature or not part.provider:
            return last
        # A signature without text may arrive after other parts: it signs the last reasoning.
        last_reasoning = self._parts[self._reasoning_at] if self._reasoning_at >= 0 else None
        return (
            self._reasoning_at
            if last_reasoning and last_reasoning.provider == part.provider
            else last
        )


def _later(old: Generation, new: Generation) -> Generation:
    return Generation(
        old.output,
        new.finish_reason or old.finish_reason,
        new.native_finish_reason or old.native_finish_reason,
    )
