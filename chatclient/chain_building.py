"""Builds the chain of a request."""

from collections.abc import Sequence

from chatclient.advisors.tool_calling import ToolCallingAdvisor
from chatclient.chain import (
    MEMORY_ORDER,
    Advisor,
    AdvisorChain,
    is_memory,
    is_tool_calling,
    name_of,
    order_of,
)
from chatclient.engine import Engine
from chatclient.errors import UsageError
from chatclient.spec import RequestSpec


def build_chain(engine: Engine, spec: RequestSpec) -> AdvisorChain:
    """Return the chain of *spec*, with a tool loop: its own or ours, or none that runs tools.

    Raises:
        UsageError: Two advisors want to run the tool loop, or share one memory.
    """
    advisors = list(spec.advisors)
    loops = [advisor for advisor in advisors if is_tool_calling(advisor)]
    if len(loops) > 1:
        names = ", ".join(f"{name_of(loop)} (order {order_of(loop)})" for loop in loops)
        msg = f"only one advisor can run the tool loop, but there are {len(loops)}: {names}"
        raise UsageError(msg)
    _refuse_shared_memory([advisor for advisor in advisors if is_memory(advisor)])
    if not spec.tool_calling:
        # Loops of ours are told by the options to hand calls back; others may not know these.
        advisors = [a for a in advisors if not is_tool_calling(a) or _is_ours(a)]
        loops = [loop for loop in loops if _is_ours(loop)]
    elif not loops:
        loops = [ToolCallingAdvisor(engine.manager)]
        advisors.append(loops[0])
    for loop in loops:
        advisors = _with_halves(engine, loop, sorted(advisors, key=order_of))
    return AdvisorChain(advisors, engine.model)


def _is_ours(loop: Advisor) -> bool:
    return isinstance(loop, ToolCallingAdvisor)


def _refuse_shared_memory(advisors: Sequence[Advisor]) -> None:
    """Refuse advisors that would keep each turn in the same place, and send it, twice.

    Raises:
        UsageError: There are two.
    """
    kept: dict[int, Advisor] = {}
    for advisor in advisors:
        memory = getattr(advisor, "memory", advisor)
        place = id(getattr(memory, "repository", memory))
        if place in kept:
            msg = (
                f"{name_of(kept[place])} and {name_of(advisor)} share one memory: each turn would"
                " be kept and sent twice; leave one of them out"
            )
            raise UsageError(msg)
        kept[place] = advisor


def _with_halves(engine: Engine, loop: Advisor, advisors: list[Advisor]) -> list[Advisor]:
    """Return *advisors*, which are in order, with those on both sides of *loop* on both sides.

    Memory inside the loop has a second half around it, and a guard outside one that sees each
    round.
    """
    at = advisors.index(loop)
    inside = [advisor for advisor in advisors[at + 1 :] if is_memory(advisor)]
    if isinstance(loop, ToolCallingAdvisor):
        loop = loop.in_chain(engine.manager, memory_inside=bool(inside))
    makers = [getattr(advisor, "around_loop", None) for advisor in inside]
    # Where memory stands by default: what is remembered is not what others have made of it.
    order = min(MEMORY_ORDER, order_of(loop))
    halves = [around_loop(order) for around_loop in makers if around_loop is not None]
    rounds = [half for advisor in advisors[:at] if (half := _inside(advisor, order_of(loop)))]
    return sorted([*advisors[:at], *halves, loop, *rounds, *advisors[at + 1 :]], key=order_of)


def _inside(advisor: Advisor, order: int) -> Advisor | None:
    """Return the half of *advisor* that stands right inside of the tool loop, if it has one."""
    inside_loop = getattr(advisor, "inside_loop", None)
    return None if inside_loop is None else inside_loop(order)
