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


class FieldThoughts:
    """Joins the pieces in which a stream sends one of these fields."""

    __slots__ = ("_pieces", "_texts")

    def __init__(self) -> None:
        self._pieces: list[dict[str, Any]] = []
        self._texts: list[str] = []  # of the last piece, once there is more than one

    def add(self, piece: Mapping[str, Any]) -> None:
        """Take the next piece: one of its own, or more of the last."""
        last = self._pieces[-1] if self._pieces else {}
        name = _TEXTS.get(piece.get("type", ""))
        another = any(last.get(key) != piece.get(key) for key in ("type", "index"))
        if name is None or another or (name == "thinking" and last.get("signature")):
            self._close()
            self._pieces.append(dict(piece))
            return
        if not self._texts:
            self._texts.append(text_of(last.get(name)))
        self._texts.append(text_of(piece.get(name)))
        last.update({key: value for key, value in piece.items() if value and key != name})

    def end(self) -> list[dict[str, Any]]:
        """Return the whole pieces."""
        self._close()
        return self._pieces

    def _close(self) -> None:
        if self._texts:
            last = self._pieces[-1]
            last[_TEXTS[last["type"]]] = "".join(self._texts)
            self._texts = []


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

    __slots__ = ("_open", "_texts")

    def __init__(self) -> None:
        self._open: dict[str, Any] | None = None
        self._texts: list[str] = []

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
        if data is None:
            return []
        texts, self._texts = self._texts, []
        if data["summary"]:
            data["summary"][-1]["text"] = "".join(texts)
        return [Reasoning(provider=provider, data=FrozenDict(data))]

    def _add(self, data: Mapping[str, Any], provider: str) -> list[Reasoning]:
        if self._open is None:
            self._open = {**data, "summary": []}
        pieces: list[dict[str, Any]] = self._open["summary"]
        for piece in data.get("summary") or ():
            self._texts.append(text_of(piece.get("text")))
            last = pieces.pop() if pieces else {}
            known = {key: value for key, value in piece.items() if value}
            pieces.append({**piece, **last, **known})
        return self.end(provider) if pieces and pieces[-1].get("signature") else []
