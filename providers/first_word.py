"""Up to where a stream can be begun anew: until it has said something."""

from collections.abc import AsyncGenerator, Iterator
from itertools import chain

from chatclient.providers.reading import Chunk, Reader
from chatclient.response import ChatResponse


async def up_to_first_word(chunks: AsyncGenerator[Chunk, None]) -> list[Chunk]:
    """Return the first of *chunks* that says something, and those before it, such as an id."""
    first: list[Chunk] = []
    async for chunk in chunks:
        first.append(chunk)
        if _says_something(chunk):
            break
    return first


async def begun_by(
    reader: Reader, pieces: AsyncGenerator[bytes, None]
) -> tuple[Iterator[Chunk], bool]:
    """Return the chunks that begin an answer, and whether they are all of it.

    They are those of the *pieces* up to the one with the first that says something. What follows
    that in its piece is read only when it is asked for.
    """
    first: list[Chunk] = []
    async for piece in pieces:
        chunks = iter(reader.feed(piece))
        if _has_first_word(chunks, first):
            return chain(first, chunks), False
    chunks = iter(reader.finish())
    _has_first_word(chunks, first)
    return chain(first, chunks), True


def _has_first_word(chunks: Iterator[Chunk], first: list[Chunk]) -> bool:
    """Move *chunks* to *first*, up to one that says something; return whether there was one."""
    for chunk in chunks:
        first.append(chunk)
        if _says_something(chunk):
            return True
    return False


def _says_something(chunk: Chunk) -> bool:
    if isinstance(chunk, ChatResponse):
        return any(generation.output.parts for generation in chunk.generations)
    return chunk != ""  # what is no chunk at all goes on to where it is refused
