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

from chatclient._internal.logging import get_logger

log = get_logger(__name__)

_TAIL = 8_192  # bytes of the standard error to keep
_LINES, _LINE_LENGTH = 10, 300  # to report
_MIN_SECRET = 4  # characters; shorter values would match ordinary text
_NAME = r"[\w-]*(?:api[_-]?key|token|secret|passw(?:or)?d|credential|auth)[\w-]*"
_SECRET_OPTION = re.compile(rf"--?{_NAME}(?:=(.*))?", re.IGNORECASE | re.DOTALL)
_SECRETS = re.compile(
    rf"""(?P<before> \b{_NAME}["']?\s*[=:]\s*["']? (?:(?:bearer|basic)\s+)?
    | \b(?:bearer|basic)\s+
    | ://[^\s/:@]*: (?=[^\s/@]+@))
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
    ) -> None:
        self._name = name
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
        self._process = self._streams.gen.ag_frame.f_locals.get("process")
        return streams

    async def __aexit__(self, *error: object) -> Any:
        try:
            return await self._streams.__aexit__(*error)
        finally:
            with suppress(TimeoutError):  # the server may have left processes behind
                async with asyncio.timeout(1):
                    await self._drained.wait()

    @property
    def exit_status(self) -> int | None:
        """The exit status of the process, negative for a signal; None if unknown or running."""
        status: int | None = getattr(self._process, "returncode", None)
        return status

    @property
    def last_lines(self) -> str:
        """The last lines of the standard error, without secrets."""
        lines = self._tail.decode(errors="replace").strip().splitlines()[-_LINES:]
        return "\n".join(map(self._printable, lines))

    def _printable(self, line: str) -> str:
        """Return *line* shortened, without secrets and control characters."""
        return "".join(filter(str.isprintable, self._masked(line)[:_LINE_LENGTH]))

    def _masked(self, line: str) -> str:
        for secret in self._secrets:
            line = line.replace(secret, "***")
        return _SECRETS.sub(r"\g<before>***", line)

    def _forward(self, source: int, call_soon: Callable[..., object]) -> None:
        """Log the standard error of the process, and keep its end."""
        # The event loop logs: a thread that ends with Python must not hold the lock of a handler.
        with os.fdopen(source, "rb", buffering=0) as errors, suppress(RuntimeError):  # it is closed
            rest = b""
            while chunk := errors.read(_TAIL):
                self._tail = (self._tail + chunk)[-_TAIL:]
                *lines, rest = (rest + chunk).split(b"\n")
                call_soon(self._log, lines)
                rest = rest[-_TAIL:]  # of a line without an end
            call_soon(self._log, [rest])
        with suppress(RuntimeError):
            call_soon(self._drained.set)

    def _log(self, lines: Sequence[bytes]) -> None:
        for line in lines:
            if text := self._printable(line.decode(errors="replace")):
                log.info("MCP server wrote to its standard error", server=self._name, line=text)


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
