"""Formats the advisor chain of a request as text and as a diagram."""

from chatclient._internal.text import printable_line
from chatclient.chain.chain import AdvisorChain, is_tool_calling, name_of, order_of


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
    return "\n".join(map(printable_line, lines))
