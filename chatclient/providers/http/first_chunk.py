"""Reads a stream up to its first content chunk, until which a request can be retried."""

from collections.abc import AsyncGenerator, Iterator
from itertools import chain

from chatclient.chat.response import ChatResponse
from chatclient.providers.http.reader import Chunk, Reader


async def read_until_content(chunks: AsyncGenerator[Chunk, None]) -> list[Chunk]:
    """Return *chunks* up to and including the first with content; others may precede it."""
    first: list[Chunk] = []
    async for chunk in chunks:
        first.append(chunk)
        if _has_content(chunk):
            break
    return first


async def read_first_chunk(
    reader: Reader, pieces: AsyncGenerator[bytes, None]
) -> tuple[Iterator[Chunk], bool]:
    """Return the first chunks of an answer, and whether they are the complete answer.

    Consumes *pieces* up to the one that contains the first content. The returned iterator decodes
    the rest of that piece lazily.
    """
    first: list[Chunk] = []
    async for piece in pieces:
        chunks = iter(reader.feed(piece))
        if _take_until_content(chunks, first):
            return chain(first, chunks), False
    chunks = iter(reader.finish())
    _take_until_content(chunks, first)
    return chain(first, chunks), True


def _take_until_content(chunks: Iterator[Chunk], first: list[Chunk]) -> bool:
    """Move *chunks* to *first* up to the first with content; return whether there was one."""
    for chunk in chunks:
        first.append(chunk)
        if _has_content(chunk):
            return True
    return False


def _has_content(chunk: Chunk) -> bool:
    if isinstance(chunk, ChatResponse):
        return any(generation.output.parts for generation in chunk.generations)
    return chunk != ""  # an invalid chunk is passed on and rejected by the caller
