"""Time-outs of requests to a provider."""

from dataclasses import dataclass

from chatclient._internal.checks import seconds


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Time-outs in seconds; None disables one.

    Attributes:
        connect: For opening a connection, or getting one from the pool.
        read: Between two pieces of the response.
        write: Between two pieces of the request.
        first_byte: Until the response headers arrive, which some servers send before generation;
            None for the value of `read`. (With aiohttp the longer of the two applies to both.)
        total: For the request including all retries and delays. It is checked after each piece of
            the response, so it may be exceeded by one `read`.

    Raises:
        UsageError: A value is not a number greater than 0.
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
        """Return the time-outs until the response headers, at most *seconds*, for httpx."""
        first = self.read if self.first_byte is None else self.first_byte
        connect = shorter(self.connect, seconds)
        return {
            "connect": connect,
            "read": shorter(first, seconds),
            "write": shorter(self.write, seconds),
            "pool": connect,
        }


_MIN_SECONDS = 0.001  # 0 would make sockets non-blocking


def shorter(timeout: float | None, seconds: float) -> float | None:
    """Return *timeout* limited to *seconds* (may be infinite), and greater than 0."""
    left = max(seconds, _MIN_SECONDS)
    if timeout is None:
        return None if left == float("inf") else left
    return min(timeout, left)


def as_timeouts(timeout: float | Timeouts | None) -> Timeouts:
    """Return *timeout*, a number of seconds, `Timeouts` or None for no limit, as `Timeouts`."""
    if isinstance(timeout, Timeouts):
        return timeout
    if timeout is None:
        return Timeouts(None, None, None)
    timeout = seconds("timeout", timeout)
    return Timeouts(min(5.0, timeout), timeout, timeout)
