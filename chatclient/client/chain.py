"""Builds the advisor chain of a request, and formats it as text and as a diagram."""

from collections.abc import Sequence

from chatclient._internal.text import printable_line
from chatclient.advisors.tool_loop.advisor import ToolCallingAdvisor
from chatclient.chain.chain import (
    MEMORY_ORDER,
    Advisor,
    AdvisorChain,
    is_memory,
    is_tool_calling,
    name_of,
    order_of,
    part_around_loop,
    part_inside_loop,
    storage_of,
)
from chatclient.client.request_settings import RequestSettings
from chatclient.client.shared_parts import SharedParts
from chatclient.errors import UsageError


def build_chain(shared: SharedParts, settings: RequestSettings) -> AdvisorChain:
    """Return the advisor chain for *settings*.

    A `ToolCallingAdvisor` is added unless an advisor runs the tool loop. With `tool_calling`
    off, other tool loops are removed; ours reads from the options that it should not run tools.

    Raises:
        UsageError: Two advisors run the tool loop, or use the same memory.
    """
    advisors = list(settings.advisors)
    loops = [advisor for advisor in advisors if is_tool_calling(advisor)]
    if len(loops) > 1:
        names = ", ".join(f"{name_of(loop)} (order {order_of(loop)})" for loop in loops)
        msg = f"only one advisor can run the tool loop, but there are {len(loops)}: {names}"
        raise UsageError(msg)
    _check_distinct_memories([advisor for advisor in advisors if is_memory(advisor)])
    if not settings.tool_calling:
        advisors = [a for a in advisors if not is_tool_calling(a) or _is_ours(a)]
        loops = [loop for loop in loops if _is_ours(loop)]
    elif not loops:
        loops = [ToolCallingAdvisor(shared.manager)]
        advisors.append(loops[0])
    for loop in loops:
        advisors = _with_outer_and_inner_parts(shared, loop, sorted(advisors, key=order_of))
    return AdvisorChain(advisors, shared.model)


def _is_ours(loop: Advisor) -> bool:
    return isinstance(loop, ToolCallingAdvisor)


def _check_distinct_memories(advisors: Sequence[Advisor]) -> None:
    """Check that no two memory advisors store turns in the same place.

    Raises:
        UsageError: Two do; each turn would be stored and sent twice.
    """
    owners: dict[int, Advisor] = {}
    for advisor in advisors:
        key = id(storage_of(advisor))
        if key in owners:
            msg = (
                f"{name_of(owners[key])} and {name_of(advisor)} share one memory: each turn would"
                " be kept and sent twice; leave one of them out"
            )
            raise UsageError(msg)
        owners[key] = advisor


def _with_outer_and_inner_parts(
    shared: SharedParts, loop: Advisor, advisors: list[Advisor]
) -> list[Advisor]:
    """Return the sorted *advisors* with the second parts of advisors that have two.

    A memory inside the loop has a second part around the loop. An advisor outside the loop may
    have a second part inside, which sees each round.
    """
    at = advisors.index(loop)
    outside, inside = advisors[:at], advisors[at + 1 :]
    memories = [advisor for advisor in inside if is_memory(advisor)]
    if isinstance(loop, ToolCallingAdvisor):
        loop = loop.in_chain(shared.manager, memory_inside=bool(memories))
    # The default place of a memory: it stores messages as they were before other advisors.
    order = min(MEMORY_ORDER, order_of(loop))
    outer = [part for each in memories if (part := part_around_loop(each, order))]
    inner = [part for each in outside if (part := part_inside_loop(each, order_of(loop)))]
    return sorted([*outside, *outer, loop, *inner, *inside], key=order_of)


def describe_chain(chain: AdvisorChain, client: str | None, *, rounds: bool) -> str:
    """Return the chain as text, outermost first.

    Args:
        chain: The chain.
        client: The name of the client, or None.
        rounds: Whether tools are run. If so, advisors inside the tool loop are indented.
    """
    lines = ["ChatClient" if client is None else f"ChatClient {client!r}"]
    indent = ""
    for advisor in chain.advisors:
        lines.append(f"{indent}→ {name_of(advisor)} (order {order_of(advisor)})")
        if rounds and is_tool_calling(advisor):
            indent = "    "
            lines[-1] += ": what follows runs once per round"
    lines.append(f"{indent}→ {chain.model.name} ({type(chain.model).__name__})")
    return "\n".join(map(printable_line, lines))


def draw_chain(chain: AdvisorChain, client: str | None, *, rounds: bool) -> str:
    """Return the chain as a Mermaid flowchart.

    Args:
        chain: The chain.
        client: The name of the client, or None.
        rounds: Whether tools are run. If so, the inside of the tool loop is a subgraph.
    """
    lines = ["flowchart TB", f'    client(["{client or "ChatClient"}"])']
    indent, above = "    ", "client"
    for number, advisor in enumerate(chain.advisors):
        here = f"advisor{number}"
        lines.append(f'{indent}{here}["{name_of(advisor)}"]')
        lines.append(f"{indent}{above} --> {here}")
        if rounds and is_tool_calling(advisor):
            lines.append(f'{indent}tools[["tools"]]')
            lines.append(f"{indent}{here} <--> tools")
            lines.append(f'{indent}subgraph loop ["once per round"]')
            indent *= 2
        above = here
    lines.append(f'{indent}model[("{chain.model.name}")]')
    lines.append(f"{indent}{above} --> model")
    if len(indent) > 4:  # noqa: PLR2004 - in the subgraph
        lines.append("    end")
    return "\n".join(lines)
