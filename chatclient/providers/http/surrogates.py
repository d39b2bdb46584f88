"""Joins characters that a server split between two chunks; no I/O.

Gateways that count in UTF-16, as JavaScript does, may send the two surrogates of an emoji in
separate events. A single surrogate cannot be printed, or written to a file or a database.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from chatclient.chat.messages import AssistantMessage, Part, Reasoning
from chatclient.chat.response import ChatResponse, Generation
from chatclient.providers.http.reader import Chunk, Reader, is_complete, is_finished


class SurrogateJoiner:
    """Reader that holds a high surrogate at the end of a chunk until the low one arrives."""

    __slots__ = ("_held", "_last_bytes", "_may_have_surrogates", "_reader")

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        # JSON contains surrogates only as escapes; before the first one, chunks are not inspected.
        self._may_have_surrogates = False
        self._last_bytes = b""
        # By index of the answer, and type: text or reasoning.
        self._held: dict[tuple[int, type], str | Reasoning] = {}

    @property
    def complete(self) -> bool:
        """Whether the server has marked the end of the stream."""
        return is_complete(self._reader)

    @property
    def is_finished(self) -> bool:
        """Whether the answer is complete."""
        return is_finished(self._reader)

    def feed(self, piece: bytes) -> Iterable[Chunk]:
        """Return the chunks that *piece* completes."""
        chunks = self._reader.feed(piece)
        if not self._may_have_surrogates:
            seen = self._last_bytes + piece
            self._may_have_surrogates = b"\\ud" in seen or b"\\uD" in seen
            self._last_bytes = seen[-2:]
        return self._join(chunks) if self._may_have_surrogates else chunks

    def finish(self) -> Iterator[Chunk]:
        """Yield the last chunks, and surrogates that never got their second half."""
        yield from self._join(self._reader.finish())
        for (index, _), half in self._held.items():
            yield ChatResponse((Generation(AssistantMessage([half]), index=index),))

    def _join(self, chunks: Iterable[Chunk]) -> Iterator[Chunk]:
        for chunk in chunks:
            if isinstance(chunk, ChatResponse):
                yield self._join_response(chunk)
            elif self._held or not chunk.isascii():
                yield _text_of(self._join_part(0, chunk))
            else:
                yield chunk

    def _join_response(self, chunk: ChatResponse) -> ChatResponse:
        parts = (part for generation in chunk.generations for part in generation.output.parts)
        if not self._held and not any(_is_high_surrogate(_text_of(part)[-1:]) for part in parts):
            return chunk
        return replace(chunk, generations=tuple(map(self._join_generation, chunk.generations)))

    def _join_generation(self, generation: Generation) -> Generation:
        message, index = generation.output, generation.index
        parts = [self._join_part(index, part) for part in message.parts]
        return replace(generation, output=AssistantMessage(parts, metadata=message.metadata))

    def _join_part(self, index: int, part: Part) -> Part:
        """Prepend the held surrogate to *part*, and hold one at its end."""
        if not isinstance(part, str | Reasoning):
            return part
        text = _join_pairs(_text_of(self._held.pop((index, type(part)), "")) + _text_of(part))
        if _is_high_surrogate(text[-1:]):
            text, last = text[:-1], text[-1:]
            held = last if isinstance(part, str) else Reasoning(last, provider=part.provider)
            self._held[index, type(part)] = held
        return text if isinstance(part, str) else replace(part, text=text)


def _is_high_surrogate(character: str) -> bool:
    return "\ud800" <= character <= "\udbff"


def _join_pairs(text: str) -> str:
    """Return *text* with adjacent surrogates combined to characters."""
    if not any("\ud800" <= character <= "\udbff" for character in text):
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def _text_of(part: Part) -> str:
    if isinstance(part, str):
        return part
    return part.text if isinstance(part, Reasoning) else ""
