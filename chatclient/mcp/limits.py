"""Limits on what an MCP server may send."""

import time
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Literal

from chatclient.chat.messages import Media
from chatclient.errors import McpServerError
from chatclient.extend import check_number

Listed = Literal["tools", "resources", "prompts"]
"""What a server lists, by the name of its limit."""


@dataclass(frozen=True, slots=True)
class McpLimits:
    """What an MCP server may send, so that it cannot exhaust memory, the context or the disk.

    Valid servers stay far below these limits. They apply to each server.

    Attributes:
        tools: Tools that the server may list; with more, it counts as unreachable.
        resources: Resources that the server may list, and templates of resources; more are an
            `McpServerError`.
        prompts: Prompts that the server may list; more are an `McpServerError`.
        definition_length: Characters of the definition of a tool, resource or prompt (name,
            description, schemas) as JSON; one with a longer definition is left out.
        result_size: Characters of the text of a result or listing and bytes of its media, in total;
            a larger one is an `McpServerError`.
        message_size: Bytes of one message of the server, uncompressed, which are counted while they
            arrive; a larger one is an `McpServerError`.
        log_messages: Messages of the server's log per minute, and lines of its standard error;
            further ones are dropped.
        samplings: Requests of the server to a lent model per minute; further ones are refused.
        progress_events: Events of the progress of one call; further ones are dropped.

    Raises:
        UsageError: A limit is not a number greater than 0.
    """

    tools: int = 5_000
    resources: int = 5_000
    prompts: int = 5_000
    definition_length: int = 200_000
    result_size: int = 64 * 2**20
    message_size: int = 96 * 2**20
    log_messages: int = 600
    samplings: int = 60
    progress_events: int = 10_000

    def __post_init__(self) -> None:
        for each in fields(self):
            check_number(f"the limit {each.name}", getattr(self, each.name), least=1)

    def check_count(self, count: int, kind: Listed, server: str) -> None:
        """Check how many items of a *kind* the *server* lists.

        Raises:
            McpServerError: There are too many.
        """
        if count > (most := getattr(self, kind)):
            what = f"the MCP server {server!r} lists more than {most:,} {kind}"
            raise _excess(what, kind, server)

    def check_size(self, text: str, media: Iterable[Media], server: str) -> None:
        """Check the size of a result of *server* with this *text* and these *media*.

        Raises:
            McpServerError: It is too large.
        """
        size, most = len(text) + sum(len(each.data) for each in media), self.result_size
        if size > most:
            what = (
                f"the result of the MCP server {server!r} is too large ({size:,}, limit {most:,})"
            )
            raise _excess(what, "result_size", server)

    def large_message(self, server: str) -> McpServerError:
        """Return the error for a message of *server* that is too large."""
        most = self.message_size
        what = f"the MCP server {server!r} sent a message of more than {most:,} bytes"
        return _excess(what, "message_size", server)


def _excess(what: str, limit: str, server: str) -> McpServerError:
    msg = f"{what}; if that is expected, pass limits=McpLimits({limit}=...)"
    return McpServerError(msg, server=server)


MCP_LIMITS = McpLimits()


class MessageCounter:
    """Counts messages per minute.

    Args:
        limit: Messages per minute.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._count = 0
        self._minute = -1

    def add(self) -> None:
        """Count a message."""
        minute = int(time.monotonic() // 60)
        if minute != self._minute:
            self._minute, self._count = minute, 0
        self._count += 1

    @property
    def excess(self) -> int:
        """The number of messages above the limit in the minute of the last one."""
        return max(0, self._count - self._limit)
