"""Reasoning in non-standard message fields, which has to be sent back unchanged, and in tags.

OpenRouter and MiniMax use the message field `reasoning_details`, LiteLLM `thinking_blocks`.
Databricks uses content parts of type `reasoning`. Streams send all of them in fragments; a
signature ends a block.

Some servers do not separate the reasoning of a model from its answer: `<think>Hm.</think>Yes.`
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from chatclient._internal.frozen import FrozenDict
from chatclient.chat.messages import Reasoning
from chatclient.providers.wire.fields import text_field

FIELDS = ("reasoning_details", "thinking_blocks")
"""Message fields with lists of reasoning blocks."""

_TEXTS = {"reasoning.text": "text", "reasoning.summary": "summary", "thinking": "thinking"}
"""The text field of a block, by type."""


class FieldReasoning:
    """Joins the fragments of one of these fields."""

    __slots__ = ("_blocks", "_texts")

    def __init__(self) -> None:
        self._blocks: list[dict[str, Any]] = []
        self._texts: list[str] = []  # of the last block, if it has several fragments

    def add(self, fragment: Mapping[str, Any]) -> None:
        """Add the next fragment, of the last block or a new one."""
        last = self._blocks[-1] if self._blocks else {}
        name = _TEXTS.get(fragment.get("type", ""))
        is_new = any(last.get(key) != fragment.get(key) for key in ("type", "index"))
        if name is None or is_new or (name == "thinking" and last.get("signature")):
            self._close()
            self._blocks.append(dict(fragment))
            return
        if not self._texts:
            self._texts.append(text_field(last.get(name)))
        self._texts.append(text_field(fragment.get(name)))
        last.update({key: value for key, value in fragment.items() if value and key != name})

    def end(self) -> list[dict[str, Any]]:
        """Return the complete blocks."""
        self._close()
        return self._blocks

    def _close(self) -> None:
        if self._texts:
            last = self._blocks[-1]
            last[_TEXTS[last["type"]]] = "".join(self._texts)
            self._texts = []


def decode_reasoning_item(item: Mapping[str, Any], provider: str) -> Iterator[Reasoning]:
    """Yield the text of a content part of type `reasoning`, then the part itself."""
    summary = item.get("summary") or ()
    if text := "".join(text_field(piece.get("text")) for piece in summary):
        yield Reasoning(text, provider=provider)
    yield Reasoning(provider=provider, data=FrozenDict(item))


def reasoning_item(part: Any) -> Mapping[str, Any] | None:
    """Return the content part in *part*, or None if it is something else."""
    if isinstance(part, Reasoning) and part.data and part.data.get("type") == "reasoning":
        return part.data
    return None


class ContentReasoning:
    """Joins the fragments of a content part of type `reasoning`."""

    __slots__ = ("_open", "_texts")

    def __init__(self) -> None:
        self._open: dict[str, Any] | None = None
        self._texts: list[str] = []

    def join(self, parts: list[Any], provider: str) -> list[Any]:
        """Return *parts* of a delta without fragments, and with content parts that are complete."""
        result: list[Any] = []
        for part in parts:
            if (data := reasoning_item(part)) is not None:
                result += self._add(data, provider)
                continue
            # Other reasoning is the text of the fragment that follows it.
            if not isinstance(part, Reasoning):
                result += self.end(provider)
            result.append(part)
        return result

    def end(self, provider: str) -> list[Reasoning]:
        """Return the unfinished content part, if there is one."""
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
        summary: list[dict[str, Any]] = self._open["summary"]
        for fragment in data.get("summary") or ():
            self._texts.append(text_field(fragment.get("text")))
            last = summary.pop() if summary else {}
            known = {key: value for key, value in fragment.items() if value}
            summary.append({**fragment, **last, **known})
        return self.end(provider) if summary and summary[-1].get("signature") else []


_TAGS = {"<think>": "</think>", "<mm:think>": "</mm:think>"}


class ThinkTags:
    """Takes the reasoning out of the text of one answer, complete or in pieces.

    The reasoning is followed by a part without text whose data has the tags and the space around
    them, with which `tagged_text` restores the text. Other tags in the text are the answer's.

    Args:
        provider: The provider's name.

    Attributes:
        at: The place in the answer that has been reached.
    """

    __slots__ = ("_held", "_opening", "_provider", "_tag", "at")

    def __init__(self, provider: str) -> None:
        self._provider = provider
        self._held = self._opening = self._tag = ""
        self.at: Literal["start", "thought", "space", "answer"] = "start"

    def split(self, parts: Iterable[Any]) -> list[Any]:
        """Return the next *parts* of the answer with its reasoning as parts of their own."""
        result: list[Any] = []
        for part in parts:
            if isinstance(part, str):
                result += self._split(part)
            else:
                if not isinstance(part, Reasoning):
                    result += self.end()
                result.append(part)
        return result

    def end(self) -> list[Any]:
        """Return what was withheld at the end of the text."""
        at, held = self.at, self._held
        self.at, self._held = "answer", ""
        if at in ("thought", "space"):
            return [self._tags(held)]
        return [held] if held else []

    def _split(self, text: str) -> list[Any]:
        self._held += text
        result: list[Any] = []
        if self.at == "start":
            self._begin()
        if self.at == "thought":
            result += self._think()
        if self.at == "space" and (answer := self._held.removeprefix(self._tag).lstrip()):
            result.append(self._tags(self._held[: -len(answer)]))
            self.at, self._held = "answer", answer
        if self.at == "answer":
            text, self._held = self._held, ""
            result += [text] if text else []
        return result

    def _begin(self) -> None:
        text = self._held.lstrip()
        for opening, closing in _TAGS.items():
            if text.startswith(opening):
                end = len(self._held) - len(text) + len(opening)
                self._opening, self._held = self._held[:end], self._held[end:]
                self._tag, self.at = closing, "thought"
                return
        if not any(tag.startswith(text) for tag in _TAGS):
            self.at = "answer"

    def _think(self) -> list[Reasoning]:
        text, tag, rest = self._held.partition(self._tag)
        if tag:
            self.at, self._held = "space", tag + rest
            return self._thought(text)
        # The text may end within a closing tag.
        kept = next(n for n in reversed(range(len(self._tag))) if text.endswith(self._tag[:n]))
        end = len(text) - kept
        self._held = text[end:]
        return self._thought(text[:end])

    def _thought(self, text: str) -> list[Reasoning]:
        return [Reasoning(text, provider=self._provider)] if text else []

    def _tags(self, closing: str) -> Reasoning:
        data = FrozenDict({"opening": self._opening, "closing": closing})
        return Reasoning(provider=self._provider, data=data)


def tagged_text(parts: Iterable[Any], provider: str) -> str:
    """Return the reasoning among *parts* in the tags in which it was received; empty if in none."""
    thought, result = "", ""
    for part in parts:
        if not isinstance(part, Reasoning) or part.provider != provider:
            continue
        if part.data is None:
            thought += part.text
        elif "opening" in part.data:
            result += part.data["opening"] + thought + part.data["closing"]
            thought = ""
    return result
