"""Reasoning that servers of Chat Completions send in forms of their own, and want back.

OpenRouter and MiniMax have `reasoning_details`, LiteLLM has `thinking_blocks`: fields of the
message, which go back as they came. Databricks has parts of the content of type `reasoning`.
Streams send all of them in pieces; a signature ends a piece of thought.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from chatclient.messages import Reasoning
from chatclient.providers.fields import text_of
from chatclient.values import FrozenDict

FIELDS = ("reasoning_details", "thinking_blocks")
"""The fields of a message that hold such reasoning, as lists."""

_TEXTS = {"reasoning.text": "text", "reasoning.summary": "summary", "thinking": "thinking"}
"""Which field of a piece is its text, by the piece's type."""


def add_piece(pieces: list[dict[str, Any]], piece: Mapping[str, Any]) -> None:
    """Add the next *piece* of a field to those before it, or to the last of these."""
    last = pieces[-1] if pieces else {}
    name = _TEXTS.get(piece.get("type", ""))
    another = any(last.get(key) != piece.get(key) for key in ("type", "index"))
    if name is None or another or (name == "thinking" and last.get("signature")):
        pieces.append(dict(piece))
        return
    text = (last.get(name) or "") + (piece.get(name) or "")
    last.update({key: value for key, value in piece.items() if value})
    last[name] = text


def of_content(item: Mapping[str, Any], provider: str) -> Iterator[Reasoning]:
    """Yield what a part of the content of type `reasoning` says, and then the part itself."""
    summary = item.get("summary") or ()
    if text := "".join(text_of(piece.get("text")) for piece in summary):
        yield Reasoning(text, provider=provider)
    yield Reasoning(provider=provider, data=FrozenDict(item))


def content_of(part: Any) -> Mapping[str, Any] | None:
    """Return the part of the content that *part* is, if it is such reasoning."""
    if isinstance(part, Reasoning) and part.data and part.data.get("type") == "reasoning":
        return part.data
    return None


class ContentThoughts:
    """Joins the pieces in which a stream sends a part of the content of type `reasoning`."""

    __slots__ = ("_open",)

    def __init__(self) -> None:
        self._open: dict[str, Any] | None = None

    def join(self, parts: list[Any], provider: str) -> list[Any]:
        """Return *parts* of a delta with a whole in place of the pieces, as soon as it is one."""
        result: list[Any] = []
        for part in parts:
            if (data := content_of(part)) is not None:
                result += self._add(data, provider)
                continue
            # Other reasoning holds the words of a piece, which follows; all else is no thought.
            if not isinstance(part, Reasoning):
                result += self.end(provider)
            result.append(part)
        return result

    def end(self, provider: str) -> list[Reasoning]:
        """Return the reasoning that is still open, if there is any."""
        data, self._open = self._open, None
        return [] if data is None else [Reasoning(provider=provider, data=FrozenDict(data))]

    def _add(self, data: Mapping[str, Any], provider: str) -> list[Reasoning]:
        if self._open is None:
            self._open = {**data, "summary": []}
        pieces: list[dict[str, Any]] = self._open["summary"]
        for piece in data.get("summary") or ():
            last = pieces.pop() if pieces else {}
            text = text_of(last.get("text")) + text_of(piece.get("text"))
            known = {key: value for key, value in piece.items() if value}
            pieces.append({**piece, **last, **known, "text": text})
        return self.end(provider) if pieces and pieces[-1].get("signature") else []
