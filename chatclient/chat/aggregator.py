"""Joins the chunks of a stream into one response."""

import re
from dataclasses import replace
from itertools import pairwise
from typing import Any

from chatclient._internal.frozen import frozen
from chatclient._internal.json import loads
from chatclient.chat.messages import (
    AssistantMessage,
    Media,
    Part,
    Reasoning,
    ToolCall,
    ToolCallChunk,
)
from chatclient.chat.parts import generate_call_id
from chatclient.chat.response import (
    NO_METADATA,
    ChatResponse,
    ChatResponseMetadata,
    Generation,
    Usage,
)

# How well a fragment matches a call, in ascending order.
_BY_INDEX, _UNNAMED, _BY_ID, _BY_ID_AND_INDEX = 1, 2, 3, 4
_BRACKETS = re.compile(r'["\\{}\[\]]')


class _Arguments:
    """The fragments of a call's arguments; each is scanned once, in linear time overall."""

    __slots__ = ("_closed", "_depth", "_escaped", "_in_string", "_object", "_scanned", "fragments")

    def __init__(self) -> None:
        self.fragments: list[str] = []
        self._scanned = 0  # number of fragments
        self._depth = 0
        self._in_string = self._escaped = False
        self._closed = False  # whether a complete value has ended
        self._object: dict[str, Any] | None = None

    def add(self, fragment: str) -> None:
        if fragment:
            self.fragments.append(fragment)

    def text(self) -> str:
        return "".join(self.fragments)

    def complete_object(self) -> dict[str, Any] | None:
        """Return the JSON object that the fragments form, or None."""
        new = self.fragments[self._scanned :]
        self._scanned += len(new)
        for fragment in new:
            self._scan(fragment)
        has_content = not all(map(str.isspace, new))
        if has_content and self._closed:  # text after a complete value
            self._object = None
        elif has_content and not self._depth and not self._in_string:
            self._closed = True
            self._object = _object_in(self.text())
        return self._object

    def _scan(self, fragment: str) -> None:
        """Follow brackets and strings; an escape may continue in the next fragment."""
        escaped = 0 if self._escaped else -1  # position of an escaped character
        for match in _BRACKETS.finditer(fragment):
            at, sign = match.start(), match.group()
            if at == escaped:
                continue
            if sign == '"':
                self._in_string = not self._in_string
            elif self._in_string:
                if sign == "\\":
                    escaped = at + 1
            elif sign in "{[":
                self._depth += 1
            elif sign in "}]":
                self._depth -= 1
        self._escaped = escaped == len(fragment)


class CallBuilder:
    """Collects the fragments of one tool call."""

    __slots__ = ("_fixed_id", "_started", "arguments", "id", "index", "metadata", "name")

    def __init__(self, index: int | None) -> None:
        self._fixed_id = ""
        self._started = False
        self.index = index
        self.id = ""
        self.name = ""
        self.arguments = _Arguments()
        self.metadata: dict[str, Any] = {}

    def match_score(self, chunk: ToolCallChunk) -> int:
        """Return how well *chunk* matches this call; 0 if it is part of another one."""
        if chunk.name and self.name and chunk.name != self.name:
            return 0  # some servers send the same index and id, or none, for all calls
        if chunk.name and not chunk.id and self._is_followed_by(chunk.arguments):
            return 0  # a second call of the same tool
        numbered = chunk.index is not None and self.index is not None
        other_index = numbered and chunk.index != self.index
        if chunk.id and chunk.id == self.id:
            if not other_index:
                return _BY_ID_AND_INDEX
            return 0 if self._is_followed_by(chunk.arguments) else _BY_ID
        if other_index or (chunk.id and not numbered):
            return 0
        if chunk.id and self.id:  # some servers send a new id with each fragment
            continues = not chunk.name and not self._is_followed_by(chunk.arguments)
            return _BY_INDEX if continues else 0
        return _UNNAMED

    def _is_followed_by(self, arguments: str) -> bool:
        """Return whether the call is complete and *arguments* begin another object."""
        if not arguments.lstrip().startswith("{"):
            return False
        return self.arguments.complete_object() is not None

    def _is_repeated_by(self, arguments: str) -> bool:
        """Return whether *arguments* repeat the complete arguments, as some servers do."""
        followed = self._is_followed_by(arguments)
        return followed and _object_in(arguments) == self.arguments.complete_object()

    def add(self, chunk: ToolCallChunk) -> ToolCallChunk | None:
        """Add a fragment, and return its new content; None until the name is known."""
        # Id and name are never split, but some servers repeat them in every chunk.
        self.id = self.id or chunk.id
        self.name = self.name or chunk.name
        arguments = "" if self._is_repeated_by(chunk.arguments) else chunk.arguments
        self.arguments.add(arguments)
        if chunk.metadata:
            self.metadata.update(chunk.metadata)
        if not self.name:
            return None
        if not self._started:
            self._started = True
            arguments = self.arguments.text()
            return ToolCallChunk(self.index, self._call_id(), self.name, arguments)
        return ToolCallChunk(self.index, self._call_id(), arguments=arguments)

    def _call_id(self) -> str:
        """Return the id of the call, generated if none was received; it does not change later."""
        self._fixed_id = self._fixed_id or self.id or generate_call_id()
        return self._fixed_id

    def build(self) -> ToolCall:
        """Return the call with the arguments received so far.

        A call without arguments has `{}`, as in answers that are not streamed. The input of a
        custom tool is free text, which may be empty.
        """
        text = self.arguments.text()
        fragments = [each for each in self.arguments.fragments if each.strip()]
        # Some servers repeat all previous text in each fragment. Checked as JSON, because repeated
        # text may also be the input of a custom tool.
        growing = len(fragments) > 1 and all(b.startswith(a) for a, b in pairwise(fragments))
        repeated = growing and _object_in(text) is None and _object_in(fragments[-1]) is not None
        arguments = fragments[-1] if repeated else text
        if not arguments and "type" not in self.metadata:
            arguments = "{}"
        return ToolCall(self._call_id(), self.name, arguments, frozen(self.metadata))


def _object_in(text: str) -> dict[str, Any] | None:
    try:
        value = loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


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
                call = self._find_call(part, named)
                if call is None:
                    call = self._newest = self._by_index[part.index] = CallBuilder(part.index)
                    self._parts.append(call)
                if part.name:
                    named.add(call)
                fragment = call.add(part)
                if call.id:
                    self._by_id[call.id] = call
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
            self._generation = Generation(
                self._generation.output,
                generation.finish_reason or self._generation.finish_reason,
                generation.native_finish_reason or self._generation.native_finish_reason,
            )
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

    def _find_call(self, chunk: ToolCallChunk, named: set[CallBuilder]) -> CallBuilder | None:
        best, best_score = None, 0
        id, index = chunk.id, chunk.index
        found = [self._by_id.get(id)] if id else []
        if index is not None:
            found.append(self._by_index.get(index))
        if not id:
            found.append(self._newest if index is None else self._by_index.get(None))
        for call in [call for call in found if call is not None]:
            another = chunk.name and call in named and (not chunk.id or chunk.index != call.index)
            if not another and (score := call.match_score(chunk)) > best_score:
                best, best_score = call, score
        if best is None and not (chunk.id or chunk.name):
            return self._newest  # some servers number fragments instead of calls
        return best

    def _add_audio(self, piece: Media) -> None:
        if not isinstance(piece.data, bytes):
            self._parts.append(piece)
            return
        if self._audio is None or not self._audio.accepts(piece):
            self._audio = _AudioBuilder(piece)
            self._parts.append(self._audio)
        self._audio.add(piece)

    def _add_reasoning(self, part: Reasoning) -> None:
        last = len(self._parts) - 1
        if part.text or not part.signature or not part.provider:
            at = last
        else:
            # A signature without text may arrive after other parts: it signs the last reasoning.
            last_reasoning = self._parts[self._reasoning_at] if self._reasoning_at >= 0 else None
            at = (
                self._reasoning_at
                if last_reasoning and last_reasoning.provider == part.provider
                else last
            )
        old = self._parts[at] if at >= 0 else None
        if isinstance(old, _ReasoningBuilder) and old.accepts(part):
            old.add(part)
        else:
            self._reasoning_at = len(self._parts)
            self._parts.append(_ReasoningBuilder(part))
