"""The advisor chain as a picture, which notebooks show."""

from html import escape

from chatclient.chain.chain import AdvisorChain, is_tool_calling, name_of

_WIDTH, _HEIGHT, _GAP, _INDENT = 300, 30, 18, 24


def svg_of(chain: AdvisorChain, client: str | None, *, rounds: bool) -> str:
    """Return the chain from the client to the model, one box below the other, as SVG.

    Args:
        chain: The chain.
        client: The name of the client, or None.
        rounds: Whether tools are run. If so, a frame is around what runs once per round.
    """
    names, inner = [client or "ChatClient"], None
    for number, advisor in enumerate(chain.advisors, 1):
        names.append(name_of(advisor))
        if rounds and is_tool_calling(advisor):
            inner = number + 1
    names.append(chain.model.name)
    step = _HEIGHT + _GAP
    width, height = _WIDTH + 2 * _INDENT, len(names) * step + _GAP
    parts = [_box(name, _GAP + at * step) for at, name in enumerate(names)]
    parts += [_arrow(_GAP + at * step + _HEIGHT) for at in range(len(names) - 1)]
    if inner is not None:
        top = _GAP + inner * step - _GAP // 3
        parts.append(
            f'<rect x="{_INDENT // 2}" y="{top}" width="{_WIDTH + _INDENT}"'
            f' height="{height - top - 4}" rx="8" fill="none" stroke="currentColor"'
            ' stroke-dasharray="4"/>'
            f'<text x="{_WIDTH + _INDENT}" y="{top + 14}" text-anchor="end" font-size="10"'
            ' fill="currentColor">once per round</text>'
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" role="img"'
        ' font-family="sans-serif" font-size="13"><title>Advisor chain</title>'
        f"{''.join(parts)}</svg>"
    )


def _box(name: str, top: int) -> str:
    middle = _INDENT + _WIDTH // 2
    return (
        f'<rect x="{_INDENT}" y="{top}" width="{_WIDTH}" height="{_HEIGHT}" rx="5" fill="none"'
        f' stroke="currentColor"/><text x="{middle}" y="{top + 20}" text-anchor="middle"'
        f' fill="currentColor">{escape(name)}</text>'
    )


def _arrow(top: int) -> str:
    middle, end = _INDENT + _WIDTH // 2, top + _GAP
    return f'<path d="M{middle} {top}V{end}m-4 -5l4 5l4 -5" fill="none" stroke="currentColor"/>'
