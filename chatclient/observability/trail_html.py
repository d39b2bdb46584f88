"""A turn as an HTML table with a time line, which notebooks show."""

from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING

from chatclient._internal.text import on_one_line
from chatclient.chat.response import ChatResponse
from chatclient.runtime.observation import Step

if TYPE_CHECKING:  # the trail imports this module
    from chatclient.observability.trail import Trail

_LONGEST = 120  # characters of a result
_BAR = "display:inline-block;height:.8em;background:currentColor;opacity:.5"


def html_of(trail: "Trail") -> str:
    """Return a row for each step: what it is, its result, its seconds and when it ran."""
    rows = [*trail.tree()]
    begin = rows[0][1].started if rows else 0.0
    whole = max((s.started - begin + (s.seconds or 0.0) for _, s in rows), default=0.0) or 1.0
    head = "".join(f"<th>{name}</th>" for name in ("step", "result", "seconds", "time line"))
    body = "".join(_row(depth, step, begin, whole) for depth, step in rows)
    return (
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        f"<p>{escape(trail.usage.tokens_text())}</p>"
    )


def _row(depth: int, step: Step, begin: float, whole: float) -> str:
    taken = step.seconds or 0.0
    left, width = 100 * (step.started - begin) / whole, max(100 * taken / whole, 0.5)
    bar = f'<span style="{_BAR};margin-left:{left:.1f}%;width:{width:.1f}%"></span>'
    seconds = "" if step.seconds is None else f"{taken:.3f}"
    name = escape(step.operation.name)
    cells = (
        f'<td style="text-align:left;padding-left:{1 + depth}em">{name}</td>',
        f'<td style="text-align:left">{escape(" ".join(_result(step)))}</td>',
        f"<td>{seconds}</td>",
        f'<td style="text-align:left;min-width:12em">{bar}</td>',
    )
    return f"<tr>{''.join(cells)}</tr>"


def _result(step: Step) -> Iterator[str]:
    """Yield what has become of a step: the beginning of the text, and the error."""
    if step.seconds is None:
        yield "running"
    response = getattr(step.result, "chat_response", step.result)
    text = response.text if isinstance(response, ChatResponse) else None
    if text is None:
        text = getattr(getattr(step.result, "response", None), "data", "")
    if text:
        yield on_one_line(text, _LONGEST)
    if step.error is not None:
        yield f"failed: {type(step.error).__name__}: {on_one_line(str(step.error), _LONGEST)}"
