"""Runs the code of an application that a tool is made of."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from chatclient.threads import is_awaitable
from chatclient.tool import ToolContext, ToolResult
from chatclient.tools.approval import ApprovalRequired, refuse_to_suspend
from chatclient.tools.conversion import called


async def run_code(
    name: str,
    call: Callable[[], Any],
    told: Callable[[Any], ToolResult],
    context: ToolContext,
    *,
    is_async: bool,
) -> ToolResult:
    """Run *call*, and return what the model is told of what it returned.

    If it has done its work and the tool fails all the same, `context.result` says so.

    Args:
        name: The tool's.
        call: The application's code.
        told: Makes what it returned into what the model is told.
        context: The tool context.
        is_async: Whether the code is asynchronous.
    """
    returned: list[Any] = []

    def run() -> Any:
        value = called(call)
        returned.append(value)
        return value

    try:
        value = await context.runtime.invoke(call if is_async else run, timeout=context.timeout)
        return _told(told, value, context)
    except ApprovalRequired as waiting:
        refuse_to_suspend(name, waiting)
        raise
    except asyncio.CancelledError:
        for value in returned:  # by a thread that could not be stopped
            if not is_awaitable(value):
                with suppress(Exception):
                    context.result = _told(told, value, context)
        raise


def _told(told: Callable[[Any], ToolResult], value: Any, context: ToolContext) -> ToolResult:
    try:
        return told(value)
    except Exception:
        context.result = ToolResult("", value=value)  # it has done its work all the same
        raise
