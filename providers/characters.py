"""Characters that a server has cut in two, whole again; no I/O.

Gateways that count in UTF-16, as JavaScript does, may send the halves of an emoji in two pieces of
a stream. A half is nothing that can be printed, or written to a file or a database.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from chatclient.messages import AssistantMessage, Part, Reasoning
from chatclient.providers.reading import Chunk, Reader, is_over
from chatclient.response import ChatResponse, Generation


class WholeCharacters:
    """Reads what another reader reads, and keeps the first half of a character for the second.

    Args:
        reader: The other reader.
    """

    __slots__ = ("_end", "_halves", "_is_wary", "_reader")

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        # Halves are written as escapes: until there is one, nothing is looked at closely.
        self._is_wary = False
        self._end = b""
        # By answer, and by what they are halves of: text or thoughts.
        self._halves: dict[tuple[int, type], str | Reasoning] = {}

    @property
    def complete(self) -> bool:
        """Whether the server has said that nothing more comes."""
        return bool(getattr(self._reader, "complete", False))

    @property
    def is_over(self) -> bool:
        """Whether the answer has ended."""
        return is_over(self._reader)

    def feed(self, piece: bytes) -> Iterable[Chunk]:
        """Return the chunks that *piece* completes."""
        chunks = self._reader.feed(piece)
        if not self._is_wary:
            seen = self._end + piece
            self._is_wary = b"\\ud" in seen or b"\\uD" in seen
            self._end = seen[-2:]
        return self._whole(chunks) if self._is_wary else chunks

    def finish(self) -> Iterator[Chunk]:
        """Yield what only the end completes, and halves whose second half never came."""
        yield from self._whole(self._reader.finish())
        for (index, _), half in self._halves.items():
            yield ChatResponse((Generation(AssistantMessage([half]), index=index),))

    def _whole(self, chunks: Iterable[Chunk]) -> Iterator[Chunk]:
        halves = self._halves
        for chunk in chunks:
            if isinstance(chunk, ChatResponse):
                yield self._whole_response(chunk)
            elif halves or not chunk.isascii():
                yield _text_of(self._with_whole_text(0, chunk))
            else:
                yield chunk

    def _whole_response(self, chunk: ChatResponse) -> ChatResponse:
        parts = (part for generation in chunk.generations for part in generation.output.parts)
        if not self._halves and not any(_is_first_half(_text_of(part)[-1:]) for part in parts):
            return chunk
        return replace(chunk, generations=tuple(map(self._whole_generation, chunk.generations)))

    def _whole_generation(self, generation: Generation) -> Generation:
        message, index = generation.output, generation.index
        parts = [self._with_whole_text(index, part) for part in message.parts]
        return replace(generation, output=AssistantMessage(parts, metadata=message.metadata))

    def _with_whole_text(self, index: int, part: Part) -> Part:
        """Return *part* behind the half that was kept, and without one at its end."""
        if not isinstance(part, str | Reasoning):
            return part
        text = _text_of(part)
        if half := self._halves.pop((index, type(part)), ""):
            text = _paired(_text_of(half) + text)
        if _is_first_half(text[-1:]):
            text, last = text[:-1], text[-1:]
            held = last if isinstance(part, str) else Reasoning(last, provider=part.provider)
            self._halves[index, type(part)] = held
        return text if isinstance(part, str) else replace(part, text=text)


def _is_first_half(character: str) -> bool:
    return "\ud800" <= character <= "\udbff"


def _paired(text: str) -> str:
    """Return *text* with each character in one, of which it has the halves side by side."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def _text_of(part: Part) -> str:
    if isinstance(part, str):
        return part
    return part.text if isinstance(part, Reasoning) else ""
