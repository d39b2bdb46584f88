"""`durable`: makes the durable clients of this process."""

from chatclient._internal.checks import check_type, checked_id
from chatclient.client.client import ChatClient
from chatclient.durable.client import DurableClient
from chatclient.durable.recording import OnInterrupted, TurnRetries
from chatclient.durable.turn import SegmentRunner
from chatclient.errors import UsageError


def durable(
    client: ChatClient,
    *,
    name: str,
    on_interrupted: OnInterrupted = "ask",
    retries: TurnRetries | None = None,
) -> DurableClient:
    """Return a client whose turns survive crashes and restarts.

    Args:
        client: The client, with its tools, memory and advisors. All processes that run its turns
            create it in the same way.
        name: Identifies the client in the database.
        on_interrupted: What happens with a call of a tool that writes, if the process ended while
            the tool ran: the turn waits for a decision, as for an approval; the tool runs again;
            or the model is told that the outcome is unknown. Tools with `effect="read"` and
            `"idempotent"` simply run again.
        retries: Whether a turn waits and continues if the provider fails; default: it fails.

    Raises:
        UsageError: This process has a client of this name already, or an argument is invalid.
        ImportError: The extra `dbos` is not installed.
    """
    from chatclient.durable.workflow import runners  # noqa: PLC0415 - an extra

    check_type("the client", client, ChatClient)
    checked_id(name, "the name of a durable client")
    if "/" in name:
        msg = f"the name of a durable client must not contain a slash: {name!r}"
        raise UsageError(msg)
    if name in runners:
        msg = f"this process has a durable client {name!r} already; use another name"
        raise UsageError(msg)
    runner = SegmentRunner(client.prompt().pipeline, on_interrupted, retries)
    made = DurableClient(client, name, runner)
    runners[name] = runner
    return made
