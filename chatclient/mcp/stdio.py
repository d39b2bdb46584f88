"""A transport for servers that are started as processes, and what a failed start reports."""

import asyncio
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

from mcp.client.stdio import StdioServerParameters, stdio_client

from chatclient.extend import get_logger
from chatclient.mcp.limits import McpLimits, MessageCounter

log = get_logger(__name__)

_TAIL = 8_192  # bytes of the standard error to keep
_LINES, _LINE_LENGTH = 10, 300  # to report
_MIN_SECRET = 4  # characters; shorter values would match ordinary text
# A name is matched completely from its beginning, or a long one would take cubic time.
_NAME = r"(?<![\w-])(?=[\w-]*?(?:api[_-]?key|token|secret|passw(?:or)?d|credential|auth))[\w-]++"
_SECRET_OPTION = re.compile(rf"(?=-){_NAME}(?:=(.*))?", re.IGNORECASE | re.DOTALL)
_SECRETS = re.compile(
    rf"""(?P<before> {_NAME}["']?\s*+[=:]\s*+["']? (?:(?:bearer|basic)\s++)?
    | \b(?:bearer|basic)\s++
    | ://[^\s/:@]*+: (?=[^\s/@]++@))
    [^\s"'@,;]+""",
    re.IGNORECASE | re.VERBOSE,
)


def with_last_lines(message: str, lines: str) -> str:
    """Return *message* with the last *lines* of the standard error, if there are any."""
    return f"{message}; the last lines of its standard error:\n{lines}" if lines else message


class StdioTransport:
    """A server's process.

    The lines of its standard error go to the log, and the last ones are kept. In both, secrets are
    masked.
    """

    def __init__(
        self,
        name: str,
        command: str,
        args: Sequence[str],
        env: Mapping[str, str] | None,
        cwd: str | Path | None,
        limits: McpLimits,
    ) -> None:
        self._name = name
        self._logged = MessageCounter(limits.log_messages)
        self._most = limits.message_size
        self.has_exceeded = False
        """Whether the server has sent a line that is too long."""
        self.on_exceeded: Callable[[], None] | None = None
        """Ends the connection then: pending requests would wait for their answers."""
        self._parameters = StdioServerParameters(
            command=command, args=list(args), env=dict(env or {}), cwd=cwd
        )
        self._secrets = sorted(_secrets_of(args, env or {}), key=len, reverse=True)
        self._tail = b""
        self._drained = asyncio.Event()
        self._streams: Any = None
        self._process: Any = None

    async def __aenter__(self) -> Any:
        source, target = os.pipe()
        call_soon = asyncio.get_running_loop().call_soon_threadsafe
        # A thread, because event loops cannot read pipes on every system. It ends with the pipe.
        reader = Thread(target=self._forward, args=(source, call_soon), daemon=True)
        reader.name = "chatclient-mcp-stderr"
        reader.start()
        with open(target, "w") as errors:  # noqa: PTH123, ASYNC230 - a pipe; the process keeps its end
            self._streams = stdio_client(self._parameters, errors)
            streams = await self._streams.__aenter__()
        # The SDK does not give out the process.
        self._process = process = self._streams.gen.ag_frame.f_locals.get("process")
        if hasattr(process, "_stdout"):  # the SDK does not read yet, and has no limit
            process._stdout = _Output(process.stdout, self._most, self._exceed)  # noqa: SLF001
        return streams

    async def __aexit__(self, *error: object) -> Any:
        try:
            return await self._streams.__aexit__(*error)
        finally:
            # Waits for the last lines, which usually explain the end.
            with suppress(TimeoutError):  # the server may have left child processes
                async with asyncio.timeout(1):
                    await self._drained.wait()

    @property
    def exit_status(self) -> int | None:
        """The exit status of the process, negative for a signal; None if unknown or running."""
        status: int | None = getattr(self._process, "returncode", None)
        return status

    def _exceed(self) -> None:
        self.has_exceeded = True
        if self.on_exceeded is not None:
            self.on_exceeded()

    @property
    def last_lines(self) -> str:
        """The last lines of the standard error, without secrets."""
        lines = self._tail.decode(errors="replace").strip().splitlines()[-_LINES:]
        return "\n".join(map(self._printable, lines))

    def _printable(self, line: str) -> str:
        """Return *line* shortened, without secrets and control characters."""
        for secret in self._secrets:
            line = line.replace(secret, "***")
        return "".join(filter(str.isprintable, _SECRETS.sub(r"\g<before>***", line)[:_LINE_LENGTH]))

    def _forward(self, source: int, call_soon: Callable[..., object]) -> None:
        """Log the standard error of the process, and keep its end."""
        # The event loop logs: a thread that ends with Python must not hold the lock of a handler.
        with os.fdopen(source, "rb", buffering=0) as errors, suppress(RuntimeError):  # it is closed
            rest = b""
            while chunk := errors.read(_TAIL):
                self._tail = (self._tail + chunk)[-_TAIL:]
                *lines, rest = (rest + chunk).split(b"\n")
                self._log(lines, call_soon)
                rest = rest[-_TAIL:]  # of a line without an end
            self._log([rest], call_soon)
        with suppress(RuntimeError):
            call_soon(self._drained.set)

    def _log(self, lines: Sequence[bytes], call_soon: Callable[..., object]) -> None:
        for line in filter(bytes.strip, lines):
            self._logged.add()
            if not self._logged.excess:
                text = self._printable(line.decode(errors="replace"))
                call_soon(_log_line, self._name, text)
            elif self._logged.excess == 1:
                call_soon(_log_line, self._name, "(further lines are dropped for a minute)")


class _Output:
    """The standard output of a process, in complete lines of at most *most* bytes.

    The SDK copies the beginning of a line with each piece of it, and keeps any number of them.
    """

    def __init__(self, stream: Any, most: int, exceed: Callable[[], None]) -> None:
        self._stream = stream
        self._most = most
        self._exceed = exceed
        self._pieces: list[bytes] = []  # of an unfinished line
        self._size = 0
        self._is_over = False

    async def receive(self) -> bytes:
        """Return the next lines; after a line that is too long, wait for the end.

        Raises:
            anyio.EndOfStream: The process has ended.
        """
        while True:
            piece: bytes = await self._stream.receive()
            if self._is_over:
                continue
            lines, end, rest = piece.rpartition(b"\n")
            self._pieces.append(lines + end if end else rest)
            self._size += len(piece)
            if end:
                complete, self._pieces, self._size = b"".join(self._pieces), [rest], len(rest)
                return complete
            if self._size > self._most:
                self._is_over, self._pieces = True, []
                self._exceed()

    async def aclose(self) -> None:
        await self._stream.aclose()


def _log_line(server: str, line: str) -> None:
    log.info("MCP server wrote to its standard error", server=server, line=line)


def _secrets_of(args: Sequence[str], env: Mapping[str, str]) -> Iterator[str]:
    """Return the values that errors must not contain: of the environment, and of options."""
    is_secret = False
    for part in (*env.values(), *args):
        option = _SECRET_OPTION.fullmatch(part)
        secret = (option[1] or "") if option else part if is_secret else ""
        if len(secret) >= _MIN_SECRET:
            yield secret
        is_secret = option is not None and option[1] is None
    yield from (value for value in env.values() if len(value) >= _MIN_SECRET)
