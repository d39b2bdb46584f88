"""What all have in common that open something: a way to give it back."""

from typing import Self


class Closeable:
    """Something that may have opened connections; `with` and `async with` close it.

    One that opens nothing need not do anything. One whose blocking and asynchronous calls open
    different things has an `aclose` of its own.
    """

    def close(self) -> None:
        """Give back what blocking calls have opened, such as connections."""

    async def aclose(self) -> None:
        """Give back what calls on this event loop have opened, and what blocking calls have."""
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.aclose()
