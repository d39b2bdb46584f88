"""`assert_stable_prefix`: a test that providers can cache the prompts of a conversation."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from chatclient.observability.prefix import PrefixReport, compare_rounds, rounds_of
from chatclient.runtime.observation import Step

if TYPE_CHECKING:  # of a layer above
    from chatclient.client.client import ChatClient


def assert_stable_prefix(
    client: "ChatClient",
    conversation: Iterable[str],
    *,
    conversation_id: str = "stable-prefix",
    breaks: int = 0,
) -> tuple[PrefixReport, ...]:
    """Hold a conversation, and assert that each request begins with the one before.

    Args:
        client: The client, with the model that answers: a `ScriptedModel`, for example.
        conversation: The texts of the user, one for each turn.
        conversation_id: The id of the conversation in memories.
        breaks: How many requests may begin with something else, for example because a memory's
            window moves.

    Returns:
        The comparisons of each request with the one before.

    Raises:
        AssertionError: More requests than *breaks* begin with something else; the message shows
            what changed first in each of them, and which advisor did it.
    """
    reports: list[PrefixReport] = []
    previous: Step | None = None
    for text in conversation:
        answer = client.prompt(text).conversation(conversation_id).call()
        answer.chat_client_response()
        steps = answer.trail().steps
        for round_ in rounds_of(steps):
            if previous is not None:
                reports.append(compare_rounds(previous, round_, steps))
            previous = round_
    broken = [f"request {n}: {each}" for n, each in enumerate(reports, 2) if not each.stable]
    if len(broken) > breaks:
        allowed = f", not {breaks} at most" if breaks else ""
        msg = f"{len(broken)} of {len(reports)} requests begin differently{allowed}:\n"
        raise AssertionError(msg + "\n".join(broken))
    return tuple(reports)
