"""Reasoning in tags at the beginning of an answer's text.

Some servers do not separate the reasoning of a model from its answer: `<think>Hm.</think>Yes.`
"""

from collections.abc import Iterable
from typing import Any, Literal

from chatclient._internal.frozen import FrozenDict
from chatclient.chat.messages import Reasoning

_TAGS = {"<think>": "</think>", "<mm:think>": "</mm:think>"}


class ThinkTags:
    """Takes the reasoning out of the text of one answer, complete or in pieces.

    The reasoning is followed by a part without text whose data has the tags and the space around
    them, with which `tagged_text` restores the text. Tags elsewhere in the text are the answer's.

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
        # A closing tag may have begun.
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
