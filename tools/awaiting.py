"""Policies of an application that may be plain or asynchronous."""

from typing import Any

from chatclient.runtime import Runtime
from chatclient.threads import is_awaitable


async def awaited(runtime: Runtime, given: Any) -> Any:
    """Return what a policy has *given*, awaited if the policy is asynchronous.

    A plain policy is called where it is needed: it is quick, and worth no thread of its own.
    """
    return await runtime.invoke(_awaited, given) if is_awaitable(given) else given


async def _awaited(given: Any) -> Any:
    return await given
