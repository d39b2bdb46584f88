"""How long to wait for a provider."""

from dataclasses import dataclass

from chatclient.checks import seconds


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long to wait, in seconds; None waits for ever.

    Attributes:
        connect: For a connection, and for a free place in the pool.
        read: Between any two pieces of the answer.
        write: For the network to take the next piece of the request.
        first_byte: For the answer to begin, with its headers, which some servers send before they
            think; None for as long as `read`. (Over aiohttp the longer of the two holds for both.)
        total: For the whole request: all attempts, the waits between them, and the answer. What
            trickles in is looked at with every piece, so it may end one `read` late.

    Raises:
        UsageError: One of them is not a number, or not greater than 0.
    """

    connect: float | None = 5.0
    read: float | None = 600.0
    write: float | None = 600.0
    first_byte: float | None = None
    total: float | None = None

    def __post_init__(self) -> None:
        for name in ("connect", "read", "write", "first_byte", "total"):
            if (given := getattr(self, name)) is not None:
                object.__setattr__(self, name, seconds(name, given))

    def within(self, seconds: float) -> dict[str, float | None]:
        """Return what holds until the answer begins as the HTTP library wants it.

        Args:
            seconds: None of them is longer than this.
        """
        first = self.read if self.first_byte is None else self.first_byte
        connect = shorter(self.connect, seconds)
        return {
            "connect": connect,
            "read": shorter(first, seconds),
            "write": shorter(self.write, seconds),
            "pool": connect,
        }


_LEAST = 0.001  # seconds; to wait for none is not to wait, which sockets tell as another failure


def shorter(timeout: float | None, seconds: float) -> float | None:
    """Return *timeout*, but at most *seconds*, which may be infinite, and never nothing."""
    left = max(seconds, _LEAST)
    if timeout is None:
        return None if left == float("inf") else left
    return min(timeout, left)


def as_timeouts(timeout: float | Timeouts | None) -> Timeouts:
    """Return *timeout* as `Timeouts`; a number bounds the wait for the answer, None nothing.

    Raises:
        UsageError: It is not a number, or not greater than 0.
    """
    if isinstance(timeout, Timeouts):
        return timeout
    if timeout is None:
        return Timeouts(None, None, None)
    timeout = seconds("timeout", timeout)
    return Timeouts(min(5.0, timeout), timeout, timeout)
