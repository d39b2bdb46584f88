"""Up to where a stream can be begun anew: until it has said something."""

from collections.abc import AsyncGenerator

from chatclient.response import ChatResponse

Chunk = ChatResponse | str
"""What a stream is handed out in; a text stands for the next piece of the answer's text."""


async def up_to_first_word(chunks: AsyncGenerator[Chunk, None]) -> list[Chunk]:
    """Return the first of *chunks* that says something, and those before it, such as an id."""
    first: list[Chunk] = []
    async for chunk in chunks:
        first.append(chunk)
        if _says_something(chunk):
            break
    return first


def _says_something(chunk: Chunk) -> bool:
    if isinstance(chunk, ChatResponse):
        return any(generation.output.parts for generation in chunk.generations)
    return chunk != ""  # what is no chunk at all goes on to where it is refused
