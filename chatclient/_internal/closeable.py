"""Base class with `close` and `aclose`."""

from typing import Self


class Closeable:
    """An object that may hold connections; `with` and `async with` close it.

    The default methods do nothing. A subclass whose blocking and asynchronous calls use different
    connections overrides both `close` and `aclose`.
    """

    def close(self) -> None:
        """Close the connections that blocking calls have opened."""

    async def aclose(self) -> None:
        """Close the connections that blocking calls, and calls on this event loop, have opened."""
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.aclose()
